"""Types and functions of all chunk indexes: the layout of an index, and chunks as columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from virtualds.chunks.columns import Ints, compute_strides
from virtualds.parsers.hdf5.structure import (
    CHECKSUM_BYTES,
    Bools,
    ByteRows,
    Bytes,
    RowsError,
    have_checksums,
    read_uints,
    require,
)
from virtualds.parsers.hdf5.structure.messages import IndexKind
from virtualds.parsers.hdf5.structure.object_header import DatasetHeader

MASK_BYTES = 4
"""Size in bytes of a filter mask."""
MAX_INT64 = 2**63 - 1
"""Maximum value of a column."""


@dataclass(frozen=True)
class IndexLayout:
    """The layout of a chunk index, which the indexes of many datasets share.

    Parameters
    ----------
    kind : int
        The kind of index, an `IndexKind`.
    chunks : tuple of int
        The chunk shape.
    itemsize : int
        The size in bytes of an element.
    limits : tuple of int or None
        The maximum length of each axis, or None if it is unlimited.
    has_filters : bool
    """

    kind: int
    chunks: tuple[int, ...]
    itemsize: int
    limits: tuple[int | None, ...]
    has_filters: bool

    @classmethod
    def from_header(cls, header: DatasetHeader) -> IndexLayout:
        """Return the layout of the index of a chunked dataset.

        If the index is unknown, HDF5 lists the chunks in the order of a version 1 B-tree.
        """
        layout, limits = header.layout, header.space.limits
        kind = IndexKind.B_TREE_1 if layout.index_kind is None else layout.index_kind
        return cls(kind, layout.dims[:-1], layout.dims[-1], limits, bool(header.filters))

    @cached_property
    def nbytes(self) -> int:
        """The size in bytes of a chunk without filters."""
        return prod(self.chunks) * self.itemsize

    @cached_property
    def maximum_grid(self) -> tuple[int, ...]:
        """The number of chunks along each axis at its maximum length; 0 if it is unlimited."""
        return tuple(-(-(n or 0) // c) for n, c in zip(self.limits, self.chunks, strict=True))

    @cached_property
    def array_order(self) -> list[int]:
        """The axes, the slowest first, by which arrays number chunks over the maximum grid."""
        # an unlimited axis comes first, since its length may change
        return sorted(range(len(self.limits)), key=lambda axis: self.limits[axis] is not None)


class Indexes(NamedTuple):
    """Indexes of one layout, each with file, root address and shape of its dataset.

    ``requested`` are the chunks to look up in a single index, as positions in the chunk grid in C
    order with one row per axis, or None to read all chunks.
    """

    rows: ByteRows
    layout: IndexLayout
    file: Ints
    root: Ints
    shape: Ints
    requested: Ints | None = None

    def at(self, which: Ints) -> Indexes:
        """Return the indexes at ``which``."""
        return self._replace(file=self.file[which], root=self.root[which], shape=self.shape[which])

    def find_flat_indexes(self, positions: Ints) -> Ints:
        """Return the flat indexes of positions in the chunk grid of the only dataset.

        Keys of trees may be outside the shape.
        """
        grid = tuple((-(-self.shape[0] // np.array(self.layout.chunks))).tolist())
        total = np.zeros(positions.shape[1:], np.int64)
        within = np.ones(positions.shape[1:], bool)
        for values, size, stride in zip(positions, grid, compute_strides(grid), strict=True):
            total += np.where(within, np.minimum(values, size) * stride, 0)
            within &= values < size
        return total


class ChunkRows(NamedTuple):
    """Chunks that have been written, sorted by dataset and then in C order.

    Parameters
    ----------
    owner : int64 array, shape (n,)
        The index of the dataset among those that are read.
    position : int64 array, shape (ndim, n)
        The position in elements.
    mask : int64 array, shape (n,)
        The filter mask, with a bit per skipped filter.
    address, length : int64 array, shape (n,)
        The byte range, relative to the base of the file.
    """

    owner: Ints
    position: Ints
    mask: Ints
    address: Ints
    length: Ints

    @classmethod
    def empty(cls, ndim: int) -> ChunkRows:
        """Return an empty table of chunks."""
        none = np.empty(0, np.int64)
        return cls(none, np.empty((ndim, 0), np.int64), none, none, none)

    def find_flat_indexes(self, chunks: tuple[int, ...], grid: tuple[int, ...]) -> Ints:
        """Return the flat index of each chunk in a grid.

        The grid may also have axes within elements, which are not chunked.
        """
        total = np.zeros(self.owner.size, np.int64)
        for first, chunk, stride in zip(self.position, chunks, compute_strides(grid), strict=False):
            total += first // chunk * stride
        return total

    def at(self, which: Bools | Ints) -> ChunkRows:
        """Return the chunks at ``which``."""
        return ChunkRows(*(column[..., which] for column in self))


def parse_elements(layout: IndexLayout, raw: Bytes, offset_size: int) -> tuple[Ints, Ints, Ints]:
    """Parse filter mask, address and length from the elements of an array, or equivalent records.

    Without filters, elements are only addresses, since all chunks have the same length. The width
    of a length is the remaining width of an element (VII.C.3, VII.D.3).
    """
    address = read_uints(raw[:, :offset_size])
    if not layout.has_filters:
        return np.zeros(len(raw), np.int64), address, np.full(len(raw), layout.nbytes)
    length = read_uints(raw[:, offset_size:-MASK_BYTES])
    return read_uints(raw[:, -MASK_BYTES:]), address, length


def read_index_headers(indexes: Indexes, size: int, signature: bytes, name: str) -> Bytes:
    """Return the headers of indexes, after checking their signatures and checksums."""
    heads = indexes.rows.read_rows(indexes.file, indexes.root, size + CHECKSUM_BYTES)
    matches = (heads[:, :4] == np.frombuffer(signature, np.uint8)).all(axis=1)
    is_valid = matches & have_checksums(heads)
    require(is_valid, indexes.file, f"there is no {name} of chunks, or its checksum is wrong")
    return heads


def is_element_size(layout: IndexLayout, size: int, offset_size: int) -> bool:
    """Return whether an element may have ``size`` bytes."""
    if not layout.has_filters:
        return size == offset_size
    return 1 <= size - offset_size - MASK_BYTES <= 8


def join_chunks(parts: list[ChunkRows], ndim: int) -> ChunkRows:
    """Return the chunks of all parts; the list is emptied to free memory."""
    if len(parts) == 1:
        return parts.pop()
    columns = [list(column) for column in zip(*parts, strict=True)]
    parts.clear()
    joined = []
    while columns:
        column = columns.pop(0)
        joined.append(np.concatenate(column, axis=-1))
    return ChunkRows(*joined) if joined else ChunkRows.empty(ndim)


def check_chunks(indexes: Indexes, chunks: ChunkRows) -> ChunkRows:
    """Return chunks after checking that they are inside the shape and the file."""
    layout, file, owner = indexes.layout, indexes.file, chunks.owner
    if not layout.has_filters:
        same = chunks.length == layout.nbytes
        _require_chunks(same, file, owner, "a chunk without filters has another length")
    # a negative number is too large when read as unsigned
    for axis, values in enumerate(chunks.position):
        inside = values.view(np.uint64) < _take_by_owner(indexes.shape[:, axis], owner)
        _require_chunks(inside, file, owner, "a chunk lies outside of the shape")
    end = indexes.rows.ends[file]
    is_inside = chunks.length.view(np.uint64) <= _take_by_owner(end, owner)
    _require_chunks(is_inside, file, owner, "a chunk is longer than any file")
    is_inside = chunks.address.view(np.uint64) <= _take_by_owner(end, owner) - chunks.length.view(
        np.uint64
    )
    _require_chunks(is_inside, file, owner, "a chunk lies past the end of the file")
    return chunks


def _take_by_owner(values: Ints, owner: Ints) -> npt.NDArray[np.uint64]:
    """Return the value of the dataset of each chunk, or one value if there is only one dataset."""
    return (values if len(values) == 1 else values[owner]).view(np.uint64)


def _require_chunks(is_valid: Bools, file: Ints, owner: Ints, reason: str) -> None:
    if not is_valid.all():
        raise RowsError(frozenset(file[owner[~is_valid]].tolist()), reason)


def find_ascending(owner: Ints, position: Ints) -> Bools:
    """Return whether each chunk, from the second on, comes after its predecessor."""
    keys = owner, *position
    return is_before([key[:-1] for key in keys], [key[1:] for key in keys])


def check_order(indexes: Indexes, chunks: ChunkRows) -> ChunkRows:
    """Return chunks after checking that they are in ascending order, as lookups require."""
    after = find_ascending(chunks.owner, chunks.position)
    _require_chunks(
        after, indexes.file, chunks.owner[1:], "chunks are listed twice, or not in order"
    )
    return chunks


def is_before(
    low: Sequence[Ints] | Ints, high: Sequence[Ints] | Ints, or_same: bool = False
) -> Bools:
    """Return whether each key ``low`` comes before ``high``; both have a column for each axis."""
    result = np.full(len(low[0]), or_same)
    for a, b in zip(reversed(low), reversed(high), strict=True):
        result = (a < b) | ((a == b) & result)
    return result


def find_positions(layout: IndexLayout, number: Ints) -> Ints:
    """Convert indexes of elements of an array to positions of chunks."""
    first, *others = layout.array_order
    position = np.empty((len(layout.chunks), len(number)), np.int64)
    for axis in reversed(others):
        size = layout.maximum_grid[axis]
        quotient = number // size
        np.subtract(number, quotient * size, out=position[axis])
        number = quotient
    position[first] = number
    for axis, chunk in enumerate(layout.chunks):
        position[axis] *= chunk
    return position


def find_requested_elements(indexes: Indexes) -> Ints | None:
    """Return the indexes of the requested elements of an array, ascending, or None for all."""
    if indexes.requested is None:
        return None
    number = np.zeros(indexes.requested.shape[1:], np.int64)
    for axis in indexes.layout.array_order:
        number = number * indexes.layout.maximum_grid[axis] + indexes.requested[axis]
    return np.sort(number)


def intersect(requested: Ints | None, begin: Ints, end: Ints) -> Bools:
    """Return whether each range of flat indexes contains requested indexes (None for all)."""
    if requested is None:
        return np.ones(begin.shape, bool)
    result: Bools = np.searchsorted(requested, begin) < np.searchsorted(requested, end)
    return result


def group_by_header(
    indexes: Indexes, heads: Bytes, fields: slice, read: Callable[[Indexes, Bytes], ChunkRows]
) -> ChunkRows:
    """Return the chunks of indexes; those with equal header fields are read together."""
    same = heads[:, fields]
    if len(same) == 1 or (same == same[0]).all():
        return read(indexes, heads)
    group = np.unique(same, axis=0, return_inverse=True)[1].ravel()
    parts = []
    for number in range(int(group.max()) + 1):
        members = np.flatnonzero(group == number)
        chunks = read(indexes.at(members), heads[members])
        parts.append(chunks._replace(owner=members[chunks.owner]))
    joined = join_chunks(parts, len(indexes.layout.chunks))
    return joined.at(np.argsort(joined.owner, kind="stable"))


def sort_chunks(chunks: ChunkRows) -> ChunkRows:
    """Sort chunks by dataset and then in C order, in place; return them."""
    if find_ascending(chunks.owner, chunks.position).all():
        return chunks
    order = np.lexsort((*chunks.position[::-1], chunks.owner))
    # in place, to avoid the memory of a second table
    for column in (chunks.owner, *chunks.position, *chunks[2:]):
        column[:] = column[order]
    return chunks
