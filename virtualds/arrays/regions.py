"""Put a virtual array into a region of a larger one: cells of a template are filled.

Chunks that lie on the grid of the larger array, and are decoded like its own, are laid over it, so
that many fills leave one fragment. All others cut it, as a concatenation would.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from virtualds.arrays.array import ManifestArray, default_fill, fills_with
from virtualds.arrays.concatenate import assemble, set_fill
from virtualds.chunks.alignment import find_regular_chunks
from virtualds.chunks.fragment import Fragment, make_regular_axes
from virtualds.chunks.manifest import ChunkManifest, gather_references, iterate_references
from virtualds.chunks.projection import Ints
from virtualds.chunks.tables import TiledReferences, build_sparse, lay_over
from virtualds.codecs.pipeline import CodecPipeline
from virtualds.errors import CombineError

Box = tuple[tuple[int, int], ...]
"""Start and stop of a box, per axis."""


def crop_box(array: ManifestArray, box: Box) -> ManifestArray:
    """Return the part of an array in a box."""
    for axis, (start, stop) in enumerate(box):
        array = array.crop(axis, start, stop)
    return array


def count_references(array: ManifestArray) -> int:
    """Return how many chunks of an array exist."""
    return sum(ids.size for f in array.fragments for ids, _ in iterate_references(f.manifest))


def find_boxes(array: ManifestArray, url: str) -> list[Box]:
    """Return boxes that make up the chunks of an array in one file."""
    if all(file.url != url for file in array.listed_sources):
        return []
    return [box for fragment in array.fragments for box in _find_boxes_in(fragment, url)]


def _find_boxes_in(fragment: Fragment, url: str) -> Iterator[Box]:
    shape = fragment.manifest.shape
    met = [np.zeros(0, np.int64)]
    for ids, part in iterate_references(fragment.manifest):
        numbers = [n for n, file in enumerate(part.files) if file.url == url]
        met.append(ids[np.isin(part.file, numbers)])
    edges = [fragment.edges(axis) for axis in range(len(shape))]
    for box in _cover(np.stack(np.unravel_index(np.concatenate(met), shape), axis=1)):
        yield tuple(
            (int(at[start]), int(at[stop])) for at, (start, stop) in zip(edges, box, strict=True)
        )


def _cover(places: Ints) -> list[Box]:
    """Return boxes that make up some places of a grid, which are in C order.

    >>> _cover(np.array([[0, 0], [0, 1], [1, 0], [1, 1], [2, 1]]))
    [((0, 2), (0, 2)), ((2, 3), (1, 2))]
    """
    if not places.size:
        return [()] if len(places) else []
    values, begins = np.unique(places[:, 0], return_index=True)
    slices = np.split(places[:, 1:], begins[1:])
    runs: list[tuple[int, int, Ints]] = []
    for value, below in zip(values.tolist(), slices, strict=True):
        begin = value
        if runs and runs[-1][1] == value and np.array_equal(runs[-1][2], below):
            begin, _, _ = runs.pop()
        runs.append((begin, value + 1, below))
    return [((start, stop), *box) for start, stop, below in runs for box in _cover(below)]


def clear_boxes(array: ManifestArray, boxes: Iterable[Box]) -> ManifestArray:
    """Return an array that is missing in some boxes of whole chunks."""
    # gaps that it has may be values: those stay
    array = set_fill(array, default_fill(array.dtype))
    for box in boxes:
        shape = tuple(stop - start for start, stop in box)
        nothing = ManifestArray.full(shape, array.fill_value, array.dtype)
        array = put_region(array, [start for start, _ in box], nothing, replaces=True)
    return array


def tile_fragments(
    fragments: Sequence[Fragment], chunks: Sequence[int], grid: tuple[int, ...]
) -> ChunkManifest:
    """Return the manifest over a regular grid of fragments on it, and read nothing."""
    parts = tuple(
        (tuple(s // c for s, c in zip(f.start, chunks, strict=True)), f.manifest) for f in fragments
    )
    return ChunkManifest.of_table(TiledReferences(grid, parts), grid)


# ---------------------------------------------------------------------- filling


def put_region(
    array: ManifestArray, start: Sequence[int], added: ManifestArray, *, replaces: bool
) -> ManifestArray:
    """Return an array with another one in a region of it.

    Parameters
    ----------
    array : ManifestArray
    start : sequence of int
        Where the region begins, per axis. It has the shape of ``added``.
    added : ManifestArray
    replaces : bool
        Whether ``added`` replaces references that the region has; else these stay.

    Raises
    ------
    CombineError
        The region cuts compressed chunks of the array, or the arrays differ in dtype, or chunks
        are to stay among others that are stored in another way.
    """
    converted = added.astype(array.dtype) if added.dtype != array.dtype else added
    if not isinstance(converted, ManifestArray):
        raise CombineError(
            f"its dtype is {array.dtype} in the set and {added.dtype} in the new dataset"
        )
    array = before = _lay_on_one_grid(array, converted)
    region = tuple((a, a + n) for a, n in zip(start, converted.shape, strict=True))
    for number, fragment in enumerate(array.fragments):
        if (inside := _intersect(_box_of(fragment), region)) is None:
            continue
        part = crop_box(converted, _shift(inside, start, -1))
        laid = _lay_on_fragment(array, fragment, part, [a for a, _ in inside], replaces)
        if laid is None:
            return _cut_out(before, region, converted, replaces)
        kept = (*array.fragments[:number], laid, *array.fragments[number + 1 :])
        array = replace(array, fragments=kept)
    gaps = list(_find_gaps(region, [_box_of(f) for f in array.fragments]))
    parts = [(tuple(a for a, _ in g), crop_box(converted, _shift(g, start, -1))) for g in gaps]
    return _join([((0,) * array.ndim, array), *parts], array) if parts else array


def _lay_on_one_grid(array: ManifestArray, added: ManifestArray) -> ManifestArray:
    """Return an array as one fragment, where one grid of chunks and one pipeline allow it."""
    is_whole = len(array.fragments) == 1 and not array.has_gaps
    if is_whole or len(array.pipelines) > 1 or not array.gaps_read_as_missing:
        return array
    pipelines = array.pipelines
    if not array.fragments:
        # nothing says yet how the array is cut and stored: the first cell does
        if len(added.pipelines) != 1 or not fills_with(added.pipelines[0], array.fill_value):
            return array
        pipelines = added.pipelines
    chunks = find_regular_chunks(array.shape, array.fragments or _at_origin(added))
    if chunks is None or not array.size:
        return array
    axes = make_regular_axes(array.shape, chunks)
    grid = tuple(axis.nchunks for axis in axes)
    manifest = tile_fragments(array.fragments, chunks, grid)
    if not array.fragments:
        manifest = ChunkManifest.missing(grid)
    whole = Fragment.whole(axes, manifest)
    return replace(array, pipelines=pipelines, fragments=(whole,))


def _at_origin(array: ManifestArray) -> Sequence[Fragment]:
    """Return the only fragment of an array that it covers; none if there are several."""
    return array.fragments if len(array.fragments) == 1 and not array.has_gaps else ()


def _lay_on_fragment(
    array: ManifestArray, base: Fragment, added: ManifestArray, start: list[int], replaces: bool
) -> Fragment | None:
    """Return a fragment with chunks of another array laid over it, None if they do not fit."""
    used = base.manifest.used_pipelines(len(array.pipelines))
    if used.size != 1:
        return None
    pipeline = int(used[0])
    manifest = base.manifest.with_pipelines([0] * len(array.pipelines))
    for fragment in added.fragments:
        origin = _find_origin(base, fragment, start)
        if origin is None or not _is_decoded_alike(array.pipelines[pipeline], added, fragment):
            return None
        new = fragment.manifest.with_pipelines([0] * len(added.pipelines))
        there = _crop_manifest(manifest, origin, new.shape)
        ids, rows = gather_references(new)
        old = _list_existing(there)
        if not replaces:
            kept = np.flatnonzero(~np.isin(ids, old, assume_unique=True))
            new = build_sparse(ids[kept], rows.at(kept).pruned(), new.shape)
        elif not np.isin(old, ids, assume_unique=True).all():
            # what is missing now would show what was there
            return None
        manifest = lay_over(manifest, origin, new)
    if replaces and added.has_gaps and count_references(_only(base, start, added.shape)):
        return None
    if added.has_gaps and not fills_with(array.pipelines[pipeline], added.fill_value):
        return None
    return replace(base, manifest=manifest.with_pipelines([pipeline]))


def _only(base: Fragment, start: list[int], shape: tuple[int, ...]) -> ManifestArray:
    """Return the part of a fragment in a box, for counting."""
    plain = ManifestArray(base.stop, np.dtype("u1"), 0, (), (base,))
    return crop_box(plain, tuple((a, a + n) for a, n in zip(start, shape, strict=True)))


def _list_existing(manifest: ChunkManifest) -> Ints:
    """Return the numbers of the chunks that exist."""
    found = [ids for ids, _ in iterate_references(manifest)]
    return np.concatenate([np.zeros(0, np.int64), *found])


def _find_origin(base: Fragment, added: Fragment, start: list[int]) -> tuple[int, ...] | None:
    """Return at which chunk of a fragment another one begins, None if it is cut otherwise."""
    origin = []
    axes = zip(base.axes, base.start, added.axes, added.start, start, strict=True)
    for axis, base_start, other, other_start, begin in axes:
        low = begin + other_start - base_start
        cut, kept = axis.crop(low, low + other.size)
        edges = axis.slabs(kept.start, kept.stop).edges
        if cut != other or (int(edges[0]), int(edges[-1])) != (low, low + other.size):
            return None
        origin.append(kept.start)
    return tuple(origin)


def _is_decoded_alike(pipeline: CodecPipeline, added: ManifestArray, fragment: Fragment) -> bool:
    """Say whether a fragment of another array decodes as a pipeline does, but for what is missing.

    The fill value of missing chunks counts only where chunks are missing.
    """
    used = fragment.manifest.used_pipelines(len(added.pipelines)).tolist()
    known = [added.pipelines[n] for n in used]
    if any(replace(p, fill=None) != replace(pipeline, fill=None) for p in known):
        return False
    missing = _list_existing(fragment.manifest).size < fragment.manifest.size
    return not missing or all(p == pipeline for p in known)


def _crop_manifest(
    manifest: ChunkManifest, origin: tuple[int, ...], shape: tuple[int, ...]
) -> ChunkManifest:
    for axis, (begin, count) in enumerate(zip(origin, shape, strict=True)):
        manifest = manifest.take(axis, slice(begin, begin + count))
    return manifest


# ---------------------------------------------------------------------- cutting


def _cut_out(
    array: ManifestArray, region: Box, added: ManifestArray, replaces: bool
) -> ManifestArray:
    """Return an array with another one in place of a region, which other fragments surround."""
    if not replaces and count_references(crop_box(array, region)):
        raise CombineError(
            f"the region {_format_box(region)} has references already, and the new ones are stored "
            f"in another way, so that chunks of both cannot stand side by side; pass "
            f"on_duplicate='replace'"
        )
    _check_edges(array, region)
    whole = tuple((0, n) for n in array.shape)
    rest = [(tuple(a for a, _ in box), crop_box(array, box)) for box in _find_gaps(whole, [region])]
    return _join([*rest, (tuple(a for a, _ in region), added)], array)


def _join(
    parts: Sequence[tuple[tuple[int, ...], ManifestArray]], array: ManifestArray
) -> ManifestArray:
    """Return an array of parts that do not overlap, with the fill value of another.

    Gaps of a part that are filled with another value become missing chunks, which keep it.
    """
    shape, axes, fill = array.shape, range(array.ndim), array.fill_value
    held = [(place, set_fill(p, fill)) for place, p in parts]
    return assemble(shape, array.dtype, fill, held, axes, array.name).pruned()


def _check_edges(array: ManifestArray, region: Box) -> None:
    """Refuse a region whose edges cut compressed chunks of an array."""
    for fragment in array.fragments:
        if (inside := _intersect(_box_of(fragment), region)) is None:
            continue
        used = fragment.manifest.used_pipelines(len(array.pipelines)).tolist()
        if not any(array.pipelines[n].codecs for n in used):
            continue
        for axis, (low, high) in enumerate(inside):
            edges = fragment.edges(axis)
            if not np.isin([low, high], edges).all():
                raise CombineError(
                    f"the region {_format_box(region)} cuts compressed chunks of the set, which "
                    f"begin at {_format_edges(edges)} along axis {axis}; choose a region of whole "
                    f"chunks, or cut the template in shorter ones"
                )


def _format_box(box: Box) -> str:
    return ", ".join(f"{start}:{stop}" for start, stop in box)


def _format_edges(edges: Ints) -> str:
    shown = ", ".join(map(str, edges[:4].tolist()))
    return f"{shown}, ..." if edges.size > 4 else shown


# ---------------------------------------------------------------------- boxes


def _box_of(fragment: Fragment) -> Box:
    return tuple(zip(fragment.start, fragment.stop, strict=True))


def _shift(box: Box, by: Sequence[int], sign: int) -> Box:
    return tuple((a + sign * s, b + sign * s) for (a, b), s in zip(box, by, strict=True))


def _intersect(one: Box, other: Box) -> Box | None:
    """Return the common box of two, None if there is none."""
    found = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))
    return found if all(a < b for a, b in found) else None


def _find_gaps(box: Box, others: Sequence[Box]) -> Iterator[Box]:
    """Yield boxes that make up what others leave of a box."""
    met = next((both for other in others if (both := _intersect(box, other)) is not None), None)
    if met is None:
        if all(a < b for a, b in box):
            yield box
        return
    for axis, ((start, stop), (low, high)) in enumerate(zip(box, met, strict=True)):
        for part in ((start, low), (high, stop)):
            if part[0] < part[1]:
                rest = (*met[:axis], part, *box[axis + 1 :])
                yield from _find_gaps(rest, others)
