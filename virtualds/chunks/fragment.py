"""Fragments: boxes of an array with one chunk grid and one manifest each.

Also finds the chunk grid that fragments share, and dask chunks that consist of whole stored chunks,
so that no chunk is decoded twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
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
    """A box of an array, whose chunks form one grid.

    Parameters
    ----------
    start : tuple of int
        The first position of the box in the array, per axis.
    axes : tuple of ChunkAxis
        How the box is divided into chunks, per axis.
    manifest : ChunkManifest
        The references of all chunks.

    Raises
    ------
    ValueError
        The manifest does not have the chunk grid of the axes.

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
    shape: tuple[int, ...] = field(init=False, compare=False)
    """Number of elements along each axis."""

    def __post_init__(self) -> None:
        grid = tuple([axis.nchunks for axis in self.axes])
        if grid != self.manifest.shape or len(self.start) != len(self.axes):
            raise ValueError(
                f"Fragment: axes of {grid} chunks at {self.start} with a manifest of "
                f"{self.manifest.shape}; give both the same grid"
            )
        object.__setattr__(self, "shape", tuple([axis.size for axis in self.axes]))

    @classmethod
    def whole(cls, axes: tuple[ChunkAxis, ...], manifest: ChunkManifest) -> Fragment:
        """Return a fragment that covers a whole array.

        Examples
        --------
        >>> axes = (ChunkAxis.regular(size=3, chunk=2),)
        >>> Fragment.whole(axes, ChunkManifest.missing((2,))).start
        (0,)
        """
        return cls((0,) * len(axes), axes, manifest)

    def __repr__(self) -> str:
        return f"<Fragment {self.start} to {self.stop}: {self.manifest!r}>"

    @property
    def stop(self) -> tuple[int, ...]:
        """The position after the end of the box in the array, per axis."""
        return tuple(s + n for s, n in zip(self.start, self.shape, strict=True))

    def edges(self, axis: int) -> Ints:
        """Return the chunk boundaries along an axis, as positions in the array."""
        return self.axes[axis].slabs().edges + self.start[axis]

    def count_slabs(self, segments: Sequence[Sequence[tuple[int, ...]]]) -> int:
        """Return the number of chunks that the result of an index by segments has.

        A segment is a tuple that begins with start and stop. Repeated elements count once, since
        they are read once: in an outer join, xarray repeats the last element of a gap.
        """
        count = 1
        for chunk_axis, start, along in zip(self.axes, self.start, segments, strict=True):
            low, high = np.clip(np.array(along).T[:2] - start, 0, chunk_axis.size)
            ends = np.stack([low, high - 1])[:, high > low]
            first, final = chunk_axis.locate(ends)
            count *= int((final - first + 1).sum())
        return count

    def shift(self, axis: int, by: int) -> Fragment:
        """Return the fragment moved along one axis by a number of elements."""
        start = (*self.start[:axis], self.start[axis] + by, *self.start[axis + 1 :])
        return replace(self, start=start)

    def crop(self, axis: int, start: int, stop: int) -> Fragment | None:
        """Return the fragment in the array cropped to ``start`` to ``stop``, or None if outside."""
        low = max(start, self.start[axis])
        high = min(stop, self.stop[axis])
        if high <= low:
            return None
        cropped, slabs = self.axes[axis].crop(low - self.start[axis], high - self.start[axis])
        axes = (*self.axes[:axis], cropped, *self.axes[axis + 1 :])
        begin = (*self.start[:axis], low - start, *self.start[axis + 1 :])
        return Fragment(begin, axes, self.manifest.take(axis, slabs))

    def flip(self, axis: int, size: int) -> Fragment:
        """Return the fragment in an array of length ``size`` that is flipped along an axis.

        The pipelines must be flipped as well, since chunks are stored in the original order.
        """
        start = (*self.start[:axis], size - self.stop[axis], *self.start[axis + 1 :])
        axes = (*self.axes[:axis], self.axes[axis].flip(), *self.axes[axis + 1 :])
        return Fragment(start, axes, self.manifest.take(axis, slice(None, None, -1)))

    def reorder(self, axis: int, begins: Ints, lengths: Ints, order: Ints) -> Fragment | None:
        """Return the fragment with its parts along an axis reordered.

        Return None if a chunk belongs to two parts, if the references are in a set, or if chunks
        are inline.
        """
        if self.manifest.is_in_set or (manifest := self.manifest.loaded()).inline:
            return None
        edges, encoded, inset = self.axes[axis].slabs()
        first = np.searchsorted(edges, begins)
        stop = np.searchsorted(edges, begins + lengths)
        is_shared = (edges[first] != begins) | (edges[stop] != begins + lengths)
        if is_shared.any():
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
    """Merge fragments that are adjacent along ``axis`` and equal along all others."""
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
    """Return a tuple without the item at ``axis``."""
    return values[:axis] + values[axis + 1 :]


# ---------------------------------------------------------------------- dask chunks

LARGE_BLOCK = 128 * MIB
"""Size in bytes of a dask block above which it need not consist of whole stored chunks."""

Lengths = tuple[int, ...]

PlacedAxes = tuple[tuple[int, ChunkAxis], ...]
"""The chunk axes of all fragments along one axis of the array, each with its start."""
Blocks = tuple[Ints, Lengths]
"""The edges of blocks along an axis, and the lengths of blocks for dask."""


def find_whole_blocks(
    shape: Sequence[int], fragments: Sequence[Fragment], itemsize: int
) -> tuple[Lengths, ...]:
    """Return the smallest dask chunks, per axis, that consist of whole stored chunks.

    If fragments share so few edges that a block would be huge, an axis is divided like its longest
    fragment. Gaps between fragments are divided into blocks as long as the longest block.

    Examples
    --------
    >>> from virtualds.chunks.manifest import ChunkManifest
    >>> months = ChunkAxis.from_slabs([31, 28, 31], [31, 28, 31])
    >>> find_whole_blocks((90,), [Fragment((0,), (months,), ChunkManifest.missing((3,)))], 4)
    ((31, 28, 31),)
    """
    fragments_with_elements = [f for f in fragments if 0 not in f.shape]
    along = [
        tuple({(f.start[axis], f.axes[axis]): None for f in fragments_with_elements})
        for axis in range(len(shape))
    ]
    blocks = [
        _find_shared_blocks(size, placed_axes)
        for size, placed_axes in zip(shape, along, strict=True)
    ]
    # most fragments of an array have the same axes
    distinct_axes = {f.axes for f in fragments_with_elements}
    largest = max(
        (prod(_find_longest(a.lengths) for a in axes) for axes in distinct_axes), default=1
    )
    for axis in sorted(
        range(len(shape)), key=lambda i: -_compute_block_ratio(blocks[i][0], along[i])
    ):
        block = prod(_find_longest(np.diff(edges)) for edges, _ in blocks)
        if block <= max(largest, LARGE_BLOCK // max(itemsize, 1)):
            break
        blocks[axis] = _make_blocks(_find_edges_of_longest(shape[axis], along[axis]), along[axis])
    return tuple(lengths for _, lengths in blocks)


def to_preferred_chunks(lengths: Lengths) -> int | Lengths:
    """Return lengths as one int if only the last one may be smaller, as xarray's backends do."""
    is_regular = all(n == lengths[0] for n in lengths[:-1]) and lengths[-1] <= lengths[0]
    return lengths[0] if is_regular else lengths


def snap_blocks(lengths: Lengths, whole: Lengths) -> Lengths:
    """Return dask chunks whose edges are moved back to the edges of whole blocks.

    Examples
    --------
    >>> snap_blocks((50, 40), (31, 28, 31))
    (31, 59)
    """
    edges = np.concatenate([[0], np.cumsum(whole)])
    requested = np.cumsum(lengths)
    snapped = edges[np.searchsorted(edges, requested, side="right") - 1]
    return _edges_to_lengths(np.unique(np.concatenate([[0], snapped])))


class _ChunkLengths(tuple[int, ...]):
    """The lengths of many chunks; `copy.deepcopy` returns them unchanged, like an int.

    xarray copies the encoding of a variable with every copy of it.
    """

    def __deepcopy__(self, memo: object) -> _ChunkLengths:
        return self


def _edges_to_lengths(edges: Ints) -> Lengths:
    return _ChunkLengths(np.diff(edges).tolist() or (0,))


def _find_longest(lengths: Ints) -> int:
    return int(lengths.max(initial=0))


def _merge_edges(parts: Sequence[Ints]) -> Ints:
    """Return the distinct edges of all parts, in order.

    Parts are in order already, which the stable sort of numpy exploits; `numpy.unique` hashes them.
    """
    edges = np.sort(np.concatenate(parts), kind="stable")
    distinct: Ints = edges[np.diff(edges, prepend=edges[:1] - 1) != 0]
    return distinct


# variables of a dataset are mostly divided alike, and a million chunks take a while
@lru_cache(maxsize=8)
def _find_shared_blocks(size: int, placed_axes: PlacedAxes) -> Blocks:
    """Return blocks with the edges of all fragments that are not inside a chunk of another one."""
    slab_edges = {axis: axis.slabs().edges for axis in {axis for _, axis in placed_axes}}
    edges_by_fragment = [slab_edges[axis] + start for start, axis in placed_axes]
    shared_edges = _merge_edges([np.array([0, size]), *edges_by_fragment])
    for edges in edges_by_fragment if len(placed_axes) > 1 else ():
        first, stop = (
            np.searchsorted(shared_edges, edges[0]),
            np.searchsorted(shared_edges, edges[-1], "right"),
        )
        inside = shared_edges[first:stop]
        if not np.array_equal(inside, edges):
            shared = inside[np.isin(inside, edges)]
            shared_edges = np.concatenate([shared_edges[:first], shared, shared_edges[stop:]])
    return _make_blocks(shared_edges, placed_axes)


def _make_blocks(edges: Ints, placed_axes: PlacedAxes) -> Blocks:
    return edges, _edges_to_lengths(_divide_gaps(edges, placed_axes))


def _compute_block_ratio(edges: Ints, placed_axes: PlacedAxes) -> float:
    """Return the ratio of the longest block to the longest stored chunk along an axis."""
    stored = max(
        (_find_longest(axis.lengths) for axis in {axis for _, axis in placed_axes}), default=0
    )
    return _find_longest(np.diff(edges)) / max(stored, 1)


def _find_edges_of_longest(size: int, placed_axes: PlacedAxes) -> Ints:
    """Return the chunk edges of the longest fragment, and the bounds of all others."""
    start, axis = max(placed_axes, key=lambda placed: placed[1].size)
    ends: list[Any] = [(begin, begin + other.size) for begin, other in placed_axes]
    outside = np.array([0, size, *np.ravel(ends)])
    outside = outside[(outside <= start) | (outside >= start + axis.size)]
    return _merge_edges([axis.slabs().edges + start, outside])


def _divide_gaps(edges: Ints, placed_axes: PlacedAxes) -> Ints:
    """Divide gaps between fragments into blocks as long as the longest block of fragments."""
    if not placed_axes:
        return edges
    covered = np.zeros(edges.size - 1, bool)
    for start, axis in placed_axes:
        covered |= (edges[:-1] >= start) & (edges[1:] <= start + axis.size)
    step = _find_longest(np.diff(edges)[covered])
    if covered.all() or not step:
        return edges
    gaps = zip(edges[:-1][~covered].tolist(), edges[1:][~covered].tolist(), strict=True)
    return _merge_edges([edges, *(np.arange(a, b, step) for a, b in gaps)])


# ---------------------------------------------------------------------- shared grids


def find_regular_chunks(
    shape: Sequence[int], fragments: Sequence[Fragment]
) -> tuple[int, ...] | None:
    """Return the chunk shape of the regular grid that all fragments share, or None.

    Without fragments, the whole array is one chunk.
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
    """Return the chunk length along an axis of the regular grid of all fragments, or None."""
    lengths = {f.axes[axis].chunk for f in fragments}
    if len(lengths) != 1 or (length := lengths.pop()) is None:
        return None
    for fragment in fragments:
        begin, end = fragment.start[axis], fragment.stop[axis]
        if begin % length or (end % length and end != shape[axis]):
            return None
    return length


def find_rectilinear_chunks(
    shape: Sequence[int], fragments: Sequence[Fragment]
) -> list[Ints] | None:
    """Return the chunk lengths, per axis, of the rectilinear grid of all fragments, or None.

    Chunks must not be cropped; only the last one along an axis may reach past the end of the array.
    Ranges of an axis without fragments are divided like their neighbours.

    Examples
    --------
    >>> from virtualds.chunks.manifest import ChunkManifest
    >>> months = ChunkAxis.from_slabs([31, 28, 31], [31, 28, 31])
    >>> year = Fragment((0,), (months,), ChunkManifest.missing((3,)))
    >>> [lengths.tolist() for lengths in find_rectilinear_chunks((90,), [year])]
    [[31, 28, 31]]
    """
    mesh = []
    for axis, size in enumerate(shape):
        axes = {(f.start[axis], f.axes[axis]) for f in fragments if 0 not in f.shape}
        lengths = _find_axis_lengths(size, sorted(axes, key=lambda placed: placed[0]))
        if lengths is None:
            return None
        mesh.append(lengths)
    return mesh


def _find_axis_lengths(size: int, placed_axes: Sequence[tuple[int, ChunkAxis]]) -> Ints | None:
    """Return the chunk lengths that all fragments share along an axis, or None if they differ."""
    begins, lengths = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for start, axis in placed_axes:
        edges, encoded, inset = axis.slabs()
        logical, end = np.diff(edges), edges[1:] + start
        is_whole = (encoded == logical) | ((encoded > logical) & (end == size))
        if inset.any() or not (logical > 0).all() or not is_whole.all():
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
    """Return chunk lengths including those of the chunks that fill the gaps between chunks.

    A gap is divided into chunks as long as the one before it, or else the one after it.
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
    insert_at = np.concatenate([np.full(len(filling), number) for number, filling in parts])
    return np.insert(length, insert_at, np.concatenate([filling for _, filling in parts]))


def find_origin(fragment: Fragment, axes: Sequence[ChunkAxis]) -> tuple[int, ...]:
    """Return the chunk id, in a grid of ``axes``, at which a fragment begins."""
    pairs = zip(axes, fragment.start, strict=True)
    return tuple(int(axis.locate(np.array([start]))[0]) for axis, start in pairs)
