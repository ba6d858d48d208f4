"""What is a check, and how do all of them run? One table of checks for dumps and one for logs, one way to run both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from kleash.audit.chance import FAMILY_LEVEL
from kleash.audit.findings import Finding

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["Check", "Need", "check", "checks_of", "run_checks"]

S = TypeVar("S")


@dataclass(frozen=True, kw_only=True)
class Need(Generic[S]):
    """Something that a check cannot do without.

    ``words``: What it is called where it is missing. ``met``: Whether the subject, the statistics of a dump or the view
    of a log, has it. ``hint``: What else to say where it is missing.
    """

    words: str
    met: Callable[[S], bool]
    hint: Callable[[S], str] = lambda subject: ""


@dataclass(frozen=True, kw_only=True)
class Check(Generic[S]):
    """One check; `check` makes it of a function.

    ``code``, ``asks``: Its name and the question it answers. ``needs``: What must be there; without it the check is
    ``not-run``. ``rule``: When it says ``problem``, with the false-alarm rate or the source of the threshold.
    ``chance``: Whether its verdict depends on chance; only these share the family's false-alarm rate. ``run``: Pure
    function of the subject and the level of this test.
    """

    code: str
    asks: str
    needs: tuple[Need[S], ...]
    rule: str
    chance: bool
    run: Callable[[S, float], Finding]

    def __call__(self, subject: S, level: float) -> Finding:
        """The finding about a subject that has all the check needs; an ``ok`` holds what it excluded: the rule."""
        found = replace(self.run(subject, level), code=self.code)
        return replace(found, evidence={**found.evidence, "excluded": self.rule}) if found.status == "ok" else found


def check(
    code: str, *needs: Need[S], problem: str, chance: bool = False
) -> Callable[[Callable[[S, float], Finding]], Check[S]]:
    """Make a check of the function below, whose docstring begins with the question it answers.

    Parameters
    ----------
    code, needs, chance
        As in `Check`.
    problem
        Its ``rule``.

    Returns
    -------
    Callable
        The decorator.
    """

    def made(run: Callable[[S, float], Finding]) -> Check[S]:
        asks = (run.__doc__ or "").partition("\n")[0]
        return Check(code=code, asks=asks, needs=needs, rule=problem, chance=chance, run=run)

    return made


def checks_of(*modules: ModuleType) -> tuple[Check[Any], ...]:
    """The checks that some modules define, in the order in which they stand there."""
    return tuple(
        found
        for module in modules
        for found in vars(module).values()
        if isinstance(found, Check) and found.run.__module__ == module.__name__
    )


@np.errstate(over="ignore", invalid="ignore", divide="ignore")
def run_checks(checks: tuple[Check[S], ...], subject: S) -> list[Finding]:
    """Every check in the order of the table; those that rest on chance at `FAMILY_LEVEL` over how many of them can run.

    A check whose needs are not met is ``not-run`` with the reason; it is never left out.
    """
    missing = {check.code: [need for need in check.needs if not need.met(subject)] for check in checks}
    tests = sum(check.chance and not missing[check.code] for check in checks)
    level = FAMILY_LEVEL / max(1, tests)
    return [
        _not_run(check.code, missing[check.code], subject) if missing[check.code] else check(subject, level)
        for check in checks
    ]


def _not_run(code: str, missing: list[Need[S]], subject: S) -> Finding:
    words = [need.words for need in missing]
    reason = f"needs {' and '.join(words)}" + "".join(need.hint(subject) for need in missing)
    return Finding(code=code, status="not-run", message=reason, evidence={"missing": words})
