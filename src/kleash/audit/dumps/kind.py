"""Is a file a rollout dump? Told by its beginning."""

from __future__ import annotations

import json
from pathlib import Path

from kleash.errors import DataError
from kleash.rows import head

__all__ = ["DUMP_SUFFIXES", "LOOKED_AT", "begins_a_dump", "is_dump"]

DUMP_COLUMNS = ("logp", "ref_logp", "seq_logp", "seq_ref_logp", "behavior_logp")
DUMP_SUFFIXES = (".jsonl", ".jsonl.gz", ".parquet")
LOOKED_AT = 1 << 20


def is_dump(path: str | Path) -> bool:
    """Whether a file is Parquet, or its first line a JSON object with log-probabilities.

    Only the beginning of the file is looked at.
    """
    file = Path(path)
    if not file.is_file():
        return False
    try:
        first = head(file, LOOKED_AT)
    except DataError:
        return True  # a broken archive is said by the reader of dumps
    if first.startswith(b"PAR1"):
        return True
    return not first.strip() or begins_a_dump(first)  # an empty file likewise


def begins_a_dump(first: bytes) -> bool:
    """Whether the first line is a JSON object with log-probabilities, as far as it is there."""
    line = first.lstrip().partition(b"\n")[0]
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):  # not JSON, not UTF-8, a number or a nesting past every limit
        return line.startswith(b"{") and any(b'"%s"' % name.encode() in line for name in DUMP_COLUMNS)
    return isinstance(row, dict) and any(isinstance(row.get(name), list | float | int) for name in DUMP_COLUMNS)
