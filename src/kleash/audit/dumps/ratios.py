"""How far are two laws apart, token by token? The reference, the sampler and the entropy against the policy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from kleash import kl
from kleash.audit.chance import CAP, Sums, log_e_above, log_e_below, log_e_surprisal, no_bets
from kleash.audit.dumps.neighbours import Shift

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kleash.estimates import Floats

    Ints = NDArray[np.int64]

__all__ = [
    "GROUPS",
    "HEIGHTS",
    "LOST",
    "SUNK",
    "SURPRISAL_MARGIN",
    "Ratios",
    "Sampler",
    "Surprisal",
    "moments",
    "no_moments",
]

HEIGHTS = (3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 12.0, 14.0, 16.0, 20.0, 30.0, 50.0, 88.7)
"""Values of ref_logp - logp above which tokens are counted: verl, NeMo-RL and slime clamp at 20, exp leaves float32 at
88.7."""

LOWEST, PER_DECADE, BINS = -30.0, 100, 34_000  # bins of log10 k3 (2.3 % wide), for the share of the top tokens
MOST = 700.0  # nats: exp of more leaves the float range
GROUPS = 64  # answers are dealt to this many groups for jackknife errors of slopes
RAISED = 0.2  # nats by which no scoring noise raises a token: renormalising after truncation only lowers ratios
SUNK, LOST = 10.0, 20.0
"""Nats that no few updates take from a token the sampler has just drawn: from one in a thousand, and from any. Ours."""
SURPRISAL_MARGIN = 0.01
"""Nats per token by which mean surprisal may miss mean entropy: rounding of either; a temperature of .98 moves it more
on text of 1 nat per token. Ours."""


def _above(delta: Floats) -> Ints:
    return np.array([int((delta <= -h).sum()) for h in HEIGHTS])


@dataclass(kw_only=True)
class Ratios:
    """Of the log ratios ``logp - ref_logp``, and of ``drawn``, those under the law that drew the tokens.

    Parameters
    ----------
    tokens, finite, equal
        Counted tokens, values (tokens, or sums without lists) that are numbers on both sides, and alike in every digit.
    granted
        For how many tokens scoring noise is granted.
    clamped
        Tokens whose k3 reaches 10.
    heights, drawn_heights
        Tokens above each of `HEIGHTS`.
    k3_counts, k3_sums
        Histogram of k3: tokens and their sum, by bin.
    identity, exchanged
        Means of exp(-drawn) and exp(logp - ref_logp).
    wealth, exchanged_wealth
        Log wealth of the bets that these are above 1, per token where there are lists, else per answer.
    own_wealth
        The first of them for ``logp`` where the sampler's numbers are there, and drew the tokens.
    squares
        Sum of ``drawn`` squared.
    """

    tokens: int = 0
    finite: int = 0
    equal: int = 0
    granted: float = 0.0
    clamped: int = 0
    heights: Ints = field(default_factory=lambda: np.zeros(len(HEIGHTS), dtype=np.int64))
    drawn_heights: Ints = field(default_factory=lambda: np.zeros(len(HEIGHTS), dtype=np.int64))
    k3_counts: Ints = field(default_factory=lambda: np.zeros(BINS, dtype=np.int64))
    k3_sums: Floats = field(default_factory=lambda: np.zeros(BINS))
    identity: Sums = field(default_factory=Sums)
    exchanged: Sums = field(default_factory=Sums)
    wealth: Floats = field(default_factory=no_bets)
    exchanged_wealth: Floats = field(default_factory=no_bets)
    own_wealth: Floats = field(default_factory=no_bets)
    squares: float = 0.0

    def add(self, delta: Floats, good: NDArray[np.bool_]) -> None:
        """The log ratios of counted tokens, 0 where one is not a number."""
        finite = delta[good]
        third = kl.k3(finite)
        self.tokens += good.size
        self.granted += good.size
        self._count(finite)
        self.clamped += int((third >= 10).sum())
        self.heights += _above(finite)
        decades = np.clip(np.log10(third) - LOWEST, 0, BINS / PER_DECADE - 0.5 / PER_DECADE)
        where = (decades * PER_DECADE).astype(np.int64)
        self.k3_counts += np.bincount(where, minlength=BINS)
        self.k3_sums += np.bincount(where, weights=third, minlength=BINS)

    def add_drawn(self, drawn: Floats, delta: Floats, drew: NDArray[np.bool_]) -> None:
        """The same under the law that drew the tokens. Infinity is told as such; bets and evidence can take it."""
        self.identity.add(np.exp(-drawn[drew]))
        self.exchanged.add(np.exp(delta[drew]))
        self.wealth = self.wealth + log_e_above(np.where(drew, np.exp(np.minimum(-drawn, MOST)), 0.0))
        exchanged = np.where(drew, np.exp(np.minimum(delta, MOST)), 0.0)
        self.exchanged_wealth = self.exchanged_wealth + log_e_above(exchanged)
        self.drawn_heights += _above(drawn[drew])
        self.squares += float(np.square(drawn).sum())
        if drawn is not delta:
            self.own_wealth = self.own_wealth + log_e_above(np.where(drew, np.exp(np.minimum(-delta, MOST)), 0.0))

    def add_sums(self, delta: Floats, good: NDArray[np.bool_], length: Floats) -> None:
        """The log ratios of whole answers of so many tokens, where the dump has no lists."""
        self.granted += float(length.sum())
        self.wealth = self.wealth + log_e_above(np.where(good, np.exp(-delta), 0.0), length=length)
        exchanged = np.where(good, np.exp(delta), 0.0)
        self.exchanged_wealth = self.exchanged_wealth + log_e_above(exchanged, length=length)
        self._count(delta[good])

    def _count(self, finite: Floats) -> None:
        self.finite += finite.size
        self.equal += int((finite == 0).sum())


def moments(x: Floats, y: Floats, group: Ints) -> Floats:
    """The grouped sums behind a slope of y on x, shape (GROUPS, 6), for `kleash.audit.chance.slope_bounds`."""
    parts = (np.ones_like(x), x, y, x * x, x * y, y * y)
    return np.stack([np.bincount(group, weights=part, minlength=GROUPS) for part in parts], axis=1)


def no_moments() -> Floats:
    """Those of no token."""
    return np.zeros((GROUPS, 6))


@dataclass(kw_only=True)
class Sampler:
    """Of ``exp(logp - behavior_logp)``.

    ``ratio``, ``capped``: The mean, and that of the ratio cut off at `CAP`. ``above``, ``below``: Log wealth of the
    bets that the mean is above 1, and that the capped one is below the kept mass allowed. ``raised``: Tokens likelier
    now than when they were drawn; ``sunk``, ``lost``: less likely by more than `SUNK` and `LOST` nats; ``forced``:
    certain in every digit by the sampler, and not by the policy. ``spread``, ``squares``: Sums of
    exp|logp - behavior_logp| and of the squared difference. ``slope``, ``shift``: behavior_logp on logp, and whether it
    fits better one position away.
    """

    ratio: Sums = field(default_factory=Sums)
    capped: Sums = field(default_factory=Sums)
    above: Floats = field(default_factory=no_bets)
    below: Floats = field(default_factory=no_bets)
    raised: int = 0
    sunk: int = 0
    lost: int = 0
    forced: int = 0
    spread: float = 0.0
    squares: float = 0.0
    slope: Floats = field(default_factory=no_moments)
    shift: Shift = field(default_factory=Shift)

    @property
    def tokens(self) -> int:
        """How many tokens have the sampler's number."""
        return self.ratio.n

    @property
    def rms(self) -> float:
        """Root of the mean squared difference, in nats per token."""
        return float(np.sqrt(self.squares / max(1, self.tokens)))

    def add(self, logp: Floats, behavior: Floats, owner: Ints, position: Ints, group: Ints, *, rows: int) -> Floats:
        """Counted tokens of some answers; gives back logp - behavior_logp of each, 0 where one is not a number."""
        both = np.isfinite(behavior) & np.isfinite(logp)
        gap = np.where(both, logp - behavior, 0.0)
        ratio = np.where(both, np.exp(gap), 0.0)
        self.ratio.add(ratio[both])
        self.capped.add(np.minimum(ratio[both], CAP))
        self.above = self.above + log_e_above(ratio)
        self.below = self.below + log_e_below(ratio[both])
        self.raised += int((gap > RAISED).sum())
        self.sunk += int((gap < -SUNK).sum())
        self.lost += int((gap < -LOST).sum())
        self.forced += int(((behavior == 0) & (gap < -RAISED)).sum())
        self.spread += float(np.exp(np.minimum(np.abs(gap[both]), MOST)).sum())
        self.squares += float(np.square(gap).sum())
        self.slope += moments(logp[both], behavior[both], group[both])
        self.shift.add(logp, behavior, both, owner, position, rows=rows)
        return gap


@dataclass(kw_only=True)
class Surprisal:
    """Of surprisal against entropy: how many tokens have both, the sum of entropies, and the log wealth of the bets."""

    tokens: int = 0
    entropy: float = 0.0
    wealth: Floats = field(default_factory=no_bets)

    def add(self, logp: Floats, entropy: Floats) -> Floats:
        """Counted tokens; gives back how far each one's surprisal is above the entropy, 0 where one is not a number."""
        both = np.isfinite(entropy) & np.isfinite(logp)
        self.tokens += int(both.sum())
        self.entropy += float(np.where(both, entropy, 0.0).sum())
        self.wealth = self.wealth + log_e_surprisal(-logp[both], entropy[both], margin=SURPRISAL_MARGIN)
        return np.where(both, -logp - entropy, 0.0)
