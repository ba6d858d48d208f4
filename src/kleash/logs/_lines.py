"""Lines of a log, one at a time: unpacked, decoded, without colours, progress bars taken apart."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from kleash._checks import message
from kleash.errors import DataError
from kleash.rows import unpacked_bytes

__all__ = ["Line", "LogFile", "lines"]

_BYTES = 1 << 20
_LONGEST = 1 << 22  # a longer line is a printed answer or binary data, not a row of metrics
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_RAY = re.compile(r"^\s*\(((?:[^()\s]+ )?(?:pid|rank)=\d+)(?:, ip=[^)]*)?\)\s?")
_BREAK = re.compile(r"[\r\n]+")
_PROLOGUE = 1 << 26, 1 << 20  # bytes, lines; what a trainer prints before its first row is a thousandth


class Line(NamedTuple):
    """One line, or one state of a progress bar, cleaned.

    ``number`` is 1-based, ``prefix`` the Ray process that wrote it, ``whole`` False where the file ends inside it.
    """

    number: int
    text: str
    prefix: str
    whole: bool


@dataclass
class LogFile:
    """A file and what was odd about its bytes."""

    path: Path
    replaced: int = 0
    long: int = 0
    rows: int = 0
    truncated_archive: bool = False
    notes: list[str] = field(default_factory=list)

    def error(self, text: str, line: int | None = None) -> DataError:
        """A `DataError` at a line of this file."""
        return DataError(text, path=self.path, line=line)


def _encoding(first: bytes) -> str:
    if first.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"  # what PowerShell's Tee-Object writes
    return "utf-8-sig"


def _pieces(file: LogFile) -> Iterator[str]:
    """Decoded blocks. A gzip that ends too early gives what it has: the run may still be writing it."""
    with unpacked_bytes(file.path) as stream:
        block = stream.read(_BYTES)
        decoder = codecs.getincrementaldecoder(_encoding(block))("replace")
        while block:
            yield decoder.decode(block)
            try:
                block = stream.read(_BYTES)
            except EOFError:
                file.truncated_archive = True
                break
        yield decoder.decode(b"", final=True)


def lines(file: LogFile) -> Iterator[Line]:
    """All lines in bounded memory: a line of any length costs no more than `_LONGEST` characters.

    Whoever finds a row counts it in ``file.rows``; a text that goes on and on without any is a `DataError`.
    """
    number, rest, skipping, length = 1, "", False, 0
    for piece in _pieces(file):
        if not file.rows and (length > _PROLOGUE[0] or number > _PROLOGUE[1]):
            got = f"none in the first {length >> 20} MB ({number:,} lines)"
            raise file.error(
                message("training log", expected="rows of metrics", got=got, fix="is this the right file?")
            )
        length += len(piece)
        file.replaced += piece.count("\ufffd")
        text = rest + piece
        start = 0
        for mark in _BREAK.finditer(text):
            if not skipping:
                yield from _clean(number, text[start : mark.start()], whole=True)
            skipping = False
            start = mark.end()
            number += mark[0].count("\n")
        rest = text[start:]
        if skipping:
            rest = ""
        elif len(rest) > _LONGEST:
            file.long += 1
            rest, skipping = "", True
    if rest:
        yield from _clean(number, rest, whole=False)


def _clean(number: int, text: str, *, whole: bool) -> Iterator[Line]:
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    prefix = ""
    if "(" in text[:64] and (ray := _RAY.match(text)) is not None:
        prefix, text = ray[1], text[ray.end() :]
    if text and not text.isspace():
        yield Line(number, text, prefix, whole)
