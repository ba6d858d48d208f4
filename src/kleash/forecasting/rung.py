"""The next rung: where to train so that its answers reach past what these do."""

from __future__ import annotations

import dataclasses

import numpy as np

from kleash.frontier import Frontier
from kleash.window import Verdict

__all__ = ["with_next_rung"]

_FAR_ENOUGH = 0.1  # nats: a policy nearer to the reference than this would teach nothing new
_MARGIN = 2.5  # nats short of log K that K answers reach from the policy that drew them


def with_next_rung(verdict: Verdict, frontier: Frontier, *, answers: float) -> Verdict:
    """The verdict with what to train next, where the looser end of the dial is out of reach and no loss was seen.

    Parameters
    ----------
    verdict, frontier
        Of a forecast of the tilt.
    answers
        Answers per prompt, of the forecast and so of the next rung.

    Returns
    -------
    Verdict
    """
    sure = np.flatnonzero(frontier.status == "ok")
    if frontier.gold is None or verdict.loose_edge is not None or not sure.size or sure[0] == 0:
        return verdict
    beta, kl = float(frontier.beta[sure[0]]), float(frontier.kl.value[sure[0]])
    if verdict.kind == "no-useful-range" or kl < _FAR_ENOUGH:
        return verdict
    reached = kl + max(float(np.log(answers)) - _MARGIN, 0.0)
    need = (
        f"to see past beta {beta:.3g}: a policy trained there (the loosest beta that is sure), and {answers:.0f} of "
        f"its answers to each prompt with their log ratios, which reach about {reached:.2g} nats"
    )
    return dataclasses.replace(verdict, needs=(*verdict.needs, need))
