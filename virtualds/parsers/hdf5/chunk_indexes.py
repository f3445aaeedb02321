"""The chunks of an HDF5 dataset, read from any chunk index.

Extensible arrays and version 1 B-trees are read here (`extensible_array`, `chunk_tree`), since
HDF5's own list (`H5Dchunk_iter`) is wrong for the first and does not show damage of the second. The
list is right for the other indexes, whose blocks HDF5 verifies by checksums.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from virtualds.errors import UnsupportedError
from virtualds.parsers.hdf5.chunk_table import ChunkTable, demand_sound_table
from virtualds.parsers.hdf5.chunk_tree import read_tree
from virtualds.parsers.hdf5.extensible_array import read_extensible_array
from virtualds.parsers.hdf5.object_header import (
    B_TREE_1,
    EXTENSIBLE_ARRAY,
    ChunkIndexInfo,
    parse_chunk_index,
)
from virtualds.parsers.hdf5.objects import Dataset

BLOCK = 512
"""Rows that are collected before they become a table."""


def read_chunks(dataset: Dataset) -> ChunkTable:
    """Return the table of all chunks of a dataset that were written.

    Raises
    ------
    FormatError
        The index is damaged, or lists impossible chunks.
    UnsupportedError
        Neither virtualds nor HDF5 reads this form of index correctly.
    """
    table = _read_index(dataset)
    return demand_sound_table(
        dataset.file, table, dataset.facts.space.shape, dataset.facts.layout.dims[:-1]
    )


def _read_index(dataset: Dataset) -> ChunkTable:
    index = _find_index(dataset)
    if index is None:
        return _list_by_hdf5(dataset)
    if not dataset.file.is_defined(index.address):
        return np.empty((dataset.rank + 3, 0), np.int64)
    if index.kind == B_TREE_1:
        return read_tree(dataset.file, index.address, index.dims)
    if index.kind == EXTENSIBLE_ARRAY:
        limits = dataset.limits
        return read_extensible_array(dataset.file, index.address, index.dims, limits)
    return _list_by_hdf5(dataset)


def _find_index(dataset: Dataset) -> ChunkIndexInfo | None:
    """Return where the index lies; None if HDF5 must list the chunks, and does so correctly."""
    try:
        return parse_chunk_index(dataset.file, dataset.messages)
    except UnsupportedError:
        if dataset.limits.count(None) == 1 and dataset.limits[0] is not None:
            raise
        return None


def _list_by_hdf5(dataset: Dataset) -> ChunkTable:
    """Return the chunks as HDF5 lists them.

    The table grows in blocks: a list of a million rows would take a hundred times the memory, and
    the garbage collector would walk it again and again.
    """
    ndim = dataset.rank
    tables: list[ChunkTable] = []
    rows: list[Any] = []
    append = rows.append

    def settle() -> None:
        place, *rest = zip(*rows, strict=True)
        table = np.empty((ndim + 3, len(rows)), np.int64)
        flat = np.fromiter(itertools.chain.from_iterable(place), np.int64, len(rows) * ndim)
        table[:ndim] = flat.reshape(-1, ndim).T
        table[ndim:] = rest
        tables.append(table)
        rows.clear()

    def collect(row: Any) -> None:
        append(row)
        if len(rows) == BLOCK:
            settle()

    dataset.id.chunk_iter(collect)
    if rows:
        settle()
    return np.concatenate(tables, axis=1) if tables else np.empty((ndim + 3, 0), np.int64)
