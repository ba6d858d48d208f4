"""TRL's own trainer on a tiny policy: its gradients at a point that is held, or its path from the reference."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import expit

from kleash.trainers import TRAINERS
from kleash.trials.cases import TRIALS
from kleash.trials.roots import pair_mass
from kleash.trials.tiny import TinyPolicy, quiet

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kleash.estimates import Floats
    from kleash.trials.cases import Case
    from kleash.trials.roots import Puzzle

__all__ = ["Trace", "distinct_pairs", "gradient_unit", "run_trl"]

_PROMPT = "?"


@dataclass(frozen=True, kw_only=True, eq=False)
class Trace:
    """What a run did, step by step.

    ``update`` minus the gradient with respect to the logits, shape (N, n_prefixes, vocabulary); ``logits`` the policy
    after each step, same shape.
    """

    update: Floats
    logits: Floats


_COMMON: Mapping[str, Any] = {
    "lr_scheduler_type": "constant",
    "optim": "sgd",
    "max_grad_norm": 0.0,
    "logging_strategy": "no",
    "save_strategy": "no",
    "report_to": "none",
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
    "disable_tqdm": True,
    "dataloader_num_workers": 0,
}


def run_trl(
    case: Case,
    puzzle: Puzzle,
    *,
    start: Floats,
    steps: int,
    rate: Floats | None,
    batch: int,
    seed: int,
    scores: Floats | None = None,
) -> Trace:
    """Run a case's trainer from ``start`` and record every step.

    ``start``: The policy to begin with, shape (n_prefixes, vocabulary); the reference is always the puzzle's. ``rate``:
    How far a step moves the logits of each prefix along its gradient, shape (n_prefixes,); None holds the policy.
    ``batch``: Answers per step (pairs, for DPO). ``scores``: Scores given to the trainer instead of the puzzle's, shape
    (S,); to see what a wrong judge would do.

    Returns
    -------
    Trace
        Updates and logits of every step, shape (steps, n_prefixes, vocabulary).

    Notes
    -----
    The trainer's loss, sampling, grouping and accumulation are TRL's; only the optimiser is plain gradient descent,
    which has the same fixed points as any other and no memory. Gradient clipping is off: it would bias the mean.
    """
    from transformers import TrainerCallback

    updates: list[Floats] = []
    path: list[Floats] = []
    reward = puzzle.reward if scores is None else scores

    with tempfile.TemporaryDirectory(prefix="kleash-conformance-") as folder, warnings.catch_warnings(), quiet():
        warnings.simplefilter("ignore")  # third parties' deprecations; this is no test of theirs
        policy = TinyPolicy.build(puzzle, Path(folder) / "reference")

        class Recorder(TrainerCallback):  # type: ignore[misc]
            def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
                updates.append(-policy.logit_gradient())
                if rate is not None:
                    policy.rescale_gradient(rate)

            def on_step_end(self, *_: Any, **__: Any) -> None:
                path.append(policy.logits())

        common = {"output_dir": str(Path(folder) / "out"), "per_device_train_batch_size": batch, "seed": seed}
        common |= {**_COMMON, "max_steps": steps, "learning_rate": 0.0 if rate is None else 1.0}
        trainer = _trainer(case, puzzle, policy, reward, common, Recorder(), steps * batch)
        policy.set_logits(start)
        _silently(trainer)
    return Trace(update=np.array(updates), logits=np.array(path))


def gradient_unit(case: Case, puzzle: Puzzle, logits: Floats) -> float:
    """What the trainer's loss is divided by, against `roots.expected_update`: the mean length, the longest, or 1."""
    divisor = TRIALS[case.trainer].divisor(case.value)
    if divisor == "one":
        return 1.0
    if divisor == "longest":
        return float(puzzle.tokens.mask.shape[1])
    return float(np.exp(puzzle.log_policy(logits)) @ puzzle.tokens.mask.sum(axis=1))


def _trainer(
    case: Case,
    puzzle: Puzzle,
    policy: TinyPolicy,
    reward: Floats,
    common: Mapping[str, Any],
    recorder: Any,
    n_rows: int,
) -> Any:
    import trl
    from datasets import Dataset

    length = puzzle.tokens.mask.shape[1]
    settings = {key: value for key, value in case.settings.items() if key not in ("labels", "label_scale")}
    shared = {"model": policy.model, "processing_class": policy.tokenizer, "callbacks": [recorder]}
    names: Any = TRAINERS[case.trainer].classes
    config, trainer = (getattr(trl, name) for name in names)
    if "labels" in TRIALS[case.trainer].settings:
        prompt, rng = policy.tokenizer.convert_tokens_to_ids(_PROMPT), np.random.default_rng(common["seed"])
        rows = _pairs(case, puzzle, reward, n_rows, prompt=prompt, rng=rng)

        class Tokenised(trainer):  # type: ignore[misc, valid-type]
            """Takes token ids as they are: TRL's own preparation would add an end token to one-token answers."""

            def _prepare_dataset(self, dataset: Any, *_: Any, **__: Any) -> Any:
                return dataset

        arguments = config(**common, **settings)
        return Tokenised(**shared, args=arguments, train_dataset=Dataset.from_dict(rows))

    score = {_answer(puzzle, row): float(value) for row, value in enumerate(reward)}

    def judge(completion_ids: list[list[int]], **_: Any) -> list[float]:
        return [score[tuple(ids)] for ids in completion_ids]

    arguments = config(**common, **settings, max_completion_length=length)
    prompts = Dataset.from_dict({"prompt": [_PROMPT] * (8 * int(common["per_device_train_batch_size"]))})
    return trainer(**shared, args=arguments, train_dataset=prompts, reward_funcs=judge)


def _answer(puzzle: Puzzle, row: int) -> tuple[int, ...]:
    """The token ids of an answer as the trainer sees them."""
    return tuple(int(x) for x in puzzle.tokens.token[row][puzzle.tokens.mask[row]])


def distinct_pairs(puzzle: Puzzle, n: int, rng: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Pairs of distinct answers of the reference: the first of each, and the second."""
    pairs = pair_mass(puzzle)
    return np.divmod(rng.choice(pairs.size, size=n, p=(pairs / pairs.sum()).ravel()), len(pairs))


def _pairs(
    case: Case, puzzle: Puzzle, reward: Floats, n_rows: int, *, prompt: int, rng: np.random.Generator
) -> dict[str, list[list[int]] | list[str]]:
    """Labelled pairs of distinct answers of the reference, as token ids: what a preference data set would hold."""
    first, second = distinct_pairs(puzzle, n_rows, rng)
    gap = (reward[first] - reward[second]) / float(case.value("label_scale"))
    sure = np.where(gap == 0, 0.5, (gap > 0).astype(np.float64))
    wins = rng.random(n_rows) < (expit(gap) if case.value("labels") == "bernoulli" else sure)
    answers = [list(_answer(puzzle, row)) for row in range(len(reward))]
    return {
        "prompt_ids": [[prompt]] * n_rows,
        "chosen_ids": [answers[i] for i in np.where(wins, first, second)],
        "rejected_ids": [answers[i] for i in np.where(wins, second, first)],
    }


def _silently(trainer: Any) -> None:
    """Train without the summary that is printed on stdout."""
    import contextlib
    import io

    from transformers import PrinterCallback, ProgressCallback

    for callback in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(callback)
    with contextlib.redirect_stdout(io.StringIO()):
        trainer.train()
