"""Everything whose answer is frozen: by name, a function that gives plain data."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import kleash
from kleash.errors import KleashError

HERE = Path(__file__).parent
LOGS = HERE.parent / "data" / "logs"
sys.path.insert(0, str(HERE.parent / "audit"))

from simulated_dumps import FAULTS, check_rollouts  # noqa: E402
from simulated_logs import LOG_FAULTS  # noqa: E402

from kleash.audit.logs import check_logs  # noqa: E402

ANSWERS = 256
GOLD = {"trl_grpo": "gold"}


def golden() -> Iterator[tuple[str, Callable[[], Any]]]:
    """`check` over every golden log, as the command prints it, less what changes with machine and release."""
    for path in sorted(set(LOGS.iterdir()) - {LOGS / "tracked"}):  # read back number for number elsewhere
        if path.name not in {"README.md", "plain.csv"}:
            yield f"golden {path.name}", lambda path=path: _report(kleash.check(path, gold=GOLD.get(path.name)))


def log_faults() -> Iterator[tuple[str, Callable[[], Any]]]:
    """`check` over every generated fault of a log and its twin."""
    for name, fault in LOG_FAULTS.items():
        for side in (0, 1):
            yield f"log {('fault', 'twin')[side]} {name}", lambda fault=fault, side=side: _of_log(fault, side)


def dump_faults() -> Iterator[tuple[str, Callable[[], Any]]]:
    """`check` over every generated fault of a rollout dump and its twin."""
    for name, fault in FAULTS.items():
        for side in (0, 1):
            yield f"dump {('fault', 'twin')[side]} {name}", lambda fault=fault, side=side: _of_dump(fault, side)


def translations(cases: list[dict[str, Any]]) -> Iterator[tuple[str, Callable[[], Any]]]:
    """`convert` to and from every trainer under every one of its settings."""
    for case in cases:
        yield json.dumps(case, sort_keys=True), lambda case=case: _translated(case)


def _of_log(fault: Any, side: int) -> Any:
    log = fault.make(np.random.default_rng((3, 0)))[side]
    inputs, findings, frontier = check_logs([log], declared=fault.declared)
    return plain(
        {
            "inputs": [{"trainer": one.trainer, "facts": dict(one.facts)} for one in inputs],
            "findings": [finding.to_dict() for finding in findings],
            "frontier": frontier is not None,
        }
    )


def _of_dump(fault: Any, side: int) -> Any:
    chunk = fault.make(np.random.default_rng(11), ANSWERS)[side]
    return plain([finding.to_dict() for finding in check_rollouts([chunk], declared=fault.declared)])


def _report(report: Any) -> Any:
    found = report.to_dict()
    for one in found["inputs"]:
        one.pop("sha256", None)
    for key in ("version", "kind"):
        found.pop(key, None)
    return json.loads(json.dumps(plain(found)).replace(str(LOGS), "LOGS"))


def _translated(case: dict[str, Any]) -> Any:
    try:
        found = kleash.convert(0.5, **case).to_dict()
    except KleashError as error:
        return {"error": str(error)}
    return {key: value for key, value in found.items() if key not in {"schema", "kind", "version"}}


def plain(value: Any) -> Any:
    """JSON-ready; what is no finite number becomes its name."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def differences(was: Any, now: Any, at: str = "") -> Iterator[str]:
    """Where two answers part, a line each; numbers may differ in the ninth digit, and `schema` may."""
    if isinstance(was, dict) and isinstance(now, dict):
        for key in sorted({*was, *now} - {"schema"}):
            if key not in was or key not in now:
                yield f"{at}/{key}: {'gone' if key in was else 'new'}"
            else:
                yield from differences(was[key], now[key], f"{at}/{key}")
    elif isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        for index, (one, other) in enumerate(zip(was, now, strict=True)):
            yield from differences(one, other, f"{at}/{index}")
    elif isinstance(was, float) and isinstance(now, float):
        if not math.isclose(was, now, rel_tol=1e-9, abs_tol=1e-12):
            yield f"{at}: {was!r} became {now!r}"
    elif was != now:
        yield f"{at}: {was!r} became {now!r}"
