"""The gradients that KL terms really give: each estimator in each place, exactly, on worlds small enough to enumerate.

An estimator that is unbiased as a value may have a gradient that is zero, that of another divergence, or one that
points uphill; which, depends on whether it stands in the loss or in the reward.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, get_args

import numpy as np

from kleash import _checks
from kleash.errors import OptionError, ShapeError
from kleash.kl import ESTIMATORS, PLACEMENTS, Direction, Estimator, Placement, derivative, log_softmax

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Array = NDArray[np.float64]
    Mask = NDArray[np.bool_]

__all__ = ["TokenWorld", "expected_gradient", "kl_gradient"]


@dataclass(frozen=True, kw_only=True)
class TokenWorld:
    """Every answer of a world small enough to enumerate, token by token: a tabular autoregressive policy lives on it.

    Parameters
    ----------
    prefix, token
        Shape (S, T): for each of the S answers, the row of the logits table used at each position, and the token
        drawn there.
    mask
        Shape (S, T): which positions exist; answers may have different lengths.
    n_prefixes, vocabulary
        Shape of the logits tables, (n_prefixes, vocabulary).
    """

    prefix: NDArray[np.int64]
    token: NDArray[np.int64]
    mask: Mask = field(repr=False)
    n_prefixes: int
    vocabulary: int

    @classmethod
    def full(cls, *, vocabulary: int, length: int) -> TokenWorld:
        """All ``vocabulary ** length`` answers, with own logits for every prefix, prefixes in order of length.

        Examples
        --------
        >>> world = TokenWorld.full(vocabulary=3, length=3)
        >>> world.token.shape, world.n_prefixes
        ((27, 3), 13)
        """
        v = _checks.integer(vocabulary, name="vocabulary", at_least=1)
        t = _checks.integer(length, name="length", at_least=1)
        if v**t > 1_000_000:
            raise OptionError(_checks.message("TokenWorld", expected="at most 1e6 answers", got=f"{v}**{t}"))
        token = np.stack(np.unravel_index(np.arange(v**t), (v,) * t), axis=1).astype(np.int64)
        prefix, value, start = np.zeros_like(token), np.zeros(v**t, dtype=np.int64), 0
        for i in range(t):
            prefix[:, i] = start + value
            start, value = start + v**i, value * v + token[:, i]
        mask = np.ones(token.shape, dtype=bool)
        return cls(prefix=prefix, token=token, mask=mask, n_prefixes=start, vocabulary=v)

    def log_probabilities(self, logits: ArrayLike) -> Array:
        """Log-probability of every token of every answer, shape (S, T), 0 where an answer has no such position."""
        table = np.asarray(logits, dtype=np.float64)
        if table.shape != (self.n_prefixes, self.vocabulary):
            expected = f"shape ({self.n_prefixes}, {self.vocabulary})"
            raise ShapeError(_checks.message("logits", expected=expected, got=table.shape))
        return np.where(self.mask, log_softmax(table)[self.prefix, self.token], 0.0)

    def _score(self, logits: Array, weights: Array) -> Array:
        """Sum of weights (S, T) times the gradient of each token's logp with respect to the logits."""
        cell = self.prefix * self.vocabulary + self.token
        size = self.n_prefixes * self.vocabulary
        total = np.bincount(cell.ravel(), weights=np.where(self.mask, weights, 0.0).ravel(), minlength=size)
        total = total.reshape(self.n_prefixes, self.vocabulary)
        return np.asarray(total - total.sum(axis=1, keepdims=True) * np.exp(log_softmax(logits)))


def expected_gradient(
    world: TokenWorld, logits: ArrayLike, reference_logits: ArrayLike, *, estimator: Estimator, placement: Placement
) -> Array:
    """The gradient a KL term really gives, in expectation over the policy's own samples; exact.

    Use it to see what a trainer's combination of estimator and placement descends. On-policy, one update per batch.

    Parameters
    ----------
    world
        The enumerable answers.
    logits, reference_logits
        Shape (n_prefixes, vocabulary).
    estimator
        ``k1``, ``k2``, ``k3`` or ``abs``, per token.
    placement
        ``loss``: added to the loss and differentiated through logp. ``loss-with-ratio``: multiplied by the importance
        ratio of the token, which is 1 in value and is differentiated too. ``reward``: subtracted from the token's
        reward, every token charged with its own and all later terms (reward-to-go). ``reward-own-token``: in the
        reward, but each token charged with its own term only.

    Returns
    -------
    Shape (n_prefixes, vocabulary): the gradient of the penalty (to be descended) with respect to the logits.

    Notes
    -----
    A sum over answers of P(answer) c_t grad log pi(token_t | prefix_t), with c_t = k'(delta_t) for a loss,
    k'(delta_t) + k(delta_t) with the ratio, and in the reward the sum over u >= t of k(delta_u), or k(delta_t) alone.
    At one position k1 as a loss gives 0, k2 as a loss and k1 in the reward give the gradient of
    KL(policy || reference), k3 as a loss that of KL(reference || policy), and k3 in the reward the difference of the
    two, which can point uphill.

    References
    ----------
    Tang, Munos, 2025, arXiv 2506.09477; Liu et al., 2025, arXiv 2510.01555; identities over sequences also in
    github.com/khanhptnk/kl-penalty-in-grpo.

    Examples
    --------
    >>> world = TokenWorld.full(vocabulary=3, length=1)
    >>> policy, reference = np.log([[0.6, 0.3, 0.1]]), np.log([[0.5, 0.3, 0.2]])
    >>> print(expected_gradient(world, policy, reference, estimator="k3", placement="reward").round(6) + 0.0)
    [[-0.014654 -0.012023  0.026677]]
    """
    _checks.choice(estimator, tuple(ESTIMATORS), name="estimator")
    _checks.choice(placement, PLACEMENTS, name="placement")
    log_p = world.log_probabilities(logits)
    delta = log_p - world.log_probabilities(reference_logits)
    value = np.where(world.mask, ESTIMATORS[estimator].value(delta), 0.0)
    if placement == "reward":
        weight = np.flip(np.cumsum(np.flip(value, 1), 1), 1)
    elif placement == "reward-own-token":
        weight = value
    else:
        weight = derivative(delta, estimator=estimator) + (value if placement == "loss-with-ratio" else 0.0)
    probability = np.exp(log_p.sum(axis=1, keepdims=True))
    return world._score(np.asarray(logits, dtype=np.float64), probability * weight)


def kl_gradient(
    world: TokenWorld, logits: ArrayLike, reference_logits: ArrayLike, *, direction: Direction = "policy||reference"
) -> Array:
    """The gradient of the true KL between whole-answer distributions, to hold `expected_gradient` against.

    Examples
    --------
    >>> world = TokenWorld.full(vocabulary=3, length=1)
    >>> policy, reference = np.log([[0.6, 0.3, 0.1]]), np.log([[0.5, 0.3, 0.2]])
    >>> print(kl_gradient(world, policy, reference).round(6))
    [[ 0.085346 -0.012023 -0.073323]]
    """
    _checks.choice(direction, get_args(Direction), name="direction")
    log_p, log_q = world.log_probabilities(logits), world.log_probabilities(reference_logits)
    total_p, total_q = log_p.sum(axis=1, keepdims=True), log_q.sum(axis=1, keepdims=True)
    reverse = direction == "policy||reference"
    weight = np.exp(total_p) * (total_p - total_q) if reverse else -np.exp(total_q)
    return world._score(np.asarray(logits, dtype=np.float64), np.broadcast_to(weight, log_p.shape))
