"""What numpy's functions do with virtual arrays: the table of `NUMPY_FUNCTIONS`.

A function that is not listed, or that returns `NotImplemented`, gets the values.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import reduce
from math import prod
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from numpy.lib.array_utils import normalize_axis_tuple

from virtualds.array import NUMPY_FUNCTIONS, ManifestArray, same_scalar
from virtualds.concatenation import concatenate as join_arrays
from virtualds.errors import CombineError
from virtualds.fragment import runs_of
from virtualds.grid import Ints

Function = TypeVar("Function", bound=Callable[..., Any])

FREE_SEGMENTS = 64
"""Stretches that an integer index may have and stay virtual, however few chunks it meets."""


def implements(*functions: Callable[..., Any]) -> Callable[[Function], Function]:
    """Enter a function in the table under numpy's functions."""

    def enter(function: Function) -> Function:
        for numpy_function in functions:
            NUMPY_FUNCTIONS[numpy_function] = function
        return function

    return enter


# ---------------------------------------------------------------------- joining


@implements(np.concatenate)
def concatenate(
    arrays: Sequence[Any],
    axis: int | None = 0,
    out: Any = None,
    *,
    dtype: Any = None,
    casting: Any = None,
) -> Any:
    """Lay arrays end to end; arrays in memory join as inline chunks."""
    if axis is None or out is not None or dtype is not None or casting is not None:
        return NotImplemented
    if any(np.dtype(a.dtype).hasobject for a in arrays):
        return NotImplemented
    virtual = [
        a if isinstance(a, ManifestArray) else ManifestArray.from_values(np.asarray(a))
        for a in arrays
    ]
    return join_arrays(virtual, axis)


@implements(np.stack)
def stack(arrays: Sequence[Any], axis: int = 0, out: Any = None, **kwargs: Any) -> Any:
    """Lay arrays side by side along a new axis."""
    if out is not None or kwargs:
        return NotImplemented
    shapes = {a.shape for a in arrays}
    if len(shapes) > 1:
        raise CombineError(f"stack: arrays of one shape are needed, got {sorted(shapes)}")
    axis = axis % (arrays[0].ndim + 1)
    return concatenate([expand_dims(a, axis) for a in arrays], axis)


# ---------------------------------------------------------------------- shape


@implements(np.expand_dims)
def expand_dims(array: Any, axis: int | Sequence[int]) -> Any:
    """Insert axes of one element."""
    if not isinstance(array, ManifestArray):
        return np.expand_dims(array, axis)
    axes = normalize_axis_tuple(axis, array.ndim + np.size(axis))
    for place in sorted(axes):
        array = array.insert_axis(place)
    return array


@implements(np.squeeze)
def squeeze(array: ManifestArray, axis: int | Sequence[int] | None = None) -> ManifestArray:
    """Remove axes of one element."""
    if axis is None:
        axes = [i for i, n in enumerate(array.shape) if n == 1]
    else:
        axes = list(normalize_axis_tuple(axis, array.ndim))
    if long := [i for i in axes if array.shape[i] != 1]:
        raise ValueError(f"squeeze: axes {long} of {array.shape} have more than one element")
    for i in sorted(axes, reverse=True):
        array = array.drop_axis(i)
    return array


@implements(np.transpose, np.permute_dims)
def transpose(array: ManifestArray, axes: Sequence[int] | None = None) -> ManifestArray:
    """Permute the axes."""
    return array.transpose() if axes is None else array.transpose(tuple(axes))


@implements(np.moveaxis)
def moveaxis(array: ManifestArray, source: Any, destination: Any) -> ManifestArray:
    """Move axes to new places."""
    origin = normalize_axis_tuple(source, array.ndim)
    target = normalize_axis_tuple(destination, array.ndim)
    axes = [i for i in range(array.ndim) if i not in origin]
    for place, axis in sorted(zip(target, origin, strict=True)):
        axes.insert(place, axis)
    return array.transpose(tuple(axes))


@implements(np.swapaxes)
def swapaxes(array: ManifestArray, axis1: int, axis2: int) -> ManifestArray:
    """Exchange two axes."""
    order = list(range(array.ndim))
    order[axis1], order[axis2] = order[axis2], order[axis1]
    return array.transpose(tuple(order))


@implements(np.broadcast_to)
def broadcast_to(array: ManifestArray, shape: int | Sequence[int], subok: bool = False) -> Any:
    """Repeat the array along new leading axes and axes of one element."""
    return array.broadcast_to((shape,) if isinstance(shape, int) else tuple(shape))


@implements(np.reshape)
def reshape(array: ManifestArray, /, shape: Any, *args: Any, **kwargs: Any) -> Any:
    """Insert or remove axes of one element; any other reshape reads."""
    wanted = (shape,) if isinstance(shape, int | np.integer) else tuple(shape)
    if args or kwargs or -1 in wanted or 0 in array.shape:
        return NotImplemented
    if [n for n in wanted if n != 1] != [n for n in array.shape if n != 1]:
        return NotImplemented
    array = squeeze(array)
    for axis, n in enumerate(wanted):
        if n == 1:
            array = array.insert_axis(axis)
    return array


# ---------------------------------------------------------------------- dtype and filling


@implements(np.result_type)
def result_type(*arrays_and_dtypes: Any) -> np.dtype[Any]:
    """Return the dtype that holds all."""
    return np.result_type(
        *(a.dtype if isinstance(a, ManifestArray) else a for a in arrays_and_dtypes)
    )


@implements(np.can_cast)
def can_cast(from_: Any, to: Any, casting: Any = "safe") -> bool:
    """Say whether a cast is allowed."""
    return np.can_cast(getattr(from_, "dtype", from_), to, casting)


@implements(np.full_like)
def full_like(
    array: ManifestArray,
    fill_value: Any,
    dtype: Any = None,
    *args: Any,
    shape: Any = None,
    **kwargs: Any,
) -> Any:
    """Return an array of one value, without a byte behind it."""
    kind = np.dtype(array.dtype if dtype is None else dtype)
    if np.ndim(fill_value) or kind.hasobject:
        return np.full(array.shape if shape is None else shape, fill_value, kind)
    return ManifestArray.full(array.shape if shape is None else shape, fill_value, kind)


@implements(np.zeros_like, np.empty_like)
def zeros_like(array: ManifestArray, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
    """Return an array of zeros."""
    kind = np.dtype(array.dtype if dtype is None else dtype)
    return full_like(array, np.zeros((), kind)[()], kind, shape=kwargs.get("shape"))


@implements(np.ones_like)
def ones_like(array: ManifestArray, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
    """Return an array of ones."""
    kind = np.dtype(array.dtype if dtype is None else dtype)
    return full_like(array, np.ones((), kind)[()], kind, shape=kwargs.get("shape"))


@implements(np.copy)
def copy(array: ManifestArray, *args: Any, **kwargs: Any) -> ManifestArray:
    """Return the array itself: it cannot be written to."""
    return array


@implements(np.shape)
def shape(array: ManifestArray) -> tuple[int, ...]:
    """Return the elements per axis."""
    return array.shape


@implements(np.ndim)
def ndim(array: ManifestArray) -> int:
    """Return the number of axes."""
    return array.ndim


@implements(np.size)
def size(array: ManifestArray, axis: int | None = None) -> int:
    """Return the number of elements."""
    return array.size if axis is None else array.shape[axis]


@implements(np.may_share_memory, np.shares_memory)
def shares_memory(*args: Any, **kwargs: Any) -> bool:
    """Return that arrays share no memory: virtual ones have none."""
    return False


@implements(np.where)
def where(condition: Any, x: Any = None, y: Any = None) -> Any:
    """Keep whole stretches of a virtual array and fill the others, as reindexing asks for."""
    if not isinstance(x, ManifestArray) or isinstance(y, ManifestArray) or np.ndim(y):
        return NotImplemented
    if isinstance(condition, ManifestArray) or x.dtype != np.asarray(y).dtype:
        return NotImplemented
    mask = np.asarray(condition)
    if mask.ndim == 0:
        return x if mask else ManifestArray.full(x.shape, y, x.dtype)
    if mask.shape != x.shape or (kept := _separate(mask)) is None:
        return NotImplemented
    fill = np.asarray(y)[()]
    if x.has_gaps and not same_scalar(x.fill_value, fill):
        return NotImplemented
    for axis, along in enumerate(kept):
        if not along.all():
            x = x.keep(axis, runs_of(np.flatnonzero(along)))
    return ManifestArray(x.shape, x.dtype, fill, x.pipelines, x.fragments, x.name)


def _separate(mask: npt.NDArray[np.bool_]) -> list[npt.NDArray[np.bool_]] | None:
    """Return one mask per axis whose product is ``mask``, or None if there are none."""
    axes = range(mask.ndim)
    along = [np.asarray(mask.any(axis=tuple(j for j in axes if j != i))) for i in axes]
    if int(np.count_nonzero(mask)) != prod(int(np.count_nonzero(m)) for m in along):
        return None
    return along


# ---------------------------------------------------------------------- indexing


@implements(np.ndarray.__getitem__)
def getitem(array: ManifestArray, key: Any) -> Any:
    """Index as numpy does; contiguous slices and integers stay virtual."""
    entries = [_entry(k) for k in (key if isinstance(key, tuple) else (key,))]
    if any(isinstance(k, np.ndarray) and k.ndim == 0 for k in entries):
        return np.asarray(array)[key]
    full, new_axes, gap = _expand(array, entries)
    apart = _are_apart(full, gap)
    advanced = [i for i, k in enumerate(full) if isinstance(k, np.ndarray)]
    mesh = _open_mesh([full[i] for i in advanced])
    ints_too = bool(advanced) and any(isinstance(k, int) for k in full)
    if new_axes and (mesh is None or ints_too or len(advanced) > 1):
        return np.asarray(array)[key]
    if mesh is None or (ints_too and (len(advanced) > 1 or apart)):
        return _pointwise(array, full, apart)
    for i, positions in zip(advanced, mesh, strict=True):
        full[i] = positions
    found = _insert(_orthogonal(array, full), new_axes)
    if apart and len(advanced) > 1:
        return np.moveaxis(found, advanced, range(len(advanced)))
    return found


def _expand(array: ManifestArray, entries: list[Any]) -> tuple[list[Any], list[int], int]:
    """Return one entry per axis (masks as positions), the new axes, and the ellipsis's place."""
    used = sum((k is not None and k is not Ellipsis and _consumes(k)) or 0 for k in entries)
    if used > array.ndim:
        raise IndexError(f"{used} indices for {array.ndim} axes")
    if Ellipsis not in [k if k is Ellipsis else None for k in entries]:
        entries.append(Ellipsis)
    full: list[Any] = []
    new_axes: list[int] = []
    place = gap = 0
    for k in entries:
        if k is Ellipsis:
            count, gap = array.ndim - used, len(full)
            full += [slice(None)] * count
            place += count
        elif k is None:
            new_axes.append(place)
            place += 1
        elif isinstance(k, np.ndarray) and k.dtype == bool:
            full += _positions_of(k, array.shape[len(full) : len(full) + k.ndim])
            place += 1
        else:
            full.append(k)
            place += not isinstance(k, int)
    return full, new_axes, gap


def _entry(key: Any) -> Any:
    if key is None or key is Ellipsis or isinstance(key, slice):
        return key
    if isinstance(key, bool | np.bool_):
        return np.asarray(key)
    if np.ndim(key) == 0:
        return _whole(key)
    positions = np.asarray(key)
    if positions.dtype.kind not in "iub" and positions.size:
        raise IndexError(f"{positions.dtype} cannot index; use integers or booleans")
    return positions if positions.size else positions.astype(np.int64)


def _whole(key: Any) -> int:
    try:
        return operator.index(key)
    except TypeError as error:
        raise IndexError(f"{key!r} cannot index; use integers, slices or arrays") from error


def _positions_of(mask: npt.NDArray[np.bool_], shape: tuple[int, ...]) -> list[Ints]:
    """Return where a mask is true, per axis."""
    if mask.shape != shape:
        raise IndexError(f"a mask of {mask.shape} for axes of {shape}")
    return list(mask.nonzero())


def _consumes(key: Any) -> int:
    """Return how many axes an entry indexes."""
    if isinstance(key, np.ndarray) and key.dtype == bool:
        return key.ndim
    return 1


def _open_mesh(arrays: list[npt.NDArray[Any]]) -> list[npt.NDArray[Any]] | None:
    """Return 1-D positions if arrays select orthogonally (one array, or as np.ix_ makes them)."""
    if len(arrays) <= 1:
        return arrays if all(a.ndim == 1 for a in arrays) else None
    try:
        shape = np.broadcast_shapes(*(a.shape for a in arrays))
    except ValueError as error:
        raise IndexError(f"indices that select together are to have one shape: {error}") from error
    if len(shape) != len(arrays):
        return None
    for i, a in enumerate(arrays):
        padded = (1,) * (len(shape) - a.ndim) + a.shape
        if any(n != 1 for j, n in enumerate(padded) if j != i):
            return None
    return [a.ravel() for a in arrays]


def _are_apart(full: list[Any], gap: int) -> bool:
    """Say whether a slice or an ellipsis lies between integers and arrays: it moves their axes."""
    places = [i for i, k in enumerate(full) if not isinstance(k, slice)]
    if not places:
        return False
    return len(places) <= places[-1] - places[0] or places[0] < gap <= places[-1]


def _orthogonal(array: ManifestArray, full: list[Any]) -> Any:
    """Index every axis by itself: virtually if it pays, else by reading."""
    if (virtual := _virtually(array, full)) is not None:
        return virtual
    counts = [_count(k, n) for k, n in zip(full, array.shape, strict=True)]
    array.check_limit(prod(counts) * array.dtype.itemsize)
    return array.read(tuple(full))


def _virtually(array: ManifestArray, full: list[Any]) -> ManifestArray | None:
    dropped = []
    for axis, key in enumerate(full):
        segments = _segments(key, array.shape[axis], axis)
        slabs = sum(f.axes[axis].nchunks for f in array.fragments)
        if len(segments) > FREE_SEGMENTS + 2 * slabs:
            return None
        array = _assemble(array, axis, segments)
        if isinstance(key, int):
            dropped.append(axis)
    for axis in reversed(dropped):
        array = array.drop_axis(axis)
    return array


Segment = tuple[int, int, int]
"""Elements ``start`` to ``stop``, shown so many times each."""


def _segments(key: Any, size: int, axis: int) -> list[Segment]:
    """Return the stretches of an axis that an index shows, in order."""
    if isinstance(key, slice):
        start, stop, step = key.indices(size)
        if step == 1:
            return [(start, max(start, stop), 1)]
        positions = np.arange(start, stop, step)
    else:
        positions = _positions(key, size, axis)
    return _stretches(positions)


def _positions(key: Any, size: int, axis: int) -> Ints:
    found = np.atleast_1d(key)
    if found.size and not -size <= found.min() <= found.max() < size:
        raise IndexError(f"axis {axis}: index {key} is out of bounds for {size} elements")
    return np.where(found < 0, found + size, found).astype(np.int64)


def _stretches(positions: Ints) -> list[Segment]:
    """Cut positions where they neither rise by one nor repeat."""
    found: list[Segment] = []
    for start, stop in runs_of(positions):
        if found and stop - start == 1 and found[-1][:2] == (start, stop):
            found[-1] = (start, stop, found[-1][2] + 1)
        else:
            found.append((start, stop, 1))
    return found or [(0, 0, 1)]


def _assemble(array: ManifestArray, axis: int, segments: list[Segment]) -> ManifestArray:
    parts = []
    for start, stop, times in segments:
        part = array.crop(axis, start, stop)
        parts.append(part.repeat(axis, times) if times != 1 else part)
    return parts[0] if len(parts) == 1 else join_arrays(parts, axis)


def _pointwise(array: ManifestArray, full: list[Any], apart: bool) -> npt.NDArray[Any]:
    """Index axes together, with the axes of the result where numpy puts them."""
    places = [i for i, k in enumerate(full) if not isinstance(k, slice)]
    arrays = np.broadcast_arrays(*(np.asarray(full[i]) for i in places))
    counts = [_count(k, n) for k, n in zip(full, array.shape, strict=True) if isinstance(k, slice)]
    array.check_limit(prod(counts) * arrays[0].size * array.dtype.itemsize)
    values = array.read_points(tuple(full))
    if not apart:
        points = list(range(arrays[0].ndim))
        values = np.moveaxis(values, points, [p + places[0] for p in points])
    return values


def _count(key: Any, size: int) -> int:
    """Return how many elements an index takes of an axis."""
    if isinstance(key, slice):
        return len(range(*key.indices(size)))
    return int(np.size(key))


def _insert(array: Any, new_axes: list[int]) -> Any:
    return reduce(np.expand_dims, new_axes, array)
