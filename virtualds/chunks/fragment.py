"""Fragments: boxes of an array, cut into chunks, each with a manifest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from virtualds.chunks.axis import ChunkAxis
from virtualds.chunks.manifest import ChunkManifest
from virtualds.chunks.projection import Ints
from virtualds.chunks.sparse_manifest import are_alike, join_manifests
from virtualds.public import public


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

    @property
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
        # joining would load the references of a set
        and not left.manifest.is_in_set
        and not right.manifest.is_in_set
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
