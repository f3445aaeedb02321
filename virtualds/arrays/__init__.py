"""Indexing, functions and ufuncs of numpy for virtual arrays.

They are registered in `NUMPY_FUNCTIONS` and `UFUNCS`. Functions that are not registered, or return
`NotImplemented`, load the values.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import prod
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from numpy.lib.array_utils import normalize_axis_index, normalize_axis_tuple

from virtualds.arrays.array import NUMPY_FUNCTIONS, UFUNCS, ManifestArray, load_arguments
from virtualds.arrays.concatenate import assemble, set_fill
from virtualds.arrays.concatenate import concatenate as join_arrays
from virtualds.chunks.axes import find_runs, normalise_positions
from virtualds.chunks.columns import Ints
from virtualds.errors import CombineError

# ---------------------------------------------------------------------- indexing
# Indexing of virtual arrays.
#
# An orthogonal index returns a virtual array unless it would have many more slabs than the source
# has chunks. All other indexes read the values.


MAX_EXTRA_SLABS = 64
"""Maximum number of slabs of a virtual result, besides two for each chunk of its source."""


def getitem(array: ManifestArray, key: Any) -> Any:
    """Index like numpy; the result is virtual if it has few slabs, else values."""
    entries = [_normalise_entry(k) for k in (key if isinstance(key, tuple) else (key,))]
    if any(isinstance(k, np.ndarray) and k.ndim == 0 for k in entries):
        return np.asarray(array)[key]
    full, new_axes, ellipsis_axis = _expand_key(array, entries)
    is_separated = _are_separated(full, ellipsis_axis)
    advanced = [i for i, k in enumerate(full) if isinstance(k, np.ndarray)]
    mesh = _find_open_mesh([full[i] for i in advanced])
    has_integers = bool(advanced) and any(isinstance(k, int) for k in full)
    if new_axes and (mesh is None or has_integers or len(advanced) > 1):
        return np.asarray(array)[key]
    if mesh is None or (has_integers and (len(advanced) > 1 or is_separated)):
        return _index_pointwise(array, full, is_separated)
    for i, positions in zip(advanced, mesh, strict=True):
        full[i] = positions
    result: Any = _index_virtually(array, full)
    if result is None:
        counts = [_count_elements(k, n) for k, n in zip(full, array.shape, strict=True)]
        nbytes = prod(counts) * array.dtype.itemsize
        array.check_limit(nbytes)
        array.warn_of_copy(nbytes, "an index with a step or with positions")
        result = array.read(tuple(full))
    result = reduce(np.expand_dims, new_axes, result)
    if is_separated and len(advanced) > 1:
        return np.moveaxis(result, advanced, range(len(advanced)))
    return result


def _expand_key(array: ManifestArray, entries: list[Any]) -> tuple[list[Any], list[int], int]:
    """Return an index entry for each axis, the positions of new axes, and that of the ellipsis."""
    indexers = [k for k in entries if k is not None and k is not Ellipsis]
    axis_count = sum(
        k.ndim if isinstance(k, np.ndarray) and k.dtype == bool else 1 for k in indexers
    )
    ndim = len(array.shape)
    if axis_count > ndim:
        raise IndexError(
            f"{array.label}: {axis_count} indices for {ndim} axes; give at most one per axis"
        )
    if Ellipsis not in [k if k is Ellipsis else None for k in entries]:
        entries.append(Ellipsis)
    full: list[Any] = []
    new_axes: list[int] = []
    position = ellipsis_axis = 0
    for k in entries:
        if k is Ellipsis:
            count, ellipsis_axis = ndim - axis_count, len(full)
            full += [slice(None)] * count
            position += count
        elif k is None:
            new_axes.append(position)
            position += 1
        elif isinstance(k, np.ndarray) and k.dtype == bool:
            shape = array.shape[len(full) : len(full) + k.ndim]
            if k.shape != shape:
                raise IndexError(
                    f"{array.label}: a mask of shape {k.shape} for axes of shape {shape}; give "
                    f"it the shape of the axes"
                )
            full += k.nonzero()
            position += 1
        else:
            full.append(k)
            position += not isinstance(k, int)
    return full, new_axes, ellipsis_axis


def _normalise_entry(key: Any) -> Any:
    if key is None or key is Ellipsis or isinstance(key, slice):
        return key
    if isinstance(key, bool | np.bool_):
        return np.asarray(key)
    if np.ndim(key) == 0:
        try:
            return operator.index(key)
        except TypeError as error:
            raise IndexError(
                f"virtual array: {key!r} is not an index; use integers, slices or arrays"
            ) from error
    positions = np.asarray(key)
    if positions.dtype.kind not in "iub" and positions.size:
        raise IndexError(
            f"virtual array: an index of dtype {positions.dtype}; use integers or booleans"
        )
    return positions if positions.size else positions.astype(np.int64)


def _find_open_mesh(arrays: list[npt.NDArray[Any]]) -> list[npt.NDArray[Any]] | None:
    """Return 1-D positions if index arrays are orthogonal, as from `numpy.ix_`, else None."""
    if len(arrays) <= 1:
        return arrays if all(a.ndim == 1 for a in arrays) else None
    try:
        shape = np.broadcast_shapes(*(a.shape for a in arrays))
    except ValueError as error:
        raise IndexError(
            f"virtual array: indices that select together differ in shape: {error}; make them "
            f"broadcast, or make them independent with np.ix_"
        ) from error
    if len(shape) != len(arrays):
        return None
    for i, a in enumerate(arrays):
        padded = (1,) * (len(shape) - a.ndim) + a.shape
        if any(n != 1 for j, n in enumerate(padded) if j != i):
            return None
    return [a.ravel() for a in arrays]


def _are_separated(full: list[Any], ellipsis_axis: int) -> bool:
    """Return whether a slice separates the integers and arrays of an index.

    The axes of the arrays then come first in the result, as in numpy.
    """
    indexed = [i for i, k in enumerate(full) if not isinstance(k, slice)]
    if not indexed:
        return False
    return len(indexed) <= indexed[-1] - indexed[0] or indexed[0] < ellipsis_axis <= indexed[-1]


def select_virtually(
    array: ManifestArray, key: tuple[Any, ...], vectorized: bool
) -> ManifestArray | None:
    """Index virtually with one entry per axis; return None if the values must be read.

    With ``vectorized``, index arrays are broadcast to the shape of the result. Otherwise the index
    is orthogonal: every entry selects along its own axis.
    """
    if vectorized:
        return _select_vectorized(array, [np.asarray(k) for k in key])
    return _index_virtually(
        array, [k if isinstance(k, slice) or np.ndim(k) else int(k) for k in key]
    )


def _select_vectorized(array: ManifestArray, key: list[Ints]) -> ManifestArray | None:
    """Index by broadcast arrays; return None unless each varies along a different axis."""
    ndim = len(np.broadcast_shapes(*(k.shape for k in key)))
    key = [_undo_broadcast(k) for k in key]
    along = [[j for j, n in enumerate(k.shape) if n != 1] for k in key]
    axes = [j for varying in along for j in varying]
    if len(set(axes)) < len(axes) or any(len(varying) > 1 for varying in along):
        return None
    # an array with one element selects like an integer
    full = [k.ravel() if j else int(k.ravel()[0]) for k, j in zip(key, along, strict=True)]
    if (selected := _index_virtually(array, full)) is None:
        return None
    inserted = [axis for axis in range(ndim) if axis not in axes]
    ordered = selected.transpose(tuple(np.argsort(axes).tolist()))
    return reduce(ManifestArray.insert_axis, inserted, ordered)


def _undo_broadcast(positions: Ints) -> Ints:
    """Reduce positions to length 1 along the axes along which they do not vary."""
    for axis in range(positions.ndim):
        first = positions[(slice(None),) * axis + (slice(1),)]
        if positions.size and (positions == first).all():
            positions = first
    return positions


def _index_virtually(array: ManifestArray, full: list[Any]) -> ManifestArray | None:
    """Index without reading values; return None if the result would have too many slabs."""
    segments = [
        _list_segments(k, n, i) for i, (k, n) in enumerate(zip(full, array.shape, strict=True))
    ]
    slabs = sum(fragment.count_slabs(segments) for fragment in array.fragments)
    if slabs > MAX_EXTRA_SLABS + 2 * array.nchunks:
        return None
    for axis, along in enumerate(segments):
        parts = []
        for start, stop, times, is_flipped in along:
            part = array.crop(axis, start, stop)
            part = part.flip(axis) if is_flipped else part
            parts.append(part.repeat(axis, times) if times != 1 else part)
        array = parts[0] if len(parts) == 1 else join_arrays(parts, axis)
    for axis in reversed(range(len(full))):
        if isinstance(full[axis], int):
            array = array.drop_axis(axis)
    return array


class Segment(NamedTuple):
    """A range of an axis from ``start`` to ``stop``, with each element repeated, or flipped."""

    start: int
    stop: int
    times: int = 1
    is_flipped: bool = False

    @property
    def can_extend_backwards(self) -> bool:
        """Whether the segment can be extended by the position before its start."""
        return self.is_flipped or self.stop - self.start == self.times == 1


def _list_segments(key: Any, size: int, axis: int) -> list[Segment]:
    """Return the segments of an axis that an index entry selects, in order."""
    if isinstance(key, slice):
        start, stop, step = key.indices(size)
        if step == 1:
            return [Segment(start, max(start, stop))]
        positions = np.arange(start, stop, step)
    else:
        positions = normalise_positions(np.atleast_1d(key), size, axis)
    # consecutive positions that increase by 1, repeat, or decrease by 1 form one segment
    segments: list[Segment] = []
    for start, stop in find_runs(positions):
        last = segments[-1] if segments and stop - start == 1 else None
        if last and last[:2] == (start, stop):
            segments[-1] = last._replace(times=last.times + 1)
        elif last and last.start == stop and last.can_extend_backwards:
            segments[-1] = Segment(start, last.stop, is_flipped=True)
        else:
            segments.append(Segment(start, stop))
    return segments or [Segment(0, 0)]


def _index_pointwise(array: ManifestArray, full: list[Any], is_separated: bool) -> npt.NDArray[Any]:
    """Return the values of a pointwise index, with the axes in numpy's order."""
    positions = [i for i, k in enumerate(full) if not isinstance(k, slice)]
    arrays = np.broadcast_arrays(*(np.asarray(full[i]) for i in positions))
    counts = [
        _count_elements(k, n)
        for k, n in zip(full, array.shape, strict=True)
        if isinstance(k, slice)
    ]
    nbytes = prod(counts) * arrays[0].size * array.dtype.itemsize
    array.check_limit(nbytes)
    array.warn_of_copy(nbytes, "an index of points")
    values = array.read_points(tuple(full))
    if not is_separated:
        points = list(range(arrays[0].ndim))
        values = np.moveaxis(values, points, [p + positions[0] for p in points])
    return values


def _count_elements(key: Any, size: int) -> int:
    """Return the number of elements that an index entry selects along an axis."""
    if isinstance(key, slice):
        return len(range(*key.indices(size)))
    return int(np.size(key))


NUMPY_FUNCTIONS[np.ndarray.__getitem__] = getitem


# ---------------------------------------------------------------------- functions


Function = TypeVar("Function", bound=Callable[..., Any])

MAX_EXTRA_PIECES = 64
"""Maximum number of pieces of a result of `where`, besides two for each chunk of its source."""


def implements(*functions: Callable[..., Any]) -> Callable[[Function], Function]:
    """Return a decorator that registers an implementation of numpy functions."""

    def register(function: Function) -> Function:
        for numpy_function in functions:
            NUMPY_FUNCTIONS[numpy_function] = function
        return function

    return register


# ---------------------------------------------------------------------- joining


@implements(np.concatenate)
def concatenate_any(
    arrays: Sequence[Any],
    axis: int | None = 0,
    out: Any = None,
    *,
    dtype: Any = None,
    casting: Any = None,
) -> Any:
    """Concatenate arrays; arrays in memory become inline chunks."""
    if axis is None or out is not None or dtype is not None or casting is not None:
        return NotImplemented
    parts = [a if isinstance(a, ManifestArray) else np.asarray(a) for a in arrays]
    if any(a.dtype.hasobject for a in parts):
        return NotImplemented
    virtual = [a if isinstance(a, ManifestArray) else ManifestArray.from_values(a) for a in parts]
    return join_arrays(virtual, axis)


@implements(np.stack)
def stack(arrays: Sequence[Any], axis: int = 0, out: Any = None, **kwargs: Any) -> Any:
    """Stack arrays along a new axis."""
    if out is not None or kwargs:
        return NotImplemented
    shapes = {np.shape(a) for a in arrays}
    if len(shapes) > 1:
        raise CombineError(
            f"stack: the arrays have shapes {sorted(shapes)}; make them equal (reindex, or isel "
            f"the common part)"
        )
    axis = normalize_axis_index(axis, np.ndim(arrays[0]) + 1)
    return concatenate_any([expand_dims(a, axis) for a in arrays], axis)


# ---------------------------------------------------------------------- axes and shape


@implements(np.expand_dims)
def expand_dims(array: Any, axis: int | Sequence[int]) -> Any:
    """Insert axes of length 1."""
    if not isinstance(array, ManifestArray):
        return np.expand_dims(array, tuple(axis) if isinstance(axis, Sequence) else axis)
    axes = normalize_axis_tuple(axis, array.ndim + np.size(axis))
    for position in sorted(axes):
        array = array.insert_axis(position)
    return array


@implements(np.squeeze)
def squeeze(array: ManifestArray, axis: int | Sequence[int] | None = None) -> ManifestArray:
    """Remove axes of length 1."""
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
    """Move axes to new positions."""
    origin = normalize_axis_tuple(source, array.ndim)
    target = normalize_axis_tuple(destination, array.ndim)
    axes = [i for i in range(array.ndim) if i not in origin]
    for position, axis in sorted(zip(target, origin, strict=True)):
        axes.insert(position, axis)
    return array.transpose(tuple(axes))


@implements(np.swapaxes)
def swapaxes(array: ManifestArray, axis1: int, axis2: int) -> ManifestArray:
    """Exchange two axes."""
    order = list(range(array.ndim))
    order[axis1], order[axis2] = order[axis2], order[axis1]
    return array.transpose(tuple(order))


@implements(np.broadcast_to)
def broadcast_to(array: ManifestArray, shape: int | Sequence[int], subok: bool = False) -> Any:
    """Repeat the array along new leading axes and axes of length 1."""
    return array.broadcast_to((shape,) if isinstance(shape, int) else tuple(shape))


@implements(np.flip)
def flip(array: ManifestArray, axis: int | Sequence[int] | None = None) -> Any:
    """Reverse the order of the elements along some axes, by default along all."""
    axes = range(array.ndim) if axis is None else normalize_axis_tuple(axis, array.ndim)
    return array[tuple(slice(None, None, -1 if i in axes else None) for i in range(array.ndim))]


@implements(np.take)
def take(
    array: ManifestArray,
    indices: Any,
    axis: int | None = None,
    out: Any = None,
    mode: str = "raise",
) -> Any:
    """Take elements along one axis."""
    if axis is None or out is not None or mode != "raise" or not isinstance(array, ManifestArray):
        return NotImplemented
    positions = np.asarray(indices)
    if positions.dtype.kind not in "iu":
        # np.take treats booleans as positions, whereas indexing treats them as a mask
        return NotImplemented
    axis = normalize_axis_index(axis, array.ndim)
    return array[(slice(None),) * axis + (positions,)]


@implements(np.reshape)
def reshape(array: ManifestArray, /, shape: Any, *args: Any, **kwargs: Any) -> Any:
    """Insert or remove axes of length 1; any other reshape loads the values."""
    new_shape = (shape,) if isinstance(shape, int | np.integer) else tuple(shape)
    if args or kwargs or -1 in new_shape or 0 in array.shape:
        return NotImplemented
    if [n for n in new_shape if n != 1] != [n for n in array.shape if n != 1]:
        return NotImplemented
    array = squeeze(array)
    for axis, n in enumerate(new_shape):
        if n == 1:
            array = array.insert_axis(axis)
    return array


@implements(np.ravel)
def ravel(array: ManifestArray, order: Any = "C") -> Any:
    """Flatten the array; virtual if at most one axis is longer than 1."""
    return np.reshape(array, array.size) if order in ("C", "A", "K") else NotImplemented


# ---------------------------------------------------------------------- dtype and filling


@implements(np.result_type)
def result_type(*arrays_and_dtypes: Any) -> np.dtype[Any]:
    """Return the common dtype of arrays, values and dtypes."""
    return np.result_type(
        *(a.dtype if isinstance(a, ManifestArray) else a for a in arrays_and_dtypes)
    )


@implements(np.can_cast)
def can_cast(from_: Any, to: Any, casting: Any = "safe") -> bool:
    """Return whether a cast is allowed."""
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
    """Return an array without chunks, whose elements are the fill value."""
    target_dtype = np.dtype(array.dtype if dtype is None else dtype)
    if np.ndim(fill_value) or target_dtype.hasobject:
        return np.full(array.shape if shape is None else shape, fill_value, target_dtype)
    return ManifestArray.full(array.shape if shape is None else shape, fill_value, target_dtype)


@implements(np.zeros_like, np.empty_like)
def zeros_like(array: ManifestArray, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
    """Return an array of zeros."""
    target_dtype = np.dtype(array.dtype if dtype is None else dtype)
    return full_like(array, np.zeros((), target_dtype)[()], target_dtype, shape=kwargs.get("shape"))


@implements(np.ones_like)
def ones_like(array: ManifestArray, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
    """Return an array of ones."""
    target_dtype = np.dtype(array.dtype if dtype is None else dtype)
    return full_like(array, np.ones((), target_dtype)[()], target_dtype, shape=kwargs.get("shape"))


@implements(np.copy)
def copy(array: ManifestArray, *args: Any, **kwargs: Any) -> ManifestArray:
    """Return the array itself, which is immutable."""
    return array


@implements(np.shape)
def shape(array: ManifestArray) -> tuple[int, ...]:
    """Return the number of elements along each axis."""
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
    """Keep ranges of ``x`` and fill the rest with the scalar ``y``, as reindexing does."""
    if not isinstance(x, ManifestArray) or isinstance(y, ManifestArray) or np.ndim(y):
        return NotImplemented
    if isinstance(condition, ManifestArray) or x.dtype != np.asarray(y).dtype:
        return NotImplemented
    mask = np.asarray(condition)
    x = x.broadcast_to(np.broadcast_shapes(mask.shape, x.shape))
    mask = mask.reshape((1,) * (x.ndim - mask.ndim) + mask.shape)
    axes = range(mask.ndim)
    kept_along = [np.asarray(mask.any(axis=tuple(j for j in axes if j != i))) for i in axes]
    # the mask must be the outer product of masks along each axis
    if int(np.count_nonzero(mask)) != prod(int(np.count_nonzero(along)) for along in kept_along):
        return NotImplemented
    kept_ranges = [find_runs(np.flatnonzero(along)) for along in kept_along]
    if prod(map(len, kept_ranges)) > MAX_EXTRA_PIECES + 2 * x.nchunks:
        return NotImplemented
    fill = np.asarray(y)[()]
    x = set_fill(x, fill)
    for axis, runs in enumerate(kept_ranges):
        if not kept_along[axis].all():
            x = x.keep_ranges(axis, runs)
    return replace(x, fill_value=fill)


@implements(np.pad)
def pad(array: ManifestArray, pad_width: Any, mode: Any = "constant", **kwargs: Any) -> Any:
    """Pad an array with one value, as `xarray.Dataset.shift` does; other modes load the values."""
    constant = kwargs.pop("constant_values", 0)
    if mode != "constant" or kwargs or np.size(constant) != 1 or isinstance(pad_width, dict):
        return NotImplemented
    widths = np.broadcast_to(pad_width, (array.ndim, 2))
    if array.ndim == 0 or widths.dtype.kind not in "iu" or widths.min() < 0:
        return NotImplemented
    # let numpy cast the value
    fill = np.pad(np.zeros(1, array.dtype), (1, 0), constant_values=constant)[0]
    shape = tuple(int(n) for n in widths.sum(axis=1) + array.shape)
    placed = tuple(widths[:, 0].tolist()), set_fill(array, fill)
    return assemble(shape, array.dtype, fill, [placed], (), array.name)


# ---------------------------------------------------------------------- comparisons
# Lazy comparisons of virtual arrays, which compare references before values.
#
# xarray compares two arrays by ``((a == b) | (isnull(a) & isnull(b))).all()``. For two arrays that
# have the same references, that is always true. So a comparison is a lazy expression, which reads
# values only if the references cannot determine the result.


NULLABLE_KINDS = "fcMmV"


@dataclass(frozen=True, eq=False)
class Comparison(np.lib.mixins.NDArrayOperatorsMixin):
    """A lazy boolean array: a ufunc and its operands, which all have the same shape."""

    ufunc: np.ufunc
    operands: tuple[Any, ...]

    dtype = np.dtype(bool)

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of elements along each axis."""
        shape: tuple[int, ...] = self.operands[0].shape
        return shape

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape))

    @property
    def nbytes(self) -> int:
        """Size of the computed values in bytes."""
        return self.size

    def __array__(
        self, dtype: npt.DTypeLike | None = None, copy: bool | None = None
    ) -> npt.NDArray[Any]:
        return np.asarray(_compute(self, {}), dtype)

    def __getitem__(self, key: Any) -> Any:
        return Comparison(self.ufunc, tuple(operand[key] for operand in self.operands))

    def astype(self, dtype: npt.DTypeLike, copy: bool = True) -> Any:
        """Convert to another dtype, which computes the values unless it is bool."""
        return self if np.dtype(dtype) == bool else np.asarray(self).astype(dtype)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if method == "__call__" and not kwargs and ufunc in UFUNCS:
            result = UFUNCS[ufunc](*inputs)
            if result is not NotImplemented:
                return result
        return getattr(ufunc, method)(*load_arguments(inputs, Comparison), **kwargs)

    def __array_function__(
        self, func: Callable[..., Any], types: Any, args: Any, kwargs: Mapping[str, Any]
    ) -> Any:
        # any other function needs the values
        has_no_options = len(args) == 1 and all(v is None or v is False for v in kwargs.values())
        if func is np.all and has_no_options and is_provably_true(self):
            return np.True_
        return func(*load_arguments(args, Comparison), **load_arguments(dict(kwargs), Comparison))

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the computed values."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(np.asarray(self), name)

    def __bool__(self) -> bool:
        return bool(np.asarray(self))

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return f"<Comparison {self.ufunc.__name__} {self.shape}>"


def _compute(expression: Any, cache: dict[int, npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Compute an expression; ``cache`` maps the id of each array to its values."""
    if not isinstance(expression, Comparison):
        if id(expression) not in cache:
            cache[id(expression)] = np.asarray(expression)
        return cache[id(expression)]
    values = [_compute(operand, cache) for operand in expression.operands]
    # the operator compares structured dtypes, which np.equal does not
    compute = operator.eq if expression.ufunc is np.equal else expression.ufunc
    return np.asarray(compute(*values))


def is_provably_true(expression: Any) -> bool:
    """Return whether a comparison is true everywhere, as far as references can prove it."""
    if isinstance(expression, ManifestArray):
        return expression.dtype == bool and not expression.fragments and bool(expression.fill_value)
    if expression.ufunc in (np.logical_or, np.bitwise_or):
        left, right = expression.operands
        return (
            is_provably_true(left)
            or is_provably_true(right)
            or _is_equal_or_null(left, right)
            or _is_equal_or_null(right, left)
        )
    if expression.ufunc is np.equal:
        a, b = expression.operands
        return a.dtype.kind not in NULLABLE_KINDS + "O" and _have_same_references(a, b)
    return False


def _is_equal_or_null(equality: Any, nulls: Any) -> bool:
    """Return whether ``equality | nulls`` compares an array with itself, including its nulls."""
    if not isinstance(equality, Comparison) or equality.ufunc is not np.equal:
        return False
    a, b = equality.operands
    return _have_same_references(a, b) and a.dtype.kind != "O" and _is_true_for_nulls(nulls, a)


def _is_true_for_nulls(expression: Any, array: ManifestArray) -> bool:
    """Return whether an expression is true wherever ``array`` is NaN or NaT."""
    if not isinstance(expression, Comparison):
        return False
    if expression.ufunc in (np.isnan, np.isnat):
        return _have_same_references(expression.operands[0], array)
    if expression.ufunc in (np.logical_and, np.bitwise_and):
        return all(_is_true_for_nulls(operand, array) for operand in expression.operands)
    return False


def _have_same_references(a: Any, b: Any) -> bool:
    return (
        isinstance(a, ManifestArray) and isinstance(b, ManifestArray) and a.has_same_references(b)
    )


def _defer(ufunc: np.ufunc) -> Callable[..., Any]:
    """Return a version of a ufunc that is lazy for virtual operands of the same shape."""

    def deferred(*operands: Any) -> Any:
        are_virtual = all(isinstance(o, ManifestArray | Comparison) for o in operands)
        if not are_virtual or len({o.shape for o in operands}) != 1:
            return NotImplemented
        dtypes = [operand.dtype for operand in operands]
        if ufunc is not np.equal or any(dtype.kind != "V" for dtype in dtypes):
            # unsupported dtypes fail immediately
            try:
                ufunc.resolve_dtypes((*dtypes, None))
            except TypeError:
                return NotImplemented
        return Comparison(ufunc, operands)

    return deferred


for _ufunc in (
    np.equal,
    np.isnan,
    np.isnat,
    np.logical_and,
    np.logical_or,
    np.logical_not,
    np.bitwise_and,
    np.bitwise_or,
    np.invert,
):
    UFUNCS[_ufunc] = _defer(_ufunc)


@implements(np.all)
def reduce_all(array: Any, axis: Any = None, **kwargs: Any) -> Any:
    """Return True if references prove that all elements are true; else load the values."""
    if axis is None and not kwargs and is_provably_true(array):
        return np.True_
    return NotImplemented
