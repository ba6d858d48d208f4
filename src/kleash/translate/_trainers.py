"""The trainers that are known, by name."""

from __future__ import annotations

from kleash.translate._leash import Trainer
from kleash.translate._others import OTHERS
from kleash.translate._trl import TRL
from kleash.translate._verl import VERL

__all__ = ["TRAINERS"]

TRAINERS: dict[str, Trainer] = {**TRL, **VERL, **OTHERS}
