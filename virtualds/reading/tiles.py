"""Tiles: boxes of tiny chunks that are placed as a whole.

Tiles save Python's work per chunk. The chunks of a tile lie in one file, have one pipeline and one
size, and are wanted whole; they are decoded side by side, and moved into the result by one
transposed copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from math import inf, prod
from typing import NamedTuple

import numpy as np

from virtualds.bounds import Buffer
from virtualds.chunks.columns import COLUMNS, Column
from virtualds.chunks.fragment import Fragment
from virtualds.chunks.projection import Ints, Projection
from virtualds.codecs.libraries import Bytes
from virtualds.codecs.pipeline import CodecPipeline
from virtualds.reading.tasks import (
    Batch,
    ChunkSelection,
    batch_tasks,
    group_equal_slabs,
    limits_of,
    plan_box_tasks,
    plan_distinct_tasks,
)
from virtualds.reading.threads import cores
from virtualds.stores.store import Range, RequestLimits

TINY_CHUNK = 32 * 1024
"""Decoded bytes of a chunk up to which it is read in tiles."""

MOST_TILE_CHUNKS = 2**13
"""Chunks of a tile at most, unless one row of the grid has more."""

FEWEST_CHUNKS = 16
"""Average chunks of a box from which on tiles pay."""

LARGEST_TILE = 2**20
"""Decoded bytes of a tile of near chunks at most, so that the CPU's cache holds it."""

SMALLEST_TILE = 2**17
"""Decoded bytes below which a tile is not cut further to give every core some."""


class Tile(NamedTuple):
    """Chunks of one file, alike, that fill a box of the result, in C order of the chunk grid.

    ``grid`` counts the chunks along every axis; ``encoded`` are the elements of each. Chunk by
    chunk, ``offset``, ``length`` and ``checksum`` are as in the manifest.
    """

    fragment: Fragment
    pipelines: Sequence[CodecPipeline]
    file: int
    pipeline: int
    encoded: tuple[int, ...]
    grid: tuple[int, ...]
    outer: tuple[slice, ...]
    offset: Ints
    length: Ints
    checksum: Column

    @property
    def ranges(self) -> list[Range]:
        """Where the bytes of every chunk lie."""
        return list(zip(self.offset.tolist(), self.length.tolist(), strict=True))

    @property
    def checksums(self) -> Iterable[int]:
        """The checksum of every chunk."""
        chunks: list[int] = self.checksum.tolist()
        return chunks

    def plan_ranges(self, reach: RequestLimits) -> list[tuple[Range, int]]:
        """Return the ranges to ask for, and how many chunks lie in each, if the tile is a comb.

        The chunks of a comb are plain stretches of bytes at equal, small distances, so that they
        need no work one by one. Other tiles have no teeth.
        """
        steps, length = np.diff(self.offset), int(self.length[0])
        if not steps.size or not length <= steps[0] <= length + reach.gap:
            return []
        alike = (steps == steps[0]).all() and (self.length == length).all()
        if not alike or self.checksum.any() or self.pipelines[self.pipeline].codecs:
            return []
        most = max(reach.run // int(steps[0]), 1)
        found = []
        for first in range(0, self.offset.size, most):
            count = min(most, self.offset.size - first)
            span = (count - 1) * int(steps[0]) + length
            found.append(((int(self.offset[first]), span), count))
        return found

    def extract_rows(self, found: Sequence[Buffer], teeth: Sequence[tuple[Range, int]]) -> Bytes:
        """Return the chunks of a comb one behind the other, out of the bytes of its teeth."""
        step, length = int(self.offset[1] - self.offset[0]), int(self.length[0])
        if len(found) == 1 and step == length:
            # one tooth without gaps needs no copy
            return np.frombuffer(found[0], np.uint8)
        rows, first = np.empty((self.offset.size, length), np.uint8), 0
        for data, (_, some) in zip(found, teeth, strict=True):
            rows[first : first + some] = np.ndarray((some, length), np.uint8, data, 0, (step, 1))
            first += some
        return rows.reshape(-1)


def plan_box_batches(part: ChunkSelection) -> Iterator[Batch | Tile]:
    """Yield the work of a selection of a fragment: tiles where they pay, and batches."""
    if not _is_worth_tiling(part):
        yield from batch_tasks(part, plan_box_tasks(part.fragment, part.projections))
        return
    for runs in product(*(p.runs for p in part.projections)):
        inside = [p.take_part(r.first, r.stop) for p, r in zip(part.projections, runs, strict=True)]
        if all(run.whole for run in runs) and _count_chunk_bytes(part, inside) <= TINY_CHUNK:
            yield from _plan_tiles(part, inside)
        else:
            yield from batch_tasks(part, plan_distinct_tasks(part.fragment, inside))


def _is_worth_tiling(part: ChunkSelection) -> bool:
    """Say whether there are many chunks in few boxes of equal ones, none of them shown twice."""
    boxes = prod(len(p.runs) for p in part.projections)
    chunks = prod(p.chunk.size for p in part.projections)
    if (
        not part.projections
        or chunks < FEWEST_CHUNKS * boxes
        or _find_least_bytes(part) > TINY_CHUNK
    ):
        return False
    axes = range(len(part.projections))
    return all(group_equal_slabs(part.fragment, part.projections, axis) is None for axis in axes)


def _find_least_bytes(part: ChunkSelection) -> float:
    """Return the decoded bytes of the smallest chunk that is taken whole, infinity if none is.

    Cutting a selection of large chunks into boxes would only separate neighbours in a file.
    """
    shortest = (
        min((int(p.encoded[run.first]) for run in p.runs if run.whole), default=inf)
        for p in part.projections
    )
    return prod(shortest) * max(p.dtype.itemsize for p in part.pipelines)


def _count_chunk_bytes(part: ChunkSelection, inside: Sequence[Projection]) -> int:
    """Return the decoded bytes of a chunk of a box."""
    elements = prod(int(p.encoded[0]) for p in inside)
    return elements * max(p.dtype.itemsize for p in part.pipelines)


def _plan_tiles(part: ChunkSelection, inside: Sequence[Projection]) -> Iterator[Batch | Tile]:
    """Yield the tiles of a box of equal chunks that are taken whole."""
    nbytes = _count_chunk_bytes(part, inside)
    grid = [p.chunk.size for p in inside]
    most = _limit_tile_bytes(part, inside, nbytes * prod(grid))
    for box in _cut_boxes(grid, nbytes, most):
        some = [p.take_part(first, stop) for p, (first, stop) in zip(inside, box, strict=True)]
        tile = _plan_tile(part, some)
        yield from [tile] if tile else batch_tasks(part, plan_distinct_tasks(part.fragment, some))


def _limit_tile_bytes(part: ChunkSelection, inside: Sequence[Projection], nbytes: int) -> int:
    """Return how many decoded bytes a tile of a box of ``nbytes`` has at most.

    As many as a long request where the file is far, else so few that every core gets some tiles.
    """
    file = part.fragment.manifest.file[tuple(p.chunk[0] for p in inside)]
    reach = limits_of(part.fragment, int(file))
    if reach.at_once:
        return reach.run
    return min(LARGEST_TILE, max(SMALLEST_TILE, nbytes // (4 * cores())))


def _cut_boxes(
    grid: Sequence[int], chunk_bytes: int, most: int
) -> Iterator[tuple[tuple[int, int], ...]]:
    """Cut a grid into boxes that are stretches of it in C order, of at most ``most`` bytes."""
    axis, rest = len(grid) - 1, chunk_bytes
    while axis > 0 and rest * grid[axis] <= most:
        rest *= grid[axis]
        axis -= 1
    step = max(1, min(most // max(rest, 1), MOST_TILE_CHUNKS // prod(grid[axis + 1 :])))
    along = [(i, min(i + step, grid[axis])) for i in range(0, grid[axis], step)]
    leading = ([(i, i + 1) for i in range(n)] for n in grid[:axis])
    yield from product(*leading, along, *([(0, n)] for n in grid[axis + 1 :]))


def _plan_tile(part: ChunkSelection, inside: Sequence[Projection]) -> Tile | None:
    """Return the tile of a box; None if its chunks are not alike, or lie in no file."""
    where = np.ix_(*(p.chunk for p in inside))
    cells = {name: getattr(part.fragment.manifest, name)[where].ravel() for name in COLUMNS}
    file, pipeline = (cells[name] for name in ("file", "pipeline"))
    if file[0] < 0 or (file != file[0]).any() or (pipeline != pipeline[0]).any():
        return None
    return Tile(
        part.fragment,
        part.pipelines,
        int(file[0]),
        int(pipeline[0]),
        tuple(int(p.encoded[0]) for p in inside),
        tuple(p.chunk.size for p in inside),
        tuple(slice(p.outer[0].start, p.outer[-1].stop) for p in inside),
        cells["offset"],
        cells["length"],
        cells["checksum"],
    )
