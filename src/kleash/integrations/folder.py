"""The folder of a watched run: opened before the first step, written at every measurement, whatever goes wrong."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kleash import _files
from kleash._checks import message
from kleash.errors import ConfigError, DataError, MissingFileError, OptionError
from kleash.integrations.kept import Kept
from kleash.integrations.troubles import Troubles
from kleash.runs import Run, json_lines, open_run, read_run, written_alone

if TYPE_CHECKING:
    from kleash.frontier import Frontier

__all__ = ["Watched"]

_METRICS, _PROMPTS, _TROUBLES = "metrics.jsonl", "prompts.jsonl", "troubles.jsonl"
_SAME_REFERENCE = 0.05  # nats by which a reference asked again may differ: bf16 and other machines stay below
_USE = (OptionError, ConfigError, DataError, MissingFileError)  # wrong use, said before the first step
Rows = list[dict[str, Any]]


@dataclass(kw_only=True, eq=False)
class Watched:
    """The run folder ``path`` with its answers (``kept``) and ``troubles``; what cannot be written waits in memory."""

    path: Path
    kept: Kept
    troubles: Troubles
    seed: int
    versions: Mapping[str, str]
    _run: Run | None = field(default=None)

    def open(
        self, settings: Mapping[str, Any], *, fingerprint: Callable[[], list[float]], resumed: bool, step: int
    ) -> tuple[Rows, Rows]:
        """Begin the run, or go on with it from ``step``.

        Parameters
        ----------
        settings
            What settles the result, plain.
        fingerprint
            What the reference is known again by.
        resumed
            Whether the training goes on from a checkpoint.
        step
            Of the checkpoint.

        Returns
        -------
        The measurements so far and the same by prompt.

        Raises
        ------
        OptionError, ConfigError, DataError
            A folder that must not be written to, another reference, settings or run. A full disk is a trouble.
        """
        if self._run is not None:
            self._run.lock.release()
        there = (self.path / "run.json").exists()
        if there and not resumed:
            fix = "name another output_dir or run_dir, or resume_from_checkpoint"
            raise OptionError(message(f"{self.path}", expected="a new folder", got="a run", fix=fix))
        if resumed and not there:
            fix = "begin the run with the callback: the reference's own scores are its first row"
            raise DataError(message("run", expected="its measurements so far", got="none", fix=fix), path=self.path)
        config = dict(settings) | {"reference": self._reference(fingerprint(), there=there)}
        self._run = open_run(self.path, kind="trl", config=config, resume=there, versions=self.versions)
        metrics: Rows = []
        prompts: Rows = []
        if resumed:
            with self.troubles.kept("writing the run folder", step=step, but=_USE):
                self._run.lock.take()
            metrics, prompts = (self._read(name, step) for name in (_METRICS, _PROMPTS))
            before = self._read(_TROUBLES, step)
            self.troubles.rows[:] = before + [row for row in self.troubles.rows if row not in before]
        with self.troubles.kept("writing the run folder", step=step, but=_USE):
            self.kept.cut_back(step=step)
            self._run.begin(seed=self.seed)
        return metrics, prompts

    def write(self, step: int, metrics: Rows, prompts: Rows) -> None:
        """All measurements so far."""
        with self.troubles.kept("writing the run folder", step=step):
            self._write(metrics, prompts)

    def _write(self, metrics: Rows, prompts: Rows) -> None:
        self._begun()
        for name, rows in ((_METRICS, metrics), (_PROMPTS, prompts), (_TROUBLES, self.troubles.rows)):
            if rows or name != _TROUBLES:
                _files.write_atomic(self.path / name, json_lines(rows))

    def keep(self, step: int, found: Mapping[str, Sequence[Any]]) -> None:
        """The answers of a measurement."""
        with self.troubles.kept("keeping the answers", step=step):
            self.kept.add(step, found)
            self._begun()
            self.kept.flush()

    def finish(
        self,
        results: Callable[[], Mapping[str, Any]],
        metrics: Rows,
        prompts: Rows,
        frontier: Callable[[], Frontier],
        *,
        dump: bool,
    ) -> None:
        """Mark the run as finished; where there is no table it stays unfinished, with its results."""
        assert self._run is not None
        with written_alone(self._run):
            self._write(metrics, prompts)
            self.kept.flush()
            lacking = self.kept.forecast(seed=self.seed) if dump else None
            said = dict(results())
            said["notes"] = [*said["notes"], *([] if lacking is None else [lacking])]
            try:
                table = frontier()
            except Exception:
                self._run.give_up(seed=self.seed, results=said)
                raise
            self._run.finish(seed=self.seed, results=said, metrics=metrics, frontier=table)

    def _begun(self) -> None:
        """Begin what a full disk did not let begin."""
        if self._run is not None and not (self._run.lock.held and (self.path / "run.json").exists()):
            self._run.begin(seed=self.seed)

    def _reference(self, found: Sequence[float], *, there: bool) -> list[float]:
        """The fingerprint that the run began with; it must be that of the reference."""
        here = [round(x, 3) for x in found]
        before = read_run(self.path).config.get("reference", here) if there else here
        if np.shape(before) != np.shape(here) or np.abs(np.subtract(before, here)).max() > _SAME_REFERENCE:
            fix = "make the trainer with the model the run began with, not with a checkpoint"
            raise ConfigError(message("reference", expected="the one the run began with", got="another", fix=fix))
        return list(before)

    def _read(self, name: str, step: int) -> Rows:
        """The rows of a file up to a step; none where there is no file."""
        path = self.path / name
        rows: Rows = []
        if not path.exists():
            return rows
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            try:
                row = json.loads(line)
                if row["step"] <= step:
                    rows.append(row)
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise DataError("is no measurement that kleash wrote", path=path, line=number) from error
        return rows
