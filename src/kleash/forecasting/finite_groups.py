"""The fixed point of GRPO with standardised rewards for groups of G answers, for many prompts at once."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

__all__ = ["finite_group_weights"]

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]

_MAX_STATES = 2_000  # compositions of a group that are enumerated; beyond that groups are drawn
_MAX_ITERATIONS = 500
_DRAWN_GROUPS = 256  # groups drawn per prompt where they cannot be enumerated; common random numbers across betas
_LONGEST_NEWTON = 4.0  # times the residual: a longer step is near a fold, where the root next to the start may end


class Pushed(NamedTuple):
    """Expected standardised advantage of each score (P, C), and its derivative in the log policy (P, C, C) or None."""

    advantage: Floats
    slope: Floats | None


Advantage = Callable[[Floats, Rows], Pushed]
"""Of log policies (A, C) of the prompts with these indices (A,)."""


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
    itself. The root is followed from the reference (beta infinite) downwards. Groups are enumerated by their
    composition over distinct scores up to a limit, and drawn with common random numbers beyond it. Prompts with as many
    distinct scores are solved together.

    A group whose rewards are all equal has advantage 0.
    """
    result = np.full((*reward.shape, beta.size), 1.0 / reward.shape[1])  # one score: every group is all equal
    distinct = [np.unique(values, return_inverse=True, return_counts=True) for values in reward]
    sizes = np.array([scores.size for scores, _, _ in distinct])
    drawn = {n: _n_states(group_size - 1, n) > _MAX_STATES for n in sorted({*sizes.tolist()})}
    groups = {p: _drawn_groups(group_size - 1, rng) for p, size in enumerate(sizes.tolist()) if drawn[size]}
    for size in [n for n in drawn if n > 1]:
        prompts = np.flatnonzero(sizes == size)
        scores = np.array([distinct[p][0] for p in prompts])
        counts = np.array([distinct[p][2] for p in prompts])
        index = np.array([distinct[p][1] for p in prompts])
        scores = (scores - scores.mean(axis=1, keepdims=True)) / scores.std(axis=1, keepdims=True)
        if drawn[size]:
            advantage = _over_drawn(scores, np.array([groups[p] for p in prompts.tolist()]), group_size)
        else:
            advantage = _over_states(scores, group_size)
        tolerance = 8.0 / _DRAWN_GROUPS if drawn[size] else 1e-6  # drawn groups move in steps: nearer, it only jitters
        log_reference = np.log(counts / reward.shape[1])
        log_policy = log_reference
        for column in np.argsort(-beta):
            log_policy = _follow(log_policy, log_reference, advantage, float(beta[column]), tolerance)
            per_sample = np.exp(log_policy - np.log(counts))
            result[prompts, :, column] = np.take_along_axis(per_sample, index, axis=1)
    return result


def _n_states(n_others: int, n_scores: int) -> float:
    """Compositions of so many others over so many scores."""
    return float(np.exp(gammaln(n_others + n_scores) - gammaln(n_others + 1) - gammaln(n_scores)))


def _drawn_groups(n_others: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """For each of the G - 1 others a stratum of the unit interval in every drawn group, (G - 1, D)."""
    return rng.permuted(np.tile(np.arange(_DRAWN_GROUPS), (n_others, 1)), axis=1)


def _over_states(scores: Floats, group_size: int) -> Advantage:
    """Advantages of standardised scores (P, C), over all compositions of the others."""
    n_others, n_scores = group_size - 1, scores.shape[1]
    walls = np.array(list(itertools.combinations(range(n_others + n_scores - 1), n_scores - 1)), dtype=np.int64)
    walls = walls.reshape(-1, n_scores - 1)
    edges = np.pad(walls, ((0, 0), (1, 1)), constant_values=((-1, -1), (-1, n_others + n_scores - 1)))
    states = (np.diff(edges, axis=1) - 1).astype(np.float64)  # (S, C), compositions of the G - 1 others
    log_ways = gammaln(n_others + 1) - gammaln(states + 1).sum(axis=1)
    table = _advantages(scores @ states.T, scores**2 @ states.T, scores, group_size)  # (P, C, S)

    def advantage(log_policy: Floats, rows: Rows) -> Pushed:
        chance = np.exp(log_ways + log_policy @ states.T)
        parts = table[rows] * chance[:, None, :]
        push = parts.sum(axis=2)
        slope = parts @ states - n_others * push[:, :, None] * np.exp(log_policy)[:, None, :]
        return Pushed(push, slope)

    return advantage


def _over_drawn(scores: Floats, groups: NDArray[np.int64], group_size: int) -> Advantage:
    """Advantages of standardised scores (P, C), over drawn groups (P, G - 1, D)."""
    middle = (np.arange(_DRAWN_GROUPS) + 0.5) / _DRAWN_GROUPS

    def advantage(log_policy: Floats, rows: Rows) -> Pushed:
        below = np.cumsum(np.exp(log_policy), axis=1)[:, :-1, None] < middle
        strata = np.take_along_axis(scores[rows], below.sum(axis=1), axis=1)  # (A, D), the score of each stratum
        chosen = groups[rows]
        others = np.take_along_axis(strata, chosen.reshape(rows.size, -1), axis=1).reshape(chosen.shape)
        table = _advantages(others.sum(axis=1), (others**2).sum(axis=1), scores[rows], group_size)
        return Pushed(table.mean(axis=2), None)

    return advantage


def _advantages(total: Floats, squares: Floats, scores: Floats, group_size: int) -> Floats:
    """(own score - group mean) / group SD by the sums over the others: (P, S), (P, S), (P, C) -> (P, C, S)."""
    own = scores[:, :, None]
    mean = (total[:, None, :] + own) / group_size
    variance = (squares[:, None, :] + own**2 - group_size * mean**2) / (group_size - 1)
    flat = variance <= 1e-12 * (1.0 + mean**2)  # rounding of an all-equal group: the scores are standardised
    return np.where(flat, 0.0, (own - mean) / np.sqrt(np.where(flat, 1.0, variance)))


def _follow(log_policy: Floats, log_reference: Floats, advantage: Advantage, beta: float, tolerance: float) -> Floats:
    """From log policies (P, C) to the fixed point log pi = log reference + A / beta, normalised, next to each.

    Notes
    -----
    A damped iteration, whose step halves whenever the move turns back on itself and grows slowly otherwise: the root it
    follows is the one next to the start, and where that root ends it moves on to the next. Newton's step is taken in
    its place where it goes the same way and not much further, so never across a fold. It ends when a full step would
    move no probability by more than ``tolerance`` times the largest distance from the reference.
    """
    log_policy = log_policy.copy()
    step, last = np.full(len(log_policy), 0.25), np.zeros_like(log_policy)
    rows = np.arange(len(log_policy))
    for _ in range(_MAX_ITERATIONS):
        here, policy = log_policy[rows], np.exp(log_policy[rows])
        pushed = advantage(here, rows)
        wanted = _normalised(log_reference[rows] + pushed.advantage / beta)
        residual = wanted - here
        turned_back = (policy * residual * last[rows]).sum(axis=1) < 0.0
        step[rows] = np.where(turned_back, 0.5 * step[rows], np.minimum(1.1 * step[rows], 1.0))
        move = step[rows, None] * residual
        if pushed.slope is not None:
            move = _newton(residual, wanted, pushed.slope / beta, policy, otherwise=move)
        here = _normalised(here + move)
        log_policy[rows], last[rows] = here, residual
        moved = np.max(np.abs(here - log_reference[rows]) * policy, axis=1)
        rows = rows[np.max(np.abs(residual) * policy, axis=1) > tolerance * moved]
        if not rows.size:
            break
    return log_policy


def _normalised(log_policy: Floats) -> Floats:
    """Log policies (A, C) whose probabilities sum to one."""
    below = log_policy - log_policy.max(axis=1, keepdims=True)
    return np.asarray(below - np.log(np.exp(below).sum(axis=1, keepdims=True)))


def _newton(residual: Floats, wanted: Floats, slope: Floats, policy: Floats, *, otherwise: Floats) -> Floats:
    """Newton's step (A, C) for the residual of the fixed point, or another where it is long or turns back."""
    jacobian = np.eye(policy.shape[1]) - slope + np.exp(wanted)[:, None, :] @ slope
    usable = np.abs(np.linalg.det(jacobian)) > np.finfo(float).tiny
    jacobian[~usable] = np.eye(policy.shape[1])
    step = np.linalg.solve(jacobian, residual[:, :, None])[:, :, 0]
    same_way = (policy * step * residual).sum(axis=1) > 0.0
    size, largest = np.max(np.abs(step) * policy, axis=1), np.max(np.abs(residual) * policy, axis=1)
    taken = usable & same_way & (size <= _LONGEST_NEWTON * largest)
    return np.where(taken[:, None], step, otherwise)
