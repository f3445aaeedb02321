"""Tables of references in memory: evenly spaced, sparse and tiled references.

Records of a classic netCDF file are evenly spaced, a million of them for each variable: three
numbers describe them. An archive of forecasts is a grid of initial times, lead times and members,
most of which do not exist yet: its table takes the memory of the existing references. Both are
computed or looked up when columns are accessed.

In all Parquet sets, a row is in record ``row // size``, and the most recently used records are
cached.
"""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import prod
from operator import mul
from typing import Any, Generic, TypeVar

import numpy as np

from virtualds.chunks.columns import (
    MISSING,
    Ints,
    ReferenceTable,
    RowView,
    compact,
    compute_strides,
)
from virtualds.chunks.manifest import LARGE, MAX_LISTED, ChunkManifest, gather_references
from virtualds.errors import FormatError, format_count
from virtualds.source_file import SourceFile

CACHED = 2**21
"""The number of rows of one set that are kept in memory."""

SETS = 8
"""The number of sets that a process keeps open for unpickled arrays."""

Record = TypeVar("Record")


class RecordCache(Generic[Record]):
    """The most recently used records, by name, shared by all threads.

    There are at most ``most`` of them, and at least two; a subclass may limit their weight instead.
    """

    def __init__(self, most: int) -> None:
        self._most = max(2, most)
        self._records: OrderedDict[Hashable, Record] = OrderedDict()
        self._lock = threading.Lock()
        self.weight = 0

    def limit(self) -> int:
        """Return the maximum total weight of the records."""
        return self._most

    def weigh(self, record: Record) -> int:
        """Return the weight of a record."""
        return 1

    def __len__(self) -> int:
        return len(self._records)

    def find(self, name: Hashable) -> Record | None:
        """Return a record, or None if it is not cached."""
        with self._lock:
            if name in self._records:
                self._records.move_to_end(name)
            return self._records.get(name)

    def put(self, name: Hashable, record: Record) -> None:
        """Add or replace a record, and drop the least recently used ones."""
        with self._lock:
            if (old := self._records.pop(name, None)) is not None:
                self.weight -= self.weigh(old)
            self._records[name] = record
            self.weight += self.weigh(record)
        self.shrink()

    def shrink(self) -> None:
        """Drop records until the total weight is below the limit, which may have changed."""
        most = self.limit()
        with self._lock:
            while self.weight > most:
                self.weight -= self.weigh(self._records.popitem(last=False)[1])

    def get(self, name: Hashable, read: Callable[[], Record]) -> Record:
        """Return a record; read it if it is not cached."""
        if (found := self.find(name)) is None:
            found = read()
            self.put(name, found)
        return found


_open_sets: RecordCache[Any] = RecordCache(SETS)


def name_opening() -> str:
    """Return a name for one opening of a set, which its pickles contain."""
    return secrets.token_hex(8)


def share_opening(kind: type[Record], name: str, state: Mapping[str, Any]) -> Record:
    """Return the unpickled object of an opening, which all its pickles share in a process.

    So dask tasks share the records that they read. A new opening is another object, since the set
    may have changed.
    """

    def made() -> Record:
        found = kind.__new__(kind)
        found.__setstate__(state)  # type: ignore[attr-defined]
        return found

    shared: Record = _open_sets.get((kind, name), made)
    return shared


def read_rows(ids: Ints, size: int, rows: Callable[[int, Ints], ChunkManifest]) -> ChunkManifest:
    """Return the rows at these indexes, in their shape; read each record of ``size`` rows once.

    ``rows`` takes the index of a record and ascending row indexes inside it.
    """
    flat, where = np.unique(ids, return_inverse=True)
    if not flat.size:
        return ChunkManifest.missing(ids.shape)
    record, row = np.divmod(flat, size)
    breaks = np.flatnonzero(np.diff(record)) + 1
    parts = [
        rows(int(numbers[0]), inside)
        for numbers, inside in zip(np.split(record, breaks), np.split(row, breaks), strict=True)
    ]
    joined = ChunkManifest.concatenate(parts, 0)
    if flat.size == ids.size and (where.ravel()[1:] > where.ravel()[:-1]).all():
        return joined.reshape(ids.shape)
    return joined.at(where.reshape(ids.shape))


def read_parquet(
    data: bytes,
    url: str,
    dictionaries: Sequence[str] = (),
    columns: Sequence[str] | None = None,
) -> Any:
    """Return all or some columns of a Parquet file as an Arrow table, some as dictionaries.

    Only this thread accesses the bytes. An Arrow thread that releases them needs the interpreter;
    after the interpreter has ended, that would crash the process.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        metadata = pq.read_metadata(pa.BufferReader(data))
        there = set(dictionaries).intersection(metadata.schema.names)
        file = pq.ParquetFile(
            pa.BufferReader(data), metadata=metadata, read_dictionary=there, pre_buffer=False
        )
        return file.read(columns=columns, use_threads=False)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise FormatError(f"{url}: not a Parquet file ({error}); write it anew") from error


# ---------------------------------------------------------------------- tables

MOSTLY_MISSING = 8
"""Minimum ratio of grid size to existing chunks at which it is worth listing these."""

MAX_PIPELINES = 2
"""The number of pipelines to look for, which is enough to know whether there is only one."""


# ---------------------------------------------------------------------- a formula


@dataclass(frozen=True)
class StridedReferences(ReferenceTable):
    """References to ``count`` chunks of one length in one file, ``step`` bytes apart.

    ``first``, ``step`` and ``length`` are bytes. Chunks that reach outside the file raise
    `FormatError`.

    Examples
    --------
    >>> file = SourceFile("file:///a.nc", size=2**30)
    >>> references = StridedReferences(file, first=96, step=24, length=8, count=10**6)
    >>> records = ChunkManifest.of_table(references, (10**6,))
    >>> records.lookup((999_999,)).offset, records.nbytes
    (24000072, 32)
    """

    file: SourceFile
    first: int
    step: int
    length: int
    count: int

    is_in_set = False

    def __post_init__(self) -> None:
        # if the first and the last chunk are valid, all between them are
        self.load(np.array([0, self.count - 1], np.int64))

    def load(self, ids: Ints) -> ChunkManifest:
        """Return the chunks at these flat indexes, in their shape, and their file."""
        if not ids.size:
            return ChunkManifest.missing(ids.shape)
        offset = self.first + self.step * ids
        return ChunkManifest.build(ids.shape, files=(self.file,), offset=offset, length=self.length)

    @property
    def files(self) -> tuple[SourceFile, ...]:
        """The file."""
        return (self.file,)

    @property
    def nbytes(self) -> int:
        """The size of the references in memory, in bytes: the size of four numbers."""
        return 32

    @property
    def where(self) -> str:
        """The location of the rows, for people."""
        return " of 1 file"

    def moved_into(self, locations: Sequence[tuple[SourceFile, int]]) -> StridedReferences:
        """Return the table for a file that is embedded in another one."""
        [(file, begin)] = locations
        return replace(self, file=file, first=self.first + begin)

    def get_if_loaded(self, rows: RowView) -> tuple[None, ChunkManifest] | None:
        """Return one row that represents all rows, or None if there are no rows."""
        one = np.zeros((1,) * len(rows.shape), np.int64)
        return (None, rows.at(one)) if prod(rows.shape) else None


# ---------------------------------------------------------------------- few rows by position


@dataclass(frozen=True, eq=False)
class SparseReferences(ReferenceTable):
    """References (``rows``) to the chunks at ascending flat indexes; all others are missing.

    ``rest`` is the pipeline of the missing chunks, which determines their values.

    Examples
    --------
    >>> file = SourceFile("file:///a.nc", size=2**30)
    >>> one = ChunkManifest.build((1,), files=[file], offset=96, length=8)
    >>> placed = SparseReferences(np.array([123_456_789]), one)
    >>> sparse = ChunkManifest.of_table(placed, (1000, 10**6))
    >>> sparse.lookup((123, 456_789)).offset, sparse.lookup((0, 0)).file
    (96, -1)
    """

    numbers: Ints
    rows: ChunkManifest
    rest: int = 0

    is_in_set = False
    has_pipelines = True

    def load(self, ids: Ints) -> ChunkManifest:
        """Return the chunks at these flat indexes, in their shape, and their files."""
        row = np.searchsorted(self.numbers, ids.ravel())
        known = np.append(self.numbers, -1)[row] == ids.ravel()
        if row.size == self.rows.size and (row == np.arange(row.size)).all() and known.all():
            return self.rows.reshape(ids.shape)
        return spread_rows(self.rows.at(row[known]), known, self.rest).reshape(ids.shape)

    def find_existing_rows(self) -> Ints:
        """Return the flat indexes of the chunks."""
        return self.numbers

    @property
    def files(self) -> tuple[SourceFile, ...]:
        """The files of the chunks."""
        return self.rows.files

    @property
    def nbytes(self) -> int:
        """The size of the references in memory, in bytes."""
        return self.numbers.nbytes + self.rows.nbytes

    @property
    def where(self) -> str:
        """The location of the rows, for people."""
        return f" of {format_count(len(self.files), 'file')}, most of them missing"

    def moved_into(self, locations: Sequence[tuple[SourceFile, int]]) -> SparseReferences:
        """Return the table for files that are embedded in others."""
        return replace(self, rows=self.rows.moved_into(locations))

    def get_if_loaded(self, rows: RowView) -> tuple[Ints, ChunkManifest]:
        """Return the flat indexes of the existing chunks, ascending, and the chunks."""
        if rows.is_in_order and rows.renumbered is None:
            count = int(np.searchsorted(self.numbers, prod(rows.shape)))
            return self.numbers[:count], self.rows.take(0, slice(0, count))
        return gather_references(ChunkManifest.of_table(*rows))

    def pruned(self, manifest: ChunkManifest) -> ChunkManifest:
        """Return a manifest of the table with only the references that its chunks need."""
        ids, rows = gather_references(manifest)
        in_order = manifest.rows is not None and manifest.rows.is_in_order
        if ids.size == self.numbers.size and in_order:
            return manifest
        return build_sparse(ids, rows.pruned(), manifest.shape, manifest.rest or 0)

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        from dask.base import normalize_token

        parts = (self.numbers, self.rows, self.rest)
        return ("virtualds-placed", *map(normalize_token, parts))


def spread_rows(rows: ChunkManifest, known: Any, rest: int = 0) -> ChunkManifest:
    """Return rows where ``known`` is true, and missing chunks elsewhere."""
    if known.all():
        return rows
    ended = ChunkManifest.build((1,), file=MISSING, pipeline=rest)
    joined = ChunkManifest.concatenate([rows, ended], 0)
    return joined.at(np.where(known, np.cumsum(known) - 1, rows.size))


def build_sparse(
    numbers: Ints, rows: ChunkManifest, shape: tuple[int, ...], rest: int = 0
) -> ChunkManifest:
    """Return the manifest of ``rows`` for the chunks at ascending flat indexes in C order.

    Others are missing, and have the pipeline ``rest``.
    """
    if not numbers.size:
        return ChunkManifest.build(shape, file=MISSING, pipeline=rest)
    sparse = ChunkManifest.of_table(SparseReferences(numbers, rows, rest), shape)
    return sparse if is_sparse(prod(shape), numbers.size) else sparse.loaded()


def load_compactly(manifest: ChunkManifest) -> ChunkManifest:
    """Load the references of a manifest, as `SparseReferences` if most chunks are missing.

    Raise an error if it does not know which chunks exist and would have almost empty columns.
    """
    known, used = manifest.find_existing(), manifest.used_pipelines(MAX_PIPELINES)
    if known is None or used.size != 1 or not is_sparse(manifest.size, known.size):
        return manifest.loaded()
    return build_sparse(*gather_references(manifest), manifest.shape, int(used[0]))


def is_sparse(size: int, references: int) -> bool:
    """Return whether references on a grid of ``size`` chunks should be stored by position."""
    return size > max(LARGE, MOSTLY_MISSING * references)


def join_manifests(manifests: Sequence[ChunkManifest], axis: int) -> ChunkManifest:
    """Concatenate manifests along ``axis``; sparse references stay sparse.

    It is `ChunkManifest.concatenate` for manifests of any size.
    """
    size = sum(m.size for m in manifests)
    if len(manifests) > 1 and size > LARGE:
        references = sum(map(_count_references, manifests))
        rests = {_find_rest(m) for m in manifests}
        if references and is_sparse(size, references) and len(rests) == 1 and None not in rests:
            return _join_sparsely(manifests, axis, rests.pop() or 0)
    return ChunkManifest.concatenate(manifests, axis)


def can_join(one: ChunkManifest, other: ChunkManifest) -> bool:
    """Return whether manifests can be joined: if most chunks are missing, all decode equally."""
    if max(one.size, other.size) <= LARGE:
        return True
    if not any(is_sparse(m.size, _count_references(m)) for m in (one, other)):
        return True
    used = {n for m in (one, other) for n in compact(m.used_pipelines(MAX_PIPELINES)).tolist()}
    return len(used) == 1


def _count_references(manifest: ChunkManifest) -> int:
    """Return the maximum number of chunks that may exist."""
    if not manifest.is_loaded:
        known = manifest.find_existing()
        return manifest.size if known is None else known.size
    file = compact(manifest.file)
    return int(np.count_nonzero(file != MISSING)) * (manifest.size // max(file.size, 1))


def _find_rest(manifest: ChunkManifest) -> int | None:
    """Return the pipeline that all missing chunks of a manifest have, or None."""
    if manifest.rest is not None:
        return manifest.rest
    pipeline = compact(manifest.pipeline)
    return int(pipeline.flat[0]) if (pipeline == pipeline.flat[:1]).all() else None


def _join_sparsely(manifests: Sequence[ChunkManifest], axis: int, rest: int) -> ChunkManifest:
    shape = list(manifests[0].shape)
    shape[axis] = sum(m.shape[axis] for m in manifests)
    numbers, rows, begin = [], [], 0
    for manifest in manifests:
        ids, part = gather_references(manifest)
        positions = list(np.unravel_index(ids, manifest.shape))
        positions[axis] = positions[axis] + begin
        numbers.append(np.ravel_multi_index(tuple(positions), tuple(shape)))
        rows.append(part)
        begin += manifest.shape[axis]
    flat = np.asarray(np.concatenate(numbers), np.int64)
    order = np.argsort(flat)
    joined = ChunkManifest.concatenate(rows, 0).at(order)
    return build_sparse(flat[order], joined, tuple(shape), rest)


# ---------------------------------------------------------------------- rows of other manifests


@dataclass(frozen=True)
class TiledReferences(ReferenceTable):
    """The references of manifests on one grid, each with the chunk where it begins.

    If manifests share a chunk, the last one with a reference to it counts. Chunks without a
    reference are missing.
    """

    grid: tuple[int, ...]
    parts: tuple[tuple[tuple[int, ...], ChunkManifest], ...]

    @property
    def has_overlaps(self) -> bool:
        """Whether two of the manifests share a chunk."""
        return any(have_overlap(one, other) for one, other in combinations(self.parts, 2))

    def load(self, ids: Ints) -> ChunkManifest:
        """Return the chunks at these flat indexes, in their shape, and their files."""
        flat, left = ids.ravel(), np.arange(ids.size)
        order, found = [], []
        low, high = (flat.min(), flat.max()) if flat.size else (0, -1)
        for origin, manifest in reversed(self.parts):
            first, last = _find_ends(origin, manifest.shape, self.grid)
            if last < low or first > high:
                continue
            inside, inner = self._find_inside(flat[left], origin, manifest.shape)
            if inside.size:
                rows = manifest.at(inner)
                there = rows.file != MISSING
                if not there.all():
                    rows, inside = rows.at(np.flatnonzero(there)), inside[there]
                found.append(rows)
                order.append(left[inside])
                left = np.delete(left, inside)
        if len(found) == 1 and not left.size:
            return found[0].reshape(ids.shape)
        found.append(ChunkManifest.missing((left.size,)))
        joined = ChunkManifest.concatenate(found, 0)
        return joined.at(np.argsort(np.concatenate([*order, left])).reshape(ids.shape))

    def _find_inside(
        self, ids: Ints, origin: tuple[int, ...], shape: tuple[int, ...]
    ) -> tuple[Ints, Ints]:
        """Return a mask of the chunks in a box of the grid, and their flat indexes there."""
        if shape[1:] == self.grid[1:]:
            inner = ids - (origin[0] * prod(self.grid[1:]) if origin else 0)
            inside = np.flatnonzero((inner >= 0) & (inner < prod(shape)))
            return inside, inner[inside]
        positions = np.stack(np.unravel_index(ids, self.grid)) - np.reshape(origin, (-1, 1))
        inside = np.flatnonzero(
            ((positions >= 0) & (positions < np.reshape(shape, (-1, 1)))).all(0)
        )
        inner = np.ravel_multi_index(tuple(positions[:, inside]), shape)
        return inside, np.asarray(inner, np.int64)

    def find_existing_rows(self) -> Ints | None:
        """Return the flat indexes of the chunks that may exist, or None if these may be most."""
        parts = [(*part, part[1].find_existing()) for part in self.parts]
        whole = all(known is None for _, _, known in parts)
        count = sum(manifest.size for _, manifest in self.parts)
        # as after an append: the parts are adjacent, and cover all chunks
        if whole and count == prod(self.grid) and not self.has_overlaps:
            return None
        found = [np.zeros(0, np.int64)]
        for origin, manifest, known in parts:
            if known is None:
                if manifest.size > max(MAX_LISTED, prod(self.grid) // MOSTLY_MISSING):
                    return None
                known = np.arange(manifest.size)
            inner = np.stack(np.unravel_index(known, manifest.shape))
            positions = tuple(inner + np.reshape(origin, (-1, 1)))
            found.append(np.asarray(np.ravel_multi_index(positions, self.grid), np.int64))
        numbers = np.concatenate(found)
        # usually they are ascending from part to part
        return numbers if (numbers[1:] > numbers[:-1]).all() else np.unique(numbers)

    def list_sources(self) -> tuple[SourceFile, ...]:
        """Return the files of all parts.

        Parts are often views of one table, whose parts may be views of another: each is read once.
        """
        tables: dict[int, ChunkManifest] = {}
        for _, part in self.parts:
            tables.setdefault(id(part if part.rows is None else part.rows.table), part)
        return tuple(dict.fromkeys(file for part in tables.values() for file in part.listed))

    def with_files(self, change: Callable[[SourceFile], SourceFile]) -> TiledReferences:
        """Return the table of the same parts with ``change`` applied to their files."""
        parts = tuple((origin, part.with_files(change)) for origin, part in self.parts)
        return replace(self, parts=parts)


def _find_ends(
    origin: tuple[int, ...], shape: tuple[int, ...], grid: tuple[int, ...]
) -> tuple[int, int]:
    """Return the flat indexes of the first and the last chunk of a box."""
    steps = compute_strides(grid)
    first = sum(map(mul, origin, steps))
    return first, first + sum((n - 1) * step for n, step in zip(shape, steps, strict=True))


def have_overlap(
    one: tuple[tuple[int, ...], ChunkManifest], other: tuple[tuple[int, ...], ChunkManifest]
) -> bool:
    """Return whether two manifests, each with its origin, share a chunk."""
    sides = zip(one[0], one[1].shape, other[0], other[1].shape, strict=True)
    return all(max(a, b) < min(a + n, b + m) for a, n, b, m in sides)


def overlay(
    manifest: ChunkManifest, origin: tuple[int, ...], added: ChunkManifest
) -> ChunkManifest:
    """Return a manifest with the references of another one on top of it.

    It begins at the chunk ``origin``. If it has no reference to a chunk, that of ``manifest``
    stays. Manifests in sets are not read. All chunks have the first pipeline.
    """
    layers = (*split_layers(manifest), (origin, added))
    return ChunkManifest.of_table(TiledReferences(manifest.shape, layers), manifest.shape)


def split_layers(manifest: ChunkManifest) -> tuple[tuple[tuple[int, ...], ChunkManifest], ...]:
    """Return the layers of a manifest, the topmost last.

    A manifest that is not a box of `TiledReferences` is its only layer; one without references has
    none.
    """
    table = manifest.table_of(TiledReferences)
    if table is not None and manifest.rows is not None:
        begin = _find_box(manifest.rows, table.grid)
        if begin is not None:
            return tuple(_crop_layers(manifest.rows, table, begin))
    existing = manifest.find_existing()
    nothing = existing is not None and not existing.size
    return () if nothing else (((0,) * len(manifest.shape), manifest),)


def iterate_parts(manifest: ChunkManifest) -> Iterator[ChunkManifest]:
    """Yield a manifest, and recursively the manifests of which it consists."""
    yield manifest
    table = manifest.table_of(TiledReferences)
    for _, part in table.parts if table is not None else ():
        yield from iterate_parts(part)


def iterate_other_parts(
    manifest: ChunkManifest, is_known: Callable[[ReferenceTable], bool]
) -> Iterator[ChunkManifest]:
    """Yield the parts of a manifest that are not in known tables, and do not consist of others."""
    for part in iterate_parts(manifest):
        table = part.table
        if table is None or not (isinstance(table, TiledReferences) or is_known(table)):
            yield part


def _find_box(found: RowView, grid: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the chunk at which a box of a table's grid begins, or None if rows are not a box."""
    if len(found.shape) != len(grid):
        return None
    pairs = zip(found.shape, found.strides, compute_strides(grid), strict=True)
    if not all(n == 1 or stride == step for n, stride, step in pairs) or 0 in found.shape:
        return None
    begin = tuple(int(i) for i in np.unravel_index(found.first, grid))
    inside = all(b + n <= g for b, n, g in zip(begin, found.shape, grid, strict=True))
    return begin if inside else None


def _crop_layers(found: RowView, table: TiledReferences, begin: tuple[int, ...]) -> Any:
    """Yield the parts of the layers of a table that are in a box."""
    pipeline = found.renumbered
    for origin, layer in table.parts:
        start, part = [], layer
        for axis, (low, count) in enumerate(zip(begin, found.shape, strict=True)):
            first = max(low, origin[axis])
            stop = min(low + count, origin[axis] + part.shape[axis])
            part = part.take(axis, slice(first - origin[axis], max(stop, first) - origin[axis]))
            start.append(first - low)
        if part.size:
            numbered = part.with_pipelines(pipeline[:1]) if pipeline else part
            yield tuple(start), numbered
