"""Every figure of a report as files: SVG, PNG and the data behind it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kleash import _files
from kleash.errors import KleashError
from kleash.reporting import drawing, figures, figures_runs
from kleash.reporting.palette import draw_png, draw_svg
from kleash.reporting.sources import ReportSource

if TYPE_CHECKING:
    from altair import TopLevelMixin

__all__ = ["save_plots"]


def save_plots(sources: Sequence[ReportSource], folder: str | Path) -> list[Path]:
    """Write what there is to draw into a folder: ``dial``, ``travel``, ``training``, ``prompts``, ``checks``.

    The folder is made. Each as ``.svg``, ``.png`` and the rows behind it as ``.json``. Training curves of several
    sources are numbered.

    Returns
    -------
    list of Path
        What was written.
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise KleashError(f"{folder}: cannot be made: {error.strerror or error}") from error
    written: list[Path] = []

    def write(name: str, rows: Sequence[figures.FigureRow], draw: Callable[[], TopLevelMixin]) -> None:
        chart = draw()
        for end, content in ((".svg", draw_svg(chart)), (".png", draw_png(chart)), (".json", _files.dump_json(rows))):
            path = folder / (name + end)
            _files.write_atomic(path, content)
            written.append(path)

    if any(source.frontier is not None for source in sources):
        dial, travel = figures.dial_data(sources), figures.travel_data(sources)
        write("dial", dial.rows, lambda: drawing.dial_chart(dial))
        write("travel", [*travel.rows, *travel.curves], lambda: drawing.travel_chart(travel))
    for name, data, draw in (
        ("training", figures_runs.training_data, figures_runs.training_chart),
        ("prompts", figures_runs.spread_data, figures_runs.spread_chart),
    ):
        found = [rows for source in sources if (rows := data(source))]
        for i, rows in enumerate(found, start=1):
            write(name if len(found) == 1 else f"{name}-{i}", rows, lambda draw=draw, rows=rows: draw(rows))  # type: ignore[misc]
    findings = figures_runs.findings_data(sources)
    if findings:
        write("checks", findings, lambda: figures_runs.findings_chart(findings))
    return written
