"""Ranges of bytes through fsspec, with the etag and size of the file where the response has them.

fsspec's own method returns bytes alone. So HTTP and object stores are asked one layer deeper, with
the session of their filesystem; other filesystems are asked through that method.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from virtualds.bounds import gunzip
from virtualds.stores import azure_blobs
from virtualds.stores.filesystems import speaks
from virtualds.stores.http_session import demand_no_login
from virtualds.stores.responses import Answer
from virtualds.stores.retry import BrokenAnswer, limit_time, list_store_errors
from virtualds.stores.store import StoreError

F = TypeVar("F")

WHOLE = 64 * 2**20
"""Bytes of the largest file that is read as a whole from a server without ranges."""

PIECE = 2**18
"""Bytes of an object that are read at a time."""

Judge = Callable[[Any], int | None]
"""Takes the headers of a response: refuses it, or returns the number of bytes to read at most."""

_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")


def get_range(filesystem: Any, path: str, offset: int, length: int) -> Answer:
    """Ask for a range of a file, by one request."""
    if (ask := _find_function(_RANGE_FETCHERS, filesystem)) is not None:
        return ask(filesystem, path, offset, length)
    [data] = filesystem.cat_ranges([path], [offset], [offset + length], on_error="return")
    if isinstance(data, list_store_errors()):
        raise data
    if isinstance(data, BaseException):
        raise StoreError(f"{type(data).__name__}: {data}") from data
    return Answer(bytes(data))


def get_beginning(filesystem: Any, path: str, length: int) -> Answer | None:
    """Ask for the first bytes of a file and its size by one request, None where that is impossible.

    The size is None where the server sends no parts of the file.
    """
    ask = _find_function(_BEGINNINGS, filesystem)
    return None if ask is None else ask(filesystem, path, length)


def get_whole(filesystem: Any, path: str) -> bytes:
    """Ask for a whole file, by one request."""
    if (ask := _find_function(_WHOLES, filesystem)) is not None:
        return ask(filesystem, path)
    return bytes(call_in_time(filesystem, "cat_file", path))


def get_info(filesystem: Any, path: str) -> dict[str, Any]:
    """Ask what a filesystem says of a file or folder."""
    if (ask := _find_function(_INFOS, filesystem)) is not None:
        return ask(filesystem, path)
    found: dict[str, Any] = call_in_time(filesystem, "info", path)
    return found


def call_in_time(filesystem: Any, verb: str, path: str) -> Any:
    """Call a method of a filesystem within the time that one request may take."""
    # a filesystem that wraps another may claim to be asynchronous where the other is not
    if not getattr(filesystem, "fs", filesystem).async_impl:
        return getattr(filesystem, verb)(path)
    from fsspec.asyn import sync

    async def done() -> Any:
        async with limit_time():
            return await getattr(filesystem, f"_{verb}")(path)

    return sync(filesystem.loop, done)


def _find_function(table: Mapping[tuple[str, str], F], filesystem: Any) -> F | None:
    """Return the function of a table for a filesystem."""
    fitting = (ask for key, ask in table.items() if speaks(filesystem, *key))
    return next(fitting, None)


def _demand_soundness(told: str | None, size: int | None, offset: int) -> None:
    """Refuse a response by its Content-Range, before its body comes (RFC 9110, section 14.4).

    Without Content-Range the body is the whole file, from a server without ranges.
    """
    if told is None and (size is None or size > WHOLE):
        raise StoreError(
            f"the server knows no ranges and sends the whole file, of {size or 'unknown'} bytes; "
            f"copy the file to a server with ranges"
        )
    if told is not None and (
        (found := _CONTENT_RANGE.match(told)) is None or int(found[1]) != offset
    ):
        raise StoreError(f"the server sent other bytes than were asked for: {told}")


def _build_answer(
    data: bytes, etag: str | None, told: str | None, offset: int, length: int
) -> Answer:
    """Return the answer of a complete response."""
    found = _CONTENT_RANGE.match(told or "")
    if found is None:
        return Answer(data[offset : offset + length], etag, len(data))
    if len(data) != (promised := int(found[2]) + 1 - int(found[1])):
        raise BrokenAnswer(f"the server sent {len(data)} of {promised} bytes")
    return Answer(data, etag, None if found[3] == "*" else int(found[3]))


# ---------------------------------------------------------------------- HTTP, Google


async def _ask_server(
    filesystem: Any, path: str, wanted: dict[str, str], judge: Judge
) -> _Response:
    """Send a request, and read as much of the response as ``judge`` allows by its headers."""
    session = await filesystem.set_session()
    given = {"raise_for_status": False, **filesystem.kwargs}
    # headers of a request override those of the session
    headers = {**given.get("headers", {}), **wanted, "Accept-Encoding": "identity"}
    how = {**given, "headers": headers, "auto_decompress": False}
    async with limit_time() as pace:
        response = await session.get(filesystem.encode_url(path), **how)
        try:
            # not by aiohttp: it forgets redirects in its error
            response.raise_for_status()
            demand_no_login(response)
            most = judge(response)
            return _Response(response, await pace.gather(response.content.iter_any(), most))
        finally:
            # stops the server from sending the rest
            response.close()


class _Response(NamedTuple):
    """The response of a server, and its bytes."""

    response: Any
    data: bytes


def _fetch_http(filesystem: Any, path: str, offset: int, length: int) -> Answer:
    def judge(response: Any) -> None:
        _demand_identity(response)
        _demand_soundness(_content_range_of(response), response.content_length, offset)

    response, data = _fetch_http_part(filesystem, path, offset, length, judge)
    return _build_answer(
        data, _etag_of(filesystem, response), _content_range_of(response), offset, length
    )


def _fetch_http_beginning(filesystem: Any, path: str, length: int) -> Answer:
    def judge(response: Any) -> int | None:
        _demand_identity(response)
        size = response.content_length
        if _content_range_of(response) is None and (size is None or size > length):
            # a server that ignores ranges here ignores them always
            return length
        _demand_soundness(_content_range_of(response), size, 0)
        return None

    response, data = _fetch_http_part(filesystem, path, 0, length, judge)
    told, size = _content_range_of(response), response.content_length
    if told is None and (size is None or size > length):
        if len(data) < length:
            raise BrokenAnswer(f"the server sent {len(data)} bytes of an unknown number")
        return Answer(data, _etag_of(filesystem, response))
    return _build_answer(data, _etag_of(filesystem, response), told, 0, length)


def _fetch_http_part(
    filesystem: Any, path: str, offset: int, length: int, judge: Judge
) -> _Response:
    from fsspec.asyn import sync

    wanted = {"Range": f"bytes={offset}-{offset + length - 1}"}
    found: _Response = sync(filesystem.loop, _ask_server, filesystem, path, wanted, judge)
    return found


def _fetch_http_whole(filesystem: Any, path: str) -> bytes:
    from fsspec.asyn import sync

    response, data = sync(filesystem.loop, _ask_server, filesystem, path, {}, lambda _: None)
    encoding = _encoding_of(response)
    if encoding in ("gzip", "x-gzip"):
        # some servers send compressed files regardless of the request (RFC 9110, section 8.4)
        return gunzip(data)
    _demand_identity(response)
    return bytes(data)


def _etag_of(filesystem: Any, response: Any) -> str | None:
    """Return what names the version of a file in the headers of a response."""
    found: str | None = response.headers.get(getattr(filesystem, "version_header", "ETag"))
    return found


def _encoding_of(response: Any) -> str:
    return str(response.headers.get("Content-Encoding", "identity")).strip().lower() or "identity"


def _demand_identity(response: Any) -> None:
    """Refuse a compressed response, whose ranges are not those of the file."""
    if (encoding := _encoding_of(response)) != "identity":
        raise StoreError(
            f"the server sends the file compressed (Content-Encoding: {encoding}), though it was "
            f"asked not to; serve it uncompressed, or copy it to local disk"
        )


def _content_range_of(response: Any) -> str | None:
    found: str | None = response.headers.get("Content-Range") if response.status == 206 else None
    return found


# ---------------------------------------------------------------------- S3


async def _ask_s3(
    filesystem: Any, path: str, wanted: dict[str, str], judge: Judge
) -> tuple[Any, bytes]:
    """Ask for an object, and return the response and the bytes."""
    bucket, key, version = filesystem.split_path(path)
    asked = {"Bucket": bucket, "Key": key, **wanted, **({"VersionId": version} if version else {})}
    async with limit_time() as pace:
        answer = await filesystem._call_s3("get_object", **asked)
        body = answer["Body"]

        async def parts() -> AsyncIterator[bytes]:
            while part := await body.read(PIECE):
                yield part

        try:
            return answer, await pace.gather(parts(), judge(answer))
        finally:
            body.close()


def _fetch_s3(filesystem: Any, path: str, offset: int, length: int) -> Answer:
    from fsspec.asyn import sync

    def judge(answer: Any) -> None:
        _demand_soundness(answer.get("ContentRange"), answer.get("ContentLength"), offset)

    wanted = {"Range": f"bytes={offset}-{offset + length - 1}"}
    answer, data = sync(filesystem.loop, _ask_s3, filesystem, path, wanted, judge)
    return _build_answer(data, answer.get("ETag"), answer.get("ContentRange"), offset, length)


def _fetch_s3_whole(filesystem: Any, path: str) -> bytes:
    from fsspec.asyn import sync

    answer, data = sync(filesystem.loop, _ask_s3, filesystem, path, {}, lambda _: None)
    if len(data) != answer.get("ContentLength", len(data)):
        raise BrokenAnswer(f"the server sent {len(data)} of {answer['ContentLength']} bytes")
    return bytes(data)


_RANGE_FETCHERS: dict[tuple[str, str], Callable[[Any, str, int, int], Answer]] = {
    ("http", "encode_url"): _fetch_http,
    ("gs", "encode_url"): _fetch_http,
    ("s3", "_call_s3"): _fetch_s3,
    ("abfs", "service_client"): azure_blobs.fetch_range,
}
"""Functions that get a range, by protocol and a method that the filesystem must have."""

_BEGINNINGS: dict[tuple[str, str], Callable[[Any, str, int], Answer]] = {
    ("http", "encode_url"): _fetch_http_beginning,
    ("gs", "encode_url"): _fetch_http_beginning,
    ("s3", "_call_s3"): lambda filesystem, path, length: _fetch_s3(filesystem, path, 0, length),
    ("abfs", "service_client"): lambda filesystem, path, length: azure_blobs.fetch_range(
        filesystem, path, 0, length
    ),
}
"""Functions that get the first bytes with the size, likewise."""

_WHOLES: dict[tuple[str, str], Callable[[Any, str], bytes]] = {
    ("http", "encode_url"): _fetch_http_whole,
    ("gs", "encode_url"): _fetch_http_whole,
    ("s3", "_call_s3"): _fetch_s3_whole,
    ("abfs", "service_client"): azure_blobs.fetch_whole,
}
"""Functions that get a whole file, likewise."""

_INFOS: dict[tuple[str, str], Callable[[Any, str], dict[str, Any]]] = {
    ("abfs", "service_client"): azure_blobs.describe,
}
"""Functions that describe a file, likewise."""
