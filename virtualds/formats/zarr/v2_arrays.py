"""Convert arrays to ``.zarray`` of Zarr v2 and back.

Zarr storage specification version 2, "Metadata" and "Arrays". `list_unsupported_reasons` returns
all reasons why such metadata cannot describe an array, so that writers can name them before they
write.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.concatenate import build_fill_pipeline, tile_fragments
from virtualds.chunks.axes import ChunkAxis
from virtualds.chunks.columns import INLINE
from virtualds.chunks.fragment import Fragment, find_regular_chunks
from virtualds.chunks.manifest import ChunkManifest
from virtualds.codecs import codec_from_zarr_v2
from virtualds.codecs.codec import NO_FILTERS
from virtualds.codecs.pipeline import CodecPipeline
from virtualds.errors import UnsupportedError, make_damage_error
from virtualds.formats.zarr.data_types import (
    dtype_from_zarr_v2,
    dtype_to_zarr_v2,
    fill_from_zarr_v2,
    is_representable_in_zarr_v2,
)
from virtualds.json_values import is_shape

V2_CHOICES = {"order": ("C", "F", None), "dimension_separator": (".", "/", None)}
"""The values that optional keys of ``.zarray`` may have."""
CHARACTER = np.dtype("S1")
"""The type of characters, which form strings along their last axis (NUG)."""


@dataclass(frozen=True)
class ZarrArray:
    """An array of Zarr v2, with one regular grid and one pipeline; ``fill_value`` is null."""

    metadata: dict[str, Any]
    manifest: ChunkManifest
    pipeline: CodecPipeline


def to_zarr_v2(array: ManifestArray) -> ZarrArray:
    """Return the Zarr v2 form of an array for which `list_unsupported_reasons` is empty."""
    pipeline = array.pipelines[0] if array.fragments else build_fill_pipeline(array)
    grid = find_common_grid(array)
    if grid is None:
        raise UnsupportedError(f"{array.name}: {describe_grids(array)}")
    codecs = [codec.to_zarr_v2() for codec in pipeline.codecs]
    order = find_memory_order(pipeline, array.ndim)
    metadata = build_zarr_v2(array.shape, grid, dtype_to_zarr_v2(pipeline.dtype), codecs, order)
    # readers expect a last codec that is not a filter as the compressor
    if codecs and not pipeline.codecs[-1].is_filter:
        metadata |= {"compressor": codecs[-1], "filters": codecs[:-1] or None}
    shape = tuple(-(-n // c) for n, c in zip(array.shape, grid, strict=True))
    if len(array.fragments) == 1 and array.manifest.shape == shape:
        manifest = array.manifest
    elif not array.fragments:
        manifest = ChunkManifest.missing(shape)
    else:
        manifest = tile_fragments(array.fragments, grid, shape)
    return ZarrArray(metadata, manifest, pipeline)


def build_zarr_v2(
    shape: Sequence[int],
    chunks: Sequence[int],
    dtype: Any,
    filters: Sequence[dict[str, Any]] = (),
    order: str | None = "C",
) -> dict[str, Any]:
    """Return the content of ``.zarray`` for an array without a fill value."""
    return {
        "zarr_format": 2,
        "shape": list(shape),
        "chunks": list(chunks),
        "dtype": dtype,
        "compressor": None,
        "filters": [*filters] or None,
        "fill_value": None,
        "order": order,
        "dimension_separator": ".",
    }


def array_from_zarr_v2(metadata: Mapping[str, Any], manifest: ChunkManifest) -> ManifestArray:
    """Return the array that ``.zarray`` describes."""
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
    return ManifestArray.from_fragment(Fragment.whole(axes, manifest), pipeline)


def check_zarr_v2(metadata: Any) -> None:
    """Raise an error for an invalid ``.zarray``."""
    if not isinstance(metadata, Mapping):
        raise make_damage_error(f".zarray: {metadata!r} is not an object", "metadata")
    if absent := {"shape", "chunks", "dtype"} - metadata.keys():
        raise make_damage_error(f".zarray: there is no {min(absent)!r}", "metadata")
    shape, chunks = metadata["shape"], metadata["chunks"]
    # along empty axes, kerchunk writes chunks of length 0
    if not (
        is_shape(shape)
        and is_shape(chunks)
        and len(shape) == len(chunks)
        and all(c >= min(n, 1) for n, c in zip(shape, chunks, strict=True))
    ):
        raise make_damage_error(f".zarray: shape {shape!r} in chunks of {chunks!r}", "metadata")
    for key, known in V2_CHOICES.items():
        if metadata.get(key) not in known:
            raise make_damage_error(
                f".zarray: {key} {metadata[key]!r}, not one of {known[:2]}", "metadata"
            )


def read_chunk_grid(metadata: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the chunks per axis of the array that ``.zarray`` describes."""
    pairs = zip(metadata["shape"], metadata["chunks"], strict=True)
    return tuple(-(-n // max(c, 1)) for n, c in pairs)


def describe_storage(array: ManifestArray, dims: Sequence[str]) -> dict[str, Any]:
    """Return the encoding of an array with one pipeline, as xarray's netCDF4 backend does."""
    encoding = dict(NO_FILTERS)
    for codec in array.pipelines[0].codecs if array.pipelines else ():
        encoding |= codec.encoding
    chunks = find_common_grid(array)
    if chunks is not None and chunks:
        encoding |= {"contiguous": False, "chunksizes": chunks}
        encoding["preferred_chunks"] = dict(zip(dims, chunks, strict=True))
    else:
        encoding |= {"contiguous": True, "chunksizes": None}
    return encoding


def list_unsupported_reasons(array: ManifestArray, dims: Sequence[Hashable] = ()) -> list[str]:
    """Return the reasons why Zarr v2 metadata cannot describe an array; empty if it can.

    The reasons name axes by ``dims`` if given.
    """
    reasons = []
    flipped = sorted({axis for p in array.pipelines for axis in p.flipped})
    if flipped:
        axis_names = ", ".join(repr(dims[axis]) if dims else f"axis {axis}" for axis in flipped)
        reasons.append(
            f"its chunks are flipped along {axis_names} (they can also be flipped after opening "
            f"the set)"
        )
    if len({replace(p, flipped=()) for p in array.pipelines}) > 1:
        reasons.append(_describe_pipelines(array))
    for pipeline in array.pipelines:
        if pipeline.packing is not None:
            reasons.append(_describe_packing(array))
        elif pipeline.dtype.char in "gG":
            reasons.append(f"its type {pipeline.dtype} has a form that depends on the machine")
        elif not is_representable_in_zarr_v2(pipeline.dtype):
            reasons.append(f"its compound type {pipeline.dtype} has bytes between its members")
        elif find_memory_order(pipeline, array.ndim) is None:
            reasons.append(
                f"its stored axes are permuted or partly selected (layout {pipeline.layout})"
            )
        elif pipeline.dtype.newbyteorder("=") != array.dtype.newbyteorder("="):
            reasons.append(f"its values are converted from {pipeline.dtype} to {array.dtype}")
    if not reasons and find_common_grid(array) is None:
        reasons.append(describe_grids(array, dims))
    return list(dict.fromkeys(reasons))


def find_memory_order(pipeline: CodecPipeline, ndim: int) -> str | None:
    """Return the memory order of a layout, "C" or "F", or None if it is neither."""
    axes = [entry for entry in pipeline.layout if isinstance(entry, int)]
    if len(axes) != len(pipeline.layout):
        return None
    if axes == sorted(axes):
        return "C"
    return "F" if axes == list(range(ndim))[::-1] else None


def find_common_grid(array: ManifestArray) -> tuple[int, ...] | None:
    """Return the regular chunk shape, or None without one or if gaps are not missing chunks."""
    return find_regular_chunks(array.shape, array.fragments) if array.gaps_read_as_missing else None


def _describe_packing(array: ManifestArray) -> str:
    """Return the reason why attributes cannot express the packing of an array."""
    if len({p.packing for p in array.pipelines}) > 1:
        return "its CF packing differs between files"
    if array.has_gaps:
        return f"its gaps are {array.fill_value!r}, for which its CF packing has no number"
    return f"its values were converted to {array.dtype} after they were unpacked"


def _describe_pipelines(array: ManifestArray) -> str:
    """Describe how the pipelines of an array differ, and in which files."""
    first_files = {
        number: _find_first_file(array, number) for number in range(min(2, len(array.pipelines)))
    }
    a, b = array.pipelines[:2]
    names = _list_differing_parts(a, b)
    verb = "change" if len(names) > 1 or names[0].endswith("s") else "changes"
    return (
        f"its chunks use {len(array.pipelines)} encodings "
        f"({', '.join(names)} {verb} at {first_files[1]}, unlike {first_files[0]})"
    )


def _list_differing_parts(left: CodecPipeline, right: CodecPipeline) -> list[str]:
    """Return the parts in which two pipelines differ; for CF packing, the attributes."""
    parts = ("dtype", "codecs", "fill", "layout", "flipped")
    differing = [name for name in parts if getattr(left, name) != getattr(right, name)]
    if left.packing == right.packing:
        return differing
    attributes, other_attributes = (
        {} if p.packing is None else p.packing.attributes for p in (left, right)
    )
    names = [
        n
        for n in {**attributes, **other_attributes}
        if repr(attributes.get(n)) != repr(other_attributes.get(n))
    ]
    return differing + (names or ["CF packing"])


def _find_first_file(array: ManifestArray, pipeline: int) -> str:
    """Return the file of the first chunk that uses a pipeline."""
    is_inline = False
    for fragment in array.fragments:
        manifest = fragment.manifest.loaded()
        found = manifest.file[manifest.pipeline == pipeline]
        if (in_files := found[found >= 0]).size:
            return manifest.files[int(in_files[0])].url
        is_inline |= bool((found == INLINE).any())
    return "an inline chunk" if is_inline else "a missing chunk"


def describe_grids(array: ManifestArray, dims: Sequence[Hashable] = ()) -> str:
    """Return the reason why the chunks of an array do not form a regular grid."""
    for axis in range(array.ndim):
        for fragment in array.fragments:
            if fragment.axes[axis].chunk is None:
                slabs = fragment.axes[axis].slabs()
                lengths = ", ".join(map(str, slabs.encoded[:8].tolist()))
                differing = int(np.argmax(slabs.encoded != slabs.encoded[0])) or 1
                first, other = (_find_file_of_slab(fragment, axis, i) for i in (0, differing))
                axis_name = repr(dims[axis]) if dims else f"axis {axis}"
                return (
                    f"chunk lengths along {axis_name} vary ({lengths}, ...; {first} and {other} "
                    f"differ first)"
                )
    files = [_find_file_of_slab(f, 0, 0) for f in array.fragments[:2] if array.ndim]
    files_note = f" (the first two begin with {' and '.join(files)})" if len(files) == 2 else ""
    return (
        f"its {len(array.fragments)} fragments do not lie on one regular chunk grid without gaps"
        f"{files_note}"
    )


def _find_file_of_slab(fragment: Fragment, axis: int, slab: int) -> str:
    """Return the first file with chunks in a slab."""
    manifest = fragment.manifest.take(axis, slice(slab, slab + 1)).loaded()
    files_of_chunks = manifest.file[manifest.file >= 0]
    return manifest.files[int(files_of_chunks[0])].url if files_of_chunks.size else "missing chunks"
