"""What does an audit give back? Findings per input, as an object, as JSON-ready data and as a table."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kleash.audit.findings import STATUSES, CheckedInput, Finding
from kleash.envelope import envelope

if TYPE_CHECKING:
    import polars as pl
    from rich.console import RenderableType

    from kleash.audit.engine import Check
    from kleash.frontier import Frontier

__all__ = ["Catalogue", "CheckReport"]

_ROW = ("input", "code", "status", "message", "fix")


@dataclass(frozen=True, kw_only=True)
class CheckReport:
    """All findings about all inputs.

    ``frontier`` is the table of betas that several runs together give; None where they give none. ``files``: A row for
    each file of the folders that were named: path, kind (rollouts, log, none), trainer, rows, why nothing is checked.
    """

    inputs: tuple[CheckedInput, ...]
    findings: tuple[Finding, ...]
    frontier: Frontier | None = None
    files: tuple[dict[str, Any], ...] = ()

    @property
    def problems(self) -> tuple[Finding, ...]:
        """The findings that say problem."""
        return tuple(finding for finding in self.findings if finding.status == "problem")

    @property
    def exit_code(self) -> int:
        """1 if any check found a problem, else 0: what the command returns."""
        return 1 if self.problems else 0

    def count(self, status: str) -> int:
        """How many findings have a status."""
        return sum(finding.status == status for finding in self.findings)

    def summary(self) -> str:
        """One honest sentence: how many checks ran, what they said, how many could not run."""
        counts = Counter(finding.status for finding in self.findings)
        ran = len(self.findings) - counts["not-run"]
        said = [f"{counts['problem']} problem{'s' * (counts['problem'] != 1)}", f"{counts['ok']} ok"]
        said += [f"{counts['cannot-tell']} cannot tell"] if counts["cannot-tell"] else []
        text = f"{ran} check{'s' * (ran != 1)} ran: {', '.join(said)}"
        return text + (f"; {counts['not-run']} could not run" if counts["not-run"] else "")

    def __rich__(self) -> RenderableType:
        from kleash.audit.table import report_view

        return report_view(self.inputs, self.findings, self.summary(), files=self.files)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready plain data: inputs, findings, frontier."""
        return {
            **envelope("check", inputs=[item.to_dict() for item in self.inputs]),
            "files": list(self.files),
            "findings": [finding.to_dict() for finding in self.findings],
            "frontier": None if self.frontier is None else self.frontier.to_dict(),
        }

    def to_frame(self) -> pl.DataFrame:
        """A polars table with a row per finding: input, code, status, message, fix."""
        import polars as pl

        return pl.DataFrame(self.rows(), schema=dict.fromkeys(_ROW, pl.String))

    def rows(self) -> list[dict[str, Any]]:
        """A row per finding: input, code, status, message, fix."""
        return [{name: getattr(finding, name) for name in _ROW} for finding in self.findings]

    def __str__(self) -> str:
        lines = []
        for status in STATUSES[:-1]:
            lines += [f"{f.code:<15} {f.status:<11} {f.message}" for f in self.findings if f.status == status]
        return "\n".join([*lines, self.summary()])


@dataclass(frozen=True, kw_only=True)
class Catalogue:
    """All checks, with what each asks, needs and calls a problem.

    ``checks`` are those of rollout dumps, ``log_checks`` those of training logs, ``config_checks`` of configurations.
    """

    checks: tuple[Check[Any], ...]
    log_checks: tuple[Check[Any], ...] = ()
    config_checks: tuple[Check[Any], ...] = ()

    def rows(self) -> list[dict[str, Any]]:
        """A row per check: input, code, asks, needs, problem."""
        return [{**row, "needs": "; ".join(row["needs"])} for row in self._rows()]

    def _rows(self) -> list[dict[str, Any]]:
        return [
            {
                "input": kind,
                "code": c.code,
                "asks": c.asks,
                "needs": [need.words for need in c.needs],
                "problem": c.rule,
            }
            for kind, checks in (("rollouts", self.checks), ("log", self.log_checks), ("config", self.config_checks))
            for c in checks
        ]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready plain data."""
        return {
            **envelope("catalogue"),
            "checks": [row for row in self._rows() if row["input"] == "rollouts"],
            "log_checks": [row for row in self._rows() if row["input"] == "log"],
            "config_checks": [row for row in self._rows() if row["input"] == "config"],
        }

    def __rich__(self) -> RenderableType:
        from kleash.audit.table import catalogue_view

        return catalogue_view(self.checks, self.log_checks, self.config_checks)
