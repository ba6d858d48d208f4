"""How the result of a conformance run looks on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

if TYPE_CHECKING:
    from kleash.trials.conformance import ConformanceResult
    from kleash.trials.verdicts import Conformance, Point

__all__ = ["conformance_table"]


def conformance_table(result: ConformanceResult) -> RenderableType:
    """A paragraph per configuration, and what the words mean."""
    versions = ", ".join(f"{name} {number}" for name, number in result.versions.items())
    parts: list[RenderableType] = [Text(f"Conformance of {result.name} ({versions})", style="bold")]
    for row in result.rows:
        parts += [Text(), *_row(row)]
    parts += [text for note in result.notes for text in (Text(), Text(note, style="dim"))]
    parts += [Text(), Text("Judge's score and KL in nats per answer, ± 95 %.", style="dim")]
    return Group(*parts)


def _row(row: Conformance) -> list[Text]:
    settings = ", ".join(f"{key} {value}" for key, value in row.settings.items())
    lines = [
        Text(f"{row.world}: {settings}", style="bold"),
        Text(f"  {row.outcome}" + (f": {row.note}" if row.note else ""), style="" if row.passed else "red"),
        Text(f"  predicted      {_point(row.predicted)}"),
        Text(f"  drift there    {_drift(row)}"),
    ]
    lines += [Text(f"  run {i} ends at  {_point(run)}") for i, run in enumerate(row.runs, start=1)]
    gap = f"  (trained: score {row.gap_reward:+.1%}, KL {row.gap_kl:+.1%})"
    return [*lines, Text(f"  tilt           {_point(row.tilt)} at beta {row.tilt_beta:.4g}{gap}")]


def _drift(row: Conformance) -> str:
    if row.implied is None:
        return f"none is due; the update at the tilt is the predicted one, p {row.drift_p:.2g}"
    return f"p {row.drift_p:.2g}, points to {_point(row.implied)}"


def _point(point: Point | None) -> str:
    if point is None:
        return "no finite optimum"
    return f"{_value(point.reward, point.reward_within)}, KL {_value(point.kl, point.kl_within)}"


def _value(value: float, within: float | None) -> str:
    return f"{value:.4g}" + (f" ± {within:.1g}" if within is not None and within > 1e-6 else "")
