"""The language-model engine's losses against the enumerated update and its root."""

import sys

import numpy as np
import pytest

from kleash.errors import ConfigError, DependencyError
from kleash.trials.cases import Case, built_in, case_of, needs_torch, puzzle
from kleash.trials.conformance import conformance, run_case
from kleash.trials.roots import expected_update

CASES = [case for case in built_in("kleash") if needs_torch(case)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)
def test_the_mean_update_at_the_reference_is_the_enumerated_one(case: Case):
    """200 batches; no component further than 5 standard errors away: 1 in 10,000 honest sets has one."""
    pytest.importorskip("torch")
    from kleash.trials.own_runs import own_unit, run_own

    there = puzzle(case.world)
    start = there.reference_logits
    update = run_own(case, there, start=start, steps=200, rate=None, batch=256, seed=3).update * own_unit(case)
    off = update.mean(axis=0) - expected_update(there, start, case.objective)
    assert np.abs(off / (update.std(axis=0, ddof=1) / np.sqrt(200) + 1e-9)).max() < 5.0


@pytest.mark.parametrize(
    ("world", "settings", "outcome"),
    [
        ("words", {"beta": 0.25, "objective": "rloo"}, "tilt"),
        ("coin", {"beta": 1.0, "objective": "grpo"}, "another objective, as documented"),
        ("three", {"beta": 0.5, "objective": "dpo"}, "tilt"),
    ],
)
def test_it_lands_where_its_settings_say(world: str, settings: dict, outcome: str):
    pytest.importorskip("torch")
    row = run_case(Case(trainer="kleash", world=world, settings=settings), sizes=(60, 100, 256))
    assert row.outcome == outcome
    assert abs(row.gap_kl) < 0.1 or outcome != "tilt"


def test_a_spoilt_loss_has_the_wrong_fixed_point(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("torch")
    from kleash.train import objectives

    honest = objectives.rloo_loss
    monkeypatch.setattr(objectives, "rloo_loss", lambda s, m, r, p, beta, **o: honest(s, m, r, p, 0.8 * beta, **o))
    case = Case(trainer="kleash", world="three", settings={"beta": 0.5, "objective": "rloo"})
    assert run_case(case, sizes=(60, 60, 256)).outcome == "wrong fixed point"


def test_without_torch_the_rest_is_run_and_said_so(monkeypatch: pytest.MonkeyPatch):
    module = sys.modules["kleash.trials.conformance"]
    monkeypatch.setattr(module, "find_spec", lambda _: None)
    result = conformance("kleash")
    assert len(result.rows) == 3
    assert "left out" in result.notes[0]
    assert result.to_dict()["notes"] == list(result.notes)
    with pytest.raises(DependencyError, match="torch"):
        conformance("kleash", cases=CASES[:1])


def test_settings_of_its_own_are_checked():
    with pytest.raises(ConfigError, match="objective"):
        case_of("kleash", {"objective": "ppo"})
    with pytest.raises(ConfigError, match="kl_in_loss"):
        case_of("kleash", {"objective": "grpo", "kl_in_loss": "k2"})
