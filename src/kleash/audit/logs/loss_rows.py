"""Rows of a log with a loss beside a KL, and what holds beta where single rows do not agree.

Rows in which no answer has an advantage, and ten groups of rows by their KL.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy import stats

from kleash.audit.logs.ratio_fit import Fit, fit_ratio
from kleash.audit.logs.recovery import SHAPE, SLACK, Recovered

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kleash.audit.logs.view import LogView
    from kleash.estimates import Floats

__all__ = ["BFLOAT16", "LossRows", "by_groups", "loss_rows", "without_advantage"]

BFLOAT16 = 0.01
"""Relative error granted to ``loss = beta * kl``: the policy term is a sum of centred advantages that vanishes
only up to bfloat16 (eight bits, 0.4 %; the pair of FareedKhan-dev/train-deepseek-r1 issue 4 is 0.12 % off)."""

NO_ADVANTAGE = ("frac_reward_zero_std", "reward_std")
"""Share of groups without a spread of rewards; mean spread of the groups."""

GROUPS, ROWS = 10, 6
"""Groups of rows by KL, and rows in each, from which on their quotients are compared. Ours."""

SAME, APART = 0.2, 2.0
"""How large a constant beside the penalty may be, as a share of the mean loss; and how far above the first group's the
last group's KL must lie, as a factor, for such a constant to show. Ours."""

SURE = 0.5
"""How large two standard errors between neighbouring rows may be, as a share of beta, to rule a drift out. Ours."""

DRIFT = "a policy term that drifts as the KL does looks the same"


@dataclass(frozen=True)
class LossRows:
    """Rows that hold a loss beside a KL, those of evaluations behind those of training; every array of shape (T,).

    ``loss``, ``kl``, ``loss_error``, ``kl_error``: Values and half-widths. ``least``, ``most``: Between which factors
    lengths allow the coefficient to lie over the quotient. ``cut``: Share of answers cut at the limit. ``still``: Every
    answer of the row has the reward of its group, so no answer has an advantage.
    """

    loss: Floats
    kl: Floats
    loss_error: Floats
    kl_error: Floats
    least: Floats
    most: Floats
    cut: Floats
    still: NDArray[np.bool_]

    def fit(self, *, spread: bool, only: NDArray[np.bool_] | None = None) -> Fit | None:
        """The coefficient in ``loss = beta * kl`` over all rows or some."""
        loss = self.loss if only is None else np.where(only, self.loss, np.nan)
        factors = (self.least, self.most) if spread else (1.0, 1.0)
        return fit_ratio(
            loss,
            self.kl,
            target_error=self.loss_error,
            regressor_error=self.kl_error,
            relative=BFLOAT16,
            spread=factors,
        )


def without_advantage(rows: LossRows) -> Recovered | None:
    """Rows in which no answer has an advantage: their loss is the penalty alone, whatever it averages over."""
    if not rows.still.any():
        return None
    fit = rows.fit(spread=True, only=rows.still)
    if fit is None or fit.slack > SLACK:
        return None
    where = f"loss / kl in {fit.rows} {'row' if fit.rows == 1 else 'rows'} without advantage"
    return Recovered(identity=where, fit=fit, holds=True, relative=2 * BFLOAT16)


def by_groups(rows: LossRows) -> Recovered | None:
    """Ten groups of rows by their KL, all with the same loss over KL.

    A policy term that does not follow the KL is noise about a constant m, and moves the quotient by m / kl: far apart
    in the first and the last group if their KLs are. So a line through the groups' means is fitted; where its intercept
    lies within `SAME` of the mean loss, its Student interval included, the loss is beta * kl in the mean. The interval
    of beta is Student's for the line through 0, widened by `SAME`.
    """
    used = np.isfinite(rows.loss) & np.isfinite(rows.kl) & (rows.kl > rows.kl_error)
    if used.sum() < GROUPS * ROWS:
        return None
    order = np.flatnonzero(used)[np.argsort(rows.kl[used], kind="stable")]
    groups = np.array_split(order, GROUPS)
    x, y = (np.array([values[group].mean() for group in groups]) for values in (rows.kl, rows.loss))
    value = float(rows.loss[order].sum() / rows.kl[order].sum())
    if value <= 0 or x[-1] < APART * x[0]:
        return None
    line = stats.linregress(x, y)
    intercept = abs(line.intercept) + stats.t.ppf(0.975, GROUPS - 2) * line.intercept_stderr
    if intercept > SAME * y.mean():
        return None
    through = np.sqrt(np.square(y - value * x).sum() / (GROUPS - 1) / np.square(x).sum())
    half = float(stats.t.ppf(0.995, GROUPS - 1) * through)
    each = np.full(rows.loss.shape, np.nan)
    fit = Fit(value=value, lo=value - half, hi=value + half, slack=0.0, rows=order.size, each=each, each_lo=each,
              each_hi=each)  # fmt: skip
    slope, error = _between_neighbours(rows)
    if abs(slope - value) > SAME * value + 2 * error and np.isfinite(error):
        return None
    unless = DRIFT if 2 * error > SURE * value else ""
    identity = f"loss / kl, alike in {GROUPS} groups of rows by KL"
    return Recovered(identity=identity, fit=fit, holds=True, relative=SAME, unless=unless)


def _between_neighbours(rows: LossRows) -> tuple[float, float]:
    """The coefficient from changes between neighbouring rows, and its standard error: what drifts evenly drops out."""
    y, x = np.diff(rows.loss), np.diff(rows.kl)
    used = np.isfinite(y) & np.isfinite(x)
    y, x = y[used] - y[used].mean(), x[used] - x[used].mean()
    total = float(np.square(x).sum())
    slope = float(x @ y) / total if total else 0.0
    return slope, float(np.sqrt(2 * np.square(x * (y - slope * x)).sum())) / total if total else np.inf


def loss_rows(view: LogView) -> LossRows | None:
    """Loss, KL, their half-widths, the spread that lengths allow, and which rows have no advantage."""
    found = []
    for stem in ("", "eval_"):
        a = view.key(f"{stem}policy_loss", f"{stem}loss")  # policy_loss: before an entropy bonus
        b = view.key(f"{stem}kl")
        if a is None or b is None:
            continue
        y, x = np.asarray(view.log.raw[a]), np.asarray(view.log.raw[b])
        shortest, longest = view.raw(f"{stem}completions/min_length"), view.raw(f"{stem}completions/max_length")
        cut, flat, std = (view.raw(stem + key) for key in ("completions/clipped_ratio", *NO_ADVANTAGE))
        if shortest is None or longest is None:
            least, most = np.full(y.shape, 1 / SHAPE), np.full(y.shape, SHAPE)
        else:
            least, most = shortest / longest, longest / shortest
        cut = np.zeros(y.shape) if cut is None else cut
        still = (
            np.zeros(y.shape, dtype=bool) if flat is None and std is None else flat == 1 if std is None else std == 0
        )
        found.append((y, x, view.error(a, y), view.error(b, x), least, most, cut, still))
    return LossRows(*(np.concatenate(parts) for parts in zip(*found, strict=True))) if found else None
