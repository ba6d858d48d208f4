"""The user's present setting: its row of the table, and what moving from it to the safe beta would do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from kleash.frontier import Frontier
from kleash.window import Verdict, paired_differences

__all__ = ["Change", "Have", "have_of"]


@dataclass(frozen=True, kw_only=True)
class Change:
    """From the present beta to another: gold (paired, 95 %), judge's score and KL (nats), all as differences."""

    to: float
    gold: float
    gold_lo: float
    gold_hi: float
    reward: float
    kl: float


@dataclass(frozen=True, kw_only=True)
class Have:
    """The present setting as it was given (``value``), as a beta of the table, how sure its row is, and what to do."""

    value: float
    beta: float
    status: str
    change: Change | None
    safe_gain: tuple[float, float, float] | None
    """Gain of the safe beta over the reference with its 95 % interval, where the present row says nothing."""

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready plain data."""
        change = None if self.change is None else dict(vars(self.change))
        return {"value": self.value, "beta": self.beta, "status": self.status, "change": change, "text": str(self)}

    def __str__(self) -> str:
        yours = f"Your {self.value:.4g}"
        if self.status == "beyond":
            away = f"{yours} is further from the reference than these samples can see, so what it gives is not known"
            if self.safe_gain is None:
                return f"{away}."
            gain, lo, hi = self.safe_gain
            return f"{away}; the safe beta is known to gain {gain:.3g} over the reference (95 %: {lo:.3g} to {hi:.3g})."
        if self.change is None:
            return f"{yours} can be read ({self.status}), and there is no safe beta to compare it with."
        if self.change.to == self.beta:
            return f"{yours} is the safe beta: leave it."
        moved = self.change
        quality = f"quality {moved.gold:+.3g} (95 %: {moved.gold_lo:+.3g} to {moved.gold_hi:+.3g})"
        word = "Better." if moved.gold_lo > 0 else "Worse." if moved.gold_hi < 0 else "No difference in quality shows."
        sure = "" if self.status == "ok" else " Your row is weak."
        return f"From your {self.value:.4g} to the safe beta: {quality}, KL {moved.kl:+.3g} nats. {word}{sure}"


def have_of(frontier: Frontier, verdict: Verdict, *, value: float, beta: float) -> Have:
    """What the present setting gives, beside the safe beta.

    ``frontier``: The table, with a row at the present beta. ``verdict``: What it advises. ``value``, ``beta``: The
    setting as it was given, and as a beta of the table.

    Returns
    -------
    Have
    """
    row = int(np.argmin(np.abs(frontier.beta - beta)))
    status, gold = str(frontier.status[row]), frontier.gold
    change, safe_gain = None, None
    rows = np.flatnonzero(frontier.usable)
    if verdict.safe_beta is not None and gold is not None:
        safe = rows[min(int(np.searchsorted(frontier.beta[rows], verdict.safe_beta)), rows.size - 1)]
        gain = gold.gain[int(safe)]
        safe_gain = (float(gain.value), float(gain.lo), float(gain.hi))
        if status != "beyond":
            loss, _, lo = paired_differences(frontier, rows)(int(np.flatnonzero(rows == safe)[0]))
            at = int(np.flatnonzero(rows == row)[0])
            change = Change(
                to=verdict.safe_beta,
                gold=float(loss[at]),
                gold_lo=float(lo[at]),
                gold_hi=float(2 * loss[at] - lo[at]),
                reward=float(frontier.reward.value[safe] - frontier.reward.value[row]),
                kl=float(frontier.kl.value[safe] - frontier.kl.value[row]),
            )
    return Have(value=value, beta=float(frontier.beta[row]), status=status, change=change, safe_gain=safe_gain)
