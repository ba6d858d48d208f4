"""The wire format of protocol buffers: numbered fields, without a schema.

https://protobuf.dev/programming-guides/encoding
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

__all__ = ["double", "fields", "last", "signed", "text", "unzigzag"]

Field = tuple[int, int | bytes]
_FIXED = {1: 8, 5: 4}
_LONGEST = 10  # bytes of a number


def fields(data: bytes) -> Iterator[Field]:
    """The fields of a message: numbers as ints, all else as bytes.

    Raises
    ------
    ValueError
        It is none.
    """
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        size, at = _varint(data, at) if kind == 2 else (_FIXED.get(kind, -1), at)
        if size < 0 or at + size > len(data):
            raise ValueError("no message")
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift, byte in enumerate(data[at : at + _LONGEST]):
        value |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return value, at + shift + 1
    raise ValueError("no message")


def last(data: bytes) -> dict[int, int | bytes]:
    """The fields of a message, the last of each number."""
    return dict(fields(data))


def text(value: int | bytes | None) -> str:
    """A field that holds a text; empty if there is none."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""


def double(value: int | bytes | None) -> float:
    """A field that holds a float of 4 or 8 bytes; 0 if there is none, which is how 0 is written."""
    if not isinstance(value, bytes):
        return 0.0
    found: float = struct.unpack("<f" if len(value) == 4 else "<d", value)[0]
    return found


def signed(value: int | bytes | None) -> int:
    """A field that holds an int64.

    Examples
    --------
    >>> signed(2**64 - 1)
    -1
    """
    number = value if isinstance(value, int) else 0
    return number - (1 << 64) if number >> 63 else number


def unzigzag(value: int) -> int:
    """A field that holds a sint64.

    Examples
    --------
    >>> unzigzag(3), unzigzag(4)
    (-2, 2)
    """
    return (value >> 1) ^ -(value & 1)
