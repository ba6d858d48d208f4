"""The policy that GRPO with standardised rewards converges to, from reference samples.

Dividing each group's advantages by the group's standard deviation changes the objective: in every prompt the
trainer's beta acts like ``beta * sd`` with the SD of the policy being trained, so no one number translates it to the
tilt's beta. Here the trainer's own fixed point is computed per prompt.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp, softmax

__all__ = ["finite_group_weights", "large_group_weights"]

Floats = NDArray[np.float64]

_GRID = 200  # points on which the first crossing is looked for, before bisection
_MAX_STATES = 2_000  # compositions of a group that are enumerated; beyond that groups are drawn
_MAX_ITERATIONS = 500
_DRAWN_GROUPS = 256  # groups drawn per prompt where they cannot be enumerated; common random numbers across betas


def large_group_weights(reward: Floats, beta: Floats) -> Floats:
    """Weights of each sample at the fixed point, in the limit of large groups.

    Parameters
    ----------
    reward
        Shape (P, K), reward units.
    beta
        The trainer's coefficients (dimensionless: standardised reward per nat), shape (B,), above 0.

    Returns
    -------
    Shape (P, K, B), summing to one over K.

    Notes
    -----
    The fixed point is a tilt with its own lambda in every prompt, the smallest root of lambda * sd_lambda(reward) = 1
    / beta: the one reached from the reference. Where there is none the group collapses onto its best-scored answers
    (lambda infinite). For a binary reward: odds(p) = odds(p_ref) exp(1 / (beta sqrt(p (1 - p)))), the maximum of 2
    arcsin sqrt(p) - beta KL.

    References
    ----------
    Mroueh 2025, arXiv 2503.06639; Yao et al. 2026, arXiv 2601.10201 (binary reward). General rewards: ours.
    """
    target = 1.0 / beta
    below = reward - reward.max(axis=1, keepdims=True)
    spread = below.std(axis=1)
    moves = spread > 0
    gap = np.where(below < 0, -below, np.inf).min(axis=1)
    start = np.log(1e-3 * min(float(target.min()), 1.0)) - np.log(np.where(moves, spread, 1.0))
    stop = np.log(60.0) - np.log(np.where(moves, gap, 1.0))  # past it the second-best answer weighs less than 1e-26
    grid = start[:, None] + np.linspace(0.0, 1.0, _GRID) * np.maximum(stop - start, 0.0)[:, None]
    reached = np.maximum.accumulate(
        _pull(below, grid), axis=1
    )  # (P, G), non-decreasing: its first crossing is the root
    first = (reached[:, :, None] < target).sum(axis=1)  # (P, B), _GRID where the pull never suffices
    collapsed = (first == _GRID) & moves[:, None]
    rows = np.arange(len(below))[:, None]
    high = grid[rows, np.minimum(first, _GRID - 1)]
    low = grid[rows, np.maximum(first - 1, 0)]
    for _ in range(45):
        middle = 0.5 * (low + high)
        short = _pull(below, middle) < target
        low, high = np.where(short, middle, low), np.where(short, high, middle)
    with np.errstate(over="ignore"):
        push = below[:, :, None] * np.exp(high)[:, None, :]
    weights = softmax(np.where(moves[:, None, None], push, 0.0), axis=1)
    top = (below == 0).astype(np.float64)
    return np.asarray(np.where(collapsed[:, None, :], (top / top.sum(axis=1, keepdims=True))[:, :, None], weights))


def _pull(below: Floats, log_lambda: Floats) -> Floats:
    """lambda * sd_lambda(reward) for each prompt and lambda: (P, K), (P, L) -> (P, L)."""
    lam = np.exp(log_lambda)
    weights = softmax(below[:, :, None] * lam[:, None, :], axis=1)
    mean = (weights * below[:, :, None]).sum(axis=1)
    second = (weights * (below[:, :, None] - mean[:, None, :]) ** 2).sum(axis=1)
    return np.asarray(lam * np.sqrt(second))


def finite_group_weights(reward: Floats, beta: Floats, *, group_size: int, rng: np.random.Generator) -> Floats:
    """Weights of each sample at the fixed point for groups of G answers, as trainers draw them.

    Parameters
    ----------
    reward
        Shape (P, K), reward units.
    beta
        The trainer's coefficients, shape (B,), above 0.
    group_size
        Answers per group, G, at least 2; the SD inside a group is the one with G - 1 in the denominator.
    rng
        Draws groups where there are too many compositions to enumerate.

    Returns
    -------
    Shape (P, K, B).

    Notes
    -----
    The expected update with an unbiased reverse-KL gradient vanishes where log(pi / reference) = A(r) / beta + const,
    with A(r) the expected standardised advantage of an answer of reward r among G - 1 others drawn from the policy
    itself. The root is followed from the reference (beta infinite) downwards by a damped fixed-point iteration.
    Groups are enumerated by their composition over distinct scores up to a limit, and drawn with common random
    numbers beyond it.

    A group whose rewards are all equal has advantage 0.
    """
    order = np.argsort(-beta)
    result = np.empty((*reward.shape, beta.size))
    for prompt, values in enumerate(reward):
        scores, index, counts = np.unique(values, return_inverse=True, return_counts=True)
        if scores.size == 1:  # every group is all equal: the advantage is 0
            result[prompt] = 1.0 / values.size
            continue
        log_reference = np.log(counts / values.size)
        advantage, tolerance = _expected_advantage((scores - scores.mean()) / (scores.std() or 1.0), group_size, rng)
        log_policy = log_reference.copy()
        for column in order:
            log_policy = _follow(log_policy, log_reference, advantage, float(beta[column]), tolerance)
            result[prompt, :, column] = np.exp(log_policy - np.log(counts))[index]
    return result


def _expected_advantage(
    scores: Floats, group_size: int, rng: np.random.Generator
) -> tuple[Callable[[Floats], Floats], float]:
    """A function of the log policy over C scores, the expected standardised advantage of each; and how exact it is."""
    n_others, n_scores = group_size - 1, scores.size
    n_states = np.exp(gammaln(n_others + n_scores) - gammaln(n_others + 1) - gammaln(n_scores))
    if n_states <= _MAX_STATES:
        walls = np.array(list(itertools.combinations(range(n_others + n_scores - 1), n_scores - 1)), dtype=np.int64)
        walls = walls.reshape(-1, n_scores - 1)
        edges = np.pad(walls, ((0, 0), (1, 1)), constant_values=((-1, -1), (-1, n_others + n_scores - 1)))
        states = np.diff(edges, axis=1) - 1  # (S, C), compositions of the G - 1 others
        log_ways = gammaln(n_others + 1) - gammaln(states + 1).sum(axis=1)
        table = _advantages(states @ scores, states @ scores**2, scores, group_size)

        def enumerated(log_policy: Floats) -> Floats:
            with np.errstate(invalid="ignore"):
                exponent = np.where(states > 0, states * log_policy, 0.0).sum(axis=1)
            return np.asarray(np.exp(log_ways + exponent) @ table)

        return enumerated, 1e-6
    uniform = rng.permuted(np.tile((np.arange(_DRAWN_GROUPS) + 0.5) / _DRAWN_GROUPS, (n_others, 1)), axis=1)

    def drawn(log_policy: Floats) -> Floats:
        cumulative = np.cumsum(np.exp(log_policy))
        others = scores[np.minimum(np.searchsorted(cumulative, uniform), n_scores - 1)]
        return np.asarray(_advantages(others.sum(axis=0), (others**2).sum(axis=0), scores, group_size).mean(axis=0))

    return drawn, 8.0 / _DRAWN_GROUPS  # drawn groups move in steps: nearer than this the iteration only jitters


def _advantages(total: Floats, squares: Floats, scores: Floats, group_size: int) -> Floats:
    """(own score - group mean) / group SD for groups given by the sums over the others: (S,), (S,), (C,) -> (S, C)."""
    mean = (total[:, None] + scores) / group_size
    variance = (squares[:, None] + scores**2 - group_size * mean**2) / (group_size - 1)
    flat = variance <= 1e-12 * (1.0 + mean**2)  # rounding of an all-equal group: the scores are standardised
    return np.where(flat, 0.0, (scores - mean) / np.sqrt(np.where(flat, 1.0, variance)))


def _follow(
    log_policy: Floats,
    log_reference: Floats,
    advantage: Callable[[Floats], Floats],
    beta: float,
    tolerance: float,
) -> Floats:
    """Damped iteration to the fixed point log pi = log reference + A / beta, normalised.

    The step halves whenever the move turns back on itself and grows slowly otherwise, so the root followed stays the
    one next to the start. It ends when a full step would move no probability by more than ``tolerance`` times the
    largest distance from the reference.
    """
    step = 0.25
    last = np.zeros_like(log_policy)
    for _ in range(_MAX_ITERATIONS):
        wanted = log_reference + advantage(log_policy) / beta
        residual = wanted - logsumexp(wanted) - log_policy
        policy = np.exp(log_policy)
        turned_back = float((policy * residual * last).sum()) < 0.0
        step = 0.5 * step if turned_back else min(1.1 * step, 1.0)
        log_policy = log_policy + step * residual
        log_policy -= logsumexp(log_policy)
        last = residual
        moved = np.max(np.abs(log_policy - log_reference) * policy)
        if np.max(np.abs(residual) * policy) <= tolerance * moved:
            break
    return log_policy
