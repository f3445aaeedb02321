"""Fetching the coordinates that opening a remote file or set needs: all of them at once.

Opening reads them one after the other, some of them more than once. What is fetched here is held
until the file or set is open (`virtualds.stores.scan_cache`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from itertools import accumulate
from typing import Any, NamedTuple

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup
from virtualds.bounds import is_small_enough_to_load
from virtualds.chunks.manifest import ChunkManifest
from virtualds.chunks.reference_table import gather_references
from virtualds.datasets.open_options import OpenOptions
from virtualds.datasets.what_to_load import find_loaded_first
from virtualds.errors import VirtualdsError
from virtualds.options import get_options
from virtualds.source_file import SourceFile
from virtualds.stores.errors import explain_open_errors
from virtualds.stores.scan_cache import are_held, fetch_ahead, hold_ranges_of
from virtualds.stores.store import Range
from virtualds.urls import scheme_of

MOST_TOGETHER = 2**26
"""Bytes of values that are read ahead, in all; others are read when they are needed."""


class Wanted(NamedTuple):
    """A part of an array that opening reads."""

    array: ManifestArray
    key: tuple[Any, ...] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of its values."""
        return self.array.nbytes if self.key is None else self.array.dtype.itemsize


def fetch_coordinates(url: str, groups: Iterable[ManifestGroup], opening: OpenOptions) -> None:
    """Fetch what opening reads of the groups of a remote file or set, with few rounds of requests.

    Errors are left to those who read.
    """
    if opening.loadable_variables is not None or scheme_of(url) == "file":
        return
    wanted = [one for group in groups for one in _list_wanted(group, opening)]
    ranges: dict[SourceFile, list[Range]] = {}
    others: list[Wanted] = []
    for one in wanted:
        manifests = [fragment.manifest for fragment in one.array.fragments]
        if all(_lies_in(url, manifest) for manifest in manifests):
            for manifest in manifests if one.key is None else ():
                ranges.setdefault(manifest.listed[0], []).extend(_list_ranges(manifest))
        elif any(manifest.is_in_set or not are_held(manifest.listed) for manifest in manifests):
            others.append(one)
    with explain_open_errors(url):
        fetch_ahead(ranges)
    _read_together(others)


def _list_wanted(group: ManifestGroup, opening: OpenOptions) -> Iterator[Wanted]:
    """Yield what opening reads: coordinates of dimensions, and the ends of other times."""
    loaded = find_loaded_first(group)
    for name, variable in group.variables.items():
        array = variable.data
        if not isinstance(array, ManifestArray) or name in group.problems:
            continue
        # scalars are loaded with virtual arrays, and lazy ones when they are used
        if name in loaded and not (opening.defers and not array.ndim):
            if is_small_enough_to_load(array.nbytes):
                yield Wanted(array)
        elif array.size and "since" in str(variable.attributes.get("units", "")):
            for end in (slice(0, 1), slice(-1, None)):
                yield Wanted(array, (end,) * array.ndim)


def _lies_in(url: str, manifest: ChunkManifest) -> bool:
    """Say whether all chunks lie in the one file that is opened."""
    return not manifest.is_in_set and [file.url for file in manifest.listed] == [url]


def _list_ranges(manifest: ChunkManifest) -> list[Range]:
    _, found = gather_references(manifest)
    there = found.file >= 0
    rows = zip(found.offset[there], found.length[there], strict=True)
    return [(int(offset), int(length)) for offset, length in rows]


def _read_together(wanted: list[Wanted]) -> None:
    """Read parts of arrays at once, so that what they take is held."""
    sizes = accumulate(one.nbytes for one in wanted)
    few = [one for one, so_far in zip(wanted, sizes, strict=True) if so_far <= MOST_TOGETHER]
    if not few:
        return
    with ThreadPoolExecutor(min(len(few), get_options().max_requests)) as pool:
        for done in [pool.submit(copy_context().run, _read, one) for one in few]:
            done.result()


def _read(one: Wanted) -> None:
    # who reads it again meets the error, and knows what to say about it
    with suppress(VirtualdsError):
        for fragment in one.array.fragments if one.key is None else ():
            _, found = gather_references(fragment.manifest)
            hold_ranges_of(found.files)
        one.array.read(one.key)
