"""Offline runs of wandb and of swanlab: records of protocol buffers in LevelDB's log layout.

Read in wandb 0.31 (wandb_internal.proto) and swanlab 0.10.3 (record.proto); both check with a plain CRC-32.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from kleash.logs._config import small
from kleash.logs._console import Record
from kleash.logs._records import row_records
from kleash.logs.stores._blocks import records
from kleash.logs.stores._held import Held, Pieces, Point, Store, rows_of
from kleash.logs.stores._wire import double, fields, last, signed, text, unzigzag
from kleash.rows import unpacked_bytes

__all__ = ["SWANLAB", "WANDB"]

Message = dict[int, int | bytes]


def _messages(path: Path, held: Held) -> Iterator[Message]:
    """The records of a file; what is wrong with it goes into the notes."""
    damaged: list[int] = []
    with unpacked_bytes(path) as stream:
        pieces = Pieces(stream)
        for data in records(pieces, damaged):
            try:
                yield last(data)
            except ValueError:
                damaged.append(-1)
    if pieces.cut:
        held.notes.append("the file ends in mid-record: read up to there")
    if damaged:
        held.notes.append(f"{len(damaged)} damaged pieces left out, whose checksum is wrong")


def _begins(mark: bytes, path: Path, first: bytes) -> bool:
    return first.startswith(mark)


# ------------------------------------------------------------------------------------------------------------- wandb

_HISTORY, _CONFIG, _RUN = 2, 5, 17


def _wandb(path: Path) -> Iterator[Held]:
    held = Held()
    held.records = _history(path, held)
    yield held


def _history(path: Path, held: Held) -> Iterator[Record]:
    for message in _messages(path, held):
        if isinstance(run := message.get(_RUN), bytes) and not held.run:
            about = last(run)
            held.run = text(about.get(8)) or text(about.get(1))
            _settings(about.get(4), held)
        _settings(message.get(_CONFIG), held)
        if isinstance(row := message.get(_HISTORY), bytes):
            yield from row_records(_row(row))


def _row(data: bytes) -> dict[str, Any]:
    """What one call of ``log`` held."""
    row: dict[str, Any] = {}
    for number, value in fields(data):
        if number == 1 and isinstance(value, bytes):
            row |= dict([_item(value)])
        elif number == 2 and isinstance(value, bytes):
            row.setdefault("_step", signed(last(value).get(1)))
    return row


def _item(data: bytes) -> tuple[str, Any]:
    """The name and the value of an item: JSON up to wandb 0.26, a number, a text or JSON since then."""
    parts = [text(value) for number, value in fields(data) if number == 2]
    held = last(data)
    name = "/".join(parts) or text(held.get(1))
    if isinstance(whole := held.get(5), int):
        return name, unzigzag(whole)
    if 6 in held:
        return name, double(held[6])
    return name, text(held[7]) if 7 in held else _json(text(held.get(16) or held.get(8)))


def _settings(data: int | bytes | None, held: Held) -> None:
    for number, value in fields(data if isinstance(data, bytes) else b""):
        if number == 1 and isinstance(value, bytes):
            name, setting = _item(value)
            held.config.nested({name: setting})


def _json(shown: str) -> Any:
    try:
        return json.loads(shown)
    except (ValueError, RecursionError):
        return None


# ----------------------------------------------------------------------------------------------------------- swanlab

_START, _SCALAR = 10, 13


def _swanlab(path: Path) -> Iterator[Held]:
    held = Held()
    held.config.yaml(_beside(path))
    held.records = rows_of(_points(path, held))
    yield held


def _beside(path: Path) -> str:
    """The configuration, which swanlab keeps in a file."""
    return small(path.parent / "files" / "config.yaml")


def _points(path: Path, held: Held) -> Iterator[Point]:
    for message in _messages(path, held):
        if isinstance(start := message.get(_START), bytes):
            held.run = text(last(start).get(4))
        if isinstance(scalar := message.get(_SCALAR), bytes):
            one = last(scalar)
            value = one.get(5)
            number = double(last(value).get(1)) if isinstance(value, bytes) else 0.0
            yield text(one.get(1)), float(signed(one.get(2))), number


def _store(name: str, mark: bytes, runs: Callable[[Path], Iterator[Held]]) -> Store:
    return Store(name=name, recognised=partial(_begins, mark), runs=runs)


WANDB = _store("offline run of wandb", b":W&B", _wandb)
SWANLAB = _store("offline run of swanlab", b":SWL", _swanlab)
