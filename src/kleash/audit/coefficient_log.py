"""Which coefficient does the log itself hold? COEFFICIENT of a log, from identities between its columns.

A trainer that logs the loss with and without the penalty, or the reward before and after it, has logged its coefficient
without naming it. Which columns those are differs by trainer; where none can, that is said.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kleash.audit.findings import Finding, cannot_tell, number, ok, problem
from kleash.audit.ratios import Fit, fit_ratio

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kleash.audit.declared import Declared
    from kleash.audit.logview import LogView

    Floats = NDArray[np.float64]

__all__ = ["Recovered", "coefficient", "facts_of_coefficient", "recover"]

BFLOAT16 = 0.01
"""Relative error granted to TRL's ``loss = beta * kl``: its policy term is a sum of centred advantages that vanishes
only up to bfloat16 (eight bits, 0.4 %; the pair of FareedKhan-dev/train-deepseek-r1 issue 4 is 0.12 % off)."""

SLACK = 0.05
"""Largest disagreement between rows at which an identity is said to hold; above it other terms are in the sum. Ours."""

SHAPE = 3.0
"""Factor granted where a mean of sums is compared with a product of means (KL per token times mean length). Ours."""

LENGTH_WEIGHTED = ("bnpo", "dr_grpo", "dapo", "cispo", "vespo", "luspo")


@dataclass(frozen=True, kw_only=True)
class Recovered:
    """A coefficient from an identity of the log, or the reason why there is none.

    ``holds``: the rows agree, so the identity holds; ``factor`` widens the interval where it is approximate. ``place``
    says where the identity finds the penalty.
    """

    identity: str
    fit: Fit | None
    holds: bool
    reason: str = ""
    place: str = "loss"
    factor: float = 1.0
    relative: float = 0.0

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
    def resolved(self) -> bool:
        """Whether the identity holds and its interval says more than "about 0"."""
        return self.fit is not None and self.holds and not self.lo <= 0 <= self.hi

    def fits(self, value: float) -> bool:
        """Whether a coefficient is inside the interval."""
        return self.lo <= value <= self.hi


def _none(identity: str, reason: str) -> Recovered:
    return Recovered(identity=identity, fit=None, holds=False, reason=reason)


def recover(view: LogView) -> Recovered:
    """The coefficient from the log's own columns.

    Notes
    -----
    ==================================  ================================================================
    TRL PPO (old and new), Online DPO   -non_score_reward = coefficient * kl
    lm-human-preferences                score - score_total = coefficient * kl
    TRL GRPO                            loss = beta * kl, where the policy term vanishes
    verl, slime                         loss - pg_loss + entropy term = coefficient * kl_loss
    verl with KL in the reward          score - rewards = coefficient * kl * length, up to a factor
    OpenRLHF                            reward - return = coefficient * kl * length, up to a factor
    open-instruct                       loss/kl_avg = beta * objective/kl{i}_avg
    any table                           loss - policy loss, or the logged penalty, over the KL
    ==================================  ================================================================
    """
    found: Recovered = view.once("coefficient", _recover)
    return found


def _recover(view: LogView) -> Recovered:
    name = view.trainer
    if view.kl is None:
        return _none("", "no KL against a reference in this log")
    if name in ("trl-ppo", "trl-online-dpo", "trl-legacy-ppo"):
        return _non_score(view)
    if name == "lm-human-preferences":
        return _difference(view, "objective/score", "objective/score_total", "objective/kl", place="reward")
    if name == "trl-grpo":
        return _grpo(view)
    if name == "trl-rloo":
        return _none("", "TRL's RLOO logs the reward before the KL is taken off, and no loss without it")
    if name in ("trl-dpo", "trl-kto"):
        return _none("", "the log has beta times the log ratio, and nothing without beta")
    if name == "open-instruct":
        return _open_instruct(view)
    if name == "openrlhf":
        return _openrlhf(view)
    if name == "nemo-rl":
        return _none("", "NeMo-RL divides the coefficient out of kl_penalty and logs no policy loss of its own")
    if name == "trlx":
        return _none("", "trlX logs kl_ctl_value and nothing to check it against")
    return _loss_part(view)


def _pair(
    view: LogView, keys: tuple[str, ...], target: Floats, error: Floats, identity: str, place: str, **more: float
) -> Recovered:
    assert view.kl is not None
    kl = np.asarray(view.kl.values)
    fit = fit_ratio(target, kl, target_error=error, regressor_error=view.error(view.kl.key, kl))
    if fit is None:
        return _none(identity, "the logged KL is 0 in every row as far as its digits show")
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


def _non_score(view: LogView) -> Recovered:
    key = view.key("objective/non_score_reward", "ppo/mean_non_score_reward")
    if key is None:
        return _none("", "the log has no non_score_reward")
    y = np.asarray(view.log.raw[key])
    identity = f"-{key} / {view.kl.key if view.kl else 'kl'}"
    if key.endswith("ppo/mean_non_score_reward"):  # a mean per token beside a sum per answer (record_step_stats)
        if view.log.length is None:
            return _none(identity, "mean_non_score_reward is per token, and the log has no length")
        length = np.asarray(view.log.length)
        error = view.error(key, y) * length + np.abs(y) * view.error(view.key("tokens/responses_len_mean"), length)
        return _pair(view, (key,), -y * length, error, f"{identity} x length", "reward", relative=1e-2)
    return _pair(view, (key,), -y, view.error(key, y), identity, "reward", relative=1e-4)


def _difference(view: LogView, first: str, second: str, kl: str, *, place: str) -> Recovered:
    a, b = view.key(first), view.key(second)
    if a is None or b is None:
        return _none("", f"the log lacks {first} or {second}")
    x, y = np.asarray(view.log.raw[a]), np.asarray(view.log.raw[b])
    return _pair(view, (a,), x - y, view.error(a, x) + view.error(b, y), f"({a} - {b}) / {kl}", place, relative=1e-3)


def _grpo(view: LogView) -> Recovered:
    """The ``loss`` of GRPO is beta * kl where the policy term vanishes: one update per batch, every answer equal."""
    fits = []
    for loss, kl in (("loss", "kl"), ("eval_loss", "eval_kl")):
        a, b = view.key(loss), view.key(kl)
        if a is None or b is None:
            continue
        y, x = np.asarray(view.log.raw[a]), np.asarray(view.log.raw[b])
        fits.append((y, x, view.error(a, y), view.error(b, x)))
    if not fits:
        return _none("loss / kl", "the log has no loss beside the KL")
    y, x, ey, ex = (np.concatenate(parts) for parts in zip(*fits, strict=True))
    fit = fit_ratio(y, x, target_error=ey, regressor_error=ex, relative=BFLOAT16)
    identity = "loss / kl"
    if fit is None:
        return _none(identity, "the logged KL is 0 in every row as far as its digits show")
    settings, version = view.settings, view.version
    old = view.key("completion_length") is not None or (version is not None and version < (0, 17))
    equal = settings.loss_type in ("grpo", "sapo") or (settings.loss_type is None and old)
    informative = fit.rows >= 3 and fit.lo > 0 and fit.hi - fit.lo <= 0.5 * abs(fit.value)
    holds = fit.slack <= SLACK and (equal or informative) and (settings.iterations or 1) == 1
    reason = ""
    if not holds:
        if settings.loss_type in LENGTH_WEIGHTED or (settings.loss_type is None and not equal):
            kind = settings.loss_type or "bnpo and dapo, the defaults since TRL 0.17"
            reason = f"a loss weighted by length ({kind}) keeps a policy term beside beta * kl"
        elif (settings.iterations or 1) > 1:
            reason = f"{settings.iterations} updates per batch leave a policy term beside beta * kl"
        else:
            reason = f"rows disagree by {number(100 * fit.slack)} %: the policy term is not 0"
    return Recovered(identity=identity, fit=fit, holds=holds, reason=reason, relative=2 * BFLOAT16)


def _loss_part(view: LogView) -> Recovered:
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
            return _pair(view, (str(key),), y, view.error(key, y), f"{key} / {kl.key}", "reward", relative=1e-3)
        if in_loss and not view.settings.in_reward:
            return _none("", "the log has no loss without the penalty beside the loss with it")
        return _shaped(view, "critic/score/mean", "critic/rewards/mean")
    y, p = np.asarray(view.log.raw[whole]), np.asarray(view.log.raw[policy])
    target, error = y - p, view.error(whole, y) + view.error(policy, p)
    identity = f"({whole} - {policy}) / {kl.key}"
    entropy, weight = view.key("actor/entropy", "actor/entropy_loss", "entropy_loss"), view.settings.entropy_coefficient
    if weight and entropy is not None:
        e = np.asarray(view.log.raw[entropy])
        target, error = target + weight * e, error + abs(weight) * view.error(entropy, e)
        identity = f"({whole} - {policy} + {weight:g} {entropy}) / {kl.key}"
    plain = _pair(view, (whole,), target, error, identity, "loss", relative=1e-3)
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
    again = _pair(view, ("loss",), target - weight * entropy, error, identity, "loss", relative=1e-3)
    return again if again.holds else plain


def _shaped(view: LogView, before: str, after: str) -> Recovered:
    """Mean score before and after a penalty per token: about coefficient * kl per token * length."""
    a, b = view.key(before), view.key(after)
    if a is None or b is None:
        return _none("", "the log has neither the loss without the penalty nor the reward before and after it")
    x, y = np.asarray(view.log.raw[a]), np.asarray(view.log.raw[b])
    kl, length = view.kl, view.log.length
    assert kl is not None
    regressor = np.asarray(kl.values, dtype=np.float64)
    factor = 1.0
    if kl.spec.unit == "nats per token":
        if length is None:
            return _none(f"({a} - {b}) / kl", "the log has no length to make KL per answer from")
        regressor, factor = regressor * np.asarray(length), SHAPE
    error = view.error(a, x) + view.error(b, y)
    kl_error = view.error(kl.key, np.asarray(kl.values)) * (1.0 if factor == 1.0 else np.asarray(length))
    fit = fit_ratio(x - y, regressor, target_error=error, regressor_error=kl_error)
    if fit is None:
        return _none(f"({a} - {b}) / kl", "the logged KL is 0 in every row as far as its digits show")
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
    return Recovered(identity=f"({a} - {b}) / (kl x length)", fit=fit, holds=True, place="reward", factor=factor)


def _openrlhf(view: LogView) -> Recovered:
    found = _shaped(view, "reward", "return")
    if found.fit is not None and not found.resolved and view.settings.in_loss:
        return _none(found.identity, "the penalty is in the loss, which OpenRLHF logs without it")
    return found


def _open_instruct(view: LogView) -> Recovered:
    """``loss/kl_avg`` is beta times one of four estimators: the one it is proportional to."""
    key = view.key("loss/kl_avg")
    if key is None:
        return _none("", "the log has no loss/kl_avg")
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
        return _none("loss/kl_avg", "no objective/kl*_avg beside loss/kl_avg")
    stated = view.settings.beta
    close = [f for f in found if f.holds and stated is not None and f.fits(stated)]
    return min(close or found, key=lambda f: f.fit.slack if f.fit is not None else np.inf)


def coefficient(view: LogView, declared: Declared, level: float) -> Finding:
    """Whether the log's own arithmetic gives the coefficient that was logged, configured or declared.

    ``problem``: the interval that the digits allow excludes it. No chance is involved; approximate identities are
    granted a factor of three.
    """
    if view.kl is None and view.log.coefficient is None:
        stated = view.settings.beta
        said = "" if stated is None else f", {view.settings.beta_key} says {number(stated)}"
        return cannot_tell(
            "COEFFICIENT",
            f"no KL in this run{said}",
            fix="log the KL (PLACEMENT says what its absence means)",
            evidence={"declared": stated},
        )
    found = recover(view)
    logged, stated = view.coefficient, view.settings.beta
    evidence: dict[str, object] = {
        "identity": found.identity or None,
        "declared": stated,
        "declared_from": view.settings.beta_key,
    }
    if logged.size:
        evidence |= {"logged_first": float(logged.values[0]), "logged_last": float(logged.values[-1])}
    if found.fit is not None:
        evidence |= {
            "value": found.fit.value,
            "lo": found.lo,
            "hi": found.hi,
            "rows": found.fit.rows,
            "slack": found.fit.slack,
        }
    if found.fit is None or not found.holds:
        return _without_identity(view, found, evidence)
    fit = found.fit
    text = f"{number(fit.value)} [{number(found.lo)}, {number(found.hi)}] from {found.identity}"
    if logged.size:
        wrong, share = _against_logged(view, found)
        evidence |= {"rows_off": share}
        if wrong is not None:
            return _mismatch(view, found, wrong, "the log", text, evidence)
    elif stated is not None and not view.settings.adaptive and not found.fits(stated):
        return _mismatch(view, found, stated, view.settings.beta_key or "the configuration", text, evidence)
    if logged.size and stated is not None and not view.settings.adaptive:
        first = float(logged.values[0])
        if not np.isclose(first, stated, rtol=0.01, atol=float(view.error(_key(view), logged.values[:1])[0])):
            return _mismatch(view, found, stated, view.settings.beta_key or "the configuration", text, evidence)
    if not found.resolved and stated != 0 and not (logged.size and not logged.values.any()):
        message = f"the digits hide it: at most {number(found.hi)} from {found.identity}"
        return cannot_tell("COEFFICIENT", message, fix="log more digits, or a later step", evidence=evidence)
    versus = f", {view.settings.beta_key} says {number(stated)}" if stated is not None else ""
    versus += f", logged is {number(float(logged.values[-1]))}" if logged.size else ""
    return ok("COEFFICIENT", text + versus, evidence=evidence)


def _key(view: LogView) -> str | None:
    wanted = view.log.coefficient
    for key, values in view.log.raw.items():
        if wanted is not None and np.array_equal(values, wanted, equal_nan=True):
            return key
    return None


def _against_logged(view: LogView, found: Recovered) -> tuple[float | None, float]:
    """The logged coefficient at the first row that does not fit, if most rows do not; and the share that does not."""
    assert found.fit is not None
    assert view.log.coefficient is not None
    own = np.asarray(view.log.coefficient, dtype=np.float64)
    lo, hi = found.fit.each_lo, found.fit.each_hi
    if lo.shape != own.shape:
        return None, 0.0
    error = view.error(_key(view), own)
    grant = found.relative + 1e-3 + 2 * min(found.fit.slack, SLACK)
    low = np.minimum(lo / found.factor, lo * found.factor) - grant * np.abs(own)
    high = np.maximum(hi / found.factor, hi * found.factor) + grant * np.abs(own)
    known = np.isfinite(own) & np.isfinite(lo)
    off = known & ((own + error < low) | (own - error > high))
    share = float(off.sum() / max(1, known.sum()))
    return (float(own[np.flatnonzero(off)[0]]), share) if share > 0.5 else (None, share)


def _mismatch(
    view: LogView, found: Recovered, expected: float, who: str, text: str, evidence: dict[str, object]
) -> Finding:
    assert found.fit is not None
    ratio = found.fit.value / expected if expected else float("inf")
    evidence |= {"ratio": ratio, "expected": expected}
    causes = ["the coefficient is not passed on, or passed twice", "the logged KL is not the KL of the penalty"]
    whole = [n for n in range(2, 129) if abs(ratio * n - 1) < 0.02 or abs(ratio / n - 1) < 0.02]
    if whole:
        n = whole[0]
        causes.insert(0, f"a factor of {n}: gradient accumulation steps or micro-batches multiplied in or divided out")
        if view.trainer == "verl" and ratio < 1:
            causes.insert(0, "verl 0.5 to 0.7 log kl_loss times the number of micro-batches (PR 4711)")
    if view.length.size and abs(ratio / float(np.median(view.length.values)) - 1) < 0.5:
        causes.insert(0, "the logged KL is a mean per token and the penalty takes the sum over the answer")
    if not np.isfinite(ratio):
        causes.insert(0, "declared 0, and a penalty is there")
    return problem(
        "COEFFICIENT",
        f"{text}; {who} says {number(expected)}: {number(ratio)} times",
        causes=tuple(causes),
        fix="find where the coefficient is multiplied in; set the one that the log's arithmetic confirms",
        evidence=evidence,
    )


def _without_identity(view: LogView, found: Recovered, evidence: dict[str, object]) -> Finding:
    logged, stated = view.coefficient, view.settings.beta
    why = found.reason or "no identity of the log holds it"
    if logged.size and stated is not None and not view.settings.adaptive:
        first = float(logged.values[0])
        if not np.isclose(first, stated, rtol=0.01, atol=float(view.error(_key(view), logged.values[:1])[0])):
            return problem(
                "COEFFICIENT",
                f"logged is {number(first)}, {view.settings.beta_key} says {number(stated)}",
                causes=("another configuration was used", "an override on the command line"),
                fix="use the configuration of this run",
                evidence=evidence,
            )
    fix = "give the run's configuration with --config" if stated is None and not logged.size else None
    causes = (found.reason,) if found.reason else ()
    return cannot_tell("COEFFICIENT", f"the log does not hold it: {why}", evidence=evidence, causes=causes, fix=fix)


def facts_of_coefficient(view: LogView) -> dict[str, object] | None:
    """Value, interval and origin: from an identity if one holds, else as logged, else as configured."""
    found = recover(view)
    if found.resolved:
        assert found.fit is not None
        return {"value": found.fit.value, "lo": found.lo, "hi": found.hi, "from": found.identity}
    if view.coefficient.size:
        values = view.coefficient.values
        return {"value": float(values[-1]), "lo": float(values.min()), "hi": float(values.max()), "from": "logged"}
    if view.settings.beta is not None:
        beta = view.settings.beta
        return {"value": beta, "lo": beta, "hi": beta, "from": view.settings.beta_key}
    return None
