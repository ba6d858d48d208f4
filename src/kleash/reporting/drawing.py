"""The two figures of a table, drawn: panels of judge's score and true quality over one axis."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from kleash.reporting.figures import HIGHEST, OPTIMUM, TITLES, Axis, FigureData, FigureRow, dial_data, travel_data
from kleash.reporting.palette import COLOURS, SERIES, SHAPES, chart_of, number_format
from kleash.reporting.sources import sources_of

if TYPE_CHECKING:
    import altair as alt

__all__ = ["dial_chart", "plot", "travel_chart"]

_SHORT = 26  # characters of a name in a drawing
_LETTER, _CLEAR = 6.0, 6.0  # pixels of a character of a label, and between two labels
_LABEL = 13  # pixels between labels at the end of lines
_HATCH = 7  # pixels between hatching lines
_FEW = 14  # rows up to which each is a point with an error bar; more are a line in a band


def dial_chart(data: FigureData, *, width: int = 480, height: int = 190) -> alt.VConcatChart:
    """Draw :func:`dial_data`: two panels over one axis. ``width`` and ``height`` of a panel in pixels."""
    return _chart(data, width=width, height=height, marker="dial")


def travel_chart(data: FigureData, *, width: int = 480, height: int = 190) -> alt.VConcatChart:
    """Draw :func:`travel_data`: two panels over one axis."""
    return _chart(data, width=width, height=height, marker="travel")


def plot(result: Any, *, against: str = "beta") -> alt.VConcatChart:
    """A chart of a table for a notebook: judge's score and true quality.

    Parameters
    ----------
    result
        A Frontier, a Forecast, a SweepResult, or the path of one; several in a list are laid over each other.
    against
        ``beta``, or ``kl`` on a square-root scale.

    Returns
    -------
    altair.VConcatChart

    Examples
    --------
    >>> import kleash
    >>> plot(kleash.exact_frontier(kleash.kitchen(), [1.0, 15.0])).to_dict()["vconcat"][0]["title"]
    "Judge's score"
    """
    from kleash import _checks

    sources = sources_of(result)
    if _checks.choice(against, ("beta", "kl"), name="against") == "beta":
        return dial_chart(dial_data(sources))
    return travel_chart(travel_data(sources))


def _chart(data: FigureData, *, width: int, height: int, marker: str) -> alt.VConcatChart:
    import altair as alt

    parts = [
        _panel(
            data, panel, width=width, height=height, marker=f"marker_{marker}_{panel}", last=panel == data.panels[-1]
        )
        for panel in data.panels
    ]
    if not parts:
        empty = chart_of([{"text": "every beta is beyond what the data can say"}])
        parts = [
            empty.mark_text(color=COLOURS["muted"]).encode(text="text:N").properties(width=width, height=height // 2)
        ]
    return alt.vconcat(*parts, spacing=14)


def _panel(data: FigureData, panel: str, *, width: int, height: int, marker: str, last: bool) -> Any:
    import altair as alt

    rows = [row for row in data.rows if row["panel"] == panel]
    curves = [row for row in data.curves if row["panel"] == panel]
    levels = [row for row in data.levels if row["panel"] == panel]
    alone = len(data.names) == 1
    low, high = _domain(rows, curves, levels)
    axis = data.axis
    ticks = _ticks(axis, width)
    texts = {f"{x - axis.lo:.5f}": text for x, text in ticks}  # from the left end: d3 has a minus sign of its own
    x_axis = alt.Axis(
        values=[x for x, _ in ticks],
        labelExpr=f"({texts!r})[format(datum.value - {axis.lo!r}, '.5f')]",
        title=axis.title if last else None,
        labels=last,
        grid=False,
        labelOverlap=False,
        labelFlush=False,
    )
    x = alt.X("x:Q", scale=alt.Scale(domain=[axis.lo, axis.hi], nice=False, zero=False), axis=x_axis)
    y_scale = alt.Scale(domain=[low, high], nice=False, zero=False)
    y_axis = alt.Axis(
        title=None, tickCount=5, domain=False, ticks=False, format=number_format(low, high) or alt.Undefined
    )
    y = alt.Y("y:Q", scale=y_scale, axis=y_axis)
    base = _Pencil(
        alt=alt,
        x=x,
        y=y,
        span=alt.Y("lo:Q", scale=y_scale, axis=y_axis),
        low=low,
        high=high,
        per_x=(axis.hi - axis.lo) / width,
        per_y=(high - low) / height,
    )

    layers: list[Any] = []
    layers += _shades(base, data, panel, alone=alone)
    at = axis.end if marker.startswith("marker_dial") else None
    layers += _level_layers(base, levels, rows, panel, alone=alone, names=data.names, at=at)
    layers += _curve_layers(base, curves)
    joined = not any(row["what"] in (HIGHEST, OPTIMUM) for row in curves)
    for i, name in enumerate(data.names):
        mine = [row for row in rows if row["source"] == name]
        colour = COLOURS["judge" if panel == "reward" else "quality"] if alone else SERIES[i % len(SERIES)]
        layers += _series_layers(
            base, mine, colour, shape=SHAPES[i % len(SHAPES)], dashed=i >= len(SERIES), alone=alone, joined=joined
        )
    if not alone:
        layers += _name_layers(base, rows, data.names)
    rule = chart_of([{"x": axis.lo}], name=marker)
    layers.append(rule.mark_rule(color=COLOURS["accent"], strokeWidth=2, opacity=0).encode(x=x))
    return alt.layer(*layers).properties(width=width, height=height, title=TITLES[panel])


def _ticks(axis: Axis, width: int) -> list[tuple[float, str]]:
    """The ticks whose labels stand clear of each other at this width, those at the two ends first."""
    kept: list[tuple[float, float, str]] = []
    for x, text in sorted(axis.ticks, key=lambda tick: (tick[0] not in (axis.zero, axis.end), tick[0])):
        place, half = axis.fraction(x) * width, 0.5 * (_LETTER * len(text) + _CLEAR)
        if all(abs(place - axis.fraction(other) * width) >= half + reach for other, reach, _ in kept):
            kept.append((x, half, text))
    return [(x, text) for x, _, text in sorted(kept)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Pencil:
    """What every layer of a panel shares: scales, and how much of them a pixel is."""

    alt: Any
    x: Any
    y: Any
    span: Any
    low: float
    high: float
    per_x: float
    per_y: float

    def on(self, values: Sequence[Mapping[str, Any]]) -> Any:
        return chart_of(values)


def _domain(rows: Sequence[FigureRow], curves: Sequence[FigureRow], levels: Sequence[FigureRow]) -> tuple[float, float]:
    """Everything that is measured with its intervals; of a limit only as much as fits beside it."""
    values = [row[key] for row in rows for key in ("lo", "hi")] + [row["y"] for row in levels]
    low, high = min(values), max(values)
    pad = 0.08 * (high - low) or 0.1 * abs(high) or 1.0
    room = high + 0.35 * (high - low)
    reach = [row["y"] for row in curves]
    high = max([high, *(min(y, room) for y in reach)])
    low = min([low, *(max(y, low - 0.35 * (high - low)) for y in reach)])
    return low - pad, high + pad


def _shades(base: _Pencil, data: FigureData, panel: str, *, alone: bool) -> list[Any]:
    layers = []
    windows = [span for span in data.spans if span["what"] == "window"]
    if alone:
        for span in windows:
            area = [{"x": span["x"], "x2": span["x2"], "y": base.low, "y2": base.high}]
            layers.append(
                base.on(area).mark_rect(color=COLOURS["good"]).encode(x=base.x, x2="x2:Q", y=base.y, y2="y2:Q")
            )
            inside = [row["y"] for row in data.rows if row["panel"] == panel and span["x"] <= row["x"] <= span["x2"]]
            high = bool(inside) and sum(inside) / len(inside) > (base.low + base.high) / 2
            where = base.low if high else base.high  # away from the curve
            label = [{"x": (span["x"] + span["x2"]) / 2, "y": where, "text": span["text"]}]
            if span["x2"] - span["x"] > 70 * base.per_x:
                edge = "bottom" if high else "top"
                mark = base.on(label).mark_text(color=COLOURS["muted"], baseline=edge, dy=-4 if high else 3)
                layers.append(mark.encode(x=base.x, y=base.y, text="text:N"))
    elif panel == "gold":
        for span in windows:
            i = data.names.index(span["source"])
            bar = [{"x": span["x"], "x2": span["x2"], "y": base.low + 4 * (1 + i % 5) * base.per_y}]
            mark = base.on(bar).mark_rule(color=SERIES[i % len(SERIES)], strokeWidth=2.5)
            layers.append(mark.encode(x=base.x, x2="x2:Q", y=base.y))
    beyond = [span for span in data.spans if span["what"] == "beyond"]
    if alone and beyond:
        lines = [line for span in beyond for line in _hatching(base, span)]
        mark = base.on(lines).mark_rule(color=COLOURS["beyond"], strokeWidth=1)
        layers.append(mark.encode(x=base.x, x2="x2:Q", y=base.y, y2="y2:Q"))
        for span in beyond:
            if span["x2"] - span["x"] > 60 * base.per_x:
                label = [{"x": (span["x"] + span["x2"]) / 2, "y": base.high, "text": "beyond the data"}]
                mark = base.on(label).mark_text(color=COLOURS["muted"], baseline="top", dy=3)
                layers.append(mark.encode(x=base.x, y=base.y, text="text:N"))
    return layers


def _hatching(base: _Pencil, span: FigureRow) -> list[FigureRow]:
    """Diagonals inside a stretch of the panel, clipped by hand: Vega has no hatching."""
    wide = max((span["x2"] - span["x"]) / base.per_x, 3.0)
    tall = (base.high - base.low) / base.per_y
    lines = []
    start = -tall
    while start < wide:
        a, b = max(start, 0.0), min(start + tall, wide)
        if b > a:
            ends = [{"x": span["x"] + px * base.per_x, "y": base.low + (px - start) * base.per_y} for px in (a, b)]
            lines.append({**ends[0], "x2": ends[1]["x"], "y2": ends[1]["y"]})
        start += _HATCH
    return lines


def _level_layers(
    base: _Pencil,
    levels: Sequence[FigureRow],
    rows: Sequence[FigureRow],
    panel: str,
    *,
    alone: bool,
    names: Sequence[str],
    at: float | None,
) -> list[Any]:
    """The reference: a dashed line, and a hollow point where the axis has a place for it (``at``)."""
    layers = []
    for level in levels:
        i = names.index(level["source"])
        colour = COLOURS["muted"] if alone else SERIES[i % len(SERIES)]
        mark = base.on([level]).mark_rule(color=colour, strokeDash=[3, 3], strokeWidth=1)
        layers.append(mark.encode(y=base.y))
    if at is not None:
        for level in levels:
            i = names.index(level["source"])
            colour = COLOURS["judge" if panel == "reward" else "quality"] if alone else SERIES[i % len(SERIES)]
            dot = base.on([{**level, "x": at}]).mark_point(
                shape="circle", size=45, filled=True, fill=COLOURS["paper"], stroke=colour, strokeWidth=1.6, opacity=1
            )
            layers.append(dot.encode(x=base.x, y=base.y))
    elif alone and levels:
        level = levels[0]["y"]
        last = max(rows, key=lambda row: row["x"])["y"]
        below = (
            last > level > base.low + 0.15 * (base.high - base.low)
        )  # away from where the data end, inside the panel
        mark = base.on([{**levels[0], "text": "untouched reference"}]).mark_text(
            align="right",
            baseline="top" if below else "bottom",
            dy=4 if below else -4,
            color=COLOURS["muted"],
            x="width",
        )
        layers.append(mark.encode(y=base.y, text="text:N"))
    return layers


def _curve_layers(base: _Pencil, curves: Sequence[FigureRow]) -> list[Any]:
    layers = []
    for what in dict.fromkeys(row["what"] for row in curves):
        mine = [row for row in curves if row["what"] == what]
        best = what.startswith("best of n")
        colour = COLOURS["accent"] if best else COLOURS["ink"]
        mark = base.on(mine).mark_line(
            color=colour, strokeWidth=1.3, strokeDash=[1, 2] if best else [6, 3], clip=True, interpolate="linear"
        )
        layers.append(mark.encode(x=base.x, y=base.y, order="x:Q"))
        seen = [row for row in mine if base.low <= row["y"] <= base.high]
        if best:
            dots = base.on(mine).mark_point(color=colour, size=22, shape="diamond", filled=True, clip=True)
            layers.append(dots.encode(x=base.x, y=base.y))
        if seen:
            place = seen[-1] if best else min(seen, key=lambda row: abs(row["x"] - seen[-1]["x"] * 0.55))
            rising = best or seen[-1]["y"] >= seen[0]["y"]
            text = [{**place, "text": f"best of {place['n']:.0f}" if best else what}]
            mark = base.on(text).mark_text(
                color=colour,
                align="right" if rising and not best else "left",
                dx=-8 if rising and not best else 6,
                dy=8 if best else -8,
            )
            layers.append(mark.encode(x=base.x, y=base.y, text="text:N"))
    return layers


def _series_layers(
    base: _Pencil, rows: Sequence[FigureRow], colour: str, *, shape: str, dashed: bool, alone: bool, joined: bool
) -> list[Any]:
    """One source: a band and a line, or points with error bars; ``joined`` where no curve says what is between."""
    if not rows:
        return []
    few = len(rows) <= _FEW
    sure = any(row["hi"] > row["lo"] for row in rows)
    dash: Any = [5, 3] if dashed else base.alt.Undefined
    layers = []
    if sure and not few:
        band = base.on(sorted(rows, key=lambda row: row["x"])).mark_area(color=colour, opacity=0.18 if alone else 0.1)
        layers.append(band.encode(x=base.x, y=base.span, y2="hi:Q"))
    if joined or not few:
        line = base.on(rows).mark_line(color=colour, strokeWidth=2 if not few else 1.2, strokeDash=dash)
        layers.append(line.encode(x=base.x, y=base.y, order=base.alt.Order("beta:Q")))
    if sure and few:
        bars = base.on(rows).mark_rule(color=colour, strokeWidth=1.5)
        layers.append(bars.encode(x=base.x, y=base.span, y2="hi:Q"))
    if few:
        for status, filled in (("ok", colour), ("weak", COLOURS["paper"])):
            mine = [row for row in rows if row["status"] == status]
            if mine:
                dots = base.on(mine).mark_point(
                    shape=shape, size=55, filled=True, fill=filled, stroke=colour, strokeWidth=1.6, opacity=1
                )
                layers.append(dots.encode(x=base.x, y=base.y))
    return layers


def _name_layers(base: _Pencil, rows: Sequence[FigureRow], names: Sequence[str]) -> list[Any]:
    """Names at the right end of their lines, moved apart where they would lie on each other."""
    ends = []
    for i, name in enumerate(names):
        mine = [row for row in rows if row["source"] == name]
        if mine:
            last = max(mine, key=lambda row: row["x"])
            ends.append({"x": last["x"], "y": last["y"], "text": _shown_name(name), "i": i})
    ends.sort(key=lambda row: row["y"])
    gap = _LABEL * base.per_y
    for below, above in pairwise(ends):
        above["y"] = max(above["y"], below["y"] + gap)
    top = base.high
    for row in reversed(ends):
        row["y"] = min(row["y"], top)
        top = row["y"] - gap
    layers = []
    for row in ends:
        mark = base.on([row]).mark_text(align="left", x="width", dx=6, color=SERIES[row["i"] % len(SERIES)])
        layers.append(mark.encode(y=base.y, text="text:N"))
    return layers


def _shown_name(name: str) -> str:
    plain = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in name)
    return plain if len(plain) <= _SHORT else plain[: _SHORT - 1] + "…"
