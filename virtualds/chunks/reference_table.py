"""Tables of references in a reference set, which lazy manifests read."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

import numpy as np

from virtualds.bounds import demand_table
from virtualds.chunks.columns import MISSING
from virtualds.chunks.manifest import ChunkManifest
from virtualds.chunks.projection import Ints
from virtualds.source_file import SourceFile

BLOCK_CHUNKS = 2**20
"""Chunks that are looked through at a time."""


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

    def list_sources(self) -> tuple[SourceFile, ...]:
        """Return all files that chunks lie in, and maybe other files of the set."""

    def summarize_sources(self) -> SourceSummary | None:
        """Return the summary of these files, None if they have to be listed."""


@dataclass(frozen=True)
class TiledReferences:
    """The references of manifests side by side on one grid; other chunks are missing.

    Parameters
    ----------
    grid : tuple of int
        Chunks per axis.
    parts : tuple of pairs of a tuple of int and a ChunkManifest
        The chunk of the grid where each begins. They do not overlap.
    """

    grid: tuple[int, ...]
    parts: tuple[tuple[tuple[int, ...], ChunkManifest], ...]

    has_pipelines: ClassVar[bool] = False

    def load(self, ids: Ints) -> ChunkManifest:
        """Return the chunks of these numbers, in their shape, with the files that they lie in."""
        places = np.stack(np.unravel_index(ids.ravel(), self.grid))
        missing = np.ones(ids.size, bool)
        order, found = [], []
        for origin, manifest in self.parts:
            inner = places - np.reshape(origin, (-1, 1))
            inside = ((inner >= 0) & (inner < np.reshape(manifest.shape, (-1, 1)))).all(0)
            if inside.any():
                flat = np.ravel_multi_index(tuple(inner[:, inside]), manifest.shape)
                found.append(manifest.at(np.asarray(flat, np.int64)))
                order.append(np.flatnonzero(inside))
                missing &= ~inside
        found.append(ChunkManifest.missing((int(np.count_nonzero(missing)),)))
        order.append(np.flatnonzero(missing))
        joined = ChunkManifest.concatenate(found, 0)
        return joined.at(np.argsort(np.concatenate(order)).reshape(ids.shape))

    def list_sources(self) -> tuple[SourceFile, ...]:
        """Return the files of all parts."""
        return tuple(dict.fromkeys(file for _, part in self.parts for file in part.listed))

    def summarize_sources(self) -> None:
        """Return None: the parts list their files."""


class RowCounting(NamedTuple):
    """How a lazy manifest counts the rows of a table; see `LazyManifest`."""

    table: ReferenceTable
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    first: int
    renumbered: tuple[int, ...] | None
