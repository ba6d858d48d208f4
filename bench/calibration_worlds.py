"""The worlds of the calibration bench: what a judge's scores may look like, how they are drawn, and the exact truth.

A :class:`Case` is one family at one size. All families are on equal terms: the same grid of betas relative to the
spread of the scores, the same statistics, the same bars.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp, ndtr

from kleash import Samples, World, random_world
from kleash.tilt import moments
from kleash.worlds import Family

Floats = NDArray[np.float64]
Make = Callable[[np.random.Generator], World]
SHAPE = (100, 300)
"""Prompts and answers of a world."""
N_BETAS = 24
CHEATS = (100, 500, 1_000, 2_000, 10_000)
"""One over the reference mass of a cheat."""
KINDS = ("useful-range", "no-overoptimisation-seen", "no-useful-range", "cannot-tell")
STRONG = 0.05
"""A gain or loss of gold that matters: 5 % of its range, the default tolerance."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A family of worlds at one size.

    ``n_answers`` is the number of answers to each prompt, or a function of the drawn prompts' spreads that gives it.
    ``prompts`` and ``stated`` go to the forecast: are the prompts the whole population, and are the ends of the scales
    stated. Coverage of a family with a rare ``kind`` of answer is judged on the draws that show one: the others
    cannot be told from worlds without it. ``share`` is the number of draws, as a share of those asked for.
    """

    family: str
    make: Make
    n_prompts: tuple[int, ...] = (60,)
    n_answers: int | Callable[[Floats, np.random.Generator], NDArray[np.int64]] = 24
    fixed: bool = False
    stated: bool = False
    light: bool = False
    kind: bool = False
    share: float = 1.0

    @property
    def size(self) -> str:
        """How many answers to a prompt, in words."""
        return str(self.n_answers) if isinstance(self.n_answers, int) else "some"


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Draw:
    """Samples drawn from a world, and the truth about what they stand for at every beta, reference first apart."""

    samples: Samples
    beta: Floats
    reward: Floats
    gold: Floats
    kl: Floats
    gain: Floats
    gold_sd: float
    log_answers: float
    options: Mapping[str, Any]
    shows: bool
    top: float

    @property
    def reach(self) -> float:
        """KL at which two effective answers to a prompt are left, nats: where ``ok`` ends."""
        return 0.5 * (self.log_answers - float(np.log(2)))

    def at(self, beta: float) -> float:
        """The true gain at a beta between those of the grid; none past its tight end."""
        return float(np.interp(np.log(beta), np.log(self.beta), self.gain, right=0.0))

    @property
    def strong_peak(self) -> bool:
        """A gain, and a fall of gold, that matter, the best well inside the reach."""
        reach, best = self.log_answers - 2.0, int(np.argmax(self.gain))
        seen = np.flatnonzero(self.kl <= reach)
        fall = self.gain[best] - self.gain[seen[0]] if seen.size else 0.0
        return bool(self.kl[best] <= 0.5 * reach and min(self.gain[best], fall) >= STRONG)

    @property
    def strongly_opposed(self) -> bool:
        """Gold has fallen by what matters a fifth of a nat from the reference."""
        return float(np.interp(0.2, self.kl[::-1], self.gain[::-1])) <= -STRONG


def draw(case: Case, index: int, *, seed: int) -> Draw:
    """One world of a case, samples from it, and its exact truth."""
    rng = np.random.default_rng([index, seed])
    world = case.make(rng)
    n_prompts = case.n_prompts[index % len(case.n_prompts)]
    prompt = rng.choice(world.n_prompts, n_prompts, replace=not case.fixed)
    spread = np.sqrt(moments(world, np.inf).reward_variance[0])
    if case.fixed:
        world = _part(world, prompt)
        prompt = np.arange(n_prompts)
    counts = _counts(case, world, prompt, rng)
    answer = _answers(world, prompt, counts, rng)
    rows = np.repeat(prompt, counts)
    reward, gold = world.reward[rows, answer], world.gold[rows, answer]
    beta = np.sort(spread / np.geomspace(0.03, 5.0, N_BETAS))
    truth, reference = moments(world, beta), moments(world, np.inf)
    mean = world.expectation(world.gold)
    top, least = float(world.reward.max()), float(world.gold.min())
    return Draw(
        samples=Samples.from_arrays(np.repeat(np.arange(n_prompts), counts), reward, gold=gold),
        beta=beta,
        reward=truth.reward,
        gold=truth.gold,
        kl=truth.kl,
        gain=truth.gold - reference.gold[0],
        gold_sd=float(np.sqrt(world.expectation((world.gold - mean) ** 2)[0])),
        log_answers=float(np.log(counts).mean()),
        options={"prompts": "fixed" if case.fixed else "sampled"}
        | ({"reward_max": top, "gold_min": least} if case.stated else {}),
        shows=not case.kind or bool((reward == world.reward[0, 0]).any()),
        top=top,
    )


def _part(world: World, prompt: NDArray[np.intp]) -> World:
    return World(
        name=world.name,
        log_reference=world.log_reference[prompt],
        reward=world.reward[prompt],
        gold=world.gold[prompt],
    )


def _counts(case: Case, world: World, prompt: NDArray[np.intp], rng: np.random.Generator) -> NDArray[np.int64]:
    if isinstance(case.n_answers, int):
        return np.full(prompt.size, case.n_answers)
    mass = np.exp(world.log_reference[prompt])
    mean = (mass * world.reward[prompt]).sum(axis=1, keepdims=True)
    return case.n_answers(np.sqrt((mass * (world.reward[prompt] - mean) ** 2).sum(axis=1)), rng)


def _answers(
    world: World, prompt: NDArray[np.intp], counts: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.intp]:
    cumulative = np.cumsum(np.exp(world.log_reference), axis=1)
    cumulative /= cumulative[:, -1:]
    uniform = np.split(rng.random(counts.sum()), np.cumsum(counts)[:-1])
    drawn = [np.searchsorted(cumulative[p], u, side="right") for p, u in zip(prompt, uniform, strict=True)]
    return np.concatenate(drawn)


# ------------------------------------------------------------------------------------------------ worlds


def _world(score: Floats, gold: Floats, log_mass: Floats, rng: np.random.Generator) -> World:
    """A world in a unit of its own."""
    return World(
        name="bench",
        log_reference=log_mass - logsumexp(log_mass, axis=1, keepdims=True),
        reward=np.exp(rng.uniform(-2.0, 2.0)) * score,
        gold=gold,
    )


def _mass(rng: np.random.Generator) -> Floats:
    return np.log(rng.standard_gamma(2.0, SHAPE))


def _rising(score: Floats, rng: np.random.Generator) -> Floats:
    """Gold in [0, 1] that rises with the score, at a level that differs between prompts."""
    level = 0.8 * rng.standard_normal((SHAPE[0], 1))
    return np.asarray(ndtr(level + rng.uniform(0.2, 0.9) * score + rng.standard_normal(SHAPE)))


def of_family(rng: np.random.Generator, *, family: Family) -> World:
    """A world of :func:`kleash.random_world`."""
    return random_world(family, rng=rng, n_prompts=SHAPE[0], n_answers=SHAPE[1])


def difficulty(rng: np.random.Generator) -> World:
    """Normal scores about levels that differ between prompts by three times the spread within them."""
    level, score = 3.0 * rng.standard_normal((SHAPE[0], 1)), rng.standard_normal(SHAPE)
    gold = ndtr(0.5 * level + rng.uniform(0.2, 0.9) * score + rng.standard_normal(SHAPE))
    return _world(level + score, gold, _mass(rng), rng)


def spreads(rng: np.random.Generator) -> World:
    """Normal scores whose spread differs between prompts, log-normal with sigma one half."""
    score = rng.standard_normal(SHAPE)
    return _world(np.exp(0.5 * rng.standard_normal((SHAPE[0], 1))) * score, _rising(score, rng), _mass(rng), rng)


def rates(rng: np.random.Generator, *, rate: Callable[[np.random.Generator], Floats]) -> World:
    """Right-or-wrong scores, each prompt with a rate of its own."""
    share = rate(rng)[:, None]
    wrong = SHAPE[1] // 2
    score = np.broadcast_to((np.arange(SHAPE[1]) >= wrong).astype(float), SHAPE).copy()
    log_mass = _mass(rng)
    with np.errstate(divide="ignore"):
        for part, mass in ((slice(None, wrong), 1 - share), (slice(wrong, None), share)):
            log_mass[:, part] += np.log(mass) - logsumexp(log_mass[:, part], axis=1, keepdims=True)
    return World(name="bench", log_reference=log_mass, reward=score, gold=_rising(score, rng))


def hard(rng: np.random.Generator) -> Floats:
    """Rates of prompts that are nearly all right or nearly all wrong."""
    return rng.beta(0.15, 0.15, SHAPE[0])


def middling(rng: np.random.Generator) -> Floats:
    """Rates all over the scale."""
    return rng.beta(0.5, 0.5, SHAPE[0])


def never(rng: np.random.Generator) -> Floats:
    """Rates of which three in ten are nothing at all."""
    return np.asarray(np.where(rng.random(SHAPE[0]) < 0.3, 0.0, rng.beta(1.0, 2.0, SHAPE[0])))


def logit_normal(rng: np.random.Generator) -> Floats:
    """Rates with a normal logit."""
    return 1 / (1 + np.exp(-1.0 - 1.5 * rng.standard_normal(SHAPE[0])))


def kind(rng: np.random.Generator, *, score: float, mass: float, n: int = 3) -> World:
    """Normal scores, and one kind of worthless answer that the judge likes: ``score`` SD up, of reference ``mass``."""
    s, log_mass = rng.standard_normal(SHAPE), _mass(rng)
    gold = _rising(s, rng)
    s[:, :n], gold[:, :n] = score, 0.0
    log_mass[:, :n] += np.log(mass) - logsumexp(log_mass[:, :n], axis=1, keepdims=True)
    log_mass[:, n:] += np.log1p(-mass) - logsumexp(log_mass[:, n:], axis=1, keepdims=True)
    return _world(s, gold, log_mass, rng)


def seldom_right(rng: np.random.Generator) -> World:
    """Normal scores; one answer in 500 is right, the likelier the higher its score."""
    score = rng.standard_normal(SHAPE)
    slope = rng.uniform(0.2, 0.9)
    chance = 0.002 * np.exp(slope * score - 0.5 * slope**2)
    return _world(score, (rng.random(SHAPE) < chance).astype(float), _mass(rng), rng)


@cache
def _recipes() -> World:
    from kleash.train.recipes import recipes  # torch, which the other families do without

    return recipes().world


def the_recipes(rng: np.random.Generator) -> World:
    """The recipes of a language model, all answers of it."""
    return _recipes()


# ------------------------------------------------------------------------------------------------ cases


def _few_or_many(spread: Floats, rng: np.random.Generator) -> NDArray[np.int64]:
    """2, 3, 4 or 200 answers to a prompt, by chance."""
    return np.asarray(rng.choice([2, 3, 4, 200], spread.size))


def _by_spread(spread: Floats, rng: np.random.Generator) -> NDArray[np.int64]:
    """Four answers to the prompts with a large spread, 64 to the others."""
    return np.where(spread > np.median(spread), 4, 64)


def cases() -> tuple[Case, ...]:
    """Every family at every size."""
    light = {"light", "mixed-prompts", "gold-unrelated", "gold-opposed", "gold-peak"}
    old = [
        Case(
            family=family,
            make=partial(of_family, family=family),
            n_prompts=(30, 100),
            n_answers=size,
            light=family in light,
            share=0.5,
        )
        for family in get_args(Family)
        for size in (8, 24, 64)
    ]
    binary = [
        Case(family=f"rates {rate.__name__}", make=partial(rates, rate=rate), n_answers=size)
        for rate, size in ((hard, 8), (hard, 24), (never, 8), (never, 24), (middling, 8), (logit_normal, 8))
    ]
    kinds = [
        Case(
            family=f"cheat 1/{one_in}" + (" top stated" if stated else ""),
            make=partial(kind, score=4.0, mass=1 / one_in),
            stated=stated,
            kind=True,
        )
        for one_in in CHEATS
        for stated in (False, True)
        if not stated or one_in in {500, 2_000}
    ]
    high = [
        Case(
            family=f"cheat 1/2000 at {score} SD" + (" top stated" if stated else ""),
            make=partial(kind, score=float(score), mass=1 / 2000),
            stated=stated,
            kind=True,
        )
        for score, stated in ((6, False), (6, True), (8, False))
    ]
    outliers = [
        Case(
            family=f"outliers {score} SD, {thousandths}/1000",
            make=partial(kind, score=float(score), mass=thousandths / 1000),
            kind=True,
        )
        for score, thousandths in ((5, 3), (10, 1), (100, 1))
    ]
    fixed = [
        Case(family=f"fixed {n} x {k}", make=spreads, n_prompts=(n,), n_answers=k, fixed=True)
        for n, k in ((1, 200), (3, 64), (10, 16), (20, 8))
    ]
    few = [Case(family=f"few {n} x 24", make=spreads, n_prompts=(n,)) for n in (5, 10, 15)]
    recipes = [
        Case(
            family="recipes" + (" top stated" if stated else ""),
            make=the_recipes,
            n_prompts=(3,),
            n_answers=64,
            fixed=True,
            stated=stated,
        )
        for stated in (False, True)
    ]
    few_right = Case(family="seldom right", make=seldom_right, n_prompts=(100,), n_answers=64)
    return (
        *old,
        Case(family="light top stated", make=partial(of_family, family="light"), stated=True, light=True),
        Case(family="difficulty", make=difficulty),
        Case(family="unequal K", make=spreads, n_answers=_few_or_many),
        Case(family="K by spread", make=spreads, n_answers=_by_spread),
        *binary,
        few_right,
        *kinds,
        *high,
        *outliers,
        *fixed,
        *few,
        *recipes,
    )
