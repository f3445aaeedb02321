"""Columns of integers in few bytes, for pickles that travel to other processes.

Chunks mostly follow each other in their file: what is told of an offset is by how much it differs
from the end of the chunk before, which is mostly nothing.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.integer]
Flat = npt.NDArray[np.int64]
SMALL = 1024
"""Values of a column, or entries of a table, up to which packing would not pay."""
SAMPLE = 2**16
"""Values that are packed in every way to find the one that takes least."""


class Packed(NamedTuple):
    """A column as differences from what was expected of it, less the least of them, compressed.

    ``way`` counts `WAYS`; ``width`` is the bytes of a difference, whose first bytes stand before
    all second ones.
    """

    shape: tuple[int, ...]
    way: int
    first: int
    least: int
    width: int
    data: bytes


class Small(NamedTuple):
    """A column of few values: their dtype, and their bytes in C order.

    To pickle an array itself takes numpy ten times the bytes and the time.
    """

    shape: tuple[int, ...]
    kind: str
    data: bytes


def pack(column: Values, steps: Values | None = None) -> int | Small | Packed:
    """Return a column in few bytes, for `unpack`; one value is an integer.

    Parameters
    ----------
    column : integer array
    steps : integer array that broadcasts to it, optional
        By how much a value, in C order, may exceed the one before.
    """
    if column.size == 1:
        return int(column.flat[0])
    if column.size <= SMALL:
        small = narrow(column)
        return Small(small.shape, small.dtype.str, small.tobytes())
    flat = column.astype(np.int64, order="C").reshape(-1)
    rises = _rises(steps, column.shape)
    ways = range(len(WAYS) if rises is not None else len(WAYS) - 1)
    way = min(ways, key=lambda n: len(_packed(flat[:SAMPLE], rises, n, column.shape).data))
    return _packed(flat, rises, way, column.shape)


def unpack(packed: int | Small | Packed, steps: Values | None = None) -> Values:
    """Return what `pack` was given, as integers of some width.

    It has the shape that it had; one value broadcasts to it.
    """
    if isinstance(packed, int):
        return np.array(packed, np.min_scalar_type(packed))
    if isinstance(packed, Small):
        return np.frombuffer(packed.data, packed.kind).reshape(packed.shape)
    planes = np.frombuffer(zlib.decompress(packed.data), np.uint8).reshape(packed.width, -1)
    rest = np.ascontiguousarray(planes.T).view(f"<u{packed.width}").reshape(-1).astype(np.int64)
    rest += packed.least
    if packed.way:
        if packed.way == EXPECTED:
            rises = _rises(steps, packed.shape)
            rest[1:] += rises[:-1] if rises is not None else 0
        rest[0] = packed.first
        np.cumsum(rest, out=rest)
    return rest.reshape(packed.shape)


def _rises(steps: Values | None, shape: tuple[int, ...]) -> Flat | None:
    """Return by how much every value may be exceeded by the next, None if nobody knows."""
    if steps is None or np.broadcast_shapes(steps.shape, shape) != shape:
        return None
    return np.broadcast_to(steps, shape).astype(np.int64).reshape(-1)


def _level(flat: Flat, rises: Flat | None) -> Flat:
    return flat


def _differences(flat: Flat, rises: Flat | None) -> Flat:
    # the first one would be as large as the value; any that are there are better
    found = np.empty_like(flat)
    np.subtract(flat[1:], flat[:-1], out=found[1:])
    found[0] = found[1]
    return found


def _unexpected(flat: Flat, rises: Flat | None) -> Flat:
    found = _differences(flat, None)
    if rises is not None:
        found[1:] -= rises[: flat.size - 1]
    found[0] = found[1]
    return found


WAYS: tuple[Callable[[Flat, Flat | None], Flat], ...] = (_level, _differences, _unexpected)
"""What of a column is written down: its values, how they rise, how that differs from steps."""
EXPECTED = WAYS.index(_unexpected)


def _packed(flat: Flat, rises: Flat | None, way: int, shape: tuple[int, ...]) -> Packed:
    rest = WAYS[way](flat, rises)
    least = int(rest.min())
    # the range of 64-bit integers wraps around, and back again when it is unpacked
    small = (rest - least).view(np.uint64)
    width = np.min_scalar_type(int(small.max())).itemsize
    planes = np.ascontiguousarray(small.astype(f"<u{width}").view(np.uint8).reshape(-1, width).T)
    return Packed(shape, way, int(flat[0]), least, width, zlib.compress(planes.data, 1))


def narrow(column: Values) -> Values:
    """Hold a column in the narrowest integers that keep its values."""
    if not column.size:
        return column
    kind = np.promote_types(
        np.min_scalar_type(int(column.min())), np.min_scalar_type(int(column.max()))
    )
    return column.astype(kind, order="C") if kind.kind in "iu" else column


def pack_table(table: Any) -> Any:
    """Return a table of files in few bytes, for `unpack_table`: urls begin alike."""
    return zlib.compress(pickle.dumps(table), 1) if len(table) > SMALL else table


def unpack_table(packed: Any) -> Any:
    """Return what `pack_table` was given."""
    return pickle.loads(zlib.decompress(packed)) if isinstance(packed, bytes) else packed
