"""Slime's ``.pt`` dumps as a log: a row per rollout. Needs torch, and lets a file run no code."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kleash._checks import message
from kleash._files import sha256
from kleash.errors import DataError, DependencyError
from kleash.kl import KLSpec, k1
from kleash.logs.table import KLColumn, RunLog

__all__ = ["read_dumps"]

_EXTRA = "pip install 'kleash[train]'"


def read_dumps(path: str | Path) -> list[RunLog]:
    """The run behind one dump, or behind a folder of ``--dump-details`` (``rollout_data/``, ``train_data/``).

    Rewards and lengths are means over samples; the KL is k1, the mean over tokens of each sample and then over samples,
    worked out here from ``log_probs`` and ``ref_log_probs``.

    Raises
    ------
    DependencyError
        torch is not installed.
    DataError
        The file needs more than tensors and plain data to load (``weights_only``), or holds no samples.
    """
    target = Path(path)
    files = [target] if target.is_file() else _dumps(target)
    if not files:
        raise DataError(message("folder", expected="train_data/*.pt or rollout_data/*.pt", got="none"), path=target)
    rows = [_row(_load(file), file) for file in files]
    steps = [float(_number(file)) for file in files]
    keys = list(dict.fromkeys(key for row in rows for key in row))
    raw = {key: np.array([row.get(key, np.nan) for row in rows], dtype=np.float64) for key in keys}
    kl: tuple[KLColumn, ...] = ()
    if "kl" in raw:
        spec = KLSpec(estimator="k1", unit="nats per token", placement="unknown")
        kl = (KLColumn(key="kl", values=raw["kl"], spec=spec, against="reference", transform="log_probs - ref"),)
    return [
        RunLog(
            path=str(target),
            trainer="slime",
            run=target.stem if target.is_file() else target.name,
            step=np.array(steps),
            segment=np.zeros(len(files), dtype=np.int64),
            reward=raw.get("reward"),
            length=raw.get("length"),
            kl=kl,
            raw=raw,
            decimals=dict.fromkeys(raw, -1),
            notes=("read from slime's dumps: means over samples",),
            rows=len(files),
            sha256=sha256(files[0]) if len(files) == 1 else "",
        )
    ]


def _dumps(folder: Path) -> list[Path]:
    """Training dumps, which hold both log-probabilities; rollout dumps where there are none."""
    for name in ("train_data", "rollout_data", "."):
        found = [p for p in (folder / name).glob("*.pt") if re.search(r"\d", p.stem)]
        if found:
            return sorted(found, key=_number)
    return []


def _number(file: Path) -> int:
    digits = re.findall(r"\d+", file.stem)
    return int(digits[-1]) if digits else 0


def _load(file: Path) -> Any:
    try:
        import torch
    except ImportError:
        text = message(str(file), expected="torch, to read .pt files", got="not installed", fix=_EXTRA)
        raise DependencyError(text) from None
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises whatever the file makes it raise
        reason = " ".join(str(error).split())[:120]
        fix = "slime must dump tensors and plain data"
        text = message("dump", expected="tensors and plain data", got=reason, fix=fix)
        raise DataError(text, path=file) from error


def _row(data: Any, file: Path) -> dict[str, float]:
    """Means of one dump: a list of samples, or columns of per-sample values."""
    if isinstance(data, Mapping) and isinstance(data.get("samples"), Sequence):
        data = data["samples"]
    elif isinstance(data, Mapping) and isinstance(data.get("rollout_data"), Mapping):
        data = data["rollout_data"]
    if isinstance(data, Sequence) and not isinstance(data, str) and all(isinstance(s, Mapping) for s in data):
        names = {key for sample in data for key in sample}
        columns: dict[str, list[Any]] = {name: [sample.get(name) for sample in data] for name in names}
    elif isinstance(data, Mapping):
        columns = {key: list(value) for key, value in data.items() if isinstance(value, Sequence)}
    else:
        raise DataError(message("dump", expected="samples", got=type(data).__name__), path=file)
    row: dict[str, float] = {}
    rewards = columns.get("raw_reward") or columns.get("rewards") or columns.get("reward")
    if rewards and all(isinstance(r, int | float) for r in rewards):
        row["reward"] = float(np.mean(rewards))
    lengths = columns.get("response_lengths") or columns.get("response_length")
    if lengths:
        row["length"] = float(np.mean([float(x) for x in lengths]))
    policy, reference = columns.get("log_probs"), columns.get("ref_log_probs")
    if policy and reference:
        row["kl"] = _kl(policy, reference, columns.get("loss_masks") or [None] * len(policy))
    if not row:
        raise DataError(message("dump", expected="rewards or log_probs", got=", ".join(map(str, columns))), path=file)
    return row


def _kl(policy: Iterable[Any], reference: Iterable[Any], masks: Iterable[Any]) -> float:
    means = []
    for p, q, mask in zip(policy, reference, masks, strict=True):
        if p is None or q is None:
            continue
        delta = k1(_array(p) - _array(q))
        active = np.ones(delta.shape, dtype=bool) if mask is None else _array(mask).astype(bool)
        if active.any():
            means.append(float(delta[active].mean()))
    return float(np.mean(means)) if means else float("nan")


def _array(values: Any) -> Any:
    return np.asarray(values.tolist() if hasattr(values, "tolist") else values, dtype=np.float64)
