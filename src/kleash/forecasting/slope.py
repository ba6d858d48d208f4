"""The next step from a policy: what a nat more of KL buys of the judge's score and of true quality."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from kleash.forecasting.reweight import Labels
from kleash.samples import Samples

__all__ = ["Slope", "slope_of"]

Floats = NDArray[np.float64]

_PROMPTS = 20  # from which on prompts are the sampled units; with fewer, their answers
_STEP = 0.1  # nats, of which a person is told what they buy


@dataclasses.dataclass(frozen=True, kw_only=True)
class Slope:
    """Rates at a policy, per nat of KL to the reference: (value, low, high) with 95 %; gold None without labels."""

    reward: tuple[float, float, float]
    gold: tuple[float, float, float] | None

    def to_dict(self) -> dict[str, float | None]:
        """JSON-ready plain data: ``gold_per_nat``, ``reward_per_nat``, each with ``_lo`` and ``_hi``."""
        content: dict[str, float | None] = {}
        for name, rate in (("gold", self.gold), ("reward", self.reward)):
            for end, value in zip(("", "_lo", "_hi"), rate or (None, None, None), strict=True):
                content[f"{name}_per_nat{end}"] = None if value is None or not np.isfinite(value) else value
        return content

    def __str__(self) -> str:
        text = f"the next {_STEP:g} nats buy {_signed(self.reward)} of the judge"
        if self.gold is not None:
            text += f" and {_signed(self.gold)} of true quality"
        return text + " (95 %)."


def _signed(rate: tuple[float, float, float]) -> str:
    value, low, high = (f"{_STEP * number:+.2g}" for number in rate)
    return f"{value} [{low}, {high}]"


def slope_of(samples: Samples, number: int, labels: Labels | None) -> Slope | None:
    """What the next nats from a source would buy, from its plain answers.

    Parameters
    ----------
    samples
        With sources.
    number
        Which source.
    labels
        Gold; None without.

    Returns
    -------
    Slope, or None where the log ratio does not measurably rise with the score.

    Notes
    -----
    Along pi_t = pi exp(t r) / Z the slopes at t = 0 are covariances under the policy: of gold Cov(g, r), of the score
    Var(r), of the KL Cov(D, r), within prompts. Their ratios have Fieller's intervals.

    References
    ----------
    Fieller 1954, J. R. Statist. Soc. B 16:175.
    """
    assert samples.sources is not None  # the caller has sources
    mine = samples.sources.code == number
    prompt = np.repeat(np.arange(samples.n_prompts), samples.counts)[mine]
    reward, ratio = samples.reward[mine], samples.sources.log_ratio[mine, number]
    r, d = _centred(reward, prompt), _centred(ratio, prompt)
    unit = prompt if np.unique(prompt).size >= _PROMPTS else np.arange(prompt.size)
    of_kl, of_reward = _by_unit(r * d, unit), _by_unit(r * r, unit)
    if of_kl.sum() <= 2.0 * np.sqrt((of_kl**2).sum()):
        return None
    gold = None
    if labels is not None and samples.gold is not None:
        known = ~np.isnan(samples.gold[mine])
        g = np.zeros(prompt.size)
        g[known] = _centred(samples.gold[mine][known], prompt[known])
        share = np.bincount(prompt, minlength=samples.n_prompts) / np.maximum(
            np.bincount(prompt[known], minlength=samples.n_prompts), 1
        )
        gold = _fieller(_by_unit(r * g * share[prompt], unit), of_kl)
    return Slope(reward=_fieller(of_reward, of_kl), gold=gold)


def _centred(values: Floats, prompt: NDArray[np.int64]) -> Floats:
    n = np.maximum(np.bincount(prompt), 1)
    return np.asarray(values - (np.bincount(prompt, weights=values) / n)[prompt])


def _by_unit(values: Floats, unit: NDArray[np.int64]) -> Floats:
    return np.asarray(np.bincount(unit, weights=values))


def _fieller(top: Floats, bottom: Floats) -> tuple[float, float, float]:
    """Ratio of two sums over units with its 95 % interval; infinite ends where the interval is open."""
    a, b = float(top.sum()), float(bottom.sum())
    quantile = float(stdtrit(max(np.count_nonzero(bottom) - 1, 1), 0.975)) ** 2
    aa, ab, bb = (quantile * float((x * y).sum()) for x, y in ((top, top), (top, bottom), (bottom, bottom)))
    lead, middle, last = b**2 - bb, a * b - ab, a**2 - aa
    root = middle**2 - lead * last
    if lead <= 0 or root < 0:
        return a / b, -np.inf, np.inf
    return a / b, (middle - root**0.5) / lead, (middle + root**0.5) / lead
