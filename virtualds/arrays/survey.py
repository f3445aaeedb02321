"""What the references of an array say about its chunks."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from operator import add
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import ref

import numpy as np
import numpy.typing as npt

from virtualds.chunks.columns import MISSING, Ints, compact
from virtualds.chunks.fragment import ChunkAxis, Fragment
from virtualds.chunks.manifest import ChunkManifest, iterate_references
from virtualds.source_file import SourceFile

if TYPE_CHECKING:
    from virtualds.arrays.array import ManifestArray

KEPT = 4
"""Counts of files that are remembered, as long as the manifests that have them live: the variables
of a dataset share their tables of files."""


class LoadedColumns(NamedTuple):
    """Columns of a manifest that are at hand, with one element along each axis without changes.

    ``places`` are the numbers of the chunks of a manifest that has rows for few of its chunks, and
    None where the columns spread over the whole grid.
    """

    file: npt.NDArray[np.integer]
    length: npt.NDArray[np.integer]
    pipeline: npt.NDArray[np.integer]
    places: Ints | None = None


def find_loaded_columns(manifest: ChunkManifest) -> LoadedColumns | None:
    """Return the columns of a manifest; None where they lie in a set or in a source file."""
    found = manifest.peek()
    if found is None:
        return None
    places, rows = found
    columns = (rows.file, rows.length, rows.pipeline)
    # the columns of rows at places have a value for each
    file, length, pipeline = map(compact, columns) if places is None else columns
    return LoadedColumns(file, length, pipeline, places)


@dataclass(frozen=True)
class Survey:
    """Numbers about the chunks of an array.

    ``chunks`` counts all chunks, ``missing`` those without a reference, and ``unread`` those whose
    references lie in a set or a source file, where nobody has looked. ``stored`` are the bytes of
    the chunks that are known, and ``decoded`` those of the values in them.
    """

    chunks: int = 0
    missing: int = 0
    stored: int = 0
    decoded: int = 0
    unread: int = 0

    @property
    def ratio(self) -> float | None:
        """How many times as long values are when they are decoded; None if it is not known."""
        return self.decoded / self.stored if self.stored else None

    def __add__(self, other: Survey) -> Survey:
        return Survey(*map(add, vars(self).values(), vars(other).values()))


def survey(array: ManifestArray, *, read: bool = False) -> Survey:
    """Return the numbers of the chunks of an array.

    References that lie in a set or a source file are read only if ``read`` is true.
    """
    found = (_survey_fragment(f, array.dtype.itemsize, read) for f in array.fragments)
    return sum(found, Survey())


def _survey_fragment(fragment: Fragment, itemsize: int, read: bool) -> Survey:
    size, known = fragment.manifest.size, find_loaded_columns(fragment.manifest)
    if known is None and not read:
        return Survey(size, unread=size)
    if known is None:
        parts = iterate_references(fragment.manifest)
        return _survey_rows(fragment, itemsize, ((ids, rows.length) for ids, rows in parts))
    there = known.file != MISSING
    if known.places is not None:
        return _survey_rows(fragment, itemsize, [(known.places[there], known.length[there])])
    everything = bool(there.all())
    elements = prod(fragment.shape) if everything else _count_elements(fragment.axes, there)
    missing = 0 if everything else size - int(there.sum()) * (size // max(there.size, 1))
    # of a column that does not change along an axis, one element stands for all
    length = known.length if everything else np.where(there, known.length, 0)
    stored = int(length.sum()) * (size // max(length.size, 1))
    return Survey(size, missing, stored, elements * itemsize)


def _survey_rows(
    fragment: Fragment, itemsize: int, parts: Iterable[tuple[Ints, npt.NDArray[np.integer]]]
) -> Survey:
    """Return the numbers of a fragment, of which the chunks that exist come in parts."""
    size = fragment.manifest.size
    found = Survey(size, missing=size)
    for places, length in parts:
        shown = np.ones(places.size, np.int64)
        # numpy refuses numbers of a grid without axes
        numbers = np.unravel_index(places, fragment.manifest.shape) if fragment.axes else ()
        for axis, number in zip(fragment.axes, numbers, strict=True):
            shown *= axis.edges_at(number + 1) - axis.edges_at(number)
        found += Survey(0, -places.size, int(length.sum()), int(shown.sum()) * itemsize)
    return found


def _count_elements(axes: Sequence[ChunkAxis], there: npt.NDArray[np.bool_]) -> int:
    """Return how many elements the chunks show that exist."""
    counted: Any = there.astype(np.int64)
    for axis in reversed(axes):
        along = counted.shape[-1]
        lengths = np.array([axis.size]) if along == 1 else axis.lengths
        counted = counted @ lengths
    return int(counted)


# ---------------------------------------------------------------------- files


def count_files(arrays: Sequence[ManifestArray]) -> int:
    """Return how many files arrays have; 0 where a set has references that are not at hand."""
    if any(f.manifest.is_in_set for array in arrays for f in array.fragments):
        return 0
    manifests = [f.manifest for array in arrays for f in array.fragments]
    pairs = ((manifest, manifest.files) for manifest in manifests)
    found = list({id(table): (manifest, table) for manifest, table in pairs}.values())
    for known, count in tuple(_counted):
        # a manifest that is gone has no table
        if len(known) == len(found) and all(
            (manifest := living()) is not None and manifest.files is table
            for living, (_, table) in zip(known, found, strict=True)
        ):
            return count
    count = len(set().union(*(table for _, table in found)))
    _counted.append(([ref(manifest) for manifest, _ in found], count))
    return count


_counted: deque[tuple[list[ref[ChunkManifest]], int]] = deque(maxlen=KEPT)


class Used(NamedTuple):
    """The first files of arrays with their numbers of chunks, and how many files there are."""

    first: list[tuple[SourceFile, int]]
    total: int


def find_used_files(arrays: Sequence[ManifestArray], most: int) -> Used:
    """Return the files that chunks lie in, of arrays whose references are at hand."""
    counts: dict[int, Ints] = {}
    tables: dict[int, tuple[SourceFile, ...]] = {}
    for table, used in _count_by_table(arrays):
        tables[id(table)] = table
        before = counts.get(id(table))
        counts[id(table)] = used if before is None else before + used
    if len(tables) == 1:
        [(number, table)] = tables.items()
        met = np.flatnonzero(counts[number])
        return Used([(table[n], int(counts[number][n])) for n in met[:most].tolist()], met.size)
    found: dict[SourceFile, int] = {}
    for number, table in tables.items():
        for file, count in zip(table, counts[number].tolist(), strict=True):
            if count:
                found[file] = found.get(file, 0) + count
    return Used(list(found.items())[:most], len(found))


def _count_by_table(
    arrays: Sequence[ManifestArray],
) -> Iterator[tuple[tuple[SourceFile, ...], Ints]]:
    for array in arrays:
        for fragment in array.fragments:
            manifest = fragment.manifest
            known = find_loaded_columns(manifest)
            if known is None:
                continue
            repeats = 1 if known.places is not None else manifest.size // max(known.file.size, 1)
            file = known.file[known.file >= 0]
            yield manifest.files, np.bincount(file, minlength=len(manifest.files)) * repeats
