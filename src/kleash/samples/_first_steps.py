"""What trainers write while they train: which files these are, and which of their rows the reference drew.

The policy is the reference until the first update. So the answers of a trainer's first step are samples of the
reference, scored and paid for; those of later steps are not, and are never used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kleash._checks import message, short
from kleash.errors import DataError, MissingColumnError, OptionError
from kleash.rows import Source
from kleash.rows.cells import number
from kleash.trainers import TRAINERS

if TYPE_CHECKING:
    import polars as pl

    from kleash.trainers.columns import FirstSteps

__all__ = [
    "KINDS",
    "keep_frame",
    "keep_rows",
    "nothing_left",
    "recognised",
    "refuse_advantages",
    "reward_column",
    "sampling_note",
]


KINDS = tuple(trainer.first_steps for trainer in TRAINERS.values() if trainer.first_steps is not None)
_ADVANTAGES = {"advantage", "advantages"}


def recognised(columns: Sequence[str]) -> FirstSteps | None:
    """The trainer's file that has these columns; None for any other file."""
    present = set(columns)
    return next((kind for kind in KINDS if kind.columns <= present), None)


def reward_column(
    kind: FirstSteps, columns: Sequence[str], numeric: set[str] | None, gold: str | None, source: Source
) -> str:
    """The column of the judge's score where none was named.

    Raises
    ------
    MissingColumnError
        Several columns could be it: the weights of reward functions are not in the file.
    """
    if kind.reward is not None:
        return kind.reward
    found = [
        name for name in columns if name not in kind.columns and name != gold and (numeric is None or name in numeric)
    ]
    if len(found) == 1:
        return found[0]
    got = f"{len(found)} columns that could be ({', '.join(short(name) for name in found[:8])})" if found else "none"
    fix = "name those trained on, with their weights: --reward-column A --reward-column B:0.5"
    fix += "; one of weight 0 can be --gold-column"
    text = message(f"reward column of {kind.name}", expected="one reward function", got=got, fix=fix)
    raise MissingColumnError(text, path=source.shown)


def refuse_advantages(kind: FirstSteps, rewards: Sequence[str]) -> None:
    """An advantage is a reward minus its group's mean, over its SD: no score of a judge."""
    for name in rewards:
        if name in _ADVANTAGES:
            fix = "name the reward functions' own columns"
            text = message(f"reward column of {kind.name}", expected="a judge's score", got=repr(name), fix=fix)
            raise OptionError(text)


def keep_frame(frame: pl.DataFrame, kind: FirstSteps) -> pl.DataFrame | None:
    """The rows that the reference drew; None where a step is no whole number."""
    import polars as pl

    step = frame["step"]
    if step.dtype == pl.String:
        step = step.cast(pl.Float64, strict=False)
    if not step.dtype.is_numeric() or step.null_count():
        return None
    return frame.filter((step >= kind.first) & (step <= kind.last))


def keep_rows(
    lines: Sequence[int], rows: Sequence[dict[str, Any]], kind: FirstSteps, source: Source
) -> tuple[list[int], list[dict[str, Any]]]:
    """The rows that the reference drew, with their lines."""
    kept_lines, kept = [], []
    for line, row in zip(lines, rows, strict=True):
        cell = row.get("step")
        try:
            step = number(cell)
        except ValueError:
            step = None
        if step is None or math.isnan(step):
            raise source.error(message("step", expected="a number", got=short(cell)), line)
        if kind.first <= step <= kind.last:
            kept_lines.append(line)
            kept.append(row)
    return kept_lines, kept


def nothing_left(kind: FirstSteps, source: Source) -> DataError:
    """The error for a file without a row of the first step."""
    steps = f"step {kind.first}" if kind.first == kind.last else f"step {kind.first} or {kind.last}"
    text = message(
        kind.name,
        expected=f"answers of {steps}, which the reference drew",
        got="later steps or a validation",
        fix=f"needs {kind.how}",
    )
    return source.error(text)


# ------------------------------------------------------------------------------------------------ how it was sampled

_PLAIN: Mapping[str, tuple[float | None, ...]] = {
    "temperature": (1.0,),
    "top_p": (1.0, None),
    "top_k": (0, -1, None),
    "min_p": (0.0, None),
    "repetition_penalty": (1.0, None),
}
_FILES = ("args.json", "training_args.json", "trainer_args.json", "config.json")


def sampling_note(kind: FirstSteps, source: Source) -> str:
    """A sentence on whether sampling was plain, from a small JSON file beside the samples or one folder up."""
    path = None if source.name == "-" else Path(source.name)
    for folder in () if path is None else (path.parent, path.parent.parent):
        for name in _FILES:
            settings = _settings(folder / name)
            if "temperature" not in settings:
                continue
            odd = [
                f"{key} {settings[key]:g}" if isinstance(settings[key], int | float) else f"{key} {settings[key]}"
                for key, plain in _PLAIN.items()
                if key in settings and settings[key] not in plain
            ]
            if odd:
                return (
                    f"{folder / name}: sampled with {', '.join(odd)}, not plainly at temperature 1: these are not "
                    "samples of the reference, and the forecast is off by what that changes."
                )
            return f"Sampled at temperature 1 without top-k or top-p, as {folder / name} has it."
    return (
        f"How {kind.name} were sampled is not in the file: the forecast holds for temperature 1 without top-k, top-p "
        "or a repetition penalty."
    )


def _settings(path: Path) -> dict[str, Any]:
    import json

    try:
        if not path.is_file() or path.stat().st_size > 1 << 20:
            return {}
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
