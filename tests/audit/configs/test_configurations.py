"""A configuration alone: which term acts, what nobody set, and what acts on nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kleash.audit import check
from kleash.cli import cli
from kleash.errors import ConfigError, OptionError
from kleash.trainers import TRAINERS, whose


def checked(folder: Path, text: str, name: str = "run.yaml", **told):
    path = folder / name
    path.write_text(text)
    report = check(path, **told)
    return report.inputs[0], {finding.code: finding for finding in report.findings}


VERL = "actor: {use_kl_loss: %s, kl_loss_coef: %s, kl_loss_type: %s}\nalgorithm: {kl_ctrl: {kl_coef: %s}}"
TURNED_OFF = [  # a coefficient that somebody set and that acts on nothing, and the twin in which it acts
    ("run.yaml", VERL % ("false", 0.05, "k2", 0.001), VERL % ("true", 0.05, "k2", 0.001)),
    ("run.yaml", VERL % ("true", 0.002, "k2", 0.05), VERL % ("true", 0.002, "k2", 0.001)),
    ("run.sh", "python t.py --advantage-estimator grpo --kl-coef 0.01 --kl-loss-type k2",
     "python t.py --advantage-estimator grpo --use-kl-loss --kl-loss-coef 0.01 --kl-loss-type k2"),
    ("run.yaml", "actor: {kl_ctl: 0.1}", "actor: {kl_ctl: 0.1}\nref: {path: some/model}"),
    ("run.yaml", "algorithm: {disable_kl: true, kl_coef: 0.01, kl_type: fixed}",
     "algorithm: {disable_kl: false, kl_coef: 0.01, kl_type: fixed, kl_penalty: kl}"),
    ("run.toml", "init_kl_coef = 0.3\nadd_token_level_kl = false", "init_kl_coef = 0.3\nadd_token_level_kl = true"),
    ("run.json", '{"kl_beta": 0.1, "use_kl_loss": false}',
     '{"kl_beta": 0.1, "use_kl_loss": true, "kl_loss_type": "k2"}'),
]  # fmt: skip


@pytest.mark.parametrize(("name", "bad", "good"), TURNED_OFF)
def test_a_coefficient_that_acts_on_nothing_is_a_problem_and_its_twin_none(tmp_path, name, bad, good):
    _, found = checked(tmp_path, bad, name)
    assert found["PLACEMENT"].status == "problem"
    _, found = checked(tmp_path, good, name)
    assert [code for code, f in found.items() if f.status == "problem"] == []


def test_a_whole_configuration_at_its_defaults_is_no_problem(tmp_path):
    """Dumps hold every default, coefficients that act on nothing among them."""
    for name, trainer in TRAINERS.items():
        options = {key: option.default for key, option in trainer.options.items() if option.default is not None}
        item, found = checked(tmp_path, json.dumps({(trainer.options[key].names or (key,))[0]: value
                              for key, value in options.items()}), "run.json", trainer=name)  # fmt: skip
        assert item.trainer == name
        assert found["PLACEMENT"].status == ("problem" if name in ("areal", "roll") else "ok"), name


def test_what_nobody_set_is_said(tmp_path):
    item, found = checked(tmp_path, "trainer: {algorithm: {kl_estimator_type: k2}}")
    assert (item.trainer, item.kind, item.rows) == ("skyrl", "config", 1)
    assert "use_kl_loss true" in found["PLACEMENT"].message
    assert "by default" in found["PLACEMENT"].message
    assert found["COEFFICIENT"].message == "kl_loss_coef (by default: nobody set it) is 0.001"
    assert item.facts["coefficient"] == {"value": 0.001, "lo": 0.001, "hi": 0.001, "from": "default"}
    assert item.facts["unset"] == {"use_kl_loss": True, "use_kl_in_reward": False, "kl_loss_coef": 0.001}
    item, found = checked(tmp_path, "num_generations: 8\nuse_bias_correction_kl: true")
    assert item.facts["placement"] == "none"
    assert "beta (by default: nobody set it) is 0" in found["PLACEMENT"].message


GRADIENTS = [
    (VERL % ("true", 0.01, "k1", 0.001), "problem", "no expected gradient"),
    (VERL % ("true", 0.01, "abs", 0.001), "ok", "neither KL"),
    (VERL % ("true", 0.01, "low_var_kl", 0.001), "ok", "KL(reference || policy)"),
    (VERL % ("true", 0.01, "mse", 0.001), "ok", "along KL(policy || reference)"),
    ("beta: 0.04\nuse_bias_correction_kl: true", "ok", "along KL(policy || reference)"),
    ("beta: 0.04\nuse_bias_correction_kl: false", "ok", "KL(reference || policy)"),
]


@pytest.mark.parametrize(("text", "status", "said"), GRADIENTS)
def test_the_gradient_of_the_term_is_said(tmp_path, text, status, said):
    _, found = checked(tmp_path, text)
    assert (found["GRADIENT"].status, said in found["GRADIENT"].message) == (status, True)


def test_units_signs_controllers_and_both_places(tmp_path):
    item, found = checked(tmp_path, "use_kl_loss: true\nuse_kl_in_reward: true\nkl_loss_coef: 0.1\nadv_estimator: gae")
    assert "counted twice" in found["PLACEMENT"].message
    item, found = checked(tmp_path, "use_kl_loss: true\nkl_loss_coef: -0.1\nkl_loss_type: k2\nadv_estimator: gae")
    assert found["COEFFICIENT"].status == "problem"
    assert item.facts["penalty_kl_unit"] == "nats per token"
    item, found = checked(tmp_path, "kl_tau: 0.001")
    assert "never the drift" in found["PLACEMENT"].message
    item, found = checked(
        tmp_path, "algo.kl.init_coef: 0.01\nalgo.kl.target: 6.0\nalgo.kl.estimator: k1", trainer="openrlhf"
    )
    assert "follows the KL" in found["CONTROLLER"].message
    assert item.facts["penalty_kl_unit"] == "nats per answer"


def test_a_variable_is_no_value_and_nothing_is_said_of_it(tmp_path):
    item, found = checked(tmp_path, "python t.py --use-kl-loss --kl-loss-coef $BETA --kl-loss-type k2", "run.sh")
    assert {f.status for f in found.values()} == {"not-run"}
    assert "not those of kl_loss_coef" in found["PLACEMENT"].message
    assert item.trainer == "verl"


def test_a_named_trainer_is_known_and_has_options_in_the_file(tmp_path):
    text = "use_kl_loss: true\nkl_loss_coef: 0.1"
    with pytest.raises(OptionError, match="trainer: expected one of"):
        checked(tmp_path, text, trainer="foo")
    with pytest.raises(ConfigError, match="expected options of tinker, got none of kl_discount_factor"):
        checked(tmp_path, text, trainer="tinker")
    (tmp_path / "cut.parquet").write_bytes(b"PAR1")
    report = check(tmp_path, trainer="tinker")  # in a folder others are read as what they are
    assert [item.trainer for item in report.inputs] == ["verl"]


def test_a_reference_of_areal_is_there_under_any_of_its_options(tmp_path):
    _, found = checked(tmp_path, "actor: {kl_ctl: 0.1}\nref: {backend: 'fsdp:d1'}")
    assert found["PLACEMENT"].status == "ok"


def test_whose_configuration_it_is():
    assert whose({"trl": {"beta": 0.1}, "rl": "grpo"})[0] == "axolotl"
    assert whose({"kl_penalty_coef": 0.1, "kl_discount_factor": 0})[0] == "tinker"
    assert whose({"hidden_size": 64, "beta": 1, "temperature": 1}) == []


def test_what_is_no_configuration_of_a_trainer_gets_one_line(tmp_path, capsys):
    for text, said in (
        ("lr: 1", "got keys lr"),
        ("use_kl_los: true", "did you mean 'use_kl_loss'"),
        ("- 1", "a table"),
    ):
        with pytest.raises(ConfigError, match=said):
            checked(tmp_path, text)
    (tmp_path / "run.sh").write_text("echo 'open")
    with pytest.raises(SystemExit) as stop:
        cli.main(["check", str(tmp_path / "run.sh")])
    assert stop.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1
