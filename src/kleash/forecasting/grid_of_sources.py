"""The default grid of betas where answers come from several sources: it goes on past the reference's own reach."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from kleash.forecasting.grid import N_BETAS
from kleash.forecasting.pooled import reweight_sources
from kleash.samples import Samples

__all__ = ["default_betas_of_sources"]

Floats = NDArray[np.float64]

_NO_EFFECT = 1e-3  # nats: a KL at which nothing has moved yet
_ENOUGH_PROMPTS = 100  # prompts that suffice to place a grid
_DECADES = 5  # of lambda that are searched for its end
_PER_DECADE = 12
_ALL = 0.98  # of the largest KL, past which a looser leash moves nothing
_SHORT = 0.5  # nats short of log n at which the grid ends: past what is shown


def default_betas_of_sources(samples: Samples) -> Floats:
    """Betas from 'no effect' to past what the sources reach, ascending, rounded to three digits.

    Parameters
    ----------
    samples
        With sources. Up to 100 prompts, evenly spaced, are looked at.

    Returns
    -------
    Shape (B,), reward units per nat; a single 1.0 if the judge scores all answers to a prompt alike.

    Notes
    -----
    Near the reference KL is lambda^2 times half the score's variance: the grid starts where that is 0.001 nats. It ends
    at the last lambda = 1 / beta at which the KL from the sources' mixture is half a nat short of log n and the KL to
    the reference has not come within 2 % of its largest value.
    """
    some = _some_prompts(samples)
    starts = some.offsets[:-1]
    centred = some.reward - np.repeat(np.add.reduceat(some.reward, starts) / some.counts, some.counts)
    spread = float(np.sqrt((centred**2).mean()))
    if spread == 0:
        return np.array([1.0])
    first = np.sqrt(2 * _NO_EFFECT) / spread
    tried = first * np.geomspace(1.0, 10.0**_DECADES, _DECADES * _PER_DECADE)
    pooled = reweight_sources(some, 1 / tried, labels=None, rng=np.random.default_rng(0), correction=False)
    within = np.flatnonzero(pooled.spent[:-1] <= pooled.log_n[:-1] - _SHORT)
    kl = pooled.table.value[1].mean(axis=0)
    moving = np.flatnonzero(kl[within] < _ALL * kl[within].max(initial=0.0))
    last = tried[within[moving[-1]]] if moving.size else tried[-1]
    return np.unique([float(f"{beta:.3g}") for beta in 1 / np.geomspace(first, max(last, 2 * first), N_BETAS)])


def _some_prompts(samples: Samples) -> Samples:
    """The samples of a few of the prompts, without gold."""
    assert samples.sources is not None  # the caller has sources
    size = min(samples.n_prompts, _ENOUGH_PROMPTS)
    chosen = np.unique(np.linspace(0, samples.n_prompts - 1, size).astype(np.intp))
    rows = np.concatenate([np.arange(samples.offsets[p], samples.offsets[p + 1]) for p in chosen])
    return dataclasses.replace(
        samples,
        reward=samples.reward[rows],
        gold=None,
        answers=None,
        label_probability=None,
        offsets=np.concatenate([[0], np.cumsum(samples.counts[chosen])]).astype(np.int64),
        prompts=tuple(samples.prompts[p] for p in chosen),
        sources=samples.sources.rows(rows),
    )
