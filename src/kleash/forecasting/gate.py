"""Which betas a forecast may speak about: every row is ok, weak or beyond."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kleash.forecasting.reweight import Labels, Reweighted
from kleash.forecasting.tail import Tail
from kleash.samples import Samples

__all__ = ["FEWEST_LABELS", "MATERIAL", "OK_DRIFT", "demoted", "row_status", "tail_status", "too_little_gold"]

Floats = NDArray[np.float64]

HEAVY = 0.10
"""Shape of the scores' tail from which a power law must be reckoned with.

Chosen by trial on the families of ``bench/forecast_calibration.py``: power laws of index 1.5 to 3 have shapes .33 to
.67, normal scores seen through 200 to 6,000 samples fit at -.2 to 0, exponential tails at 0. At this value
about 1 in 100 power laws passes for light at the smallest size tried (30 prompts x 8) and hardly any at the others,
and 5 to 15 % of normal ones are called weak; measured in docs/calibration.md.
"""
OK_DRIFT, USABLE_DRIFT = 1.0, 2.5
"""Largest drift with the number of samples, in standard errors, of an ``ok`` row, and of one that is still shown.

The interval is widened by the drift, so up to one standard error it costs width and not coverage; by trial, coverage
falls below 90 % past two and a half.
"""
MATERIAL = 0.05
"""Drift that is let pass whatever the standard error, as a share of the quantity's change from the reference.

With thousands of prompts the standard error falls below any bias; a twentieth of the gain is what a verdict calls as
good as the best.
"""
_USABLE_MARGIN = 1.0  # nats short of log K at which nothing is shown any more: 1 / e of the weight is on one sample
_FEWEST_EFFECTIVE = 2.0
"""Effective samples per prompt of an ``ok`` row: with fewer, no second answer shows what the first might have missed.

For normal scores the effective sample size at a KL is K exp(-2 KL), so this asks for a KL of at most
log(K / 2) / 2; by trial, past it the truth of worlds with gamma tails is missed half of the time.
"""
_ENOUGH_RARE = 100  # labels that differ from the commonest from which on they need no look of their own
FEWEST_LABELS = 10.0  # effective labels below which a mean and its error mean little


def tail_status(tail: Tail) -> str:
    """``ok`` if the tail is shown to be light, ``beyond`` if it is shown to be heavy, ``weak`` if neither.

    Light: shape + one standard error at most 0.10. Heavy: shape - one standard error above it.
    """
    if np.isnan(tail.shape):
        return "weak"
    if tail.shape - tail.se > HEAVY:
        return "beyond"
    return "ok" if tail.shape + tail.se <= HEAVY else "weak"


def row_status(
    *,
    drift: Floats,
    se: Floats,
    change: Floats,
    kl: Floats,
    reward: Floats,
    reward_range: tuple[float, float],
    gold: Floats | None,
    gold_range: tuple[float, float],
    log_samples: float | Floats,
    n_gold_eff: Floats | None,
    tail: Tail,
    corrected: bool = True,
) -> NDArray[np.str_]:
    """Status of each beta.

    Parameters
    ----------
    drift, se
        Shape (Q, B): how much each quantity moved when the samples per prompt were halved, and its standard error.
    change
        Shape (Q, B): how far each quantity is from its value at the reference.
    kl, reward
        Corrected estimates, shape (B,); nats and reward units.
    reward_range
        Smallest and largest score in the data.
    gold, gold_range
        The same of gold; None without labels. With few labels it may lie outside by chance: that alone is ``weak``, by
        more than a standard error ``beyond``.
    log_samples
        Mean over prompts of log K, nats, shape () or (B,).
    n_gold_eff
        Effective number of gold labels, shape (B,); None without gold.
    tail
        Of the scores.
    corrected
        False for plain estimates: their interval is widened by all of the drift, and drift makes a row ``weak`` only.

    Returns
    -------
    Shape (B,): ``ok``, ``weak`` or ``beyond``.

    Notes
    -----
    In order: a corrected KL below 0 or a mean outside the data is impossible, KL past log K - 1 nats is out of
    reach, drift past 2.5 standard errors is mostly bias: ``beyond``. (A standard error counts as at least 5 % of the
    change from the reference.) A heavy tail closes every row. KL past
    log(K / 2) / 2, drift past one standard error, fewer than ten effective labels, or a tail that may be heavy:
    ``weak``.

    Rejected on trial: k-hat of the self-normalised weights (at most K, so it sees no tail), k-hat of mean-centred
    weights (reads prompts of different spread as a heavy tail), and the shape of scores over their own SD (cannot
    exceed (K - 1) / sqrt(K), so it never looks heavy at small K).
    """
    scale = np.maximum(se, MATERIAL * np.abs(change))
    size = np.divide(np.abs(drift), scale, out=np.where(drift == 0, 0.0, np.inf), where=scale > 0)
    ratio = size.max(axis=0)
    impossible = (kl < -1e-12) | _outside(reward, reward_range)
    if gold is not None:
        impossible |= _outside(gold, (gold_range[0] - se[2], gold_range[1] + se[2]))
    beyond = impossible | (kl > log_samples - _USABLE_MARGIN) | (corrected & (ratio > USABLE_DRIFT))
    weak = np.zeros(kl.shape, dtype=bool) if gold is None else _outside(gold, gold_range)
    weak |= (ratio > OK_DRIFT) | (kl > 0.5 * (log_samples - np.log(_FEWEST_EFFECTIVE)))
    if n_gold_eff is not None:
        weak |= n_gold_eff < FEWEST_LABELS
    status = np.where(beyond, "beyond", np.where(weak, "weak", "ok"))
    overall = tail_status(tail)
    if overall == "beyond":
        return np.full(kl.shape, "beyond")
    return np.where((status == "ok") & (overall == "weak"), "weak", status)


def demoted(status: NDArray[np.str_], *reasons: NDArray[np.bool_] | bool) -> NDArray[np.str_]:
    """Rows that were ``ok`` and have a reason, each of shape (B,) or (), not to be: ``weak``."""
    bad = np.any(np.broadcast_arrays(*reasons, np.zeros(status.shape, dtype=bool)), axis=0)
    return np.where((status == "ok") & bad, "weak", status)


def too_little_gold(samples: Samples, labels: Labels | None, table: Reweighted, beta: Floats) -> NDArray[np.bool_]:
    """Rows whose gold hangs on fewer than ten effective answers that differ from the commonest.

    Parameters
    ----------
    samples, labels
        P prompts with their samples, and their gold.
    table
        Estimates per prompt.
    beta
        Shape (B,).

    Returns
    -------
    Shape (B,).

    Notes
    -----
    Where gold is right in one answer of 500, nearly all labels are alike, and how sure its mean is depends on the few
    that are not: (sum w)^2 / sum w^2 over them, w their weights under the policy. With a hundred or more of them, ten
    effective labels of all suffice.
    """
    if labels is None or samples.gold is None:
        return np.zeros(beta.shape, dtype=bool)
    values, counts = np.unique(samples.gold[labels.labelled], return_counts=True)
    rare = np.flatnonzero(labels.labelled & (samples.gold != values[counts.argmax()]))
    if rare.size >= _ENOUGH_RARE or values.size == samples.n_gold:
        return np.zeros(beta.shape, dtype=bool)
    if not rare.size:
        return np.ones(beta.shape, dtype=bool)
    prompt = np.searchsorted(samples.offsets, rare, side="right") - 1
    reward, kl = table.plain[0, prompt], table.plain[1, prompt]
    with np.errstate(under="ignore"):
        weight = np.exp((samples.reward[rare, None] - reward) / beta + kl) / samples.counts[prompt, None]
    return np.asarray(weight.sum(axis=0) ** 2 < FEWEST_LABELS * (weight**2).sum(axis=0))


def _outside(mean: Floats, ends: tuple[float | Floats, float | Floats]) -> NDArray[np.bool_]:
    """Means that no weighting of the data can have."""
    slack = 1e-9 * np.maximum(ends[1] - ends[0], 1e-300)
    return np.asarray((mean < ends[0] - slack) | (mean > ends[1] + slack))
