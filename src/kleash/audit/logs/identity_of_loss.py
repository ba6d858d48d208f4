"""Where the loss itself is the penalty: beta * kl where the policy term vanishes, or beta times log ratios."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from kleash.audit.findings import number
from kleash.audit.logs.loss_rows import BFLOAT16, by_groups, loss_rows, without_advantage
from kleash.audit.logs.ratio_fit import fit_ratio
from kleash.audit.logs.recovery import SLACK, Recovered, none

if TYPE_CHECKING:
    from kleash.audit.logs.view import LogView

__all__ = ["evaluations", "whole_loss"]


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
    rows = loss_rows(view)
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
        found = without_advantage(rows) or (by_groups(rows) if updates == 1 else None)
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
