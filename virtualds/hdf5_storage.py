"""How the values of an HDF5 dataset are stored: type, filters, layout, and where its chunks lie.

What byte ranges cannot express is refused by name, or read.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from virtualds.array import ManifestArray
from virtualds.codecs import Codec, codec_from_hdf5
from virtualds.errors import UnsupportedError
from virtualds.fragment import CodecPipeline, Fragment
from virtualds.grid import ChunkAxis
from virtualds.hdf5_structure import Dataset
from virtualds.manifest import INLINE, MISSING, ChunkManifest, SourceFile
from virtualds.zarr_metadata import NO_FILTERS

COMPACT, CONTIGUOUS, CHUNKED = 0, 1, 2
"""Layout classes (HDF5 file format, IV.A.2.i, Data Layout message)."""
BLOCK = 512
"""Chunks that are gathered before they become columns."""


def virtual_array(
    dataset: Dataset,
    dtype: np.dtype[Any],
    dims: tuple[str, ...],
    source: SourceFile,
    encoding: dict[str, Any],
) -> ManifestArray:
    """Return the values of a dataset as references; ``encoding`` learns how they are stored.

    Raises
    ------
    UnsupportedError
        The layout, or a filter, is one that byte ranges cannot express.
    """
    plist = dataset.id.get_create_plist()
    layout = plist.get_layout()
    if plist.get_external_count():
        raise _unsupported("its values lie in external files")
    if layout not in (COMPACT, CONTIGUOUS, CHUNKED):
        raise _unsupported("it is a virtual dataset (VDS), put together from other files")
    encoding |= NO_FILTERS
    pipeline = CodecPipeline(
        dtype, fill=_fill(plist, dtype), layout=tuple(range(len(dataset.shape)))
    )
    if layout == CHUNKED:
        chunks = plist.get_chunk()
        codecs = _codecs(plist, dtype.itemsize)
        for codec in codecs:
            encoding |= codec.encoding
        encoding |= {"contiguous": False, "chunksizes": chunks}
        encoding["preferred_chunks"] = dict(zip(dims, chunks, strict=True))
        return _chunked(dataset, replace(pipeline, codecs=codecs), chunks, source)
    encoding |= {"contiguous": True, "chunksizes": None}
    return _in_one_piece(dataset, pipeline, layout, source)


class _Stored(NamedTuple):
    """The dtype of the stored numbers (None for strings of varying length) and the declared one."""

    dtype: np.dtype[Any] | None
    declared: Any


def stored_type(dataset: Dataset) -> _Stored:
    """Return how the elements of a dataset are stored.

    Raises
    ------
    UnsupportedError
        The type has no equal in numpy that a chunk could be read into.
    """
    import h5py

    kind = dataset.id.get_type()
    if isinstance(kind, h5py.h5t.TypeEnumID):
        return _enum_type(kind)
    dtype = dataset.id.dtype
    if h5py.check_string_dtype(dtype) is not None and dtype.kind == "O":
        return _Stored(None, str)
    if dtype.kind in "iufcS" and dtype.itemsize and dtype.subdtype is None:
        return _Stored(np.dtype(dtype.str), np.dtype(dtype.str))
    raise _unsupported(f"its type {dtype} (HDF5 class {kind.get_class()}) has no equal in numpy")


def _enum_type(kind: Any) -> _Stored:
    """Return an enum as its integers, with the names in the metadata as xarray holds them."""
    base = np.dtype(kind.get_super().dtype.str)
    members = {
        kind.get_member_name(i).decode(): kind.get_member_value(i)
        for i in range(kind.get_nmembers())
    }
    declared = np.dtype(base, metadata={"enum": members, "enum_name": _type_name(kind)})
    return _Stored(base, declared)


def _type_name(kind: Any) -> str:
    import h5py

    if not kind.committed():
        return "enum"
    name = h5py.h5i.get_name(kind)
    return name.decode().rpartition("/")[2] if name else "enum"


def _unsupported(cause: str) -> UnsupportedError:
    return UnsupportedError(
        f"{cause}, which byte ranges cannot express; leave the variable out with drop_variables, "
        f"or open the file with xarray's own engines"
    )


def _codecs(plist: Any, itemsize: int) -> tuple[Codec, ...]:
    """Return the filters of a dataset, in the order in which they encoded."""
    found = (plist.get_filter(i) for i in range(plist.get_nfilters()))
    return tuple(codec_from_hdf5(number, values, itemsize) for number, _, values, _ in found)


def _fill(plist: Any, dtype: np.dtype[Any]) -> bytes | None:
    """Return the storage fill value as bytes; it is not the attribute ``_FillValue``."""
    import h5py

    if plist.fill_value_defined() != h5py.h5d.FILL_VALUE_USER_DEFINED:
        return None
    fill = np.zeros((1,), dtype)
    plist.get_fill_value(fill)
    return fill.tobytes()


def _chunked(
    dataset: Dataset, pipeline: CodecPipeline, chunks: tuple[int, ...], source: SourceFile
) -> ManifestArray:
    axes = tuple(ChunkAxis.regular(n, c) for n, c in zip(dataset.shape, chunks, strict=True))
    grid = tuple(axis.nchunks for axis in axes)
    index = _chunk_index(dataset, len(grid))
    if not index.size:
        return _array(axes, ChunkManifest.missing(grid), (pipeline,))
    place, mask, offset, length = index[:-3], index[-3], index[-2], index[-1]
    pipelines, number = _by_mask(pipeline, mask)
    inside = np.ones(mask.size, bool)
    flat = np.zeros(mask.size, np.int64)
    for first, size, chunk, stride in zip(
        place, dataset.shape, chunks, _strides(grid), strict=True
    ):
        # shrinking a dataset can leave chunks behind that lie outside of it
        inside &= first < size
        flat += first // chunk * stride

    def spread(values: npt.NDArray[Any], rest: int, kind: Any) -> npt.NDArray[Any]:
        column = np.full(prod(grid), rest, kind)
        column[flat[inside]] = values[inside]
        return column.reshape(grid)

    manifest = ChunkManifest.build(
        grid,
        files=(source,),
        file=spread(np.zeros(mask.size, np.int32), MISSING, np.int32),
        offset=spread(offset, 0, np.int64),
        length=spread(length, 0, np.int64),
        pipeline=spread(number, 0, np.uint16),
    )
    return _array(axes, manifest, pipelines)


def _chunk_index(dataset: Dataset, ndim: int) -> npt.NDArray[np.int64]:
    """Return the position, filter mask, offset and length of every chunk that was written.

    The table has a column per chunk. It grows in blocks: a list of a million rows would take a
    hundred times the memory, and the garbage collector would walk it again and again.
    """
    tables: list[npt.NDArray[np.int64]] = []
    rows: list[Any] = []
    append = rows.append

    def settle() -> None:
        place, *rest = zip(*rows, strict=True)
        table = np.empty((ndim + 3, len(rows)), np.int64)
        flat = np.fromiter(itertools.chain.from_iterable(place), np.int64, len(rows) * ndim)
        table[:ndim] = flat.reshape(-1, ndim).T
        table[ndim:] = rest
        tables.append(table)
        rows.clear()

    def collect(row: Any) -> None:
        append(row)
        if len(rows) == BLOCK:
            settle()

    dataset.id.chunk_iter(collect)
    if rows:
        settle()
    return np.concatenate(tables, axis=1) if tables else np.empty((ndim + 3, 0), np.int64)


def _strides(grid: tuple[int, ...]) -> list[int]:
    return [prod(grid[i + 1 :]) for i in range(len(grid))]


def _by_mask(
    pipeline: CodecPipeline, masks: npt.NDArray[np.int64]
) -> tuple[tuple[CodecPipeline, ...], npt.NDArray[np.int64]]:
    """Return a pipeline per filter mask: bit ``i`` says that filter ``i`` was skipped.

    HDF5 file format, III.A.1, "Version 1 B-trees", field "Filter Mask".
    """
    if not masks.any():
        return (pipeline,), np.zeros(masks.size, np.int64)
    distinct, number = np.unique(masks, return_inverse=True)
    pipelines = tuple(
        replace(
            pipeline,
            codecs=tuple(c for i, c in enumerate(pipeline.codecs) if not int(mask) >> i & 1),
        )
        for mask in distinct
    )
    return pipelines, number.ravel()


def _in_one_piece(
    dataset: Dataset, pipeline: CodecPipeline, layout: int, source: SourceFile
) -> ManifestArray:
    """Return a compact or contiguous dataset as one chunk."""
    import h5py

    axes = tuple(ChunkAxis.regular(n, max(n, 1)) for n in dataset.shape)
    grid = tuple(axis.nchunks for axis in axes)
    nbytes = prod(dataset.shape) * pipeline.dtype.itemsize
    if layout == COMPACT:
        # it lies in the object header, at no address that HDF5 tells
        values = np.empty(dataset.shape, pipeline.dtype)
        if values.size:
            dataset.id.read(h5py.h5s.ALL, h5py.h5s.ALL, values)
        manifest = ChunkManifest.build(grid, file=INLINE, length=nbytes, inline=(values.tobytes(),))
    elif (offset := dataset.id.get_offset()) is None:
        manifest = ChunkManifest.missing(grid)
    else:
        manifest = ChunkManifest.build(grid, files=(source,), offset=offset, length=nbytes)
    return _array(axes, manifest, (pipeline,))


def _array(
    axes: tuple[ChunkAxis, ...], manifest: ChunkManifest, pipelines: tuple[CodecPipeline, ...]
) -> ManifestArray:
    array = ManifestArray.of_fragment(Fragment((0,) * len(axes), axes, manifest), pipelines[0])
    return replace(array, pipelines=pipelines)


def read_strings(dataset: Dataset, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Read strings of varying length: they lie in a heap, where no byte range can point."""
    import h5py

    kind = np.dtype("O", metadata={"element_type": str})
    values = np.full(shape, "", kind)
    if prod(dataset.shape):
        found = np.asarray(h5py.Dataset(dataset.id).asstr(errors="replace")[()], dtype=object)
        box: Any = (*(slice(0, n) for n in dataset.shape), ...)
        values[box] = found
    return values
