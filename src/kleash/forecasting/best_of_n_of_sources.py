"""Best-of-n of the reference, from answers of several sources: their scores give the reference's distribution."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import xlogy

from kleash.forecasting.best_of_n import BestOfNRow
from kleash.forecasting.mixture import Drawn
from kleash.forecasting.pools import Pool, marks_of, same_sizes
from kleash.forecasting.reweight import Labels
from kleash.samples import Samples

__all__ = ["best_of_n_of_sources", "best_of_n_prompts_of_sources"]

Floats = NDArray[np.float64]

_MARGIN = 2.5  # nats short of log n to which best-of-n may lie from the sources' mixture: as any other policy
_MOST = 20  # doublings of n at most


def best_of_n_prompts_of_sources(drawn: Drawn, n: NDArray[np.int64]) -> Floats:
    """Reward, KL, gold numerator and KL to the mixture of best-of-n for P prompts: (4, P, M).

    Parameters
    ----------
    drawn
        The answers, with their densities.
    n
        Numbers of draws, shape (M,).

    Returns
    -------
    Shape (4, P, M).

    Notes
    -----
    Each answer stands for a reference mass of u = 1 / (n m). Where the reference is among the sources, u is divided by
    its sum, which is near 1. From policies alone it is not: the mass above a score is the plain sum of u above it,
    which the answers hold well where the mass below is hardly seen; what is missing to 1 lies below all scores seen.
    """
    order = np.argsort(drawn.reward, axis=1, kind="stable")
    r, x, log_m = (np.take_along_axis(a, order, axis=1) for a in (drawn.reward, drawn.marked, drawn.log_m))
    size = r.shape[1]
    mass = np.exp(-log_m) / size
    total = mass.sum(axis=1, keepdims=True)
    mass = mass / (total if drawn.anchored else np.maximum(total, 1.0))
    ends = np.concatenate([r[:, 1:] > r[:, :-1], np.ones((r.shape[0], 1), dtype=bool)], axis=1)
    upto = np.concatenate([np.zeros((r.shape[0], 1)), np.cumsum(mass, axis=1)], axis=1)
    missing = 1.0 - upto[:, -1:] if not drawn.anchored else 0.0
    position = np.arange(size)
    starts = np.concatenate([np.ones((r.shape[0], 1), dtype=bool), ends[:, :-1]], axis=1)
    first = np.maximum.accumulate(np.where(starts, position, 0), axis=1)
    last = np.minimum.accumulate(np.where(ends, position + 1, size)[:, ::-1], axis=1)[:, ::-1]
    below = np.take_along_axis(upto, first, axis=1) + missing
    at_or_below = np.minimum(np.take_along_axis(upto, last, axis=1) + missing, 1.0)
    below = np.where(first == 0, missing, np.minimum(below, 1.0))
    in_class = at_or_below - below
    result = np.empty((4, r.shape[0], n.size))
    for column, draws in enumerate(n):
        won = at_or_below**draws - below**draws
        ratio = np.divide(won, in_class, out=np.zeros_like(won), where=in_class > 0)  # to the reference, by the class
        share = mass * ratio
        share = share / share.sum(axis=1, keepdims=True)  # of what was seen
        result[0, :, column] = (share * r).sum(axis=1)
        result[1, :, column] = xlogy(share, ratio).sum(axis=1)
        result[2, :, column] = (share * x).sum(axis=1)
        result[3, :, column] = xlogy(share, share * size).sum(axis=1)
    return result


def best_of_n_of_sources(samples: Samples, labels: Labels | None, pool: Pool) -> tuple[BestOfNRow, ...]:
    """Best-of-n for n = 1, 2, 4, ... as far as a pool's answers reach.

    Parameters
    ----------
    samples, labels
        P prompts with their answers and sources, and their gold.
    pool
        Whose answers to use.

    Returns
    -------
    Rows, ``weak`` out of reach, up to the first past it; none where the pool has not two answers to every prompt.
    """
    n = 2 ** np.arange(_MOST)
    gold = marks_of(samples, labels)
    means = np.full((4, samples.n_prompts, n.size), np.nan)
    log_n = np.full(samples.n_prompts, np.nan)
    for rows in same_sizes(samples, 8):
        drawn = rows.drawn(samples, pool, gold)
        if drawn is not None:
            means[:, rows.prompts] = best_of_n_prompts_of_sources(drawn, n)
            log_n[rows.prompts] = np.log(drawn.reward.shape[1])
    if np.isnan(log_n).any():
        return ()
    reward, kl, _, spent = means.mean(axis=1)
    known = np.ones(samples.n_prompts, dtype=bool) if labels is None else labels.known
    marked = means[2, known].mean(axis=0)
    ok = spent <= log_n.mean() - _MARGIN
    stop = min(int(np.flatnonzero(ok)[-1]) + 2, n.size) if ok.any() else 1
    return tuple(
        BestOfNRow(
            n=int(n[i]),
            reward=float(reward[i]),
            gold=None if labels is None else labels.centre + float(marked[i]),
            kl=float(kl[i]),
            kl_bound=float(np.log(n[i]) - (n[i] - 1) / n[i]),
            status="ok" if ok[i] else "weak",
        )
        for i in range(stop)
    )
