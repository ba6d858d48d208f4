"""The tilt's estimates on all answers of a prompt and on both halves of them, in one pass over the same weights.

What :func:`kleash.forecasting.estimate.estimate_prompts` finds in three calls, from one set of exponentials and without
an array of what each answer left out would leave: equal to rounding, and several times as fast.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from kleash.forecasting.estimate import PromptEstimates, estimate_prompts

__all__ = ["estimate_halved"]

Floats = NDArray[np.float64]

_CELLS = 100_000
"""Numbers in one working array (800 kB): the two or three that are alive at a time stay near a core."""
_FAR = (12.0, 100.0, 1500.0)
"""Nats below the largest weight past which a part is computed about its own largest score.

Rounding grows with that distance times the number of answers: 1500 over their number, between 12 and 100.
"""


def estimate_halved(
    reward: Floats, marked: Floats, inverse_beta: Floats, *, split: NDArray[np.intp], labelled: NDArray[np.bool_]
) -> tuple[PromptEstimates, list[PromptEstimates]]:
    """Reward, KL and gold of the tilt for P prompts of K answers, by all answers and by each half of them.

    Parameters
    ----------
    reward, marked, labelled
        Shape (P, K), as in :func:`kleash.forecasting.estimate.estimate_prompts`; K at least 4.
    inverse_beta
        lambda = 1 / beta, shape (B,), finite.
    split
        Shape (P, K): numbers of a prompt's answers; the first K // 2 are one half, the others the other.

    Returns
    -------
    The whole, and both halves, of which ``label_ess`` is not filled in.

    Notes
    -----
    With w the weights over the largest of all, W their sum and q_i = w_i / (W - w_i), an average T = sum w x / W
    without answer i is T + q_i (T - x_i), and log(W - w_i) = log W - log(1 + q_i). So the mean over i needs sum q,
    sum q x and the product of 1 + q, which lies between 1 and 4 where the answer of the largest weight, left out by a
    sum of its own, is no part of it. A part whose second score lies so far below that rounding would show is left to
    ``estimate_prompts``.
    """
    n_prompts, n_samples = reward.shape
    n_betas = inverse_beta.size
    sides = _sides(reward, marked, labelled, split)
    top = np.maximum(sides[0].reward[:, 0], sides[1].reward[:, 0])
    first = sides[0].reward[:, 0] >= sides[1].reward[:, 0]
    sums = [_Sums.empty(n_prompts, n_betas) for _ in range(3)]
    step = min(max(1, _CELLS // (n_samples * n_betas)), n_prompts)
    work = np.empty((3, step, n_samples - n_samples // 2, n_betas))  # made once: fresh memory costs more than the sums
    with np.errstate(all="ignore"):  # what is no number here is made anew below
        for start in range(0, n_prompts, step):
            at = slice(start, start + step)
            _one_block(
                [side.of(at) for side in sides],
                [part.of(at) for part in sums],
                top[at, None],
                first[at],
                inverse_beta,
                work,
            )
        sizes = (n_samples, *(side.reward.shape[1] for side in sides))
        whole, *parts = (part.estimates(top, inverse_beta, n) for part, n in zip(sums, sizes, strict=True))
        gap = top - np.minimum(*(side.reward[:, 1:].max(axis=1) for side in sides))
        far = gap[:, None] * inverse_beta > np.clip(_FAR[2] / n_samples, *_FAR[:2])
    for b in np.flatnonzero(far.any(axis=0)):
        rows = np.flatnonzero(far[:, b])
        one = inverse_beta[b : b + 1]
        _put(whole, rows, b, estimate_prompts(reward[rows], marked[rows], one, labelled=labelled[rows]))
        for side, part in zip(sides, parts, strict=True):
            _put(part, rows, b, estimate_prompts(side.reward[rows], side.marked[rows], one))
    return whole, parts


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class _Side:
    """A half of the answers, the best first: (P, K_half) each."""

    reward: Floats
    marked: Floats
    labelled: NDArray[np.bool_]

    def of(self, at: slice) -> _Side:
        return _Side(reward=self.reward[at], marked=self.marked[at], labelled=self.labelled[at])


def _sides(reward: Floats, marked: Floats, labelled: NDArray[np.bool_], split: NDArray[np.intp]) -> list[_Side]:
    half = reward.shape[1] // 2
    found = []
    every = np.arange(reward.shape[0])
    for part in (split[:, :half].copy(), split[:, half:].copy()):
        best = np.take_along_axis(reward, part, axis=1).argmax(axis=1)
        part[every, best], part[:, 0] = part[:, 0].copy(), part[every, best].copy()
        rows = every[:, None], part
        found.append(_Side(reward=reward[rows], marked=marked[rows], labelled=labelled[rows]))
    return found


def _put(into: PromptEstimates, rows: NDArray[np.intp], b: np.intp, found: PromptEstimates) -> None:
    into.plain[:, rows, b] = found.plain[..., 0]
    into.corrected[:, rows, b] = found.corrected[..., 0]
    into.ess[rows, b] = found.ess[:, 0]
    into.label_ess[rows, b] = found.label_ess[:, 0]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class _Sums:
    """Sums over some answers of P prompts, with w the weights over the largest of all.

    ``full`` and ``rest``, (P, 3, B): w, w (score - top) and w x, of all and of all but the best. ``odds``, (P, 3, B):
    the same with q for w, of all but the best; ``product`` (P, B) of 1 + q. ``squares`` and ``label_ess``, (P, B).
    """

    full: Floats
    rest: Floats
    odds: Floats
    product: Floats
    squares: Floats
    label_ess: Floats

    @classmethod
    def empty(cls, n_prompts: int, n_betas: int) -> _Sums:
        wide, flat = (n_prompts, 3, n_betas), (n_prompts, n_betas)
        return cls(
            full=np.empty(wide),
            rest=np.empty(wide),
            odds=np.empty(wide),
            product=np.empty(flat),
            squares=np.empty(flat),
            label_ess=np.empty(flat),
        )

    def of(self, at: slice) -> _Sums:
        return _Sums(**{field.name: getattr(self, field.name)[at] for field in dataclasses.fields(self)})

    def estimates(self, top: Floats, inverse_beta: Floats, n: int) -> PromptEstimates:
        """Plain and delete-one estimates of n answers."""
        weight, log_weight = self.full[:, 0], np.log(self.full[:, 0])
        reward, marked = (self._jackknifed(i, n) for i in (1, 2))
        log_left_out = np.log(self.rest[:, 0]) + (n - 1) * log_weight - np.log(self.product)
        log_jackknife = n * (log_weight - np.log(n)) - (n - 1) / n * (log_left_out - n * np.log(n - 1))
        plain_kl = inverse_beta * reward[0] - (log_weight - np.log(n))
        return PromptEstimates(
            plain=np.stack([reward[0] + top[:, None], plain_kl, marked[0]]),
            corrected=np.stack([reward[1] + top[:, None], inverse_beta * reward[1] - log_jackknife, marked[1]]),
            ess=weight**2 / self.squares,
            label_ess=self.label_ess,
        )

    def _jackknifed(self, i: int, n: int) -> tuple[Floats, Floats]:
        """An average, and n of it less n - 1 of its mean over what leaves out one answer each."""
        mean = self.full[:, i] / self.full[:, 0]
        left_out = self.rest[:, i] / self.rest[:, 0] + mean * (n - 1 + self.odds[:, 0]) - self.odds[:, i]
        return mean, n * mean - (n - 1) / n * left_out


def _one_block(
    sides: list[_Side], sums: list[_Sums], top: Floats, first: NDArray[np.bool_], inverse_beta: Floats, work: Floats
) -> None:
    """Fill in the sums of a few prompts: of all answers, and of both halves."""
    whole, *parts = sums
    terms, rows = [], []
    for side, part, room in zip(sides, parts, work, strict=False):
        below = side.reward - top
        w = np.multiply(below[..., None], inverse_beta, out=room[: below.shape[0], : below.shape[1]])
        np.exp(w, out=w)
        row = np.stack([np.ones_like(below), below, side.marked], axis=1)
        np.matmul(row[:, :, 1:], w[:, 1:], out=part.rest)
        np.add(part.rest, row[:, :, :1] * w[:, :1], out=part.full)
        np.einsum("pkb,pkb->pb", w, w, out=part.squares)
        odds = _odds(w[:, 1:], part.full[:, :1], work[2])
        np.matmul(row[:, :, 1:], odds, out=part.odds)
        odds += 1.0
        np.multiply.reduce(odds, axis=1, out=part.product)
        terms.append(w)
        rows.append(row)
    a, b = parts
    np.add(a.full, b.full, out=whole.full)
    np.add(a.squares, b.squares, out=whole.squares)
    whole.rest[:] = np.where(first[:, None, None], a.rest + b.full, a.full + b.rest)
    whole.odds[:], whole.product[:] = 0.0, 1.0
    for w, row, best in zip(terms, rows, (first, ~first), strict=True):
        odds = _odds(w, whole.full[:, :1], work[2])
        odds[best, 0] = 0.0  # the answer of the largest weight
        whole.odds[:] += row @ odds
        odds += 1.0
        whole.product[:] *= np.multiply.reduce(odds, axis=1)
    _label_ess(sides, terms, whole)


def _odds(w: Floats, total: Floats, room: Floats) -> Floats:
    """w / (total - w)."""
    left = np.subtract(total, w, out=room[: w.shape[0], : w.shape[1]])
    return np.divide(w, left, out=left)


def _label_ess(sides: list[_Side], terms: list[Floats], whole: _Sums) -> None:
    """Effective labels; the weights become their squares. Of the halves nobody asks."""
    if all(side.labelled.all() for side in sides):
        whole.label_ess[:] = whole.full[:, 0] ** 2 / whole.squares
        return
    weight, square = np.zeros_like(whole.squares), np.zeros_like(whole.squares)
    for side, w in zip(sides, terms, strict=True):
        known = side.labelled.astype(np.float64)[:, None, :]
        weight += (known @ w)[:, 0]
        w *= w
        square += (known @ w)[:, 0]
    whole.label_ess[:] = np.divide(weight**2, square, out=np.zeros_like(square), where=square > 0)
