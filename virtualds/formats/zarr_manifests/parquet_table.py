"""Read and write chunk manifests in Parquet: tables of references and of the referenced files.

``docs/reference/formats/zarr-v3.md`` specifies the form. Both kinds of tables are split into
records of `RECORD_SIZE` rows, which are read when a row is needed. If there are few references on a
huge grid, rows have the index of their chunk, in ascending order, so that one record is read for
one chunk.

JSON entries of chunk manifests are encoded here as well.
"""

from __future__ import annotations

import base64
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import groupby, islice
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from virtualds.chunks.columns import (
    INLINE,
    MISSING,
    CountedSources,
    Ints,
    ReferenceTable,
    SourceColumns,
    SourceSummary,
    find_distinct,
    find_rows,
)
from virtualds.chunks.manifest import ChunkManifest, gather_references, iterate_blocks
from virtualds.chunks.tables import read_rows, scatter_references
from virtualds.errors import FormatError, VirtualdsError, make_damage_error
from virtualds.formats import MALFORMED_ERRORS
from virtualds.formats.kerchunk.records import encode_inline
from virtualds.formats.referenced_files import Fingerprint, NumberedFiles
from virtualds.formats.zarr import DOTTED_KEYS
from virtualds.formats.zarr.v3_arrays import ManifestPart, find_equal_runs
from virtualds.formats.zarr_manifests.set_files import SetFiles
from virtualds.progress import Advance
from virtualds.reading.threads import fetch_many
from virtualds.source_file import CHECKSUM_FLAG, NO_NUMBER, SourceFile

RECORD_SIZE = 100_000
"""The number of rows in a record of a table."""
MIN_LARGE_TABLE = 1000
"""The minimum number of files of a large table, whose files are cached and ranges recorded."""
PARENT_PREFIX = "../"
"""The start of relative paths to files outside of the set. No ranges are recorded for a table with
one, since writers write other paths for the same files after the set was moved."""
NORMALISED_URL = (
    r"^(file://|(s3|gs|az|abfs|abfss|http|https)://[a-z0-9][a-z0-9_.-]*)"
    r"(/[^./\\:?#\x00-\x1f\x7f][^/\\:?#\x00-\x1f\x7f]*)+$"
)
"""Matches paths that are already normalised urls, as most paths are (see `resolve_url`)."""
PathRanges = tuple[tuple[str, str], ...]
"""The first and last path, in the order of strings, of every record of a table."""
COUNTS = "counts.parquet"
"""The file with the counts in the folder of a table, if they are not in the metadata."""
MAX_RUNS = 8
"""Maximum number of runs that are stored in the metadata."""


class Counts(NamedTuple):
    """The number of chunks of a table in each source file.

    They are given as runs of ``(number of files, chunks in each of them)``, or in a file of the set
    at ``path``. If both are empty, the table has no counts.
    """

    runs: tuple[tuple[int, int], ...] = ()
    path: str = ""


NO_COUNTS = Counts()


def count_numbers(numbers: npt.NDArray[np.signedinteger[Any]]) -> tuple[int, Ints]:
    """Return the smallest number, and the counts from it on; ignore negative numbers."""
    numbers = numbers[numbers >= 0]
    low = int(numbers.min()) if numbers.size else 0
    return low, np.bincount(numbers - low)


def add_counts(parts: Iterable[tuple[int, Ints]], length: int) -> Ints:
    """Return the sum of counts, each of which begins at the given number."""
    total = np.zeros(length, np.int64)
    for low, counts in parts:
        total[low : low + counts.size] += counts
    return total


def describe_counts(counts: Counts) -> dict[str, Any]:
    """Return the entry of counts in the metadata of a table."""
    if counts.path:
        return {"counts": {"must_understand": False, "path": counts.path}}
    if not counts.runs:
        return {}
    # lists as in parsed JSON, since documents are also used before they are written
    return {"counts": {"must_understand": False, "runs": [list(run) for run in counts.runs]}}


def read_counts(value: Any) -> Counts:
    """Return the counts that the metadata of a table describes."""
    match value:
        case None:
            return NO_COUNTS
        case {"path": str() as name} if name == COUNTS:
            return Counts(path=name)
        case {"runs": [*runs]} if all(
            isinstance(run, list) and [type(n) for n in run] == [int, int] for run in runs
        ):
            return Counts(tuple((files, chunks) for files, chunks in runs))
    raise make_damage_error(f"{value!r:.80} are not the counts of a table", "set")


# ---------------------------------------------------------------------- tables


@dataclass(frozen=True)
class ParquetTable(ReferenceTable):
    """A table of references in Parquet records, with ``rows`` rows, in a folder of the set.

    With ``has_pipelines``, rows refer to one of the ``pipelines``. ``counts`` is the number of rows
    per file, if the set has recorded it. If rows have the index of their chunk, ``begins`` is the
    first index in every record, and chunks without a row are missing.
    """

    store: SetFiles
    folder: str
    rows: int
    sources: SourceTable
    has_pipelines: bool = False
    pipelines: int = 1
    counts: Counts = NO_COUNTS
    begins: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.begins is not None and len(self.begins) != -(-self.rows // RECORD_SIZE):
            raise make_damage_error(
                f"{self.folder}: {self.rows} chunks in {len(self.begins)} records of {RECORD_SIZE}",
                "set",
            )

    @property
    def owner(self) -> str:
        return self.store.root

    def describe_rows(self) -> dict[str, Any]:
        """Return the entries of the rows in the metadata."""
        if self.begins is not None:
            return {"chunks": self.rows, "begins": list(self.begins)}
        return {"rows": self.rows, **describe_counts(self.counts)}

    def load(self, ids: Ints) -> ChunkManifest:
        if self.begins is None:
            return read_rows(ids, RECORD_SIZE, self._read_record)
        flat = ids.ravel()
        record = np.searchsorted(np.array(self.begins, np.int64), flat, "right") - 1
        row = np.full(flat.size, -1)
        for number in np.unique(record[record >= 0]).tolist():
            is_in_record = record == number
            position = find_rows(self._read_chunk_numbers(number), flat[is_in_record])
            row[is_in_record] = np.where(position < 0, -1, number * RECORD_SIZE + position)
        rows = read_rows(row[row >= 0], RECORD_SIZE, self._read_record)
        return scatter_references(rows, row >= 0).reshape(ids.shape)

    def find_existing_rows(self) -> Ints | None:
        if self.begins is None:
            return None
        numbers = [self._read_chunk_numbers(record) for record in range(len(self.begins))]
        return np.concatenate([np.zeros(0, np.int64), *numbers])

    def _read_chunk_numbers(self, record: int) -> Ints:
        """Return the flat indices of the chunks in a record."""
        path = f"{self.folder}/{record}.parquet"
        numbers, url = self.store.read_record(path).get("chunk"), f"{self.store.root}/{path}"
        rows = min(RECORD_SIZE, self.rows - record * RECORD_SIZE)
        if not isinstance(numbers, np.ndarray) or numbers.shape != (rows,):
            raise FormatError(f"{url}: it does not say which {rows} chunks it has")
        if numbers[0] != (self.begins or ())[record] or (numbers[1:] <= numbers[:-1]).any():
            raise FormatError(f"{url}: the indices of its chunks do not ascend")
        return numbers.astype(np.int64, copy=False)

    def list_sources(self) -> tuple[SourceFile, ...]:
        return self.sources.read_files(self.store, np.arange(self.sources.rows))

    def count_sources(self, start: int, stop: int) -> CountedSources | None:
        if self.begins is not None:
            return None
        chunks = self._read_counts() if (start, stop) == (0, self.rows) else None
        if chunks is None:
            chunks = self._count_rows(start, stop)
        # arrays share the tuple of moved files
        name = (self.store, self.sources.folder, self.sources.rows, id(self.sources.moved))
        return CountedSources(name, chunks, lambda: self.sources.read_columns(self.store))

    def with_files(self, change: Callable[[SourceFile], SourceFile]) -> ParquetTable:
        return replace(self, sources=self.sources.move(self.store, change))

    def find_sources(self, urls: Collection[str]) -> tuple[SourceFile, ...]:
        return self.sources.find_files(self.store, urls)

    def _read_counts(self) -> Ints | None:
        """Return the recorded number of rows per file, or None if there is none."""
        if self.counts == NO_COUNTS:
            return None
        runs: Any = self.counts.runs
        if self.counts.path:
            path = f"{self.folder}/{self.counts.path}"
            runs = np.transpose([self.store.read_column(path, n) for n in ("files", "chunks")])
        files, chunks = np.reshape(runs, (-1, 2)).T.astype(np.int64)
        is_valid = files.size and min(files.min(), chunks.min()) >= 0
        if not is_valid or files.sum() > self.sources.rows or files @ chunks > self.rows:
            raise make_damage_error(
                f"{self.store.root}/{self.folder}: its counts of chunks do not match its "
                f"{self.rows} rows and {self.sources.rows} files",
                "set",
            )
        return add_counts([(0, np.repeat(chunks, files))], self.sources.rows)

    def _count_rows(self, start: int, stop: int) -> Ints:
        """Return the number of rows per file, from the column ``source`` of the records."""
        if stop <= start:
            return np.zeros(self.sources.rows, np.int64)
        records = range(start // RECORD_SIZE, -(-stop // RECORD_SIZE))

        def count(record: int) -> tuple[int, Ints]:
            begin = record * RECORD_SIZE
            rows = slice(max(start - begin, 0), min(stop, self.rows) - begin)
            return self._count_record(f"{self.folder}/{record}.parquet", rows)

        root = self.store.root
        return add_counts(fetch_many(records, lambda _: root, count), self.sources.rows)

    def _count_record(self, path: str, rows: slice) -> tuple[int, Ints]:
        """Return the counts of files in rows of a record, as `count_numbers` does."""
        try:
            source = self.store.read_column(path, "source")[rows]
            if source.size and source.max() >= self.sources.rows:
                raise ValueError(f"source {source.max()} of {self.sources.rows}")
            return count_numbers(source)
        except MALFORMED_ERRORS as error:
            raise make_damage_error(
                f"{self.store.root}/{path}: it is not a record of references ({error})", "set"
            ) from error

    def summarize_sources(self) -> SourceSummary | None:
        return self.sources.summarize(self.store)

    def _read_record(self, number: int, rows: Ints) -> ChunkManifest:
        """Return the references in rows of a record."""
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
        """Return the references in rows of columns."""
        source, offset, length = (columns[n][rows] for n in ("source", "offset", "length"))
        used = find_distinct(source[source >= 0], self.sources.rows)
        file = np.where(source >= 0, np.searchsorted(used, source), source)
        inline_rows = np.flatnonzero(source == INLINE)
        inline = [columns["data"][int(rows[k])].as_py() for k in inline_rows.tolist()]
        if None in inline:
            raise ValueError("an inline chunk has no data")
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


# ---------------------------------------------------------------------- files
# The set records the first and last path of each record of a large table of files, so that a few
# files are found without reading the whole table.


class SourceTable(NamedTuple):
    """The table of files to which a manifest refers by index: its folder, and its number of rows.

    ``ranges`` are recorded for large tables. ``moved`` are the new files after files were moved;
    they are written when the change is committed.
    """

    folder: str
    rows: int
    ranges: PathRanges = ()
    moved: tuple[SourceFile, ...] | None = None

    def move(self, store: SetFiles, change: Callable[[SourceFile], SourceFile]) -> SourceTable:
        """Return the table with ``change`` applied to its files, cached for other arrays."""
        if self.moved is not None:
            return self._replace(moved=tuple(map(change, self.moved)))

        def apply() -> SourceTable:
            files_before = self.read_files(store, np.arange(self.rows))
            files = tuple(map(change, files_before))
            return self if files == files_before else self._replace(moved=files)

        moved_table: SourceTable = store.get_cached(("moved", self, change), apply)
        return moved_table

    def read_fingerprints(self, store: SetFiles, numbers: Ints) -> list[tuple[str, Fingerprint]]:
        """Return the paths and fingerprints of files by their indices."""
        fingerprints: list[tuple[str, Fingerprint]] = []
        for record, numbers_in_record in groupby(
            numbers.tolist(), key=lambda number: number // RECORD_SIZE
        ):
            path = f"{self.folder}/{record}.parquet"
            rows = np.array(list(numbers_in_record)) % RECORD_SIZE
            last = record * RECORD_SIZE + int(rows.max())
            if not 0 <= last < self.rows:
                raise make_damage_error(
                    f"{store.root}/{path}: source {last} is requested, but there are {self.rows}",
                    "set",
                )
            fingerprints += _read_source_rows(store.read_record(path), rows, f"{store.root}/{path}")
        return fingerprints

    def read_columns(self, store: SetFiles) -> SourceColumns:
        """Return all files as columns, without a Python object for each file."""
        if self.moved is not None:
            return SourceColumns.from_files(self.moved)
        parts = [self._read_record_columns(store, n) for n in range(-(-self.rows // RECORD_SIZE))]
        if not parts:
            return SourceColumns.from_files(())
        return SourceColumns(*map(np.concatenate, zip(*parts, strict=True)))

    def _read_record_columns(self, store: SetFiles, number: int) -> SourceColumns:
        """Return the files in a record as columns."""
        import pyarrow.compute as pc

        path, count = f"{self.folder}/{number}.parquet", self.rows - number * RECORD_SIZE
        rows = store.read_record(path)
        try:
            paths, etags = (rows[n].slice(0, count) for n in ("path", "etag"))
            numbers = (rows[n].slice(0, count).fill_null(NO_NUMBER) for n in ("size", "mtime"))
            sizes, mtimes = (np.asarray(n, np.int64) for n in numbers)
            urls, etags = (np.asarray(texts.to_numpy(), object) for texts in (paths, etags))
            is_normalised = (
                pc.match_substring_regex(paths, NORMALISED_URL).fill_null(False).to_numpy()
            )
            for row in np.flatnonzero(~np.asarray(is_normalised, bool)).tolist():
                urls[row] = store.get_file(urls[row]).url
            return SourceColumns(urls, sizes, mtimes, etags)
        except MALFORMED_ERRORS as error:
            raise make_damage_error(
                f"{store.root}/{path}: it is not a record of sources ({error})", "set"
            ) from error

    def find_files(self, store: SetFiles, urls: Collection[str]) -> tuple[SourceFile, ...]:
        """Return the files with given urls; the result is cached for other arrays.

        Of a large table, only records that may have one of the files are read.
        """
        if self.moved is not None:
            return tuple(file for file in self.moved if file.url in urls)

        def search() -> tuple[SourceFile, ...]:
            numbers = [np.zeros(0, np.int64)]
            for record in self._find_records(store, urls):
                record_urls = self._read_record_columns(store, record).urls
                is_found = np.fromiter((url in urls for url in record_urls), bool, len(record_urls))
                numbers.append(np.flatnonzero(is_found) + record * RECORD_SIZE)
            return self.read_files(store, np.concatenate(numbers))

        name = ("found", self.folder, frozenset(urls))
        files: tuple[SourceFile, ...] = store.get_cached(name, search)
        return files

    def _find_records(self, store: SetFiles, urls: Collection[str]) -> list[int]:
        """Return the indices of the records that may have one of the urls."""
        all_records = list(range(-(-self.rows // RECORD_SIZE)))
        if len(self.ranges) != len(all_records):
            return all_records
        paths = sorted({path for url in urls for path in store.find_written_paths(url)})
        firsts = (bisect_left(paths, first) for first, _ in self.ranges)
        return [
            record
            for record, position in enumerate(firsts)
            if self.ranges[record][0].startswith(PARENT_PREFIX)
            or (position < len(paths) and paths[position] <= self.ranges[record][1])
        ]

    def summarize(self, store: SetFiles) -> SourceSummary | None:
        """Return a cached summary of all files, or None if files were moved."""
        if self.moved is not None:
            return None
        name = (store.root, self.folder, self.rows)
        summary: SourceSummary = store.get_cached(
            name, lambda: SourceSummary(name[:2], *self._sum_files(store))
        )
        return summary

    def _sum_files(self, store: SetFiles) -> tuple[int, int | None, str | None]:
        """Return the number of files, their total size or None, and the first path or None."""
        import pyarrow.compute as pc

        nbytes: int | None = 0
        for begin in range(0, self.rows, RECORD_SIZE):
            path = f"{self.folder}/{begin // RECORD_SIZE}.parquet"
            sizes = store.read_record(path).get("size")
            count = min(self.rows - begin, RECORD_SIZE)
            if sizes is None or len(sizes) < count:
                raise FormatError(
                    f"{store.root}/{path}: it lacks sizes of its {count} sources; the set is "
                    f"damaged"
                )
            sizes = sizes.slice(0, count)
            is_known = nbytes is not None and not sizes.null_count
            nbytes = nbytes + pc.sum(sizes).as_py() if is_known else None
        first = self.read_fingerprints(store, np.arange(min(self.rows, 1)))
        return self.rows, nbytes, first[0][0] if first else None

    def read_files(self, store: SetFiles, numbers: Ints) -> tuple[SourceFile, ...]:
        """Return files by their indices; large tuples are cached for other arrays."""
        if self.moved is not None:
            return tuple(self.moved[number] for number in numbers.tolist())

        def read() -> tuple[SourceFile, ...]:
            return tuple(store.get_file(*row) for row in self.read_fingerprints(store, numbers))

        if numbers.size < MIN_LARGE_TABLE:
            return read()
        return store.get_cached_files((self.folder, numbers.tobytes()), read)


def _read_source_rows(
    columns: Mapping[str, Any], rows: Ints, url: str
) -> list[tuple[str, Fingerprint]]:
    """Return the paths and fingerprints in rows of a record of a table of files."""
    try:
        values = [columns[n].take(rows).to_pylist() for n in ("path", "size", "mtime", "etag")]
    except MALFORMED_ERRORS as error:
        raise make_damage_error(f"{url}: it is not a record of sources ({error})", "set") from error
    if not all(isinstance(path, str) and path for path in values[0]):
        raise make_damage_error(f"{url}: it has sources without a path", "set")
    tuples = zip(*values, strict=True)
    return [(path, (size, mtime, etag)) for path, size, mtime, etag in tuples]


# ---------------------------------------------------------------------- manifest files

MAX_ENTRIES = 2**16
"""The maximum number of chunks of a grid in which missing chunks also have an entry."""


def encode_entries(
    parts: Iterable[ManifestPart], name: Callable[[str], str], has_fragments: bool
) -> dict[str, dict[str, Any]]:
    """Return the chunks of parts as JSON entries by key.

    ``name`` returns the path to write for a url. With ``has_fragments``, keys begin with the index
    of the fragment.
    """
    entries: dict[str, dict[str, Any]] = {}
    for part in parts:
        ids, manifest = _list_entries(part.manifest, has_fragments)
        paths = [name(file.url) for file in manifest.files]
        columns = ("file", "offset", "length", "pipeline", "checksum")
        rows = zip(*(getattr(manifest, c).ravel().tolist() for c in columns), strict=True)
        keys = DOTTED_KEYS.list_keys(ids, part.manifest.shape, part.origin)
        for key, row in zip(keys, rows, strict=True):
            entries[f"{part.fragment}.{key}" if has_fragments else key] = _to_entry(
                row, paths, manifest
            )
    return entries


def _list_entries(manifest: ChunkManifest, has_fragments: bool) -> tuple[Ints, ChunkManifest]:
    """Return the chunks that have an entry: all chunks, or existing chunks in a large grid."""
    if manifest.size > MAX_ENTRIES or (manifest.missing_pipeline is not None and not has_fragments):
        return gather_references(manifest)
    return np.arange(manifest.size), manifest.loaded().reshape((manifest.size,))


def _to_entry(
    row: tuple[int, int, int, int, int], paths: list[str], manifest: ChunkManifest
) -> dict[str, Any]:
    """Return the JSON entry of a chunk."""
    file, offset, length, pipeline, checksum = row
    entry: dict[str, Any] = {"pipeline": pipeline} if pipeline else {}
    if file == MISSING:
        return entry
    if file == INLINE:
        entry["data"] = base64.b64encode(manifest.inline[offset]).decode()
    else:
        entry |= {"path": paths[file], "offset": offset, "length": length}
    return entry | ({"checksum": f"crc32:{checksum - CHECKSUM_FLAG:08x}"} if checksum else {})


class TableWriter:
    """Writes tables of references, and the table of the files to which they refer.

    ``put`` writes a file of the set, at a path that no other writer uses; ``name`` returns the path
    to write for a url.
    """

    def __init__(self, put: Callable[[str, bytes], None], name: Callable[[str], str]) -> None:
        self._put = put
        self._sources = NumberedFiles(name)

    def _number_sources(self, rows: ChunkManifest) -> npt.NDArray[np.int32]:
        """Return the index of the file of each row in the table of files."""
        # negative codes index from the end, so they map to themselves
        file_numbers = np.array([*self._sources.number_all(rows.files), INLINE, MISSING], np.int32)
        numbers: npt.NDArray[np.int32] = file_numbers[rows.file]
        return numbers

    def write_table(
        self, folder: str, manifest: ChunkManifest, has_pipelines: bool, advance: Advance
    ) -> Counts:
        """Write the rows of all chunks in C order, and return the number of rows per file.

        With ``has_pipelines``, rows have a pipeline.
        """
        import pyarrow as pa

        counts_of_records, names = list[tuple[int, Ints]](), ("files", "chunks")
        for record, (_, rows) in enumerate(iterate_blocks(manifest, block_size=RECORD_SIZE)):
            pruned = rows.prune()
            numbers = self._number_sources(pruned)
            counts_of_records.append(count_numbers(numbers))
            self._put(f"{folder}/{record}.parquet", _encode_record(pruned, numbers, has_pipelines))
            advance(rows.size)
        length = max((low + counts.size for low, counts in counts_of_records), default=0)
        runs = find_equal_runs(add_counts(counts_of_records, length))[:, ::-1]
        if len(runs) <= MAX_RUNS:
            return Counts(tuple((files, chunks) for files, chunks in runs.tolist()))
        arrays = {name: pa.array(column) for name, column in zip(names, runs.T, strict=True)}
        self._put(f"{folder}/{COUNTS}", _encode_parquet(arrays, names))
        return Counts(path=COUNTS)

    def write_sparse(
        self, folder: str, numbers: Ints, rows: ChunkManifest, advance: Advance
    ) -> None:
        """Write the rows of chunks with their flat indices, which are ascending."""
        for record, begin in enumerate(range(0, rows.size, RECORD_SIZE)):
            span = slice(begin, begin + RECORD_SIZE)
            part = rows.take(0, span).prune()
            data = _encode_record(part, self._number_sources(part), False, numbers[span])
            self._put(f"{folder}/{record}.parquet", data)
            advance(part.size)

    def write_sources(self, folder: str) -> SourceTable:
        """Write the table of files, after all other tables."""
        ranges = write_source_rows(folder, self._sources.iterate_rows(), self._put)
        return SourceTable(folder, len(self._sources.files), ranges)


def _encode_record(
    rows: ChunkManifest,
    source: npt.NDArray[np.int32],
    has_pipelines: bool,
    numbers: Ints | None = None,
) -> bytes:
    """Return a record of references, with the indices of chunks if ``numbers`` are given."""
    import pyarrow as pa

    is_in_file = rows.file >= 0
    columns: dict[str, Any] = {
        "source": source,
        "offset": np.where(is_in_file, rows.offset, 0),
        "length": np.where(rows.file == MISSING, 0, rows.length),
    }
    if numbers is not None:
        columns["chunk"] = numbers
    if has_pipelines:
        columns["pipeline"] = np.asarray(rows.pipeline, np.uint16)
    if rows.checksum.any():
        columns["checksum"] = np.asarray(rows.checksum, np.uint64)
    arrays = {name: pa.array(column) for name, column in columns.items()}
    if (rows.file == INLINE).any():
        arrays["data"] = encode_inline(rows, rows.file)
    return _encode_parquet(arrays, ("source", "offset", "length", "chunk"))


def write_source_rows(
    folder: str, rows: Iterable[tuple[str, Fingerprint]], write_file: Callable[[str, bytes], None]
) -> tuple[tuple[str, str], ...]:
    """Write the records of a table of files, given as written paths and fingerprints.

    Return the first and last path of every record of a large table; nothing for a small table, or
    if a relative path leads out of the set.
    """
    import pyarrow as pa

    types = {"path": pa.string(), "size": pa.int64(), "mtime": pa.int64(), "etag": pa.string()}
    ranges, count, leads_out = list[tuple[str, str]](), 0, False
    rows = iter(rows)
    while record := list(islice(rows, RECORD_SIZE)):
        columns = list(zip(*((path, *fingerprint) for path, fingerprint in record), strict=True))
        arrays = {n: pa.array(c, types[n]) for n, c in zip(types, columns, strict=True)}
        write_file(f"{folder}/{len(ranges)}.parquet", _encode_parquet(arrays, ()))
        paths, count = columns[0], count + len(record)
        leads_out = leads_out or any(path.startswith(PARENT_PREFIX) for path in paths)
        ranges.append((min(paths), max(paths)))
    return () if count < MIN_LARGE_TABLE or leads_out else tuple(ranges)


def _encode_parquet(arrays: Mapping[str, Any], delta: tuple[str, ...]) -> bytes:
    """Return columns as a Parquet file; ``delta`` names the columns to store as differences."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(
        pa.table(dict(arrays)),
        sink,
        compression="zstd",
        use_dictionary=[name for name in arrays if name in ("etag", "pipeline")],
        column_encoding={name: "DELTA_BINARY_PACKED" for name in delta if name in arrays},
        write_statistics=False,
    )
    return bytes(sink.getvalue())
