"""Concatenation of virtual arrays, and writing one into a region of another.

Chunks that lie on the chunk grid of the larger array and decode with its pipeline are added to its
manifest, so that one fragment remains after many writes. Other chunks become fragments of their
own, as in a concatenation.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from itertools import accumulate
from typing import Any

import numpy as np

from virtualds.arrays.array import (
    ManifestArray,
    fills_with,
    get_default_fill,
    is_same_scalar,
    map_manifests,
)
from virtualds.chunks.axes import ChunkAxis, make_regular_axes
from virtualds.chunks.columns import INLINE, MISSING, Ints, find_distinct_in_order
from virtualds.chunks.fragment import Fragment, find_regular_chunks, join_fragments
from virtualds.chunks.manifest import ChunkManifest, gather_references, iterate_references
from virtualds.chunks.tables import TiledReferences, build_sparse, overlay
from virtualds.codecs.pipeline import CodecPipeline
from virtualds.errors import CombineError

# ---------------------------------------------------------------------- concatenate

Box = tuple[tuple[int, int], ...]
"""A rectangular region of an array: start and stop along each axis."""

MAX_PIPELINES = np.iinfo(np.uint16).max + 1
"""Maximum number of pipelines that the column ``pipeline`` of a manifest can index."""

MAX_LAZY_PARTS = 64
"""Maximum number of parts that are reordered without loading references of a reference set."""


def concatenate(arrays: Sequence[ManifestArray], axis: int = 0) -> ManifestArray:
    """Concatenate virtual arrays along an axis.

    Raises `CombineError` if the arrays differ in length along another axis, or in number of axes.
    """
    axis = _check_shapes(arrays, axis)
    dtype = np.result_type(*(a.dtype for a in arrays))
    # values that astype had to read become an inline chunk
    converted = (a.astype(dtype) for a in arrays)
    arrays = [
        a if isinstance(a, ManifestArray) else ManifestArray.from_values(a) for a in converted
    ]
    fill, arrays = _find_common_fill(arrays)
    offsets = accumulate((a.shape[axis] for a in arrays), initial=0)
    before, after = (0,) * axis, (0,) * (arrays[0].ndim - axis - 1)
    starts = [(*before, begin, *after) for begin in offsets]
    shape = (*arrays[0].shape[:axis], starts[-1][axis], *arrays[0].shape[axis + 1 :])
    placed = zip(starts[:-1], arrays, strict=True)
    assembled = assemble(shape, dtype, fill, placed, (axis,), arrays[0].name)
    # keep the subclass of the first array, such as one whose values must not be read
    return replace(arrays[0], **{f.name: getattr(assembled, f.name) for f in fields(assembled)})


def reorder(array: ManifestArray, axis: int, lengths: Ints, order: Ints) -> ManifestArray:
    """Return an array with its parts along an axis reordered or selected.

    ``lengths`` are the lengths of the present parts, ``order`` the indexes of the parts to return.
    """
    if np.array_equal(order, np.arange(len(lengths))):
        return array
    if len(order) > MAX_LAZY_PARTS and any(f.manifest.is_in_set for f in array.fragments):
        # many views of the stored tables cost more than loading the references
        loaded = map_manifests(array, ChunkManifest.loaded)
        array = replace(array, fragments=join_fragments(loaded.fragments, axis))
    starts = np.cumsum(lengths) - lengths
    if len(array.fragments) == 1 and array.fragments[0].shape == array.shape:
        fragment = array.fragments[0].reorder(axis, starts, lengths, order)
        if fragment is not None:
            used_pipelines = find_distinct_in_order(
                np.moveaxis(fragment.manifest.pipeline, axis, 0)
            )
            new_index = np.zeros(len(array.pipelines), np.int64)
            new_index[used_pipelines] = np.arange(used_pipelines.size)
            pipelines = tuple(map(array.pipelines.__getitem__, used_pipelines.tolist()))
            manifest = fragment.manifest.with_pipelines(new_index.tolist())
            fragments = (replace(fragment, manifest=manifest),)
            shape = (*array.shape[:axis], int(lengths[order].sum()), *array.shape[axis + 1 :])
            return replace(array, shape=shape, pipelines=pipelines, fragments=fragments)
    before = (slice(None),) * axis
    stops = starts + lengths
    parts = [array[(*before, slice(starts[n], stops[n]))] for n in order.tolist()]
    return concatenate(parts, axis)


def assemble(
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    fill_value: Any,
    parts: Iterable[tuple[tuple[int, ...], ManifestArray]],
    axes: Iterable[int],
    name: str = "",
) -> ManifestArray:
    """Place virtual arrays of one dtype into a larger one, each at its start index.

    ``parts`` are pairs of start and array, which must not overlap; gaps between them read as
    ``fill_value``. Fragments that are adjacent along ``axes`` are merged.
    """
    pipeline_index: dict[CodecPipeline, int] = {}
    fragments = []
    for begin, array in parts:
        pipeline_map = [pipeline_index.setdefault(p, len(pipeline_index)) for p in array.pipelines]
        if len(pipeline_index) > MAX_PIPELINES:
            raise CombineError(
                f"concatenate {array.label}: the parts are decoded in more than "
                f"{MAX_PIPELINES} ways; join fewer, or load some (ds.virtual.load())"
            )
        for fragment in array.fragments:
            if 0 in fragment.shape:
                continue
            start = tuple(map(operator.add, begin, fragment.start))
            manifest = fragment.manifest.with_pipelines(pipeline_map)
            fragments.append(Fragment(start, fragment.axes, manifest))
    joined = tuple(fragments)
    for axis in axes:
        joined = join_fragments(joined, axis)
    return ManifestArray(shape, dtype, fill_value, tuple(pipeline_index), joined, name)


def _check_shapes(arrays: Sequence[ManifestArray], axis: int) -> int:
    """Return the non-negative axis; raise an error if the arrays do not fit together along it."""
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
                f"concatenate {first.name or 'arrays'} along axis {axis}: "
                f"{_describe_source(first)} has shape {first.shape}, {_describe_source(array)} has "
                f"{array.shape}; make their other axes equal (reindex, or isel the common part)"
            )
    return axis


def _describe_source(array: ManifestArray) -> str:
    return array.sources[0].url if array.sources else "an array without files"


def _find_common_fill(arrays: Sequence[ManifestArray]) -> tuple[Any, Sequence[ManifestArray]]:
    """Return a common fill value, and the arrays, with gaps of other values as missing chunks."""
    arrays_with_gaps = [a for a in arrays if a.has_gaps]
    if not arrays_with_gaps:
        return arrays[0].fill_value, arrays
    fill = arrays_with_gaps[0].fill_value
    if all(is_same_scalar(a.fill_value, fill) for a in arrays_with_gaps):
        return fill, arrays
    return fill, [
        a if not a.has_gaps or is_same_scalar(a.fill_value, fill) else convert_gaps_to_chunks(a)
        for a in arrays
    ]


def set_fill(array: ManifestArray, fill: Any) -> ManifestArray:
    """Return an array with another fill value, whose gaps keep their values."""
    if array.has_gaps and not is_same_scalar(array.fill_value, fill):
        array = convert_gaps_to_chunks(array)
    return replace(array, fill_value=fill)


def build_fill_pipeline(array: ManifestArray) -> CodecPipeline:
    """Return a pipeline whose missing chunks read as the fill value of the array."""
    fill = np.asarray(array.fill_value, array.dtype).tobytes()
    return CodecPipeline(array.dtype, fill=fill, layout=tuple(range(array.ndim)))


def convert_gaps_to_chunks(array: ManifestArray) -> ManifestArray:
    """Return an array whose gaps are missing chunks that keep the fill value."""
    pipeline = build_fill_pipeline(array)
    table = array.pipelines
    if pipeline not in table:
        table = (*table, pipeline)
    number = table.index(pipeline)
    missing = ChunkManifest.build((1,) * array.ndim, file=MISSING, pipeline=number)
    filled = [
        Fragment(
            tuple(a for a, _ in gap),
            tuple(ChunkAxis.regular(b - a, b - a) for a, b in gap),
            missing,
        )
        # gaps are split where fragments end, so that a regular grid remains regular
        for gap in _find_gaps(
            _get_whole_box(array), map(_get_box, array.fragments), merge_gaps=False
        )
    ]
    return replace(array, pipelines=table, fragments=(*array.fragments, *filled))


def unify_fill(array: ManifestArray) -> ManifestArray:
    """Return an array with one pipeline if its pipelines differ only in an unused fill value.

    In a reference set, any chunk may be missing, so all fill values count as used.
    """
    pipelines = array.pipelines
    if len({replace(p, fill=None) for p in pipelines}) != 1 or len(pipelines) == 1:
        return array
    count = len(pipelines)
    fill_pipelines = {
        n for f in array.fragments for n in _find_missing_pipelines(f.manifest, count)
    }
    if array.has_gaps or len(fill_pipelines) > 1:
        return array
    renumbered = map_manifests(array, lambda manifest: manifest.with_pipelines([0] * count))
    pipeline = pipelines[fill_pipelines.pop() if fill_pipelines else 0]
    return replace(renumbered, pipelines=(pipeline,))


def _find_missing_pipelines(manifest: ChunkManifest, count: int) -> list[int]:
    """Return the indexes of the pipelines, out of ``count``, that missing chunks may have."""
    if manifest.missing_pipeline is not None:
        return [manifest.missing_pipeline]
    if manifest.is_in_set or manifest.find_existing() is not None:
        # any chunk may be missing
        used: list[int] = manifest.used_pipelines(count).tolist()
        return used
    manifest = manifest.loaded()
    missing: list[int] = np.unique(manifest.pipeline[manifest.file == MISSING]).tolist()
    return missing


# ---------------------------------------------------------------------- regions


def crop_box(array: ManifestArray, box: Box) -> ManifestArray:
    """Crop an array to a box."""
    for axis, (start, stop) in enumerate(box):
        array = array.crop(axis, start, stop)
    return array


def count_references(array: ManifestArray) -> int:
    """Return the number of chunks that have a reference."""
    return sum(ids.size for f in array.fragments for ids, _ in iterate_references(f.manifest))


def find_boxes(array: ManifestArray, url: str) -> list[Box]:
    """Return boxes that together cover the chunks that are stored in one file."""
    if all(file.url != url for file in array.listed_sources):
        return []
    return [box for fragment in array.fragments for box in _find_boxes_in(fragment, url)]


def _find_boxes_in(fragment: Fragment, url: str) -> Iterator[Box]:
    shape = fragment.manifest.shape
    chunk_ids = [np.zeros(0, np.int64)]
    for ids, references in iterate_references(fragment.manifest):
        numbers = [n for n, file in enumerate(references.files) if file.url == url]
        chunk_ids.append(ids[np.isin(references.file, numbers)])
    edges = [fragment.edges(axis) for axis in range(len(shape))]
    for box in cover_with_boxes(
        np.stack(np.unravel_index(np.concatenate(chunk_ids), shape), axis=1)
    ):
        yield tuple(
            (int(axis_edges[start]), int(axis_edges[stop]))
            for axis_edges, (start, stop) in zip(edges, box, strict=True)
        )


OTHER_FILE, NO_CHUNK = -1, -2
"""Codes of `map_files`: a chunk in a file without a number, and a position without a chunk."""


def map_files(array: ManifestArray, axes: Sequence[int], numbers: Mapping[str, int]) -> Ints:
    """Return the largest file number among the chunks at each position along some axes.

    The result has the shape of the array along ``axes``. ``numbers`` are the file numbers by url;
    other files count as `OTHER_FILE`, and positions without chunks are `NO_CHUNK`.
    """
    mapped: Ints = np.full([array.shape[axis] for axis in axes], NO_CHUNK)
    for fragment in array.fragments:
        shape = fragment.manifest.shape
        by_chunk = np.full([shape[axis] for axis in axes], NO_CHUNK)
        for ids, references in iterate_references(fragment.manifest):
            # only the files that are used, since tables of sets list all files
            used, inverse = np.unique(references.file, return_inverse=True)
            urls = ["" if n == INLINE else references.files[n].url for n in used.tolist()]
            used_numbers = np.array([numbers.get(url, OTHER_FILE) for url in urls])
            chunk_index = np.unravel_index(ids, shape)
            np.maximum.at(
                by_chunk, tuple(chunk_index[axis] for axis in axes), used_numbers[inverse]
            )
        for n, axis in enumerate(axes):
            by_chunk = by_chunk.repeat(np.diff(fragment.edges(axis)), axis=n)
        box = tuple(slice(fragment.start[axis], fragment.stop[axis]) for axis in axes)
        mapped[box] = np.maximum(mapped[box], by_chunk)
    return mapped


def cover_with_boxes(positions: Ints) -> list[Box]:
    """Return boxes that together cover grid positions, which must be in C order.

    >>> cover_with_boxes(np.array([[0, 0], [0, 1], [1, 0], [1, 1], [2, 1]]))
    [((0, 2), (0, 2)), ((2, 3), (1, 2))]
    """
    if not positions.size:
        return [()] if len(positions) else []
    values, begins = np.unique(positions[:, 0], return_index=True)
    slices = np.split(positions[:, 1:], begins[1:])
    runs: list[tuple[int, int, Ints]] = []
    for value, below in zip(values.tolist(), slices, strict=True):
        begin = value
        if runs and runs[-1][1] == value and np.array_equal(runs[-1][2], below):
            begin, _, _ = runs.pop()
        runs.append((begin, value + 1, below))
    return [((start, stop), *box) for start, stop, below in runs for box in cover_with_boxes(below)]


def clear_boxes(array: ManifestArray, boxes: Iterable[Box], fill: Any = None) -> ManifestArray:
    """Return an array without the chunks in some boxes, which then read as ``fill``."""
    # existing gaps keep the old fill value, which may be a valid value
    array = set_fill(array, get_default_fill(array.dtype) if fill is None else fill)
    for box in _join_boxes(boxes):
        shape = tuple(stop - start for start, stop in box)
        empty = ManifestArray.full(shape, array.fill_value, array.dtype)
        array = _replace_region(array, box, empty, overwrite=True)
    return array


def _join_boxes(boxes: Iterable[Box]) -> list[Box]:
    """Merge boxes that are adjacent along one axis and equal along all others."""
    merged = sorted(set(boxes))
    for axis in reversed(range(len(merged[0]) if merged else 0)):
        runs_by_rest: dict[Any, list[tuple[int, int]]] = {}
        for box in merged:
            runs = runs_by_rest.setdefault((box[:axis], box[axis + 1 :]), [])
            start, stop = box[axis]
            if runs and runs[-1][1] == start:
                runs[-1] = runs[-1][0], stop
            else:
                runs.append((start, stop))
        merged = sorted((*a, run, *b) for (a, b), runs in runs_by_rest.items() for run in runs)
    return merged


def tile_fragments(
    fragments: Sequence[Fragment], chunks: Sequence[int], grid: tuple[int, ...]
) -> ChunkManifest:
    """Return one manifest of fragments on a regular grid, without loading references."""
    parts = tuple(
        (tuple(s // c for s, c in zip(f.start, chunks, strict=True)), f.manifest) for f in fragments
    )
    return ChunkManifest.from_table(TiledReferences(grid, parts), grid)


# ---------------------------------------------------------------------- writing regions


def write_region(
    array: ManifestArray,
    start: Sequence[int],
    added: ManifestArray,
    *,
    overwrite: bool,
    allow_cuts: bool = False,
) -> ManifestArray:
    """Write an array into the region of another that begins at ``start``.

    Existing references in the region are kept unless ``overwrite`` is true. Raises `CombineError`
    if the region cuts compressed chunks of the array and ``allow_cuts`` is false, if dtypes differ,
    or if existing chunks must be kept but the new ones have another chunk grid or pipeline.
    """
    converted = added.astype(array.dtype) if added.dtype != array.dtype else added
    if not isinstance(converted, ManifestArray):
        raise CombineError(
            f"its dtype is {array.dtype} in the set and {added.dtype} in the new dataset"
        )
    array = original = _merge_on_one_grid(array, converted)
    region = tuple((a, a + n) for a, n in zip(start, converted.shape, strict=True))
    fragments = []
    for fragment in array.fragments:
        merged: Fragment | None = fragment
        if (inside := _intersect(_get_box(fragment), region)) is not None:
            part = crop_box(converted, _shift_box(inside, start, -1))
            merged = _merge_into_fragment(array, fragment, part, [a for a, _ in inside], overwrite)
        if merged is None:
            return _replace_region(original, region, converted, overwrite, allow_cuts)
        fragments.append(merged)
    array = replace(array, fragments=tuple(fragments))
    gaps = _find_gaps(region, map(_get_box, array.fragments))
    parts = [(tuple(a for a, _ in g), crop_box(converted, _shift_box(g, start, -1))) for g in gaps]
    return _join_parts([((0,) * array.ndim, array), *parts], array) if parts else array


def _merge_on_one_grid(array: ManifestArray, added: ManifestArray) -> ManifestArray:
    """Return an array as a single fragment if it has one regular chunk grid and one pipeline."""
    is_whole = len(array.fragments) == 1 and not array.has_gaps
    if is_whole or len(array.pipelines) > 1 or not array.gaps_read_as_missing:
        return array
    pipelines = array.pipelines
    if not array.fragments:
        # an array without chunks adopts the chunk grid and pipeline of the first write
        if len(added.pipelines) != 1 or not fills_with(added.pipelines[0], array.fill_value):
            return array
        pipelines = added.pipelines
    added_fragments = added.fragments if len(added.fragments) == 1 and not added.has_gaps else ()
    chunks = find_regular_chunks(array.shape, array.fragments or added_fragments)
    if chunks is None or not array.size:
        return array
    axes = make_regular_axes(array.shape, chunks)
    grid = tuple(axis.nchunks for axis in axes)
    manifest = tile_fragments(array.fragments, chunks, grid)
    if not array.fragments:
        manifest = ChunkManifest.missing(grid)
    whole = Fragment.whole(axes, manifest)
    return replace(array, pipelines=pipelines, fragments=(whole,))


def _merge_into_fragment(
    array: ManifestArray, base: Fragment, added: ManifestArray, start: list[int], overwrite: bool
) -> Fragment | None:
    """Add the chunks of an array to a fragment; None if the grid or the pipeline differs."""
    used = base.manifest.used_pipelines(len(array.pipelines))
    if used.size != 1:
        return None
    pipeline = int(used[0])
    manifest = base.manifest.with_pipelines([0] * len(array.pipelines))
    for fragment in added.fragments:
        origin = _find_origin(base, fragment, start)
        if origin is None or not _has_same_pipeline(array.pipelines[pipeline], added, fragment):
            return None
        new = fragment.manifest.with_pipelines([0] * len(added.pipelines))
        target = manifest
        for axis, (begin, count) in enumerate(zip(origin, new.shape, strict=True)):
            target = target.take(axis, slice(begin, begin + count))
        ids, rows = gather_references(new)
        existing = _list_existing(target)
        if not overwrite:
            unoccupied = np.flatnonzero(~np.isin(ids, existing, assume_unique=True))
            new = build_sparse(ids[unoccupied], rows.at(unoccupied).prune(), new.shape)
        elif not np.isin(existing, ids, assume_unique=True).all():
            # a chunk that the new array lacks would keep its old reference
            return None
        manifest = overlay(manifest, origin, new)
    if overwrite and added.has_gaps:
        box = tuple((a, a + n) for a, n in zip(start, added.shape, strict=True))
        base_array = ManifestArray(base.stop, np.dtype("u1"), 0, (), (base,))
        if count_references(crop_box(base_array, box)):
            return None
    if added.has_gaps and not fills_with(array.pipelines[pipeline], added.fill_value):
        return None
    return replace(base, manifest=manifest.with_pipelines([pipeline]))


def _list_existing(manifest: ChunkManifest) -> Ints:
    """Return the flat chunk ids of the chunks that have a reference."""
    ids_by_block = [ids for ids, _ in iterate_references(manifest)]
    return np.concatenate([np.zeros(0, np.int64), *ids_by_block])


def _find_origin(base: Fragment, added: Fragment, start: list[int]) -> tuple[int, ...] | None:
    """Return the chunk id in ``base`` at which ``added`` starts, or None if the grids differ."""
    origin = []
    axes = zip(base.axes, base.start, added.axes, added.start, start, strict=True)
    for axis, base_start, other, other_start, begin in axes:
        low = begin + other_start - base_start
        cropped, slabs = axis.crop(low, low + other.size)
        edges = axis.slabs(slabs.start, slabs.stop).edges
        if cropped != other or (int(edges[0]), int(edges[-1])) != (low, low + other.size):
            return None
        origin.append(slabs.start)
    return tuple(origin)


def _has_same_pipeline(pipeline: CodecPipeline, added: ManifestArray, fragment: Fragment) -> bool:
    """Return whether the pipelines of a fragment of ``added`` equal a pipeline.

    Fill values are compared only if the fragment has missing chunks.
    """
    used = fragment.manifest.used_pipelines(len(added.pipelines)).tolist()
    pipelines = [added.pipelines[n] for n in used]
    if any(replace(p, fill=None) != replace(pipeline, fill=None) for p in pipelines):
        return False
    has_missing = _list_existing(fragment.manifest).size < fragment.manifest.size
    return not has_missing or all(p == pipeline for p in pipelines)


# ---------------------------------------------------------------------- splitting fragments


def _replace_region(
    array: ManifestArray,
    region: Box,
    added: ManifestArray,
    overwrite: bool,
    allow_cuts: bool = False,
) -> ManifestArray:
    """Write an array into a region as fragments of its own; the rest is cropped around it."""
    if not overwrite and count_references(crop_box(array, region)):
        raise CombineError(
            f"the region {_format_box(region)} has references already, and the new ones are stored "
            f"in another way, so that chunks of both cannot stand side by side; pass "
            f"on_duplicate='replace'"
        )
    if not allow_cuts:
        _check_edges(array, region)
    gaps = _find_gaps(_get_whole_box(array), [region])
    remainder = [(tuple(a for a, _ in box), crop_box(array, box)) for box in gaps]
    return _join_parts([*remainder, (tuple(a for a, _ in region), added)], array)


def _join_parts(
    parts: Sequence[tuple[tuple[int, ...], ManifestArray]], array: ManifestArray
) -> ManifestArray:
    """Assemble parts that do not overlap into an array with the shape and fill value of ``array``.

    Gaps of a part with another fill value become missing chunks, which keep that value.
    """
    shape, axes, fill = array.shape, range(array.ndim), array.fill_value
    filled = [(place, set_fill(p, fill)) for place, p in parts]
    return assemble(shape, array.dtype, fill, filled, axes, array.name).prune()


def _check_edges(array: ManifestArray, region: Box) -> None:
    """Raise an error for a region whose edges cut compressed chunks of an array."""
    for fragment in array.fragments:
        if (inside := _intersect(_get_box(fragment), region)) is None:
            continue
        used = fragment.manifest.used_pipelines(len(array.pipelines)).tolist()
        if not any(array.pipelines[n].codecs for n in used):
            continue
        for axis, (low, high) in enumerate(inside):
            edges = fragment.edges(axis)
            if not np.isin([low, high], edges).all():
                shown_edges = ", ".join(map(str, edges[:4].tolist())) + ", ..." * (edges.size > 4)
                raise CombineError(
                    f"the region {_format_box(region)} cuts compressed chunks of the set, which "
                    f"begin at {shown_edges} along axis {axis}; choose a region of whole "
                    f"chunks, or cut the template into shorter ones"
                )


def _format_box(box: Box) -> str:
    return ", ".join(f"{start}:{stop}" for start, stop in box)


# ---------------------------------------------------------------------- boxes


def _get_whole_box(array: ManifestArray) -> Box:
    return tuple((0, n) for n in array.shape)


def _get_box(fragment: Fragment) -> Box:
    return tuple(zip(fragment.start, fragment.stop, strict=True))


def _shift_box(box: Box, by: Sequence[int], sign: int) -> Box:
    return tuple((a + sign * s, b + sign * s) for (a, b), s in zip(box, by, strict=True))


def _intersect(left: Box, right: Box) -> Box | None:
    """Return the intersection of two boxes, or None if it is empty."""
    box = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(left, right, strict=True))
    return box if all(a < b for a, b in box) else None


def _find_gaps(box: Box, others: Iterable[Box], *, merge_gaps: bool = True) -> list[Box]:
    """Return sorted boxes that together cover the part of a box outside the others.

    The box is split along its first axis where others start or stop. For each of these ranges, the
    gaps along the other axes are found recursively; equal gaps of adjacent ranges are merged unless
    ``merge_gaps`` is false.
    """
    if not box:
        return [] if any(True for _ in others) else [()]
    (low, high), other_axes = box[0], box[1:]
    sides = [(max(low, a), min(high, b), others_behind) for (a, b), *others_behind in others]
    cuts = sorted({low, high, *(cut for a, b, _ in sides if a < b for cut in (a, b))})
    number = {cut: n for n, cut in enumerate(cuts)}
    boxes_by_range: list[list[Box]] = [[] for _ in cuts]
    for a, b, others_behind in sides:
        for n in range(number[a], number[b]) if a < b else ():
            boxes_by_range[n].append(tuple(others_behind))
    gaps: list[Box] = []
    open_gaps: dict[Box, int] = {}
    for cut, along in zip(cuts, boxes_by_range, strict=True):
        current = _find_gaps(other_axes, along, merge_gaps=merge_gaps) if cut < high else []
        continued = {gap: open_gaps.pop(gap, cut) if merge_gaps else cut for gap in current}
        gaps += [((begin, cut), *gap) for gap, begin in open_gaps.items()]
        open_gaps = continued
    return sorted(gaps)
