"""Which identities do verl, slime, OpenRLHF, open-instruct and plain tables leave in their logs? Sums and differences.

The loss with and without the penalty, the reward before and after it, the penalty beside the KL.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from kleash.audit.findings import number
from kleash.audit.logs.ratio_fit import Fit, fit_ratio
from kleash.audit.logs.recovery import SHAPE, SLACK, Recovered, none, pair

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kleash.audit.logs.view import LogView

    Floats = NDArray[np.float64]

__all__ = ["loss_part", "open_instruct", "openrlhf"]

CANCELS = 0.1
"""Share of rows with a negative KL above which terms of both signs are taken to cancel in the others as well. Ours."""


def loss_part(view: LogView) -> Recovered:
    """Whole loss minus policy loss (and entropy term): the penalty; or, in verl, scores minus rewards."""
    whole = view.key("actor/loss", "loss", "total_loss")
    policy = view.key("actor/pg_loss", "pg_loss", "policy_loss")
    kl = view.kl
    assert kl is not None
    in_loss = view.key("actor/kl_loss", "kl_loss") is not None or kl.spec.placement.startswith("loss")
    if whole is None or policy is None or not in_loss:
        paid = view.raw("penalty", "kl_penalty_reward", "non_score_reward")
        if paid is not None:
            key = view.key("penalty", "kl_penalty_reward", "non_score_reward")
            sign = -1.0 if key is not None and key.endswith("non_score_reward") else 1.0
            y = sign * paid
            return pair(view, (str(key),), y, view.error(key, y), f"{key} / {kl.key}", "reward", relative=1e-3)
        if in_loss and not view.settings.in_reward:
            return none("", "the log has no loss without the penalty beside the loss with it")
        return _shaped(view, "critic/score/mean", "critic/rewards/mean")
    y, p = np.asarray(view.log.raw[whole]), np.asarray(view.log.raw[policy])
    target, error = y - p, view.error(whole, y) + view.error(policy, p)
    identity = f"({whole} - {policy}) / {kl.key}"
    entropy, weight = view.key("actor/entropy", "actor/entropy_loss", "entropy_loss"), view.settings.entropy_coefficient
    if weight and entropy is not None:
        e = np.asarray(view.log.raw[entropy])
        target, error = target + weight * e, error + abs(weight) * view.error(entropy, e)
        identity = f"({whole} - {policy} + {weight:g} {entropy}) / {kl.key}"
    plain = pair(view, (whole,), target, error, identity, "loss", relative=1e-3)
    if not plain.holds and entropy is not None and weight is None and plain.fit is not None:
        return _with_entropy(view, target, error, np.asarray(view.log.raw[entropy]), plain)
    return plain


def _with_entropy(view: LogView, target: Floats, error: Floats, entropy: Floats, plain: Recovered) -> Recovered:
    """An entropy term of unknown weight beside the penalty: both by least squares, kept only if the rows then agree."""
    assert view.kl is not None
    x = np.stack([np.asarray(view.kl.values), entropy], axis=1)
    used = np.isfinite(x).all(axis=1) & np.isfinite(target)
    if used.sum() < 4 or np.linalg.matrix_rank(x[used]) < 2:
        return plain
    weight = float(np.linalg.lstsq(x[used], target[used], rcond=None)[0][1])
    identity = f"{plain.identity.replace(') /', f' - {weight:.3g} entropy) /')}"
    again = pair(view, ("loss",), target - weight * entropy, error, identity, "loss", relative=1e-3)
    return again if again.holds else plain


def _shaped(view: LogView, before: str, after: str) -> Recovered:
    """Mean score before and after a penalty per token: about coefficient * kl per token * length.

    A mean of sums against a product of means: within `SHAPE` where the token means are of one sign. Where they are not,
    short answers with a negative mean outweigh long ones with a small positive one, and nothing bounds the quotient.
    """
    a, b = view.key(before), view.key(after)
    if a is None or b is None:
        return none("", "the log has neither the loss without the penalty nor the reward before and after it")
    x, y = np.asarray(view.log.raw[a]), np.asarray(view.log.raw[b])
    kl, length = view.kl, view.log.length
    assert kl is not None
    regressor = np.asarray(kl.values, dtype=np.float64)
    factor = 1.0
    if kl.spec.unit == "nats per token":
        if length is None:
            return none(f"({a} - {b}) / kl", "the log has no length to make KL per answer from")
        regressor, factor = regressor * np.asarray(length), SHAPE
    error = view.error(a, x) + view.error(b, y)
    kl_error = view.error(kl.key, np.asarray(kl.values)) * (1.0 if factor == 1.0 else np.asarray(length))
    fit = fit_ratio(x - y, regressor, target_error=error, regressor_error=kl_error)
    if fit is None:
        return none(f"({a} - {b}) / kl", "the logged KL is 0 in every row as far as its digits show")
    spread = np.nanquantile(fit.each_lo, 0.05), np.nanquantile(fit.each_hi, 0.95)
    fit = Fit(
        value=fit.value,
        lo=float(min(spread[0], fit.value)),
        hi=float(max(spread[1], fit.value)),
        slack=fit.slack,
        rows=fit.rows,
        each=fit.each,
        each_lo=fit.each_lo,
        each_hi=fit.each_hi,
    )
    identity = f"({a} - {b}) / (kl x length)"
    below = float(np.mean(regressor[np.isfinite(fit.each)] < 0))
    if factor != 1.0 and below > CANCELS:
        reason = (
            f"{kl.key} is below 0 in {number(100 * below)} % of rows: a mean of answers' means says nothing of sums"
        )
        return Recovered(identity=identity, fit=fit, holds=False, reason=reason, place="reward", factor=factor)
    if factor != 1.0 and np.nanquantile(fit.each_lo, 0.95) > factor**2 * np.nanquantile(fit.each_hi, 0.05) > 0:
        reason = "the quotient of sums and means moves more than ninefold over the run"
        return Recovered(identity=identity, fit=fit, holds=False, reason=reason, place="reward", factor=factor)
    return Recovered(identity=identity, fit=fit, holds=True, place="reward", factor=factor)


def openrlhf(view: LogView) -> Recovered:
    """Reward minus return is the penalty, if it is in the reward."""
    found = _shaped(view, "reward", "return")
    if found.fit is not None and not found.resolved and view.settings.in_loss:
        return none(found.identity, "the penalty is in the loss, which OpenRLHF logs without it")
    return found


def open_instruct(view: LogView) -> Recovered:
    """``loss/kl_avg`` is beta times one of four estimators: the one it is proportional to."""
    key = view.key("loss/kl_avg")
    if key is None:
        return none("", "the log has no loss/kl_avg")
    y = np.asarray(view.log.raw[key])
    found = []
    for i in range(4):
        name = view.key(f"objective/kl{i}_avg")
        if name is None:
            continue
        x = np.asarray(view.log.raw[name])
        fit = fit_ratio(y, x, target_error=view.error(key, y), regressor_error=view.error(name, x), relative=1e-3)
        if fit is None:
            continue
        reason = "" if fit.slack <= SLACK else "loss/kl_avg is proportional to none of the logged estimators"
        found.append(Recovered(identity=f"{key} / {name}", fit=fit, holds=not reason, reason=reason))
    if not found:
        return none("loss/kl_avg", "no objective/kl*_avg beside loss/kl_avg")
    stated = view.settings.beta
    close = [f for f in found if f.holds and stated is not None and f.fits(stated)]
    best = min(close or found, key=lambda f: f.fit.slack if f.fit is not None else np.inf)
    assert best.fit is not None
    rivals = [f for f in close or found if f.fit is not None and f.fit.slack <= best.fit.slack + 1e-9]
    if len(rivals) > 1:  # so few digits that more than one estimator fits: the coefficient is known, which one is not
        ends = [f.fit for f in rivals if f.fit is not None]
        both = replace(best.fit, lo=min(f.lo for f in ends), hi=max(f.hi for f in ends))
        return replace(best, identity=f"{key} / objective/kl*_avg", fit=both)
    return best
