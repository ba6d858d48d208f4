"""Does the reference stand still? REFERENCE_DRIFT on texts scored again, RESUME on the KL from step to step."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from scipy import special

from kleash.audit.evidence import SCORING_NOISE, grouped_mean, mean_and_se, z_limit
from kleash.audit.findings import Finding, cannot_tell, number, ok, problem

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kleash.audit.declared import Declared
    from kleash.audit.tally import Tally

__all__ = ["reference_drift", "resume"]

FALL = 10.0
"""RESUME asks for a tenfold fall of the mean squared log ratio in one step, threefold in the ratio. Ours: no update
un-learns two thirds of all drift at once; a reference reloaded from the policy takes all of it away."""


def reference_drift(tally: Tally, declared: Declared, level: float) -> Finding:
    """The reference must score the same text alike at every step. Needs repeated probes: rows sharing a ``probe_id``.

    ``problem``, level shared by three tests over probes: the score moved to one side on average (t test); the distance
    from the first scoring grows with the step (Kendall's rank test summed over probes; noise of repeated scoring is
    exchangeable); the squared movement per token is above the noise granted to two scorings, 2 * 0.05^2 (t test).
    """
    assert tally.probes is not None
    probe, step, total, tokens = (tally.probes[name] for name in ("label", "step", "ref_total", "n"))
    last, size, score, variance, probes = [], [], 0.0, 0.0, 0
    for rows in _by_label(probe, step):
        moved = total[rows] - total[rows[0]]
        probes += 1
        last.append(float(moved[-1]))
        size.append(max(1, int(tokens[rows[0]])))
        m = len(rows) - 1
        if m >= 2:
            distance = np.abs(moved[1:])
            score += float(np.sign(distance[:, None] - distance[None, :])[np.tril_indices(m, -1)].sum())
            variance += m * (m - 1) * (2 * m + 5) / 18
    if probes < 5:
        message = f"{probes} texts were scored at two steps or more"
        return cannot_tell("REFERENCE_DRIFT", message, fix="score at least 5 fixed texts at every checkpoint")
    mean, square = mean_and_se(last), grouped_mean(np.square(last), size)
    per_token = math.sqrt(square.value)
    z = score / math.sqrt(variance) if variance else 0.0
    evidence = {
        "probes": probes,
        "mean_change_per_answer": mean.value,
        "se": mean.se,
        "rms_change_per_root_token": per_token,
        "trend_z": z,
        "noise_granted": math.sqrt(2) * SCORING_NOISE,
        "level": level,
    }
    if not np.any(last) and score == 0:
        return ok("REFERENCE_DRIFT", f"{probes} texts have the same reference score at every step", evidence=evidence)
    found = f"the reference score of {probes} texts moved by {number(mean.value)} +- {number(mean.se)} nats"
    low, high = mean.limits(level / 3)
    moved_away = low > 0 or high < 0
    if moved_away or float(special.ndtr(-z)) < level / 3 or square.limits(2 * level / 3)[0] > 2 * SCORING_NOISE**2:
        return problem(
            "REFERENCE_DRIFT",
            f"{found}: it is not frozen",
            causes=(
                "the reference is synchronised with the policy (a moving average, or a reload every so many steps)",
                "a resumed run loaded the reference from the trained checkpoint",
                "the reference shares modules with the policy, or its adapter is not switched off",
            ),
            fix="hash the reference's weights at start and now; if it moves on purpose, its KL is not to the start",
            evidence=evidence,
        )
    return ok("REFERENCE_DRIFT", f"{found}: within scoring noise, without trend", evidence=evidence)


def _by_label(label: NDArray[np.int64], step: NDArray[np.float64]) -> list[NDArray[np.int64]]:
    """Rows of each label seen at two steps or more, in order of step, one row per step."""
    rows = np.flatnonzero((label >= 0) & np.isfinite(step))
    order = rows[np.lexsort((rows, step[rows], label[rows]))]
    groups = np.split(order, np.flatnonzero(np.diff(label[order])) + 1) if order.size else []
    single = [group[np.concatenate([[True], np.diff(step[group]) > 0])] for group in groups]
    return [group for group in single if group.size >= 2]


def resume(tally: Tally, declared: Declared, level: float) -> Finding:
    """The distance from the reference does not collapse from one step to the next.

    ``problem``: the mean squared log ratio per token falls more than tenfold (see `FALL`) between neighbouring steps,
    by a one-sided z test on its logarithm over answers, and stood above scoring noise before. Level shared by steps.
    """
    assert tally.step is not None
    steps = np.unique(tally.step[np.isfinite(tally.step)])
    used = tally.n > 0
    means = [
        grouped_mean(tally.square[rows], tally.n[rows])
        for rows in (used & (tally.step == step) for step in steps)
        if rows.sum() >= 2
    ]
    steps = np.array([step for step in steps if (used & (tally.step == step)).sum() >= 2])
    pairs = len(means) - 1
    if pairs < 1:
        return cannot_tell("RESUME", "fewer than two steps with two answers", fix="give answers of several steps")
    limit = z_limit(level / pairs)
    largest, found = 0.0, None
    for i in range(pairs):
        before, after = means[i], means[i + 1]
        if before.value - limit * before.se <= SCORING_NOISE**2:
            continue
        fall = before.value / after.value if after.value > 0 else math.inf
        spread = math.hypot(before.se / before.value, after.se / after.value if after.value > 0 else 0.0)
        largest = max(largest, fall)
        if math.log(min(fall, 1e300) / FALL) > limit * spread and found is None:
            found = (int(steps[i]), int(steps[i + 1]), before.value, after.value)
    evidence = {
        "steps": [int(s) for s in steps] if steps.size <= 50 else None,
        "largest_fall": largest,
        "fall_asked": FALL,
        "level": level,
    }
    if found:
        a, b, high, low = found
        return problem(
            "RESUME",
            f"between steps {a} and {b} the mean squared log ratio falls from {number(high)} to {number(low)}",
            causes=(
                "the run was resumed and loaded the reference from the trained checkpoint",
                "the reference was replaced by the policy (a hard synchronisation)",
                "the policy was rolled back to its start",
            ),
            fix="reload the original reference and score a batch from before the fall: its KL must come back",
            evidence=evidence,
        )
    return ok("RESUME", f"no collapse of the distance from the reference over {len(means)} steps", evidence=evidence)
