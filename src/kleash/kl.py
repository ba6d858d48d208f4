"""What a KL number means: the estimators, their reductions, and the gradients they really give.

One convention everywhere: ``delta = logp - ref_logp`` of a sampled token, policy minus reference, in nats. The three
single-sample estimators of KL(policy || reference) are

    k1 = delta        k2 = delta**2 / 2        k3 = exp(-delta) - 1 + delta

k1 and k3 are unbiased when the token was drawn from the policy, k2 is biased, and k3 is never negative. Being unbiased
says nothing about the gradient: what a term does to the policy depends on where it is put, see `kleash.gradients`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np

from kleash import _checks
from kleash.errors import OptionError, ShapeError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Array = NDArray[np.float64]
    Mask = NDArray[np.bool_]

__all__ = [
    "ESTIMATORS",
    "PLACEMENTS",
    "KLEstimate",
    "KLSpec",
    "derivative",
    "estimate",
    "full_kl",
    "k1",
    "k2",
    "k3",
    "sequence_sum",
    "token_mean",
]

Estimator = Literal["k1", "k2", "k3", "abs"]
Kind = Estimator | Literal["full"]
Direction = Literal["policy||reference", "reference||policy"]
Unit = Literal["nats per answer", "nats per token"]
Sampler = Literal["policy", "behavior", "reference", "enumerated", "unknown"]
Placement = Literal["loss", "loss-with-ratio", "reward", "reward-own-token"]
Where = Literal["loss", "loss-with-ratio", "reward", "reward-own-token", "none", "unknown"]

PLACEMENTS: tuple[str, ...] = get_args(Placement)

_SERIES_BELOW = 1e-3  # below this |delta| the Taylor series of k3 is used: five terms leave a relative error of 1e-17


@dataclass(frozen=True, kw_only=True)
class KLSpec:
    """What a KL number is: without these six words two KL numbers cannot be compared.

    Parameters
    ----------
    estimator
        ``k1``, ``k2``, ``k3``, ``abs``, or ``full`` (summed over the whole vocabulary at each position).
    direction
        Whose expectation it is: ``policy||reference`` is the one that gives the tilt, KL(policy || reference).
    unit
        ``nats per answer`` (a sum over the tokens of an answer) or ``nats per token``: 45-fold apart at 45 tokens.
    sampler
        Who drew the tokens; only with ``policy`` are k1 and k3 estimates of KL(policy || reference).
    clamp
        Limits ``(low, high)`` put on ``delta`` before the estimator, or None. A clamped token gets no gradient.
    placement
        Where the number enters training, ``none`` if it is only logged.

    Examples
    --------
    >>> str(KLSpec(estimator="k3", unit="nats per token"))
    'k3 of KL(policy||reference), nats per token, tokens from policy'
    """

    estimator: Kind = "k1"
    direction: Direction = "policy||reference"
    unit: Unit = "nats per answer"
    sampler: Sampler = "policy"
    clamp: tuple[float, float] | None = None
    placement: Where = "unknown"

    def __post_init__(self) -> None:
        _checks.choice(self.estimator, (*ESTIMATORS, "full"), name="estimator")
        kinds = {"direction": Direction, "unit": Unit, "sampler": Sampler, "placement": Where}
        for name, kind in kinds.items():
            _checks.choice(getattr(self, name), get_args(kind), name=name)
        if self.clamp is not None:
            _limits(self.clamp)

    def __str__(self) -> str:
        text = f"{self.estimator} of KL({self.direction}), {self.unit}, tokens from {self.sampler}"
        text += "" if self.clamp is None else f", delta clamped to [{self.clamp[0]:g}, {self.clamp[1]:g}]"
        return text if self.placement in ("unknown", "none") else f"{text}, used in {self.placement}"

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready plain data."""
        return {**vars(self), "clamp": None if self.clamp is None else list(self.clamp)}


@dataclass(frozen=True, kw_only=True)
class KLEstimate:
    """A KL number with its standard error and the `KLSpec` that says what it is.

    ``se`` treats answers as the independent units (tokens of one answer are not independent); None for one answer.
    """

    value: float
    se: float | None
    n_answers: int
    n_tokens: int
    spec: KLSpec

    def __str__(self) -> str:
        error = "" if self.se is None else f" +- {self.se:.2g}"
        return f"{self.value:.6g}{error} ({self.spec}; {self.n_answers} answers, {self.n_tokens} tokens)"

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready plain data."""
        return {**vars(self), "spec": self.spec.to_dict()}


def _limits(clamp: tuple[float, float]) -> tuple[float, float]:
    low, high = (_checks.number(x, name="clamp", infinite=True) for x in clamp)
    if not low < high:
        raise OptionError(_checks.message("clamp", expected="(low, high) with low below high", got=clamp))
    return low, high


def _delta(delta: ArrayLike, clamp: tuple[float, float] | None) -> Array:
    x = np.asarray(delta, dtype=np.float64)
    return x if clamp is None else np.clip(x, *_limits(clamp))


def k1(delta: ArrayLike, *, clamp: tuple[float, float] | None = None) -> Array:
    """The log ratio itself, per token, in nats; unbiased for KL(policy || reference) on the policy's own samples.

    Examples
    --------
    >>> k1([0.5, -0.25]).tolist()
    [0.5, -0.25]
    """
    return _delta(delta, clamp)


def k2(delta: ArrayLike, *, clamp: tuple[float, float] | None = None) -> Array:
    """Half the squared log ratio, per token, in nats: biased as a value, right as a gradient when used as a loss.

    Examples
    --------
    >>> k2([0.5, -0.25]).tolist()
    [0.125, 0.03125]
    """
    return np.square(_delta(delta, clamp)) / 2


def k3(delta: ArrayLike, *, clamp: tuple[float, float] | None = None) -> Array:
    """``exp(-delta) - 1 + delta`` per token, in nats: unbiased on the policy's own samples and never negative.

    Parameters
    ----------
    delta
        Log ratios of any shape; float32 is taken up to float64 before anything is computed.
    clamp
        Limits on ``delta``, as some trainers use. None (the default) clamps nothing.

    Returns
    -------
    float64 array of the same shape: finite, with a finite derivative, for every float32 ``delta`` down to -709. That
    covers all that float32 itself can take the exponential of (88.7). Below -709.78 the value is past the float64 range
    and is infinity, and the derivative minus infinity: no limit is put on it silently, pass ``clamp`` for that.

    Notes
    -----
    The textbook form loses all digits near 0: in float32 it is 5 % off at 1e-3 and 0 at 1e-4. Here
    ``expm1(-delta) + delta`` above 1e-3 and its Taylor series below: relative error below 1e-12 everywhere.

    References
    ----------
    Schulman, J. Approximating KL divergence (2020), joschu.net/blog/kl-approx.html.

    Examples
    --------
    >>> print(k3([1e-6, 1.0, -1.0]))
    [4.99999833e-13 3.67879441e-01 7.18281828e-01]
    """
    x = -_delta(delta, clamp)
    with np.errstate(over="ignore", invalid="ignore"):  # past 709.78 the stated answer is infinity
        direct = np.where(np.isposinf(x), np.inf, np.expm1(x) - x)
        series = x * x * (1 / 2 + x * (1 / 6 + x * (1 / 24 + x * (1 / 120 + x / 720))))
    return np.where(np.abs(x) < _SERIES_BELOW, series, direct)


class Term(NamedTuple):
    """An estimator: its value of a token's ``delta``, the derivative of that, whether the value may be below 0."""

    value: Callable[..., Array]
    slope: Callable[[Array], Array]
    signed: bool = False


ESTIMATORS: dict[str, Term] = {
    "k1": Term(k1, np.ones_like, signed=True),
    "k2": Term(k2, np.positive),
    "k3": Term(k3, lambda delta: -np.expm1(-delta)),
    "abs": Term(lambda delta, *, clamp=None: np.abs(_delta(delta, clamp)), np.sign),
}
"""The single-sample estimators by name: another one is a row here."""


def derivative(delta: ArrayLike, *, estimator: Estimator, clamp: tuple[float, float] | None = None) -> Array:
    """How a token's term moves with its own ``logp``: 1, delta, ``1 - exp(-delta)`` and a sign for k1, k2, k3, abs.

    Finite for k3 down to ``delta = -709``, minus infinity past -709.78, where ``exp(-delta)`` leaves float64.
    Under a clamp the derivative outside the limits is 0 (and finite): those tokens are not pulled back at all.

    Examples
    --------
    >>> derivative([-100.0], estimator="k3", clamp=(-20, 20)).tolist()
    [0.0]
    """
    _checks.choice(estimator, tuple(ESTIMATORS), name="estimator")
    raw, x = np.asarray(delta, dtype=np.float64), _delta(delta, clamp)
    with np.errstate(over="ignore"):
        slope = ESTIMATORS[estimator].slope(x)
    return slope if clamp is None else np.where(x == raw, slope, 0.0)


def full_kl(policy_logits: ArrayLike, reference_logits: ArrayLike) -> Array:
    """KL(policy || reference) over the whole vocabulary, per position, in nats.

    Swap the arguments for the other direction: their order is the direction.

    Parameters
    ----------
    policy_logits, reference_logits
        Shape (..., V): logits or log-probabilities, -inf for tokens that cannot occur. Both are normalised here.

    Returns
    -------
    Shape (...): infinity where the policy can produce a token that the reference cannot.

    Notes
    -----
    Summed over the sampled positions of an answer this has the mean of the summed k1 and never more variance
    (Amini, Vieira, Cotterell 2025, arXiv 2504.10637).

    Examples
    --------
    >>> round(float(full_kl([2, 1, 0, -1], [1, 1, 1, 0])), 12)
    0.298804939667
    """
    p, q = np.asarray(policy_logits, dtype=np.float64), np.asarray(reference_logits, dtype=np.float64)
    _checks.same_shape(policy_logits=p, reference_logits=q)
    log_p, log_q = log_softmax(p), log_softmax(q)
    possible = np.isfinite(log_p) | np.isnan(log_p)
    with np.errstate(invalid="ignore"):
        terms = np.where(possible, np.exp(log_p) * (log_p - log_q), 0.0)
    return np.asarray(terms.sum(axis=-1))


def log_softmax(logits: Array) -> Array:
    if logits.ndim == 0 or logits.shape[-1] == 0:
        raise ShapeError(_checks.message("logits", expected="a last axis of vocabulary size", got=logits.shape))
    top = logits.max(axis=-1, keepdims=True)
    if np.isneginf(top).any():
        raise OptionError(_checks.message("logits", expected="a possible token at every position", got="-inf only"))
    centred = logits - top
    return np.asarray(centred - np.log(np.exp(centred).sum(axis=-1, keepdims=True)))


def _masked(values: ArrayLike, mask: ArrayLike) -> tuple[Array, Mask]:
    x, m = np.asarray(values, dtype=np.float64), np.asarray(mask)
    if not np.isin(m, (0, 1)).all():
        raise OptionError(_checks.message("mask", expected="only 0 and 1", got="other values"))
    if x.ndim != 2:
        raise ShapeError(_checks.message("values", expected="shape (answers, tokens)", got=x.shape))
    _checks.same_shape(values=x, mask=m)
    active = m.astype(bool)
    return np.where(active, x, 0.0), active  # what stands under an inactive mask, NaN included, never leaks


def sequence_sum(values: ArrayLike, mask: ArrayLike) -> Array:
    """Sum over the active tokens of each answer: (N, T) and its mask to (N,). An answer without tokens sums to 0.

    Examples
    --------
    >>> sequence_sum([[1.0, 2.0, float("nan")]], [[1, 1, 0]]).tolist()
    [3.0]
    """
    return np.asarray(_masked(values, mask)[0].sum(axis=1))


def token_mean(values: ArrayLike, mask: ArrayLike, *, per: Literal["batch", "answer"] = "batch") -> float:
    """Mean over active tokens: every token alike (``batch``), or every answer alike (``answer``, a mean of means).

    The two differ whenever answers differ in length, and trainers use both. Answers without an active token are left
    out of the mean of means; when no token at all is active there is no mean, and that is an error, not NaN.

    Examples
    --------
    >>> values, mask = [[2.0, 2.0, 2.0], [8.0, 0.0, 0.0]], [[1, 1, 1], [1, 0, 0]]
    >>> token_mean(values, mask), token_mean(values, mask, per="answer")
    (3.5, 5.0)
    """
    _checks.choice(per, ("batch", "answer"), name="per")
    x, active = _masked(values, mask)
    count = active.sum(axis=1)
    if not count.any():
        raise OptionError(
            _checks.message("mask", expected="an active token", got="none", fix="leave fully masked batches out")
        )
    if per == "batch":
        return float(x.sum() / count.sum())
    return float((x.sum(axis=1)[count > 0] / count[count > 0]).mean())


def estimate(logp: ArrayLike, ref_logp: ArrayLike, mask: ArrayLike, *, spec: KLSpec) -> KLEstimate:
    """The KL number that ``spec`` describes, from sampled tokens, with a standard error over answers.

    Parameters
    ----------
    logp, ref_logp, mask
        Shape (N, T): log-probability of each sampled token under policy and reference, and which tokens count.
    spec
        One of `ESTIMATORS`, policy||reference: samples of the policy give no other direction. With sampler
        ``behavior`` the number is what those tokens give, no estimate of the policy's KL; ``reference`` is refused.

    Returns
    -------
    KLEstimate

    Raises
    ------
    OptionError
        Another estimator, direction or sampler; no answer, or no active token to take a mean over.

    Examples
    --------
    >>> spec = KLSpec(estimator="k1", unit="nats per answer")
    >>> estimate([[-1.0, -2.0], [-1.0, 0.0]], [[-1.5, -2.5], [-1.0, 0.0]], [[1, 1], [1, 0]], spec=spec).value
    0.5
    """
    if spec.estimator == "full" or spec.direction != "policy||reference":
        expected = "k1, k2, k3 or abs of policy||reference"
        raise OptionError(_checks.message("spec", expected=expected, got=str(spec), fix="use full_kl"))
    if spec.sampler not in ("policy", "behavior", "unknown"):
        expected = "tokens that the policy drew (sampler policy, or behavior where it was an older one)"
        raise OptionError(_checks.message("spec", expected=expected, got=spec.sampler, fix="sample from the policy"))
    p, q = np.asarray(logp, dtype=np.float64), np.asarray(ref_logp, dtype=np.float64)
    _checks.same_shape(logp=p, ref_logp=q)
    if p.size == 0:
        raise OptionError(_checks.message("logp", expected="at least one answer with a token", got=f"shape {p.shape}"))
    with np.errstate(invalid="ignore"):  # -inf on both sides under an inactive mask
        terms = ESTIMATORS[spec.estimator].value(p - q, clamp=spec.clamp)
    x, active = _masked(terms, mask)
    sums, count = x.sum(axis=1), active.sum(axis=1).astype(np.float64)
    n = sums.size
    if spec.unit == "nats per answer":
        value, residual, scale = float(sums.mean()), sums - sums.mean(), 1.0
    else:
        value, scale = token_mean(terms, mask), float(count.mean())
        residual = sums - value * count  # the ratio estimator: tokens of one answer move together
    se = float(np.sqrt(np.square(residual).sum() / (n * (n - 1))) / scale) if n > 1 else None
    return KLEstimate(value=value, se=se, n_answers=n, n_tokens=int(count.sum()), spec=spec)
