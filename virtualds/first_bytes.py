"""How long a file on a server is, and its first bytes, by a single request.

Whoever answers a request for a range says how long the whole is (RFC 9110, section 14.4,
Content-Range). fsspec keeps that to itself, so it is asked here on fsspec's connections. What does
not go smoothly is left to the way of two requests, which knows how to try again and what to say.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

TOTAL = re.compile(r"bytes \d+-\d+/(\d+)")
"""Content-Range with the length of the whole."""
DENIED = (401, 403)
"""What a server answers to those who may not read (RFC 9110, sections 15.5.2 and 15.5.4)."""


class Beginning(NamedTuple):
    """The first bytes of a file, its size in bytes, and its etag if it has one.

    The size is None where parts of the file cannot be had.
    """

    data: bytes
    size: int | None
    etag: str | None


def of_http(filesystem: Any, path: str, length: int) -> Beginning | None:
    """Ask a web server; None if its answer is not the beginning of the file.

    Raises
    ------
    PermissionError
        It does not want to answer.
    """
    from aiohttp import ClientError
    from fsspec.asyn import FSTimeoutError, sync

    options = dict(filesystem.kwargs)
    headers = {"Accept-Encoding": "identity", **options.pop("headers", {})}
    headers["Range"] = f"bytes=0-{length - 1}"
    loop = filesystem.loop
    try:
        session = sync(loop, filesystem.set_session)
        answer = sync(loop, session.get, filesystem.encode_url(path), headers=headers, **options)
        try:
            if answer.status in DENIED:
                raise PermissionError(f"{answer.status} {answer.reason}")
            size = _size(answer)
            if size is None:
                return None
            read = partial(answer.content.readexactly, min(size, length))
            data = sync(loop, answer.read if answer.status == 206 or size <= length else read)
        finally:
            # what was not read is not sent any more
            loop.call_soon_threadsafe(answer.close)
    except (ClientError, EOFError, FSTimeoutError, TimeoutError):
        return None
    if len(data) != min(length, size):
        return None
    # who sends all for a part of it would do so every time
    known = answer.status == 206 or size <= length
    return Beginning(data, size if known else None, answer.headers.get("ETag"))


def _size(answer: Any) -> int | None:
    """Return the length of the file whose beginning an answer is, None if it is none."""
    if answer.headers.get("Content-Encoding", "identity") not in ("", "identity"):
        return None
    if answer.status == 206:
        found = TOTAL.fullmatch(answer.headers.get("Content-Range", ""))
        return int(found[1]) if found else None
    whole = answer.headers.get("Content-Length", "")
    return int(whole) if answer.status == 200 and whole.isdecimal() else None


def of_s3(filesystem: Any, path: str, length: int) -> Beginning | None:
    """Ask S3 through s3fs; None if the answer is not the range that was asked for."""
    from aiohttp import ClientError
    from botocore.exceptions import BotoCoreError
    from fsspec.asyn import sync

    if filesystem.version_aware:
        return None
    bucket, key, version = filesystem.split_path(path)
    named = {"Bucket": bucket, "Key": key, **({"VersionId": version} if version else {})}
    wanted = f"bytes=0-{length - 1}"
    try:
        answer = filesystem.call_s3("get_object", Range=wanted, **named, **filesystem.req_kw)
        body = answer["Body"]
        try:
            data = sync(filesystem.loop, body.read)
        finally:
            body.close()
    except (OSError, BotoCoreError, ClientError):
        return None
    found = TOTAL.fullmatch(answer.get("ContentRange", ""))
    if found is None or len(data) != min(length, int(found[1])):
        return None
    return Beginning(data, int(found[1]), answer.get("ETag"))


@contextmanager
def denials(protocols: Set[str]) -> Iterator[None]:
    """Turn into `PermissionError` what fsspec raises within the block if a web server denies."""
    if not protocols & {"http", "https"}:
        yield
        return
    from aiohttp import ClientResponseError

    try:
        yield
    except ClientResponseError as error:
        if error.status in DENIED:
            raise PermissionError(f"{error.status} {error.message}") from error
        raise


BEGINNINGS: Mapping[str, tuple[str, Callable[[Any, str, int], Beginning | None]]] = {
    "http": ("set_session", of_http),
    "https": ("set_session", of_http),
    "s3": ("call_s3", of_s3),
    "s3a": ("call_s3", of_s3),
}
"""Who is asked how by protocol, and what fsspec's filesystem has to have for it."""


def beginning(protocols: Set[str], filesystem: Any, path: str, length: int) -> Beginning | None:
    """Ask whoever a filesystem leads to; None if that takes more than one request."""
    for name in protocols:
        needs, ask = BEGINNINGS.get(name, ("", None))
        # other libraries than fsspec's own may answer for a protocol
        if ask is not None and hasattr(filesystem, needs):
            return ask(filesystem, path, length)
    return None
