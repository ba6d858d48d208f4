"""The default grid of betas: from where nothing moves to past what the samples can show."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kleash.samples import Samples

__all__ = ["default_betas"]

Floats = NDArray[np.float64]

N_BETAS = 48
_NO_EFFECT = 1e-3  # nats: a KL at which nothing has moved yet
_ENOUGH_PROMPTS = 400  # prompts that suffice to place a grid


def default_betas(samples: Samples) -> Floats:
    """Betas from 'no effect' to past the horizon, ascending, rounded to three digits.

    Parameters
    ----------
    samples
        Grouped by prompt. Up to 400 prompts, evenly spaced, are looked at.

    Returns
    -------
    Shape (B,), reward units per nat; a single 1.0 if the judge scores all answers to a prompt alike.

    Notes
    -----
    The mean over prompts of the plug-in KL, lambda E r - log E exp(lambda r), rises with lambda = 1 / beta. The grid
    starts where it is 0.001 nats and ends where it has come within 5 % of its largest value, which is log K per
    prompt without ties.
    """
    chosen = np.unique(np.linspace(0, samples.n_prompts - 1, min(samples.n_prompts, _ENOUGH_PROMPTS)).astype(np.intp))
    groups = [samples.reward[samples.offsets[p] : samples.offsets[p + 1]] for p in chosen]
    groups = [values - values.max() for values in groups if np.ptp(values) > 0]
    if not groups:
        return np.array([1.0])
    size = max(map(len, groups))
    below = np.stack([np.pad(v, (0, size - v.size), constant_values=-np.inf) for v in groups])
    counts = np.isfinite(below).sum(axis=1)
    below = np.where(np.isfinite(below), below, -np.inf)
    limit = float(np.log(counts / (below == 0).sum(axis=1)).mean())

    def mean_kl(log_lambda: float) -> float:
        with np.errstate(invalid="ignore", under="ignore"):
            push = np.where(below == 0, 0.0, below * np.exp(log_lambda))
            weight = np.exp(push)
            total = weight.sum(axis=1)
            mean = np.where(weight > 0, weight * push, 0.0).sum(axis=1) / total
        return float((mean - np.log(total / counts)).mean())

    widest = float(max(np.ptp(values) for values in groups))
    start = _crossing(mean_kl, min(_NO_EFFECT, 0.01 * limit), -np.log(widest))
    stop = _crossing(mean_kl, 0.95 * limit, -np.log(widest))
    grid = np.exp(-np.linspace(stop, start, N_BETAS))
    return np.unique([float(f"{beta:.3g}") for beta in grid])


def _crossing(function, level: float, guess: float) -> float:  # type: ignore[no-untyped-def]
    """Where an increasing function of log lambda passes a level, by doubling and bisection."""
    low, high = guess - 1.0, guess + 1.0
    while function(low) > level:
        low -= 2.0
    while function(high) < level:
        high += 2.0
    for _ in range(30):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if function(middle) < level else (low, middle)
    return 0.5 * (low + high)
