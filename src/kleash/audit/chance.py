"""How sure is a finding? The tests behind the checks, each with its false-alarm rate.

Three facts carry the rollout checks. If a token is drawn from the policy, then given everything before it

1. ``w = exp(ref_logp - logp)`` has mean 1 (at most 1 where the policy lacks tokens the reference has): the sum over the
   vocabulary of ``policy * reference / policy``;
2. ``w`` is at least c with probability at most 1/c (Markov);
3. so the product over all tokens of ``1 + s (w - 1)``, 0 <= s <= 1, is a nonnegative martingale, and passes 1/a with
   probability at most a (Ville), however heavy the tail of w and however the tokens of an answer depend on each other.

Log-probabilities are not exact: the same tokens scored twice by different kernels differ. `SCORING_NOISE` is granted
throughout. Noise of spread sigma on the scorer's logits, renormalised, makes a token drawn by the engine have
``E[exp(ref_logp - logp)] = exp(sigma**2)``, not 1: half of it from the noise, half from the normaliser. So a mean of 1
is tested as a mean of at most `NOISE_MEAN`. Four requirements no test can do without: the answers are unselected and
distinct draws, and whether a token counts is decided by what stands before it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy import special

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from kleash.estimates import Floats

__all__ = [
    "CAP",
    "FAMILY_LEVEL",
    "KEPT_MASS_MARGIN",
    "KERNEL_SHIFT",
    "NOISE_MEAN",
    "SCORING_NOISE",
    "SURPRISAL_CAP",
    "Estimate",
    "Sums",
    "binomial_tail",
    "detectable",
    "grouped_mean",
    "log_e_above",
    "log_e_below",
    "log_e_surprisal",
    "mean_and_se",
    "mean_of_exp",
    "mixture",
    "more_at_the_end",
    "no_bets",
    "sign_test",
    "slope_bounds",
    "t_limit",
    "tail_p_value",
    "z_limit",
]

FAMILY_LEVEL = 0.01
"""Chance that a healthy input has any problem, divided by the number of tests that run on the input (Bonferroni)."""

SCORING_NOISE = 0.05
"""Spread in nats per token between two scorings of one token that is granted to a healthy setup.

Source: trainer against inference engine in bfloat16, standard deviation .0499 (github.com/huggingface/trl/issues/6789).
"""

NOISE_MEAN = math.exp(1.5 * SCORING_NOISE**2)
"""What scoring noise may make of a mean of 1: 1.00376, half as much again as exp(0.05^2).

The figures of trl 6789 (mean -.0015, spread .0499) give exp(.0015 + .0499^2 / 2) = 1.0027.
"""

KERNEL_SHIFT = 0.005
"""Mean nats per token by which another kernel may score one text. Ours: three times the -.0015 of trl 6789."""

VOCABULARY = 2**18
"""The largest vocabulary that SURPRISAL's test is exact for (262,144 tokens)."""

SURPRISAL_CAP = math.log(VOCABULARY) - 1 - math.log(1e-3)
"""Surprisals are cut off here (18.4 nats). That lowers no mean by more than .001 nats: tokens of probability p < e with
e = exp(-cap) contribute at most ``sum p log(e / p) <= VOCABULARY * e / exp(1) = .001``."""

CAP = 2.0
"""Ratios policy/sampler are cut off here before they are averaged for kept mass; scoring noise never reaches it."""

KEPT_MASS_MARGIN = 0.01
"""Share of the policy's mass that may sit above `CAP` or outside the sampler's reach without a finding.

Ours: a sampler that keeps 99 % of every distribution changes no conclusion; top_p = .95 keeps .95 to .98.
"""

UP = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 0.9)
DOWN = (0.01, 0.03, 0.1, 0.3, 0.9)
GAPS = (0.01, 0.03, 0.1, 0.3, 0.9)


def log_e_above(ratio: Floats, *, length: ArrayLike = 1) -> Floats:
    """Log of the wealth of betting that a nonnegative ratio has a mean above 1, one entry per size of bet.

    ``ratio``: Shape (n,); values whose conditional mean is at most 1 under the hypothesis. Infinity is allowed.
    ``length``: Tokens behind each ratio (the noise granted grows with it): 1 for token ratios.

    Returns
    -------
    Shape (7,), natural logarithms.

    Notes
    -----
    Bets of seven fixed sizes s; log wealth is the sum of ``log(1 + s (ratio / noise - 1))``. It adds over pieces of
    data, so a dump is read once. Combine with `mixture`.
    """
    scaled = ratio / NOISE_MEAN ** np.asarray(length, dtype=np.float64)
    return np.array([np.log1p(s * (scaled - 1)).sum() for s in UP])


def log_e_below(ratio: Floats) -> Floats:
    """Log of the wealth of betting that ``min(ratio, CAP)`` has a mean below ``1 - KEPT_MASS_MARGIN``.

    Cutting off keeps every factor positive (``1 - 0.9 (2 - 0.99) > 0``), so the bet is valid whatever the tail.
    """
    capped = np.minimum(ratio, CAP) - (1 - KEPT_MASS_MARGIN)
    return np.array([np.log1p(-s * capped).sum() for s in DOWN])


def log_e_surprisal(surprisal: Floats, entropy: Floats, *, margin: float) -> Floats:
    """Log wealth of betting that mean surprisal misses mean entropy by more than ``margin``, below and above.

    The surprisal is cut off at `SURPRISAL_CAP`, so the gap to the entropy is bounded on both sides by numbers that are
    known before the token is drawn, and bets below the inverse of the bound keep every factor positive: exact, without
    any estimate of a variance, however rare the tokens that carry the mean. ``margin`` includes the .001 of the cut.
    """
    gap = np.minimum(surprisal, SURPRISAL_CAP) - entropy
    most, least = np.maximum(SURPRISAL_CAP - entropy, 0.0) + margin, np.maximum(entropy, 0.0) + margin
    lower = [np.log1p(np.maximum(-s / most * (gap + margin), -0.999)).sum() for s in GAPS]
    upper = [np.log1p(np.maximum(s / np.maximum(least, 1.0) * (gap - margin), -0.999)).sum() for s in GAPS]
    return np.array(lower + upper)


def detectable(se: float, level: float) -> float:
    """The deviation of a mean that bets at this level would find, given its standard error.

    The best bet on a deviation d grows by about ``d^2 / (2 variance)`` per draw, and must reach ``log(10 / level)``:
    one of ten bets is near the best.
    """
    return math.sqrt(2 * math.log(10 / level)) * se


def no_bets() -> Floats:
    """Log wealth before any bet, whatever the number of bets."""
    return np.zeros(1)


def mixture(log_wealth: ArrayLike) -> float:
    """Log of the mean wealth over the bets: itself a test martingale; the p-value is at most ``exp(-this)``.

    Examples
    --------
    >>> round(mixture([0.0, -1000.0]), 6)
    -0.693147
    """
    x = np.asarray(log_wealth, dtype=np.float64)
    top = float(x.max())
    return top if not math.isfinite(top) else top + math.log(float(np.exp(x - top).mean()))


def tail_p_value(counts: ArrayLike, heights: ArrayLike, n: int) -> tuple[float, int]:
    """Could this many tokens have ``ref_logp - logp >= height``? The least p-value over heights, and where it is.

    Under the hypothesis each token passes ``height`` with probability at most ``noise * exp(-height)`` whatever came
    before, so the count is at most binomial; corrected for the number of heights.

    Examples
    --------
    >>> p, where = tail_p_value([3], [10.0], 1000)
    >>> p < 2e-5, where
    (True, 0)
    """
    k, x = np.asarray(counts), np.asarray(heights, dtype=np.float64)
    chance = np.minimum(1.0, NOISE_MEAN * np.exp(-x))
    p = np.array([binomial_tail(int(a), n, float(b)) for a, b in zip(k, chance, strict=True)])
    where = int(np.argmin(p))
    return min(1.0, float(p[where]) * p.size), where


def more_at_the_end(ending: int, endings: int, elsewhere: int, places: int) -> float:
    """Chance that at least ``ending`` of ``endings`` answers end in a thing that ``elsewhere`` of ``places`` show.

    Fisher's exact test, one-sided: under the hypothesis an ending is a place like any other.
    """
    marked = ending + elsewhere
    most = min(marked, endings)
    if not ending or most > 10_000_000:
        return 1.0
    k = np.arange(ending, most + 1, dtype=np.float64)
    chance = _log_choose(marked, k) + _log_choose(endings + places - marked, endings - k)
    return min(1.0, float(np.exp(chance - _log_choose(endings + places, endings)).sum()))


def _log_choose(n: ArrayLike, k: ArrayLike) -> Floats:
    top, part = np.asarray(n, dtype=np.float64), np.asarray(k, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        value = special.gammaln(top + 1) - special.gammaln(part + 1) - special.gammaln(top - part + 1)
    return np.where((part < 0) | (part > top), -np.inf, value)


def sign_test(wins: int, n: int) -> float:
    """Chance of at least ``wins`` of ``n`` when each is at most even: exact binomial, ties counted as losses."""
    return binomial_tail(wins, n, 0.5)


def binomial_tail(k: int, n: int, chance: float) -> float:
    """Chance of at least ``k`` of ``n``.

    Examples
    --------
    >>> binomial_tail(2, 2, 0.5), binomial_tail(0, 5, 0.1)
    (0.25, 1.0)
    """
    return 1.0 if k <= 0 else 0.0 if k > n else float(special.bdtrc(k - 1, n, chance))


def t_limit(level: float, freedom: int) -> float:
    """The value that Student's t exceeds with probability ``level``."""
    return -float(special.stdtrit(freedom, level))


def z_limit(level: float) -> float:
    """The value that a standard normal exceeds with probability ``level``."""
    return -float(special.ndtri(level))


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A number with its standard error over ``n`` independent units; t intervals on ``n - 1`` degrees of freedom."""

    value: float
    se: float
    n: int

    def __sub__(self, other: Estimate) -> Estimate:
        """The difference of two independent estimates; of so many units as the smaller has."""
        se = math.hypot(self.se, other.se)
        return Estimate(value=self.value - other.value, se=se, n=min(self.n, other.n))

    def limits(self, level: float) -> tuple[float, float]:
        """Two-sided interval that misses with probability ``level``."""
        if self.n < 2:
            return -math.inf, math.inf
        width = t_limit(level / 2, self.n - 1) * self.se
        return self.value - width, self.value + width


def mean_and_se(values: ArrayLike) -> Estimate:
    """Mean of independent units, one per answer."""
    x = np.asarray(values, dtype=np.float64)
    se = float(x.std(ddof=1) / math.sqrt(x.size)) if x.size > 1 else math.inf
    return Estimate(value=float(x.mean()), se=se, n=int(x.size))


def mean_of_exp(logs: ArrayLike) -> tuple[Estimate, float]:
    """Mean of exp of independent log weights, and their effective sample size ``(sum w)^2 / sum w^2``.

    Scaled by the largest, so only the mean itself can leave the float range; then it is infinity, and so is its error.

    Examples
    --------
    >>> estimate, ess = mean_of_exp([1000.0, 1000.0, 0.0])
    >>> estimate.value, round(ess, 6)
    (inf, 2.0)
    """
    x = np.asarray(logs, dtype=np.float64)
    top = float(x.max())
    weight = np.exp(x - top)
    scaled, ess = mean_and_se(weight), float(weight.sum() ** 2 / np.square(weight).sum())
    scale = math.exp(top) if top < 709 else math.inf
    return Estimate(value=scaled.value * scale, se=scaled.se * scale if scaled.se else 0.0, n=scaled.n), ess


@dataclass
class Sums:
    """What a mean needs of values that go by once: how many, the sum of them and of their squares."""

    n: int = 0
    total: float = 0.0
    squares: float = 0.0

    def add(self, values: Floats) -> None:
        """Some more values, shape (n,)."""
        self.n += values.size
        self.total += float(values.sum())
        self.squares += float(np.square(values).sum())

    def mean(self) -> tuple[Estimate, float]:
        """The mean, and the effective sample size as in `mean_of_exp`."""
        n = max(1, self.n)
        mean = self.total / n
        if not math.isfinite(self.squares):
            return Estimate(value=mean, se=math.inf, n=n), 1.0
        ess = self.total * self.total / self.squares if self.squares > 0 else 0.0
        return Estimate(value=mean, se=math.sqrt(max(self.squares / n - mean * mean, 0.0) / n), n=n), ess


def grouped_mean(sums: ArrayLike, counts: ArrayLike) -> Estimate:
    """Mean per token of sums over answers of unequal length; answers are the independent units (ratio estimator)."""
    x, n = np.asarray(sums, dtype=np.float64), np.asarray(counts, dtype=np.float64)
    value = float(x.sum() / n.sum())
    if x.size < 2:
        return Estimate(value=value, se=math.inf, n=int(x.size))
    residual = x - value * n
    se = math.sqrt(float(np.square(residual).sum()) * x.size / (x.size - 1)) / float(n.sum())
    return Estimate(value=value, se=se, n=int(x.size))


def slope_bounds(moments: Floats, *, level: float) -> tuple[float, float, float, float]:
    """The slope of y on x when both may carry independent noise: (least-squares, reverse, low, high).

    ``moments``: Shape (G, 6): for each of G groups of answers the sums of 1, x, y, x*x, x*y, y*y. ``level``: Chance
    that the interval ``(low, high)`` misses a true slope between the two regressions.

    Returns
    -------
    Both regressions and the interval's ends; infinite ends where fewer than three groups leave no error.

    Notes
    -----
    Noise in x pulls the regression of y on x towards 0, noise in y pulls that of x on y; the slope without noise lies
    between ``Sxy / Sxx`` and ``Syy / Sxy`` (Frisch 1934). The ends carry a delete-one-group jackknife error.
    """
    used = moments[moments[:, 0] > 0]
    total = used.sum(axis=0)

    def slopes(m: Floats) -> Floats:
        n, x, y, xx, xy, yy = np.moveaxis(m, -1, 0)
        sxx, sxy, syy = xx - x * x / n, xy - x * y / n, yy - y * y / n
        return np.stack([sxy / sxx, syy / sxy])

    with np.errstate(divide="ignore", invalid="ignore"):
        forward, reverse = slopes(total)
        parts = slopes(total - used)
    g = used.shape[0]
    if g < 3 or not np.isfinite(parts).all() or forward <= 0:
        return float(forward), float(reverse), -math.inf, math.inf
    error = np.sqrt((g - 1) / g * np.square(parts - parts.mean(axis=1, keepdims=True)).sum(axis=1))
    t = t_limit(level / 2, g - 1)
    return float(forward), float(reverse), float(forward - t * error[0]), float(reverse + t * error[1])
