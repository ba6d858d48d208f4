"""Which sources speak together, and the prompts that have the same number of answers of each."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from kleash.forecasting.mixture import Drawn, log_mixture
from kleash.forecasting.reweight import Labels
from kleash.samples import Samples, Sources

__all__ = ["Marks", "Pool", "Rows", "log_densities", "marks_of", "pools_of", "same_sizes"]

Floats = NDArray[np.float64]

_CELLS = 200_000
"""Numbers of float64 in one working array: 1.6 MB, so that the ten or so that are alive at a time stay near a core."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pool:
    """Sources, by number, whose densities are known on one another's answers; is the reference one of them?"""

    sources: tuple[int, ...]
    anchored: bool


def pools_of(sources: Sources, *, without: Sequence[int] = ()) -> tuple[Pool, ...]:
    """The pools: each source with all those that it shares known densities with, every pool once; some are left out.

    Returns
    -------
    One pool of all sources where every density is known on every answer; each source alone where none is.
    """
    size = len(sources.names)
    members = [number for number in range(size) if number not in without]
    known = np.stack([~np.isnan(sources.log_ratio[sources.code == s]).any(axis=0) for s in range(size)])
    mutual = known & known.T
    found: dict[tuple[int, ...], None] = {}
    for first in members:
        pool = [first]
        for other in members:
            if other != first and all(mutual[other, member] for member in pool):
                pool.append(other)
        found[tuple(sorted(pool))] = None
    return tuple(Pool(sources=pool, anchored=sources.reference and 0 in pool) for pool in found)


def log_densities(samples: Samples, pool: Pool) -> Floats:
    """log m of every answer under the mixture of a pool's answers to its prompt, (N,); infinite for the others'."""
    sources = samples.sources
    assert sources is not None  # the callers have sources
    prompt = np.repeat(np.arange(samples.n_prompts), samples.counts)
    members = np.array(pool.sources)
    mine = np.isin(sources.code, members)
    key = prompt[mine] * len(sources.names) + sources.code[mine]
    counts = np.bincount(key, minlength=samples.n_prompts * len(sources.names)).reshape(samples.n_prompts, -1)[
        :, members
    ]
    with np.errstate(divide="ignore", invalid="ignore"):
        share = counts / counts.sum(axis=1, keepdims=True)
    log_m = np.full(samples.n_samples, np.inf)
    log_m[mine] = logsumexp(sources.log_ratio[mine][:, members], axis=1, b=share[prompt[mine]])
    return log_m


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Rows:
    """Prompts with equally many answers of every source: ``prompts`` (P,), ``rows`` (P, K) in the order of the sources.

    ``sizes`` (S,) says how many answers each source has, 0 for none.
    """

    prompts: NDArray[np.intp]
    rows: NDArray[np.intp]
    sizes: tuple[int, ...]

    def columns(self, pool: Pool) -> NDArray[np.intp]:
        """Which of the K answers belong to a pool."""
        ends = np.cumsum((0, *self.sizes))
        parts = [np.arange(ends[s], ends[s + 1]) for s in pool.sources]
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.intp)

    def drawn(self, samples: Samples, pool: Pool, gold: Marks | None) -> Drawn | None:
        """The answers of a pool; None where these prompts have fewer than two."""
        assert samples.sources is not None  # the callers have sources
        rows = self.rows[:, self.columns(pool)]
        if rows.shape[1] < 2:
            return None
        present = [s for s in pool.sources if self.sizes[s]]
        sizes = tuple(self.sizes[s] for s in present)
        log_ratio = samples.sources.log_ratio[rows][..., present]
        log_m = log_mixture(log_ratio, sizes)
        label_weight = np.zeros(rows.shape) if gold is None else gold.weight(rows, log_ratio, log_m, sizes)
        marked = label_weight if gold is None else label_weight * (gold.value[rows] - gold.centre)
        return Drawn(
            reward=samples.reward[rows],
            marked=marked,
            label_weight=label_weight,
            log_m=log_m,
            log_ratio=log_ratio,
            sizes=sizes,
            anchored=pool.anchored and self.sizes[0] > 0,
            factor=np.ones(rows.shape[1]),
        )


def same_sizes(samples: Samples, width: int) -> Iterator[Rows]:
    """The prompts, those with equally many answers of every source together; P K width stays near a fixed bound.

    Parameters
    ----------
    samples
        With sources, grouped by prompt.
    width
        Numbers that the work needs per sample (betas, say).

    Returns
    -------
    Prompts with their answers, in parts.
    """
    assert samples.sources is not None  # the callers have sources
    n_sources = len(samples.sources.names)
    prompt = np.repeat(np.arange(samples.n_prompts), samples.counts)
    order = np.lexsort((samples.sources.code, prompt))
    sizes = np.bincount(prompt * n_sources + samples.sources.code, minlength=samples.n_prompts * n_sources)
    table, which = np.unique(sizes.reshape(-1, n_sources), axis=0, return_inverse=True)
    for number, row in enumerate(table):
        prompts = np.flatnonzero(which.ravel() == number)
        total = int(row.sum())
        step = max(1, int(_CELLS // (total * width)))
        for start in range(0, prompts.size, step):
            part = prompts[start : start + step]
            rows = order[samples.offsets[part][:, None] + np.arange(total)]
            yield Rows(prompts=part, rows=rows, sizes=tuple(row.tolist()))


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Marks:
    """Gold labels of answers of several sources: ``value`` and ``labelled`` (N,), their mean ``centre``.

    ``inverse`` is 1 / the probability of a label where that was given, (N,).
    """

    value: Floats
    labelled: NDArray[np.bool_]
    centre: float
    inverse: Floats | None

    def weight(self, rows: NDArray[np.intp], log_ratio: Floats, log_m: Floats, sizes: tuple[int, ...]) -> Floats:
        """What each label stands for, (P, K): 0 where there is none.

        Notes
        -----
        The labelled answers of a prompt are a sample of their own mixture m_l, with the labelled counts l_s; so sum
        over labelled rows of exp(lambda r) g / m_l, over l, estimates the same as all rows would. Relative to the
        weights of all rows, exp(lambda r) / m, a label stands for (n m) / (l m_l).
        """
        labelled = self.labelled[rows]
        if self.inverse is not None:
            return np.where(labelled, self.inverse[rows], 0.0)
        if labelled.all():
            return np.ones(rows.shape)
        starts = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.intp)
        counts = np.add.reduceat(labelled.astype(np.float64), starts, axis=1)
        total = counts.sum(axis=1, keepdims=True)
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.where(total > 0, counts / total, 0.0)
            highest = log_ratio.max(axis=2, initial=-np.inf, keepdims=True)
            log_labelled = np.log((np.exp(log_ratio - highest) * share[:, None]).sum(axis=2)) + highest[..., 0]
            weight = np.exp(log_m - log_labelled) * rows.shape[1] / total
        return np.where(labelled, weight, 0.0)


def marks_of(samples: Samples, labels: Labels | None) -> Marks | None:
    """The labels of samples with sources; None if there are none."""
    if samples.gold is None or labels is None:
        return None
    inverse = None
    if samples.label_probability is not None:
        inverse = 1.0 / np.where(labels.labelled, samples.label_probability, 1.0)
    value = np.where(labels.labelled, samples.gold, 0.0)
    return Marks(value=value, labelled=labels.labelled, centre=labels.centre, inverse=inverse)
