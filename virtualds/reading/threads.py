"""The pool of threads that decode; the thread that reads works too.

So a read finishes even when every thread of the pool is busy with other reads, as under dask's
threads: it waits only for work in progress. A read takes as many helpers as there are idle cores.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from functools import cache
from itertools import chain, islice
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar

from virtualds.options import count_cores
from virtualds.stores import find_store
from virtualds.urls import host_of

Task = TypeVar("Task")

Item = TypeVar("Item")

Result = TypeVar("Result")


class _Crew:
    """The threads of a process that decode."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._busy = 0
        self._pool = ThreadPoolExecutor(max(1, count_cores() - 1), thread_name_prefix="virtualds")

    @contextmanager
    def run_helpers(self, work: Callable[[], None]) -> Iterator[None]:
        """Do ``work`` in other threads during the block; wait for those that have begun."""
        with self._lock:
            count = max(0, count_cores() - 1 - self._busy)
            self._busy += 1 + count
        # what is read while a file is scanned is also read of the blocks that are held of it
        started = [self._pool.submit(copy_context().run, work) for _ in range(count)]
        try:
            yield
        finally:
            # those that have not begun are no longer needed
            for helper in started:
                if not helper.cancel():
                    helper.exception()
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
        head = list(islice(items, 2))
        if len(head) < 2 or count_cores() == 1:
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
    finally:
        # a generator may have requests under way
        close: Callable[[], Any] | None = getattr(items, "close", None)
        if close is not None:
            close()


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


# ---------------------------------------------------------------------- reading ahead
# Prefetching: many requests for far bytes at a time.
#
# Each host has its own threads, as many as it may get requests at a time. Results are handed out as
# they come in; their number and bytes are bounded.


MAX_AHEAD = 2**28
"""Bytes of requests that are sent or answered, and not yet decoded."""

WINDOWS = 2
"""Requests that may be sent or answered and not yet decoded, for each one allowed at a time."""

SMALL_FETCH = 2**12
"""Bytes that an item of `fetch_many` is assumed to have."""


Data = TypeVar("Data")

Entry = TypeVar("Entry")

Bytes = TypeVar("Bytes")


class HostSlot(NamedTuple):
    """The host of an item, the requests that it allows at a time, and the bytes of the item."""

    host: str
    at_once: int
    nbytes: int

    @classmethod
    def to(cls, url: str, nbytes: int) -> HostSlot | None:
        """Return the slot for bytes of a file, or None if the file is near."""
        at_once = find_store(url).reach.at_once
        return cls(host_of(url), at_once, nbytes) if at_once else None


class Prefetcher(Iterator[tuple[Item, Data | None]]):
    """Yields items, far ones with the result of ``fetch`` as it comes in.

    ``way_of`` returns the slot of an item; None for a near item, which its taker fetches. An error
    of ``fetch``, which other threads call, is raised where its item would be yielded.
    """

    def __init__(
        self,
        items: Iterable[Item],
        way_of: Callable[[Item], HostSlot | None],
        fetch: Callable[[Item], Data],
    ) -> None:
        self._fetch = fetch
        self._answers: SimpleQueue[Future[Data] | None] = SimpleQueue()
        # what was asked for and not yet taken, with its bytes
        self._asked: dict[Future[Data], tuple[Item, int]] = {}
        self._nbytes = 0
        self._found = self._fetch_in_turn(items, way_of)

    def __next__(self) -> tuple[Item, Data | None]:
        return next(self._found)

    def stop(self) -> None:
        """End the iteration, also for a thread that waits now; any thread may call it."""
        self._answers.put(None)

    def close(self) -> None:
        """Send no more requests."""
        self._found.close()

    def _fetch_in_turn(
        self, items: Iterable[Item], way_of: Callable[[Item], HostSlot | None]
    ) -> Generator[tuple[Item, Data | None], None, None]:
        try:
            for item in items:
                if (way := way_of(item)) is None:
                    yield item, None
                    continue
                while self._is_full(way):
                    yield self._take()
                self._ask(item, way)
                while not self._answers.empty():
                    yield self._take()
            while self._asked:
                yield self._take()
        except _Stopped:
            return
        finally:
            for future in self._asked:
                future.cancel()

    def _is_full(self, way: HostSlot) -> bool:
        """Return whether an item must be taken before another one is asked for."""
        many = len(self._asked) >= WINDOWS * way.at_once
        return bool(self._asked) and (many or self._nbytes + way.nbytes > MAX_AHEAD)

    def _ask(self, item: Item, way: HostSlot) -> None:
        pool = _get_threads(os.getpid(), way.host, way.at_once)
        # of a file that is being scanned, the context tells which blocks are held
        future = pool.submit(copy_context().run, self._fetch, item)
        self._asked[future] = item, way.nbytes
        self._nbytes += way.nbytes
        future.add_done_callback(self._answers.put)

    def _take(self) -> tuple[Item, Data]:
        """Return the item that comes in next."""
        if (future := self._answers.get()) is None:
            raise _Stopped
        item, nbytes = self._asked.pop(future)
        self._nbytes -= nbytes
        return item, future.result()


class _Stopped(Exception):
    """The iteration was stopped while a thread waited."""


@cache
def _get_threads(pid: int, host: str, at_once: int) -> ThreadPoolExecutor:
    """Return the threads for a host; a forked child gets its own."""
    return ThreadPoolExecutor(at_once, thread_name_prefix=f"virtualds {host}")


def fetch_many(
    items: Sequence[Entry], url_of: Callable[[Entry], str | None], fetch: Callable[[Entry], Bytes]
) -> list[Bytes]:
    """Return the results of ``fetch``, which is called in several threads, in the order of items.

    ``url_of`` returns the url of the file of an item, None if it needs no file.
    """
    found: dict[int, Bytes] = {}

    def way_of(number: int) -> HostSlot | None:
        url = url_of(items[number])
        return None if url is None else HostSlot.to(url, SMALL_FETCH)

    def fetch_one(number: int) -> tuple[Bytes]:
        return (fetch(items[number]),)

    def finish(answer: tuple[int, Any]) -> None:
        number, got = answer
        found[number] = fetch_one(number)[0] if got is None else got[0]

    run_all(Prefetcher(iter(range(len(items))), way_of, fetch_one), finish)
    return [found[number] for number in range(len(items))]
