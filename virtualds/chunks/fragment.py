"""Fragments: boxes of an array, divided into chunks along each axis, each with a manifest.

Also the common chunk grid of fragments, and blocks of whole chunks for dask. A block is bounded by
planes through the whole array. A plane is good if it cuts no chunk of any fragment, so that no
chunk is decoded twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from virtualds.chunks.axes import ChunkAxis
from virtualds.chunks.columns import Ints
from virtualds.chunks.manifest import ChunkManifest
from virtualds.chunks.tables import can_join, join_manifests
from virtualds.errors import public
from virtualds.options import MIB


@public
@dataclass(frozen=True, repr=False)
class Fragment:
    """A box of an array whose chunks form one grid.

    Parameters
    ----------
    start : tuple of int
        Where the box begins in the array, per axis.
    axes : tuple of ChunkAxis
        How the box is divided, per axis.
    manifest : ChunkManifest
        The location of the bytes of every chunk.

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
        """Return the only fragment of an array.

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
        """The end of the box in the array, per axis."""
        return tuple(s + n for s, n in zip(self.start, self.shape, strict=True))

    def edges(self, axis: int) -> Ints:
        """Return the positions in the array where chunks begin and end along an axis."""
        return self.axes[axis].slabs().edges + self.start[axis]

    def count_slabs(self, segments: Sequence[Sequence[tuple[int, ...]]]) -> int:
        """Return the number of slabs that are visible if every axis is divided into segments.

        A segment begins with its start and its stop. Repeated elements count once: they are read
        once, and in the gaps of an outer join xarray repeats the last element until the gap is
        filled.
        """
        count = 1
        for chunk_axis, start, along in zip(self.axes, self.start, segments, strict=True):
            low, high = np.array(along).T[:2]
            low, high = np.clip((low - start, high - start), 0, chunk_axis.size)
            met = high > low
            count *= int((chunk_axis.locate(high[met] - 1) - chunk_axis.locate(low[met]) + 1).sum())
        return count

    def shift(self, axis: int, by: int) -> Fragment:
        """Return the box moved along one axis."""
        start = (*self.start[:axis], self.start[axis] + by, *self.start[axis + 1 :])
        return replace(self, start=start)

    def crop(self, axis: int, start: int, stop: int) -> Fragment | None:
        """Return the part from ``start`` to ``stop`` of the array, moved by ``-start``, or None."""
        low = max(start, self.start[axis])
        high = min(stop, self.stop[axis])
        if high <= low:
            return None
        cropped, kept = self.axes[axis].crop(low - self.start[axis], high - self.start[axis])
        axes = (*self.axes[:axis], cropped, *self.axes[axis + 1 :])
        begin = (*self.start[:axis], low - start, *self.start[axis + 1 :])
        return Fragment(begin, axes, self.manifest.take(axis, kept))

    def flip(self, axis: int, size: int) -> Fragment:
        """Return the fragment of an array that is flipped along an axis of ``size`` elements.

        Its chunks show their elements in the order that their pipelines say.
        """
        start = (*self.start[:axis], size - self.stop[axis], *self.start[axis + 1 :])
        axes = (*self.axes[:axis], self.axes[axis].flip(), *self.axes[axis + 1 :])
        return Fragment(start, axes, self.manifest.take(axis, slice(None, None, -1)))

    def reorder(self, axis: int, begins: Ints, lengths: Ints, order: Ints) -> Fragment | None:
        """Return the box with its parts along an axis in a different order.

        None if a chunk belongs to two parts, or the references are in a set or are chunks
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
        reordered = ChunkAxis.from_slabs(np.diff(edges)[ids], encoded[ids], inset[ids])
        axes = (*self.axes[:axis], reordered, *self.axes[axis + 1 :])
        return Fragment(self.start, axes, manifest.take(axis, ids).with_files_in_order(axis))

    def transpose(self, order: Sequence[int]) -> Fragment:
        """Permute the axes."""
        return Fragment(
            tuple(self.start[i] for i in order),
            tuple(self.axes[i] for i in order),
            self.manifest.transpose(order),
        )

    def insert_axis(self, axis: int) -> Fragment:
        """Insert an axis of length 1."""
        grid = self.manifest.shape
        return Fragment(
            (*self.start[:axis], 0, *self.start[axis:]),
            (*self.axes[:axis], ChunkAxis.regular(1, 1), *self.axes[axis:]),
            self.manifest.reshape((*grid[:axis], 1, *grid[axis:])),
        )

    def drop_axis(self, axis: int) -> Fragment:
        """Remove an axis of length 1."""
        grid = self.manifest.shape
        return Fragment(
            (*self.start[:axis], *self.start[axis + 1 :]),
            (*self.axes[:axis], *self.axes[axis + 1 :]),
            self.manifest.reshape((*grid[:axis], *grid[axis + 1 :])),
        )

    def repeat(self, axis: int, count: int) -> Fragment:
        """Repeat an axis of length 1 ``count`` times."""
        _, encoded, inset = self.axes[axis].slabs()
        repeated = ChunkAxis.from_slabs(np.ones(count), encoded[0], inset[0])
        axes = (*self.axes[:axis], repeated, *self.axes[axis + 1 :])
        shape = tuple(a.nchunks for a in axes)
        return Fragment(self.start, axes, self.manifest.broadcast_to(shape))


def join_fragments(fragments: Sequence[Fragment], axis: int) -> tuple[Fragment, ...]:
    """Join adjacent fragments along ``axis`` whose other axes are equal; sort them by start."""
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
        and not left.manifest.must_stay_separate
        and not right.manifest.must_stay_separate
        and can_join(left.manifest, right.manifest)
        and _drop_axis(left.start, axis) == _drop_axis(right.start, axis)
        and _drop_axis(left.axes, axis) == _drop_axis(right.axes, axis)
    )


def _merge_fragments(run: Sequence[Fragment], axis: int) -> Fragment:
    if len(run) == 1:
        return run[0]
    merged = ChunkAxis.concatenate([f.axes[axis] for f in run])
    axes = (*run[0].axes[:axis], merged, *run[0].axes[axis + 1 :])
    manifests = [f.manifest for f in run if f.axes[axis].size]
    return Fragment(run[0].start, axes, join_manifests(manifests, axis))


def _drop_axis(values: tuple[Any, ...], axis: int) -> tuple[Any, ...]:
    """Return all but one item."""
    return values[:axis] + values[axis + 1 :]


# ---------------------------------------------------------------------- alignment

LARGE_BLOCK = 128 * MIB
"""The size in bytes of a block above which chunks are split, if fragments share too few edges."""

Lengths = tuple[int, ...]

AxesAlong = Sequence[tuple[int, ChunkAxis]]
"""The axes of fragments along one axis of the array, each with its start."""


def find_whole_blocks(
    shape: Sequence[int], fragments: Sequence[Fragment], itemsize: int
) -> tuple[Lengths, ...]:
    """Return the lengths of the smallest blocks of whole chunks, per axis.

    If fragments share so few edges that such a block would be huge, an axis is divided like its
    longest fragment. Gaps between fragments are divided into blocks as long as the longest one.

    Examples
    --------
    >>> from virtualds.chunks.manifest import ChunkManifest
    >>> months = ChunkAxis.from_slabs([31, 28, 31], [31, 28, 31])
    >>> find_whole_blocks((90,), [Fragment((0,), (months,), ChunkManifest.missing((3,)))], 4)
    ((31, 28, 31),)
    """
    kept = [f for f in fragments if 0 not in f.shape]
    along = [
        list({(f.start[axis], f.axes[axis]): None for f in kept}) for axis in range(len(shape))
    ]
    edges = [
        _find_shared_edges(size, axes_along) for size, axes_along in zip(shape, along, strict=True)
    ]
    # there may be many fragments, most of which are cut alike
    ways = {f.axes for f in kept}
    largest = max((prod(_find_longest(a.lengths) for a in axes) for axes in ways), default=1)
    for axis in sorted(range(len(shape)), key=lambda i: -_compute_block_ratio(edges[i], along[i])):
        block = prod(_find_longest(np.diff(e)) for e in edges)
        if block <= max(largest, LARGE_BLOCK // max(itemsize, 1)):
            break
        edges[axis] = _find_edges_of_longest(shape[axis], along[axis])
    covered = zip(edges, along, strict=True)
    return tuple(_edges_to_lengths(_divide_gaps(e, axes_along)) for e, axes_along in covered)


def to_preferred_chunks(lengths: Lengths) -> int | Lengths:
    """Return lengths as one number if only the last one is smaller, as xarray's backends do."""
    regular = all(n == lengths[0] for n in lengths[:-1]) and lengths[-1] <= lengths[0]
    return lengths[0] if regular else lengths


def snap_blocks(lengths: Lengths, whole: Lengths) -> Lengths:
    """Return blocks whose edges are moved back to the edges of whole blocks.

    Examples
    --------
    >>> snap_blocks((50, 40), (31, 28, 31))
    (31, 59)
    """
    edges = np.concatenate([[0], np.cumsum(whole)])
    wanted = np.cumsum(lengths)
    found = edges[np.searchsorted(edges, wanted, side="right") - 1]
    return _edges_to_lengths(np.unique(np.concatenate([[0], found])))


def _edges_to_lengths(edges: Ints) -> Lengths:
    return tuple(np.diff(edges).tolist()) or (0,)


def _find_longest(lengths: Ints) -> int:
    return int(lengths.max(initial=0))


def _list_slab_edges(axes_along: AxesAlong) -> list[Ints]:
    edges = {axis: axis.slabs().edges for axis in {axis for _, axis in axes_along}}
    return [edges[axis] + start for start, axis in axes_along]


def _find_shared_edges(size: int, axes_along: AxesAlong) -> Ints:
    """Return the edges that lie inside no chunk."""
    every = _list_slab_edges(axes_along)
    found = np.unique(np.concatenate([np.array([0, size]), *every]))
    for edges in every if len(axes_along) > 1 else ():
        first, stop = np.searchsorted(found, edges[0]), np.searchsorted(found, edges[-1], "right")
        inside = found[first:stop]
        if not np.array_equal(inside, edges):
            shared = inside[np.isin(inside, edges)]
            found = np.concatenate([found[:first], shared, found[stop:]])
    return found


def _compute_block_ratio(edges: Ints, axes_along: AxesAlong) -> float:
    """Return the ratio of the longest block to the longest chunk."""
    stored = max(
        (_find_longest(axis.lengths) for axis in {axis for _, axis in axes_along}), default=0
    )
    return _find_longest(np.diff(edges)) / max(stored, 1)


def _find_edges_of_longest(size: int, axes_along: AxesAlong) -> Ints:
    """Return the edges of the chunks of the longest fragment, and the ends of all others."""
    start, axis = max(axes_along, key=lambda placed: placed[1].size)
    ends: list[Any] = [(begin, begin + other.size) for begin, other in axes_along]
    outside = np.array([0, size, *np.ravel(ends)])
    outside = outside[(outside <= start) | (outside >= start + axis.size)]
    return np.unique(np.concatenate([axis.slabs().edges + start, outside]))


def _divide_gaps(edges: Ints, axes_along: AxesAlong) -> Ints:
    """Divide gaps between fragments into blocks as long as the longest block elsewhere."""
    if not axes_along:
        return edges
    covered = np.zeros(edges.size - 1, bool)
    for start, axis in axes_along:
        covered |= (edges[:-1] >= start) & (edges[1:] <= start + axis.size)
    step = _find_longest(np.diff(edges)[covered])
    if covered.all() or not step:
        return edges
    gaps = zip(edges[:-1][~covered].tolist(), edges[1:][~covered].tolist(), strict=True)
    return np.unique(np.concatenate([edges, *(np.arange(a, b, step) for a, b in gaps)]))


# ---------------------------------------------------------------------- shared grids


def find_regular_chunks(
    shape: Sequence[int], fragments: Sequence[Fragment]
) -> tuple[int, ...] | None:
    """Return the chunk shape of the regular grid that all fragments share, or None.

    Without fragments, it is one chunk.
    """
    if not fragments:
        return tuple(max(n, 1) for n in shape)
    chunks = []
    for axis in range(len(shape)):
        if (length := find_regular_length(shape, fragments, axis)) is None:
            return None
        chunks.append(length)
    return tuple(chunks)


def find_regular_length(
    shape: Sequence[int], fragments: Sequence[Fragment], axis: int
) -> int | None:
    """Return the length of all chunks along an axis of a regular grid, or None."""
    lengths = {f.axes[axis].chunk for f in fragments}
    if len(lengths) != 1 or (length := lengths.pop()) is None:
        return None
    for fragment in fragments:
        begin, end = fragment.start[axis], fragment.stop[axis]
        if begin % length or (end % length and end != shape[axis]):
            return None
    return length


def find_mesh_lengths(shape: Sequence[int], fragments: Sequence[Fragment]) -> list[Ints] | None:
    """Return the lengths of the chunks along every axis of the mesh that all fragments share.

    Chunks have no hidden elements, except that the last one along an axis may reach past the end of
    the array. Ranges of an axis that are in no fragment are divided like their neighbours. None if
    chunks have hidden elements, or there is no such mesh.

    Examples
    --------
    >>> from virtualds.chunks.manifest import ChunkManifest
    >>> months = ChunkAxis.from_slabs([31, 28, 31], [31, 28, 31])
    >>> year = Fragment((0,), (months,), ChunkManifest.missing((3,)))
    >>> [lengths.tolist() for lengths in find_mesh_lengths((90,), [year])]
    [[31, 28, 31]]
    """
    found = []
    for axis, size in enumerate(shape):
        cuts = {(f.start[axis], f.axes[axis]) for f in fragments if 0 not in f.shape}
        lengths = _find_axis_lengths(size, sorted(cuts, key=lambda cut: cut[0]))
        if lengths is None:
            return None
        found.append(lengths)
    return found


def _find_axis_lengths(size: int, axes_along: Sequence[tuple[int, ChunkAxis]]) -> Ints | None:
    """Return the chunk lengths that all fragments share along an axis, or None if they differ."""
    begins, lengths = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for start, axis in axes_along:
        edges, encoded, inset = axis.slabs()
        shown, end = np.diff(edges), edges[1:] + start
        whole = (encoded == shown) | ((encoded > shown) & (end == size))
        if inset.any() or not (shown > 0).all() or not whole.all():
            return None
        begins.append(edges[:-1] + start)
        lengths.append(encoded)
    begin, first, groups = np.unique(np.concatenate(begins), return_index=True, return_inverse=True)
    length = np.concatenate(lengths)
    if (length != length[first][groups]).any():
        return None
    length = length[first]
    end = begin + length
    if (end[:-1] > begin[1:]).any():
        return None
    return _fill_gaps(size, begin, length)


def _fill_gaps(size: int, begin: Ints, length: Ints) -> Ints:
    """Return the lengths of chunks, and of the chunks that fill the gaps before and after them.

    A gap is divided into chunks as long as the one before it, or else after it, so that no chunk is
    as long as the gap.
    """
    bounds = np.concatenate([[0], begin + length])
    gaps = np.concatenate([begin, [size]]) - bounds
    parts = []
    for number in np.flatnonzero(gaps > 0).tolist():
        around = length[max(number - 1, 0) : max(number, 1)]
        step, gap = int(around[0]) if around.size else size, int(gaps[number])
        whole, rest = divmod(gap, step)
        parts.append((number, [step] * whole + [rest] * (rest > 0)))
    if not parts:
        return length
    where = np.concatenate([np.full(len(filling), number) for number, filling in parts])
    return np.insert(length, where, np.concatenate([filling for _, filling in parts]))


def find_origin(fragment: Fragment, axes: Sequence[ChunkAxis]) -> tuple[int, ...]:
    """Return the chunk in which a fragment begins, as its number along each axis of a mesh."""
    pairs = zip(axes, fragment.start, strict=True)
    return tuple(int(axis.locate(np.array([start]))[0]) for axis, start in pairs)
