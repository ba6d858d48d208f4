"""What does the user say about the run? A few settings that the dump cannot show, from flags or a small file."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from kleash import _checks, config
from kleash.errors import ConfigError
from kleash.kl import ESTIMATORS, PLACEMENTS
from kleash.trainers import option_names
from kleash.trainers.options import flatten

__all__ = ["Declared", "as_said", "read_config", "unwrapped"]

KNOWN_KEYS = option_names()[1]
"""Option names of trainers, by which their configuration is told from a small file of declarations."""


@dataclass(frozen=True, kw_only=True)
class Declared:
    """Settings of the run as its owner believes them to be; None where not said.

    ``beta``: The KL coefficient in reward units per nat, of the sequence sum: what the tilt's beta would be.
    ``reward_min``, ``reward_max``: The range the judge can give. ``estimator``, ``placement``: Which KL term the
    trainer uses (``k1``, ``k2``, ``k3``) and where (``loss``, ``loss-with-ratio``, ``reward``, ``reward-own-token``).
    ``columns``: For a log that is a plain table: which column is what, the ``mapping`` of `kleash.logs.read_logs`;
    ``kl_unit`` stands for ``kl.unit``, and so on.
    """

    beta: float | None = None
    reward_min: float | None = None
    reward_max: float | None = None
    estimator: str | None = None
    placement: str | None = None
    columns: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        if self.beta is not None:
            _checks.number(self.beta, name="beta", at_least=0)
        low = None if self.reward_min is None else _checks.number(self.reward_min, name="reward_min")
        high = None if self.reward_max is None else _checks.number(self.reward_max, name="reward_max")
        if low is not None and high is not None and not low < high:
            got = f"{low:g} to {high:g}"
            raise ConfigError(_checks.message("reward range", expected="reward_min below reward_max", got=got))
        if self.estimator is not None:
            _checks.choice(self.estimator, tuple(ESTIMATORS), name="estimator")
        if self.placement is not None:
            _checks.choice(self.placement, PLACEMENTS, name="placement")
        if self.columns is not None:
            object.__setattr__(self, "columns", _columns(self.columns))

    @property
    def reward_range(self) -> float | None:
        """Width of the judge's range, if both ends were said."""
        if self.reward_min is None or self.reward_max is None:
            return None
        return float(self.reward_max) - float(self.reward_min)

    def updated(self, **changes: Any) -> Declared:
        """A copy in which every change that is not None replaces the old value."""
        return replace(self, **{name: value for name, value in changes.items() if value is not None})


def as_said(
    config: str | Path | None, *, beta: float | None, reward_range: tuple[float, float] | None
) -> tuple[Declared, dict[str, Any]]:
    """What a file and the flags over it say, and the trainer's own settings in the file; see `read_config`."""
    declared, settings = (Declared(), {}) if config is None else read_config(config)
    low, high = (None, None) if reward_range is None else reward_range
    return declared.updated(beta=beta, reward_min=low, reward_max=high), settings


def _columns(columns: object) -> dict[str, str]:
    """The mapping of columns under the names that the reader knows."""
    if not isinstance(columns, Mapping) or not all(isinstance(name, str) for name in columns.values()):
        got = type(columns).__name__ if not isinstance(columns, Mapping) else "other values than names"
        fix = 'columns = { reward = "judge_score" }'
        raise ConfigError(_checks.message("columns", expected="a table of column names", got=got, fix=fix))
    return {re.sub(r"^kl_(?=unit$|estimator$|placement$|against$)", "kl.", str(key)): columns[key] for key in columns}


def read_config(path: str | Path) -> tuple[Declared, dict[str, Any]]:
    """Settings from a small file of declarations, or the configuration of a trainer under its own option names.

    TOML, or by its ending JSON or YAML (what verl, NeMo-RL and open-instruct are configured with).

    A file with keys of `Declared` only is declarations; one with option names of a trainer (``use_kl_loss``,
    ``init_kl_coef``, ...; nested or dotted) is a trainer's, and is returned as it stands beside an empty `Declared`.

    Raises
    ------
    MissingFileError, ConfigError
    """
    table = unwrapped(config.read_table(path))
    if not isinstance(table, dict):
        raise ConfigError(_checks.message(str(path), expected="a table of settings", got=type(table).__name__))
    columns = table.pop("columns", None)
    with config.about(path):
        declared, settings = _sorted(table)
        return declared.updated(columns=columns), settings


def _sorted(table: dict[str, Any]) -> tuple[Declared, dict[str, Any]]:
    """Declarations, or a trainer's settings beside none."""
    known = {f.name for f in fields(Declared)}
    names = _names_of(table)
    others = names - known
    if set(table) <= known or (not others & KNOWN_KEYS and (_misspelt(others, known) or not names & known)):
        return config.fill(Declared, table), {}
    return Declared(), table


def _misspelt(names: set[str], known: set[str]) -> bool:
    """Whether one of some unknown names is close to a known one: ``betta`` is a slip, ``learning_rate`` is not."""
    return any(difflib.get_close_matches(name, known, n=1, cutoff=0.75) for name in names)


def _names_of(table: Mapping[str, Any]) -> set[str]:
    """The last parts of all names: what tells a trainer's configuration from a small file of declarations."""
    return {key.rpartition(".")[2].lstrip("-").replace("-", "_") for key in flatten(table)}


def unwrapped(value: Any) -> Any:
    """Settings as wandb saves them, ``name: {value: ...}``, under their names alone."""
    if not isinstance(value, dict):
        return value
    if "value" in value and set(value) <= {"value", "desc"}:
        return unwrapped(value["value"])
    return {key: unwrapped(item) for key, item in value.items()}
