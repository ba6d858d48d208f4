"""Who drew each answer: the reference, or a policy whose log ratio to the reference is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kleash._checks import message

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["POLICY", "REFERENCE", "SourceError", "Sources", "merged_sources", "sources_of"]

REFERENCE = "reference"
"""The label of rows that the reference drew."""
POLICY = "policy"
"""The name of a source that nobody named."""
_SAME = 1e-6  # nats by which a row's two statements of one log ratio may differ: rounding of what was written


@dataclass(frozen=True, kw_only=True, eq=False)
class Sources:
    """Which policy drew each of N answers, and how much likelier each of S sources makes it than the reference does.

    Parameters
    ----------
    names
        S labels, each with at least one answer; ``reference`` first if it is among them.
    code
        int64 of shape (N,): which source drew an answer.
    log_ratio
        float64 of shape (N, S), nats: log source - log reference of the answer, a sum over its tokens; 0 for the
        reference, NaN where it is not known. A source's log ratio is known on every answer that it drew.
    """

    names: tuple[str, ...]
    code: NDArray[np.int64]
    log_ratio: NDArray[np.float64]

    @property
    def reference(self) -> bool:
        """Whether some of the answers were drawn by the reference."""
        return self.names[0] == REFERENCE

    def rows(self, index: NDArray[np.intp]) -> Sources | None:
        """The same of some answers; None if the reference drew them all."""
        code = self.code[index]
        kept = [number for number in range(len(self.names)) if (code == number).any()]
        if [self.names[number] for number in kept] == [REFERENCE]:
            return None
        place = np.full(len(self.names), -1)
        place[kept] = np.arange(len(kept))
        arrays = {"code": place[code], "log_ratio": self.log_ratio[index][:, kept]}
        for array in arrays.values():
            array.setflags(write=False)
        return Sources(names=tuple(self.names[number] for number in kept), **arrays)


class SourceError(Exception):
    """A row whose source cannot be used: its position, and what is wrong."""

    def __init__(self, *, row: int, text: str) -> None:
        super().__init__(text)
        self.row, self.text = row, text


def sources_of(
    labels: Sequence[str | None] | None,
    own: NDArray[np.float64] | None,
    named: Mapping[str, NDArray[np.float64]],
    *,
    size: int,
) -> Sources | None:
    """Sources of N answers from what their rows say; None where the reference drew them all.

    Parameters
    ----------
    labels
        The source that each row names; None or empty where it names none.
    own
        Log ratio of the row's own source, NaN where it is not given.
    named
        Log ratios to each source by its name, NaN where not given.
    size
        N.

    Returns
    -------
    Sources, or None where the reference drew all answers.

    Raises
    ------
    SourceError
        A policy's row without a log ratio, a reference's row with one, or two that differ.

    Notes
    -----
    A row that names no source is the reference's if its log ratio is missing or 0 wherever it stands, and else the
    source ``policy``'s. Without labels the log ratios of all rows decide together: any that is not 0 makes all rows
    the policy's, and one that is missing is then a fault.
    """
    mine = np.full(size, np.nan) if own is None else own
    named = {name: values for name, values in named.items() if name != REFERENCE}
    drawn = _drawn(labels, mine, named)
    names, code = _numbered(drawn)
    reference = code == 0 if REFERENCE in names else np.zeros(size, dtype=bool)
    _check_reference(reference, mine)
    if names == [REFERENCE]:
        return None
    if not names:
        return None
    table = np.stack([named.get(name, np.full(size, np.nan)) for name in names], axis=1)
    _check_infinite(table, mine, names)
    rows = np.flatnonzero(~reference)
    twice = rows[np.abs(table[rows, code[rows]] - mine[rows]) > _SAME]
    if twice.size:
        row = int(twice[0])
        got = f"{mine[row]:g} beside {table[row, code[row]]:g} in log_ratio[{names[code[row]]}]"
        raise SourceError(row=row, text=message("log_ratio", expected="one log ratio of the row's source", got=got))
    table[rows, code[rows]] = np.where(np.isnan(mine[rows]), table[rows, code[rows]], mine[rows])
    missing = rows[np.isnan(table[rows, code[rows]])]
    if missing.size:
        row = int(missing[0])
        raise SourceError(row=row, text=_missing(names[code[row]]))
    if REFERENCE in names:
        table[:, names.index(REFERENCE)] = 0.0
    return Sources(names=tuple(names), code=code, log_ratio=table)


def _drawn(labels: Sequence[str | None] | None, mine: NDArray[np.float64], named: Mapping[str, Any]) -> list[str]:
    """The label of every row, with those that nobody named filled in."""
    moved = ~np.isnan(mine) & (mine != 0)
    if labels is None:
        if moved.any():
            return [POLICY] * mine.size
        other = next((name for name, values in named.items() if (~np.isnan(values) & (values != 0)).any()), None)
        if other is not None and np.isnan(mine).all():
            fix = "name each row's source in a column source"
            got = f"log_ratio[{other}] without one"
            raise SourceError(row=0, text=message("source", expected="who drew each answer", got=got, fix=fix))
        return [REFERENCE] * mine.size
    return [label or (POLICY if drifted else REFERENCE) for label, drifted in zip(labels, moved.tolist(), strict=True)]


def _numbered(drawn: Sequence[str]) -> tuple[list[str], NDArray[np.int64]]:
    """Names of the sources that drew something, the reference first, and the number of each row's."""
    found = dict.fromkeys(drawn)
    names = [name for name in (REFERENCE,) if name in found] + [name for name in found if name != REFERENCE]
    number = {name: i for i, name in enumerate(names)}
    return names, np.fromiter((number[name] for name in drawn), dtype=np.int64, count=len(drawn))


def _check_infinite(table: NDArray[np.float64], mine: NDArray[np.float64], names: Sequence[str]) -> None:
    """A log ratio of minus infinity says that a source cannot give the answer: only another source's may be that."""
    own = np.flatnonzero(np.isinf(mine))
    wrong = np.flatnonzero((table == np.inf).any(axis=1))
    if own.size or wrong.size:
        row = int(own[0] if own.size else wrong[0])
        raise SourceError(row=row, text=message("log_ratio", expected="a finite number of nats", got="an infinite one"))


def _check_reference(reference: NDArray[np.bool_], mine: NDArray[np.float64]) -> None:
    stray = np.flatnonzero(reference & ~np.isnan(mine) & (mine != 0))
    if stray.size:
        row = int(stray[0])
        fix = "put a policy's log ratio on the reference's answers into log_ratio[NAME]"
        raise SourceError(
            row=row, text=message("log_ratio of a reference row", expected="0", got=f"{mine[row]:g}", fix=fix)
        )


def _missing(name: str) -> str:
    fix = "give log policy - log reference, summed over the answer's tokens (or logp and ref_logp)"
    return message(f"source {name!r}", expected="a log_ratio on every answer it drew", got="none", fix=fix)


def merged_sources(parts: Sequence[tuple[Sources | None, int, str]]) -> Sources | None:
    """Sources of several files as one: (sources, answers, file) of each; sources of one name are one source.

    A source that nobody named goes by its file's name where several files have one: they are different policies.
    """
    unnamed = sum(part is not None and POLICY in part.names for part, _, _ in parts) > 1
    names: dict[str, int] = {}
    codes, tables = [], []
    for part, size, file in parts:
        found = (REFERENCE,) if part is None else part.names
        found = tuple(file if unnamed and name == POLICY else name for name in found)
        place = np.array([names.setdefault(name, len(names)) for name in found])
        codes.append(place[np.zeros(size, dtype=np.int64) if part is None else part.code])
        tables.append((place, np.zeros((size, 1)) if part is None else part.log_ratio))
    if list(names) == [REFERENCE]:
        return None
    log_ratio = np.full((sum(size for _, size, _ in parts), len(names)), np.nan)
    start = 0
    for place, table in tables:
        log_ratio[start : start + len(table), place] = table
        start += len(table)
    if REFERENCE in names:
        log_ratio[:, names[REFERENCE]] = 0.0
    order = sorted(names, key=lambda name: (name != REFERENCE, names[name]))
    number = np.empty(len(names), dtype=np.int64)
    number[[names[name] for name in order]] = np.arange(len(names))
    columns = [names[name] for name in order]
    return Sources(names=tuple(order), code=number[np.concatenate(codes)], log_ratio=log_ratio[:, columns])
