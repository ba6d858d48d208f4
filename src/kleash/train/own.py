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
from kleash.train.batches import Sampler
from kleash.train.decoder import Prompts
from kleash.train.reference import Asked, answers_of
from kleash.train.rollout import Rollout
from kleash.train.scoring import score_answers
from kleash.train.streams import Purpose
from kleash.worlds import World

__all__ = ["forecast_of", "gathered", "model_samples", "policy_names", "world_samples"]

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


def model_samples(sampler: Sampler, drawn: Asked | None) -> Samples | None:
    """Answers of the reference and of every policy of a sweep, each with its log ratio under all policies.

    ``drawn``: the reference's. The policies together give as many to a prompt, at least four each; their random numbers
    are their own, as answers that share them would count for more than they are. None without those of the reference,
    or where answers are drawn at another temperature than 1.
    """
    training = sampler.training
    if drawn is None or training.temperature != 1.0:
        return None
    names, key = policy_names(training.beta, training.seeds), (Purpose.OWN, 0, 0)
    each = max(_FEWEST, -(-training.forecast_samples // len(names)))
    everyone = range(len(names))
    own = answers_of(sampler, sampler.task.measured, key=key, index=everyone, samples=each, reference=False)
    return gathered(sampler, names, [([REFERENCE], drawn), (names, own)])


def gathered(sampler: Sampler, names: Sequence[str], parts: Sequence[tuple[Sequence[str], Asked]]) -> Samples:
    """Answers of several policies as samples, all densities known on all of them.

    ``names``: the adapters' policies, (G,). ``parts``: answers, and the names of those who drew them.
    """
    prompts = sampler.task.measured
    place = [i for _, asked in parts for i in asked.place]
    distinct = len(set(prompts.texts)) == len(prompts)
    quality = [asked.gold for _, asked in parts if asked.gold is not None]
    ratios = np.concatenate([_log_ratios(sampler, asked) for _, asked in parts], axis=1) if names else ()
    return Samples.from_arrays(
        [prompts.texts[i] for i in place] if distinct else place,
        np.concatenate([asked.reward for _, asked in parts]),
        gold=np.concatenate(quality) if quality else None,
        answer=[text for _, asked in parts for text in asked.texts],
        source=[who[policy] for who, asked in parts for policy in asked.policy],
        log_ratio=dict(zip(names, ratios, strict=True)),
    )


def _log_ratios(sampler: Sampler, asked: Asked) -> Floats:
    """Log policy - log reference of answers under every policy, (G, N), nats: sums over tokens."""
    parts = []
    with torch.no_grad(), sampler.adapters.merged():
        for prompts, rolled in asked.pieces:
            parts += [_scored(sampler, prompts, rolled, group) for group in range(rolled.tokens.shape[0])]
    return np.concatenate(parts, axis=1)


def _scored(sampler: Sampler, prompts: Prompts, rolled: Rollout, group: int) -> Floats:
    groups = sampler.adapters.groups
    shown = {name: getattr(rolled, name)[group].expand(groups, -1, -1) for name in ("tokens", "mask", "behavior_logp")}
    same = Rollout(**shown, finished=rolled.finished[group].expand(groups, -1), prompt=rolled.prompt)
    scores = score_answers(sampler.decoder, sampler.adapters, prompts, same, chunk=sampler.training.chunk)
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
