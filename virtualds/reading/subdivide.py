"""Cuts chunks without codecs into pieces, so that only the selected bytes are read.

An uncompressed chunk is an array in a file: any run of its leading index is itself a chunk whose
offset is a sum. A contiguous variable of many GB is one such chunk. Cutting it before planning
keeps the bytes read and the memory small, and lets several threads share it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np

from virtualds.chunks.columns import INLINE, MISSING
from virtualds.chunks.fragment import ChunkAxis, Fragment
from virtualds.chunks.projection import AxisKey, Ints, compact
from virtualds.codecs.pipeline import CodecPipeline, FixedAxis, Layout

PIECE_BYTES = 2**20
"""Bytes that a piece of an uncompressed chunk has at most, unless one element along the cut has."""
WORTHWHILE = 4096
"""Bytes below which skipping them costs more than reading them."""


def subdivide(
    fragment: Fragment, pipelines: Sequence[CodecPipeline], keys: Sequence[AxisKey]
) -> tuple[Fragment, Sequence[CodecPipeline]] | None:
    """Return the part of a fragment that the keys span, its plain chunks cut where that pays.

    The pipelines come along, since axes that integer indices removed are cut away.
    """
    spans = [_find_span(key) for key in keys]
    for axis, (low, high) in enumerate(spans):
        if low >= fragment.stop[axis] or high <= fragment.start[axis]:
            return None
    if not pipelines or any(p.codecs for p in pipelines):
        return fragment, pipelines
    part = fragment
    for axis, (low, high) in enumerate(spans):
        begin = max(low, part.start[axis])
        cropped = part.crop(axis, begin, high)
        if cropped is None:
            return None
        part = cropped.shift(axis, begin)
    return _cut_leading(part, pipelines, keys) if _is_plain(part, pipelines) else (part, pipelines)


def _is_plain(fragment: Fragment, pipelines: Sequence[CodecPipeline]) -> bool:
    """Say whether bare chunks lie in files, all stored alike and each of its full length.

    A part of a chunk has no checksum to be verified by: chunks that have one are read whole.
    """
    kinds = {(p.layout, p.dtype) for p in pipelines}
    manifest = fragment.manifest
    if len(kinds) != 1 or (manifest.file == INLINE).any() or compact(manifest.checksum).any():
        return False
    # a reference of another length is wrong: the decoder must refuse it
    whole = pipelines[0].dtype.itemsize * count_elements(fragment, pipelines[0].layout)
    return bool(((manifest.length == whole) | (manifest.file == MISSING)).all())


def _find_span(key: AxisKey) -> tuple[int, int]:
    if isinstance(key, slice):
        return key.start, key.stop
    return int(key[0]), int(key[-1]) + 1


def _cut_leading(
    fragment: Fragment, pipelines: Sequence[CodecPipeline], keys: Sequence[AxisKey]
) -> tuple[Fragment, Sequence[CodecPipeline]]:
    """Cut stored axis after stored axis until a piece is small and mostly wanted."""
    itemsize, rest = pipelines[0].dtype.itemsize, pipelines[0].layout
    done: Layout = ()
    while rest:
        entry, rest = rest[0], rest[1:]
        row = itemsize * int(np.max(count_elements(fragment, rest), initial=1))
        size = _find_longest(fragment, entry)
        if size > 1 and row * size <= WORTHWHILE:
            return fragment, _replace_layout(pipelines, (*done, entry, *rest))
        if isinstance(entry, FixedAxis):
            fragment = enter_axis(fragment, entry.index, itemsize * count_elements(fragment, rest))
            continue
        done = (*done, entry)
        if size == 1:
            continue
        wanted = prod(_measure_share(fragment, e, keys) for e in rest)
        length = 1 if wanted < 0.25 and row > WORTHWHILE else max(1, PIECE_BYTES // row)
        fragment = cut_axis(fragment, entry, length, itemsize * count_elements(fragment, rest))
        if length > 1:
            break
    return fragment, _replace_layout(pipelines, (*done, *rest))


def _replace_layout(pipelines: Sequence[CodecPipeline], layout: Layout) -> list[CodecPipeline]:
    return [replace(p, layout=layout) for p in pipelines]


def _find_longest(fragment: Fragment, entry: int | FixedAxis) -> int:
    """Return the greatest stored length along a stored axis."""
    if isinstance(entry, FixedAxis):
        return entry.length
    return int(fragment.axes[entry].slabs().encoded.max(initial=1))


def _measure_share(fragment: Fragment, entry: int | FixedAxis, keys: Sequence[AxisKey]) -> float:
    """Return which part of the stored elements along a stored axis the keys take."""
    if isinstance(entry, FixedAxis):
        return 1 / entry.length
    key, stored = keys[entry], fragment.axes[entry].slabs().encoded
    count = len(range(key.start, key.stop, key.step)) if isinstance(key, slice) else key.size
    return min(1.0, count / max(1, int(stored.sum())))


def enter_axis(fragment: Fragment, index: int, row: Ints) -> Fragment:
    """Keep the one index of a leading stored axis that the array shows."""
    manifest = fragment.manifest
    length = np.broadcast_to(row, manifest.shape)
    moved = replace(manifest, offset=manifest.offset + index * row, length=length)
    return replace(fragment, manifest=moved)


def cut_axis(fragment: Fragment, axis: int, length: int, row: Ints) -> Fragment:
    """Cut every chunk along an axis, before which it has one element, into pieces."""
    _, _, inset = fragment.axes[axis].slabs()
    shown = fragment.axes[axis].lengths
    pieces = -(-shown // length)
    owner = np.repeat(np.arange(shown.size), pieces)
    rank = np.arange(owner.size) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    sizes = np.minimum(length, shown[owner] - rank * length)
    first = inset[owner] + rank * length
    along = (1,) * axis + (-1,) + (1,) * (len(fragment.axes) - axis - 1)
    manifest = fragment.manifest.take(axis, owner)
    moved = replace(
        manifest,
        offset=manifest.offset + first.reshape(along) * row,
        length=np.broadcast_to(sizes.reshape(along) * row, manifest.shape),
    )
    axes = (*fragment.axes[:axis], ChunkAxis.from_slabs(sizes, sizes), *fragment.axes[axis + 1 :])
    return Fragment(fragment.start, axes, moved)


def count_elements(fragment: Fragment, entries: Layout) -> Ints:
    """Return how many elements chunks store along some stored axes, over the chunk grid."""
    ndim = len(fragment.axes)
    total: Ints = np.ones((1,) * ndim, np.int64)
    for entry in entries:
        if isinstance(entry, FixedAxis):
            total = total * entry.length
        else:
            stored = fragment.axes[entry].slabs().encoded
            total = total * stored.reshape((1,) * entry + (-1,) + (1,) * (ndim - entry - 1))
    return total
