"""The time that a request may take: a fixed time, and more while bytes come at a least rate.

A timeout between two reads does not bound a server that sends a byte now and then.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from virtualds.options import get_options
from virtualds.stores.interruption import is_abandoned
from virtualds.stores.retry import NAP, BrokenAnswer

LONGEST_SECONDS = 366 * 86400.0
"""Seconds: clocks of other libraries do not hold infinity."""


class TooSlowError(BrokenAnswer):
    """An answer that came slower than `set_options` allows."""

    def __init__(self, received: int) -> None:
        options = get_options()
        super().__init__(
            f"{received} bytes came within {options.request_timeout} s and one more for every "
            f"{options.least_rate} bytes; virtualds.set_options has request_timeout and least_rate"
        )


def seconds_for(nbytes: int) -> float:
    """Return how many seconds a request may take by the time that ``nbytes`` have come."""
    options = get_options()
    return min(options.request_timeout + nbytes / options.least_rate, LONGEST_SECONDS)


def join_parts(parts: Iterable[bytes], begun: float) -> bytes:
    """Return the bytes of an answer to a request that was sent at ``begun``, a monotonic time.

    Raises
    ------
    TooSlowError
        They come too slowly.
    """
    found: list[bytes] = []
    received = 0
    for part in parts:
        found.append(part)
        received += len(part)
        if time.monotonic() - begun > seconds_for(received):
            raise TooSlowError(received)
    return b"".join(found)


class Pace:
    """The deadline of one request, which moves on with the bytes that come."""

    def __init__(self, timeout: asyncio.Timeout) -> None:
        self._timeout = timeout
        self._begun = asyncio.get_running_loop().time()
        self.received = 0

    async def gather(self, parts: AsyncIterator[bytes], most: int | None) -> bytes:
        """Return the bytes of an answer, the first ``most`` of them if it is no None."""
        found: list[bytes] = []
        async for part in parts:
            found.append(part)
            self.received += len(part)
            self._timeout.reschedule(self._begun + seconds_for(self.received))
            if most is not None and self.received >= most:
                break
        return b"".join(found)[:most]


@asynccontextmanager
async def limit_time(nbytes: int = 0) -> AsyncIterator[Pace]:
    """End what is done in the block when it takes too long.

    ``nbytes`` is how many bytes a library hands over at once, so that nobody sees them come.

    Raises
    ------
    TooSlowError
        It has taken too long.
    """
    pace: Pace | None = None
    try:
        async with asyncio.timeout(seconds_for(nbytes)) as timeout:
            pace = Pace(timeout)
            watch = _Watch(timeout)
            try:
                yield pace
            finally:
                watch.end()
    except TimeoutError as error:
        # libraries have timeouts of their own, which say so
        if timeout.expired():
            raise TooSlowError(pace.received if pace else 0) from error
        raise


class _Watch:
    """Ends a request of an interrupted process, which waits for threads that wait for servers."""

    def __init__(self, timeout: asyncio.Timeout) -> None:
        self._timeout = timeout
        self._loop = asyncio.get_running_loop()
        self._next = self._loop.call_later(NAP, self._look)

    def _look(self) -> None:
        if is_abandoned():
            self._timeout.reschedule(self._loop.time())
        else:
            self._next = self._loop.call_later(NAP, self._look)

    def end(self) -> None:
        self._next.cancel()
