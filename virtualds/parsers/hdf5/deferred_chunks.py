"""Chunks of HDF5 datasets that are looked up in their index when they are read.

Who opens a large file to read a part of it needs few of its chunks. A tree is descended by key, an
array is read where the element stands; the whole index is read once it was asked so often that
this costs less.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import prod
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

from virtualds.bounds import demand_table
from virtualds.chunks.columns import MISSING
from virtualds.chunks.lazy_manifest import DeferredManifest
from virtualds.chunks.manifest import ChunkManifest
from virtualds.chunks.projection import Ints
from virtualds.codecs.pipeline import CodecPipeline
from virtualds.errors import ReadError
from virtualds.parsers.hdf5.chunk_indexes import read_indexes
from virtualds.parsers.hdf5.chunk_indexes.form import LAST, ChunkRows, IndexForm
from virtualds.parsers.hdf5.objects import Dataset
from virtualds.parsers.hdf5.structure.byte_rows import Bytes, RowsError, UnknownRowsError
from virtualds.parsers.hdf5.structure.file_bytes import (
    gather_rows,
    make_damage_error,
    make_unknown_error,
)
from virtualds.parsers.hdf5.structure.messages import IndexKind
from virtualds.source_file import SourceFile
from virtualds.stores import find_store, is_in_archive
from virtualds.stores.store import Range

MANY_CHUNKS = 1024
"""Chunks up to which an index is read when its file is opened."""
MOST_FILTERS = 3
"""Filters up to which there is a pipeline for each filter mask that a chunk may have."""
LARGEST_GRID = 2**62
"""Chunks that can be numbered."""
LOOKUP = {True: 2_000, False: 50_000}
"""Chunks whose part of an index is read in the time that one lookup takes, by whether the file is
near: the levels of a far one are read one after the other."""


@dataclass(frozen=True)
class StoredRows:
    """The bytes of a file as `ByteRows`, of its store, which knows whether it has changed."""

    source: SourceFile
    base: int
    offset_size: int
    length_size: int
    half: int
    end: int

    @property
    def ends(self) -> Ints:
        """Bytes that can be addressed, as an array of one file."""
        return np.array([self.end])

    def take_rows(self, file: Ints, address: Ints, length: int) -> Bytes:
        """Return rows of equal length, as `ByteRows` has it."""
        return gather_rows(address, length, self.end, self._read)

    def _read(self, ranges: list[Range]) -> Iterator[bytes]:
        moved = [(self.base + begin, length) for begin, length in ranges]
        try:
            yield from find_store(self.source.url).get_ranges(self.source, moved)
        except OSError as error:
            raise ReadError(
                f"{self.source.url}: the index of chunks cannot be read ({error}); restore the "
                f"file, or open it again"
            ) from error


class _Held:
    """The manifest of all chunks, once it was read, and the cost of what was asked before."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.cost = 0
        self.whole: ChunkManifest | None = None


@dataclass(frozen=True)
class IndexedChunks:
    """The chunks of a dataset, a `ReferenceTable`.

    A chunk has the number of its filter mask as pipeline.

    Parameters
    ----------
    rows : StoredRows
    form : IndexForm
    root : int
        Address of the index.
    shape : tuple of int
        Of the dataset.
    grid : tuple of int
        Chunks per axis, the axes within elements included, which are never cut.
    filters : int
    name : str
        Of the dataset, for errors.
    """

    rows: StoredRows
    form: IndexForm
    root: int
    shape: tuple[int, ...]
    grid: tuple[int, ...]
    filters: int
    name: str
    _held: _Held = field(default_factory=_Held, init=False, repr=False, compare=False)

    @property
    def has_pipelines(self) -> bool:
        """Whether chunks may differ in their filter masks."""
        return self.filters > 0

    def load(self, ids: Ints) -> ChunkManifest:
        """Return the chunks of these numbers, in their shape, with the file that they lie in.

        Raises
        ------
        FormatError, UnsupportedError
            The index is damaged, or has an unknown form.
        ReadError
            The file cannot be read, or has changed since it was opened.
        """
        if not ids.size:
            return ChunkManifest.missing(ids.shape)
        whole = self._find_whole(ids.size)
        if whole is None:
            known, row = np.unique(ids, return_inverse=True)
            found = self._look_up(known)
            # damaged keys, which have no checksum, may hide a chunk; the whole tree shows it
            if self.form.kind != IndexKind.B_TREE_1 or (found.file != MISSING).all():
                return found.at(row.reshape(ids.shape))
            whole = self._read_whole()
        is_all = ids.size == whole.size and bool((ids.ravel() == np.arange(ids.size)).all())
        return whole.reshape(ids.shape) if is_all else whole.at(ids)

    def list_numbers(self) -> None:
        """Return None: any chunk may exist."""

    def list_sources(self) -> tuple[SourceFile, ...]:
        """Return the file."""
        return (self.rows.source,)

    def summarize_sources(self) -> None:
        """Return None: there is one file, and no list."""

    def _find_whole(self, asked: int) -> ChunkManifest | None:
        """Return the manifest of all chunks if it pays to read it, or if it was read."""
        held = self._held
        near = not find_store(self.rows.source.url).reach.at_once
        with held.lock:
            held.cost += LOOKUP[near] + asked
            if held.cost <= prod(self.grid):
                return held.whole
        return self._read_whole()

    def _read_whole(self) -> ChunkManifest:
        """Return the manifest of all chunks, which is read once."""
        held = self._held
        with held.lock:
            if held.whole is None:
                found = self._read(None)
                demand_table(self.grid, found.owner.size, f"dataset {self.name!r}")
                held.whole = self._spread(found, np.arange(prod(self.grid)))
            return held.whole

    def _look_up(self, known: Ints) -> ChunkManifest:
        """Return chunks by their numbers, which ascend."""
        ndim = len(self.shape)
        places = np.stack(np.unravel_index(known, self.grid[:ndim])).reshape(ndim, -1)
        return self._spread(self._read(places.astype(np.int64)), known)

    def _read(self, wanted: Ints | None) -> ChunkRows:
        numbers = np.zeros(1, np.int64), np.array([self.root], np.uint64).view(np.int64)
        shape = np.array([[min(n, LAST) for n in self.shape]])
        try:
            return read_indexes(self.rows, self.form, *numbers, shape, wanted=wanted)
        except UnknownRowsError as error:
            raise make_unknown_error(self.rows.source.url, error.reason) from None
        except RowsError as error:
            raise make_damage_error(self.rows.source.url, error.reason) from None

    def _spread(self, found: ChunkRows, known: Ints) -> ChunkManifest:
        """Return the manifest of chunks by their numbers, which ascend; others may be found."""
        number = found.count_before(self.form.chunks, self.grid)
        at = np.minimum(np.searchsorted(known, number), known.size - 1)
        wanted = known[at] == number
        at = at[wanted]

        def spread(values: Any, rest: int) -> npt.NDArray[np.int64]:
            column = np.full(known.size, rest, np.int64)
            column[at] = values
            return column

        return ChunkManifest.build(
            known.shape,
            files=(self.rows.source,),
            file=spread(0, MISSING),
            offset=spread(found.address[wanted] + self.rows.base, 0),
            length=spread(found.length[wanted], 0),
            pipeline=spread(found.mask[wanted] & ((1 << self.filters) - 1), 0),
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle where the index lies, not what was read of it."""
        facts = self.rows, self.form, self.root, self.shape, self.grid, self.filters, self.name
        return IndexedChunks, facts

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        from dask.base import normalize_token

        source, form = self.rows.source, self.form
        place = self.root, self.shape, self.grid, repr(form)
        return ("virtualds-indexed", *map(normalize_token, (tuple(source), *place)))


def can_defer(dataset: Dataset) -> bool:
    """Say whether an index of chunks is large, and chunks can be looked up in it."""
    layout, count = dataset.facts.layout, len(dataset.facts.filters)
    lengths = zip(dataset.facts.space.shape or (), dataset.limits, layout.dims, strict=False)
    grid = [(-(-n // c), -(-(limit or 0) // c)) for n, limit, c in lengths]
    return (
        prod(n for n, _ in grid) > MANY_CHUNKS
        and prod(map(max, grid)) <= LARGEST_GRID
        and layout.index_kind is not None
        and layout.address is not None
        and count <= MOST_FILTERS
        # chunks at the edges may be unfiltered, which no mask says
        and (layout.is_filtering_edges or not count)
        and not is_in_archive(dataset.source)
    )


def defer_chunks(
    dataset: Dataset, pipeline: CodecPipeline, grid: tuple[int, ...]
) -> tuple[ChunkManifest, tuple[CodecPipeline, ...]]:
    """Return a manifest that looks chunks up, and a pipeline for each filter mask.

    Parameters
    ----------
    dataset : Dataset
        One that `can_defer` allows.
    pipeline : CodecPipeline
        Of chunks that skipped no filter.
    grid : tuple of int
        Chunks per axis, the axes within elements included.
    """
    (space, _, _, filters, layout), file = dataset.facts, dataset.file
    form, count = IndexForm.of(dataset.facts), len(filters)
    sizes = file.offset_size, file.length_size, file.half, file.end - file.base
    rows = StoredRows(dataset.source, file.base, *sizes)
    shape, root = space.shape or (), layout.address or 0
    table = IndexedChunks(rows, form, root, shape, grid, count, dataset.name)
    pipelines = tuple(skip_filters(pipeline, mask) for mask in range(1 << count))
    return DeferredManifest(table, grid), pipelines


def skip_filters(pipeline: CodecPipeline, mask: int) -> CodecPipeline:
    """Return a pipeline without the filters that a mask says were skipped.

    HDF5 file format, III.A.1, "Version 1 B-trees", field "Filter Mask".
    """
    codecs = tuple(c for i, c in enumerate(pipeline.codecs) if not mask >> i & 1)
    return replace(pipeline, codecs=codecs) if mask else pipeline
