"""Projections: what a selection takes of a chunked axis; pure integers, no I/O."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, repeat
from math import prod
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

AxisKey = slice | Ints
"""A key of one axis: a slice with start, stop and positive step, or rising positions."""


class Slabs(NamedTuple):
    """The three columns of consecutive slabs; ``edges`` has one element more than the others."""

    edges: Ints
    encoded: Ints
    inset: Ints


class SlabRun(NamedTuple):
    """The slabs ``first`` to ``stop`` of a projection, and whether they are taken whole."""

    first: int
    stop: int
    whole: bool


class Slices(Sequence[slice]):
    """A sequence of slices that are made on access: of a million slabs, few are needed.

    Parameters
    ----------
    starts, stops : int64 array, shape (n,)
    step : int, optional
    """

    __slots__ = ("_starts", "_step", "_stops")

    def __init__(self, starts: Ints, stops: Ints, step: int | None = None) -> None:
        self._starts, self._stops, self._step = starts, stops, step

    def __len__(self) -> int:
        return self._starts.size

    @overload
    def __getitem__(self, item: int) -> slice: ...
    @overload
    def __getitem__(self, item: slice) -> Slices: ...
    def __getitem__(self, item: int | slice) -> slice | Slices:
        starts, stops = self._starts[item], self._stops[item]
        if isinstance(item, slice):
            return Slices(starts, stops, self._step)
        return slice(int(starts), int(stops), self._step)

    def __iter__(self) -> Iterator[slice]:
        return map(slice, self._starts.tolist(), self._stops.tolist(), repeat(self._step))


class Projection(NamedTuple):
    """What a selection takes from each slab it meets.

    ``chunk[k]`` is the slab's number, ``encoded[k]`` the length of its stored chunk, ``inner[k]``
    selects within that, ``outer[k]`` is the stretch of the result that it fills. ``runs`` are the
    stretches of slabs that are taken alike: as they are stored, from the first element to the last,
    and of one length; or not.
    """

    chunk: Ints
    encoded: Ints
    inner: Sequence[AxisKey]
    outer: Sequence[slice]
    runs: list[SlabRun]

    def take_part(self, first: int, stop: int) -> Projection:
        """Return what is taken from some of the slabs, none of which counts as whole."""
        taken = slice(first, stop)
        chunk, encoded = self.chunk[taken], self.encoded[taken]
        runs = [SlabRun(0, chunk.size, False)]
        return Projection(chunk, encoded, self.inner[taken], self.outer[taken], runs)


EMPTY_PROJECTION = Projection(np.empty(0, np.int64), np.empty(0, np.int64), [], [], [])


def split_by_length(lengths: Ints) -> list[SlabRun]:
    """Return the stretches of equal lengths, of which 0 stands for slabs that are not whole."""
    bounds = [0, *(np.flatnonzero(np.diff(lengths)) + 1).tolist(), lengths.size]
    return [SlabRun(a, b, bool(lengths[a])) for a, b in pairwise(bounds)]


def to_slice(positions: Ints) -> AxisKey:
    """Return rising positions, none of them twice, as a slice where they are evenly spaced."""
    if positions.size == 1:
        return slice(int(positions[0]), int(positions[0]) + 1, 1)
    steps = np.diff(positions)
    if (steps == steps[0]).all():
        return slice(int(positions[0]), int(positions[-1]) + 1, int(steps[0]))
    return positions


def count_from_front(positions: npt.NDArray[Any], size: int, axis: int) -> Ints:
    """Return positions along an axis, counted from its front.

    Raises
    ------
    IndexError
        They are no integers, or one lies outside the axis.
    """
    if positions.dtype.kind not in "iu" and positions.size:
        raise IndexError(f"axis {axis}: {positions.dtype} cannot index; use integers or booleans")
    counted = positions.astype(np.int64)
    counted = np.where(counted < 0, counted + size, counted)
    if counted.size and not 0 <= counted.min() <= counted.max() < size:
        bad = positions[(counted < 0) | (counted >= size)][0]
        raise IndexError(
            f"axis {axis}: position {bad} lies outside {size} elements; count from either end of it"
        )
    return counted


def compute_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return how far apart neighbours along each axis lie in C order.

    Examples
    --------
    >>> compute_strides((5, 3, 4))
    (12, 4, 1)
    """
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))


def find_runs(positions: Ints) -> list[tuple[int, int]]:
    """Return the stretches ``start, stop`` of consecutive rising positions."""
    if not positions.size:
        return []
    cuts = np.flatnonzero(np.diff(positions) != 1) + 1
    bounds = [0, *cuts.tolist(), positions.size]
    return [(int(positions[a]), int(positions[b - 1]) + 1) for a, b in pairwise(bounds)]
