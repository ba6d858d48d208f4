"""What the score tells of gold, in the place of labels nobody gave: less noise, and no bias whatever it says."""

import numpy as np
import pytest

from kleash import Samples, forecast
from kleash.forecasting.fitted import fitted_gold
from kleash.forecasting.reweight import Labels

P, K = 40, 12
OFFSETS = np.arange(0, P * K + 1, K)


def world(seed):
    """Scores, and gold that bends with them and differs by prompt."""
    rng = np.random.default_rng(seed)
    level = np.repeat(rng.standard_normal(P), K)
    score = level + rng.standard_normal(P * K)
    return rng, score, 0.5 * (score - level) - 0.2 * (score - level) ** 2 + level + 0.1 * rng.standard_normal(P * K)


def test_gold_that_follows_the_score_is_found():
    rng, score, gold = world(0)
    inverse = np.where(rng.random(P * K) < 0.3, 1 / 0.3, 0.0)
    fitted = fitted_gold(score, np.where(inverse > 0, gold, np.nan), inverse, OFFSETS, centre=0.0)
    assert np.std(gold - fitted) < 0.5 * np.std(gold)


def test_no_label_has_a_part_in_the_prediction_of_its_own_prompt():
    rng, score, gold = world(1)
    inverse = np.where(rng.random(P * K) < 0.3, 1 / 0.3, 0.0)
    before = fitted_gold(score, gold, inverse, OFFSETS, centre=0.0)
    mine = np.flatnonzero(inverse[:K])
    other = gold.copy()
    other[mine[0]], other[mine[1]] = gold[mine[0]] + 50, gold[mine[1]] - 50
    assert fitted_gold(score, other, inverse, OFFSETS, centre=0.0)[:K] == pytest.approx(before[:K])


def test_few_labels_fit_nothing():
    rng, score, gold = world(2)
    inverse = np.zeros(P * K)
    inverse[rng.choice(P * K, 39, replace=False)] = P * K / 39
    fitted = fitted_gold(score, np.where(inverse > 0, gold, np.nan), inverse, OFFSETS, centre=0.0)
    assert set(fitted) == {0.0}


@pytest.mark.parametrize("score", [np.zeros(P * K), np.repeat(np.arange(P) * 1e9, K), np.arange(P * K) * 1e-12])
def test_scores_without_spread_fit_something_finite(score):
    rng, _, gold = world(3)
    inverse = np.where(rng.random(P * K) < 0.3, 1 / 0.3, 0.0)
    assert np.isfinite(fitted_gold(score, np.where(inverse > 0, gold, np.nan), inverse, OFFSETS, centre=0.0)).all()


def test_where_all_is_labelled_labels_stand_for_themselves():
    _, score, gold = world(4)
    sure = np.ones(P * K)
    labels = Labels.of(Samples.from_arrays(np.repeat(np.arange(P), K), score, gold=gold, label_probability=sure))
    assert labels.centre + labels.marked == pytest.approx(gold)


def test_estimates_from_some_labels_are_those_of_all_on_average():
    """Gold at one beta from three labels in ten, 150 choices: the mean is off by less than 4 standard errors."""
    _, score, gold = world(5)
    prompt = np.repeat(np.arange(P), K)
    whole = forecast(Samples.from_arrays(prompt, score, gold=gold), beta=[2.0]).frontier.gold.value[0]
    found = []
    for choice in range(150):
        labelled = np.random.default_rng([6, choice]).random(P * K) < 0.3
        some = np.where(labelled, gold, np.nan)
        chance = np.where(labelled, 0.3, np.nan)
        samples = Samples.from_arrays(prompt, score, gold=some, label_probability=chance)
        found.append(forecast(samples, beta=[2.0]).frontier.gold.value[0])
    assert abs(np.mean(found) - whole) < 4 * np.std(found) / 150**0.5
    assert np.std(found) < 0.05  # .06 without a fit
