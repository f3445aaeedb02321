"""Virtual arrays from the storage of HDF5 datasets: filters, layout, and chunk indexes.

h5py reads values that cannot be expressed by byte ranges; unsupported storage raises an error.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache, lru_cache
from importlib import import_module
from math import prod
from operator import add, mod
from struct import Struct
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from virtualds.arrays.array import ManifestArray
from virtualds.bounds import check_table
from virtualds.chunks.axes import ChunkAxis, make_regular_axes
from virtualds.chunks.columns import (
    COLUMNS,
    INLINE,
    MISSING,
    Ints,
    ReferenceTable,
    find_rows,
)
from virtualds.chunks.fragment import Fragment
from virtualds.chunks.manifest import ChunkManifest
from virtualds.codecs import codec_from_hdf5, make_no_filter_error
from virtualds.codecs.codec import NO_FILTERS
from virtualds.codecs.pipeline import CodecPipeline
from virtualds.errors import FormatError, ReadError, UnsupportedError
from virtualds.parsers.hdf5.chunk_indexes import read_indexes
from virtualds.parsers.hdf5.chunk_indexes.layout import (
    MAX_INT64,
    ChunkRows,
    Indexes,
    IndexLayout,
    check_chunks,
    check_order,
)
from virtualds.parsers.hdf5.chunk_indexes.trees import CHUNK_TREE, make_node_layout
from virtualds.parsers.hdf5.chunk_indexes.trees import NODE_HEADER_BYTES as HEAD
from virtualds.parsers.hdf5.data_types import StoredType
from virtualds.parsers.hdf5.objects import (
    HDF5Dataset,
    ListCandidates,
    find_referenced_file,
    list_beside,
    list_in_working_directory,
)
from virtualds.parsers.hdf5.structure import (
    Bytes,
    RowsError,
    UnknownRowsError,
    gather_rows,
)
from virtualds.parsers.hdf5.structure.file_bytes import (
    INTEGER_CODES,
    make_metadata_error,
    make_unknown_error,
)
from virtualds.parsers.hdf5.structure.messages import (
    FILTERED_SINGLE,
    Filter,
    IndexKind,
    LayoutClass,
)
from virtualds.source_file import SourceFile
from virtualds.stores import find_store, is_in_archive
from virtualds.stores.store import Range

# ---------------------------------------------------------------------- the index of chunks
# The chunk index of one dataset is read by the functions for many datasets.
#
# Only a version 1 B-tree with a single leaf, the most common index, is read without arrays of rows.


NODE_HEADER = Struct("<4sBBH")
"""Signature, type, level and number of entries of a node (III.A.1)."""


def read_chunks(dataset: HDF5Dataset) -> ChunkRows:
    """Return the chunks of a dataset that have been written.

    Raises `FormatError` if the index is damaged, or lists impossible chunks, and `UnsupportedError`
    if neither virtualds nor HDF5 supports this form of index.
    """
    file = dataset.file
    try:
        return _read_index(dataset)
    except UnknownRowsError as error:
        file.raise_unsupported(error.reason)
    except RowsError as error:
        file.raise_damaged(error.reason)


def _read_index(dataset: HDF5Dataset) -> ChunkRows:
    file, layout, index_layout = (
        dataset.file,
        dataset.header.layout,
        IndexLayout.from_header(dataset.header),
    )
    shape = dataset.header.space.shape or ()
    file_number, shapes = np.zeros(1, np.int64), np.array([[min(n, MAX_INT64) for n in shape]])
    if layout.index_kind is None:
        if dataset.limits.count(None) == 1 and dataset.limits[0] is not None:
            # it may be an extensible array, whose chunks HDF5 lists at wrong positions
            file.raise_unsupported("an unknown index of chunks")
        return _read_chunks_with_hdf5(
            dataset, Indexes(file, index_layout, file_number, file_number, shapes)
        )
    if layout.address is None:
        return ChunkRows.empty(len(shape))
    single = layout.parameters if layout.flags & FILTERED_SINGLE else (prod(layout.dims), 0)
    numbers = (layout.address, *single[:2])
    root, length, mask = (np.array([n], np.uint64).view(np.int64) for n in numbers)
    return read_indexes(file, index_layout, file_number, root, shapes, length, mask)


def scatter_chunks(
    grid: tuple[int, ...],
    flat: Ints,
    *,
    files: Sequence[SourceFile] = (),
    inline: Sequence[bytes] = (),
    **columns: Ints | int,
) -> ChunkManifest:
    """Return the manifest of a grid with chunks at flat indexes; all other chunks are missing.

    The parameters are those of `ChunkManifest.build`, with values only of the chunks that exist.
    """
    is_complete = len(flat) == prod(grid) and bool((flat == np.arange(len(flat))).all())

    def scatter(name: str, values: Ints | int) -> npt.NDArray[Any]:
        if is_complete:
            return np.broadcast_to(values, flat.shape).reshape(grid)
        column = np.full(prod(grid), MISSING if name == "file" else 0, COLUMNS[name])
        column[flat] = values
        return column.reshape(grid)

    scattered = {name: scatter(name, values) for name, values in {"file": 0, **columns}.items()}
    return ChunkManifest.build(grid, files=files, inline=inline, **scattered)


class ListedChunks(NamedTuple):
    """All chunks of a dataset in C order, without skipped filters."""

    address: Sequence[int]
    length: Sequence[int]


def read_single_leaf(dataset: HDF5Dataset) -> ListedChunks | None:
    """Return the chunks of a B-tree with one leaf for all chunks, or None for other indexes."""
    file, layout, shape = dataset.file, dataset.header.layout, dataset.header.space.shape or ()
    if layout.index_kind != IndexKind.B_TREE_1 or layout.address is None:
        return None
    dims = layout.dims
    node = make_node_layout(len(dims), file.istore_k, file.offset_size)
    root = file.peek(layout.address, node.size)
    if len(root) < node.size:
        return None
    signature, node_type, level, used = NODE_HEADER.unpack_from(root)
    if (signature, node_type, level) != (
        b"TREE",
        CHUNK_TREE,
        0,
    ) or not 0 < used <= node.max_entries:
        return None
    stop = node.entries_at + used * node.entry.itemsize
    entry, key = _make_entry_structs(len(dims), file.offset_size)
    columns = zip(*entry.iter_unpack(root[node.entries_at : stop]), strict=True)
    length, mask, *position, element, address = columns
    closing = key.unpack_from(root, stop)[2:]
    last = tuple([column[-1] for column in position])
    if (
        position != _list_chunk_starts(shape, dims[:-1], used)
        or any(mask)
        or any(element)
        or any(map(mod, closing, dims))
        or (*last, 0) >= closing
        or root[HEAD : node.entries_at].strip(b"\xff")
        or max(map(add, address, length)) > file.end - file.base
        or not (dataset.header.filters or set(length) == {prod(dims)})
    ):
        return None
    return ListedChunks(address, length)


@cache
def _make_entry_structs(rank: int, offset_size: int) -> tuple[Struct, Struct]:
    """Return structs of an entry of a leaf (size, filter mask, position, address) and of a key."""
    return Struct(f"<II{rank}Q{INTEGER_CODES[offset_size]}"), Struct(f"<II{rank}Q")


@lru_cache(256)
def _list_chunk_starts(
    shape: tuple[int, ...], chunks: tuple[int, ...], count: int
) -> list[tuple[int, ...]] | None:
    """Return the positions of all chunks along each axis, or None if there are not ``count``."""
    axes = list(map(range, itertools.repeat(0), shape, chunks))
    if prod(map(len, axes)) != count:
        return None
    return list(zip(*itertools.product(*axes), strict=True))


def _read_chunks_with_hdf5(dataset: HDF5Dataset, indexes: Indexes) -> ChunkRows:
    """Return the chunks as listed by HDF5."""
    chunk_infos: list[Any] = []
    dataset.id.chunk_iter(chunk_infos.append)
    position = np.array([chunk.chunk_offset for chunk in chunk_infos], np.int64)
    mask, address, length = (
        np.array(
            [(chunk.filter_mask, chunk.byte_offset, chunk.size) for chunk in chunk_infos], np.int64
        )
        .reshape(-1, 3)
        .T
    )
    owner = np.zeros(len(chunk_infos), np.int64)
    # addresses of HDF5 start at the beginning of the file
    address = address - dataset.file.base
    chunks = ChunkRows(owner, position.reshape(-1, dataset.rank).T, mask, address, length)
    return check_order(indexes, check_chunks(indexes, chunks))


# ---------------------------------------------------------------------- deferred chunks
# Chunks are looked up in their index when they are read.
#
# Reading a part of a large file needs few of its chunks. A tree is searched by key, an array is
# read at the position of the element. The whole index is read after so many lookups that this takes
# less time.


MIN_DEFERRED_CHUNKS = 1024
"""Number of chunks above which an index is not read when its file is opened."""
MAX_DEFERRED_FILTERS = 3
"""Maximum number of filters, since there is a pipeline for each possible filter mask."""
MAX_GRID = 2**62
"""Maximum number of chunks of a grid."""
LOOKUP_COST = {True: 2_000, False: 50_000}
"""Number of chunks of an index that are read in the time of one lookup, by whether a file is local.

It is larger for remote files, since the levels of an index are read one after the other.
"""


@dataclass(frozen=True)
class StoredRows:
    """`ByteRows` of one file, read by its store, which checks that the file has not changed."""

    source: SourceFile
    base: int
    offset_size: int
    length_size: int
    istore_k: int
    end: int

    @property
    def ends(self) -> Ints:
        """The number of bytes that can be addressed, as an array for one file."""
        return np.array([self.end])

    def read_rows(self, file: Ints, address: Ints, length: int) -> Bytes:
        """Return rows of equal length, as in `ByteRows`."""
        return gather_rows(address, length, self.end, self._read)

    def _read(self, ranges: list[Range]) -> Iterator[bytes]:
        moved = [(self.base + begin, length) for begin, length in ranges]
        try:
            yield from find_store(self.source.url).get_ranges(self.source, moved)
        except OSError as error:
            raise ReadError(
                f"{self.source.url}: the index of chunks cannot be read ({error}); restore the "
                f"file, or open it again"
            ) from error


class _IndexCache:
    """The manifest of all chunks after it has been read, and the cost of lookups until then."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.cost = 0
        self.manifest: ChunkManifest | None = None


@dataclass(frozen=True)
class IndexedChunks(ReferenceTable):
    """The chunks of a dataset, which are looked up in its index.

    The pipeline number of a chunk is its filter mask.

    Parameters
    ----------
    rows : StoredRows
    index_layout : IndexLayout
    root : int
        The address of the index.
    shape : tuple of int
        The shape of the dataset.
    grid : tuple of int
        The number of chunks per axis, including axes within elements, which are not chunked.
    filters : int
        The number of filters.
    name : str
        The name of the dataset, for errors.
    """

    rows: StoredRows
    index_layout: IndexLayout
    root: int
    shape: tuple[int, ...]
    grid: tuple[int, ...]
    filters: int
    name: str
    _cache: _IndexCache = field(default_factory=_IndexCache, init=False, repr=False, compare=False)

    is_in_set = False
    is_in_source = True

    @property
    def has_pipelines(self) -> bool:
        """Whether chunks may differ in their filter masks."""
        return self.filters > 0

    def load(self, ids: Ints) -> ChunkManifest:
        """Return the chunks at flat indexes, in the shape of ``ids``.

        Raises `FormatError` or `UnsupportedError` if the index is damaged, or has an unknown form,
        and `ReadError` if the file cannot be read, or has changed since it was opened.
        """
        if not ids.size:
            return ChunkManifest.missing(ids.shape)
        full_manifest = self._find_full_manifest(ids.size)
        if full_manifest is None:
            unique_ids, row = np.unique(ids, return_inverse=True)
            manifest = self._look_up(unique_ids)
            # keys have no checksum; the whole tree also contains chunks that damaged keys hide
            if self.index_layout.kind != IndexKind.B_TREE_1 or (manifest.file != MISSING).all():
                return manifest.at(row.reshape(ids.shape))
            full_manifest = self._read_full_manifest()
        is_all = ids.size == full_manifest.size and bool((ids.ravel() == np.arange(ids.size)).all())
        return full_manifest.reshape(ids.shape) if is_all else full_manifest.at(ids)

    @property
    def files(self) -> tuple[SourceFile, ...]:
        """The file with the chunks."""
        return (self.rows.source,)

    @property
    def repr_suffix(self) -> str:
        """The suffix for the repr."""
        return ", looked up in the index of their file"

    def _find_full_manifest(self, requested_count: int) -> ChunkManifest | None:
        """Return the manifest of all chunks if it has been read, or is worth reading."""
        cached = self._cache
        is_local = not find_store(self.rows.source.url).request_limits.max_requests
        with cached.lock:
            cached.cost += LOOKUP_COST[is_local] + requested_count
            if cached.cost <= prod(self.grid):
                return cached.manifest
        return self._read_full_manifest()

    def _read_full_manifest(self) -> ChunkManifest:
        """Return the manifest of all chunks, which is read only once."""
        cached = self._cache
        with cached.lock:
            if cached.manifest is None:
                chunks = self._read(None)
                check_table(self.grid, chunks.owner.size, f"dataset {self.name!r}")
                cached.manifest = self._scatter(chunks, np.arange(prod(self.grid)))
            return cached.manifest

    def _look_up(self, unique_ids: Ints) -> ChunkManifest:
        """Return the chunks at ascending flat indexes."""
        ndim = len(self.shape)
        positions = np.stack(np.unravel_index(unique_ids, self.grid[:ndim])).reshape(ndim, -1)
        return self._scatter(self._read(positions.astype(np.int64)), unique_ids)

    def _read(self, positions: Ints | None) -> ChunkRows:
        numbers = np.zeros(1, np.int64), np.array([self.root], np.uint64).view(np.int64)
        shape = np.array([[min(n, MAX_INT64) for n in self.shape]])
        try:
            return read_indexes(self.rows, self.index_layout, *numbers, shape, requested=positions)
        except UnknownRowsError as error:
            raise make_unknown_error(self.rows.source.url, error.reason) from None
        except RowsError as error:
            raise make_metadata_error(self.rows.source.url, error.reason) from None

    def _scatter(self, chunks: ChunkRows, unique_ids: Ints) -> ChunkManifest:
        """Return the manifest of the chunks at ascending flat indexes, ignoring other chunks."""
        flat = chunks.find_flat_indexes(self.index_layout.chunks, self.grid)
        index = find_rows(unique_ids, flat)
        matches = index >= 0
        return scatter_chunks(
            unique_ids.shape,
            index[matches],
            files=(self.rows.source,),
            offset=chunks.address[matches] + self.rows.base,
            length=chunks.length[matches],
            pipeline=chunks.mask[matches] & ((1 << self.filters) - 1),
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without the cache."""
        return IndexedChunks, tuple(getattr(self, f.name) for f in fields(self) if f.init)

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        from dask.base import normalize_token

        source, index_layout = self.rows.source, self.index_layout
        identity = self.root, self.shape, self.grid, repr(index_layout)
        return ("virtualds-indexed", *map(normalize_token, (tuple(source), *identity)))


def can_defer(dataset: HDF5Dataset) -> bool:
    """Return whether a chunk index is large, and supports lookups."""
    layout, count = dataset.header.layout, len(dataset.header.filters)
    lengths = zip(dataset.header.space.shape or (), dataset.limits, layout.dims, strict=False)
    grid = [(-(-n // c), -(-(limit or 0) // c)) for n, limit, c in lengths]
    return (
        prod(n for n, _ in grid) > MIN_DEFERRED_CHUNKS
        and prod(map(max, grid)) <= MAX_GRID
        and layout.index_kind is not None
        and layout.address is not None
        and count <= MAX_DEFERRED_FILTERS
        # chunks at the edges may be unfiltered without a filter mask
        and (layout.is_filtering_edges or not count)
        and not is_in_archive(dataset.source)
    )


def defer_chunks(
    dataset: HDF5Dataset, pipeline: CodecPipeline, grid: tuple[int, ...]
) -> tuple[ChunkManifest, tuple[CodecPipeline, ...]]:
    """Return a manifest that looks chunks up, and a pipeline for each filter mask.

    Parameters
    ----------
    dataset : HDF5Dataset
        A dataset for which `can_defer` is true.
    pipeline : CodecPipeline
        The pipeline of chunks without skipped filters.
    grid : tuple of int
        The number of chunks per axis, including axes within elements.
    """
    (space, _, _, filters, layout), file = dataset.header, dataset.file
    index_layout, count = IndexLayout.from_header(dataset.header), len(filters)
    sizes = file.offset_size, file.length_size, file.istore_k, file.end - file.base
    rows = StoredRows(dataset.source, file.base, *sizes)
    shape, root = space.shape or (), layout.address or 0
    table = IndexedChunks(rows, index_layout, root, shape, grid, count, dataset.name)
    pipelines = tuple(skip_filters(pipeline, mask) for mask in range(1 << count))
    return ChunkManifest.from_table(table, grid), pipelines


def skip_filters(pipeline: CodecPipeline, mask: int) -> CodecPipeline:
    """Return a pipeline without the filters that a mask marks as skipped.

    HDF5 file format, III.A.1, "Version 1 B-trees", field "Filter Mask".
    """
    codecs = tuple(c for i, c in enumerate(pipeline.codecs) if not mask >> i & 1)
    return replace(pipeline, codecs=codecs) if mask else pipeline


# ---------------------------------------------------------------------- filters
# Filters that HDF5 decodes, including those of the package hdf5plugin if it is installed.


def check_filters(dataset: Any) -> None:
    """Raise an error for a dataset with a filter that h5py cannot decode in this process.

    Raises
    ------
    UnsupportedError
        A filter is missing; the process that scanned the file may have had it.
    """
    plist = dataset.id.get_create_plist()
    numbers = [plist.get_filter(i)[0] for i in range(plist.get_nfilters())]
    if missing := [number for number in numbers if not _has_filter(number)]:
        raise make_no_filter_error(missing[0])


def _has_filter(number: int) -> bool:
    return _can_decode(number) or (_import_plugins() and _can_decode(number))


def _can_decode(number: int) -> bool:
    """Return whether HDF5 has a filter with a decoder."""
    import h5py

    can_decode = h5py.h5z.FILTER_CONFIG_DECODE_ENABLED
    return bool(h5py.h5z.filter_avail(number) and h5py.h5z.get_filter_info(number) & can_decode)


@cache
def _import_plugins() -> bool:
    """Import hdf5plugin, which registers its filters with HDF5; return whether it is installed."""
    try:
        import_module("hdf5plugin")
    except ImportError:
        return False
    return True


# ---------------------------------------------------------------------- arrays


ALL_SKIPPED = 2**32 - 1
"""Filter mask of a chunk that skipped all filters."""
MAX_LISTED_CHUNKS = 512
"""Maximum number of chunks of a table that is built without columns."""


def build_stored_array(
    dataset: HDF5Dataset,
    stored: StoredType,
    dims: tuple[str, ...],
    encoding: dict[str, Any],
    defers: bool = False,
) -> ManifestArray | None:
    """Return the values of a dataset as references, and add the storage to ``encoding``.

    With ``defers``, a large chunk index is read only when chunks are read.

    Raises `UnsupportedError` if neither virtualds nor h5py can decode a filter.

    Returns
    -------
    ManifestArray or None
        None if only h5py can decode the stored bytes.
    """
    header = dataset.header
    if stored.dtype.hasobject:
        return None
    chunks = _get_chunk_shape(dataset)
    encoding |= NO_FILTERS | {"contiguous": chunks is None, "chunksizes": chunks}
    if chunks is not None:
        encoding["preferred_chunks"] = dict(zip(dims, chunks, strict=True))
    # the fill value of an array type is an array
    if not stored.in_chunks or (stored.shape and header.fill.is_user_defined):
        return None
    dtype, fill = stored.dtype, get_fill(dataset, stored.dtype)
    # equal pipelines are one object, except for compound types, whose dtypes differ in metadata
    make_pipeline = _make_pipeline if dtype.names is None else _make_pipeline.__wrapped__
    filters = header.filters if chunks is not None else ()
    try:
        pipeline = make_pipeline(dtype, prod(stored.shape), len(dataset.shape), fill, filters)
    except UnsupportedError:
        # h5py can decode the filters
        if all(_has_filter(f.number) for f in header.filters):
            return None
        raise
    if chunks is None:
        return _build_without_chunks(dataset, pipeline)
    for codec in pipeline.codecs:
        encoding |= codec.encoding
    axes, grid = _make_axes(dataset.shape, chunks)
    if defers and can_defer(dataset):
        return _build_array(dataset.name, axes, *defer_chunks(dataset, pipeline, grid))
    return _build_chunked(dataset, pipeline, chunks)


def _get_chunk_shape(dataset: HDF5Dataset) -> tuple[int, ...] | None:
    """Return the chunk shape of a dataset, or None if it has no chunks."""
    layout = dataset.header.layout
    if layout.kind != LayoutClass.CHUNKED:
        return None
    if len(layout.dims) != dataset.rank + 1:
        dataset.file.raise_damaged(
            f"a dataset of {dataset.rank} axes has chunks of {layout.dims[:-1]}"
        )
    return layout.dims[:-1] + dataset.shape[dataset.rank :]


def build_raw_array(dataset: HDF5Dataset, size: int) -> ManifestArray:
    """Return elements as stored, of ``size`` bytes each.

    Raises `UnsupportedError` if virtualds cannot decode a filter.
    """
    within, chunks = dataset.shape[dataset.rank :], _get_chunk_shape(dataset)
    filters = () if chunks is None else dataset.header.filters
    dtype = np.dtype(f"V{size}")
    # a fill value that h5py has read has no bytes, and that of an array type is an array
    fill = dataset.header.fill.raw if len(dataset.header.fill.raw) == size else None
    pipeline = _make_pipeline(dtype, prod(within), len(dataset.shape), fill, filters)
    if chunks is not None:
        return _build_chunked(dataset, pipeline, chunks)
    array = _build_without_chunks(dataset, pipeline)
    if array is None:
        dataset.file.raise_unsupported("references to the heap that lie in other files")
    return array


def _build_without_chunks(dataset: HDF5Dataset, pipeline: CodecPipeline) -> ManifestArray | None:
    is_external = dataset.is_external and prod(dataset.shape) > 0
    return (_build_external if is_external else _build_contiguous)(dataset, pipeline)


@lru_cache(1024)
def _make_pipeline(
    dtype: np.dtype[Any], elements: int, rank: int, fill: bytes | None, filters: tuple[Filter, ...]
) -> CodecPipeline:
    nbytes = dtype.itemsize * elements
    codecs = tuple(codec_from_hdf5(f.number, f.values, nbytes) for f in filters)
    return CodecPipeline(dtype, codecs, fill, tuple(range(rank)))


def get_fill(dataset: HDF5Dataset, dtype: np.dtype[Any]) -> bytes | None:
    """Return the storage fill value (not ``_FillValue``) as bytes, or None for zero."""
    fill = dataset.header.fill
    if not fill.is_user_defined:
        return None
    if len(fill.raw) != dtype.itemsize:
        dataset.file.raise_damaged(f"a fill value has {len(fill.raw)} bytes of {dtype.itemsize}")
    return fill.raw


def _build_chunked(
    dataset: HDF5Dataset, pipeline: CodecPipeline, chunks: tuple[int, ...]
) -> ManifestArray:
    axes, grid = _make_axes(dataset.shape, chunks)
    # HDF5 has an option not to filter chunks that reach past the end (`H5Pset_chunk_opts`), which
    # does not set the filter mask
    has_unfiltered_edges = (
        not dataset.header.layout.is_filtering_edges
        and bool(pipeline.codecs)
        and any(n % c for n, c in zip(dataset.shape, chunks, strict=True))
    )
    leaf_chunks = None if has_unfiltered_edges else read_single_leaf(dataset)
    if leaf_chunks is None:
        index = read_chunks(dataset)
        is_complete = 0 < index.owner.size == prod(grid) <= MAX_LISTED_CHUNKS
        if is_complete and not has_unfiltered_edges and not index.mask.any():
            leaf_chunks = ListedChunks(index.address.tolist(), index.length.tolist())
    if leaf_chunks is not None:
        offset = [address + dataset.file.base for address in leaf_chunks.address]
        manifest = ChunkManifest.in_file(grid, dataset.source, offset, leaf_chunks.length)
        return _build_array(dataset.name, axes, manifest, (pipeline,))
    if not index.owner.size:
        return _build_array(dataset.name, axes, ChunkManifest.missing(grid), (pipeline,))
    check_table(grid, index.owner.size, f"dataset {dataset.name!r}")
    mask = index.mask
    if has_unfiltered_edges:
        past = [p + c > n for p, c, n in zip(index.position, chunks, dataset.shape, strict=False)]
        mask = np.where(np.any(past, axis=0), ALL_SKIPPED, mask)
    pipelines: tuple[CodecPipeline, ...] = (pipeline,)
    number = np.zeros(mask.size, np.int64)
    if mask.any():
        masks, number = np.unique(mask, return_inverse=True)
        pipelines = tuple(skip_filters(pipeline, int(skipped)) for skipped in masks)
    manifest = scatter_chunks(
        grid,
        index.find_flat_indexes(chunks, grid),
        files=(dataset.source,),
        offset=index.address + dataset.file.base,
        length=index.length,
        pipeline=number.ravel(),
    )
    return _build_array(dataset.name, axes, manifest, pipelines)


@lru_cache(1024)
def _make_axes(
    shape: tuple[int, ...], chunks: tuple[int, ...]
) -> tuple[tuple[ChunkAxis, ...], tuple[int, ...]]:
    """Return the chunk axes, and the number of chunks per axis."""
    axes = make_regular_axes(shape, chunks)
    return axes, tuple(axis.nchunks for axis in axes)


def _build_contiguous(dataset: HDF5Dataset, pipeline: CodecPipeline) -> ManifestArray:
    """Return a compact or contiguous dataset as one chunk."""
    axes, grid = _make_axes(dataset.shape, tuple(max(n, 1) for n in dataset.shape))
    nbytes = prod(dataset.shape) * pipeline.dtype.itemsize
    layout = dataset.header.layout
    if layout.size is not None and layout.size < nbytes and layout.address is not None:
        dataset.file.raise_damaged(f"a dataset has {layout.size} bytes of {nbytes}")
    if layout.kind == LayoutClass.COMPACT:
        # compact data are in the object header
        raw = layout.data[:nbytes]
        if len(raw) < nbytes:
            dataset.file.raise_damaged(f"a dataset has {len(raw)} bytes of {nbytes}")
        manifest = ChunkManifest.build(grid, file=INLINE, length=nbytes, inline=(raw,))
    elif layout.address is None:
        manifest = ChunkManifest.missing(grid)
    else:
        chunks, offset = prod(grid), layout.address + dataset.file.base
        manifest = ChunkManifest.in_file(
            grid, dataset.source, (offset,) * chunks, (nbytes,) * chunks
        )
    return _build_array(dataset.name, axes, manifest, (pipeline,))


def _build_external(dataset: HDF5Dataset, pipeline: CodecPipeline) -> ManifestArray | None:
    """Return a dataset whose bytes are in other files, or None if a file ends within a row."""
    segments = list_external_segments(dataset)
    files, offsets, lengths = zip(*segments, strict=True)
    manifest = ChunkManifest.build(
        (len(files),), files=files, file=np.arange(len(files)), offset=offsets, length=lengths
    )
    rows = max(dataset.shape[0], 1) if dataset.shape else 1
    row = max(sum(lengths) // rows, 1)
    if any(length % row for length in lengths):
        return None
    counts = np.array([n // row for n in lengths], np.int64)
    leading = (
        (ChunkAxis.from_slabs(counts, counts, np.zeros_like(counts)),) if dataset.shape else ()
    )
    inner_axes = tuple(ChunkAxis.regular(n, max(n, 1)) for n in dataset.shape[1:])
    grid = (counts.size,) * len(leading) + tuple(axis.nchunks for axis in inner_axes)
    return _build_array(dataset.name, (*leading, *inner_axes), manifest.reshape(grid), (pipeline,))


def list_external_segments(
    dataset: HDF5Dataset,
    candidates: Sequence[ListCandidates] = (list_in_working_directory, list_beside),
) -> list[tuple[SourceFile, int, int]]:
    """Return the segments of a dataset with external files: file, offset and length.

    HDF5 file format, IV.A.2.h, External Data Files message. ``candidates`` determines where to look
    for relative names.

    Raises
    ------
    FormatError
        A file is missing or too short: HDF5 would read zeros.
    """
    remaining = prod(dataset.header.space.shape or ()) * dataset.type.size
    segments = []
    for number in range(dataset.plist.get_external_count()):
        name, offset, size = dataset.plist.get_external(number)
        file = find_referenced_file(os.fsdecode(name), dataset.source, candidates)
        length = min(size, remaining)
        remaining -= length
        if length and file.size is not None and offset + length > file.size:
            raise FormatError(
                f"{file.url}: it has {file.size} bytes, and {dataset.name!r} of "
                f"{dataset.source.url} needs {offset + length} of it; fetch it again"
            )
        if length:
            segments.append((file, offset, length))
    return segments


def _build_array(
    name: str,
    axes: tuple[ChunkAxis, ...],
    manifest: ChunkManifest,
    pipelines: tuple[CodecPipeline, ...],
) -> ManifestArray:
    fragment = Fragment.whole(axes, manifest)
    array = ManifestArray.from_fragment(fragment, pipelines[0], name)
    return replace(array, pipelines=pipelines) if len(pipelines) > 1 else array
