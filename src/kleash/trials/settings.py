"""A configuration of a person's own, from a TOML file."""

from __future__ import annotations

import tomllib
from pathlib import Path

from kleash._checks import message
from kleash.errors import ConfigError, MissingFileError
from kleash.trials.cases import PUZZLES, Case, case_of

__all__ = ["read_case"]


def read_case(trainer: str, path: str | Path) -> Case:
    """Read the trainer's settings, and optionally ``world``, from TOML.

    Raises
    ------
    MissingFileError, ConfigError
        No such file; not TOML; an unknown key or a setting whose root is not predicted.
    """
    path = Path(path)
    try:
        settings = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise MissingFileError(message(f"{path}", expected="a TOML file", got="nothing there")) from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read as TOML: {error}") from None
    world = settings.pop("world", "coin")
    if world not in PUZZLES:
        raise ConfigError(message(f"{path}: world", expected="one of " + ", ".join(PUZZLES), got=repr(world)))
    try:
        return case_of(trainer, settings, world=world)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
