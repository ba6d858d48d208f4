"""The few shapes that the dial is drawn with, as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from kleash.reporting.palette import COLOURS, FONT

__all__ = ["circle", "path", "points", "text"]


def text(
    x: float,
    y: float,
    words: str,
    *,
    colour: str = "muted",
    size: float = 13,
    anchor: str = "middle",
    bold: bool = False,
    key: str = "",
) -> str:
    """Words at a place."""
    weight = ' font-weight="bold"' if bold else ""
    name = f' data-part="{key}"' if key else ""
    return (
        f'<text x="{x:.2f}" y="{y:.2f}" fill="{COLOURS[colour]}" font-family="{FONT}" font-size="{size:g}" '
        f'text-anchor="{anchor}"{weight}{name}>{escape(words)}</text>'
    )


def path(
    d: str,
    *,
    fill: str = "none",
    stroke: str = "none",
    width: float = 1,
    dash: str = "",
    key: str = "",
    extra: str = "",
) -> str:
    """A line or an outline; ``d`` as SVG has it."""
    paint = f'fill="{COLOURS.get(fill, fill)}" stroke="{COLOURS.get(stroke, stroke)}"'
    paint += f' stroke-width="{width:g}"' if stroke != "none" else ""
    paint += f' stroke-dasharray="{dash}"' if dash else ""
    name = f' data-part="{key}"' if key else ""
    return f'<path d="{d}" {paint} stroke-linecap="round" stroke-linejoin="round"{name}{extra}/>'


def circle(x: float, y: float, r: float, *, fill: str, stroke: str = "none", width: float = 1, key: str = "") -> str:
    """A circle."""
    paint = f'fill="{COLOURS.get(fill, fill)}" stroke="{COLOURS.get(stroke, stroke)}" stroke-width="{width:g}"'
    name = f' data-part="{key}"' if key else ""
    return f'<circle cx="{x:.2f}" cy="{y:.2f}" r="{r:g}" {paint}{name}/>'


def points(along: Sequence[tuple[float, float]]) -> str:
    """The outline through some points."""
    return "M" + "L".join(f"{x:.2f} {y:.2f}" for x, y in along)
