"""libdeflate's own functions, which inflate into memory that is there already.

What the package ``deflate`` offers in Python makes new memory for every chunk. Where the allocator
gives memory back at once, as dask sets it for its workers (``MALLOC_TRIM_THRESHOLD_``), a quarter
of the time of a read went into fresh pages. The extension module of that package exports the C
interface of libdeflate (``libdeflate.h``), which is stable, but no promise of the package: a test
says when it is gone. Without them every chunk is inflated into new memory, and nothing else is
different.
"""

from __future__ import annotations

import ctypes
import threading
from functools import cache
from typing import Any

import numpy as np

from virtualds.decompressors import Buffer, Bytes

SUCCESS = 0
"""Of ``enum libdeflate_result``: the stream fills the memory, and is not damaged."""


class Libdeflate:
    """libdeflate, called from any number of threads.

    Parameters
    ----------
    library : ctypes.CDLL

    Raises
    ------
    AttributeError
        It is not in there.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._allocate = library.libdeflate_alloc_decompressor
        self._allocate.argtypes, self._allocate.restype = [], ctypes.c_void_p
        self._free = library.libdeflate_free_decompressor
        self._free.argtypes, self._free.restype = [ctypes.c_void_p], None
        self._zlib = _typed(library.libdeflate_zlib_decompress)
        self._gzip = _typed(library.libdeflate_gzip_decompress)
        self._threads = threading.local()

    def zlib_into(self, data: Buffer, out: Bytes) -> bool:
        """Inflate a zlib stream; say whether it is sound and fills ``out``, which is contiguous."""
        return self._inflate(self._zlib, data, out)

    def gzip_into(self, data: Buffer, out: Bytes) -> bool:
        """Inflate one gzip member; say whether it is sound and fills ``out``."""
        return self._inflate(self._gzip, data, out)

    def _inflate(self, function: Any, data: Buffer, out: Bytes) -> bool:
        if not len(data):
            # numpy makes no array of no bytes
            return False
        source = np.frombuffer(data, np.uint8)
        decompressor = self._decompressor()
        # asked for no length, it takes only a stream that decodes to as many bytes as there is room
        result = function(
            decompressor.address, _address(source), source.size, _address(out), out.size, None
        )
        return bool(result == SUCCESS)

    def _decompressor(self) -> _Decompressor:
        """Return the one of this thread: no two threads may use one."""
        try:
            found: _Decompressor = self._threads.decompressor
        except AttributeError:
            found = self._threads.decompressor = _Decompressor(self._allocate, self._free)
        return found


class _Decompressor:
    """Memory of libdeflate's, freed with the thread that it belongs to."""

    def __init__(self, allocate: Any, free: Any) -> None:
        self._free = free
        self.address = allocate()
        if not self.address:
            raise MemoryError("libdeflate has no memory for a decompressor")

    def __del__(self) -> None:
        self._free(self.address)


def _typed(function: Any) -> Any:
    """Declare a function of a decompressor, stream and its size, memory and its size.

    Its last argument is where it writes how many bytes there are.
    """
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    function.argtypes = [pointer, pointer, size, pointer, size, pointer]
    function.restype = ctypes.c_int
    return function


def _address(array: Bytes) -> int:
    found: int = array.__array_interface__["data"][0]
    return found


@cache
def libdeflate() -> Libdeflate | None:
    """Return libdeflate, or None where the package has not brought it, or keeps it to itself."""
    try:
        from deflate import _deflate

        return Libdeflate(ctypes.CDLL(_deflate.__file__))
    except (ImportError, OSError, AttributeError):
        return None
