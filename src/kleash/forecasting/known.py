"""Where the scales end: the judge's top and gold's floor, stated or plain to see, and the tolerance that follows."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from kleash.forecasting.tail import answers_at_end
from kleash.samples import Samples
from kleash.window import DEFAULT_TOLERANCE

__all__ = ["Ends", "default_tolerance", "known_ends"]

Floats = NDArray[np.float64]

_SHARED = 10  # answers that share the least gold: of gold without a floor no two are equal
_OF_WHAT_THERE_IS = 0.25
"""Share of what there is to lose, or to win, that is of no practical weight, where that is less than 5 % of the range.

For a gold between 0 and 1 whose mean lies in [.2, .8] 5 % of the range is the smaller of the two; where one answer in
500 is right, 5 % of the range would be 25 times all the quality there is.
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ends:
    """The largest score the judge can give and the worth of a worthless answer; None where unknown.

    ``notes`` say which of them were read off the data.
    """

    reward_max: float | None
    gold_min: float | None
    notes: tuple[str, ...] = ()


def known_ends(samples: Samples, *, reward_max: float | None = None, gold_min: float | None = None) -> Ends:
    """The stated ends, and those that the data show by the answers that pile up there.

    Parameters
    ----------
    samples
        Scored answers.
    reward_max, gold_min
        As stated, in reward and gold units.

    Returns
    -------
    Ends

    Examples
    --------
    >>> right = np.tile([0.0, 1.0], 20)
    >>> known_ends(Samples.from_arrays(np.repeat(np.arange(10), 4), right)).reward_max
    1.0
    """
    notes = []
    if reward_max is None and (piled := answers_at_end(samples.reward)):
        reward_max = float(samples.reward.max())
        notes.append(f"The judge's scale is taken to end at {reward_max:g}, where {piled:,} answers pile up.")
    if gold_min is None and samples.gold is not None and samples.n_gold:
        gold = samples.gold[~np.isnan(samples.gold)]
        least, shared = float(gold.min()), int(np.count_nonzero(gold == gold.min()))
        if shared >= _SHARED and np.ptp(gold) > 0:
            gold_min = least + 0.0
            notes.append(f"A worthless answer is taken to be worth {gold_min:g}, as {shared:,} answers are.")
    return Ends(reward_max=reward_max, gold_min=gold_min, notes=tuple(notes))


def default_tolerance(samples: Samples, ends: Ends) -> float:
    """Gold units without practical weight: 5 % of gold's range, at most a quarter of what can be lost or won.

    Parameters
    ----------
    samples
        Scored answers.
    ends
        What is known of the scales.

    Returns
    -------
    A number of gold units; 0 without labels or where all are equal.
    """
    if samples.gold is None or not samples.n_gold:
        return 0.0
    gold = samples.gold[~np.isnan(samples.gold)]
    most = float(gold.max())
    least = float(gold.min()) if ends.gold_min is None else ends.gold_min
    room = min(float(gold.mean()) - least, most - float(gold.mean()))
    share = _OF_WHAT_THERE_IS * room if np.ptp(gold) > 0 else np.inf
    return float(min(DEFAULT_TOLERANCE * (most - least), share))
