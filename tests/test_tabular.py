"""The trainer against enumeration, against the exact optimum, and against itself."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kleash import tilt
from kleash.errors import OptionError
from kleash.train import tabular
from kleash.worlds import World, heavy_tail, kitchen, random_world, two_arm

MISSION = [0.0, 1.0, 5.0, 15.0, 60.0]


def padded_world():
    """Two prompts of unequal weight, one with an impossible answer in the middle and one padded at the end."""
    with np.errstate(divide="ignore"):
        log_reference = np.log([[0.5, 0.0, 0.3, 0.2], [0.6, 0.3, 0.1, 0.0]])
    return World(
        name="padded",
        log_reference=log_reference,
        reward=[[0.0, 9.0, 1.0, 2.0], [1.0, 0.0, 3.0, 9.0]],
        gold=[[1.0, 0.0, 0.5, 0.2], [0.3, 0.6, 0.9, 0.0]],
        prompt_weight=[0.25, 0.75],
    )


@pytest.mark.parametrize("n", [2, 3, 5])
@pytest.mark.parametrize("beta", [0.0, 0.7])
def test_the_expected_update_is_the_gradient_of_the_exact_objective(n, beta):
    rng = np.random.default_rng(n)
    q = rng.dirichlet(np.ones(4))
    reward = rng.normal(size=4)
    logits = rng.normal(size=4)

    def objective(theta):
        p = np.exp(theta - theta.max())
        p /= p.sum()
        return p @ (reward - beta * np.log(p / q))

    p = np.exp(logits) / np.exp(logits).sum()
    penalised = reward - beta * np.log(p / q)
    expected = np.zeros(4)
    for draw in itertools.product(range(4), repeat=n):
        counts = np.bincount(draw, minlength=4)
        expected += np.prod(p[list(draw)]) * tabular.gradient(counts, penalised)
    exact = p * (penalised - p @ penalised)
    np.testing.assert_allclose(expected, exact, rtol=0, atol=1e-12)
    step = 1e-6
    numeric = [(objective(logits + step * e) - objective(logits - step * e)) / (2 * step) for e in np.eye(4)]
    np.testing.assert_allclose(exact, numeric, atol=1e-8)


def test_counts_give_what_the_leave_one_out_estimator_gives_answer_by_answer():
    rng = np.random.default_rng(0)
    p, reward = rng.dirichlet(np.ones(5)), rng.normal(size=5)
    draw = rng.choice(5, size=7, p=p)
    slow = np.zeros(5)
    for i, y in enumerate(draw):
        baseline = np.delete(reward[draw], i).mean()
        slow += (reward[y] - baseline) * (np.eye(5)[y] - p) / draw.size
    np.testing.assert_allclose(tabular.gradient(np.bincount(draw, minlength=5), reward), slow, atol=1e-14)


@pytest.mark.parametrize("counts", [[1, 0], [0, 0]])
def test_one_draw_has_no_leave_one_out_baseline(counts):
    with pytest.raises(OptionError, match="sum of counts"):
        tabular.gradient(counts, [0.0, 1.0])


@pytest.mark.parametrize("love", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("oversalt", [0.0505, 0.005])
def test_training_arrives_at_the_optimum_in_the_kitchen(love, oversalt):
    world = kitchen(love=love, oversalt=oversalt)
    run = tabular.train_tabular(world, MISSION)
    gap = tabular.objective_gap(world, run.beta, run.log_policy)
    assert gap.shape == (5, 3)
    assert (gap >= 0).all()
    assert gap.max() < 0.02


@pytest.mark.parametrize("family", ["light", "power", "ties", "mixed-prompts"])
def test_training_arrives_in_random_worlds_of_any_unit(family):
    world = random_world(family, rng=np.random.default_rng(1), n_prompts=5, n_answers=50)
    spread = float(np.sqrt(tilt.moments(world, np.inf).reward_variance[0]))
    beta = np.array([0.0, 0.1, 0.5, 1.5, 6.0]) * spread
    run = tabular.train_tabular(world, beta, seeds=1)
    assert tabular.objective_gap(world, run.beta, run.log_policy).max() < 0.002 * spread


def test_the_optimum_is_reached_answer_by_answer_with_unequal_weights_and_impossible_answers():
    world = padded_world()
    run = tabular.train_tabular(world, [0.5, 2.0], seeds=2)
    exact = np.exp(tilt.tilt_policy(world, run.beta))[:, None]
    np.testing.assert_allclose(np.exp(run.log_policy), np.broadcast_to(exact, run.log_policy.shape), atol=2e-3)
    assert (run.log_policy[..., 0, 1] == -np.inf).all()
    assert (run.log_policy[..., 1, 3] == -np.inf).all()
    np.testing.assert_allclose(np.exp(run.log_policy).sum(axis=-1), 1.0, atol=1e-12)


def test_prompt_weights_enter_the_history():
    world = padded_world()
    run = tabular.train_tabular(world, [1.0], seeds=1, steps=3)
    assert run.history.reward[0, 0, 0] == pytest.approx(world.expectation(world.reward)[0], abs=1e-15)
    assert run.history.gold[0, 0, 0] == pytest.approx(world.expectation(world.gold)[0], abs=1e-15)
    assert run.history.kl[0, 0, 0] == 0.0


def test_history_is_thinned_and_ends_with_the_result():
    world = kitchen()
    run = tabular.train_tabular(world, [5.0, 15.0], seeds=2, steps=95, history_points=10)
    h = run.history
    assert h.step.tolist() == [*range(0, 95, 9), 95]
    assert h.reward.shape == (len(h.step), 2, 2)
    reward, gold, kl = tabular.expectations(world, run.log_policy)
    for recorded, exact in ((h.reward, reward), (h.gold, gold), (h.kl, kl)):
        np.testing.assert_allclose(recorded[-1], exact, rtol=1e-12)
    np.testing.assert_allclose(h.objective, h.reward - run.beta[:, None] * h.kl, rtol=1e-12)


def test_a_beta_does_not_depend_on_its_company():
    world = random_world("light", rng=np.random.default_rng(0), n_prompts=2, n_answers=13)
    for some in (world, kitchen()):
        together = tabular.train_tabular(some, [0.0, 1.0, 5.0], seeds=3, steps=60)
        alone = tabular.train_tabular(some, 1.0, seeds=1, steps=60)
        np.testing.assert_array_equal(alone.log_policy[0, 0], together.log_policy[1, 0])


def test_seeds_and_betas_differ_and_repeat():
    a = tabular.train_tabular(kitchen(), [5.0, 5.0000001], seeds=2, steps=5)
    b = tabular.train_tabular(kitchen(), [5.0, 5.0000001], seeds=2, steps=5)
    np.testing.assert_array_equal(a.log_policy, b.log_policy)
    flat = a.log_policy.reshape(4, -1)
    assert len({row.tobytes() for row in flat}) == 4
    c = tabular.train_tabular(kitchen(), [5.0], seeds=2, steps=5, seed=1)
    assert not np.array_equal(a.log_policy[0], c.log_policy[0])


def test_other_units_are_the_same_problem():
    run = tabular.train_tabular(two_arm(0.3), [0.5], seeds=1, steps=40)
    world = two_arm(0.3)
    loud = World(name="loud", log_reference=world.log_reference, reward=4 * world.reward, gold=world.gold)
    again = tabular.train_tabular(loud, [0.5], seeds=1, steps=1)  # another beta, so another stream
    assert np.isfinite(again.log_policy).all()
    np.testing.assert_allclose(
        tabular.objective_gap(loud, [2.0], run.log_policy), 4 * tabular.objective_gap(world, [0.5], run.log_policy)
    )


def test_a_judge_that_likes_everything_alike_moves_nothing():
    world = World(name="flat", log_reference=np.log([[0.2, 0.3, 0.5]]), reward=[[0.3] * 3], gold=[[0.0, 1.0, 2.0]])
    run = tabular.train_tabular(world, [0.0, 1.0], seeds=2, steps=200)
    assert (run.history.kl == 0.0).all()


@given(st.integers(0, 2**31), st.floats(0.05, 20.0))
def test_the_gap_is_the_difference_of_objectives(seed, beta):
    rng = np.random.default_rng(seed)
    world = random_world("light", rng=rng, n_prompts=2, n_answers=8)
    log_policy = np.log(rng.dirichlet(np.ones(8), size=(1, 1, 2)))
    reward, _, kl = tabular.expectations(world, log_policy)
    best = tilt.moments(world, beta)
    slow = (best.reward - beta * best.kl)[0] - (reward - beta * kl)[0, 0]
    gap = tabular.objective_gap(world, beta, log_policy)[0, 0]
    assert gap >= 0
    assert gap == pytest.approx(slow, rel=1e-9, abs=1e-9 * (1 + beta))


def test_the_gap_of_the_optimum_is_nothing_and_at_beta_0_the_regret():
    world = heavy_tail(n_answers=50)
    best = tilt.tilt_policy(world, [0.0, 0.01, 300.0])[:, None]
    gap = tabular.objective_gap(world, [0.0, 0.01, 300.0], best)
    np.testing.assert_allclose(gap, 0.0, atol=1e-12)
    reference = np.broadcast_to(world.log_reference, (1, 1, 1, 50))
    regret = world.reward.max() - world.expectation(world.reward)[0]
    assert tabular.objective_gap(world, 0.0, reference)[0, 0] == pytest.approx(regret)


def test_answers_shown_are_drawn_from_the_policies():
    world = padded_world()
    with np.errstate(divide="ignore"):
        policies = np.log([[[0.0, 0.0, 1.0, 0.0], [0.0, 1.0, 0.0, 0.0]], [[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0]]])
    prompt, answer = tabular.draw_answers(world, policies, beta=1.0, seed=0, n=40)
    expected = {(0, 0): 2, (0, 1): 1, (1, 0): 0, (1, 1): 2}  # (seed, prompt) -> the only answer
    assert [expected[i % 2, p] for i, p in enumerate(prompt)] == answer.tolist()
    assert set(prompt.tolist()) == {0, 1}


@pytest.mark.parametrize(
    ("kwargs", "match"),
    [
        ({"beta": -1.0}, "beta"),
        ({"beta": math.nan}, "beta"),
        ({"beta": math.inf}, "beta"),
        ({"beta": []}, "beta"),
        ({"seeds": 0}, "seeds"),
        ({"seed": -1}, "seed"),
        ({"steps": 0}, "steps"),
        ({"samples": 1}, "samples"),
        ({"history_points": 0}, "history_points"),
    ],
)
def test_arguments_out_of_range_are_refused(kwargs, match):
    with pytest.raises(OptionError, match=match):
        tabular.train_tabular(two_arm(), kwargs.pop("beta", 1.0), **kwargs)


def test_progress_runs_from_0_to_the_end():
    seen = []
    tabular.train_tabular(two_arm(), 1.0, seeds=1, steps=30, history_points=3, progress=lambda *x: seen.append(x))
    assert seen == [(0, 30), (10, 30), (20, 30), (30, 30)]
