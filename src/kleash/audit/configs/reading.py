"""Is a file a trainer's configuration? Its settings, from a table or from command lines."""

from __future__ import annotations

import itertools
import shlex
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from kleash import _checks, _files, config
from kleash.audit.declared import unwrapped
from kleash.errors import ConfigError
from kleash.trainers import option_names, trainer_named, whose
from kleash.trainers.options import flatten, stated

__all__ = ["CONFIG_SUFFIXES", "is_configuration", "read_settings", "trainer_of"]

CONFIG_SUFFIXES = (".yaml", ".yml", ".toml", ".sh")


def read_settings(path: str | Path) -> dict[str, Any]:
    """The settings in a TOML, YAML or JSON file, or on the command lines of a shell script."""
    if Path(path).suffix.lower() == ".sh":
        return _flags(Path(path))
    table = unwrapped(config.read_table(path))
    return table if isinstance(table, dict) else {}


def _flags(path: Path) -> dict[str, Any]:
    """Settings on a command line: ``--name value``, ``--name=value``, ``--name`` and hydra's ``a.b=value``."""
    text = _files.read_text(path, expected="a shell script", most=1 << 20, errors="replace")
    try:
        words = shlex.split(text, comments=True)
    except ValueError as error:
        raise ConfigError(_checks.message(str(path), expected="a shell script", got=str(error))) from None
    found: dict[str, Any] = {}
    for word, following in itertools.zip_longest(words, words[1:], fillvalue="--"):
        name, given, value = word.lstrip("+").partition("=")
        if given:
            found[name] = value
        elif name.startswith("--") and len(name) > 2:
            found[name] = "true" if following.startswith("-") or "=" in following else following
    return {name.lstrip("-").replace("-", "_"): value for name, value in found.items()}


def is_configuration(path: Path, trainer: str | None = None) -> bool:
    """Whether a file holds enough options of one trainer to be its configuration; of a named one, any."""
    try:
        table = read_settings(path)
    except ConfigError:
        return False
    return bool(whose(table) if trainer is None else stated(trainer_named(trainer).options, table)[1])


def trainer_of(path: str | Path, table: dict[str, Any]) -> str:
    """The trainer whose options a configuration has, or a `ConfigError`."""
    found = whose(table)
    if not found:
        keys = [key.rpartition(".")[2] for key in flatten(table)]
        known = sorted(option_names()[1])
        near = [
            f"did you mean {close[0]!r}?"
            for key in keys
            if key not in known and (close := get_close_matches(key, known, n=1))
        ][:1]
        fix = "; ".join([*near, "say whose with --trainer"])
        got = "keys " + ", ".join(keys[:6]) + ", ..." * (len(keys) > 6) if keys else "no settings"
        raise ConfigError(_checks.message(str(path), expected="options of a trainer's KL", got=got, fix=fix))
    return found[0]
