"""Parquet, through polars: rows have no lines, so errors name the row."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from kleash._checks import short
from kleash.rows._source import ROWS, Chunk, Format, Source

if TYPE_CHECKING:
    import polars as pl


def _columns(source: Source) -> Mapping[str, pl.DataType | None]:
    """Column names and types, from the file's footer."""
    import polars as pl

    with _readable(source):
        return dict(pl.read_parquet_schema(source.plain))


def _metadata(source: Source) -> Mapping[str, str]:
    """Texts by name, from the file's footer."""
    import polars as pl

    with _readable(source):
        return pl.read_parquet_metadata(source.plain)


def _batches(source: Source, columns: Sequence[str], size: int = 4 * ROWS) -> Iterator[pl.DataFrame]:
    import polars as pl

    with _readable(source):
        frame = pl.scan_parquet(source.plain, glob=False, hive_partitioning=False)
        rows, there = 0, int(frame.select(pl.len()).collect().item())
        for batch in frame.select(columns).collect_batches(chunk_size=size):
            rows += batch.height
            yield batch
        if rows < there:  # a thread of the reader can die without a word
            raise OSError(f"{rows} of {there} rows came")


def _chunks(source: Source, columns: Sequence[str] | None) -> Iterator[Chunk]:
    first = 1
    for batch in _batches(source, list(_columns(source)) if columns is None else columns):
        yield range(first, first + batch.height), batch.to_dicts()
        first += batch.height


@contextlib.contextmanager
def _readable(source: Source) -> Iterator[None]:
    """Say as a `DataError` what polars says, and keep what its threads print when they panic from the terminal."""
    import polars as pl

    try:
        with _unprinted():
            yield
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        raise source.error(f"unreadable Parquet ({short(str(error), width=120)}); write the file again") from error


@contextlib.contextmanager
def _unprinted() -> Iterator[None]:
    """A standard error that goes nowhere: a panic is printed by the library itself, backtrace and all."""
    try:
        kept = os.dup(2)
    except OSError:  # there is none
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(nowhere)
        os.close(kept)


PARQUET = Format(
    name="Parquet",
    recognised=lambda head: head.data.startswith(b"PAR1") or head.suffix in {".parquet", ".pq"},
    chunks=_chunks,
    columns=_columns,
    batches=_batches,
    lined=False,
    metadata=_metadata,
)
