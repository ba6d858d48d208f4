"""What a forecast takes for granted of its data, looked at before anything is estimated."""

from __future__ import annotations

import dataclasses

from kleash.forecasting.labelling import chosen_by, crowded, gold_is_judge
from kleash.samples import Samples
from kleash.samples._copies import counted_once
from kleash.window import Verdict

__all__ = ["Assumed", "looked_at"]

_REMEDY = (
    "the chance with which each answer was labelled (--label-probability-column), "
    "or labels chosen by chance (kleash sample --label-sheet)"
)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Assumed:
    """Samples that can be worked with, and what had to be done or has to be known of them.

    ``samples`` hold copies once, and no gold if ``refused`` says why it cannot be used. ``warned`` are sentences that
    the verdict hangs on.
    """

    samples: Samples
    warned: tuple[str, ...] = ()
    refused: str | None = None

    def told(self, verdict: Verdict) -> Verdict:
        """The verdict with what was found."""
        if self.refused is not None:
            return Verdict(kind="cannot-tell", reasons=(self.refused, *self.warned), needs=(_REMEDY,))
        return dataclasses.replace(verdict, reasons=(*verdict.reasons, *self.warned)) if self.warned else verdict


def looked_at(samples: Samples) -> Assumed:
    """Count copies once, refuse gold whose labels were not chosen at random, and name a gold that is the judge.

    Parameters
    ----------
    samples
        As they were read.

    Returns
    -------
    Assumed
    """
    samples, copies = counted_once(samples)
    reason = chosen_by(samples)
    if reason is not None:
        by = "was chosen by" if samples.label_probability is None else "does not fit its probabilities and goes by"
        refused = f"Gold is not used: what was labelled {by} {reason}."
        samples = dataclasses.replace(samples, gold=None, label_probability=None)
        return Assumed(samples=samples, warned=copies, refused=refused)
    warned = list(copies)
    if crowded(samples):
        warned.append("Labels crowd in some of the prompts: gold holds if these prompts were chosen at random.")
    if gold_is_judge(samples):
        warned.append("Gold is the judge's own score on every label: nothing apart from the judge checks it.")
    return Assumed(samples=samples, warned=tuple(warned))
