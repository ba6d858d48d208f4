"""What does a log say while it is still being written? Each finding once, as it appears, and when to stop."""

from __future__ import annotations

import shlex
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kleash import _checks
from kleash.audit.declared import as_said
from kleash.audit.findings import Finding, plain
from kleash.audit.logs import check_logs
from kleash.audit.logs.view import Series, view
from kleash.errors import DataError, OptionError
from kleash.logs import RunLog, read_logs

__all__ = ["Event", "Follower", "events", "run_command"]

PATIENCE = 3
"""Looks in a row that must show gold falling from its best to be a reason to stop, as in the callback. Ours."""
NO_KL = "no KL in this log so far: the budget holds nothing"
ROWS = 3
"""Rows whose median is the KL that a budget is held against: one noisy row is no reason to stop. Ours."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something new in a log that is followed.

    ``kind``: ``finding`` (a problem, or one that is gone), ``stop``, or ``wait`` (nothing to read yet). ``text``: In a
    sentence. ``step``, ``reward``, ``gold``, ``kl``: The last row's; the KL in nats per answer where that is known,
    else as logged; None where the log has none. ``code``: Of the check, or the rule that stops.
    """

    kind: str
    code: str
    text: str
    step: float | None = None
    reward: float | None = None
    gold: float | None = None
    kl: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready plain data."""
        return {name: plain(value) for name, value in vars(self).items()}

    def __str__(self) -> str:
        numbers = {"step": self.step, "judge": self.reward, "gold": self.gold, "KL": self.kl}
        beside = ", ".join(f"{name} {value:.4g}" for name, value in numbers.items() if value is not None)
        return f"{beside + ': ' if beside else ''}{self.code}: {self.text}"


@dataclass(kw_only=True)
class Follower:
    """Follows one log.

    Parameters
    ----------
    path
        The log; it need not be there yet.
    options
        Those of `kleash.check`: ``config``, ``gold``, ``trainer``, ``beta``, ``reward_range``.
    kl_budget
        Nats per answer at which to stop, above 0.
    problems, stopped, seen
        Codes of the problems that stood in the last look; the rule that has fired, or None; the file's identity, size
        and time at the last look.

    Notes
    -----
    The rate of false alarms of `kleash.check`, 1 %, holds for each look. Gold is judged by HACKING of a log, its fall
    from the best window: the callback's paired test wants gold by prompt, which a log does not hold.
    """

    path: Path
    options: Mapping[str, Any] = field(default_factory=dict)
    kl_budget: float | None = None
    problems: set[str] = field(default_factory=set)
    stopped: str | None = None
    seen: tuple[int, int, int] | None = None
    _falls: int = 0
    _waiting: str = ""

    def __post_init__(self) -> None:
        if self.kl_budget is not None:
            _checks.number(self.kl_budget, name="kl_budget", above=0)
        if self.path.is_dir() or str(self.path) == "-":
            got = "a folder" if self.path.is_dir() else "standard input"
            raise OptionError(_checks.message("follow", expected="a log", got=got, fix="name the file"))

    def look(self) -> Iterator[Event]:
        """What is new since the last look; nothing where the file has not changed."""
        now = self._state()
        if now is None or now == self.seen:
            if now is None and not self._waiting:
                yield self._wait("waiting for the log")
            return
        if self.seen is not None and (now[0] != self.seen[0] or now[1] < self.seen[1]):
            self.problems, self._falls = set(), 0  # another file under this name: another run
        self.seen = now
        try:
            log, problems = self._read()
        except DataError as error:
            if str(error) != self._waiting:
                yield self._wait(str(error).removeprefix(f"{self.path}: "))
            return
        row = self._row(log)
        yield from self._findings(problems, row)
        yield from self._stops(problems, row)
        if self.kl_budget is not None and row["kl"] is None and self._waiting != NO_KL:
            yield self._wait(NO_KL)

    def _state(self) -> tuple[int, int, int] | None:
        try:
            found = self.path.stat()
        except OSError:
            return None
        return (found.st_ino, found.st_size, found.st_mtime_ns) if found.st_size else None

    def _wait(self, text: str) -> Event:
        self._waiting = text
        return Event(kind="wait", code="WAIT", text=text)

    def _read(self) -> tuple[RunLog, dict[str, Finding]]:
        """The last run of the log, and its problems by code."""
        told = self.options
        declared, settings = as_said(told.get("config"), beta=told.get("beta"), reward_range=told.get("reward_range"))
        (*_, log) = read_logs(self.path, trainer=told.get("trainer"), mapping=declared.columns, gold=told.get("gold"))
        _, findings, _ = check_logs([log], declared=declared, config=settings)
        return log, {finding.code: finding for finding in findings if finding.status == "problem"}

    def _findings(self, found: Mapping[str, Finding], row: dict[str, float | None]) -> Iterator[Event]:
        for code, finding in found.items():
            if code not in self.problems:
                yield Event(kind="finding", code=code, text=_sentence(finding), **row)
        for code in sorted(self.problems - set(found)):
            yield Event(kind="finding", code=code, text="no longer a problem", **row)
        self.problems = set(found)

    def _stops(self, found: Mapping[str, Finding], row: dict[str, float | None]) -> Iterator[Event]:
        fell = "HACKING" in found and found["HACKING"].evidence.get("fell")
        self._falls = self._falls + 1 if fell else 0
        kl = row["kl"]
        if self._falls >= PATIENCE:
            self.stopped = "GOLD_PEAK"
            yield Event(kind="stop", code="GOLD_PEAK", text=f"gold is below its best, {PATIENCE} looks in a row", **row)
        elif self.kl_budget is not None and kl is not None and kl >= self.kl_budget:
            self.stopped = "KL_BUDGET"
            text = f"{kl:.3g} nats an answer, of a budget of {self.kl_budget:g}"
            yield Event(kind="stop", code="KL_BUDGET", text=text, **row)

    def _row(self, log: RunLog) -> dict[str, float | None]:
        """The last row's numbers."""
        seen = view(log, None)
        if self.kl_budget is not None and seen.kl is not None and not seen.per_answer.size:
            fix = "log the length of answers, or say columns and kl_unit in --config"
            got = "a KL per token without a length" if seen.kl.unit_known else "a KL of no known unit"
            raise OptionError(_checks.message("kl_budget", expected="a KL per answer in the log", got=got, fix=fix))
        kl = seen.per_answer if seen.per_answer.size else seen.kl_series
        step = float(np.asarray(log.step)[-1]) if log.rows else None
        return {"step": step, "reward": _last(seen.reward), "gold": _last(seen.gold), "kl": _last(kl, rows=ROWS)}


def _last(values: Series, *, rows: int = 1) -> float | None:
    return float(np.median(values.values[-rows:])) if values.size else None


def _sentence(finding: Finding) -> str:
    causes = f"; likely: {finding.causes[0]}" if finding.causes else ""
    return f"{finding.message}{causes}"


def events(
    follower: Follower, *, idle: float, pause: Callable[[float], None] = time.sleep, every: float = 2.0
) -> Iterator[Event]:
    """Everything a followed log says, until a rule fires or nothing is written for ``idle`` seconds.

    ``pause``: Waits for that many seconds. ``every``: Seconds between looks.
    """
    quiet = 0.0
    while True:
        before = follower.seen
        yield from follower.look()
        quiet = 0.0 if follower.seen != before else quiet + every
        if follower.stopped is not None or quiet > idle:
            return
        pause(every)


def run_command(command: str) -> str | None:
    """Run what the user wants run on a stop, without a shell; what went wrong in one line, None where nothing did."""
    try:
        words = shlex.split(command)
        code = subprocess.run(words, check=False).returncode if words else 0
    except (OSError, ValueError) as error:
        return f"on-stop: {command}: {error}"
    return None if code == 0 else f"on-stop: {command}: exit code {code}"
