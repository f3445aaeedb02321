"""Where the chunks of HDF5 datasets lie: all indexes of chunks, read as columns.

HDF5 File Format Specification 3.0, III.A and VII. There is a module for each kind of index. The
indexes of alike datasets, of one file or of many, are read together.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from virtualds.chunks.columns import Ints
from virtualds.parsers.hdf5.chunk_indexes.b_tree_1 import read_trees as read_trees_1
from virtualds.parsers.hdf5.chunk_indexes.b_tree_2 import read_trees as read_trees_2
from virtualds.parsers.hdf5.chunk_indexes.extensible_array import read_extensible_arrays
from virtualds.parsers.hdf5.chunk_indexes.fixed_array import read_fixed_arrays
from virtualds.parsers.hdf5.chunk_indexes.form import (
    ChunkRows,
    Indexes,
    IndexForm,
    list_implicit_chunks,
    list_single_chunks,
)
from virtualds.parsers.hdf5.structure.byte_rows import ByteRows, is_defined
from virtualds.parsers.hdf5.structure.messages import IndexKind

READERS: dict[int, Callable[[Indexes], ChunkRows]] = {
    IndexKind.B_TREE_1: read_trees_1,
    IndexKind.IMPLICIT: list_implicit_chunks,
    IndexKind.FIXED_ARRAY: read_fixed_arrays,
    IndexKind.EXTENSIBLE_ARRAY: read_extensible_arrays,
    IndexKind.B_TREE_2: read_trees_2,
}
"""What reads each kind of index; a single chunk stands in the layout message."""


def read_indexes(
    rows: ByteRows,
    form: IndexForm,
    file: Ints,
    root: Ints,
    shape: Ints,
    length: Ints | None = None,
    mask: Ints | None = None,
    wanted: Ints | None = None,
) -> ChunkRows:
    """Read the chunk indexes of alike datasets.

    Parameters
    ----------
    rows : ByteRows
    form : IndexForm
    file : int64 array, shape (n,)
        The file of each dataset.
    root : int64 array, shape (n,)
        The address in its layout message, as `read_uints` reads it.
    shape : int64 array, shape (n, ndim)
    length, mask : int64 array, shape (n,), optional
        Bytes and filter mask of single chunks, from the layout message.
    wanted : int64 array, shape (ndim, k), optional
        Chunks to look up in the index of a single dataset, counted in chunks and in C order. Only
        the parts of the index that they need are read, and other chunks of these parts are found,
        too. Everything that is read is checked as if all were read.

    Returns
    -------
    ChunkRows

    Raises
    ------
    RowsError
        Indexes are damaged; it names the files at fault that were found.
    UnknownRowsError
        Indexes have an unknown form.
    """
    which = np.flatnonzero(is_defined(root, rows.offset_size))
    if not which.size:
        return ChunkRows.empty(len(form.chunks))
    indexes = Indexes(rows, form, file, root, shape, wanted).at(which)
    if form.kind != IndexKind.SINGLE:
        found = READERS[form.kind](indexes)
    else:
        sizes = np.full(len(file), form.nbytes) if length is None else length
        masks = np.zeros(len(file), np.int64) if mask is None else mask
        found = list_single_chunks(indexes, sizes[which], masks[which])
    return found._replace(owner=which[found.owner])
