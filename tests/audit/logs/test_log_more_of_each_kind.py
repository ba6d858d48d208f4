"""Further inputs of kinds that were once answered wrongly: other trainers, other formats, other sizes, with twins."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from simulated_logs import healthy_run, openrlhf, table, trl_grpo, verl
from test_log_kinds import of, problems, with_kl, with_raw

import kleash

NEGATIVE = (
    "UserWarning: KL divergence is starting to become negative: {:.2f} - this might be a precursor for failed training."
)


def run(seed=0):
    return healthy_run(np.random.default_rng((73, seed)), rows=100, noise=0.05, beta=0.04)


def codes(path: Path, text: str, **told) -> dict[str, str]:
    path.write_text(text)
    return {finding.code: finding.status for finding in kleash.check(path, **told).findings}


@pytest.mark.parametrize("lead", ["", "/opt/trl/trainer/ppo_trainer.py:1200: ", "[rank0]: 2024-05-01 10:00:00 "])
def test_warnings_alone(tmp_path, lead):
    lines = [f"{i}it [0:33, 9.1s/it]\n{lead}{NEGATIVE.format(-3.2 - i)}\n" for i in range(4)]
    assert codes(tmp_path / "a.log", "".join(lines))["KL_NEGATIVE"] == "problem"


@pytest.mark.parametrize(
    "row", ["{{'loss': {0}, 'reward': {1}, 'epoch': {2}}}", '{{"loss": {0}, "reward": {1}, "epoch": {2}}}']
)
@pytest.mark.parametrize("last", [False, True])
def test_rows_of_a_console_among_warnings(tmp_path, row, last):
    rows = [row.format(round(0.4 - 0.005 * i, 4), round(0.1 + 0.01 * i, 4), round(0.1 * (i + 1), 2)) for i in range(20)]
    said = [NEGATIVE.format(-2.5 - 0.1 * i) for i in range(20)]
    pairs = zip(rows, said, strict=True) if last else zip(said, rows, strict=True)
    text = "".join(f"{a}\n{b}\n" for a, b in pairs)
    assert codes(tmp_path / "a.log", text)["KL_NEGATIVE"] == "problem"


@pytest.mark.parametrize("empty", ["nan", "", "null"])
def test_no_kl_where_beta_is_0(tmp_path, empty):
    rng = np.random.default_rng(3)
    numbers = [(i + 1, 0.3 + 0.003 * i + 0.02 * rng.normal(), 0.01 * rng.normal()) for i in range(60)]
    if empty == "null":
        rows = [{"step": s, "reward": r, "kl": None, "loss": x, "completions/mean_length": 90.0} for s, r, x in numbers]
        text, name = "".join(json.dumps(row) + "\n" for row in rows), "a.jsonl"
    else:
        text = "step,reward,kl,loss\n" + "".join(f"{s},{r:.4f},{empty},{x:.4f}\n" for s, r, x in numbers)
        name = "a.csv"
    found = codes(tmp_path / name, text, beta=0.0)
    assert "problem" not in found.values()
    assert found["NON_FINITE"] == "ok"


@pytest.mark.parametrize("estimator", ["grpo", "gspo", "cispo"])
def test_a_coefficient_without_effect_with_the_estimator(tmp_path, estimator):
    step = "step {0}: {{'train/loss': 0.007, 'train/pg_loss': 0.007, 'train/grad_norm': 0.1, 'train/step': {0}}}"
    rollout = "rollout {0}: {{'rollout/raw_reward': 0.3, 'rollout/kl': 0.0, 'rollout/step': {0}}}"
    rows = "".join(f"{rollout.format(i)}\n{step.format(i)}\n" for i in range(30))
    head = "  advantage_estimator ....... {}\n  use_kl_loss ........ False\n  kl_coef ....... 0.01\n"
    assert codes(tmp_path / "a.log", head.format(estimator) + rows)["PLACEMENT"] == "problem"
    assert codes(tmp_path / "b.log", head.format("ppo") + rows)["PLACEMENT"] != "problem"


@pytest.mark.parametrize("writer", [trl_grpo, verl, table])
def test_k1_of_tiny_batches_may_be_negative(writer):
    log = writer(run())
    noise = 3e-4 * np.random.default_rng(5).normal(size=log.rows)
    noise[0] = 0.0
    signed = with_kl(log, noise, estimator="k1")
    assert "KL_NEGATIVE" not in problems(signed)
    assert of(with_kl(log, 60 * noise, estimator="k3"))["KL_NEGATIVE"].status == "problem"


@pytest.mark.parametrize(
    ("writer", "key"),
    [
        (verl, "rollout_corr/kl"),
        (openrlhf, "vllm_kl"),
        (trl_grpo, "rollout_correction/kl"),
        (verl, "mismatch_kl/all/mean"),
    ],
)
def test_the_sampler_is_far_from_the_trainer(writer, key):
    log = writer(run())
    assert of(with_raw(log, **{key: 0.2}))["SAMPLER"].status == "problem"
    assert of(with_raw(log, **{key: 0.0008}))["SAMPLER"].status == "ok"


@pytest.mark.parametrize("beta", [0.02, 0.1, 0.7])
def test_a_loss_that_is_nothing_but_beta_kl(tmp_path, beta):
    rng = np.random.default_rng(11)
    kl = 0.0005 + 0.0002 * np.arange(60) * np.exp(0.1 * rng.normal(size=60))
    told = tmp_path / "t.toml"
    told.write_text(f'beta={beta}\n[columns]\nkl_unit="nats per token"\nkl_estimator="k3"\nkl_placement="loss"\n')
    path = tmp_path / "a.csv"
    for other, said in ((np.zeros(60), True), (0.01 * rng.normal(size=60), False)):
        rows = [f"{i + 1},0.3,{k:.8f},{beta * k + o:.10f}\n" for i, (k, o) in enumerate(zip(kl, other, strict=True))]
        path.write_text("step,reward,kl,loss\n" + "".join(rows))
        (loss,) = (f for f in kleash.check(path, config=told).findings if f.code == "LOSS")
        assert ("nothing but beta KL" in loss.message) is said


@pytest.mark.parametrize("rate", [1.0, 3.0, 5.0])
@pytest.mark.parametrize("writer", [trl_grpo, verl, openrlhf])
def test_a_kl_that_decays_under_its_penalty(writer, rate):
    rng = np.random.default_rng(13)
    kl = 0.2 * np.exp(-rate * np.linspace(0, 1, 100)) * (1 + 0.1 * rng.random(100))
    kl[0] = 0.0
    assert problems(with_kl(writer(run()), kl)) == []


@pytest.mark.parametrize("trainer", ["trl-kto", "llama-factory-dpo", None])
@pytest.mark.parametrize("level", [0.4, 3.0])
def test_an_estimate_that_kto_clamps_at_0_is_no_resume(tmp_path, trainer, level):
    rng = np.random.default_rng(17)
    kl = np.where(np.arange(60) < 30, level * np.exp(0.3 * rng.normal(size=60)), 0.0)
    rows = [
        {"loss": 0.5 - 0.004 * i, "kl": round(float(k), 4), "rewards/chosen": 0.02 * i, "rewards/rejected": -0.02 * i,
         "logits/chosen": -1.0, "step": i + 1}
        for i, k in enumerate(kl)
    ]  # fmt: skip
    text = "".join(json.dumps(row) + "\n" for row in rows)
    assert codes(tmp_path / "a.jsonl", text, trainer=trainer)["RESUME"] != "problem"
