"""Chunk manifests in Parquet: records of references, and of the files that they number.

``docs/reference/formats/zarr-v3.md`` specifies the form. Both are tables of any number of rows, cut
into files of `RECORD_SIZE` rows, which are read when a row is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple, Protocol

import numpy as np

from virtualds.chunks.columns import INLINE
from virtualds.chunks.manifest import ChunkManifest
from virtualds.chunks.projection import Ints, find_distinct
from virtualds.chunks.record_cache import read_parquet, read_rows
from virtualds.chunks.reference_table import SourceSummary
from virtualds.errors import FormatError, VirtualdsError
from virtualds.formats.referenced_files import MALFORMED_ERRORS, UNKNOWN
from virtualds.formats.zarr_manifests.json_rows import Fingerprint
from virtualds.source_file import SourceFile

RECORD_SIZE = 100_000
"""Rows in a record of a table."""
SHARED_TABLES = 1000
"""Tuples of at least so many files are shared between arrays."""


class SetRecords(Protocol):
    """The set that a table lies in."""

    root: str

    def get_file(self, path: str, fingerprint: Any = UNKNOWN) -> SourceFile:
        """Return the file of a path in the set."""

    def read_record(self, path: str) -> dict[str, Any]:
        """Return the columns of a record, as `read_columns` makes them."""

    def get_cached(self, name: Hashable, read: Callable[[], Any]) -> Any:
        """Return what ``read`` makes, and keep it for a while."""


class SourceTable(NamedTuple):
    """The table of files that a manifest numbers: its folder, and its number of rows."""

    folder: str
    rows: int

    def read_fingerprints(self, store: SetRecords, numbers: Ints) -> list[tuple[str, Fingerprint]]:
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

    def read_columns(self, store: SetRecords, unknown: int) -> tuple[Any, Any, Any, Any]:
        """Return the urls, sizes, times and etags of all files, as columns.

        ``unknown`` stands for a size or time that is not noted, None for an etag.
        """
        parts: list[tuple[Any, ...]] = []
        for begin in range(0, self.rows, RECORD_SIZE):
            path = f"{self.folder}/{begin // RECORD_SIZE}.parquet"
            rows, count = store.read_record(path), min(self.rows - begin, RECORD_SIZE)
            try:
                paths, etags = (_to_objects(rows[n].slice(0, count)) for n in ("path", "etag"))
                numbers = (rows[n].slice(0, count).fill_null(unknown) for n in ("size", "mtime"))
                parts.append((paths, *(np.asarray(n, np.int64) for n in numbers), etags))
            except MALFORMED_ERRORS as error:
                raise FormatError(
                    f"{store.root}/{path}: it is not a record of sources ({error}); the set is "
                    f"damaged"
                ) from error
        urls, sizes, mtimes, etags = (np.concatenate(c) for c in zip(*parts, strict=True))
        for row in [n for n, path in enumerate(urls) if "://" not in path]:
            urls[row] = store.get_file(urls[row]).url
        return urls, sizes, mtimes, etags

    def summarize(self, store: SetRecords) -> SourceSummary:
        """Return a summary of all files, made once for all arrays."""
        name = (store.root, self.folder, self.rows)
        found: SourceSummary = store.get_cached(
            name, lambda: SourceSummary(name[:2], *self._sum_files(store))
        )
        return found

    def _sum_files(self, store: SetRecords) -> tuple[int, int | None, str | None]:
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

    def read_files(self, store: SetRecords, numbers: Ints) -> tuple[SourceFile, ...]:
        """Return files by their numbers; arrays share large tuples of the same numbers."""

        def made() -> tuple[SourceFile, ...]:
            return tuple(store.get_file(*one) for one in self.read_fingerprints(store, numbers))

        if numbers.size < SHARED_TABLES:
            return made()
        found: tuple[SourceFile, ...] = store.get_cached((self.folder, numbers.tobytes()), made)
        return found


@dataclass(frozen=True)
class ParquetTable:
    """References in records of Parquet.

    Parameters
    ----------
    store : SetRecords
    folder : str
        Path of the records in the set.
    rows : int
        Number of rows.
    sources : SourceTable
    has_pipelines : bool
        Whether rows have a pipeline.
    pipelines : int
        Number of pipelines.
    """

    store: SetRecords
    folder: str
    rows: int
    sources: SourceTable
    has_pipelines: bool = False
    pipelines: int = 1

    def describe_rows(self) -> dict[str, Any]:
        """Return what metadata say of its rows."""
        return {"rows": self.rows}

    def load(self, ids: Ints) -> ChunkManifest:
        """Return the rows of these numbers, in their shape, with the files that they lie in."""
        return read_rows(ids, RECORD_SIZE, self._read_record)

    def list_numbers(self) -> None:
        """Return None: any chunk may exist."""

    def list_sources(self) -> tuple[SourceFile, ...]:
        """Return all files of the table of sources."""
        return self.sources.read_files(self.store, np.arange(self.sources.rows))

    def find_used_sources(self) -> Ints:
        """Return the numbers of the files that chunks lie in."""
        used = np.zeros(self.sources.rows, bool)
        for begin in range(0, self.rows, RECORD_SIZE):
            path = f"{self.folder}/{begin // RECORD_SIZE}.parquet"
            try:
                source = self.store.read_record(path)["source"][: self.rows - begin]
                used[source[source >= 0]] = True
            except MALFORMED_ERRORS as error:
                raise FormatError(
                    f"{self.store.root}/{path}: it is not a record of references ({error}); the "
                    f"set "
                    f"is damaged"
                ) from error
        return np.flatnonzero(used)

    def summarize_sources(self) -> SourceSummary:
        """Return a summary of the table of sources."""
        return self.sources.summarize(self.store)

    def _read_record(self, number: int, rows: Ints) -> ChunkManifest:
        path = f"{self.folder}/{number}.parquet"
        try:
            columns = self.store.read_record(path)
            return self._build_manifest(columns, rows)
        except VirtualdsError as error:
            error.add_note(f"record {path} of {self.store.root}")
            raise
        except MALFORMED_ERRORS as error:
            raise FormatError(
                f"{self.store.root}/{path}: it is not a record of references ({error}); the set is "
                f"damaged"
            ) from error

    def _build_manifest(self, columns: Mapping[str, Any], rows: Ints) -> ChunkManifest:
        source, offset, length = (columns[n][rows] for n in ("source", "offset", "length"))
        used = find_distinct(source[source >= 0], self.sources.rows)
        file = np.where(source >= 0, np.searchsorted(used, source), source)
        held = np.flatnonzero(source == INLINE)
        inline = [columns["data"][int(rows[k])].as_py() for k in held.tolist()]
        if None in inline:
            raise ValueError("a chunk that stands in it has no data")
        pipeline = columns["pipeline"][rows] if self.has_pipelines else np.zeros(rows.shape, int)
        if pipeline.size and not 0 <= pipeline.min() <= pipeline.max() < self.pipelines:
            raise ValueError(f"pipelines {pipeline.min()} to {pipeline.max()} of {self.pipelines}")
        return ChunkManifest.build(
            rows.shape,
            files=self.sources.read_files(self.store, used),
            inline=inline,
            file=file,
            offset=np.where(source == INLINE, np.cumsum(source == INLINE) - 1, offset),
            length=length,
            pipeline=pipeline,
            checksum=columns["checksum"][rows] if "checksum" in columns else 0,
        )


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


def read_columns(data: bytes, url: str) -> dict[str, Any]:
    """Return the columns of a record: integers as arrays, nullable columns as Arrow arrays."""
    import pyarrow as pa

    table = read_parquet(data, url)
    found = {}
    for name in table.column_names:
        column = table[name]
        plain = pa.types.is_integer(column.type) and name not in ("size", "mtime")
        found[name] = column.to_numpy() if plain else column
    return found
