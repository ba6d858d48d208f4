"""Which inputs are rollout dumps, which are logs? Told by what is in them."""

from __future__ import annotations

import io
import shutil
import sys
import tempfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from kleash._checks import message
from kleash.audit.configs.reading import CONFIG_SUFFIXES, is_configuration
from kleash.audit.dumps.kind import DUMP_SUFFIXES, LOOKED_AT, begins_a_dump, is_dump
from kleash.audit.folder import Seen, look_into
from kleash.errors import DataError, KleashError

if TYPE_CHECKING:
    from kleash.logs.table import RunLog

__all__ = ["Inputs", "sort_inputs"]


@dataclass
class Inputs:
    """Rollout dumps by path, logs as they were read, configurations with their trainer, and all in folders."""

    dumps: list[str | Path] = field(default_factory=list)
    logs: list[RunLog] = field(default_factory=list)
    configs: list[tuple[str | Path, str | None]] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)


def sort_inputs(
    paths: Iterable[str | Path], *, trainer: str | None = None, mapping: Mapping[str, str] | None = None
) -> Inputs:
    """Every path read as what its content is.

    ``trainer``, ``mapping``: As for `kleash.logs.read_logs`.

    Returns
    -------
    Inputs
        Dumps, logs and declarations, each in the order it was given.

    Raises
    ------
    DataError
        A file or folder that is neither, or cannot be read.
    """
    found = Inputs()
    for path in paths:
        try:
            if str(path) == "-":
                _stdin(trainer, mapping, found)
            elif Path(path).is_dir():
                _folder(Path(path), trainer, mapping, found)
            elif Path(path).exists() and not Path(path).is_file():
                text = message("input", expected="a file or folder", got="a pipe or device", fix="pipe it in as -")
                raise DataError(text, path=path)
            elif str(path).lower().endswith(CONFIG_SUFFIXES) and Path(path).exists():
                found.configs.append((path, trainer))
            elif is_dump(path) or not Path(path).exists():
                found.dumps.append(path)  # what does not exist is said by the reader of dumps
            else:
                _file(path, trainer, mapping, found)
        except OSError as error:
            if isinstance(error, KleashError):
                raise
            raise DataError(f"cannot be read: {error.strerror or error}", path=path) from error
    return found


def _stdin(trainer: str | None, mapping: Mapping[str, str] | None, found: Inputs) -> None:
    """A dump on stdin is read as it comes; a log is laid down first, for it is looked at more than once."""
    stream = sys.stdin.buffer
    if isinstance(stream, io.BufferedReader):
        first = stream.peek()
    else:
        at = stream.tell()
        first = stream.read(LOOKED_AT)
        stream.seek(at)
    undecided = first.lstrip().startswith(b"{") and b"\n" not in first.strip() and b'"log_history"' not in first
    if not first.strip() or begins_a_dump(first) or undecided:
        found.dumps.append("-")
        return
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "stdin"
        with open(file, "wb") as copy:
            shutil.copyfileobj(stream, copy)
        inside = Inputs()
        try:
            _file(file, trainer, mapping, inside)
        except DataError as error:
            raise DataError(str(error).removeprefix(f"{file}").lstrip(": "), path="-") from None
        found.logs += [replace(log, path="-") for log in inside.logs]


def _folder(folder: Path, trainer: str | None, mapping: Mapping[str, str] | None, found: Inputs) -> None:
    seen = look_into(folder, trainer=trainer, mapping=mapping)
    inside = [item for item in seen if not item.why]
    if not inside:
        got = "a folder without any" if not seen else f"none in {len(seen)} file{'s' * (len(seen) != 1)}"
        text = message("folder", expected="rollout dumps or training logs", got=got, fix="name the file")
        raise DataError(text, path=folder)
    found.seen += seen
    found.dumps += [item.path for item in inside if item.kind == "rollouts"]
    found.logs += [log for item in inside for log in item.logs]
    configs = [item.path for item in inside if item.kind == "config"]
    found.configs += [(path, trainer if is_configuration(path, trainer) else None) for path in configs]


def _file(path: str | Path, trainer: str | None, mapping: Mapping[str, str] | None, found: Inputs) -> None:
    from kleash.logs import read_logs

    try:
        found.logs += read_logs(path, trainer=trainer, mapping=mapping)
    except (zlib.error, RecursionError) as error:
        raise DataError("cannot be read: a broken archive, or JSON nested too deeply", path=path) from error
    except DataError as error:
        if str(path).lower().endswith(".json") and is_configuration(Path(path), trainer):
            found.configs.append((path, trainer))
            return
        if str(path).lower().endswith(DUMP_SUFFIXES):
            found.dumps.append(path)  # its reader says which line, which column
            return
        kinds = "a rollout dump (logp and ref_logp) or a training log"
        text = str(error).removeprefix(f"{path}: ")
        raise DataError(message("input", expected=kinds, got=f"neither ({text})"), path=path) from None
