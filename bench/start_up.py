"""How quickly the command line answers, as ratios to what it cannot do without: medians of alternating runs.

Run with ``python bench/start_up.py [RUNS]``; wall times depend on the machine and its load, ratios much less.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

HELP_LIMIT = 3.0
SWEEP_FACTOR, SWEEP_SECONDS = 4.0, 1.0
COMMANDS = {
    "import click": "import click",
    "kleash --help": "from kleash.cli import cli; cli.main(['--help'])",
    "import numpy, scipy.special": "import numpy, scipy.special",
    "kleash sweep": "from kleash.cli import cli; cli.main(['sweep'])",
}


def wall_times(runs: int) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for turn in range(runs + 1):
        for name, code in COMMANDS.items():
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
            if turn > 0:  # the first round fills caches
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> int:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 11
    wall = wall_times(runs)
    click_, help_, scipy_, sweep = (wall[name] for name in COMMANDS)
    allowed = SWEEP_FACTOR * scipy_ + SWEEP_SECONDS
    print(f"medians of {runs} alternating runs, seconds")
    for name, value in wall.items():
        print(f"  {name:30s} {value:7.3f}")
    rows = [
        ("kleash --help / import click", help_ / click_, HELP_LIMIT, help_ / click_ < HELP_LIMIT),
        ("kleash sweep / import numpy, scipy.special", sweep / scipy_, allowed / scipy_, sweep < allowed),
    ]
    print(f"\n{'ratio':45s} {'measured':>8s} {'limit':>8s}")
    for name, measured, limit, good in rows:
        print(f"{name:45s} {measured:8.2f} {limit:8.2f}  {'ok' if good else 'TOO SLOW'}")
    print(f"(limit of the second: {SWEEP_FACTOR:g} times, plus {SWEEP_SECONDS:g} s)")
    return 0 if all(row[3] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
