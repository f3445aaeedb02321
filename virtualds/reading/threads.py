"""Thread pools that decode and fetch chunks.

The calling thread also decodes, so a read finishes even if all threads of the pool are busy with
other reads, as with dask's threaded scheduler. A read uses as many helper threads as there are idle
cores.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from functools import cache
from itertools import chain, islice
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar

from virtualds.options import count_cores
from virtualds.source_file import host_of
from virtualds.stores import find_store

Task = TypeVar("Task")

Item = TypeVar("Item")

Result = TypeVar("Result")


class _DecodingPool:
    """The pool of decoding threads of a process, which counts the busy ones."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._busy = 0
        self._pool = ThreadPoolExecutor(max(1, count_cores() - 1), thread_name_prefix="virtualds")

    @contextmanager
    def run_helpers(self, work: Callable[[], None]) -> Iterator[None]:
        """Run ``work`` in helper threads during the block; wait for those that have started."""
        with self._lock:
            count = max(0, count_cores() - 1 - self._busy)
            self._busy += 1 + count
        # the context contains the block cache of a file that is being scanned
        futures = [self._pool.submit(copy_context().run, work) for _ in range(count)]
        try:
            yield
        finally:
            # the calling thread has done all work, so pending helpers are not needed
            for future in futures:
                if not future.cancel():
                    future.exception()
            with self._lock:
                self._busy -= 1 + count
        for future in futures:
            if not future.cancelled():
                future.result()


@cache
def _get_pool(pid: int) -> _DecodingPool:
    """Return the pool of a process; a forked child gets its own."""
    return _DecodingPool()


class _ClosableIterator(Iterator[Task]):
    """A thread-safe iterator that any thread can close.

    Closing calls ``stop``, which ends a pending wait for the next item, so that an interrupted read
    does not wait for a server that does not respond.
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
    """Call ``work`` with every item, on all idle cores; raise the first error."""
    try:
        head = list(islice(items, 2))
        if len(head) < 2 or count_cores() == 1:
            for item in chain(head, items):
                work(item)
            return
        queue = _ClosableIterator(chain(head, items), getattr(items, "stop", None))

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
        # a generator may have pending requests
        close: Callable[[], Any] | None = getattr(items, "close", None)
        if close is not None:
            close()


def iterate_results(
    pool: Executor, work: Callable[[Item], Result], items: Iterable[Item], ahead: int
) -> Iterator[tuple[Item, Future[Result]]]:
    """Yield items in order with the futures of their results, submitting ``ahead`` items ahead."""
    waiting: deque[tuple[Item, Future[Result]]] = deque()
    remaining = iter(items)
    while True:
        waiting.extend((i, pool.submit(work, i)) for i in islice(remaining, ahead - len(waiting)))
        if not waiting:
            return
        yield waiting.popleft()


# ---------------------------------------------------------------------- prefetching
# Concurrent requests for remote bytes.
#
# Each host has its own threads, one per allowed concurrent request. Results are yielded as
# they arrive; the number and the bytes of pending results are limited.


MAX_PENDING_BYTES = 2**28
"""Maximum bytes that are requested or received, but not yet decoded."""

MAX_PENDING_PER_REQUEST = 2
"""Maximum number of requests that are not yet decoded, per concurrent request."""

ASSUMED_ITEM_BYTES = 2**12
"""Assumed size in bytes of an item of `fetch_many`."""


Data = TypeVar("Data")

Entry = TypeVar("Entry")

Bytes = TypeVar("Bytes")


class HostSlot(NamedTuple):
    """The host of an item, the maximum number of requests to it, and the size of the item."""

    host: str
    max_requests: int
    nbytes: int

    @classmethod
    def from_url(cls, url: str, nbytes: int) -> HostSlot | None:
        """Return the slot of a request for ``nbytes`` to a url, or None for a local url."""
        max_requests = find_store(url).request_limits.max_requests
        return cls(host_of(url), max_requests, nbytes) if max_requests else None


class Prefetcher(Iterator[tuple[Item, Data | None]]):
    """Yields items: remote ones with the result of ``fetch``, in the order of arrival.

    ``get_slot`` returns the slot of an item, or None for a local item, which the consumer fetches.
    ``fetch`` runs in other threads; its errors are raised when their item would be yielded.
    """

    def __init__(
        self,
        items: Iterable[Item],
        get_slot: Callable[[Item], HostSlot | None],
        fetch: Callable[[Item], Data],
    ) -> None:
        self._fetch = fetch
        self._finished: SimpleQueue[Future[Data] | None] = SimpleQueue()
        # requested items that have not been yielded, with their sizes in bytes
        self._pending: dict[Future[Data], tuple[Item, int]] = {}
        self._nbytes = 0
        self._results = self._fetch_in_turn(items, get_slot)

    def __next__(self) -> tuple[Item, Data | None]:
        return next(self._results)

    def stop(self) -> None:
        """End the iteration from any thread, also while another thread waits for a result."""
        self._finished.put(None)

    def close(self) -> None:
        """Send no more requests."""
        self._results.close()

    def _fetch_in_turn(
        self, items: Iterable[Item], get_slot: Callable[[Item], HostSlot | None]
    ) -> Generator[tuple[Item, Data | None], None, None]:
        try:
            for item in items:
                if (slot := get_slot(item)) is None:
                    yield item, None
                    continue
                while self._is_full(slot):
                    yield self._wait_for_result()
                self._submit(item, slot)
                while not self._finished.empty():
                    yield self._wait_for_result()
            while self._pending:
                yield self._wait_for_result()
        except _Stopped:
            return
        finally:
            for future in self._pending:
                future.cancel()

    def _is_full(self, slot: HostSlot) -> bool:
        """Return whether a result must be yielded before another item is requested."""
        is_at_limit = len(self._pending) >= MAX_PENDING_PER_REQUEST * slot.max_requests
        return bool(self._pending) and (
            is_at_limit or self._nbytes + slot.nbytes > MAX_PENDING_BYTES
        )

    def _submit(self, item: Item, slot: HostSlot) -> None:
        pool = _get_threads(os.getpid(), slot.host, slot.max_requests)
        # the context contains the block cache of a file that is being scanned
        future = pool.submit(copy_context().run, self._fetch, item)
        self._pending[future] = item, slot.nbytes
        self._nbytes += slot.nbytes
        future.add_done_callback(self._finished.put)

    def _wait_for_result(self) -> tuple[Item, Data]:
        """Wait for the next result, and return it with its item."""
        if (future := self._finished.get()) is None:
            raise _Stopped
        item, nbytes = self._pending.pop(future)
        self._nbytes -= nbytes
        return item, future.result()


class _Stopped(Exception):
    """Raised in the thread that waits for a result when the iteration is stopped."""


@cache
def _get_threads(pid: int, host: str, max_requests: int) -> ThreadPoolExecutor:
    """Return the threads for a host; a forked child gets its own."""
    return ThreadPoolExecutor(max_requests, thread_name_prefix=f"virtualds {host}")


_end_of_requests: ContextVar[threading.Event | None] = ContextVar("_end_of_requests", default=None)
"""An event that is set when the items requested in this context are no longer needed."""


@contextmanager
def ending_requests() -> Iterator[Context]:
    """Yield a context in which `fetch_many` sends no more requests once the block has ended."""
    context, ended = copy_context(), threading.Event()
    context.run(_end_of_requests.set, ended)
    try:
        yield context
    finally:
        ended.set()


def fetch_many(
    items: Sequence[Entry], get_url: Callable[[Entry], str | None], fetch: Callable[[Entry], Bytes]
) -> list[Bytes]:
    """Call ``fetch`` with every item in several threads, and return the results in order.

    ``get_url`` returns the url from which an item is fetched, or None if it needs no request.
    """
    results: dict[int, Bytes] = {}

    def get_slot(number: int) -> HostSlot | None:
        url = get_url(items[number])
        return None if url is None else HostSlot.from_url(url, ASSUMED_ITEM_BYTES)

    ended = _end_of_requests.get()

    def fetch_one(number: int) -> tuple[Bytes]:
        if ended is not None and ended.is_set():
            raise _Stopped
        return (fetch(items[number]),)

    def finish(answer: tuple[int, Any]) -> None:
        number, fetched = answer
        results[number] = fetch_one(number)[0] if fetched is None else fetched[0]

    run_all(Prefetcher(iter(range(len(items))), get_slot, fetch_one), finish)
    if len(results) < len(items):
        raise _Stopped
    return [results[number] for number in range(len(items))]
