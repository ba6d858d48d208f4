"""What is a finding, and what is a check? The words that every room of the audit shares.

A status is one of four. ``ok``: the check ran, and a fault of the size its evidence states would have been seen.
``problem``: chance explains the data with a probability below the check's level, or no chance is involved.
``cannot-tell``: the check ran and the data do not decide. ``not-run``: something it needs is not there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, cast

from kleash.kl import KLSpec

if TYPE_CHECKING:
    from kleash.audit.declared import Declared
    from kleash.audit.tally import Tally

__all__ = ["STATUSES", "Check", "Finding", "cannot_tell", "kl_specs", "number", "ok", "plain", "problem"]

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


def plain(value: Any) -> Any:
    """JSON-ready: null for what is no finite number, whatever it is nested in."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


@dataclass(frozen=True, kw_only=True)
class Check:
    """An entry of the catalogue.

    Parameters
    ----------
    code, asks
        Its name and the question it answers.
    needs
        Names of what must be there (see `kleash.audit.catalogue.NEEDS`); without them it is ``not-run``.
    rule
        When it says ``problem``, with the false-alarm rate or the source of the threshold.
    run
        Pure function of the dump's statistics, what the user declared, and the level of this test.
    chance
        Whether its verdict depends on chance; only these share the family's false-alarm rate.
    """

    code: str
    asks: str
    needs: tuple[str, ...]
    rule: str
    run: Callable[[Tally, Declared, float], Finding]
    chance: bool = True


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


def kl_specs(tally: Tally, *, sampler: bool = False, **units: str) -> dict[str, Any]:
    """The `KLSpec` of each KL number by its name: k1 of KL(policy || reference), or of the sampler's law.

    Where the dump has ``behavior_logp`` the tokens are the sampler's: a number made of ``logp`` is then no estimate of
    the policy's KL (tokens from ``behavior``), and one made of ``behavior_logp`` is that of the law that was sampled.
    """
    drawn: Literal["policy", "behavior"] = "behavior" if tally.has_sampler and not sampler else "policy"
    specs = {
        name: KLSpec(estimator="k1", unit=cast("Any", unit), sampler=drawn).to_dict() for name, unit in units.items()
    }
    if sampler and tally.has_sampler:
        specs = {name: {**spec, "policy_logp": "behavior_logp"} for name, spec in specs.items()}
    return specs


def number(x: float) -> str:
    """Three significant digits for a sentence.

    Examples
    --------
    >>> number(0.98765), number(1234567.0), number(float("inf"))
    ('0.988', '1.23e+06', 'inf')
    """
    return f"{x:.3g}"
