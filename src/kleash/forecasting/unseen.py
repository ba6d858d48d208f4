"""Cheats nobody has seen: how much quality one kind of answer could cost that none of the samples shows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit

from kleash import _files
from kleash._threads import in_order
from kleash.forecasting.blocks import blocks
from kleash.forecasting.estimate import plain_prompts
from kleash.forecasting.reweight import Labels
from kleash.samples import Samples

__all__ = [
    "CONFIDENCE",
    "Unseen",
    "breakdown_score",
    "class_loss",
    "mass_below",
    "unseen_cheats",
    "unseen_in_words",
    "worst_loss",
]

Floats = NDArray[np.float64]

CONFIDENCE = 0.95
"""Confidence of the bound on the mass of one unseen kind of answer (the 'rule of three' is -log 0.05 = 3.0)."""

_FULL_PUSH = 600.0  # nats from which even a mass of 1e-200 takes over the prompt: the share is 1 to the last bit
_FLOOR_PRECISION = 5e-4  # relative, of the smallest beta that holds an unseen cheat
_SCORE_BISECTIONS = 40  # of a score known to within 600 beta and the span of the scores
_LINEAR = 1e-9  # nats of push up to which the loss is linear in the mass, all or nothing
_NEAR = 1e-14  # relative step at which the logarithm of a price is found
_CELLS = 200_000  # numbers in one working array
_BISECTIONS = 64  # of a price known to within 2 * 600 + 60 nats


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Unseen:
    """What one unseen kind of cheat could cost along the dial.

    Any ONE kind of answer that none of the N samples shows has, with 95 % confidence, mean reference mass below
    ``mass_below`` (it is not a bound on all unseen kinds together). ``loss`` (shape (B,), gold units) is the largest
    quality it could cost at each ``beta`` if it scored ``reward_max`` and were worth ``gold_min``; ``beta_floor`` the
    smallest beta at which that cannot exceed ``tolerance``: 0 if it cannot at any, infinity if it could even at the
    reference, for want of samples.
    """

    mass_below: float
    reward_max: float
    gold_min: float
    tolerance: float
    beta: Floats
    loss: Floats
    beta_floor: float
    without_sources: Mapping[str, float | None] | None = None
    """``mass_below`` and ``beta_floor`` from the reference's answers alone, where policies drew some too."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data with the keys of the command line's ``unseen``."""
        losses = zip(self.beta.tolist(), _files.finite_or_none(self.loss), strict=True)
        return {
            "confidence": CONFIDENCE,
            "mass_below": self.mass_below,
            "reward_max": self.reward_max,
            "gold_min": self.gold_min,
            "tolerance": self.tolerance,
            "beta_floor": self.beta_floor if np.isfinite(self.beta_floor) else None,
            "losses": [{"beta": beta, "loss": loss} for beta, loss in losses],
            "without_sources": None if self.without_sources is None else dict(self.without_sources),
        }


def mass_below(n_samples: int) -> float:
    """Reference mass that a kind of answer absent from N samples stays below, with 95 % confidence: -log 0.05 / N.

    Examples
    --------
    >>> round(mass_below(2880), 5)
    0.00104
    """
    return float(-np.log1p(-CONFIDENCE) / n_samples)


def worst_loss(log_push: Floats, at_stake: Floats, counts: Floats | NDArray[np.int64]) -> Floats:
    """The largest mean loss that one unseen kind of answer could cause, over all ways to spread it over prompts.

    Parameters
    ----------
    log_push
        Shape (P, B), nats: ``reward_max / beta - log Z`` per prompt, how much likelier than under the reference the
        tilt makes the cheat relative to an average answer; at least 0.
    at_stake
        Shape (P, B), gold units: gold of the tilt minus the gold of the cheat, per prompt; negative values count as 0.
    counts
        Samples per prompt, shape (P,), or what answers of others are worth in them.

    Returns
    -------
    Shape (B,): the mean over prompts of ``share_p * at_stake_p`` at the worst spread.

    Notes
    -----
    With reference mass q_p in prompt p the tilt gives the cheat the share s_p = a q_p / (a q_p + 1 - q_p), a =
    exp(log_push). The kind stays unseen with probability prod (1 - q_p)^K_p <= exp(-sum K_p q_p), so at 95 %
    confidence sum K_p q_p <= -log 0.05. The loss is concave in q, and largest where the marginal losses per expected
    sighting are equal: q_p = (sqrt(G_p a / (nu K_p)) - 1) / (a - 1), cut to [0, 1] (a water-filling in nu). The value
    returned is the Lagrange dual at the nu found, which is never below the true maximum. Proof in docs/methods.md.
    """
    budget = -np.log1p(-CONFIDENCE)
    stake = np.maximum(at_stake, 0.0)
    push = np.clip(log_push, 0.0, _FULL_PUSH)
    weight = counts[:, None].astype(np.float64)
    with np.errstate(divide="ignore"):
        log_value = np.log(stake) - np.log(weight)

    def mass(log_price: Floats) -> Floats:
        """The water-filling at one price per beta, in logs: multiply numerator and denominator by 1 / a."""
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            filled = (np.exp(0.5 * (log_value - log_price - push)) - np.exp(-push)) / -np.expm1(-push)
        linear = push < _LINEAR
        return np.clip(np.where(linear, (log_value > log_price).astype(np.float64), filled), 0.0, 1.0)

    steepest = (log_value + push).max(axis=0)
    high = np.where(np.isfinite(steepest), steepest, 0.0)  # at this price nobody buys
    low = high - 2.0 * push.max(axis=0) - 60.0  # at this price everybody with something at stake is full
    if (push < _LINEAR).any():
        for _ in range(_BISECTIONS):
            middle = 0.5 * (low + high)
            too_much = (weight * mass(middle)).sum(axis=0) > budget
            low, high = np.where(too_much, middle, low), np.where(too_much, high, middle)
    else:
        step = max(1, _CELLS // push.shape[0])
        for start in range(0, high.size, step):
            part = slice(start, start + step)
            high[part] = _price(
                np.ascontiguousarray(log_value[:, part]),
                np.ascontiguousarray(push[:, part]),
                weight[:, 0],
                low[part],
                high[part],
                budget=float(budget),
            )
    q = mass(high)
    with np.errstate(divide="ignore"):
        share = expit(push + logit(q))
    price = np.exp(high)
    dual = (share * stake - price * weight * q).sum(axis=0) + price * budget
    return np.asarray(np.minimum(dual, stake.sum(axis=0)) / push.shape[0])


def _price(log_value: Floats, push: Floats, weight: Floats, low: Floats, high: Floats, *, budget: float) -> Floats:
    """The price at which all of the budget is spent, its logarithm, (B,), between ``low`` and ``high``.

    What is spent is piecewise linear in s = exp(-log price / 2): Newton's step where it stays between the ends known so
    far, else bisection of the logarithm.
    """
    scale = -np.expm1(-push)
    with np.errstate(under="ignore"):
        slope, start = np.exp(0.5 * (log_value - push)) / scale, np.exp(-push) / scale
    at = 0.5 * (low + high)
    open_ = np.arange(high.size)
    for _ in range(_BISECTIONS):
        a, s = slope[:, open_], np.exp(-0.5 * at[open_])
        q = a * s - start[:, open_]
        rising = (q > 0) & (q < 1)
        spent = weight @ np.clip(q, 0.0, 1.0, out=q)
        too_much = spent > budget
        low[open_], high[open_] = np.where(too_much, at[open_], low[open_]), np.where(too_much, high[open_], at[open_])
        with np.errstate(divide="ignore", invalid="ignore"):
            step = -2.0 * np.log(s + (budget - spent) / (weight @ np.where(rising, a, 0.0)))
        inside = (step > low[open_]) & (step < high[open_])
        middle = 0.5 * (low[open_] + high[open_])
        done = inside & (np.abs(step - at[open_]) <= _NEAR * (1.0 + np.abs(step)))
        at[open_] = np.where(inside, step, middle)
        open_ = open_[~done & (middle > low[open_]) & (middle < high[open_])]
        if not open_.size:
            break
    return at


def class_loss(
    samples: Samples, labels: Labels, beta: Floats, plain: Floats, reward_max: float, gold_min: float
) -> Floats:
    """The largest mean loss that one unseen kind of answer could cause at every beta.

    Parameters
    ----------
    samples, labels
        P prompts with their samples, and their gold.
    beta, plain
        Coefficients (B,), and the plain estimates at them, (3, P, B).
    reward_max, gold_min
        What the kind scores and what it is worth.

    Returns
    -------
    Shape (B,), gold units.
    """
    reward, kl, marked = plain
    with np.errstate(over="ignore"):
        log_push = (reward_max - reward) / beta + kl  # reward_max / beta - log Z, as log Z = E r / beta - KL
    gold = np.where(labels.known[:, None], labels.centre + marked, labels.centre + marked[labels.known].mean(axis=0))
    return worst_loss(log_push, gold - gold_min, samples.counts)


def _plain(samples: Samples, labels: Labels, beta: Floats) -> Floats:
    """The plain estimates at other betas than the table's: (3, P, B)."""
    plain = np.empty((3, samples.n_prompts, beta.size))

    def found(block: tuple[NDArray[np.intp], NDArray[np.intp]]) -> tuple[NDArray[np.intp], Floats]:
        part, rows = block
        return part, plain_prompts(samples.reward[rows], labels.marked[rows], 1 / beta)

    for part, here in in_order(found, blocks(samples, beta.size)):
        plain[:, part] = here
    return plain


def breakdown_score(samples: Samples, labels: Labels, beta: float, *, gain: float, gold_min: float) -> float:
    """The largest score at which one unseen kind of answer could not yet cost all of a gain.

    For a judge whose top is not known: a recommendation at ``beta`` holds against any kind of cheat that scores no
    more than this.

    Parameters
    ----------
    samples, labels
        P prompts with their samples, and their gold.
    beta
        The recommendation, reward units per nat.
    gain
        The lower end of the gain there, gold units.
    gold_min
        What the kind is worth.

    Returns
    -------
    Reward units; infinity if no score is high enough to undo the gain, minus infinity if any is.

    Notes
    -----
    The loss at a score rises with the score (its worst spread over prompts, :func:`worst_loss`); bisection.
    """
    at = np.array([beta])
    plain = _plain(samples, labels, at)

    def undone(score: float) -> bool:
        return float(class_loss(samples, labels, at, plain, score, gold_min)[0]) > gain

    low = float(samples.reward.min())
    high = float(samples.reward.max()) + _FULL_PUSH * beta
    if undone(low):
        return -np.inf
    if not undone(high):
        return np.inf
    for _ in range(_SCORE_BISECTIONS):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if undone(middle) else (middle, high)
    return low


def unseen_cheats(
    samples: Samples,
    labels: Labels,
    betas: Floats,
    plain: Floats,
    *,
    reward_max: float,
    gold_min: float,
    tolerance: float,
) -> Unseen:
    """What one unseen kind of cheat could cost at every beta, and from which beta on that is within the tolerance.

    Parameters
    ----------
    samples, labels
        P prompts with their samples, and their gold.
    betas, plain
        Coefficients (B,), and the plain estimates at them, (3, P, B), of :func:`kleash.forecasting.reweight.reweight`.
    reward_max, gold_min
        What the cheat scores and what it is worth.
    tolerance
        Gold units that may be lost.

    Returns
    -------
    Unseen
        A loss per beta in units of gold, and the smallest beta at which it stays within the tolerance.
    """

    def loss_at(single: float) -> float:
        at = np.array([single])
        return float(class_loss(samples, labels, at, _plain(samples, labels, at), reward_max, gold_min)[0])

    along = class_loss(samples, labels, betas, plain, reward_max, gold_min)
    widest = reward_max - float(samples.reward.min())
    return Unseen(
        mass_below=mass_below(samples.n_samples),
        reward_max=float(reward_max),
        gold_min=float(gold_min),
        tolerance=tolerance,
        beta=betas,
        loss=along,
        beta_floor=_floor(loss_at, betas, along, tolerance, widest),
    )


def _floor(loss_at: Callable[[float], float], betas: Floats, along: Floats, tolerance: float, widest: float) -> float:
    """The smallest beta from which up the loss stays within the tolerance; infinity if even the reference's is larger.

    Looked for from the betas (``along`` is their loss) downwards to a millionth of ``widest``, the judge's whole scale.
    """
    if loss_at(np.inf) > tolerance:
        return float(np.inf)
    if widest == 0:  # nothing pushes the cheat: its loss is the same at every beta
        return 0.0
    too_much = np.flatnonzero(along > tolerance)
    if too_much.size:
        low = float(betas[too_much[-1]])
        high = float(betas[too_much[-1] + 1]) if too_much[-1] + 1 < betas.size else max(2 * low, 1e-6 * widest)
    else:
        high = min(float(betas[0]), widest)
        low = 0.5 * high
    while loss_at(high) > tolerance:
        low, high = high, 2 * high
    while loss_at(low) <= tolerance:
        if low < 1e-6 * widest:
            return 0.0
        low, high = 0.5 * low, low
    while high > (1 + _FLOOR_PRECISION) * low:
        middle = float(np.sqrt(low) * np.sqrt(high))
        low, high = (middle, high) if loss_at(middle) > tolerance else (low, middle)
    return high


def unseen_in_words(samples: Samples, labels: Labels | None, objective: str) -> str:
    """What can be said of unseen cheats where their cost cannot be worked out."""
    most = mass_below(samples.n_samples)
    why = "the top of the judge's scale (reward_max) and the worst gold (gold_min) are needed to say what it could cost"
    if labels is None:
        why = "without gold labels nothing can be said of what it could cost"
    if objective != "tilt":
        why = "what it could cost is worked out for the tilt only"
    return f"A kind of cheat that no sample shows may have a reference mass of up to {most:.2g}; {why}."
