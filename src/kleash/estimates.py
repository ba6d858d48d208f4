"""A quantity along the dial with its uncertainty, true quality beside the reference's, and draws of a whole table."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

from kleash import _checks
from kleash.errors import ShapeError

__all__ = ["Estimates", "Floats", "Gold", "Replicates"]

Floats = NDArray[np.float64]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Estimates:
    """One quantity along the dial: arrays of one shape; NaN where a value does not exist.

    ``value`` the estimate, ``se`` its standard error, ``lo`` and ``hi`` the ends of its 95 % interval.
    """

    value: Floats
    se: Floats
    lo: Floats
    hi: Floats

    def __post_init__(self) -> None:
        arrays = {name: np.asarray(array, dtype=np.float64) for name, array in self._parts().items()}
        _checks.same_shape(**arrays)
        for name, array in arrays.items():
            object.__setattr__(self, name, array)

    @classmethod
    def exact(cls, value: ArrayLike) -> Estimates:
        """Values known without error: standard error 0 and an interval of one point."""
        array = np.asarray(value, dtype=np.float64)
        return cls(value=array, se=np.zeros_like(array), lo=array, hi=array)

    @classmethod
    def of_means(cls, values: Floats) -> Estimates:
        """Means over the last axis, their standard errors and Student's 95 % intervals; of a single one no error."""
        n = values.shape[-1]
        mean = values.mean(axis=-1)
        if n == 1:
            unknown = np.full_like(mean, np.nan)
            return cls(value=mean, se=unknown, lo=unknown, hi=unknown)
        se = values.std(axis=-1, ddof=1) / np.sqrt(n)
        half = stdtrit(n - 1, 0.975) * se
        return cls(value=mean, se=se, lo=mean - half, hi=mean + half)

    def __getitem__(self, index: Any) -> Estimates:
        """The same quantity at some of the betas."""
        return Estimates(**{name: array[index] for name, array in self._parts().items()})

    def where(self, keep: NDArray[np.bool_]) -> Estimates:
        """The same, with NaN outside ``keep``."""
        return Estimates(**{name: np.where(keep, array, np.nan) for name, array in self._parts().items()})

    def _parts(self) -> dict[str, Floats]:
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(Estimates)}


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Gold(Estimates):
    """True quality along the dial, beside what the untouched reference has.

    ``gain`` gold minus the reference's gold, paired, in the same shape; ``reference`` the reference's, of shape ().
    """

    gain: Estimates
    reference: Estimates

    def __post_init__(self) -> None:
        super().__post_init__()
        _checks.same_shape(gold=self.value, gold_gain=self.gain.value)

    @classmethod
    def of(cls, value: Estimates, *, gain: Estimates, reference: Estimates) -> Gold:
        """Gold from estimates of it, of its gain and of the reference's."""
        return cls(**value._parts(), gain=gain, reference=reference)

    def where(self, keep: NDArray[np.bool_]) -> Gold:
        """The same, with NaN outside ``keep``; the reference stays."""
        return Gold.of(super().where(keep), gain=self.gain.where(keep), reference=self.reference)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Replicates:
    """Draws of the whole table, so that differences between betas can be paired.

    ``kind`` says what a draw is: ``bootstrap`` (a draw from the sampling distribution of the estimate: its spread is
    the standard error) or ``seeds`` (an independent training run: the standard error is spread / sqrt(R)).
    ``reward``, ``kl`` and ``gold`` have shape (R, B), ``reference_reward`` and ``reference_gold`` (R,).
    """

    kind: Literal["bootstrap", "seeds"]
    reward: Floats
    kl: Floats
    reference_reward: Floats
    gold: Floats | None = None
    reference_gold: Floats | None = None

    def __post_init__(self) -> None:
        _checks.choice(self.kind, ("bootstrap", "seeds"), name="replicates' kind")
        for name in ("reward", "kl", "gold", "reference_reward", "reference_gold"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, np.asarray(getattr(self, name), dtype=np.float64))
        _checks.same_shape(reward=self.reward, kl=self.kl, **({} if self.gold is None else {"gold": self.gold}))
        for name in ("reference_reward", "reference_gold"):
            draws = getattr(self, name)
            if draws is not None and (self.reward.ndim != 2 or draws.shape != self.reward.shape[:1]):
                got = f"{draws.shape} beside reward {self.reward.shape}"
                raise ShapeError(_checks.message(f"replicates' {name}", expected="shape (R,) of (R, B)", got=got))

    def gold_gain(self) -> Floats | None:
        """Gold minus the reference's gold within each draw, shape (R, B)."""
        if self.gold is None or self.reference_gold is None:
            return None
        return np.asarray(self.gold - self.reference_gold[:, None])
