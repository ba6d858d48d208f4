"""The published runs with three references: tables for ``kleash report``, and printed beside each other."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import polars as pl

from kleash.estimates import Estimates, Gold
from kleash.frontier import Frontier

HERE = Path(__file__).parent
RUNS = {"sft": "dpo_shift_sft", "step-32400": "dpo_shift_step_32400", "step-72000": "dpo_shift_step_72000"}
LAST = 4  # checkpoints at the end of a run that are averaged


def table(rows: pl.DataFrame, run: str) -> pl.DataFrame:
    """Mean gold and KL of a run's last checkpoints at each beta, ascending."""
    ends = rows.filter(pl.col("method") == run).sort("step").group_by("beta").tail(LAST)
    columns = pl.col("gold_score", "kl_nats_per_answer").mean()
    return ends.group_by("beta").agg(columns).sort("beta")


def frontier(means: pl.DataFrame, run: str) -> Frontier:
    """The same as a frontier: no judge, no interval, no gold of the reference."""
    size = means.height
    unknown = np.full(size, np.nan)
    nothing = Estimates(value=unknown, se=unknown, lo=unknown, hi=unknown)

    def point(name: str) -> Estimates:
        return Estimates(value=means[name].to_numpy(), se=unknown, lo=unknown, hi=unknown)

    return Frontier(
        source="sweep",
        beta=means["beta"].to_numpy(),
        reward=nothing,
        gold=Gold.of(point("gold_score"), gain=nothing, reference=nothing[0]),
        kl=point("kl_nats_per_answer"),
        reference_reward=nothing[0],
        n=np.ones(size, dtype=np.int64),
        status=np.full(size, "ok"),
        provenance={
            "notes": [
                f"published run {run}, Pythia 1b, DPO, mean of the last {LAST} checkpoints, one seed",
                "github.com/Phuc3010/reward-hacking-AIS at 3736740, MIT licence",
                "KL is against the SFT model, whichever reference the run was leashed to",
            ]
        },
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/published"), help="folder of the three tables")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    rows = pl.read_csv(HERE / "sweeps.csv")
    tables = {name: table(rows, run) for name, run in RUNS.items()}
    for name, means in tables.items():
        frontier(means, RUNS[name]).save(out / f"{name}.json")
    print("| beta | " + " | ".join(f"reference {name}: gold (KL)" for name in tables) + " |")
    print("|---" * (1 + len(tables)) + "|")
    for beta in tables["sft"]["beta"]:
        cells = [means.row(by_predicate=pl.col("beta") == beta, named=True) for means in tables.values()]
        print(
            f"| {beta:g} | "
            + " | ".join(f"{c['gold_score']:.2f} ({c['kl_nats_per_answer']:.1f})" for c in cells)
            + " |"
        )


if __name__ == "__main__":
    main()
