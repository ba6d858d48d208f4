"""Work on all cores: numpy lets go of the interpreter while it works on an array."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

__all__ = ["in_order", "n_threads"]

Item = TypeVar("Item")
Result = TypeVar("Result")


def n_threads() -> int:
    """Threads to work with: OMP_NUM_THREADS where it says a number, else the cores this process may use."""
    stated = os.environ.get("OMP_NUM_THREADS", "")
    if stated.isdecimal() and int(stated) > 0:
        return int(stated)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_order(work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """The results of a function in the order of its arguments, a few of them worked on at a time.

    The arguments are made one after the other in the calling thread (a generator of random numbers may make them), no
    more than two for each thread ahead. The first error is raised; nothing is begun after it.
    """
    threads = n_threads()
    if threads == 1:
        yield from map(work, items)
        return
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[Result]] = deque()
        try:
            for item in items:
                waiting.append(pool.submit(work, item))
                if len(waiting) >= 2 * threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
