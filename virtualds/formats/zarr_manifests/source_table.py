"""The table of the files that manifests in Parquet number, in records.

``docs/reference/formats/zarr-v3.md`` specifies the form. The records of large tables note their
first and last path, so that a few files are found without the whole table.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from virtualds.chunks.projection import Ints
from virtualds.chunks.table import SourceColumns, SourceSummary
from virtualds.errors import FormatError
from virtualds.formats.referenced_files import MALFORMED_ERRORS
from virtualds.formats.zarr_manifests.set_files import Fingerprint, SetFiles
from virtualds.source_file import NO_NUMBER, SourceFile

RECORD_SIZE = 100_000
"""Rows in a record of a table."""
SHARED_TABLES = 1000
"""Tuples of at least so many files are shared between arrays, and tables of so many note paths."""
ABOVE = "../"
"""How relative paths to files outside of the set begin. No range is told of them: when the set is
moved they may still lead to the files, but a writer spells the paths to these files otherwise."""
PLAIN = (
    r"^(file://|(s3|gs|az|abfs|abfss|http|https)://[a-z0-9][a-z0-9_.-]*)"
    r"(/[^./\\:?#\x00-\x1f\x7f][^/\\:?#\x00-\x1f\x7f]*)+$"
)
"""Paths in a set that are urls in normal form already, as most are (see `resolve_url`)."""


PathRanges = tuple[tuple[str, str], ...]
"""The first and last path, in the order of text, of every record of a table."""


class SourceTable(NamedTuple):
    """The table of files that a manifest numbers: its folder, and its number of rows.

    ``ranges`` are known of large tables that this package has written. ``moved`` are the files that
    it numbers once theirs have moved: they are written when they are committed.
    """

    folder: str
    rows: int
    ranges: PathRanges = ()
    moved: tuple[SourceFile, ...] | None = None

    def move(self, store: SetFiles, change: Callable[[SourceFile], SourceFile]) -> SourceTable:
        """Return the table with what ``change`` makes of its files; arrays share the answer."""
        if self.moved is not None:
            return self._replace(moved=tuple(map(change, self.moved)))

        def made() -> SourceTable:
            known = self.read_files(store, np.arange(self.rows))
            files = tuple(map(change, known))
            return self if files == known else self._replace(moved=files)

        found: SourceTable = store.get_cached(("moved", self, change), made)
        return found

    def read_fingerprints(self, store: SetFiles, numbers: Ints) -> list[tuple[str, Fingerprint]]:
        """Return paths and fingerprints of files by their numbers."""
        found: list[tuple[str, Fingerprint]] = []
        for record, some in groupby(numbers.tolist(), key=lambda number: number // RECORD_SIZE):
            path = f"{self.folder}/{record}.parquet"
            rows = np.array(list(some)) % RECORD_SIZE
            last = record * RECORD_SIZE + int(rows.max())
            if not 0 <= last < self.rows:
                raise FormatError(
                    f"{store.root}/{path}: source {last} is asked for, and there are {self.rows}; "
                    f"the set is damaged"
                )
            found += _read_source_rows(store.read_record(path), rows, f"{store.root}/{path}")
        return found

    def read_columns(self, store: SetFiles) -> SourceColumns:
        """Return all files as columns: no object is made for each of a million files."""
        if self.moved is not None:
            return SourceColumns.of(self.moved)
        parts = [self._read_record_columns(store, n) for n in range(-(-self.rows // RECORD_SIZE))]
        if not parts:
            return SourceColumns.of(())
        return SourceColumns(*map(np.concatenate, zip(*parts, strict=True)))

    def _read_record_columns(self, store: SetFiles, number: int) -> SourceColumns:
        path, count = f"{self.folder}/{number}.parquet", self.rows - number * RECORD_SIZE
        rows = store.read_record(path)
        try:
            paths, etags = (rows[n].slice(0, count) for n in ("path", "etag"))
            numbers = (rows[n].slice(0, count).fill_null(NO_NUMBER) for n in ("size", "mtime"))
            sizes, mtimes = (np.asarray(n, np.int64) for n in numbers)
            return SourceColumns(_resolve_paths(store, paths), sizes, mtimes, _to_objects(etags))
        except MALFORMED_ERRORS as error:
            raise FormatError(
                f"{store.root}/{path}: it is not a record of sources ({error}); the set is damaged"
            ) from error

    def find_files(self, store: SetFiles, urls: Collection[str]) -> tuple[SourceFile, ...]:
        """Return the files of some urls; of a large table, only records that may have one are read.

        Arrays that share the table share the answer.
        """
        if self.moved is not None:
            return tuple(file for file in self.moved if file.url in urls)
        name = ("found", self.folder, frozenset(urls))
        found: tuple[SourceFile, ...] = store.get_cached(name, lambda: self._search(store, urls))
        return found

    def _search(self, store: SetFiles, urls: Collection[str]) -> tuple[SourceFile, ...]:
        numbers = [np.zeros(0, np.int64)]
        for record in self._find_records(store, urls):
            known = self._read_record_columns(store, record).urls
            met = np.fromiter((url in urls for url in known), bool, len(known))
            numbers.append(np.flatnonzero(met) + record * RECORD_SIZE)
        return self.read_files(store, np.concatenate(numbers))

    def _find_records(self, store: SetFiles, urls: Collection[str]) -> list[int]:
        """Return the numbers of the records that may have one of the urls."""
        everything = list(range(-(-self.rows // RECORD_SIZE)))
        if len(self.ranges) != len(everything):
            return everything
        paths = sorted({path for url in urls for path in store.spell_paths(url)})
        firsts = (bisect_left(paths, first) for first, _ in self.ranges)
        return [
            record
            for record, place in enumerate(firsts)
            if self.ranges[record][0].startswith(ABOVE)
            or (place < len(paths) and paths[place] <= self.ranges[record][1])
        ]

    def summarize(self, store: SetFiles) -> SourceSummary | None:
        """Return a summary of all files, made once for all arrays; None if they have moved."""
        if self.moved is not None:
            return None
        name = (store.root, self.folder, self.rows)
        found: SourceSummary = store.get_cached(
            name, lambda: SourceSummary(name[:2], *self._sum_files(store))
        )
        return found

    def _sum_files(self, store: SetFiles) -> tuple[int, int | None, str | None]:
        """Return how many files there are, their bytes if all are known, and the first."""
        import pyarrow.compute as pc

        nbytes: int | None = 0
        for begin in range(0, self.rows, RECORD_SIZE):
            path = f"{self.folder}/{begin // RECORD_SIZE}.parquet"
            sizes = store.read_record(path).get("size")
            wanted = min(self.rows - begin, RECORD_SIZE)
            if sizes is None or len(sizes) < wanted:
                raise FormatError(
                    f"{store.root}/{path}: it has not the sizes of {wanted} sources; the set is "
                    f"damaged"
                )
            sizes = sizes.slice(0, wanted)
            known = nbytes is not None and not sizes.null_count
            nbytes = nbytes + pc.sum(sizes).as_py() if known else None
        first = self.read_fingerprints(store, np.arange(min(self.rows, 1)))
        return self.rows, nbytes, first[0][0] if first else None

    def read_files(self, store: SetFiles, numbers: Ints) -> tuple[SourceFile, ...]:
        """Return files by their numbers; arrays share large tuples of the same numbers."""
        if self.moved is not None:
            return tuple(self.moved[number] for number in numbers.tolist())

        def made() -> tuple[SourceFile, ...]:
            return tuple(store.get_file(*one) for one in self.read_fingerprints(store, numbers))

        if numbers.size < SHARED_TABLES:
            return made()
        found: tuple[SourceFile, ...] = store.get_cached((self.folder, numbers.tobytes()), made)
        return found


def _read_source_rows(
    columns: Mapping[str, Any], rows: Ints, url: str
) -> list[tuple[str, Fingerprint]]:
    """Return paths and fingerprints from a record of a table of sources."""
    try:
        values = [columns[n].take(rows).to_pylist() for n in ("path", "size", "mtime", "etag")]
    except MALFORMED_ERRORS as error:
        raise FormatError(
            f"{url}: it is not a record of sources ({error}); the set is damaged"
        ) from error
    if not all(isinstance(path, str) and path for path in values[0]):
        raise FormatError(f"{url}: it has sources without a path; the set is damaged")
    rows_of_it = zip(*values, strict=True)
    return [(path, (size, mtime, etag)) for path, size, mtime, etag in rows_of_it]


def _to_objects(column: Any) -> Any:
    """Return a column of text as an array of strings, with None for those that are not there."""
    return np.asarray(column.to_numpy(), object)


def _resolve_paths(store: SetFiles, paths: Any) -> Any:
    """Return the urls of paths in a set."""
    import pyarrow.compute as pc

    urls = _to_objects(paths)
    plain = pc.match_substring_regex(paths, PLAIN)
    for row in np.flatnonzero(~np.asarray(plain.fill_null(False).to_numpy(), bool)).tolist():
        urls[row] = store.get_file(urls[row]).url
    return urls


def list_path_ranges(paths: Sequence[str]) -> list[list[str]]:
    """Return the first and last path of every record of a large table.

    Nothing is returned of a small table, or if a relative path leads out of the set.
    """
    if len(paths) < SHARED_TABLES or any(path.startswith(ABOVE) for path in paths):
        return []
    records = (paths[n : n + RECORD_SIZE] for n in range(0, len(paths), RECORD_SIZE))
    return [[min(some), max(some)] for some in records]
