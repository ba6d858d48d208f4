"""Estimates of the tilt from answers of several policies at once, where each policy's density on each answer is known.

The answers of a prompt are a sample of the mixture of their sources. With its density relative to the reference, m,
they speak of the tilt by the weights ``exp(reward / beta) / m``: the balance heuristic.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

__all__ = ["Drawn", "MixtureEstimates", "estimate_mixture", "log_mixture"]

Floats = NDArray[np.float64]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Drawn:
    """Answers to P prompts, n_s of each of S sources to every prompt, in the order of the sources.

    ``reward`` and ``marked`` have shape (P, K); ``label_weight`` (P, K) is what a label stands for, 0 without one;
    ``log_m`` (P, K) the mixture's log density relative to the reference; ``log_ratio`` (P, K, S) that of each source,
    NaN where it is not known; ``sizes`` the n_s, all at least 1; ``anchored`` whether the reference is among them;
    ``factor`` (K,) by how much an answer stands for more than itself, where some were left out.
    """

    reward: Floats
    marked: Floats
    label_weight: Floats
    log_m: Floats
    log_ratio: Floats
    sizes: tuple[int, ...]
    anchored: bool
    factor: Floats

    @property
    def starts(self) -> NDArray[np.intp]:
        """Where the answers of each source begin, shape (S,)."""
        return np.concatenate([[0], np.cumsum(self.sizes)[:-1]]).astype(np.intp)

    def halves(self, rng: np.random.Generator) -> list[Drawn]:
        """The answers of each source to each prompt in two random halves; none if some source has fewer than four."""
        if min(self.sizes) < 4:
            return []
        parts: list[list[NDArray[np.intp]]] = [[], []]
        for start, size in zip(self.starts, self.sizes, strict=True):
            order = start + np.argsort(rng.random((self.reward.shape[0], size)), axis=1)
            parts[0].append(order[:, : size // 2])
            parts[1].append(order[:, size // 2 :])
        return [self._some(part) for part in parts]

    def _some(self, part: list[NDArray[np.intp]]) -> Drawn:
        rows = np.concatenate(part, axis=1)
        sizes = tuple(piece.shape[1] for piece in part)
        arrays = {
            name: np.take_along_axis(getattr(self, name), rows, axis=1)
            for name in ("reward", "marked", "label_weight", "log_m")
        }
        return dataclasses.replace(
            self,
            **arrays,  # type: ignore[arg-type]
            log_ratio=np.take_along_axis(self.log_ratio, rows[..., None], axis=1),
            sizes=sizes,
            factor=np.repeat([n / m for n, m in zip(self.sizes, sizes, strict=True)], sizes),
        )


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class MixtureEstimates:
    """Estimates of shape (P, B), one per prompt and beta.

    ``plain`` and ``corrected`` (3, P, B) hold reward, KL to the reference (nats) and the gold numerator; ``spent``
    (P, B) is the plain KL to the mixture, ``distance`` (S, P, B) that to each source (NaN where its density is not
    known on an answer), ``share`` (S, P, B) each source's share of the weight. ``ess`` and ``label_ess`` as in
    :class:`kleash.forecasting.estimate.PromptEstimates`. ``deviations`` (3, P, K, B), scaled so that their sum of
    squares times (K - 1) / K is the jackknife's variance.
    """

    plain: Floats
    corrected: Floats
    spent: Floats
    distance: Floats
    share: Floats
    ess: Floats
    label_ess: Floats
    deviations: Floats | None = None


def log_mixture(log_ratio: Floats, sizes: tuple[int, ...]) -> Floats:
    """log m, m = sum over sources of n_s / n exp(log_ratio_s), for log ratios (..., S): shape (...)."""
    share = np.asarray(sizes, dtype=np.float64) / sum(sizes)
    return np.asarray(logsumexp(log_ratio, axis=-1, b=share))


def estimate_mixture(drawn: Drawn, inverse_beta: Floats, *, keep_deviations: bool = False) -> MixtureEstimates:
    """Reward, KL and gold of the tilt for P prompts, at every beta.

    Parameters
    ----------
    drawn
        The answers, with their densities.
    inverse_beta
        lambda = 1 / beta, shape (B,), finite; 0 is the reference.
    keep_deviations
        Also return the delete-one deviations (memory P K B).

    Returns
    -------
    MixtureEstimates

    Notes
    -----
    With w = exp(lambda r) / m: T = sum w x / sum w, and KL = lambda T(r) - log Z. Where the reference is among the
    sources, Z = sum w / sum (1 / m): every 1 / m is then at most n / n_reference, and dividing by their sum removes
    noise. From policies alone 1 / m has no bound, and Z = sum w / n as it is.

    The jackknife is stratified: leaving out an answer of source s, the others of that source stand for n_s / (n_s - 1)
    of themselves each. J = T + sum_s (n_s - 1) (T - mean over the answers of s of T_(-i)); a source with a single
    answer is not jackknifed. No sum is taken by subtracting nearly equal ones: all weights are relative to the
    largest, which stays in every sum but the one without it, made anew.

    References
    ----------
    Veach and Guibas 1995; Owen and Zhou 2000, JASA 95:135 (balance heuristic).
    """
    log_weight = drawn.reward[..., None] * inverse_beta + (np.log(drawn.factor) - drawn.log_m)[..., None]
    top = log_weight.argmax(axis=1, keepdims=True)
    sums = _Sums.of(drawn, log_weight, top)
    plain = sums.estimates(inverse_beta)
    anchor = plain[1] - inverse_beta * plain[0]  # minus log Z
    sizes = np.asarray(drawn.sizes)
    left_out = _without_one(drawn, log_weight, top, sums, inverse_beta)  # (3, P, K, B)
    means = np.add.reduceat(left_out, drawn.starts, axis=2) / sizes[:, None]  # (3, P, S, B)
    corrected = plain + ((sizes - 1)[:, None] * (plain[:, :, None] - means)).sum(axis=2)
    deviations = None
    if keep_deviations:
        n = drawn.reward.shape[1]
        scale = np.sqrt((1 - 1 / sizes) / (1 - 1 / n))
        deviations = (left_out - np.repeat(means, sizes, axis=2)) * np.repeat(scale, sizes)[:, None]
    mean_log = np.einsum("pkb,pks->spb", sums.terms, drawn.log_ratio) / sums.weight
    to_mixture = np.einsum("pkb,pk->pb", sums.terms, drawn.log_m) / sums.weight
    towards = inverse_beta * plain[0] + anchor
    labels = sums.terms * drawn.label_weight[..., None]
    squares = (labels**2).sum(axis=1)
    return MixtureEstimates(
        plain=plain,
        corrected=corrected,
        spent=towards - to_mixture,
        distance=towards - mean_log,
        share=np.moveaxis(sums.by_source[0] / sums.weight[:, None], 1, 0),
        ess=sums.weight**2 / (sums.terms**2).sum(axis=1),
        label_ess=np.divide(labels.sum(axis=1) ** 2, squares, out=np.zeros_like(squares), where=squares > 0),
        deviations=deviations,
    )


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class _Sums:
    """Sums over answers with weights w relative to the largest.

    ``terms`` (P, K, B) are the weights; ``by_source`` (3, P, S, B) holds sum w, sum w (r - r_0) and sum w x of each
    source; ``log_top`` (P, B) is the logarithm of the largest weight, ``highest`` (P, 1) is r_0, the largest reward;
    ``mass`` what sum w is divided by for Z: a (P, 1) sum of 1 / m, or the number of answers.
    """

    terms: Floats
    by_source: Floats
    log_top: Floats
    highest: Floats
    mass: Floats

    @classmethod
    def of(cls, drawn: Drawn, log_weight: Floats, top: NDArray[np.intp]) -> _Sums:
        """All sums of answers with these log weights, (P, K, B), the largest at ``top``, (P, 1, B)."""
        log_top = np.take_along_axis(log_weight, top, axis=1)
        with np.errstate(under="ignore"):
            terms = np.exp(log_weight - log_top)
        highest = drawn.reward.max(axis=1, keepdims=True)
        below = (drawn.reward - highest)[..., None]
        parts = [np.add.reduceat(values, drawn.starts, axis=1) for values in _marked(terms, below, drawn.marked)]
        return cls(
            terms=terms,
            by_source=np.stack(parts),
            log_top=log_top[:, 0],
            highest=highest,
            mass=_mass(drawn).sum(axis=1),
        )

    @property
    def weight(self) -> Floats:
        """Sum of the weights, (P, B)."""
        return np.asarray(self.by_source[0].sum(axis=1))

    def estimates(self, inverse_beta: Floats) -> Floats:
        """Reward, KL and gold numerator, (3, P, B)."""
        return _estimates(self.by_source.sum(axis=2), self.mass, self.log_top, self.highest, inverse_beta)


def _marked(terms: Floats, below: Floats, marked: Floats) -> tuple[Floats, Floats, Floats]:
    return terms, terms * below, terms * marked[..., None]


def _mass(drawn: Drawn) -> Floats:
    """What each answer adds to the total that Z is relative to: 1 / m where that is bounded, else 1; (P, K, 1)."""
    mass = np.exp(-drawn.log_m) if drawn.anchored else np.ones_like(drawn.log_m)
    return np.asarray((mass * drawn.factor)[..., None])


def _estimates(sums: Floats, mass: Floats, log_top: Floats, highest: Floats, inverse_beta: Floats) -> Floats:
    """Reward, KL and gold numerator from sums over answers, (3, ..., B), stacked on a new first axis."""
    weight, shifted, marked = sums
    reward = shifted / weight + highest
    kl = inverse_beta * reward - (np.log(weight / mass) + log_top)
    return np.stack([reward, kl, marked / weight])


def _without_one(drawn: Drawn, log_weight: Floats, top: NDArray[np.intp], sums: _Sums, inverse_beta: Floats) -> Floats:
    """Estimates that leave out one answer, for each of them: (3, P, K, B)."""
    sizes = np.asarray(drawn.sizes)
    more = np.where(sizes > 1, sizes / np.maximum(sizes - 1, 1), 1.0)  # a source with one answer keeps it
    gone = np.repeat(sizes > 1, sizes).astype(np.float64)[:, None]
    more_rows = np.repeat(more, sizes)[:, None]
    below = (drawn.reward - sums.highest)[..., None]
    values = np.stack([part * gone for part in _marked(sums.terms, below, drawn.marked)])  # (3, P, K, B)
    total = sums.by_source.sum(axis=2, keepdims=True)
    mine = np.repeat(sums.by_source, sizes, axis=2)
    left = (total - mine) + more_rows * (mine - values)
    mass = _mass(drawn)
    mass_of = np.repeat(np.add.reduceat(mass, drawn.starts, axis=1), sizes, axis=1)
    mass_left = mass.sum(axis=1, keepdims=True) - mass_of + more_rows * (mass_of - mass * gone)
    with np.errstate(divide="ignore", invalid="ignore"):  # the row without the largest weight is made anew below
        result = _estimates(left, mass_left, sums.log_top[:, None], sums.highest[..., None], inverse_beta)
    anew = _without_top(drawn, log_weight, top, more, inverse_beta, np.take_along_axis(mass_left[..., 0], top[:, 0], 1))
    for quantity, values_anew in zip(result, anew, strict=True):
        np.put_along_axis(quantity, top, values_anew[:, None], axis=1)
    return np.asarray(result)


def _without_top(
    drawn: Drawn, log_weight: Floats, top: NDArray[np.intp], more: Floats, inverse_beta: Floats, mass: Floats
) -> Floats:
    """Estimates without the answer of the largest weight, (3, P, B); with it where it is its source's only one."""
    which = np.repeat(np.arange(len(drawn.sizes)), drawn.sizes)
    source = which[top]  # (P, 1, B)
    alone = np.asarray(drawn.sizes)[source] == 1
    rest = log_weight + np.where(which[:, None] == source, np.log(more)[source], 0.0)
    np.put_along_axis(rest, top, np.where(alone, np.take_along_axis(rest, top, axis=1), -np.inf), axis=1)
    log_top = rest.max(axis=1)
    with np.errstate(under="ignore"):
        terms = np.exp(rest - log_top[:, None])
    highest = drawn.reward.max(axis=1, keepdims=True)
    below = (drawn.reward - highest)[..., None]
    sums = np.stack([part.sum(axis=1) for part in _marked(terms, below, drawn.marked)])
    return _estimates(sums, mass, log_top, highest, inverse_beta)
