"""Where the loss itself is the penalty: beta * kl where the policy term vanishes, or beta times log ratios."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kleash.audit.findings import number
from kleash.audit.logs.ratio_fit import fit_ratio
from kleash.audit.logs.recovery import SHAPE, SLACK, Recovered, none

if TYPE_CHECKING:
    from kleash.audit.logs.view import LogView
    from kleash.estimates import Floats

__all__ = ["evaluations", "whole_loss"]

BFLOAT16 = 0.01
"""Relative error granted to ``loss = beta * kl``: the policy term is a sum of centred advantages that vanishes
only up to bfloat16 (eight bits, 0.4 %; the pair of FareedKhan-dev/train-deepseek-r1 issue 4 is 0.12 % off)."""


def whole_loss(view: LogView) -> Recovered:
    """The loss is beta * kl where the policy term vanishes.

    Notes
    -----
    On-policy, the policy term is minus the mean of advantages that are centred in their group: 0 if every answer counts
    alike (``loss_type`` grpo), a length-weighted mean if every token does (bnpo, dapo). The logged ``kl`` is a mean
    over tokens since TRL 0.16. With answers of one length all of these agree. Otherwise, for ``loss_type`` grpo,

        loss / kl = beta * mean(k_i) * mean(L_i) / mean(k_i L_i),

    where k_i >= 0 is the mean k3 of answer i and L_i its length: between beta * min L / max L and beta * max L / min L,
    whatever micro-batches the means were taken over. Up to 0.15 both are means over answers, and there is no spread.
    """
    identity = "loss / kl"
    rows = _loss_rows(view)
    if rows is None:
        return none(identity, "the log has no loss beside the KL")
    y, x, ey, ex, least, most, cut = rows
    settings, version, averages = view.settings, view.version, view.trainer.identity.averages
    assert averages is not None
    oldest = version < (0, 16) if version is not None else view.key("clip_ratio") is None
    oldest = oldest and view.key("completion_length", "eval_completion_length") is not None
    kind = averages.alike if oldest and settings.loss_type is None else settings.loss_type
    alike_rows = least == most
    if oldest:
        least, most = np.ones_like(y), np.ones_like(y)
    elif kind is None:  # it may be dr_grpo, which divides by the longest answer allowed: one was cut there, so all are
        alike_rows &= cut > 0
    plain = fit_ratio(y, x, target_error=ey, regressor_error=ex, relative=BFLOAT16)
    fit = fit_ratio(y, x, target_error=ey, regressor_error=ex, relative=BFLOAT16, spread=(least, most))
    if plain is None or fit is None:
        return none(identity, "the logged KL is 0 in every row as far as its digits show")
    seen = np.isfinite(fit.each)
    alike = kind == averages.alike or (bool(alike_rows[seen].all()) and kind not in averages.others)
    narrow = plain.rows >= 3 and plain.lo > 0 and plain.hi - plain.lo <= 0.5 * abs(plain.value)
    told = kind in averages.tokens or (kind is None and view.key("completion_length") is not None)  # 0.16: a token mean
    proportional = narrow and plain.slack <= SLACK and told
    updates = settings.iterations or 1
    holds = fit.slack <= SLACK and (alike or proportional) and updates == 1
    reason = ""
    if not holds and updates > 1:
        reason = f"{updates} updates per batch leave a policy term beside beta * kl"
    elif not holds and kind == averages.alike:
        reason = f"rows disagree by {number(100 * fit.slack)} %: the policy term is not 0"
    elif not holds:
        named = kind or averages.default
        reason = f"a loss weighted by length ({named}) keeps a policy term beside beta * kl"
        if kind in averages.others:
            reason = f"loss_type {kind} has other terms or another unit beside beta * kl"
        elif kind is None:
            reason += "; loss_type is not known"
    return Recovered(identity=identity, fit=fit, holds=holds, reason=reason, relative=2 * BFLOAT16)


def _loss_rows(view: LogView) -> tuple[Floats, ...] | None:
    """Loss, KL, their half-widths, the spread that lengths allow, and the share of answers cut at the limit."""
    found = []
    for stem in ("", "eval_"):
        a = view.key(f"{stem}policy_loss", f"{stem}loss")  # policy_loss: before an entropy bonus
        b = view.key(f"{stem}kl")
        if a is None or b is None:
            continue
        y, x = np.asarray(view.log.raw[a]), np.asarray(view.log.raw[b])
        shortest, longest = view.raw(f"{stem}completions/min_length"), view.raw(f"{stem}completions/max_length")
        cut = view.raw(f"{stem}completions/clipped_ratio")
        if shortest is None or longest is None:
            least, most = np.full(y.shape, 1 / SHAPE), np.full(y.shape, SHAPE)
        else:
            least, most = shortest / longest, longest / shortest
        cut = np.zeros(y.shape) if cut is None else cut
        found.append((y, x, view.error(a, y), view.error(b, x), least, most, cut))
    return tuple(np.concatenate(parts) for parts in zip(*found, strict=True)) if found else None


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
