"""Tables of references in a reference set, which lazy manifests read."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from itertools import combinations
from math import prod
from typing import ClassVar, NamedTuple, Protocol

import numpy as np

from virtualds.bounds import demand_table
from virtualds.chunks.columns import MISSING
from virtualds.chunks.manifest import ChunkManifest
from virtualds.chunks.projection import Ints
from virtualds.source_file import SourceFile

BLOCK_CHUNKS = 2**20
"""Chunks that are looked through at a time."""

MOSTLY_MISSING = 8
"""Chunks of a grid for each that may exist, from which on it pays to list those."""


def iterate_blocks(
    manifest: ChunkManifest, start: int = 0, most: int = BLOCK_CHUNKS
) -> Iterator[tuple[Ints, ChunkManifest]]:
    """Yield the numbers of chunks and the chunks, block by block.

    Callers that need all chunks of a manifest use this, so that a small set that claims thousands
    of millions of chunks is refused soon.

    Parameters
    ----------
    manifest : ChunkManifest
    start : int
        Number of the first chunk.
    most : int
        Chunks at a time.

    Raises
    ------
    UnsupportedError
        The blocks so far are almost empty.
    """
    references, what = 0, f"the first chunks of a grid {manifest.shape} that lies in a set"
    for begin in range(start, manifest.size, most):
        ids = np.arange(begin, min(begin + most, manifest.size))
        part = manifest.at(ids)
        references += int(np.count_nonzero(part.file != MISSING))
        demand_table((int(ids[-1]) + 1 - start,), max(references, 1), what)
        yield ids, part


def iterate_references(
    manifest: ChunkManifest, most: int = BLOCK_CHUNKS
) -> Iterator[tuple[Ints, ChunkManifest]]:
    """Yield the numbers of chunks that exist, rising, and the chunks, block by block.

    It takes the time of the references, however many chunks are missing, where the manifest knows
    which chunks may exist.

    Parameters
    ----------
    manifest : ChunkManifest
    most : int
        Chunks at a time.

    Raises
    ------
    UnsupportedError
        The manifest lies in a set that does not say which chunks exist, and the blocks so far are
        almost empty.
    """
    # a few chunks of a set are looked at sooner than all that exist are listed
    known = manifest.find_existing() if manifest.size > most or not manifest.is_in_set else None
    blocks: Iterator[tuple[Ints, ChunkManifest]]
    if known is not None:
        cuts = (known[begin : begin + most] for begin in range(0, known.size, most))
        blocks = ((ids, manifest.at(ids)) for ids in cuts)
    elif manifest.is_loaded:
        flat = (np.arange(n, min(n + most, manifest.size)) for n in range(0, manifest.size, most))
        blocks = ((ids, manifest.at(ids)) for ids in flat)
    else:
        blocks = iterate_blocks(manifest, most=most)
    for ids, part in blocks:
        there = part.file != MISSING
        if there.all():
            yield ids, part
        elif there.any():
            yield ids[there], part.at(np.flatnonzero(there))


def gather_references(manifest: ChunkManifest) -> tuple[Ints, ChunkManifest]:
    """Return the numbers of the chunks that exist, rising, and the chunks."""
    found = list(iterate_references(manifest))
    if not found:
        return np.zeros(0, np.int64), ChunkManifest.missing((0,))
    rows = ChunkManifest.concatenate([part for _, part in found], 0)
    return np.concatenate([ids for ids, _ in found]), rows


class SourceSummary(NamedTuple):
    """A set's summary of its files, without a look at each of them.

    ``name`` tells the list from others. ``nbytes`` is None where not all sizes are known.
    """

    name: Hashable
    number: int
    nbytes: int | None
    first: str | None


class ReferenceTable(Protocol):
    """The references of one array, in C order of its chunks."""

    @property
    def has_pipelines(self) -> bool:
        """Whether every chunk has its own pipeline number; else all have number 0."""

    def load(self, ids: Ints) -> ChunkManifest:
        """Return the chunks of these numbers, in their shape, with the files that they lie in."""

    def list_numbers(self) -> Ints | None:
        """Return the numbers of the chunks that may exist, rising; None if all chunks may."""

    def list_sources(self) -> tuple[SourceFile, ...]:
        """Return all files that chunks lie in, and maybe other files of the set."""

    def summarize_sources(self) -> SourceSummary | None:
        """Return the summary of these files, None if they have to be listed."""


@dataclass(frozen=True)
class TiledReferences:
    """The references of manifests on one grid; other chunks are missing.

    Where manifests share a chunk, the last one that has a reference to it counts.

    Parameters
    ----------
    grid : tuple of int
        Chunks per axis.
    parts : tuple of pairs of a tuple of int and a ChunkManifest
        The chunk of the grid where each begins.
    """

    grid: tuple[int, ...]
    parts: tuple[tuple[tuple[int, ...], ChunkManifest], ...]

    has_pipelines: ClassVar[bool] = False

    @property
    def has_overlaps(self) -> bool:
        """Whether two of the manifests share a chunk."""
        return any(_overlap(one, other) for one, other in combinations(self.parts, 2))

    def load(self, ids: Ints) -> ChunkManifest:
        """Return the chunks of these numbers, in their shape, with the files that they lie in."""
        places = np.stack(np.unravel_index(ids.ravel(), self.grid))
        left = np.arange(ids.size)
        order, found = [], []
        for origin, manifest in reversed(self.parts):
            inner = places[:, left] - np.reshape(origin, (-1, 1))
            inside = ((inner >= 0) & (inner < np.reshape(manifest.shape, (-1, 1)))).all(0)
            if inside.any():
                flat = np.ravel_multi_index(tuple(inner[:, inside]), manifest.shape)
                rows = manifest.at(np.asarray(flat, np.int64))
                there = rows.file != MISSING
                found.append(rows if there.all() else rows.at(np.flatnonzero(there)))
                order.append(left[inside][there])
                left = np.delete(left, np.flatnonzero(inside)[there])
        found.append(ChunkManifest.missing((left.size,)))
        joined = ChunkManifest.concatenate(found, 0)
        return joined.at(np.argsort(np.concatenate([*order, left])).reshape(ids.shape))

    def list_numbers(self) -> Ints | None:
        """Return the numbers of the chunks that may exist, None if that may be most of them."""
        parts = [(*part, part[1].find_existing()) for part in self.parts]
        whole = all(known is None for _, _, known in parts)
        count = sum(manifest.size for _, manifest in self.parts)
        # as after an append: they lie side by side, and there are no other chunks
        if whole and count == prod(self.grid) and not self.has_overlaps:
            return None
        found = [np.zeros(0, np.int64)]
        for origin, manifest, known in parts:
            if known is None:
                if manifest.size > max(BLOCK_CHUNKS, prod(self.grid) // MOSTLY_MISSING):
                    return None
                known = np.arange(manifest.size)
            inner = np.stack(np.unravel_index(known, manifest.shape))
            places = tuple(inner + np.reshape(origin, (-1, 1)))
            found.append(np.asarray(np.ravel_multi_index(places, self.grid), np.int64))
        return np.unique(np.concatenate(found))

    def list_sources(self) -> tuple[SourceFile, ...]:
        """Return the files of all parts."""
        return tuple(dict.fromkeys(file for _, part in self.parts for file in part.listed))

    def summarize_sources(self) -> None:
        """Return None: the parts list their files."""


def _overlap(
    one: tuple[tuple[int, ...], ChunkManifest], other: tuple[tuple[int, ...], ChunkManifest]
) -> bool:
    """Say whether two manifests, each with its origin, share a chunk."""
    sides = zip(one[0], one[1].shape, other[0], other[1].shape, strict=True)
    return all(max(a, b) < min(a + n, b + m) for a, n, b, m in sides)


class RowCounting(NamedTuple):
    """How a lazy manifest counts the rows of a table; see `LazyManifest`."""

    table: ReferenceTable
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    first: int
    renumbered: tuple[int, ...] | None
