"""What to set in a named trainer, from what the forecast recommends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from scipy.special import softmax

from kleash import _checks
from kleash.errors import OptionError
from kleash.translate import (
    Translation,
    convert,
    group_size_of,
    implied_objective,
    needed_settings,
    scale_of,
    snippet,
    standardised_beta,
    ways_out,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kleash.forecasting.sourced import Sourced
    from kleash.samples import Samples

    Floats = NDArray[np.float64]
    Objective = Literal["tilt", "group-standardised"]

__all__ = ["Implied", "TrainerOrder", "TrainerSetting", "implied", "reward_moments"]


@dataclass(frozen=True, kw_only=True)
class TrainerSetting:
    """The safe beta as a trainer's option; ``value`` is None where there is none, and ``refused`` says why.

    ``settings`` is what the trainer must be set to for the value to hold, by its own names, the value rounded to four
    digits; ``snippet`` the same as text to paste. Both are empty where there is no value.
    """

    name: str
    parameter: str
    value: float | None
    exact: bool
    assumes: tuple[str, ...]
    refused: str | None
    settings: Mapping[str, Any] = field(default_factory=dict)
    snippet: str = ""

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready plain data."""
        return {
            "name": self.name,
            "parameter": self.parameter,
            "value": self.value,
            "translates": "safe_beta",
            "exact": self.exact,
            "assumes": list(self.assumes),
            "refused": self.refused,
            "snippet": self.snippet or None,
        }

    def __str__(self) -> str:
        if self.value is None:
            return f"Nothing to set in {self.name}: {self.refused}."
        how = "" if self.exact else " (approximately)"
        return f"Set {self.parameter} = {self.value:.4g} in {self.name}{how}, for the safe beta.\n{self.snippet}"


@dataclass(frozen=True, kw_only=True)
class TrainerOrder:
    """For which trainer, and under which of its settings, a forecast is to say what to set."""

    name: str
    objective: str
    length: float | None = None
    group_size: int | None = None
    settings: Mapping[str, Any] | None = None

    def check(self) -> None:
        """Raise now what would be raised once the safe beta is known: unknown names, needed things not given."""
        scale_of(self.name, self.settings)
        self._translated(1.0, sd=1.0, spread=0.0)

    def fulfilled(self, samples: Samples, safe_beta: float | None, *, sourced: Sourced | None = None) -> TrainerSetting:
        """The setting for the safe beta of a forecast; ``sourced`` where the answers come from several sources."""
        scale = scale_of(self.name, self.settings)
        sd, spread = 1.0, 0.0
        if safe_beta is not None and scale in {"group", "batch"}:
            log_m = None if sourced is None else sourced.log_m(safe_beta)
            mean, sds = reward_moments(samples, safe_beta, log_m=log_m)
            moving = sds[sds > 0]  # a prompt whose answers all score alike stays at the reference under any trainer
            if scale == "group" and moving.size:
                sd, spread = float(moving.mean()), float(moving.std())
            elif moving.size:
                sd = float(np.sqrt((sds**2).mean() + mean.var()))
        told = self._translated(safe_beta or 1.0, sd=sd, spread=spread)
        refused = told.refused
        if self.objective == "tilt" and scale == "log":
            refused = refused or (
                f"{self.name} divides rewards by an SD that only its own log shows; kleash convert --reward-sd takes it"
            )
        if refused is not None and self.objective == "tilt":
            ways = " or ".join(ways_out(self.name, self.settings or {})[:2])
            refused += f"; with {ways} there is a number" if ways else ""
        if safe_beta is None:
            refused = refused or "the forecast has no safe beta to translate"
        needed: dict[str, Any] = {}
        if refused is None and told.value is not None:
            needed = needed_settings(self.name, self.settings or {}, value=told.value, group_size=self.group_size)
        return TrainerSetting(
            name=self.name,
            parameter=told.parameter,
            value=None if refused is not None else told.value,
            exact=told.exact and refused is None,
            assumes=told.assumes,
            refused=refused,
            settings=needed,
            snippet=snippet(self.name, needed) if needed else "",
        )

    def beta_of(self, value: float) -> float:
        """The beta of the table that a coefficient of the trainer stands for, or an `OptionError`."""
        scale = scale_of(self.name, self.settings)
        told = self._translated(1.0, sd=1.0, spread=0.0)
        refused = told.refused or (
            f"{self.name} divides rewards by an SD that moves with the policy" if scale else None
        )
        if refused is not None and not (told.value and self.objective != "tilt"):
            fix = "give it as a beta, without a trainer"
            raise OptionError(_checks.message("have", expected="a coefficient that translates", got=refused, fix=fix))
        assert told.value is not None
        return value / told.value

    def _translated(self, beta: float, *, sd: float, spread: float) -> Translation:
        if self.objective == "tilt":
            return convert(
                beta,
                target=self.name,
                reward_sd=sd,
                reward_sd_spread=spread,
                length=self.length,
                group_size=self.group_size,
                settings=self.settings,
            )
        return standardised_beta(beta, target=self.name, group_size=self.group_size, settings=self.settings)


@dataclass(frozen=True, kw_only=True)
class Implied:
    """An objective, its group size where it is the trainer's, and what to say of it."""

    objective: Objective = "tilt"
    group_size: int | None = None
    notes: tuple[str, ...] = ()


def implied(
    objective: Objective | None,
    trainer: str | None,
    settings: Mapping[str, Any] | None,
    group_size: int | None,
    *,
    possible: bool,
) -> Implied:
    """What a trainer follows under its settings; the tilt where none is named, or the data allow no other objective.

    ``objective``: What was asked for, which goes before what is implied. ``trainer``, ``settings``, ``group_size``: As
    given. ``possible``: Whether the data allow any objective.

    Returns
    -------
    Implied
    """
    if objective is not None:
        return Implied(objective=objective)
    if trainer is None or not possible or implied_objective(trainer, settings) == "tilt":
        return Implied()
    option, size = group_size_of(trainer, settings)
    size = group_size or size
    groups = "large groups (--group-size takes yours)" if size is None else f"groups of {size} ({option})"
    note = f"{trainer} divides rewards by the SD of their group: forecast is that objective, for {groups}."
    return Implied(objective="group-standardised", group_size=size, notes=(f"{note} Beta is the trainer's own.",))


def reward_moments(samples: Samples, beta: float, *, log_m: Floats | None = None) -> tuple[Floats, Floats]:
    """Mean and SD of the judge's score within each prompt under the tilt at ``beta``, reward units, both (P,).

    ``log_m`` (N,) is the log density of the answers' mixture relative to the reference, where others drew them too.

    Plain self-normalised estimates; of K samples of a normal score the SD itself is uncertain by a share of about
    1 / sqrt(2 K), so the spread over prompts that is seen is somewhat larger than the true one.
    """
    means, sds = np.empty(samples.n_prompts), np.empty(samples.n_prompts)
    for prompt in range(samples.n_prompts):
        rows = slice(samples.offsets[prompt], samples.offsets[prompt + 1])
        reward = samples.reward[rows]
        with np.errstate(over="ignore"):
            weight = softmax((reward - reward.max()) / beta - (0.0 if log_m is None else log_m[rows]))
        means[prompt] = weight @ reward
        sds[prompt] = np.sqrt(weight @ (reward - means[prompt]) ** 2)
    return means, sds
