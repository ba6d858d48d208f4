"""A signal that ends a command unwinds it, as Ctrl-C does: what was done is kept, locks and temporary files go."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType

__all__ = ["Ended", "unwinding"]

_TWICE = 2.0  # seconds within which the same signal again is the same wish: `timeout` sends it twice
_DEFAULTS = (signal.SIG_DFL, signal.default_int_handler)


class Ended(KeyboardInterrupt):
    """The process was asked to end by the signal ``number``."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(signal.Signals(number).name)


@contextlib.contextmanager
def unwinding() -> Iterator[None]:
    """Within the block SIGINT, SIGTERM and SIGHUP raise `Ended`, unless somebody already does something else with them.

    A child that was forked dies of them as usual.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    owner, last = os.getpid(), -_TWICE

    def end(number: int, _: FrameType | None) -> None:
        nonlocal last
        if os.getpid() != owner:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        before, last = last, time.monotonic()
        if last - before >= _TWICE:
            raise Ended(number)

    ours = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in ours}
    ours = [number for number in ours if before[number] in _DEFAULTS]
    for number in ours:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, before[number])
