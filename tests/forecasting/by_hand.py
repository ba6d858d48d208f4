"""Forecast estimates by hand: one prompt at a time, in plain numpy or sixty digits, with nothing shared with kleash."""

from decimal import Decimal, localcontext
from functools import cache
from pathlib import Path

import numpy as np

from kleash import Samples, read_samples

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
COLUMNS = {"prompt_column": "task_id", "reward_columns": "judge_score", "gold_column": "correct"}


def one_prompt(r, x, beta):
    """Reward, KL and mean of x under the tilt of one prompt's K samples."""
    w = np.exp((r - r.max()) / beta)
    w = w / w.sum()
    some = w > 0
    return np.array([w @ r, (w[some] * np.log(w[some] * r.size)).sum(), w @ x])


def jackknife(r, x, beta):
    """The delete-one estimate and the delete-one deviations (3, K), each sample really left out."""
    k = r.size
    left_out = np.stack([one_prompt(np.delete(r, i), np.delete(x, i), beta) for i in range(k)], axis=1)
    mean = left_out.mean(axis=1)
    return k * one_prompt(r, x, beta) - (k - 1) * mean, left_out - mean[:, None]


def every_prompt(function, r, x, betas):
    """A function of (r, x, beta) over P prompts and B betas: (3, P, B)."""
    return np.stack([[function(a, b, beta) for beta in betas] for a, b in zip(r, x, strict=True)]).transpose(2, 0, 1)


def sixty_digits(r, x, beta):
    """`one_prompt` in Decimal, as Decimals."""
    with localcontext() as context:
        context.prec = 60
        scores, marks = [Decimal(float(v)) for v in r], [Decimal(float(v)) for v in x]
        top = max(scores)
        w = [((score - top) / Decimal(float(beta))).exp() for score in scores]
        total = sum(w)
        mean = sum(a * b for a, b in zip(w, scores, strict=True)) / total
        log_z = (total / len(w)).ln() + top / Decimal(float(beta))
        return mean, mean / Decimal(float(beta)) - log_z, sum(a * b for a, b in zip(w, marks, strict=True)) / total


def sixty_digits_jackknife(r, x, beta):
    """`jackknife` in Decimal, as floats."""
    with localcontext() as context:
        context.prec = 60
        k = len(r)
        left_out = [sixty_digits(np.delete(r, i), np.delete(x, i), beta) for i in range(k)]
        whole = sixty_digits(r, x, beta)
        means = [sum(column) / k for column in zip(*left_out, strict=True)]
        corrected = [k * a - (k - 1) * b for a, b in zip(whole, means, strict=True)]
        deviations = [[v - m for v in column] for column, m in zip(zip(*left_out, strict=True), means, strict=True)]
        return np.array(corrected, dtype=float), np.array(deviations, dtype=float)


def rectangle(reward, gold=None, **kwargs):
    """Samples of P prompts with K answers each, from (P, K) arrays."""
    reward = np.asarray(reward, dtype=float)
    prompt = np.repeat(np.arange(reward.shape[0]), reward.shape[1])
    flat = {name: np.ravel(values) for name, values in kwargs.items()}
    return Samples.from_arrays(prompt, reward.ravel(), gold=None if gold is None else np.ravel(gold), **flat)


def normal_samples(seed=0, *, n_prompts=30, n_samples=24, gold=True):
    """Normal scores, and a binary gold that follows them."""
    rng = np.random.default_rng(seed)
    reward = rng.normal(size=(n_prompts, n_samples))
    follows = rng.random(reward.shape) < 1 / (1 + np.exp(-2 * reward))
    return rectangle(reward, follows.astype(float) if gold else None)


@cache
def word_problems():
    """The shipped samples: 120 prompts x 24 answers, scores of 100, gold 0 or 1."""
    return read_samples(EXAMPLES / "word_problems.csv", **COLUMNS)
