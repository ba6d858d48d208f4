"""A configuration of a person's own, from a file."""

from __future__ import annotations

from pathlib import Path

from kleash import _checks, config
from kleash.trials.cases import PUZZLES, Case, case_of

__all__ = ["read_case"]


def read_case(trainer: str, path: str | Path) -> Case:
    """Read the trainer's settings, and optionally ``world``, from TOML, YAML or JSON.

    Raises `MissingFileError`, `ConfigError`: No such file; none of the formats; an unknown key or a setting whose root
    is not predicted.
    """
    settings = config.read_table(path)
    world = settings.pop("world", "coin")
    with config.about(path):
        return case_of(trainer, settings, world=_checks.choice(world, tuple(PUZZLES), name="world"))
