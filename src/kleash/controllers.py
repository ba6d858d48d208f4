"""KL controllers as trainers run them: a pure ``init`` and ``update``, and a simulator over a KL trace.

Use it to see where a coefficient goes before a run, or whether a logged coefficient is the one the settings imply.
The adaptive rule is Ziegler et al.'s; half of the trouble with it is the unit of the KL it is fed, so settings carry
the unit and a KL in another unit is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from kleash import _checks
from kleash.errors import OptionError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

__all__ = ["AdaptiveController", "ControllerState", "FixedController", "init", "simulate", "update"]

Unit = Literal["nats per answer", "nats per token"]


@dataclass(frozen=True, kw_only=True)
class FixedController:
    """A coefficient that never moves.

    Parameters
    ----------
    coefficient
        At least 0; 0 is a run without a penalty.
    """

    coefficient: float

    def __post_init__(self) -> None:
        _checks.number(self.coefficient, name="coefficient", at_least=0)


@dataclass(frozen=True, kw_only=True)
class AdaptiveController:
    """The proportional controller of Ziegler et al.: raises the coefficient while KL is above target, lowers it below.

    Parameters
    ----------
    coefficient
        Where it starts; above 0, because a product never leaves 0.
    target
        The KL to hold, in ``unit``; above 0.
    horizon
        How slowly it moves, counted as ``n`` of `update` is (in answers, in the trainers that ship it); above 0.
    unit
        The unit of the KL it is fed. lm-human-preferences and early TRL feed ``nats per answer`` (target 6), verl and
        OpenRLHF ``nats per token`` (target 0.1): the same number means another leash.
    clip
        Limit on the relative error, 0.2 in every trainer known.

    References
    ----------
    Ziegler et al., 2019, arXiv 1909.08593, section 2.2.
    """

    coefficient: float
    target: float
    horizon: float
    unit: Unit
    clip: float = 0.2

    def __post_init__(self) -> None:
        _checks.number(self.coefficient, name="coefficient", above=0)
        _checks.number(self.target, name="target", above=0)
        _checks.number(self.horizon, name="horizon", above=0)
        _checks.number(self.clip, name="clip", above=0)
        _checks.choice(self.unit, get_args(Unit), name="unit")


@dataclass(frozen=True, kw_only=True)
class ControllerState:
    """The coefficient in force and the number of updates made."""

    coefficient: float
    updates: int


Controller = FixedController | AdaptiveController


def init(controller: Controller) -> ControllerState:
    """The state before the first update.

    Examples
    --------
    >>> init(FixedController(coefficient=0.05))
    ControllerState(coefficient=0.05, updates=0)
    """
    return ControllerState(coefficient=float(controller.coefficient), updates=0)


def update(
    controller: Controller, state: ControllerState, *, kl: float, n: int, unit: Unit | None = None
) -> ControllerState:
    """The state after one batch.

    Parameters
    ----------
    kl
        The batch's KL in the controller's unit. May be negative (a noisy k1); must be finite.
    n
        How far to move in units of the horizon: the number of answers in the batch, in the trainers that ship this.
    unit
        The unit of ``kl``, if known: one that is not the controller's is an error, not a conversion.

    Returns
    -------
    ControllerState
        A new one; the state given stays as it was.

    Notes
    -----
    ``coefficient * (1 + clip(kl / target - 1, -c, c) * n / horizon)``. Where ``c * n >= horizon`` one batch below
    target takes the coefficient to 0 or below, and a penalty below 0 pays for drift: refused.

    Examples
    --------
    >>> ziegler = AdaptiveController(coefficient=0.2, target=6.0, horizon=10_000, unit="nats per answer")
    >>> round(update(ziegler, init(ziegler), kl=12.0, n=256).coefficient, 9)
    0.201024
    """
    n = _checks.integer(n, name="n", at_least=1)
    kl = _checks.number(kl, name="kl")
    if isinstance(controller, FixedController):
        return replace(state, updates=state.updates + 1)
    if unit is not None and unit != controller.unit:
        fix = f"{'multiply' if unit == 'nats per token' else 'divide'} by the mean number of tokens"
        raise OptionError(_checks.message("unit of kl", expected=controller.unit, got=unit, fix=fix))
    if controller.clip * n >= controller.horizon:
        least = f"a horizon above {controller.clip * n:g} (clip x n)"
        raise OptionError(_checks.message("horizon", expected=least, got=f"{controller.horizon:g}"))
    error = float(np.clip(kl / controller.target - 1, -controller.clip, controller.clip))
    factor = 1 + error * n / controller.horizon
    return ControllerState(coefficient=state.coefficient * factor, updates=state.updates + 1)


def simulate(controller: Controller, kl: ArrayLike, *, n: int, unit: Unit | None = None) -> NDArray[np.float64]:
    """The coefficient in force at each batch of a KL trace, and after it: shape (len(kl) + 1,), the start first.

    The trace is taken as given: a controller that had moved otherwise would have met another KL. Use it to check a
    logged coefficient against logged KL, or to see how fast a coefficient runs away.

    Examples
    --------
    >>> verl = AdaptiveController(coefficient=0.001, target=0.1, horizon=10_000, unit="nats per token")
    >>> path = simulate(verl, [0.02] * 500, n=1024)
    >>> f"{path[10]:.2e} {path[100]:.2e} {path[500]:.1e}"
    '8.13e-04 1.26e-04 3.2e-08'
    """
    trace = np.asarray(kl, dtype=np.float64)
    if trace.ndim != 1:
        raise OptionError(_checks.message("kl", expected="one number per batch", got=f"shape {trace.shape}"))
    state = init(controller)
    path = [state.coefficient]
    for value in trace:
        state = update(controller, state, kl=value, n=n, unit=unit)
        path.append(state.coefficient)
    return np.array(path)
