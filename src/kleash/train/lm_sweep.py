"""A sweep over language models: train all betas at once, then say what the dial did, beside what was known before.

In the recipes world everything is exact: trained rows, optimum, gap. For a model of one's own the rows are means over
answers to prompts that were held out. In both, samples of the untouched reference give the forecast that stands beside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kleash import _checks
from kleash.errors import OptionError
from kleash.forecasting.result import Forecast
from kleash.frontier import Estimates, Frontier, exact_frontier
from kleash.runs import written_alone
from kleash.samples import SAMPLES, Samples
from kleash.train.asking import Judge, PromptSet, Task, ask
from kleash.train.judges import JudgeSource, guarded, load_judge
from kleash.train.language import LanguageConfig, read_prompts
from kleash.train.lm import LMRun, train_lm
from kleash.train.models import load_model
from kleash.train.options import Training
from kleash.train.own import forecast_of, model_samples, policy_names, world_samples
from kleash.train.recipes import BETAS, LENGTH, Recipes, policy_log_probs, recipes
from kleash.train.reference import answers_of, forecast_before, reference_answers
from kleash.train.result import SweepResult, read_back, shown_answers, swept_frontier, world_frontier, write
from kleash.train.streams import Purpose
from kleash.train.tabular import Progress
from kleash.window import find_window

__all__ = [
    "Watch",
    "endings",
    "loaded",
    "model_name",
    "sampled_frontier",
    "sweep_model",
    "sweep_recipes",
    "trained_recipes",
    "written",
]

Floats = NDArray[np.float64]
Watch = Callable[[int, Sequence[Mapping[str, Any]]], None]
"""Called with each step and its rows: ``beta``, ``seed``, ``reward``, ``gold``, ``kl``, ..."""

_COOKING = Training(
    beta=BETAS,
    seeds=3,
    steps=300,
    samples=21,
    max_new_tokens=LENGTH,
    learning_rate=3e-3,
    evaluate_every=1,
    final_samples=64,
)
"""Three dishes and 21 answers to each: 63 answers a step. Half the steps leave twice the gap. Without a penalty it is
over within ten steps, so each is looked at."""
_SHOWN = 3  # answers per beta
_FEWEST = 2  # answers to a prompt that a forecast can be made from


def sweep_recipes(
    settings: Mapping[str, float] | None = None,
    said: Mapping[str, Any] | None = None,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    progress: Progress | None = None,
    watch: Watch | None = None,
) -> SweepResult:
    """The sweep of the recipes world; ``said`` of `Training`, and further parameters as in :func:`kleash.sweep`.

    Rows, optimum and gap are exact, by enumeration; the forecast is from 64 answers of the reference to each dish.
    """
    house = _house(settings or {})
    world = house.world  # before adapters are put on its model
    run = train_lm(
        house.model,
        _cooking(house),
        replace(_COOKING, **(said or {})),
        out=out,
        resume=resume,
        kind="sweep",
        config={"world": "recipes", "settings": dict(house.settings)},
        progress=progress,
        watch=watch,
    )
    if run.origin == "read-back" and run.run is not None:
        return read_back(run.run)
    with written_alone(run.run):
        log_policy = policy_log_probs(house.model, groups=run.adapters.groups)
        own = None
        if run.training.forecast_samples >= _FEWEST:
            named = dict(zip(policy_names(run.training.beta, run.seeds), log_policy, strict=True))
            everyone = {"reference": world.log_reference, **named}
            own = world_samples(world, everyone, run.training.forecast_samples, run.training.seed)
        log_policy = log_policy.reshape(run.beta.size, run.seeds, *world.reward.shape)
        return written(
            run,
            world="recipes",
            own=own,
            between=forecast_of(own, prompts="fixed", seed=run.training.seed, world=world),
            frontier=world_frontier(world, run.beta, log_policy, config=run.config),
            forecast=forecast_before(run, reference_answers(run.sampler), prompts="fixed", world=world),
            optimum=exact_frontier(world, run.beta),
            answers=shown_answers(world, run.beta, log_policy, seed=run.training.seed),
        )


def trained_recipes(
    *, settings: Mapping[str, float], beta: float, seed: int, steps: int | None = None, progress: Progress | None = None
) -> Floats:
    """Exact log probabilities (P, Y) of one policy, trained at one beta; parameters as in :func:`kleash.sweep`.

    Returns
    -------
    Shape (P, Y), nats.
    """
    house = _house(settings)
    training = replace(_COOKING, beta=(beta,), seeds=1, seed=seed, evaluate_every=_COOKING.steps)
    training = training if steps is None else replace(training, steps=steps, evaluate_every=steps)
    train_lm(house.model, _cooking(house), training, progress=progress)
    log_policy: Floats = policy_log_probs(house.model)[0]
    return log_policy


def _cooking(house: Recipes) -> Task:
    return Task(
        prompts=PromptSet(ids=house.prompt_ids, texts=house.prompts),
        judge=guarded(house.judge, name="judge"),
        gold=guarded(house.gold, name="gold"),
        decode=house.decode,
        eos=[house.eos],
    )


def _house(settings: Mapping[str, float]) -> Recipes:
    names = ("oversalt", "love")
    for name in settings:
        if name not in names:
            raise OptionError(f"unknown setting {name!r} of the recipes; {_checks.nearest(name, names)}")
    return recipes(**{name: _checks.number(value, name=name) for name, value in settings.items()})  # type: ignore[arg-type]


def sweep_model(
    config: LanguageConfig,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    progress: Progress | None = None,
    watch: Watch | None = None,
) -> SweepResult:
    """Train a language model of one's own at several betas at once; further parameters as in :func:`kleash.sweep`.

    Rows are means over answers to the held-out prompts, errors over seeds (none with one); no optimum is known. When a
    judge fails, with a DataError, the run can be resumed.
    """
    model, task, named, inputs = loaded(config)
    run = train_lm(
        model,
        task,
        config.training,
        out=out,
        resume=resume,
        kind="sweep",
        config=named,
        inputs=inputs,
        progress=progress,
        watch=watch,
    )
    if run.origin == "read-back" and run.run is not None:
        return read_back(run.run)
    with written_alone(run.run):
        before = reference_answers(run.sampler)
        own = model_samples(run.sampler, before)
        return written(
            run,
            world=model_name(config),
            own=own,
            between=forecast_of(own, prompts="sampled", seed=run.training.seed),
            frontier=sampled_frontier(run, _untouched(run)),
            forecast=forecast_before(run, before, prompts="sampled"),
            answers=_sampled_answers(run),
            inputs=inputs,
        )


def model_name(config: LanguageConfig) -> str:
    """What the model of a configuration is called: the last part of its path."""
    return Path(str(config.model.path or config.model.gguf)).name


def loaded(config: LanguageConfig) -> tuple[Any, Task, dict[str, Any], list[dict[str, Any]]]:
    """The model and the task of a configuration, what a run of it is recognised by, and the files that were read."""
    model, tokenizer, device = load_model(config.model)
    chat = config.model.chat if config.model.chat is not None else getattr(tokenizer, "chat_template", None) is not None
    task, inputs = _task(config, model, tokenizer, device=device, chat=chat)
    named = {"world": None, "judge": config.judge.use, "gold": config.gold and config.gold.use, "chat": chat}
    return model, task, named, inputs


def _task(
    config: LanguageConfig, model: Any, tokenizer: Any, *, device: str, chat: bool
) -> tuple[Task, list[dict[str, Any]]]:
    """Prompts and judges that a configuration names, and the files that were read."""

    def judge(source: JudgeSource, name: str) -> Judge:
        return load_judge(source, name=name, folder=config.folder, device=device)

    score = judge(config.judge, "judge")
    gold = None if config.gold is None else judge(config.gold, "gold")
    rows, apart, inputs = read_prompts(config.prompts)
    task = Task(
        prompts=_prompt_set(rows, tokenizer, chat=chat),
        held_out=_prompt_set(apart, tokenizer, chat=chat) if apart else None,
        judge=score,
        gold=gold,
        decode=lambda ids: str(tokenizer.decode(ids, skip_special_tokens=True)),
        eos=endings(model, tokenizer),
    )
    return task, inputs


def _untouched(run: LMRun) -> list[Samples]:
    """Answers of the reference for each seed, with the random numbers of the last evaluation."""
    training = run.training
    return [
        answers_of(
            run.sampler,
            run.sampler.task.measured,
            key=(Purpose.EVALUATION, training.steps, 0),
            index=[which],
            samples=training.final_samples,
            each=training.samples,
        ).samples()
        for which in range(run.seeds)
    ]


def written(
    run: LMRun,
    *,
    world: str,
    frontier: Frontier,
    forecast: Frontier | None = None,
    own: Samples | None = None,
    between: Forecast | None = None,
    answers: tuple[Mapping[str, Any], ...] = (),
    optimum: Frontier | None = None,
    inputs: Sequence[Mapping[str, Any]] = (),
) -> SweepResult:
    """The result, in the run folder too if there is one; stopping early stands by the dial only without a penalty."""
    early = run.early_stopping
    result = SweepResult(
        world=world,
        frontier=frontier,
        optimum=optimum,
        verdict=find_window(frontier),
        answers=answers,
        history=None,
        config=run.config,
        inputs=tuple(inputs),
        origin=run.origin,
        metrics=run.metrics,
        forecast=forecast,
        between=None if between is None else between.to_dict(),
        early_stopping=None if early is None else early.to_dict(),
        remarks=run.notes if early is None or early.beta > 0 else (*run.notes, str(early)),
    )
    if run.run is not None:
        if own is not None:
            own.save(run.run.path / SAMPLES)
        write(run.run, result)
    return result


def sampled_frontier(run: LMRun, untouched: Sequence[Samples]) -> Frontier:
    """The table from the last rows of training, (B, S), and a reference for each seed."""
    reward, gold, kl = (run.final(name) for name in ("reward", "gold", "kl"))
    quality = [samples.gold for samples in untouched if samples.gold is not None]
    reference = [np.asarray([samples.reward.mean() for samples in untouched])]
    reference += [np.asarray([drawn.mean() for drawn in quality])] if quality else []
    return swept_frontier(
        run.beta,
        (reward, gold if quality else None, kl),
        reference=reference,
        told=[Estimates.of_means(values) for values in reference],
        gold_range=float(np.ptp(np.concatenate([*quality, gold.ravel()]))) if quality else None,
        config=run.config,
    )


def _sampled_answers(run: LMRun) -> tuple[Mapping[str, Any], ...]:
    """A few answers of every beta's policies, the seeds taking turns."""
    sampler, task, prompts = run.sampler, run.sampler.task, run.sampler.task.measured
    which = list(range(min(_SHOWN, len(prompts))))
    uniform = sampler.uniform((Purpose.REFERENCE, 0, 1), rows=len(which))
    rolled = sampler.roll(sampler.padded(prompts, which), uniform)
    chosen = [(b, prompt, b * run.seeds + prompt % run.seeds) for b in range(run.beta.size) for prompt in which]
    ids = [rolled.tokens[g, row, : int(rolled.mask[g, row].sum())].tolist() for _, row, g in chosen]
    place = [prompt for _, prompt, _ in chosen]
    answers = [task.decode(row) for row in ids]
    reward = ask(task.judge, "judge", prompts, place, answers=answers, ids=ids)
    gold = None if task.gold is None else ask(task.gold, "gold", prompts, place, answers=answers, ids=ids).tolist()
    return tuple(
        {
            "beta": float(run.beta[b]),
            "prompt": prompts.texts[prompt],
            "answer": answers[i],
            "reward": float(reward[i]),
            "gold": None if gold is None else gold[i],
        }
        for i, (b, prompt, _) in enumerate(chosen)
    )


def _prompt_set(rows: list[dict[str, Any]], tokenizer: Any, *, chat: bool) -> PromptSet:
    texts = [str(row["prompt"]) for row in rows]
    if chat:
        turns = [[{"role": "user", "content": text}] for text in texts]
        ready = [tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True) for turn in turns]
    else:
        ready = texts
    ids = [tokenizer(text, add_special_tokens=not chat)["input_ids"] for text in ready]
    columns = {name: [row[name] for row in rows] for name in rows[0] if name != "prompt"}
    return PromptSet(ids=ids, texts=texts, columns=columns)


def endings(model: Any, tokenizer: Any) -> list[int]:
    """Every token that the model or its tokenizer calls an end."""
    found: list[int] = []
    for holder in (getattr(model, "generation_config", None), model.config, tokenizer):
        ends = getattr(holder, "eos_token_id", None)
        found += ends if isinstance(ends, list) else [] if ends is None else [ends]
    return sorted({int(token) for token in found})
