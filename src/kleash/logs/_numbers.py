"""The number that a log prints, and with how many digits."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

__all__ = ["FULL", "Digits", "number"]

FULL = -1
"""Decimals of a number that was not rounded for the log."""

_SIGNIFICANT = 8  # float32 printed whole has seven to nine digits: from eight on nobody rounded by hand
_SHORT = 4  # Hugging Face prints "%.4g" since transformers 5
_WRAPPED = re.compile(r"(?:np\.|numpy\.)?(?:float|int|bfloat)\d*\((.*)\)|tensor\(([^,)]*).*\)")
_NOTHING = {"", "none", "null", "n/a", "-"}


def number(text: str) -> float | None:
    """The number a text stands for: NaN for ``nan`` and for nothing (`missing` tells them apart), None if it is none.

    Examples
    --------
    >>> number("1.5e-3"), number("np.float64(0.25)"), number("tensor(2., device='cuda:0')"), number("True")
    (0.0015, 0.25, 2.0, None)
    """
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        text = text[1:-1].strip()
    if (wrapped := _WRAPPED.fullmatch(text)) is not None:
        text = (wrapped[1] or wrapped[2] or "").strip()
    if text.lower() in _NOTHING:
        return math.nan
    if "_" in text:  # Python reads 1_0 as ten; no trainer writes it
        return None
    try:
        return float(text)
    except ValueError:
        return None


def missing(text: str) -> bool:
    """Whether a text says that there is no number, rather than that the number is NaN."""
    return text.strip().strip("'\"").lower() in _NOTHING


@dataclass
class Digits:
    """How exactly one key is printed, learnt value by value."""

    most: int = 0
    full: bool = False
    short: int | None = None

    def see(self, text: str) -> None:
        """Learn from one printed number."""
        if self.full:
            return
        quoted = text[:1] in {"'", '"'}
        mantissa, _, exponent = text.strip(" '\"+-").lower().partition("e")
        whole, _, part = mantissa.partition(".")
        if not (whole + part).isdigit():
            return
        digits = (whole + part).lstrip("0")
        if len(digits) >= _SIGNIFICANT:
            self.full = True
            return
        decimals = max(0, len(part) - int(exponent or 0)) if exponent.lstrip("+-").isdigit() or not exponent else 0
        self.most = max(self.most, decimals)
        if quoted and len(digits) >= _SHORT:
            self.short = decimals if self.short is None else min(self.short, decimals)

    @property
    def decimals(self) -> int:
        """Digits behind the point that every value of the key has at least; `FULL` if it was not rounded."""
        if self.full:
            return FULL
        return self.most if self.short is None else self.short
