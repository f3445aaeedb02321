"""Find the positions along a dimension that come from a source, or at which to insert new data.

The file table of a set may list files that an array does not use. Functions that must not count
these read the references in parts.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise, product
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import xarray as xr

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.concatenate import Box, count_references, crop_box, write_region
from virtualds.arrays.sources import INLINE_URL, Coverage, find_coverage, mask_covered
from virtualds.bounds import check_joinable
from virtualds.chunks.axes import find_runs
from virtualds.chunks.columns import Ints, drop_repeated_tables
from virtualds.chunks.manifest import ChunkManifest, iterate_references
from virtualds.datasets.lazy import get_virtual_array
from virtualds.errors import CombineError
from virtualds.source_file import SourceFile, is_in_folder

Mask = npt.NDArray[np.bool_]
Range = tuple[int, int]
"""Start and stop of a range along a dimension."""


def list_arrays_along(dataset: xr.Dataset, dim: str) -> list[tuple[ManifestArray, int]]:
    """Return the virtual arrays with a given dimension, each with its axis."""
    arrays = ((v, get_virtual_array(v)) for v in dataset.variables.values() if dim in v.dims)
    return [(array, v.dims.index(dim)) for v, array in arrays if array is not None]


def urls_of(dataset: xr.Dataset, dim: str | None = None) -> set[str]:
    """Return the urls in the file tables of all arrays, or of arrays along a dimension."""
    return {file.url for file in list_sources(dataset, dim)}


def list_sources(dataset: xr.Dataset, dim: str | None = None) -> Iterator[SourceFile]:
    """Yield the files in the tables of arrays, each shared table once."""
    if dim is None:
        arrays = (get_virtual_array(variable) for variable in dataset.variables.values())
    else:
        arrays = (array for array, _ in list_arrays_along(dataset, dim))
    manifests = (f.manifest for array in arrays if array is not None for f in array.fragments)
    tables = chain.from_iterable(manifest.iterate_file_tables() for manifest in manifests)
    return chain.from_iterable(drop_repeated_tables(tables))


def _find_listed(arrays: Iterable[ManifestArray], urls: Collection[str]) -> set[str]:
    """Return the ``urls`` that tables of arrays list, without iterating over the tables."""
    manifests = (f.manifest for array in arrays for f in array.fragments)
    return {file.url for manifest in manifests for file in manifest.find_listed_files(urls)}


def has_chunks_in(array: ManifestArray, urls: set[str]) -> bool:
    """Return whether any chunk of an array is in one of the files."""
    listed = _find_listed([array], urls)
    return bool(listed) and not listed.isdisjoint(file.url for file in array.sources)


def find_coverage_along(
    dataset: xr.Dataset, dim: str, urls: Collection[str] | None = None
) -> Coverage:
    """Return the parts of a dimension that files cover: all files, or those of ``urls``."""
    return find_coverage(dataset.sizes[dim], _list_checked_arrays_along(dataset, dim), urls)


def _list_checked_arrays_along(
    dataset: xr.Dataset, dim: str
) -> Iterable[tuple[ManifestArray, int]]:
    """Return `list_arrays_along`, or raise an error if masks of the dimension exceed memory."""
    size = dataset.sizes[dim]
    check_joinable(size, f"dimension {dim!r} of {size:,} elements")
    return list_arrays_along(dataset, dim)


def find_used_along(dataset: xr.Dataset, dim: str, urls: set[str]) -> set[str]:
    """Return the ``urls`` with chunks of arrays along a dimension."""
    return {*find_coverage_along(dataset, dim, urls).urls}


def find_positions(
    dataset: xr.Dataset, dim: str, urls: set[str], where: Mask | None = None
) -> Mask:
    """Return the mask of positions along a dimension whose data come from ``urls``.

    With the mask ``where``, the result may lack other positions.
    """

    def may_cover(manifest: ChunkManifest) -> bool:
        # a search in the tables of files takes longer than reading a few positions
        return where is not None or bool(manifest.find_listed_files(urls))

    size, arrays = dataset.sizes[dim], _list_checked_arrays_along(dataset, dim)
    return mask_covered(size, arrays, urls.__contains__, where=where, may_cover=may_cover)


def find_ranges(dataset: xr.Dataset, dim: str, urls: set[str]) -> dict[str, list[Range]]:
    """Return the ranges along a dimension that come from each of ``urls``, if there are any."""
    return find_coverage_along(dataset, dim, urls).collect_ranges()


def find_values(dataset: xr.Dataset, dim: str, urls: Collection[str]) -> dict[str, pd.Index[Any]]:
    """Return the coordinate values along a dimension that come from each of ``urls``."""
    index, ranges = dataset.indexes[dim], find_ranges(dataset, dim, set(urls))
    return {
        url: index[np.concatenate([np.arange(0), *(np.arange(*r) for r in ranges.get(url, []))])]
        for url in urls
    }


def find_used_at(dataset: xr.Dataset, dim: str, mask: Mask) -> set[str]:
    """Return the urls of sources with chunks at the positions of a mask."""
    urls = urls_of(dataset)
    parts = (cut_along(dataset, dim, run) for run in find_runs(np.flatnonzero(mask)))
    return {url for part in parts for url in find_used_along(part, dim, urls)}


def find_only_dimension(present: xr.Dataset, urls: set[str]) -> str:
    """Return the one dimension along which sources follow each other."""
    dims = list_partly_covered_dims(present, urls)
    if len(dims) != 1:
        raise ValueError(
            f"append_dim: sources follow each other along {dims or 'no dimension'}; name the "
            f"dimension"
        )
    return dims[0]


def list_partly_covered_dims(present: xr.Dataset, urls: set[str]) -> list[str]:
    """Return the dimensions along which some sources cover only part of the positions."""
    masks = {str(dim): find_positions(present, str(dim), urls) for dim in present.dims}
    return [dim for dim, mask in masks.items() if mask.any() and not mask.all()]


# ---------------------------------------------------------------------- overlaps


def list_owners(dataset: xr.Dataset, dim: str, root: str) -> npt.NDArray[np.object_]:
    """Return the url of the source of each position along a dimension, or "" if it has none.

    Files that belong to the set at the url ``root`` are not sources.
    """
    owners = np.full(dataset.sizes[dim], "", object)
    urls = {url for url in urls_of(dataset) if not is_stored_in_set(url, root)}
    for url, runs in sorted(find_ranges(dataset, dim, urls).items()):
        for run in runs:
            owners[slice(*run)] = url
    return owners


def choose_positions(
    present: xr.Dataset | None, new: xr.Dataset, dim: str, root: str, overlap: str
) -> tuple[Ints, Mask]:
    """Return the positions of new data to use, and a mask of the positions of the set to replace.

    If several sources have the same coordinate value, ``overlap="first"`` or ``"last"`` keeps that
    of the first or last url. Values that one source repeats are all kept. With another ``overlap``,
    values of different sources are kept as well.
    """
    datasets = [new] if present is None else [present, new]
    indexes = [dataset.indexes[dim] for dataset in datasets]
    owners = np.concatenate([list_owners(dataset, dim, root) for dataset in datasets])
    names, ranks = np.unique(owners.astype(str), return_inverse=True)
    ranks = -ranks if overlap == "first" else ranks
    # positions without a chunk have the lowest priority
    ranks = np.where(owners == "", -names.size, ranks)
    codes = pd.factorize(indexes[0].append(indexes[1:]))[0]
    rows = np.arange(codes.size)
    # positions without a chunk have no url, so they follow the order in which files were opened
    backward = (owners == "") & (overlap == "last")
    order = np.lexsort((np.where(backward, -rows, rows), -ranks, codes))
    group_starts = np.flatnonzero(np.diff(codes[order], prepend=-2))
    best = rows.copy()
    best[order] = np.repeat(order[group_starts], np.diff([*group_starts, rows.size]))
    # a file may have a value several times
    split = codes.size - indexes[-1].size
    is_new = rows >= split
    is_same = (owners[best] == owners) & (owners != "") & (is_new[best] == is_new)
    best[is_same] = rows[is_same]
    # missing values equal no other value
    best[codes < 0] = rows[codes < 0]
    if overlap not in ("first", "last"):
        best = np.where((owners[best] == owners) & (owners != ""), best, rows)
    used = np.flatnonzero(best[split:] == rows[split:])
    return used, best[:split] >= split


# ---------------------------------------------------------------------- copies
# Chunks that a set has written itself: rewritten chunks in files of the set, and inline bytes. The
# set does not record the sources of these copies.


SUFFIX = ".chunks"
"""The suffix of the folder of rewritten chunks, after the name of the set."""
_REWRITTEN_CHUNK = re.compile(rf"(?P<folder>.*{re.escape(SUFFIX)}/.+/[0-9a-f]{{16}})/[^/]+")


def find_copy_folder(url: str) -> str | None:
    """Return the folder of rewritten chunks in which a file is, or None if it is in no such folder.

    Examples
    --------
    >>> find_copy_folder("file:///refs.json.chunks/t/96aab4ec04814378/2-4.0-0")
    'file:///refs.json.chunks/t/96aab4ec04814378'
    >>> find_copy_folder("file:///2001.nc")
    """
    match = _REWRITTEN_CHUNK.fullmatch(url)
    return None if match is None else match["folder"]


def is_icechunk_chunk(url: str) -> bool:
    """Return whether a file is a chunk of an Icechunk repository (specification, "File layout")."""
    return re.fullmatch(r".*/chunks/[0-9A-HJKMNP-TV-Z]{20}", url) is not None


def is_copy(url: str) -> bool:
    """Return whether a file contains chunks that a set has written."""
    return find_copy_folder(url) is not None or is_icechunk_chunk(url)


def is_stored_in_set(url: str, root: str) -> bool:
    """Return whether a file was written by the set at the url ``root``."""
    # quick tests first, since most urls are of sources
    is_inside = bool(root) and url.startswith(root) and is_in_folder(url, root)
    return is_inside or ("chunks/" in url and is_copy(url))


def find_copies(dataset: xr.Dataset, dim: str) -> Mask:
    """Return the mask of positions that have copies, but no chunk in a source."""

    def is_copied(url: str) -> bool:
        return url == INLINE_URL or is_copy(url)

    has_copies: dict[Hashable, bool] = {}

    def may_have_copies(manifest: ChunkManifest) -> bool:
        stored = manifest.count_sources()
        if stored is None or stored.chunks.sum() < manifest.size:
            # some chunks may be inline
            return True
        if stored.name not in has_copies:
            has_copies[stored.name] = any(map(is_copy, stored.read_files().urls))
        return has_copies[stored.name]

    size, arrays = dataset.sizes[dim], list(_list_checked_arrays_along(dataset, dim))
    copied = mask_covered(size, arrays, is_copied, may_cover=may_have_copies)
    referenced = mask_covered(size, arrays, lambda url: not is_copied(url), where=copied)
    return copied & ~referenced


def is_adjacent_to(mask: Mask, span: Range) -> bool:
    """Return whether a position adjacent to a range is in a mask.

    Copies adjacent to the range of a source may come from the same source, which then covers more
    than its references show.
    """
    begin, stop = span
    return bool(mask[max(begin - 1, 0) : begin].any() or mask[stop : stop + 1].any())


# ---------------------------------------------------------------------- duplicates


CHUNK_SPAN_COLUMNS = ("url", "offset", "begin", "stop", "place")
"""The columns of a table of parts of chunks: the location of the chunk, the ``begin`` and ``stop``
of its elements along a dimension, and the position in the dimension at which they appear."""


def find_present_positions(present: xr.Dataset, new: xr.Dataset, dim: str) -> Mask:
    """Return the mask of positions of a dataset that the set already has."""
    if dim not in present.indexes or dim not in new.indexes:
        return _find_same_elements(present, new, dim)
    index = new.indexes[dim]
    is_present = np.asarray(index.isin(present.indexes[dim]) & index.notna())
    # missing coordinate values do not identify a position
    return (
        is_present
        if index.notna().all()
        else is_present | index.isna() & _find_same_elements(present, new, dim)
    )


def _find_same_elements(present: xr.Dataset, new: xr.Dataset, dim: str) -> Mask:
    """Return the mask of positions at which the set refers to the same elements."""
    mask = np.zeros(new.sizes[dim], bool)
    present_arrays = [array for array, _ in list_arrays_along(present, dim)]
    urls = _find_listed(present_arrays, urls_of(new, dim))
    if not urls:
        return mask
    for name, variable in new.variables.items():
        array = get_virtual_array(variable)
        present_array = get_virtual_array(present.variables[name])
        if array is None or present_array is None or dim not in variable.dims:
            continue
        axis = variable.dims.index(dim)
        matches = _tabulate_chunk_spans(array, axis, urls).merge(
            _tabulate_chunk_spans(present_array, axis, urls),
            on=["url", "offset"],
            suffixes=("", "_known"),
        )
        begin = np.maximum(matches["begin"], matches["begin_known"])
        stop = np.minimum(matches["stop"], matches["stop_known"])
        shift = matches["place"] - matches["begin"]
        for first, last in zip(begin + shift, stop + shift, strict=True):
            mask[first : max(first, last)] = True
    return mask


def _tabulate_chunk_spans(array: ManifestArray, axis: int, urls: set[str]) -> Any:
    """Return a table of the parts of chunks in ``urls`` that an array has along an axis."""
    tables = [pd.DataFrame(columns=list(CHUNK_SPAN_COLUMNS))]
    for fragment in array.fragments:
        slabs = fragment.axes[axis].slabs()
        for ids, part in iterate_references(fragment.manifest):
            file = part.file.ravel()
            names = np.array([file.url if file.url in urls else "" for file in part.files] + [""])
            rows = np.flatnonzero((file >= 0) & (names[file] != ""))
            slab = np.unravel_index(ids.ravel()[rows], fragment.manifest.shape)[axis]
            begin, place = slabs.inset[slab], slabs.edges[slab]
            columns = {
                "url": names[file[rows]].astype(object),
                "offset": part.offset.ravel()[rows],
                "begin": begin,
                "stop": begin + slabs.edges[slab + 1] - place,
                "place": place + fragment.start[axis],
            }
            tables.append(pd.DataFrame(columns).drop_duplicates())
    return pd.concat(tables).drop_duplicates()


def _describe_copy(present: xr.Dataset, duplicates: xr.Dataset, dim: str) -> str:
    """Return a clause on copies that the set has at the positions of duplicates, or ""."""
    if dim not in present.indexes or dim not in duplicates.indexes:
        return ""
    positions = np.flatnonzero(present.indexes[dim].isin(duplicates.indexes[dim]))
    if not find_copies(present.isel({dim: positions[:1]}), dim).any():
        return ""
    return (
        ", in chunks that were rewritten or are held in the set: it does not note their sources, "
        "and sync cannot follow them (it can without on_unsupported='rewrite' and inline_threshold)"
    )


def check_unchanged(present: xr.Dataset, new: xr.Dataset, dim: str) -> None:
    """Raise an error for sources whose size, time or etag has changed since the set was written."""
    current = {file.url: file for file in list_sources(new, dim)}
    changed = {
        file.url
        for array, _ in list_arrays_along(present, dim)
        for fragment in array.fragments
        for file in fragment.manifest.find_listed_files(current.keys())
        if current[file.url].merge(file) is None
    }
    for url in sorted(find_used_along(present, dim, changed)) if changed else ():
        raise CombineError(
            f"append along {dim!r}: {url} has changed since the set was written, so that the set "
            f"cannot hold parts of both versions; replace all that the set has of this source "
            f"(mode='replace-source')"
        )


DUPLICATES_REMEDY = (
    "pass on_duplicate='skip' to leave them out, or mode='replace-source' if a source was "
    "processed again"
)
"""The remedy for positions that the set already has."""


def make_duplicates_error(
    present: xr.Dataset,
    new: xr.Dataset,
    dim: str,
    present_mask: Mask,
    remedy: str = DUPLICATES_REMEDY,
) -> CombineError:
    """Return the error that lists positions that the set already has."""
    first = int(np.flatnonzero(present_mask)[0])
    at = f", {dim} {new.indexes[dim][first]}" if dim in new.indexes else ""
    duplicate = new.isel({dim: slice(first, first + 1)})
    urls = sorted(find_used_along(present, dim, urls_of(duplicate, dim)))
    source = f", of the source {urls[0]}" if urls else _describe_copy(present, duplicate, dim)
    return CombineError(
        f"append along {dim!r}: {np.count_nonzero(present_mask)} of {present_mask.size} positions "
        f"are in the set already, the first is number {first}{at}{source}; {remedy}"
    )


# ---------------------------------------------------------------------- pieces


POSITIONS = ("end", "start", "coordinate")
"""Where new data can be inserted: the values of ``position``."""


class Piece(NamedTuple):
    """A range along a dimension, of the set or of the new data."""

    is_new: bool
    begin: int
    stop: int


EMPTY_PIECE = Piece(True, 0, 0)
Replacements = Sequence[tuple[Range, Piece]]
"""Pieces of new data, each with the range of the set that it replaces, in ascending order.

A range is empty where its piece is only inserted, and a piece is empty where its range is deleted.
"""


def cut_along(dataset: xr.Dataset, dim: str, span: Range) -> xr.Dataset:
    """Return the part of a dataset in a range along a dimension."""
    return dataset.isel({dim: slice(*span)})


def replace_ranges(size: int, replacements: Replacements) -> list[Piece]:
    """Return the pieces of a set of ``size`` positions after ranges are replaced by new pieces."""
    pieces, last = [], 0
    for (begin, stop), piece in replacements:
        pieces += [Piece(False, last, begin), piece]
        last = stop
    pieces.append(Piece(False, last, size))
    return [piece for piece in pieces if piece.stop > piece.begin]


def find_insertions(
    present: xr.Dataset, new: xr.Dataset, positions: Ints, dim: str, position: str
) -> Replacements:
    """Return where to insert positions of new data: at an end, or by their coordinate."""
    size = present.sizes[dim]
    if position != "coordinate":
        targets = np.full(positions.size, size if position == "end" else 0)
    else:
        positions, targets = _sort_into(present, new, positions, dim)
    cuts = np.flatnonzero((np.diff(targets) != 0) | (np.diff(positions) != 1)) + 1
    runs = pairwise([0, *cuts.tolist(), positions.size])
    return [
        (
            (int(targets[a]), int(targets[a])),
            Piece(True, int(positions[a]), int(positions[b - 1]) + 1),
        )
        for a, b in runs
    ]


def _sort_into(
    present: xr.Dataset, new: xr.Dataset, positions: Ints, dim: str
) -> tuple[Ints, npt.NDArray[np.intp]]:
    """Return positions of new data in the order of the set, and the position to insert each at.

    Raises `CombineError` if the set has no order, or the new data repeat a value.
    """
    index = present.indexes.get(dim)
    if index is None or not (index.is_monotonic_increasing or index.is_monotonic_decreasing):
        problem = "has no index along" if index is None else "is not monotonic along"
        raise CombineError(f"position='coordinate': the set {problem} {dim!r}; append at an end")
    is_descending = not index.is_monotonic_increasing
    values = new.indexes[dim][positions]
    order = values.argsort()[:: -1 if is_descending else 1]
    ordered = values[order]
    if ordered.hasnans or not ordered.is_unique:
        raise CombineError(
            f"position='coordinate': the new dataset repeats or lacks values of {dim!r}, so that "
            f"the places of the data are unclear; leave these data out"
        )
    targets = np.asarray(index[:: -1 if is_descending else 1].searchsorted(ordered))
    return positions[order], index.size - targets if is_descending else targets


# ---------------------------------------------------------------------- replacing data


def find_replacements(present: xr.Dataset, new: xr.Dataset, dim: str) -> Replacements:
    """Return the pieces of new data and the ranges of the set that they replace."""
    present_urls = urls_of(present)
    shared = urls_of(new) & present_urls
    if not shared:
        all_of_new = Piece(True, 0, new.sizes[dim])
        return [(_find_range_of_values(present, new, dim), all_of_new)]
    if unknown := sorted(urls_of(new) - present_urls):
        raise CombineError(
            f"replace-source: {unknown[0]} is not a source of the set; append it "
            f"(append_dim={dim!r})"
        )
    new_ranges, present_ranges = (find_ranges(dataset, dim, shared) for dataset in (new, present))
    copies = find_copies(present, dim)
    replacements = []
    for url in sorted(shared):
        run = _check_one_run(new_ranges.get(url, []), url, "the new dataset")
        present_run = _check_one_run(present_ranges.get(url, []), url, "the set")
        if is_adjacent_to(copies, present_run):
            # include the copies of its chunks
            span = _find_range_of_values(present, cut_along(new, dim, run), dim)
            if span[0] > present_run[0] or span[1] < present_run[1]:
                raise CombineError(
                    f"replace-source: positions {present_run[0]} to {present_run[1]} along "
                    f"{dim!r} of the set come from {url}, and chunks beside them were rewritten or "
                    f"are held in the set, but the new dataset has other values of {dim!r}, so "
                    f"that it is unclear what they replace; write the set again (mode='w')"
                )
            present_run = span
        replacements.append((present_run, Piece(True, *run)))
    return sorted(replacements)


def _check_one_run(runs: Sequence[Range], url: str, owner: str) -> Range:
    """Return the only range of a source, or raise an error if it has several."""
    if len(runs) != 1:
        raise CombineError(
            f"replace-source: {url} fills {len(runs)} separate ranges of {owner}; it can only be "
            f"replaced where it fills one"
        )
    return runs[0]


def _find_range_of_values(present: xr.Dataset, new: xr.Dataset, dim: str) -> Range:
    """Return the range in which the set has the values of the new coordinate."""
    if dim in present.indexes and dim in new.indexes and present.indexes[dim].is_unique:
        positions = present.indexes[dim].get_indexer(new.indexes[dim])
        if positions.size and positions[0] >= 0 and (np.diff(positions) == 1).all():
            return int(positions[0]), int(positions[-1]) + 1
    raise CombineError(
        f"replace-source: the set has neither the sources of the new dataset nor its values "
        f"along {dim!r} in one range; append it (append_dim={dim!r})"
    )


def find_replaced_static(
    present: xr.Dataset, new: xr.Dataset, dim: str | None
) -> dict[Hashable, Any]:
    """Return new variables without the dimension that the set refers to in the same sources."""
    urls = urls_of(new)
    static = {
        name: variable
        for name, variable in new.variables.items()
        if dim not in variable.dims
        and name in present.variables
        and (array := get_virtual_array(present.variables[name])) is not None
        and has_chunks_in(array, urls)
    }
    others = present.drop_vars(list(static))
    for name, variable in static.items():
        for other, size in variable.sizes.items():
            if others.sizes.get(other, size) != size:
                raise CombineError(
                    f"replace-source: {name!r} has {size} elements along {other!r} now, other "
                    f"variables of the set have {others.sizes[other]}; write the set again "
                    f"(mode='w')"
                )
    return static


# ---------------------------------------------------------------------- boxes

CellPlaces = Mapping[str, npt.NDArray[np.intp]]
"""By dimension of a grid, the position in an array of each position of the new files."""
OTHER_VALUES = (
    "it has other values in the set at the same coordinates; leave it out (drop_variables=), or "
    "give it all dimensions of the grid (preprocess=)"
)


def put_boxes(
    existing: xr.Variable,
    new: xr.Variable,
    positions_by_dim: CellPlaces,
    replaced: Collection[str] | None,
) -> ManifestArray | npt.NDArray[Any] | None:
    """Return a variable along some dimensions of a grid with new files, or None if unchanged.

    New files must have the same values as existing files that are not in ``replaced``; if
    ``replaced`` is None, new files replace all. Boxes of which only a part may be replaced are
    split at the edges of chunks.
    """
    array, added = get_virtual_array(existing), get_virtual_array(new)
    positions = [positions_by_dim.get(str(dim), np.arange(n)) for dim, n in new.sizes.items()]
    if array is None or added is None:
        return put_values(existing, new, positions, replaces=replaced is None)
    original, boxes = array, list(list_boxes(added, positions))
    while boxes:
        start, box = boxes.pop()
        lengths = [stop - begin for begin, stop in box]
        part = crop_box(added, box)
        present = crop_box(array, tuple((a, a + n) for a, n in zip(start, lengths, strict=True)))
        urls = {file.url for file in present.sources} if count_references(present) else set()
        if replaced is None or urls <= set(replaced):
            array = write_region(array, start, part, overwrite=True)
            continue
        pair = (xr.Variable(new.dims, data) for data in (present, part))
        if urls.isdisjoint(replaced) and next(pair).equals(next(pair)):  # type: ignore[no-untyped-call]
            continue
        if (halves := _split_box(part, start, box)) is None:
            raise CombineError(OTHER_VALUES)
        boxes += halves
    return None if array is original else array


def _split_box(
    part: ManifestArray, start: Sequence[int], box: Box
) -> list[tuple[list[int], Box]] | None:
    """Return the two halves of a box of a fragment, or None if it has a single chunk."""
    edges = [[*map(int, part.fragments[0].edges(axis))] for axis in range(part.ndim)]
    axis = max(range(part.ndim), key=lambda axis: len(edges[axis]))
    if len(edges[axis]) < 3:
        return None
    middle = edges[axis][len(edges[axis]) // 2]
    begin, stop = box[axis]
    moved = [a + middle if n == axis else a for n, a in enumerate(start)]
    lower, upper = ((begin, begin + middle), (begin + middle, stop))
    return [
        ([*start], (*box[:axis], lower, *box[axis + 1 :])),
        (moved, (*box[:axis], upper, *box[axis + 1 :])),
    ]


def list_boxes(
    array: ManifestArray, positions: Sequence[npt.NDArray[np.intp]]
) -> Iterator[tuple[list[int], Box]]:
    """Yield boxes of an array that has gaps, each with its start in another array.

    Adjacent positions of a box are also adjacent in the other array.
    """
    for fragment in array.fragments:
        runs: list[list[tuple[int, int]]] = []
        for axis, axis_positions in enumerate(positions):
            edges = fragment.edges(axis)
            begin, stop = int(edges[0]), int(edges[-1])
            cuts = np.flatnonzero(np.diff(axis_positions[begin:stop]) != 1) + begin + 1
            bounds = [begin, *cuts.tolist(), stop]
            runs.append(list(pairwise(bounds)))
        for box in product(*runs):
            yield (
                [
                    int(axis_positions[a])
                    for axis_positions, (a, _) in zip(positions, box, strict=True)
                ],
                tuple(box),
            )


def put_values(
    existing: xr.Variable,
    new: xr.Variable,
    positions: Sequence[npt.NDArray[np.intp]],
    *,
    replaces: bool = False,
) -> npt.NDArray[Any] | None:
    """Return values in memory updated with those of new files, or None if nothing changes."""
    values, added = np.array(existing.values), np.asarray(new.values).astype(existing.dtype)
    region = np.ix_(*positions)
    current = values[region]
    is_present = ~np.asarray(xr.Variable(new.dims, current).isnull())
    is_added = ~np.asarray(xr.Variable(new.dims, added).isnull())
    is_different = is_present & is_added & np.asarray(current != added)
    if is_different.any() and not replaces:
        raise CombineError(OTHER_VALUES)
    if not (is_different | (is_added & ~is_present)).any():
        return None
    values[region] = np.where(is_added, added, current)
    return values
