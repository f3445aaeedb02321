"""Splitting uncompressed chunks into smaller ones, by changing references only.

A part of an uncompressed chunk is a byte range of its own if it is contiguous: it has one element
along the slowest varying axes, any number along the next axis, and the length of the chunk along
all others. `split_chunks` makes every such part a chunk. Hidden elements of a chunk along a split
axis are left out.

In `split_chunks`, the user chooses the lengths, and impossible ones raise errors. In
`to_regular_chunks`, lengths are chosen so that a format with a single chunk length can store the
array, which is otherwise returned unchanged. `virtualds.reading.plan` splits chunks for a single
read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import gcd
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from virtualds.arrays.array import ManifestArray
from virtualds.chunks.axes import ChunkAxis
from virtualds.chunks.columns import INLINE, MISSING, Ints
from virtualds.chunks.fragment import Fragment, find_regular_chunks, find_regular_length
from virtualds.chunks.manifest import ChunkManifest
from virtualds.codecs.pipeline import CodecPipeline, FixedAxis, Layout
from virtualds.errors import UnsupportedError
from virtualds.reading.plan import are_whole_in_files, count_elements, select_index, split_axis

# ---------------------------------------------------------------------- regular chunks
# Splitting uncompressed chunks so that an array has one regular chunk grid.
#
# Many formats support only one chunk length along an axis. Months of 31, 28 and 31 days, or a slice
# of a variable without chunks, have no such length. But an uncompressed chunk is an array in a
# file: a run of its leading index is itself a chunk, whose offset can be computed. So chunks of one
# day, or of as many days as divide all months, refer to the same bytes on a regular grid.


SMALL_PIECE, MAX_SMALL_PIECES = 4096, 2**18
"""A size in bytes, and the maximum number of pieces that are smaller: they are slow to read."""


def to_regular_chunks(array: ManifestArray, *, permuted: bool = False) -> ManifestArray:
    """Return an array on one regular chunk grid, if that is possible by splitting chunks.

    Other arrays are returned with the simplest possible layout. Nothing is read. With ``permuted``,
    stored axes may be in a different order from those of the array.

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
    pipelines = {replace(p, flipped=()) for p in array.pipelines}
    if len(pipelines) != 1 or not array.gaps_read_as_missing:
        return array
    division, pipeline = _find_division(array, permuted), pipelines.pop()
    if division is None or not all(are_whole_in_files(f, pipeline) for f in array.fragments):
        return array
    depth, length = division
    if _count_pieces(array, depth, length) > MAX_SMALL_PIECES:
        return array
    fragments = tuple(_split_to_depth(f, array.pipelines, depth, length) for f in array.fragments)
    kept = pipeline.layout[depth:]
    layout = kept[1:] if isinstance(kept[0], FixedAxis) else kept
    found = replace(array, pipelines=(replace(pipeline, layout=layout),), fragments=fragments)
    return found if find_regular_chunks(found.shape, found.fragments) is not None else array


def _drop_flat_axes(array: ManifestArray) -> ManifestArray:
    """Remove axes from layouts along which chunks store one element; their order is arbitrary."""
    flat = {
        axis
        for axis in range(array.ndim)
        if all(f.axes[axis].stored_lengths() <= {1} for f in array.fragments)
    }
    layouts = [
        tuple(e for e in p.layout if (e.length > 1 if isinstance(e, FixedAxis) else e not in flat))
        for p in array.pipelines
    ]
    found = list(zip(array.pipelines, layouts, strict=True))
    if all(layout == p.layout or _is_sorted(p.layout) for p, layout in found):
        return array
    return replace(array, pipelines=tuple(replace(p, layout=layout) for p, layout in found))


def _is_sorted(layout: Layout) -> bool:
    return all(isinstance(e, int) for e in layout) and list(layout) == sorted(layout)  # type: ignore[type-var]


def _find_division(array: ManifestArray, permuted: bool) -> tuple[int, int] | None:
    """Return the number of stored axes to split to length 1, and the length along the next one.

    Returns None if nothing needs to be split, or chunks have codecs.
    """
    pipeline = array.pipelines[0]
    if pipeline.codecs or not array.fragments:
        return None
    layout, flipped = pipeline.layout, {axis for p in array.pipelines for axis in p.flipped}
    lengths = [
        None if isinstance(e, FixedAxis) else find_regular_length(array.shape, array.fragments, e)
        for e in layout
    ]
    # along these axes, chunks differ in length, or are flipped, or have hidden elements
    wanted = [
        k
        for k, entry in enumerate(layout)
        if (
            entry.length > 1
            if isinstance(entry, FixedAxis)
            else lengths[k] is None or entry in flipped
        )
    ]
    depth = max(wanted, default=-1)
    while not permuted and depth + 1 < len(layout):
        # the remaining lengths, if the axes before the depth have one element each
        behind = layout[max(depth, 0) :]
        if depth >= 0 and isinstance(behind[0], FixedAxis):
            behind = behind[1:]
        if _is_sorted(behind):
            break
        depth += 1
    if depth < 0:
        return None
    entry = layout[depth]
    if entry in flipped:
        return depth, 1
    if isinstance(entry, FixedAxis) or depth not in wanted:
        return depth, lengths[depth] or 1
    edges = [f.edges(entry) for f in array.fragments]
    return depth, gcd(*np.concatenate(edges).tolist()) or 1


def _count_pieces(array: ManifestArray, depth: int, length: int) -> int:
    """Return the number of pieces that there would be, or 0 if they are not small."""
    pipeline = array.pipelines[0]
    entries = pipeline.layout[:depth]
    behind = pipeline.layout[depth + 1 :]
    pieces, largest = 0, 0
    for fragment in array.fragments:
        count = fragment.manifest.size
        for entry in entries:
            count *= 1 if isinstance(entry, FixedAxis) else _find_longest_chunk(fragment, entry)
        if not isinstance(last := pipeline.layout[depth], FixedAxis):
            count *= -(-_find_longest_chunk(fragment, last) // length)
        rest = int(np.max(count_elements(fragment, behind), initial=1))
        largest = max(largest, rest * length * pipeline.dtype.itemsize)
        pieces += count
    return pieces if largest < SMALL_PIECE else 0


def _find_longest_chunk(fragment: Fragment, axis: int) -> int:
    return int(fragment.axes[axis].lengths.max(initial=1))


def _split_to_depth(
    fragment: Fragment, pipelines: Sequence[CodecPipeline], depth: int, length: int
) -> Fragment:
    """Split leading stored axes to length 1, and the axis after them to a length.

    All pipelines become the same one.
    """
    itemsize, layout = pipelines[0].dtype.itemsize, pipelines[0].layout
    manifest = fragment.manifest.loaded()
    # a part of a chunk has no checksum
    fragment = replace(
        fragment, manifest=replace(manifest, checksum=np.zeros_like(manifest.checksum))
    )
    for number, entry in enumerate(layout[: depth + 1]):
        row = itemsize * count_elements(fragment, layout[number + 1 :])
        if isinstance(entry, FixedAxis):
            fragment = select_index(fragment, number, row, pipelines)
        else:
            pieces = length if number == depth else 1
            fragment = split_axis(fragment, entry, pieces, row, pipelines)
    manifest = fragment.manifest.with_pipelines([0] * len(pipelines))
    return replace(fragment, manifest=manifest)


# ---------------------------------------------------------------------- pieces of chunks


class AxisPieces(NamedTuple):
    """The pieces of the chunks along one axis.

    ``parent`` is the index of the slab from which each piece is split, ``begin`` its first element
    there, ``encoded`` the number of elements that it stores, and ``whole`` the number that the slab
    stores.
    """

    axis: ChunkAxis
    parent: Ints
    begin: Ints
    encoded: Ints
    whole: Ints

    @property
    def is_split(self) -> bool:
        """Whether any piece is smaller than its chunk."""
        return bool((self.encoded != self.whole).any())


def split_chunks(
    array: ManifestArray, lengths: Mapping[int, int], dims: Sequence[str] = ()
) -> ManifestArray:
    """Return an array with the same values in smaller chunks, of ``lengths`` by axis.

    The last piece of a chunk may be shorter. Errors name axes by ``dims``. Raises
    `UnsupportedError` if pieces would not be byte ranges (see `can_be_split`), or if a chunk is not
    as large as its values.

    Examples
    --------
    >>> array = ManifestArray.from_arrays(
    ...     shape=(2, 4), chunks=(2, 4), dtype="f4", path="s3://bucket/a.nc",
    ...     offsets=1000, lengths=32,
    ... )
    >>> split_chunks(array, {0: 1}).manifest.offset.tolist()
    [[1000], [1016]]
    """
    fragments = [_split_fragment(array, f, lengths, dims) for f in array.fragments]
    changed = any(a is not b for a, b in zip(fragments, array.fragments, strict=True))
    return replace(array, fragments=tuple(fragments)) if changed else array


def can_be_split(array: ManifestArray) -> bool:
    """Return whether the chunks of an array are uncompressed, with the same layout."""
    orders = {(p.layout, p.flipped, p.dtype.itemsize) for p in array.pipelines}
    return len(orders) == 1 and not any(p.codecs for p in array.pipelines)


def _split_fragment(
    array: ManifestArray, fragment: Fragment, lengths: Mapping[int, int], dims: Sequence[str]
) -> Fragment:
    """Return a fragment in smaller chunks, or the same one if none gets smaller."""
    pieces = [_split_axis(axis, lengths.get(number)) for number, axis in enumerate(fragment.axes)]
    if not any(one.is_split for one in pieces) or not fragment.manifest.size:
        return fragment
    if not can_be_split(array):
        raise UnsupportedError(
            f"{array.label}: its chunks are compressed, or stored in several orders, so a part of "
            f"one is not a range of bytes; leave its chunks as they are"
        )
    pipeline = array.pipelines[0]
    _check_contiguous(array, pipeline, pieces, dims)
    axes = tuple(one.axis for one in pieces)
    return Fragment(fragment.start, axes, _split_manifest(array, fragment, pipeline, pieces))


def _split_axis(axis: ChunkAxis, length: int | None) -> AxisPieces:
    """Return the pieces of the chunks of an axis; without a length, whole chunks."""
    edges, encoded, inset = axis.slabs()
    shown = np.diff(edges)
    if length is None or not shown.size or (encoded <= length).all():
        zeros = np.zeros(shown.size, np.int64)
        return AxisPieces(axis, np.arange(shown.size), zeros, encoded, encoded)
    count = np.where(encoded <= length, 1, -(-shown // length))
    parent = np.repeat(np.arange(shown.size), count)
    within = np.arange(parent.size) - np.repeat(np.cumsum(count) - count, count)
    kept = (encoded <= length)[parent]
    begin = np.where(kept, 0, inset[parent] + within * length)
    piece = np.where(kept, shown[parent], np.minimum(length, shown[parent] - within * length))
    stored = np.where(kept, encoded[parent], piece)
    if begin[-1] + length <= encoded[-1]:
        # a padded last chunk stays padded, as in regular grids
        stored[-1] = length
    split = ChunkAxis.from_slabs(piece, stored, np.where(kept, inset[parent], 0))
    return AxisPieces(split, parent, begin, stored, encoded[parent])


def _check_contiguous(
    array: ManifestArray, pipeline: CodecPipeline, pieces: Sequence[AxisPieces], dims: Sequence[str]
) -> None:
    """Raise an error for pieces that are not byte ranges."""
    split = [
        position
        for position, entry in enumerate(pipeline.layout)
        if isinstance(entry, int) and pieces[entry].is_split
    ]
    for entry in pipeline.layout[: split[-1]] if split else ():
        if isinstance(entry, FixedAxis) and entry.length > 1:
            raise UnsupportedError(
                f"{array.label}: its chunks also store {entry.length} elements of an axis that it "
                f"does not show, before the axis that is to be cut; cut an earlier axis only"
            )
        if isinstance(entry, int) and (pieces[entry].encoded > 1).any():
            name = repr(dims[entry]) if dims else f"axis {entry}"
            raise UnsupportedError(
                f"{array.label}: its chunks store {name} before the axis that is to be cut, so a "
                f"piece would not be a range of bytes; cut {name} into pieces of 1, too"
            )


def _split_manifest(
    array: ManifestArray, fragment: Fragment, pipeline: CodecPipeline, pieces: Sequence[AxisPieces]
) -> ChunkManifest:
    """Return the references of all pieces."""
    manifest = fragment.manifest.loaded()
    itemsize = pipeline.dtype.itemsize
    _check_plain(array, fragment, manifest, pipeline)
    for axis, one in enumerate(pieces):
        manifest = manifest.take(axis, one.parent)
    first, count = _measure_pieces(pipeline, pieces, manifest.shape)
    is_inline = manifest.file == INLINE
    inline, offset = _split_inline(manifest, is_inline, first * itemsize, count * itemsize)
    there = manifest.file != MISSING
    return ChunkManifest.build(
        manifest.shape,
        files=manifest.files,
        inline=inline,
        file=manifest.file,
        offset=np.where(is_inline, offset, np.where(there, manifest.offset + first * itemsize, 0)),
        length=np.where(there, count * itemsize, 0),
        pipeline=manifest.pipeline,
    )


def _check_plain(
    array: ManifestArray, fragment: Fragment, manifest: ChunkManifest, pipeline: CodecPipeline
) -> None:
    """Raise an error for chunks that are not as large as their elements."""
    whole = pipeline.dtype.itemsize * count_elements(fragment, pipeline.layout)
    expected = np.broadcast_to(whole, manifest.shape)
    wrong = (manifest.length != expected) & (manifest.file != MISSING)
    if wrong.any():
        chunk_id = tuple(int(i[0]) for i in np.nonzero(wrong))
        raise UnsupportedError(
            f"{array.label}: chunk {chunk_id} has {int(manifest.length[chunk_id])} bytes, and its "
            f"elements {int(expected[chunk_id])}; leave its chunks as they are"
        )


def _measure_pieces(
    pipeline: CodecPipeline, pieces: Sequence[AxisPieces], grid: tuple[int, ...]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the first element of every piece in its chunk, and its number of elements."""
    first, count = np.zeros(grid, np.int64), np.ones(grid, np.int64)
    step = np.ones(grid, np.int64)
    for entry in reversed(pipeline.layout):
        if isinstance(entry, FixedAxis):
            step, count = step * entry.length, count * entry.length
            continue
        along = (1,) * entry + (-1,) + (1,) * (len(grid) - entry - 1)
        _, _, begin, encoded, whole = pieces[entry]
        if entry in pipeline.flipped:
            begin = whole - begin - encoded
        first = first + begin.reshape(along) * step
        step = step * whole.reshape(along)
        count = count * encoded.reshape(along)
    return first, count


def _split_inline(
    manifest: ChunkManifest,
    is_inline: npt.NDArray[np.bool_],
    first: npt.NDArray[np.int64],
    length: npt.NDArray[np.int64],
) -> tuple[list[bytes], npt.NDArray[np.int64]]:
    """Return the bytes of pieces of inline chunks, and their flat indexes in the grid."""
    found: dict[bytes, int] = {}
    numbers = np.zeros(manifest.shape, np.int64)
    for chunk_id in map(tuple, np.argwhere(is_inline).tolist()):
        chunk, begin = manifest.inline[int(manifest.offset[chunk_id])], int(first[chunk_id])
        piece = chunk[begin : begin + int(length[chunk_id])]
        numbers[chunk_id] = found.setdefault(piece, len(found))
    return list(found), numbers
