"""What chunk indexes have in common: the form of datasets, and the chunks as columns."""

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
"""The maximum of a column."""


@dataclass(frozen=True)
class IndexLayout:
    """What the chunk indexes of datasets of the same form have in common.

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
        """Return the form of the index of a dataset with chunks.

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
    """The indexes of datasets of the same form: the file, the root address and the shape of each.

    ``wanted`` are the chunks to look up in a single index, one row per axis, counted in chunks and
    in C order, or None if all chunks of all indexes are read.
    """

    rows: ByteRows
    form: IndexLayout
    file: Ints
    root: Ints
    shape: Ints
    wanted: Ints | None = None

    def at(self, which: Ints) -> Indexes:
        """Return some of the indexes."""
        return self._replace(file=self.file[which], root=self.root[which], shape=self.shape[which])

    def count_before(self, place: Ints) -> Ints:
        """Return how many chunks of the only dataset come before positions, counted in chunks.

        Keys of trees may be outside the shape.
        """
        grid = tuple((-(-self.shape[0] // np.array(self.form.chunks))).tolist())
        total = np.zeros(place.shape[1:], np.int64)
        within = np.ones(place.shape[1:], bool)
        for values, size, stride in zip(place, grid, compute_strides(grid), strict=True):
            total += np.where(within, np.minimum(values, size) * stride, 0)
            within &= values < size
        return total


class ChunkRows(NamedTuple):
    """Chunks that were written, sorted by dataset and then in C order.

    Parameters
    ----------
    owner : int64 array, shape (n,)
        The position of the dataset among those that are read.
    place : int64 array, shape (ndim, n)
        The position in elements.
    mask : int64 array, shape (n,)
        Which filters were skipped.
    address, length : int64 array, shape (n,)
        The position of the bytes, relative to the base of the file.
    """

    owner: Ints
    place: Ints
    mask: Ints
    address: Ints
    length: Ints

    @classmethod
    def empty(cls, ndim: int) -> ChunkRows:
        """Return no chunks."""
        none = np.empty(0, np.int64)
        return cls(none, np.empty((ndim, 0), np.int64), none, none, none)

    def count_before(self, chunks: tuple[int, ...], grid: tuple[int, ...]) -> Ints:
        """Return how many chunks of a grid come before each of these, in C order.

        The grid may have more axes, within elements, which are never divided.
        """
        total = np.zeros(self.owner.size, np.int64)
        for first, chunk, stride in zip(self.place, chunks, compute_strides(grid), strict=False):
            total += first // chunk * stride
        return total

    def at(self, which: Bools | Ints) -> ChunkRows:
        """Return some of the chunks."""
        return ChunkRows(*(column[..., which] for column in self))


def parse_elements(form: IndexLayout, raw: Bytes, offset_size: int) -> tuple[Ints, Ints, Ints]:
    """Return filter mask, address and length from elements of an array or equivalent records.

    Chunks without filters all have the same length, and their elements are only addresses. The
    width of a length follows from that of an element (VII.C.3, VII.D.3).
    """
    address = read_uints(raw[:, :offset_size])
    if not form.has_filters:
        return np.zeros(len(raw), np.int64), address, np.full(len(raw), form.nbytes)
    length = read_uints(raw[:, offset_size:-MASK_BYTES])
    return read_uints(raw[:, -MASK_BYTES:]), address, length


def take_heads(indexes: Indexes, size: int, signature: bytes, what: str) -> Bytes:
    """Return the headers of indexes, which have a signature and a checksum."""
    heads = indexes.rows.take_rows(indexes.file, indexes.root, size + CHECKSUM_BYTES)
    known = (heads[:, :4] == np.frombuffer(signature, np.uint8)).all(axis=1)
    sound = known & have_checksums(heads)
    require(sound, indexes.file, f"there is no {what} of chunks, or its checksum is wrong")
    return heads


def is_element_size(form: IndexLayout, size: int, offset_size: int) -> bool:
    """Return whether an element may have ``size`` bytes."""
    if not form.has_filters:
        return size == offset_size
    return 1 <= size - offset_size - MASK_BYTES <= 8


def join_chunks(parts: list[ChunkRows], ndim: int) -> ChunkRows:
    """Return the chunks of all parts; the list is emptied, to free columns one by one."""
    if len(parts) == 1:
        return parts.pop()
    columns = [list(column) for column in zip(*parts, strict=True)]
    parts.clear()
    joined = []
    while columns:
        column = columns.pop(0)
        joined.append(np.concatenate(column, axis=-1))
    return ChunkRows(*joined) if joined else ChunkRows.empty(ndim)


def check_chunks(indexes: Indexes, found: ChunkRows) -> ChunkRows:
    """Return chunks that are within the shape and in the file."""
    form, file, owner = indexes.form, indexes.file, found.owner
    if not form.has_filters:
        same = found.length == form.nbytes
        _require(same, file, owner, "a chunk without filters has another length")
    # a negative number is too large when read as unsigned
    for axis, values in enumerate(found.place):
        inside = values.view(np.uint64) < _of_owners(indexes.shape[:, axis], owner)
        _require(inside, file, owner, "a chunk lies outside of the shape")
    end = indexes.rows.ends[file]
    fits = found.length.view(np.uint64) <= _of_owners(end, owner)
    _require(fits, file, owner, "a chunk is longer than any file")
    fits = found.address.view(np.uint64) <= _of_owners(end, owner) - found.length.view(np.uint64)
    _require(fits, file, owner, "a chunk lies past the end of the file")
    return found


def _of_owners(values: Ints, owner: Ints) -> npt.NDArray[np.uint64]:
    """Return the value of each chunk's dataset, or one for all if there is one dataset."""
    return (values if len(values) == 1 else values[owner]).view(np.uint64)


def _require(sound: Bools, file: Ints, owner: Ints, reason: str) -> None:
    if not sound.all():
        raise RowsError(frozenset(file[owner[~sound]].tolist()), reason)


def find_ascending(owner: Ints, place: Ints) -> Bools:
    """Return which chunks, from the second on, come after the one before them."""
    after = np.zeros(max(len(owner) - 1, 0), bool)
    for values in place[::-1]:
        low, high = values[:-1], values[1:]
        after = (low < high) | ((low == high) & after)
    low, high = owner[:-1], owner[1:]
    found: Bools = (low < high) | ((low == high) & after)
    return found


def check_order(indexes: Indexes, found: ChunkRows) -> ChunkRows:
    """Return chunks if each comes after the one before: trees need the order for lookups."""
    after = find_ascending(found.owner, found.place)
    _require(after, indexes.file, found.owner[1:], "chunks are listed twice, or not in their order")
    return found


def is_before(low: Ints, high: Ints, or_same: bool = False) -> Bools:
    """Compare keys, axis by axis; they have shape ``(n, axes)``."""
    found = np.full(len(low), or_same)
    for axis in reversed(range(low.shape[1])):
        a, b = low[:, axis], high[:, axis]
        found = (a < b) | ((a == b) & found)
    return found


def find_places(form: IndexLayout, number: Ints, order: list[int], sizes: tuple[int, ...]) -> Ints:
    """Return the positions of chunks from their flat indexes in a grid.

    Parameters
    ----------
    form : IndexLayout
    number : int64 array
    order : list of int
        The axes, the slowest first.
    sizes : tuple of int
        Chunks along each axis; that of the first in order is unlimited.
    """
    place = np.empty((len(form.chunks), len(number)), np.int64)
    for axis in reversed(order[1:]):
        above = number // sizes[axis]
        np.subtract(number, above * sizes[axis], out=place[axis])
        number = above
    place[order[0]] = number
    for axis, chunk in enumerate(form.chunks):
        place[axis] *= chunk
    return place


def find_numbers(form: IndexLayout, place: Ints, order: list[int], sizes: tuple[int, ...]) -> Ints:
    """Return the flat indexes of chunks in a grid, ascending; the inverse of `find_places`."""
    number = np.zeros(place.shape[1:], np.int64)
    for axis in order:
        number = number * sizes[axis] + place[axis]
    return np.sort(number)


def intersect(wanted: Ints | None, begin: Ints, end: Ints) -> Bools:
    """Return which ranges of flat indexes contain one that is wanted; all do if it is None."""
    if wanted is None:
        return np.ones(begin.shape, bool)
    found: Bools = np.searchsorted(wanted, begin) < np.searchsorted(wanted, end)
    return found


def group_by_header(
    indexes: Indexes, heads: Bytes, fields: slice, read: Callable[[Indexes, Bytes], ChunkRows]
) -> ChunkRows:
    """Read together the indexes with the same bytes in some fields of their headers."""
    same = heads[:, fields]
    if len(same) == 1 or (same == same[0]).all():
        return read(indexes, heads)
    group = np.unique(same, axis=0, return_inverse=True)[1].ravel()
    parts = []
    for number in range(int(group.max()) + 1):
        which = np.flatnonzero(group == number)
        found = read(indexes.at(which), heads[which])
        parts.append(found._replace(owner=which[found.owner]))
    joined = join_chunks(parts, len(indexes.form.chunks))
    return joined.at(np.argsort(joined.owner, kind="stable"))


def sort_chunks(found: ChunkRows) -> ChunkRows:
    """Return chunks by dataset and then in C order."""
    if find_ascending(found.owner, found.place).all():
        return found
    order = np.lexsort((*found.place[::-1], found.owner))
    # in place, since a second table would take as much memory again
    for column in (found.owner, *found.place, *found[2:]):
        column[:] = column[order]
    return found
