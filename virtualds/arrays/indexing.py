"""Indexing of virtual arrays: the result is virtual where that pays, else values.

Orthogonal indexing stays virtual as long as the result has not many more pieces than its source;
pointwise indexing reads.
"""

from __future__ import annotations

import operator
from functools import reduce
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.concatenate import concatenate as join_arrays
from virtualds.arrays.duck_array import NUMPY_FUNCTIONS
from virtualds.chunks.fragment import ChunkAxis, Fragment
from virtualds.chunks.projection import Ints, count_from_front, find_runs

FREE_SLABS = 64
"""Slabs that a virtual result may always have, however few chunks its source has."""


def getitem(array: ManifestArray, key: Any) -> Any:
    """Index as numpy does; contiguous slices and integers stay virtual."""
    entries = [_normalise_entry(k) for k in (key if isinstance(key, tuple) else (key,))]
    if any(isinstance(k, np.ndarray) and k.ndim == 0 for k in entries):
        return np.asarray(array)[key]
    full, new_axes, gap = _expand(array, entries)
    apart = _are_apart(full, gap)
    advanced = [i for i, k in enumerate(full) if isinstance(k, np.ndarray)]
    mesh = _find_open_mesh([full[i] for i in advanced])
    ints_too = bool(advanced) and any(isinstance(k, int) for k in full)
    if new_axes and (mesh is None or ints_too or len(advanced) > 1):
        return np.asarray(array)[key]
    if mesh is None or (ints_too and (len(advanced) > 1 or apart)):
        return _index_pointwise(array, full, apart)
    for i, positions in zip(advanced, mesh, strict=True):
        full[i] = positions
    found = _insert(_index_orthogonally(array, full), new_axes)
    if apart and len(advanced) > 1:
        return np.moveaxis(found, advanced, range(len(advanced)))
    return found


def _expand(array: ManifestArray, entries: list[Any]) -> tuple[list[Any], list[int], int]:
    """Return one entry per axis (masks as positions), the new axes, and the ellipsis's place."""
    used = sum((k is not None and k is not Ellipsis and _count_axes(k)) or 0 for k in entries)
    if used > array.ndim:
        raise IndexError(
            f"{array.label}: {used} indices for {array.ndim} axes; give at most one per axis"
        )
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
            full += _positions_of(k, array, len(full))
            place += 1
        else:
            full.append(k)
            place += not isinstance(k, int)
    return full, new_axes, gap


def _normalise_entry(key: Any) -> Any:
    if key is None or key is Ellipsis or isinstance(key, slice):
        return key
    if isinstance(key, bool | np.bool_):
        return np.asarray(key)
    if np.ndim(key) == 0:
        return _to_int(key)
    positions = np.asarray(key)
    if positions.dtype.kind not in "iub" and positions.size:
        raise IndexError(f"virtual array: {positions.dtype} cannot index; use integers or booleans")
    return positions if positions.size else positions.astype(np.int64)


def _to_int(key: Any) -> int:
    try:
        return operator.index(key)
    except TypeError as error:
        raise IndexError(
            f"virtual array: {key!r} cannot index; use integers, slices or arrays"
        ) from error


def _positions_of(mask: npt.NDArray[np.bool_], array: ManifestArray, axis: int) -> list[Ints]:
    """Return the positions, per axis, where a mask of the axes from ``axis`` on is true."""
    shape = array.shape[axis : axis + mask.ndim]
    if mask.shape != shape:
        raise IndexError(
            f"{array.label}: a mask of {mask.shape} for axes of {shape}; make it of their shape"
        )
    return list(mask.nonzero())


def _count_axes(key: Any) -> int:
    """Return how many axes an entry indexes."""
    if isinstance(key, np.ndarray) and key.dtype == bool:
        return key.ndim
    return 1


def _find_open_mesh(arrays: list[npt.NDArray[Any]]) -> list[npt.NDArray[Any]] | None:
    """Return 1-D positions if arrays select orthogonally (one array, or as np.ix_ makes them)."""
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


def _are_apart(full: list[Any], gap: int) -> bool:
    """Say whether a slice or an ellipsis lies between integers and arrays: it moves their axes."""
    places = [i for i, k in enumerate(full) if not isinstance(k, slice)]
    if not places:
        return False
    return len(places) <= places[-1] - places[0] or places[0] < gap <= places[-1]


def _index_orthogonally(array: ManifestArray, full: list[Any]) -> Any:
    """Index each axis independently: virtually if it pays, else by reading."""
    if (virtual := _index_virtually(array, full)) is not None:
        return virtual
    counts = [_count_elements(k, n) for k, n in zip(full, array.shape, strict=True)]
    nbytes = prod(counts) * array.dtype.itemsize
    array.check_limit(nbytes)
    array.warn_of_copy(nbytes, "an index with a step or with positions")
    return array.read(tuple(full))


def select_virtually(
    array: ManifestArray, key: tuple[Any, ...], together: bool
) -> ManifestArray | None:
    """Return the selection of a key as a virtual array, None if it must be read.

    Parameters
    ----------
    array : ManifestArray
    key : tuple of int, slice or array of int, one per axis
    together : bool
        Whether the key holds arrays that broadcast to the shape of the result. Otherwise every
        entry selects along its own axis.
    """
    if together:
        return _select_together(array, [np.asarray(k) for k in key])
    return _index_virtually(
        array, [k if isinstance(k, slice) or np.ndim(k) else int(k) for k in key]
    )


def _select_together(array: ManifestArray, key: list[Ints]) -> ManifestArray | None:
    """Index by arrays that broadcast, if each varies along a different axis."""
    ndim = len(np.broadcast_shapes(*(k.shape for k in key)))
    key = [_drop_repetition(k) for k in key]
    along = [[j for j, n in enumerate(k.shape) if n != 1] for k in key]
    axes = [j for found in along for j in found]
    if len(set(axes)) < len(axes) or any(len(found) > 1 for found in along):
        return None
    # an array of one element selects as an integer does
    full = [k.ravel() if j else int(k.ravel()[0]) for k, j in zip(key, along, strict=True)]
    if (found := _index_virtually(array, full)) is None:
        return None
    inserted = [axis for axis in range(ndim) if axis not in axes]
    ordered = found.transpose(tuple(np.argsort(axes).tolist()))
    return reduce(ManifestArray.insert_axis, inserted, ordered)


def _drop_repetition(positions: Ints) -> Ints:
    """Return positions without repetition along axes along which they do not vary."""
    for axis in range(positions.ndim):
        first = positions[(slice(None),) * axis + (slice(1),)]
        if positions.size and (positions == first).all():
            positions = first
    return positions


def _index_virtually(array: ManifestArray, full: list[Any]) -> ManifestArray | None:
    """Index without reading, unless that leaves many more slabs than there were chunks."""
    segments = [
        _list_segments(k, n, i) for i, (k, n) in enumerate(zip(full, array.shape, strict=True))
    ]
    slabs = sum(_count_slabs(fragment, segments) for fragment in array.fragments)
    if slabs > FREE_SLABS + 2 * array.nchunks:
        return None
    for axis, along in enumerate(segments):
        array = _assemble(array, axis, along)
    for axis in reversed(range(len(full))):
        if isinstance(full[axis], int):
            array = array.drop_axis(axis)
    return array


Segment = tuple[int, int, int]
"""Elements ``start`` to ``stop``, and how many times each is shown."""


def _list_segments(key: Any, size: int, axis: int) -> list[Segment]:
    """Return the stretches of an axis that an index shows, in order."""
    if isinstance(key, slice):
        start, stop, step = key.indices(size)
        if step == 1:
            return [(start, max(start, stop), 1)]
        positions = np.arange(start, stop, step)
    else:
        positions = count_from_front(np.atleast_1d(key), size, axis)
    return _cut_positions(positions)


def _cut_positions(positions: Ints) -> list[Segment]:
    """Cut positions where they neither rise by one nor repeat."""
    found: list[Segment] = []
    for start, stop in find_runs(positions):
        if found and stop - start == 1 and found[-1][:2] == (start, stop):
            found[-1] = (start, stop, found[-1][2] + 1)
        else:
            found.append((start, stop, 1))
    return found or [(0, 0, 1)]


def _count_slabs(fragment: Fragment, segments: list[list[Segment]]) -> int:
    """Return how many slabs a fragment shows once every axis is cut into these stretches.

    Repeated elements count once: they are read once, and in the gaps of an outer join xarray
    repeats the last element until the gap is filled.
    """
    return prod(
        _count_slabs_along(cut, start, along)
        for cut, start, along in zip(fragment.axes, fragment.start, segments, strict=True)
    )


def _count_slabs_along(cut: ChunkAxis, start: int, segments: list[Segment]) -> int:
    low, high, _ = np.array(segments).T
    low, high = (np.clip(edge - start, 0, cut.size) for edge in (low, high))
    met = high > low
    return int((cut.locate(high[met] - 1) - cut.locate(low[met]) + 1).sum())


def _assemble(array: ManifestArray, axis: int, segments: list[Segment]) -> ManifestArray:
    parts = []
    for start, stop, times in segments:
        part = array.crop(axis, start, stop)
        parts.append(part.repeat(axis, times) if times != 1 else part)
    return parts[0] if len(parts) == 1 else join_arrays(parts, axis)


def _index_pointwise(array: ManifestArray, full: list[Any], apart: bool) -> npt.NDArray[Any]:
    """Index axes together, with the axes of the result where numpy puts them."""
    places = [i for i, k in enumerate(full) if not isinstance(k, slice)]
    arrays = np.broadcast_arrays(*(np.asarray(full[i]) for i in places))
    counts = [
        _count_elements(k, n)
        for k, n in zip(full, array.shape, strict=True)
        if isinstance(k, slice)
    ]
    nbytes = prod(counts) * arrays[0].size * array.dtype.itemsize
    array.check_limit(nbytes)
    array.warn_of_copy(nbytes, "an index of points")
    values = array.read_points(tuple(full))
    if not apart:
        points = list(range(arrays[0].ndim))
        values = np.moveaxis(values, points, [p + places[0] for p in points])
    return values


def _count_elements(key: Any, size: int) -> int:
    """Return how many elements an index takes of an axis."""
    if isinstance(key, slice):
        return len(range(*key.indices(size)))
    return int(np.size(key))


def _insert(array: Any, new_axes: list[int]) -> Any:
    return reduce(np.expand_dims, new_axes, array)


NUMPY_FUNCTIONS[np.ndarray.__getitem__] = getitem
