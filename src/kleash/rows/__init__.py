"""One reader of rows: CSV, JSONL, JSON and Parquet, packed or not, from files or standard input.

`opened` finds out what a file is and gives a `Source`. Its rows come in pieces of bounded memory, each with the line
it stands on, so that an error can name one. A format is an entry of `FORMATS`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

from kleash._checks import message
from kleash._files import must_be_file, sha256
from kleash.errors import DataError
from kleash.rows import _csv, _json, _parquet
from kleash.rows._source import GZIP, Format, Head, Source, broken_archives, is_packed, shown, spooled, unpacked

__all__ = ["FORMATS", "Format", "Head", "Source", "head", "opened", "unpacked_bytes"]

FORMATS = (_parquet.PARQUET, _json.LINES, _json.ARRAY, _csv.CSV)
"""Asked in this order; the first that recognises a file reads it."""
_HEAD = 1 << 16


@contextmanager
def opened(name: str | Path, *, stdin: BinaryIO | None = None) -> Iterator[Source]:
    """Open a file or standard input and find out what it is; the content decides, the ending only in doubt.

    ``name``: A path, taken as it stands (``*`` and ``[`` are letters), or ``-``. ``stdin``: What to read for ``-``;
    default the process's own.

    Returns
    -------
    The `Source`, inside a ``with``; temporary files are gone after it.

    Raises
    ------
    MissingFileError
        There is no such file.
    DataError
        A folder, a pipe, an empty file, a broken archive or one that unpacks without end, or none of the formats.
    """
    name = os.fspath(name)
    if name != "-":
        must_be_file(Path(name))
    with ExitStack() as closing:
        with broken_archives(shown(name)):
            path = _laid_down(closing, stdin or sys.stdin.buffer) if name == "-" else Path(name)
            digest, packed = sha256(path), is_packed(path)
        first = Head(data=head(path), suffix=Path(name.lower().removesuffix(".gz")).suffix)
        found = _recognised(first, shown(name))
        yield Source(name=name, path=path, packed=packed, format=found, sha256=digest, closing=closing)


def head(path: str | Path, size: int = _HEAD) -> bytes:
    """The first unpacked bytes of a file.

    Raises `DataError`: They cannot be had; the archive is broken, say.
    """
    with unpacked_bytes(path) as stream:
        return stream.read(size)


@contextmanager
def unpacked_bytes(path: str | Path) -> Iterator[BinaryIO]:
    """A stream of a file's bytes, an archive's inside; what is wrong with either is a `DataError`."""
    path = Path(path)
    must_be_file(path)
    with broken_archives(str(path)), unpacked(path, is_packed(path)) as stream:
        yield stream


def _laid_down(closing: ExitStack, stream: BinaryIO) -> Path:
    """A file of what comes in a stream, if it begins like one that can be read: a device may never end."""
    first = stream.read(_HEAD)
    if not first.startswith(GZIP):
        _recognised(Head(data=first, suffix=""), shown("-"))
    return spooled(closing, stream, first)


def _recognised(first: Head, name: str) -> Format:
    """What the first bytes are."""
    if not first.text:
        got = "an empty file " + ("(blank lines)" if first.data else "(0 bytes)")
        raise DataError(message("file", expected="rows", got=got), path=name)
    found = next((known for known in FORMATS if known.recognised(first)), None)
    if found is None:
        expected = ", ".join(known.name for known in FORMATS)
        got = "binary data" if b"\0" in first.data else f"text that is none of the {len(FORMATS)}"
        raise DataError(message("file", expected=f"{expected} (also gzipped)", got=got), path=name)
    return found
