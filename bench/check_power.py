"""How often is `kleash check` wrong? False alarms on healthy dumps, and the power against each planted fault.

    python bench/check_power.py            500 healthy dumps, 40 of each fault (some minutes on one core)
    python bench/check_power.py --quick    60 and 5

Healthy dumps are honest samples of simulated policies with exact log-probabilities (tests/audit/simulated_dumps.py): 64
to 4,096 answers of mean length 5 to 500, light and heavy tails of the log ratio, scoring noise of 0, 0.01 or 0.05 nats
on every logit of policy and reference (renormalised), with and without steps, probes, padding, entropies and the
sampler's log-probabilities, some of a sampler that is some updates old. Others have the shapes of real files
(tests/audit/simulated_shapes.py), on which no threshold was set: rounded numbers, bfloat16, masked tool tokens, several
late steps, two engines, answers of a token. Same seed, same table.
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
from simulated_dumps import FAULTS, check_rollouts, healthy  # noqa: E402
from simulated_shapes import DUMP_SHAPES, shaped_dump  # noqa: E402

ANSWERS = 512  # a batch as trainers use them: 64 prompts, 8 answers each


def one_healthy(seed: int) -> tuple[str, int, list[str], Counter[str]]:
    """Tail, tokens, the codes that cried wolf, and how often each status came."""
    chunk, tail, declared = healthy(np.random.default_rng((1, seed)))
    findings = check_rollouts([chunk], declared=declared)
    wrong = [f.code for f in findings if f.status == "problem"]
    return tail, int(chunk.mask.sum()), wrong, Counter(f"{f.code} {f.status}" for f in findings)


def one_shape(seed: int) -> tuple[str, list[str]]:
    """Shape of an honest dump of the other generator, and the codes that cried wolf."""
    chunk, shape = shaped_dump(np.random.default_rng((9, seed)))
    return shape, [f.code for f in check_rollouts([chunk]) if f.status == "problem"]


def one_fault(task: tuple[str, int]) -> tuple[str, bool, list[str], list[str]]:
    """Whether the fault was found, what else was, and what its healthy twin gave."""
    name, seed = task
    fault = FAULTS[name]
    bad, good = fault.make(np.random.default_rng((2, seed)), ANSWERS)
    found = [f.code for f in check_rollouts([bad], declared=fault.declared) if f.status == "problem"]
    twin = [f.code for f in check_rollouts([good], declared=fault.declared) if f.status == "problem"]
    return name, fault.code in found, [code for code in found if code != fault.code], twin


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="60 healthy dumps and 5 of each fault")
    parser.add_argument("--healthy", type=int, help="number of healthy dumps")
    parser.add_argument("--faults", type=int, help="dumps of each fault")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    options = parser.parse_args()
    n = options.healthy or (60 if options.quick else 500)
    each = options.faults or (5 if options.quick else 40)
    start = time.perf_counter()
    tasks = [(name, seed) for name in FAULTS for seed in range(each)]
    if options.jobs > 1:
        from concurrent.futures import ProcessPoolExecutor

        with ProcessPoolExecutor(options.jobs) as pool:
            well = list(pool.map(one_healthy, range(n), chunksize=4))
            ill = list(pool.map(one_fault, tasks, chunksize=4))
    else:
        well, ill = [one_healthy(seed) for seed in range(n)], [one_fault(task) for task in tasks]

    print(f"{n} healthy dumps, {sum(tokens for _, tokens, _, _ in well):,} tokens\n")
    print(f"{'ratio tail':<12}{'dumps':>7}{'any problem':>13}   codes")
    for tail in ("light", "heavy", "sums"):
        mine = [wrong for t, _, wrong, _ in well if t == tail]
        codes = Counter(code for wrong in mine for code in wrong)
        print(f"{tail:<12}{len(mine):>7}{sum(map(bool, mine)):>13}   {dict(codes) or ''}")
    false = sum(bool(wrong) for _, _, wrong, _ in well)
    print(f"{'all':<12}{n:>7}{false:>13}   {false / n:.1%}, allowed 2 %\n")

    others = [one_shape(seed) for seed in range(n)]
    print(f"{'other shapes':<12}{'dumps':>7}{'any problem':>13}   codes")
    for shape in DUMP_SHAPES:
        wolf = [wrong for s, wrong in others if s == shape]
        codes = Counter(code for wrong in wolf for code in wrong)
        print(f"{shape:<12}{len(wolf):>7}{sum(map(bool, wolf)):>13}   {dict(codes) or ''}")
    strange = sum(bool(wrong) for _, wrong in others)
    print(f"{'all':<12}{n:>7}{strange:>13}   {strange / n:.1%}, allowed 2 %\n")

    statuses: Counter[str] = sum((counts for _, _, _, counts in well), Counter())
    print(f"{'on healthy dumps':<18}{'ok':>6}{'cannot tell':>13}{'not run':>9}{'problem':>9}")
    for code in dict.fromkeys(key.split()[0] for key in statuses):
        row = [statuses[f"{code} {status}"] for status in ("ok", "cannot-tell", "not-run", "problem")]
        print(f"{code:<18}{row[0]:>6}{row[1]:>13}{row[2]:>9}{row[3]:>9}")

    print(f"\n{'planted fault':<31}{'expected':<16}{'found':>9}{'twin':>6}   also, in some")
    short = 0
    for name, fault in FAULTS.items():
        mine = [row[1:] for row in ill if row[0] == name]
        hits, twins = sum(hit for hit, _, _ in mine), sum(bool(twin) for _, _, twin in mine)
        also = Counter(code for _, codes, _ in mine for code in codes)
        short += hits < 0.95 * len(mine)
        rate = f"{hits}/{len(mine)}"
        print(f"{name:<31}{fault.code:<16}{rate:>9}{twins:>6}   {' '.join(sorted(also))}")
    print(f"\n{len(FAULTS)} faults at {ANSWERS} answers; {short} found in fewer than 95 %; "
          f"healthy twins with a problem: {sum(bool(row[3]) for row in ill)} of {len(ill)}")  # fmt: skip
    print(f"{time.perf_counter() - start:.0f} s", file=sys.stderr)
    return int(max(false, strange) > 0.02 * n or short > 0)


if __name__ == "__main__":
    raise SystemExit(main())
