"""A sweep's own answers: of every policy, with every density, so that the dial is read between its betas too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from kleash.errors import DataError
from kleash.estimates import Floats
from kleash.forecasting.forecast import PromptsAre, forecast
from kleash.forecasting.result import Forecast
from kleash.samples import REFERENCE, Samples
from kleash.train.decoder import Prompts
from kleash.train.lm import LMRun
from kleash.train.reference import Asked, answers_of
from kleash.train.rollout import Rollout
from kleash.train.scoring import score_answers
from kleash.train.streams import Purpose
from kleash.worlds import World

__all__ = ["forecast_of", "model_samples", "policy_names", "world_samples"]

_FEWEST = 4  # answers of a policy to a prompt: halves of two each


def policy_names(beta: Sequence[float], seeds: int) -> list[str]:
    """What the policies of a sweep are called as sources, group-major, (G,)."""
    named = [np.format_float_positional(b, trim="-") for b in beta]
    return [f"beta {b} seed {j}" if seeds > 1 else f"beta {b}" for b in named for j in range(seeds)]


def world_samples(world: World, policies: Mapping[str, Floats], each: int, seed: int) -> Samples:
    """Answers of policies in a world that is known, all densities known on all of them.

    ``policies``: log probabilities (P, Y) by name, ``reference`` among them. ``each``: answers of every policy to every
    prompt. A policy's answers depend on its place and the seed alone.
    """
    columns: dict[str, list[Any]] = {"prompt": [], "place": [], "source": []}
    for number, (name, log_policy) in enumerate(policies.items()):
        rng = np.random.default_rng([seed, number])
        for prompt in range(world.n_prompts):
            share = np.exp(log_policy[prompt]).cumsum()
            place = np.searchsorted(share / share[-1], rng.random(each), side="right")
            columns["prompt"] += [prompt] * each
            columns["place"] += place.tolist()
            columns["source"] += [name] * each
    at = np.asarray(columns["prompt"]), np.asarray(columns["place"])
    return Samples.from_arrays(
        [world.prompts[prompt] for prompt in columns["prompt"]],
        world.reward[at],
        gold=world.gold[at],
        answer=[world.answers[prompt][place] for prompt, place in zip(*at, strict=True)],
        source=columns["source"],
        log_ratio={name: (log_p - world.log_reference)[at] for name, log_p in policies.items() if name != REFERENCE},
    )


def model_samples(run: LMRun, drawn: Asked | None) -> Samples | None:
    """Answers of the reference and of every policy of a run, each with its log ratio under all policies.

    ``drawn``: the reference's. The policies together give as many to a prompt, at least four each; their random numbers
    are their own, as answers that share them would count for more than they are. None without those of the reference,
    or where answers are drawn at another temperature than 1.
    """
    if drawn is None or run.training.temperature != 1.0:
        return None
    names, measured = policy_names(run.training.beta, run.seeds), run.sampler.task.measured
    each = max(_FEWEST, -(-run.training.forecast_samples // len(names)))
    own = answers_of(run, measured, key=(Purpose.OWN, 0, 0), index=range(len(names)), samples=each, reference=False)
    ratios = np.concatenate([_log_ratios(run, asked) for asked in (drawn, own)], axis=1)
    distinct = len(set(measured.texts)) == len(measured)
    place = drawn.place + own.place
    return Samples.from_arrays(
        [measured.texts[i] for i in place] if distinct else place,
        np.concatenate([drawn.reward, own.reward]),
        gold=None if drawn.gold is None or own.gold is None else np.concatenate([drawn.gold, own.gold]),
        answer=drawn.texts + own.texts,
        source=[REFERENCE] * len(drawn.place) + [names[group] for group in own.policy],
        log_ratio=dict(zip(names, ratios, strict=True)),
    )


def _log_ratios(run: LMRun, asked: Asked) -> Floats:
    """Log policy - log reference of answers under every policy, (G, N), nats: sums over tokens."""
    parts = []
    with torch.no_grad(), run.adapters.merged():
        for prompts, rolled in asked.pieces:
            parts += [_scored(run, prompts, rolled, group) for group in range(rolled.tokens.shape[0])]
    return np.concatenate(parts, axis=1)


def _scored(run: LMRun, prompts: Prompts, rolled: Rollout, group: int) -> Floats:
    groups = run.adapters.groups
    shown = {name: getattr(rolled, name)[group].expand(groups, -1, -1) for name in ("tokens", "mask", "behavior_logp")}
    same = Rollout(**shown, finished=rolled.finished[group].expand(groups, -1), prompt=rolled.prompt)
    scores = score_answers(run.sampler.decoder, run.adapters, prompts, same, chunk=run.training.chunk)
    ratio = ((scores.logp.double() - scores.ref_logp.double()) * same.mask).sum(dim=2)
    return np.asarray(ratio.cpu().numpy())


def forecast_of(
    samples: Samples | None, *, prompts: PromptsAre, seed: int, world: World | None = None
) -> Forecast | None:
    """What a sweep's own answers say of the whole dial; None where there are none, or none that can be used."""
    if samples is None:
        return None
    top, least = (None, None) if world is None else (float(world.reward.max()), float(world.gold.min()))
    try:
        return forecast(samples, prompts=prompts, seed=seed, reward_max=top, gold_min=least)
    except DataError:  # all scores of each policy are alike
        return None
