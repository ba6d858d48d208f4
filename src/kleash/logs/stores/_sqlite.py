"""Databases: trackio's, and mlflow's. SQLite, opened for reading only; nothing in them is run.

Read in trackio 0.43 and mlflow 3.17.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from kleash._checks import message
from kleash.errors import DataError
from kleash.logs._console import Record
from kleash.logs._records import row_records
from kleash.logs.stores._held import Held, Point, Store, rows_of

__all__ = ["DATABASE", "TRACKIO"]

_MAGIC = b"SQLite format 3\0"
_LONGEST = 1 << 26
_TRACKIO = ("metrics", {"run_id", "run_name", "step", "metrics"})
_MLFLOW = ("metrics", {"key", "value", "timestamp", "run_uuid", "step"})
_HUGE = 1.7e308  # mlflow writes an infinity as the largest number


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that changes nothing, not even files beside it; a journal of one still writing is followed."""
    live = path.with_name(f"{path.name}-wal")
    how = "mode=ro" if live.is_file() and live.stat().st_size else "mode=ro&immutable=1"
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?{how}", uri=True)) as base:
            base.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST)
            base.text_factory = _text
            base.execute("PRAGMA trusted_schema = OFF")
            yield base
    except (sqlite3.Error, UnicodeDecodeError) as error:  # a damaged one is named in its own letters
        got = " ".join(str(error).split())[:120]
        text = message("database", expected="one that SQLite can read", got=got, fix="copy it again")
        raise DataError(text, path=path) from error


def _recognised(marks: tuple[str, set[str]], path: Path, first: bytes) -> bool:
    """Whether a database has the columns by which one is known."""
    if not first.startswith(_MAGIC) or not path.is_file():
        return False
    table, wanted = marks
    try:
        with _opened(path) as base:
            return _has(base, table) and wanted <= {row[1] for row in base.execute(f"PRAGMA table_info({table})")}
    except DataError:
        return False


def _names(found: list[tuple[str, str]]) -> dict[str, str]:
    """Runs by their id, with names that differ."""
    times = Counter(name for _, name in found)
    return {run: name if name and times[name] == 1 else f"{name}-{run[:8]}".lstrip("-") for run, name in found}


def _text(cell: Any) -> str:
    return cell.decode("utf-8", "replace") if isinstance(cell, bytes) else str(cell)


def _object(cell: Any) -> dict[str, Any]:
    try:
        value = json.loads(_text(cell))
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


# ----------------------------------------------------------------------------------------------------------- trackio


def _trackio(path: Path) -> Iterator[Held]:
    with _opened(path) as base:
        found = base.execute("SELECT run_id, max(run_name) FROM metrics GROUP BY run_id ORDER BY min(id)").fetchall()
        settings = dict(base.execute("SELECT run_id, config FROM configs")) if _has(base, "configs") else {}
    for run, name in _names(found).items():
        held = Held(run=name, records=_logged(path, run))
        held.config.nested(_object(settings.get(run, "{}")))
        yield held


def _has(base: sqlite3.Connection, table: str) -> bool:
    query = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = ?"
    return bool(base.execute(query, (table,)).fetchone()[0])


def _logged(path: Path, run: str) -> Iterator[Record]:
    with _opened(path) as base:
        for step, cell in base.execute("SELECT step, metrics FROM metrics WHERE run_id = ? ORDER BY id", (run,)):
            yield from row_records({"_step": step, **_object(cell)})


# ------------------------------------------------------------------------------------------------------------ mlflow


def _mlflow(path: Path) -> Iterator[Held]:
    with _opened(path) as base:
        kept = {run for (run,) in base.execute("SELECT DISTINCT run_uuid FROM metrics")}
        named = base.execute("SELECT run_uuid, coalesce(name, '') FROM runs ORDER BY start_time").fetchall()
        settings = base.execute("SELECT run_uuid, key, value FROM params").fetchall()
    for run, name in _names([row for row in named if row[0] in kept]).items():
        held = Held(run=name, records=rows_of(_points(path, run)))
        held.config.nested({key: value for owner, key, value in settings if owner == run})
        yield held


def _points(path: Path, run: str) -> Iterator[Point]:
    query = "SELECT key, step, value, is_nan FROM metrics WHERE run_uuid = ? ORDER BY timestamp, step"
    with _opened(path) as base:
        for key, step, value, undefined in base.execute(query, (run,)):
            huge = math.copysign(math.inf, value) if abs(value) > _HUGE else value
            yield str(key), float(step), math.nan if undefined else float(huge)


def _store(name: str, marks: tuple[str, set[str]], runs: Callable[[Path], Iterator[Held]]) -> Store:
    return Store(name=name, recognised=partial(_recognised, marks), runs=runs)


TRACKIO = _store("database of trackio", _TRACKIO, _trackio)
DATABASE = _store("database of mlflow", _MLFLOW, _mlflow)
