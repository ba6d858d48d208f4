"""Reads training logs: whoever wrote them, one `RunLog` per run comes out.

Users have logs, not tensors. `read_logs` takes a file or a folder: TRL's ``trainer_state.json`` and printed
dictionaries, verl's JSONL and console, OpenRLHF, NeMo-RL, slime, open-instruct, trlX, tables exported from wandb, plain
CSV and JSONL, all of them also gzipped; and what TensorBoard, wandb, swanlab, trackio and mlflow keep on a disk.
Nothing is averaged, filled or smoothed, and a KL that is not in the log is not 0.
"""

from __future__ import annotations

from kleash.logs._find import Entry, read_logs, survey
from kleash.logs._gold import with_gold
from kleash.logs._kl import with_settings
from kleash.logs.table import TRAINERS, KLColumn, RunLog

__all__ = ["TRAINERS", "Entry", "KLColumn", "RunLog", "read_logs", "survey", "with_gold", "with_settings"]
