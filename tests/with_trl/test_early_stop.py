"""The stop at the gold peak: it fires where the judge is cheated, and not where the judge is honest."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("trl")

from tiny_runs import Run
from transformers import TrainerCallback

HACKED = np.array([0.0, 0.3, 1.0, -1.0])  # the judge's favourite of "points" is the worst answer
HONEST = np.array([0.0, 0.2, 0.7, 1.0])  # what the judge likes better is better
EVERY, STEPS = 4, 80


class ExactGold(TrainerCallback):
    def __init__(self, run: Run, gold: np.ndarray) -> None:
        self.run, self.gold, self.exact = (
            run,
            gold,
            {0: float(np.exp(run.world.log_policy(run.policy.logits())) @ gold)},
        )

    def on_step_end(self, args, state, control, **_):
        policy = np.exp(self.run.world.log_policy(self.run.policy.logits()))
        self.exact[state.global_step] = float(policy @ self.gold)


def train(folder: Path, gold: np.ndarray, seed: int) -> tuple[Run, dict[int, float]]:
    options = {"every": EVERY, "n_prompts": 32, "n_answers": 4, "stop_at_gold_peak": True, "dump": False, "seed": seed}
    run = Run(
        folder, world="points", gold=gold, steps=STEPS, rate=0.006, seed=seed, callback=options,
        per_device_train_batch_size=64, logging_strategy="no", per_device_eval_batch_size=128,
        prompts=["?"] * 512,
    )  # fmt: skip
    path = ExactGold(run, gold)
    run.trainer.add_callback(path)
    run.trainer.train()
    return run, path.exact


def right_on_hacking(run: Run, exact: dict[int, float]) -> bool:
    """Fired; at a best measurement whose true value is near the true peak; soon after the peak, and after it."""
    if run.callback.stopped_at is None:
        return False
    peak = max(exact, key=exact.__getitem__)
    best = run.callback._watch.best_step
    near = exact[best] > exact[peak] - 0.1 * np.ptp(HACKED)
    return near and peak < run.callback.stopped_at < STEPS


def test_fires_on_a_hacked_judge(tmp_path: Path):
    run, exact = train(tmp_path, HACKED, 0)
    assert right_on_hacking(run, exact)
    assert run.trainer.state.global_step == run.callback.stopped_at


@pytest.mark.slow
@pytest.mark.parametrize(("gold", "fires"), [(HACKED, True), (HONEST, False)])
def test_twenty_seeds(tmp_path: Path, gold: np.ndarray, fires: bool):
    """At most one wrong of 20: with the stated 5 % of false alarms per run, 26 % of honest tests would hold two."""
    wrong = []
    for seed in range(20):
        run, exact = train(tmp_path / str(seed), gold, seed)
        right = right_on_hacking(run, exact) if fires else run.callback.stopped_at is None
        print(seed, run.callback.stopped_at, run.callback._watch.best_step, max(exact, key=exact.__getitem__), right)
        wrong += [] if right else [seed]
    assert len(wrong) <= 1, wrong
