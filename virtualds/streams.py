"""Decode streams piece by piece, so that a damaged one cannot allocate too much memory."""

from __future__ import annotations

import lzma
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

MIN_LIMIT, MAX_RATIO, MAX_DECODED = 2**26, 1000, 2**32
"""The limits of an unknown decoded length: the number of bytes that is always allowed, the number
of further bytes for each encoded byte, and the maximum."""

PIECE_BYTES = 2**20
"""The number of bytes that are decoded at a time if the result may be too long."""

Buffer = bytes | bytearray | memoryview

Bytes = npt.NDArray[np.uint8]


def gunzip(data: Buffer) -> bytes:
    """Return the content of a gzip file (RFC 1952) of unknown decoded length.

    Raises
    ------
    OSError
        The file is damaged, or expands more than any text does.
    """
    try:
        return decode_streams(partial(zlib.decompressobj, wbits=31), data, None)
    except (zlib.error, ValueError, EOFError) as error:
        raise OSError(f"gzip: {error}") from error


def decode_streams(
    decompressor: Callable[[], Any],
    data: Buffer,
    nbytes: int | None,
    *,
    ignore_trailing: bool = False,
) -> bytes:
    """Decode consecutive streams, and stop if the result becomes too long.

    Parameters
    ----------
    decompressor : callable
        Returns a decompressor of one stream, like those of ``bz2``, ``lzma`` and ``zlib``.
    nbytes : int or None
        Length of the result; None where only `limit_decoded_size` limits it.
    ignore_trailing : bool
        Whether to ignore other bytes after a stream, as ``bz2`` does.

    Raises
    ------
    ValueError
        The streams decode to more bytes than expected or allowed.
    EOFError
        The last stream is truncated.
    """
    max_bytes = limit_decoded_size(len(data)) if nbytes is None else nbytes
    parts: list[bytes] = []
    room, rest = max_bytes, bytes(data)
    while rest:
        try:
            part, rest = _decode_stream(decompressor(), rest, room, max_bytes)
        except (OSError, lzma.LZMAError):
            if not (ignore_trailing and parts):
                raise
            break
        parts.append(part)
        room -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def decode_stream(stream: Any, data: Buffer, nbytes: int | None) -> bytes:
    """Decode one stream and ignore the bytes after it; see `decode_streams`."""
    max_bytes = limit_decoded_size(len(data)) if nbytes is None else nbytes
    return _decode_stream(stream, data, max_bytes, max_bytes)[0]


def _decode_stream(stream: Any, data: Buffer, room: int, max_bytes: int) -> tuple[bytes, bytes]:
    """Return the decoded bytes of one stream, and the bytes after it."""
    parts: list[bytes] = []
    remaining = room + 1
    rest: Buffer = data
    while not stream.eof and remaining:
        parts.append(stream.decompress(rest, remaining))
        remaining -= len(parts[-1])
        # zlib returns input that it has not consumed, bz2 and lzma keep it
        rest = getattr(stream, "unconsumed_tail", b"")
        if not parts[-1] and not rest:
            break
    if not remaining:
        raise ValueError(f"decoded to more than the expected {max_bytes} bytes")
    if not stream.eof:
        raise EOFError("the stream ends before its end mark")
    # gzip ignores zeros after a stream, such as those that pad blocks
    return b"".join(parts), stream.unused_data.lstrip(b"\0")


def check_decoded_size(announced: int, nbytes: int | None, encoded: int) -> None:
    """Raise an error for a wrong decoded length in the header of encoded bytes, before decoding.

    Raises
    ------
    ValueError
        The length is not ``nbytes``, or, where that is None, more than `limit_decoded_size` allows.
    """
    if announced != nbytes if nbytes is not None else announced > limit_decoded_size(encoded):
        raise ValueError(
            f"the header of {encoded} bytes announces {announced} decoded bytes, not "
            f"{f'at most {limit_decoded_size(encoded)}' if nbytes is None else nbytes}"
        )


def limit_decoded_size(nbytes: int) -> int:
    """Return the maximum number of bytes to which ``nbytes`` encoded bytes may decode."""
    return min(MAX_DECODED, MIN_LIMIT + MAX_RATIO * nbytes)
