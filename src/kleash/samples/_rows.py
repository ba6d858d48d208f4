"""Rows of a CSV, JSONL or Parquet file, each with the line it stands on.

There are two ways in. `csv_batches` and `parquet_batches` read fast, through polars, and promise nothing about a
file that is not regular. `csv_chunks`, `jsonl_chunks` and `parquet_chunks` go row by row, know every line number
and raise the error a person can act on. A reader takes the fast way and, at the first doubt, the slow one.
"""

from __future__ import annotations

import codecs
import csv
import difflib
import gzip
import json
import os
import shutil
import sys
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, NoReturn

import numpy as np

from kleash._checks import message
from kleash._files import sha256
from kleash.errors import DataError, MissingFileError

if TYPE_CHECKING:
    import polars as pl

Chunk = tuple[list[int], list[dict[str, Any]]]
"""Line (Parquet: row) numbers, 1-based, and as many rows."""

_ROWS = 16_384
_BYTES = 1 << 22
_KINDS = "CSV, JSONL or Parquet (CSV and JSONL also gzipped)"


@dataclass(frozen=True, kw_only=True)
class Source:
    """A file opened for reading: how it is called, where its unpacked bytes are, what they are."""

    name: str
    """As the caller named it; ``-`` is standard input."""
    path: Path
    """Unpacked bytes; a temporary file for standard input and gzip."""
    format: Literal["csv", "jsonl", "parquet"]
    sha256: str
    """Of the bytes as they came, before unpacking."""

    def error(self, text: str, line: int | None = None) -> DataError:
        """A `DataError` at a line of this file (at a row of it, where a format has no lines)."""
        if self.format == "parquet" and line is not None:
            return DataError(f"row {line}: {text}", path=self.shown)
        return DataError(text, path=self.shown, line=line)

    @property
    def shown(self) -> str:
        """The name in messages."""
        return "stdin" if self.name == "-" else self.name


@contextmanager
def opened(name: str | Path, *, stdin: BinaryIO | None = None) -> Iterator[Source]:
    """Open a file or standard input (``-``), unpack it if need be, and find out what it is.

    Raises
    ------
    MissingFileError
        There is no such file.
    DataError
        A folder, an empty file, a broken archive, or none of the three formats.
    """
    name = os.fspath(name)
    with ExitStack() as stack:
        if name == "-":
            path = _spooled(stack, stdin if stdin is not None else sys.stdin.buffer)
        else:
            path = Path(name)
            _must_be_file(path)
        shown = "stdin" if name == "-" else name
        try:
            digest = sha256(path)
            with open(path, "rb") as file:
                packed = file.read(2) == b"\x1f\x8b"
            if packed:
                with gzip.open(path, "rb") as unpacked:
                    path = _spooled(stack, unpacked)
            with open(path, "rb") as file:
                head = file.read(1 << 16)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise DataError(f"broken or truncated gzip ({error}); make the archive again", path=shown) from error
        except OSError as error:
            raise DataError(f"cannot be read: {error.strerror or error}", path=shown) from error
        suffix = Path(name.lower().removesuffix(".gz")).suffix
        yield Source(name=name, path=path, format=_format(head, suffix, shown), sha256=digest)


def _must_be_file(path: Path) -> None:
    if path.is_dir():
        raise DataError(message("input", expected=f"a file, {_KINDS}", got="a folder", fix="name files"), path=path)
    if not path.exists():
        folder = path.parent
        names = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
        close = difflib.get_close_matches(path.name, names, n=1)
        fix = f"did you mean {folder / close[0]}?" if close else "check the path"
        raise MissingFileError(message(f"{path}", expected="a file", got="nothing there", fix=fix))


def _spooled(stack: ExitStack, stream: Any) -> Path:
    spool = stack.enter_context(tempfile.NamedTemporaryFile(prefix="kleash-"))  # noqa: SIM115
    shutil.copyfileobj(stream, spool, _BYTES)
    spool.flush()
    return Path(spool.name)


def _format(head: bytes, suffix: str, shown: str) -> Literal["csv", "jsonl", "parquet"]:
    """What the first bytes are; the extension decides only where they leave it open."""
    if head.startswith(b"PAR1"):
        return "parquet"
    if not head:
        raise DataError(message("file", expected="rows", got="an empty file (0 bytes)"), path=shown)
    if suffix in {".parquet", ".pq"}:
        raise DataError(message("unreadable Parquet", expected="'PAR1' as first bytes", got=repr(head[:4])), path=shown)
    text = head.removeprefix(codecs.BOM_UTF8).lstrip()
    if not text:
        raise DataError(message("file", expected="rows", got="an empty file (blank lines)"), path=shown)
    if text.startswith(b"{") or suffix in {".jsonl", ".ndjson"}:
        return "jsonl"
    if text.startswith(b"[") and suffix != ".csv":
        fix = "write JSONL (jq -c '.[]')"
        raise DataError(message("file", expected="one JSON object per line", got="a JSON array", fix=fix), path=shown)
    binary = b"\0" in head
    if not binary and (suffix == ".csv" or b"," in text.splitlines()[0]):
        return "csv"
    got = "binary data" if binary else "text that is none of the three"
    raise DataError(message("file", expected=_KINDS, got=got), path=shown)


# ------------------------------------------------------------------------------------------------------------- CSV


def csv_header(source: Source) -> list[str]:
    """Column names as they stand in the file; a byte-order mark and blank lines in front are skipped.

    Raises
    ------
    DataError
        No header, or two columns of one name.
    """
    line, cells = next(_csv_records(source), (1, []))
    seen: set[str] = set()
    for name in map(str.strip, cells):
        if name and name in seen:
            text = message("header", expected="column names that differ", got=f"{name!r} twice", fix="rename one")
            raise source.error(text, line)
        seen.add(name)
    return cells


def csv_chunks(source: Source) -> Iterator[Chunk]:
    """Rows of a CSV as text, with the line each starts on; quoted line breaks are counted."""
    records = _csv_records(source)
    header = [name.strip() for name in next(records)[1]]
    width = len(header)
    lines: list[int] = []
    rows: list[dict[str, Any]] = []
    for line, cells in records:
        extra = len(cells) > width and any(map(str.strip, cells[width:]))
        if extra or len(cells) < width:
            fix = "quote texts with commas" if extra else "the file may be cut off here"
            got = f"{len(cells)}"
            raise source.error(message("fields", expected=f"{width} as in the header", got=got, fix=fix), line)
        lines.append(line)
        rows.append(dict(zip(header, cells, strict=False)))
        if len(rows) == _ROWS:
            yield lines, rows
            lines, rows = [], []
    yield lines, rows


def _csv_records(source: Source) -> Iterator[tuple[int, list[str]]]:
    limit = csv.field_size_limit(2**31 - 1)  # answers can be longer than the module's 128 KiB
    try:
        with open(source.path, encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            while True:
                line = reader.line_num + 1
                try:
                    cells = next(reader, None)
                except csv.Error as error:
                    fix = 'double the quotes inside a text ("") and close it'
                    raise source.error(f"broken CSV from this line on ({error}); {fix}", line) from error
                if cells is None:
                    return
                if len(cells) > 1 or any(map(str.strip, cells)):
                    yield line, cells
    except UnicodeDecodeError:
        _not_utf8(source)
    finally:
        csv.field_size_limit(limit)


def csv_batches(source: Source, columns: list[str]) -> Iterator[pl.DataFrame] | None:
    """Batches of the named columns as text, through polars, or None if the file is not regular.

    Missing cells are null, or the empty text where they were quoted. On trouble polars raises its own errors.
    """
    import polars as pl

    header = csv_header(source)
    records = _regular_records(source.path, len(header))
    if records is None:
        return None
    raw = {name.strip(): name for name in header}

    def batches() -> Iterator[pl.DataFrame]:
        count = 1
        frame = pl.scan_csv(source.path, infer_schema=False, glob=False).select(
            pl.col(raw[c]).alias(c) for c in columns
        )
        for batch in frame.collect_batches(chunk_size=_ROWS * 4):
            count += batch.height
            yield batch
        if count != records:
            raise pl.exceptions.ComputeError(f"{count} records, expected {records}")

    return batches()


def _regular_records(path: Path, width: int) -> int | None:
    """Number of records, the header among them, if every one has ``width`` fields; None at the least oddity.

    Oddities: bytes that are not UTF-8, blank lines, a lone carriage return, a quotation mark inside an unquoted
    field or behind a closing one, a quote left open. Parsers read them in different ways.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    quoted, fields, records, before = False, 0, 0, b"\n"
    with open(path, "rb") as file:
        if file.read(3) != codecs.BOM_UTF8:
            file.seek(0)
        while block := file.read(_BYTES):
            while block[-1:] in {b'"', b"\r"} and (more := file.read(1)):
                block += more  # a mark at the end is judged by the byte behind it
            try:
                decoder.decode(block)
            except UnicodeDecodeError:
                return None
            bytes_ = np.frombuffer(before + block + b"\n", dtype=np.uint8)  # index i + 1 is block[i]
            before = block[-1:]
            inner = bytes_[1:-1]
            at = np.flatnonzero((inner == 44) | (inner == 10) | (inner == 34) | (inner == 13)) + 1
            mark = bytes_[at]
            quote = mark == 34
            inside = np.logical_xor.accumulate(quote) ^ quoted if at.size else quote
            opening, closing = at[quote & inside], at[quote & ~inside]
            plain = ~quote & ~inside
            bad = ~np.isin(bytes_[opening - 1], (44, 10, 34)) if opening.size else opening
            bad_end = ~np.isin(bytes_[closing + 1], (44, 10, 13, 34)) if closing.size else closing
            returns = at[plain & (mark == 13)]
            if np.any(bad) or np.any(bad_end) or np.any(bytes_[returns + 1] != 10) or block[-1:] == b"\r":
                return None
            quoted = bool(inside[-1]) if at.size else quoted
            marks = mark[plain & (mark != 13)]
            ends = np.flatnonzero(marks == 10)
            if np.any(np.diff(ends, prepend=-1 - fields) != width):
                return None
            records += ends.size
            fields = marks.size - 1 - int(ends[-1]) if ends.size else fields + marks.size
    if quoted or (before != b"\n" and fields != width - 1):
        return None
    return records + (before != b"\n")


# ----------------------------------------------------------------------------------------------------------- JSONL


def jsonl_chunks(source: Source) -> Iterator[Chunk]:
    """Objects of a JSONL file with their lines; blank lines are skipped.

    Raises
    ------
    DataError
        A line is not UTF-8, not JSON or not an object.
    """
    with open(source.path, "rb") as file:
        start = 1
        while block := file.readlines(_BYTES):
            if start == 1:
                block[0] = block[0].removeprefix(codecs.BOM_UTF8)
            lines = [start + index for index, line in enumerate(block) if not line.isspace()]
            kept = [line for line in block if not line.isspace()]
            start += len(block)
            try:  # one call for the whole block is twice as fast as one for each line
                rows = json.loads((b"[" + b",".join(kept) + b"]").decode("utf-8"))
            except (ValueError, RecursionError):
                rows = []
            if len(rows) != len(kept) or any(type(row) is not dict for row in rows):
                rows = [_json_object(source, line, text) for line, text in zip(lines, kept, strict=True)]
            yield lines, rows


def _json_object(source: Source, line: int, text: bytes) -> dict[str, Any]:
    thing, expected = "line", "one JSON object"
    try:
        value = json.loads(text.decode("utf-8"))
    except UnicodeDecodeError:
        _not_utf8(source)
    except json.JSONDecodeError as error:
        got = f"broken or truncated JSON ({error.msg}, column {error.colno})"
        raise source.error(message(thing, expected=expected, got=got, fix="mend or drop the line"), line) from error
    except (ValueError, RecursionError) as error:
        raise source.error(message(thing, expected=expected, got=f"JSON out of bounds ({error})"), line) from error
    if not isinstance(value, dict):
        kind = {"list": "an array", "str": "a text", "NoneType": "null"}.get(type(value).__name__, "a number")
        raise source.error(message(thing, expected=expected, got=kind), line)
    return value


def _not_utf8(source: Source) -> NoReturn:
    """Raise the error for the first line that does not decode."""
    with open(source.path, "rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as error:
                got = f"byte 0x{line[error.start]:02x} at column {error.start + 1}"
                text = message("not UTF-8 text", expected="UTF-8", got=got, fix="save the file as UTF-8")
                raise source.error(text, number) from error
    raise source.error("not UTF-8 text; save the file as UTF-8")


# --------------------------------------------------------------------------------------------------------- Parquet


def parquet_schema(source: Source) -> dict[str, pl.DataType]:
    """Column names and types, from the file's footer."""
    import polars as pl

    with _readable(source):
        return dict(pl.read_parquet_schema(source.path))


def parquet_batches(source: Source, columns: list[str]) -> Iterator[pl.DataFrame]:
    """Batches of the named columns."""
    import polars as pl

    with _readable(source):
        frame = pl.scan_parquet(source.path, glob=False, hive_partitioning=False).select(columns)
        yield from frame.collect_batches(chunk_size=_ROWS * 4)


@contextmanager
def _readable(source: Source) -> Iterator[None]:
    import polars as pl

    try:
        yield
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        reason = " ".join(str(error).split())[:120]
        raise source.error(f"unreadable Parquet ({reason}); write the file again") from error
