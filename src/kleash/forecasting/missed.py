"""What the samples of some prompts missed, by what those of the others show (Good and Turing's estimate).

Where a prompt has no answer at the judge's top, the tilt of its samples has nowhere to go; the estimate, its
jackknife and its drift all look harmless. How often a prompt without such an answer could have given one shows in
how many prompts have exactly one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaincinv

from kleash.estimates import Estimates
from kleash.forecasting.reweight import Labels, Reweighted
from kleash.forecasting.tail import studentised
from kleash.samples import Samples

__all__ = ["MOVED", "RareClass", "class_shift", "far_class", "missed_shift", "top_class"]

Floats = NDArray[np.float64]

MOVED = 1.0
"""Half-widths by which a class that was missed may move a row that is still ``ok``: further, the interval would miss.

By trial on ``bench/forecast_calibration.py``: at 1.5 rows of worlds with gamma tails are covered in 64 to 86 % past a
tenth of the reach, at 1 in 87 to 100, at 0.7 next to none of them is left; normal scores keep 99 % of their rows at 1.
"""
FAR = 3.0
"""SDs above the other answers to a prompt from which an answer belongs to the class of those the judge likes best."""
_FULL_PUSH = 600.0  # nats from which a mass of 1e-200 takes over the prompt
_CELLS = 200_000  # numbers in one working array


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class RareClass:
    """Answers that the judge likes best as one class.

    ``score`` (P,) is what they score in each prompt, ``gold`` what they are worth, ``lacks`` (P,) the prompts without
    one, and ``mass`` the reference mass that the class is taken to have in each of those.
    """

    score: Floats
    gold: float
    lacks: NDArray[np.bool_]
    mass: float


def top_class(samples: Samples, labels: Labels | None, *, reward_max: float) -> RareClass:
    """The answers with the judge's top score, and the mass they may have where no sample shows one.

    Parameters
    ----------
    samples, labels
        P prompts with their samples, and their gold.
    reward_max
        The top, in reward units.

    Returns
    -------
    RareClass
    """
    top = samples.reward >= reward_max - 1e-12 * abs(reward_max)
    return _class(samples, labels, top, np.full(samples.n_prompts, reward_max))


def far_class(samples: Samples, labels: Labels | None) -> RareClass:
    """The answers more than three SDs above the others to their prompt, for a judge whose top is not known.

    Parameters
    ----------
    samples, labels
        P prompts with their samples, and their gold.

    Returns
    -------
    RareClass
        Its score is that of the mean residual of those seen, in each prompt's own mean and SD.
    """
    seen = studentised(samples)
    far = np.zeros(samples.n_samples, dtype=bool)
    far[seen.rows] = seen.residual > FAR
    typical = float(seen.residual[seen.residual > FAR].mean()) if far.any() else FAR
    return _class(samples, labels, far, seen.mean + typical * seen.sd)


def _class(samples: Samples, labels: Labels | None, members: NDArray[np.bool_], score: Floats) -> RareClass:
    """The members as a class: n1 prompts show exactly one, n0 none, and each of these has mass m / (K n0).

    m is the median of the Poisson mean given n1, near n1 + 0.7: Good and Turing's estimate, and log 2 / (K n0) for a
    class that nothing shows.
    """
    seen = np.add.reduceat(members.astype(np.int64), samples.offsets[:-1])
    lacks, once = seen == 0, seen == 1
    n_once = int(once.sum())
    rate = float((1 / samples.counts[once]).mean()) if n_once else float((1 / samples.counts).mean())
    mass = float(gammaincinv(n_once + 1.0, 0.5)) * rate / max(int(lacks.sum()), 1)
    gold = 0.0
    if labels is not None and samples.gold is not None:
        known = samples.gold[members & labels.labelled]
        gold = float(known.mean()) if known.size else float(np.nanmin(samples.gold))
    return RareClass(score=score, gold=gold, lacks=lacks, mass=min(mass, 0.5))


def missed_shift(
    samples: Samples,
    labels: Labels | None,
    table: Reweighted,
    beta: Floats,
    estimates: Mapping[str, Estimates],
    *,
    reward_max: float | None,
) -> Floats:
    """How far answers that some prompts do not show would move each row, in half-widths of its intervals.

    Parameters
    ----------
    samples, labels
        P prompts with their samples, and their gold.
    table
        Estimates per prompt.
    beta
        Shape (B,).
    estimates
        Reward, KL and gold with their intervals, by name.
    reward_max
        The judge's top; None where it is not known: then the class is that of far answers.

    Returns
    -------
    Shape (B,); the largest of reward, KL and gold; 0 where no prompt lacks the class.
    """
    found = far_class(samples, labels) if reward_max is None else top_class(samples, labels, reward_max=reward_max)
    shift = class_shift(found, table, beta, labels)
    names = ("reward", "kl", "gold")[: len(shift)]
    half = np.stack([0.5 * (estimates[name].hi - estimates[name].lo) for name in names])
    ratio = np.divide(shift, half, out=np.where(shift > 0, np.inf, 0.0), where=half > 0)
    return np.asarray(ratio.max(axis=0))


def class_shift(found: RareClass, table: Reweighted, beta: Floats, labels: Labels | None) -> Floats:
    """How far a class would move the means of reward, KL and, with labels, gold if the prompts that lack it had it.

    Parameters
    ----------
    found
        The class.
    table
        Estimates per prompt.
    beta
        Shape (B,).
    labels
        Gold; None without.

    Returns
    -------
    Sizes of shape (2, B) or (3, B).

    Notes
    -----
    With mass q at the top R a prompt's normaliser becomes Z (1 - q + q a), a = exp(R / beta) / Z, and the class has
    the share s = q a / (1 - q + q a): the reward moves by s (R - r), gold by s (G - g), KL by s (R - r) / beta -
    log(1 - q + q a). Of that, what it would move the untouched reference is taken off: there the prompts that have the
    class make up for those that lack it.
    """
    if not found.lacks.any():
        return np.zeros((2 if labels is None else 3, beta.size))
    step = max(1, _CELLS // int(found.lacks.sum()))
    parts = [slice(start, start + step) for start in range(0, beta.size, step)]
    return np.concatenate([_shift_at(found, table, beta[part], labels, part) for part in parts], axis=1)


def _shift_at(found: RareClass, table: Reweighted, beta: Floats, labels: Labels | None, part: slice) -> Floats:
    """What the class moves at some of the betas, so few that the working arrays stay near a core."""
    reward, kl, marked = (values[found.lacks, part] for values in table.plain)
    at_reference = table.reference[:, found.lacks, None]
    above = found.score[found.lacks, None] - reward
    push = np.clip(above / beta + kl, None, _FULL_PUSH)
    grown = np.log1p(found.mass * np.expm1(push))
    share = np.exp(np.log(max(found.mass, np.finfo(float).tiny)) + push - grown)
    rise = share * above
    moved = [rise - found.mass * (found.score[found.lacks, None] - at_reference[0]), rise / beta - grown]
    sizes = [table.plain.shape[1]] * 2
    if labels is not None:
        here = labels.known[found.lacks, None]
        worse = found.gold - labels.centre
        moved.append(np.where(here, share * (worse - marked) - found.mass * (worse - at_reference[1]), 0.0))
        sizes.append(int(labels.known.sum()))
    return np.stack([np.abs(part.sum(axis=0)) / size for part, size in zip(moved, sizes, strict=True)])
