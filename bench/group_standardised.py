"""Group-standardised forecasts of groups of 8: all prompts at once against one prompt at a time, the same policies.

``python bench/group_standardised.py``: seconds for a whole forecast of the word problems, and for their policies at 48
betas beside a twin that follows each prompt on its own by the damped iteration alone; the largest difference in a
probability.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kleash import forecast, read_samples
from kleash.forecasting import finite_groups

Floats = NDArray[np.float64]

WORDS = Path(__file__).parent.parent / "examples" / "word_problems.csv"
BETAS = np.geomspace(0.05, 22.0, 48)
TWINS = 30  # prompts that the twin follows


def one_by_one(reward: Floats) -> Floats:
    """Weights (P, K, B) by the damped iteration, a prompt at a time."""
    newton = finite_groups._newton
    finite_groups._newton = lambda *_, otherwise, **__: otherwise
    rngs = np.random.default_rng(0)
    try:
        weights = [finite_groups.finite_group_weights(row[None], BETAS, group_size=8, rng=rngs)[0] for row in reward]
    finally:
        finite_groups._newton = newton
    return np.array(weights)


def main() -> None:
    samples = read_samples(WORDS, prompt_column="task_id", reward_columns="judge_score", gold_column="correct")
    started = time.perf_counter()
    result = forecast(samples, objective="group-standardised", group_size=8)
    print(f"forecast of {result.n_samples:,} answers: {time.perf_counter() - started:.1f} s")
    reward = samples.reward.reshape(samples.n_prompts, -1)
    started = time.perf_counter()
    together = finite_groups.finite_group_weights(reward, BETAS, group_size=8, rng=np.random.default_rng(0))
    first = (time.perf_counter() - started) / samples.n_prompts
    started = time.perf_counter()
    alone = one_by_one(reward[:TWINS])
    second = (time.perf_counter() - started) / TWINS
    gap = np.abs(together[:TWINS] - alone).max()
    print(f"a prompt: {1e3 * first:.0f} ms together, {1e3 * second:.0f} ms alone, ratio {second / first:.0f}")
    print(f"largest difference in a probability: {gap:.1e}")


if __name__ == "__main__":
    main()
