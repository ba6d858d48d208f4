"""The answers that a run kept, ``rollouts.parquet``: some to look at, and the means of each prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kleash.errors import DataError

__all__ = ["kept_answers", "prompt_means"]

Row = Mapping[str, Any]
_FILE = "rollouts.parquet"  # a row per answer of the trained policies, its tokens' log-probabilities as lists
_SPREAD = ("beta", "reward", "gold", "prompt_id", "prompt")
_ANSWERS = ("beta", "prompt", "answer", "reward", "gold")
_KEPT = 12  # answers taken at each beta: as many as a page shows


def _rollouts(path: Path, wanted: Sequence[str]) -> Any:
    """Columns of the answers of the last step as a polars frame, None where there are none."""
    import polars as pl

    if not path.exists():
        return None
    try:
        schema = pl.read_parquet_schema(path)
        frame = pl.read_parquet(path, glob=False, columns=[name for name in ("step", *wanted) if name in schema])
    except Exception as error:  # polars has no common ancestor for what can be wrong with a file
        raise DataError("is not a table of answers", path=path) from error
    if not {"beta", "reward"} <= set(schema):
        return None
    if "step" in schema:
        frame = frame.filter(pl.col("step") == pl.col("step").max())
    missing = [name for name in ("prompt", "answer", "gold") if name not in schema]
    kinds = {name: pl.Float64 if name == "gold" else pl.String for name in missing}
    return frame.with_columns(**{name: pl.lit(None, dtype=kind) for name, kind in kinds.items()})


def kept_answers(folder: Path) -> tuple[tuple[Row, ...], int]:
    """Answers of a run with their scores, some at each beta, evenly over the rows as they lie; and of how many."""
    frame = _rollouts(folder / _FILE, _ANSWERS)
    if frame is None or frame["answer"].null_count() == frame.height:
        return (), 0
    rows: list[Row] = []
    for part in frame.select(_ANSWERS).partition_by("beta", maintain_order=True):
        places = np.unique(np.linspace(0, part.height - 1, min(_KEPT, part.height)).round().astype(int))
        rows += part[places.tolist()].to_dicts()
    return tuple(rows), frame.height


def prompt_means(folder: Path) -> tuple[Row, ...]:
    """Means over the answers to each prompt at each beta."""
    import polars as pl

    frame = _rollouts(folder / _FILE, _SPREAD)
    if frame is None:
        return ()
    by = next((name for name in ("prompt_id", "prompt") if name in frame.columns and frame[name].count()), None)
    if by is None:
        return ()
    means = (
        frame.group_by("beta", pl.col(by).cast(pl.String).alias("prompt_name"))
        .agg(pl.col("reward").mean(), pl.col("gold").mean(), pl.len().alias("n"))
        .sort("beta", "prompt_name")
    )
    return tuple(
        {"beta": row["beta"], "prompt": row["prompt_name"], "reward": row["reward"], "gold": row["gold"], "n": row["n"]}
        for row in means.to_dicts()
    )
