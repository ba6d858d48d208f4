"""Where does the penalty go, with which sign, and in which unit? PLACEMENT, SIGN, KL_UNIT and LOSS of a log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kleash.audit.coefficient_log import recover
from kleash.audit.findings import Finding, cannot_tell, number, ok, problem

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kleash.audit.declared import Declared
    from kleash.audit.logview import LogView

    Floats = NDArray[np.float64]

__all__ = ["Placed", "kl_unit", "loss_explained", "penalty_return", "penalty_unit", "placed", "placement", "sign"]

BY_DESIGN = {
    "trl-grpo": "loss",
    "trl-rloo": "reward",
    "trl-ppo": "reward",
    "trl-legacy-ppo": "reward",
    "trl-online-dpo": "reward",
    "trl-dpo": "loss",
    "trl-kto": "loss",
    "open-instruct": "loss",
    "trlx": "reward",
    "lm-human-preferences": "reward",
}
"""Trainers that can put the penalty in one place only (facts/trainers.md, 0.1; checked against the sources)."""


@dataclass(frozen=True, kw_only=True)
class Placed:
    """Where the log shows the penalty: each place True, False, or None where it does not show."""

    loss: bool | None
    reward: bool | None
    why: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        """``loss``, ``reward``, ``both``, ``none`` or ``unknown``."""
        if self.loss and self.reward:
            return "both"
        if self.loss:
            return "loss"
        if self.reward:
            return "reward"
        return "none" if self.loss is False and self.reward is False else "unknown"


def placed(view: LogView) -> Placed:
    """Where the log's own columns show the penalty.

    Evidence: the loss differs from the policy loss by more than its digits (loss); scores differ from rewards, or
    reward from return, by more than theirs (reward); a trainer with one place only, and a KL in the log.
    """
    found: Placed = view.once("placed", _placed)
    return found


def _placed(view: LogView) -> Placed:
    name = view.trainer
    if view.kl is None and not view.coefficient.size:
        if name in ("table", "trl-dpo", "trl-kto"):
            loss = True if name != "table" else None
            return Placed(loss=loss, reward=False if loss else None, why=("no KL column",))
        return Placed(loss=False, reward=False, why=("the log has no KL against a reference",))
    open_key = view.kl is not None and view.kl.spec.placement == "unknown" and view.settings.placement is None
    if name == "trl-grpo" and open_key:
        why = "GRPO and RLOO of TRL write the same keys: say which with --trainer"
        return Placed(loss=None, reward=None, why=(why,))
    if name in BY_DESIGN:
        place = BY_DESIGN[name]
        found = recover(view)
        zero = found.fit is not None and found.holds and not found.resolved and found.hi < 1e-6
        on = not zero
        why = f"{name} has one place for it" if on else f"{found.identity} is 0"
        return Placed(loss=on if place == "loss" else False, reward=on if place == "reward" else False, why=(why,))
    loss, why_loss = _in_loss(view)
    reward, why_reward = _in_reward(view)
    return Placed(loss=loss, reward=reward, why=tuple(x for x in (why_loss, why_reward) if x))


def _differ(view: LogView, first: str | None, second: str | None) -> bool | None:
    """Whether two columns differ by more than their digits in most rows; None where one is missing."""
    if first is None or second is None:
        return None
    x, y = np.asarray(view.log.raw[first]), np.asarray(view.log.raw[second])
    both = np.isfinite(x) & np.isfinite(y)
    if not both.any():
        return None
    grant = view.error(first, x) + view.error(second, y)
    return bool((np.abs(x - y)[both] > 2 * grant[both]).mean() > 0.5)


def _in_loss(view: LogView) -> tuple[bool | None, str]:
    name = view.trainer
    if name == "nemo-rl":
        key = view.key("kl_penalty")
        values = view.raw("kl_penalty")
        if values is None or not np.isfinite(values).any():
            return None, ""
        on = bool(np.nanmax(np.abs(values)) > 0)
        return on, f"{key} is not 0" if on else f"{key} is 0 in every row"
    if name == "openrlhf":
        differ = _differ(view, view.key("reward"), view.key("return"))
        if differ is None or view.settings.in_loss is None:
            return view.settings.in_loss, ""
        return view.settings.in_loss and not differ, "reward and return are equal" if not differ else ""
    whole, policy = view.key("actor/loss", "loss", "total_loss"), view.key("actor/pg_loss", "pg_loss", "policy_loss")
    kl = view.key("actor/kl_loss", "kl_loss")
    if whole is not None and policy is not None and view.kl is not None:
        found = recover(view)
        if found.fit is not None and found.place == "loss" and found.holds and (kl or found.resolved):
            if found.resolved:
                return True, f"{whole} - {policy} is {number(found.fit.value)} x {view.kl.key}"
            logged = view.coefficient.values
            if found.fit.hi < 1e-12 or (logged.size and not logged.any()):
                return False, f"{whole} and {policy} are equal"
    if kl is not None:
        coefficient = view.coefficient
        if coefficient.size and not coefficient.values.any():
            return False, "the logged coefficient is 0"
        return (True, f"the log has {kl}") if name in ("verl", "slime") else (None, "")
    if name in ("verl", "slime"):
        return False, "the log has no kl_loss"
    where = view.kl.spec.placement if view.kl is not None else "unknown"
    return (True, "as mapped") if where.startswith("loss") else (None, "")


def _in_reward(view: LogView) -> tuple[bool | None, str]:
    name = view.trainer
    if name == "openrlhf":
        differ = _differ(view, view.key("reward"), view.key("return"))
        return differ, "" if not differ else "return is below reward by more than its digits"
    if name == "verl":
        score, reward = view.key("critic/score/mean"), view.key("critic/rewards/mean")
        differ = _differ(view, score, reward)
        key = view.key("actor/reward_kl_penalty", "critic/kl")
        if differ:
            return True, f"{score} and {reward} differ"
        if key is not None and view.key("actor/reward_kl_penalty_coeff", "critic/kl_coeff") is not None:
            kl = np.asarray(view.log.raw[key])
            if differ is False and np.nanmax(np.abs(kl)) > 0.01 and not view.coefficient.values.any():
                return False, "scores and rewards are equal"
            return True, f"the log has {key}"
        return False if differ is not None else None, "scores and rewards are equal" if differ is not None else ""
    if name in ("nemo-rl", "slime"):
        return view.settings.in_reward, ""
    found = recover(view)
    if found.fit is not None and found.place == "reward" and found.holds:
        return found.resolved, f"{found.identity} is {number(found.fit.value)}"
    where = view.kl.spec.placement if view.kl is not None else "unknown"
    return (True, "as mapped") if where.startswith("reward") else (None, "")


def placement(view: LogView, declared: Declared, level: float) -> Finding:
    """Whether the penalty is where it was put: in the loss, in the reward, in both, nowhere.

    ``problem``: it is in both, it is nowhere although a coefficient above 0 is configured, a configured coefficient has
    no effect with the other settings, or it is in another place than configured. No chance is involved.
    """
    found, settings = placed(view), view.settings
    evidence = {
        "placement": found.where,
        "configured": settings.where,
        "coefficient": settings.beta,
        "why": list(found.why),
    }
    why = "; ".join(found.why)
    if settings.inert is not None and found.where != "loss":
        return problem(
            "PLACEMENT",
            f"{settings.inert}: no leash",
            evidence=evidence,
            causes=("the option belongs to another advantage estimator",),
            fix="use the penalty in the loss (--use-kl-loss with --kl-loss-coef and a kl-loss-type of k2 or k3)",
        )
    if found.where == "both":
        return problem(
            "PLACEMENT",
            f"the penalty is in the loss and in the reward, counted twice ({why})",
            evidence=evidence,
            causes=("both options are on",),
            fix="switch one of the two off",
        )
    wants = settings.beta is not None and settings.beta > 0 and settings.where != "none"
    if found.where == "none" and wants:
        said = f"{settings.beta_key} is {number(settings.beta or 0.0)}"
        return problem(
            "PLACEMENT",
            f"{said} and no penalty is in the loss or in the reward ({why}): no leash",
            evidence=evidence,
            causes=(
                "the coefficient is not passed on to the trainer",
                "the switch that turns the penalty on is off (verl: use_kl_loss, use_kl_in_reward)",
                "the log is of another run than the configuration",
            ),
            fix="make the coefficient reach the trainer, and look for the KL in the next log",
        )
    if (
        found.where in ("loss", "reward")
        and settings.where in ("loss", "reward", "none")
        and (found.where != settings.where)
    ):
        return problem(
            "PLACEMENT",
            f"configured is {settings.where}, the log shows {found.where} ({why})",
            evidence=evidence,
            causes=("a version whose switch means something else (verl before PR 644)", "the log is of another run"),
            fix="use the configuration of this run; check the version's meaning of the switch",
        )
    if found.where == "unknown":
        message = f"the log does not show it ({why})" if why else "the log does not show it"
        return cannot_tell(
            "PLACEMENT", message, fix="give --config, or log the loss and the policy loss", evidence=evidence
        )
    words = {"loss": "in the loss", "reward": "in the reward", "none": "no penalty, and none configured"}
    if found.where == "none" and settings.beta is None and settings.where is None:
        words["none"] = "no penalty in this run"
    return ok("PLACEMENT", f"{words[found.where]} ({why})" if why else words[found.where], evidence=evidence)


def sign(view: LogView, declared: Declared, level: float) -> Finding:
    """Whether the penalty punishes drift, or pays for it.

    ``problem``: the coefficient that the identities give is below 0 by more than the digits allow, or the shaped reward
    is score plus penalty. No chance is involved.
    """
    found = recover(view)
    causes = (
        "the penalty is subtracted from the loss (verl before commit a65c9157, and forks taken earlier)",
        "the two log-probabilities are exchanged",
    )
    fix = "a penalty is added to a loss and taken from a reward; correct the sign and start again"
    shaped = _shaped_sign(view)
    if shaped is not None and shaped[0]:
        return problem("SIGN", shaped[1], evidence={"identity": shaped[1]}, causes=causes, fix=fix)
    if found.fit is None or not found.holds:
        if shaped is not None:
            return ok("SIGN", shaped[1], evidence={"identity": shaped[1]})
        return cannot_tell("SIGN", f"the log does not show the penalty itself: {found.reason}", fix=None)
    evidence = {"identity": found.identity, "value": found.fit.value, "lo": found.lo, "hi": found.hi}
    text = f"{found.identity} is {number(found.fit.value)}"
    if found.hi < 0:
        return problem("SIGN", f"{text}: drift is rewarded", evidence=evidence, causes=causes, fix=fix)
    if found.lo <= 0 < found.hi:
        return cannot_tell("SIGN", f"{text}, 0 as far as the digits show", evidence=evidence)
    return ok("SIGN", f"{text}: drift is punished", evidence=evidence)


def _shaped_sign(view: LogView) -> tuple[bool, str] | None:
    """Whether ``rlhf_reward`` is scores minus non_score_reward (wrong) or plus it; None where a column is missing."""
    names = ("objective/rlhf_reward", "objective/scores", "objective/non_score_reward")
    keys = [view.key(name) for name in names]
    if any(key is None for key in keys):
        return None
    total, score, other = (np.asarray(view.log.raw[str(key)]) for key in keys)
    grant = 3 * np.sum([view.error(key, np.asarray(view.log.raw[str(key)])) for key in keys], axis=0) + 1e-6
    used = np.isfinite(total) & np.isfinite(score) & np.isfinite(other) & (np.abs(other) > grant)
    if not used.any():
        return None
    plus = np.abs(total - score - other)[used] <= grant[used]
    minus = np.abs(total - score + other)[used] <= grant[used]
    if minus.mean() > 0.5 >= plus.mean():
        return True, "rlhf_reward is scores minus non_score_reward: drift is rewarded"
    return (False, "rlhf_reward is scores plus non_score_reward") if plus.mean() > 0.5 else None


def penalty_unit(view: LogView) -> str | None:
    """The unit of the KL that the coefficient multiplies: per token in a loss, the sum over the answer in a reward."""
    where = placed(view).where
    if where == "unknown":
        where = view.settings.where or "unknown"
    if view.trainer in ("trl-dpo", "trl-kto"):
        return "nats per answer"
    return {"loss": "nats per token", "reward": "nats per answer"}.get(where)


def kl_unit(view: LogView, declared: Declared, level: float) -> Finding:
    """Whether the logged KL is in the unit of the penalty, and free of the coefficient.

    ``problem``: the identity gives a coefficient that is off by the mean length (the label of the unit is wrong), or it
    gives 1 where another coefficient is stated (the logged KL already has the coefficient in it).
    """
    kl = view.kl
    assert kl is not None
    logged, penal = kl.spec.unit, penalty_unit(view)
    evidence: dict[str, object] = {"logged": logged, "penalty": penal, "column": kl.key, "transform": kl.transform}
    found, stated = recover(view), view.settings.beta
    if stated is None and view.coefficient.size:
        stated = float(view.coefficient.values[0])
    if found.resolved and found.fit is not None and stated and not found.fits(stated) and found.factor == 1.0:
        ratio = found.fit.value / stated
        evidence |= {"ratio": ratio}
        fix = "correct the unit in the mapping, or divide the column by the coefficient, before anything is compared"
        if found.lo <= 1 <= found.hi and not np.isclose(stated, 1.0):
            return problem(
                "KL_UNIT",
                f"{found.identity} is 1, not {number(stated)}: the logged KL has the coefficient in it",
                causes=("the log holds coefficient * kl under the name of kl",),
                fix=fix,
                evidence=evidence,
            )
        if view.length.size:
            length = float(np.median(view.length.values))
            evidence |= {"length": length}
            for value, text in ((ratio / length, "a mean per token"), (ratio * length, "a sum over the answer")):
                if abs(np.log(abs(value))) < np.log(1.25) and length > 2:
                    return problem(
                        "KL_UNIT",
                        f"the coefficient is off by the mean length ({number(length)}): "
                        f"{kl.key} is {text}, not {logged}",
                        causes=(
                            "the column is labelled with the wrong unit",
                            "the penalty takes the mean, not the sum",
                        ),
                        fix=fix,
                        evidence=evidence,
                    )
    if penal is None:
        return cannot_tell(
            "KL_UNIT", f"{kl.key} is in {logged}; where the penalty goes is not known", evidence=evidence
        )
    if logged == penal:
        return ok("KL_UNIT", f"{kl.key} and the penalty are both in {logged}", evidence=evidence)
    times = "multiply" if penal == "nats per answer" else "divide"
    length_text = f" ({number(float(np.median(view.length.values)))})" if view.length.size else ""
    text = f"{kl.key} is in {logged}, the penalty takes {penal}: {times} by the mean length{length_text} to compare"
    return ok("KL_UNIT", text, evidence=evidence)


def loss_explained(view: LogView, declared: Declared, level: float) -> Finding:
    """Is the loss nothing but beta * KL? Then a loss that starts at 0 and grows is the KL growing, not a failure."""
    found = recover(view)
    key = view.key("loss", "actor/loss")
    if key is None or view.kl is None:
        return cannot_tell("LOSS", "no loss beside the KL")
    loss = np.asarray(view.log.raw[key])
    evidence: dict[str, object] = {"identity": found.identity}
    if view.trainer == "trl-grpo" and found.fit is not None and found.fit.slack <= 0.05:
        bound = found.fit.hi
        evidence |= {"beta": found.fit.value, "beta_hi": bound}
        if not np.nanmax(np.abs(loss)) > 0:
            text = f"the loss prints as 0 because beta * kl is below its digits (beta at most {number(bound)})"
            return ok("LOSS", f"{text}: not a failure", evidence=evidence)
        if found.holds:
            return ok(
                "LOSS",
                f"the loss is {number(found.fit.value)} * kl: it starts at 0 and grows with the KL",
                evidence=evidence,
            )
    if found.resolved and found.place == "loss" and found.fit is not None and view.trainer != "trl-grpo":
        kl = np.asarray(view.kl.values)
        size = float(np.nanmedian(np.abs(loss)))
        share = float(np.nanmedian(np.abs(found.fit.value * kl))) / size if size > 0 else np.inf
        evidence |= {"share": share}
        return ok("LOSS", f"the penalty is {number(share)} of the loss", evidence=evidence)
    return cannot_tell(
        "LOSS", "the loss has other terms than the penalty, which the log does not tell apart", evidence=evidence
    )


def penalty_return(kl: Floats, mask: Floats, *, coefficient: float, discount: float, masked: bool = True) -> Floats:
    """What a per-token penalty in the reward adds to the return at each token, with or without the mask.

    Use it to see what leaks in where tool output or padding carries a KL that should not count.

    Parameters
    ----------
    kl, mask
        Shape (L,): the KL of each token, and 1 where it is the policy's own.
    coefficient, discount
        beta and gamma.
    masked
        False: every token's KL counts, the leak.

    Notes
    -----
    ``G_t = -coefficient * sum over u >= t of discount**(u - t) * mask_u * kl_u``.

    References
    ----------
    github.com/THUDM/slime/issues/1370.

    Examples
    --------
    >>> kl, mask = np.ones(4), np.array([1.0, 0.0, 0.0, 1.0])
    >>> [round(float(penalty_return(kl, mask, coefficient=1, discount=0.9, masked=m)[0]), 3) for m in (True, False)]
    [-1.729, -3.439]
    """
    paid = -coefficient * np.asarray(kl, dtype=np.float64) * (np.asarray(mask, dtype=np.float64) if masked else 1.0)
    total = np.zeros(paid.size + 1)
    for i in range(paid.size - 1, -1, -1):
        total[i] = paid[i] + discount * total[i + 1]
    return total[:-1]
