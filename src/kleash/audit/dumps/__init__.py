"""The checks of a rollout dump: what the sampled tokens' log-probabilities and rewards must obey."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from kleash.audit.declared import Declared
from kleash.audit.dumps import identity, masks, reference, rewards, sampling, scoring, term
from kleash.audit.dumps.facts import facts_of
from kleash.audit.dumps.rollouts import read_chunks
from kleash.audit.dumps.statistics import Tally, tally
from kleash.audit.engine import checks_of, run_checks
from kleash.audit.findings import CheckedInput, Finding, about
from kleash.rows import opened

__all__ = ["CHECKS", "check_dump", "findings_of"]

CHECKS = checks_of(masks, identity, scoring, sampling, reference, rewards, term)


def check_dump(path: str | Path, declared: Declared) -> tuple[CheckedInput, list[Finding]]:
    """One dump, read and checked."""
    label = str(path)
    with opened(path) as source:
        statistics = tally(read_chunks(source), declared)
    checked = CheckedInput(
        path=label,
        kind="rollouts",
        rows=statistics.rows + statistics.probe_rows + statistics.copies,
        sha256=None if label == "-" else source.sha256,
        facts=facts_of(statistics),
    )
    return checked, [about(finding, label) for finding in findings_of(statistics)]


def findings_of(statistics: Tally) -> list[Finding]:
    """The findings on a dump's statistics."""
    return [_defined(finding) for finding in run_checks(CHECKS, statistics)]


def _defined(finding: Finding) -> Finding:
    """A number that came out undefined is never ``ok``."""
    lost = [name for name, value in finding.evidence.items() if isinstance(value, float) and math.isnan(value)]
    if finding.status != "ok" or not lost:
        return finding
    text = f"{', '.join(lost)} came out undefined: values in the dump leave the float range"
    return replace(finding, status="cannot-tell", message=text, fix="mend NON_FINITE and PADDING first")
