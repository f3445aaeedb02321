"""Which positions along a dimension come from which sources, and where new data are inserted.

The file table of a set may list files that an array does not use. Where that matters, the
references are read in pieces.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise, product
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import xarray as xr

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.concatenate import Box, count_references, crop_box, write_region
from virtualds.arrays.coverage import INLINE_URL, Coverage, find_coverage, mask_covered
from virtualds.bounds import check_joinable
from virtualds.chunks.axes import find_runs
from virtualds.chunks.columns import Ints, drop_repeated_tables
from virtualds.chunks.manifest import ChunkManifest, iterate_references
from virtualds.datasets.lazy import get_virtual_array
from virtualds.errors import CombineError
from virtualds.source_file import SourceFile
from virtualds.urls import is_in_folder

Mask = npt.NDArray[np.bool_]
Range = tuple[int, int]
"""Start and stop of a range along a dimension."""


def list_arrays_along(dataset: xr.Dataset, dim: str) -> list[tuple[ManifestArray, int]]:
    """Return the virtual arrays with a given dimension, each with its axis."""
    found = ((v, get_virtual_array(v)) for v in dataset.variables.values() if dim in v.dims)
    return [(array, v.dims.index(dim)) for v, array in found if array is not None]


def urls_of(dataset: xr.Dataset, dim: str | None = None) -> set[str]:
    """Return the urls of sources, or of those along a dimension; tables may list unused ones."""
    return {file.url for file in list_sources(dataset, dim)}


def list_sources(dataset: xr.Dataset, dim: str | None = None) -> Iterator[SourceFile]:
    """Yield the files in the tables of arrays; the arrays of a dataset mostly share one table."""
    if dim is None:
        found = (get_virtual_array(variable) for variable in dataset.variables.values())
    else:
        found = (array for array, _ in list_arrays_along(dataset, dim))
    listed = (
        f.manifest.listed_files for array in found if array is not None for f in array.fragments
    )
    return (file for table in drop_repeated_tables(listed) for file in table)


def _find_listed(arrays: Iterable[ManifestArray], urls: Collection[str]) -> set[str]:
    """Return which of some urls the tables of arrays list, without iterating over the tables."""
    manifests = (f.manifest for array in arrays for f in array.fragments)
    return {file.url for manifest in manifests for file in manifest.find_listed_files(urls)}


def has_chunks_in(array: ManifestArray, urls: set[str]) -> bool:
    """Return whether any chunk of an array is in some files; tables may list unused ones."""
    listed = _find_listed([array], urls)
    return bool(listed) and not listed.isdisjoint(file.url for file in array.sources)


def find_coverage_along(
    dataset: xr.Dataset, dim: str, urls: Collection[str] | None = None
) -> Coverage:
    """Return which files cover which part of a dimension: all files, or those of some urls."""
    return find_coverage(dataset.sizes[dim], _list_arrays(dataset, dim), urls)


def _list_arrays(dataset: xr.Dataset, dim: str) -> Iterable[tuple[ManifestArray, int]]:
    """Return the arrays along a dimension; raise an error if its positions do not fit in memory."""
    size = dataset.sizes[dim]
    check_joinable(size, f"dimension {dim!r} of {size:,} elements")
    return list_arrays_along(dataset, dim)


def find_used_along(dataset: xr.Dataset, dim: str, urls: set[str]) -> set[str]:
    """Return the urls that chunks along a dimension really use; tables may list unused ones."""
    return {*find_coverage_along(dataset, dim, urls).urls}


def find_positions(
    dataset: xr.Dataset, dim: str, urls: set[str], where: Mask | None = None
) -> Mask:
    """Return the mask of positions along a dimension whose data come from some sources.

    Other positions than those of the mask ``where`` may be missing in the result.
    """
    [found] = mask_covered(
        dataset.sizes[dim],
        _list_arrays(dataset, dim),
        urls.__contains__,
        where=where,
        may_cover=lambda manifest: bool(manifest.find_listed_files(urls)),
    )
    return found


def find_ranges(dataset: xr.Dataset, dim: str, urls: set[str]) -> dict[str, list[Range]]:
    """Return the ranges along a dimension that come from each of some sources, if there are any."""
    return find_coverage_along(dataset, dim, urls).collect_ranges()


def find_values(dataset: xr.Dataset, dim: str, urls: Collection[str]) -> dict[str, pd.Index[Any]]:
    """Return the coordinate values along a dimension that come from each of some sources."""
    index, found = dataset.indexes[dim], find_ranges(dataset, dim, set(urls))
    return {url: index[_list_positions(found.get(url, []))] for url in urls}


def _list_positions(ranges: Iterable[Range]) -> Ints:
    return np.concatenate([np.arange(0), *(np.arange(*one) for one in ranges)])


def find_used_at(dataset: xr.Dataset, dim: str, where: Mask) -> set[str]:
    """Return the urls of sources with chunks at some positions along a dimension."""
    urls = urls_of(dataset)
    parts = (cut_along(dataset, dim, run) for run in find_runs(np.flatnonzero(where)))
    return {url for part in parts for url in find_used_along(part, dim, urls)}


def find_only_dimension(present: xr.Dataset, urls: set[str]) -> str:
    """Return the one dimension along which sources follow each other."""
    found = list_partly_covered_dims(present, urls)
    if len(found) != 1:
        raise ValueError(
            f"append_dim: sources follow each other along {found or 'no dimension'}; name the "
            f"dimension"
        )
    return found[0]


def list_partly_covered_dims(present: xr.Dataset, urls: set[str]) -> list[str]:
    """Return the dimensions along which some sources cover only part of the positions."""
    met = {str(dim): find_positions(present, str(dim), urls) for dim in present.dims}
    return [dim for dim, there in met.items() if there.any() and not there.all()]


# ---------------------------------------------------------------------- which source counts


def list_owners(dataset: xr.Dataset, dim: str, root: str) -> npt.NDArray[np.object_]:
    """Return the url of the source of every position along a dimension, "" without one.

    Files that the set at the url ``root`` has written itself do not count.
    """
    found = np.full(dataset.sizes[dim], "", object)
    urls = {url for url in urls_of(dataset) if not is_stored_in_set(url, root)}
    for url, runs in sorted(find_ranges(dataset, dim, urls).items()):
        for run in runs:
            found[slice(*run)] = url
    return found


def choose_positions(
    present: xr.Dataset | None, new: xr.Dataset, dim: str, root: str, overlap: str
) -> tuple[Ints, Mask]:
    """Return the positions of new data to use, and a mask of those of the set they replace.

    A value that several sources have comes from the first or the last of them, by their urls, if
    ``overlap`` says so. What a source has several times stays, and so does, with another
    ``overlap``, what different sources have.
    """
    datasets = [new] if present is None else [present, new]
    indexes = [dataset.indexes[dim] for dataset in datasets]
    owners = np.concatenate([list_owners(dataset, dim, root) for dataset in datasets])
    names, ranks = np.unique(owners.astype(str), return_inverse=True)
    ranks = -ranks if overlap == "first" else ranks
    # positions without a chunk yield to all others
    ranks = np.where(owners == "", -names.size, ranks)
    codes = pd.factorize(indexes[0].append(indexes[1:]))[0]
    rows = np.arange(codes.size)
    # positions without a chunk are in the order in which files were opened
    backward = (owners == "") & (overlap == "last")
    order = np.lexsort((np.where(backward, -rows, rows), -ranks, codes))
    begins = np.flatnonzero(np.diff(codes[order], prepend=-2))
    best = rows.copy()
    best[order] = np.repeat(order[begins], np.diff([*begins, rows.size]))
    # a file may have a value several times
    split = codes.size - indexes[-1].size
    is_new = rows >= split
    is_same = (owners[best] == owners) & (owners != "") & (is_new[best] == is_new)
    best[is_same] = rows[is_same]
    # missing values are equal to no others
    best[codes < 0] = rows[codes < 0]
    if overlap not in ("first", "last"):
        best = np.where((owners[best] == owners) & (owners != ""), best, rows)
    used = np.flatnonzero(best[split:] == rows[split:])
    return used, best[:split] >= split


# ---------------------------------------------------------------------- copies
# Chunks of a set that refer to no source: rewritten chunks in files of the set, and inline bytes. A
# set does not record from which source such a chunk was made.


SUFFIX = ".chunks"
"""The suffix of the folder of rewritten chunks, after the name of the set."""
_NATIVE = re.compile(r".*/chunks/[0-9A-HJKMNP-TV-Z]{20}")
"""Native chunks of an Icechunk repository: https://icechunk.io/en/latest/reference/spec/."""
_FILE = re.compile(rf"(?P<folder>.*{re.escape(SUFFIX)}/.+/[0-9a-f]{{16}})/[^/]+")


def find_copy_folder(url: str) -> str | None:
    """Return the folder of rewritten chunks in which a file is, or None if it is in no such folder.

    Examples
    --------
    >>> find_copy_folder("file:///refs.json.chunks/t/96aab4ec04814378/2-4.0-0")
    'file:///refs.json.chunks/t/96aab4ec04814378'
    >>> find_copy_folder("file:///2001.nc")
    """
    found = _FILE.fullmatch(url)
    return None if found is None else found["folder"]


def is_copy(url: str) -> bool:
    """Return whether a file contains chunks that a set wrote itself."""
    return find_copy_folder(url) is not None or _NATIVE.fullmatch(url) is not None


def is_stored_in_set(url: str, root: str) -> bool:
    """Return whether a file was written by the set at the url ``root``."""
    # a quick test first, since most urls are neither
    is_inside = bool(root) and url.startswith(root) and is_in_folder(url, root)
    return is_inside or ("chunks/" in url and is_copy(url))


def find_copies(dataset: xr.Dataset, dim: str) -> Mask:
    """Return the mask of positions that have copies, and no chunk in a source."""

    def is_own(url: str) -> bool:
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

    size, arrays = dataset.sizes[dim], list(_list_arrays(dataset, dim))
    [copied] = mask_covered(size, arrays, is_own, may_cover=may_have_copies)
    [referred] = mask_covered(size, arrays, lambda url: not is_own(url), where=copied)
    return copied & ~referred


def borders(marked: Mask, stretch: Range) -> bool:
    """Return whether a position adjacent to a range is marked.

    Copies adjacent to a range may be of the same source, which then covers more than its references
    show.
    """
    begin, stop = stretch
    return bool(marked[max(begin - 1, 0) : begin].any() or marked[stop : stop + 1].any())


# ---------------------------------------------------------------------- duplicates


STRETCH_COLUMNS = ("url", "offset", "begin", "stop", "place")
"""A range of a stored chunk: the location of the chunk, its elements ``begin`` to ``stop`` along
the dimension, and the ``place`` in the dimension at which they appear."""


def find_present_positions(present: xr.Dataset, new: xr.Dataset, dim: str) -> Mask:
    """Return the mask of positions of a dataset that the set already has."""
    if dim not in present.indexes or dim not in new.indexes:
        return _find_same_elements(present, new, dim)
    index = new.indexes[dim]
    known = np.asarray(index.isin(present.indexes[dim]) & index.notna())
    # two missing values are not the same position
    return (
        known
        if index.notna().all()
        else known | index.isna() & _find_same_elements(present, new, dim)
    )


def _find_same_elements(present: xr.Dataset, new: xr.Dataset, dim: str) -> Mask:
    """Return the mask of positions at which the set refers to the same elements."""
    found = np.zeros(new.sizes[dim], bool)
    there = [array for array, _ in list_arrays_along(present, dim)]
    urls = _find_listed(there, urls_of(new, dim))
    if not urls:
        return found
    for name, variable in new.variables.items():
        array = get_virtual_array(variable)
        known = get_virtual_array(present.variables[name])
        if array is None or known is None or dim not in variable.dims:
            continue
        axis = variable.dims.index(dim)
        both = _list_stretches(array, axis, urls).merge(
            _list_stretches(known, axis, urls), on=["url", "offset"], suffixes=("", "_known")
        )
        begin = np.maximum(both["begin"], both["begin_known"])
        stop = np.minimum(both["stop"], both["stop_known"])
        shift = both["place"] - both["begin"]
        for first, last in zip(begin + shift, stop + shift, strict=True):
            found[first : max(first, last)] = True
    return found


def _list_stretches(array: ManifestArray, axis: int, urls: set[str]) -> Any:
    """Return the ranges of chunks in some files that an array shows along an axis, as a table."""
    found = [pd.DataFrame(columns=list(STRETCH_COLUMNS))]
    for fragment in array.fragments:
        slabs = fragment.axes[axis].slabs()
        for ids, part in iterate_references(fragment.manifest):
            file = part.file.ravel()
            names = np.array([file.url if file.url in urls else "" for file in part.files] + [""])
            met = np.flatnonzero((file >= 0) & (names[file] != ""))
            slab = np.unravel_index(ids.ravel()[met], fragment.manifest.shape)[axis]
            begin, place = slabs.inset[slab], slabs.edges[slab]
            columns = {
                "url": names[file[met]].astype(object),
                "offset": part.offset.ravel()[met],
                "begin": begin,
                "stop": begin + slabs.edges[slab + 1] - place,
                "place": place + fragment.start[axis],
            }
            found.append(pd.DataFrame(columns).drop_duplicates())
    return pd.concat(found).drop_duplicates()


def _describe_copy(present: xr.Dataset, there: xr.Dataset, dim: str) -> str:
    """Return a sentence that the set has copies at the positions of a coordinate, or "" if not."""
    if dim not in present.indexes or dim not in there.indexes:
        return ""
    place = np.flatnonzero(present.indexes[dim].isin(there.indexes[dim]))
    if not find_copies(present.isel({dim: place[:1]}), dim).any():
        return ""
    return (
        ", in chunks that were rewritten or are held in the set: it does not note their sources, "
        "and sync cannot follow them (it can without on_unsupported='rewrite' and inline_threshold)"
    )


def check_unchanged(present: xr.Dataset, new: xr.Dataset, dim: str) -> None:
    """Raise an error for sources whose size, time or etag has changed since the set was written."""
    now = {file.url: file for file in list_sources(new, dim)}
    changed = {
        file.url
        for array, _ in list_arrays_along(present, dim)
        for fragment in array.fragments
        for file in fragment.manifest.find_listed_files(now.keys())
        if now[file.url].merge(file) is None
    }
    for url in sorted(find_used_along(present, dim, changed)) if changed else ():
        raise CombineError(
            f"append along {dim!r}: {url} has changed since the set was written, so that the set "
            f"cannot hold parts of both; put the whole source in place of what the set has of it "
            f"(mode='replace-source')"
        )


REMEDY = (
    "pass on_duplicate='skip' to leave them out, or mode='replace-source' if a source was "
    "processed again"
)
"""The remedy for positions that the set already has."""


def duplicates_error(
    present: xr.Dataset,
    new: xr.Dataset,
    dim: str,
    known: Mask,
    remedy: str = REMEDY,
) -> CombineError:
    """Return the error that lists positions that the set already has."""
    first = int(np.flatnonzero(known)[0])
    at = f", {dim} {new.indexes[dim][first]}" if dim in new.indexes else ""
    there = new.isel({dim: slice(first, first + 1)})
    urls = sorted(find_used_along(present, dim, urls_of(there, dim)))
    source = f", of the source {urls[0]}" if urls else _describe_copy(present, there, dim)
    return CombineError(
        f"append along {dim!r}: {np.count_nonzero(known)} of {known.size} positions are in the "
        f"set already, the first is number {first}{at}{source}; {remedy}"
    )


# ---------------------------------------------------------------------- pieces


POSITIONS = ("end", "start", "coordinate")
"""Where new data can be inserted."""


class Piece(NamedTuple):
    """A range along a dimension, of the set or of the new data."""

    is_new: bool
    begin: int
    stop: int


NOTHING = Piece(True, 0, 0)
Places = Sequence[tuple[Range, Piece]]
"""Pieces of new data, each with the range of the set that it replaces, in rising order.

Either may be empty: the piece if the range is deleted, the range if the piece is inserted.
"""


def cut_along(dataset: xr.Dataset, dim: str, stretch: Range) -> xr.Dataset:
    """Return the part of a dataset in a range along a dimension."""
    return dataset.isel({dim: slice(*stretch)})


def insert_pieces(size: int, places: Places) -> list[Piece]:
    """Return the pieces of a set of ``size`` positions, with some ranges replaced by new pieces."""
    pieces, last = [], 0
    for (begin, stop), piece in places:
        pieces += [Piece(False, last, begin), piece]
        last = stop
    pieces.append(Piece(False, last, size))
    return [piece for piece in pieces if piece.stop > piece.begin]


def find_places(
    present: xr.Dataset, new: xr.Dataset, wanted: Ints, dim: str, position: str
) -> Places:
    """Return where wanted positions of new data go: to an end, or by their coordinate."""
    size = present.sizes[dim]
    if position != "coordinate":
        where = np.full(wanted.size, size if position == "end" else 0)
    else:
        wanted, where = _sort_into(present, new, wanted, dim)
    cuts = np.flatnonzero((np.diff(where) != 0) | (np.diff(wanted) != 1)) + 1
    runs = pairwise([0, *cuts.tolist(), wanted.size])
    return [
        ((int(where[a]), int(where[a])), Piece(True, int(wanted[a]), int(wanted[b - 1]) + 1))
        for a, b in runs
    ]


def _sort_into(
    present: xr.Dataset, new: xr.Dataset, wanted: Ints, dim: str
) -> tuple[Ints, npt.NDArray[np.intp]]:
    """Return positions of new data in the order of the set, and before which positions they go.

    Raises `CombineError` if the set has no order, or the new data repeat a value.
    """
    index = present.indexes.get(dim)
    if index is None or not (index.is_monotonic_increasing or index.is_monotonic_decreasing):
        why = "has no index along" if index is None else "is not monotonic along"
        raise CombineError(f"position='coordinate': the set {why} {dim!r}; append at an end")
    falls = not index.is_monotonic_increasing
    values = new.indexes[dim][wanted]
    order = values.argsort()[:: -1 if falls else 1]
    ordered = values[order]
    if ordered.hasnans or not ordered.is_unique:
        raise CombineError(
            f"position='coordinate': the new dataset repeats or lacks values of {dim!r}, so that "
            f"nothing says where they belong; leave them out"
        )
    where = np.asarray(index[:: -1 if falls else 1].searchsorted(ordered))
    return wanted[order], index.size - where if falls else where


# ---------------------------------------------------------------------- replacing data


def pair_stretches(present: xr.Dataset, new: xr.Dataset, dim: str) -> Places:
    """Return the ranges of the set to replace, in rising order, with their replacements."""
    known = urls_of(present)
    shared = urls_of(new) & known
    if not shared:
        whole = Piece(True, 0, new.sizes[dim])
        return [(_find_stretch_of_values(present, new, dim), whole)]
    if unknown := sorted(urls_of(new) - known):
        raise CombineError(
            f"replace-source: {unknown[0]} is not a source of the set; append it "
            f"(append_dim={dim!r})"
        )
    now, before = (find_ranges(dataset, dim, shared) for dataset in (new, present))
    copies = find_copies(present, dim)
    found = []
    for url in sorted(shared):
        run = _check_one_run(now.get(url, []), url, "the new dataset")
        there = _check_one_run(before.get(url, []), url, "the set")
        if borders(copies, there):
            there = _find_stretch_with_copies(present, new, dim, url, run, there)
        found.append((there, Piece(True, *run)))
    return sorted(found)


def _find_stretch_with_copies(
    present: xr.Dataset, new: xr.Dataset, dim: str, url: str, run: Range, there: Range
) -> Range:
    """Return where the set has the values of a source, including possible copies of them."""
    found = _find_stretch_of_values(present, cut_along(new, dim, run), dim)
    if found[0] > there[0] or found[1] < there[1]:
        raise CombineError(
            f"replace-source: positions {there[0]} to {there[1]} along {dim!r} of the set come "
            f"from {url}, and chunks beside them were rewritten or are held in the set, but the "
            f"new dataset has other values of {dim!r}, so that nothing says what it replaces; "
            f"write the set anew (mode='w')"
        )
    return found


def _check_one_run(runs: Sequence[Range], url: str, where: str) -> Range:
    if len(runs) != 1:
        raise CombineError(
            f"replace-source: {url} has {len(runs)} stretches of {where}; it can be replaced where "
            f"it has one"
        )
    return runs[0]


def _find_stretch_of_values(present: xr.Dataset, new: xr.Dataset, dim: str) -> Range:
    """Return the range in which the set has the values of the new coordinate."""
    if dim in present.indexes and dim in new.indexes and present.indexes[dim].is_unique:
        found = present.indexes[dim].get_indexer(new.indexes[dim])
        if found.size and found[0] >= 0 and (np.diff(found) == 1).all():
            return int(found[0]), int(found[-1]) + 1
    raise CombineError(
        f"replace-source: the set has neither the sources of the new dataset nor its values "
        f"along {dim!r} as one stretch; append it (append_dim={dim!r})"
    )


def find_replaced_static(
    present: xr.Dataset, new: xr.Dataset, dim: str | None
) -> dict[Hashable, Any]:
    """Return the variables without the dimension whose source in the set is being replaced."""
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
                    f"variables of the set have {others.sizes[other]}; write the set anew "
                    f"(mode='w')"
                )
    return static


# ---------------------------------------------------------------------- boxes

CellPlaces = Mapping[str, npt.NDArray[np.intp]]
"""Where the positions of new files are in an array, along each dimension of a grid."""
OTHER_VALUES = (
    "it has other values in the set at the same coordinates; leave it out (drop_variables=), or "
    "give it all dimensions of the grid (preprocess=)"
)


def put_boxes(
    there: xr.Variable, new: xr.Variable, places: CellPlaces, replaced: Collection[str] | None
) -> ManifestArray | npt.NDArray[Any] | None:
    """Return a variable along several, but not all, dimensions of the grid, with new files.

    Where the set has it from files that are not in ``replaced``, new files must have the same
    values; if ``replaced`` is None, new files replace all. Boxes that are only partly there are
    split along chunks.
    """
    array, added = get_virtual_array(there), get_virtual_array(new)
    at = [places.get(str(dim), np.arange(n)) for dim, n in new.sizes.items()]
    if array is None or added is None:
        return put_values(there, new, at, replaces=replaced is None)
    before, left = array, list(list_boxes(added, at))
    while left:
        start, box = left.pop()
        lengths = [stop - begin for begin, stop in box]
        part = crop_box(added, box)
        known = crop_box(array, tuple((a, a + n) for a, n in zip(start, lengths, strict=True)))
        met = {file.url for file in known.sources} if count_references(known) else set()
        if replaced is None or met <= set(replaced):
            array = write_region(array, start, part, overwrite=True)
            continue
        both = (xr.Variable(new.dims, data) for data in (known, part))
        if met.isdisjoint(replaced) and next(both).equals(next(both)):  # type: ignore[no-untyped-call]
            continue
        if (halves := _split_box(part, start, box)) is None:
            raise CombineError(OTHER_VALUES)
        left += halves
    return None if array is before else array


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
    array: ManifestArray, at: Sequence[npt.NDArray[np.intp]]
) -> Iterator[tuple[list[int], Box]]:
    """Yield boxes of an array that has gaps, each with its start in another one.

    Adjacent positions of a box are adjacent in the other array, too.
    """
    for fragment in array.fragments:
        runs: list[list[tuple[int, int]]] = []
        for axis, places in enumerate(at):
            edges = fragment.edges(axis)
            begin, stop = int(edges[0]), int(edges[-1])
            cuts = np.flatnonzero(np.diff(places[begin:stop]) != 1) + begin + 1
            bounds = [begin, *cuts.tolist(), stop]
            runs.append(list(pairwise(bounds)))
        for box in product(*runs):
            yield [int(places[a]) for places, (a, _) in zip(at, box, strict=True)], tuple(box)


def put_values(
    there: xr.Variable,
    new: xr.Variable,
    at: Sequence[npt.NDArray[np.intp]],
    *,
    replaces: bool = False,
) -> npt.NDArray[Any] | None:
    """Return values in memory with those of new files; missing ones change nothing."""
    values, added = np.array(there.values), np.asarray(new.values).astype(there.dtype)
    where = np.ix_(*at)
    known = values[where]
    has = ~np.asarray(xr.Variable(new.dims, known).isnull())
    brings = ~np.asarray(xr.Variable(new.dims, added).isnull())
    differs = has & brings & np.asarray(known != added)
    if differs.any() and not replaces:
        raise CombineError(OTHER_VALUES)
    if not (differs | (brings & ~has)).any():
        return None
    values[where] = np.where(brings, added, known)
    return values
