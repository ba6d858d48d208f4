"""How is a rollout dump read? One row per answer, in pieces of bounded size, checked line by line.

A dump is JSONL (``.jsonl``, also ``.gz``, or ``-`` for stdin) or Parquet. Its columns:

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

import gzip
import json
import sys
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kleash._checks import message, nearest
from kleash.errors import DataError, MissingColumnError, MissingFileError

if TYPE_CHECKING:
    import polars as pl
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

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


def read_chunks(path: str | Path) -> Iterator[Chunk]:
    """The dump in pieces of about half a million tokens, so that memory does not grow with the file.

    Raises
    ------
    MissingFileError
        No such file.
    MissingColumnError
        Neither ``logp`` and ``ref_logp`` nor ``seq_logp`` and ``seq_ref_logp`` are there.
    DataError
        Anything else that keeps a row from being read, with file and line (Parquet: row).
    """
    if str(path) != "-" and not Path(path).is_file():
        what = "a folder" if Path(path).is_dir() else "nothing of that name"
        raise MissingFileError(message(str(path), expected="a rollout dump", got=what, fix="check the path"))
    rows = 0
    chunks = _from_parquet(Path(path)) if _is_parquet(path) else _from_jsonl(path)
    for chunk in chunks:
        rows += chunk.rows
        yield chunk
    if rows == 0:
        raise DataError(message("rollout dump", expected="at least one row", got="an empty file"), path=path)


def _is_parquet(path: str | Path) -> bool:
    if str(path) == "-":
        return False
    with open(path, "rb") as file:
        return file.read(4) == b"PAR1"


def _usable(names: list[str], *, path: str | Path, line: int | None = None) -> tuple[str, ...]:
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
    raise MissingColumnError(text, path=path, line=line)


# ------------------------------------------------------------------------------------------------------------ JSONL


def _lines(path: str | Path) -> Iterator[tuple[int, bytes]]:
    def numbered(file: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield number, line

    if str(path) == "-":
        yield from numbered(sys.stdin.buffer)
        return
    with open(path, "rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
    try:
        with open(path, "rb") as raw:
            yield from numbered(gzip.GzipFile(fileobj=raw) if packed else raw)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(message("gzip", expected="a whole file", got=str(error)), path=path) from None


def _from_jsonl(path: str | Path) -> Iterator[Chunk]:
    columns: tuple[str, ...] = ()
    rows: list[tuple[int, dict[str, Any]]] = []
    tokens = first = 0
    for number, line in _lines(path):
        row = _parse(line, path=path, number=number)
        if not columns:
            columns = _usable(list(row), path=path, line=number)
        late = next((name for name in COLUMNS if name in row and name not in columns), None)
        if late is not None:
            fix = "give it in every row" + ("" if late in (*TOKEN_COLUMNS, "mask") else ", null where there is none")
            text = message(late, expected="in the first row too", got="it from this row on", fix=fix)
            raise DataError(text, path=path, line=number)
        lists = _row_lists(row, columns, path=path, number=number)
        rows.append((number, {**row, **lists}))
        tokens += len(lists["logp"]) if "logp" in lists else 0
        if tokens >= TOKENS_PER_CHUNK or len(rows) >= ROWS_PER_CHUNK:
            yield _pack_rows(rows, columns, first=first, path=path)
            first, tokens, rows = first + len(rows), 0, []
    if rows:
        yield _pack_rows(rows, columns, first=first, path=path)


def _parse(line: bytes, *, path: str | Path, number: int) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except UnicodeDecodeError:
        fix = "name a JSONL or Parquet file"
        raise DataError(message("line", expected="UTF-8 text", got="other bytes", fix=fix), path=path) from None
    except json.JSONDecodeError as error:
        got = f"{error.msg} at column {error.colno}"
        raise DataError(message("line", expected="one JSON object", got=got), path=path, line=number) from None
    except (ValueError, RecursionError) as error:
        got = "lists nested too deeply" if isinstance(error, RecursionError) else "a number of too many digits"
        raise DataError(message("line", expected="one JSON object", got=got), path=path, line=number) from None
    if not isinstance(row, dict):
        kind = type(row).__name__
        raise DataError(message("line", expected="one JSON object", got=f"a {kind}"), path=path, line=number)
    return row


def _row_lists(row: dict[str, Any], columns: tuple[str, ...], *, path: str | Path, number: int) -> dict[str, Floats]:
    lists: dict[str, Floats] = {}
    for name in (*TOKEN_COLUMNS, "mask"):
        if name not in columns:
            continue
        value = row.get(name)
        if not isinstance(value, list):
            got = "nothing" if value is None else f"a {type(value).__name__}"
            raise DataError(message(name, expected="a list of numbers", got=got), path=path, line=number)
        kinds = _MASK_KINDS if name == "mask" else _KINDS
        if not kinds.issuperset(map(type, value)):
            bad = next(x for x in value if type(x) not in kinds)
            raise DataError(message(name, expected="a list of numbers", got=_short(bad)), path=path, line=number)
        try:
            lists[name] = np.array(value, dtype=np.float64)
        except OverflowError:
            got = "a whole number past the float range"
            raise DataError(message(name, expected="a list of numbers", got=got), path=path, line=number) from None
    sizes = {name: values.size for name, values in lists.items()}
    if len(set(sizes.values())) > 1:
        got = ", ".join(f"{name} {size}" for name, size in sizes.items())
        raise DataError(message("row", expected="lists of one length", got=got), path=path, line=number)
    _check_mask(lists.get("mask"), path=path, line=number)
    return lists


_KINDS = {int, float, type(None)}
_MASK_KINDS = {*_KINDS, bool}


def _short(value: Any) -> str:
    try:
        return repr(value)[:40]
    except (RecursionError, ValueError):
        return f"a {type(value).__name__}"


def _check_mask(mask: Floats | None, *, path: str | Path, line: int | None) -> None:
    if mask is not None and not np.isin(mask, (0.0, 1.0)).all():
        bad = float(mask[~np.isin(mask, (0.0, 1.0))][0])
        raise DataError(message("mask", expected="only 0 and 1", got=f"{bad:g}"), path=path, line=line)


def _pack_rows(
    rows: list[tuple[int, dict[str, Any]]], columns: tuple[str, ...], *, first: int, path: str | Path
) -> Chunk:
    lengths = [row["logp"].size if "logp" in row and "logp" in columns else 0 for _, row in rows]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    tokens = {name: np.concatenate([row[name] for _, row in rows]) for name in TOKEN_COLUMNS if name in columns}
    if "mask" in columns:
        mask = np.concatenate([row["mask"] for _, row in rows]).astype(bool)
    else:
        mask = np.ones(int(offsets[-1]), dtype=bool)
    numbers = {name: np.empty(len(rows)) for name in NUMBER_COLUMNS if name in columns}
    for name, values in numbers.items():
        for i, (number, row) in enumerate(rows):
            values[i] = _number(row.get(name), name=name, path=path, line=number)
    labels = {name: [_label(row.get(name)) for _, row in rows] for name in LABEL_COLUMNS if name in columns}
    return Chunk(
        first_row=first,
        rows=len(rows),
        offsets=offsets,
        tokens=tokens,
        mask=mask,
        numbers=numbers,
        labels=labels,
        columns=columns,
    )


def _number(value: Any, *, name: str, path: str | Path, line: int) -> float:
    if value is None:
        return float("nan")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise DataError(message(name, expected="a number", got=_short(value)), path=path, line=line)
    try:
        value = float(value)
    except OverflowError:
        got = "a whole number past the float range"
        raise DataError(message(name, expected="a number", got=got), path=path, line=line) from None
    if name == "length" and value < 0:
        raise DataError(
            message(name, expected="a number of tokens, at least 0", got=f"{value:g}"), path=path, line=line
        )
    if name == "step" and (not np.isfinite(value) or value != int(value) or value < 0):
        expected = "a whole number of updates, at least 0"
        raise DataError(message(name, expected=expected, got=f"{value}"), path=path, line=line)
    if name in ("reward", "gold") and not np.isfinite(value):
        return float("inf")  # recorded and not a number anyone can train on: finding NON_FINITE
    return float(value)


def _label(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    try:
        return json.dumps(value)
    except (TypeError, ValueError, RecursionError):  # bytes, dates, decimals: any text that tells them apart
        return f"{type(value).__name__} {value!s}"


# ---------------------------------------------------------------------------------------------------------- Parquet


def _from_parquet(path: Path) -> Iterator[Chunk]:
    import polars as pl

    try:
        frame = pl.scan_parquet(path)
        names = list(frame.collect_schema().names())
        columns = _usable(names, path=path)
        total = int(frame.select(pl.len()).collect().item())
        schema = frame.collect_schema()
        fixed = [name for name in columns if isinstance(schema[name], pl.Array)]
        chosen = frame.select(columns).with_columns(pl.col(name).arr.to_list() for name in fixed)
        start = chosen.slice(0, 64).collect()
        first = 0
        for table in _batches(chosen, start, total):
            for piece in _pieces(table, columns):
                yield _pack_table(piece, columns, first=first, path=path)
                first += piece.height
    except (pl.exceptions.PolarsError, OSError) as error:
        got = str(error).splitlines()[0][:120]
        raise DataError(message("Parquet", expected="a readable file", got=got), path=path) from None


def _batches(frame: pl.LazyFrame, start: pl.DataFrame, total: int) -> Iterator[pl.DataFrame]:
    """The table in batches of about a chunk, judged by its first rows; streamed where this polars can."""
    width = max(1, sum(start[n].list.len().sum() for n in start.columns if hasattr(start[n].dtype, "inner")))
    rows = int(min(ROWS_PER_CHUNK, max(16, 4 * TOKENS_PER_CHUNK * max(1, start.height) // width)))
    if hasattr(frame, "collect_batches"):
        yield from frame.collect_batches(chunk_size=rows, maintain_order=True)
        return
    for first in range(0, total, rows):
        yield frame.slice(first, rows).collect()


def _pieces(table: pl.DataFrame, columns: tuple[str, ...]) -> Iterator[pl.DataFrame]:
    """A batch cut so that no piece has many more tokens than a chunk should, unless a single answer has."""
    if "logp" not in columns or not hasattr(table["logp"].dtype, "inner") or not table.height:
        yield table
        return
    ends = table["logp"].list.len().fill_null(0).cum_sum().to_numpy()
    cuts = np.flatnonzero(np.diff(ends // TOKENS_PER_CHUNK)) + 1
    for first, last in zip([0, *cuts.tolist()], [*cuts.tolist(), table.height], strict=True):
        yield table.slice(first, last - first)


def _pack_table(table: pl.DataFrame, columns: tuple[str, ...], *, first: int, path: Path) -> Chunk:
    import polars as pl

    flat: dict[str, Floats] = {}
    lengths: dict[str, NDArray[np.int64]] = {}
    for name in (*TOKEN_COLUMNS, "mask"):
        if name not in columns:
            continue
        series = table[name]
        inner = getattr(series.dtype, "inner", None)
        if inner is None or not (inner.is_numeric() or inner == pl.Null or (inner == pl.Boolean and name == "mask")):
            got = f"a column of {series.dtype}"
            raise DataError(message(name, expected="a column of lists of numbers", got=got), path=path)
        if series.null_count():
            row = first + int(series.is_null().arg_true()[0]) + 1
            raise DataError(message(name, expected="a list of numbers", got=f"nothing in row {row}"), path=path)
        lengths[name] = series.list.len().to_numpy().astype(np.int64)
        values = series.filter(series.list.len() > 0).explode().cast(pl.Float64)
        flat[name] = values.fill_null(float("nan")).to_numpy()
    for name, count in lengths.items():
        other = lengths["logp"]
        if (count != other).any():
            row = int(np.flatnonzero(count != other)[0])
            got = f"logp {other[row]}, {name} {count[row]} in row {first + row + 1}"
            raise DataError(message("row", expected="lists of one length", got=got), path=path)
    _check_mask(flat.get("mask"), path=path, line=None)
    rows = table.height
    offsets = np.concatenate([[0], np.cumsum(lengths.get("logp", np.zeros(rows, dtype=np.int64)))]).astype(np.int64)
    return Chunk(
        first_row=first,
        rows=rows,
        offsets=offsets,
        tokens={name: flat[name] for name in TOKEN_COLUMNS if name in flat},
        mask=flat["mask"].astype(bool) if "mask" in flat else np.ones(int(offsets[-1]), dtype=bool),
        numbers={
            name: _table_numbers(table[name], first=first, path=path) for name in NUMBER_COLUMNS if name in columns
        },
        labels={name: [_label(x) for x in table[name].to_list()] for name in LABEL_COLUMNS if name in columns},
        columns=columns,
    )


def _table_numbers(series: pl.Series, *, first: int, path: Path) -> Floats:
    import polars as pl

    if not (series.dtype.is_numeric() or series.dtype in (pl.Boolean, pl.Null)):
        raise DataError(message(series.name, expected="numbers", got=f"a column of {series.dtype}"), path=path)
    values = series.cast(pl.Float64)
    recorded = values.is_not_null().to_numpy()
    array = values.fill_null(float("nan")).to_numpy().copy()
    if series.name == "step":
        bad = recorded & ~(np.isfinite(array) & (array >= 0) & (array == np.floor(array)))
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            got = f"{array[row]:g} in row {first + row + 1}"
            raise DataError(message("step", expected="a whole number of updates, at least 0", got=got), path=path)
    if series.name == "length" and (array < 0).any():
        row = int(np.flatnonzero(array < 0)[0])
        got = f"{array[row]:g} in row {first + row + 1}"
        raise DataError(message("length", expected="a number of tokens, at least 0", got=got), path=path)
    if series.name in ("reward", "gold"):
        array[recorded & ~np.isfinite(array)] = np.inf
    return np.asarray(array, dtype=np.float64)
