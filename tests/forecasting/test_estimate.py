"""Reweighting one prompt's samples: against leaving each one out by hand, in floats and in sixty digits."""

import numpy as np
import pytest
from by_hand import every_prompt, jackknife, one_prompt, sixty_digits, sixty_digits_jackknife
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from kleash.forecasting import estimate
from kleash.forecasting.estimate import estimate_prompts

BETAS = np.geomspace(0.05, 50.0, 7)


def some_prompts(seed, n_prompts=4, n_samples=24, *, ties=False):
    rng = np.random.default_rng(seed)
    r = rng.normal(size=(n_prompts, n_samples))
    return r.round(1) if ties else r, rng.normal(size=(n_prompts, n_samples))


def prompts():
    """Hypothesis: a few prompts, with and without ties, K from 2."""
    return st.builds(some_prompts, st.integers(0, 2**20), st.integers(1, 3), st.integers(2, 12), ties=st.booleans())


# ----------------------------------------------------------------------------------------------------- against the hand


@pytest.mark.parametrize("n_samples", [2, 3, 5, 24, 65])
@pytest.mark.parametrize("ties", [False, True])
def test_plain_corrected_and_deviations_equal_leaving_out_by_hand(n_samples, ties):
    r, x = some_prompts(n_samples, n_samples=n_samples, ties=ties)
    here = estimate_prompts(r, x, 1 / BETAS, keep_deviations=True)
    np.testing.assert_allclose(here.plain, every_prompt(one_prompt, r, x, BETAS), rtol=1e-12, atol=1e-13)
    corrected = every_prompt(lambda *args: jackknife(*args)[0], r, x, BETAS)
    np.testing.assert_allclose(here.corrected, corrected, rtol=1e-12, atol=1e-12)
    for p in range(r.shape[0]):
        for b, beta in enumerate(BETAS):  # sample i of the input, not of the sorted rewards
            expected = jackknife(r[p], x[p], beta)[1]
            np.testing.assert_allclose(here.deviations[:, p, :, b], expected, rtol=1e-12, atol=1e-13)


NEARLY_TIED = np.array([[1.0, 1.0 - 1e-9, 0.999, 0.5, -3.0, 1.0 - 3e-9]])
ONE_DOMINATES = np.array([[0.1, 8.0, 0.3, -0.2, 0.0, 0.25]])
FAR_FROM_ZERO = 1e6 + np.array([[0.1, 0.8, 0.3, -0.2, 0.0, 0.25]])


@pytest.mark.parametrize("r", [NEARLY_TIED, ONE_DOMINATES, FAR_FROM_ZERO], ids=["nearly tied", "dominated", "far"])
@pytest.mark.parametrize("beta", [1e-10, 1e-9, 1e-3, 0.02, 0.1, 1.0, 30.0, 1e4])
def test_nothing_cancels_down_to_small_betas(r, beta):
    """In sixty digits. S - w for the top sample would leave no digit of the others' weights here."""
    x = np.array([[0.3, -1.0, 2.0, 0.7, 0.1, 5.0]])
    here = estimate_prompts(r, x, np.array([1 / beta]), keep_deviations=True)
    plain = np.array(sixty_digits(r[0], x[0], beta), dtype=float)
    corrected, deviations = sixty_digits_jackknife(r[0], x[0], beta)
    size = np.array([np.abs(r).max(), 1.0, 5.0])
    close = 1e-13 * size
    assert (np.abs(here.plain[:, 0, 0] - plain) < close).all()
    assert (np.abs(here.corrected[:, 0, 0] - corrected) < 10 * close).all()
    assert (np.abs(here.deviations[:, 0, :, 0] - deviations) < close[:, None]).all()


def test_dropping_a_sample_that_holds_all_the_weight():
    r, x = np.array([[0.0, 1.0, 2.0]]), np.array([[7.0, 5.0, 3.0]])
    here = estimate_prompts(r, x, np.array([1 / 1e-3]), keep_deviations=True)
    # without the top sample the second holds all the weight: delete-one rewards 2, 2, 1, golds 3, 3, 5, KLs log 2
    np.testing.assert_allclose(here.deviations[0, 0, :, 0], np.array([2, 2, 1]) - 5 / 3, atol=1e-14)
    np.testing.assert_allclose(here.deviations[2, 0, :, 0], np.array([3, 3, 5]) - 11 / 3, atol=1e-14)
    np.testing.assert_allclose(here.corrected[:, 0, 0], [3 * 2 - 2 * 5 / 3, 3 * np.log(3) - 2 * np.log(2), 9 - 22 / 3])


def test_two_samples():
    r, x, beta = np.array([[0.0, 0.7]]), np.array([[2.0, -1.0]]), np.array([0.35])
    here = estimate_prompts(r, x, 1 / beta)
    p = 1 / (1 + np.exp(-2.0))
    kl = p * np.log(2 * p) + (1 - p) * np.log(2 - 2 * p)
    np.testing.assert_allclose(here.plain[:, 0, 0], [0.7 * p, kl, 2 - 3 * p], rtol=1e-13)
    np.testing.assert_allclose(here.corrected[:, 0, 0], [2 * 0.7 * p - 0.35, 2 * kl, 2 * (2 - 3 * p) - 0.5], rtol=1e-13)


# ----------------------------------------------------------------------------------------------------------- the limits


@pytest.mark.parametrize("beta", [1e-300, np.finfo(float).tiny])
def test_the_tightest_beta_takes_the_best_and_splits_ties(beta):
    r = np.array([[3.0, -1e5, 3.0, 0.0], [1.0, 2.0, 4.0, 3.9]])
    x = np.array([[1.0, 9.0, 0.0, 9.0], [9.0, 9.0, 0.25, 9.0]])
    here = estimate_prompts(r, x, np.array([1 / beta]))
    np.testing.assert_allclose(here.plain[..., 0], [[3.0, 4.0], [np.log(2), np.log(4)], [0.5, 0.25]], rtol=1e-15)
    np.testing.assert_array_equal(here.ess[:, 0], [2, 1])
    by_hand = every_prompt(lambda *args: jackknife(*args)[0], r, x, [1e-3])
    np.testing.assert_allclose(here.corrected, by_hand, rtol=1e-13)


def test_the_loosest_beta_is_the_reference():
    r, x = some_prompts(3)
    here = estimate_prompts(r, x, np.array([1e-300, 0.0]))
    for b in range(2):
        np.testing.assert_allclose(here.plain[0, :, b], r.mean(axis=1), rtol=1e-12)
        np.testing.assert_allclose(here.corrected[0, :, b], r.mean(axis=1), rtol=1e-11, atol=1e-14)
        np.testing.assert_allclose(here.plain[2, :, b], x.mean(axis=1), rtol=1e-12, atol=1e-15)
        np.testing.assert_allclose(here.plain[1, :, b], 0.0, atol=1e-14)
        np.testing.assert_allclose(here.corrected[1, :, b], 0.0, atol=1e-13)
        np.testing.assert_allclose(here.ess[:, b], 24.0, rtol=1e-14)


def test_equal_rewards_move_nothing():
    x = np.array([[1.0, 2.0, 6.0]])
    here = estimate_prompts(np.full((1, 3), 0.1), x, 1 / np.array([1e-300, 1e-3, 1.0, 1e300]))
    np.testing.assert_allclose(here.corrected[:, 0], np.array([[0.1] * 4, [0.0] * 4, [3.0] * 4]), atol=1e-14)


# --------------------------------------------------------------------------------------------- what must change nothing


@given(prompts(), st.randoms(use_true_random=False))
def test_order_of_samples_and_prompts_changes_nothing(made, random):
    r, x = made
    p, k = list(range(r.shape[0])), list(range(r.shape[1]))
    random.shuffle(p)
    random.shuffle(k)
    first = estimate_prompts(r, x, 1 / BETAS, keep_deviations=True)
    again = estimate_prompts(r[p][:, k], x[p][:, k], 1 / BETAS, keep_deviations=True)
    distinct = all(np.unique(row).size == row.size for row in r)
    same = np.testing.assert_array_equal if distinct else lambda a, b: np.testing.assert_allclose(a, b, atol=1e-12)
    same(again.plain, first.plain[:, p])
    same(again.ess, first.ess[p])
    same(again.corrected, first.corrected[:, p])  # one block of delete-one estimates, added up in sorted order
    same(again.deviations, first.deviations[:, p][:, :, k])


@given(prompts(), st.floats(-6.0, 6.0), st.floats(-100.0, 100.0))
def test_a_judge_in_other_units_is_the_same_judge(made, exponent, shift):
    r, x = made
    c = 10.0**exponent
    a = estimate_prompts(r, x, 1 / BETAS)
    b = estimate_prompts(c * r + c * shift, x, 1 / (c * BETAS))
    for one, other in ((a.plain, b.plain), (a.corrected, b.corrected)):
        np.testing.assert_allclose(other[0] / c - shift, one[0], atol=1e-9)
        np.testing.assert_allclose(other[1:], one[1:], atol=1e-9)
    np.testing.assert_allclose(b.ess, a.ess, rtol=1e-9)


@given(prompts())
def test_bounds_and_directions(made):
    r, x = made
    lam = np.geomspace(1e-3, 1e3, 13)
    here = estimate_prompts(r, x, lam)
    reward, kl, marked = here.plain
    assert (kl >= -1e-14).all()
    assert (kl <= np.log(r.shape[1]) + 1e-14).all()
    assert (np.diff(kl, axis=1) >= -1e-12).all()  # both rise with lambda
    assert (np.diff(reward, axis=1) >= -1e-12).all()
    assert (reward >= r.mean(axis=1, keepdims=True) - 1e-12).all()
    assert (reward <= r.max(axis=1, keepdims=True) + 1e-12).all()
    assert (marked >= x.min(axis=1, keepdims=True) - 1e-12).all()
    assert (marked <= x.max(axis=1, keepdims=True) + 1e-12).all()
    assert ((here.ess >= 1 - 1e-12) & (here.ess <= r.shape[1] + 1e-9)).all()


@given(prompts(), st.floats(0.01, 10.0))
def test_slopes_along_the_dial_are_covariances(made, lam):
    r, x = made
    h = 1e-4
    here = estimate_prompts(r, x, np.array([lam - h * lam, lam, lam + h * lam])).plain
    slope = (here[..., 2] - here[..., 0]) / (2 * h * lam)
    squares = estimate_prompts(r, x * r, np.array([lam])).plain[2, :, 0] - here[2, :, 1] * here[0, :, 1]
    variance = estimate_prompts(r, r * r, np.array([lam])).plain[2, :, 0] - here[0, :, 1] ** 2
    np.testing.assert_allclose(slope[0], variance, atol=1e-5, rtol=1e-5)
    np.testing.assert_allclose(slope[1], lam * variance, atol=1e-5, rtol=1e-5)
    np.testing.assert_allclose(slope[2], squares, atol=1e-5, rtol=1e-5)


# ---------------------------------------------------------------------------------------------- what the jackknife does


def test_the_jackknife_removes_the_bias_of_order_one_over_k():
    """Exact: two scores, the upper of probability .3, the count of it binomial. Bias falls as 1/K and as 1/K^2."""
    p, lam = 0.3, 1.5
    q = p * np.exp(lam) / (1 - p + p * np.exp(lam))
    truth = np.array([q, q * np.log(q / p) + (1 - q) * np.log((1 - q) / (1 - p))])
    bias = {}
    for k in (20, 40):
        tops = np.arange(k + 1)
        r = (np.arange(k) < tops[:, None]).astype(float)
        here = estimate_prompts(r, r, np.array([lam]))
        chance = binom.pmf(tops, k, p)
        bias[k] = [chance @ here.plain[:2, :, 0].T - truth, chance @ here.corrected[:2, :, 0].T - truth]
    plain, corrected = (np.array([bias[k][i] for k in (20, 40)]) for i in (0, 1))
    assert (plain < 0).all()  # towards the reference
    assert (np.abs(corrected) < 0.2 * np.abs(plain)).all()
    assert (plain[0] / plain[1] < 2.3).all()
    assert (corrected[0] / corrected[1] > 3.4).all()


# ---------------------------------------------------------------------------------------------------- effective samples


def test_effective_samples_and_effective_labels():
    r, x = some_prompts(7, n_samples=6)
    labelled = np.zeros(r.shape, dtype=bool)
    labelled[0, :3] = labelled[1, 5] = labelled[3] = True  # three, one, none, all
    here = estimate_prompts(r, x, 1 / BETAS, labelled=labelled)
    w = np.exp(r[..., None] / BETAS)
    w /= w.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(here.ess, 1 / (w**2).sum(axis=1), rtol=1e-12)
    np.testing.assert_allclose(here.label_ess[0], w[0, :3].sum(axis=0) ** 2 / (w[0, :3] ** 2).sum(axis=0), rtol=1e-12)
    np.testing.assert_allclose(here.label_ess[1], 1.0, rtol=1e-12)
    np.testing.assert_array_equal(here.label_ess[2], 0.0)
    np.testing.assert_allclose(here.label_ess[3], here.ess[3], rtol=1e-12)
    everything = estimate_prompts(r, x, 1 / BETAS)
    np.testing.assert_array_equal(everything.label_ess, everything.ess)
    assert everything.deviations is None


def test_betas_taken_in_parts_give_the_same(monkeypatch):
    r, x = some_prompts(3)
    lam = np.geomspace(0.1, 10, 7)
    labelled = x > np.median(x)
    whole = estimate.estimate_prompts(r, x, lam, labelled=labelled, keep_deviations=True)
    monkeypatch.setattr(estimate, "_CELLS", 2 * r.size)
    parts = estimate.estimate_prompts(r, x, lam, labelled=labelled, keep_deviations=True)
    for name in ("plain", "corrected", "ess", "label_ess", "deviations"):
        np.testing.assert_allclose(getattr(parts, name), getattr(whole, name), rtol=1e-12, atol=1e-13)
