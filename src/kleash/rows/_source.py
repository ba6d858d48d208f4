"""A file opened for its rows: how it is called, how its bytes are unpacked, and what a format has to say of itself."""

from __future__ import annotations

import codecs
import gzip
import os
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn, cast

from kleash._checks import message
from kleash.errors import DataError, KleashError

if TYPE_CHECKING:
    import polars as pl

Chunk = tuple[Sequence[int], list[dict[str, Any]]]
"""Line (Parquet: row) numbers, 1-based, and as many rows."""

GZIP = b"\x1f\x8b"
ROWS = 16_384
BYTES = 1 << 22
_BLOCK = 1 << 20  # JSON takes ten times its room when it is parsed
LONGEST = 1 << 26  # a row of 64 MB holds all that is said of a prompt; a longer one is no row
_RATIO, _ROOM = 200, 1 << 23  # text packs to a fifth, logs that repeat themselves to a fiftieth
_TASTE = 1 << 16
RATIO_OPTION = "KLEASH_UNPACK_RATIO"
"""The variable of the environment that raises the ratio."""


@dataclass(frozen=True, kw_only=True)
class Head:
    """The beginning of a file, by which its format is known: its first unpacked bytes, and the ending of its name."""

    data: bytes
    suffix: str

    @property
    def text(self) -> bytes:
        """From the first character on that is no blank."""
        return self.data.removeprefix(codecs.BOM_UTF8).lstrip()


@dataclass(frozen=True, kw_only=True)
class Format:
    """How files of one kind are known and read; to read another kind, write one of these and name it in `FORMATS`.

    Parameters
    ----------
    name
        In messages.
    recognised
        Whether a file is one of these. The formats are asked in turn.
    chunks
        All rows in pieces of bounded memory, each row with its number: ``chunks(source, columns)``, where ``columns``
        are those that are needed, None for all. Raises the error a person can act on.
    columns
        The columns that the file states before its rows, with their types where it has them; None where only the rows
        tell.
    batches
        A faster way to the rows of some columns, through polars: ``batches(source, columns, size)``, or None for a file
        that is not regular. It promises nothing about an error: whoever takes it takes ``chunks`` at the first doubt.
    typed
        Whether a cell has a type; if not, it is a text, and an empty one is missing.
    lined
        Whether rows stand on lines, so that an error can name one.
    metadata
        What a file says of itself beside its columns; None where it cannot.
    """

    name: str
    recognised: Callable[[Head], bool]
    chunks: Callable[[Source, Sequence[str] | None], Iterator[Chunk]]
    columns: Callable[[Source], Mapping[str, pl.DataType | None]] | None = None
    batches: Callable[[Source, Sequence[str], int], Iterator[pl.DataFrame] | None] | None = None
    typed: bool = True
    lined: bool = True
    metadata: Callable[[Source], Mapping[str, str]] | None = None


@dataclass(frozen=True, kw_only=True)
class Source:
    """A file opened for reading its rows; see `kleash.rows.opened`."""

    name: str
    """As the caller named it; ``-`` is standard input."""
    path: Path
    """The bytes as they came; a temporary file for standard input."""
    packed: bool
    format: Format
    sha256: str
    """Of the bytes as they came, before unpacking."""
    closing: ExitStack = field(repr=False, compare=False)

    @property
    def shown(self) -> str:
        """The name in messages."""
        return shown(self.name)

    def error(self, text: str, line: int | None = None) -> DataError:
        """A `DataError` at a line of this file (at a row of it, where a format has no lines)."""
        if line is not None and not self.format.lined:
            return DataError(f"row {line}: {text}", path=self.shown)
        return DataError(text, path=self.shown, line=line)

    @contextmanager
    def open(self) -> Iterator[BinaryIO]:
        """The unpacked bytes, from the beginning."""
        with broken_archives(self.shown), unpacked(self.path, self.packed) as stream:
            yield stream

    @cached_property
    def plain(self) -> Path:
        """A file of the unpacked bytes, for those who read a file more than once or by themselves."""
        if not self.packed:
            return self.path
        with self.open() as stream:
            return spooled(self.closing, stream)

    def columns(self) -> Mapping[str, pl.DataType | None] | None:
        """Columns that the file states before its rows; None where only the rows tell."""
        return None if self.format.columns is None else self.format.columns(self)

    def metadata(self) -> Mapping[str, str]:
        """What the file says of itself beside its columns; empty where its format cannot."""
        return {} if self.format.metadata is None else self.format.metadata(self)

    def batches(self, columns: Sequence[str], size: int = 4 * ROWS) -> Iterator[pl.DataFrame] | None:
        """The fast way to the rows of some columns, about ``size`` at a time; None where there is none."""
        return None if self.format.batches is None else self.format.batches(self, columns, size)

    def chunks(self, columns: Sequence[str] | None = None) -> Iterator[Chunk]:
        """Rows with their numbers, in pieces of bounded memory."""
        return self.format.chunks(self, columns)

    def rows(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Rows with their numbers, one by one."""
        for lines, rows in self.chunks():
            yield from zip(lines, rows, strict=True)


def shown(name: str) -> str:
    """The name of an input in messages."""
    return "stdin" if name == "-" else name


def spooled(closing: ExitStack, stream: Any, first: bytes = b"") -> Path:
    """A temporary file with all that is in a stream, behind what was read of it already."""
    try:
        spool = closing.enter_context(tempfile.NamedTemporaryFile(prefix="kleash-"))  # noqa: SIM115
        spool.write(first)
        while block := stream.read(BYTES):
            spool.write(block)
        spool.flush()
    except OSError as error:
        where = os.environ.get("TMPDIR") or tempfile.gettempdir()
        why = error.strerror or error
        raise KleashError(f"{where}: cannot hold what is read: {why}; set TMPDIR to a folder with room") from error
    return Path(spool.name)


# ------------------------------------------------------------------------------------------------------------ archives


def is_packed(path: Path) -> bool:
    """Whether a file is a gzip archive, whatever its name."""
    with open(path, "rb") as file:
        return file.read(2) == GZIP


def unpacked(path: Path, packed: bool) -> BinaryIO:
    """A stream of a file's bytes; of an archive those inside, as far as it is no bomb."""
    return cast("BinaryIO", _Archive(path)) if packed else open(path, "rb")


class _Archive(gzip.GzipFile):
    """A gzip archive that stops where it has grown beyond what an archive of rows can: on the way, not at its end."""

    def __init__(self, path: Path, *, weighed: bool = False) -> None:
        super().__init__(path, "rb")
        self._path, self._weighed = path, weighed
        said = os.environ.get(RATIO_OPTION, "")
        self._ratio = int(said) if said.isdecimal() and said.isascii() and len(said) < 10 else _RATIO

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        if self.tell() > max(_ROOM, self._ratio * self.fileobj.tell()):  # type: ignore[union-attr]
            raise _Bomb(self._ratio)
        if not self._weighed and self.tell() > 2 * _TASTE:  # who reads rows is much slower than who counts bytes
            self._weighed = True
            there = self._path.stat()
            _weigh(self._path, there.st_size, there.st_mtime_ns, self._ratio)
        return data


@lru_cache(maxsize=64)
def _weigh(path: Path, *_: float) -> None:
    """Unpack once for nothing; what else is wrong with an archive is its reader's to say."""
    with suppress(EOFError, gzip.BadGzipFile, zlib.error), _Archive(path, weighed=True) as archive:
        while archive.read(_BLOCK):
            pass


class _Bomb(Exception):  # noqa: N818  says what it is
    """An archive that unpacks to more than so many times its size."""


@contextmanager
def broken_archives(name: str) -> Iterator[None]:
    """Say as a `DataError` why the bytes of a file cannot be had."""
    try:
        yield
    except _Bomb as bomb:
        fix = f"unpack it yourself, or set {RATIO_OPTION}, if that is right"
        got = f"one that unpacks to more than {bomb} times its size"
        raise DataError(message("gzip", expected="rows", got=got, fix=fix), path=name) from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"broken or truncated gzip ({error}); make the archive again", path=name) from error
    except OSError as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"cannot be read: {error.strerror or error}", path=name) from error


# --------------------------------------------------------------------------------------------------------------- lines


def blocks_of_lines(source: Source) -> Iterator[tuple[int, list[bytes]]]:
    """Whole lines without their ends, some megabytes at a time, and the number of the first one.

    Raises `DataError`: A line is longer than any row.
    """
    number, rest = 1, b""
    with source.open() as stream:
        block = stream.read(_BLOCK).removeprefix(codecs.BOM_UTF8)
        while block:
            lines = (rest + block).split(b"\n")
            rest = lines.pop()
            if lines:
                yield number, lines
                number += len(lines)
            if len(rest) > LONGEST:
                raise too_long(source, number)
            block = stream.read(_BLOCK)
    if rest:
        yield number, [rest]


def too_long(source: Source, line: int) -> DataError:
    """The error for a row without end."""
    got = f"one of more than {LONGEST >> 20} MB or four million lines"
    return source.error(message("line", expected="a row", got=got, fix="is this the right file?"), line)


def not_utf8(source: Source) -> NoReturn:
    """Raise the error for the first line that does not decode."""
    for first, lines in blocks_of_lines(source):
        for number, line in enumerate(lines, start=first):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as error:
                got = f"byte 0x{line[error.start]:02x} at column {error.start + 1}"
                text = message("not UTF-8 text", expected="UTF-8", got=got, fix="save the file as UTF-8")
                raise source.error(text, number) from error
    raise source.error("not UTF-8 text; save the file as UTF-8")
