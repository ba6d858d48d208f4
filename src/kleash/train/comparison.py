"""Trained, best possible and forecast, side by side: what training did against what could be known before."""

from __future__ import annotations

import numpy as np
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kleash.frontier import Frontier

__all__ = ["comparison_table", "with_comparison"]


def with_comparison(
    page: RenderableType, trained: Frontier, *, optimum: Frontier | None, forecast: Frontier | None
) -> RenderableType:
    """A page, and below it the table of :func:`comparison_table` where there is something to put beside."""
    if optimum is None and forecast is None:
        return page
    title = Text("True quality: trained, and what was known before", style="bold")
    return Group(page, Text(), title, Text(), comparison_table(trained, optimum=optimum, forecast=forecast))


def comparison_table(trained: Frontier, *, optimum: Frontier | None, forecast: Frontier | None) -> Table:
    """A row per trained beta: true quality after training, of the best possible policy, and its forecast with 95 %.

    ``optimum`` is exact at the same betas, ``forecast`` one at some of them; a beta it refuses shows as ``beyond``, a
    number that is not there as a dash.
    """
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for name in (
        "Beta",
        "Trained",
        *(["Best possible"] if optimum else []),
        *(["Forecast", "Sure"] if forecast else []),
    ):
        table.add_column(name, justify="left" if name == "Sure" else "right", no_wrap=True)
    for row, beta in enumerate(trained.beta.tolist()):
        cells = [f"{beta:.3g}", _gold(trained, row)]
        if optimum is not None:
            cells.append(_gold(optimum, row))
        if forecast is not None:
            there = np.flatnonzero(forecast.beta == beta)
            cells += _forecast(forecast, int(there[0])) if there.size else ["-", ""]
        table.add_row(*cells)
    return table


def _gold(frontier: Frontier, row: int) -> str:
    return "-" if frontier.gold is None else _number(float(frontier.gold.value[row]))


def _forecast(frontier: Frontier, row: int) -> list[str]:
    sure = str(frontier.status[row])
    if frontier.gold is None or sure == "beyond":
        return ["-", sure]
    value, lo, hi = (float(part[row]) for part in (frontier.gold.value, frontier.gold.lo, frontier.gold.hi))
    return [f"{_number(value)} [{_number(lo)}, {_number(hi)}]", sure]


def _number(value: float) -> str:
    return "-" if np.isnan(value) else f"{value:z.3f}"
