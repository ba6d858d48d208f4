"""A kind of answer that nobody shows: how many answers of the reference those of policies are worth against it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kleash.forecasting.effective import Effective
from kleash.forecasting.reweight import Labels
from kleash.samples import Samples

__all__ = ["MOVED", "missed_top", "worth"]

Floats = NDArray[np.float64]

_BUDGET = -np.log(0.05)  # of the bound at 95 % confidence: expected sightings of a kind that was not seen
_SPREADS = 2.0  # drifts below the fitted tilt that a source's density of the kind may lie
_FULL_PUSH = 600.0  # nats from which a mass of 1e-200 takes over the prompt
_MEDIAN_OF_NONE, _MEDIAN_OF_ONE = float(np.log(2.0)), 1.678
"""Expected sightings at which none, or at most one, would be seen in every other draw."""
_PILED_UP = 10  # answers that share the largest score: the scale ends there
MOVED = 1.5
"""Half-widths by which a class at the judge's top that was missed may move a row that is still ``ok``.

By trial on the recipes: rows ``ok`` from one policy's answers cover reward, gold and KL in 93 to 94 % of redraws, in
90 to 93 % without the rule; rows that miss gold by more than .3 outside their interval fall from 1.7 to 0.5 % of
those ok.
"""


def worth(samples: Samples, effective: Sequence[Effective | None], score: float) -> Floats:
    """Answers of the reference that each prompt's answers are worth, against an unseen kind of answer of some score.

    Parameters
    ----------
    samples
        With sources.
    effective
        Of each source, None for the reference.
    score
        What the kind scores, reward units.

    Returns
    -------
    Shape (P,).

    Notes
    -----
    A kind of reference mass p that the judge likes as training could have shown has, in a source near the tilt at
    beta_1, the mass p A / (1 - p + p A), A = exp(score / beta_1 - log Z - 2 sigma): two drifts less than the tilt
    would give it. The chance that no one of n answers shows it is (1 + A p / (1 - p))^-n. For all p at which that can
    be above 5 % its logarithm is at most -n k A p, k = (3 / n) / (exp(3 / n) - 1): an answer of the source is worth k
    A answers of the reference. Sources without an effective beta count for nothing.
    """
    sources = samples.sources
    assert sources is not None  # the callers have sources
    prompt = np.repeat(np.arange(samples.n_prompts), samples.counts)
    total = np.zeros(samples.n_prompts)
    for number, near in enumerate(effective):
        n = np.bincount(prompt[sources.code == number], minlength=samples.n_prompts).astype(np.float64)
        if near is None:
            total += n
        elif near.beta is not None:
            push = np.where(n > 0, score / near.beta - near.log_z - _SPREADS * near.spread, 0.0)
            step = _BUDGET / np.maximum(n, 1.0)
            total += n * step / np.expm1(step) * np.exp(np.minimum(push, _FULL_PUSH))
    return total


def missed_top(
    samples: Samples,
    effective: Sequence[Effective | None],
    plain: Floats,
    beta: Floats,
    half_width: Floats,
    *,
    labels: Labels | None,
    reward_max: float | None,
) -> Floats:
    """How far answers at the judge's top, which some prompts do not show, would move each row, in half-widths.

    Parameters
    ----------
    samples, effective
        P prompts with their answers and sources, and how near each source is to a tilt.
    plain
        Self-normalised estimates (3, P, B): reward, KL, marked gold.
    beta
        Shape (B,).
    half_width
        Of the intervals of reward, KL and, with labels, gold: (2, B) or (3, B).
    labels
        Gold; None without.
    reward_max
        The judge's top; None: the largest score, if ten answers share it.

    Returns
    -------
    Shape (B,); 0 where every prompt shows an answer at the top, or the top is not known.

    Notes
    -----
    The class is given the mass at which none (or, where some prompt has exactly one, at most one) of such answers
    would be seen every other time, answers of policies counted by :func:`worth`. With mass q at the top R the tilt
    gives it the share s = q a / (1 - q + q a), a = exp(R / beta) / Z, and moves reward by s (R - r), gold by s (G -
    g), KL by s (R - r) / beta - log(1 - q + q a).
    """
    top = float(samples.reward.max()) if reward_max is None else reward_max
    at_top = samples.reward >= top - 1e-12 * abs(top)
    seen = np.add.reduceat(at_top.astype(np.int64), samples.offsets[:-1])
    lacks = seen == 0
    if not lacks.any() or (reward_max is None and at_top.sum() < _PILED_UP):
        return np.zeros(beta.size)
    expected = _MEDIAN_OF_ONE if (seen == 1).any() else _MEDIAN_OF_NONE
    mass = min(expected / float(worth(samples, effective, top)[lacks].sum()), 0.5)
    reward, kl, marked = plain[:, lacks]
    above = top - reward
    with np.errstate(over="ignore"):
        push = np.clip(above / beta + kl, None, _FULL_PUSH)
    grown = np.log1p(mass * np.expm1(push))
    share = np.exp(np.log(mass) + push - grown)
    moved = [share * above, share * above / beta - grown]
    if labels is not None and samples.gold is not None:
        known = samples.gold[at_top & labels.labelled]
        worst = float(known.mean()) if known.size else float(np.nanmin(samples.gold))
        moved.append(np.where(labels.known[lacks, None], share * (worst - labels.centre - marked), 0.0))
    mean = np.abs(np.stack([part.sum(axis=0) for part in moved])) / samples.n_prompts
    ratio = np.divide(mean, half_width, out=np.where(mean > 0, np.inf, 0.0), where=half_width > 0)
    return np.asarray(ratio.max(axis=0))
