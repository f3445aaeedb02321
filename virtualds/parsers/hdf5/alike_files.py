"""Reads HDF5 files of the same structure together: the lengths and chunks of their variables.

`file_structure` defines the structure of a file, and which files match it.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.concatenate import concatenate
from virtualds.arrays.group import TOGETHER, ManifestGroup
from virtualds.arrays.parser import MustBeEqual, select_for_file
from virtualds.bounds import CHUNKS_PER_REFERENCE
from virtualds.chunks.axes import ChunkAxis, make_regular_axes
from virtualds.chunks.columns import INLINE, Ints, compute_strides
from virtualds.chunks.fragment import Fragment
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
from virtualds.parsers.hdf5.storage import scatter_chunks
from virtualds.parsers.hdf5.structure import (
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
from virtualds.source_file import SourceFile, StorageOptions, path_or_url

MAX_SPARSE_CHUNKS = 10**4
"""Maximum number of chunks of a variable in a file of which any number may be missing."""


@dataclass(frozen=True, eq=False)
class StoredColumns:
    """The chunks of one variable in many files.

    Parameters
    ----------
    chunks : int array, shape (files, axes)
        The chunk shape.
    shape : int array, shape (files, axes)
    owner : int array, shape (rows,)
        The index of the file of each chunk, in ascending order.
    position : int array, shape (axes, rows)
        The first element of each chunk, per axis.
    address, length : int array, shape (rows,)
        The byte range of each chunk.
    inline : tuple of bytes
        The bytes of the values in each file, if they are in the metadata.
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
        # floats do not overflow
        chunks = np.ceil(self.shape / self.chunks).prod(axis=1)
        references = np.bincount(self.owner, minlength=len(self.shape))
        small: npt.NDArray[np.bool_]
        small = chunks <= np.maximum(MAX_SPARSE_CHUNKS, CHUNKS_PER_REFERENCE * references)
        return small

    def take(self, indexes: Ints) -> StoredColumns:
        """Return the chunks of files, in the order of ``indexes``."""
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
        """Return the values in each file, which are uncompressed, if prefetched bytes contain them.

        Parameters
        ----------
        heads : uint8 array, shape (files, bytes)
            The first bytes of each file.
        dtype : numpy dtype
            The dtype of the stored values.

        Returns
        -------
        list of numpy.ndarray or None
            None if any values are elsewhere, or in several chunks.
        """
        count, rank = self.shape.shape
        is_single_chunk = len(self.owner) == count and bool((self.owner == np.arange(count)).all())
        is_contiguous = rank == 1 or bool((self.shape == self.chunks).all())
        if self.inline or not is_single_chunk or not is_contiguous:
            return None
        nbytes = self.shape.prod(axis=1) * dtype.itemsize
        if (self.address + nbytes > heads.shape[1]).any() or (nbytes > self.length).any():
            return None
        locations = zip(
            heads, self.address.tolist(), nbytes.tolist(), self.shape.tolist(), strict=True
        )
        return [
            head[start : start + n].view(dtype).reshape(shape)
            for head, start, n, shape in locations
        ]

    def stack(self, sources: Sequence[SourceFile], first: ManifestArray) -> ManifestArray:
        """Return the variable of all files along a new first axis."""
        stacked = replace(
            self,
            chunks=np.insert(self.chunks, 0, 1, axis=1),
            shape=np.insert(self.shape, 0, 1, axis=1),
            position=np.insert(self.position, 0, 0, axis=0),
        )
        return stacked.join(sources, 0, first.insert_axis(0))

    def join(
        self, sources: Sequence[SourceFile], axis: int | None, first: ManifestArray
    ) -> ManifestArray:
        """Return the variable of all files concatenated along an axis.

        Parameters
        ----------
        sources : sequence of SourceFile
        axis : int or None
            None for one file.
        first : ManifestArray
            The variable of the first file.
        """
        if axis is None:
            return self._join_equal_files(sources, axis, first)
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
        self, sources: Sequence[SourceFile], axis: int | None, first: ManifestArray
    ) -> ManifestArray:
        """Join files whose chunks have the same lengths along all other axes."""
        axes = list(make_regular_axes(self.shape[0].tolist(), self.chunks[0].tolist()))
        starts = np.zeros(len(self.shape), np.int64)
        if axis is not None:
            lengths, chunk = self.shape[:, axis], self.chunks[:, axis]
            axes[axis] = _join_chunk_axes(lengths.tobytes(), chunk.tobytes())
            counts = -(-lengths // chunk)
            starts = np.cumsum(counts) - counts
        grid = tuple(chunk_axis.nchunks for chunk_axis in axes)
        flat = np.zeros(len(self.owner), np.int64)
        for other, stride in enumerate(compute_strides(grid)):
            index = self.position[other] // self.chunks[self.owner, other]
            flat += (index + starts[self.owner] if other == axis else index) * stride
        if self.inline:
            manifest = scatter_chunks(
                grid, flat, file=INLINE, inline=self.inline, offset=self.owner, length=self.length
            )
        else:
            manifest = scatter_chunks(
                grid, flat, files=sources, file=self.owner, offset=self.address, length=self.length
            )
        fragment = Fragment.whole(tuple(axes), manifest)
        return ManifestArray.from_fragment(fragment, first.pipelines[0], first.name)


@lru_cache(8)
def _join_chunk_axes(lengths_bytes: bytes, chunk_bytes: bytes) -> ChunkAxis:
    """Return the concatenated chunk axis of several files, one object for variables cut alike.

    The arguments are the lengths of the axis and of its chunks in each file, as int64.
    """
    lengths, chunk = np.frombuffer(lengths_bytes, np.int64), np.frombuffer(chunk_bytes, np.int64)
    counts = -(-lengths // chunk)
    encoded = np.repeat(chunk, counts)
    visible = encoded.copy()
    nonempty = counts > 0
    last = np.cumsum(counts)[nonempty] - 1
    visible[last] = (lengths - chunk * (counts - 1))[nonempty]
    return ChunkAxis.from_slabs(visible, encoded)


UNLIMITED_AXIS = -1
"""Value for the maximum length of an unlimited axis."""
MAX_ELEMENTS = 2**40
"""Maximum number of elements of a variable in a file that is read together with others."""


class MatchedColumns(NamedTuple):
    """The chunks of files that may match a structure.

    Parameters
    ----------
    matches : bool array, shape (files,)
        Whether each file matches completely.
    lengths : dict of Dimension to int array
    columns : dict of Variable to StoredColumns
        The chunks of each variable, which are arbitrary for files that do not match.
    """

    matches: Bools
    lengths: dict[Dimension, Ints]
    columns: dict[Variable, StoredColumns]


def read_columns(structure: FileStructure, match: Match, files: ManyFiles) -> MatchedColumns | None:
    """Return the locations of the chunks of all variables, or None if no file matches.

    A file whose chunks cannot be read does not match.
    """
    if not match.matches.any():
        # the blocks of files that do not match have not been read
        return None
    reader = _ColumnReader(structure, match, files)
    while reader.matches.any():
        try:
            columns = reader.read()
        except RowsError as error:
            # terminates, since the number of files decreases each time
            reader.matches[list(error.files)] = False
            continue
        for stored in columns.values():
            reader.matches &= stored.have_small_grids()
        return (
            MatchedColumns(reader.matches, reader.lengths, columns)
            if reader.matches.any()
            else None
        )
    return None


class _ColumnReader:
    """Reads the slots of a structure in many files; clears ``matches`` of files that do not match.

    Attributes
    ----------
    matches : bool array, shape (files,)
    shapes : dict of Variable to int array, shape (files, axes)
    lengths : dict of Dimension to int array
    """

    def __init__(self, structure: FileStructure, match: Match, files: ManyFiles) -> None:
        self._structure, self._match, self._files = structure, match, files
        self._slots = structure.blueprint.notes.slots
        self.matches = match.matches.copy()
        self.shapes: dict[Variable, Ints] = {}
        for name, variable in structure.variables.items():
            lengths = self._read_axes(variable, LENGTH)
            within = np.tile(np.array(variable.within, np.int64), (len(lengths), 1))
            self.shapes[name] = np.concatenate([lengths, within], axis=1)
        self.lengths = self._read_lengths()
        for shape in self.shapes.values():
            self.matches &= shape.astype(float).prod(axis=1) <= MAX_ELEMENTS

    def _read(self, keys: Iterable[Hashable]) -> Ints:
        """Return the numbers in slots of equal length: a row for each file."""
        return self._match.read_numbers([self._slots[key] for key in keys])

    def _read_axes(self, variable: VariableStructure, name: str) -> Ints:
        """Return a number of each axis of a variable, without those within elements."""
        axes = range(len(variable.header.space.limits))
        return self._read((variable.owner, name, axis) for axis in axes)

    def _read_lengths(self) -> dict[Dimension, Ints]:
        """Return the length of each dimension; inconsistent files do not match."""
        axes, lengths = self._structure.axes, dict[Dimension, Ints]()
        columns = self._read((owner, LENGTH, axis) for owner, axis in axes).T
        for dimension, column in zip(axes.values(), columns, strict=True):
            self.matches &= (column >= 0) & (column == lengths.setdefault(dimension, column))
        limited = [(owner, axis) for owner, axis in axes if (owner, LIMIT, axis) in self._slots]
        limits = self._read((owner, LIMIT, axis) for owner, axis in limited).T
        for key, limit in zip(limited, limits, strict=True):
            self.matches &= lengths[axes[key]] <= limit
        return lengths

    def read(self) -> dict[Variable, StoredColumns]:
        """Return the chunks of each variable.

        Raises `RowsError` if some files are damaged.
        """
        columns: dict[Variable, StoredColumns] = {}
        by_layout: dict[IndexLayout, list[tuple[Variable, Ints]]] = {}
        chunks: dict[Variable, Ints] = {}
        for name, variable in self._structure.variables.items():
            kind = variable.header.layout.kind
            if kind == LayoutClass.COMPACT:
                columns[name] = self._read_compact(variable, self.shapes[name])
            elif kind != LayoutClass.CHUNKED:
                columns[name] = self._read_contiguous(variable, self.shapes[name])
            else:
                chunks[name] = self._read_chunk_lengths(variable)
        for name in chunks:
            for index_layout, files in self._split_by_layout(name, chunks[name]):
                by_layout.setdefault(index_layout, []).append((name, files))
        parts: dict[Variable, list[StoredColumns]] = {name: [] for name in chunks}
        for index_layout, members in by_layout.items():
            for name, part in self._read_indexes(index_layout, members, chunks):
                parts[name].append(part)
        return columns | {
            name: _merge_files(parts_of_variable)
            for name, parts_of_variable in parts.items()
            if parts_of_variable
        }

    def _read_chunk_lengths(self, variable: VariableStructure) -> Ints:
        """Return the chunk lengths in all files, which are arbitrary in files that do not match."""
        chunks = self._read_axes(variable, CHUNK_LENGTH)
        self.matches &= (chunks > 0).all(axis=1)
        return np.maximum(chunks, 1)

    def _split_by_layout(self, name: Variable, chunks: Ints) -> Iterator[tuple[IndexLayout, Ints]]:
        """Yield the layouts of indexes (chunk shape, limits of axes), each with its files."""
        variable = self._structure.variables[name]
        files, index_layout = np.flatnonzero(self.matches), IndexLayout.from_header(variable.header)
        columns = [chunks]
        for axis, limit in enumerate(variable.header.space.limits):
            if (variable.owner, LIMIT, axis) in self._slots:
                columns.append(self._read([(variable.owner, LIMIT, axis)]))
            elif limit is None:
                columns.append(np.full((len(self.matches), 1), UNLIMITED_AXIS))
            else:
                columns.append(self.shapes[name][:, axis : axis + 1])
        rows = np.concatenate(columns, axis=1)[files]
        if (rows == rows[:1]).all():
            layouts, group = rows[:1], np.zeros(len(files), np.int64)
        else:
            layouts, group = np.unique(rows, axis=0, return_inverse=True)
        rank = chunks.shape[1]
        for number, row in enumerate(layouts.tolist()):
            limits = tuple(None if n == UNLIMITED_AXIS else n for n in row[rank:])
            selected = files[group.ravel() == number]
            yield replace(index_layout, chunks=tuple(row[:rank]), limits=limits), selected

    def _compute_nbytes(self, variable: VariableStructure, shape: Ints) -> Ints:
        rank = len(variable.header.space.limits)
        return np.where(self.matches, shape[:, :rank].prod(axis=1) * variable.itemsize, 0)

    def _read_compact(self, variable: VariableStructure, shape: Ints) -> StoredColumns:
        slot, nbytes = self._slots[variable.owner, DATA], self._compute_nbytes(variable, shape)
        self.matches &= nbytes <= slot.length
        lengths = np.minimum(nbytes, slot.length).tolist()
        parts = zip(self._match.get_column(slot), lengths, strict=True)
        inline = tuple(row[:n].tobytes() for row, n in parts)
        return _make_single_chunks(shape, nbytes > 0, np.arange(len(shape)), nbytes, inline)

    def _read_contiguous(self, variable: VariableStructure, shape: Ints) -> StoredColumns:
        address = self._read([(variable.owner, ADDRESS)])[:, 0]
        nbytes = self._compute_nbytes(variable, shape)
        is_stored = is_defined(address, self._files.offset_size)
        if (variable.owner, SIZE) in self._slots:
            self.matches &= ~is_stored | (self._read([(variable.owner, SIZE)])[:, 0] >= nbytes)
        self.matches &= ~is_stored | ((address >= 0) & (address <= self._files.ends - nbytes))
        return _make_single_chunks(shape, is_stored & (nbytes > 0), address, nbytes)

    def _read_indexes(
        self,
        index_layout: IndexLayout,
        members: list[tuple[Variable, Ints]],
        chunks: dict[Variable, Ints],
    ) -> Iterator[tuple[Variable, StoredColumns]]:
        """Read the indexes of one layout, for each variable and file with such an index."""
        rank = len(index_layout.chunks)
        indexed = [(name, self._structure.variables[name], selected) for name, selected in members]
        root = [self._read([(v.owner, ADDRESS)])[selected, 0] for _, v, selected in indexed]
        shape = [self.shapes[name][selected, :rank] for name, _, selected in indexed]
        single = [self._read_single(v, index_layout)[:, selected] for _, v, selected in indexed]
        file = np.concatenate([selected for _, selected in members])
        length, mask = np.concatenate(single, axis=1)
        roots, shapes = np.concatenate(root), np.concatenate(shape)
        index_chunks = read_indexes(self._files, index_layout, file, roots, shapes, length, mask)
        self.matches[file[index_chunks.owner[index_chunks.mask != 0]]] = False
        ends = np.cumsum([len(selected) for _, selected in members])
        stops = np.searchsorted(index_chunks.owner, ends).tolist()
        for (name, variable, selected), begin, stop in zip(
            indexed, [0, *stops], stops, strict=False
        ):
            if variable.header.filters and not variable.header.layout.is_filtering_edges:
                is_aligned = (
                    self.shapes[name][selected, :rank] % np.array(index_layout.chunks) == 0
                ).all(axis=1)
                self.matches[selected[~is_aligned]] = False
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
        """Return the lengths and filter masks of single chunks."""
        count = len(self.matches)
        if not variable.header.layout.flags & FILTERED_SINGLE:
            return np.stack([np.full(count, index_layout.nbytes), np.zeros(count, np.int64)])
        raw = self._match.get_column(self._slots[variable.owner, CHUNK])
        return np.stack([read_uints(raw[:, :-MASK_BYTES]), read_uints(raw[:, -MASK_BYTES:])])


def _merge_files(parts: list[StoredColumns]) -> StoredColumns:
    """Return the chunks of all files from parts with the chunks of some files each."""
    if len(parts) == 1:
        return parts[0]
    order = np.argsort(np.concatenate([part.owner for part in parts]), kind="stable")
    columns = zip(*((p.owner, p.position, p.address, p.length) for p in parts), strict=True)
    owner, position, address, length = (
        np.concatenate(column_parts, axis=-1)[..., order] for column_parts in columns
    )
    return StoredColumns(parts[0].chunks, parts[0].shape, owner, position, address, length)


def _make_single_chunks(
    shape: Ints, is_stored: Bools, address: Ints, length: Ints, inline: tuple[bytes, ...] = ()
) -> StoredColumns:
    owner = np.flatnonzero(is_stored)
    position = np.zeros((shape.shape[1], len(owner)), np.int64)
    chunks = np.maximum(shape, 1)
    return StoredColumns(chunks, shape, owner, position, address[owner], length[owner], inline)


def _select_chunks(
    index_chunks: ChunkRows,
    rows: slice,
    file: Ints,
    variable: VariableStructure,
    shape: Ints,
    chunks: Ints,
) -> StoredColumns:
    """Return the chunks of one variable; axes within elements are not chunked."""
    owner = file[index_chunks.owner[rows]]
    within = np.zeros((len(variable.within), len(owner)), np.int64)
    axes = np.tile(np.array(variable.within, np.int64), (len(shape), 1))
    return StoredColumns(
        np.concatenate([chunks, axes], axis=1),
        shape,
        owner,
        np.concatenate([index_chunks.position[:, rows], within]),
        index_chunks.address[rows],
        index_chunks.length[rows],
    )


# ---------------------------------------------------------------------- reading together

MAX_FAILED_STRUCTURES = 4
"""Maximum number of structures that match too few files, before files are read separately."""
MAX_CACHED_STRUCTURES = 16
"""Maximum number of cached structures; an archive may have several."""


@dataclass(frozen=True, eq=False)
class HDF5FileBatch:
    """HDF5 files of the same structure (`virtualds.arrays.parser.SameStructureFiles`).

    Parameters
    ----------
    first_group : ManifestGroup
        The group of the file from which the structure was read.
    numbers : sequence of int
    sources : sequence of SourceFile
    lengths : mapping of str to int array
    columns : mapping of str to StoredColumns
    attributes : mapping of (str, str) to sequence
    heads : uint8 array, shape (files, bytes)
    below : mapping of str to HDF5FileBatch
        The subgroups by path, if requested.
    """

    first_group: ManifestGroup
    numbers: Sequence[int]
    sources: Sequence[SourceFile]
    lengths: Mapping[str, Ints]
    columns: Mapping[str, StoredColumns]
    attributes: Mapping[tuple[str, str], Sequence[Any]]
    heads: Bytes
    below: Mapping[str, HDF5FileBatch] = field(default_factory=dict)

    @cached_property
    def group(self) -> ManifestGroup:
        """The group in the first file."""
        first = self.take(np.zeros(1, np.int64))
        variables = {
            name: replace(
                variable,
                data=first.columns[name].join(first.sources, None, first._get_array(name)),
                attributes=select_for_file(name, self.attributes, 0, variable.attributes),
                encoding={
                    **variable.encoding,
                    **{k: v[0] for k, v in first._iterate_encodings(name)},
                },
            )
            for name, variable in self.first_group.variables.items()
        }
        attributes = select_for_file("", self.attributes, 0, self.first_group.attributes)
        return replace(self.first_group, variables=variables, attributes=attributes, way=TOGETHER)

    @cached_property
    def encodings(self) -> Mapping[tuple[str, str], Sequence[Any]]:
        """The encoding entries that differ between files, by variable and key."""
        return {
            (name, key): values
            for name in self.columns
            for key, values in self._iterate_encodings(name)
            # the first and last are compared before all are counted, since paths differ there
            if values[0] != values[-1] or values.count(values[0]) < len(values)
        }

    def _iterate_encodings(self, name: str) -> Iterator[tuple[str, Sequence[Any]]]:
        """Yield the encoding entries of a variable that may differ between files."""
        variable, columns = self.first_group.variables[name], self.columns[name]
        yield "source", _Paths(self.sources)
        yield "original_shape", self._list_rows(columns.shape)
        if variable.encoding.get("chunksizes") is not None:
            yield "chunksizes", self._list_rows(columns.chunks)
        if "preferred_chunks" in variable.encoding:
            yield "preferred_chunks", self._list_rows(columns.chunks, variable.dims)

    def _list_rows(self, column: Ints, names: Sequence[str] = ()) -> list[Any]:
        """Return the rows of a column as tuples, or as dicts if their elements have names.

        Equal rows are one object, and equal columns one list, since most variables of very many
        files have the same shapes.
        """
        key = column.shape[1], tuple(names), column.tobytes()
        if key not in self._rows_by_column:
            rows = [*map(tuple, column.tolist())]
            distinct = {
                row: dict(zip(names, row, strict=True)) if names else row
                for row in dict.fromkeys(rows)
            }
            self._rows_by_column[key] = [distinct[row] for row in rows]
        return self._rows_by_column[key]

    @cached_property
    def _rows_by_column(self) -> dict[tuple[int, tuple[str, ...], bytes], list[Any]]:
        """The results of `_list_rows`."""
        return {}

    def take(self, indexes: Ints) -> HDF5FileBatch:
        """Return files in the order of ``indexes``."""
        order = indexes.tolist()
        return HDF5FileBatch(
            self.first_group,
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
        axis = self.first_group.variables[name].dims.index(dim)
        return self.columns[name].join(self.sources, axis, self._get_array(name))

    def stack(self, name: str) -> ManifestArray:
        """Return a variable of all files along a new first axis."""
        return self.columns[name].stack(self.sources, self._get_array(name))

    def _get_array(self, name: str) -> ManifestArray:
        data = self.first_group.variables[name].data
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


@dataclass
class _StructureCache:
    """A cache of the most recently used structures, by the scope of reading."""

    structures: list[tuple[ReadScope, FileStructure]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def list(self, scope: ReadScope) -> list[FileStructure]:
        """Return the structures, the most recently used first."""
        with self.lock:
            return [structure for other, structure in self.structures if other == scope]

    def use(self, scope: ReadScope, structure: FileStructure) -> None:
        """Mark a structure as the most recently used."""
        with self.lock:
            others = [pair for pair in self.structures if pair[1] is not structure]
            self.structures = [(scope, structure), *others][:MAX_CACHED_STRUCTURES]


STRUCTURES = _StructureCache()


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
    scope = ReadScope((group or "").strip("/"), frozenset(skip), below)

    def may_match(first: ManyFiles) -> bool:
        numbers = np.arange(len(first.readers))
        return bool(_BatchReader(first, numbers, scope, must_be_equal).read())

    with open_many(urls, options, may_match) as (files, numbers):
        yield _BatchReader(files, numbers, scope, must_be_equal).read()


class _BatchReader:
    """Reads a batch of open files."""

    def __init__(
        self,
        files: ManyFiles,
        numbers: Ints,
        scope: ReadScope,
        must_be_equal: MustBeEqual,
    ) -> None:
        self.files, self.numbers = files, numbers
        self.scope, self.must_be_equal = scope, must_be_equal
        self.batches: list[HDF5FileBatch] = []

    def read(self) -> list[HDF5FileBatch]:
        """Return the files of each structure."""
        remaining = np.arange(len(self.files.readers))
        for structure in STRUCTURES.list(self.scope):
            remaining = self._add_matching(structure, remaining)
        tries = 0
        while len(remaining) >= MIN_FILES and tries < MAX_FAILED_STRUCTURES:
            reader = self.files.readers[remaining[0]]
            with reader.activate_scan():
                new_structure = read_structure(reader.source, self.scope)
            if new_structure is None:
                remaining, tries = remaining[1:], tries + 1
                continue
            unmatched = self._add_matching(new_structure, remaining)
            tries += len(remaining) - len(unmatched) < MIN_FILES
            # the first file matches its structure, unless it has changed in the meantime
            remaining = unmatched if len(unmatched) < len(remaining) else remaining[1:]
        return self.batches

    def _add_matching(self, structure: FileStructure, files_to_match: Ints) -> Ints:
        """Add the files that match a structure; return the other files."""
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
        STRUCTURES.use(self.scope, structure)
        matching = np.flatnonzero(
            read_result.matches & structure.find_equal(match, self.must_be_equal)
        )
        attributes = None
        while attributes is None and len(matching) >= MIN_FILES:
            try:
                attributes = structure.read_attributes(match, matching)
            except SeparateAttributesError as error:
                # terminates, since the number of files decreases each time
                matching = matching[error.same]
        if attributes is None:
            return files_to_match
        heads = files.heads if len(matching) == len(files.heads) else files.heads[matching]
        columns = {name: stored.take(matching) for name, stored in read_result.columns.items()}
        sources = [files.readers[n].source for n in matching.tolist()]
        first, *others = (
            HDF5FileBatch(
                group.group,
                self.numbers[files_to_match[matching]].tolist(),
                sources,
                {name: read_result.lengths[dim][matching] for name, dim in group.dims.items()},
                {name: columns[path, name] for name in group.group.variables},
                attributes[path],
                heads,
            )
            for path, group in structure.groups.items()
        )
        below = dict(zip(list(structure.groups)[1:], others, strict=True))
        self.batches.append(replace(first, below=below))
        return np.delete(files_to_match, matching)
