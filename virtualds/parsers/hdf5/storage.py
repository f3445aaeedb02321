"""How the values of an HDF5 dataset are stored: type, filters, layout, and where its chunks lie.

h5py reads values that byte ranges cannot express; others are refused by name.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from virtualds.arrays.array import ManifestArray
from virtualds.bounds import demand_table
from virtualds.chunks.columns import INLINE, MISSING
from virtualds.chunks.fragment import ChunkAxis, Fragment, make_regular_axes
from virtualds.chunks.manifest import ChunkManifest
from virtualds.codecs import codec_from_hdf5
from virtualds.codecs.codec import NO_FILTERS
from virtualds.codecs.pipeline import CodecPipeline
from virtualds.errors import FormatError, UnsupportedError
from virtualds.parsers.hdf5.chunk_indexes.dataset_chunks import (
    ListedChunks,
    read_chunks,
    read_one_leaf,
)
from virtualds.parsers.hdf5.chunk_indexes.form import ChunkRows
from virtualds.parsers.hdf5.data_types import StoredType
from virtualds.parsers.hdf5.deferred_chunks import can_defer, defer_chunks, skip_filters
from virtualds.parsers.hdf5.file import (
    ListCandidates,
    find_referenced_file,
    list_beside,
    list_in_working_directory,
)
from virtualds.parsers.hdf5.objects import Dataset
from virtualds.parsers.hdf5.plugins import can_undo
from virtualds.parsers.hdf5.structure.messages import Filter, LayoutClass
from virtualds.source_file import SourceFile

ALL_SKIPPED = 2**32 - 1
"""The filter mask of a chunk that skipped all filters."""
FEW_CHUNKS = 512
"""Most chunks of a table that is made without columns."""


def build_stored_array(
    dataset: Dataset,
    stored: StoredType,
    dims: tuple[str, ...],
    encoding: dict[str, Any],
    defers: bool = False,
) -> ManifestArray | None:
    """Return the values of a dataset as references; add to ``encoding`` how they are stored.

    ``defers`` says that a large index of chunks is not read, but asked when chunks are.

    Returns
    -------
    ManifestArray or None
        None where only h5py can make values of the stored bytes.

    Raises
    ------
    UnsupportedError
        Neither virtualds nor h5py can undo a filter.
    """
    facts = dataset.facts
    if stored.dtype.hasobject:
        return None
    chunks = _find_chunks(dataset)
    encoding |= NO_FILTERS | {"contiguous": chunks is None, "chunksizes": chunks}
    if chunks is not None:
        encoding["preferred_chunks"] = dict(zip(dims, chunks, strict=True))
    # elements of an array type have a fill value for each of their elements
    if not stored.in_chunks or (stored.shape and facts.fill.is_chosen):
        return None
    try:
        pipeline = _find_pipeline(dataset, stored, facts.filters if chunks is not None else ())
    except UnsupportedError:
        if can_undo(f.number for f in facts.filters):
            return None
        raise
    if chunks is None:
        return _build_unchunked(dataset, pipeline)
    for codec in pipeline.codecs:
        encoding |= codec.encoding
    axes, grid = _cut_axes(dataset.shape, chunks)
    if defers and can_defer(dataset):
        return _build_array(dataset.name, axes, *defer_chunks(dataset, pipeline, grid))
    return _build_chunked(dataset, pipeline, chunks)


def _find_chunks(dataset: Dataset) -> tuple[int, ...] | None:
    """Return the elements of a chunk along each axis, None if the dataset has no chunks."""
    layout = dataset.facts.layout
    if layout.kind != LayoutClass.CHUNKED:
        return None
    if len(layout.dims) != dataset.rank + 1:
        dataset.file.refuse(f"a dataset of {dataset.rank} axes has chunks of {layout.dims[:-1]}")
    return layout.dims[:-1] + dataset.shape[dataset.rank :]


def build_raw_array(dataset: Dataset, size: int) -> ManifestArray:
    """Return elements as stored, ``size`` bytes each; where nothing is, the fill value or zeros.

    Raises
    ------
    UnsupportedError
        virtualds cannot undo a filter.
    """
    within, chunks = dataset.shape[dataset.rank :], _find_chunks(dataset)
    filters = () if chunks is None else dataset.facts.filters
    dtype = np.dtype(f"V{size}")
    # there are no bytes of one that h5py found, and those of an array type are a whole array
    fill = dataset.facts.fill.raw if len(dataset.facts.fill.raw) == size else None
    pipeline = _make_pipeline(dtype, prod(within), len(dataset.shape), fill, filters)
    if chunks is not None:
        return _build_chunked(dataset, pipeline, chunks)
    found = _build_unchunked(dataset, pipeline)
    if found is None:
        dataset.file.decline("references to the heap that lie in other files")
    return found


def _build_unchunked(dataset: Dataset, pipeline: CodecPipeline) -> ManifestArray | None:
    elsewhere = dataset.is_external and prod(dataset.shape) > 0
    return (_build_external if elsewhere else _build_contiguous)(dataset, pipeline)


def _find_pipeline(
    dataset: Dataset, stored: StoredType, filters: tuple[Filter, ...]
) -> CodecPipeline:
    """Return how chunks of a dataset become values; equal pipelines are one object."""
    made = _make_pipeline if stored.dtype.names is None else _make_pipeline.__wrapped__
    fill = fill_of(dataset, stored.dtype)
    return made(stored.dtype, prod(stored.shape), len(dataset.shape), fill, filters)


@lru_cache(1024)
def _make_pipeline(
    dtype: np.dtype[Any], elements: int, rank: int, fill: bytes | None, filters: tuple[Filter, ...]
) -> CodecPipeline:
    nbytes = dtype.itemsize * elements
    codecs = tuple(codec_from_hdf5(f.number, f.values, nbytes) for f in filters)
    return CodecPipeline(dtype, codecs, fill, tuple(range(rank)))


def fill_of(dataset: Dataset, dtype: np.dtype[Any]) -> bytes | None:
    """Return the storage fill value as bytes, None for zero; it is not the attribute."""
    fill = dataset.facts.fill
    if not fill.is_chosen:
        return None
    if len(fill.raw) != dtype.itemsize:
        dataset.file.refuse(f"a fill value has {len(fill.raw)} bytes of {dtype.itemsize}")
    return fill.raw


def _build_chunked(
    dataset: Dataset, pipeline: CodecPipeline, chunks: tuple[int, ...]
) -> ManifestArray:
    axes, grid = _cut_axes(dataset.shape, chunks)
    has_bare = _has_bare_edges(dataset, pipeline, chunks)
    listed = None if has_bare else read_one_leaf(dataset)
    if listed is None:
        index = read_chunks(dataset)
        listed = None if has_bare else _list_few(index, prod(grid))
    if listed is not None:
        offset = [address + dataset.file.base for address in listed.address]
        manifest = ChunkManifest.in_file(grid, dataset.source, offset, listed.length)
        return _build_array(dataset.name, axes, manifest, (pipeline,))
    if not index.owner.size:
        return _build_array(dataset.name, axes, ChunkManifest.missing(grid), (pipeline,))
    demand_table(grid, index.owner.size, f"dataset {dataset.name!r}")
    mask = np.where(_find_bare_edges(dataset, pipeline, chunks, index), ALL_SKIPPED, index.mask)
    pipelines, number = _split_by_mask(pipeline, mask)
    flat = index.count_before(chunks, grid)

    def spread(values: npt.NDArray[Any], rest: int, kind: Any) -> npt.NDArray[Any]:
        column = np.full(prod(grid), rest, kind)
        column[flat] = values
        return column.reshape(grid)

    manifest = ChunkManifest.build(
        grid,
        files=(dataset.source,),
        file=spread(np.zeros(mask.size, np.int32), MISSING, np.int32),
        offset=spread(index.address + dataset.file.base, 0, np.int64),
        length=spread(index.length, 0, np.int64),
        pipeline=spread(number, 0, np.uint16),
    )
    return _build_array(dataset.name, axes, manifest, pipelines)


@lru_cache(1024)
def _cut_axes(
    shape: tuple[int, ...], chunks: tuple[int, ...]
) -> tuple[tuple[ChunkAxis, ...], tuple[int, ...]]:
    """Return how axes are cut, and the chunks of each."""
    axes = make_regular_axes(shape, chunks)
    return axes, tuple(axis.nchunks for axis in axes)


def _list_few(index: ChunkRows, count: int) -> ListedChunks | None:
    """Return the chunks of an index if they are all and few, and none skipped a filter."""
    if not 0 < index.owner.size == count <= FEW_CHUNKS or index.mask.any():
        return None
    return ListedChunks(index.address.tolist(), index.length.tolist())


def _has_bare_edges(dataset: Dataset, pipeline: CodecPipeline, chunks: tuple[int, ...]) -> bool:
    """Say whether chunks reach past the end, which are without filters while others have some.

    HDF5 may be told not to filter such chunks (`H5Pset_chunk_opts`), which shows in no filter mask.
    """
    if dataset.facts.layout.is_filtering_edges or not pipeline.codecs:
        return False
    return any(n % c for n, c in zip(dataset.shape, chunks, strict=True))


def _find_bare_edges(
    dataset: Dataset, pipeline: CodecPipeline, chunks: tuple[int, ...], index: ChunkRows
) -> npt.NDArray[np.bool_]:
    """Return which chunks reach past the end and were written without filters."""
    if not _has_bare_edges(dataset, pipeline, chunks):
        return np.zeros(index.owner.size, bool)
    past = [p + c > n for p, c, n in zip(index.place, chunks, dataset.shape, strict=False)]
    bare: npt.NDArray[np.bool_] = np.any(past, axis=0)
    return bare


def _split_by_mask(
    pipeline: CodecPipeline, masks: npt.NDArray[np.int64]
) -> tuple[tuple[CodecPipeline, ...], npt.NDArray[np.int64]]:
    """Return a pipeline per filter mask."""
    if not masks.any():
        return (pipeline,), np.zeros(masks.size, np.int64)
    distinct, number = np.unique(masks, return_inverse=True)
    return tuple(skip_filters(pipeline, int(mask)) for mask in distinct), number.ravel()


def _build_contiguous(dataset: Dataset, pipeline: CodecPipeline) -> ManifestArray:
    """Return a compact or contiguous dataset as one chunk."""
    axes, grid = _cut_axes(dataset.shape, tuple(max(n, 1) for n in dataset.shape))
    nbytes = prod(dataset.shape) * pipeline.dtype.itemsize
    layout = dataset.facts.layout
    if layout.size is not None and layout.size < nbytes and layout.address is not None:
        dataset.file.refuse(f"a dataset has {layout.size} bytes of {nbytes}")
    if layout.kind == LayoutClass.COMPACT:
        # it lies in the object header
        raw = layout.data[:nbytes]
        if len(raw) < nbytes:
            dataset.file.refuse(f"a dataset has {len(raw)} bytes of {nbytes}")
        manifest = ChunkManifest.build(grid, file=INLINE, length=nbytes, inline=(raw,))
    elif layout.address is None:
        manifest = ChunkManifest.missing(grid)
    else:
        chunks, offset = prod(grid), layout.address + dataset.file.base
        manifest = ChunkManifest.in_file(
            grid, dataset.source, (offset,) * chunks, (nbytes,) * chunks
        )
    return _build_array(dataset.name, axes, manifest, (pipeline,))


def _build_external(dataset: Dataset, pipeline: CodecPipeline) -> ManifestArray | None:
    """Return a dataset whose bytes lie in other files; None where a file ends within a row."""
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
    cut = (ChunkAxis.from_slabs(counts, counts, np.zeros_like(counts)),) if dataset.shape else ()
    rest = tuple(ChunkAxis.regular(n, max(n, 1)) for n in dataset.shape[1:])
    grid = (counts.size,) * len(cut) + tuple(axis.nchunks for axis in rest)
    return _build_array(dataset.name, (*cut, *rest), manifest.reshape(grid), (pipeline,))


def list_external_segments(
    dataset: Dataset, places: Sequence[ListCandidates] = (list_in_working_directory, list_beside)
) -> list[tuple[SourceFile, int, int]]:
    """Return where the bytes of a dataset with external files lie: file, offset, length.

    HDF5 file format, IV.A.2.h, External Data Files message. ``places`` says where to look for
    relative names.

    Raises
    ------
    FormatError
        A file is missing, or shorter than it has to be: HDF5 would read zeros.
    """
    left = prod(dataset.facts.space.shape or ()) * dataset.type.size
    segments = []
    for number in range(dataset.plist.get_external_count()):
        name, offset, size = dataset.plist.get_external(number)
        file = find_referenced_file(os.fsdecode(name), dataset.source, places)
        length = min(size, left)
        left -= length
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
    array = ManifestArray.of_fragment(fragment, pipelines[0], name)
    return replace(array, pipelines=pipelines) if len(pipelines) > 1 else array
