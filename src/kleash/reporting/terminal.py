"""A report on a terminal: the table and the verdict, and a small chart in text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Group
from rich.text import Text

from kleash.reporting.sentences import how_sure, shown, verdict_lines
from kleash.reporting.sources import ReportSource
from kleash.terminal import cell_texts, page

if TYPE_CHECKING:
    from rich.console import RenderableType

    from kleash.frontier import Estimates, Frontier

__all__ = ["terminal_view", "text_chart"]

_ROWS = 14  # a chart and its table fit a screen each
_WIDTH = 44


def terminal_view(sources: Sequence[ReportSource]) -> RenderableType:
    """Every source below the other: table, verdict, chart, and how sure."""
    parts: list[RenderableType] = []
    for source in sources:
        title = shown(source.name)
        if parts:
            parts.append(Text())
        if source.frontier is None or source.verdict is None:
            parts += [Text(title, style="bold"), *(Text(shown(line)) for line in verdict_lines(source))]
            problems = [row for row in source.findings if row["status"] == "problem"]
            parts += [Text(shown(f"{row['code']}: {row['message']}")) for row in problems]
            continue
        size = source.frontier.beta.size
        caption = [f"{_ROWS} of {size} betas; the page has them all."] if size > _ROWS else []
        parts.append(
            page(
                source.frontier,
                source.verdict,
                title=title,
                caption=caption,
                intervals=True,
                status=True,
                max_rows=_ROWS,
            )
        )
        parts += [Text(), Text(text_chart(source.frontier), no_wrap=True), Text()]
        parts += [Text(shown(line), style="dim") for line in how_sure(source)]
    return Group(*parts)


def text_chart(frontier: Frontier) -> str:
    """A line per beta: J where the judge's score stands between its least and its most, Q where the true quality does.

    Examples
    --------
    >>> from kleash.frontier import exact_frontier
    >>> from kleash.worlds import kitchen
    >>> print(text_chart(exact_frontier(kitchen(), [1.0, 5.0, 15.0])))
              least                                   most
            1 Q..........................................J
            5 .......Q.............................J......
           15 .......J.............................Q......
    reference J..........................................Q
              J judge's score 9.12 to 31.69   Q true quality 0.000 to 1.798
    """
    texts = cell_texts(frontier)
    size = frontier.beta.size
    stops = list(range(size)) if size <= _ROWS else np.linspace(0, size - 1, _ROWS).round().astype(int).tolist()
    stops.append(size)
    margin = max(len(texts["beta"][stop]) for stop in stops)
    places: dict[int, dict[int, str]] = {stop: {} for stop in stops}
    legend = []
    for sign, name, word, column, reference in (
        ("J", "reward", "judge's score", frontier.reward, frontier.reference_reward),
        ("Q", "gold", "true quality", frontier.gold, frontier.gold and frontier.gold.reference),
    ):
        if column is None:
            legend.append("true quality was not measured")
            continue
        values = _with_reference(column, reference)
        known = [stop for stop in stops if math.isfinite(values[stop])]
        if not known:
            legend.append(f"{word}: no estimate")
            continue
        least, most = (pick(known, key=lambda stop: values[stop]) for pick in (min, max))
        for stop in known:
            width = values[most] - values[least]
            share = (values[stop] - values[least]) / width if width > 0 else 0.5
            place = round(share * (_WIDTH - 1))
            places[stop][place] = "*" if place in places[stop] else sign
        legend.append(f"{sign} {word} {texts[name][least]} to {texts[name][most]}")
    lines = [" " * (margin + 1) + "least" + " " * (_WIDTH - 9) + "most"]
    for stop in stops:
        dots = (
            "".join(places[stop].get(i, ".") for i in range(_WIDTH)) if places[stop] else "beyond what the data can say"
        )
        lines.append(f"{texts['beta'][stop]:>{margin}} {dots}")
    both = ["* both"] if any("*" in marks.values() for marks in places.values()) else []
    return "\n".join([*lines, " " * (margin + 1) + "   ".join(legend + both)])


def _with_reference(column: Estimates, reference: Estimates | None) -> list[float]:
    return [*column.value.tolist(), math.nan if reference is None else float(reference.value)]
