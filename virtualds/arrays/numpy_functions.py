"""numpy's functions for virtual arrays, entered in `NUMPY_FUNCTIONS`.

A function that is not listed, or that returns `NotImplemented`, gets the values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from numpy.lib.array_utils import normalize_axis_index, normalize_axis_tuple

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.concatenate import assemble, set_fill
from virtualds.arrays.concatenate import concatenate as join_arrays
from virtualds.arrays.duck_array import NUMPY_FUNCTIONS
from virtualds.chunks.projection import find_runs
from virtualds.errors import CombineError

Function = TypeVar("Function", bound=Callable[..., Any])

FREE_STRETCHES = 64
"""Pieces that a masked virtual array may always have, however few chunks its source has."""


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
    parts = [a if isinstance(a, ManifestArray) else np.asarray(a) for a in arrays]
    if any(a.dtype.hasobject for a in parts):
        return NotImplemented
    virtual = [a if isinstance(a, ManifestArray) else ManifestArray.from_values(a) for a in parts]
    return join_arrays(virtual, axis)


@implements(np.stack)
def stack(arrays: Sequence[Any], axis: int = 0, out: Any = None, **kwargs: Any) -> Any:
    """Lay arrays side by side along a new axis."""
    if out is not None or kwargs:
        return NotImplemented
    shapes = {np.shape(a) for a in arrays}
    if len(shapes) > 1:
        raise CombineError(
            f"stack: the arrays have shapes {sorted(shapes)}; bring them to one (reindex, or isel "
            f"the common part)"
        )
    axis = normalize_axis_index(axis, np.ndim(arrays[0]) + 1)
    return concatenate([expand_dims(a, axis) for a in arrays], axis)


# ---------------------------------------------------------------------- shape


@implements(np.expand_dims)
def expand_dims(array: Any, axis: int | Sequence[int]) -> Any:
    """Insert axes of one element."""
    if not isinstance(array, ManifestArray):
        return np.expand_dims(array, tuple(axis) if isinstance(axis, Sequence) else axis)
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
        raise ValueError(
            f"squeeze {array.label}: axes {long} have more than one element; pick one with an index"
        )
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


@implements(np.take)
def take(
    array: ManifestArray,
    indices: Any,
    axis: int | None = None,
    out: Any = None,
    mode: str = "raise",
) -> Any:
    """Index one axis."""
    if axis is None or out is not None or mode != "raise" or not isinstance(array, ManifestArray):
        return NotImplemented
    positions = np.asarray(indices)
    if positions.dtype.kind not in "iu":
        # numpy takes booleans for numbers, and indexing takes them for a mask
        return NotImplemented
    axis = normalize_axis_index(axis, array.ndim)
    return array[(slice(None),) * axis + (positions,)]


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


@implements(np.ravel)
def ravel(array: ManifestArray, order: Any = "C") -> Any:
    """Lay all elements along one axis: virtually where at most one axis is longer than one."""
    return np.reshape(array, array.size) if order in ("C", "A", "K") else NotImplemented


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
    """Return an array of one value, without chunks."""
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
    """Return False: virtual arrays have no memory to share."""
    return False


@implements(np.where)
def where(condition: Any, x: Any = None, y: Any = None) -> Any:
    """Keep whole stretches of a virtual array and fill the others, as reindexing asks for."""
    if not isinstance(x, ManifestArray) or isinstance(y, ManifestArray) or np.ndim(y):
        return NotImplemented
    if isinstance(condition, ManifestArray) or x.dtype != np.asarray(y).dtype:
        return NotImplemented
    mask = np.asarray(condition)
    x = x.broadcast_to(np.broadcast_shapes(mask.shape, x.shape))
    kept = _separate(mask.reshape((1,) * (x.ndim - mask.ndim) + mask.shape))
    if kept is None:
        return NotImplemented
    stretches = [find_runs(np.flatnonzero(along)) for along in kept]
    if prod(map(len, stretches)) > FREE_STRETCHES + 2 * x.nchunks:
        return NotImplemented
    fill = np.asarray(y)[()]
    x = set_fill(x, fill)
    for axis, runs in enumerate(stretches):
        if not kept[axis].all():
            x = x.keep(axis, runs)
    return replace(x, fill_value=fill)


def _separate(mask: npt.NDArray[Any]) -> list[npt.NDArray[np.bool_]] | None:
    """Return one mask per axis whose product is ``mask``, or None if there are none."""
    axes = range(mask.ndim)
    along = [np.asarray(mask.any(axis=tuple(j for j in axes if j != i))) for i in axes]
    if int(np.count_nonzero(mask)) != prod(int(np.count_nonzero(m)) for m in along):
        return None
    return along


@implements(np.pad)
def pad(array: ManifestArray, pad_width: Any, mode: Any = "constant", **kwargs: Any) -> Any:
    """Surround an array with one value, as shifting does; any other border reads."""
    constant = kwargs.pop("constant_values", 0)
    if mode != "constant" or kwargs or np.size(constant) != 1 or isinstance(pad_width, dict):
        return NotImplemented
    widths = np.broadcast_to(pad_width, (array.ndim, 2))
    if array.ndim == 0 or widths.dtype.kind not in "iu" or widths.min() < 0:
        return NotImplemented
    # numpy converts the value to the dtype
    fill = np.pad(np.zeros(1, array.dtype), (1, 0), constant_values=constant)[0]
    shape = tuple(int(n) for n in widths.sum(axis=1) + array.shape)
    part = tuple(widths[:, 0].tolist()), set_fill(array, fill)
    return assemble(shape, array.dtype, fill, [part], (), array.name)
