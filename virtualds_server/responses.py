"""HTTP responses to requests for one body: preconditions, byte ranges and headers (RFC 9110)."""

from __future__ import annotations

import re
from collections.abc import Mapping

from virtualds_server.bodies import Body

CORS = {"access-control-allow-origin": "*"}
"""Any page may read: no response depends on who sends the request."""
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
        # a set may change: caches revalidate each time, which transfers nothing if it has not
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
