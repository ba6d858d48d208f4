"""Which numbers stand in lines that no trainer's shape fits? Pairs of a name and a number, tables, warnings."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kleash.logs._console import Record, Values
from kleash.logs._lines import Line
from kleash.logs._numbers import number
from kleash.trainers import TRAINERS

__all__ = ["Pairs", "Table", "Warned", "counted"]

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|nan|inf|-inf"
_AT = re.compile(r"\b(?:iter(?:ation)?|(?:global[_ ])?step|update|episode)\b\s*[:=#]?\s*\[?(\d+)\b", re.IGNORECASE)
_PAIR = re.compile(rf"([A-Za-z][\w/.@-]*(?: [A-Za-z][\w/.@-]*)*)\s*[:=]?\s*({_NUMBER})(?=[\s,;|)\]%]|$)", re.IGNORECASE)
_STEP = re.compile(r"(?:training_|train_|global_)?(?:step|iter|iteration|update)s?")
_KNOWN = re.compile(r"\b(?:kl|rewards?|loss)\b|kl_|_kl|reward_|_reward", re.IGNORECASE)
_LONGEST = 2000
_SPOKEN = ((r"\b(?:average|avg)\b", "mean"), (r"^train ", ""), (r" ", "_"))
_WARNINGS = {key: warning for trainer in TRAINERS.values() for key, warning in trainer.warnings.items()}
_COUNTED = re.compile(r"['\"]?(\d+)/\d+['\"]?")


def counted(shown: str) -> float | None:
    """The step in a text like ``1/120``.

    Examples
    --------
    >>> counted("1/120"), counted("0.5")
    (1.0, None)
    """
    found = _COUNTED.fullmatch(shown.strip())
    return None if found is None else float(found[1])


class Pairs:
    """A line with a step and pairs, as ``Iter 3: Train loss 0.1, KL 0.002``; one metric or all in a line."""

    def see(self, line: Line) -> Iterator[Record]:
        """The record of a line, if it has a step and names a KL, a reward or a loss."""
        text = line.text
        if len(text) > _LONGEST or not _KNOWN.search(text) or (at := _AT.search(text)) is None:
            return
        rest = text[at.end() :]
        pairs = [(_name(name), shown) for name, shown in _PAIR.findall(rest)]
        values: Values = {name: (x, shown) for name, shown in pairs if (x := number(shown)) is not None}
        if not line.whole and values:
            values.popitem()  # it may have lost digits
        if values:
            yield Record(values, step=float(at[1]), source=line.prefix, kind="pair", line=line.number)


def _name(spoken: str) -> str:
    name = spoken.lower()
    for pattern, plain in _SPOKEN:
        name = re.sub(pattern, plain, name)
    return name


class Table:
    """A table of Markdown: names between bars, one of them a step's, a line of dashes, then a row in each line."""

    def __init__(self) -> None:
        self._above: list[str] = []
        self._names: list[str] = []
        self._step = ""

    def see(self, line: Line) -> Iterator[Record]:
        """The record of a row below a header."""
        cells = [cell.strip().strip("*`") for cell in line.text.strip().strip("|").split("|")]
        if all(re.fullmatch(r":?-+:?", cell) for cell in cells):
            self._names = self._above if len(self._above) == len(cells) else []
            self._step = next((name for name in self._names if _STEP.fullmatch(name)), "")
        elif len(cells) != len(self._names):
            self._above, self._names, self._step = [_name(cell) for cell in cells], [], ""
        elif self._step and line.whole:
            found = zip(self._names, cells, strict=True)
            values = {name: (x, cell) for name, cell in found if (x := number(cell)) is not None}
            yield Record(values, step=values.get(self._step, (None, ""))[0], line=line.number)


class Warned:
    """Numbers that a trainer puts into warnings, which are all that some consoles show: each goes with the next row."""

    _BAR = re.compile(r"^\s*(?:\d+%\|.*\|\s*)?(\d+)(?:/\d+|it) \[")

    def __init__(self) -> None:
        self._seen: dict[str, list[float]] = {}
        self._waiting: Values = {}
        self._step: float | None = None

    def see(self, line: Line) -> Iterator[Record]:
        """What waited, where it is warned again before any row, or where a bar has moved on."""
        if (bar := self._BAR.match(line.text)) is not None:
            yield from self.rest()
            self._step = float(bar[1])
            return
        for key, (pattern, _) in _WARNINGS.items():
            if (found := pattern.search(line.text)) is not None:
                if key in self._waiting:
                    yield from self.rest()
                self._seen.setdefault(key, []).append(float(found[1]))
                self._waiting[key] = (float(found[1]), found[1])

    def joined(self, record: Record) -> Record:
        """A row with what was warned before it."""
        if self._waiting and record.kind == "row":
            record.values = {**self._waiting, **record.values}
            self._waiting = {}
        return record

    def rest(self) -> Iterator[Record]:
        """What no row took."""
        if self._waiting:
            yield Record(self._waiting, step=self._step, kind="pair")
        self._waiting = {}

    def notes(self) -> list[str]:
        """What a trainer did where it warned."""
        said = {key: _WARNINGS[key][1] for key in self._seen}
        return [note.format(len(self._seen[key]), max(self._seen[key])) for key, note in said.items() if note]
