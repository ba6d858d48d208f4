"""The checks of a training log: what a trainer's own numbers say of its KL."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from kleash.audit.declared import Declared
from kleash.audit.engine import checks_of, run_checks
from kleash.audit.findings import CheckedInput, Finding, about
from kleash.audit.logs import (
    advantages,
    coefficient,
    controller,
    dynamics,
    finite,
    hacking,
    kl_path,
    kl_values,
    penalty,
    placement,
    sampler,
    sweep,
    units,
    upgrades,
)
from kleash.audit.logs.facts import facts_of
from kleash.audit.logs.view import LogView, view
from kleash.logs import with_gold, with_settings

if TYPE_CHECKING:
    from kleash.frontier import Frontier
    from kleash.logs.table import RunLog

__all__ = ["LOG_CHECKS", "SEVERAL_RUNS", "check_logs", "findings_of"]

LOG_CHECKS = checks_of(
    finite,
    coefficient,
    placement,
    units,
    penalty,
    controller,
    kl_values,
    kl_path,
    dynamics,
    hacking,
    advantages,
    sampler,
    upgrades,
)

AT_STEP = re.compile(r"\bstep (?=\d)")

SEVERAL_RUNS = checks_of(sweep)
"""Checks of several runs together."""


@np.errstate(divide="ignore", invalid="ignore", over="ignore")  # NON_FINITE names such rows, the rest leaves them out
def check_logs(
    logs: Iterable[RunLog],
    *,
    declared: Declared | None = None,
    config: Mapping[str, Any] | None = None,
    gold: str | None = None,
) -> tuple[list[CheckedInput], list[Finding], Frontier | None]:
    """The findings about logs that are already read, one by one and together; what `check` does with them.

    ``declared``, ``config``, ``gold``: As for `check`; ``config`` is the trainer's own configuration, over what a log
    holds of it.

    Returns
    -------
    tuple of inputs, findings, Frontier or None
        As in a `CheckReport`.

    Raises
    ------
    MissingColumnError
        ``gold`` names a column that no log has, or several.
    """
    given = [with_settings(log, config or {}) for log in logs]
    times = Counter(log.path for log in given)
    labels = [log.path if times[log.path] == 1 else f"{log.path}#{log.run}" for log in given]
    named = given if gold is None else with_gold(given, gold)
    views = [view(log, declared, label=label) for log, label in zip(named, labels, strict=True)]
    findings = [about(finding, v.label) for v in views for finding in findings_of(v)]
    if len(views) > 1:
        findings += [*upgrades.upgrade_between(views), *sweep.sweeps(views)]
    return [_checked(v) for v in views], findings, sweep.frontier_of(views)


def findings_of(view: LogView) -> list[Finding]:
    """The findings on one log."""
    found = run_checks(LOG_CHECKS, view)
    return [_by_rows(finding) for finding in found] if view.log.numbered else found


def _by_rows(finding: Finding) -> Finding:
    """The finding about a log without steps, whose rows are numbered: they are called rows."""
    fix = None if finding.fix is None else AT_STEP.sub("row ", finding.fix)
    return replace(finding, message=AT_STEP.sub("row ", finding.message), fix=fix)


def _checked(view: LogView) -> CheckedInput:
    return CheckedInput(
        path=view.label,
        kind="log",
        rows=view.log.rows,
        sha256=view.log.sha256 or None,
        trainer=view.trainer.name,
        facts=facts_of(view),
    )
