"""A million scored answers: time and memory of ``kleash forecast``, beside those of merely reading the file.

Writes 10,000 prompts x 100 answers as Parquet into a temporary folder (the same bytes each time) and runs each task in
a fresh process, the tasks in turn. Polars reads the same columns and forms the means of each prompt. Run with
``python bench/million_rows.py [--prompts 10000] [--samples 100] [--runs 3] [--threads 1]``. Times depend on the machine
and its load, ratios much less; the limit on memory is absolute. ``--save FOLDER`` writes a dated file with machine and
versions, ``--against FOLDER`` holds the ratios of processor time against the newest one there.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import polars as pl

LIMIT_GIB = 2.0
"""Peak memory that a million rows may take."""
MARGIN = 1.25
"""By how much a ratio may grow against the file before."""
BETAS = np.geomspace(2.0, 100.0, 64)
READ = (
    "import sys, polars as pl; pl.read_parquet(sys.argv[1], columns=['prompt', 'reward', 'gold'])"
    ".group_by('prompt').agg(pl.col('reward', 'gold').mean())"
)
COLD = "import numpy, polars"
EXAMPLE = Path(__file__).parents[1] / "examples" / "word_problems.csv"
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
    frame.write_parquet(path)


INNER = """
import resource, subprocess, sys, time
start = time.perf_counter()
code = subprocess.run([sys.executable, "-c", *sys.argv[1:]], stdout=subprocess.DEVNULL).returncode
wall, used = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
print(code, wall, used.ru_utime + used.ru_stime, used.ru_maxrss)
"""


def run(code: str, *arguments: str, threads: int = 1) -> tuple[float, float, float]:
    """Wall seconds, processor seconds and peak GiB of a fresh Python process."""
    environment = os.environ | dict.fromkeys(
        ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "POLARS_MAX_THREADS"), str(threads)
    )
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
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--save", type=Path, metavar="FOLDER")
    parser.add_argument("--against", type=Path, metavar="FOLDER")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        path, out = Path(folder) / "samples.parquet", Path(folder) / "forecast.json"
        write_rows(path, options.prompts, options.samples)
        betas = [text for beta in BETAS for text in ("--beta", f"{beta:.6g}")]
        to_json = ("--reward-max", "200", "--gold-min", "0", "--format", "json", "--out", str(out))
        example = ("--prompt-column", "task_id", "--reward-column", "judge_score", "--gold-column", "correct")
        tasks = {
            "polars, means": (READ, str(path)),
            "kleash.read_samples": (
                "import sys; from kleash import read_samples; read_samples(sys.argv[1])",
                str(path),
            ),
            "kleash forecast": (FORECAST, "forecast", str(path), *betas, *to_json),
            "import numpy, polars": (COLD,),
            "forecast, example": (
                FORECAST,
                "forecast",
                str(EXAMPLE),
                *example,
                "--reward-max",
                "100",
                "--gold-min",
                "0",
            ),
        }
        results: dict[str, list[tuple[float, float, float]]] = {name: [] for name in tasks}
        for _ in range(options.runs):
            for name, (code, *rest) in tasks.items():
                results[name].append(run(code, *rest, threads=options.threads))
    rows = options.prompts * options.samples
    print(f"{rows:,} rows ({options.prompts:,} prompts x {options.samples}) x {BETAS.size} betas, gold on half of them")
    print(f"medians of {options.runs} runs in turn, each a fresh process of {options.threads} thread(s)\n")
    print(f"{'':22s} {'wall s':>8s} {'x floor':>8s} {'CPU s':>8s} {'x floor':>8s} {'peak GiB':>9s}")
    table = {}
    for name, values in results.items():
        floor = results["import numpy, polars" if name in list(tasks)[3:] else "polars, means"]
        wall, cpu = (statistics.median(value[i] for value in values) for i in (0, 1))
        ratios = [statistics.median(a[i] / b[i] for a, b in zip(values, floor, strict=True)) for i in (0, 1)]
        peak = max(value[2] for value in values)
        print(f"{name:22s} {wall:8.2f} {ratios[0]:8.1f} {cpu:8.2f} {ratios[1]:8.1f} {peak:9.2f}")
        table[name] = {"wall": wall, "cpu": cpu, "wall_ratio": ratios[0], "cpu_ratio": ratios[1], "peak_gib": peak}
    good = table["kleash forecast"]["peak_gib"] < LIMIT_GIB
    print(f"\npeak memory of the forecast under {LIMIT_GIB:g} GiB: {'ok' if good else 'NO'}")
    asked = {name: getattr(options, name) for name in ("prompts", "samples", "runs", "threads")}
    if options.against is not None:
        good &= held_against(options.against, asked, table)
    if options.save is not None:
        save(options.save, asked, table)
    return 0 if good else 1


def save(folder: Path, asked: dict[str, int], table: dict[str, dict[str, float]]) -> None:
    """A dated file with the machine, the versions and the table."""
    names = ("kleash", "numpy", "polars", "scipy")
    machine = {"machine": platform.machine(), "system": platform.platform(), "cores": os.cpu_count()}
    versions = {"python": platform.python_version()} | {name: importlib.metadata.version(name) for name in names}
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"million_rows-{datetime.now(UTC):%Y-%m-%dT%H%M%S}.json"
    path.write_text(json.dumps({"asked": asked, **machine, "versions": versions, "table": table}, indent=2) + "\n")
    print(f"written: {path}")


def held_against(folder: Path, asked: dict[str, int], table: dict[str, dict[str, float]]) -> bool:
    """Whether no ratio of processor time has grown by more than the margin since the newest file of the same size."""
    there = [json.loads(path.read_text()) for path in sorted(folder.glob("million_rows-*.json"))]
    size = ("prompts", "samples", "threads")
    before = [content for content in there if all(content["asked"][name] == asked[name] for name in size)]
    if not before:
        print(f"nothing of this size in {folder} to hold it against")
        return True
    good = True
    for name, row in table.items():
        old = before[-1]["table"].get(name, row)["cpu_ratio"]
        slower = row["cpu_ratio"] > MARGIN * old
        good &= not slower
        print(f"{name:22s} CPU x floor {old:6.1f} before, {row['cpu_ratio']:6.1f} now{'  SLOWER' if slower else ''}")
    return good


if __name__ == "__main__":
    raise SystemExit(main())
