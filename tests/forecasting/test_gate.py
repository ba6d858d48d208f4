"""Which rows are refused, one test per rule; how heavy a tail is, against arviz-stats and on known tails."""

import numpy as np
import pytest
from arviz_stats.base import array_stats
from by_hand import rectangle
from scipy.optimize import brentq
from scipy.special import polygamma

from kleash import Samples
from kleash.forecasting import gate, tail
from kleash.forecasting.gate import row_status, tail_status
from kleash.forecasting.tail import Tail, fit_generalised_pareto, residuals, score_tail

LIGHT = Tail(shape=-0.1, se=0.05, n=100)
MAYBE = Tail(shape=gate.HEAVY, se=0.05, n=100)
HEAVY = Tail(shape=gate.HEAVY + 0.2, se=0.1, n=100)
UNKNOWN = Tail(shape=np.nan, se=np.nan, n=5)


def status_of(**changes):
    """Status of three betas; each change is a column or a value for the middle one, the others are in order."""
    columns = {
        "drift": np.zeros((3, 3)),
        "se": np.full((3, 3), 0.1),
        "change": np.full((3, 3), 0.3),
        "kl": np.array([0.4, 0.2, 0.1]),
        "reward": np.array([1.5, 1.2, 1.1]),
        "gold": np.array([0.7, 0.6, 0.55]),
        "n_gold_eff": np.array([50.0, 60.0, 70.0]),
    }
    rest = {
        "reward_range": (0.0, 2.0),
        "gold_range": (0.0, 1.0),
        "log_samples": np.log(24),
        "tail": LIGHT,
        "corrected": True,
    }
    for name, value in changes.items():
        if name in columns and np.ndim(value) == 0:
            columns[name] = columns[name].copy()
            columns[name][..., 1] = value
        elif name in columns:
            columns[name][:, 1] = value
        else:
            rest[name] = value
    status = row_status(**columns, **rest)
    assert status[0] == status[2]
    return status[1], status[0]


# --------------------------------------------------------------------------------------------------- one rule at a time


def test_a_row_in_order_is_ok():
    assert status_of() == ("ok", "ok")


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"kl": -0.001}, "beyond"),
        ({"kl": -1e-15}, "ok"),  # rounding at the reference
        ({"reward": -0.01}, "beyond"),
        ({"reward": 2.01}, "beyond"),
        ({"gold": -0.11}, "beyond"),
        ({"gold": 1.11}, "beyond"),
        ({"gold": 1.05}, "weak"),
        ({"reward": 2.0}, "ok"),  # the best answer of every prompt is the judge's top
        ({"kl": np.log(24) - 1 + 0.01}, "beyond"),  # the horizon
        ({"kl": np.log(24) - 1 - 0.01}, "weak"),
        ({"kl": np.log(24 / 2) / 2 + 0.01}, "weak"),  # fewer than two effective samples to a prompt
        ({"kl": np.log(24 / 2) / 2 - 0.01}, "ok"),
        ({"kl": 1.5, "log_samples": np.log(64)}, "ok"),
        ({"n_gold_eff": 9.9}, "weak"),
        ({"n_gold_eff": 10.1}, "ok"),
        ({"n_gold_eff": 0.0}, "weak"),
    ],
)
def test_rules_about_one_row(change, status):
    assert status_of(**change) == (status, "ok")


@pytest.mark.parametrize("quantity", range(3))
@pytest.mark.parametrize("sign", [1, -1])
def test_drift_of_any_quantity_counts_in_its_standard_errors(quantity, sign):
    def with_drift(errors, **options):
        drift = np.zeros(3)
        drift[quantity] = sign * errors * 0.1
        return status_of(drift=drift, **options)

    assert with_drift(gate.OK_DRIFT - 0.01) == ("ok", "ok")
    assert with_drift(gate.OK_DRIFT + 0.01) == ("weak", "ok")
    assert with_drift(gate.USABLE_DRIFT - 0.01) == ("weak", "ok")
    assert with_drift(gate.USABLE_DRIFT + 0.01) == ("beyond", "ok")
    assert with_drift(100.0, corrected=False) == ("weak", "ok")  # the interval is widened by all of it


def test_with_a_tiny_error_drift_counts_in_twentieths_of_the_change_from_the_reference():
    """With thousands of prompts the standard error falls below any bias."""
    for change in (2.0, -2.0):
        assert status_of(se=1e-6, change=change, drift=0.99 * gate.OK_DRIFT * 0.1) == ("ok", "ok")
        assert status_of(se=1e-6, change=change, drift=1.01 * gate.OK_DRIFT * 0.1) == ("weak", "ok")
        assert status_of(se=1e-6, change=change, drift=1.01 * gate.USABLE_DRIFT * 0.1) == ("beyond", "ok")


def test_without_error_any_drift_is_too_much_and_none_is_fine():
    assert status_of(se=0.0, change=0.0) == ("ok", "ok")
    assert status_of(se=0.0, change=0.0, drift=1e-6) == ("beyond", "ok")


def test_no_gold_is_no_reason():
    three = np.full(3, 0.1)
    status = row_status(
        drift=np.zeros((2, 3)),
        se=np.full((2, 3), 0.1),
        change=np.zeros((2, 3)),
        kl=three,
        reward=three,
        reward_range=(0.0, 1.0),
        log_samples=3.0,
        gold=None,
        gold_range=(0.0, 0.0),
        n_gold_eff=None,
        tail=LIGHT,
    )
    assert status.tolist() == ["ok"] * 3


def test_the_tail_closes_all_rows_or_makes_them_weak():
    assert status_of(tail=HEAVY) == ("beyond", "beyond")
    assert status_of(tail=HEAVY, corrected=False) == ("beyond", "beyond")
    assert status_of(tail=MAYBE) == ("weak", "weak")
    assert status_of(tail=UNKNOWN) == ("weak", "weak")
    assert status_of(tail=MAYBE, kl=-1.0) == ("beyond", "weak")  # a weak tail opens nothing


@pytest.mark.parametrize(
    ("shape", "se", "status"),
    [
        (gate.HEAVY - 0.06, 0.05, "ok"),
        (gate.HEAVY - 0.04, 0.05, "weak"),
        (gate.HEAVY + 0.04, 0.05, "weak"),
        (gate.HEAVY + 0.06, 0.05, "beyond"),
        (-1.0, 0.0, "ok"),
        (np.nan, np.nan, "weak"),
    ],
)
def test_a_tail_is_light_or_heavy_by_a_standard_error(shape, se, status):
    assert tail_status(Tail(shape=shape, se=se, n=100)) == status


# ------------------------------------------------------------------------------------------- the generalised Pareto fit


@pytest.mark.parametrize("shape", [-0.5, -0.1, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("size", [20, 95, 1000])
def test_the_fit_is_that_of_arviz_without_its_prior(shape, size):
    excess = np.sort((np.random.default_rng(size).random(size) ** -shape - 1) / shape)
    with_prior, _ = array_stats._gpdfit(excess)
    without = ((size + 10) * with_prior - 10 * 0.5) / size
    assert fit_generalised_pareto(excess) == pytest.approx(without, abs=1e-10)
    assert fit_generalised_pareto(1e-9 * excess[::-1]) == pytest.approx(without, abs=1e-9)  # any unit, any order


@pytest.mark.parametrize("shape", [-0.5, -0.2, 0.2, 0.33, 0.67])
def test_the_fit_finds_the_shape_of_known_quantiles(shape):
    chance = (np.arange(1, 2001) - 0.5) / 2000
    assert fit_generalised_pareto(((1 - chance) ** -shape - 1) / shape) == pytest.approx(shape, abs=0.02)


# ---------------------------------------------------------------------------------------------------- residuals by hand


def test_residuals_of_prompts_of_one_spread_use_the_common_variance():
    """Spreads that differ less than chance lets them: d_0 is infinite and every answer is judged by the same SD."""
    r = np.array([[0.0, 1.0, 2.0, 3.0, 4.0], [10.0, 14.0, 11.0, 12.0, 13.0]])
    squares = np.full(2, 10.0)
    centre = np.log(squares / 4) - polygamma(0, 2.0) + np.log(2.0)
    common = np.exp(centre.mean())
    expected = (r - r.mean(axis=1, keepdims=True)) * 5 / 4 / np.sqrt(common * 5 / 4)
    np.testing.assert_allclose(residuals(rectangle(r)), expected.ravel(), rtol=1e-12)


def test_residuals_by_hand_where_prompts_differ():
    rng = np.random.default_rng(0)
    counts = np.array([4, 9, 30, 3, 12, 7])
    groups = [rng.normal(size=k) * s for k, s in zip(counts, np.exp(2 * rng.normal(size=6)), strict=True)]
    samples = Samples.from_arrays(np.repeat(np.arange(6), counts), np.concatenate(groups))
    df = counts - 1
    variance = np.array([values.var(ddof=1) for values in groups])
    logs = np.log(variance) - polygamma(0, df / 2) + np.log(df / 2)
    excess = logs.var(ddof=1) - polygamma(1, df / 2).mean()
    assert excess > 0
    half = brentq(lambda x: polygamma(1, x) - excess, 1e-3, 1e4, xtol=1e-12)
    prior_df, prior = 2 * half, np.exp(logs.mean() + polygamma(0, half) - np.log(half))
    expected = []
    for values in groups:
        for i, value in enumerate(values):
            rest = np.delete(values, i)
            moderated = (prior_df * prior + (rest.size - 1) * rest.var(ddof=1)) / (prior_df + rest.size - 1)
            expected.append((value - rest.mean()) / np.sqrt(moderated * values.size / rest.size))
    np.testing.assert_allclose(residuals(samples), expected, rtol=1e-8)


def test_residuals_leave_out_what_has_no_spread_and_pairs():
    r = Samples.from_arrays([0] * 3 + [1] * 2 + [2] * 4, [1, 2, 4, 0, 5, 7, 7, 7, 7])
    assert residuals(r).size == 3
    assert residuals(rectangle(np.ones((3, 4)))).size == 0


def test_residuals_do_not_depend_on_units_or_on_the_mean_of_a_prompt():
    r = np.random.default_rng(1).normal(size=(20, 8))
    first = residuals(rectangle(r))
    shift = 100 * np.random.default_rng(2).normal(size=(20, 1))
    np.testing.assert_allclose(residuals(rectangle(1e-4 * (r + shift))), first, rtol=1e-8)


# ---------------------------------------------------------------------------------------------------------- whole tails


def shares(make, n=40):
    """Share of data sets that are ok, weak, beyond."""
    statuses = [tail_status(score_tail(rectangle(make(np.random.default_rng(seed))))) for seed in range(n)]
    return [statuses.count(status) / n for status in ("ok", "weak", "beyond")]


def spread_out(rng):
    return np.exp(0.5 * rng.normal(size=(60, 1)))


@pytest.mark.parametrize(
    "make",
    [lambda rng: rng.normal(size=(60, 24)), lambda rng: 5 + spread_out(rng) * rng.normal(size=(60, 24))],
    ids=["normal", "normal, prompts of lognormal spread"],
)
def test_light_tails_are_seldom_doubted_and_never_closed(make):
    """40 data sets; a rule that reads prompts of different spread as a heavy tail closes most of the second kind."""
    ok, _, beyond = shares(make)
    assert ok >= 0.7
    assert beyond == 0


@pytest.mark.parametrize("index", [1.5, 3.0])
def test_power_laws_are_closed_or_weak_and_never_ok(index):
    """40 data sets of 60 x 24; a standardised score of K = 24 cannot exceed 4.7 and would pass for light."""
    ok, _, beyond = shares(lambda rng: spread_out(rng) * rng.pareto(index, size=(60, 24)))
    assert ok == 0
    assert beyond >= 0.7


def test_a_scale_that_ends_has_no_tail():
    rng = np.random.default_rng(0)
    uniform = score_tail(rectangle(rng.random((60, 24))))
    assert uniform.shape + uniform.se < 0
    heavy = np.minimum(rng.pareto(1.5, size=(60, 24)), 8.0)
    at_top = int((heavy == 8.0).sum())
    assert at_top >= 10
    assert score_tail(rectangle(heavy)) == Tail(shape=-1.0, se=0.0, n=at_top)


def test_the_ceiling_takes_ten_answers():
    rng = np.random.default_rng(1)
    r = rng.pareto(1.5, size=(60, 24))
    order = np.argsort(r.ravel())
    for shared, seen in ((tail._CEILING - 1, False), (tail._CEILING, True)):
        with_top = r.ravel().copy()
        with_top[order[-shared:]] = r.max()
        assert (score_tail(rectangle(with_top.reshape(r.shape))).shape == -1.0) is seen


def test_the_number_fitted_and_its_standard_error():
    r = np.random.default_rng(2).exponential(size=(50, 40))
    found = score_tail(rectangle(r))
    assert found.n == np.ceil(3 * np.sqrt(2000))
    assert found.se == pytest.approx((1 + found.shape) / np.sqrt(found.n), rel=1e-12)
    few = score_tail(rectangle(r[:4, :24]))  # 96 answers: M = 20
    assert few.n == 20
    assert np.isfinite(few.shape)


def test_too_few_answers_for_a_fit():
    unknown = score_tail(rectangle(np.random.default_rng(3).normal(size=(4, 20))))
    assert np.isnan([unknown.shape, unknown.se]).all()
    assert unknown.n < 20
    same = np.zeros((40, 5))
    same[:19, 0] = 1 + np.arange(19)  # of the 40 largest only 19 lie above the threshold
    assert score_tail(rectangle(same)).n == 19
    assert tail_status(score_tail(rectangle(same))) == "weak"


def test_prompt_means_do_not_hide_a_power_law():
    """Means of spread 10 make the raw scores look normal; the residuals are Pareto of index 3. 20 data sets."""
    verdicts = []
    for seed in range(20):
        rng = np.random.default_rng([seed, 44])
        r = rng.pareto(3.0, size=(100, 24)) + 10 * rng.standard_normal((100, 1))
        verdicts.append(tail_status(score_tail(rectangle(r))))
    assert verdicts.count("ok") <= 1


def test_answers_near_the_declared_top_have_seen_the_end_of_the_scale():
    rng = np.random.default_rng(6)
    r = np.where(rng.random((60, 24)) < 0.02, 96 + rng.random((60, 24)), rng.normal(10, 1, size=(60, 24)))
    assert score_tail(rectangle(r), reward_max=100.0).shape == -1.0
    assert score_tail(rectangle(r), reward_max=1000.0) == score_tail(rectangle(r))
    assert score_tail(rectangle(r)).shape != -1.0


def test_drift_too_small_to_matter_is_let_pass_whatever_the_standard_error():
    """With 10,000 prompts the standard error is below any bias: 4 % of the gain passes, 6 % is weak, 20 % is beyond."""
    tiny = 1e-6
    for share, status in ((0.04, "ok"), (0.06, "weak"), (0.2, "beyond")):
        assert status_of(se=tiny, drift=share * 0.3)[0] == status
