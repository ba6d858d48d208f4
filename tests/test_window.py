"""Every verdict and every rule of the window, on tables made by hand."""

import dataclasses
import re
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import stdtrit

from exact_worlds import gaussian_world, small_worlds, with_maxima_and_minima
from kleash import _files
from kleash.errors import OptionError
from kleash.frontier import Estimates, Frontier, Gold, Replicates, exact_frontier
from kleash.tilt import moments
from kleash.window import Verdict, find_window
from kleash.worlds import World, kitchen, two_arm

NAN = np.nan
ROOT = Path(__file__).parent.parent
REFERENCE = 0.5  # gold of the reference in every table made here


def exact(beta, gain, *, kl=None, gold_range=1.0, status=None):
    """An exact table with these gains."""
    gain = np.asarray(gain, dtype=float)
    size = gain.size
    return Frontier(
        source="exact",
        beta=beta,
        reward=Estimates.exact(np.linspace(2, 1, size)),
        gold=Gold.of(
            Estimates.exact(REFERENCE + gain), gain=Estimates.exact(gain), reference=Estimates.exact(REFERENCE)
        ),
        kl=Estimates.exact(np.linspace(2.0, 0.1, size) if kl is None else kl),
        reference_reward=Estimates.exact(0.9),
        n=np.zeros(size, dtype=int),
        status=np.full(size, "ok") if status is None else status,
        gold_range=gold_range,
    )


def noise(size, seed=0):
    """Fixed draws with mean 0 and standard deviation (of a sample) 1, to the last digit that matters."""
    z = np.random.default_rng(seed).normal(size=size)
    z -= z.mean()
    return z / z.std(ddof=1)


def sampled(beta, gain, *, se, own=0.0, kind="bootstrap", n=30, n_draws=400, **changes):
    """A table with draws: one error of size ``se`` common to all betas, and one of size ``own`` for each beta.

    ``own`` is a number or one per beta; where it is 0 the difference between two betas is known exactly. Intervals of
    the gain are gain -+ 2 se unless ``half`` (one per beta) says otherwise.
    """
    half = np.asarray(changes.pop("half", 2 * se), dtype=float)
    gain = np.asarray(gain, dtype=float)
    own = np.broadcast_to(own, gain.shape)
    spread = np.sqrt(n_draws) if kind == "seeds" else 1.0  # a seed's own spread is the standard error times sqrt(R)
    common = spread * se * noise(n_draws)
    draws = gain + common[:, None] + spread * np.stack([s * noise(n_draws, 10 + i) for i, s in enumerate(own)], axis=1)
    table = exact(beta, gain, **changes)
    return dataclasses.replace(
        table,
        source="forecast" if kind == "bootstrap" else "sweep",
        gold=Gold.of(
            Estimates(value=table.gold.value, se=0 * gain + 10.0, lo=gain - 20, hi=gain + 20),  # not to be looked at
            gain=Estimates(value=gain, se=0 * gain + se, lo=gain - half, hi=gain + half),
            reference=table.gold.reference,
        ),
        n=np.full(gain.size, n),
        replicates=Replicates(
            kind=kind,
            reward=0 * draws,
            kl=0 * draws,
            gold=REFERENCE + draws,
            reference_reward=np.zeros(n_draws),
            reference_gold=np.full(n_draws, REFERENCE),
        ),
    )


# ------------------------------------------------------------------------------------------------ exact tables

BETAS = [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0]


def test_useful_range_and_all_its_edges():
    verdict = find_window(exact(BETAS, [-0.4, 0.1, 0.191, 0.2, 0.191, 0.0201, 0.019]))
    assert verdict.kind == "useful-range"
    assert (verdict.best_beta, verdict.best_kl) == (4.0, np.linspace(2.0, 0.1, 7)[3])
    assert (verdict.best_lo, verdict.best_hi) == (2.0, 8.0)
    assert (verdict.safe_beta, verdict.safe_kl) == (8.0, np.linspace(2.0, 0.1, 7)[4])
    assert verdict.loose_edge == (1.0, 2.0)
    assert verdict.tight_edge == (32.0, 16.0)
    assert verdict.needs == ()
    assert verdict.reasons == (
        "Quality gains 0.2 over the reference at beta 4.",
        "At beta 1 and looser, quality is being lost again.",
    )


@pytest.mark.parametrize(("share", "safe", "loose"), [(0.951, 8.0, (0.0, 1.0)), (0.949, 4.0, (2.0, 4.0))])
def test_exact_tables_count_five_percent(share, safe, loose):
    """The last twentieth of the gain is not worth the drift, on either side of the best."""
    gain = 0.2 * np.array([0.5, share, share, 1.0, share, 0.2, 0.2])
    verdict = find_window(exact(BETAS, gain))
    assert (verdict.safe_beta, verdict.loose_edge) == (safe, loose)


@pytest.mark.parametrize(("share", "edge"), [(0.101, (32.0, 16.0)), (0.099, (16.0, 8.0))])
def test_tight_edge_is_a_tenth_of_the_gain(share, edge):
    gain = 0.2 * np.array([0.0, 0.0, 0.0, 1.0, 0.5, share, 0.0])
    assert find_window(exact(BETAS, gain)).tight_edge == edge


def test_tight_edge_is_open_where_the_tightest_beta_still_gains():
    assert find_window(exact(BETAS, [0, 0, 0, 0.2, 0.1, 0.1, 0.1])).tight_edge is None


def test_loose_edge_is_the_last_loss_below_the_best():
    """A dip between the loosest beta and the best counts; a dip above the best does not."""
    assert find_window(exact(BETAS, [0.2, 0.1, 0.191, 0.191, 0.2001, 0.0, 0.19])).loose_edge == (1.0, 2.0)
    assert find_window(exact(BETAS, [0.2001, 0.1, 0.191, 0.191, 0.2, 0.0, 0.19])).loose_edge is None


def test_no_overoptimisation_seen():
    verdict = find_window(exact(BETAS[1:], [0.2, 0.2, 0.199, 0.1, 0.01, 0.0]))
    assert (verdict.kind, verdict.loose_edge, verdict.tight_edge) == ("no-overoptimisation-seen", None, (16.0, 8.0))
    assert verdict.reasons[1] == "Looser than that, no loss shows down to beta 1, the loosest that could be read."


def test_the_interval_of_the_best_is_open_at_an_end_that_was_not_read():
    assert find_window(exact(BETAS[1:], [0.3, 0.2, 0.1, 0.1, 0.1, 0.1])).best_lo is None
    assert find_window(exact(BETAS, [0.3, 0.2, 0.1, 0.1, 0.1, 0.1, 0.1])).best_lo == 0.0  # there is nothing below 0
    assert find_window(exact(BETAS, [0, 0, 0, 0, 0, 0, 0.3])).best_hi is None
    beyond = ["beyond", "beyond", "ok", "ok", "ok", "ok", "ok"]
    assert find_window(exact(BETAS, [0, 0, 0.3, 0.2, 0.1, 0.1, 0.1], status=beyond)).best_lo is None


def test_no_useful_range():
    verdict = find_window(exact(BETAS, [-0.4, -0.3, -0.2, -0.1, -0.05, -0.01, -0.001]))
    assert verdict == Verdict(
        kind="no-useful-range",
        reasons=(
            "At no beta from 0 to 32 does quality gain more than 0 over the untouched reference.",
            "The dial cannot help here: fix the judge.",
        ),
    )


@pytest.mark.parametrize(("kl", "kind"), [(0.126, "no-useful-range"), (0.124, "cannot-tell")])
def test_no_useful_range_needs_a_look_far_enough_from_the_reference(kl, kind):
    """0.125 nats: nearer, Pinsker's inequality forbids a gain of a quarter of the range even to a perfect judge."""
    verdict = find_window(exact([1.0, 2.0], [-0.1, -0.05], kl=[kl, 0.01]))
    assert verdict.kind == kind
    if kind == "cannot-tell":
        assert verdict.reasons[0].startswith("The data reach only 0.12 nats from the reference")
        assert verdict.needs == ("more answers to each prompt",)


def test_beta_zero_is_as_far_as_one_can_look():
    assert find_window(exact([0.0, 2.0], [-0.1, -0.05], kl=[0.02, 0.01])).kind == "no-useful-range"
    unread = exact([0.0, 1.0, 2.0], [0.0, -0.1, -0.05], kl=[0.0, 0.02, 0.01], status=["beyond", "ok", "ok"])
    assert find_window(unread).kind == "cannot-tell"


def test_rounding_is_not_a_gain():
    """Gold that differs between prompts and not within them: every beta has the reference's gold, up to rounding."""
    rng = np.random.default_rng(0)
    reference = rng.dirichlet(np.ones(50), size=3)
    world = World(
        name="w",
        log_reference=np.log(reference),
        reward=rng.normal(size=(3, 50)),
        gold=np.repeat([[0.1], [0.7], [0.3]], 50, 1),
    )
    table = exact_frontier(world)
    assert (table.gold.gain.value > 0).any()  # by 1e-16
    assert find_window(table).kind == "no-useful-range"
    shifted = exact_frontier(dataclasses.replace(world, gold=world.gold + 1e6))
    assert find_window(shifted).kind == "no-useful-range"


def test_quality_that_never_differs_cannot_tell():
    verdict = find_window(exact_frontier(dataclasses.replace(kitchen(), gold=np.full((1, 41), 0.7))))
    assert verdict.kind == "cannot-tell"
    assert "the same for every answer" in verdict.reasons[0]
    assert verdict.needs == ("a measure of quality that tells answers apart",)


# --------------------------------------------------------------------------------------------- paired differences


def critical(df):
    return float(stdtrit(df, 0.975))


@pytest.mark.parametrize("kind", ["bootstrap", "seeds"])
@pytest.mark.parametrize(("factor", "lost"), [(0.97, False), (1.03, True)])
def test_loose_edge_needs_a_measurable_loss(kind, factor, lost):
    """One-sided 97.5 % by Student's t of the paired difference; the ten times larger error common to both drops out.

    Bootstrap: draws spread by the standard error, degrees of freedom from 6 prompts. Seeds: 5 runs, spread / sqrt(5).
    """
    n, n_draws = (6, 400) if kind == "bootstrap" else (50, 5)
    se = 0.01
    t = critical(5) if kind == "bootstrap" else critical(4)
    loss = factor * t * se
    gain = [0.5 - loss, 0.5, 0.3]
    table = sampled([1.0, 2.0, 4.0], gain, se=0.1, own=[se, 0.0, 0.0], kind=kind, n=n, n_draws=n_draws)
    assert find_window(table).kind == ("useful-range" if lost else "no-overoptimisation-seen")


@pytest.mark.parametrize("kind", ["bootstrap", "seeds"])
@pytest.mark.parametrize(("factor", "safe"), [(0.97, 4.0), (1.03, 2.0)])
def test_safe_beta_may_be_worse_by_one_paired_standard_error(kind, factor, safe):
    """The standard error of the difference, 0.06, is more than 5 % of the gain, 0.025, and decides."""
    se = 0.06
    table = sampled(
        [1.0, 2.0, 4.0], [0.1, 0.5, 0.5 - factor * se], se=0.1, own=[0.0, 0.0, se], kind=kind, n=5, n_draws=50
    )
    assert find_window(table).safe_beta == safe


def test_safe_beta_may_be_worse_by_five_percent_where_the_error_is_smaller():
    for factor, safe in ((0.97, 4.0), (1.03, 2.0)):
        table = sampled([1.0, 2.0, 4.0], [0.1, 0.5, 0.5 * (1 - 0.05 * factor)], se=0.1, own=0.001)
        assert find_window(table).safe_beta == safe


def test_safe_beta_gains_measurably():
    """Beta 8 is as good as the best within its error, and its gain cannot be told from 0: not recommended."""
    gain, half = [0.3, 0.5, 0.49, 0.49], [0.1, 0.1, 0.1, 0.6]
    assert find_window(sampled([1.0, 2.0, 4.0, 8.0], gain, se=0.1, own=0.01, half=half)).safe_beta == 4.0


def test_a_gain_that_is_shown_is_not_hidden_by_a_noisy_row():
    """The largest estimate is a guess, the next largest is certain: the verdict stands on the latter."""
    table = sampled([1.0, 2.0, 4.0], [0.6, 0.5, 0.1], se=0.1, own=[0.4, 0.01, 0.01], half=[0.9, 0.1, 0.05])
    verdict = find_window(table)
    assert (verdict.kind, verdict.best_beta) == ("no-overoptimisation-seen", 2.0)
    assert "gains 0.5 (95 %: 0.4 to 0.6)" in verdict.reasons[0]


def test_gain_that_cannot_be_told_from_nothing():
    for kind, need in (("bootstrap", "prompts or gold labels"), ("seeds", "seeds and betas")):
        verdict = find_window(sampled([1.0, 2.0, 4.0], [0.1, 0.15, 0.1], se=0.1, kind=kind))
        assert verdict.kind == "cannot-tell"
        assert verdict.reasons == ("A gain of up to 0.35 can be neither shown nor ruled out.",)
        assert verdict.needs == (f"more {need}",)
        assert verdict.best_beta is verdict.safe_beta is None


@pytest.mark.parametrize(("upper", "kind"), [(0.049, "no-useful-range"), (0.051, "cannot-tell")])
def test_no_useful_range_looks_at_the_upper_limit_of_every_row(upper, kind):
    """Default tolerance: 5 % of the range of gold, here 1."""
    gain, half = np.array([-0.4, -0.1, -0.2]), 0.05
    table = sampled([1.0, 2.0, 4.0], gain, se=0.1, half=[half, upper + 0.1, half])
    assert find_window(table).kind == kind


def test_tolerance_is_the_callers_or_five_percent_of_the_range():
    table = sampled([1.0, 2.0], [-0.05, -0.05], se=0.05, gold_range=2.0)  # upper limit 0.05, default tolerance 0.1
    assert find_window(table).kind == "no-useful-range"
    assert find_window(table, tolerance=0.06).kind == "no-useful-range"
    assert find_window(table, tolerance=0.04).kind == "cannot-tell"
    unknown = dataclasses.replace(table, gold_range=None)
    assert find_window(unknown).kind == "cannot-tell"
    assert find_window(unknown, tolerance=0.06).kind == "no-useful-range"
    for bad in (-0.1, NAN, np.inf):
        with pytest.raises(OptionError, match="tolerance: expected"):
            find_window(table, tolerance=bad)


def test_a_tolerance_of_nothing_still_lets_a_loss_be_a_loss():
    assert find_window(sampled([1.0, 2.0], [-0.3, -0.3], se=0.1), tolerance=0.0).kind == "no-useful-range"
    assert find_window(sampled([1.0, 2.0], [-0.3, -0.1], se=0.1), tolerance=0.0).kind == "cannot-tell"
    assert find_window(exact([1.0, 2.0], [-0.3, 0.0]), tolerance=0.0).kind == "no-useful-range"


def test_interval_of_the_best_from_bootstrap_draws():
    """Of 100 draws ten say beta 1, three beta 16, one beta 0.5: 95 % reach from 1 to 16, widened by a row."""
    beta = [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0]
    table = sampled(beta, [0.3, 0.3, 0.4, 0.5, 0.4, 0.3, 0.0], se=0.01, n_draws=100)
    gold = np.tile(table.replicates.gold.mean(axis=0), (100, 1))
    for rows, column in ((slice(0, 10), 1), (slice(10, 13), 5), (slice(13, 14), 0)):
        gold[rows, column] = 2.0
    verdict = find_window(dataclasses.replace(table, replicates=dataclasses.replace(table.replicates, gold=gold)))
    assert (verdict.best_beta, verdict.best_lo, verdict.best_hi) == (4.0, 0.5, 32.0)
    seeds = dataclasses.replace(table.replicates, gold=gold, kind="seeds")
    verdict = find_window(dataclasses.replace(table, source="sweep", replicates=seeds))
    assert (verdict.best_lo, verdict.best_hi) == (None, 32.0)  # of seeds, every one counts


def test_a_gain_is_taken_within_the_draw():
    """Draws whose reference moves along with them agree on the best as well as draws that do not move."""
    table = sampled([1.0, 2.0, 4.0], [0.1, 0.5, 0.3], se=0.1)
    r = table.replicates
    moved = dataclasses.replace(r, gold=r.gold + noise(400)[:, None], reference_gold=r.reference_gold + noise(400))
    assert find_window(dataclasses.replace(table, replicates=moved)) == find_window(table)


def test_one_seed_shows_nothing():
    table = sampled([1.0, 2.0], [0.1, 0.2], se=0.1, kind="seeds", n=1, n_draws=2)
    r = table.replicates
    one = Replicates(
        kind="seeds", **{f.name: getattr(r, f.name)[:1] for f in dataclasses.fields(r) if f.name != "kind"}
    )
    nowhere = np.full(2, NAN)
    gain = Estimates(value=table.gold.gain.value, se=nowhere, lo=nowhere, hi=nowhere)
    gold = dataclasses.replace(table.gold, gain=gain)
    verdict = find_window(dataclasses.replace(table, replicates=one, gold=gold))
    assert verdict.kind == "cannot-tell"
    assert "without an interval" in verdict.reasons[0]
    assert verdict.needs == ("more seeds and betas",)
    gold = dataclasses.replace(table.gold, gain=Estimates.exact([0.1, 0.2]))
    known = find_window(dataclasses.replace(table, replicates=one, gold=gold))
    assert (
        known.kind == "no-overoptimisation-seen"
    )  # a gain that came with an interval, and no loss that can be measured


def test_estimates_without_draws_are_compared_as_independent():
    """A forecast read from somewhere without its draws must not pass for an exact table."""
    value = Estimates(value=[0.7, 1.0, 0.8], se=[0.1, 0.1, 0.1], lo=[0.5, 0.8, 0.6], hi=[0.9, 1.2, 1.0])
    gain = Estimates(value=[0.2, 0.5, 0.3], se=[0.01] * 3, lo=[0.1, 0.4, 0.2], hi=[0.3, 0.6, 0.4])
    gold = Gold.of(value, gain=gain, reference=Estimates.exact(REFERENCE))
    table = dataclasses.replace(exact([1.0, 2.0, 4.0], [0.2, 0.5, 0.3]), source="log", gold=gold)
    assert find_window(table).kind == "useful-range"  # 0.3 is more than 1.96 * 0.1 * sqrt(2) = 0.277
    wider = dataclasses.replace(gold, se=np.full(3, 0.11))
    assert find_window(dataclasses.replace(table, gold=wider)).kind == "no-overoptimisation-seen"
    assert find_window(table).safe_beta == 2.0  # 0.3 < 0.5 - 0.14


# -------------------------------------------------------------------------------------------- cheats nobody has seen


def test_floor_raises_the_safe_beta():
    table = exact(BETAS, [-0.4, 0.1, 0.2, 0.199, 0.1, 0.05, 0.01], kl=[3.0, *(1.0 / np.array(BETAS[1:]) ** 2)])
    free = find_window(table)
    assert free.safe_beta == 4.0
    for low in (0.0, 1.0, 4.0):
        assert find_window(table, beta_floor=low) == free
    raised = find_window(table, beta_floor=6.0)
    assert raised.safe_beta == 6.0
    assert raised.safe_kl == pytest.approx(1 / 36, rel=1e-12)  # between rows, on a line in logarithms
    assert raised.reasons[:-1] == free.reasons
    assert raised.reasons[-1].startswith("The safe beta is raised from 4 to 6: ")
    assert raised.raised
    assert not free.raised
    free_again = dataclasses.replace(raised, safe_beta=4.0, safe_kl=free.safe_kl, raised=False, reasons=free.reasons)
    assert free_again == free


def test_a_floor_where_no_gain_is_shown_leaves_no_safe_beta():
    """Past the last row, or where the gain is no longer measurable: "as good, on the tightest leash"."""
    table = exact(BETAS, [-0.4, 0.1, 0.2, 0.199, 0.1, 0.0, -0.01])
    for floor in (9.0, 1e6):
        verdict = find_window(table, beta_floor=floor)
        assert verdict.kind == find_window(table).kind
        assert (verdict.safe_beta, verdict.safe_kl, verdict.raised) == (None, None, True)
        assert verdict.reasons[-1].startswith("No beta is safe: ")
        assert verdict.needs


def test_a_dip_below_the_reference_on_the_way_to_the_best_is_said():
    """The loosest beta is the best, but half way there quality is below the untouched reference's."""
    verdict = find_window(exact(BETAS, [0.4, -0.3, -0.1, 0.05, 0.1, 0.05, 0.01]))
    assert verdict.kind == "no-overoptimisation-seen"
    assert "On the way, at beta 1, quality is below the untouched reference's." in verdict.reasons


def test_looser_is_said_only_where_every_looser_beta_loses():
    assert "At beta 1 and looser, quality" in str(find_window(exact(BETAS, [-0.4, 0.1, 0.2, 0.199, 0.1, 0.05, 0.01])))
    assert "At beta 1, quality" in str(find_window(exact(BETAS, [0.2, 0.1, 0.2001, 0.199, 0.1, 0.05, 0.01])))


def test_floor_outside_the_rows_has_no_kl():
    gain = [0.3, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1]
    assert find_window(exact(BETAS, gain), beta_floor=64.0).safe_beta is None
    between = find_window(exact(BETAS, gain), beta_floor=0.5)
    assert (between.safe_beta, between.safe_kl) == (0.5, None)  # between 0 and the first positive beta


def test_floor_makes_no_gain_out_of_nothing():
    table = exact(BETAS, [-0.4, -0.3, -0.2, -0.1, -0.05, -0.01, -0.001])
    assert find_window(table, beta_floor=6.0) == find_window(table)
    for bad in (-1.0, NAN, np.inf):
        with pytest.raises(OptionError, match="beta_floor: expected"):
            find_window(table, beta_floor=bad)


# --------------------------------------------------------------------------------------------------- what is read


def test_no_gold():
    table = exact(BETAS, np.zeros(7))
    verdict = find_window(dataclasses.replace(table, gold=None))
    assert verdict.kind == "cannot-tell"
    assert "was not measured" in verdict.reasons[0]
    assert verdict.needs == ("gold labels on some of the answers, chosen at random",)


def test_everything_beyond():
    table = exact(BETAS, [0.1] * 7, status=["beyond"] * 7)
    verdict = find_window(table)
    assert verdict.kind == "cannot-tell"
    assert verdict.reasons == ("At no beta do the data reach far enough to be read.",)
    assert verdict.needs == ("more answers to each prompt", "more prompts")
    assert find_window(exact(BETAS, [NAN] * 7)) == verdict


def test_all_rewards_equal():
    flat = exact_frontier(dataclasses.replace(kitchen(), reward=np.full((1, 41), 3.0)))
    verdict = find_window(flat)
    assert verdict.kind == "cannot-tell"
    assert "the same score" in verdict.reasons[0]
    assert verdict.needs == ("a judge that tells answers to the same prompt apart",)
    assert find_window(dataclasses.replace(flat, source="log")).reasons != verdict.reasons


def test_beyond_rows_are_not_looked_at():
    """Values, draws and KL of rows that are beyond, whatever they say, change nothing."""
    beta, gain = [0.5, 1.0, 2.0, 4.0, 8.0], [0.9, 0.1, 0.5, 0.1, 0.9]
    status = np.array(["beyond", "ok", "ok", "weak", "beyond"])
    table = sampled(beta, gain, se=0.01, own=0.05, status=status)
    verdict = find_window(table)
    assert (verdict.kind, verdict.best_beta, verdict.best_lo, verdict.best_hi) == ("useful-range", 2.0, 1.0, 4.0)
    keep = status != "beyond"
    draws = {name: np.where(keep, getattr(table.replicates, name), NAN) for name in ("reward", "kl", "gold")}
    blind = {name: getattr(table, name).where(keep) for name in ("reward", "kl", "gold")}
    n = np.where(keep, 30, 1)
    other = dataclasses.replace(table, **blind, n=n, replicates=dataclasses.replace(table.replicates, **draws))
    assert find_window(other) == verdict
    assert find_window(dataclasses.replace(table, status=["ok"] * 5)) != verdict


def test_weak_rows_are_read():
    table = exact(BETAS, [-0.4, 0.1, 0.191, 0.2, 0.191, 0.0201, 0.01])
    weak = dataclasses.replace(table, status=["weak"] * 7)
    assert find_window(weak) == find_window(table)


@given(st.permutations(range(7)), st.sampled_from(["exact", "bootstrap", "seeds"]), st.integers(0, 99))
@settings(max_examples=settings.default.max_examples // 3)
def test_never_ranks_by_the_judge(order, kind, seed):
    """Rewards in any order, of the rows and of the draws, leave the verdict as it is."""
    gain = np.random.default_rng(seed).normal(0.1, 0.2, size=7)
    table = exact(BETAS, gain) if kind == "exact" else sampled(BETAS, gain, se=0.05, own=0.05, kind=kind, n_draws=20)
    order = list(order)
    changed = {"reward": table.reward[order], "reference_reward": Estimates.exact(-5.0)}
    if table.replicates is not None:
        shuffled = np.random.default_rng(seed).normal(size=(20, 7))
        changed["replicates"] = dataclasses.replace(table.replicates, reward=shuffled, reference_reward=shuffled[:, 0])
    assert find_window(dataclasses.replace(table, **changed)) == find_window(table)


# ---------------------------------------------------------------------------------------------------- whole worlds


def test_kitchens():
    assert find_window(exact_frontier(kitchen())).kind == "no-useful-range"
    verdict = find_window(exact_frontier(kitchen(oversalt=0.0005)))
    assert verdict.kind == "useful-range"
    assert round(verdict.best_beta, 2) == 7.25
    assert verdict.best_lo < verdict.best_beta < verdict.best_hi


def test_gold_that_rises_all_the_way_shows_no_overoptimisation():
    verdict = find_window(exact_frontier(two_arm(0.2, gold=(0.0, 1.0))))
    assert (verdict.kind, verdict.best_lo) == ("no-overoptimisation-seen", 0.0)
    assert find_window(exact_frontier(two_arm(0.2))).kind == "no-useful-range"


@pytest.mark.parametrize(("roots", "best"), [([0.5, 1.2, 2.5], 2.5), ([1.3, 1.7, 1.9], 1.3)])
def test_the_best_is_the_global_one(roots, best):
    """Two maxima with a minimum between; E[gold] is the integral of -(lambda - a)(lambda - b)(lambda - c)."""
    verdict = find_window(exact_frontier(with_maxima_and_minima(roots)))
    assert verdict.kind == "useful-range"
    assert verdict.best_beta == pytest.approx(1 / best, rel=1e-7)


def test_one_maximum_and_its_edges_by_formula():
    """E[gold] = 2 lambda - lambda^2: best at lambda 1, gain 1.

    A twentieth is lost at 1 +- sqrt(0.05), a tenth is gained at 1 - sqrt(0.9), and the default grid steps by 6 %.
    """
    verdict = find_window(exact_frontier(gaussian_world([0.0, 2.0, -1.0])))
    step = 1e5 ** (1 / 199) * (1 + 1e-9)
    assert verdict.best_beta == pytest.approx(1.0, rel=1e-9)
    assert 1 / (1 - np.sqrt(0.05)) / step <= verdict.safe_beta <= 1 / (1 - np.sqrt(0.05))
    bad, good = verdict.loose_edge
    assert bad <= 1 / (1 + np.sqrt(0.05)) <= good <= bad * step
    bad, good = verdict.tight_edge
    assert good <= 1 / (1 - np.sqrt(0.9)) <= bad <= good * step
    assert verdict.safe_kl == pytest.approx(verdict.safe_beta**-2 / 2, rel=1e-9)


@given(small_worlds())
@settings(max_examples=settings.default.max_examples // 2)
def test_windows_of_random_worlds(world):
    """Whatever the world: order of the betas, size of the gains, and no gain that a finer grid does not confirm."""
    table = exact_frontier(world)
    verdict = find_window(table)
    start = moments(world, np.inf).gold[0]
    finest = moments(world, np.geomspace(1e-3, 1e3, 601) * table.beta[-1] / 100).gold.max() - start
    if verdict.best_beta is None:
        assert finest < 0.05 * table.gold_range
        return
    best = moments(world, verdict.best_beta).gold[0] - start
    safe = moments(world, verdict.safe_beta).gold[0] - start
    assert best >= finest - 1e-9 * table.gold_range
    assert safe >= 0.95 * best - 1e-12
    assert verdict.safe_beta >= verdict.best_beta
    assert (verdict.best_lo or 0.0) <= verdict.best_beta <= verdict.best_hi
    if verdict.loose_edge is not None:
        bad, good = verdict.loose_edge
        assert bad < good <= verdict.best_beta
        assert moments(world, bad).gold[0] - start < 0.95 * best
    if verdict.tight_edge is not None:
        bad, good = verdict.tight_edge
        assert verdict.safe_beta <= good < bad
        assert moments(world, bad).gold[0] - start < 0.1 * best <= moments(world, good).gold[0] - start + 1e-12
    assert (verdict.kind == "useful-range") == (verdict.loose_edge is not None)


def test_weak_rows_of_a_forecast_never_advise():
    """The largest gain is weak: best and safe are those of the ok rows. Rows of a log may be weak and advise."""
    beta, gain = [0.5, 1.0, 2.0, 4.0, 8.0], [0.1, 0.9, 0.5, 0.4, 0.3]
    status = np.array(["ok", "weak", "ok", "ok", "weak"])
    table = sampled(beta, gain, se=0.01, own=0.05, status=status)
    verdict = find_window(table)
    assert (verdict.best_beta, verdict.safe_beta) == (2.0, 2.0)
    assert find_window(dataclasses.replace(table, source="log")).best_beta == 1.0
    only_weak = find_window(dataclasses.replace(table, status=np.full(5, "weak")))
    assert (only_weak.kind, only_weak.safe_beta) == ("cannot-tell", None)
    assert "No row is sure enough" in only_weak.reasons[0]


def test_weak_rows_of_a_forecast_count_against():
    """A loss seen only in a weak row sets the loose edge; a gain that a weak row allows forbids 'no useful range'."""
    beta, status = [0.5, 1.0, 2.0, 4.0], np.array(["weak", "ok", "ok", "ok"])
    lost = find_window(sampled(beta, [-0.5, 0.5, 0.4, 0.3], se=0.01, own=0.05, status=status))
    assert (lost.kind, lost.loose_edge) == ("useful-range", (0.5, 1.0))
    nothing = [sampled(beta, [top, -0.5, -0.4, -0.3], se=0.01, own=0.05, status=status) for top in (-0.6, 0.6)]
    assert [find_window(table).kind for table in nothing] == ["no-useful-range", "cannot-tell"]


# ------------------------------------------------------------------------------------------------- how it is said


KEYS = [  # of CONTRACT: VERDICT; ``raised`` and ``breakdown_score`` are ours
    *("kind", "best_beta", "best_lo", "best_hi", "best_kl", "safe_beta", "safe_kl"),
    *("tight_edge", "loose_edge", "raised", "breakdown_score", "reasons", "needs"),
]


def test_verdict_as_plain_data():
    for table in (exact(BETAS, [-0.4, 0.1, 0.191, 0.2, 0.191, 0.0201, 0.01]), exact(BETAS, -np.ones(7))):
        content = find_window(table).to_dict()
        assert list(content) == KEYS
        assert '"kind"' in _files.dump_json(content)
        assert type(content["reasons"]) is type(content["needs"]) is list
    assert find_window(exact(BETAS, [-0.4, 0.1, 0.191, 0.2, 0.191, 0.0201, 0.01])).to_dict()["loose_edge"] == [1.0, 2.0]


def test_verdict_in_words():
    verdict = Verdict(kind="cannot-tell", reasons=("One.", "Two."), needs=("more prompts", "more labels"))
    assert str(verdict) == "cannot tell: One. Two.\nIt would take more prompts.\nIt would take more labels."
    assert str(Verdict(kind="useful-range", reasons=("One.",))) == "useful range: One."


# ------------------------------------------------------------------------------------------------- the moving dial


SCRIPT = ROOT / "examples" / "moving_dial.py"


def test_moving_dial_page_is_the_commands_output():
    done = subprocess.run([sys.executable, SCRIPT, "--markdown"], capture_output=True, text=True, check=True)
    page = (ROOT / "docs" / "moving-dial.md").read_text(encoding="utf-8")
    table = [line for line in page.splitlines() if line.startswith("|")]
    assert table == done.stdout.splitlines()
    assert len(table) == 2 + 9
    assert done.stderr == ""


def test_moving_dial_fits_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", [str(SCRIPT)])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert sum(bool(re.match(r" *0\.0", line)) for line in lines) == 9


def test_the_window_moves_with_the_judge():
    """The claims of the page: everything scales with love, quality does not move, a better reference opens a window."""
    for oversalt in (0.05, 0.005, 0.0005):
        tables = {love: exact_frontier(kitchen(oversalt=oversalt, love=love)) for love in (0.5, 1.0, 2.0)}
        plain = find_window(tables[1.0])
        assert plain.kind == ("no-useful-range" if oversalt == 0.05 else "useful-range")
        for love, table in tables.items():
            verdict = find_window(table)
            assert verdict.kind == plain.kind
            if plain.best_beta is None:
                continue
            for name in ("best_beta", "safe_beta", "best_lo", "best_hi", "loose_edge", "tight_edge"):
                moved, still = np.array(getattr(verdict, name)), np.array(getattr(plain, name))
                np.testing.assert_allclose(moved, love * still, rtol=1e-8)
            np.testing.assert_allclose(table.gold.gain.value.max(), tables[1.0].gold.gain.value.max(), rtol=1e-9)
