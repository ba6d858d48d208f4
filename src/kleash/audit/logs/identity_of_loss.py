"""Where the loss itself is the penalty: beta * kl where the policy term vanishes, or beta times log ratios."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from scipy import stats

from kleash.audit.findings import number
from kleash.audit.logs.ratio_fit import Fit, fit_ratio
from kleash.audit.logs.recovery import SHAPE, SLACK, Recovered, none

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kleash.audit.logs.view import LogView
    from kleash.estimates import Floats

__all__ = ["evaluations", "whole_loss"]

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

DRIFT = "a policy term that drifts as the KL does looks the same"


@dataclass(frozen=True)
class _Rows:
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


def whole_loss(view: LogView) -> Recovered:
    """The loss is beta * kl where the policy term vanishes.

    Notes
    -----
    On-policy, the policy term is minus the mean of advantages that are centred in their group: 0 if every answer counts
    alike (``loss_type`` grpo), a length-weighted mean if every token does (bnpo, dapo), and 0 in any case in rows where
    no answer has an advantage. The logged ``kl`` is a mean over tokens since TRL 0.16. With answers of one length all
    of these agree. Otherwise, for ``loss_type`` grpo,

        loss / kl = beta * mean(k_i) * mean(L_i) / mean(k_i L_i),

    where k_i >= 0 is the mean k3 of answer i and L_i its length: between beta * min L / max L and beta * max L / min L,
    whatever micro-batches the means were taken over. Up to 0.15 both are means over answers, and there is no spread.
    """
    identity = "loss / kl"
    rows = _loss_rows(view)
    if rows is None:
        return none(identity, "the log has no loss beside the KL")
    settings, version, averages = view.settings, view.version, view.trainer.identity.averages
    assert averages is not None
    oldest = version < (0, 16) if version is not None else view.key("clip_ratio") is None
    oldest = oldest and view.key("completion_length", "eval_completion_length") is not None
    kind = averages.alike if oldest and settings.loss_type is None else settings.loss_type
    alike_rows = rows.least == rows.most
    if oldest:
        rows = replace(rows, least=np.ones_like(rows.loss), most=np.ones_like(rows.loss))
    elif kind is None:  # it may be dr_grpo, which divides by the longest answer allowed: one was cut there, so all are
        alike_rows &= rows.cut > 0
    plain, fit = rows.fit(spread=False), rows.fit(spread=True)
    if plain is None or fit is None:
        return none(identity, "the logged KL is 0 in every row as far as its digits show")
    seen = np.isfinite(fit.each)
    alike = kind == averages.alike or (bool(alike_rows[seen].all()) and kind not in averages.others)
    narrow = plain.rows >= 3 and plain.lo > 0 and plain.hi - plain.lo <= 0.5 * abs(plain.value)
    told = kind in averages.tokens or (kind is None and view.key("completion_length") is not None)  # 0.16: a token mean
    proportional = narrow and plain.slack <= SLACK and told
    updates = settings.iterations or 1
    shares, unless = _divided(view, kind)
    if fit.slack <= SLACK and (alike or proportional) and updates == 1:
        return Recovered(identity=identity, fit=fit, holds=True, relative=2 * BFLOAT16, shares=shares, unless=unless)
    known = kind == averages.alike or kind in averages.tokens
    if known or kind is None:
        more = "" if known else "loss_type is not known"
        found = _without_advantage(rows) or (_by_deciles(rows) if updates == 1 else None)
        if found is not None:
            return replace(found, each_row=False, shares=shares, unless=unless or more or found.unless)
    if updates > 1:
        reason = f"{updates} updates per batch leave a policy term beside beta * kl"
    elif kind == averages.alike:
        reason = f"rows disagree by {number(100 * fit.slack)} %: the policy term is not 0"
    else:
        named = kind or averages.default
        reason = f"a loss weighted by length ({named}) keeps a policy term beside beta * kl"
        if kind in averages.others:
            reason = f"loss_type {kind} has other terms or another unit beside beta * kl"
        elif kind is None:
            reason += "; loss_type is not known"
    return Recovered(identity=identity, fit=fit, holds=False, reason=reason, relative=2 * BFLOAT16)


def _divided(view: LogView, kind: str | None) -> tuple[tuple[float, ...], str]:
    """What the coefficient may be multiplied by in the loss, and what would say which.

    A loss that is divided by the tokens of all answers drawn at once, of which an update takes only a share, is that
    share of what it should be: policy term and penalty alike, so the leash is as tight as stated.
    """
    averages, version, share = view.trainer.identity.averages, view.version, view.settings.window
    assert averages is not None
    kept, gone = averages.mended
    never = (version and version >= gone) or (kind is None and view.key("completion_length", "eval_completion_length"))
    if (kind is not None and kind not in averages.drawn) or not averages.drawn or never:
        return (1.0,), ""
    if share is None:
        what = f"loss_type {kind or averages.drawn[0]} before {view.trainer.project} {'.'.join(map(str, gone))}"
        return (1.0,), f"{what} divides the loss by steps_per_generation / gradient_accumulation_steps"
    return ((share,) if kind is not None and version and version < kept else (1.0, share)), ""


def _without_advantage(rows: _Rows) -> Recovered | None:
    """Rows in which no answer has an advantage: their loss is the penalty alone, whatever it averages over."""
    if not rows.still.any():
        return None
    fit = rows.fit(spread=True, only=rows.still)
    if fit is None or fit.slack > SLACK:
        return None
    where = f"loss / kl in {fit.rows} {'row' if fit.rows == 1 else 'rows'} without advantage"
    return Recovered(identity=where, fit=fit, holds=True, relative=2 * BFLOAT16)


def _by_deciles(rows: _Rows) -> Recovered | None:
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
    unless = DRIFT if 2 * error > value / 2 else ""
    identity = f"loss / kl, alike in {GROUPS} groups of rows by KL"
    return Recovered(identity=identity, fit=fit, holds=True, relative=SAME, unless=unless)


def _between_neighbours(rows: _Rows) -> tuple[float, float]:
    """The coefficient from changes between neighbouring rows, and its standard error: what drifts evenly drops out."""
    y, x = np.diff(rows.loss), np.diff(rows.kl)
    used = np.isfinite(y) & np.isfinite(x)
    y, x = y[used] - y[used].mean(), x[used] - x[used].mean()
    total = float(np.square(x).sum())
    slope = float(x @ y) / total if total else 0.0
    return slope, float(np.sqrt(2 * np.square(x * (y - slope * x)).sum())) / total if total else np.inf


def _loss_rows(view: LogView) -> _Rows | None:
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
    return _Rows(*(np.concatenate(parts) for parts in zip(*found, strict=True))) if found else None


def evaluations(view: LogView) -> Recovered:
    """On one set of evaluation answers the change of the reward is beta times that of the log-probability.

    ``rewards/chosen`` is beta * (logp - ref_logp) and ``logps/chosen`` is logp, means over the same answers; the
    reference does not move, so from one evaluation to the next its part cancels. Each training row is of other answers
    and holds nothing.
    """
    nothing = "the log has beta times the log ratio, and nothing without beta"
    parts = []
    for side in ("chosen", "rejected"):
        for stem in ("eval_", "eval/"):
            a, b = f"{stem}rewards/{side}", f"{stem}logps/{side}"
            if a not in view.log.raw or b not in view.log.raw:
                continue
            y, x = np.asarray(view.log.raw[a]), np.asarray(view.log.raw[b])
            seen = np.flatnonzero(np.isfinite(x) & np.isfinite(y))
            if seen.size < 2:
                continue
            ey, ex = (8 * view.error(key, values)[seen] for key, values in ((a, y), (b, x)))
            y, x = y[seen], x[seen]
            parts.append((y[1:] - y[0], x[1:] - x[0], ey[1:] + ey[0], ex[1:] + ex[0]))
    if not parts:
        return none("", nothing)
    y, x, ey, ex = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    identity = "change of eval_rewards / change of eval_logps"
    fit = fit_ratio(y, x, target_error=ey, regressor_error=ex, relative=1e-3)
    if fit is None:
        return none(identity, nothing)
    holds = fit.slack <= SLACK
    reason = (
        "" if holds else f"rows disagree by {number(100 * fit.slack)} %: the reference moves, or the answers differ"
    )
    return Recovered(identity=identity, fit=fit, holds=holds, reason=reason, relative=1e-3)
