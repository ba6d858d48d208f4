"""What does a log say without being judged? The facts that stand beside its findings."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from kleash.audit.logs.coefficient import facts_of_coefficient
from kleash.audit.logs.penalty import known_term
from kleash.audit.logs.placement import placed
from kleash.audit.logs.units import penalty_unit

if TYPE_CHECKING:
    from kleash.audit.logs.view import LogView

__all__ = ["facts_of"]

MOST = 700.0  # nats: exp of more leaves the float range


@np.errstate(divide="ignore", invalid="ignore", over="ignore")
def facts_of(view: LogView) -> dict[str, Any]:
    """What the log says without being judged; null where it says nothing."""
    estimator, _ = known_term(view)
    where = placed(view).where
    kl = view.kl
    end = view.kl_series.values[-max(1, view.kl_series.size // 5) :] if kl is not None else np.array([])
    return {
        "placement": where,
        "estimator": None if where == "none" else estimator,
        "coefficient": facts_of_coefficient(view),
        "logged_kl_unit": kl.spec.unit if kl is not None and kl.unit_known else None,
        "penalty_kl_unit": penalty_unit(view),
        "effective_beta": None,
        "run": view.log.run,
        "trainer_version": view.log.trainer_version,
        "kl_column": None if kl is None else kl.key,
        "kl_spec": None if kl is None else kl.spec.to_dict(),
        "kl_transform": None if kl is None else kl.transform,
        "kl_last": float(end.mean()) if end.size else None,
        **_reach(view),
        "kl_against_old_policy": [c.key for c in view.log.kl if c.against == "old-policy"],
        "gold": view.log.gold_key,
        "segments": int(np.unique(view.log.segment).size),
        "notes": list(view.log.notes),
    }


def _reach(view: LogView) -> dict[str, float | None]:
    """What the last KL means: nats an answer, tokens an answer, the judge's gain at most, answers that see that far.

    Notes
    -----
    At KL nats from the reference the mean of a score in a range of 1 has moved by at most ``sqrt(KL / 2)`` (Pinsker's
    inequality); K reference answers see about ``log K`` nats far.
    """
    length = view.length.values
    values = view.per_answer.values if view.kl is not None and view.kl.spec.sampler != "unknown" else np.empty(0)
    kl = float(values[-max(1, values.size // 5) :].mean()) if values.size else math.nan
    known = math.isfinite(kl) and kl >= 0
    return {
        "kl_last_per_answer": kl if known else None,
        "length_last": float(length[-max(1, length.size // 5) :].mean()) if length.size else None,
        "gain_at_most": min(1.0, math.sqrt(kl / 2)) if known else None,
        "answers_to_see": math.exp(kl) if known and kl < MOST else None,
    }
