"""Cuts uncompressed chunks so that an array lies on one regular grid of chunks.

Many formats know one chunk length along an axis. Months of 31, 28 and 31 days, or a slice of a
variable without chunks, have no such length. But an uncompressed chunk is an array in a file: a run
of its leading index is itself a chunk, whose offset is a sum. So chunks of one day, or of as many
days as all months can be cut into, refer to the same bytes on a regular grid.
"""

from __future__ import annotations

from dataclasses import replace
from math import gcd

import numpy as np

from virtualds.arrays.array import ManifestArray
from virtualds.chunks.alignment import find_regular_chunks
from virtualds.chunks.columns import INLINE, MISSING
from virtualds.chunks.fragment import Fragment
from virtualds.chunks.projection import compact
from virtualds.codecs.pipeline import CodecPipeline, FixedAxis, Layout
from virtualds.reading.plan import count_elements, cut_axis, enter_axis

SMALL_PIECE, MOST_SMALL_PIECES = 4096, 2**18
"""More pieces than this of fewer bytes than that are not made: reading them would be slow."""


def to_regular_chunks(array: ManifestArray, *, permuted: bool = False) -> ManifestArray:
    """Return an array on one regular grid of chunks, if cutting uncompressed chunks makes one.

    Other arrays are returned with as simple a layout as they have. No byte is read.

    Parameters
    ----------
    array : ManifestArray
    permuted : bool
        Whether stored axes may be in another order than those of the array.

    Examples
    --------
    >>> from virtualds.chunks.fragment import ChunkAxis
    >>> from virtualds.chunks.manifest import ChunkManifest
    >>> from virtualds.source_file import SourceFile
    >>> months = ChunkAxis.from_slabs([31, 28], [31, 28])
    >>> manifest = ChunkManifest.build(
    ...     (2,), files=[SourceFile("a.nc")], offset=[0, 900], length=[31 * 4, 28 * 4]
    ... )
    >>> plain = CodecPipeline(np.dtype("f4"), layout=(0,))
    >>> array = ManifestArray.of_fragment(Fragment((0,), (months,), manifest), plain)
    >>> days = to_regular_chunks(array)
    >>> days.nchunks, days.manifest.lookup((31,)).offset
    (59, 900)
    """
    array = _drop_flat_axes(array)
    if len(array.pipelines) != 1 or not array.gaps_read_as_missing:
        return array
    cut = _find_cut(array, permuted)
    if cut is None or not all(_is_plain(f, array.pipelines[0]) for f in array.fragments):
        return array
    depth, length = cut
    pipeline = array.pipelines[0]
    if _count_pieces(array, depth, length) > MOST_SMALL_PIECES:
        return array
    fragments = tuple(_cut_fragment(f, pipeline, depth, length) for f in array.fragments)
    kept = pipeline.layout[depth:]
    layout = kept[1:] if isinstance(kept[0], FixedAxis) else kept
    found = replace(array, pipelines=(replace(pipeline, layout=layout),), fragments=fragments)
    return found if find_regular_chunks(found.shape, found.fragments) is not None else array


def _drop_flat_axes(array: ManifestArray) -> ManifestArray:
    """Leave axes out of layouts along which each chunk stores one element: they lie anywhere."""
    flat = {
        axis
        for axis in range(array.ndim)
        if all(f.axes[axis].stored_lengths() <= {1} for f in array.fragments)
    }
    layouts = [tuple(e for e in p.layout if not _is_flat(e, flat)) for p in array.pipelines]
    if all(
        a == p.layout or _is_sorted(p.layout) for a, p in zip(layouts, array.pipelines, strict=True)
    ):
        return array
    found = zip(array.pipelines, layouts, strict=True)
    return replace(array, pipelines=tuple(replace(p, layout=layout) for p, layout in found))


def _is_flat(entry: int | FixedAxis, flat: set[int]) -> bool:
    return entry.length == 1 if isinstance(entry, FixedAxis) else entry in flat


def _is_sorted(layout: Layout) -> bool:
    return all(isinstance(e, int) for e in layout) and list(layout) == sorted(layout)  # type: ignore[type-var]


def _find_cut(array: ManifestArray, permuted: bool) -> tuple[int, int] | None:
    """Return how many stored axes to cut to one element, and the length along the next one.

    None if nothing needs to be cut, or chunks have codecs.
    """
    [pipeline] = array.pipelines
    if pipeline.codecs or not array.fragments:
        return None
    layout = pipeline.layout
    wanted = [k for k, entry in enumerate(layout) if _needs_cut(array, entry)]
    depth = max(wanted, default=-1)
    while not permuted and depth + 1 < len(layout) and not _is_sorted(_rest(layout, depth)):
        depth += 1
    if depth < 0:
        return None
    entry = layout[depth]
    if isinstance(entry, FixedAxis):
        return depth, 1
    if depth not in wanted:
        return depth, find_regular_length(array, entry) or 1
    edges = [f.edges(entry) for f in array.fragments]
    return depth, gcd(*np.concatenate(edges).tolist()) or 1


def _rest(layout: Layout, depth: int) -> Layout:
    """Return the layout that is left if the axes before a depth have one element each."""
    rest = layout[max(depth, 0) :]
    return rest[1:] if depth >= 0 and isinstance(rest[0], FixedAxis) else rest


def _needs_cut(array: ManifestArray, entry: int | FixedAxis) -> bool:
    """Say whether chunks have no one length along a stored axis, or hidden elements."""
    if isinstance(entry, FixedAxis):
        return entry.length > 1
    return find_regular_length(array, entry) is None


def find_regular_length(array: ManifestArray, axis: int) -> int | None:
    """Return the one length of all chunks along an axis of a regular grid, or None."""
    found = {f.axes[axis].chunk for f in array.fragments}
    length = found.pop() if len(found) == 1 else None
    if length is None:
        return None
    whole = all(
        f.start[axis] % length == 0
        and (f.stop[axis] % length == 0 or f.stop[axis] == array.shape[axis])
        for f in array.fragments
    )
    return length if whole else None


def _is_plain(fragment: Fragment, pipeline: CodecPipeline) -> bool:
    """Say whether all chunks lie in files, each of its full length."""
    manifest = fragment.manifest.loaded()
    whole = pipeline.dtype.itemsize * count_elements(fragment, pipeline.layout)
    sound = (manifest.length == whole) | (manifest.file == MISSING)
    return bool(sound.all()) and not (compact(manifest.file) == INLINE).any()


def _count_pieces(array: ManifestArray, depth: int, length: int) -> int:
    """Return how many small pieces there would be, 0 if they are not small."""
    pipeline = array.pipelines[0]
    entries = pipeline.layout[:depth]
    behind = pipeline.layout[depth + 1 :]
    pieces, largest = 0, 0
    for fragment in array.fragments:
        count = fragment.manifest.size
        for entry in entries:
            count *= 1 if isinstance(entry, FixedAxis) else _longest(fragment, entry)
        if not isinstance(last := pipeline.layout[depth], FixedAxis):
            count *= -(-_longest(fragment, last) // length)
        rest = int(np.max(count_elements(fragment, behind), initial=1))
        largest = max(largest, rest * length * pipeline.dtype.itemsize)
        pieces += count
    return pieces if largest < SMALL_PIECE else 0


def _longest(fragment: Fragment, axis: int) -> int:
    return int(fragment.axes[axis].lengths.max(initial=1))


def _cut_fragment(fragment: Fragment, pipeline: CodecPipeline, depth: int, length: int) -> Fragment:
    """Cut leading stored axes to one element, and the axis behind them to a length."""
    itemsize, layout = pipeline.dtype.itemsize, pipeline.layout
    manifest = fragment.manifest.loaded()
    # a part of a chunk has no checksum
    fragment = replace(
        fragment, manifest=replace(manifest, checksum=np.zeros_like(manifest.checksum))
    )
    for number, entry in enumerate(layout[: depth + 1]):
        row = itemsize * count_elements(fragment, layout[number + 1 :])
        if isinstance(entry, FixedAxis):
            fragment = enter_axis(fragment, entry.index, row)
        else:
            fragment = cut_axis(fragment, entry, length if number == depth else 1, row)
    return fragment
