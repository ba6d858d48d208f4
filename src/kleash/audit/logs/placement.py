"""Where does the penalty go, and with which sign? PLACEMENT and SIGN of a log."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kleash.audit.engine import check
from kleash.audit.findings import Evidence, Finding, cannot_tell, number
from kleash.audit.logs.coefficient import recover
from kleash.audit.logs.needs import KL
from kleash.audit.logs.recovery import SHAPE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kleash.audit.logs.view import LogView

    Floats = NDArray[np.float64]

__all__ = ["IMPLICIT", "Placed", "placed", "placement", "sign"]

BY_DESIGN = {
    "trl-grpo": "loss",
    "trl-rloo": "reward",
    "trl-ppo": "reward",
    "trl-legacy-ppo": "reward",
    "trl-online-dpo": "loss",
    "trl-dpo": "loss",
    "trl-kto": "loss",
    "open-instruct": "loss",
    "trlx": "reward",
    "lm-human-preferences": "reward",
}
"""Trainers that can put the penalty in one place only (facts/trainers.md, 0.1; checked against the sources)."""


IMPLICIT = ("trl-dpo", "trl-kto", "trl-online-dpo")
"""Trainers whose loss is a function of beta times the log ratio of whole answers: there is no penalty term to estimate.
What Online DPO logs as non_score_reward is shown and not trained on."""


LOSSES = re.compile(r"(?:^|[/_])(?:\w*loss|non_score_reward|grad_norm)(?:$|[/_])|^act_loss$")


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
    return view.once(_placed)


def _placed(view: LogView) -> Placed:
    name = view.trainer
    if view.kl is None and not view.coefficient.size:
        if name in ("table", "trl-dpo", "trl-kto"):
            loss = True if name != "table" else None
            return Placed(loss=loss, reward=False if loss else None, why=("no KL column",))
        if name == "nemo-rl" and view.raw("kl_penalty") is None:
            return Placed(loss=None, reward=None, why=("NeMo-RL's console shows no KL, on or off",))
        if name in ("nemo-rl", "slime") and view.settings.in_reward:
            return Placed(loss=False, reward=None, why=(f"{name} logs no KL of a penalty in the reward",))
        if not any(LOSSES.search(key) for key in view.log.raw):
            return Placed(loss=None, reward=None, why=("neither KL nor loss: the log is an excerpt",))
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


def _hidden(view: LogView, first: str | None, second: str | None) -> bool:
    """Whether two equal columns would look equal with the penalty too: it is smaller than their digits."""
    beta = float(np.median(view.coefficient.values)) if view.coefficient.size else view.settings.beta
    paid = view.per_answer.values if view.per_answer.size else view.kl_series.values
    if first is None or second is None or not beta or not paid.size:
        return False
    grant = sum(float(np.nanmedian(view.error(key, np.asarray(view.log.raw[key])))) for key in (first, second))
    return float(np.median(np.abs(paid))) * beta < 2 * SHAPE * grant


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
            if found.fit.hi < 1e-12 or view.coefficient_is_zero:
                return False, f"{whole} and {policy} are equal"
    if kl is not None:
        if view.settings.beta == 0 and not recover(view).resolved:
            return False, f"{view.settings.beta_key} is 0: {kl} is shown and not trained on"
        if view.coefficient_is_zero:
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
        if differ is False and _hidden(view, view.key("reward"), view.key("return")):
            return None, "the penalty is below the digits of reward and return"
        return differ, "" if not differ else "return is below reward by more than its digits"
    if name == "verl":
        score, reward = view.key("critic/score/mean"), view.key("critic/rewards/mean")
        differ = _differ(view, score, reward)
        key = view.key("actor/reward_kl_penalty", "critic/kl")
        if differ:
            return True, f"{score} and {reward} differ"
        if key is not None and view.key("actor/reward_kl_penalty_coeff", "critic/kl_coeff") is not None:
            kl = np.asarray(view.log.raw[key])
            if differ is False and np.nanmax(np.abs(kl)) > 0.01 and view.coefficient_is_zero:
                return False, "scores and rewards are equal"
            return True, f"the log has {key}"
        if differ is False and _hidden(view, score, reward) and view.settings.in_reward:
            return None, "the penalty is below the digits of scores and rewards"
        return False if differ is not None else None, "scores and rewards are equal" if differ is not None else ""
    if name in ("nemo-rl", "slime"):
        return view.settings.in_reward, ""
    found = recover(view)
    if found.fit is not None and found.place == "reward" and found.holds:
        return found.resolved, f"{found.identity} is {number(found.fit.value)}"
    where = view.kl.spec.placement if view.kl is not None else "unknown"
    return (True, "as mapped") if where.startswith("reward") else (None, "")


@check("PLACEMENT", problem="both; nowhere though configured; elsewhere than configured")
def placement(view: LogView, level: float) -> Finding:
    """Is the penalty in the loss, the reward, both, nowhere?

    Or a configured coefficient has no effect with the other settings. No chance is involved.
    """
    found, settings = placed(view), view.settings
    evidence = Evidence(
        placement=found.where, configured=settings.where, coefficient=settings.beta, why=list(found.why)
    )
    why = "; ".join(found.why)
    if settings.inert is not None and found.where != "loss":
        return evidence.problem(
            f"{settings.inert}: no leash",
            "the option belongs to another advantage estimator",
            fix="use the penalty in the loss (--use-kl-loss with --kl-loss-coef and a kl-loss-type of k2 or k3)",
        )
    if found.where == "both":
        return evidence.problem(
            f"the penalty is in the loss and in the reward, counted twice ({why})",
            "both options are on",
            fix="switch one of the two off",
        )
    wants = settings.beta is not None and settings.beta > 0 and settings.where != "none"
    if found.where == "none" and wants:
        said = f"{settings.beta_key} is {number(settings.beta or 0.0)}"
        return evidence.problem(
            f"{said} and no penalty is in the loss or in the reward ({why}): no leash",
            "the coefficient is not passed on to the trainer",
            "the switch that turns the penalty on is off (verl: use_kl_loss, use_kl_in_reward)",
            "the log is of another run than the configuration",
            fix="make the coefficient reach the trainer, and look for the KL in the next log",
        )
    if (
        found.where in ("loss", "reward")
        and settings.where in ("loss", "reward", "none")
        and (found.where != settings.where)
    ):
        return evidence.problem(
            f"configured is {settings.where}, the log shows {found.where} ({why})",
            "a version whose switch means something else (verl before PR 644)",
            "the log is of another run",
            fix="use the configuration of this run; check the version's meaning of the switch",
        )
    logged = view.coefficient.values
    if found.where == "none" and logged.size and not view.coefficient_is_zero:
        return evidence.cannot_tell(
            f"the log names a coefficient of {number(logged[-1])} and shows no penalty ({why})",
            fix="give the whole log, or look where the coefficient goes",
        )
    if found.where == "unknown":
        message = f"the log does not show it ({why})" if why else "the log does not show it"
        return evidence.cannot_tell(message, fix="give --config, or log the loss and the policy loss")
    words = {"loss": "in the loss", "reward": "in the reward", "none": "no penalty, and none configured"}
    if found.where == "none" and settings.beta is None and settings.where is None:
        words["none"] = "no penalty in this run"
    return evidence.ok(f"{words[found.where]} ({why})" if why else words[found.where])


@check("SIGN", KL, problem="the log's coefficient is below 0")
def sign(view: LogView, level: float) -> Finding:
    """Is drift punished?

    The coefficient is the one that the identities give, and what the digits allow is granted; or the shaped reward
    shows it. No chance is involved.
    """
    found = recover(view)
    causes = (
        "the penalty is subtracted from the loss (verl before commit a65c9157, and forks taken earlier)",
        "the two log-probabilities are exchanged",
    )
    fix = "a penalty is added to a loss and taken from a reward; correct the sign and start again"
    shaped = _shaped_sign(view)
    if shaped is not None and shaped[0]:
        return Evidence(identity=shaped[1]).problem(shaped[1], *causes, fix=fix)
    if found.fit is None or not found.holds:
        if shaped is not None:
            return Evidence(identity=shaped[1]).ok(shaped[1])
        return cannot_tell(f"the log does not show the penalty itself: {found.reason}")
    evidence = Evidence(identity=found.identity, value=found.fit.value, lo=found.lo, hi=found.hi)
    text = f"{found.identity} is {number(found.fit.value)}"
    if found.hi < 0:
        return evidence.problem(f"{text}: drift is rewarded", *causes, fix=fix)
    if found.lo <= 0 < found.hi:
        return evidence.cannot_tell(f"{text}, 0 as far as the digits show")
    return evidence.ok(f"{text}: drift is punished")


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
