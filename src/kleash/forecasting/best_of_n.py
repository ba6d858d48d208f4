"""Best-of-n from reference samples: draw n of a prompt's answers, keep the one the judge likes best."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray
from scipy.special import xlogy

from kleash.forecasting.blocks import blocks
from kleash.forecasting.reweight import Labels
from kleash.samples import Samples

__all__ = ["BestOfNRow", "best_of_n_prompts", "best_of_n_rows"]

Floats = NDArray[np.float64]


@dataclasses.dataclass(frozen=True, kw_only=True)
class BestOfNRow:
    """Best-of-n at one n: judge's score, gold (None without labels), exact KL, its bound without ties, and how sure."""

    n: int
    reward: float
    gold: float | None
    kl: float
    kl_bound: float
    status: str


def best_of_n_prompts(reward: Floats, marked: Floats, n: NDArray[np.int64]) -> Floats:
    """Reward, KL and gold numerator of best-of-n for P prompts of K samples each, exact for the samples.

    Parameters
    ----------
    reward
        Shape (P, K), reward units.
    marked
        Shape (P, K), the quantity averaged beside the reward (see
        :func:`kleash.forecasting.estimate.estimate_prompts`).
    n
        Numbers of draws, shape (M,).

    Returns
    -------
    Shape (3, P, M): reward, KL in nats, mean of ``marked``.

    Notes
    -----
    The n draws are made with replacement from the K samples. With F the share of samples at or below a score and F_-
    the share below it, the winner has that score with probability F^n - F_-^n, spread evenly over the samples of the
    class, and KL = sum P log(P / Q) over classes. Drawing without replacement would give log K at n = K whatever the
    ties.

    References
    ----------
    Beirami et al. 2024, arXiv 2401.01879 (``log n - (n - 1) / n`` is an upper bound, exact only without ties).
    """
    n_samples = reward.shape[1]
    order = np.argsort(reward, axis=1, kind="stable")
    r = np.take_along_axis(reward, order, axis=1)
    x = np.take_along_axis(marked, order, axis=1)
    position = np.arange(n_samples)
    starts = np.concatenate([np.ones((r.shape[0], 1), dtype=bool), r[:, 1:] > r[:, :-1]], axis=1)
    first = np.maximum.accumulate(np.where(starts, position, 0), axis=1)
    ends = np.concatenate([starts[:, 1:], np.ones((r.shape[0], 1), dtype=bool)], axis=1)
    last = np.minimum.accumulate(np.where(ends, position, n_samples)[:, ::-1], axis=1)[:, ::-1]
    at_or_below, below = (last + 1) / n_samples, first / n_samples  # (P, K)
    result = np.empty((3, r.shape[0], n.size))
    for column, draws in enumerate(n):
        won = at_or_below**draws - below**draws  # by the class
        share = won / (last + 1 - first)
        result[0, :, column] = (share * r).sum(axis=1)
        result[1, :, column] = xlogy(share, won / (at_or_below - below)).sum(axis=1)  # exactly 0 at n = 1
        result[2, :, column] = (share * x).sum(axis=1)
    return result


def best_of_n_rows(samples: Samples, labels: Labels | None) -> tuple[BestOfNRow, ...]:
    """Best-of-n for n = 1, 2, 4, ... up to the median number of samples, which is the last."""
    most = int(np.median(samples.counts))
    n = np.unique([2**k for k in range(most.bit_length()) if 2**k <= most] + [most])
    means = np.zeros((3, samples.n_prompts, n.size))
    marked = np.zeros(samples.n_samples) if labels is None else labels.marked
    for part, rows in blocks(samples, 4):
        means[:, part] = best_of_n_prompts(samples.reward[rows], marked[rows], n)
    reward, kl = means[0].mean(axis=0), means[1].mean(axis=0)
    gold = None if labels is None else labels.centre + means[2, labels.known].mean(axis=0)
    return tuple(
        BestOfNRow(
            n=int(draws),
            reward=float(reward[i]),
            gold=None if gold is None else float(gold[i]),
            kl=float(kl[i]),
            kl_bound=float(np.log(draws) - (draws - 1) / draws),
            status="weak" if draws > most / 3 else "ok",
        )
        for i, draws in enumerate(n)
    )
