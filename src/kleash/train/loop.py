"""The loop itself: draw, judge, score, move; and save where it stands.

What a step does depends on the configuration and the adapters alone, never on a state of a random number generator, so
a run goes on after a kill as if nothing had been.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from kleash.errors import DataError, KleashError
from kleash.runs import Run
from kleash.train import objectives
from kleash.train.adapters import GroupedLoRA
from kleash.train.asking import Judge, PromptSet, ask
from kleash.train.decoder import Decoder, Prompts, pad_left
from kleash.train.optimiser import GroupedAdam, Schedule, rate
from kleash.train.records import Row, metric_rows, rollout_rows, summary, within_prompt, write_policies
from kleash.train.rollout import Rollout, rollout, uniforms
from kleash.train.scoring import Distinct, distinct, reference_hidden, score_answers
from kleash.train.streams import Purpose, stream

__all__ = ["Loop", "Settings"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a loop needs to know, checked."""

    seeds: int
    seed: int
    steps: int
    samples: int
    prompts_per_step: int
    max_new_tokens: int
    eos: tuple[int, ...]
    objective: objectives.Objective
    options: Mapping[str, Any]
    epochs: int
    clip: float
    learning_rate: float
    schedule: Schedule
    temperature: float
    evaluate_every: int
    final_samples: int
    checkpoint_every: int
    chunk: int | None
    prompts_at_once: int | None

    def told(self) -> dict[str, Any]:
        """Plain data of what settles the result; how often a checkpoint is made and how memory is saved do not."""
        left_out = ("checkpoint_every", "chunk", "prompts_at_once")
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in left_out}
        return plain | {"eos": list(self.eos), "options": dict(self.options)}


@dataclass(kw_only=True, eq=False)
class _Batch:
    """Answers to some of the prompts that belong together, with what everybody said of them.

    ``share`` is how much of all those answers they are, ``start`` the row of the first among them.
    """

    which: list[int]
    share: float
    start: int
    rolled: Rollout
    same: Distinct
    prompts: Prompts
    answers: list[str]
    reward: Tensor


@dataclass(kw_only=True, eq=False)
class Loop:
    """All that training needs; made by :func:`kleash.train.lm.train_lm`."""

    settings: Settings
    beta: Floats
    index: list[int]
    prompts: PromptSet
    held_out: PromptSet | None
    decoder: Decoder
    adapters: GroupedLoRA
    adam: GroupedAdam
    judge: Judge
    gold: Judge | None
    decode: Callable[[list[int]], str]
    evaluate: Callable[[int, GroupedLoRA], Mapping[str, ArrayLike]] | None
    run: Run | None
    progress: Callable[[int, int], None] | None
    watch: Callable[[int, Sequence[Row]], None] | None
    rows: list[Row] = field(default_factory=list)
    done: int = 0
    unit: Tensor = field(init=False)  # (G,), reward units; 0 until two answers to a prompt differ in score
    torn: bool = False  # between the start of an update and the last word on its step: nothing that may be saved

    def __post_init__(self) -> None:
        self.unit = torch.zeros(len(self.index), dtype=torch.float64, device=self.decoder.device)

    @property
    def betas(self) -> Floats:
        """The coefficient of each group, (G,)."""
        return np.repeat(self.beta, self.settings.seeds)

    # ------------------------------------------------------------------------------------------------ going on

    def restore(self, run: Run) -> Literal["trained", "resumed", "read-back"]:
        """Take up what is in the folder."""
        there = run.load_checkpoint()
        if there is None:
            return "trained"
        final = there.step == self.settings.steps
        try:
            with torch.no_grad():
                self.adapters.values.copy_(torch.from_numpy(there.arrays["values"]))
                self.unit.copy_(torch.from_numpy(there.arrays["unit"]))
            if not final:
                self.adam.restore(there.arrays, steps=there.step * self.settings.epochs)
        except (KeyError, RuntimeError) as error:
            raise DataError("does not belong to this run", path=run.path / "checkpoint.safetensors") from error
        self.rows = run.metrics() if (run.path / "metrics.jsonl").exists() else []
        self.done = there.step
        return "read-back" if run.state == "finished" else "resumed"

    def save(self) -> None:
        """A checkpoint of where the loop stands."""
        if self.run is None:
            return
        arrays: dict[str, NDArray[Any]] = {
            "values": self.adapters.values.detach().cpu().numpy(),
            "unit": self.unit.cpu().numpy(),
        }
        if self.done < self.settings.steps:
            arrays |= self.adam.state()
        self.run.save_checkpoint(step=self.done, arrays=arrays)

    # ------------------------------------------------------------------------------------------------ the loop

    def train(self) -> None:
        """All steps that are left, then the last evaluation."""
        steps, saved = self.settings.steps, self.done
        try:
            while self.done < steps:
                if self.progress is not None:
                    self.progress(self.done, steps)
                rows = self.step(self.done)
                self.keep(rows)
                self.done += 1
                self.torn = False
                if self.done % self.settings.checkpoint_every == 0 or self.done == steps:
                    self.save()
                    saved = self.done
            self.finish()
        except BaseException:
            if not self.torn and saved < self.done:
                with contextlib.suppress(KleashError):  # what went wrong first is what the user has to know
                    self.save()
            raise
        if self.progress is not None:
            self.progress(steps, steps)

    def keep(self, rows: list[Row]) -> None:
        """Rows in memory, on disk and to whoever watches."""
        if self.run is not None:
            self.run.append_metrics(rows)
        self.rows.extend(rows)
        if self.watch is not None:
            self.watch(rows[0]["step"], rows)

    def step(self, step: int) -> list[Row]:
        """One batch and its updates; the rows tell of the policies before them."""
        settings = self.settings
        which = _which(step, len(self.prompts), settings)
        learning_rate = rate(settings.learning_rate, schedule=settings.schedule, step=step, steps=settings.steps)
        whole = settings.prompts_at_once is None or settings.prompts_at_once >= len(which)
        once = self.adapters.merged if whole else contextlib.nullcontext  # several backward passes need one each
        with once():
            parts = self.draw(self.prompts, which, samples=settings.samples, key=(Purpose.TRAINING, step, 0))
            extra = self.look(step, parts) if step % settings.evaluate_every == 0 else {}
            self.measure_unit(parts)
            told, again = [], []
            for number, batch in enumerate(parts):
                ref = reference_hidden(self.decoder, self.adapters, batch.prompts, batch.rolled, same=batch.same)
                with self.adapters.merged():
                    scores = self.score(batch, ref)
                    told.append(summary(batch.rolled, scores, batch.reward, beta=self.betas))
                    old_logp = scores.logp.detach() if settings.epochs > 1 else None
                    loss = self.loss(batch, scores, step, old_logp).sum() * batch.share
                    self.adapters.backward(loss, add=number > 0)
                if settings.epochs > 1:
                    again.append((batch, ref, old_logp))
        self.torn = True
        norm = self.adam.step(learning_rate)
        for _ in range(1, settings.epochs):
            for number, (batch, ref, old_logp) in enumerate(again):
                with self.adapters.merged():
                    loss = self.loss(batch, self.score(batch, ref), step, old_logp).sum() * batch.share
                    self.adapters.backward(loss, add=number > 0)
            self.adam.step(learning_rate)
        table = together([batch.share for batch in parts], told)
        return self.table(step, table | extra | {"grad_norm": norm, "learning_rate": learning_rate})

    def measure_unit(self, parts: Sequence[_Batch]) -> None:
        """The unit of the judge: the SD of the first scores that differ, of all parts of a step together."""
        centred = torch.cat([within_prompt(batch.reward, batch.rolled) for batch in parts], dim=1)
        self.unit = torch.where(self.unit > 0, self.unit, centred.std(dim=1, correction=0))

    def score(self, batch: _Batch, ref_hidden: Tensor | None = None) -> objectives.Scores:
        """What policies and reference say of a batch."""
        return score_answers(
            self.decoder,
            self.adapters,
            batch.prompts,
            batch.rolled,
            same=batch.same,
            ref_hidden=ref_hidden,
            chunk=self.settings.chunk,
        )

    def loss(self, batch: _Batch, scores: objectives.Scores, step: int, old_logp: Tensor | None) -> Tensor:
        """The objective's loss per group."""
        settings = self.settings
        rolled, reward = batch.rolled, batch.reward
        beta = torch.as_tensor(self.betas, dtype=torch.float32, device=reward.device)
        if settings.objective == "dpo":
            pairs = reward.shape[1] // 2
            rows = round(pairs / batch.share)  # of the whole step
            uniform = uniforms(
                seed=settings.seed, index=self.index, step=step, rows=rows, length=1, purpose=Purpose.LABELS
            )[:, batch.start // 2 : batch.start // 2 + pairs, 0].to(reward.device)
            labels = {"uniform": uniform} | dict(settings.options)
            return objectives.dpo_loss(scores, rolled.mask, reward, rolled.prompt, beta, **labels)
        stale: dict[str, Any] = {} if old_logp is None else {"old_logp": old_logp, "clip": settings.clip}
        if settings.objective == "grpo":
            return objectives.grpo_loss(scores, rolled.mask, reward, rolled.prompt, beta, **stale, **settings.options)
        centred = within_prompt(reward, rolled)
        unit = torch.where(self.unit > 0, self.unit, 1.0)
        return objectives.rloo_loss(
            scores,
            rolled.mask,
            (centred / unit[:, None]).float(),
            rolled.prompt,
            beta / unit.float(),
            **stale,
            **settings.options,
        )

    def finish(self) -> None:
        """Measure the trained policies on many answers; write rollouts and adapters."""
        some = self.prompts if self.held_out is None else self.held_out
        sums, sizes, frames = [], [], []
        for batch in self.pieces(some, samples=self.settings.final_samples, step=self.settings.steps):
            with torch.no_grad(), self.adapters.merged():
                scores = self.score(batch)
            table = summary(batch.rolled, scores, batch.reward, beta=self.betas)
            gold = None if self.gold is None else self.scored(self.gold, "gold", some, batch)
            if gold is not None:
                table["gold"] = gold.mean(dim=1)
            sums.append(table)
            sizes.append(batch.rolled.tokens.shape[1])
            if self.run is not None:
                frames.append(self.frame(some, batch, scores, gold))
        table = together(sizes, sums)
        if self.evaluate is not None:
            table |= dict(self.evaluate(self.settings.steps, self.adapters))
        self.keep(self.table(self.settings.steps, table))
        if self.run is not None:
            write_policies(self.run.path, adapters=self.adapters, beta=self.betas, index=self.index, frames=frames)

    # ---------------------------------------------------------------------------------------------- one batch

    def draw(self, some: PromptSet, which: list[int], *, samples: int, key: tuple[Purpose, int, int]) -> list[_Batch]:
        """Answers of all policies to some prompts, judged; in parts of ``prompts_at_once`` prompts."""
        settings = self.settings
        purpose, step, piece = key
        uniform = uniforms(
            seed=settings.seed,
            index=self.index,
            step=step,
            rows=len(which) * samples,
            length=settings.max_new_tokens,
            piece=piece,
            purpose=purpose,
        )
        size = settings.prompts_at_once or len(which)
        parts = []
        for start in range(0, len(which), size):
            mine = which[start : start + size]
            prompts = pad_left([some.ids[i] for i in mine], device=self.decoder.device)
            rolled = rollout(
                self.decoder,
                self.adapters,
                prompts,
                uniform=uniform[:, start * samples : (start + len(mine)) * samples],
                eos=settings.eos,
                temperature=settings.temperature,
            )
            batch = _Batch(
                which=mine,
                share=len(mine) / len(which),
                start=start * samples,
                rolled=rolled,
                same=distinct(rolled),
                prompts=prompts,
                answers=[],
                reward=torch.empty(0),
            )
            batch.reward = self.scored(self.judge, "judge", some, batch)
            parts.append(batch)
        return parts

    def pieces(self, some: PromptSet, *, samples: int, step: int) -> Iterator[_Batch]:
        """Answers for measuring, in pieces no larger than a training step."""
        settings = self.settings
        size = settings.prompts_per_step
        starts = range(0, len(some), size)
        turns = -(-samples // settings.samples)
        for turn in range(turns):
            for number, start in enumerate(starts):
                which = list(range(start, min(start + size, len(some))))
                key = (Purpose.EVALUATION, step, turn * len(starts) + number)
                yield from self.draw(some, which, samples=settings.samples, key=key)

    def scored(self, who: Judge, name: str, some: PromptSet, batch: _Batch) -> Tensor:
        """Scores (G, B), float64, each different answer asked about once."""
        rolled, same = batch.rolled, batch.same
        _, rows, length = rolled.tokens.shape
        first = same.first.cpu()
        tokens = rolled.tokens.reshape(-1, length).cpu()[first].tolist()
        sizes = rolled.mask.reshape(-1, length).sum(dim=1).cpu()[first].tolist()
        ids = [row[:size] for row, size in zip(tokens, sizes, strict=True)]
        if not batch.answers:
            batch.answers = [self.decode(row) for row in ids]
        place = [batch.which[i] for i in rolled.prompt.cpu()[first % rows].tolist()]
        columns = {column: [values[i] for i in place] for column, values in some.columns.items()}
        texts = [some.texts[i] for i in place]
        scores = ask(who, name, texts, batch.answers, ids, columns)
        return torch.as_tensor(scores, device=rolled.tokens.device)[same.place]

    def look(self, step: int, parts: Sequence[_Batch]) -> dict[str, Any]:
        """Gold, and what the evaluation hook says, at a step."""
        found: dict[str, Any] = {}
        if self.gold is not None:
            some = self.prompts if self.held_out is None else self.held_out
            asked = parts if self.held_out is None else self.pieces(some, samples=self.settings.samples, step=step)
            gold = torch.cat([self.scored(self.gold, "gold", some, batch) for batch in asked], dim=1)
            found["gold"] = gold.mean(dim=1)
        if self.evaluate is not None:
            found |= dict(self.evaluate(step, self.adapters))
        return found

    def table(self, step: int, values: Mapping[str, Any]) -> list[Row]:
        """Rows of metrics."""
        return metric_rows(step, values, beta=self.betas, index=self.index)

    def frame(self, some: PromptSet, batch: _Batch, scores: objectives.Scores, gold: Tensor | None) -> Any:
        """The answers of a piece, as they are written."""
        prompt = [batch.which[i] for i in batch.rolled.prompt.tolist()] * len(self.index)
        return rollout_rows(
            batch.rolled,
            scores,
            step=self.settings.steps,
            beta=self.betas,
            index=self.index,
            prompt=prompt,
            texts=[some.texts[i] for i in prompt],
            answers=[batch.answers[i] for i in batch.same.place.reshape(-1).tolist()],
            reward=batch.reward,
            gold=gold,
        )


def together(weights: Sequence[float], parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Means over several sets of answers from the means over each; a root of a mean square is joined as such."""
    total = sum(weights)
    joined = {}
    for name in parts[0]:
        power = 2 if name == "reward_sd" else 1
        mean = sum(weight / total * part[name] ** power for weight, part in zip(weights, parts, strict=True))
        joined[name] = mean if power == 1 else mean**0.5
    return joined


def _which(step: int, size: int, settings: Settings) -> list[int]:
    """The prompts of a step: pass after pass through all of them, each in an order of its own."""
    wanted = settings.prompts_per_step
    if wanted == size:
        return list(range(size))
    chosen = []
    for place in range(step * wanted, (step + 1) * wanted):
        turn, at = divmod(place, size)
        chosen.append(int(stream(settings.seed, Purpose.ORDER, turn).permutation(size)[at]))
    return chosen
