"""Copies: the same answers written down several times, which are no further draws from the reference."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, xlogy

if TYPE_CHECKING:
    from kleash.samples import Samples

__all__ = ["counted_once"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_EVIDENCE = np.log(1000.0)
"""Logarithm of the e-value from which copies are named; honest draws reach it at most once in 1,000 sets."""
_SHARES = (0.01, 0.1, 0.5, 0.99)
"""Shares of the prompts that may be affected; their e-values are averaged."""
_MULTIPLES = (2, 3, 4, 5, 6, 8)
_EVIDENCE_OF_ONE = _EVIDENCE + np.log(len(_MULTIPLES))
_LARGEST = 600.0  # the logarithm of an e-value of one prompt is cut there
_TWINS = 0.02
"""Largest chance with which any reference could draw all of a prompt's answers again: six different ones, say."""


def counted_once(samples: Samples) -> tuple[Samples, tuple[str, ...]]:
    """Samples with copies counted once, and a sentence for each kind of copy found.

    Use it before anything is estimated: copies make few answers look like many. Answers that are alike by chance, as
    short ones and scores with few levels are, stay.

    Parameters
    ----------
    samples
        N answers in prompt order.

    Returns
    -------
    Samples, tuple of str
        The same object and no sentence where nothing was found.

    Notes
    -----
    Answers to one prompt from one source are told apart by their texts; without texts by reward, and gold if all have
    it. Three tests, each an e-value (expectation at most 1 over honest draws, whatever the reference; Vovk and Wang
    2021), multiplied over prompts as ``1 - f + f S`` for a share f of prompts affected:

    - *Multiples.* Each of d different answers came a multiple of m times: S = 2^(d // 2). Draws of two answers that
      both came are split binomially, and of the splits 1, ..., n - 1 multiples of m have at most half the mass, since
      each has at most that of its two neighbours.
    - *Side by side.* Draws come in any order alike, so that all copies of each answer stand together with probability
      d! prod c! / K!: S is its inverse. Not where answers are sorted, by text, length, scores or number of copies.
    - *Twins.* A prompt has exactly the answers of an earlier one: S is the mean over earlier prompts of 1 / M,
      M = K! / prod c! prod (c / K)^c the most that any reference gives those counts c.

    Where every answer came a multiple of m times, one in m is kept; copies side by side and twins are kept once.
    """
    grouped, order = samples.by_source()
    keys = _keys(grouped)
    counts = _Counts.of(grouped, keys)
    m = counts.multiple()
    keep = np.ones(samples.n_samples, dtype=bool)
    told = []
    if m is not None:
        hit = counts.multiples(m)
        keep[order] = counts.kept(grouped, hit, m)
        told.append(_sentence(hit, f"every answer came {m} times, or a multiple of it, which chance does not do"))
    elif _e_value(counts.side_by_side()) >= _EVIDENCE:
        hit = counts.together & (counts.different > 1) & (counts.different < counts.size)
        keep[order] = counts.kept(grouped, hit, None)
        told.append(_sentence(hit, "copies of an answer stand side by side, which chance does not do"))
    twin = _twins(grouped, keys, counts)
    if twin.any():
        keep[order] &= ~np.repeat(twin, grouped.counts)
        told.append(_sentence(twin, "the answers are exactly those of another prompt under another name"))
    return (samples, ()) if not told else (samples.keeping(keep), tuple(told))


def _sentence(hit: NDArray[np.bool_], what: str) -> str:
    return f"Copies: to {int(hit.sum())} of {hit.size} prompts {what}; they were counted once."


def _keys(samples: Samples) -> Ints:
    """A number for each answer, the same for the same answers, in the order of the texts or rewards."""
    if samples.answers is not None and not samples.answers.null_count():
        return samples.answers.rank("dense").to_numpy().astype(np.int64)
    keys = _levels(samples.reward)
    if samples.gold is None or np.isnan(samples.gold).any():
        return keys
    gold = _levels(samples.gold)
    return _levels(keys * (gold.max() + 1) + gold)


def _levels(values: NDArray[Any]) -> Ints:
    """The place of each value among those that differ, in their order; -0 and 0 are one."""
    return np.unique(values, return_inverse=True)[1].reshape(-1).astype(np.int64, copy=False)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class _Counts:
    """How often each different answer came, prompt by prompt.

    ``row`` (N,) is the place of each answer's key in ``count`` (D,), of which prompt p has ``starts[p]`` and the
    ``different[p]`` from there, the least of them ``fewest[p]``; ``runs`` (P,) in how many stretches they stand, and
    ``sorted`` (P,) whether in order.
    """

    row: Ints
    count: Ints
    starts: Ints
    different: Ints
    runs: Ints
    sorted: NDArray[np.bool_]
    size: Ints
    fewest: Ints

    @classmethod
    def of(cls, samples: Samples, keys: Ints) -> _Counts:
        prompt = np.repeat(np.arange(samples.n_prompts), samples.counts)
        pair, row, count = np.unique(prompt * (keys.max() + 1) + keys, return_inverse=True, return_counts=True)
        different = np.bincount(pair // (keys.max() + 1), minlength=samples.n_prompts)
        first = np.zeros(samples.n_samples, dtype=bool)
        first[samples.offsets[:-1]] = True
        starts = samples.offsets[:-1]
        row, changes = row.reshape(-1), first | (np.diff(keys, prepend=keys[:1]) != 0)
        return cls(
            row=row,
            count=count,
            starts=np.concatenate([[0], np.cumsum(different)[:-1]]),
            different=different,
            runs=np.add.reduceat(changes.astype(np.int64), starts),
            sorted=_sorted([keys, count[row], *_columns_to_sort_by(samples)], first, starts),
            size=samples.counts,
            fewest=np.minimum.reduceat(count, np.concatenate([[0], np.cumsum(different)[:-1]])),
        )

    def multiples(self, m: int) -> NDArray[np.bool_]:
        """Prompts to which every answer came a multiple of m times, shape (P,)."""
        if not (self.fewest >= m).any():
            return np.zeros(self.size.size, dtype=bool)
        return np.logical_and.reduceat(self.count % m == 0, self.starts)

    def multiple(self) -> int | None:
        """The largest m of which chance does not make the numbers of copies; None if there is none."""
        sure = np.exp(np.minimum(np.log(2.0) * (self.different // 2), _LARGEST))
        found = [m for m in _MULTIPLES if _e_value(np.where(self.multiples(m), sure, 0.0)) >= _EVIDENCE_OF_ONE]
        return max(found, default=None)

    def log_ways(self) -> Floats:
        """Logarithm of K! / prod c!, shape (P,)."""
        ways = gammaln(np.arange(float(self.size.max()) + 1) + 1.0)  # log n!
        return np.asarray(ways[self.size] - np.add.reduceat(ways[self.count], self.starts))

    @property
    def together(self) -> NDArray[np.bool_]:
        """Prompts in which all copies of each answer stand together, shape (P,)."""
        return np.asarray(self.runs == self.different)

    def side_by_side(self) -> Floats:
        """The e-value of copies that stand together, shape (P,)."""
        log_value = np.minimum(self.log_ways() - gammaln(self.different + 1.0), _LARGEST)
        return np.where(self.together & ~self.sorted, np.exp(log_value), 0.0)

    def log_most(self) -> Floats:
        """Logarithm of M, the most that any reference gives the counts of a prompt, shape (P,)."""
        share = self.count / np.repeat(self.size, self.different)
        return np.asarray(self.log_ways() + np.add.reduceat(xlogy(self.count, share), self.starts))

    def kept(self, samples: Samples, hit: NDArray[np.bool_], m: int | None) -> NDArray[np.bool_]:
        """One in m of each answer's copies in the prompts that were hit (None: one in all), labelled ones first."""
        unlabelled = np.zeros(samples.n_samples) if samples.gold is None else np.isnan(samples.gold)
        order = np.lexsort((unlabelled, self.row))
        ends = np.cumsum(self.count)
        place = np.empty(samples.n_samples, dtype=np.int64)
        place[order] = np.arange(samples.n_samples) - np.repeat(ends - self.count, self.count)
        wanted = np.ones_like(self.count) if m is None else self.count // m
        return (place < wanted[self.row]) | ~np.repeat(hit, samples.counts)


def _columns_to_sort_by(samples: Samples) -> list[Any]:
    lengths = [] if samples.answers is None else [samples.answers.str.len_chars().fill_null(0).to_numpy().astype(float)]
    return [samples.reward, *lengths, *([] if samples.gold is None else [samples.gold])]


def _sorted(columns: list[Any], first: NDArray[np.bool_], starts: Ints) -> NDArray[np.bool_]:
    """Prompts whose answers rise, or fall, in one of the columns, shape (P,)."""
    ordered = np.zeros(starts.size, dtype=bool)
    for column in columns:
        step = np.where(first, 0.0, np.diff(column, prepend=column[:1]))
        up, down = np.logical_or.reduceat(step > 0, starts), np.logical_or.reduceat(step < 0, starts)
        ordered |= up != down
    return ordered


def _e_value(single: Floats) -> float:
    """Logarithm of the e-value of all prompts from those of each, averaged over the shares that may be affected."""
    joint = [float(np.log1p(share * (single - 1.0)).sum()) for share in _SHARES]
    return float(np.logaddexp.reduce(joint) - np.log(len(_SHARES)))


def _twins(samples: Samples, keys: Ints, counts: _Counts) -> NDArray[np.bool_]:
    """Prompts whose answers are all those of an earlier one, where that is no chance, shape (P,)."""
    most = np.exp(np.maximum(counts.log_most(), -_LARGEST))
    seen: dict[bytes, tuple[int, str, int]] = {}  # how many, the last prompt of them, and how many of that prompt
    rare = most <= _TWINS
    single, twin = np.where(rare, 0.0, 1.0), np.zeros(samples.n_prompts, dtype=bool)
    for p in np.flatnonzero(rare & _may_have_twins(samples, keys)).tolist():
        answers = np.sort(keys[samples.offsets[p] : samples.offsets[p + 1]]).tobytes()
        total, name, own = seen.get(answers, (0, "", 0))
        own = own if name == samples.prompts[p] else 0
        seen[answers] = (total + 1, samples.prompts[p], own + 1)
        before = total - own
        single[p] = before / (max(p, 1) * most[p])
        twin[p] = before > 0
    return twin if _e_value(single) >= _EVIDENCE else np.zeros_like(twin)


def _may_have_twins(samples: Samples, keys: Ints) -> NDArray[np.bool_]:
    """Prompts of whose answers a sum of pseudo-random numbers is that of another prompt's, shape (P,).

    None that has a twin is missing.
    """
    mixed = np.random.default_rng(0).integers(2**62, size=int(keys.max()) + 1)
    total = np.add.reduceat(mixed[keys], samples.offsets[:-1])  # modulo 2^64
    _, row, count = np.unique(total, return_inverse=True, return_counts=True)
    return np.asarray(count[row.reshape(-1)] > 1)
