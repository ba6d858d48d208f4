"""Several runs, one table: a Frontier from logs, and whether the KL falls as the coefficient rises (SWEEP)."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from kleash.audit.engine import Need, check, run_checks
from kleash.audit.findings import Evidence, Finding, about, number
from kleash.audit.logs.coefficient import facts_of_coefficient
from kleash.audit.logs.needs import KL
from kleash.audit.logs.placement import placed
from kleash.audit.logs.view import LogView, Series
from kleash.frontier import Estimates, Frontier, Gold
from kleash.trainers import TABLE

if TYPE_CHECKING:
    pass

__all__ = ["frontier_of", "known_beta", "monotone", "sweeps"]

SHARE = 0.2
"""Share of the rows at the end of a run that its row of the table averages."""


def known_beta(view: LogView) -> float | None:
    """The one coefficient of a run: 0 where there is no penalty, None where it is unknown or moved."""
    facts = facts_of_coefficient(view)
    if facts is None:
        return 0.0 if placed(view).where == "none" and view.trainer is not TABLE else None
    values = view.coefficient.values
    if values.size and np.ptp(values) > 0.01 * abs(float(values[0])):
        return None
    if facts["from"] not in ("logged",) and view.settings.beta is not None and isinstance(facts["lo"], float):
        low, high = float(facts["lo"]), float(str(facts["hi"]))
        if low <= view.settings.beta <= high:
            return view.settings.beta  # the stated one, which the log confirms
    if values.size:
        return float(values[0])
    value = float(str(facts["value"]))
    return float(f"{value:.2g}") if facts["lo"] != facts["hi"] and value > 0 else value


def _end(x: Series) -> tuple[float, float]:
    if not x.size:
        return math.nan, math.nan
    last = x.window(1 - SHARE, 1.0)
    error = x.noise() / math.sqrt(last.size) if x.size > 2 else math.nan
    return float(last.mean()), error


def _until(x: Series, step: float) -> Series:
    """The rows up to a step: runs of unlike length are compared where the shorter one ends."""
    keep = x.step <= step
    return Series(rows=x.rows[keep], step=x.step[keep], segment=x.segment[keep], values=x.values[keep])


def _start(x: Series) -> tuple[float, float]:
    return (float(x.values[0]), x.noise() if x.size > 2 else math.nan) if x.size else (math.nan, math.nan)


def frontier_of(views: list[LogView]) -> Frontier | None:
    """The Frontier of runs that differ in their coefficient; None with fewer than two coefficients known.

    Notes
    -----
    A row is the mean over the last fifth of a run, and over the runs of one coefficient; its standard error the larger
    of the rows' noise and the spread over runs. KL is in nats per answer, null where the log has no length. The
    reference is the first row of the runs: the policy before it moved. ``beta`` is the trainer's own coefficient, not
    the tilt's; rows are ``weak``, for nobody knows whether a run had converged.
    """
    usable = [(b, v) for v in views if (b := known_beta(v)) is not None and b >= 0 and v.reward.size]
    betas = sorted({b for b, _ in usable})
    if len(betas) < 2:
        return None
    columns: dict[str, list[tuple[float, float]]] = {"reward": [], "kl": [], "gold": [], "gold_gain": []}
    counts = []
    starts = _pool([_start(v.reward) for _, v in usable])
    gold_start = _pool([_start(v.gold) for _, v in usable])
    for beta in betas:
        mine = [v for b, v in usable if b == beta]
        counts.append(len(mine))
        columns["reward"].append(_pool([_end(v.reward) for v in mine]))
        columns["kl"].append(_pool([_end(v.per_answer) for v in mine]))
        columns["gold"].append(_pool([_end(v.gold) for v in mine]))
        gains = [(_end(v.gold)[0] - _start(v.gold)[0], math.hypot(_end(v.gold)[1], _start(v.gold)[1])) for v in mine]
        columns["gold_gain"].append(_pool(gains))
    estimates = {name: _estimates(rows) for name, rows in columns.items()}
    gold = Gold.of(estimates["gold"], gain=estimates["gold_gain"], reference=_estimates([gold_start])[0])
    trainers = sorted({v.trainer.name for _, v in usable})
    return Frontier(
        source="log",
        beta=np.array(betas),
        reward=estimates["reward"],
        kl=estimates["kl"],
        gold=gold if any(v.gold.size for _, v in usable) else None,
        reference_reward=_estimates([starts])[0],
        n=np.array(counts),
        status=np.full(len(betas), "weak"),
        provenance={
            "trainers": trainers,
            "runs": [{"path": v.log.path, "run": v.log.run, "beta": b} for b, v in usable],
            "notes": ["beta is the trainer's coefficient, not the tilt's", "means over the last fifth of each run"]
            + (["more than one trainer: their coefficients do not mean the same"] if len(trainers) > 1 else []),
        },
    )


def _pool(rows: list[tuple[float, float]]) -> tuple[float, float]:
    """Mean over runs; the larger of noise and spread as its error."""
    known = [(x, s) for x, s in rows if math.isfinite(x)]
    if not known:
        return math.nan, math.nan
    x, s = np.array(known).T
    n = x.size
    inside = float(np.sqrt(np.square(s).sum()) / n) if np.isfinite(s).all() else math.nan
    between = float(x.std(ddof=1) / math.sqrt(n)) if n > 1 else 0.0
    return float(x.mean()), max(inside, between) if math.isfinite(inside) else between if n > 1 else math.nan


def _estimates(rows: list[tuple[float, float]]) -> Estimates:
    value, se = (np.array(column, dtype=np.float64) for column in zip(*rows, strict=True))
    return Estimates(value=value, se=se, lo=value - 1.96 * se, hi=value + 1.96 * se)


def sweeps(views: list[LogView]) -> list[Finding]:
    """SWEEP of the runs of each trainer, where two of them differ in a coefficient that is known."""
    found: list[Finding] = []
    for trainer in sorted({v.trainer.name for v in views}):
        runs = [(b, v) for v in views if v.trainer.name == trainer and (b := known_beta(v)) is not None]
        runs.sort(key=lambda run: run[0])
        answers = run_checks((monotone,), [run for run in runs if run[1].kl_series.size])
        found += [answer for answer in answers if answer.status != "not-run"]
    return found


RUNS: Need[list[tuple[float, LogView]]] = Need(
    words="two runs of one trainer with known coefficients", met=lambda runs: len({beta for beta, _ in runs}) > 1
)
ONE_KL: Need[list[tuple[float, LogView]]] = Need(
    words=KL.words, met=lambda runs: len({v.kl.spec.unit for _, v in runs if v.kl is not None}) == 1
)


@check("SWEEP", ONE_KL, RUNS, problem="it rises by half and four times its noise, up to the shorter run's last step")
def monotone(runs: list[tuple[float, LogView]], level: float) -> Finding:
    """Does the KL fall as the coefficient rises?

    One finding about the runs of a trainer, on the run that stands out. The larger coefficient is 1.5 times the other
    or more. ``cannot-tell``: the judge's score is the same at every coefficient.
    """
    ends = [_end(v.kl_series) for _, v in runs]
    table = [{"beta": b, "kl": k, "kl_se": s} for (b, _), (k, s) in zip(runs, ends, strict=True)]
    rewards = [_end(v.reward) for _, v in runs]
    evidence = Evidence(rows=table, rewards=[r for r, _ in rewards])
    worst = _risen(runs)
    if worst is not None:
        found = evidence.problem(
            f"the KL rises with the coefficient: {worst[1]}",
            "the penalty has no pull, or the wrong one (k1 in the loss, a wrong sign)",
            "the runs differ in more than the coefficient",
            fix="see GRADIENT and SIGN; run two coefficients that differ in nothing else",
        )
        return about(found, worst[0].label)
    last = runs[-1][1].label
    values = [r for r, s in rewards if math.isfinite(r)]
    noise = max((s for _, s in rewards if math.isfinite(s)), default=0.0)
    text = "KL " + ", ".join(f"{number(k)} at {number(b)}" for (b, _), (k, _) in zip(runs, ends, strict=True))
    if values and np.ptp(values) <= 2 * noise + 1e-12:
        found = evidence.cannot_tell(
            f"{text}; the judge's score is the same at every coefficient: the sweep shows nothing about it",
            fix="a harder task, or larger coefficients",
        )
        return about(found, last)
    return about(evidence.ok(f"{text}: it falls"), last)


def _risen(runs: list[tuple[float, LogView]]) -> tuple[LogView, str] | None:
    """The last run with a larger coefficient and a larger KL than the one before it, and both in words."""
    worst = None
    for (b0, before), (b1, after) in pairwise(runs):
        last = min(float(v.kl_series.step.max()) for v in (before, after))
        (k0, s0), (k1, s1) = (_end(_until(v.kl_series, last)) for v in (before, after))
        noise = math.hypot(s0, s1)
        if b1 >= 1.5 * b0 and k1 > 1.5 * k0 and k1 - k0 > 4 * noise and math.isfinite(noise):
            worst = (after, f"KL {number(k0)} at {number(b0)}, {number(k1)} at {number(b1)}")
    return worst
