"""The tables and bars of the calibration bench."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np
from calibration_worlds import Case
from numpy.typing import NDArray

Floats = NDArray[np.float64]

EDGES = (0.0, 0.1, 0.3, 0.6, 1.0, np.inf)
"""Bands of the true KL, as a share of the reach; the last lies past it."""
QUANTITIES = ("reward", "gold", "gain", "KL")
FEWEST = 30
"""Draws with ``ok`` rows in a band from which on it has a bar: rows of one draw move together."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Result:
    """One draw: per beta its share of the reach, status and whether four truths lie inside; and its verdict."""

    case: int
    index: int
    shows: bool
    rows: Floats
    verdict: dict[str, float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bar:
    """A measured percentage and what it must reach, or not exceed; ``error`` is that of its draws."""

    name: str
    value: float
    limit: float
    at_least: bool = True
    error: float = 0.0

    @property
    def met(self) -> bool:
        """Whether it is met, up to two standard errors of the draws."""
        away = self.limit - self.value if self.at_least else self.value - self.limit
        return away <= 2 * self.error

    def __str__(self) -> str:
        sign, word = (">=" if self.at_least else "<="), ("ok" if self.met else "MISSED")
        error = f" +- {self.error:.1f}" if self.error else ""
        return f"  {self.name:66s} {self.value:5.1f}{error} {sign} {self.limit:4.1f}  {word}"


def report(cases: Sequence[Case], results: Sequence[Result]) -> bool:
    """Print the tables; True if every bar is met."""
    by_case = {number: [r for r in results if r.case == number] for number in {r.case for r in results}}
    bars = coverage(cases, by_case) + safety(cases, by_case) + verdicts(cases, by_case)
    missed = [bar for bar in bars if not bar.met]
    print("\nBars (those over all families, of the safe beta and the verdicts, and any that is missed)")
    for bar in bars:
        if not bar.met or "coverage" not in bar.name or "over all" in bar.name:
            print(bar)
    print(f"{len(bars) - len(missed)} of {len(bars)} bars met")
    return not missed


def coverage(cases: Sequence[Case], by_case: dict[int, list[Result]]) -> list[Bar]:
    """Coverage of ``ok`` rows by family and share of the reach, printed; and its bars."""
    print("\nCoverage of the 95 % intervals of reward, gold, gain, KL at ok rows, in %, and how many rows are ok")
    names = [f"{lo:g} to {hi:g}" for lo, hi in itertools.pairwise(EDGES[:-1])] + ["past the reach"]
    print(f"{'family':31s}   K | {'all':21s}" + "".join(f" | {name:21s}" for name in names))
    bars, everything = [], []
    for number, results in sorted(by_case.items()):
        judged = [r.rows for r in results if r.shows]
        if not judged:
            continue
        rows = np.concatenate(judged)
        draws = np.repeat(np.arange(len(judged)), [len(r) for r in judged])
        ok = rows[:, 1] == 0
        everything.append(rows[ok])
        title = f"{cases[number].family}, K {cases[number].size}"
        bands = np.digitize(rows[:, 0], EDGES[1:-1])
        cells = [_cell(rows, ok)] + [_cell(rows, ok & (bands == band)) for band in range(len(EDGES) - 1)]
        closed = ok.sum() < 0.01 * ok.size
        print(f"{cases[number].family:31s} {cases[number].size:>4s}|{'*' if closed else ' '}" + " | ".join(cells))
        if closed:
            continue
        for band in [None, *range(len(EDGES) - 2)]:
            here = ok if band is None else ok & (bands == band)
            where = "" if band is None else f", {names[band]} of the reach"
            bars += _covered(title + where, rows[here], draws[here])
    print("* fewer than 1 row in 100 is ok: the family is refused at this size, there is no coverage to speak of")
    together = np.concatenate(everything)
    return bars + [
        Bar(name=f"coverage of {what} over all families", value=100 * float(together[:, 2 + q].mean()), limit=92.0)
        for q, what in enumerate(QUANTITIES)
    ]


def _cell(rows: Floats, here: NDArray[np.bool_]) -> str:
    if not here.any():
        return "  -   -   -   -      0"
    return " ".join(f"{100 * rows[here, 2 + q].mean():3.0f}" for q in range(4)) + f" {here.sum():6d}"


def _covered(name: str, rows: Floats, draws: NDArray[np.int64]) -> list[Bar]:
    """The bars of a band, each with the error that comes from its draws (rows of one draw move together)."""
    groups, counts = np.unique(draws, return_counts=True)
    if groups.size < FEWEST:
        return []
    bars = []
    for q, what in enumerate(QUANTITIES):
        mean = float(rows[:, 2 + q].mean())
        sums = np.bincount(draws, rows[:, 2 + q] - mean)
        error = 100 * float(np.sqrt((sums**2).sum())) / counts.sum()
        bars.append(Bar(name=f"coverage of {what}, {name}", value=100 * mean, limit=88.0, error=error))
    return bars


def safety(cases: Sequence[Case], by_case: dict[int, list[Result]]) -> list[Bar]:
    """What the safe beta is worth in truth, printed; and its bars."""
    print("\nSafe beta: draws, given, true gain negative, mean share of the best gain; verdicts in %: useful range /")
    print("no over-optimisation seen / no useful range / cannot tell; breakdown score below the top, in % of given")
    bars = []
    for number, results in sorted(by_case.items()):
        case = cases[number]
        column = {name: np.array([r.verdict[name] for r in results]) for name in results[0].verdict}
        shows = np.array([r.shows for r in results])
        gain, broken = column["gain"], column["broken"].astype(bool)
        given = np.isfinite(gain)
        negative = given & (gain < 0)
        share = float(np.mean(gain[given] / column["best"][given])) if given.any() else np.nan
        kinds = " ".join(f"{100 * np.mean(column['kind'] == kind):3.0f}" for kind in range(4))
        told = f"{100 * broken[given].mean():4.0f}" if given.any() else "   -"
        print(
            f"{case.family:31s} {case.size:>4s}| {len(results):4d} {given.sum():4d} {negative.sum():4d} {share:6.2f}"
            f" | {kinds} | {told}"
        )
        beyond_words = case.kind and " SD" in case.family and not case.stated
        judged = given & (shows | ~broken) if beyond_words else given
        if judged.sum() >= FEWEST:
            rate, of = 100 * float(negative[judged].mean()), f"of {judged.sum()}"
            error = 100 * float(np.sqrt(0.05 * 0.95 / judged.sum()))
            name = f"true gain at safe beta negative, {case.family}, K {case.size} ({of})"
            bars.append(Bar(name=name, value=rate, limit=5.0, at_least=False, error=error))
        if case.family == "light":
            worth = column["worth"].astype(bool)
            name = f"safe beta given where there is a gain, light, K {case.size}"
            bars.append(Bar(name=name, value=100 * float(given[worth].mean()), limit=60.0))
            if case.size == "24":
                bars.append(Bar(name="share of the best gain at safe beta, light, K 24", value=100 * share, limit=50.0))
    return bars


def verdicts(cases: Sequence[Case], by_case: dict[int, list[Result]]) -> list[Bar]:
    """Bars of the verdicts where the right one is known."""

    def share(families: set[str], kind: int, *, only: str | None = None) -> tuple[float, int] | None:
        chosen = [r.verdict for n, some in by_case.items() if cases[n].family in families for r in some]
        chosen = [v for v in chosen if only is None or v[only]]
        return (100 * float(np.mean([v["kind"] == kind for v in chosen])), len(chosen)) if chosen else None

    asked = (
        ("false 'useful range', gold unrelated or opposed", share({"gold-unrelated", "gold-opposed"}, 0), 5.0, False),
        ("'no useful range', strongly opposed", share({"gold-opposed"}, 2, only="opposed"), 80.0, True),
        ("'useful range', strong interior peak", share({"gold-peak"}, 0, only="peak"), 80.0, True),
        ("'no useful range', gold seldom right", share({"seldom right"}, 2), 5.0, False),
    )
    return [
        Bar(name=f"{name} ({found[1]})", value=found[0], limit=limit, at_least=at_least)
        for name, found, limit, at_least in asked
        if found is not None
    ]
