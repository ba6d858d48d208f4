"""What an option of a trainer may be, and its two readings: what a configuration states, and what holds by default."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kleash import _checks
from kleash.errors import OptionError

if TYPE_CHECKING:
    from kleash.trainers.penalty import Target

__all__ = ["Option", "Options", "Version", "dotted", "flatten", "given", "stated", "version_of"]

Options = Mapping[str, Any]
Version = tuple[int, ...]
_FLAGS = {"true": True, "false": False, "1": True, "0": False}


@dataclass(frozen=True, kw_only=True)
class Option:
    """One option: its names in a configuration, what it may be, its default.

    A bool as default makes a flag, choices or a word make a word; anything else is a number.

    ``names``: How a configuration spells it, ends of dotted names, the first that is there counts; empty: its key
    alone. ``default``: Of the newest version that was read. ``history``: Defaults by version, oldest first: the first
    version with a value, and the value; None where it is not known. ``choices``: Words that it takes. ``above``,
    ``at_least``: Limits of a number. ``printed``: Whether the name says enough to be believed wherever a log prints it.
    ``path``: Its full name where people set it, if that is neither the first of its names nor its key. ``off``: The
    flag that turns it off on a command line. ``ours``: No option of the trainer: what kleash has to be told beside it.
    """

    names: tuple[str, ...] = ()
    default: Any = None
    history: tuple[tuple[Version, Any], ...] = ()
    choices: tuple[str, ...] = ()
    above: float | None = None
    at_least: float | None = None
    printed: bool = True
    path: str = ""
    off: str = ""
    ours: bool = False

    @property
    def kind(self) -> str:
        """``flag``, ``word`` or ``number``."""
        if isinstance(self.default, bool):
            return "flag"
        return "word" if self.choices or isinstance(self.default, str) else "number"

    def at(self, version: Version | None) -> Any:
        """The default of one version, None where it is not known."""
        if version is None:
            return None
        return next((value for since, value in reversed(self.history) if since <= version), None)

    def believed(self, value: Any) -> Any:
        """A value as a configuration states it, None where it is no value of this option."""
        if self.kind == "flag":
            return _FLAGS.get(value.lower()) if isinstance(value, str) else bool(value)
        if self.kind == "word":
            return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
        try:
            return None if isinstance(value, bool) else float(value)
        except (TypeError, ValueError, OverflowError):
            return None

    def checked(self, key: str, value: Any) -> Any:
        """A value that a person gives, or an `OptionError`."""
        if self.kind == "number":
            if self.default is None and str(value).lower() in {"none", "null"}:
                return None
            return _checks.number(value, name=f"setting {key}", above=self.above, at_least=self.at_least)
        choices = ("true", "false") if self.kind == "flag" else self.choices
        word = str(value).strip().strip("'\"")
        if self.kind == "flag":
            word = {"1": "true", "0": "false"}.get(word, word)
        if word not in choices and word.lower() in choices:
            word = word.lower()  # True, False and None as Python writes them
        _checks.choice(word, choices, name=f"setting {key}")
        return _FLAGS[word] if self.kind == "flag" else word


def version_of(text: str | None) -> Version | None:
    """A version as numbers, as far as it is made of them.

    Examples
    --------
    >>> version_of("v0.18.2"), version_of("1.10.0.dev0"), version_of("main")
    ((0, 18, 2), (1, 10, 0), None)
    """
    found = re.match(r"v?(\d+(?:\.\d+)*)", text or "")
    return None if found is None else tuple(int(part) for part in found[1].split("."))


def dotted(version: Version) -> str:
    """A version as it is written."""
    return ".".join(map(str, version))


def flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings under dotted names.

    Examples
    --------
    >>> flatten({"actor": {"use_kl_loss": True}, "beta": 0.1})
    {'actor.use_kl_loss': True, 'beta': 0.1}
    """
    flat: dict[str, Any] = {}
    for key, value in table.items():
        name = f"{prefix}{key}"
        flat |= flatten(value, f"{name}.") if isinstance(value, Mapping) else {name: value}
    return flat


def stated(options: Mapping[str, Option], config: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """What a configuration states and nothing else: a default of a version that nobody named is no fact about a run.

    ``options``: The table. ``config``: Nested or flat, a whole file or an excerpt: names are looked up by their ends.

    Returns
    -------
    A value for each key of the table, None where nothing is stated; and the name by which it was found.
    """
    table = {str(key).lstrip("-").replace("-", "_"): value for key, value in flatten(config).items()}
    values: dict[str, Any] = {}
    found: dict[str, str] = {}
    for key, option in options.items():
        values[key] = None
        for name in option.names or (key,):
            held = next((v for full, v in table.items() if v is not None and f".{full}".endswith(f".{name}")), None)
            if held is not None:
                values[key], found[key] = option.believed(held), name
                break
    return values, found


def given(target: Target, options: Mapping[str, Option], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The options with what a person gives in place of the defaults.

    Names may be dotted paths or flags (``actor.kl_loss_type``, ``--kl-loss-type``); the last part counts.

    ``target``: Which of them matter, and which its name settles. ``options``: The table. ``settings``: What is given.

    Returns
    -------
    A value for each key of the table.

    Raises
    ------
    OptionError
        An unknown name (with the nearest), a name twice, or a value the option does not take.
    """
    seen: dict[str, Any] = {}
    for full, value in settings.items():
        key = str(full).strip().lstrip("-").rsplit(".", 1)[-1].replace("-", "_")
        if key not in target.settable:
            expected, fix = f"one that matters for {target.name}", _checks.nearest(key, target.settable)
            raise OptionError(_checks.message("setting", expected=expected, got=repr(str(full)), fix=fix))
        if key in seen:
            raise OptionError(_checks.message(f"setting {key}", expected="one value", got="two"))
        seen[key] = options[key].checked(key, value)
    return {key: option.default for key, option in options.items()} | dict(target.fixed) | seen
