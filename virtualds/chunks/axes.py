"""Chunk axes: how an axis is divided into chunks, and which chunks a selection needs.

An axis of an array is divided into *slabs*, one per chunk along it. A slab is a range of logical
elements; its stored chunk may be longer, because the chunk is padded or larger than the array, or
the slab is cropped. Three columns describe the slabs:

- ``edges[i]`` and ``edges[i + 1]`` are the start and stop of the logical elements of slab ``i``,
- ``encoded[i]`` is the length of the stored chunk along this axis,
- ``inset[i]`` is the number of leading elements of the stored chunk before the slab.

`RegularAxis` represents a regular grid by four integers; `IrregularAxis` has the three columns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, repeat
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from virtualds.chunks.columns import Ints, compact, narrow_column
from virtualds.errors import format_count, public

AxisKey = slice | Ints
"""A normalised key of one axis: a slice with a positive step, or ascending positions."""


class Slabs(NamedTuple):
    """The columns of consecutive slabs; ``edges`` has one more element than the others."""

    edges: Ints
    encoded: Ints
    inset: Ints


class SlabRun(NamedTuple):
    """Slabs ``first`` to ``stop`` of a projection, and whether all their elements are selected."""

    first: int
    stop: int
    is_whole: bool


class Slices(Sequence[slice]):
    """A lazy sequence of slices; of a million slabs, few slices are ever used."""

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
    """The slabs of an axis that a selection needs.

    ``chunk[k]`` is the index of the slab, ``encoded[k]`` the length of its stored chunk,
    ``inner[k]`` the index into the stored chunk, and ``outer[k]`` the range of the result. ``runs``
    divides the slabs into ranges of equal stored length that are selected whole, and other ranges.
    """

    chunk: Ints
    encoded: Ints
    inner: Sequence[AxisKey]
    outer: Sequence[slice]
    runs: list[SlabRun]

    def restrict_to(self, first: int, stop: int) -> Projection:
        """Return entries ``first`` to ``stop`` as one run, which does not count as whole."""
        entries = slice(first, stop)
        chunk, encoded = self.chunk[entries], self.encoded[entries]
        runs = [SlabRun(0, chunk.size, False)]
        return Projection(chunk, encoded, self.inner[entries], self.outer[entries], runs)


EMPTY_PROJECTION = Projection(np.empty(0, np.int64), np.empty(0, np.int64), [], [], [])


def find_slab_runs(lengths: Ints) -> list[SlabRun]:
    """Return runs of slabs of equal length; slabs with length 0 are not selected whole."""
    bounds = [0, *(np.flatnonzero(np.diff(lengths)) + 1).tolist(), lengths.size]
    return [SlabRun(a, b, bool(lengths[a])) for a, b in pairwise(bounds)]


def to_slice(positions: Ints) -> AxisKey:
    """Convert evenly spaced ascending positions to a slice; return others unchanged."""
    if positions.size == 1:
        return slice(int(positions[0]), int(positions[0]) + 1, 1)
    steps = np.diff(positions)
    if (steps == steps[0]).all():
        return slice(int(positions[0]), int(positions[-1]) + 1, int(steps[0]))
    return positions


def normalise_positions(positions: npt.NDArray[Any], size: int, axis: int) -> Ints:
    """Return positions of an axis counted from its start; negative ones count from its end.

    Raises `IndexError` for positions that are not integers, or that are outside the axis.
    """
    if positions.dtype.kind not in "iu" and positions.size:
        raise IndexError(
            f"axis {axis}: an index of dtype {positions.dtype}; use integers or booleans"
        )
    normalised = positions.astype(np.int64)
    normalised = np.where(normalised < 0, normalised + size, normalised)
    if normalised.size and not 0 <= normalised.min() <= normalised.max() < size:
        bad = positions[(normalised < 0) | (normalised >= size)][0]
        raise IndexError(
            f"axis {axis}: position {bad} is outside {size} elements; give at least "
            f"{-size} and less than {size}"
        )
    return normalised


def find_runs(positions: Ints) -> list[tuple[int, int]]:
    """Return the ranges ``(start, stop)`` of consecutive ascending positions."""
    if not positions.size:
        return []
    breaks = np.flatnonzero(np.diff(positions) != 1) + 1
    bounds = [0, *breaks.tolist(), positions.size]
    return [(int(positions[a]), int(positions[b - 1]) + 1) for a, b in pairwise(bounds)]


# ---------------------------------------------------------------------- axes

MAX_AXIS_LENGTH = 2**62
"""Maximum number of elements of an axis, so that sums of two positions fit into 64-bit integers."""
HASHED_EDGES = 64
"""Approximate number of edges of an axis from which its hash is computed."""


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

    size: int
    """Number of logical elements."""
    nchunks: int
    """Number of slabs."""

    @abstractmethod
    def slabs(self, first: int = 0, stop: int | None = None) -> Slabs:
        """Return the columns of slabs ``first`` to ``stop``."""

    @abstractmethod
    def edges_at(self, numbers: Ints) -> Ints:
        """Return the logical positions of some edges; edge ``i`` is the start of slab ``i``."""

    def stored_lengths(self) -> set[int]:
        """Return the distinct lengths of stored chunks along the axis."""
        return set(np.unique(self.slabs().encoded).tolist())

    @abstractmethod
    def locate(self, positions: Ints) -> Ints:
        """Return the index of the slab that contains each logical position."""

    @property
    @abstractmethod
    def chunk(self) -> int | None:
        """The chunk length if a Zarr v2 ``.zarray`` could describe the axis, else None.

        All chunks then have the same length, no leading elements are cropped, and the last chunk
        is padded (or, if it is the only one, has the length of the axis).
        """

    @staticmethod
    def regular(size: int, chunk: int, *, inset: int = 0, last: int | None = None) -> RegularAxis:
        """Build an axis of equal chunks, of which the last one may store only ``last`` elements."""
        return RegularAxis(size, chunk, inset, chunk if last is None else last)

    @staticmethod
    def from_slabs(
        lengths: npt.ArrayLike, encoded: npt.ArrayLike, inset: npt.ArrayLike = 0
    ) -> ChunkAxis:
        """Build an axis from columns: a `RegularAxis` if possible.

        Parameters
        ----------
        lengths, encoded, inset : int or array of int, shape (nchunks,)
            Logical elements, stored elements, and cropped leading elements of every slab.
        """
        logical = np.asarray(lengths, np.int64)
        stored = np.broadcast_to(np.asarray(encoded, np.int64), logical.shape)
        cropped = np.broadcast_to(np.asarray(inset, np.int64), logical.shape)
        edges = np.concatenate([[0], np.cumsum(logical)])
        if logical.size and _is_regular(logical, stored, cropped):
            return RegularAxis(int(edges[-1]), int(stored[0]), int(cropped[0]), int(stored[-1]))
        if not logical.size:
            return RegularAxis(0, 1, 0, 1)
        return IrregularAxis(edges, narrow_column(stored), narrow_column(cropped))

    @staticmethod
    def concatenate(axes: Sequence[ChunkAxis]) -> ChunkAxis:
        """Concatenate chunk axes."""
        axes = [axis for axis in axes if axis.size] or list(axes[:1])
        if len(axes) == 1:
            return axes[0]
        if (joined := _concatenate_regular(axes)) is not None:
            return joined
        columns = [axis.slabs() for axis in axes]
        return ChunkAxis.from_slabs(
            np.concatenate([np.diff(c.edges) for c in columns]),
            np.concatenate([c.encoded for c in columns]),
            np.concatenate([c.inset for c in columns]),
        )

    @property
    def lengths(self) -> Ints:
        """Number of logical elements of each slab."""
        return np.diff(self.slabs().edges)

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Size of the axis object in memory, in bytes."""

    def crop(self, start: int, stop: int) -> tuple[ChunkAxis, slice]:
        """Return the axis of elements ``start`` to ``stop``, and the slice of its slabs."""
        if stop <= start:
            return RegularAxis(0, 1, 0, 1), slice(0, 0)
        first, final = (int(i) for i in self.locate(np.array([start, stop - 1])))
        edges, encoded, inset = self.slabs(first, final + 1)
        cropped = inset.copy()
        cropped[0] += start - edges[0]
        logical = np.diff(np.clip(edges, start, stop))
        return ChunkAxis.from_slabs(logical, encoded, cropped), slice(first, final + 1)

    def flip(self) -> ChunkAxis:
        """Return the axis with its elements in reverse order."""
        edges, encoded, inset = self.slabs()
        logical = np.diff(edges)
        trailing = encoded - inset - logical
        return ChunkAxis.from_slabs(logical[::-1], encoded[::-1], trailing[::-1])

    def project(self, key: AxisKey, start: int = 0) -> Projection:
        """Return the projection of ``key``, an index of the array, onto the slabs.

        ``start`` is the position in the array at which the axis begins.
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
        counts = np.diff(clipped)
        outer = clipped + (start - begin)
        return Projection(
            np.arange(first, final + 1),
            encoded,
            Slices(inner, inner + counts, 1),
            Slices(outer[:-1], outer[1:]),
            find_slab_runs(np.where(counts == encoded, counts, 0)),
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
        stored_positions = inside - edges[ids - first] + inset[ids - first]
        bounds = [0, *breaks.tolist(), inside.size]
        pairs = list(pairwise(bounds))
        return Projection(
            chunk,
            encoded[chunk - first],
            [to_slice(stored_positions[a:b]) for a, b in pairs],
            [slice(int(low) + a, int(low) + b) for a, b in pairs],
            [SlabRun(0, chunk.size, False)],
        )


@dataclass(frozen=True, slots=True)
class RegularAxis(ChunkAxis):
    """An axis with an edge every ``step`` elements, without the first ``inset`` ones.

    ``last`` is the stored length of the last chunk: ``step`` if it is padded.
    """

    size: int
    step: int
    inset: int
    last: int
    nchunks: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.size < 0 or self.step < 1 or not 0 <= self.inset < self.step:
            raise ValueError(
                f"ChunkAxis: size {self.size}, chunk {self.step}, inset {self.inset} is not "
                f"an axis; size is at least 0, chunk at least 1, inset within a chunk"
            )
        if max(self.size, self.step) >= MAX_AXIS_LENGTH:
            raise ValueError(f"ChunkAxis: size {self.size}, chunk {self.step} is too long")
        end = self.inset + self.size
        nchunks = -(-end // self.step) if self.size else 0
        shown = end - (nchunks - 1) * self.step
        if self.size and not shown <= self.last <= self.step:
            raise ValueError(
                f"ChunkAxis: the last chunk stores {self.last} elements, but the axis needs {shown}"
            )
        object.__setattr__(self, "nchunks", nchunks)

    @property
    def chunk(self) -> int | None:
        if self.inset or self.last not in (self.step, self.size):
            return None
        return self.last if self.nchunks == 1 else self.step if self.last == self.step else None

    @property
    def nbytes(self) -> int:
        return 32

    def slabs(self, first: int = 0, stop: int | None = None) -> Slabs:
        stop = self.nchunks if stop is None else stop
        edges = np.arange(first, stop + 1, dtype=np.int64) * self.step - self.inset
        # the first slab may be cropped, the last chunk padded
        edges[0] = max(int(edges[0]), 0)
        edges[-1] = min(int(edges[-1]), self.size)
        encoded = np.full(stop - first, self.step, np.int64)
        inset = np.zeros(stop - first, np.int64)
        if stop > first and stop == self.nchunks:
            encoded[-1] = self.last
        if stop > first and first == 0:
            inset[0] = self.inset
        return Slabs(edges, encoded, inset)

    def edges_at(self, numbers: Ints) -> Ints:
        positions: Ints = np.clip(numbers * self.step - self.inset, 0, self.size)
        return positions

    def stored_lengths(self) -> set[int]:
        return {self.step, self.last} if self.nchunks > 1 else {self.last} if self.size else set()

    def locate(self, positions: Ints) -> Ints:
        return (positions + self.inset) // self.step

    def crop(self, start: int, stop: int) -> tuple[ChunkAxis, slice]:
        if stop <= start:
            return ChunkAxis.crop(self, start, stop)
        first, inset = divmod(start + self.inset, self.step)
        final = (stop - 1 + self.inset) // self.step
        last = self.last if final == self.nchunks - 1 else self.step
        step = last if first == final else self.step
        return RegularAxis(stop - start, step, inset, last), slice(first, final + 1)

    def flip(self) -> ChunkAxis:
        count = self.nchunks
        if count > 1 and self.last != self.step:
            return ChunkAxis.flip(self)
        stored = (count - 1) * self.step + self.last
        return replace(self, inset=stored - self.inset - self.size) if count else self


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class IrregularAxis(ChunkAxis):
    """An axis of arbitrary slabs, as three columns."""

    edges: Ints
    encoded: npt.NDArray[np.integer]
    inset: npt.NDArray[np.integer]
    size: int = field(init=False)
    nchunks: int = field(init=False)

    def __post_init__(self) -> None:
        lengths = np.diff(self.edges)
        if (
            (lengths < 0).any()
            or (self.inset < 0).any()
            or (self.inset + lengths > self.encoded).any()
        ):
            raise ValueError(
                "ChunkAxis: a slab shows elements that its stored chunk does not have; "
                "make 0 <= inset and inset + length <= encoded hold for every slab"
            )
        object.__setattr__(self, "size", int(self.edges[-1]))
        object.__setattr__(self, "nchunks", lengths.size)

    def __repr__(self) -> str:
        lengths = sorted(self.stored_lengths())
        span = " to ".join(f"{n:,}" for n in lengths[:: max(len(lengths) - 1, 1)])
        count = format_count(self.nchunks, "chunk")
        return f"<IrregularAxis of {self.size:,}: {count} of {span}>"

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
        # some edges distinguish almost all axes, and hashing a million takes longer than most uses
        some = self.edges[:: max(self.nchunks // HASHED_EDGES, 1)]
        return hash((some.tobytes(), self.nchunks, self.size))


def _is_regular(logical: Ints, stored: Ints, cropped: Ints) -> bool:
    step = int(stored[0])
    if logical.size == 1:
        return bool(step > 0 and cropped[0] < step)
    return bool(
        cropped[0] + logical[0] == step
        and cropped[0] < step
        and not cropped[1:].any()
        and (stored[:-1] == step).all()
        and (logical[1:-1] == step).all()
        and 0 < logical[-1] <= stored[-1] <= step
    )


def _concatenate_regular(axes: Sequence[ChunkAxis]) -> RegularAxis | None:
    """Concatenate regular axes of equal, full chunks in O(len(axes)); None for other axes."""
    head = axes[0]
    if not isinstance(head, RegularAxis):
        return None
    total = head.size
    for left, right in pairwise(axes):
        if not isinstance(right, RegularAxis) or right.step != head.step or right.inset:
            return None
        if (left.inset + left.size) % head.step:  # type: ignore[attr-defined]
            return None
        total += right.size
    return RegularAxis(total, head.step, head.inset, axes[-1].last)  # type: ignore[attr-defined]


def make_regular_axes(shape: Sequence[int], chunks: Sequence[int]) -> tuple[ChunkAxis, ...]:
    """Return the axes of a regular chunk grid."""
    return tuple(ChunkAxis.regular(n, c) for n, c in zip(shape, chunks, strict=True))
