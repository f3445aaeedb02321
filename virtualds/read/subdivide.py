"""Chunks without codecs are cut finer, so that only what a selection needs is read.

An uncompressed chunk is an array in a file: any run of its leading index is itself a chunk whose
offset is a sum. A contiguous variable of many GB is one such chunk. Cutting it before planning
keeps the bytes read and the memory small, and lets several threads share it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np

from virtualds.fragment import CodecPipeline, Fragment
from virtualds.grid import AxisKey, ChunkAxis, Ints

PIECE = 2**20
"""Bytes that a piece of an uncompressed chunk has at most, unless one element along the cut has."""
WORTHWHILE = 4096
"""Bytes below which skipping them costs more than reading them."""


def subdivide(
    fragment: Fragment, pipelines: Sequence[CodecPipeline], keys: Sequence[AxisKey]
) -> Fragment | None:
    """Return the part of a fragment that the keys span, its plain chunks cut as far as it pays."""
    spans = [_span(key) for key in keys]
    cut = fragment
    for axis, (low, high) in enumerate(spans):
        if low >= cut.stop[axis] or high <= cut.start[axis]:
            return None
    if not _is_plain(fragment, pipelines):
        return fragment
    for axis, (low, high) in enumerate(spans):
        part = cut.crop(axis, max(low, cut.start[axis]), high)
        if part is None:
            return None
        cut = replace(
            part, start=(*cut.start[:axis], max(low, cut.start[axis]), *cut.start[axis + 1 :])
        )
    return _cut_leading(cut, pipelines[0].dtype.itemsize, keys)


def _is_plain(fragment: Fragment, pipelines: Sequence[CodecPipeline]) -> bool:
    """Say whether chunks are bare C-ordered arrays in files."""
    return (
        bool(fragment.axes)
        and all(
            not p.codecs
            and p.layout == tuple(range(len(fragment.axes)))
            and p.dtype == pipelines[0].dtype
            for p in pipelines
        )
        and bool((fragment.manifest.file != -2).all())
    )


def _span(key: AxisKey) -> tuple[int, int]:
    if isinstance(key, slice):
        return key.start, key.stop
    return int(key[0]), int(key[-1]) + 1


def _cut_leading(fragment: Fragment, itemsize: int, keys: Sequence[AxisKey]) -> Fragment:
    """Cut axis after axis until a piece is small and mostly wanted."""
    for axis in range(len(fragment.axes)):
        stored = [int(a.slabs().encoded.max(initial=1)) for a in fragment.axes]
        if stored[axis] == 1:
            continue
        row = itemsize * prod(stored[axis + 1 :])
        later = zip(fragment.axes[axis + 1 :], keys[axis + 1 :], strict=True)
        wanted = prod(_share(a, k) for a, k in later)
        if row * stored[axis] <= WORTHWHILE:
            return fragment
        if wanted >= 0.25 or row <= WORTHWHILE:
            return _cut(fragment, axis, max(1, PIECE // row), itemsize)
        fragment = _cut(fragment, axis, 1, itemsize)
    return fragment


def _share(axis: ChunkAxis, key: AxisKey) -> float:
    """Return which part of the stored elements along an axis the key takes."""
    count = len(range(key.start, key.stop, key.step)) if isinstance(key, slice) else key.size
    return min(1.0, count / max(1, int(axis.slabs().encoded.sum())))


def _cut(fragment: Fragment, axis: int, length: int, itemsize: int) -> Fragment:
    """Cut every chunk along ``axis``, before which chunks have one element, into pieces."""
    _, _, inset = fragment.axes[axis].slabs()
    shown = fragment.axes[axis].lengths
    pieces = -(-shown // length)
    owner = np.repeat(np.arange(shown.size), pieces)
    rank = np.arange(owner.size) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    sizes = np.minimum(length, shown[owner] - rank * length)
    first = inset[owner] + rank * length
    others = [a.slabs().encoded for a in fragment.axes[axis + 1 :]]
    row = itemsize * _outer_product(others, axis, len(fragment.axes))
    along = (1,) * axis + (-1,) + (1,) * (len(fragment.axes) - axis - 1)
    manifest = fragment.manifest.take(axis, owner)
    moved = replace(
        manifest,
        offset=manifest.offset + first.reshape(along) * row,
        length=np.broadcast_to(sizes.reshape(along) * row, manifest.shape),
    )
    axes = (*fragment.axes[:axis], ChunkAxis.from_slabs(sizes, sizes), *fragment.axes[axis + 1 :])
    return Fragment(fragment.start, axes, moved)


def _outer_product(lengths: Sequence[Ints], axis: int, ndim: int) -> Ints:
    """Return the number of elements behind one index of ``axis``, over the chunk grid."""
    total: Ints = np.ones((1,) * ndim, np.int64)
    for place, values in enumerate(lengths, axis + 1):
        total = total * values.reshape((1,) * place + (-1,) + (1,) * (ndim - place - 1))
    return total
