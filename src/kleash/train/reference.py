"""Answers of the untouched reference beside trained policies: what a gain is measured against, and the forecast."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kleash.forecasting.forecast import PromptsAre, forecast
from kleash.frontier import Frontier
from kleash.samples import Samples
from kleash.train.asking import PromptSet, ask
from kleash.train.batches import Key
from kleash.train.lm import LMRun
from kleash.train.streams import Purpose
from kleash.worlds import World

__all__ = ["forecast_before", "reference_samples"]


def reference_samples(
    run: LMRun, prompts: PromptSet, *, key: Key, index: Sequence[int], samples: int, each: int | None = None
) -> Samples:
    """Scored answers of the untouched reference: what a forecast needs, and what a gain is measured against.

    ``key`` and ``index`` say which stream of random numbers it is, and of which seed. Of ``samples`` answers to a
    prompt ``each`` are drawn together (default: all), which settles the random numbers an answer gets: with those of
    training the last evaluation's own. ``samples`` is rounded up to a multiple.
    """
    sampler, task, (purpose, step, piece) = run.sampler, run.sampler.task, key
    texts: list[str] = []
    place: list[int] = []
    ids: list[list[int]] = []
    size = run.training.prompts_per_step or len(prompts)
    each = samples if each is None else each
    starts = list(range(0, len(prompts), size)) * -(-samples // each)
    for number, start in enumerate(starts):
        which = list(range(start, min(start + size, len(prompts))))
        uniform = sampler.uniform((purpose, step, piece + number), rows=len(which) * each, index=index)
        with run.adapters.reference():
            rolled = sampler.roll(sampler.padded(prompts, which), uniform)
        sizes = rolled.mask[0].sum(dim=1).tolist()
        answers = [row[:n] for row, n in zip(rolled.tokens[0].tolist(), sizes, strict=True)]
        ids += answers
        texts += [task.decode(row) for row in answers]
        place += [which[i] for i in rolled.prompt.tolist()]
    reward = ask(task.judge, "judge", prompts, place, answers=texts, ids=ids)
    quality = None if task.gold is None else ask(task.gold, "gold", prompts, place, answers=texts, ids=ids)
    return Samples.from_arrays(place, reward, gold=quality, answer=texts)


def forecast_before(run: LMRun, *, prompts: PromptsAre, world: World | None = None) -> Frontier | None:
    """What samples of the reference say of the trained betas above 0.

    None where there are no such betas, fewer than two samples, or scores that do not differ. Of a world that is known,
    the judge's top and the worst quality are known too.
    """
    above = run.beta[run.beta > 0]
    if run.training.forecast_samples < 2:
        return None
    drawn = reference_samples(
        run,
        run.sampler.task.measured,
        key=(Purpose.REFERENCE, 0, 0),
        index=[0],
        samples=run.training.forecast_samples,
    )
    if not above.size or np.ptp(drawn.reward) == 0:
        return None
    top, least = (None, None) if world is None else (float(world.reward.max()), float(world.gold.min()))
    return forecast(drawn, beta=above, reward_max=top, gold_min=least, prompts=prompts, seed=run.training.seed).frontier
