"""What is kept of training: rows of metrics, the answers of the trained policies, their adapters."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from kleash import _files
from kleash.estimates import Floats
from kleash.train.adapters import GroupedLoRA
from kleash.train.objectives import Scores
from kleash.train.rollout import Rollout

if TYPE_CHECKING:
    import polars as pl

__all__ = ["COLUMNS", "Row", "metric_rows", "rollout_rows", "summary", "within_prompt", "write_policies"]

Row = dict[str, Any]

COLUMNS = (
    "reward",
    "gold",
    "kl",
    "kl_k1",
    "objective",
    "length",
    "finished",
    "reward_sd",
    "grad_norm",
    "learning_rate",
)
"""Columns of every row of metrics, beside step, beta and seed."""


def within_prompt(reward: Tensor, rolled: Rollout) -> Tensor:
    """Scores (G, B) less that of the first answer to the same prompt: exactly 0 where all are the same."""
    samples = int((rolled.prompt == rolled.prompt[0]).sum())
    return reward - reward[:, ::samples].repeat_interleave(samples, dim=1)


def summary(rolled: Rollout, scores: Scores, reward: Tensor, *, beta: Floats) -> dict[str, Any]:
    """Means over the answers of a batch, (G,) each; ``reward_sd`` is over answers to the same prompt."""
    mask = rolled.mask
    with torch.no_grad():
        kl = (scores.kl.double() * mask).sum(dim=2).mean(dim=1)
        k1 = ((scores.logp.double() - scores.ref_logp.double()) * mask).sum(dim=2).mean(dim=1)
        mean = reward.mean(dim=1)
        by_prompt = within_prompt(reward, rolled).reshape(reward.shape[0], int(rolled.prompt.max()) + 1, -1)
        return {
            "reward": mean,
            "kl": kl,
            "kl_k1": k1,
            "objective": mean - torch.as_tensor(beta, device=mean.device) * kl,
            "length": mask.sum(dim=2).double().mean(dim=1),
            "finished": rolled.finished.double().mean(dim=1),
            "reward_sd": by_prompt.var(dim=2).mean(dim=1).sqrt(),
        }


def metric_rows(step: int, values: Mapping[str, Any], *, beta: Floats, index: Sequence[int]) -> list[Row]:
    """A row per policy; what is not in ``values`` is null."""
    size = len(index)
    names = [*COLUMNS, *(name for name in values if name not in COLUMNS)]
    columns: dict[str, list[float | None]] = {}
    for name in names:
        value = values.get(name)
        known = None if value is None else np.broadcast_to(_plain(value), size)
        columns[name] = [None] * size if known is None else _files.finite_or_none(known)
    return [
        {"step": step, "beta": float(b), "seed": which} | {name: column[g] for name, column in columns.items()}
        for g, (b, which) in enumerate(zip(beta, index, strict=True))
    ]


def rollout_rows(
    rolled: Rollout,
    scores: Scores,
    *,
    step: int,
    beta: Floats,
    index: Sequence[int],
    prompt: Sequence[int],
    texts: Sequence[str],
    answers: Sequence[str],
    reward: Tensor,
    gold: Tensor | None,
) -> pl.DataFrame:
    """Answers as rows that ``kleash check`` reads; ``prompt``, ``texts`` and ``answers`` have one entry per row."""
    import polars as pl

    _, rows, length = rolled.tokens.shape
    sizes = rolled.mask.sum(dim=2).reshape(-1).tolist()

    def lists(values: Tensor) -> list[list[float]]:
        wide = values.detach().double().reshape(-1, length).tolist()
        return [row[:size] for row, size in zip(wide, sizes, strict=True)]

    quality = [None] * len(sizes) if gold is None else gold.reshape(-1).tolist()
    return pl.DataFrame(
        {
            "step": [step] * len(sizes),
            "beta": np.repeat(beta, rows),
            "seed": np.repeat(np.asarray(index), rows),
            "prompt_id": prompt,
            "prompt": texts,
            "answer": answers,
            "reward": reward.reshape(-1).tolist(),
            "gold": pl.Series(quality, dtype=pl.Float64),
            "finished": rolled.finished.reshape(-1).tolist(),
            "length": sizes,
            "logp": lists(scores.logp),
            "ref_logp": lists(scores.ref_logp),
            "behavior_logp": lists(rolled.behavior_logp),
        }
    )


def write_policies(
    folder: Path, *, adapters: GroupedLoRA, beta: Floats, index: Sequence[int], frames: Sequence[pl.DataFrame]
) -> None:
    """``rollouts.parquet``, and ``adapters/beta-B-seed-J/`` in PEFT's format for every policy."""
    import polars as pl

    buffer = io.BytesIO()
    pl.concat(frames).write_parquet(buffer)
    _files.write_atomic(folder / "rollouts.parquet", buffer.getvalue())
    for group, (b, which) in enumerate(zip(beta, index, strict=True)):
        named = np.format_float_positional(b, trim="-")
        adapters.export(group, folder / "adapters" / f"beta-{named}-seed-{which}")


def _plain(value: Any) -> Floats:
    return value.detach().double().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value, dtype=np.float64)
