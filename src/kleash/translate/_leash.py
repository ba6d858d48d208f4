"""From a trainer's options, stated or by default, to what decides which tilt its coefficient leads to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kleash.trainers import TARGETS, Trainer
from kleash.trainers.options import given
from kleash.trainers.penalty import Leash, Penalty, Pull, pull_of

__all__ = ["leash_of"]

_NO_PULL = (
    "{option}: k1 as a loss has no gradient on average, so there is no leash at any coefficient; use {instead} instead"
)
_OTHER_PULL = "{option}: the gradient is that of neither KL, so no tilt corresponds; use {instead} instead"
_PAID = "{option}: in the reward only k1 pulls towards the reference as KL does; {estimator} can pull away from it"
_MOVES = (
    "the coefficient is moved by a controller, so no fixed beta corresponds; fix it, or set the controller's target "
    "to the KL you want, in {unit}"
)
_TWICE = "{options} are both on: two penalties that add up; turn one off"


def leash_of(name: str, settings: Mapping[str, Any]) -> Leash:
    """The leash of a trainer with its defaults, save what is given.

    ``name``: One of `TARGETS`. ``settings``: Options that are not at their defaults.

    Returns
    -------
    The leash, with what the penalty's update descends, and why there is no translation where it descends no KL.
    """
    trainer, target = TARGETS[name]
    options = given(target, trainer.options, settings)
    leash, penalty = target.leash(options), trainer.penalty(options)
    in_loss = trainer.place == "loss" if penalty.in_loss is None else penalty.in_loss
    pull, refused = _pull(trainer, penalty, leash.instead) if in_loss else ("answer", _paid(trainer, penalty))
    if penalty.where == "both":
        refused = _TWICE.format(options=" and ".join(trainer.switches))
    if penalty.adaptive:
        refused = _MOVES.format(unit=trainer.controller)
    return replace(leash, pull=pull, refused=leash.refused or refused)


def _pull(trainer: Trainer, penalty: Penalty, instead: str) -> tuple[Pull, str | None]:
    """What a per-token KL term in the loss descends, and why there is no translation where it descends no KL."""
    if trainer.implicit:
        return "answer", None
    estimator = penalty.estimator or trainer.estimator
    if estimator is None:
        return "other", f"{penalty.named}: what its gradient descends is not known here; use {instead}"
    pull = pull_of(estimator, with_ratio=penalty.with_ratio)
    refused = {"none": _NO_PULL, "other": _OTHER_PULL}.get(pull)
    return pull, None if refused is None else refused.format(option=penalty.named, instead=instead)


def _paid(trainer: Trainer, penalty: Penalty) -> str | None:
    """Why a per-token estimate in the reward has no translation; None for the one that has."""
    estimator = penalty.estimator or trainer.estimator
    return None if estimator == "k1" else _PAID.format(option=penalty.named, estimator=estimator)
