"""Reference tables in memory (evenly spaced, sparse, tiled), and caches of stored tables.

`StridedReferences` describes the evenly spaced records of a classic netCDF variable by three
numbers. `SparseReferences` has only existing chunks, for a grid with many missing chunks.
`TiledReferences` combines manifests on one grid.

Reference sets in Parquet store rows in records of equal size, of which the most recently used ones
are cached.
"""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import (
    Callable,
    Collection,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, replace
from itertools import chain, combinations
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
    find_rows,
)
from virtualds.chunks.manifest import (
    MAX_UNFILTERED_GRID,
    MIN_SPARSE_GRID,
    ChunkManifest,
    gather_references,
)
from virtualds.errors import FormatError, format_count
from virtualds.source_file import SourceFile

MAX_CACHED_ROWS = 2**21
"""Number of cached rows per reference set."""

MAX_OPEN_SETS = 8
"""Number of reference sets that a process keeps open for unpickled arrays."""

Record = TypeVar("Record")


class RecordCache(Generic[Record]):
    """A thread-safe LRU cache of records.

    It has at most ``max_records`` records, or two if that is less; a subclass may limit their total
    weight instead.
    """

    def __init__(self, max_records: int) -> None:
        self._max_records = max(2, max_records)
        self._records: OrderedDict[Hashable, Record] = OrderedDict()
        self._lock = threading.Lock()
        self.weight = 0

    def get_max_weight(self) -> int:
        """Return the maximum total weight of the records."""
        return self._max_records

    def weigh(self, record: Record) -> int:
        """Return the weight of a record."""
        return 1

    def __len__(self) -> int:
        return len(self._records)

    def find(self, name: Hashable) -> Record | None:
        """Return a cached record, or None."""
        with self._lock:
            if name in self._records:
                self._records.move_to_end(name)
            return self._records.get(name)

    def put(self, name: Hashable, record: Record) -> None:
        """Add or replace a record, and evict the least recently used ones."""
        with self._lock:
            if (replaced := self._records.pop(name, None)) is not None:
                self.weight -= self.weigh(replaced)
            self._records[name] = record
            self.weight += self.weigh(record)
        self.shrink()

    def shrink(self) -> None:
        """Evict records until the total weight is within the limit, which may have changed."""
        max_weight = self.get_max_weight()
        with self._lock:
            while self.weight > max_weight:
                self.weight -= self.weigh(self._records.popitem(last=False)[1])

    def get(self, name: Hashable, read: Callable[[], Record]) -> Record:
        """Return a record; read and cache it if necessary."""
        if (record := self.find(name)) is None:
            record = read()
            self.put(name, record)
        return record


_open_sets: RecordCache[Any] = RecordCache(MAX_OPEN_SETS)


def make_opening_id() -> str:
    """Return a random id of one opening of a reference set, which is pickled with its objects."""
    return secrets.token_hex(8)


def unpickle_shared(kind: type[Record], name: str, state: Mapping[str, Any]) -> Record:
    """Return the unpickled object of a set, one per process and opening.

    Dask tasks thereby share cached records. Objects of different openings are not shared, since the
    set may have changed between them.
    """

    def unpickle() -> Record:
        restored = kind.__new__(kind)
        restored.__setstate__(state)  # type: ignore[attr-defined]
        return restored

    shared: Record = _open_sets.get((kind, name), unpickle)
    return shared


def read_rows(
    ids: Ints, record_size: int, load_from_record: Callable[[int, Ints], ChunkManifest]
) -> ChunkManifest:
    """Return references at some row indexes, reading each record of ``record_size`` rows once.

    ``load_from_record`` takes the index of a record and ascending row indexes within it.
    """
    flat, inverse = np.unique(ids, return_inverse=True)
    if not flat.size:
        return ChunkManifest.missing(ids.shape)
    record, row = np.divmod(flat, record_size)
    breaks = np.flatnonzero(np.diff(record)) + 1
    parts = [
        load_from_record(int(record_ids[0]), rows_of_record)
        for record_ids, rows_of_record in zip(
            np.split(record, breaks), np.split(row, breaks), strict=True
        )
    ]
    joined = ChunkManifest.concatenate(parts, 0)
    if flat.size == ids.size and (inverse.ravel()[1:] > inverse.ravel()[:-1]).all():
        return joined.reshape(ids.shape)
    return joined.at(inverse.reshape(ids.shape))


def read_parquet(
    data: bytes,
    url: str,
    dictionaries: Sequence[str] = (),
    columns: Sequence[str] | None = None,
) -> Any:
    """Read columns of a Parquet file as an Arrow table, some of them as dictionary arrays.

    No Arrow threads are used: one that releases ``data`` after the interpreter has ended would
    crash the process.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        metadata = pq.read_metadata(pa.BufferReader(data))
        present_dictionaries = set(dictionaries).intersection(metadata.schema.names)
        file = pq.ParquetFile(
            pa.BufferReader(data),
            metadata=metadata,
            read_dictionary=present_dictionaries,
            pre_buffer=False,
        )
        return file.read(columns=columns, use_threads=False)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise FormatError(f"{url}: not a Parquet file ({error}); write it again") from error


# ---------------------------------------------------------------------- tables

MIN_SPARSE_RATIO = 8
"""Minimum ratio of grid size to existing chunks of a sparse manifest."""

MAX_PIPELINES = 2
"""Number of pipelines to look for: two, to know whether there is only one."""


# ---------------------------------------------------------------------- evenly spaced references


@dataclass(frozen=True)
class StridedReferences(ReferenceTable):
    """References to ``count`` chunks of one length in one file, ``step`` bytes apart.

    ``first``, ``step`` and ``length`` are bytes. Chunks that reach outside the file raise
    `FormatError`.

    Examples
    --------
    >>> file = SourceFile("file:///a.nc", size=2**30)
    >>> references = StridedReferences(file, first=96, step=24, length=8, count=10**6)
    >>> records = ChunkManifest.from_table(references, (10**6,))
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
        # if the first and the last chunk are valid, so are all others
        self.load(np.array([0, self.count - 1], np.int64))

    def load(self, ids: Ints) -> ChunkManifest:
        """Return the references of chunks by flat ids, in the shape of ``ids``."""
        if not ids.size:
            return ChunkManifest.missing(ids.shape)
        offset = self.first + self.step * ids
        return ChunkManifest.build(ids.shape, files=(self.file,), offset=offset, length=self.length)

    @property
    def files(self) -> tuple[SourceFile, ...]:
        """The file, as a table."""
        return (self.file,)

    @property
    def nbytes(self) -> int:
        """Size in bytes of the references: four integers."""
        return 32

    @property
    def repr_suffix(self) -> str:
        """The end of the repr of a manifest."""
        return " of 1 file"

    def relocate(self, locations: Sequence[tuple[SourceFile, int]]) -> StridedReferences:
        """Return the table with offsets in the containing file."""
        [(file, begin)] = locations
        return replace(self, file=file, first=self.first + begin)

    def get_if_loaded(self, rows: RowView) -> tuple[None, ChunkManifest] | None:
        """Return one reference that represents all chunks, or None if there are none."""
        first = np.zeros((1,) * len(rows.shape), np.int64)
        return (None, rows.at(first)) if prod(rows.shape) else None


# ---------------------------------------------------------------------- sparse references


@dataclass(frozen=True, eq=False)
class SparseReferences(ReferenceTable):
    """References (``rows``) of chunks with ascending flat ids (``chunk_ids``); others are missing.

    ``missing_pipeline`` is the pipeline of missing chunks, which determines their fill value.

    Examples
    --------
    >>> file = SourceFile("file:///a.nc", size=2**30)
    >>> rows = ChunkManifest.build((1,), files=[file], offset=96, length=8)
    >>> table = SparseReferences(np.array([123_456_789]), rows)
    >>> sparse = ChunkManifest.from_table(table, (1000, 10**6))
    >>> sparse.lookup((123, 456_789)).offset, sparse.lookup((0, 0)).file
    (96, -1)
    """

    chunk_ids: Ints
    rows: ChunkManifest
    missing_pipeline: int = 0

    is_in_set = False
    has_pipelines = True

    def load(self, ids: Ints) -> ChunkManifest:
        """Return the references of chunks by flat ids, in the shape of ``ids``."""
        row = find_rows(self.chunk_ids, ids.ravel())
        exists = row >= 0
        rows = self.rows.at(row[exists])
        return scatter_references(rows, exists, self.missing_pipeline).reshape(ids.shape)

    def find_existing_rows(self) -> Ints:
        """Return the flat ids of the existing chunks."""
        return self.chunk_ids

    @property
    def files(self) -> tuple[SourceFile, ...]:
        """The files of the existing chunks."""
        return self.rows.files

    @property
    def nbytes(self) -> int:
        """Size in bytes of the references in memory."""
        return self.chunk_ids.nbytes + self.rows.nbytes

    @property
    def repr_suffix(self) -> str:
        """The end of the repr of a manifest."""
        return f" of {format_count(len(self.files), 'file')}, most chunks missing"

    def relocate(self, locations: Sequence[tuple[SourceFile, int]]) -> SparseReferences:
        """Return the table with offsets in the containing files."""
        return replace(self, rows=self.rows.relocate(locations))

    def get_if_loaded(self, rows: RowView) -> tuple[Ints, ChunkManifest]:
        """Return the ascending flat ids of existing chunks, and their references."""
        if rows.is_in_order and rows.pipeline_map is None:
            count = int(np.searchsorted(self.chunk_ids, prod(rows.shape)))
            return self.chunk_ids[:count], self.rows.take(0, slice(0, count))
        return gather_references(ChunkManifest.from_table(*rows))

    def prune(self, manifest: ChunkManifest) -> ChunkManifest:
        """Return a manifest, a view of this table, without the references that it does not use."""
        ids, rows = gather_references(manifest)
        in_order = manifest.rows is not None and manifest.rows.is_in_order
        if ids.size == self.chunk_ids.size and in_order:
            return manifest
        return build_sparse(ids, rows.prune(), manifest.shape, manifest.missing_pipeline or 0)

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        from dask.base import normalize_token

        parts = (self.chunk_ids, self.rows, self.missing_pipeline)
        return ("virtualds-placed", *map(normalize_token, parts))


def scatter_references(
    rows: ChunkManifest, exists: Any, missing_pipeline: int = 0
) -> ChunkManifest:
    """Return a manifest of the shape of ``exists``, with references where it is true."""
    if exists.all():
        return rows
    missing = ChunkManifest.build((1,), file=MISSING, pipeline=missing_pipeline)
    joined = ChunkManifest.concatenate([rows, missing], 0)
    return joined.at(np.where(exists, np.cumsum(exists) - 1, rows.size))


def build_sparse(
    chunk_ids: Ints, rows: ChunkManifest, shape: tuple[int, ...], missing_pipeline: int = 0
) -> ChunkManifest:
    """Return a manifest of references (``rows``) with ascending flat ids (``chunk_ids``).

    All other chunks are missing, and have the pipeline ``missing_pipeline``.
    """
    if not chunk_ids.size:
        return ChunkManifest.build(shape, file=MISSING, pipeline=missing_pipeline)
    sparse = ChunkManifest.from_table(SparseReferences(chunk_ids, rows, missing_pipeline), shape)
    return sparse if is_sparse(prod(shape), chunk_ids.size) else sparse.loaded()


def load_compactly(manifest: ChunkManifest) -> ChunkManifest:
    """Load the references of a manifest, as `SparseReferences` if most chunks are missing.

    Raises `UnsupportedError` if columns would be huge and almost empty, and the manifest does not
    know which chunks exist.
    """
    existing, used = manifest.find_existing(), manifest.used_pipelines(MAX_PIPELINES)
    if existing is None or used.size != 1 or not is_sparse(manifest.size, existing.size):
        return manifest.loaded()
    return build_sparse(*gather_references(manifest), manifest.shape, int(used[0]))


def is_sparse(size: int, references: int) -> bool:
    """Return whether a manifest of ``size`` chunks with so few references should be sparse."""
    return size > max(MIN_SPARSE_GRID, MIN_SPARSE_RATIO * references)


def join_manifests(manifests: Sequence[ChunkManifest], axis: int) -> ChunkManifest:
    """Concatenate manifests along an axis, as sparse references if most chunks are missing.

    Unlike `ChunkManifest.concatenate`, this never creates huge, almost empty columns.
    """
    size = sum(m.size for m in manifests)
    if len(manifests) > 1 and size > MIN_SPARSE_GRID:
        references = sum(map(_count_references, manifests))
        missing_pipelines = {_find_missing_pipeline(m) for m in manifests}
        if (
            references
            and is_sparse(size, references)
            and len(missing_pipelines) == 1
            and None not in missing_pipelines
        ):
            return _join_sparsely(manifests, axis, missing_pipelines.pop() or 0)
    return ChunkManifest.concatenate(manifests, axis)


def can_join(left: ChunkManifest, right: ChunkManifest) -> bool:
    """Return whether `join_manifests` can join two manifests: sparse ones need one pipeline."""
    if max(left.size, right.size) <= MIN_SPARSE_GRID:
        return True
    if not any(is_sparse(m.size, _count_references(m)) for m in (left, right)):
        return True
    used = {n for m in (left, right) for n in compact(m.used_pipelines(MAX_PIPELINES)).tolist()}
    return len(used) == 1


def _count_references(manifest: ChunkManifest) -> int:
    """Return the maximum number of references of a manifest, without loading them."""
    if not manifest.is_loaded:
        existing = manifest.find_existing()
        return manifest.size if existing is None else existing.size
    file = compact(manifest.file)
    return int(np.count_nonzero(file != MISSING)) * (manifest.size // max(file.size, 1))


def _find_missing_pipeline(manifest: ChunkManifest) -> int | None:
    """Return the pipeline that all missing chunks of a manifest have, or None if unknown."""
    if manifest.missing_pipeline is not None:
        return manifest.missing_pipeline
    pipeline = compact(manifest.pipeline)
    return int(pipeline.flat[0]) if (pipeline == pipeline.flat[:1]).all() else None


def _join_sparsely(
    manifests: Sequence[ChunkManifest], axis: int, missing_pipeline: int
) -> ChunkManifest:
    shape = list(manifests[0].shape)
    shape[axis] = sum(m.shape[axis] for m in manifests)
    chunk_ids, rows, begin = [], [], 0
    for manifest in manifests:
        ids, references = gather_references(manifest)
        positions = list(np.unravel_index(ids, manifest.shape))
        positions[axis] = positions[axis] + begin
        chunk_ids.append(np.ravel_multi_index(tuple(positions), tuple(shape)))
        rows.append(references)
        begin += manifest.shape[axis]
    flat = np.asarray(np.concatenate(chunk_ids), np.int64)
    order = np.argsort(flat)
    joined = ChunkManifest.concatenate(rows, 0).at(order)
    return build_sparse(flat[order], joined, tuple(shape), missing_pipeline)


# ---------------------------------------------------------------------- tiled references


@dataclass(frozen=True)
class TiledReferences(ReferenceTable):
    """Manifests placed on one chunk grid, each at the chunk id of its first chunk.

    If manifests overlap, the last one that has a reference for a chunk is used. Chunks without a
    reference are missing.
    """

    grid: tuple[int, ...]
    parts: tuple[tuple[tuple[int, ...], ChunkManifest], ...]

    @property
    def has_overlaps(self) -> bool:
        """Whether two of the manifests overlap."""
        return any(have_overlap(left, right) for left, right in combinations(self.parts, 2))

    def load(self, ids: Ints) -> ChunkManifest:
        """Return the references of chunks by flat ids, in the shape of ``ids``."""
        flat, remaining = ids.ravel(), np.arange(ids.size)
        order, parts = [], []
        low, high = (flat.min(), flat.max()) if flat.size else (0, -1)
        for origin, manifest in reversed(self.parts):
            first, last = _find_ends(origin, manifest.shape, self.grid)
            if last < low or first > high:
                continue
            inside, inner = self._find_inside(flat[remaining], origin, manifest.shape)
            if inside.size:
                rows = manifest.at(inner)
                exists = rows.file != MISSING
                if not exists.all():
                    rows, inside = rows.at(np.flatnonzero(exists)), inside[exists]
                parts.append(rows)
                order.append(remaining[inside])
                remaining = np.delete(remaining, inside)
        if len(parts) == 1 and not remaining.size:
            return parts[0].reshape(ids.shape)
        parts.append(ChunkManifest.missing((remaining.size,)))
        joined = ChunkManifest.concatenate(parts, 0)
        return joined.at(np.argsort(np.concatenate([*order, remaining])).reshape(ids.shape))

    def _find_inside(
        self, ids: Ints, origin: tuple[int, ...], shape: tuple[int, ...]
    ) -> tuple[Ints, Ints]:
        """Return the indexes of the ``ids`` in a box of the grid, and their flat ids in the box."""
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
        """Return the flat ids of chunks that may exist, or None if most chunks may."""
        parts = [(*part, part[1].find_existing()) for part in self.parts]
        are_unknown = all(existing is None for _, _, existing in parts)
        count = sum(manifest.size for _, manifest in self.parts)
        # adjacent parts that cover all chunks, as after an append
        if are_unknown and count == prod(self.grid) and not self.has_overlaps:
            return None
        ids_of_parts = [np.zeros(0, np.int64)]
        for origin, manifest, existing in parts:
            if existing is None:
                if manifest.size > max(MAX_UNFILTERED_GRID, prod(self.grid) // MIN_SPARSE_RATIO):
                    return None
                existing = np.arange(manifest.size)
            inner = np.stack(np.unravel_index(existing, manifest.shape))
            positions = tuple(inner + np.reshape(origin, (-1, 1)))
            ids_of_parts.append(np.asarray(np.ravel_multi_index(positions, self.grid), np.int64))
        chunk_ids = np.concatenate(ids_of_parts)
        # usually the ids ascend from part to part
        return chunk_ids if (chunk_ids[1:] > chunk_ids[:-1]).all() else np.unique(chunk_ids)

    def list_sources(self) -> tuple[SourceFile, ...]:
        """Return the files of all parts."""
        return tuple(dict.fromkeys(chain.from_iterable(self.iterate_file_tables())))

    def iterate_file_tables(self) -> Iterator[tuple[SourceFile, ...]]:
        """Yield the tables of files of all parts, reading each once."""
        return chain.from_iterable(
            part.iterate_file_tables() for part in self._list_distinct_parts()
        )

    def find_sources(self, urls: Collection[str]) -> tuple[SourceFile, ...]:
        """Return the files of all parts whose url is in ``urls``."""
        found = (part.find_listed_files(urls) for part in self._list_distinct_parts())
        return tuple(dict.fromkeys(chain.from_iterable(found)))

    def _list_distinct_parts(self) -> Iterable[ChunkManifest]:
        """Return one part for each table, since several parts may share a table."""
        tables: dict[int, ChunkManifest] = {}
        for _, part in self.parts:
            tables.setdefault(id(part if part.rows is None else part.rows.table), part)
        return tables.values()

    def with_files(self, change: Callable[[SourceFile], SourceFile]) -> TiledReferences:
        """Return the table with ``change`` applied to each file of its parts."""
        parts = tuple((origin, part.with_files(change)) for origin, part in self.parts)
        return replace(self, parts=parts)


def _find_ends(
    origin: tuple[int, ...], shape: tuple[int, ...], grid: tuple[int, ...]
) -> tuple[int, int]:
    """Return the flat ids of the first and the last chunk of a box of the grid."""
    steps = compute_strides(grid)
    first = sum(map(mul, origin, steps))
    return first, first + sum((n - 1) * step for n, step in zip(shape, steps, strict=True))


def have_overlap(
    left: tuple[tuple[int, ...], ChunkManifest], right: tuple[tuple[int, ...], ChunkManifest]
) -> bool:
    """Return whether two manifests, each placed at an origin, overlap."""
    sides = zip(left[0], left[1].shape, right[0], right[1].shape, strict=True)
    return all(max(a, b) < min(a + n, b + m) for a, n, b, m in sides)


def overlay(
    manifest: ChunkManifest, origin: tuple[int, ...], added: ChunkManifest
) -> ChunkManifest:
    """Return a manifest whose references are replaced by those of ``added``, placed at ``origin``.

    Where ``added`` has no reference, that of ``manifest`` is kept. Manifests in sets are not read.
    All chunks must have pipeline 0.
    """
    layers = (*split_layers(manifest), (origin, added))
    return ChunkManifest.from_table(TiledReferences(manifest.shape, layers), manifest.shape)


def split_layers(manifest: ChunkManifest) -> tuple[tuple[tuple[int, ...], ChunkManifest], ...]:
    """Return the layers of a manifest and their origins, the topmost last.

    A manifest that is not a box of `TiledReferences` is its own only layer. A manifest without
    references has no layers.
    """
    table = manifest.get_table(TiledReferences)
    if table is not None and manifest.rows is not None:
        origin = _find_box(manifest.rows, table.grid)
        if origin is not None:
            return tuple(_crop_layers(manifest.rows, table, origin))
    existing = manifest.find_existing()
    is_empty = existing is not None and not existing.size
    return () if is_empty else (((0,) * len(manifest.shape), manifest),)


def iterate_parts(manifest: ChunkManifest) -> Iterator[ChunkManifest]:
    """Yield a manifest, and recursively the parts of its `TiledReferences`."""
    yield manifest
    table = manifest.get_table(TiledReferences)
    for _, part in table.parts if table is not None else ():
        yield from iterate_parts(part)


def iterate_other_parts(
    manifest: ChunkManifest, is_known: Callable[[ReferenceTable], bool]
) -> Iterator[ChunkManifest]:
    """Yield the parts of a manifest that are neither tiles nor views of known tables."""
    for part in iterate_parts(manifest):
        table = part.table
        if table is None or not (isinstance(table, TiledReferences) or is_known(table)):
            yield part


def _find_box(view: RowView, grid: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the chunk id in the grid of a table at which a view begins; None if not a box."""
    if len(view.shape) != len(grid):
        return None
    pairs = zip(view.shape, view.strides, compute_strides(grid), strict=True)
    if not all(n == 1 or stride == step for n, stride, step in pairs) or 0 in view.shape:
        return None
    begin = tuple(int(i) for i in np.unravel_index(view.first, grid))
    is_inside = all(b + n <= g for b, n, g in zip(begin, view.shape, grid, strict=True))
    return begin if is_inside else None


def _crop_layers(view: RowView, table: TiledReferences, begin: tuple[int, ...]) -> Any:
    """Yield the layers of a table, cropped to a view of it that begins at ``begin``."""
    pipeline = view.pipeline_map
    for origin, layer in table.parts:
        start, part = [], layer
        for axis, (low, count) in enumerate(zip(begin, view.shape, strict=True)):
            first = max(low, origin[axis])
            stop = min(low + count, origin[axis] + part.shape[axis])
            part = part.take(axis, slice(first - origin[axis], max(stop, first) - origin[axis]))
            start.append(first - low)
        if part.size:
            numbered = part.with_pipelines(pipeline[:1]) if pipeline else part
            yield tuple(start), numbered
