"""What decides which tilt a trainer's KL coefficient leads to: a few facts about where the penalty stands."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from kleash import _checks
from kleash.errors import OptionError

__all__ = ["Leash", "Pull", "Scale", "Setting", "Trainer", "read_settings"]

Scale = Literal["group", "batch", "log"]
Pull = Literal["answer", "token", "forward", "none", "other"]


@dataclass(frozen=True, kw_only=True)
class Leash:
    """The penalty of one trainer under one set of settings.

    Parameters
    ----------
    parameter
        The option that holds the coefficient.
    pull
        What the expected update of the KL term descends. ``answer``: KL(policy || reference) of whole answers.
        ``token``: the same of each token at its own prefix, blind to later tokens. ``forward``:
        KL(reference || policy) of each token. ``none``: nothing. ``other``: no divergence of the two.
    group_mean
        The baseline is the mean of the group with the answer itself in it, which shrinks the reward's part of the
        update by (G - 1) / G and leaves the penalty alone.
    scale
        By what the rewards (not the penalty) are divided: nothing, each ``group``'s SD, the SD of the judge's score
        over the ``batch``, or one number that only the run's own ``log`` shows (the SD of advantages, a running
        SD).
    sd_of
        What a ``group`` scale is the SD of: the ``group``, with G - 1 in its denominator; ``group-n``, with G in it; or
        the ``others``, G - 1 answers without the one that is scaled.
    factor
        Any other factor on the reward's part.
    per_length
        The coefficient multiplies a mean over the answer's tokens, not their sum.
    group_option, group_size
        The trainer's name for the group size, and its default where it has one.
    assumes
        What must hold besides.
    refused
        Why there is no translation, if there is none whatever else is known.
    """

    parameter: str
    pull: Pull
    group_mean: bool = False
    scale: Scale | None = None
    sd_of: Literal["group", "group-n", "others"] = "group"
    factor: float = 1.0
    per_length: bool = False
    group_option: str = "the group size"
    group_size: int | None = None
    assumes: tuple[str, ...] = ()
    refused: str | None = None


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One option of a trainer that matters here: its default and what it may be, numbers if there are no choices."""

    default: Any
    choices: tuple[str, ...] = ()
    above: float | None = None
    at_least: float | None = None


@dataclass(frozen=True, kw_only=True)
class Trainer:
    """A trainer: the options that matter, with its own defaults, and how they make a leash."""

    settings: Mapping[str, Setting]
    leash: Callable[[dict[str, Any]], Leash]


def read_settings(name: str, known: Mapping[str, Setting], given: Mapping[str, Any]) -> dict[str, Any]:
    """The trainer's settings with what was given in place of its defaults.

    Names may be dotted paths or flags (``actor.kl_loss_type``, ``--kl-loss-type``); the last part counts.

    Raises
    ------
    OptionError
        An unknown name (with the nearest), a name twice, or a value the option does not take.
    """
    values = {key: setting.default for key, setting in known.items()}
    seen: set[str] = set()
    for full, value in given.items():
        key = str(full).strip().lstrip("-").rsplit(".", 1)[-1].replace("-", "_")
        if key not in known:
            fix = _checks.nearest(key, known)
            raise OptionError(
                _checks.message("setting", expected=f"one that matters for {name}", got=repr(str(full)), fix=fix)
            )
        if key in seen:
            raise OptionError(_checks.message(f"setting {key}", expected="one value", got="two"))
        seen.add(key)
        values[key] = _value(key, known[key], value)
    return values


def _value(key: str, setting: Setting, value: Any) -> Any:
    if not setting.choices:
        if setting.default is None and str(value).lower() in {"none", "null"}:
            return None
        return _checks.number(value, name=f"setting {key}", above=setting.above, at_least=setting.at_least)
    word = str(value).strip().strip("'\"")
    if setting.choices == ("true", "false"):
        word = {"1": "true", "0": "false"}.get(word, word)
    if word not in setting.choices and word.lower() in setting.choices:
        word = word.lower()  # True, False and None as Python writes them
    return _checks.choice(word, setting.choices, name=f"setting {key}")
