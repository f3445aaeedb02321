"""Decode compressed streams piece by piece, so that damaged ones cannot allocate too much memory.

If the decoded length is unknown, a result may have `ALWAYS_ALLOWED` bytes, and `MAX_EXPANSION`
more for each encoded byte, but at most `MAX_DECODED`.
"""

from __future__ import annotations

import lzma
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

ALWAYS_ALLOWED, MAX_EXPANSION, MAX_DECODED = 2**26, 1000, 2**32

PIECE = 2**20
"""Bytes that are decoded at a time if the result may be too long."""

Buffer = bytes | bytearray | memoryview

Bytes = npt.NDArray[np.uint8]


def gunzip(data: Buffer) -> bytes:
    """Return the content of a gzip file (RFC 1952).

    Raises
    ------
    OSError
        The file is damaged, or decodes to more bytes than `limit_decoded_size` allows.
    """
    try:
        return decode_streams(partial(zlib.decompressobj, wbits=31), data, None)
    except (zlib.error, ValueError, EOFError) as error:
        raise OSError(f"gzip: {error}") from error


def decode_streams(
    decompressor: Callable[[], Any], data: Buffer, nbytes: int | None, *, lenient: bool = False
) -> bytes:
    """Decode consecutive streams, and stop if the result becomes too long.

    Parameters
    ----------
    decompressor : callable
        Returns a decompressor of one stream, like those of ``bz2``, ``lzma`` and ``zlib``.
    data : bytes-like
    nbytes : int or None
        Maximum length of the result, by default `limit_decoded_size`.
    lenient : bool
        Whether to ignore bytes after a stream that are not another stream, as ``bz2`` does.

    Raises
    ------
    ValueError
        The result is too long.
    EOFError
        The last stream is incomplete.
    """
    limit = limit_decoded_size(len(data)) if nbytes is None else nbytes
    parts: list[bytes] = []
    left, rest = limit, bytes(data)
    while rest:
        try:
            part, rest = _decode_stream(decompressor(), rest, left, limit)
        except (OSError, lzma.LZMAError):
            if not (lenient and parts):
                raise
            break
        parts.append(part)
        left -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def decode_stream(stream: Any, data: Buffer, nbytes: int | None) -> bytes:
    """Decode one stream and ignore the bytes after it; see `decode_streams`."""
    limit = limit_decoded_size(len(data)) if nbytes is None else nbytes
    return _decode_stream(stream, data, limit, limit)[0]


def _decode_stream(stream: Any, data: Buffer, left: int, limit: int) -> tuple[bytes, bytes]:
    """Return the decoded bytes of one stream, at most ``left``, and the bytes after it.

    ``limit`` is the number for the error message.
    """
    parts: list[bytes] = []
    # one byte more shows that the result is too long
    left += 1
    rest: Buffer = data
    while not stream.eof and left:
        parts.append(stream.decompress(rest, left))
        left -= len(parts[-1])
        # zlib returns input that it has not used yet; bz2 and lzma keep it
        rest = getattr(stream, "unconsumed_tail", b"")
        if not parts[-1] and not rest:
            break
    if not left:
        raise ValueError(f"decoded to more than the expected {limit} bytes")
    if not stream.eof:
        raise EOFError("the stream ends before its end mark")
    # RFC 1952 allows zeros after a stream
    return b"".join(parts), stream.unused_data.lstrip(b"\0")


def check_decoded_size(announced: int, nbytes: int | None, encoded: int) -> None:
    """Raise an error if the header of ``encoded`` bytes announces a wrong decoded length.

    Raises
    ------
    ValueError
        The length is not ``nbytes`` or, if that is None, exceeds `limit_decoded_size`.
    """
    if announced != nbytes if nbytes is not None else announced > limit_decoded_size(encoded):
        raise ValueError(
            f"{encoded} bytes say they decode to {announced}, not "
            f"{f'at most {limit_decoded_size(encoded)}' if nbytes is None else nbytes}"
        )


def limit_decoded_size(nbytes: int) -> int:
    """Return the maximum decoded length of ``nbytes`` encoded bytes."""
    return min(MAX_DECODED, ALWAYS_ALLOWED + MAX_EXPANSION * nbytes)
