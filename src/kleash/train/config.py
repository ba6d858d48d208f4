"""The TOML file of a sweep: a frozen dataclass that refuses what it does not know."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kleash import _checks
from kleash.errors import ConfigError, KleashError, MissingFileError

if TYPE_CHECKING:
    from kleash.train.language import LanguageConfig

__all__ = ["DEFAULT_BETAS", "SweepConfig", "read_config"]

DEFAULT_BETAS = (0.0, 1.0, 5.0, 15.0, 60.0)
"""The settings of the dial in the published table."""


@dataclass(frozen=True, kw_only=True)
class WorldSource:
    """A world in a file: its path and whether to divide each prompt's probabilities by their sum."""

    file: Path
    normalise: bool = False


@dataclass(frozen=True, kw_only=True)
class SweepConfig:
    """What a sweep is asked to do.

    Parameters
    ----------
    world
        The name of a known world, or a file.
    settings
        Settings of a known world by name.
    beta, seeds, seed, steps, samples
        As in :func:`kleash.sweep`; None is the world's own default.

    Examples
    --------
    >>> SweepConfig.from_dict({"beta": [0, 1], "settings": {"oversalt": 0.0005}}).beta
    (0.0, 1.0)
    >>> SweepConfig.from_dict({"sedes": 3})
    Traceback (most recent call last):
    kleash.errors.ConfigError: unknown key 'sedes'; did you mean 'seeds'?
    """

    world: str | WorldSource = "kitchen"
    settings: Mapping[str, float] = field(default_factory=dict)
    beta: tuple[float, ...] | None = None
    seeds: int = 3
    seed: int = 0
    steps: int | None = None
    samples: int | None = None

    @classmethod
    def read(cls, path: str | Path) -> SweepConfig:
        """Read a TOML file; a world's file is looked for beside it.

        Raises
        ------
        MissingFileError
            There is no such file.
        ConfigError
            Not TOML, an unknown key, or a value of the wrong kind; with the file's name.
        """
        config = read_config(path)
        if not isinstance(config, cls):
            raise ConfigError(_checks.message(f"{path}", expected="the sweep of a world", got="one of a model"))
        return config

    @classmethod
    def from_dict(cls, content: Mapping[str, Any], *, folder: Path | None = None) -> SweepConfig:
        """The same from plain data; ``folder`` is where a world's file is looked for."""
        _known(content, [f.name for f in fields(cls)], "")
        values = dict(content)
        if "world" in values:
            values["world"] = _world(values["world"], folder or Path())
        if "settings" in values:
            settings = _table(values["settings"], "settings")
            values["settings"] = {key: _number(value, f"settings.{key}") for key, value in settings.items()}
        if "beta" in values:
            beta = values["beta"] if isinstance(values["beta"], list) else [values["beta"]]
            values["beta"] = tuple(_checks.betas([_number(b, "beta") for b in beta], infinite=False).tolist())
        for name, least in (("seeds", 1), ("seed", 0), ("steps", 1), ("samples", 2)):
            if name in values:
                values[name] = _checks.integer(values[name], name=name, at_least=least)
        return cls(**values)


def read_config(path: str | Path) -> SweepConfig | LanguageConfig:
    """Read a TOML file: with a table ``[model]`` the sweep of a language model, otherwise that of a world.

    Files that it names are looked for beside it.

    Raises
    ------
    MissingFileError
        There is no such file.
    ConfigError
        Not TOML, an unknown key, or a value of the wrong kind; with the file's name.
    """
    path = Path(path)
    try:
        with open(path, "rb") as file:
            content = tomllib.load(file)
    except FileNotFoundError:
        raise MissingFileError(_checks.message(f"{path}", expected="a TOML file", got="nothing there")) from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # not TOML, or not UTF-8
        raise ConfigError(f"{path}: is not TOML: {error}") from error
    try:
        if "model" in content:
            from kleash.train.language import LanguageConfig

            return LanguageConfig.from_dict(content, folder=path.parent)
        return SweepConfig.from_dict(content, folder=path.parent)
    except KleashError as error:
        raise ConfigError(f"{path}: {error}") from error


def _world(value: Any, folder: Path) -> str | WorldSource:
    if isinstance(value, str):
        return value
    table = _table(value, "world")
    _known(table, ["file", "normalise"], "world.")
    if not isinstance(table.get("file"), str):
        raise ConfigError(
            _checks.message("world.file", expected="the path of a CSV or JSONL file", got=table.get("file"))
        )
    if not isinstance(table.get("normalise", False), bool):
        raise ConfigError(_checks.message("world.normalise", expected="true or false", got=repr(table["normalise"])))
    return WorldSource(file=folder / table["file"], normalise=table.get("normalise", False))


def _known(content: Mapping[str, Any], names: list[str], prefix: str) -> None:
    for key in content:
        if key not in names:
            raise ConfigError(f"unknown key {prefix + key!r}; {_checks.nearest(key, names)}")


def _table(value: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(_checks.message(name, expected="a table", got=repr(value)))
    return value


def _number(value: Any, name: str) -> float:
    """TOML's numbers pass; text and booleans, which float() would take, do not."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ConfigError(_checks.message(name, expected="a number", got=repr(value)))
    return _checks.number(value, name=name)
