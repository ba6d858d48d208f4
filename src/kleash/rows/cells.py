"""What is in a cell: a number, a prompt's label, an answer's text."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import polars as pl
    from numpy.typing import NDArray

MISSING = {"", "null", "none", "na"}
WORDS = {"true": 1.0, "false": 0.0}
"""Texts, in any case, that stand for no number and for a number. "nan" and "inf" are numbers already."""


def number(value: Any) -> float | None:
    """The number in a cell, None if there is none; ValueError if it is text, a list or an object."""
    if value is None:
        return None
    if isinstance(value, str):
        text = value.strip()
        if text.lower() in MISSING:
            return None
        if text.lower() in WORDS:
            return WORDS[text.lower()]
        if "_" in text or not text.isascii():
            raise ValueError(value)
        return float(text)
    if isinstance(value, list | dict | bytes):
        raise ValueError(value)
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    except TypeError:
        raise ValueError(value) from None


def label(value: Any) -> str | None:
    """The text that stands for a prompt; None if it is missing."""
    if isinstance(value, str):
        return value
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    if isinstance(value, list | tuple | dict):
        return json.dumps(_without_none(value), sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=str)
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def _without_none(value: Any) -> Any:
    """Chat messages without absent keys: Parquet writes a key of one message as null into all the others."""
    if isinstance(value, dict):
        return {str(key): _without_none(item) for key, item in value.items() if item is not None}
    return [_without_none(item) for item in value] if isinstance(value, list | tuple) else value


def text(value: Any) -> str | None:
    """An answer's text; of a chat answer with a single message its content."""
    if value is None or isinstance(value, str):
        return value
    single = value[0] if isinstance(value, list) and len(value) == 1 else value
    if isinstance(single, dict) and isinstance(single.get("content"), str):
        return str(single["content"])
    return label(value)


def is_chat(value: Any) -> bool:
    """A list of messages rather than a list of answers."""
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)


def encodes(text: str) -> bool:
    """False for a text with half a surrogate pair, which JSON can hold and no file can."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def numbers(column: pl.Series) -> NDArray[np.float64] | None:
    """`number` of a column, as float64 with NaN where there is none; None if a cell is text."""
    import polars as pl

    if column.dtype == pl.String:
        plain = column.cast(pl.Float64, strict=False)
        if plain.null_count() > column.null_count():
            words = dict.fromkeys(MISSING, math.nan) | WORDS
            clean = column.str.strip_chars(" \t\r\n")
            word = clean.str.to_lowercase().replace_strict(words, default=None, return_dtype=pl.Float64)
            plain = clean.cast(pl.Float64, strict=False).fill_null(word)
            if plain.null_count() > column.null_count():
                return None
        column = plain
    if not (column.dtype.is_integer() or column.dtype.is_float() or column.dtype in {pl.Boolean, pl.Null}):
        return None
    return column.cast(pl.Float64).fill_null(math.nan).to_numpy()


def numbers_of(cells: list[Any]) -> NDArray[np.float64] | None:
    """`number` of cells that are numbers, booleans or None; None if one is anything else."""
    if not set(map(type, cells)) <= {int, float, bool, type(None)}:
        return None
    try:
        return np.array(cells, dtype=np.float64)
    except OverflowError:
        return None
