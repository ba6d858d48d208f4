"""Is the leash attached? Checks of rollout dumps and training logs: ok, problem, cannot-tell or not-run.

`check` is the whole of it. What it can check, and what each check needs, is `CHECKS` for dumps, `LOG_CHECKS` for logs.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from kleash._checks import choice, message
from kleash.audit.configs import CONFIG_CHECKS, check_configuration
from kleash.audit.declared import Declared, as_said
from kleash.audit.dumps import CHECKS, check_dump
from kleash.audit.engine import Check
from kleash.audit.findings import CheckedInput, Finding
from kleash.audit.inputs import Inputs, sort_inputs
from kleash.audit.logs import LOG_CHECKS, SEVERAL_RUNS, check_logs
from kleash.audit.result import Catalogue, CheckReport
from kleash.errors import DataError, OptionError
from kleash.logs.table import TRAINERS

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
        Dumps, JSONL or Parquet (`kleash.audit.dumps.rollouts` lists the columns; ``-`` is stdin), training logs
        (`kleash.logs` reads trainers' and plain tables), configurations of trainers (TOML, YAML, JSON, a shell script
        with its options), or folders of these and of anything else. The kind is told by the content.
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
        with known coefficients also give a Frontier. ``files`` says of each file in a folder what it is, or why it is
        not checked.

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
    if trainer is not None:
        choice(trainer, TRAINERS, name="trainer")
    names = [paths] if isinstance(paths, str | Path) else list(paths)
    if not names:
        raise OptionError(message("paths", expected="at least one rollout dump or training log", got="none"))
    declared, settings = as_said(config, beta=beta, reward_range=reward_range)
    found = sort_inputs(names, trainer=trainer, mapping=declared.columns)
    dumps, lost = _dumps(found, declared)
    configs = [check_configuration(path, who) for path, who in found.configs]
    logs, log_findings, frontier = check_logs(found.logs, declared=declared, config=settings, gold=gold)
    read = [*dumps, *configs]
    inputs = (*(checked for checked, _ in read), *logs)
    return CheckReport(
        inputs=inputs,
        files=tuple(seen.row({item.path: item for item in inputs}, lost) for seen in found.seen),
        findings=(*(finding for _, findings in read for finding in findings), *log_findings),
        frontier=frontier,
    )


def _dumps(found: Inputs, declared: Declared) -> tuple[list[tuple[CheckedInput, list[Finding]]], dict[str, str]]:
    """The dumps with their findings, and why those of a folder that cannot be read are left out."""
    checked: list[tuple[CheckedInput, list[Finding]]] = []
    lost: dict[str, str] = {}
    in_folders = {str(seen.path) for seen in found.seen}
    for path in found.dumps:
        try:
            checked.append(check_dump(path, declared))
        except DataError as error:
            if str(path) not in in_folders or (
                len(lost) + 1 == len(found.dumps) and not found.logs and not found.configs
            ):
                raise
            lost[str(path)] = str(error).removeprefix(f"{path}: ").partition("; ")[0]
    return checked, lost


def list_checks() -> Catalogue:
    """What is checked, what each check needs, and when it says problem: what ``kleash check --list`` prints.

    Examples
    --------
    >>> [row["code"] for row in list_checks().rows()][:3]
    ['NON_FINITE', 'MASK', 'PADDING']
    """
    return Catalogue(checks=CHECKS, log_checks=(*LOG_CHECKS, *SEVERAL_RUNS), config_checks=CONFIG_CHECKS)
