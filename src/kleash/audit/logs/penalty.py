"""Which penalty does the trainer compute, and does it pull back? GRADIENT of a log."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

from kleash.audit.engine import check
from kleash.audit.findings import Evidence, Finding, cannot_tell
from kleash.audit.gradient import judge_term
from kleash.audit.logs.needs import KL
from kleash.audit.logs.placement import IMPLICIT, placed
from kleash.kl import Estimator, Placement

if TYPE_CHECKING:
    from kleash.audit.logs.view import LogView

__all__ = ["gradient_of_log", "known_term"]


def known_term(view: LogView) -> tuple[str | None, str | None]:
    """Estimator and placement of the penalty where they are known: stated, or the only ones the trainer has."""
    settings, where = view.settings, placed(view).where
    if where not in ("loss", "reward"):
        where = settings.where if settings.where in ("loss", "reward") else where
    estimator, ratio = settings.estimator, settings.with_ratio
    if view.trainer == "trl-grpo":
        estimator = estimator or "k3"
        ratio, _ = _bias_correction(view)
    elif view.trainer in ("trl-rloo", "trlx", "lm-human-preferences"):
        estimator = estimator or "k1"
    elif view.trainer == "open-instruct" and estimator is None:
        from kleash.audit.logs.coefficient import recover

        found = recover(view)
        index = found.identity.rpartition("objective/kl")[2][:1] if found.resolved else ""
        estimator, ratio = {"0": ("k1", None), "1": ("k2", None), "2": ("k3", None), "3": ("k1", True)}.get(
            index, (None, None)
        )
    if settings.placement is not None:
        return estimator, settings.placement
    if where == "loss":
        return estimator, "loss-with-ratio" if ratio else "loss"
    return estimator, "reward" if where == "reward" else None


@check("GRADIENT", KL, problem="exact gradient is 0 or points away")
def gradient_of_log(view: LogView, level: float) -> Finding:
    """Does this estimator in this place pull back?"""
    estimator, place = known_term(view)
    if view.trainer in IMPLICIT and view.settings.placement is None:
        message = "the loss is a function of beta times the log ratio of whole answers: no estimator in it"
        return Evidence(estimator=None, placement="implicit").ok(message)
    if view.settings.beta == 0 or placed(view).where == "none":
        return cannot_tell("no penalty is in this run")
    if estimator is None or place is None:
        missing = "estimator" if estimator is None else "placement"
        return cannot_tell(f"the log does not say the {missing}", fix="give --config with estimator and placement")
    found = judge_term(cast("Estimator", estimator), cast("Placement", place))
    if view.trainer == "nemo-rl" and place == "loss" and view.settings.placement is None and found.status == "problem":
        message = f"{estimator} in the loss has no pull in NeMo-RL before PR 2506 (May 2026), and the right one since"
        fix = "look up the release; k3 pulls in both"
        return Evidence(found.evidence).cannot_tell(message, fix=fix)
    if view.trainer != "trl-grpo" or estimator != "k3" or view.settings.placement is not None:
        return found
    ratio, by_default = _bias_correction(view)
    if ratio is None:
        found = replace(
            found,
            message="k3 in the loss pulls: along KL(policy || reference) with use_bias_correction_kl (the default of "
            "TRL 1.16), along KL(reference || policy) without; the log does not say which",
            evidence={**found.evidence, "placement": "loss or loss-with-ratio"},
        )
    elif ratio and by_default:
        found = replace(found, message=f"{found.message} (use_bias_correction_kl by the default of TRL 1.16)")
    return found


def _bias_correction(view: LogView) -> tuple[bool | None, bool]:
    """Whether GRPO of TRL multiplies its KL by the ratio, None if the log leaves it open; and if by default only."""
    if view.settings.with_ratio is not None:
        return view.settings.with_ratio, False
    if view.version is not None:
        return (None if (1, 10) <= view.version < (1, 16) else view.version >= (1, 16)), True
    old = view.key("completion_length", "clip_ratio") is not None  # keys up to 0.18, long before there was a choice
    return (False if old else None), True
