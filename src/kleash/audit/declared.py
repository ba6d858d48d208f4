"""What does the user say about the run? A few settings that the dump cannot show, from flags or a small file."""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from kleash import _checks
from kleash.audit.settings import KNOWN_KEYS, names_of
from kleash.errors import ConfigError, MissingFileError
from kleash.kl import ESTIMATORS, PLACEMENTS

__all__ = ["Declared", "read_config"]


@dataclass(frozen=True, kw_only=True)
class Declared:
    """Settings of the run as its owner believes them to be; None where not said.

    Parameters
    ----------
    beta
        The KL coefficient in reward units per nat, of the sequence sum: what the tilt's beta would be.
    reward_min, reward_max
        The range the judge can give.
    estimator, placement
        Which KL term the trainer uses (``k1``, ``k2``, ``k3``) and where (``loss``, ``loss-with-ratio``, ``reward``,
        ``reward-own-token``).
    """

    beta: float | None = None
    reward_min: float | None = None
    reward_max: float | None = None
    estimator: str | None = None
    placement: str | None = None

    def __post_init__(self) -> None:
        if self.beta is not None:
            _checks.number(self.beta, name="beta", at_least=0)
        low = None if self.reward_min is None else _checks.number(self.reward_min, name="reward_min")
        high = None if self.reward_max is None else _checks.number(self.reward_max, name="reward_max")
        if low is not None and high is not None and not low < high:
            got = f"{low:g} to {high:g}"
            raise ConfigError(_checks.message("reward range", expected="reward_min below reward_max", got=got))
        if self.estimator is not None:
            _checks.choice(self.estimator, ESTIMATORS, name="estimator")
        if self.placement is not None:
            _checks.choice(self.placement, PLACEMENTS, name="placement")

    @property
    def reward_range(self) -> float | None:
        """Width of the judge's range, if both ends were said."""
        if self.reward_min is None or self.reward_max is None:
            return None
        return float(self.reward_max) - float(self.reward_min)

    def updated(self, **changes: Any) -> Declared:
        """A copy in which every change that is not None replaces the old value."""
        return replace(self, **{name: value for name, value in changes.items() if value is not None})


def read_config(path: str | Path) -> tuple[Declared, dict[str, Any]]:
    """Settings from a small file of declarations, or the configuration of a trainer under its own option names.

    A file with keys of `Declared` only is declarations; one with option names of a trainer (``use_kl_loss``,
    ``init_kl_coef``, ...; nested or dotted) is a trainer's, and is returned as it stands beside an empty `Declared`.

    Raises
    ------
    MissingFileError, ConfigError
    """
    table = _table(path)
    known = {f.name for f in fields(Declared)}
    if set(table) <= known or not any(name in KNOWN_KEYS for name in names_of(table) if name not in known):
        return _declared(path, table), {}
    return Declared(), table


def _table(path: str | Path) -> dict[str, Any]:
    file = Path(path)
    if not file.is_file():
        raise MissingFileError(_checks.message(str(path), expected="a TOML or JSON file", got="nothing of that name"))
    try:
        text = file.read_text(encoding="utf-8")
        table = json.loads(text) if file.suffix.lower() == ".json" else tomllib.loads(text)
    except (UnicodeDecodeError, json.JSONDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(_checks.message(str(path), expected="TOML (or .json)", got=str(error))) from None
    if not isinstance(table, dict):
        raise ConfigError(_checks.message(str(path), expected="a table of settings", got=type(table).__name__))
    return table


def _declared(path: str | Path, table: dict[str, Any]) -> Declared:
    known = [f.name for f in fields(Declared)]
    for key in table:
        if key not in known:
            fix = _checks.nearest(key, known)
            raise ConfigError(_checks.message(f"{path}: key", expected="a known setting", got=repr(key), fix=fix))
    return Declared(**table)
