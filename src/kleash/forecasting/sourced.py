"""A forecast from answers of several sources: what it has that one from the reference alone has not."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kleash.estimates import Estimates
from kleash.forecasting.counted import MOVED, missed_top
from kleash.forecasting.effective import Effective
from kleash.forecasting.intervals import Answers
from kleash.forecasting.pooled import Pooled, reweight_sources
from kleash.forecasting.pools import Pool, log_densities
from kleash.forecasting.reach import looser, reach_status, worst
from kleash.forecasting.reweight import Labels, Progress
from kleash.forecasting.survey import Survey, sources_tail
from kleash.forecasting.tail import LIGHT, Tail
from kleash.samples import Samples

__all__ = ["Sourced"]

Floats = NDArray[np.float64]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Sourced:
    """The sources' estimates at B betas, with the reach of each row and who it comes from.

    ``status`` (B,) is by reach and tail alone; ``reference_status`` that of the reference, which policies alone may not
    reach. ``labels`` are those of the prompts that have gold from some pool.
    """

    samples: Samples
    beta: Floats
    pooled: Pooled
    labels: Labels | None
    tail: Tail
    status: NDArray[np.str_]
    reference_status: str
    effective: tuple[Effective | None, ...]
    reward_max: float | None

    @classmethod
    def of(
        cls,
        seen: Survey,
        beta: Floats,
        *,
        labels: Labels | None,
        reward_max: float | None,
        rng: np.random.Generator,
        correction: bool,
        deviations: Answers | None,
        progress: Progress | None,
    ) -> Sourced:
        """Estimate everything; see :func:`kleash.forecasting.pooled.reweight_sources`."""
        pooled = reweight_sources(
            seen.samples,
            beta,
            labels=labels,
            rng=rng,
            correction=correction,
            deviations=deviations,
            progress=progress,
            without=seen.drifted,
        )
        tail = sources_tail(seen.samples, reward_max=reward_max)
        status = reach_status(beta, pooled, seen.effective, tail if reward_max is None else LIGHT)
        return cls(
            samples=seen.samples,
            beta=beta,
            pooled=pooled,
            labels=None if labels is None else dataclasses.replace(labels, known=pooled.known),
            tail=tail,
            status=status[:-1],
            reference_status=str(status[-1]),
            effective=seen.effective,
            reward_max=reward_max,
        )

    @property
    def looser(self) -> NDArray[np.bool_]:
        """Which rows, (B,), are looser than every source."""
        return looser(self.beta, self.effective)

    @property
    def open_tail(self) -> Tail:
        """The tail of the scores as far as it matters: a scale with a known top has none beyond it."""
        return self.tail if self.reward_max is None else LIGHT

    def row_status(self, estimates: Mapping[str, Estimates]) -> NDArray[np.str_]:
        """``status``, with ``weak`` where answers at the judge's top that were missed would move a row too far."""
        names = ("reward", "kl") if self.labels is None else ("reward", "kl", "gold")
        half = np.stack([0.5 * (estimates[name].hi - estimates[name].lo) for name in names])
        shift = missed_top(
            self.samples,
            self.effective,
            self.pooled.table.plain,
            self.beta,
            half,
            labels=self.labels,
            reward_max=self.reward_max,
        )
        return worst(self.status, np.where(shift > MOVED, "weak", "ok"))

    @property
    def shares(self) -> list[Mapping[str, float]]:
        """Each source's share of every row's weight, by name."""
        assert self.samples.sources is not None  # there are sources
        names = self.samples.sources.names
        return [dict(zip(names, row, strict=True)) for row in self.pooled.share[:, :-1].T.tolist()]

    def pool_at(self, beta: float) -> Pool:
        """The pool that counts most at a beta."""
        row = int(np.argmin(np.abs(np.log(self.beta / beta))))
        return self.pooled.pools[int(np.argmax(self.pooled.weight[:, row]))]

    def log_m(self, beta: float) -> Floats:
        """log of the density of each answer's mixture relative to the reference, (N,), infinite for unused answers."""
        return log_densities(self.samples, self.pool_at(beta))

    def rows(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The rows of a table, each with its ``reach`` and its ``sources``."""
        reach = self.pooled.reach[:-1].tolist()
        return [
            row | {"reach": near if np.isfinite(near) else None, "sources": dict(share)}
            for row, near, share in zip(rows, reach, self.shares, strict=True)
        ]
