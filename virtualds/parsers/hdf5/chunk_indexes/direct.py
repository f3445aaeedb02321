"""Chunks without an index: a single chunk, and chunks that lie one after the other.

HDF5 File Format Specification 3.0, VII.A and VII.B.
"""

from __future__ import annotations

from math import prod

import numpy as np

from virtualds.chunks.projection import Ints, compute_strides
from virtualds.parsers.hdf5.chunk_indexes.form import (
    ChunkRows,
    Indexes,
    check_chunks,
    join_chunks,
    sort_chunks,
)
from virtualds.parsers.hdf5.structure.byte_rows import demand


def list_single_chunks(indexes: Indexes, length: Ints, mask: Ints) -> ChunkRows:
    """Return the chunk of each dataset that has no other (VII.A).

    Raises
    ------
    RowsError
        A chunk lies outside of the file.
    """
    count, form = len(indexes.file), indexes.form
    single = (indexes.shape == np.array(form.chunks)).all(axis=1)
    demand(
        np.asarray(single), indexes.file, "a dataset of one chunk has another shape than the chunk"
    )
    place = np.zeros((len(form.chunks), count), np.int64)
    return check_chunks(indexes, ChunkRows(np.arange(count), place, mask, indexes.root, length))


def list_implicit_chunks(indexes: Indexes) -> ChunkRows:
    """Return chunks that lie one after the other, all of the greatest shape (VII.B).

    Raises
    ------
    RowsError
        They do not lie in the file, or have filters.
    """
    form, file, ends = indexes.form, indexes.file, indexes.rows.ends
    can = not form.has_filters and None not in form.limits
    demand(np.full(len(file), can), file, "chunks that may grow have no index")
    nbytes = prod(form.greatest_grid) * form.nbytes
    fits = (indexes.root >= 0) & (indexes.root <= ends[file] - min(nbytes, 2**62))
    demand(fits, file, "chunks lie past the end of the file")
    for lengths, limit in zip(indexes.shape.T, form.limits, strict=True):
        demand(lengths <= (limit or 0), file, "a shape is greater than the greatest")
    grids, which = np.unique(
        -(-indexes.shape // np.array(form.chunks)), axis=0, return_inverse=True
    )
    parts = []
    for number, grid in enumerate(grids.tolist()):
        parts.append(_list_grid(indexes, np.flatnonzero(which.ravel() == number), grid))
    return sort_chunks(check_chunks(indexes, join_chunks(parts, len(form.chunks))))


def _list_grid(indexes: Indexes, owner: Ints, grid: list[int]) -> ChunkRows:
    """Return the chunks of datasets of one shape: owner, position and address."""
    form = indexes.form
    if indexes.wanted is None:
        place = np.indices(grid).reshape(len(grid), -1)
    else:
        place = indexes.wanted.copy()
    offset = np.zeros(place.shape[1], np.int64)
    for values, stride in zip(place, compute_strides(form.greatest_grid), strict=True):
        offset += values * (stride * form.nbytes)
    place *= np.array(form.chunks)[:, None]
    address = (indexes.root[owner, None] + offset).ravel()
    place, of = np.tile(place, (1, len(owner))), np.repeat(owner, len(offset))
    return ChunkRows(of, place, np.zeros_like(of), address, np.full(len(of), form.nbytes))
