"""Dumps of tensors (``.pt``) as a log: a row per rollout. Needs torch, and lets a file run no code."""

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
from kleash.trainers import TRAINERS, Trainer

__all__ = ["FOLDERS", "read_dumps"]

_EXTRA = "pip install 'kleash[train]'"
_WRITERS = [trainer for trainer in TRAINERS.values() if trainer.tensors is not None]
FOLDERS = tuple(dict.fromkeys(name for trainer in _WRITERS if trainer.tensors for name in trainer.tensors.folders))
"""Where they lie: training dumps, which hold both log-probabilities, before rollout dumps."""


def read_dumps(path: str | Path) -> list[RunLog]:
    """The run behind one dump, or behind a folder of them.

    Rewards and lengths are means over samples; the KL is k1, the mean over tokens of each sample and then over samples,
    worked out here from the log-probabilities of policy and reference. Raises `DependencyError`: torch is not
    installed. `DataError`: The file needs more than tensors and plain data to load (``weights_only``), or holds no
    samples.
    """
    target = Path(path)
    files = [target] if target.is_file() else _dumps(target)
    if not files:
        expected = " or ".join(f"{name}/*.pt" for name in FOLDERS)
        raise DataError(message("folder", expected=expected, got="none"), path=target)
    columns = [_columns(_load(file), file) for file in files]
    trainer = next((trainer for trainer in _WRITERS if _names(trainer) & columns[0].keys()), _WRITERS[0])
    rows = [_row(trainer, held, file) for held, file in zip(columns, files, strict=True)]
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
            trainer=trainer.name,
            run=target.stem if target.is_file() else target.name,
            step=np.array(steps),
            segment=np.zeros(len(files), dtype=np.int64),
            reward=raw.get("reward"),
            length=raw.get("length"),
            kl=kl,
            raw=raw,
            decimals=dict.fromkeys(raw, -1),
            notes=(f"read from {trainer.project}'s dumps: means over samples",),
            rows=len(files),
            sha256=sha256(files[0]) if len(files) == 1 else "",
        )
    ]


def _dumps(folder: Path) -> list[Path]:
    """Training dumps, which hold both log-probabilities; rollout dumps where there are none."""
    for name in (*FOLDERS, "."):
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
        fix = "the trainer must dump tensors and plain data"
        text = message("dump", expected="tensors and plain data", got=reason, fix=fix)
        raise DataError(text, path=file) from error


def _names(trainer: Trainer) -> set[str]:
    held = trainer.tensors
    return set() if held is None else {*held.reward, held.policy, held.reference}


def _columns(data: Any, file: Path) -> dict[str, list[Any]]:
    """A list of samples, or columns of per-sample values, as columns."""
    if isinstance(data, Mapping) and isinstance(data.get("samples"), Sequence):
        data = data["samples"]
    elif isinstance(data, Mapping) and isinstance(data.get("rollout_data"), Mapping):
        data = data["rollout_data"]
    if isinstance(data, Sequence) and not isinstance(data, str) and all(isinstance(s, Mapping) for s in data):
        names = {key for sample in data for key in sample}
        return {name: [sample.get(name) for sample in data] for name in names}
    if isinstance(data, Mapping):
        return {key: list(value) for key, value in data.items() if isinstance(value, Sequence)}
    raise DataError(message("dump", expected="samples", got=type(data).__name__), path=file)


def _row(trainer: Trainer, columns: dict[str, list[Any]], file: Path) -> dict[str, float]:
    """Means of one dump."""
    held = trainer.tensors
    assert held is not None
    row: dict[str, float] = {}
    rewards = next((columns[name] for name in held.reward if columns.get(name)), [])
    if rewards and all(isinstance(r, int | float) for r in rewards):
        row["reward"] = float(np.mean(rewards))
    lengths = next((columns[name] for name in held.length if columns.get(name)), [])
    if lengths:
        row["length"] = float(np.mean([float(x) for x in lengths]))
    policy, reference = columns.get(held.policy), columns.get(held.reference)
    if policy and reference:
        row["kl"] = _kl(policy, reference, columns.get(held.mask) or [None] * len(policy))
    if not row:
        expected = f"rewards or {held.policy}"
        raise DataError(message("dump", expected=expected, got=", ".join(map(str, columns))), path=file)
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
