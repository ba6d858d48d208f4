"""Does the reference stand still? REFERENCE_DRIFT on texts scored again, RESUME on the KL from step to step."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from scipy import special

from kleash.audit.chance import KERNEL_SHIFT, SCORING_NOISE, grouped_mean, mean_and_se, t_limit
from kleash.audit.dumps.needs import COUNTED, PROBES, STEPS, TOKENS
from kleash.audit.engine import check
from kleash.audit.findings import Evidence, Finding, cannot_tell, number

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kleash.audit.chance import Estimate
    from kleash.audit.dumps.sieve import Probes
    from kleash.audit.dumps.statistics import Tally
    from kleash.estimates import Floats

__all__ = ["reference_drift", "resume"]

FALL = 10.0
"""RESUME asks for a tenfold fall of the mean squared log ratio in one step, threefold in the ratio. Ours: no update
un-learns two thirds of all drift at once; a reference reloaded from the policy takes all of it away."""

FEWEST = 8  # prompts at a step
FLOOR = (SCORING_NOISE / 10) ** 2  # added to squares before the logarithm: below it there is only scoring noise
DETECTABLE_CHANGE = 0.05  # nats per token: REFERENCE_DRIFT says ok only if its interval is narrower


@check("REFERENCE_DRIFT", PROBES, problem="t tests of mean and squared change beyond another kernel's", chance=True)
def reference_drift(tally: Tally, level: float) -> Finding:
    """Does the reference score the same text alike at every step?

    Level shared by two t tests over probes: the mean change per token from the first to the last scoring is beyond
    0.005 nats (`KERNEL_SHIFT`), or the squared change is above the noise granted to two scorings (``n 2 (0.05)^2 +
    (0.005 n)^2`` for n tokens). A change that only grows with the step (Kendall's rank test summed over probes) and
    stays within both is ``cannot-tell``: one other kernel at the last step makes it too. Sums need ``length``, without
    which no noise can be granted.
    """
    assert tally.probes is not None
    moved, n, score, variance = _changes(tally.probes)
    probes, lost = moved.size, int((~np.isfinite(tally.probes.ref_total)).sum())
    missing = f"; {lost} scores are not numbers" if lost else ""
    if probes < 5:
        message = f"{probes} texts were scored at two steps or more{missing}"
        return cannot_tell(message, fix="score at least 5 fixed texts at every checkpoint")
    if not moved.any() and score == 0 and not lost:
        evidence = Evidence(probes=probes, mean_change_per_token=0.0, level=level)
        return evidence.ok(f"{probes} texts have the same reference score at every step")
    if n.min() < 1:
        message = f"the reference score of {probes} texts moved, by sums without length: no noise can be granted"
        return cannot_tell(message, fix="give length beside the sums, or the lists per token")
    change = grouped_mean(moved, n)
    granted = n * 2 * SCORING_NOISE**2 + np.square(KERNEL_SHIFT * n)
    excess = mean_and_se((np.square(moved) - granted) / n)
    z = score / math.sqrt(variance) if variance else 0.0
    low, high = change.limits(level)
    evidence = Evidence(
        probes=probes,
        scores_not_numbers=lost,
        mean_change_per_token=change.value,
        se=change.se,
        lo=low,
        hi=high,
        rms_change_per_root_token=math.sqrt(float(np.mean(np.square(moved) / n))),
        trend_z=z,
        noise_granted=math.sqrt(2) * SCORING_NOISE,
        change_granted_per_token=KERNEL_SHIFT,
        level=level,
    )
    found = f"the reference score of {probes} texts moved by {number(change.value)} +- {number(change.se)} per token"
    if low > KERNEL_SHIFT or high < -KERNEL_SHIFT or excess.limits(level)[0] > 0:
        return evidence.problem(
            f"{found}: it is not frozen",
            "the reference is synchronised with the policy (a moving average, or a reload every so many steps)",
            "a resumed run loaded the reference from the trained checkpoint",
            "the reference shares modules with the policy, or its adapter is not switched off",
            fix="hash the reference's weights at start and now; if it moves on purpose, its KL is not to the start",
        )
    if float(special.ndtr(-z)) < level:
        message = f"{found}, further at later steps, by no more than another kernel could"
        return evidence.cannot_tell(message, fix="hash the reference's weights")
    if lost or not high - low < DETECTABLE_CHANGE:
        message = missing or ": too few texts to tell"
        return evidence.cannot_tell(f"{found}{message}", fix="score more texts, every one at each step")
    return evidence.ok(f"{found}: within scoring noise, without trend")


def _changes(probes: Probes) -> tuple[Floats, Floats, float, float]:
    """By text: how far its score moved from the first step to the last, and its tokens; over all Kendall's score.

    Returns
    -------
    tuple of moved and tokens, shape (texts,), and the score with its variance under no trend
    """
    moved, tokens, score, variance = [], [], 0.0, 0.0
    for rows in _by_label(np.where(np.isfinite(probes.ref_total), probes.label, -1), probes.step):
        apart = probes.ref_total[rows] - probes.ref_total[rows[0]]
        moved.append(apart[-1])
        tokens.append(probes.n[rows[0]])
        m, distance = len(rows) - 1, np.abs(apart[1:])
        score += float(np.sign(distance[:, None] - distance[None, :])[np.tril_indices(m, -1)].sum())
        variance += m * (m - 1) * (2 * m + 5) / 18
    return np.array(moved, dtype=np.float64), np.array(tokens, dtype=np.float64), score, variance


def _by_label(label: NDArray[np.int64], step: Floats) -> list[NDArray[np.int64]]:
    """Rows of each label seen at two steps or more, in order of step, one row per step."""
    rows = np.flatnonzero((label >= 0) & np.isfinite(step))
    order = rows[np.lexsort((rows, step[rows], label[rows]))]
    groups = np.split(order, np.flatnonzero(np.diff(label[order])) + 1) if order.size else []
    single = [group[np.concatenate([[True], np.diff(step[group]) > 0])] for group in groups]
    return [group for group in single if group.size >= 2]


@check(
    "RESUME",
    TOKENS,
    COUNTED,
    STEPS,
    problem="t test over prompts of a tenfold fall of the mean squared log ratio that lasts, or comes twice",
    chance=True,
)
def resume(tally: Tally, level: float) -> Finding:
    """Does the distance from the reference collapse between steps?

    The fall (see `FALL`) is between neighbouring steps, one-sided on the logarithm, with at least 8 prompts at each
    step; the distance stood above scoring noise before, and at the next two steps it is still below a third of that, or
    it falls so again later. One that is made good at once is ``cannot-tell``.
    Level shared by the steps. Prompts differ in how far a policy drifts on them, so without ``prompt_id`` a collapse is
    ``cannot-tell``, and so is everything where it could not have been seen: hardly any drift to lose, or hundredfold
    falls within chance.
    """
    assert tally.step is not None
    known = tally.prompt is not None and not bool((tally.prompt[tally.n > 0] < 0).any())
    logs = {int(s): _log_squares(tally, tally.step == s, known) for s in np.unique(tally.step[np.isfinite(tally.step)])}
    logs = {step: values for step, values in logs.items() if values.size >= FEWEST}
    steps, means = list(logs), [mean_and_se(values) for values in logs.values()]
    if len(means) < 2:
        units = "prompts" if known else "answers"
        message = f"fewer than two steps with {FEWEST} {units}"
        return cannot_tell(message, fix=f"give answers of several steps to {FEWEST} prompts each")
    largest, falls, seen = _falls(means, level)
    evidence = Evidence(
        steps=steps if len(steps) <= 50 else None,
        prompts_at_each=min(m.n for m in means) if known else None,
        largest_fall=largest,
        fall_asked=FALL,
        falls=len(falls),
        level=level,
    )
    if falls:
        at = falls[0]
        high, low = (number(math.exp(m.value)) for m in means[at : at + 2])
        said = f"between steps {steps[at]} and {steps[at + 1]} the mean squared log ratio falls from {high} to {low}"
        again = len(falls) > 1
        said += f", and so {len(falls) - 1} times later" if again else ""
        lasts = all(later.value < means[at].value - math.log(3) for later in means[at + 2 : at + 4])
        if known and not (again or lasts):
            return evidence.cannot_tell(f"{said}, and comes back", fix="score the batch of that step again")
        if not known:
            return evidence.cannot_tell(f"{said}: other prompts, or another reference", fix="give prompt_id")
        return evidence.problem(
            said,
            *(["the reference is synchronised with the policy every so many steps"] if again else []),
            "the run was resumed and loaded the reference from the trained checkpoint",
            "the reference was replaced by the policy (a hard synchronisation)",
            "the policy was rolled back to its start",
            "the prompts of the later steps are of another kind",
            fix="reload the original reference and score a batch from before the fall: its KL must come back",
        )
    if not seen:
        message = "no step with so much drift, on so many prompts, that its loss would stand out"
        return evidence.cannot_tell(message, fix="give later steps, or more prompts per step")
    return evidence.ok(f"no tenfold fall of the distance from the reference over {len(means)} steps")


def _falls(means: list[Estimate], level: float) -> tuple[float, list[int], bool]:
    """Of the logarithms by step: the largest fall, after which steps one is beyond chance, and if it could be seen."""
    largest, found, seen = 0.0, list[int](), False
    for i, (before, after) in enumerate(pairwise(means)):
        limit = t_limit(level / (len(means) - 1), min(before.n, after.n) - 1)
        if before.value - limit * before.se <= math.log(2 * SCORING_NOISE**2):
            continue
        fall = before - after
        seen = seen or limit * fall.se < math.log(100 / FALL)
        largest = max(largest, math.exp(min(fall.value, 700.0)))
        if fall.value - math.log(FALL) > limit * fall.se:
            found.append(i)
    return largest, found, seen


def _log_squares(tally: Tally, rows: NDArray[np.bool_], known: bool) -> Floats:
    """Logarithm of the mean squared log ratio per token of each prompt (of each answer where prompts are not given)."""
    used = np.flatnonzero(rows & (tally.n > 0))
    unit = tally.prompt[used] if known and tally.prompt is not None else used
    _, unit = np.unique(unit, return_inverse=True)
    squares, tokens = np.bincount(unit, weights=tally.square[used]), np.bincount(unit, weights=tally.n[used])
    return np.log(squares / tokens + FLOOR)
