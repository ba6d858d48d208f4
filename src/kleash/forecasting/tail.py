"""How heavy the upper tail of the judge's scores is: the one thing reweighting cannot see for itself.

With a power-law tail a policy can collect any reward at almost no KL, from answers that no sample shows; the weights
of the samples look harmless all the while. So the tail is judged on the scores, pooled over prompts.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray
from scipy.special import polygamma, psi

from kleash.samples import Samples

__all__ = [
    "LIGHT",
    "Studentised",
    "Tail",
    "answers_at_end",
    "fit_generalised_pareto",
    "residuals",
    "score_tail",
    "studentised",
]

Floats = NDArray[np.float64]

_FEWEST = 20  # exceedances below which no shape is fitted
_TOP = 0.05  # of the scale: what counts as its top
_PILE = 0.1  # of all answers: where so many lie in the top of the range seen, they pile up below an end
_CEILING = 10  # answers that share the top score: the scale's end has been reached, there is no tail beyond it


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tail:
    """Generalised Pareto shape of the upper tail of the scores, and its standard error.

    ``shape`` below 0: the tail ends; near 0: exponential or lighter; above 0: a power law of index 1 / shape. NaN
    where it could not be fitted; ``n`` is the number of exceedances it was fitted to.
    """

    shape: float
    se: float
    n: int


LIGHT = Tail(shape=-1.0, se=0.0, n=0)
"""A tail that ends."""


def score_tail(samples: Samples, *, reward_max: float | None = None) -> Tail:
    """Fit the upper tail of all scores, each seen against the other answers to its prompt.

    Parameters
    ----------
    samples
        Grouped by prompt.
    reward_max
        The largest score the judge can give, where it is known.

    Returns
    -------
    Tail
        The shape with its standard error, and from how many scores.

    Notes
    -----
    A generalised Pareto law is fitted to the M = min(N / 5, 3 sqrt N) largest residuals (:func:`residuals`), the number
    that Pareto-smoothed importance sampling uses; its standard error is (1 + shape) / sqrt(M), the asymptotic one.

    A judge's scale may have an end, beyond which there are no answers and no tail; the shape is then -1. The end has
    been seen where ten answers share the highest score, or lie within a twentieth of the scale below ``reward_max``, or
    where a tenth of all answers lie in the top twentieth of the scores' range.

    References
    ----------
    Vehtari, Simpson, Gelman, Yao, Gabry 2024, JMLR 25:72 (M); Davison and Smith 1990 (standard error).
    """
    reward = samples.reward
    piled_up = answers_at_end(reward)
    lowest, highest = float(reward.min()), float(reward.max())
    if not piled_up and reward_max is not None:
        end = min(highest, reward_max - _TOP * (reward_max - lowest))
        at_top = int(np.count_nonzero(reward >= end))
        piled_up = at_top if at_top >= _CEILING else 0
    if piled_up:
        return Tail(shape=-1.0, se=0.0, n=piled_up)
    return _upper_tail(residuals(samples))


def answers_at_end(values: Floats) -> int:
    """How many answers pile up at the upper end of a scale; 0 if that is not seen to end.

    Parameters
    ----------
    values
        Scores, shape (N,).

    Returns
    -------
    Those in the top twentieth of the range, if they are a tenth of all; else those that share the highest value, if
    they are ten. Of scores without an end no two are equal, and few are near the largest.

    Examples
    --------
    >>> answers_at_end(np.repeat([0.0, 1.0], [90, 10])), answers_at_end(np.arange(100.0))
    (10, 0)
    """
    lowest, highest = float(values.min()), float(values.max())
    near = int(np.count_nonzero(values >= highest - _TOP * (highest - lowest)))
    if near >= _PILE * values.size:
        return near
    shared = int(np.count_nonzero(values == highest))
    return shared if shared >= _CEILING else 0


def _upper_tail(values: Floats) -> Tail:
    pooled = np.sort(values)
    n = int(np.ceil(min(pooled.size / 5, 3 * np.sqrt(pooled.size))))
    if n < _FEWEST:
        return Tail(shape=np.nan, se=np.nan, n=n)
    excess = pooled[-n:] - pooled[-n - 1]
    excess = excess[excess > 0]
    if excess.size < _FEWEST:
        return Tail(shape=np.nan, se=np.nan, n=int(excess.size))
    shape = fit_generalised_pareto(excess)
    return Tail(shape=shape, se=abs(1 + shape) / np.sqrt(excess.size), n=int(excess.size))


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Studentised:
    """How far each answer lies from the other answers to its prompt.

    ``rows`` are the answers that have a ``residual`` (dimensionless): those to prompts with any spread and at least
    three answers. ``mean`` and ``sd`` (P,) are the prompts' own, the SD shrunk to the common one.
    """

    rows: NDArray[np.intp]
    residual: Floats
    mean: Floats
    sd: Floats


def studentised(samples: Samples) -> Studentised:
    """Externally studentised residuals of the rewards.

    Parameters
    ----------
    samples
        Grouped by prompt.

    Returns
    -------
    Studentised

    Notes
    -----
    t_i = (r_i - mean_(-i)) / (s_(-i) sqrt(K / (K - 1))), mean and SD over the other K - 1 answers, so that an outlier
    does not hide in its own SD (a plain standardised score of K = 8 cannot exceed 2.5). Few answers make s noisy,
    which would itself look like a heavy tail: each variance is shrunk to the prompts' common one, s~^2 = (d_0 s_0^2 +
    d s^2) / (d_0 + d), with d_0 and s_0 from the spread of log s^2 over prompts.

    References
    ----------
    Smyth 2004, Stat. Appl. Genet. Mol. Biol. 3:3 (moderated variances).
    """
    counts = samples.counts
    starts = samples.offsets[:-1]
    mean = np.add.reduceat(samples.reward, starts) / counts
    centred = samples.reward - np.repeat(mean, counts)
    squares = np.add.reduceat(centred**2, starts)
    spread = squares > 1e-24 * np.maximum(squares.max(), np.finfo(float).tiny)
    if not spread.any():
        return Studentised(rows=np.empty(0, np.intp), residual=np.empty(0), mean=mean, sd=np.zeros_like(mean))
    prior_df, prior = _common_variance(squares[spread], counts[spread] - 1)
    rows = np.flatnonzero(np.repeat(spread & (counts > 2), counts))
    k = np.repeat(counts, counts)[rows].astype(np.float64)
    deviation = centred[rows]
    others = np.maximum(np.repeat(squares, counts)[rows] - deviation**2 * k / (k - 1), 0.0)
    moderated = prior if np.isinf(prior_df) else (prior_df * prior + others) / (prior_df + k - 2)
    whole = prior if np.isinf(prior_df) else (prior_df * prior + squares) / (prior_df + counts - 1)
    return Studentised(
        rows=rows,
        residual=deviation * k / (k - 1) / np.sqrt(moderated * k / (k - 1)),
        mean=mean,
        sd=np.where(spread, np.sqrt(whole), 0.0),
    )


def residuals(samples: Samples) -> Floats:
    """The residuals alone; see :func:`studentised`."""
    return studentised(samples).residual


def _common_variance(squares: Floats, df: NDArray[np.int64]) -> tuple[float, float]:
    """Degrees of freedom (infinite if prompts do not differ) and value of the variance that prompts share."""
    half = df / 2
    log_variance = np.log(squares / df) - psi(half) + np.log(half)
    centre = log_variance.mean()
    if squares.size < 2:
        return np.inf, float(np.exp(centre))
    excess = float(log_variance.var(ddof=1) - polygamma(1, half).mean())
    if excess <= 0:
        return np.inf, float(np.exp(centre))
    prior_half = _inverse_trigamma(excess)
    return 2 * prior_half, float(np.exp(centre + psi(prior_half) - np.log(prior_half)))


def _inverse_trigamma(value: float) -> float:
    """Solve trigamma(x) = value by Newton's method on 1 / trigamma, which is nearly linear."""
    x = 0.5 + 1 / value
    for _ in range(50):
        trigamma = float(polygamma(1, x))
        step = trigamma * (1 - trigamma / value) / float(polygamma(2, x))
        x += step
        if abs(step) < 1e-10 * x:
            break
    return x


def fit_generalised_pareto(excess: Floats) -> float:
    """Shape of a generalised Pareto law fitted to positive excesses over a threshold.

    Parameters
    ----------
    excess
        Shape (M,), positive, any unit.

    Returns
    -------
    The shape; positive for power laws, 0 for exponential tails, negative for tails that end.

    References
    ----------
    Zhang and Stephens 2009, Technometrics 51:316 (the quasi-posterior mean, without the prior that PSIS adds).

    Examples
    --------
    >>> round(fit_generalised_pareto(-np.log(np.linspace(0.0005, 0.9995, 1000))), 2)
    0.0
    """
    x = np.sort(excess)
    n = x.size
    m = 30 + int(np.sqrt(n))
    quartile = x[int(n / 4 + 0.5) - 1]
    theta = 1 / x[-1] + (1 - np.sqrt(m / (np.arange(1, m + 1) - 0.5))) / (3 * quartile)
    theta = theta[theta != 0]  # the exponential law itself: a point of measure zero, and 0 / 0 below
    shapes = np.log1p(-theta[:, None] * x).mean(axis=1)
    log_likelihood = n * (np.log(-theta / shapes) - shapes - 1)
    weight = np.exp(log_likelihood - log_likelihood.max())
    mean_theta = float((theta * weight).sum() / weight.sum())
    return float(np.log1p(-mean_theta * x).mean())
