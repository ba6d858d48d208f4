"""Honest logs with odd numbers have no problem, and the fault that resembles them still has."""

import math
from dataclasses import replace

import numpy as np
import pytest
from simulated_logs import (
    FULL,
    PER_TOKEN_LOSS,
    PER_TOKEN_REWARD,
    healthy_run,
    make,
    nemo,
    openrlhf,
    slime,
    table,
    take,
    trl_dpo,
    trl_grpo,
    verl,
)

from kleash.audit.declared import Declared
from kleash.audit.logs import check_logs
from kleash.audit.logs.coefficient import recover
from kleash.audit.logs.facts import facts_of
from kleash.audit.logs.ratio_fit import fit_ratio
from kleash.audit.logs.settings import settings_of
from kleash.audit.logs.sweep import known_beta
from kleash.audit.logs.view import view

IS = "sampling/importance_sampling_ratio/"


def the(code, *logs, **more):
    found = {f.code: f for f in check_logs(logs, **more)[1]}
    return found[code]


def problems(*logs, **more):
    return [f.code for f in check_logs(logs, **more)[1] if f.status == "problem"]


def run(seed=0, **more):
    return healthy_run(np.random.default_rng((41, seed)), rows=80, noise=0.05, **more)


def with_raw(log, **columns):
    new = {key: np.broadcast_to(np.asarray(x, dtype=float), (log.rows,)).copy() for key, x in columns.items()}
    return replace(log, raw={**log.raw, **new}, decimals={**log.decimals, **dict.fromkeys(new, FULL)})


def with_kl(log, values, **spec):
    column = replace(log.kl[0], values=values, spec=replace(log.kl[0].spec, **spec))
    return replace(with_raw(log, **{log.kl[0].key: values}), kl=(column, *log.kl[1:]))


@pytest.mark.parametrize(
    ("least", "status"), [(-7e-10, "ok"), (-6e-5, "cannot-tell"), (-3e-3, "cannot-tell"), (-5e-3, "problem")]
)
def test_k3_below_zero_by_rounding(least, status):
    """exp(x) - x - 1 of 2,000 tokens with log ratios of 1e-4 is -7e-10 in float32, and -6e-5 in bfloat16."""
    log = trl_grpo(run())
    kl = np.asarray(log.kl[0].values).copy()
    kl[0] = least
    assert the("KL_NEGATIVE", with_kl(log, kl)).status == status
    if least > -1e-6:  # a policy that hardly moves: there is no larger row whose last digit would hide it
        assert the("KL_NEGATIVE", with_kl(log, np.where(np.arange(80) == 0, least, 1e-9))).status == status
    if least < -1e-6:  # a square is never rounded to below 0
        assert the("KL_NEGATIVE", with_kl(log, kl, estimator="k2")).status == "problem"


def test_a_log_that_begins_in_the_middle_has_no_first_step():
    log = trl_grpo(run())
    late = with_kl(log, np.asarray(log.kl[0].values) + 0.05)
    assert the("STEP0_KL", late).status == "problem"
    assert the("STEP0_KL", replace(late, numbered=True)).status == "cannot-tell"
    assert the("STEP0_KL", replace(log, numbered=True)).status == "ok"


def test_step_one_of_a_table_may_follow_updates():
    log = table(run())
    late = with_kl(log, np.asarray(log.kl[0].values) + 2 * np.asarray(log.length))
    assert the("STEP0_KL", late).status == "cannot-tell"
    assert the("STEP0_KL", replace(late, step=late.step - 1)).status == "problem"


def test_ratios_that_are_left_out_of_their_mean_are_no_truncated_sampling():
    """TRL's default: products over answers, those above 3 set to 0. Noise of .05 in 500 tokens, nothing else."""
    rng = np.random.default_rng(42)
    sd = 0.05 * math.sqrt(500)
    weights = np.exp(sd * rng.normal(size=(80, 64)) - sd**2 / 2)
    kept = np.where(weights > 3, 0.0, weights)
    honest = with_raw(trl_grpo(run()), **{IS + "mean": kept.mean(axis=1), IS + "max": kept.max(axis=1)})
    assert kept.mean() < 0.8
    assert the("TRUNCATION", honest).status == "cannot-tell"
    assert the("TRUNCATION", with_raw(trl_grpo(run()), **{IS + "mean": kept.mean(axis=1)})).status == "cannot-tell"
    cut = with_raw(trl_grpo(run()), **{IS + "mean": 0.95 + 1e-3 * rng.normal(size=80), IS + "max": 1.6})
    assert the("TRUNCATION", cut).status == "problem"


def test_groups_without_spread_matter_where_there_is_a_kl():
    log = with_raw(trl_grpo(run(), config={}), frac_reward_zero_std=0.7)
    assert the("ZERO_VARIANCE", log).status == "problem"
    free = replace(log, kl=(), raw={k: v for k, v in log.raw.items() if k != "kl"})
    assert the("ZERO_VARIANCE", free).status == "ok"
    mixed = with_raw(log, **{"baseline_reward/pct_mixed": 0.7})  # NeMo-RL counts the groups that have a spread
    assert the("ZERO_VARIANCE", mixed).evidence["share"] == pytest.approx(0.3)


def test_a_reward_function_that_applied_to_no_answer_is_nan():
    some = np.where(np.arange(80) % 3 == 0, 0.5, np.nan)
    where = tuple(np.flatnonzero(np.isnan(some)).tolist())
    keys = ("rewards/code/mean", "rewards/code/std", "eval_rewards/code/mean")
    log = with_raw(trl_grpo(run()), **dict.fromkeys(keys, some))
    assert problems(replace(log, undefined=dict.fromkeys(keys, where))) == []
    for key in ("reward", "loss", "grad_norm", "rewards/chosen"):
        assert the("NON_FINITE", with_raw(log, **{key: np.inf})).status == "problem"
        assert the("NON_FINITE", replace(with_raw(log, **{key: some}), undefined={key: where})).status == "problem"


def test_k1_in_the_loss_of_nemo_rl_pulls_since_it_carries_the_ratio():
    config = {"reference_policy_kl_penalty": 0.01, "use_kl_in_reward": False}
    for estimator, status in (("k1", "cannot-tell"), ("k3", "ok")):
        log = nemo(run(), config={**config, "reference_policy_kl_type": estimator})
        assert the("GRADIENT", log).status == status
    assert the("GRADIENT", verl(run(), config={"use_kl_loss": True, "kl_loss_type": "k1"})).status == "problem"


def stopping(writer, *, sign=1.0, answers=256, rows=80):
    """A policy that un-learns to stop at once: answers of 5 or of 400 tokens, their share moves, nothing else does."""
    rng = np.random.default_rng(43)
    share = 0.5 * np.exp(-np.arange(rows) / 40)[:, None]
    short = rng.random((rows, answers)) < share
    total = np.where(short, np.log(share / 0.5), np.log((1 - share) / 0.5))
    length = np.where(short, 5, 400)
    exact = (share * np.log(share / 0.5) + (1 - share) * np.log((1 - share) / 0.5)).mean()
    assert exact > 0.2  # the KL is large, and its mean per token is below 0
    reward = np.linspace(0.3, 0.5, rows)
    after = reward - sign * 0.01 * total.mean(axis=1)
    mean, size = (total / length).mean(axis=1), length.mean(axis=1)
    assert mean.mean() < -0.02
    if writer == "verl":
        columns = {"critic/score/mean": reward, "critic/rewards/mean": after, "actor/reward_kl_penalty": mean,
                   "actor/reward_kl_penalty_coeff": np.full(rows, 0.01), "response_length/mean": size}  # fmt: skip
        fields = {"reward": "critic/score/mean", "length": "response_length/mean",
                  "coefficient": "actor/reward_kl_penalty_coeff"}  # fmt: skip
        return make("verl", columns, kl=[("actor/reward_kl_penalty", PER_TOKEN_REWARD, "reference")], fields=fields)
    columns = {"train/reward": reward, "train/return": after, "train/kl": mean, "train/response_length": size}
    spec = PER_TOKEN_REWARD | {"placement": "unknown"}
    fields = {"reward": "train/reward", "length": "train/response_length"}
    return make("openrlhf", columns, kl=[("train/kl", spec, "reference")], fields=fields)


@pytest.mark.parametrize("writer", ["verl", "openrlhf"])
def test_a_mean_of_answers_means_may_be_negative(writer):
    log = stopping(writer)
    assert problems(log) == []
    assert the("KL_NEGATIVE", log).status == "cannot-tell"
    assert the("SIGN", log).status == "cannot-tell"
    far = with_kl(log, np.full(log.rows, -0.9))  # below -ln 2 a token no mean of honest answers lies
    assert the("KL_NEGATIVE", far).status == "problem"
    exact = make("trl-rloo", {"kl": np.asarray(log.kl[0].values), "completions/mean_length": log.length},
                 kl=[("kl", PER_TOKEN_REWARD, "reference")], fields={"length": "completions/mean_length"})  # fmt: skip
    assert the("KL_NEGATIVE", exact).status == "problem"  # TRL takes the mean over all tokens


def test_a_quotient_that_moves_ninefold_is_no_coefficient():
    """Terms of both signs cancel in the mean of means and not in the sum: its rows stay above 0 all the same."""
    log = verl(run(beta=0.01), in_loss=False, in_reward=True)
    score, paid = np.asarray(log.raw["critic/score/mean"]), np.asarray(log.raw["critic/rewards/mean"])
    for most, status in ((200.0, "cannot-tell"), (4.0, "problem")):
        times = np.geomspace(min(4.0, most), most, 80)
        moved = with_raw(log, **{"critic/rewards/mean": score - times * (score - paid)})
        assert the("COEFFICIENT", replace(moved, coefficient=np.full(80, 0.01))).status == status


def test_runs_of_unlike_length_are_compared_where_the_shorter_ends():
    whole = run(beta=0.01)
    short = verl(healthy_run(np.random.default_rng(44), rows=12, noise=0.02, beta=0.001))
    kl = np.asarray(short.kl[0].values)
    long = verl(whole)
    near = np.concatenate([0.5 * kl, np.linspace(0.5, 20, whole.rows - 12) * kl[-1]])
    finding = the("SWEEP", replace(short, run="a"), replace(with_kl(long, near), run="b"))
    assert finding.status != "problem"
    finding = the("SWEEP", replace(short, run="a"), replace(with_kl(long, 8 * near), run="b"))
    assert finding.status == "problem"


def test_gold_at_its_ceiling_cannot_rise():
    log = trl_grpo(run())
    rng = np.random.default_rng(45)
    rising = np.linspace(0.2, 0.6, log.rows) + 0.01 * rng.normal(size=log.rows)
    for level, status in ((0.985, "cannot-tell"), (0.4, "problem"), (0.0, "problem")):
        gold = np.clip(level + 0.003 * rng.normal(size=log.rows), 0, 1)
        assert the("HACKING", replace(log, reward=rising, gold=gold)).status == status, level
    assert the("HACKING", replace(log, reward=rising, gold=rising)).status == "cannot-tell"


def test_a_unit_that_nobody_said_is_not_stated():
    log = table(run())
    assert facts_of(view(log))["logged_kl_unit"] == "nats per answer"
    guessed = replace(log, kl=(replace(log.kl[0], unit_known=False),))
    assert facts_of(view(guessed))["logged_kl_unit"] is None
    assert view(guessed).per_answer.size == 0
    assert the("KL_UNIT", guessed).status == "cannot-tell"


def test_numbers_past_every_float_are_null_in_json():
    from kleash._files import dump_json

    columns = {"actor/pg_loss": np.full(30, 1e300), "actor/loss": np.full(30, 1.5e308),
               "actor/kl_loss": np.full(30, 1e-300), "critic/score/mean": np.full(30, 0.1)}  # fmt: skip
    log = make("verl", columns, kl=[("actor/kl_loss", PER_TOKEN_LOSS, "reference")],
               fields={"reward": "critic/score/mean"}, step=10.0 ** np.arange(0, 300, 10))  # fmt: skip
    inputs, findings, _ = check_logs([log])
    dump_json([item.to_dict() for item in inputs] + [finding.to_dict() for finding in findings])


@pytest.mark.parametrize(
    ("writer", "key"),
    [(trl_grpo, "completions/clipped_ratio"), (verl, "response_length/clip_ratio"),
     (slime, "rollout/truncated_ratio"), (openrlhf, "rollout/truncated_rate")],
)  # fmt: skip
def test_cut_answers_are_counted_under_every_trainers_name(writer, key):
    assert the("ENDINGS", writer(run())).status == "not-run"
    assert the("ENDINGS", with_raw(writer(run()), **{key: 0.2})).status == "ok"
    assert the("ENDINGS", with_raw(writer(run()), **{key: 0.99})).status == "problem"


@pytest.mark.parametrize("rows", [5, 20, 100])
def test_an_interval_of_rows_that_disagree_holds_the_coefficient(rows):
    """A policy term that is not quite 0: 5 of 100 may miss at five rows, none at twenty."""
    inside, width = 0, 0.0
    for seed in range(100):
        rng = np.random.default_rng((46, seed))
        kl = 0.01 + 0.1 * rng.random(rows)
        fit = fit_ratio(0.04 * kl + 2e-5 * rng.normal(size=rows), kl, target_error=1e-9, regressor_error=1e-9)
        inside += fit.lo <= 0.04 <= fit.hi
        width = max(width, fit.hi / fit.lo - 1)
    assert inside >= (90 if rows == 5 else 100)
    assert width < 0.1


def test_a_penalty_that_most_rows_show_to_be_another_than_the_logged_one():
    log = verl(run(beta=0.01), in_loss=False, in_reward=True)
    score, paid = np.asarray(log.raw["critic/score/mean"]), np.asarray(log.raw["critic/rewards/mean"])
    for start, wrong in ((20, True), (60, False)):  # three quarters of the rows, or one
        times = np.where(np.arange(80) < start, 1, 8)
        found = the("COEFFICIENT", with_raw(log, **{"critic/rewards/mean": score - times * (score - paid)}))
        assert (found.status == "problem") == wrong, found.message


def test_a_kl_that_rises_tenfold_at_a_restart():
    log = verl(run())
    kl = 0.01 * np.ones(80)
    again = replace(log, segment=(np.arange(80) >= 40).astype(np.int64), step=np.r_[1:41, 31:71].astype(float))
    for times, status in ((30, "problem"), (5, "ok")):
        late = np.where(np.arange(80) >= 40, times * kl, kl)
        assert the("RESUME", with_kl(again, late)).status == status


@pytest.mark.parametrize(("before", "status"), [(2, "ok"), (3, "problem")])
def test_a_fall_without_restart_needs_three_rows_before_it(before, status):
    assert the("RESUME", with_kl(verl(run()), np.where(np.arange(80) < before, 0.05, 0.001))).status == status


@pytest.mark.parametrize(("back", "status"), [(8, "ok"), (9, "problem")])
def test_a_jump_is_held_against_the_largest_of_eight_rows(back, status):
    kl = np.where(np.arange(80) < 40, 0.002, 0.03)
    kl[40 - back] = 0.05
    assert the("KL_JUMP", with_kl(verl(run()), kl)).status == status


def test_a_kl_of_another_name_in_the_loss_is_set_against_the_difference_of_losses():
    log = verl(run(beta=0.01))
    column = replace(log.kl[0], key="my_kl")
    raw = {column.key if key == log.kl[0].key else key: values for key, values in log.raw.items()}
    renamed = replace(
        log, kl=(column, *log.kl[1:]), raw=raw, decimals={**log.decimals, "my_kl": log.decimals[log.kl[0].key]}
    )
    found = recover(view(renamed))
    assert found.identity == "(actor/loss - actor/pg_loss) / my_kl"
    assert found.fit.value == pytest.approx(0.01, rel=1e-3)


def test_the_last_loss_is_named_where_dpo_stays_at_ln_2():
    still = with_raw(trl_dpo(run()), **{"loss": np.r_[np.full(79, 0.6931), 0.6936], "rewards/margins": 0.0})
    assert "(0.694)" in the("KL_ZERO", still).message


def test_an_agreement_of_few_rows_is_said_to_fall_where_all_of_them_fall():
    short = take(table(run()), np.arange(4))
    falling = the("AGREEMENT", with_raw(short, within_auroc=[0.9, 0.86, 0.83, 0.8]))
    assert (falling.status, falling.evidence["change"]) == ("cannot-tell", pytest.approx(-0.1))
    assert "0.9 to 0.8, falling in all 4 rows" in falling.message
    for other in ([0.9, 0.86, 0.87, 0.8], [0.9, 0.895, 0.89, 0.885]):
        assert "too few rows" in the("AGREEMENT", with_raw(short, within_auroc=other)).message


def test_an_agreement_that_wanders_within_its_noise():
    rng = np.random.default_rng(47)
    alarms = 0
    for _ in range(40):
        wander = with_raw(table(run()), within_auroc=0.75 + 0.15 * rng.normal(size=80))
        alarms += the("AGREEMENT", wander).status == "problem"
    assert alarms == 0


def test_a_target_that_fits_the_kl_in_neither_unit_is_no_slip_of_units():
    log = verl(run(), in_loss=False, in_reward=True)
    late = float(np.median(view(log).per_answer.values[40:]))
    for target, slip in ((late, True), (20 * late, False)):
        settings = {**log.config, "kl_ctrl.type": "adaptive", "target_kl": target, "horizon": 10000}
        message = the("CONTROLLER", replace(log, config=settings)).message
        assert ("fits the KL in nats per answer" in message) == slip, message


def test_two_rewards_that_differ_by_their_last_digit_are_equal():
    score = np.round(np.linspace(0.3, 0.5, 80), 3)
    log = verl(run(), in_loss=False)
    for gap, where in ((1e-3, "none"), (1e-2, "reward")):
        near = with_raw(log, **{"critic/score/mean": score, "critic/rewards/mean": score - gap})
        near = replace(
            near, decimals={**near.decimals, "critic/score/mean": 3, "critic/rewards/mean": 3}, kl=(), config={}
        )
        near = replace(near, coefficient=np.full(80, 0.01), raw={k: v for k, v in near.raw.items() if "kl" not in k})
        assert facts_of(view(near))["placement"] == where


def test_a_coefficient_that_moves_is_no_row_of_a_frontier():
    log = verl(run(beta=0.01))
    assert known_beta(view(replace(log, coefficient=np.full(80, 0.01)))) == 0.01
    assert known_beta(view(replace(log, coefficient=np.linspace(0.01, 0.02, 80), config={}))) is None


def test_slimes_coefficient_in_the_reward_counts_with_some_estimators_only():
    for kind, on in (("grpo", False), ("gspo", False), ("ppo", True), ("reinforce_plus_plus", True)):
        settings = settings_of("slime", {"kl_coef": 0.1, "advantage_estimator": kind}, Declared())
        assert (settings.in_reward, settings.inert is None) == (on, on)
