"""Sparse manifests: few references on a huge grid of chunks, held by position.

An archive of forecasts is a grid of initial times, lead times and members, most of which do not
exist yet. A sparse manifest takes the memory of the references that exist.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, ClassVar

import numpy as np

from virtualds.chunks.columns import MISSING, compact
from virtualds.chunks.lazy_manifest import LazyManifest
from virtualds.chunks.manifest import ChunkManifest
from virtualds.chunks.projection import Ints, compute_strides
from virtualds.chunks.reference_table import MOSTLY_MISSING, TiledReferences, gather_references
from virtualds.quantities import format_count
from virtualds.source_file import SourceFile

LARGE = 2**16
"""Chunks of a grid from which on few references are held by position."""

MOST_PIPELINES = 2
"""Pipelines of manifests of which it is only asked whether they are one and the same."""


@dataclass(frozen=True, eq=False)
class PlacedReferences:
    """References to the chunks of some numbers; all other chunks are missing.

    Parameters
    ----------
    numbers : int64 array, shape (n,)
        The numbers of the chunks, rising.
    rows : ChunkManifest, shape (n,)
        The chunks.
    rest : int
        The pipeline of the missing chunks, which says what they are full of.
    """

    numbers: Ints
    rows: ChunkManifest
    rest: int = 0

    has_pipelines: ClassVar[bool] = True

    def load(self, ids: Ints) -> ChunkManifest:
        """Return the chunks of these numbers, in their shape, with the files that they lie in."""
        row = np.searchsorted(self.numbers, ids.ravel())
        known = np.append(self.numbers, -1)[row] == ids.ravel()
        return spread_rows(self.rows.at(row[known]), known, self.rest).reshape(ids.shape)

    def list_numbers(self) -> Ints:
        """Return the numbers of the chunks."""
        return self.numbers

    def list_sources(self) -> tuple[SourceFile, ...]:
        """Return the files of the chunks."""
        return self.rows.files

    def summarize_sources(self) -> None:
        """Return None: there is no list."""

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


class SparseManifest(LazyManifest):
    """A manifest that takes the memory of its references, however large its grid is.

    Examples
    --------
    >>> file = SourceFile("file:///a.nc", size=2**30)
    >>> one = ChunkManifest.build((1,), files=[file], offset=96, length=8)
    >>> sparse = SparseManifest(PlacedReferences(np.array([123_456_789]), one), (1000, 10**6))
    >>> sparse.lookup((123, 456_789)).offset, sparse.lookup((0, 0)).file
    (96, -1)
    """

    __slots__ = ()

    _table: PlacedReferences

    @property
    def _where(self) -> str:
        count = len(self.files)
        return f" of {format_count(count, 'file')}, most of them missing"

    @property
    def is_in_set(self) -> bool:
        """Whether the references lie in a reference set: they do not."""
        return False

    @property
    def nbytes(self) -> int:
        """Bytes that the references take in memory."""
        return self._table.numbers.nbytes + self._table.rows.nbytes

    @property
    def files(self) -> tuple[SourceFile, ...]:
        """The table that the column ``file`` counts."""
        return self._table.rows.files

    @property
    def sources(self) -> tuple[SourceFile, ...]:
        """The files of the table, each once."""
        return self._table.rows.sources

    @property
    def placed(self) -> tuple[Ints, ChunkManifest]:
        """The numbers of the chunks that exist, rising, and the chunks."""
        if self._base == 0 and self._strides == compute_strides(self._shape):
            return self._table.numbers, self._table.rows
        return gather_references(self)

    @property
    def rest(self) -> int:
        """The pipeline of missing chunks."""
        return self._table.rest if self._renumbered is None else self._renumbered[self._table.rest]

    def with_files(self, change: Callable[[SourceFile], SourceFile]) -> ChunkManifest:
        """Return the manifest with every source file replaced by what ``change`` makes of it."""
        return self._with_rows(lambda rows: rows.with_files(change))

    def relocated(self, places: Sequence[tuple[SourceFile, int]]) -> ChunkManifest:
        """Return the manifest with every file being a piece of another one."""
        return self._with_rows(lambda rows: rows.relocated(places))

    def _with_rows(self, change: Callable[[ChunkManifest], ChunkManifest]) -> ChunkManifest:
        table = replace(self._table, rows=change(self._table.rows))
        return SparseManifest(table, self._shape, self._strides, self._base, self._renumbered)

    def pruned(self) -> ChunkManifest:
        """Return the manifest with only the references that its chunks need."""
        ids, rows = gather_references(self)
        if ids.size == self._table.numbers.size and self._strides == compute_strides(self._shape):
            return self
        return build_sparse(ids, rows.pruned(), self._shape, self.rest)

    def used_pipelines(self, count: int) -> Ints:
        """Return the numbers of the pipelines that chunks have, out of ``count``."""
        ids, rows = gather_references(self)
        found = compact(rows.pipeline).ravel() if ids.size else np.zeros(0, np.int64)
        return np.unique(found if ids.size == self.size else np.append(found, self.rest))

    def same(self, other: ChunkManifest) -> bool:
        """Say whether both refer to the same bytes, chunk by chunk, through the same tables."""
        if self.shape != other.shape:
            return False
        if not isinstance(other, SparseManifest):
            return self.size <= LARGE and self.loaded().same(other.loaded())
        (ids, rows), (others, other_rows) = map(gather_references, (self, other))
        return self.rest == other.rest and np.array_equal(ids, others) and rows.same(other_rows)


def build_sparse(
    numbers: Ints, rows: ChunkManifest, shape: tuple[int, ...], rest: int = 0
) -> ChunkManifest:
    """Return the manifest of the chunks of some numbers; others are missing.

    Parameters
    ----------
    numbers : int64 array
        In C order of the grid, rising.
    rows : ChunkManifest
        The chunks.
    shape : tuple of int
        Chunks per axis.
    rest : int
        The pipeline of the missing chunks.
    """
    if not numbers.size:
        return ChunkManifest.build(shape, file=MISSING, pipeline=rest)
    sparse = SparseManifest(PlacedReferences(numbers, rows, rest), shape)
    return sparse if is_sparse(prod(shape), numbers.size) else sparse.loaded()


def hold_in_memory(manifest: ChunkManifest) -> ChunkManifest:
    """Return a manifest with its references in memory, by position where most chunks are missing.

    Raises
    ------
    UnsupportedError
        They would be almost empty columns: the manifest does not say which chunks exist.
    """
    known, used = manifest.find_existing(), manifest.used_pipelines(MOST_PIPELINES)
    if known is None or used.size != 1 or not is_sparse(manifest.size, known.size):
        return manifest.loaded()
    return build_sparse(*gather_references(manifest), manifest.shape, int(used[0]))


def is_sparse(size: int, references: int) -> bool:
    """Say whether references on a grid of ``size`` chunks are to be held by position."""
    return size > max(LARGE, MOSTLY_MISSING * references)


def join_manifests(manifests: Sequence[ChunkManifest], axis: int) -> ChunkManifest:
    """Lay manifests end to end along ``axis``; few references on a huge grid stay few.

    It is `ChunkManifest.concatenate` for manifests of any size.
    """
    size = sum(m.size for m in manifests)
    if len(manifests) > 1 and size > LARGE:
        references = sum(map(_count_references, manifests))
        rests = {_find_rest(m) for m in manifests}
        if references and is_sparse(size, references) and len(rests) == 1 and None not in rests:
            return _join_sparsely(manifests, axis, rests.pop() or 0)
    return ChunkManifest.concatenate(manifests, axis)


def are_alike(one: ChunkManifest, other: ChunkManifest) -> bool:
    """Say whether manifests can be joined: where most chunks are missing, all are decoded alike."""
    if max(one.size, other.size) <= LARGE:
        return True
    if not any(is_sparse(m.size, _count_references(m)) for m in (one, other)):
        return True
    used = {n for m in (one, other) for n in compact(m.used_pipelines(MOST_PIPELINES)).tolist()}
    return len(used) == 1


def _count_references(manifest: ChunkManifest) -> int:
    """Return how many chunks may exist."""
    if not manifest.is_loaded:
        known = manifest.find_existing()
        return manifest.size if known is None else known.size
    file = compact(manifest.file)
    return int(np.count_nonzero(file != MISSING)) * (manifest.size // max(file.size, 1))


def _find_rest(manifest: ChunkManifest) -> int | None:
    """Return the one pipeline of the missing chunks of a manifest, None if there may be several."""
    if isinstance(manifest, SparseManifest):
        return manifest.rest
    pipeline = compact(manifest.pipeline)
    return int(pipeline.flat[0]) if (pipeline == pipeline.flat[:1]).all() else None


def _join_sparsely(manifests: Sequence[ChunkManifest], axis: int, rest: int) -> ChunkManifest:
    shape = list(manifests[0].shape)
    shape[axis] = sum(m.shape[axis] for m in manifests)
    numbers, rows, begin = [], [], 0
    for manifest in manifests:
        ids, part = gather_references(manifest)
        places = list(np.unravel_index(ids, manifest.shape))
        places[axis] = places[axis] + begin
        numbers.append(np.ravel_multi_index(tuple(places), tuple(shape)))
        rows.append(part)
        begin += manifest.shape[axis]
    flat = np.asarray(np.concatenate(numbers), np.int64)
    order = np.argsort(flat)
    joined = ChunkManifest.concatenate(rows, 0).at(order)
    return build_sparse(flat[order], joined, tuple(shape), rest)


# ---------------------------------------------------------------------- layers


def lay_over(
    manifest: ChunkManifest, origin: tuple[int, ...], added: ChunkManifest
) -> ChunkManifest:
    """Return a manifest with the references of another one laid over it.

    Nothing is read of manifests in sets. All chunks have the first pipeline.

    Parameters
    ----------
    manifest : ChunkManifest
    origin : tuple of int
        The chunk where ``added`` begins.
    added : ChunkManifest
        Where it has no reference, that of ``manifest`` stays.
    """
    layers = (*split_layers(manifest), (origin, added))
    return LazyManifest(TiledReferences(manifest.shape, layers), manifest.shape)


def split_layers(manifest: ChunkManifest) -> tuple[tuple[tuple[int, ...], ChunkManifest], ...]:
    """Return the manifests that lie over each other in one, the last one uppermost.

    A manifest that is no box of `TiledReferences` is its only layer; one without references has
    none.
    """
    if isinstance(manifest, LazyManifest) and isinstance(
        (table := manifest.counting.table), TiledReferences
    ):
        begin = _find_box(manifest, table.grid)
        if begin is not None:
            return tuple(_cut_layers(manifest, table, begin))
    existing = manifest.find_existing()
    nothing = existing is not None and not existing.size
    return () if nothing else (((0,) * len(manifest.shape), manifest),)


def _find_box(manifest: LazyManifest, grid: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return where a manifest begins in the grid of its table, None if it is no box of it."""
    found = manifest.counting
    if len(found.shape) != len(grid):
        return None
    pairs = zip(found.shape, found.strides, compute_strides(grid), strict=True)
    if not all(n == 1 or stride == step for n, stride, step in pairs) or 0 in found.shape:
        return None
    begin = tuple(int(i) for i in np.unravel_index(found.first, grid))
    inside = all(b + n <= g for b, n, g in zip(begin, found.shape, grid, strict=True))
    return begin if inside else None


def _cut_layers(manifest: LazyManifest, table: TiledReferences, begin: tuple[int, ...]) -> Any:
    """Yield the parts of the layers of a table that lie in a box."""
    pipeline = manifest.counting.renumbered
    for origin, layer in table.parts:
        place, part = [], layer
        for axis, (low, count) in enumerate(zip(begin, manifest.shape, strict=True)):
            first = max(low, origin[axis])
            stop = min(low + count, origin[axis] + part.shape[axis])
            part = part.take(axis, slice(first - origin[axis], max(stop, first) - origin[axis]))
            place.append(first - low)
        if part.size:
            numbered = part.with_pipelines(pipeline[:1]) if pipeline else part
            yield tuple(place), numbered
