"""Lazy manifests, whose columns lie in a reference set and are read when needed.

Cropping, permuting and repeating axes only change how chunks are counted, as in a strided array.
Access to a column reads the references of the remaining chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from virtualds.bounds import MOST_CHUNKS
from virtualds.chunks.columns import COLUMNS, MISSING, Column, Reference
from virtualds.chunks.manifest import ChunkManifest
from virtualds.chunks.projection import Ints, compute_strides
from virtualds.chunks.reference_table import (
    ReferenceTable,
    RowCounting,
    SourceSummary,
    iterate_blocks,
    iterate_references,
)
from virtualds.source_file import SourceFile


class LazyManifest(ChunkManifest):
    """Counts chunks of a table: the flat number is ``base`` plus strides times places.

    Parameters
    ----------
    table : ReferenceTable
    shape : tuple of int
        Chunks per axis.
    strides : tuple of int, optional
        In chunks, per axis; by default those of C order.
    base : int
        Number of the first chunk.
    renumbered : tuple of int, optional
        Number in the array of each of the table's pipelines; by default their own.
    """

    __slots__ = ("_base", "_renumbered", "_shape", "_strides", "_table")

    _table: ReferenceTable
    _shape: tuple[int, ...]
    _strides: tuple[int, ...]
    _base: int
    _renumbered: tuple[int, ...] | None

    def __init__(
        self,
        table: ReferenceTable,
        shape: tuple[int, ...],
        strides: tuple[int, ...] | None = None,
        base: int = 0,
        renumbered: tuple[int, ...] | None = None,
    ) -> None:
        if strides is None:
            strides = compute_strides(shape)
        given = (base, renumbered, shape, strides, table)
        for name, value in zip(LazyManifest.__slots__, given, strict=True):
            object.__setattr__(self, name, value)

    def _view(
        self, shape: tuple[int, ...], strides: tuple[int, ...], base: int | None = None
    ) -> LazyManifest:
        """Return other chunks of the same table."""
        base = self._base if base is None else base
        return type(self)(self._table, shape, strides, base, self._renumbered)

    # ------------------------------------------------------------------ what is read

    def _number_chunks(self, places: Sequence[Ints]) -> Ints:
        """Return the numbers of the chunks where the places of all axes cross."""
        total: Ints = np.array(self._base, np.int64).reshape((1,) * len(places))
        for axis, (stride, ids) in enumerate(zip(self._strides, places, strict=True)):
            along = (1,) * axis + (-1,) + (1,) * (len(places) - axis - 1)
            total = total + (stride * ids).reshape(along)
        return total

    def _load(self, numbers: Ints) -> ChunkManifest:
        """Return the chunks of these numbers, in their shape."""
        found = self._table.load(numbers)
        return found if self._renumbered is None else found.with_pipelines(self._renumbered)

    def loaded(self) -> ChunkManifest:
        """Return the manifest with its columns in memory.

        Raises
        ------
        UnsupportedError
            They would be almost empty.
        """
        if self.size <= MOST_CHUNKS:
            return self._load(self._number_chunks([np.arange(n) for n in self._shape]))
        parts = [part for _, part in iterate_blocks(self)]
        return ChunkManifest.concatenate(parts, 0).reshape(self._shape)

    def lookup(self, chunk_id: tuple[int, ...]) -> Reference:
        """Return the row of one chunk."""
        places = [np.array([range(n)[i]]) for n, i in zip(self._shape, chunk_id, strict=True)]
        return self._load(self._number_chunks(places)).lookup((0,) * len(places))

    def at(self, ids: Ints) -> ChunkManifest:
        """Return the chunks of flat numbers in C order, in the shape of the numbers."""
        numbers = np.full(ids.shape, self._base, np.int64)
        if self._shape:
            for stride, places in zip(
                self._strides, np.unravel_index(ids, self._shape), strict=True
            ):
                numbers += stride * places
        return self._load(numbers)

    def find_existing(self) -> Ints | None:
        """Return the numbers of the chunks that may exist, rising; None if all chunks may."""
        numbers = self._table.list_numbers()
        if numbers is None:
            return None
        if self._base == 0 and self._strides == compute_strides(self._shape):
            return numbers[: np.searchsorted(numbers, self.size)]
        return _find_chunks_of(numbers, self._shape, self._strides, self._base)

    @property
    def _where(self) -> str:
        return ", whose references lie in a reference set"

    @property
    def is_loaded(self) -> bool:
        """Whether the columns are in memory."""
        return False

    @property
    def is_in_set(self) -> bool:
        """Whether the references lie in a reference set."""
        return True

    @property
    def file(self) -> Column:
        """All of the column: better ask for what is `loaded`."""
        return self.loaded().file

    @property
    def offset(self) -> Column:
        """All of the column: better ask for what is `loaded`."""
        return self.loaded().offset

    @property
    def length(self) -> Column:
        """All of the column: better ask for what is `loaded`."""
        return self.loaded().length

    @property
    def pipeline(self) -> Column:
        """The whole column, which is one number unless the table has several."""
        if self._table.has_pipelines:
            return self.loaded().pipeline
        return np.broadcast_to(np.array(self._only, COLUMNS["pipeline"]), self._shape)

    @property
    def _only(self) -> int:
        """The pipeline of every chunk of a table that has no pipelines."""
        return self._renumbered[0] if self._renumbered else 0

    @property
    def checksum(self) -> Column:
        """All of the column: better ask for what is `loaded`."""
        return self.loaded().checksum

    @property
    def inline(self) -> tuple[bytes, ...]:
        """All chunks held in the set."""
        return self.loaded().inline

    @property
    def files(self) -> tuple[SourceFile, ...]:
        """The table that the column ``file`` counts."""
        return self.loaded().files

    @property
    def sources(self) -> tuple[SourceFile, ...]:
        """All files that the chunks lie in, found block by block."""
        found: dict[SourceFile, None] = {}
        for _, part in iterate_references(self):
            found |= dict.fromkeys(part.pruned().files)
        return tuple(found)

    @property
    def listed(self) -> tuple[SourceFile, ...]:
        """All files that the set lists for the table."""
        return self._table.list_sources()

    @property
    def catalogue(self) -> SourceSummary | None:
        """The set's summary of all these files, None if they have to be listed."""
        return self._table.summarize_sources()

    # ------------------------------------------------------------------ what is not

    @property
    def counting(self) -> RowCounting:
        """The table and the rows of the chunks, for writers."""
        return RowCounting(self._table, self._shape, self._strides, self._base, self._renumbered)

    @property
    def shape(self) -> tuple[int, ...]:
        """Chunks per axis."""
        return self._shape

    @property
    def size(self) -> int:
        """Number of chunks of the grid, missing ones too."""
        return prod(self._shape)

    @property
    def nbytes(self) -> int:
        """Bytes that the references take in memory for good: none."""
        return 0

    def take(self, axis: int, ids: slice | Ints) -> ChunkManifest:
        """Return the chunks ``ids`` along ``axis``; an id of -1 is a missing chunk."""
        if isinstance(ids, slice):
            start, stop, step = ids.indices(self._shape[axis])
            stride = self._strides[axis]
            return self._view(
                _replace_item(self._shape, axis, len(range(start, stop, step))),
                _replace_item(self._strides, axis, stride * step),
                self._base + start * stride,
            )
        # a missing chunk has the pipeline of the last one, as with columns in memory
        last = np.full_like(ids, self._shape[axis] - 1)
        kept = np.unique(np.where(ids < 0, last, ids) if self._table.has_pipelines else ids)
        kept = kept[kept >= 0]
        if not kept.size:
            shape = _replace_item(self._shape, axis, ids.size)
            return ChunkManifest.build(shape, file=MISSING, pipeline=self._only)
        needed = [kept if i == axis else np.arange(n) for i, n in enumerate(self._shape)]
        where = np.where(ids < 0, -1, np.searchsorted(kept, ids))
        return self._load(self._number_chunks(needed)).take(axis, where)

    def transpose(self, axes: Sequence[int]) -> ChunkManifest:
        """Permute the axes of the grid."""
        shape, strides = (tuple(v[i] for i in axes) for v in (self._shape, self._strides))
        return self._view(shape, strides)

    def reshape(self, shape: tuple[int, ...]) -> ChunkManifest:
        """Insert or remove axes of one chunk."""
        long = [(n, s) for n, s in zip(self._shape, self._strides, strict=True) if n != 1]
        if [n for n in shape if n != 1] != [n for n, _ in long]:
            return self.loaded().reshape(shape)
        rest = iter(long)
        strides = tuple(0 if n == 1 else next(rest)[1] for n in shape)
        return self._view(shape, strides)

    def broadcast_to(self, shape: tuple[int, ...]) -> ChunkManifest:
        """Repeat the chunks along axes of one chunk."""
        pairs = zip(self._shape, self._strides, shape, strict=True)
        strides = tuple(0 if n == 1 else s for n, s, _ in pairs)
        return self._view(shape, strides)

    def with_files(self, change: Callable[[SourceFile], SourceFile]) -> ChunkManifest:
        """Return the manifest with every source file replaced by what ``change`` makes of it."""
        return self.loaded().with_files(change)

    def pruned(self) -> ChunkManifest:
        """Return the manifest itself, which holds nothing that it does not need."""
        return self

    def with_pipelines(self, numbers: Sequence[int]) -> ChunkManifest:
        """Renumber the pipelines: number ``i`` becomes ``numbers[i]``."""
        if list(numbers) == list(range(len(numbers))):
            return self
        before = range(len(numbers)) if self._renumbered is None else self._renumbered
        after: tuple[int, ...] | None = tuple(numbers[i] for i in before)
        if not self._table.has_pipelines:
            number = numbers[self._only]
            after = (number,) if number else None
        return type(self)(self._table, self._shape, self._strides, self._base, after)

    def used_pipelines(self, count: int) -> Ints:
        """Return the numbers of the pipelines that chunks have, or may have, out of ``count``."""
        if not self._table.has_pipelines:
            return np.array([self._only])
        return np.arange(count) if self._renumbered is None else np.unique(self._renumbered)

    def same(self, other: ChunkManifest) -> bool:
        """Say whether both refer to the same bytes, chunk by chunk, through the same tables."""
        if isinstance(other, LazyManifest) and self.__reduce__() == other.__reduce__():
            return True
        return self.loaded().same(other.loaded())

    def _map(self, change: Callable[[Column], Column]) -> ChunkManifest:
        return self.loaded()._map(change)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the place of the columns, not their values."""
        counting = self._table, self._shape, self._strides, self._base, self._renumbered
        return type(self), counting

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        """Name the chunks for dask by where their references lie, without reading them."""
        from dask.base import normalize_token

        return ("virtualds-counted", *map(normalize_token, self.__reduce__()[1]))


def _find_chunks_of(
    numbers: Ints, shape: tuple[int, ...], strides: tuple[int, ...], base: int
) -> Ints | None:
    """Return which chunks count these numbers of a table; None where several may count one.

    The strides of a crop or permutation are like the digits of a number: each is at least the span
    of all smaller ones.
    """
    long = [axis for axis, count in enumerate(shape) if count != 1]
    long.sort(key=lambda axis: -abs(strides[axis]))
    spans = [abs(strides[axis]) * (shape[axis] - 1) for axis in long]
    if any(abs(strides[axis]) <= sum(spans[k + 1 :]) for k, axis in enumerate(long)):
        return None
    # an axis that is counted backwards is counted from its end
    rest = numbers - base - sum(strides[i] * (shape[i] - 1) for i in long if strides[i] < 0)
    inside, found, step = rest >= 0, np.zeros_like(numbers), compute_strides(shape)
    for axis in long:
        place, rest = np.divmod(rest, abs(strides[axis]))
        inside &= place < shape[axis]
        found += step[axis] * (place if strides[axis] > 0 else shape[axis] - 1 - place)
    return np.sort(found[inside & (rest == 0)])


class DeferredManifest(LazyManifest):
    """A lazy manifest of chunks that are looked up in the index of a source file.

    It serves reading alone: whoever takes references out of an array loads them first.
    """

    __slots__ = ()

    @property
    def _where(self) -> str:
        return ", looked up in the index of their file"

    @property
    def is_in_set(self) -> bool:
        """Whether the references lie in a reference set: they do not."""
        return False

    @property
    def files(self) -> tuple[SourceFile, ...]:
        """The table that the column ``file`` counts."""
        return self._table.list_sources()


def _replace_item(values: tuple[int, ...], axis: int, value: int) -> tuple[int, ...]:
    return (*values[:axis], value, *values[axis + 1 :])
