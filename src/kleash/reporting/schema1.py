"""Results of schema 1 in the form of schema 2: their table, whole, from the rows that they hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scipy.special import stdtrit

from kleash.envelope import SCHEMA
from kleash.errors import DataError

__all__ = ["upgraded"]

Row = Mapping[str, Any]
_ENDS = ("", "_se", "_lo", "_hi")
_MEASURED = ("gold", "gold_gain", "reference_gold")


def upgraded(content: Row) -> Row:
    """What a file of schema 1 says, as schema 2 says it; of another schema, the same.

    A frontier file named what was measured, a result its source. Rows of a sweep had no intervals: they are Student's,
    from the standard error over seeds.

    ``content``: The JSON as it was read. Raises `DataError`: A table without rows. `KeyError`, `TypeError`,
    `ValueError`: Parts are missing or of another type.
    """
    if content["schema"] != 1:
        return content
    content = {**content, "schema": SCHEMA, "kind": "frontier" if "measured" in content else content["source"]}
    if content["kind"] == "check" and content.get("frontier"):
        table = content["frontier"]
        content["frontier"] = _table("log", table["rows"], table["reference"], table)
    if content["kind"] in ("sweep", "forecast"):
        content["frontier"] = _table(content["kind"], content["rows"], content["reference"], {})
        optimum = content.get("optimum")
        content["optimum_frontier"] = _table("exact", optimum, content["reference"], {}) if optimum else None
    return content


def _table(source: str, rows: Sequence[Row], reference: Row, content: Row) -> Row:
    if not rows:
        raise DataError("has no rows")
    whole = [_row(row) for row in rows]
    gold = any(row.get("gold") is not None for row in [*rows, reference])
    return {
        "schema": SCHEMA,
        "kind": "frontier",
        "source": source,
        "measured": _MEASURED if gold else (),
        "rows": whole,
        "reference": {name + end: reference.get(name + end) for name in ("reward", "gold") for end in _ENDS},
        "gold_range": content.get("gold_range"),
        "provenance": content.get("provenance", {}),
    }


def _row(row: Row) -> Row:
    n = int(row.get("n") or row.get("n_seeds") or 0)
    whole = {"beta": float(row["beta"]), "n": n, "status": str(row.get("status", "ok"))}
    for name in ("reward", "gold", "kl", "gold_gain"):
        whole |= dict(zip((name + end for end in _ENDS), _with_ends(row, name, n), strict=True))
    return whole


def _with_ends(row: Row, name: str, n: int) -> tuple[float | None, ...]:
    value, se, lo, hi = (None if row.get(name + end) is None else float(row[name + end]) for end in _ENDS)
    if value is not None and se is not None and lo is None and hi is None and n > 1:
        half = float(stdtrit(n - 1, 0.975)) * se
        lo, hi = value - half, value + half
    return value, se, lo, hi
