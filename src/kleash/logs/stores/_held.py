"""A run as a store holds it, and what a store is."""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import BinaryIO

from kleash.logs._config import ConfigScan
from kleash.logs._console import Record

__all__ = ["Held", "Pieces", "Point", "Store", "rows_of"]

Point = tuple[str, float, float]
"""Name, step, value."""


@dataclass
class Held:
    """One run: its rows, and what is known of it behind the last of them.

    Parameters
    ----------
    records
        Rows as they are read.
    run
        Its name; empty: that of the file.
    config
        What the store holds of the configuration.
    notes
        What was damaged.
    """

    records: Iterable[Record] = ()
    run: str = ""
    config: ConfigScan = field(default_factory=ConfigScan)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Store:
    """How one format is known and read; to read another, write one of these and name it in `STORES`.

    Parameters
    ----------
    name
        In messages.
    recognised
        Whether a file with these first bytes, or a folder, is one.
    runs
        The runs in it. Raises a `DataError` for what cannot be read at all.
    splits
        Whether a run in it may start again from its first step, as another.
    """

    name: str
    recognised: Callable[[Path, bytes], bool]
    runs: Callable[[Path], Iterator[Held]]
    splits: bool = False


class Pieces:
    """The bytes of a file, taken piece by piece.

    ``cut`` is set where the file ended inside a piece.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.cut = False

    def take(self, size: int) -> bytes:
        """So many bytes; none at the end of the file, and none of a piece that is not there whole."""
        data = self.upto(size)
        self.cut |= 0 < len(data) < size
        return data if len(data) == size else b""

    def upto(self, size: int) -> bytes:
        """So many bytes, or those that are left."""
        try:
            return self._stream.read(size)
        except EOFError:  # a gzip archive that ends too early
            self.cut = True
            return b""


def rows_of(points: Iterable[Point], *, shown: Callable[[float], str] = repr) -> Iterator[Record]:
    """Rows of series: values of one step together, steps rising; where a series goes back, a resume, they begin again.

    Parameters
    ----------
    points
        In the order in which they were written: step by step, or one series after the other.
    shown
        A value as its writer would print it, from which its digits are learnt.

    Returns
    -------
    An iterator of records. A series that has a step twice gives two rows of it.
    """
    series: dict[str, tuple[array[float], array[float]]] = {}
    for name, step, value in points:
        if name in series and step < series[name][0][-1]:
            yield from _merged(series, shown)
            series = {}
        steps, values = series.setdefault(name, (array("d"), array("d")))
        steps.append(step)
        values.append(value)
    yield from _merged(series, shown)


def _merged(series: dict[str, tuple[array[float], array[float]]], shown: Callable[[float], str]) -> Iterator[Record]:
    ordered = heapq.merge(*(_numbered(name, *columns) for name, columns in series.items()))
    for (step, _), cells in groupby(ordered, key=lambda cell: cell[:2]):
        yield Record({name: (value, shown(value)) for _, _, name, value in cells}, step=step)


def _numbered(name: str, steps: array[float], values: array[float]) -> Iterator[tuple[float, int, str, float]]:
    """Points of a series, each with how often its step came before."""
    before, times = None, 0
    for step, value in zip(steps, values, strict=True):
        times = times + 1 if step == before else 0
        before = step
        yield step, times, name, value
