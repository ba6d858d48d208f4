"""The loop: draw answers from every policy, have them judged, score them, move each policy's adapters; and save.

What a step does depends on the configuration and the adapters alone, never on a state of a random number generator, so
a run goes on after a kill as if nothing had been.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from kleash.errors import DataError, KleashError
from kleash.estimates import Floats
from kleash.runs import Run
from kleash.train import objectives
from kleash.train.adapters import GroupedLoRA
from kleash.train.asking import PromptSet
from kleash.train.batches import Batch, Sampler
from kleash.train.optimiser import GroupedAdam, rate
from kleash.train.options import Training
from kleash.train.records import Row, metric_rows, rollout_rows, summary, within_prompt, write_policies
from kleash.train.rollout import uniforms
from kleash.train.scoring import reference_hidden, score_answers
from kleash.train.streams import Purpose, stream

__all__ = ["Evaluate", "Loop"]

Evaluate = Callable[[int, GroupedLoRA], Mapping[str, ArrayLike]]
"""A hook for exact evaluation: called with a step and the adapters, returns values of shape (G,) by name."""


@dataclass(kw_only=True, eq=False)
class Loop:
    """All that training needs; made by :func:`kleash.train.lm.train_lm`."""

    sampler: Sampler
    adam: GroupedAdam
    evaluate: Evaluate | None
    run: Run | None
    progress: Callable[[int, int], None] | None
    watch: Callable[[int, Sequence[Row]], None] | None
    rows: list[Row] = field(default_factory=list)
    done: int = 0
    unit: Tensor = field(init=False)  # (G,), reward units; 0 until two answers to a prompt differ in score
    torn: bool = False  # between the start of an update and the last word on its step: nothing that may be saved

    def __post_init__(self) -> None:
        self.unit = torch.zeros(len(self.index), dtype=torch.float64, device=self.sampler.decoder.device)

    @property
    def training(self) -> Training:
        """What was asked."""
        return self.sampler.training

    @property
    def adapters(self) -> GroupedLoRA:
        """What is trained."""
        return self.sampler.adapters

    @property
    def index(self) -> list[int]:
        """The seed of each policy, (G,)."""
        return self.training.seed_index

    @property
    def betas(self) -> Floats:
        """The coefficient of each policy, (G,)."""
        return self.training.policy_beta

    # ------------------------------------------------------------------------------------------------ going on

    def restore(self, run: Run) -> Literal["trained", "resumed", "read-back"]:
        """Take up what is in the folder."""
        there = run.load_checkpoint()
        if there is None:
            return "trained"
        final = there.step == self.training.steps
        try:
            with torch.no_grad():
                self.adapters.values.copy_(torch.from_numpy(there.arrays["values"]))
                self.unit.copy_(torch.from_numpy(there.arrays["unit"]))
            if not final:
                self.adam.restore(there.arrays, steps=there.step * self.training.epochs)
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
        if self.done < self.training.steps:
            arrays |= self.adam.state()
        self.run.save_checkpoint(step=self.done, arrays=arrays)

    # ------------------------------------------------------------------------------------------------ the loop

    def train(self) -> None:
        """All steps that are left, then the last evaluation."""
        steps, saved = self.training.steps, self.done
        try:
            while self.done < steps:
                if self.progress is not None:
                    self.progress(self.done, steps)
                rows = self.step(self.done)
                self.keep(rows)
                self.done += 1
                self.torn = False
                if self.done % self.training.checkpoint_every == 0 or self.done == steps:
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
        training, prompts = self.training, self.sampler.task.prompts
        which = _which(step, len(prompts), training)
        learning_rate = rate(training.learning_rate, schedule=training.schedule, step=step, steps=training.steps)
        whole = training.prompts_at_once is None or training.prompts_at_once >= len(which)
        once = self.adapters.merged if whole else contextlib.nullcontext  # several backward passes need one each
        with once():
            parts = self.sampler.draw(prompts, which, samples=training.samples, key=(Purpose.TRAINING, step, 0))
            extra = self.look(step, parts) if step % training.evaluate_every == 0 else {}
            self.measure_unit(parts)
            means, again = [], []
            for number, batch in enumerate(parts):
                ref = self.reference(batch)
                with self.adapters.merged():
                    scores = self.score(batch, ref)
                    means.append(summary(batch.rolled, scores, batch.reward, beta=self.betas))
                    old_logp = scores.logp.detach() if training.epochs > 1 else None
                    loss = self.loss(batch, scores, step, old_logp).sum() * batch.share
                    self.adapters.backward(loss, add=number > 0)
                if training.epochs > 1:
                    again.append((batch, ref, old_logp))
        self.torn = True
        norm = self.adam.step(learning_rate)
        for _ in range(1, training.epochs):
            for number, (batch, ref, old_logp) in enumerate(again):
                with self.adapters.merged():
                    loss = self.loss(batch, self.score(batch, ref), step, old_logp).sum() * batch.share
                    self.adapters.backward(loss, add=number > 0)
            self.adam.step(learning_rate)
        table = together([batch.share for batch in parts], means)
        return self.table(step, table | extra | {"grad_norm": norm, "learning_rate": learning_rate})

    def measure_unit(self, parts: Sequence[Batch]) -> None:
        """The unit of the judge: the SD of the first scores that differ, of all parts of a step together."""
        centred = torch.cat([within_prompt(batch.reward, batch.rolled) for batch in parts], dim=1)
        self.unit = torch.where(self.unit > 0, self.unit, centred.std(dim=1, correction=0))

    def reference(self, batch: Batch) -> Tensor:
        """The reference's hidden states, which stay the same through a step's updates."""
        return reference_hidden(self.sampler.decoder, self.adapters, batch.prompts, batch.rolled, same=batch.same)

    def score(self, batch: Batch, ref_hidden: Tensor | None = None) -> objectives.Scores:
        """What policies and reference say of a batch."""
        return score_answers(
            self.sampler.decoder,
            self.adapters,
            batch.prompts,
            batch.rolled,
            same=batch.same,
            ref_hidden=ref_hidden,
            chunk=self.training.chunk,
        )

    def loss(self, batch: Batch, scores: objectives.Scores, step: int, old_logp: Tensor | None) -> Tensor:
        """The objective's loss per group."""
        options, rolled, reward = self.training.options, batch.rolled, batch.reward
        beta = torch.as_tensor(self.betas, dtype=torch.float32, device=reward.device)
        if self.training.objective == "dpo":
            labels = {"uniform": self.labels(batch, step)} | dict(options)
            return objectives.dpo_loss(scores, rolled.mask, reward, rolled.prompt, beta, **labels)
        stale: dict[str, Any] = {} if old_logp is None else {"old_logp": old_logp, "clip": self.training.clip}
        if self.training.objective == "grpo":
            return objectives.grpo_loss(scores, rolled.mask, reward, rolled.prompt, beta, **stale, **options)
        centred = within_prompt(reward, rolled)
        unit = torch.where(self.unit > 0, self.unit, 1.0)
        return objectives.rloo_loss(
            scores,
            rolled.mask,
            (centred / unit[:, None]).float(),
            rolled.prompt,
            beta / unit.float(),
            **stale,
            **options,
        )

    def labels(self, batch: Batch, step: int) -> Tensor:
        """Random numbers that say which answer of a pair wins, (G, B / 2)."""
        pairs = batch.reward.shape[1] // 2
        drawn = uniforms(
            seed=self.training.seed,
            index=self.index,
            step=step,
            rows=round(pairs / batch.share),  # of the whole step
            length=1,
            purpose=Purpose.LABELS,
        )
        return drawn[:, batch.start // 2 : batch.start // 2 + pairs, 0].to(batch.reward.device)

    def finish(self) -> None:
        """Measure the trained policies on many answers; write rollouts and adapters."""
        task, some = self.sampler.task, self.sampler.task.measured
        sums, sizes, frames = [], [], []
        for batch in self.sampler.pieces(some, samples=self.training.final_samples, step=self.training.steps):
            with torch.no_grad(), self.adapters.merged():
                scores = self.score(batch)
            table = summary(batch.rolled, scores, batch.reward, beta=self.betas)
            gold = None if task.gold is None else self.sampler.scored(task.gold, "gold", some, batch)
            if gold is not None:
                table["gold"] = gold.mean(dim=1)
            sums.append(table)
            sizes.append(batch.rolled.tokens.shape[1])
            if self.run is not None:
                frames.append(self.frame(some, batch, scores, gold))
        table = together(sizes, sums)
        if self.evaluate is not None:
            table |= dict(self.evaluate(self.training.steps, self.adapters))
        self.keep(self.table(self.training.steps, table))
        if self.run is not None:
            write_policies(self.run.path, adapters=self.adapters, beta=self.betas, index=self.index, frames=frames)

    def look(self, step: int, parts: Sequence[Batch]) -> dict[str, Any]:
        """Gold, and what the evaluation hook says, at a step."""
        seen: dict[str, Any] = {}
        sampler, task = self.sampler, self.sampler.task
        if task.gold is not None:
            pieces = sampler.pieces(task.measured, samples=self.training.samples, step=step)
            asked = parts if task.held_out is None else pieces
            gold = [sampler.scored(task.gold, "gold", task.measured, batch) for batch in asked]
            seen["gold"] = torch.cat(gold, dim=1).mean(dim=1)
        if self.evaluate is not None:
            seen |= dict(self.evaluate(step, self.adapters))
        return seen

    def table(self, step: int, values: Mapping[str, Any]) -> list[Row]:
        """Rows of metrics."""
        return metric_rows(step, values, beta=self.betas, index=self.index)

    def frame(self, some: PromptSet, batch: Batch, scores: objectives.Scores, gold: Tensor | None) -> Any:
        """The answers of a piece, as they are written."""
        prompt = [batch.which[i] for i in batch.rolled.prompt.tolist()] * len(self.index)
        return rollout_rows(
            batch.rolled,
            scores,
            step=self.training.steps,
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


def _which(step: int, size: int, training: Training) -> list[int]:
    """The prompts of a step: pass after pass through all of them, each in an order of its own."""
    wanted = training.prompts_per_step or size
    if wanted == size:
        return list(range(size))
    chosen = []
    for place in range(step * wanted, (step + 1) * wanted):
        turn, at = divmod(place, size)
        chosen.append(int(stream(training.seed, Purpose.ORDER, turn).permutation(size)[at]))
    return chosen
