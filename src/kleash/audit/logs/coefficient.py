"""Which coefficient does the log itself hold? COEFFICIENT of a log, from identities between its columns.

A trainer that logs the loss with and without the penalty, or the reward before and after it, has logged its coefficient
without naming it. Which columns those are differs by trainer; where none can, that is said.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kleash.audit.engine import check
from kleash.audit.findings import Evidence, Finding, number
from kleash.audit.logs.identities import difference, parts, penalty, proportional, shaped
from kleash.audit.logs.identity_of_loss import evaluations, whole_loss
from kleash.audit.logs.recovery import SLACK, Recovered, none

if TYPE_CHECKING:
    from collections.abc import Callable

    from kleash.audit.logs.view import LogView

__all__ = ["Recovered", "coefficient", "facts_of_coefficient", "recover"]


def recover(view: LogView) -> Recovered:
    """The coefficient from the log's own columns.

    Notes
    -----
    ================  ==================================================================================
    ``penalty``       -non_score_reward = coefficient * kl
    ``difference``    score - score_total = coefficient * kl
    ``loss``          loss = beta * kl, where the policy term vanishes, up to the spread of lengths
    ``evaluations``   change of eval_rewards = beta * change of eval_logps
    ``parts``         loss - policy loss + entropy term = coefficient * kl, or the logged penalty over the KL
    ``shaped``        score before - score after the penalty = coefficient * kl * length, up to a factor
    ``proportional``  the penalty = beta * one of several KLs
    ================  ==================================================================================
    """
    return view.once(_recover)


def _recover(view: LogView) -> Recovered:
    kind = view.trainer.identity.kind
    if view.kl is None and kind != "evaluations":
        return none("", "no KL against a reference in this log")
    return _KINDS[kind](view)


_KINDS: dict[str, Callable[[LogView], Recovered]] = {
    "parts": parts,
    "shaped": shaped,
    "difference": difference,
    "penalty": penalty,
    "loss": whole_loss,
    "evaluations": evaluations,
    "proportional": proportional,
    "none": lambda view: none("", view.trainer.identity.reason),
}


@check("COEFFICIENT", problem="stated value outside what the digits allow")
def coefficient(view: LogView, level: float) -> Finding:
    """Does the log's arithmetic give the stated coefficient?

    The value is the one logged, configured or declared. No chance is involved; approximate identities are granted a
    factor of three.
    """
    if view.kl is None and view.log.coefficient is None and not view.trainer.logs_no_kl:
        stated = view.settings.beta
        said = "" if stated is None else f", {view.settings.beta_key} says {number(stated)}"
        return Evidence(declared=stated).cannot_tell(
            f"no KL in this run{said}", fix="log the KL (PLACEMENT says what its absence means)"
        )
    found = recover(view)
    logged, stated = view.coefficient, view.settings.beta
    evidence = Evidence(identity=found.identity or None, declared=stated, declared_from=view.settings.beta_key)
    if logged.size:
        evidence |= {"logged_first": float(logged.values[0]), "logged_last": float(logged.values[-1])}
    if found.fit is not None:
        evidence |= {
            "value": found.fit.value,
            "lo": found.lo,
            "hi": found.hi,
            "rows": found.fit.rows,
            "slack": found.fit.slack,
        }
    if found.fit is None or not found.holds:
        return _without_identity(view, found, evidence)
    fit = found.fit
    text = f"{number(fit.value)} [{number(found.lo)}, {number(found.hi)}] from {found.identity}"
    if logged.size:
        wrong, share = _against_logged(view, found)
        evidence |= {"rows_off": share}
        if wrong is not None:
            return _mismatch(view, found, wrong, "the log", text, evidence)
    elif stated is not None and not view.settings.adaptive and not found.fits(stated):
        return _mismatch(view, found, stated, view.settings.beta_key or "the configuration", text, evidence)
    if stated is not None and _starts_elsewhere(view):
        return _mismatch(view, found, stated, view.settings.beta_key or "the configuration", text, evidence)
    if not found.resolved and stated != 0 and not view.coefficient_is_zero:
        message = f"the digits hide it: at most {number(found.hi)} from {found.identity}"
        return evidence.cannot_tell(message, fix="log more digits, or a later step")
    versus = f", {view.settings.beta_key} says {number(stated)}" if stated is not None else ""
    share = found.shares[-1]
    if stated and share != 1.0 and not found.lo <= stated <= found.hi:
        versus += f", and the loss is divided by steps_per_generation / accumulation = {number(1 / share)}"
    versus += f", logged is {number(logged.values[-1])}" if logged.size else ""
    return evidence.ok(text + versus)


def _starts_elsewhere(view: LogView) -> bool:
    """Whether the first coefficient that was logged is not the one stated."""
    logged, stated = view.coefficient.values[:1], view.settings.beta
    if not logged.size or stated is None or view.settings.adaptive:
        return False
    return not np.isclose(logged[0], stated, rtol=0.01, atol=view.error(view.coefficient_key, logged)[0])


def _against_logged(view: LogView, found: Recovered) -> tuple[float | None, float]:
    """The logged coefficient at the first row that does not fit, if most rows do not; and the share that does not."""
    assert found.fit is not None
    assert view.log.coefficient is not None
    own = np.asarray(view.log.coefficient, dtype=np.float64)
    lo, hi = found.fit.each_lo, found.fit.each_hi
    if lo.shape != own.shape:
        return None, 0.0
    error = view.error(view.coefficient_key, own)
    grant = found.relative + 1e-3 + 2 * min(found.fit.slack, SLACK)
    low = np.minimum(lo / found.factor, lo * found.factor) - grant * np.abs(own)
    high = np.maximum(hi / found.factor, hi * found.factor) + grant * np.abs(own)
    known = np.isfinite(own) & np.isfinite(lo)
    off = known & ((own + error < low) | (own - error > high))
    share = float(off.sum() / max(1, known.sum()))
    return (float(own[np.flatnonzero(off)[0]]), share) if share > 0.5 else (None, share)


def _mismatch(view: LogView, found: Recovered, expected: float, who: str, text: str, evidence: Evidence) -> Finding:
    assert found.fit is not None
    ratio = found.fit.value / expected if expected else float("inf")
    evidence |= {"ratio": ratio, "expected": expected}
    if found.unless and expected and (not found.each_row or _whole_number(found, expected)):
        message = f"{text}; {who} says {number(expected)}, which may be as it should: {found.unless}"
        return evidence.cannot_tell(message, fix="give the run's configuration with --config")
    causes = ["the coefficient is not passed on, or passed twice", "the logged KL is not the KL of the penalty"]
    whole = [n for n in range(2, 129) if abs(ratio * n - 1) < 0.02 or abs(ratio / n - 1) < 0.02]
    if whole:
        n = whole[0]
        causes.insert(0, f"a factor of {n}: gradient accumulation steps or micro-batches multiplied in or divided out")
        if ratio < 1 and "overlogged" in view.trainer.history:
            causes.insert(0, view.trainer.history["overlogged"])
    if view.length.size and abs(ratio / float(np.median(view.length.values)) - 1) < 0.5:
        causes.insert(0, "the logged KL is a mean per token and the penalty takes the sum over the answer")
    if not np.isfinite(ratio):
        causes.insert(0, "declared 0, and a penalty is there")
    return evidence.problem(
        f"{text}; {who} says {number(expected)}: {number(ratio)} times",
        *causes,
        fix="find where the coefficient is multiplied in; set the one that the log's arithmetic confirms",
    )


def _whole_number(found: Recovered, expected: float) -> bool:
    """Whether the interval holds the coefficient divided or multiplied by a whole number, as steps in a step do."""
    sizes = np.arange(2, 129)
    shares = expected * np.concatenate([sizes, 1 / sizes])
    return bool(((found.lo <= shares) & (shares <= found.hi)).any())


def _without_identity(view: LogView, found: Recovered, evidence: Evidence) -> Finding:
    logged, stated = view.coefficient, view.settings.beta
    why = found.reason or "no identity of the log holds it"
    if stated is not None and _starts_elsewhere(view):
        return evidence.problem(
            f"logged is {number(float(logged.values[0]))}, {view.settings.beta_key} says {number(stated)}",
            "another configuration was used",
            "an override on the command line",
            fix="use the configuration of this run",
        )
    fix = "give the run's configuration with --config" if stated is None and not logged.size else None
    return evidence.cannot_tell(f"the log does not hold it: {why}", fix=fix)


def facts_of_coefficient(view: LogView) -> dict[str, object] | None:
    """Value, interval and origin: from an identity if one holds, else as logged, else as configured.

    An identity that gives the order of magnitude only gives way to a stated value that it allows.
    """
    found, stated = recover(view), view.settings.beta
    if found.resolved and not (found.loose and stated is not None and found.fits(stated)):
        assert found.fit is not None
        return {"value": found.fit.value, "lo": found.lo, "hi": found.hi, "from": found.identity}
    if view.coefficient.size:
        values = view.coefficient.values
        return {"value": float(values[-1]), "lo": float(values.min()), "hi": float(values.max()), "from": "logged"}
    if stated is not None:
        return {"value": stated, "lo": stated, "hi": stated, "from": view.settings.beta_key}
    return None
