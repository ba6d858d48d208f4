"""Where the numbers of a report come from, in words; and values of a file, each in the type that a report shows."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

__all__ = ["answers", "facts", "finding", "given", "number", "numbers", "sentences", "trainer"]

Row = Mapping[str, Any]
_MADE = {
    "exact": "the closed form in a world where everything is known",
    "forecast": "scored answers of the reference, reweighted",
    "sweep": "policies trained at each beta",
    "log": "training logs: means over the end of each run",
    "check": "checks of dumps and logs",
}
_COUNTED = (("n_prompts", "prompts"), ("n_samples", "answers"), ("n_gold", "answers with true quality"))


def given(path: str) -> str:
    r"""A path as it was given, and of an absolute one the name alone: a page is passed on, its reader's disk is not.

    Examples
    --------
    >>> given("runs/first"), given("/home/me/secret/first.json"), given("C:\\me\\first.json")
    ('runs/first', 'first.json', 'first.json')
    """
    if PurePosixPath(path).is_absolute():
        return PurePosixPath(path).name or path
    if PureWindowsPath(path).is_absolute():
        return PureWindowsPath(path).name or path
    return path


def facts(content: Row, *, source: str) -> tuple[tuple[str, str], ...]:
    """Where the numbers come from, in words."""
    config: Row = content.get("config") or {}
    content = {**content, "world": content.get("world") or config.get("world")}
    content["kleash"] = content.get("version") or (content.get("versions") or {}).get("kleash")
    found = [("made from", _MADE.get(source, source))]
    for key in ("kleash", "world", "objective", "seed"):
        found += [(key, str(content[key]))] if content.get(key) is not None else []
    for key, word in _COUNTED:
        found += [(word, f"{int(content[key]):,}")] if content.get(key) is not None else []
    for key in ("seeds", "steps", "samples"):
        found += [(key, str(config[key]))] if config.get(key) is not None else []
    return (*found, *(("read", _file(item)) for item in content.get("inputs") or ()))


def _file(item: Row) -> str:
    rows = "" if item.get("rows") is None else f", {int(item['rows']):,} rows"
    digest = "" if not item.get("sha256") else f", sha256 {str(item['sha256'])[:12]}"
    return f"{given(str(item.get('path')))}{rows}{digest}"


def answers(rows: Iterable[Row]) -> tuple[Row, ...]:
    """Answers with their scores, each cell as text or a number."""
    return tuple(
        {
            "beta": number(row.get("beta")),
            "prompt": _text(row.get("prompt")),
            "answer": _text(row.get("answer")),
            "reward": number(row.get("reward")),
            "gold": number(row.get("gold")),
        }
        for row in rows
    )


def finding(row: Row) -> Row:
    """What a check said, as text."""
    return {
        **{name: _text(row.get(name)) for name in ("code", "input", "status", "message", "fix")},
        "causes": [str(cause) for cause in row.get("causes", ())],
    }


def sentences(content: Row) -> tuple[str, ...]:
    """The notes of a result."""
    notes = content.get("notes", ())
    return tuple(str(note) for note in notes) if isinstance(notes, list | tuple) else ()


def numbers(row: Row, names: Sequence[str]) -> dict[str, Any]:
    """Some numbers of a row, and its status."""
    return {**{name: number(row.get(name)) for name in names}, "status": str(row.get("status", "ok"))}


def trainer(row: Row | None) -> Row | None:
    """What to set in a trainer, each entry of its type."""
    if row is None:
        return None
    told = {name: _text(row.get(name)) for name in ("name", "parameter", "refused")}
    return {
        **row,
        **told,
        "value": number(row.get("value")),
        "assumes": [str(item) for item in row.get("assumes") or ()],
    }


def number(value: Any) -> float | None:
    """A finite float or None; text is refused by float()."""
    if value is None:
        return None
    x = float(value)
    return x if math.isfinite(x) else None


def _text(value: Any) -> str | None:
    return None if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
