"""Cut uncompressed chunks into smaller ones, by references alone.

A part of an uncompressed chunk is a byte range of its own if it lies in one piece: along the axes
that vary slowest it has one element, along one axis any number, and along all others it is as long
as the chunk. `cut_chunks` makes every such part a chunk. Elements that a chunk hides along a cut
axis are left out.

A user says here where to cut, and wrong wishes are errors. `regular_chunks` finds itself where to
cut for a format with one chunk length, or leaves the array; `virtualds.reading.plan` cuts for
one reading.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from virtualds.arrays.array import ManifestArray
from virtualds.chunks.columns import INLINE, MISSING
from virtualds.chunks.fragment import ChunkAxis, Fragment
from virtualds.chunks.manifest import ChunkManifest
from virtualds.chunks.projection import Ints
from virtualds.codecs.pipeline import CodecPipeline, FixedAxis
from virtualds.errors import UnsupportedError
from virtualds.reading.plan import count_elements


class Pieces(NamedTuple):
    """The pieces of the chunks along one axis.

    ``parent`` is the number of the slab that each piece is cut from, ``begin`` its first element
    there, ``encoded`` the elements that it stores, ``whole`` those that the slab stores.
    """

    axis: ChunkAxis
    parent: Ints
    begin: Ints
    encoded: Ints
    whole: Ints

    @property
    def is_cut(self) -> bool:
        """Whether a piece is less than its chunk."""
        return bool((self.encoded != self.whole).any())


def cut_chunks(
    array: ManifestArray, lengths: Mapping[int, int], dims: Sequence[str] = ()
) -> ManifestArray:
    """Return an array with the same values in smaller chunks.

    Parameters
    ----------
    array : ManifestArray
        Uncompressed: see `can_be_cut`.
    lengths : mapping of int to int
        Elements of the new chunks, by axis. The last piece of a chunk may be shorter.
    dims : sequence of str, optional
        Names of the axes, for errors.

    Raises
    ------
    UnsupportedError
        Pieces would not be byte ranges, or a chunk is compressed or not as long as its values.

    Examples
    --------
    >>> array = ManifestArray.from_arrays(
    ...     shape=(2, 4), chunks=(2, 4), dtype="f4", path="s3://bucket/a.nc",
    ...     offsets=1000, lengths=32,
    ... )
    >>> cut_chunks(array, {0: 1}).manifest.offset.tolist()
    [[1000], [1016]]
    """
    fragments = [_cut_fragment(array, f, lengths, dims) for f in array.fragments]
    changed = any(a is not b for a, b in zip(fragments, array.fragments, strict=True))
    return replace(array, fragments=tuple(fragments)) if changed else array


def can_be_cut(array: ManifestArray) -> bool:
    """Say whether the chunks of an array are uncompressed and in one order."""
    return not any(p.codecs for p in array.pipelines) and len({*_list_orders(array)}) == 1


def _list_orders(array: ManifestArray) -> list[tuple[Any, int]]:
    return [(p.layout, p.dtype.itemsize) for p in array.pipelines]


def _cut_fragment(
    array: ManifestArray, fragment: Fragment, lengths: Mapping[int, int], dims: Sequence[str]
) -> Fragment:
    """Return a fragment in smaller chunks; the same one if none gets smaller."""
    pieces = [_cut_axis(axis, lengths.get(number)) for number, axis in enumerate(fragment.axes)]
    if not any(one.is_cut for one in pieces) or not fragment.manifest.size:
        return fragment
    if not can_be_cut(array):
        raise UnsupportedError(
            f"{array.label}: its chunks are compressed, or stored in several orders, so a part of "
            f"one is not a range of bytes; leave its chunks as they are"
        )
    pipeline = array.pipelines[0]
    _demand_one_piece(array, pipeline, pieces, dims)
    axes = tuple(one.axis for one in pieces)
    return Fragment(fragment.start, axes, _cut_manifest(array, fragment, pipeline, pieces))


def _cut_axis(axis: ChunkAxis, length: int | None) -> Pieces:
    """Return the pieces of the chunks of an axis, whole ones without a length."""
    edges, encoded, inset = axis.slabs()
    shown = np.diff(edges)
    if length is None or not shown.size or (encoded <= length).all():
        zeros = np.zeros(shown.size, np.int64)
        return Pieces(axis, np.arange(shown.size), zeros, encoded, encoded)
    count = np.where(encoded <= length, 1, -(-shown // length))
    parent = np.repeat(np.arange(shown.size), count)
    within = np.arange(parent.size) - np.repeat(np.cumsum(count) - count, count)
    kept = (encoded <= length)[parent]
    begin = np.where(kept, 0, inset[parent] + within * length)
    piece = np.where(kept, shown[parent], np.minimum(length, shown[parent] - within * length))
    stored = np.where(kept, encoded[parent], piece)
    if begin[-1] + length <= encoded[-1]:
        # a padded last chunk stays one, as regular grids have it
        stored[-1] = length
    cut = ChunkAxis.from_slabs(piece, stored, np.where(kept, inset[parent], 0))
    return Pieces(cut, parent, begin, stored, encoded[parent])


def _demand_one_piece(
    array: ManifestArray, pipeline: CodecPipeline, pieces: Sequence[Pieces], dims: Sequence[str]
) -> None:
    """Refuse pieces that are no byte ranges."""
    cut = [
        place
        for place, entry in enumerate(pipeline.layout)
        if isinstance(entry, int) and pieces[entry].is_cut
    ]
    for entry in pipeline.layout[: cut[-1]] if cut else ():
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


def _cut_manifest(
    array: ManifestArray, fragment: Fragment, pipeline: CodecPipeline, pieces: Sequence[Pieces]
) -> ChunkManifest:
    """Return the references of all pieces."""
    manifest = fragment.manifest.loaded()
    itemsize = pipeline.dtype.itemsize
    _demand_plain(array, fragment, manifest, pipeline)
    for axis, one in enumerate(pieces):
        manifest = manifest.take(axis, one.parent)
    first, count = _measure_pieces(pipeline, pieces, manifest.shape)
    held = manifest.file == INLINE
    inline, offset = _cut_inline(manifest, held, first * itemsize, count * itemsize)
    there = manifest.file != MISSING
    return ChunkManifest.build(
        manifest.shape,
        files=manifest.files,
        inline=inline,
        file=manifest.file,
        offset=np.where(held, offset, np.where(there, manifest.offset + first * itemsize, 0)),
        length=np.where(there, count * itemsize, 0),
        pipeline=manifest.pipeline,
    )


def _demand_plain(
    array: ManifestArray, fragment: Fragment, manifest: ChunkManifest, pipeline: CodecPipeline
) -> None:
    """Refuse chunks that have more or fewer bytes than their elements."""
    whole = pipeline.dtype.itemsize * count_elements(fragment, pipeline.layout)
    expected = np.broadcast_to(whole, manifest.shape)
    wrong = (manifest.length != expected) & (manifest.file != MISSING)
    if wrong.any():
        place = tuple(int(i[0]) for i in np.nonzero(wrong))
        raise UnsupportedError(
            f"{array.label}: chunk {place} has {int(manifest.length[place])} bytes, and its "
            f"elements {int(expected[place])}; leave its chunks as they are"
        )


def _measure_pieces(
    pipeline: CodecPipeline, pieces: Sequence[Pieces], grid: tuple[int, ...]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the first element of every piece in its chunk, and how many elements it has."""
    first, count = np.zeros(grid, np.int64), np.ones(grid, np.int64)
    step = np.ones(grid, np.int64)
    for entry in reversed(pipeline.layout):
        if isinstance(entry, FixedAxis):
            step, count = step * entry.length, count * entry.length
            continue
        along = (1,) * entry + (-1,) + (1,) * (len(grid) - entry - 1)
        first = first + pieces[entry].begin.reshape(along) * step
        step = step * pieces[entry].whole.reshape(along)
        count = count * pieces[entry].encoded.reshape(along)
    return first, count


def _cut_inline(
    manifest: ChunkManifest,
    held: npt.NDArray[np.bool_],
    first: npt.NDArray[np.int64],
    length: npt.NDArray[np.int64],
) -> tuple[list[bytes], npt.NDArray[np.int64]]:
    """Return the bytes of pieces of inline chunks, and their numbers over the grid."""
    found: dict[bytes, int] = {}
    numbers = np.zeros(manifest.shape, np.int64)
    for place in map(tuple, np.argwhere(held).tolist()):
        chunk, begin = manifest.inline[int(manifest.offset[place])], int(first[place])
        piece = chunk[begin : begin + int(length[place])]
        numbers[place] = found.setdefault(piece, len(found))
    return list(found), numbers
