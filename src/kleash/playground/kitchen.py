"""The kitchen at one setting of its three dials, read exactly: what the play page and the animation draw and tell."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from kleash import tilt
from kleash.estimates import Floats
from kleash.frontier import exact_frontier
from kleash.window import Verdict, find_window
from kleash.worlds import kitchen

__all__ = [
    "HIGHEST",
    "LINE",
    "LOWEST",
    "MARGIN",
    "Reading",
    "beta_at",
    "beta_words",
    "position",
    "read",
    "verdict_words",
]

LOWEST, HIGHEST = 0.1, 1e4
"""The logarithmic middle of the dial, in beta; 0 and the reference stand at its ends."""
MARGIN = 0.06  # share of the dial that leads from the logarithmic middle to each end


def position(beta: float) -> float:
    """Where a beta stands on the dial, from 0 (beta 0) to 1 (the reference): monotone, logarithmic in between."""
    if beta == math.inf:
        return 1.0
    if beta < LOWEST:
        return MARGIN * beta / LOWEST
    if beta > HIGHEST:
        return 1.0 - MARGIN * HIGHEST / beta
    return MARGIN + (1.0 - 2.0 * MARGIN) * math.log(beta / LOWEST) / math.log(HIGHEST / LOWEST)


def beta_at(place: float) -> float:
    """The beta at a place of the dial: the inverse of :func:`position`.

    Examples
    --------
    >>> beta_at(0.0), round(beta_at(position(15.0)), 9), beta_at(1.0)
    (0.0, 15.0, inf)
    """
    if place >= 1.0:
        return math.inf
    if place < MARGIN:
        return LOWEST * place / MARGIN
    if place > 1.0 - MARGIN:
        return HIGHEST * MARGIN / (1.0 - place)
    return LOWEST * math.exp((place - MARGIN) / (1.0 - 2.0 * MARGIN) * math.log(HIGHEST / LOWEST))


LINE = tuple(i / 120 for i in range(121))
"""Places of the dial at which the curves are drawn."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Reading:
    """The kitchen at one setting of the three dials, exactly.

    ``reward``, ``gold`` and ``kl`` (nats) of the tilt; ``reference_reward`` and ``reference_gold`` of the house;
    ``policy`` and ``reference`` the probabilities of the salt levels ``levels``, shape (41,); ``loosest_kl`` the KL at
    beta 0; ``line_reward`` and ``line_gold`` the curves along the dial at :func:`beta_at` of equal steps.
    """

    beta: float
    love: float
    oversalt: float
    reward: float
    gold: float
    kl: float
    reference_reward: float
    reference_gold: float
    loosest_kl: float
    levels: Floats
    level_gold: Floats
    policy: Floats
    reference: Floats
    line_reward: Floats
    line_gold: Floats
    verdict: Verdict
    gain: float | None

    @property
    def small(self) -> bool:
        """Whether the best gain is below 5 % of the range of quality: measurable, of little weight."""
        return self.gain is not None and self.gain < 0.05 * float(np.ptp(self.level_gold))


def read(beta: float, *, love: float = 1.0, oversalt: float = 0.0505) -> Reading:
    """The kitchen at one setting of the dials.

    ``beta``: From 0 to infinity (the reference), reward units per nat. ``love``, ``oversalt``: As in
    :func:`kleash.worlds.kitchen`.

    Returns
    -------
    Reading
        Exact numbers of the policy at that setting.

    Examples
    --------
    >>> now = read(15.0)
    >>> round(now.reward, 2), round(now.gold, 3), now.verdict.kind
    (12.88, 1.541, 'no-useful-range')
    """
    world = kitchen(love=love, oversalt=oversalt)
    at = tilt.moments(world, [beta, 0.0, np.inf])
    line, verdict, gain = _whole_dial(float(love), float(oversalt))
    return Reading(
        beta=float(beta),
        love=float(love),
        oversalt=float(oversalt),
        reward=float(at.reward[0]),
        gold=float(at.gold[0]),
        kl=float(at.kl[0]),
        reference_reward=float(at.reward[2]),
        reference_gold=float(at.gold[2]),
        loosest_kl=float(at.kl[1]),
        levels=np.asarray(kitchen().reward[0]),
        level_gold=world.gold[0],
        policy=np.exp(tilt.tilt_policy(world, [beta])[0, 0]),
        reference=np.exp(world.log_reference[0]),
        line_reward=line.reward,
        line_gold=line.gold,
        verdict=verdict,
        gain=gain,
    )


@lru_cache(maxsize=16)
def _whole_dial(love: float, oversalt: float) -> tuple[tilt.Moments, Verdict, float | None]:
    """What does not hang on the dial: the curves, the verdict, and the best gain where there is one."""
    world = kitchen(love=love, oversalt=oversalt)
    table = exact_frontier(world)
    assert table.gold is not None
    verdict = find_window(table)
    gain = float(table.gold.gain.value.max()) if verdict.gain_shown else None
    return tilt.moments(world, [beta_at(place) for place in LINE]), verdict, gain


def beta_words(beta: float) -> str:
    """A beta in three digits; the reference by its name.

    Examples
    --------
    >>> beta_words(0.0), beta_words(7.2472), beta_words(3550.0), beta_words(math.inf)
    ('0', '7.25', '3550', 'reference')
    """
    return "reference" if beta == math.inf else np.format_float_positional(float(f"{beta:.3g}"), trim="-")


def verdict_words(now: Reading) -> tuple[str, str]:
    """The verdict for a reader of the page: a headline and what it rests on."""
    verdict = now.verdict
    if verdict.best_beta is None or verdict.safe_beta is None or now.gain is None:
        return "No useful range", (
            "At no beta does quality gain anything over the untouched house. The dial cannot help here: fix the judge."
        )
    text = f"Quality gains {now.gain:.3f} over the untouched house at beta {beta_words(verdict.best_beta)}. "
    if now.small:
        text += "That is measurable and small: 0.13 would begin to matter. "
    text += f"Beta {beta_words(verdict.safe_beta)} keeps at least 95 % of that, on the tightest leash that does. "
    if verdict.loose_edge is None:
        return "No over-optimisation seen", text + "Looser than that, no loss shows."
    bad, good = map(beta_words, verdict.loose_edge)
    text += f"Looser than beta {bad} to {good}, the critic is being cheated."
    if verdict.tight_edge is not None:
        bad, good = map(beta_words, verdict.tight_edge)
        text += f" Tighter than beta {good} to {bad}, hardly anything is gained."
    return "A useful range", text
