"""How the result of a conformance run looks on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

if TYPE_CHECKING:
    from kleash.trials.conformance import ConformanceResult
    from kleash.trials.loss_conformance import LossConformance
    from kleash.trials.verdicts import Conformance, Point

__all__ = ["conformance_table", "loss_table"]


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


def loss_table(result: LossConformance) -> RenderableType:
    """What a loss does with its leash, a sentence a line, and its fixed points."""
    from rich.table import Table

    head = f"{result.name}, beta {result.beta:.4g}, groups of {result.group_size}"
    pull = "pulls back" if result.pulls_back else "does not pull back"
    tied = {"neither": "tied to nothing"}.get(result.to, f"tied to the {result.to}")
    lines = [Text(head, style="bold"), Text(f"  leash     {pull}, {tied}"), Text(f"  gradient  {result.gradient}")]
    if result.unbiased is not None:
        said = "no" if result.unbiased else "yes: a larger group has another mean update"
        lines.append(Text(f"  biased by the size of its groups  {said}"))
    lines.append(Text(f"  clipping  {result.clipping}"))
    for fault in result.faults:
        lines += [Text(f"✗ {fault.code}: {fault.message}", style="red"), Text(f"  do: {fault.fix}")]
    if not result.faults:
        lines.append(Text("✓ no fault found of the nine that are looked for"))
    if not result.variants:
        return Group(*lines)
    table = Table(box=None, pad_edge=False)
    table.add_column("where it comes to rest")
    for name in ("score", "KL", "tilt's beta", "apart"):
        table.add_column(name, justify="right")
    for v in result.variants:
        cells = ["" if x is None else f"{x:.4g}" for x in (v.reward, v.kl, v.tilt_beta)]
        table.add_row(v.name, *(cells if v.reward is not None else ["not found", "", ""]), _apart(v.apart, v.kink))
    small = (
        "KL in nats per answer. The tilt's beta is that of the optimum of reward - beta KL next to it; apart is how far"
    )
    small += " the two are in probability."
    if any(v.kink for v in result.variants):
        small += " ~: the mean update jumps there, so to about .003."
    return Group(*lines, Text(), table, Text(small, style="dim"))


def _apart(value: float | None, kink: bool) -> str:
    return "" if value is None else "~" if kink and value < 0.003 else "0" if value < 1e-6 else f"{value:.2g}"
