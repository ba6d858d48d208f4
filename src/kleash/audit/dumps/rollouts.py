"""How is a rollout dump read? One row per answer, in pieces of bounded size, checked line by line.

A dump is JSONL, a JSON array or Parquet, as `kleash.rows` reads them. Its columns:

=====================  ===========================================================================================
``logp``               list of numbers, one per token: log-probability of each sampled token under the policy, nats
``ref_logp``           the same tokens under the reference
``behavior_logp``      optional: the same tokens as reported by whatever sampled them
``entropy``            optional, per token: entropy in nats of the policy's full next-token distribution
``mask``               optional, per token: 1 where the token counts, 0 for prompt, padding or tool output
``seq_logp``           sums over the answer instead of (or beside) the lists
``seq_ref_logp``       the same under the reference
``length``             optional: how many tokens were summed, or count
``reward``, ``gold``   optional numbers per answer
``prompt_id``          optional: answers with one ``prompt_id`` (and one ``step``) form a group
``step``               optional whole number: how many updates the policy had had; 0 is before the first
``probe_id``           optional: rows with one ``probe_id`` are the same text, scored again at another step
=====================  ===========================================================================================
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from kleash._checks import message, nearest, short
from kleash.errors import MissingColumnError
from kleash.rows import Source

if TYPE_CHECKING:
    import polars as pl
    from numpy.typing import NDArray

    from kleash.estimates import Floats

__all__ = ["COLUMNS", "Chunk", "read_chunks"]

TOKEN_COLUMNS = ("logp", "ref_logp", "behavior_logp", "entropy")
NUMBER_COLUMNS = ("seq_logp", "seq_ref_logp", "length", "reward", "gold", "step")
LABEL_COLUMNS = ("prompt_id", "probe_id")
COLUMNS = (*TOKEN_COLUMNS, "mask", *NUMBER_COLUMNS, *LABEL_COLUMNS)

TOKENS_PER_CHUNK = 500_000
ROWS_PER_CHUNK = 50_000


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Some consecutive rows of a dump: token columns flat, with ``offsets`` (rows + 1) saying where each row starts.

    ``tokens`` holds the token columns present, float64, null as NaN; ``mask`` is all True where the dump has none.
    ``numbers`` and ``labels`` hold the columns per answer; a null number is NaN and counted nowhere. ``numbered`` gives
    the rows their places in the file where some were taken out.
    """

    first_row: int
    rows: int
    offsets: NDArray[np.int64]
    tokens: dict[str, Floats]
    mask: NDArray[np.bool_]
    numbers: dict[str, Floats]
    labels: dict[str, list[str]]
    columns: tuple[str, ...] = field(repr=False)
    numbered: NDArray[np.int64] | None = field(default=None, repr=False)

    def row(self, index: int) -> int:
        """The 1-based row of the file that an index of this chunk stands for."""
        return 1 + (self.first_row + index if self.numbered is None else int(self.numbered[index]))


def read_chunks(source: Source) -> Iterator[Chunk]:
    """The dump in pieces of about half a million tokens, so that memory does not grow with the file.

    Raises `MissingColumnError`: Neither ``logp`` and ``ref_logp`` nor ``seq_logp`` and ``seq_ref_logp`` are there.
    `DataError`: Anything else that keeps a row from being read, with file and line (Parquet: row).
    """
    rows, stated = 0, source.columns() if source.format.typed else None
    for chunk in _from_rows(source) if stated is None else _from_frames(source, list(stated)):
        rows += chunk.rows
        yield chunk
    if rows == 0:
        raise source.error(message("rollout dump", expected="at least one row", got="an empty file"))


def _usable(names: list[str], source: Source, line: int | None = None) -> tuple[str, ...]:
    """The known columns among ``names``, or an error when no log-probabilities are there."""
    known = tuple(name for name in COLUMNS if name in names)
    for first, second in (("logp", "ref_logp"), ("seq_logp", "seq_ref_logp")):
        if first in known and second in known:
            return known
    half = next((pair for pair in (("logp", "ref_logp"), ("seq_logp", "seq_ref_logp")) if set(pair) & set(known)), None)
    if half is not None:
        missing = next(name for name in half if name not in known)
        near = nearest(missing, [n for n in names if n not in known] or names)
        text = message("column", expected=missing, got="columns " + ", ".join(names), fix=near)
    else:
        got = "columns " + ", ".join(names) if names else "no columns"
        text = message("rollout dump", expected="logp and ref_logp (or seq_logp and seq_ref_logp)", got=got)
    raise MissingColumnError(text, path=source.shown, line=line)


# ------------------------------------------------------------------------------------------------------- row by row


def _from_rows(source: Source) -> Iterator[Chunk]:
    columns: tuple[str, ...] = ()
    rows: list[tuple[int, dict[str, Any]]] = []
    tokens = first = 0
    for line, row in source.rows():
        if not columns:
            columns = _usable(list(row), source, line)
        _must_not_be_late(row, columns, source, line)
        lists = _row_lists(row, columns, source, line)
        rows.append((line, {**row, **lists}))
        tokens += len(lists["logp"]) if "logp" in lists else 0
        if tokens >= TOKENS_PER_CHUNK or len(rows) >= ROWS_PER_CHUNK:
            yield _pack_rows(rows, columns, source, first=first)
            first, tokens, rows = first + len(rows), 0, []
    if rows:
        yield _pack_rows(rows, columns, source, first=first)


def _must_not_be_late(row: dict[str, Any], columns: tuple[str, ...], source: Source, line: int) -> None:
    late = next((name for name in COLUMNS if name in row and name not in columns), None)
    if late is not None:
        fix = "give it in every row" + ("" if late in (*TOKEN_COLUMNS, "mask") else ", null where there is none")
        raise source.error(message(late, expected="in the first row too", got="it from this row on", fix=fix), line)


def _row_lists(row: dict[str, Any], columns: tuple[str, ...], source: Source, line: int) -> dict[str, Floats]:
    lists = {name: _list(row.get(name), name, source, line) for name in (*TOKEN_COLUMNS, "mask") if name in columns}
    if len({values.size for values in lists.values()}) > 1:
        got = ", ".join(f"{name} {values.size}" for name, values in lists.items())
        raise source.error(message("row", expected="lists of one length", got=got), line)
    _check_mask(lists.get("mask"), source, line)
    return lists


_KINDS = {int, float, type(None)}
_MASK_KINDS = {*_KINDS, bool}


def _list(value: Any, name: str, source: Source, line: int) -> Floats:
    """The numbers of a token column, null as NaN."""
    kinds = _MASK_KINDS if name == "mask" else _KINDS
    if not isinstance(value, list):
        got = "nothing" if value is None else f"a {type(value).__name__}"
    elif not kinds.issuperset(map(type, value)):
        got = short(repr(next(x for x in value if type(x) not in kinds)))
    else:
        try:
            return np.array(value, dtype=np.float64)
        except OverflowError:
            got = "a whole number past the float range"
    raise source.error(message(name, expected="a list of numbers", got=got), line)


def _check_mask(mask: Floats | None, source: Source, line: int | None) -> None:
    if mask is not None and not np.isin(mask, (0.0, 1.0)).all():
        bad = float(mask[~np.isin(mask, (0.0, 1.0))][0])
        raise source.error(message("mask", expected="only 0 and 1", got=f"{bad:g}"), line)


def _pack_rows(
    rows: list[tuple[int, dict[str, Any]]], columns: tuple[str, ...], source: Source, *, first: int
) -> Chunk:
    numbers = {}
    for name in filter(columns.__contains__, NUMBER_COLUMNS):
        values = [_number(row.get(name), name, source, line) for line, row in rows]
        recorded = np.array([row.get(name) is not None for _, row in rows])
        numbers[name] = _checked(np.array(values), recorded, name, source, [line for line, _ in rows])
    lists = [name for name in (*TOKEN_COLUMNS, "mask") if name in columns]
    return _chunk(
        columns,
        first=first,
        lengths=np.array([row["logp"].size if "logp" in columns else 0 for _, row in rows], dtype=np.int64),
        tokens={name: np.concatenate([row[name] for _, row in rows]) for name in lists},
        numbers=numbers,
        labels={name: [_label(row.get(name)) for _, row in rows] for name in LABEL_COLUMNS if name in columns},
    )


def _chunk(
    columns: tuple[str, ...],
    *,
    first: int,
    lengths: NDArray[np.int64],
    tokens: dict[str, Floats],
    numbers: dict[str, Floats],
    labels: dict[str, list[str]],
) -> Chunk:
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    mask = tokens.pop("mask", None)
    return Chunk(
        first_row=first,
        rows=lengths.size,
        offsets=offsets,
        tokens=tokens,
        mask=np.ones(int(offsets[-1]), dtype=bool) if mask is None else mask.astype(bool),
        numbers=numbers,
        labels=labels,
        columns=columns,
    )


def _number(value: Any, name: str, source: Source, line: int) -> float:
    if value is None:
        return float("nan")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise source.error(message(name, expected="a number", got=short(repr(value))), line)
    try:
        return float(value)
    except OverflowError:
        got = "a whole number past the float range"
        raise source.error(message(name, expected="a number", got=got), line) from None


def _checked(values: Floats, recorded: NDArray[np.bool_], name: str, source: Source, lines: Sequence[int]) -> Floats:
    """Numbers as a chunk holds them; an error for what cannot be.

    A score that is recorded and not finite is infinite: a number that nobody can train on, for finding NON_FINITE.
    """
    bad, expected = np.zeros(values.size, dtype=bool), ""
    if name in ("reward", "gold"):
        values = np.where(recorded & ~np.isfinite(values), np.inf, values)
    elif name == "length":
        bad, expected = values < 0, "a number of tokens, at least 0"
    elif name == "step":
        bad = recorded & ~(np.isfinite(values) & (values >= 0) & (values == np.floor(values)))
        expected = "a whole number of updates, at least 0"
    if bad.any():
        at = int(bad.argmax())
        raise source.error(message(name, expected=expected, got=f"{values[at]:g}"), lines[at])
    return values


def _label(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    try:
        return json.dumps(value)
    except (TypeError, ValueError, RecursionError):  # bytes, dates, decimals: any text that tells them apart
        return f"{type(value).__name__} {value!s}"


# ---------------------------------------------------------------------------------------------------- whole batches


def _from_frames(source: Source, names: list[str]) -> Iterator[Chunk]:
    columns, first = _usable(names, source), 0
    for table in source.batches(columns, _batch_size(source, columns)) or ():
        for piece in _pieces(_with_lists(table), columns):
            yield _pack_frame(piece, columns, source, first=first)
            first += piece.height


def _with_lists(table: pl.DataFrame) -> pl.DataFrame:
    """Lists of one length each, which Parquet can state, as lists."""
    import polars as pl

    return table.with_columns(pl.col(name).arr.to_list() for name, kind in table.schema.items() if kind == pl.Array)


def _batch_size(source: Source, columns: tuple[str, ...]) -> int:
    """Rows of about a few chunks, judged by the first ones."""
    start = next(iter(source.batches(columns, 64) or ()), None)
    if start is None or not start.height:
        return 64
    start = _with_lists(start)
    width = sum(start[name].list.len().sum() or 0 for name in start.columns if hasattr(start[name].dtype, "inner"))
    return int(min(ROWS_PER_CHUNK, max(16, 4 * TOKENS_PER_CHUNK * start.height // max(1, width))))


def _pieces(table: pl.DataFrame, columns: tuple[str, ...]) -> Iterator[pl.DataFrame]:
    """A batch cut so that no piece has many more tokens than a chunk should, unless a single answer has."""
    if "logp" not in columns or not hasattr(table["logp"].dtype, "inner") or not table.height:
        yield table
        return
    ends = table["logp"].list.len().fill_null(0).cum_sum().to_numpy()
    cuts = np.flatnonzero(np.diff(ends // TOKENS_PER_CHUNK)) + 1
    for first, last in pairwise([0, *cuts.tolist(), table.height]):
        yield table.slice(first, last - first)


def _pack_frame(table: pl.DataFrame, columns: tuple[str, ...], source: Source, *, first: int) -> Chunk:
    rows = range(first + 1, first + table.height + 1)
    flat: dict[str, Floats] = {}
    lengths: dict[str, NDArray[np.int64]] = {}
    for name in (*TOKEN_COLUMNS, "mask"):
        if name in columns:
            lengths[name], flat[name] = _flat(table[name], source, rows)
    for name, count in lengths.items():
        differ = count != lengths["logp"]
        if differ.any():
            at = int(differ.argmax())
            got = f"logp {lengths['logp'][at]}, {name} {count[at]}"
            raise source.error(message("row", expected="lists of one length", got=got), rows[at])
    _check_mask(flat.get("mask"), source, None)
    return _chunk(
        columns,
        first=first,
        lengths=lengths.get("logp", np.zeros(table.height, dtype=np.int64)),
        tokens=flat,
        numbers={name: _table_numbers(table[name], source, rows) for name in NUMBER_COLUMNS if name in columns},
        labels={name: [_label(x) for x in table[name].to_list()] for name in LABEL_COLUMNS if name in columns},
    )


def _flat(series: pl.Series, source: Source, rows: Sequence[int]) -> tuple[NDArray[np.int64], Floats]:
    """How many numbers each row of a token column has, and all of them, null as NaN."""
    import polars as pl

    inner = getattr(series.dtype, "inner", None)
    if inner is None or not (inner.is_numeric() or inner == pl.Null or (inner == pl.Boolean and series.name == "mask")):
        got = f"a column of {series.dtype}"
        raise source.error(message(series.name, expected="a column of lists of numbers", got=got))
    if series.null_count():
        at = int(series.is_null().arg_true()[0])
        raise source.error(message(series.name, expected="a list of numbers", got="nothing"), rows[at])
    values = series.filter(series.list.len() > 0).explode().cast(pl.Float64)
    return series.list.len().to_numpy().astype(np.int64), values.fill_null(float("nan")).to_numpy()


def _table_numbers(series: pl.Series, source: Source, rows: Sequence[int]) -> Floats:
    import polars as pl

    if not (series.dtype.is_numeric() or series.dtype in (pl.Boolean, pl.Null)):
        raise source.error(message(series.name, expected="numbers", got=f"a column of {series.dtype}"))
    values = series.cast(pl.Float64)
    recorded = values.is_not_null().to_numpy()
    return _checked(values.fill_null(float("nan")).to_numpy(), recorded, series.name, source, rows)
