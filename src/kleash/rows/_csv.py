"""CSV: fast and whole where a file is regular, row by row and with every line number where it is not."""

from __future__ import annotations

import codecs
import csv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

from kleash._checks import message
from kleash.rows._source import BYTES, LONGEST, ROWS, Chunk, Format, Head, Source, not_utf8, too_long

if TYPE_CHECKING:
    import polars as pl


_LINES = 1 << 22  # of one record, or blank ones between two


def _header(source: Source) -> list[str]:
    """Column names as they stand in the file; a byte-order mark and blank lines in front are skipped.

    Raises `DataError`: No header, or two columns of one name.
    """
    line, cells = next(_csv_records(source), (1, []))
    seen: set[str] = set()
    for name in map(str.strip, cells):
        if name and name in seen:
            text = message("header", expected="column names that differ", got=f"{name!r} twice", fix="rename one")
            raise source.error(text, line)
        seen.add(name)
    return cells


def _chunks(source: Source, _: Sequence[str] | None) -> Iterator[Chunk]:
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
        if len(rows) == ROWS:
            yield lines, rows
            lines, rows = [], []
    yield lines, rows


def _csv_records(source: Source) -> Iterator[tuple[int, list[str]]]:
    limit = csv.field_size_limit(2**31 - 1)  # answers can be longer than the module's 128 KiB
    try:
        with open(source.plain, encoding="utf-8-sig", newline="") as file:
            bounded = _Bounded(source, file)
            reader = csv.reader(bounded, strict=True)
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
                    bounded.length = bounded.lines = 0
                    yield line, cells
    except UnicodeDecodeError:
        not_utf8(source)
    finally:
        csv.field_size_limit(limit)


class _Bounded:
    """Lines of a text, of which no record is without end: how many characters and lines the record has so far."""

    def __init__(self, source: Source, file: TextIO) -> None:
        self._source, self._file = source, file
        self._number, self.length, self.lines = 0, 0, 0

    def __iter__(self) -> Iterator[str]:
        while line := self._file.readline(LONGEST + 1):
            self._number += 1
            self.length += len(line)
            self.lines += 1
            if self.length > LONGEST or self.lines > _LINES:
                raise too_long(self._source, self._number)
            yield line


def _batches(source: Source, columns: Sequence[str], size: int) -> Iterator[pl.DataFrame] | None:
    """Batches of the named columns as text, through polars, or None if the file is not regular.

    Missing cells are null, or the empty text where they were quoted. On trouble polars raises its own errors.
    """
    import polars as pl

    header = _header(source)
    records = _regular_records(source.plain, len(header))
    if records is None:
        return None
    raw = {name.strip(): name for name in header}

    def batches() -> Iterator[pl.DataFrame]:
        count = 1
        frame = pl.scan_csv(source.plain, infer_schema=False, glob=False).select(
            pl.col(raw[c]).alias(c) for c in columns
        )
        for batch in frame.collect_batches(chunk_size=size):
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
        while block := file.read(BYTES):
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


def _recognised(head: Head) -> bool:
    return b"\0" not in head.data and (head.suffix == ".csv" or b"," in head.text.splitlines()[0])


def _columns(source: Source) -> Mapping[str, pl.DataType | None]:
    return dict.fromkeys(name.strip() for name in _header(source))


CSV = Format(name="CSV", recognised=_recognised, chunks=_chunks, columns=_columns, batches=_batches, typed=False)
