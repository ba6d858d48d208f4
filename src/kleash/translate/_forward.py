"""k3 as a loss for a binary reward and one token: the forward KL's coefficient beside the tilt's beta."""

from __future__ import annotations

import math

__all__ = ["forward_of_tilt", "tilt_of_forward"]


def forward_of_tilt(beta: float, rate: float, factor: float) -> float:
    """The forward KL's coefficient whose root has the tilt's success rate: s p (1 - p) / (p - p_ref)."""
    log_odds = math.log(rate) - math.log1p(-rate) + 1.0 / beta
    miss = 1.0 / (1.0 + math.exp(min(log_odds, 700.0)))
    gain = (1.0 - rate) - miss  # p - p_ref, without losing digits where p is near 1
    return factor * (1.0 - miss) * miss / gain if gain > 0 else math.inf


def tilt_of_forward(beta: float, rate: float, factor: float) -> float:
    """The tilt's beta that has the success rate of the forward KL's root, from s p (1 - p) = c (p - p_ref)."""
    c = beta / factor
    b = c - 1.0
    root = math.sqrt(b * b + 4.0 * c * rate)
    p = 2.0 * c * rate / (b + root) if b > 0 else (root - b) / 2.0  # positive root of p^2 + (c - 1) p - c p_ref = 0
    miss = c * (1.0 - rate) / (c + p)  # p (1 - p) + c (1 - p) = c (1 - p_ref)
    return 1.0 / (math.log(p) - math.log(miss) - math.log(rate) + math.log1p(-rate))
