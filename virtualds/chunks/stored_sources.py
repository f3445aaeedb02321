"""What a reference set knows of its files without a look at each reference."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from virtualds.chunks.lazy_manifest import LazyManifest
from virtualds.chunks.manifest import ChunkManifest
from virtualds.chunks.projection import Ints
from virtualds.chunks.reference_table import RowCounting
from virtualds.source_file import NO_NUMBER, SourceFile


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


@runtime_checkable
class CountedTable(Protocol):
    """A table of references that knows how many of them lie in each file."""

    def count_sources(self, start: int, stop: int) -> CountedSources:
        """Count the files that the rows ``start`` to ``stop`` lie in."""


@runtime_checkable
class SearchedTable(Protocol):
    """A table of references that finds files without listing all."""

    def find_sources(self, urls: Collection[str]) -> tuple[SourceFile, ...]:
        """Return those of its files that have one of the urls."""


def count_stored(manifest: ChunkManifest) -> CountedSources | None:
    """Count the chunks of each file where the set can; None if its references have to be read."""
    if not isinstance(manifest, LazyManifest):
        return None
    counting = manifest.counting
    stretch = _find_stretch(counting)
    if stretch is None or not isinstance(counting.table, CountedTable):
        return None
    return counting.table.count_sources(*stretch)


def find_listed(manifest: ChunkManifest, urls: Collection[str]) -> tuple[SourceFile, ...]:
    """Return those of the files that a manifest lists which have one of the urls."""
    if isinstance(manifest, LazyManifest):
        table = manifest.counting.table
        if isinstance(table, SearchedTable):
            return table.find_sources(urls)
    return tuple(file for file in manifest.listed if file.url in urls)


def _find_stretch(counting: RowCounting) -> tuple[int, int] | None:
    """Return the rows ``start, stop`` that chunks count, each once; None if they lie otherwise."""
    low, length = counting.first, 1
    long = [(s, n) for s, n in zip(counting.strides, counting.shape, strict=True) if n != 1]
    for stride, count in sorted(long, key=lambda pair: abs(pair[0])):
        if abs(stride) != length:
            return None
        low += min(stride, 0) * (count - 1)
        length *= count
    return low, low + length
