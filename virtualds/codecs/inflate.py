"""Inflates zlib streams with the fastest library that is installed."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from virtualds.bounds import Buffer

SPARE = 64
"""Bytes of room beyond the last one, which libraries like zlib need to find the end."""


@dataclass(frozen=True)
class Inflater:
    """A library for streams of a known decoded length; it ignores bytes behind them.

    Parameters
    ----------
    zlib, gzip, deflate : callable
        Take a stream and the decoded length; the result may have another length. Of several gzip
        members only the first is decoded. ``deflate`` is a stream without a wrapper (RFC 1951).
    damage : tuple of exception types
        Errors that they raise.
    """

    zlib: Callable[[Buffer, int], Buffer]
    gzip: Callable[[Buffer, int], Buffer]
    deflate: Callable[[Buffer, int], Buffer]
    damage: tuple[type[Exception], ...]


def _make_libdeflate() -> Inflater:
    import deflate

    damage = (deflate.DeflateError, ValueError)
    return Inflater(
        deflate.zlib_decompress, deflate.gzip_decompress, deflate.deflate_decompress, damage
    )


def _make_isal() -> Inflater:
    from isal import isal_zlib

    return _wrap_zlib_like(isal_zlib)


def _make_zlib_ng() -> Inflater:
    from zlib_ng import zlib_ng

    return _wrap_zlib_like(zlib_ng)


def _make_python_zlib() -> Inflater:
    return _wrap_zlib_like(zlib)


def _wrap_zlib_like(module: Any) -> Inflater:
    def inflate(wbits: int, data: Buffer, nbytes: int) -> bytes:
        stream = module.decompressobj(wbits)
        found: bytes = stream.decompress(data, nbytes + SPARE)
        # the checksum is checked at the end of the stream only
        if not stream.eof:
            raise module.error("the stream is longer than its room, or ends before its end mark")
        return found

    return Inflater(
        partial(inflate, 15), partial(inflate, 31), partial(inflate, -15), (module.error,)
    )


INFLATERS = (_make_libdeflate, _make_isal, _make_zlib_ng, _make_python_zlib)
"""The fastest first; Python's own is always there."""


@cache
def find_inflater() -> Inflater:
    """Return the fastest library for deflate that is installed."""
    for library in INFLATERS[:-1]:
        try:
            return library()
        except ImportError:
            continue
    return _make_python_zlib()
