"""Validation at the border: every public function checks its arguments here, so the wording is the same everywhere."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kleash.errors import OptionError, ShapeError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

_STEERING = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_LARGEST = 2**63 - 1


def message(thing: str, *, expected: str, got: object, fix: str = "") -> str:
    """The one form of an error message: thing, expected, got, fix."""
    return f"{thing}: expected {expected}, got {got}" + (f"; {fix}" if fix else "")


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint that names the known word closest to ``name``, or lists the known words."""
    words = list(known)
    close = difflib.get_close_matches(name, words, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else "known: " + ", ".join(words)


def printable(text: str) -> str:
    r"""Text for a terminal: what would steer it, or turn its writing round, stands as a sign of its own.

    Examples
    --------
    >>> printable("a\x1b[31mred")
    'a␛[31mred'
    """
    return _STEERING.sub(
        lambda mark: chr(0x2400 + ord(mark[0])) if mark[0] < " " else "\N{REPLACEMENT CHARACTER}", text
    )


def cell(value: object) -> object:
    """A cell of a CSV that we write: a number as it is, a text so that it does nothing.

    What would steer a terminal stands as a sign of its own; what a spreadsheet would take for a formula has an
    apostrophe before it.

    Examples
    --------
    >>> cell("=1+1"), cell(-1.5), cell("a-b")
    ("'=1+1", -1.5, 'a-b')
    """
    if not isinstance(value, str):
        return value
    return printable(f"'{value}" if value.startswith(("=", "+", "-", "@", "\t", "\r")) else value)


def short(value: object, *, width: int = 40) -> str:
    """A value for a message: a text as it is, anything else as Python shows it; one line of at most ``width``."""
    try:
        text = value if isinstance(value, str) else repr(value)
    except (ValueError, RecursionError):  # a whole number of too many digits, lists nested too deep
        text = f"a {type(value).__name__}"
    text = " ".join(text.split())
    return text if len(text) <= width else text[: width - 1] + "…"


def choice(value: str, allowed: Sequence[str], *, name: str) -> str:
    """``value`` if it is one of ``allowed``; otherwise an error with the nearest allowed word."""
    if value not in allowed:
        near = nearest(str(value), allowed)
        fix = "" if near.startswith("known: ") else near  # they stand there already
        raise OptionError(message(name, expected="one of " + ", ".join(allowed), got=repr(value), fix=fix))
    return value


def number(
    value: Any,
    *,
    name: str,
    above: float | None = None,
    at_least: float | None = None,
    at_most: float | None = None,
    infinite: bool = False,
) -> float:
    """A float inside the stated limits; NaN never passes, infinity only where ``infinite`` allows it."""
    limits = [f"above {above:g}"] if above is not None else []
    limits += [f"at least {at_least:g}"] if at_least is not None else []
    limits += [f"at most {at_most:g}"] if at_most is not None else []
    expected = ("a number" if infinite else "a finite number") + (" " + " and ".join(limits) if limits else "")
    try:
        x = float(value)
    except (TypeError, ValueError):
        raise OptionError(message(name, expected=expected, got=short(repr(value)))) from None
    except OverflowError:
        raise OptionError(message(name, expected=expected, got="a number beyond the range of floats")) from None
    bad = (
        np.isnan(x)
        or (np.isinf(x) and not infinite)
        or (above is not None and not x > above)
        or (at_least is not None and not x >= at_least)
        or (at_most is not None and not x <= at_most)
    )
    if bad:
        raise OptionError(message(name, expected=expected, got=f"{x:g}"))
    return x


def integer(value: Any, *, name: str, at_least: int | None = None, at_most: int = _LARGEST) -> int:
    """An int between the limits, which fits into 64 bits; a float with a fractional part is refused, not rounded."""
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not whole or (at_least is not None and value < at_least) or value > at_most:
        limits = [] if at_least is None else [f"at least {at_least}"]
        limits += [f"at most {at_most}"] if whole and value > at_most else []
        expected = "a whole number" + (f" of {' and '.join(limits)}" if limits else "")
        raise OptionError(message(name, expected=expected, got=short(value)))
    return int(value)


def betas(values: ArrayLike, *, name: str = "beta", infinite: bool = True) -> NDArray[np.float64]:
    """Coefficients as a float64 array of shape (B,): at least one, none negative, none NaN.

    Zero is the unpenalised limit; infinity, where allowed, is the reference itself.
    """
    try:
        array = np.atleast_1d(np.asarray(values, dtype=np.float64))
    except (TypeError, ValueError, OverflowError):
        raise OptionError(message(name, expected="numbers of at least 0", got=short(values))) from None
    if array.ndim != 1 or array.size == 0:
        raise OptionError(message(name, expected="a list of at least one number", got=f"shape {array.shape}"))
    for value in array:
        number(value, name=name, at_least=0, infinite=infinite)
    return array + 0.0  # a copy, in which -0.0 is 0.0: dividing by it must not change a sign


def same_shape(**arrays: NDArray[Any]) -> None:
    """All named arrays have one shape, or an error that lists every shape."""
    shapes = {name: array.shape for name, array in arrays.items()}
    if len(set(shapes.values())) > 1:
        listed = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise ShapeError(message(" and ".join(shapes), expected="arrays of one shape", got=listed))
