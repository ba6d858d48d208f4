"""Faults at several sizes, and honest runs of kinds that no threshold was set on: what the power curves are made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from simulated_logs import (
    VERL,
    WRITERS,
    Run,
    _agreement,
    _moving,
    _with,
    f32,
    healthy_run,
    nemo,
    openrlhf,
    table,
    take,
    trl_grpo,
    trl_ppo,
    verl,
)

from kleash.logs.table import RunLog

TRL = "huggingface/trl"


@dataclass(frozen=True, kw_only=True)
class Graded:
    """A fault at rising sizes. ``real`` is the size that the public report ``source`` shows, one of ``sizes``."""

    code: str
    unit: str
    sizes: tuple[float, ...]
    real: float
    source: str
    make: Callable[[np.random.Generator, float], RunLog]


def planted(write, change=None, *, rows=120, noise=0.1, beta=0.04):
    """An honest run, changed by a size, as a trainer writes it."""

    def make(rng, size):
        run = healthy_run(rng, rows=rows, noise=noise, beta=beta)
        if change is not None:
            change(run, size)
        return write(run) if change is not None else write(run, size)

    return make


def _jump(run, size):
    run.kl[70:] = np.maximum(run.kl[70:], 0.02) * size


def _short(run, size):
    """The KL leaps to a level while answers shrink to 5.5 tokens and the reward loses a tenth: .6086 to .5421."""
    run.kl = 0.01 * run.kl / run.kl.max()
    run.kl[80:] = size * np.exp(0.1 * run.rng.normal(size=run.rows - 80))
    run.length[80:] = 5.5
    run.reward[80:] *= 0.89


def _spike(run, size):
    run.kl[60] += size


def _start(run, size):
    run.kl = run.kl + size


def _fall(run, size):
    run.kl = 0.05 * (1 - np.exp(-np.linspace(0, 8, run.rows))) * np.exp(0.1 * run.rng.normal(size=run.rows))
    run.kl[60:] /= size


def _growth(run, size):
    """From the middle to the end the KL grows ``size`` fold, exponentially, and the judge's score has levelled off."""
    t = np.linspace(0, 1, run.rows)
    rate = np.log(size) / 0.4
    run.kl = 0.3 * np.exp(rate * (t - 1)) * np.exp(0.1 * run.rng.normal(size=run.rows)) * np.minimum(1, 20 * t + 1e-3)
    run.reward = 0.6 - 0.4 * np.exp(-12 * t) + 0.01 * run.rng.normal(size=run.rows)


def _decline(run, size):
    """The score has risen by .3 and gives back a share of it while answers grow fourfold."""
    t = np.linspace(0, 1, run.rows)
    run.reward = 0.3 + 0.3 * np.minimum(t / 0.5, 1) - 0.3 * size * np.maximum(t - 0.6, 0) / 0.4
    run.reward += 0.02 * run.rng.normal(size=run.rows)
    run.length *= np.where(t > 0.6, 1 + 7.5 * (t - 0.6), 1.0)


def _flat_gold(run, size):
    t = np.linspace(0, 1, run.rows)
    run.reward = 0.2 + size * t + 0.02 * run.rng.normal(size=run.rows)
    run.gold = np.clip(0.008 + 0.004 * run.rng.normal(size=run.rows), 0, 1)


def _falling_gold(run, size):
    """Train score .65 to .74; the held-out one falls."""
    t = np.linspace(0, 1, run.rows)
    run.reward = 0.65 + 0.09 * t + 0.02 * run.rng.normal(size=run.rows)
    run.gold = 0.63 - size * t + 0.02 * run.rng.normal(size=run.rows)


def _peak(run, size):
    t = np.linspace(0, 1, run.rows)
    run.reward = 0.2 + 0.5 * t + 0.02 * run.rng.normal(size=run.rows)
    run.gold = 0.4 + 0.15 * np.minimum(t / 0.4, 1) - size * np.maximum(t - 0.4, 0) / 0.6
    run.gold += 0.02 * run.rng.normal(size=run.rows)


def _negative(run, size):
    log = trl_ppo(run)
    kl = f32(-size + 0.15 * run.rng.normal(size=run.rows))
    raw = {**log.raw, "objective/kl": kl, "objective/non_score_reward": f32(-run.beta * kl)}
    raw["objective/rlhf_reward"] = f32(log.raw["objective/scores"] + raw["objective/non_score_reward"])
    return replace(log, raw=raw, kl=(replace(log.kl[0], values=kl), *log.kl[1:]))


def _rescaled(run, size):
    """The logged kl_loss is ``size`` times the one in the loss."""
    return verl(run, scale=size)


def _kept(run, size):
    noise = 0.003 * run.rng.normal(size=run.rows)
    stem = "sampling/importance_sampling_ratio/"
    return _with(trl_grpo, **{f"{stem}mean": lambda r: 1 - size + noise, f"{stem}max": 1.6})(run)


def _mismatch(run, size):
    wide = size * (1 + 0.005 * run.rng.normal(size=run.rows))
    return _with(nemo, **{"train/token_mult_prob_error": lambda r: wide})(run)


def _no_spread(run, size):
    share = np.clip(size + 0.05 * run.rng.normal(size=run.rows), 0, 1)
    return _with(trl_grpo, frac_reward_zero_std=lambda r: share)(run)


def _cut(run, size):
    share = np.clip(size + 0.01 * run.rng.normal(size=run.rows), 0, 1)
    return _with(trl_grpo, **{"completions/clipped_ratio": lambda r: share})(run)


def _late(run):
    return float(np.median(run.kl[60:]))


def _runaway(run, size):
    return _moving(size, _late)(run)


def _ranks(run, size):
    return _agreement(size)(run)


GRADED: dict[str, Graded] = {
    "KL jumps and stays": Graded(
        code="KL_JUMP", unit="times", sizes=(3, 5, 10, 20, 50), real=50, make=planted(trl_grpo, _jump),
        source="modelscope/ms-swift 4800: 0 to .5355",
    ),
    "collapse to short answers": Graded(
        code="KL_JUMP", unit="nats per token", sizes=(0.02, 0.05, 0.1, 0.2, 0.5355), real=0.5355,
        source="modelscope/ms-swift 4800", make=planted(trl_grpo, _short),
    ),
    "outlier tokens": Graded(
        code="KL_SPIKE", unit="nats per token", sizes=(0.5, 2, 10, 30, 1568987.96), real=1568987.96,
        source="meta-pytorch/torchforge 664", make=planted(nemo, _spike),
    ),
    "reference not the start": Graded(
        code="STEP0_KL", unit="nats per token", sizes=(0.005, 0.01, 0.02, 0.03, 1.0), real=0.03,
        source="PrimeIntellect-ai/prime-rl 2671: .03; huggingface/trl 3500: 1000", make=planted(nemo, _start),
    ),
    "reference reloaded": Graded(
        code="RESUME", unit="times less", sizes=(3, 5, 10, 20, 100), real=100,
        source="NVIDIA-NeMo/RL 2955: to about 0", make=planted(nemo, _fall),
    ),
    "KL grows, reward stands": Graded(
        code="KL_GROWTH", unit="times", sizes=(2, 3, 4, 8, 16), real=16,
        source="unslothai/unsloth 2291: doubles every row", make=planted(table, _growth),
    ),
    "reward given back": Graded(
        code="COLLAPSE", unit="of the gain", sizes=(0.3, 0.5, 0.6, 0.8, 1.5), real=1.5,
        source="facebookresearch/SPG 2 and OpenRLHF 236: below the start", make=planted(openrlhf, _decline),
    ),
    "judge up, gold at the floor": Graded(
        code="HACKING", unit="judge's gain", sizes=(0.05, 0.1, 0.2, 0.3, 0.45), real=0.45,
        source="rohunagrawal/reward-hacking-entropy: .2 to .65", make=planted(table, _flat_gold),
    ),
    "judge up, gold down": Graded(
        code="HACKING", unit="gold's fall", sizes=(0.01, 0.02, 0.03, 0.05, 0.1), real=0.05,
        source="greyhaven-ai/autocontext 1076: .65 to .74, .63 to .58", make=planted(table, _falling_gold),
    ),
    "gold peaks and falls": Graded(
        code="HACKING", unit="gold's fall", sizes=(0.02, 0.05, 0.075, 0.1, 0.2), real=0.1,
        source="huggingface/open-r1 255: .16 to .06", make=planted(table, _peak),
    ),
    "KL negative": Graded(
        code="KL_NEGATIVE", unit="nats per answer", sizes=(0.03, 0.07, 0.18, 0.51, 1.5), real=0.18,
        source=f"{TRL} 351: -.18, -.07, -.51; 329: -.20", make=planted(_negative),
    ),
    "kl_loss times micro-batches": Graded(
        code="COEFFICIENT", unit="times", sizes=(1.002, 1.01, 1.1, 2, 4), real=4,
        source=f"{VERL.removeprefix('github.com/')} 4711", make=planted(_rescaled),
    ),
    "mass out of reach": Graded(
        code="TRUNCATION", unit="share", sizes=(0.005, 0.01, 0.02, 0.05, 0.2), real=0.05,
        source=f"{TRL} 6789: top_p .95", make=planted(_kept),
    ),
    "engine and trainer differ": Graded(
        code="SAMPLER", unit="ratio", sizes=(1.02, 1.05, 1.06, 1.1, 1.2), real=1.06,
        source="NVIDIA-NeMo/RL 1330: suspicious above 1.05", make=planted(_mismatch),
    ),
    "groups without spread": Graded(
        code="ZERO_VARIANCE", unit="share", sizes=(0.3, 0.45, 0.55, 0.8, 1.0), real=1.0,
        source="zhaochenyang20/Awesome-ML-SYS-Tutorial 106: all", make=planted(_no_spread),
    ),
    "answers cut at the limit": Graded(
        code="ENDINGS", unit="share", sizes=(0.8, 0.93, 0.97, 0.99, 1.0), real=1.0,
        source="hongbo-miao/hongbomiao.com 37684: no end token", make=planted(_cut),
    ),
    "coefficient runs away": Graded(
        code="CONTROLLER", unit="times", sizes=(10, 50, 200, 1e4, 1e6), real=1e6,
        source="ray-project/ray 18492: to infinity", make=planted(_runaway),
    ),
    "agreement within prompts falls": Graded(
        code="AGREEMENT", unit="AUROC", sizes=(0.02, 0.04, 0.06, 0.1, 0.21), real=0.21,
        source="Vincethevince/reward-overoptimization", make=planted(_ranks),
    ),
}  # fmt: skip


# -------------------------------------------------------------------------------------------- other honest runs

KINDS = ("lasting noise", "growing length", "judge's scale", "few rows", "rounded", "decaying rate", "harder prompts",
         "entropy falls", "killed twice", "checked on few")  # fmt: skip


def _ar(rng, n, rho, spread):
    out, x = np.empty(n), 0.0
    for i in range(n):
        x = rho * x + spread * np.sqrt(1 - rho**2) * rng.normal()
        out[i] = x
    return out


def other_healthy(rng):
    """An honest run of one of `KINDS`, in a way that `logs.healthy_run` never has it: its log, writer and kind."""
    kind, name = str(rng.choice(KINDS)), str(rng.choice(list(WRITERS)))
    n = int(rng.integers(3, 13)) if kind == "few rows" else int(rng.integers(20, 600))
    t = np.arange(n) / max(1, n - 1)
    rho = 0.9 if kind == "lasting noise" else float(rng.uniform(0, 0.5))
    top, power = float(10 ** rng.uniform(-3, -0.3)), float(rng.uniform(0.5, 1.4))
    kl = top * t**power * np.exp(_ar(rng, n, rho, rng.uniform(0.05, 0.3)))
    if kind == "decaying rate":  # after a warm-up the policy settles and drifts back a little
        kl = top * np.minimum(t / 0.3, 1) ** 2 * (1 - 0.4 * np.maximum(t - 0.3, 0)) * np.exp(_ar(rng, n, rho, 0.15))
    kl[0] = 0.0
    spread = float(rng.uniform(0.005, 0.05))
    gain, share = float(rng.uniform(0, 0.4)), float(rng.uniform(0.5, 1.2))
    hard = _ar(rng, n, rho, spread)
    curve = t ** float(rng.uniform(0.3, 1.2))
    if kind == "harder prompts":  # a curriculum: judge and gold both sag by a little less than they have gained
        hard = hard - 0.3 * gain * np.maximum(t - 0.5, 0) / 0.5
    reward = 0.3 + gain * curve + hard
    gold = 0.25 + share * gain * curve + share * hard + spread / 2 * rng.normal(size=n)
    if kind == "checked on few":  # gold from 32 answers a row
        gold = rng.binomial(32, np.clip(gold, 0.01, 0.99)) / 32
    length = float(rng.uniform(20, 800)) * np.exp(0.02 * np.cumsum(rng.normal(size=n)) / 3)
    if kind == "growing length":
        length *= 1 + float(rng.uniform(1, 5)) * t
    if kind == "judge's scale":
        a, b = float(10 ** rng.uniform(-2, 2)), float(rng.normal() * 20)
        reward = a * reward + b
    run = Run(n, kl, reward, gold, length, spread, float(10 ** rng.uniform(-4, 0)), rng)
    log = WRITERS[name](run)
    if kind == "entropy falls":
        entropy = 2.5 * np.exp(-1.5 * t) + 0.02 * rng.normal(size=n)
        log = replace(
            log, entropy=entropy, raw={**log.raw, "entropy": entropy}, decimals={**log.decimals, "entropy": -1}
        )
    if kind == "rounded" and name != "verl console":
        log = rounded(log, int(rng.integers(2, 5)))
    if kind == "killed twice" and n > 40 and name != "trl-dpo":
        for _ in range(2):
            cut = int(rng.integers(log.rows // 3, 2 * log.rows // 3))
            back = int(rng.integers(1, 8))
            rows = np.concatenate([np.arange(cut), np.arange(max(0, cut - back), log.rows)])
            later = np.arange(rows.size) >= cut
            log = take(log, rows, segment=(log.segment[rows] + later).astype(np.int64))
    return log, name, kind


def rounded(log, places):
    """The same log with so many decimals in every column."""
    raw = {k: np.round(v, places) for k, v in log.raw.items()}
    back = {id(v): raw[k] for k, v in log.raw.items()}

    def cut(x):
        return None if x is None else back.get(id(x), np.round(x, places))

    return replace(
        log, raw=raw, decimals={k: places if d < 0 else min(d, places) for k, d in log.decimals.items()},
        reward=cut(log.reward), gold=cut(log.gold), coefficient=cut(log.coefficient), length=cut(log.length),
        components={k: np.round(v, places) for k, v in log.components.items()},
        kl=tuple(replace(c, values=raw[c.key]) for c in log.kl),
    )  # fmt: skip
