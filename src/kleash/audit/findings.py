"""What is a finding? The words that every room of the audit shares.

A status is one of four. ``ok``: the check ran, and a fault of the size its evidence states would have been seen.
``problem``: chance explains the data with a probability below the check's level, or no chance is involved.
``cannot-tell``: the check ran and the data do not decide. ``not-run``: something it needs is not there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, Literal

__all__ = ["STATUSES", "CheckedInput", "Evidence", "Finding", "about", "cannot_tell", "number", "plain"]

Status = Literal["ok", "problem", "cannot-tell", "not-run"]
STATUSES: tuple[Status, ...] = ("problem", "cannot-tell", "ok", "not-run")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One check's answer about one input.

    ``status``, ``message``: The answer, and one sentence with its numbers. ``code``: The check, a stable name that
    scripts may rely on; it is set where the check is run. ``evidence``: The numbers; None where a number does not
    exist. ``causes``: Likely causes, the likeliest first; empty unless the status is ``problem`` or ``cannot-tell``.
    ``fix``: What to do next, or None. ``input``: The file it is about.
    """

    code: str = ""
    input: str = ""
    status: Status
    message: str
    evidence: dict[str, Any] = field(default_factory=dict)
    causes: tuple[str, ...] = ()
    fix: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready plain data."""
        return {name: plain(value) for name, value in vars(self).items()}


@dataclass(frozen=True, kw_only=True)
class CheckedInput:
    """One input: where it is, what it is, and what was read from it without judging."""

    path: str
    sha256: str | None = None
    kind: str
    trainer: str | None = None
    rows: int
    facts: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready plain data."""
        return {name: plain(value) for name, value in vars(self).items()}


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


class Evidence(dict[str, Any]):
    """The numbers that a check has found, and what it may answer with them."""

    def ok(self, message: str) -> Finding:
        """The check ran and found nothing."""
        return Finding(status="ok", message=message, evidence=dict(self))

    def problem(self, message: str, *causes: str, fix: str) -> Finding:
        """The check found a fault, with its likely causes, the likeliest first."""
        return Finding(status="problem", message=message, evidence=dict(self), causes=causes, fix=fix)

    def cannot_tell(self, message: str, *causes: str, fix: str | None = None) -> Finding:
        """The check ran and the data do not decide."""
        return Finding(status="cannot-tell", message=message, evidence=dict(self), causes=causes, fix=fix)


def cannot_tell(message: str, *, fix: str | None = None) -> Finding:
    """The check ran and has no number to show."""
    return Evidence().cannot_tell(message, fix=fix)


def number(x: float) -> str:
    """Three significant digits for a sentence.

    Examples
    --------
    >>> number(0.98765), number(1234567.0), number(float("inf"))
    ('0.988', '1.23e+06', 'inf')
    """
    return f"{x:.3g}"
