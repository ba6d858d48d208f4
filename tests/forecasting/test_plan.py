"""More, by number: what would decide, how far answers reach, how wide intervals get, and the verdict that says so."""

import dataclasses
import json
import math

import numpy as np
import pytest
from by_hand import normal_samples, word_problems
from click.testing import CliRunner

import kleash.forecasting.forecast as forecast_module
import kleash.forecasting.plan as plan_module
from kleash import Samples, forecast
from kleash.cli import cli


def noisy(n_prompts=40, n_samples=12, share=0.5, slope=0.05, seed=3):
    """A judge that tells little of a noisy gold, half of it labelled: no gain can be shown."""
    rng = np.random.default_rng(seed)
    reward = rng.normal(size=(n_prompts, n_samples))
    gold = slope * reward + rng.normal(size=reward.shape)
    gold[rng.random(reward.shape) >= share] = np.nan
    return Samples.from_arrays(np.repeat(np.arange(n_prompts), n_samples), reward.ravel(), gold=gold.ravel())


def test_where_nothing_is_decided_the_needs_say_how_many():
    result = forecast(noisy(), beta=[1.0, 2.0, 8.0], tolerance=0.1)
    plan = result.plan
    assert result.verdict.kind == "cannot-tell"
    row = result.frontier.beta.tolist().index(plan.beta)
    gain = result.frontier.gold.gain
    assert plan.half_width == pytest.approx((gain.hi[row] - gain.lo[row]) / 2)
    assert plan.target == pytest.approx(max(gain.value[row], 0.1 - gain.value[row]))
    assert plan.target < plan.half_width
    assert plan.prompts > 40
    assert f"about {plan.prompts:,} prompts, where there are 40" in result.verdict.needs[0]
    if plan.labels is not None:
        assert f"{plan.labels:,} gold labels on these answers" in result.verdict.needs[0]


def test_as_many_prompts_as_planned_decide():
    """Worlds drawn again at the planned size: on the mean of six the half-width is the target within 25 %."""
    plans = [forecast(noisy(seed=seed), beta=[2.0], tolerance=0.1).plan for seed in range(20)]
    plans = [plan for plan in plans if plan.prompts is not None and plan.prompts < 800][:6]
    assert len(plans) == 6
    ratios = []
    for seed, plan in enumerate(plans):
        again = forecast(noisy(n_prompts=plan.prompts, seed=100 + seed), beta=[2.0], tolerance=0.1).plan
        ratios.append(again.half_width / plan.target)
    assert np.mean(ratios) == pytest.approx(1.0, abs=0.25)


def test_widths_fall_as_roots_of_prompts_and_as_labels_no_further_than_prompts_allow():
    plan = forecast(noisy(share=0.25), beta=[2.0], tolerance=0.1).plan
    by_prompts = [row.half_width for row in plan.widths if row.prompts != 40]
    assert [row.prompts for row in plan.widths[:5]] == [40, 80, 160, 320, 640]
    np.testing.assert_allclose(np.divide(by_prompts[1:], by_prompts[:-1]), math.sqrt(0.5), rtol=0.06)
    by_labels = [row for row in plan.widths if row.prompts == 40]
    assert by_labels[-1].labels == 480  # all of them
    assert (np.diff([row.half_width for row in by_labels]) < 0).all()
    assert 0.4 < by_labels[-1].half_width / by_labels[0].half_width < 0.7


def test_reach_starts_at_what_is_sure_and_grows_with_answers():
    result = forecast(word_problems(), reward_max=100, gold_min=0)
    reach = result.plan.reach
    assert [row.answers for row in reach] == [24, 48, 96, 192, 384]
    assert reach[0].beta == result.frontier.beta[result.frontier.status == "ok"][0]
    assert (np.diff([row.beta for row in reach]) <= 0).all()
    assert reach[-1].beta < reach[0].beta
    assert (np.array([row.kl for row in reach]) <= 0.5 * np.log([row.answers / 2 for row in reach]) + 1e-9).all()


def test_a_safe_beta_for_want_of_answers_says_how_many_in_all():
    samples = normal_samples(n_prompts=60, n_samples=24)
    few = forecast(samples, beta=[2.0, 4.0, 8.0], reward_max=6.0, gold_min=-60.0, tolerance=0.1)
    assert few.verdict.safe_beta is None
    needed = few.plan.all_answers
    assert needed > samples.n_samples
    assert any(f"about {needed:,} answers in all" in need for need in few.verdict.needs)


def test_other_objectives_and_fixed_prompts_have_no_plan():
    assert forecast(normal_samples(), beta=[2.0], prompts="fixed").plan is None
    assert forecast(normal_samples(), beta=[5.0], objective="group-standardised").plan is None


def test_the_command_prints_it_and_the_json_has_it(tmp_path):
    rows = noisy()
    path = tmp_path / "few.csv"
    gold = ["" if np.isnan(g) else g for g in rows.gold]
    lines = [f"p{i // 12},{r},{g}" for i, (r, g) in enumerate(zip(rows.reward, gold, strict=True))]
    path.write_text("prompt,reward,gold\n" + "\n".join(lines))
    command = ["forecast", str(path), "--beta", "2", "--tolerance", "0.1"]
    told = CliRunner().invoke(cli, [*command, "--plan"]).stdout
    assert "Reach, by answers to each prompt" in told
    assert "Width of the gain at beta 2" in told
    assert "would decide." in told
    out = CliRunner().invoke(cli, [*command, "--format", "json"]).stdout
    content = json.loads(out)["plan"]
    assert content["prompts"] > 40
    assert content["widths"][0].keys() == {"prompts", "answers", "labels", "half_width"}
    assert content["reach"][0].keys() == {"answers", "beta", "kl"}


def test_a_row_that_is_not_sure_for_any_reason_needs_more_answers_than_there_are(monkeypatch):
    seen = []
    monkeypatch.setattr(forecast_module, "plan_of", lambda *told: seen.append(told))
    forecast(normal_samples(1, n_prompts=40, n_samples=16), beta=[1.0, 4.0, 16.0])
    samples, labels, table, frontier, *_, reward_max = seen[0]
    assert (frontier.status == "ok").any()
    doubted = dataclasses.replace(frontier, status=np.full(frontier.beta.size, "weak"))
    assert (plan_module._answers_needed(samples, labels, table, doubted, reward_max) > 16).all()
