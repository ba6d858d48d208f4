"""Whether labels look chosen at random, as the estimate of gold takes them to be."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kleash.forecasting.blocks import blocks
from kleash.samples import Samples

__all__ = ["chosen_by", "crowded", "gold_is_judge"]

Floats = NDArray[np.float64]

_LIMIT = 3.2
"""Standard errors: 1.4 in 1,000 each, two-sided: with four tests random labels fail in at most 6 of 1,000."""
_LIMIT_OF_STATED = 4.0
"""The same where labels carry probabilities: sums of 1 / probability have longer tails than the normal law."""
_FEWEST_ALIKE = 10


def chosen_by(samples: Samples) -> str | None:
    """What the labelled answers were chosen by, as far as the judge's scores can tell; None if they look random.

    Parameters
    ----------
    samples
        P prompts with gold on some of their answers.

    Returns
    -------
    str or None
        A phrase: ``the judge's score: labelled answers score higher within their prompts (z 12.3)``.

    Notes
    -----
    Where no probability is stated, labels are m of K at random in each prompt (and source). Their sum of ranks within
    prompts, and of distances from the middle rank, have known mean and variance m (K - m) / (K - 1) s^2 over all such
    choices (s^2 the mean square of a prompt's centred ranks). Prompts, by the share that is labelled, are held against
    the mean and the SD of their scores by rank correlation, of variance 1 / (P - 1) over permutations.

    With probabilities pi each label stands for 1 / pi answers: sum x / pi over labels less sum x over all, x the same
    ranks, has mean 0 and variance sum (1 - pi) / pi^2 x^2 over labels. Labels by choice are fine then, if the choice
    was by those probabilities.

    What leaves no trace in the scores cannot be found: a choice by gold where the judge knows nothing of gold.
    """
    if samples.gold is None or samples.n_gold == 0 or not np.isnan(samples.gold).any():
        return None
    grouped = samples.by_source()[0]
    assert grouped.gold is not None
    labelled = ~np.isnan(grouped.gold)
    rank, distance = _ranks(grouped)
    stated = samples.label_probability is not None
    limit = _LIMIT_OF_STATED if stated else _LIMIT
    words = "labelled answers score {} within their prompts", "labelled answers lie {} the middle of their prompts"
    ways = ("higher", "lower"), ("farther from", "nearer to")
    for x, word, way in zip((rank, distance), words, ways, strict=True):
        z = _of_stated(grouped, labelled, x) if stated else _within(grouped, labelled, x)
        if abs(z) > limit:
            return f"the judge's score: {word.format(way[0] if z > 0 else way[1])} (z {z:.1f})"
    return _prompts_chosen_by(samples, ~np.isnan(samples.gold), limit)


def _ranks(samples: Samples) -> tuple[Floats, Floats]:
    """Mid-ranks within prompts from -1 to 1, ties shared, and their distances from 0; both centred, shape (N,)."""
    prompt = np.repeat(np.arange(samples.n_prompts), samples.counts)
    order = np.empty(samples.n_samples, dtype=np.int64)
    for _, rows in blocks(samples, 1):
        order[rows] = np.take_along_axis(rows, np.argsort(samples.reward[rows], axis=1), axis=1)
    new = np.ones(order.size, dtype=bool)
    new[1:] = (np.diff(samples.reward[order]) != 0) | (np.diff(prompt[order]) != 0)
    group = np.cumsum(new) - 1
    place = np.arange(order.size) - np.repeat(samples.offsets[:-1], samples.counts)
    rank = np.empty(order.size)
    rank[order] = (np.bincount(group, place) / np.bincount(group))[group]
    size = np.repeat(samples.counts, samples.counts)
    rank = (2 * rank + 1) / size - 1
    return rank, _centred(samples, np.abs(rank))


def _centred(samples: Samples, x: Floats) -> Floats:
    mean = np.add.reduceat(x, samples.offsets[:-1]) / samples.counts
    return np.asarray(x - np.repeat(mean, samples.counts))


def _within(samples: Samples, labelled: NDArray[np.bool_], x: Floats) -> float:
    """Standard errors by which labelled answers differ in x from the others to their prompts."""
    starts, size = samples.offsets[:-1], samples.counts
    m = np.add.reduceat(labelled.astype(np.int64), starts)
    variance = m * (size - m) / np.maximum(size - 1.0, 1.0) * np.add.reduceat(x**2, starts) / size
    total = float(variance.sum())
    return float((x * labelled).sum() / np.sqrt(total)) if total > 0 else 0.0


def _of_stated(samples: Samples, labelled: NDArray[np.bool_], x: Floats) -> float:
    """Standard errors by which labels, each for 1 / probability answers, differ in x from all answers."""
    assert samples.label_probability is not None
    pi = samples.label_probability[labelled]
    total = float(((1 - pi) / pi**2 * x[labelled] ** 2).sum())
    return float(((x[labelled] / pi).sum() - x.sum()) / np.sqrt(total)) if total > 0 else 0.0


def _prompts_chosen_by(samples: Samples, labelled: NDArray[np.bool_], limit: float) -> str | None:
    """What the labelled prompts were chosen by; None if they look like the others."""
    starts, size = samples.offsets[:-1], samples.counts
    inverse = 1.0 if samples.label_probability is None else 1.0 / np.where(labelled, samples.label_probability, 1.0)
    share = np.add.reduceat(labelled * inverse, starts) / size
    mean = np.add.reduceat(samples.reward, starts) / size
    sd = np.sqrt(np.add.reduceat(_centred(samples, samples.reward) ** 2, starts) / size)
    for x, word in ((mean, "score higher"), (sd, "differ more in score")):
        z = _correlation(share, x)
        if abs(z) > limit:
            way = "more" if z > 0 else "fewer"
            return f"prompt: those whose answers {word} have {way} labels (z {z:.1f})"
    return None


def _correlation(a: Floats, b: Floats) -> float:
    """Rank correlation in standard errors over permutations; 0 where one of the two is constant."""
    ranks = [_mid_ranks(x) - (x.size + 1) / 2 for x in (a, b)]
    norm = float(np.sqrt((ranks[0] ** 2).sum() * (ranks[1] ** 2).sum()))
    return float(ranks[0] @ ranks[1]) / norm * float(np.sqrt(a.size - 1)) if norm > 0 else 0.0


def _mid_ranks(x: Floats) -> Floats:
    """Ranks from 1, ties sharing their mean: ``scipy.stats.rankdata``, whose package takes half a second to import."""
    _, row, count = np.unique(x, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    return np.asarray((last - 0.5 * (count - 1))[row])


def crowded(samples: Samples) -> bool:
    """Whether labels crowd in some of the prompts, beyond what a choice of answers at random does.

    Nothing is wrong then if those prompts were chosen at random; but no score can tell.

    Parameters
    ----------
    samples
        P prompts with gold on some of their answers.

    Returns
    -------
    bool

    Notes
    -----
    With a share q labelled, sum (m - K q)^2 / (K q (1 - q)) over prompts has mean P and variance 2 P + sum (1 - 6 q (1
    - q)) / (K q (1 - q)), if labels are strewn over all answers alike; fewer if each prompt gets as many.
    """
    if samples.gold is None or samples.label_probability is not None or samples.n_gold in {0, samples.n_samples}:
        return False
    m = np.add.reduceat((~np.isnan(samples.gold)).astype(np.int64), samples.offsets[:-1])
    q = samples.n_gold / samples.n_samples
    spread = samples.counts * q * (1 - q)
    excess = float(((m - samples.counts * q) ** 2 / spread - 1).sum())
    return excess > _LIMIT_OF_STATED * float(np.sqrt((2 + (1 - 6 * q * (1 - q)) / spread).sum()))


def gold_is_judge(samples: Samples) -> bool:
    """Whether gold is the judge's score itself, or a straight line of it, on all labels (at least ten).

    Parameters
    ----------
    samples
        Scored answers.

    Returns
    -------
    bool
    """
    if samples.gold is None or samples.n_gold < _FEWEST_ALIKE:
        return False
    labelled = ~np.isnan(samples.gold)
    both = [x - x.mean() for x in (samples.reward[labelled], samples.gold[labelled])]
    norms = [float(np.sqrt((x**2).sum())) for x in both]
    if not min(norms) > 0:
        return False
    apart = both[0] / norms[0] - both[1] / norms[1]
    return bool(np.abs(apart).max() < 1e-9)
