"""Reweighting reference samples to every beta: per-prompt estimates, and what is left when one sample is taken away.

Per prompt the tilt's weights are ``softmax(reward / beta)`` over all K sampled answers. Self-normalised weights lean
towards the reference (a bias of order 1 / K), which the delete-one jackknife removes to that order.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

__all__ = ["PromptEstimates", "estimate_prompts", "plain_prompts"]

Floats = NDArray[np.float64]

_CELLS = 4_000_000
"""Numbers in one working array (32 MB) past which betas are taken in parts; blocks of prompts are smaller than that."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class PromptEstimates:
    """Estimates of shape (P, B), one per prompt and beta; B betas.

    ``plain`` and ``corrected`` have shape (3, P, B) and hold reward, KL (nats) and the gold numerator (see
    :func:`estimate_prompts`) by self-normalised weights, and after the delete-one jackknife. ``deviations``, if asked
    for, is (3, P, K, B): delete-one estimates minus their mean, in the order of the samples. ``ess`` is the effective
    sample size 1 / sum W^2, and ``label_ess`` that of the labelled samples alone.
    """

    plain: Floats
    corrected: Floats
    ess: Floats
    label_ess: Floats
    deviations: Floats | None = None


def estimate_prompts(
    reward: Floats,
    marked: Floats,
    inverse_beta: Floats,
    *,
    labelled: NDArray[np.bool_] | None = None,
    keep_deviations: bool = False,
) -> PromptEstimates:
    """Reward, KL and gold of the tilt for P prompts of K samples each, at every beta.

    Parameters
    ----------
    reward
        Shape (P, K), reward units, finite; K at least 2.
    marked
        Shape (P, K): the quantity averaged under the tilt beside the reward. For gold known on some rows only this is
        ``(g - g_bar) / probability of a label`` on labelled rows and 0 elsewhere, so that weights stay normalised
        over all rows.
    inverse_beta
        lambda = 1 / beta, shape (B,), finite.
    labelled
        Shape (P, K): samples whose gold is known; default all.
    keep_deviations
        Also return the delete-one deviations (memory P K B).

    Returns
    -------
    PromptEstimates
        Without ``deviations`` unless they are to be kept.

    Notes
    -----
    T = sum W x with W = softmax(lambda r); KL = lambda T(r) - log mean exp(lambda r). Jackknife: K T - (K - 1) mean_i
    T_(-i).

    Leave-one-out sums are taken so that nothing cancels: rows are sorted by reward and shifted by the largest, so
    every sum that leaves out a lower row still holds the weight 1 of the top row and loses at most one bit; the sum
    that leaves out the top row is made anew with the second row as its shift. Cost O(P K B).

    References
    ----------
    Quenouille 1956 (jackknife bias); Chatterjee and Diaconis 2018, arXiv 1511.01437 (exp(KL) samples are needed).
    """
    chunk = max(1, _CELLS // reward.size)
    if inverse_beta.size > chunk:  # one prompt with a great many samples: some betas at a time
        starts = range(0, inverse_beta.size, chunk)
        return _joined(
            [
                estimate_prompts(
                    reward, marked, inverse_beta[i : i + chunk], labelled=labelled, keep_deviations=keep_deviations
                )
                for i in starts
            ]
        )
    n_samples = reward.shape[1]
    order = np.argsort(-reward, axis=1, kind="stable")
    r = np.take_along_axis(reward, order, axis=1)
    x = np.take_along_axis(marked, order, axis=1)[..., None]
    top = _Sums.of(r, x, inverse_beta)
    rest = _Sums.of(r[:, 1:], x[:, 1:], inverse_beta)
    plain = top.estimates(r[:, 0], inverse_beta, n_samples)
    without_top = rest.estimates(r[:, 1], inverse_beta, n_samples - 1)
    without_lower = top.without_lower(x).estimates(r[:, :1], inverse_beta, n_samples - 1)
    left_out = np.concatenate([without_top[:, :, None], without_lower], axis=2)  # (3, P, K, B)
    mean = left_out.mean(axis=2)
    deviations = None
    if keep_deviations:
        back = np.argsort(order, axis=1)[None, :, :, None]
        deviations = np.take_along_axis(left_out - mean[:, :, None], back, axis=2)
    label_ess = ess = top.weight**2 / top.squares
    if labelled is not None and not labelled.all():
        chosen = top.terms * np.take_along_axis(labelled, order, axis=1)[..., None]
        squares = (chosen**2).sum(axis=1)
        label_ess = np.divide(chosen.sum(axis=1) ** 2, squares, out=np.zeros_like(squares), where=squares > 0)
    return PromptEstimates(
        plain=plain,
        corrected=n_samples * plain - (n_samples - 1) * mean,
        ess=ess,
        label_ess=label_ess,
        deviations=deviations,
    )


def plain_prompts(reward: Floats, marked: Floats, inverse_beta: Floats) -> Floats:
    """Reward, KL and gold by self-normalised weights alone, the ``plain`` of :func:`estimate_prompts`: (3, P, B).

    Parameters
    ----------
    reward, marked, inverse_beta
        As there.

    Returns
    -------
    Reward in its units, KL in nats, the mean of ``marked``.
    """
    top = reward.max(axis=1, keepdims=True)
    below = reward - top
    with np.errstate(over="ignore"):  # to a weight of exp(-inf) = 0
        terms = np.exp(below[..., None] * inverse_beta)
    sums = np.stack([np.ones_like(below), below, marked], axis=1) @ terms  # (P, 3, B)
    weight, shifted = sums[:, 0], sums[:, 1] / sums[:, 0]
    kl = inverse_beta * shifted - np.log(weight / reward.shape[1])
    return np.stack([shifted + top, kl, sums[:, 2] / weight])


def _joined(parts: list[PromptEstimates]) -> PromptEstimates:
    """Estimates at some betas after those at others."""
    deviations = [part.deviations for part in parts if part.deviations is not None]
    return PromptEstimates(
        plain=np.concatenate([part.plain for part in parts], axis=-1),
        corrected=np.concatenate([part.corrected for part in parts], axis=-1),
        ess=np.concatenate([part.ess for part in parts], axis=-1),
        label_ess=np.concatenate([part.label_ess for part in parts], axis=-1),
        deviations=np.concatenate(deviations, axis=-1) if deviations else None,
    )


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class _Sums:
    """Sums over samples with weights exp(lambda (r - r_0)), r_0 the largest reward: (P, B), or (P, K - 1, B)."""

    terms: Floats  # the weights themselves, (P, K, B)
    below: Floats  # r - r_0 <= 0, (P, K, 1)
    weight: Floats
    shifted: Floats  # sum w (r - r_0)
    marked: Floats  # sum w x
    squares: Floats  # sum w^2

    @classmethod
    def of(cls, r: Floats, x: Floats, inverse_beta: Floats) -> _Sums:
        below = (r - r[:, :1])[..., None]
        with np.errstate(over="ignore"):  # to a weight of exp(-inf) = 0
            terms = np.exp(below * inverse_beta)
        return cls(
            terms=terms,
            below=below,
            weight=terms.sum(axis=1),
            shifted=(terms * below).sum(axis=1),
            marked=(terms * x).sum(axis=1),
            squares=(terms * terms).sum(axis=1),
        )

    def without_lower(self, x: Floats) -> _Sums:
        """The sums that leave out row i, for i = 1..K-1."""
        w, below = self.terms[:, 1:], self.below[:, 1:]
        return dataclasses.replace(
            self,
            weight=self.weight[:, None] - w,
            shifted=self.shifted[:, None] - w * below,
            marked=self.marked[:, None] - w * x[:, 1:],
        )

    def estimates(self, largest: Floats, inverse_beta: Floats, n_samples: int) -> Floats:
        """Reward, KL and gold numerator from the sums, stacked on a new first axis."""
        shifted = self.shifted / self.weight
        kl = inverse_beta * shifted - np.log(self.weight / n_samples)
        return np.stack([shifted + largest[..., None], kl, self.marked / self.weight])
