"""Whether a server sampled as it was asked to: the tokens it drew, held against the probabilities it gave."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Calibration"]

LIMIT = 6.0
"""Standard errors from which on a server is refused. An honest one comes there once in 10^8 looks; temperature 0.7, or
0.9 of the mass (top-p), after some 1,000 tokens of a language model."""
_EXCLUDED = -1000.0  # below it servers mean "cannot be drawn": the reported distribution was cut


@dataclass(kw_only=True)
class Calibration:
    """Counts over the positions at which a server gave its most likely tokens.

    At each position two events are known to the last digit: the token drawn is less likely than 1 / M, M the number of
    tokens given, and it is none of them. Under sampling at temperature 1 from the whole vocabulary either happens as
    often as the probabilities say. Another temperature, top-k, top-p and min-p make both more or less frequent.

    Notes
    -----
    ``sum (seen - p) / sqrt(sum p (1 - p))`` is about standard normal: the differences are a martingale, whatever the
    texts. A server that reports the probabilities it has changed is caught only where it reports a token as
    impossible; vLLM, SGLang and llama.cpp report those of the model unless they are told otherwise.
    """

    tokens: int = 0
    cut: int = 0
    unlikely: list[float] | None = None
    outside: list[float] | None = None

    def add(self, drawn: float, given: Sequence[float], *, asked: int) -> None:
        """A token: its log-probability, and those of the most likely ones, ``asked`` of them."""
        self.tokens += 1
        if len(given) < asked or min(given) < _EXCLUDED or drawn < _EXCLUDED:
            self.cut += 1
            return
        top = sorted(given, reverse=True)[:asked]
        line = -math.log(len(top))
        self.unlikely = _count(self.unlikely, drawn < line, [x for x in top if x >= line])
        self.outside = _count(self.outside, drawn < top[-1], top)

    def fault(self) -> str:
        """What speaks against the server; the empty text if nothing does."""
        if self.tokens >= 20 and self.cut * 2 > self.tokens:
            return f"at {self.cut} of {self.tokens} tokens it gives others no chance at all, as top-k or top-p do"
        for name, counts in (("unlikely tokens", self.unlikely), ("tokens outside the most likely", self.outside)):
            if counts is None or counts[2] < 1.0:
                continue
            if abs(counts[0] - counts[1]) > LIMIT * math.sqrt(counts[2]):
                return f"of {self.tokens} tokens {counts[0]:.0f} are {name}, by its own probabilities {counts[1]:.1f}"
        return ""


def _count(before: list[float] | None, seen: bool, others: Sequence[float]) -> list[float]:
    """How often it was seen, how often it was to be expected, and the variance of that."""
    counts = before or [0.0, 0.0, 0.0]
    p = min(max(1.0 - math.fsum(map(math.exp, others)), 0.0), 1.0)
    return [counts[0] + seen, counts[1] + p, counts[2] + p * (1.0 - p)]
