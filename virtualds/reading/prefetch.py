"""Bytes that are far away are asked for before anybody needs them, many at a time.

Every host has threads of its own that wait for it, as many as it is to be asked at once. What they
bring is handed out as it comes in; how much is under way or lies about is bounded.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import cache
from queue import SimpleQueue
from typing import Any, Generic, NamedTuple, TypeVar

from virtualds.reading.threads import run_all
from virtualds.stores import find_store
from virtualds.urls import host_of

MOST_AHEAD = 2**28
"""Of requests that are under way or answered and not yet decoded."""


WINDOWS = 2
"""How many times the requests at once may be asked for or lie about."""


Item = TypeVar("Item")


Data = TypeVar("Data")


class HostSlot(NamedTuple):
    """How an item is had: from which host, how many at once, and how many bytes it is."""

    host: str
    at_once: int
    nbytes: int

    @classmethod
    def to(cls, url: str, nbytes: int) -> HostSlot | None:
        """Return the way to bytes of a file, None if it is near."""
        at_once = find_store(url).reach.at_once
        return cls(host_of(url), at_once, nbytes) if at_once else None


class Prefetcher(Iterator[tuple[Item, Data | None]]):
    """Items, far ones with what ``fetch`` returns of them as soon as it does.

    Parameters
    ----------
    items : iterable
        Near and far ones, in any order.
    way_of : callable
        Says how far an item is: None if whoever takes it had better fetch it himself.
    fetch : callable
        Is called in other threads, of far items only.

    Raises
    ------
    Exception
        What ``fetch`` raises, when its item would be yielded.
    """

    def __init__(
        self,
        items: Iterable[Item],
        way_of: Callable[[Item], HostSlot | None],
        fetch: Callable[[Item], Data],
    ) -> None:
        self._window: _Window[Item, Data] = _Window(fetch)
        self._found = self._in_turn(items, way_of)

    def __next__(self) -> tuple[Item, Data | None]:
        return next(self._found)

    def stop(self) -> None:
        """End it, also for a thread that waits for an answer now; any thread may say so."""
        self._window.stop()

    def close(self) -> None:
        """Ask for nothing more."""
        self._found.close()

    def _in_turn(
        self, items: Iterable[Item], way_of: Callable[[Item], HostSlot | None]
    ) -> Generator[tuple[Item, Data | None], None, None]:
        try:
            for item in items:
                if (way := way_of(item)) is None:
                    yield item, None
                    continue
                while self._window.is_full(way):
                    yield self._window.take()
                self._window.ask(item, way)
                while self._window.has_answers():
                    yield self._window.take()
            while self._window.asked:
                yield self._window.take()
        except _Stopped:
            return
        finally:
            self._window.close()


class _Stopped(Exception):
    """Nobody needs the answer that is waited for."""


class _Window(Generic[Item, Data]):
    """The items that are under way or have come in."""

    def __init__(self, fetch: Callable[[Item], Data]) -> None:
        self._fetch = fetch
        self._answers: SimpleQueue[Future[Data] | None] = SimpleQueue()
        self.asked: dict[Future[Data], tuple[Item, int]] = {}
        self._nbytes = 0

    def is_full(self, way: HostSlot) -> bool:
        """Say whether something must be taken before more is asked for."""
        if not self.asked:
            return False
        many = len(self.asked) >= WINDOWS * way.at_once
        return many or self._nbytes + way.nbytes > MOST_AHEAD

    def ask(self, item: Item, way: HostSlot) -> None:
        pool = _get_threads(os.getpid(), way.host, way.at_once)
        # of a file that is being scanned, the context tells which blocks are held
        future = pool.submit(copy_context().run, self._fetch, item)
        self.asked[future] = item, way.nbytes
        self._nbytes += way.nbytes
        future.add_done_callback(self._answers.put)

    def has_answers(self) -> bool:
        return not self._answers.empty()

    def take(self) -> tuple[Item, Data]:
        """Return what comes in next."""
        if (future := self._answers.get()) is None:
            raise _Stopped
        item, nbytes = self.asked.pop(future)
        self._nbytes -= nbytes
        return item, future.result()

    def stop(self) -> None:
        self._answers.put(None)

    def close(self) -> None:
        for future in self.asked:
            future.cancel()


@cache
def _get_threads(pid: int, host: str, at_once: int) -> ThreadPoolExecutor:
    """Return the threads that wait for a host; a forked child gets its own."""
    return ThreadPoolExecutor(at_once, thread_name_prefix=f"virtualds {host}")


Entry = TypeVar("Entry")


Bytes = TypeVar("Bytes")


SMALL_FETCH = 2**12
"""Bytes that an answer is taken to have."""


def fetch_many(
    items: Sequence[Entry], url_of: Callable[[Entry], str | None], fetch: Callable[[Entry], Bytes]
) -> list[Bytes]:
    """Return what ``fetch`` returns of every item, in their order.

    Parameters
    ----------
    items : sequence
    url_of : callable
        Which file an item is got from, None if from none.
    fetch : callable
        Is called in several threads.

    Raises
    ------
    Exception
        What ``fetch`` raises.
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
