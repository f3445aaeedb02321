"""Types and functions that all chunk indexes share: their layout, and chunks as columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from virtualds.chunks.columns import Ints, compute_strides
from virtualds.parsers.hdf5.structure.byte_rows import (
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
from virtualds.parsers.hdf5.structure.object_header import DatasetFacts

MASK_BYTES = 4
"""The size in bytes of a filter mask."""
LAST = 2**63 - 1
"""The maximum value in a column."""


@dataclass(frozen=True)
class IndexLayout:
    """The layout of a chunk index, which the indexes of many datasets share.

    Parameters
    ----------
    kind : int
        The kind of index: an `IndexKind`.
    chunks : tuple of int
        Elements of a chunk along each axis.
    itemsize : int
        The size in bytes of an element.
    limits : tuple of int or None
        The maximum length of each axis, or None for an unlimited one.
    has_filters : bool
    """

    kind: int
    chunks: tuple[int, ...]
    itemsize: int
    limits: tuple[int | None, ...]
    has_filters: bool

    @classmethod
    def of(cls, facts: DatasetFacts) -> IndexLayout:
        """Return the layout of the index of a chunked dataset.

        If it is unknown, HDF5 lists the chunks, in the order of a version 1 B-tree.
        """
        layout, limits = facts.layout, facts.space.limits
        kind = IndexKind.B_TREE_1 if layout.index_kind is None else layout.index_kind
        return cls(kind, layout.dims[:-1], layout.dims[-1], limits, bool(facts.filters))

    @cached_property
    def nbytes(self) -> int:
        """The size in bytes of a chunk without filters."""
        return prod(self.chunks) * self.itemsize

    @cached_property
    def maximum_grid(self) -> tuple[int, ...]:
        """Chunks along each axis at its maximum length; 0 for an unlimited one."""
        return tuple(-(-(n or 0) // c) for n, c in zip(self.limits, self.chunks, strict=True))


class Indexes(NamedTuple):
    """Indexes of one layout: the file, the root address and the shape of the dataset of each.

    ``wanted`` are the chunks to look up in a single index, one row per axis, counted in chunks and
    in C order, or None if all chunks of all indexes are read.
    """

    rows: ByteRows
    layout: IndexLayout
    file: Ints
    root: Ints
    shape: Ints
    wanted: Ints | None = None

    def at(self, which: Ints) -> Indexes:
        """Return some of the indexes."""
        return self._replace(file=self.file[which], root=self.root[which], shape=self.shape[which])

    def count_before(self, positions: Ints) -> Ints:
        """Return the flat indexes of chunk positions in the grid of the only dataset.

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
    """Chunks that were written, sorted by dataset and then in C order.

    Parameters
    ----------
    owner : int64 array, shape (n,)
        The position of the dataset among those that are read.
    position : int64 array, shape (ndim, n)
        The position in elements.
    mask : int64 array, shape (n,)
        Which filters were skipped.
    address, length : int64 array, shape (n,)
        The position of the bytes, relative to the base of the file.
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

    def count_before(self, chunks: tuple[int, ...], grid: tuple[int, ...]) -> Ints:
        """Return the flat index of each chunk in a grid.

        The grid may have more axes, within elements, which are never divided.
        """
        total = np.zeros(self.owner.size, np.int64)
        for first, chunk, stride in zip(self.position, chunks, compute_strides(grid), strict=False):
            total += first // chunk * stride
        return total

    def at(self, which: Bools | Ints) -> ChunkRows:
        """Return some of the chunks."""
        return ChunkRows(*(column[..., which] for column in self))


def parse_elements(layout: IndexLayout, raw: Bytes, offset_size: int) -> tuple[Ints, Ints, Ints]:
    """Parse filter mask, address and length from elements of an array or equivalent records.

    Chunks without filters all have the same length, and their elements are only addresses. The
    width of a length follows from the width of an element (VII.C.3, VII.D.3).
    """
    address = read_uints(raw[:, :offset_size])
    if not layout.has_filters:
        return np.zeros(len(raw), np.int64), address, np.full(len(raw), layout.nbytes)
    length = read_uints(raw[:, offset_size:-MASK_BYTES])
    return read_uints(raw[:, -MASK_BYTES:]), address, length


def read_index_heads(indexes: Indexes, size: int, signature: bytes, what: str) -> Bytes:
    """Return the headers of indexes, after checking their signatures and checksums."""
    heads = indexes.rows.read_rows(indexes.file, indexes.root, size + CHECKSUM_BYTES)
    matches = (heads[:, :4] == np.frombuffer(signature, np.uint8)).all(axis=1)
    sound = matches & have_checksums(heads)
    require(sound, indexes.file, f"there is no {what} of chunks, or its checksum is wrong")
    return heads


def is_element_size(layout: IndexLayout, size: int, offset_size: int) -> bool:
    """Return whether an element may have ``size`` bytes."""
    if not layout.has_filters:
        return size == offset_size
    return 1 <= size - offset_size - MASK_BYTES <= 8


def join_chunks(parts: list[ChunkRows], ndim: int) -> ChunkRows:
    """Join the chunks of all parts, and empty the list to free memory on the way."""
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
    """Check that chunks are within the shape and in the file, and return them."""
    layout, file, owner = indexes.layout, indexes.file, chunks.owner
    if not layout.has_filters:
        same = chunks.length == layout.nbytes
        _require(same, file, owner, "a chunk without filters has another length")
    # a negative number is too large when read as unsigned
    for axis, values in enumerate(chunks.position):
        inside = values.view(np.uint64) < _take_by_owner(indexes.shape[:, axis], owner)
        _require(inside, file, owner, "a chunk lies outside of the shape")
    end = indexes.rows.ends[file]
    fits = chunks.length.view(np.uint64) <= _take_by_owner(end, owner)
    _require(fits, file, owner, "a chunk is longer than any file")
    fits = chunks.address.view(np.uint64) <= _take_by_owner(end, owner) - chunks.length.view(
        np.uint64
    )
    _require(fits, file, owner, "a chunk lies past the end of the file")
    return chunks


def _take_by_owner(values: Ints, owner: Ints) -> npt.NDArray[np.uint64]:
    """Return the value of the dataset of each chunk, or one value if there is only one dataset."""
    return (values if len(values) == 1 else values[owner]).view(np.uint64)


def _require(sound: Bools, file: Ints, owner: Ints, reason: str) -> None:
    if not sound.all():
        raise RowsError(frozenset(file[owner[~sound]].tolist()), reason)


def find_ascending(owner: Ints, position: Ints) -> Bools:
    """Return a mask of the chunks, from the second on, that come after their predecessor."""
    after = np.zeros(max(len(owner) - 1, 0), bool)
    for values in position[::-1]:
        low, high = values[:-1], values[1:]
        after = (low < high) | ((low == high) & after)
    low, high = owner[:-1], owner[1:]
    ascending: Bools = (low < high) | ((low == high) & after)
    return ascending


def check_order(indexes: Indexes, chunks: ChunkRows) -> ChunkRows:
    """Check that chunks are in ascending order, as lookups in trees require, and return them."""
    after = find_ascending(chunks.owner, chunks.position)
    _require(
        after, indexes.file, chunks.owner[1:], "chunks are listed twice, or not in their order"
    )
    return chunks


def is_before(low: Ints, high: Ints, or_same: bool = False) -> Bools:
    """Return a mask of the keys ``low`` that come before ``high``, all of shape ``(n, axes)``."""
    result = np.full(len(low), or_same)
    for axis in reversed(range(low.shape[1])):
        a, b = low[:, axis], high[:, axis]
        result = (a < b) | ((a == b) & result)
    return result


def unravel_in_order(
    layout: IndexLayout, number: Ints, order: list[int], sizes: tuple[int, ...]
) -> Ints:
    """Convert flat indexes in a grid to positions of chunks.

    Parameters
    ----------
    layout : IndexLayout
    number : int64 array
    order : list of int
        The axes, the slowest first.
    sizes : tuple of int
        Chunks along each axis; the first axis in the order is unlimited.
    """
    position = np.empty((len(layout.chunks), len(number)), np.int64)
    for axis in reversed(order[1:]):
        above = number // sizes[axis]
        np.subtract(number, above * sizes[axis], out=position[axis])
        number = above
    position[order[0]] = number
    for axis, chunk in enumerate(layout.chunks):
        position[axis] *= chunk
    return position


def ravel_in_order(
    layout: IndexLayout, position: Ints, order: list[int], sizes: tuple[int, ...]
) -> Ints:
    """Convert positions of chunks to ascending flat indexes, the inverse of `unravel_in_order`."""
    number = np.zeros(position.shape[1:], np.int64)
    for axis in order:
        number = number * sizes[axis] + position[axis]
    return np.sort(number)


def intersect(wanted: Ints | None, begin: Ints, end: Ints) -> Bools:
    """Return a mask of the ranges of flat indexes that contain wanted indexes (None for all)."""
    if wanted is None:
        return np.ones(begin.shape, bool)
    result: Bools = np.searchsorted(wanted, begin) < np.searchsorted(wanted, end)
    return result


def group_by_header(
    indexes: Indexes, heads: Bytes, fields: slice, read: Callable[[Indexes, Bytes], ChunkRows]
) -> ChunkRows:
    """Group indexes with the same bytes in some fields of their headers, and read each group."""
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
    """Sort chunks by dataset, and then in C order."""
    if find_ascending(chunks.owner, chunks.position).all():
        return chunks
    order = np.lexsort((*chunks.position[::-1], chunks.owner))
    # in place, to avoid the memory of a second table
    for column in (chunks.owner, *chunks.position, *chunks[2:]):
        column[:] = column[order]
    return chunks
