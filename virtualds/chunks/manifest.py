"""Manifests: columns over a chunk grid that say where the bytes of each chunk lie.

A manifest has one row per chunk. Its columns are arrays with the shape of the chunk grid; along an
axis where a column does not change it is broadcast (stride 0) and takes no memory. Two primitives
make everything else: `ChunkManifest.take` and `ChunkManifest.concatenate`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import numpy as np
import numpy.typing as npt

from virtualds.bounds import demand_axes
from virtualds.chunks.columns import (
    COLUMNS,
    INLINE,
    MISSING,
    Column,
    JoinedTable,
    Reference,
    as_grid_columns,
    check_references,
    column_of_rows,
    compact,
    concatenate_columns,
    constant_column,
    digest,
    find_distinct,
    find_turn,
    is_same_column,
    narrow,
    pack,
    pack_table,
    renumber_files,
    settle_column,
    take_compact,
    take_rows,
    unpack,
    unpack_table,
)
from virtualds.chunks.projection import Ints
from virtualds.public import public
from virtualds.quantities import format_count
from virtualds.source_file import SourceFile

# ---------------------------------------------------------------------- names of other libraries
# Names that users of other libraries type: errors that say what to call here.
#
# They are no attributes, so that ``hasattr`` says no: xarray takes an array with ``chunks`` for one
# of dask.


def is_private(name: str) -> bool:
    """Say whether a name is private; names of Python are not.

    >>> is_private("_map"), is_private("load"), is_private("__doc__")
    (True, False, False)
    """
    return name.startswith("_") and not name.startswith("__")


class FamiliarNames:
    """A class with names that other libraries have, and remedies for those who type them."""

    __slots__ = ()

    _FAMILIAR: ClassVar[Mapping[str, str]] = {}
    """What to call instead, by name."""

    def __dir__(self) -> list[str]:
        """List what users may call, without what is private."""
        return [name for name in super().__dir__() if not is_private(name)]

    if not TYPE_CHECKING:
        # a type checker would take every name for an attribute

        def __getattr__(self, name: str) -> NoReturn:
            kind = type(self).__name__
            remedy = self._FAMILIAR.get(name)
            if remedy is None:
                raise AttributeError(
                    f"{kind!r} object has no attribute {name!r}", name=name, obj=self
                )
            # Python adds no suggestion where there is no name
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


@public
@dataclass(frozen=True, eq=False, repr=False, slots=True, weakref_slot=True)
class ChunkManifest(FamiliarNames):
    """Columns over a chunk grid that say where each chunk's bytes lie.

    Parameters
    ----------
    files : tuple of SourceFile
        The table that the column ``file`` counts.
    file : int32 array, shape of the chunk grid
        Number of the chunk's file, or `MISSING` or `INLINE`.
    offset, length : int64 array, shape of the chunk grid
        Where the chunk lies in its file, in bytes.
    pipeline : uint16 array, shape of the chunk grid
        Number of the `CodecPipeline` in the table of the array.
    checksum : uint64 array, shape of the chunk grid
        2**32 + CRC-32 of the chunk's bytes as they lie in the file, or 0 for none.
    inline : tuple of bytes
        Chunks held here.

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

    _FAMILIAR: ClassVar[Mapping[str, str]] = OF_MANIFESTS

    def __post_init__(self) -> None:
        # each variable of each file makes one, so the columns are not compared in a loop
        one = self.file.shape == self.offset.shape == self.length.shape
        if not one or not self.file.shape == self.pipeline.shape == self.checksum.shape:
            shapes = {name: getattr(self, name).shape for name in COLUMNS}
            raise ValueError(f"ChunkManifest: columns of one grid have one shape, got {shapes}")

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
        """Build a manifest from columns or scalars, checking every reference.

        Raises
        ------
        FormatError
            A reference is empty, negative, or reaches past the end of its file, or a checksum is
            neither 0 nor 2**32 + CRC-32.
        UnsupportedError
            The grid has more than 32 axes.
        ValueError
            A column holds other than integers, or does not fit the grid.
        """
        demand_axes(len(shape), "a grid of chunks")
        columns = as_grid_columns((file, offset, length, pipeline, checksum), shape)
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
        """Build a manifest of a few chunks of one file, in C order, checking every reference.

        It equals the result of `build`, in a third of the time, which counts in scans of many
        files.

        Raises
        ------
        FormatError, UnsupportedError
            As `build`.
        """
        demand_axes(len(shape), "a grid of chunks")
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
        return self.file.shape

    @property
    def size(self) -> int:
        """Number of chunks of the grid, missing ones too."""
        return self.file.size

    def __repr__(self) -> str:
        counted = format_count(self.size, "chunk")
        return f"<{type(self).__name__} {self.shape}: {counted}{self._where}>"

    @property
    def _where(self) -> str:
        """Where the chunks lie, for people; it costs nothing, whatever the size."""
        count = len(self.files)
        return f" of {format_count(count, 'file')}" if count else ""

    @property
    def sources(self) -> tuple[SourceFile, ...]:
        """The files of the table, each once."""
        return tuple(dict.fromkeys(self.files))

    @property
    def listed(self) -> tuple[SourceFile, ...]:
        """The files of the table, and, of a lazy manifest, all that its set lists for it."""
        return self.files

    @property
    def nbytes(self) -> int:
        """Bytes that the references take in memory, the table of files not counted."""
        columns = sum(compact(getattr(self, name)).nbytes for name in COLUMNS)
        return columns + sum(len(chunk) for chunk in self.inline)

    def lookup(self, chunk_id: tuple[int, ...]) -> Reference:
        """Return the row of one chunk."""
        return Reference(*(int(getattr(self, name)[chunk_id]) for name in COLUMNS))

    def dict(self) -> dict[str, dict[str, Any]]:
        """Return path, offset and length of every chunk, or its bytes as ``data``, by its key.

        Missing chunks have no key, as in `virtualizarr.manifests.ChunkManifest.dict`.
        """
        found: dict[str, dict[str, Any]] = {}
        for place in np.argwhere(self.file != MISSING).tolist():
            file, offset, length, *_ = self.lookup(tuple(place))
            key = ".".join(map(str, place)) or "0"
            if file == INLINE:
                found[key] = {"data": self.inline[offset]}
            else:
                found[key] = {"path": self.files[file].url, "offset": offset, "length": length}
        return found

    def at(self, ids: Ints) -> ChunkManifest:
        """Return the chunks of flat numbers in C order, in the shape of the numbers."""
        where = np.unravel_index(ids, self.shape) if self.shape else (np.zeros_like(ids),)
        columns = self if self.shape else self.reshape((1,))
        return columns._map(lambda column: column[where])

    def find_existing(self) -> Ints | None:
        """Return the numbers of the chunks that may exist, rising; None if all chunks may."""
        file = compact(self.file)
        return np.zeros(0, np.int64) if (file == MISSING).all() else None

    @property
    def is_loaded(self) -> bool:
        """Whether the columns are in memory."""
        return True

    @property
    def is_in_set(self) -> bool:
        """Whether the references lie in a reference set, and are read from there when needed."""
        return False

    def loaded(self) -> ChunkManifest:
        """Return the manifest with its columns in memory."""
        return self

    def take(self, axis: int, ids: slice | Ints) -> ChunkManifest:
        """Return the chunks ``ids`` along ``axis``; an id of -1 is a missing chunk."""
        if isinstance(ids, slice):
            where = (slice(None),) * axis + (ids,)
            return self._map(lambda column: column[where])
        taken = self._map(lambda column: take_rows(column, ids, axis))
        absent = ids == -1
        if not absent.any():
            return taken
        mask = absent.reshape((-1,) + (1,) * (len(self.shape) - axis - 1))
        return replace(taken, file=np.where(mask, np.int32(MISSING), taken.file))

    @staticmethod
    def concatenate(manifests: Sequence[ChunkManifest], axis: int) -> ChunkManifest:
        """Lay manifests end to end along ``axis``, merging their tables of files."""
        if len(manifests) == 1:
            return manifests[0]
        manifests = [m.loaded() for m in manifests]
        table = JoinedTable.of([m.files for m in manifests])
        columns = {name: [getattr(m, name) for m in manifests] for name in COLUMNS}
        columns["file"] = list(map(renumber_files, columns["file"], table.numbers))
        inline: dict[bytes, int] = {}
        for k, m in enumerate(manifests):
            if m.inline:
                numbers = np.array([inline.setdefault(chunk, len(inline)) for chunk in m.inline])
                file, offset = compact(m.file), compact(m.offset)
                held = file == INLINE
                moved = np.where(held, numbers[np.where(held, offset, 0)], offset)
                columns["offset"][k] = np.broadcast_to(moved, m.shape)
        joined = {name: concatenate_columns(parts, axis) for name, parts in columns.items()}
        return ChunkManifest(files=table.items, inline=tuple(inline), **joined)

    def transpose(self, axes: Sequence[int]) -> ChunkManifest:
        """Permute the axes of the grid."""
        return self._map(lambda column: column.transpose(axes))

    def reshape(self, shape: tuple[int, ...]) -> ChunkManifest:
        """Insert or remove axes of one chunk."""
        return self._map(lambda column: column.reshape(shape))

    def broadcast_to(self, shape: tuple[int, ...]) -> ChunkManifest:
        """Repeat the chunks along axes of one chunk."""
        return self._map(lambda column: np.broadcast_to(column, shape))

    def with_files(self, change: Callable[[SourceFile], SourceFile]) -> ChunkManifest:
        """Return the manifest with every source file replaced by what ``change`` makes of it."""
        return replace(self, files=tuple(map(change, self.files)))

    def relocated(self, places: Sequence[tuple[SourceFile, int]]) -> ChunkManifest:
        """Return the manifest with every file being a piece of another one.

        Parameters
        ----------
        places : sequence of SourceFile and int
            For every file of the table, the one that it lies in, and at which byte it begins there.
        """
        files: dict[SourceFile, int] = {}
        numbers = [files.setdefault(file, len(files)) for file, _ in places]
        # the codes of missing and inline chunks index from the end of the table
        table = np.array([*numbers, INLINE, MISSING], np.int32)
        shift = np.array([*(begin for _, begin in places), 0, 0], np.int64)
        offset = compact(self.offset) + shift[compact(self.file)]
        return replace(
            self,
            files=tuple(files),
            file=settle_column(table[compact(self.file)], self.shape),
            offset=settle_column(offset, self.shape),
        )

    def checked(self, checksums: npt.NDArray[np.uint64]) -> ChunkManifest:
        """Return the manifest with checksums for chunks that have none; 0 is none.

        Parameters
        ----------
        checksums : array of uint64
            Over the grid of chunks, or of a shape that broadcasts to it.
        """
        known = compact(self.checksum)
        found = np.where(known == 0, checksums, known)
        return replace(self, checksum=settle_column(found, self.shape))

    def pruned(self) -> ChunkManifest:
        """Return the manifest with only those files in its table that a chunk lies in."""
        file = compact(self.file)
        used = find_distinct(file[file >= 0], len(self.files))
        if used.size == len(self.files):
            return self
        table = np.full(len(self.files) + 2, MISSING, np.int32)
        table[used] = np.arange(used.size)
        table[-2:] = INLINE, MISSING
        kept = tuple(map(self.files.__getitem__, used.tolist()))
        return replace(self, files=kept, file=take_compact(self.file, lambda column: table[column]))

    def with_files_in_turn(self, axis: int) -> ChunkManifest:
        """Return the manifest with its files in the order in which they come along an axis."""
        used = find_turn(np.moveaxis(self.file, axis, 0))
        used = used[used >= 0]
        numbers = np.full(len(self.files) + 2, MISSING, np.int32)
        numbers[used] = np.arange(used.size)
        numbers[-2:] = INLINE, MISSING
        files = tuple(map(self.files.__getitem__, used.tolist()))
        return replace(self, files=files, file=take_compact(self.file, lambda c: numbers[c]))

    def with_pipelines(self, numbers: Sequence[int]) -> ChunkManifest:
        """Renumber the pipelines: number ``i`` becomes ``numbers[i]``."""
        if list(numbers) == list(range(len(numbers))):
            return self
        table = np.asarray(numbers, np.uint16)
        return replace(self, pipeline=take_compact(self.pipeline, lambda c: table[c]))

    def used_pipelines(self, count: int) -> Ints:
        """Return the numbers of the pipelines that chunks have, or may have, out of ``count``."""
        return np.unique(compact(self.pipeline))

    def same(self, other: ChunkManifest) -> bool:
        """Say whether both refer to the same bytes, chunk by chunk, through the same tables."""
        if self is other or not other.is_loaded:
            return self is other or other.same(self)
        return (
            self.shape == other.shape
            and self.files == other.files
            and self.inline == other.inline
            and all(is_same_column(getattr(self, n), getattr(other, n)) for n in COLUMNS)
        )

    def _map(self, change: Callable[[Column], Column]) -> ChunkManifest:
        columns: dict[str, Any] = {name: change(getattr(self, name)) for name in COLUMNS}
        return replace(self, **columns)

    # not __getstate__: before Python 3.11.4, dataclass(frozen=True, slots=True) overwrites it
    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the elements behind broadcast axes once, in few bytes."""
        columns = {name: compact(getattr(self, name)) for name in COLUMNS}
        packed = {name: pack(column) for name, column in columns.items() if name != "offset"}
        packed["offset"] = pack(columns["offset"], columns["length"])
        files = pack_table(self.files)
        return _unpack_manifest, (files, self.inline, self.shape, packed)

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        """Name the references for dask: equal ones alike, at the cost of the memory they take."""
        from dask.base import normalize_token

        columns = (narrow(compact(getattr(self, name))) for name in COLUMNS)
        return (
            "virtualds-references",
            self.shape,
            *map(normalize_token, (digest(self.files), self.inline, *columns)),
        )


def _unpack_manifest(
    files: Any, inline: tuple[bytes, ...], shape: tuple[int, ...], packed: Mapping[str, Any]
) -> ChunkManifest:
    """Return the manifest of a pickle."""
    columns: dict[str, Column] = {}
    for name, kind in COLUMNS.items():
        if isinstance(packed[name], int):
            columns[name] = constant_column(name, packed[name], shape)
        else:
            steps = unpack(packed["length"]) if name == "offset" else None
            found = unpack(packed[name], steps).astype(kind, copy=False)
            columns[name] = np.broadcast_to(found, shape)
    return ChunkManifest(files=unpack_table(files), inline=inline, **columns)
