"""Is a source what it claims to be? Densities are normalised, and that can be tested on the answers."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from kleash.samples import Sources

__all__ = ["Identity", "identity_of"]

Floats = NDArray[np.float64]

_LEVEL = 0.005
"""Chance at which a source that is what it claims is called otherwise, for each of the two tests at most."""
_ABOVE, _BELOW = 3.0, 4.0
"""Standard errors from which on a mean of exp(-log ratio) is not 1. It lies below more often than above by chance: its
largest terms are those of answers that the policy hardly ever gives."""
_ENOUGH, _NEAR = 200.0, 2.0
"""A mean below 1 counts only up to a KL of 2 nats, and if its terms have an effective size of 200 answers. Farther from
the reference, or with fewer, the mean hangs on answers that hardly any sample holds: it lies below 1 for honest sources
too (beyond 4 standard errors in 3 of 300 draws of 192 answers at .6 nats)."""
_SMALL = 0.05  # relative error of the log ratios for which it is said how many answers would show it


@dataclasses.dataclass(frozen=True, kw_only=True)
class Identity:
    """How a source's log ratios agree with the answers it drew.

    ``test``: ``reference`` (against the reference's own answers) or ``alone``. ``z``: the deviation in standard errors,
    the larger of two for ``reference``; ``mean`` of exp(-log ratio), 1 for an honest source whose answers cover the
    reference's. ``holds`` is False where the source is not what it claims. ``answers_for_5_percent``: answers with
    which log ratios that are 5 % too large or small would be noticed.
    """

    test: str
    z: float
    mean: float
    holds: bool
    answers_for_5_percent: int | None

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready plain data."""
        return dataclasses.asdict(self)


def identity_of(sources: Sources, prompt: NDArray[np.int64], number: int) -> Identity | None:
    """Test the log ratios of a source; None where no prompt has two of its answers.

    Parameters
    ----------
    sources
        Of N answers.
    prompt
        The prompt of each, shape (N,).
    number
        Which source.

    Returns
    -------
    Identity

    Notes
    -----
    With D the log ratio, E_s[exp(-D)] = 1: the test of a policy ``alone``. Its terms have no upper bound, so it sees
    little past a KL of 1.4 nats. Where D is known on the reference's answers too, an answer to the same prompt is the
    source's with chance p = s e^D / (q + s e^D), q and s the shares of the answers: so sum h (drawn by the source -
    p) is 0 in the mean for any h of the answer, with h = 1 and h = tanh(D / 2) here, and its variance is at most sum
    h^2 p (1 - p). The terms are bounded, so that Bernstein's inequality holds for few answers as well.

    References
    ----------
    Meng and Wong 1996, Statistica Sinica 6:831 (bridge identity).
    """
    log_ratio = sources.log_ratio[:, number]
    mine = sources.code == number
    with np.errstate(over="ignore"):
        mean = float(np.exp(-log_ratio[mine]).mean())
    reference = sources.code == 0 if sources.reference else np.zeros_like(mine)
    if reference.any() and not np.isnan(log_ratio[reference]).any():
        both = mine | reference
        pair = _Pair.of(prompt[both], log_ratio[both], mine[both])
        score = max((pair.score(tanh) for tanh in (False, True)), key=abs)
        seen = max(abs(pair.score(tanh, scale=1 + _SMALL) - pair.score(tanh)) for tanh in (False, True))
        needed = _needed(int(mine.sum()), seen, np.sqrt(2 * np.log(2 / _LEVEL)))
        holds = all(pair.chance(tanh) > _LEVEL for tanh in (False, True))
        return Identity(test="reference", z=score, mean=mean, holds=holds, answers_for_5_percent=needed)
    alone = _Alone(prompt=prompt[mine], log_ratio=log_ratio[mine])
    off = alone.score()
    if off is None:
        return None
    seen_enough = alone.effective() >= _ENOUGH and alone.log_ratio.mean() <= _NEAR
    seen = abs((alone.score(scale=1 + _SMALL) or 0.0) - off)
    return Identity(
        test="alone",
        z=off,
        mean=mean,
        holds=not (off > _ABOVE or (off < -_BELOW and seen_enough)),
        answers_for_5_percent=_needed(int(mine.sum()), seen, _BELOW),
    )


def _needed(answers: int, seen: float, alarm: float) -> int | None:
    """Answers with which a fault that shifts the score by ``seen`` would raise the alarm nine times in ten."""
    return int(np.ceil(answers * ((alarm + 1.3) / seen) ** 2)) if seen > 1e-9 else None


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class _Pair:
    """Answers of a source and of the reference: which are the source's, their log ratios and log odds of the counts."""

    mine: NDArray[np.bool_]
    log_ratio: Floats
    log_odds: Floats

    @classmethod
    def of(cls, prompt: NDArray[np.int64], log_ratio: Floats, mine: NDArray[np.bool_]) -> _Pair:
        """Those to prompts that both have answered."""
        size = int(prompt.max()) + 1
        counts = [np.bincount(prompt[part], minlength=size)[prompt] for part in (mine, ~mine)]
        some = (counts[0] > 0) & (counts[1] > 0)
        log_odds = np.log(counts[0][some] / counts[1][some])
        return cls(mine=mine[some], log_ratio=log_ratio[some], log_odds=log_odds)

    def _moments(self, tanh: bool, scale: float) -> tuple[float, float]:
        """Sum of h (drawn by the source - its chance), and the variance of that sum."""
        ratio = scale * self.log_ratio
        h = np.tanh(0.5 * ratio) if tanh else np.ones_like(ratio)
        chance = expit(ratio + self.log_odds)
        return float((h * (self.mine - chance)).sum()), float((h**2 * chance * (1 - chance)).sum())

    def score(self, tanh: bool, *, scale: float = 1.0) -> float:
        """The sum in standard errors."""
        total, variance = self._moments(tanh, scale)
        return total / np.sqrt(variance) if variance > 0 else 0.0

    def chance(self, tanh: bool) -> float:
        """How likely a sum at least as large is for an honest source, at most (Bernstein's inequality)."""
        total, variance = self._moments(tanh, 1.0)
        size = abs(total)
        return 1.0 if size == 0 else min(1.0, 2 * float(np.exp(-(size**2) / 2 / (variance + size / 3))))


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class _Alone:
    """Log ratios of a source's answers and the prompts they belong to, both (n,)."""

    prompt: NDArray[np.int64]
    log_ratio: Floats

    def score(self, *, scale: float = 1.0) -> float | None:
        """Sum over prompts of mean exp(-log ratio) - 1 in standard errors; None if no prompt has two answers."""
        with np.errstate(over="ignore"):
            values = np.exp(-scale * self.log_ratio)
        n = np.bincount(self.prompt).astype(np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            mean = np.bincount(self.prompt, weights=values) / n
            variance = np.bincount(self.prompt, weights=(values - mean[self.prompt]) ** 2) / (n * (n - 1))
        some = n > 1
        total, squares = float((mean[some] - 1.0).sum()), float(variance[some].sum())
        return total / float(np.sqrt(squares)) if squares > 0 and np.isfinite(squares) else None

    def effective(self) -> float:
        """Effective size of exp(-log ratio), in answers."""
        weight = np.exp(-(self.log_ratio - self.log_ratio.min()))
        return float(weight.sum() ** 2 / (weight**2).sum())
