"""Reading: plan, fetch and decode a selection, straight into the result."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from virtualds.errors import ReadError, UnsupportedError
from virtualds.reading.fetch import execute, execute_batch
from virtualds.reading.plan import Readable, plan, plan_only_chunk, plan_points

__all__ = ["Readable", "read", "read_points"]


def read(source: Readable, key: tuple[Any, ...]) -> npt.NDArray[Any]:
    """Read a box or an orthogonal selection.

    Parameters
    ----------
    source : Readable
        An array of fragments.
    key : tuple of int, slice, or 1-D integer or boolean array; one per axis
        Each selects along its own axis; an int removes the axis.

    Returns
    -------
    numpy.ndarray
        The values, in `source.dtype`.

    Raises
    ------
    IndexError
        A position lies outside the array.
    ReadError
        Bytes cannot be had, have changed, or do not decode.
    UnsupportedError
        The array cannot be read, or the result is larger than any array.
    """
    if (batch := plan_only_chunk(source, key)) is not None:
        out = np.empty(source.shape, source.dtype)
        execute_batch(source, batch, out)
        return _demand_valid_text(source, out)
    selection = plan(source, key)
    out = _allocate(source, selection.shape)
    execute(source, selection, out)
    return selection.arrange(_demand_valid_text(source, out))


def read_points(source: Readable, key: tuple[Any, ...]) -> npt.NDArray[Any]:
    """Read single points: integer arrays of one shape, slices along the other axes.

    The axes of the points come first in the result, then those of the slices.

    Raises
    ------
    IndexError
        A position lies outside the array.
    ReadError
        Bytes cannot be had, have changed, or do not decode.
    UnsupportedError
        The array cannot be read, or the result is larger than any array.
    """
    selection = plan_points(source, key)
    out = _allocate(source, selection.shape)
    execute(source, selection, out)
    return selection.arrange(_demand_valid_text(source, out))


def _allocate(source: Readable, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    try:
        return np.empty(shape, source.dtype)
    except ValueError as error:
        raise UnsupportedError(
            f"{source.name}: numpy holds no array of shape {shape} ({error}); select a part"
        ) from error


def _demand_valid_text(source: Readable, out: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return values, and refuse text with invalid characters."""
    if out.dtype.kind == "U" and out.size and out.itemsize:
        letters = np.ascontiguousarray(out).reshape(-1).view(out.dtype.byteorder + "u4")
        if (largest := int(letters.max())) > sys.maxunicode:
            raise ReadError(
                f"{source.name}: its text has the number {largest:#x}, which is not a Unicode "
                f"character; the file is damaged, fetch it again"
            )
    return out
