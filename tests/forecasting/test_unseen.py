"""Cheats nobody has seen: the stated loss against the truth and a generic optimiser, and the beta that holds it."""

import json

import numpy as np
import pytest
from by_hand import normal_samples, one_prompt, rectangle, word_problems
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import logsumexp

from kleash import forecast
from kleash.forecasting.estimate import estimate_prompts
from kleash.forecasting.reweight import Labels
from kleash.forecasting.unseen import breakdown_score, mass_below, worst_loss

BUDGET = -np.log(0.05)  # expected sightings of a kind that stays unseen with 5 % probability


def loss_of(q, push, stake):
    """Mean loss of a spread q (P,) at one beta."""
    a = np.exp(push)
    return (a * q / (a * q + 1 - q) * np.maximum(stake, 0)).mean()


# ---------------------------------------------------------------------------------------------------- against the truth

P, K, Y = 60, 8, 40
N = P * K
REWARD_MAX = 3.0
AT = np.array([0.4, 0.8, 2.0])


def unequal_prompts():
    """A world of prompts with different mean, spread and gold, in which the cheat has no mass yet."""
    rng = np.random.default_rng(5)
    log_reference = np.log(rng.dirichlet(np.full(Y, 2.0), size=P))
    reward = np.minimum(rng.normal(size=(P, 1)) + np.exp(0.5 * rng.normal(size=(P, 1))) * rng.normal(size=(P, Y)), 2.9)
    gold = rng.random((P, Y)) ** rng.uniform(0.3, 3.0, size=(P, 1))
    return log_reference, reward, gold


def spread_out(where, mass, a, stake):
    """Mass per prompt, ``mass`` / N in the mean: on a share of the prompts, or where it costs most at one beta."""
    if where != "at the worst":
        with_cheat = max(1, round(where * P))
        return np.where(np.arange(P) < with_cheat, mass / N * P / with_cheat, 0.0)
    low, high = 1e-30, 1e30
    for _ in range(300):
        price = np.sqrt(low * high)
        q = np.clip((np.sqrt(stake * a / price) - 1) / (a - 1), 0.0, 1.0)
        low, high = (price, high) if q.mean() > mass / N else (low, price)
    return q


def violations(mass, where, bound):
    """In how many of 500 draws the true loss is above the stated one at any beta; seen cheats do not count."""
    log_reference, reward, gold = unequal_prompts()
    w = np.exp(log_reference[:, :, None] + reward[:, :, None] / AT)
    z = w.sum(axis=1)
    a, stake = np.exp(REWARD_MAX / AT) / z, (w * gold[:, :, None]).sum(axis=1) / z  # (P, B)
    q = spread_out(where, mass, a[:, 1], stake[:, 1])
    truth = (a * q[:, None] / (a * q[:, None] + 1 - q[:, None]) * stake).mean(axis=0)
    rng = np.random.default_rng([int(10 * mass), 100 if where == "at the worst" else int(20 * where)])
    unseen = int((rng.random((500, P)) < (1 - q) ** K).all(axis=1).sum())
    if unseen == 0:
        return 0
    cumulative = np.exp(log_reference).cumsum(axis=1)
    answers = [np.searchsorted(cumulative[p, :-1], rng.random((unseen, K)), side="right") for p in range(P)]
    r, g = (np.stack([values[p][answers[p]] for p in range(P)]) for values in (reward, gold))  # (P, unseen, K)
    mean, kl, worth = estimate_prompts(r.reshape(-1, K), g.reshape(-1, K), 1 / AT).plain
    push = (REWARD_MAX - mean) / AT + kl
    stated = bound(push.reshape(P, -1), worth.reshape(P, -1), np.full(P, K)).reshape(unseen, -1)
    return int((stated < truth).any(axis=1).sum())


@pytest.mark.parametrize("where", [1.0, 0.3, 0.05, "at the worst"])
@pytest.mark.parametrize("mass", [0.3, 1, 2, 3, 4, 6])
def test_the_stated_loss_is_exceeded_in_at_most_35_of_500_draws(mass, where):
    """A cheat of mean mass ``mass`` / N, worth 0, at the judge's top; a draw in which it is seen is not a violation.

    The bar is 7 % at a stated 5 %: at a true rate of 5 % the false-alarm rate is 2 % (the draws are seeded).
    """
    assert violations(mass, where, worst_loss) <= 35


def test_smaller_bounds_are_exceeded_more_often():
    """Planted mistakes that the test above must catch: a third of the mass; a tilt that does not favour the cheat."""
    assert violations(2, "at the worst", lambda push, stake, counts: worst_loss(push, stake, 3 * counts)) > 35
    assert violations(1, 1.0, lambda push, stake, counts: worst_loss(0 * push, stake, counts)) > 35


# --------------------------------------------------------------------------------------------------------- worst spread


def some_problem(seed, n_prompts=4):
    rng = np.random.default_rng(seed)
    counts = rng.integers(2, 30, size=n_prompts)
    return rng.uniform(0.0, 6.0, size=n_prompts), rng.uniform(0.05, 2.0, size=n_prompts), counts


@pytest.mark.parametrize("seed", range(12))
def test_equals_a_generic_optimiser(seed):
    push, stake, counts = some_problem(seed)
    if seed % 3 == 0:
        stake[0] = -0.5  # nothing to lose there
    if seed % 4 == 0:
        push[1] = 0.0  # not pushed at all: the loss is linear in the mass
    best = 0.0
    for start in range(6):
        q0 = np.random.default_rng(start).dirichlet(np.ones(4)) * BUDGET / counts
        found = minimize(
            lambda q: -loss_of(q, push, stake),
            np.clip(q0, 1e-6, 1),
            bounds=[(0, 1)] * 4,
            constraints={"type": "ineq", "fun": lambda q: BUDGET - counts @ q},
            method="SLSQP",
            options={"ftol": 1e-14, "maxiter": 500},
        )
        if counts @ found.x <= BUDGET + 1e-9:
            best = max(best, -found.fun)
    assert worst_loss(push[:, None], stake[:, None], counts)[0] == pytest.approx(best, rel=1e-6)


@given(st.integers(0, 2**20), st.integers(1, 5), st.floats(0.0, 40.0))
def test_no_spread_within_the_budget_costs_more(seed, n_prompts, most_push):
    """The dual is never below the primal, whatever the spread."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(2, 30, size=n_prompts)
    push, stake = rng.uniform(0, most_push, size=n_prompts), rng.uniform(-0.5, 2.0, size=n_prompts)
    bound = worst_loss(push[:, None], stake[:, None], counts)[0]
    for concentration in (0.1, 1.0, 10.0):
        q = rng.dirichlet(np.full(n_prompts, concentration), size=50) * BUDGET / counts
        for spread in np.minimum(q, 1.0):
            assert loss_of(spread, push, stake) <= bound * (1 + 1e-9)
    assert bound <= np.maximum(stake, 0).mean() * (1 + 1e-12)


@given(st.integers(0, 2**20))
def test_the_loss_is_concave_in_the_mass(seed):
    """What makes a stationary spread the worst one."""
    push, stake, counts = some_problem(seed)
    rng = np.random.default_rng(seed)
    a, b = rng.dirichlet(np.ones(4), size=2) * BUDGET / counts
    a, b = np.minimum(a, 1), np.minimum(b, 1)
    between = loss_of((a + b) / 2, push, stake)
    assert between >= (loss_of(a, push, stake) + loss_of(b, push, stake)) / 2 - 1e-12


def test_two_prompts_by_brute_force_at_a_strong_push():
    push, stake, counts = np.array([25.0, 9.0]), np.array([0.4, 1.0]), np.array([20, 50])
    x = np.concatenate([np.geomspace(1e-12, 0.1, 200_001), np.linspace(0.1, BUDGET / 20, 100_001)])
    losses = [loss_of(np.array([q, (BUDGET - 20 * q) / 50]), push, stake) for q in x[::50]]
    assert worst_loss(push[:, None], stake[:, None], counts)[0] == pytest.approx(max(losses), rel=1e-5)


def test_columns_do_not_mix_and_limits_are_what_they_are():
    push = np.array([[0.0, 3.0, 700.0, np.inf, 3.0], [0.0, 1.0, 650.0, 1e300, 1.0]])
    stake = np.array([[1.0, 1.0, 1.0, 1.0, -1.0], [0.5, 0.5, 0.5, 0.5, 0.0]])
    counts = np.array([30, 30])
    together = worst_loss(push, stake, counts)
    apart = [worst_loss(push[:, [i]], stake[:, [i]], counts)[0] for i in range(5)]
    np.testing.assert_allclose(together, apart, rtol=1e-9)
    assert together[0] == pytest.approx(BUDGET / 30 / 2, rel=1e-9)  # no push: all of the mass where most is at stake
    np.testing.assert_allclose(together[2:4], 0.75, rtol=1e-9)  # it takes over both prompts
    assert together[4] == 0.0
    few = worst_loss(np.full((2, 1), 1.0), np.ones((2, 1)), np.array([1, 1]))  # so few samples say nothing
    assert few[0] == pytest.approx(1.0, rel=1e-9)


def test_a_stronger_push_and_a_higher_stake_cost_more_and_more_samples_less():
    push, stake, counts = some_problem(3)
    at = worst_loss(push[:, None] + np.array([0.0, 0.5, 1.0]), np.tile(stake[:, None], 3), counts)
    assert (np.diff(at) > 0).all()
    more = worst_loss(push[:, None], 2 * stake[:, None], counts)
    assert more == pytest.approx(2 * at[:1], rel=1e-9)
    assert worst_loss(push[:, None], stake[:, None], 2 * counts) < at[0]


def test_rule_of_three():
    assert mass_below(2880) == pytest.approx(BUDGET / 2880, rel=1e-12)
    assert (1 - mass_below(10_000)) ** 10_000 == pytest.approx(0.05, rel=1e-3)


# -------------------------------------------------------------------------------------------------- in a whole forecast


def test_losses_of_a_forecast_by_hand():
    samples = word_problems()
    result = forecast(samples, beta=[2.0, 10.0, 50.0], reward_max=100.0, gold_min=-0.5)
    r, g = samples.reward.reshape(120, 24), samples.gold.reshape(120, 24)
    push, stake = np.empty((120, 3)), np.empty((120, 3))
    for p in range(120):
        for b, beta in enumerate((2.0, 10.0, 50.0)):
            push[p, b] = 100 / beta - (logsumexp(r[p] / beta) - np.log(24))
            stake[p, b] = one_prompt(r[p], g[p], beta)[2] + 0.5
    np.testing.assert_allclose(result.unseen.loss, worst_loss(push, stake, np.full(120, 24)), rtol=1e-9)
    assert result.unseen.mass_below == pytest.approx(BUDGET / 2880)
    assert result.unseen.tolerance == pytest.approx(0.05 * 1.5)
    assert (np.diff(result.unseen.loss) < 0).all()


def test_prompts_without_labels_are_taken_to_be_worth_the_mean():
    rng = np.random.default_rng(0)
    r, g = rng.normal(size=(10, 8)), rng.random((10, 8))
    g[4:] = np.nan
    unseen = forecast(rectangle(r, g), beta=[1.0], reward_max=4.0, gold_min=0.0).unseen
    push = 4.0 - (logsumexp(r, axis=1) - np.log(8))
    known = np.array([one_prompt(a, b, 1.0)[2] for a, b in zip(r[:4], g[:4], strict=True)])
    stake = np.concatenate([known, np.full(6, known.mean())])
    np.testing.assert_allclose(unseen.loss, worst_loss(push[:, None], stake[:, None], np.full(10, 8)), rtol=1e-9)


SETTINGS = {"reward_max": 100.0, "gold_min": 0.0}


@pytest.mark.parametrize("tolerance", [0.003, 0.02, 0.05, 0.3, 0.7])
def test_the_floor_is_where_the_loss_passes_the_tolerance(tolerance):
    floor = forecast(word_problems(), beta=[10.0], tolerance=tolerance, **SETTINGS).unseen.beta_floor
    at = forecast(word_problems(), beta=[0.99 * floor, floor], tolerance=tolerance, **SETTINGS).unseen.loss
    assert at[1] <= tolerance < at[0]


@pytest.mark.parametrize("betas", [[1e-300], [0.01], [3.0, 4.0], [60.0], [1e5], [1e300], [0.02, 1000.0]])
def test_the_floor_does_not_depend_on_the_betas_asked_for(betas):
    expected = forecast(word_problems(), **SETTINGS).unseen.beta_floor
    assert 3.3 < expected < 3.6
    assert forecast(word_problems(), beta=betas, **SETTINGS).unseen.beta_floor == pytest.approx(expected, rel=1e-3)


def test_a_tolerance_above_everything_at_stake_has_the_floor_zero():
    unseen = forecast(word_problems(), tolerance=1.0, **SETTINGS).unseen
    assert unseen.beta_floor == 0.0
    assert unseen.to_dict()["beta_floor"] == 0.0


def test_where_all_scores_are_the_top_nothing_pushes_the_cheat():
    samples = rectangle(np.full((20, 24), 3.0), np.tile(np.arange(24) < 13, (20, 1)).astype(float))
    unseen = forecast(samples, reward_max=3.0, gold_min=0.0).unseen
    assert unseen.beta_floor == 0.0
    assert unseen.loss == pytest.approx(BUDGET / 480 * 13 / 24, rel=0.01)


@pytest.mark.parametrize(("n_prompts", "tolerance"), [(5, None), (30, 0.0)])
def test_so_few_samples_that_no_beta_is_safe(n_prompts, tolerance):
    """The reference itself may hold a cheat that costs more than the tolerance: said, and no safe beta is named."""
    rng = np.random.default_rng(1)
    reward = rng.normal(size=(n_prompts, 8))
    samples = rectangle(reward, (reward > 0).astype(float))
    result = forecast(samples, reward_max=5.0, gold_min=0.0, tolerance=tolerance)
    assert result.unseen.beta_floor == np.inf
    content = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert content["unseen"]["beta_floor"] is None
    assert result.verdict.safe_beta is None
    assert result.verdict.safe_kl is None
    assert "at any beta it could cost more than" in str(result).replace("\n", " ")
    if result.verdict.gain_shown:
        assert any("No beta is safe" in reason for reason in result.verdict.reasons)


def test_the_safe_beta_is_never_below_the_floor():
    loose = forecast(word_problems(), **SETTINGS)
    tight = forecast(word_problems(), tolerance=0.004, **SETTINGS)
    assert loose.unseen.beta_floor < loose.verdict.safe_beta
    assert tight.verdict.safe_beta == tight.unseen.beta_floor > loose.verdict.safe_beta
    assert "raised" in " ".join(tight.verdict.reasons)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "the top of the judge's scale (reward_max) and the worst gold (gold_min) are needed"),
        ({"gold_min": 0.0}, "are needed"),
        ({"reward_max": 5.0, "gold_min": 0.0, "objective": "group-standardised"}, "for the tilt only"),
    ],
)
def test_what_is_not_known_stays_in_words(options, words):
    result = forecast(normal_samples(), beta=[1.0], **options)
    assert result.unseen is None
    note = result.notes[-1]
    assert "reference mass of up to 0.0042" in note  # 3 / 720
    assert words in note


def test_without_gold_the_top_and_the_worst_do_not_help():
    result = forecast(normal_samples(gold=False), beta=[1.0], reward_max=5.0, gold_min=0.0)
    assert result.unseen is None
    assert "without gold labels" in result.notes[-1]


# ------------------------------------------------------------------------------------------------- the breakdown score


def no_ends(seed=0, n_prompts=60):
    """Normal scores and a gold without a floor: no end of a scale is seen."""
    rng = np.random.default_rng(seed)
    r = rng.normal(size=(n_prompts, 24))
    return rectangle(r, 0.5 * r + rng.normal(size=r.shape))


def test_the_breakdown_score_is_where_the_worst_loss_is_the_gain():
    """By hand at one prompt, where the worst mass is 3.0 / K: the share at that score, times what is at stake."""
    rng = np.random.default_rng(1)
    samples = rectangle(rng.normal(size=(1, 200)), rng.random((1, 200)))
    labels = Labels.of(samples)
    score = breakdown_score(samples, labels, 0.7, gain=0.2, gold_min=0.0)
    r, g = samples.reward, samples.gold
    w = np.exp(r / 0.7)
    q = -np.log(0.05) / 200
    a = np.exp(score / 0.7) / w.mean()
    assert a * q / (a * q + 1 - q) * (w @ g / w.sum()) == pytest.approx(0.2, rel=1e-5)
    assert breakdown_score(samples, labels, 0.7, gain=2.0, gold_min=0.0) == np.inf
    assert breakdown_score(samples, labels, 0.7, gain=1e-9, gold_min=0.0) == -np.inf


def test_the_verdict_states_the_breakdown_score_where_the_top_is_unknown():
    result = forecast(no_ends())
    score = result.verdict.breakdown_score
    assert result.unseen is None
    assert f"only if it scores above {score:.4g}" in result.verdict.reasons[-1]
    assert result.to_dict()["verdict"]["breakdown_score"] == score
    stated = forecast(no_ends(), reward_max=6.0, gold_min=-4.0)
    assert stated.verdict.breakdown_score is None


def test_ends_that_the_data_show_are_used_without_being_stated():
    """Right-or-wrong scores and gold: the same as with both stated, but for the notes."""
    rng = np.random.default_rng(0)
    r = (rng.random((40, 16)) < rng.random((40, 1))).astype(float)
    g = (rng.random(r.shape) < 0.2 + 0.6 * r).astype(float)
    silent, stated = forecast(rectangle(r, g)), forecast(rectangle(r, g), reward_max=1.0, gold_min=0.0)
    assert silent.unseen.to_dict() == stated.unseen.to_dict()
    assert silent.verdict == stated.verdict
    assert any("taken to end at 1" in note for note in silent.notes)


@pytest.mark.parametrize("n_prompts", [1, 7, 300])
def test_the_price_is_where_bisection_finds_it(n_prompts):
    from kleash.forecasting import unseen

    rng = np.random.default_rng(n_prompts)
    push = rng.uniform(1e-3, 40, size=(n_prompts, 9)) * rng.uniform(0.01, 12, size=9)
    stake, weight = rng.exponential(size=(n_prompts, 9)), rng.integers(2, 40, size=n_prompts).astype(float)
    log_value = np.log(stake) - np.log(weight)[:, None]
    top = (log_value + push).max(axis=0)
    ends = top - 2 * push.max(axis=0) - 60, top
    low, high = (end.copy() for end in ends)
    for _ in range(80):
        middle = 0.5 * (low + high)
        q = (np.exp(0.5 * (log_value - middle - push)) - np.exp(-push)) / -np.expm1(-push)
        much = weight @ np.clip(q, 0, 1) > 3.0
        low, high = np.where(much, middle, low), np.where(much, high, middle)
    found = unseen._price(log_value, push, weight, *(end.copy() for end in ends), budget=3.0)
    some = weight.sum() > 3.0  # else all may be bought at any low price
    np.testing.assert_allclose(found[:9] if some else high, high, rtol=1e-12, atol=1e-12)
