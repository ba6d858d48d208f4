"""The training loop: all betas and seeds of a language model in one process, one step for all of them at a time.

A step draws answers from every policy, has them judged, scores them under policy and reference, and moves each policy's
adapters along its own gradient. What a step does depends on the configuration and the adapters alone, never on a state
of a random number generator, so a run goes on after a kill as if nothing had been.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from kleash import _checks
from kleash.errors import OptionError
from kleash.kl import KLSpec
from kleash.runs import Run, open_run
from kleash.train import objectives
from kleash.train.adapters import GroupedLoRA, attach
from kleash.train.asking import Judge, PromptSet
from kleash.train.decoder import Decoder, HeadLimit, head_limit
from kleash.train.early_stopping import EarlyStop, early_stop
from kleash.train.loop import Loop, Settings
from kleash.train.optimiser import GroupedAdam, Schedule
from kleash.train.records import Row

__all__ = ["Judge", "LMRun", "PromptSet", "train_lm"]

Floats = NDArray[np.float64]

_STALLED = 0.99
"""A frozen head that keeps some token below this probability is worth a sentence: over an answer of six tokens at beta
0 it costs more than the 3 % that training is held to."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LMRun:
    """Trained policies and how they came about.

    Parameters
    ----------
    beta, seeds
        The coefficients, shape (B,), and the number of seeds S; policies are group-major, G = B S.
    adapters, decoder
        The trained adapters, on the model.
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
        The run folder, if there is one. It says ``running`` until its `finish` is called.
    origin
        ``trained``, ``resumed`` from a checkpoint, or ``read-back`` from a finished run.
    """

    beta: Floats
    seeds: int
    adapters: GroupedLoRA
    decoder: Decoder
    metrics: tuple[Row, ...]
    notes: tuple[str, ...]
    early_stopping: EarlyStop | None
    kl_spec: KLSpec
    config: Mapping[str, Any]
    run: Run | None
    origin: Literal["trained", "resumed", "read-back"]

    def final(self, name: str) -> Floats:
        """A column of the last rows, shape (B, S); NaN where it was not recorded."""
        return self.at(int(self.config["steps"]), name)

    def at(self, step: int, name: str) -> Floats:
        """A column of one step's rows, shape (B, S); NaN where it was not recorded."""
        values = [row.get(name) for row in self.metrics if row["step"] == step]
        array = np.asarray([np.nan if value is None else value for value in values], dtype=np.float64)
        return array.reshape(self.beta.size, self.seeds)


def train_lm(
    model: Any,
    prompts: PromptSet,
    *,
    judge: Judge,
    decode: Callable[[list[int]], str],
    beta: ArrayLike,
    eos: Sequence[int],
    max_new_tokens: int,
    gold: Judge | None = None,
    held_out: PromptSet | None = None,
    seeds: int = 1,
    seed: int = 0,
    steps: int = 400,
    samples: int = 16,
    prompts_per_step: int | None = None,
    objective: objectives.Objective = "rloo",
    options: Mapping[str, Any] | None = None,
    epochs: int = 1,
    clip: float = 0.2,
    learning_rate: float = 3e-3,
    schedule: Schedule = "linear",
    clip_above: float | None = 3.0,
    decays: tuple[float, float] = (0.9, 0.999),
    rank: int = 16,
    alpha: float | None = None,
    targets: Sequence[str] | str = "all-linear",
    temperature: float = 1.0,
    evaluate: Callable[[int, GroupedLoRA], Mapping[str, ArrayLike]] | None = None,
    evaluate_every: int = 25,
    final_samples: int = 64,
    checkpoint_every: int = 25,
    chunk: int | None = None,
    prompts_at_once: int | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    kind: str = "lm-sweep",
    config: Mapping[str, Any] | None = None,
    inputs: Sequence[Mapping[str, Any]] = (),
    progress: Callable[[int, int], None] | None = None,
    watch: Callable[[int, Sequence[Row]], None] | None = None,
) -> LMRun:
    """Train a policy for every beta and seed at once against a judge, with the reference as the leash's other end.

    Parameters
    ----------
    model
        A causal language model of transformers, on its device and in its dtype. It is frozen, and becomes the
        reference; adapters are put on it in place.
    prompts, held_out
        Prompts to train on, and others to measure gold on; without the latter gold is measured on the answers of
        training.
    judge, gold
        The score that is optimised, and the true quality that never is. An answer that occurs several times in a step
        is scored once.
    decode
        Token ids of an answer, its end token included, to text.
    beta
        Finite coefficients, in reward units per nat (``grpo``: the trainer's own), shape (B,).
    eos, max_new_tokens
        Tokens that end an answer, and how many tokens it may have.
    seeds, seed
        Independent runs per beta, and the start of all randomness.
    steps, samples, prompts_per_step
        Updates; answers per prompt, step and policy; prompts a step (default: all), by a permutation per pass.
    objective, options, epochs, clip
        ``rloo``, ``grpo`` or ``dpo`` with their options (:mod:`kleash.train.objectives`); updates per batch, and the
        limit on probability ratios where there are several.
    learning_rate, schedule, clip_above, decays
        See :mod:`kleash.train.optimiser`.
    rank, alpha, targets
        See :func:`kleash.train.adapters.attach`.
    temperature
        Of sampling. At another value than 1 the answers are not the policy's own: the gradient is no longer that of
        the objective, and `kl_spec` says so.
    evaluate, evaluate_every
        A hook for exact evaluation, called with the step and the adapters every so many steps and after the last; it
        returns values of shape (G,) by name. Gold is measured at the same steps.
    final_samples
        Answers per prompt that the last rows, and rollouts.parquet, are made of.
    checkpoint_every
        Steps between checkpoints; also on Ctrl-C and when a judge fails.
    chunk
        See :func:`kleash.train.objectives.score`.
    prompts_at_once
        How many of a step's prompts are sampled, judged and differentiated at a time; default: all. The gradient is
        the same to rounding, the memory that of the part; an interrupted run may go on with another number.
    out, resume, kind, config, inputs
        A run folder (:mod:`kleash.runs`), whether to go on with what is there, what sort of run it is, and more plain
        data that settles the result and that a run is recognised by.
    progress, watch
        Called with (steps done, steps), and with each step's rows.

    Returns
    -------
    LMRun

    Raises
    ------
    OptionError, ConfigError
        A setting outside its range, a layer that is not there, a prompt longer than the model's positions, a folder
        with something else in it.
    DataError
        A judge returned something else than one finite number per answer.
    KleashError
        The disk refuses; the last checkpoint is whole.

    Notes
    -----
    For ``rloo`` rewards and betas are divided by the SD of the first scores that differ: training does not depend on
    the unit of the judge. A constant per prompt drops out of every gradient; leaving out the first answer's score keeps
    rounding from moving policies that have nothing to learn. All seeds see the prompts in one order.
    """
    betas = np.unique(_checks.betas(beta, infinite=False))
    settings = Settings(
        seeds=_checks.integer(seeds, name="seeds", at_least=1),
        seed=_checks.integer(seed, name="seed", at_least=0),
        steps=_checks.integer(steps, name="steps", at_least=1),
        samples=_checks.integer(samples, name="samples", at_least=2),
        prompts_per_step=_prompts_per_step(prompts_per_step, len(prompts)),
        max_new_tokens=_checks.integer(max_new_tokens, name="max_new_tokens", at_least=1),
        eos=tuple(int(token) for token in eos),
        objective=_objective(objective),
        options=dict(options or {}),
        epochs=_checks.integer(epochs, name="epochs", at_least=1),
        clip=_checks.number(clip, name="clip", above=0),
        learning_rate=_checks.number(learning_rate, name="learning_rate", above=0),
        schedule=_schedule(schedule),
        temperature=_checks.number(temperature, name="temperature", above=0),
        evaluate_every=_checks.integer(evaluate_every, name="evaluate_every", at_least=1),
        final_samples=_checks.integer(final_samples, name="final_samples", at_least=2),
        checkpoint_every=_checks.integer(checkpoint_every, name="checkpoint_every", at_least=1),
        chunk=chunk,
        prompts_at_once=None
        if prompts_at_once is None
        else _checks.integer(prompts_at_once, name="prompts_at_once", at_least=1),
    )
    decoder = Decoder(model)
    for name, some in (("prompts", prompts), ("held_out", held_out)):
        _fits(name, some, decoder, settings.max_new_tokens)
    index = [which for _ in betas for which in range(settings.seeds)]
    told = (
        dict(config or {})
        | settings.told()
        | {
            "beta": betas.tolist(),
            "rank": rank,
            "alpha": alpha,
            "targets": targets if isinstance(targets, str) else list(targets),
            "clip_above": clip_above,
            "decays": list(decays),
            "model_sha256": _fingerprint(model),
            "prompts_sha256": prompts.digest(),
            "held_out_sha256": None if held_out is None else held_out.digest(),
            "dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
        }
    )
    run = None
    if out is not None:
        run = open_run(out, kind=kind, config=told, resume=resume, versions=_versions())
    elif resume:
        raise OptionError(_checks.message("resume", expected="a folder (out) to go on with", got="none"))
    limit = head_limit(model)
    adapters = attach(model, groups=index, rank=rank, alpha=alpha, targets=targets, seed=settings.seed)
    adam = GroupedAdam(adapters, clip_above=clip_above, decays=decays)
    loop = Loop(
        settings=settings,
        beta=betas,
        index=index,
        prompts=prompts,
        held_out=held_out,
        decoder=decoder,
        adapters=adapters,
        adam=adam,
        judge=judge,
        gold=gold,
        decode=decode,
        evaluate=evaluate,
        run=run,
        progress=progress,
        watch=watch,
    )
    origin: Literal["trained", "resumed", "read-back"] = "trained"
    if run is not None and run.state != "new":
        origin = loop.restore(run)
    if origin != "read-back":
        if run is not None:
            run.begin(seed=settings.seed, inputs=inputs)
        loop.train()
    heads = {name for name, module in model.named_modules() if module is model.get_output_embeddings()}
    notes = _notes(loop.rows, None if heads & set(adapters.names) else limit)
    return LMRun(
        beta=betas,
        seeds=settings.seeds,
        adapters=adapters,
        decoder=decoder,
        metrics=tuple(loop.rows),
        notes=notes,
        early_stopping=early_stop(loop.rows),
        kl_spec=KLSpec(estimator="full", sampler="policy" if settings.temperature == 1.0 else "behavior"),
        config=told,
        run=run,
        origin=origin,
    )


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


def _fits(name: str, some: PromptSet | None, decoder: Decoder, new: int) -> None:
    """No prompt may run past the model's positions, nor use a token it does not have."""
    most = decoder.max_positions
    for number, ids in enumerate([] if some is None else some.ids):
        told = f"prompt {number} of {name} ({(some.texts[number] if some else '')!r:.40})"
        if most is not None and len(ids) + new > most:
            fix = "shorten it, or lower max_new_tokens"
            got = f"{len(ids)} tokens and {new} new ones"
            raise OptionError(_checks.message(told, expected=f"at most {most} positions", got=got, fix=fix))
        if not ids or not 0 <= min(ids) <= max(ids) < decoder.vocabulary:
            got = "none" if not ids else f"{min(ids)} to {max(ids)}"
            raise OptionError(_checks.message(told, expected=f"token ids from 0 to {decoder.vocabulary - 1}", got=got))


def _prompts_per_step(value: int | None, size: int) -> int:
    if value is None:
        return size
    if _checks.integer(value, name="prompts_per_step", at_least=1) > size:
        raise OptionError(_checks.message("prompts_per_step", expected=f"at most the {size} prompts", got=value))
    return value


def _objective(name: str) -> objectives.Objective:
    return _checks.choice(name, objectives.OBJECTIVES, name="objective")  # type: ignore[return-value]


def _schedule(name: str) -> Schedule:
    return _checks.choice(name, ("linear", "constant"), name="schedule")  # type: ignore[return-value]


def _fingerprint(model: Any) -> str:
    """SHA-256 over names, shapes and the first values of every weight.

    Cheap for a large model, and never equal for two that were trained apart.
    """
    digest = hashlib.sha256()
    for name, weight in model.state_dict().items():
        head = weight.detach().reshape(-1)[:64].double().cpu().numpy()
        digest.update(f"{name} {tuple(weight.shape)} ".encode() + head.tobytes())
    return digest.hexdigest()


def _versions() -> dict[str, str]:
    import transformers

    return {"torch": torch.__version__, "transformers": transformers.__version__}
