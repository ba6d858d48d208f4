"""What TRL 1.16 really wrote, read and checked without TRL: the runs of tests/with_trl/trl_runs.py."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import kleash
from kleash.logs import read_logs

DATA = Path(__file__).parents[1] / "data" / "logs"
TOKEN, ANSWER = "nats per token", "nats per answer"

#   log, trainer, placement, estimator, logged unit, penalty unit, beta and what is in the way if it is not there
EXPECTED = [
    ("trl_1_16_grpo", "trl-grpo", "loss", "k3", TOKEN, TOKEN, None),
    ("trl_1_16_dapo", "trl-grpo", "loss", "k3", TOKEN, TOKEN, None),
    ("trl_1_16_dapo_one_length", "trl-grpo", "loss", "k3", TOKEN, TOKEN, 0.04),
    ("trl_1_16_rloo", "trl-rloo", "reward", "k1", TOKEN, ANSWER, None),
    ("trl_1_16_dpo", "trl-dpo", "loss", None, None, ANSWER, 0.2),
    ("trl_1_16_kto", "trl-kto", "loss", None, ANSWER, ANSWER, 0.2),
    ("trl_1_16_online_dpo", "trl-online-dpo", "loss", None, ANSWER, ANSWER, 0.2),
    ("trl_1_16_online_dpo_console.txt", "trl-online-dpo", "loss", None, ANSWER, ANSWER, 0.2),
    ("trl_1_16_dapo_console.txt", "trl-grpo", "unknown", "k3", TOKEN, None, None),
]


@pytest.mark.parametrize(("name", "trainer", "place", "estimator", "logged", "penalty", "beta"), EXPECTED)
def test_real_output_is_read_right_and_raises_no_alarm(name, trainer, place, estimator, logged, penalty, beta) -> None:
    report = kleash.check(DATA / name)
    (one,) = report.inputs
    facts = one.facts
    assert (one.trainer, one.rows, report.problems) == (trainer, 12, ())
    assert (facts["placement"], facts["estimator"]) == (place, estimator)
    assert (facts["logged_kl_unit"], facts["penalty_kl_unit"]) == (logged, penalty)
    found = {finding.code: finding for finding in report.findings}["COEFFICIENT"]
    if beta is None:
        assert (facts["coefficient"], found.status) == (None, "cannot-tell")
    else:
        assert facts["coefficient"]["lo"] <= beta <= facts["coefficient"]["hi"] < 1.05 * beta
        assert found.status == "ok"
    if not name.endswith(".txt"):
        assert facts["trainer_version"] == "1.16.0"


def test_the_loss_type_gives_an_interval_around_beta(tmp_path) -> None:
    """Tokens and answers weigh lengths from 1 to 10 apart: loss / kl is .047 at beta .04, and the interval says so."""
    config = tmp_path / "grpo.toml"
    for beta, status in ((0.04, "ok"), (0.4, "problem"), (0.004, "problem")):
        config.write_text(f'loss_type = "grpo"\nbeta = {beta}\n')
        report = kleash.check(DATA / "trl_1_16_grpo", config=config)
        found = {finding.code: finding for finding in report.findings}["COEFFICIENT"]
        assert found.status == status
        assert found.evidence["lo"] < 0.04 < found.evidence["hi"]
        assert report.inputs[0].facts["coefficient"]["value"] == pytest.approx(
            0.04 if status == "ok" else 0.047, rel=0.01
        )


def test_what_the_gradient_is_depends_on_a_default_and_is_said_so(tmp_path) -> None:
    def says(path, **more):
        return {finding.code: finding for finding in kleash.check(path, **more).findings}["GRADIENT"].message

    assert "KL(policy || reference), token by token (use_bias_correction_kl by the default" in says(
        DATA / "trl_1_16_grpo"
    )
    (tmp_path / "off.toml").write_text("use_bias_correction_kl = false\nbeta = 0.04\n")
    assert "but along KL(reference || policy)" in says(DATA / "trl_1_16_grpo", config=tmp_path / "off.toml")
    alone = shutil.copy(DATA / "trl_1_16_grpo" / "trainer_state.json", tmp_path)  # no card: no version
    assert "the log does not say which" in says(alone, trainer="trl-grpo")
    assert "but along KL(reference || policy)" in says(DATA / "trl_grpo_old.json")  # before there was a choice


def test_console_and_trainer_state_tell_the_same(tmp_path) -> None:
    for stem in ("trl_1_16_dapo", "trl_1_16_online_dpo"):
        (state,), (console,) = read_logs(DATA / stem), read_logs(DATA / f"{stem}_console.txt")
        keys = {key for key in console.raw if key != "epoch" and not key.startswith("train_")}  # the summary at the end
        assert {"loss", "learning_rate"} < keys <= set(state.raw)
        for key in keys:  # four significant digits
            assert console.raw[key] == pytest.approx(state.raw[key], rel=6e-4)


def test_a_configuration_without_a_known_name_of_the_penalty_is_still_one(tmp_path) -> None:
    config = tmp_path / "rloo.toml"
    config.write_text("beta = 0.05\nnormalize_advantages = true\nnum_train_epochs = 1\n")
    facts = kleash.check(DATA / "trl_1_16_rloo", config=config).inputs[0].facts
    assert facts["coefficient"] == {"value": 0.05, "lo": 0.05, "hi": 0.05, "from": "beta"}
