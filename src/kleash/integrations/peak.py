"""Has true quality fallen from its best? A paired test over prompts, with a stated rate of false alarms."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from scipy import stats

from kleash import _checks
from kleash.errors import ShapeError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from kleash.estimates import Floats

__all__ = ["GoldPeak", "fallen"]


def fallen(before: ArrayLike, now: ArrayLike) -> float:
    """P value of "quality has not fallen", one-sided paired t-test over prompts.

    ``before``, ``now``: Mean gold of each prompt's answers, shape (P,), the same prompts in the same order, P at least
    2. NaN where a prompt has none; the test is over the prompts that have one in both.

    Returns
    -------
    Between 0 and 1. Where all n differences are equal: 2^-n if quality fell (the chance of n equal signs), 1 if it did
    not. 1 if fewer than two prompts can be compared.

    Examples
    --------
    >>> fallen([1.0, 1.0, 0.9], [0.5, 0.4, 0.5]) < 0.02
    True
    """
    x, y = np.asarray(before, dtype=np.float64), np.asarray(now, dtype=np.float64)
    _checks.same_shape(before=x, now=y)
    if x.ndim != 1 or x.size < 2:
        raise ShapeError(_checks.message("gold", expected="one mean for each of at least 2 prompts", got=x.shape))
    loss = (x - y)[~np.isnan(x - y)]
    if loss.size < 2:
        return 1.0
    mean, sd = float(loss.mean()), float(loss.std(ddof=1))
    if sd == 0.0:
        return 0.5**loss.size if mean > 0 else 1.0
    return float(stats.t.sf(mean / (sd / np.sqrt(loss.size)), loss.size - 1))


@dataclass(kw_only=True)
class GoldPeak:
    """Watches gold and says when to stop: after ``patience`` measurements in a row, measurably below the best.

    ``looks``: Measurements planned, at least 2. ``patience``: Measurements in a row that must have fallen.
    ``false_alarm``: Chance of stopping a run whose quality never falls.

    Notes
    -----
    The best so far is the luckiest of many, so a plain test against it stops honest runs. Each comparison is made at
    ``false_alarm`` over the number of pairs of measurements, ``looks (looks - 1) / 2``: by Bonferroni the chance that
    any of all pairs errs, hence any against the best, is at most ``false_alarm``, however the measurements depend on
    each other. The t-test is exact for normal differences between prompts and close for some twenty prompts or more.
    ``patience`` only lowers the rate. The price is power: with 20 looks and 32 prompts one measurement sees a fall of
    0.7 standard deviations (of the difference between prompts) half of the time, one of 1.0 nearly always (0.95); all
    of ``patience`` in a row have to.

    Examples
    --------
    >>> watch = GoldPeak(looks=4, patience=1, false_alarm=0.05)
    >>> rng = np.random.default_rng(0)
    >>> [watch.update(step, rng.normal(m, 0.1, 30)) for step, m in enumerate([0.0, 1.0, 0.9, 0.1])]
    [False, False, True, True]
    >>> watch.best_step
    1
    """

    looks: int
    patience: int = 3
    false_alarm: float = 0.05
    steps: list[int] = field(default_factory=list)
    gold: list[Floats] = field(default_factory=list)
    below: int = 0

    def __post_init__(self) -> None:
        _checks.integer(self.looks, name="looks", at_least=2)
        _checks.integer(self.patience, name="patience", at_least=1)
        _checks.number(self.false_alarm, name="false_alarm", above=0.0, at_most=0.5)

    @property
    def level(self) -> float:
        """Level of each single comparison."""
        return self.false_alarm / (self.looks * (self.looks - 1) / 2)

    @property
    def best_step(self) -> int | None:
        """The step of the best mean so far."""
        return self.steps[self._best()] if self.steps else None

    def update(self, step: int, gold: ArrayLike) -> bool:
        """Take a measurement, shape (P,), NaN where a prompt has no gold; True: quality has peaked, stop."""
        now = np.asarray(gold, dtype=np.float64)
        if np.isnan(now).all():
            return False  # no measurement: neither a step towards stopping nor one away from it
        self.steps.append(step)
        self.gold.append(now)
        best = self._best()
        fell = best < len(self.gold) - 1 and fallen(self.gold[best], now) < self.level
        self.below = self.below + 1 if fell else 0
        return self.below >= self.patience

    def _best(self) -> int:
        return int(np.argmax([np.nanmean(g) for g in self.gold]))
