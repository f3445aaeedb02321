"""What answers consist of: bytes that are read once, in few threads, and kept for a while."""

from __future__ import annotations

import asyncio
import hashlib
import sys
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

from virtualds_server.limits import Limits

Result = TypeVar("Result")

OVERHEAD = 512
"""Bytes that an entry of the cache takes besides its data."""
LARGEST_PART = 4
"""No body takes more than this part of the cache."""


class OverloadedError(Exception):
    """Too many requests wait for a thread."""


class Body(NamedTuple):
    """Bytes, and their strong entity tag (RFC 9110, section 8.8.3)."""

    data: bytes
    etag: str

    @classmethod
    def of(cls, data: bytes) -> Body:
        """Make the tag from the bytes: what is equal has an equal tag, in every process."""
        return cls(data, f'"{hashlib.blake2b(data, digest_size=16).hexdigest()}"')


class Bodies:
    """A bounded cache of bodies, which are made in a bounded number of threads.

    Requests for what another request is already reading wait for it. Failures are not kept.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._pool = ThreadPoolExecutor(limits.threads, thread_name_prefix="virtualds-server")
        # to open a new version may take minutes, in which chunks are read
        self._looking = ThreadPoolExecutor(1, thread_name_prefix="virtualds-server-look")
        self._kept: OrderedDict[Hashable, Body | None] = OrderedDict()
        self._nbytes = 0
        self._tasks: dict[Hashable, asyncio.Task[Body | None]] = {}
        self._waiting = 0

    async def get(self, key: Hashable, read: Callable[[], bytes | None]) -> Body | None:
        """Return the body of a key, or None if ``read`` does.

        Raises what ``read`` raises, `TimeoutError` if it takes too long (it is then still read, for
        those who ask again), and `OverloadedError` if too many requests wait.
        """
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        task = self._tasks.get(key)
        if task is None:
            task = asyncio.create_task(self._make(key, read))
            self._tasks[key] = task
            task.add_done_callback(lambda done: self._forget(key, done))
        # a request that is cancelled does not cancel the read that others wait for
        return await asyncio.wait_for(asyncio.shield(task), self._limits.timeout)

    async def look(self, work: Callable[[], Result], seconds: float | None) -> Result:
        """Run ``work`` in the thread for everything but chunks, within some seconds.

        At most within the time limit of a request. After a `TimeoutError`, work that has started
        goes on, and work that waits is cancelled.
        """
        most = self._limits.timeout
        within = most if seconds is None else min(seconds, most)
        return await asyncio.wait_for(self._submit(work, self._looking), within)

    async def run(self, work: Callable[[], Result]) -> Result:
        """Run ``work`` in a thread, within the time limit of a request; nothing is cached."""
        return await asyncio.wait_for(self._submit(work, self._pool), self._limits.timeout)

    def close(self) -> None:
        """Let threads end when they have finished; nothing waits for them."""
        for pool in (self._pool, self._looking):
            pool.shutdown(wait=False, cancel_futures=True)

    async def _make(self, key: Hashable, read: Callable[[], bytes | None]) -> Body | None:
        def make() -> Body | None:
            data = read()
            return None if data is None else Body.of(data)

        found = await self._submit(make, self._pool)
        self._keep(key, found)
        return found

    def _submit(
        self, work: Callable[[], Result], pool: ThreadPoolExecutor
    ) -> asyncio.Future[Result]:
        if self._waiting >= self._limits.waiting + self._limits.threads:
            raise OverloadedError
        self._waiting += 1
        found = asyncio.get_running_loop().run_in_executor(pool, work)
        found.add_done_callback(self._count_down)
        return found

    def _count_down(self, done: asyncio.Future[Result]) -> None:
        self._waiting -= 1
        if not done.cancelled():
            # an error that nobody waits for any more is no news
            done.exception()

    def _forget(self, key: Hashable, done: asyncio.Task[Body | None]) -> None:
        self._tasks.pop(key, None)
        if not done.cancelled():
            done.exception()

    def _keep(self, key: Hashable, body: Body | None) -> None:
        size = _measure(key, body)
        if size > self._limits.cache_bytes // LARGEST_PART:
            return
        self._kept[key] = body
        self._nbytes += size
        while self._nbytes > self._limits.cache_bytes:
            self._nbytes -= _measure(*self._kept.popitem(last=False))


def _measure(key: Hashable, body: Body | None) -> int:
    """Return the bytes that an entry takes; clients choose how long keys are."""
    texts = [part for part in key if isinstance(part, str)] if isinstance(key, tuple) else []
    return OVERHEAD + sum(map(sys.getsizeof, texts)) + (0 if body is None else len(body.data))
