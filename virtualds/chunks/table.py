"""Tables of references, and how a manifest counts their rows.

A table has a row for each chunk of an array, and answers four questions: the rows of these numbers,
which rows may exist, which files have how many rows, and which of its files have these urls. A
manifest without columns is a view of a table: cropping, permuting and repeating axes only change
how rows are counted, as in a strided array.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from math import prod
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from virtualds.chunks.columns import Ints, compute_strides
from virtualds.source_file import NO_NUMBER, SourceFile

if TYPE_CHECKING:
    from virtualds.chunks.manifest import ChunkManifest

# ---------------------------------------------------------------------- files of tables
# What a reference set knows of its files without a look at each reference.


class SourceSummary(NamedTuple):
    """A set's summary of its files, without a look at each of them.

    ``name`` tells the list from others. ``nbytes`` is None where not all sizes are known.
    """

    name: Hashable
    number: int
    nbytes: int | None
    first: str | None


class SourceColumns(NamedTuple):
    """Urls and fingerprints of files, a row for each; `NO_NUMBER` and None are unknown."""

    urls: npt.NDArray[np.object_]
    sizes: npt.NDArray[np.int64]
    mtimes: npt.NDArray[np.int64]
    etags: npt.NDArray[np.object_]

    @classmethod
    def of(cls, files: Iterable[SourceFile]) -> SourceColumns:
        """Return the columns of files."""
        rows = [
            (
                file.url,
                NO_NUMBER if file.size is None else file.size,
                NO_NUMBER if file.mtime is None else file.mtime,
                file.etag,
            )
            for file in files
        ]
        urls, sizes, mtimes, etags = zip(*rows, strict=True) if rows else ((),) * 4
        return cls(
            np.array(urls, object),
            np.array(sizes, np.int64),
            np.array(mtimes, np.int64),
            np.array(etags, object),
        )

    def take(self, rows: npt.NDArray[np.bool_]) -> SourceColumns:
        """Return the rows of a mask."""
        urls, sizes, mtimes, etags = self
        return SourceColumns(urls[rows], sizes[rows], mtimes[rows], etags[rows])


class CountedSources(NamedTuple):
    """How many chunks lie in each file of a list.

    ``name`` tells the list from others, and ``read_files`` reads it: arrays share lists.
    """

    name: Hashable
    chunks: Ints
    read_files: Callable[[], SourceColumns]


# ---------------------------------------------------------------------- tables


class Table:
    """The references of one array, in C order of its chunks: rows that lie elsewhere.

    A format has to say how rows are loaded, and which files it lists; it overrides what it knows
    better than by looking at rows.
    """

    is_in_set: ClassVar[bool] = True
    """Whether the rows lie in a reference set, and stay there when arrays are joined."""

    is_in_source: ClassVar[bool] = False
    """Whether the rows are looked up in the index of a source file: they serve reading alone, and
    whoever takes references out of an array loads them first."""

    @property
    def has_pipelines(self) -> bool:
        """Whether every row has its own pipeline number; else all have number 0."""
        return False

    @property
    def owner(self) -> Hashable:
        """The set that the rows lie in, None where that is of no use to who writes to it."""
        return None

    @property
    def files(self) -> tuple[SourceFile, ...] | None:
        """The files that the column ``file`` of loaded rows counts, where they are known."""
        return None

    @property
    def rest(self) -> int | None:
        """The pipeline of rows that are not listed, of a table that has the others in memory."""
        return None

    @property
    def nbytes(self) -> int:
        """Bytes that the rows take in memory for good."""
        return 0

    @property
    def where(self) -> str:
        """Where the rows lie, for people; it costs nothing."""
        return ", whose references lie in a reference set"

    def load(self, ids: Ints) -> ChunkManifest:
        """Return the rows of these numbers, in their shape, with the files that they lie in."""
        raise NotImplementedError

    def list_numbers(self) -> Ints | None:
        """Return the numbers of the rows that may exist, rising; None if all rows may."""
        return None

    def list_sources(self) -> tuple[SourceFile, ...]:
        """Return all files that rows lie in, and maybe other files of the set."""
        return self.files or ()

    def summarize_sources(self) -> SourceSummary | None:
        """Return the set's summary of these files, None if they have to be listed."""
        return None

    def count_sources(self, start: int, stop: int) -> CountedSources | None:
        """Count the files of the rows ``start`` to ``stop``; None if rows have to be read."""
        return None

    def find_sources(self, urls: Collection[str]) -> tuple[SourceFile, ...]:
        """Return those of the files that have one of the urls."""
        return tuple(file for file in self.list_sources() if file.url in urls)

    def relocated(self, places: Sequence[tuple[SourceFile, int]]) -> Table | None:
        """Return the table with every file being a piece of another; None: rows have to be read."""
        return None

    def with_files(self, change: Callable[[SourceFile], SourceFile]) -> Table | None:
        """Return the table with what ``change`` makes of its files; None: rows have to be read."""
        return self.relocated([(change(file), 0) for file in self.files or ()])

    def pruned(self, manifest: ChunkManifest) -> ChunkManifest:
        """Return a manifest of the table with nothing that it does not need: itself, mostly."""
        return manifest

    def peek(self, rows: RowView) -> tuple[Ints | None, ChunkManifest] | None:
        """Return rows that are at hand, and their places; None if something had to be read.

        Without places, one row stands for all, but for where it begins.
        """
        return None


class RowView(NamedTuple):
    """The rows of a table that chunks have: ``first`` plus strides, in rows, times places.

    ``renumbered`` are the numbers in the array of the table's pipelines; by default their own.
    """

    table: Table
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    first: int = 0
    renumbered: tuple[int, ...] | None = None

    @property
    def is_in_order(self) -> bool:
        """Whether the chunks, in C order, are rows from the first one on."""
        steps = zip(self.shape, self.strides, compute_strides(self.shape), strict=True)
        return self.first == 0 and all(n == 1 or stride == step for n, stride, step in steps)

    @property
    def only(self) -> int:
        """The pipeline of every chunk of a table that has no pipelines."""
        return self.renumbered[0] if self.renumbered else 0

    @property
    def rest(self) -> int | None:
        """The pipeline of missing chunks, where the table knows that there is one."""
        rest = self.table.rest
        return rest if rest is None or self.renumbered is None else self.renumbered[rest]

    # ------------------------------------------------------------------ other rows

    def crop(self, axis: int, ids: slice) -> RowView:
        """Return the chunks of a slice along an axis."""
        start, stop, step = ids.indices(self.shape[axis])
        stride = self.strides[axis]
        return self._replace(
            shape=_replace_item(self.shape, axis, len(range(start, stop, step))),
            strides=_replace_item(self.strides, axis, stride * step),
            first=self.first + start * stride,
        )

    def transpose(self, axes: Sequence[int]) -> RowView:
        """Permute the axes."""
        shape, strides = (tuple(v[i] for i in axes) for v in (self.shape, self.strides))
        return self._replace(shape=shape, strides=strides)

    def reshape(self, shape: tuple[int, ...]) -> RowView | None:
        """Insert or remove axes of one chunk; None for other shapes."""
        long = [(n, s) for n, s in zip(self.shape, self.strides, strict=True) if n != 1]
        if [n for n in shape if n != 1] != [n for n, _ in long]:
            return None
        rest = iter(long)
        return self._replace(
            shape=shape, strides=tuple(0 if n == 1 else next(rest)[1] for n in shape)
        )

    def broadcast_to(self, shape: tuple[int, ...]) -> RowView:
        """Repeat the chunks along axes of one chunk."""
        pairs = zip(self.shape, self.strides, shape, strict=True)
        return self._replace(shape=shape, strides=tuple(0 if n == 1 else s for n, s, _ in pairs))

    def with_pipelines(self, numbers: Sequence[int]) -> RowView:
        """Renumber the pipelines: number ``i`` becomes ``numbers[i]``."""
        before = range(len(numbers)) if self.renumbered is None else self.renumbered
        after: tuple[int, ...] | None = tuple(numbers[i] for i in before)
        if not self.table.has_pipelines:
            number = numbers[self.only]
            after = (number,) if number else None
        return self._replace(renumbered=after)

    # ------------------------------------------------------------------ what is read

    def load(self, numbers: Ints) -> ChunkManifest:
        """Return the rows of these numbers, in their shape."""
        found = self.table.load(numbers)
        return found if self.renumbered is None else found.with_pipelines(self.renumbered)

    def cross(self, places: Sequence[Ints]) -> ChunkManifest:
        """Return the rows of the chunks where the places of all axes cross."""
        total: Ints = np.array(self.first, np.int64).reshape((1,) * len(places))
        for axis, (stride, ids) in enumerate(zip(self.strides, places, strict=True)):
            along = (1,) * axis + (-1,) + (1,) * (len(places) - axis - 1)
            total = total + (stride * ids).reshape(along)
        return self.load(total)

    def at(self, ids: Ints) -> ChunkManifest:
        """Return the rows of the chunks of flat numbers in C order, in the shape of the numbers."""
        if self.is_in_order:
            return self.load(np.asarray(ids, np.int64))
        numbers = np.full(ids.shape, self.first, np.int64)
        # numpy refuses numbers of a grid without axes
        found = np.unravel_index(ids, self.shape) if self.shape else ()
        for stride, places in zip(self.strides, found, strict=True):
            numbers += stride * places
        return self.load(numbers)

    def find_existing(self) -> Ints | None:
        """Return the numbers of the chunks that may exist, rising; None if all chunks may."""
        numbers = self.table.list_numbers()
        if numbers is None:
            return None
        if self.is_in_order:
            return numbers[: np.searchsorted(numbers, prod(self.shape))]
        return self._find_chunks_of(numbers)

    def _find_chunks_of(self, numbers: Ints) -> Ints | None:
        """Return which chunks count these rows; None where several may count one.

        The strides of a crop or permutation are like the digits of a number: each is at least the
        span of all smaller ones.
        """
        shape, strides = self.shape, self.strides
        long = [axis for axis, count in enumerate(shape) if count != 1]
        long.sort(key=lambda axis: -abs(strides[axis]))
        spans = [abs(strides[axis]) * (shape[axis] - 1) for axis in long]
        if any(abs(strides[axis]) <= sum(spans[k + 1 :]) for k, axis in enumerate(long)):
            return None
        # an axis that is counted backwards is counted from its end
        back = sum(strides[i] * (shape[i] - 1) for i in long if strides[i] < 0)
        rest = numbers - self.first - back
        inside, found, step = rest >= 0, np.zeros_like(numbers), compute_strides(shape)
        for axis in long:
            place, rest = np.divmod(rest, abs(strides[axis]))
            inside &= place < shape[axis]
            found += step[axis] * (place if strides[axis] > 0 else shape[axis] - 1 - place)
        return np.sort(found[inside & (rest == 0)])

    def find_stretch(self) -> tuple[int, int] | None:
        """Return the rows ``start, stop`` that are counted, each once; None for others."""
        low, length = self.first, 1
        long = [(s, n) for s, n in zip(self.strides, self.shape, strict=True) if n != 1]
        for stride, count in sorted(long, key=lambda pair: abs(pair[0])):
            if abs(stride) != length:
                return None
            low += min(stride, 0) * (count - 1)
            length *= count
        return low, low + length


def _replace_item(values: tuple[int, ...], axis: int, value: int) -> tuple[int, ...]:
    return (*values[:axis], value, *values[axis + 1 :])
