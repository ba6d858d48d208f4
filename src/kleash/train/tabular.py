"""Tabular policies trained by sampled policy gradient, all betas and seeds in one array.

One logit per answer, started at the reference: the smallest policy that really trains. Its exact optimum is known
(:mod:`kleash.tilt`), so how far training came is a number, not a hope.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kleash import _checks, tilt
from kleash.estimates import Floats
from kleash.train.streams import Purpose, stream
from kleash.worlds import World

__all__ = ["History", "Progress", "TabularRun", "expectations", "gradient", "objective_gap", "train_tabular"]

Progress = Callable[[int, int], None]
"""Called now and then with the steps done and the steps to do."""

DEFAULT_STEPS = 1500
DEFAULT_SAMPLES = 256
STEPS, SEEDS = 10**8, 10**4  # at most: a day of the kitchen, and the memory of a laptop
_RATE = 0.03
"""First learning rate of Adam, in nats of logit per step; it falls linearly to 0.

A logit can travel ``_RATE * steps / 2`` nats, 22 by default, more than 256 answers a step can resolve. Five times
faster, and a policy without a penalty can settle before it has met an answer that the reference gives once in
2,000.
"""
_MOMENTUM, _MEMORY = 0.9, 0.95
"""Adam's decays. A long memory of squared gradients (0.99) makes answers that turn up rarely move too late."""
_EPSILON = 1e-8  # against 0 / 0 where an answer is never drawn; gradients are in units of the reward's range


@dataclass(frozen=True, kw_only=True, eq=False)
class History:
    """How training went: exact expectations under the policies at some of the steps.

    ``step`` has shape (T,), the others (T, B, S) for B betas and S seeds: ``reward`` and ``gold`` in their own
    units, ``kl`` in nats per answer, ``objective`` = reward - beta kl.
    """

    step: NDArray[np.int64]
    reward: Floats
    gold: Floats
    kl: Floats
    objective: Floats


@dataclass(frozen=True, kw_only=True, eq=False)
class TabularRun:
    """Trained policies: ``log_policy`` of shape (B, S, P, Y) for the betas ``beta`` (B,), and their history."""

    beta: Floats
    log_policy: Floats
    history: History


def train_tabular(
    world: World,
    beta: ArrayLike,
    *,
    seeds: int = 3,
    seed: int = 0,
    steps: int = DEFAULT_STEPS,
    samples: int = DEFAULT_SAMPLES,
    history_points: int = 100,
    progress: Progress | None = None,
) -> TabularRun:
    """Train a softmax policy for every beta and seed, on sampled answers, with the KL inside the reward.

    Use it to see what a leash does in a world small enough to list. Where only the optimum matters,
    :func:`kleash.tilt.tilt_policy` gives it without training.

    Parameters
    ----------
    world
        The world; P prompts, Y answers. Answers that the reference cannot give stay impossible.
    beta
        Finite coefficients in reward units per nat, shape (B,). At 0 there is no penalty; KL is measured all the same.
    seeds
        Independent runs per beta, S.
    seed
        Start of all randomness. Each (beta, seed) has a stream of its own: its result does not depend on which
        other betas or how many seeds are trained beside it.
    steps
        Gradient steps.
    samples
        Answers drawn per prompt and step, at least 2. Every prompt is visited in every step and its gradient
        weighted by the world's ``prompt_weight``.
    history_points
        About how many steps are recorded.
    progress
        Called with (steps done, steps) at the recorded steps.

    Returns
    -------
    TabularRun

    Notes
    -----
    The reward of an answer is ``r - beta log(policy / reference)`` (k1, at the level of the whole answer);
    :func:`gradient` is its policy gradient with a leave-one-out baseline, followed by Adam with a rate that falls
    to 0. Rewards and beta are divided by one constant, the widest range of the reward within a prompt: that
    changes no optimum, and makes a judge in other units the same problem. At the optimum the penalised reward is
    the same for every answer, so the gradient's noise vanishes there and training can arrive. A constant per prompt
    drops out of every draw's gradient; leaving out the largest reward and the log normaliser keeps rounding from
    moving a policy that has nothing to learn. Cost: steps x B x S x P x (Y + a draw from a multinomial).

    References
    ----------
    Ahmadian et al. 2024, "Back to Basics" (RLOO), arXiv 2402.14740; Kingma, Ba 2015, arXiv 1412.6980,
    algorithm 1.

    Examples
    --------
    >>> from kleash.worlds import two_arm
    >>> run = train_tabular(two_arm(0.2), [1.0], seeds=1)
    >>> np.exp(run.log_policy).round(3)  # the optimum: 0.405 for the pleasing answer
    array([[[[0.595, 0.405]]]])
    """
    betas = np.unique(_checks.betas(beta, infinite=False) + 0.0)
    widest = tilt.reward_spread(world)[1]
    if widest > 0:  # there the reference is the optimum to the last digit, and the penalty drowns the reward
        _checks.number(betas[-1], name="beta", at_most=1e9 * widest)
    seeds = _checks.integer(seeds, name="seeds", at_least=1, at_most=SEEDS)
    seed = _checks.integer(seed, name="seed", at_least=0)
    steps = _checks.integer(steps, name="steps", at_least=1, at_most=STEPS)
    samples = _checks.integer(samples, name="samples", at_least=2)
    every = max(1, steps // _checks.integer(history_points, name="history_points", at_least=1))
    order, log_reference, reward, gold = _favourite_last(world)
    unit = widest or 1.0
    scaled = (reward - reward.max(axis=1, keepdims=True)) / unit
    pull = np.repeat(betas / unit, seeds)[:, None, None]
    share = (world.prompt_weight / (samples - 1))[:, None]
    streams = [_stream(seed, b, s, Purpose.TABLES) for b in betas for s in range(seeds)]
    shift = np.zeros((len(streams), world.n_prompts, world.n_answers))  # logits minus log reference
    adam, counts = _Adam(first=np.zeros_like(shift), second=np.zeros_like(shift)), np.zeros_like(shift)
    recorded: list[tuple[Floats, Floats, Floats]] = []
    marks = sorted({*range(0, steps, every), steps})
    for step in range(steps + 1):
        policy, normaliser = _policy(log_reference, shift)
        if step == marks[len(recorded)]:
            log_ratio = np.where(shift.any(axis=-1, keepdims=True), shift - normaliser, 0.0)
            recorded.append(_expect(log_reference, log_ratio, reward, gold, world.prompt_weight))
            if progress is not None:
                progress(step, steps)
        if step == steps:
            break
        _draw(streams, samples, policy, out=counts)
        shift += adam.step(share * _centred(counts, scaled - pull * shift, samples), step=step, steps=steps)
    with np.errstate(divide="ignore"):
        log_policy = np.where(np.isfinite(log_reference), log_reference + log_ratio, -np.inf)
    back = np.argsort(order, axis=1)
    return TabularRun(
        beta=betas,
        log_policy=np.take_along_axis(log_policy, back[None], axis=2).reshape(betas.size, seeds, *back.shape),
        history=_history(marks, recorded, betas, seeds),
    )


def _favourite_last(world: World) -> tuple[NDArray[np.intp], Floats, Floats, Floats]:
    """An order of the answers, and reference, reward and gold in it.

    The last category of a multinomial gets whatever rounding leaves over, so the reference's favourite stands last.
    """
    order = np.argsort(world.log_reference, axis=1, kind="stable")
    reference, reward, gold = (
        np.take_along_axis(a, order, axis=1) for a in (world.log_reference, world.reward, world.gold)
    )
    return order, reference, reward, gold


@dataclass(kw_only=True, eq=False)
class _Adam:
    """Moments of the gradient and its square; Kingma, Ba 2015, algorithm 1."""

    first: Floats
    second: Floats

    def step(self, slope: Floats, *, step: int, steps: int) -> Floats:
        """How far the logits move."""
        self.first += (1.0 - _MOMENTUM) * (slope - self.first)
        self.second += (1.0 - _MEMORY) * (slope * slope - self.second)
        debias = np.sqrt(1.0 - _MEMORY ** (step + 1))
        rate = _RATE * (1.0 - step / steps) * debias / (1.0 - _MOMENTUM ** (step + 1))
        return np.asarray(rate * self.first / (np.sqrt(self.second) + _EPSILON * debias))


def _history(marks: list[int], recorded: list[tuple[Floats, Floats, Floats]], betas: Floats, seeds: int) -> History:
    reward, gold, kl = (np.stack(values).reshape(-1, betas.size, seeds) for values in zip(*recorded, strict=True))
    step = np.asarray(marks, dtype=np.int64)
    return History(step=step, reward=reward, gold=gold, kl=kl, objective=reward - betas[:, None] * kl)


def gradient(counts: ArrayLike, reward: ArrayLike) -> Floats:
    """Policy gradient with a leave-one-out baseline, with respect to softmax logits, from counts of sampled answers.

    Parameters
    ----------
    counts
        How often each answer was drawn, shape (..., Y); n = their sum, at least 2.
    reward
        The reward of each answer, shape (..., Y), any unit; the KL penalty, if any, is already inside it.

    Returns
    -------
    Shape (..., Y): ``g_y = c_y (R_y - Rbar) / (n - 1)`` with ``Rbar`` the mean reward of the n draws.

    Notes
    -----
    The estimator is ``1/n sum_i (R_i - b_i) d log p(y_i)`` with ``b_i = (n Rbar - R_i) / (n - 1)``, the mean of the
    other draws. So ``R_i - b_i = n (R_i - Rbar) / (n - 1)``, and for softmax logits ``d log p(y_i) / d theta_y =
    1[y_i = y] - p_y``. The part with ``p_y`` is multiplied by ``sum_i (R_i - Rbar) = 0`` and drops out: only counts
    matter. Unbiased: ``E[c_y R_y] = n p_y R_y`` and ``E[c_y Rbar] = (n - 1) p_y E[R] + p_y R_y``, so ``E[g_y] = p_y
    (R_y - E[R])``, the gradient of ``E[R]``. When R holds ``-beta log(p / q)``, the gradient through that term is
    ``-beta E[d log p] = 0``, so the same expression is the gradient of ``E[r] - beta KL(p || q)``.

    Examples
    --------
    >>> gradient([1, 1], [0.0, 1.0])
    array([-0.5,  0.5])
    """
    c = np.asarray(counts, dtype=np.float64)
    r = np.asarray(reward, dtype=np.float64)
    n = c.sum(axis=-1, keepdims=True)
    _checks.number(n.min(), name="sum of counts", at_least=2)
    return np.asarray(_centred(c, r, n) / (n - 1))


def expectations(world: World, log_policy: ArrayLike) -> tuple[Floats, Floats, Floats]:
    """Exact judge's score, true quality and KL (nats) of policies of shape (..., P, Y); each result has shape (...).

    Examples
    --------
    >>> from kleash.worlds import two_arm
    >>> reward, gold, kl = expectations(two_arm(0.2), np.log([[[0.5, 0.5]]]))
    >>> float(reward[0]), float(gold[0]), round(float(kl[0]), 4)
    (0.5, 0.5, 0.2231)
    """
    log_p = np.asarray(log_policy, dtype=np.float64)
    possible = np.isfinite(world.log_reference)
    log_ratio = np.subtract(log_p, world.log_reference, out=np.zeros(log_p.shape), where=possible)
    return _expect(world.log_reference, log_ratio, world.reward, world.gold, world.prompt_weight)


def objective_gap(world: World, beta: ArrayLike, log_policy: ArrayLike) -> Floats:
    """How far policies fall short of the best objective ``E[reward] - beta KL``, in reward units; never negative.

    Parameters
    ----------
    world
        The world; P prompts, Y answers.
    beta
        Finite coefficients, shape (B,).
    log_policy
        Log probabilities, shape (B, S, P, Y).

    Returns
    -------
    Shape (B, S).

    Notes
    -----
    With p* the tilt, ``J(p*) - J(p) = beta KL(p || p*)`` exactly, which needs no difference of large numbers; at
    beta 0 it is ``E_p[max r - r]``. Follows from ``r = beta (log p* - log q + log Z)``, the tilt solved for the
    reward.

    Examples
    --------
    >>> from kleash.worlds import two_arm
    >>> world = two_arm(0.2)
    >>> objective_gap(world, [1.0, 0.0], np.tile(world.log_reference, (2, 1, 1, 1))).round(4)
    array([[0.0954],
           [0.8   ]])
    """
    betas = _checks.betas(beta, infinite=False)
    log_p = np.asarray(log_policy, dtype=np.float64)
    policy = np.exp(log_p)
    top = np.where(np.isfinite(world.log_reference), world.reward, -np.inf).max(axis=1, keepdims=True)
    regret = policy * np.where(policy > 0, top - world.reward, 0.0)
    best = tilt.tilt_policy(world, np.where(betas > 0, betas, 1.0))[:, None]
    ratio = np.subtract(log_p, best, out=np.zeros(log_p.shape), where=np.isfinite(best))
    scale = betas[:, None, None, None]
    return _mean(np.where(scale > 0, scale * tilt.kl_terms(policy, np.exp(best), ratio), regret), world.prompt_weight)


def draw_answers(
    world: World, log_policy: ArrayLike, *, beta: float, seed: int, n: int
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """A few (prompt, answer) index pairs drawn from policies of shape (S, P, Y), the seeds taking turns."""
    policy = np.exp(np.asarray(log_policy, dtype=np.float64))
    rng = _stream(seed, beta, 0, Purpose.SHOWN_TABLES)
    prompts = rng.choice(world.n_prompts, size=n, p=world.prompt_weight)
    chosen = [policy[i % policy.shape[0], prompt] for i, prompt in enumerate(prompts)]
    return prompts, np.asarray([rng.choice(world.n_answers, p=p / p.sum()) for p in chosen])


def _stream(seed: int, beta: float, which: int, purpose: Purpose) -> np.random.Generator:
    """A stream of its own for each (seed, beta, which, purpose); beta enters by its 64 bits."""
    bits = int(np.float64(beta).view(np.uint64))
    return stream(seed, purpose, which, bits >> 32, bits & 0xFFFFFFFF)


def _policy(log_reference: Floats, shift: Floats) -> tuple[Floats, Floats]:
    """Probabilities and log normalisers of the policies with logits log_reference + shift."""
    logits = log_reference + shift
    top = logits.max(axis=-1, keepdims=True)
    policy = np.exp(logits - top)
    total = policy.sum(axis=-1, keepdims=True)
    policy /= total
    return policy, np.log(total) + top


def _draw(streams: list[np.random.Generator], samples: int, policy: Floats, *, out: Floats) -> None:
    """Counts of the answers drawn, each group from its own stream."""
    if policy.shape[1] == 1:  # numpy's broadcasting costs several times the draw itself
        for group, rng in enumerate(streams):
            out[group, 0] = rng.multinomial(samples, policy[group, 0])
    else:
        for group, rng in enumerate(streams):
            out[group] = rng.multinomial(samples, policy[group])


def _centred(counts: Floats, reward: Floats, n: ArrayLike) -> Floats:
    mean = (counts * reward).sum(axis=-1, keepdims=True) / n
    return np.asarray(counts * (reward - mean))


def _expect(
    log_reference: Floats, log_ratio: Floats, reward: Floats, gold: Floats, weight: Floats
) -> tuple[Floats, Floats, Floats]:
    policy = np.exp(log_reference + log_ratio)
    kl = tilt.kl_terms(policy, np.exp(log_reference), log_ratio)
    return _mean(policy * reward, weight), _mean(policy * gold, weight), _mean(kl, weight)


def _mean(terms: Floats, weight: Floats) -> Floats:
    """Sum over answers, weighted mean over prompts; plain sums, so that no group's rounding depends on the others."""
    return np.asarray((terms.sum(axis=-1) * weight).sum(axis=-1))
