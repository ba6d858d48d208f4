"""The conformance test on TRL itself, small; and on trainers that were spoilt on purpose."""

from pathlib import Path

import numpy as np
import pytest

from kleash.kl import log_softmax
from kleash.translate import needed_settings, snippet
from kleash.trials.cases import TRIALS, Case, puzzle
from kleash.trials.conformance import run_case
from kleash.trials.roots import root
from kleash.trials.tiny import TinyPolicy
from kleash.trials.trl_runs import run_trl

trl = pytest.importorskip("trl")

SIZES = (60, 60, 256)
RLOO = Case(trainer="trl-rloo", world="three", settings={"beta": 0.5, "num_generations": 8})
GRPO = Case(trainer="trl-grpo", world="coin", settings={"beta": 1.0})


@pytest.mark.parametrize("world", ["points", "words"])
def test_a_tiny_policy_is_set_exactly_and_moves_as_told(tmp_path: Path, world: str):
    there = puzzle(world)
    policy = TinyPolicy.build(there, tmp_path)
    wanted = there.reference_logits + np.random.default_rng(0).normal(size=there.reference_logits.shape)
    policy.set_logits(wanted)
    np.testing.assert_allclose(log_softmax(policy.logits()), log_softmax(wanted), atol=2e-5)  # float32 weights


def test_defaults_are_the_trainers():
    for name, config in (("trl-grpo", trl.GRPOConfig), ("trl-rloo", trl.RLOOConfig), ("trl-dpo", trl.DPOConfig)):
        fields = config.__dataclass_fields__
        for key, value in TRIALS[name].settings.items():
            if key in fields:
                assert fields[key].default == value, (name, key)


@pytest.mark.parametrize("name", ["trl-grpo", "trl-rloo", "trl-dpo"])
def test_what_is_pasted_is_taken(name: str, tmp_path: Path):
    needed = needed_settings(name, {}, value=0.5)
    config = getattr(trl, snippet(name, needed).partition("(")[0])(output_dir=str(tmp_path), use_cpu=True, **needed)
    for key, value in needed.items():
        assert getattr(config, key) in (value, [value]), key


def test_standardised_grpo_lands_at_the_finite_group_root():
    row = run_case(GRPO, sizes=SIZES)
    assert row.outcome == "another objective, as documented"
    assert row.predicted.reward == pytest.approx(0.591, abs=1e-3)
    assert row.implied.reward == pytest.approx(0.591, abs=0.03)


def test_rloo_lands_at_the_tilt():
    row = run_case(RLOO, sizes=SIZES)
    assert row.outcome == "tilt"
    assert abs(row.gap_kl) < 0.1


@pytest.mark.parametrize(
    ("case", "spoil"),
    [(RLOO, "scores"), (GRPO, "beta"), (Case(trainer="trl-dpo", world="coin", settings={"beta": 1.0}), "scores")],
)
def test_a_spoilt_trainer_has_the_wrong_fixed_point(case: Case, spoil: str, monkeypatch: pytest.MonkeyPatch):
    """Scores 30 % too large, or a beta 30 % too small, beside the settings that were declared."""
    from kleash.trials import trl_runs

    honest = trl_runs.run_trl

    def spoilt(asked: Case, there, **options):
        if spoil == "beta":
            asked = Case(trainer=asked.trainer, world=asked.world, settings=asked.settings | {"beta": 0.7})
            return honest(asked, there, **options)
        return honest(asked, there, **options, scores=1.3 * there.reward)

    monkeypatch.setattr(trl_runs, "run_trl", spoilt)
    row = run_case(case, sizes=SIZES)
    assert row.outcome == "wrong fixed point"


def test_gradients_at_a_held_point_do_not_move_it():
    there = puzzle("coin")
    trace = run_trl(GRPO, there, start=root(there, GRPO.objective), steps=3, rate=None, batch=64, seed=0)
    assert trace.update.shape == (3, 1, 2)
    assert np.ptp(trace.logits, axis=0).max() == 0.0
    assert np.abs(trace.update).max() > 0
