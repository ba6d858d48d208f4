"""The coefficient where single rows do not agree: rows without advantage, and ten groups of rows by their KL."""

from __future__ import annotations

import numpy as np
import pytest
from simulated_logs import PER_TOKEN_LOSS, f32, make

from kleash.audit.logs import findings_of
from kleash.audit.logs.view import view


def grpo(
    beta=0.04, *, bias=0.0, drift=0.0, noise=2e-4, rows=200, still=(), version=None, config=None, seed=0, wild=0.3
):
    """A GRPO run weighted by tokens: beta * kl, a policy term of ``bias`` that drifts by ``drift``, noise about it."""
    rng = np.random.default_rng((91, seed))
    kl = 0.02 + 0.3 * np.linspace(0, 1, rows) * np.exp(wild * rng.normal(size=rows))
    spread = np.full(rows, 0.2)
    policy = bias + drift * np.linspace(0, 1, rows) + noise * rng.normal(size=rows)
    spread[list(still)], policy[list(still)] = 0.0, 0.0
    columns = {
        "loss": np.round(beta * kl + policy, 6),
        "kl": f32(kl),
        "reward": f32(0.3 + 0.3 * np.linspace(0, 1, rows) + 0.01 * rng.normal(size=rows)),
        "reward_std": spread,
        "frac_reward_zero_std": (spread == 0) * 1.0,
        "completions/mean_length": f32(rng.uniform(80, 90, rows)),
        "completions/min_length": f32(rng.uniform(30, 40, rows)),
        "completions/max_length": f32(rng.uniform(130, 140, rows)),
    }
    return make("trl-grpo", columns, kl=[("kl", PER_TOKEN_LOSS, "reference")], decimals={"loss": 6}, version=version,
                config={"loss_type": "bnpo", **(config or {})})  # fmt: skip


def coefficient(log):
    return next(f for f in findings_of(view(log)) if f.code == "COEFFICIENT")


@pytest.mark.parametrize(("stated", "status"), [(0.04, "ok"), (0.036, "ok"), (0.01, "problem"), (0.08, "problem")])
@pytest.mark.parametrize("seed", range(3))
def test_ten_groups_of_rows_with_one_quotient(stated, status, seed):
    found = coefficient(grpo(noise=2e-3, config={"beta": stated}, seed=seed))
    assert found.status == status
    assert "alike in 10 groups of rows" in found.message
    assert found.evidence["lo"] <= 0.04 <= found.evidence["hi"]


@pytest.mark.parametrize(
    "more",
    [
        {"bias": 0.01, "noise": 1e-3},
        {"bias": -0.004, "noise": 1e-3},
        {"noise": 0.2},
        {"rows": 40, "noise": 2e-3},
        {"bias": 0.01, "wild": 0.0},
    ],
    ids=["length buys reward", "length costs reward", "noise", "few rows", "on a straight line"],
)
def test_a_policy_term_that_hides_the_penalty(more):
    found = coefficient(grpo(config={"beta": 0.01}, **more))
    assert found.status == "cannot-tell"
    assert "alike" not in found.message


@pytest.mark.parametrize(
    ("beta", "more"),
    [
        (0.1, {"drift": 0.035, "rows": 135}),
        (0.01, {"drift": 0.0096, "rows": 391, "wild": 0.1, "seed": 269}),
        (0.01, {"drift": 0.03, "bias": 0.001, "rows": 156, "wild": 0.0}),  # KL and drift on two straight lines
    ],
)
def test_a_policy_term_that_drifts_as_the_kl_does(beta, more):
    assert coefficient(grpo(beta, config={"beta": beta}, **more)).status != "problem"


@pytest.mark.parametrize(
    ("stated", "status"), [(0.04, "ok"), (0.08, "cannot-tell"), (0.01, "cannot-tell"), (0.05, "problem")]
)
def test_steps_in_a_step_divide_by_whole_numbers(stated, status):
    """Each row holds the same quotient, of a release and a loss that nobody said."""
    log = grpo(noise=0.0, config={"loss_type": None, "beta": stated})
    log.raw["completions/min_length"][:] = log.raw["completions/max_length"][:]
    log.raw["completions/clipped_ratio"] = np.ones(log.rows)
    assert coefficient(log).status == status


def test_several_updates_on_a_batch_leave_a_term_that_follows_the_kl():
    found = coefficient(grpo(noise=2e-3, config={"beta": 0.01, "num_iterations": 4}))
    assert found.status == "cannot-tell"
    assert "4 updates per batch" in found.message


@pytest.mark.parametrize(("stated", "status"), [(0.04, "ok"), (0.004, "problem")])
@pytest.mark.parametrize("iterations", [1, 4])
def test_rows_without_advantage_hold_nothing_but_the_penalty(stated, status, iterations):
    config = {"beta": stated, "num_iterations": iterations}
    found = coefficient(grpo(bias=0.05, noise=0.1, still=(60, 110, 170), config=config))
    assert found.status == status
    assert "3 rows without advantage" in found.message


def test_rows_without_advantage_that_disagree_hold_nothing():
    log = grpo(bias=0.05, noise=0.1, still=(), config={"beta": 0.01})
    log.raw["frac_reward_zero_std"][[5, 60, 90]] = 1.0
    log.raw["reward_std"][[5, 60, 90]] = 0.0
    assert coefficient(log).status == "cannot-tell"


SPLIT = {"loss_type": "dapo", "gradient_accumulation_steps": 2, "steps_per_generation": 8}


@pytest.mark.parametrize(
    ("version", "config", "status"),
    [
        ("1.2", SPLIT, "ok"),  # divided by all eight steps' tokens, taken in windows of two
        ("1.2", {**SPLIT, "beta": 0.01}, "problem"),  # so what looks like .01 is .04
        (None, SPLIT, "ok"),
        ("1.16", SPLIT, "problem"),  # divided into windows since
        ("1.2", {**SPLIT, "steps_per_generation": 2}, "problem"),
        ("1.2", {"loss_type": "dapo"}, "cannot-tell"),
        (None, {"loss_type": None}, "cannot-tell"),
        ("1.2", {**SPLIT, "loss_type": "bnpo"}, "problem"),  # divides by its own tokens
    ],
)
@pytest.mark.parametrize("still", [(), (70, 120)])
def test_a_loss_divided_by_the_tokens_of_several_steps(version, config, status, still):
    more = {"bias": 0.05, "noise": 0.1, "still": still} if still else {"noise": 5e-4}
    found = coefficient(grpo(0.01, version=version, config={"beta": 0.04, **config}, **more))
    assert found.status == status
    if status == "cannot-tell":
        assert "steps_per_generation" in found.message
