"""From a policy onward: what training beside it or beyond it would reach, its drift kept; and the next step from it."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from kleash.forecasting.effective import Effective
from kleash.forecasting.intervals import Prompts
from kleash.forecasting.mixture import estimate_mixture
from kleash.forecasting.pools import Pool, marks_of, same_sizes
from kleash.forecasting.reach import kept_status
from kleash.forecasting.slope import Slope, slope_of
from kleash.forecasting.sourced import Sourced
from kleash.frontier import Estimates, Frontier, Gold

__all__ = ["Onward", "onward_of"]

Floats = NDArray[np.float64]

_DRAWS = 400


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Onward:
    """What a source's own answers say of training on from it, or beside it at another beta, its drift kept.

    ``frontier`` is the table at effective betas; ``slope`` the exchange rates of the next step, None where the policy's
    KL does not measurably rise with the score.
    """

    source: str
    effective_beta: float
    frontier: Frontier
    slope: Slope | None

    def __str__(self) -> str:
        ok = self.frontier.beta[self.frontier.status == "ok"]
        where = f"sure from beta {ok[0]:.3g} to {ok[-1]:.3g}" if ok.size else "sure nowhere"
        rate = "" if self.slope is None else f" At it, {self.slope}"
        return f"Training on from {self.source}, or beside it, its drift kept (onward in the JSON): {where}.{rate}"

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready plain data with the keys of the command line's ``onward``."""
        return {
            "source": self.source,
            "effective_beta": self.effective_beta,
            "rows": self.frontier.rows(),
            "slope": None if self.slope is None else self.slope.to_dict(),
        }


def onward_of(sourced: Sourced, *, rng: np.random.Generator, fixed: bool) -> Onward | None:
    """Onward from the loosest source that has an effective beta; None where there is none.

    Parameters
    ----------
    sourced
        The sources' estimates.
    rng
        Of the bootstrap.
    fixed
        Whether the prompts are the whole population.

    Returns
    -------
    Onward

    Notes
    -----
    With t = 1 / beta - 1 / beta_eff the weights exp(t r) on the source's own answers hold the score alone: the drift
    stays in the policy, and in its KL as a mean, KL = E_t[D] + t E_t[r] - log E_s[exp(t r)]. For a tilt this is the
    tilt at beta. The effective beta's own error is carried through by moving 1 / beta_eff by one standard
    error.
    """
    names = sourced.samples.sources.names if sourced.samples.sources is not None else ()
    known = [(near.beta, number) for number, near in enumerate(sourced.effective) if near and near.beta is not None]
    if not known:
        return None
    beta_eff, number = min(known)
    near = sourced.effective[number]
    assert near is not None  # it has a beta
    push = 1 / sourced.beta - near.slope
    sheet = _kept(sourced, number, np.concatenate([push, push + near.se]), fixed=fixed)
    frontier = _table(sourced, near, sheet, rng=rng, fixed=fixed)
    mine = slope_of(sourced.samples, number, sourced.labels)
    return Onward(source=names[number], effective_beta=beta_eff, frontier=frontier, slope=mine)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class _Kept:
    """Reward, KL, gold numerator by prompt and push, (3, P, 2 B), their variances over answers, KL to the source."""

    value: Floats
    variance: Floats
    spent: Floats
    label_ess: Floats
    log_n: Floats
    some: NDArray[np.bool_]


def _kept(sourced: Sourced, number: int, push: Floats, *, fixed: bool) -> _Kept:
    samples = sourced.samples
    gold = marks_of(samples, sourced.labels)
    size = (3, samples.n_prompts, push.size)
    value, variance = np.zeros(size), np.zeros(size)
    spent, label_ess = np.zeros(size[1:]), np.zeros(push.size)
    log_n, some = np.zeros(samples.n_prompts), np.zeros(samples.n_prompts, dtype=bool)
    for rows in same_sizes(samples, 4 * push.size):
        drawn = rows.drawn(samples, Pool(sources=(number,), anchored=False), gold)
        if drawn is None:
            continue
        own = dataclasses.replace(drawn, log_m=np.zeros_like(drawn.log_m))  # weights of the score alone
        here = estimate_mixture(own, push, keep_deviations=fixed)
        drift = estimate_mixture(dataclasses.replace(own, marked=drawn.log_m), push, keep_deviations=fixed)
        found = here.corrected.copy()
        found[1] += drift.corrected[2]
        n = drawn.reward.shape[1]
        value[:, rows.prompts], spent[rows.prompts] = found, here.corrected[1]
        if here.deviations is not None and drift.deviations is not None:
            here.deviations[1] += drift.deviations[2]
            variance[:, rows.prompts] = (1 - 1 / n) * (here.deviations**2).sum(axis=2)
        label_ess += here.label_ess.sum(axis=0)
        log_n[rows.prompts], some[rows.prompts] = np.log(n), True
    return _Kept(value=value, variance=variance, spent=spent, label_ess=label_ess, log_n=log_n, some=some)


def _table(sourced: Sourced, near: Effective, sheet: _Kept, *, rng: np.random.Generator, fixed: bool) -> Frontier:
    """The kept rows as a Frontier: no replicates, gains against the reference as if independent."""
    size = sourced.beta.size
    here = sheet.some
    n = int(here.sum())
    resampled = None if fixed or n < 2 else Prompts.draw(here.size, rng=rng, n_draws=_DRAWS)
    found = []
    for quantity in range(3):
        values = sheet.value[quantity]
        known = here if quantity < 2 or sourced.labels is None else here & sourced.labels.known
        if resampled is None:
            mean = values[known].mean(axis=0)
            se = np.sqrt(sheet.variance[quantity, known].sum(axis=0)) / max(int(known.sum()), 1)
            reach = stdtrit(np.inf, 0.975) * se
            estimates = Estimates(value=mean, se=se, lo=mean - reach, hi=mean + reach)
        else:
            estimates, _ = resampled.mean(values, known=known, positive=quantity == 1)
        found.append(_with_slope_error(estimates, size))
    reward, kl, marked = found
    labels, table = sourced.labels, sourced.pooled.table
    status = kept_status(
        sourced.beta,
        spent=sheet.spent[here, :size].mean(axis=0),
        log_n=float(sheet.log_n[here].mean()),
        near=near,
        tail=sourced.tail,
        label_ess=None if labels is None else sheet.label_ess[:size],
    )
    status = np.where(kl.value < 0, "beyond", status)  # no policy has that
    usable = status != "beyond"
    gold = None
    if labels is not None:
        reference = table.reference[1, labels.known]
        at = labels.centre + float(reference.mean())
        spread = float(reference.std(ddof=1) / np.sqrt(reference.size)) if reference.size > 1 else np.nan
        known_gold = _shifted(marked, labels.centre)
        gain = _shifted(marked, labels.centre - at, more=spread)
        centre, error = np.asarray(at), np.asarray(spread)
        origin = Estimates(value=centre, se=error, lo=centre - 1.96 * error, hi=centre + 1.96 * error)
        gold = Gold.of(known_gold, gain=gain, reference=origin).where(usable)
    return Frontier(
        source="forecast",
        beta=sourced.beta,
        reward=reward.where(usable),
        kl=kl.where(usable),
        gold=gold,
        reference_reward=Estimates.exact(float(table.reference[0].mean())),
        n=np.full(size, n),
        status=status,
    )


def _with_slope_error(estimates: Estimates, size: int) -> Estimates:
    """The first half, its error widened by what the second differs by: one standard error of 1 / beta_eff."""
    middle = estimates[:size]
    moved = np.abs(estimates.value[size:] - estimates.value[:size])
    grown = np.sqrt(1 + np.divide(moved, middle.se, out=np.zeros_like(moved), where=middle.se > 0) ** 2)
    return Estimates(
        value=middle.value,
        se=np.hypot(middle.se, moved),
        lo=middle.value - (middle.value - middle.lo) * grown,
        hi=middle.value + (middle.hi - middle.value) * grown,
    )


def _shifted(estimates: Estimates, by: float, *, more: float = 0.0) -> Estimates:
    grown = np.sqrt(1 + np.divide(more, estimates.se, out=np.zeros_like(estimates.se), where=estimates.se > 0) ** 2)
    value = estimates.value + by
    return Estimates(
        value=value,
        se=np.hypot(estimates.se, more),
        lo=value - (estimates.value - estimates.lo) * grown,
        hi=value + (estimates.hi - estimates.value) * grown,
    )
