"""Rows that hold several answers: their lists, unrolled into a row for each."""

from __future__ import annotations

from itertools import chain, repeat
from typing import Any

from kleash.samples._columns import Roles

__all__ = ["unroll"]


def unroll(columns: dict[str, list[Any]], roles: Roles) -> bool:
    """Unroll, in place, columns that are lists in every row; False, and nothing done, where rows are not alike."""
    lists = []
    for name, cells in columns.items():
        kinds = set(map(type, cells))
        if name == roles.prompt:
            if kinds != {str}:
                return False
        elif kinds == {list}:
            lists.append(name)
        elif list in kinds:
            return False
    if not set(roles.reward_columns) <= set(lists):
        return False
    sizes = list(map(len, columns[lists[0]]))
    if 0 in sizes or any(list(map(len, columns[name])) != sizes for name in lists):
        return False
    for name, cells in columns.items():
        columns[name] = list(chain.from_iterable(cells if name in lists else map(repeat, cells, sizes)))
    return True
