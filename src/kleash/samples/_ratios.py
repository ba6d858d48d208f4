"""Columns that say who drew an answer, and how much likelier a policy makes it than the reference does."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kleash._checks import message
from kleash.rows import Source
from kleash.samples._sources import SourceError, Sources, sources_of

if TYPE_CHECKING:
    import polars as pl
    from numpy.typing import NDArray

__all__ = ["Ratios", "TokenError"]

_NAMED = re.compile(r"log_ratio\[(.+)\]")
_POLICY = ("behavior_logp", "logp", "seq_logp")  # the policy that drew the row before the one that was trained on it
_REFERENCE = ("ref_logp", "seq_ref_logp")


class TokenError(Exception):
    """Log-probabilities of an answer's tokens that have no sum."""


@dataclass(frozen=True, kw_only=True)
class Ratios:
    """Which columns of a file speak of sources: ``log_ratio[NAME]`` by name, and logp with ref_logp where both are."""

    source: str | None = None
    own: str | None = None
    named: tuple[tuple[str, str], ...] = ()
    policy: str | None = None
    reference: str | None = None
    mask: str | None = None

    @classmethod
    def among(cls, columns: Sequence[str]) -> Ratios | None:
        """The columns of a file that speak of sources; None if none does."""
        named = tuple((match[1], name) for name in columns if (match := _NAMED.fullmatch(name)))
        policy = next((name for name in _POLICY if name in columns), None)
        reference = next((name for name in _REFERENCE if name in columns), None)
        both = policy is not None and reference is not None and "log_ratio" not in columns
        found = cls(
            source="source" if "source" in columns else None,
            own="log_ratio" if "log_ratio" in columns else None,
            named=named,
            policy=policy if both else None,
            reference=reference if both else None,
            mask="mask" if both and "mask" in columns else None,
        )
        return None if found == cls() else found

    @property
    def number_columns(self) -> list[str]:
        """Names of the columns that hold numbers, once log-probabilities of tokens are summed."""
        names = (self.own, *(column for _, column in self.named), self.policy, self.reference)
        return [name for name in names if name is not None]

    @property
    def columns(self) -> list[str]:
        """Names of all of them."""
        return [name for name in (self.source, *self.number_columns, self.mask) if name is not None]

    def summed_frame(self, frame: pl.DataFrame) -> pl.DataFrame | None:
        """The frame with an answer's sum for its tokens; None where rows have to be looked at one by one."""
        import polars as pl

        tokens = [name for name in (self.policy, self.reference) if name and isinstance(frame[name].dtype, pl.List)]
        if not tokens:
            return frame
        lists = [frame[name] for name in tokens]
        uneven = len(tokens) < 2 or (lists[0].list.len() != lists[1].list.len()).any()
        if self.mask is not None or uneven or any(_gaps(values) for values in lists):
            return None
        return frame.with_columns([values.cast(pl.List(pl.Float64)).list.sum().alias(values.name) for values in lists])

    def summed_row(self, row: Mapping[str, Any], *, several: bool) -> dict[str, Any]:
        """The row with the sums over each answer's tokens for the log-probabilities.

        Parameters
        ----------
        row
            Cells by column.
        several
            Whether the row holds a list of answers: then a list of numbers is a sum for each of them.

        Returns
        -------
        The cells, those of the mask left out.

        Raises
        ------
        TokenError
            Lists of different lengths, or a token without a finite number.
        """
        result = dict(row)
        if self.policy is None or self.reference is None:
            return result
        pair = row.get(self.policy), row.get(self.reference)
        mask = None if self.mask is None else row.get(self.mask)
        result.pop(self.mask or "", None)
        if not several and any(isinstance(cell, list) for cell in pair):
            result[self.policy], result[self.reference] = _sums(*pair, mask)
        elif several and any(isinstance(cell, list) and cell and isinstance(cell[0], list) for cell in pair):
            answers = [
                _sums(a, b, mask[i] if mask else None)
                for i, (a, b) in enumerate(zip(pair[0] or [], pair[1] or [], strict=False))
            ]
            result[self.policy], result[self.reference] = map(list, zip(*answers, strict=True))
        return result

    def read(
        self,
        numbers: Mapping[str, NDArray[np.float64]],
        drawn: Sequence[pl.Series],
        *,
        size: int,
        source: Source,
        reward: str,
    ) -> Sources | None:
        """Sources of the rows of a file; see :func:`kleash.samples._sources.sources_of`.

        Parameters
        ----------
        numbers
            Columns of ``size`` numbers.
        drawn
            The labels of the rows, in pieces; none if the file names no sources.
        size, source, reward
            Samples in the file, the file while it is open, and its column of the judge's score.

        Returns
        -------
        Sources, or None where the reference drew all answers.

        Raises
        ------
        DataError
            A row whose source cannot be used, with its line.
        """
        import polars as pl

        own = None if self.own is None else numbers[self.own]
        if self.policy is not None and self.reference is not None:
            own = numbers[self.policy] - numbers[self.reference]
        labels = pl.concat(drawn).str.strip_chars().to_list() if drawn else None
        try:
            return sources_of(labels, own, {name: numbers[column] for name, column in self.named}, size=size)
        except SourceError as error:
            raise source.error(error.text, _line(source, error.row, reward)) from None


def _line(source: Source, sample: int, reward: str) -> int | None:
    """The line on which a sample stands, found by reading the file once more."""
    left = sample
    for lines, rows in source.chunks([reward] if source.columns() is not None else None):
        for line, row in zip(lines, rows, strict=True):
            cell = row.get(reward)
            left -= len(cell) if isinstance(cell, list) else 1
            if left < 0:
                return line
    return None


def _gaps(values: pl.Series) -> bool:
    """Whether a list is missing or holds a token without a finite number."""
    tokens = values.explode()
    return bool(values.null_count() or tokens.null_count() or not tokens.is_finite().all())


def _sums(policy: Any, reference: Any, mask: Any) -> tuple[float, float]:
    """Sums of an answer's log-probabilities over its active tokens."""
    if not (isinstance(policy, list) and isinstance(reference, list) and len(policy) == len(reference)):
        sizes = [len(cell) if isinstance(cell, list) else "none" for cell in (policy, reference)]
        raise TokenError(message("logp and ref_logp", expected="a number for each token in both", got=str(sizes)))
    active = [True] * len(policy) if mask is None else mask
    if not isinstance(active, list) or len(active) != len(policy):
        raise TokenError(message("mask", expected=f"{len(policy)} entries as in logp", got=repr(mask)[:40]))
    kept = [(a, b) for a, b, on in zip(policy, reference, active, strict=True) if on]
    numbers = [value for pair in kept for value in pair]
    if not all(isinstance(value, int | float) and abs(value) <= sys.float_info.max for value in numbers):
        raise TokenError(message("logp and ref_logp", expected="a finite number for each token", got="none on one"))
    return math.fsum(a for a, _ in kept), math.fsum(b for _, b in kept)
