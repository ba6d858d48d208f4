"""Which identities do columns of a log leave? Sums, differences and quotients.

The loss with and without the penalty, the reward before and after it, the penalty beside the KL.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from kleash.audit.findings import number
from kleash.audit.logs.ratio_fit import Fit, fit_ratio
from kleash.audit.logs.recovery import SHAPE, SLACK, Recovered, none, pair

if TYPE_CHECKING:
    from kleash.audit.logs.view import LogView
    from kleash.estimates import Floats

__all__ = ["difference", "parts", "penalty", "proportional", "shaped"]

CANCELS = 0.1
"""Share of rows with a negative KL above which terms of both signs are taken to cancel in the others as well. Ours."""


def parts(view: LogView) -> Recovered:
    """Whole loss minus policy loss (and entropy term): the penalty; or scores before minus scores after it."""
    columns, shows = view.trainer.columns, view.trainer.shows
    whole, policy = view.key(*columns.losses.get("loss", ())), view.key(*columns.losses.get("policy", ()))
    kl = view.kl
    assert kl is not None
    in_loss = view.key(shows.kl_in_loss) is not None or kl.spec.placement.startswith("loss")
    if whole is None or policy is None or not in_loss:
        key = view.key("penalty", "kl_penalty_reward", "non_score_reward")
        if key is not None:
            y = np.asarray(view.log.raw[key]) * (-1.0 if key.endswith("non_score_reward") else 1.0)
            return pair(view, (key,), y, view.error(key, y), f"{key} / {kl.key}", "reward", relative=1e-3)
        if in_loss and not view.settings.in_reward:
            return none("", "the log has no loss without the penalty beside the loss with it")
        return _quotient(view)
    y, p = np.asarray(view.log.raw[whole]), np.asarray(view.log.raw[policy])
    target, error = y - p, view.error(whole, y) + view.error(policy, p)
    identity = f"({whole} - {policy}) / {kl.key}"
    entropy, weight = view.key(*columns.entropy), view.settings.entropy_coefficient
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


def _quotient(view: LogView) -> Recovered:
    """Mean score before and after a penalty per token: about coefficient * kl per token * length.

    A mean of sums against a product of means: within `SHAPE` where the token means are of one sign. Where they are not,
    short answers with a negative mean outweigh long ones with a small positive one, and nothing bounds the quotient.
    """
    a, b = (view.key(name) for name in view.trainer.shows.shaped or ("", ""))
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
    if fit is None or not np.isfinite(fit.each).any():
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


def shaped(view: LogView) -> Recovered:
    """The score before minus the one after the penalty, if it is in the reward."""
    found = _quotient(view)
    if found.fit is not None and not found.resolved and view.settings.in_loss:
        return none(found.identity, f"the penalty is in the loss, which {view.trainer.project} logs without it")
    return found


def difference(view: LogView) -> Recovered:
    """The penalty is the difference of two columns."""
    first, second, kl = view.trainer.identity.keys
    a, b = view.key(first), view.key(second)
    if a is None or b is None:
        return none("", f"the log lacks {first} or {second}")
    x, y = np.asarray(view.log.raw[a]), np.asarray(view.log.raw[b])
    identity = f"({a} - {b}) / {kl}"
    return pair(view, (a,), x - y, view.error(a, x) + view.error(b, y), identity, "reward", relative=1e-3)


def penalty(view: LogView) -> Recovered:
    """The trainer logs what the penalty took from the reward: per answer, or per token beside a KL per answer."""
    key = view.key(*view.trainer.identity.keys[:2])
    if key is None:
        return none("", "the log has no non_score_reward")
    y = np.asarray(view.log.raw[key])
    identity = f"-{key} / {view.kl.key if view.kl else 'kl'}"
    if not key.endswith(view.trainer.identity.keys[0]):
        if view.log.length is None:
            return none(identity, "mean_non_score_reward is per token, and the log has no length")
        length = np.asarray(view.log.length)
        of_length = view.error(view.key(view.trainer.identity.keys[2]), length)
        error = view.error(key, y) * length + np.abs(y) * of_length
        return pair(view, (key,), -y * length, error, f"{identity} x length", "reward", relative=1e-2)
    return pair(view, (key,), -y, view.error(key, y), identity, "reward", relative=1e-4)


def proportional(view: LogView) -> Recovered:
    """The penalty is beta times one of several KLs: the one it is proportional to."""
    column, *candidates = view.trainer.identity.keys
    key = view.key(column)
    if key is None:
        return none("", f"the log has no {column}")
    y = np.asarray(view.log.raw[key])
    found = []
    for name in filter(None, map(view.key, candidates)):
        x = np.asarray(view.log.raw[name])
        fit = fit_ratio(y, x, target_error=view.error(key, y), regressor_error=view.error(name, x), relative=1e-3)
        if fit is not None:
            reason = "" if fit.slack <= SLACK else f"{column} is proportional to none of the logged estimators"
            found.append(Recovered(identity=f"{key} / {name}", fit=fit, holds=not reason, reason=reason))
    any_of = re.sub(r"\d", "*", candidates[0])
    if not found:
        return none(column, f"no {any_of} beside {column}")
    return _best(view, found, f"{key} / {any_of}")


def _best(view: LogView, found: list[Recovered], any_of: str) -> Recovered:
    """The identity whose rows agree best, among those that fit what is stated."""
    stated = view.settings.beta
    close = [f for f in found if f.holds and stated is not None and f.fits(stated)]
    best = min(close or found, key=lambda f: f.fit.slack if f.fit is not None else np.inf)
    assert best.fit is not None
    ends = [f.fit for f in close or found if f.fit is not None and f.fit.slack <= best.fit.slack + 1e-9]
    if len(ends) > 1:  # so few digits that more than one estimator fits: the coefficient is known, which one is not
        both = replace(best.fit, lo=min(f.lo for f in ends), hi=max(f.hi for f in ends))
        return replace(best, identity=any_of, fit=both)
    return best
