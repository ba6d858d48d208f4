"""The tilt's estimates block by block: the whole, random halves of it, and what each answer's absence would do."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from kleash._threads import in_order
from kleash.forecasting.blocks import blocks
from kleash.forecasting.estimate import PromptEstimates, estimate_prompts
from kleash.forecasting.fused import estimate_halved
from kleash.forecasting.intervals import Answers
from kleash.samples import Samples

__all__ = ["FEWEST_TO_HALVE", "Part", "tilted_parts"]

Floats = NDArray[np.float64]
_Block = tuple[NDArray[np.intp], NDArray[np.intp], list[Floats]]

FEWEST_TO_HALVE = 4
"""Answers to a prompt below which there are no halves: each needs two samples."""
_MANY = 3_000_000
"""Answers times betas in a block: a few hundred prompts of 100 answers, enough to keep a thread busy for 20 ms."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Part:
    """Estimates of some prompts, (3, P, B): of all their answers and the mean of their halves, plain and jackknifed.

    No halves: None. ``reference`` (2, P), ``ess`` and ``label_ess`` (P, B), ``noise`` (4, B) as in
    :class:`kleash.forecasting.reweight.Reweighted`.
    """

    prompts: NDArray[np.intp]
    raw: Floats
    jackknife: Floats
    raw_half: Floats | None
    half: Floats | None
    reference: Floats
    ess: Floats
    label_ess: Floats
    noise: Floats


def tilted_parts(
    samples: Samples,
    marked: Floats,
    labelled: NDArray[np.bool_],
    inverse_beta: Floats,
    *,
    n_splits: int,
    rng: np.random.Generator,
    deviations: Answers | None = None,
) -> Iterator[Part]:
    """Estimates of the tilt for all prompts, blocks of them on all cores, in an order that does not depend on these.

    Parameters
    ----------
    samples, marked, labelled
        N answers, the quantity averaged beside the score, and which of them have gold.
    inverse_beta
        1 / beta, shape (B,).
    n_splits
        Random splits into halves.
    rng
        Of the splits.
    deviations
        Collects delete-one deviations.

    Yields
    ------
    Part
    """
    cells = _MANY if n_splits == 1 and deviations is None else None

    def drawn() -> Iterator[_Block]:
        for prompts, rows in blocks(samples, inverse_beta.size, cells=cells):
            n_draws = n_splits if rows.shape[1] >= FEWEST_TO_HALVE else 0
            yield prompts, rows, [_draw(rows.shape, rng) for _ in range(n_draws)]

    def estimated(block: _Block) -> tuple[Part, Floats | None]:
        prompts, rows, draws = block
        r, x = samples.reward[rows], marked[rows]
        return _estimated(prompts, r, x, labelled[rows], draws, inverse_beta, keep=deviations is not None)

    for part, kept in in_order(estimated, drawn()):
        if deviations is not None and kept is not None:
            deviations.add(kept)
        yield part


def _draw(shape: tuple[int, ...], rng: np.random.Generator) -> Floats:
    """Numbers (P, K) by whose order the answers of a prompt are halved."""
    return rng.random(shape)


def _estimated(
    prompts: NDArray[np.intp],
    r: Floats,
    x: Floats,
    labelled: NDArray[np.bool_],
    draws: list[Floats],
    inverse_beta: Floats,
    *,
    keep: bool,
) -> tuple[Part, Floats | None]:
    half = r.shape[1] // 2
    here: PromptEstimates | None = None
    parts: list[PromptEstimates] = []
    halves: list[Floats] = []
    for draw in draws:
        split = np.argpartition(draw, half, axis=1)
        here, both = estimate_halved(r, x, inverse_beta, split=split, labelled=labelled)
        parts += both
        halves += [np.take_along_axis(x, side, axis=1).mean(axis=1) for side in (split[:, :half], split[:, half:])]
    if here is None or keep:
        here = estimate_prompts(r, x, inverse_beta, labelled=labelled, keep_deviations=keep)
    part = Part(
        prompts=prompts,
        raw=here.plain,
        jackknife=here.corrected,
        raw_half=np.mean([part.plain for part in parts], axis=0) if parts else None,
        half=np.mean([part.corrected for part in parts], axis=0) if parts else None,
        reference=np.stack([r.mean(axis=1), x.mean(axis=1)]),
        ess=here.ess,
        label_ess=here.label_ess,
        noise=_noise(parts, halves),
    )
    return part, None if here.deviations is None else _stacked(here.deviations, r, x)


def _noise(parts: list[PromptEstimates], references: list[Floats]) -> Floats:
    """Sum over prompts of the variance of reward, KL, gold and gain that pairs of halves show: (4, B)."""
    if not parts:
        return np.zeros((4, 1))
    gain = [part.corrected[2] - mean[:, None] for part, mean in zip(parts, references, strict=True)]
    whole = [np.concatenate([part.corrected, more[None]]) for part, more in zip(parts, gain, strict=True)]
    pairs = zip(whole[::2], whole[1::2], strict=True)
    return np.asarray(np.mean([((a - b) ** 2).sum(axis=1) for a, b in pairs], axis=0) / 4)


def _stacked(deviations: Floats, reward: Floats, marked: Floats) -> Floats:
    """Deviations of reward, KL, gold, gain at every beta, then of the reference's reward and gold: (P, K, 4 B + 2)."""
    n_samples = reward.shape[1]
    of_reference = [(x.mean(axis=1, keepdims=True) - x) / (n_samples - 1) for x in (reward, marked)]
    gain = deviations[2] - of_reference[1][..., None]
    return np.concatenate([*deviations, gain, of_reference[0][..., None], of_reference[1][..., None]], axis=-1)
