"""The settings that are run, and the objective that a trainer's documentation makes of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kleash import _checks, config
from kleash.errors import ConfigError, OptionError
from kleash.trainers import TRAINERS
from kleash.trainers.trial import Trial
from kleash.trials.roots import Objective, Puzzle

__all__ = ["NAMES", "PUZZLES", "TRIALS", "Case", "built_in", "case_of", "needs_torch", "puzzle", "read_case"]

PUZZLES: Mapping[str, tuple[str, float]] = {
    "coin": ("two answers, scores 0 and 1", 1.0),
    "three": ("three answers, scores 0 to 1", 0.5),
    "points": ("four answers, scores 3 to 40", 15.0),
    "words": ("15 answers of up to three tokens, scores 0, 0.5, 1", 0.25),
}
"""Name -> what it is, and a beta of the tilt at which the answers' probabilities are moved but none is lost."""

OWN = "kleash"
_CORRECTED = {"objective": "grpo", "kl_in_loss": "k3-corrected"}


def _own(value: Callable[[str], Any]) -> dict[str, Any]:
    """What the engines of kleash are documented to descend."""
    beta = float(value("beta"))
    name = _checks.choice(str(value("objective")), ("tabular", "rloo", "grpo", "dpo"), name="objective")
    _checks.choice(str(value("penalty")), ("k1", "own-k1", "full"), name="penalty")
    if name == "dpo":
        return {"beta": beta, "labels": "bernoulli"}
    if name != "grpo":
        return {"beta": beta}
    scale = _checks.choice(str(value("scale_rewards")), ("group", "none"), name="scale_rewards")
    kind = _checks.choice(str(value("kl_in_loss")), ("k3", "k3-corrected"), name="kl_in_loss")
    return {
        "beta": beta,
        "advantage": "group-standardised" if scale == "group" else "centred",
        "penalty": "k3-in-loss" if kind == "k3" else "k3-in-loss-with-ratio",
        "group_size": value("samples"),
    }


TRIALS: dict[str, Trial] = {
    OWN: Trial(
        settings={
            "beta": 1.0,
            "objective": "tabular",
            "samples": 8,
            "penalty": "k1",
            "scale_rewards": "group",
            "kl_in_loss": "k3",
        },
        objective=_own,
        cases=(
            ("coin", {"beta": 1.0}),
            ("three", {"beta": 0.5}),
            ("points", {"beta": 15.0}),
            ("words", {"beta": 0.25, "objective": "rloo"}),
            ("words", {"beta": 0.25, "objective": "rloo", "penalty": "full"}),
            ("points", {"beta": 15.0, "objective": "rloo"}),
            ("coin", {"beta": 1.0, "objective": "grpo"}),
            ("coin", {"beta": 1.0, **_CORRECTED}),
            ("three", {"beta": 0.5, **_CORRECTED, "scale_rewards": "none"}),
            ("words", {"beta": 0.25, **_CORRECTED, "scale_rewards": "none"}),
            ("three", {"beta": 0.5, "objective": "dpo"}),
            ("words", {"beta": 0.5, "objective": "dpo"}),
        ),
    ),
    **{trainer.name: trainer.trial for trainer in TRAINERS.values() if trainer.trial is not None},
}
NAMES = tuple(TRIALS)


def puzzle(name: str) -> Puzzle:
    """One of the built-in worlds (`PUZZLES`).

    Examples
    --------
    >>> puzzle("coin").reward
    array([0., 1.])
    """
    _checks.choice(name, tuple(PUZZLES), name="world")
    if name == "coin":
        return Puzzle.one_token(name, reference=[0.8, 0.2], reward=[0.0, 1.0])
    if name == "three":
        return Puzzle.one_token(name, reference=[0.5, 0.3, 0.2], reward=[0.0, 0.4, 1.0])
    if name == "points":
        return Puzzle.one_token(name, reference=[0.4, 0.3, 0.2, 0.1], reward=[3.0, 10.0, 28.0, 40.0])
    return Puzzle.with_end(name, letters=2, length=3, seed=1, scale=1.0)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A trainer with its settings in a world, and the objective they are documented to have."""

    trainer: str
    world: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """A name that is unique among the built-in cases."""
        return ", ".join([self.trainer, self.world, *(f"{k} {v}" for k, v in self.settings.items())])

    def value(self, name: str) -> Any:
        """A setting, or the trainer's default."""
        return self.settings.get(name, TRIALS[self.trainer].settings[name])

    @property
    def objective(self) -> Objective:
        """What the documentation of the trainer makes of the settings."""
        return Objective(**TRIALS[self.trainer].objective(self.value))


def case_of(trainer: str, settings: Mapping[str, Any], *, world: str = "coin") -> Case:
    """A case from a person's own settings.

    Raises `ConfigError`: A setting that is not known, or whose effect is not predicted here.
    """
    _checks.choice(trainer, NAMES, name="NAME")
    trial = TRIALS[trainer]
    for key in settings:
        if key not in trial.settings:
            fix = _checks.nearest(key, trial.settings)
            raise ConfigError(
                _checks.message(key, expected=f"a setting of {trainer} that is understood", got=key, fix=fix)
            )
    for key, values in trial.predicted.items():
        got = str(settings.get(key, trial.settings[key]))
        if got not in values:
            expected = "one of " + ", ".join(values)
            raise ConfigError(_checks.message(key, expected=expected, got=got, fix="its root is not predicted"))
    case = Case(trainer=trainer, world=world, settings=dict(settings))
    try:
        if case.objective.beta == 0.0:
            raise OptionError(
                _checks.message("beta", expected="above 0", got="0", fix="without a leash no root exists")
            )
    except OptionError as error:
        raise ConfigError(str(error)) from error
    return case


def read_case(trainer: str, path: str | Path) -> Case:
    """A case from a TOML, YAML or JSON file: the trainer's settings, and optionally ``world``."""
    settings = config.read_table(path)
    world = settings.pop("world", "coin")
    with config.about(path):
        return case_of(trainer, settings, world=_checks.choice(world, tuple(PUZZLES), name="world"))


def built_in(trainer: str, *, quick: bool = False) -> list[Case]:
    """The configurations that `kleash conformance` runs for a trainer; ``quick``: the first two of them."""
    _checks.choice(trainer, NAMES, name="NAME")
    cases = [Case(trainer=trainer, world=world, settings=settings) for world, settings in TRIALS[trainer].cases]
    return cases[:2] if quick else cases


def needs_torch(case: Case) -> bool:
    """Whether a case of kleash's own is one of its language-model engine."""
    return case.trainer == OWN and case.value("objective") != "tabular"
