"""A million scored answers: time and memory of ``kleash forecast``, beside those of merely reading the file.

Writes 10,000 prompts x 100 answers as a CSV into a temporary folder (the same bytes each time) and runs each task in a
fresh process, the tasks in turn. Run with ``python bench/million_rows.py [--prompts 10000] [--samples 100]
[--runs 3]``. Times depend on the machine and its load, ratios much less; the limit on memory is absolute.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl

LIMIT_GIB = 2.0
"""Peak memory that a million rows may take."""
READ = "import sys, polars; polars.read_csv(sys.argv[1])"
FORECAST = "import sys; from kleash.cli import main; main()"


def write_rows(path: Path, n_prompts: int, n_samples: int) -> None:
    """Normal scores to prompts of unequal mean and spread, binary gold that follows them, on half of the rows."""
    rng = np.random.default_rng(20_250)
    shape = (n_prompts, n_samples)
    mean, spread = (
        60.0 + 10.0 * rng.standard_normal((n_prompts, 1)),
        np.exp(1.0 + 0.5 * rng.standard_normal((n_prompts, 1))),
    )
    normal = rng.standard_normal(shape)
    gold = (rng.random(shape) < 1.0 / (1.0 + np.exp(-normal))).astype(np.int64).ravel()
    labelled = rng.random(gold.size) < 0.5
    frame = pl.DataFrame(
        {
            "prompt": np.repeat(np.arange(n_prompts), n_samples),
            "reward": (mean + spread * normal).ravel().round(3),
            "gold": pl.Series(gold).set(pl.Series(~labelled), None),
        }
    )
    frame.write_csv(path)


INNER = """
import resource, subprocess, sys, time
start = time.perf_counter()
code = subprocess.run([sys.executable, "-c", *sys.argv[1:]], stdout=subprocess.DEVNULL).returncode
wall, used = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
print(code, wall, used.ru_utime + used.ru_stime, used.ru_maxrss)
"""


def run(code: str, *arguments: str) -> tuple[float, float, float]:
    """Wall seconds, processor seconds and peak GiB of a fresh Python process."""
    environment = os.environ | dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    command = [sys.executable, "-c", INNER, code, *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    exit_code, wall, cpu, peak = done.stdout.split()
    if exit_code != "0":
        raise SystemExit(f"exit code {exit_code} of {code} {' '.join(arguments)}")
    return (
        float(wall),
        float(cpu),
        float(peak) / (2**30 if sys.platform == "darwin" else 2**20),
    )  # bytes there, else KiB


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=int, default=10_000)
    parser.add_argument("--samples", type=int, default=100, help="answers per prompt")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "samples.csv"
        out = Path(folder) / "forecast.json"
        write_rows(path, options.prompts, options.samples)
        size = path.stat().st_size / 2**20
        read_samples = "import sys; from kleash import read_samples; read_samples(sys.argv[1])"
        both = ("--reward-max", "200", "--gold-min", "0")
        whole = ("forecast", str(path), *both, "--format", "json", "--out", str(out))
        tasks = {
            "polars.read_csv": (READ, str(path)),
            "kleash.read_samples": (read_samples, str(path)),
            "kleash forecast": (FORECAST, *whole),
        }
        results: dict[str, list[tuple[float, float, float]]] = {name: [] for name in tasks}
        for _ in range(options.runs):
            for name, (code, *rest) in tasks.items():
                results[name].append(run(code, *rest))
        verdict = json.loads(out.read_text())["verdict"]["kind"]
    rows = options.prompts * options.samples
    print(
        f"{rows:,} rows ({options.prompts:,} prompts x {options.samples}), {size:.0f} MiB of CSV, gold on half of them"
    )
    print(f"medians of {options.runs} runs in turn, each in a fresh process with one BLAS thread; verdict {verdict}\n")
    print(f"{'':22s} {'wall s':>8s} {'x polars':>9s} {'CPU s':>8s} {'x polars':>9s} {'peak GiB':>9s}")
    first = [statistics.median(column) for column in zip(*results["polars.read_csv"], strict=True)]
    peak = 0.0
    for name, values in results.items():
        wall, cpu, _ = (statistics.median(column) for column in zip(*values, strict=True))
        peak = max(memory for _, _, memory in values)
        print(f"{name:22s} {wall:8.2f} {wall / first[0]:9.1f} {cpu:8.2f} {cpu / first[1]:9.1f} {peak:9.2f}")
    good = peak < LIMIT_GIB
    print(f"\npeak memory of the forecast {peak:.2f} GiB < {LIMIT_GIB:g} GiB: {'ok' if good else 'TOO MUCH'}")
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
