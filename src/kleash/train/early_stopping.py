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
    """Best gold over the steps of the loosest beta.

    Parameters
    ----------
    rows
        Rows of metrics; those without gold are passed over.
    reward, gold, kl
        Names of the columns, for rows that hold exact values beside sampled ones.

    Returns
    -------
    None where no row has gold.

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
    steps, seeds = sorted({row["step"] for row in mine}), sorted({row["seed"] for row in mine})
    tables = {
        name: np.asarray(
            [[by[name] for by in (_find(mine, step, seed) for seed in seeds)] for step in steps], dtype=float
        )
        for name in (reward, gold, kl)
    }
    apart = len(seeds) > 1
    total = tables[gold].sum(axis=1, keepdims=True)
    others = total - tables[gold] if apart else tables[gold]
    at = others.argmax(axis=0)
    columns = np.arange(len(seeds))
    chosen = {name: float(table[at, columns].mean()) for name, table in tables.items()}
    return EarlyStop(
        beta=float(loosest),
        step=float(np.asarray(steps, dtype=float)[at].mean()),
        reward=chosen[reward],
        gold=chosen[gold],
        kl=chosen[kl],
        chosen_apart=apart,
    )


def _find(rows: list[Mapping[str, Any]], step: int, seed: int) -> Mapping[str, Any]:
    return next(row for row in rows if row["step"] == step and row["seed"] == seed)
