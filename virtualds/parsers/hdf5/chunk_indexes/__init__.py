"""Chunk indexes of HDF5 datasets, read as columns.

HDF5 File Format Specification 3.0, III.A and VII. Indexes of the same layout, in one file or in
many, are read together.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np

from virtualds.chunks.columns import Ints, compute_strides
from virtualds.parsers.hdf5.chunk_indexes.arrays import read_extensible_arrays, read_fixed_arrays
from virtualds.parsers.hdf5.chunk_indexes.layout import (
    ChunkRows,
    Indexes,
    IndexLayout,
    check_chunks,
    join_chunks,
    sort_chunks,
)
from virtualds.parsers.hdf5.chunk_indexes.trees import read_old_trees as read_trees_1
from virtualds.parsers.hdf5.chunk_indexes.trees import read_trees as read_trees_2
from virtualds.parsers.hdf5.structure.byte_rows import ByteRows, is_defined, require
from virtualds.parsers.hdf5.structure.messages import IndexKind

# ---------------------------------------------------------------------- no index, or a single chunk
# Chunks without an index: a single chunk, and consecutive chunks.
#
# HDF5 File Format Specification 3.0, VII.A and VII.B.


def find_single_chunks(indexes: Indexes, length: Ints, mask: Ints) -> ChunkRows:
    """Return the chunks of datasets that have a single chunk (VII.A)."""
    count, layout = len(indexes.file), indexes.layout
    single = (indexes.shape == np.array(layout.chunks)).all(axis=1)
    require(
        np.asarray(single), indexes.file, "a dataset of one chunk has another shape than the chunk"
    )
    position = np.zeros((len(layout.chunks), count), np.int64)
    return check_chunks(indexes, ChunkRows(np.arange(count), position, mask, indexes.root, length))


def compute_implicit_chunks(indexes: Indexes) -> ChunkRows:
    """Return the consecutive chunks of datasets with an implicit index (VII.B)."""
    layout, file, ends = indexes.layout, indexes.file, indexes.rows.ends
    is_possible = not layout.has_filters and None not in layout.limits
    require(np.full(len(file), is_possible), file, "chunks that may grow have no index")
    nbytes = prod(layout.maximum_grid) * layout.nbytes
    is_inside = (indexes.root >= 0) & (indexes.root <= ends[file] - min(nbytes, 2**62))
    require(is_inside, file, "chunks lie past the end of the file")
    for lengths, limit in zip(indexes.shape.T, layout.limits, strict=True):
        require(lengths <= (limit or 0), file, "a shape is greater than the greatest")
    grids, inverse = np.unique(
        -(-indexes.shape // np.array(layout.chunks)), axis=0, return_inverse=True
    )
    parts = []
    for number, grid in enumerate(grids.tolist()):
        parts.append(_compute_grid_chunks(indexes, np.flatnonzero(inverse.ravel() == number), grid))
    return sort_chunks(check_chunks(indexes, join_chunks(parts, len(layout.chunks))))


def _compute_grid_chunks(indexes: Indexes, owner: Ints, grid: list[int]) -> ChunkRows:
    """Return the implicit chunks of datasets with the same grid."""
    layout = indexes.layout
    if indexes.requested is None:
        position = np.indices(grid).reshape(len(grid), -1)
    else:
        position = indexes.requested.copy()
    offset = np.zeros(position.shape[1], np.int64)
    for values, stride in zip(position, compute_strides(layout.maximum_grid), strict=True):
        offset += values * (stride * layout.nbytes)
    position *= np.array(layout.chunks)[:, None]
    address = (indexes.root[owner, None] + offset).ravel()
    position, owners = np.tile(position, (1, len(owner))), np.repeat(owner, len(offset))
    lengths = np.full(len(owners), layout.nbytes)
    return ChunkRows(owners, position, np.zeros_like(owners), address, lengths)


# ---------------------------------------------------------------------- all kinds of index


READERS: dict[int, Callable[[Indexes], ChunkRows]] = {
    IndexKind.B_TREE_1: read_trees_1,
    IndexKind.IMPLICIT: compute_implicit_chunks,
    IndexKind.FIXED_ARRAY: read_fixed_arrays,
    IndexKind.EXTENSIBLE_ARRAY: read_extensible_arrays,
    IndexKind.B_TREE_2: read_trees_2,
}
"""Readers by kind of index; a single chunk is in the layout message."""


def read_indexes(
    rows: ByteRows,
    layout: IndexLayout,
    file: Ints,
    root: Ints,
    shape: Ints,
    length: Ints | None = None,
    mask: Ints | None = None,
    requested: Ints | None = None,
) -> ChunkRows:
    """Return the chunks of datasets whose indexes have the same layout.

    Parameters
    ----------
    rows : ByteRows
    layout : IndexLayout
    file : int64 array, shape (n,)
        The file of each dataset.
    root : int64 array, shape (n,)
        The address in the layout message, as returned by `read_uints`.
    shape : int64 array, shape (n, ndim)
    length, mask : int64 array, shape (n,), optional
        Size and filter mask of single chunks, from the layout message.
    requested : int64 array, shape (ndim, k), optional
        Chunks to look up in the index of a single dataset, as positions in the chunk grid in C
        order. Only the required parts of the index are read; the result also has the other chunks
        of these parts.

    Returns
    -------
    ChunkRows
    """
    defined = np.flatnonzero(is_defined(root, rows.offset_size))
    if not defined.size:
        return ChunkRows.empty(len(layout.chunks))
    indexes = Indexes(rows, layout, file, root, shape, requested).at(defined)
    if layout.kind != IndexKind.SINGLE:
        chunks = READERS[layout.kind](indexes)
    else:
        sizes = np.full(len(file), layout.nbytes) if length is None else length
        masks = np.zeros(len(file), np.int64) if mask is None else mask
        chunks = find_single_chunks(indexes, sizes[defined], masks[defined])
    return chunks._replace(owner=defined[chunks.owner])
