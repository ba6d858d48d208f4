"""How far answers of several sources reach: the gate's rule where the reference's own does not apply."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kleash.forecasting.effective import Effective
from kleash.forecasting.gate import FEWEST_LABELS, tail_status
from kleash.forecasting.pooled import Pooled
from kleash.forecasting.tail import Tail

__all__ = ["kept_status", "looser", "reach_status", "worst"]

Floats = NDArray[np.float64]

_OK_MARGIN, _USABLE_MARGIN = 2.5, 1.0
"""Nats short of log n up to which a row is ``ok``, and is shown: 12 effective answers to a prompt, and 1 / e of one."""
_FEW = 0.5
"""... or half of log(n / 2) nats, if that is more: the reference's own rule, for fewer than 74 answers to a prompt."""
_TIGHTER = 1.2
"""How much tighter than the source's own beta a row may be where nothing but a policy speaks of it.

At 4/3 rows of the recipes from the policy at .27 cover KL in 77 % of fresh redraws.
"""
_AS_LOOSE = 0.9  # of a source's own beta: so near it the weights hardly grow with the score, whatever its tail
_COLLAPSED = 0.1  # share of a row's weight from sources whose answers score all alike, or that drifted too far
_ORDER = ("ok", "weak", "beyond")


def worst(*statuses: NDArray[np.str_] | str) -> NDArray[np.str_]:
    """The worst of several statuses, row by row."""
    ranks = [np.vectorize(_ORDER.index)(status) for status in statuses]
    return np.asarray(np.asarray(_ORDER)[np.max(np.broadcast_arrays(*ranks), axis=0)])


def looser(beta: Floats, effective: Sequence[Effective | None]) -> NDArray[np.bool_]:
    """Which betas, (B,), are looser than every source, so that their weights grow with the score."""
    loosest = min((found.beta for found in effective if found is not None and found.beta is not None), default=np.inf)
    return np.asarray(beta < _AS_LOOSE * loosest)


def reach_status(beta: Floats, pooled: Pooled, effective: Sequence[Effective | None], tail: Tail) -> NDArray[np.str_]:
    """``ok``, ``weak`` or ``beyond`` by reach and tail, for B betas and, last, the reference itself.

    Parameters
    ----------
    beta
        Shape (B,).
    pooled
        The estimates, with the KL from the mixture to each target.
    effective
        Of each source; None for the reference.
    tail
        Of the scores of each source's answers; light where the judge's top is known.

    Returns
    -------
    Shape (B + 1,).

    Notes
    -----
    The KL from the mixture of a pool's n answers to a prompt may be log n - 2.5 nats (or log(n / 2) / 2) for ``ok`` and
    log n - 1 to be shown. Back towards the reference from policies alone the weights exp(-log ratio) have no bound, and
    the samples do not show what they miss: ``ok`` only up to 6/5 of the effective beta, or where the policy is so near
    the reference that its own KL is at most half of log n - 2.5. Measured in docs/sources.md.

    A heavy tail of the scores closes the rows that are looser than every source; where the judge's top is known, it is
    the answers at the top that were missed that count (:func:`kleash.forecasting.counted.missed_top`). For the others
    the weights exp(r / beta) / m do not grow with the score, whatever its tail. A row that rests on a source whose
    answers score all alike is weak.
    """
    at = np.append(beta, np.inf)
    limit = np.maximum(pooled.log_n - _OK_MARGIN, _FEW * (pooled.log_n - np.log(2.0)))
    far = pooled.spent > limit
    for pool, counts in zip(pooled.pools, pooled.weight, strict=True):
        if pool.anchored:
            continue
        nearest = [effective[s] for s in pool.sources]
        kl = min(found.kl for found in nearest if found is not None)
        betas = [found.beta for found in nearest if found is not None and found.beta is not None]
        near = kl <= 0.5 * (pooled.log_n - _OK_MARGIN)
        far |= (counts > 0) & ~near & (at > _TIGHTER * max(betas, default=0.0))
    gone = [found is not None and (found.collapsed or found.drifted) for found in effective]
    far |= pooled.share[gone].sum(axis=0) > _COLLAPSED
    status = np.where(pooled.spent > pooled.log_n - _USABLE_MARGIN, "beyond", np.where(far, "weak", "ok"))
    return worst(status, np.where(looser(at, effective), tail_status(tail), "ok"))


def kept_status(
    beta: Floats, *, spent: Floats, log_n: float, near: Effective, tail: Tail, label_ess: Floats | None
) -> NDArray[np.str_]:
    """``ok``, ``weak`` or ``beyond`` of rows in which a source's drift is kept, shape (B,).

    Parameters
    ----------
    beta
        Shape (B,).
    spent
        Mean KL from the source to each row's policy, (B,), nats: all that its answers are reweighted by.
    log_n
        Mean log of the source's answers per prompt.
    near
        How near the source is to a tilt.
    tail
        Of the scores of each source's answers.
    label_ess
        Effective labels, (B,); None without gold.

    Returns
    -------
    Shape (B,).
    """
    limit = max(log_n - _OK_MARGIN, _FEW * (log_n - np.log(2.0)))
    weak = (spent > limit) | near.collapsed | (beta > _TIGHTER * (near.beta or 0.0))
    if label_ess is not None:
        weak |= label_ess < FEWEST_LABELS
    status = np.where(spent > log_n - _USABLE_MARGIN, "beyond", np.where(weak, "weak", "ok"))
    return worst(status, np.where(looser(beta, [near]), tail_status(tail), "ok"))
