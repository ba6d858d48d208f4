"""Gold by hand: which answers are worth a label, a sheet to fill in, and the labels taken back.

Every answer has a chance above 0 to be chosen, and the chance is kept: the forecast divides by it.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from kleash import _checks, _files
from kleash.errors import DataError, OptionError
from kleash.rows import opened
from kleash.rows.cells import label, number
from kleash.sampling.result import checked_path, read_frame, write_samples
from kleash.train.streams import Purpose, stream

if TYPE_CHECKING:
    import polars as pl

__all__ = ["label_chances", "label_sheet", "labelled_before", "merge_labels"]

Floats = NDArray[np.float64]
_SHEET = ("prompt_id", "draw", "prompt", "answer", "gold", "label_probability")
_PLACE = ("prompt_id", "draw", "answer")
_REACHES = (0.25, 0.5, 1.0)  # of the KL that the samples reach
_FLOOR = 0.05
"""Share of the squared weight of the reference that every answer keeps: no label counts for more than about 4.5 times
what it would at random, whatever gold turns out to be where the judge sees nothing."""


def label_sheet(
    samples: str | Path, sheet: str | Path, *, labels: int = 200, labels_for: str = "gain", seed: int = 0
) -> int:
    """Write a CSV of answers to be labelled by hand, in random order, without the judge's scores.

    Parameters
    ----------
    samples
        A file that :func:`kleash.sample` wrote.
    sheet
        The CSV: ``gold`` is to be filled in.
    labels
        How many.
    labels_for
        ``gain``: mostly those that the gain over the reference hangs on (:func:`label_chances`); ``random``: all alike.
    seed
        Start of the choice.

    Returns
    -------
    int
        How many were chosen: ``labels``, or all there are.

    Raises
    ------
    OptionError
        The sheet is there already, or the samples have labels.
    """
    frame, target = read_frame(Path(samples)), Path(sheet)
    _checks.choice(labels_for, ("gain", "random"), name="labels_for")
    wanted = min(_checks.integer(labels, name="labels", at_least=1), frame.height)
    if target.exists():
        fix = "take it back by --merge, or name another"
        raise OptionError(_checks.message(f"{sheet}", expected="no sheet yet", got="one", fix=fix))
    if "gold" in frame.columns and frame["gold"].count():
        raise OptionError(_checks.message(f"{samples}", expected="answers without labels", got="labels"))
    if labels_for == "gain":
        _, place = np.unique(frame["prompt_id"].to_numpy(), return_inverse=True)
        chance = label_chances(frame["reward"].to_numpy(), place, labels=wanted)
    else:
        chance = np.full(frame.height, wanted / frame.height)
    rng = stream(seed, Purpose.SHEET)
    chosen = rng.permutation(_systematic(chance, rng))
    rows = frame.select("prompt_id", "draw", "prompt", "answer")[chosen.tolist()]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_SHEET)
    for row, probability in zip(rows.iter_rows(), chance[chosen].tolist(), strict=True):
        writer.writerow([*row[:2], *map(_checks.cell, row[2:]), "", repr(probability)])
    _files.write_atomic(target, out.getvalue())
    return len(chosen)


def merge_labels(samples: str | Path, sheet: str | Path) -> tuple[int, int]:
    """Take the labels of a sheet back into the samples.

    Rows that were left empty count as left out by chance, as where a sheet in its random order was filled in from the
    top: the others' probabilities are lowered by the share that is filled in.

    Parameters
    ----------
    samples, sheet
        The files; the samples are written anew.

    Returns
    -------
    tuple of int
        Labels, and rows of the sheet.

    Raises
    ------
    DataError
        A row of the sheet that is no answer of the samples, twice the same, or a label that is no number.
    """
    path = checked_path(Path(samples))
    frame = read_frame(path)
    keys = zip(frame["prompt_id"].to_list(), frame["draw"].to_list(), strict=True)
    found, rows = _filled_in(sheet, {key: i for i, key in enumerate(keys)})
    share = len(found) / rows
    gold: list[float | None] = [None] * frame.height
    chance: list[float | None] = [None] * frame.height
    for i, (value, probability) in found.items():
        gold[i], chance[i] = value, probability * share
    write_samples(_with(frame, gold, chance), path)
    return len(found), rows


def labelled_before(frame: pl.DataFrame, path: Path) -> pl.DataFrame:
    """Samples with the labels by hand of the same samples in a file that is about to be replaced.

    Raises
    ------
    OptionError
        It has labels, and other answers: the chance of a label would no longer be what stands beside it.
    """
    before = read_frame(path) if path.exists() else frame
    if "label_probability" not in before.columns:
        return frame
    if not before.select(_PLACE).equals(frame.select(_PLACE)):
        fix = "write to another file"
        raise OptionError(_checks.message(f"{path}", expected="the answers that were labelled", got="others", fix=fix))
    return _with(frame, before["gold"].to_list(), before["label_probability"].to_list())


def label_chances(reward: Floats, prompt: NDArray[np.int64], *, labels: int) -> Floats:
    """The chance with which each answer is to be labelled, so that the gain at the betas in question is known best.

    Parameters
    ----------
    reward
        Judge's scores, shape (N,).
    prompt
        Which prompt each belongs to, shape (N,), 0 to P - 1.
    labels
        How many labels in all.

    Returns
    -------
    ndarray
        Shape (N,), above 0 and at most 1; they sum to ``labels``.

    Notes
    -----
    The gain is a sum over answers of ``(w - 1 / K) gold``, w the tilt's weights: its variance by labelling is least if
    chances are proportional to ``|w - 1 / K|``. They are proportional to ``sqrt(mean (w - 1 / K)^2 + .05 / K^2)``, the
    mean over the betas at which the KL is a quarter, a half and all of ``log K - 2`` nats, what the samples reach (at
    least a quarter of a nat). Chances above 1 are cut, the others raised.

    References
    ----------
    Neyman 1934, optimal allocation; Horvitz and Thompson 1952.
    """
    counts = np.bincount(prompt).astype(np.float64)[prompt]
    reach = max(math.log(float(np.median(counts))) - 2.0, 0.25)
    squares = [(_weights(reward, prompt, _tightness(reward, prompt, r * reach)) - 1.0 / counts) ** 2 for r in _REACHES]
    return _cut(np.sqrt(np.mean(squares, axis=0) + _FLOOR / counts**2), labels)


def _weights(reward: Floats, prompt: NDArray[np.int64], tightness: float) -> Floats:
    """The tilt's weights at beta = 1 / tightness, summing to one over each prompt's answers."""
    top = np.full(prompt.max() + 1, -np.inf)
    np.maximum.at(top, prompt, reward)
    raw = np.exp(tightness * (reward - top[prompt]))
    total: Floats = raw / np.bincount(prompt, weights=raw)[prompt]
    return total


def _tightness(reward: Floats, prompt: NDArray[np.int64], kl: float) -> float:
    """1 / beta at which the samples' mean KL is so many nats, or as near to it as scores with ties allow."""
    counts = np.bincount(prompt)

    def excess(log_tightness: float) -> float:
        w = _weights(reward, prompt, math.exp(log_tightness))
        terms = w * np.log(np.maximum(w, 1e-300) * counts[prompt])
        return float(np.bincount(prompt, weights=terms).mean()) - kl

    spread = float(np.ptp(reward)) or 1.0
    low, high = math.log(1e-6 / spread), math.log(1e6 / spread)
    if excess(high) <= 0.0:
        return math.exp(high)
    return math.exp(brentq(excess, low, high, xtol=1e-3))


def _cut(size: Floats, labels: int) -> Floats:
    """Chances proportional to sizes, at most 1, that sum to ``labels``."""
    chance = np.zeros_like(size)
    sure = np.zeros(size.shape, dtype=bool)
    while True:
        left = labels - np.count_nonzero(sure)
        chance[~sure] = size[~sure] / size[~sure].sum() * left if not sure.all() else 0.0
        chance[sure] = 1.0
        more = chance > 1.0
        if not more.any():
            return chance
        sure |= more


def _systematic(chance: Floats, rng: np.random.Generator) -> NDArray[np.int64]:
    """Rows chosen with these chances, as many as they sum to: equal steps through a random order."""
    order = rng.permutation(chance.size)
    ends = np.concatenate([[0.0], np.cumsum(chance[order])])
    ends *= round(ends[-1]) / ends[-1]  # rounding must not lose the last one
    steps = np.floor(ends + rng.random())
    return order[np.flatnonzero(np.diff(steps) > 0)]


def _filled_in(sheet: str | Path, places: Mapping[tuple[str, int], int]) -> tuple[dict[int, tuple[float, float]], int]:
    """Gold and probability by place of the answer, and how many rows there are."""
    found: dict[int, tuple[float, float]] = {}
    seen: set[int] = set()
    with opened(sheet) as source:
        for line, row in source.rows():
            missing = [name for name in ("prompt_id", "draw", "gold", "label_probability") if name not in row]
            if missing:
                raise source.error(_checks.message("columns", expected=", ".join(missing), got=", ".join(row)), line)
            place = places.get((label(row["prompt_id"]) or "", int(_number(source, line, row, "draw") or 0)))
            if place is None or place in seen:
                got = "one of others" if place is None else "the same twice"
                raise source.error(_checks.message("row", expected="an answer of the samples", got=got), line)
            seen.add(place)
            gold = _number(source, line, row, "gold")
            if gold is not None:
                found[place] = gold, _number(source, line, row, "label_probability") or 0.0
        if not found:
            raise source.error(_checks.message("gold", expected="labels", got="none filled in"))
    return found, len(seen)


def _number(source: Any, line: int, row: Mapping[str, Any], name: str) -> float | None:
    try:
        return number(row[name])
    except ValueError:
        error: DataError = source.error(_checks.message(name, expected="a number", got=repr(row[name])[:40]), line)
        raise error from None


def _with(frame: pl.DataFrame, gold: list[float | None], chance: list[float | None]) -> pl.DataFrame:
    """The samples with labels beside the rewards."""
    import polars as pl

    labels = [pl.Series("gold", gold, dtype=pl.Float64), pl.Series("label_probability", chance, dtype=pl.Float64)]
    rest = frame.drop(["gold", "label_probability"], strict=False)
    at = rest.columns.index("n_tokens")
    names = [*rest.columns[:at], "gold", "label_probability", *rest.columns[at:]]
    return rest.with_columns(labels).select(names)
