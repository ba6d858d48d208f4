"""The configuration of a sweep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from kleash import config
from kleash.config import Within

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
    """What a sweep is asked to do: in a known world, with its settings by name, or in one from a file.

    ``beta``, ``seeds``, ``seed``, ``steps``, ``samples`` as in :func:`kleash.sweep`; None is the world's own default.

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
    beta: tuple[Annotated[float, Within(at_least=0)], ...] | None = None
    seeds: Annotated[int, Within(at_least=1)] = 3
    seed: Annotated[int, Within(at_least=0)] = 0
    steps: Annotated[int, Within(at_least=1)] | None = None
    samples: Annotated[int, Within(at_least=2)] | None = None

    @classmethod
    def from_dict(cls, content: Mapping[str, Any], *, folder: Path | None = None) -> SweepConfig:
        """The same from plain data; ``folder`` is where a world's file is looked for."""
        return config.fill(cls, content, folder=folder)


def read_config(path: str | Path) -> SweepConfig | LanguageConfig:
    """Read a configuration: with a table ``[model]`` the sweep of a language model, otherwise that of a world.

    Files that it names are looked for beside it. Errors as of :func:`kleash.config.read_table` and ``fill``, with the
    file's name.
    """
    content = config.read_table(path)
    with config.about(path):
        if "model" in content:
            from kleash.train.language import LanguageConfig

            return LanguageConfig.from_dict(content, folder=Path(path).parent)
        return SweepConfig.from_dict(content, folder=Path(path).parent)
