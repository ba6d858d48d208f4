"""Figures of what lies behind a table: training, prompts, findings. For each the data first, the drawing second."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from kleash.reporting.figures import FigureRow
from kleash.reporting.palette import COLOURS, DIAL, SHAPES, chart_of, number_format
from kleash.reporting.sources import ReportSource

if TYPE_CHECKING:
    import altair as alt

__all__ = [
    "findings_chart",
    "findings_data",
    "spread_chart",
    "spread_data",
    "training_chart",
    "training_data",
]

_STEPS = 80  # points of a curve: more cannot be told apart at the width of a page
_CURVES = 10  # betas drawn: more lines than this cannot be followed
_TITLES = {"reward": "Judge's score", "gold": "True quality", "kl": "KL (nats)"}
_STATUSES = ("problem", "cannot-tell", "ok", "not-run")


def training_data(source: ReportSource) -> tuple[FigureRow, ...]:
    """Means over seeds along training: ``panel``, ``step``, ``beta``, ``y``; of at most ten betas, evenly chosen."""
    sums: dict[tuple[str, float, float], list[float]] = defaultdict(list)
    for row in source.metrics:
        for panel in _TITLES:
            value = row.get(panel)
            if isinstance(value, int | float) and math.isfinite(value):
                sums[panel, float(row["beta"]), float(row["step"])].append(float(value))
    betas = _some(sorted({beta for _, beta, _ in sums}), _CURVES)
    steps = _some(sorted({step for _, _, step in sums}), _STEPS)
    kept_betas, kept_steps = set(betas), set(steps)
    return tuple(
        {"panel": panel, "beta": beta, "step": step, "y": math.fsum(values) / len(values)}
        for (panel, beta, step), values in sorted(sums.items())
        if beta in kept_betas and step in kept_steps
    )


def training_chart(
    rows: Sequence[FigureRow], *, width: int = 300, height: int = 170, across: bool = True
) -> alt.HConcatChart | alt.VConcatChart:
    """Draw :func:`training_data`: a panel per quantity (side by side if ``across``), a line per beta with its name."""
    import altair as alt

    betas = sorted({row["beta"] for row in rows})
    colours = {beta: DIAL[round((len(DIAL) - 1) * i / max(len(betas) - 1, 1))] for i, beta in enumerate(betas)}
    panels = [panel for panel in _TITLES if any(row["panel"] == panel for row in rows)]
    last = max(row["step"] for row in rows)
    parts = []
    for panel in panels:
        mine = [row for row in rows if row["panel"] == panel]
        low, high = min(row["y"] for row in mine), max(row["y"] for row in mine)
        pad = 0.06 * (high - low) or 1.0
        domain = [low - pad, high + pad]
        bottom = across or panel == panels[-1]
        x = alt.X(
            "step:Q",
            scale=alt.Scale(domain=[0, last], nice=False),
            axis=alt.Axis(title="training step" if bottom else None, labels=bottom, grid=False, tickCount=5),
        )
        y = alt.Y(
            "y:Q",
            scale=alt.Scale(domain=domain, nice=False, zero=False),
            axis=alt.Axis(
                title=None, tickCount=4, domain=False, ticks=False, format=number_format(*domain) or alt.Undefined
            ),
        )
        layers: list[Any] = []
        ends = []
        for beta in betas:
            curve = [row for row in mine if row["beta"] == beta]
            if curve:
                line = chart_of(curve).mark_line(color=colours[beta], strokeWidth=1.6)
                layers.append(line.encode(x=x, y=y))
                ends.append({"y": curve[-1]["y"], "beta": beta})
        gap = 13 * (domain[1] - domain[0]) / height
        ends.sort(key=lambda row: (row["y"], -row["beta"]))
        for below, above in pairwise(ends):
            above["y"] = max(above["y"], below["y"] + gap)
        top = domain[1]
        for row in reversed(ends):
            row["y"] = min(row["y"], top)
            top = row["y"] - gap
        for row in ends:
            text = [{"y": row["y"], "text": f"{row['beta']:.3g}"}]
            mark = chart_of(text).mark_text(align="left", x="width", dx=6, color=colours[row["beta"]])
            layers.append(mark.encode(y=y, text="text:N"))
        parts.append(alt.layer(*layers).properties(width=width, height=height, title=_TITLES[panel]))
    return alt.hconcat(*parts, spacing=20) if across else alt.vconcat(*parts, spacing=14)


def spread_data(source: ReportSource) -> tuple[FigureRow, ...]:
    """How far prompts lie apart at each beta: ``panel``, ``beta``, ``prompt``, ``y``, and ``rank`` of the beta."""
    betas = sorted({float(row["beta"]) for row in source.spread})
    chosen = _some(betas, _CURVES)
    rank = {beta: i for i, beta in enumerate(chosen)}
    return tuple(
        {"panel": panel, "beta": row["beta"], "rank": rank[row["beta"]], "prompt": row["prompt"], "y": row[panel]}
        for panel in ("reward", "gold")
        for row in source.spread
        if row["beta"] in rank and row[panel] is not None and math.isfinite(row[panel])
    )


def spread_chart(rows: Sequence[FigureRow], *, width: int = 480, height: int = 150) -> alt.VConcatChart:
    """Draw :func:`spread_data`: a dot per prompt, a bar at the median."""
    import altair as alt

    labels = {row["rank"]: f"{row['beta']:.3g}" for row in rows}
    panels = [panel for panel in ("reward", "gold") if any(row["panel"] == panel for row in rows)]
    parts = []
    for panel in panels:
        mine = [row for row in rows if row["panel"] == panel]
        colour = COLOURS["judge" if panel == "reward" else "quality"]
        values = defaultdict(list)
        for row in mine:
            values[row["rank"]].append(row["y"])
        spots = [
            {"x": rank + shift, "y": y}
            for rank, ys in values.items()
            for shift, y in zip(_apart(len(ys)), sorted(ys), strict=True)
        ]
        bars = [{"x": rank - 0.28, "x2": rank + 0.28, "y": float(np.median(ys))} for rank, ys in values.items()]
        bottom = panel == panels[-1]
        x = alt.X(
            "x:Q",
            scale=alt.Scale(domain=[-0.6, max(labels) + 0.6], nice=False),
            axis=alt.Axis(
                values=list(labels),
                labelExpr=f"({[labels.get(i, '') for i in range(max(labels) + 1)]!r})[datum.value]",
                title="beta" if bottom else None,
                labels=bottom,
                grid=False,
            ),
        )
        written = number_format(min(row["y"] for row in mine), max(row["y"] for row in mine)) or alt.Undefined
        y_axis = alt.Axis(title=None, tickCount=4, domain=False, ticks=False, format=written)
        y = alt.Y("y:Q", scale=alt.Scale(zero=False), axis=y_axis)
        dots = chart_of(spots).mark_circle(color=colour, size=18, opacity=0.45).encode(x=x, y=y)
        middle = chart_of(bars).mark_rule(color=COLOURS["ink"], strokeWidth=2)
        layers = alt.layer(dots, middle.encode(x=x, x2="x2:Q", y=y))
        parts.append(layers.properties(width=width, height=height, title=f"{_TITLES[panel]} of each prompt"))
    return alt.vconcat(*parts, spacing=14)


def findings_data(sources: Sequence[ReportSource]) -> tuple[FigureRow, ...]:
    """What the checks said: ``code``, ``input``, ``status``, ``message``; problems first, then by code."""
    rows = [
        {"source": source.name, **{key: row[key] for key in ("code", "input", "status", "message")}}
        for source in sources
        for row in source.findings
    ]
    order = {status: i for i, status in enumerate(_STATUSES)}
    return tuple(sorted(rows, key=lambda row: (order.get(str(row["status"]), 9), str(row["code"]), str(row["input"]))))


def findings_chart(rows: Sequence[FigureRow], *, width: int = 480) -> Any:
    """Draw :func:`findings_data` without what could not run: a mark per check and input, in form and colour."""
    import altair as alt

    ran = [row for row in rows if row["status"] != "not-run"] or list(rows)
    inputs = list(dict.fromkeys(str(row["input"]) for row in ran))
    points = [{**row, "input": f"{inputs.index(str(row['input'])) + 1}", "code": str(row["code"])} for row in ran]
    colours = {"problem": COLOURS["judge"], "cannot-tell": COLOURS["accent"], "ok": COLOURS["quality"]}
    y = alt.Y("code:N", sort=None, axis=alt.Axis(title=None, grid=True, domain=False, ticks=False, labelLimit=160))
    x = alt.X("input:N", sort=None, axis=alt.Axis(title="input", labelAngle=0, domain=False, ticks=False))
    layers = []
    for status, shape in zip(_STATUSES, (SHAPES[3], SHAPES[2], SHAPES[0], SHAPES[4]), strict=True):
        mine = [row for row in points if row["status"] == status]
        if mine:
            colour = colours.get(status, COLOURS["muted"])
            mark = chart_of(mine).mark_point(shape=shape, filled=status == "problem", color=colour, size=90, opacity=1)
            layers.append(mark.encode(x=x, y=y))
            if len(inputs) == 1:
                text = chart_of(mine).mark_text(align="left", dx=12, color=colour).encode(x=x, y=y, text="status:N")
                layers.append(text)
    title = "What the checks said"
    return alt.layer(*layers).properties(width=width, height=alt.Step(20), title=title)


def _some(values: Sequence[float], size: int) -> list[float]:
    """At most ``size`` of them, evenly chosen, both ends among them."""
    if len(values) <= size:
        return list(values)
    return [values[i] for i in np.unique(np.linspace(0, len(values) - 1, size).round().astype(int)).tolist()]


def _apart(n: int) -> list[float]:
    """Sideways places for n dots of one column: neighbours in value lie apart."""
    return [0.22 * (((i * 5) % 9) / 4 - 1) for i in range(n)]
