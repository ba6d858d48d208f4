"""What a trainer must be set to, what is pasted, which objective it follows, and the way out of a refusal."""

import ast

import pytest
import yaml

from kleash.trainers import TARGETS, TRAINERS
from kleash.translate import convert, implied_objective, needed_settings, snippet, trainer_names, ways_out

SIZES = {"reward_sd": 1.0, "reward_sd_spread": 0.0, "length": 1.0, "group_size": 8}


def nested(tree, prefix=""):
    flat = {}
    for key, value in tree.items():
        flat |= nested(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


@pytest.mark.parametrize("name", trainer_names())
def test_a_snippet_says_what_the_settings_say(name):
    needed = needed_settings(name, {}, value=0.123456, group_size=8)
    text = snippet(name, needed)
    assert next(iter(needed.values())) == 0.1235
    if TARGETS[name][0].classes is not None:
        call = ast.parse(text, mode="eval").body
        assert call.func.id == TARGETS[name][0].classes[0]
        assert {word.arg: ast.literal_eval(word.value) for word in call.keywords} == needed
    elif next(iter(needed)).startswith("--"):
        words = dict([*line.split(" "), True][:2] for line in text.split(" \\\n"))
        assert {key: str(value) for key, value in needed.items() if not isinstance(value, bool)} == {
            key: value for key, value in words.items() if value is not True
        }
    else:
        assert nested(yaml.safe_load(text)) == needed


def test_the_settings_are_those_whose_change_would_change_the_meaning():
    needed = needed_settings("trl-grpo", {}, value=0.5)
    assert needed == {
        "beta": 0.5, "num_generations": 8, "temperature": 1.0, "scale_rewards": "group", "use_bias_correction_kl": True,
        "loss_type": "dapo", "importance_sampling_level": "token", "num_iterations": 1,
        "multi_objective_aggregation": "sum_then_normalize",
    }  # fmt: skip
    assert "epsilon_high" not in needed  # it matters under cispo alone
    capped = needed_settings("trl-grpo", {"loss_type": "cispo", "epsilon_high": 0.3}, value=0.5, group_size=4)
    assert (capped["loss_type"], capped["epsilon_high"], capped["num_generations"]) == ("cispo", 0.3, 4)
    assert not needed_settings("trl-dpo", {"label_scale": 2}, value=1.0).keys() & {"labels", "label_scale"}  # ours
    verl = needed_settings("verl-loss", {"kl_loss_type": "k2", "adv_estimator": "grpo"}, value=1.0, group_size=5)
    assert verl["actor_rollout_ref.actor.use_kl_loss"] is True  # the name of the target settles it
    assert verl["actor_rollout_ref.rollout.n"] == 5
    slime = snippet("slime", needed_settings("slime", {"grpo_std_normalization": False}, value=1.0, group_size=4))
    assert "--disable-grpo-std-normalization" in slime.split(" \\\n")
    assert "--use-kl-loss" in slime.split(" \\\n")


def test_options_that_are_pasted_have_their_full_names():
    """Beside a coefficient with a dotted name, an option without one would be set nowhere."""
    for name in trainer_names():
        needed = needed_settings(name, {}, value=1.0)
        assert len({"." in key for key in needed}) == 1, name


def test_the_objective_that_the_settings_imply():
    assert implied_objective("trl-grpo", {"scale_rewards": "batch"}) == "tilt"
    assert implied_objective("trl-grpo", {"use_bias_correction_kl": False}) == "tilt"  # refused, whatever is forecast
    assert implied_objective("verl-loss", {"kl_loss_type": "k2", "adv_estimator": "grpo"}) == "group-standardised"
    assert implied_objective("nemo-rl") == "tilt"  # by the SD of the others: no such forecast
    assert {name: implied_objective(name) for name in ("trl-rloo", "slime")} == {"trl-rloo": "tilt", "slime": "tilt"}


@pytest.mark.parametrize("name", ["slime", "nemo-rl", "open-instruct", "verl-loss", "easyr1-loss"])
def test_the_way_out_of_a_refusal_leads_out(name):
    assert convert(0.5, target=name, **SIZES).refused
    ways = ways_out(name, {})
    assert ways
    for way in ways:
        settings = dict(item.split("=") for item in way.split(", "))
        assert convert(0.5, target=name, settings=settings, **SIZES).value


def test_names_of_samplers_stand_with_their_trainers():
    for trainer in TRAINERS.values():
        assert all("temperature" in key and value == 1.0 for key, value in trainer.sampling.items())
