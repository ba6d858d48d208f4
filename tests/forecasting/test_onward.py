"""Drift kept, and the slope of the next step: against enumeration, and against what they leave out."""

import numpy as np
import pytest
from recipe_policies import drawn, trained
from scipy.special import logsumexp

from kleash import Samples, forecast
from kleash.forecasting.reweight import Labels
from kleash.forecasting.slope import slope_of


def kept(log_p, world, push):
    """Gold and KL to the reference of the policy times exp(push * reward), by enumeration; means over dishes."""
    tilted = log_p + push * world.reward
    tilted -= logsumexp(tilted, axis=1, keepdims=True)
    p = np.exp(tilted)
    return (p * world.gold).sum(axis=1).mean(), (p * (tilted - world.log_reference)).sum(axis=1).mean()


@pytest.mark.parametrize("n_reference", [0, 60])
def test_kept_rows_are_the_policys_own_tilt(n_reference):
    """From .6 to .36 and .3, within four standard errors of the enumeration; KL has the drift as a mean.

    Without the mean log ratio the KL at .36 would be .5 for 3.4.
    """
    world, policies = trained()
    found = forecast(drawn(np.random.default_rng(3), n_reference, [(0.6, 200)]), beta=[0.3, 0.36, 0.6], prompts="fixed")
    onward = found.onward
    assert onward.source == "b0.6"
    assert onward.frontier.status.tolist() == ["ok"] * 3
    for row, beta in enumerate((0.3, 0.36, 0.6)):
        gold, kl = kept(policies[0.6], world, 1 / beta - 1 / onward.effective_beta)
        assert abs(onward.frontier.gold.value[row] - gold) < 4 * onward.frontier.gold.se[row]
        assert abs(onward.frontier.kl.value[row] - kl) < 4 * onward.frontier.kl.se[row]
    told = found.to_dict()["onward"]
    assert set(told["rows"][0]) >= {"beta", "reward", "gold", "kl", "status"}


def test_the_slope_is_the_ratio_of_covariances():
    """On a sample with every answer in proportion: dE[g]/dKL of the enumeration; the interval is Fieller's."""
    world, policies = trained()
    samples = drawn(np.random.default_rng(0), 0, [(0.6, 3000)])
    slope = slope_of(samples, 0, Labels.of(samples))
    step = 1e-4
    (g0, k0), (g1, k1) = kept(policies[0.6], world, 0.0), kept(policies[0.6], world, step)
    assert slope.gold[1] < (g1 - g0) / (k1 - k0) < slope.gold[2]
    assert slope.reward[0] == pytest.approx(0.605, rel=0.02)
    assert slope.gold[2] - slope.gold[1] < 0.1
    assert "the next 0.1 nats buy +0.06" in str(slope)


def test_no_slope_where_the_ratio_does_not_follow_the_score():
    rng = np.random.default_rng(0)
    ratio = rng.normal(size=240)
    samples = Samples.from_arrays(
        np.repeat(np.arange(10), 24), rng.normal(size=240), source=["b"] * 240, log_ratio=ratio - ratio.mean()
    )
    assert slope_of(samples, 0, None) is None
