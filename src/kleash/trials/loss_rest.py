"""Where does anybody's loss come to rest, and the tilt of which beta is next to it? Exactly, in a few settings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from kleash.kl import log_softmax
from kleash.trials.roots import Puzzle, answer_kl, at_rest, tilt_logits, visits

if TYPE_CHECKING:
    from collections.abc import Callable

    from kleash.estimates import Floats
    from kleash.trials.user_loss import UserLoss

__all__ = ["AS_ASKED", "Variant", "loss_world", "nearest_tilt", "rest_of", "variants_of"]

AS_ASKED = "as asked"
_FOLLOWED = 1e-3
"""Tolerance of the flow: a stable point is reached from near it as well, and Newton's method makes it exact."""
_PATIENCE = 250
"""Mean updates after which a policy that has not come to rest is taken to walk about a kink."""
_STEPS, _STILL = 200, 0.05
"""Steps about a kink, and nats that their mean may still move in their last quarter; one that runs away moves .5."""


class _NoRest(Exception):  # noqa: N818  no error: a policy that does not come to rest
    pass


def loss_world() -> Puzzle:
    """The default world: seven answers of one and two tokens, scores 0 to 1, the best one rare.

    Examples
    --------
    >>> len(loss_world().reward)
    7
    """
    words = Puzzle.with_end("seven", letters=2, length=2, seed=3, scale=1.0)
    return replace(words, reward=np.array([0.0, 0.5, 0.25, 0.0, 1.0, 0.75, 0.5]))


@dataclass(frozen=True, kw_only=True)
class Variant:
    """The fixed point in one setting.

    Parameters
    ----------
    name
        ``as asked``, ``rewards x 10``, ``group of 2``, ...
    reward, kl
        Of the policy that the mean update comes to rest at: judge's score, and KL to the reference in nats per answer;
        None where none is found within 20 nats (at a kink, within about 7).
    tilt_beta
        The beta of the tilt nearest to it in KL; None without a fixed point.
    apart
        Total variation distance between the two: 0 if the fixed point is a tilt.
    kink
        Whether the mean update jumps there, as that of standardised penalised scores and of abs does. Then the point is
        found by ever smaller steps and is known to about .003 in probability, not exactly.
    """

    name: str
    reward: float | None
    kl: float | None
    tilt_beta: float | None
    apart: float | None
    kink: bool = False

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready plain data."""
        return dict(vars(self))


def variants_of(loss: UserLoss, world: Puzzle, beta: float) -> list[Variant]:
    """The fixed points as asked, with larger scores, other groups, longer answers, and twice the beta."""
    large = replace(world, reward=10.0 * world.reward)
    other = 2 if loss.group_size != 2 else 4
    long = Puzzle.with_end("long", letters=1, length=4, seed=3, scale=1.0)
    long = replace(long, reward=np.array([0.0, 0.5, 0.25, 1.0, 0.75]))
    return [
        rest_of(AS_ASKED, loss, world, beta),
        rest_of("rewards x 10", loss, large, beta),
        rest_of(f"group of {other}", replace(loss, group_size=other), world, beta),
        rest_of("answers of 1 to 4 tokens", loss, long, beta),
        rest_of("beta x 2", loss, world, 2 * beta),
    ]


def rest_of(name: str, loss: UserLoss, world: Puzzle, beta: float) -> Variant:
    """The fixed point, followed from the reference, and the tilt that is nearest to it."""
    unit = float(np.abs(loss.mean_gradient(world, log_softmax(world.reference_logits), beta=beta)).max())
    if unit == 0:
        return Variant(name=name, reward=None, kl=None, tilt_beta=None, apart=None)

    left = _PATIENCE
    span = float(np.ptp(world.reward))

    def update(logits: Floats) -> Floats:
        return -loss.mean_gradient(world, logits, beta=beta) * span / (10 * unit)

    def patient(logits: Floats) -> Floats:
        nonlocal left
        left -= 1
        if left < 0:
            raise _NoRest
        return update(logits)

    try:
        scale = min(beta / span, 1.0) / 10
        logits = at_rest(world, patient, scale=scale, tolerance=_FOLLOWED, slow=scale / 100)
    except _NoRest:
        logits = _at_kink(world, update)
    if logits is None:
        return Variant(name=name, reward=None, kl=None, tilt_beta=None, apart=None)
    tilt, apart = nearest_tilt(world, logits)
    return Variant(
        name=name,
        reward=world.mean_reward(logits),
        kl=answer_kl(world, logits),
        tilt_beta=tilt,
        apart=apart,
        kink=left < 0,
    )


def _at_kink(world: Puzzle, update: Callable[[Floats], Floats]) -> Floats | None:
    """Where ever smaller steps along the natural gradient end, the mean of the last half; None if they run away."""
    logits = log_softmax(world.reference_logits)
    late = []
    for k in range(_STEPS):
        step = update(logits) / (visits(world, logits)[:, None] * np.exp(logits))
        step -= step.mean(axis=1, keepdims=True)
        logits = log_softmax(logits + 2.0 / (k + 5) * step / max(float(np.abs(step).max()), 1e-300))
        late += [logits] if 2 * k >= _STEPS else []
    before, after = (np.mean(part, axis=0) for part in (late[: len(late) // 2], late[len(late) // 2 :]))
    return None if np.abs(before - after).max() > _STILL else np.asarray(log_softmax((before + after) / 2))


def nearest_tilt(world: Puzzle, logits: Floats) -> tuple[float, float]:
    """The beta of the tilt to which KL(policy || tilt) is least, and how far apart the two are (total variation)."""
    from scipy.optimize import minimize_scalar

    log_policy = world.log_policy(logits)
    p = np.exp(log_policy)

    def away(log_beta: float) -> float:
        return float(p @ (log_policy - world.log_policy(tilt_logits(world, float(np.exp(log_beta))))))

    middle = np.log(float(np.ptp(world.reward)))
    found = minimize_scalar(away, bounds=(middle - 6, middle + 6), method="bounded", options={"xatol": 1e-10})
    beta = float(np.exp(found.x))
    return beta, float(0.5 * np.abs(p - np.exp(world.log_policy(tilt_logits(world, beta)))).sum())
