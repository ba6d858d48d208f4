"""TensorBoard's event files: a record for each scalar, with the CRC-32C of its length and of itself.

https://github.com/tensorflow/tensorboard (proto/event.proto, summary.proto, tensor.proto) and TensorFlow's TFRecord.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from kleash.logs._config import ConfigScan
from kleash.logs.stores._held import Held, Pieces, Point, Store, rows_of
from kleash.logs.stores._wire import double, fields, last, signed, text
from kleash.rows import unpacked_bytes

__all__ = ["EVENTS", "crc32c"]

_NAME = "tfevents"
_BLOCK = 1 << 10
_LONGEST = 1 << 26
_DTYPES = {1: "<f4", 2: "<f8", 3: "<i4", 9: "<i8", 19: "<f2"}
_LISTS = {1: 5, 2: 6, 3: 7, 9: 10}  # field with the values of a dtype, where they are not packed as bytes
_BFLOAT16, _STRING = 14, 7


def _recognised(path: Path, first: bytes) -> bool:
    """The first record names the version of the file; a folder is a run where it holds several."""
    return len(_files(path)) > 1 if path.is_dir() else b"brain.Event:" in first[:64]


def _files(folder: Path) -> list[Path]:
    """Event files in the order in which they were begun."""
    return sorted((file for file in folder.iterdir() if _NAME in file.name and file.is_file()), key=_written)


def _runs(path: Path) -> Iterator[Held]:
    """One run; the files of a folder follow each other."""
    files = _files(path) if path.is_dir() else [path]
    held = Held(run=files[0].resolve().parent.name)
    points = (point for file in files for point in _points(file, held))
    held.records = rows_of(points, shown=_shown)
    yield held


def _written(file: Path) -> tuple[int, str]:
    """The second in which a file was begun, which its name holds."""
    found = re.search(r"tfevents\.(\d+)", file.name)
    return (int(found[1]) if found else 0, file.name)


def _shown(value: float) -> str:
    """A value with the digits that a float of four bytes has."""
    short = np.float32(value)
    return repr(value) if short != value and value == value else str(short)  # noqa: PLR0124


def _points(file: Path, held: Held) -> Iterator[Point]:
    damaged = 0
    with unpacked_bytes(file) as stream:
        pieces = Pieces(stream)
        for event in _records(pieces):
            try:
                yield from _scalars(event, held.config)
            except (ValueError, struct.error):
                damaged += 1
    if pieces.cut:
        held.notes.append(f"{file.name} ends in mid-record: read up to there")
    if damaged:
        held.notes.append(f"{file.name}: {damaged} records left out, whose checksum is wrong")


def _records(pieces: Pieces) -> Iterator[bytes]:
    """Events whose checksum is right; an empty one, which none can be, for each that is damaged."""
    while head := pieces.take(12):
        size, check = struct.unpack("<QI", head)
        if _masked(head[:8]) != check:
            pieces.cut = True  # nobody knows where the next one begins
            return
        data, foot = _kept(pieces, size), pieces.take(4)
        if pieces.cut or len(foot) < 4:
            pieces.cut = True
            return
        if size <= _LONGEST:
            yield data if _masked(data) == struct.unpack("<I", foot)[0] else b"\0"


def _kept(pieces: Pieces, size: int) -> bytes:
    """A record; of one too long to be a scalar nothing."""
    if size <= _LONGEST:
        return pieces.take(size)
    while size and (skipped := pieces.take(min(size, _LONGEST))):
        size -= len(skipped)
    pieces.cut |= size > 0
    return b""


def _scalars(event: bytes, config: ConfigScan) -> Iterator[Point]:
    whole = last(event)
    step, summary = signed(whole.get(2)), whole.get(5)
    if 0 in whole:
        raise ValueError("damaged")
    for number, value in fields(summary if isinstance(summary, bytes) else b""):
        if number != 1 or not isinstance(value, bytes):
            continue
        held = last(value)
        name = text(held.get(1))
        if 2 in held:
            yield name, float(step), double(held[2])
        elif isinstance(tensor := held.get(8), bytes):
            found = _tensor(tensor)
            if isinstance(found, float):
                yield name, float(step), found
            elif found is not None:
                _take(config, found)


def _tensor(data: bytes) -> float | str | None:
    """The one number, or the text, that a tensor holds; None for any other."""
    held = last(data)
    kind, packed = held.get(1), held.get(4)
    if kind == _STRING:
        return text(held.get(8))
    if isinstance(packed, bytes) and kind == _BFLOAT16 and len(packed) == 2:
        return double(b"\0\0" + packed)
    if kind not in _DTYPES:
        return None
    dtype = np.dtype(_DTYPES[kind])
    if isinstance(packed, bytes):
        return float(np.frombuffer(packed, dtype)[0]) if len(packed) == dtype.itemsize else None
    value = held.get(_LISTS.get(kind, -1))
    if isinstance(value, bytes) and len(value) == dtype.itemsize and dtype.kind == "f":
        return double(value)
    return float(value[0] if isinstance(value, bytes) and len(value) == 1 else signed(value))


def _take(config: ConfigScan, found: str) -> None:
    """The arguments of a run, which Hugging Face's Trainer writes as JSON."""
    try:
        value: Any = json.loads(found)
    except (ValueError, RecursionError):
        return
    if isinstance(value, dict):
        config.nested(value)


# ---------------------------------------------------------------------------------------------------------- checksum


@cache
def _tables() -> np.ndarray[Any, np.dtype[np.uint32]]:
    """Shape (1024, 256): what a byte adds to the checksum of a block, by its distance from the end of it."""
    one = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        one = np.where(one & 1, (one >> 1) ^ np.uint32(0x82F63B78), one >> 1)
    tables = [one]
    for _ in range(_BLOCK - 1):
        tables.append((tables[-1] >> 8) ^ one[tables[-1] & 0xFF])
    return np.array(tables)


def crc32c(data: bytes) -> int:
    """CRC-32C (Castagnoli), a block at a time: the checksum is linear, so each byte adds what its place makes of it.

    Examples
    --------
    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    state = 0xFFFFFFFF
    for at in range(0, len(data), _BLOCK):
        block = np.frombuffer(data[at : at + _BLOCK], dtype=np.uint8).astype(np.intp)
        size = block.size
        head = min(4, size)
        block[:head] ^= np.frombuffer(state.to_bytes(4, "little"), dtype=np.uint8)[:head]
        added = np.bitwise_xor.reduce(_tables()[np.arange(size - 1, -1, -1), block])
        state = int(added) ^ (state >> 8 * size if size < 4 else 0)
    return state ^ 0xFFFFFFFF


def _masked(data: bytes) -> int:
    """As TFRecord stores it, turned so that a checksum of checksums stays one."""
    value = crc32c(data)
    return ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF


EVENTS = Store(name="event file of TensorBoard", recognised=_recognised, runs=_runs, splits=True)
