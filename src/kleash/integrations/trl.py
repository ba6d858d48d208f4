"""KL, judge's score and true quality of a TRL run while it trains, and a stop when true quality has peaked."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from transformers import Trainer, TrainerCallback

from kleash import _checks, _files
from kleash._checks import message
from kleash.errors import ConfigError, DataError, OptionError
from kleash.integrations.kept import Kept
from kleash.integrations.measure import Answer, Reference, full_kl_of, sample_answers
from kleash.integrations.peak import GoldPeak
from kleash.integrations.prompts import end_ids, prompt_rows, token_ids
from kleash.integrations.records import array, frontier_of, mean, mean_se
from kleash.integrations.scores import choose, score
from kleash.integrations.versions import measurable, require_trl
from kleash.runs import Run, json_lines, open_run

if TYPE_CHECKING:
    from kleash.frontier import Frontier

__all__ = ["KleashCallback"]

_QUANTITIES = ("reward", "gold", "kl", "length")
_PROMPTS = "prompts.jsonl"
_ANEW, _FIRST = 1_000_003, 2_000_003
"""Added to the seed where answers must be others than those of all measurements: of the weights handed over, and of
step 0, whose answers stand for the reference beside those of later policies."""
_PLAIN = {"top_k": 0, "top_p": 1.0, "min_p": None, "repetition_penalty": 1.0}
_SAME_REFERENCE = 0.05  # nats by which a reference asked again may differ: bf16 and other machines stay below


@dataclass(kw_only=True, eq=False, repr=False)
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
        Also write the answers with their log-probabilities, for ``kleash check`` and ``kleash forecast``, and ask each
        policy for those of step 0's answers.
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

    trainer: Any = field(kw_only=False)
    gold: str | Callable[..., Sequence[float | None]] | None = None
    prompts: Any | None = None
    n_prompts: int = 32
    n_answers: int = 2
    every: int = 10
    max_new_tokens: int | None = None
    stop_at_gold_peak: bool = False
    patience: int = 3
    false_alarm: float = 0.05
    restore_best: bool = False
    run_dir: str | Path | None = None
    dump: bool = True
    seed: int = 0
    batch: int | None = None
    metrics: list[dict[str, Any]] = field(init=False, default_factory=list)
    by_prompt: list[dict[str, Any]] = field(init=False, default_factory=list)
    stopped_at: int | None = field(init=False, default=None)
    _best: tuple[int, list[Any]] | None = field(init=False, default=None)
    _handed_over: dict[str, Any] | None = field(init=False, default=None)
    _run: Run | None = field(init=False, default=None)
    _watch: GoldPeak | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.versions = require_trl()
        self.kind, trainer, args = measurable(self.trainer), self.trainer, self.trainer.args
        _checks.integer(self.every, name="every", at_least=1)
        _checks.integer(self.n_answers, name="n_answers", at_least=1)
        _checks.integer(self.n_prompts, name="n_prompts", at_least=2)
        self.folder = Path(args.output_dir) / "kleash" if self.run_dir is None else Path(self.run_dir)
        self.tokenizer = getattr(trainer, "_tokenizer", trainer.processing_class)
        self.end_ids = end_ids(trainer, self.tokenizer)
        limit = getattr(args, "max_completion_length", None) or getattr(args, "max_new_tokens", None) or 256
        self.longest = _checks.integer(self.max_new_tokens or limit, name="max_new_tokens", at_least=1)
        self.temperature = float(getattr(args, "temperature", 1.0))
        self.at_a_time = self.batch or args.per_device_eval_batch_size
        self.rows = prompt_rows(trainer, self.prompts, self.n_prompts)
        self.prompt_ids = [token_ids(trainer, self.tokenizer, row) for row in self.rows]
        self.functions = choose(trainer, self.gold)
        if (self.stop_at_gold_peak or self.restore_best) and self.functions.gold is None:
            fix = "gold=: a function, or the name of a reward function of weight 0"
            raise OptionError(message("gold", expected="true quality to stop by", got="none", fix=fix))
        still = None if getattr(args, "sync_ref_model", False) else getattr(trainer, "ref_model", None)
        self.model = trainer.accelerator.unwrap_model(trainer.model)
        self.reference = Reference(self.model, frozen=still)
        self.kept = Kept(folder=self.folder, decode=self._text)

    # ------------------------------------------------------------------------------------------------ what TRL calls

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Open the run folder, take up what is there after a resume, and measure the reference."""
        looks = max(2, math.ceil(state.max_steps / self.every) + 1)
        self._watch = GoldPeak(looks=looks, patience=self.patience, false_alarm=self.false_alarm)
        if state.is_world_process_zero:
            self._open(resumed=state.global_step > 0, step=state.global_step)
        shared = [self.metrics, self.by_prompt, self.kept.first]
        self.metrics, self.by_prompt, self.kept.first = self._from_main(shared)
        for row in self.by_prompt if self.functions.gold is not None else []:
            self._watch.update(row["step"], array(row["gold"]))
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
        if self.restore_best and self._best is not None:
            for p, kept in zip(self._trained(), self._best[1], strict=True):
                p.data.copy_(kept)
            # The best of many measurements was also the luckiest: what is handed over is measured anew.
            self._handed_over = {"step": self._best[0], **self.measure(seed=self.seed + _ANEW)}
        if self._run is not None:
            lacking = self.kept.forecast(seed=self.seed) if self.dump else None
            results = {
                "trainer": self.kind,
                "gold": self.functions.gold_name,
                "stopped_at": self.stopped_at,
                "best_step": self._watch.best_step
                if self._watch is not None and self.functions.gold is not None
                else None,
                "restored": None if self._best is None else self._best[0],
                "reference_fingerprint": self.reference.fingerprint(self.prompt_ids[0]),
                "notes": self._notes() + ([] if lacking is None else [lacking]),
            }
            self._run.finish(seed=self.seed, results=results, metrics=self.metrics, frontier=self.frontier())

    # ------------------------------------------------------------------------------------------------------ measuring

    def measure(self, *, seed: int | None = None) -> dict[str, list[Any]]:
        """Measure the policy as it is: per prompt ``reward``, ``gold``, ``kl``, ``length``, and the answers drawn.

        Parameters
        ----------
        seed
            Of the answers drawn; default: that of all measurements, so that they are paired.

        Returns
        -------
        ``kl``: nats per answer, mean over the prompt's answers; ``reward`` and ``gold`` likewise, None where no answer
        of the prompt has one; ``answers``: a list of `kleash.integrations.measure.Answer` per prompt.
        """
        from accelerate.utils import gather_object

        accelerator = self.trainer.accelerator
        mine = range(accelerator.process_index, len(self.rows), accelerator.num_processes)
        share = [self._measure_prompts(list(mine), self.seed if seed is None else seed)] if mine else []
        parts = gather_object(share) if accelerator.num_processes > 1 else share
        merged = {key: [None] * len(self.rows) for key in (*_QUANTITIES, "answers", "rewards", "golds", "first")}
        for part in parts:
            for i, row in part.items():
                for key, value in row.items():
                    merged[key][i] = value
        return merged

    def _measure_prompts(self, which: list[int], seed: int) -> dict[int, dict[str, Any]]:
        ids = [self.prompt_ids[i] for i in which]
        drawn = sample_answers(
            self.model,
            ids,
            n=self.n_answers,
            max_new_tokens=self.longest,
            temperature=self.temperature,
            end_ids=self.end_ids,
            pad_id=self.tokenizer.pad_token_id,
            seed=seed + which[0],
            batch=self.at_a_time,
        )
        flat_ids = [p for p in ids for _ in range(self.n_answers)]
        flat = [a for answers in drawn for a in answers]
        measured = self._asked(flat_ids, flat)
        first = [a for i in which for a in self.kept.first[i]] if self.kept.first else []
        again = self._asked(flat_ids, first) if first else []
        asked: dict[str, Any] = {
            "rows": [self.rows[i] for i in which for _ in range(self.n_answers)],
            "answers": flat,
            "tokenizer": self.tokenizer,
            "state": self.trainer.state,
        }
        rewards = score(self.functions.judge, **asked)
        gold = self.functions.gold
        golds = score([] if gold is None else [(1.0, gold)], **asked)
        found = {}
        for k, i in enumerate(which):
            at = slice(k * self.n_answers, (k + 1) * self.n_answers)
            found[i] = {
                "kl": float(np.mean([a.kl.sum() for a in measured[at]])),
                "length": float(np.mean([len(a.ids) for a in measured[at]])),
                "reward": mean(rewards[at]),
                "gold": mean(golds[at]),
                "answers": measured[at],
                "rewards": rewards[at],
                "golds": golds[at],
                "first": [float(a.logp.sum() - a.ref_logp.sum()) for a in again[at]],
            }
        return found

    def _asked(self, prompt_ids: list[list[int]], answers: list[list[int]]) -> list[Answer]:
        """What policy and reference say of given answers."""
        pad, batch = self.tokenizer.pad_token_id, self.at_a_time
        return full_kl_of(
            self.model, self.reference, prompt_ids, answers, temperature=self.temperature, pad_id=pad, batch=batch
        )

    def _text(self, ids: list[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))

    def _measure(self, args: Any, state: Any, control: Any) -> None:
        if self.by_prompt and self.by_prompt[-1]["step"] == state.global_step:
            return
        found = self.measure(seed=self.seed + (0 if self.by_prompt else _FIRST))
        row: dict[str, Any] = {"step": state.global_step, "beta": self._beta(), "seed": args.seed}
        for name in _QUANTITIES:
            row[name], row[f"{name}_se"] = mean_se(found[name])
        row |= {"n_prompts": len(self.rows), "n_answers": self.n_answers, "epoch": state.epoch}
        self.metrics.append(row)
        self.by_prompt.append({"step": state.global_step, **{name: found[name] for name in _QUANTITIES}})
        if state.is_world_process_zero:
            self._write(state.global_step, found)
        if self.dump and len(self.by_prompt) == 1:
            self.kept.first = [[answer.ids for answer in row] for row in found["answers"]]
        logged = {f"kleash/{k}": row[k] for k in ("kl", "kl_se", "reward", "reward_se", "gold", "gold_se", "length")}
        due = control.should_log  # the trainer's own log, which writing one here would call done
        Trainer.log(self.trainer, {k: v for k, v in logged.items() if v is not None})
        control.should_log = due
        if self.functions.gold is None or row["gold"] is None or self._watch is None:
            return
        peaked = self._watch.update(state.global_step, array(found["gold"]))
        if self.restore_best and self._watch.best_step == state.global_step:
            self._best = (state.global_step, [p.detach().cpu().clone() for p in self._trained()])
        if self.stop_at_gold_peak and peaked:
            self.stopped_at = state.global_step
            control.should_training_stop = True

    # -------------------------------------------------------------------------------------------------------- writing

    def _write(self, step: int, found: dict[str, list[Any]]) -> None:
        for name, rows in (("metrics.jsonl", self.metrics), (_PROMPTS, self.by_prompt)):
            _files.write_atomic(self.folder / name, json_lines(rows))
        if self.dump:
            self.kept.write(step, found)

    def frontier(self) -> Frontier:
        """The table of this run: one row against the reference; the policy of the last measurement, or the restored."""
        if not self.by_prompt:
            raise OptionError(message("run", expected="at least one measurement", got="none"))
        row = self._handed_over or self.by_prompt[-1]
        provenance = {"trainers": [self.kind], "notes": self._notes(), "versions": self.versions}
        return frontier_of(self.by_prompt[0], row, beta=self._beta(), seed=self.seed, provenance=provenance)

    def _notes(self) -> list[str]:
        row = self._handed_over or self.by_prompt[-1]
        notes = ["beta is the trainer's coefficient, not the tilt's", f"KL and scores at step {row['step']}"]
        if self.stopped_at is not None and self._watch is not None:
            notes.append(f"stopped at step {self.stopped_at}: true quality was best at step {self._watch.best_step}")
        if self._handed_over is not None:
            notes.append("the weights of that step were restored, and measured anew")
        elif self.restore_best:
            notes.append("no weights were restored: the best measurement lies before the checkpoint resumed from")
        odd = [
            f"{k} {v:g}"
            for k, plain in _PLAIN.items()
            if (v := getattr(self.trainer.args, k, plain)) not in (plain, None)
        ]
        if odd:
            notes.append(f"the trainer samples with {', '.join(odd)}; the policy is measured without")
        return notes

    # ------------------------------------------------------------------------------------------------------ beginning

    def _open(self, *, resumed: bool, step: int) -> None:
        """The run folder, with the rows up to the checkpoint's step; the reference must be the one it began with."""
        there = (self.folder / "run.json").exists()
        if there and not resumed:
            fix = "name another output_dir or run_dir, or resume_from_checkpoint"
            raise OptionError(message(f"{self.folder}", expected="a new folder", got="a run", fix=fix))
        self._run = open_run(self.folder, kind="trl", config=self._config(), resume=there, versions=self.versions)
        if resumed:
            try:
                for name, rows in (("metrics.jsonl", self.metrics), (_PROMPTS, self.by_prompt)):
                    text = (self.folder / name).read_text(encoding="utf-8")
                    rows[:] = [row for row in map(json.loads, text.splitlines()) if row["step"] <= step]
            except FileNotFoundError:
                fix = "begin the run with the callback: the reference's own scores are its first row"
                wrong = message("run", expected="its measurements so far", got="none", fix=fix)
                raise DataError(wrong, path=self.folder) from None
        self.kept.cut_back(step=step)
        self._run.begin(seed=self.seed)

    def _from_main(self, value: Any) -> Any:
        """The first process's value, on all: only it looks at the folder, which the others may be too late to see."""
        if self.trainer.accelerator.num_processes == 1:
            return value
        from accelerate.utils import broadcast_object_list

        return broadcast_object_list([value])[0]

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
            "gold": self.functions.gold_name,
            "n_prompts": len(self.rows),
            "n_answers": self.n_answers,
            "every": self.every,
            "max_new_tokens": self.longest,
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
