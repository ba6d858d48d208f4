"""What can be shown: run folders, frontier files and the JSON of the commands, read into one form."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from scipy.special import stdtrit

from kleash import _files
from kleash._checks import message, nearest
from kleash.errors import DataError, KleashError, MissingFileError, OptionError
from kleash.frontier import Estimates, Frontier, Gold, exact_frontier
from kleash.reporting.answers import kept_answers, prompt_means
from kleash.runs import Run, read_run
from kleash.window import Verdict, find_window

if TYPE_CHECKING:
    from kleash.audit import CheckReport
    from kleash.forecasting.result import Forecast
    from kleash.train.sweep import SweepResult

__all__ = ["ReportSource", "given", "read_sources", "source_of"]

Kind = Literal["run", "frontier", "sweep", "forecast", "check"]
Row = Mapping[str, Any]
_SCHEMA = 1
_QUANTITIES = ("reward", "kl", "gold", "gold_gain")
_KINDS = "a run folder, a frontier file (.json, .parquet) or the JSON of kleash sweep, forecast or check"
_SAME = 1e-9  # a world computed again is that of the file if every number agrees to this, relative to its scale


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


def read_sources(paths: Iterable[str | Path]) -> tuple[ReportSource, ...]:
    """Read every path; names come from the paths, as short as keeps them apart.

    Raises
    ------
    OptionError
        No path, or something that kleash cannot show.
    MissingFileError, DataError
        A path is not there, or not whole; the message names it.
    """
    listed = [Path(path) for path in paths]
    if not listed:
        raise OptionError(message("sources", expected=_KINDS, got="nothing"))
    names = _names(listed)
    return tuple(_read(path, name) for path, name in zip(listed, names, strict=True))


def source_of(
    result: Frontier | Forecast | SweepResult | CheckReport | ReportSource, *, name: str | None = None
) -> ReportSource:
    """A source from a result in memory.

    Parameters
    ----------
    result
        A Frontier, or what ``kleash.forecast``, ``kleash.sweep`` or ``kleash.check`` returned.
    name
        What to call it; default: what it is.

    Examples
    --------
    >>> from kleash.worlds import two_arm
    >>> source_of(exact_frontier(two_arm(0.2), [1.0])).name
    'exact'
    """
    if isinstance(result, ReportSource):
        return result if name is None else dataclasses.replace(result, name=name)
    if isinstance(result, Frontier):
        return _from_frontier(result, name=name or result.source, kind="frontier")
    content = result.to_dict()
    source = _from_json(content, name=name or str(content.get("world") or content["source"]), path=None)
    table = getattr(result, "frontier", None)
    history = getattr(result, "history", None)
    metrics = source.metrics if history is None else _history(history, table)
    return dataclasses.replace(
        source, frontier=table if isinstance(table, Frontier) else source.frontier, metrics=metrics
    )


def given(path: str) -> str:
    r"""A path as it was given, and of an absolute one the name alone: a page is passed on, its reader's disk is not.

    Examples
    --------
    >>> given("runs/first"), given("/home/me/secret/first.json"), given("C:\\me\\first.json")
    ('runs/first', 'first.json', 'first.json')
    """
    if PurePosixPath(path).is_absolute():
        return PurePosixPath(path).name or path
    if PureWindowsPath(path).is_absolute():
        return PureWindowsPath(path).name or path
    return path


def _names(paths: Sequence[Path]) -> list[str]:
    """As many of the last parts of a path as tell it apart; a number where the same path comes twice."""
    parts = [("stdin",) if str(path) == "-" else path.resolve().parts for path in paths]
    depth = 1
    while len(set(names := ["/".join(p[-depth:]) for p in parts])) < len(set(parts)) and depth < 99:
        depth += 1
    seen: Counter[str] = Counter()
    out = []
    for name in names:
        seen[name] += 1
        out.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return out


def _read(path: Path, name: str) -> ReportSource:
    if str(path) == "-":
        return _from_text(sys.stdin.read(), path=path, name=name)
    if path.is_dir():
        return _from_run(read_run(path), name=name)
    if not path.exists():
        raise MissingFileError(message(f"{path}", expected=_KINDS, got="nothing there"))
    digest = _files.sha256(path)
    if path.suffix == ".parquet":
        source = _from_frontier(Frontier.load(path), name=name, kind="frontier")
        return dataclasses.replace(source, path=str(path), sha256=digest)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror or error}", path=path) from error
    except ValueError as error:
        raise DataError(f"is no text; expected {_KINDS}", path=path) from error
    return dataclasses.replace(_from_text(text, path=path, name=name), sha256=digest)


def _from_text(text: str, *, path: Path, name: str) -> ReportSource:
    """The JSON of a command or of a frontier."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        fix = "a training log: kleash check LOG --format json --out check.json first"
        raise DataError(f"is no JSON; expected {_KINDS}; {fix}", path=path) from error
    try:
        if isinstance(content, dict) and "measured" in content:
            source = _from_frontier(Frontier.load(path), name=name, kind="frontier")
            return dataclasses.replace(source, path=str(path))
        return _from_json(content, name=name, path=path)
    except KleashError as error:
        raise error if str(path) in str(error) else DataError(str(error), path=path) from error
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        raise DataError(
            "is not whole: it looks like kleash's, and parts are missing or of another type", path=path
        ) from error


def _from_frontier(frontier: Frontier, *, name: str, kind: Kind) -> ReportSource:
    provenance = frontier.provenance
    notes = provenance.get("notes", ())
    return ReportSource(
        name=name,
        kind=kind,
        frontier=frontier,
        verdict=find_window(frontier),
        optimum=frontier if frontier.source == "exact" else None,
        reward_range=_number(provenance.get("reward_range")),
        facts=_facts(provenance, source=frontier.source),
        notes=tuple(str(note) for note in notes) if isinstance(notes, list | tuple) else (),
    )


def _from_run(run: Run, *, name: str) -> ReportSource:
    if run.state != "finished":
        fix = "finish it: the command that began it, with --resume"
        raise DataError(
            message("run", expected="one that is finished", got=f"one that is {run.state}", fix=fix), path=run.path
        )
    frontier, results = run.frontier(), run.record.get("results", {})
    try:
        verdict = _verdict(results["verdict"]) if "verdict" in results else find_window(frontier)
        kept, n_kept = kept_answers(run.path)
        answers = _answers(kept or results.get("answers", ()))
        facts = _facts(run.record, source=frontier.source)
        facts += (("answers kept", f"{n_kept:,}, some of each beta are shown"),) if kept else ()
        notes = tuple(str(note) for note in results.get("notes", ()))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError("is not whole: its results cannot be read", path=run.path / "run.json") from error
    return ReportSource(
        name=name,
        kind="run",
        path=str(run.path),
        frontier=frontier,
        verdict=verdict,
        **_limits(run.config, run.optimum()),
        reward_range=_number(frontier.provenance.get("reward_range")),
        answers=answers,
        metrics=tuple(run.metrics()) if (run.path / "metrics.jsonl").exists() else (),
        spread=prompt_means(run.path),
        facts=facts,
        notes=notes,
    )


def _from_json(content: Any, *, name: str, path: Path | None) -> ReportSource:
    """A command's JSON."""
    if not isinstance(content, dict) or not isinstance(content.get("source"), str) or "schema" not in content:
        fix = "of a training log, kleash check LOG --format json makes one that can be shown"
        raise OptionError(message("source", expected=_KINDS, got="other JSON", fix=fix))
    if content["schema"] != _SCHEMA:
        raise DataError(f"is of schema {content['schema']}, this kleash reads {_SCHEMA}")
    kind, where = content["source"], None if path is None else str(path)
    if kind == "check":
        table = content.get("frontier")
        frontier = None if table is None else _table(table["rows"], table["reference"], source="log", content=table)
        return ReportSource(
            name=name,
            kind="check",
            path=where,
            frontier=frontier,
            verdict=None if frontier is None else find_window(frontier),
            findings=tuple(_finding(row) for row in content["findings"]),
            facts=_facts(content, source="check"),
            notes=tuple(str(note) for note in ({} if table is None else table).get("provenance", {}).get("notes", ())),
        )
    if kind not in ("sweep", "forecast"):
        hint = nearest(kind, ("sweep", "forecast", "check"))
        raise OptionError(message("source", expected=_KINDS, got=f"JSON of source {kind!r}", fix=hint))
    frontier = _table(
        content["rows"], content["reference"], source="sweep" if kind == "sweep" else "forecast", content={}
    )
    rows = content.get("optimum")
    optimum = None if not rows else _table(rows, content["reference"], source="exact", content={})
    unseen = content.get("unseen")
    return ReportSource(
        name=name,
        kind="sweep" if kind == "sweep" else "forecast",
        path=where,
        frontier=frontier,
        verdict=_verdict(content["verdict"]),
        **_limits(content.get("config", {}), optimum),
        best_of_n=tuple(_numbers(row, ("n", "reward", "gold", "kl")) for row in content.get("best_of_n") or ()),
        unseen=None if unseen is None else _numbers(unseen, ("confidence", "mass_below", "beta_floor", "tolerance")),
        trainer=content.get("trainer"),
        answers=_answers(content.get("answers") or ()),
        facts=_facts(content, source=kind),
        notes=tuple(str(note) for note in content.get("notes", ())),
    )


def _table(rows: Sequence[Row], reference: Row, *, source: Any, content: Row) -> Frontier:
    """A Frontier from the rows of a command's JSON: intervals from the seeds where the rows bring none."""
    if not rows:
        raise DataError("has no rows")
    rows = sorted(rows, key=lambda row: float(row["beta"]))
    n = np.array([int(row.get("n") or row.get("n_seeds") or 0) for row in rows])
    columns = {name: _estimates(name, rows, n) for name in _QUANTITIES}
    untouched = {name: _estimates(name, [reference], np.zeros(1))[0] for name in ("reward", "gold")}
    has_gold = bool(np.isfinite(columns["gold"].value).any() or np.isfinite(untouched["gold"].value))
    gold = Gold.of(columns["gold"], gain=columns["gold_gain"], reference=untouched["gold"])
    return Frontier(
        source=source,
        beta=np.array([float(row["beta"]) for row in rows]),
        reward=columns["reward"],
        kl=columns["kl"],
        gold=gold if has_gold else None,
        reference_reward=untouched["reward"],
        n=n,
        status=np.array([str(row.get("status", "ok")) for row in rows]),
        gold_range=_number(content.get("gold_range")),
        provenance=content.get("provenance", {}),
    )


def _estimates(name: str, rows: Sequence[Row], n: Any) -> Estimates:
    def column(end: str) -> np.ndarray[Any, np.dtype[np.float64]]:
        values = [row.get(name + end) for row in rows]
        return np.array([math.nan if x is None else float(x) for x in values])

    value, se, lo, hi = (column(end) for end in ("", "_se", "_lo", "_hi"))
    bare = np.isnan(lo) & np.isnan(hi) & np.isfinite(se) & (n > 1)
    half = np.where(bare, stdtrit(np.where(n > 1, n - 1, 1), 0.975) * se, math.nan)
    return Estimates(value=value, se=se, lo=np.where(bare, value - half, lo), hi=np.where(bare, value + half, hi))


def _limits(config: Row, known: Frontier | None) -> dict[str, Any]:
    """Optimum and perfect judge of the world a run was made in; what was saved where the world is not one of ours."""
    from kleash.train.sweep import WORLDS

    make = WORLDS.get(str(config.get("world")))
    if known is None or make is None:
        return {"optimum": known}
    try:
        world = make(**config.get("settings", {}))
        again = exact_frontier(world, known.beta)
    except (KleashError, TypeError):  # a world of another version: what was saved is all that is known
        return {"optimum": known}
    for there, here in ((known.reward, again.reward), (known.kl, again.kl)):
        if not np.allclose(there.value, here.value, rtol=_SAME, atol=_SAME):
            return {"optimum": known}
    perfect = dataclasses.replace(world, reward=world.gold)
    return {"optimum": exact_frontier(world), "perfect": exact_frontier(perfect)}


def _verdict(content: Row) -> Verdict:
    known = {field.name for field in dataclasses.fields(Verdict)}
    plain: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in content.items() if key in known
    }
    verdict = Verdict(**plain)
    if verdict.kind not in ("useful-range", "no-overoptimisation-seen", "no-useful-range", "cannot-tell"):
        raise ValueError(verdict.kind)
    return verdict


def _answers(rows: Iterable[Row]) -> tuple[Row, ...]:
    return tuple(
        {
            "beta": _number(row.get("beta")),
            "prompt": _text(row.get("prompt")),
            "answer": _text(row.get("answer")),
            "reward": _number(row.get("reward")),
            "gold": _number(row.get("gold")),
        }
        for row in rows
    )


def _finding(row: Row) -> Row:
    return {
        **{name: _text(row.get(name)) for name in ("code", "input", "status", "message", "fix")},
        "causes": [str(cause) for cause in row.get("causes", ())],
    }


def _history(history: Any, table: Any) -> tuple[Row, ...]:
    columns = {name: getattr(history, name) for name in ("reward", "gold", "kl")}
    columns = {name: column for name, column in columns.items() if column is not None}
    return tuple(
        {
            "step": step,
            "beta": beta,
            "seed": s,
            **{name: float(column[t, b, s]) for name, column in columns.items()},
        }
        for t, step in enumerate(history.step.tolist())
        for b, beta in enumerate(table.beta.tolist())
        for s in range(history.reward.shape[2])
    )


def _facts(content: Row, *, source: str) -> tuple[tuple[str, str], ...]:
    """Where the numbers come from, in words."""
    made = {
        "exact": "the closed form in a world where everything is known",
        "forecast": "scored answers of the reference, reweighted",
        "sweep": "policies trained at each beta",
        "log": "training logs: means over the end of each run",
        "check": "checks of dumps and logs",
    }
    facts = [("made from", made.get(source, source))]
    version = content.get("version") or (content.get("versions") or {}).get("kleash")
    facts += [("kleash", str(version))] if version else []
    config: Row = content.get("config") or {}
    content = {**content, "world": content.get("world") or config.get("world")}
    for key, word in (("world", "world"), ("objective", "objective"), ("seed", "seed")):
        facts += [(word, str(content[key]))] if content.get(key) is not None else []
    for key, word in (("n_prompts", "prompts"), ("n_samples", "answers"), ("n_gold", "answers with true quality")):
        facts += [(word, f"{int(content[key]):,}")] if content.get(key) is not None else []
    for key in ("seeds", "steps", "samples"):
        facts += [(key, str(config[key]))] if config.get(key) is not None else []
    for item in content.get("inputs") or ():
        rows = "" if item.get("rows") is None else f", {int(item['rows']):,} rows"
        digest = "" if not item.get("sha256") else f", sha256 {str(item['sha256'])[:12]}"
        facts.append(("read", f"{given(str(item.get('path')))}{rows}{digest}"))
    return tuple(facts)


def _numbers(row: Row, names: Sequence[str]) -> dict[str, Any]:
    return {**{name: _number(row.get(name)) for name in names}, "status": str(row.get("status", "ok"))}


def _number(value: Any) -> float | None:
    """A finite float or None; text is refused by float()."""
    if value is None:
        return None
    x = float(value)
    return x if math.isfinite(x) else None


def _text(value: Any) -> str | None:
    return None if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
