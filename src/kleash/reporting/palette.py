"""How drawings look: colours that colour-blind readers tell apart, one theme, SVG that follows the page's scheme."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import altair as alt

__all__ = [
    "COLOURS",
    "DARK",
    "DIAL",
    "DIAL_DARK",
    "FONT",
    "SERIES",
    "SERIES_DARK",
    "SHAPES",
    "chart_of",
    "draw_png",
    "draw_svg",
    "inline_svg",
    "number_format",
    "theme",
]

COLOURS = {
    "ink": "#1d2733",
    "muted": "#5b6673",
    "grid": "#e3e7eb",
    "judge": "#b8470b",
    "quality": "#00629b",
    "good": "#dff0e6",
    "beyond": "#b9c0c7",
    "accent": "#6b3fa0",
    "paper": "#ffffff",
}
"""Name -> colour on white; each is a CSS variable of the page (``--ink``), which has its own values in the dark."""

SERIES = ("#00629b", "#b8470b", "#00775a", "#8a4fa3", "#8a6d00", "#5b6673")
"""Sources laid over each other, after Okabe and Ito, darkened to 4.5:1 on white; past six they begin again, dashed."""

DARK = {
    "ink": "#e8edf2",
    "muted": "#a9b4bf",
    "grid": "#2b353f",
    "judge": "#ff9e66",
    "quality": "#74c0f7",
    "good": "#17382a",
    "beyond": "#56616c",
    "accent": "#cfadff",
    "paper": "#12181f",
}
"""The same names on a dark page."""

SERIES_DARK = ("#74c0f7", "#ff9e66", "#5fd3ae", "#d3a4ea", "#dcc25a", "#a9b4bf")
"""The sources on a dark page."""

SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down")
DIAL = ("#b8470b", "#a4571f", "#8f5b3c", "#7a5c52", "#665d64", "#525f75", "#3f6183", "#2a628f", "#136296", "#00629b")
"""From loose to tight, orange to blue: apart in hue and for every kind of colour blindness."""

DIAL_DARK = (
    "#ff9e66",
    "#f0a274",
    "#e0a683",
    "#d1aa91",
    "#c1aea0",
    "#b2b1ae",
    "#a2b5bd",
    "#93b9cb",
    "#83bdda",
    "#74c0f7",
)
"""The same on a dark page."""

FONT = "Liberation Sans, DejaVu Sans, Arial, sans-serif"


def theme(chart: alt.TopLevelMixin, *, validate: bool = True) -> dict[str, Any]:
    """A chart's Vega-Lite, dressed; ``validate`` holds it against the schema, which takes as long as drawing it."""
    spec: dict[str, Any] = chart.to_dict(validate=validate)
    axis = {
        "labelColor": COLOURS["muted"],
        "titleColor": COLOURS["ink"],
        "titleFontWeight": "normal",
        "labelFontSize": 11,
        "titleFontSize": 12,
        "gridColor": COLOURS["grid"],
        "domainColor": COLOURS["muted"],
        "tickColor": COLOURS["muted"],
    }
    spec["config"] = {
        "font": FONT,
        "background": COLOURS["paper"],
        "view": {"stroke": None},
        "axis": axis,
        "title": {
            "color": COLOURS["ink"],
            "anchor": "start",
            "fontSize": 13,
            "fontWeight": "bold",
            "offset": 8,
            "subtitleColor": COLOURS["muted"],
            "subtitleFontSize": 11,
        },
        "text": {"fontSize": 11},
    }
    return spec


def chart_of(rows: Iterable[Mapping[str, Any]], *, name: str | None = None) -> Any:
    """An altair chart over plain rows."""
    import altair as alt

    data: Any = alt.Data(values=list(rows))  # type: ignore[no-untyped-call]
    return alt.Chart(data) if name is None else alt.Chart(data, name=name)


def number_format(low: float, high: float) -> str:
    """How an axis writes numbers that as decimals would be long or all zeros, for d3; empty where they would not be.

    Examples
    --------
    >>> number_format(0.0, 31.7), number_format(7e-8, 1e-7), number_format(1.0001e9, 1.0002e9)
    ('', '.3~e', '.7~e')
    """
    largest = max(abs(low), abs(high))
    if 1e-2 <= largest < 1e6 or high <= low:
        return ""
    return f".{2 + math.floor(math.log10(largest / (high - low)) + 1)}~e"


def draw_svg(chart: alt.TopLevelMixin, *, validate: bool = True) -> str:
    """A chart as a standalone SVG."""
    import vl_convert

    svg = str(vl_convert.vegalite_to_svg(theme(chart, validate=validate)))
    tags = "".join(re.findall(r"<[^>]*>", svg))
    numbers = {name: f"c{i}" for i, name in enumerate(dict.fromkeys(re.findall(r'\bid="([^"]*)"', tags)))}

    def renumbered(tag: re.Match[str]) -> str:  # Vega counts on over drawings
        inside = re.sub(r'\bid="([^"]*)"', lambda found: f'id="{numbers[found[1]]}"', tag[0])
        return re.sub(r"url\(#([^)]*)\)", lambda found: f"url(#{numbers.get(found[1], found[1])})", inside)

    return re.sub(r"<[^>]*>", renumbered, svg)


def draw_png(chart: alt.TopLevelMixin, *, scale: float = 2.0) -> bytes:
    """A chart as PNG, ``scale`` pixels per unit."""
    import vl_convert

    return bytes(vl_convert.vegalite_to_png(theme(chart), scale=scale))


def inline_svg(svg: str, *, label: str, prefix: str) -> str:
    """An SVG to stand in a page: one picture with one label, names of its own, and the page's colours and font.

    ``svg``: From :func:`draw_svg`. ``label``: What a screen reader says; escaped here. ``prefix``: Put before every id,
    so that several drawings in one page do not share clips.

    Returns
    -------
    The markup of one ``<svg>``.

    Notes
    -----
    Colours of :data:`COLOURS` become classes by attribute (``fill="#1d2733"`` is matched by the page's style sheet), so
    the drawing keeps its colours where a style sheet does not reach.
    """
    from markupsafe import escape

    def tidied(tag: re.Match[str]) -> str:
        inside = re.sub(r' (?:role|aria-[a-z]+|pointer-events|xmlns:xlink|font-family)="[^"]*"', "", tag[0])
        inside = re.sub(r'\bid="([^"]*)"', rf'id="{prefix}\1"', inside)
        inside = re.sub(r"url\(#([^)]*)\)", rf"url(#{prefix}\1)", inside)
        inside = inside.replace('fill="white"', f'fill="{COLOURS["paper"]}"')
        return re.sub(r"(\d\.\d{2})\d+", r"\1", inside)

    svg = re.sub(r"<[^>]*>", tidied, svg)  # what stands between the tags is text: numbers and names, kept whole
    return svg.replace("<svg", f'<svg role="img" aria-label="{escape(label)}"', 1)
