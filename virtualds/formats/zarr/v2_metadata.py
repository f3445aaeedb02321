"""``.zarray`` of Zarr v2, to and from arrays.

Zarr storage specification version 2, "Metadata" and "Arrays". `v2_obstacles` lists what such
metadata cannot describe, so that a writer can name every obstacle before it writes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.regions import tile_fragments
from virtualds.chunks.fragment import ChunkAxis, Fragment
from virtualds.chunks.manifest import ChunkManifest
from virtualds.codecs import codec_from_zarr_v2
from virtualds.codecs.codec import NO_FILTERS
from virtualds.codecs.pipeline import CodecPipeline
from virtualds.errors import FormatError, UnsupportedError
from virtualds.formats.zarr.v2_obstacles import (
    build_fill_pipeline,
    describe_grids,
    find_common_grid,
    memory_order,
)
from virtualds.formats.zarr.v2_types import dtype_from_zarr_v2, dtype_to_zarr_v2, fill_from_zarr_v2
from virtualds.json_values import is_shape

V2_CHOICES = {"order": ("C", "F", None), "dimension_separator": (".", "/", None)}
"""Values that optional keys of ``.zarray`` may have."""


@dataclass(frozen=True)
class ZarrArray:
    """An array as Zarr v2 knows it: one regular grid, one pipeline.

    Parameters
    ----------
    metadata : dict
        The content of ``.zarray``, its ``fill_value`` null.
    manifest : ChunkManifest
        The chunks over the whole grid.
    pipeline : CodecPipeline
        How every chunk decodes.
    """

    metadata: dict[str, Any]
    manifest: ChunkManifest
    pipeline: CodecPipeline


def to_zarr_v2(array: ManifestArray) -> ZarrArray:
    """Describe an array that has no `unsupported_reasons`."""
    pipeline = array.pipelines[0] if array.fragments else build_fill_pipeline(array)
    grid = find_common_grid(array)
    if grid is None:
        raise UnsupportedError(f"{array.name}: {describe_grids(array)}")
    codecs = [codec.to_zarr_v2() for codec in pipeline.codecs]
    metadata = {
        "zarr_format": 2,
        "shape": list(array.shape),
        "chunks": list(grid),
        "dtype": dtype_to_zarr_v2(pipeline.dtype),
        "compressor": None,
        "filters": codecs or None,
        "fill_value": None,
        "order": memory_order(pipeline, array.ndim),
        "dimension_separator": ".",
    }
    # the last codec of a Zarr v2 array is its compressor; readers look for it there
    if codecs and not pipeline.codecs[-1].is_filter:
        metadata |= {"compressor": codecs[-1], "filters": codecs[:-1] or None}
    return ZarrArray(metadata, _build_whole_manifest(array, grid), pipeline)


def array_from_zarr_v2(metadata: Mapping[str, Any], manifest: ChunkManifest) -> ManifestArray:
    """Return the array that ``.zarray`` describes.

    Raises
    ------
    FormatError
        The fill value or dtype is invalid.
    UnsupportedError
        A codec or dtype is unknown.
    """
    shape, chunks = metadata["shape"], metadata["chunks"]
    dtype = dtype_from_zarr_v2(metadata["dtype"])
    steps = [*(metadata.get("filters") or ()), metadata.get("compressor")]
    fill = fill_from_zarr_v2(metadata.get("fill_value"), dtype)
    order = metadata.get("order") or "C"
    axes = tuple(ChunkAxis.regular(n, max(c, 1)) for n, c in zip(shape, chunks, strict=True))
    layout = tuple(range(len(shape)))
    if fill is None and dtype.kind in "mM":
        # missing chunks without a fill value are NaT, as in zarr-python
        fill = "NaT"
    pipeline = CodecPipeline(
        dtype,
        codecs=tuple(codec_from_zarr_v2(step) for step in steps if step is not None),
        fill=None if fill is None else np.asarray(fill, dtype).tobytes(),
        layout=layout if order == "C" else layout[::-1],
    )
    return ManifestArray.of_fragment(Fragment.whole(axes, manifest), pipeline)


def check_zarr_v2(metadata: Any) -> None:
    """Refuse an invalid ``.zarray``.

    Raises
    ------
    FormatError
        A key is missing, or shape and chunks are invalid.
    """
    if not isinstance(metadata, Mapping):
        raise FormatError(f".zarray: {metadata!r} is not an object; the reference set is damaged")
    if absent := {"shape", "chunks", "dtype"} - metadata.keys():
        raise FormatError(f".zarray: there is no {min(absent)!r}; the reference set is damaged")
    shape, chunks = metadata["shape"], metadata["chunks"]
    # along empty axes, kerchunk writes chunks of length 0
    if not (
        is_shape(shape)
        and is_shape(chunks)
        and len(shape) == len(chunks)
        and all(c >= min(n, 1) for n, c in zip(shape, chunks, strict=True))
    ):
        raise FormatError(
            f".zarray: shape {shape!r} in chunks of {chunks!r}; the reference set is damaged"
        )
    for key, known in V2_CHOICES.items():
        if metadata.get(key) not in known:
            raise FormatError(
                f".zarray: {key} {metadata[key]!r}, not one of {known[:2]}; the "
                f"reference set is damaged"
            )


def read_chunk_grid(metadata: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the chunks per axis that ``.zarray`` describes."""
    pairs = zip(metadata["shape"], metadata["chunks"], strict=True)
    return tuple(-(-n // max(c, 1)) for n, c in pairs)


def describe_storage(array: ManifestArray, dims: Sequence[str]) -> dict[str, Any]:
    """Return how an array of one pipeline is stored, with the keys of xarray's netCDF4 backend."""
    found = dict(NO_FILTERS)
    for codec in array.pipelines[0].codecs if array.pipelines else ():
        found |= codec.encoding
    chunks = find_common_grid(array)
    if chunks is not None and chunks:
        found |= {"contiguous": False, "chunksizes": chunks}
        found["preferred_chunks"] = dict(zip(dims, chunks, strict=True))
    else:
        found |= {"contiguous": True, "chunksizes": None}
    return found


def _build_whole_manifest(array: ManifestArray, chunks: tuple[int, ...]) -> ChunkManifest:
    """Return one manifest over the grid of the array, missing where no fragment lies."""
    grid = tuple(-(-n // c) for n, c in zip(array.shape, chunks, strict=True))
    if len(array.fragments) == 1 and array.manifest.shape == grid:
        return array.manifest
    if not array.fragments:
        return ChunkManifest.missing(grid)
    return tile_fragments(array.fragments, chunks, grid)
