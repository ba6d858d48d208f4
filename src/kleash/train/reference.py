"""Answers of the untouched reference beside trained policies: what a gain is measured against, and the forecast."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kleash.estimates import Floats
from kleash.forecasting.forecast import PromptsAre, forecast
from kleash.frontier import Frontier
from kleash.samples import Samples
from kleash.train.asking import PromptSet, ask
from kleash.train.batches import Key, Sampler
from kleash.train.decoder import Prompts
from kleash.train.lm import LMRun
from kleash.train.rollout import Rollout
from kleash.train.streams import Purpose
from kleash.worlds import World

__all__ = ["Asked", "answers_of", "forecast_before", "reference_answers"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Asked:
    """N scored answers: the place of each one's prompt, its text, its scores, and which policy drew it (0: the first).

    ``pieces`` are the rollouts they come from, with their prompts: group-major, as the answers are.
    """

    place: list[int]
    texts: list[str]
    policy: list[int]
    reward: Floats
    gold: Floats | None
    pieces: tuple[tuple[Prompts, Rollout], ...]

    def samples(self) -> Samples:
        """They as samples of the reference."""
        return Samples.from_arrays(self.place, self.reward, gold=self.gold, answer=self.texts)


def answers_of(
    sampler: Sampler,
    prompts: PromptSet,
    *,
    key: Key,
    index: Sequence[int],
    samples: int,
    each: int | None = None,
    reference: bool = True,
) -> Asked:
    """Scored answers of the untouched reference, or of the trained policies.

    ``key`` and ``index`` say which stream of random numbers it is, and of which seed; of the policies ``index`` has one
    for each. Of ``samples`` answers to a prompt ``each`` are drawn together (default: all), which settles the random
    numbers an answer gets: with those of training the last evaluation's own. ``samples`` is rounded up to a multiple.
    """
    task, (purpose, step, piece) = sampler.task, key
    texts: list[str] = []
    place: list[int] = []
    policy: list[int] = []
    ids: list[list[int]] = []
    pieces = []
    size = sampler.training.prompts_per_step or len(prompts)
    each = samples if each is None else each
    starts = list(range(0, len(prompts), size)) * -(-samples // each)
    for number, start in enumerate(starts):
        which = list(range(start, min(start + size, len(prompts))))
        uniform = sampler.uniform((purpose, step, piece + number), rows=len(which) * each, index=index)
        padded = sampler.padded(prompts, which)
        with sampler.adapters.reference() if reference else contextlib.nullcontext():
            rolled = sampler.roll(padded, uniform)
        groups, rows, length = rolled.tokens.shape
        sizes = rolled.mask.sum(dim=2).reshape(-1).tolist()
        answers = [row[:n] for row, n in zip(rolled.tokens.reshape(-1, length).tolist(), sizes, strict=True)]
        ids += answers
        texts += [task.decode(row) for row in answers]
        place += [which[i] for i in rolled.prompt.tolist()] * groups
        policy += [group for group in range(groups) for _ in range(rows)]
        pieces.append((padded, rolled))
    reward = ask(task.judge, "judge", prompts, place, answers=texts, ids=ids)
    quality = None if task.gold is None else ask(task.gold, "gold", prompts, place, answers=texts, ids=ids)
    return Asked(place=place, texts=texts, policy=policy, reward=reward, gold=quality, pieces=tuple(pieces))


def reference_answers(sampler: Sampler) -> Asked | None:
    """The reference's answers that the forecasts of a sweep begin with.

    None where none were asked for, there are no betas above 0, or all scores are the same.
    """
    training = sampler.training
    size = training.forecast_samples
    if size < 2:
        return None
    asked = answers_of(sampler, sampler.task.measured, key=(Purpose.REFERENCE, 0, 0), index=[0], samples=size)
    return asked if max(training.beta) > 0 and np.ptp(asked.reward) > 0 else None


def forecast_before(
    run: LMRun, drawn: Asked | None, *, prompts: PromptsAre, world: World | None = None
) -> Frontier | None:
    """What samples of the reference say of the trained betas above 0; None where there are none.

    Of a world that is known, the judge's top and the worst quality are known too.
    """
    if drawn is None:
        return None
    top, least = (None, None) if world is None else (float(world.reward.max()), float(world.gold.min()))
    return forecast(
        drawn.samples(),
        beta=run.beta[run.beta > 0],
        reward_max=top,
        gold_min=least,
        prompts=prompts,
        seed=run.training.seed,
    ).frontier
