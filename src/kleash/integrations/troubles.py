"""What went wrong while a run was watched: kept, told once, and no end of the training unless that was asked for."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Troubles", "told"]

_LOG = logging.getLogger("kleash")  # no warning of Python's, which python -W error turns into an exception
_LONGEST = 300  # characters of an error that are kept


def told(error: BaseException) -> str:
    r"""An error in one line.

    Examples
    --------
    >>> told(ValueError("no\nsuch dish"))
    'ValueError: no such dish'
    """
    try:
        text = " ".join(str(error).split())
    except Exception:  # noqa: BLE001  an error of somebody else's that cannot even be printed
        text = ""
    return f"{type(error).__name__}: {text}"[:_LONGEST].removesuffix(": ")


@dataclass(kw_only=True, eq=False)
class Troubles:
    """The faults of a run's measurements, ``rows`` of step, what was being done, and the error.

    ``strict``: Every fault is raised instead.
    """

    strict: bool = False
    rows: list[dict[str, Any]] = field(default_factory=list)
    _warned: set[str] = field(default_factory=set)

    def note(self, doing: str, error: str, *, step: int) -> None:
        """Keep a fault; the first of its sort is also told, to Python's logger ``kleash``."""
        self.rows.append({"step": step, "doing": doing, "error": error})
        if doing not in self._warned:
            self._warned.add(doing)
            _LOG.warning(
                "kleash: %s failed at step %d (%s); training goes on without, and further ones are only counted: "
                "troubles.jsonl in the run folder",
                doing,
                step,
                error,
            )

    @contextlib.contextmanager
    def kept(self, doing: str, *, step: int, but: tuple[type[Exception], ...] = ()) -> Iterator[None]:
        """Keep what goes wrong in the block and go on after it; raise what is ``but``, and with ``strict`` anything."""
        try:
            yield
        except Exception as error:
            if self.strict or isinstance(error, but):
                raise
            self.note(doing, told(error), step=step)

    def notes(self) -> list[str]:
        """A sentence for the run's notes; none where nothing went wrong."""
        if not self.rows:
            return []
        first = self.rows[0]
        more = f", and {len(self.rows) - 1} more in troubles.jsonl" if len(self.rows) > 1 else ""
        return [f"{first['doing']} failed at step {first['step']} ({first['error']}){more}"]
