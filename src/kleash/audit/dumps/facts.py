"""What does a dump say without being judged? The facts that stand beside its findings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kleash.audit.dumps.rewards import R2_LEAST, effective_beta
from kleash.audit.findings import plain

if TYPE_CHECKING:
    from kleash.audit.dumps.statistics import Tally

__all__ = ["facts_of"]


@np.errstate(over="ignore", invalid="ignore", divide="ignore")
def facts_of(statistics: Tally) -> dict[str, Any]:
    """What the dump says without being judged; null where it says nothing."""
    declared = statistics.declared
    found, loose = effective_beta(statistics), ""
    if found is not None and not found.r2 >= R2_LEAST:
        loose = f"R squared {found.r2:.2f} is below {R2_LEAST:g}: too loose a relation to read a beta from"
    given = declared.beta
    facts = {
        "placement": {"loss": "loss", "loss-with-ratio": "loss", None: "unknown"}.get(declared.placement, "reward"),
        "estimator": declared.estimator,
        "coefficient": None if given is None else {"value": given, "lo": given, "hi": given, "from": "declared"},
        "logged_kl_unit": None,
        "penalty_kl_unit": None,
        "effective_beta": None if found is None or loose else found.to_dict(),
        "effective_beta_reason": loose or None,
        "kl_per_answer": statistics.delta.mean() if statistics.ratios.finite else None,
        "kl_per_token": statistics.delta.sum() / statistics.tokens if statistics.tokens else None,
        "kl_spec": statistics.kl_specs(kl_per_answer="nats per answer", kl_per_token="nats per token"),
        "copies_left_out": statistics.copies,
        "answers": statistics.rows,
        "tokens": statistics.tokens if statistics.has_tokens else None,
    }
    return {name: plain(value) for name, value in facts.items()}
