"""Write the frozen answers anew: `python tests/frozen/freeze.py`, after a change of behaviour that is meant.

Without an argument every kind is written; `python tests/frozen/freeze.py golden` writes one.
"""

from __future__ import annotations

import gzip
import json
import sys
from typing import Any

from cases import HERE, dump_faults, golden, log_faults, translations

KINDS: dict[str, Any] = {"golden": golden, "log_faults": log_faults, "dump_faults": dump_faults}


def read(kind: str) -> dict[str, Any]:
    """The frozen answers of one kind, by name."""
    with gzip.open(HERE / f"{kind}.json.gz", "rt", encoding="utf-8") as file:
        found: dict[str, Any] = json.load(file)
    return found


def write(kind: str, answers: dict[str, Any]) -> None:
    """Freeze them: the same answers give the same bytes."""
    text = json.dumps(answers, indent=0, sort_keys=True).encode()
    (HERE / f"{kind}.json.gz").write_bytes(gzip.compress(text, mtime=0))


if __name__ == "__main__":
    for kind in sys.argv[1:] or [*KINDS, "translations"]:
        cases = translations([json.loads(key) for key in read(kind)]) if kind == "translations" else KINDS[kind]()
        write(kind, {name: answer() for name, answer in cases})
