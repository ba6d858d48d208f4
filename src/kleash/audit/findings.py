"""What is a finding? The words that every room of the audit shares.

A status is one of four. ``ok``: the check ran, and a fault of the size its evidence states would have been seen.
``problem``: chance explains the data with a probability below the check's level, or no chance is involved.
``cannot-tell``: the check ran and the data do not decide. ``not-run``: something it needs is not there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

__all__ = ["STATUSES", "CheckedInput", "Finding", "about", "cannot_tell", "number", "ok", "plain", "problem"]

Evidence = Mapping[str, Any]
Status = Literal["ok", "problem", "cannot-tell", "not-run"]
STATUSES: tuple[Status, ...] = ("problem", "cannot-tell", "ok", "not-run")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One check's answer about one input.

    Parameters
    ----------
    code
        The check, a stable name that scripts may rely on.
    status, message
        The answer, and one sentence with its numbers.
    evidence
        The numbers; None where a number does not exist.
    causes
        Likely causes, the likeliest first; empty unless the status is ``problem`` or ``cannot-tell``.
    fix
        What to do next, or None.
    input
        The file it is about.
    """

    code: str
    status: Status
    message: str
    evidence: dict[str, Any] = field(default_factory=dict)
    causes: tuple[str, ...] = ()
    fix: str | None = None
    input: str = ""

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready plain data."""
        return {
            "code": self.code,
            "input": self.input,
            "status": self.status,
            "message": self.message,
            "evidence": {key: plain(value) for key, value in self.evidence.items()},
            "causes": list(self.causes),
            "fix": self.fix,
        }


@dataclass(frozen=True, kw_only=True)
class CheckedInput:
    """One input: where it is, what it is, and what was read from it without judging."""

    path: str
    kind: str
    rows: int
    sha256: str | None = None
    trainer: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready plain data."""
        return {
            "path": self.path,
            "sha256": self.sha256,
            "kind": self.kind,
            "trainer": self.trainer,
            "rows": self.rows,
            "facts": plain(self.facts),
        }


def about(finding: Finding, path: str) -> Finding:
    """The finding with the input it is about."""
    return replace(finding, input=path)


def plain(value: Any) -> Any:
    """JSON-ready: null for what is no finite number, whatever it is nested in."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def ok(code: str, message: str, *, evidence: Evidence) -> Finding:
    """The check ran and found nothing."""
    return Finding(code=code, status="ok", message=message, evidence=dict(evidence))


def problem(code: str, message: str, *, evidence: Evidence, causes: tuple[str, ...], fix: str) -> Finding:
    """The check found a fault."""
    return Finding(code=code, status="problem", message=message, evidence=dict(evidence), causes=causes, fix=fix)


def cannot_tell(
    code: str, message: str, *, evidence: Evidence | None = None, causes: tuple[str, ...] = (), fix: str | None = None
) -> Finding:
    """The check ran and the data do not decide."""
    numbers = dict(evidence or {})
    return Finding(code=code, status="cannot-tell", message=message, evidence=numbers, causes=causes, fix=fix)


def number(x: float) -> str:
    """Three significant digits for a sentence.

    Examples
    --------
    >>> number(0.98765), number(1234567.0), number(float("inf"))
    ('0.988', '1.23e+06', 'inf')
    """
    return f"{x:.3g}"
