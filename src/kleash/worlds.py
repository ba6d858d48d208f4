"""Worlds: small universes of prompts and answers in which the truth about a leash is known exactly.

A :class:`World` lists, for every prompt, every answer there is, with the probability that the reference policy gives
it, the reward (the judge's score) and the gold (the true quality). Whatever kleash estimates elsewhere can be held
against the exact numbers of a world.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp, ndtr

from kleash import _checks
from kleash.errors import OptionError, ShapeError

__all__ = ["Family", "World", "heavy_tail", "kitchen", "random_world", "two_arm"]

Floats = NDArray[np.float64]

Family = Literal[
    "light",
    "gamma",
    "power",
    "rare-cheats",
    "ties",
    "mixed-prompts",
    "gold-unrelated",
    "gold-opposed",
    "gold-peak",
]
"""The families of :func:`random_world`: what the reward looks like under the reference, or how gold hangs on it."""

_TOP_SALT = 31.7  # the judge's score of a pure salt bomb in the published table


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class World:
    """Prompts x answers with reference, reward and gold: everything about it is exact.

    Parameters
    ----------
    name
        A short name, shown in tables and reports.
    log_reference
        Natural log of the reference policy's probability, shape (P, Y); each row sums to one in probability, to 1e-9
        (what is missing to one is divided out).
        ``-inf`` marks an answer that the reference cannot give (also the padding of prompts with fewer answers).
    reward
        The judge's score, shape (P, Y), in reward units; finite wherever the reference can go.
    gold
        The true quality, shape (P, Y), in gold units; finite wherever the reference can go.
    prompt_weight
        Weight of each prompt in every mean, shape (P,), non-negative with sum one; uniform if not given.
    prompts, answers
        Texts: P prompts, and P lists of Y answers (or one list of Y shared by all prompts). Numbered if not given.

    Raises
    ------
    ShapeError
        The arrays do not fit together, or a row of the reference does not sum to one.
    OptionError
        A reward or gold that matters is not finite.

    Examples
    --------
    >>> world = World(name="coin", log_reference=np.log([[0.5, 0.5]]), reward=[[0.0, 1.0]], gold=[[1.0, 0.0]])
    >>> world.n_prompts, world.n_answers
    (1, 2)
    >>> world.expectation(world.reward)
    array([0.5])
    """

    name: str
    log_reference: Floats
    reward: Floats
    gold: Floats
    prompt_weight: Floats = None  # type: ignore[assignment]  # filled in by __post_init__
    prompts: tuple[str, ...] = ()
    answers: tuple[tuple[str, ...], ...] = ()

    def __post_init__(self) -> None:
        arrays = {key: np.asarray(getattr(self, key), dtype=np.float64) for key in ("log_reference", "reward", "gold")}
        _checks.same_shape(**arrays)
        log_reference = arrays["log_reference"]
        if log_reference.ndim != 2 or log_reference.size == 0:
            raise ShapeError(_checks.message("world", expected="arrays (prompts, answers)", got=log_reference.shape))
        total = logsumexp(log_reference, axis=1)
        if not np.allclose(total, 0.0, atol=1e-9, rtol=0.0):
            worst = int(np.argmax(np.where(np.isnan(total), np.inf, np.abs(total))))
            with np.errstate(over="ignore"):
                got = f"a sum of {np.exp(total[worst]):.9g} at prompt {worst}"
            raise ShapeError(_checks.message("reference", expected="probabilities that sum to one", got=got))
        arrays["log_reference"] = log_reference - total[:, None]
        possible = np.isfinite(log_reference)
        for key in ("reward", "gold"):
            if not np.isfinite(arrays[key][possible]).all():
                prompt, answer = np.argwhere(possible & ~np.isfinite(arrays[key]))[0]
                got = f"{arrays[key][prompt, answer]} at prompt {prompt}, answer {answer}"
                raise OptionError(_checks.message(key, expected="finite numbers", got=got))
            arrays[key] = np.where(possible, arrays[key], 0.0)
        n_prompts, n_answers = log_reference.shape
        uniform = np.full(n_prompts, 1.0 / n_prompts)
        given = self.prompt_weight
        weight = np.asarray(uniform if given is None else given, dtype=np.float64)  # type: ignore[redundant-expr]
        if weight.shape != (n_prompts,) or not (weight >= 0).all() or not np.isclose(weight.sum(), 1.0, atol=1e-9):
            got = f"shape {weight.shape}, sum {weight.sum():.9g}"
            raise ShapeError(_checks.message("prompt_weight", expected=f"{n_prompts} weights, sum 1", got=got))
        answers = tuple(tuple(texts) for texts in self.answers) or (tuple(map(str, range(n_answers))),)
        answers = answers * n_prompts if len(answers) == 1 else answers
        prompts = tuple(self.prompts) or tuple(map(str, range(n_prompts)))
        if len(prompts) != n_prompts or len(answers) != n_prompts or any(len(texts) != n_answers for texts in answers):
            got = f"{len(prompts)} prompts and {len(answers)} lists of answers"
            raise ShapeError(_checks.message("texts", expected=f"{n_prompts} x {n_answers}", got=got))
        values = {**arrays, "prompt_weight": weight, "prompts": prompts, "answers": answers}
        for key, value in values.items():
            if isinstance(value, np.ndarray):
                value = value.copy()
                value.flags.writeable = False
            object.__setattr__(self, key, value)

    @property
    def n_prompts(self) -> int:
        """Number of prompts, P."""
        return int(self.reward.shape[0])

    @property
    def n_answers(self) -> int:
        """Number of answers per prompt, Y, padding included."""
        return int(self.reward.shape[1])

    def expectation(self, values: ArrayLike, log_policy: Floats | None = None) -> Floats:
        """Exact mean of ``values`` under a policy (default: the reference), over answers and prompts.

        Parameters
        ----------
        values
            Shape (P, Y), any unit.
        log_policy
            Log probabilities, shape (..., P, Y); leading axes are kept.

        Returns
        -------
        Shape (...), or (1,) for the reference: one mean per policy.
        """
        policy = np.exp(self.log_reference[None] if log_policy is None else log_policy)
        return np.asarray(np.einsum("...py,py,p->...", policy, np.asarray(values), self.prompt_weight))

    def sample(
        self, n_prompts: int, n_answers: int, *, rng: np.random.Generator
    ) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Draw prompts by weight, with replacement, and independent reference answers to each.

        Returns
        -------
        prompt, answer
            Index arrays of shape (n_prompts,) and (n_prompts, n_answers).
        """
        prompt = rng.choice(self.n_prompts, size=n_prompts, p=self.prompt_weight)
        cumulative = np.cumsum(np.exp(self.log_reference), axis=1)[prompt]
        cumulative /= cumulative[:, -1:]
        uniform = rng.random((n_prompts, n_answers))
        answer = np.stack([np.searchsorted(row, u, side="right") for row, u in zip(cumulative, uniform, strict=True)])
        return prompt, answer


def kitchen(*, oversalt: float = 0.0505, love: float = 1.0, house_mean: float = 7.92, house_sd: float = 1.25) -> World:
    """The chef and the critic who loves salt: one prompt, 41 levels of salt, the mission's own example.

    The judge's score is the salt itself, 0 to 31.7. The house (the reference) cooks near ``house_mean``; with
    probability ``oversalt`` the cook over-salts. The true quality peaks at a salt of 9.21 and is nothing for a salt
    bomb.

    Parameters
    ----------
    oversalt
        Probability that the house over-salts a dish, in [0, 1].
    love
        How much the critic loves salt, from 1e-6 to 1e6: multiplies the judge's score.
    house_mean, house_sd
        Centre (-100 to 100) and spread (0.01 to 100) of the house's salt, in units of the judge's score at ``love`` 1.

    Returns
    -------
    World

    Notes
    -----
    Salt levels s_i = 31.7 i / 40, i = 0..40. Reference: (1 - oversalt) N(s; house_mean, house_sd), normalised on the
    levels, plus oversalt times exp(-(31.7 - s) / 0.216), normalised. Gold: 2.6 exp(-((s - 9.21) / 1.99)^2 / 2).
    Calibrated to the published table of a course whose simulator is not public: within 0.09 in judge's
    score and 0.008 in quality. No single-prompt tilt meets that table to its last printed digit.

    Examples
    --------
    >>> world = kitchen()
    >>> round(float(world.expectation(world.reward)[0]), 2), round(float(world.expectation(world.gold)[0]), 3)
    (9.12, 1.798)
    """
    oversalt = _checks.number(oversalt, name="oversalt", at_least=0.0, at_most=1.0)
    love = _checks.number(love, name="love", at_least=1e-6, at_most=1e6)
    house_mean = _checks.number(house_mean, name="house_mean", at_least=-100.0, at_most=100.0)
    house_sd = _checks.number(house_sd, name="house_sd", at_least=0.01, at_most=100.0)
    salt = _TOP_SALT * np.arange(41) / 40
    house = -0.5 * ((salt - house_mean) / house_sd) ** 2
    bomb = -(_TOP_SALT - salt) / 0.216
    with np.errstate(divide="ignore"):  # oversalt 0 or 1 removes one of the two cooks
        parts = np.log([1.0 - oversalt, oversalt])
    log_reference = np.logaddexp(parts[0] + house - logsumexp(house), parts[1] + bomb - logsumexp(bomb))
    return World(
        name="kitchen",
        log_reference=log_reference[None],
        reward=love * salt[None],
        gold=2.6 * np.exp(-0.5 * ((salt[None] - 9.21) / 1.99) ** 2),
        prompts=("Cook the dish of the house.",),
        answers=(tuple(f"a dish with salt {level:.1f}" for level in salt),),
    )


def two_arm(p: ArrayLike = 0.2, *, gold: Sequence[float] = (1.0, 0.0)) -> World:
    """Binary reward: every prompt has a plain answer (reward 0) and one that pleases the judge (reward 1).

    Parameters
    ----------
    p
        Reference probability of the pleasing answer, one per prompt, in [0, 1].
    gold
        Gold of the plain and of the pleasing answer.

    Returns
    -------
    World

    Notes
    -----
    The tilt multiplies the odds: p / (1 - p) becomes p / (1 - p) exp(1 / beta).

    Examples
    --------
    >>> two_arm([0.2, 0.4]).n_prompts
    2
    """
    rate = np.atleast_1d(np.asarray(p, dtype=np.float64))
    for value in rate:
        _checks.number(value, name="p", at_least=0.0, at_most=1.0)
    with np.errstate(divide="ignore"):
        log_reference = np.stack([np.log1p(-rate), np.log(rate)], axis=1)
    return World(
        name="two-arm",
        log_reference=log_reference,
        reward=np.tile([0.0, 1.0], (rate.size, 1)),
        gold=np.tile(np.asarray(gold, dtype=np.float64), (rate.size, 1)),
        answers=(("plain", "pleasing"),),
    )


def heavy_tail(*, tail_index: float = 3.0, top: float = 1000.0, n_answers: int = 400) -> World:
    """A judge whose errors have a power-law tail, cut off at ``top``: reward that costs almost no KL.

    Parameters
    ----------
    tail_index
        Exponent a of the survival function t^-a, above 0.
    top
        Largest reward, above 1: the support is finite, so that every tilt exists.
    n_answers
        Size of the logarithmic grid of rewards from 1 to ``top``.

    Returns
    -------
    World

    Notes
    -----
    Gold is 1 for rewards below twice the smallest one and 0 above. For an untruncated power law, policies exist with
    arbitrarily high reward, vanishing KL and no gain in quality.

    References
    ----------
    Kwa, Thomas, Garriga-Alonso 2024, "Catastrophic Goodhart", arXiv 2407.14503.

    Examples
    --------
    >>> world = heavy_tail()
    >>> float(world.reward.max())
    1000.0
    """
    tail_index = _checks.number(tail_index, name="tail_index", above=0.0)
    top = _checks.number(top, name="top", above=1.0)
    n_answers = _checks.integer(n_answers, name="n_answers", at_least=2)
    reward = np.geomspace(1.0, top, n_answers)
    log_mass = -tail_index * np.log(reward)
    return World(
        name="heavy-tail",
        log_reference=(log_mass - logsumexp(log_mass))[None],
        reward=reward[None],
        gold=(reward[None] < 2.0).astype(np.float64),
    )


def random_world(family: Family, *, rng: np.random.Generator, n_prompts: int = 120, n_answers: int = 400) -> World:
    """A random world of a known kind, to test estimators and verdicts against exact truth.

    Parameters
    ----------
    family
        ``light``: normal rewards. ``gamma``: gamma tails, shape 1 to 3, no moment generating function past a finite
        point of the untruncated law. ``power``: a power law of index 1.5 to 3 on finite support. ``rare-cheats``:
        normal rewards and worthless answers 3 to 6 SD above the mean, of mass 0.5 to 10 %. ``ties``: 2 to 6 distinct
        scores. ``mixed-prompts``: normal rewards whose mean and (log-normal) spread differ between prompts.
        ``gold-unrelated``, ``gold-opposed``, ``gold-peak``: normal rewards, gold independent of it, falling in it, or
        with a peak inside the support.
        In every other family gold rises with the reward, plus noise of its own.
    rng
        Source of randomness; the same generator state gives the same world.
    n_prompts, n_answers
        Size; memory grows with the product.

    Returns
    -------
    World with gold in [0, 1].

    Examples
    --------
    >>> world = random_world("light", rng=np.random.default_rng(0), n_prompts=3, n_answers=50)
    >>> world.reward.shape
    (3, 50)
    """
    _checks.choice(family, get_args(Family), name="family")
    n_prompts = _checks.integer(n_prompts, name="n_prompts", at_least=1)
    n_answers = _checks.integer(n_answers, name="n_answers", at_least=8)
    shape = (n_prompts, n_answers)
    score = _SCORES.get(family, _normal)(shape, rng)  # about mean 0, SD 1 within a prompt
    log_mass = np.log(rng.standard_gamma(2.0, shape))
    noise = rng.standard_normal(shape)
    slope = rng.uniform(0.3, 0.8)
    if family == "gold-unrelated":
        gold = ndtr(noise)
    elif family == "gold-opposed":
        gold = ndtr(-slope * score + np.sqrt(1 - slope**2) * noise)
    elif family == "gold-peak":
        centre, width = rng.uniform(0.4, 0.9), rng.uniform(0.3, 0.6)
        gold = np.clip(np.exp(-0.5 * ((score - centre) / width) ** 2) + 0.1 * noise, 0.0, 1.0)
    else:
        gold = ndtr(slope * score + np.sqrt(1 - slope**2) * noise)
    spread = np.ones((n_prompts, 1))
    if family == "mixed-prompts":
        spread = np.exp(0.5 * rng.standard_normal((n_prompts, 1)))
        score = 2.0 * rng.standard_normal((n_prompts, 1)) + spread * score
    if family == "rare-cheats":
        cheats = max(1, n_answers // 100)
        score[:, :cheats] = rng.uniform(3.0, 6.0) + 0.1 * score[:, :cheats]
        gold[:, :cheats] = 0.0
        mass = np.exp(rng.uniform(np.log(0.005), np.log(0.1)))
        house = logsumexp(log_mass[:, cheats:], axis=1, keepdims=True)
        cheat = logsumexp(log_mass[:, :cheats], axis=1, keepdims=True)
        log_mass[:, :cheats] += np.log(mass) - cheat
        log_mass[:, cheats:] += np.log1p(-mass) - house
    scale = np.exp(rng.uniform(-2.0, 2.0))  # a judge may score in any unit
    return World(
        name=family,
        log_reference=log_mass - logsumexp(log_mass, axis=1, keepdims=True),
        reward=scale * score,
        gold=gold,
    )


def _normal(shape: tuple[int, int], rng: np.random.Generator) -> Floats:
    return rng.standard_normal(shape)


def _gamma(shape: tuple[int, int], rng: np.random.Generator) -> Floats:
    k = rng.uniform(1.0, 3.0)
    return np.asarray((rng.standard_gamma(k, shape) - k) / np.sqrt(k))


def _power(shape: tuple[int, int], rng: np.random.Generator) -> Floats:
    index = rng.uniform(1.5, 3.0)
    draws = rng.random(shape) ** (-1.0 / index)
    return np.asarray((draws - draws.mean()) / draws.std())


def _ties(shape: tuple[int, int], rng: np.random.Generator) -> Floats:
    levels = np.sort(rng.uniform(-1.5, 1.5, rng.integers(2, 7)))
    share = rng.dirichlet(np.full(levels.size, 2.0), size=shape[0])
    cumulative = np.cumsum(share, axis=1)[:, None, :-1]
    chosen = (rng.random(shape)[:, :, None] > cumulative).sum(axis=2)
    return np.asarray(levels[chosen])


_SCORES: dict[str, Callable[[tuple[int, int], np.random.Generator], Floats]] = {
    "gamma": _gamma,
    "power": _power,
    "ties": _ties,
}
