"""Are the log's numbers numbers? NON_FINITE of a log."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from kleash.audit.engine import check
from kleash.audit.findings import Evidence, Finding

if TYPE_CHECKING:
    from kleash.audit.logs.view import LogView

__all__ = ["non_finite"]

WATCHED = ("loss", "kl", "grad_norm", "reward", "score", "entropy", "ratio")
ONE_REWARD = re.compile(r"(?:train/|eval/|eval_)?rewards/(?!chosen|rejected|margins|accuracies)")
SPREADS = ("/std", "_std", "_var", "/var")


@check("NON_FINITE", problem="one is not; no chance involved")
def non_finite(view: LogView, level: float) -> Finding:
    """Is every loss, KL, gradient and reward a number?

    A single reward function may be ``nan``: earlier TRL writes that where it applied to no answer of a batch. So may a
    spread, which one value does not have.
    """
    bad: dict[str, list[int]] = {}
    for key, values in view.log.raw.items():
        last = key.lower()
        if not any(word in last for word in WATCHED):
            continue
        if ONE_REWARD.match(last) or last.endswith(SPREADS):
            continue
        rows = {int(i) for i in np.flatnonzero(np.isinf(values))} | set(view.log.undefined.get(key, ()))
        if rows:
            bad[key] = sorted(rows)
    if not bad:
        return Evidence(rows=0).ok(f"{view.log.rows} rows, every watched value is a number")
    key = min(bad, key=lambda k: bad[k][0])
    step = float(view.log.step[bad[key][0]])
    evidence = Evidence(first_key=key, first_step=step, rows={k: len(v) for k, v in bad.items()})
    return evidence.problem(
        f"{key} is not a number at step {step:g}" + (f"; also in {len(bad) - 1} other keys" if len(bad) > 1 else ""),
        "exp(ref_logp - logp) overflows in k3, or its clamp leaves 0 times infinity in the gradient",
        "a batch without a counted token: 0 / 0",
        "a low-precision kernel",
        fix=f"stop before step {step:g}; look at the tokens of that batch (a rollout dump says more)",
    )
