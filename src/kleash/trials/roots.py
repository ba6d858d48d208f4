"""Where does a trainer's expected update vanish? The fixed point its settings imply, exactly, on worlds of few answers.

The expected update of a policy-gradient trainer is, on-policy,

    sum over answers y of P(y) sum over tokens t of w_t(y) [A(y) - beta c_t(y)] grad log pi(y_t | prefix)

with ``A`` the expected advantage of an answer among the others of its group, ``c`` what its KL term really gives
(`kleash.gradients`), and ``w`` how its loss weighs tokens. The tilt is the root where ``A`` is the reward and ``c``
the log ratio of the whole answer; any other combination has another root, or none.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import lru_cache
from math import comb
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from scipy.special import expit, gammaln, logsumexp

from kleash import _checks
from kleash.config import Within, settle
from kleash.errors import OptionError
from kleash.gradients import TokenWorld
from kleash.kl import derivative, k3, log_softmax

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from kleash.estimates import Floats

__all__ = [
    "Objective",
    "Puzzle",
    "answer_kl",
    "at_rest",
    "expected_update",
    "group_advantage",
    "pair_mass",
    "root",
    "tilt_logits",
    "visits",
]

Advantage = Literal["reward", "centred", "group-standardised", "batch-standardised"]
Penalty = Literal["answer-in-reward", "k3-in-loss", "k3-in-loss-with-ratio", "none"]
TokenWeight = Literal["sum", "mean"]
Labels = Literal["none", "bernoulli", "larger-score"]

_REACH = 20.0  # nats from the reference beyond which rounding of the update (1e-16) is no longer small against it
_MAX_GROUPS = 200_000  # compositions enumerated for the advantage: beyond it the table no longer fits in the cache


@dataclass(frozen=True, kw_only=True, eq=False)
class Puzzle:
    """One prompt whose answers can be listed: token by token, S of them, with the reference and the judge's score.

    ``reference_logits`` have shape (n_prefixes, vocabulary), ``reward`` (S,), reward units.
    """

    name: str
    tokens: TokenWorld
    reference_logits: Floats
    reward: Floats

    @classmethod
    def one_token(cls, name: str, *, reference: list[float], reward: list[float]) -> Puzzle:
        """Answers of a single token each."""
        tokens = TokenWorld.full(vocabulary=len(reference), length=1)
        return cls(
            name=name, tokens=tokens, reference_logits=np.log([reference]), reward=np.asarray(reward, dtype=np.float64)
        )

    @classmethod
    def with_end(cls, name: str, *, letters: int, length: int, seed: int, scale: float) -> Puzzle:
        """Answers of up to ``length`` tokens out of ``letters`` letters and an end token (the last of the vocabulary).

        Reference and scores are drawn once from ``seed``; scores are 0, 1/2 or 1 times ``scale``.
        """
        strings = [w for n in range(length + 1) for w in itertools.product(range(letters), repeat=n)]
        words = [(*w, letters) if len(w) < length else w for w in strings]
        prefixes = {w: i for i, w in enumerate(w for w in strings if len(w) < length)}
        prefix, token, mask = (np.zeros((len(words), length), dtype=kind) for kind in (np.int64, np.int64, bool))
        for row, word in enumerate(words):
            for t, symbol in enumerate(word):
                prefix[row, t], token[row, t], mask[row, t] = prefixes[word[:t]], symbol, True
        tokens = TokenWorld(prefix=prefix, token=token, mask=mask, n_prefixes=len(prefixes), vocabulary=letters + 1)
        rng = np.random.default_rng(seed)
        logits = 0.7 * rng.standard_normal((len(prefixes), letters + 1))
        return cls(
            name=name,
            tokens=tokens,
            reference_logits=logits,
            reward=scale * np.asarray(rng.integers(0, 3, len(words)), dtype=np.float64) / 2.0,
        )

    @property
    def one_step(self) -> bool:
        """Whether every answer is a single token."""
        return bool(self.tokens.mask.shape[1] == 1)

    def log_policy(self, logits: Floats) -> Floats:
        """Log-probability of each answer, shape (S,)."""
        return np.asarray(self.tokens.log_probabilities(logits).sum(axis=1))

    def mean_reward(self, logits: Floats) -> float:
        """The judge's score under a policy, reward units."""
        return float(np.exp(self.log_policy(logits)) @ self.reward)


@dataclass(frozen=True, kw_only=True)
class Objective:
    """What a trainer's settings make of reward and penalty.

    Parameters
    ----------
    advantage
        ``reward``: the score itself, up to a baseline that changes nothing (leave-one-out). ``centred``: minus the mean
        of its group, the answer itself included. ``group-standardised``: the same over the group's SD.
        ``batch-standardised``: over the SD of the whole batch, taken as infinitely large.
    penalty
        ``answer-in-reward``: beta times the log ratio of the whole answer, taken off the reward. ``k3-in-loss``: k3 per
        token, added to the loss. ``k3-in-loss-with-ratio``: the same times the importance ratio.
    token_weight
        ``sum``: every token counts the same. ``mean``: every answer does.
    labels
        Pairs instead of groups (DPO): ``bernoulli`` labels drawn with probability sigmoid(score difference / scale)
        where scale is ``label_scale``, or the ``larger-score`` always chosen. ``none``: no pairs.
    beta
        The trainer's coefficient.
    group_size
        Answers per group, G.
    sd_floor
        What the trainer adds to the SD, reward units (TRL: 1e-4).
    label_scale
        Reward units per unit of log odds of the labels.
    policy_weight
        What the advantage is multiplied by and the penalty in the loss is not.
    """

    advantage: Advantage = "reward"
    penalty: Penalty = "answer-in-reward"
    token_weight: TokenWeight = "sum"
    labels: Labels = "none"
    beta: Annotated[float, Within(at_least=0)]
    group_size: Annotated[int, Within(at_least=2)] = 8
    sd_floor: float = 0.0
    label_scale: float = 1.0
    policy_weight: float = 1.0

    def __post_init__(self) -> None:
        settle(self)

    @property
    def tilt_beta(self) -> float:
        """The beta of the tilt that these settings aim at on one-token answers, reward units per nat.

        Centring on a mean that holds the answer itself shrinks every advantage by (G - 1) / G and leaves the penalty as
        it is, so the penalty counts G / (G - 1) times. DPO on labels of scale s has the tilt at beta s. Where another
        objective is aimed at, the number printed on the dial.
        """
        if self.labels != "none":
            return self.beta * self.label_scale
        if self.advantage == "centred":
            return self.beta * self.group_size / (self.group_size - 1) / self.policy_weight
        return self.beta


def group_advantage(log_policy: Floats, reward: Floats, objective: Objective) -> Floats:
    """Expected advantage of each answer among ``group_size - 1`` others drawn from the policy, shape (S,).

    Exact: groups are enumerated by their composition over the distinct scores. A group of equal scores has advantage 0.

    Examples
    --------
    >>> objective = Objective(advantage="centred", beta=1.0, group_size=4)
    >>> group_advantage(np.log([0.5, 0.5]), np.array([0.0, 1.0]), objective)
    array([-0.375,  0.375])
    """
    size = objective.group_size
    policy = np.exp(log_policy)
    if objective.advantage == "reward":
        return reward
    centred = (reward - policy @ reward) * (size - 1) / size
    if objective.advantage == "centred":
        return np.asarray(centred)
    if objective.advantage == "batch-standardised":
        variance = float(policy @ (reward - policy @ reward) ** 2)
        return np.asarray(centred / (np.sqrt(variance) + objective.sd_floor))
    scores, index = np.unique(reward, return_inverse=True)
    log_mass = np.array([logsumexp(log_policy[index == i]) for i in range(scores.size)])
    others, log_ways, table = _groups(tuple(scores.tolist()), size, objective.sd_floor)
    with np.errstate(invalid="ignore"):
        weight = np.exp(log_ways + np.where(others > 0, others * log_mass, 0.0).sum(axis=1))
    return np.asarray((weight @ table)[index])


@lru_cache(maxsize=32)
def _groups(scores: tuple[float, ...], size: int, sd_floor: float) -> tuple[NDArray[np.int64], Floats, Floats]:
    """Compositions of the G - 1 others over C scores, (M, C); log of the ways to each, (M,); the advantages, (M, C)."""
    score, n = np.array(scores), len(scores)
    count = comb(size + n - 2, n - 1)
    if count > _MAX_GROUPS:
        expected = f"at most {_MAX_GROUPS} compositions of a group"
        fix = "fewer distinct scores or smaller groups"
        raise OptionError(_checks.message("groups", expected=expected, got=count, fix=fix))
    walls = np.array(list(itertools.combinations(range(size + n - 2), n - 1)), dtype=np.int64).reshape(-1, n - 1)
    edges = np.pad(walls, ((0, 0), (1, 1)), constant_values=((-1, -1), (-1, size + n - 2)))
    others = np.diff(edges, axis=1) - 1
    log_ways = gammaln(size) - gammaln(others + 1).sum(axis=1)
    members = others[:, None, :] + np.eye(n, dtype=np.int64)  # (M, C, C): with the answer itself
    mean = members @ score / size
    variance = (members * (score - mean[..., None]) ** 2).sum(axis=2) / (size - 1)
    one_kind = (members > 0).sum(axis=2) == 1
    sd = np.where(one_kind, np.inf, np.sqrt(variance))
    return others, log_ways, (score - mean) / (sd + sd_floor)


def expected_update(puzzle: Puzzle, logits: Floats, objective: Objective) -> Floats:
    """The mean direction in which a trainer with these settings moves the logits, shape (n_prefixes, vocabulary).

    Minus the gradient of its loss in expectation over its own batches, up to a positive constant (how its loss is
    normalised); on-policy, one update per batch.
    """
    world = puzzle.tokens
    token_logp = world.log_probabilities(logits)
    delta = np.where(world.mask, token_logp - world.log_probabilities(puzzle.reference_logits), 0.0)
    log_policy = token_logp.sum(axis=1)
    if objective.labels != "none":
        return world._score(logits, np.broadcast_to(_pair_weights(puzzle, delta, objective)[:, None], delta.shape))
    advantage = group_advantage(log_policy, puzzle.reward, objective)
    if objective.penalty == "answer-in-reward":
        charged = advantage - objective.beta * delta.sum(axis=1)
        if objective.advantage == "centred":
            charged = advantage - objective.beta * (objective.group_size - 1) / objective.group_size * delta.sum(axis=1)
        elif objective.advantage != "reward":
            raise OptionError(
                _checks.message("penalty", expected="in the loss, with standardised scores", got="in the reward")
            )
        value = (charged - np.exp(log_policy) @ charged)[:, None] * np.ones_like(delta)
    else:
        ratio = k3(delta) if objective.penalty == "k3-in-loss-with-ratio" else 0.0
        slope = derivative(delta, estimator="k3") + ratio if objective.penalty != "none" else np.zeros_like(delta)
        value = objective.policy_weight * advantage[:, None] - objective.beta * slope
    length = world.mask.sum(axis=1, keepdims=True)
    weight = 1.0 / length if objective.token_weight == "mean" else np.ones_like(length, dtype=np.float64)
    return world._score(logits, np.exp(log_policy)[:, None] * weight * value)


def _pair_weights(puzzle: Puzzle, delta: Floats, objective: Objective) -> Floats:
    """Weight of each answer's log-probability in the DPO update, pairs of distinct reference answers, shape (S,)."""
    gap = puzzle.reward[:, None] - puzzle.reward[None, :]
    wins = expit(gap / objective.label_scale) if objective.labels == "bernoulli" else (np.sign(gap) + 1.0) / 2.0
    h = objective.beta * delta.sum(axis=1)
    pull = objective.beta * (wins - expit(h[:, None] - h[None, :]))
    pairs = pair_mass(puzzle)
    return np.asarray((pairs * pull).sum(axis=1) * 2.0 / pairs.sum())


def pair_mass(puzzle: Puzzle) -> Floats:
    """Probability of each pair of distinct answers of the reference, up to a constant, shape (S, S)."""
    q = np.exp(puzzle.log_policy(puzzle.reference_logits))
    pairs = np.outer(q, q)
    np.fill_diagonal(pairs, 0.0)
    return pairs


def tilt_logits(puzzle: Puzzle, beta: float) -> Floats:
    """Logits of the exact optimum of reward - beta KL over whole answers, shape (n_prefixes, vocabulary).

    The next token's probability is the share of the tilted mass that lies behind it.
    """
    world = puzzle.tokens
    log_tilt = puzzle.log_policy(puzzle.reference_logits) + puzzle.reward / beta
    logits = np.full((world.n_prefixes, world.vocabulary), -np.inf)
    for prefix, token in np.unique(np.stack([world.prefix[world.mask], world.token[world.mask]], axis=1), axis=0):
        through = ((world.prefix == prefix) & (world.token == token) & world.mask).any(axis=1)
        logits[prefix, token] = logsumexp(log_tilt[through])
    return np.asarray(log_softmax(logits))


def answer_kl(puzzle: Puzzle, logits: Floats) -> float:
    """KL(policy || reference) over whole answers, nats."""
    log_policy = puzzle.log_policy(logits)
    return float(np.exp(log_policy) @ (log_policy - puzzle.log_policy(puzzle.reference_logits)))


def root(puzzle: Puzzle, objective: Objective) -> Floats | None:
    """The fixed point that training reaches from the reference, as normalised logits; None where there is none.

    Notes
    -----
    Natural-gradient flow from the reference (so that of several roots the one next to it is found), then Newton's
    method; for pairs with Bernoulli labels the tilt, where the update is 0 as Rafailov et al. (2305.18290) show. None
    if the flow does not come to rest within 20 nats of the reference, or the update there is not 0 to
    1e-10.

    Examples
    --------
    >>> coin = Puzzle.one_token("coin", reference=[0.8, 0.2], reward=[0.0, 1.0])
    >>> plain = Objective(advantage="group-standardised", penalty="k3-in-loss", beta=1.0)
    >>> round(float(np.exp(root(coin, plain))[0, 1]), 3)
    0.618
    """
    start = log_softmax(puzzle.reference_logits)

    def update(logits: Floats) -> Floats:
        return expected_update(puzzle, logits, objective)

    if objective.labels == "bernoulli":  # known, where labels are all but sure the flow is too slow to find it
        known = tilt_logits(puzzle, objective.tilt_beta)
        if np.abs(update(known)).max() <= 1e-8 * (np.abs(update(start)).max() + np.finfo(float).tiny):
            return known
    scale = max(objective.beta * min(1.0, objective.beta if objective.labels != "none" else 1.0), 1e-3)
    return at_rest(puzzle, update, scale=scale)


class _Slow(Exception):  # noqa: N818  no error: the flow is slow enough for Newton's method
    def __init__(self, logits: Floats) -> None:
        super().__init__()
        self.logits = logits


def at_rest(
    puzzle: Puzzle,
    update: Callable[[Floats], Floats],
    *,
    scale: float,
    tolerance: float = 1e-6,
    slow: float = 0.0,
) -> Floats | None:
    """Where a mean update comes to rest, followed from the reference; normalised logits, or None.

    ``update``: The mean direction at logits of shape (n_prefixes, vocabulary), of the same shape. ``scale``: Its size,
    which says how long is long: the flow is followed for 100 / scale. ``tolerance``: Of the flow; Newton's method
    corrects its end. ``slow``: Speed in nats at which Newton's method is tried before the flow has ended.

    Notes
    -----
    Natural-gradient flow, then Newton's method. None if the flow does not come to rest within 20 nats of the reference,
    or the update there is not 0 to 1e-8 of what it is at the reference.
    """
    from scipy.integrate import solve_ivp
    from scipy.optimize import root as solve

    start = log_softmax(puzzle.reference_logits)
    shape = start.shape
    size = np.abs(update(start)).max() + np.finfo(float).tiny

    def flow(_: float, flat: Floats, slowest: float) -> Floats:
        logits = log_softmax(flat.reshape(shape))
        reach = visits(puzzle, logits)
        direction = update(logits) / (reach[:, None] * np.exp(logits))
        speed = direction - direction.mean(axis=1, keepdims=True)
        if np.abs(speed).max() < slowest:
            raise _Slow(logits)
        return np.asarray(speed.ravel())

    def far(_: float, flat: Floats, __: float) -> float:
        return _REACH - float(np.abs(log_softmax(flat.reshape(shape)) - start).max())

    far.terminal = True  # type: ignore[attr-defined]

    def residual(free: Floats) -> Floats:
        logits = np.concatenate([np.zeros((shape[0], 1)), free.reshape(shape[0], -1)], axis=1)
        return np.asarray(update(logits)[:, 1:].ravel())

    def polished(end: Floats) -> Floats | None:
        found = solve(residual, (end[:, 1:] - end[:, :1]).ravel(), method="hybr", tol=1e-14)
        logits = log_softmax(np.concatenate([np.zeros((shape[0], 1)), found.x.reshape(shape[0], -1)], axis=1))
        if np.abs(update(logits)).max() > 1e-8 * size or np.abs(logits - end).max() > 0.05:
            return None
        return np.asarray(logits)

    for slowest in (slow, 0.0) if slow > 0 else (0.0,):
        try:
            way = {"method": "LSODA", "rtol": tolerance, "atol": tolerance, "events": far}
            walk = solve_ivp(flow, (0.0, 100.0 / scale), start.ravel(), args=(slowest,), **way)
        except _Slow as arrived:
            logits = polished(arrived.logits)
            if logits is not None:
                return logits
            continue
        return None if walk.status == 1 else polished(log_softmax(walk.y[:, -1].reshape(shape)))
    return None


def visits(puzzle: Puzzle, logits: Floats) -> Floats:
    """Probability that an answer passes through each prefix, shape (n_prefixes,)."""
    world = puzzle.tokens
    weight = np.broadcast_to(np.exp(puzzle.log_policy(logits))[:, None], world.prefix.shape)
    count = np.bincount(world.prefix[world.mask], weights=weight[world.mask], minlength=world.n_prefixes)
    return np.asarray(count, dtype=np.float64)
