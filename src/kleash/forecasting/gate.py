"""Which betas a forecast may speak about: every row is ok, weak or beyond."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kleash.forecasting.tail import Tail

__all__ = ["FEWEST_LABELS", "row_status", "tail_status"]

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
_MATERIAL = 0.05
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
    log_samples: float,
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
        Mean over prompts of log K, nats.
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
    scale = np.maximum(se, _MATERIAL * np.abs(change))
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


def _outside(mean: Floats, ends: tuple[float | Floats, float | Floats]) -> NDArray[np.bool_]:
    """Means that no weighting of the data can have."""
    slack = 1e-9 * np.maximum(ends[1] - ends[0], 1e-300)
    return np.asarray((mean < ends[0] - slack) | (mean > ends[1] + slack))
