"""What does a check of a log work on? One run's table with its main KL chosen and its units known."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from kleash.audit.declared import Declared
from kleash.audit.logs.ratio_fit import half_widths
from kleash.audit.logs.settings import Settings, settings_of
from kleash.trainers import Trainer, trainer_named
from kleash.trainers.options import version_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from kleash.estimates import Floats
    from kleash.logs.table import KLColumn, RunLog

T = TypeVar("T")

__all__ = ["LogView", "Series", "series", "view"]

PREFIXES = ("", "train/", "eval/", "eval_")


@dataclass(frozen=True, kw_only=True)
class Series:
    """A column without its gaps: the rows it stands in, their steps and segments."""

    rows: NDArray[np.int64]
    step: Floats
    segment: NDArray[np.int64]
    values: Floats

    @property
    def size(self) -> int:
        """Number of values."""
        return int(self.values.size)

    def noise(self) -> float:
        """Standard deviation of a row about the trend, from differences of neighbours (Rice 1984), robust to outliers.

        The larger of the differences at distance one and two: noise that lasts several rows is not called smooth.
        """
        x = self.values
        found = [float(np.median(np.abs(x[k:] - x[:-k]))) / (0.6745 * math.sqrt(2)) for k in (1, 2) if x.size > k + 1]
        spread = [float(np.std(x[k:] - x[:-k])) / math.sqrt(2) for k in (1,) if x.size > k + 1]
        return max([*found, *spread], default=math.inf)

    def error(self, n: int) -> float:
        """Standard error of a mean over ``n`` neighbouring rows, where noise may last for several rows.

        The larger of what rows give and what means over a twentieth of the run give.
        """
        return max(self.noise(), self._blocks()) / math.sqrt(n)

    def lasting(self, n: int) -> float:
        """The same for a median, in which rows far off do not count: neither in it nor in its error."""
        near = np.abs(np.diff(self.values))
        return max(float(np.median(near)) / (0.6745 * math.sqrt(2)) if near.size else 0.0, self._blocks()) / math.sqrt(
            n
        )

    def _blocks(self) -> float:
        """Standard deviation of a row as means over a twentieth of the run show it."""
        width = max(1, self.size // 20)
        blocks = self.values[: self.size // width * width].reshape(-1, width).mean(axis=1)
        steps = np.abs(np.diff(blocks))
        return float(np.median(steps)) / (0.6745 * math.sqrt(2)) * math.sqrt(width) if steps.size > 3 else 0.0

    def window(self, start: float, stop: float) -> Floats:
        """The values between two shares of the rows, at least one."""
        a, b = math.floor(start * self.size), math.ceil(stop * self.size)
        return self.values[min(a, self.size - 1) : max(b, min(a, self.size - 1) + 1)]


def series(log: RunLog, values: Floats | None) -> Series:
    """The finite values of a column; empty where there is none."""
    x = np.full(log.rows, np.nan) if values is None else np.asarray(values, dtype=np.float64)
    rows = np.flatnonzero(np.isfinite(x)).astype(np.int64)
    step = np.asarray(log.step, dtype=np.float64)[rows]
    return Series(rows=rows, step=step, segment=np.asarray(log.segment)[rows], values=x[rows])


@dataclass(frozen=True, kw_only=True)
class LogView:
    """A log as the checks see it.

    ``log``: The table as it was read. ``settings``: What the configuration states. ``declared``: What the user says.
    ``label``: What its findings are said to be about.
    """

    log: RunLog
    settings: Settings
    declared: Declared = field(default_factory=Declared)
    label: str = ""
    memo: dict[Callable[[LogView], Any], Any] = field(default_factory=dict, repr=False, compare=False)

    def once(self, work: Callable[[LogView], T]) -> T:
        """The result of some work on this view, done once."""
        if work not in self.memo:
            self.memo[work] = work(self)
        found: T = self.memo[work]
        return found

    @property
    def trainer(self) -> Trainer:
        """What is known of the trainer."""
        return trainer_named(self.log.trainer)

    @property
    def version(self) -> tuple[int, ...] | None:
        """Version of the trainer as numbers, if the log says it."""
        return version_of(self.log.trainer_version)

    def key(self, *names: str) -> str | None:
        """The first of some keys that the log has, with or without a ``train/`` prefix."""
        for name in names:
            for prefix in PREFIXES[:2]:
                if prefix + name in self.log.raw:
                    return prefix + name
        return None

    @property
    def loss_key(self) -> str | None:
        """The column of the whole loss, where the penalty may be in it by itself or beside a policy loss."""
        kinds = ("parts", "loss", "shaped")
        own = self.trainer.columns.losses.get("loss", ()) if self.trainer.identity.kind in kinds else ()
        return self.key("loss", *own)

    def raw(self, *names: str) -> Floats | None:
        """Values of the first of some keys that the log has, shape (T,), or None."""
        key = self.key(*names)
        return None if key is None else np.asarray(self.log.raw[key], dtype=np.float64)

    def error(self, key: str | None, values: Floats) -> Floats:
        """Half the last printed place of a key, or float32's error where it was printed in full."""
        places = self.log.decimals.get(key, -1) if key is not None else -1
        error = half_widths(values, None if places < 0 else places)
        first = self.trainer.loss_places  # a loss may have been rounded before it was printed with fewer places
        again = first is not None and 0 <= places < first and key is not None and key.endswith("loss")
        return error + 0.5 * 10.0 ** -(first or 0) if again else error

    @cached_property
    def references(self) -> tuple[KLColumn, ...]:
        """KL columns that measure the distance from the reference, training rows only."""
        own = [c for c in self.log.kl if c.against != "old-policy" and not c.key.startswith(("eval_", "eval/"))]
        return tuple(c for c in own if np.isfinite(c.values).any())

    @cached_property
    def kl(self) -> KLColumn | None:
        """The KL that the penalty is made of, as far as the log has it; else the first against the reference."""
        ranked = sorted(
            self.references,
            key=lambda c: (
                c.against != "reference",
                c.spec.placement in ("none", "unknown"),
                -int(np.isfinite(c.values).sum()),
            ),
        )
        return ranked[0] if ranked else None

    @cached_property
    def kl_series(self) -> Series:
        """The main KL without gaps, in its own unit."""
        return series(self.log, None if self.kl is None else self.kl.values)

    @cached_property
    def per_token(self) -> Series:
        """The main KL in nats per token; per answer where no length is logged."""
        kl = self.kl
        if kl is None or kl.spec.unit == "nats per token" or self.log.length is None:
            return self.kl_series
        return series(self.log, np.asarray(kl.values) / np.asarray(self.log.length))

    @cached_property
    def signed(self) -> bool:
        """Whether the main KL is an estimate that chance takes to 0 and below (or is cut off there), as k1 is."""
        return bool((self.per_token.values[1:] <= 0).sum() > 0.02 * self.per_token.size)

    @cached_property
    def kl_noise(self) -> float:
        """How far chance moves a row of `per_token`, where the estimate is signed; 0 where factors tell it."""
        return self.per_token.noise() if self.signed else 0.0

    @cached_property
    def kl_grain(self) -> float:
        """How far rounding may have moved a row of the main KL, half its last place, in the unit of `per_token`."""
        kl = self.kl
        if kl is None or self.log.decimals.get(kl.key, -1) < 0:
            return 0.0
        half = 0.5 * 10.0 ** -self.log.decimals[kl.key]
        own = kl.spec.unit == "nats per token" or not self.length.size
        return half if own else half / float(np.median(self.length.values))

    @cached_property
    def per_answer(self) -> Series:
        """The main KL in nats per answer; empty where the unit is not known or no length is there to make it from."""
        kl = self.kl
        if kl is None or not kl.unit_known or (kl.spec.unit == "nats per token" and self.log.length is None):
            return series(self.log, None)
        if kl.spec.unit == "nats per answer":
            return self.kl_series
        return series(self.log, np.asarray(kl.values) * np.asarray(self.log.length))

    @property
    def token_unit(self) -> bool:
        """Whether `per_token` really is per token."""
        return self.kl is not None and (self.kl.spec.unit == "nats per token" or self.log.length is not None)

    def level(self, per_token: float, per_answer: float) -> float:
        """A threshold in the unit of `per_token`."""
        return per_token if self.token_unit else per_answer

    @cached_property
    def reward(self) -> Series:
        """The judge's score without gaps."""
        return series(self.log, self.log.reward)

    @cached_property
    def gold(self) -> Series:
        """True quality without gaps."""
        return series(self.log, self.log.gold)

    @cached_property
    def length(self) -> Series:
        """Mean length without gaps."""
        return series(self.log, self.log.length)

    @cached_property
    def coefficient(self) -> Series:
        """The logged coefficient without gaps."""
        return series(self.log, self.log.coefficient)

    @cached_property
    def coefficient_key(self) -> str | None:
        """The column that the coefficient was read from."""
        wanted = self.log.coefficient
        for key, values in self.log.raw.items():
            if wanted is not None and np.array_equal(values, wanted, equal_nan=True):
                return key
        return None

    @property
    def coefficient_is_zero(self) -> bool:
        """Whether the logged coefficient is 0 throughout, and not merely printed as 0.000."""
        c = self.coefficient.values
        return bool(c.size) and not np.any(c) and not np.any(self.error(self.coefficient_key, c))


def view(log: RunLog, declared: Declared | None = None, *, label: str = "") -> LogView:
    """A log made ready for the checks, its settings read; ``label`` is what findings are said to be about."""
    declared = declared or Declared()
    return LogView(
        log=log, settings=settings_of(log.trainer, log.config, declared), declared=declared, label=label or log.path
    )
