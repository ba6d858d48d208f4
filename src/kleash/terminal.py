"""How a Frontier and its verdict look on a terminal: one table, then what it means in words. Fits 80 columns."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from kleash._checks import printable
from kleash.frontier import Estimates, Frontier, Gold
from kleash.window import Verdict, VerdictKind

__all__ = ["Printable", "cell_texts", "frontier_table", "page", "to_text", "verdict_text"]

WIDTH = 80
"""Columns that everything has to fit."""
_BEST, _SAFE, _YOURS, _NOTHING = "★", "●", "◆", "-"
_HEADLINE: dict[VerdictKind, tuple[str, str]] = {
    "useful-range": ("Useful range", "bold green"),
    "no-overoptimisation-seen": ("No over-optimisation seen", "bold green"),
    "no-useful-range": ("No useful range", "bold red"),
    "cannot-tell": ("Cannot tell", "bold yellow"),
}
_LONG = 6  # powers of ten from which a number no longer fits its column
_AS_MUCH, _FLOOR = ", the tightest leash that gives as much", ", where no unseen cheat costs too much"
_SURE = {"ok": "green", "weak": "yellow", "beyond": "dim"}


@dataclass(frozen=True, kw_only=True)
class _Form:
    """How the numbers of one column are printed: with how many decimals, and how wide the widest error is."""

    decimals: int
    error_width: int
    smallest: bool
    exponent: bool = False

    @classmethod
    def of(cls, estimates: Sequence[Estimates], *, smallest: bool = False) -> _Form:
        """Four digits for the largest number from 1 on, three below; ``smallest``: a tiny number shows as not 0.

        Numbers of a million and more, or all below 0.0001, have an exponent.
        """
        values = np.concatenate([np.atleast_1d(e.value) for e in estimates])
        errors = np.concatenate([np.atleast_1d(e.se) for e in estimates])
        largest = np.nanmax(np.abs(values), initial=0.0)
        magnitude = math.floor(math.log10(largest)) if largest > 0 else 0
        decimals = min(max((3 if magnitude >= 0 else 2) - magnitude, 0), 8)
        exponent = magnitude >= _LONG or magnitude < -4
        form = cls(decimals=decimals, error_width=0, smallest=smallest, exponent=exponent)
        widest = max((len(form.error(e)) for e in errors.tolist()), default=0)
        return replace(form, error_width=widest)

    def text(self, value: float) -> str:
        if math.isnan(value):
            return _NOTHING
        if self.exponent:
            return f"{value + 0.0:.3g}"
        if self.smallest and 0 < value < 0.5 * 10.0**-self.decimals:
            return f"<{10.0**-self.decimals:.{self.decimals}f}"
        shown = f"{value:.{self.decimals}f}"
        return shown.removeprefix("-") if float(shown) == 0 else shown

    def error(self, se: float) -> str:
        """Nothing where it would print as 0."""
        if self.exponent:
            return f" ± {se:.2g}" if se > 0 else ""
        return f" ± {se:.{self.decimals}f}" if se >= 0.5 * 10.0**-self.decimals else ""

    def cell(self, estimates: Estimates, row: int | tuple[()], *, interval: bool) -> str:
        value, se, lo, hi = (float(array[row]) for array in (estimates.value, estimates.se, estimates.lo, estimates.hi))
        if interval and not (math.isnan(value) or math.isnan(lo) or math.isnan(hi)) and se > 0:
            ends = (self.text(lo), self.text(hi))
            return self.text(value) + (f" [{', '.join(ends)}]" if {*ends} != {self.text(value)} else "")
        error = "" if interval else self.error(se)
        return self.text(value) + error.ljust(0 if interval else self.error_width)


def page(
    frontier: Frontier,
    verdict: Verdict,
    *,
    title: str | None = None,
    caption: Iterable[str] = (),
    story: str | None = None,
    intervals: bool = False,
    status: bool = False,
    max_rows: int | None = None,
    yours: float | None = None,
) -> RenderableType:
    """A whole answer: title, table, small print, verdict.

    ``frontier``, ``verdict``: What to show. ``title``: A line above the table. ``caption``: Sentences of small print
    below it. ``story``: A line below the verdict. ``intervals``, ``status``, ``max_rows``, ``yours``: As in
    :func:`frontier_table`.

    Returns
    -------
    What rich prints.
    """
    table = frontier_table(frontier, verdict, intervals=intervals, status=status, max_rows=max_rows, yours=yours)
    small = [*_legend(_marks(frontier, verdict, yours)), *caption]
    parts: list[RenderableType] = [Text(title, style="bold"), Text()] if title else []
    parts += [table, Text(), *(Text(line, style="dim") for line in small), Text(), verdict_text(verdict)]
    if story is not None:
        parts.append(Text(story, style="italic"))
    return Group(*parts)


def frontier_table(
    frontier: Frontier,
    verdict: Verdict | None = None,
    *,
    intervals: bool = False,
    status: bool = False,
    max_rows: int | None = None,
    yours: float | None = None,
) -> Table:
    """The table: Beta, Judge's score, True quality, KL; the reference last.

    ``frontier``: From any source. ``verdict``: Marks its best and its safe beta, where they are rows of the table.
    ``intervals``: Print the true quality with its 95 % interval instead of its standard error. ``status``: A column
    that says how sure a row is; ``beyond`` rows are dim. ``max_rows``: At most so many betas, evenly chosen, the marked
    ones among them. Default: all. ``yours``: A beta that is marked as the reader's own.

    Notes
    -----
    A number has three or four digits, by the largest of its column; a standard error that would print as 0 is left out.
    """
    marks = _marks(frontier, verdict, yours)
    table = Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0) if status else (0, 1),
        header_style="bold",
    )
    if marks:
        table.add_column("", no_wrap=True, min_width=2)
    table.add_column("Beta", justify="right", no_wrap=True)
    for name in ("Judge's score", "True quality", "KL (nats)"):
        table.add_column(name, justify="right", no_wrap=True)
    if status:
        table.add_column("Sure", no_wrap=True)
    empty = Estimates.exact(np.full(frontier.beta.shape, np.nan))
    gold = frontier.gold or Gold.of(empty, gain=empty, reference=empty[0])
    columns = [(frontier.reward, frontier.reference_reward), (gold, gold.reference), (frontier.kl, None)]
    forms = [
        _Form.of([column] if reference is None else [column, reference], smallest=column is frontier.kl)
        for column, reference in columns
    ]
    betas = _betas(frontier)
    for row in _chosen(frontier, marks, max_rows):
        cells = [
            form.cell(column, row, interval=intervals and column is gold)
            for form, (column, _) in zip(forms, columns, strict=True)
        ]
        sure = str(frontier.status[row])
        line: list[str | Text] = [Text(marks.get(row, ""), style="bold cyan")] if marks else []
        line += [betas[row], *cells]
        line += [Text(sure, style=_SURE[sure])] if status else []
        table.add_row(*line, style="bold" if row in marks else "dim" if sure == "beyond" else None)
    reference_cells = [
        "0".ljust(1 + form.error_width)
        if reference is None
        else form.cell(reference, (), interval=intervals and column is gold)
        for form, (column, reference) in zip(forms, columns, strict=True)
    ]
    table.add_section()
    name = "reference" if status or intervals else "reference, untouched"
    table.add_row(*[""] * bool(marks), name, *reference_cells, *[""] * status)
    return table


def verdict_text(verdict: Verdict) -> Text:
    """The verdict in words: what, why, where, and what would settle an open question."""
    words, style = _HEADLINE[verdict.kind]
    text = Text.assemble((words + ".", style), " ", " ".join(verdict.reasons))
    lines = []
    if verdict.best_beta is not None:
        lines.append(
            ("Best beta", _number(verdict.best_beta) + _between(verdict.best_lo, verdict.best_hi), verdict.best_kl)
        )
    if verdict.safe_beta is not None:
        lines.append(
            ("Safe beta", _number(verdict.safe_beta) + (_FLOOR if verdict.raised else _AS_MUCH), verdict.safe_kl)
        )
    for name, what, kl in lines:
        nats = "" if kl is None else f"; KL {kl:.3g} nats"
        text.append_text(Text.assemble("\n", (name, "bold"), f" {what}{nats}."))
    if verdict.loose_edge is not None:
        bad, good = verdict.loose_edge
        text.append(f"\nLooser than beta {_number(bad)} to {_number(good)}, the judge is being cheated.")
    if verdict.tight_edge is not None:
        bad, good = verdict.tight_edge
        text.append(f"\nTighter than beta {_number(good)} to {_number(bad)}, hardly anything is gained.")
    for need in verdict.needs:
        text.append(f"\nIt would take {need}.")
    return text


def to_text(renderable: object, *, width: int = WIDTH) -> str:
    """What would be printed, as plain text of at most ``width`` columns, without a line break at the end."""
    file = io.StringIO()
    console = Console(
        file=file, width=width, color_system=None, force_terminal=False, legacy_windows=False, markup=False, emoji=False
    )
    with_marks = console.render_lines(Printable(renderable), pad=False)
    lines = ["".join(segment.text for segment in line).rstrip() for line in with_marks]
    return "\n".join(lines)


class Printable:
    """Anything that rich prints, none of whose characters steer the terminal."""

    def __init__(self, renderable: object) -> None:
        self.renderable = renderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        """Its pieces, with what is not printable shown as a sign."""
        for segment in console.render(self.renderable, options):  # type: ignore[arg-type]
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


def _marks(frontier: Frontier, verdict: Verdict | None, yours: float | None = None) -> dict[int, str]:
    """Row -> its marks."""
    marks: dict[int, str] = {}
    marked = [] if verdict is None else [(verdict.best_beta, _BEST), (verdict.safe_beta, _SAFE)]
    for beta, mark in [*marked, (yours, _YOURS)]:
        for row in np.flatnonzero(frontier.beta == beta).tolist() if beta is not None else []:
            marks[row] = marks.get(row, "") + mark
    return marks


def _legend(marks: dict[int, str]) -> list[str]:
    shown = "".join(marks.values())
    words = {
        _BEST: f"{_BEST} best true quality",
        _SAFE: f"{_SAFE} safe: as good, on the tightest leash",
        _YOURS: f"{_YOURS} yours today",
    }
    line = "   ".join(words[mark] for mark in words if mark in shown)
    return [line] if line else []


def _chosen(frontier: Frontier, marks: dict[int, str], max_rows: int | None) -> list[int]:
    size = frontier.beta.size
    if max_rows is None or size <= max_rows:
        return list(range(size))
    spread = np.linspace(0, size - 1, max(max_rows - len(marks), 2)).round().astype(int).tolist()
    return sorted({*spread, *marks})


def _betas(frontier: Frontier) -> list[str]:
    """Betas with as few digits as keep them apart."""
    for digits in (3, 4, 6, 9):
        shown = [_number(beta, digits) for beta in frontier.beta.tolist()]
        if len(set(shown)) == len(shown):
            return shown
    return [repr(beta) for beta in frontier.beta.tolist()]


def _number(value: float, digits: int = 3) -> str:
    """So many digits, without an exponent where a person would not write one."""
    short = float(f"{value:.{digits}g}")
    plain = short == 0 or 1e-4 <= short < 1e6
    return np.format_float_positional(short, trim="-") if plain else f"{short:g}"


def _between(lo: float | None, hi: float | None) -> str:
    if lo is None and hi is None:
        return ""
    if lo is None:
        return f" (at most {_number(hi)})" if hi is not None else ""
    return f" (at least {_number(lo)})" if hi is None else f" (between {_number(lo)} and {_number(hi)})"


def cell_texts(frontier: Frontier) -> dict[str, list[str]]:
    """The table's numbers as text with the digits of :func:`frontier_table`, the reference last.

    Columns ``beta``, and for each of ``reward``, ``gold``, ``kl`` the value (empty where it does not exist),
    ``_error`` (plus or minus the standard error, empty where it would print as 0) and ``_interval`` (empty where its
    ends print alike).
    """
    empty = Estimates.exact(np.full(frontier.beta.shape, np.nan))
    gold = frontier.gold or Gold.of(empty, gain=empty, reference=Estimates.exact(np.nan))
    columns: dict[str, list[str]] = {"beta": [*_betas(frontier), "reference"]}
    for name, rows, reference in (
        ("reward", frontier.reward, frontier.reference_reward),
        ("gold", gold, gold.reference),
        ("kl", frontier.kl, Estimates.exact(0.0)),
    ):
        form = _Form.of([rows, reference], smallest=name == "kl")
        cells = [*(rows[i] for i in range(frontier.beta.size)), reference]
        columns[name] = ["" if np.isnan(cell.value) else form.text(float(cell.value)) for cell in cells]
        columns[name + "_error"] = [form.error(float(cell.se)) for cell in cells]
        columns[name + "_interval"] = [
            ""
            if np.isnan(cell.lo) or np.isnan(cell.hi) or form.text(float(cell.lo)) == form.text(float(cell.hi))
            else f"{form.text(float(cell.lo))} to {form.text(float(cell.hi))}"
            for cell in cells
        ]
    return columns
