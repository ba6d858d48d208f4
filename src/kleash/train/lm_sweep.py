"""A sweep over language models: train all betas at once, then say what the dial did, beside what was known before.

In the recipes world everything is exact: trained rows, optimum, gap. For a model of one's own the rows are means over
answers to prompts that were held out. In both, samples of the untouched reference give the forecast that stands beside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kleash import _checks
from kleash._version import version
from kleash.errors import OptionError
from kleash.forecasting.forecast import forecast as forecast_samples
from kleash.frontier import Estimates, Frontier, Gold, Replicates, exact_frontier
from kleash.samples import Samples
from kleash.train.asking import Judge, PromptSet, ask
from kleash.train.decoder import pad_left
from kleash.train.early_stopping import EarlyStop
from kleash.train.judges import guarded, load_judge
from kleash.train.language import LanguageConfig, read_prompts
from kleash.train.lm import LMRun, train_lm
from kleash.train.models import load_model
from kleash.train.recipes import BETAS, policy_log_probs, recipes
from kleash.train.result import SweepResult, over_seeds, read_back, shown_answers, world_frontier, write
from kleash.train.rollout import rollout, uniforms
from kleash.train.streams import Purpose
from kleash.train.tabular import Progress
from kleash.window import find_window

__all__ = ["Watch", "reference_samples", "sweep_model", "sweep_recipes"]

Floats = NDArray[np.float64]
Watch = Callable[[int, Sequence[Mapping[str, Any]]], None]
"""Called with each step and its rows: ``beta``, ``seed``, ``reward``, ``gold``, ``kl``, ..."""

RECIPES_STEPS, RECIPES_SAMPLES = 300, 21
"""Three dishes and 21 answers to each: 63 answers a step. Half the steps leave twice the gap."""
FORECAST_SAMPLES = 64
"""Answers of the reference to each prompt behind the forecast."""
_SHOWN = 3  # answers per beta


def sweep_recipes(
    *,
    settings: Mapping[str, float] | None = None,
    beta: ArrayLike | None = None,
    seeds: int = 3,
    seed: int = 0,
    steps: int | None = None,
    samples: int | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    progress: Progress | None = None,
    watch: Watch | None = None,
) -> SweepResult:
    """The sweep of the recipes world; parameters as in :func:`kleash.sweep`.

    Returns
    -------
    SweepResult
        Rows, optimum and gap are exact, by enumeration of every answer; the forecast is from 64 answers of the
        reference to each dish.
    """
    given = dict(settings or {})
    for name in given:
        if name not in ("oversalt", "love"):
            raise OptionError(f"unknown setting {name!r} of the recipes; {_checks.nearest(name, ['oversalt', 'love'])}")
    house = recipes(
        **{name: _checks.number(value, name=name) for name, value in given.items()}  # type: ignore[arg-type]
    )
    betas = np.unique(_checks.betas(BETAS if beta is None else beta, infinite=False))
    prompts = PromptSet(ids=house.prompt_ids, texts=house.prompts)
    world = house.world  # before adapters are put on its model
    run = train_lm(
        house.model,
        prompts,
        judge=guarded(house.judge, name="judge"),
        gold=guarded(house.gold, name="gold"),
        decode=house.decode,
        beta=betas,
        eos=[house.eos],
        max_new_tokens=house.max_new_tokens,
        seeds=seeds,
        seed=seed,
        steps=RECIPES_STEPS if steps is None else steps,
        samples=RECIPES_SAMPLES if samples is None else samples,
        evaluate_every=1,  # without a penalty it is over within ten steps
        out=out,
        resume=resume,
        kind="sweep",
        config={"world": "recipes", "settings": dict(house.settings)},
        progress=progress,
        watch=watch,
    )
    if run.origin == "read-back" and run.run is not None:
        return read_back(run.run)
    log_policy = policy_log_probs(house.model, groups=run.adapters.groups)
    log_policy = log_policy.reshape(betas.size, seeds, *world.reward.shape)
    frontier = world_frontier(world, betas, log_policy, config=run.config)
    drawn = reference_samples(
        run,
        prompts,
        judge=house.judge,
        gold=house.gold,
        decode=house.decode,
        key=(Purpose.REFERENCE, 0, 0),
        index=[0],
        samples=FORECAST_SAMPLES,
    )
    result = SweepResult(
        world="recipes",
        frontier=frontier,
        optimum=exact_frontier(world, betas),
        verdict=find_window(frontier),
        answers=shown_answers(world, betas, log_policy, seed=seed),
        history=None,
        config=run.config,
        origin=run.origin,
        metrics=run.metrics,
        forecast=_forecast(drawn, betas, prompts_are="fixed", seed=seed),
        early_stopping=_early(run.early_stopping),
        remarks=_remarks(run),
    )
    if run.run is not None:
        write(run.run, result)
    return result


def sweep_model(
    config: LanguageConfig,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    progress: Progress | None = None,
    watch: Watch | None = None,
) -> SweepResult:
    """Train a language model of one's own at several betas at once.

    Parameters
    ----------
    config
        Model, judge, gold, prompts and training; see docs/training.md.
    out, resume, progress, watch
        As in :func:`kleash.sweep`.

    Returns
    -------
    SweepResult
        Rows are means over answers to the held-out prompts, errors over seeds (none with one); no optimum is known.

    Raises
    ------
    ConfigError, OptionError, MissingFileError
        A model, device, judge or file that is not there, or a setting outside its range.
    DataError
        A judge that fails; the run can be resumed.
    """
    training = config.training
    model, tokenizer, device = load_model(config.model)
    judge = load_judge(config.judge, name="judge", folder=config.folder, device=device)
    gold = None if config.gold is None else load_judge(config.gold, name="gold", folder=config.folder, device=device)
    rows, apart, inputs = read_prompts(config.prompts)
    chat = config.model.chat if config.model.chat is not None else getattr(tokenizer, "chat_template", None) is not None
    prompts = _prompt_set(rows, tokenizer, chat=chat)
    held_out = _prompt_set(apart, tokenizer, chat=chat) if apart else None

    def decode(ids: list[int]) -> str:
        return str(tokenizer.decode(ids, skip_special_tokens=True))

    run = train_lm(
        model,
        prompts,
        judge=judge,
        gold=gold,
        held_out=held_out,
        decode=decode,
        beta=config.beta,
        eos=_ends(model, tokenizer),
        max_new_tokens=training.max_new_tokens,
        seeds=config.seeds,
        seed=config.seed,
        steps=config.steps,
        samples=config.samples,
        prompts_per_step=training.prompts_per_step,
        prompts_at_once=training.prompts_at_once,
        objective=training.objective,  # type: ignore[arg-type]
        options=training.options,
        epochs=training.epochs,
        clip=training.clip,
        learning_rate=training.learning_rate,
        schedule=training.schedule,  # type: ignore[arg-type]
        rank=training.rank,
        alpha=training.alpha,
        targets=training.targets,
        temperature=training.temperature,
        evaluate_every=training.evaluate_every,
        final_samples=training.final_samples,
        checkpoint_every=training.checkpoint_every,
        out=out,
        resume=resume,
        kind="sweep",
        config={
            "world": None,
            "judge": config.judge.use,
            "gold": None if config.gold is None else config.gold.use,
            "chat": chat,
        },
        inputs=inputs,
        progress=progress,
        watch=watch,
    )
    if run.origin == "read-back" and run.run is not None:
        return read_back(run.run)
    some = prompts if held_out is None else held_out
    ask_all: dict[str, Any] = {"judge": judge, "gold": gold, "decode": decode}
    untouched = [
        reference_samples(
            run,
            some,
            **ask_all,
            key=(Purpose.EVALUATION, config.steps, 0),
            index=[s],
            samples=training.final_samples,
            each=config.samples,
        )
        for s in range(config.seeds)
    ]
    frontier = _sampled_frontier(run, untouched)
    before = None
    if training.forecast_samples >= 2:
        drawn = reference_samples(
            run, some, **ask_all, key=(Purpose.REFERENCE, 0, 0), index=[0], samples=training.forecast_samples
        )
        before = _forecast(drawn, run.beta, prompts_are="sampled", seed=config.seed)
    result = SweepResult(
        world=Path(str(config.model.path or config.model.gguf)).name,
        frontier=frontier,
        optimum=None,
        verdict=find_window(frontier),
        answers=_sampled_answers(run, some, judge=judge, gold=gold, decode=decode),
        history=None,
        config=run.config,
        inputs=tuple(inputs),
        origin=run.origin,
        metrics=run.metrics,
        forecast=before,
        early_stopping=_early(run.early_stopping),
        remarks=_remarks(run),
    )
    if run.run is not None:
        write(run.run, result)
    return result


def reference_samples(
    run: LMRun,
    prompts: PromptSet,
    *,
    judge: Judge,
    gold: Judge | None,
    decode: Callable[[list[int]], str],
    key: tuple[Purpose, int, int],
    index: Sequence[int],
    samples: int,
    each: int | None = None,
) -> Samples:
    """Scored answers of the untouched reference: what a forecast needs, and what a gain is measured against.

    Parameters
    ----------
    run
        A training run; its adapters are switched off.
    prompts, samples
        Which prompts, and how many answers to each.
    judge, gold, decode
        As in :func:`kleash.train.lm.train_lm`.
    key, index
        Which stream of random numbers (purpose, step, piece), and of which seed.
    each
        Answers per prompt that are drawn together, and so which random numbers an answer gets: with those of training
        the last evaluation's own. ``samples`` is rounded up to a multiple; default: all together.
    """
    purpose, step, piece = key
    texts: list[str] = []
    place: list[int] = []
    ids: list[list[int]] = []
    per_step = int(run.config["prompts_per_step"])
    each = samples if each is None else each
    starts = list(range(0, len(prompts), per_step)) * -(-samples // each)
    for number, start in enumerate(starts):
        which = list(range(start, min(start + per_step, len(prompts))))
        uniform = uniforms(
            seed=int(run.config["seed"]),
            index=index,
            step=step,
            rows=len(which) * each,
            length=int(run.config["max_new_tokens"]),
            piece=piece + number,
            purpose=purpose,
        )
        with run.adapters.reference():
            rolled = rollout(
                run.decoder,
                run.adapters,
                pad_left([prompts.ids[i] for i in which], device=run.decoder.device),
                uniform=uniform,
                eos=run.config["eos"],
                temperature=float(run.config["temperature"]),
            )
        sizes = rolled.mask[0].sum(dim=1).tolist()
        answers = [row[:n] for row, n in zip(rolled.tokens[0].tolist(), sizes, strict=True)]
        ids += answers
        texts += [decode(row) for row in answers]
        place += [which[i] for i in rolled.prompt.tolist()]
    columns = {name: [values[i] for i in place] for name, values in prompts.columns.items()}
    asked = [prompts.texts[i] for i in place]
    reward = ask(judge, "judge", asked, texts, ids, columns)
    quality = None if gold is None else ask(gold, "gold", asked, texts, ids, columns)
    return Samples.from_arrays(place, reward, gold=quality, answer=texts)


def _forecast(drawn: Samples, beta: Floats, *, prompts_are: str, seed: int) -> Frontier | None:
    """The forecast at the trained betas above 0; None where there are none, or scores that do not differ."""
    above = beta[beta > 0]
    if not above.size or np.ptp(drawn.reward) == 0:
        return None
    return forecast_samples(drawn, beta=above, prompts=prompts_are, seed=seed).frontier  # type: ignore[arg-type]


def _sampled_frontier(run: LMRun, untouched: Sequence[Samples]) -> Frontier:
    """The table from the last rows of training, (B, S), and a reference for each seed."""
    reward, gold, kl = (run.final(name) for name in ("reward", "gold", "kl"))
    size = run.beta.size
    reference_reward = np.asarray([samples.reward.mean() for samples in untouched])
    has_gold = untouched[0].gold is not None
    reference_gold = np.asarray([samples.gold.mean() for samples in untouched if samples.gold is not None])
    drawn = [samples.gold for samples in untouched if samples.gold is not None]
    seen = np.concatenate([*drawn, gold.ravel()]) if has_gold else np.zeros(1)
    return Frontier(
        source="sweep",
        beta=run.beta,
        reward=over_seeds(reward),
        kl=over_seeds(kl),
        gold=_gold(gold, reference_gold) if has_gold else None,
        reference_reward=_one(reference_reward),
        n=np.full(size, run.seeds),
        status=np.full(size, "ok"),
        replicates=Replicates(
            kind="seeds",
            reward=reward.T,
            kl=kl.T,
            gold=gold.T if has_gold else None,
            reference_reward=reference_reward,
            reference_gold=reference_gold if has_gold else None,
        ),
        gold_range=float(np.ptp(seen)) if has_gold else None,
        provenance={"version": version(), "config": dict(run.config)},
    )


def _gold(gold: Floats, reference: Floats) -> Gold:
    """Gold (B, S) beside the reference's, one for each seed."""
    return Gold.of(over_seeds(gold), gain=over_seeds(gold - reference), reference=_one(reference))


def _one(values: Floats) -> Estimates:
    return over_seeds(values[None, :])[0]


def _sampled_answers(
    run: LMRun, prompts: PromptSet, *, judge: Judge, gold: Judge | None, decode: Callable[[list[int]], str]
) -> tuple[Mapping[str, Any], ...]:
    """A few answers of every beta's policies, the seeds taking turns."""
    which = list(range(min(_SHOWN, len(prompts))))
    groups = run.adapters.groups
    index = list(range(run.seeds)) * run.beta.size
    uniform = uniforms(
        seed=int(run.config["seed"]),
        index=index,
        step=0,
        rows=len(which),
        length=int(run.config["max_new_tokens"]),
        piece=1,
        purpose=Purpose.REFERENCE,
    )
    asked = pad_left([prompts.ids[i] for i in which], device=run.decoder.device)
    rolled = rollout(
        run.decoder,
        run.adapters,
        asked,
        uniform=uniform,
        eos=run.config["eos"],
        temperature=float(run.config["temperature"]),
    )
    found = []
    for row, prompt in enumerate(which):
        for b, beta in enumerate(run.beta.tolist()):
            group = b * run.seeds + row % run.seeds
            assert group < groups
            ids = rolled.tokens[group, row, : int(rolled.mask[group, row].sum())].tolist()
            found.append((b, prompt, ids, {"beta": beta, "prompt": prompts.texts[prompt], "answer": decode(ids)}))
    found.sort(key=lambda item: item[:2])
    columns = {name: [values[item[1]] for item in found] for name, values in prompts.columns.items()}
    texts, answers = [item[3]["prompt"] for item in found], [item[3]["answer"] for item in found]
    ids_of = [item[2] for item in found]
    reward = ask(judge, "judge", texts, answers, ids_of, columns).tolist()
    quality = [None] * len(found) if gold is None else ask(gold, "gold", texts, answers, ids_of, columns).tolist()
    return tuple(item[3] | {"reward": r, "gold": g} for item, r, g in zip(found, reward, quality, strict=True))


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


def _ends(model: Any, tokenizer: Any) -> list[int]:
    """Every token that the model or its tokenizer calls an end."""
    found: list[int] = []
    for holder in (getattr(model, "generation_config", None), model.config, tokenizer):
        ends = getattr(holder, "eos_token_id", None)
        found += ends if isinstance(ends, list) else [] if ends is None else [ends]
    return sorted({int(token) for token in found})


def _early(stop: EarlyStop | None) -> Mapping[str, Any] | None:
    return None if stop is None else stop.to_dict()


def _remarks(run: LMRun) -> tuple[str, ...]:
    """What training had to say; stopping early stands beside the dial only where there is no penalty."""
    early = run.early_stopping
    return run.notes if early is None or early.beta > 0 else (*run.notes, str(early))
