"""Is the leash attached? Checks of rollout dumps and training logs: ok, problem, cannot-tell or not-run.

`check` is the whole of it. What it can check, and what each check needs, is `CHECKS` for dumps, `LOG_CHECKS` for logs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from kleash._checks import message
from kleash._files import sha256
from kleash.audit.catalogue import CHECKS, NEEDS, run_checks
from kleash.audit.declared import Declared, read_config
from kleash.audit.findings import Check, Finding, kl_specs
from kleash.audit.inputs import check_logs, sort_inputs
from kleash.audit.log_catalogue import LOG_CHECKS, LOG_NEEDS, SEVERAL_RUNS
from kleash.audit.result import Catalogue, CheckedInput, CheckReport, about
from kleash.audit.rewards import R2_LEAST, effective_beta
from kleash.audit.rollouts import Chunk, read_chunks
from kleash.audit.tally import Tally, tally
from kleash.errors import OptionError

__all__ = [
    "CHECKS",
    "LOG_CHECKS",
    "Catalogue",
    "Check",
    "CheckReport",
    "CheckedInput",
    "Declared",
    "Finding",
    "check",
    "check_logs",
    "check_rollouts",
    "list_checks",
]


def check(
    paths: str | Path | Iterable[str | Path],
    *,
    config: str | Path | None = None,
    beta: float | None = None,
    reward_range: tuple[float, float] | None = None,
    gold: str | None = None,
    trainer: str | None = None,
) -> CheckReport:
    """Check rollout dumps and training logs: whether the KL penalty is attached and means what its owner thinks.

    Use it on what a run has left behind, while it runs or after. It reads numbers only and needs no model. It does not
    say that a run is well: it says which checks ran, what they found, and which could not run.

    Parameters
    ----------
    paths
        Dumps, JSONL or Parquet (`kleash.audit.rollouts` lists the columns; ``-`` is stdin), training logs
        (`kleash.logs` reads eight trainers' and plain tables), or folders of both. The kind is told by the content.
    config
        TOML, YAML or JSON with what the files cannot show: ``beta``, ``reward_min``, ``reward_max``, ``estimator``,
        ``placement``; or, for logs, the trainer's own configuration under its own option names. ``columns`` in it says
        what the columns of a plain table are: ``{"reward": "judge_score", "kl": "kl_nats", "kl_unit": ...}``.
    beta
        The declared coefficient; over ``config``. For a dump in reward units per nat of the whole answer, for a log the
        number that the trainer was given.
    reward_range
        Lowest and highest score the judge can give; over ``config``.
    gold
        For logs: the column that holds true quality, a reward function (one of weight 0, say) or any key.
    trainer
        For logs: who wrote them, where the keys leave it open (TRL's GRPO and RLOO write the same).

    Returns
    -------
    CheckReport
        Findings per input, with evidence in numbers, causes in order of likelihood, and what to do. Two or more logs
        with known coefficients also give a Frontier.

    Raises
    ------
    KleashError
        An input is missing, empty, or neither a rollout dump nor a training log.

    Notes
    -----
    A healthy input has any ``problem`` with a probability of at most 1 %: that rate is divided by the tests that run.
    It holds for answers that are unselected, distinct draws, and masks that depend on what stands before a token only.

    Examples
    --------
    >>> import json, tempfile
    >>> with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
    ...     _ = file.write(json.dumps({"logp": [-0.5, -1.0], "ref_logp": [-0.6, float("nan")]}))
    ...     file.flush()
    ...     report = check(file.name)
    >>> [finding.code for finding in report.problems]
    ['NON_FINITE']
    """
    names = [paths] if isinstance(paths, str | Path) else list(paths)
    if not names:
        raise OptionError(message("paths", expected="at least one rollout dump or training log", got="none"))
    declared, settings = (Declared(), {}) if config is None else read_config(config)
    low, high = (None, None) if reward_range is None else reward_range
    declared = declared.updated(beta=beta, reward_min=low, reward_max=high)
    inputs: list[CheckedInput] = []
    findings: list[Finding] = []
    found = sort_inputs(names, trainer=trainer, mapping=declared.columns)
    for path in found.dumps:
        statistics = tally(read_chunks(path))
        label = str(path)
        inputs.append(
            CheckedInput(
                path=label,
                kind="rollouts",
                rows=statistics.rows + statistics.probe_rows + statistics.copies,
                sha256=None if label == "-" else sha256(path),
                facts=_facts(statistics, declared),
            )
        )
        findings += [about(finding, label) for finding in run_checks(statistics, declared)]
    logs, log_findings, frontier = check_logs(found.logs, declared=declared, config=settings, gold=gold)
    return CheckReport(
        inputs=(*inputs, *logs),
        findings=(*findings, *log_findings),
        frontier=None if frontier is None else frontier.to_dict(),
    )


def list_checks() -> Catalogue:
    """What is checked, what each check needs, and when it says problem: what ``kleash check --list`` prints.

    Examples
    --------
    >>> [row["code"] for row in list_checks().rows()][:3]
    ['NON_FINITE', 'MASK', 'PADDING']
    """
    return Catalogue(
        checks=CHECKS,
        needs={name: words for name, (words, _) in NEEDS.items()},
        log_checks=(*LOG_CHECKS, *SEVERAL_RUNS),
        log_needs={name: words for name, (words, _) in LOG_NEEDS.items()},
    )


def check_rollouts(chunks: Iterable[Chunk], *, declared: Declared | None = None) -> list[Finding]:
    """The findings on a dump that is already in memory as chunks; what `check` does with each file."""
    return run_checks(tally(chunks), declared or Declared())


def _facts(statistics: Tally, declared: Declared) -> dict[str, Any]:
    """What the input says without being judged; null where it says nothing."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        return _read(statistics, declared)


def _read(statistics: Tally, declared: Declared) -> dict[str, Any]:
    found, loose = effective_beta(statistics), ""
    if found is not None and not found.r2 >= R2_LEAST:
        loose = f"R squared {found.r2:.2f} is below {R2_LEAST:g}: too loose a relation to read a beta from"
    given = declared.beta
    return {
        "placement": {"loss": "loss", "loss-with-ratio": "loss", None: "unknown"}.get(declared.placement, "reward"),
        "estimator": declared.estimator,
        "coefficient": None if given is None else {"value": given, "lo": given, "hi": given, "from": "declared"},
        "logged_kl_unit": None,
        "penalty_kl_unit": None,
        "effective_beta": None
        if found is None or loose
        else {
            "value": _finite(found.slope),
            "lo": _finite(found.lo),
            "hi": _finite(found.hi),
            "r2": _finite(found.r2),
            "reverse": _finite(found.reverse),
            "prompts": found.prompts,
            "answers": found.answers,
        },
        "effective_beta_reason": loose or None,
        "kl_per_answer": _finite(statistics.delta.mean()) if statistics.counts["finite"] else None,
        "kl_per_token": _finite(statistics.delta.sum() / statistics.tokens) if statistics.tokens else None,
        "kl_spec": kl_specs(statistics, kl_per_answer="nats per answer", kl_per_token="nats per token"),
        "copies_left_out": statistics.copies,
        "answers": statistics.rows,
        "tokens": statistics.tokens if statistics.has_tokens else None,
    }


def _finite(value: float) -> float | None:
    """The number, or None where it is past every float."""
    return float(value) if math.isfinite(value) else None
