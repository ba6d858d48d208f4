"""Which coefficients fit ``target = coefficient * regressor`` once rounding is granted? Interval arithmetic.

A log prints a number with some decimals, and a trainer computed it in float32: each value is an interval. Row by row
the identity then allows an interval of coefficients. What fits all rows is their intersection; where rows disagree by a
little (a policy term that is almost, not exactly, 0), the least slack that reconciles them says how well the identity
holds at all. No chance is involved, so the interval has no level: it is what the printed digits allow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from kleash.estimates import Floats

__all__ = ["FLOAT32", "Fit", "fit_ratio", "half_widths"]

FLOAT32 = 2.0**-22
"""Relative error granted to a logged value: two units in the last place of a float32 that is a mean over devices."""


@dataclass(frozen=True, kw_only=True)
class Fit:
    """What the rows say about the coefficient.

    ``value``, ``lo``, ``hi``: Ratio of sums over the rows, and the interval that the digits allow at the slack below.
    ``slack``: Least share of the typical term by which targets must be moved so that one coefficient fits every row.
    ``rows``: Rows used. ``each``, ``each_lo``, ``each_hi``: The same per row, shape (T,); NaN where the row says
    nothing.
    """

    value: float
    lo: float
    hi: float
    slack: float
    rows: int
    each: Floats
    each_lo: Floats
    each_hi: Floats


def half_widths(values: ArrayLike, decimals: ArrayLike | int | None) -> Floats:
    """Half the last printed place of each value, at least float32's error: how far the true number may be away.

    Examples
    --------
    >>> print(half_widths([0.0007, 0.25], 4))
    [5.e-05 5.e-05]
    """
    x = np.abs(np.asarray(values, dtype=np.float64))
    error = x * FLOAT32
    if decimals is None:
        return error
    places = np.asarray(decimals, dtype=np.float64)
    return np.maximum(error, 0.5 * 10.0**-places)


def fit_ratio(
    target: ArrayLike,
    regressor: ArrayLike,
    *,
    target_error: ArrayLike,
    regressor_error: ArrayLike,
    relative: float = 0.0,
    spread: tuple[ArrayLike, ArrayLike] = (1.0, 1.0),
) -> Fit | None:
    """The coefficient in ``target = coefficient * regressor``, or None where no row has a usable regressor.

    ``target``, ``regressor``: Shape (T,); rows with a value that is not finite, or a regressor that may be 0, are left
    out. ``target_error``, ``regressor_error``: Half-widths, broadcast to (T,): see `half_widths`. ``relative``: Share
    of each target granted on top, where the identity is not exact by construction. ``spread``: Factors above 0,
    broadcast to (T,), between which the coefficient over the quotient of a row lies: (1, 1) where the identity is
    exact, (1/2, 2) where it holds up to a factor of two.

    Returns
    -------
    Fit, or None
        The coefficient, how well it fits, and over which rows.

    Notes
    -----
    Interval of a row: all quotients of the two intervals. The value is the ratio of sums, moved into the interval if
    it is outside. Slack is found by bisection on a common widening of all rows, as a share of the median row.

    Examples
    --------
    >>> fit = fit_ratio([0.0007, 0.0019], [0.018375, 0.048572], target_error=5e-5, regressor_error=5e-7)
    >>> f"{fit.value:.4f} [{fit.lo:.4f}, {fit.hi:.4f}] slack {fit.slack:.0f}"
    '0.0388 [0.0381, 0.0401] slack 0'
    """
    y, x = np.broadcast_arrays(np.asarray(target, dtype=np.float64), np.asarray(regressor, dtype=np.float64))
    ey = np.broadcast_to(np.asarray(target_error, dtype=np.float64), y.shape) + relative * np.abs(y)
    ex = np.broadcast_to(np.asarray(regressor_error, dtype=np.float64), y.shape)
    used = np.isfinite(y) & np.isfinite(x) & np.isfinite(ey) & np.isfinite(ex) & (np.abs(x) > ex) & (x != 0)
    least, most = (np.broadcast_to(np.asarray(part, dtype=np.float64), y.shape) for part in spread)
    used &= np.isfinite(least) & np.isfinite(most)
    each, each_lo, each_hi = (np.full(y.shape, np.nan) for _ in range(3))
    if not used.any():
        return None
    y, x, ey, ex, least, most = y[used], x[used], ey[used], ex[used], least[used], most[used]
    sign = np.sign(x)
    y, x = y * sign, x * sign

    def quotients(grant: Floats) -> tuple[Floats, Floats]:
        low, high = _quotients(y - grant, y + grant, x - ex, x + ex)
        return np.minimum(low * least, low * most), np.maximum(high * least, high * most)

    lo, hi = quotients(ey)
    each[used], each_lo[used], each_hi[used] = y / x, lo, hi
    scale = float(np.median(np.abs(y))) or float(np.median(ey))

    def meet(slack: float) -> tuple[float, float]:
        low, high = quotients(ey + slack * scale)
        return float(low.max()), float(high.min())

    slack = 0.0
    low, high = meet(0.0)
    if low > high:
        top = 1e-6
        while top < 1e12 and meet(top)[0] > meet(top)[1]:
            top *= 4.0
        bottom = 0.0
        for _ in range(60):
            middle = (bottom + top) / 2
            a, b = meet(middle)
            bottom, top = (middle, top) if a > b else (bottom, middle)
        slack = top
        low, high = meet(2 * slack)
    value = float(y.sum() / x.sum())
    value = min(max(value, low), high)
    return Fit(
        value=value, lo=low, hi=high, slack=slack, rows=int(used.sum()), each=each, each_lo=each_lo, each_hi=each_hi
    )


def _quotients(y_lo: Floats, y_hi: Floats, x_lo: Floats, x_hi: Floats) -> tuple[Floats, Floats]:
    """All quotients of two intervals, the divisor positive."""
    low = np.where(y_lo >= 0, y_lo / x_hi, y_lo / x_lo)
    high = np.where(y_hi >= 0, y_hi / x_lo, y_hi / x_hi)
    return low, high
