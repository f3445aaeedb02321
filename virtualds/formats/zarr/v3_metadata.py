"""Zarr v3 array metadata to and from our types.

Zarr core specification version 3.0, "Array metadata", and what is registered in zarr-extensions.
Data types and fill values are those of `virtualds.formats.zarr.data_types`, chains of codecs those
of `virtualds.formats.zarr.codecs`; here are the chunk grids, and the check of the metadata as a
whole.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from virtualds.arrays.array import ManifestArray
from virtualds.chunks.alignment import find_mesh_lengths, find_origin, find_regular_chunks
from virtualds.chunks.fragment import ChunkAxis
from virtualds.chunks.projection import Ints
from virtualds.errors import FormatError, UnsupportedError
from virtualds.formats.zarr.codecs import codecs_to_v3, pipeline_from_v3
from virtualds.formats.zarr.data_types import (
    data_type_from_v3,
    data_type_to_v3,
    fill_value_from_v3,
    fill_value_to_v3,
    parse_extension,
)

NEEDED = (
    "zarr_format",
    "node_type",
    "shape",
    "data_type",
    "chunk_grid",
    "chunk_key_encoding",
    "fill_value",
    "codecs",
)
"""Keys that the metadata of an array must have."""
OPTIONAL = ("attributes", "dimension_names", "storage_transformers")
GRIDS = {"regular": "chunk_shape", "rectilinear": "chunk_shapes"}
"""Known grids, and the key of chunk lengths in their configurations."""


# ---------------------------------------------------------------------- as a whole


def check_zarr_v3(metadata: Any) -> None:
    """Refuse an invalid ``zarr.json`` of an array.

    Raises
    ------
    FormatError
        A key is missing, or shape, codecs or names of dimensions are invalid.
    UnsupportedError
        There is an unknown key that readers must understand.
    """
    if not isinstance(metadata, Mapping):
        raise FormatError(f"zarr.json: {metadata!r} is not an object; the metadata is damaged")
    for key, value in (("zarr_format", 3), ("node_type", "array")):
        if (found := metadata.get(key)) != value:
            raise FormatError(f"zarr.json: its {key} is {found!r}, not {value!r}")
    if absent := set(NEEDED) - metadata.keys():
        raise FormatError(f"zarr.json: there is no {min(absent)!r}; the metadata is damaged")
    _check_shape(metadata["shape"], metadata.get("dimension_names"))
    for key, kind in (("codecs", list | tuple), ("attributes", Mapping)):
        if key in metadata and not isinstance(metadata[key], kind):
            raise FormatError(f"zarr.json: {key} {metadata[key]!r}; the metadata is damaged")
    check_extras(metadata, {*NEEDED, *OPTIONAL})


def check_extras(metadata: Mapping[str, Any], known: Collection[str]) -> None:
    """Refuse unknown keys, unless they say that readers need not understand them.

    Raises
    ------
    FormatError
        These are no keys and values.
    UnsupportedError
        There is an unknown key that readers must understand.
    """
    if not isinstance(metadata, Mapping):
        raise FormatError(f"zarr.json: {metadata!r:.80} is no object; the metadata is damaged")
    for key in sorted(metadata.keys() - set(known)):
        value = metadata[key]
        if not isinstance(value, Mapping) or value.get("must_understand") is not False:
            raise UnsupportedError(
                f"zarr.json: {key!r} is unknown to virtualds, and readers must understand it; "
                f"update virtualds, or open the data with the library that wrote them"
            )


def _check_shape(shape: Any, names: Any) -> None:
    if not isinstance(shape, list | tuple) or any(type(n) is not int or n < 0 for n in shape):
        raise FormatError(f"zarr.json: shape {shape!r}; the metadata is damaged")
    if names is not None and not (
        isinstance(names, list | tuple)
        and len(names) == len(shape)
        and all(name is None or isinstance(name, str) for name in names)
    ):
        raise FormatError(
            f"zarr.json: dimension_names {names!r} of shape {shape!r}; the metadata is damaged"
        )


# ---------------------------------------------------------------------- grids


def grid_to_v3(array: ManifestArray) -> dict[str, Any] | None:
    """Return the chunk grid on which all fragments of an array lie, or None.

    It is ``regular`` where possible, else ``rectilinear``. None where chunks have hidden elements,
    where fragments are cut in different ways, and where gaps between fragments have another value
    than missing chunks.
    """
    if not array.gaps_read_as_missing:
        return None
    chunks = find_regular_chunks(array.shape, array.fragments)
    if chunks is None and not array.size:
        # fragments without elements have no chunks that could lie anywhere
        chunks = find_regular_chunks(array.shape, ())
    if chunks is not None:
        return {"name": "regular", "configuration": {"chunk_shape": list(chunks)}}
    lengths = find_mesh_lengths(array.shape, array.fragments)
    if lengths is None:
        return None
    shapes = [_encode_runs(one) for one in lengths]
    return {"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": shapes}}


def _encode_runs(lengths: Ints) -> list[int | list[int]]:
    """Return numbers, with runs of one number as pairs of the number and its count."""
    runs = ((value, len(list(run))) for value, run in groupby(lengths.tolist()))
    return [value if count == 1 else [value, count] for value, count in runs]


def axes_from_v3(shape: Sequence[int], chunk_grid: Any) -> tuple[ChunkAxis, ...]:
    """Return the chunk axes of an array from its ``chunk_grid``.

    Chunks beyond the end of an axis are left out.

    Raises
    ------
    FormatError
        The grid does not fit the shape, or is invalid.
    UnsupportedError
        The grid is unknown.

    Examples
    --------
    >>> months = {"kind": "inline", "chunk_shapes": [[31, 28, [31, 2]]]}
    >>> (axis,) = axes_from_v3((118,), {"name": "rectilinear", "configuration": months})
    >>> axis.lengths.tolist()
    [31, 28, 31, 28]
    """
    name, config = parse_extension(chunk_grid, "chunk_grid")
    if name not in GRIDS:
        raise UnsupportedError(
            f"chunk_grid {name!r}: it is not one of {sorted(GRIDS)}; open the data with the "
            f"library "
            f"that wrote them"
        )
    if name == "rectilinear" and config.get("kind") != "inline":
        raise UnsupportedError(
            f"chunk_grid 'rectilinear' of kind {config.get('kind')!r}: only 'inline' is known; "
            f"open the data with the library that wrote them"
        )
    cuts = config.get(GRIDS[name])
    if not isinstance(cuts, Sequence) or isinstance(cuts, str) or len(cuts) != len(shape):
        raise FormatError(
            f"chunk_grid {name!r}: {GRIDS[name]} {cuts!r} of shape {list(shape)}; the metadata is "
            f"damaged"
        )
    cut_axis = _make_regular_axis if name == "regular" else _cut_axis
    pairs = zip(shape, cuts, strict=True)
    return tuple(cut_axis(size, cut, axis) for axis, (size, cut) in enumerate(pairs))


def _make_regular_axis(size: int, length: Any, axis: int) -> ChunkAxis:
    # along empty axes, some writers have chunks of length 0
    if type(length) is not int or length < min(size, 1):
        raise _cut_error(size, length, axis)
    return ChunkAxis.regular(size, max(length, 1))


def _cut_axis(size: int, cut: Any, axis: int) -> ChunkAxis:
    """Return an axis with chunks of one length, or of listed lengths."""
    if not isinstance(cut, list | tuple):
        return _make_regular_axis(size, cut, axis)
    values, counts, total = [], [], 0
    for item in cut:
        value, count = item if isinstance(item, list | tuple) and len(item) == 2 else (item, 1)
        if any(type(n) is not int or n < 1 for n in (value, count)):
            raise _cut_error(size, cut, axis)
        # chunks beyond the end are not counted
        shown = min(count, max(-(-(size - total) // value), 0))
        values.append(value)
        counts.append(shown)
        total += shown * value
    if total < size:
        raise _cut_error(size, cut, axis)
    if len({v for v, n in zip(values, counts, strict=True) if n}) == 1:
        return ChunkAxis.regular(size, next(v for v, n in zip(values, counts, strict=True) if n))
    stored = np.repeat(np.asarray(values, np.int64), counts)
    edges = np.minimum(np.concatenate([[0], np.cumsum(stored)]), size)
    return ChunkAxis.from_slabs(np.diff(edges), stored)


def _cut_error(size: int, cut: Any, axis: int) -> FormatError:
    return FormatError(
        f"chunk_grid: chunks of {cut!r} along axis {axis} do not cover its {size} elements; the "
        f"metadata is damaged"
    )


def find_origins(array: ManifestArray, axes: tuple[ChunkAxis, ...]) -> list[tuple[int, ...]]:
    """Return where every fragment begins in a grid, in chunks per axis."""
    return [find_origin(fragment, axes) for fragment in array.fragments]


__all__ = [
    "axes_from_v3",
    "check_extras",
    "check_zarr_v3",
    "codecs_to_v3",
    "data_type_from_v3",
    "data_type_to_v3",
    "fill_value_from_v3",
    "fill_value_to_v3",
    "find_origins",
    "grid_to_v3",
    "pipeline_from_v3",
]
