"""Honest runs and dumps in the shapes that files really have; no threshold was set on them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from simulated_dumps import M, V, changed, joined, log_softmax, models, rescored, sample, scored
from simulated_logs import FULL, WRITERS, healthy_run, take

LOG_SHAPES = ("NaN cells", "signed k1", "clamped", "first row late", "rows of several kinds", "decays", "skipped steps",
              "folder")  # fmt: skip
DUMP_SHAPES = ("rounded", "bfloat16", "tool tokens", "late steps", "two engines", "one token")


def _shifted(log, values):
    """The main KL replaced, in the column and in the raw table."""
    column = replace(log.kl[0], values=values)
    return replace(log, kl=(column, *log.kl[1:]), raw={**log.raw, column.key: values})


def _padded(log, rng, *, given):
    """Evaluation rows among the training rows, each padded with NaN for the other's columns."""
    every = int(rng.integers(5, 20))
    order = np.repeat(np.arange(log.rows), 1 + (np.arange(log.rows) % every == every - 1))
    evaluation = np.concatenate([[False], order[1:] == order[:-1]])
    whole = take(log, order)
    blank = {key: np.where(evaluation, np.nan, x) for key, x in whole.raw.items()}
    score = np.where(evaluation, 0.5 + 0.05 * rng.normal(size=order.size), np.nan)
    raw = {**blank, "eval_loss": 0.01 * score, "eval_reward": score, "eval_runtime": 12.0 + score}
    undefined = {k: tuple(np.flatnonzero(np.isnan(v)).tolist()) for k, v in raw.items() if np.isnan(v).any()}

    def cut(x):
        return None if x is None else np.where(evaluation, np.nan, x)

    return replace(
        whole, raw=raw, undefined=undefined if given else {}, reward=cut(whole.reward), gold=cut(whole.gold),
        coefficient=cut(whole.coefficient), length=cut(whole.length), entropy=cut(whole.entropy),
        kl=tuple(replace(c, values=cut(c.values)) for c in whole.kl),
        decimals={**whole.decimals, **dict.fromkeys(raw.keys() - whole.decimals.keys(), FULL)},
    )  # fmt: skip


def _estimate(log, rng, *, clamped):
    """k1 of 1 to 16 answers, each a log ratio of mean D and variance 2 D; cut off at 0 as KTO's, or not."""
    kl, length = np.maximum(log.kl[0].values, 0.0), np.asarray(log.length)
    noisy = kl + np.sqrt(2 * kl / (length * rng.choice([1, 4, 16]))) * rng.normal(size=log.rows)
    spec = replace(log.kl[0].spec, estimator="k1", placement="reward")
    log = replace(log, kl=(replace(log.kl[0], spec=spec), *log.kl[1:]))
    return _shifted(log, np.maximum(noisy, 0.0) if clamped else noisy)


def shaped_logs(rng):
    """Logs of one of `LOG_SHAPES`, several of a folder, and the shape."""
    shape = str(rng.choice(LOG_SHAPES))
    run = healthy_run(rng)
    if shape in ("signed k1", "clamped"):
        return [
            _estimate(WRITERS["openrlhf" if shape == "clamped" else "trl-rloo"](run), rng, clamped=shape == "clamped")
        ], shape
    if shape == "folder":
        names = [str(rng.choice(list(WRITERS))) for _ in range(3)]
        runs = [WRITERS[name](healthy_run(rng, beta=0.04)) for name in names]
        return [replace(log, run=f"run {i}", path=f"{i}.log") for i, log in enumerate(runs)], shape
    if shape == "decays":  # a strong penalty takes back what a large first step has moved
        run.kl = (
            run.kl.max() * np.exp(-rng.uniform(1, 5) * np.linspace(0, 1, run.rows)) * (1 + 0.1 * rng.random(run.rows))
        )
        run.kl[0] = 0.0
    log = WRITERS[str(rng.choice([name for name in WRITERS if name != "trl-dpo"]))](run)
    if shape == "first row late":
        every = int(rng.choice([2, 5, 10, 25]))
        log = replace(log, step=every * np.arange(1.0, log.rows + 1),
                      raw={**log.raw, "learning_rate": np.full(log.rows, 10 ** rng.uniform(-6.5, -4))},
                      decimals={**log.decimals, "learning_rate": FULL})  # fmt: skip
        log = take(log, np.arange(min(1, log.rows - 3), log.rows))
    if shape in ("NaN cells", "rows of several kinds"):
        log = _padded(log, rng, given=shape == "NaN cells")
    if shape == "skipped steps":
        gradient = np.ones(log.rows)
        gradient[rng.integers(1, log.rows - 1)] = np.inf
        log = replace(log, raw={**log.raw, "grad_norm": gradient}, decimals={**log.decimals, "grad_norm": FULL})
    return [log], shape


def bfloat16(values):
    """Rounded to eight significant bits."""
    mantissa, exponent = np.frexp(values)
    return np.ldexp(np.round(mantissa * 256) / 256, exponent)


def shaped_dump(rng):
    """An honest dump of one of `DUMP_SHAPES`, and the shape."""
    shape = str(rng.choice(DUMP_SHAPES))
    answers = int(np.exp(rng.uniform(np.log(48), np.log(1500))))
    length = 1.2 if shape == "one token" else float(np.exp(rng.uniform(np.log(8), np.log(200))))
    pair = models(
        rng, length=length, drift=float(rng.uniform(0.02, 0.6)), tail=("light", "heavy")[int(rng.integers(2))]
    )
    steps = (0, 40, 80) if shape == "late steps" else (0,) if shape == "two engines" and rng.random() < 0.5 else (7,)
    parts = []
    for step in steps:
        model = pair.at(step / 80 if len(steps) > 1 else float(step > 0))
        drawn = sample(rng, model.policy, model.follow, answers, longest=max(3, int(3 * length)))
        size = int(drawn[0][-1])
        place = 0.05 * rng.random(size)  # no two places of a real text share their digits, even when rounded
        chunk = scored(drawn, model, numbers={"step": np.full(answers, float(step)), "reward": rng.random(answers)},
                       labels={"prompt_id": np.arange(answers) // 4})  # fmt: skip
        tokens = {name: x - place for name, x in chunk.tokens.items()}
        if shape in ("two engines", "tool tokens"):
            tokens["behavior_logp"] = tokens["logp"].copy()
            tokens["logp"] = rescored(rng, model.policy, drawn, 0.03) - place
        chunk = changed(chunk, tokens=tokens)
        if shape == "tool tokens":
            at = np.arange(size) - np.repeat(drawn[0][:-1], np.diff(drawn[0]))
            tool = (at >= 5) & (at < 9)
            other = log_softmax(rng.normal(size=(M, V)))[drawn[1], drawn[2]]
            mixed = {"logp": np.where(tool, other, tokens["logp"]),
                     "behavior_logp": np.where(tool, 0.0, tokens["behavior_logp"])}  # fmt: skip
            chunk = changed(chunk, tokens=mixed, mask=~tool)
        parts.append(chunk)
    whole = joined(*parts)
    if shape == "rounded":
        places = int(rng.integers(3, 6))
        whole = changed(whole, tokens={name: np.round(x, places) for name, x in whole.tokens.items()})
    if shape == "bfloat16":
        whole = changed(whole, tokens={name: bfloat16(x) for name, x in whole.tokens.items()})
    return whole, shape
