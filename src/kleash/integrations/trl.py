"""KL, judge's score and true quality of a TRL run while it trains, and a stop when true quality has peaked."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from transformers import Trainer, TrainerCallback

from kleash import _checks, _files
from kleash._checks import message
from kleash.errors import ConfigError, DataError, OptionError
from kleash.frontier import Estimates, Frontier, Replicates
from kleash.integrations.measure import Reference, full_kl_of, sample_answers
from kleash.integrations.peak import GoldPeak
from kleash.integrations.versions import require_trl
from kleash.runs import open_run

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

__all__ = ["KleashCallback"]

_TRAINERS = ("GRPOTrainer", "RLOOTrainer", "DPOTrainer", "OnlineDPOTrainer")
_QUANTITIES = ("reward", "gold", "kl", "length")
_PROMPTS = "prompts.jsonl"
_DRAWS = 400  # bootstrap draws over prompts kept with the frontier: their spread is read to 4 %
_SAME_REFERENCE = 0.05  # nats by which a reference asked again may differ: bf16 and other machines stay below


class KleashCallback(TrainerCallback):  # type: ignore[misc]
    """Measures a run from inside: KL to the reference, judge's score, true quality; writes a kleash run folder.

    Use it with TRL's GRPO, RLOO, DPO and OnlineDPO trainers. Every ``every`` steps it draws answers to the same prompts
    from the policy and measures the KL to the reference over the whole vocabulary, at every position, per answer: also
    at beta 0, where TRL keeps no reference and logs no KL. It changes nothing about the training: random numbers and
    weights are left as they were.

    Parameters
    ----------
    trainer
        The trainer, before ``train()``: the policy as it is now is the reference. Add the callback with
        ``trainer.add_callback``.
    gold
        True quality: the name of one of the trainer's reward functions, or a function with TRL's signature
        ``(prompts, completions, **columns) -> list[float | None]``. Default: the reward function of weight 0, if
        there is exactly one.
    prompts
        Prompts to measure on, better held out: texts, conversations, or a data set with a column ``prompt`` (further
        columns are passed on to the functions). Default: the first of ``eval_dataset``, else of ``train_dataset``.
    n_prompts, n_answers
        How many prompts, and answers to each. Prompts are the sampled units: standard errors are over them.
    every
        Steps between measurements.
    max_new_tokens
        Longest answer; default: the trainer's own limit, for DPO 256.
    stop_at_gold_peak
        Stop the training when true quality has measurably fallen from its best: see `kleash.integrations.peak`.
    patience, false_alarm
        Measurements in a row that must have fallen, and the chance of stopping a run whose quality never falls.
    restore_best
        At the end, give the policy the weights it had at the best measurement of true quality (a copy is kept).
    run_dir
        Where the run folder goes; default: ``kleash`` inside the trainer's ``output_dir``.
    dump
        Also write the answers with their log-probabilities, for ``kleash check``.
    seed
        Of the answers drawn for measuring.
    batch
        Answers per forward pass; default: the trainer's ``per_device_eval_batch_size``.

    Raises
    ------
    DependencyError
        TRL is missing or of an untested version.
    OptionError
        Another trainer, sharded weights (DeepSpeed, FSDP), no prompts, or nothing called ``gold``.

    Notes
    -----
    The reference is TRL's own where it keeps one that stands still; otherwise a copy of the trainable weights, put in
    place for the length of a forward pass (with adapters: a copy of the adapters only). KL is measured at the sampling
    temperature of the trainer, without dropout. Under accelerate each process takes a share of the prompts.

    Judge's score is the weighted sum of the trainer's reward functions on the answers drawn. Reward models and
    asynchronous functions are not called; their score is null here and stays in TRL's log.

    The logged keys are ``kleash/kl`` (nats per answer), ``kleash/reward``, ``kleash/gold``, ``kleash/length``, each but
    the last with ``_se``; they go wherever ``report_to`` says.
    """

    def __init__(
        self,
        trainer: Any,
        *,
        gold: str | Callable[..., Sequence[float | None]] | None = None,
        prompts: Any | None = None,
        n_prompts: int = 32,
        n_answers: int = 2,
        every: int = 10,
        max_new_tokens: int | None = None,
        stop_at_gold_peak: bool = False,
        patience: int = 3,
        false_alarm: float = 0.05,
        restore_best: bool = False,
        run_dir: str | Path | None = None,
        dump: bool = True,
        seed: int = 0,
        batch: int | None = None,
    ) -> None:
        self.versions = require_trl()
        kind = next((c.__name__ for c in type(trainer).__mro__ if c.__name__ in _TRAINERS), None)
        if kind is None:
            raise OptionError(message("trainer", expected="one of " + ", ".join(_TRAINERS), got=type(trainer).__name__))
        if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
            fix = "train with plain accelerate, or without the callback"
            raise OptionError(message("weights", expected="whole on every process", got="DeepSpeed or FSDP", fix=fix))
        self.trainer, self.kind = trainer, kind
        self.every = _checks.integer(every, name="every", at_least=1)
        self.n_answers = _checks.integer(n_answers, name="n_answers", at_least=1)
        self.patience, self.false_alarm = patience, false_alarm
        self.stop, self.restore_best, self.dump, self.seed = stop_at_gold_peak, restore_best, dump, seed
        args = trainer.args
        self.folder = Path(args.output_dir) / "kleash" if run_dir is None else Path(run_dir)
        self.tokenizer = getattr(trainer, "_tokenizer", trainer.processing_class)
        self.end_ids = list(getattr(trainer, "eos_token_ids", [self.tokenizer.eos_token_id]))
        limit = getattr(args, "max_completion_length", None) or getattr(args, "max_new_tokens", None) or 256
        self.max_new_tokens = _checks.integer(max_new_tokens or limit, name="max_new_tokens", at_least=1)
        self.temperature = float(getattr(args, "temperature", 1.0))
        self.batch = batch or args.per_device_eval_batch_size
        self.rows = _rows(trainer, prompts, _checks.integer(n_prompts, name="n_prompts", at_least=2))
        self.prompt_ids = [_token_ids(trainer, self.tokenizer, row) for row in self.rows]
        self.judges, self.gold, self.gold_name = self._functions(gold)
        if (stop_at_gold_peak or restore_best) and self.gold is None:
            fix = "gold=: a function, or the name of a reward function of weight 0"
            raise OptionError(message("gold", expected="true quality to stop by", got="none", fix=fix))
        ref_model = getattr(trainer, "ref_model", None)
        still = None if getattr(args, "sync_ref_model", False) else ref_model
        self.model = trainer.accelerator.unwrap_model(trainer.model)
        self.reference = Reference(self.model, frozen=still)
        self.metrics: list[dict[str, Any]] = []
        self.by_prompt: list[dict[str, Any]] = []
        self.stopped_at: int | None = None
        self._best: tuple[int, list[Any]] | None = None
        self._run: Any = None
        self._watch: GoldPeak | None = None

    # ------------------------------------------------------------------------------------------------ what TRL calls

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Open the run folder, take up what is there after a resume, and measure the reference."""
        resumed = state.global_step > 0
        there = (self.folder / "run.json").exists()
        if there and not resumed:
            fix = "name another output_dir or run_dir, or resume_from_checkpoint"
            raise OptionError(message(f"{self.folder}", expected="a new folder", got="a run", fix=fix))
        looks = max(2, math.ceil(state.max_steps / self.every) + 1)
        self._watch = GoldPeak(looks=looks, patience=self.patience, false_alarm=self.false_alarm)
        config = self._config()
        if state.is_world_process_zero:
            self._run = open_run(self.folder, kind="trl", config=config, resume=there)
        if there:
            self._take_up(state.global_step)
        if state.is_world_process_zero:
            self._run.begin(seed=self.seed)
        if not self.by_prompt:
            self._measure(args, state, control)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Measure every so many steps."""
        if state.global_step % self.every == 0 or state.global_step >= state.max_steps:
            self._measure(args, state, control)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Measure once more if need be, write the table, and give back the best weights if asked to."""
        if self.by_prompt and self.by_prompt[-1]["step"] != state.global_step:
            self._measure(args, state, control)
        if state.is_world_process_zero:
            results = {
                "trainer": self.kind,
                "gold": self.gold_name,
                "stopped_at": self.stopped_at,
                "best_step": self._watch.best_step if self._watch is not None and self.gold is not None else None,
                "restored": self.restore_best,
                "reference_fingerprint": self.reference.fingerprint(self.prompt_ids[0]),
                "notes": self._notes(),
            }
            self._run.finish(seed=self.seed, results=results, metrics=self.metrics, frontier=self.frontier())
        if self.restore_best and self._best is not None:
            for p, kept in zip(self._trained(), self._best[1], strict=True):
                p.data.copy_(kept)

    # ------------------------------------------------------------------------------------------------------ measuring

    def measure(self) -> dict[str, list[Any]]:
        """Measure the policy as it is: per prompt ``reward``, ``gold``, ``kl``, ``length``, and the answers drawn.

        Returns
        -------
        ``kl``: nats per answer, mean over the prompt's answers; ``reward`` and ``gold`` likewise, None where no answer
        of the prompt has one; ``answers``: a list of `kleash.integrations.measure.Answer` per prompt.
        """
        from accelerate.utils import gather_object

        accelerator = self.trainer.accelerator
        mine = range(accelerator.process_index, len(self.rows), accelerator.num_processes)
        share = [self._measure_prompts(list(mine))] if mine else []
        parts = gather_object(share) if accelerator.num_processes > 1 else share
        merged = {key: [None] * len(self.rows) for key in (*_QUANTITIES, "answers", "rewards", "golds")}
        for part in parts:
            for i, row in part.items():
                for key, value in row.items():
                    merged[key][i] = value
        return merged

    def _measure_prompts(self, which: list[int]) -> dict[int, dict[str, Any]]:
        pad = self.tokenizer.pad_token_id
        ids = [self.prompt_ids[i] for i in which]
        drawn = sample_answers(
            self.model,
            ids,
            n=self.n_answers,
            max_new_tokens=self.max_new_tokens,
            temperature=self.temperature,
            end_ids=self.end_ids,
            pad_id=pad,
            seed=self.seed + which[0],
            batch=self.batch,
        )
        flat_ids = [p for p in ids for _ in range(self.n_answers)]
        flat = [a for answers in drawn for a in answers]
        measured = full_kl_of(
            self.model, self.reference, flat_ids, flat, temperature=self.temperature, pad_id=pad, batch=self.batch
        )
        rewards = self._score(self.judges, which, flat)
        golds = self._score([(1.0, self.gold)], which, flat) if self.gold is not None else [None] * len(flat)
        found = {}
        for k, i in enumerate(which):
            at = slice(k * self.n_answers, (k + 1) * self.n_answers)
            found[i] = {
                "kl": float(np.mean([a.kl.sum() for a in measured[at]])),
                "length": float(np.mean([len(a.ids) for a in measured[at]])),
                "reward": _mean(rewards[at]),
                "gold": _mean(golds[at]),
                "answers": measured[at],
                "rewards": rewards[at],
                "golds": golds[at],
            }
        return found

    def _score(
        self, functions: Sequence[tuple[float, Any]], which: list[int], flat: list[list[int]]
    ) -> list[float | None]:
        """Weighted sum of functions over the answers; None where every function says None, or none can be called."""
        if not functions:
            return [None] * len(flat)
        rows = [self.rows[i] for i in which for _ in range(self.n_answers)]
        prompts = [row["prompt"] for row in rows]
        texts = self.tokenizer.batch_decode(flat, skip_special_tokens=True)
        chat = isinstance(prompts[0], list)
        completions = [[{"role": "assistant", "content": t}] for t in texts] if chat else texts
        columns = {k: [row[k] for row in rows] for k in rows[0] if k not in ("prompt", "completion", "completion_ids")}
        total: list[float | None] = [None] * len(flat)
        for weight, function in functions:
            values = function(
                prompts=prompts,
                completions=completions,
                completion_ids=[list(a) for a in flat],
                trainer_state=self.trainer.state,
                log_extra=_ignore,
                log_metric=_ignore,
                **columns,
            )
            if len(values) != len(flat):
                got = f"{len(values)} scores for {len(flat)} answers"
                raise DataError(message(_name(function), expected="a score per answer", got=got))
            for i, value in enumerate(values):
                if value is not None and not math.isnan(value):
                    total[i] = (total[i] or 0.0) + weight * float(value)
        return total

    def _measure(self, args: Any, state: Any, control: Any) -> None:
        if self.by_prompt and self.by_prompt[-1]["step"] == state.global_step:
            return
        found = self.measure()
        row: dict[str, Any] = {"step": state.global_step, "beta": self._beta(), "seed": args.seed}
        for name in _QUANTITIES:
            row[name], row[f"{name}_se"] = _mean_se(found[name])
        row |= {"n_prompts": len(self.rows), "n_answers": self.n_answers, "epoch": state.epoch}
        self.metrics.append(row)
        self.by_prompt.append({"step": state.global_step, **{name: found[name] for name in _QUANTITIES}})
        if state.is_world_process_zero:
            self._write(state.global_step, found)
        logged = {f"kleash/{k}": row[k] for k in ("kl", "kl_se", "reward", "reward_se", "gold", "gold_se", "length")}
        Trainer.log(self.trainer, {k: v for k, v in logged.items() if v is not None})
        if self.gold is None or row["gold"] is None or self._watch is None:
            return
        peaked = self._watch.update(state.global_step, [math.nan if g is None else g for g in found["gold"]])
        if self.restore_best and self._watch.best_step == state.global_step:
            self._best = (state.global_step, [p.detach().cpu().clone() for p in self._trained()])
        if self.stop and peaked:
            self.stopped_at = state.global_step
            control.should_training_stop = True

    # -------------------------------------------------------------------------------------------------------- writing

    def _write(self, step: int, found: dict[str, list[Any]]) -> None:
        for name, rows in (("metrics.jsonl", self.metrics), (_PROMPTS, self.by_prompt)):
            _files.write_atomic(self.folder / name, "".join(_files.dump_json(row) + "\n" for row in rows))
        if not self.dump:
            return
        lines = []
        for i, answers in enumerate(found["answers"]):
            for k, answer in enumerate(answers):
                line = {
                    "step": step,
                    "prompt_id": i,
                    "logp": answer.logp.tolist(),
                    "ref_logp": answer.ref_logp.tolist(),
                    "reward": found["rewards"][i][k],
                    "gold": found["golds"][i][k],
                }
                lines.append(_files.dump_json({key: v for key, v in line.items() if v is not None}) + "\n")
        (self.folder / "rollouts").mkdir(exist_ok=True)
        _files.write_atomic(self.folder / "rollouts" / f"step_{step:06d}.jsonl", "".join(lines))

    def frontier(self) -> Frontier:
        """The table of this run: one row, the policy of the last measurement, against the reference."""
        if not self.by_prompt:
            raise OptionError(message("run", expected="at least one measurement", got="none"))
        first, last = self.by_prompt[0], self.by_prompt[-1]
        n = len(self.rows)
        pick = np.random.default_rng(self.seed).integers(0, n, (_DRAWS, n))
        columns = {name: (_array(first[name]), _array(last[name])) for name in ("reward", "kl", "gold")}
        draws = {name: (a[pick].mean(axis=1), b[pick].mean(axis=1)) for name, (a, b) in columns.items()}
        gold = self.gold is not None
        return Frontier(
            source="log",
            beta=np.array([self._beta()]),
            reward=_estimates(columns["reward"][1])[None],
            kl=_estimates(columns["kl"][1])[None],
            reference_reward=_estimates(columns["reward"][0]),
            gold=_estimates(columns["gold"][1])[None] if gold else None,
            gold_gain=_estimates(columns["gold"][1] - columns["gold"][0])[None] if gold else None,
            reference_gold=_estimates(columns["gold"][0]) if gold else None,
            n=np.array([n]),
            status=np.array(["weak"]),
            replicates=Replicates(
                kind="bootstrap",
                reward=draws["reward"][1][:, None],
                kl=draws["kl"][1][:, None],
                reference_reward=draws["reward"][0],
                gold=draws["gold"][1][:, None] if gold else None,
                reference_gold=draws["gold"][0] if gold else None,
            ),
            provenance={"trainers": [self.kind], "notes": self._notes(), "versions": self.versions},
        )

    def _notes(self) -> list[str]:
        notes = [
            "beta is the trainer's coefficient, not the tilt's",
            f"KL and scores at step {self.metrics[-1]['step']}",
        ]
        if self.stopped_at is not None and self._watch is not None:
            notes.append(f"stopped at step {self.stopped_at}: true quality was best at step {self._watch.best_step}")
        return notes

    # ------------------------------------------------------------------------------------------------------ beginning

    def _functions(self, gold: Any) -> tuple[list[tuple[float, Any]], Any, str | None]:
        """(weight, function) of the judge, the gold function, and its name."""
        functions = list(getattr(self.trainer, "reward_funcs", []))
        weights = [float(w) for w in getattr(self.trainer, "reward_weights", [1.0] * len(functions))]
        names = list(getattr(self.trainer, "reward_func_names", map(_name, functions)))
        weighted = [(w, f) for w, f in zip(weights, functions, strict=True) if w != 0.0]
        judges = weighted if all(_plain(f) for _, f in weighted) else []
        if callable(gold) and not isinstance(gold, str):
            return judges, gold, _name(gold)
        silent = [i for i, w in enumerate(weights) if w == 0.0]
        if gold is None:
            if len(silent) != 1:
                return judges, None, None
            gold = names[silent[0]]
        if gold not in names:
            fix = _checks.nearest(str(gold), names) if names else "give a function"
            raise OptionError(message("gold", expected="a reward function of the trainer", got=repr(gold), fix=fix))
        function = functions[names.index(gold)]
        if not _plain(function):
            raise OptionError(message(f"gold {gold!r}", expected="a function", got="a model or an async function"))
        return judges, function, str(gold)

    def _take_up(self, step: int) -> None:
        """Rows up to the checkpoint's step; the reference must be the one the run began with."""
        try:
            for name, rows in (("metrics.jsonl", self.metrics), (_PROMPTS, self.by_prompt)):
                text = (self.folder / name).read_text(encoding="utf-8")
                rows += [row for row in map(json.loads, text.splitlines()) if row["step"] <= step]
        except FileNotFoundError:
            self.metrics, self.by_prompt = [], []
            fix = "start afresh"
            raise DataError(
                message("run", expected="its measurements so far", got="none", fix=fix), path=self.folder
            ) from None
        if self.gold is not None and self._watch is not None:
            for row in self.by_prompt:
                self._watch.update(row["step"], _array(row["gold"]))

    def _config(self) -> dict[str, Any]:
        """What settles the result, plain; a resumed run must have the same."""
        args = self.trainer.args
        names = ("num_generations", "scale_rewards", "loss_type", "use_bias_correction_kl", "learning_rate", "seed")
        settings = {name: getattr(args, name) for name in names if hasattr(args, name)}
        fingerprint = [round(x, 3) for x in self.reference.fingerprint(self.prompt_ids[0])]
        here = {
            "trainer": self.kind,
            "beta": self._beta(),
            **settings,
            "gold": self.gold_name,
            "n_prompts": len(self.rows),
            "n_answers": self.n_answers,
            "every": self.every,
            "max_new_tokens": self.max_new_tokens,
            "temperature": self.temperature,
            "prompt_ids": self.prompt_ids[0],
            "measuring_seed": self.seed,
            "reference": fingerprint,
        }
        record = self.folder / "run.json"
        if record.exists():
            before = json.loads(record.read_text(encoding="utf-8"))["config"].get("reference", fingerprint)
            if np.abs(np.subtract(before, fingerprint)).max() > _SAME_REFERENCE:
                fix = "make the trainer with the model the run began with, not with a checkpoint"
                raise ConfigError(message("reference", expected="the one the run began with", got="another", fix=fix))
            here["reference"] = before
        return here

    def _beta(self) -> float:
        beta = self.trainer.args.beta
        return float(beta[0] if isinstance(beta, list) else beta)

    def _trained(self) -> list[Any]:
        return [p for p in self.model.parameters() if p.requires_grad]


def _rows(trainer: Any, prompts: Any | None, n: int) -> list[dict[str, Any]]:
    """The prompts to measure on, a dictionary each."""
    source = prompts
    if source is None:
        source = trainer.eval_dataset if trainer.eval_dataset is not None else trainer.train_dataset
    if isinstance(source, dict):
        source = next(iter(source.values()))
    rows: list[dict[str, Any]] = []
    for row in source:
        rows.append(dict(row) if isinstance(row, dict) else {"prompt": row})
        if len(rows) == n:
            break
    if len(rows) < 2:
        raise OptionError(message("prompts", expected="at least 2", got=len(rows), fix="prompts=[...]"))
    if any("prompt" not in row and "prompt_ids" not in row for row in rows):
        fix = "prompts=[...], or a data set with that column"
        raise OptionError(message("prompts", expected="a column prompt", got=", ".join(rows[0]), fix=fix))
    return rows


def _token_ids(trainer: Any, tokenizer: Any, row: dict[str, Any]) -> list[int]:
    """A prompt's token ids, as the trainer makes them."""
    if "prompt" not in row:  # a preference data set that the trainer has tokenised
        row["prompt"] = tokenizer.decode(row["prompt_ids"])
        return list(row["prompt_ids"])
    prompt = row["prompt"]
    if isinstance(prompt, str):
        ids = trainer.processing_class(text=[prompt])["input_ids"][0]
    else:
        more = getattr(trainer, "chat_template_kwargs", None) or {}
        ids = tokenizer.apply_chat_template(
            prompt, add_generation_prompt=True, tokenize=True, return_dict=True, **more
        )["input_ids"]
    return [int(i) for i in ids]


def _plain(function: Any) -> bool:
    """Whether a reward function can simply be called."""
    import inspect

    from torch import nn

    return (
        callable(function)
        and not isinstance(function, nn.Module)
        and not inspect.iscoroutinefunction(function)
        and not inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004
    )


def _name(function: Any) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def _ignore(*_: Any, **__: Any) -> None:
    """Stands for log_extra and log_metric: what is measured here is no part of the training's own log."""


def _mean(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return float(np.mean(known)) if known else None


def _mean_se(values: Sequence[float | None]) -> tuple[float | None, float | None]:
    known = np.array([v for v in values if v is not None])
    if not known.size:
        return None, None
    return float(known.mean()), float(known.std(ddof=1) / np.sqrt(known.size)) if known.size > 1 else None


def _array(values: Sequence[float | None]) -> Floats:
    return np.array([math.nan if v is None else v for v in values], dtype=np.float64)


def _estimates(values: Floats) -> Estimates:
    """Mean over prompts with its t interval; NaN where a prompt has no value."""
    from scipy.stats import t

    mean, se = values.mean(), values.std(ddof=1) / np.sqrt(values.size)
    half = t.ppf(0.975, values.size - 1) * se
    return Estimates(value=mean, se=se, lo=mean - half, hi=mean + half)
