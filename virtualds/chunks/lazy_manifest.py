"""Lazy manifests, whose columns lie in a reference set and are read when needed.

Cropping, permuting and repeating axes only change how chunks are counted, as in a strided array.
Access to a column reads the references of the remaining chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

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
from virtualds.source_file import NO_NUMBER, SourceFile


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


# ---------------------------------------------------------------------- records at equal distances
# Strided manifests: chunks of one length at equal distances in one file.
#
# Records of a classic netCDF file lie like this, a million of them for each variable. Three numbers
# describe them; offsets are computed for the chunks that are needed.


@dataclass(frozen=True)
class StridedReferences:
    """References to ``count`` chunks of one length in one file, each ``step`` behind the last.

    Parameters
    ----------
    file : SourceFile
    first, step, length : int
        Where the first chunk begins, how far apart chunks begin, and how long each is, in bytes.
    count : int

    Raises
    ------
    FormatError
        The chunks do not lie inside the file.
    """

    file: SourceFile
    first: int
    step: int
    length: int
    count: int

    has_pipelines: ClassVar[bool] = False

    def __post_init__(self) -> None:
        # if the first and the last chunk are valid, all between them are
        self.load(np.array([0, self.count - 1], np.int64))

    def load(self, ids: Ints) -> ChunkManifest:
        """Return the chunks of these numbers, in their shape, with the file that they lie in."""
        if not ids.size:
            return ChunkManifest.missing(ids.shape)
        offset = self.first + self.step * ids
        return ChunkManifest.build(ids.shape, files=(self.file,), offset=offset, length=self.length)

    def list_numbers(self) -> None:
        """Return None: all chunks exist."""

    def list_sources(self) -> tuple[SourceFile, ...]:
        """Return the file."""
        return (self.file,)

    def summarize_sources(self) -> None:
        """Return None: there is one file, and no list."""


class StridedManifest(LazyManifest):
    """A manifest that counts the chunks of an `StridedReferences`.

    Access is as cheap as with columns; joining it with other manifests makes columns.

    Examples
    --------
    >>> file = SourceFile("file:///a.nc", size=2**30)
    >>> references = StridedReferences(file, first=96, step=24, length=8, count=10**6)
    >>> records = StridedManifest(references, (10**6,))
    >>> records.lookup((999_999,)).offset, records.nbytes
    (24000072, 32)
    """

    __slots__ = ()

    _table: StridedReferences

    @property
    def _where(self) -> str:
        return " of 1 file"

    @property
    def is_in_set(self) -> bool:
        """Whether the references lie in a reference set: they do not."""
        return False

    @property
    def nbytes(self) -> int:
        """Bytes that the references take in memory: those of four numbers."""
        return 32

    @property
    def files(self) -> tuple[SourceFile, ...]:
        """The table that the column ``file`` counts."""
        return self._table.list_sources()

    @property
    def sources(self) -> tuple[SourceFile, ...]:
        """The file that the chunks lie in."""
        return self._table.list_sources()

    def with_files(self, change: Callable[[SourceFile], SourceFile]) -> ChunkManifest:
        """Return the manifest with its source file replaced by what ``change`` makes of it."""
        return self._locate_in(change(self._table.file), 0)

    def relocated(self, places: Sequence[tuple[SourceFile, int]]) -> ChunkManifest:
        """Return the manifest with its file being a piece of another one."""
        [(file, begin)] = places
        return self._locate_in(file, begin)

    def _locate_in(self, file: SourceFile, begin: int) -> StridedManifest:
        table = replace(self._table, file=file, first=self._table.first + begin)
        return StridedManifest(table, self._shape, self._strides, self._base, self._renumbered)


# ---------------------------------------------------------------------- files of stored references
# What a reference set knows of its files without a look at each reference.


class SourceColumns(NamedTuple):
    """Urls and fingerprints of files, a row for each; `NO_NUMBER` and None are unknown."""

    urls: npt.NDArray[np.object_]
    sizes: npt.NDArray[np.int64]
    mtimes: npt.NDArray[np.int64]
    etags: npt.NDArray[np.object_]

    @classmethod
    def of(cls, files: Iterable[SourceFile]) -> SourceColumns:
        """Return the columns of files."""
        rows = [
            (
                file.url,
                NO_NUMBER if file.size is None else file.size,
                NO_NUMBER if file.mtime is None else file.mtime,
                file.etag,
            )
            for file in files
        ]
        urls, sizes, mtimes, etags = zip(*rows, strict=True) if rows else ((),) * 4
        return cls(
            np.array(urls, object),
            np.array(sizes, np.int64),
            np.array(mtimes, np.int64),
            np.array(etags, object),
        )

    def take(self, rows: npt.NDArray[np.bool_]) -> SourceColumns:
        """Return the rows of a mask."""
        urls, sizes, mtimes, etags = self
        return SourceColumns(urls[rows], sizes[rows], mtimes[rows], etags[rows])


class CountedSources(NamedTuple):
    """How many chunks lie in each file of a list.

    ``name`` tells the list from others, and ``read_files`` reads it: arrays share lists.
    """

    name: Hashable
    chunks: Ints
    read_files: Callable[[], SourceColumns]


@runtime_checkable
class CountedTable(Protocol):
    """A table of references that knows how many of them lie in each file."""

    def count_sources(self, start: int, stop: int) -> CountedSources:
        """Count the files that the rows ``start`` to ``stop`` lie in."""


@runtime_checkable
class SearchedTable(Protocol):
    """A table of references that finds files without listing all."""

    def find_sources(self, urls: Collection[str]) -> tuple[SourceFile, ...]:
        """Return those of its files that have one of the urls."""


def count_stored(manifest: ChunkManifest) -> CountedSources | None:
    """Count the chunks of each file where the set can; None if its references have to be read."""
    if not isinstance(manifest, LazyManifest):
        return None
    counting = manifest.counting
    stretch = _find_stretch(counting)
    if stretch is None or not isinstance(counting.table, CountedTable):
        return None
    return counting.table.count_sources(*stretch)


def find_listed(manifest: ChunkManifest, urls: Collection[str]) -> tuple[SourceFile, ...]:
    """Return those of the files that a manifest lists which have one of the urls."""
    if isinstance(manifest, LazyManifest):
        table = manifest.counting.table
        if isinstance(table, SearchedTable):
            return table.find_sources(urls)
    return tuple(file for file in manifest.listed if file.url in urls)


def _find_stretch(counting: RowCounting) -> tuple[int, int] | None:
    """Return the rows ``start, stop`` that chunks count, each once; None if they lie otherwise."""
    low, length = counting.first, 1
    long = [(s, n) for s, n in zip(counting.strides, counting.shape, strict=True) if n != 1]
    for stride, count in sorted(long, key=lambda pair: abs(pair[0])):
        if abs(stride) != length:
            return None
        low += min(stride, 0) * (count - 1)
        length *= count
    return low, low + length
