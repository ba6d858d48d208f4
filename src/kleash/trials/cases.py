"""The settings that are run, and the objective that a trainer's documentation makes of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from kleash import _checks
from kleash.errors import ConfigError, OptionError
from kleash.trials.roots import Objective, Puzzle

__all__ = ["NAMES", "PUZZLES", "Case", "built_in", "case_of", "needs_torch", "puzzle"]

Name = Literal["kleash", "trl-grpo", "trl-rloo", "trl-dpo"]
NAMES: tuple[str, ...] = get_args(Name)

PUZZLES: Mapping[str, tuple[str, float]] = {
    "coin": ("two answers, scores 0 and 1", 1.0),
    "three": ("three answers, scores 0 to 1", 0.5),
    "points": ("four answers, scores 3 to 40", 15.0),
    "words": ("15 answers of up to three tokens, scores 0, 0.5, 1", 0.25),
}
"""Name -> what it is, and a beta of the tilt at which the answers' probabilities are moved but none is lost."""

_KNOWN: Mapping[str, Mapping[str, Any]] = {
    "trl-grpo": {
        "beta": 0.0,
        "num_generations": 8,
        "scale_rewards": "group",
        "loss_type": "dapo",
        "use_bias_correction_kl": True,
        "epsilon": 0.2,
        "epsilon_high": None,
    },
    "trl-rloo": {"beta": 0.05, "num_generations": 2, "normalize_advantages": False},
    "trl-dpo": {"beta": 0.1, "labels": "bernoulli", "label_scale": 1.0},
    "kleash": {
        "beta": 1.0,
        "objective": "tabular",
        "samples": 8,
        "penalty": "k1",
        "scale_rewards": "group",
        "kl_in_loss": "k3",
    },
}
"""The settings that are understood, with the trainer's defaults (TRL 1.16); labels are ours."""
_MEAN = ("grpo", "sapo")
_SUM = ("dapo", "bnpo", "dr_grpo", "cispo", "luspo")


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
        return self.settings.get(name, _KNOWN[self.trainer][name])

    @property
    def objective(self) -> Objective:
        """What the documentation of the trainer makes of the settings."""
        beta = float(self.value("beta"))
        if self.trainer == "kleash":
            return self._own(beta)
        if self.trainer == "trl-rloo":
            return Objective(beta=beta, group_size=self.value("num_generations"))
        if self.trainer == "trl-dpo":
            return Objective(beta=beta, labels=self.value("labels"), label_scale=float(self.value("label_scale")))
        return Objective(
            advantage={"none": "centred", "group": "group-standardised", "batch": "batch-standardised"}[
                _checks.choice(str(self.value("scale_rewards")), ("none", "group", "batch"), name="scale_rewards")
            ],  # type: ignore[arg-type]
            penalty="k3-in-loss-with-ratio" if self.value("use_bias_correction_kl") else "k3-in-loss",
            token_weight="mean" if self.value("loss_type") in _MEAN else "sum",
            beta=beta,
            group_size=self.value("num_generations"),
            sd_floor=1e-4,
            policy_weight=self._policy_weight(),
        )

    def _own(self, beta: float) -> Objective:
        name = _checks.choice(str(self.value("objective")), ("tabular", "rloo", "grpo", "dpo"), name="objective")
        _checks.choice(str(self.value("penalty")), ("k1", "own-k1", "full"), name="penalty")
        if name == "dpo":
            return Objective(beta=beta, labels="bernoulli")
        if name != "grpo":
            return Objective(beta=beta)
        scale = _checks.choice(str(self.value("scale_rewards")), ("group", "none"), name="scale_rewards")
        kind = _checks.choice(str(self.value("kl_in_loss")), ("k3", "k3-corrected"), name="kl_in_loss")
        return Objective(
            beta=beta,
            advantage="group-standardised" if scale == "group" else "centred",
            penalty="k3-in-loss" if kind == "k3" else "k3-in-loss-with-ratio",
            group_size=self.value("samples"),
        )

    def _policy_weight(self) -> float:
        """CISPO clamps the ratio at epsilon_high, not at 1 + epsilon_high: at the default 0.2 even a ratio of 1."""
        if self.value("loss_type") != "cispo":
            return 1.0
        high = self.value("epsilon_high")
        return min(1.0, float(self.value("epsilon") if high is None else high))


def case_of(trainer: str, settings: Mapping[str, Any], *, world: str = "coin") -> Case:
    """A case from a person's own settings.

    Raises
    ------
    ConfigError
        A setting that is not known, or whose effect is not predicted here.
    """
    _checks.choice(trainer, NAMES, name="NAME")
    known = _KNOWN[trainer]
    for key in settings:
        if key not in known:
            fix = _checks.nearest(key, known)
            raise ConfigError(
                _checks.message(key, expected=f"a setting of {trainer} that is understood", got=key, fix=fix)
            )
    if trainer == "trl-grpo":
        loss = str(settings.get("loss_type", known["loss_type"]))
        if loss not in (*_MEAN, *_SUM):
            expected = "one of " + ", ".join((*_SUM, *_MEAN))
            raise ConfigError(
                _checks.message("loss_type", expected=expected, got=loss, fix="its root is not predicted")
            )
    case = Case(trainer=trainer, world=world, settings=dict(settings))
    try:
        if case.objective.beta == 0.0:
            raise OptionError(
                _checks.message("beta", expected="above 0", got="0", fix="without a leash no root exists")
            )
    except OptionError as error:
        raise ConfigError(str(error)) from error
    return case


_TILT = {name: tilt for name, (_, tilt) in PUZZLES.items()}
_NONE = {"scale_rewards": "none"}
_CORRECTED = {"objective": "grpo", "kl_in_loss": "k3-corrected"}
_BUILT_IN: Mapping[str, tuple[tuple[str, dict[str, Any]], ...]] = {
    "trl-grpo": (
        ("coin", {"beta": 1.0}),
        ("coin", {"beta": 1.0, "use_bias_correction_kl": False}),
        ("coin", {"beta": 1.0, **_NONE}),
        ("three", {"beta": _TILT["three"], **_NONE}),
        ("points", {"beta": _TILT["points"], **_NONE}),
        ("three", {"beta": _TILT["three"], **_NONE, "use_bias_correction_kl": False}),
        ("coin", {"beta": 1.0, "num_generations": 2}),
        ("points", {"beta": 1.0}),
        ("coin", {"beta": 1.0, "scale_rewards": "batch"}),
        ("words", {"beta": _TILT["words"], **_NONE}),
        ("words", {"beta": _TILT["words"], **_NONE, "use_bias_correction_kl": False}),
        ("words", {"beta": _TILT["words"], **_NONE, "loss_type": "grpo"}),
        ("words", {"beta": _TILT["words"], **_NONE, "loss_type": "dr_grpo"}),
        ("words", {"beta": _TILT["words"], **_NONE, "loss_type": "bnpo"}),
        ("words", {"beta": _TILT["words"], **_NONE, "loss_type": "cispo"}),
        ("words", {"beta": 1.0}),
    ),
    "trl-rloo": (
        ("coin", {"beta": 1.0}),
        ("points", {"beta": _TILT["points"]}),
        ("three", {"beta": _TILT["three"], "num_generations": 8}),
        ("words", {"beta": _TILT["words"], "num_generations": 4}),
        ("three", {"beta": _TILT["three"], "num_generations": 4, "normalize_advantages": True}),
    ),
    "trl-dpo": (
        ("coin", {"beta": 1.0}),
        ("points", {"beta": 0.5, "label_scale": 30.0}),
        ("three", {"beta": 0.5, "labels": "larger-score"}),
        ("words", {"beta": 0.5, "label_scale": 0.5}),
    ),
    "kleash": (
        ("coin", {"beta": 1.0}),
        ("three", {"beta": 0.5}),
        ("points", {"beta": 15.0}),
        ("words", {"beta": _TILT["words"], "objective": "rloo"}),
        ("words", {"beta": _TILT["words"], "objective": "rloo", "penalty": "full"}),
        ("points", {"beta": _TILT["points"], "objective": "rloo"}),
        ("coin", {"beta": 1.0, "objective": "grpo"}),
        ("coin", {"beta": 1.0, **_CORRECTED}),
        ("three", {"beta": _TILT["three"], **_CORRECTED, "scale_rewards": "none"}),
        ("words", {"beta": _TILT["words"], **_CORRECTED, "scale_rewards": "none"}),
        ("three", {"beta": 0.5, "objective": "dpo"}),
        ("words", {"beta": 0.5, "objective": "dpo"}),
    ),
}
"""World and settings of each configuration that is run for a trainer."""


def built_in(trainer: str, *, quick: bool = False) -> list[Case]:
    """The configurations that `kleash conformance` runs for a trainer; ``quick``: the first two of them."""
    rows = _BUILT_IN[_checks.choice(trainer, NAMES, name="NAME")]
    cases = [Case(trainer=trainer, world=world, settings=settings) for world, settings in rows]
    return cases[:2] if quick else cases


def needs_torch(case: Case) -> bool:
    """Whether a case of kleash's own is one of its language-model engine."""
    return case.trainer == "kleash" and case.value("objective") != "tabular"
