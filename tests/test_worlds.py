"""Worlds: what is refused, what is exact, what a family promises."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.stats import chi2, skew, spearmanr

from exact_worlds import FAMILIES, some_world
from kleash.errors import OptionError, ShapeError
from kleash.tilt import moments
from kleash.worlds import World, heavy_tail, kitchen, random_world, two_arm

DOCS = Path(__file__).parent.parent / "docs"


def world(**changes):
    """Two prompts, three answers, with one thing changed."""
    given = {
        "name": "w",
        "log_reference": np.log([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]]),
        "reward": [[1.0, 2.0, 3.0], [0.0, 0.0, 1.0]],
        "gold": [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]],
    }
    return World(**{**given, **changes})


# ------------------------------------------------------------------------------------------------------- World


def test_lists_become_read_only_float_arrays_of_their_own():
    given = {
        "log_reference": np.log([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]]),
        "reward": np.array([[1, 2, 3], [0, 0, 1]]),
        "gold": np.array([[1.0, 2.0, 3.0], [0.0, 0.0, 1.0]]),
        "prompt_weight": np.array([0.25, 0.75]),
    }
    made = world(**given)
    for array in given.values():
        array[...] = 99
    assert (made.reward[0, 0], made.gold[0, 0], made.prompt_weight[0]) == (1.0, 1.0, 0.25)
    assert made.log_reference.max() < 0
    for name in ("log_reference", "reward", "gold", "prompt_weight"):
        assert getattr(made, name).dtype == np.float64
        with pytest.raises(ValueError, match="read-only"):
            getattr(made, name)[0] = 0.0
    assert (made.n_prompts, made.n_answers) == (2, 3)


def test_prompts_weigh_the_same_unless_said_otherwise():
    assert world().prompt_weight.tolist() == [0.5, 0.5]
    assert_allclose(world().expectation(world().reward), [0.5 * 1.7 + 0.5 * 0.8], rtol=1e-15)
    assert_allclose(world(prompt_weight=[1, 0]).expectation(world().reward), [1.7], rtol=1e-15)


def test_texts_are_numbered_unless_given():
    assert world().prompts == ("0", "1")
    assert world().answers == (("0", "1", "2"), ("0", "1", "2"))
    named = world(prompts=["p", "q"], answers=[["a", "b", "c"], ["d", "e", "f"]])
    assert (named.prompts, named.answers[1]) == (("p", "q"), ("d", "e", "f"))
    assert world(answers=[["a", "b", "c"]]).answers == (("a", "b", "c"),) * 2


def test_rows_are_normalised_to_rounding():
    """A sum that is off by less than 1e-9 is divided out, so that KL at small lambda is not swamped by it."""
    off = world(log_reference=np.log([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]]) + 5e-10)
    assert_allclose(np.exp(off.log_reference).sum(axis=1), 1.0, rtol=0, atol=3e-16)
    assert_allclose(moments(off, 1e6).kl, moments(world(), 1e6).kl, rtol=1e-8)


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"reward": [[1.0, 2.0]]}, ShapeError, "expected arrays of one shape, got log_reference (2, 3), reward (1, 2)"),
        (
            {k: [0.0, 0.0] for k in ("log_reference", "reward", "gold")},
            ShapeError,
            "expected arrays (prompts, answers)",
        ),
        ({k: np.zeros((0, 3)) for k in ("log_reference", "reward", "gold")}, ShapeError, "got (0, 3)"),
        (
            {"log_reference": np.log([[0.5, 0.3, 0.2], [0.1, 0.1, 0.7]])},
            ShapeError,
            "sum to one, got a sum of 0.9 at prompt 1",
        ),
        (
            {"log_reference": np.log([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]]) + 1e-8},
            ShapeError,
            "got a sum of 1.00000001 at",
        ),
        ({"log_reference": np.full((2, 3), -np.inf)}, ShapeError, "got a sum of 0 at prompt 0"),
        ({"log_reference": [[-1.0, -1.0, np.nan]] * 2}, ShapeError, "got a sum of nan at prompt 0"),
        ({"log_reference": [[0.0, 800.0, 1e5]] * 2}, ShapeError, "got a sum of inf at prompt 0"),
        (
            {"reward": [[1, 2, 3], [0, np.nan, 1]]},
            OptionError,
            "reward: expected finite numbers, got nan at prompt 1, answer 1",
        ),
        (
            {"gold": [[1, 2, -np.inf], [0, 0, 1]]},
            OptionError,
            "gold: expected finite numbers, got -inf at prompt 0, answer 2",
        ),
        (
            {"prompt_weight": [0.5, 0.6]},
            ShapeError,
            "prompt_weight: expected 2 weights, sum 1, got shape (2,), sum 1.1",
        ),
        ({"prompt_weight": [1.5, -0.5]}, ShapeError, "prompt_weight"),
        ({"prompt_weight": [np.nan, 1.0]}, ShapeError, "prompt_weight"),
        ({"prompt_weight": [1.0]}, ShapeError, "got shape (1,)"),
        ({"prompts": ["only one"]}, ShapeError, "got 1 prompts and 2 lists of answers"),
        ({"answers": [["a", "b"]]}, ShapeError, "texts: expected 2 x 3"),
        ({"answers": [["a", "b", "c"]] * 3}, ShapeError, "got 2 prompts and 3 lists of answers"),
    ],
)
def test_what_is_refused(changes, error, text):
    with pytest.raises(error) as caught:
        world(**changes)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


def test_impossible_answers_need_no_scores():
    made = world(
        log_reference=[[*np.log([0.5, 0.5]), -np.inf], np.log([0.1, 0.1, 0.8])],
        reward=[[1.0, 2.0, np.nan], [0, 0, 1]],
        gold=[[1.0, 2.0, np.inf], [0, 0, 1]],
    )
    assert (made.reward[0, 2], made.gold[0, 2]) == (0.0, 0.0)
    assert np.isfinite(made.expectation(made.gold)).all()


def test_expectation_under_many_policies():
    made = world()
    policies = np.log(np.array([[[0.2, 0.3, 0.5], [1 / 3, 1 / 3, 1 / 3]], [[1.0, 1e-300, 1e-300], [0.25, 0.25, 0.5]]]))
    assert_allclose(made.expectation(made.reward, policies), [(2.3 + 1 / 3) / 2, (1 + 0.5) / 2], rtol=1e-12)


def test_sample_follows_the_reference():
    """Pearson's chi-squared over all (prompt, answer) cells, 40,000 prompts x 3 answers.

    The three draws of a prompt share it, so the prompts and the answers within a prompt are tested apart, each at
    p = 1e-6: false-alarm rate 3e-6 over seeds. A cell whose probability is wrong by 0.01 is detected almost surely.
    """
    made = some_world("light", 1, n_prompts=3, n_answers=8)
    prompt, answer = made.sample(40_000, 3, rng=np.random.default_rng(5))
    assert (prompt.shape, answer.shape) == ((40_000,), (40_000, 3))

    def fits(counts, probability):
        assert not counts[probability == 0].any()
        expected = counts.sum() * probability[probability > 0]
        statistic = ((counts[probability > 0] - expected) ** 2 / expected).sum()
        return chi2.sf(statistic, expected.size - 1) > 1e-6

    assert fits(np.bincount(prompt, minlength=3), made.prompt_weight)
    for p in range(3):
        assert fits(np.bincount(answer[prompt == p].ravel(), minlength=8), np.exp(made.log_reference[p]))


def test_sample_never_draws_an_impossible_answer_at_either_end():
    made = World(name="w", log_reference=[[-np.inf, 0.0, -np.inf]], reward=np.zeros((1, 3)), gold=np.zeros((1, 3)))

    class Ends:
        """A generator whose uniform numbers are the two ends of [0, 1)."""

        choice = staticmethod(np.random.default_rng(0).choice)

        @staticmethod
        def random(shape):
            return np.resize([0.0, np.nextafter(1.0, 0.0)], shape)

    assert set(made.sample(4, 6, rng=Ends)[1].ravel().tolist()) == {1}
    for size in range(2, 60):  # probabilities whose running sum ends a little below one
        even = World(
            name="w",
            log_reference=np.full((1, size), -np.log(size)),
            reward=np.zeros((1, size)),
            gold=np.zeros((1, size)),
        )
        assert set(even.sample(1, 2, rng=Ends)[1].ravel().tolist()) == {0, size - 1}


def test_the_same_seed_gives_the_same_samples():
    draws = [kitchen().sample(5, 7, rng=np.random.default_rng(3))[1].tolist() for _ in range(2)]
    assert draws[0] == draws[1]
    assert draws[0] != kitchen().sample(5, 7, rng=np.random.default_rng(4))[1].tolist()


# ----------------------------------------------------------------------------------------------------- kitchen


def test_kitchen_is_what_the_design_says():
    made = kitchen()
    salt = 31.7 * np.arange(41) / 40
    house = np.exp(-0.5 * ((salt - 7.92) / 1.25) ** 2)
    bomb = np.exp(-(31.7 - salt) / 0.216)
    reference = (1 - 0.0505) * house / house.sum() + 0.0505 * bomb / bomb.sum()
    assert made.reward.shape == (1, 41)
    assert_allclose(made.reward[0], salt, rtol=1e-15)
    assert_allclose(np.exp(made.log_reference[0]), reference, rtol=1e-12)
    assert_allclose(made.gold[0], 2.6 * np.exp(-0.5 * ((salt - 9.21) / 1.99) ** 2), rtol=1e-14)
    assert made.answers[0][0] == "a dish with salt 0.0"
    assert made.answers[0][-1] == "a dish with salt 31.7"


def test_kitchen_settings():
    assert_allclose(kitchen(love=2.0).reward, 2 * kitchen().reward, rtol=1e-15)
    assert_allclose(kitchen(love=2.0).gold, kitchen().gold, rtol=1e-15)
    bombs = [np.exp(kitchen(oversalt=x).log_reference[0, -1]) for x in (0.1, 0.05)]
    assert_allclose(bombs[0] / bombs[1], 2.0, rtol=1e-9)
    steady = kitchen(oversalt=0.0, house_mean=10.0, house_sd=0.5)
    start = moments(steady, np.inf)
    assert_allclose(start.reward, 10.0, atol=0.02)
    assert_allclose(start.reward_variance, 0.25, rtol=0.05)
    assert moments(kitchen(oversalt=1.0), np.inf).reward[0] > 31


@pytest.mark.parametrize(
    "setting",
    [
        {"oversalt": -0.1},
        {"oversalt": 1.1},
        {"oversalt": np.nan},
        {"love": 0.0},
        {"house_sd": 0.0},
        {"house_mean": np.inf},
    ],
)
def test_kitchen_refuses(setting):
    with pytest.raises(OptionError, match=f"{next(iter(setting))}: expected"):
        kitchen(**setting)


def test_kitchen_page_prints_the_numbers_of_the_code():
    """docs/worlds.md: the exact columns of the table are what the code computes, to the digits printed."""
    page = (DOCS / "worlds.md").read_text(encoding="utf-8")
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("|")
    ]
    rows = {row[0]: row for row in cells if len(row) == 5}
    betas = {"0": 0.0, "1": 1.0, "5": 5.0, "15": 15.0, "60": 60.0, "reference": np.inf}
    for name, beta in betas.items():
        at = moments(kitchen(), beta)
        kl = "0" if beta == np.inf else f"{at.kl[0]:.3f}"
        assert rows[name][1:4] == [f"{at.reward[0]:.2f}", f"{at.gold[0]:.3f}", kl]
        judge, quality = map(float, rows[name][4].split(", "))
        assert abs(judge - at.reward[0]) <= 0.09
        assert abs(quality - at.gold[0]) <= 0.008
    assert all(f"`{family}`" in page for family in FAMILIES)


# --------------------------------------------------------------------------------------------- two arms, tails


def test_two_arm():
    made = two_arm([0.2, 0.4], gold=(0.5, -1.0))
    assert_allclose(np.exp(made.log_reference), [[0.8, 0.2], [0.6, 0.4]], rtol=1e-15)
    assert made.reward.tolist() == [[0.0, 1.0]] * 2
    assert made.gold.tolist() == [[0.5, -1.0]] * 2
    assert np.exp(two_arm([0.0, 1.0]).log_reference).tolist() == [[1.0, 0.0], [0.0, 1.0]]
    for bad in (-0.1, 1.1, np.nan):
        with pytest.raises(OptionError, match="p: expected"):
            two_arm(bad)


def test_heavy_tail_is_a_power_law_up_to_its_top():
    made = heavy_tail(tail_index=2.5, top=100.0, n_answers=2000)
    reward, mass = made.reward[0], np.exp(made.log_reference[0])
    assert_allclose([reward[0], reward[-1]], [1.0, 100.0], rtol=1e-12)
    above = np.cumsum(mass[::-1])[::-1]
    inside = (reward > 1.5) & (reward < 20)
    fitted = np.polyfit(np.log(reward[inside]), np.log(above[inside]), 1)[0]
    assert_allclose(fitted, -2.5, rtol=0.01)
    assert made.gold[0, reward < 2].all()
    assert not made.gold[0, reward >= 2].any()
    for bad in ({"tail_index": 0.0}, {"top": 1.0}, {"n_answers": 1}):
        with pytest.raises(OptionError, match=next(iter(bad))):
            heavy_tail(**bad)


# ------------------------------------------------------------------------------------------------ random worlds

SIZE = {"n_prompts": 60, "n_answers": 300}
WORLDS = {family: [random_world(family, rng=np.random.default_rng(s), **SIZE) for s in range(6)] for family in FAMILIES}


def standard(made):
    """Scores within each prompt in standard units, and the shape of the whole."""
    return (made.reward - made.reward.mean(axis=1, keepdims=True)) / made.reward.std(axis=1, keepdims=True)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_a_world_with_gold_in_the_unit_interval(family):
    for made in WORLDS[family]:
        assert made.reward.shape == (60, 300)
        assert made.name == family
        assert 0 <= made.gold.min() < made.gold.max() <= 1
        assert np.ptp(np.exp(made.log_reference), axis=1).min() > 0  # answers are not equally likely


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_seed_gives_the_same_world(family):
    first, again, other = (
        random_world(family, rng=np.random.default_rng(s), n_prompts=2, n_answers=8) for s in (1, 1, 2)
    )
    for name in ("log_reference", "reward", "gold"):
        assert getattr(first, name).tobytes() == getattr(again, name).tobytes()
        assert getattr(first, name).tobytes() != getattr(other, name).tobytes()


def test_a_judge_may_score_in_any_unit():
    scales = [made.reward.std() for made in WORLDS["light"]]
    assert max(scales) / min(scales) > 2


def test_tails():
    """Six worlds of 18,000 scores each: a normal's skewness has SD 0.018, so 0.1 is 5 SD: false-alarm rate 6e-6.

    A gamma of shape 3 has skewness 1.15 and the power laws more than 2; fat tails in place of light ones are detected.
    """
    for made in WORLDS["light"]:
        assert abs(skew(standard(made), axis=None)) < 0.1
    for made in WORLDS["gamma"]:
        assert 0.9 < skew(standard(made), axis=None) < 2.2
    for made in WORLDS["power"]:
        assert standard(made).max() > 6
        assert np.isfinite(made.reward).all()


def test_ties_have_two_to_six_scores():
    levels = {np.unique(made.reward).size for made in WORLDS["ties"]}
    assert levels <= {2, 3, 4, 5, 6}
    assert len(levels) > 1


def test_rare_cheats_are_worthless_high_and_of_the_mass_stated():
    for made in WORLDS["rare-cheats"]:
        cheats = slice(0, 3)
        house = made.reward[:, 3:]
        assert not made.gold[:, cheats].any()
        mass = np.exp(made.log_reference[:, cheats]).sum(axis=1)
        assert_allclose(mass, mass[0], rtol=1e-9)
        assert 0.005 <= mass[0] <= 0.1
        height = (made.reward[:, cheats].mean() - house.mean()) / house.std()
        assert 2.9 < height < 6.1


def test_mixed_prompts_differ_in_mean_and_spread():
    for family, least in (("mixed-prompts", 0.3), ("light", None)):
        for made in WORLDS[family]:
            spreads = np.log(made.reward.std(axis=1)).std()
            means = made.reward.mean(axis=1).std() / made.reward.std(axis=1).mean()
            if least is None:
                assert spreads < 0.1
                assert means < 0.2
            else:
                assert spreads > least
                assert means > 1


def test_gold_hangs_on_the_reward_as_the_family_says():
    """Rank correlation over 18,000 answers has SD 0.0075 where there is none: 0.04 is 5 SD, false-alarm rate 4e-6."""
    for family in FAMILIES:
        for made in WORLDS[family]:
            rank = spearmanr(standard(made)[:, 3:], made.gold[:, 3:], axis=None).statistic
            if family == "gold-unrelated":
                assert abs(rank) < 0.04
            elif family == "gold-opposed":
                assert rank < -0.1
            elif family != "gold-peak":
                assert rank > 0.1


def test_gold_peak_is_inside_the_support():
    for made in WORLDS["gold-peak"]:
        score = standard(made)
        bins = np.linspace(-2, 3, 11)
        mean = [made.gold[(score > lo) & (score <= hi)].mean() for lo, hi in pairwise(bins)]
        peak = int(np.argmax(mean))
        assert 3 <= peak <= 7
        assert mean[peak] > mean[0] + 0.3
        assert mean[peak] > mean[-1] + 0.3


@pytest.mark.parametrize("bad", [{"family": "fat"}, {"n_prompts": 0}, {"n_answers": 7}])
def test_random_world_refuses(bad):
    options = {"family": "light", "rng": np.random.default_rng(0), **bad}
    with pytest.raises(OptionError, match=next(iter(bad))):
        random_world(**options)
