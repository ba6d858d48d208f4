"""Does the declared KL term pull back at all? GRADIENT of a dump."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from kleash.audit.dumps.needs import TERM
from kleash.audit.engine import check
from kleash.audit.gradient import judge_term

if TYPE_CHECKING:
    from kleash.audit.dumps.statistics import Tally
    from kleash.audit.findings import Finding
    from kleash.kl import Estimator, Placement

__all__ = ["gradient"]


@check("GRADIENT", TERM, problem="exact gradient is 0 or points away; no chance involved")
def gradient(tally: Tally, level: float) -> Finding:
    """Does the declared KL term pull towards the reference?

    The term is the one that ``estimator`` and ``placement`` name.
    """
    return judge_term(cast("Estimator", tally.declared.estimator), cast("Placement", tally.declared.placement))
