"""The chunks of one HDF5 dataset, whose index is read as those of many are.

Only the smallest index is read in another way, without arrays of rows: a version 1 B-tree that is
a single leaf, which most datasets of most files have.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import cache, lru_cache
from math import prod
from operator import add, mod
from struct import Struct
from typing import Any, NamedTuple

import numpy as np

from virtualds.parsers.hdf5.chunk_indexes import read_indexes
from virtualds.parsers.hdf5.chunk_indexes.b_tree_1 import HEAD, OF_CHUNKS, make_node_form
from virtualds.parsers.hdf5.chunk_indexes.form import (
    LAST,
    ChunkRows,
    Indexes,
    IndexForm,
    check_chunks,
    demand_order,
)
from virtualds.parsers.hdf5.objects import Dataset
from virtualds.parsers.hdf5.structure.byte_rows import RowsError, UnknownRowsError
from virtualds.parsers.hdf5.structure.file_bytes import FORMS
from virtualds.parsers.hdf5.structure.messages import FILTERED_SINGLE, IndexKind

NODE = Struct("<4sBBH")
"""Signature, type, level and number of entries of a node (III.A.1)."""
BLOCK = 512
"""Chunks that HDF5 lists before they become columns."""


def read_chunks(dataset: Dataset) -> ChunkRows:
    """Return all chunks of a dataset that were written.

    Raises
    ------
    FormatError
        The index is damaged, or lists impossible chunks.
    UnsupportedError
        Neither virtualds nor HDF5 reads this form of index correctly.
    """
    file = dataset.file
    try:
        return _read_index(dataset)
    except UnknownRowsError as error:
        file.decline(error.reason)
    except RowsError as error:
        file.refuse(error.reason)


def _read_index(dataset: Dataset) -> ChunkRows:
    file, layout, form = dataset.file, dataset.facts.layout, IndexForm.of(dataset.facts)
    shape = dataset.facts.space.shape or ()
    one = np.zeros(1, np.int64), np.array([[min(n, LAST) for n in shape]])
    if layout.index_kind is None:
        if dataset.limits.count(None) == 1 and dataset.limits[0] is not None:
            # perhaps an extensible array, whose chunks HDF5 lists at wrong positions
            file.decline("an unknown index of chunks")
        return _list_by_hdf5(dataset, Indexes(file, form, one[0], one[0], one[1]))
    if layout.address is None:
        return ChunkRows.empty(len(shape))
    single = layout.parameters if layout.flags & FILTERED_SINGLE else (prod(layout.dims), 0)
    numbers = (layout.address, *single[:2])
    root, length, mask = (np.array([n], np.uint64).view(np.int64) for n in numbers)
    return read_indexes(file, form, one[0], root, one[1], length, mask)


class ListedChunks(NamedTuple):
    """All chunks of a dataset in C order, none of which skipped a filter."""

    address: Sequence[int]
    length: Sequence[int]


def read_one_leaf(dataset: Dataset) -> ListedChunks | None:
    """Read a B-tree of one leaf that lists all chunks; None if anything else is there."""
    file, layout, shape = dataset.file, dataset.facts.layout, dataset.facts.space.shape or ()
    if layout.index_kind != IndexKind.B_TREE_1 or layout.address is None:
        return None
    dims = layout.dims
    node = make_node_form(len(dims), file.half, file.offset_size)
    root = file.peek(layout.address, node.size)
    if len(root) < node.size:
        return None
    signature, kind, level, used = NODE.unpack_from(root)
    if (signature, kind, level) != (b"TREE", OF_CHUNKS, 0) or not 0 < used <= node.most:
        return None
    stop = node.entries_at + used * node.entry.itemsize
    entry, key = _make_entry_forms(len(dims), file.offset_size)
    columns = zip(*entry.iter_unpack(root[node.entries_at : stop]), strict=True)
    length, mask, *place, element, address = columns
    closing = key.unpack_from(root, stop)[2:]
    last = tuple([column[-1] for column in place])
    if (
        place != _list_chunk_starts(shape, dims[:-1], used)
        or any(mask)
        or any(element)
        or any(map(mod, closing, dims))
        or (*last, 0) >= closing
        or root[HEAD : node.entries_at].strip(b"\xff")
        or max(map(add, address, length)) > file.end - file.base
        or not (dataset.facts.filters or set(length) == {prod(dims)})
    ):
        return None
    return ListedChunks(address, length)


@cache
def _make_entry_forms(rank: int, offset_size: int) -> tuple[Struct, Struct]:
    """Return an entry of a leaf (bytes, filter mask, position, address), and its key alone."""
    return Struct(f"<II{rank}Q{FORMS[offset_size]}"), Struct(f"<II{rank}Q")


@lru_cache(256)
def _list_chunk_starts(
    shape: tuple[int, ...], chunks: tuple[int, ...], count: int
) -> list[tuple[int, ...]] | None:
    """Return the positions of all chunks along each axis; None if there are not so many."""
    axes = list(map(range, itertools.repeat(0), shape, chunks))
    if prod(map(len, axes)) != count:
        return None
    return list(zip(*itertools.product(*axes), strict=True))


def _list_by_hdf5(dataset: Dataset, indexes: Indexes) -> ChunkRows:
    """Return the chunks as HDF5 lists them.

    The columns grow in blocks: a list of a million rows would take a hundred times the memory, and
    the garbage collector would walk it again and again.
    """
    ndim = dataset.rank
    tables = [np.empty((ndim + 3, 0), np.int64)]
    rows: list[Any] = []

    def settle() -> None:
        place, *rest = zip(*rows, strict=True)
        tables.append(np.array([*zip(*place, strict=True), *rest], np.int64))
        rows.clear()

    def collect(row: Any) -> None:
        rows.append(row)
        if len(rows) == BLOCK:
            settle()

    dataset.id.chunk_iter(collect)
    if rows:
        settle()
    table = np.concatenate(tables, axis=1)
    # HDF5 counts from the start of the file
    address = table[-2] - dataset.file.base
    owner = np.zeros(table.shape[1], np.int64)
    found = ChunkRows(owner, table[:-3], table[-3], address, table[-1])
    return demand_order(indexes, check_chunks(indexes, found))
