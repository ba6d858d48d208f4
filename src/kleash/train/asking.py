"""Who is asked what: prompts with their columns, judges, and what they answer, checked."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kleash import _checks, _files
from kleash.errors import DataError, OptionError

__all__ = ["Judge", "PromptSet", "Task", "ask"]

Judge = Callable[..., Sequence[float]]
"""TRL's reward function: ``judge(prompts=[...], completions=[...], completion_ids=[...], **columns)``, a list of floats
back."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PromptSet:
    """Prompts as token ids and as the text a judge reads, with further columns for the judge, one value a prompt."""

    ids: Sequence[Sequence[int]]
    texts: Sequence[str]
    columns: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        sizes = {"ids": len(self.ids), "texts": len(self.texts)} | {n: len(v) for n, v in self.columns.items()}
        if not self.ids or len(set(sizes.values())) > 1:
            got = ", ".join(f"{name} {size}" for name, size in sizes.items())
            raise OptionError(_checks.message("prompts", expected="at least one, all columns of one length", got=got))

    def __len__(self) -> int:
        return len(self.ids)

    def digest(self) -> str:
        """SHA-256 over all of it."""
        plain = [
            [list(map(int, ids)) for ids in self.ids],
            list(self.texts),
            sorted(self.columns),
            repr(dict(self.columns)),
        ]
        return hashlib.sha256(_files.dump_json(plain).encode()).hexdigest()


@dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """What a model is trained on, and by whom its answers are judged.

    ``prompts``, ``held_out``: Prompts to train on, and others to measure gold on; without the latter gold is measured
    on the answers of training. ``judge``, ``gold``: The score that is optimised, and the true quality that never is. An
    answer that occurs several times in a step is scored once. ``decode``: Token ids of an answer, its end token
    included, to text. ``eos``: Tokens that end an answer.
    """

    prompts: PromptSet
    judge: Judge
    decode: Callable[[list[int]], str]
    eos: Sequence[int]
    gold: Judge | None = None
    held_out: PromptSet | None = None

    @property
    def measured(self) -> PromptSet:
        """The prompts that gold is measured on."""
        return self.prompts if self.held_out is None else self.held_out


def ask(
    who: Judge, name: str, prompts: PromptSet, place: Sequence[int], *, answers: list[str], ids: list[list[int]]
) -> NDArray[np.float64]:
    """What a judge says of answers to prompts ``place``, checked; ``name`` is what it is called in errors."""
    texts = [prompts.texts[i] for i in place]
    columns = {column: [values[i] for i in place] for column, values in prompts.columns.items()}
    answered = who(prompts=texts, completions=answers, completion_ids=ids, **columns)
    where = f"in a call about {len(answers)} answers, the first to {texts[0]!r:.60}"
    try:
        scores = np.asarray([float(value) for value in answered], dtype=np.float64)
    except (TypeError, ValueError):
        got = f"{answered!r:.80} {where}"
        raise DataError(_checks.message(name, expected="a list of numbers", got=got)) from None
    if scores.shape != (len(answers),):
        expected = f"{len(answers)} scores, one per answer"
        raise DataError(_checks.message(name, expected=expected, got=f"{scores.size} {where}"))
    if not np.isfinite(scores).all():
        bad = int(np.flatnonzero(~np.isfinite(scores))[0])
        asked = f"{scores[bad]} for {answers[bad]!r:.60} to {texts[bad]!r:.60}"
        raise DataError(_checks.message(name, expected="finite scores", got=asked))
    return scores
