"""The ladder on a model of one's own: each rung is a sweep of one beta, kept with its adapters."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from kleash import _checks
from kleash.runs import read_run, written_alone
from kleash.samples import REFERENCE, Samples
from kleash.train.adapters import attach
from kleash.train.asking import Task
from kleash.train.batches import Sampler
from kleash.train.decoder import Decoder
from kleash.train.ladder import RUNGS, Ladder, climbed, opened
from kleash.train.language import LanguageConfig
from kleash.train.lm import train_lm
from kleash.train.lm_sweep import loaded, model_name, sampled_frontier, written
from kleash.train.options import Training
from kleash.train.own import gathered
from kleash.train.reference import Asked, answers_of
from kleash.train.streams import Purpose
from kleash.train.tabular import Progress

__all__ = ["ladder_model"]


def ladder_model(
    config: LanguageConfig,
    *,
    answers: int | None = None,
    seed: int | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> Ladder:
    """Climb to the peak of a language model's dial with at most two trained policies.

    Parameters
    ----------
    config
        As for a sweep; its betas and seeds are not used.
    answers
        Answers to each held-out prompt in all: a third from the reference, and from each policy; default three times
        ``forecast_samples``.
    seed
        Start of all randomness; default the configuration's.
    out, resume
        A folder that keeps every rung as a run of its own, so that a ladder that was stopped goes on. The judge is
        asked again about the answers between the trainings.
    progress
        Called with (steps done, steps) of each training.

    Returns
    -------
    Ladder
    """
    training = replace(config.training, seeds=1, seed=config.training.seed if seed is None else seed, temperature=1.0)
    size = 3 * config.training.forecast_samples if answers is None else answers
    each = _checks.integer(size, name="answers", at_least=24) // (RUNGS + 1)
    model, task, named, inputs = loaded(config)
    asked = {"answers": size} | named | replace(training, beta=(1.0,)).settled()
    run = opened(out, config=asked, resume=resume, seed=training.seed, inputs=inputs)
    with written_alone(run):
        climber = _Model(
            world=model_name(config),
            model=model,
            task=task,
            training=training,
            each=each,
            config=named,
            folder=None if run is None else run.path,
            inputs=inputs,
            progress=progress,
        )
        return climbed(climber, run=run, seed=training.seed)


@dataclass(kw_only=True, eq=False)
class _Model:
    """A model with the adapters of its rungs, ``values``: none is on it between two calls."""

    world: str
    model: Any
    task: Task
    training: Training
    each: int
    config: Mapping[str, Any]
    folder: Path | None
    inputs: list[dict[str, Any]]
    progress: Progress | None
    options: Mapping[str, Any] = field(default_factory=dict)
    values: list[torch.Tensor] = field(default_factory=list)
    asked: dict[str, Asked] = field(init=False)

    def __post_init__(self) -> None:
        key = (Purpose.REFERENCE, 0, 0)
        with self._adapted([0]) as sampler:
            drawn = answers_of(sampler, self.task.measured, key=key, index=[0], samples=self.each)
        self.asked = {REFERENCE: drawn}

    @contextlib.contextmanager
    def _adapted(self, index: list[int]) -> Iterator[Sampler]:
        """The model with adapters of the rungs so far, or as good as none."""
        how = self.training
        adapters = attach(self.model, groups=index, rank=how.rank, alpha=how.alpha, targets=how.targets, seed=how.seed)
        try:
            if self.values:
                with torch.no_grad():
                    adapters.values.copy_(torch.cat(self.values))
            yield Sampler(task=self.task, training=how, decoder=Decoder(self.model), adapters=adapters)
        finally:
            adapters.detach()

    def samples(self) -> Samples:
        """As many answers of every policy to every held-out prompt, each scored under all of them."""
        names = [name for name in self.asked if name != REFERENCE]
        with self._adapted(list(range(max(len(names), 1)))) as sampler:
            return gathered(sampler, names, [([name], asked) for name, asked in self.asked.items()])

    def train(self, beta: float, number: int) -> float:
        """A sweep of one beta, or of that which was begun; then answers of its policy."""
        folder = None if self.folder is None else self.folder / f"rung-{number}"
        begun = folder is not None and (folder / "run.json").exists()
        if begun and folder is not None:
            beta = float(read_run(folder).config["beta"][0])
        training = replace(self.training, beta=(beta,), seed=self.training.seed + number)
        run = train_lm(
            self.model,
            self.task,
            training,
            out=folder,
            resume=begun,
            kind="sweep",
            config=self.config,
            inputs=self.inputs,
            progress=self.progress,
        )
        with written_alone(run.run):
            try:
                self.values.append(run.adapters.values.detach().clone())
                key = (Purpose.OWN, 0, 0)
                drawn = answers_of(
                    run.sampler, self.task.measured, key=key, index=[number], samples=self.each, reference=False
                )
            finally:
                run.adapters.detach()
            self.asked[f"rung {number}"] = drawn
            if run.origin != "read-back":
                reference: Asked = self.asked[REFERENCE]
                written(
                    run, world=self.world, frontier=sampled_frontier(run, [reference.samples()]), inputs=self.inputs
                )
        return beta
