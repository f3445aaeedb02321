"""kerchunk references in Parquet: a folder of metadata and of records that are read when needed.

kerchunk documentation, "References specification", section "Parquet references", as fsspec's
``LazyReferenceMapper`` has it: ``.zmetadata`` holds the metadata of the whole hierarchy and the
size of a record, ``<path>/refs.<n>.parq`` the references of chunks ``n * record_size`` and on, in C
order over the chunk grid, in columns ``path``, ``offset``, ``size`` and ``raw``. Records are
numbered in steps of one (the specification's prose says two).
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Iterator, Mapping
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from virtualds.access import ANYWHERE, Allowed
from virtualds.errors import AccessError, FormatError, ReadError, UnsupportedError
from virtualds.grid import Ints
from virtualds.group import ManifestGroup
from virtualds.lazy_manifest import LazyManifest
from virtualds.manifest import INLINE, MISSING, ChunkManifest, SourceFile, StorageOptions
from virtualds.records import CACHED, RecordCache, parquet_table, rows_of_records
from virtualds.referenced_files import ReferencedFiles, unreachable
from virtualds.stores import store_for
from virtualds.strict_json import malformed, parsed
from virtualds.urls import scheme_of
from virtualds.zarr_hierarchy import NOTES, Hierarchy, HierarchyReader

MARKER = ".zmetadata"
"""The file that makes a folder a set."""
RECORD_SIZE = 100_000
"""References in a record, unless every array has fewer chunks."""
TOKEN = b"virtualds"
"""Key in the metadata of a record that names the writing that it belongs to."""


def detect(marker: bytes) -> bool:
    """Say whether the ``.zmetadata`` of a folder is that of a reference set; Zarr has one too."""
    return b'"record_size"' in marker and b'"metadata"' in marker


# ---------------------------------------------------------------------- reading


def read(
    source: SourceFile,
    group: str | None = None,
    skip: Iterable[str] = (),
    allow: Allowed = ANYWHERE,
) -> ManifestGroup:
    """Read a reference set: its metadata now, records when somebody needs them.

    Parameters
    ----------
    source : SourceFile
        The folder.
    group : str, optional
        Path of a group; the root group by default.
    skip : iterable of str
        Names of variables to leave out.
    allow : Allowed
        Where the files that it refers to may lie; records are judged when they are read.

    Raises
    ------
    FormatError
        It is no reference set.
    UnsupportedError
        It uses a codec that is not known.
    """
    # relative urls are seen from the folder that holds the set's
    source = SourceFile(source.url.rstrip("/"), options=source.options)
    raw = store_for(source.url).read_all(f"{source.url}/{MARKER}", source.options)
    document = parsed(raw, source.url)
    try:
        size = document["record_size"]
        if type(size) is not int or size < 1:
            raise FormatError(f"{source.url}: records of {size!r} references; write it anew")
        metadata = {
            key: _parsed(value, f"{source.url}: key {key!r}")
            for key, value in document["metadata"].items()
        }
        notes = document.get(NOTES) or {}
        records = _Records(source, size, notes, allow)
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        if isinstance(error, FormatError):
            raise
        raise malformed(source.url, error) from error

    def chunks(path: str, grid: tuple[int, ...]) -> ChunkManifest:
        if any(part in ("", ".", "..") or "\\" in part for part in path.split("/")):
            raise FormatError(f"{source.url}: the path {path!r} of an array leads out of the set")
        if not prod(grid):
            return ChunkManifest.missing(grid)
        return LazyManifest(_Table(records, path, prod(grid)), grid)

    return HierarchyReader(source, metadata, notes, chunks, frozenset(skip)).tree(group)


def _parsed(value: Any, where: str) -> Any:
    """Return metadata, which stand as JSON, or as text that holds JSON."""
    return parsed(value, where) if isinstance(value, str) else value


class _Records:
    """The records of one set, of which the last ones used are kept.

    Parameters
    ----------
    source : SourceFile
        The folder.
    size : int
        References in a record.
    notes : mapping
        Our notes; with them comes the name of the writing that records have to belong to.
    allow : Allowed
        Where the files that records refer to may lie.
    """

    def __init__(
        self, source: SourceFile, size: int, notes: Mapping[str, Any], allow: Allowed
    ) -> None:
        self.source = source
        self.size = size
        self.token: str | None = notes.get("set")
        self.allow = allow
        self._noted = notes.get("files", {})
        self._open()

    def _open(self) -> None:
        self._files = ReferencedFiles(self.source, self._noted, self.allow)
        self._kept: RecordCache[ChunkManifest] = RecordCache(CACHED // self.size)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle where the records lie, not what is kept of them."""
        names = ("source", "size", "token", "allow", "_noted")
        return {name: getattr(self, name) for name in names}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    def rows(self, path: str, number: int, ids: Ints) -> ChunkManifest:
        """Return chunks of one record, with the files that they lie in.

        Where others have not padded a record, what lies behind its end is missing.

        Raises
        ------
        ReadError
            It cannot be had, or is no longer the one that belongs to the set.
        FormatError
            It is no record.
        AccessError
            It refers to files that the set may not mean.
        """
        try:
            record = self._record(path, number)
            return self._checked(record.take(0, np.where(ids < record.size, ids, -1)).pruned())
        except (AccessError, FormatError, ReadError) as error:
            error.add_note(f"record refs.{number}.parq of {path} in {self.source.url}")
            raise

    def _record(self, path: str, number: int) -> ChunkManifest:
        url = f"{self.source.url}/{path}/refs.{number}.parq"
        return self._kept.get(url, lambda: self._read(url))

    def _read(self, url: str) -> ChunkManifest:
        import pyarrow as pa

        try:
            data = store_for(url).read_all(url, self.source.options)
        except FileNotFoundError as error:
            if self.token is None:
                return ChunkManifest.missing((1,))  # others leave out what is all missing
            raise ReadError(
                f"{url}: it is gone; the set was replaced after it was opened, or is damaged: open "
                f"it again"
            ) from error
        except OSError as error:
            raise unreachable(url, error) from error
        table = parquet_table(data, url, read_dictionary=["path"])
        token = (table.schema.metadata or {}).get(TOKEN, b"").decode()
        if self.token is not None and token != self.token:
            raise ReadError(
                f"{url}: it belongs to another writing of the set, which was replaced after it was "
                f"opened; open it again"
            )
        try:
            return self._manifest(table)
        except (AttributeError, KeyError, pa.ArrowException, TypeError, ValueError) as error:
            error.add_note(f"record {url}")
            if isinstance(error, FormatError):
                raise
            raise malformed(url, error) from error

    def _manifest(self, table: Any) -> ChunkManifest:
        """Return the rows of a record as chunks."""
        if table.num_rows > self.size:
            raise FormatError(
                f"a record of {table.num_rows} references where {self.size} were announced"
            )
        if not table.num_rows:
            return ChunkManifest.missing((1,))
        file, urls = _paths(table)
        offset, length = (_integers(table, name) for name in ("offset", "size"))
        held, inline = _held(table)
        file = np.where(held, INLINE, file)
        offset = np.where(held, np.cumsum(held) - 1, offset)
        lengths = np.fromiter(map(len, inline), np.int64, len(inline))
        length[held] = lengths
        return ChunkManifest(
            files=tuple(self._files.file(url) for url in urls),
            file=file.astype(np.int32),
            offset=offset,
            length=length,
            pipeline=np.broadcast_to(np.uint16(0), file.shape),
            checksum=np.broadcast_to(np.uint64(0), file.shape),
            inline=tuple(inline),
        )

    def _checked(self, rows: ChunkManifest) -> ChunkManifest:
        """Return references that can be right; only now is it looked how long whole files are."""
        offset, length = rows.offset, rows.length
        whole = (rows.file >= 0) & (length == 0)
        if whole.any():
            sizes = np.zeros(len(rows.files), np.int64)
            for number in np.unique(rows.file[whole]).tolist():
                sizes[number] = self._files.size(rows.files[number]) or 0
            length = np.where(whole, sizes[np.where(whole, rows.file, 0)], length)
            offset = np.where(whole, 0, offset)
        return ChunkManifest.build(
            rows.shape,
            files=rows.files,
            inline=rows.inline,
            file=rows.file,
            offset=offset,
            length=length,
        )


class _Table:
    """The references of one array in its records."""

    has_pipelines = False

    def __init__(self, records: _Records, path: str, count: int) -> None:
        self._records = records
        self._path = path
        self._count = count

    @property
    def _name(self) -> tuple[Any, ...]:
        records = self._records
        whole = (*records.source, records.size, records.token, records.allow)
        return (*whole, self._path, self._count)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Table) and self._name == other._name

    def __hash__(self) -> int:
        return hash(self._name)

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        return ("virtualds-records", *map(str, self._name))

    def load(self, ids: Ints) -> ChunkManifest:
        """Return the chunks of these numbers, in their shape, with the files that they lie in."""
        return rows_of_records(
            ids,
            self._records.size,
            lambda number, rows: self._records.rows(self._path, number, rows),
        )


def _paths(table: Any) -> tuple[npt.NDArray[np.int32], list[str]]:
    """Return the number of every row's url, -1 where there is none, and the urls."""
    import pyarrow as pa

    count = table.num_rows
    if "path" not in table.column_names or not _is_told(table["path"]):
        return np.full(count, MISSING, np.int32), []
    column = table["path"]
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    column = column.unify_dictionaries().combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0) if column.num_chunks else pa.array([], column.type)
    codes = column.indices.fill_null(MISSING).to_numpy(zero_copy_only=False)
    return codes.astype(np.int32), column.dictionary.cast(pa.string()).to_pylist()


def _held(table: Any) -> tuple[npt.NDArray[np.bool_], list[bytes]]:
    """Return which rows hold their chunk, and the chunks."""
    import pyarrow as pa

    count = table.num_rows
    if "raw" not in table.column_names or not _is_told(table["raw"]):
        return np.zeros(count, bool), []
    column = table["raw"]
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    held = column.is_valid().to_numpy()
    return held, column.cast(pa.large_binary()).drop_null().to_pylist()


def _is_told(column: Any) -> bool:
    """Say whether a column holds anything: pandas gives one without values any type."""
    import pyarrow as pa

    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    number = pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_null(kind)
    return column.null_count < len(column) and not number


def _integers(table: Any, name: str) -> npt.NDArray[np.int64]:
    if name not in table.column_names:
        return np.zeros(table.num_rows, np.int64)
    found = table[name].fill_null(0).to_numpy()
    return np.array(found, np.int64)


def _padded(column: npt.NDArray[Any], size: int, rest: int) -> npt.NDArray[Any]:
    return np.concatenate([column, np.full(size - column.size, rest, column.dtype)])


# ---------------------------------------------------------------------- writing


def write(
    group: ManifestGroup,
    url: str,
    options: StorageOptions | None = None,
    *,
    replace: bool = True,
    record_size: int | None = None,
) -> None:
    """Write a reference set record by record: all of it, or nothing.

    Parameters
    ----------
    group : ManifestGroup
    url : str
        Of the folder.
    options : StorageOptions, optional
        Access options of the target.
    replace : bool
        Whether an existing set may be replaced. Anything else of this name is left alone.
    record_size : int, optional
        References in a record; by default `RECORD_SIZE`, or fewer if no array has as many chunks.

    Raises
    ------
    UnsupportedError
        Variables that Zarr v2 metadata cannot describe; all of them are named.
    FileExistsError
        There is something of this name, and it is no set or may not be replaced.
    ValueError
        ``record_size`` is no number of references.
    """
    if record_size is not None and (type(record_size) is not int or record_size < 1):
        raise ValueError(f"record_size {record_size!r}: it is a number of references, at least 1")
    hierarchy = Hierarchy.of(group, url, "kerchunk-parquet")
    if odd := [p for p in hierarchy.manifests if any(_is_no_name(n) for n in p.split("/"))]:
        raise UnsupportedError(f"{url}: the variable {odd[0]!r} cannot be the name of a folder")
    url = url.rstrip("/")
    largest = max((m.size for m in hierarchy.manifests.values()), default=1)
    size = record_size or max(1, min(RECORD_SIZE, largest))
    replaces = replace and _is_set(url, options)
    if replaces and scheme_of(url) != "file":
        # the records that a lazy manifest counts may be those that are written over
        hierarchy.manifests = {p: m.loaded() for p, m in hierarchy.manifests.items()}
    files = _files(hierarchy, size)
    store_for(url).write_folder(url, files, options, replace=replaces)


def _is_no_name(name: str) -> bool:
    return name in (".", "..") or "\\" in name


def _is_set(url: str, options: StorageOptions | None) -> bool:
    """Say whether there is a set that could be replaced."""
    try:
        return detect(store_for(url).read_all(f"{url}/{MARKER}", options))
    except (FileNotFoundError, NotADirectoryError):
        return False


def _files(hierarchy: Hierarchy, size: int) -> Iterator[tuple[str, bytes]]:
    """Yield the files of a set, the one that makes it a set last."""
    token = secrets.token_hex(8)
    for path, manifest in hierarchy.manifests.items():
        for number in range(-(-manifest.size // size)):
            ids = np.arange(number * size, min(number * size + size, manifest.size))
            yield f"{path}/refs.{number}.parq", _record(manifest.at(ids), size, token)
    document = {
        "metadata": hierarchy.metadata,
        "record_size": size,
        NOTES: {"set": token} | hierarchy.noted(),
    }
    yield MARKER, json.dumps(document, allow_nan=False).encode()


def _record(chunks: ChunkManifest, size: int, token: str) -> bytes:
    """Return a row of chunks as a Parquet file, padded to the size of a record."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = _padded(np.asarray(chunks.file), size, MISSING)
    used, codes = np.unique(file[file >= 0], return_inverse=True)
    numbers = np.zeros(size, np.int32)
    numbers[file >= 0] = codes
    urls = pa.array([chunks.files[n].url for n in used.tolist()], pa.string())
    path = pa.DictionaryArray.from_arrays(pa.array(numbers, mask=file < 0), urls)
    raw = pa.nulls(size, pa.binary())
    if (held := np.flatnonzero(file == INLINE)).size:
        values: list[bytes | None] = [None] * size
        for row, number in zip(held.tolist(), chunks.offset[held].tolist(), strict=True):
            values[row] = chunks.inline[number]
        raw = pa.array(values, pa.binary())
    offset, length = (
        np.where(file >= 0, _padded(np.asarray(column), size, 0), 0)
        for column in (chunks.offset, chunks.length)
    )
    schema = pa.schema(
        [
            pa.field("path", path.type),
            pa.field("offset", pa.int64(), nullable=False),
            pa.field("size", pa.int64(), nullable=False),
            pa.field("raw", pa.binary()),
        ],
        {TOKEN: token.encode()},
    )
    table = pa.table([path, pa.array(offset), pa.array(length), raw], schema=schema)
    sink = pa.BufferOutputStream()
    # fastparquet takes integers for floats where no statistics say that none is null
    known = ["offset", "size"]
    pq.write_table(table, sink, compression="zstd", use_dictionary=["path"], write_statistics=known)
    return bytes(sink.getvalue())
