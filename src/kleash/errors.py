"""Every error kleash raises on purpose, each with one line that says what to do.

The order of a message is fixed: the thing, what was expected, what came, how to fix it. Each leaf also
inherits the builtin that a caller would expect, so ``except ValueError`` keeps working.
"""

from __future__ import annotations

from pathlib import Path

__all__ = [
    "ConfigError",
    "DataError",
    "DependencyError",
    "KleashError",
    "MissingColumnError",
    "MissingFileError",
    "OptionError",
    "ShapeError",
]


class KleashError(Exception):
    """Base of all errors kleash raises on purpose; the command line prints it as one line and exits with 2."""


class OptionError(KleashError, ValueError):
    """A value passed to a function or a flag is outside what that option allows."""


class ShapeError(KleashError, ValueError):
    """Arrays that belong together do not fit together."""


class ConfigError(KleashError, ValueError):
    """A configuration has an unknown key, a wrong type, or settings that contradict each other."""


class DataError(KleashError, ValueError):
    """Input data cannot be used.

    Parameters
    ----------
    message
        What is wrong and how to mend it.
    path, line
        Where: the file and its 1-based line, put in front of the message when known.
    """

    def __init__(self, message: str, *, path: str | Path | None = None, line: int | None = None) -> None:
        where = "" if path is None else f"{path}:{line}: " if line is not None else f"{path}: "
        super().__init__(where + message)
        self.path = None if path is None else str(path)
        self.line = line


class MissingColumnError(DataError):
    """A column that is needed is not in the file; the message names the columns that are."""


class MissingFileError(KleashError, FileNotFoundError):
    """A file or folder that was named does not exist."""


class DependencyError(KleashError, ImportError):
    """A package outside the light core is needed; the message names the extra that brings it."""
