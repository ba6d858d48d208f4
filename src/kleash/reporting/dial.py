"""What the report's dial shows at each of its stops: words, two needles, the leash; in degrees and pixels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kleash.reporting import figures
from kleash.reporting.sentences import shown
from kleash.reporting.sources import ReportSource
from kleash.terminal import cell_texts

if TYPE_CHECKING:
    from kleash.frontier import Frontier

__all__ = ["GAUGE", "LEASH", "dials"]

GAUGE = {"cx": 110.0, "cy": 112.0, "radius": 82.0, "swing": 90.0}
"""Hub and radius of a needle's scale in pixels; degrees that the needle turns to either side."""
LEASH = {"post": 60.0, "near": 124.0, "far": 484.0, "height": 62.0, "ground": 112.0, "slack": 16.0, "neck": 10.0}
"""Pixels of the leash: where it is tied, where it has no length, where the longest one ends."""
_TICK = 62.0  # pixels between two labels of the ground


def dials(tables: Sequence[ReportSource]) -> dict[int, dict[str, Any]]:
    """For each table what the dial shows at each beta, the reference last; by id of the source.

    Notes
    -----
    The leash is as long as the square root of the KL, as on the chart: a KL of 0.01 nats can be seen beside one of 3.
    Its scale ends at the largest KL of any table or of its interval, and begins at 0, below which there is no KL: an
    estimate or an end of an interval below 0 is drawn at 0, its number is told as it is.
    """
    if not tables:
        return {}
    scales = {name: _scale(tables, name) for name in ("reward", "gold")}
    longest = max((x for source in tables for x in _lengths(source)), default=0.0)
    axes = figures.dial_axis(tables), figures.travel_axis(tables)
    return {id(source): _dial(source, i, scales=scales, longest=longest, axes=axes) for i, source in enumerate(tables)}


def _lengths(source: ReportSource) -> list[float]:
    """Every KL of a table, and the upper ends of their intervals."""
    assert source.frontier is not None
    kl = source.frontier.kl
    return [x for x in [*kl.value.tolist(), *kl.hi.tolist()] if math.isfinite(x) and x > 0]


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
        row["status"] = "reference" if last else str(frontier.status[i])
        kl = values["kl"][i]
        row["value"] = {name: values[name][i] for name in ("beta", "reward", "gold", "kl")}
        for name, scale in scales.items():
            row[name + "_turn"] = None if scale is None else _turn(values[name][i], scale)
            row[name + "_arc"] = "" if scale is None else _arc(values[name + "_lo"][i], values[name + "_hi"][i], scale)
        row["gain"] = "" if last else _gain(frontier, i)
        row["who"] = None if kl is None else _along(kl, longest)
        row["strap"] = "" if row["who"] is None else _strap(row["who"])
        row["drift"] = _drift(values["kl_lo"][i], values["kl_hi"][i], longest)
        beta = math.inf if last else float(frontier.beta[i])
        row["at"] = round(axes[0].fraction(axes[0].beta(beta)), 5)
        row["far"] = None if kl is None or kl < 0 else round(axes[1].fraction(math.sqrt(kl)), 5)
        row["said"] = _said(row)
        rows.append(row)
    start = _start(source)
    payload = {
        "rows": rows,
        "start": start,
        "scales": {name: _face(scale, frontier, name) for name, scale in scales.items()},
    }
    return {
        **payload,
        "index": index,
        "name": shown(source.name),
        "first": rows[start],
        "ticks": _ticks(longest),
        "payload": payload,
    }


def _values(frontier: Frontier) -> dict[str, list[float | None]]:
    """Columns with the reference as the last entry; None where there is nothing."""
    reference = frontier.reference()
    rows = frontier.rows()
    columns: dict[str, list[float | None]] = {"beta": [row["beta"] for row in rows] + [None]}
    for name in ("reward", "gold"):
        for end in ("", "_lo", "_hi"):
            columns[name + end] = [row[name + end] for row in rows] + [reference[name + end]]
    for end, last in (("", 0.0), ("_lo", None), ("_hi", None)):
        columns["kl" + end] = [row["kl" + end] for row in rows] + [last]
    return columns


def _gain(frontier: Frontier, i: int) -> str:
    """What the verdict rests on: true quality against the reference, with its paired interval."""
    if frontier.gold is None or not math.isfinite(frontier.gold.gain.value[i]):
        return ""
    gain = frontier.gold.gain[i]
    value, lo, hi = float(gain.value), float(gain.lo), float(gain.hi)
    noise = 1e-9 * (abs(float(frontier.gold.reference.value)) + abs(value))
    ends = [_signed(x, noise) for x in (lo, hi) if math.isfinite(x)]
    between = f" (95 %: {ends[0]} to {ends[1]})" if len(set(ends)) == 2 else ""
    return f"{_signed(value, noise)} against the reference{between}"


def _signed(value: float, noise: float) -> str:
    return "0" if abs(value) <= noise else f"{value:+.3g}".replace("-", "\N{MINUS SIGN}", 1 if value < 0 else 0)


def _said(row: dict[str, Any]) -> str:
    """What a screen reader says at a stop of the dial."""
    place = "the reference, untouched" if row["value"]["beta"] is None else f"beta {row['beta']}"
    if row["status"] == "beyond":
        return f"{place}: beyond what the data can say"
    parts = [f"judge's score {row['reward']}" if row["reward"] else "judge's score unknown"]
    parts += [f"true quality {row['gold']}" if row["gold"] else "true quality not measured"]
    parts += [f"KL {row['kl']} nats"] if row["kl"] else []
    parts += ["weak, read with care"] if row["status"] == "weak" else []
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


# -------------------------------------------------------------------------------------------------------- the needles


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
    return round(GAUGE["swing"] * (2.0 * (value - scale[0]) / (scale[1] - scale[0]) - 1.0), 3)


def _arc(lo: float | None, hi: float | None, scale: tuple[float, float]) -> str:
    """The interval as an arc of the gauge, an SVG path."""
    if lo is None or hi is None or hi <= lo:
        return ""
    first, last = _turn(lo, scale), _turn(hi, scale)
    assert first is not None and last is not None  # noqa: PT018
    return _arc_path(first, last)


def _arc_path(first: float, last: float) -> str:
    def point(turn: float) -> str:
        angle = math.radians(turn)
        x, y = GAUGE["cx"] + GAUGE["radius"] * math.sin(angle), GAUGE["cy"] - GAUGE["radius"] * math.cos(angle)
        return f"{x:.2f} {y:.2f}"

    return f"M{point(first)}A{GAUGE['radius']:g} {GAUGE['radius']:g} 0 {int(last - first > 180)} 1 {point(last)}"


def _face(scale: tuple[float, float] | None, frontier: Frontier, name: str) -> dict[str, Any] | None:
    if scale is None:
        return None
    return {
        "low": _end(scale[0], scale),
        "high": _end(scale[1], scale),
        "face": _arc_path(-GAUGE["swing"], GAUGE["swing"]),
        "reference": _turn(frontier.reference()[name], scale),
    }


def _end(value: float, scale: tuple[float, float]) -> str:
    """An end of a scale; 0 where it is nothing beside the scale's width."""
    return "0" if abs(value) < 2e-3 * (scale[1] - scale[0]) else f"{value:.3g}"


# ---------------------------------------------------------------------------------------------------------- the leash


def _along(kl: float, longest: float) -> float:
    """Where on the ground a KL is, in pixels from the left."""
    share = math.sqrt(max(kl, 0.0) / longest) if longest > 0 else 0.0
    return round(LEASH["near"] + (LEASH["far"] - LEASH["near"]) * share, 2)


def _strap(x: float) -> str:
    end = x - LEASH["neck"]
    middle = (LEASH["post"] + end) / 2
    low = LEASH["height"] + LEASH["slack"]
    return f"M{LEASH['post']:g} {LEASH['height']:g}Q{middle:.2f} {low:g} {end:.2f} {LEASH['height']:g}"


def _drift(lo: float | None, hi: float | None, longest: float) -> str:
    """The interval of the KL as a stretch of the ground."""
    if lo is None or hi is None or hi <= lo:
        return ""
    return f"M{_along(lo, longest):g} {LEASH['ground']:g}H{_along(hi, longest):g}"


def _ticks(longest: float) -> list[dict[str, Any]]:
    """Labels of the ground, clear of each other on a telephone."""
    ticks = [{"x": LEASH["near"], "text": "0"}]
    for value in (m * 10.0**e for e in range(-12, 13) for m in (1, 2, 5)):
        if value <= longest and _along(value, longest) - float(str(ticks[-1]["x"])) >= _TICK:
            ticks.append({"x": _along(value, longest), "text": f"{value:g}"})
    return ticks
