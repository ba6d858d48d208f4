"""One writer at a time: a lock file that says who holds it and goes with the process, however that ends.

The lock is the operating system's (``flock``; on Windows a locked byte), so a kill leaves none behind: what a dead
process has left is a file without a lock, which the next one takes over. The file holds the owner's process id, host
and times, for the message to whoever is refused. Where a file system knows no locks, the file alone decides: it is
stale if its process, on this host, is gone. It is removed when the lock is let go.

A library would do (filelock): nine thousand lines for these, and its locks do not say whose they are.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import sys
import threading
import time
import weakref
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kleash import _files
from kleash._checks import message, short
from kleash.errors import KleashError, OptionError

__all__ = ["Lock"]

_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP}
_HELD: weakref.WeakValueDictionary[str, Lock] = weakref.WeakValueDictionary()
_SETTLED = 0.2  # seconds after which two that wrote their names at once both read the later one, where nothing locks


class Lock:
    """A lock on what stands beside the file ``path``, taken and let go by hand; ``held`` says whether it is.

    A lock that is forgotten is let go. Within one thread a second lock on the same path takes it from the first: of
    the two, only what runs now can be writing. Another thread, or another process, is refused.
    """

    def __init__(self, path: Path, *, what: str) -> None:
        self.path, self.what = path, what
        self.held = False
        self._handle = -1
        self._thread = threading.current_thread()

    def take(self) -> None:
        """Hold it from now on; an `OptionError` that names the owner where somebody else does, and nothing changed.

        A KleashError where the system refuses the file itself.
        """
        if self.held:
            return
        name = os.path.realpath(self.path)
        mine = _HELD.get(name)
        if mine is not None and (mine._thread is threading.current_thread() or not mine._thread.is_alive()):
            mine.release()
        try:
            self._open()
        except OSError as error:
            raise KleashError(f"{self.path}: cannot be written: {error.strerror or error}") from error
        self.held, self._thread = True, threading.current_thread()
        _HELD[name] = self

    def release(self) -> None:
        """Let it go, and remove the file; nothing where it is not held."""
        if not self.held:
            return
        self.held = False
        with contextlib.suppress(OSError):
            self.path.unlink()  # before the lock goes: whoever gets this file's lock sees that it has no name
        self._close()
        if sys.platform == "win32":
            with contextlib.suppress(OSError):
                self.path.unlink()  # there no open file can be removed

    def __del__(self) -> None:
        self.release()

    def _open(self) -> None:
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
        while True:
            self._handle = os.open(self.path, flags, 0o666)
            try:
                locked = _locked(self._handle)
                before = _owner(self._handle)
                if locked is False or (locked is None and _alive(before)):
                    raise self._refused(before)
                if _named(self._handle, self.path):
                    self._sign(settle=locked is None)
                    return
            except BaseException:
                self._close()
                raise
            self._close()  # whoever had it has let it go since the file was opened: begin again

    def _sign(self, *, settle: bool) -> None:
        """Write who holds it; with ``settle``, refuse if somebody else has done so in the same moment."""
        signed = {
            **_myself(),
            "since": datetime.now(UTC).isoformat(timespec="seconds"),
            "thread": threading.get_ident(),
        }
        text = (_files.dump_json(signed) + "\n").encode()
        os.truncate(self._handle, 0)
        os.lseek(self._handle, 0, os.SEEK_SET)
        os.write(self._handle, text)
        if settle:
            time.sleep(_SETTLED)
            now = _owner(self._handle)
            if now != signed:
                raise self._refused(now)

    def _refused(self, owner: Mapping[str, Any]) -> OptionError:
        got = "another process"
        if "pid" in owner:
            got = f"process {short(owner['pid'])} on {short(owner.get('host'))}, since {short(owner.get('since'))}"
        fix = "wait for it or end it"
        if owner.get("host") not in (None, socket.gethostname()):
            fix += f", or if it is gone delete {self.path.name}"
        return OptionError(message(self.what, expected="nobody else writing it", got=got, fix=fix))

    def _close(self) -> None:
        if self._handle >= 0:
            with contextlib.suppress(OSError):
                os.close(self._handle)
            self._handle = -1


def _locked(handle: int) -> bool | None:
    """Take the system's lock of an open file: whether it was to be had, None where there are none."""
    try:
        if sys.platform == "win32":
            import msvcrt

            os.lseek(handle, 1 << 30, os.SEEK_SET)  # past the text, which must stay readable
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return None
        if error.errno in (errno.EACCES, errno.EAGAIN, errno.EDEADLK):
            return False
        raise
    return True


def _named(handle: int, path: Path) -> bool:
    """Whether an open file is still the one that the path names."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False


def _owner(handle: int) -> Mapping[str, Any]:
    """What the file says of its owner; nothing where it is empty, torn or foreign."""
    os.lseek(handle, 0, os.SEEK_SET)
    try:
        found = json.loads(os.read(handle, 4096))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _myself() -> dict[str, Any]:
    pid = os.getpid()
    return {"pid": pid, "host": socket.gethostname(), "started": _started(pid)}


def _started(pid: int) -> str | None:
    """When a process began, in ticks since which boot: tells it from another of its number; None where unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path(f'/proc/{pid}/stat').read_text(encoding='utf-8').rpartition(')')[2].split()[19]}"
    except (OSError, ValueError, IndexError):
        return None


def _alive(owner: Mapping[str, Any]) -> bool:
    """Whether an owner may still be there: on another host nobody can tell, so yes."""
    pid = owner.get("pid")
    if not isinstance(pid, int) or isinstance(pid, bool) or pid <= 0:
        return False
    if owner.get("host") != socket.gethostname() or sys.platform == "win32":
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return owner.get("started") in (None, _started(pid))


def _forked() -> None:
    """A child has its parent's open files: a lock must not live on in it after the parent's end."""
    for lock in list(_HELD.values()):
        lock.held = False
        lock._close()
    _HELD.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
