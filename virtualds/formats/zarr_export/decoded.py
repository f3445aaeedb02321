"""Metadata and chunk grids of arrays whose chunks are decoded for plain Zarr."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import Data
from virtualds.chunks.fragment import Fragment
from virtualds.codecs.vlen_text import to_text_objects
from virtualds.errors import UnsupportedError
from virtualds.formats.zarr.data_types import data_type_to_v3, fill_value_to_v3
from virtualds.formats.zarr.v2_types import pack_members, to_packed
from virtualds.formats.zarr.v3_metadata import grid_to_v3
from virtualds.formats.zarr.values import TEXT

CHUNK_BYTES = 2**24
"""Most bytes of a decoded chunk, where its array has no regular chunks."""
UNWIELDY_BYTES = 2**26
"""Larger chunks that are not compressed are cut smaller."""


def build_decoded_metadata(data: Data) -> dict[str, Any]:
    """Return the metadata of decoded values, without the chunk grid.

    Raises
    ------
    UnsupportedError
        Zarr has no such data type.
    """
    text = _is_text(data)
    dtype = to_packed(data.dtype)
    kind = TEXT if text else data_type_to_v3(dtype)
    if kind is None:
        raise UnsupportedError(
            f"its type {data.dtype} has no form in Zarr v3; leave it out with drop_variables"
        )
    fill = data.fill_value if isinstance(data, ManifestArray) else np.zeros((), data.dtype)
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(data.shape),
        "data_type": kind,
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": ""
        if text
        else fill_value_to_v3(pack_members(np.asarray(fill, data.dtype)), dtype),
        "codecs": [_array_to_bytes(dtype, text)],
    }


def _is_text(data: Data) -> bool:
    """Say whether values are strings of any length.

    Raises
    ------
    UnsupportedError
        They are other objects.
    """
    if isinstance(data, ManifestArray) or data.dtype.kind not in "OUT":
        return False
    if isinstance(data, np.ndarray):
        to_text_objects(data)
    elif dict(data.dtype.metadata or {}).get("element_type") is not str:
        raise UnsupportedError(
            f"its type {data.dtype} has no form in Zarr v3; leave it out with drop_variables"
        )
    return True


def _array_to_bytes(dtype: np.dtype[Any], text: bool) -> dict[str, Any]:
    if text:
        return {"name": "vlen-utf8"}
    if dtype.itemsize == 1 or (dtype.kind in "SV" and not dtype.names):
        return {"name": "bytes"}
    return {"name": "bytes", "configuration": {"endian": "little"}}


def list_decoded_grids(data: Data) -> Iterator[dict[str, Any]]:
    """Yield chunk grids for decoded values, best first: the grid of the sources, a regular one."""
    lengths = _find_regular_chunks(data)
    if isinstance(data, ManifestArray):
        if is_unwieldy(data):
            lengths = _cut_smaller(lengths, data.dtype.itemsize)
        elif (own := grid_to_v3(data)) is not None:
            yield own
    yield {"name": "regular", "configuration": {"chunk_shape": lengths}}


def is_unwieldy(array: ManifestArray) -> bool:
    """Say whether an array has large chunks that could be read in parts.

    Readers of Zarr read whole chunks; netCDF files without chunks are one chunk each.
    """
    if any(pipeline.codecs for pipeline in array.pipelines):
        return False
    largest = (
        prod(int(axis.slabs().encoded.max(initial=0)) for axis in fragment.axes)
        for fragment in array.fragments
    )
    return max(largest, default=0) * array.dtype.itemsize > UNWIELDY_BYTES


def _cut_smaller(lengths: list[int], itemsize: int) -> list[int]:
    """Cut chunks along their first axes, so that they stay runs of bytes."""
    lengths = list(lengths)
    for axis, length in enumerate(lengths):
        nbytes = prod(lengths) * itemsize
        if nbytes > CHUNK_BYTES:
            lengths[axis] = max(length * CHUNK_BYTES // nbytes, 1)
    return lengths


def _find_regular_chunks(data: Data) -> list[int]:
    """Return a regular chunk shape that cuts few chunks of the sources.

    An axis that the sources cut regularly keeps their chunks. Along another axis a chunk is as long
    as the longest one of the sources, times as many as `CHUNK_BYTES` holds.
    """
    virtual = isinstance(data, ManifestArray)
    fragments = data.fragments if isinstance(data, ManifestArray) else ()
    lengths = [max(n, 1) if i or virtual else 1 for i, n in enumerate(data.shape)]
    for axis, size in enumerate(data.shape):
        longest = max((int(f.axes[axis].lengths.max(initial=1)) for f in fragments), default=0)
        lengths[axis] = max(min(longest or lengths[axis], size), 1)
    for axis, size in enumerate(data.shape):
        if fragments and _is_aligned(fragments, axis, lengths[axis], size):
            continue
        nbytes = max(prod(lengths) * data.dtype.itemsize, 1)
        lengths[axis] = max(min(lengths[axis] * max(CHUNK_BYTES // nbytes, 1), size), 1)
    return lengths


def _is_aligned(fragments: tuple[Fragment, ...], axis: int, length: int, size: int) -> bool:
    """Say whether chunks begin and end at multiples of a length, or where the array ends."""
    cuts = np.concatenate([f.start[axis] + f.axes[axis].slabs().edges for f in fragments])
    return bool(((cuts % length == 0) | (cuts == size)).all())
