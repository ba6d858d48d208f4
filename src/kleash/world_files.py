"""A world of your own from a file: every prompt, every answer, and what the reference, the judge and the truth say."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kleash._checks import message, short
from kleash.errors import MissingColumnError
from kleash.rows import Source, opened
from kleash.rows.cells import label, number, text
from kleash.worlds import World

__all__ = ["COLUMNS", "WorldFile", "load_world", "read_world_file"]

COLUMNS = ("prompt", "answer", "reference", "reward", "gold")
"""The columns of a world file: two texts, the reference's probability of the answer, judge's score, true quality."""
_NUMBERS = COLUMNS[2:]
_SUM_TOLERANCE = 1e-9  # as strict as World itself: eight printed thirds of a probability are already a matter to state


@dataclass(frozen=True, kw_only=True, eq=False)
class WorldFile:
    """A world and the file it came from: ``world``, and ``inputs`` as results carry them (path, sha256, rows)."""

    world: World
    inputs: tuple[dict[str, Any], ...]


def load_world(path: str | Path, *, normalise: bool = False, name: str | None = None) -> World:
    r"""Read a world from a CSV, JSONL, JSON or Parquet file with one row per prompt and answer.

    Parameters
    ----------
    path
        Columns ``prompt``, ``answer`` (texts), ``reference`` (the reference policy's probability of the answer,
        natural scale), ``reward``, ``gold``; further columns are not looked at. Also gzipped.
    normalise
        Divide the probabilities of each prompt by their sum. Without it, a sum other than 1 is an error.
    name
        Name of the world; default: the file's name without its ending.

    Returns
    -------
    World
        Prompts and answers in the order of the file, every prompt of equal weight. Prompts with fewer answers than
        others are filled up with impossible ones.

    Raises
    ------
    MissingFileError
        There is no such file.
    MissingColumnError
        A column is missing; the message names those there.
    DataError
        With file and line: text, NaN or infinity in a number column, a negative probability, an answer that comes
        twice, probabilities that do not sum to 1.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "coin.csv"
    >>> _ = path.write_text("prompt,answer,reference,reward,gold\nflip,heads,0.5,0,1\nflip,tails,0.5,1,0\n")
    >>> world = load_world(path)
    >>> world.name, world.answers
    ('coin', (('heads', 'tails'),))
    """
    return read_world_file(path, normalise=normalise, name=name).world


def read_world_file(path: str | Path, *, normalise: bool = False, name: str | None = None) -> WorldFile:
    """:func:`load_world`, together with the path, hash and number of rows for a result's ``inputs``."""
    path = Path(path)
    if name is None:
        name = path.name.removesuffix(".gz").rsplit(".", 1)[0]
    prompts: dict[str, list[tuple[str, float, float, float]]] = {}
    seen: dict[tuple[str, str], int] = {}
    first: dict[str, int] = {}
    with opened(path) as source:
        for line, row in _records(source):
            prompt, answer = _texts(source, row, line)
            if (prompt, answer) in seen:
                first_line = seen[prompt, answer]
                got = f"{short(answer)!r} to prompt {short(prompt)!r} again (first on line {first_line})"
                raise source.error(message("answer", expected="a new one", got=got, fix="keep one of them"), line)
            seen[prompt, answer] = line
            first.setdefault(prompt, line)
            reference, reward, gold = (_number(source, row, column, line) for column in _NUMBERS)
            if reference < 0:
                expected = "a probability of at least 0"
                raise source.error(message("column 'reference'", expected=expected, got=f"{reference:g}"), line)
            prompts.setdefault(prompt, []).append((answer, reference, reward, gold))
        if not prompts:
            raise source.error(message("file", expected="a row per prompt and answer", got="no rows"))
        for prompt, answers in prompts.items():
            total = math.fsum(answer[1] for answer in answers)
            thing = f"reference of prompt {short(prompt)!r} (from this line)"
            if total == 0 or not (normalise or abs(total - 1.0) <= _SUM_TOLERANCE):
                fix = "" if total == 0 else "mend them, or ask for normalise = true"
                said = message(thing, expected="probabilities that sum to 1", got=f"a sum of {total:.9g}", fix=fix)
                raise source.error(said, first[prompt])
        world = _world(name, prompts)
        inputs = ({"path": source.name, "sha256": source.sha256, "rows": len(seen)},)
    return WorldFile(world=world, inputs=inputs)


def _world(name: str, prompts: dict[str, list[tuple[str, float, float, float]]]) -> World:
    shape = (len(prompts), max(map(len, prompts.values())))
    probability, reward, gold = (np.zeros(shape) for _ in range(3))
    answers = []
    for p, rows in enumerate(prompts.values()):
        texts, *columns = zip(*rows, strict=True)
        answers.append((*map(str, texts), *[""] * (shape[1] - len(rows))))
        for array, column in zip((probability, reward, gold), columns, strict=True):
            array[p, : len(rows)] = column
    with np.errstate(divide="ignore"):
        log_reference = np.log(probability / probability.sum(axis=1, keepdims=True))
    return World(
        name=name,
        log_reference=log_reference,
        reward=reward,
        gold=gold,
        prompts=tuple(prompts),
        answers=tuple(answers),
    )


def _records(source: Source) -> Iterator[tuple[int, dict[str, Any]]]:
    """Rows with their lines; the columns are checked before the first, or on each one where only rows tell."""
    stated = source.columns()
    if stated is not None:
        _must_have(source, list(stated), 1)
    for line, row in source.rows():
        if stated is None:
            _must_have(source, list(row), line)
        yield line, row


def _must_have(source: Source, columns: list[str], line: int) -> None:
    missing = [name for name in COLUMNS if name not in columns]
    if missing:
        there = ", ".join(columns) or "none"
        spare = [name for name in columns if name not in COLUMNS]
        close = difflib.get_close_matches(missing[0], spare, n=1)
        fix = f"rename {close[0]!r} to {missing[0]!r}" if close else ""
        said = message("columns", expected=", ".join(COLUMNS), got=there, fix=fix)
        raise MissingColumnError(f"{', '.join(missing)} missing: {said}", path=source.shown, line=line)


def _texts(source: Source, row: dict[str, Any], line: int) -> tuple[str, str]:
    prompt, answer = label(row["prompt"]), text(row["answer"])
    for name, value in (("prompt", prompt), ("answer", answer)):
        if value is None:
            raise source.error(message(f"column {name!r}", expected="a text", got="null"), line)
    return str(prompt), str(answer)


def _number(source: Source, row: dict[str, Any], column: str, line: int) -> float:
    cell = row[column]
    try:
        value = number(cell)
    except ValueError:
        got = f"{short(cell)!r}"
    else:
        if value is not None and math.isfinite(value):
            return value
        got = "an empty cell" if value is None else f"{value:g}"
    raise source.error(message(f"column {column!r}", expected="a finite number", got=got), line)
