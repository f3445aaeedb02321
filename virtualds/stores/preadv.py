"""Reads bytes of a file straight into the rows of an array: ``preadv(2)`` with many buffers.

A chunk without codecs usually fills a box of the result, whose rows lie apart in memory. With
``preadv`` the system copies the bytes to these rows, which saves a second copy. ``os.preadv`` takes
a Python object for every row, and making these objects takes longer than copying the rows. So this
module calls the function of the C library: numpy makes its table of rows in a few operations.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

MOST_ROWS = 1024
"""The most rows of one call: ``IOV_MAX`` of Linux, macOS and the BSDs."""
MOST_BYTES = 2**30
"""The most bytes of one call: Linux reads 2 GiB at most, and macOS refuses more."""


def count_row_bytes(target: Array) -> int:
    """Return the bytes of a row: the longest stretch without gaps that the array consists of.

    Examples
    --------
    >>> result = np.zeros((4, 6, 8), "i4")
    >>> count_row_bytes(result), count_row_bytes(result[1]), count_row_bytes(result[1, :, 2:4])
    (768, 192, 8)
    """
    return _count_rows(target)[1]


def read_rows(handle: int, offset: int, target: Array) -> int:
    """Read the bytes of an array from a file, in the order of its elements.

    Parameters
    ----------
    handle : int
        A file descriptor.
    offset : int
        Where in the file the first byte lies.
    target : numpy.ndarray
        Of any strides. The function reads ``target.nbytes`` bytes.

    Returns
    -------
    int
        How many bytes were read: fewer than ``target.nbytes`` if the file ends before.

    Raises
    ------
    OSError
        The file cannot be read.
    ValueError
        The array is read-only, or holds Python objects.

    Examples
    --------
    >>> import tempfile
    >>> result = np.zeros((2, 4), "u1")
    >>> with tempfile.TemporaryFile() as file:
    ...     _ = file.write(bytes([1, 2, 3, 4]))
    ...     file.flush()
    ...     read_rows(file.fileno(), 0, result[:, 1:3])
    4
    >>> result.tolist()
    [[0, 1, 2, 0], [0, 3, 4, 0]]
    """
    # preadv does not check the memory that it writes to
    if not target.flags.writeable:
        raise ValueError("the array is read-only")
    if target.dtype.hasobject:
        raise ValueError(f"the array holds Python objects (dtype {target.dtype})")
    return _read_until_filled(
        target.nbytes, lambda n: _preadv(handle, _build_table(target, n), offset + n)
    )


def read_stretch(handle: int, offset: int, target: memoryview) -> int:
    """Read bytes into memory without gaps, as `read_rows` does for arrays of many rows."""
    end = target.nbytes
    return _read_until_filled(
        end, lambda n: os.preadv(handle, [target[n : n + MOST_BYTES]], offset + n)
    )


def _read_until_filled(nbytes: int, read: Callable[[int], int]) -> int:
    """Call ``read`` with the bytes that are done, until all are done or the file ends."""
    done = 0
    while done < nbytes and (count := read(done)):
        done += count
    return done


def _count_rows(target: Array) -> tuple[int, int]:
    """Return how many leading axes number the rows, and the bytes of a row."""
    apart, length = target.ndim, target.itemsize
    shape, strides = target.shape, target.strides
    while apart and (strides[apart - 1] == length or shape[apart - 1] == 1):
        apart -= 1
        length *= shape[apart]
    return apart, length


def _build_table(target: Array, done: int) -> Array:
    """Return the addresses and lengths of the rows of the next call, after ``done`` bytes.

    The table is an array of ``iovec``, as ``<sys/uio.h>`` defines it.
    """
    apart, length = _count_rows(target)
    row, part = divmod(done, length)
    most = min(MOST_ROWS, MOST_BYTES // length or 1, target.nbytes // length - row)
    table = np.empty((most, 2), np.uintp)
    # where a stride is negative the address wraps around, as in C
    steps = _compute_steps(np.arange(row, row + most), target.shape[:apart], target.strides)
    table[:, 0] = steps.astype(np.uintp) + np.uintp(target.__array_interface__["data"][0])
    table[:, 1] = length
    table[0] = table[0, 0] + part, min(length - part, MOST_BYTES)
    return table


def _compute_steps(numbers: Array, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
    """Return the distances in bytes of some elements, given by number, from the first one."""
    steps = np.zeros(numbers.shape, np.intp)
    for size, stride in zip(reversed(shape), reversed(strides[: len(shape)]), strict=True):
        if size > 1:
            numbers, along = np.divmod(numbers, size)
            steps += along * stride
    return steps


def _preadv(handle: int, table: Array, offset: int) -> int:
    while True:
        count: int = _find_preadv()(
            handle, table.__array_interface__["data"][0], len(table), offset
        )
        if count >= 0:
            return count
        if (number := ctypes.get_errno()) != errno.EINTR:
            raise OSError(number, os.strerror(number))


@cache
def _find_preadv() -> Any:
    """Return ``preadv`` of the C library, with offsets of 64 bits."""
    library = ctypes.CDLL(None, use_errno=True)
    # glibc for 32-bit processors has another name for the function with offsets of 64 bits
    function = getattr(library, "preadv64", None) or library.preadv
    function.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_int64]
    function.restype = ctypes.c_ssize_t
    return function
