"""What a watched run's measurements come to: means over prompts, the table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kleash.frontier import Estimates, Frontier, Gold, Replicates

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kleash.estimates import Floats

__all__ = ["array", "frontier_of", "mean", "mean_se"]

_DRAWS = 400  # bootstrap draws over prompts kept with the frontier: their spread is read to 4 %


def mean(values: Sequence[float | None]) -> float | None:
    """Of those that are there; None where none is."""
    known = [v for v in values if v is not None]
    return float(np.mean(known)) if known else None


def mean_se(values: Sequence[float | None]) -> tuple[float | None, float | None]:
    """Mean and standard error over the values that are there."""
    known = np.array([v for v in values if v is not None])
    if not known.size:
        return None, None
    return float(known.mean()), float(known.std(ddof=1) / np.sqrt(known.size)) if known.size > 1 else None


def array(values: Sequence[float | None]) -> Floats:
    """NaN for None."""
    return np.array([math.nan if v is None else v for v in values], dtype=np.float64)


def frontier_of(
    first: Mapping[str, Any], last: Mapping[str, Any], *, beta: float, seed: int, provenance: Mapping[str, Any]
) -> Frontier:
    """A table of one row: the policy of one measurement against the reference, which is the first.

    ``first`` and ``last`` hold ``reward``, ``kl`` and ``gold`` per prompt, lists of P, None where a prompt has no
    value. Each quantity is a mean over the prompts that have it in both, standard errors and draws are over prompts.
    """
    pick = np.random.default_rng(seed).integers(0, len(first["kl"]), (_DRAWS, len(first["kl"])))
    pairs = {name: _known(array(first[name]), array(last[name])) for name in ("reward", "kl", "gold")}
    draws = {name: (_means(a, pick), _means(b, pick)) for name, (a, b) in pairs.items()}
    start, now = pairs["gold"]
    gold = int((~np.isnan(start)).sum()) >= 2
    quality = Gold.of(_estimates(now)[None], gain=_estimates(now - start)[None], reference=_estimates(start))
    return Frontier(
        source="log",
        beta=np.array([beta]),
        reward=_estimates(pairs["reward"][1])[None],
        kl=_estimates(pairs["kl"][1])[None],
        reference_reward=_estimates(pairs["reward"][0]),
        gold=quality if gold else None,
        n=np.array([len(first["kl"])]),
        status=np.array(["weak"]),
        replicates=Replicates(
            kind="bootstrap",
            reward=draws["reward"][1][:, None],
            kl=draws["kl"][1][:, None],
            reference_reward=draws["reward"][0],
            gold=draws["gold"][1][:, None] if gold else None,
            reference_gold=draws["gold"][0] if gold else None,
        ),
        provenance=dict(provenance),
    )


def _known(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    """Both with NaN where either has none."""
    missing = np.isnan(a) | np.isnan(b)
    return np.where(missing, np.nan, a), np.where(missing, np.nan, b)


def _means(values: Floats, pick: NDArray[np.int64]) -> Floats:
    """Mean of each draw over the prompts with a value; a draw without any has the mean of all."""
    drawn = values[pick]
    known = ~np.isnan(drawn)
    n = known.sum(axis=1)
    total = np.where(known, drawn, 0.0).sum(axis=1)
    whole = np.nanmean(values) if (~np.isnan(values)).any() else np.nan
    return np.asarray(np.where(n > 0, total / np.maximum(n, 1), whole))


def _estimates(values: Floats) -> Estimates:
    """Mean over the prompts that have a value, with its t interval; NaN where fewer than two do."""
    known = values[~np.isnan(values)]
    return Estimates.of_means(known if known.size > 1 else np.full(1, np.nan))
