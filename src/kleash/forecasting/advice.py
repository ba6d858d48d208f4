"""What a forecast advises: the verdict on its table, held against heavy tails and cheats that nobody has seen."""

from __future__ import annotations

import dataclasses

import numpy as np

from kleash.forecasting.gate import tail_status
from kleash.forecasting.known import Ends
from kleash.forecasting.reweight import Labels
from kleash.forecasting.tail import Tail
from kleash.forecasting.unseen import Unseen, breakdown_score
from kleash.frontier import Frontier
from kleash.samples import Samples
from kleash.window import Verdict, find_window

__all__ = ["advise", "tail_notes", "with_breakdown"]


def advise(frontier: Frontier, tail: Tail, unseen: Unseen | None, *, tolerance: float) -> Verdict:
    """The verdict on a forecast's table.

    Parameters
    ----------
    frontier
        The table.
    tail
        Of the judge's scores.
    unseen
        What a cheat nobody has seen could cost, where that is known.
    tolerance
        Gold units without practical weight.

    Returns
    -------
    Verdict
    """
    floor = None if unseen is None else unseen.beta_floor
    verdict = find_window(frontier, tolerance=tolerance, beta_floor=None if floor == np.inf else floor)
    if floor == np.inf:
        verdict = _nothing_is_safe(verdict)
    return verdict if frontier.usable.any() else _with_tail(verdict, tail)


def with_breakdown(verdict: Verdict, frontier: Frontier, samples: Samples, labels: Labels, ends: Ends) -> Verdict:
    """The verdict with the score from which on an unseen kind of cheat could undo its gain.

    Parameters
    ----------
    verdict, frontier
        Of a forecast from ``samples`` with ``labels``, where the judge's top or gold's floor is not known.
    samples, labels
        P prompts with their samples, and their gold.
    ends
        What is known of the scales; where gold's floor is not, the least label stands for it.

    Returns
    -------
    Verdict
        As it was where there is no safe beta, or no score could undo the gain.
    """
    if verdict.safe_beta is None or frontier.gold is None or samples.gold is None:
        return verdict
    gain = float(frontier.gold.gain.lo[np.flatnonzero(frontier.beta == verdict.safe_beta)[0]])
    floor = float(np.nanmin(samples.gold)) if ends.gold_min is None else ends.gold_min
    score = breakdown_score(samples, labels, verdict.safe_beta, gain=gain, gold_min=floor)
    if np.isinf(score):
        return verdict
    reason = (
        f"A kind of cheat that no sample shows could undo the gain there only if it scores above {score:.4g}"
        f" (the highest seen is {float(samples.reward.max()):.4g})."
    )
    return dataclasses.replace(verdict, breakdown_score=score, reasons=(*verdict.reasons, reason))


def _nothing_is_safe(verdict: Verdict) -> Verdict:
    """The verdict where what no sample shows could cost too much at any beta, the reference's included."""
    if verdict.safe_beta is None:
        return verdict
    reason = "No beta is safe from a cheat nobody has seen: so few samples could miss one that costs too much anywhere."
    return dataclasses.replace(
        verdict,
        safe_beta=None,
        safe_kl=None,
        reasons=(*verdict.reasons, reason),
        needs=(*verdict.needs, "more answers in all, or a larger tolerance, for a safe beta"),
    )


def tail_notes(tail: Tail) -> list[str]:
    """What to say of the tail of the judge's scores; nothing where it is light."""
    status = tail_status(tail)
    if status == "ok":
        return []
    if np.isnan(tail.shape):
        return ["Too few samples to see how heavy the tail of the judge's scores is."]
    shape = f"generalised Pareto shape {tail.shape:.2f} +- {tail.se:.2f}, light is at most 0.10"
    if status == "weak":
        return [f"The upper tail of the judge's scores may be heavy ({shape})."]
    heavy = f"The upper tail of the judge's scores is heavy ({shape}): policies far from what the samples show can "
    return [heavy + "collect reward at almost no KL, so no beta can be forecast. Clip or squash the reward, or sweep."]


def _with_tail(verdict: Verdict, tail: Tail) -> Verdict:
    """Say why everything is beyond, where the tail is the reason."""
    if tail_status(tail) != "beyond":
        return verdict
    return Verdict(
        kind="cannot-tell",
        reasons=("The judge's scores have a heavy upper tail: reward may hide in answers too rare to be sampled.",),
        needs=(
            "the end of the judge's scale (reward_max), if it has one",
            "else a squashed reward, or a sweep instead of a forecast",
        ),
    )
