"""What does a file hold? Chooses how to read it, and says in one line what is wrong."""

from __future__ import annotations

import codecs
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path

from kleash import _checks
from kleash._files import sha256
from kleash.errors import DataError
from kleash.logs._build import Origin, build, unrecognised
from kleash.logs._config import ConfigScan, neighbours
from kleash.logs._console import Record
from kleash.logs._lines import LogFile
from kleash.logs._records import (
    RUN_KEYS,
    Trouble,
    csv_records,
    document_records,
    row_records,
    salvaged_rows,
    text_records,
)
from kleash.logs._rows import Rows, collect
from kleash.logs._tensors import read_dumps
from kleash.logs.stores import Store, store_of
from kleash.logs.table import RunLog
from kleash.rows import head, unpacked_bytes

__all__ = ["read_file"]

_BEFORE_HEADER = 6  # lines among which a table's header is looked for
_DOCUMENT = 1 << 29  # a JSON document is read whole; a log of more than half a gigabyte comes in lines


def read_file(path: Path, trainer: str | None, mapping: Mapping[str, str] | None) -> list[RunLog]:
    """The runs in one file, or in a folder that is one.

    Parameters
    ----------
    path, trainer, mapping
        As for `kleash.logs.read_logs`.

    Returns
    -------
    list of RunLog
        At least one.
    """
    if path.suffix == ".pt":
        return read_dumps(path)
    first = b"" if path.is_dir() else head(path)
    store = store_of(path, first)
    if store is not None:
        return _stored(store, path, trainer, mapping)
    file = LogFile(path)
    text = _looked_at(file, first)
    config, trouble, notes = ConfigScan(), Trouble(), []
    records: Iterator[Record] | None = None
    splits = True
    if _may_be_document(path, text):
        records, splits, said = _document(file)
        notes += said
    if records is None:
        table = _table_of(path, text)
        if table is not None:
            records = csv_records(file, table[0], trouble, skip=table[1])
        else:
            records = text_records(file, config, trouble)
    runs = _collected(_counted(file, records), mapping, splits=splits)
    if not runs:
        got = "text without any" if trouble.broken == 0 else f"{trouble.broken} broken lines and no row"
        fix = f"first broken line: {trouble.first_broken}" if trouble.broken else "is this the right file?"
        raise file.error(_checks.message("training log", expected="rows of metrics", got=got, fix=fix))
    origin = Origin(path=path, sha256=sha256(path), name=_name(path), trainer=trainer, mapping=mapping)
    origin.beside, origin.config, origin.notes = neighbours(path), config.found, notes + _oddities(file, trouble)
    return _built(runs, origin)


def _stored(store: Store, path: Path, trainer: str | None, mapping: Mapping[str, str] | None) -> list[RunLog]:
    """The runs of a tracker's file or folder."""
    found: list[RunLog] = []
    wrong: list[Rows] = []
    digest = _digest(path)
    for held in store.runs(path):
        runs = _collected(held.records, mapping, splits=store.splits)
        origin = Origin(path=path, sha256=digest, name=held.run or _name(path), trainer=trainer, mapping=mapping)
        origin.config, origin.notes = held.config.found, held.notes
        found += _logs(runs, origin)
        wrong += runs
    if not found and wrong:
        raise unrecognised(path, wrong)
    if not found:
        raise DataError(_checks.message(store.name, expected="rows of metrics", got="none"), path=path)
    return found


def _digest(path: Path) -> str:
    """Of a file's bytes; of a folder that of its files' digests, in the order of their names."""
    if path.is_file():
        return sha256(path)
    files = sorted(file for file in path.rglob("*") if file.is_file())
    return hashlib.sha256("".join(map(sha256, files)).encode()).hexdigest()


def _counted(file: LogFile, records: Iterable[Record]) -> Iterator[Record]:
    for record in records:
        file.rows += 1
        yield record


def _collected(records: Iterable[Record], mapping: Mapping[str, str] | None, *, splits: bool) -> list[Rows]:
    given = records if mapping is None else _mapped(records, mapping)
    return [rows for rows in collect(given, splits=splits) if rows.n]


def _logs(runs: list[Rows], origin: Origin) -> list[RunLog]:
    unnamed = 0
    found = []
    for rows in runs:
        log = build(rows, origin, index=unnamed)
        if log is not None:
            unnamed += not rows.run
            found.append(log)
    return found


def _built(runs: list[Rows], origin: Origin) -> list[RunLog]:
    """The logs of a text, or the error for one whose rows are nobody's."""
    found = _logs(runs, origin)
    unnamed = sum(not rows.run for rows in runs)
    guessed = origin.trainer is None and origin.mapping is None and all(log.trainer == "table" for log in found)
    if not found or (guessed and sum(log.rows for log in found) < 2 * unnamed and unnamed > 2):
        raise unrecognised(origin.path, runs)  # a step number that starts again with every row is no step of training
    return found


def _looked_at(file: LogFile, first: bytes) -> str:
    """The beginning as text, or an error for what cannot be a log."""
    if not first:
        raise file.error(_checks.message("training log", expected="text", got="an empty file"))
    utf16 = first.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    if b"\0" in first and not utf16:
        got = "a Parquet file" if first.startswith(b"PAR1") else "binary data"
        fix = "export it as CSV or JSONL" if got == "a Parquet file" else "name the text log"
        raise file.error(_checks.message("training log", expected="text", got=got, fix=fix))
    text = first.decode("utf-16" if utf16 else "utf-8-sig", "replace").lstrip()
    if not text:
        raise file.error(_checks.message("training log", expected="text", got="blank lines only"))
    return text


def _may_be_document(path: Path, text: str) -> bool:
    if text[0] not in "{[":
        return False
    json_name = Path(path.name.removesuffix(".gz")).suffix == ".json"
    opened = text.split("\n", 1)[0].strip() in ("{", "[")
    return json_name or opened or '"log_history"' in text[:4096] or text[:2] in ("[{", "[]")


def _document(file: LogFile) -> tuple[Iterator[Record] | None, bool, list[str]]:
    """A JSON document read whole: its rows, whether runs in it may be split, and what was odd."""
    with unpacked_bytes(file.path) as stream:
        data = stream.read(_DOCUMENT + 1)
    if len(data) > _DOCUMENT:
        return None, True, []
    text = data.decode("utf-8-sig", "replace")
    file.replaced += text.count("\ufffd")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        if '"log_history"' not in text:
            return None, True, []
        rows = salvaged_rows(text)
        if not rows:
            raise file.error("trainer state that is cut off before its first row; copy it again") from None
        said = [f"the file is cut off: the {len(rows)} rows before that are used"]
        return chain.from_iterable(row_records(row) for row in rows), False, said
    state = isinstance(value, dict) and "log_history" in value
    records = document_records(value)
    if records is None:
        if isinstance(value, dict) and any(key in value for key in RUN_KEYS) and len(value) < 3:
            return None, True, []
        keys = ", ".join(list(value)[:5]) if isinstance(value, dict) else type(value).__name__
        expected = "log_history, a list of rows, or columns by step"
        if isinstance(value, dict) and "\n" not in text.strip():
            return None, True, []  # one object in one line: JSONL with a single row
        raise file.error(_checks.message("JSON", expected=expected, got=f"keys {keys}"))
    if state and not value["log_history"]:
        raise file.error(
            _checks.message("log_history", expected="rows", got="an empty list", fix="log during training")
        )
    return records, not state, []


def _table_of(path: Path, text: str) -> tuple[str, int] | None:
    """The delimiter of a table with a header and how many lines stand before that, or None if this is no table.

    Before the header may stand comments (``#``), the ``sep=;`` of spreadsheets and in a .csv or .tsv a title.
    """
    suffix = Path(path.name.removesuffix(".gz")).suffix.lower()
    lines = [line.strip() for line in text.split("\n") if line.strip()][:_BEFORE_HEADER]
    first = next((i for i, line in enumerate(lines) if not line.startswith(("#", "sep=", '"sep='))), None)
    if first is None:
        return None
    if suffix in (".csv", ".tsv"):
        for skip in range(first, len(lines)):
            if (found := _delimiter(lines[skip], named=False)) is not None:
                return found, skip
    found = _delimiter(lines[first], named=suffix in (".csv", ".tsv"))
    return None if found is None else (found, first)


def _delimiter(header: str, *, named: bool) -> str | None:
    """What separates the names of a header, one of them a step's unless the file is named as a table."""
    if header.startswith(("{", "[")) or "step:" in header:
        return None
    for delimiter in (",", "\t", ";"):
        cells = [cell.strip().strip('"') for cell in header.split(delimiter)]
        if len(cells) < 2:
            continue
        words = sum(bool(cell) and not re.fullmatch(r"[-+.\d eE]+", cell) for cell in cells)
        short = all(len(cell) < 200 and "=" not in cell for cell in cells)
        stepped = any(cell.rsplit("/", 1)[-1].lower() in ("step", "_step", "global_step") for cell in cells)
        if named or (stepped and words >= len(cells) - 1 and short):
            return delimiter
    return None


def _mapped(records: Iterable[Record], mapping: Mapping[str, str]) -> Iterator[Record]:
    step, run = mapping.get("step"), mapping.get("run")
    for record in records:
        record.kind = "row"
        if step is not None and step in record.values:
            record.step = record.values[step][0]
        if run is not None:
            record.run = record.texts.get(run) or (record.values[run][1] if run in record.values else "")
        yield record


def _oddities(file: LogFile, trouble: Trouble) -> list[str]:
    said = list(file.notes)
    if trouble.cut is not None:
        said.append(f"line {trouble.cut} is cut off: its last number or row is left out")
    if trouble.broken:
        many = "lines" if trouble.broken > 1 else "line"
        said.append(f"{trouble.broken} broken {many} left out, the first is line {trouble.first_broken}")
    if file.replaced:
        said.append(f"{file.replaced} bytes are not UTF-8 and were replaced")
    if file.long:
        said.append(f"{file.long} lines of more than 4 million characters left out")
    if file.truncated_archive:
        said.append("the gzip archive ends too early: what it holds is used")
    return said


def _name(path: Path) -> str:
    name = path.name.removesuffix(".gz")
    if name == "trainer_state.json":
        parent = path.resolve().parent
        return parent.parent.name if re.fullmatch(r"checkpoint-\d+", parent.name) else parent.name
    return Path(name).stem
