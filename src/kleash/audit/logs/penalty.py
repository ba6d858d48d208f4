"""Which penalty does the trainer compute, and does it pull back? GRADIENT of a log."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

from kleash.audit.engine import check
from kleash.audit.findings import Evidence, Finding, cannot_tell
from kleash.audit.gradient import judge_term
from kleash.audit.logs.coefficient import recover
from kleash.audit.logs.needs import KL
from kleash.audit.logs.placement import placed
from kleash.kl import Estimator, Placement

if TYPE_CHECKING:
    from kleash.audit.logs.view import LogView

__all__ = ["gradient_of_log", "known_term"]


def known_term(view: LogView) -> tuple[str | None, str | None]:
    """Estimator and placement of the penalty where they are known: stated, or the only ones the trainer has."""
    settings, where = view.settings, placed(view).where
    if where not in ("loss", "reward"):
        where = settings.where if settings.where in ("loss", "reward") else where
    estimator, ratio = settings.estimator or view.trainer.estimator, _with_ratio(view)[0]
    if estimator is None and view.trainer.identity.terms:
        estimator, ratio = _proportional_to(view)
    if settings.placement is not None:
        return estimator, settings.placement
    if where == "loss":
        return estimator, "loss-with-ratio" if ratio else "loss"
    return estimator, "reward" if where == "reward" else None


@check("GRADIENT", KL, problem="exact gradient is 0 or points away")
def gradient_of_log(view: LogView, level: float) -> Finding:
    """Does this estimator in this place pull back?"""
    estimator, place = known_term(view)
    trainer, declared = view.trainer, view.settings.placement is not None
    if trainer.implicit and not declared:
        message = "the loss is a function of beta times the log ratio of whole answers: no estimator in it"
        return Evidence(estimator=None, placement="implicit").ok(message)
    if view.settings.beta == 0 or placed(view).where == "none":
        return cannot_tell("no penalty is in this run")
    if estimator is None or place is None:
        missing = "estimator" if estimator is None else "placement"
        return cannot_tell(f"the log does not say the {missing}", fix="give --config with estimator and placement")
    found = judge_term(cast("Estimator", estimator), cast("Placement", place))
    if trainer.doubt is not None and place == "loss" and not declared and found.status == "problem":
        message, fix = trainer.doubt
        return Evidence(found.evidence).cannot_tell(message.format(estimator), fix=fix)
    if trainer.ratio_option is None or estimator != trainer.estimator or declared:
        return found
    return _by_default(view, found)


def _by_default(view: LogView, found: Finding) -> Finding:
    """The finding with what is not stated: whether the ratio multiplies the KL, or that a default says so."""
    trainer, (ratio, by_default) = view.trainer, _with_ratio(view)
    since = f"the default of {trainer.ratio_since}"
    if ratio is None:
        return replace(
            found,
            message=f"{trainer.estimator} in the loss pulls: along KL(policy || reference) with {trainer.ratio_option} "
            f"({since}), along KL(reference || policy) without; the log does not say which",
            evidence={**found.evidence, "placement": "loss or loss-with-ratio"},
        )
    if ratio and by_default:
        return replace(found, message=f"{found.message} ({trainer.ratio_option} by {since})")
    return found


def _with_ratio(view: LogView) -> tuple[bool | None, bool]:
    """Whether the KL in the loss is multiplied by the ratio, None if the log leaves it open; and if by default only."""
    return view.trainer.with_ratio(view.settings.with_ratio, view.version, set(view.log.raw))


def _proportional_to(view: LogView) -> tuple[str | None, bool | None]:
    """Estimator, and whether with the ratio, of the logged KL that the penalty is proportional to."""
    identity, found = view.trainer.identity, recover(view)
    terms = zip(identity.keys[1:], identity.terms, strict=True)
    return next((term for key, term in terms if found.resolved and found.identity.endswith(key)), (None, None))
