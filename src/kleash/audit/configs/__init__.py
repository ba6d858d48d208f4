"""The checks of a configuration alone, without a log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kleash._checks import message
from kleash._files import sha256
from kleash.audit.configs import checks
from kleash.audit.configs.checks import Configuration
from kleash.audit.configs.reading import read_settings, trainer_of
from kleash.audit.engine import checks_of, run_checks
from kleash.audit.findings import CheckedInput, Finding, about
from kleash.errors import ConfigError
from kleash.trainers import trainer_named
from kleash.trainers.columns import PER_ANSWER, PER_TOKEN
from kleash.trainers.options import stated

__all__ = ["CONFIG_CHECKS", "check_configuration"]

CONFIG_CHECKS = checks_of(checks)


def check_configuration(path: str | Path, trainer: str | None) -> tuple[CheckedInput, list[Finding]]:
    """A configuration, read and checked.

    ``trainer``: Whose it is; None: told by the names of its options.

    Raises
    ------
    ConfigError
        Nothing of it can be read, or it has options of no trainer.
    """
    table = read_settings(path)
    who = trainer_named(trainer or trainer_of(path, table))
    values, names = stated(who.options, table)
    if not names:
        got = f"none of {', '.join(sorted(who.options))}"
        fix = "leave --trainer out"
        raise ConfigError(message(str(path), expected=f"options of {who.name}", got=got, fix=fix))
    defaults = {key: option.default for key, option in who.options.items()}
    kept = {key: value for key, value in values.items() if value is not None}
    unread = tuple(name for key, name in names.items() if values[key] is None)
    view = Configuration(trainer=who, values=defaults | kept, names=names, unread=unread)
    checked = CheckedInput(
        path=str(path), sha256=sha256(Path(path)), kind="config", trainer=who.name, rows=len(names), facts=_facts(view)
    )
    return checked, [about(finding, str(path)) for finding in run_checks(CONFIG_CHECKS, view)]


def _facts(view: Configuration) -> dict[str, Any]:
    """What the configuration says without being judged."""
    key, beta, penalty = view.penalty.coefficient, view.beta, view.penalty
    acts = key is not None and beta is not None and view.where != "none"
    by = {"value": beta, "lo": beta, "hi": beta, "from": "set" if key in view.names else "default"}
    per = {"loss": PER_TOKEN, "reward": PER_ANSWER}.get(view.where)
    return {
        "placement": view.where,
        "estimator": None if view.where == "none" else penalty.estimator or view.trainer.estimator,
        "coefficient": by if acts else None,
        "logged_kl_unit": None,
        "penalty_kl_unit": PER_ANSWER if per and view.trainer.implicit else per,
        "effective_beta": None,
        "against": None if view.where == "none" else penalty.against or "reference",
        "unset": {
            name: option.default
            for name, option in view.trainer.options.items()
            if name not in view.names and option.printed and option.default is not None
        },
    }
