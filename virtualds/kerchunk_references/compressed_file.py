"""Whole files in gzip or Zstandard: known by their first bytes, written by their suffix."""

from __future__ import annotations

from typing import Any

from virtualds.bounds import swollen
from virtualds.errors import FormatError

MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
"""First bytes of a file (RFC 1952, 2.3.1; RFC 8878, 3.1.1)."""
SUFFIXES = {".gz": "gzip", ".zst": "zstd"}
BLOCK = 2**24


def expanded(data: bytes, url: str) -> bytes:
    """Return the content of a file that may be compressed.

    Raises
    ------
    FormatError
        It is damaged, or swells as no text does.
    """
    if (codec := _codec_of(data)) is None:
        return data
    most = swollen(len(data))
    parts: list[bytes] = []
    size = 0
    try:
        stream = _reader(data, codec)
        while part := stream.read(BLOCK):
            parts.append(part)
            size += len(part)
            if size > most:
                raise FormatError(
                    f"{url}: its {len(data)} bytes expand to more than {most}; expand it yourself "
                    f"if you trust it"
                )
    except OSError as error:
        raise FormatError(
            f"{url}: it begins like {codec}, but does not expand ({error}); fetch it again"
        ) from error
    return b"".join(parts)


def beginning(head: bytes, size: int = 4096) -> bytes | None:
    """Return how the content of a file begins, None if ``head``, its first bytes, do not tell."""
    if (codec := _codec_of(head)) is None:
        return head
    try:
        return bytes(_reader(head, codec).read(size))
    except OSError:
        return None


def compressed(data: bytes, url: str) -> bytes:
    """Return what a file of this name is to hold."""
    return _compressed(data, next((c for end, c in SUFFIXES.items() if url.endswith(end)), None))


def compressed_like(before: bytes, data: bytes) -> bytes:
    """Return what a file is to hold that held ``before``."""
    return _compressed(data, _codec_of(before))


def _compressed(data: bytes, codec: str | None) -> bytes:
    if codec is None:
        return data
    if codec == "gzip":
        import gzip

        return gzip.compress(data, 6, mtime=0)
    import pyarrow as pa

    return bytes(pa.Codec("zstd", 9).compress(data, asbytes=True))


def _codec_of(data: bytes) -> str | None:
    return next((codec for magic, codec in MAGIC.items() if data.startswith(magic)), None)


def _reader(data: bytes, codec: str) -> Any:
    import pyarrow as pa

    return pa.CompressedInputStream(pa.BufferReader(data), codec)
