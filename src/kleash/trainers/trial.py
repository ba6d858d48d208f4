"""How a trainer is put to the trial: settings in small worlds, and the objective that its documents give them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = ["Divisor", "Trial"]

Divisor = Literal["one", "longest", "mean"]


def _one(value: Callable[[str], Any]) -> Divisor:
    return "one"


@dataclass(frozen=True, kw_only=True)
class Trial:
    """The configurations that ``kleash conformance`` runs, and what to hold them against.

    ``settings``: The options that are understood, with their defaults. ``objective``: From a setting's value by name to
    the keywords of `kleash.trials.roots.Objective`. ``cases``: World and settings, the quickest two first.
    ``predicted``: Values of an option whose root is predicted, where not all are. ``divisor``: What the loss is divided
    by: 1, the longest answer, the mean length.
    """

    settings: Mapping[str, Any]
    objective: Callable[[Callable[[str], Any]], dict[str, Any]]
    cases: tuple[tuple[str, Mapping[str, Any]], ...]
    predicted: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    divisor: Callable[[Callable[[str], Any]], Divisor] = _one
