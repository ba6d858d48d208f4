"""What an identity between two columns of a log says about the coefficient: an interval, or why there is none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kleash.audit.findings import number
from kleash.audit.logs.ratio_fit import Fit, fit_ratio

if TYPE_CHECKING:
    from kleash.audit.logs.view import LogView
    from kleash.estimates import Floats

__all__ = ["SHAPE", "SLACK", "Recovered", "none", "pair"]

SLACK = 0.05
"""Largest disagreement between rows at which an identity is said to hold; above it other terms are in the sum. Ours."""

SHAPE = 3.0
"""Factor granted where a mean of sums is compared with a product of means (KL per token times mean length). Ours."""


@dataclass(frozen=True, kw_only=True)
class Recovered:
    """A coefficient from an identity of the log, or the reason why there is none.

    ``holds``: the rows agree, so the identity holds; ``factor`` widens the interval where it is approximate. ``place``
    says where the identity finds the penalty. ``shares``: What the loss may be divided down to, as factors of the
    coefficient: (1,) where it is logged as it is. ``unless``: What else would explain another value, and was not said.
    ``each_row``: Whether the identity is one of every row, not of some or of their means.
    """

    identity: str
    fit: Fit | None
    holds: bool
    reason: str = ""
    place: str = "loss"
    factor: float = 1.0
    relative: float = 0.0
    shares: tuple[float, ...] = (1.0,)
    unless: str = ""
    each_row: bool = True

    @property
    def lo(self) -> float:
        """Lower end, every grant included."""
        assert self.fit is not None
        x = self.fit.lo
        return min(x / self.factor, x * self.factor) - self.relative * abs(x)

    @property
    def hi(self) -> float:
        """Upper end, every grant included."""
        assert self.fit is not None
        x = self.fit.hi
        return max(x / self.factor, x * self.factor) + self.relative * abs(x)

    @property
    def loose(self) -> bool:
        """Whether the interval is wider than a factor of two: the order of magnitude, not the number."""
        return self.resolved and max(abs(self.lo), abs(self.hi)) > 2 * min(abs(self.lo), abs(self.hi))

    @property
    def resolved(self) -> bool:
        """Whether the identity holds and its interval says more than "about 0"."""
        return self.fit is not None and self.holds and not self.lo <= 0 <= self.hi

    def fits(self, value: float) -> bool:
        """Whether a coefficient, or a share of it that the loss may be divided down to, is inside the interval."""
        return any(self.lo <= share * value <= self.hi for share in self.shares)


def none(identity: str, reason: str) -> Recovered:
    """No coefficient, and why."""
    return Recovered(identity=identity, fit=None, holds=False, reason=reason)


def pair(
    view: LogView, keys: tuple[str, ...], target: Floats, error: Floats, identity: str, place: str, **more: float
) -> Recovered:
    """The coefficient in ``target = coefficient * kl`` of the main KL.

    ``keys``: Columns that the target is made of, for the words. ``target``, ``error``: Shape (T,): the penalty as the
    log shows it, and its half-width. ``identity``, ``place``: What is divided by what, and where that finds the
    penalty. ``more``: ``relative`` and ``factor`` of `Recovered`.

    Returns
    -------
    Recovered
        Without a fit, it says why there is none.
    """
    assert view.kl is not None
    kl = np.asarray(view.kl.values)
    fit = fit_ratio(target, kl, target_error=error, regressor_error=view.error(view.kl.key, kl))
    if fit is None:
        return none(identity, "the logged KL is 0 in every row as far as its digits show")
    relative = more.get("relative", 0.0)
    holds = fit.slack <= SLACK + relative
    reason = "" if holds else f"rows disagree by {number(100 * fit.slack)} %: other terms are in {keys[0]}"
    return Recovered(
        identity=identity,
        fit=fit,
        holds=holds,
        reason=reason,
        place=place,
        factor=more.get("factor", 1.0),
        relative=relative,
    )
