"""Real runs of TRL, read back: unit and place right, the coefficient right where the log holds it, and no false alarm.

Opt-in: ``make test-trl``. A run takes half a second once TRL is loaded.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
from importlib.metadata import version

import numpy as np
import pytest
from trl_runs import RUNS, Witness, online, paired, quietly, state_of

import kleash
from kleash.trainers import TRAINERS

INSTALLED = importlib.util.find_spec("trl") is not None  # not imported before a test asks for it: that takes seconds
pytestmark = [pytest.mark.trl, pytest.mark.skipif(not INSTALLED, reason="needs the extra [trl]")]

TOKEN, ANSWER = "nats per token", "nats per answer"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Every run once, by name."""
    base, made = tmp_path_factory.mktemp("trl"), {}
    with quietly():
        import trl  # noqa: F401

    def run(name):
        if name not in made:
            with quietly():
                made[name] = RUNS[name](base / str(len(made)))
        return made[name]

    return run


def read(path, config=None, tmp_path=None, **more):
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
        more["config"] = tmp_path / "config.json"
    report = kleash.check(path, **more)
    (one,) = report.inputs
    return one, {finding.code: finding for finding in report.findings}, report.problems


def bare(folder, tmp_path):
    """The trainer state alone, without the model card beside it."""
    (tmp_path / "bare").mkdir()
    return shutil.copy(state_of(folder), tmp_path / "bare" / "trainer_state.json")


@pytest.mark.parametrize("name", RUNS)
def test_no_healthy_run_has_a_problem_with_or_without_its_card(runs, name, tmp_path):
    folder = runs(name)
    for path in (folder, bare(folder, tmp_path)):
        one, _, problems = read(path)
        assert problems == ()
        assert one.trainer in {"trl-grpo", "trl-rloo", "trl-dpo", "trl-kto", "trl-online-dpo"}
    assert one.rows >= 4


@pytest.mark.parametrize(
    "name", [name for name in RUNS if name.startswith(("grpo", "dapo", "bnpo", "dr_", "sapo", "ci"))]
)
def test_grpo_is_k3_per_token_in_the_loss(runs, name):
    one, found, _ = read(runs(name))
    facts = one.facts
    assert (one.trainer, facts["trainer_version"]) == ("trl-grpo", version("trl"))
    if name == "grpo beta 0":
        assert (facts["placement"], facts["estimator"], facts["kl_column"]) == ("none", None, None)
        assert (facts["coefficient"], facts["logged_kl_unit"]) == (None, None)
        return
    assert (facts["placement"], facts["estimator"]) == ("loss", "k3")
    assert (facts["logged_kl_unit"], facts["penalty_kl_unit"]) == (TOKEN, TOKEN)
    assert found["KL_ZERO"].status == "ok" or one.rows < 5
    assert "by the default of TRL 1.16" in found["GRADIENT"].message


HOLD = [name for name in RUNS if name.startswith("grpo") and name not in ("grpo beta 0", "grpo, two updates")]


@pytest.mark.parametrize("name", HOLD)
def test_with_its_loss_type_grpo_gives_an_interval_around_beta(runs, name, tmp_path):
    _, found, problems = read(runs(name), {"loss_type": "grpo", "beta": 0.04}, tmp_path)
    evidence = found["COEFFICIENT"].evidence
    assert (found["COEFFICIENT"].status, problems) == ("ok", ())
    assert evidence["lo"] <= 0.04 <= evidence["hi"]
    assert evidence["value"] == pytest.approx(0.04, rel=0.35)  # lengths from 1 to 10 weigh tokens and answers apart
    _, found, _ = read(runs(name), {"loss_type": "grpo", "beta": 4.0}, tmp_path)
    assert found["COEFFICIENT"].status == "problem"


@pytest.mark.parametrize("name", ["dapo, answers of one length", "dr_grpo, answers of one length"])
def test_answers_of_one_length_hold_beta_exactly_without_a_config(runs, name, tmp_path):
    one, found, _ = read(bare(runs(name), tmp_path))
    coefficient = one.facts["coefficient"]
    assert coefficient["value"] == pytest.approx(0.04, rel=1e-3)
    assert coefficient["lo"] <= 0.04 <= coefficient["hi"] < 1.05 * 0.04
    assert (found["PLACEMENT"].status, one.facts["placement"]) == ("ok", "loss")
    assert read(bare_again(tmp_path), beta=0.05)[1]["COEFFICIENT"].status == "problem"


def bare_again(tmp_path):
    return tmp_path / "bare" / "trainer_state.json"


@pytest.mark.parametrize("name", ["dapo", "bnpo", "dr_grpo", "sapo", "cispo", "dapo, resumed", "grpo, two updates"])
def test_where_a_policy_term_is_in_the_loss_nothing_is_guessed(runs, name, tmp_path):
    one, found, _ = read(runs(name))
    assert one.facts["coefficient"] is None
    assert found["COEFFICIENT"].status == found["SIGN"].status == "cannot-tell"
    settings = {"loss_type": name.split(",")[0], "beta": 0.04, "num_iterations": 1 + ("two" in name)}
    for beta in (0.04, 4.0):  # whatever is declared: this log does not contradict it
        one, found, problems = read(runs(name), settings | {"beta": beta}, tmp_path)
        assert (found["COEFFICIENT"].status, problems) == ("cannot-tell", ())
        assert one.facts["coefficient"]["value"] == beta


def test_bias_correction_is_said_and_left_open_without_card_and_config(runs, tmp_path):
    folder = runs("grpo, no bias correction")
    _, found, _ = read(folder, {"use_bias_correction_kl": False, "beta": 0.04}, tmp_path)
    assert "along KL(reference || policy)" in found["GRADIENT"].message
    _, found, _ = read(folder, {"use_bias_correction_kl": True, "beta": 0.04}, tmp_path)
    assert found["GRADIENT"].message.startswith("k3 in the loss-with-ratio pulls along KL(policy || reference)")
    _, found, _ = read(bare(folder, tmp_path), trainer="trl-grpo")
    assert "does not say which" in found["GRADIENT"].message
    assert any(change.version == (1, 16) for change in TRAINERS["trl-grpo"].changes)


@pytest.mark.parametrize("name", ["rloo", "rloo, advantages normalised"])
def test_rloo_is_k1_in_the_reward_and_its_log_never_holds_beta(runs, name, tmp_path):
    for path, config in ((runs(name), None), (bare(runs(name), tmp_path), None), (runs(name), {"beta": 0.05})):
        one, found, _ = read(path, config, tmp_path)
        facts = one.facts
        assert (one.trainer, facts["placement"], facts["estimator"]) == ("trl-rloo", "reward", "k1")
        assert (facts["logged_kl_unit"], facts["penalty_kl_unit"]) == (TOKEN, ANSWER)
        assert found["COEFFICIENT"].status == "cannot-tell"
        assert facts["coefficient"] is None or (config and facts["coefficient"]["from"] == "declared")
        assert "multiply by the mean length" in found["KL_UNIT"].message


@pytest.mark.parametrize("kind", ["grpo", "rloo"])
def test_the_logged_kl_is_the_mean_over_tokens(kind, tmp_path):
    """Computed again from the weights and answers of each step, in float64 and without the trainer."""
    witness = Witness()
    with quietly():
        folder = online(kind, tmp_path / "run", beta=0.05, steps=8, witness=witness)
    rows = [row for row in json.loads(state_of(folder).read_text())["log_history"] if "kl" in row]
    own = {"tokens": [], "answers": [], "sums": []}
    for ratios in witness.log_ratios():
        k = [np.expm1(-d) + d if kind == "grpo" else d for d in ratios]
        own["tokens"].append(np.concatenate(k).mean())
        own["answers"].append(np.mean([x.mean() for x in k]))
        own["sums"].append(np.mean([x.sum() for x in k]))
    logged = [row["kl"] for row in rows]
    np.testing.assert_allclose(logged, own["tokens"], rtol=2e-3, atol=2e-6)
    for other in ("answers", "sums"):  # and no other mean: the tolerance tells them apart
        assert not np.allclose(logged, own[other], rtol=2e-3, atol=2e-6)
    unit = read(folder)[0].facts["logged_kl_unit"]
    assert unit == TOKEN


@pytest.mark.parametrize("name", ["dpo, evaluated", "kto, evaluated"])
def test_two_evaluations_hold_the_beta_of_dpo(runs, name, tmp_path):
    one, _, _ = read(runs(name))
    coefficient = one.facts["coefficient"]
    assert coefficient["lo"] <= 0.2 <= coefficient["hi"]
    assert coefficient["value"] == pytest.approx(0.2, rel=1e-3)
    assert (one.facts["placement"], one.facts["penalty_kl_unit"]) == ("loss", ANSWER)
    assert read(runs(name), {"beta": 0.1}, tmp_path)[1]["COEFFICIENT"].status == "problem"
    assert read(runs(name), {"beta": 0.2}, tmp_path)[1]["COEFFICIENT"].status == "ok"


def test_training_rows_of_dpo_hold_nothing(runs):
    one, found, _ = read(runs("dpo"))
    assert (one.facts["placement"], one.facts["coefficient"]) == ("loss", None)
    assert "beta times the log ratio" in found["COEFFICIENT"].message
    assert found["KL_ZERO"].status == "ok"


def test_online_dpo_logs_its_beta_twice(runs):
    one, found, _ = read(runs("online dpo"))
    assert one.facts["coefficient"]["value"] == pytest.approx(0.2, rel=1e-4)
    assert (one.facts["placement"], one.facts["logged_kl_unit"], one.facts["penalty_kl_unit"]) == (
        "loss",
        ANSWER,
        ANSWER,
    )
    assert found["COEFFICIENT"].status == "ok"


def test_a_resumed_run_is_one_run(runs):
    one, found, _ = read(runs("dapo, resumed"))
    assert one.rows == 12
    assert found["RESUME"].status == "ok"


def test_a_reward_function_of_weight_0_is_gold(runs):
    one, found, _ = read(runs("grpo"), gold="quality")
    assert one.facts["gold"] == "quality"
    assert found["HACKING"].status == "ok"
    assert found["HACKING"].evidence["rows"] == 12


@pytest.mark.parametrize("kind", ["grpo", "dpo", "kto"])
def test_at_trls_default_logging_the_start_is_decided_and_nothing_wrong_is_said(tmp_path, kind):
    """A row in ten steps, the first of step 10; learning rate 1e-6."""
    with quietly():
        if kind == "grpo":
            online(kind, tmp_path / "run", steps=20, beta=0.04, logging_steps=10, learning_rate=1e-6)
        else:
            paired(kind, tmp_path / "run", steps=20, beta=0.1, logging_steps=10, learning_rate=1e-6)
    report = kleash.check(tmp_path / "run")
    (start,) = (finding for finding in report.findings if finding.code == "STEP0_KL")
    assert (start.status, start.evidence["step"]) == ("ok", 10)
    assert report.problems == ()
