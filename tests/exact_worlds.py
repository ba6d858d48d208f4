"""Worlds for the tests of the exact layer, and an oracle with sixty digits that shares no code with kleash."""

import dataclasses
from decimal import Decimal, localcontext
from typing import get_args

import numpy as np
from hypothesis import strategies as st
from scipy.special import logsumexp
from scipy.stats import norm

from kleash.worlds import Family, World, random_world

FAMILIES = get_args(Family)
SCALES = (
    0.1,
    1.0,
    3.0,
    30.0,
)  # lambda in units of 1 / range of the reward: from nearly the reference to nearly the top


def some_world(family, seed, *, n_prompts=4, n_answers=24):
    """A small random world of a family, with unequal prompts and with answers the reference cannot give."""
    rng = np.random.default_rng(seed)
    world = random_world(family, rng=rng, n_prompts=n_prompts, n_answers=n_answers)
    impossible = rng.random((n_prompts, n_answers)) < 0.2
    impossible[:, :2] = False
    log_reference = np.where(impossible, -np.inf, world.log_reference)
    return World(
        name=family,
        log_reference=log_reference - logsumexp(log_reference, axis=1, keepdims=True),
        reward=np.where(impossible, np.nan, world.reward),
        gold=np.where(impossible, np.inf, world.gold),
        prompt_weight=rng.dirichlet(np.full(n_prompts, 2.0)),
    )


def every_family(seeds=2):
    return [some_world(family, 100 * i + seed) for i, family in enumerate(FAMILIES) for seed in range(seeds)]


def reward_range(world):
    """Widest within-prompt range of the reward among the answers that can be given."""
    possible = np.isfinite(world.log_reference)
    top = np.where(possible, world.reward, -np.inf).max(axis=1)
    return float((top - np.where(possible, world.reward, np.inf).min(axis=1)).max())


def small_worlds():
    """Hypothesis: a small world of any family; every family is reached."""
    return st.builds(
        some_world,
        st.sampled_from(FAMILIES),
        st.integers(0, 2**20),
        n_prompts=st.integers(1, 3),
        n_answers=st.integers(8, 20),
    )


def lambdas():
    """Hypothesis: lambda in units of 1 / range, over six decades."""
    return st.floats(-4.0, 2.0).map(lambda exponent: 10.0**exponent)


def replace(world, **changes):
    return dataclasses.replace(world, **changes)


def gaussian_world(coefficients):
    """A standard normal judge; gold is sum c_k He_k(reward), so that E_lambda[gold] is exactly sum c_k lambda^k.

    The normal is put on a grid of step 0.05, from -14 to 14: sums over it agree with integrals to rounding for lambda
    below 5, because the tilt of a normal is the normal moved by lambda and the step is far below its SD.
    """
    reward = np.arange(-280, 281) * 0.05
    log_mass = norm.logpdf(reward)
    gold = np.polynomial.hermite_e.hermeval(reward, coefficients)
    return World(
        name="gaussian", log_reference=(log_mass - logsumexp(log_mass))[None], reward=reward[None], gold=gold[None]
    )


def with_maxima_and_minima(roots):
    """A gaussian world whose gold has slope -(lambda - a)(lambda - b)... along the dial, for odd many roots."""
    slope = -np.polynomial.polynomial.polyfromroots(roots)
    return gaussian_world(np.polynomial.polynomial.polyint(slope))


def sixty_digits(world, beta, prompt=0):
    """Reward, gold, KL, chi-squared, variance, covariance and log Z of one prompt, by plain sums in Decimal."""
    with localcontext() as context:
        context.prec = 60
        possible = [i for i in range(world.n_answers) if np.isfinite(world.log_reference[prompt, i])]
        q = [Decimal(float(world.log_reference[prompt, i])).exp() for i in possible]
        total = sum(q)
        q = [x / total for x in q]
        r = [Decimal(float(world.reward[prompt, i])) for i in possible]
        g = [Decimal(float(world.gold[prompt, i])) for i in possible]
        w = [x * (y / Decimal(beta)).exp() for x, y in zip(q, r, strict=True)]
        z = sum(w)
        p = [x / z for x in w]
        mean_r = sum(a * b for a, b in zip(p, r, strict=True))
        mean_g = sum(a * b for a, b in zip(p, g, strict=True))
        result = {
            "reward": mean_r,
            "gold": mean_g,
            "kl": sum(a * (a / b).ln() for a, b in zip(p, q, strict=True)),
            "chi2": sum(a * a / b for a, b in zip(p, q, strict=True)) - 1,
            "reward_variance": sum(a * (b - mean_r) ** 2 for a, b in zip(p, r, strict=True)),
            "gold_covariance": sum(a * (b - mean_r) * (c - mean_g) for a, b, c in zip(p, r, g, strict=True)),
            "log_partition": z.ln(),
        }
        return {name: float(value) for name, value in result.items()}
