"""Response bodies: reading in a limited number of threads, caching, and HTTP (RFC 9110)."""

from __future__ import annotations

import asyncio
import hashlib
import re
import sys
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple, TypeVar


@dataclass(frozen=True)
class Limits:
    """Limits of threads, memory and time of a server.

    Parameters
    ----------
    threads : int
        Number of chunks to fetch and decode at the same time.
    waiting : int
        Maximum number of requests that wait for a thread; further requests get the status 503.
    cache_bytes : int
        Size of the cache of response bodies.
    timeout : float
        Seconds that a request waits for the source before it gets the status 504.
    check_every : float
        Seconds between two checks whether the set has changed. Checks of files that match
        patterns are 30 times less frequent.

    Examples
    --------
    >>> Limits(threads=2).timeout
    60.0
    """

    threads: int = 8
    waiting: int = 2048
    cache_bytes: int = 2**28
    timeout: float = 60.0
    check_every: float = 1.0

    def __post_init__(self) -> None:
        for name in ("threads", "waiting"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)!r}: give a number of at least 1")
        if self.cache_bytes < 0 or self.check_every < 0 or self.timeout <= 0:
            raise ValueError(
                f"cache_bytes={self.cache_bytes!r}, check_every={self.check_every!r}, "
                f"timeout={self.timeout!r}: none is negative, and timeout is more than 0"
            )


Result = TypeVar("Result")

ENTRY_OVERHEAD = 512
"""Size of a cache entry in bytes, without its data."""
MIN_ENTRIES = 4
"""Minimum number of entries that fit into the cache; larger bodies are not cached."""


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
    """A cache of limited size, which reads bodies in a limited number of threads.

    Concurrent requests for the same body share one read. Errors are not cached.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._pool = ThreadPoolExecutor(limits.threads, thread_name_prefix="virtualds-server")
        # opening a new version may take minutes, during which other threads must read chunks
        self._version_pool = ThreadPoolExecutor(1, thread_name_prefix="virtualds-server-version")
        self._cache: OrderedDict[Hashable, Body | None] = OrderedDict()
        self._nbytes = 0
        self._tasks: dict[Hashable, asyncio.Task[Body | None]] = {}
        self._pending = 0

    async def get(self, key: Hashable, read: Callable[[], bytes | None]) -> Body | None:
        """Return the body of a key, or None if ``read`` returns None.

        Raises the errors of ``read``, `OverloadedError` if too many requests wait, and
        `TimeoutError` after the time limit of a request. The read then continues, and its body is
        cached for later requests.
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

        Raises `TimeoutError` after ``timeout`` seconds, or after the time limit of a request if
        that is shorter. A check that is running then continues; a check that has not started is
        cancelled.
        """
        limit = self._limits.timeout
        shorter = limit if timeout is None else min(timeout, limit)
        return await asyncio.wait_for(self._submit(check, self._version_pool), shorter)

    async def run(self, function: Callable[[], Result]) -> Result:
        """Run ``function`` in a thread, within the time limit of a request; cache nothing."""
        return await asyncio.wait_for(self._submit(function, self._pool), self._limits.timeout)

    def close(self) -> None:
        """Shut down the threads without waiting for running calls."""
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
            # retrieve the error, since asyncio would log it, for example after a timeout
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
    """Return the size of a cache entry in bytes, with its key, whose length clients choose."""
    texts = [part for part in key if isinstance(part, str)] if isinstance(key, tuple) else []
    return ENTRY_OVERHEAD + sum(map(sys.getsizeof, texts)) + (0 if body is None else len(body.data))


# ---------------------------------------------------------------------- responses

CORS = {"access-control-allow-origin": "*"}
"""Any page may read the response, which does not depend on the client."""
CORS_HEADERS = CORS | {
    "access-control-expose-headers": "ETag, Accept-Ranges, Content-Length, Content-Range"
}
PREFLIGHT_HEADERS = CORS | {
    "access-control-allow-methods": "GET, HEAD",
    "access-control-allow-headers": "Range, If-None-Match, If-Range, Cache-Control, Authorization",
    "access-control-max-age": "86400",
}
"""Headers of the response to a CORS preflight request (Fetch standard)."""
RANGE = re.compile(r"bytes\s*=\s*(\d*)\s*-\s*(\d*)", re.ASCII | re.IGNORECASE)
METADATA_NAMES = frozenset({"zarr.json", ".zgroup", ".zarray", ".zattrs", ".zmetadata"})


def respond_to_get(
    body: Body,
    request_headers: Mapping[str, str],
    media_type: str,
    extra_headers: Mapping[str, str] = CORS_HEADERS,
) -> tuple[int, dict[str, str], bytes]:
    """Return the status, headers and content of the response to a GET of a body."""
    headers = {
        **extra_headers,
        "etag": body.etag,
        # a set may change, so caches must revalidate; without a change that transfers no body
        "cache-control": "no-cache",
        "accept-ranges": "bytes",
        "x-content-type-options": "nosniff",
    }
    if matches_etag(request_headers.get("if-none-match", ""), body.etag):
        return 304, headers, b""
    headers["content-type"] = media_type
    size = len(body.data)
    byte_range = None
    # a client must not combine ranges of two versions
    if request_headers.get("if-range", body.etag) == body.etag:
        byte_range = parse_range(request_headers.get("range", ""), size)
    if byte_range is None:
        return 200, headers, body.data
    if not byte_range:
        return 416, headers | {"content-range": f"bytes */{size}"}, b""
    headers["content-range"] = f"bytes {byte_range.start}-{byte_range.stop - 1}/{size}"
    return 206, headers, body.data[byte_range.start : byte_range.stop]


def matches_etag(if_none_match: str, etag: str) -> bool:
    """Return whether ``If-None-Match`` lists an entity tag, by weak comparison.

    Examples
    --------
    >>> matches_etag('"a", W/"b"', '"b"'), matches_etag("*", '"b"'), matches_etag("", '"b"')
    (True, True, False)
    """
    etags = [tag.strip().removeprefix("W/") for tag in if_none_match.split(",")]
    return etag in etags or etags == ["*"]


def parse_range(header: str, size: int) -> range | None:
    """Return the bytes that a ``Range`` header requests, or None if the header is ignored.

    Several ranges, other units and invalid ranges are ignored, as section 14.2 allows. The range
    is empty if it lies outside the body.

    Examples
    --------
    >>> parse_range("bytes=2-3", 9), parse_range("bytes=-4", 9), parse_range("bytes=9-", 9)
    (range(2, 4), range(5, 9), range(9, 9))
    >>> parse_range("bytes=0-1,4-5", 9), parse_range("bytes=3-2", 9)
    (None, None)
    """
    match = RANGE.fullmatch(header.strip())
    if match is None or not any(match.groups()):
        return None
    first, last = match.groups()
    # Python refuses to convert very long numbers, and no body has as many bytes
    if len(first) > 18 or len(last) > 18:
        return range(size, size) if len(first) > 18 else range(int(first or 0), size)
    if not first:
        return range(max(size - int(last), 0), size)
    if last and int(last) < int(first):
        return None
    return range(int(first), min(int(last) + 1, size) if last else size)
