"""The trainers that build on others or stand alone: known by their logs, translated as the one they build on."""

from pathlib import Path

import numpy as np
import pytest

from kleash import convert
from kleash.audit import check
from kleash.audit.declared import Declared
from kleash.audit.logs.settings import settings_of
from kleash.logs import read_logs
from kleash.trainers import TARGETS, TRAINERS

GOLDEN = Path(__file__).parents[1] / "data" / "logs"
LOGS = {
    "skyrl": ("skyrl", "loss", 0.001),
    "tinker": ("tinker", "reward", None),
    "prime_rl": ("prime-rl", "none", None),
    "areal": ("areal", "unknown", None),
    "roll": ("roll", "none", None),
    "easyr1": ("easyr1", "loss", 0.01),
    "torchtune": ("torchtune", "loss", 0.01),
    "torchforge": ("torchforge", "loss", None),
    "art": ("art", "reward", None),
    "ms_swift": ("ms-swift", "loss", None),
    "llama_factory": ("llama-factory", "unknown", None),
}


@pytest.mark.parametrize("name", LOGS)
def test_a_log_is_its_trainers_and_its_penalty_where_it_is(name):
    trainer, place, coefficient = LOGS[name]
    path = GOLDEN / f"{name}.jsonl"
    (log,) = read_logs(path)
    assert (log.trainer, log.rows) == (trainer, 6)
    assert log.reward is not None or trainer == "torchforge"  # its score has a name of its own in each recipe
    report = check(path)
    facts = report.inputs[0].facts
    assert report.problems == ()
    assert facts["placement"] == place
    if coefficient is not None:
        assert facts["coefficient"]["value"] == pytest.approx(coefficient, rel=1e-3)


def placement(path, *, config=None, trainer=None):
    (finding,) = (f for f in check(path, config=config, trainer=trainer).findings if f.code == "PLACEMENT")
    return finding


def test_a_leash_to_the_sampler_is_named_as_that():
    found = placement(GOLDEN / "prime_rl.jsonl")
    assert (found.status, "bound a step and never the drift" in found.message) == ("ok", True)
    refused = convert(0.1, target="prime-rl").refused
    assert "never the drift from a reference" in refused


def test_without_a_reference_the_penalty_of_areal_is_an_entropy_bonus(tmp_path):
    config = tmp_path / "areal.yaml"
    config.write_text("actor:\n  kl_ctl: 0.1\n")
    assert "entropy bonus" in convert(0.1, target="areal", settings={"ref": "none"}).refused
    assert settings_of("areal", {"actor": {"kl_ctl": 0.1}}, Declared()).inert is None  # not stated is not believed
    config.write_text("actor:\n  kl_ctl: 0.1\nref:\n  path: none\n")
    found = placement(GOLDEN / "areal.jsonl", config=config)
    assert (found.status, "entropy bonus" in found.message) == ("problem", True)


def test_a_penalty_without_a_return_to_go_has_no_beta():
    assert "without a return-to-go" in convert(0.1, target="tinker").refused
    told = {"settings": {"kl_discount_factor": 1}, "group_size": 4}
    assert convert(0.1, target="tinker", **told).value == pytest.approx(0.1 * 3 / 4)


def test_a_kl_that_is_only_measured_is_no_penalty():
    assert "is a measure" in placement(GOLDEN / "roll.jsonl").message


# ------------------------------------------------------------------------------------------------------- translation

NUMBERS = {"reward_sd": 0.4, "reward_sd_spread": 0.01, "group_size": 8, "length": 1}
SAME_AS = [  # name, its settings, the one it is built on, its settings
    ("unsloth", {"scale_rewards": "none"}, "trl-grpo", {"scale_rewards": "none", "loss_type": "bnpo"}),
    ("axolotl", {"loss_type": "grpo"}, "trl-grpo", {"loss_type": "grpo"}),
    ("llama-factory-dpo", {"label_scale": 2}, "trl-dpo", {"label_scale": 2}),
    ("easyr1-reward", {}, "verl-reward", {"adv_estimator": "grpo"}),
    ("easyr1-loss", {"kl_penalty": "mse"}, "verl-loss", {"kl_loss_type": "mse", "adv_estimator": "grpo"}),
    ("miles", {"kl_loss_type": "k2"}, "slime", {"kl_loss_type": "k2"}),
    ("skyrl", {"kl_estimator_type": "k2"}, "verl-loss", {"kl_loss_type": "k2", "adv_estimator": "grpo"}),
    ("skyrl", {"kl_estimator_type": "k1", "use_kl_loss": "false", "use_kl_in_reward": "true"}, "verl-reward", {}),
    ("areal", {}, "verl-reward", {}),
    ("areal", {"mean_level": "group", "std_level": "group"}, "trl-grpo", {}),
    ("roll-reward", {}, "verl-reward", {}),
    ("tinker", {"kl_discount_factor": 1}, "trl-grpo", {"scale_rewards": "none"}),
]
REFUSED = {
    "ms-swift": "k3",  # a plain loss: the forward KL's root
    "roll-loss": "k3",
    "torchtune": "k3",
    "torchforge": "k3",
    "llama-factory-ppo": "controller",
    "prime-rl": "bound a step",
    "art": "return-to-go",
}


@pytest.mark.parametrize(("name", "settings", "base", "base_settings"), SAME_AS)
def test_a_coefficient_is_that_of_the_trainer_with_the_same_loss(name, settings, base, base_settings):
    """The loss of the right is held against its numpy twin in test_twins."""
    here = convert(0.3, target=name, settings=settings, **NUMBERS)
    there = convert(0.3, target=base, settings=base_settings, **NUMBERS)
    assert here.refused is None
    assert here.value == pytest.approx(there.value, rel=1e-12)
    back = convert(here.value, source=name, settings=settings, **NUMBERS)
    assert back.value == pytest.approx(0.3, rel=1e-12)


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_translation_says_why(name):
    found = convert(0.3, target=name, **NUMBERS)
    assert found.value is None
    assert REFUSED[name] in found.refused


@pytest.mark.parametrize(
    ("name", "settings", "factor"), [("ms-swift", {"scale_rewards": "none"}, 1), ("roll-loss", {}, 8 / 7)]
)
def test_k3_as_a_loss_has_a_number_for_a_binary_reward(name, settings, factor):
    """ROLL subtracts no mean by default, so an answer is no part of its own baseline."""
    told = {"length": 1, "p_ref": 0.3, "group_size": 8}
    base = {"use_bias_correction_kl": "false", "scale_rewards": "none"}
    same = convert(0.5, target="trl-grpo", settings=base, **told).value
    assert convert(0.5, target=name, settings=settings, **told).value == pytest.approx(same * factor, rel=1e-12)


def test_every_target_is_held_against_something():
    own = {"trl-grpo", "trl-rloo", "trl-dpo", "verl-reward", "verl-loss", "openrlhf", "nemo-rl", "slime", "trlx"}
    assert {*own, "open-instruct", *(case[0] for case in SAME_AS), *REFUSED} == set(TARGETS)


# ------------------------------------------------------------------------------------------------------- what is stated

STATED = [  # trainer, configuration, where it puts the penalty, what is inert about it
    ("skyrl", {"trainer": {"algorithm": {"use_kl_loss": True, "use_kl_in_reward": False}}}, "loss", None),
    ("ms-swift", {"kl_in_reward": True}, "reward", None),
    ("ms-swift", {"advantage_estimator": "rloo"}, "reward", None),
    ("easyr1", {"algorithm": {"use_kl_loss": True, "disable_kl": False}}, "loss", None),
    ("easyr1", {"algorithm": {"disable_kl": True, "kl_coef": 0.01}}, "none", "disable_kl"),
    ("roll", {"add_token_level_kl": False, "init_kl_coef": 0.2, "use_kl_loss": False}, "none", "add_token_level_kl"),
    ("rllm", {"kl_beta": 0.1, "use_kl_loss": False, "use_kl_in_reward": False}, "none", "kl_beta"),
    ("areal", {"actor": {"kl_ctl": 0.0}}, "none", None),
    ("tinker", {"kl_penalty_coef": 0.05}, "reward", None),
]


@pytest.mark.parametrize(("trainer", "config", "where", "inert"), STATED)
def test_a_configuration_says_where_the_penalty_goes(trainer, config, where, inert):
    found = settings_of(trainer, config, Declared())
    assert found.where == where
    assert (found.inert is None) if inert is None else inert in found.inert


def test_the_same_letter_unset():
    """What a user who sets nothing trains with."""
    unset = {
        "unsloth": ("beta", 0.001), "ms-swift": ("beta", 0.04), "axolotl": ("beta", 0.0), "easyr1": ("kl_coef", 0.001),
        "skyrl": ("kl_loss_coef", 0.001), "tinker": ("kl_penalty_coef", 0.0), "prime-rl": ("kl_tau", 0.001),
        "areal": ("kl_ctl", 0.1), "roll": ("kl_loss_coef", 0.0), "miles": ("kl_loss_coef", 0.0),
        "rllm": ("kl_beta", 0.0), "torchtune": ("kl_coeff", 0.1), "torchforge": ("beta", 0.1),
        "llama-factory-dpo": ("beta", 0.1), "llama-factory": ("ppo_target", 6.0),
    }  # fmt: skip
    found = {name: TRAINERS[name].options[key].default for name, (key, _) in unset.items()}
    np.testing.assert_array_equal(list(found.values()), [value for _, value in unset.values()])
