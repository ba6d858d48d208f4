"""Every figure of a report as files: SVG, PNG and the data behind it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from kleash import _files
from kleash.reporting.charts import Found, found
from kleash.reporting.palette import draw_png, draw_svg
from kleash.reporting.sources import ReportSource

__all__ = ["save_plots"]


def save_plots(sources: Sequence[ReportSource], folder: str | Path) -> list[Path]:
    """Write what there is to draw into a folder: ``dial``, ``travel``, ``training``, ``prompts``, ``checks``.

    The folder is made. Each as ``.svg``, ``.png`` and the rows behind it as ``.json``. Those of several
    sources are numbered.

    Returns
    -------
    list of Path
        What was written.
    """
    folder = Path(folder)
    _files.make_folder(folder)
    drawn = list(found(sources))
    of_name = Counter(chart.figure.name for chart in drawn)
    taken: Counter[str] = Counter()
    written: list[Path] = []
    for chart in drawn:
        name = chart.figure.name
        taken[name] += 1
        written += _write(folder / (name if of_name[name] == 1 else f"{name}-{taken[name]}"), chart)
    return written


def _write(path: Path, chart: Found) -> list[Path]:
    drawn = chart.drawn()
    contents: dict[str, str | bytes] = {
        ".svg": draw_svg(drawn),
        ".png": draw_png(drawn),
        ".json": _files.dump_json(chart.rows),
    }
    paths = {end: path.with_name(path.name + end) for end in contents}
    for end, content in contents.items():
        _files.write_atomic(paths[end], content)
    return list(paths.values())
