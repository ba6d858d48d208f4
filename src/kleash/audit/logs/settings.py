"""What do the trainer's own settings say about the KL? Only what a configuration states, and what the user declares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kleash.audit.declared import Declared
from kleash.trainers import trainer_named
from kleash.trainers.options import Option, stated
from kleash.trainers.penalty import Penalty

__all__ = ["Settings", "settings_of"]

_MOVES = ("sync_ref_model", "ref_policy_update_freq", "ref_update_interval")
_GENERAL = {
    "entropy": Option(names=("entropy_coeff", "entropy_coef", "entropy_loss_coef")),
    "batch": Option(names=("train_batch_size", "rollout_batch_size", "batch_size")),
    "accumulation": Option(names=("gradient_accumulation_steps",)),
    "generation": Option(names=("steps_per_generation",)),
    **{name: Option(default=False) for name in _MOVES},
}
"""Options that mean the same wherever they are found."""


@dataclass(frozen=True, kw_only=True)
class Settings(Penalty):
    """What the configuration states of the penalty, and around it; None where it says nothing.

    ``beta``, ``beta_key``: The coefficient, and the name it was found under. ``placement``: As declared.
    ``entropy_coefficient``, ``batch``: Weight of an entropy bonus; answers per batch. ``window``: Share of the answers
    drawn at once that one update takes (gradient accumulation steps over steps per generation). ``reference_moves``:
    The option that lets the reference follow the policy, if one is on.
    """

    beta: float | None = None
    beta_key: str | None = None
    placement: str | None = None
    entropy_coefficient: float | None = None
    batch: int | None = None
    window: float | None = None
    reference_moves: str | None = None


def settings_of(trainer: str | None, config: Mapping[str, Any] | None, declared: Declared) -> Settings:
    """The settings of a run from its own configuration, with what the user declared on top.

    ``trainer``: Name of the trainer, e.g. ``trl-grpo`` or ``verl``. ``config``: The trainer's configuration, nested or
    flat, or None. ``declared``: ``beta``, ``estimator`` and ``placement`` as the user gave them win over the
    configuration.

    Returns
    -------
    Settings
        What nobody stated is None.

    Examples
    --------
    >>> from kleash.audit.declared import Declared
    >>> s = settings_of("verl", {"actor.use_kl_loss": True, "actor.kl_loss_coef": 0.001}, Declared())
    >>> s.where, s.beta
    ('loss', 0.001)
    """
    who = trainer_named(trainer)
    values, names = stated({**_GENERAL, **who.options}, config or {})
    penalty = who.penalty(values)
    found: dict[str, Any] = {
        **vars(penalty),
        "beta": values.get(penalty.coefficient or ""),
        "beta_key": names.get(penalty.coefficient or ""),
        "entropy_coefficient": values["entropy"],
        "batch": None if values["batch"] is None else int(values["batch"]),
        "window": _window(values["accumulation"], values["generation"]),
        "reference_moves": next((name for name in _MOVES if values[name]), None),
    }
    if declared.beta is not None:
        found |= {"beta": float(declared.beta), "beta_key": "declared"}
    if declared.estimator is not None:
        found["estimator"] = declared.estimator
    if declared.placement is not None:
        place = declared.placement
        found |= {"placement": place, "in_loss": place.startswith("loss"), "in_reward": place.startswith("reward")}
        found["with_ratio"] = place == "loss-with-ratio"
    return Settings(**found)


def _window(accumulation: Any, generation: Any) -> float | None:
    """The share, where both numbers are stated and positive."""
    both = accumulation is not None and generation is not None and accumulation > 0 and generation > 0
    return float(accumulation) / float(generation) if both else None
