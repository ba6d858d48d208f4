"""The answers that a run folder keeps, read as samples: those of a watched TRL run, and those of a sweep's policies."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np

from kleash._checks import message
from kleash.errors import DataError
from kleash.runs import read_run
from kleash.samples._sources import Sources

__all__ = ["DIAL", "ROLLOUTS", "SAMPLES", "SCORED", "answers_in", "with_scored"]

ROLLOUTS = "rollouts.jsonl"
"""A line per answer of a watched run, with the source that drew it and its tokens' log-probabilities."""
SCORED = "scored.jsonl"
"""A line per measurement: the log ratios of its policy on the reference's answers, in their order in `ROLLOUTS`."""
DIAL = "dial.json"
"""The forecast from the answers in the folder."""
SAMPLES = "samples.parquet"
"""The answers of the reference and of a sweep's policies, each with its log ratio under all of them."""
_KINDS = {"sweep": SAMPLES, "ladder": SAMPLES}  # any other run was watched


def answers_in(path: str) -> str:
    """The file of answers in a run folder; any other path as it is.

    Raises
    ------
    DataError
        A run that keeps no answers.
    """
    folder = Path(path)
    if not (folder / "run.json").is_file():
        return path
    run = read_run(folder)
    file = folder / _KINDS.get(run.kind, ROLLOUTS)
    if not file.is_file():
        fix = "KleashCallback(dump=True), and sweeps of language models with forecast_samples, keep them"
        raise DataError(message(f"{run.kind} run", expected=f"answers in {file.name}", got="none", fix=fix), path=path)
    return str(file)


def with_scored(sources: Sources | None, path: str) -> Sources | None:
    """Sources of a watched run's answers, with what later policies make of those of the reference.

    Parameters
    ----------
    sources
        Of the rows of the file ``path``, in their order.
    path
        A file of answers; only beside `ROLLOUTS` there is `SCORED`.

    Returns
    -------
    Sources, the same where there is nothing to add.

    Raises
    ------
    DataError
        Another number of log ratios than the reference has answers.
    """
    file = Path(path).with_name(SCORED)
    if sources is None or not sources.reference or Path(path).name != ROLLOUTS or not file.is_file():
        return sources
    log_ratio, mine = sources.log_ratio.copy(), np.flatnonzero(sources.code == 0)
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            row = json.loads(line)
            name, values = str(row["source"]), np.asarray(row["log_ratio"], dtype=np.float64)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise DataError("is no line of log ratios that kleash wrote", path=file, line=number) from error
        if name not in sources.names:
            continue
        if values.shape != mine.shape or not np.isfinite(values).all():
            got = f"{values.size}" if np.isfinite(values).all() else "one that is not finite"
            wrong = message("log_ratio", expected=f"{mine.size}, one for each answer of the reference", got=got)
            raise DataError(wrong, path=file, line=number)
        log_ratio[mine, sources.names.index(name)] = values
    return dataclasses.replace(sources, log_ratio=log_ratio)
