"""Is there a gradient beside the KL's? ZERO_VARIANCE of a log."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kleash.audit.engine import check
from kleash.audit.findings import Evidence, Finding, cannot_tell, number
from kleash.audit.logs.needs import ADVANTAGES
from kleash.audit.logs.placement import placed

if TYPE_CHECKING:
    from kleash.audit.logs.view import LogView

__all__ = ["advantages"]


@check("ZERO_VARIANCE", ADVANTAGES, problem="in most groups of the last half, where there is a KL")
def advantages(view: LogView, level: float) -> Finding:
    """Is the KL the only gradient?"""
    share, source = None, ""
    top, bottom = (
        view.raw("critic/advantages/max", "advantages/max"),
        view.raw("critic/advantages/min", "advantages/min"),
    )
    mean = view.raw("critic/advantages/mean", "advantages/mean")
    for name, one_minus in (("frac_reward_zero_std", False), ("baseline_reward/pct_mixed", True)):
        values = view.raw(name)
        if values is not None and np.isfinite(values).any():
            x = values[np.isfinite(values)]
            late = float(x[x.size // 2 :].mean())
            share, source = (1 - late if one_minus else late), name
    if share is None and (top is not None or mean is not None):
        flat = np.zeros(view.log.rows) if top is None else np.asarray(top)
        low = np.zeros(view.log.rows) if bottom is None else np.asarray(bottom)
        known = np.isfinite(flat) & np.isfinite(low) if top is not None else np.isfinite(np.asarray(mean))
        if top is None:
            return cannot_tell("the log has the mean of the advantages only")
        if known.any():
            x = ((flat == 0) & (low == 0))[known]
            share, source = float(x[x.size // 2 :].mean()), "advantages all 0"
    if share is None:
        return cannot_tell("the log has no share of groups without spread")
    evidence = Evidence(share=share, source=source)
    found = f"{number(share)} of groups or rows have no advantage ({source})"
    if share > 0.5 and (view.settings.beta == 0 or placed(view).where == "none"):
        return evidence.ok(f"{found}; no KL moves the weights there either")
    if share > 0.5:
        return evidence.problem(
            f"{found}: there only the KL moves the weights",
            "the task is solved or hopeless for most prompts",
            "the judge gives few distinct scores",
            fix="drop such groups, penalty included, or mix in prompts of middling difficulty",
        )
    return evidence.ok(found)
