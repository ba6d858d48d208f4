"""What can be measured from inside: a TRL that was tested, and a trainer whose policy gives its answers itself."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Any

from kleash._checks import message
from kleash.errors import DependencyError, OptionError
from kleash.trainers import TRAINERS

__all__ = ["TESTED", "measurable", "require_trl"]

TESTED = ((1, 16), (1, 16))
"""First and last series (major, minor) of TRL that the tests and the conformance table were run with."""

_TRAINERS = tuple(trainer.classes[1] for trainer in TRAINERS.values() if trainer.classes is not None)
_TURNS = {"tools": "tools", "rollout_func": "a rollout function", "environments": "environments"}


def require_trl() -> dict[str, str]:
    """The versions of TRL, transformers and torch.

    Raises `DependencyError`: TRL is missing, or its version lies outside `TESTED`: what its settings mean has changed
    between releases more than once, so an untested one is not guessed about.
    """
    first, last = (".".join(map(str, series)) for series in TESTED)
    wanted = f"{first}.x" if first == last else f"{first} to {last}.x"
    fix = f"pip install 'trl~={last}.0'"
    try:
        found = {name: version(name) for name in ("trl", "transformers", "torch")}
    except PackageNotFoundError as error:
        raise DependencyError(message("TRL", expected=wanted, got=f"no {error.name}", fix=fix)) from None
    series = tuple(int(part) for part in found["trl"].split(".")[:2])
    if not TESTED[0] <= series <= TESTED[1]:
        raise DependencyError(message("TRL", expected=f"{wanted}, the tested range", got=found["trl"], fix=fix))
    return found


def measurable(trainer: Any) -> str:
    """The trainer's kind, if its policy can be measured from inside."""
    kind = next((c.__name__ for c in type(trainer).__mro__ if c.__name__ in _TRAINERS), None)
    if kind is None:
        raise OptionError(message("trainer", expected="one of " + ", ".join(_TRAINERS), got=type(trainer).__name__))
    if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
        fix = "train with plain accelerate, or without the callback"
        raise OptionError(message("weights", expected="whole on every process", got="DeepSpeed or FSDP", fix=fix))
    for name, what in _TURNS.items():
        if getattr(trainer, name, None):
            fix = "train without the callback"
            raise OptionError(message("answers", expected="one turn of the policy's own", got=what, fix=fix))
    return kind
