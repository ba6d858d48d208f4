"""From per-prompt estimates to means with honest intervals, and draws in which all betas move together."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from kleash._checks import message
from kleash.errors import OptionError
from kleash.frontier import Estimates

__all__ = ["MIN_PROMPTS", "Answers", "Prompts", "stretched"]

Floats = NDArray[np.float64]

_CELLS = 2_000_000  # numbers in one working array (16 MB)
_MOST_QUANTITIES = 5_000  # of fixed prompts: their covariance has the square of that, 200 MB
MIN_PROMPTS = 20
"""Fewest prompts for the bootstrap-t: with fewer, resampled standard errors come near zero too often."""
_STRETCH_FEW = 1.25  # by trial: six to 15 groups of very different spread are covered in 82 to 93 % without it
_WIDEST = (
    3.0  # times Student's t: where the bootstrap-t asks for more, its tails are ratios to standard errors near zero
)


def stretched(estimates: Estimates, origin: Floats | float, *, factor: float | Floats) -> Estimates:
    """The intervals of a quantity that rises from the reference, made to hold for few prompts.

    Parameters
    ----------
    estimates
        Shape (B,).
    origin
        What the reference has: its mean score; 0 for KL.
    factor
        By how much both sides become longer, for all betas or for each.

    Returns
    -------
    Estimates
        The upper end is at least that of the logarithm of the rise, origin + rise exp(half / rise).

    Notes
    -----
    Few prompts, or few answers in all, miss the few that matter, and have a small rise and a small error at once.
    """
    rise = estimates.value - origin
    half = factor * (estimates.hi - estimates.value)
    relative = np.divide(half, rise, out=np.zeros_like(half), where=rise > 1e-12 * np.abs(half))
    with np.errstate(over="ignore", invalid="ignore"):  # an infinite end: there is no upper limit
        above = np.where(relative > 0, rise * np.expm1(relative), 0.0)
    return Estimates(
        value=estimates.value,
        se=estimates.se,
        lo=estimates.value - factor * (estimates.value - estimates.lo),
        hi=estimates.value + np.fmax(half, above),
    )


def _upper(mean: Floats, se: Floats, above: Floats, *, positive: bool) -> Floats:
    """The upper end; of a positive quantity at least that of its logarithm."""
    hi = mean + above * se
    if not positive:
        return hi
    relative = np.divide(se, mean, out=np.zeros_like(se), where=mean > se)
    with np.errstate(over="ignore"):  # an infinite end: there is no upper limit
        return np.maximum(hi, mean * np.exp(above * relative))


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Prompts:
    """Prompts as a sample from a population: the same resampled prompts for every quantity, so that all is paired.

    ``counts`` says how often each prompt was drawn in each draw, shape (R, P). Prompts of one of the ``clusters`` (P,)
    are drawn together.
    """

    counts: NDArray[np.uint16]
    clusters: NDArray[np.int64] | None = None

    @classmethod
    def draw(
        cls, n_prompts: int, *, rng: np.random.Generator, n_draws: int, clusters: NDArray[np.int64] | None = None
    ) -> Prompts:
        """Resample prompts with replacement, ``n_draws`` times; whole clusters where there are any."""
        if clusters is not None:
            group = np.unique(clusters, return_inverse=True)[1].reshape(-1)
            whole = cls.draw(int(group.max()) + 1, rng=rng, n_draws=n_draws)
            return cls(counts=whole.counts[:, group], clusters=group)
        counts = np.empty((n_draws, n_prompts), dtype=np.uint16)
        step = max(1, _CELLS // n_prompts)
        for start in range(0, n_draws, step):
            rows = min(step, n_draws - start)
            chosen = rng.integers(n_prompts, size=(rows, n_prompts)) + n_prompts * np.arange(rows)[:, None]
            drawn = np.bincount(chosen.ravel(), minlength=rows * n_prompts)
            counts[start : start + rows] = drawn.reshape(rows, n_prompts)
        return cls(counts=counts)

    def mean(
        self, values: Floats, *, widen: Floats | float = 0.0, known: NDArray[np.bool_], positive: bool = False
    ) -> tuple[Estimates, Floats]:
        """Mean over prompts with its 95 % interval, and the mean in each draw.

        Parameters
        ----------
        values
            Shape (P, B), one estimate per prompt.
        widen
            Shape (B,), at least 0: added to the interval on both sides, for the bias that may be left.
        known
            Prompts that have the quantity, shape (P,); the others are left out.
        positive
            The mean is positive and its error grows with it (KL): the upper end is at least that of the logarithm.

        Returns
        -------
        Estimates of shape (B,), draws of shape (R, B).

        Notes
        -----
        Bootstrap-t: quantiles of (mean* - mean) / se* over draws follow the skewness of the prompts (KL's is large); on
        neither side narrower than Student's t with P - 1 degrees of freedom, and at most three times as wide. Below
        20 prompts Student's t alone. A sample that misses the few prompts with large KL has a small mean and a small
        error at once: for ``positive`` quantities the upper end is mean * exp(c se / mean), c the multiple of se used
        above, where that is larger.

        References
        ----------
        Hall 1988, Ann. Statist. 16:927 (second-order accuracy of the bootstrap-t).
        """
        if self.clusters is not None:
            return self._mean_of_clusters(values, widen, known, self.clusters[known], positive=positive)
        x = values[known]
        n = x.shape[0]
        mean = x.mean(axis=0) if n else np.full(x.shape[1], np.nan)  # no prompt has the quantity: neither has the mean
        centred = x - mean
        se = centred.std(axis=0, ddof=1) / np.sqrt(n) if n > 1 else np.full_like(mean, np.nan)
        shift, squares = self._moments(centred, known)
        below = above = np.full_like(mean, stdtrit(max(n - 1, 1), 0.975))
        if n >= MIN_PROMPTS:
            variance = squares - shift**2
            variance = np.where(variance > 1e-12 * squares, variance, 0.0)  # a draw of equal values, but for rounding
            spread = np.sqrt(variance / (n - 1))
            ratio = np.divide(shift, spread, out=np.zeros_like(shift), where=spread > 0)
            low, high = np.quantile(ratio, [0.025, 0.975], axis=0)
            below, above = np.clip(high, below, _WIDEST * below), np.clip(-low, above, _WIDEST * above)
        hi = _upper(mean, se, above, positive=positive)
        return Estimates(value=mean, se=se, lo=mean - below * se - widen, hi=hi + widen), mean + shift

    def _mean_of_clusters(
        self,
        values: Floats,
        widen: Floats | float,
        known: NDArray[np.bool_],
        group: NDArray[np.int64],
        *,
        positive: bool,
    ) -> tuple[Estimates, Floats]:
        """The mean over prompts where whole clusters are random.

        Variance: sum over clusters of (sum of deviations)^2 / (1 - w), over n^2, w the cluster's share of the prompts
        (Bell and McCaffrey 2002, which takes out the bias of few clusters); Student's t with G - 1 degrees of freedom,
        G = 1 / sum w^2 the number of clusters of equal size that they are worth.
        """
        x = values[known]
        size = np.bincount(group).astype(np.float64)
        share, mean = size / x.shape[0], x.mean(axis=0)
        worth = 1 / float((share**2).sum())
        sums = np.zeros((size.size, x.shape[1]))
        np.add.at(sums, group, x - mean)
        if worth <= 1.0:
            se = np.full_like(mean, np.nan)
        else:
            se = np.sqrt((sums**2 / (1 - share)[:, None]).sum(axis=0)) / x.shape[0]
        few = _STRETCH_FEW if worth < MIN_PROMPTS else 1.0
        reach = np.full_like(mean, few * stdtrit(max(worth - 1, 1), 0.975))
        hi = _upper(mean, se, reach, positive=positive)
        shift = self._moments(x - mean, known)[0] * np.sqrt(worth / max(worth - 1, 1))
        return Estimates(value=mean, se=se, lo=mean - reach * se - widen, hi=hi + widen), mean + shift

    def _moments(self, centred: Floats, known: NDArray[np.bool_]) -> tuple[Floats, Floats]:
        """Mean and mean square of values in each draw, (R, B) each, a few draws at a time to stay in memory."""
        both = np.concatenate([centred, centred**2], axis=1)
        means = np.empty((self.counts.shape[0], both.shape[1]))
        step = max(1, _CELLS // known.size)
        for start in range(0, means.shape[0], step):
            drawn_here = self.counts[start : start + step]
            counts = (drawn_here if known.all() else drawn_here[:, known]).astype(np.float64)
            drawn = counts.sum(axis=1, keepdims=True)
            drawn = np.where(drawn > 0, drawn, 1.0)  # no known prompt in a draw: its mean stays where it was
            means[start : start + step] = counts @ both / drawn
        return means[:, : centred.shape[1]], means[:, centred.shape[1] :]


@dataclasses.dataclass(kw_only=True, eq=False)
class Answers:
    """Prompts as the whole population: only the answers are random.

    Collects delete-one deviations of Q stacked quantities.

    ``covariance`` (Q, Q) is the sum over prompts of the jackknife covariances, ``fourth`` (Q,) what the degrees of
    freedom need, ``n`` (Q,) the number of prompts that have each quantity.
    """

    covariance: Floats
    fourth: Floats
    n: Floats

    @classmethod
    def of(cls, n: Floats) -> Answers:
        """Nothing collected yet; ``n`` has shape (Q,). An OptionError where Q x Q numbers take more than 200 MB."""
        if n.size > _MOST_QUANTITIES:
            at_most = f"at most {_MOST_QUANTITIES // 4} at a time with fixed prompts"
            raise OptionError(message("beta", expected=at_most, got=n.size // 4, fix="ask in several calls"))
        return cls(covariance=np.zeros((n.size, n.size)), fourth=np.zeros(n.size), n=n)

    def add(self, deviations: Floats) -> None:
        """Add prompts: delete-one estimates minus their mean, shape (P, K, Q); 0 where a prompt lacks the quantity."""
        n_samples = deviations.shape[1]
        scale = (n_samples - 1) / n_samples
        flat = deviations.reshape(-1, deviations.shape[-1])
        self.covariance += scale * flat.T @ flat
        self.fourth += ((scale * (deviations**2).sum(axis=1)) ** 2).sum(axis=0) / (n_samples - 1)

    def means(
        self, values: Floats, *, widen: Floats, noise: Floats, rng: np.random.Generator, n_draws: int
    ) -> tuple[Estimates, Floats]:
        """Q means with 95 % intervals, and draws of shape (R, Q).

        Parameters
        ----------
        values
            The means over prompts, shape (Q,).
        widen
            Shape (Q,), added to the interval on both sides.
        noise
            Shape (Q,), the sum over prompts of the variance that random halves of the answers show.

        Returns
        -------
        Estimates of shape (Q,), and draws of shape (R, Q).

        Notes
        -----
        Variance of a mean: the sum over prompts of (K - 1) / K sum_i deviation_i^2, over n^2 (Tukey's jackknife), or
        that of the halves where it is larger: taking out the bias adds noise of its own, which the deviations of the
        plain estimate do not have. Student's t with Satterthwaite's degrees of freedom; draws from the normal law of
        that covariance.
        """
        variance = np.diag(self.covariance)
        grown = np.divide(noise, variance, out=np.ones_like(variance), where=variance > 0)
        scale = np.sqrt(np.maximum(grown, 1.0)) / self.n
        covariance = self.covariance * np.outer(scale, scale)
        se = np.sqrt(np.diag(covariance))
        df = np.divide(variance**2, self.fourth, out=np.ones_like(variance), where=self.fourth > 0)
        reach = stdtrit(np.maximum(df, 1.0), 0.975) * se + widen
        eigenvalues, vectors = np.linalg.eigh(covariance)
        normal = rng.standard_normal((n_draws, values.size))
        draws = values + normal @ (vectors * np.sqrt(np.maximum(eigenvalues, 0.0))).T
        return Estimates(value=values, se=se, lo=values - reach, hi=values + reach), draws
