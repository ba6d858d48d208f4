"""How often is `kleash check` wrong about logs? False alarms on healthy logs, and the power against each planted fault.

    python bench/check_logs_power.py            three times 300 healthy logs, 40 of each fault and size (minutes)
    python bench/check_logs_power.py --quick    60 and 5

Healthy logs are honest simulated runs as eight trainers write them (tests/audit/simulated_logs.py): 12 to 400 rows,
noise of the KL from 2 to 30 %, heavy tails, hard batches in a row, warm-up, resumes, rounding. As many again come from
another generator, on which no threshold was set (tests/audit/simulated_sizes.py): noise that lasts, answers that grow,
scores on any scale, 3 to 12 rows, 2 to 4 decimals, a decaying rate, harder prompts, falling entropy, runs killed twice.
A third, on which none was set either (tests/audit/simulated_shapes.py), gives them the shapes that files have: cells of
NaN, k1 that changes sign or is cut off at 0, a first row that comes late, rows of several kinds, a KL that decays,
skipped steps, folders.

Faults stand in two tables: the whole catalogue at one size, and those that have a size at five, the size of the public
report marked. Same seed, same tables.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

sys.path[:0] = [str(Path(__file__).parents[1] / part) for part in ("src", "tests/audit")]

import numpy as np  # noqa: E402
from simulated_logs import LOG_FAULTS, WRITERS, healthy  # noqa: E402
from simulated_shapes import LOG_SHAPES, shaped_logs  # noqa: E402
from simulated_sizes import GRADED, KINDS, other_healthy  # noqa: E402

from kleash.audit import LOG_CHECKS, check_logs  # noqa: E402


def one_healthy(seed: int) -> tuple[str, int, list[str], Counter[str]]:
    """Writer, rows, the codes that cried wolf, and how often each status came."""
    log, name = healthy(np.random.default_rng((1, seed)))
    findings = check_logs([log])[1]
    wrong = [f.code for f in findings if f.status == "problem"]
    return name, log.rows, wrong, Counter(f"{f.code} {f.status}" for f in findings)


def one_fault(task: tuple[str, int]) -> tuple[str, bool, list[str], list[str]]:
    """Whether the fault was found, what else was, and what its healthy twin gave."""
    name, seed = task
    fault = LOG_FAULTS[name]
    bad, good = fault.make(np.random.default_rng((2, seed)))
    found = [f.code for f in check_logs([bad], declared=fault.declared)[1] if f.status == "problem"]
    twin = [f.code for f in check_logs([good], declared=fault.declared)[1] if f.status == "problem"]
    return name, fault.code in found, [code for code in found if code != fault.code], twin


def one_other(seed: int) -> tuple[str, list[str]]:
    """Kind of an honest run of the other generator, and the codes that cried wolf."""
    log, _, kind = other_healthy(np.random.default_rng((5, seed)))
    return kind, [f.code for f in check_logs([log])[1] if f.status == "problem"]


def one_shape(seed: int) -> tuple[str, list[str]]:
    """Shape of an honest log, or folder of logs, of the third generator, and the codes that cried wolf."""
    logs, shape = shaped_logs(np.random.default_rng((9, seed)))
    return shape, [f.code for f in check_logs(logs)[1] if f.status == "problem"]


def print_kinds(title: str, kinds: tuple[str, ...], found: list[tuple[str, list[str]]]) -> int:
    """Print how many logs of each kind had a problem; how many in all."""
    print(f"{title:<22}{'logs':>6}{'any problem':>13}   codes")
    for kind in kinds:
        mine = [wrong for k, wrong in found if k == kind]
        codes = Counter(code for wrong in mine for code in wrong)
        print(f"{kind:<22}{len(mine):>6}{sum(map(bool, mine)):>13}   {dict(codes) or ''}".rstrip())
    false = sum(bool(wrong) for _, wrong in found)
    print(f"{'all':<22}{len(found):>6}{false:>13}   {false / len(found):.1%}, allowed 2 %\n")
    return false


def share_found(name: str, size: float, n: int) -> float:
    """Share of logs with a fault of this size in which it is found."""
    fault = GRADED[name]
    logs = (fault.make(np.random.default_rng((6, seed)), size) for seed in range(n))
    return sum(any(f.code == fault.code and f.status == "problem" for f in check_logs([x])[1]) for x in logs) / n


def power_curves(n: int) -> int:
    """Print how often each fault is found at each size; how many are missed at the size of their report."""
    print(f"\n{'found, by size':<31}{'expected':<14}{'unit':<17}{'':<43}{'95 % from':>11}   size of")
    missed = 0
    for name, fault in GRADED.items():
        found = {size: share_found(name, size, n) for size in fault.sizes}
        cells = [f"{'*' if size == fault.real else ''}{size:.4g}: {share:.0%}" for size, share in found.items()]
        first = next((s for s in fault.sizes if all(found[t] >= 0.95 for t in fault.sizes if t >= s)), None)
        missed += found[fault.real] < 0.95
        words = "  ".join(cells)
        print(f"{name:<31}{fault.code:<14}{fault.unit:<17}{words:<58}{first or '-':>10.6g}   {fault.source}".rstrip())
    print(
        f"\n{len(GRADED)} faults with a size, {n} logs of each; at * (the size of the report) {missed} found too rarely"
    )
    return missed


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="60 healthy logs and 5 of each fault")
    parser.add_argument("--healthy", type=int, help="number of healthy logs")
    parser.add_argument("--faults", type=int, help="logs of each fault")
    options = parser.parse_args()
    n = options.healthy or (60 if options.quick else 300)
    each = options.faults or (5 if options.quick else 40)
    start = time.perf_counter()
    well = [one_healthy(seed) for seed in range(n)]
    others = [one_other(seed) for seed in range(n)]
    ill = [one_fault((name, seed)) for name in LOG_FAULTS for seed in range(each)]

    print(f"{n} healthy logs, {sum(rows for _, rows, _, _ in well):,} rows\n")
    false = print_kinds("written as", tuple(WRITERS), [(name, wrong) for name, _, wrong, _ in well])
    strange = print_kinds("other generator", KINDS, others)
    shaped = print_kinds("third generator", LOG_SHAPES, [one_shape(seed) for seed in range(n)])

    statuses: Counter[str] = sum((counts for _, _, _, counts in well), Counter())
    print(f"{'on healthy logs':<16}{'ok':>8}{'cannot tell':>13}{'not run':>9}{'problem':>9}")
    for check in LOG_CHECKS:
        row = [statuses[f"{check.code} {status}"] for status in ("ok", "cannot-tell", "not-run", "problem")]
        print(f"{check.code:<16}{row[0]:>8}{row[1]:>13}{row[2]:>9}{row[3]:>9}")

    print(f"\n{'planted fault':<37}{'expected':<15}{'found':>6}{'twin':>6}   also, in some")
    missed = twins = 0
    for name, fault in LOG_FAULTS.items():
        rows = [row for row in ill if row[0] == name]
        found, twin = sum(row[1] for row in rows), sum(bool(row[3]) for row in rows)
        also = sorted({code for row in rows for code in row[2]})
        missed, twins = missed + (found < 0.95 * each), twins + twin
        print(f"{name:<37}{fault.code:<15}{found:>3}/{each}{twin:>5}   {' '.join(also)}".rstrip())
    rarely = power_curves(each)
    print(
        f"\n{len(LOG_FAULTS)} faults at 120 rows; {missed} found in fewer than 95 %; "
        f"healthy twins with a problem: {twins} of {each * len(LOG_FAULTS)}; "
        f"{time.perf_counter() - start:.0f} s"
    )
    return int(max(false, strange, shaped) > 0.02 * n or missed + rarely > 0)


if __name__ == "__main__":
    sys.exit(main())
