"""Reads HDF5 files of the same structure together: the lengths and chunks of their variables.

`file_structure` defines what is structure, and which files match.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.concatenate import concatenate
from virtualds.arrays.group import TOGETHER, ManifestGroup
from virtualds.arrays.parser import MustBeEqual, select_for_file
from virtualds.bounds import CHUNKS_PER_REFERENCE
from virtualds.chunks.axes import ChunkAxis
from virtualds.chunks.columns import INLINE, MISSING, Ints, compute_strides
from virtualds.chunks.fragment import Fragment
from virtualds.chunks.manifest import ChunkManifest
from virtualds.options import get_options
from virtualds.parsers.hdf5.chunk_indexes import read_indexes
from virtualds.parsers.hdf5.chunk_indexes.layout import MASK_BYTES, ChunkRows, IndexLayout
from virtualds.parsers.hdf5.file_structure import (
    MIN_FILES,
    Dimension,
    FileStructure,
    ManyFiles,
    Match,
    ReadScope,
    SeparateAttributesError,
    Variable,
    VariableStructure,
    open_many,
    read_structure,
)
from virtualds.parsers.hdf5.structure.byte_rows import (
    Bools,
    Bytes,
    RowsError,
    is_defined,
    read_uints,
)
from virtualds.parsers.hdf5.structure.messages import FILTERED_SINGLE, LayoutClass
from virtualds.parsers.hdf5.structure.object_header import (
    ADDRESS,
    CHUNK,
    CHUNK_LENGTH,
    DATA,
    LENGTH,
    LIMIT,
    SIZE,
)
from virtualds.source_file import SourceFile, StorageOptions
from virtualds.urls import path_or_url

MAX_MISSING = 10**4
"""Maximum number of chunks of a file that may all be missing."""


@dataclass(frozen=True, eq=False)
class StoredColumns:
    """The chunks of one variable in many files.

    Parameters
    ----------
    chunks : int array, shape (files, axes)
        Elements of a chunk along each axis.
    shape : int array, shape (files, axes)
    owner : int array, shape (rows,)
        The index of the file of each chunk, in ascending order.
    position : int array, shape (axes, rows)
        Where each chunk begins in its file, in elements.
    address, length : int array, shape (rows,)
        The byte range of each chunk.
    inline : tuple of bytes
        The elements of each file, if they are in the metadata.
    """

    chunks: Ints
    shape: Ints
    owner: Ints
    position: Ints
    address: Ints
    length: Ints
    inline: tuple[bytes, ...] = ()

    def have_small_grids(self) -> npt.NDArray[np.bool_]:
        """Return a mask of the files whose grids are small enough for a table of all chunks."""
        # in floats, which do not overflow
        chunks = np.ceil(self.shape / self.chunks).prod(axis=1)
        references = np.bincount(self.owner, minlength=len(self.shape))
        small: npt.NDArray[np.bool_]
        small = chunks <= np.maximum(MAX_MISSING, CHUNKS_PER_REFERENCE * references)
        return small

    def take(self, indexes: Ints) -> StoredColumns:
        """Return the chunks of some files, in the given order."""
        if len(indexes) == len(self.shape) and (indexes == np.arange(len(indexes))).all():
            return self
        rank = np.full(len(self.shape), -1)
        rank[indexes] = np.arange(len(indexes))
        owner = rank[self.owner]
        rows = np.flatnonzero(owner >= 0)
        rows = rows[np.argsort(owner[rows], kind="stable")]
        return StoredColumns(
            self.chunks[indexes],
            self.shape[indexes],
            owner[rows],
            self.position[:, rows],
            self.address[rows],
            self.length[rows],
            tuple(self.inline[n] for n in indexes.tolist()) if self.inline else (),
        )

    def get_values(
        self, heads: npt.NDArray[np.uint8], dtype: np.dtype[Any]
    ) -> list[npt.NDArray[Any]] | None:
        """Return the values in each file if they are uncompressed in prefetched bytes.

        Parameters
        ----------
        heads : uint8 array, shape (files, bytes)
            The first bytes of each file.
        dtype : numpy dtype
            The dtype of the stored values.

        Returns
        -------
        list of numpy.ndarray or None
            None if any must be read: it is elsewhere, or in several chunks.
        """
        count, rank = self.shape.shape
        alone = len(self.owner) == count and bool((self.owner == np.arange(count)).all())
        is_contiguous = rank == 1 or bool((self.shape == self.chunks).all())
        if self.inline or not alone or not is_contiguous:
            return None
        nbytes = self.shape.prod(axis=1) * dtype.itemsize
        if (self.address + nbytes > heads.shape[1]).any() or (nbytes > self.length).any():
            return None
        locations = zip(
            heads, self.address.tolist(), nbytes.tolist(), self.shape.tolist(), strict=True
        )
        return [head[at : at + n].view(dtype).reshape(shape) for head, at, n, shape in locations]

    def stack(self, sources: Sequence[SourceFile], first: ManifestArray) -> ManifestArray:
        """Return the variable of all files along a new first axis."""
        stacked = replace(
            self,
            chunks=np.insert(self.chunks, 0, 1, axis=1),
            shape=np.insert(self.shape, 0, 1, axis=1),
            position=np.insert(self.position, 0, 0, axis=0),
        )
        return stacked.join(sources, 0, first.insert_axis(0))

    def join(self, sources: Sequence[SourceFile], axis: int, first: ManifestArray) -> ManifestArray:
        """Return the variable of all files concatenated along an axis.

        Parameters
        ----------
        sources : sequence of SourceFile
        axis : int
        first : ManifestArray
            The variable of the first file.
        """
        others = np.delete(self.chunks, axis, axis=1)
        cuts = np.flatnonzero((others[1:] != others[:-1]).any(axis=1)) + 1
        if not cuts.size:
            return self._join_equal_files(sources, axis, first)
        parts = []
        for start, stop in pairwise([0, *cuts.tolist(), len(self.shape)]):
            selected = self.take(np.arange(start, stop))
            parts.append(selected._join_equal_files(sources[start:stop], axis, first))
        return concatenate(parts, axis)

    def _join_equal_files(
        self, sources: Sequence[SourceFile], axis: int, first: ManifestArray
    ) -> ManifestArray:
        """Join files whose chunks have the same lengths along all other axes."""
        lengths, chunk = self.shape[:, axis], self.chunks[:, axis]
        counts = -(-lengths // chunk)
        starts = np.cumsum(counts) - counts
        axes = [self._build_axis(other) for other in range(self.shape.shape[1])]
        axes[axis] = _join_divisions(lengths, chunk, counts)
        grid = tuple(chunk_axis.nchunks for chunk_axis in axes)
        flat = np.zeros(len(self.owner), np.int64)
        for other, stride in enumerate(compute_strides(grid)):
            at = self.position[other] // self.chunks[self.owner, other]
            flat += (at + starts[self.owner] if other == axis else at) * stride
        manifest = self._build_manifest(sources, grid, flat)
        fragment = Fragment.whole(tuple(axes), manifest)
        return ManifestArray.from_fragment(fragment, first.pipelines[0], first.name)

    def _build_axis(self, axis: int) -> ChunkAxis:
        """Return the chunk axis of an axis that has the same length in all files."""
        return ChunkAxis.regular(int(self.shape[0, axis]), int(self.chunks[0, axis]))

    def _build_manifest(
        self, sources: Sequence[SourceFile], grid: tuple[int, ...], flat: Ints
    ) -> ChunkManifest:
        is_whole = len(flat) == prod(grid) and bool((flat == np.arange(len(flat))).all())

        def spread(values: Ints, default: int) -> Ints:
            if is_whole:
                return values.reshape(grid)
            column = np.full(prod(grid), default, np.int64)
            column[flat] = values
            return column.reshape(grid)

        if self.inline:
            codes = np.full_like(self.owner, INLINE)
            return ChunkManifest.build(
                grid,
                file=spread(codes, MISSING),
                offset=spread(self.owner, 0),
                length=spread(self.length, 0),
                inline=self.inline,
            )
        return ChunkManifest.build(
            grid,
            files=sources,
            file=spread(self.owner, MISSING),
            offset=spread(self.address, 0),
            length=spread(self.length, 0),
        )


def _join_divisions(lengths: Ints, chunk: Ints, counts: Ints) -> ChunkAxis:
    """Return the concatenated chunk axis of several files."""
    encoded = np.repeat(chunk, counts)
    visible = encoded.copy()
    nonempty = counts > 0
    last = np.cumsum(counts)[nonempty] - 1
    visible[last] = (lengths - chunk * (counts - 1))[nonempty]
    return ChunkAxis.from_slabs(visible, encoded)


UNLIMITED_AXIS = -1
"""The maximum length of an unlimited axis, in a column."""
MAX_ELEMENTS = 2**40
"""Maximum number of elements of a variable of a file that is read together with others."""


class FoundColumns(NamedTuple):
    """The columns that were read from files that may match a structure.

    Parameters
    ----------
    sound : bool array, shape (files,)
        Which files match in all respects.
    lengths : dict of Dimension to int array
    columns : dict of Variable to StoredColumns
        The chunks of each variable; files that do not match have no chunks.
    """

    sound: Bools
    lengths: dict[Dimension, Ints]
    columns: dict[Variable, StoredColumns]


def read_columns(structure: FileStructure, match: Match, files: ManyFiles) -> FoundColumns | None:
    """Read the positions of the chunks of all variables, or return None if no file matches.

    A file whose chunks cannot be read does not match.
    """
    if not match.sound.any():
        # blocks of files that do not match were not read
        return None
    reader = _ColumnReader(structure, match, files)
    while reader.sound.any():
        try:
            columns = reader.read()
        except RowsError as error:
            # each time there are fewer files left
            reader.sound[list(error.files)] = False
            continue
        for stored in columns.values():
            reader.sound &= stored.have_small_grids()
        return FoundColumns(reader.sound, reader.lengths, columns) if reader.sound.any() else None
    return None


class _ColumnReader:
    """Reads the slots of a structure in many files, and excludes files from `sound` if necessary.

    Attributes
    ----------
    sound : bool array, shape (files,)
    shapes : dict of Variable to int array, shape (files, axes)
    lengths : dict of Dimension to int array
    """

    def __init__(self, structure: FileStructure, match: Match, files: ManyFiles) -> None:
        self._known, self._match, self._files = structure, match, files
        self._slots = structure.blueprint.notes.slots
        self.sound = match.sound.copy()
        self.shapes = {name: self._read_shape(v) for name, v in structure.variables.items()}
        self.lengths = self._read_lengths()
        for shape in self.shapes.values():
            self.sound &= shape.astype(float).prod(axis=1) <= MAX_ELEMENTS

    def _get_column(self, *key: object) -> Ints:
        return read_uints(self._match.get_column(self._slots[key]))

    def _stack(self, columns: list[Ints]) -> Ints:
        return np.stack(columns, axis=1) if columns else np.zeros((len(self.sound), 0), np.int64)

    def _read_shape(self, variable: VariableStructure) -> Ints:
        axes = range(len(variable.facts.space.limits))
        columns = [self._get_column(variable.owner, LENGTH, axis) for axis in axes]
        return self._stack(columns + [np.full(len(self.sound), n) for n in variable.within])

    def _read_lengths(self) -> dict[Dimension, Ints]:
        """Return the length of each dimension; inconsistent files do not match."""
        lengths: dict[Dimension, Ints] = {}
        for (owner, axis), dimension in self._known.axes.items():
            column = self._get_column(owner, LENGTH, axis)
            self.sound &= (column >= 0) & (column == lengths.setdefault(dimension, column))
            if (owner, LIMIT, axis) in self._slots:
                self.sound &= column <= self._get_column(owner, LIMIT, axis)
        return lengths

    def read(self) -> dict[Variable, StoredColumns]:
        """Return the chunks of each variable.

        Raises
        ------
        RowsError
            Some files are damaged.
        """
        columns: dict[Variable, StoredColumns] = {}
        by_form: dict[IndexLayout, list[tuple[Variable, Ints]]] = {}
        chunks: dict[Variable, Ints] = {}
        for name, variable in self._known.variables.items():
            kind = variable.facts.layout.kind
            if kind == LayoutClass.COMPACT:
                columns[name] = self._read_compact(variable, self.shapes[name])
            elif kind != LayoutClass.CHUNKED:
                columns[name] = self._read_contiguous(variable, self.shapes[name])
            else:
                chunks[name] = self._read_chunk_lengths(variable)
        for name in chunks:
            for index_layout, files in self._split_by_form(name, chunks[name]):
                by_form.setdefault(index_layout, []).append((name, files))
        parts: dict[Variable, list[StoredColumns]] = {name: [] for name in chunks}
        for index_layout, members in by_form.items():
            for name, part in self._read_indexes(index_layout, members, chunks):
                parts[name].append(part)
        return columns | {
            name: _merge(parts_of_variable)
            for name, parts_of_variable in parts.items()
            if parts_of_variable
        }

    def _read_chunk_lengths(self, variable: VariableStructure) -> Ints:
        """Return the chunk lengths in all files, which are arbitrary in files that do not match."""
        axes = range(len(variable.facts.layout.dims) - 1)
        chunks = self._stack([self._get_column(variable.owner, CHUNK_LENGTH, n) for n in axes])
        self.sound &= (chunks > 0).all(axis=1)
        return np.maximum(chunks, 1)

    def _read_limits(self, variable: VariableStructure, shape: Ints) -> Ints:
        """Return the maximum length of each axis, or `UNLIMITED_AXIS`."""
        columns = []
        for axis, limit in enumerate(variable.facts.space.limits):
            if (variable.owner, LIMIT, axis) in self._slots:
                columns.append(self._get_column(variable.owner, LIMIT, axis))
            else:
                none = np.full(len(shape), UNLIMITED_AXIS)
                columns.append(none if limit is None else shape[:, axis])
        return self._stack(columns)

    def _split_by_form(self, name: Variable, chunks: Ints) -> Iterator[tuple[IndexLayout, Ints]]:
        """Group files by the layout of their indexes: chunk lengths, and limits of axes."""
        variable = self._known.variables[name]
        files, index_layout = np.flatnonzero(self.sound), IndexLayout.of(variable.facts)
        limits = self._read_limits(variable, self.shapes[name])
        rows = np.concatenate([chunks, limits], axis=1)[files]
        if (rows == rows[:1]).all():
            kinds, group = rows[:1], np.zeros(len(files), np.int64)
        else:
            kinds, group = np.unique(rows, axis=0, return_inverse=True)
        rank = chunks.shape[1]
        for number, kind in enumerate(kinds.tolist()):
            most = tuple(None if n == UNLIMITED_AXIS else n for n in kind[rank:])
            selected = files[group.ravel() == number]
            yield replace(index_layout, chunks=tuple(kind[:rank]), limits=most), selected

    def _count_bytes(self, variable: VariableStructure, shape: Ints) -> Ints:
        rank = len(variable.facts.space.limits)
        return np.where(self.sound, shape[:, :rank].prod(axis=1) * variable.itemsize, 0)

    def _read_compact(self, variable: VariableStructure, shape: Ints) -> StoredColumns:
        slot, nbytes = self._slots[variable.owner, DATA], self._count_bytes(variable, shape)
        self.sound &= nbytes <= slot.length
        lengths = np.minimum(nbytes, slot.length).tolist()
        parts = zip(self._match.get_column(slot), lengths, strict=True)
        inline = tuple(row[:n].tobytes() for row, n in parts)
        return _as_one_chunk(shape, nbytes > 0, np.arange(len(shape)), nbytes, inline)

    def _read_contiguous(self, variable: VariableStructure, shape: Ints) -> StoredColumns:
        address, nbytes = (
            self._get_column(variable.owner, ADDRESS),
            self._count_bytes(variable, shape),
        )
        is_stored = is_defined(address, self._files.offset_size)
        if (variable.owner, SIZE) in self._slots:
            self.sound &= ~is_stored | (self._get_column(variable.owner, SIZE) >= nbytes)
        self.sound &= ~is_stored | ((address >= 0) & (address <= self._files.ends - nbytes))
        return _as_one_chunk(shape, is_stored & (nbytes > 0), address, nbytes)

    def _read_indexes(
        self,
        index_layout: IndexLayout,
        members: list[tuple[Variable, Ints]],
        chunks: dict[Variable, Ints],
    ) -> Iterator[tuple[Variable, StoredColumns]]:
        """Read the indexes of one layout, for each variable and file with such an index."""
        rank = len(index_layout.chunks)
        indexed = [(name, self._known.variables[name], selected) for name, selected in members]
        root = [self._get_column(v.owner, ADDRESS)[selected] for _, v, selected in indexed]
        shape = [self.shapes[name][selected, :rank] for name, _, selected in indexed]
        single = [self._read_single(v, index_layout)[:, selected] for _, v, selected in indexed]
        file = np.concatenate([selected for _, selected in members])
        length, mask = np.concatenate(single, axis=1)
        roots, shapes = np.concatenate(root), np.concatenate(shape)
        index_chunks = read_indexes(self._files, index_layout, file, roots, shapes, length, mask)
        self.sound[file[index_chunks.owner[index_chunks.mask != 0]]] = False
        ends = np.cumsum([len(selected) for _, selected in members])
        stops = np.searchsorted(index_chunks.owner, ends).tolist()
        for (name, variable, selected), begin, stop in zip(
            indexed, [0, *stops], stops, strict=False
        ):
            if variable.facts.filters and not variable.facts.layout.is_filtering_edges:
                is_aligned = (
                    self.shapes[name][selected, :rank] % np.array(index_layout.chunks) == 0
                ).all(axis=1)
                self.sound[selected[~is_aligned]] = False
            yield (
                name,
                _select_chunks(
                    index_chunks,
                    slice(begin, stop),
                    file,
                    variable,
                    self.shapes[name],
                    chunks[name],
                ),
            )

    def _read_single(self, variable: VariableStructure, index_layout: IndexLayout) -> Ints:
        """Return bytes and filter mask of single chunks."""
        count = len(self.sound)
        if not variable.facts.layout.flags & FILTERED_SINGLE:
            return np.stack([np.full(count, index_layout.nbytes), np.zeros(count, np.int64)])
        raw = self._match.get_column(self._slots[variable.owner, CHUNK])
        return np.stack([read_uints(raw[:, :-MASK_BYTES]), read_uints(raw[:, -MASK_BYTES:])])


def _merge(parts: list[StoredColumns]) -> StoredColumns:
    """Merge parts, each of which has the chunks of some files."""
    if len(parts) == 1:
        return parts[0]
    order = np.argsort(np.concatenate([part.owner for part in parts]), kind="stable")
    columns = zip(*((p.owner, p.position, p.address, p.length) for p in parts), strict=True)
    owner, position, address, length = (
        np.concatenate(column_parts, axis=-1)[..., order] for column_parts in columns
    )
    return StoredColumns(parts[0].chunks, parts[0].shape, owner, position, address, length)


def _as_one_chunk(
    shape: Ints, is_stored: Bools, address: Ints, length: Ints, inline: tuple[bytes, ...] = ()
) -> StoredColumns:
    owner = np.flatnonzero(is_stored)
    position = np.zeros((shape.shape[1], len(owner)), np.int64)
    chunks = np.maximum(shape, 1)
    return StoredColumns(chunks, shape, owner, position, address[owner], length[owner], inline)


def _select_chunks(
    found: ChunkRows,
    rows: slice,
    file: Ints,
    variable: VariableStructure,
    shape: Ints,
    chunks: Ints,
) -> StoredColumns:
    """Return the chunks of one variable; axes within elements are never divided."""
    owner = file[found.owner[rows]]
    within = np.zeros((len(variable.within), len(owner)), np.int64)
    axes = np.broadcast_to(np.array(variable.within, np.int64), (len(shape), len(variable.within)))
    return StoredColumns(
        np.concatenate([chunks, axes], axis=1),
        shape,
        owner,
        np.concatenate([found.position[:, rows], within]),
        found.address[rows],
        found.length[rows],
    )


# ---------------------------------------------------------------------- reading together

MAX_TRIES = 4
"""The number of structures that may match too few files before each file is read alone."""
MAX_KNOWN = 16
"""Maximum number of structures that are kept: an archive has one for each of its eras."""


@dataclass(frozen=True, eq=False)
class HDF5FileBatch:
    """HDF5 files of the same structure (`virtualds.arrays.parser.SameStructureFiles`).

    Parameters
    ----------
    known : ManifestGroup
        The group of the file from which the structure is known.
    numbers : sequence of int
    sources : sequence of SourceFile
    lengths : mapping of str to int array
    columns : mapping of str to StoredColumns
    attributes : mapping of (str, str) to sequence
    heads : uint8 array, shape (files, bytes)
    below : mapping of str to HDF5FileBatch
        The groups below, by path, if they are requested.
    """

    known: ManifestGroup
    numbers: Sequence[int]
    sources: Sequence[SourceFile]
    lengths: Mapping[str, Ints]
    columns: Mapping[str, StoredColumns]
    attributes: Mapping[tuple[str, str], Sequence[Any]]
    heads: Bytes
    below: Mapping[str, HDF5FileBatch] = field(default_factory=dict)

    @cached_property
    def group(self) -> ManifestGroup:
        """The group as in the first of the files."""
        first = self.take(np.zeros(1, np.int64))
        variables = {
            name: replace(
                variable,
                data=first.stack(name)[0],
                attributes=select_for_file(name, self.attributes, 0, variable.attributes),
                encoding={
                    **variable.encoding,
                    **{k: v[0] for k, v in first._iterate_encodings(name)},
                },
            )
            for name, variable in self.known.variables.items()
        }
        attributes = select_for_file("", self.attributes, 0, self.known.attributes)
        return replace(self.known, variables=variables, attributes=attributes, way=TOGETHER)

    @cached_property
    def encodings(self) -> Mapping[tuple[str, str], Sequence[Any]]:
        """The encoding entries that differ between files, by variable and key."""
        return {
            (name, key): values
            for name in self.columns
            for key, values in self._iterate_encodings(name)
            if values.count(values[0]) < len(values)
        }

    def _iterate_encodings(self, name: str) -> Iterator[tuple[str, Sequence[Any]]]:
        """Yield the encoding entries of a variable that differ between files."""
        variable, columns = self.known.variables[name], self.columns[name]
        yield "source", self._paths
        shape, chunks = _list_rows(columns.shape), _list_rows(columns.chunks)
        yield "original_shape", shape
        if variable.encoding.get("chunksizes") is not None:
            yield "chunksizes", chunks
        if "preferred_chunks" in variable.encoding:
            preferred = {chunk: dict(zip(variable.dims, chunk, strict=True)) for chunk in chunks}
            yield "preferred_chunks", [preferred[chunk] for chunk in chunks]

    @cached_property
    def _paths(self) -> Sequence[str]:
        return _Paths(self.sources)

    def take(self, indexes: Ints) -> HDF5FileBatch:
        """Return some of the files, in the given order."""
        order = indexes.tolist()
        return HDF5FileBatch(
            self.known,
            [self.numbers[n] for n in order],
            [self.sources[n] for n in order],
            {dim: values[indexes] for dim, values in self.lengths.items()},
            {name: columns.take(indexes) for name, columns in self.columns.items()},
            {key: [values[n] for n in order] for key, values in self.attributes.items()},
            self.heads[indexes],
            {path: group.take(indexes) for path, group in self.below.items()},
        )

    def get_values(self, name: str) -> Sequence[npt.NDArray[Any]] | None:
        """Return the stored values of a variable in each file, or None if they must be read."""
        pipeline, columns = self._get_array(name).pipelines[0], self.columns[name]
        if pipeline.codecs or pipeline.dtype.hasobject or pipeline.dtype.kind not in "iufSb":
            return None
        return columns.get_values(self.heads, pipeline.dtype)

    def join(self, name: str, dim: str) -> ManifestArray:
        """Return a variable of all files concatenated along a dimension."""
        axis = self.known.variables[name].dims.index(dim)
        return self.columns[name].join(self.sources, axis, self._get_array(name))

    def stack(self, name: str) -> ManifestArray:
        """Return a variable of all files along a new first axis."""
        return self.columns[name].stack(self.sources, self._get_array(name))

    def _get_array(self, name: str) -> ManifestArray:
        data = self.known.variables[name].data
        if not isinstance(data, ManifestArray):
            raise TypeError(f"{name!r} is not a virtual array")
        return data


@dataclass(frozen=True, slots=True)
class _Paths(Sequence[str]):
    """The paths of files, made when they are needed, to save memory."""

    sources: Sequence[SourceFile]

    def __len__(self) -> int:
        return len(self.sources)

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> _Paths: ...
    def __getitem__(self, place: Any) -> Any:
        found = self.sources[place]
        return _Paths(found) if isinstance(place, slice) else path_or_url(found.url)


def _list_rows(column: Ints) -> list[tuple[int, ...]]:
    """Return the rows of a column as tuples; equal tuples are one object."""
    if (column == column[:1]).all():
        return [tuple(column[0].tolist())] * len(column)
    rows_by_grid: dict[tuple[int, ...], tuple[int, ...]] = {}
    return [rows_by_grid.setdefault(row, row) for row in map(tuple, column.tolist())]


@dataclass
class _Structures:
    """The most recently used structures, by the scope that was read."""

    kept: list[tuple[ReadScope, FileStructure]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def list(self, part: ReadScope) -> list[FileStructure]:
        """Return the structures, the latest first."""
        with self.lock:
            return [structure for other, structure in self.kept if other == part]

    def use(self, part: ReadScope, structure: FileStructure) -> None:
        """Make a structure the latest one."""
        with self.lock:
            others = [pair for pair in self.kept if pair[1] is not structure]
            self.kept = [(part, structure), *others][:MAX_KNOWN]


STRUCTURES = _Structures()


@contextmanager
def read_together(
    urls: Sequence[str],
    options: StorageOptions | None,
    group: str | None,
    skip: Iterable[str],
    must_be_equal: MustBeEqual,
    below: bool = False,
) -> Iterator[Sequence[HDF5FileBatch]]:
    """Read files of the same structure together; implements `ReadTogether`."""
    if get_options().hdf5 != "auto" or not isinstance(group, str | None) or len(urls) < MIN_FILES:
        yield ()
        return
    part = ReadScope((group or "").strip("/"), frozenset(skip), below)

    def is_alike(first: ManyFiles) -> bool:
        every = np.arange(len(first.readers))
        return bool(_BatchReader(first, every, part, must_be_equal).read())

    with open_many(urls, options, is_alike) as (files, numbers):
        yield _BatchReader(files, numbers, part, must_be_equal).read()


class _BatchReader:
    """Reads a batch of open files."""

    def __init__(
        self,
        files: ManyFiles,
        numbers: Ints,
        part: ReadScope,
        must_be_equal: MustBeEqual,
    ) -> None:
        self.files, self.numbers = files, numbers
        self.part, self.must_be_equal = part, must_be_equal
        self.found: list[HDF5FileBatch] = []

    def read(self) -> list[HDF5FileBatch]:
        """Return the files of each structure."""
        remaining = np.arange(len(self.files.readers))
        for structure in STRUCTURES.list(self.part):
            remaining = self._add_matching(structure, remaining)
        tries = 0
        while len(remaining) >= MIN_FILES and tries < MAX_TRIES:
            reader = self.files.readers[remaining[0]]
            with reader.hold():
                new_structure = read_structure(reader.source, self.part)
            if new_structure is None:
                remaining, tries = remaining[1:], tries + 1
                continue
            unmatched = self._add_matching(new_structure, remaining)
            tries += len(remaining) - len(unmatched) < MIN_FILES
            # the first file matches its own structure, unless it has changed meanwhile
            remaining = unmatched if len(unmatched) < len(remaining) else remaining[1:]
        return self.found

    def _add_matching(self, structure: FileStructure, files_to_match: Ints) -> Ints:
        """Add the files with a structure; return the files without it."""
        if len(files_to_match) < MIN_FILES:
            return files_to_match
        files = self.files.select(files_to_match)
        files.istore_k = structure.istore_k
        files.offset_size = structure.blueprint.offset_size
        files.length_size = structure.blueprint.length_size
        match = structure.blueprint.match(files)
        read_result = read_columns(structure, match, files)
        if read_result is None:
            return files_to_match
        STRUCTURES.use(self.part, structure)
        fits = np.flatnonzero(read_result.sound & structure.find_equal(match, self.must_be_equal))
        attributes = None
        while attributes is None and len(fits) >= MIN_FILES:
            try:
                attributes = structure.read_attributes(match, fits)
            except SeparateAttributesError as error:
                # each time there are fewer files left
                fits = fits[error.same]
        if attributes is None:
            return files_to_match
        heads = files.heads if len(fits) == len(files.heads) else files.heads[fits]
        columns = {name: stored.take(fits) for name, stored in read_result.columns.items()}
        sources = [files.readers[n].source for n in fits.tolist()]
        first, *others = (
            HDF5FileBatch(
                group.group,
                self.numbers[files_to_match[fits]].tolist(),
                sources,
                {name: read_result.lengths[dim][fits] for name, dim in group.dims.items()},
                {name: columns[path, name] for name in group.group.variables},
                attributes[path],
                heads,
            )
            for path, group in structure.groups.items()
        )
        below = dict(zip(list(structure.groups)[1:], others, strict=True))
        self.found.append(replace(first, below=below))
        return np.delete(files_to_match, fits)


# ---------------------------------------------------------------------- files read together
