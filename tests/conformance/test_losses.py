"""Anybody's loss: planted faults by name, honest losses without one, fixed points that are known."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import some_losses as losses  # noqa: E402
from scipy.optimize import brentq  # noqa: E402

import kleash  # noqa: E402
from kleash.errors import ConfigError, OptionError  # noqa: E402
from kleash.testing import assert_leash  # noqa: E402
from kleash.trials.loss_conformance import loss_conformance, loss_world  # noqa: E402
from kleash.trials.loss_faults import CODES  # noqa: E402
from kleash.trials.roots import Objective, Puzzle, expected_update, root, tilt_logits  # noqa: E402
from kleash.trials.user_loss import UserLoss  # noqa: E402

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"
REVERSE, FORWARD = "KL(policy || reference)", "KL(reference || policy)"


def asked(loss, group_size=4, **settings):
    return UserLoss(function=loss, group_size=group_size, settings=settings)


@pytest.mark.parametrize("loss", losses.BROKEN, ids=lambda f: f.__name__)
@pytest.mark.parametrize(("beta", "group_size"), [(0.5, 4), (0.01, 2), (5.0, 8)])
def test_a_planted_fault_has_its_name(loss, beta, group_size):
    found = loss_conformance(loss, beta=beta, group_size=group_size, variants=False)
    assert [fault.code for fault in found.faults] == [losses.BROKEN[loss]]
    assert not found.passed
    tied = {"SAMPLER": "sampler", "SIGN": "reference", "SHIFTED": "reference", "UNMASKED": "reference"}
    tied |= {"ZERO_REFERENCE": "neither", "NO_PULL": "neither", "DETACHED": "neither"}
    code = losses.BROKEN[loss]
    assert code not in tied or found.to == tied[code]


@pytest.mark.parametrize("loss", losses.HONEST, ids=lambda f: f.__name__)
@pytest.mark.parametrize(("beta", "group_size"), [(0.5, 4), (0.01, 2), (5.0, 8)])
def test_an_honest_loss_has_none(loss, beta, group_size):
    found = loss_conformance(loss, beta=beta, group_size=group_size, variants=False)
    assert found.faults == ()
    assert (found.pulls_back, found.to) == (True, "reference")


def test_k3_in_the_reward_is_a_fact_and_no_fault():
    """Its mean gradient is that of KL(policy || reference) less that of KL(reference || policy): at times uphill."""
    found = loss_conformance(losses.k3_in_reward, variants=False)
    assert (found.faults, found.pulls_back) == ((), False)
    assert found.gradient == "k3 in the reward: of neither KL"


def test_a_loss_in_single_precision_is_asked_in_double():
    assert [
        loss_conformance(loss).variants[0].tilt_beta for loss in (losses.in_single_precision, losses.grpo_k3)
    ] == pytest.approx([0.38866147] * 2, rel=1e-6)


def test_a_fault_is_named_though_the_mean_is_no_number():
    found = loss_conformance(losses.shifted_and_divided_by_nothing)
    assert (found.gradient, found.variants, found.unbiased) == ("none: its mean is no finite number", (), None)
    with pytest.raises(OptionError, match="finite numbers, got others on answers of 1, 1, 1, 1 tokens"):
        loss_conformance(lambda *a, **k: losses.grpo_k3(*a, **k) + 0 * a[0].sum() / (a[4].sum() - 4), group_size=4)


@pytest.mark.parametrize(
    ("loss", "gradient"),
    [
        (losses.rloo_k1_in_reward, f"{REVERSE} of whole answers"),
        (losses.k1_of_each_token_in_reward, f"{REVERSE} of whole answers"),
        (losses.centred_k2, f"{REVERSE}, token by token"),
        (losses.k3_with_ratio, f"{REVERSE}, token by token"),
        (losses.grpo_k3, f"{FORWARD}, token by token, every answer alike"),
        (losses.dapo_k3, f"about {FORWARD}, token by token"),
        (losses.abs_in_loss, "the log ratio's size, token by token"),
        (losses.k1_as_a_mean, f"{REVERSE} of whole answers over their length"),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_whose_gradient_it_is(loss, gradient):
    assert loss_conformance(loss, variants=False).gradient == gradient


def test_k1_in_the_reward_comes_to_rest_at_the_tilt():
    found = kleash.conformance(losses.rloo_k1_in_reward, beta=0.3)
    assert found.tilt_beta["value"] == pytest.approx(0.3, rel=1e-6)
    assert found.variants[0].apart < 1e-6
    assert not found.variants[0].kink
    assert found.unbiased
    betas = [v.tilt_beta for v in found.variants]
    assert betas[1] is None  # rewards x 10: the optimum is further than 20 nats away
    assert [betas[0], *betas[2:]] == pytest.approx([0.3, 0.3, 0.3, 0.6], rel=1e-5)


@pytest.mark.parametrize(
    ("loss", "kl"), [(losses.standardised_k1_in_reward, 0.3151), (losses.abs_in_loss, 0.0)], ids=["tilt", "pinned"]
)
def test_a_kink_is_found_by_smaller_steps(loss, kl):
    """Standardised penalised scores have the tilt, where all are equal; abs at this beta holds the reference."""
    found, far, *_ = loss_conformance(loss).variants
    assert found.kink
    assert (far.reward, far.kink) == (None, False)  # 20 nats away, or run away to
    assert found.kl == pytest.approx(kl, abs=3e-3)
    assert found.apart < 3e-3
    if kl > 0:
        assert_leash(loss)


def test_what_runs_away_has_no_resting_point(of_trainers):
    first = loss_conformance(of_trainers.nemo_rl).variants[0]
    assert (first.reward, first.kl, first.tilt_beta, first.kink) == (None, None, None, False)


def test_the_mean_update_is_the_one_that_is_worked_out_from_the_settings():
    """Against the formulas of `kleash.trials.roots`, which TRL itself is held against by training."""
    world = loss_world()
    logits = world.reference_logits + 0.5 * np.random.default_rng(0).normal(size=world.reference_logits.shape)
    logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
    for loss, settings in (
        (losses.rloo_k1_in_reward, {"penalty": "answer-in-reward"}),
        (losses.grpo_k3, {"advantage": "group-standardised", "penalty": "k3-in-loss", "token_weight": "mean",
                          "sd_floor": 1e-4}),
        (losses.k3_with_ratio, {"advantage": "centred", "penalty": "k3-in-loss-with-ratio"}),
    ):  # fmt: skip
        known = expected_update(world, logits, Objective(beta=0.5, group_size=4, **settings))
        np.testing.assert_allclose(-asked(loss).mean_gradient(world, logits, beta=0.5), known, rtol=1e-9, atol=1e-12)


def test_grpo_comes_to_rest_at_its_known_root():
    world = loss_world()
    objective = Objective(advantage="group-standardised", penalty="k3-in-loss", token_weight="mean", beta=0.5,
                          group_size=4, sd_floor=1e-4)  # fmt: skip
    known = root(world, objective)
    found = loss_conformance(losses.grpo_k3).variants[0]
    assert found.reward == pytest.approx(world.mean_reward(known), rel=1e-6)


@pytest.mark.parametrize("beta", [1.0, 5.0])
def test_large_groups_of_right_or_wrong_maximise_two_arcsin_of_the_root(beta):
    """Yao et al. 2026, arXiv 2601.10201: 2 arcsin sqrt(p) - beta KL; its stationary point, .6813 and .2807 at p0 = .2.

    With G answers the SD is one of a sample, so the root is near that of G to infinity, and nearer with more.
    """

    def standardised_k2(logp, old_logp, ref_logp, reward, mask, *, beta, group_size):
        groups = reward.reshape(-1, group_size)
        sd = groups.std(1, keepdim=True, correction=0)
        advantage = ((groups - groups.mean(1, keepdim=True)) / (sd + 1e-9)).reshape(-1)
        return losses.summed(losses.policy_term(logp, old_logp, advantage) + beta * losses.k2(logp, ref_logp), mask)

    coin = Puzzle.one_token("coin", reference=[0.8, 0.2], reward=[0.0, 1.0])
    slope = lambda p: 1 / np.sqrt(p * (1 - p)) - beta * (np.log(p / 0.2) - np.log((1 - p) / 0.8))  # noqa: E731
    known = brentq(slope, 0.2, 0.9)
    assert known == pytest.approx({1.0: 0.6813, 5.0: 0.2807}[beta], abs=1e-4)

    def rests(size):
        update = lambda p: asked(standardised_k2, size).mean_gradient(coin, np.log([[1 - p, p]]), beta=beta)[0, 1]  # noqa: E731
        return brentq(update, 0.21, 0.9)

    far, near = (abs(rests(size) - known) for size in (16, 64))
    assert near < far / 2
    assert near < 0.01


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (lambda logp, *_, beta: logp * beta, "one number"),
        (lambda *_: 1.0, "a keyword beta"),
        (lambda logp, *_, beta, group_size: logp.nosuch, "to work on"),
        (lambda logp, *_, beta: (logp / 0).sum() * beta, "finite"),
        (3, "a function or module:function"),
    ],
)
def test_what_is_no_loss_is_said_in_one_line(loss, said):
    with pytest.raises(OptionError, match=said):
        kleash.conformance(loss)


def test_settings_go_to_the_loss_and_unknown_ones_are_refused():
    assert kleash.conformance(losses.clipped_k2, settings={"epsilon": 0.1}).passed
    with pytest.raises(OptionError, match=r"settings: expected .*epsilon, got eps"):
        kleash.conformance(losses.clipped_k2, settings={"eps": 0.1})
    with pytest.raises(ConfigError, match="did you mean 'grpo_k3'"):
        loss_conformance("some_losses:grpo_k33", folder=HERE)


def test_a_loss_that_torch_cannot_map_is_asked_group_by_group():
    def branching(logp, old_logp, ref_logp, reward, mask, *, beta, group_size):
        if float(reward.sum()) < -1:
            return logp.sum()
        return losses.rloo_k1_in_reward(logp, old_logp, ref_logp, reward, mask, beta=beta, group_size=group_size)

    world = loss_world()
    first, second = (
        asked(f, 2).mean_gradient(world, world.reference_logits, beta=0.5)
        for f in (branching, losses.rloo_k1_in_reward)
    )
    np.testing.assert_allclose(first, second, rtol=1e-12, atol=1e-15)

    def single(*arrays, beta, group_size):
        arrays[3].sum().item()
        return losses.in_single_precision(*arrays, beta=beta, group_size=group_size)

    first, second = (
        asked(f, 2).mean_gradient(world, world.reference_logits, beta=0.5) for f in (single, losses.grpo_k3)
    )
    np.testing.assert_allclose(first, second, rtol=1e-12, atol=1e-15)


def test_the_assertion_says_what_to_do(leash):
    assert assert_leash(losses.rloo_k1_in_reward).passed
    leash(losses.grpo_k3, to="reference")
    with pytest.raises(AssertionError, match=r"tilt of beta 0.3887 .*allowed 0.02(.|\n)*k1 of the whole answer"):
        leash(losses.grpo_k3)
    with pytest.raises(AssertionError, match=r"no leash that holds:\n  DETACHED(.|\n)*do: let the gradient through"):
        leash(losses.detached)


@pytest.mark.parametrize(("name", "code"), [("rloo_k1_in_reward", 0), ("k1_in_loss", 1)])
def test_from_the_command_line(name, code):
    command = [sys.executable, "-c", "from kleash.cli import main; main()", "conformance", f"some_losses:{name}"]
    done = subprocess.run([*command, "--format", "json"], cwd=HERE, capture_output=True, text=True, check=False)
    content = json.loads(done.stdout)
    assert (done.returncode, content["passed"], content["pulls_back"]) == (code, code == 0, code == 0)
    assert {"to", "gradient", "tilt_beta", "faults", "beta"} <= set(content)
    assert all(fault["code"] in CODES for fault in content["faults"])


def test_the_nearest_tilt_of_a_tilt_is_itself():
    from kleash.trials.loss_rest import nearest_tilt

    world = loss_world()
    assert nearest_tilt(world, tilt_logits(world, 0.7)) == pytest.approx((0.7, 0.0), abs=1e-6)


@pytest.fixture
def of_trainers(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    return importlib.import_module("trainer_losses")


def test_the_losses_of_trainers_have_the_faults_that_were_theirs(of_trainers):
    found = {f.__name__: loss_conformance(f, variants=False) for f in of_trainers.LOSSES}
    faults = {name: [fault.code for fault in one.faults] for name, one in found.items()}
    assert faults == {
        **{f.__name__: [] for f in of_trainers.LOSSES},
        "skyrl_before_march_2026": ["DETACHED"],
        "slime_default_type": ["NO_PULL"],
    }
    page = (EXAMPLES.parent / "docs" / "conformance.md").read_text()
    for name, one in found.items():
        assert f"| `{name}` | {one.gradient} |".replace("||", r"\|\|") in page


@pytest.mark.slow
def test_the_table_of_trainers_in_the_documentation(of_trainers):
    page = (EXAMPLES.parent / "docs" / "conformance.md").read_text()
    assert of_trainers.table().replace("||", r"\|\|") in page


def test_settings_of_a_loss_may_stand_in_a_file(tmp_path):
    (tmp_path / "c.toml").write_text("beta = 0.3\ngroup_size = 2\nepsilon = 0.1\n")
    command = [sys.executable, "-c", "from kleash.cli import main; main()", "conformance", "some_losses:clipped_k2"]
    done = subprocess.run([*command, "--config", str(tmp_path / "c.toml"), "--format", "json"], cwd=HERE,
                          capture_output=True, text=True, check=False)  # fmt: skip
    content = json.loads(done.stdout)
    assert (content["beta"], content["group_size"]) == (0.3, 2)


def test_from_which_ratio_on_the_policy_term_is_clipped():
    found = loss_conformance(losses.clipped_k2, settings={"epsilon": 0.1}, variants=False).clipping
    assert (found.above, found.below) == pytest.approx((1.1, 0.9), rel=1e-6)
    assert found.penalty_goes_on
    assert str(found) == "the policy term stops at ratios above 1.1 and below 0.9; the penalty goes on"
    none = loss_conformance(losses.grpo_k3, variants=False).clipping
    assert (none.above, none.below, none.penalty_goes_on) == (None, None, None)

    def all_clipped(logp, old_logp, ref_logp, reward, mask, *, beta, group_size):
        r, a = losses.ratio(logp, old_logp), losses.advantages(reward, group_size)[:, None]
        near = ((r < 1.3) & (r > 0.7)).double()
        return losses.summed(near * (-r * a + beta * losses.k2(logp, ref_logp)), mask)

    both = loss_conformance(all_clipped, variants=False).clipping
    assert (both.above, both.below) == pytest.approx((1.3, 0.7), rel=1e-6)
    assert both.penalty_goes_on is False
