"""Virtual arrays of values that lie one after the other in a file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

import numpy as np

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestVariable, describe_left_out
from virtualds.bounds import demand_axes
from virtualds.chunks.fragment import LONGEST_AXIS, ChunkAxis, Fragment
from virtualds.chunks.manifest import ChunkManifest
from virtualds.codecs.pipeline import CodecPipeline
from virtualds.errors import FormatError, UnsupportedError
from virtualds.source_file import SourceFile
from virtualds.urls import path_or_url


def build_flat_array(
    source: SourceFile,
    offset: int,
    dtype: np.dtype[Any],
    shape: Sequence[int],
    *,
    order: str = "C",
    checksum: int = 0,
) -> ManifestArray:
    """Return the array whose values lie in one piece of a file; ``checksum`` is that of the piece.

    Raises
    ------
    FormatError
        The file ends before the array does, or the shape is none.
    UnsupportedError
        The values are Python objects, or have no bytes, or too many axes.
    """
    shape = tuple(shape)
    demand_axes(len(shape), "an array")
    if any(type(n) is not int or not 0 <= n < LONGEST_AXIS for n in shape):
        raise FormatError(
            f"the shape {shape!r:.200} is not a shape; the file is damaged, fetch it again"
        )
    if dtype.hasobject or not dtype.itemsize:
        reason = "Python objects" if dtype.hasobject else "without bytes"
        raise UnsupportedError(
            f"values of dtype {dtype} are {reason}; write the array with another dtype, or leave "
            f"it out with drop_variables"
        )
    nbytes = dtype.itemsize * prod(shape)
    if source.size is not None and offset + nbytes > source.size:
        raise FormatError(
            f"an array of {shape} {dtype} at byte {offset} reaches to byte {offset + nbytes}, and "
            f"the file has {source.size}; it is truncated, or of another shape or type"
        )
    axes = tuple(ChunkAxis.regular(n, max(n, 1)) for n in shape)
    grid = tuple(axis.nchunks for axis in axes)
    manifest = (
        ChunkManifest.build(grid, files=(source,), offset=offset, length=nbytes, checksum=checksum)
        if nbytes
        else ChunkManifest.missing(grid)
    )
    stored = tuple(range(len(shape)))
    pipeline = CodecPipeline(dtype, layout=stored[::-1] if order == "F" else stored)
    return ManifestArray.of_fragment(Fragment.whole(axes, manifest), pipeline)


def build_flat_variable(
    data: ManifestArray, dims: tuple[str, ...], source: SourceFile
) -> ManifestVariable:
    """Return a variable of an array from `build_flat_array`, with its encoding."""
    url = source.url
    encoding = {
        "dtype": data.dtype,
        "source": path_or_url(url),
        "original_shape": data.shape,
    }
    return ManifestVariable(dims, data, {}, encoding)


def keep_bytes_apart(variables: Iterable[ManifestVariable]) -> dict[str, ManifestVariable]:
    """Return what a group leaves out, so that xarray joins no single bytes: numpy does not."""
    dims = {v.dims[-1] for v in variables if v.data.dtype == "S1" and v.dims}
    return {f"the axis {d}": describe_left_out((d,), np.dtype("V1"), {}) for d in sorted(dims)}


def number_axes(name: str, ndim: int) -> tuple[str, ...]:
    """Return numbered names for the axes of an array.

    Examples
    --------
    >>> number_axes("t", 2), number_axes("", 2)
    (('t_dim_0', 't_dim_1'), ('dim_0', 'dim_1'))
    """
    prefix = f"{name}_" if name else ""
    return tuple(f"{prefix}dim_{axis}" for axis in range(ndim))
