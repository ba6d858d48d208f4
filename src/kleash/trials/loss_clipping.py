"""From which ratio on does a loss clip its policy term, and does the penalty go on there?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kleash.trials.loss_faults import batch_of, changed

if TYPE_CHECKING:
    from kleash.trials.user_loss import UserLoss

__all__ = ["Clipping", "clipping_of"]

_WIDEST = 4.0
"""Nats of a log ratio up to which it is looked for: ratios of 1/55 to 55."""
_NONE = 1e-12


@dataclass(frozen=True, kw_only=True)
class Clipping:
    """Where the policy term of a token has no gradient any more, off-policy.

    Parameters
    ----------
    above
        Ratio of policy to sampler from which a good answer is pushed no further; None up to 55.
    below
        The same of a bad answer; None down to 1/55.
    penalty_goes_on
        Whether the penalty of such a token still pulls; None where nothing is clipped.
    """

    above: float | None
    below: float | None
    penalty_goes_on: bool | None

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready plain data."""
        return dict(vars(self))

    def __str__(self) -> str:
        ends = [f"above {self.above:.3g}" if self.above else "", f"below {self.below:.3g}" if self.below else ""]
        if self.penalty_goes_on is None:
            return "none between ratios of 1/55 and 55"
        goes = "the penalty goes on" if self.penalty_goes_on else "the penalty stops there too"
        return f"the policy term stops at ratios {' and '.join(filter(None, ends))}; {goes}"


def clipping_of(loss: UserLoss, *, beta: float) -> Clipping:
    """Move one token's ratio away from 1 until its policy term has no gradient; the limits by bisection.

    A good answer is one whose gradient at ratio 1 raises its log-probability, a bad one the other way round. The policy
    term is the gradient at beta 0.
    """
    batch = batch_of(loss.group_size)
    start = loss(batch, beta=0.0)[1][:, 0]
    good, bad = int(np.argmin(start)), int(np.argmax(start))

    def term(row: int, log_ratio: float, at: float = 0.0) -> float:
        old = batch.old_logp.copy()
        old[row, 0] -= log_ratio
        return float(loss(changed(batch, old_logp=old), beta=at)[1][row, 0])

    def limit(row: int, sign: int) -> float | None:
        inside, outside = 0.0, sign * _WIDEST
        if abs(start[row]) <= _NONE or abs(term(row, outside)) > _NONE:
            return None
        for _ in range(40):
            middle = (inside + outside) / 2
            inside, outside = (middle, outside) if abs(term(row, middle)) > _NONE else (inside, middle)
        return float(np.exp(outside))

    above, below = limit(good, 1), limit(bad, -1)
    ends = [(row, end) for row, end in ((good, above), (bad, below)) if end is not None]
    beyond = [(row, 1.5 * float(np.log(end))) for row, end in ends]
    goes = [abs(term(row, x, beta) - term(row, x)) > _NONE for row, x in beyond]
    return Clipping(above=above, below=below, penalty_goes_on=all(goes) if goes else None)
