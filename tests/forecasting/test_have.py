"""The setting in use today: its row, the paired difference to the safe beta, and what is said where nothing can be."""

import numpy as np
import pytest
from by_hand import normal_samples, word_problems

from kleash import forecast
from kleash.errors import OptionError

LIMITS = {"reward_max": 100, "gold_min": 0}
BETAS = [11.5, 15.9, 50.0]


def test_the_change_is_the_paired_difference_of_two_rows():
    result = forecast(word_problems(), beta=BETAS, have=30.0, **LIMITS)
    table, have = result.frontier, result.have
    assert table.beta.tolist() == [11.5, 15.9, 30.0, 50.0]
    assert (have.value, have.beta, have.status) == (30.0, 30.0, "ok")
    safe = table.beta.tolist().index(result.verdict.safe_beta)
    assert have.change.gold == pytest.approx(table.gold.value[safe] - table.gold.value[2])
    assert have.change.kl == pytest.approx(table.kl.value[safe] - table.kl.value[2])
    assert have.change.reward == pytest.approx(table.reward.value[safe] - table.reward.value[2])
    draws = table.replicates.gold[:, safe] - table.replicates.gold[:, 2]
    half = 0.5 * (have.change.gold_hi - have.change.gold_lo)
    assert half == pytest.approx(1.98 * draws.std(ddof=1), rel=0.01)  # t of 119
    assert half < 0.8 * 1.96 * np.hypot(table.gold.se[safe], table.gold.se[2])  # paired
    assert str(have).endswith("Better.")
    assert "◆" in str(result)


def test_a_setting_that_is_safe_already_is_left_alone_and_one_near_a_row_is_that_row():
    result = forecast(word_problems(), beta=BETAS, have=15.9000001, **LIMITS)
    assert result.frontier.beta.size == 3
    assert str(result.have) == "Your 15.9 is the safe beta: leave it."
    assert result.have.change.gold == 0.0


def test_a_setting_out_of_reach_is_compared_with_nothing():
    result = forecast(normal_samples(n_prompts=200), beta=[2.0, 4.0], have=1e-4)
    assert (result.have.status, result.have.change) == ("beyond", None)
    assert "further from the reference than these samples can see" in str(result.have)
    assert "the safe beta is known to gain" in str(result.have)
    without = forecast(normal_samples(n_prompts=20, gold=False), beta=[2.0], have=3.0)
    assert "no safe beta to compare it with" in str(without.have)


def test_a_trainers_coefficient_is_read_in_its_own_unit():
    told = {"trainer": "trl-grpo", "settings": {"scale_rewards": "none"}, "group_size": 8}
    result = forecast(word_problems(), beta=BETAS, have=7 / 8 * 30.0, **told, **LIMITS)
    assert (result.have.value, result.have.beta) == (26.25, pytest.approx(30.0))
    own = forecast(word_problems(), beta=[1.0, 2.0], have=1.5, trainer="trl-grpo")
    assert (own.objective, own.have.beta) == ("group-standardised", 1.5)
    assert own.to_dict()["have"]["text"] == str(own.have)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"have": 0.0}, "have: expected"),
        ({"have": 1.0, "trainer": "slime"}, "have: expected a coefficient that translates"),
        ({"have": 1.0, "trainer": "trl-grpo", "objective": "tilt"}, "divides rewards by an SD that moves"),
    ],
)
def test_what_cannot_be_read_is_refused(options, words):
    with pytest.raises(OptionError, match=words):
        forecast(normal_samples(), beta=[1.0], **options)
