"""What do neighbouring tokens say? Whether a list is shifted, whether answers begin or end in fill values."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kleash.estimates import Floats

    Ints = NDArray[np.int64]

__all__ = ["POSITIVE", "SENTINEL", "SIDES", "Edges", "Repeats", "Shift"]

POSITIVE = 0.25
SENTINEL = -1000.0
NEARER = 0.75  # a list one position off is nearer after moving it by a quarter at least
VARIES = 0.1  # nats between neighbours, on average: what a list must vary for its position to be told
CERTAIN = -0.01  # nats: above it a token is (nearly) certain, and one like the next

Side = Literal["start", "end"]
SIDES: tuple[Side, ...] = ("start", "end")


@dataclass(kw_only=True)
class Repeats:
    """Neighbouring tokens that are alike.

    ``pairs`` of them in all, ``runs`` by side in the runs with which answers start or end, and by side which ``values``
    these runs repeat, once for each answer.
    """

    pairs: int = 0
    runs: Counter[Side] = field(default_factory=Counter)
    values: dict[Side, Counter[float]] = field(default_factory=lambda: {side: Counter() for side in SIDES})

    def add(self, same: NDArray[np.bool_], values: Floats, begins: Ints, ends: Ints) -> None:
        """Whether each token is like the next, the values to count, and where answers begin and end."""
        self.pairs += int(same.sum())
        for side, (length, at) in zip(SIDES, (_run_from(same, begins, ends), _run_to(same, begins, ends)), strict=True):
            long = length > 0
            self.runs[side] += int(length[long].sum())
            self.values[side].update(values[at[long]].tolist())


COLUMNS = ("logp", "ref_logp")


def _by_column() -> dict[str, Repeats]:
    return {name: Repeats() for name in COLUMNS}


@dataclass(kw_only=True)
class Edges:
    """Values that no softmax gives, and how answers begin and end.

    ``positive``, ``sentinel``: Log-probabilities above `POSITIVE`, and finite ones below `SENTINEL`. ``answers``,
    ``neighbours``: Answers of two counted tokens or more, and pairs of neighbouring tokens. ``last``, ``last_delta``:
    Answers whose last token is a number on both sides, and the sum of its log ratios. ``fill``, ``certain``: Repeated
    values by column, and tokens that are certain, one after the other. ``zeros``, by column: how
    often a log-probability is exactly 0 as an answer's first token, as its last, and elsewhere.
    """

    positive: int = 0
    sentinel: int = 0
    answers: int = 0
    neighbours: int = 0
    last: int = 0
    last_delta: float = 0.0
    zeros: dict[str, Ints] = field(default_factory=lambda: {name: np.zeros(3, dtype=np.int64) for name in COLUMNS})
    fill: dict[str, Repeats] = field(default_factory=_by_column)
    certain: dict[str, Repeats] = field(default_factory=_by_column)

    def add(self, logp: Floats, ref: Floats, owner: Ints, n: Ints) -> None:
        """Counted tokens of some answers, whose they are, and how many each answer has."""
        for values in (logp, ref):
            self.positive += int((values > POSITIVE).sum())
            self.sentinel += int(((values <= SENTINEL) & np.isfinite(values)).sum())
        if logp.size == 0:
            return
        ends = np.cumsum(n)[n > 0] - 1
        begins = ends - n[n > 0] + 1
        whole = ends[np.isfinite(logp[ends]) & np.isfinite(ref[ends])]
        self.last += whole.size
        self.last_delta += float((logp[whole] - ref[whole]).sum())
        self.neighbours += logp.size - begins.size
        self.answers += int((n >= 2).sum())
        inside = owner[1:] == owner[:-1]
        first = begins[ends > begins]
        for name, values in zip(COLUMNS, (logp, ref), strict=True):
            zero = values == 0
            edge = np.array([zero[first].sum(), zero[ends].sum()])
            self.zeros[name] += [*edge, zero.sum() - edge.sum()]
            sure = values > CERTAIN
            self.fill[name].add(inside & (values[1:] == values[:-1]) & ~sure[1:], values, begins, ends)
            self.certain[name].add(inside & sure[1:] & sure[:-1], np.zeros_like(values), begins, ends)


def _run_to(same: NDArray[np.bool_], begins: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """How many neighbours before the end of each answer are alike, and where the answers end."""
    last = np.where(same, -1, np.arange(same.size))  # the last place before which a token differs from the next
    seen = np.maximum.accumulate(last) if same.size else last
    before = np.where(ends > begins, seen[np.maximum(ends - 1, 0)] if same.size else -1, ends - 1)
    return ends - 1 - np.maximum(before, begins - 1), ends


def _run_from(same: NDArray[np.bool_], begins: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """How many neighbours after the start of each answer are alike, and where the answers start."""
    length, _ = _run_to(same[::-1], same.size - ends[::-1], same.size - begins[::-1])
    return length[::-1], begins


@dataclass(kw_only=True)
class Moved:
    """One list moved by one position: in how many answers it is nearer, and the sum of all distances."""

    nearer: int = 0
    distance: float = 0.0


@dataclass(kw_only=True)
class Shift:
    """Two lists compared in place and one position later or earlier.

    ``judged`` answers of ``inner`` tokens at ``distance`` in place, over ``pairs`` of neighbours. In place only tokens
    with a neighbour on both sides are compared, moved all pairs of neighbours: every value of the first sum stands in
    the second too, so a first or last token that has drifted cannot speak for moving. Distances are cut off at 1 nat,
    or a few large log ratios would. Answers that say little of positions (fewer than five tokens in a row, or hardly
    any variation in one list) are not judged, and equal outcomes of equal answers count once.
    """

    judged: int = 0
    pairs: int = 0
    inner: int = 0
    distance: float = 0.0
    later: Moved = field(default_factory=Moved)
    earlier: Moved = field(default_factory=Moved)
    seen: set[bytes] = field(default_factory=set, repr=False)

    def add(
        self, left: Floats, right: Floats, good: NDArray[np.bool_], owner: Ints, position: Ints, *, rows: int
    ) -> None:
        """Counted tokens of some answers: two lists, whether both are numbers, whose they are and where they stand."""
        follows = (owner[1:] == owner[:-1]) & (np.diff(position) == 1) & good[1:] & good[:-1]
        pair = np.flatnonzero(follows)
        inner = np.flatnonzero(follows[1:] & follows[:-1]) + 1

        def total(a: Floats, b: Floats, who: Ints) -> Floats:
            apart = np.minimum(np.abs(a - b), 1.0)
            return np.asarray(np.bincount(who, weights=apart, minlength=rows), dtype=np.float64)

        here = total(left[inner], right[inner], owner[inner])
        later = total(left[pair], right[pair + 1], owner[pair])
        earlier = total(left[pair + 1], right[pair], owner[pair])
        many = np.bincount(owner[pair], minlength=rows)
        judged = (np.bincount(owner[inner], minlength=rows) >= 3) & (many >= 4)
        for values in (left, right):
            judged &= total(values[pair], values[pair + 1], owner[pair]) >= VARIES * many
        judged = self._new(judged, np.stack([here, later, earlier]))
        self.judged += int(judged.sum())
        self.pairs += pair.size
        self.inner += inner.size
        self.distance += float(here.sum())
        for moved, distance in ((self.later, later), (self.earlier, earlier)):
            moved.nearer += int((judged & (distance < NEARER * here)).sum())
            moved.distance += float(distance.sum())

    def _new(self, judged: NDArray[np.bool_], outcomes: Floats) -> NDArray[np.bool_]:
        """Those of the judged whose outcome was not there before."""
        fresh = np.zeros_like(judged)
        for i in np.flatnonzero(judged):
            outcome = outcomes[:, i].tobytes()
            fresh[i] = outcome not in self.seen
            self.seen.add(outcome)
        return fresh
