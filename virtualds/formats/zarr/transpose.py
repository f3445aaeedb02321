"""The codecs of Zarr v3 that only move axes: ``transpose`` and ``reshape``.

``transpose`` (codec specification, version 1.0) permutes axes; ``reshape``, registered in
zarr-extensions, gives the same elements, in their order, other axes. A pipeline knows only the
former, as its layout. The latter sets the shape that a codec after it encodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from virtualds.errors import FormatError, UnsupportedError
from virtualds.formats.zarr.data_types import parse_extension


@dataclass(frozen=True)
class StoredAxes:
    """The axes of an array after some codecs.

    Parameters
    ----------
    layout : tuple of int
        The axis of the array for each; if reshaped, for each before that.
    chunk : tuple of int or None
        Elements of a chunk along each; None if chunks differ, or if it is unknown.
    reshaped : bool
        Whether they are no longer axes of the array.
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
        known = isinstance(chunk, list | tuple) and len(chunk) == ndim
        whole = known and all(type(n) is int and n >= 0 for n in chunk or ())
        return cls(tuple(range(ndim)), tuple(chunk or ()) if whole else None)


def _transpose(axes: StoredAxes, config: Mapping[str, Any]) -> StoredAxes:
    if axes.reshaped:
        raise UnsupportedError(
            "codec 'transpose' behind 'reshape': axes that are not the array's are not "
            "permuted; open the data with a library that knows both"
        )
    order = parse_order(config, len(axes.layout))
    chunk = None if axes.chunk is None else tuple(axes.chunk[i] for i in order)
    return replace(axes, layout=tuple(axes.layout[i] for i in order), chunk=chunk)


def parse_order(config: Mapping[str, Any], ndim: int) -> Sequence[int]:
    """Return the order of the codec ``transpose``; drafts of Zarr v3 had letters for two."""
    order: Any = config.get("order")
    axes = list(range(ndim))
    if isinstance(order, str):
        order = {"C": axes, "F": axes[::-1]}.get(order, order)
    whole = isinstance(order, list | tuple) and all(type(axis) is int for axis in order)
    if not whole or sorted(order) != axes:
        raise FormatError(
            f"codec 'transpose': order {order!r} of {ndim} axes; the metadata is damaged"
        )
    found: Sequence[int] = order
    return found


def _reshape(axes: StoredAxes, config: Mapping[str, Any]) -> StoredAxes:
    if axes.chunk is None:
        raise UnsupportedError(
            "codec 'reshape': it needs chunks of one shape, on a regular grid; open the data with "
            "a library that knows it"
        )
    return replace(axes, chunk=compute_shape(config, axes.chunk), reshaped=True)


def compute_shape(config: Mapping[str, Any], before: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape that the codec ``reshape`` gives to chunks.

    Raises
    ------
    FormatError
        The numbers of elements differ, or the configuration is invalid.

    Examples
    --------
    >>> compute_shape({"shape": [[0, 1], -1, 3]}, (100, 50, 64, 3))
    (5000, 64, 3)
    """
    said = config.get("shape")
    items = said if isinstance(said, list | tuple) and config.keys() == {"shape"} else [None]
    lengths = [_find_length(item, before) for item in items]
    rest = prod(n for n in lengths if n is not None and n != -1)
    if lengths.count(-1) == 1 and rest and prod(before) % rest == 0:
        lengths[lengths.index(-1)] = prod(before) // rest
    found = tuple(n for n in lengths if n is not None and n != -1)
    named = [axis for item in items if isinstance(item, list | tuple) for axis in item]
    if (
        len(found) != len(lengths)
        or prod(found) != prod(before)
        or named != sorted(set(named))
        or any(_is_misplaced(items, i, found, before) for i in range(len(items)))
    ):
        raise FormatError(
            f"codec 'reshape': {dict(config)} of chunks of {before}; the metadata is damaged"
        )
    return found


def _find_length(item: Any, before: tuple[int, ...]) -> int | None:
    """Return the length of an axis in a configuration; -1 is the rest, None is invalid."""
    if isinstance(item, list | tuple):
        whole = all(type(axis) is int and 0 <= axis < len(before) for axis in item)
        return prod(before[axis] for axis in item) if whole else None
    return item if type(item) is int and (item == -1 or item > 0) else None


def _is_misplaced(
    items: Sequence[Any], i: int, found: tuple[int, ...], before: tuple[int, ...]
) -> bool:
    """Say whether an axis made of others lies elsewhere than they did."""
    axes = items[i]
    if not isinstance(axes, list | tuple) or not axes:
        return False
    return prod(found[:i]) != prod(before[: axes[0]]) or (
        prod(found[i + 1 :]) != prod(before[axes[-1] + 1 :])
    )


AXES: dict[str, Callable[[StoredAxes, Mapping[str, Any]], StoredAxes]] = {
    "reshape": _reshape,
    "transpose": _transpose,
}
"""Codecs that only move axes, by name."""
