"""Fragments: boxes of an array, cut into chunks along each axis, each with a manifest."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from virtualds.chunks.columns import (
    EMPTY_PROJECTION,
    AxisKey,
    Ints,
    Projection,
    SlabRun,
    Slabs,
    Slices,
    compact,
    narrow_column,
    split_by_length,
    to_slice,
)
from virtualds.chunks.manifest import ChunkManifest
from virtualds.chunks.tables import are_alike, join_manifests
from virtualds.errors import format_count, public

# ---------------------------------------------------------------------- axes
# Chunk axes: how an axis is cut into chunks; pure integers, no I/O.
#
# An axis of an array is cut into *slabs*, one per chunk along it. A slab shows some logical
# elements of the array; its stored chunk may be longer, because it was padded, is longer than its
# array, or has been cropped. Three numbers describe a slab:
#
# - ``edges[i] .. edges[i + 1]`` are the logical elements that slab ``i`` shows,
# - ``encoded[i]`` is the length of the stored chunk along this axis,
# - ``inset[i]`` is how many leading elements of the stored chunk are hidden.
#
# `RegularAxis` holds the common case in four integers whatever its length; `IrregularAxis` holds
# the three columns. Both have the same methods.


LONGEST_AXIS = 2**62
"""More elements than an axis may have, so that sums of two positions are 64-bit integers."""


@public
class ChunkAxis(ABC):
    """How one axis is cut into chunks.

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
        """Return the logical position of each edge; edge ``i`` is where slab ``i`` begins."""

    def stored_lengths(self) -> set[int]:
        """Return the different numbers of elements that chunks store along the axis."""
        return set(np.unique(self.slabs().encoded).tolist())

    @abstractmethod
    def locate(self, positions: Ints) -> Ints:
        """Return the number of the slab that shows each logical position."""

    @property
    @abstractmethod
    def chunk(self) -> int | None:
        """The chunk length of a grid that starts at a chunk's first element, or None.

        A Zarr v2 ``.zarray`` can hold such a grid: every chunk has one length, the last one is
        padded (or, where it is the only one, has exactly the length of the axis).
        """

    @staticmethod
    def regular(size: int, chunk: int, *, inset: int = 0, last: int | None = None) -> RegularAxis:
        """Cut ``size`` elements every ``chunk``; the last chunk stores ``last`` of them."""
        return RegularAxis(size, chunk, inset, chunk if last is None else last)

    @staticmethod
    def from_slabs(
        lengths: npt.ArrayLike, encoded: npt.ArrayLike, inset: npt.ArrayLike = 0
    ) -> ChunkAxis:
        """Build an axis from columns, as a regular one wherever it is regular.

        Parameters
        ----------
        lengths, encoded, inset : int or array of int, shape (nchunks,)
            Elements shown, elements stored, and hidden leading elements of every slab.
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
        """Lay axes end to end."""
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
        """Elements shown by every slab."""
        return np.diff(self.slabs().edges)

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes that this description takes in memory."""

    def crop(self, start: int, stop: int) -> tuple[ChunkAxis, slice]:
        """Return the axis of the elements ``start`` to ``stop``, and which slabs it kept."""
        if stop <= start:
            return RegularAxis(0, 1, 0, 1), slice(0, 0)
        first, final = (int(i) for i in self.locate(np.array([start, stop - 1])))
        edges, encoded, inset = self.slabs(first, final + 1)
        hidden = inset.copy()
        hidden[0] += start - edges[0]
        shown = np.diff(np.clip(edges, start, stop))
        return ChunkAxis.from_slabs(shown, encoded, hidden), slice(first, final + 1)

    def project(self, key: AxisKey, start: int = 0) -> Projection:
        """Return what ``key`` takes from each slab; the axis begins at ``start`` of the array."""
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
        cut = np.minimum(np.maximum(edges, low), high)
        inner = cut[:-1] - edges[:-1] + inset
        taken = np.diff(cut)
        outer = cut + (start - begin)
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
        cuts = np.flatnonzero(np.diff(ids)) + 1
        chunk = ids[np.concatenate([[0], cuts])]
        first = int(chunk[0])
        edges, encoded, inset = self.slabs(first, int(chunk[-1]) + 1)
        within = inside - edges[ids - first] + inset[ids - first]
        bounds = [0, *cuts.tolist(), inside.size]
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
    """An axis cut every ``chunk`` elements, the first ``inset`` of which are hidden.

    ``last`` is the stored length of the last chunk: ``chunk`` where it is padded.
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
        if max(self.length, self.step) >= LONGEST_AXIS:
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


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class IrregularAxis(ChunkAxis):
    """An axis with any slabs, held in three columns."""

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
    """Join regular axes of one chunk length whose chunks are all full, in time O(len(axes))."""
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


# ---------------------------------------------------------------------- fragments


@public
@dataclass(frozen=True, repr=False)
class Fragment:
    """A box of an array whose chunks lie on one grid.

    Parameters
    ----------
    start : tuple of int
        Where the box begins in the array, per axis.
    axes : tuple of ChunkAxis
        How the box is cut, per axis.
    manifest : ChunkManifest
        Where the bytes of every chunk lie.

    Raises
    ------
    ValueError
        The manifest's grid is not the grid of the axes.

    Examples
    --------
    >>> axes = (ChunkAxis.regular(size=3, chunk=2),)
    >>> manifest = ChunkManifest.missing((2,))
    >>> Fragment((4,), axes, manifest).stop
    (7,)
    """

    start: tuple[int, ...]
    axes: tuple[ChunkAxis, ...]
    manifest: ChunkManifest

    def __post_init__(self) -> None:
        grid = tuple([axis.nchunks for axis in self.axes])
        if grid != self.manifest.shape or len(self.start) != len(self.axes):
            raise ValueError(
                f"Fragment: axes of {grid} chunks at {self.start} with a manifest of "
                f"{self.manifest.shape}; give both the same grid"
            )

    @classmethod
    def whole(cls, axes: tuple[ChunkAxis, ...], manifest: ChunkManifest) -> Fragment:
        """Return the fragment of an array that consists of one.

        Examples
        --------
        >>> axes = (ChunkAxis.regular(size=3, chunk=2),)
        >>> Fragment.whole(axes, ChunkManifest.missing((2,))).start
        (0,)
        """
        return cls((0,) * len(axes), axes, manifest)

    def __repr__(self) -> str:
        return f"<Fragment {self.start} to {self.stop}: {self.manifest!r}>"

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Elements per axis."""
        return tuple([axis.size for axis in self.axes])

    @property
    def stop(self) -> tuple[int, ...]:
        """Where the box ends in the array, per axis."""
        return tuple(s + n for s, n in zip(self.start, self.shape, strict=True))

    def edges(self, axis: int) -> Ints:
        """Return where the chunks begin and end along an axis of the array."""
        return self.axes[axis].slabs().edges + self.start[axis]

    def count_slabs(self, segments: Sequence[Sequence[tuple[int, int, int]]]) -> int:
        """Return how many slabs it shows once every axis is cut into stretches of the array.

        A stretch is its start, its stop, and how often it is repeated. Repeated elements count
        once: they are read once, and in the gaps of an outer join xarray repeats the last element
        until the gap is filled.
        """
        count = 1
        for cut, start, along in zip(self.axes, self.start, segments, strict=True):
            low, high, _ = np.array(along).T
            low, high = np.clip((low - start, high - start), 0, cut.size)
            met = high > low
            count *= int((cut.locate(high[met] - 1) - cut.locate(low[met]) + 1).sum())
        return count

    def shift(self, axis: int, by: int) -> Fragment:
        """Return the box moved along one axis."""
        start = (*self.start[:axis], self.start[axis] + by, *self.start[axis + 1 :])
        return replace(self, start=start)

    def crop(self, axis: int, start: int, stop: int) -> Fragment | None:
        """Return the part between two positions of the array, moved by the first; None if empty."""
        low = max(start, self.start[axis])
        high = min(stop, self.stop[axis])
        if high <= low:
            return None
        cut, kept = self.axes[axis].crop(low - self.start[axis], high - self.start[axis])
        axes = (*self.axes[:axis], cut, *self.axes[axis + 1 :])
        begin = (*self.start[:axis], low - start, *self.start[axis + 1 :])
        return Fragment(begin, axes, self.manifest.take(axis, kept))

    def reorder(self, axis: int, begins: Ints, lengths: Ints, order: Ints) -> Fragment | None:
        """Return the box with its parts along an axis in another order.

        None if a chunk belongs to two parts, or the references lie in a set or are chunks
        themselves.
        """
        if self.manifest.is_in_set or (manifest := self.manifest.loaded()).inline:
            return None
        edges, encoded, inset = self.axes[axis].slabs()
        first = np.searchsorted(edges, begins)
        stop = np.searchsorted(edges, begins + lengths)
        shared = (edges[first] != begins) | (edges[stop] != begins + lengths)
        if shared.any():
            return None
        counts = (stop - first)[order]
        ends = np.cumsum(counts)
        ids = np.arange(ends[-1]) + np.repeat(first[order] - ends + counts, counts)
        cut = ChunkAxis.from_slabs(np.diff(edges)[ids], encoded[ids], inset[ids])
        axes = (*self.axes[:axis], cut, *self.axes[axis + 1 :])
        return Fragment(self.start, axes, manifest.take(axis, ids).with_files_in_turn(axis))

    def transpose(self, order: Sequence[int]) -> Fragment:
        """Permute the axes."""
        return Fragment(
            tuple(self.start[i] for i in order),
            tuple(self.axes[i] for i in order),
            self.manifest.transpose(order),
        )

    def insert_axis(self, axis: int) -> Fragment:
        """Insert an axis of one element."""
        grid = self.manifest.shape
        return Fragment(
            (*self.start[:axis], 0, *self.start[axis:]),
            (*self.axes[:axis], ChunkAxis.regular(1, 1), *self.axes[axis:]),
            self.manifest.reshape((*grid[:axis], 1, *grid[axis:])),
        )

    def drop_axis(self, axis: int) -> Fragment:
        """Remove an axis of one element."""
        grid = self.manifest.shape
        return Fragment(
            (*self.start[:axis], *self.start[axis + 1 :]),
            (*self.axes[:axis], *self.axes[axis + 1 :]),
            self.manifest.reshape((*grid[:axis], *grid[axis + 1 :])),
        )

    def repeat(self, axis: int, count: int) -> Fragment:
        """Show an axis of one element ``count`` times."""
        _, encoded, inset = self.axes[axis].slabs()
        cut = ChunkAxis.from_slabs(np.ones(count), encoded[0], inset[0])
        axes = (*self.axes[:axis], cut, *self.axes[axis + 1 :])
        shape = tuple(a.nchunks for a in axes)
        return Fragment(self.start, axes, self.manifest.broadcast_to(shape))


def join_fragments(fragments: Sequence[Fragment], axis: int) -> tuple[Fragment, ...]:
    """Join neighbours along ``axis`` whose other axes are cut alike; in order of their start."""
    ordered = sorted(fragments, key=lambda f: (_drop_axis(f.start, axis), f.start[axis]))
    runs: list[list[Fragment]] = []
    for fragment in ordered:
        if runs and _can_join(runs[-1][-1], fragment, axis):
            runs[-1].append(fragment)
        else:
            runs.append([fragment])
    return tuple(_merge_fragments(run, axis) for run in runs)


def _can_join(left: Fragment, right: Fragment, axis: int) -> bool:
    return (
        left.stop[axis] == right.start[axis]
        and not left.manifest.stays_apart
        and not right.manifest.stays_apart
        and are_alike(left.manifest, right.manifest)
        and _drop_axis(left.start, axis) == _drop_axis(right.start, axis)
        and _drop_axis(left.axes, axis) == _drop_axis(right.axes, axis)
    )


def _merge_fragments(run: Sequence[Fragment], axis: int) -> Fragment:
    if len(run) == 1:
        return run[0]
    cut = ChunkAxis.concatenate([f.axes[axis] for f in run])
    axes = (*run[0].axes[:axis], cut, *run[0].axes[axis + 1 :])
    manifests = [f.manifest for f in run if f.axes[axis].size]
    return Fragment(run[0].start, axes, join_manifests(manifests, axis))


def _drop_axis(values: tuple[Any, ...], axis: int) -> tuple[Any, ...]:
    """Return all but one item."""
    return values[:axis] + values[axis + 1 :]
