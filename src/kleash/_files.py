"""Files kleash writes: whole or not at all, and JSON that every parser accepts."""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kleash._checks import message
from kleash.errors import DataError, KleashError, MissingFileError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

__all__ = [
    "dump_json",
    "finite_or_none",
    "is_unfinished",
    "make_folder",
    "must_be_file",
    "read_text",
    "sha256",
    "write_atomic",
]

_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{8}\.tmp", re.DOTALL)


def sha256(path: str | Path) -> str:
    """SHA-256 of a file's bytes in hexadecimal, read in pieces; a DataError where the system does not give them."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror or error}", path=path) from error


MOST = 1 << 26
"""Bytes that a file which is read as a whole may have: 64 MB, many times what the largest result takes."""


def read_text(
    path: Path, *, expected: str = "a file that kleash wrote", most: int = MOST, errors: str = "strict"
) -> str:
    """A text file as a whole, UTF-8; a DataError where it is larger than any such file is, or the system refuses.

    A `FileNotFoundError` and a `UnicodeDecodeError` are the caller's to put into words.
    """
    try:
        if path.exists():
            must_be_file(path, expected=expected)
        with open(path, encoding="utf-8", errors=errors) as file:
            if os.fstat(file.fileno()).st_size > most:
                got = f"more than {most >> 20} MB"
                raise DataError(message(expected, expected=f"at most {most >> 20} MB", got=got), path=path)
            return file.read()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror or error}", path=path) from error


def must_be_file(path: Path, *, expected: str = "a file", error: type[KleashError] = DataError) -> None:
    """Pass only a regular file: a folder, a pipe or a device is an ``error``, nothing at all a `MissingFileError`."""
    if path.is_file():
        return
    if path.exists():
        got, fix = ("a folder", "name a file in it") if path.is_dir() else ("a pipe or device", "write it to a file")
        raise error(message(str(path), expected=expected, got=got, fix=fix))
    names = sorted(entry.name for entry in path.parent.iterdir()) if path.parent.is_dir() else []
    close = difflib.get_close_matches(path.name, names, n=1)
    fix = f"did you mean {path.parent / close[0]}?" if close else "check the path"
    raise MissingFileError(message(str(path), expected=expected, got="nothing there", fix=fix))


def write_atomic(path: str | Path, content: str | bytes) -> None:
    """Write a file so that a reader, or a kill, sees the old content or the new and never a part.

    The content goes to a temporary file in the same folder, is flushed to the disk and renamed. A symbolic link
    stays a link; a device or a pipe (``/dev/stdout``) is written to directly. Text is UTF-8.

    Raises
    ------
    MissingFileError
        The folder does not exist.
    KleashError
        The path is a folder, or the system refuses the write.
    """
    target = Path(os.path.realpath(path))
    data = content.encode("utf-8") if isinstance(content, str) else content
    if target.is_dir():
        raise KleashError(message(str(path), expected="a file to write", got="a folder", fix="name a file in it"))
    if not target.parent.is_dir():
        raise MissingFileError(message(str(path), expected="a folder that exists", got=f"no folder {target.parent}"))
    try:
        if target.exists() and not target.is_file():
            target.write_bytes(data)
            return
        _replace(target, data)
    except OSError as error:
        raise KleashError(f"{path}: cannot be written: {error.strerror or error}") from error


def make_folder(path: Path) -> None:
    """A folder and those above it, unless it is there; a `KleashError` where the system refuses."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise KleashError(f"{path}: cannot be made: {error.strerror or error}") from error


def _replace(target: Path, data: bytes) -> None:
    temporary = target.with_name(f".{target.name[:100]}.{secrets.token_hex(4)}.tmp")
    mode = target.stat().st_mode & 0o777 if target.exists() else 0o666
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def is_unfinished(path: Path) -> bool:
    """Whether a process that was killed in the middle of :func:`write_atomic` left this file."""
    return _TEMPORARY.fullmatch(path.name) is not None


def dump_json(value: Any, *, indent: int | None = None) -> str:
    """JSON text of plain data, numpy scalars and arrays, with full precision and without NaN or infinity.

    A number that does not exist is the caller's to turn into null (`finite_or_none`): here it is an error.

    Raises
    ------
    KleashError
        A NaN, an infinity, a key that is not text, or an object JSON does not know; the message names where it is.

    Examples
    --------
    >>> dump_json({"beta": np.float64(0.1), "kl": np.array([1.5, 2.0]), "seed": np.int64(3)})
    '{"beta": 0.1, "kl": [1.5, 2.0], "seed": 3}'
    """
    return json.dumps(_plain(value, ""), allow_nan=False, indent=indent)


def _plain(value: Any, where: str) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        if value - value != 0.0:
            raise KleashError(message(where or "value", expected="a finite number or null", got=f"{value}"))
        return value
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise KleashError(message(where or "value", expected="text keys", got=repr(key)))
        return {str(key): _plain(item, f"{where}.{key}" if where else key) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, f"{where}[{index}]") for index, item in enumerate(value)]
    raise KleashError(message(where or "value", expected="JSON data", got=type(value).__name__))


def finite_or_none(values: ArrayLike) -> list[float | None]:
    """A flat list of floats in which NaN and infinities are None, for the caller who means "does not exist".

    Examples
    --------
    >>> finite_or_none([1.0, float("nan"), float("inf")])
    [1.0, None, None]
    """
    return [x if x - x == 0.0 else None for x in np.asarray(values, dtype=np.float64).ravel().tolist()]
