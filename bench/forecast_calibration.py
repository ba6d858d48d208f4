"""How far a forecast's error bars, statuses and verdicts can be trusted: random worlds in which the truth is exact.

The families are those of ``calibration_worlds.py``: each draw is a random world, prompts and answers drawn from it, a
forecast, and its 95 % intervals and its safe beta held against the exact tilt. Run with
``python bench/forecast_calibration.py [--draws 300] [--jobs 1] [--only FAMILY ...]``.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from calibration_table import Result, report
from calibration_worlds import KINDS, Case, Draw, cases, draw

from kleash import forecast

STATUSES = ("ok", "weak", "beyond")


def run_case(number: int, index: int) -> Result:
    """One draw of a case: a row per beta, and its verdict."""
    case = cases()[number]
    drawn = draw(case, index, seed=number)
    result = forecast(drawn.samples, beta=drawn.beta, seed=index, **drawn.options)
    table = result.frontier
    assert table.gold is not None
    pairs = (
        (table.reward, drawn.reward),
        (table.gold, drawn.gold),
        (table.gold.gain, drawn.gain),
        (table.kl, drawn.kl),
    )
    inside = np.stack([(estimates.lo <= exact) & (exact <= estimates.hi) for estimates, exact in pairs], axis=1)
    status = np.array([STATUSES.index(value) for value in table.status])
    rows = np.column_stack([drawn.kl / drawn.reach, status, inside])
    return Result(case=number, index=index, shows=drawn.shows, rows=rows, verdict=_verdict(case, drawn, result.verdict))


def _verdict(case: Case, drawn: Draw, verdict) -> dict[str, float]:  # type: ignore[no-untyped-def]
    seen = drawn.gain[drawn.kl <= drawn.reach]
    broken = verdict.breakdown_score is not None and drawn.top > verdict.breakdown_score
    return {
        "kind": KINDS.index(verdict.kind),
        "gain": np.nan if verdict.safe_beta is None else drawn.at(verdict.safe_beta),
        "best": float(drawn.gain.max()),
        "worth": bool(seen.size and seen.max() >= 0.1 * drawn.gold_sd),
        "broken": broken,
        "peak": drawn.strong_peak,
        "opposed": drawn.strongly_opposed,
    }


def _task(task: tuple[int, int]) -> Result:
    return run_case(*task)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=300, help="draws per family (half of it for each old size)")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--only", nargs="*", default=(), help="families whose name starts so")
    options = parser.parse_args(arguments)
    tasks = [
        (number, index)
        for number, case in enumerate(cases())
        if not options.only or case.family.startswith(tuple(options.only))
        for index in range(max(1, round(case.share * options.draws)))
    ]
    start, used = time.perf_counter(), time.process_time()
    if options.jobs > 1:
        with ProcessPoolExecutor(options.jobs) as pool:
            results = list(pool.map(_task, tasks, chunksize=4))
    else:
        results = [_task(task) for task in tasks]
    took = f"{time.perf_counter() - start:.0f} s, {time.process_time() - used:.0f} s of this process"
    print(f"{len(tasks)} forecasts, {took}")
    return 0 if report(cases(), results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
