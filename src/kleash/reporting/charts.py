"""Every chart of a report, a row each: its name, its words, its data and its drawing."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from kleash.reporting import drawing, figures, figures_runs
from kleash.reporting.figures import FigureData, FigureRow
from kleash.reporting.readers import ReportSource

if TYPE_CHECKING:
    from altair import TopLevelMixin

__all__ = ["FIGURES", "NARROW", "WIDE", "Figure", "Found", "found"]

WIDE, NARROW = (480, 190), (262, 150)
"""Pixels of a panel, width and height: for a desk and for a telephone."""
_COARSE = 60  # points below which a line through them is no curve

Data = FigureData | tuple[FigureRow, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Figure:
    """A chart.

    ``name``: Of its files. ``data``: What it shows of the sources; empty where there is nothing to show. ``draw``: The
    drawing of those data in a width and a height. ``title``, ``caption``: Words on the page, the caption from the data;
    None: the page shows it in another form. ``each``: One of each source, or one of all that have a table. ``whole``:
    Whether it takes the whole width of the page.
    """

    name: str
    data: Callable[[Sequence[ReportSource]], Any]
    draw: Callable[[Any, int, int], TopLevelMixin]
    title: str | None = None
    caption: Callable[[Any], str] = lambda data: ""
    each: bool = False
    whole: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Found:
    """A chart that there are data for, of one source or (None) of all."""

    figure: Figure
    data: Data
    source: ReportSource | None = None

    @property
    def rows(self) -> Sequence[FigureRow]:
        """The data as plain rows."""
        return [*self.data.rows, *self.data.curves] if isinstance(self.data, FigureData) else self.data

    def drawn(self, size: tuple[int, int] = WIDE) -> TopLevelMixin:
        """The chart in a size."""
        return self.figure.draw(self.data, *size)


def found(sources: Sequence[ReportSource]) -> Iterator[Found]:
    """All charts that there are data for: those of all sources together, then those of each."""
    for figure in FIGURES:
        data = None if figure.each else figure.data(sources)
        if data:
            yield Found(figure=figure, data=data)
    for source in sources:
        for figure in FIGURES:
            data = figure.data([source]) if figure.each else None
            if data:
                yield Found(figure=figure, data=data, source=source)


def _tables(data: Callable[[Sequence[ReportSource]], FigureData]) -> Callable[[Sequence[ReportSource]], Any]:
    return lambda sources: data(shown) if (shown := [s for s in sources if s.frontier is not None]) else None


def _dial_words(data: FigureData) -> str:
    where = "Shaded: where quality is shown to gain, from edge to edge. Hatched: beyond what the data can say."
    if len(data.names) > 1:
        where = "Bars under the true quality: where it is shown to gain, from edge to edge, for each source."
    return f"Loose on the left, tight on the right, the untouched reference at the end. Bands and bars: 95 %. {where}"


def _travel_words(data: FigureData) -> str:
    known = {row["what"] for row in data.curves}
    words = ["The same rows against how far the policy went from the reference."]
    if figures.HIGHEST in known:
        words.append("No policy at that KL has a higher judge's score than the dashed line.")
    if sum(row["what"] == figures.OPTIMUM for row in data.curves) in range(1, _COARSE):
        words.append("The optimum's true quality is exact at these betas and drawn straight between them.")
    if figures.PERFECT in known:
        words.append("A perfect judge: the most true quality that any policy has at that KL.")
    if any(what.startswith("best of n") for what in known):
        words.append("Dotted: the best of n answers by the judge, without training.")
    return " ".join(words)


def _training(rows: Sequence[FigureRow], width: int, height: int) -> TopLevelMixin:
    if (width, height) == WIDE:
        return figures_runs.training_chart(rows, width=270, height=height - 20)
    return figures_runs.training_chart(rows, width=width, height=height - 40, across=False)


FIGURES = (
    Figure(
        name="dial",
        title="Along the dial",
        caption=_dial_words,
        data=_tables(figures.dial_data),
        draw=lambda data, width, height: drawing.dial_chart(data, width=width, height=height),
    ),
    Figure(
        name="travel",
        title="What the drift buys",
        caption=_travel_words,
        data=_tables(figures.travel_data),
        draw=lambda data, width, height: drawing.travel_chart(data, width=width, height=height),
    ),
    Figure(
        name="training",
        title="Training",
        caption=lambda rows: "A line per beta, mean over seeds; loose is orange, tight is blue.",
        data=lambda sources: figures_runs.training_data(sources[0]),
        draw=_training,
        each=True,
        whole=True,
    ),
    Figure(
        name="prompts",
        title="Prompts",
        caption=lambda rows: "A dot per prompt, a bar at the median: how far prompts lie apart.",
        data=lambda sources: figures_runs.spread_data(sources[0]),
        draw=lambda rows, width, height: figures_runs.spread_chart(rows, width=width, height=height - 40),
        each=True,
    ),
    Figure(
        name="checks",
        data=figures_runs.findings_data,
        draw=lambda rows, width, height: figures_runs.findings_chart(rows, width=width),
    ),
)
"""What a report draws. A chart is a row here; the page shows it, and ``--save-plots`` writes it."""
