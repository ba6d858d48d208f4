"""Forecast: from scored reference samples to the whole Frontier, before anyone trains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import softmax

from kleash import _checks
from kleash._version import version
from kleash.errors import DataError, OptionError
from kleash.forecasting.advice import advise, tail_notes, with_breakdown
from kleash.forecasting.assumed import looked_at
from kleash.forecasting.best_of_n import BestOfNRow, best_of_n_rows
from kleash.forecasting.best_of_n_of_sources import best_of_n_of_sources
from kleash.forecasting.finite_groups import finite_group_weights
from kleash.forecasting.grid import default_betas
from kleash.forecasting.grid_of_sources import default_betas_of_sources
from kleash.forecasting.have import have_of
from kleash.forecasting.known import Ends, default_tolerance, known_ends
from kleash.forecasting.layout import PromptsAre, collector, lay_out
from kleash.forecasting.onward import onward_of
from kleash.forecasting.plan import plan_of, with_numbers
from kleash.forecasting.result import Forecast
from kleash.forecasting.reweight import Labels, PolicyWeights, Progress, Reweighted, reweight
from kleash.forecasting.rung import with_next_rung
from kleash.forecasting.sourced import Sourced
from kleash.forecasting.standardised import large_group_weights
from kleash.forecasting.survey import survey
from kleash.forecasting.tail import score_tail
from kleash.forecasting.trainer import TrainerOrder, implied
from kleash.forecasting.unseen import Unseen, unseen_cheats, unseen_in_words
from kleash.forecasting.unseen_of_sources import unseen_of_sources
from kleash.frontier import LARGEST, Frontier
from kleash.samples import Samples, read_samples
from kleash.window import Verdict

__all__ = ["Objective", "PromptsAre", "forecast"]

Floats = NDArray[np.float64]
Objective = Literal["tilt", "group-standardised"]

_ANSWERS_PER_BETA = 2


def forecast(
    samples: Samples | str | Path | Sequence[str | Path],
    *,
    beta: ArrayLike | None = None,
    reward_max: float | None = None,
    gold_min: float | None = None,
    tolerance: float | None = None,
    objective: Objective | None = None,
    group_size: int | None = None,
    prompts: PromptsAre = "sampled",
    seed: int = 0,
    correction: bool = True,
    trainer: str | None = None,
    length: float | None = None,
    settings: Mapping[str, Any] | None = None,
    have: float | None = None,
    progress: Progress | None = None,
) -> Forecast:
    """What training at each beta would do to the judge's score and to the true quality, from scored samples alone.

    Use it before training, with answers drawn from the reference at temperature 1 without top-k or top-p; or with
    answers of any policies whose log ratio to the reference is known, which reach further. It speaks of the best
    policy at each beta, not of a trainer that stops short of it, and of betas within the samples' reach; the others
    are refused (status ``beyond``).

    Parameters
    ----------
    samples
        Scored answers, at least two to a prompt; gold on all rows, some, or none. Or files of them with the default
        column names; :func:`kleash.read_samples` reads others. Answers of policies carry their source and log ratio.
    beta
        Coefficients above 0, in reward units per nat (``group-standardised``: the trainer's own beta); default: 48
        values from 'no effect' to past the horizon.
    reward_max, gold_min
        The largest score the judge can give and the worth of a worthless answer; both are needed to say what a cheat
        nobody has seen could cost.
    tolerance
        Gold units below which a loss or a gain has no practical weight; default 5 % of gold's range.
    objective
        ``tilt``: reward - beta KL. ``group-standardised``: GRPO with standardised rewards. Default: what ``trainer``
        follows under ``settings``, else the tilt.
    group_size
        Answers per group: of the standardised objective and of ``trainer``; default the trainer's, else the limit of
        large groups.
    prompts
        ``sampled``: the prompts stand for a population. ``fixed``: they are the whole population.
    seed
        Of the bootstrap, the halves and the answers shown.
    correction
        False: plain self-normalised estimates, biased towards the reference.
    trainer, length, settings
        A trainer that the safe beta is to be translated for, the mean tokens per answer, and the trainer's own options
        where they are not at their defaults; see :func:`kleash.convert`. SDs of the judge's score come from the
        samples.
    have
        The coefficient in use today (of ``trainer`` where one is named, else a beta): its row is added, with what
        moving to the safe beta would do.
    progress
        Called with samples done and samples in all.

    Returns
    -------
    Forecast

    Raises
    ------
    OptionError
        A beta that is not above 0, a ``reward_max`` below a score in the data, and the like.
    DataError
        No source is what its log ratios say.

    Notes
    -----
    Estimates in :mod:`kleash.forecasting.reweight`, intervals in ``intervals``, statuses in ``gate`` and ``tail``,
    measured coverage in docs/calibration.md.

    Examples
    --------
    >>> import numpy as np
    >>> from kleash import Samples, forecast
    >>> rng = np.random.default_rng(0)
    >>> score = rng.normal(size=(200, 24))
    >>> samples = Samples.from_arrays(np.repeat(np.arange(200), 24), score.ravel(), gold=score.ravel())
    >>> result = forecast(samples, beta=[2.0])
    >>> result.frontier.reward.value.round(1).tolist(), result.frontier.status.tolist()
    ([0.5], ['ok'])
    """
    samples = samples if isinstance(samples, Samples) else read_samples(samples)
    _check_population(samples, prompts)
    possible = samples.sources is None and prompts == "sampled" and samples.n_prompts > 1
    told = implied(objective, trainer, settings, group_size, possible=possible)
    objective, group_size = told.objective, group_size or told.group_size
    seed = _checks.integer(seed, name="seed", at_least=0)
    _must_have_squares(samples)
    assumed = looked_at(samples)
    samples, n_gold = assumed.samples, samples.n_gold
    seen = None if samples.sources is None else survey(samples)
    allowed = (get_args(Objective), "") if seen is None else (("tilt",), " for answers of policies")
    _checks.choice(objective, allowed[0], name=f"objective{allowed[1]}")
    samples = samples if seen is None else seen.samples
    order = _order(trainer, objective, length, group_size, settings)
    present = None if have is None else _present(have, order)
    betas = _betas(samples, beta, objective, present)
    labels = Labels.of(samples)
    _check_limits(samples, reward_max, gold_min, tolerance)
    ends = Ends(reward_max=reward_max, gold_min=gold_min)
    if seen is None:
        ends = known_ends(samples, reward_max=reward_max, gold_min=gold_min)
    notes = [*told.notes, *samples.notes, *(seen.notes if seen else ()), *ends.notes]
    weights = _policy_weights(objective, None if objective == "tilt" and order else group_size, prompts, seed)
    if prompts == "sampled" and samples.n_prompts == 1:
        if weights is not None:
            raise DataError("one prompt cannot stand for a population; expected at least two for this objective")
        prompts = "fixed"
        notes.append("There is one prompt: intervals speak of its answers only, not of other prompts.")
    split, boot, show = np.random.default_rng(seed).spawn(3)
    collected = collector(samples, labels, betas) if prompts == "fixed" else None
    common: dict[str, Any] = {"rng": split, "correction": correction, "deviations": collected, "progress": progress}
    if seen is None or samples.sources is None:
        sourced, tail = None, score_tail(samples, reward_max=reward_max)
        table = reweight(samples, betas, labels=labels, weights=weights, **common)
    else:
        sourced = Sourced.of(seen, betas, labels=labels, reward_max=reward_max, **common)
        table, labels, tail = sourced.pooled.table, sourced.labels, sourced.open_tail
    how: dict[str, Any] = {"objective": objective, "prompts": prompts, "correction": correction}
    frontier = lay_out(
        samples,
        labels,
        table,
        collected,
        sourced or tail,
        betas=betas,
        rng=boot,
        ends=ends,
        **how,
        provenance=_provenance(samples, group_size=group_size, seed=seed, **how),
    )
    limit = default_tolerance(samples, ends) if tolerance is None else float(tolerance)
    unseen = None if weights is not None else _unseen(sourced or samples, labels, table, betas, ends=ends, limit=limit)
    notes += tail_notes(tail) + ([unseen_in_words(samples, labels, objective)] if unseen is None else [])
    verdict = advise(frontier, tail, unseen, tolerance=limit)
    if weights is None:
        verdict = _told(verdict, frontier, samples, None if unseen or sourced else labels, ends)
    planned = weights is None and sourced is None and prompts == "sampled"
    plan = plan_of(samples, labels, table, frontier, verdict, unseen, limit, ends.reward_max) if planned else None
    verdict = assumed.told(with_numbers(verdict, plan, samples))
    return Forecast(
        frontier=frontier,
        verdict=verdict,
        best_of_n=_best_of_n(samples, labels, sourced),
        unseen=unseen,
        answers=_answers(samples, frontier, weights, show, sourced),
        objective=objective,
        n_prompts=samples.n_prompts,
        n_samples=samples.n_samples,
        n_gold=n_gold,
        seed=seed,
        notes=tuple(notes),
        trainer=None if order is None else order.fulfilled(samples, verdict.safe_beta, sourced=sourced),
        plan=plan,
        have=None if present is None else have_of(frontier, verdict, value=float(have or 0.0), beta=present),
        sourced=sourced,
        reports=seen.reports if seen else (),
        onward=None if sourced is None else onward_of(sourced, rng=boot, fixed=prompts == "fixed"),
    )


def _told(verdict: Verdict, frontier: Frontier, samples: Samples, labels: Labels | None, ends: Ends) -> Verdict:
    """The verdict on a tilt, with the breakdown score where labels are given, and what would reach further."""
    if labels is not None:
        verdict = with_breakdown(verdict, frontier, samples, labels, ends)
    return with_next_rung(verdict, frontier, answers=float(np.median(samples.counts)))


def _provenance(samples: Samples, **settings: Any) -> dict[str, Any]:
    return {"inputs": [dict(row) for row in samples.inputs], **settings, "version": version()}


def _best_of_n(samples: Samples, labels: Labels | None, sourced: Sourced | None) -> tuple[BestOfNRow, ...]:
    if sourced is None:
        return best_of_n_rows(samples, labels)
    return best_of_n_of_sources(samples, labels, sourced.pooled.pools[0])


def _unseen(
    seen: Samples | Sourced, labels: Labels | None, table: Reweighted, betas: Floats, *, ends: Ends, limit: float
) -> Unseen | None:
    """What a cheat nobody has seen could cost, by the reference's answers or by those of all sources.

    None where gold or an end of a scale is not known.
    """
    if labels is None or ends.reward_max is None or ends.gold_min is None:
        return None
    scale = {"reward_max": ends.reward_max, "gold_min": ends.gold_min, "tolerance": limit}
    if isinstance(seen, Samples):
        return unseen_cheats(seen, labels, betas, table.plain, **scale)
    return unseen_of_sources(seen, **scale)


def _order(
    trainer: str | None,
    objective: Objective,
    length: float | None,
    group_size: int | None,
    settings: Mapping[str, Any] | None,
) -> TrainerOrder | None:
    """What is to be translated for whom, checked before anything is computed."""
    if trainer is None:
        stray = "length" if length is not None else "settings" if settings else None
        if stray is not None:
            raise OptionError(f"{stray}: expected together with a trainer, got none; name it")
        return None
    order = TrainerOrder(
        name=trainer, objective=objective, length=length, group_size=group_size, settings=dict(settings or {})
    )
    order.check()
    return order


def _present(have: float, order: TrainerOrder | None) -> float:
    """The present coefficient as a beta of the table."""
    have = _checks.number(have, name="have", above=0.0)
    return have if order is None else order.beta_of(have)


def _betas(samples: Samples, beta: ArrayLike | None, objective: Objective, present: float | None) -> Floats:
    """The betas to speak about, ascending, the present one among them."""
    if present is not None:
        listed = _betas(samples, beta, objective, None)
        return np.unique(np.append(listed[~np.isclose(listed, present, rtol=1e-3)], present))
    if beta is None:
        # standardised rewards have no unit: near the reference KL is 1 / (2 beta^2), 0.001 nats at beta 22
        if samples.sources is not None:
            return default_betas_of_sources(samples)
        return default_betas(samples) if objective == "tilt" else np.geomspace(0.05, 22.0, 48).round(4)
    array = np.unique(_checks.betas(beta, infinite=False))
    _checks.number(array[0], name="beta", above=0.0)
    _checks.number(array[0], name="beta", at_least=float(np.finfo(float).tiny))  # below it 1 / beta is no number
    return array


def _must_have_squares(samples: Samples) -> None:
    """Scores and log ratios of a size that the sums of their squares are numbers too."""
    ratios = None if samples.sources is None else samples.sources.log_ratio
    for name, values in (("reward", samples.reward), ("gold", samples.gold), ("log_ratio", ratios)):
        sizes = np.abs([] if values is None else values)
        largest = float(np.max(sizes, initial=0.0, where=np.isfinite(sizes)))
        if largest > LARGEST:
            expected = f"{'nats' if name == 'log_ratio' else 'scores'} of at most {LARGEST:g}"
            fix = "drop the answer or score it again"
            raise DataError(_checks.message(name, expected=expected, got=f"{largest:g}", fix=fix))


def _check_population(samples: Samples, prompts: PromptsAre) -> None:
    _checks.choice(prompts, get_args(PromptsAre), name="prompts")
    if prompts == "fixed" and samples.clusters is not None:
        got = "fixed: prompts that are the whole population are not drawn, in groups or alone"
        raise OptionError(_checks.message("prompts", expected="sampled with a column of clusters", got=got))


def _check_limits(samples: Samples, reward_max: float | None, gold_min: float | None, tolerance: float | None) -> None:
    if tolerance is not None:
        _checks.number(tolerance, name="tolerance", at_least=0.0)
    for name, value in (("reward_max", reward_max), ("gold_min", gold_min)):
        if value is not None:
            _checks.number(value, name=name)
    if reward_max is not None:
        top = float(samples.reward.max())
        if reward_max < top:
            raise OptionError(
                _checks.message("reward_max", expected=f"at least {top:g}, a score in the data", got=f"{reward_max:g}")
            )
    if gold_min is not None and samples.gold is not None and samples.n_gold:
        least = float(np.nanmin(samples.gold))
        if gold_min > least:
            raise OptionError(
                _checks.message("gold_min", expected=f"at most {least:g}, a gold in the data", got=f"{gold_min:g}")
            )


def _policy_weights(
    objective: Objective, group_size: int | None, prompts: PromptsAre, seed: int
) -> PolicyWeights | None:
    """The weights of a standardised objective; None for the tilt."""
    if objective == "tilt":
        if group_size is not None:
            raise OptionError(
                "group_size: expected with objective group-standardised or a trainer, got the tilt; drop one"
            )
        return None
    if prompts == "fixed":
        raise OptionError("prompts: expected sampled with objective group-standardised, got fixed")
    if group_size is None:
        return large_group_weights
    size = _checks.integer(group_size, name="group_size", at_least=2)

    def weights(reward: Floats, beta: Floats, /) -> Floats:
        return finite_group_weights(reward, beta, group_size=size, rng=np.random.default_rng(seed))

    return weights


def _answers(
    samples: Samples,
    frontier: Frontier,
    weights: PolicyWeights | None,
    rng: np.random.Generator,
    sourced: Sourced | None = None,
) -> tuple[dict[str, Any], ...]:
    """A few answers per usable beta, drawn from the policy; none where the samples have no texts."""
    if samples.answers is None:
        return ()
    shown = []
    for beta in frontier.beta[frontier.usable]:
        log_m = np.zeros(samples.n_samples) if sourced is None else sourced.log_m(float(beta))
        for prompt in rng.choice(samples.n_prompts, size=min(_ANSWERS_PER_BETA, samples.n_prompts), replace=False):
            rows = np.arange(samples.offsets[prompt], samples.offsets[prompt + 1])
            reward = samples.reward[rows]
            if weights is None:
                with np.errstate(over="ignore"):
                    w = softmax((reward - reward.max()) / beta - log_m[rows])
            else:
                w = weights(reward[None], np.array([beta]))[0, :, 0]
            row = int(rng.choice(rows, p=w / w.sum()))
            gold = None if samples.gold is None or np.isnan(samples.gold[row]) else float(samples.gold[row])
            shown.append(
                {
                    "beta": float(beta),
                    "prompt": samples.prompts[prompt],
                    "answer": samples.answers[row],
                    "reward": float(samples.reward[row]),
                    "gold": gold,
                }
            )
    return tuple(shown)
