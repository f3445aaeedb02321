"""Convert codec chains of Zarr v3 to pipelines and back.

A chain converts arrays to arrays, the last array to bytes, and bytes to bytes (Zarr core
specification version 3.0, "Chunk encoding"). A pipeline works on bytes only: its layout describes
where each axis is stored, and its data type has the byte order.

Two codecs only change axes. ``transpose`` (codec specification, version 1.0) permutes them;
``reshape``, registered in zarr-extensions, arranges the same elements, in the same order, along
other axes. A pipeline represents ``transpose`` by its layout; ``reshape`` only determines the shape
that a later codec encodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from virtualds.codecs import codec_from_zarr_v3, find_maker, is_array_to_bytes_name
from virtualds.codecs.codec import Codec, Order, ShapedCodec
from virtualds.codecs.pipeline import CodecPipeline
from virtualds.errors import FormatError, UnsupportedError, make_damage_error
from virtualds.formats.zarr.data_types import (
    data_type_from_v3,
    data_type_to_v3,
    fill_value_from_v3,
    parse_extension,
)

Entry = tuple[str, Mapping[str, Any]]
"""The name and configuration of one codec."""

ORDERS: dict[str, Order] = {"little": "<", "big": ">"}
BYTES_CODEC = ("bytes", "endian")
"""The codec that converts an array to bytes, and its name before Zarr v3 was final."""
OTHER_SERIALISERS = {
    "sharding_indexed",
    "vlen-array",
    "vlen-bytes",
    "vlen-utf8",
}
"""Other codecs that convert an array to bytes, which no `CodecPipeline` represents."""


# ---------------------------------------------------------------------- writing


def codecs_to_v3(
    pipeline: CodecPipeline, ndim: int, chunk: Sequence[int] | None = None
) -> list[dict[str, Any]] | None:
    """Return the codec chain of a pipeline, or None if there is none.

    ``chunk`` is the shape of chunks if all have the same shape. There is no chain for packed
    values, data types that Zarr v3 lacks, compound types of mixed byte order, stored axes that the
    array lacks or flips, and array filters after other codecs. There is also none for a serialising
    codec after bytes-to-bytes codecs or on big-endian numbers, permuted axes with a codec that
    depends on memory order, and a codec that needs one chunk shape if there are several.

    Examples
    --------
    >>> codecs_to_v3(CodecPipeline(np.dtype(">i2"), layout=(0, 1)), 2)
    [{'name': 'bytes', 'configuration': {'endian': 'big'}}]
    """
    order = _find_permutation(pipeline, ndim)
    if pipeline.packing is not None or data_type_to_v3(pipeline.dtype) is None or order is None:
        return None
    is_permuted = order != list(range(ndim))
    count = sum(codec.is_array_to_array for codec in pipeline.codecs)
    filters, rest = pipeline.codecs[:count], pipeline.codecs[count:]
    if any(codec.is_array_to_array for codec in rest) or any(
        codec.is_array_to_bytes for codec in rest[1:]
    ):
        return None
    # other readers would filter elements in memory order instead of the order of axes
    if is_permuted and any(codec.uses_memory_order for codec in pipeline.codecs):
        return None
    has_serialiser = bool(rest) and rest[0].is_array_to_bytes
    reshape_entries = _find_reshaping(rest[0], order, chunk) if has_serialiser else []
    if reshape_entries is None:
        return None
    stored = _find_filtered_dtype(pipeline.dtype, [*filters, *rest[:has_serialiser]])
    if stored is None or (endian := _find_endian(stored)) is None:
        return None
    # zarr-python before 3.2 requires a byte order whenever the data type has one
    endian = endian or _find_endian(pipeline.dtype)
    itemsize = pipeline.dtype.itemsize
    if has_serialiser and endian == "big":
        return None
    bytes_entry = (
        {"name": "bytes", "configuration": {"endian": endian}} if endian else {"name": "bytes"}
    )
    return [
        *([{"name": "transpose", "configuration": {"order": order}}] if is_permuted else []),
        *(codec.to_chain_entry(itemsize) for codec in filters),
        *reshape_entries,
        *([] if has_serialiser else [bytes_entry]),
        *(codec.to_chain_entry(itemsize) for codec in rest),
    ]


def _find_reshaping(
    codec: Codec, order: Sequence[int], chunk: Sequence[int] | None
) -> list[dict[str, Any]] | None:
    """Return the codecs that reshape chunks to the shape that a codec encodes, or None."""
    if not isinstance(codec, ShapedCodec):
        return []
    stored = None if chunk is None else tuple(chunk[i] for i in order)
    if stored is None or prod(stored) != prod(codec.shape):
        return None
    if stored == codec.shape:
        return []
    return [{"name": "reshape", "configuration": {"shape": list(codec.shape)}}]


def _find_permutation(pipeline: CodecPipeline, ndim: int) -> list[int] | None:
    """Return the axis of the array for each stored axis, or None if that is impossible.

    It is impossible for stored axes that the array lacks or flips. Axes that are not stored have
    one element per chunk and may be anywhere: each is put after the previous axis.
    """
    order = [entry for entry in pipeline.layout if isinstance(entry, int)]
    if len(order) != len(pipeline.layout) or len(set(order)) != len(order) or pipeline.flipped:
        return None
    for axis in range(ndim):
        if axis not in order:
            order.insert(order.index(axis - 1) + 1 if axis else 0, axis)
    return order


def _find_endian(dtype: np.dtype[Any]) -> str | None:
    """Return ``endian`` of the codec ``bytes`` for a dtype, or "" if it has no byte order.

    Returns None for a compound type of mixed byte order.
    """
    if not _has_byte_order(dtype):
        return ""
    names = (name for name, order in ORDERS.items() if dtype.newbyteorder(order) == dtype)
    return next(names, None)


def _has_byte_order(dtype: np.dtype[Any]) -> bool:
    """Return whether the codec ``bytes`` needs the byte order of a dtype.

    zarr-python requires it if a member of a compound type has more than one byte.
    """
    if dtype.names is not None:
        members = [dtype[name] for name in dtype.names]
        return any(_has_byte_order(member) or member.itemsize > 1 for member in members)
    return dtype.newbyteorder("<") != dtype.newbyteorder(">")


# ---------------------------------------------------------------------- array filters


def _find_filtered_dtype(dtype: np.dtype[Any], filters: Sequence[Codec]) -> np.dtype[Any] | None:
    """Return the dtype to which filters convert a dtype, or None if they expect another dtype."""
    filtered: np.dtype[Any] | None = dtype
    for codec in filters:
        filtered = None if filtered is None else codec.get_encoded_dtype(filtered)
    return filtered


# ---------------------------------------------------------------------- reading


def pipeline_from_v3(metadata: Mapping[str, Any]) -> CodecPipeline:
    """Return the pipeline of an array, from its ``zarr.json``."""
    dtype = data_type_from_v3(metadata["data_type"])
    fill = fill_value_from_v3(metadata["fill_value"], dtype)
    chain = [parse_extension(entry, "codec") for entry in metadata["codecs"]]
    position = _find_serialiser(chain)
    axes = StoredAxes.of_array(len(metadata["shape"]), metadata.get("chunk_grid"))
    axes, filters = _read_array_codecs(chain[:position], dtype, axes)
    layout, filtered_dtype = axes.layout, _find_filtered_dtype(dtype, filters) or dtype
    # other serialising codecs have no byte order
    has_serialiser = chain[position][0] not in BYTES_CODEC
    later_entries = chain[position + (not has_serialiser) :]
    later_codecs = [
        codec_from_zarr_v3(*entry, filtered_dtype, axes.chunk) for entry in later_entries
    ]
    if any(codec.is_array_to_array for codec in later_codecs):
        raise _make_misplaced_error(chain)
    if layout != tuple(range(len(layout))) and any(
        c.uses_memory_order for c in (*filters, *later_codecs)
    ):
        # numcodecs reads elements in memory order, but returns them in the order of axes
        raise UnsupportedError(
            f"codecs {[name for name, _ in chain]}: filters of arrays whose axes are permuted are "
            f"not decoded; open the data with zarr-python"
        )
    order = "<" if has_serialiser else _read_order(chain[position][1], filtered_dtype)
    # prefer the dtype whose byte order is implicit, since all readers support it
    stored = dtype if dtype.newbyteorder(order) == dtype else dtype.newbyteorder(order)
    native_fill = np.asarray(fill, dtype)
    # casts of numpy do not change the byte order of times without a unit
    fill_bytes = (native_fill if stored == dtype else native_fill.byteswap()).tobytes()
    ordered_filters = [codec.with_byte_order(order) for codec in filters]
    return CodecPipeline(stored, (*ordered_filters, *later_codecs), fill_bytes, layout)


def _find_serialiser(chain: Sequence[Entry]) -> int:
    """Return the position in a chain of the codec that converts an array to bytes."""
    for name, _ in chain:
        if name in OTHER_SERIALISERS:
            raise UnsupportedError(
                f"codec {name!r}: virtualds does not decode it in such an array; open the data "
                f"with zarr-python"
            )
    positions = [number for number, (name, _) in enumerate(chain) if _is_serialiser(name)]
    if len(positions) == 1:
        return positions[0]
    for entry in chain:
        # an unknown name may be that of another serialising codec
        if entry[0] not in AXIS_CODECS and not _is_serialiser(entry[0]):
            find_maker("zarr_v3", entry[0])
    raise _make_misplaced_error(chain)


def _is_serialiser(name: str) -> bool:
    """Return whether a codec converts an array to bytes."""
    return name in BYTES_CODEC or (name not in AXIS_CODECS and is_array_to_bytes_name(name))


def _make_misplaced_error(chain: Sequence[Entry]) -> FormatError:
    """Return the error for a chain whose codecs are not in a valid order."""
    return make_damage_error(
        f"codecs {[name for name, _ in chain]}: exactly one must convert an array to bytes, "
        f"after array-to-array codecs and before bytes-to-bytes codecs",
        "metadata",
    )


def _read_array_codecs(
    chain: Sequence[Entry], dtype: np.dtype[Any], axes: StoredAxes
) -> tuple[StoredAxes, list[Codec]]:
    """Return the stored axes, and the array filters before the codec ``bytes``."""
    filters: list[Codec] = []
    current = dtype
    for name, config in chain:
        if name in AXIS_CODECS:
            axes = AXIS_CODECS[name](axes, config)
            continue
        codec = codec_from_zarr_v3(name, config, current)
        if not codec.is_array_to_array:
            raise _make_misplaced_error(chain)
        codec = codec.with_byte_order("=")
        if (filtered := codec.get_encoded_dtype(current)) is None:
            raise UnsupportedError(
                f"codec {name!r}: {dict(config)} expects another data type than {current}; open "
                f"the data with zarr-python"
            )
        filters.append(codec)
        current = filtered
    return axes, filters


def _read_order(config: Mapping[str, Any], dtype: np.dtype[Any]) -> Order:
    """Return the byte order in the configuration of the codec ``bytes``."""
    endian = config.get("endian")
    # compound types were formerly written without ``endian``, always little-endian
    if endian is None and (dtype.names is not None or not _has_byte_order(dtype)):
        return "<"
    if endian not in ORDERS:
        raise make_damage_error(
            f"codec 'bytes': endian {endian!r} of {dtype}, not one of {list(ORDERS)}", "metadata"
        )
    return ORDERS[endian]


@dataclass(frozen=True)
class StoredAxes:
    """The axes of an array after some codecs of a chain.

    ``layout`` is the axis of the array for each stored axis, before any ``reshape``. ``chunk`` is
    the shape of chunks along the stored axes, or None if it varies or is unknown.
    """

    layout: tuple[int, ...]
    chunk: tuple[int, ...] | None = None
    reshaped: bool = False

    @classmethod
    def of_array(cls, ndim: int, chunk_grid: Any) -> StoredAxes:
        """Return the axes of an array, with its chunk shape if there is a ``chunk_grid``."""
        if chunk_grid is None:
            return cls(tuple(range(ndim)))
        name, config = parse_extension(chunk_grid, "chunk_grid")
        chunk = config.get("chunk_shape") if name == "regular" else None
        has_shape = isinstance(chunk, list | tuple) and len(chunk) == ndim
        is_valid = has_shape and all(type(n) is int and n >= 0 for n in chunk or ())
        return cls(tuple(range(ndim)), tuple(chunk or ()) if is_valid else None)


def _transpose(axes: StoredAxes, config: Mapping[str, Any]) -> StoredAxes:
    """Return the axes after the codec ``transpose``."""
    if axes.reshaped:
        raise UnsupportedError(
            "codec 'transpose' after 'reshape': virtualds does not permute reshaped axes; open "
            "the data with a library that supports both"
        )
    order = parse_order(config, len(axes.layout))
    chunk = None if axes.chunk is None else tuple(axes.chunk[i] for i in order)
    return replace(axes, layout=tuple(axes.layout[i] for i in order), chunk=chunk)


def parse_order(config: Mapping[str, Any], ndim: int) -> Sequence[int]:
    """Return the order of the codec ``transpose``; drafts of Zarr v3 also had "C" and "F"."""
    order: Any = config.get("order")
    axes = list(range(ndim))
    if isinstance(order, str):
        order = {"C": axes, "F": axes[::-1]}.get(order, order)
    is_valid = isinstance(order, list | tuple) and all(type(axis) is int for axis in order)
    if not is_valid or sorted(order) != axes:
        raise make_damage_error(f"codec 'transpose': order {order!r} of {ndim} axes", "metadata")
    permutation: Sequence[int] = order
    return permutation


def _reshape(axes: StoredAxes, config: Mapping[str, Any]) -> StoredAxes:
    """Return the axes after the codec ``reshape``."""
    if axes.chunk is None:
        raise UnsupportedError(
            "codec 'reshape': it needs chunks of one shape, on a regular grid; open the data with "
            "a library that supports it"
        )
    return replace(axes, chunk=compute_shape(config, axes.chunk), reshaped=True)


def compute_shape(config: Mapping[str, Any], before: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape to which the codec ``reshape`` reshapes chunks.

    Examples
    --------
    >>> compute_shape({"shape": [[0, 1], -1, 3]}, (100, 50, 64, 3))
    (5000, 64, 3)
    """
    declared = config.get("shape")
    items = (
        declared if isinstance(declared, list | tuple) and config.keys() == {"shape"} else [None]
    )
    lengths = [_find_length(item, before) for item in items]
    known_size = prod(n for n in lengths if n is not None and n != -1)
    if lengths.count(-1) == 1 and known_size and prod(before) % known_size == 0:
        lengths[lengths.index(-1)] = prod(before) // known_size
    shape = tuple(n for n in lengths if n is not None and n != -1)
    merged_axes = [axis for item in items if isinstance(item, list | tuple) for axis in item]
    if (
        len(shape) != len(lengths)
        or prod(shape) != prod(before)
        or merged_axes != sorted(set(merged_axes))
        or any(_is_misplaced(items, i, shape, before) for i in range(len(items)))
    ):
        raise make_damage_error(
            f"codec 'reshape': {dict(config)} of chunks of {before}", "metadata"
        )
    return shape


def _find_length(item: Any, before: tuple[int, ...]) -> int | None:
    """Return the length of an axis in a configuration: -1 for the remainder, None if invalid."""
    if isinstance(item, list | tuple):
        is_valid = all(type(axis) is int and 0 <= axis < len(before) for axis in item)
        return prod(before[axis] for axis in item) if is_valid else None
    return item if type(item) is int and (item == -1 or item > 0) else None


def _is_misplaced(
    items: Sequence[Any], i: int, shape: tuple[int, ...], before: tuple[int, ...]
) -> bool:
    """Return whether an axis merged from others is not at their position."""
    axes = items[i]
    if not isinstance(axes, list | tuple) or not axes:
        return False
    return prod(shape[:i]) != prod(before[: axes[0]]) or (
        prod(shape[i + 1 :]) != prod(before[axes[-1] + 1 :])
    )


AXIS_CODECS: dict[str, Callable[[StoredAxes, Mapping[str, Any]], StoredAxes]] = {
    "reshape": _reshape,
    "transpose": _transpose,
}
"""Codecs that only change axes, by name."""
