"""What labels chosen for the gain are worth: half-widths of the gain's interval against as many labels at random.

Worlds as in forecast_calibration.py: 60 prompts of 100, 24 answers each, one in twelve labelled, rows with a true
KL from .1 to 1.1. Run with ``python bench/labels_for_gain.py [--worlds 40]``.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import get_args

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from kleash import Samples, forecast, random_world
from kleash.sampling.labels import _systematic, label_chances
from kleash.tilt import moments
from kleash.worlds import Family

FAMILIES: tuple[Family, ...] = get_args(Family)
P, K, ONE_IN = 60, 24, 12
ARMS = ("random", "random, chances given", "gain", "all")
LIMIT = 0.75


def run_world(family: Family, index: int) -> list[list[tuple[float, bool, float, bool]]]:
    """Per row and arm: half-width, whether the truth is inside, error, whether the row is ok."""
    rng = np.random.default_rng([index, FAMILIES.index(family), 77])
    world = random_world(family, rng=rng, n_prompts=100, n_answers=300)
    reference = moments(world, np.inf)
    beta = np.sort(np.sqrt(reference.reward_variance[0]) / np.geomspace(0.1, 3.0, 10))
    truth = moments(world, beta)
    prompt, answer = world.sample(P, K, rng=rng)
    place = np.repeat(np.arange(P), K)
    reward, gold = (values[prompt[:, None], answer].ravel() for values in (world.reward, world.gold))
    tables = []
    for arm in ARMS:
        even = np.full(reward.size, 1.0 if arm == "all" else 1.0 / ONE_IN)
        chance = label_chances(reward, place, labels=reward.size // ONE_IN) if arm == "gain" else even
        chosen = np.zeros(reward.size, dtype=bool)
        chosen[_systematic(chance, rng)] = True
        given = None if arm == "random" else np.where(chosen, chance, np.nan)
        samples = Samples.from_arrays(place, reward, gold=np.where(chosen, gold, np.nan), label_probability=given)
        tables.append(forecast(samples, beta=beta, seed=index).frontier)
    rows = []
    for b in np.flatnonzero((truth.kl > 0.1) & (truth.kl < 1.1)):
        gain = truth.gold[b] - reference.gold[0]
        parts = [(table.gold.gain, str(table.status[b]) == "ok") for table in tables if table.gold is not None]
        rows.append(
            [
                ((part.hi[b] - part.lo[b]) / 2, bool(part.lo[b] <= gain <= part.hi[b]), part.value[b] - gain, ok)
                for part, ok in parts
            ]
        )
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--worlds", type=int, default=40, help="random worlds per family")
    worlds = parser.parse_args(arguments).worlds
    print(f"Half-width of the gain against labels at random (geometric mean), coverage in %, error; {', '.join(ARMS)}")
    missed = []
    for family in FAMILIES:
        found = np.array([row for index in range(worlds) for row in run_world(family, index)], dtype=np.float64)
        found = found[np.isfinite(found[:, :, 0]).all(axis=1)] if found.size else found.reshape(0, len(ARMS), 4)
        if not len(found):
            print(f"{family:16s} no row can be read")
            continue
        width = np.exp(np.log(found[:, :, 0] / found[:, :1, 0]).mean(axis=0))
        cover, error = 100 * found[:, :, 1].mean(axis=0), np.sqrt((found[:, :, 2] ** 2).mean(axis=0))
        cells = [" ".join(f"{x:.{d}f}" for x in part) for part, d in ((width, 2), (cover, 0), (error, 4))]
        print(f"{family:16s} {len(found):4d} rows | " + " | ".join(cells), flush=True)
        missed += [family] if width[ARMS.index("gain")] > LIMIT else []
    print(f"at most {LIMIT} of random: " + ("all" if not missed else f"missed by {', '.join(missed)}"))
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
