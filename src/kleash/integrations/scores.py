"""The trainer's reward functions: which are the judge, which is true quality, and what they say of given answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kleash import _checks
from kleash._checks import message
from kleash.errors import DataError, OptionError

__all__ = ["Functions", "choose", "score"]

Weighted = Sequence[tuple[float, Callable[..., Any]]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Functions:
    """The judge as weighted functions (none where they cannot simply be called); the gold function and its name."""

    judge: Weighted
    gold: Callable[..., Any] | None
    gold_name: str | None


def choose(trainer: Any, gold: str | Callable[..., Any] | None) -> Functions:
    """Judge and true quality among a trainer's reward functions: those of weight 0 are no part of the judge.

    Raises `OptionError`: Nothing is called ``gold``, or it is a model or asynchronous.
    """
    functions = list(getattr(trainer, "reward_funcs", None) or [])
    given = getattr(trainer, "reward_weights", None)
    weights = [1.0] * len(functions) if given is None else [float(w) for w in given]
    names = list(getattr(trainer, "reward_func_names", None) or map(_name, functions))
    weighted = [(w, f) for w, f in zip(weights, functions, strict=True) if w != 0.0]
    judge = weighted if all(_plain(f) for _, f in weighted) else []
    if gold is not None and not isinstance(gold, str):
        if not _plain(gold):
            raise OptionError(message("gold", expected="a name or a function", got="a model or an async function"))
        return Functions(judge=judge, gold=gold, gold_name=_name(gold))
    silent = [name for name, w in zip(names, weights, strict=True) if w == 0.0]
    if gold is None and len(silent) != 1:
        return Functions(judge=judge, gold=None, gold_name=None)
    name: str = silent[0] if gold is None else gold
    if name not in names:
        fix = _checks.nearest(name, names) if names else "give a function"
        raise OptionError(message("gold", expected="a reward function of the trainer", got=repr(name), fix=fix))
    function = functions[names.index(name)]
    if not _plain(function):
        raise OptionError(message(f"gold {name!r}", expected="a function", got="a model or an async function"))
    return Functions(judge=judge, gold=function, gold_name=name)


def score(
    functions: Weighted,
    *,
    rows: Sequence[Mapping[str, Any]],
    answers: Sequence[Sequence[int]],
    tokenizer: Any,
    state: Any,
) -> list[float | None]:
    """Weighted sum of functions over answers; None where every function says None, or there is none.

    Parameters
    ----------
    rows
        The data set's row of each answer: ``prompt`` and the columns that are passed on.
    answers
        Token ids.

    Returns
    -------
    One score per answer.
    """
    if not functions:
        return [None] * len(answers)
    prompts = [row["prompt"] for row in rows]
    texts = tokenizer.batch_decode(answers, skip_special_tokens=True)
    chat = isinstance(prompts[0], list)
    completions = [[{"role": "assistant", "content": text}] for text in texts] if chat else texts
    columns = {k: [row[k] for row in rows] for k in rows[0] if k not in ("prompt", "completion", "completion_ids")}
    total: list[float | None] = [None] * len(answers)
    for weight, function in functions:
        values = function(
            prompts=prompts,
            completions=completions,
            completion_ids=[list(a) for a in answers],
            trainer_state=state,
            log_extra=_ignore,
            log_metric=_ignore,
            **columns,
        )
        if not hasattr(values, "__len__") or isinstance(values, str | bytes | Mapping):
            raise DataError(message(_name(function), expected="a score per answer", got=type(values).__name__))
        if len(values) != len(answers):
            got = f"{len(values)} scores for {len(answers)} answers"
            raise DataError(message(_name(function), expected="a score per answer", got=got))
        for i, value in enumerate(values):
            number = _number(value, function)
            if number is not None:
                total[i] = (total[i] or 0.0) + weight * number
    return total


def _number(value: Any, function: Any) -> float | None:
    """A score as a number, None where there is none (NaN too)."""
    if value is None:
        return None
    try:
        number = math.nan if isinstance(value, str | bytes) else float(value)
        wrong = isinstance(value, str | bytes) or math.isinf(number)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        number, wrong = math.nan, True
    if wrong:
        raise DataError(message(_name(function), expected="finite scores, or None", got=_checks.short(value)))
    return None if math.isnan(number) else number


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
