"""KL, judge's score and true quality of a TRL run while it trains, and a stop when true quality has peaked."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import Trainer, TrainerCallback

from kleash import _checks
from kleash._checks import message
from kleash.errors import KleashError, OptionError
from kleash.integrations.folder import Watched
from kleash.integrations.kept import Kept
from kleash.integrations.measure import Reference
from kleash.integrations.peak import GoldPeak
from kleash.integrations.probe import QUANTITIES, Probe
from kleash.integrations.prompts import end_ids, prompt_rows, token_ids
from kleash.integrations.records import array, frontier_of, mean_se
from kleash.integrations.scores import choose
from kleash.integrations.troubles import Troubles
from kleash.integrations.versions import measurable, require_trl

if TYPE_CHECKING:
    from kleash.frontier import Frontier

__all__ = ["KleashCallback"]

_ANEW, _FIRST = 1_000_003, 2_000_003
"""Added to the seed where answers must be others than those of all measurements: of the weights handed over, and of
step 0, whose answers stand for the reference beside those of later policies."""
_PLAIN = {"top_k": 0, "top_p": 1.0, "min_p": None, "repetition_penalty": 1.0}


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
    strict
        Let what goes wrong in a measurement (a gold that fails, a full disk) end the training, as an error of its own.
        By default it is kept in ``troubles``, told once, and the training goes on.

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
    strict: bool = False
    metrics: list[dict[str, Any]] = field(init=False, default_factory=list)
    by_prompt: list[dict[str, Any]] = field(init=False, default_factory=list)
    stopped_at: int | None = field(init=False, default=None)
    _best: tuple[int, list[Any]] | None = field(init=False, default=None)
    _handed_over: dict[str, Any] | None = field(init=False, default=None)
    _folder: Watched | None = field(init=False, default=None)
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
        self.troubles = Troubles(strict=self.strict)
        self.probe = Probe(
            trainer=trainer,
            model=self.model,
            reference=self.reference,
            tokenizer=self.tokenizer,
            end_ids=self.end_ids,
            rows=self.rows,
            prompt_ids=self.prompt_ids,
            functions=self.functions,
            n_answers=self.n_answers,
            longest=self.longest,
            temperature=self.temperature,
            at_a_time=self.at_a_time,
        )

    # ------------------------------------------------------------------------------------------------ what TRL calls

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Open the run folder, take up what is there after a resume, and measure the reference."""
        looks = max(2, math.ceil(state.max_steps / self.every) + 1)
        self._watch = GoldPeak(looks=looks, patience=self.patience, false_alarm=self.false_alarm)
        if state.is_world_process_zero:
            self._folder = Watched(
                path=self.folder, kept=self.kept, troubles=self.troubles, seed=self.seed, versions=self.versions
            )
            rows = self._folder.open(
                self._settings(),
                fingerprint=lambda: self.reference.fingerprint(self.prompt_ids[0]),
                resumed=state.global_step > 0,
                step=state.global_step,
            )
            self.metrics, self.by_prompt = rows
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
            with self.troubles.kept("measuring", step=state.global_step):
                self._handed_over = {"step": self._best[0], **self._look(state.global_step, seed=self.seed + _ANEW)}
        if self._folder is not None:
            with self.troubles.kept("finishing the run", step=state.global_step):
                self._folder.finish(self._results, self.metrics, self.by_prompt, self.frontier, dump=self.dump)

    def _results(self) -> dict[str, Any]:
        watched = self._watch is not None and self.functions.gold is not None
        return {
            "trainer": self.kind,
            "gold": self.functions.gold_name,
            "stopped_at": self.stopped_at,
            "best_step": self._watch.best_step if self._watch is not None and watched else None,
            "restored": None if self._best is None else self._best[0],
            "reference_fingerprint": self.reference.fingerprint(self.prompt_ids[0]),
            "notes": self._notes(),
        }

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
        return self.probe.look(seed=self.seed if seed is None else seed, first=self.kept.first, strict=True)[0]

    def _look(self, step: int, *, seed: int) -> dict[str, list[Any]]:
        """The same, with the functions' faults among the troubles."""
        found, faults = self.probe.look(seed=seed, first=self.kept.first, strict=self.strict)
        for doing, error in faults:
            self.troubles.note(doing, error, step=step)
        return found

    def _text(self, ids: list[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))

    def _measure(self, args: Any, state: Any, control: Any) -> None:
        if self.by_prompt and self.by_prompt[-1]["step"] == state.global_step:
            return
        with self.troubles.kept("measuring", step=state.global_step):
            self._take(
                self._look(state.global_step, seed=self.seed + (0 if state.global_step else _FIRST)), args, state
            )
            self._told(control)
            self._judged(state, control)
        if state.is_world_process_zero and self._folder is not None:
            self._folder.write(state.global_step, self.metrics, self.by_prompt)

    def _take(self, found: dict[str, list[Any]], args: Any, state: Any) -> None:
        """A measurement's rows; its answers go to the folder."""
        row: dict[str, Any] = {"step": state.global_step, "beta": self._beta(), "seed": args.seed}
        for name in QUANTITIES:
            row[name], row[f"{name}_se"] = mean_se(found[name])
        row |= {"n_prompts": len(self.rows), "n_answers": self.n_answers, "epoch": state.epoch}
        self.metrics.append(row)
        self.by_prompt.append({"step": state.global_step, **{name: found[name] for name in QUANTITIES}})
        if self.dump and state.is_world_process_zero and self._folder is not None:
            self._folder.keep(state.global_step, found)
        if self.dump and state.global_step == 0:
            self.kept.first = [[answer.ids for answer in row] for row in found["answers"]]

    def _told(self, control: Any) -> None:
        """The last measurement, in the trainer's log."""
        row = self.metrics[-1]
        logged = {f"kleash/{k}": row[k] for k in ("kl", "kl_se", "reward", "reward_se", "gold", "gold_se", "length")}
        due = control.should_log  # the trainer's own log, which writing one here would call done
        with self.troubles.kept("logging", step=row["step"]):
            Trainer.log(self.trainer, {k: v for k, v in logged.items() if v is not None})
        control.should_log = due

    def _judged(self, state: Any, control: Any) -> None:
        """Whether true quality has peaked, after the last measurement."""
        if self.functions.gold is None or self.metrics[-1]["gold"] is None or self._watch is None:
            return
        peaked = self._watch.update(state.global_step, array(self.by_prompt[-1]["gold"]))
        if self.restore_best and self._watch.best_step == state.global_step:
            self._best = (state.global_step, [p.detach().cpu().clone() for p in self._trained()])
        if self.stop_at_gold_peak and peaked:
            self.stopped_at = state.global_step
            control.should_training_stop = True

    # -------------------------------------------------------------------------------------------------------- writing

    def frontier(self) -> Frontier:
        """The table of this run: one row against the reference; the policy of the last measurement, or the restored."""
        if not self.by_prompt or self.by_prompt[0]["step"] != 0:
            raise KleashError(message("run", expected="a measurement of the reference, at step 0", got="none"))
        row = self._last()
        provenance = {"trainers": [self.kind], "notes": self._notes(), "versions": self.versions}
        return frontier_of(self.by_prompt[0], row, beta=self._beta(), seed=self.seed, provenance=provenance)

    def _notes(self) -> list[str]:
        if not self.by_prompt:
            return ["nothing could be measured", *self.troubles.notes()]
        row = self._last()
        notes = ["beta is the trainer's coefficient, not the tilt's", f"KL and scores at step {row['step']}"]
        if self.stopped_at is not None and self._watch is not None:
            notes.append(f"stopped at step {self.stopped_at}: true quality was best at step {self._watch.best_step}")
        if self._handed_over is not None:
            notes.append("the weights of that step were restored, and measured anew")
        elif self._best is not None:
            notes.append("the weights of that step were restored; measuring them anew failed")
        elif self.restore_best:
            notes.append("no weights were restored: the best measurement lies before the checkpoint resumed from")
        odd = [
            f"{k} {v:g}"
            for k, plain in _PLAIN.items()
            if (v := getattr(self.trainer.args, k, plain)) not in (plain, None)
        ]
        if odd:
            notes.append(f"the trainer samples with {', '.join(odd)}; the policy is measured without")
        return notes + self.troubles.notes()

    def _last(self) -> dict[str, Any]:
        """The measurement of the policy that is handed over."""
        best = None if self._best is None else [row for row in self.by_prompt if row["step"] == self._best[0]]
        return self._handed_over or (best or self.by_prompt)[-1]

    # ------------------------------------------------------------------------------------------------------ beginning

    def _from_main(self, value: Any) -> Any:
        """The first process's value, on all: only it looks at the folder, which the others may be too late to see."""
        if self.trainer.accelerator.num_processes == 1:
            return value
        from accelerate.utils import broadcast_object_list

        return broadcast_object_list([value])[0]

    def _settings(self) -> dict[str, Any]:
        """What settles the result, plain; a resumed run must have the same."""
        args = self.trainer.args
        names = ("num_generations", "scale_rewards", "loss_type", "use_bias_correction_kl", "learning_rate", "seed")
        return {
            "trainer": self.kind,
            "beta": self._beta(),
            **{name: getattr(args, name) for name in names if hasattr(args, name)},
            "gold": self.functions.gold_name,
            "n_prompts": len(self.rows),
            "n_answers": self.n_answers,
            "every": self.every,
            "max_new_tokens": self.longest,
            "temperature": self.temperature,
            "prompt_ids": self.prompt_ids[0],
            "measuring_seed": self.seed,
        }

    def _beta(self) -> float:
        beta = self.trainer.args.beta
        return float(beta[0] if isinstance(beta, list) else beta)

    def _trained(self) -> list[Any]:
        return [p for p in self.model.parameters() if p.requires_grad]
