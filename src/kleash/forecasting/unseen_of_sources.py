"""Cheats nobody has seen, where policies drew answers too: each of their answers counts for many of the reference's."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kleash.forecasting.counted import worth
from kleash.forecasting.sourced import Sourced
from kleash.forecasting.unseen import CONFIDENCE, Unseen, worst_loss

__all__ = ["unseen_of_sources"]

Floats = NDArray[np.float64]


def unseen_of_sources(sourced: Sourced, *, reward_max: float, gold_min: float, tolerance: float) -> Unseen:
    """What one unseen kind of cheat could cost at every beta, and from which beta on that is within the tolerance.

    Parameters
    ----------
    sourced
        The sources' estimates, with gold.
    reward_max, gold_min
        What the cheat scores and what it is worth.
    tolerance
        Gold units that may be lost.

    Returns
    -------
    Unseen
        ``beta_floor`` is one of the betas; ``without_sources`` the same from the reference's own answers alone.

    Notes
    -----
    As :func:`kleash.forecasting.unseen.unseen_cheats`, with the expected sightings of
    :func:`kleash.forecasting.counted.worth` for the answers of policies: a kind that training towards the judge could
    have shown. One that training cannot reach, or that the policies were kept from, is bounded by the reference's
    answers only.
    """
    samples, labels, beta = sourced.samples, sourced.labels, sourced.beta
    assert labels is not None  # the caller has gold
    assert samples.sources is not None  # and sources
    reward, kl, marked = sourced.pooled.table.plain
    with np.errstate(over="ignore"):
        log_push = (reward_max - reward) / beta + kl
    known = labels.known[:, None]
    gold = np.where(known, labels.centre + marked, labels.centre + marked[labels.known].mean(axis=0))
    prompt = np.repeat(np.arange(samples.n_prompts), samples.counts)
    of_reference = (samples.sources.code == 0) & samples.sources.reference
    own = np.bincount(prompt[of_reference], minlength=samples.n_prompts).astype(np.float64)

    def bound(counts: Floats) -> tuple[float, Floats, float]:
        loss = worst_loss(log_push, gold - gold_min, counts)
        too_much = np.flatnonzero(loss > tolerance)
        floor = beta[0] if not too_much.size else beta[too_much[-1] + 1] if too_much[-1] + 1 < beta.size else np.inf
        mass = -np.log1p(-CONFIDENCE) / max(counts.sum(), 1.0)
        return float(min(mass, 1.0)), loss, float(floor)

    mass, loss, floor = bound(worth(samples, sourced.effective, reward_max))
    alone = None
    if (own > 0).all():
        mass_alone, _, floor_alone = bound(own)
        alone = {"mass_below": mass_alone, "beta_floor": floor_alone if np.isfinite(floor_alone) else None}
    return Unseen(
        mass_below=mass,
        reward_max=float(reward_max),
        gold_min=float(gold_min),
        tolerance=tolerance,
        beta=beta,
        loss=loss,
        beta_floor=floor,
        without_sources=alone,
    )
