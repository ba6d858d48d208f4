"""More, by number: how far more answers would reach, and how wide intervals would be with more prompts or labels."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from kleash.forecasting.gate import MATERIAL, OK_DRIFT
from kleash.forecasting.missed import MOVED, missed_shift
from kleash.forecasting.reweight import Labels, Reweighted
from kleash.forecasting.unseen import Unseen
from kleash.frontier import Frontier
from kleash.samples import Samples
from kleash.window import SEEN_KL, Verdict

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

__all__ = ["Plan", "Reach", "Width", "plan_of", "with_numbers"]

Floats = NDArray[np.float64]

_TIMES = (1, 2, 4, 8, 16)
_MOST = 1e9  # of anything: more is no plan


@dataclass(frozen=True, kw_only=True)
class Reach:
    """With so many answers to each prompt: the loosest beta whose row would be ``ok``, and its KL in nats."""

    answers: int
    beta: float | None
    kl: float | None


@dataclass(frozen=True, kw_only=True)
class Width:
    """Half-width of the gain's 95 % interval with so many prompts, answers to each, and labels in all."""

    prompts: int
    answers: int
    labels: int
    half_width: float


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What more would tell, from the spread seen.

    ``beta`` is where widths are worked out, ``gain`` and ``half_width`` what is known there now. A half-width of
    ``target`` would decide: the gain, if it is as estimated, would be shown, or shown to be below the tolerance.
    ``prompts`` (as now, with as many answers and the same share of labels) or ``labels`` (on these answers) would give
    it; None where none would, or it is decided. ``answers`` (to each prompt) would make a row ``ok`` that is far enough
    from the reference to tell, and ``all_answers`` would bring a cheat nobody has seen below the tolerance where a gain
    is shown.
    """

    beta: float | None = None
    gain: float | None = None
    half_width: float | None = None
    target: float | None = None
    prompts: int | None = None
    labels: int | None = None
    answers: int | None = None
    all_answers: int | None = None
    reach: tuple[Reach, ...] = ()
    widths: tuple[Width, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready plain data."""
        return dataclasses.asdict(self)

    def __rich__(self) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        reach = [(f"{row.answers:,}", _digits(row.beta), _digits(row.kl)) for row in self.reach]
        parts: list[RenderableType] = [Text("Reach, by answers to each prompt", style="bold")]
        parts.append(_table(("Answers", "Loosest sure beta", "KL (nats)"), reach))
        if self.widths:
            where = f"Width of the gain at beta {self.beta:.3g}, where it is {self.gain:.3g} now"
            rows = [(f"{w.prompts:,}", f"{w.answers:,}", f"{w.labels:,}", f"± {w.half_width:.2g}") for w in self.widths]
            parts += [Text(), Text(where, style="bold")]
            parts.append(_table(("Prompts", "Answers to each", "Labels in all", "95 %"), rows))
        if self.target is not None:
            parts += [Text(), Text(f"± {self.target:.2g} would decide.")]
        return Group(*parts)


def _digits(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(*head, box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for column in table.columns:
        column.justify, column.no_wrap = "right", True
    for row in rows:
        table.add_row(*row)
    return table


@dataclass(frozen=True, kw_only=True)
class _Spread:
    """The interval of the gain at one beta, in parts.

    ``between`` and ``within`` are the variances of a prompt's gain over prompts and over its own answers or labels,
    ``bias`` the part of the half-width that stands for the drift, ``half`` all of it.
    """

    between: float
    within: float
    bias: float
    half: float
    n_prompts: int

    def at(self, *, prompts: float, labels: float) -> float:
        """Half-width at so many times the prompts, and the labels of each."""
        before, after = self.n_prompts, self.n_prompts * prompts
        variance = self.between + self.within / labels
        whole = max(self.between + self.within, np.finfo(float).tiny)
        student = stdtrit(max(after - 1, 1), 0.975) / stdtrit(max(before - 1, 1), 0.975)
        return float(
            (self.half - self.bias) * student * math.sqrt(variance / whole / prompts) + self.bias / math.sqrt(labels)
        )


def plan_of(
    samples: Samples,
    labels: Labels | None,
    table: Reweighted,
    frontier: Frontier,
    verdict: Verdict,
    unseen: Unseen | None,
    tolerance: float,
    reward_max: float | None,
) -> Plan:
    """What more prompts, answers or labels would tell.

    Parameters
    ----------
    samples, labels, table
        Of a forecast of the tilt from the reference's answers.
    frontier, verdict, unseen
        What came of them.
    tolerance
        Gold units without practical weight.
    reward_max
        The top of the judge's scale, where it is known.

    Returns
    -------
    Plan

    Notes
    -----
    A row is ``ok`` with K answers where its KL is at most log(K / 2) / 2 and its drift, which falls as 1 / K, at most
    one standard error, as is what answers that some prompts happen not to show would move it by. The variance of the
    mean over P prompts is (between + within) / P: ``within``, over a prompt's own answers, is what pairs of halves
    show, and falls as 1 / labels; ``between`` is the rest of what is seen over prompts. What the interval has for drift
    falls as a root of the labels and is taken not to fall with the prompts. In ``bench/plan_widths.py`` 14 of 15
    half-widths of as many prompts and labels came out within 15 % of these; one, of gold that turns over, 26 % off.
    """
    k = float(np.median(samples.counts))
    needed = _answers_needed(samples, labels, table, frontier, reward_max)
    reach = tuple(_reach(frontier, needed, table.value[1].mean(axis=0), round(k * times)) for times in _TIMES)
    told = Plan(reach=reach)
    if verdict.kind == "cannot-tell":
        far = np.where(table.value[1].mean(axis=0) >= SEEN_KL, needed, np.inf)
        fewest = float(far.min())
        told = dataclasses.replace(told, answers=math.ceil(fewest) if k < fewest < _MOST else None)
    if labels is None or frontier.gold is None or not frontier.usable.any():
        return told
    row = _row(frontier, verdict)
    if not np.isfinite([frontier.gold.gain.lo[row], frontier.gold.gain.hi[row]]).all():
        return told  # labels on a single prompt tell nothing of the next
    spread = _spread(labels, table, frontier, row)
    gain = float(frontier.gold.gain.value[row])
    share = samples.n_gold / samples.n_samples
    told = dataclasses.replace(
        told,
        beta=float(frontier.beta[row]),
        gain=gain,
        half_width=spread.half,
        widths=_widths(samples, spread, share),
        all_answers=_all_answers(samples, frontier, verdict, unseen, tolerance),
    )
    if verdict.kind != "cannot-tell":
        return told
    target = max(gain, tolerance - gain)
    if target >= spread.half:  # what is missing is reach
        return told
    prompts = _times(lambda x: spread.at(prompts=x, labels=1), target)
    more = _times(lambda x: spread.at(prompts=1, labels=x), target) if share < 1 else None
    return dataclasses.replace(
        told,
        target=target,
        prompts=None if prompts is None else math.ceil(samples.n_prompts * prompts),
        labels=None if more is None or more * share > 1 else math.ceil(samples.n_gold * more),
    )


def with_numbers(verdict: Verdict, plan: Plan | None, samples: Samples) -> Verdict:
    """The verdict whose needs say how many, where that can be said."""
    if plan is None:
        return verdict
    return dataclasses.replace(verdict, needs=tuple(_numbered(need, plan, samples) for need in verdict.needs))


def _numbered(need: str, plan: Plan, samples: Samples) -> str:
    if need == "more answers to each prompt" and plan.answers is not None:
        return f"about {plan.answers:,} answers to each prompt, where there are {np.median(samples.counts):.0f}"
    if need.startswith("more answers in all") and plan.all_answers is not None:
        return need.replace("more answers in all", f"about {plan.all_answers:,} answers in all")
    if need == "more prompts or gold labels" and (plan.prompts or plan.labels):
        more = [f"about {plan.prompts:,} prompts, where there are {samples.n_prompts:,}"] if plan.prompts else []
        if plan.labels:
            more.append(f"about {plan.labels:,} gold labels on these answers, where there are {samples.n_gold:,}")
        return " or ".join(more)
    return need


def _answers_needed(
    samples: Samples, labels: Labels | None, table: Reweighted, frontier: Frontier, reward_max: float | None
) -> Floats:
    """Answers to each prompt from which each row and all tighter ones would be ``ok``, (B,); infinite where never.

    Rows that are ``ok`` need no more than there are, and rows looser than these more.
    """
    k = float(np.median(samples.counts))
    change = table.value.mean(axis=1)
    change[[0, 2]] -= table.reference.mean(axis=1)[:, None]
    se = table.value.std(axis=1, ddof=1) / math.sqrt(samples.n_prompts)
    scale = np.fmax(se, MATERIAL * np.abs(change))
    estimates = {"reward": frontier.reward, "kl": frontier.kl}
    if frontier.gold is not None:
        estimates |= {"gold": frontier.gold, "gain": frontier.gold.gain}
    missed = missed_shift(samples, labels, table, frontier.beta, estimates, reward_max=reward_max)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        shares = np.abs(table.drift) / scale  # 0 / 0 where nothing moves
        drift = np.where(np.isnan(shares), 0.0, shares).max(axis=0)
        needed = np.fmax(k * np.fmax(drift / OK_DRIFT, missed / MOVED), 2 * np.exp(2 * change[1]))
    needed = np.where(change[1] > 0, needed, np.inf)
    sure = np.flatnonzero(frontier.status == "ok")
    first = int(sure[0]) if sure.size else frontier.beta.size
    needed[first:] = np.where(frontier.status[first:] == "ok", np.fmin(needed[first:], k), needed[first:])
    needed[:first] = np.maximum.accumulate(np.fmax(needed[:first], np.nextafter(k, np.inf))[::-1])[::-1]
    return np.asarray(needed)


def _reach(frontier: Frontier, needed: Floats, kl: Floats, answers: int) -> Reach:
    """The loosest row that so many answers would make ``ok``."""
    enough = np.flatnonzero(needed <= answers)
    if not enough.size:
        return Reach(answers=answers, beta=None, kl=None)
    return Reach(answers=answers, beta=float(frontier.beta[enough[0]]), kl=float(kl[enough[0]]))


def _row(frontier: Frontier, verdict: Verdict) -> int:
    """Where the question is: the safe beta, the best one, or the row whose gain may be largest."""
    assert frontier.gold is not None
    beta = verdict.safe_beta or verdict.best_beta
    if beta is not None:
        return int(np.argmin(np.where(frontier.usable, np.abs(frontier.beta - beta), np.inf)))
    advises = frontier.status == "ok" if (frontier.status == "ok").any() else frontier.usable
    most = np.where(advises & ~np.isnan(frontier.gold.gain.hi), frontier.gold.gain.hi, -np.inf)
    return int(np.argmax(most))


def _spread(labels: Labels, table: Reweighted, frontier: Frontier, row: int) -> _Spread:
    assert frontier.gold is not None
    gain = (table.value[2, :, row] - table.reference[1])[labels.known]
    n = gain.size
    whole = float(gain.var(ddof=1)) if n > 1 else 0.0
    within = min(float(table.noise[3, min(row, table.noise.shape[1] - 1)]) / n, whole)
    half = float(frontier.gold.gain.hi[row] - frontier.gold.gain.lo[row]) / 2
    bias = min(float(table.left[2, row]), half)
    return _Spread(between=whole - within, within=within, bias=bias, half=half, n_prompts=n)


def _widths(samples: Samples, spread: _Spread, share: float) -> tuple[Width, ...]:
    """Half-widths with more prompts, then with more labels on the answers there are."""
    k = round(float(np.median(samples.counts)))
    rows = [(times, 1.0) for times in _TIMES]
    rows += [(1, min(float(times), 1 / share)) for times in _TIMES[1:] if share * times / 2 < 1]
    return tuple(
        Width(
            prompts=round(samples.n_prompts * prompts),
            answers=k,
            labels=round(samples.n_gold * prompts * more),
            half_width=spread.at(prompts=prompts, labels=more),
        )
        for prompts, more in rows
    )


def _all_answers(
    samples: Samples, frontier: Frontier, verdict: Verdict, unseen: Unseen | None, tolerance: float
) -> int | None:
    """Answers in all that bring an unseen cheat's cost below the tolerance where a gain is shown: it falls as 1 / N."""
    if unseen is None or verdict.safe_beta is not None or frontier.gold is None or tolerance <= 0:
        return None
    shown = np.flatnonzero((frontier.gold.gain.lo > 0) & (frontier.status == "ok"))
    loss = float(unseen.loss[shown[-1]]) if shown.size else 0.0
    return math.ceil(samples.n_samples * loss / tolerance) if tolerance < loss < _MOST * tolerance else None


def _times(half_width: Callable[[float], float], target: float) -> float | None:
    """The factor from which on a falling half-width is at most the target; None where it never is."""
    if target <= 0 or half_width(_MOST) > target:
        return None
    low, high = 0.0, math.log(_MOST)
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if half_width(math.exp(middle)) <= target else (middle, high)
    return math.exp(high)
