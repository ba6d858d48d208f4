"""The forecast's table: means over prompts with their intervals, how far each can be trusted, what is masked."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from kleash.forecasting.gate import demoted, row_status, too_little_gold
from kleash.forecasting.intervals import MIN_PROMPTS, Answers, Prompts, stretched
from kleash.forecasting.known import Ends
from kleash.forecasting.missed import MOVED, missed_shift
from kleash.forecasting.reach import worst
from kleash.forecasting.reweight import Labels, Reweighted
from kleash.forecasting.sourced import Sourced
from kleash.forecasting.tail import LIGHT, Tail
from kleash.frontier import Estimates, Frontier, Gold, Replicates
from kleash.samples import Samples

__all__ = ["PromptsAre", "collector", "lay_out"]

Floats = NDArray[np.float64]
PromptsAre = Literal["sampled", "fixed"]

_DRAWS = 2_000
_MAX_MEANS = 4_000_000  # numbers of one quantity's draws, betas times draws: 32 MB
_MAX_COUNTS = 20_000_000  # numbers in the array of resampled prompts (160 MB): fewer draws for very many prompts
_FEWEST_DRAWS = 400
_FEWEST_FIXED = 12  # answers to each of the prompts, where these are fixed: with 8 the drift is mostly noise
_FEWEST_SAMPLED = 5  # prompts of a population, the fewest that the bench tries
_STRETCH_FIXED, _STRETCH_FEW, _STRETCH_GOLD = 1.5, 1.25, 1.1
"""By how much the intervals of reward and KL grow with prompts that are fixed, and with fewer than 20 sampled ones.

By trial on ``bench/forecast_calibration.py``: without it 1 to 20 fixed prompts are covered in 67 to 87 % past a
third of the reach, and 5 to 15 sampled ones in 73 to 86 %. With sources rows that are looser than each grow by
1.25, and gold's by 1.1: ``bench/forecast_sources.py``.
"""


def lay_out(
    samples: Samples,
    labels: Labels | None,
    table: Reweighted,
    collected: Answers | None,
    tail: Tail | Sourced,
    *,
    betas: Floats,
    rng: np.random.Generator,
    ends: Ends,
    objective: str,
    prompts: PromptsAre,
    correction: bool,
    provenance: Mapping[str, Any],
) -> Frontier:
    """The reweighted means as a Frontier; rows that are beyond the samples' reach are empty.

    Parameters
    ----------
    samples, labels, table, tail
        What was read, which of it has gold, its means under each policy, and how scores end; with several sources
        their own reach and tail.
    collected
        Each answer's part in the means, where prompts are fixed; None: prompts are resampled.
    betas, objective, prompts, correction
        As in :func:`kleash.forecast`.
    rng
        Of the intervals.
    ends
        What is known of the scales; no interval goes past their ends.
    provenance
        What the table came from.

    Returns
    -------
    Frontier
    """
    estimates, replicates = _intervals(samples, labels, table, collected, rng)
    if collected is not None or samples.n_prompts < MIN_PROMPTS:
        factor: float | Floats = _STRETCH_FEW if collected is None else _STRETCH_FIXED
        if not isinstance(tail, Tail):
            factor = np.where(tail.looser, _STRETCH_FEW, 1.0)
            for name in ("gold", "gain"):
                estimates[name] = _longer(estimates[name], _STRETCH_GOLD)
        for name, origin in (("reward", table.reference[0].mean()), ("kl", 0.0)):
            estimates[name] = stretched(estimates[name], origin, factor=factor)
    status = _status(samples, labels, table, estimates, tail, correction=correction)
    if isinstance(tail, Tail):  # the reference's own answers
        status = demoted(status, too_little_gold(samples, labels, table, betas), _too_few(samples, prompts))
        if objective == "tilt":
            missed = missed_shift(samples, labels, table, betas, estimates, reward_max=ends.reward_max)
            status = demoted(status, missed > MOVED)
    usable = status != "beyond"
    return Frontier(
        source="forecast",
        beta=betas,
        reward=_within(estimates["reward"], hi=ends.reward_max).where(usable),
        kl=estimates["kl"].where(usable),
        gold=None if labels is None else _gold(estimates, ends.gold_min, tail).where(usable),
        reference_reward=_within(estimates["reference_reward"], hi=ends.reward_max)[0],
        n=np.full(betas.size, _independent_units(samples, labels, prompts)),
        status=status,
        diagnostics=_diagnostics(samples, table, labels, tail, usable),
        replicates=_masked(replicates, usable),
        gold_range=None if labels is None else _gold_range(samples, ends.gold_min),
        provenance=provenance,
    )


def _longer(estimates: Estimates, factor: float) -> Estimates:
    """The intervals with both sides so much longer."""
    middle = estimates.value
    lo, hi = middle - factor * (middle - estimates.lo), middle + factor * (estimates.hi - middle)
    return dataclasses.replace(estimates, lo=lo, hi=hi)


def _gold(estimates: Mapping[str, Estimates], gold_min: float | None, tail: Tail | Sourced) -> Gold:
    """Gold, gain and the reference's gold; no gain where policies alone do not reach back to the reference."""
    reached = np.asarray(isinstance(tail, Tail) or tail.reference_status == "ok")
    return Gold.of(
        _within(estimates["gold"], lo=gold_min),
        gain=estimates["gain"].where(reached),
        reference=_within(estimates["reference_gold"], lo=gold_min).where(reached)[0],
    )


def _within(estimates: Estimates, *, lo: float | None = None, hi: float | None = None) -> Estimates:
    """The interval cut at the declared ends of the scale, past which no mean can lie."""
    least, most = -np.inf if lo is None else lo, np.inf if hi is None else hi
    inside = (estimates.value >= least) & (estimates.value <= most)
    return dataclasses.replace(
        estimates,
        lo=np.where(inside, np.maximum(estimates.lo, least), estimates.lo),
        hi=np.where(inside, np.minimum(estimates.hi, most), estimates.hi),
    )


def collector(samples: Samples, labels: Labels | None, betas: Floats) -> Answers:
    """An empty collection for reward, KL, gold, gain at every beta and the reference's reward and gold."""
    n_known = samples.n_prompts if labels is None else int(labels.known.sum())
    n = np.full(4 * betas.size + 2, float(samples.n_prompts))
    n[2 * betas.size : 4 * betas.size] = n_known
    n[-1] = n_known
    return Answers.of(n)


def _intervals(
    samples: Samples, labels: Labels | None, table: Reweighted, collected: Answers | None, rng: np.random.Generator
) -> tuple[dict[str, Estimates], Replicates]:
    """Means over prompts with their intervals, by name, and the draws behind them."""
    names = ("reward", "kl", "gold", "gain", "reference_reward", "reference_gold")
    everyone = np.ones(samples.n_prompts, dtype=bool)
    known = everyone if labels is None else labels.known
    centre = 0.0 if labels is None else labels.centre
    reward, kl, marked = table.value
    of_reference = table.reference[..., None]
    values = dict(
        zip(
            names,
            (reward, kl, centre + marked, marked - of_reference[1], of_reference[0], centre + of_reference[1]),
            strict=True,
        )
    )
    who = dict(zip(names, (everyone, everyone, known, known, everyone, known), strict=True))
    left = dict(zip(names, (*table.left, table.left[2], np.zeros(1), np.zeros(1)), strict=True))
    if collected is None:
        most = min(_MAX_COUNTS // samples.n_prompts, _MAX_MEANS // reward.shape[1])
        n_draws = int(np.clip(most, _FEWEST_DRAWS, _DRAWS))
        resampled = Prompts.draw(samples.n_prompts, rng=rng, n_draws=n_draws, clusters=samples.clusters)
        pairs = {
            name: resampled.mean(values[name], widen=left[name], known=who[name], positive=name == "kl")
            for name in names
        }
    else:
        means = np.concatenate([values[name][who[name]].mean(axis=0) for name in names])
        widen = np.concatenate([left[name] for name in names])
        noise = np.concatenate([*table.noise, np.zeros(2)])  # of the reference no bias is taken out
        estimates, draws = collected.means(
            means,
            widen=widen,
            noise=noise,
            rng=rng,
            n_draws=int(np.clip(_MAX_MEANS // reward.shape[1], _FEWEST_DRAWS, _DRAWS)),
        )
        stops = np.cumsum([values[name].shape[1] for name in names])
        parts = [slice(stop - values[name].shape[1], stop) for name, stop in zip(names, stops, strict=True)]
        pairs = {name: (estimates[part], draws[:, part]) for name, part in zip(names, parts, strict=True)}
    replicates = Replicates(
        kind="bootstrap",
        reward=pairs["reward"][1],
        kl=pairs["kl"][1],
        reference_reward=pairs["reference_reward"][1][:, 0],
        gold=None if labels is None else pairs["gold"][1],
        reference_gold=None if labels is None else pairs["reference_gold"][1][:, 0],
    )
    return {name: pair[0] for name, pair in pairs.items()}, replicates


def _status(
    samples: Samples,
    labels: Labels | None,
    table: Reweighted,
    estimates: dict[str, Estimates],
    tail: Tail | Sourced,
    *,
    correction: bool,
) -> NDArray[np.str_]:
    gold = np.zeros(1) if samples.gold is None or labels is None else samples.gold[labels.labelled]
    names = ("reward", "kl") if labels is None else ("reward", "kl", "gold")
    se = np.stack([estimates[name].se for name in names])
    origin = (estimates["reference_reward"].value, np.zeros(1), estimates["reference_gold"].value)
    unsure = np.isnan(se)  # one prompt with labels has a mean and no error
    rounding = 1e-14 * float(samples.counts.max()) * np.array([np.abs(samples.reward).max(), 1.0, np.abs(gold).max()])
    drift = table.drift[: len(names)]
    status = row_status(
        drift=np.where(np.abs(drift) <= rounding[: len(names), None], 0.0, drift),
        se=np.where(unsure, np.inf, se),
        change=np.stack([estimates[name].value - start for name, start in zip(names, origin, strict=False)]),
        kl=estimates["kl"].value,
        reward=estimates["reward"].value,
        reward_range=(float(samples.reward.min() - rounding[0]), float(samples.reward.max() + rounding[0])),
        gold=None if labels is None else estimates["gold"].value,
        gold_range=(float(gold.min() - rounding[2]), float(gold.max() + rounding[2])),
        log_samples=_log_samples(samples, table) if isinstance(tail, Tail) else np.inf,
        n_gold_eff=None if labels is None else table.label_ess,
        tail=tail if isinstance(tail, Tail) else LIGHT,
        corrected=correction,
    )
    if not isinstance(tail, Tail):
        status = worst(status, tail.row_status(estimates))
    return np.where((status == "ok") & unsure.any(axis=0), "weak", status)


def _log_samples(samples: Samples, table: Reweighted) -> Floats:
    """Mean over prompts of log K, nats, or that weighted by the prompts' KL where it is less, shape (B,)."""
    log_k = np.log(samples.counts)
    kl = np.maximum(table.value[1], 0.0)
    total = kl.sum(axis=0)
    where_it_goes = np.divide(log_k @ kl, total, out=np.full_like(total, log_k.mean()), where=total > 0)
    return np.asarray(np.minimum(where_it_goes, log_k.mean()))


def _too_few(samples: Samples, prompts: PromptsAre) -> bool:
    """Too few answers to fixed prompts, or prompts of a population, for any row to be sure."""
    if prompts == "fixed":
        return bool(np.log(samples.counts).mean() < np.log(_FEWEST_FIXED))
    return samples.n_prompts < _FEWEST_SAMPLED


def _diagnostics(
    samples: Samples, table: Reweighted, labels: Labels | None, tail: Tail | Sourced, usable: NDArray[np.bool_]
) -> dict[str, Floats]:
    """Chi-squared from the weights, effective samples per prompt, effective labels in all, shape of the tail."""
    chi2 = (samples.counts[:, None] / table.ess - 1).mean(axis=0)
    n_gold_eff = np.full(usable.size, np.nan) if labels is None else table.label_ess
    return {
        "chi2": np.where(usable, chi2, np.nan),
        "ess": table.ess.mean(axis=0),
        "n_gold_eff": n_gold_eff,
        "khat": np.full(usable.size, tail.shape if isinstance(tail, Tail) else tail.tail.shape),
    }


def _masked(replicates: Replicates, usable: NDArray[np.bool_]) -> Replicates:
    """The draws with nothing left of the rows that are beyond."""
    return Replicates(
        kind=replicates.kind,
        reward=np.where(usable, replicates.reward, np.nan),
        kl=np.where(usable, replicates.kl, np.nan),
        reference_reward=replicates.reference_reward,
        gold=None if replicates.gold is None else np.where(usable, replicates.gold, np.nan),
        reference_gold=replicates.reference_gold,
    )


def _independent_units(samples: Samples, labels: Labels | None, prompts: PromptsAre) -> int:
    """What differences between betas have their degrees of freedom from: prompts (with labels, if any), or answers."""
    if prompts == "fixed":
        return samples.n_samples if labels is None else samples.n_gold
    known = np.ones(samples.n_prompts, dtype=bool) if labels is None else labels.known
    return int(known.sum()) if samples.clusters is None else np.unique(samples.clusters[known]).size


def _gold_range(samples: Samples, gold_min: float | None) -> float:
    assert samples.gold is not None  # there are labels
    least, most = float(np.nanmin(samples.gold)), float(np.nanmax(samples.gold))
    return 0.0 if least == most else most - (least if gold_min is None else gold_min)
