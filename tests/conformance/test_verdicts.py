"""What is told apart: the tilt, another objective, a wrong fixed point, a run that has not converged."""

import json

import numpy as np
import pytest
from scipy.optimize import brentq

from kleash.errors import DataError, OptionError
from kleash.trials.cases import Case, built_in, needs_torch, puzzle
from kleash.trials.conformance import conformance, run_case
from kleash.trials.roots import expected_update
from kleash.trials.verdicts import ALARM, Conformance, drift_test, judge, predict

STEPS = 200


def simulated(case: Case, *, rate: float = 2.0, wrong: float = 0.0, end: np.ndarray | None = None, noisy: float = 0.02):
    """A trainer made of its expected update and noise; ``wrong`` adds a constant pull to answer 0."""
    world, objective = puzzle(case.world), case.objective
    prediction = predict(world, objective)
    rng = np.random.default_rng(0)
    pull = np.zeros_like(world.reference_logits)
    pull[0, 0] += wrong
    pull -= pull.mean(axis=1, keepdims=True)

    def update(logits: np.ndarray) -> np.ndarray:
        noise = noisy * rng.normal(size=logits.shape)
        return expected_update(world, logits, objective) + noise - noise.mean(axis=1, keepdims=True) + pull

    held = np.array([update(prediction.hold) for _ in range(200)])
    paths = []
    for _ in range(2):
        logits, path = (world.reference_logits if end is None else end).copy(), []
        for _ in range(STEPS):
            logits = logits + rate * update(logits) / max(objective.tilt_beta, 0.5)
            path.append(logits)
        paths.append(np.array(path))
    return judge(case, world, prediction, unit=1.0, held=held, paths=paths, batch=1)


TILT = Case(trainer="trl-rloo", world="three", settings={"beta": 0.5})
OTHER = Case(trainer="trl-grpo", world="coin", settings={"beta": 1.0})
ENDLESS = Case(trainer="trl-dpo", world="three", settings={"beta": 0.5, "labels": "larger-score"})


def test_the_tilt():
    row = simulated(TILT)
    assert row.outcome == "tilt"
    assert abs(row.gap_kl) < 0.05
    assert row.implied.reward == pytest.approx(row.predicted.reward, abs=2 * row.implied.reward_within)


def test_another_objective():
    row = simulated(OTHER)
    assert row.outcome == "another objective, as documented"
    assert row.predicted.reward == pytest.approx(0.591, abs=1e-3)
    assert row.tilt.reward == pytest.approx(0.4046, abs=1e-4)


def test_no_finite_optimum():
    row = simulated(ENDLESS, rate=8.0)
    assert row.outcome == "another objective, as documented"
    assert row.predicted is None
    assert row.implied is None


def test_a_small_constant_pull_is_a_wrong_fixed_point():
    """A pull of 0.01 shifts the root by about 0.02 in probability: 7 standard errors of the mean update."""
    row = simulated(TILT, wrong=0.01)
    assert row.outcome == "wrong fixed point"
    assert row.drift_p < ALARM
    assert not row.passed


def test_slow_is_not_wrong():
    row = simulated(TILT, rate=0.01)
    assert row.outcome == "not converged"
    assert row.drift_p > ALARM


def test_a_second_stable_root_is_named():
    """Binary, G 64, beta 1: .669 is reached from the reference, another root lies near .998."""
    case = Case(trainer="trl-grpo", world="coin", settings={"beta": 1.0, "num_generations": 64})
    coin = puzzle("coin")

    def pull(p: float) -> float:
        return float(expected_update(coin, np.log([[1 - p, p]]), case.objective)[0, 1])

    other = brentq(pull, 0.99, 0.9999)
    row = simulated(case, end=np.log([[1 - other, other]]), noisy=1e-4)
    assert row.outcome == "wrong fixed point"
    assert "another stable root" in row.note


def test_drift_test_keeps_its_level_and_sees_a_shift():
    """1,000 honest sets at level 0.05: between 25 and 80 alarms (4.5 standard deviations)."""
    rng = np.random.default_rng(1)
    honest = [drift_test(rng.normal(size=(50, 3)), np.zeros(3), floor=0.0) for _ in range(1000)]
    assert 25 < sum(p < 0.05 for p in honest) < 80
    shifted = rng.normal(size=(200, 3)) + 0.4
    assert drift_test(shifted, np.zeros(3), floor=0.0) < 1e-6


def test_rounding_is_no_drift_but_a_constant_update_is():
    tiny = 1e-9 * np.random.default_rng(0).normal(size=(50, 2)) + 1e-9
    assert drift_test(tiny, np.zeros(2), floor=1e-7) == 1.0
    assert drift_test(np.full((50, 2), 0.1), np.zeros(2), floor=1e-7) == 0.0


def test_a_constant_pull_across_the_noise_is_a_drift():
    """The noise lies along (1, -1) alone; the pull is along (1, 1), where no batch varies."""
    noise = np.random.default_rng(0).normal(size=(200, 1)) * [1.0, -1.0]
    noise -= noise.mean(axis=0)
    assert drift_test(noise + 0.01, np.zeros(2), floor=1e-6) == 0.0
    assert drift_test(noise + 1e-9, np.zeros(2), floor=1e-6) == 1.0


def test_kleash_itself():
    for row in conformance("kleash", cases=[c for c in built_in("kleash") if not needs_torch(c)]).rows:
        assert row.outcome == "tilt", row.label
        assert abs(row.gap_kl) < 1e-3


def test_a_wrong_gradient_of_kleash_is_seen(monkeypatch: pytest.MonkeyPatch):
    from kleash.train import tabular

    honest = tabular.gradient
    monkeypatch.setattr(
        tabular, "gradient", lambda counts, reward: honest(counts, 1.02 * np.asarray(reward) + [0, 0.02])
    )
    assert run_case(Case(trainer="kleash", world="coin", settings={"beta": 1.0})).outcome == "wrong fixed point"


def test_results_are_kept_and_read_again(tmp_path, monkeypatch: pytest.MonkeyPatch):
    first = conformance("kleash", quick=True, folder=tmp_path)
    monkeypatch.setattr("kleash.trials.conformance.run_case", lambda *_, **__: 1 / 0)
    again = conformance("kleash", quick=True, folder=tmp_path)
    assert again.to_dict() == first.to_dict()
    assert Conformance.from_dict(json.loads(json.dumps(first.rows[0].to_dict()))) == first.rows[0]
    with pytest.raises(ZeroDivisionError):
        conformance("kleash", quick=True, folder=tmp_path, seed=1)  # another seed is another run
    next(iter(tmp_path.iterdir())).write_text("{}")
    with pytest.raises(DataError, match="remove it"):
        conformance("kleash", quick=True, folder=tmp_path)


def test_unknown_name():
    with pytest.raises(OptionError, match="did you mean 'trl-grpo'"):
        conformance("trl-grp")
