"""What experiment trackers keep on a disk: event files, offline runs, databases and folders of series.

A format is an entry of `STORES`. None needs the package that wrote it; checksums are checked, and a file that is cut
off or damaged gives what it has.
"""

from __future__ import annotations

from pathlib import Path

from kleash.logs.stores import _events, _mlflow, _sqlite, _trackers
from kleash.logs.stores._held import Held, Store

__all__ = ["STORES", "Held", "Store", "store_of", "stored_runs"]

STORES = (_events.EVENTS, _trackers.WANDB, _trackers.SWANLAB, _sqlite.TRACKIO, _sqlite.DATABASE, _mlflow.FOLDER)
"""Asked in this order."""


def store_of(path: Path, first: bytes = b"") -> Store | None:
    r"""Which store a file is, by its first bytes, or a folder, by what lies in it; None if it is none.

    Examples
    --------
    >>> store_of(Path("run-1.wandb"), b":W&B\\xe1\\xbe\\x00").name
    'offline run of wandb'
    """
    return next((store for store in STORES if store.recognised(path, first)), None)


def stored_runs(folder: Path) -> dict[Path, Store]:
    """The folders at any depth that are a run each, with their store."""
    inside = sorted({folder, *(path.parent for path in folder.rglob("*"))})
    found = {path: store_of(path) for path in inside}
    return {path: store for path, store in found.items() if store is not None}
