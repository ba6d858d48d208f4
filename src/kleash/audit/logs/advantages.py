"""Is there a gradient beside the KL's? ZERO_VARIANCE of a log."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kleash.audit.engine import check
from kleash.audit.findings import Evidence, Finding, cannot_tell, number
from kleash.audit.logs.needs import ADVANTAGES
from kleash.audit.logs.placement import placed
from kleash.audit.logs.view import series

if TYPE_CHECKING:
    from kleash.audit.logs.view import LogView

__all__ = ["advantages"]


@check("ZERO_VARIANCE", ADVANTAGES, problem="in most groups of the last half, where there is a KL")
def advantages(view: LogView, level: float) -> Finding:
    """Is the KL the only gradient?"""
    found = _without_spread(view)
    if found is None:
        only = view.raw("critic/advantages/mean", "advantages/mean") is not None
        return cannot_tell(
            "the log has the mean of the advantages only" if only else "the log has no share of groups without spread"
        )
    share, source = found
    evidence = Evidence(share=share, source=source)
    text = f"{number(share)} of groups or rows have no advantage ({source})"
    if share > 0.5 and (view.settings.beta == 0 or placed(view).where == "none"):
        return evidence.ok(f"{text}; no KL moves the weights there either")
    if share > 0.5:
        return evidence.problem(
            f"{text}: there only the KL moves the weights",
            "the task is solved or hopeless for most prompts",
            "the judge gives few distinct scores",
            fix="drop such groups, penalty included, or mix in prompts of middling difficulty",
        )
    return evidence.ok(f"{text}, not most")


def _without_spread(view: LogView) -> tuple[float, str] | None:
    """The share of groups, or rows, in which every advantage is 0, over the last half; and the column that says so."""
    mixed, still = (series(view.log, view.raw(name)) for name in ("baseline_reward/pct_mixed", "frac_reward_zero_std"))
    if mixed.size:
        return 1 - float(mixed.values[mixed.size // 2 :].mean()), "baseline_reward/pct_mixed"
    if still.size:
        return float(still.values[still.size // 2 :].mean()), "frac_reward_zero_std"
    top, bottom = (view.raw(f"critic/advantages/{end}", f"advantages/{end}") for end in ("max", "min"))
    if top is None:
        return None
    low = np.zeros(view.log.rows) if bottom is None else bottom
    flat = ((top == 0) & (low == 0))[np.isfinite(top) & np.isfinite(low)]
    return (float(flat[flat.size // 2 :].mean()), "advantages all 0") if flat.size else None
