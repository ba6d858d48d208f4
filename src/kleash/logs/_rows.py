"""Records become rows: same step together, a step back a new segment, a fresh start a new run. Nothing is averaged."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate, groupby, pairwise
from typing import TYPE_CHECKING

import numpy as np

from kleash.logs._console import Record, Values
from kleash.logs._numbers import Digits, missing
from kleash.logs._records import STEP_KEYS
from kleash.trainers.columns import bare

if TYPE_CHECKING:
    from kleash.logs.table import Array

__all__ = ["Rows", "collect", "names"]

_EVAL = ("eval_", "eval/", "validation/", "val-core/", "val-aux/")
_SUMMARY = {"train_runtime", "train_samples_per_second", "train_steps_per_second", "train_loss", "total_flos", "epoch"}
_CLOCKS = ("time", "runtime", "per_second", "timestamp")


@dataclass
class Rows:
    """The rows of one run while a file is read: a column of doubles per key, filled as far as the key was seen."""

    run: str = ""
    source: str = ""
    kind: str = "row"
    splits: bool = True
    first: int = 0
    last: int = 0
    columns: dict[str, array[float]] = field(default_factory=dict)
    digits: dict[str, Digits] = field(default_factory=dict)
    undefined: dict[str, list[int]] = field(default_factory=dict)
    steps: array[float] = field(default_factory=lambda: array("d"))
    segments: array[int] = field(default_factory=lambda: array("q"))
    numbered: bool = False
    repeated: int = 0
    texts: dict[str, str] = field(default_factory=dict)
    _epoch: float = -math.inf
    _first_epoch: float = math.inf

    @property
    def n(self) -> int:
        """Rows so far."""
        return len(self.steps)

    @property
    def crowded(self) -> bool:
        """Whether most steps have several rows: a row per minibatch or per process, which is no resume."""
        several = [len([*rows]) > 1 for _, rows in groupby(self.steps)]
        return sum(several) > 1 and 2 * sum(several) > len(several)

    def settle(self) -> None:
        """Of a crowded run only a step back begins a segment."""
        if self.crowded:
            back = accumulate((now < before for before, now in pairwise(self.steps)), initial=0)
            self.segments = array("q", back)

    def fits(self, record: Record) -> bool:
        """False if the record starts the run again from its beginning."""
        if not self.n or not self.splits:
            return True
        step = _step(record)
        if step is None:
            epoch = record.values.get("epoch", (math.nan, ""))[0]
            return not (epoch < self._epoch and epoch <= self._first_epoch)
        first, now = self.steps[0], self.steps[-1]
        if step > first or step > now or (step == now and not self._clash(record.values)):
            return True
        return not self._from_the_start(first)

    def _from_the_start(self, first: float) -> bool:
        """Whether the log begins at the beginning, so that its first step again means a new run."""
        later = next((s for s in self.steps if s > first), math.inf)
        return first <= 1 or first <= later - first

    def add(self, record: Record) -> None:
        """Put a record into the last row or a new one."""
        step = _step(record)
        values = record.values
        extra = all(key.startswith(_EVAL) or key in _SUMMARY or key in STEP_KEYS for key in values)
        if self.n and (step == self.steps[-1] or (step is None and extra)) and not self._clash(values):
            if step is not None and all(self._known(key, self.n - 1) for key in values):
                self.repeated += 1
            self._put(values)
            return
        epoch = values.get("epoch", (math.nan, ""))[0]
        if step is None:
            back = epoch < self._epoch
            at = self.steps[-1] + (not extra) if self.n else 1.0
            self.numbered = True
        else:
            back = bool(self.n) and (step < self.steps[-1] or (step == self.steps[-1] and not extra))
            at = step
        if not math.isnan(epoch):
            self._epoch = epoch
            self._first_epoch = min(self._first_epoch, epoch)
        self.segments.append((self.segments[-1] if self.n else 0) + (back and bool(self.n)))
        self.steps.append(at)
        self._put(values)
        self.texts.update(record.texts)

    def _known(self, key: str, row: int) -> bool:
        column = self.columns.get(key)
        return column is not None and len(column) > row and not math.isnan(column[row])

    def _clash(self, values: Values) -> bool:
        row = self.n - 1
        for key, (value, _) in values.items():
            if key in STEP_KEYS or key in _SUMMARY or key.endswith(_CLOCKS):
                continue
            if self._known(key, row) and self.columns[key][row] != value and not math.isnan(value):
                return True
        return False

    def _put(self, values: Values) -> None:
        n = self.n
        for key, (value, shown) in values.items():
            column = self.columns.get(key)
            if column is None:
                column = self.columns[key] = array("d")
                self.digits[key] = Digits()
            if len(column) < n:
                column.extend([math.nan] * (n - 1 - len(column)))
                column.append(value)
            elif math.isnan(column[n - 1]):
                column[n - 1] = value
            if value == value:  # noqa: PLR0124
                self.digits[key].see(shown)
            elif not missing(shown):
                self.undefined.setdefault(key, []).append(n - 1)

    def extend(self, other: Rows) -> None:
        """The rows of a process that took over after this one ended."""
        shift = self.n
        back = bool(shift) and other.n > 0 and other.steps[0] <= self.steps[-1]
        offset = (self.segments[-1] if shift else 0) + (1 if back else 0)
        self.steps.extend(other.steps)
        self.segments.extend(s + offset for s in other.segments)
        for key, column in other.columns.items():
            mine = self.columns.setdefault(key, array("d"))
            mine.extend([math.nan] * (shift - len(mine)))
            mine.extend(column)
            digits = self.digits.setdefault(key, Digits())
            theirs = other.digits[key]
            digits.full |= theirs.full
            digits.most = max(digits.most, theirs.most)
            known = [s for s in (digits.short, theirs.short) if s is not None]
            digits.short = min(known) if known else None
        for key, rows in other.undefined.items():
            self.undefined.setdefault(key, []).extend(row + shift for row in rows)
        self.repeated += other.repeated
        self.last = other.last

    def raw(self) -> dict[str, Array]:
        """Every column as float64 of shape (T,)."""
        out = {}
        for key, column in self.columns.items():
            full = np.full(self.n, np.nan)
            full[: len(column)] = np.frombuffer(column, dtype=np.float64) if len(column) else 0.0
            out[key] = full
        return out


def _step(record: Record) -> float | None:
    if record.step is not None:
        return record.step
    for key in STEP_KEYS:
        found = record.values.get(key)
        if found is not None and math.isfinite(found[0]):
            return found[0]
    return None


def collect(records: Iterable[Record], *, splits: bool = True) -> list[Rows]:
    """One `Rows` per run of a stream of records, in order of appearance."""
    done: list[Rows] = []
    open_: dict[tuple[str, str, str], Rows] = {}
    for index, record in enumerate(_with_rollouts(records)):
        key = (record.run, record.source, record.kind)
        rows = open_.get(key)
        if rows is None or not rows.fits(record):
            rows = open_[key] = Rows(
                run=record.run,
                source=record.source,
                kind=record.kind,
                splits=splits and not record.run,
                first=index,
            )
            done.append(rows)
        rows.add(record)
        rows.last = index
    done = _crowds(done)
    kinds = {rows.kind for rows in done}
    kind = next((k for k in ("row", "bar", "pair", "other") if k in kinds), "row")
    return _joined([rows for rows in done if rows.kind == kind])


def _crowds(runs: list[Rows]) -> list[Rows]:
    """Several rows of the first step look like as many runs: they go with the crowded run that follows them."""
    out: list[Rows] = []
    for rows in reversed(runs):
        after = out[-1] if out else None
        alone = after is not None and (rows.run, rows.source, rows.kind) == (after.run, after.source, after.kind)
        if after is not None and alone and after.crowded and {*rows.steps} == {after.steps[0]}:
            rows.extend(after)
            out[-1] = rows
        else:
            out.append(rows)
    for rows in out:
        rows.settle()
    return out[::-1]


def _joined(runs: list[Rows]) -> list[Rows]:
    """A restarted process writes under a new id: it goes on with the run that had ended, unless both wrote at once."""
    out: list[Rows] = []
    for rows in runs:
        before = out[-1] if out else None
        if (
            before is not None
            and rows.source != before.source
            and rows.run == before.run
            and before.last < rows.first
            and rows.n
            and (rows.steps[0] > before.steps[0] or not before._from_the_start(before.steps[0]))
            and not any(o.first < rows.last and rows.first < o.last for o in runs if o is not rows)
        ):
            before.extend(rows)
        else:
            out.append(rows)
    return out


def _with_rollouts(records: Iterable[Record]) -> Iterator[Record]:
    """Some trainers print the rollout and the training step that uses it apart, each counted on its own: one row.

    A rollout that no training step follows has no place among the steps: it is kept only where there are none.
    """
    waiting: Record | None = None
    trained = False
    for record in records:
        if all(key.startswith("rollout/") for key in record.values):
            if waiting is not None and not waiting.values.keys() & record.values.keys():
                waiting.values.update(record.values)
                continue
            if waiting is not None and not trained:
                yield waiting
            waiting = record
            continue
        if any(key.startswith("train/") for key in record.values):
            trained = True
            if waiting is not None:
                record.values = {**waiting.values, **record.values}
                waiting = None
        yield record
    if waiting is not None and not trained:
        yield waiting


def names(columns: Iterable[str]) -> dict[str, str]:
    """Bare key to the key of the log; a key without prefix wins."""
    found: dict[str, str] = {}
    for key in columns:
        if bare(key) not in found or key == bare(key):
            found[bare(key)] = key
    return found
