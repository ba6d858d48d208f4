"""Folders of mlflow: a file for each metric, a line of time, value and step for each number.

Read in mlflow 3.17 (store/tracking/file_store.py); older ones write no step.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path

from kleash.logs._numbers import number
from kleash.logs.stores._held import Held, Point, Store, rows_of

__all__ = ["FOLDER"]

_SETTING = 1 << 12


def _recognised(path: Path, first: bytes) -> bool:
    return (path / "meta.yaml").is_file() and (path / "metrics").is_dir()


def _runs(path: Path) -> Iterator[Held]:
    name = re.search(r"^run_name: *['\"]?(.*?)['\"]?\s*$", _read(path / "meta.yaml"), re.MULTILINE)
    held = Held(run=name[1] if name and name[1] else path.name)
    held.config.nested({key: _read(file) for key, file in _files(path / "params")})
    times = sorted(_lines(path / "metrics", held), key=lambda line: line[0])  # a resume comes later, its steps go back
    held.records = rows_of(point for _, point in times)
    yield held


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    """What is kept under a name; a name with a slash is a folder."""
    for file in sorted(folder.rglob("*")):
        if file.is_file() and not file.is_symlink():
            yield file.relative_to(folder).as_posix(), file


def _read(file: Path) -> str:
    with open(file, encoding="utf-8", errors="replace") as text:
        return text.read(_SETTING)


def _lines(folder: Path, held: Held) -> Iterator[tuple[float, Point]]:
    for key, file in _files(folder):
        with open(file, encoding="utf-8", errors="replace") as text:
            for index, line in enumerate(iter(lambda: text.readline(_SETTING), "")):
                cells = [number(cell) for cell in line.split()[:3]]
                if len(cells) < 2 or None in cells or not line.endswith("\n"):
                    held.notes.append(f"{key}: line {index + 1} is cut off or broken; left out")
                    continue
                time, value, step = (*cells, float(index))[:3]
                yield time or 0.0, (key, float(step or 0.0), math.nan if value is None else value)


FOLDER = Store(name="run folder of mlflow", recognised=_recognised, runs=_runs)
