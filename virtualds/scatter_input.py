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
from collections.abc import Callable
from functools import cache
from math import prod
from typing import Any

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
    return prod(target.shape[_apart(target) :]) * target.itemsize


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
    if target.flags.c_contiguous:
        whole = target.reshape(-1).view(np.uint8).data
        return _filled(target, lambda done: os.preadv(handle, [whole[done:]], offset + done))
    rows, length = _rows(target), row_bytes(target)
    return _filled(target, lambda done: _preadv(handle, _rest(rows, length, done), offset + done))


def _filled(target: Array, read: Callable[[int], int]) -> int:
    """Read on until all is there or the file ends: one call may stop earlier, at 2 GiB at last."""
    done = 0
    while done < target.nbytes and (count := read(done)):
        done += count
    return done


def _apart(target: Array) -> int:
    """Return how many leading axes an array has whose elements do not follow each other."""
    axis, step = target.ndim, target.itemsize
    while axis and (target.strides[axis - 1] == step or target.shape[axis - 1] == 1):
        axis -= 1
        step *= target.shape[axis]
    return axis


def _rows(target: Array) -> Array:
    """Return address and length of every row, as the ``iovec`` of ``<sys/uio.h>`` has them."""
    apart = _apart(target)
    steps = np.zeros((), np.intp)
    for size, stride in zip(target.shape[:apart], target.strides[:apart], strict=True):
        steps = np.add.outer(steps, np.arange(size) * stride)
    rows = np.empty((steps.size, 2), np.uintp)
    # a stride may be negative, and an address wraps around as in C
    rows[:, 0] = steps.ravel().astype(np.uintp) + np.uintp(target.__array_interface__["data"][0])
    rows[:, 1] = row_bytes(target)
    return rows


def _rest(rows: Array, length: int, done: int) -> Array:
    """Return as many rows as one call takes, after some bytes of all of them."""
    row, part = divmod(done, length)
    some = rows[row : row + MOST_ROWS].copy()
    some[0] = some[0, 0] + part, length - part
    return some


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
