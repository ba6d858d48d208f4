"""The closed form: for a given judge and reference, the best policy at every beta, exactly.

The policy that maximises ``E[reward] - beta KL(policy || reference)`` is the tilt
``pi_beta(y|x) = reference(y|x) exp(reward(x, y) / beta) / Z``. All functions work for many betas at once, in log
space, with beta 0 (the argmax of the reward, ties split by the reference) and beta infinity (the reference) as the
limits they are.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp

from kleash import _checks
from kleash.kl import k3
from kleash.worlds import World

__all__ = ["BestOfN", "Moments", "best_of_n", "kl_terms", "log_partition", "moments", "stationary_betas", "tilt_policy"]

Floats = NDArray[np.float64]


def tilt_policy(world: World, beta: ArrayLike) -> Floats:
    """Log probabilities of the optimal policy for each beta.

    Parameters
    ----------
    world
        The world; P prompts, Y answers.
    beta
        Coefficients in reward units per nat, shape (B,); 0 and infinity allowed.

    Returns
    -------
    Shape (B, P, Y), natural logs; ``-inf`` where the reference is zero and, at beta 0, below the largest reward.

    Raises
    ------
    OptionError
        A beta is negative or NaN.

    References
    ----------
    Korbak, Perez, Buckley 2022, arXiv 2205.11275.

    Examples
    --------
    >>> from kleash.worlds import two_arm
    >>> np.exp(tilt_policy(two_arm(0.2), [np.inf, 1.0, 0.0]))[:, 0, 1].round(4)
    array([0.2   , 0.4046, 1.    ])
    """
    log_ratio, _, _ = _log_ratio(world, _checks.betas(beta))
    return np.asarray(world.log_reference + log_ratio)


def log_partition(world: World, beta: ArrayLike) -> Floats:
    """log Z = log E_reference[exp(reward / beta)] for each beta and prompt, shape (B, P), in nats.

    Infinite at beta 0 unless the largest reward is 0 or less (then: log reference mass of reward 0, or ``-inf``).

    Examples
    --------
    >>> from kleash.worlds import two_arm
    >>> log_partition(two_arm(0.2), 1.0).round(6)
    array([[0.295395]])
    """
    array = _checks.betas(beta)
    _, log_norm, top = _log_ratio(world, array)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        shift = np.where(top == 0.0, 0.0, top / array[:, None])
    return np.asarray(log_norm + shift)


def _log_ratio(world: World, beta: Floats) -> tuple[Floats, Floats, Floats]:
    """log(policy / reference), (B, P, Y); log E_reference[exp((reward - top) / beta)], (B, P); the top rewards, (P,).

    The ratio does not go through the log probabilities: near the reference it is of the size of 1 / beta and would
    drown in their rounding.
    """
    possible = np.isfinite(world.log_reference)
    top = np.where(possible, world.reward, -np.inf).max(axis=1)
    below = np.where(possible, world.reward - top[:, None], 0.0)  # <= 0, exactly 0 at the top
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        push = np.where(below == 0.0, 0.0, below / beta[:, None, None])
    push = np.where(possible, push, -np.inf)
    shrunk = np.einsum("py,bpy->bp", np.exp(world.log_reference), np.expm1(push))  # E[exp(push)] - 1, from -1 to 0
    near = np.log1p(np.maximum(shrunk, -0.5))
    far = logsumexp(world.log_reference + push, axis=-1)
    log_norm = np.where(shrunk > -0.5, near, far)
    return np.asarray(push - log_norm[..., None]), np.asarray(log_norm), np.asarray(top)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Moments:
    """Exact expectations along the dial; every array has shape (B,), and ``per_prompt_kl`` (B, P).

    ``reward`` and ``gold`` in their own units, ``kl`` in nats per answer, ``chi2`` the chi-squared divergence of the
    tilt from the reference (infinite where it leaves the range of float64), ``reward_variance`` and
    ``gold_covariance`` the prompt-weighted means of the within-prompt Var(reward) and Cov(gold, reward) under the
    tilt: the slopes of reward and gold along lambda = 1 / beta.
    """

    beta: Floats
    reward: Floats
    gold: Floats
    kl: Floats
    chi2: Floats
    reward_variance: Floats
    gold_covariance: Floats
    per_prompt_kl: Floats


def moments(world: World, beta: ArrayLike) -> Moments:
    """Judge's score, true quality, KL and their slopes at the exact optimum of each beta.

    Parameters
    ----------
    world
        The world; P prompts, Y answers.
    beta
        Coefficients in reward units per nat, shape (B,); 0 and infinity allowed.

    Returns
    -------
    Moments
        An entry per beta.

    Notes
    -----
    KL = sum p log(p / reference) - p + reference, chi-squared = sum reference (p / reference - 1)^2: sums of terms that
    are never negative, so both keep their relative accuracy near the reference, where ``lambda E[r] - log Z`` cancels.
    d E[r] / d lambda = Var(r); d E[g] / d lambda = Cov(g, r); d KL / d lambda = lambda Var(r).

    Examples
    --------
    >>> from kleash.worlds import kitchen
    >>> m = moments(kitchen(), [15.0, 60.0])
    >>> m.reward.round(2), m.gold.round(3)
    (array([12.88,  9.68]), array([1.541, 1.766]))
    """
    array = _checks.betas(beta)
    log_ratio, _, _ = _log_ratio(world, array)
    reference = np.exp(world.log_reference)
    policy = np.exp(world.log_reference + log_ratio)
    weight = world.prompt_weight
    reward = np.einsum("bpy,py->bp", policy, world.reward)
    gold = np.einsum("bpy,py->bp", policy, world.gold)
    kl = kl_terms(policy, reference, log_ratio).sum(axis=-1)
    centred = world.reward - reward[..., None]
    return Moments(
        beta=array,
        reward=reward @ weight,
        gold=gold @ weight,
        kl=kl @ weight,
        chi2=_chi2_terms(policy, reference, log_ratio).sum(axis=-1) @ weight,
        reward_variance=np.einsum("bpy,bpy->bp", policy, centred**2) @ weight,
        gold_covariance=np.einsum("bpy,bpy,bpy->bp", policy, centred, world.gold - gold[..., None]) @ weight,
        per_prompt_kl=kl,
    )


def _chi2_terms(policy: Floats, reference: Floats, log_ratio: Floats) -> Floats:
    """q (p / q - 1)^2 for each answer, with p in place of q where the ratio is large."""
    with np.errstate(over="ignore", invalid="ignore"):
        excess = np.expm1(log_ratio)
        above = policy * excess * -np.expm1(-log_ratio)
    return np.asarray(np.where(log_ratio > 0, above, reference * np.minimum(excess, 0.0) ** 2))


def stationary_betas(world: World, *, n_grid: int = 400) -> Floats:
    """Betas at which the gold is at a local maximum along the dial: roots of Cov(gold, reward) that fall through zero.

    Parameters
    ----------
    world
        The world.
    n_grid
        Number of points of the logarithmic grid on which signs are looked for, from where no answer has moved by 1 % to
        lambda = 1e4 / SD(reward). Two roots closer than a step can be missed, and roots beyond the grid are.

    Returns
    -------
    Ascending array of betas, possibly empty; both ends of the dial (0 and infinity) are further candidates, not listed.

    Notes
    -----
    d E_lambda[gold] / d lambda = Cov_lambda(gold, reward), prompt-weighted: a maximum along lambda = 1 / beta is where
    the covariance falls through zero as lambda rises. A root where it rises through zero is a minimum.

    Examples
    --------
    >>> from kleash.worlds import kitchen
    >>> stationary_betas(kitchen())
    array([], dtype=float64)
    >>> stationary_betas(kitchen(oversalt=0.0005)).round(2)
    array([7.25])
    """
    from scipy.optimize import brentq  # here, because importing it costs as much as a short sweep

    def slope(log_lambda: float) -> float:
        return float(moments(world, np.exp(-log_lambda)).gold_covariance[0])

    spread, widest = reward_spread(world)
    if spread == 0.0:
        return np.empty(0)
    low = np.log(min(1e-4 / spread, 1e-2 / widest))
    grid = np.linspace(low, np.log(1e4 / spread), _checks.integer(n_grid, name="n_grid", at_least=2))
    covariance = moments(world, np.exp(-grid)).gold_covariance
    # past the last cheat, or where gold never differs, nothing moves any more: a sign is rounding, not a root
    negligible = 1e-12 * np.abs(covariance).max() + 1e-14 * spread * np.abs(world.gold).max()
    grid, covariance = grid[np.abs(covariance) > negligible], covariance[np.abs(covariance) > negligible]
    falls = np.flatnonzero((covariance[:-1] > 0) & (covariance[1:] < 0))
    roots = [brentq(slope, grid[i], grid[i + 1], xtol=1e-13) for i in falls]
    return np.exp(-np.sort(np.asarray(roots))[::-1]) if roots else np.empty(0)


def reward_spread(world: World) -> tuple[float, float]:
    """The two scales of a dial, in reward units: SD of the reward under the reference, and its widest range.

    Both are within a prompt. At betas far above the range no answer, however rare, has moved; the SD does not see
    answers that are rare enough.
    """
    possible = np.isfinite(world.log_reference)
    top = np.where(possible, world.reward, -np.inf).max(axis=1)
    bottom = np.where(possible, world.reward, np.inf).min(axis=1)
    widest = float(np.max(top - bottom))
    return float(np.sqrt(moments(world, np.inf).reward_variance[0])) if widest > 0 else 0.0, widest


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class BestOfN:
    """Exact best-of-n; arrays of shape (M,), one entry per n. ``kl_bound`` is log n - (n - 1) / n."""

    n: NDArray[np.int64]
    reward: Floats
    gold: Floats
    kl: Floats
    kl_bound: Floats


def best_of_n(world: World, n: ArrayLike) -> BestOfN:
    """The policy that draws n reference answers and keeps the one the judge likes best; exact, ties included.

    Parameters
    ----------
    world
        The world.
    n
        Numbers of draws, shape (M,), each at least 1. Among equal scores the first drawn is kept.

    Returns
    -------
    BestOfN
        Arrays with an entry per n.

    Notes
    -----
    With answers grouped by score, F the reference mass at or below a score and F_- the mass below it, the winner has
    that score with probability F^n - F_-^n and is distributed as the reference within the class. KL = sum
    P log(P / Q) over classes; ``log n - (n - 1) / n`` is only its upper bound, approached when there are no ties and no
    single answer has much mass.

    References
    ----------
    Beirami et al. 2024, arXiv 2401.01879.

    Examples
    --------
    >>> from kleash.worlds import two_arm
    >>> b = best_of_n(two_arm(0.5), 4)
    >>> b.kl.round(3), b.kl_bound.round(3)
    (array([0.459]), array([0.636]))
    """
    counts = np.asarray([_whole(k) for k in np.atleast_1d(np.asarray(n)).tolist()], dtype=np.int64)
    reward, gold, kl = (np.zeros((counts.size, world.n_prompts)) for _ in range(3))
    reference = np.exp(world.log_reference)
    for prompt in range(world.n_prompts):
        mass = reference[prompt]
        scores, index = np.unique(world.reward[prompt][mass > 0], return_inverse=True)
        q = np.bincount(index, weights=mass[mass > 0]).astype(np.float64)
        class_gold = np.bincount(index, weights=(mass * world.gold[prompt])[mass > 0]) / q
        winner = class_probabilities(q, counts)
        reward[:, prompt] = winner @ scores
        gold[:, prompt] = winner @ class_gold
        with np.errstate(divide="ignore"):
            log_ratio = np.log(winner) - np.log(q)
        kl[:, prompt] = kl_terms(winner, q, log_ratio).sum(axis=1)
    return BestOfN(
        n=counts,
        reward=reward @ world.prompt_weight,
        gold=gold @ world.prompt_weight,
        kl=kl @ world.prompt_weight,
        kl_bound=np.log(counts) - (counts - 1) / counts,
    )


def _whole(n: object) -> int:
    """A number of draws; 4.0 is 4, and what is no whole number is left for the check to refuse."""
    return _checks.integer(int(n) if isinstance(n, float) and n.is_integer() else n, name="n", at_least=1)


def class_probabilities(mass: Floats, n: NDArray[np.int64]) -> Floats:
    """Probability that the best of n draws falls in each score class, shape (..., M, C).

    Parameters
    ----------
    mass
        Reference mass of the classes in ascending order of score, shape (..., C).
    n
        Numbers of draws, shape (M,).

    Returns
    -------
    Shape (..., M, C); rows sum to 1.
    """
    at_or_below = np.minimum(np.cumsum(mass, axis=-1), 1.0)
    at_or_below[..., -1] = 1.0
    below = np.concatenate([np.zeros_like(mass[..., :1]), at_or_below[..., :-1]], axis=-1)
    power = n[:, None]
    return np.asarray(at_or_below[..., None, :] ** power - below[..., None, :] ** power)


def kl_terms(policy: ArrayLike, reference: ArrayLike, log_ratio: ArrayLike) -> Floats:
    """``p log(p / q) - p + q`` for each answer of enumerated distributions; their sum is KL(policy || reference).

    Parameters
    ----------
    policy, reference
        Probabilities p and q, shapes that broadcast.
    log_ratio
        log(p / q); anything where p is 0.

    Returns
    -------
    Terms in nats, none negative: their sum keeps its relative accuracy for the smallest KL, where ``sum p log(p / q)``
    cancels. Where |log ratio| is small the term is ``p k3(log ratio)``.

    Examples
    --------
    >>> p, q = np.array([0.6, 0.3, 0.1]), np.array([0.5, 0.3, 0.2])
    >>> round(float(kl_terms(p, q, np.log(p / q)).sum()), 6)
    0.040078
    """
    p, q, x = (np.asarray(values, dtype=np.float64) for values in (policy, reference, log_ratio))
    near = p * k3(np.maximum(x, -1.0))
    far = np.multiply(p, x, out=np.zeros(np.broadcast_shapes(p.shape, x.shape)), where=p > 0) - p + q
    return np.asarray(np.where(x > -1.0, near, far))
