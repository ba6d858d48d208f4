"""Groups of prompts that share something: a document, a user, a template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from kleash._checks import message, short
from kleash.errors import DataError
from kleash.rows import Source
from kleash.rows.cells import label
from kleash.samples._columns import missing

__all__ = ["add_clusters", "numbered"]


def add_clusters(source: Source, prompt: str, column: str, found: dict[str, str]) -> None:
    """Read which group each prompt of a file belongs to; empty cells: a group of its own.

    Parameters
    ----------
    source
        The file, once more from its start.
    prompt, column
        The columns.
    found
        Groups by prompt, added to.

    Raises
    ------
    MissingColumnError
        No row has the column.
    DataError
        A prompt is in two groups.
    """
    stated = source.columns()
    columns = dict.fromkeys(stated or ())
    for lines, rows in source.chunks(None if stated is None or column not in stated else [prompt, column]):
        for line, row in zip(lines, rows, strict=True):
            columns.update(dict.fromkeys(row))
            name, group = label(row.get(prompt)), label(row.get(column))
            if name is None or not group:
                continue
            before = found.setdefault(name, group)
            if before != group:
                got = f"{short(before)} and {short(group)}"
                raise source.error(message(f"cluster of prompt {short(name)}", expected="one", got=got), line)
    if column not in columns:
        raise missing("cluster", column, list(columns), source)


def numbered(prompts: Sequence[str], found: Mapping[str, str]) -> NDArray[np.int64]:
    """A number for each prompt's group, shape (P,); prompts without one are groups of their own.

    Raises
    ------
    DataError
        There is one group only.
    """
    names = [(True, found[name]) if name in found else (False, name) for name in prompts]
    places = {name: i for i, name in enumerate(dict.fromkeys(names))}
    if len(places) < 2:
        raise DataError(message("clusters", expected="at least two", got="one", fix="leave --cluster-column out"))
    return np.array([places[name] for name in names], dtype=np.int64)
