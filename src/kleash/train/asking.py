"""Who is asked what: prompts with their columns, and the answers of judges, checked."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kleash import _checks, _files
from kleash.errors import DataError, OptionError

__all__ = ["Judge", "PromptSet", "ask"]

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
            told = ", ".join(f"{name} {size}" for name, size in sizes.items())
            raise OptionError(_checks.message("prompts", expected="at least one, all columns of one length", got=told))

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


def ask(
    who: Judge, name: str, texts: list[str], answers: list[str], ids: list[list[int]], columns: Mapping[str, list[Any]]
) -> NDArray[np.float64]:
    """What a judge says, checked."""
    told = who(prompts=texts, completions=answers, completion_ids=ids, **columns)
    where = f"in a call about {len(answers)} answers, the first to {texts[0]!r:.60}"
    try:
        scores = np.asarray([float(value) for value in told], dtype=np.float64)
    except (TypeError, ValueError):
        got = f"{told!r:.80} {where}"
        raise DataError(_checks.message(name, expected="a list of numbers", got=got)) from None
    if scores.shape != (len(answers),):
        expected = f"{len(answers)} scores, one per answer"
        raise DataError(_checks.message(name, expected=expected, got=f"{scores.size} {where}"))
    if not np.isfinite(scores).all():
        bad = int(np.flatnonzero(~np.isfinite(scores))[0])
        asked = f"{scores[bad]} for {answers[bad]!r:.60} to {texts[bad]!r:.60}"
        raise DataError(_checks.message(name, expected="finite scores", got=asked))
    return scores
