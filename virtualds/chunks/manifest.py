"""Manifests: the location of the bytes of each chunk, as columns over a chunk grid.

A manifest has one row per chunk. Its columns are arrays with the shape of the chunk grid; along an
axis along which a column does not change, it is broadcast (stride 0) and takes no memory.
Everything else is built from two primitives: `ChunkManifest.take` and `ChunkManifest.concatenate`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar

import numpy as np
import numpy.typing as npt

from virtualds.bounds import MAX_CHUNKS, check_axes, check_table
from virtualds.chunks.columns import (
    COLUMNS,
    INLINE,
    MISSING,
    Column,
    CountedSources,
    Ints,
    JoinedTable,
    Reference,
    ReferenceTable,
    RowView,
    SourceSummary,
    check_references,
    column_of_rows,
    compact,
    compute_strides,
    concatenate_columns,
    constant_column,
    digest,
    find_distinct,
    find_distinct_in_order,
    fit_column,
    is_same_column,
    map_compact,
    narrow,
    pack,
    pack_table,
    renumber_files,
    spread_column,
    take_rows,
    unpack,
    unpack_table,
)
from virtualds.errors import format_count, public
from virtualds.source_file import SourceFile

# ---------------------------------------------------------------------- names of other libraries
# Names from other libraries, with errors that say what to call here.
#
# They are not attributes, so ``hasattr`` is false: xarray treats an array with ``chunks`` as one of
# dask.


def is_private(name: str) -> bool:
    """Return whether a name is private; Python's special names are not.

    >>> is_private("_map"), is_private("load"), is_private("__doc__")
    (True, False, False)
    """
    return name.startswith("_") and not name.startswith("__")


class ForeignNames:
    """Raises errors for names of other libraries, which say what to call instead."""

    __slots__ = ()

    _FAMILIAR: ClassVar[Mapping[str, str]] = {}
    """The attribute to use instead, by name."""

    def __dir__(self) -> list[str]:
        """List the public names."""
        return [name for name in super().__dir__() if not is_private(name)]

    if not TYPE_CHECKING:
        # a type checker would accept every name as an attribute

        def __getattr__(self, name: str) -> NoReturn:
            kind = type(self).__name__
            remedy = self._FAMILIAR.get(name)
            if remedy is None:
                raise AttributeError(
                    f"{kind!r} object has no attribute {name!r}", name=name, obj=self
                )
            # Python only adds suggestions to errors with a name
            raise AttributeError(f"{kind} has no {name!r}: {remedy}")


OF_MANIFESTS = {
    "entries": "dict() has the path, offset and length of every chunk",
    "get_entry": "lookup(chunk_id) returns the row of a chunk",
    "items": "dict().items() has the chunks by key",
    "iter_refs": "dict().items() has the chunks by key, and file, offset and length are arrays",
    "keys": "dict().keys() has the keys of the chunks",
    "rename_paths": "call ds.virtual.rename_paths(...) on the dataset, or with_files(...)",
    "shape_chunk_grid": "it is .shape",
    "values": "dict().values() has path, offset and length of the chunks",
}
"""Names of VirtualiZarr's ``ChunkManifest``."""

OF_ARRAYS = {
    "chunks": (
        "chunks may differ in length, so there is no one shape: .blocks has the lengths of whole "
        "chunks along every axis, and .fragments[0].axes how each axis is cut"
    ),
    "metadata": ".pipelines say how chunks decode; there are also .dtype, .shape and .fill_value",
    "rename_paths": "call ds.virtual.rename_paths(...) on the dataset",
    "to_virtual_variable": "wrap it yourself: xr.Variable(dims, array)",
    "zarray": ".pipelines say how chunks decode; to_manifest(None) has the Zarr metadata as a dict",
}
"""Names of VirtualiZarr's ``ManifestArray``."""

OF_DATASETS = {
    "nrefs": "it is .nchunks, which also counts missing chunks",
    "to_icechunk": "call to_manifest('repo.icechunk'), or to_manifest(session) of Icechunk",
    "to_kerchunk": (
        "call to_manifest('refs.json') or to_manifest('refs.parquet'); the dict is "
        "to_manifest(None, format='kerchunk-json')"
    ),
    "to_zarr": "call to_manifest('refs.zarr'); materialize('copy.zarr') copies the bytes, too",
}
"""Names of the accessors of VirtualiZarr."""


# ---------------------------------------------------------------------- manifests

Kind = TypeVar("Kind", bound=ReferenceTable)

IN_MEMORY = ("files", *COLUMNS, "inline")
"""The columns of a manifest whose references are in memory."""

LARGE = 2**16
"""Minimum size of a chunk grid in which a few references are stored by position."""

BLOCK_CHUNKS = 2**18
"""The number of chunks that are examined at a time."""

MAX_LISTED = 2**20
"""The number of chunks that are examined without asking a set which of them exist."""


@public
@dataclass(frozen=True, eq=False, repr=False, slots=True, weakref_slot=True)
class ChunkManifest(ForeignNames):
    """The location of each chunk's bytes, as columns over the chunk grid or a view of a table.

    The columns of a view are read when they are accessed: its table may be a formula, may have rows
    for few of its chunks, or may be in a reference set or in the index of a source file.

    Parameters
    ----------
    files : tuple of SourceFile
        The table to which the column ``file`` refers.
    file : int32 array, shape of the chunk grid
        Index of the chunk's file, or `MISSING` or `INLINE`.
    offset, length : int64 array, shape of the chunk grid
        The position of the chunk in its file, in bytes.
    pipeline : uint16 array, shape of the chunk grid
        Index of the `CodecPipeline` in the table of the array.
    checksum : uint64 array, shape of the chunk grid
        2**32 + CRC-32 of the chunk's bytes as stored in the file, or 0 for none.
    inline : tuple of bytes
        Chunks stored here.

    Raises
    ------
    ValueError
        The columns differ in shape.

    Examples
    --------
    >>> manifest = ChunkManifest.build(
    ...     (2, 1), files=[SourceFile("s3://bucket/a.nc")], offset=[[1000], [1016]], length=16
    ... )
    >>> manifest.lookup((1, 0)).offset, manifest.take(0, slice(1, 2)).shape
    (1016, (1, 1))
    """

    files: tuple[SourceFile, ...]
    file: Column
    offset: Column
    length: Column
    pipeline: Column
    checksum: Column
    inline: tuple[bytes, ...] = ()
    rows: RowView | None = field(default=None, init=False)

    _FAMILIAR: ClassVar[Mapping[str, str]] = OF_MANIFESTS

    def __post_init__(self) -> None:
        # each variable of each file makes one, so the columns are not compared in a loop
        one = self.file.shape == self.offset.shape == self.length.shape
        if not one or not self.file.shape == self.pipeline.shape == self.checksum.shape:
            shapes = {name: getattr(self, name).shape for name in COLUMNS}
            raise ValueError(f"ChunkManifest: columns of one grid have one shape, got {shapes}")

    @classmethod
    def of_table(
        cls,
        table: ReferenceTable,
        shape: tuple[int, ...],
        strides: tuple[int, ...] | None = None,
        first: int = 0,
        renumbered: tuple[int, ...] | None = None,
    ) -> ChunkManifest:
        """Return a manifest without columns that refers to the rows of a table.

        Parameters
        ----------
        table : ReferenceTable
        shape, strides, first, renumbered
            As in `RowView`; by default the chunks are rows in C order.
        """
        strides = compute_strides(shape) if strides is None else strides
        return cls._of_rows(RowView(table, shape, strides, first, renumbered))

    @classmethod
    def _of_rows(cls, rows: RowView) -> ChunkManifest:
        made = object.__new__(cls)
        object.__setattr__(made, "rows", rows)
        return made

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            # columns that are not in memory; to use several of them, use `loaded`
            if name not in IN_MEMORY:
                return ForeignNames.__getattr__(self, name)
            table = self.rows.table
            if name == "files" and table.files is not None:
                return table.files
            if name == "pipeline" and not table.has_pipelines:
                return constant_column("pipeline", self.rows.only, self.rows.shape)
            return getattr(self.loaded(), name)

    @classmethod
    def build(
        cls,
        shape: tuple[int, ...],
        *,
        files: Sequence[SourceFile] = (),
        file: npt.ArrayLike = 0,
        offset: npt.ArrayLike = 0,
        length: npt.ArrayLike = 0,
        pipeline: npt.ArrayLike = 0,
        checksum: npt.ArrayLike = 0,
        inline: Sequence[bytes] = (),
    ) -> ChunkManifest:
        """Build a manifest from columns or scalars, and check every reference.

        Raises
        ------
        FormatError
            A reference is empty, negative, or reaches past the end of its file, or a checksum is
            neither 0 nor 2**32 + CRC-32.
        UnsupportedError
            The grid has more than 32 axes.
        ValueError
            A column contains something other than integers, or does not fit the grid.
        """
        check_axes(len(shape), "a grid of chunks")
        given = zip(COLUMNS, (file, offset, length, pipeline, checksum), strict=True)
        columns = {name: spread_column(name, value, shape) for name, value in given}
        manifest = cls(files=tuple(files), inline=tuple(inline), **columns)
        check_references(manifest)
        return manifest

    @classmethod
    def in_file(
        cls,
        shape: tuple[int, ...],
        file: SourceFile,
        offsets: Sequence[int],
        lengths: Sequence[int],
    ) -> ChunkManifest:
        """Build a manifest of a few chunks of one file, in C order, and check every reference.

        It equals the result of `build`, in a third of the time, which matters in scans of many
        files.

        Raises
        ------
        FormatError, UnsupportedError
            As `build`.
        """
        check_axes(len(shape), "a grid of chunks")
        last = 2**62 if file.size is None else file.size
        ends = map(operator.add, offsets, lengths)
        if not offsets or min(offsets) < 0 or min(lengths) <= 0 or max(ends) > last:
            columns = (np.array(c, np.int64).reshape(shape) for c in (offsets, lengths))
            return cls.build(shape, files=(file,), offset=next(columns), length=next(columns))
        return cls(
            files=(file,),
            file=constant_column("file", 0, shape),
            offset=column_of_rows("offset", offsets, shape),
            length=column_of_rows("length", lengths, shape),
            pipeline=constant_column("pipeline", 0, shape),
            checksum=constant_column("checksum", 0, shape),
        )

    @classmethod
    def missing(cls, shape: tuple[int, ...]) -> ChunkManifest:
        """Return a manifest of chunks that do not exist."""
        return cls.build(shape, file=MISSING)

    @property
    def shape(self) -> tuple[int, ...]:
        """Chunks per axis."""
        return self.file.shape if self.rows is None else self.rows.shape

    @property
    def size(self) -> int:
        """Number of chunks of the grid, including missing ones."""
        return prod(self.shape)

    def __repr__(self) -> str:
        counted = format_count(self.size, "chunk")
        if self.rows is not None:
            where = self.rows.table.where
        else:
            where = f" of {format_count(len(self.files), 'file')}" if self.files else ""
        return f"<{type(self).__name__} {self.shape}: {counted}{where}>"

    @property
    def sources(self) -> tuple[SourceFile, ...]:
        """The distinct files of the table; for a view, only the files that contain chunks."""
        if self.rows is None or self.rows.table.files is not None:
            return tuple(dict.fromkeys(self.files))
        found: dict[SourceFile, None] = {}
        for _, part in iterate_references(self):
            found |= dict.fromkeys(part.pruned().files)
        return tuple(found)

    @property
    def listed(self) -> tuple[SourceFile, ...]:
        """The files of the table; for a view, all files that its set lists for it."""
        return self.files if self.rows is None else self.rows.table.list_sources()

    def find_listed(self, urls: Collection[str]) -> tuple[SourceFile, ...]:
        """Return the listed files that have one of the urls."""
        if self.rows is not None:
            return self.rows.table.find_sources(urls)
        return tuple(file for file in self.files if file.url in urls)

    @property
    def catalogue(self) -> SourceSummary | None:
        """Facts that the set stores about all listed files, or None if they have to be listed."""
        return None if self.rows is None else self.rows.table.summarize_sources()

    def count_stored(self) -> CountedSources | None:
        """Count the chunks of each file if the set can, or return None if rows must be read."""
        found = None if self.rows is None else self.rows.find_range()
        if self.rows is None or found is None:
            return None
        return self.rows.table.count_sources(*found)

    @property
    def nbytes(self) -> int:
        """The size of the references in memory, without the table of files, in bytes."""
        if self.rows is not None:
            return self.rows.table.nbytes
        columns = sum(compact(getattr(self, name)).nbytes for name in COLUMNS)
        return columns + sum(len(chunk) for chunk in self.inline)

    def lookup(self, chunk_id: tuple[int, ...]) -> Reference:
        """Return the row of one chunk."""
        if self.rows is not None:
            positions = [np.array([range(n)[i]]) for n, i in zip(self.shape, chunk_id, strict=True)]
            return self.rows.cross(positions).lookup((0,) * len(positions))
        return Reference(*(int(getattr(self, name)[chunk_id]) for name in COLUMNS))

    def dict(self) -> dict[str, dict[str, Any]]:
        """Return path, offset and length of every chunk, or its bytes as ``data``, by its key.

        Missing chunks have no key, as in `virtualizarr.manifests.ChunkManifest.dict`.
        """
        found: dict[str, dict[str, Any]] = {}
        loaded = self.loaded()
        for chunk_id in np.argwhere(loaded.file != MISSING).tolist():
            file, offset, length, *_ = loaded.lookup(tuple(chunk_id))
            key = ".".join(map(str, chunk_id)) or "0"
            if file == INLINE:
                found[key] = {"data": loaded.inline[offset]}
            else:
                found[key] = {"path": loaded.files[file].url, "offset": offset, "length": length}
        return found

    def at(self, ids: Ints) -> ChunkManifest:
        """Return the chunks at flat indexes in C order, in the shape of the indexes."""
        if self.rows is not None:
            return self.rows.at(ids)
        where = np.unravel_index(ids, self.shape) if self.shape else (np.zeros_like(ids),)
        columns = self if self.shape else self.reshape((1,))
        return columns._map(lambda column: column[where])

    def find_existing(self) -> Ints | None:
        """Return the ascending flat indexes of the chunks that may exist, or None if all may."""
        if self.rows is not None:
            return self.rows.find_existing()
        file = compact(self.file)
        return np.zeros(0, np.int64) if (file == MISSING).all() else None

    @property
    def is_loaded(self) -> bool:
        """Whether the columns are in memory."""
        return self.rows is None

    @property
    def is_in_set(self) -> bool:
        """Whether the references are in a reference set, and are read from there when needed."""
        return self.rows is not None and self.rows.table.is_in_set

    @property
    def must_stay_separate(self) -> bool:
        """Whether joining with others would read a set, or compute many rows of a formula."""
        if self.rows is None or self.rest is not None:
            return False
        return self.is_in_set or (self.size > LARGE and not self.is_in_source)

    @property
    def is_in_source(self) -> bool:
        """Whether the references are looked up in the index of a source file."""
        return self.rows is not None and self.rows.table.is_in_source

    @property
    def table(self) -> ReferenceTable | None:
        """The table of a view, or None if the columns are in memory."""
        return None if self.rows is None else self.rows.table

    def table_of(self, kind: type[Kind]) -> Kind | None:
        """Return the table of a view if it is of the given type, or None."""
        return self.table if isinstance(self.table, kind) else None

    def counts(self, table: ReferenceTable | None, first: int = 0) -> bool:
        """Return whether the chunks, in C order, are the rows of a table from ``first`` on."""
        return (
            self.rows is not None
            and self.rows.table == table
            and self.rows.first == first
            and not any(self.rows.renumbered or ())
            and self.rows._replace(first=0).is_in_order
        )

    def get_if_loaded(self) -> tuple[Ints | None, ChunkManifest] | None:
        """Return rows that are in memory and their positions, or None if something must be read.

        Without positions, there is a row for each chunk, or one row represents all, except for
        its offset.
        """
        return (None, self) if self.rows is None else self.rows.table.get_if_loaded(self.rows)

    @property
    def rest(self) -> int | None:
        """The pipeline of missing chunks, if few chunks exist and are stored by position."""
        return None if self.rows is None else self.rows.rest

    def loaded(self) -> ChunkManifest:
        """Return the manifest with its columns in memory.

        Raises
        ------
        UnsupportedError
            They would be almost empty.
        """
        if self.rows is None:
            return self
        if self.size <= MAX_CHUNKS:
            return self.rows.cross([np.arange(n) for n in self.shape])
        parts = [part for _, part in iterate_blocks(self)]
        return ChunkManifest.concatenate(parts, 0).reshape(self.shape)

    def take(self, axis: int, ids: slice | Ints) -> ChunkManifest:
        """Return the chunks ``ids`` along ``axis``; an id of -1 is a missing chunk."""
        if isinstance(ids, slice):
            if self.rows is not None:
                return self._of_rows(self.rows.crop(axis, ids))
            where = (slice(None),) * axis + (ids,)
            return self._map(lambda column: column[where])
        if self.rows is not None:
            return self._take_rows(self.rows, axis, ids)
        taken = self._map(lambda column: take_rows(column, ids, axis))
        absent = ids == -1
        if not absent.any():
            return taken
        mask = absent.reshape((-1,) + (1,) * (len(self.shape) - axis - 1))
        return replace(taken, file=np.where(mask, np.int32(MISSING), taken.file))

    def _take_rows(self, rows: RowView, axis: int, ids: Ints) -> ChunkManifest:
        # a missing chunk has the pipeline of the last one, as with columns in memory
        last = np.full_like(ids, self.shape[axis] - 1)
        kept = np.unique(np.where(ids < 0, last, ids) if rows.table.has_pipelines else ids)
        kept = kept[kept >= 0]
        if not kept.size:
            shape = (*self.shape[:axis], ids.size, *self.shape[axis + 1 :])
            return ChunkManifest.build(shape, file=MISSING, pipeline=rows.only)
        needed = [kept if i == axis else np.arange(n) for i, n in enumerate(self.shape)]
        where = np.where(ids < 0, -1, np.searchsorted(kept, ids))
        return rows.cross(needed).take(axis, where)

    @staticmethod
    def concatenate(manifests: Sequence[ChunkManifest], axis: int) -> ChunkManifest:
        """Concatenate manifests along ``axis``, and merge their tables of files."""
        if len(manifests) == 1:
            return manifests[0]
        manifests = [m.loaded() for m in manifests]
        table = JoinedTable.of([m.files for m in manifests])
        columns = {name: [getattr(m, name) for m in manifests] for name in COLUMNS}
        inline: dict[bytes, int] = {}
        for k, m in enumerate(manifests):
            if m.inline:
                numbers = np.array([inline.setdefault(chunk, len(inline)) for chunk in m.inline])
                file, offset = compact(m.file), compact(m.offset)
                is_inline = file == INLINE
                moved = np.where(is_inline, numbers[np.where(is_inline, offset, 0)], offset)
                columns["offset"][k] = np.broadcast_to(moved, m.shape)
        tables = {"file": list(map(renumber_files, table.numbers))}
        joined = {n: concatenate_columns(some, axis, tables.get(n)) for n, some in columns.items()}
        return ChunkManifest(files=table.items, inline=tuple(inline), **joined)

    def transpose(self, axes: Sequence[int]) -> ChunkManifest:
        """Permute the axes of the grid."""
        if self.rows is not None:
            return self._of_rows(self.rows.transpose(axes))
        return self._map(lambda column: column.transpose(axes))

    def reshape(self, shape: tuple[int, ...]) -> ChunkManifest:
        """Insert or remove axes that have a single chunk."""
        if self.rows is not None:
            rows = self.rows.reshape(shape)
            return self.loaded().reshape(shape) if rows is None else self._of_rows(rows)
        return self._map(lambda column: column.reshape(shape))

    def broadcast_to(self, shape: tuple[int, ...]) -> ChunkManifest:
        """Repeat the chunks along axes that have a single chunk."""
        if self.rows is not None:
            return self._of_rows(self.rows.broadcast_to(shape))
        return self._map(lambda column: np.broadcast_to(column, shape))

    def with_files(self, change: Callable[[SourceFile], SourceFile]) -> ChunkManifest:
        """Return the manifest with ``change`` applied to every source file."""
        if self.rows is not None:
            found = self._with_table(self.rows.table.with_files(change))
            return self.loaded().with_files(change) if found is None else found
        return replace(self, files=tuple(map(change, self.files)))

    def _with_table(self, table: ReferenceTable | None) -> ChunkManifest | None:
        """Return the same rows of another table, or None if there is none."""
        if self.rows is None or table is None:
            return None
        return self._of_rows(self.rows._replace(table=table))

    def moved_into(self, locations: Sequence[tuple[SourceFile, int]]) -> ChunkManifest:
        """Return the manifest for files that are embedded in others.

        Parameters
        ----------
        locations : sequence of SourceFile and int
            For every file of the table, the one that contains it, and the offset where it begins
            there.
        """
        if self.rows is not None:
            found = self._with_table(self.rows.table.moved_into(locations))
            return self.loaded().moved_into(locations) if found is None else found
        files: dict[SourceFile, int] = {}
        numbers = [files.setdefault(file, len(files)) for file, _ in locations]
        # the codes of missing and inline chunks index from the end of the table
        table = np.array([*numbers, INLINE, MISSING], np.int32)
        shift = np.array([*(begin for _, begin in locations), 0, 0], np.int64)
        offset = compact(self.offset) + shift[compact(self.file)]
        return replace(
            self,
            files=tuple(files),
            file=fit_column(table[compact(self.file)], self.shape),
            offset=fit_column(offset, self.shape),
        )

    def checked(self, checksums: npt.NDArray[np.uint64]) -> ChunkManifest:
        """Return the manifest with checksums added to chunks that have none.

        Parameters
        ----------
        checksums : array of uint64
            Over the grid of chunks, or of a shape that broadcasts to it.
        """
        if self.rows is not None:
            return self.loaded().checked(checksums)
        known = compact(self.checksum)
        found = np.where(known == 0, checksums, known)
        return replace(self, checksum=fit_column(found, self.shape))

    def pruned(self) -> ChunkManifest:
        """Return the manifest with only those files in its table that contain chunks."""
        if self.rows is not None:
            return self.rows.table.pruned(self)
        used = find_distinct(compact(self.file), len(self.files))
        return self if used.size == len(self.files) else self._with_files_of(used)

    def with_files_in_order(self, axis: int) -> ChunkManifest:
        """Return the manifest with its files in the order of their first use along an axis."""
        if self.rows is not None:
            return self.loaded().with_files_in_order(axis)
        used = find_distinct_in_order(np.moveaxis(self.file, axis, 0))
        return self._with_files_of(used[used >= 0])

    def _with_files_of(self, used: Ints) -> ChunkManifest:
        """Return the manifest with only the files at these indexes, in their order."""
        numbers = np.full(len(self.files) + 2, MISSING, np.int32)
        numbers[used] = np.arange(used.size)
        numbers[-2:] = INLINE, MISSING
        files = tuple(map(self.files.__getitem__, used.tolist()))
        return replace(self, files=files, file=map_compact(self.file, lambda c: numbers[c]))

    def with_pipelines(self, numbers: Sequence[int]) -> ChunkManifest:
        """Renumber the pipelines: number ``i`` becomes ``numbers[i]``."""
        if list(numbers) == list(range(len(numbers))):
            return self
        if self.rows is not None:
            return self._of_rows(self.rows.with_pipelines(numbers))
        table = np.asarray(numbers, np.uint16)
        return replace(self, pipeline=map_compact(self.pipeline, lambda c: table[c]))

    def used_pipelines(self, count: int) -> Ints:
        """Return the indexes of the pipelines that chunks have, or may have, out of ``count``."""
        if self.rows is None:
            return np.unique(compact(self.pipeline))
        if self.rest is not None:
            ids, rows = gather_references(self)
            found = rows.used_pipelines(count) if ids.size else np.zeros(0, np.int64)
            return found if ids.size == self.size else np.union1d(found, [self.rest])
        if not self.rows.table.has_pipelines:
            return np.array([self.rows.only])
        renumbered = self.rows.renumbered
        return np.arange(count) if renumbered is None else np.unique(renumbered)

    def same(self, other: ChunkManifest) -> bool:
        """Return whether both manifests refer to the same bytes, chunk by chunk."""
        if self is other:
            return True
        if self.shape != other.shape:
            return False
        if self.rows is not None and self.rows == other.rows:
            return True
        if self.rest is not None and other.rest is not None:
            (ids, rows), (others, other_rows) = map(gather_references, (self, other))
            same = self.rest == other.rest and np.array_equal(ids, others)
            return same and rows.same(other_rows)
        if (self.rest is not None or other.rest is not None) and self.size > LARGE:
            return False
        one, two = self.loaded(), other.loaded()
        return (
            one.files == two.files
            and one.inline == two.inline
            and all(is_same_column(getattr(one, n), getattr(two, n)) for n in COLUMNS)
        )

    def _map(self, change: Callable[[Column], Column]) -> ChunkManifest:
        loaded = self if self.rows is None else self.loaded()
        columns: dict[str, Any] = {name: change(getattr(loaded, name)) for name in COLUMNS}
        return replace(loaded, **columns)

    # not __getstate__: before Python 3.11.4, dataclass(frozen=True, slots=True) overwrites it
    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the elements of broadcast axes once, in few bytes, or the location of rows."""
        if self.rows is not None:
            return ChunkManifest.of_table, tuple(self.rows)
        columns = {name: compact(getattr(self, name)) for name in COLUMNS}
        packed = {name: pack(column) for name, column in columns.items() if name != "offset"}
        packed["offset"] = pack(columns["offset"], columns["length"])
        files = pack_table(self.files)
        return _unpack_manifest, (files, self.inline, self.shape, packed)

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        """Identify the references for dask: equal ones equally, at the cost of their memory.

        Rows in a set are identified by their location, without reading them.
        """
        from dask.base import normalize_token

        if self.rows is not None:
            return ("virtualds-counted", *map(normalize_token, self.rows))
        columns = (narrow(compact(getattr(self, name))) for name in COLUMNS)
        return (
            "virtualds-references",
            self.shape,
            *map(normalize_token, (digest(self.files), self.inline, *columns)),
        )


def _unpack_manifest(
    files: Any, inline: tuple[bytes, ...], shape: tuple[int, ...], packed: Mapping[str, Any]
) -> ChunkManifest:
    """Return the manifest from a pickle."""
    columns: dict[str, Column] = {}
    for name, kind in COLUMNS.items():
        if isinstance(packed[name], int):
            columns[name] = constant_column(name, packed[name], shape)
        else:
            steps = unpack(packed["length"]) if name == "offset" else None
            found = unpack(packed[name], steps).astype(kind, copy=False)
            columns[name] = np.broadcast_to(found, shape)
    return ChunkManifest(files=unpack_table(files), inline=inline, **columns)


# ---------------------------------------------------------------------- block by block


def iterate_blocks(
    manifest: ChunkManifest, start: int = 0, most: int = BLOCK_CHUNKS
) -> Iterator[tuple[Ints, ChunkManifest]]:
    """Yield the flat indexes of chunks and the chunks, beginning at ``start``, block by block.

    Callers that need all chunks of a manifest use this, so that a small set that claims billions of
    chunks soon fails: blocks that are almost empty are an `UnsupportedError`.
    """
    references, what = 0, f"the first chunks of a grid {manifest.shape} that lies in a set"
    for begin in range(start, manifest.size, most):
        ids = np.arange(begin, min(begin + most, manifest.size))
        part = manifest.at(ids)
        references += int(np.count_nonzero(part.file != MISSING))
        check_table((int(ids[-1]) + 1 - start,), max(references, 1), what)
        yield ids, part


def iterate_references(
    manifest: ChunkManifest, most: int = BLOCK_CHUNKS
) -> Iterator[tuple[Ints, ChunkManifest]]:
    """Yield the flat indexes of existing chunks, ascending, and the chunks, block by block.

    If the manifest knows which chunks may exist, the time depends on the number of references, not
    of missing chunks. In another manifest, almost empty blocks raise `UnsupportedError`.
    """
    is_asked = manifest.size > MAX_LISTED or not manifest.is_in_set
    known = manifest.find_existing() if is_asked else None
    blocks: Iterator[tuple[Ints, ChunkManifest]]
    if known is not None:
        cuts = (known[begin : begin + most] for begin in range(0, known.size, most))
        blocks = ((ids, manifest.at(ids)) for ids in cuts)
    elif manifest.is_loaded:
        flat = (np.arange(n, min(n + most, manifest.size)) for n in range(0, manifest.size, most))
        blocks = ((ids, manifest.at(ids)) for ids in flat)
    else:
        blocks = iterate_blocks(manifest, most=most)
    for ids, part in blocks:
        there = part.file != MISSING
        if there.all():
            yield ids, part
        elif there.any():
            yield ids[there], part.at(np.flatnonzero(there))


def gather_references(manifest: ChunkManifest) -> tuple[Ints, ChunkManifest]:
    """Return the flat indexes of the existing chunks, ascending, and the chunks."""
    found = list(iterate_references(manifest))
    if not found:
        return np.zeros(0, np.int64), ChunkManifest.missing((0,))
    rows = ChunkManifest.concatenate([part for _, part in found], 0)
    return np.concatenate([ids for ids, _ in found]), rows
