"""Numbers that no sample can have, and how to mend them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from kleash._checks import message

if TYPE_CHECKING:
    from numpy.typing import NDArray


def first_fault(
    reward: NDArray[np.float64], gold: NDArray[np.float64] | None, probability: NDArray[np.float64] | None
) -> tuple[str, int, float] | None:
    """Role, position and value of the first number that cannot be used, or None."""
    checks = [("reward", reward, ~np.isfinite(reward))]
    if gold is not None:
        checks.append(("gold", gold, np.isinf(gold)))
    if probability is not None:
        unlabelled = np.isnan(gold) if gold is not None else np.ones(probability.shape, dtype=bool)
        inside = (probability > 0) & (probability <= 1)
        checks.append(("label_probability", probability, ~inside & ~(unlabelled & np.isnan(probability))))
    for role, values, bad in checks:
        if bad.any():
            at = int(bad.argmax())
            return role, at, float(values[at])
    return None


def fault(thing: str, role: str, value: float) -> str:
    """What is wrong with a number in its role, and how to mend it."""
    if role == "label_probability":
        if math.isnan(value):
            return f"{thing} is missing on a labelled answer; give every labelled answer the probability of its label"
        return message(thing, expected="a probability above 0 and at most 1", got=f"{value:g}")
    kind = "NaN" if math.isnan(value) else "infinite"
    fix = "leave the cell empty if there is no label" if role == "gold" else "drop the row or score it again"
    return f"{thing} is {kind}, expected a finite number; {fix}"
