"""The table of a dataset's chunks, a column for each, and its checks.

A column holds the position of a chunk along every axis, its filter mask, its offset in the file and
its length.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product, repeat
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from virtualds.chunks.projection import compute_strides
from virtualds.parsers.hdf5.file_bytes import FileBytes

ChunkTable = npt.NDArray[np.int64]

FEW_CHUNKS = 512
"""Most chunks that are compared with all places of a grid at once."""


def to_table(file: FileBytes, place: Any, mask: Any, address: Any, length: Any) -> ChunkTable:
    """Return a table from its columns, with addresses as offsets in the file."""
    table = np.empty((len(place) + 3, len(address)), np.int64)
    table[:-3], table[-3], table[-1] = place, mask, length
    table[-2] = _to_offsets(file, address)
    return table


def _to_offsets(file: FileBytes, addresses: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return addresses as offsets in the file."""
    if addresses.size and int(addresses.max()) >= file.end:
        file.refuse(f"a chunk lies past the {file.end} bytes of the file")
    return addresses.astype(np.int64) + file.base


def demand_sound_table(
    file: FileBytes, table: ChunkTable, shape: tuple[int, ...], chunks: tuple[int, ...]
) -> ChunkTable:
    """Return the table if its chunks lie in the grid, in order, none twice.

    All indexes of HDF5 list chunks in C order; a tree needs the order to find them.

    Raises
    ------
    FormatError
        A chunk lies outside of the grid, is out of order or listed twice.
    """
    place = table[:-3]
    grid = tuple(-(-n // c) for n, c in zip(shape, chunks, strict=True))
    if (
        prod(grid) == place.shape[1] <= FEW_CHUNKS
        and _list_chunk_starts(shape, chunks) == place.tobytes()
    ):
        return table
    wide = np.array(chunks, np.int64)[:, None]
    scaled = place // wide
    if (scaled * wide != place).any():
        file.refuse(f"a chunk lies at no multiple of {tuple(chunks)}")
    if (place < 0).any() or (place >= np.array(shape, np.int64)[:, None]).any():
        file.refuse(f"a chunk lies outside of the shape {tuple(shape)}")
    number = np.array(compute_strides(grid), np.int64) @ scaled
    if (number[1:] <= number[:-1]).any():
        file.refuse("chunks are listed twice, or not in their order")
    return table


@lru_cache(256)
def _list_chunk_starts(shape: tuple[int, ...], chunks: tuple[int, ...]) -> bytes:
    """Return the position rows of a table of all chunks, as bytes."""
    rows = list(product(*map(range, repeat(0), shape, chunks)))
    return np.array(rows, np.int64).T.tobytes()
