"""Chunk axes: how an axis is divided into chunks, and which chunks a selection needs; no I/O.

An axis of an array is divided into *slabs*, one per chunk along it. A slab contains some logical
elements of the array; its stored chunk may be longer, because it was padded, is longer than its
array, or has been cropped. Three numbers describe a slab:

- ``edges[i] .. edges[i + 1]`` are the logical elements of slab ``i``,
- ``encoded[i]`` is the length of the stored chunk along this axis,
- ``inset[i]`` is how many leading elements of the stored chunk are hidden.

`RegularAxis` represents the common case by four integers, whatever its length; `IrregularAxis` has
the three columns. Both have the same methods.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, repeat
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from virtualds.chunks.columns import Ints, compact, narrow_column
from virtualds.errors import format_count, public

AxisKey = slice | Ints
"""A key of one axis: a slice with start, stop and positive step, or ascending positions."""


class Slabs(NamedTuple):
    """The three columns of consecutive slabs; ``edges`` has one more element than the others."""

    edges: Ints
    encoded: Ints
    inset: Ints


class SlabRun(NamedTuple):
    """The slabs ``first`` to ``stop`` of a projection, and whether they are selected whole."""

    first: int
    stop: int
    whole: bool


class Slices(Sequence[slice]):
    """A sequence of slices that are created when accessed: of a million slabs, few are needed."""

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
    """The part of each slab that a selection needs.

    ``chunk[k]`` is the slab's number, ``encoded[k]`` the length of its stored chunk, ``inner[k]``
    selects within that, ``outer[k]`` is the range of the result that it fills. ``runs`` are the
    ranges of slabs that are selected in the same way: either whole, as stored and with equal
    lengths, or not.
    """

    chunk: Ints
    encoded: Ints
    inner: Sequence[AxisKey]
    outer: Sequence[slice]
    runs: list[SlabRun]

    def restrict_to(self, first: int, stop: int) -> Projection:
        """Return entries ``first`` to ``stop``, in one run that is marked as not selected whole."""
        taken = slice(first, stop)
        chunk, encoded = self.chunk[taken], self.encoded[taken]
        runs = [SlabRun(0, chunk.size, False)]
        return Projection(chunk, encoded, self.inner[taken], self.outer[taken], runs)


EMPTY_PROJECTION = Projection(np.empty(0, np.int64), np.empty(0, np.int64), [], [], [])


def split_by_length(lengths: Ints) -> list[SlabRun]:
    """Return the ranges of slabs with equal lengths; 0 marks slabs that are not selected whole."""
    bounds = [0, *(np.flatnonzero(np.diff(lengths)) + 1).tolist(), lengths.size]
    return [SlabRun(a, b, bool(lengths[a])) for a, b in pairwise(bounds)]


def to_slice(positions: Ints) -> AxisKey:
    """Convert ascending distinct positions to a slice if they are evenly spaced."""
    if positions.size == 1:
        return slice(int(positions[0]), int(positions[0]) + 1, 1)
    steps = np.diff(positions)
    if (steps == steps[0]).all():
        return slice(int(positions[0]), int(positions[-1]) + 1, int(steps[0]))
    return positions


def count_from_front(positions: npt.NDArray[Any], size: int, axis: int) -> Ints:
    """Return positions along an axis, counted from its start; raise `IndexError` for others."""
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


def find_runs(positions: Ints) -> list[tuple[int, int]]:
    """Return the ranges ``start, stop`` of consecutive ascending positions."""
    if not positions.size:
        return []
    breaks = np.flatnonzero(np.diff(positions) != 1) + 1
    bounds = [0, *breaks.tolist(), positions.size]
    return [(int(positions[a]), int(positions[b - 1]) + 1) for a, b in pairwise(bounds)]


# ---------------------------------------------------------------------- axes

MAX_AXIS = 2**62
"""Maximum number of elements of an axis, so that sums of two positions fit into 64-bit integers."""


@public
class ChunkAxis(ABC):
    """The division of one axis into chunks.

    Build one with `ChunkAxis.regular` or `ChunkAxis.from_slabs`.

    Examples
    --------
    >>> axis = ChunkAxis.regular(size=100, chunk=32)
    >>> axis.nchunks, axis.lengths.tolist()
    (4, [32, 32, 32, 4])
    """

    __slots__ = ()

    @property
    @abstractmethod
    def size(self) -> int:
        """Number of logical elements."""

    @property
    @abstractmethod
    def nchunks(self) -> int:
        """Number of slabs."""

    @abstractmethod
    def slabs(self, first: int = 0, stop: int | None = None) -> Slabs:
        """Return the columns of the slabs ``first`` to ``stop``."""

    @abstractmethod
    def edges_at(self, numbers: Ints) -> Ints:
        """Return the logical position of each edge; edge ``i`` is the beginning of slab ``i``."""

    def stored_lengths(self) -> set[int]:
        """Return the distinct numbers of elements that chunks store along the axis."""
        return set(np.unique(self.slabs().encoded).tolist())

    @abstractmethod
    def locate(self, positions: Ints) -> Ints:
        """Return the index of the slab that contains each logical position."""

    @property
    @abstractmethod
    def chunk(self) -> int | None:
        """The chunk length of a grid that starts at the first element of a chunk, or None.

        A Zarr v2 ``.zarray`` can describe such a grid: every chunk has the same length, the last
        one is padded (or, if it is the only one, has exactly the length of the axis).
        """

    @staticmethod
    def regular(size: int, chunk: int, *, inset: int = 0, last: int | None = None) -> RegularAxis:
        """Divide ``size`` elements into chunks of ``chunk`` elements; the last one has ``last``."""
        return RegularAxis(size, chunk, inset, chunk if last is None else last)

    @staticmethod
    def from_slabs(
        lengths: npt.ArrayLike, encoded: npt.ArrayLike, inset: npt.ArrayLike = 0
    ) -> ChunkAxis:
        """Build an axis from columns, as a regular one if it is regular.

        Parameters
        ----------
        lengths, encoded, inset : int or array of int, shape (nchunks,)
            Logical elements, stored elements, and hidden leading elements of every slab.
        """
        shown = np.asarray(lengths, np.int64)
        stored = np.broadcast_to(np.asarray(encoded, np.int64), shown.shape)
        hidden = np.broadcast_to(np.asarray(inset, np.int64), shown.shape)
        edges = np.concatenate([[0], np.cumsum(shown)])
        if shown.size and _is_regular(shown, stored, hidden):
            return RegularAxis(int(edges[-1]), int(stored[0]), int(hidden[0]), int(stored[-1]))
        if not shown.size:
            return RegularAxis(0, 1, 0, 1)
        return IrregularAxis(edges, narrow_column(stored), narrow_column(hidden))

    @staticmethod
    def concatenate(axes: Sequence[ChunkAxis]) -> ChunkAxis:
        """Concatenate axes."""
        axes = [axis for axis in axes if axis.size] or list(axes[:1])
        if len(axes) == 1:
            return axes[0]
        if (joined := _join_regular(axes)) is not None:
            return joined
        columns = [axis.slabs() for axis in axes]
        return ChunkAxis.from_slabs(
            np.concatenate([np.diff(c.edges) for c in columns]),
            np.concatenate([c.encoded for c in columns]),
            np.concatenate([c.inset for c in columns]),
        )

    @property
    def lengths(self) -> Ints:
        """Logical elements of every slab."""
        return np.diff(self.slabs().edges)

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """The size of this description in memory, in bytes."""

    def crop(self, start: int, stop: int) -> tuple[ChunkAxis, slice]:
        """Return the axis of the elements ``start`` to ``stop``, and which slabs were kept."""
        if stop <= start:
            return RegularAxis(0, 1, 0, 1), slice(0, 0)
        first, final = (int(i) for i in self.locate(np.array([start, stop - 1])))
        edges, encoded, inset = self.slabs(first, final + 1)
        hidden = inset.copy()
        hidden[0] += start - edges[0]
        shown = np.diff(np.clip(edges, start, stop))
        return ChunkAxis.from_slabs(shown, encoded, hidden), slice(first, final + 1)

    def flip(self) -> ChunkAxis:
        """Return the axis of the same elements from the last to the first."""
        edges, encoded, inset = self.slabs()
        shown = np.diff(edges)
        behind = encoded - inset - shown
        return ChunkAxis.from_slabs(shown[::-1], encoded[::-1], behind[::-1])

    def project(self, key: AxisKey, start: int = 0) -> Projection:
        """Return the part of each slab that ``key`` selects.

        The axis begins at the position ``start`` of the array.
        """
        if isinstance(key, slice):
            if key.step == 1:
                return self._project_range(key.start, key.stop, start)
            key = np.arange(key.start, key.stop, key.step)
        return self._project_positions(key, start)

    def _project_range(self, begin: int, end: int, start: int) -> Projection:
        low, high = max(begin - start, 0), min(end - start, self.size)
        if high <= low:
            return EMPTY_PROJECTION
        first, final = (int(i) for i in self.locate(np.array([low, high - 1])))
        edges, encoded, inset = self.slabs(first, final + 1)
        clipped = np.minimum(np.maximum(edges, low), high)
        inner = clipped[:-1] - edges[:-1] + inset
        taken = np.diff(clipped)
        outer = clipped + (start - begin)
        return Projection(
            np.arange(first, final + 1),
            encoded,
            Slices(inner, inner + taken, 1),
            Slices(outer[:-1], outer[1:]),
            split_by_length(np.where(taken == encoded, taken, 0)),
        )

    def _project_positions(self, positions: Ints, start: int) -> Projection:
        low, high = np.searchsorted(positions, [start, start + self.size])
        inside = positions[low:high] - start
        if not inside.size:
            return EMPTY_PROJECTION
        ids = self.locate(inside)
        breaks = np.flatnonzero(np.diff(ids)) + 1
        chunk = ids[np.concatenate([[0], breaks])]
        first = int(chunk[0])
        edges, encoded, inset = self.slabs(first, int(chunk[-1]) + 1)
        within = inside - edges[ids - first] + inset[ids - first]
        bounds = [0, *breaks.tolist(), inside.size]
        pairs = list(pairwise(bounds))
        return Projection(
            chunk,
            encoded[chunk - first],
            [to_slice(within[a:b]) for a, b in pairs],
            [slice(int(low) + a, int(low) + b) for a, b in pairs],
            [SlabRun(0, chunk.size, False)],
        )


@dataclass(frozen=True, slots=True)
class RegularAxis(ChunkAxis):
    """An axis with an edge every ``chunk`` elements, whose first ``inset`` elements are hidden.

    ``last`` is the stored length of the last chunk: ``chunk`` if it is padded.
    """

    length: int
    step: int
    hidden: int
    last: int

    def __post_init__(self) -> None:
        if self.length < 0 or self.step < 1 or not 0 <= self.hidden < self.step:
            raise ValueError(
                f"ChunkAxis: size {self.length}, chunk {self.step}, inset {self.hidden} does "
                f"not cut "
                f"of an axis; size is at least 0, chunk at least 1, inset within a chunk"
            )
        if max(self.length, self.step) >= MAX_AXIS:
            raise ValueError(f"ChunkAxis: size {self.length}, chunk {self.step} is too long")
        shown = (self.hidden + self.length) - (self.nchunks - 1) * self.step
        if self.length and not shown <= self.last <= self.step:
            raise ValueError(
                f"ChunkAxis: the last chunk stores {self.last} elements but shows up to {shown}"
            )

    @property
    def size(self) -> int:
        return self.length

    @property
    def nchunks(self) -> int:
        return -(-(self.hidden + self.length) // self.step) if self.length else 0

    @property
    def chunk(self) -> int | None:
        if self.hidden or self.last not in (self.step, self.length):
            return None
        return self.last if self.nchunks == 1 else self.step if self.last == self.step else None

    @property
    def nbytes(self) -> int:
        return 32

    def slabs(self, first: int = 0, stop: int | None = None) -> Slabs:
        stop = self.nchunks if stop is None else stop
        edges = np.arange(first, stop + 1, dtype=np.int64) * self.step - self.hidden
        # the first slab may be cropped, the last one padded
        edges[0] = max(int(edges[0]), 0)
        edges[-1] = min(int(edges[-1]), self.length)
        encoded = np.full(stop - first, self.step, np.int64)
        inset = np.zeros(stop - first, np.int64)
        if stop > first and stop == self.nchunks:
            encoded[-1] = self.last
        if stop > first and first == 0:
            inset[0] = self.hidden
        return Slabs(edges, encoded, inset)

    def edges_at(self, numbers: Ints) -> Ints:
        found: Ints = np.clip(numbers * self.step - self.hidden, 0, self.length)
        return found

    def stored_lengths(self) -> set[int]:
        return {self.step, self.last} if self.nchunks > 1 else {self.last} if self.length else set()

    def locate(self, positions: Ints) -> Ints:
        return (positions + self.hidden) // self.step

    def crop(self, start: int, stop: int) -> tuple[ChunkAxis, slice]:
        if stop <= start:
            return ChunkAxis.crop(self, start, stop)
        first, inset = divmod(start + self.hidden, self.step)
        final = (stop - 1 + self.hidden) // self.step
        last = self.last if final == self.nchunks - 1 else self.step
        step = last if first == final else self.step
        return RegularAxis(stop - start, step, inset, last), slice(first, final + 1)

    def flip(self) -> ChunkAxis:
        count = self.nchunks
        if count > 1 and self.last != self.step:
            return ChunkAxis.flip(self)
        stored = (count - 1) * self.step + self.last
        return replace(self, hidden=stored - self.hidden - self.length) if count else self


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class IrregularAxis(ChunkAxis):
    """An axis of arbitrary slabs, in three columns."""

    edges: Ints
    encoded: npt.NDArray[np.integer]
    inset: npt.NDArray[np.integer]

    def __post_init__(self) -> None:
        shown = np.diff(self.edges)
        if (shown < 0).any() or (self.inset < 0).any() or (self.inset + shown > self.encoded).any():
            raise ValueError(
                "ChunkAxis: a slab shows elements that its stored chunk does not have; "
                "make 0 <= inset and inset + length <= encoded hold for every slab"
            )

    def __repr__(self) -> str:
        lengths = sorted(self.stored_lengths())
        span = " to ".join(f"{n:,}" for n in lengths[:: max(len(lengths) - 1, 1)])
        counted = format_count(self.nchunks, "chunk")
        return f"<IrregularAxis of {self.size:,}: {counted} of {span}>"

    @property
    def size(self) -> int:
        return int(self.edges[-1])

    @property
    def nchunks(self) -> int:
        return self.edges.size - 1

    @property
    def chunk(self) -> int | None:
        return None

    @property
    def nbytes(self) -> int:
        return sum(a.nbytes for a in (self.edges, compact(self.encoded), compact(self.inset)))

    def slabs(self, first: int = 0, stop: int | None = None) -> Slabs:
        stop = self.nchunks if stop is None else stop
        return Slabs(
            self.edges[first : stop + 1],
            self.encoded[first:stop].astype(np.int64),
            self.inset[first:stop].astype(np.int64),
        )

    def edges_at(self, numbers: Ints) -> Ints:
        return self.edges[numbers]

    def locate(self, positions: Ints) -> Ints:
        return np.searchsorted(self.edges, positions, side="right").astype(np.int64) - 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IrregularAxis) and all(
            np.array_equal(getattr(self, name), getattr(other, name))
            for name in ("edges", "encoded", "inset")
        )

    def __hash__(self) -> int:
        return hash((self.edges.tobytes(), self.nchunks))


def _is_regular(shown: Ints, stored: Ints, hidden: Ints) -> bool:
    step = int(stored[0])
    if shown.size == 1:
        return bool(step > 0 and hidden[0] < step)
    full = shown[1:-1]
    return bool(
        hidden[0] + shown[0] == step
        and hidden[0] < step
        and not hidden[1:].any()
        and (stored[:-1] == step).all()
        and (full == step).all()
        and 0 < shown[-1] <= stored[-1] <= step
    )


def _join_regular(axes: Sequence[ChunkAxis]) -> RegularAxis | None:
    """Join regular axes of equal chunk length whose chunks are all full, in time O(len(axes))."""
    head = axes[0]
    if not isinstance(head, RegularAxis):
        return None
    total = head.length
    for left, right in pairwise(axes):
        if not isinstance(right, RegularAxis) or right.step != head.step or right.hidden:
            return None
        if (left.hidden + left.length) % head.step:  # type: ignore[attr-defined]
            return None
        total += right.length
    return RegularAxis(total, head.step, head.hidden, axes[-1].last)  # type: ignore[attr-defined]


def make_regular_axes(shape: Sequence[int], chunks: Sequence[int]) -> tuple[ChunkAxis, ...]:
    """Return the axes of a regular grid of chunks."""
    return tuple(ChunkAxis.regular(n, c) for n, c in zip(shape, chunks, strict=True))
