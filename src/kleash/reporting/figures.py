"""The data of the two figures of a table: along the dial, and along the drift."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kleash.reporting.sources import ReportSource

if TYPE_CHECKING:
    from kleash.frontier import Estimates, Frontier

__all__ = [
    "HIGHEST",
    "OPTIMUM",
    "PERFECT",
    "TITLES",
    "Axis",
    "FigureData",
    "FigureRow",
    "dial_axis",
    "dial_data",
    "travel_axis",
    "travel_data",
]

FigureRow = dict[str, Any]
HIGHEST, OPTIMUM, PERFECT = "no policy scores higher", "exact optimum", "a perfect judge"
TITLES = {"reward": "Judge's score", "gold": "True quality"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Axis:
    """A horizontal axis: from ``lo`` to ``hi`` in its own units, with labelled ticks as (position, text)."""

    title: str
    lo: float
    hi: float
    ticks: tuple[tuple[float, str], ...]
    zero: float = 0.0
    end: float = 0.0

    def fraction(self, x: float) -> float:
        """Where a position stands, 0 at the left end and 1 at the right."""
        return (x - self.lo) / (self.hi - self.lo)

    def beta(self, beta: float) -> float:
        """Position of a beta on the dial: 0 at its own place on the left, infinity (the reference) on the right."""
        return self.zero if beta == 0 else self.end if math.isinf(beta) else math.log10(beta)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FigureData:
    """What one figure shows, as plain rows.

    ``rows``: ``panel`` (``reward`` or ``gold``), ``source``, ``x``, ``y``, ``lo``, ``hi``, ``status``, ``beta``.
    ``curves``: lines beside them, ``panel``, ``what``, ``x``, ``y``. ``spans``: shaded stretches of the axis, ``what``,
    ``x``, ``x2``, ``source``, the window's ``text``. ``levels``: the reference, ``panel``, ``source``, ``y``.
    """

    axis: Axis
    names: tuple[str, ...]
    rows: tuple[FigureRow, ...]
    curves: tuple[FigureRow, ...] = ()
    spans: tuple[FigureRow, ...] = ()
    levels: tuple[FigureRow, ...] = ()

    @property
    def panels(self) -> tuple[str, ...]:
        """The quantities that there is something to show of."""
        shown = {row["panel"] for row in self.rows}
        return tuple(name for name in TITLES if name in shown)


def dial_axis(sources: Sequence[ReportSource]) -> Axis:
    """The axis of betas: logarithmic, with 0 and the reference at places of their own."""
    betas = np.unique(np.concatenate([s.frontier.beta for s in sources if s.frontier is not None]))
    positive = betas[betas > 0]
    if positive.size:
        low, high = math.log10(positive[0]), math.log10(positive[-1])
    else:
        low = high = 0.0
    gap = max(0.14 * (high - low), 0.25)
    axis = Axis(title="beta", lo=low - 1.7 * gap, hi=high + 1.6 * gap, ticks=(), zero=low - gap, end=high + gap)
    if not (betas == 0).any():
        axis = dataclasses.replace(axis, lo=low - 0.5 * gap)
    wanted = positive.tolist() if positive.size <= 8 else _decades(low, high)
    ticks = [(axis.end, "reference")] + ([(axis.zero, "0")] if (betas == 0).any() else [])
    ticks += [(math.log10(beta), _short(beta)) for beta in wanted]
    return dataclasses.replace(axis, ticks=tuple(sorted(ticks)))


def dial_data(sources: Sequence[ReportSource]) -> FigureData:
    """Judge's score and true quality against beta, with 95 % intervals, the window and what is beyond.

    Raises `ValueError`: No source has a table.
    """
    shown = _with_tables(sources)
    axis = dial_axis(shown)
    rows, spans, levels = [], [], []
    for source in shown:
        frontier = _table(source)
        places = [axis.beta(beta) for beta in frontier.beta.tolist()]
        rows += _rows(source, places)
        levels += _levels(source)
        spans += _window(source, axis) + _beyond(frontier, places, source.name)
    return FigureData(
        axis=axis, names=tuple(s.name for s in shown), rows=tuple(rows), spans=tuple(spans), levels=tuple(levels)
    )


def travel_axis(sources: Sequence[ReportSource]) -> Axis:
    """The axis of the square root of KL, labelled in nats."""
    kl = np.concatenate([_table(s).kl.value for s in _with_tables(sources)])
    best = [row["kl"] for s in sources for row in s.best_of_n if row["kl"] is not None and row["status"] == "ok"]
    top = max(np.nanmax(np.append(kl, 0.0)), max(best, default=0.0))
    top = float(top) if top > 0 else 1.0
    steps = [m * 10.0**e for e in range(-6, 7) for m in (1, 2, 5)]
    ticks = [(0.0, "0")]
    for value in steps:
        if value <= top * 1.02 and math.sqrt(value) - ticks[-1][0] >= 0.12 * math.sqrt(top):
            ticks.append((math.sqrt(value), _short(value)))
    return Axis(title="KL (nats, square-root scale)", lo=0.0, hi=1.04 * math.sqrt(top), ticks=tuple(ticks))


def travel_data(sources: Sequence[ReportSource]) -> FigureData:
    """Judge's score and true quality against the square root of KL: what the drift buys, and what it can at most buy.

    Notes
    -----
    Curves beside the measured points, where they are true and known:

    - best-of-n from a forecast (no training);
    - in a known world, the largest judge's score at that KL and the largest true quality (the same under a judge that
      scores true quality). No policy has ``E[r] - beta KL`` above the tilt's, so ``E[r] <= r_i + beta_i (KL - KL_i)``
      at every beta_i where the optimum is known; the least of these is drawn. It is a limit between the betas too,
      where a line through the optima would be passed;
    - otherwise, where the width W of the judge's scale is known, reference + W / 2 * sqrt(2 KL). A score inside an
      interval of width W is sub-Gaussian with constant W / 2 (Hoeffding). With the standard deviation in place of
      W / 2 it would not be a limit.

    References
    ----------
    The tilt is the largest reward at its KL: Donsker and Varadhan 1975. gain <= sigma sqrt(2 KL): Mroueh 2024,
    arXiv:2406.05883.
    """
    shown = _with_tables(sources)
    axis = travel_axis(shown)
    rows, levels, curves = [], [], []
    for source in shown:
        kl = _table(source).kl.value
        places = [math.sqrt(x) if x >= 0 else math.nan for x in kl.tolist()]
        rows += _rows(source, places)
        levels += _levels(source)
        curves += _best_of_n(source, axis)
    curves += _limits(shown, axis)
    return FigureData(
        axis=axis, names=tuple(s.name for s in shown), rows=tuple(rows), curves=tuple(curves), levels=tuple(levels)
    )


# ------------------------------------------------------------------------------------------------------------- data


def _with_tables(sources: Sequence[ReportSource]) -> list[ReportSource]:
    shown = [source for source in sources if source.frontier is not None]
    if not shown:
        raise ValueError("no source has a table")
    return shown


def _table(source: ReportSource) -> Frontier:
    assert source.frontier is not None
    return source.frontier


def _rows(source: ReportSource, places: Sequence[float]) -> list[FigureRow]:
    frontier = _table(source)
    rows = []
    for panel, column in (("reward", frontier.reward), ("gold", frontier.gold)):
        for i, x in enumerate(places if column is not None else ()):
            assert column is not None
            value = float(column.value[i])
            if math.isfinite(value) and math.isfinite(x) and frontier.status[i] != "beyond":
                lo, hi = float(column.lo[i]), float(column.hi[i])
                known = math.isfinite(lo) and math.isfinite(hi)
                rows.append(
                    {
                        "panel": panel,
                        "source": source.name,
                        "x": x,
                        "y": value,
                        "lo": lo if known else value,
                        "hi": hi if known else value,
                        "status": str(frontier.status[i]),
                        "beta": float(frontier.beta[i]),
                    }
                )
    return rows


def _levels(source: ReportSource) -> list[FigureRow]:
    frontier = _table(source)
    pairs: list[tuple[str, Estimates | None]] = [
        ("reward", frontier.reference_reward),
        ("gold", None if frontier.gold is None else frontier.gold.reference),
    ]
    return [
        {"panel": panel, "source": source.name, "y": float(level.value)}
        for panel, level in pairs
        if level is not None and math.isfinite(float(level.value))
    ]


def _window(source: ReportSource, axis: Axis) -> list[FigureRow]:
    """From the loose edge to the tight one, or as far as could be read, where some beta is shown to help."""
    verdict, frontier = source.verdict, _table(source)
    if verdict is None or not verdict.gain_shown:
        return []
    usable = frontier.beta[frontier.usable]
    loose = verdict.loose_edge[1] if verdict.loose_edge else float(usable.min())
    tight = verdict.tight_edge[1] if verdict.tight_edge else float(usable.max())
    text = "useful range" if verdict.kind == "useful-range" else "quality gains"
    return [{"what": "window", "source": source.name, "x": axis.beta(loose), "x2": axis.beta(tight), "text": text}]


def _beyond(frontier: Frontier, places: Sequence[float], name: str) -> list[FigureRow]:
    """Runs of rows that are refused, each to half way to its neighbours."""
    spans = []
    refused = ~frontier.usable
    start = None
    for i in range(len(places) + 1):
        if i < len(places) and refused[i]:
            start = i if start is None else start
        elif start is not None:
            left = places[start] if start == 0 else (places[start - 1] + places[start]) / 2
            right = places[i - 1] if i == len(places) else (places[i - 1] + places[i]) / 2
            spans.append({"what": "beyond", "source": name, "x": left, "x2": right})
            start = None
    return spans


def _best_of_n(source: ReportSource, axis: Axis) -> list[FigureRow]:
    return [
        {"panel": panel, "what": "best of n, no training", "x": math.sqrt(row["kl"]), "y": row[panel], "n": row["n"]}
        for panel in TITLES
        for row in source.best_of_n
        if row[panel] is not None
        and row["kl"] is not None
        and row["status"] == "ok"
        and row["kl"] >= 0
        and math.sqrt(row["kl"]) <= axis.hi
    ]


def _limits(shown: Sequence[ReportSource], axis: Axis) -> list[FigureRow]:
    """What no policy can pass: only where one world or one scale is behind everything that is shown."""
    source = shown[0]
    if len(shown) > 1:
        return []
    points = []
    if source.optimum is not None:
        points += _ceiling("reward", HIGHEST, source.optimum, source.optimum.reward, axis)
        if source.optimum.gold is not None and source.kind != "frontier":
            points += _curve("gold", OPTIMUM, source.optimum.kl, source.optimum.gold, axis)
    elif source.reward_range is not None:
        x = np.linspace(0.0, axis.hi, 60)
        start = float(_table(source).reference_reward.value)
        y = start + 0.5 * source.reward_range * math.sqrt(2.0) * x
        points += [
            {"panel": "reward", "what": HIGHEST, "x": a, "y": b}
            for a, b in zip(x.tolist(), y.tolist(), strict=True)
            if b <= start + source.reward_range
        ]
    if source.perfect is not None and source.perfect.gold is not None:
        points += _ceiling("gold", PERFECT, source.perfect, source.perfect.gold, axis)
    return points


def _ceiling(panel: str, what: str, exact: Frontier, value: Estimates, axis: Axis) -> list[FigureRow]:
    """The largest mean of a score at each KL that the exact optimum at some betas leaves possible: a true limit."""
    at = np.sqrt(exact.kl.value)
    x = np.unique(np.concatenate([np.linspace(0.0, axis.hi, 200), at[at <= axis.hi]]))
    lines = value.value[:, None] + exact.beta[:, None] * (x**2 - exact.kl.value[:, None])
    return [
        {"panel": panel, "what": what, "x": a, "y": b} for a, b in zip(x.tolist(), lines.min(0).tolist(), strict=True)
    ]


def _curve(panel: str, what: str, kl: Estimates, value: Estimates, axis: Axis) -> list[FigureRow]:
    x = np.sqrt(kl.value)
    order = np.argsort(x)
    x, y = x[order], value.value[order]
    if x[0] > axis.hi:
        return []
    inside = x <= axis.hi
    points = list(zip(x[inside].tolist(), y[inside].tolist(), strict=True))
    if not inside.all():
        points.append((axis.hi, float(np.interp(axis.hi, x, y))))
    return [{"panel": panel, "what": what, "x": a, "y": b} for a, b in points]


def _decades(low: float, high: float) -> list[float]:
    parts = (1,) if high - low > 3 else (1, 2, 5)
    spread = range(math.floor(low), math.ceil(high) + 1)
    values = [m * 10.0**e for e in spread for m in parts]
    return [v for v in values if low - 1e-9 <= math.log10(v) <= high + 1e-9]


def _short(value: float) -> str:
    rounded = float(f"{value:.3g}")
    plain = 1e-4 <= abs(rounded) < 1e6 or rounded == 0
    return np.format_float_positional(rounded, trim="-") if plain else f"{rounded:g}"
