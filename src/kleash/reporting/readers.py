"""One thing to show, and a reader for each kind of result that makes one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np

from kleash._checks import message, nearest
from kleash.envelope import check_schema
from kleash.errors import DataError, KleashError, OptionError
from kleash.frontier import Frontier, exact_frontier
from kleash.known_worlds import WORLDS
from kleash.reporting.answers import kept_answers, prompt_means
from kleash.reporting.facts import answers, facts, finding, number, numbers, sentences, trainer
from kleash.reporting.schema1 import upgraded
from kleash.runs import Run
from kleash.window import Verdict, find_window

__all__ = ["KINDS", "ReportSource", "from_content", "from_frontier", "from_run"]

Kind = Literal["run", "frontier", "sweep", "forecast", "check"]
Row = Mapping[str, Any]
_SAME = 1e-9  # a world computed again is that of the file if every number agrees to this, relative to its scale
KINDS = "a run folder, a frontier file (.json, .parquet) or the JSON of kleash sweep, forecast or check"
"""What can be shown, in words."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ReportSource:
    """One thing to show, whatever it was read from.

    Parameters
    ----------
    name
        What it is called in a legend; distinct among the sources of one report.
    kind, path, sha256
        What it was read from; ``path`` and ``sha256`` are None for an object in memory, the hash also for a folder.
    frontier, verdict
        The table and what it means; None where there is none (a check of one run).
    optimum
        The exact optimum at each beta in the same world, on a fine grid where the world is known: at its KL no policy
        has a higher judge's score.
    perfect
        The same world's optimum under a judge that scores true quality: at its KL no policy has a higher one.
    reward_range
        Largest minus smallest score that the judge can give, where known; None otherwise.
    best_of_n, unseen, trainer
        From a forecast, as its JSON has them.
    answers
        Rows of ``beta``, ``prompt``, ``answer``, ``reward``, ``gold``.
    metrics
        Rows of a training run: ``step``, ``beta``, ``seed``, ``reward``, ``gold``, ``kl``.
    spread
        Means of each prompt at each beta: ``beta``, ``prompt``, ``reward``, ``gold``, ``n``.
    findings
        Of a check, as its JSON has them.
    facts
        Where the numbers come from, as pairs of words.
    notes
        Sentences of small print.
    """

    name: str
    kind: Kind
    path: str | None = None
    sha256: str | None = None
    frontier: Frontier | None = None
    verdict: Verdict | None = None
    optimum: Frontier | None = None
    perfect: Frontier | None = None
    reward_range: float | None = None
    best_of_n: tuple[Row, ...] = ()
    unseen: Row | None = None
    trainer: Row | None = None
    answers: tuple[Row, ...] = ()
    metrics: tuple[Row, ...] = ()
    spread: tuple[Row, ...] = ()
    findings: tuple[Row, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()


def from_content(content: Any, *, name: str) -> ReportSource:
    """The JSON of a command or of a frontier.

    Raises `OptionError`: It is nothing that can be shown. `DataError`: It is of a schema that this kleash does not
    read.
    """
    if not isinstance(content, dict) or not isinstance(content.get("source"), str) or "schema" not in content:
        fix = "of a training log, kleash check LOG --format json makes one that can be shown"
        raise OptionError(message("source", expected=KINDS, got="other JSON", fix=fix))
    check_schema(content["schema"])
    content = upgraded(content)
    kind = content["kind"]
    if kind not in _READERS:
        raise OptionError(message("source", expected=KINDS, got=f"JSON of kind {kind!r}", fix=nearest(kind, _READERS)))
    return _READERS[kind](content, name)


def from_frontier(frontier: Frontier, *, name: str) -> ReportSource:
    """A table, and what it means."""
    return ReportSource(
        name=name,
        kind="frontier",
        frontier=frontier,
        verdict=find_window(frontier),
        optimum=frontier if frontier.source == "exact" else None,
        reward_range=number(frontier.provenance.get("reward_range")),
        facts=facts(frontier.provenance, source=frontier.source),
        notes=sentences(frontier.provenance),
    )


def from_run(run: Run, *, name: str) -> ReportSource:
    """A run folder.

    Raises `DataError`: The run is not finished, or not whole.
    """
    if run.state != "finished":
        fix = "finish it: the command that began it, with --resume"
        raise DataError(
            message("run", expected="one that is finished", got=f"one that is {run.state}", fix=fix), path=run.path
        )
    frontier, results = run.frontier(), run.record.get("results", {})
    kept, n_kept = kept_answers(run.path)
    try:
        verdict = Verdict.from_dict(results["verdict"]) if "verdict" in results else find_window(frontier)
        shown = answers(kept or results.get("answers", ()))
        found = facts(run.record, source=frontier.source)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError("is not whole: its results cannot be read", path=run.path / "run.json") from error
    return ReportSource(
        name=name,
        kind="run",
        path=str(run.path),
        frontier=frontier,
        verdict=verdict,
        **_limits(run.config, run.optimum()),
        reward_range=number(frontier.provenance.get("reward_range")),
        answers=shown,
        metrics=_training(run),
        spread=prompt_means(run.path),
        facts=found + ((("answers kept", f"{n_kept:,}, some of each beta are shown"),) if kept else ()),
        notes=sentences(results),
    )


def _training(run: Run) -> tuple[Row, ...]:
    """The rows of training, each with its step and beta."""
    path = run.path / "metrics.jsonl"
    rows = run.metrics() if path.exists() else []
    for line, row in enumerate(rows, start=1):
        lacks = [name for name in ("step", "beta") if not isinstance(row.get(name), int | float)]
        if lacks:
            text = message("a line of metrics", expected=f"a number as {' and '.join(lacks)}", got="none")
            raise DataError(text, path=path, line=line)
    return tuple(rows)


def _of_frontier(content: Row, name: str) -> ReportSource:
    return from_frontier(Frontier.from_dict(content), name=name)


def _of_check(content: Row, name: str) -> ReportSource:
    table = content.get("frontier")
    frontier = None if table is None else Frontier.from_dict(table)
    return ReportSource(
        name=name,
        kind="check",
        frontier=frontier,
        verdict=None if frontier is None else find_window(frontier),
        findings=tuple(finding(row) for row in content["findings"]),
        facts=facts(content, source="check"),
        notes=() if frontier is None else sentences(frontier.provenance),
    )


def _of_sweep(content: Row, name: str) -> ReportSource:
    optimum = content.get("optimum_frontier")
    limits = _limits(content.get("config", {}), None if optimum is None else Frontier.from_dict(optimum))
    return _of_result(content, name, **limits)


def _of_forecast(content: Row, name: str) -> ReportSource:
    unseen = content.get("unseen")
    return _of_result(
        content,
        name,
        best_of_n=tuple(numbers(row, ("n", "reward", "gold", "kl")) for row in content.get("best_of_n") or ()),
        unseen=None if unseen is None else numbers(unseen, ("confidence", "mass_below", "beta_floor", "tolerance")),
        trainer=trainer(content.get("trainer")),
    )


def _of_result(content: Row, name: str, **more: Any) -> ReportSource:
    return ReportSource(
        name=name,
        kind=content["kind"],
        frontier=Frontier.from_dict(content["frontier"]),
        verdict=Verdict.from_dict(content["verdict"]),
        answers=answers(content.get("answers") or ()),
        facts=facts(content, source=content["kind"]),
        notes=sentences(content),
        **more,
    )


_READERS: Mapping[str, Callable[[Row, str], ReportSource]] = {
    "frontier": _of_frontier,
    "sweep": _of_sweep,
    "forecast": _of_forecast,
    "check": _of_check,
}


def _limits(config: Row, known: Frontier | None) -> dict[str, Any]:
    """Optimum and perfect judge of the world a run was made in; what was saved where the world is not one of ours."""
    named = WORLDS.get(str(config.get("world")))
    if known is None or named is None or named.make is None:
        return {"optimum": known}
    try:
        world = named.make(**config.get("settings", {}))
        again = exact_frontier(world, known.beta)
    except (KleashError, TypeError):  # a world of another version: what was saved is all that is known
        return {"optimum": known}
    for there, here in ((known.reward, again.reward), (known.kl, again.kl)):
        if not np.allclose(there.value, here.value, rtol=_SAME, atol=_SAME):
            return {"optimum": known}
    perfect = dataclasses.replace(world, reward=world.gold)
    return {"optimum": exact_frontier(world), "perfect": exact_frontier(perfect)}
