"""Prompts as they are asked: a text or the messages of a chat, and the columns that judges are given."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kleash import _checks
from kleash.errors import DataError
from kleash.rows import opened
from kleash.rows.cells import encodes, is_chat, label

__all__ = ["Prompt", "as_prompts", "read_prompts"]

_TAKEN = ("prompt", "prompts", "completions", "completion_ids")


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """One prompt.

    Parameters
    ----------
    key
        What its random numbers and its rows in a journal hang on: a digest of the prompt and of how many like it
        came before. So the answers to a prompt stay what they are when others are added or left out.
    id
        What tells it apart from others in the samples.
    text
        The prompt as a text; of a chat its messages as JSON.
    messages
        The messages of a chat; None where the prompt is a text.
    columns
        Further values for the judges.
    """

    key: str
    id: str
    text: str
    messages: Sequence[Mapping[str, Any]] | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)

    @property
    def turns(self) -> list[dict[str, Any]]:
        """The prompt as messages: those of the chat, or the text as what a user says."""
        if self.messages is not None:
            return [dict(message) for message in self.messages]
        return [{"role": "user", "content": self.text}]


def read_prompts(path: str | Path) -> tuple[list[Prompt], dict[str, Any]]:
    """Prompts of a file (CSV, JSONL; ``-`` is standard input), and what was read: path, sha256, rows.

    A row has ``prompt``, a text or a list of chat messages, optionally ``prompt_id``, and columns for the judges.

    Raises
    ------
    MissingFileError, DataError
        With the line at which something is wrong.
    """
    with opened(path) as source:
        rows: list[Mapping[str, Any]] = []
        for line, row in source.rows():
            fault = _fault(row, list(rows[0]) if rows else None)
            if fault:
                raise source.error(fault, line)
            rows.append(row)
        if not rows:
            raise source.error(_checks.message("prompts", expected="a row per prompt", got="no rows"))
        return as_prompts(rows), {"path": source.name, "sha256": source.sha256, "rows": len(rows)}


def as_prompts(rows: Sequence[Mapping[str, Any] | str]) -> list[Prompt]:
    """Prompts that are in memory already: texts, or rows as in :func:`read_prompts`.

    Raises
    ------
    DataError
        A row without a prompt, or rows with different columns.

    Examples
    --------
    >>> [prompt.id for prompt in as_prompts(["soup", {"prompt": "stew", "prompt_id": "b"}])]
    ['0', 'b']
    """
    dicts = [{"prompt": row} if isinstance(row, str) else row for row in rows]
    if not dicts:
        raise DataError(_checks.message("prompts", expected="at least one", got="none"))
    seen: Counter[str] = Counter()
    prompts = []
    for number, row in enumerate(dicts):
        fault = _fault(row, None)
        if fault:
            raise DataError(f"prompts[{number}]: {fault}")
        text = label(row["prompt"])
        assert text is not None
        digest = hashlib.sha256(f"{seen[text]} {text}".encode()).hexdigest()[:16]
        seen[text] += 1
        named = label(row.get("prompt_id"))
        prompts.append(
            Prompt(
                key=digest,
                id=str(number) if named is None else named,
                text=text,
                messages=_messages(row["prompt"]),
                columns={name: value for name, value in row.items() if name not in _TAKEN},
            )
        )
    twice = [name for name, count in Counter(prompt.id for prompt in prompts).items() if count > 1]
    if twice:
        fix = "give each prompt its own, or drop the column"
        raise DataError(_checks.message("prompt_id", expected="one prompt each", got=f"{twice[0]!r} twice", fix=fix))
    return prompts


def _messages(prompt: Any) -> list[Mapping[str, Any]] | None:
    """The messages of a chat, None of a text."""
    return list(prompt) if is_chat(prompt) else None


def _fault(row: Mapping[str, Any], names: Sequence[str] | None) -> str:
    """What is wrong with a row; nothing is the empty text."""
    if "prompt" not in row:
        there = ", ".join(map(str, row)) or "none"
        return _checks.message("columns", expected="'prompt'", got=there, fix="call the prompt's column so")
    text = label(row["prompt"])
    if not text or not encodes(text):
        return _checks.message("column 'prompt'", expected="a text", got="nothing" if not text else "half a character")
    if isinstance(row["prompt"], list) and not is_chat(row["prompt"]):
        return _checks.message("column 'prompt'", expected="a text or chat messages", got="a list")
    if names is not None and sorted(row) != sorted(names):
        return _checks.message("columns", expected=", ".join(names), got=", ".join(row))
    return ""
