"""What log, check and translation say of one run is one thing."""

import json
import shutil
from pathlib import Path

import pytest

import kleash
from kleash.logs import read_logs

DATA = Path(__file__).parents[1] / "data" / "logs"


def verl_log(folder, settings):
    """A console of verl: the command line, then rows with the penalty in the loss."""
    rows = [f"step:{i} - actor/pg_loss:0.01 - actor/kl_loss:{0.002 * i:.6f} - actor/loss:{0.01 + 2e-6 * i:.9f} - "
            f"critic/score/mean:0.3 - actor/kl_coef:0.001" for i in range(1, 9)]  # fmt: skip
    command = "python3 -m verl.trainer.main_ppo actor.use_kl_loss=True actor.kl_loss_coef=0.001 " + settings
    (folder / "verl.log").write_text("\n".join([command, *rows]) + "\n")
    return folder / "verl.log"


def gradient(path, **more):
    report = kleash.check(path, **more)
    return {finding.code: finding for finding in report.findings}["GRADIENT"], report.inputs[0].facts


def test_the_size_of_the_log_ratio_has_the_gradient_of_neither_kl(tmp_path):
    path = verl_log(tmp_path, "actor.kl_loss_type=abs")
    (column,) = (c for c in read_logs(path)[0].kl if c.key == "actor/kl_loss")
    assert (column.spec.estimator, column.spec.clamp) == ("abs", None)
    finding, facts = gradient(path)
    assert finding.status == "ok"
    assert "neither KL" in finding.message
    assert (facts["estimator"], facts["kl_spec"]["estimator"]) == ("abs", "abs")
    told = kleash.convert(0.1, target="verl-loss", settings={"kl_loss_type": "abs"})
    assert "neither KL" in told.refused


def test_a_configuration_given_besides_relabels_the_log(tmp_path):
    path = verl_log(tmp_path, "")
    (column,) = (c for c in read_logs(path)[0].kl if c.key == "actor/kl_loss")
    assert (column.spec.estimator, column.spec.clamp) == ("k3", (-20.0, 20.0))  # its default, with its clamp
    (tmp_path / "run.json").write_text(json.dumps({"actor": {"kl_loss_type": "abs"}}))
    finding, facts = gradient(path, config=tmp_path / "run.json")
    assert "neither KL" in finding.message
    assert (facts["estimator"], facts["kl_spec"]["estimator"], facts["kl_spec"]["clamp"]) == ("abs", "abs", None)


@pytest.mark.parametrize(
    ("word", "value", "gradient_of"),
    [("kl", "k1", "no expected gradient"), ("mse", "k2", "along KL(policy"), ("k1+", "k1", "along KL(policy"),
     ("k3+", "k3", "along KL(policy"), ("low_var_kl", "k3", "along KL(reference")],
)  # fmt: skip
def test_a_word_has_one_value_and_one_gradient(tmp_path, word, value, gradient_of):
    path = verl_log(tmp_path, f"actor.kl_loss_type={word}")
    (column,) = (c for c in read_logs(path)[0].kl if c.key == "actor/kl_loss")
    assert column.spec.estimator == value
    assert gradient_of in gradient(path)[0].message


def test_in_the_reward_the_value_is_paid_and_not_the_gradient():
    from kleash.audit.declared import Declared
    from kleash.audit.logs.settings import settings_of

    paid = {"use_kl_in_reward": True, "kl_penalty": "k1+"}
    assert settings_of("verl", paid, Declared()).estimator == "k1"
    assert kleash.convert(0.1, target="verl-reward", settings={"kl_penalty": "k1+"}).value == 0.1


@pytest.mark.parametrize(
    ("version", "placement", "says", "note"),
    [("1.9.2", "loss", "but along KL(reference || policy)", None),
     ("1.10.0", "loss", "does not say which", "in TRL 1.10.0 is not known"),
     ("1.15.3", "loss", "does not say which", "in TRL 1.15.3 is not known"),
     ("1.16.0", "loss-with-ratio", "by the default of TRL 1.16", None)],
)  # fmt: skip
def test_between_two_known_defaults_of_trl_nobody_knows(tmp_path, version, placement, says, note):
    shutil.copytree(DATA / "trl_1_16_grpo", tmp_path / "run")
    card = (tmp_path / "run" / "README.md").read_text()
    (tmp_path / "run" / "README.md").write_text(card.replace("TRL: 1.16.0", f"TRL: {version}"))
    (log,) = read_logs(tmp_path / "run")
    notes = [line for line in log.notes if "k3 stands as a plain loss" in line]
    assert log.kl[0].spec.placement == placement
    assert (notes and note in notes[0]) if note else not notes
    finding, facts = gradient(tmp_path / "run")
    assert says in finding.message
    assert facts["kl_spec"]["placement"] == placement
    assert set(notes) <= set(facts["notes"])
