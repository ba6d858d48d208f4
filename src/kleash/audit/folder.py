"""What lies in a folder? Every file of it: a dump, a log, or why it is neither."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kleash.audit.configs.reading import CONFIG_SUFFIXES, is_configuration
from kleash.audit.dumps.kind import DUMP_SUFFIXES, is_dump
from kleash.logs import survey
from kleash.rows import head
from kleash.samples import DIAL, SAMPLES, SCORED

if TYPE_CHECKING:
    from kleash.audit.findings import CheckedInput
    from kleash.estimates import Floats
    from kleash.logs.table import RunLog

    Told = list[tuple[Floats, float]]

__all__ = ["Seen", "look_into"]

SAME = 1e-5
"""Relative difference of one number as two trackers keep it: float32, or five digits of text."""

FEWEST_COMMON = 3
"""Different values at common steps below which two logs are not called one run."""

OWN = ("frontier.parquet", "metrics.jsonl", "prompts.jsonl", "optimum.json", "run.json", SAMPLES, SCORED, DIAL)
PICTURES = (".png", ".jpg", ".jpeg", ".svg", ".gif", ".pdf", ".html")
WEIGHTS = (".safetensors", ".bin", ".gguf", ".pt", ".pth", ".ckpt", ".npz", ".npy")


@dataclass(frozen=True, kw_only=True)
class Seen:
    """A file of a folder, or a folder in it that is one run.

    ``path``: Which. ``kind``: ``rollouts``, ``log``, ``config`` or ``none``. ``logs``: Its runs. ``why``: Why nothing
    of it is checked, in one line.
    """

    path: Path
    kind: str
    logs: tuple[RunLog, ...] = ()
    why: str = ""

    def row(self, inputs: Mapping[str, CheckedInput], lost: Mapping[str, str]) -> dict[str, object]:
        """As a row of the report: path, kind, trainer, rows, why. ``lost``: Why a dump could not be read."""
        path = str(self.path)
        why = lost.get(path, self.why)
        checked = None if why else inputs.get(path)
        return {
            "path": path,
            "kind": "none" if path in lost else self.kind,
            "trainer": self.logs[0].trainer if self.logs else getattr(checked, "trainer", None),
            "rows": sum(log.rows for log in self.logs) if self.logs else getattr(checked, "rows", None),
            "why": why or None,
        }


def look_into(folder: Path, *, trainer: str | None = None, mapping: Mapping[str, str] | None = None) -> list[Seen]:
    """Every file of a folder, at any depth, and what it is.

    Parameters
    ----------
    folder
        Which. What is hidden in it is left out.
    trainer, mapping
        As for `kleash.logs.read_logs`.

    Returns
    -------
    list of Seen
        In the order of names. A run that two trackers hold is checked once, in the log with more columns.
    """
    found = []
    for entry in survey(folder, trainer=trainer, mapping=mapping):
        path = entry.path
        dump = path.name.lower().endswith(DUMP_SUFFIXES) and not _empty(path) and is_dump(path)
        if _of_run_folder(path):
            found.append(Seen(path=path, kind="none", why="kleash's own run folder: kleash report shows it"))
        elif dump:
            found.append(Seen(path=path, kind="rollouts"))
        elif path.suffix.lower() in CONFIG_SUFFIXES and path.is_file() and is_configuration(path):
            found.append(Seen(path=path, kind="config"))
        elif entry.logs:
            found.append(Seen(path=path, kind="log", logs=entry.logs))
        else:
            found.append(Seen(path=path, kind="none", why=_why(path, entry.why)))
    return _once(found)


def _of_run_folder(path: Path) -> bool:
    """Whether a file is kleash's own record of a run: exact expectations or sparse measurements, no trainer's log."""
    return path.name in OWN and (path.parent / "run.json").exists()


def _empty(path: Path) -> bool:
    return path.is_file() and path.stat().st_size == 0


def _why(path: Path, said: str) -> str:
    """What a file is, where its ending or its first keys tell; else why it is no log."""
    endings = {
        CONFIG_SUFFIXES: "a configuration without options of a trainer's KL",
        PICTURES: "a picture or page",
        WEIGHTS: "arrays, no table of numbers by step",
    }
    suffix = path.suffix.lower()
    if _empty(path):
        return "an empty file"
    for these, words in endings.items():
        if suffix in these:
            return words
    kind = _own_json(path) if suffix == ".json" else None
    return said.partition("; ")[0] if kind is None else f"what kleash {kind} has printed: kleash report shows it"


def _own_json(path: Path) -> str | None:
    """The command that wrote a JSON, told by its first keys."""
    try:
        first = head(path, 4096).decode(errors="replace")
        start = json.loads(first[: first.index('"inputs"')].rstrip().rstrip(",") + "}")
    except (ValueError, OSError):
        return None
    return str(start["source"]) if isinstance(start, dict) and {"schema", "version", "source"} <= set(start) else None


def _once(found: list[Seen]) -> list[Seen]:
    """A run that stands in two logs is checked in the one that says more."""
    logs = [seen for seen in found if seen.kind == "log" and len(seen.logs) == 1]
    told = {seen.path: _told(seen.logs[0]) for seen in logs}
    twins: dict[Path, Path] = {}
    for one, other in combinations(logs, 2):
        if (
            one.path not in twins
            and other.path not in twins
            and _same_run(one.logs[0], other.logs[0], told[one.path], told[other.path])
        ):
            less, more = sorted((one, other), key=lambda seen: _says(seen.logs[0]))
            twins[less.path] = more.path
    return list(_without(found, twins))


def _without(found: list[Seen], twins: Mapping[Path, Path]) -> Iterator[Seen]:
    for seen in found:
        kept = seen.path
        while kept in twins:
            kept = twins[kept]
        same = f"the same run as {kept.name}, which says more"
        yield seen if kept == seen.path else replace(seen, logs=(), why=same)


def _says(log: RunLog) -> tuple[int, int, int]:
    """How much a log says: columns printed in full, columns, rows."""
    return sum(digits < 0 for digits in log.decimals.values()), len(log.raw), log.rows


def _same_run(one: RunLog, other: RunLog, here: Told, there: Told) -> bool:
    """Whether two logs hold the same score and the same KL at every step that both have, within their digits."""
    steps, at, by = np.intersect1d(one.step, other.step, return_indices=True)
    if steps.size < FEWEST_COMMON or one.trainer != other.trainer:
        return False
    pairs = [(a[at], b[by], x + y) for (a, x), (b, y) in zip(here, there, strict=True) if a.size and b.size]
    known = any(np.unique(a).size >= FEWEST_COMMON for a, *_ in pairs)
    return known and all(_alike(*pair) for pair in pairs)


def _told(log: RunLog) -> Told:
    """Score and KL, each with the most that printing has taken from it; empty where the log has none."""
    columns = [log.reward, log.kl[0].values if log.kl else None]
    return [(np.empty(0), 0.0) if x is None else (x, _rounding(log, x)) for x in columns]


def _rounding(log: RunLog, values: Floats) -> float:
    keys = (key for key, column in log.raw.items() if np.array_equal(column, values, equal_nan=True))
    digits = log.decimals.get(next(keys, ""), -1)
    return 0.5 * 10.0**-digits if digits >= 0 else 0.0


def _alike(one: Floats, other: Floats, rounding: float) -> bool:
    both = np.isfinite(one) & np.isfinite(other)
    return bool(both.any()) and bool(np.allclose(one[both], other[both], rtol=SAME, atol=1e-12 + rounding))
