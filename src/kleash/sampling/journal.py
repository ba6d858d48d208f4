"""What was drawn and judged so far, one line each in a file that only grows: a kill loses at most what was on its way.

The first line says what the draws hang on (model, seed, length); a draw or a judge's answer is a line of its own, on
the disk before anything else is asked. Whoever goes on reads the whole lines, and a torn last line is cut off.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from kleash import _checks, _files
from kleash._lock import Lock
from kleash.errors import DataError, KleashError, OptionError

__all__ = ["Answer", "Journal"]

_SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One draw.

    Parameters
    ----------
    prompt, draw
        Key of the prompt, and which of its draws it is, from 0.
    text
        What a judge reads.
    n_tokens
        Tokens of the answer, the end token among them; None where a server does not say.
    ids
        Token ids; None where a server drew it.
    logp, ref_logp
        Log-probability of each token under who drew it, and under the reference where that is another, in nats.
    finished
        Whether it ended by itself, not at the limit.
    """

    prompt: str
    draw: int
    text: str
    n_tokens: int | None
    ids: Sequence[int] | None = None
    logp: Sequence[float] | None = None
    ref_logp: Sequence[float] | None = None
    finished: bool = True


@dataclass(kw_only=True)
class Journal:
    """Answers by (prompt, draw) and scores by (judge, prompt, draw), in memory and, where there is a path, on disk."""

    path: Path | None
    answers: dict[tuple[str, int], Answer] = field(default_factory=dict)
    scores: dict[tuple[str, str, int], float] = field(default_factory=dict)
    _file: BinaryIO | None = None
    _lock: Lock | None = None

    @classmethod
    def opened(cls, path: Path | None, *, asked: Mapping[str, Any], resume: bool) -> Journal:
        """Begin a journal, or go on with the one that is there.

        Parameters
        ----------
        path
            The file; None keeps everything in memory.
        asked
            What the draws hang on, as plain data.
        resume
            Whether a journal that is there is to be gone on with.

        Returns
        -------
        Journal
            With what it holds already.

        Raises
        ------
        OptionError
            There is one and ``resume`` is false, it was made with other settings, or another process is writing it.
        KleashError
            The system refuses.
        """
        journal = cls(path=path)
        if path is None:
            return journal
        journal._lock = Lock(path.with_name(f"{path.name}.lock"), what=f"{path}")
        journal._lock.take()
        try:
            if path.exists() and not resume:
                fix = "go on with it by --resume (resume=True), or delete it"
                raise OptionError(_checks.message(f"{path}", expected="no journal yet", got="one", fix=fix))
            journal._file = open(path, "a+b")  # noqa: SIM115  closed by close()
            journal._begin(asked)
        except OSError as error:
            journal.close()
            raise KleashError(f"{path}: cannot be written: {error.strerror or error}") from error
        except BaseException:
            journal.close()
            raise
        return journal

    def add(self, answers: Sequence[Answer]) -> None:
        """Keep answers."""
        self._write({"answer": {k: v for k, v in asdict(a).items() if v is not None}} for a in answers)
        self.answers.update({(answer.prompt, answer.draw): answer for answer in answers})

    def judged(self, judge: str, prompt: str, scores: Mapping[int, float]) -> None:
        """Keep what a judge said of draws of a prompt."""
        self._write([{"judge": judge, "prompt": prompt, "draws": list(scores), "scores": list(scores.values())}])
        self.scores.update({(judge, prompt, draw): score for draw, score in scores.items()})

    def set_aside(self) -> None:
        """Give the file another name, so that nobody goes on with what is in it."""
        if self.path is not None:
            self.path.replace(self.path.with_name(f"{self.path.name}.refused"))

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._lock is not None:
            self._lock.release()

    def _begin(self, asked: Mapping[str, Any]) -> None:
        assert self._file is not None
        whole = self._read(asked)
        self._file.truncate(whole)
        if not whole:
            self._write([{"schema": _SCHEMA, "asked": dict(asked)}])

    def _write(self, records: Iterable[Mapping[str, Any]]) -> None:
        if self._file is None:
            return
        try:
            self._file.write("".join(_files.dump_json(record) + "\n" for record in records).encode())
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise KleashError(f"{self.path}: cannot be written: {error.strerror or error}") from error

    def _read(self, asked: Mapping[str, Any]) -> int:
        """Take in what the file holds; the length of its whole lines in bytes."""
        assert self._file is not None
        self._file.seek(0)
        whole = 0
        for number, line in enumerate(self._file, start=1):
            if not line.endswith(b"\n"):
                break
            try:
                record = json.loads(line)
                if number == 1:
                    self._compare(record["asked"], asked)
                elif "answer" in record:
                    answer = Answer(**record["answer"])
                    self.answers[answer.prompt, answer.draw] = answer
                else:
                    for draw, score in zip(record["draws"], record["scores"], strict=True):
                        self.scores[record["judge"], record["prompt"], draw] = score
            except (ValueError, KeyError, TypeError) as error:
                if isinstance(error, OptionError):
                    raise
                raise DataError("is no line of a journal; delete the file", path=self.path, line=number) from error
            whole += len(line)
        return whole

    def _compare(self, before: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
        for name in asked:
            if before.get(name) != asked[name]:
                fix = "ask for the same, or write to another file"
                was, now = before.get(name), asked[name]
                raise OptionError(_checks.message(name, expected=f"{was!r} as in {self.path}", got=repr(now), fix=fix))
