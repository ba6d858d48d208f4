"""One table of options, two readings: the audit believes what was stated, translation takes the trainer's defaults."""

from dataclasses import fields

import pytest

from kleash import convert
from kleash.audit.declared import Declared
from kleash.audit.logs.settings import settings_of
from kleash.errors import OptionError
from kleash.logs import TRAINERS

DEFAULTS = [  # whose log, whose translation, an option at its default, what that says, and the opposite
    ("trl-grpo", "trl-grpo", {"use_bias_correction_kl": True}, ("with_ratio", True), False),
    ("trl-grpo", "trl-grpo", {"loss_type": "dapo"}, ("loss_type", "dapo"), "cispo"),
    ("trl-grpo", "trl-grpo", {"num_iterations": 1}, ("iterations", 1), 2),
    ("verl", "verl-reward", {"use_kl_loss": False}, ("in_loss", False), True),
    ("verl", "verl-loss", {"use_kl_in_reward": False}, ("in_reward", False), True),
    ("verl", "verl-reward", {"kl_penalty": "kl"}, ("estimator", "k1"), "mse"),
    ("openrlhf", "openrlhf", {"kl_estimator": "k1"}, ("estimator", "k1"), "k3"),
    ("openrlhf", "openrlhf", {"use_kl_loss": False}, ("in_reward", True), True),
    ("nemo-rl", "nemo-rl", {"reference_policy_kl_type": "k3"}, ("estimator", "k3"), "k2"),
    ("slime", "slime", {"kl_loss_type": "k1"}, ("estimator", "k1"), "k2"),
    ("slime", "slime", {"use_unbiased_kl": False}, ("with_ratio", False), True),
    ("open-instruct", "open-instruct", {"kl_estimator": 2}, ("estimator", "k3"), 1),
]
NUMBERS = {"reward_sd": 1.0, "reward_sd_spread": 0.0, "group_size": 4, "length": 1}


NAMES_ONLY = {"coefficient", "named"}  # which options would say it, in words


def stated(name, config):
    found = settings_of(name, config, Declared())
    return {field.name: getattr(found, field.name) for field in fields(found) if field.name not in NAMES_ONLY}


def translated(name, settings):
    try:
        return convert(0.5, target=name, settings=settings, **NUMBERS)
    except OptionError as error:
        return str(error)


@pytest.mark.parametrize("name", [*TRAINERS, None])
def test_the_audit_believes_nothing_that_was_not_stated(name):
    assert set(stated(name, {}).values()) == {None}
    assert set(stated(name, {"learning_rate": 1e-6, "seed": 1}).values()) == {None}


@pytest.mark.parametrize(("log", "target", "default", "says", "other"), DEFAULTS)
def test_a_default_counts_for_the_audit_when_it_is_stated_and_for_translation_always(log, target, default, says, other):
    field, value = says
    assert stated(log, {})[field] is None
    assert stated(log, default)[field] == value
    assert translated(target, {}) == translated(target, default)
    ((option, _),) = default.items()
    assert stated(log, {option: other})[field] != value
    assert translated(target, {}) != translated(target, {option: other})
