"""Small worlds in which a trainer's expected update is a sum over all groups of answers, and its root can be found.

A world has a few prompts, a vocabulary, answers of one or a few tokens (token 0 ends an answer early if ``ends``), and
a tabular policy with logits of its own for every prompt and prefix. A twin gets a batch that is every possible group,
with its probability: what it returns as a loss is differentiated by complex steps, token by token.
"""

import itertools
from dataclasses import dataclass

import numpy as np
from scipy import optimize
from scipy.special import log_softmax, logsumexp

STEP = 1e-30  # of the complex differences: exact to rounding


@dataclass
class Arena:
    reference: np.ndarray  # (P, n_prefixes, V), log probabilities
    reward: np.ndarray  # (P, S)
    token: np.ndarray  # (S, T)
    prefix: np.ndarray  # (S, T)
    mask: np.ndarray  # (S, T)

    @classmethod
    def make(cls, *, vocabulary, length, prompts=2, ends=False, reward_scale=1.0, binary=False, seed=0):
        rng = np.random.default_rng(seed)
        answers, known, prefixes = [], {}, []
        for tokens in itertools.product(range(vocabulary), repeat=length):
            stop = next((i + 1 for i, t in enumerate(tokens) if ends and t == 0), length)
            if any(tokens[stop:]):
                continue  # what comes behind the end is padding
            answers.append((tokens, stop))
            prefixes.append([known.setdefault(tokens[:i], len(known)) if i < stop else 0 for i in range(length)])
        mask = np.array([[i < stop for i in range(length)] for _, stop in answers])
        reference = log_softmax(rng.normal(size=(prompts, len(known), vocabulary)), axis=-1)
        reward = reward_scale * rng.normal(size=(prompts, len(answers)))
        if binary:
            reward = np.zeros((prompts, len(answers)))
            reward[:, -1] = 1.0
        return cls(reference, reward, np.array([a for a, _ in answers]), np.array(prefixes), mask)

    def log_tokens(self, table):
        """(P, n_prefixes, V) -> (P, S, T), 0 on padding."""
        return np.where(self.mask, table[:, self.prefix, self.token], 0.0)

    def log_answers(self, table):
        return self.log_tokens(table).sum(axis=-1)

    def tilt(self, beta):
        """Log probabilities of the answers under the tilt, (P, S)."""
        log = self.log_answers(self.reference) + self.reward / beta
        return log - logsumexp(log, axis=1, keepdims=True)

    def kl(self, log_policy):
        """KL to the reference of each prompt's answers, mean over prompts."""
        return float((np.exp(log_policy) * (log_policy - self.log_answers(self.reference))).sum(axis=1).mean())

    def mean_reward(self, log_policy):
        return float((np.exp(log_policy) * self.reward).sum(axis=1).mean())

    def sds(self, log_policy):
        p = np.exp(log_policy)
        mean = (p * self.reward).sum(axis=1, keepdims=True)
        return np.sqrt((p * (self.reward - mean) ** 2).sum(axis=1))


@dataclass
class Batch:
    """Every group of G answers to every prompt; N groups in all."""

    weight: np.ndarray  # (N,), sums to one
    reward: np.ndarray  # (N, G)
    old: np.ndarray  # (N, G, T), log probabilities the answers were drawn with
    ref: np.ndarray  # (N, G, T)
    mask: np.ndarray  # (N, G, T)
    cell: np.ndarray  # (N, G, T), prompt and prefix as one number
    prompt: np.ndarray  # (N,)
    answer: np.ndarray  # (N, G)

    @property
    def length(self):
        return self.mask.sum(axis=-1)

    def mean(self, values):
        """Mean over the batch, of a number per answer."""
        return float((self.weight[:, None] * values).sum() / values.shape[1])

    def token_mean(self, values):
        """Mean over all tokens of the batch."""
        w = self.weight[:, None, None] * self.mask
        return float((w * values).sum() / w.sum())

    def whitened(self, values, eps=1e-8):
        """Token values minus their mean over the batch, over their SD."""
        mean = self.token_mean(values)
        return (values - mean) / np.sqrt(self.token_mean((values - mean) ** 2) + eps)

    def critic(self, token_reward):
        """A critic that has learnt: the mean reward to go at each prefix."""
        to_go = reward_to_go(token_reward)
        w = (self.weight[:, None, None] * self.mask).ravel()
        mass = np.bincount(self.cell.ravel(), weights=w)
        total = np.bincount(self.cell.ravel(), weights=w * to_go.ravel())
        return np.where(self.mask, (total / np.where(mass > 0, mass, 1.0))[self.cell], 0.0)

    def at_last(self, score):
        """The answer's score on its last token, 0 elsewhere."""
        last = np.arange(self.mask.shape[-1]) == (self.length - 1)[..., None]
        return np.where(last, score[..., None], 0.0)


def reward_to_go(token_reward):
    return np.flip(np.cumsum(np.flip(token_reward, -1), -1), -1)


def every_group(arena, table, group, behaviour=None):
    """The batch of all groups drawn from ``table`` (or from ``behaviour``)."""
    drawn = table if behaviour is None else behaviour
    index = np.array(list(itertools.product(range(len(arena.token)), repeat=group)))
    log_tokens, log_ref = arena.log_tokens(table), arena.log_tokens(arena.reference)
    log_drawn = arena.log_answers(drawn)
    parts = []
    n_prefixes = arena.reference.shape[1]
    for p in range(len(arena.reward)):
        weight = np.exp(log_drawn[p][index].sum(axis=1)) / len(arena.reward)
        cell = arena.prefix[index] + p * n_prefixes
        parts.append((weight, arena.reward[p][index], log_tokens[p][index], log_ref[p][index], arena.mask[index], cell,
                      np.full(len(index), p), index))  # fmt: skip
    return Batch(*(np.concatenate(part) for part in zip(*parts, strict=True)))


def expected_update(arena, table, twin, group, behaviour=None):
    """Minus the gradient of the twin's expected loss with respect to the logits, (P, n_prefixes, V)."""
    batch = every_group(arena, table, group, behaviour)
    slope = np.zeros(batch.old.shape)
    for g, t in np.ndindex(batch.old.shape[1:]):
        logp = batch.old.astype(complex)
        logp[:, g, t] += STEP * 1j
        slope[:, g, t] = twin(logp, batch).imag / STEP
    push = -batch.weight[:, None, None] * np.where(batch.mask, slope, 0.0)
    vocabulary = table.shape[-1]
    at = batch.cell * vocabulary + arena.token[batch.answer]
    total = np.bincount(at.ravel(), weights=push.ravel(), minlength=table.size).reshape(table.shape)
    return total - total.sum(axis=-1, keepdims=True) * np.exp(table)


def natural_push(arena, table, twin, group, behaviour=None):
    """The expected update as a natural gradient: divided by the chance of the prefix and of the token."""
    reach = np.zeros(table.shape[:2])
    whole = np.exp(arena.log_answers(table))
    for t in range(arena.token.shape[1]):
        on = arena.mask[:, t]
        np.add.at(reach, (slice(None), arena.prefix[on, t]), whole[:, on])
    return expected_update(arena, table, twin, group, behaviour) / (reach[:, :, None] * np.exp(table))


def shrinking(arena, twin, *, group, decay, start=0.5):
    """Where steps that shrink by ``decay`` end, from the reference: for updates that keep their size up to the root."""
    table, step = arena.reference, start
    while step > 1e-8:
        push = natural_push(arena, table, twin, group)
        table = log_softmax(table + step * push / max(1.0, 2 * step * np.abs(push).max()), axis=-1)
        step *= decay
    return table


def root(arena, twin, *, group, behaviour=None):
    """The root of the twin's expected update that is reached from the reference.

    Natural-gradient steps in the logits, halved whenever they turn back on themselves, then Powell's hybrid method for
    the last digits.
    """
    table, step, last = arena.reference, 0.2, np.zeros_like(arena.reference)
    for _ in range(1000):
        push = natural_push(arena, table, twin, group, behaviour)
        step = step * 0.5 if float((push * last).sum()) < 0 else step * 1.1
        move = step * push / max(1.0, 2 * step * np.abs(push).max())
        table = log_softmax(table + move, axis=-1)
        last = push
        if np.abs(move).max() < 1e-6:
            break

    def whole(free):
        logits = np.concatenate([np.zeros((*table.shape[:2], 1)), free.reshape(*table.shape[:2], -1)], axis=-1)
        return log_softmax(logits, axis=-1)

    def residual(free):
        push = natural_push(arena, whole(free), twin, group, behaviour)
        return (push[..., 1:] - push[..., :1]).ravel()

    start = (table[..., 1:] - table[..., :1]).ravel()
    found = optimize.root(residual, start, tol=1e-12)
    assert np.abs(residual(found.x)).max() < 1e-8, f"the update does not vanish: {found.message}"
    assert np.abs(found.x - start).max() < 0.5, "the last digits went elsewhere"
    return whole(found.x)
