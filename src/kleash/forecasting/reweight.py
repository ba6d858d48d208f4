"""Every prompt's estimates at every beta, with the bias of few samples taken out and what may be left of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import xlogy

from kleash._checks import message
from kleash.errors import DataError
from kleash.forecasting.blocks import blocks
from kleash.forecasting.fitted import fitted_gold
from kleash.forecasting.intervals import Answers
from kleash.forecasting.tilted import FEWEST_TO_HALVE, Part, tilted_parts
from kleash.samples import Samples

__all__ = ["Labels", "PolicyWeights", "Progress", "Reweighted", "reweight"]

Floats = NDArray[np.float64]
Progress = Callable[[int, int], None]
"""Called with the number of samples done and the number of all."""
_ROUNDING = 1e-12  # nats: a KL this little below 0 is a difference of rounded sums, not an impossible estimate
_CHANCE = 4.0
_MOST_SPLITS = 8  # random splits into halves, averaged: by then their noise is small beside the drift's own
_HALVED_SAMPLES = 50_000  # samples to halve in all: with many prompts one split is as good as eight


class PolicyWeights(Protocol):
    """The policy's weights on the samples: (P, K) rewards and (B,) betas to (P, K, B), summing to one over K."""

    def __call__(self, reward: Floats, beta: Floats, /) -> Floats: ...  # noqa: D102


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Labels:
    """Gold labels made ready for averaging under any policy.

    Gold of a policy is ``centre + mean of marked under it``, with ``marked = (gold - centre) / probability of a
    label`` on labelled rows and 0 elsewhere (Horvitz and Thompson 1952): the weights stay those of all rows. Where the
    probabilities are given, ``marked = fitted - centre + (gold - fitted) / probability``, the last part on labelled
    rows: what the score tells of gold (:mod:`kleash.forecasting.fitted`) leaves less for the labels to carry, and as no
    label has a part in its own prediction, a wrong fit costs width and no bias (Robins, Rotnitzky and Zhao 1994).
    ``known`` are the prompts it holds for.
    """

    centre: float
    marked: Floats
    labelled: NDArray[np.bool_]
    known: NDArray[np.bool_]

    @classmethod
    def of(cls, samples: Samples) -> Labels | None:
        """Labels of samples; None if there are none. Without probabilities they count as m of K at random."""
        if samples.gold is None or samples.n_gold == 0:
            return None
        labelled = ~np.isnan(samples.gold)
        counts, starts = samples.counts, samples.offsets[:-1]
        m = np.add.reduceat(labelled.astype(np.int64), starts)
        gold = np.where(labelled, samples.gold, 0.0)
        if samples.label_probability is None:
            known = m > 0
            probability = np.repeat(m / counts, counts)
        else:
            known = np.ones(m.size, dtype=bool)
            probability = np.where(labelled, samples.label_probability, 1.0)
        inverse = np.divide(1.0, probability, out=np.zeros_like(probability), where=labelled)
        if samples.label_probability is not None:
            _check_probabilities(inverse)
        weight = np.add.reduceat(inverse, starts)
        with_labels = m > 0
        centre = float((np.add.reduceat(gold * inverse, starts)[with_labels] / weight[with_labels]).mean())
        fitted: Floats | float = centre
        if samples.label_probability is not None:
            fitted = fitted_gold(samples.reward, gold, inverse, samples.offsets, centre=centre)
        marked = fitted - centre + np.where(labelled, (gold - fitted) * inverse, 0.0)
        return cls(centre=centre, marked=marked, labelled=labelled, known=known)


def _check_probabilities(inverse: Floats) -> None:
    """Labels times 1 / probability must count all N answers within chance: 4 standard errors, 1 false alarm in 16,000.

    Variance of the count by the labelled rows: sum (1 - pi) / pi^2.
    """
    total = float(inverse.sum())
    spread = float(np.sqrt(np.sum(np.maximum(inverse - 1.0, 0.0) * inverse)))
    if abs(total - inverse.size) > _CHANCE * spread + 1e-9 * inverse.size:
        got = f"labels that stand for {total:.4g} of {inverse.size}"
        fix = "give the chance with which each row was chosen, or leave the column out if labels are random"
        raise DataError(message("label_probability", expected="labels that stand for all answers", got=got, fix=fix))


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Reweighted:
    """Estimates per prompt; first axis: reward, KL (nats), mean of the marked gold.

    ``plain`` and ``value`` have shape (3, P, B): self-normalised weights alone, and with the bias taken out.
    ``drift`` (3, B) is how much the mean over prompts moves when the samples per prompt are halved, ``left`` (3, B)
    the bias that may be left, by which intervals are widened. ``reference`` is (2, P): mean reward and marked gold of
    the untouched reference. ``ess`` (P, B); ``label_ess`` (B,). ``noise`` (4, B), of reward, KL,
    gold and gain, is the sum over prompts of the variance over answers that the halves show, ((J_1 - J_2) / 2)^2
    averaged over splits; of the tilt only.
    """

    plain: Floats
    value: Floats
    drift: Floats
    left: Floats
    reference: Floats
    ess: Floats
    label_ess: Floats
    noise: Floats


def reweight(
    samples: Samples,
    beta: Floats,
    *,
    labels: Labels | None,
    rng: np.random.Generator,
    weights: PolicyWeights | None = None,
    correction: bool = True,
    deviations: Answers | None = None,
    progress: Progress | None = None,
) -> Reweighted:
    """Estimate reward, KL and gold of the policy at every beta, for every prompt.

    Parameters
    ----------
    samples, labels
        P prompts with their samples, and their gold.
    beta
        Coefficients above 0, shape (B,).
    rng
        Splits the samples of a prompt into halves.
    weights
        The policy's weights; default the tilt softmax(reward / beta), which alone has the delete-one jackknife.
    correction
        False leaves the plain estimates as they are.
    deviations
        Collects delete-one deviations, for intervals with fixed prompts (tilt only).

    Returns
    -------
    Reweighted
        Per prompt and beta, with what intervals and the gate need.

    Notes
    -----
    A jackknife J (delete-one for the tilt; twice the whole minus the mean of two random halves otherwise) removes the
    bias of order 1 / K. What is left shows in the drift D = J(K / 2) - J(K), the mean over prompts of the same
    estimate on random halves: if it falls as 1 / K^a, it is D / (2^a - 1), between 0 and D for every a >= 1. The
    value is J - D / 2, and the interval is widened by |D| / 2 on both sides, so that it covers all of that. With
    fewer than four samples to a prompt D is the correction itself.
    """
    n_prompts, n_betas = samples.n_prompts, beta.size
    plain, value = np.empty((3, n_prompts, n_betas)), np.empty((3, n_prompts, n_betas))
    reference, ess, label_ess = np.empty((2, n_prompts)), np.empty((n_prompts, n_betas)), np.zeros(n_betas)
    moved, noise = np.zeros((3, n_betas)), np.zeros((4, n_betas))
    known = np.ones(n_prompts, dtype=bool) if labels is None else labels.known
    marked = np.zeros(samples.n_samples) if labels is None else labels.marked
    labelled = np.zeros(samples.n_samples, dtype=bool) if labels is None else labels.labelled
    n_splits = int(np.clip(_HALVED_SAMPLES // samples.n_samples, 1, _MOST_SPLITS)) if weights is None else 1
    done = 0
    if weights is None:
        parts = tilted_parts(samples, marked, labelled, 1 / beta, n_splits=n_splits, rng=rng, deviations=deviations)
    else:
        parts = _weighted_parts(samples, marked, labelled, beta, weights=weights, rng=rng)
    for part in parts:
        prompts, jackknife = _side_by_side(part.prompts), part.jackknife
        plain[:, prompts] = part.raw
        if not correction:
            drift = part.raw - jackknife if part.raw_half is None else part.raw_half - part.raw
            value[:, prompts] = part.raw
        else:
            drift = part.raw - jackknife if part.half is None else part.half - jackknife
            np.subtract(jackknife, 0.5 * drift, out=jackknife)
            value[:, prompts] = jackknife
        moved[:2] += drift[:2].sum(axis=1)
        moved[2] += drift[2, known[part.prompts]].sum(axis=0)
        reference[:, prompts] = part.reference
        ess[prompts] = part.ess
        label_ess += part.label_ess.sum(axis=0)
        noise += part.noise
        done += part.prompts.size * int(samples.counts[part.prompts[0]])
        if progress is not None:
            progress(done, samples.n_samples)
    moved /= np.array([[n_prompts], [n_prompts], [max(int(known.sum()), 1)]])
    kl = value[1]
    kl[(kl < 0) & (kl > -_ROUNDING)] = 0.0
    return Reweighted(
        plain=plain,
        value=value,
        drift=moved,
        left=np.abs(moved) * (0.5 if correction else 1.0),
        reference=reference,
        ess=ess,
        label_ess=label_ess,
        noise=noise,
    )


def _side_by_side(prompts: NDArray[np.intp]) -> NDArray[np.intp] | slice:
    """The same prompts as a slice, where they follow each other: numpy copies into it several times as fast."""
    first, last = int(prompts[0]), int(prompts[-1])
    return slice(first, last + 1) if last - first + 1 == prompts.size else prompts


def _weighted_parts(
    samples: Samples,
    marked: Floats,
    labelled: NDArray[np.bool_],
    beta: Floats,
    *,
    weights: PolicyWeights,
    rng: np.random.Generator,
) -> Iterator[Part]:
    """Estimates by weights of any kind, a block of prompts at a time."""
    for prompts, rows in blocks(samples, beta.size):
        r, x = samples.reward[rows], marked[rows]
        halves = _halves(r, x, rng)
        raw, ess, counted = _weighted(r, x, beta, weights, labelled[rows])
        raw_half = _mean_weighted(halves, beta, weights)
        quarter = _mean_weighted([q for h in halves for q in _halves(*h, rng)], beta, weights)
        yield Part(
            prompts=prompts,
            raw=raw,
            jackknife=_delete_one(raw, r, x, beta, weights) if raw_half is None else 2 * raw - raw_half,
            raw_half=raw_half,
            half=None if raw_half is None or quarter is None else 2 * raw_half - quarter,
            reference=np.stack([r.mean(axis=1), x.mean(axis=1)]),
            ess=ess,
            label_ess=counted,
            noise=np.zeros((4, 1)),
        )


def _halves(reward: Floats, marked: Floats, rng: np.random.Generator) -> list[tuple[Floats, Floats]]:
    """The samples of each prompt in two random halves; none if they are too few."""
    n_samples = reward.shape[1]
    if n_samples < FEWEST_TO_HALVE:
        return []
    order = np.argsort(rng.random(reward.shape), axis=1)
    parts = (order[:, : n_samples // 2], order[:, n_samples // 2 :])
    return [(np.take_along_axis(reward, part, axis=1), np.take_along_axis(marked, part, axis=1)) for part in parts]


def _weighted(
    reward: Floats, marked: Floats, beta: Floats, weights: PolicyWeights, labelled: NDArray[np.bool_]
) -> tuple[Floats, Floats, Floats]:
    """Plain estimates (3, P, B), effective sample size and that of the labels, each (P, B)."""
    w = weights(reward, beta)
    n_samples = reward.shape[1]
    means = [
        (w * reward[..., None]).sum(axis=1),
        xlogy(w, w * n_samples).sum(axis=1),
        (w * marked[..., None]).sum(axis=1),
    ]
    chosen = w * labelled[..., None]
    squares = (chosen**2).sum(axis=1)
    label_ess = np.divide(chosen.sum(axis=1) ** 2, squares, out=np.zeros_like(squares), where=squares > 0)
    return np.stack(means), 1 / (w**2).sum(axis=1), label_ess


def _mean_weighted(parts: list[tuple[Floats, Floats]], beta: Floats, weights: PolicyWeights) -> Floats | None:
    if not parts:
        return None
    return np.asarray(np.mean([_weighted(r, x, beta, weights, np.ones(r.shape, bool))[0] for r, x in parts], axis=0))


def _delete_one(raw: Floats, reward: Floats, marked: Floats, beta: Floats, weights: PolicyWeights) -> Floats:
    """The delete-one jackknife, for prompts with too few samples to halve."""
    n_samples = reward.shape[1]
    others = [np.delete(np.arange(n_samples), i) for i in range(n_samples)]
    without = _mean_weighted([(reward[:, rest], marked[:, rest]) for rest in others], beta, weights)
    assert without is not None  # there are at least two samples
    return np.asarray(n_samples * raw - (n_samples - 1) * without)
