"""What HTTP says of one resource: conditions, single byte ranges, and headers (RFC 9110)."""

from __future__ import annotations

import re
from collections.abc import Mapping

from virtualds_server.bodies import Body

CORS = {"access-control-allow-origin": "*"}
"""Any page may read: nothing that is served depends on who asks."""
EXPOSED = CORS | {
    "access-control-expose-headers": "ETag, Accept-Ranges, Content-Length, Content-Range"
}
PREFLIGHT = CORS | {
    "access-control-allow-methods": "GET, HEAD",
    "access-control-allow-headers": "Range, If-None-Match, If-Range, Cache-Control, Authorization",
    "access-control-max-age": "86400",
}
"""The answer to a browser that asks whether it may ask (Fetch standard, CORS preflight)."""
RANGE = re.compile(r"bytes\s*=\s*(\d*)\s*-\s*(\d*)", re.ASCII | re.IGNORECASE)
METADATA_NAMES = frozenset({"zarr.json", ".zgroup", ".zarray", ".zattrs", ".zmetadata"})


class Answer:
    """The status, headers and content with which a request for a body is answered."""

    def __init__(self, status: int, headers: dict[str, str], content: bytes = b"") -> None:
        self.status, self.headers, self.content = status, headers, content


def answer_request(
    body: Body, headers: Mapping[str, str], media_type: str, more: Mapping[str, str] = EXPOSED
) -> Answer:
    """Answer a GET of a body, as the headers of the request ask for it; ``more`` are headers."""
    said = {
        **more,
        "etag": body.etag,
        # a set may change: caches ask each time, which costs no transfer if it has not
        "cache-control": "no-cache",
        "accept-ranges": "bytes",
        "x-content-type-options": "nosniff",
    }
    if is_known(headers.get("if-none-match", ""), body.etag):
        return Answer(304, said)
    said["content-type"] = media_type
    asked = headers.get("range")
    # a range of another version is not a part of this one
    if asked is None or headers.get("if-range", body.etag) != body.etag:
        return Answer(200, said, body.data)
    size = len(body.data)
    if (part := find_range(asked, size)) is None:
        return Answer(200, said, body.data)
    if part.start >= part.stop:
        return Answer(416, said | {"content-range": f"bytes */{size}"})
    said["content-range"] = f"bytes {part.start}-{part.stop - 1}/{size}"
    return Answer(206, said, body.data[part.start : part.stop])


def is_known(condition: str, etag: str) -> bool:
    """Return whether a tag is among those of ``If-None-Match``, compared weakly.

    Examples
    --------
    >>> is_known('"a", W/"b"', '"b"'), is_known("*", '"b"'), is_known("", '"b"')
    (True, True, False)
    """
    known = [one.strip().removeprefix("W/") for one in condition.split(",")]
    return etag in known or known == ["*"]


def find_range(asked: str, size: int) -> range | None:
    """Return the bytes that a header ``Range`` asks for, or None if it is to be ignored.

    Several ranges, other units and what is not valid are ignored, as section 14.2 allows. An empty
    range means that none of the bytes exists.

    Examples
    --------
    >>> find_range("bytes=2-3", 9), find_range("bytes=-4", 9), find_range("bytes=9-", 9)
    (range(2, 4), range(5, 9), range(9, 9))
    >>> find_range("bytes=0-1,4-5", 9), find_range("bytes=3-2", 9)
    (None, None)
    """
    found = RANGE.fullmatch(asked.strip())
    if found is None or not any(found.groups()):
        return None
    first, last = found.groups()
    # numbers of any length are lengths that no body has
    if len(first) > 18 or len(last) > 18:
        return range(size, size) if len(first) > 18 else range(int(first or 0), size)
    if not first:
        return range(max(size - int(last), 0), size)
    if last and int(last) < int(first):
        return None
    return range(int(first), min(int(last) + 1, size) if last else size)
