"""JSON objects as rows: one on each line, or the items of one array."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from kleash._checks import message
from kleash.rows._source import BYTES, LONGEST, ROWS, Chunk, Format, Source, blocks_of_lines, not_utf8, too_long

_EXPECTED = "one JSON object"
_DECODER = json.JSONDecoder()
_BLANKS = re.compile(r"[ \t\r\n]*")


def _line_chunks(source: Source, _: Sequence[str] | None) -> Iterator[Chunk]:
    """Objects with their lines; blank lines are skipped."""
    for first, block in blocks_of_lines(source):
        lines = [first + index for index, line in enumerate(block) if line and not line.isspace()]
        kept = [line for line in block if line and not line.isspace()]
        try:  # one call for the whole block is twice as fast as one for each line
            rows = json.loads((b"[" + b",".join(kept) + b"]").decode("utf-8"))
        except (ValueError, RecursionError):
            rows = []
        if len(rows) != len(kept) or any(type(row) is not dict for row in rows):
            rows = [_from_line(source, line, text) for line, text in zip(lines, kept, strict=True)]
        yield lines, rows


def _from_line(source: Source, line: int, text: bytes) -> dict[str, Any]:
    try:
        value = json.loads(text.decode("utf-8"))
    except UnicodeDecodeError:
        not_utf8(source)
    except (ValueError, RecursionError) as error:
        raise _broken(source, line, error) from error
    return _object(source, line, value)


def _broken(source: Source, line: int, error: Exception) -> Exception:
    if isinstance(error, json.JSONDecodeError):
        got = f"broken or truncated JSON ({error.msg}, column {error.colno})"
        return source.error(message("line", expected=_EXPECTED, got=got, fix="mend or drop the line"), line)
    reason = "nested too deep" if isinstance(error, RecursionError) else "a number of too many digits"
    return source.error(message("line", expected=_EXPECTED, got=f"JSON out of bounds ({reason})"), line)


def _object(source: Source, line: int, value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    kind = {"list": "an array", "str": "a text", "NoneType": "null"}.get(type(value).__name__, "a number")
    raise source.error(message("line", expected=_EXPECTED, got=kind), line)


# ----------------------------------------------------------------------------------------------------------- one array


def _array_chunks(source: Source, _: Sequence[str] | None) -> Iterator[Chunk]:
    """Items of the array with the lines they begin on."""
    lines: list[int] = []
    rows: list[dict[str, Any]] = []
    for line, value in _items(source):
        lines.append(line)
        rows.append(_object(source, line, value))
        if len(rows) == ROWS:
            yield lines, rows
            lines, rows = [], []
    yield lines, rows


def _items(source: Source) -> Iterator[tuple[int, Any]]:
    text = _Text(source)
    text.mark()
    text.skip()  # the bracket by which it was recognised
    if text.mark() == "]":
        return
    while True:
        text.mark()
        yield text.item()
        mark = text.mark()
        if mark == "]":
            return
        if mark != ",":
            got = repr(mark) if mark else "the end of the file"
            expected = "a comma or the closing bracket behind an object"
            raise source.error(message("JSON array", expected=expected, got=got), text.line)
        text.skip()


class _Text:
    """The text of a file: the piece just read, and of the pieces before what is not yet understood."""

    def __init__(self, source: Source) -> None:
        self.source, self.line = source, 1
        self._pieces = _pieces(source)
        self._text, self._at = "", 0

    def mark(self) -> str:
        """The next character that is no blank; empty at the end."""
        while True:
            self.skip(len(_BLANKS.match(self._text, self._at)[0]))  # type: ignore[index]
            if self._at < len(self._text) or not self._more():
                return self._text[self._at : self._at + 1]

    def skip(self, size: int = 1) -> None:
        """Go on by some characters."""
        self.line += self._text.count("\n", self._at, self._at + size)
        self._at += size

    def item(self) -> tuple[int, Any]:
        """The value that begins here, and its line."""
        while True:
            line, before = self.line, self._at
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
            except (ValueError, RecursionError) as error:
                if not isinstance(error, json.JSONDecodeError) or not self._more():
                    raise _broken(self.source, line, error) from error
                continue
            self.skip(end - before)
            return line, value

    def _more(self) -> bool:
        if len(self._text) - self._at > LONGEST:
            raise too_long(self.source, self.line)
        piece = next(self._pieces, None)
        if piece is None:
            return False
        self._text, self._at = self._text[self._at :] + piece, 0
        return True


def _pieces(source: Source) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    with source.open() as stream:
        try:
            while block := stream.read(BYTES):
                yield decoder.decode(block)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            not_utf8(source)


LINES = Format(
    name="JSONL",
    recognised=lambda head: head.text.startswith(b"{") or head.suffix in {".jsonl", ".ndjson"},
    chunks=_line_chunks,
)
ARRAY = Format(
    name="JSON", recognised=lambda head: head.text.startswith(b"[") and head.suffix != ".csv", chunks=_array_chunks
)
