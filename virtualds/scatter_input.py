"""Bytes of a file, read straight into the rows of an array: ``preadv(2)`` with many buffers.

A chunk without codecs is mostly a box of the result, whose rows lie apart. The system can copy
its bytes to their places itself, where they would be copied once more otherwise. ``os.preadv``
can too, but takes a Python object for every row, and to make these takes longer than to copy what
they stand for. The table of rows that the function of the C library takes is a few operations of
numpy.
"""

from __future__ import annotations

import ctypes
import errno
import os
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

MOST_ROWS = 1024
"""That one call takes: IOV_MAX of Linux and macOS (POSIX promises 16, and nobody has fewer)."""


def row_bytes(target: Array) -> int:
    """Return the bytes of the longest stretches of memory that an array is made of.

    Examples
    --------
    >>> result = np.zeros((4, 6, 8), "i4")
    >>> row_bytes(result), row_bytes(result[1]), row_bytes(result[1, :, 2:4])
    (768, 192, 8)
    """
    return _rows(target.shape, target.strides, target.itemsize).length


def read_into(handle: int, offset: int, target: Array) -> int:
    """Read the bytes of an array from a file, in the order of its elements.

    Parameters
    ----------
    handle : int
        A file descriptor.
    offset : int
        Where in the file the first byte lies.
    target : numpy.ndarray
        Of any strides; as many bytes are read as it has.

    Returns
    -------
    int
        The bytes that there were, fewer than the array has if the file ends within.

    Raises
    ------
    OSError
        They cannot be read.
    """
    if not target.flags.writeable:
        raise ValueError("the array is read-only")
    done = 0
    # one call may stop before the end, at 2 GiB at last
    while done < target.nbytes and (count := _read_some(handle, offset + done, target, done)):
        done += count
    return done


def _read_some(handle: int, offset: int, target: Array, done: int) -> int:
    """Read what one call reads, and the bytes of the array that are done are not among it."""
    if target.flags.c_contiguous:
        return os.preadv(handle, [target.reshape(-1).view(np.uint8)[done:].data], offset)
    rows = _rows(target.shape, target.strides, target.itemsize)
    return _preadv(handle, rows.table(target.__array_interface__["data"][0], done), offset)


class _Rows(NamedTuple):
    """The stretches of memory that an array is made of.

    ``steps`` are their distances from the first one, in bytes; each has ``length`` bytes.
    """

    steps: npt.NDArray[np.uintp]
    length: int

    def table(self, address: int, done: int) -> Array:
        """Return address and length of as many as one call takes, after some bytes of all.

        It is an array of ``iovec``, as ``<sys/uio.h>`` has them.
        """
        row, part = divmod(done, self.length)
        steps = self.steps[row : row + MOST_ROWS]
        table = np.empty((steps.size, 2), np.uintp)
        table[:, 0], table[:, 1] = steps + np.uintp(address), self.length
        table[0] = table[0, 0] + part, self.length - part
        return table


@lru_cache(maxsize=8)
def _rows(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> _Rows:
    """Return the rows of arrays of one shape and strides: most chunks of an array are alike."""
    apart, length = len(shape), itemsize
    while apart and (strides[apart - 1] == length or shape[apart - 1] == 1):
        apart -= 1
        length *= shape[apart]
    steps = np.zeros((), np.intp)
    for size, stride in zip(shape[:apart], strides[:apart], strict=True):
        steps = np.add.outer(steps, np.arange(size) * stride)
    # of a negative one the address wraps around, as in C
    return _Rows(steps.ravel().astype(np.uintp), length)


def _preadv(handle: int, rows: Array, offset: int) -> int:
    while True:
        count: int = _function()(handle, rows.__array_interface__["data"][0], len(rows), offset)
        if count >= 0:
            return count
        if (number := ctypes.get_errno()) != errno.EINTR:
            raise OSError(number, os.strerror(number))


@cache
def _function() -> Any:
    """Return ``preadv`` of the C library, with offsets of 64 bits."""
    library = ctypes.CDLL(None, use_errno=True)
    # where offsets have 32 bits otherwise, as in glibc for such processors, it has another name
    function = getattr(library, "preadv64", None) or library.preadv
    function.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_int64]
    function.restype = ctypes.c_ssize_t
    return function
