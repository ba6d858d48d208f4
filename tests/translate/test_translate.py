"""The translations' numbers, what they need, what they refuse, and what they say to nonsense."""

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kleash import convert
from kleash.errors import OptionError
from kleash.translate import MAX_SPREAD, scale_of, standardised_beta

LINEAR = {
    "trl-grpo": {"group_size": 8, "settings": {"scale_rewards": "none"}},
    "trl-rloo": {},
    "trl-dpo": {"length": 20, "settings": {"loss_type": "sigmoid_norm", "label_scale": 2}},
    "verl-reward": {},
    "verl-loss": {"group_size": 5, "reward_sd": 0.3, "reward_sd_spread": 0.01,
                  "settings": {"kl_loss_type": "k2", "adv_estimator": "grpo"}},
    "openrlhf": {"group_size": 4, "settings": {"advantage_estimator": "dr_grpo"}},
    "nemo-rl": {"reward_sd": 2.0, "reward_sd_spread": 0.0, "group_size": 16,
                "settings": {"use_leave_one_out_baseline": "false"}},
    "slime": {"group_size": 16, "settings": {"kl_loss_type": "k2", "grpo_std_normalization": "False"}},
    "open-instruct": {"group_size": 8, "settings": {"kl_estimator": 3}},
    "trlx": {},
}  # fmt: skip


@pytest.mark.parametrize("name", LINEAR)
@given(beta=st.floats(1e-6, 1e6))
def test_there_and_back_is_the_same_beta(name, beta):
    there = convert(beta, target=name, **LINEAR[name])
    back = convert(there.value, source=name, **LINEAR[name])
    assert back.value == pytest.approx(beta, rel=1e-12)
    assert (back.parameter, back.target, there.exact) == ("beta", "tilt", back.exact)


@given(beta=st.floats(0.02, 1e3), rate=st.floats(1e-3, 0.999))
def test_there_and_back_with_k3_as_a_loss(beta, rate):
    told = {"length": 1, "p_ref": rate, "group_size": 8}
    there = convert(beta, target="open-instruct", **told)
    assert convert(there.value, source="open-instruct", **told).value == pytest.approx(beta, rel=1e-6)


def test_k3_as_a_loss_agrees_with_the_published_fixed_point():
    """Reward (1, 0, 0), reference rate .5, coefficient .5: success rate .809017; the tilt there is at beta .692."""
    told = {"settings": {"adv_estimator": "rloo"}, "length": 1, "p_ref": 0.5}
    p = 0.8090169943749475
    expected = 1.0 / math.log(p / (1 - p))
    assert convert(0.5, source="verl-loss", **told).value == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("size", [2, 4, 8, 64])
def test_the_answers_own_part_in_its_baseline(size):
    none = {"scale_rewards": "none"}
    assert convert(1.0, target="trl-grpo", group_size=size, settings=none).value == (size - 1) / size
    assert convert(1.0, target="trl-rloo", group_size=size).value == 1.0


def test_trls_own_group_size_is_taken_and_said():
    found = convert(1.0, target="trl-grpo", settings={"scale_rewards": "none"})
    assert found.value == 7 / 8
    assert any("num_generations 8" in line for line in found.assumes)


def test_standardised_rewards_multiply_by_the_sd_backwards():
    told = {"reward_sd": 1.5, "reward_sd_spread": 0.1, "group_size": 2}
    found = convert(3.0, target="trl-grpo", **told)
    assert found.value == pytest.approx(math.sqrt(2 / math.pi))  # the mean SD of two normal numbers of SD 1, times 1/2
    assert not found.exact
    told["group_size"] = 1_000_000
    assert convert(3.0, target="trl-grpo", **told).value == pytest.approx(2.0, rel=1e-5)


@pytest.mark.parametrize("size", [4, 6, 16])
def test_the_factors_of_a_groups_sd_are_those_of_normal_scores(size):
    """Against 400,000 groups of normal scores: within 1 %, more than 4 standard errors."""
    rng = np.random.default_rng(size)
    score = rng.normal(size=(400_000, size))
    told = {"reward_sd": 1.0, "reward_sd_spread": 0.0, "group_size": size}
    own = ((score - score.mean(1, keepdims=True)) / score.std(1, ddof=1, keepdims=True) * score).mean()
    assert convert(1.0, target="trl-grpo", **told).value == pytest.approx(own, rel=0.01)
    told["settings"] = {"kl_estimator": 1, "advantage_normalization_type": "standard"}
    own = ((score - score.mean(1, keepdims=True)) / score.std(1, ddof=0, keepdims=True) * score).mean()
    assert convert(1.0, target="open-instruct", **told).value == pytest.approx(own, rel=0.01)


def test_a_spread_is_small_up_to_the_stated_share():
    edge = MAX_SPREAD * 2.0
    told = {"target": "trl-grpo", "reward_sd": 2.0}
    assert convert(1.0, reward_sd_spread=edge, **told).refused is None
    assert convert(1.0, reward_sd_spread=np.nextafter(edge, 1), **told).refused
    assert "was not said" in convert(1.0, target="trl-grpo", reward_sd=2.0).refused


@pytest.mark.parametrize(
    ("name", "settings", "why"),
    [
        ("trl-grpo", {"use_bias_correction_kl": False, "scale_rewards": "none"}, "KL\\(reference"),
        ("trl-grpo", {"loss_type": "vespo"}, "vespo"),
        ("trl-grpo", {"loss_type": "luspo"}, "whole sequences"),
        ("trl-grpo", {"importance_sampling_level": "sequence"}, "whole sequences"),
        ("trl-grpo", {"multi_objective_aggregation": "normalize_then_sum"}, "standardises every reward"),
        ("trl-dpo", {"labels": "hard"}, "no finite optimum"),
        ("trl-dpo", {"loss_type": "ipo"}, "ipo"),
        ("trl-dpo", {"f_divergence_type": "js_divergence"}, "another divergence"),
        ("trl-dpo", {"label_smoothing": 0.1}, "label_smoothing"),
        ("verl-reward", {"kl_penalty": "low_var_kl"}, "only k1"),
        ("verl-reward", {"use_kl_loss": True}, "add up"),
        ("verl-reward", {"algorithm.kl_ctrl.type": "adaptive"}, "nats per token"),
        ("verl-reward", {"gamma": 0.99}, "gamma"),
        ("verl-loss", {}, "KL\\(reference"),
        ("verl-loss", {"kl_loss_type": "kl"}, "no gradient"),
        ("verl-loss", {"kl_loss_type": "abs"}, "neither KL"),
        ("verl-loss", {"kl_loss_type": "k2", "use_kl_in_reward": "True"}, "add up"),
        ("openrlhf", {"kl_estimator": "k3"}, "only k1"),
        ("openrlhf", {"use_kl_loss": True}, "no gradient"),
        ("openrlhf", {"kl_target": 0.1}, "nats per token"),
        ("nemo-rl", {}, "SD of the group's other answers"),
        ("nemo-rl", {"use_kl_in_reward": True}, "its own KL"),
        ("nemo-rl", {"reference_policy_kl_type": "k2"}, "neither KL"),
        ("nemo-rl", {"kl_score_function": False, "normalize_rewards": False}, "KL\\(reference"),
        ("slime", {}, "no gradient"),
        ("slime", {"use_kl_loss": False}, "no effect"),
        ("slime", {"--kl-loss-type": "low_var_kl"}, "KL\\(reference"),
        ("slime", {"use_kl_loss": False, "advantage_estimator": "reinforce_plus_plus_baseline"}, "its own KL"),
        ("open-instruct", {}, "KL\\(reference"),
        ("open-instruct", {"kl_estimator": 0}, "no gradient"),
        ("trlx", {"target": 6}, "sqrt_kl"),
    ],
)
def test_what_cannot_be_translated_says_why(name, settings, why):
    told = {"reward_sd": 1.0, "reward_sd_spread": 0.0, "group_size": 4}
    found = convert(0.1, target=name, settings=settings, **told)
    assert found.value is None
    assert not found.exact
    assert re.search(why, found.refused)
    assert convert(0.1, source=name, settings=settings, **told).refused == found.refused


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({"target": "trl-grpo"}, "--reward-sd and --reward-sd-spread.*group-standardised"),
        ({"target": "trl-grpo", "settings": {"scale_rewards": "batch"}}, "give --reward-sd, the SD of the judge"),
        ({"target": "verl-loss", "settings": {"kl_loss_type": "k2"}}, "give --reward-sd, the SD that the run"),
        ({"target": "openrlhf", "settings": {"advantage_estimator": "dr_grpo"}}, "give --group-size"),
        ({"target": "nemo-rl", "settings": {"use_leave_one_out_baseline": "false"}}, "--reward-sd"),
        (
            {"target": "slime", "settings": {"kl_loss_type": "k2"}, "reward_sd": 1, "reward_sd_spread": 0},
            "--group-size",
        ),
        ({"target": "open-instruct", "settings": {"kl_estimator": 1}}, "num_samples_per_prompt_rollout"),
        ({"target": "trl-dpo", "settings": {"loss_type": "sigmoid_norm"}}, "give --length"),
    ],
)
def test_what_is_needed_and_not_given_is_asked_for(told, why):
    with pytest.raises(OptionError, match=why):
        convert(0.1, **told)


@pytest.mark.parametrize("beta", [float("nan"), 0.0, -0.0, -1.0, float("inf"), "soup", None])
def test_a_beta_that_is_none_is_refused(beta):
    with pytest.raises(OptionError, match="beta: expected a finite number above 0"):
        convert(beta, target="trl-rloo")


@pytest.mark.parametrize(
    "told",
    [
        {"reward_sd": 0.0}, {"reward_sd": float("nan")}, {"reward_sd": -1}, {"reward_sd_spread": -0.1},
        {"reward_sd_spread": float("inf")}, {"length": 0.5}, {"length": float("nan")}, {"group_size": 1},
        {"group_size": 2.5}, {"group_size": True}, {"p_ref": 0}, {"p_ref": 1}, {"p_ref": float("nan")},
    ],
)  # fmt: skip
def test_numbers_out_of_range_are_refused_even_where_they_are_not_needed(told):
    with pytest.raises(OptionError):
        convert(0.1, target="trl-rloo", **told)


def test_true_false_and_none_are_taken_as_python_writes_them():
    off = convert(0.5, target="trl-grpo", settings={"scale_rewards": "none"}).value
    for written in (False, "False", "false", None, "None"):
        assert convert(0.5, target="trl-grpo", settings={"scale_rewards": written}).value == off
    on = convert(0.5, target="trl-rloo", settings={"normalize_advantages": True})
    assert any("normalize_advantages" in line for line in on.assumes)


def test_names_are_corrected():
    with pytest.raises(OptionError, match="did you mean 'verl-loss'"):
        convert(1.0, target="verl-los")
    with pytest.raises(OptionError, match="did you mean 'openrlhf'"):
        convert(1.0, source="OpenRLHF".lower() + "s")
    with pytest.raises(OptionError, match="did you mean 'scale_rewards'"):
        convert(1.0, target="trl-grpo", settings={"scale_reward": "none"})
    with pytest.raises(OptionError, match="did you mean 'group'"):
        convert(1.0, target="trl-grpo", settings={"scale_rewards": "groups"})
    with pytest.raises(OptionError, match="expected one value, got two"):
        convert(1.0, target="slime", settings={"kl_loss_type": "k2", "--kl-loss-type": "k1"})


@pytest.mark.parametrize("told", [{}, {"source": "trlx", "target": "trl-rloo"}])
def test_one_end_is_the_tilt(told):
    with pytest.raises(OptionError, match="the tilt and one trainer"):
        convert(1.0, **told)


@pytest.mark.parametrize(("beta", "scale"), [(1e-320, 1e10), (1e308, 1e-10)])
def test_a_number_that_leaves_the_floats_is_an_error(beta, scale):
    with pytest.raises(OptionError, match="translated beta"):
        convert(beta, target="trl-dpo", settings={"label_scale": scale})


def test_the_standardised_objective_keeps_its_own_beta():
    found = standardised_beta(0.2, target="trl-grpo", group_size=8)
    assert (found.value, found.refused, found.exact) == (0.2, None, False)
    assert standardised_beta(0.2, target="verl-loss").refused  # low_var_kl, the forward KL
    told = {"kl_loss_type": "k2", "adv_estimator": "grpo"}
    assert standardised_beta(0.2, target="verl-loss", settings=told).value == 0.2
    assert standardised_beta(0.2, target="trl-grpo", settings={"scale_rewards": "none"}).refused


def test_by_what_trainers_divide():
    assert scale_of("trl-grpo") == "group"
    assert scale_of("trl-grpo", {"scale_rewards": "none"}) is None
    assert scale_of("verl-loss") == "log"
    with pytest.raises(OptionError, match="trainer: expected one of trl-grpo"):
        scale_of("tilt")


def test_it_prints_what_to_set_or_why_not():
    assert str(convert(0.5, target="trl-rloo")).startswith("beta = 0.5  in trl-rloo, exactly, if:\n- ")
    assert str(convert(0.5, target="slime")).startswith("No translation of 0.5 from tilt to slime.\n--kl-loss")
    assert "beta of the tilt = 0.5  for trlx at 0.5" in str(convert(0.5, source="trlx"))
