"""Which column of a file plays which part: asked for by name, or found under a default name."""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kleash._checks import message, short
from kleash.errors import MissingColumnError, OptionError
from kleash.rows import Source
from kleash.samples._first_steps import recognised, refuse_advantages, reward_column
from kleash.samples._ratios import Ratios

if TYPE_CHECKING:
    import polars as pl
    from numpy.typing import NDArray

    from kleash.trainers.columns import FirstSteps

_PROMPT = ("prompt_id", "prompt")
_ANSWER = ("answer", "completion", "response")
_DEFAULT_REWARD = ("reward",)
FLAGS = {
    "prompt": "--prompt-column",
    "reward": "--reward-column",
    "gold": "--gold-column",
    "answer": "--answer-column",
    "label_probability": "--label-probability-column",
    "cluster": "--cluster-column",
}


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Columns as the caller asked for them; None is the default name."""

    prompt: str | None
    rewards: tuple[str | tuple[str, float], ...]
    gold: str | None
    answer: str | None
    label_probability: str | None
    keep_answers: bool

    def resolve(self, columns: Sequence[str], source: Source, numeric: set[str] | None = None) -> Roles:
        """Roles of the columns of one file; ``numeric`` names those that hold numbers, where that is known.

        Raises
        ------
        MissingColumnError
            A column that was named, or the prompt or reward under its default name, is not there.
        OptionError
            A reward column is named twice.
        """

        def find(role: str, name: str | None, *defaults: str) -> str | None:
            for candidate in (name,) if name is not None else defaults:
                if candidate in columns:
                    return candidate
            if name is not None:
                raise missing(role, name, columns, source)
            return None

        kind = recognised(columns)
        prompt = find("prompt", self.prompt, *((kind.prompt,) if kind is not None else _PROMPT))
        if prompt is None:
            raise missing("prompt", None, columns, source)
        rewards: dict[str, float] = {}
        specs = self.rewards
        if kind is not None and specs == _DEFAULT_REWARD:
            specs = (reward_column(kind, columns, numeric, self.gold, source),)
        for spec in specs:
            name, weight = (spec, 1.0) if isinstance(spec, str) else spec
            if isinstance(spec, str) and spec not in columns:
                head, _, tail = spec.rpartition(":")
                name, weight = (head, _weight(head, tail)) if head and _is_number(tail) else (spec, 1.0)
            if name not in columns:
                raise missing("reward", None if self.rewards == _DEFAULT_REWARD else name, columns, source)
            if name in rewards:
                raise OptionError(message("reward columns", expected="each once", got=f"{name!r} twice"))
            rewards[name] = weight
        if kind is not None:
            refuse_advantages(kind, list(rewards))
        return Roles(
            kind=kind,
            prompt=prompt,
            rewards=tuple(rewards.items()),
            gold=find("gold", self.gold, "gold"),
            probability=find("label_probability", self.label_probability, "label_probability"),
            answer=find("answer", self.answer, *((kind.answer,) if kind is not None else _ANSWER))
            if self.keep_answers
            else None,
            ratios=None if kind is not None else Ratios.among(columns),
        )


@dataclass(frozen=True, kw_only=True)
class Roles:
    """Which column of one file plays which part."""

    prompt: str
    rewards: tuple[tuple[str, float], ...]
    gold: str | None
    probability: str | None
    answer: str | None
    kind: FirstSteps | None = None
    """A trainer's own file, of which only the rows of the first step count."""
    ratios: Ratios | None = None
    """Who drew each answer; None where the file does not say."""

    @property
    def reward_columns(self) -> list[str]:
        """Names of the reward columns."""
        return [name for name, _ in self.rewards]

    @property
    def number_columns(self) -> list[str]:
        """Names of the columns that hold numbers, each once."""
        ratios = () if self.ratios is None else self.ratios.number_columns
        return _distinct(*self.reward_columns, self.gold, self.probability, *ratios)

    @property
    def columns(self) -> list[str]:
        """Names of all columns that are read, each once."""
        step = None if self.kind is None else "step"
        ratios = () if self.ratios is None else self.ratios.columns
        return _distinct(self.prompt, *self.number_columns, self.answer, step, *ratios)

    def weigh(self, rewards: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
        """The weighted sum of the reward columns, in their order; a single column of weight 1 as it is."""
        with np.errstate(over="ignore", invalid="ignore"):  # the caller refuses what is not finite
            total = self.rewards[0][1] * rewards[0]
            for (_, weight), values in zip(self.rewards[1:], rewards[1:], strict=True):
                total = total + weight * values
        return total


def _distinct(*names: str | None) -> list[str]:
    return list(dict.fromkeys(name for name in names if name is not None))


def reward_specs(columns: str | Sequence[str | tuple[str, float]] | None) -> tuple[str | tuple[str, float], ...]:
    """Reward columns as the caller named them: a text is looked up in the file before it is split at a colon."""
    specs = ["reward"] if columns is None else [columns] if isinstance(columns, str) else list(columns)
    if not specs:
        raise OptionError(message("reward columns", expected="at least one", got="none"))
    return tuple(s if isinstance(s, str) else (str(s[0]), _weight(s[0], s[1])) for s in specs)


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def _weight(name: str, value: Any) -> float:
    if not _is_number(value) or not math.isfinite(float(value)):
        raise OptionError(message(f"weight of reward column {name!r}", expected="a finite number", got=f"{value}"))
    return float(value)


def missing(role: str, name: str | None, columns: Sequence[str], source: Source) -> MissingColumnError:
    """The error for a column that is not there; ``name`` is None where the default names were looked for."""
    shown = [short(column) for column in columns if column]
    listed = ", ".join(shown[:30]) + (f" and {len(shown) - 30} more" if len(shown) > 30 else "")
    fix = f"name it with {FLAGS[role]}"
    close = difflib.get_close_matches(name or role, shown, n=1, cutoff=0.5)
    if close:
        fix = f"did you mean {close[0]!r}?" if name is not None else f"{fix} {close[0]}"
    thing = f"column {name!r}" if name is not None else f"{role} column"
    expected = " or ".join(_PROMPT if role == "prompt" else (role,)) if name is None else "in the file"
    got = f"the columns {listed}" if listed else "no columns"
    return MissingColumnError(message(thing, expected=expected, got=got, fix=fix), path=source.shown)


def is_number(dtype: pl.DataType) -> bool:
    """Whether a column of this type holds numbers."""
    import polars as pl

    return dtype.is_numeric() or dtype.is_(pl.Boolean)


def named(role: str, column: str | None) -> str:
    """A part by its name, with the column that plays it where that is called otherwise."""
    return role if column in {role, None} else f"{role} (column {short(column)!r})"
