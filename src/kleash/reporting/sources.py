"""What can be shown: run folders, frontier files and the JSON of the commands, read into one form."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kleash import _files
from kleash._checks import message
from kleash.errors import DataError, KleashError, OptionError
from kleash.frontier import Frontier
from kleash.reporting.facts import given
from kleash.reporting.readers import KINDS, ReportSource, from_content, from_frontier, from_run
from kleash.runs import read_run
from kleash.samples import DIAL
from kleash.train.result import SweepResult

if TYPE_CHECKING:
    from kleash.audit import CheckReport
    from kleash.forecasting.result import Forecast

__all__ = ["ReportSource", "given", "read_sources", "source_of", "sources_of"]


def read_sources(paths: Iterable[str | Path]) -> tuple[ReportSource, ...]:
    """Read every path; names come from the paths, as short as keeps them apart.

    The folder of a watched run gives two: its trained table, and the forecast from its answers.

    Raises `OptionError`: No path, or something that kleash cannot show. `MissingFileError`, `DataError`: A path is not
    there, or not whole; the message names it.
    """
    listed = [Path(path) for path in paths]
    if not listed:
        raise OptionError(message("sources", expected=KINDS, got="nothing"))
    return tuple(source for path, name in zip(listed, _names(listed), strict=True) for source in _read(path, name))


def source_of(
    result: Frontier | Forecast | SweepResult | CheckReport | ReportSource, *, name: str | None = None
) -> ReportSource:
    """A source from a result in memory.

    ``result``: A Frontier, or what ``kleash.forecast``, ``kleash.sweep`` or ``kleash.check`` returned. ``name``: What
    to call it; default: what it is.

    Examples
    --------
    >>> from kleash.frontier import exact_frontier
    >>> from kleash.worlds import two_arm
    >>> source_of(exact_frontier(two_arm(0.2), [1.0])).name
    'exact'
    """
    if isinstance(result, ReportSource):
        return result if name is None else dataclasses.replace(result, name=name)
    if isinstance(result, Frontier):
        return from_frontier(result, name=name or result.source)
    content = result.to_dict()
    source = from_content(content, name=name or str(content.get("world") or content["source"]))
    training = tuple(result.training()) if isinstance(result, SweepResult) else ()
    return dataclasses.replace(source, frontier=result.frontier, metrics=training)


def sources_of(what: Any) -> tuple[ReportSource, ...]:
    """Sources of results in memory and of paths, one or several, in their order, each with a name of its own."""
    several = list(what) if isinstance(what, list | tuple) else [what]
    paths = [Path(item) for item in several if isinstance(item, str | Path)]
    names = iter(_names(paths))
    sources: list[ReportSource] = []
    for item in several:
        sources += _read(Path(item), next(names)) if isinstance(item, str | Path) else [source_of(item)]
    seen = _numbered([source.name for source in sources])
    return tuple(source_of(source, name=name) for source, name in zip(sources, seen, strict=True))


def _names(paths: Sequence[Path]) -> list[str]:
    """As many of the last parts of a path as tell it apart; a number where the same path comes twice."""
    parts = [("stdin",) if str(path) == "-" else Path(os.path.realpath(path)).parts for path in paths]
    depth = 1
    while len(set(names := ["/".join(p[-depth:]) for p in parts])) < len(set(parts)) and depth < 99:
        depth += 1
    return _numbered(names)


def _numbered(names: Sequence[str]) -> list[str]:
    seen: Counter[str] = Counter()
    out = []
    for name in names:
        seen[name] += 1
        out.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return out


def _read(path: Path, name: str) -> list[ReportSource]:
    if str(path) == "-":
        return [_from_text(_from_stdin(), path=path, name=name)]
    if not path.is_dir():
        return [_of_file(path, name)]
    dial = [_of_file(path / DIAL, f"{name}, forecast")] if (path / DIAL).exists() else []
    return [from_run(read_run(path), name=name), *dial]


def _from_stdin() -> str:
    data = sys.stdin.buffer.read(_files.MOST + 1)
    if len(data) > _files.MOST:
        raise DataError(f"is larger than {_files.MOST >> 20} MB; expected {KINDS}", path="stdin")
    try:
        return data.decode("utf-8")
    except ValueError as error:
        raise DataError(f"is no text; expected {KINDS}", path="stdin") from error


def _of_file(path: Path, name: str) -> ReportSource:
    _files.must_be_file(path, expected=KINDS)
    digest = _files.sha256(path)
    if path.suffix == ".parquet":
        source = from_frontier(Frontier.load(path), name=name)
        return dataclasses.replace(source, path=str(path), sha256=digest)
    try:
        text = _files.read_text(path, expected="a result")
    except UnicodeDecodeError as error:
        raise DataError(f"is no text; expected {KINDS}", path=path) from error
    return dataclasses.replace(_from_text(text, path=path, name=name), sha256=digest)


def _from_text(text: str, *, path: Path, name: str) -> ReportSource:
    """The JSON of a command or of a frontier."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        fix = "a training log: kleash check LOG --format json --out check.json first"
        raise DataError(f"is no JSON; expected {KINDS}; {fix}", path=path) from error
    try:
        return dataclasses.replace(from_content(content, name=name), path=str(path))
    except KleashError as error:
        raise DataError(str(error), path=path) from error
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        raise DataError(
            "is not whole: it looks like kleash's, and parts are missing or of another type", path=path
        ) from error
