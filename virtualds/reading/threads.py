"""Threads that decode chunks, and threads that fetch them.

The thread that reads also decodes. So a read finishes even if every thread of the pool is busy with
other reads, as under dask's threads: it only waits for work in progress. A read uses as many
helpers as there are idle cores.
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


class _DecodingPool:
    """The decoding threads of a process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._busy = 0
        self._pool = ThreadPoolExecutor(max(1, count_cores() - 1), thread_name_prefix="virtualds")

    @contextmanager
    def run_helpers(self, work: Callable[[], None]) -> Iterator[None]:
        """Do ``work`` in other threads during the block; wait for those that have started."""
        with self._lock:
            count = max(0, count_cores() - 1 - self._busy)
            self._busy += 1 + count
        # for a file that is being scanned, the context determines which blocks are cached
        started = [self._pool.submit(copy_context().run, work) for _ in range(count)]
        try:
            yield
        finally:
            # tasks that have not started are no longer needed
            for helper in started:
                if not helper.cancel():
                    helper.exception()
            with self._lock:
                self._busy -= 1 + count
        for helper in started:
            if not helper.cancelled():
                helper.result()


@cache
def _get_pool(pid: int) -> _DecodingPool:
    """Return the pool of a process; a forked child gets its own."""
    return _DecodingPool()


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
    """Call ``work`` with every item, on all cores; raise the first error."""
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

        with _get_pool(os.getpid()).run_helpers(drain):
            drain()
    finally:
        # a generator may have requests under way
        close: Callable[[], Any] | None = getattr(items, "close", None)
        if close is not None:
            close()


def iterate_results(
    pool: Executor, work: Callable[[Item], Result], items: Iterable[Item], ahead: int
) -> Iterator[tuple[Item, Future[Result]]]:
    """Yield items in order, each with the future of its result, ``ahead`` items in advance."""
    waiting: deque[tuple[Item, Future[Result]]] = deque()
    rest = iter(items)
    while True:
        waiting.extend((i, pool.submit(work, i)) for i in islice(rest, ahead - len(waiting)))
        if not waiting:
            return
        yield waiting.popleft()


# ---------------------------------------------------------------------- reading ahead
# Prefetching: many requests for remote bytes at a time.
#
# Each host has its own threads, as many as the requests it may get at a time. Results are yielded
# as they arrive; their number and bytes are limited.


MAX_AHEAD = 2**28
"""The size in bytes of requests that are sent or answered, and not yet decoded."""

WINDOWS = 2
"""The number of requests that may be sent or answered and not yet decoded, per concurrent
request."""

SMALL_FETCH = 2**12
"""The assumed size in bytes of an item of `fetch_many`."""


Data = TypeVar("Data")

Entry = TypeVar("Entry")

Bytes = TypeVar("Bytes")


class HostSlot(NamedTuple):
    """The host of an item, its maximum number of concurrent requests, and the size of the item."""

    host: str
    at_once: int
    nbytes: int

    @classmethod
    def to(cls, url: str, nbytes: int) -> HostSlot | None:
        """Return the slot for bytes from a url, or None for a local url."""
        at_once = find_store(url).reach.at_once
        return cls(host_of(url), at_once, nbytes) if at_once else None


class Prefetcher(Iterator[tuple[Item, Data | None]]):
    """Yields items; remote ones with the result of ``fetch`` as soon as it arrives.

    ``slot_of`` returns the slot of an item, or None for a local item, which the consumer fetches.
    An error of ``fetch``, which runs in other threads, is raised when its item is due.
    """

    def __init__(
        self,
        items: Iterable[Item],
        slot_of: Callable[[Item], HostSlot | None],
        fetch: Callable[[Item], Data],
    ) -> None:
        self._fetch = fetch
        self._answers: SimpleQueue[Future[Data] | None] = SimpleQueue()
        # requested items that have not been yielded, with their bytes
        self._asked: dict[Future[Data], tuple[Item, int]] = {}
        self._nbytes = 0
        self._found = self._fetch_in_turn(items, slot_of)

    def __next__(self) -> tuple[Item, Data | None]:
        return next(self._found)

    def stop(self) -> None:
        """End the iteration, also for a thread that is waiting; any thread may call it."""
        self._answers.put(None)

    def close(self) -> None:
        """Send no more requests."""
        self._found.close()

    def _fetch_in_turn(
        self, items: Iterable[Item], slot_of: Callable[[Item], HostSlot | None]
    ) -> Generator[tuple[Item, Data | None], None, None]:
        try:
            for item in items:
                if (slot := slot_of(item)) is None:
                    yield item, None
                    continue
                while self._is_full(slot):
                    yield self._next_result()
                self._submit(item, slot)
                while not self._answers.empty():
                    yield self._next_result()
            while self._asked:
                yield self._next_result()
        except _Stopped:
            return
        finally:
            for future in self._asked:
                future.cancel()

    def _is_full(self, slot: HostSlot) -> bool:
        """Return whether an item must be yielded before another one is requested."""
        many = len(self._asked) >= WINDOWS * slot.at_once
        return bool(self._asked) and (many or self._nbytes + slot.nbytes > MAX_AHEAD)

    def _submit(self, item: Item, slot: HostSlot) -> None:
        pool = _get_threads(os.getpid(), slot.host, slot.at_once)
        # for a file that is being scanned, the context determines which blocks are cached
        future = pool.submit(copy_context().run, self._fetch, item)
        self._asked[future] = item, slot.nbytes
        self._nbytes += slot.nbytes
        future.add_done_callback(self._answers.put)

    def _next_result(self) -> tuple[Item, Data]:
        """Wait for the next result; return it with its item."""
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
    """Call ``fetch`` with every item in several threads; return the results in order.

    ``url_of`` returns the url of the file of an item, or None if it needs no file.
    """
    found: dict[int, Bytes] = {}

    def slot_of(number: int) -> HostSlot | None:
        url = url_of(items[number])
        return None if url is None else HostSlot.to(url, SMALL_FETCH)

    def fetch_one(number: int) -> tuple[Bytes]:
        return (fetch(items[number]),)

    def finish(answer: tuple[int, Any]) -> None:
        number, got = answer
        found[number] = fetch_one(number)[0] if got is None else got[0]

    run_all(Prefetcher(iter(range(len(items))), slot_of, fetch_one), finish)
    return [found[number] for number in range(len(items))]
