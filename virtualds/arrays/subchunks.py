"""Splitting of uncompressed chunks into smaller ones by new references to the same bytes.

A part of an uncompressed chunk is one byte range if it has one element along the slowest varying
axes, any number along the next axis, and the length of the chunk along all others. `split_chunks`
makes each such part a chunk. Elements of a chunk outside the array are omitted along a split axis.

For `split_chunks`, the user chooses the lengths, and impossible ones raise errors.
`to_regular_chunks` chooses lengths so that a format with one chunk length per axis can store the
array, and returns other arrays unchanged. `virtualds.reading.plan` splits chunks for one read.
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
from virtualds.reading.plan import (
    are_uncompressed_in_files,
    count_elements,
    select_index,
    split_axis,
)

# ---------------------------------------------------------------------- regular chunks
# Splitting uncompressed chunks so that an array has one regular chunk grid.
#
# Many formats support only one chunk length along an axis. Chunks of 31, 28 and 31 days do not have
# one. But a range of the leading axis of an uncompressed chunk is contiguous, with a computable
# offset. So chunks of one day, or of a common divisor of all months, refer to the same bytes.


SMALL_PIECE_BYTES, MAX_SMALL_PIECES = 4096, 2**18
"""A size in bytes, and the maximum number of smaller pieces, which are slow to read."""


def to_regular_chunks(array: ManifestArray, *, permuted: bool = False) -> ManifestArray:
    """Return an array on one regular chunk grid if splitting chunks allows it.

    Other arrays are returned unchanged, but with normalised layouts. No values are read. With
    ``permuted``, the stored axes may be in another order than those of the array.

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
    >>> array = ManifestArray.from_fragment(Fragment((0,), (months,), manifest), plain)
    >>> days = to_regular_chunks(array)
    >>> days.nchunks, days.manifest.lookup((31,)).offset
    (59, 900)
    """
    array = _drop_unit_axes(array)
    pipelines = {replace(p, flipped=()) for p in array.pipelines}
    if len(pipelines) != 1 or not array.gaps_read_as_missing:
        return array
    division, pipeline = _choose_division(array, permuted), pipelines.pop()
    if division is None or not all(are_uncompressed_in_files(f, pipeline) for f in array.fragments):
        return array
    depth, length = division
    if _count_pieces(array, depth, length) > MAX_SMALL_PIECES:
        return array
    fragments = tuple(_split_to_depth(f, array.pipelines, depth, length) for f in array.fragments)
    inner_layout = pipeline.layout[depth:]
    layout = inner_layout[1:] if isinstance(inner_layout[0], FixedAxis) else inner_layout
    regular = replace(array, pipelines=(replace(pipeline, layout=layout),), fragments=fragments)
    return regular if find_regular_chunks(regular.shape, regular.fragments) is not None else array


def _drop_unit_axes(array: ManifestArray) -> ManifestArray:
    """Remove axes that have length 1 in all chunks from layouts, where their order is arbitrary."""
    unit_axes = {
        axis
        for axis in range(array.ndim)
        if all(f.axes[axis].stored_lengths() <= {1} for f in array.fragments)
    }
    layouts = [
        tuple(
            e
            for e in p.layout
            if (e.length > 1 if isinstance(e, FixedAxis) else e not in unit_axes)
        )
        for p in array.pipelines
    ]
    pairs = list(zip(array.pipelines, layouts, strict=True))
    if all(layout == p.layout or _is_sorted(p.layout) for p, layout in pairs):
        return array
    return replace(array, pipelines=tuple(replace(p, layout=layout) for p, layout in pairs))


def _is_sorted(layout: Layout) -> bool:
    return all(isinstance(e, int) for e in layout) and list(layout) == sorted(layout)  # type: ignore[type-var]


def _choose_division(array: ManifestArray, permuted: bool) -> tuple[int, int] | None:
    """Return the number of leading stored axes to split to length 1, and the next axis length.

    Return None if no chunk needs to be split, or if chunks have codecs.
    """
    pipeline = array.pipelines[0]
    if pipeline.codecs or not array.fragments:
        return None
    layout, flipped = pipeline.layout, {axis for p in array.pipelines for axis in p.flipped}
    lengths = [
        None if isinstance(e, FixedAxis) else find_regular_length(array.shape, array.fragments, e)
        for e in layout
    ]
    # along these axes, chunks differ in length, are flipped, or have elements outside the array
    irregular = [
        k
        for k, entry in enumerate(layout)
        if (
            entry.length > 1
            if isinstance(entry, FixedAxis)
            else lengths[k] is None or entry in flipped
        )
    ]
    depth = max(irregular, default=-1)
    while not permuted and depth + 1 < len(layout):
        # stored axes that remain once those before `depth` have length 1
        remaining = layout[max(depth, 0) :]
        if depth >= 0 and isinstance(remaining[0], FixedAxis):
            remaining = remaining[1:]
        if _is_sorted(remaining):
            break
        depth += 1
    if depth < 0:
        return None
    entry = layout[depth]
    if entry in flipped:
        return depth, 1
    if isinstance(entry, FixedAxis) or depth not in irregular:
        return depth, lengths[depth] or 1
    edges = [f.edges(entry) for f in array.fragments]
    return depth, gcd(*np.concatenate(edges).tolist()) or 1


def _count_pieces(array: ManifestArray, depth: int, length: int) -> int:
    """Return the number of pieces after the split, or 0 if their size is not small."""
    pipeline = array.pipelines[0]
    outer_layout = pipeline.layout[:depth]
    inner_layout = pipeline.layout[depth + 1 :]
    pieces, largest = 0, 0
    for fragment in array.fragments:
        count = fragment.manifest.size
        for entry in outer_layout:
            count *= 1 if isinstance(entry, FixedAxis) else _find_max_chunk_length(fragment, entry)
        if not isinstance(last := pipeline.layout[depth], FixedAxis):
            count *= -(-_find_max_chunk_length(fragment, last) // length)
        inner_elements = int(np.max(count_elements(fragment, inner_layout), initial=1))
        largest = max(largest, inner_elements * length * pipeline.dtype.itemsize)
        pieces += count
    return pieces if largest < SMALL_PIECE_BYTES else 0


def _find_max_chunk_length(fragment: Fragment, axis: int) -> int:
    return int(fragment.axes[axis].lengths.max(initial=1))


def _split_to_depth(
    fragment: Fragment, pipelines: Sequence[CodecPipeline], depth: int, length: int
) -> Fragment:
    """Split the first ``depth`` stored axes to length 1, and the next one to ``length``.

    Flips become part of the chunk order, so all chunks then have pipeline 0.
    """
    itemsize, layout = pipelines[0].dtype.itemsize, pipelines[0].layout
    manifest = fragment.manifest.loaded()
    # the checksum of a chunk does not apply to its parts
    fragment = replace(
        fragment, manifest=replace(manifest, checksum=np.zeros_like(manifest.checksum))
    )
    for number, entry in enumerate(layout[: depth + 1]):
        row_bytes = itemsize * count_elements(fragment, layout[number + 1 :])
        if isinstance(entry, FixedAxis):
            fragment = select_index(fragment, number, row_bytes, pipelines)
        else:
            pieces = length if number == depth else 1
            fragment = split_axis(fragment, entry, pieces, row_bytes, pipelines)
    manifest = fragment.manifest.with_pipelines([0] * len(pipelines))
    return replace(fragment, manifest=manifest)


# ---------------------------------------------------------------------- pieces of chunks


class AxisPieces(NamedTuple):
    """The pieces of the chunks along one axis.

    ``parent`` is the index of the slab of each piece, ``begin`` its first element in the slab,
    ``encoded`` its number of stored elements, and ``whole`` that of the slab.
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
    """Return an array with the same values in smaller chunks, of the given ``lengths`` by axis.

    The last piece of a chunk may be shorter. Error messages name axes by ``dims``. Raises
    `UnsupportedError` if a piece would not be a byte range (see `can_be_split`), or if the size of
    a chunk is not that of its elements.

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
    """Return whether the chunks of an array are uncompressed and have the same layout."""
    layouts = {(p.layout, p.flipped, p.dtype.itemsize) for p in array.pipelines}
    return len(layouts) == 1 and not any(p.codecs for p in array.pipelines)


def _split_fragment(
    array: ManifestArray, fragment: Fragment, lengths: Mapping[int, int], dims: Sequence[str]
) -> Fragment:
    """Split the chunks of a fragment; return it unchanged if no chunk gets smaller."""
    pieces = [_split_axis(axis, lengths.get(number)) for number, axis in enumerate(fragment.axes)]
    if not any(axis.is_split for axis in pieces) or not fragment.manifest.size:
        return fragment
    if not can_be_split(array):
        raise UnsupportedError(
            f"{array.label}: its chunks are compressed, or stored in several orders, so a part of "
            f"one is not a range of bytes; leave its chunks as they are"
        )
    pipeline = array.pipelines[0]
    _check_contiguous(array, pipeline, pieces, dims)
    axes = tuple(axis_pieces.axis for axis_pieces in pieces)
    return Fragment(fragment.start, axes, _split_manifest(array, fragment, pipeline, pieces))


def _split_axis(axis: ChunkAxis, length: int | None) -> AxisPieces:
    """Return the pieces of the chunks along an axis; without a length, the whole chunks."""
    edges, encoded, inset = axis.slabs()
    lengths = np.diff(edges)
    if length is None or not lengths.size or (encoded <= length).all():
        zeros = np.zeros(lengths.size, np.int64)
        return AxisPieces(axis, np.arange(lengths.size), zeros, encoded, encoded)
    count = np.where(encoded <= length, 1, -(-lengths // length))
    parent = np.repeat(np.arange(lengths.size), count)
    piece_number = np.arange(parent.size) - np.repeat(np.cumsum(count) - count, count)
    is_whole = (encoded <= length)[parent]
    begin = np.where(is_whole, 0, inset[parent] + piece_number * length)
    piece = np.where(
        is_whole, lengths[parent], np.minimum(length, lengths[parent] - piece_number * length)
    )
    stored = np.where(is_whole, encoded[parent], piece)
    if begin[-1] + length <= encoded[-1]:
        # a padded last chunk stays padded, as in regular grids
        stored[-1] = length
    split = ChunkAxis.from_slabs(piece, stored, np.where(is_whole, inset[parent], 0))
    return AxisPieces(split, parent, begin, stored, encoded[parent])


def _check_contiguous(
    array: ManifestArray, pipeline: CodecPipeline, pieces: Sequence[AxisPieces], dims: Sequence[str]
) -> None:
    """Raise an error if a piece would not be one byte range."""
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
    """Return the manifest of all pieces."""
    manifest = fragment.manifest.loaded()
    itemsize = pipeline.dtype.itemsize
    _check_chunk_sizes(array, fragment, manifest, pipeline)
    for axis, axis_pieces in enumerate(pieces):
        manifest = manifest.take(axis, axis_pieces.parent)
    first, count = _measure_pieces(pipeline, pieces, manifest.shape)
    is_inline = manifest.file == INLINE
    inline, offset = _split_inline(manifest, is_inline, first * itemsize, count * itemsize)
    exists = manifest.file != MISSING
    return ChunkManifest.build(
        manifest.shape,
        files=manifest.files,
        inline=inline,
        file=manifest.file,
        offset=np.where(is_inline, offset, np.where(exists, manifest.offset + first * itemsize, 0)),
        length=np.where(exists, count * itemsize, 0),
        pipeline=manifest.pipeline,
    )


def _check_chunk_sizes(
    array: ManifestArray, fragment: Fragment, manifest: ChunkManifest, pipeline: CodecPipeline
) -> None:
    """Raise an error for a chunk whose size in bytes is not that of its elements."""
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
    """Return the index of each piece's first element in its chunk, and its number of elements."""
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
    """Return the distinct pieces of inline chunks, and the index of the piece of each chunk.

    ``first`` and ``length`` are in bytes.
    """
    piece_index: dict[bytes, int] = {}
    indexes = np.zeros(manifest.shape, np.int64)
    for chunk_id in map(tuple, np.argwhere(is_inline).tolist()):
        chunk, begin = manifest.inline[int(manifest.offset[chunk_id])], int(first[chunk_id])
        piece = chunk[begin : begin + int(length[chunk_id])]
        indexes[chunk_id] = piece_index.setdefault(piece, len(piece_index))
    return list(piece_index), indexes
