"""Forecasts from answers of policies, on the recipes' trained policies, whose exact tilts are known."""

import dataclasses
import json

import numpy as np
import pytest
from recipe_policies import drawn, trained
from scipy.special import logsumexp

from kleash import Samples, forecast
from kleash.errors import DataError, OptionError
from kleash.forecasting.best_of_n_of_sources import best_of_n_of_sources
from kleash.forecasting.counted import worth
from kleash.forecasting.identity import identity_of
from kleash.forecasting.pools import pools_of
from kleash.forecasting.reweight import Labels
from kleash.forecasting.survey import survey
from kleash.tilt import best_of_n, moments

BETA = np.array([0.27, 0.36, 0.6])


def truth(beta):
    world, _ = trained()
    return moments(world, beta)


def prompts_of(samples):
    return np.repeat(np.arange(samples.n_prompts), samples.counts)


@pytest.mark.parametrize(("n_reference", "n"), [(0, 96), (48, 48)])
def test_one_policy_gives_the_dial_around_it(n_reference, n):
    """From beta .6, KL 1.4: gold at KL 3.4 within four standard errors and .15 (1 false alarm in 500 draws).

    The reference's own 96 answers miss it by .4 and more; weights without the density of the mixture by 1.
    """
    result = forecast(drawn(np.random.default_rng(4), n_reference, [(0.6, n)]), beta=BETA, prompts="fixed")
    exact = truth(BETA)
    for row in (1, 2):
        assert result.frontier.status[row] == "ok"
        assert abs(result.frontier.gold.value[row] - exact.gold[row]) < 0.15
        assert abs(result.frontier.kl.value[row] - exact.kl[row]) < 4 * result.frontier.kl.se[row] + 0.05
    told = result.to_dict()
    json.dumps(told, allow_nan=False)
    shares = told["rows"][0]["sources"]
    assert sum(shares.values()) == pytest.approx(1.0)
    assert set(shares) == ({"reference", "b0.6"} if n_reference else {"b0.6"})
    assert told["rows"][2]["reach"] < 0.1 < told["rows"][0]["reach"]
    source = told["sources"][-1]
    assert source["effective_beta"] == pytest.approx(0.605, rel=0.06)
    assert source["tilt_spread"] == pytest.approx(0.164, abs=0.05)
    assert source["identity"]["holds"]


def test_back_to_the_reference_needs_its_answers():
    """A policy far from the reference gives no gain; with half of the answers from the reference it does."""
    alone = forecast(drawn(np.random.default_rng(0), 0, [(0.36, 64)]), beta=[0.3, 1.5], prompts="fixed")
    assert alone.frontier.status.tolist() == ["ok", "weak"]
    assert np.isnan(alone.frontier.gold.gain.value).all()
    assert alone.verdict.kind == "cannot-tell"
    both = forecast(drawn(np.random.default_rng(0), 32, [(0.36, 32)]), beta=[0.3, 1.5], prompts="fixed")
    assert both.frontier.status.tolist() == ["ok", "ok"]
    assert np.isfinite(both.frontier.gold.gain.value).all()


def test_sources_that_do_not_know_each_other_are_averaged():
    """Each pool alone, the one that reaches the target counts; the average is of the pools' own values."""
    rng = np.random.default_rng(3)
    samples = drawn(rng, 64, [(0.36, 64)], known=False)
    assert [pool.sources for pool in pools_of(samples.sources)] == [(0,), (1,)]
    result = forecast(samples, beta=[0.3, 1.5], prompts="fixed")
    weight = result.sourced.pooled.weight
    assert weight[1, 0] == 1.0
    assert weight[0, 1] > 0.5
    np.testing.assert_allclose(weight.sum(axis=0), 1.0)
    exact = truth(np.array([0.3, 1.5]))
    np.testing.assert_allclose(result.frontier.gold.value, exact.gold, atol=0.2)
    both = forecast(drawn(rng, 64, [(0.36, 64)]), beta=[0.3, 1.5], prompts="fixed")
    assert [pool.sources for pool in both.sourced.pooled.pools] == [(0, 1)]


def test_gold_on_some_rows_only():
    """Labels on the policy's answers alone, or on a quarter of all: gold stays where all labels put it (4 errors)."""
    samples = drawn(np.random.default_rng(7), 200, [(0.6, 200)])
    whole = forecast(samples, beta=[0.6], prompts="fixed").frontier.gold
    rng = np.random.default_rng(0)
    for keep in (samples.sources.code == 1, rng.random(samples.n_samples) < 0.25):
        some = dataclasses.replace(samples, gold=np.where(keep, samples.gold, np.nan))
        found = forecast(some, beta=[0.6], prompts="fixed").frontier.gold
        assert abs(found.value[0] - whole.value[0]) < 4 * found.se[0]
    skewed = samples.sources.code == 1
    assert samples.gold[skewed].mean() != pytest.approx(samples.gold.mean(), abs=0.05)


@pytest.mark.parametrize("n_reference", [0, 160])
def test_a_source_that_is_not_what_it_claims_is_refused(n_reference):
    """Means per token for sums, and ratios .6 nats off: found in 20 of 30; honest ones called in at most 1 of 30."""

    def identity(seed, log_ratio):
        n = n_reference or 400  # alone it takes 200 effective answers of exp(-log ratio)
        samples = drawn(np.random.default_rng(seed), n_reference, [(0.9, n)], log_ratio=log_ratio)
        return identity_of(samples.sources, prompts_of(samples), len(samples.sources.names) - 1)

    for fault in (lambda d: d / 5, lambda d: d + 0.6):
        assert sum(not identity(seed, fault).holds for seed in range(30)) >= 20
    assert sum(not identity(seed, lambda d: d).holds for seed in range(30)) <= 1
    assert identity(0, lambda d: d).answers_for_5_percent > 1_000


def test_a_refused_source_is_left_out_or_the_forecast_refused():
    rng = np.random.default_rng(0)
    with pytest.raises(DataError, match="is left out: expected exp"):
        forecast(drawn(rng, 0, [(0.9, 200)], log_ratio=lambda d: d - 1.0))
    result = forecast(drawn(rng, 64, [(0.9, 64)], log_ratio=lambda d: d - 1.5), beta=[1.5])
    assert result.sourced is None
    assert not result.reports[1].identity.holds
    assert "'b0.9' is left out" in result.notes[0]
    with pytest.raises(OptionError, match="objective for answers of policies: expected one of tilt"):
        forecast(drawn(rng, 32, [(0.9, 32)]), objective="group-standardised")


def test_best_of_a_thousand_from_sixty_four_answers():
    """Best-of-n of the reference far past n = 64, from a policy's answers: judge within .15, KL within .2 of exact."""
    world, _ = trained()
    n = [1, 4, 64, 512]
    exact = best_of_n(world, n)
    for spec in ((0, [(0.6, 64)]), (32, [(0.6, 32)])):
        samples = drawn(np.random.default_rng(1), *spec)
        rows = {row.n: row for row in best_of_n_of_sources(samples, Labels.of(samples), pools_of(samples.sources)[0])}
        for i, draws in enumerate(n[:3]):
            assert rows[draws].status == "ok"
            assert rows[draws].reward == pytest.approx(exact.reward[i], abs=0.15)
            assert rows[draws].kl == pytest.approx(exact.kl[i], abs=0.2)


def test_an_answer_of_a_policy_is_worth_many_of_the_reference():
    """Against a kind that scores the top: at least n_reference, and for one source n k A by the formula."""
    samples = drawn(np.random.default_rng(0), 32, [(0.6, 32)])
    seen = survey(samples)
    near = seen.effective[1]
    found = worth(samples, seen.effective, 5.7)
    step = -np.log(0.05) / 32
    push = np.exp(5.7 / near.beta - near.log_z - 2 * near.spread)
    np.testing.assert_allclose(found, 32 + 32 * step / np.expm1(step) * push)
    assert (found > 1_000).all()


def test_a_policy_whose_answers_score_alike_says_nothing():
    samples = drawn(np.random.default_rng(0), 0, [(0.36, 64)])
    top = dataclasses.replace(samples, reward=np.where(samples.reward > 3, 5.0, 4.9) - 4.9 * (samples.reward < 1))
    assert survey(top).effective[0].beta is not None or survey(top).effective[0].collapsed
    flat = dataclasses.replace(samples, reward=np.where(np.arange(192) % 64 == 0, 4.0, 5.0))
    assert survey(flat).effective[0].collapsed
    assert set(forecast(flat, beta=[0.3, 0.6]).frontier.status) <= {"weak", "beyond"}


def test_unseen_cheats_are_bounded_closer_with_a_source():
    """The bound falls tenfold with the source; that of the reference alone stands beside it, where it drew answers."""
    samples = drawn(np.random.default_rng(0), 32, [(0.6, 32)])
    both = forecast(samples, reward_max=5.7, gold_min=-6.0, prompts="fixed").to_dict()["unseen"]
    assert both["mass_below"] < 0.1 * both["without_sources"]["mass_below"]
    assert both["without_sources"]["mass_below"] == pytest.approx(-np.log(0.05) / 96)
    floors = both["beta_floor"], both["without_sources"]["beta_floor"]
    assert floors[1] is None or floors[0] < floors[1]
    alone = forecast(drawn(np.random.default_rng(0), 0, [(0.6, 64)]), reward_max=5.7, gold_min=-6.0, prompts="fixed")
    assert alone.unseen.without_sources is None


def test_the_verdict_names_the_next_rung():
    """Where no loss is seen and looser betas are out of reach: the loosest sure beta, and what its answers reach."""
    rng = np.random.default_rng(0)
    score = rng.normal(size=(60, 24))
    samples = Samples.from_arrays(np.repeat(np.arange(60), 24), score.ravel(), gold=score.ravel())
    result = forecast(samples)
    loosest = result.frontier.beta[result.frontier.status == "ok"][0]
    assert result.verdict.kind == "no-overoptimisation-seen"
    assert f"to see past beta {loosest:.3g}: a policy trained there" in result.verdict.needs[-1]
    assert "24 of its answers" in result.verdict.needs[-1]
    assert not any("to see past" in need for need in forecast(samples, beta=[loosest, 5.0]).verdict.needs)


def test_a_known_top_stands_for_the_tail_of_the_scores():
    """The few high scores may look like a power law; the judge's top says how far they can go."""
    samples = drawn(np.random.default_rng(22), 0, [(0.9, 64)])
    assert forecast(samples, beta=[0.5], prompts="fixed").frontier.status.tolist() == ["weak"]
    known = forecast(samples, beta=[0.5], prompts="fixed", reward_max=5.7)
    assert known.frontier.status.tolist() == ["ok"]
    assert not any("tail" in note for note in known.notes)
    far = forecast(samples, beta=[0.5], prompts="fixed", reward_max=100.0)  # and what was missed there may be anything
    assert far.frontier.status.tolist() == ["weak"]


def test_a_fifth_tighter_than_a_policy_far_away_is_as_far_back_as_it_speaks():
    """At 4/3 of its beta the policy at .27 alone covers KL in 77 % of redraws."""
    beta = [0.42, 0.45]
    result = forecast(drawn(np.random.default_rng(0), 0, [(0.36, 64)]), beta=beta, prompts="fixed", reward_max=5.7)
    assert result.frontier.status.tolist() == ["ok", "weak"]


def shaken(rng, spread, n_reference, n):
    """Answers of the tilt at beta .9 times exp(spread x a normal number for each answer), and of the reference."""
    world, _ = trained()
    log_p = world.log_reference + world.reward / 0.9 + spread * rng.normal(size=world.reward.shape)
    log_p -= logsumexp(log_p, axis=1, keepdims=True)
    policies = [("reference", world.log_reference, n_reference), ("shaken", log_p, n)]
    rows = [
        (dish, answer, name)
        for name, log_policy, size in policies
        for dish in range(3)
        for answer in rng.choice(world.reward.shape[1], size=size, p=np.exp(log_policy[dish]))
    ]
    dish, answer, name = zip(*rows, strict=True)
    at = np.array(dish), np.array(answer)
    ratio = {"shaken": (log_p - world.log_reference)[at]}
    return Samples.from_arrays(dish, world.reward[at], gold=world.gold[at], source=name, log_ratio=ratio)


def test_a_policy_with_more_drift_than_its_answers_can_pay_for_is_left_out():
    """Half a nat of drift costs a fifth of the answers, three nats all of them: the rows are the reference's then."""
    beta = [0.9, 3.0]
    near = forecast(shaken(np.random.default_rng(1), 0.5, 32, 32), beta=beta, prompts="fixed")
    assert all(row["sources"]["shaken"] > 0.1 for row in near.rows())
    far = shaken(np.random.default_rng(1), 3.0, 32, 32)
    result = forecast(far, beta=beta, prompts="fixed")
    assert "Left out of the rows, as their drift leaves fewer than one answer to a prompt: 'shaken'." in result.notes
    assert [row["sources"] for row in result.rows()] == [{"reference": 1.0, "shaken": 0.0}] * 2
    assert result.reports[1].tilt_spread > 2.0
    only = far.keeping(far.sources.code == 1)
    assert "ok" not in forecast(only, beta=beta, prompts="fixed").frontier.status.tolist()
