"""Ranges of bytes through fsspec, with the etag and size of the file where an answer tells them.

fsspec's own verb gives bytes alone. So HTTP and S3 are asked one floor deeper, with the session of
their filesystem, and any other filesystem through that verb.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from virtualds.manifest import StorageOptions
from virtualds.options import get_options
from virtualds.store import StoreError
from virtualds.stores.answer import Answer
from virtualds.stores.retry import CONNECT_TIMEOUT, READ_TIMEOUT, BrokenAnswer, store_errors
from virtualds.urls import scheme_of

WHOLE = 64 * 2**20
"""Bytes of the largest file that is got as a whole from a server that knows no ranges."""

_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")


def located(url: str, options: StorageOptions | None) -> tuple[Any, str]:
    """Return the filesystem of fsspec that answers for a url, and the path in it.

    Raises
    ------
    StoreError
        There is none, or not with these options.
    """
    return _located(url, dict(options or {}))


def reading(url: str, options: StorageOptions | None) -> tuple[Any, str]:
    """Return as `located` a filesystem for many requests at a time that leaves retries to us."""
    settings = _SETTINGS.get(scheme_of(url), dict)
    filesystem, path = _located(url, settings(dict(options or {})))
    if _speaks(filesystem, "s3", "call_s3"):
        # waits of its own would multiply ours; no other part of virtualds has this instance
        filesystem.retries = 1
    return filesystem, path


def get_range(filesystem: Any, path: str, offset: int, length: int) -> Answer:
    """Ask for a range of a file, by one request."""
    for (protocol, needs), ask in _WAYS.items():
        if _speaks(filesystem, protocol, needs):
            return ask(filesystem, path, offset, length)
    [data] = filesystem.cat_ranges([path], [offset], [offset + length], on_error="return")
    if isinstance(data, store_errors()):
        raise data
    if isinstance(data, BaseException):
        raise StoreError(f"{type(data).__name__}: {data}") from data
    return Answer(bytes(data))


def get_beginning(filesystem: Any, path: str, length: int) -> Answer | None:
    """Ask for the first bytes of a file and its size by one request, None where that cannot be.

    Of a file whose parts cannot be had the size is None.
    """
    for (protocol, needs), ask in _BEGINNINGS.items():
        if _speaks(filesystem, protocol, needs):
            return ask(filesystem, path, length)
    return None


def _located(url: str, options: dict[str, Any]) -> tuple[Any, str]:
    # here, because importing it takes as long as importing the rest of virtualds
    import fsspec

    try:
        return fsspec.core.url_to_fs(url, **options)  # type: ignore[no-any-return]
    except (ImportError, TypeError, ValueError) as error:
        extra = "; install virtualds[remote]" if isinstance(error, ImportError) else ""
        raise StoreError(f"no filesystem for {url}: {error}{extra}") from error


def _speaks(filesystem: Any, protocol: str, needs: str) -> bool:
    """Whether it is of a protocol, and of the library whose inner verbs are known here."""
    spoken = filesystem.protocol
    return protocol in ((spoken,) if isinstance(spoken, str) else spoken) and hasattr(
        filesystem, needs
    )


def _demand_soundness(told: str | None, size: int | None, offset: int) -> None:
    """Refuse an answer before its body comes, by its Content-Range (RFC 9110, section 14.4).

    Without one the body is the whole file, as of a server that knows no ranges.
    """
    if told is None and (size is None or size > WHOLE):
        raise StoreError(
            f"the server knows no ranges and sends the whole file, of {size or 'unknown'} bytes; "
            f"copy the file to where ranges can be had"
        )
    if told is not None and (
        (found := _CONTENT_RANGE.match(told)) is None or int(found[1]) != offset
    ):
        raise StoreError(f"the server sent other bytes than were asked for: {told}")


def _answer(data: bytes, etag: str | None, told: str | None, offset: int, length: int) -> Answer:
    """Return a sound answer, once its body is there."""
    found = _CONTENT_RANGE.match(told or "")
    if found is None:
        return Answer(data[offset : offset + length], etag, len(data))
    if len(data) != (promised := int(found[2]) + 1 - int(found[1])):
        raise BrokenAnswer(f"the server sent {len(data)} of {promised} bytes")
    return Answer(data, etag, None if found[3] == "*" else int(found[3]))


# ---------------------------------------------------------------------- HTTP


@contextmanager
def _asked(filesystem: Any, path: str, offset: int, length: int) -> Iterator[tuple[Any, Any]]:
    """Ask a server for a range: gives its response, before the body, and how to get that."""
    from fsspec.asyn import sync

    loop = filesystem.loop
    session = sync(loop, filesystem.set_session)
    wanted = {"Range": f"bytes={offset}-{offset + length - 1}", "Accept-Encoding": "identity"}
    # a request's own headers come before those of the session
    headers = {**filesystem.kwargs.get("headers", {}), **wanted}
    given = {**filesystem.kwargs, "headers": headers, "raise_for_status": True}
    # an argument "timeout" would be for sync
    response = sync(loop, partial(session.get, filesystem.encode_url(path), **given))
    try:
        yield response, partial(sync, loop)
    finally:
        # what was not read is not sent any more
        loop.call_soon_threadsafe(response.close)


def _http(filesystem: Any, path: str, offset: int, length: int) -> Answer:
    with _asked(filesystem, path, offset, length) as (response, run):
        told = _content_range(response)
        _demand_soundness(told, response.content_length, offset)
        data = run(response.read)
    return _answer(data, response.headers.get("ETag"), told, offset, length)


def _http_beginning(filesystem: Any, path: str, length: int) -> Answer:
    with _asked(filesystem, path, 0, length) as (response, run):
        told, size = _content_range(response), response.content_length
        if told is None and (size is None or size > length):
            # who sends all for a part of it would do so every time
            data = run(partial(response.content.readexactly, length))
            return Answer(data, response.headers.get("ETag"))
        _demand_soundness(told, size, 0)
        data = run(response.read)
    return _answer(data, response.headers.get("ETag"), told, 0, length)


def _content_range(response: Any) -> str | None:
    found: str | None = response.headers.get("Content-Range") if response.status == 206 else None
    return found


def _with_many_connections(given: dict[str, Any]) -> dict[str, Any]:
    """Options of HTTP without aiohttp's limits: 100 connections to all hosts, 5 minutes a file."""
    if "get_client" in given or "connector" in given.get("client_kwargs", {}):
        return given
    return {**given, "get_client": _unlimited_session}


def _unlimited_session(*, loop: Any, **options: Any) -> Any:
    """Return a session, as a future: fsspec waits for what this returns, on its loop."""
    from aiohttp import ClientSession, ClientTimeout, TCPConnector

    # an answer may take any time while it goes on
    timeout = ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT, sock_read=READ_TIMEOUT)
    options = {"timeout": timeout, **options}
    ready = loop.create_future()
    ready.set_result(ClientSession(connector=TCPConnector(limit=0), **options))
    return ready


# ---------------------------------------------------------------------- S3


def _s3(filesystem: Any, path: str, offset: int, length: int) -> Answer:
    from fsspec.asyn import sync

    bucket, key, version = filesystem.split_path(path)
    asked = {"Bucket": bucket, "Key": key, "Range": f"bytes={offset}-{offset + length - 1}"}
    answer = filesystem.call_s3(
        "get_object", **asked, **({"VersionId": version} if version else {})
    )
    body, told = answer["Body"], answer.get("ContentRange")
    try:
        _demand_soundness(told, answer.get("ContentLength"), offset)
        data = sync(filesystem.loop, body.read)
    finally:
        body.close()
    return _answer(data, answer.get("ETag"), told, offset, length)


def _with_large_pool(given: dict[str, Any]) -> dict[str, Any]:
    """Options of S3 without botocore's limit of 10 connections, and without its retries."""
    ours = {
        "max_pool_connections": get_options().max_requests,
        "retries": {"total_max_attempts": 1},
    }
    return {**given, "config_kwargs": {**ours, **given.get("config_kwargs", {})}}


_SETTINGS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "http": _with_many_connections,
    "https": _with_many_connections,
    "s3": _with_large_pool,
    "s3a": _with_large_pool,
}
"""What options become for reading, by scheme."""

_WAYS: dict[tuple[str, str], Callable[[Any, str, int, int], Answer]] = {
    ("http", "encode_url"): _http,
    ("s3", "call_s3"): _s3,
}
"""Ways to get a range by protocol, and what a filesystem of it must have."""

_BEGINNINGS: dict[tuple[str, str], Callable[[Any, str, int], Answer]] = {
    ("http", "encode_url"): _http_beginning,
    ("s3", "call_s3"): lambda filesystem, path, length: _s3(filesystem, path, 0, length),
}
"""Ways to get the first bytes with the size, likewise."""
