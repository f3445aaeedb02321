"""How bytes become values, and a box of chunks that do.

`CodecPipeline` takes the bytes of one chunk to its values. `Fragment` is a box of an array: where
it lies, how each axis is cut, and where the bytes of every chunk are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from virtualds.bounds import demand_element
from virtualds.codecs import Codec
from virtualds.grid import ChunkAxis, Ints
from virtualds.manifest import ChunkManifest
from virtualds.packing import Decoding


@dataclass(frozen=True)
class Hidden:
    """A stored axis that the array does not show: only element ``index`` of ``length`` is used."""

    length: int
    index: int


Layout = tuple[int | Hidden, ...]


@dataclass(frozen=True)
class CodecPipeline:
    """How the bytes of one chunk become values.

    Two pipelines that decode alike are equal: compression levels are not compared.

    Parameters
    ----------
    dtype : numpy dtype
        Of the numbers as stored, byte order included.
    codecs : tuple of Codec
        In the order in which they encoded; decoding goes backwards.
    fill : bytes or None
        One stored element, which a missing chunk is full of; None is zero.
    layout : tuple of int or Hidden
        For every stored axis, in C order, the axis of the array that it is; an array axis that
        is not listed has one element per chunk. ``(0, 1, 2)`` is C order, ``(2, 1, 0)`` is F order.
    packing : Packing, TimePacking or None
        CF packing of the file that the chunk came from.

    Raises
    ------
    ValueError
        ``fill`` is not exactly one element, or elements are Python objects.

    Examples
    --------
    >>> from virtualds.codecs import Zlib
    >>> fast, small = (CodecPipeline(np.dtype("<i2"), (Zlib(n),), layout=(0, 1)) for n in (1, 9))
    >>> fast == small, fast.missing_value
    (True, np.int16(0))
    """

    dtype: np.dtype[Any]
    codecs: tuple[Codec, ...] = ()
    fill: bytes | None = None
    layout: Layout = ()
    packing: Decoding | None = None

    def __post_init__(self) -> None:
        demand_element(self.dtype.itemsize, f"type {self.dtype.kind}{self.dtype.itemsize}")
        if self.dtype.hasobject:
            # the bytes of such an element are an address
            raise ValueError(f"CodecPipeline: {self.dtype} elements are Python objects, not bytes")
        if self.fill is not None and len(self.fill) != self.dtype.itemsize:
            raise ValueError(
                f"CodecPipeline: a fill of {len(self.fill)} bytes is not one {self.dtype} element"
            )
        if self.fill is not None and not any(self.fill):
            # one spelling of zero, so that pipelines that decode alike are equal
            object.__setattr__(self, "fill", None)

    @property
    def decoded_dtype(self) -> np.dtype[Any]:
        """Dtype of the values."""
        return self.packing.dtype if self.packing else self.dtype.newbyteorder("=")

    @property
    def fill_value(self) -> Any:
        """The stored number that a missing chunk is full of."""
        if self.fill is None:
            return np.zeros((), self.dtype)[()]
        return np.frombuffer(self.fill, self.dtype)[0]

    @cached_property
    def missing_value(self) -> Any:
        """The value that a missing chunk is full of: its fill value through the packing."""
        stored = np.full((1,), self.fill_value, self.dtype.newbyteorder("="))
        return (self.packing.decode(stored) if self.packing else stored)[0]

    @cached_property
    def hidden_size(self) -> int:
        """How many elements a chunk stores for each one that the array can show."""
        return prod(e.length for e in self.layout if isinstance(e, Hidden))

    def stored_shape(self, encoded: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of a stored chunk that has these lengths along the array's axes."""
        return tuple(encoded[e] if isinstance(e, int) else e.length for e in self.layout)

    def encoded_sizes(self, nbytes: int) -> list[int | None]:
        """Return how many bytes go into each codec when a chunk of ``nbytes`` is encoded."""
        sizes: list[int | None] = [nbytes]
        for codec in self.codecs[:-1]:
            last = sizes[-1]
            sizes.append(None if last is None else codec.encoded_size(last))
        return sizes

    def transpose(self, axes: Sequence[int]) -> CodecPipeline:
        """Return the pipeline of the array whose axis ``i`` was ``axes[i]``."""
        place = {old: new for new, old in enumerate(axes)}
        return self._relabel(lambda axis: place[axis])

    def insert_axis(self, axis: int) -> CodecPipeline:
        """Return the pipeline of the array with a new axis of one element per chunk."""
        return self._relabel(lambda old: old + (old >= axis))

    def drop_axis(self, axis: int, encoded: int, inset: int) -> CodecPipeline:
        """Return the pipeline of the array that shows only element ``inset`` of ``axis``."""
        hidden = replace(
            self, layout=tuple(Hidden(encoded, inset) if e == axis else e for e in self.layout)
        )
        return hidden._relabel(lambda old: old - (old > axis))

    def _relabel(self, change: Any) -> CodecPipeline:
        layout = tuple(change(e) if isinstance(e, int) else e for e in self.layout)
        return replace(self, layout=layout)


@dataclass(frozen=True)
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
                f"{self.manifest.shape}; they are to agree"
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements per axis."""
        return tuple([axis.size for axis in self.axes])

    @property
    def stop(self) -> tuple[int, ...]:
        """Where the box ends in the array, per axis."""
        return tuple(s + n for s, n in zip(self.start, self.shape, strict=True))

    def shift(self, axis: int, by: int) -> Fragment:
        """Return the box moved along one axis."""
        start = (*self.start[:axis], self.start[axis] + by, *self.start[axis + 1 :])
        return replace(self, start=start)

    def crop(self, axis: int, start: int, stop: int) -> Fragment | None:
        """Return what lies between two positions of the array, moved there; None if nothing."""
        low = max(start, self.start[axis])
        high = min(stop, self.stop[axis])
        if high <= low:
            return None
        cut, kept = self.axes[axis].crop(low - self.start[axis], high - self.start[axis])
        axes = (*self.axes[:axis], cut, *self.axes[axis + 1 :])
        begin = (*self.start[:axis], low - start, *self.start[axis + 1 :])
        return Fragment(begin, axes, self.manifest.take(axis, kept))

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


def join(fragments: Sequence[Fragment], axis: int) -> tuple[Fragment, ...]:
    """Join neighbours along ``axis`` whose other axes are cut alike; in order of their start."""
    ordered = sorted(fragments, key=lambda f: (_aside(f.start, axis), f.start[axis]))
    runs: list[list[Fragment]] = []
    for fragment in ordered:
        if runs and _joins(runs[-1][-1], fragment, axis):
            runs[-1].append(fragment)
        else:
            runs.append([fragment])
    return tuple(_merge(run, axis) for run in runs)


def _joins(left: Fragment, right: Fragment, axis: int) -> bool:
    return (
        left.stop[axis] == right.start[axis]
        # what lies in a reference set stays there
        and not left.manifest.is_in_set
        and not right.manifest.is_in_set
        and _aside(left.start, axis) == _aside(right.start, axis)
        and _aside(left.axes, axis) == _aside(right.axes, axis)
    )


def _merge(run: Sequence[Fragment], axis: int) -> Fragment:
    if len(run) == 1:
        return run[0]
    cut = ChunkAxis.concatenate([f.axes[axis] for f in run])
    axes = (*run[0].axes[:axis], cut, *run[0].axes[axis + 1 :])
    manifests = [f.manifest for f in run if f.axes[axis].size]
    return Fragment(run[0].start, axes, ChunkManifest.concatenate(manifests, axis))


def _aside(values: tuple[Any, ...], axis: int) -> tuple[Any, ...]:
    """Return all but one item."""
    return values[:axis] + values[axis + 1 :]


def runs_of(positions: Ints) -> list[tuple[int, int]]:
    """Return the stretches ``start, stop`` of consecutive rising positions."""
    if not positions.size:
        return []
    cuts = np.flatnonzero(np.diff(positions) != 1) + 1
    bounds = [0, *cuts.tolist(), positions.size]
    return [(int(positions[a]), int(positions[b - 1]) + 1) for a, b in pairwise(bounds)]
