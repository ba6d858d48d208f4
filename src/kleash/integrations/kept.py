"""The answers of a watched run's measurements, kept so that ``kleash check`` and ``kleash forecast`` can read them."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kleash.errors import KleashError
from kleash.forecasting.forecast import forecast
from kleash.runs import json_lines
from kleash.samples import DIAL, ROLLOUTS, SCORED, read_samples
from kleash.samples import REFERENCE as _REFERENCE

if TYPE_CHECKING:
    from pathlib import Path

    from kleash.integrations.measure import Answer

__all__ = ["Kept"]


@dataclass(kw_only=True)
class Kept:
    """Answers with both log-probabilities per token, a line each, and what later policies make of the first ones.

    ``first`` holds the token ids of step 0's answers, (prompts, answers): the reference drew them, and each later
    policy is asked for its log-probability of them. ``decode`` turns token ids into text.
    """

    folder: Path
    decode: Any
    first: list[list[list[int]]] = field(default_factory=list)
    _waiting: dict[str, str] = field(default_factory=dict)

    def add(self, step: int, found: Mapping[str, Sequence[Any]]) -> None:
        """Have the answers of a measurement wait for :meth:`flush`.

        ``found`` holds per prompt ``answers``, ``rewards``, ``golds``, and ``first`` if asked.
        """
        source = _name(step, found["answers"])
        rows = [
            {
                "step": step,
                "prompt_id": i,
                "source": source,
                "answer": self.decode(answer.ids),
                "ids": answer.ids,
                "logp": answer.logp.tolist(),
                "ref_logp": answer.ref_logp.tolist(),
                "reward": found["rewards"][i][k],
                "gold": found["golds"][i][k],
            }
            for i, answers in enumerate(found["answers"])
            for k, answer in enumerate(answers)
        ]
        self._wait(ROLLOUTS, [{key: value for key, value in row.items() if value is not None} for row in rows])
        if self.first and step:
            ratios = [ratio for row in found["first"] for ratio in row]
            self._wait(SCORED, [{"step": step, "source": source, "log_ratio": ratios}])

    def flush(self) -> None:
        """Write the lines that wait, those too that a full disk kept waiting; an `OSError` leaves them waiting."""
        for name in list(self._waiting):
            self._append(name)
            del self._waiting[name]

    def _wait(self, name: str, rows: list[dict[str, Any]]) -> None:
        self._waiting[name] = self._waiting.get(name, "") + json_lines(rows)

    def _append(self, name: str) -> None:
        """Add the lines whole or not at all."""
        path = self.folder / name
        rest = memoryview(self._waiting[name].encode())
        with open(path, "ab", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            try:
                while rest:
                    rest = rest[file.write(rest) :]
            except BaseException:
                with contextlib.suppress(OSError):
                    os.truncate(path, size)
                raise

    def cut_back(self, *, step: int) -> None:
        """Cut the files back to steps up to ``step``: the rest is drawn again after a resume. Read the first answers.

        A last line that a kill has torn goes with them.
        """
        self._waiting.clear()
        for name in (ROLLOUTS, SCORED):
            if (self.folder / name).exists():
                _cut_back(self.folder / name, step=step)
        self.first = self._read_first() if (self.folder / ROLLOUTS).exists() else []

    def _read_first(self) -> list[list[list[int]]]:
        """Token ids of step 0's answers, by prompt; none in a folder of an older kleash, which kept no ids."""
        found: dict[int, list[list[int]]] = {}
        with open(self.folder / ROLLOUTS, encoding="utf-8") as file:
            for row in map(json.loads, file):
                if row["step"] > 0 or "ids" not in row:
                    break
                found.setdefault(row["prompt_id"], []).append(row["ids"])
        return [found[i] for i in sorted(found)]

    def forecast(self, *, seed: int) -> str | None:
        """Write the dial that the answers give, as ``kleash forecast`` on the folder prints it; why not, or None."""
        try:
            forecast(read_samples(self.folder), seed=seed).save(self.folder / DIAL)
        except KleashError as error:
            return f"no forecast from the answers: {error}"
        return None


def _name(step: int, answers: Sequence[Sequence[Answer]]) -> str:
    """Who drew a measurement's answers: the reference, where both log-probabilities are the same numbers."""
    moved = step > 0 or any((answer.logp != answer.ref_logp).any() for row in answers for answer in row)
    return f"step {step}" if moved else _REFERENCE


def _cut_back(path: Path, *, step: int) -> None:
    with open(path, "rb+") as file:
        while line := file.readline():
            try:
                later = json.loads(line)["step"] > step
            except ValueError:
                later = True
            if later:
                file.seek(-len(line), os.SEEK_CUR)
                file.truncate()
                return
