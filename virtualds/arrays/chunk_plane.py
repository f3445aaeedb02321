"""Which encodings lie where in an array, seen along two of its axes: facts for pictures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from virtualds.arrays.array import ManifestArray
from virtualds.chunks.fragment import Fragment
from virtualds.chunks.manifest import iterate_references
from virtualds.chunks.projection import Ints

FINEST = 512
"""Cells along an axis, more than a picture shows; each of them may hold many chunks."""
SEVERAL = -2
"""The code of a cell with chunks of several encodings."""
NOTHING = -1
"""The code of a cell without a chunk, which reads as fill value."""


@dataclass(frozen=True, eq=False)
class ChunkPlane:
    """The encodings of an array's chunks along two axes, all other axes seen through.

    Parameters
    ----------
    shape : tuple of two int
        Elements of the array along the two axes.
    boxes : int64 array, shape (n, 4)
        Rectangles of chunks that are alike: start and stop along the one axis, then the other.
    codes : int64 array, shape (n,)
        The number of the pipeline of the chunks, or `SEVERAL`.
    holes : bool array, shape (n,)
        Whether some of the chunks of a rectangle are missing.
    grids : tuple of pairs of int64 arrays
        For every fragment, where its chunks begin and end along each of the axes.
    missing : int
        Number of chunks of the grids that do not exist.

    Raises
    ------
    ValueError
        A rectangle has no code, or lies outside the array.

    Examples
    --------
    >>> array = ManifestArray.from_arrays(
    ...     shape=(4, 4), chunks=(1, 4), dtype="f4", offsets=0, lengths=16,
    ...     path=[["s3://bucket/a.nc"], ["s3://bucket/a.nc"], [""], ["s3://bucket/a.nc"]],
    ... )
    >>> ChunkPlane.of(array, 0, 1).boxes.tolist()
    [[0, 2, 0, 4], [3, 4, 0, 4]]
    """

    shape: tuple[int, int]
    boxes: Ints
    codes: Ints
    holes: npt.NDArray[np.bool_]
    grids: tuple[tuple[Ints, Ints], ...]
    missing: int

    def __post_init__(self) -> None:
        stops = self.boxes[:, 1::2]
        if not len(self.boxes) == len(self.codes) == len(self.holes) or (stops > self.shape).any():
            raise ValueError(f"ChunkPlane: each rectangle has a code and lies inside {self.shape}")

    @property
    def has_gaps(self) -> bool:
        """Whether some part of the plane has no chunk."""
        left, right, low, high = self.boxes.T
        return bool(((right - left) * (high - low)).sum() < prod(self.shape))

    @classmethod
    def of(cls, array: ManifestArray, one: int, other: int) -> ChunkPlane:
        """Return the plane of two axes of an array."""
        filled = (fragment for fragment in array.fragments if fragment.manifest.size)
        parts = [_Cells.of(fragment, one, other) for fragment in filled]
        rows = np.array([row for part in parts for row in part.list_boxes()], np.int64)
        table = rows.reshape(-1, 6)
        return cls(
            (array.shape[one], array.shape[other]),
            table[:, :4],
            table[:, 4],
            table[:, 5].astype(bool),
            tuple(part.cuts for part in parts),
            sum(part.missing for part in parts),
        )


class _Cells(NamedTuple):
    """The chunks of a fragment seen along two axes, in cells of one chunk, or of several if many.

    ``codes`` and ``holes`` are those of `ChunkPlane`, with `NOTHING` for cells without a chunk.
    ``edges`` are those of the cells along both axes, and ``cuts`` those of the chunks.
    """

    codes: Ints
    holes: npt.NDArray[np.bool_]
    edges: tuple[Ints, Ints]
    cuts: tuple[Ints, Ints]
    missing: int

    @classmethod
    def of(cls, fragment: Fragment, one: int, other: int) -> _Cells:
        """Return the cells of two axes."""
        grid = fragment.manifest.shape
        long, wide = -(-grid[one] // FINEST) or 1, -(-grid[other] // FINEST) or 1
        ends = _cut_evenly(grid[one], long), _cut_evenly(grid[other], wide)
        shape = (ends[0].size - 1, ends[1].size - 1)
        count, most = np.zeros(shape, np.int64), np.full(shape, NOTHING)
        least = np.full(shape, np.iinfo(np.int64).max)
        for ids, part in iterate_references(fragment.manifest):
            places = np.unravel_index(ids, grid)
            where = (places[one] // long, places[other] // wide)
            np.add.at(count, where, 1)
            np.minimum.at(least, where, part.pipeline)
            np.maximum.at(most, where, part.pipeline)
        whole = np.multiply.outer(*map(np.diff, ends)) * (prod(grid) // (grid[one] * grid[other]))
        cuts = fragment.edges(one), fragment.edges(other)
        return cls(
            np.where(least < most, SEVERAL, most),
            (count > 0) & (count < whole),
            (cuts[0][ends[0]], cuts[1][ends[1]]),
            cuts,
            int((whole - count).sum()),
        )

    def list_boxes(self) -> Iterator[tuple[int, ...]]:
        """Yield rectangles of cells that are alike: four sides, code, and whether chunks lack."""
        state = self.codes * 2 + self.holes
        rows = _find_runs((state[1:] != state[:-1]).any(axis=1))
        for top, bottom in pairwise(rows):
            for left, right in pairwise(_find_runs(state[top, 1:] != state[top, :-1])):
                if self.codes[top, left] != NOTHING:
                    sides = (*self.edges[0][[top, bottom]], *self.edges[1][[left, right]])
                    yield *map(int, sides), int(self.codes[top, left]), int(self.holes[top, left])


def _cut_evenly(count: int, step: int) -> Ints:
    return np.append(np.arange(0, count, step), count)


def _find_runs(differs: npt.NDArray[np.bool_]) -> list[int]:
    """Return where runs begin, and where the last one ends."""
    return [0, *(np.flatnonzero(differs) + 1).tolist(), differs.size + 1]
