"""Answers of every policy to some prompts, drawn and judged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kleash.train.adapters import GroupedLoRA
from kleash.train.asking import Judge, PromptSet, Task, ask
from kleash.train.decoder import Decoder, Prompts, pad_left
from kleash.train.options import Training
from kleash.train.rollout import Rollout, rollout, uniforms
from kleash.train.scoring import Distinct, distinct
from kleash.train.streams import Purpose

__all__ = ["Batch", "Key", "Sampler"]

Key = tuple[Purpose, int, int]
"""Which random numbers: what they are for, at which step, for which piece of it."""


@dataclass(kw_only=True, eq=False)
class Batch:
    """Answers to some of the prompts that belong together, with what everybody said of them.

    ``which`` are the prompts, ``share`` is how much of all those answers they are, ``start`` the row of the first among
    them. ``ids`` and ``answers`` hold every different answer once, ``reward`` (G, B) a score for each.
    """

    which: list[int]
    share: float
    start: int
    rolled: Rollout
    same: Distinct
    prompts: Prompts
    ids: list[list[int]]
    answers: list[str]
    reward: Tensor = field(init=False)


@dataclass(frozen=True, kw_only=True, eq=False)
class Sampler:
    """Draws answers of all policies and has them judged."""

    task: Task
    training: Training
    decoder: Decoder
    adapters: GroupedLoRA

    def uniform(self, key: Key, *, rows: int, index: Sequence[int] | None = None) -> Tensor:
        """The random numbers behind ``rows`` answers of each policy, or of each seed in ``index``: (G, rows, T)."""
        purpose, step, piece = key
        return uniforms(
            seed=self.training.seed,
            index=self.training.seed_index if index is None else index,
            step=step,
            rows=rows,
            length=self.training.max_new_tokens,
            piece=piece,
            purpose=purpose,
        )

    def roll(self, prompts: Prompts, uniform: Tensor) -> Rollout:
        """Answers to each prompt in turn, as many as there are random numbers."""
        return rollout(
            self.decoder,
            self.adapters,
            prompts,
            uniform=uniform,
            eos=self.task.eos,
            temperature=self.training.temperature,
        )

    def padded(self, some: PromptSet, which: Sequence[int]) -> Prompts:
        """Some of the prompts as the decoder takes them."""
        return pad_left([some.ids[i] for i in which], device=self.decoder.device)

    def draw(self, some: PromptSet, which: list[int], *, samples: int, key: Key) -> list[Batch]:
        """Answers of all policies to some prompts, judged; in parts of ``prompts_at_once`` prompts."""
        uniform = self.uniform(key, rows=len(which) * samples)
        size = self.training.prompts_at_once or len(which)
        parts = []
        for start in range(0, len(which), size):
            mine = which[start : start + size]
            prompts = self.padded(some, mine)
            rolled = self.roll(prompts, uniform[:, start * samples : (start + len(mine)) * samples])
            same = distinct(rolled)
            ids = _different(rolled, same)
            batch = Batch(
                which=mine,
                share=len(mine) / len(which),
                start=start * samples,
                rolled=rolled,
                same=same,
                prompts=prompts,
                ids=ids,
                answers=[self.task.decode(row) for row in ids],
            )
            batch.reward = self.scored(self.task.judge, "judge", some, batch)
            parts.append(batch)
        return parts

    def pieces(self, some: PromptSet, *, samples: int, step: int) -> Iterator[Batch]:
        """Answers for measuring, in pieces no larger than a training step."""
        size, each = self.training.prompts_per_step or len(some), self.training.samples
        starts = range(0, len(some), size)
        for turn in range(-(-samples // each)):
            for number, start in enumerate(starts):
                which = list(range(start, min(start + size, len(some))))
                key = (Purpose.EVALUATION, step, turn * len(starts) + number)
                yield from self.draw(some, which, samples=each, key=key)

    def scored(self, who: Judge, name: str, some: PromptSet, batch: Batch) -> Tensor:
        """Scores (G, B), float64, each different answer asked about once."""
        rolled, same = batch.rolled, batch.same
        first = same.first.cpu()
        place = [batch.which[i] for i in rolled.prompt.cpu()[first % rolled.tokens.shape[1]].tolist()]
        scores = ask(who, name, some, place, answers=batch.answers, ids=batch.ids)
        return torch.as_tensor(scores, device=rolled.tokens.device)[same.place]


def _different(rolled: Rollout, same: Distinct) -> list[list[int]]:
    """Token ids of every different answer."""
    length, first = rolled.tokens.shape[2], same.first.cpu()
    tokens = rolled.tokens.reshape(-1, length).cpu()[first].tolist()
    sizes = rolled.mask.reshape(-1, length).sum(dim=1).cpu()[first].tolist()
    return [row[:size] for row, size in zip(tokens, sizes, strict=True)]
