"""Stopping early without a leash, as an arm of its own: what beta 0 would have given at its best step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["EarlyStop", "early_stop"]


@dataclass(frozen=True, kw_only=True)
class EarlyStop:
    """The loosest beta, stopped where its gold was best.

    ``step`` is a mean over seeds, like ``reward``, ``gold`` and ``kl`` (nats per answer). ``chosen_apart``: each seed
    was stopped where the *other* seeds were best, so the choice does not flatter the number; with one seed there are
    no others, and the best of noisy numbers looks better than it is.
    """

    beta: float
    step: float
    reward: float
    gold: float
    kl: float
    chosen_apart: bool

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready plain data."""
        return dict(self.__dict__)

    def __str__(self) -> str:
        apart = "" if self.chosen_apart else "; chosen and measured on the same answers, so it flatters"
        return (
            f"Stopping early at beta {self.beta:g}: best about step {self.step:.0f}, judge {self.reward:.4g}, "
            f"quality {self.gold:.4g}, KL {self.kl:.3g}{apart}."
        )


def early_stop(
    rows: Iterable[Mapping[str, Any]], *, reward: str = "reward", gold: str = "gold", kl: str = "kl"
) -> EarlyStop | None:
    """Best gold over the steps of the loosest beta, from rows of metrics; None where no row has gold.

    ``reward``, ``gold`` and ``kl`` name the columns, for rows that hold exact values beside sampled ones.

    Examples
    --------
    >>> rows = [
    ...     {"step": s, "beta": 0.0, "seed": j, "reward": s, "gold": g + j, "kl": 0.1 * s}
    ...     for s, g in [(0, 1.0), (5, 3.0), (9, 2.0)]
    ...     for j in (0, 1)
    ... ]
    >>> early_stop(rows).step, early_stop(rows).gold
    (5.0, 3.5)
    """
    have = [row for row in rows if row.get(gold) is not None]
    if not have:
        return None
    loosest = min(row["beta"] for row in have)
    mine = [row for row in have if row["beta"] == loosest]
    seeds = len({row["seed"] for row in mine})
    mine.sort(key=lambda row: (row["step"], row["seed"]))
    values = np.array([[row[name] for name in ("step", reward, gold, kl)] for row in mine], dtype=float)
    table = np.moveaxis(values.reshape(-1, seeds, 4), -1, 0).copy()  # (4, steps, seeds)
    apart = seeds > 1
    others = table[2].sum(axis=1, keepdims=True) - table[2] if apart else table[2]
    step, *chosen = table[:, others.argmax(axis=0), np.arange(seeds)].mean(axis=1).tolist()
    return EarlyStop(beta=float(loosest), step=step, reward=chosen[0], gold=chosen[1], kl=chosen[2], chosen_apart=apart)
