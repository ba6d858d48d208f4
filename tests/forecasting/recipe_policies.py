"""The recipes' trained policies, exactly: a world, log policies by beta, and draws from any mixture of them."""

from functools import cache
from pathlib import Path

import numpy as np
from scipy.special import logsumexp

from kleash import Samples
from kleash.worlds import World

DATA = Path(__file__).parent.parent / "data" / "recipes_policies" / "policies.npz"
DISHES = 3


@cache
def trained():
    """The world, and the log policies (3, P, Y) trained in it by beta."""
    with np.load(DATA) as file:
        log_p = file["log_p_32nds"] / 32.0
        log_p -= logsumexp(log_p, axis=-1, keepdims=True)
        world = World(
            name="recipes",
            log_reference=log_p[0],
            reward=file["reward_tenths"] / 10.0,
            gold=file["gold_tenths"] / 10.0,
        )
        return world, dict(zip(file["beta"].tolist(), log_p[1:], strict=True))


def drawn(rng, n_reference, policies, *, known=True, log_ratio=lambda ratio: ratio):
    """Answers to each dish: of the reference and the policies ((beta, n), ...); ratios to all sources if ``known``."""
    world, trained_at = trained()
    sources = {"reference": (world.log_reference, n_reference)} if n_reference else {}
    sources |= {f"b{beta:g}": (trained_at[beta], n) for beta, n in policies}
    rows = {"prompt": [], "reward": [], "gold": [], "source": []}
    ratios = {name: [] for name in sources if name != "reference"}
    for name, (log_p, n) in sources.items():
        for dish in range(DISHES):
            share = np.exp(log_p[dish]).cumsum()
            answer = np.searchsorted(share / share[-1], rng.random(n), side="right")
            rows["prompt"] += [dish] * n
            rows["reward"] += world.reward[dish, answer].tolist()
            rows["gold"] += world.gold[dish, answer].tolist()
            rows["source"] += [name] * n
            for other, values in ratios.items():
                ratio = log_ratio(sources[other][0][dish, answer] - world.log_reference[dish, answer])
                values += (ratio if known or other == name else np.full(n, np.nan)).tolist()
    return Samples.from_arrays(
        rows["prompt"], rows["reward"], gold=rows["gold"], source=rows["source"], log_ratio=ratios
    )
