"""Samples cut into rectangles: prompts of one size together, few enough at a time to stay in memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from kleash.samples import Samples

__all__ = ["blocks"]

_CELLS = 200_000
"""Numbers of float64 in one working array: 1.6 MB, so that the ten or so that are alive at a time stay near a core."""


def blocks(
    samples: Samples, width: int, *, cells: int | None = None
) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """Index arrays (P_c,) of prompts and (P_c, K) of their rows, for prompts that all have K samples.

    Parameters
    ----------
    samples
        Grouped by prompt.
    width
        Numbers that the work needs per sample (betas, say): P_c K width stays near ``cells``.
    cells
        That bound; the default keeps working arrays near a core.

    Yields
    ------
    Prompts with one number of samples at a time.
    """
    counts = samples.counts
    for size in np.unique(counts):
        prompts = np.flatnonzero(counts == size)
        step = max(1, int((cells or _CELLS) // (size * width)))
        for start in range(0, prompts.size, step):
            part = prompts[start : start + step]
            yield part, samples.offsets[part][:, None] + np.arange(size)
