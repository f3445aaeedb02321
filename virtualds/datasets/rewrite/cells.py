"""Which chunks of an array stay references on the grid of its main encoding; pure integers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from virtualds.arrays.array import ManifestArray, fills_with
from virtualds.bounds import demand_table
from virtualds.chunks.columns import COLUMNS, MISSING
from virtualds.chunks.fragment import Fragment
from virtualds.chunks.manifest import ChunkManifest
from virtualds.chunks.projection import Ints
from virtualds.codecs.pipeline import CodecPipeline
from virtualds.datasets.rewrite.encodings import MainEncoding, strip_flat_axes

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Cells:
    """The cells of the grid of a main encoding.

    Parameters
    ----------
    kept : ChunkManifest
        The references that stay, over the grid; missing elsewhere.
    rewritten : array of bool
        Cells whose values are to be encoded.
    gaps : array of bool
        Cells that no file covers, with another value than missing chunks have.
    """

    kept: ChunkManifest
    rewritten: Mask
    gaps: Mask

    @property
    def missing(self) -> Mask:
        """Cells that are missing chunks in the set."""
        return np.asarray((self.kept.file == MISSING) & ~self.rewritten & ~self.gaps)


def count_rewritten(array: ManifestArray, main: MainEncoding) -> int:
    """Return how many cells are not references, without building the grid."""
    grid = grid_of(array.shape, main.chunks)
    kept = sum(int(np.count_nonzero(mask)) for _, mask in _mark_kept(array, main))
    return int(np.prod(grid, dtype=np.int64)) - kept - _count_gaps(array, main, grid)


def divide_cells(array: ManifestArray, main: MainEncoding) -> Cells:
    """Say of every cell of the grid whether it stays a reference."""
    grid = grid_of(array.shape, main.chunks)
    demand_table(grid, sum(f.manifest.size for f in array.fragments), f"{array.name!r}")
    known, covered = np.zeros(grid, bool), np.zeros(grid, bool)
    flat = [f.manifest.loaded().reshape((f.manifest.size,)) for f in array.fragments]
    joined = ChunkManifest.concatenate(flat, 0) if flat else ChunkManifest.missing((0,))
    columns = {n: np.full(grid, MISSING if n == "file" else 0, kind) for n, kind in COLUMNS.items()}
    begin = 0
    for fragment, mask in _mark_kept(array, main):
        covered[_find_box(fragment, main.chunks)] = True
        rows = np.flatnonzero(mask)
        where = _find_cells(fragment, main.chunks, grid, rows)
        known.reshape(-1)[where] = True
        for name, column in columns.items():
            if name != "pipeline":
                column.reshape(-1)[where] = getattr(joined, name)[rows + begin]
        begin += fragment.manifest.size
    kept = ChunkManifest(files=joined.files, inline=joined.inline, **columns).pruned()
    alike = fills_with(main.pipeline, array.fill_value)
    gaps = np.zeros(grid, bool) if alike else ~covered
    return Cells(kept, covered & ~known, gaps)


def grid_of(shape: tuple[int, ...], chunks: tuple[int, ...]) -> tuple[int, ...]:
    """Return the number of chunks per axis."""
    return tuple(-(-n // c) for n, c in zip(shape, chunks, strict=True))


def _mark_kept(array: ManifestArray, main: MainEncoding) -> Iterator[tuple[Fragment, Mask]]:
    """Yield fragments, and which of their chunks are cells in the main encoding."""
    wanted = strip_flat_axes(main.pipeline, main.chunks)
    stripped = [strip_flat_axes(p, main.chunks) for p in array.pipelines]
    alike = np.array([_is_alike(p, wanted) for p in stripped], bool)
    fills = np.array([p.fill == wanted.fill for p in stripped], bool)
    for fragment in array.fragments:
        mask = np.ones((), bool)
        for axis, length in enumerate(main.chunks):
            along = _mark_whole(fragment, axis, array.shape[axis], length)
            mask = mask & along.reshape((-1,) + (1,) * (array.ndim - axis - 1))
        if mask.any():
            manifest = fragment.manifest.loaded()
            known = alike[manifest.pipeline]
            mask = mask & known & ((manifest.file != MISSING) | fills[manifest.pipeline])
        yield fragment, np.broadcast_to(mask, fragment.manifest.shape)


def _is_alike(one: CodecPipeline, other: CodecPipeline) -> bool:
    """Say whether chunks that exist decode alike, and are packed alike."""
    return replace(one, fill=None) == replace(other, fill=None)


def _mark_whole(fragment: Fragment, axis: int, size: int, length: int) -> Mask:
    """Say which slabs are whole cells of a grid along an axis."""
    edges, encoded, inset = fragment.axes[axis].slabs()
    begin, end = edges[:-1] + fragment.start[axis], edges[1:] + fragment.start[axis]
    whole = ((end - begin) == length) | (end == size)
    return np.asarray((inset == 0) & (begin % length == 0) & (encoded == length) & whole)


def _find_cells(
    fragment: Fragment, chunks: tuple[int, ...], grid: tuple[int, ...], rows: Ints
) -> Ints:
    """Return the cells, as numbers in C order, in which chunks begin."""
    cells = np.zeros(rows.size, np.int64)
    places = np.unravel_index(rows, fragment.manifest.shape) if grid else ()
    for axis, place in enumerate(places):
        begin = fragment.axes[axis].slabs().edges[:-1] + fragment.start[axis]
        cells = cells * grid[axis] + (begin // chunks[axis])[place]
    return cells


def _find_box(fragment: Fragment, chunks: tuple[int, ...]) -> tuple[slice, ...]:
    """Return the cells that a fragment touches."""
    if 0 in fragment.shape:
        return (slice(0, 0),) * len(chunks)
    pairs = zip(fragment.start, fragment.stop, chunks, strict=True)
    return tuple(slice(begin // c, -(-end // c)) for begin, end, c in pairs)


def _count_gaps(array: ManifestArray, main: MainEncoding, grid: tuple[int, ...]) -> int:
    """Return how many cells no fragment touches, and read as missing chunks do."""
    if not array.has_gaps or not fills_with(main.pipeline, array.fill_value):
        return 0
    covered = np.zeros(grid, bool)
    for fragment in array.fragments:
        covered[_find_box(fragment, main.chunks)] = True
    return int(np.count_nonzero(~covered))
