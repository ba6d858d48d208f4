"""What every JSON of kleash begins with: its form, its kind, who made it and from what."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kleash._version import version as installed
from kleash.errors import DataError

__all__ = ["SCHEMA", "check_schema", "envelope"]

SCHEMA = 2
"""The form that is written. In schema 1 results held rows without their table, and did not name their kind."""
_READ = (1, 2)


def envelope(
    kind: str,
    *,
    version: str | None = None,
    seed: int | None = None,
    inputs: Iterable[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """The first keys of a JSON.

    ``kind``: What the rest is, which is the command's name: ``sweep``, ``forecast``, ``check``, ... ``version``: Of
    kleash that made it; default: the installed one. ``seed``: Start of all randomness; None where there was none.
    ``inputs``: Files that were read: path, sha256, rows.

    Examples
    --------
    >>> list(envelope("sweep", seed=3))
    ['schema', 'kind', 'version', 'source', 'seed', 'inputs']
    """
    return {
        "schema": SCHEMA,
        "kind": kind,
        "version": installed() if version is None else version,
        "source": kind,
        "seed": seed,
        "inputs": [dict(row) for row in inputs],
    }


def check_schema(schema: Any) -> None:
    """Refuse a form that this kleash does not know.

    Raises `DataError`: It is a newer one, or none.
    """
    if schema not in _READ:
        raise DataError(f"is of schema {schema}, this kleash reads {' and '.join(map(str, _READ))}")
