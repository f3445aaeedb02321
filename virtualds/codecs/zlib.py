"""Deflate, wrapped as zlib or gzip.

- zlib (RFC 1950): Zarr v2 ``{"id": "zlib", "level": 1}``; Zarr v3 ``numcodecs.zlib``; HDF5
  filter 1, "deflate" (HDF5 file format, IV.A.2.l).
- gzip (RFC 1952): Zarr v2 ``{"id": "gzip", "level": 1}``; Zarr v3 ``gzip``.
"""

from __future__ import annotations

import ctypes
import threading
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, ClassVar, Self

import numpy as np

from virtualds.bounds import Buffer, decode_stream, decode_streams
from virtualds.codecs.codec import Codec, CodecError, check_length
from virtualds.codecs.inflate import find_inflater
from virtualds.codecs.libraries import Bytes

SUCCESS = 0
"""Of ``enum libdeflate_result``: the stream fills the memory, and is not damaged."""


@dataclass(frozen=True)
class Zlib(Codec):
    """A zlib stream (RFC 1950)."""

    level: int = field(default=1, compare=False)

    zarr_v2_id: ClassVar[str] = "zlib"
    hdf5_filter: ClassVar[int | None] = 1
    tiff_compressions: ClassVar[tuple[int, ...]] = (8, 32946)

    @classmethod
    def from_hdf5(cls, values: Sequence[int], itemsize: int) -> Self:
        return cls(values[0] if values else 1)

    @property
    def encoding(self) -> dict[str, Any]:
        return {"zlib": True, "complevel": self.level}

    def decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        if nbytes is None:
            return self._decode_slowly(data, nbytes)
        fast = find_inflater()
        try:
            out = fast.zlib(data, nbytes)
        except fast.damage:
            return self._decode_slowly(data, nbytes)
        # libdeflate accepts a stream that is shorter than announced
        return out if len(out) == nbytes else self._decode_slowly(data, nbytes)

    @property
    def fills(self) -> bool:
        return find_libdeflate() is not None

    def decode_into(self, data: Buffer, out: Bytes) -> None:
        library = find_libdeflate()
        if not (library and library.inflate_zlib(data, out)):
            super().decode_into(data, out)

    def _decode_slowly(self, data: Buffer, nbytes: int | None) -> bytes:
        """Inflate with the standard library, whose errors are the clearest."""
        try:
            out = decode_stream(zlib.decompressobj(), data, nbytes)
        except (zlib.error, ValueError, EOFError) as error:
            raise CodecError(f"zlib: {error}") from error
        check_length(self, len(out), nbytes)
        return out


@dataclass(frozen=True)
class Gzip(Codec):
    """One or more gzip members (RFC 1952)."""

    level: int = field(default=1, compare=False)

    zarr_v2_id: ClassVar[str] = "gzip"
    zarr_v3_name: ClassVar[str | None] = "gzip"

    def decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        if nbytes is None or not _is_one_member(data, nbytes):
            return self._decode_members(data, nbytes)
        fast = find_inflater()
        try:
            out = fast.gzip(data, nbytes)
        except fast.damage:
            return self._decode_members(data, nbytes)
        return out if len(out) == nbytes else self._decode_members(data, nbytes)

    @property
    def fills(self) -> bool:
        return find_libdeflate() is not None

    def decode_into(self, data: Buffer, out: Bytes) -> None:
        library = find_libdeflate()
        is_filled = library and _is_one_member(data, out.size) and library.inflate_gzip(data, out)
        if not is_filled:
            super().decode_into(data, out)

    def _decode_members(self, data: Buffer, nbytes: int | None) -> bytes:
        """Inflate member by member with the standard library, which finds the end of each."""
        try:
            out = decode_streams(partial(zlib.decompressobj, wbits=31), data, nbytes)
        except (zlib.error, ValueError, EOFError) as error:
            raise CodecError(f"gzip: {error}") from error
        check_length(self, len(out), nbytes)
        return out


def _is_one_member(data: Buffer, nbytes: int) -> bool:
    """Say whether the last four bytes, the length of the last member, equal ``nbytes``."""
    return int.from_bytes(data[-4:], "little") == nbytes % 2**32


# ---------------------------------------------------------------------- libdeflate


class Libdeflate:
    """libdeflate, called from any number of threads.

    Parameters
    ----------
    library : ctypes.CDLL

    Raises
    ------
    AttributeError
        The library lacks its functions.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._allocate = library.libdeflate_alloc_decompressor
        self._allocate.argtypes, self._allocate.restype = [], ctypes.c_void_p
        self._free = library.libdeflate_free_decompressor
        self._free.argtypes, self._free.restype = [ctypes.c_void_p], None
        self._zlib = _declare_types(library.libdeflate_zlib_decompress)
        self._gzip = _declare_types(library.libdeflate_gzip_decompress)
        self._threads = threading.local()

    def inflate_zlib(self, data: Buffer, out: Bytes) -> bool:
        """Inflate a zlib stream; say whether it is sound and fills ``out``, which is contiguous."""
        return self._inflate(self._zlib, data, out)

    def inflate_gzip(self, data: Buffer, out: Bytes) -> bool:
        """Inflate one gzip member; say whether it is sound and fills ``out``."""
        return self._inflate(self._gzip, data, out)

    def _inflate(self, function: Any, data: Buffer, out: Bytes) -> bool:
        if not len(data):
            # np.frombuffer refuses empty buffers
            return False
        source = np.frombuffer(data, np.uint8)
        decompressor = self._get_decompressor()
        # without a length argument, libdeflate accepts only streams that fill the memory
        result = function(
            decompressor.address, _address_of(source), source.size, _address_of(out), out.size, None
        )
        return bool(result == SUCCESS)

    def _get_decompressor(self) -> _Decompressor:
        """Return the decompressor of this thread: no two threads may use one."""
        try:
            found: _Decompressor = self._threads.decompressor
        except AttributeError:
            found = self._threads.decompressor = _Decompressor(self._allocate, self._free)
        return found


class _Decompressor:
    """A decompressor of libdeflate, freed with its thread."""

    def __init__(self, allocate: Any, free: Any) -> None:
        self._free = free
        self.address = allocate()
        if not self.address:
            raise MemoryError("libdeflate has no memory for a decompressor")

    def __del__(self) -> None:
        self._free(self.address)


def _declare_types(function: Any) -> Any:
    """Declare a function of a decompressor, stream and its size, memory and its size.

    Its last argument receives the number of bytes.
    """
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    function.argtypes = [pointer, pointer, size, pointer, size, pointer]
    function.restype = ctypes.c_int
    return function


def _address_of(array: Bytes) -> int:
    found: int = array.__array_interface__["data"][0]
    return found


@cache
def find_libdeflate() -> Libdeflate | None:
    """Return libdeflate, or None where the package deflate lacks it or hides its functions."""
    try:
        from deflate import _deflate

        return Libdeflate(ctypes.CDLL(_deflate.__file__))
    except (ImportError, OSError, AttributeError):
        return None
