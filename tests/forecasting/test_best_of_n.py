"""Best of n from samples: against drawing every sequence, with ties, and the published numbers of the samples."""

import itertools

import numpy as np
import pytest
from by_hand import normal_samples, rectangle, word_problems
from hypothesis import given
from hypothesis import strategies as st

from kleash import Samples, forecast
from kleash.forecasting.best_of_n import best_of_n_prompts


def every_sequence(r, x, n):
    """Reward, KL over score classes and mean of x of best-of-n, from all K^n equally likely sequences of draws."""
    k = r.size
    weight = np.zeros(k)
    for drawn in itertools.product(range(k), repeat=n):
        best = r[list(drawn)].max()
        ties = np.flatnonzero(r == best)  # any answer of the class: the judge cannot tell
        weight[ties] += 1 / (k**n * ties.size)
    kl = 0.0
    for score in np.unique(r):
        p, q = weight[r == score].sum(), (r == score).mean()
        kl += p * np.log(p / q)
    return weight @ r, kl, weight @ x


@pytest.mark.parametrize("n", [1, 2, 3, 5])
@pytest.mark.parametrize("r", [[3.0, 1.0, 2.0, -4.0], [1.0, 2.0, 2.0, 0.0], [5.0, 5.0, 5.0, 5.0], [2.0, 0.0, 0.0, 2.0]])
def test_equals_all_sequences_of_draws(r, n):
    r, x = np.array(r), np.array([0.3, -1.0, 2.0, 10.0])
    here = best_of_n_prompts(r[None], x[None], np.array([n]))[:, 0, 0]
    np.testing.assert_allclose(here, every_sequence(r, x, n), rtol=1e-12, atol=1e-13)


def test_prompts_and_ns_do_not_mix():
    r = np.random.default_rng(0).normal(size=(3, 5)).round(1)
    x = np.random.default_rng(1).normal(size=(3, 5))
    here = best_of_n_prompts(r, x, np.array([4, 1, 2]))
    for p in range(3):
        for i, n in enumerate((4, 1, 2)):
            np.testing.assert_allclose(here[:, p, i], every_sequence(r[p], x[p], n), rtol=1e-12, atol=1e-13)


@given(st.integers(0, 2**20), st.integers(2, 40), st.integers(1, 64))
def test_bounds(seed, k, n):
    rng = np.random.default_rng(seed)
    r = rng.normal(size=(2, k)).round(1)
    reward, kl, _ = best_of_n_prompts(r, r, np.array([1, n, 2 * n]))
    assert (kl[:, 0] == 0.0).all()  # best of one is the reference, to the last bit
    assert (kl[:, 1:] >= -1e-12).all()
    bound = np.log([n, 2 * n]) - (np.array([n, 2 * n]) - 1) / [n, 2 * n]
    assert (kl[:, 1:] <= bound + 1e-12).all()
    ties = (r == r.max(axis=1, keepdims=True)).sum(axis=1)
    assert (kl <= np.log(k / ties)[:, None] + 1e-12).all()
    assert (np.diff(reward, axis=1) >= -1e-12).all()
    np.testing.assert_allclose(reward[:, 0], r.mean(axis=1), rtol=1e-10, atol=1e-14)


def test_without_ties_it_comes_near_the_formula_and_with_them_it_does_not():
    r = np.arange(4000.0)[None]
    kl = best_of_n_prompts(r, r, np.array([4, 16]))[1, 0]
    np.testing.assert_allclose(kl, np.log([4, 16]) - np.array([3 / 4, 15 / 16]), rtol=2e-3)
    for top, expected in ((5, 0.459), (1, 0.217)):  # two scores of which the upper has probability .5 and .1
        two = (np.arange(10) < top).astype(float)[None]
        assert round(best_of_n_prompts(two, two, np.array([4]))[1, 0, 0], 3) == expected


def test_the_published_row_of_the_shipped_samples():
    """Drawing without replacement would give gold .832 and KL near log 24; the formula 2.220 where ties leave 1.216."""
    result = forecast(word_problems(), beta=[10.0])
    rows = {row.n: row for row in result.best_of_n}
    assert list(rows) == [1, 2, 4, 8, 16, 24]
    assert [round(row.gold, 3) for row in rows.values()] == [0.668, 0.713, 0.761, 0.802, 0.823, 0.828]
    assert [round(row.kl, 3) for row in rows.values()] == [0.0, 0.127, 0.401, 0.727, 1.049, 1.216]
    assert [round(row.kl_bound, 3) for row in rows.values()] == [0.0, 0.193, 0.636, 1.204, 1.835, 2.220]
    assert [row.status for row in rows.values()] == ["ok"] * 4 + ["weak"] * 2  # past a third of the samples
    assert rows[1].reward == pytest.approx(word_problems().reward.mean(), rel=1e-12)
    assert (np.diff([row.reward for row in rows.values()]) > 0).all()


def test_gold_from_some_rows_and_without_gold():
    rng = np.random.default_rng(2)
    r, g = rng.normal(size=(400, 9)), rng.normal(size=(400, 9))
    full = forecast(rectangle(r, r + g), beta=[1.0]).best_of_n
    kept = np.argsort(rng.random(r.shape), axis=1) < 3
    some = forecast(rectangle(r, np.where(kept, r + g, np.nan)), beta=[1.0]).best_of_n
    assert [row.n for row in some] == [1, 2, 4, 8, 9]
    for a, b in zip(full, some, strict=True):
        assert (a.reward, a.kl) == (b.reward, b.kl)
        assert abs(a.gold - b.gold) < 0.25  # 2.5 standard errors; renormalising on the labelled rows is .44 off
    assert some[-1].gold - some[0].gold > 0.75
    assert {row.gold for row in forecast(normal_samples(gold=False), beta=[1.0]).best_of_n} == {None}


def test_past_a_third_of_the_samples_is_weak():
    rows = forecast(normal_samples(n_samples=20), beta=[1.0]).best_of_n
    assert [(row.n, row.status) for row in rows[2:]] == [(4, "ok"), (8, "weak"), (16, "weak"), (20, "weak")]


def test_prompts_of_different_size_share_the_median_size_as_the_last_n():
    samples = Samples.from_arrays([0] * 2 + [1] * 6 + [2] * 30, np.random.default_rng(3).normal(size=38))
    assert [row.n for row in forecast(samples, beta=[1.0]).best_of_n] == [1, 2, 4, 6]
