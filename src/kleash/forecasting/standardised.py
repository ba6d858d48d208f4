"""The policy that GRPO with standardised rewards converges to, from reference samples.

Dividing each group's advantages by the group's standard deviation changes the objective: in every prompt the
trainer's beta acts like ``beta * sd`` with the SD of the policy being trained, so no one number translates it to the
tilt's beta. Here the trainer's own fixed point is computed per prompt; for groups of few answers in ``finite_groups``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

__all__ = ["large_group_weights"]

Floats = NDArray[np.float64]

_GRID = 200  # points on which the first crossing is looked for, before bisection
_CELLS = 200_000  # numbers of one working array


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
    step = max(1, _CELLS // (reward.shape[1] * max(_GRID, beta.size)))
    parts = [_weights(reward[start : start + step], beta) for start in range(0, len(reward), step)]
    return np.concatenate(parts)


def _weights(reward: Floats, beta: Floats) -> Floats:
    """The same for a few prompts at a time."""
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
