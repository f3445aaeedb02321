"""`ChunkManifest`: the references of the chunks of one chunk grid, as columns.

A column is an array over the chunk grid. It is broadcast (stride 0), without memory, along axes on
which it is constant. Indexing and joining of arrays need two operations: `ChunkManifest.take` and
`ChunkManifest.concatenate`.
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
    build_columns,
    check_references,
    compact,
    compute_strides,
    concatenate_columns,
    find_distinct,
    find_distinct_in_order,
    fit_column,
    hash_files,
    is_same_column,
    make_constant_column,
    map_compact,
    narrow_dtype,
    pack,
    pack_table,
    renumber_files,
    take_along,
    take_flat,
    unpack,
    unpack_table,
)
from virtualds.errors import format_count, public
from virtualds.source_file import SourceFile

# ---------------------------------------------------------------------- names of other libraries
# Attribute names of VirtualiZarr raise errors that name the attribute to use here.
#
# ``hasattr`` is false for them: xarray would treat an array with ``chunks`` as a dask array.


def is_private_name(name: str) -> bool:
    """Return whether a name is private; special names (``__len__``) are not.

    >>> is_private_name("_map"), is_private_name("load"), is_private_name("__doc__")
    (True, False, False)
    """
    return name.startswith("_") and not name.startswith("__")


class ForeignNameHints:
    """Base class whose errors for attribute names of other libraries name the alternative."""

    __slots__ = ()

    _NAME_HINTS: ClassVar[Mapping[str, str]] = {}
    """Alternatives to attribute names of other libraries, by name."""

    def __dir__(self) -> list[str]:
        """Return the public and special names."""
        return [name for name in super().__dir__() if not is_private_name(name)]

    if not TYPE_CHECKING:
        # hidden from type checkers, which would otherwise accept every name

        def __getattr__(self, name: str) -> NoReturn:
            kind = type(self).__name__
            remedy = self._NAME_HINTS.get(name)
            if remedy is None:
                raise AttributeError(
                    f"{kind!r} object has no attribute {name!r}", name=name, obj=self
                )
            # without name=, Python adds no suggestion of a similar name
            raise AttributeError(f"{kind} has no {name!r}: {remedy}")


MANIFEST_NAME_HINTS = {
    "entries": "dict() has the path, offset and length of every chunk",
    "get_entry": "lookup(chunk_id) returns the row of a chunk",
    "items": "dict().items() has the chunks by key",
    "iter_refs": "dict().items() has the chunks by key, and file, offset and length are arrays",
    "keys": "dict().keys() has the keys of the chunks",
    "rename_paths": "call ds.virtual.rename_paths(...) on the dataset, or with_files(...)",
    "shape_chunk_grid": "it is .shape",
    "values": "dict().values() has path, offset and length of the chunks",
}
"""Attribute names of VirtualiZarr's ``ChunkManifest``."""

ARRAY_NAME_HINTS = {
    "chunks": (
        "chunks may differ in length, so there is no one shape: .blocks has the lengths of whole "
        "chunks along every axis, and .fragments[0].axes how each axis is cut"
    ),
    "metadata": ".pipelines say how chunks decode; there are also .dtype, .shape and .fill_value",
    "rename_paths": "call ds.virtual.rename_paths(...) on the dataset",
    "to_virtual_variable": "wrap it yourself: xr.Variable(dims, array)",
    "zarray": ".pipelines say how chunks decode; to_manifest(None) has the Zarr metadata as a dict",
}
"""Attribute names of VirtualiZarr's ``ManifestArray``."""

DATASET_NAME_HINTS = {
    "nrefs": "it is .nchunks, which also counts missing chunks",
    "to_icechunk": "call to_manifest('repo.icechunk'), or to_manifest(session) of Icechunk",
    "to_kerchunk": (
        "call to_manifest('refs.json') or to_manifest('refs.parquet'); the dict is "
        "to_manifest(None, format='kerchunk-json')"
    ),
    "to_zarr": "call to_manifest('refs.zarr'); materialize('copy.zarr') copies the bytes, too",
}
"""Attribute names of VirtualiZarr's accessors."""


# ---------------------------------------------------------------------- manifests

Table = TypeVar("Table", bound=ReferenceTable)

LOADED_ATTRIBUTES = ("files", *COLUMNS, "inline")
"""Attributes that a view of a table loads when they are first accessed."""

MIN_SPARSE_GRID = 2**16
"""Size of a chunk grid above which few references are stored sparsely."""

BLOCK_CHUNKS = 2**18
"""Number of chunks of a block."""

MAX_UNFILTERED_GRID = 2**20
"""Maximum size of a chunk grid that is read without first finding the chunks that exist."""


@public
@dataclass(frozen=True, eq=False, repr=False, slots=True, weakref_slot=True)
class ChunkManifest(ForeignNameHints):
    """The references of all chunks of a grid: columns in memory, or a view of a reference table.

    The columns of a view are loaded when they are accessed: its table may be a formula, may be
    sparse, or may be in a reference set or in the index of a source file.

    Parameters
    ----------
    files : tuple of SourceFile
        The table of files that the column ``file`` indexes.
    file : int32 array, shape of the chunk grid
        Index of the chunk's file, or `MISSING` or `INLINE`.
    offset, length : int64 array, shape of the chunk grid
        The byte range of the chunk in its file.
    pipeline : uint16 array, shape of the chunk grid
        Index of the chunk's `CodecPipeline` in the pipelines of the array.
    checksum : uint64 array, shape of the chunk grid
        2**32 + CRC-32 of the chunk's bytes as stored in the file, or 0 for none.
    inline : tuple of bytes
        The bytes of inline chunks.

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
    shape: tuple[int, ...] = field(init=False)
    """Number of chunks along each axis."""
    size: int = field(init=False)
    """Number of chunks of the grid, including missing chunks."""

    _NAME_HINTS: ClassVar[Mapping[str, str]] = MANIFEST_NAME_HINTS

    def __post_init__(self) -> None:
        # not a loop, which would be slow for the many manifests of a scan
        shape = self.file.shape
        is_valid = shape == self.offset.shape == self.length.shape
        if not is_valid or not shape == self.pipeline.shape == self.checksum.shape:
            shapes = {name: getattr(self, name).shape for name in COLUMNS}
            raise ValueError(f"ChunkManifest: columns of one grid have one shape, got {shapes}")
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "size", prod(shape))

    @classmethod
    def from_table(
        cls,
        table: ReferenceTable,
        shape: tuple[int, ...],
        strides: tuple[int, ...] | None = None,
        first: int = 0,
        pipeline_map: tuple[int, ...] | None = None,
    ) -> ChunkManifest:
        """Return a manifest that is a view of a reference table.

        Parameters
        ----------
        table : ReferenceTable
        shape, strides, first, pipeline_map
            As in `RowView`; by default the rows in C order.
        """
        strides = compute_strides(shape) if strides is None else strides
        return cls._from_rows(RowView(table, shape, strides, first, pipeline_map))

    @classmethod
    def _from_rows(cls, rows: RowView) -> ChunkManifest:
        manifest = object.__new__(cls)
        object.__setattr__(manifest, "rows", rows)
        object.__setattr__(manifest, "shape", rows.shape)
        object.__setattr__(manifest, "size", prod(rows.shape))
        return manifest

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            # loads one column of a view; callers that need several columns use `loaded`
            if name not in LOADED_ATTRIBUTES:
                return ForeignNameHints.__getattr__(self, name)
            table = self.rows.table
            if name == "files" and table.files is not None:
                return table.files
            if name == "pipeline" and not table.has_pipelines:
                return make_constant_column("pipeline", self.rows.only_pipeline, self.rows.shape)
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
        """Build a manifest from columns or scalars, and check all references.

        Raises
        ------
        FormatError
            A reference is empty, negative, or reaches past the end of its file, or a checksum is
            neither 0 nor 2**32 + CRC-32.
        UnsupportedError
            The grid has more than 32 axes.
        ValueError
            A column contains values other than integers, or does not broadcast to the grid.
        """
        check_axes(len(shape), "a grid of chunks")
        columns = build_columns((file, offset, length, pipeline, checksum), shape)
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
        """Build a manifest of few chunks in one file, in C order, and check all references.

        Returns the same as `build` in a third of the time, for scans of many files.

        Raises
        ------
        FormatError, UnsupportedError
            As in `build`.
        """
        check_axes(len(shape), "a grid of chunks")
        last = 2**62 if file.size is None else file.size
        ends = map(operator.add, offsets, lengths)
        if not offsets or min(offsets) < 0 or min(lengths) <= 0 or max(ends) > last:
            columns = (np.array(c, np.int64).reshape(shape) for c in (offsets, lengths))
            return cls.build(shape, files=(file,), offset=next(columns), length=next(columns))
        return cls(
            files=(file,),
            file=make_constant_column("file", 0, shape),
            offset=_build_small_column("offset", offsets, shape),
            length=_build_small_column("length", lengths, shape),
            pipeline=make_constant_column("pipeline", 0, shape),
            checksum=make_constant_column("checksum", 0, shape),
        )

    @classmethod
    def missing(cls, shape: tuple[int, ...]) -> ChunkManifest:
        """Return a manifest whose chunks are all missing."""
        return cls.build(shape, file=MISSING)

    def __repr__(self) -> str:
        chunks = format_count(self.size, "chunk")
        if self.rows is not None:
            suffix = self.rows.table.repr_suffix
        else:
            suffix = f" of {format_count(len(self.files), 'file')}" if self.files else ""
        return f"<{type(self).__name__} {self.shape}: {chunks}{suffix}>"

    @property
    def sources(self) -> tuple[SourceFile, ...]:
        """The distinct files of the table of files.

        For a view of a table whose files are not known without reading references, they are only
        those that contain chunks.
        """
        if self.rows is None or self.rows.table.files is not None:
            return tuple(dict.fromkeys(self.files))
        used: dict[SourceFile, None] = {}
        for _, references in iterate_references(self):
            used |= dict.fromkeys(references.prune().files)
        return tuple(used)

    @property
    def listed_files(self) -> tuple[SourceFile, ...]:
        """The table of files; for a view, all files that its table lists, used or not."""
        return self.files if self.rows is None else self.rows.table.list_sources()

    def iterate_file_tables(self) -> Iterator[tuple[SourceFile, ...]]:
        """Yield the tables of files that make `listed_files`, which other manifests may share."""
        return iter((self.files,)) if self.rows is None else self.rows.table.iterate_file_tables()

    def find_listed_files(self, urls: Collection[str]) -> tuple[SourceFile, ...]:
        """Return the files of `listed_files` whose url is in ``urls``."""
        if self.rows is not None:
            return self.rows.table.find_sources(urls)
        return tuple(file for file in self.files if file.url in urls)

    @property
    def source_summary(self) -> SourceSummary | None:
        """Totals that the reference set stores of its files, or None if files have to be listed."""
        return None if self.rows is None else self.rows.table.summarize_sources()

    def count_sources(self) -> CountedSources | None:
        """Return the number of chunks in each file, or None if references must be read for that."""
        row_range = None if self.rows is None else self.rows.find_range()
        if self.rows is None or row_range is None:
            return None
        return self.rows.table.count_sources(*row_range)

    @property
    def nbytes(self) -> int:
        """Size in bytes of the references in memory, without the table of files."""
        if self.rows is not None:
            return self.rows.table.nbytes
        columns = sum(compact(getattr(self, name)).nbytes for name in COLUMNS)
        return columns + sum(len(chunk) for chunk in self.inline)

    def lookup(self, chunk_id: tuple[int, ...]) -> Reference:
        """Return the reference of one chunk."""
        if self.rows is not None:
            positions = [np.array([range(n)[i]]) for n, i in zip(self.shape, chunk_id, strict=True)]
            return self.rows.load_mesh(positions).lookup((0,) * len(positions))
        return Reference(*(int(getattr(self, name)[chunk_id]) for name in COLUMNS))

    def dict(self) -> dict[str, dict[str, Any]]:
        """Return a dict of chunk keys to path, offset and length, or to ``data`` of inline chunks.

        Missing chunks are omitted, as in `virtualizarr.manifests.ChunkManifest.dict`.
        """
        entries: dict[str, dict[str, Any]] = {}
        loaded = self.loaded()
        for chunk_id in np.argwhere(loaded.file != MISSING).tolist():
            file, offset, length, *_ = loaded.lookup(tuple(chunk_id))
            key = ".".join(map(str, chunk_id)) or "0"
            if file == INLINE:
                entries[key] = {"data": loaded.inline[offset]}
            else:
                entries[key] = {"path": loaded.files[file].url, "offset": offset, "length": length}
        return entries

    def at(self, ids: Ints) -> ChunkManifest:
        """Select chunks by flat ids in C order; the result has the shape of ``ids``."""
        if self.rows is not None:
            return self.rows.at(ids)
        return self._map(lambda column: take_flat(column, ids))

    def find_existing(self) -> Ints | None:
        """Return the ascending flat ids of chunks that may exist, or None if all may."""
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
        """Whether the references are in a reference set, from which they are loaded when needed."""
        return self.rows is not None and self.rows.table.is_in_set

    @property
    def must_stay_separate(self) -> bool:
        """Whether joining this with others would load references of a set or a large table."""
        if self.rows is None or self.missing_pipeline is not None:
            return False
        return self.is_in_set or (self.size > MIN_SPARSE_GRID and not self.is_in_source)

    @property
    def is_in_source(self) -> bool:
        """Whether the references are looked up in the index of a source file when needed."""
        return self.rows is not None and self.rows.table.is_in_source

    @property
    def table(self) -> ReferenceTable | None:
        """The table of a view, or None if the columns are in memory."""
        return None if self.rows is None else self.rows.table

    def get_table(self, table_type: type[Table]) -> Table | None:
        """Return the table of a view if it has the type ``table_type``, else None."""
        return self.table if isinstance(self.table, table_type) else None

    def is_row_range(self, table: ReferenceTable | None, first: int = 0) -> bool:
        """Return whether this is a view of consecutive rows of ``table``, starting at ``first``."""
        return (
            self.rows is not None
            and self.rows.table == table
            and self.rows.first == first
            and not any(self.rows.pipeline_map or ())
            and self.rows._replace(first=0).is_in_order
        )

    def get_if_loaded(self) -> tuple[Ints | None, ChunkManifest] | None:
        """Return flat chunk ids and their references if they are in memory, else None.

        If the ids are None, there is a reference for each chunk, or one that stands for all except
        for its offset.
        """
        return (None, self) if self.rows is None else self.rows.table.get_if_loaded(self.rows)

    @property
    def missing_pipeline(self) -> int | None:
        """The pipeline of missing chunks of a sparse manifest, else None."""
        return None if self.rows is None else self.rows.missing_pipeline

    def loaded(self) -> ChunkManifest:
        """Return the manifest with its columns in memory.

        Raises
        ------
        UnsupportedError
            The columns would be huge and almost empty.
        """
        if self.rows is None:
            return self
        if self.size <= MAX_CHUNKS:
            return self.rows.load_mesh([np.arange(n) for n in self.shape])
        parts = [part for _, part in iterate_blocks(self)]
        return ChunkManifest.concatenate(parts, 0).reshape(self.shape)

    def take(self, axis: int, ids: slice | Ints) -> ChunkManifest:
        """Take chunks along an axis; the id -1 is a missing chunk."""
        if isinstance(ids, slice):
            if self.rows is not None:
                return self._from_rows(self.rows.crop(axis, ids))
            index = (slice(None),) * axis + (ids,)
            return self._map(lambda column: column[index])
        if self.rows is not None:
            return self._take_rows(self.rows, axis, ids)
        taken = self._map(lambda column: take_along(column, ids, axis))
        is_missing = ids == -1
        if not is_missing.any():
            return taken
        mask = is_missing.reshape((-1,) + (1,) * (len(self.shape) - axis - 1))
        return replace(taken, file=np.where(mask, np.int32(MISSING), taken.file))

    def _take_rows(self, rows: RowView, axis: int, ids: Ints) -> ChunkManifest:
        # id -1 gets the pipeline of the last chunk, as for columns in memory
        last = np.full_like(ids, self.shape[axis] - 1)
        distinct = np.unique(np.where(ids < 0, last, ids) if rows.table.has_pipelines else ids)
        distinct = distinct[distinct >= 0]
        if not distinct.size:
            shape = (*self.shape[:axis], ids.size, *self.shape[axis + 1 :])
            return ChunkManifest.build(shape, file=MISSING, pipeline=rows.only_pipeline)
        mesh = [distinct if i == axis else np.arange(n) for i, n in enumerate(self.shape)]
        positions = np.where(ids < 0, -1, np.searchsorted(distinct, ids))
        return rows.load_mesh(mesh).take(axis, positions)

    @staticmethod
    def concatenate(manifests: Sequence[ChunkManifest], axis: int) -> ChunkManifest:
        """Concatenate manifests along an axis, merging their tables of files."""
        if len(manifests) == 1:
            return manifests[0]
        manifests = [m.loaded() for m in manifests]
        table = JoinedTable.join([m.files for m in manifests])
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
        """Permute the axes of the chunk grid."""
        if self.rows is not None:
            return self._from_rows(self.rows.transpose(axes))
        return self._map(lambda column: column.transpose(axes))

    def reshape(self, shape: tuple[int, ...]) -> ChunkManifest:
        """Insert or remove axes that have a single chunk."""
        if self.rows is not None:
            rows = self.rows.reshape(shape)
            return self.loaded().reshape(shape) if rows is None else self._from_rows(rows)
        return self._map(lambda column: column.reshape(shape))

    def broadcast_to(self, shape: tuple[int, ...]) -> ChunkManifest:
        """Repeat the chunks along axes that have a single chunk."""
        if self.rows is not None:
            return self._from_rows(self.rows.broadcast_to(shape))
        return self._map(lambda column: np.broadcast_to(column, shape))

    def with_files(self, change: Callable[[SourceFile], SourceFile]) -> ChunkManifest:
        """Return the manifest with ``change`` applied to each source file."""
        if self.rows is not None:
            changed = self._with_table(self.rows.table.with_files(change))
            return self.loaded().with_files(change) if changed is None else changed
        return replace(self, files=tuple(map(change, self.files)))

    def _with_table(self, table: ReferenceTable | None) -> ChunkManifest | None:
        """Return the same view of another table, or None without a table."""
        if self.rows is None or table is None:
            return None
        return self._from_rows(self.rows._replace(table=table))

    def relocate(self, locations: Sequence[tuple[SourceFile, int]]) -> ChunkManifest:
        """Return the manifest with byte ranges of the files that contain the present ones.

        Parameters
        ----------
        locations : sequence of SourceFile and int
            For each file of the table, the file that contains it, and its offset there.
        """
        if self.rows is not None:
            moved = self._with_table(self.rows.table.relocate(locations))
            return self.loaded().relocate(locations) if moved is None else moved
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

    def add_checksums(self, checksums: npt.NDArray[np.uint64]) -> ChunkManifest:
        """Return the manifest with checksums for chunks that have none.

        Parameters
        ----------
        checksums : array of uint64
            Broadcast to the chunk grid.
        """
        if self.rows is not None:
            return self.loaded().add_checksums(checksums)
        present = compact(self.checksum)
        combined = np.where(present == 0, checksums, present)
        return replace(self, checksum=fit_column(combined, self.shape))

    def prune(self) -> ChunkManifest:
        """Return the manifest without the files that contain none of its chunks."""
        if self.rows is not None:
            return self.rows.table.prune(self)
        used = find_distinct(compact(self.file), len(self.files))
        return self if used.size == len(self.files) else self._select_files(used)

    def with_files_in_order(self, axis: int) -> ChunkManifest:
        """Return the manifest with its table of files in the order of first use along an axis."""
        if self.rows is not None:
            return self.loaded().with_files_in_order(axis)
        used = find_distinct_in_order(np.moveaxis(self.file, axis, 0))
        return self._select_files(used[used >= 0])

    def _select_files(self, used: Ints) -> ChunkManifest:
        """Return the manifest with only the files at the indexes ``used``, in this order."""
        numbers = np.full(len(self.files) + 2, MISSING, np.int32)
        numbers[used] = np.arange(used.size)
        numbers[-2:] = INLINE, MISSING
        files = tuple(map(self.files.__getitem__, used.tolist()))
        return replace(self, files=files, file=map_compact(self.file, lambda c: numbers[c]))

    def with_pipelines(self, numbers: Sequence[int]) -> ChunkManifest:
        """Renumber the pipelines: pipeline ``i`` becomes ``numbers[i]``."""
        if list(numbers) == list(range(len(numbers))):
            return self
        if self.rows is not None:
            return self._from_rows(self.rows.with_pipelines(numbers))
        table = np.asarray(numbers, np.uint16)
        return replace(self, pipeline=map_compact(self.pipeline, lambda c: table[c]))

    def used_pipelines(self, count: int) -> Ints:
        """Return the indexes of pipelines that chunks may have, out of ``count`` pipelines."""
        if self.rows is None:
            return np.unique(compact(self.pipeline))
        if self.missing_pipeline is not None:
            ids, references = gather_references(self)
            used = references.used_pipelines(count) if ids.size else np.zeros(0, np.int64)
            return used if ids.size == self.size else np.union1d(used, [self.missing_pipeline])
        if not self.rows.table.has_pipelines:
            return np.array([self.rows.only_pipeline])
        pipeline_map = self.rows.pipeline_map
        return np.arange(count) if pipeline_map is None else np.unique(pipeline_map)

    def has_same_references(self, other: ChunkManifest) -> bool:
        """Return whether both manifests have the same references."""
        if self is other:
            return True
        if self.shape != other.shape:
            return False
        if self.rows is not None and self.rows == other.rows:
            return True
        if self.missing_pipeline is not None and other.missing_pipeline is not None:
            (ids, rows), (other_ids, other_rows) = map(gather_references, (self, other))
            is_same = self.missing_pipeline == other.missing_pipeline and np.array_equal(
                ids, other_ids
            )
            return is_same and rows.has_same_references(other_rows)
        if (
            self.missing_pipeline is not None or other.missing_pipeline is not None
        ) and self.size > MIN_SPARSE_GRID:
            return False
        left, right = self.loaded(), other.loaded()
        return (
            left.files == right.files
            and left.inline == right.inline
            and all(is_same_column(getattr(left, n), getattr(right, n)) for n in COLUMNS)
        )

    def _map(self, change: Callable[[Column], Column]) -> ChunkManifest:
        loaded = self if self.rows is None else self.loaded()
        columns: dict[str, Any] = {name: change(getattr(loaded, name)) for name in COLUMNS}
        return replace(loaded, **columns)

    # not __getstate__: before Python 3.11.4, dataclass(frozen=True, slots=True) overwrites it
    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle compressed columns, or, for a view, its table and strides."""
        if self.rows is not None:
            return ChunkManifest.from_table, tuple(self.rows)
        columns = {name: compact(getattr(self, name)) for name in COLUMNS}
        packed = {name: pack(column) for name, column in columns.items() if name != "offset"}
        packed["offset"] = pack(columns["offset"], columns["length"])
        files = pack_table(self.files)
        return _unpack_manifest, (files, self.inline, self.shape, packed)

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        """Return a deterministic token of the references for dask.

        The token of a view is that of its table and strides, so that no references are read.
        """
        from dask.base import normalize_token

        if self.rows is not None:
            return ("virtualds-counted", *map(normalize_token, self.rows))
        columns = (narrow_dtype(compact(getattr(self, name))) for name in COLUMNS)
        return (
            "virtualds-references",
            self.shape,
            *map(normalize_token, (hash_files(self.files), self.inline, *columns)),
        )


def _build_small_column(name: str, values: Sequence[int], shape: tuple[int, ...]) -> Column:
    """Return a column of a few values in C order."""
    if values.count(values[0]) == len(values):
        return make_constant_column(name, values[0], shape)
    return np.array(values, COLUMNS[name]).reshape(shape)


def _unpack_manifest(
    files: Any, inline: tuple[bytes, ...], shape: tuple[int, ...], packed: Mapping[str, Any]
) -> ChunkManifest:
    """Restore a manifest from the result of `ChunkManifest.__reduce__`."""
    columns: dict[str, Column] = {}
    for name, kind in COLUMNS.items():
        if isinstance(packed[name], int):
            columns[name] = make_constant_column(name, packed[name], shape)
        else:
            steps = unpack(packed["length"]) if name == "offset" else None
            column = unpack(packed[name], steps).astype(kind, copy=False)
            columns[name] = np.broadcast_to(column, shape)
    return ChunkManifest(files=unpack_table(files), inline=inline, **columns)


# ---------------------------------------------------------------------- iteration in blocks


def iterate_blocks(
    manifest: ChunkManifest, block_size: int = BLOCK_CHUNKS
) -> Iterator[tuple[Ints, ChunkManifest]]:
    """Yield blocks of flat chunk ids and their references.

    Raises `UnsupportedError` if blocks are almost empty, so that a small set that claims billions
    of chunks fails early.
    """
    references, description = 0, f"the first chunks of a grid {manifest.shape} that lies in a set"
    for begin in range(0, manifest.size, block_size):
        ids = np.arange(begin, min(begin + block_size, manifest.size))
        part = manifest.at(ids)
        references += int(np.count_nonzero(part.file != MISSING))
        check_table((int(ids[-1]) + 1,), max(references, 1), description)
        yield ids, part


def iterate_references(
    manifest: ChunkManifest, block_size: int = BLOCK_CHUNKS
) -> Iterator[tuple[Ints, ChunkManifest]]:
    """Yield blocks of the ascending flat ids of existing chunks, and their references.

    If the manifest knows which chunks exist, the time does not depend on the number of missing
    chunks. Otherwise `UnsupportedError` is raised for almost empty blocks.
    """
    looks_up_existing = manifest.size > MAX_UNFILTERED_GRID or not manifest.is_in_set
    existing = manifest.find_existing() if looks_up_existing else None
    blocks: Iterator[tuple[Ints, ChunkManifest]]
    if existing is not None:
        cuts = (
            existing[begin : begin + block_size] for begin in range(0, existing.size, block_size)
        )
        blocks = ((ids, manifest.at(ids)) for ids in cuts)
    elif manifest.is_loaded:
        flat = (
            np.arange(n, min(n + block_size, manifest.size))
            for n in range(0, manifest.size, block_size)
        )
        blocks = ((ids, manifest.at(ids)) for ids in flat)
    else:
        blocks = iterate_blocks(manifest, block_size=block_size)
    for ids, part in blocks:
        exists = part.file != MISSING
        if exists.all():
            yield ids, part
        elif exists.any():
            yield ids[exists], part.at(np.flatnonzero(exists))


def gather_references(manifest: ChunkManifest) -> tuple[Ints, ChunkManifest]:
    """Return the ascending flat ids of existing chunks, and a 1-D manifest of their references."""
    blocks = list(iterate_references(manifest))
    if not blocks:
        return np.zeros(0, np.int64), ChunkManifest.missing((0,))
    if len(blocks) == 1:
        return blocks[0]
    # each block uses a few of maybe a million files
    references = ChunkManifest.concatenate([part.prune() for _, part in blocks], 0)
    return np.concatenate([ids for ids, _ in blocks]), references
