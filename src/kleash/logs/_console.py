"""Which numbers stand in a block of console text? Progress bars, bullets under a headline, framed tables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from kleash.logs._lines import Line
from kleash.logs._numbers import number
from kleash.trainers import TRAINERS

__all__ = ["Bars", "Box", "Bullets", "Record", "Values"]

Values = dict[str, tuple[float, str]]
"""Key to the number and the text that was printed for it."""

_BAR = re.compile(r"(?:^|\s)([^|%]{0,60}?):?\s*\d+%\|[^|]*\|\s*(\d+)/(\d+)\s*\[([^\]]*)\]")
_BAR_PAIR = re.compile(r"\b([A-Za-z_]\w*)=([-+.\deEna]+)(?=[,\s\]]|$)")
_HEADLINE = re.compile(r"={5,}\s*Step (\d+)(?:/\d+)?\s*={5,}")
_BULLET = re.compile(r"^\s*•\s*([A-Z][A-Za-z ()]+?):\s*(\S+)\s*$")
_LABELS = {label: key for trainer in TRAINERS.values() for label, key in trainer.console.items()}
_BOX = re.compile(r"^\s*[│|]\s?(.*?)\s*[│|]\s*$")
_BOX_FLAT = re.compile(r"^([\w\-]+(?:/[\w\-./@]+)*)\s{1,}(\S+)$")
_BOX_GROUP = re.compile(r"^([\w\-]+)\s{2,}(\S+: \S.*)$")


@dataclass
class Record:
    """One row of metrics as it stands in a log.

    ``kind`` is ``row``; ``bar`` for the state of a progress bar, ``pair`` for names and numbers of a line and ``other``
    for numbers without a step or a known key, such as a configuration: each counts only where there are none before it.
    ``source`` is the process that printed it, where several may print at once.
    """

    values: Values
    step: float | None = None
    run: str = ""
    source: str = ""
    kind: str = "row"
    line: int | None = None
    texts: dict[str, str] = field(default_factory=dict)


class Bars:
    """Progress bars that carry metrics: each new set of numbers on a whole bar or an episode bar."""

    def __init__(self) -> None:
        self._last: dict[str, float] = {}

    def see(self, line: Line) -> Iterator[Record]:
        match = _BAR.search(line.text)
        if match is None or "=" not in match[4]:
            return
        values = {k: (x, shown) for k, shown in _BAR_PAIR.findall(match[4]) if (x := number(shown)) is not None}
        if "kl" not in values and not {"act_loss", "policy_loss"} & set(values):
            return
        if "Episode" not in match[1] and int(match[2]) < int(match[3]):
            return  # a mean over part of the batch
        now = {key: value for key, (value, _) in values.items()}
        if now != self._last:  # a bar is drawn again and again
            self._last = now
            yield Record(values, kind="bar", line=line.number)


class Bullets:
    """A block of bullets under ``=== Step 3/100 ===``."""

    def __init__(self) -> None:
        self._step: float | None = None
        self._values: Values = {}
        self._line = 0

    def see(self, line: Line) -> Iterator[Record]:
        if (step := _HEADLINE.search(line.text)) is not None:
            yield from self.rest()
            self._step, self._line = float(step[1]), line.number
        elif (row := _BULLET.match(line.text)) is not None and row[1] in _LABELS:
            value = number(row[2])
            if value is not None and line.whole:
                self._values[_LABELS[row[1]]] = (value, row[2])

    def rest(self) -> Iterator[Record]:
        if self._values and self._step is not None:
            yield Record(self._values, step=self._step, line=self._line)
        self._values = {}


class Box:
    """A framed table, one metric or one group of metrics in a line."""

    def __init__(self) -> None:
        self._values: Values = {}
        self._group = ""
        self._open = False
        self._line = 0

    def see(self, line: Line) -> Iterator[Record]:
        if "╭" in line.text:
            yield from self.rest()
            self._open, self._line, self._group = "Metrics" in line.text, line.number, ""
        elif "╰" in line.text:
            yield from self.rest()
        elif self._open and (box := _BOX.match(line.text)) is not None:
            inner = box[1].strip()
            if (group := _BOX_GROUP.match(inner)) is not None:
                self._group, inner = group[1], group[2]
            if self._group and ": " in inner:
                stem = "" if self._group == "other" else f"{self._group}/"
                for part in inner.split(" | "):
                    key, _, shown = part.rpartition(": ")
                    self._take(stem + key.strip(), shown)
            elif (flat := _BOX_FLAT.match(inner)) is not None:
                self._take(flat[1], flat[2])

    def _take(self, key: str, shown: str) -> None:
        value = number(shown)
        if key and value is not None:
            self._values[key] = (value, shown)

    def rest(self) -> Iterator[Record]:
        if len(self._values) > 1:
            yield Record(self._values, line=self._line)
        self._values = {}
        self._open = False
