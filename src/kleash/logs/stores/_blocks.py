"""LevelDB's log layout: blocks of 32 KiB, records in fragments, a checksum of each.

https://github.com/google/leveldb/blob/main/doc/log_format.md
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

from kleash.logs.stores._held import Pieces

__all__ = ["records"]

_BLOCK, _HEAD = 1 << 15, 7
_FULL, _FIRST, _LAST = 1, 2, 4
_LONGEST = 1 << 26


def records(pieces: Pieces, damaged: list[int]) -> Iterator[bytes]:
    """The records behind a file's header of seven bytes.

    Parameters
    ----------
    pieces
        The file.
    damaged
        Takes the place of each block with a fragment that is not what its checksum says; the rest of it is left out.

    Returns
    -------
    An iterator of records, each whole.
    """
    held: list[bytes] = []
    for kind, data in _fragments(pieces, damaged):
        if kind in (_FULL, _FIRST):
            held = []
        elif not held:
            continue  # its beginning was damaged
        held.append(data)
        if sum(map(len, held)) > _LONGEST or kind == 0:
            held = []
        elif kind in (_FULL, _LAST):
            yield b"".join(held)
            held = []


def _fragments(pieces: Pieces, damaged: list[int]) -> Iterator[tuple[int, bytes]]:
    number = 0
    while block := pieces.upto(_BLOCK):
        at = _HEAD if number == 0 else 0  # the file's own header comes first
        while at + _HEAD <= len(block):
            check, size, kind = struct.unpack_from("<IHB", block, at)
            data = block[at + _HEAD : at + _HEAD + size]
            if check == size == kind == 0:
                break  # room that was laid out and not written
            if len(data) < size and len(block) < _BLOCK:
                pieces.cut = True
                return
            if len(data) < size or zlib.crc32(data, zlib.crc32(bytes([kind]))) != check:
                damaged.append(number)
                yield 0, b""
                break
            yield kind, data
            at += _HEAD + size
        pieces.cut |= len(block) < _BLOCK and 0 < len(block) - at < _HEAD
        number += 1
