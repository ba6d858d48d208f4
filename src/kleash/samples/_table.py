"""The samples of one file: whole batches where every cell is in order, row by row where one is not.

Both ways must give the same samples; only the second knows the line of an error.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from kleash._checks import message, short
from kleash.errors import MissingColumnError
from kleash.rows import Source
from kleash.rows import cells as _cells
from kleash.samples import _faults, _first_steps
from kleash.samples._columns import Roles, Wanted, is_number, named
from kleash.samples._lists import unroll
from kleash.samples._ratios import TokenError
from kleash.samples._sources import Sources

if TYPE_CHECKING:
    import polars as pl
    from numpy.typing import NDArray


def read_table(source: Source, wanted: Wanted, labels: dict[str, int]) -> Table:
    """All samples of a file; ``labels`` numbers the prompts of all files and is added to."""
    stated = source.columns()
    if stated is None:
        table = _by_rows(source, wanted, labels)
    else:
        numeric = {name for name, dtype in stated.items() if dtype is not None and is_number(dtype)}
        roles = wanted.resolve(list(stated), source, numeric if source.format.typed else None)
        table = _by_columns(source, roles, labels)
    if not table.rows:
        raise source.error(message("file", expected="rows", got="none"))
    table.sources = table.found_sources()
    return table


def _by_columns(source: Source, roles: Roles, labels: dict[str, int]) -> Table:
    """A file that states its columns: whole batches, or row by row from the start at the first doubt."""
    import polars as pl

    table = Table(source=source, roles=roles, labels=labels)
    try:
        batches = source.batches(roles.columns)
        if batches is not None and all(table.add_frame(batch) for batch in batches):
            return table
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
        pass  # the slow way either reads it or names the line
    table = Table(source=source, roles=roles, labels=labels)
    for lines, rows in source.chunks(roles.columns):
        table.add_rows(lines, rows)
    return table


def _by_rows(source: Source, wanted: Wanted, labels: dict[str, int]) -> Table:
    """A key may first appear on the last line: start again whenever one changes which column plays which part."""
    known: dict[str, None] = {}
    roles: Roles | None = None
    while True:
        table = None if roles is None else Table(source=source, roles=roles, labels=labels)
        for lines, rows in source.chunks():
            keys = dict.fromkeys(chain.from_iterable(rows))
            if not keys.keys() <= known.keys():
                known.update(keys)
                try:
                    found = wanted.resolve(list(known), source)
                except MissingColumnError:
                    found = None
                if found != roles:
                    roles = found
                    break
            if table is not None:
                table.add_rows(lines, rows)
        else:
            return table if table is not None else Table(source=source, roles=wanted.resolve(list(known), source))


@dataclass(kw_only=True)
class Table:
    """Samples of one file while it is read, in the order of its rows."""

    source: Source
    roles: Roles
    labels: dict[str, int] = field(default_factory=dict)
    rows: int = 0
    unrolled: int = 0
    """Rows with lists, and how many samples came of them."""
    unrolled_to: int = 0
    empty: int = 0
    dropped: int = 0
    """Rows of later steps, in a trainer's own file."""
    codes: list[NDArray[np.int64]] = field(default_factory=list)
    reward: list[NDArray[np.float64]] = field(default_factory=list)
    gold: list[NDArray[np.float64]] = field(default_factory=list)
    probability: list[NDArray[np.float64]] = field(default_factory=list)
    answers: list[pl.Series] = field(default_factory=list)
    ratios: dict[str, list[NDArray[np.float64]]] = field(default_factory=dict)
    drawn: list[pl.Series] = field(default_factory=list)
    """Who drew each answer, as the rows have it."""
    sources: Sources | None = None

    @property
    def size(self) -> int:
        """Number of samples so far."""
        return sum(map(len, self.codes))

    def add_frame(self, frame: pl.DataFrame) -> bool:
        """Add a batch whose every cell is in order; False, and nothing added, where one is not."""
        import polars as pl

        roles, rows, is_csv = self.roles, frame.height, not self.source.format.typed
        if roles.kind is not None:
            kept = _first_steps.keep_frame(frame, roles.kind)
            if kept is None:
                return False
            frame = kept.drop("step") if "step" not in roles.number_columns else kept
        if roles.ratios is not None:
            summed = roles.ratios.summed_frame(frame)
            if summed is None:
                return False
            frame = summed
        kept_rows = frame.height
        lists = [name for name, dtype in frame.schema.items() if isinstance(dtype, pl.List)]
        if lists and rows:
            sizes = frame.select(pl.col(lists).list.len()).to_numpy()
            if roles.prompt in lists or not set(roles.reward_columns) <= set(lists):
                return False
            if not (sizes > 0).all() or (sizes != sizes[:, :1]).any():
                return False
            frame = frame.explode(lists)
        prompt = frame[roles.prompt]
        if isinstance(prompt.dtype, pl.Categorical | pl.Enum):
            prompt = prompt.cast(pl.String)
        if not (prompt.dtype == pl.String or prompt.dtype.is_integer()) or prompt.null_count():
            return False
        runs = prompt.rle_id()
        heads = [str(head) for head in prompt.filter(runs.diff().fill_null(1) != 0).to_list()]
        answers = None if roles.answer is None else frame[roles.answer].rename("answer")
        if answers is not None:
            if answers.dtype not in {pl.String, pl.Null}:
                return False
            answers = answers.cast(pl.String)
        if is_csv:
            if "" in heads:
                return False
            answers = answers if answers is None else answers.set(answers == "", None)
        numbers = {name: _cells.numbers(frame[name]) for name in roles.number_columns}
        drawn = None if roles.ratios is None or roles.ratios.source is None else frame[roles.ratios.source]
        if drawn is not None and drawn.dtype not in {pl.String, pl.Null}:
            return False
        if not self._add_numbers(numbers):
            return False
        if drawn is not None:
            self.drawn.append(drawn.cast(pl.String))
        codes = np.array([self.labels.setdefault(head, len(self.labels)) for head in heads], dtype=np.int64)
        self.codes.append(codes[runs.to_numpy()] if heads else codes)
        if answers is not None:
            self.answers.append(answers)
        self.rows += rows
        self.dropped += rows - kept_rows
        if lists:
            self.unrolled += kept_rows
            self.unrolled_to += frame.height
        return True

    def _add_numbers(self, numbers: dict[str, NDArray[np.float64] | None]) -> bool:
        """Add the numbers of a batch; False, and nothing added, if one cannot be used."""
        columns = {name: values for name, values in numbers.items() if values is not None}
        if len(columns) < len(numbers):
            return False
        roles = self.roles
        if not all(np.isfinite(columns[name]).all() for name in roles.reward_columns):
            return False
        reward = roles.weigh([columns[name] for name in roles.reward_columns])
        gold = None if roles.gold is None else columns[roles.gold]
        probability = None if roles.probability is None else columns[roles.probability]
        if _faults.first_fault(reward, gold, probability) is not None:
            return False
        self.reward.append(reward)
        if gold is not None:
            self.gold.append(gold)
        if probability is not None:
            self.probability.append(probability)
        for name in () if roles.ratios is None else roles.ratios.number_columns:
            self.ratios.setdefault(name, []).append(columns[name])
        return True

    def add_rows(self, lines: Sequence[int], rows: Sequence[dict[str, Any]]) -> None:
        """Add rows, together if all are in order, else one by one, up to the first that cannot be used."""
        import polars as pl

        if not rows:
            return
        if self.roles.kind is not None and self.source.format.typed:
            seen = len(rows)
            lines, rows = _first_steps.keep_rows(lines, rows, self.roles.kind, self.source)
            self.dropped += seen - len(rows)
            self.rows += seen - len(rows)
            if not rows:
                return
        if not self.source.format.typed:
            frame = pl.DataFrame(
                {name: pl.Series([row[name] for row in rows], dtype=pl.String) for name in self.roles.columns}
            )
            added = self.add_frame(frame)
        else:
            added = self._add_together(rows)
        if not added:
            if self.roles.kind is not None and not self.source.format.typed:
                seen = len(rows)
                lines, rows = _first_steps.keep_rows(lines, rows, self.roles.kind, self.source)
                self.dropped += seen - len(rows)
                self.rows += seen - len(rows)
            self._add_slowly(lines, rows)

    def _add_together(self, rows: Sequence[dict[str, Any]]) -> bool:
        """Add rows of one kind whose every cell is in order; False, and nothing added, where one is not."""
        import polars as pl

        roles = self.roles
        if roles.ratios is not None:
            try:
                rows = [self._summed(row) for row in rows]
            except TokenError:
                return False
        columns = {name: [row.get(name) for row in rows] for name in roles.columns}
        unrolled = isinstance(columns[roles.reward_columns[0]][0], list)
        if unrolled and not unroll(columns, roles):
            return False
        prompts = [cell if type(cell) is str else _cells.label(cell) for cell in columns[roles.prompt]]
        labels = [label for label in prompts if label is not None]
        if len(labels) < len(prompts) or not _cells.encodes("".join(dict.fromkeys(labels))):
            return False
        answers = None
        if roles.answer is not None:
            texts = columns[roles.answer]
            if not set(map(type, texts)) <= {str, type(None)}:
                return False
            try:
                answers = pl.Series("answer", texts, dtype=pl.String)
            except UnicodeEncodeError:
                return False
        drawn = None
        if roles.ratios is not None and roles.ratios.source is not None:
            drawn = [_cells.label(cell) for cell in columns[roles.ratios.source]]
        if not self._add_numbers({name: _cells.numbers_of(columns[name]) for name in roles.number_columns}):
            return False
        if drawn is not None:
            self.drawn.append(pl.Series(drawn, dtype=pl.String))
        codes = [self.labels.setdefault(label, len(self.labels)) for label in labels]
        self.codes.append(np.array(codes, dtype=np.int64))
        if answers is not None:
            self.answers.append(answers)
        self.rows += len(rows)
        if unrolled:
            self.unrolled += len(rows)
            self.unrolled_to += len(codes)
        return True

    def _add_slowly(self, lines: Sequence[int], rows: Sequence[dict[str, Any]]) -> None:
        """Add rows one by one: unroll lists, and raise the error of the first row that cannot be used."""
        import polars as pl

        roles, is_csv = self.roles, not self.source.format.typed
        codes: list[int] = []
        answers: list[str | None] = []
        values: list[tuple[float, float, float]] = []
        ratios: list[list[float]] = []
        drawn: list[str | None] = []
        for line, row in zip(lines, rows, strict=True):
            if roles.ratios is not None:
                try:
                    row = self._summed(row)
                except TokenError as error:
                    self._fail(str(error), line)
            label = _cells.label(row.get(roles.prompt))
            if label is None or (is_csv and not label):
                self._fail(f"{named('prompt', roles.prompt)} is missing; drop the row or fill it in", line)
            self._must_encode(label, "prompt", line)
            before = len(values)
            for cells in self._unrolled(row, line):
                values.append(self._sample(cells, line))
                if roles.ratios is not None:
                    found = [self._cell(cells, name, name, line) for name in roles.ratios.number_columns]
                    ratios.append([math.nan if value is None else value for value in found])
                    drawn.append(_cells.label(cells.get(roles.ratios.source or "")))
                if roles.answer is not None:
                    text = _cells.text(cells[roles.answer])
                    self._must_encode(text or "", "answer", line)
                    answers.append((text or None) if is_csv else text)
            if len(values) > before:
                codes += [self.labels.setdefault(label, len(self.labels))] * (len(values) - before)
        table = np.array(values, dtype=np.float64).reshape(-1, 3)
        self.codes.append(np.array(codes, dtype=np.int64))
        self.reward.append(table[:, 0])
        if roles.gold is not None:
            self.gold.append(table[:, 1])
        if roles.probability is not None:
            self.probability.append(table[:, 2])
        if roles.answer is not None:
            self.answers.append(pl.Series("answer", answers, dtype=pl.String))
        if roles.ratios is not None:
            for name, column in zip(roles.ratios.number_columns, np.array(ratios).T, strict=True):
                self.ratios.setdefault(name, []).append(column)
            if roles.ratios.source is not None:
                self.drawn.append(pl.Series(drawn, dtype=pl.String))
        self.rows += len(rows)

    def _summed(self, row: dict[str, Any]) -> dict[str, Any]:
        """The row with sums for the log-probabilities of tokens."""
        assert self.roles.ratios is not None  # the callers have asked
        return self.roles.ratios.summed_row(row, several=isinstance(row.get(self.roles.reward_columns[0]), list))

    def found_sources(self) -> Sources | None:
        """Who drew the answers read, while the file is open; None for the reference."""
        if self.roles.ratios is None or not self.size:
            return None
        numbers = {name: np.concatenate(parts) for name, parts in self.ratios.items()}
        return self.roles.ratios.read(
            numbers, self.drawn, size=self.size, source=self.source, reward=self.roles.reward_columns[0]
        )

    def _unrolled(self, row: dict[str, Any], line: int) -> Iterator[dict[str, Any]]:
        """The samples in a row: itself, or one for each entry of its lists."""
        roles = self.roles
        cells = {name: row.get(name) for name in roles.columns}
        lists = {name: cell for name, cell in cells.items() if isinstance(cell, list) and name != roles.prompt}
        if not any(name in lists for name in roles.reward_columns):
            for name, cell in lists.items():
                if name != roles.answer or not _cells.is_chat(cell):
                    got = f"one reward beside {len(cell)} entries"
                    self._fail(message(f"list in {name!r}", expected="a list of rewards too", got=got), line)
            yield cells
            return
        prompt = cells[roles.prompt]
        if isinstance(prompt, list) and not _cells.is_chat(prompt):
            got = f"a list of {len(prompt)} beside a list of rewards"
            self._fail(message("prompt", expected="one prompt per row", got=got), line)
        if len(set(roles.reward_columns) & lists.keys()) < len(roles.reward_columns):
            scalar = next(name for name in roles.reward_columns if name not in lists)
            self._fail(message(named("reward", scalar), expected="a list as in the others", got="one cell"), line)
        if len({len(cell) for cell in lists.values()}) > 1:
            got = ", ".join(f"{name} {len(cell)}" for name, cell in lists.items())
            self._fail(message("lists in one row", expected="equal lengths", got=got), line)
        size = len(lists[roles.reward_columns[0]])
        self.unrolled += 1
        self.unrolled_to += size
        self.empty += size == 0
        for index in range(size):
            yield {**cells, **{name: cell[index] for name, cell in lists.items()}}

    def _sample(self, cells: dict[str, Any], line: int) -> tuple[float, float, float]:
        """Reward, gold and probability of one sample, NaN for what it does not have."""
        roles = self.roles
        reward = -0.0  # adding to it changes nothing, not even the sign of a zero
        for column, weight in roles.rewards:
            value = self._cell(cells, "reward", column, line)
            if value is None:
                self._fail(f"{named('reward', column)} is missing; drop the row or fill it in", line)
            if not math.isfinite(value):
                self._fail(_faults.fault(named("reward", column), "reward", value), line)
            reward += weight * value
        if not math.isfinite(reward):
            self._fail(_faults.fault("weighted sum of the rewards", "reward", reward), line)
        gold = self._cell(cells, "gold", roles.gold, line)
        gold = math.nan if gold is None else gold
        if math.isinf(gold):
            self._fail(_faults.fault(named("gold", roles.gold), "gold", gold), line)
        probability = self._cell(cells, "label_probability", roles.probability, line)
        probability = math.nan if probability is None else probability
        unknown = math.isnan(probability) and (math.isnan(gold) or roles.probability is None)
        if not (0 < probability <= 1 or unknown):
            thing = named("label_probability", roles.probability)
            self._fail(_faults.fault(thing, "label_probability", probability), line)
        return reward, gold, probability

    def _cell(self, cells: dict[str, Any], role: str, column: str | None, line: int) -> float | None:
        """The number a row has for a role; None if it has none."""
        cell = None if column is None else cells[column]
        try:
            return _cells.number(cell)
        except ValueError:
            got = repr(short(cell)) if isinstance(cell, str) else short(cell)
            self._fail(message(named(role, column), expected="a number", got=got, fix="mend or drop the row"), line)

    def _must_encode(self, text: str, role: str, line: int) -> None:
        if not _cells.encodes(text):
            self._fail(message(role, expected="Unicode text", got="half a surrogate pair"), line)

    def _fail(self, text: str, line: int) -> NoReturn:
        raise self.source.error(text, line)
