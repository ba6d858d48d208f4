"""The table of docs/conformance.md: every built-in configuration, measured. Resumable; about half an hour on one core.

    python bench/conformance_table.py [--out FOLDER] [--write]

Results are kept in FOLDER (default build/conformance), a file each; started again, it runs what is missing. With
--write the table in docs/conformance.md is renewed.
"""

import argparse
import sys
import time
from pathlib import Path

from kleash.trials.conformance import conformance

NAMES = ("trl-grpo", "trl-rloo", "trl-dpo", "kleash")
DOCS = Path(__file__).parents[1] / "docs" / "conformance.md"
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
HEAD = (
    "| trainer and settings | world | predicted | measured drift points to | two runs end at | tilt "
    "| trained against tilt | outcome |"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("build/conformance"))
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    lines = [HEAD, "|" + "---|" * 8]
    start = time.perf_counter()
    for name in NAMES:
        result = conformance(name, folder=options.out, progress=lambda k, n, name=name: _say(name, k, n))
        lines += [row_text(row) for row in result.rows]
    table = "\n".join(lines)
    print(table)
    print(f"{time.perf_counter() - start:.0f} s", file=sys.stderr)
    if options.write:
        text = DOCS.read_text(encoding="utf-8")
        before, rest = text.split(BEGIN)
        DOCS.write_text(f"{before}{BEGIN}\n\n{table}\n\n{END}{rest.split(END)[1]}", encoding="utf-8")


def row_text(row) -> str:
    """A row of the table: score, KL."""
    settings = ", ".join(f"{key} {value}" for key, value in row.settings.items())
    cells = [
        f"{row.trainer}: {settings}",
        row.world,
        "none" if row.predicted is None else _pair(row.predicted),
        f"as predicted at the tilt, p {row.drift_p:.2g}" if row.implied is None else _pair(row.implied),
        "; ".join(_pair(run) for run in row.runs),
        _pair(row.tilt),
        f"{row.gap_reward + 0.0:+.1%}, {row.gap_kl + 0.0:+.1%}",
        row.outcome,
    ]
    return "| " + " | ".join(cells) + " |"


def _pair(point) -> str:
    return ", ".join(
        f"{value:.4g}" + (f" ± {within:.2g}" if within is not None and within > 1e-6 else "")
        for value, within in ((point.reward, point.reward_within), (point.kl, point.kl_within))
    )


def _say(name: str, done: int, total: int) -> None:
    print(f"{name} {done}/{total} {time.strftime('%H:%M:%S')}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
