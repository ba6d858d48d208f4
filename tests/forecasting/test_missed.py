"""Answers that some prompts do not show: the class, its mass by Good and Turing, and the rows it would move."""

import numpy as np
import pytest
from by_hand import normal_samples, rectangle
from scipy.special import gammaincinv
from scipy.stats import poisson

from kleash import Samples, forecast
from kleash.forecasting.gate import demoted, too_little_gold
from kleash.forecasting.known import default_tolerance, known_ends
from kleash.forecasting.missed import class_shift, far_class, top_class
from kleash.forecasting.reweight import Labels, reweight

BETA = np.array([0.5, 1.0, 4.0])


def right_or_wrong(seed=0, shape=(12, 8)):
    rng = np.random.default_rng(seed)
    r = (rng.random(shape) < rng.beta(0.4, 2.0, (shape[0], 1))).astype(float)
    return rectangle(r, 0.3 * r + rng.random(shape))


def test_the_class_at_the_top_by_hand():
    samples = right_or_wrong()
    counts = samples.reward.reshape(12, 8).sum(axis=1)
    found = top_class(samples, Labels.of(samples), reward_max=1.0)
    np.testing.assert_array_equal(found.lacks, counts == 0)
    once, none = (counts == 1).sum(), (counts == 0).sum()
    assert once > 0
    assert found.mass == pytest.approx(gammaincinv(once + 1.0, 0.5) / (8 * none), rel=1e-12)
    assert poisson.cdf(once, found.mass * 8 * none) == pytest.approx(0.5, abs=1e-9)
    assert found.gold == pytest.approx(samples.gold[samples.reward == 1].mean(), rel=1e-12)


def test_a_class_that_nothing_shows_has_the_mass_that_stays_unseen_half_of_the_time():
    samples = normal_samples()
    found = top_class(samples, Labels.of(samples), reward_max=9.0)
    assert found.lacks.all()
    assert np.exp(-found.mass * samples.n_samples) == pytest.approx(0.5, rel=1e-9)
    assert found.gold == 0.0


def test_the_shift_is_that_of_answers_added_to_the_prompts_that_lack_them():
    """A class of mass q is a further answer of weight q beside the others' 1 - q: means and KL by hand."""
    samples = right_or_wrong()
    labels = Labels.of(samples)
    table = reweight(samples, BETA, labels=labels, rng=np.random.default_rng(0))
    found = top_class(samples, labels, reward_max=1.0)
    r, g = samples.reward.reshape(12, 8), samples.gold.reshape(12, 8)
    mass = np.append(np.full(8, (1 - found.mass) / 8), found.mass)
    moved = np.zeros((3, BETA.size))
    for p in np.flatnonzero(found.lacks):
        both = np.append(r[p], 1.0), np.append(g[p], found.gold)
        for b, beta in enumerate(BETA):
            new, old = np.zeros(3), np.zeros(3)
            for out, m in ((new, mass), (old, np.append(np.full(8, 1 / 8), 0.0))):
                w = m * np.exp(both[0] / beta)
                w, z = w / w.sum(), w.sum()
                out[:] = w @ both[0], w @ both[0] / beta - np.log(z), w @ both[1]
            at_reference = np.array([mass @ both[0] - r[p].mean(), 0.0, mass @ both[1] - g[p].mean()])
            moved[:, b] += (new - old - at_reference) / 12
    np.testing.assert_allclose(class_shift(found, table, BETA, labels), np.abs(moved), rtol=1e-9, atol=1e-12)


def test_far_answers_are_a_class_of_their_own():
    samples = normal_samples(n_prompts=40)
    reward = samples.reward.copy()
    reward[5 * 24] = reward[9 * 24 + 3] = 8.0
    found = far_class(Samples.from_arrays(np.repeat(np.arange(40), 24), reward), None)
    assert not found.lacks[[5, 9]].any()
    assert found.lacks.sum() >= 36
    assert (found.score > 3.0).all()


def test_prompts_nearly_all_wrong_are_weak_far_out_and_ok_near_the_reference():
    rng = np.random.default_rng(3)
    r = (rng.random((60, 8)) < rng.beta(0.15, 0.15, (60, 1))).astype(float)
    status = forecast(rectangle(r), beta=[0.25, 20.0]).frontier.status
    assert status.tolist() == ["weak", "ok"]


def test_gold_that_hangs_on_a_few_answers_is_weak():
    """Twelve right answers of 1,440 suffice near the reference, three nowhere."""
    rng = np.random.default_rng(0)
    r = rng.normal(size=(60, 24))
    for right, expected in ((3, True), (12, False)):
        gold = np.zeros(1440)
        gold[rng.choice(1440, right, replace=False)] = 1.0
        samples = rectangle(r, gold)
        table = reweight(samples, np.array([50.0]), labels=Labels.of(samples), rng=rng)
        assert too_little_gold(samples, Labels.of(samples), table, np.array([50.0])).tolist() == [expected]


def test_demoted_touches_nothing_but_ok():
    status = np.array(["ok", "weak", "beyond", "ok"])
    bad = np.array([True, True, True, False])
    assert demoted(status, bad, False).tolist() == ["weak", "weak", "beyond", "ok"]
    assert demoted(status, True).tolist() == ["weak", "weak", "beyond", "weak"]


def test_the_tolerance_means_something_where_gold_is_seldom_right():
    gold = np.zeros(1000)
    gold[:2] = 1.0
    samples = Samples.from_arrays(np.repeat(np.arange(50), 20), np.arange(1000.0), gold=gold)
    assert default_tolerance(samples, known_ends(samples)) == pytest.approx(0.25 * 0.002)
    gold[:500] = 1.0
    samples = Samples.from_arrays(np.repeat(np.arange(50), 20), np.arange(1000.0), gold=gold)
    assert default_tolerance(samples, known_ends(samples)) == pytest.approx(0.05)


def test_ends_are_seen_where_answers_pile_up_and_stated_ones_stand():
    samples = rectangle(np.tile([0.0, 0.5, 1.0], (10, 2)), np.tile([0.2, 0.7, 0.9], (10, 2)))
    ends = known_ends(samples)
    assert (ends.reward_max, ends.gold_min, len(ends.notes)) == (1.0, 0.2, 2)
    stated = known_ends(samples, reward_max=3.0, gold_min=0.0)
    assert (stated.reward_max, stated.gold_min, stated.notes) == (3.0, 0.0, ())
    free = known_ends(normal_samples(gold=False))
    assert (free.reward_max, free.gold_min, free.notes) == (None, None, ())
