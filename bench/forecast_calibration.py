"""How far a forecast's error bars, statuses and verdicts can be trusted: random worlds in which the truth is exact.

Every family of ``kleash.random_world`` gives worlds of 100 prompts x 300 answers. From each world, prompts are drawn
with replacement and K reference answers to each, a forecast is made, and its 95 % intervals are held against the exact
tilt of the whole world. Run with ``python bench/forecast_calibration.py [--worlds 300] [--jobs 2] [--quick]``.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import get_args

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from kleash import Samples, forecast, random_world
from kleash.tilt import moments
from kleash.worlds import Family

FAMILIES: tuple[Family, ...] = get_args(Family)
SAMPLES = (8, 24, 64)
PROMPTS = (30, 100)
LIGHT: tuple[Family, ...] = ("light", "mixed-prompts", "gold-unrelated", "gold-opposed", "gold-peak")
"""Families with normal scores within each prompt."""
N_BETAS = 24
COLUMNS = ("family", "world", "K", "P", "kl", "status", "in_reward", "in_gold", "in_kl")
STRONG = 0.05
"""A gain or loss of gold that matters: 5 % of its range, the default tolerance."""


def run_world(family: Family, index: int) -> tuple[list[tuple[float, ...]], list[tuple[float, ...]]]:
    """Forecasts of one world at every size: a row per beta, and a row per verdict."""
    rng = np.random.default_rng([index, FAMILIES.index(family), 20_250])
    world = random_world(family, rng=rng, n_prompts=100, n_answers=300)
    reference = moments(world, np.inf)
    spread = np.sqrt(reference.reward_variance[0])
    beta = np.sort(spread / np.geomspace(0.03, 5.0, N_BETAS))
    truth = moments(world, beta)
    true_gain = truth.gold - reference.gold[0]
    best = int(np.argmax(true_gain))
    opposed = float(np.interp(0.2, truth.kl[::-1], true_gain[::-1])) <= -STRONG
    rows, verdicts = [], []
    for n_samples in SAMPLES:
        for n_prompts in PROMPTS:
            prompt, answer = world.sample(n_prompts, n_samples, rng=rng)
            samples = Samples.from_arrays(
                np.repeat(np.arange(n_prompts), n_samples),
                world.reward[prompt[:, None], answer].ravel(),
                gold=world.gold[prompt[:, None], answer].ravel(),
            )
            result = forecast(samples, beta=beta, seed=index)
            table = result.frontier
            assert table.gold is not None
            inside = [
                (estimates.lo <= exact) & (exact <= estimates.hi)
                for estimates, exact in ((table.reward, truth.reward), (table.gold, truth.gold), (table.kl, truth.kl))
            ]
            status = np.array([("ok", "weak", "beyond").index(s) for s in table.status])
            for i in range(beta.size):
                hits = [float(hit[i]) for hit in inside]
                rows.append((FAMILIES.index(family), index, n_samples, n_prompts, truth.kl[i], status[i], *hits))
            verdict = result.verdict
            safe = np.searchsorted(beta, np.nan if verdict.safe_beta is None else verdict.safe_beta)
            gain = np.nan if verdict.safe_beta is None else true_gain[safe]
            reach = np.log(n_samples) - 2.0  # nats that corrected estimates can speak about
            seen = np.flatnonzero(truth.kl <= reach)
            fall = true_gain[best] - true_gain[seen[0]] if seen.size else 0.0
            interior = truth.kl[best] <= 0.5 * reach and min(true_gain[best], fall) >= STRONG
            kind = ("useful-range", "no-overoptimisation-seen", "no-useful-range", "cannot-tell").index(verdict.kind)
            verdicts.append((FAMILIES.index(family), n_samples, n_prompts, kind, gain, interior, opposed))
    return rows, verdicts


def _task(task: tuple[Family, int]) -> tuple[list[tuple[float, ...]], list[tuple[float, ...]]]:
    return run_world(*task)


def _share(values: np.ndarray) -> str:
    return f"{100 * values.mean():5.1f}" if values.size else "    -"


def report(rows: np.ndarray, verdicts: np.ndarray) -> bool:
    """Print the tables; True if every bar is met."""
    family, _, n_samples, _, kl, status, *inside = rows.T
    hits = np.stack(inside, axis=1)
    ok = status == 0
    bars: list[tuple[str, float, float, bool]] = []  # name, measured, bar, at least
    print("\nCoverage of the 95 % intervals at rows that are ok, in % (reward, gold, KL); rows ok of all")
    print(f"{'family':16s}" + "".join(f"|   K = {k:<2d}                         " for k in SAMPLES))
    for f, name in enumerate(FAMILIES):
        cells = []
        for k in SAMPLES:
            here = (family == f) & (n_samples == k)
            good = here & ok
            closed = good.sum() < 0.01 * here.sum()
            cover = " ".join(_share(hits[good, q]) for q in range(3))
            cells.append(f"| {cover} {good.sum():6d}/{here.sum():<6d}{'*' if closed else ' '}")
            if not closed:
                bars += [
                    (f"coverage of {what}, {name}, K {k}", 100 * hits[good, q].mean(), 88.0, True)
                    for q, what in enumerate(("reward", "gold", "KL"))
                ]
        print(f"{name:16s}" + "".join(cells))
    print("* fewer than 1 row in 100 is ok: the family is refused at this size, there is no coverage to speak of")
    for q, what in enumerate(("reward", "gold", "KL")):
        bars.append((f"coverage of {what}, overall", 100 * hits[ok, q].mean(), 92.0, True))

    print("\nRows that are ok, in %, by true KL")
    bands = {k: [(0.05, 0.2), (0.2, 0.5), (0.5, np.log(k) - 2.5)] for k in SAMPLES}
    for f, name in enumerate(FAMILIES):
        cells = []
        for k in SAMPLES:
            for low, high in bands[k]:
                here = (family == f) & (n_samples == k) & (kl >= low) & (kl < high)
                cells.append(_share(ok[here]))
                if name in LIGHT and high <= np.log(k) - 2.5 + 1e-9 and here.any():
                    title = f"ok rows, {name}, K {k}, KL {low:.2f} to {high:.2f}"
                    bars.append((title, 100 * ok[here].mean(), 60.0, True))
            cells.append("|")
        print(f"{name:16s} " + " ".join(cells))
    print(f"{'':16s} bands per K: [.05, .2) [.2, .5) [.5, log K - 2.5)")
    power = (family == FAMILIES.index("power")) & (kl > 0.5)
    bars.append(("ok rows with KL above .5, power laws", 100 * ok[power].mean(), 5.0, False))

    f, k, _, kind, gain, interior, opposed = verdicts.T
    print("\nVerdicts, in %: useful range / no over-optimisation seen / no useful range / cannot tell")
    for i, name in enumerate(FAMILIES):
        cells = [" ".join(_share(kind[(f == i) & (k == size)] == j) for j in range(4)) for size in SAMPLES]
        print(f"{name:16s} | " + " | ".join(cells))
    bad = np.isin(f, [FAMILIES.index("gold-unrelated"), FAMILIES.index("gold-opposed")])
    bars.append(("false 'useful range', gold unrelated or opposed", 100 * (kind[bad] == 0).mean(), 5.0, False))
    strong = (f == FAMILIES.index("gold-opposed")) & (opposed == 1)
    bars.append((f"'no useful range', strongly opposed ({strong.sum()})", 100 * (kind[strong] == 2).mean(), 80.0, True))
    peak = (f == FAMILIES.index("gold-peak")) & (interior == 1)
    bars.append((f"'useful range', strong interior peak ({peak.sum()})", 100 * (kind[peak] == 0).mean(), 80.0, True))
    safe = np.isfinite(gain)
    bars.append((f"true gain at the safe beta positive ({safe.sum()})", 100 * (gain[safe] > 0).mean(), 95.0, True))

    missed = [bar for bar in bars if (bar[1] < bar[2] if bar[3] else bar[1] > bar[2])]
    print("\nBars (overall and verdicts, and any that is missed)")
    for title, value, limit, at_least in bars:
        met = value >= limit if at_least else value <= limit
        if not met or "overall" in title or "," not in title or "'" in title or "power" in title:
            sign = ">=" if at_least else "<="
            print(f"  {title:62s} {value:5.1f} {sign} {limit:4.1f}  {'ok' if met else 'MISSED'}")
    print(f"{len(bars) - len(missed)} of {len(bars)} bars met")
    return not missed


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--worlds", type=int, default=300, help="random worlds per family")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--quick", action="store_true", help="20 worlds per family")
    options = parser.parse_args(arguments)
    n_worlds = 20 if options.quick else options.worlds
    tasks = [(family, index) for index in range(n_worlds) for family in FAMILIES]
    start = time.perf_counter()
    if options.jobs > 1:
        with ProcessPoolExecutor(options.jobs) as pool:
            results = list(pool.map(_task, tasks, chunksize=4))
    else:
        results = [_task(task) for task in tasks]
    rows = np.array([row for result in results for row in result[0]], dtype=np.float64)
    verdicts = np.array([row for result in results for row in result[1]], dtype=np.float64)
    sizes = len(SAMPLES) * len(PROMPTS)
    print(f"{n_worlds} worlds per family, {len(tasks) * sizes} forecasts, {time.perf_counter() - start:.0f} s")
    return 0 if report(rows, verdicts) else 1


if __name__ == "__main__":
    raise SystemExit(main())
