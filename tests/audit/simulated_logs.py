"""Healthy logs of eight trainers made in memory, and faults planted in them: what the tests and the bench share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from kleash.audit.declared import Declared
from kleash.kl import KLSpec
from kleash.logs.table import KLColumn, RunLog

FULL = -1


def make(trainer, columns, *, kl=(), step=None, decimals=None, segment=None, **more):
    """A `RunLog` from raw columns; ``kl`` are pairs of a key and the words of a KLSpec."""
    raw = {key: np.atleast_1d(np.asarray(values, dtype=float)) for key, values in columns.items()}
    rows = len(next(iter(raw.values())))
    undefined = {k: tuple(np.flatnonzero(np.isnan(v)).tolist()) for k, v in raw.items() if np.isnan(v).all()}
    known = {name: raw[key] for name, key in more.pop("fields", {}).items()}
    return RunLog(
        path=more.pop("path", f"{trainer}.log"),
        trainer=trainer,
        trainer_version=more.pop("version", None),
        run=more.pop("named", "run"),
        step=np.arange(1.0, rows + 1) if step is None else np.asarray(step, dtype=float),
        segment=np.zeros(rows, dtype=np.int64) if segment is None else np.asarray(segment, dtype=np.int64),
        kl=tuple(
            KLColumn(key=k, values=raw[k], spec=KLSpec(**spec), against=against, transform="")
            for k, spec, against in kl
        ),
        raw=raw,
        decimals={key: (decimals or {}).get(key, FULL) for key in raw},
        undefined=more.pop("undefined", undefined),
        rows=rows,
        **known,
        **more,
    )


PER_TOKEN_LOSS = {"estimator": "k3", "unit": "nats per token", "placement": "loss"}
PER_TOKEN_REWARD = {"estimator": "k1", "unit": "nats per token", "placement": "reward"}
PER_ANSWER_REWARD = {"estimator": "k1", "unit": "nats per answer", "placement": "reward"}


@dataclass
class Run:
    """A training run before it is written down: what happens, in nats per token and in the judge's units."""

    rows: int
    kl: np.ndarray
    reward: np.ndarray
    gold: np.ndarray
    length: np.ndarray
    noise: float
    beta: float
    rng: np.random.Generator = field(repr=False)


def healthy_run(rng, *, rows=None, noise=None, beta=None):
    """An honest run: KL rises and levels off, the judge and gold rise together, lengths wander."""
    n = int(rows or rng.integers(12, 400))
    noise = float(noise if noise is not None else rng.choice([0.02, 0.1, 0.3]))
    plain = rows is not None
    t = np.linspace(0, 1, n)
    top = float(np.exp(rng.uniform(np.log(0.005), np.log(0.3))))
    kind = (
        "levels off" if plain else str(rng.choice(["levels off", "linear", "warm-up", "still"], p=[0.5, 0.2, 0.2, 0.1]))
    )
    speed, power = rng.uniform(1.5, 6.0), rng.uniform(1.0, 2.0)
    shape = {
        "levels off": (1 - np.exp(-speed * t**power)) / (1 - np.exp(-speed)) + rng.uniform(0.0, 0.4) * t,
        "linear": t * rng.uniform(0.5, 1.5),
        "warm-up": np.minimum(np.exp(40 * (t - 0.2)), 1 + 0.5 * t),
        "still": 1e-3 * t,
    }[kind]
    kl = top * shape * np.exp(noise * rng.normal(size=n)) + 1e-5 * rng.random(n)
    if not plain and rng.random() < 0.3:  # rare tokens with a large log ratio: k3 has heavy tails
        kl *= np.where(rng.random(n) < 0.02, 1 + 2 * rng.pareto(1.5, size=n).clip(0, 10), 1.0)
    kl[0] = 1e-6 * rng.random()
    gain = rng.uniform(0.1, 0.4) * (kind != "still")
    start = rng.uniform(0.1, 0.5)
    share = rng.uniform(0.4, 1.2)
    batch = rng.choice([64, 256, 1024])
    curve = 1 - np.exp(-rng.uniform(1.0, 8.0) * t)
    hard = np.zeros(n)  # batches of prompts that are harder than others, for several steps at a time
    if not plain and rng.random() < 0.5:
        for row in range(1, n):
            hard[row] = 0.6 * hard[row - 1] + 0.02 * rng.normal()
    reward = rng.binomial(batch, np.clip(start + gain * curve + hard, 0.01, 0.99)) / batch
    gold = rng.binomial(batch, np.clip(0.8 * start + share * gain * curve + hard, 0.01, 0.99)) / batch
    length = rng.uniform(30, 600) * np.exp(np.cumsum(0.01 * rng.normal(size=n)) + rng.uniform(-0.4, 0.4) * t)
    beta = float(beta if beta is not None else rng.choice([0.001, 0.01, 0.04, 0.1]))
    return Run(n, kl, reward, gold, length, noise, beta, rng)


def f32(values):
    return np.asarray(values, dtype=np.float32).astype(float)


def trl_grpo(run, *, old=True, **more):
    """TRL's GRPO with a loss of equal answers (up to 0.16), its loss rounded to four places."""
    loss = np.round(run.beta * run.kl * (1 + 0.002 * run.rng.normal(size=run.rows)), 4)
    length = "completion_length" if old else "completions/mean_length"
    columns = {
        "loss": loss,
        "kl": f32(run.kl),
        "reward": f32(run.reward + run.gold),
        length: f32(run.length),
        "rewards/judge": f32(run.reward),
        "rewards/accuracy": f32(run.gold),
        "grad_norm": np.ones(run.rows),
    }
    if not old:  # weighted by length: a policy term beside beta * kl
        columns["loss"] = np.round(run.beta * run.kl + 0.01 * run.rng.normal(size=run.rows), 4)
    return make(
        "trl-grpo", columns, kl=[("kl", PER_TOKEN_LOSS, "reference")], decimals={"loss": 4},
        fields={"reward": "rewards/judge", "length": length},
        **{"config": {"beta": run.beta}, "gold": f32(run.gold),
           "components": {"judge": f32(run.reward), "accuracy": f32(run.gold)}, **more},
    )  # fmt: skip


def trl_rloo(run, **more):
    kl = f32(run.kl + 0.3 * run.noise * run.kl.max() * run.rng.normal(size=run.rows) / np.sqrt(run.length))
    columns = {"loss": 0.01 * run.rng.normal(size=run.rows), "kl": kl, "reward": f32(run.reward),
               "completions/mean_length": f32(run.length)}  # fmt: skip
    return make(
        "trl-rloo", columns, kl=[("kl", PER_TOKEN_REWARD, "reference")],
        fields={"reward": "reward", "length": "completions/mean_length"}, **{"config": {"beta": run.beta}, **more},
    )  # fmt: skip


def trl_ppo(run, *, sign=1.0, **more):
    total = f32(run.kl * run.length)
    paid = f32(-run.beta * total)
    columns = {
        "objective/kl": total,
        "objective/non_score_reward": paid,
        "objective/scores": f32(run.reward),
        "objective/rlhf_reward": f32(f32(run.reward) + sign * paid),
        "policy/approxkl_avg": f32(0.01 * run.kl),
        "val/num_eos_tokens": np.full(run.rows, 7.0),
        "loss/policy_avg": f32(0.01 * run.rng.normal(size=run.rows)),
    }
    old = {"estimator": "k2", "unit": "nats per token", "placement": "none", "sampler": "behavior"}
    return make(
        "trl-ppo", columns,
        kl=[("objective/kl", PER_ANSWER_REWARD, "reference"), ("policy/approxkl_avg", old, "old-policy")],
        fields={"reward": "objective/scores"}, **{"config": {"kl_coef": run.beta}, **more},
    )  # fmt: skip


def verl(
    run, *, sign=1.0, scale=1.0, in_loss=True, in_reward=False, decimals=None, adaptive=False, config=None, **more
):
    """verl: penalty in the loss, in the reward, or both; ``scale`` multiplies the logged kl_loss only."""
    pg = f32(0.02 * run.rng.normal(size=run.rows))
    coefficient = np.full(run.rows, run.beta)
    columns = {
        "critic/score/mean": f32(run.reward),
        "critic/rewards/mean": f32(run.reward),
        "actor/pg_loss": pg,
        "actor/loss": pg,
        "response_length/mean": f32(run.length),
        "actor/ppo_kl": f32(1e-4 * run.kl),
        "actor/grad_norm": np.ones(run.rows),
        "critic/advantages/max": np.full(run.rows, 2.0),
        "critic/advantages/min": np.full(run.rows, -2.0),
    }
    kl = [("actor/ppo_kl", {"estimator": "k1", "unit": "nats per token", "placement": "none"}, "old-policy")]
    settings = {"use_kl_loss": in_loss, "use_kl_in_reward": in_reward}
    if in_loss:
        columns["actor/kl_loss"] = f32(scale * run.kl)
        columns["actor/loss"] = f32(pg + sign * coefficient * run.kl)
        columns["actor/kl_coef"] = coefficient
        settings |= {"kl_loss_coef": run.beta, "kl_loss_type": "low_var_kl"}
        kl.insert(0, ("actor/kl_loss", PER_TOKEN_LOSS, "reference"))
    if in_reward:
        columns["actor/reward_kl_penalty"] = f32(run.kl)
        columns["actor/reward_kl_penalty_coeff"] = coefficient
        columns["critic/rewards/mean"] = f32(run.reward - coefficient * run.kl * run.length)
        settings |= {"algorithm.kl_ctrl.kl_coef": run.beta}
        kl.append(("actor/reward_kl_penalty", PER_TOKEN_REWARD, "reference"))
    fields = {"reward": "critic/score/mean", "length": "response_length/mean"}
    if in_loss or in_reward:
        fields["coefficient"] = "actor/kl_coef" if in_loss else "actor/reward_kl_penalty_coeff"
    if decimals:
        columns = {k: np.round(v, decimals) for k, v in columns.items()}
    return make(
        "verl", columns, kl=kl, fields=fields, decimals=dict.fromkeys(columns, decimals) if decimals else None,
        config=settings if config is None else config, **{"gold": f32(run.gold), **more},
    )  # fmt: skip


def openrlhf(run, *, in_loss=False, **more):
    paid = 0.0 if in_loss else run.beta * run.kl * run.length
    columns = {
        "train/kl": f32(run.kl),
        "train/reward": f32(run.reward),
        "train/return": f32(run.reward - paid),
        "train/policy_loss": f32(0.01 * run.rng.normal(size=run.rows)),
        "train/response_length": f32(run.length),
        "train/vllm_kl": f32(0.001 * np.ones(run.rows)),
    }
    settings = {"init_kl_coef": run.beta, "use_kl_loss": in_loss, "kl_estimator": "k3" if in_loss else "k1"}
    spec = PER_TOKEN_REWARD | {"placement": "unknown"}
    return make(
        "openrlhf", columns, kl=[("train/kl", spec, "reference")],
        fields={"reward": "train/reward", "length": "train/response_length"}, **{"config": settings, **more},
    )  # fmt: skip


def nemo(run, **more):
    columns = {
        "train/kl_penalty": f32(run.kl), "train/reward": f32(run.reward),
        "train/loss": 0.01 * run.rng.normal(size=run.rows),
        "train/token_mult_prob_error": f32(1.0 + 0.005 * run.rng.random(run.rows)),
        "train/gen_kl_error": np.full(run.rows, 1e-3), "train/mean_gen_tokens_per_sample": f32(run.length),
    }  # fmt: skip
    return make(
        "nemo-rl", columns, kl=[("train/kl_penalty", PER_TOKEN_LOSS, "reference")],
        fields={"reward": "train/reward", "length": "train/mean_gen_tokens_per_sample"},
        **{"config": {"reference_policy_kl_penalty": run.beta, "reference_policy_kl_type": "k3"}, **more},
    )  # fmt: skip


def slime(run, *, config=None, kl_in_log=True, **more):
    pg = f32(0.01 * run.rng.normal(size=run.rows))
    columns = {
        "rollout/raw_reward": f32(run.reward),
        "train/pg_loss": pg,
        "train/loss": f32(pg + run.beta * run.kl),
        "train/kl_loss": f32(run.kl),
        "rollout/response_lengths": f32(run.length),
        "train/ppo_kl": np.zeros(run.rows),
        "train/train_rollout_logprob_abs_diff": np.full(run.rows, 0.02),
    }
    kl = [("train/kl_loss", PER_TOKEN_LOSS, "reference")]
    if not kl_in_log:
        kl, columns["train/loss"] = [], pg
        del columns["train/kl_loss"]
    settings = {"use_kl_loss": True, "kl_loss_coef": run.beta, "kl_loss_type": "low_var_kl"}
    return make(
        "slime", columns, kl=kl, fields={"reward": "rollout/raw_reward", "length": "rollout/response_lengths"},
        config=settings if config is None else config, **more,
    )  # fmt: skip


def open_instruct(run, *, index=2, **more):
    spread = run.kl * np.exp(0.05 * run.rng.normal(size=run.rows))
    kls = {
        0: spread,
        1: run.kl * np.exp(0.1 * run.rng.normal(size=run.rows)),
        2: run.kl,
        3: spread * np.exp(0.1 * run.rng.normal(size=run.rows)),
    }
    pg = f32(0.01 * run.rng.normal(size=run.rows))
    columns = {f"objective/kl{i}_avg": f32(v) for i, v in kls.items()}
    columns |= {
        "loss/kl_avg": f32(run.beta * f32(kls[index])), "loss/policy_avg": pg, "scores": f32(run.reward),
        "loss/total_avg": f32(pg + run.beta * kls[index]), "val/sequence_lengths": f32(run.length),
    }  # fmt: skip
    spec = PER_TOKEN_LOSS | {"estimator": ("k1", "k2", "k3", "k1")[index]}
    return make(
        "open-instruct", columns, kl=[(f"objective/kl{index}_avg", spec, "reference")],
        fields={"reward": "scores", "length": "val/sequence_lengths"}, **{"config": {"beta": run.beta}, **more},
    )  # fmt: skip


def trl_dpo(run, **more):
    margin = 20 * run.kl
    columns = {"loss": np.round(np.log1p(np.exp(-margin)), 4), "rewards/margins": margin,
               "grad_norm": np.ones(run.rows), "rewards/accuracies": run.reward}  # fmt: skip
    return make("trl-dpo", columns, fields={"reward": "rewards/accuracies"}, decimals={"loss": 4},
                **{"config": {"beta": 0.1}, **more})  # fmt: skip


def table(run, **more):
    """A plain table in which the judge, gold and KL per answer stand side by side."""
    spec = {"estimator": "k1", "unit": "nats per answer", "placement": "unknown"}
    columns = {"reward": run.reward, "gold": run.gold, "kl": run.kl * run.length, "length": run.length}
    return make("table", columns, kl=[("kl", spec, "reference")],
                fields={"reward": "reward", "gold": "gold", "length": "length"}, **more)  # fmt: skip


WRITERS: dict[str, Callable[[Run], RunLog]] = {
    "trl-grpo": trl_grpo,
    "trl-grpo dapo": lambda run: trl_grpo(run, old=False, config={"beta": run.beta, "loss_type": "dapo"}),
    "trl-rloo": trl_rloo,
    "trl-ppo": trl_ppo,
    "trl-dpo": trl_dpo,
    "verl loss": verl,
    "verl reward": lambda run: verl(run, in_loss=False, in_reward=True),
    "verl console": lambda run: verl(run, decimals=3),
    "openrlhf": openrlhf,
    "openrlhf loss": lambda run: openrlhf(run, in_loss=True),
    "nemo-rl": nemo,
    "slime": slime,
    "open-instruct": open_instruct,
    "table": table,
}


def healthy(rng, writer=None):
    """A healthy log of a trainer drawn at random, and its writer's name."""
    name = writer or str(rng.choice(list(WRITERS)))
    run = healthy_run(rng)
    log = WRITERS[name](run)
    if rng.random() < 0.2 and run.rows > 40 and name != "trl-dpo":
        log = _resumed(log, rng)
    return log, name


def _resumed(log, rng):
    """The same run killed and resumed from a checkpoint a few steps back: steps repeat, the KL goes on."""
    cut = int(rng.integers(log.rows // 3, 2 * log.rows // 3))
    back = int(rng.integers(1, 6))
    keep = np.concatenate([np.arange(cut), np.arange(cut - back, log.rows)])
    return take(log, keep, segment=np.concatenate([np.zeros(cut), np.ones(log.rows - cut + back)]).astype(np.int64))


def take(log, rows, **more):
    """Some rows of a log, in every column alike."""

    def cut(x):
        return None if x is None else x[rows]

    return replace(
        log, step=cut(log.step), segment=more.pop("segment", log.segment[rows]), reward=cut(log.reward),
        gold=cut(log.gold), coefficient=cut(log.coefficient), length=cut(log.length), entropy=cut(log.entropy),
        components={k: v[rows] for k, v in log.components.items()}, losses={k: v[rows] for k, v in log.losses.items()},
        kl=tuple(replace(c, values=c.values[rows]) for c in log.kl), raw={k: v[rows] for k, v in log.raw.items()},
        rows=len(rows), **more,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class LogFault:
    """A fault with its source: ``make`` gives the log and a twin that differs in the fault only."""

    code: str
    source: str
    make: Callable[[np.random.Generator], tuple[RunLog, RunLog]]
    declared: Declared = field(default_factory=Declared)


def _twins(writer, change):
    """A fault that acts on the run before it is written down."""

    def both(rng):
        seed = int(rng.integers(1 << 31))
        good, bad = (healthy_run(np.random.default_rng(seed), rows=120, noise=0.1, beta=0.04) for _ in range(2))
        change(bad)
        return writer(bad), writer(good)

    return both


def _writers(bad, good, **settings):
    """A fault in the way the run is trained or written: the same run, two writers."""

    def both(rng):
        seed = int(rng.integers(1 << 31))
        options = {"rows": 120, "noise": 0.1, "beta": 0.04, **settings}
        runs = [healthy_run(np.random.default_rng(seed), **options) for _ in range(2)]
        return bad(runs[0]), good(runs[1])

    return both


def _kl_jump(run):
    run.kl[70:] = np.maximum(run.kl[70:], 0.05) * 30
    run.reward[70:] = 0.3 * run.reward[70:]


def _short(run):
    run.kl[80:] = 0.5 + 12 * run.kl[:80].max()
    run.length[80:] = 5.5
    run.reward[80:] *= 0.5


def _growth(run):
    t = np.linspace(0, 1, run.rows)
    run.kl = 0.01 * np.exp(5 * t) * np.exp(0.1 * run.rng.normal(size=run.rows)) * np.minimum(1, 20 * t + 1e-3)
    run.reward = 0.6 - 0.4 * np.exp(-12 * t) + 0.01 * run.rng.normal(size=run.rows)


def _collapse(run):
    t = np.linspace(0, 1, run.rows)
    run.reward = run.reward - np.where(t > 0.6, (t - 0.6) * 1.5, 0.0)
    run.length = run.length * np.where(t > 0.6, 1 + 6 * (t - 0.6), 1.0)


def _spike(run):
    run.kl[60] = 1568987.96


def _dropout(run):
    run.kl = run.kl + 3.0


def _reload(run):
    run.kl[60:] = 0.02 * run.kl[:60] + 1e-6
    run.kl[40:60] = np.maximum(run.kl[40:60], 0.02)


def _nothing_moves(run):
    run.kl = np.zeros(run.rows)


def _gamed(run):
    t = np.linspace(0, 1, run.rows)
    run.reward = 0.2 + 0.5 * t + 0.02 * run.rng.normal(size=run.rows)
    run.gold = (
        0.45 + 0.2 * np.minimum(t, 0.4) / 0.4 - 0.25 * np.maximum(t - 0.4, 0) + 0.02 * run.rng.normal(size=run.rows)
    )


def _flat_gold(run):
    run.reward = 0.2 + 0.5 * np.linspace(0, 1, run.rows) + 0.02 * run.rng.normal(size=run.rows)
    run.gold = np.clip(0.01 + 0.003 * run.rng.normal(size=run.rows), 0, 1)


def _agreement(fall):
    def write(run):
        log = table(run)
        x = 0.787 - fall * np.linspace(0, 1, run.rows) + 0.02 * run.rng.normal(size=run.rows)
        return replace(log, raw={**log.raw, "within_question_auroc": x})

    return write


def _with(writer, **columns):
    """A log with further raw columns, constant or given by a function of the run."""

    def write(run):
        log = writer(run)
        new = {k: np.asarray(v(run) if callable(v) else np.full(run.rows, float(v))) for k, v in columns.items()}
        return replace(log, raw={**log.raw, **new}, decimals={**log.decimals, **dict.fromkeys(new, FULL)})

    return write


def _nan_gradient(run):
    log = verl(run)
    bad = log.raw["actor/grad_norm"].copy()
    bad[1] = np.nan
    return replace(log, raw={**log.raw, "actor/grad_norm": bad}, undefined={"actor/grad_norm": (1,)})


def _moving(factor, target):
    """An adaptive controller of verl fed nats per token; ``target`` in whatever unit its owner thought of."""

    def write(run):
        log = verl(run, in_loss=False, in_reward=True)
        path = run.beta * factor ** np.linspace(0, 1, run.rows)
        raw = {**log.raw, "actor/reward_kl_penalty_coeff": path}
        raw["critic/rewards/mean"] = f32(run.reward - path * run.kl * run.length)
        settings = {**log.config, "kl_ctrl.type": "adaptive", "target_kl": target(run), "horizon": 10000}
        return replace(log, coefficient=path, raw=raw, config=settings)

    return write


def _late(run):
    return float(np.median(run.kl[60:]))


def _late_answer(run):
    return float(np.median(run.kl[60:] * run.length[60:]))


def _advantages(value):
    return _with(verl, **{"critic/advantages/max": value, "critic/advantages/min": -value})


def _negative(run):
    log = trl_ppo(run)
    kl = f32(-0.25 + 0.15 * run.rng.normal(size=run.rows))
    raw = {**log.raw, "objective/kl": kl, "objective/non_score_reward": f32(-run.beta * kl)}
    raw["objective/rlhf_reward"] = f32(log.raw["objective/scores"] + raw["objective/non_score_reward"])
    return replace(log, raw=raw, kl=(replace(log.kl[0], values=kl), *log.kl[1:]))


def _no_kl(run):
    log = trl_grpo(run, config={"beta": run.beta})
    raw = {k: v for k, v in log.raw.items() if k != "kl"}
    return replace(log, raw={**raw, "loss": np.zeros(run.rows)}, kl=())


def _included(run):
    log = verl(run)
    kl = f32(run.beta * run.kl)
    return replace(log, raw={**log.raw, "actor/kl_loss": kl}, kl=(replace(log.kl[0], values=kl), *log.kl[1:]))


def _mean_as_sum(run):
    log = trl_ppo(run)
    kl = f32(run.kl)
    length = f32(run.length.mean() * np.ones(run.rows))
    paid = f32(-run.beta * kl * length)
    raw = {**log.raw, "objective/kl": kl, "objective/non_score_reward": paid}
    raw["objective/rlhf_reward"] = f32(log.raw["objective/scores"] + paid)
    return replace(log, raw=raw, kl=(replace(log.kl[0], values=kl), *log.kl[1:]), length=length)


def _sum_as_sum(run):
    run.length = run.length.mean() * np.ones(run.rows)
    return replace(trl_ppo(run), length=f32(run.length))


def _stays_at_ln2(run):
    run.kl = 1e-7 * run.rng.random(run.rows)
    return trl_dpo(run)


def _half_of(run):
    log = trl_ppo(run)
    paid = f32(-0.2 * log.raw["objective/kl"])
    raw = {
        **log.raw,
        "objective/non_score_reward": paid,
        "objective/rlhf_reward": f32(log.raw["objective/scores"] + paid),
    }
    return replace(log, raw=raw)


def _elsewhere(run):
    return verl(run, in_loss=False, in_reward=True, config={"use_kl_loss": True, "kl_loss_coef": run.beta})


def _k3_in_reward(run):
    return openrlhf(run, config={"init_kl_coef": run.beta, "use_kl_loss": False, "kl_estimator": "k3"})


RATIO = "sampling/importance_sampling_ratio/mean"
LARGEST = {"sampling/importance_sampling_ratio/max": 1.6}
TRL, VERL = "github.com/huggingface/trl/issues", "github.com/verl-project/verl"

LOG_FAULTS: dict[str, LogFault] = {
    "beta never passed on": LogFault(
        code="PLACEMENT", source="github.com/greyhaven-ai/autocontext/pull/1076", make=_writers(_no_kl, trl_grpo)
    ),
    "kl_coef without effect": LogFault(
        code="PLACEMENT", source="slime ppo_utils.py get_grpo_returns",
        make=_writers(lambda r: slime(r, config={"kl_coef": 0.04, "advantage_estimator": "grpo"}, kl_in_log=False),
                      slime),
    ),
    "penalty counted twice": LogFault(
        code="PLACEMENT", source=f"{VERL}/pull/644", make=_writers(lambda r: verl(r, in_reward=True), verl)
    ),
    "penalty in the other place": LogFault(
        code="PLACEMENT", source=f"{VERL}/issues/3276",
        make=_writers(_elsewhere, lambda r: verl(r, in_loss=False, in_reward=True)),
    ),
    "KL subtracted from the loss": LogFault(
        code="SIGN", source="github.com/mll-lab-nu/RAGEN/issues/58", make=_writers(lambda r: verl(r, sign=-1.0), verl)
    ),
    "reward minus minus penalty": LogFault(
        code="SIGN", source="TRL PPO docs: scores minus non_score_reward",
        make=_writers(lambda r: trl_ppo(r, sign=-1.0), trl_ppo),
    ),
    "k1 as a loss": LogFault(
        code="GRADIENT", source="github.com/allenai/open-instruct/issues/534",
        make=_writers(lambda r: open_instruct(r, index=0), open_instruct),
    ),
    "k3 in the reward": LogFault(
        code="GRADIENT", source="github.com/NovaSky-AI/SkyRL/issues/805",
        make=_writers(_k3_in_reward, openrlhf),
    ),
    "kl_loss times micro-batches": LogFault(
        code="COEFFICIENT", source=f"{VERL}/pull/4711", make=_writers(lambda r: verl(r, scale=4.0), verl)
    ),
    "another coefficient than configured": LogFault(
        code="COEFFICIENT", source="github.com/joey00072/nanoGRPO/issues/1", make=_writers(_half_of, trl_ppo)
    ),
    "beta in the logged KL": LogFault(
        code="KL_UNIT", source="open-instruct grpo_utils.py: loss/kl_avg is beta * kl", make=_writers(_included, verl)
    ),
    "mean per token labelled a sum": LogFault(
        code="KL_UNIT", source="github.com/CarperAI/trlx/pull/361", make=_writers(_mean_as_sum, _sum_as_sum)
    ),
    "target in the other unit": LogFault(
        code="CONTROLLER", source=f"{VERL}/issues/1984", make=_writers(_moving(0.5, _late_answer), _moving(0.5, _late))
    ),
    "coefficient runs away": LogFault(
        code="CONTROLLER", source="github.com/ray-project/ray/issues/18492",
        make=_writers(_moving(1e6, _late), _moving(2.0, _late)),
    ),
    "KL negative": LogFault(code="KL_NEGATIVE", source=f"{TRL}/351", make=_writers(_negative, trl_ppo)),
    "KL exactly 0": LogFault(
        code="KL_ZERO", source="github.com/modelscope/ms-swift/issues/5571", make=_twins(nemo, _nothing_moves)
    ),
    "DPO stays at ln 2": LogFault(code="KL_ZERO", source=f"{TRL}/1311", make=_writers(_stays_at_ln2, trl_dpo)),
    "dropout while scoring": LogFault(code="STEP0_KL", source=f"{TRL}/3500", make=_twins(trl_grpo, _dropout)),
    "reference from the checkpoint": LogFault(
        code="RESUME", source="github.com/NVIDIA-NeMo/RL/issues/2955", make=_twins(nemo, _reload)
    ),
    "KL jumps, reward falls": LogFault(
        code="KL_JUMP", source="github.com/modelscope/ms-swift/issues/6550", make=_twins(trl_grpo, _kl_jump)
    ),
    "collapse to short answers": LogFault(
        code="KL_JUMP", source="github.com/modelscope/ms-swift/issues/4800", make=_twins(trl_grpo, _short)
    ),
    "outlier tokens": LogFault(
        code="KL_SPIKE", source="github.com/meta-pytorch/torchforge/issues/664", make=_twins(nemo, _spike)
    ),
    "KL grows, reward stands": LogFault(code="KL_GROWTH", source=f"{TRL}/204", make=_twins(table, _growth)),
    "reward falls back as length grows": LogFault(
        code="COLLAPSE", source="github.com/OpenRLHF/OpenRLHF/issues/236", make=_twins(openrlhf, _collapse)
    ),
    "gold peaks and falls": LogFault(
        code="HACKING", source="github.com/rllm-org/rllm/issues/143", make=_twins(table, _gamed)
    ),
    "judge up, gold flat": LogFault(
        code="HACKING", source="github.com/rohunagrawal/reward-hacking-entropy", make=_twins(trl_grpo, _flat_gold)
    ),
    "agreement within prompts falls": LogFault(
        code="AGREEMENT", source="github.com/Vincethevince/reward-overoptimization",
        make=_writers(_agreement(0.21), _agreement(0.0)),
    ),
    "gradient is NaN": LogFault(code="NON_FINITE", source=f"{VERL}/pull/1037", make=_writers(_nan_gradient, verl)),
    "all groups solved": LogFault(
        code="ZERO_VARIANCE", source="github.com/zhaochenyang20/Awesome-ML-SYS-Tutorial/issues/106",
        make=_writers(_advantages(0.0), _advantages(2.0)),
    ),
    "no answer ends": LogFault(
        code="ENDINGS", source="github.com/hongbo-miao/hongbomiao.com/pull/37684",
        make=_writers(_with(trl_ppo, **{"val/num_eos_tokens": 0.0}), trl_ppo),
    ),
    "top-p while sampling": LogFault(
        code="TRUNCATION", source=f"{TRL}/6789",
        make=_writers(
            _with(trl_grpo, **{RATIO: lambda r: 0.95 + 0.003 * r.rng.normal(size=r.rows), **LARGEST}),
            _with(trl_grpo, **{RATIO: lambda r: 1.0 + 0.003 * r.rng.normal(size=r.rows), **LARGEST}),
        ),
    ),
    "engine and trainer differ": LogFault(
        code="SAMPLER", source="github.com/NVIDIA-NeMo/RL/issues/1330",
        make=_writers(_with(nemo, **{"train/token_mult_prob_error": 1.2}), nemo),
    ),
}  # fmt: skip
