"""Every prompt's estimates at every beta from answers of several sources: each pool by itself, then all together."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kleash.forecasting.intervals import Answers
from kleash.forecasting.mixture import Drawn, MixtureEstimates, estimate_mixture
from kleash.forecasting.pools import Marks, Pool, marks_of, pools_of, same_sizes
from kleash.forecasting.reweight import Labels, Progress, Reweighted
from kleash.samples import Samples

__all__ = ["Pooled", "reweight_sources"]

Floats = NDArray[np.float64]

_MOST_SPLITS, _HALVED_SAMPLES = 8, 50_000
"""Random splits into halves, averaged, and samples to halve in all: as for the reference's own answers."""
_MARGIN = 2.5
"""Nats short of log n from which on a pool is taken to speak of a target: exp(2.5) = 12 effective answers a prompt."""
_WIDTH = 4  # numbers per answer and beta that are alive at a time, beside those of a forecast from the reference


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Pooled:
    """Estimates from several sources, with how they were come by; B betas, then the reference itself as the last.

    ``table`` holds the estimates at the B betas. ``pools`` are the pools, ``weight`` (L, B + 1) what each counts;
    ``spent`` (B + 1,) is the mean KL to the mixture in nats, ``log_n`` (B + 1,) the mean log of the answers per prompt
    behind it, ``reach`` (B + 1,) the mean KL to the nearest source, ``share`` (S, B + 1) each source's share of the
    weight, ``anchored`` (B + 1,) whether the reference's own answers were used.
    """

    table: Reweighted
    pools: tuple[Pool, ...]
    weight: Floats
    spent: Floats
    log_n: Floats
    reach: Floats
    share: Floats
    anchored: NDArray[np.bool_]
    known: NDArray[np.bool_]


@dataclasses.dataclass(kw_only=True, eq=False)
class _Sheet:
    """What one pool says: (3, P, C) ``plain``, ``value``, ``drift``, NaN where it has nothing; C columns of betas."""

    plain: Floats
    value: Floats
    drift: Floats
    spent: Floats
    distance: Floats
    share: Floats
    ess: Floats
    label_ess: Floats
    log_n: Floats

    @classmethod
    def empty(cls, n_prompts: int, n_columns: int, n_sources: int) -> _Sheet:
        """Nothing known yet."""
        three, one = (3, n_prompts, n_columns), (n_prompts, n_columns)
        every = (n_sources, n_prompts, n_columns)
        return cls(
            plain=np.full(three, np.nan),
            value=np.full(three, np.nan),
            drift=np.full(three, np.nan),
            spent=np.full(one, np.nan),
            distance=np.full(every, np.nan),
            share=np.zeros(every),
            ess=np.full(one, np.nan),
            label_ess=np.zeros(one),
            log_n=np.full(n_prompts, np.nan),
        )

    def fill(
        self,
        prompts: NDArray[np.intp],
        present: list[int],
        drawn: Drawn,
        here: MixtureEstimates,
        halves: list[MixtureEstimates],
        *,
        correction: bool,
    ) -> None:
        """What some prompts' answers say, whole and in halves."""
        raw, jackknife = here.plain, here.corrected
        if not halves:
            drift = raw - jackknife
        elif correction:
            drift = np.mean([half.corrected for half in halves], axis=0) - jackknife
        else:
            drift = np.mean([half.plain for half in halves], axis=0) - raw
        value = jackknife - 0.5 * drift if correction else raw.copy()
        unlabelled = ~(drawn.label_weight > 0).any(axis=1)
        for array in (raw, value, drift):
            array[2, unlabelled] = np.nan
        self.plain[:, prompts], self.value[:, prompts], self.drift[:, prompts] = raw, value, drift
        self.spent[prompts] = here.spent + value[1] - raw[1]  # of few answers' bias in KL, what the correction took out
        for number, source in enumerate(present):
            self.distance[source, prompts] = here.distance[number] + value[1] - raw[1]
            self.share[source, prompts] = here.share[number]
        self.ess[prompts], self.label_ess[prompts] = here.ess, here.label_ess
        self.log_n[prompts] = np.log(drawn.reward.shape[1])


def reweight_sources(
    samples: Samples,
    beta: Floats,
    *,
    labels: Labels | None,
    rng: np.random.Generator,
    correction: bool = True,
    deviations: Answers | None = None,
    progress: Progress | None = None,
    without: Sequence[int] = (),
) -> Pooled:
    """Estimate reward, KL and gold of the tilt at every beta, for every prompt, from answers of several sources.

    Parameters
    ----------
    samples, labels
        P prompts with their answers and sources, and their gold.
    beta
        Coefficients above 0, shape (B,).
    rng
        Splits the answers of each source to a prompt into halves.
    correction
        False leaves the plain estimates as they are.
    deviations
        Collects delete-one deviations, for intervals with fixed prompts.
    progress
        Called with answers done and answers in all.
    without
        Sources, by number, whose answers are not used.

    Returns
    -------
    Pooled

    Notes
    -----
    Bias is taken out as in :func:`kleash.forecasting.reweight.reweight`, every split and every jackknife within
    sources.

    Pools that cannot be joined, because they do not know each other's densities, are averaged with weights that go as
    their effective samples, which is as 1 / variance for independent samples. Only pools that reach a target (KL to
    their mixture at most log n - 2.5) count there; where none does, the one that comes nearest.
    """
    assert samples.sources is not None  # the caller has sources
    inverse_beta = np.append(1 / beta, 0.0)
    pools, gold = pools_of(samples.sources, without=without), marks_of(samples, labels)
    n_splits = int(np.clip(_HALVED_SAMPLES // samples.n_samples, 1, _MOST_SPLITS))
    size = (samples.n_prompts, inverse_beta.size, len(samples.sources.names))
    sheets = [_Sheet.empty(*size) for _ in pools]
    alone = deviations if len(pools) == 1 else None
    done = 0
    for rows in same_sizes(samples, inverse_beta.size * _WIDTH):
        for pool, sheet in zip(pools, sheets, strict=True):
            drawn = rows.drawn(samples, pool, gold)
            if drawn is None:
                continue
            here = estimate_mixture(drawn, inverse_beta, keep_deviations=alone is not None)
            halves = [estimate_mixture(half, inverse_beta) for _ in range(n_splits) for half in drawn.halves(rng)]
            present = [s for s in pool.sources if rows.sizes[s]]
            sheet.fill(rows.prompts, present, drawn, here, halves, correction=correction)
            if alone is not None and here.deviations is not None:
                alone.add(_stacked(here.deviations))
        done += rows.rows.size
        if progress is not None:
            progress(done, samples.n_samples)
    weight = _weights(sheets)
    if deviations is not None and alone is None:
        _collect(samples, pools, gold, inverse_beta, weight, deviations)
    return _together(pools, sheets, weight, labels, correction=correction)


def _weights(sheets: list[_Sheet]) -> Floats:
    """What each pool counts at each beta, (L, C): its effective samples, if it reaches the target."""
    if len(sheets) == 1:
        return np.ones((1, sheets[0].spent.shape[1]))
    ess = np.stack([np.nanmean(sheet.ess, axis=0) for sheet in sheets])
    over = np.stack([np.nanmean(sheet.spent - sheet.log_n[:, None], axis=0) + _MARGIN for sheet in sheets])
    counts = (over <= 0) | (over == over.min(axis=0))
    weight = np.where(counts, ess, 0.0)
    return np.asarray(weight / weight.sum(axis=0))


def _mean(values: list[Floats], weight: Floats) -> Floats:
    """Weighted mean over pools of (..., P, C) arrays with NaN where a pool has nothing; NaN where none has."""
    total, mass = np.zeros_like(values[0]), np.zeros_like(values[0])
    for array, w in zip(values, weight, strict=True):
        there = np.isfinite(array) & (w > 0)
        total += np.where(there, array * w, 0.0)
        mass += np.where(there, w, 0.0)
    return np.divide(total, mass, out=np.full_like(total, np.nan), where=mass > 0)


def _together(
    pools: tuple[Pool, ...], sheets: list[_Sheet], weight: Floats, labels: Labels | None, *, correction: bool
) -> Pooled:
    """The pools as one table."""
    plain, value, drift = (
        _mean([getattr(sheet, name) for sheet in sheets], weight) for name in ("plain", "value", "drift")
    )
    known = np.isfinite(value[2]).all(axis=1)
    moved = np.nanmean(drift[:2], axis=1)
    of_gold = drift[2, known].mean(axis=0) if known.any() else np.zeros(drift.shape[-1])
    moved = np.concatenate([moved, of_gold[None]])
    label_ess = sum(w * sheet.label_ess.sum(axis=0) for w, sheet in zip(weight, sheets, strict=True))
    kl = value[1]
    kl[(kl < 0) & (kl > -1e-12)] = 0.0  # a difference of rounded sums, not an impossible estimate
    for array in (plain, value):
        array[2, ~known] = 0.0  # never averaged: these prompts have no gold
    distance = np.stack([np.nanmin(np.where(np.isnan(s.distance), np.inf, s.distance), axis=0) for s in sheets])
    table = Reweighted(
        plain=plain[..., :-1],
        value=value[..., :-1],
        drift=moved[:, :-1],
        left=np.abs(moved[:, :-1]) * (0.5 if correction else 1.0),
        reference=value[[0, 2], :, -1],
        ess=_mean([sheet.ess for sheet in sheets], weight)[:, :-1],
        label_ess=np.asarray(label_ess)[:-1],
        noise=np.zeros((4, moved.shape[1] - 1)),
    )
    log_n = np.stack([np.nanmean(sheet.log_n) for sheet in sheets])
    return Pooled(
        table=table,
        pools=pools,
        weight=weight,
        spent=_mean([sheet.spent for sheet in sheets], weight).mean(axis=0),
        log_n=log_n @ weight,
        reach=np.where(weight > 0, np.mean(distance, axis=1), np.inf).min(axis=0),
        share=np.asarray(sum(w * sheet.share.mean(axis=1) for w, sheet in zip(weight, sheets, strict=True))),
        anchored=np.asarray((weight * np.array([[pool.anchored] for pool in pools])).sum(axis=0) > 0),
        known=known if labels is None else known & labels.known,
    )


def _collect(
    samples: Samples,
    pools: tuple[Pool, ...],
    gold: Marks | None,
    inverse_beta: Floats,
    weight: Floats,
    deviations: Answers,
) -> None:
    """Delete-one deviations of the pools' weighted mean: an answer that several pools use moves them all."""
    for rows in same_sizes(samples, inverse_beta.size * _WIDTH):
        joint = np.zeros((3, *rows.rows.shape, inverse_beta.size))
        for pool, counts in zip(pools, weight, strict=True):
            drawn = rows.drawn(samples, pool, gold)
            if drawn is None:
                continue
            own = estimate_mixture(drawn, inverse_beta, keep_deviations=True).deviations
            n, total = drawn.reward.shape[1], rows.rows.shape[1]
            assert own is not None  # they were asked for
            joint[:, :, rows.columns(pool)] += counts * own * np.sqrt((1 - 1 / n) / (1 - 1 / total))
        deviations.add(_stacked(joint))


def _stacked(deviations: Floats) -> Floats:
    """Deviations of reward, KL, gold, gain at every beta, then of the reference's reward and gold: (P, K, 4 B + 2)."""
    reference = deviations[..., -1:]
    at = deviations[..., :-1]
    return np.concatenate([*at, at[2] - reference[2], reference[0], reference[2]], axis=-1)
