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
from kleash.trainers import TABLE, TRAINERS, history

if TYPE_CHECKING:
    from kleash.audit.logs.view import LogView

__all__ = ["Placed", "placed", "placement", "sign"]

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
    trainer = view.trainer
    if trainer.unleashed:
        return Placed(loss=False, reward=False, why=(trainer.unleashed,))
    if view.kl is None and not view.coefficient.size:
        return _without_kl(view)
    contested = view.kl is not None and view.kl.spec.placement == "unknown" and view.settings.placement is None
    if trainer.rival is not None and contested:
        return Placed(loss=None, reward=None, why=(trainer.rival.question,))
    if trainer.place is not None and (not trainer.movable or view.settings.where in (None, "none", trainer.place)):
        found = recover(view)
        on = not (found.fit is not None and found.holds and not found.resolved and found.hi < 1e-6)
        why = f"{trainer.name} has one place for it" if on else f"{found.identity} is 0"
        return Placed(loss=on and trainer.place == "loss", reward=on and trainer.place == "reward", why=(why,))
    loss, why_loss = _in_loss(view)
    reward, why_reward = _in_reward(view)
    return Placed(loss=loss, reward=reward, why=tuple(x for x in (why_loss, why_reward) if x))


def _without_kl(view: LogView) -> Placed:
    """Where the penalty of a log without a KL is: perhaps nowhere, perhaps where this trainer logs none."""
    trainer = view.trainer
    if trainer is TABLE:
        return Placed(loss=None, reward=None, why=("no KL column",))
    if trainer.implicit:
        return Placed(loss=True, reward=False, why=("no KL column",))
    if trainer.note_without and view.key(*(key for rule in trainer.columns.kl for key in rule.keys)) is None:
        return Placed(loss=None, reward=None, why=(f"this log of {trainer.project} shows no KL, on or off",))
    if trainer.shows.silent_in_reward and view.settings.in_reward:
        return Placed(loss=False, reward=None, why=(f"{trainer.name} logs no KL of a penalty in the reward",))
    if not any(LOSSES.search(key) for key in view.log.raw):
        return Placed(loss=None, reward=None, why=("neither KL nor loss: the log is an excerpt",))
    return Placed(loss=False, reward=False, why=("the log has no KL against a reference",))


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
    shows, settings = view.trainer.shows, view.settings
    if shows.zero_outside:
        return _not_zero(view, view.key(shows.zero_outside))
    if view.kl is not None and view.kl.spec.placement != "reward" and _measured(view):
        return False, f"{view.kl.key} is a measure: the loss with it and the policy loss are equal"
    if shows.shaped and not shows.kl_in_loss:
        differ = _differ(view, *map(view.key, shows.shaped))
        if differ is None or settings.in_loss is None:
            return settings.in_loss, ""
        return settings.in_loss and not differ, f"{shows.words} are equal" if not differ else ""
    by_parts = _by_parts(view)
    if by_parts is not None:
        return by_parts
    kl = view.key(shows.kl_in_loss)
    if kl is not None:
        if settings.beta == 0 and not recover(view).resolved:
            return False, f"{settings.beta_key} is 0: {kl} is shown and not trained on"
        if view.coefficient_is_zero:
            return False, "the logged coefficient is 0"
        return (None, "") if view.trainer is TABLE else (True, f"the log has {kl}")
    if view.trainer is not TABLE:
        return False, "the log has no kl_loss"
    return _as_mapped(view, "loss")


_END = re.compile(r"(^|/)(total_)?loss(@\w+)?$")


def _measured(view: LogView) -> bool:
    """Whether a total loss beside the policy loss is that loss, though beta * KL would show in its digits."""
    policy = view.key(*view.trainer.columns.losses.get("policy", ()))
    totals = [key for key in view.log.raw if _END.search(key) and key != policy]
    beta = view.settings.beta or (float(np.median(view.coefficient.values)) if view.coefficient.size else 1.0)
    return any(_differ(view, key, policy) is False and not _under(view, key, policy, beta) for key in totals)


def _under(view: LogView, first: str, second: str | None, beta: float) -> bool:
    """Whether beta * KL is below what the digits of two columns, the losses, show."""
    grant = sum(float(np.nanmedian(view.error(key, np.asarray(view.log.raw[key])))) for key in (first, second) if key)
    return float(np.median(np.abs(view.kl_series.values))) * beta < 2 * SHAPE * grant


def _not_zero(view: LogView, key: str | None) -> tuple[bool | None, str]:
    values = None if key is None else view.raw(key)
    if values is None or not np.isfinite(values).any():
        return None, ""
    on = bool(np.nanmax(np.abs(values)) > 0)
    return on, f"{key} is not 0" if on else f"{key} is 0 in every row"


def _by_parts(view: LogView) -> tuple[bool, str] | None:
    """What the loss with and without the penalty shows, where both are logged."""
    losses = view.trainer.columns.losses
    whole, policy = view.key(*losses.get("loss", ())), view.key(*losses.get("policy", ()))
    if whole is None or policy is None or view.kl is None:
        return None
    found = recover(view)
    known = found.resolved or view.key(view.trainer.shows.kl_in_loss) is not None
    if found.fit is None or found.place != "loss" or not found.holds or not known:
        return None
    if found.resolved:
        return True, f"{whole} - {policy} is {number(found.fit.value)} x {view.kl.key}"
    if found.fit.hi < 1e-12 or view.coefficient_is_zero:
        return False, f"{whole} and {policy} are equal"
    return None


def _as_mapped(view: LogView, place: str) -> tuple[bool | None, str]:
    where = view.kl.spec.placement if view.kl is not None else "unknown"
    return (True, "as mapped") if where.startswith(place) else (None, "")


def _in_reward(view: LogView) -> tuple[bool | None, str]:
    shows = view.trainer.shows
    if shows.silent_in_reward:
        return view.settings.in_reward, ""
    if shows.shaped:
        return _by_scores(view)
    found = recover(view)
    if found.fit is not None and found.place == "reward" and found.holds:
        return found.resolved, f"{found.identity} is {number(found.fit.value)}"
    return _as_mapped(view, "reward")


def _by_scores(view: LogView) -> tuple[bool | None, str]:
    """What the score before and after the penalty shows; where the KL in the loss has a key, equal scores say no."""
    shows = view.trainer.shows
    before, after = map(view.key, shows.shaped)
    differ, equal = _differ(view, before, after), f"{shows.words} are equal"
    if differ:
        return True, shows.differ.format(before, after)
    key = view.key(*shows.paid)
    if key is not None and view.key(*shows.paid_by) is not None:
        if differ is False and view.coefficient_is_zero and np.nanmax(np.abs(view.log.raw[key])) > 0.01:
            return False, equal
        return True, f"the log has {key}"
    if differ is False and (view.settings.in_reward or not shows.kl_in_loss) and _hidden(view, before, after):
        return None, f"the penalty is below the digits of {shows.words}"
    return (None, "") if differ is None else (False, equal if shows.kl_in_loss else "")


def _switches(view: LogView) -> str:
    """The options that put the penalty somewhere: this trainer's, or where it has none those of all."""
    own = view.trainer.switches
    named = {view.trainer.name: own} if own else {name: t.switches for name, t in TRAINERS.items() if t.switches}
    return "; ".join(f"{name}: {', '.join(switches)}" for name, switches in named.items())


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
    on = settings.where in ("loss", "reward", "both")
    wants = settings.where != "none" if settings.beta else on and settings.beta is None
    if found.where == "none" and wants:
        said = (
            f"{settings.beta_key} is {number(settings.beta)}"
            if settings.beta
            else f"the {settings.where} is to have one"
        )
        return evidence.problem(
            f"{said} and no penalty is in the loss or in the reward ({why}): no leash",
            "the coefficient is not passed on to the trainer",
            f"the switch that turns the penalty on is off ({_switches(view)})",
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
            f"a version whose switch means something else ({view.trainer.history.get('switch') or history('switch')})",
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
        words["none"] = "no leash to a reference" if view.trainer.unleashed else "no penalty in this run"
    return evidence.ok(f"{words[found.where]} ({why})" if why else words[found.where])


@check("SIGN", KL, problem="the log's coefficient is below 0")
def sign(view: LogView, level: float) -> Finding:
    """Is drift punished?

    The coefficient is the one that the identities give, and what the digits allow is granted; or the shaped reward
    shows it. No chance is involved.
    """
    found = recover(view)
    causes = (
        f"the penalty is subtracted from the loss ({history('sign')})",
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
