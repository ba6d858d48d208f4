"""GRPO with standardised rewards: its fixed point against published numbers, closed forms and enumeration of groups."""

import itertools

import numpy as np
import pytest
from by_hand import normal_samples
from scipy.optimize import brentq, fsolve
from scipy.special import softmax
from scipy.stats import binom

from kleash import forecast
from kleash.errors import DataError, OptionError
from kleash.forecasting import finite_groups
from kleash.forecasting.finite_groups import finite_group_weights
from kleash.forecasting.standardised import large_group_weights


def binary(p, k=20):
    """A prompt of K samples of which a share p has reward 1."""
    return (np.arange(k) < round(p * k)).astype(float)[None]


def rate(weights, r):
    """Probability of reward 1, per beta."""
    return (weights[0] * r[0][:, None]).sum(axis=0)


def finite(r, betas, group_size, seed=0):
    return finite_group_weights(r, np.atleast_1d(betas), group_size=group_size, rng=np.random.default_rng(seed))


# --------------------------------------------------------------------------------------------------------- large groups


@pytest.mark.parametrize(("p", "beta", "expected"), [(0.2, 1.0, 0.6813), (0.2, 5.0, 0.2807), (0.05, 1.0, 0.3127)])
def test_published_rates_of_large_groups(p, beta, expected):
    """The plain tilt would give .4046, .2339, .1252."""
    r = binary(p)
    assert round(float(rate(large_group_weights(r, np.array([beta])), r)[0]), 4) == expected


def test_at_even_odds_the_group_collapses_where_the_tilt_is_harmless():
    r = binary(0.5)
    np.testing.assert_array_equal(rate(large_group_weights(r, np.array([1.0])), r), 1.0)
    weights = large_group_weights(np.array([[0.0, 3.0, 3.0, 1.0]]), np.array([0.1]))[0, :, 0]
    np.testing.assert_array_equal(weights, [0.0, 0.5, 0.5, 0.0])  # ties at the top by the reference


@pytest.mark.parametrize("p", [0.05, 0.2, 0.35])
def test_binary_rewards_follow_the_arcsine_law(p):
    betas = np.array([1.0, 1.5, 3.0, 10.0, 50.0])
    r = binary(p)
    q = rate(large_group_weights(r, betas), r)
    moved = q < 0.999
    assert moved.sum() >= 4
    q, betas = q[moved], betas[moved]
    odds = p / (1 - p) * np.exp(1 / (betas * np.sqrt(q * (1 - q))))
    np.testing.assert_allclose(q / (1 - q), odds, rtol=1e-9)

    def objective(x, beta):
        return 2 * np.arcsin(np.sqrt(x)) - beta * (x * np.log(x / p) + (1 - x) * np.log((1 - x) / (1 - p)))

    for x, beta in zip(q, betas, strict=True):
        assert objective(x, beta) >= max(objective(x - 1e-4, beta), objective(x + 1e-4, beta))


@pytest.mark.parametrize("seed", range(4))
def test_many_valued_rewards_are_a_tilt_at_the_first_root(seed):
    r = np.random.default_rng(seed).standard_t(4, size=(3, 12))
    betas = np.array([0.6, 1.0, 2.0, 7.0])
    weights = large_group_weights(r, betas)
    np.testing.assert_allclose(weights.sum(axis=1), 1.0, rtol=1e-12)

    grid = np.geomspace(1e-3, 1e3, 4000)

    def pull(lam, p):
        w = softmax(np.multiply.outer(lam, r[p]), axis=-1)
        return lam * np.sqrt((w * (r[p] - (w @ r[p])[..., None]) ** 2).sum(axis=-1))

    for p, (b, beta) in itertools.product(range(3), enumerate(betas)):
        reached = np.flatnonzero(pull(grid, p) >= 1 / beta)
        if reached.size == 0:
            assert weights[p, r[p].argmax(), b] == 1.0
            continue
        lam = brentq(lambda x: pull(x, p) - 1 / beta, grid[reached[0] - 1], grid[reached[0]], xtol=1e-13)  # noqa: B023
        np.testing.assert_allclose(weights[p, :, b], softmax(lam * r[p]), rtol=1e-7)


def test_of_several_roots_the_one_next_to_the_reference():
    """Mostly ordinary answers and one far above: lambda * sd passes 1 / beta, falls below and passes again."""
    r = np.concatenate([np.linspace(0, 1, 30), [40.0]])[None]
    lam = np.geomspace(1e-3, 50, 3000)
    w = softmax(lam[:, None] * r, axis=1)
    pull = lam * np.sqrt((w * r**2).sum(axis=1) - (w * r).sum(axis=1) ** 2)
    level = 0.5 * pull[np.argmax(pull)]
    crossings = np.flatnonzero(np.diff((pull >= level).astype(int)))
    assert crossings.size >= 2
    weights = large_group_weights(r, np.array([1 / level]))[0, :, 0]
    np.testing.assert_allclose(weights, softmax(lam[crossings[0]] * r[0]), rtol=0.05)


# -------------------------------------------------------------------------------------------------------- finite groups


def first_root(p, beta, group_size):
    """Rate at the root next to the reference, the others counted by their number of ones."""
    ones = np.arange(group_size)

    def advantage(own, x):
        mean = (ones + own) / group_size
        deviation = np.sqrt(group_size * mean * (1 - mean) / (group_size - 1))
        standard = np.divide(own - mean, deviation, out=np.zeros_like(mean), where=deviation > 0)
        return binom.pmf(ones, group_size - 1, x) @ standard

    def residual(x):
        return np.log(x / (1 - x) * (1 - p) / p) - (advantage(1, x) - advantage(0, x)) / beta

    grid = np.linspace(p + 1e-6, 0.999, 150)
    first = np.flatnonzero([residual(x) > 0 for x in grid])[0]
    return brentq(residual, grid[first - 1], grid[first], xtol=1e-14)


@pytest.mark.parametrize(("group_size", "expected"), [(2, 0.336), (4, 0.503), (8, 0.591), (16, 0.634), (64, 0.669)])
def test_published_rates_of_finite_groups(group_size, expected):
    """With an unbiased reverse KL; at 64 a second stable root lies near .998, not reached from the reference."""
    r = binary(0.2)
    here = float(rate(finite(r, 1.0, group_size), r)[0])
    assert abs(here - expected) < 0.001
    assert here == pytest.approx(first_root(0.2, 1.0, group_size), abs=2e-6)


@pytest.mark.parametrize("beta", [0.7, 2.0, 20.0])
@pytest.mark.parametrize("p", [0.05, 0.4])
def test_binary_rewards_of_finite_groups_against_a_root_search(p, beta):
    r = binary(p)
    assert rate(finite(r, beta, 5), r)[0] == pytest.approx(first_root(p, beta, 5), abs=3e-6)


def test_the_root_is_followed_from_the_reference_whatever_the_order_of_betas():
    """Coming from a smaller beta, where the policy has collapsed, one would stay at the other root, near .998."""
    r = binary(0.2)
    up, down = finite(r, [0.3, 1.0], 64), finite(r, [1.0, 0.3], 64)
    np.testing.assert_array_equal(up, down[:, :, ::-1])
    assert rate(up, r)[0] > 0.99
    assert rate(up, r)[1] == pytest.approx(0.6688, abs=1e-3)


@pytest.mark.parametrize(("p", "beta"), [(0.2, 1.0), (0.2, 5.0), (0.05, 2.0)])
def test_finite_groups_become_large_ones(p, beta):
    r = binary(p)
    limit = rate(large_group_weights(r, np.array([beta])), r)[0]
    gaps = [abs(rate(finite(r, beta, size), r)[0] - limit) for size in (4, 32, 256, 1024)]
    assert (np.diff(gaps) < 0).all()
    assert gaps[-1] < 0.002


def expected_advantages(r, policy, group_size):
    """Every sequence of G - 1 others, in plain loops."""
    advantage = np.zeros(r.size)
    for others in itertools.product(range(r.size), repeat=group_size - 1):
        chance = np.prod(policy[list(others)])
        for i, own in enumerate(r):
            group = np.append(r[list(others)], own)
            if np.ptp(group) > 0:
                advantage[i] += chance * (own - group.mean()) / group.std(ddof=1)
    return advantage


@pytest.mark.parametrize("group_size", [2, 3, 4])
@pytest.mark.parametrize("beta", [0.8, 3.0])
def test_many_valued_rewards_against_enumeration_of_groups(group_size, beta):
    """Five samples, one tie: the root of log(policy / reference) = advantage / beta + constant, by a generic solver."""
    r = np.array([0.3, -1.0, 2.0, 0.3, 0.7])

    def residual(log_policy):
        policy = softmax(log_policy)
        wanted = softmax(np.log(0.2) + expected_advantages(r, policy, group_size) / beta)
        return policy - wanted + (log_policy.mean())  # the mean pins the constant

    start = np.zeros(5)
    root = softmax(fsolve(residual, start, xtol=1e-12))
    np.testing.assert_allclose(residual(np.log(root) - np.log(root).mean()), 0.0, atol=1e-9)
    np.testing.assert_allclose(finite(r[None], beta, group_size)[0, :, 0], root, atol=3e-6)


def test_drawn_groups_agree_with_enumerated_ones(monkeypatch):
    r = np.repeat([0.0, 0.4, 1.0], [10, 6, 4])[None]
    betas = np.array([0.7, 1.0, 2.0, 5.0])
    exact = finite(r, betas, 6)
    monkeypatch.setattr(finite_groups, "_MAX_STATES", 0)
    drawn = np.mean([finite(r, betas, 6, seed) for seed in range(6)], axis=0)
    np.testing.assert_allclose(drawn[0, [0, 10, 19]], exact[0, [0, 10, 19]], atol=0.01)
    np.testing.assert_array_equal(finite(r, betas, 6, 3), finite(r, betas, 6, 3))


def test_prompts_together_are_each_alone_with_newton_or_without(monkeypatch):
    """Two to four distinct scores, betas on both sides of every collapse; the damped iteration alone takes no jumps."""
    r = np.array([[0] * 9 + [1] * 3, [0] * 3 + [1] * 9, [0, 0, 0, 0, 1, 1, 2, 2, 2, 2, 9, 9], [0, 1, 2, 3] * 3]) / 1.0
    betas = np.geomspace(0.3, 4.0, 12)
    together = finite(r, betas, 8)
    for row, alone in zip(together, (finite(row[None], betas, 8)[0] for row in r), strict=True):
        np.testing.assert_allclose(row, alone, atol=1e-9)
    monkeypatch.setattr(finite_groups, "_newton", lambda *_, otherwise, **__: otherwise)
    np.testing.assert_allclose(finite(r, betas, 8), together, atol=3e-6)
    rates = rate(together[:1], r[:1])
    assert rates.max() > 0.99  # one of the betas is past the collapse
    assert rates.min() < 0.5


@pytest.mark.parametrize(("slope", "times"), [(0.0, 1.0), (0.5, 2.0), (0.9, None), (1.0, None), (1.5, None)])
def test_newton_keeps_off_folds(slope, times):
    """Past a slope of 1 its step would turn back; near it, leave for a root that may not be next to the start."""
    even = np.array([[0.5, 0.5]])
    residual = np.array([[-0.1, 0.1]])
    away = np.array([[[0.5, -0.5], [-0.5, 0.5]]])  # moves the two scores apart
    step = finite_groups._newton(residual, np.log(even), slope * away, even, otherwise=np.zeros((1, 2)))
    np.testing.assert_allclose(step, 0.0 if times is None else times * residual, atol=1e-12)


# ----------------------------------------------------------------------------------------------------------------- both


@pytest.mark.parametrize("group_size", [None, 4])
def test_units_and_order_of_rewards_do_not_matter(group_size):
    r = np.random.default_rng(1).normal(size=(2, 7)).round(1)
    betas = np.array([0.8, 2.0, 9.0])

    def weights(rewards):
        return large_group_weights(rewards, betas) if group_size is None else finite(rewards, betas, group_size)

    first = weights(r)
    np.testing.assert_allclose(weights(1e5 * r - 40.0), first, atol=1e-6)
    np.testing.assert_allclose(weights(r[::-1, ::-1]), first[::-1, ::-1], atol=1e-6)
    np.testing.assert_allclose(weights(1e-8 * r), first, atol=1e-6)
    assert (np.diff((first * r[..., None]).sum(axis=1), axis=1) < 0).all()  # a smaller beta collects more


@pytest.mark.parametrize("group_size", [None, 2, 8, 100])
def test_equal_rewards_move_nothing(group_size):
    r = np.array([[0.1] * 5, [2.0, 2.0, 2.0, 2.0, 3.0]])
    betas = np.array([1e-3, 1.0, 22.0])
    weights = large_group_weights(r, betas) if group_size is None else finite(r, betas, group_size)
    np.testing.assert_allclose(weights[0], 0.2, rtol=1e-12)
    np.testing.assert_allclose(weights.sum(axis=1), 1.0, rtol=1e-9)
    assert (weights[1, 4] > 0.2).all()


# ----------------------------------------------------------------------------------------------------- a whole forecast


@pytest.mark.parametrize("group_size", [None, 4])
def test_a_forecast_in_the_trainers_beta(group_size):
    samples = normal_samples(n_prompts=12, n_samples=6)
    options = {"objective": "group-standardised", "group_size": group_size, "beta": [2.0, 6.0], "correction": False}
    result = forecast(samples, **options)
    r, g = samples.reward.reshape(12, 6), samples.gold.reshape(12, 6)
    betas = np.array([2.0, 6.0])
    weights = large_group_weights(r, betas) if group_size is None else finite(r, betas, group_size)
    table = result.frontier
    assert (table.status != "beyond").all()
    np.testing.assert_allclose(table.reward.value, (weights * r[..., None]).sum(axis=1).mean(axis=0), rtol=1e-9)
    np.testing.assert_allclose(table.gold.value, (weights * g[..., None]).sum(axis=1).mean(axis=0), rtol=1e-9)
    kl = np.where(weights > 0, weights * np.log(6 * weights, where=weights > 0, out=np.zeros_like(weights)), 0)
    np.testing.assert_allclose(table.kl.value, kl.sum(axis=1).mean(axis=0), rtol=1e-9)
    assert result.objective == "group-standardised"
    assert table.provenance["group_size"] == group_size


def test_half_a_point_of_noise_is_a_full_push():
    """Dividing by the SD within a prompt: a judge of a tenth of the scale gives the same forecast."""
    samples = normal_samples(n_prompts=20)
    first = forecast(samples, objective="group-standardised", beta=[2.0, 5.0])
    small = normal_samples(n_prompts=20)
    object.__setattr__(small, "reward", 0.1 * small.reward)
    again = forecast(small, objective="group-standardised", beta=[2.0, 5.0])
    np.testing.assert_allclose(again.frontier.kl.value, first.frontier.kl.value, rtol=1e-6)
    assert (first.frontier.kl.value > 0.9 * 0.5 / np.array([4, 25])).all()  # about 1 / (2 beta^2)


def test_two_samples_to_a_prompt_are_not_called_sure():
    """There is nothing to halve: the correction is delete-one, and what it corrects by shows as drift."""
    result = forecast(normal_samples(n_prompts=300, n_samples=3), objective="group-standardised", beta=[5.0])
    assert result.frontier.status.tolist() != ["ok"]


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"group_size": 8}, OptionError, "group_size: expected with objective group-standardised or a trainer"),
        ({"objective": "group-standardised", "group_size": 1}, OptionError, "group_size: expected a whole number"),
        ({"objective": "group-standardised", "prompts": "fixed"}, OptionError, "prompts: expected sampled"),
        ({"objective": "grpo"}, OptionError, "objective: expected one of tilt, group-standardised"),
    ],
)
def test_options_that_do_not_fit(options, error, words):
    with pytest.raises(error, match=words):
        forecast(normal_samples(), beta=[1.0], **options)


def test_one_prompt_is_refused():
    with pytest.raises(DataError, match="one prompt cannot stand for a population"):
        forecast(normal_samples(n_prompts=1), beta=[1.0], objective="group-standardised")
