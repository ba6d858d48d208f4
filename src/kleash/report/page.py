"""The report as one self-contained HTML page: everything inlined, nothing fetched, readable without JavaScript."""

from __future__ import annotations

import base64
import csv
import dataclasses
import hashlib
import io
import math
from collections.abc import Callable, Sequence
from functools import partial
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np

from kleash import _files
from kleash._table import cell_texts
from kleash._version import version
from kleash.report import drawing, figures, figures_runs
from kleash.report.look import COLOURS, DARK, DIAL, DIAL_DARK, SERIES, SERIES_DARK, draw_svg, inline_svg
from kleash.report.sources import ReportSource, source_of
from kleash.report.words import advice, how_sure, shown, verdict_lines

if TYPE_CHECKING:
    from altair import TopLevelMixin
    from markupsafe import Markup

    from kleash.frontier import Frontier

__all__ = ["csv_text", "embed_json", "report_page"]

_WIDE, _NARROW = 480, 262  # pixels of a panel: for a desk and for a telephone
_SWING = 105.0  # degrees a needle turns to either side
_RADIUS = 92.0
_LEASH = 430.0  # pixels of the longest leash
_SHOWN_ANSWERS = 12  # of one source at one beta: what a reader looks at
_TEXT_BUDGET = 1_200_000  # characters of all answers together: the page stays below three megabytes
_MARKS = {"best": "★", "safe": "●"}


def report_page(sources: Sequence[Any], *, title: str | None = None, command: str | None = None) -> str:
    """One HTML page that shows sources, several laid over each other.

    Parameters
    ----------
    sources
        What :func:`kleash.report.sources.read_sources` read, or results in memory (Frontier, Forecast, SweepResult,
        CheckReport).
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
    OptionError
        No source.

    Examples
    --------
    >>> import kleash
    >>> page = report_page([kleash.exact_frontier(kleash.kitchen(), [1.0, 15.0])])
    >>> page.startswith("<!doctype html>"), "No useful range" in page
    (True, True)
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    from kleash._checks import message
    from kleash.errors import OptionError

    listed = [source_of(source) for source in sources]
    if not listed:
        raise OptionError(message("sources", expected="at least one", got="none"))
    style = _asset("base.css") + _asset("report.css") + _colour_rules()
    script = _asset("report.js")
    tables = [source for source in listed if source.frontier is not None]
    dials = _dials(tables)
    budget = _Budget(left=_TEXT_BUDGET)
    environment = Environment(
        loader=PackageLoader("kleash.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["shown"] = shown
    return environment.get_template("report.html.j2").render(
        title=shown(title or "kleash: " + ", ".join(source.name for source in listed)),
        several=len(listed) > 1,
        sources=[_described(source, dials.get(id(source)), budget) for source in listed],
        dial=next(iter(dials.values()), None),
        many_dials=len(dials) > 1,
        figures=_figures(listed, tables),
        findings=figures_runs.findings_data(listed),
        csv=base64.b64encode(csv_text(tables).encode("utf-8", "replace")).decode("ascii") if tables else None,
        command=shown(command) if command else None,
        version=version(),
        style=Markup(style),
        script=Markup(script),
        style_hash=_hash(style),
        script_hash=_hash(script),
        data=Markup(embed_json({"dials": [d["payload"] for d in dials.values()]})),
    )


def embed_json(value: Any) -> str:
    r"""JSON that may stand inside a ``<script>``: no character in it can end the element or be read as markup.

    Examples
    --------
    >>> embed_json({"a": "</script>&"})
    '{"a": "\\u003c/script\\u003e\\u0026"}'
    """
    text = _files.dump_json(value)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def csv_text(sources: Sequence[ReportSource]) -> str:
    """The tables as CSV in full precision: a row per source and beta, the reference last with an empty beta."""
    columns = ["source", "beta"]
    columns += [name + end for name in ("reward", "gold", "kl") for end in ("", "_se", "_lo", "_hi")] + ["status"]
    file = io.StringIO()
    writer = csv.DictWriter(file, fieldnames=columns, lineterminator="\n", extrasaction="ignore", restval="")
    writer.writeheader()
    for source in sources:
        assert source.frontier is not None
        for row in source.frontier.rows():
            writer.writerow({"source": shown(source.name), **row})
        writer.writerow({"source": shown(source.name), **source.frontier.reference(), "kl": 0.0, "status": "reference"})
    return file.getvalue()


# --------------------------------------------------------------------------------------------------------- the dial


def _dials(tables: Sequence[ReportSource]) -> dict[int, dict[str, Any]]:
    """For each table what the dial shows at each beta, needles and leash in pixels and degrees; by id of the source."""
    if not tables:
        return {}
    scales = {name: _scale(tables, name) for name in ("reward", "gold")}
    longest = max(
        (float(np.nanmax(s.frontier.kl.value, initial=0.0)) for s in tables if s.frontier is not None), default=0.0
    )
    axes = figures.dial_axis(tables), figures.travel_axis(tables)
    return {id(source): _dial(source, i, scales=scales, longest=longest, axes=axes) for i, source in enumerate(tables)}


def _dial(
    source: ReportSource, index: int, *, scales: dict[str, Any], longest: float, axes: tuple[figures.Axis, figures.Axis]
) -> dict[str, Any]:
    frontier = source.frontier
    assert frontier is not None
    texts = cell_texts(frontier)
    values = _values(frontier)
    rows = []
    for i in range(frontier.beta.size + 1):
        last = i == frontier.beta.size
        row: dict[str, Any] = {key: texts[key][i] for key in texts}
        row["status"] = (
            "exact" if last and frontier.source == "exact" else "reference" if last else str(frontier.status[i])
        )
        kl = values["kl"][i]
        row["value"] = {name: values[name][i] for name in ("beta", "reward", "gold", "kl")}
        for name, scale in scales.items():
            row[name + "_turn"] = None if scale is None else _turn(values[name][i], scale)
            row[name + "_arc"] = "" if scale is None else _arc(values[name + "_lo"][i], values[name + "_hi"][i], scale)
        row["leash"] = None if kl is None else round(_LEASH * max(kl, 0.0) / longest, 2) if longest > 0 else 0.0
        beta = math.inf if last else float(frontier.beta[i])
        row["at"] = round(axes[0].fraction(axes[0].beta(beta)), 5)
        row["far"] = None if kl is None or kl < 0 else round(axes[1].fraction(math.sqrt(kl)), 5)
        row["said"] = _said(row)
        rows.append(row)
    start = _start(source)
    return {
        "index": index,
        "name": shown(source.name),
        "rows": rows,
        "start": start,
        "first": rows[start],
        "scales": {name: _scale_words(scale, frontier, name) for name, scale in scales.items()},
        "ticks": _leash_ticks(longest),
        "longest": longest,
        "payload": {
            "rows": rows,
            "start": start,
            "scales": {n: _scale_words(s, frontier, n) for n, s in scales.items()},
        },
    }


def _values(frontier: Frontier) -> dict[str, list[float | None]]:
    """Columns with the reference as the last entry; None where there is nothing."""
    reference = frontier.reference()
    rows = frontier.rows()
    columns: dict[str, list[float | None]] = {"beta": [row["beta"] for row in rows] + [None]}
    for name in ("reward", "gold"):
        for end in ("", "_lo", "_hi"):
            columns[name + end] = [row[name + end] for row in rows] + [reference[name + end]]
    columns["kl"] = [row["kl"] for row in rows] + [0.0]
    return columns


def _said(row: dict[str, Any]) -> str:
    """What a screen reader says at a stop of the dial."""
    place = "the reference, untouched" if row["value"]["beta"] is None else f"beta {row['beta']}"
    if row["status"] == "beyond":
        return f"{place}: beyond what the data can say"
    parts = [f"judge's score {row['reward']}" if row["reward"] else "judge's score unknown"]
    parts += [f"true quality {row['gold']}" if row["gold"] else "true quality not measured"]
    parts += [f"KL {row['kl']} nats"] if row["kl"] else []
    return f"{place}: {', '.join(parts)}"


def _start(source: ReportSource) -> int:
    """Where the dial stands first: at the safe beta, or the best, or in the middle of what can be read."""
    frontier, verdict = source.frontier, source.verdict
    assert frontier is not None
    for beta in (verdict.safe_beta, verdict.best_beta) if verdict is not None and verdict.gain_shown else ():
        if beta is not None:
            return int(np.abs(frontier.beta - beta).argmin())
    usable = np.flatnonzero(frontier.usable)
    return int(usable[usable.size // 2]) if usable.size else frontier.beta.size


def _scale(tables: Sequence[ReportSource], name: str) -> tuple[float, float] | None:
    """Ends of a needle's scale: everything that any of the tables shows."""
    ends: list[float] = []
    for source in tables:
        assert source.frontier is not None
        values = _values(source.frontier)
        ends += [x for end in ("", "_lo", "_hi") for x in values[name + end] if x is not None]
    if not ends:
        return None
    low, high = min(ends), max(ends)
    pad = 0.0 if high > low else abs(low) or 1.0
    return low - pad, high + pad


def _turn(value: float | None, scale: tuple[float, float]) -> float | None:
    """Degrees of a needle from upright."""
    if value is None:
        return None
    return round(_SWING * (2.0 * (value - scale[0]) / (scale[1] - scale[0]) - 1.0), 3)


def _arc(lo: float | None, hi: float | None, scale: tuple[float, float]) -> str:
    """The interval as an arc of the gauge, an SVG path."""
    if lo is None or hi is None or hi <= lo:
        return ""
    first, last = _turn(lo, scale), _turn(hi, scale)
    assert first is not None and last is not None  # noqa: PT018
    return _arc_path(first, last)


def _arc_path(first: float, last: float, radius: float = _RADIUS) -> str:
    def point(turn: float) -> str:
        angle = math.radians(turn)
        return f"{120 + radius * math.sin(angle):.2f} {112 - radius * math.cos(angle):.2f}"

    return f"M{point(first)}A{radius:g} {radius:g} 0 {int(last - first > 180)} 1 {point(last)}"


def _scale_words(scale: tuple[float, float] | None, frontier: Frontier, name: str) -> dict[str, Any] | None:
    if scale is None:
        return None
    reference = frontier.reference()[name]
    return {
        "low": _end(scale[0], scale),
        "high": _end(scale[1], scale),
        "face": _arc_path(-_SWING, _SWING),
        "reference": _turn(reference, scale),
    }


def _end(value: float, scale: tuple[float, float]) -> str:
    """An end of a scale; 0 where it is nothing beside the scale's width."""
    return "0" if abs(value) < 5e-4 * (scale[1] - scale[0]) else f"{value:.3g}"


def _leash_ticks(longest: float) -> list[dict[str, Any]]:
    if longest <= 0:
        return []
    step = 10.0 ** math.floor(math.log10(longest))
    step = next(step * m for m in (0.2, 0.5, 1.0, 2.0) if longest / (step * m) <= 6)
    count = int(longest / step + 1e-9)
    return [{"x": round(_LEASH * i * step / longest, 2), "text": f"{i * step:.3g}"} for i in range(count + 1)]


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
    good = verdict.gain_shown if verdict is not None else not any(row["status"] == "problem" for row in source.findings)
    bad = verdict.kind == "no-useful-range" if verdict is not None else not good
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
        "sure": [shown(line) for line in how_sure(source)],
        "facts": [(key, shown(value)) for key, value in source.facts]
        + ([("file", shown(source.path))] if source.path else [])
        + ([("sha256", source.sha256)] if source.sha256 else []),
        "dial": dial,
        "marks": marks,
        "gold": frontier is not None and frontier.gold is not None,
        "answers": groups,
        "left_out": left_out,
        "kind": source.kind,
    }


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


def _figures(listed: Sequence[ReportSource], tables: Sequence[ReportSource]) -> list[dict[str, Any]]:
    shown_figures = []
    if tables:
        where = "Shaded: where some beta is shown to help. Hatched: beyond what the data can say."
        if len(tables) > 1:
            where = "Bars under the true quality: where some beta is shown to help, for each source."
        dial, travel = figures.dial_data(tables), figures.travel_data(tables)
        caption = (
            f"Loose on the left, tight on the right, the untouched reference at the end. Bands and bars: 95 %. {where}"
        )
        shown_figures.append(
            _figure("Along the dial", caption, "d", lambda w, h: drawing.dial_chart(dial, width=w, height=h))
        )
        shown_figures.append(
            _figure(
                "What the drift buys",
                "The same rows against how far the policy went from the reference. " + _curve_words(travel),
                "t",
                lambda w, h: drawing.travel_chart(travel, width=w, height=h),
            )
        )
    for i, source in enumerate(listed):
        of = "" if len(listed) == 1 else f": {shown(source.name)}"
        training = figures_runs.training_data(source)
        if training:
            shown_figures.append(
                _figure(
                    "Training" + of,
                    "A line per beta, mean over seeds; loose is orange, tight is blue.",
                    f"r{i}",
                    partial(_training, training),
                    whole=True,
                )
            )
        spread = figures_runs.spread_data(source)
        if spread:
            shown_figures.append(
                _figure(
                    "Prompts" + of,
                    "A dot per prompt, a bar at the median: how far prompts lie apart.",
                    f"p{i}",
                    partial(_spread, spread),
                )
            )
    return shown_figures


def _curve_words(data: figures.FigureData) -> str:
    known = {row["what"] for row in data.curves}
    words = []
    if "no policy scores higher" in known:
        words.append("No policy at that KL has a higher judge's score than the dashed line.")
    if "a perfect judge" in known:
        words.append("A perfect judge: the most true quality that any policy has at that KL.")
    if any(what.startswith("best of n") for what in known):
        words.append("Dotted: the best of n answers by the judge, without training.")
    return " ".join(words)


def _training(rows: Sequence[figures.FigureRow], width: int, height: int) -> TopLevelMixin:
    if width == _WIDE:
        return figures_runs.training_chart(rows, width=270, height=height - 20)
    return figures_runs.training_chart(rows, width=width, height=height - 40, across=False)


def _spread(rows: Sequence[figures.FigureRow], width: int, height: int) -> TopLevelMixin:
    return figures_runs.spread_chart(rows, width=width, height=height - 40)


def _figure(
    title: str, caption: str, prefix: str, draw: Callable[[int, int], TopLevelMixin], *, whole: bool = False
) -> dict[str, Any]:
    """Drawn twice, for a wide page and a narrow one."""
    from altair.utils.schemapi import debug_mode
    from markupsafe import Markup

    def svg(width: int, height: int, end: str) -> Markup:
        with debug_mode(False):  # altair checks every part as it is made: seconds for a page, and for drawings of ours
            drawn = draw_svg(draw(width, height), validate=False)
        text = inline_svg(
            drawn,
            label=f"{title}. {caption} The table below has the numbers.",
            prefix=prefix + end,
        )
        return Markup(text)

    return {
        "title": title,
        "caption": caption,
        "wide": svg(_WIDE, 190, "w"),
        "narrow": svg(_NARROW, 150, "n"),
        "widths": (_WIDE, _NARROW),
        "whole": whole,
    }


def _asset(name: str) -> str:
    return files("kleash.report").joinpath("templates", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


def _colour_rules() -> str:
    """The palette as variables for both schemes, and drawings tied to it by the colours they were drawn in."""
    light, dark = dict(COLOURS), dict(DARK)
    for name, on_white, on_black in (("series", SERIES, SERIES_DARK), ("turn", DIAL, DIAL_DARK)):
        light |= {f"{name}-{i}": colour for i, colour in enumerate(on_white)}
        dark |= {f"{name}-{i}": colour for i, colour in enumerate(on_black)}
    rules = [
        f":root{{{''.join(f'--{k}:{v};' for k, v in light.items())}}}",
        f"@media screen and (prefers-color-scheme:dark){{:root{{{''.join(f'--{k}:{v};' for k, v in dark.items())}}}}}",
    ]
    for name, colour in reversed(light.items()):  # the names of the palette win over the series that share a colour
        rules += [
            f'.plot [fill="{colour}"]{{fill:var(--{name})}}',
            f'.plot [stroke="{colour}"]{{stroke:var(--{name})}}',
        ]
    return "\n".join(rules)
