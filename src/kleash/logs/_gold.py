"""Which column is gold? The one place that takes the name a user gives for true quality."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from kleash import _checks
from kleash.errors import MissingColumnError

if TYPE_CHECKING:
    from kleash.logs.table import Array, RunLog

__all__ = ["with_gold"]


def with_gold(logs: Sequence[RunLog], gold: str) -> list[RunLog]:
    """The logs with the column a caller calls gold; those that have no such column keep what they have.

    ``logs``: What was read. ``gold``: A key, a reward function (``accuracy`` finds ``rewards/accuracy_reward/mean``),
    or a part of one name only.

    Returns
    -------
    list of RunLog
        ``gold`` and ``gold_key`` are set where the name fits.

    Raises
    ------
    MissingColumnError
        The name fits no column of any log, or several.
    """
    fits = [_fits(log, gold) for log in logs]
    if not any(len(keys) == 1 for keys in fits):
        several = next((f", which fits {', '.join(keys)}" for keys in fits if keys), "")
        names = sorted({key for log in logs for key in log.components or log.raw})
        near = _checks.nearest(gold, names[:30]) + (", ..." if len(names) > 30 else "")
        expected = "the name of one column of the log"
        text = _checks.message("gold", expected=expected, got=f"{gold!r}{several}", fix=near)
        raise MissingColumnError(text, path=logs[0].path if logs else None)
    return [
        replace(log, gold=_columns(log)[keys[0]], gold_key=keys[0]) if len(keys) == 1 else log
        for log, keys in zip(logs, fits, strict=True)
    ]


def _columns(log: RunLog) -> dict[str, Array]:
    own = {} if log.gold is None else {"gold": log.gold}
    return {**own, **log.raw, **log.components}


def _fits(log: RunLog, gold: str) -> list[str]:
    """The column of that name, as reward functions are spelled else; or all that have the name in theirs."""
    columns, wanted = list(_columns(log)), gold.lower()
    spelled = (f"rewards/{wanted}/mean", f"rewards/{wanted}", f"eval_{wanted}", f"objective/{wanted}_reward")
    own = [key for key in columns if key == gold] or [key for key in log.components if key.lower() == wanted]
    own = own or [key for key in columns if key.lower().removeprefix("train/") in spelled]
    inside = [key for key in log.components if wanted in key.lower()]
    inside = inside or [key for key in log.raw if wanted in key.lower() and not key.endswith("/std")]
    return own[:1] or inside
