"""Concatenates virtual arrays: moves fragments, merges tables of pipelines, unifies fill values."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, replace
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from virtualds.arrays.array import ManifestArray, is_same_scalar
from virtualds.chunks.columns import MISSING, find_turn
from virtualds.chunks.fragment import ChunkAxis, Fragment, join_fragments
from virtualds.chunks.manifest import ChunkManifest
from virtualds.chunks.projection import Ints
from virtualds.codecs.pipeline import CodecPipeline
from virtualds.errors import CombineError

Box = tuple[tuple[int, int], ...]
"""Start and stop of a box, per axis."""

MOST_PIPELINES = np.iinfo(np.uint16).max + 1
"""Pipelines that the column ``pipeline`` of a manifest can number."""

MOST_VIEWS = 64
"""Most parts of an array in a reference set that are put in order without reading references."""


def concatenate(arrays: Sequence[ManifestArray], axis: int = 0) -> ManifestArray:
    """Lay virtual arrays end to end along an axis.

    Raises
    ------
    CombineError
        The arrays differ in length along another axis, or in number of axes.
    """
    axis = _check_shapes(arrays, axis)
    dtype = np.result_type(*(a.dtype for a in arrays))
    arrays = [_convert(a, dtype) for a in arrays]
    fill, arrays = _find_common_fill(arrays)
    begins = accumulate((a.shape[axis] for a in arrays), initial=0)
    before, after = (0,) * axis, (0,) * (arrays[0].ndim - axis - 1)
    starts = [(*before, begin, *after) for begin in begins]
    shape = (*arrays[0].shape[:axis], starts[-1][axis], *arrays[0].shape[axis + 1 :])
    placed = zip(starts[:-1], arrays, strict=True)
    found = assemble(shape, dtype, fill, placed, (axis,), arrays[0].name)
    # the type of the first array stays, with what it refuses to read
    return replace(arrays[0], **{f.name: getattr(found, f.name) for f in fields(found)})


def reorder(array: ManifestArray, axis: int, lengths: Ints, order: Ints) -> ManifestArray:
    """Return an array whose parts along an axis stand in another order, or only some of them.

    Parameters
    ----------
    array : ManifestArray
    axis : int
    lengths : int array, shape (parts,)
        Elements of each part along the axis.
    order : int array
        The numbers of the parts, in their new order.
    """
    if np.array_equal(order, np.arange(len(lengths))):
        return array
    if len(order) > MOST_VIEWS and any(f.manifest.is_in_set for f in array.fragments):
        # so many views of tables would take longer than the references
        array = _load_references(array, axis)
    begins = np.cumsum(lengths) - lengths
    if len(array.fragments) == 1 and array.fragments[0].shape == array.shape:
        fragment = array.fragments[0].reorder(axis, begins, lengths, order)
        if fragment is not None:
            used = find_turn(np.moveaxis(fragment.manifest.pipeline, axis, 0))
            numbers = np.zeros(len(array.pipelines), np.int64)
            numbers[used] = np.arange(used.size)
            pipelines = tuple(map(array.pipelines.__getitem__, used.tolist()))
            manifest = fragment.manifest.with_pipelines(numbers.tolist())
            fragments = (replace(fragment, manifest=manifest),)
            shape = (*array.shape[:axis], int(lengths[order].sum()), *array.shape[axis + 1 :])
            return replace(array, shape=shape, pipelines=pipelines, fragments=fragments)
    before = (slice(None),) * axis
    ends = begins + lengths
    parts = [array[(*before, slice(begins[n], ends[n]))] for n in order.tolist()]
    return concatenate(parts, axis)


def _load_references(array: ManifestArray, axis: int) -> ManifestArray:
    """Return an array with its references in memory, in as few fragments as can be."""
    loaded = (replace(f, manifest=f.manifest.loaded()) for f in array.fragments)
    return replace(array, fragments=join_fragments(tuple(loaded), axis))


def assemble(
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    fill_value: Any,
    parts: Iterable[tuple[tuple[int, ...], ManifestArray]],
    axes: Iterable[int],
    name: str = "",
) -> ManifestArray:
    """Put virtual arrays of one dtype into a larger one, each at its place.

    Parameters
    ----------
    shape, dtype, fill_value
        Shape, dtype and fill value of the result.
    parts : pairs of a tuple of int and a ManifestArray
        Each with its start; they do not overlap, and gaps between them are ``fill_value``.
    axes : iterable of int
        Along which neighbours are joined, so that few fragments are left.
    name : str
        What to call the result in errors.

    Raises
    ------
    CombineError
        There are more ways to decode than a manifest can count.
    """
    table: dict[CodecPipeline, int] = {}
    moved = []
    for begin, array in parts:
        numbers = [table.setdefault(p, len(table)) for p in array.pipelines]
        if len(table) > MOST_PIPELINES:
            raise CombineError(
                f"concatenate {array.label}: the parts are decoded in more than "
                f"{MOST_PIPELINES} ways; join fewer, or load some (ds.virtual.load())"
            )
        for fragment in array.fragments:
            if 0 in fragment.shape:
                continue
            start = tuple(map(operator.add, begin, fragment.start))
            manifest = fragment.manifest.with_pipelines(numbers)
            moved.append(Fragment(start, fragment.axes, manifest))
    joined = tuple(moved)
    for axis in axes:
        joined = join_fragments(joined, axis)
    return ManifestArray(shape, dtype, fill_value, tuple(table), joined, name)


def _convert(array: ManifestArray, dtype: np.dtype[Any]) -> ManifestArray:
    """Return an array of ``dtype``; if the conversion reads, its values become an inline chunk."""
    found = array.astype(dtype)
    return found if isinstance(found, ManifestArray) else ManifestArray.from_values(found)


def _check_shapes(arrays: Sequence[ManifestArray], axis: int) -> int:
    """Return the axis counted from the front, and refuse arrays of different shapes."""
    if not arrays:
        raise CombineError("concatenate: no arrays were given; give at least one")
    first = arrays[0]
    if not -first.ndim <= axis < first.ndim:
        raise CombineError(
            f"concatenate {first.label}: axis {axis} is not one of its {first.ndim} axes; "
            f"join along one that exists, or stack along a new one"
        )
    axis %= first.ndim
    for array in arrays[1:]:
        other = [n for i, n in enumerate(array.shape) if i != axis]
        if other != [n for i, n in enumerate(first.shape) if i != axis]:
            raise CombineError(
                f"concatenate {first.name or 'arrays'} along axis {axis}: {_describe_place(first)} "
                f"has shape {first.shape}, {_describe_place(array)} has {array.shape}; make their "
                f"other axes equal (reindex, or isel the common part)"
            )
    return axis


def _describe_place(array: ManifestArray) -> str:
    return array.sources[0].url if array.sources else "an array without files"


def _find_common_fill(arrays: Sequence[ManifestArray]) -> tuple[Any, Sequence[ManifestArray]]:
    """Return one fill value for the gaps of all arrays, and the arrays converted to it."""
    gapped = [a for a in arrays if a.has_gaps]
    if not gapped:
        return arrays[0].fill_value, arrays
    fill = gapped[0].fill_value
    if all(is_same_scalar(a.fill_value, fill) for a in gapped):
        return fill, arrays
    return fill, [
        a if not a.has_gaps or is_same_scalar(a.fill_value, fill) else hold_gaps_as_chunks(a)
        for a in arrays
    ]


def set_fill(array: ManifestArray, fill: Any) -> ManifestArray:
    """Return the same values in an array whose new gaps are ``fill``."""
    if array.has_gaps and not is_same_scalar(array.fill_value, fill):
        array = hold_gaps_as_chunks(array)
    return replace(array, fill_value=fill)


def hold_gaps_as_chunks(array: ManifestArray) -> ManifestArray:
    """Turn the gaps of an array into missing chunks, which have their own fill value."""
    pipeline = CodecPipeline(
        array.dtype,
        fill=np.asarray(array.fill_value, array.dtype).tobytes(),
        layout=tuple(range(array.ndim)),
    )
    table = array.pipelines
    if pipeline not in table:
        table = (*table, pipeline)
    number = table.index(pipeline)
    filled = [_build_missing(box, number) for box in _find_gaps(array.shape, array.fragments)]
    return replace(array, pipelines=table, fragments=(*array.fragments, *filled))


def _build_missing(box: Box, number: int) -> Fragment:
    """Return a fragment of one missing chunk."""
    axes = tuple(ChunkAxis.regular(stop - start, stop - start) for start, stop in box)
    manifest = ChunkManifest.build((1,) * len(box), file=MISSING, pipeline=number)
    return Fragment(tuple(start for start, _ in box), axes, manifest)


def _find_gaps(shape: tuple[int, ...], fragments: Sequence[Fragment]) -> Iterator[Box]:
    """Yield boxes that make up the space that no fragment covers, axis after axis."""
    if not fragments:
        if 0 not in shape:
            yield tuple((0, n) for n in shape)
        return
    axis = len(fragments[0].axes) - len(shape)
    if not shape:
        return
    cuts = {0, shape[0], *(f.start[axis] for f in fragments), *(f.stop[axis] for f in fragments)}
    for start, stop in pairwise(sorted(cuts)):
        met = [f for f in fragments if f.start[axis] < stop and f.stop[axis] > start]
        for rest in _find_gaps(shape[1:], met):
            yield ((start, stop), *rest)


def unify_fill(array: ManifestArray) -> ManifestArray:
    """Return an array with one pipeline, if its pipelines differ only in the fill value.

    Any chunk of a reference set may be missing.
    """
    pipelines = array.pipelines
    if len({replace(p, fill=None) for p in pipelines}) != 1 or len(pipelines) == 1:
        return array
    count = len(pipelines)
    filling = {n for f in array.fragments for n in _find_filling(f.manifest, count)}
    if array.has_gaps or len(filling) > 1:
        return array
    fragments = tuple(
        replace(f, manifest=f.manifest.with_pipelines([0] * count)) for f in array.fragments
    )
    kept = pipelines[filling.pop() if filling else 0]
    return replace(array, pipelines=(kept,), fragments=fragments)


def _find_filling(manifest: ChunkManifest, count: int) -> list[int]:
    """Return the pipelines that missing chunks have, or may have, out of ``count``."""
    if manifest.rest is not None:
        return [manifest.rest]
    if manifest.is_in_set or manifest.find_existing() is not None:
        # in a set any chunk may be missing; without a reference all chunks are
        found: list[int] = manifest.used_pipelines(count).tolist()
        return found
    manifest = manifest.loaded()
    filling: list[int] = np.unique(manifest.pipeline[manifest.file == MISSING]).tolist()
    return filling
