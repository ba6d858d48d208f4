"""A whole forecast: the shipped samples, labels on some rows, every unusual input, and what the JSON promises."""

import json
from operator import attrgetter

import numpy as np
import pytest
from by_hand import normal_samples, one_prompt, rectangle, word_problems
from scipy.special import stdtrit

from kleash import Samples, forecast
from kleash.errors import DataError, OptionError
from kleash.forecasting.forecast import _answers
from kleash.forecasting.grid import default_betas

ENDS = ("", "_se", "_lo", "_hi")
SETTINGS = {"reward_max": 100.0, "gold_min": 0.0}


def labelled(kept, **options):
    """The shipped samples with gold on some rows only."""
    samples = word_problems()
    gold = np.where(kept.ravel(), samples.gold, np.nan)
    return Samples.from_arrays(np.repeat(np.arange(120), 24), samples.reward, gold=gold, **options)


def strict(content):
    """Through JSON and back; NaN and infinities are errors."""
    return json.loads(json.dumps(content, allow_nan=False))


# -------------------------------------------------------------------------------------------------- the shipped samples


def test_plain_numbers_of_the_shipped_samples_to_the_last_digit():
    row = forecast(word_problems(), beta=[10.0], correction=False).frontier.rows()[0]
    assert (round(row["reward"], 2), round(row["gold"], 4), round(row["kl"], 4)) == (95.56, 0.8403, 0.4074)
    reference = forecast(word_problems(), beta=[10.0]).frontier.reference()
    assert (round(reference["reward"], 2), round(reference["gold"], 3)) == (79.01, 0.668)


def test_the_verdict_on_the_shipped_samples():
    """The drop from the peak to beta 2 is 0.012 with a paired error of 0.008: it is not shown."""
    for seed in (0, 1):
        result = forecast(word_problems(), seed=seed, **SETTINGS)
        verdict = result.verdict
        assert verdict.kind == "no-overoptimisation-seen"
        assert 5 < verdict.best_beta < 20
        assert verdict.best_beta <= verdict.safe_beta < 40
        assert verdict.loose_edge is None
        gain = result.frontier.gold.gain
        assert 0.12 < gain.value[result.frontier.beta == verdict.best_beta][0] < 0.22
        assert forecast(word_problems(), seed=seed, correction=False).verdict.kind == "no-overoptimisation-seen"


def two_of_24(seed):
    return np.argsort(np.random.default_rng(seed).random((120, 24)), axis=1) < 2


@pytest.mark.parametrize("correction", [True, False])
def test_gold_on_two_random_rows_of_24(correction):
    """Gold at beta 10 within two of its standard errors of .840 in at least 18 of 20 draws of the labels.

    The standard error is near 0.07, so this cannot tell small biases: the mean over draws is held to 0.03 as well
    (their own spread is 0.05, that of the mean 0.011). Normalising on the labelled rows alone gives .715.
    """
    golds = []
    for seed in range(20):
        rows = forecast(labelled(two_of_24(seed)), beta=[10.0], correction=correction).frontier.rows()
        golds.append((rows[0]["gold"], rows[0]["gold_se"]))
    value, se = np.array(golds).T
    assert (np.abs(value - 0.840) <= 2 * se).sum() >= 18
    assert abs(value.mean() - 0.840) < (0.05 if correction else 0.03)
    assert (se < 0.15).all()


def test_normalising_on_the_labelled_rows_is_the_mistake_that_is_not_made():
    """The planted mistake: it gives .715, four of its own standard errors of the mean below the truth."""
    samples = word_problems()
    r, g = samples.reward.reshape(120, 24), samples.gold.reshape(120, 24)
    wrong = []
    for seed in range(20):
        kept = two_of_24(seed)
        rows = [one_prompt(r[p][kept[p]], g[p][kept[p]], 10.0)[2] for p in range(120)]
        wrong.append(np.mean(rows))
    assert abs(np.mean(wrong) - 0.715) < 0.01


@pytest.mark.parametrize("correction", [True, False])
def test_gold_labelled_with_known_unequal_probabilities(correction):
    """Good answers labelled four times as often: right with the stated probabilities, refused or far off without."""
    chance = np.where(word_problems().gold.reshape(120, 24) > 0, 0.2, 0.05)
    stated, silent = [], []
    for seed in range(20):
        kept = np.random.default_rng(100 + seed).random((120, 24)) < chance
        row = forecast(
            labelled(kept, label_probability=chance.ravel()), beta=[10.0], correction=correction
        ).frontier.rows()[0]
        stated.append((row["gold"], row["gold_se"]))
        silent.append(forecast(labelled(kept), beta=[10.0], correction=correction).frontier.rows()[0]["gold"])
    far_off = [gold for gold in silent if gold is not None and abs(gold - 0.840) > 0.06]
    assert silent.count(None) >= 15
    value, se = np.array(stated).T
    assert (np.abs(value - 0.840) <= 2 * se).sum() >= 18
    assert abs(value.mean() - 0.840) < 0.06
    assert len(far_off) + silent.count(None) >= 18


def test_a_few_fully_labelled_prompts_are_enough_to_speak():
    some = np.random.default_rng(0).permutation(120) < 20
    kept = np.broadcast_to(some[:, None], (120, 24))
    result = forecast(labelled(kept), beta=[10.0, 50.0])
    assert result.n_gold == 480
    full = forecast(word_problems(), beta=[10.0, 50.0])
    np.testing.assert_allclose(result.frontier.reward.value, full.frontier.reward.value, rtol=1e-12)
    difference = np.abs(result.frontier.gold.value - full.frontier.gold.value)
    assert (difference < 3 * result.frontier.gold.se).all()
    assert (result.frontier.gold.se > full.frontier.gold.se).all()


# -------------------------------------------------------------------------------------------------- what is in the JSON


CONTRACT = {
    "": {
        "schema", "version", "source", "seed", "inputs", "n_prompts", "n_samples", "n_gold", "objective", "rows",
        "reference", "best_of_n", "horizon", "unseen", "answers", "verdict", "trainer",
    },
    "rows": {
        "beta", "reward", "reward_se", "reward_lo", "reward_hi", "gold", "gold_se", "gold_lo", "gold_hi", "kl", "kl_se",
        "kl_lo", "kl_hi", "gold_gain", "gold_gain_lo", "gold_gain_hi", "chi2", "ess", "n_gold_eff", "khat", "status",
    },
    "reference": {"reward", "reward_se", "gold", "gold_se"},
    "best_of_n": {"n", "reward", "gold", "kl", "kl_bound", "status"},
    "horizon": {"beta", "kl"},
    "unseen": {"confidence", "mass_below", "reward_max", "gold_min", "tolerance", "beta_floor", "losses"},
    "verdict": {
        "kind", "best_beta", "best_lo", "best_hi", "best_kl", "safe_beta", "safe_kl", "tight_edge", "loose_edge",
        "reasons", "needs",
    },
    "inputs": {"path", "sha256", "rows"},
    "answers": {"beta", "prompt", "answer", "reward", "gold"},
}  # fmt: skip


def test_json_has_every_key_of_the_contract():
    samples = word_problems()
    texts = [f"answer {i}" for i in range(samples.n_samples)]
    with_texts = Samples.from_arrays(np.repeat(samples.prompts, 24), samples.reward, gold=samples.gold, answer=texts)
    content = strict(forecast(with_texts, beta=[0.05, 10.0], **SETTINGS).to_dict())
    content["inputs"] = strict(forecast(samples, beta=[10.0]).to_dict())["inputs"]
    assert content.keys() >= CONTRACT[""]
    for name, keys in CONTRACT.items():
        if name:
            part = content[name]
            assert part, name
            for item in part if isinstance(part, list) else [part]:
                assert item.keys() >= keys, name
    assert content["unseen"]["losses"][0].keys() == {"beta", "loss"}
    assert content["unseen"]["confidence"] == 0.95
    assert (content["schema"], content["source"], content["objective"]) == (2, "forecast", "tilt")
    assert (content["n_prompts"], content["n_samples"], content["n_gold"]) == (120, 2880, 2880)
    assert content["inputs"][0]["rows"] == 2880
    assert content["trainer"] is None
    assert {row["status"] for row in content["rows"]} <= {"ok", "weak", "beyond"}


def test_rows_that_are_beyond_are_null_and_enter_nothing():
    samples = normal_samples(n_prompts=200)
    result = forecast(samples, beta=[1e-6, 0.01, 2.0, 100.0], reward_max=9.0, gold_min=0.0)
    content = strict(result.to_dict())
    assert [row["status"] == "beyond" for row in content["rows"]] == [True, True, False, False]
    for row in content["rows"][:2]:
        assert [row[name + end] for name in ("reward", "gold", "kl", "gold_gain") for end in ENDS] == [None] * 16
        assert row["chi2"] is None
    assert np.isnan(result.frontier.replicates.gold[:, :2]).all()
    assert np.isnan(result.frontier.replicates.reward[:, :2]).all()
    assert np.isfinite(result.frontier.replicates.kl[:, 2:]).all()
    assert content["horizon"] == {"beta": 2.0, "kl": content["rows"][2]["kl"]}
    assert content["verdict"]["best_beta"] == 100.0  # at 2 a class of answers at 9 that no sample shows is too much
    assert forecast(samples, beta=[2.0, 100.0]).verdict.best_beta == 2.0
    assert all(loss["loss"] > 0 for loss in content["unseen"]["losses"])


def test_columns_beside_the_estimates_by_hand():
    samples = word_problems()
    r = samples.reward.reshape(120, 24)
    w = np.exp((r - r.max(axis=1, keepdims=True)) / 20)
    w /= w.sum(axis=1, keepdims=True)
    squares = (w**2).sum(axis=1)
    row = forecast(samples, beta=[20.0]).frontier.rows()[0]
    assert row["ess"] == pytest.approx((1 / squares).mean(), rel=1e-12)
    assert row["chi2"] == pytest.approx((24 * squares - 1).mean(), rel=1e-12)
    assert row["n_gold_eff"] == pytest.approx((1 / squares).sum(), rel=1e-12)
    assert row["n"] == 120
    assert row["khat"] < 0


def test_gain_is_paired():
    """Gold minus the reference's gold within each prompt: its error is far below that of two independent means."""
    table = forecast(word_problems(), beta=[30.0]).frontier
    gain = table.gold.gain
    assert gain.value == pytest.approx(table.gold.value - table.gold.reference.value, abs=1e-12)
    assert gain.se < 0.7 * np.hypot(table.gold.se, table.gold.reference.se)
    draws = table.replicates.gold_gain()[:, 0]
    assert draws.std() == pytest.approx(float(gain.se[0]), rel=0.08)


def test_intervals_hold_the_estimates_and_end_at_the_declared_scale():
    samples = word_problems()
    wide = forecast(samples, beta=[0.5, 5.0, 50.0], reward_max=300.0, gold_min=-9.0).frontier
    cut = forecast(samples, beta=[0.5, 5.0, 50.0]).frontier  # the scores pile up at 100
    for table in (wide, cut):
        for part in (table.reward, table.gold, table.kl, table.gold.gain):
            assert (part.lo <= part.value).all()
            assert (part.value <= part.hi).all()
    assert wide.reward.hi.max() > 100.0
    np.testing.assert_array_equal(cut.reward.hi, np.minimum(wide.reward.hi, 100.0))
    seldom = rectangle(np.random.default_rng(0).random((9, 24)), np.eye(9, 24) * (np.arange(9) < 2)[:, None])
    assert forecast(seldom, beta=[5.0], gold_min=-9.0).frontier.gold.lo < 0.0
    assert forecast(seldom, beta=[5.0]).frontier.gold.lo == 0.0  # what most answers are worth


def test_the_same_seed_gives_the_same_bytes_and_another_nearly_the_same_numbers():
    first, again, other = (
        json.dumps(forecast(word_problems(), beta=[5.0, 20.0], seed=seed, **SETTINGS).to_dict()) for seed in (3, 3, 4)
    )
    assert first == again
    assert first != other
    for a, b in zip(json.loads(first)["rows"], json.loads(other)["rows"], strict=True):
        assert abs(a["gold"] - b["gold"]) < 0.2 * a["gold_se"]
        assert abs(a["reward"] - b["reward"]) < 0.2 * a["reward_se"]
        assert a["gold_lo"] == pytest.approx(b["gold_lo"], abs=0.5 * a["gold_se"])
    assert json.loads(first)["seed"] == 3


def test_order_of_prompts_and_samples_does_not_matter_for_plain_estimates():
    samples = word_problems()
    order = np.random.default_rng(0).permutation(samples.n_samples)
    prompt = np.repeat(np.arange(120), 24)
    mixed = Samples.from_arrays(prompt[order], samples.reward[order], gold=samples.gold[order])
    a, b = (forecast(s, beta=[2.0, 20.0], correction=False, **SETTINGS) for s in (samples, mixed))
    for name in ("reward", "gold", "kl", "gold.gain"):
        one, two = (attrgetter(name)(x.frontier) for x in (a, b))
        np.testing.assert_allclose(one.value, two.value, rtol=1e-12)
        np.testing.assert_allclose(one.se, two.se, rtol=1e-11)
    assert a.unseen.beta_floor == pytest.approx(b.unseen.beta_floor, rel=1e-9)
    assert [row.kl for row in a.best_of_n] == pytest.approx([row.kl for row in b.best_of_n], rel=1e-12)


def test_a_judge_in_other_units_gives_the_same_forecast():
    samples = word_problems()
    other = Samples.from_arrays(np.repeat(np.arange(120), 24), samples.reward / 100 - 3, gold=samples.gold)
    a = forecast(samples, beta=[2.0, 20.0], **SETTINGS)
    b = forecast(other, beta=[0.02, 0.2], reward_max=-2.0, gold_min=0.0)
    np.testing.assert_allclose(100 * (b.frontier.reward.value + 3), a.frontier.reward.value, rtol=1e-9)
    for name in ("gold", "kl", "gold.gain"):
        for end in ("value", "lo", "hi"):
            one, two = (attrgetter(f"{name}.{end}")(x.frontier) for x in (a, b))
            np.testing.assert_allclose(two, one, rtol=1e-8, atol=1e-10)
    assert 100 * b.unseen.beta_floor == pytest.approx(a.unseen.beta_floor, rel=1e-9)
    assert default_betas(other) * 100 == pytest.approx(default_betas(samples), rel=0.02)


def test_bias_that_may_be_left_widens_the_gain_as_it_does_the_gold():
    """At one beta, gold and gain are widened by the same; the rest of their intervals is the paired bootstrap's."""
    samples = word_problems()
    r, g = samples.reward.reshape(120, 24), samples.gold.reshape(120, 24)
    table = forecast(
        rectangle(r[:9], g[:9]), beta=[20.0], reward_max=100
    ).frontier  # few prompts: Student's t on both sides
    t = stdtrit(8, 0.975)
    left = [(part.hi - part.value - t * part.se)[0] for part in (table.gold, table.gold.gain)]
    assert left[0] == pytest.approx(left[1], rel=1e-9)
    assert left[0] > 1e-4
    np.testing.assert_allclose(table.gold.value - table.gold.lo, table.gold.hi - table.gold.value, rtol=1e-9)


def test_no_correction_is_the_plain_estimate_and_is_closer_to_the_reference():
    plain = forecast(word_problems(), beta=[5.0, 20.0], correction=False)
    corrected = forecast(word_problems(), beta=[5.0, 20.0])
    assert (plain.frontier.reward.value < corrected.frontier.reward.value).all()
    assert (plain.frontier.kl.value < corrected.frontier.kl.value).all()
    assert plain.frontier.provenance["correction"] is False


# ------------------------------------------------------------------------------------------------------------- the grid


def test_the_default_grid_reaches_from_no_effect_past_the_horizon():
    for samples in (word_problems(), normal_samples(), normal_samples(n_prompts=3, n_samples=4)):
        table = forecast(samples, correction=False).frontier
        assert table.beta.size >= 40
        assert (np.diff(table.beta) > 0).all()
        assert table.kl.value[-1] < 0.003
        assert table.status[0] != "ok"
        ratio = table.beta[1:] / table.beta[:-1]
        assert ratio.max() / ratio.min() < 1.1  # evenly spaced in the logarithm, to the three digits kept


@pytest.mark.parametrize("scale", [1e-170, 1e-12, 1e12, 1e150])
def test_the_grid_follows_the_unit_of_the_scores(scale):
    r = np.random.default_rng(0).normal(size=(20, 8))
    np.testing.assert_allclose(default_betas(rectangle(scale * r)) / scale, default_betas(rectangle(r)), rtol=0.02)


def test_betas_are_sorted_and_each_once():
    table = forecast(normal_samples(), beta=[5.0, 0.5, 5.0]).frontier
    assert table.beta.tolist() == [0.5, 5.0]


# ------------------------------------------------------------------------------------------------------- unusual inputs


def test_no_gold_at_all():
    result = forecast(normal_samples(gold=False))
    content = strict(result.to_dict())
    assert content["n_gold"] == 0
    assert result.verdict.kind == "cannot-tell"
    assert "quality was not measured" in result.verdict.reasons[0]
    usable = [row for row in content["rows"] if row["status"] != "beyond"]
    assert usable
    assert all(row["reward"] is not None and row["kl"] is not None for row in usable)
    names = [name + end for name in ("gold", "gold_gain") for end in ENDS]
    assert {row[name] for row in content["rows"] for name in [*names, "n_gold_eff"]} == {None}
    assert content["reference"]["gold"] is None
    assert "True quality" in str(result)


@pytest.mark.parametrize("n_samples", [3, 7, 24])
@pytest.mark.parametrize("value", [0.0, 0.1, 0.7, 1e6 + 0.1])
def test_all_scores_equal(value, n_samples):
    """Sums of 0.1 are not exact: rounding must not read as bias, nor as a score outside the data."""
    gold = np.arange(30 * n_samples) % 2
    result = forecast(rectangle(np.full((30, n_samples), value), gold), beta=[0.1, 1.0, 10.0])
    assert result.verdict.kind == "cannot-tell"
    assert "the same score" in result.verdict.reasons[0]
    rows = strict(result.to_dict())["rows"]
    assert {row["status"] for row in rows} <= {"ok", "weak"}
    for row in rows:
        assert row["reward"] == pytest.approx(value, rel=1e-12)
        assert row["kl"] == pytest.approx(0.0, abs=1e-13)
    assert len(forecast(rectangle(np.full((30, n_samples), value), gold)).frontier.beta) == 1


@pytest.mark.parametrize("value", [0.0, 0.1, 1e6 + 0.1])
def test_all_gold_equal(value):
    reward = np.random.default_rng(0).normal(size=(30, 24))
    result = forecast(rectangle(reward, np.full(reward.shape, value)))
    assert result.verdict.kind == "cannot-tell"
    assert "quality is the same for every answer" in result.verdict.reasons[0]
    assert set(result.frontier.status) == {"weak", "beyond"}  # labels that are all alike say nothing of rare ones


def test_one_prompt():
    samples = normal_samples(n_prompts=1, n_samples=400)
    result = forecast(samples, beta=[1.0, 4.0])
    assert "There is one prompt: intervals speak of its answers only, not of other prompts." in result.notes
    assert result.frontier.provenance["prompts"] == "fixed"
    fixed = forecast(samples, beta=[1.0, 4.0], prompts="fixed")
    np.testing.assert_array_equal(result.frontier.gold.hi, fixed.frontier.gold.hi)
    assert not any("one prompt" in note for note in fixed.notes)
    assert (result.frontier.gold.se > 0).all()


def test_fixed_prompts_leave_out_the_spread_between_them():
    samples = word_problems()
    sampled, fixed = (forecast(samples, beta=[20.0, 60.0], prompts=p) for p in ("sampled", "fixed"))
    np.testing.assert_allclose(fixed.frontier.gold.value, sampled.frontier.gold.value, rtol=1e-12)
    assert (fixed.frontier.gold.se < 0.5 * sampled.frontier.gold.se).all()
    textbook = np.sqrt((samples.gold.reshape(120, 24).var(axis=1, ddof=1) / 24).sum()) / 120
    assert float(fixed.frontier.gold.reference.se) == pytest.approx(textbook, rel=1e-9)
    np.testing.assert_allclose(
        fixed.frontier.replicates.gold_gain().std(axis=0), fixed.frontier.gold.gain.se, rtol=0.08
    )


def test_fixed_prompts_of_which_some_have_labels():
    """At a beta that hardly moves anything, gold's error is that of plain means over the labelled prompts."""
    samples = word_problems()
    gold = samples.gold.reshape(120, 24).copy()
    gold[50:] = np.nan
    table = forecast(rectangle(samples.reward.reshape(120, 24), gold), beta=[1e6], prompts="fixed").frontier
    textbook = np.sqrt((gold[:50].var(axis=1, ddof=1) / 24).sum()) / 50
    assert float(table.gold.reference.se) == pytest.approx(textbook, rel=1e-9)
    assert float(table.gold.se[0]) == pytest.approx(textbook, rel=1e-3)
    assert float(table.gold.value[0]) == pytest.approx(np.nanmean(gold), abs=1e-4)
    assert float(table.gold.gain.se[0]) < 1e-3 * textbook


def test_prompts_of_every_size_from_two_on():
    rng = np.random.default_rng(0)
    counts = np.tile([2, 3, 4, 5, 24], 12)
    prompt = np.repeat(np.arange(60), counts)
    reward = rng.normal(size=prompt.size)
    samples = Samples.from_arrays(prompt, reward, gold=(reward > 0).astype(float))
    for correction in (True, False):
        result = forecast(samples, correction=correction, reward_max=9.0, gold_min=0.0)
        content = strict(result.to_dict())
        assert content["n_samples"] == counts.sum()
        assert "weak" in {row["status"] for row in content["rows"]} or "ok" in {
            row["status"] for row in content["rows"]
        }
    row = forecast(samples, beta=[2.0], correction=False).frontier.rows()[0]
    groups = np.split(reward, np.cumsum(counts)[:-1])
    by_hand = np.mean([one_prompt(values, (values > 0).astype(float), 2.0) for values in groups], axis=0)
    np.testing.assert_allclose([row["reward"], row["kl"], row["gold"]], by_hand, rtol=1e-10)


def test_the_horizon_of_prompts_of_different_size_is_that_of_their_mean_logarithm():
    """At the tightest beta KL is the mean of log K; of prompts with 4 and 64 samples that is log 16, not log 64."""
    rng = np.random.default_rng(0)
    prompt = np.repeat(np.arange(60), np.tile([4, 64], 30))
    samples = Samples.from_arrays(prompt, rng.normal(size=prompt.size))
    tight, loose = forecast(samples, beta=[1e-6, 2.0], correction=False).frontier.status
    assert (tight, loose != "beyond") == ("beyond", True)


@pytest.mark.parametrize("n_samples", [2, 3, 4])
def test_very_few_samples_print_too(n_samples):
    result = forecast(normal_samples(n_samples=n_samples, n_prompts=40))
    assert "Best of 1" not in str(result)
    assert result.n_samples == 40 * n_samples
    strict(result.to_dict())


def test_some_prompts_without_labels():
    rng = np.random.default_rng(0)
    reward = rng.normal(size=(40, 12))
    gold = (reward + rng.normal(size=reward.shape) > 0).astype(float)
    gold[25:] = np.nan
    result = forecast(rectangle(reward, gold), beta=[3.0], correction=False)
    known = [one_prompt(reward[p], gold[p], 3.0)[2] for p in range(25)]
    assert result.frontier.gold.value[0] == pytest.approx(np.mean(known), rel=1e-12)
    assert result.frontier.gold.se[0] == pytest.approx(np.std(known, ddof=1) / 5, rel=1e-12)
    everyone = [one_prompt(values, values, 3.0)[0] for values in reward]
    assert result.frontier.reward.value[0] == pytest.approx(np.mean(everyone), rel=1e-12)


def test_labels_on_one_prompt_leave_the_judge_readable():
    reward = np.random.default_rng(0).normal(size=(40, 24))
    gold = np.full(reward.shape, np.nan)
    gold[3] = reward[3] > 0
    result = forecast(rectangle(reward, gold), beta=[3.0, 10.0])
    rows = strict(result.to_dict())["rows"]
    assert [row["status"] for row in rows] == ["weak", "weak"]
    assert all(row["reward_se"] > 0 and row["gold_se"] is None and row["gold_lo"] is None for row in rows)
    assert result.verdict.kind == "cannot-tell"


def test_few_labels_make_rows_weak():
    kept = np.zeros((120, 24), dtype=bool)
    kept[:9, 0] = True
    assert set(forecast(labelled(kept), beta=[30.0, 100.0]).frontier.status) == {"weak"}


def test_a_heavy_tail_closes_everything_and_says_why():
    rng = np.random.default_rng(0)
    reward = rng.pareto(1.5, size=(60, 24))
    result = forecast(rectangle(reward, rng.random(reward.shape)))
    assert set(result.frontier.status) == {"beyond"}
    assert result.verdict.kind == "cannot-tell"
    assert "heavy upper tail" in result.verdict.reasons[0]
    assert any("Clip or squash the reward" in note for note in result.notes)
    assert result.horizon is None
    content = strict(result.to_dict())
    assert content["horizon"] is None
    assert content["verdict"]["best_beta"] is None


@pytest.mark.parametrize("beta", [1e-300, 1e-3, 1e300])
@pytest.mark.parametrize("correction", [True, False])
def test_extreme_betas(beta, correction):
    result = forecast(normal_samples(), beta=[beta], correction=correction, reward_max=9.0, gold_min=0.0)
    row = strict(result.to_dict())["rows"][0]
    assert (row["status"] == "beyond") is (beta < 1)
    if beta > 1:
        assert row["kl"] == pytest.approx(0.0, abs=1e-13)
        assert row["gold_gain"] == pytest.approx(0.0, abs=1e-12)
    str(result)


def test_progress_is_called():
    steps = []
    forecast(word_problems(), beta=[10.0], progress=lambda done, total: steps.append((done, total)))
    assert steps[-1] == (2880, 2880)


def test_notes_of_the_samples_come_first():
    samples = Samples.from_arrays([0, 0, 1], [1.0, 2.0, 3.0])
    assert forecast(samples, beta=[1.0]).notes[0] == "1 prompt with a single sample was left out (1)"


# -------------------------------------------------------------------------------------------------------------- answers


def test_answers_shown_are_drawn_from_the_policy():
    """At a tight beta nearly always the prompt's best answer; over many draws the mean reward is the tilt's."""
    rng = np.random.default_rng(0)
    reward = rng.normal(size=(30, 24))
    texts = [f"{p}.{i}" for p in range(30) for i in range(24)]
    samples = rectangle(reward, reward, answer=texts)
    result = forecast(samples, beta=[1e-6, 1.0, 2.0, 1000.0])
    assert result.frontier.status[0] == "beyond"  # and nothing is shown of it
    shown = result.answers
    assert [row["beta"] for row in shown] == [1.0, 1.0, 2.0, 2.0, 1000.0, 1000.0]
    for a, b in zip(shown[::2], shown[1::2], strict=True):
        assert a["prompt"] != b["prompt"]
    for row in shown:
        p, i = map(int, row["answer"].split("."))
        assert row["prompt"] == str(p)
        assert row["reward"] == row["gold"] == reward[p, i]
    draws = [_answers(samples, result.frontier, None, np.random.default_rng(seed)) for seed in range(300)]
    for j, beta in enumerate((1.0, 2.0, 1000.0)):
        mean = np.mean([row["reward"] for rows in draws for row in rows[2 * j : 2 * j + 2]])
        truth = np.mean([one_prompt(values, values, beta)[0] for values in reward])
        assert abs(mean - truth) < 5 / np.sqrt(600)
    assert forecast(word_problems(), beta=[1.0]).answers == ()


# ---------------------------------------------------------------------------------------------------------- bad options


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"reward_max": 99.9}, "reward_max: expected at least 100, a score in the data, got 99.9"),
        ({"reward_max": np.nan}, "reward_max: expected a finite number"),
        ({"gold_min": 0.1}, "gold_min: expected at most 0, a gold in the data, got 0.1"),
        ({"gold_min": np.inf}, "gold_min: expected a finite number"),
        ({"tolerance": -0.1}, "tolerance: expected a finite number at least 0, got -0.1"),
        ({"tolerance": -0.1, "reward_max": 100, "gold_min": 0}, "tolerance: expected a finite number at least 0"),
        ({"tolerance": np.nan}, "tolerance: expected"),
        ({"beta": [0.0]}, "beta: expected a finite number above 0, got 0"),
        ({"beta": [1.0, -1.0]}, "beta: expected"),
        ({"beta": [np.nan]}, "beta: expected"),
        ({"beta": [np.inf]}, "beta: expected"),
        ({"beta": []}, "beta: expected"),
        ({"beta": [1e-320]}, "beta: expected a finite number at least 2.22507e-308"),
        ({"prompts": "few"}, "prompts: expected one of sampled, fixed"),
        ({"seed": -1}, "seed: expected a whole number of at least 0"),
        ({"seed": 1.5}, "seed: expected a whole number"),
    ],
)
def test_options_out_of_bounds(options, words):
    with pytest.raises(OptionError) as error:
        forecast(word_problems(), **options)
    assert str(error.value).startswith(words)
    assert "\n" not in str(error.value)


def test_limits_are_checked_without_gold_too():
    with pytest.raises(OptionError, match="gold_min"):
        forecast(normal_samples(gold=False), beta=[1.0], gold_min=np.nan)


def test_the_table_fits_eighty_columns_and_says_what_it_is():
    lines = str(forecast(word_problems(), **SETTINGS)).splitlines()
    assert max(map(len, lines)) <= 80
    text = " ".join(line.strip() for line in lines)
    assert "Forecast from 2,880 answers of the reference to 120 prompts" in text
    assert "14 of 48 betas" in text
    assert "Best of 8 without training: judge 92.57, quality 0.802, KL 0.727." in text
    assert "it cannot cost more than 0.05 (95 %)" in text
    assert "No over-optimisation seen." in text


def test_saved_json_is_the_dictionary(tmp_path):
    result = forecast(word_problems(), beta=[10.0])
    result.save(tmp_path / "f.json")
    assert json.loads((tmp_path / "f.json").read_text()) == strict(result.to_dict())
    assert result.to_frame()["gold"].to_list() == [result.frontier.gold.value[0]]


def test_gold_without_spread_is_nothing_to_read_whatever_the_floor():
    r = np.random.default_rng(1).normal(size=(40, 24))
    verdict = forecast(rectangle(r, np.ones_like(r)), reward_max=10.0, gold_min=0.0).verdict
    assert verdict.kind == "cannot-tell"
    assert "the same for every answer" in verdict.reasons[0]


def test_label_probabilities_that_cannot_be_are_refused():
    """A label stands for 1 / probability answers: told a third of the true chance, labels stand for three times all."""
    rng = np.random.default_rng(2)
    r = rng.normal(size=(100, 24))
    labelled = rng.random(r.shape) < 0.3
    gold = np.where(labelled, (rng.random(r.shape) < 0.5).astype(float), np.nan)
    prompt = np.repeat(np.arange(100), 24)
    for told, fine in ((0.3, True), (0.1, False), (0.9, False)):
        samples = Samples.from_arrays(
            prompt, r.ravel(), gold=gold.ravel(), label_probability=np.where(labelled, told, np.nan).ravel()
        )
        if fine:
            assert forecast(samples, beta=[3.0]).frontier.gold.value[0] == pytest.approx(0.5, abs=0.1)
            continue
        with pytest.raises(DataError, match="label_probability: expected labels that stand for all answers, got"):
            forecast(samples, beta=[3.0])


def test_declared_ends_of_the_scale_cut_the_references_interval_too():
    rng = np.random.default_rng(3)
    r = rng.normal(size=(20, 24)).clip(-3, 3)
    gold = (rng.random(r.shape) < 0.01).astype(float)
    table = forecast(rectangle(r, gold), beta=[3.0], gold_min=0.0, reward_max=3.0).frontier
    assert table.gold.reference.lo >= 0.0
    assert table.reference_reward.hi <= 3.0


def test_one_prompt_with_many_answers_can_show_a_loss():
    """5,000 answers to one prompt show the loss past the best; with one degree of freedom nothing would be shown."""
    rng = np.random.default_rng(4)
    r = rng.normal(size=(1, 5000))
    verdict = forecast(rectangle(r, np.exp(-((r - 0.6) ** 2) / 0.1))).verdict
    assert verdict.kind == "useful-range"
    assert verdict.loose_edge[0] > 1.0
