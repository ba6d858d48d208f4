"""Run folders: what a run was asked, how it went and what came out, as files that survive a kill.

A folder holds ``run.json`` (schema, kind, status, configuration, seed, versions, inputs, results),
``metrics.jsonl`` (a row per recorded step, beta and seed), ``frontier.parquet`` (the table with its replicates)
and, where the exact optimum is known, ``optimum.json`` (the same table for it). ``run.json`` is written first as
``running`` and last as ``finished``, every file atomically: a folder that says ``finished`` is whole.

A long run also appends to ``metrics.jsonl`` as it goes and keeps ``checkpoint.safetensors``. A checkpoint knows how
long ``metrics.jsonl`` was when it was made; whoever goes on from it cuts the file back to that length, so that a kill
at any moment leaves no row twice and none torn.

Who writes to a folder holds ``run.lock`` in it (:mod:`kleash._lock`) until the run is finished or given up: a second
writer is refused with the first one's process and host. Reading needs no lock and changes nothing.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from kleash import _files
from kleash._checks import message
from kleash._lock import Lock
from kleash._version import version
from kleash.envelope import SCHEMA, check_schema
from kleash.errors import ConfigError, DataError, KleashError, MissingFileError, OptionError
from kleash.frontier import Frontier

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Checkpoint", "Run", "json_lines", "open_run", "read_run", "written_alone"]

_RECORD, _METRICS, _FRONTIER, _OPTIMUM = "run.json", "metrics.jsonl", "frontier.parquet", "optimum.json"
_CHECKPOINT, _LOCK = "checkpoint.safetensors", "run.lock"


@dataclass(frozen=True, kw_only=True, eq=False)
class Checkpoint:
    """Where a long run stands: the steps done, and the arrays that it goes on from."""

    step: int
    arrays: Mapping[str, NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run folder that was looked at; nothing is written before :meth:`begin`, but the lock of one to go on with.

    ``state`` is ``new``, ``interrupted`` (begun and not finished) or ``finished``; ``record`` is the content of
    run.json, ``config`` what this run is asked to do, ``versions`` those of further libraries, for the record.
    """

    path: Path
    kind: str
    config: Mapping[str, Any]
    state: Literal["new", "interrupted", "finished"]
    record: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    lock: Lock = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "lock", Lock(self.path / _LOCK, what=f"{self.path}"))

    def begin(self, *, seed: int, inputs: Iterable[Mapping[str, Any]] = ()) -> None:
        """Make the folder, hold its lock and mark it as running; an `OptionError` if another has it."""
        _files.make_folder(self.path)
        self.lock.take()
        if self.state == "new" and (self.path / _RECORD).exists():
            self.lock.release()
            raise _a_run_there(self.path)
        self._clear()
        self._write_record("running", seed, inputs, {})

    def _clear(self) -> None:
        """Remove what a process that was killed while it wrote has left."""
        for file in filter(_files.is_unfinished, list(self.path.rglob(".*.tmp"))):
            file.unlink(missing_ok=True)

    def finish(
        self,
        *,
        seed: int,
        inputs: Iterable[Mapping[str, Any]] = (),
        results: Mapping[str, Any],
        metrics: Iterable[Mapping[str, Any]] | None,
        frontier: Frontier,
        optimum: Frontier | None = None,
    ) -> None:
        """Write everything, and last the record that says so; ``metrics`` None: they were appended as the run went."""
        if metrics is not None:
            _files.write_atomic(self.path / _METRICS, json_lines(metrics))
        frontier.save(self.path / _FRONTIER)
        if optimum is not None:
            optimum.save(self.path / _OPTIMUM)
        self._write_record("finished", seed, inputs, results)
        self.lock.release()

    def give_up(self, *, seed: int, results: Mapping[str, Any]) -> None:
        """Write down what there is of a run that came to no table; it stays unfinished."""
        self._write_record("unfinished", seed, (), results)
        self.lock.release()

    def metrics(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl."""
        path = self.path / _METRICS
        rows = []
        for number, line in enumerate(_read(path).splitlines(), start=1):
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise DataError(f"is not a line of metrics ({error})", path=path, line=number) from error
            if not isinstance(row, dict):
                raise DataError("is not a line of metrics, which are JSON objects", path=path, line=number)
            rows.append(row)
        return rows

    def append_metrics(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add rows to metrics.jsonl; only a checkpoint makes them last."""
        self._append(json_lines(rows))

    def _append(self, text: str, *, last: bool = False) -> int:
        """Add to metrics.jsonl, with ``last`` so that a kill leaves it; the file's size, or a `KleashError`."""
        path = self.path / _METRICS
        try:
            with open(path, "ab") as file:
                file.write(text.encode())
                if last:
                    os.fsync(file.fileno())
                return file.seek(0, os.SEEK_END)
        except OSError as error:
            raise KleashError(f"{path}: cannot be written: {error.strerror or error}") from error

    def save_checkpoint(self, *, step: int, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Make the rows so far last, then replace the checkpoint in one move.

        Where the system refuses the write, with a KleashError, the checkpoint before it is still whole.
        """
        from safetensors.numpy import save

        size = self._append("", last=True)
        told = _files.dump_json({"step": step, "metrics_bytes": size})  # one entry: several come in no fixed order
        _files.write_atomic(self.path / _CHECKPOINT, save(dict(arrays), metadata={"kleash": told}))

    def load_checkpoint(self) -> Checkpoint | None:
        """The checkpoint; None where there is none yet.

        Whoever holds the lock finds metrics.jsonl cut back to where it was then, and none where there is no checkpoint.
        A DataError where it cannot be read, or metrics.jsonl is shorter than it was.
        """
        from safetensors import SafetensorError, safe_open

        metrics, path = self.path / _METRICS, self.path / _CHECKPOINT
        if not path.exists():
            if self.lock.held:
                metrics.unlink(missing_ok=True)
            return None
        _files.must_be_file(path, expected="a checkpoint")
        try:
            with safe_open(path, framework="numpy") as file:
                told = json.loads(file.metadata()["kleash"])
                step, size = int(told["step"]), int(told["metrics_bytes"])
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a mapping
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            raise DataError("is not a checkpoint written by kleash", path=path) from error
        there = metrics.stat().st_size if metrics.exists() else 0
        if there < size:
            told_sizes = message("size", expected=f"at least {size} bytes as the checkpoint says", got=there)
            raise DataError(told_sizes, path=metrics)
        if self.lock.held:
            os.truncate(metrics, size)
        return Checkpoint(step=step, arrays=arrays)

    def frontier(self) -> Frontier:
        """The table, with its replicates."""
        return Frontier.load(self.path / _FRONTIER)

    def optimum(self) -> Frontier | None:
        """The exact optimum's table, if one was saved."""
        return Frontier.load(self.path / _OPTIMUM) if (self.path / _OPTIMUM).exists() else None

    def _write_record(
        self, status: str, seed: int, inputs: Iterable[Mapping[str, Any]], results: Mapping[str, Any]
    ) -> None:
        record = {
            "schema": SCHEMA,
            "kind": self.kind,
            "status": status,
            "config": dict(self.config),
            "seed": seed,
            "inputs": [dict(row) for row in inputs],
            "versions": {"kleash": version(), "python": platform.python_version(), "numpy": np.__version__}
            | dict(self.versions),
            "results": dict(results),
        }
        _files.write_atomic(self.path / _RECORD, _files.dump_json(record, indent=2) + "\n")


def open_run(
    path: str | Path,
    *,
    kind: str,
    config: Mapping[str, Any],
    resume: bool = False,
    versions: Mapping[str, str] | None = None,
) -> Run:
    """Look at the folder a run is to be written to, and refuse one that it may not touch; writes nothing but a lock.

    It does not exist, is empty, or (with ``resume``) holds a run of the same ``kind`` and of an equal ``config``, plain
    data that settles the result. ``versions`` are those of libraries beyond Python and numpy, for the record. Raises
    `OptionError`: The folder holds something else, a run that is being written, or a run and ``resume`` was not asked
    for. `ConfigError`: The run there has another configuration; the message names the first difference.

    A run to go on with is locked from here on (`written_alone` lets go), a new one from :meth:`Run.begin` on.
    """
    path = Path(path)
    wanted = json.loads(_files.dump_json(dict(config)))
    if path.exists() and not path.is_dir():
        raise OptionError(message(f"{path}", expected="a folder for the run", got="a file"))
    if not path.exists() or all(file.name == _LOCK or _files.is_unfinished(file) for file in path.iterdir()):
        return Run(path=path, kind=kind, config=wanted, state="new", versions=versions or {})
    if not (path / _RECORD).exists():
        fix = "name another folder"
        raise OptionError(message(f"{path}", expected="a new or empty folder, or a run", got="other files", fix=fix))
    if not resume:
        raise _a_run_there(path)
    run = replace(read_run(path), versions=versions or {})
    if run.kind != kind:
        raise ConfigError(message(f"{path}", expected=f"a {kind}", got=f"a {run.kind}", fix="name another --out"))
    if run.config != wanted:
        name = next(key for key in [*wanted, *run.config] if wanted.get(key) != run.config.get(key))
        there, here = (f"{name} {_files.dump_json(c.get(name))}" for c in (run.config, wanted))
        fix = "name another --out, or ask for the same"
        raise ConfigError(message(f"{path}", expected=f"{there} as in its run.json", got=here, fix=fix))
    if run.state == "finished":
        if run.lock.path.exists():  # a kill between the last record and the lock's end
            with suppress(KleashError), written_alone(run):
                run.lock.take()
        return run
    run.lock.take()
    try:
        if read_run(path).state == "finished":  # by another, between the first look and the lock
            run.lock.release()
            return open_run(path, kind=kind, config=config, resume=True, versions=versions)
        run._clear()
    except BaseException:
        run.lock.release()
        raise
    return run


@contextmanager
def written_alone(run: Run | None, *, further: bool = False) -> Iterator[None]:
    """Let go of a run's lock at the end of the block, with ``further`` only if it fails; nothing to do for None."""
    try:
        yield
    except BaseException:
        further = False
        raise
    finally:
        if run is not None and not further:
            run.lock.release()


def _a_run_there(path: Path) -> OptionError:
    fix = "--resume goes on with it, another --out starts afresh"
    return OptionError(message(f"{path}", expected="a new or empty folder", got="a run", fix=fix))


def read_run(path: str | Path) -> Run:
    """A run folder as it is; a DataError where run.json is not one that kleash wrote, or of a newer schema."""
    path = Path(path)
    text = _read(path / _RECORD)
    try:
        record = json.loads(text)
        check_schema(record["schema"])
        state: Literal["interrupted", "finished"] = "finished" if record["status"] == "finished" else "interrupted"
        return Run(path=path, kind=record["kind"], config=record["config"], state=state, record=record)
    except DataError as error:
        raise DataError(str(error), path=path / _RECORD) from error
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise DataError("is not a record of a run written by kleash", path=path / _RECORD) from error


def json_lines(rows: Iterable[Mapping[str, Any]]) -> str:
    """JSON, one row a line."""
    return "".join(_files.dump_json(row) + "\n" for row in rows)


def _read(path: Path) -> str:
    try:
        return _files.read_text(path, expected="a file of a run", most=4 * _files.MOST)
    except FileNotFoundError:
        raise MissingFileError(message(f"{path}", expected="a file of a run", got="nothing there")) from None
