"""Read, write and compare records of kerchunk Parquet: files with references of one array.

kerchunk documentation, "References specification", section "Parquet references": record ``n`` has
the references of the chunks from ``n * record_size`` on, in C order over the chunk grid, in columns
``path``, ``offset``, ``size`` and ``raw``.

Records may come from virtualds or from other tools. Two tables of references are compared to find
the records of a set that change. Unchanged rows are not written, and rows from a set need not even
be read, since a lazy manifest records its table and rows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from virtualds.chunks.axes import find_runs
from virtualds.chunks.columns import (
    INLINE,
    MISSING,
    Ints,
    ReferenceTable,
    SourceSummary,
    pack_table,
    unpack_table,
)
from virtualds.chunks.manifest import BLOCK_CHUNKS, ChunkManifest
from virtualds.chunks.tables import (
    MAX_CACHED_ROWS,
    RecordCache,
    TiledReferences,
    iterate_other_parts,
    make_opening_id,
    read_parquet,
    read_rows,
    unpickle_shared,
)
from virtualds.errors import AccessError, FormatError, ReadError
from virtualds.formats import (
    MALFORMED_ERRORS,
    explain_malformed,
    make_malformed_error,
    make_unreachable_error,
)
from virtualds.formats.referenced_files import ReferencedFiles
from virtualds.formats.zarr import NOTES, ZMETADATA
from virtualds.formats.zarr.data_types import decode_strings, dtype_from_zarr_v2, encode_strings
from virtualds.formats.zarr.v2_arrays import read_chunk_grid
from virtualds.source_file import SourceFile, StorageOptions, make_relative
from virtualds.stores import find_store
from virtualds.stores.access_rules import AccessPolicy
from virtualds.stores.store import hash_version

WRITTEN = "records"
"""A key in the notes: the ranges of written records by array. The chunks of all other records are
missing."""
EARLIER = "earlier"
"""A key in the notes: earlier names of the set, which its older records still have."""


TOKEN = b"virtualds"
"""The key of the name of the set in the metadata of a record."""
WRITER = b"virtualds-writer"
"""The key of the name of the writer in the metadata of a record, which makes records distinct."""


RECORD_NAME = re.compile(r"refs\.(0|[1-9]\d{0,17})\.parq")
"""The name of a record in the folder of its array."""


def join_record_path(path: str, number: int) -> str:
    """Return the path of a record of an array in a set."""
    return f"{path}/refs.{number}.parq"


def find_record_ranges(
    url: str, options: StorageOptions | None
) -> dict[str, list[tuple[int, int]]]:
    """Return the ranges of records that exist in a folder, by array."""
    numbers_by_array: dict[str, list[int]] = {}
    for listed in find_store(url).list_files(url, options):
        path, _, name = listed.path.rpartition("/")
        if number := RECORD_NAME.fullmatch(name):
            numbers_by_array.setdefault(path, []).append(int(number[1]))
    return {path: find_runs(np.unique(numbers)) for path, numbers in numbers_by_array.items()}


# ---------------------------------------------------------------------- reading


def hash_document(document: Mapping[str, Any]) -> str:
    """Return a hash of the marker of a set, without the notes of virtualds."""
    contents = {key: value for key, value in document.items() if key != NOTES}
    return hash_version(json.dumps(contents, sort_keys=True).encode())


class RecordFolder:
    """The records of the set in a folder, each with ``size`` references; some are cached.

    ``notes`` are the notes of virtualds, with the token that records of this set must have.
    ``allow`` says to which files records may refer, and ``marker_hash`` is the `hash_document` of
    the marker.
    """

    def __init__(
        self,
        source: SourceFile,
        size: int,
        notes: Mapping[str, Any],
        allow: AccessPolicy,
        marker_hash: str = "",
    ) -> None:
        self.source = source
        self.size = size
        self.token: str | None = notes.get("set")
        self.earlier: Sequence[str] = notes.get(EARLIER, ())
        self.allow = allow
        self.fingerprints = notes.get("files", {})
        self.written: Mapping[str, Any] = notes.get(WRITTEN, {})
        # sets of other tools have no token, so their marker is compared with that at opening
        self._marker = None if self.token else self._describe_marker()
        self._marker_hash = marker_hash
        self._opening = make_opening_id()
        self._open()

    def _describe_marker(self) -> SourceFile | None:
        """Return the marker file in its current state, or None if there is none."""
        url = f"{self.source.url}/{ZMETADATA}"
        try:
            return find_store(url).describe(url, self.source.options)
        except FileNotFoundError:
            return None

    def _is_current(self) -> bool:
        """Return whether a set of another tool is unchanged, apart from a writer's fence."""
        if self._describe_marker() == self._marker:
            return True
        try:
            # bypass the cache of opened files
            url = f"{self.source.url}/{ZMETADATA}"
            found, _ = find_store(url).read_with_version(url, self.source.options)
            document = json.loads(found)
            return NOTES in document and hash_document(document) == self._marker_hash
        except (AttributeError, FileNotFoundError, TypeError, ValueError):
            return False

    def _open(self) -> None:
        """Create the caches, which are not pickled."""
        self._files = ReferencedFiles(self.source, self.fingerprints, self.allow)
        self._cache: RecordCache[ChunkManifest] = RecordCache(MAX_CACHED_ROWS // self.size)

    @property
    def name(self) -> tuple[Any, ...]:
        """The identity of the records: equal only for the same version of the same set."""
        return (*self.source, self.size, self.token, self.allow, self._marker)

    def __getstate__(self) -> dict[str, Any]:
        """Return the location of the records, without caches."""
        not_pickled = ("_files", "_cache", "source_summary")
        state = {name: value for name, value in self.__dict__.items() if name not in not_pickled}
        return state | {"fingerprints": pack_table(self.fingerprints)}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state, fingerprints=unpack_table(state["fingerprints"]))
        self._open()

    def __reduce__(self) -> tuple[Any, ...]:
        return unpickle_shared, (RecordFolder, self._opening, self.__getstate__())

    @cached_property
    def source_summary(self) -> SourceSummary | None:
        """A summary of the recorded files; None for sets of other tools."""
        if self.token is None:
            return None
        sizes = [
            fingerprint[0] if fingerprint else None for fingerprint in self.fingerprints.values()
        ]
        known_sizes = [size for size in sizes if size is not None]
        nbytes = sum(known_sizes) if len(known_sizes) == len(sizes) else None
        return SourceSummary(self.name, len(sizes), nbytes, next(iter(self.fingerprints), None))

    def read_rows(self, path: str, number: int, ids: Ints) -> ChunkManifest:
        """Return the references of chunks in one record, with their files.

        Chunks past the end of a record without padding are missing.
        """
        try:
            rows = self._read_record(path, number)
            return self._build_checked(rows.take(0, np.where(ids < rows.size, ids, -1)).prune())
        except (AccessError, FormatError, ReadError) as error:
            error.add_note(f"record refs.{number}.parq of {path} in {self.source.url}")
            raise

    def _read_record(self, path: str, number: int) -> ChunkManifest:
        """Return the references in a record, from the cache if possible."""
        runs = self.written.get(path)
        if runs is not None and not any(a <= number < b for a, b in runs):
            # records of missing chunks are not written
            return ChunkManifest.missing((1,))
        url = f"{self.source.url}/{join_record_path(path, number)}"
        return self._cache.get(url, lambda: self._fetch_record(url))

    def _fetch_record(self, url: str) -> ChunkManifest:
        """Return the references in the record at a url, after a check of its version."""
        if self.token is None and not self._is_current():
            raise ReadError(
                f"{url}: the set was replaced or changed after it was opened; open it again"
            )
        try:
            data = find_store(url).read_all(url, self.source.options)
        except FileNotFoundError as error:
            if self.token is None:
                # other tools leave out records of missing chunks
                return ChunkManifest.missing((1,))
            raise ReadError(
                f"{url}: it is gone; the set was replaced after it was opened, or is damaged: open "
                f"it again"
            ) from error
        except OSError as error:
            raise make_unreachable_error(url, error) from error
        table = read_parquet(data, url, ["path"])
        token = (table.schema.metadata or {}).get(TOKEN, b"").decode("utf-8", "replace")
        if self.token is not None and token not in (self.token, *self.earlier):
            raise ReadError(
                f"{url}: it belongs to another version of the set, which was replaced after you "
                f"opened it; open it again"
            )
        return self._parse_table(table, url, self.size)

    def parse(self, data: bytes, url: str) -> ChunkManifest:
        """Return the references in a record, without a check of its version."""
        table = read_parquet(data, url, ["path"])
        return self._parse_table(table, url, table.num_rows)

    def _parse_table(self, table: Any, url: str, max_rows: int) -> ChunkManifest:
        """Return the references in an Arrow table of at most ``max_rows`` rows."""
        import pyarrow as pa

        try:
            if table.num_rows > max_rows:
                raise FormatError(
                    f"a record has {table.num_rows} references, but record_size is {max_rows}"
                )
            return self._build_manifest(table)
        except (*MALFORMED_ERRORS, pa.ArrowException) as error:
            error.add_note(f"record {url}")
            if isinstance(error, FormatError):
                raise
            raise make_malformed_error(url, error) from error

    def get_file(self, url: str) -> SourceFile:
        """Return the file for a url in a record."""
        return self._files.get_file(url)

    def _build_manifest(self, table: Any) -> ChunkManifest:
        """Return the references in the rows of a record."""
        if not table.num_rows:
            return ChunkManifest.missing((1,))
        file, urls = read_urls(table)
        offset, length = (read_integers(table, name) for name in ("offset", "size"))
        is_inline, inline = read_inline(table)
        file = np.where(is_inline, INLINE, file)
        offset = np.where(is_inline, np.cumsum(is_inline) - 1, offset)
        lengths = np.fromiter(map(len, inline), np.int64, len(inline))
        length[is_inline] = lengths
        return ChunkManifest(
            files=tuple(self._files.get_file(url) for url in urls),
            file=file.astype(np.int32),
            offset=offset,
            length=length,
            pipeline=np.broadcast_to(np.uint16(0), file.shape),
            checksum=np.broadcast_to(np.uint64(0), file.shape),
            inline=tuple(inline),
        )

    def _build_checked(self, rows: ChunkManifest) -> ChunkManifest:
        """Return references after a check, with the lengths of chunks that are whole files."""
        offset, length = rows.offset, rows.length
        is_whole_file = (rows.file >= 0) & (length == 0)
        if is_whole_file.any():
            sizes = np.zeros(len(rows.files), np.int64)
            for number in np.unique(rows.file[is_whole_file]).tolist():
                sizes[number] = self._files.get_size(rows.files[number]) or 0
            length = np.where(is_whole_file, sizes[np.where(is_whole_file, rows.file, 0)], length)
            offset = np.where(is_whole_file, 0, offset)
        return ChunkManifest.build(
            rows.shape,
            files=rows.files,
            inline=rows.inline,
            file=rows.file,
            offset=offset,
            length=length,
        )


@dataclass(frozen=True, eq=False)
class RecordTable(ReferenceTable):
    """The references of one array in its records."""

    records: RecordFolder
    path: str
    count: int

    @property
    def _identity(self) -> tuple[Any, ...]:
        """The values by which tables are compared."""
        return (*self.records.name, self.path, self.count)

    @property
    def owner(self) -> tuple[Any, ...]:
        """The version of the set to which the records belong."""
        return self.records.name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RecordTable) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        return ("virtualds-records", *map(str, self._identity))

    def load(self, ids: Ints) -> ChunkManifest:
        return read_rows(ids, self.records.size, partial(self.records.read_rows, self.path))

    def find_existing_rows(self) -> Ints | None:
        if (runs := self.records.written.get(self.path)) is None:
            return None
        size, url = self.records.size, self.records.source.url
        with explain_malformed(url):
            cuts = [(int(a) * size, min(int(b) * size, self.count)) for a, b in runs]
        return np.concatenate([np.zeros(0, np.int64), *(np.arange(a, b) for a, b in cuts)])

    def list_sources(self) -> tuple[SourceFile, ...]:
        if self.records.token is None:
            # other tools record no files
            return ChunkManifest.from_table(self, (self.count,)).sources
        return tuple(map(self.records.get_file, self.records.fingerprints))

    def find_sources(self, urls: Collection[str]) -> tuple[SourceFile, ...]:
        records = self.records
        if records.token is None or records.allow.protocol is not None:
            return super().find_sources(urls)
        # virtualds writes absolute urls, or urls relative to the set
        texts = (text for url in urls for text in (url, make_relative(url, records.source.url)))
        found = {records.get_file(text) for text in texts if text in records.fingerprints}
        return tuple(file for file in found if file.url in urls)

    def summarize_sources(self) -> SourceSummary | None:
        return self.records.source_summary


# ---------------------------------------------------------------------- writing


def encode_record(
    chunks: ChunkManifest,
    name: Callable[[str], str],
    size: int,
    token: str | None,
    writer: str | None = None,
) -> bytes:
    """Encode references as a Parquet file, padded to the size of a record.

    ``name`` returns the url to write for the url of a file.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = _pad_column(np.asarray(chunks.file), size, MISSING)
    offset, length = (
        np.where(file >= 0, _pad_column(np.asarray(column), size, 0), 0)
        for column in (chunks.offset, chunks.length)
    )
    used, codes = np.unique(file[file >= 0], return_inverse=True)
    url_numbers = np.zeros(file.size, np.int32)
    url_numbers[file >= 0] = codes
    urls = pa.array([name(chunks.files[n].url) for n in used.tolist()], pa.string())
    path = pa.DictionaryArray.from_arrays(pa.array(url_numbers, mask=file < 0), urls)
    tags = {TOKEN: token, WRITER: writer}
    schema = pa.schema(
        [
            pa.field("path", path.type),
            pa.field("offset", pa.int64(), nullable=False),
            pa.field("size", pa.int64(), nullable=False),
            pa.field("raw", pa.binary()),
        ],
        {key: name.encode() for key, name in tags.items() if name is not None},
    )
    columns = [path, pa.array(offset), pa.array(length), encode_inline(chunks, file)]
    sink = pa.BufferOutputStream()
    pq.write_table(
        pa.table(columns, schema=schema),
        sink,
        compression="zstd",
        use_dictionary=["path"],
        # fastparquet reads integers as floats, unless statistics show that none is null
        write_statistics=["offset", "size"],
    )
    return bytes(sink.getvalue())


def encode_inline(chunks: ChunkManifest, file: npt.NDArray[Any]) -> Any:
    """Return the inline bytes of rows as an Arrow array, with null for other rows."""
    import pyarrow as pa

    if not (inline_rows := np.flatnonzero(file == INLINE)).size:
        return pa.nulls(file.size, pa.binary())
    values: list[bytes | None] = [None] * file.size
    for row, number in zip(inline_rows.tolist(), chunks.offset[inline_rows].tolist(), strict=True):
        values[row] = chunks.inline[number]
    return pa.array(values, pa.binary())


def _pad_column(column: npt.NDArray[Any], size: int, fill: int) -> npt.NDArray[Any]:
    """Return a column padded to a size."""
    return np.concatenate([column, np.full(size - column.size, fill, column.dtype)])


# ---------------------------------------------------------------------- columns
# Columns as pandas, Arrow and other tools write them.


def read_urls(table: Any) -> tuple[npt.NDArray[np.int32], list[str]]:
    """Return the index of the url of each row, -1 for rows without a url, and the urls."""
    import pyarrow as pa

    count = table.num_rows
    if "path" not in table.column_names or not _is_filled(table["path"]):
        return np.full(count, MISSING, np.int32), []
    column = table["path"]
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    column = column.unify_dictionaries().combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0) if column.num_chunks else pa.array([], column.type)
    codes = column.indices.fill_null(MISSING).to_numpy(zero_copy_only=False)
    urls = column.dictionary.cast(pa.string()).to_pylist()
    # Arrow does not check dictionary indices
    if codes.size and not MISSING <= int(codes.min()) <= int(codes.max()) < len(urls):
        raise FormatError(
            f"its column path has {len(urls)} urls, and a row with an index outside of them"
        )
    return codes.astype(np.int32), urls


def read_inline(table: Any) -> tuple[npt.NDArray[np.bool_], list[bytes]]:
    """Return a mask of the rows that have inline chunks, and these chunks."""
    import pyarrow as pa

    count = table.num_rows
    if "raw" not in table.column_names or not _is_filled(table["raw"]):
        return np.zeros(count, bool), []
    column = table["raw"]
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    is_inline = column.is_valid().to_numpy()
    return is_inline, column.cast(pa.large_binary()).drop_null().to_pylist()


def _is_filled(column: Any) -> bool:
    """Return whether a column has strings or bytes; pandas gives empty columns any type."""
    import pyarrow as pa

    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    is_number = pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_null(kind)
    return column.null_count < len(column) and not is_number


def read_integers(table: Any, name: str) -> npt.NDArray[np.int64]:
    """Return a column of integers, with zero for nulls and for NaN, which pandas writes."""
    if name not in table.column_names:
        return np.zeros(table.num_rows, np.int64)
    column = table[name].fill_null(0).to_numpy()
    if column.dtype.kind == "f":
        column = np.where(np.isnan(column), 0, column)
    return np.array(column, np.int64)


# ---------------------------------------------------------------------- changed rows

STRING_FILTERS = [{"id": "vlen-utf8"}]
"""The filters for variable-length strings."""


@dataclass(frozen=True)
class ArrayChunks:
    """The ``.zarray`` and the chunks of an array that is in a set or will be written to it."""

    metadata: Mapping[str, Any]
    manifest: ChunkManifest


class RecordChanges(NamedTuple):
    """The effect of a change on the records of an array.

    ``records`` are the indices of records whose rows change. ``keeps`` says whether all old rows
    stay the same for readers; elements of the last chunk past the end of the array may change.
    """

    records: set[int]
    keeps: bool


def find_changed_records(before: ArrayChunks, after: ArrayChunks, size: int) -> RecordChanges:
    """Compare the rows of an array with the rows of a set, record by record.

    Rows of the set that keep their position are not read.
    """
    old, new = before.manifest, after.manifest
    shapes = [tuple(a.metadata["shape"]) for a in (before, after)]
    is_same_numbering = len(shapes[0]) == len(shapes[1]) and old.shape[1:] == new.shape[1:]
    # with longer chunks, an array of the same shape has fewer of them
    shrinks = shapes[0] > shapes[1] or new.size < old.size
    keeps = is_same_numbering and shapes[0][1:] == shapes[1][1:] and not shrinks
    if not old.size:
        keeps, old = True, ChunkManifest.missing((0,))
    common = min(old.size, new.size)
    # a record with a new row is written even if that chunk is missing
    changed = set(range(common // size, -(-new.size // size))) if common < new.size else set[int]()
    for ids in _iterate_changed_rows(old, new, common):
        for part in np.split(ids, np.flatnonzero(np.diff(ids // size)) + 1):
            is_same = find_same_rows(old.at(part), new.at(part))
            if not is_same.all():
                changed.add(int(part[0]) // size)
                keeps = keeps and all(
                    _is_extended(before, after, int(row)) for row in part[~is_same]
                )
    return RecordChanges(changed, keeps)


def split_like(before: ArrayChunks, after: ArrayChunks) -> ArrayChunks:
    """Return an array whose values in memory are split into chunks as in the set.

    New values at the end of an array then become new rows at the end of its table. Other arrays,
    and values that are stored in another way, are returned unchanged.
    """
    old, new = before.metadata, after.metadata
    whole_shape = [max(n, 1) for n in new["shape"]]
    if not (
        after.manifest.is_loaded
        and after.manifest.inline
        and after.manifest.size
        and list(new["chunks"]) == whole_shape
        and _is_unencoded(new)
        and _is_unencoded(old)
        and new["dtype"] == old["dtype"]
        and whole_shape[:1]
        and list(old["chunks"][1:]) == whole_shape[1:]
    ):
        return after
    length = old["chunks"][0]
    metadata = {**new, "chunks": [length, *whole_shape[1:]]}
    chunks = _split_inline_values(after.manifest.inline[0], metadata)
    numbers, lengths = np.arange(len(chunks)), np.array([len(chunk) for chunk in chunks])
    manifest = ChunkManifest.build(
        numbers.shape, file=INLINE, offset=numbers, length=lengths, inline=chunks
    ).reshape(read_chunk_grid(metadata))
    return ArrayChunks(metadata, manifest)


def iterate_other_sources(
    manifest: ChunkManifest, is_known: Callable[[ReferenceTable], bool]
) -> Iterator[SourceFile]:
    """Yield the files of chunks, without those in known tables, which are not read."""
    for part in iterate_other_parts(manifest, is_known):
        yield from part.prune().sources


# ---------------------------------------------------------------------- unchanged rows


def _iterate_changed_rows(old: ChunkManifest, new: ChunkManifest, common: int) -> Iterator[Ints]:
    """Yield the indices of rows below ``common`` that may differ, in blocks."""
    runs, before, after = _find_kept_rows(old, new), old.find_existing(), new.find_existing()
    ends = [*(edge for run in runs for edge in run), common]
    # rows that exist in neither manifest are missing in both
    existing = None if before is None or after is None else np.union1d(before, after)
    for begin, end in zip([0, *ends[1::2]], ends[::2], strict=True):
        selected = (
            existing[(existing >= begin) & (existing < end)] if existing is not None else None
        )
        count = end - begin if selected is None else selected.size
        for first in range(0, count, BLOCK_CHUNKS):
            ids = np.arange(first, min(first + BLOCK_CHUNKS, count))
            yield begin + ids if selected is None else selected[ids]


def _find_kept_rows(old: ChunkManifest, new: ChunkManifest) -> list[tuple[int, int]]:
    """Return the ranges of rows that come from the same rows of the set, without reading them."""
    ranges = list[tuple[int, int]]()
    table = new.get_table(TiledReferences)
    parts = [((0,) * len(new.shape), new)]
    if table is not None and new.shape == table.grid and new.is_row_range(table):
        parts = [] if table.has_overlaps else sorted(table.parts, key=lambda part: part[0])
    for origin, part in parts:
        begin = int(np.ravel_multi_index(origin, new.shape)) if origin and part.size else 0
        end = min(begin + part.size, old.size)
        is_run = part.shape[1:] == new.shape[1:] and part.is_row_range(old.table, begin)
        if begin < end and is_run:
            ranges.append((begin, end))
    return ranges


def find_same_rows(left: ChunkManifest, right: ChunkManifest) -> npt.NDArray[np.bool_]:
    """Return a mask of the rows in which two manifests refer to the same bytes."""
    if right.files[: len(left.files)] == left.files:
        # the table of files has grown, as in an append
        numbers = np.arange(len(right.files))
        tables = [numbers[: len(left.files)], numbers]
    else:
        file_numbers: dict[str, int] = {}
        tables = [
            np.array(
                [file_numbers.setdefault(file.url, len(file_numbers)) for file in rows.files],
                np.int64,
            )
            for rows in (left, right)
        ]
    # `INLINE` and `MISSING` index the last two elements, so they map to themselves
    first, second = (
        np.append(table, (INLINE, MISSING))[rows.file]
        for table, rows in zip(tables, (left, right), strict=True)
    )
    is_same_range = (left.offset == right.offset) & (left.length == right.length)
    is_same = np.asarray((first == second) & (is_same_range | (first < 0)), np.bool_)
    for row in np.flatnonzero(is_same & (first == INLINE)).tolist():
        is_same[row] = left.inline[left.offset[row]] == right.inline[right.offset[row]]
    return is_same


# ---------------------------------------------------------------------- values in memory


def _is_unencoded(metadata: Mapping[str, Any]) -> bool:
    """Return whether chunks of an array store values without codecs, in C order."""
    filters = metadata.get("filters") or []
    has_no_filters: bool = filters == (STRING_FILTERS if metadata["dtype"] == "|O" else [])
    return (
        has_no_filters
        and metadata.get("compressor") is None
        and metadata.get("order") in ("C", None)
    )


def _is_extended(before: ArrayChunks, after: ArrayChunks, row: int) -> bool:
    """Return whether a chunk differs only in elements past the end of the old array."""
    shape, chunks = before.metadata["shape"], before.metadata["chunks"]
    is_same_layout = all(before.metadata[k] == after.metadata[k] for k in ("chunks", "dtype"))
    if not (shape and is_same_layout and all(_is_unencoded(a.metadata) for a in (before, after))):
        return False
    ids = np.array([row])
    old, new = (a.manifest.at(ids) for a in (before, after))
    if old.file[0] != INLINE or new.file[0] != INLINE:
        return False
    slab = row // prod(before.manifest.shape[1:])
    count = min(shape[0] - slab * chunks[0], chunks[0]) * prod(chunks[1:])
    old_bytes, new_bytes = (rows.inline[int(rows.offset[0])] for rows in (old, new))
    if before.metadata["dtype"] == "|O":
        return bool((decode_strings(old_bytes)[:count] == decode_strings(new_bytes)[:count]).all())
    size = dtype_from_zarr_v2(before.metadata["dtype"]).itemsize
    return old_bytes[: count * size] == new_bytes[: count * size]


def _split_inline_values(data: bytes, metadata: Mapping[str, Any]) -> list[bytes]:
    """Split the values of an array, given as one chunk, into chunks along its first axis."""
    count = prod(metadata["chunks"])
    total = read_chunk_grid(metadata)[0] * count
    if metadata["dtype"] == "|O":
        padded = np.full(total, "", object)
        strings = decode_strings(data)
        padded[: strings.size] = strings
        return [encode_strings(padded[i : i + count]) for i in range(0, total, count)]
    size = dtype_from_zarr_v2(metadata["dtype"]).itemsize
    data = data.ljust(total * size, b"\0")
    return [data[i : i + count * size] for i in range(0, len(data), count * size)]
