"""The report as one self-contained HTML page: everything inlined, nothing fetched, readable without JavaScript."""

from __future__ import annotations

import base64
import csv
import dataclasses
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kleash._checks import cell
from kleash._version import version
from kleash.reporting import charts, dial, figures_runs
from kleash.reporting.page_assets import asset, embed_json, palette, policy, tied_to_palette
from kleash.reporting.palette import COLOURS, DARK, DIAL, DIAL_DARK, SERIES, SERIES_DARK, draw_svg, inline_svg
from kleash.reporting.sentences import advice, how_sure, shown, verdict_lines
from kleash.reporting.sources import ReportSource, given, sources_of
from kleash.terminal import cell_texts

if TYPE_CHECKING:
    from markupsafe import Markup


__all__ = ["csv_text", "report"]

_SHOWN_ANSWERS = 12  # of one source at one beta: what a reader looks at
_TEXT_BUDGET = 1_200_000  # characters of all answers together: the page stays below three megabytes
_MARKS = {"best": "★", "safe": "●"}


def report(sources: Any, *, title: str | None = None, command: str | None = None) -> str:
    """One HTML page that shows what was found, several sources laid over each other.

    Parameters
    ----------
    sources
        A result in memory (Frontier, Forecast, SweepResult, CheckReport), a path as ``kleash report`` takes it (run
        folder, frontier file, a command's JSON), or several of them.
    title
        Title of the page; default: the names of the sources.
    command
        The command that makes the page again, printed at its end.

    Returns
    -------
    str
        HTML in UTF-8. A content security policy in it allows its own script and style sheet, by their hashes, and
        nothing else: text of answers and names cannot run and nothing can be fetched.

    Raises
    ------
    OptionError, MissingFileError, DataError
        No source, or a path of something that cannot be shown.

    Examples
    --------
    >>> import kleash
    >>> page = report(kleash.exact_frontier(kleash.kitchen(), [1.0, 15.0]))
    >>> page.startswith("<!doctype html>"), "No useful range" in page
    (True, True)
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    from kleash._checks import message
    from kleash.errors import OptionError

    listed = list(sources_of(sources))
    if not listed:
        raise OptionError(message("sources", expected="at least one", got="none"))
    light, dark = _palettes()
    style = palette(light, dark) + asset("base.css") + asset("report.css") + tied_to_palette(".plot", light)
    script = asset("report.js")
    tables = [source for source in listed if source.frontier is not None]
    dials = dial.dials(tables)
    budget = _Budget(left=_TEXT_BUDGET)
    environment = Environment(
        loader=PackageLoader("kleash.reporting"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"shown": shown, "commands": _commands}
    return environment.get_template("report.html.j2").render(
        title=shown(title or "kleash: " + ", ".join(source.name for source in listed)),
        several=len(listed) > 1,
        sources=[_described(source, dials.get(id(source)), budget) for source in listed],
        dial=next(iter(dials.values()), None),
        leash=dial.LEASH,
        many_dials=len(dials) > 1,
        figures=_figures(listed),
        findings=[{**row, "input": given(str(row["input"]))} for row in figures_runs.findings_data(listed)],
        csv=base64.b64encode(csv_text(tables).encode("utf-8", "replace")).decode("ascii") if tables else None,
        command=shown(command) if command else None,
        version=version(),
        style=Markup(style),
        script=Markup(script),
        policy=policy(style=style, script=script),
        data=Markup(embed_json({"dials": [d["payload"] for d in dials.values()]})),
    )


def csv_text(sources: Sequence[ReportSource]) -> str:
    """The tables as CSV in full precision: a row per source and beta, the reference last with an empty beta."""
    columns = ["source", "beta"]
    columns += [name + end for name in ("reward", "gold", "kl") for end in ("", "_se", "_lo", "_hi")]
    columns += ["gold_gain", "gold_gain_lo", "gold_gain_hi", "status"]
    file = io.StringIO()
    writer = csv.DictWriter(file, fieldnames=columns, lineterminator="\n", extrasaction="ignore", restval="")
    writer.writeheader()
    for source in sources:
        assert source.frontier is not None
        name = shown(source.name)
        for row in source.frontier.rows():
            writer.writerow({"source": cell(name), **row})
        writer.writerow({"source": cell(name), **source.frontier.reference(), "kl": 0.0, "status": "reference"})
    return file.getvalue()


# ---------------------------------------------------------------------------------------------------------- the rest


@dataclasses.dataclass
class _Budget:
    """Characters of answers that the page can still take."""

    left: int


def _described(source: ReportSource, dial: dict[str, Any] | None, budget: _Budget) -> dict[str, Any]:
    """Everything the template says of one source."""
    verdict, frontier = source.verdict, source.frontier
    lines = verdict_lines(source)
    head, _, rest = lines[0].partition(". ")
    good = verdict is not None and verdict.gain_shown
    wrong = any(row["status"] == "problem" for row in source.findings)  # and nothing is called healthy where none is
    bad = verdict.kind == "no-useful-range" if verdict is not None else wrong
    marks: dict[int, str] = {}
    if verdict is not None and frontier is not None:
        for name, beta in (("best", verdict.best_beta), ("safe", verdict.safe_beta)):
            for i in np.flatnonzero(frontier.beta == beta).tolist() if beta is not None else ():
                marks[i] = marks.get(i, "") + _MARKS[name]
    groups, left_out = _answer_groups(source, budget)
    return {
        "name": shown(source.name),
        "head": head.rstrip("."),
        "rest": rest,
        "more": lines[1:],
        "mood": "good" if good else "bad" if bad else "open",
        "advice": [shown(line) for line in advice(source)],
        "snippet": shown((source.trainer or {}).get("snippet") or ""),
        "sure": [shown(line) for line in how_sure(source)],
        "facts": [(key, shown(value)) for key, value in source.facts]
        + ([("file", shown(given(source.path)))] if source.path else [])
        + ([("sha256", source.sha256)] if source.sha256 else []),
        "dial": dial,
        "marks": marks,
        "gold": frontier is not None and frontier.gold is not None,
        "answers": groups,
        "left_out": left_out,
        "kind": source.kind,
    }


def _commands(line: str) -> Markup:
    """A line of ours in which a command is set as one, to be copied; its words are not broken."""
    from markupsafe import Markup

    before, found, rest = line.partition("kleash convert ")
    if not found:
        return Markup("{}").format(line)
    words = (found + rest).split()
    code = Markup(" ").join(Markup("<span>{}</span>").format(word) for word in words[:-1])
    return Markup("{}<code>{}</code> {}").format(before, code, words[-1])


def _answer_groups(source: ReportSource, budget: _Budget) -> tuple[list[dict[str, Any]], int]:
    """Answers by stop of the dial, and how many are not shown."""
    frontier = source.frontier
    if frontier is None:
        return [], len(source.answers)
    groups: dict[int, list[dict[str, Any]]] = {}
    left_out = 0
    for answer in source.answers:
        beta = answer["beta"]
        stop = frontier.beta.size if beta is None else int(np.abs(frontier.beta - beta).argmin())
        rows = groups.setdefault(stop, [])
        size = len(answer["prompt"] or "") + len(answer["answer"] or "")
        if len(rows) >= _SHOWN_ANSWERS or size > budget.left:
            left_out += 1
            continue
        budget.left -= size
        rows.append(
            {
                "prompt": None if answer["prompt"] is None else shown(answer["prompt"]),
                "answer": None if answer["answer"] is None else shown(answer["answer"]),
                "reward": None if answer["reward"] is None else f"{answer['reward']:.4g}",
                "gold": None if answer["gold"] is None else _plain(answer["gold"]),
            }
        )
    texts = cell_texts(frontier)["beta"]
    return [
        {"stop": stop, "beta": texts[stop], "rows": groups[stop]} for stop in sorted(groups) if groups[stop]
    ], left_out


def _plain(value: float) -> str:
    """Four digits; what is as good as nothing beside the scale of a score reads 0."""
    return "0" if abs(value) < 1e-12 else f"{value:.4g}"


def _figures(sources: Sequence[ReportSource]) -> list[dict[str, Any]]:
    """The charts, each drawn twice: for a wide page and for a narrow one."""
    shown_figures = []
    for i, chart in enumerate(charts.found(sources)):
        if chart.figure.title is None:
            continue
        of = "" if chart.source is None or len(sources) == 1 else f": {shown(chart.source.name)}"
        title, caption = chart.figure.title + of, chart.figure.caption(chart.data)
        label = f"{title}. {caption} The table below has the numbers."
        shown_figures.append(
            {
                "title": title,
                "caption": caption,
                "wide": _svg(chart, charts.WIDE, label=label, prefix=f"f{i}w"),
                "narrow": _svg(chart, charts.NARROW, label=label, prefix=f"f{i}n"),
                "widths": (charts.WIDE[0], charts.NARROW[0]),
                "whole": chart.figure.whole,
            }
        )
    return shown_figures


def _svg(chart: charts.Found, size: tuple[int, int], *, label: str, prefix: str) -> Markup:
    from altair.utils.schemapi import debug_mode
    from markupsafe import Markup

    with debug_mode(False):  # altair checks every part as it is made: seconds for a page, and for drawings of ours
        drawn = draw_svg(chart.drawn(size), validate=False)
    return Markup(inline_svg(drawn, label=label, prefix=prefix))


def _palettes() -> tuple[dict[str, str], dict[str, str]]:
    """The palette and the colours of series, light and dark."""
    light, dark = dict(COLOURS), dict(DARK)
    for name, on_white, on_black in (("series", SERIES, SERIES_DARK), ("turn", DIAL, DIAL_DARK)):
        light |= {f"{name}-{i}": colour for i, colour in enumerate(on_white)}
        dark |= {f"{name}-{i}": colour for i, colour in enumerate(on_black)}
    return light, dark
