"""Which numbers does a text hold, and at which step? Every shape in which trainers print or dump a row of metrics."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from kleash.logs._config import ConfigScan
from kleash.logs._console import Bars, Box, Bullets, Record, Values
from kleash.logs._lines import Line, LogFile, lines
from kleash.logs._numbers import number
from kleash.logs._plain import Pairs, Table, Warned, counted
from kleash.trainers import metric_names

__all__ = [
    "RUN_KEYS",
    "STEP_KEYS",
    "Trouble",
    "csv_records",
    "document_records",
    "row_records",
    "salvaged_rows",
    "text_records",
]

STEP_KEYS = (
    "step",
    "training/global_step",
    "train/global_step",
    "global_step",
    "train/step",
    "training_step",
    "train_step",
    "_step",
    "Step",
    "rollout/step",
    "iteration",
    "episode",
)
_COUNTERS = (*STEP_KEYS, "global_step/max_steps", "current_steps")
RUN_KEYS = ("run", "run_id", "run_name", "experiment_name", "experiment")

_NESTED = 100  # objects inside one row: the row behind a broken one begins among the last so many
_OPEN = {"data", "metrics", "logs", "values", "_data"}  # wrappers whose name is no part of a key
_STEP_LINE = re.compile(r"(?:(?<!global_)|^\s*training/global_)step:(\d+)(?= - | *$)")
_DICT = re.compile(r"\{[^{}]*\}")
_PAIR = re.compile(
    r"""['"]([^'"\n]{1,200})['"]\s*:\s*"""
    r"""('[^']*'|"[^"]*"|tensor\([^)]*\)|(?:np|numpy)\.\w+\([^)]*\)|[^\s,{}\[\]()'"]+)\s*(?=[,}])"""
)
_COUNTED = re.compile(r"'(?:global_step/max_steps|global_step|step)'\s*:\s*'(\d+)/\d+'")
_NAMED = re.compile(r"'([^'\n]{1,200})'\s*:")
_LABEL = re.compile(r"\b(global[ _]step|step|rollout|eval)\s+(\d+)\b[^{}:]{0,40}:\s*$", re.IGNORECASE)
_MARKS = {"return", "eval_loss", "train_loss", "logps/chosen", "eval_reward", "eval_kl", *metric_names()}
_MARK_STARTS = (
    "train/", "rollout/", "eval/", "objective/", "actor/", "critic/", "rewards/", "completions/", "losses/", "loss/",
    "policy/", "ppo/", "env/", "rollout_scores/", "reward/", "eval_rewards/", "rewards_",
)  # fmt: skip


@dataclass
class Trouble:
    """What was skipped."""

    broken: int = 0
    first_broken: int | None = None
    cut: int | None = None

    def skip(self, line: Line) -> None:
        """A row that cannot be read: cut off if the file ends in it, else broken."""
        if line.whole:
            self.broken += 1
            self.first_broken = self.first_broken or line.number
        else:
            self.cut = line.number


# ------------------------------------------------------------------------------------------------------------- text


def text_records(file: LogFile, config: ConfigScan, trouble: Trouble) -> Iterator[Record]:
    """Rows in a console text or JSONL file, in its order, whatever stands between them."""
    bullets, box, bars, table, pairs, warned = Bullets(), Box(), Bars(), Table(), Pairs(), Warned()
    for line in lines(file):
        text = line.text
        if "step:" in text and (marks := list(_STEP_LINE.finditer(text))):
            yield from _step_lines(line, marks, trouble)
            continue
        if "{" in text:
            found = False
            for record in _braces(line, trouble):
                found = True
                if record.kind == "other":
                    config.take({key: value for key, (value, _) in record.values.items()} | record.texts)
                yield warned.joined(record)
            if found:
                continue
        if "%|" in text:
            yield from bars.see(line)
        elif "•" in text or "=====" in text:
            yield from bullets.see(line)
        elif "│" in text or "╭" in text or "╰" in text:
            yield from box.see(line)
        elif text.lstrip().startswith("|"):
            yield from table.see(line)
        else:
            yield from pairs.see(line)
        if "it [" in text or "%|" in text or "Warning: " in text:
            yield from warned.see(line)
        config.see(text)
    yield from chain(bullets.rest(), box.rest(), warned.rest())
    file.notes += warned.notes()


def _step_lines(line: Line, marks: list[re.Match[str]], trouble: Trouble) -> Iterator[Record]:
    """``step:N - key:value - ...``. Two in one line: the first was cut off by a crash."""
    for index, mark in enumerate(marks):
        last = index + 1 == len(marks)
        end = len(line.text) if last else marks[index + 1].start()
        parts = line.text[mark.end() : end].split(" - ")[1:]
        if not last or not line.whole:
            trouble.cut = line.number
            parts = parts[:-1]  # the last number may have lost digits
        values: Values = {}
        for part in parts:
            key, _, shown = part.rpartition(":")
            value = number(shown)
            if key and value is not None:
                values[key.strip()] = (value, shown.strip())
        if values:
            yield Record(values, step=float(mark[1]), source=line.prefix, line=line.number)


def _braces(line: Line, trouble: Trouble) -> Iterator[Record]:
    """JSON objects and printed dictionaries of a line."""
    text = line.text.strip()
    if text.startswith("{") and text.endswith("}"):
        try:
            row = json.loads(text)
        except (ValueError, RecursionError):
            row = None
        if isinstance(row, dict):
            for record in row_records(row, line=line.number):
                if not _is_metrics(record.values) and not any(k in record.values for k in (*STEP_KEYS, "epoch")):
                    record.kind = "other"
                yield record
            return
    if text.startswith('{"'):
        yield from _after_a_crash(line, text, trouble)
        return
    end = 0
    found = False
    for match in _DICT.finditer(line.text):
        values = {key: (x, shown) for key, shown in _PAIR.findall(match[0]) if (x := number(shown)) is not None}
        label = _LABEL.search(line.text[max(end, match.start() - 80) : match.start()])
        end = match.end()
        if not _is_metrics(values):
            continue
        found = True
        record = Record(values, line=line.number)
        if label is not None and label[1].lower() != "eval":
            record.step = float(label[2])
        elif (at := _COUNTED.search(match[0])) is not None:
            record.step = float(at[1])
        yield record
    tail = line.text[end:]
    broken = not found and text.startswith("{'") and "}" not in tail and _is_named(_NAMED.findall(text))
    cut = not line.whole and "{'" in tail
    if broken or cut:
        trouble.skip(line)


def _after_a_crash(line: Line, text: str, trouble: Trouble) -> Iterator[Record]:
    """A JSON row that was cut off, and the whole one that the next process wrote behind it."""
    trouble.skip(line)
    starts = [match.start() for match in re.finditer(r'(?!^)\{"', text)]
    for at in starts[-_NESTED:]:
        try:
            row = json.loads(text[at:])
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict) and any(key in row for key in STEP_KEYS):
            yield from row_records(row, line=line.number)
            return


def _is_metrics(values: Values) -> bool:
    if len(values) < 2 and not any("/" in key for key in values):
        return False
    return _is_named(values)


def _is_named(keys: Iterable[str]) -> bool:
    """Whether one of the names is a metric's."""
    return any(key in _MARKS or key.startswith(_MARK_STARTS) for key in keys)


# ------------------------------------------------------------------------------------------------------------- JSON


def row_records(row: Mapping[str, Any], *, line: int | None = None) -> Iterator[Record]:
    """The record of one JSON object; nothing if it holds no numbers."""
    values: Values = {}
    texts: dict[str, str] = {}
    _flatten(row, "", values, texts, 0)
    run = next((texts.get(key) or _whole(values.get(key)) for key in RUN_KEYS if key in texts or key in values), "")
    if values:
        at = next((found for key in _COUNTERS if (found := counted(texts.get(key, ""))) is not None), None)
        yield Record(values, step=at, run=run or "", line=line, texts=texts)


def _whole(value: tuple[float, str] | None) -> str:
    return "" if value is None else value[1]


def _flatten(row: Mapping[str, Any], stem: str, values: Values, texts: dict[str, str], depth: int) -> None:
    for name, item in row.items():
        key = f"{stem}{name}"
        if item is None:
            values[key] = (math.nan, "")
        elif isinstance(item, bool):
            continue
        elif isinstance(item, int | float):
            values[key] = (_float(item), repr(item))
        elif isinstance(item, str):
            value = number(item) if len(item) < 60 else None
            if value is not None and name not in RUN_KEYS:
                values[key] = (value, item)
            elif len(item) < 300:
                texts[key] = item
        elif isinstance(item, dict) and depth < 3:
            _flatten(item, stem if name in _OPEN else f"{key}/", values, texts, depth + 1)


def document_records(value: Any) -> Iterator[Record] | None:
    """The rows of a whole JSON document: a trainer state, a list of rows, or columns; None if it is none of these."""
    if isinstance(value, dict) and isinstance(value.get("log_history"), list):
        value = value["log_history"]
    if isinstance(value, list):
        if value and all(isinstance(row, dict) for row in value):
            return (record for row in value for record in row_records(row))
        return iter(()) if not value else None
    if not isinstance(value, dict):
        return None
    by_step = {k: v for k, v in value.items() if isinstance(v, dict) and v and all(_is_number(s) for s in v)}
    if by_step and len(by_step) == len(value):
        return _columns(by_step)
    if value and all(_is_number(step) and isinstance(row, dict) for step, row in value.items()):
        return (record for step, row in value.items() for record in row_records({"step": float(step), **row}))
    lists = {k: v for k, v in value.items() if isinstance(v, list) and v and all(_scalar(x) for x in v)}
    step = next((key for key in STEP_KEYS if key in lists), None)
    if step is not None and len(lists) > 1 and len({len(v) for v in lists.values()}) == 1:
        names = list(lists)
        rows = zip(*lists.values(), strict=True)
        return (record for row in rows for record in row_records(dict(zip(names, row, strict=True))))
    return None


def _float(item: float) -> float:
    try:
        return float(item)
    except OverflowError:  # an integer of more than 308 digits
        return math.inf if item > 0 else -math.inf


def _scalar(item: Any) -> bool:
    return item is None or isinstance(item, int | float | str)


def _is_number(text: str) -> bool:
    value = number(text)
    return value is not None and math.isfinite(value)


def _columns(columns: Mapping[str, Mapping[str, Any]]) -> Iterator[Record]:
    """``{"train/loss": {"1": 0.5, ...}, ...}``, the dump of a TensorBoard folder."""
    rows: dict[float, dict[str, Any]] = {}
    for key, by_step in columns.items():
        for step, value in by_step.items():
            rows.setdefault(float(step), {})[key] = value
    for at in sorted(rows):
        for record in row_records(rows[at]):
            record.step = at
            yield record


def salvaged_rows(text: str) -> list[dict[str, Any]]:
    """The whole rows of a trainer state that ends in mid-line."""
    begin = re.search(r'"log_history"\s*:\s*\[', text)
    decoder, rows, at = json.JSONDecoder(), [], len(text) if begin is None else begin.end()
    while (brace := re.compile(r"[\s,]*(?=\{)").match(text, at)) is not None:
        try:
            row, at = decoder.raw_decode(text, brace.end())
        except (ValueError, RecursionError):
            break
        rows.append(row)
    return rows


# -------------------------------------------------------------------------------------------------------------- CSV

_COMMA = re.compile(r"\s*[-+]?\d*,\d+(?:[eE][-+]?\d+)?\s*")
_WANDB = re.compile(r"^(.+) - (.+?)(__MIN|__MAX)?$")


def csv_records(file: LogFile, delimiter: str, trouble: Trouble, *, skip: int = 0) -> Iterator[Record]:
    """Rows of a table with a header. ``name - key`` headers, as the wandb page exports them, are a run each.

    ``skip`` lines stand before the header. Between semicolons ``0,5`` is a half.
    """
    comma = delimiter == ";"
    last: list[Line] = []

    def texts() -> Iterator[str]:
        for index, line in enumerate(lines(file)):
            last[:] = [line]
            if index >= skip:
                yield line.text + "\n"

    limit = csv.field_size_limit(1 << 22)  # a longer cell is a quotation mark that nothing closes
    try:
        reader = csv.reader(texts(), delimiter=delimiter)
        header = [cell.strip() for cell in next(reader, [])]
        named = {index: m for index, name in enumerate(header) if (m := _WANDB.match(name)) is not None}
        for cells in reader:
            if len(cells) >= len(header) and not last[0].whole and not last[0].text.endswith('"'):
                trouble.skip(last[0])
                cells[-1] = ""  # it may have lost digits
            if len(cells) < len(header):
                trouble.skip(last[0])
            elif not named:
                yield from row_records(_cells(zip(header, cells, strict=False), comma=comma), line=last[0].number)
            else:
                shared = _cells(((n, cells[i]) for i, n in enumerate(header) if i not in named), comma=comma)
                runs: dict[str, dict[str, str]] = {}
                for i, m in named.items():
                    if m[3] is None and cells[i].strip():
                        runs.setdefault(m[1], {})[m[2]] = _point(cells[i]) if comma else cells[i]
                for run, row in runs.items():
                    yield from row_records({**shared, **row, "run": run}, line=last[0].number)
    except csv.Error as error:
        raise file.error(f"broken CSV ({error})", last[0].number if last else None) from error
    finally:
        csv.field_size_limit(limit)


def _cells(pairs: Any, *, comma: bool) -> dict[str, str | None]:
    return {name: (_point(cell) if comma else cell) if cell.strip() else None for name, cell in pairs if name}


def _point(cell: str) -> str:
    """A number with a decimal comma, with a point; anything else as it stands."""
    return cell.replace(",", ".") if _COMMA.fullmatch(cell) else cell
