"""Labels that were chosen: found by the scores of what was labelled, refused with what helps, never at random ones."""

import itertools

import numpy as np
import pytest
from scipy.special import ndtr

from kleash import Samples, forecast
from kleash.forecasting import labelling

P, K = 60, 24
PROMPT = np.repeat(np.arange(P), K)


def world(seed, *, level=1.0):
    """Scores, and gold that rises with them, of P prompts whose level shows in both."""
    rng = np.random.default_rng([seed, 9])
    hard, score = rng.normal(size=(P, 1)), rng.normal(size=(P, K))
    gold = ndtr(0.8 * hard + rng.uniform(0.3, 0.9) * score + rng.normal(size=(P, K)))
    return score + level * hard, gold, rng


def best(x, k):
    return np.argsort(np.argsort(-x, axis=1), axis=1) < k


def samples_of(score, gold, labelled, chance=None):
    probability = None if chance is None else np.where(labelled, chance, np.nan).ravel()
    some = np.where(labelled, gold, np.nan).ravel()
    return Samples.from_arrays(PROMPT, score.ravel(), gold=some, label_probability=probability)


CHOSEN = {
    "highest scores": lambda s, g, rng: best(s, 6),
    "two highest, four at random": lambda s, g, rng: best(s + 1e3 * best(s, 2) + rng.normal(size=s.shape) * 50, 6),
    "above a score": lambda s, g, rng: s > np.quantile(s, 0.75),
    "both ends": lambda s, g, rng: best(np.abs(s - s.mean(axis=1, keepdims=True)), 6),
    "good gold": lambda s, g, rng: best(g, 6),
    "easy prompts": lambda s, g, rng: np.broadcast_to(
        s.mean(axis=1, keepdims=True) > np.median(s.mean(axis=1)), s.shape
    ),
}
RANDOM = {
    "six of each prompt": lambda s, rng: best(rng.random(s.shape), 6),
    "one row in twelve": lambda s, rng: rng.random(s.shape) < 1 / 12,
    "a third of the prompts": lambda s, rng: np.broadcast_to(rng.permutation(P)[:, None] < 20, s.shape),
    "the first two": lambda s, rng: np.broadcast_to(np.arange(K) < 2, s.shape),
}


@pytest.mark.parametrize("how", CHOSEN)
def test_a_choice_is_found(how):
    """In all of 20 worlds; the least z is near 5 at a limit of 3.2."""
    for seed in range(20):
        score, gold, rng = world(seed)
        assert labelling.chosen_by(samples_of(score, gold, CHOSEN[how](score, gold, rng))) is not None, seed


@pytest.mark.parametrize("how", RANDOM)
def test_labels_at_random_pass(how):
    """Four tests of 1.4 in 1,000: of 100 sets at most 3, 1 in 400 that there are more."""
    failed = 0
    for seed in range(100):
        score, gold, rng = world(seed)
        failed += labelling.chosen_by(samples_of(score, gold, RANDOM[how](score, rng))) is not None
    assert failed <= 3


def test_mean_and_variance_of_the_rank_sum_are_those_of_all_choices():
    score = np.array([0.3, 0.3, 1.0, 2.0, 5.0])
    values = []
    for chosen in itertools.combinations(range(5), 2):
        gold = np.full(5, np.nan)
        gold[list(chosen)] = 1.0
        samples = Samples.from_arrays([0] * 5, score, gold=gold)
        values.append(labelling._within(samples, ~np.isnan(gold), labelling._ranks(samples)[0]))
    assert np.mean(values) == pytest.approx(0.0, abs=1e-12)
    assert np.var(values) == pytest.approx(1.0)


def test_a_choice_by_stated_probabilities_passes_and_by_others_fails():
    chosen = wrong = 0
    for seed in range(30):
        score, gold, rng = world(seed)
        chance = np.where(score > np.median(score), 0.3, 0.1)
        labelled = rng.random(score.shape) < chance
        chosen += labelling.chosen_by(samples_of(score, gold, labelled, chance)) is not None
        wrong += labelling.chosen_by(samples_of(score, gold, labelled, np.full(score.shape, 0.2))) is not None
    assert chosen == 0
    assert wrong >= 28


def test_labels_that_crowd_are_pointed_out_and_others_are_not():
    for seed in range(50):
        score, gold, rng = world(seed)
        crowded = {how: labelling.crowded(samples_of(score, gold, RANDOM[how](score, rng))) for how in RANDOM}
        assert crowded == {how: how == "a third of the prompts" for how in RANDOM}


@pytest.mark.parametrize(
    ("gold", "named"), [(lambda s: 3 - 0 * s + 2 * s, True), (lambda s: -s, False), (np.tanh, False)]
)
def test_gold_that_is_the_judge_is_named(gold, named):
    score, _, _ = world(0)
    samples = Samples.from_arrays(PROMPT, score.ravel(), gold=gold(score).ravel())
    assert labelling.gold_is_judge(samples) is named
    reasons = forecast(samples, beta=[2.0]).verdict.reasons
    assert any("Gold is the judge's own score" in reason for reason in reasons) is named


def test_the_forecast_refuses_gold_and_says_what_helps():
    score, gold, _ = world(0)
    result = forecast(samples_of(score, gold, best(score, 6)), beta=[1.0, 4.0], reward_max=9.0, gold_min=0.0)
    content = result.to_dict()
    assert [row["gold"] for row in content["rows"]] == [None, None]
    assert (content["reference"]["gold"], content["unseen"]) == (None, None)
    assert content["n_gold"] == 6 * P
    assert content["rows"][1]["reward"] is not None
    verdict = content["verdict"]
    assert verdict["kind"] == "cannot-tell"
    assert verdict["reasons"][0].startswith(
        "Gold is not used: what was labelled was chosen by the judge's score: labelled answers score higher within"
    )
    assert (
        "(--label-probability-column), or labels chosen by chance (kleash sample --label-sheet)" in verdict["needs"][0]
    )


def test_the_same_choice_with_its_probabilities_is_used():
    score, gold, rng = world(1)
    chance = np.where(best(score, 6), 0.9, 0.1)
    result = forecast(samples_of(score, gold, rng.random(score.shape) < chance, chance), beta=[2.0])
    assert result.frontier.gold is not None
