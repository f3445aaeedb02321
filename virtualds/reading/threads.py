"""The pool of threads that decode; the thread that reads works too.

So a read finishes even when every thread of the pool is busy with other reads, as under dask's
threads: it waits only for work in progress. A read takes as many helpers as there are idle cores.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from functools import cache
from itertools import chain, islice
from typing import Any, TypeVar

Task = TypeVar("Task")

Item = TypeVar("Item")

Result = TypeVar("Result")


def cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _Crew:
    """The threads of a process that decode."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._busy = 0
        self._pool = ThreadPoolExecutor(max(1, cores() - 1), thread_name_prefix="virtualds")

    @contextmanager
    def run_helpers(self, work: Callable[[], None]) -> Iterator[None]:
        """Do ``work`` in other threads during the block; wait for those that have begun."""
        with self._lock:
            count = max(0, cores() - 1 - self._busy)
            self._busy += 1 + count
        # what is read while a file is scanned is also read of the blocks that are held of it
        started = [self._pool.submit(copy_context().run, work) for _ in range(count)]
        try:
            yield
        finally:
            _await(started)
            with self._lock:
                self._busy -= 1 + count
        for helper in started:
            if not helper.cancelled():
                helper.result()


@cache
def _crew_of(pid: int) -> _Crew:
    """Return the crew of a process; a forked child gets its own."""
    return _Crew()


class _Queue(Iterator[Task]):
    """An iterator that threads share, and that any of them can close.

    ``stop`` ends the wait of a thread for its next item, so that an interrupted read does not wait
    for a server that does not respond.
    """

    def __init__(self, items: Iterator[Task], stop: Callable[[], Any] | None) -> None:
        self._items = items
        self._stop = stop
        self._lock = threading.Lock()
        self._closed = False

    def __next__(self) -> Task:
        with self._lock:
            if self._closed:
                raise StopIteration
            return next(self._items)

    def close(self) -> None:
        self._closed = True
        if self._stop is not None:
            self._stop()


def run_all(items: Iterator[Task], work: Callable[[Task], None]) -> None:
    """Do ``work`` on every item, on all cores; the first error ends it and is raised."""
    try:
        _run_all(items, work)
    finally:
        # a generator may have requests under way
        close: Callable[[], Any] | None = getattr(items, "close", None)
        if close is not None:
            close()


def _run_all(items: Iterator[Task], work: Callable[[Task], None]) -> None:
    head = list(islice(items, 2))
    if len(head) < 2 or cores() == 1:
        for item in chain(head, items):
            work(item)
        return
    queue = _Queue(chain(head, items), getattr(items, "stop", None))

    def drain() -> None:
        try:
            for item in queue:
                work(item)
        except BaseException:
            queue.close()
            raise

    with _crew_of(os.getpid()).run_helpers(drain):
        drain()


def _await(helpers: list[Future[None]]) -> None:
    """Wait for helpers that have begun; the others are no longer needed."""
    for helper in helpers:
        if not helper.cancel():
            helper.exception()


def in_turn(
    pool: Executor, work: Callable[[Item], Result], items: Iterable[Item], ahead: int
) -> Iterator[tuple[Item, Future[Result]]]:
    """Yield items in order, each with the future of its work; ``ahead`` run at a time."""
    waiting: deque[tuple[Item, Future[Result]]] = deque()
    rest = iter(items)
    while True:
        waiting.extend((i, pool.submit(work, i)) for i in islice(rest, ahead - len(waiting)))
        if not waiting:
            return
        yield waiting.popleft()
