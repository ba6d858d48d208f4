"""The tests behind the checks: each holds its level under the hypothesis and finds the error it states."""

import math

import numpy as np
import pytest
from scipy import stats

from kleash.audit.chance import (
    NOISE_MEAN,
    grouped_mean,
    log_e_above,
    log_e_below,
    log_e_surprisal,
    mean_and_se,
    mixture,
    more_at_the_end,
    sign_test,
    slope_bounds,
    tail_p_value,
)

LEVEL = 0.05


def test_betting_above_keeps_its_level_under_a_heavy_tail():
    """2,000 runs of 300 ratios whose second moment is infinite (Pareto, index 1.5, mean 1): at most 5 % + 4 SE reject.

    A z test on the same data is the mutant: it rejects upwards almost never and downwards in most runs.
    """
    rng = np.random.default_rng(0)
    ratio = (rng.pareto(1.5, size=(2000, 300)) + 1) / 3
    rejected = sum(mixture(log_e_above(row)) > -math.log(LEVEL) for row in ratio)
    assert rejected <= 2000 * LEVEL + 4 * math.sqrt(2000 * LEVEL)
    z = (ratio.mean(axis=1) - 1) / (ratio.std(axis=1) / math.sqrt(300))
    assert (z < -1.645).mean() > 2 * LEVEL


def test_betting_finds_a_mean_that_is_off():
    """A mean of 1.03 with a spread of .4 (temperature, other weights) at 20,000 tokens: found in all of 20 runs."""
    rng = np.random.default_rng(1)
    for _ in range(20):
        ratio = np.exp(0.4 * rng.normal(size=20_000) - 0.08)
        assert mixture(log_e_above(1.03 * ratio)) > -math.log(1e-3)
        assert mixture(log_e_above(ratio)) < -math.log(1e-3)


def test_scoring_noise_is_granted_and_no_more():
    rng = np.random.default_rng(2)
    for spread, granted in ((0.05, True), (0.08, False)):  # noise on logits: its normaliser counts half of the mean
        ratio = np.exp(spread * rng.normal(size=2_000_000) + spread**2 / 2)
        assert ratio.mean() == pytest.approx(math.exp(spread**2), abs=3e-4)
        assert (math.exp(spread**2) < NOISE_MEAN) == granted
        assert (mixture(log_e_above(ratio)) < -math.log(LEVEL)) == granted
        assert (mixture(log_e_above(ratio)) > -math.log(1e-3)) == (not granted)
    assert math.exp(0.0015 + 0.0499**2 / 2) < NOISE_MEAN  # trl 6789


def test_surprisal_bets_are_exact_at_low_entropy():
    """2,000 dumps of 320 tokens whose rare token (.003) is mostly not seen: at most 5 % + 4 SE alarm. A t test (the
    mutant) alarms whenever it sees none. A temperature of 0.8 at 5,000 tokens is found in all of 20."""
    rng, eps = np.random.default_rng(7), 0.003
    entropy = -(1 - eps) * math.log1p(-eps) - eps * math.log(eps)
    rare = rng.random((2000, 320)) < eps
    wealth = [
        mixture(log_e_surprisal(-np.where(row, math.log(eps), math.log1p(-eps)), np.full(320, entropy), margin=0.01))
        for row in rare
    ]
    assert sum(w > -math.log(LEVEL) for w in wealth) <= 2000 * LEVEL + 4 * math.sqrt(2000 * LEVEL)
    assert (~rare.any(axis=1)).mean() > 0.3
    logits = 2 * rng.normal(size=64)
    p = np.exp(logits) / np.exp(logits).sum()
    cool, full = p**1.25 / (p**1.25).sum(), np.full(5000, -(p * np.log(p)).sum())
    for _ in range(20):
        sharp, right = (-np.log(p[rng.choice(64, size=5000, p=law)]) for law in (cool, p))
        assert mixture(log_e_surprisal(sharp, full, margin=0.01)) > -math.log(1e-3)
        assert mixture(log_e_surprisal(right, full, margin=0.01)) < -math.log(1e-3)


def test_betting_below_finds_kept_mass():
    rng = np.random.default_rng(3)
    full = np.exp(0.05 * rng.normal(size=5000))
    assert mixture(log_e_below(full)) < -math.log(LEVEL)
    assert mixture(log_e_below(0.95 * full)) > -math.log(1e-3)
    assert mixture(log_e_below(np.where(rng.random(5000) < 1e-3, 1e6, full))) < 0  # a cut-off outlier cannot reject


def test_wealth_adds_over_pieces():
    ratio = np.random.default_rng(4).exponential(size=1000)
    parts = sum(log_e_above(piece) for piece in np.split(ratio, [10, 500]))
    assert parts == pytest.approx(log_e_above(ratio), rel=1e-10)
    assert mixture(log_e_above(np.array([np.inf]))) == math.inf
    assert mixture([0.0, -1000.0]) == pytest.approx(-math.log(2))


def test_large_ratios_are_counted_against_their_bound():
    assert tail_p_value([0, 0], [3.0, 20.0], 1000)[0] == 1.0
    p, where = tail_p_value([60, 3], [3.0, 20.0], 1000)
    assert (where, p < 1e-15) == (1, True)
    assert tail_p_value([49, 0], [3.0, 20.0], 1000)[0] > 0.5  # 49.8 are expected at most


def test_sign_and_ending_tests_are_the_exact_ones():
    assert sign_test(9, 10) == pytest.approx(11 / 1024)
    assert sign_test(0, 0) == 1.0
    assert more_at_the_end(0, 10, 0, 100) == 1.0
    expected = stats.fisher_exact([[3, 7], [1, 99]], alternative="greater").pvalue
    assert more_at_the_end(3, 10, 1, 100) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("noise_x", "noise_y"), [(0.0, 0.0), (0.3, 0.0), (0.0, 0.3), (0.2, 0.2)])
@pytest.mark.parametrize("slope", [0.7, 1.0, 1.6])
def test_the_slope_lies_between_the_regressions(noise_x, noise_y, slope):
    """40 draws of 64 groups each, limits at 1 %: the true slope outside in at most 4; a slope off by a half outside."""
    rng = np.random.default_rng(5)
    missed = wrong = 0
    for _ in range(40):
        x = rng.normal(size=(64, 30))
        y = slope * x + 0.7
        x, y = x + noise_x * rng.normal(size=x.shape), y + noise_y * rng.normal(size=x.shape)
        moments = np.stack([z.sum(axis=1) for z in (np.ones_like(x), x, y, x * x, x * y, y * y)], axis=1)
        _, _, low, high = slope_bounds(moments, level=0.01)
        missed += not low <= slope <= high
        wrong += low <= 1.5 * slope <= high
    assert missed <= 4
    assert wrong == 0


def test_an_empty_group_does_not_count_and_one_answer_is_a_group():
    rng = np.random.default_rng(4)
    x, y = rng.normal(size=(2, 12)) + rng.normal(size=12)
    moments = np.stack([np.ones(12), x, y, x * x, x * y, y * y], axis=1)
    bounds = slope_bounds(moments, level=0.05)
    assert np.isfinite(bounds).all()
    assert slope_bounds(np.vstack([moments, np.zeros(6)]), level=0.05) == bounds


def test_means_over_answers_of_unequal_length():
    """95 % limits of a token mean with dependent tokens cover in 91 % to 99 % of 500 batches."""
    rng, covered = np.random.default_rng(6), 0
    for _ in range(500):
        n = rng.integers(1, 40, size=80)
        sums = n * rng.normal(loc=0.5, size=80) + np.sqrt(n) * rng.normal(size=80)
        low, high = grouped_mean(sums, n).limits(0.05)
        covered += low <= 0.5 <= high
    assert 0.91 <= covered / 500 <= 0.99
    assert grouped_mean([1.0], [2]).limits(0.05) == (-math.inf, math.inf)


def test_a_mean_of_one_unit_has_no_error_to_speak_of():
    one, two = mean_and_se([0.3]), mean_and_se([0.2, 0.4])
    assert (one.value, one.se, one.limits(0.05)) == (0.3, math.inf, (-math.inf, math.inf))
    assert (two.value, two.se) == pytest.approx((0.3, 0.1))
