"""Logs of the kinds that were once answered wrongly: each right answer, its healthy twin, and others of its kind."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from simulated_logs import FULL, healthy_run, make, nemo, openrlhf, table, trl_dpo, trl_grpo, trl_ppo, verl

import kleash
from kleash.audit.declared import Declared
from kleash.audit.findings import Finding
from kleash.audit.logs import check_logs

CASES = Path(__file__).parents[2] / "data" / "kinds"


def of(*logs, **more) -> dict[str, Finding]:
    return {finding.code: finding for finding in check_logs(logs, **more)[1]}


def problems(*logs, **more):
    return [finding.code for finding in check_logs(logs, **more)[1] if finding.status == "problem"]


def run(seed=0, **more):
    return healthy_run(np.random.default_rng((51, seed)), **{"rows": 100, "noise": 0.05, "beta": 0.04, **more})


def with_raw(log, **columns):
    new = {key: np.broadcast_to(np.asarray(x, dtype=float), (log.rows,)).copy() for key, x in columns.items()}
    return replace(log, raw={**log.raw, **new}, decimals={**log.decimals, **dict.fromkeys(new, FULL)})


def with_kl(log, values, **spec):
    column = replace(log.kl[0], values=values, spec=replace(log.kl[0].spec, **spec))
    return replace(with_raw(log, **{log.kl[0].key: values}), kl=(column, *log.kl[1:]))


RIGHT = [
    ("growth-without-gain.json.gz", None, "KL_GROWTH", "problem", "score moved by"),
    ("first-row-step-10.json.gz", None, "STEP0_KL", "problem", "at step 10, the first logged"),
    ("kto-clamped-to-zero.log.gz", None, "RESUME", "cannot-tell", "clamped at 0"),
    ("no-kl-at-beta-0.csv", None, "NON_FINITE", "ok", "no KL in this run (beta is 0)"),
    ("no-kl-though-configured.log.gz", "no-kl-though-configured.yaml", "PLACEMENT", "problem", "no leash"),
    ("no-kl-though-configured.log.gz", "no-kl-though-configured-flat.yaml", "PLACEMENT", "problem", "no leash"),
    ("ms-swift-sampler-mismatch.jsonl.gz", None, "SAMPLER", "problem", "rollout_correction/kl is 0.33"),
    ("slime-arguments.log.gz", None, "PLACEMENT", "problem", "no effect with the advantage estimator grpo"),
    ("ms-swift-logging.jsonl.gz", None, "STEP0_KL", "problem", "KL 0.418 nats per token"),
    ("trl-warnings.log", None, "KL_NEGATIVE", "problem", "cannot be negative"),
    ("llamafactory-console.log", None, "KL_NEGATIVE", "problem", "cannot be negative"),
    ("loss-is-beta-kl.csv", "loss-is-beta-kl.toml", "LOSS", "ok", "nothing but beta KL: 0.1"),
]


@pytest.mark.parametrize(("name", "config", "code", "status", "words"), RIGHT, ids=[f"{r[0]} {r[1]}" for r in RIGHT])
def test_the_right_answer(name, config, code, status, words):
    report = kleash.check(CASES / name, config=None if config is None else CASES / config)
    (finding,) = (f for f in report.findings if f.code == code)
    assert (finding.status, words in finding.message) == (status, True), finding.message
    others = {"EXPLOSION"} if name == "trl-warnings.log" else set()  # its ratio of 12.26 is above TRL's threshold
    assert {f.code for f in report.problems} == ({code, *others} if status == "problem" else set())


@pytest.mark.parametrize(
    ("name", "config"),
    [("healthy-nan-for-missing.csv", None), ("healthy-nan-for-missing.jsonl.gz", None),
     ("healthy-kto-clamped.json.gz", None), ("healthy-k1-noise.json", "healthy-k1-noise.yaml")],
)  # fmt: skip
def test_healthy_cases_have_no_problem(name, config):
    assert kleash.check(CASES / name, config=None if config is None else CASES / config).problems == ()


# ------------------------------------------------------------------------------------------------------- false ok


@pytest.mark.parametrize("power", [0.0, 0.1, 0.2])
@pytest.mark.parametrize("top", [0.3, 2.0])
def test_growth_that_buys_next_to_nothing(power, top):
    """The score keeps ``(kl / kl in the middle) ** power``: a root of the KL pays, hardly anything does not."""
    t = np.linspace(0, 1, 100)
    noise = np.random.default_rng(1).normal(size=(2, 100))
    kl = top * np.exp(8 * (t - 1)) * np.exp(0.05 * noise[0])
    cheap = 0.3 + 0.3 * np.minimum(t / 0.5, 1) + 0.005 * noise[1] + 0.02 * power * t
    paid = 0.1 * np.sqrt(kl / kl[50]) + 0.005 * noise[1]
    log = with_kl(trl_grpo(run(), old=False), kl)
    assert "KL_GROWTH" in problems(replace(log, reward=cheap))
    assert of(replace(log, reward=paid))["KL_GROWTH"].status == "ok"


@pytest.mark.parametrize("turn", [0.2, 0.35, 0.45])
@pytest.mark.parametrize("writer", [trl_grpo, verl, nemo])
def test_a_runaway_before_the_middle(writer, turn):
    t = np.linspace(0, 1, 100)
    noise = np.random.default_rng(2).normal(size=(2, 100))
    shape = np.minimum(np.exp(25 * (t - turn)), 1.0) * np.exp(0.05 * noise[0])
    still = 0.5 + 0.01 * noise[1]
    for top, status in ((3.0, "problem"), (0.2, "ok")):
        log = replace(with_kl(writer(run()), top * shape), reward=still)
        assert of(log)["KL_GROWTH"].status == status, top


@pytest.mark.parametrize("key", ["actor/total_loss", "train/total_loss", "total_loss"])
def test_a_kl_that_is_only_measured_is_no_placement(key):
    """ROLL logs kl_loss whether or not it is in the total: the identity decides."""
    log = verl(run(), config={})
    raw = {k: v for k, v in log.raw.items() if k not in ("actor/loss", "actor/kl_coef")}
    log = replace(log, raw=raw, coefficient=None)
    without = of(with_raw(log, **{key: raw["actor/pg_loss"]}))["PLACEMENT"]
    assert "in the loss" not in without.message
    inside = of(with_raw(log, **{key: raw["actor/pg_loss"] + 0.04 * log.kl[0].values}))["PLACEMENT"]
    assert inside.message.startswith("in the loss")
    stated = replace(with_raw(log, **{key: raw["actor/pg_loss"]}), config={"use_kl_loss": True, "kl_loss_coef": 0.1})
    assert of(stated)["PLACEMENT"].status == "problem"


@pytest.mark.parametrize("config", [{"use_kl_loss": True}, {"use_kl_loss": True, "kl_coef": 0.01},
                                    {"use_kl_in_reward": True}])  # fmt: skip
def test_a_switch_that_is_on_wants_a_kl_in_the_log(config):
    bare = verl(run(), in_loss=False, config=config)
    assert problems(bare) == ["PLACEMENT"]
    assert problems(verl(run(), in_loss=False, config={"use_kl_loss": False})) == []
    assert (
        problems(
            verl(run(), in_loss=False, config={**config, "kl_loss_coef": 0.0, "kl_coef": 0.0, "kl_ctrl.kl_coef": 0.0})
        )
        == []
    )


@pytest.mark.parametrize("since", [75, 92, 95])
@pytest.mark.parametrize(
    ("writer", "key"),
    [
        (trl_grpo, "completions/clipped_ratio"),
        (verl, "response_length/clip_ratio"),
        (openrlhf, "rollout/truncated_rate"),
    ],
)
def test_answers_that_end_until_they_do_not(writer, key, since):
    late = np.where(np.arange(100) < since, 0.05, 0.99)
    log = writer(run())
    assert "ENDINGS" in problems(with_raw(log, **{key: late}))
    assert of(with_raw(log, **{key: late[::-1]}))["ENDINGS"].status == "ok"
    single = np.where(np.arange(100) % 3 == 0, 0.97, 0.3)
    assert of(with_raw(log, **{key: single}))["ENDINGS"].status == "ok"


@pytest.mark.parametrize("since", [75, 95])
def test_end_tokens_that_stop(since):
    log, t = trl_ppo(run()), np.arange(100)
    stopped = with_raw(log, **{"val/num_eos_tokens": np.where(t < since, 6.0, 0.0)})
    assert "ENDINGS" in problems(stopped)
    rare = with_raw(log, **{"val/num_eos_tokens": np.where(t < since, t % 2, 0.0)})  # half a token a row: chance
    assert ("ENDINGS" in problems(rare)) is (since == 75)
    assert of(log)["ENDINGS"].status == "ok"


@pytest.mark.parametrize("shape", ["from the start", "the last fifth", "at once"])
def test_a_score_that_falls(shape):
    t = np.linspace(0, 1, 100)
    noise = 0.01 * np.random.default_rng(3).normal(size=100)
    shapes = {"the last fifth": np.clip((t - 0.8) * 5, 0, 1), "at once": 1.0 * (t > 0.9), "from the start": t}
    fall = shapes[shape]
    log = trl_grpo(run(), old=False)
    assert "COLLAPSE" in problems(replace(log, reward=0.6 - 0.5 * fall + noise))
    assert of(replace(log, reward=0.6 - 0.01 * fall + noise))["COLLAPSE"].status == "ok"


# --------------------------------------------------------------------------------------------------- false alarms


@pytest.mark.parametrize("key", ["loss", "grad_norm", "kl"])
def test_a_number_gone_wrong_among_missing_ones(key):
    """Evaluation rows are padded with NaN; a NaN in a training row is none of that."""
    rows = 60
    evaluation = np.arange(rows) % 6 == 5
    train = {name: np.where(evaluation, np.nan, 0.01 + 0.001 * np.arange(rows)) for name in ("loss", "grad_norm", "kl")}
    train |= {"eval_loss": np.where(evaluation, 0.1, np.nan), "eval_kl": np.where(evaluation, 0.1, np.nan)}

    def log(columns):
        undefined = {k: tuple(np.flatnonzero(np.isnan(v)).tolist()) for k, v in columns.items()}
        return make("trl-grpo", columns, undefined=undefined)

    assert of(log(train))["NON_FINITE"].status == "ok"
    bad = {**train, key: np.where(np.arange(rows) == 20, np.nan, train[key])}
    found = of(log(bad))["NON_FINITE"]
    assert (found.status, found.evidence["rows"]) == ("problem", {key: 1})


@pytest.mark.parametrize("steps", [(40,), (10, 60), (12, 40, 71, 90)])
@pytest.mark.parametrize(("writer", "key"), [(trl_grpo, "grad_norm"), (verl, "actor/grad_norm"), (nemo, "grad_norm")])
def test_steps_that_the_loss_scaler_skips(writer, key, steps):
    some, lasting = np.ones(100), np.ones(100)
    some[list(steps)], lasting[40:] = np.inf, np.inf
    log = writer(run())
    assert of(with_raw(log, **{key: some}))["NON_FINITE"].status == "ok"
    assert of(with_raw(log, **{key: lasting}))["NON_FINITE"].status == "problem"
    assert of(with_raw(log, loss=some))["NON_FINITE"].status == "problem"
    undefined = {key: steps}
    nan = replace(with_raw(log, **{key: np.where(np.isinf(some), np.nan, some)}), undefined=undefined)
    assert of(nan)["NON_FINITE"].status == "problem"
    for said in ({"fp16": True}, {"precision": "float16"}):
        assert of(replace(nan, config={**(log.config or {}), **said}))["NON_FINITE"].status == "ok"
    assert of(replace(nan, config={**(log.config or {}), "bf16": True}))["NON_FINITE"].status == "problem"


@pytest.mark.parametrize("clamped", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_an_estimate_that_changes_sign_is_held_to_no_factor(clamped, seed):
    """k1 of few answers with D = .5 nats: 1 of 100 would be allowed, none of 3 has a problem."""
    rng = np.random.default_rng((4, seed))
    log = openrlhf(run(seed))
    kl = (0.5 + np.sqrt(2 * 0.5 / 4) * rng.normal(size=100)) / np.asarray(log.length)
    kl[0] = 0.0
    noisy = with_kl(log, np.maximum(kl, 0) if clamped else kl, estimator="k1", placement="reward")
    assert {"RESUME", "KL_JUMP", "KL_SPIKE", "KL_GROWTH", "KL_NEGATIVE"} & set(problems(noisy)) == set()
    lost = 0.1 * (np.arange(100) < 50) + 0.005 * rng.normal(size=100)
    assert "RESUME" in problems(with_kl(log, lost, estimator="k1", placement="reward"))


# -------------------------------------------------------------------------------------------------- wrong causes


@pytest.mark.parametrize(
    ("writer", "beta", "named"),
    [(trl_grpo, 0.04, True), (verl, 0.04, True), (nemo, 0.04, True), (trl_grpo, 0.0, False), (trl_dpo, 0.1, False)],
)
def test_an_overflow_is_no_cause_where_nothing_can_overflow(writer, beta, named):
    late = np.where(np.arange(100) == 50, np.nan, 1.0)
    log = writer(run()) if beta else writer(run(), config={"beta": 0.0})
    broken = replace(with_raw(log, grad_norm=late), undefined={"grad_norm": (50,)})
    assert ("k3" in " ".join(of(broken)["NON_FINITE"].causes)) is named


@pytest.mark.parametrize("shape", [lambda t: t, lambda t: np.clip((t - 0.8) * 5, 0, 1), lambda t: 1.0 * (t > 0.9)])
def test_no_higher_beta_where_there_is_no_reference(shape):
    fallen = 0.6 - 0.5 * shape(np.linspace(0, 1, 100))
    leashed = replace(trl_grpo(run(), old=False), reward=fallen)
    assert "raise beta" in of(leashed)["COLLAPSE"].fix
    free = replace(leashed, kl=(), raw={k: v for k, v in leashed.raw.items() if k != "kl"}, config={"beta": 0.0})
    assert "raise beta" not in of(free)["COLLAPSE"].fix


# --------------------------------------------------------------------------------------------------- never judged


@pytest.mark.parametrize(
    ("key", "value", "honest"),
    [("policy/approxkl_avg", 4.0, 0.05), ("actor/ppo_kl", 30.0, 0.02), ("grad_norm", 1e4, 8.0), ("loss", 2000.0, 0.5),
     ("ratio", 12.26, 1.3)],
)  # fmt: skip
def test_updates_that_explode(key, value, honest):
    log = trl_grpo(run())
    noise = 1 + 0.1 * np.random.default_rng(5).random(100)
    assert "EXPLOSION" in problems(with_raw(log, **{key: np.where(np.arange(100) < 60, 0.5 * honest, value) * noise}))
    assert "EXPLOSION" not in problems(with_raw(log, **{key: honest * noise}))
    assert "EXPLOSION" not in problems(with_raw(log, **{key: np.where(np.arange(100) == 60, value, honest * noise)}))


@pytest.mark.parametrize(
    ("start", "end", "status"),
    [(0.4, 6.0, "problem"), (-0.3, -0.3, "problem"), (0.3, -2.0, "problem"), (2.5, 0.2, "ok"), (0.4, 0.9, "ok")],
)
def test_an_entropy_below_0_or_running_away(start, end, status):
    log = trl_grpo(run())
    x = np.linspace(start, end, 100)
    assert of(replace(with_raw(log, entropy=x), entropy=x))["ENTROPY"].status == status
    assert of(log)["ENTROPY"].status == "not-run"


@pytest.mark.parametrize("writer", [nemo, openrlhf, table])
def test_a_gain_without_a_kl(writer):
    honest_run, still = run(), run()
    still.kl = 1e-7 + 0 * still.kl
    for one in (honest_run, still):
        one.reward = 0.3 + 0.4 * np.linspace(0, 1, 100) + 0.01 * np.random.default_rng(6).normal(size=100)
    honest_run.kl = 0.02 * np.linspace(0, 1, 100)
    assert "GAIN_BOUND" in problems(writer(still))
    assert of(writer(honest_run))["GAIN_BOUND"].status == "ok"
    wide = replace(writer(still), reward=100 * still.reward)
    assert of(wide)["GAIN_BOUND"].status == "cannot-tell"
    assert "GAIN_BOUND" in problems(wide, declared=Declared(reward_min=0, reward_max=100))


@pytest.mark.parametrize(
    ("column", "value"), [("rewards/chosen", 1.4), ("rewards/rejected", -0.8), ("rewards/margins", 0.5)]
)
def test_dpo_whose_rewards_do_not_start_near_0(column, value):
    log = trl_dpo(run())
    start = np.linspace(0.001, 2.0, 100)
    assert of(with_raw(log, **{column: start}))["STEP0_KL"].status == "ok"
    assert problems(with_raw(log, **{column: value + start})) == ["STEP0_KL"]
    late = with_raw(log, **{column: value + start})
    assert of(replace(late, step=10 * late.step))["STEP0_KL"].status == "cannot-tell"


# ----------------------------------------------------------------------------------------- first steps and notes


@pytest.mark.parametrize("every", [2, 5, 10])
def test_a_first_row_that_comes_late(every):
    """At lr 1e-6 no ten steps lead to .4 nats a token; at 1e-4, or where the KL goes on rising, they may."""
    log = trl_grpo(run(), old=False)
    level = 0.4 + 0.03 * np.random.default_rng(7).normal(size=100)
    late = with_raw(replace(with_kl(log, level), step=every * np.arange(1.0, 101)), learning_rate=1e-6)
    assert problems(late) == ["STEP0_KL"]
    assert of(with_raw(late, learning_rate=1e-4))["STEP0_KL"].status == "cannot-tell"
    assert of(with_kl(late, level * np.arange(0.5, 50.5, 0.5)))["STEP0_KL"].status == "cannot-tell"
    low = with_kl(late, level / 40)
    assert of(low)["STEP0_KL"].status == "ok"  # what is wrong from the start does not go in so few steps
    assert of(replace(low, step=low.step + 20))["STEP0_KL"].status == "cannot-tell"


def test_rows_are_not_called_steps_and_a_unit_that_nobody_knows_is_not_none():
    kl = np.ones(100)
    kl[60:] = 0.001
    log = nemo(run())
    found = of(replace(with_kl(log, kl), numbered=True))["RESUME"]
    assert "row 61" in found.message
    assert "step" not in found.message
    assert "step 61" in of(with_kl(log, kl))["RESUME"].message
