"""Response bodies with entity tags, and a cache that reads them in a few threads."""

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

ENTRY_OVERHEAD = 512
"""Bytes that a cache entry takes besides its data."""
MIN_ENTRIES = 4
"""The cache has room for at least so many entries: larger bodies are not cached."""


class OverloadedError(Exception):
    """Too many requests wait for a thread."""


class Body(NamedTuple):
    """Bytes, and their strong entity tag (RFC 9110, section 8.8.3)."""

    data: bytes
    etag: str

    @classmethod
    def of(cls, data: bytes) -> Body:
        """Return a body whose tag is a hash of its bytes, and so the same in every process."""
        return cls(data, f'"{hashlib.blake2b(data, digest_size=16).hexdigest()}"')


class BodyCache:
    """A cache of bodies of limited size, which reads them in a limited number of threads.

    Concurrent requests for the same body share one read. Errors are not cached.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._pool = ThreadPoolExecutor(limits.threads, thread_name_prefix="virtualds-server")
        # opening a new version may take minutes: meanwhile chunks are read in the other threads
        self._version_pool = ThreadPoolExecutor(1, thread_name_prefix="virtualds-server-version")
        self._cache: OrderedDict[Hashable, Body | None] = OrderedDict()
        self._nbytes = 0
        self._tasks: dict[Hashable, asyncio.Task[Body | None]] = {}
        self._pending = 0

    async def get(self, key: Hashable, read: Callable[[], bytes | None]) -> Body | None:
        """Return the body of a key, or None if ``read`` returns None.

        Raises the errors of ``read``, `OverloadedError` if too many requests wait, and
        `TimeoutError` if the time limit of a request is over. The read then goes on, and its body
        is cached for later requests.
        """
        if key in self._cache:
            self._cache.move_to_end(key)
            return self._cache[key]
        task = self._tasks.get(key)
        if task is None:
            task = asyncio.create_task(self._read(key, read))
            self._tasks[key] = task
            task.add_done_callback(lambda done: self._remove_task(key, done))
        # cancelling one request does not cancel the read that others wait for
        return await asyncio.wait_for(asyncio.shield(task), self._limits.timeout)

    async def run_version_check(self, check: Callable[[], Result], timeout: float | None) -> Result:
        """Run ``check`` in the thread that opens new versions, and return its result.

        It waits at most ``timeout`` seconds, and never longer than the time limit of a request.
        After a `TimeoutError`, a check that runs goes on, and one that has not started is
        cancelled.
        """
        limit = self._limits.timeout
        shorter = limit if timeout is None else min(timeout, limit)
        return await asyncio.wait_for(self._submit(check, self._version_pool), shorter)

    async def run(self, function: Callable[[], Result]) -> Result:
        """Run ``function`` in a thread, within the time limit of a request; cache nothing."""
        return await asyncio.wait_for(self._submit(function, self._pool), self._limits.timeout)

    def close(self) -> None:
        """Shut the threads down without waiting for those that still run."""
        for pool in (self._pool, self._version_pool):
            pool.shutdown(wait=False, cancel_futures=True)

    async def _read(self, key: Hashable, read: Callable[[], bytes | None]) -> Body | None:
        def make_body() -> Body | None:
            data = read()
            return None if data is None else Body.of(data)

        body = await self._submit(make_body, self._pool)
        self._add(key, body)
        return body

    def _submit(
        self, function: Callable[[], Result], pool: ThreadPoolExecutor
    ) -> asyncio.Future[Result]:
        if self._pending >= self._limits.waiting + self._limits.threads:
            raise OverloadedError
        self._pending += 1
        future = asyncio.get_running_loop().run_in_executor(pool, function)
        future.add_done_callback(self._finish)
        return future

    def _finish(self, done: asyncio.Future[Result]) -> None:
        self._pending -= 1
        if not done.cancelled():
            # asyncio logs errors that nobody retrieves, as after a timeout
            done.exception()

    def _remove_task(self, key: Hashable, done: asyncio.Task[Body | None]) -> None:
        self._tasks.pop(key, None)
        if not done.cancelled():
            done.exception()

    def _add(self, key: Hashable, body: Body | None) -> None:
        nbytes = _measure_entry(key, body)
        if nbytes > self._limits.cache_bytes // MIN_ENTRIES:
            return
        self._cache[key] = body
        self._nbytes += nbytes
        while self._nbytes > self._limits.cache_bytes:
            self._nbytes -= _measure_entry(*self._cache.popitem(last=False))


def _measure_entry(key: Hashable, body: Body | None) -> int:
    """Return the bytes that a cache entry takes, with its key, whose length clients choose."""
    texts = [part for part in key if isinstance(part, str)] if isinstance(key, tuple) else []
    return ENTRY_OVERHEAD + sum(map(sys.getsizeof, texts)) + (0 if body is None else len(body.data))
