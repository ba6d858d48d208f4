"""Gold as far as the judge's scores tell it: what is put in the place of labels that nobody gave."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["fitted_gold"]

Floats = NDArray[np.float64]
_FOLDS = 5
_FEWEST = 40
"""Labels below which nothing is fitted: five coefficients from four fifths of them, six labels each."""
_RIDGE = 1e-3  # of the mean square of a regressor: keeps constant ones (no ties broken, one prompt mean) from mattering


def fitted_gold(reward: Floats, gold: Floats, inverse: Floats, offsets: NDArray[np.int64], *, centre: float) -> Floats:
    """Gold predicted from score and prompt, never from labels of the prompt itself.

    Parameters
    ----------
    reward, gold
        Shape (N,), in prompt order; gold is read where ``inverse`` is above 0.
    inverse
        1 / probability of the label, 0 where there is none.
    offsets
        Where prompts begin and end, shape (P + 1,).
    centre
        What every answer is predicted to have where nothing is fitted, and what the fit bends from.

    Returns
    -------
    ndarray
        Shape (N,).

    Notes
    -----
    Least squares with weights ``inverse`` on 1, z, z^2 (z the score standardised within its prompt), u and u z (u the
    prompt's mean score, standardised over prompts), prompts in five folds, each predicted from the other four.
    """
    labelled = inverse > 0.0
    if labelled.sum() < _FEWEST or offsets.size - 1 < 2 * _FOLDS:
        return np.full(reward.size, centre)
    regressors = _regressors(reward, offsets)
    fold = np.repeat(np.arange(offsets.size - 1) % _FOLDS, np.diff(offsets))
    fitted = np.empty(reward.size)
    for part in range(_FOLDS):
        used = labelled & (fold != part)
        fitted[fold == part] = regressors[fold == part] @ _solved(regressors[used], gold[used] - centre, inverse[used])
    return fitted + centre


def _regressors(reward: Floats, offsets: NDArray[np.int64]) -> Floats:
    counts, starts = np.diff(offsets), offsets[:-1]
    mean = np.add.reduceat(reward, starts) / counts
    apart = reward - np.repeat(mean, counts)
    spread = np.repeat(np.sqrt(np.add.reduceat(apart**2, starts) / counts), counts)
    z = np.divide(apart, spread, out=np.zeros_like(apart), where=spread > 0.0)
    width = float(mean.std())
    u = np.repeat((mean - mean.mean()) / width if width > 0.0 else np.zeros_like(mean), counts)
    return np.stack([np.ones_like(z), z, z**2, u, u * z], axis=1)


def _solved(regressors: Floats, wanted: Floats, weight: Floats) -> Floats:
    gram = regressors.T @ (weight[:, None] * regressors)
    ridge = _RIDGE * np.diag(np.maximum(np.diag(gram), np.finfo(float).tiny))
    return np.asarray(np.linalg.solve(gram + ridge, regressors.T @ (weight * wanted)), dtype=np.float64)
