"""Do the half-widths that ``kleash forecast --plan`` predicts come true? Worlds drawn again at the planned size.

``python bench/plan_widths.py``: for each world and size the mean half-width of the gain at beta 2 now, as planned and
as it came out with four times the prompts, and with every answer labelled.
"""

from __future__ import annotations

import numpy as np

from kleash import Samples, forecast

BETA, DRAWS = 2.0, 16
SIZES = ((60, 16, 1.0), (60, 16, 0.25), (100, 8, 0.5))


def world(rng: np.random.Generator, kind: str, shape: tuple[int, int], share: float) -> Samples:
    """Samples of P x K answers, a share of them labelled: right or wrong, gold that turns over, or noisy gold."""
    reward = rng.normal(size=shape) + 0.5 * rng.normal(size=(shape[0], 1))
    if kind == "right or wrong":
        reward = (reward > 0).astype(float)
        gold = np.where(rng.random(shape) < 0.15, 1 - reward, reward)
    elif kind == "turns over":
        gold = reward - 0.3 * np.maximum(reward - 1, 0) ** 2 + 0.7 * rng.normal(size=shape)
    else:
        gold = 0.6 * reward + rng.normal(size=shape) + 0.5 * rng.normal(size=(shape[0], 1)) * reward
    gold = np.where(rng.random(shape) < share, gold, np.nan)
    return Samples.from_arrays(np.repeat(np.arange(shape[0]), shape[1]), reward.ravel(), gold=gold.ravel())


def widths(rng: np.random.Generator, kind: str, shape: tuple[int, int], share: float) -> np.ndarray:
    """Mean half-width now, planned for four times the prompts, and planned for all labels."""
    found = []
    for _ in range(DRAWS):
        plan = forecast(world(rng, kind, shape, share), beta=[BETA], tolerance=0.01).plan
        if plan is None or plan.half_width is None:
            continue
        more = [row.half_width for row in plan.widths if row.prompts == 4 * shape[0]]
        labels = [row.half_width for row in plan.widths if row.prompts == shape[0]]
        found.append([plan.half_width, more[0], labels[-1]])
    return np.mean(found, axis=0)


def main() -> None:
    rng = np.random.default_rng(0)
    print(
        f"{'gold':15} {'P':>4} {'K':>3} {'share':>5}   now | 4 P: planned, came, ratio | labels: planned, came, ratio"
    )
    for kind in ("right or wrong", "turns over", "noisy"):
        for n, k, share in SIZES:
            now, prompts, labels = widths(rng, kind, (n, k), share)
            came = widths(rng, kind, (4 * n, k), share)[0]
            line = f"{kind:15} {n:4} {k:3} {share:5} {now:5.3f} | {prompts:.3f} {came:.3f} {prompts / came:.2f}"
            if share < 1:
                came = widths(rng, kind, (n, k), 1.0)[0]
                line += f" | {labels:.3f} {came:.3f} {labels / came:.2f}"
            print(line)


if __name__ == "__main__":
    main()
