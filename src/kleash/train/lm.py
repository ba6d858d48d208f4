"""Training: all betas and seeds of a language model in one process, one step for all of them at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from kleash import _checks
from kleash.errors import OptionError
from kleash.estimates import Floats
from kleash.kl import KLSpec
from kleash.runs import Run, open_run, written_alone
from kleash.train.adapters import GroupedLoRA, attach
from kleash.train.asking import PromptSet, Task
from kleash.train.batches import Sampler
from kleash.train.decoder import Decoder, HeadLimit, head_limit
from kleash.train.early_stopping import EarlyStop, early_stop
from kleash.train.loop import Evaluate, Loop
from kleash.train.optimiser import DECAYS, GroupedAdam
from kleash.train.options import Training
from kleash.train.records import Row

__all__ = ["LMRun", "train_lm"]

_STALLED = 0.99
"""A frozen head that keeps some token below this probability is worth a sentence: over an answer of six tokens at beta
0 it costs more than the 3 % that training is held to."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LMRun:
    """Trained policies and how they came about.

    Parameters
    ----------
    sampler
        The task and what was asked, the model, and the trained adapters on it; policies are group-major, G = B S.
    metrics
        A row per step, beta and seed. The row of a step is about the policy before the step's update; rows of step
        ``steps`` are about the trained policies. ``reward``, ``gold`` (null where it was not asked), ``kl``
        (full-vocabulary, nats per answer), ``kl_k1``, ``objective`` = reward - beta kl, ``length`` in tokens,
        ``finished`` (share of answers that ended by themselves), ``reward_sd``, ``grad_norm``, ``learning_rate``, and
        whatever an ``evaluate`` hook adds. With held-out prompts the last row's numbers, and ``gold`` throughout, are
        of those.
    notes
        Sentences on what the numbers do not show.
    early_stopping
        What stopping at beta 0 would have given instead; None where gold was not asked for.
    kl_spec
        What ``kl`` means.
    run
        The run folder, if there is one. It says ``running``, and is locked, until its `finish` is called.
    origin
        ``trained``, ``resumed`` from a checkpoint, or ``read-back`` from a finished run.
    """

    sampler: Sampler
    metrics: tuple[Row, ...]
    notes: tuple[str, ...]
    early_stopping: EarlyStop | None
    kl_spec: KLSpec
    config: Mapping[str, Any]
    run: Run | None
    origin: Literal["trained", "resumed", "read-back"]

    @property
    def training(self) -> Training:
        """What was asked; ``prompts_per_step`` is settled."""
        return self.sampler.training

    @property
    def adapters(self) -> GroupedLoRA:
        """The trained adapters, on the model."""
        return self.sampler.adapters

    @property
    def beta(self) -> Floats:
        """The coefficients, (B,)."""
        return np.asarray(self.training.beta)

    @property
    def seeds(self) -> int:
        """Runs per beta, S."""
        return self.training.seeds

    def final(self, name: str) -> Floats:
        """A column of the last rows, shape (B, S); NaN where it was not recorded."""
        return self.at(self.training.steps, name)

    def at(self, step: int, name: str) -> Floats:
        """A column of one step's rows, shape (B, S); NaN where it was not recorded."""
        values = [row.get(name) for row in self.metrics if row["step"] == step]
        array = np.asarray([np.nan if value is None else value for value in values], dtype=np.float64)
        return array.reshape(self.beta.size, self.seeds)


def train_lm(
    model: Any,
    task: Task,
    training: Training,
    *,
    evaluate: Evaluate | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    kind: str = "lm-sweep",
    config: Mapping[str, Any] | None = None,
    inputs: Sequence[Mapping[str, Any]] = (),
    progress: Callable[[int, int], None] | None = None,
    watch: Callable[[int, Sequence[Row]], None] | None = None,
) -> LMRun:
    """Train a policy for every beta and seed at once against a judge, with the reference as the leash's other end.

    ``model``: A causal language model of transformers, on its device and in its dtype. It is frozen, and becomes the
    reference; adapters are put on it in place. ``evaluate``: Called (`Evaluate`) every ``evaluate_every`` steps and
    after the last. Gold is measured at the same steps. ``out``, ``resume``, ``kind``, ``config``, ``inputs``: A run
    folder (:mod:`kleash.runs`), whether to go on with what is there, what sort of run it is, and more plain data that
    settles the result and that a run is recognised by. ``progress``, ``watch``: Called with (steps done, steps), and
    with each step's rows. Raises `OptionError`, `ConfigError`: A layer that is not there, a prompt longer than the
    model's positions, more prompts a step than there are, a folder with something else in it. `DataError`: A judge
    returned something else than one finite number per answer.

    Notes
    -----
    For ``rloo`` rewards and betas are divided by the SD of the first scores that differ: training does not depend on
    the unit of the judge. A constant per prompt drops out of every gradient; leaving out the first answer's score keeps
    rounding from moving policies that have nothing to learn. All seeds see the prompts in one order.
    """
    training = _fitted(training, task)
    decoder = Decoder(model)
    for name, some in (("prompts", task.prompts), ("held_out", task.held_out)):
        _must_fit(name, some, decoder, training.max_new_tokens)
    settled = dict(config or {}) | training.settled() | _recognised_by(model, task)
    run = _opened(out, kind=kind, config=settled, resume=resume)
    with written_alone(run, further=True):
        limit = head_limit(model)
        adapters = attach(
            model,
            groups=training.seed_index,
            rank=training.rank,
            alpha=training.alpha,
            targets=training.targets,
            seed=training.seed,
        )
        adam = GroupedAdam(adapters, clip_above=training.clip_above)
        sampler = Sampler(task=task, training=training, decoder=decoder, adapters=adapters)
        loop = Loop(sampler=sampler, adam=adam, evaluate=evaluate, run=run, progress=progress, watch=watch)
        origin = _run_through(loop, inputs)
    heads = {name for name, module in model.named_modules() if module is model.get_output_embeddings()}
    return LMRun(
        sampler=sampler,
        metrics=tuple(loop.rows),
        notes=_notes(loop.rows, None if heads & set(adapters.names) else limit),
        early_stopping=early_stop(loop.rows),
        kl_spec=KLSpec(estimator="full", sampler="policy" if training.temperature == 1.0 else "behavior"),
        config=settled,
        run=run,
        origin=origin,
    )


def _fitted(training: Training, task: Task) -> Training:
    """The same with as many prompts a step as there are, if nothing was said of them."""
    size, asked = len(task.prompts), training.prompts_per_step
    if asked is not None and asked > size:
        raise OptionError(_checks.message("prompts_per_step", expected=f"at most the {size} prompts", got=asked))
    return replace(training, prompts_per_step=asked or size)


def _opened(out: str | Path | None, *, kind: str, config: Mapping[str, Any], resume: bool) -> Run | None:
    if out is not None:
        return open_run(out, kind=kind, config=config, resume=resume, versions=_versions())
    if resume:
        raise OptionError(_checks.message("resume", expected="a folder (out) to go on with", got="none"))
    return None


def _run_through(loop: Loop, inputs: Sequence[Mapping[str, Any]]) -> Literal["trained", "resumed", "read-back"]:
    """Train what is left to train, and say how much of it was there."""
    run = loop.run
    origin = "trained" if run is None or run.state == "new" else loop.restore(run)
    if origin != "read-back":
        if run is not None:
            run.begin(seed=loop.training.seed, inputs=inputs)
        loop.train()
    return origin


def _notes(rows: list[Row], limit: HeadLimit | None) -> tuple[str, ...]:
    notes = []
    if limit is not None and limit.probability < _STALLED:
        notes.append(
            f"The output head has no adapter and the logits cannot leave +-{limit.logit:.3g}: some tokens stay below "
            f"probability {limit.probability:.2g}, low betas will stall. Add the head to the targets."
        )
    if rows and all(row["reward_sd"] == 0 for row in rows):
        notes.append("The judge gave every answer to a prompt the same score: nothing but the KL moved the policies.")
    return tuple(notes)


def _must_fit(name: str, some: PromptSet | None, decoder: Decoder, new: int) -> None:
    """No prompt may run past the model's positions, nor use a token it does not have."""
    most = decoder.max_positions
    for number, ids in enumerate([] if some is None else some.ids):
        prompt = f"prompt {number} of {name} ({(some.texts[number] if some else '')!r:.40})"
        if most is not None and len(ids) + new > most:
            fix = "shorten it, or lower max_new_tokens"
            got = f"{len(ids)} tokens and {new} new ones"
            raise OptionError(_checks.message(prompt, expected=f"at most {most} positions", got=got, fix=fix))
        if not ids or not 0 <= min(ids) <= max(ids) < decoder.vocabulary:
            got = "none" if not ids else f"{min(ids)} to {max(ids)}"
            raise OptionError(
                _checks.message(prompt, expected=f"token ids from 0 to {decoder.vocabulary - 1}", got=got)
            )


def _recognised_by(model: Any, task: Task) -> dict[str, Any]:
    """What tells a run from one with another model or other prompts."""
    return {
        "eos": [int(token) for token in task.eos],
        "decays": list(DECAYS),
        "model_sha256": _fingerprint(model),
        "prompts_sha256": task.prompts.digest(),
        "held_out_sha256": None if task.held_out is None else task.held_out.digest(),
        "dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
    }


def _fingerprint(model: Any) -> str:
    """SHA-256 over names, shapes and first values of every weight: never equal for two that were trained apart."""
    digest = hashlib.sha256()
    for name, weight in model.state_dict().items():
        head = weight.detach().reshape(-1)[:64].double().cpu().numpy()
        digest.update(f"{name} {tuple(weight.shape)} ".encode() + head.tobytes())
    return digest.hexdigest()


def _versions() -> dict[str, str]:
    import transformers

    return {"torch": torch.__version__, "transformers": transformers.__version__}
