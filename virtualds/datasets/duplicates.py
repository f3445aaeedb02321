"""Finding positions of a new dataset that a set already has.

The coordinate value identifies a position along a dimension. Without a coordinate, its data
identify it: the same elements of the same chunks of the same files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import xarray as xr

from virtualds.arrays.array import ManifestArray
from virtualds.chunks.columns import drop_repeated_tables
from virtualds.chunks.lazy_manifest import find_listed
from virtualds.chunks.reference_table import iterate_references
from virtualds.datasets.lazy import get_virtual_array
from virtualds.datasets.source_positions import (
    Stretch,
    find_urls_along,
    find_used_along,
    iterate_slabs,
    list_arrays_along,
    list_urls_along,
    mark_slabs,
)
from virtualds.errors import CombineError
from virtualds.source_file import SourceFile

# ---------------------------------------------------------------------- copies
# Chunks of a set that name no source: rewritten ones in files of the set, and bytes held in it.
#
# A set does not note which source such a chunk was made of.


SUFFIX = ".chunks"
"""What the name of the folder of rewritten chunks has behind the name of the set."""
_NATIVE = re.compile(r".*/chunks/[0-9A-HJKMNP-TV-Z]{20}")
"""Chunks that an Icechunk repository holds itself: https://icechunk.io/en/latest/reference/spec/."""
_FILE = re.compile(rf"(?P<folder>.*{re.escape(SUFFIX)}/.+/[0-9a-f]{{16}})/[^/]+")


def find_copy_folder(url: str) -> str | None:
    """Return the folder of the rewritten chunks that a file holds; None if it holds none.

    Examples
    --------
    >>> find_copy_folder("file:///refs.json.chunks/t/96aab4ec04814378/2-4.0-0")
    'file:///refs.json.chunks/t/96aab4ec04814378'
    >>> find_copy_folder("file:///2001.nc")
    """
    found = _FILE.fullmatch(url)
    return None if found is None else found["folder"]


def is_copy(url: str) -> bool:
    """Say whether a file holds chunks that a set made itself."""
    return find_copy_folder(url) is not None or _NATIVE.fullmatch(url) is not None


def find_copies(dataset: xr.Dataset, dim: str) -> npt.NDArray[np.bool_]:
    """Say for every position whether there are copies, and no chunk in a source."""
    copied, referred = np.zeros((2, dataset.sizes[dim]), bool)
    for axis, array in list_arrays_along(dataset, dim):
        for slabs, part, edges in iterate_slabs(array, axis):
            # negative codes, of chunks held in the set and of missing ones, count from the end
            held = np.array([*(is_copy(file.url) for file in part.files), True, False])
            copies = held[part.file]
            mark_slabs(copied, edges, slabs[copies])
            mark_slabs(referred, edges, slabs[~copies & (part.file >= 0)])
    return copied & ~referred


def borders(marked: npt.NDArray[np.bool_], stretch: Stretch) -> bool:
    """Say whether a position beside a stretch is marked.

    Copies beside a stretch may be of its source, which is longer then than its references show.
    """
    begin, stop = stretch
    return bool(marked[max(begin - 1, 0) : begin].any() or marked[stop : stop + 1].any())


# ---------------------------------------------------------------------- duplicates


STRETCH_COLUMNS = ("url", "offset", "begin", "stop", "place")
"""A stretch of a stored chunk: the location of the chunk, its elements ``begin`` to ``stop`` along
the dimension, and the ``place`` in the dimension where they appear."""


def find_known_positions(present: xr.Dataset, new: xr.Dataset, dim: str) -> npt.NDArray[np.bool_]:
    """Say for every position of a dataset whether the set already has it."""
    if dim not in present.indexes or dim not in new.indexes:
        return _find_same_elements(present, new, dim)
    index = new.indexes[dim]
    known = np.asarray(index.isin(present.indexes[dim]) & index.notna())
    # two missing values are not the same place
    return (
        known
        if index.notna().all()
        else known | index.isna() & _find_same_elements(present, new, dim)
    )


def _find_same_elements(present: xr.Dataset, new: xr.Dataset, dim: str) -> npt.NDArray[np.bool_]:
    """Say for every position whether the set refers to the same elements."""
    found = np.zeros(new.sizes[dim], bool)
    urls = find_urls_along(present, dim, list_urls_along(new, dim))
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
    """Return the stretches of chunks in some files that an array shows along an axis."""
    found = [
        _list_stretches_of(array, number, axis, urls) for number in range(len(array.fragments))
    ]
    return pd.concat([pd.DataFrame(columns=list(STRETCH_COLUMNS)), *found]).drop_duplicates()


def _list_stretches_of(array: ManifestArray, number: int, axis: int, urls: set[str]) -> Any:
    """Return the stretches of one fragment."""
    fragment = array.fragments[number]
    slabs = fragment.axes[axis].slabs()
    parts = []
    for ids, part in iterate_references(fragment.manifest):
        names = np.array([file.url if file.url in urls else "" for file in part.files] + [""])
        met = np.flatnonzero((part.file.ravel() >= 0) & (names[part.file.ravel()] != ""))
        slab = np.unravel_index(ids.ravel()[met], fragment.manifest.shape)[axis]
        begin, place = slabs.inset[slab], slabs.edges[slab]
        parts.append(
            pd.DataFrame(
                {
                    "url": names[part.file.ravel()[met]].astype(object),
                    "offset": part.offset.ravel()[met],
                    "begin": begin,
                    "stop": begin + slabs.edges[slab + 1] - place,
                    "place": place + fragment.start[axis],
                }
            ).drop_duplicates()
        )
    return pd.concat(parts) if parts else pd.DataFrame(columns=list(STRETCH_COLUMNS))


def _describe_copy(present: xr.Dataset, there: xr.Dataset, dim: str) -> str:
    """Say that the set has copies at the positions of a coordinate, if it has."""
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
    """Refuse sources that have changed since the set was written.

    Raises
    ------
    CombineError
        A source has another size, time or etag.
    """
    now = {file.url: file for file in _list_files_along(new, dim)}
    changed = {
        file.url
        for _, array in list_arrays_along(present, dim)
        for fragment in array.fragments
        for file in find_listed(fragment.manifest, now.keys())
        if now[file.url].joined_with(file) is None
    }
    for url in sorted(find_used_along(present, dim, changed)):
        raise CombineError(
            f"append along {dim!r}: {url} has changed since the set was written, so that the set "
            f"cannot hold parts of both; put the whole source in place of what the set has of it "
            f"(mode='replace-source')"
        )


def _list_files_along(dataset: xr.Dataset, dim: str) -> Iterator[SourceFile]:
    listed = (
        f.manifest.listed for _, array in list_arrays_along(dataset, dim) for f in array.fragments
    )
    return (file for table in drop_repeated_tables(listed) for file in table)


REMEDY = (
    "pass on_duplicate='skip' to leave them out, or mode='replace-source' if a source was "
    "processed again"
)
"""What to do about positions that the set has already."""


def duplicates_error(
    present: xr.Dataset,
    new: xr.Dataset,
    dim: str,
    known: npt.NDArray[np.bool_],
    remedy: str = REMEDY,
) -> CombineError:
    """Return the error that lists positions that the set already has."""
    first = int(np.flatnonzero(known)[0])
    at = f", {dim} {new.indexes[dim][first]}" if dim in new.indexes else ""
    there = new.isel({dim: slice(first, first + 1)})
    urls = sorted(find_used_along(present, dim, list_urls_along(there, dim)))
    source = f", of the source {urls[0]}" if urls else _describe_copy(present, there, dim)
    return CombineError(
        f"append along {dim!r}: {np.count_nonzero(known)} of {known.size} positions are in the "
        f"set already, the first is number {first}{at}{source}; {remedy}"
    )
