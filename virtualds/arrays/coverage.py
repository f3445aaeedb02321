"""Finds the positions of a dimension that each source file covers, and the use of each encoding."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from virtualds.arrays.array import ManifestArray
from virtualds.chunks.columns import INLINE, MISSING, Ints, compact, compute_strides
from virtualds.chunks.fragment import Fragment
from virtualds.chunks.manifest import ChunkManifest, iterate_references
from virtualds.source_file import SourceFile

MAX_CELLS = 512
"""Maximum number of cells along an axis, more than a picture shows; a cell may have many chunks."""
SEVERAL = -2
"""The code of a cell with chunks of several encodings."""
NOTHING = -1
"""The code of a cell without chunks, which reads as the fill value."""


@dataclass(frozen=True, eq=False)
class ChunkPlane:
    """The encodings of an array's chunks, projected onto the plane of two axes.

    ``boxes``, of shape (n, 4), are rectangles of similar chunks: start and stop along the one axis,
    then the other. For each, ``codes`` has the index of the pipeline of its chunks, or `SEVERAL`,
    and ``holes`` whether some of them are missing. ``grids`` are the chunk boundaries of every
    fragment along both axes. ``missing`` is the number of chunks that do not exist.

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
        """Create the plane of two axes of an array."""
        filled = (fragment for fragment in array.fragments if fragment.manifest.size)
        parts = [_ProjectedCells.of(fragment, one, other) for fragment in filled]
        rows = np.array([row for part in parts for row in part.iterate_boxes()], np.int64)
        table = rows.reshape(-1, 6)
        return cls(
            (array.shape[one], array.shape[other]),
            table[:, :4],
            table[:, 4],
            table[:, 5].astype(bool),
            tuple(part.chunk_edges for part in parts),
            sum(part.missing for part in parts),
        )


class _ProjectedCells(NamedTuple):
    """The chunks of a fragment projected onto two axes, in cells of one or more chunks.

    ``codes`` and ``holes`` are as in `ChunkPlane`, with `NOTHING` for cells without a chunk.
    ``edges`` are the boundaries of the cells along both axes, and ``chunk_edges`` the boundaries of
    the chunks.
    """

    codes: Ints
    holes: npt.NDArray[np.bool_]
    edges: tuple[Ints, Ints]
    chunk_edges: tuple[Ints, Ints]
    missing: int

    @classmethod
    def of(cls, fragment: Fragment, one: int, other: int) -> _ProjectedCells:
        """Project the chunks of a fragment onto two axes."""
        grid = fragment.manifest.shape
        long, wide = -(-grid[one] // MAX_CELLS) or 1, -(-grid[other] // MAX_CELLS) or 1
        ends = _divide_evenly(grid[one], long), _divide_evenly(grid[other], wide)
        shape = (ends[0].size - 1, ends[1].size - 1)
        count, most = np.zeros(shape, np.int64), np.full(shape, NOTHING)
        least = np.full(shape, np.iinfo(np.int64).max)
        for ids, part in iterate_references(fragment.manifest):
            positions = np.unravel_index(ids, grid)
            where = (positions[one] // long, positions[other] // wide)
            np.add.at(count, where, 1)
            np.minimum.at(least, where, part.pipeline)
            np.maximum.at(most, where, part.pipeline)
        whole = np.multiply.outer(*map(np.diff, ends)) * (prod(grid) // (grid[one] * grid[other]))
        chunk_edges = fragment.edges(one), fragment.edges(other)
        return cls(
            np.where(least < most, SEVERAL, most),
            (count > 0) & (count < whole),
            (chunk_edges[0][ends[0]], chunk_edges[1][ends[1]]),
            chunk_edges,
            int((whole - count).sum()),
        )

    def iterate_boxes(self) -> Iterator[tuple[int, ...]]:
        """Yield rectangles of equal cells: four sides, code, and whether chunks are missing."""
        state = self.codes * 2 + self.holes
        rows = _find_runs((state[1:] != state[:-1]).any(axis=1))
        for top, bottom in pairwise(rows):
            for left, right in pairwise(_find_runs(state[top, 1:] != state[top, :-1])):
                if self.codes[top, left] != NOTHING:
                    sides = (*self.edges[0][[top, bottom]], *self.edges[1][[left, right]])
                    yield *map(int, sides), int(self.codes[top, left]), int(self.holes[top, left])


def _divide_evenly(count: int, step: int) -> Ints:
    return np.append(np.arange(0, count, step), count)


def _find_runs(differs: npt.NDArray[np.bool_]) -> list[int]:
    """Return the starts of runs, and the end of the last one."""
    return [0, *(np.flatnonzero(differs) + 1).tolist(), differs.size + 1]


# ---------------------------------------------------------------------- coverage

IN_THE_SET = ""
"""The url that stands for inline chunks, which are in no file."""

Codes = npt.NDArray[np.integer]


@dataclass(frozen=True, eq=False)
class Coverage:
    """The ranges that each file covers of a dimension of ``size`` positions.

    ``urls`` are in the order of the first position that each covers; `IN_THE_SET` stands for inline
    chunks. ``file`` is the index into ``urls`` for each range, in the order of their starts. The
    ranges of one file are not adjacent to each other.

    Examples
    --------
    >>> found = Coverage(9, ("a.nc", "b.nc"), *np.array([[0, 1], [0, 6], [4, 9]]))
    >>> found.find_uncovered(), found.collect_ranges()
    ([(4, 6)], {'a.nc': [(0, 4)], 'b.nc': [(6, 9)]})
    """

    size: int
    urls: tuple[str, ...]
    file: Ints
    start: Ints
    stop: Ints

    def __post_init__(self) -> None:
        if not ((self.start >= 0) & (self.start < self.stop) & (self.stop <= self.size)).all():
            raise ValueError(f"Coverage: a stretch is empty, or outside of {self.size} positions")

    def find_uncovered(self) -> list[tuple[int, int]]:
        """Return the ranges that no file covers."""
        furthest = np.maximum.accumulate(np.concatenate([[0], self.stop]))
        begin = np.append(self.start, self.size)
        bare = begin > furthest
        return list(zip(furthest[bare].tolist(), begin[bare].tolist(), strict=True))

    def collect_ranges(self) -> dict[str, list[tuple[int, int]]]:
        """Return the ranges of each file, by its url."""
        found: dict[str, list[tuple[int, int]]] = {url: [] for url in self.urls}
        rows = zip(self.file.tolist(), self.start.tolist(), self.stop.tolist(), strict=True)
        for number, start, stop in rows:
            found[self.urls[number]].append((start, stop))
        return found


def find_coverage(
    size: int,
    arrays: Iterable[tuple[ManifestArray, int]],
    urls: Collection[str] | None = None,
) -> Coverage:
    """Find the ranges of a dimension that each file covers, for all files or those of some urls.

    ``arrays`` are the arrays with the dimension, each with the index of its axis.
    """
    table = _UrlTable()
    rows = [
        np.stack([table.number(files)[codes], start, stop])
        for array, axis in arrays
        # the tables of sets may list files without chunks
        if urls is None or any(f.manifest.find_listed(urls) for f in array.fragments)
        for fragment in array.fragments
        for files, codes, start, stop in _find_file_ranges(fragment, axis, urls)
    ]
    found = _merge_ranges(np.concatenate([np.zeros((3, 0), np.int64), *rows], axis=1), size)
    file, start, stop = found[:, np.lexsort((found[2], found[1]))]
    used, first, file = np.unique(file, return_index=True, return_inverse=True)
    order = np.argsort(first)
    urls_in_order = table.list_urls()
    names = tuple(urls_in_order[number] for number in used[order].tolist())
    return Coverage(size, names, np.argsort(order)[file], start, stop)


def mask_covered(
    size: int, arrays: Iterable[tuple[ManifestArray, int]], *choices: Callable[[str], bool]
) -> list[npt.NDArray[np.bool_]]:
    """Return for each choice the mask of positions that are covered by one of the chosen files.

    ``arrays`` are as in `find_coverage`; a choice returns whether the file of a url is chosen.
    """
    found = np.zeros((len(choices), size), bool)
    known: tuple[SourceFile, ...] | None = None
    kept = np.zeros((len(choices), 0), bool)
    for array, axis in arrays:
        for fragment in array.fragments:
            edges = fragment.edges(axis)
            for files, codes, slabs in _iterate_chunks(fragment.manifest, axis):
                if files is not known:
                    # the codes of inline and of missing chunks index from the end
                    urls = [*(file.url for file in files), IN_THE_SET]
                    known = files
                    kept = np.array([[*map(chooses, urls), False] for chooses in choices])
                for marked, chosen in zip(found, kept, strict=True):
                    there = np.zeros(edges.size - 1, bool)
                    there[slabs[chosen[codes]]] = True
                    marked[edges[0] : edges[-1]] |= np.repeat(there, np.diff(edges))
    return list(found)


class _UrlTable:
    """Indexes of urls; the variables of an archive mostly share one table of files."""

    def __init__(self) -> None:
        self._urls: dict[str, int] = {}
        self._files: tuple[SourceFile, ...] | None = None
        self._numbers: Ints = np.zeros(0, np.int64)

    def number(self, files: tuple[SourceFile, ...]) -> Ints:
        """Return the index of the url of each file, as an array indexed by codes of a manifest."""
        if files is not self._files:
            # the codes of inline and of missing chunks index from the end
            urls = [*(file.url for file in files), IN_THE_SET, IN_THE_SET]
            numbers = [self._urls.setdefault(url, len(self._urls)) for url in urls]
            self._files, self._numbers = files, np.array(numbers)
        return self._numbers

    def list_urls(self) -> list[str]:
        """Return all urls, in the order of their indexes."""
        return list(self._urls)


FileRanges = tuple[tuple[SourceFile, ...], Codes, Ints, Ints]
"""A table of files, and for each range the code of its file, its start and its stop."""


def _find_file_ranges(
    fragment: Fragment, axis: int, urls: Collection[str] | None
) -> Iterator[FileRanges]:
    """Yield the ranges of an axis that are covered by the chunks of each file, or of some files."""
    edges = fragment.edges(axis)
    for files, codes, slabs in _iterate_chunks(fragment.manifest, axis):
        if urls is not None:
            kept = np.array([*(file.url in urls for file in files), IN_THE_SET in urls, False])
            codes, slabs = codes[kept[codes]], slabs[kept[codes]]
        # a file and a slab as one number, so that consecutive slabs of a file form a range
        keys = np.unique((codes - INLINE) * edges.size + slabs)
        ends = np.flatnonzero(np.diff(keys, prepend=-2, append=-2) != 1)
        first, last = keys[ends[:-1]], keys[ends[1:] - 1]
        file = first // edges.size + INLINE
        yield files, file, edges[first % edges.size], edges[last % edges.size + 1]


def _iterate_chunks(
    manifest: ChunkManifest, axis: int
) -> Iterator[tuple[tuple[SourceFile, ...], Codes, Ints]]:
    """Yield existing chunks in blocks: files, their codes, and their slabs along the axis."""
    if not manifest.size:
        return
    if manifest.is_loaded:
        file = np.moveaxis(compact(manifest.file), axis, 0)
        if len(file) < manifest.shape[axis]:
            file = np.broadcast_to(file, (manifest.shape[axis], *file.shape[1:]))
        codes = file.astype(np.int64).reshape(len(file), -1)
        slabs = np.broadcast_to(np.arange(len(file))[:, np.newaxis], codes.shape)
        there = codes != MISSING
        yield manifest.files, codes[there], slabs[there]
        return
    count, step = manifest.shape[axis], compute_strides(manifest.shape)[axis]
    for ids, part in iterate_references(manifest):
        yield part.files, part.file.astype(np.int64), ids // step % count


def _merge_ranges(ranges: Ints, size: int) -> Ints:
    """Merge the ranges of each file that touch or overlap; rows are file, start and stop."""
    file, start, stop = ranges[:, np.lexsort(ranges[1::-1])]
    if not file.size:
        return ranges
    # the files one after another on one long axis, each separated by a position
    shift = file * (size + 1)
    furthest = np.maximum.accumulate(stop + shift)
    first = np.flatnonzero(np.append(True, start[1:] + shift[1:] > furthest[:-1]))
    last = np.append(first[1:], file.size) - 1
    return np.stack([file[first], start[first], (furthest - shift)[last]])
