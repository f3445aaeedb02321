"""Read records of kerchunk Parquet: files of references of one array.

kerchunk documentation, "References specification", section "Parquet references": the references of
chunks ``n * record_size`` and on, in C order over the chunk grid, in columns ``path``, ``offset``,
``size`` and ``raw``.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from virtualds.chunks.columns import INLINE, pack_table, unpack_table
from virtualds.chunks.manifest import ChunkManifest
from virtualds.chunks.projection import Ints
from virtualds.chunks.record_cache import (
    CACHED,
    RecordCache,
    name_opening,
    read_parquet,
    read_rows,
    share_opening,
)
from virtualds.chunks.table import SourceSummary, Table
from virtualds.errors import AccessError, FormatError, ReadError
from virtualds.formats.kerchunk.record_files import TOKEN, read_inline, read_integers, read_urls
from virtualds.formats.referenced_files import (
    MALFORMED_ERRORS,
    ReferencedFiles,
    malformed_error,
    unreachable_error,
)
from virtualds.formats.zarr.document import ZMETADATA
from virtualds.source_file import SourceFile
from virtualds.stores import find_store
from virtualds.stores.access_rules import AccessPolicy
from virtualds.stores.store import version_of
from virtualds.urls import make_relative

FENCED = "virtualds"
"""Key of our notes in a marker, where writers also put their fence."""
WRITTEN = "records"
"""Key in our notes: by array, the stretches of records that were written. Others were left out,
since all their chunks are missing."""
EARLIER = "earlier"
"""Key in our notes: names that the set had before, of which records have stayed."""


def join_record_path(path: str, number: int) -> str:
    """Return the path, in a set, of a record of an array."""
    return f"{path}/refs.{number}.parq"


# ---------------------------------------------------------------------- reading


def hash_document(document: Mapping[str, Any]) -> str:
    """Return a hash of the marker of a set, without our notes."""
    said = {key: value for key, value in document.items() if key != FENCED}
    return version_of(json.dumps(said, sort_keys=True).encode())


class Records:
    """The records of one set; the last ones used are kept.

    Parameters
    ----------
    source : SourceFile
        The folder.
    size : int
        References in a record.
    notes : mapping
        Our notes, with the token that records of this set must have.
    allow : AccessPolicy
        Where the files that records refer to may lie.
    meaning : str
        The `hash_document` of the set's marker.
    """

    def __init__(
        self,
        source: SourceFile,
        size: int,
        notes: Mapping[str, Any],
        allow: AccessPolicy,
        meaning: str = "",
    ) -> None:
        self.source = source
        self.size = size
        self.token: str | None = notes.get("set")
        self.earlier: Sequence[str] = notes.get(EARLIER, ())
        self.allow = allow
        self._noted = notes.get("files", {})
        self.written: Mapping[str, Any] = notes.get(WRITTEN, {})
        # sets of other tools have no token: compare their marker with that at opening
        self._marker = None if self.token else self._describe_set()
        self._meaning = meaning
        self._opening = name_opening()
        self._open()

    def _describe_set(self) -> SourceFile | None:
        """Return the file that makes the folder a set, as it is now."""
        url = f"{self.source.url}/{ZMETADATA}"
        try:
            return find_store(url).describe(url, self.source.options)
        except FileNotFoundError:
            return None

    def _is_current(self) -> bool:
        """Say whether a set of another tool is unchanged, apart from a writer's fence."""
        if self._describe_set() == self._marker:
            return True
        try:
            # not what an opening holds of it
            url = f"{self.source.url}/{ZMETADATA}"
            found, _ = find_store(url).read_version(url, self.source.options)
            document = json.loads(found)
            return FENCED in document and hash_document(document) == self._meaning
        except (AttributeError, FileNotFoundError, TypeError, ValueError):
            return False

    def _open(self) -> None:
        self._files = ReferencedFiles(self.source, self._noted, self.allow)
        self._kept: RecordCache[ChunkManifest] = RecordCache(CACHED // self.size)

    @property
    def name(self) -> tuple[Any, ...]:
        """The identity of the records: equal only for the same version of the same set."""
        return (*self.source, self.size, self.token, self.allow, self._marker)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle where the records lie, not what is kept of them."""
        names = (
            "source",
            "size",
            "token",
            "earlier",
            "allow",
            "written",
            "_marker",
            "_meaning",
            "_opening",
        )
        kept = {name: getattr(self, name) for name in names}
        return kept | {"_noted": pack_table(self._noted)}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state, _noted=unpack_table(state["_noted"]))
        self._open()

    def __reduce__(self) -> tuple[Any, ...]:
        return share_opening, (Records, self._opening, self.__getstate__())

    def get_noted_files(self) -> tuple[SourceFile, ...] | None:
        """Return the files that we have noted; None for sets of other tools."""
        if self.token is None:
            return None
        return tuple(self._files.get_file(url) for url in self._noted)

    def find_noted_files(self, urls: Collection[str]) -> tuple[SourceFile, ...] | None:
        """Return those of the noted files that have one of some urls; None as `get_noted_files`."""
        if self.token is None or self.allow.protocol is not None:
            noted = self.get_noted_files()
            return None if noted is None else tuple(f for f in noted if f.url in urls)
        # we write absolute urls, or urls relative to the set
        texts = (text for url in urls for text in (url, make_relative(url, self.source.url)))
        found = {self._files.get_file(text) for text in texts if text in self._noted}
        return tuple(file for file in found if file.url in urls)

    @cached_property
    def catalogue(self) -> SourceSummary | None:
        """A summary of the files that we have noted; None for sets of other tools."""
        if self.token is None:
            return None
        sizes = [noted[0] if noted else None for noted in self._noted.values()]
        known = [size for size in sizes if size is not None]
        nbytes = sum(known) if len(known) == len(sizes) else None
        return SourceSummary(self.name, len(sizes), nbytes, next(iter(self._noted), None))

    def read_rows(self, path: str, number: int, ids: Ints) -> ChunkManifest:
        """Return chunks of one record, with the files that they lie in.

        Chunks past the end of a record that is not padded are missing.

        Raises
        ------
        ReadError
            The record cannot be read, or no longer belongs to the set.
        FormatError
            It is no record.
        AccessError
            It refers to files that the set may not name.
        """
        try:
            rows = self._read_record(path, number)
            return self._check_rows(rows.take(0, np.where(ids < rows.size, ids, -1)).pruned())
        except (AccessError, FormatError, ReadError) as error:
            error.add_note(f"record refs.{number}.parq of {path} in {self.source.url}")
            raise

    def list_rows(self, path: str, count: int) -> Ints | None:
        """Return the numbers of the rows in records that were written, None if all were."""
        if (runs := self.written.get(path)) is None:
            return None
        try:
            cuts = [(int(a) * self.size, min(int(b) * self.size, count)) for a, b in runs]
        except MALFORMED_ERRORS as error:
            raise malformed_error(self.source.url, error) from error
        return np.concatenate([np.zeros(0, np.int64), *(np.arange(a, b) for a, b in cuts)])

    def _is_left_out(self, path: str, number: int) -> bool:
        """Say whether a record was not written, since all its chunks are missing."""
        runs = self.written.get(path)
        return runs is not None and not any(a <= number < b for a, b in runs)

    def _read_record(self, path: str, number: int) -> ChunkManifest:
        if self._is_left_out(path, number):
            return ChunkManifest.missing((1,))
        url = f"{self.source.url}/{join_record_path(path, number)}"
        return self._kept.get(url, lambda: self._read(url))

    def _read(self, url: str) -> ChunkManifest:
        if self.token is None and not self._is_current():
            raise ReadError(
                f"{url}: the set was replaced or changed after it was opened; open it again"
            )
        try:
            data = find_store(url).read_all(url, self.source.options)
        except FileNotFoundError as error:
            if self.token is None:
                return ChunkManifest.missing(
                    (1,)
                )  # other tools leave out records of missing chunks
            raise ReadError(
                f"{url}: it is gone; the set was replaced after it was opened, or is damaged: open "
                f"it again"
            ) from error
        except OSError as error:
            raise unreachable_error(url, error) from error
        table = read_parquet(data, url, ["path"])
        token = (table.schema.metadata or {}).get(TOKEN, b"").decode("utf-8", "replace")
        if self.token is not None and token not in (self.token, *self.earlier):
            raise ReadError(
                f"{url}: it belongs to another writing of the set, which was replaced after it was "
                f"opened; open it again"
            )
        return self._parse_table(table, url, self.size)

    def parse(self, data: bytes, url: str) -> ChunkManifest:
        """Return the rows of a record as chunks, whatever set the record belongs to.

        Raises
        ------
        FormatError
            It is no record.
        AccessError
            It refers to files that the set may not name.
        """
        table = read_parquet(data, url, ["path"])
        return self._parse_table(table, url, table.num_rows)

    def _parse_table(self, table: Any, url: str, most: int) -> ChunkManifest:
        import pyarrow as pa

        try:
            if table.num_rows > most:
                raise FormatError(
                    f"a record of {table.num_rows} references where {most} were announced"
                )
            return self._build_manifest(table)
        except (*MALFORMED_ERRORS, pa.ArrowException) as error:
            error.add_note(f"record {url}")
            if isinstance(error, FormatError):
                raise
            raise malformed_error(url, error) from error

    def get_file(self, url: str) -> SourceFile:
        """Return the file that a url in a record means."""
        return self._files.get_file(url)

    def _build_manifest(self, table: Any) -> ChunkManifest:
        """Return the rows of a record as chunks."""
        if not table.num_rows:
            return ChunkManifest.missing((1,))
        file, urls = read_urls(table)
        offset, length = (read_integers(table, name) for name in ("offset", "size"))
        held, inline = read_inline(table)
        file = np.where(held, INLINE, file)
        offset = np.where(held, np.cumsum(held) - 1, offset)
        lengths = np.fromiter(map(len, inline), np.int64, len(inline))
        length[held] = lengths
        return ChunkManifest(
            files=tuple(self._files.get_file(url) for url in urls),
            file=file.astype(np.int32),
            offset=offset,
            length=length,
            pipeline=np.broadcast_to(np.uint16(0), file.shape),
            checksum=np.broadcast_to(np.uint64(0), file.shape),
            inline=tuple(inline),
        )

    def _check_rows(self, rows: ChunkManifest) -> ChunkManifest:
        """Return checked references; whole files are measured only now."""
        offset, length = rows.offset, rows.length
        whole = (rows.file >= 0) & (length == 0)
        if whole.any():
            sizes = np.zeros(len(rows.files), np.int64)
            for number in np.unique(rows.file[whole]).tolist():
                sizes[number] = self._files.get_size(rows.files[number]) or 0
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


class RecordTable(Table):
    """The references of one array in its records."""

    def __init__(self, records: Records, path: str, count: int) -> None:
        self._records = records
        self._path = path
        self._count = count

    @property
    def _name(self) -> tuple[Any, ...]:
        return (*self._records.name, self._path, self._count)

    @property
    def owner(self) -> tuple[Any, ...]:
        """The version of the set that the records are of."""
        return self._records.name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RecordTable) and self._name == other._name

    def __hash__(self) -> int:
        return hash(self._name)

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        return ("virtualds-records", *map(str, self._name))

    def load(self, ids: Ints) -> ChunkManifest:
        """Return the chunks of these numbers, in their shape, with the files that they lie in."""
        return read_rows(
            ids,
            self._records.size,
            lambda number, rows: self._records.read_rows(self._path, number, rows),
        )

    def list_numbers(self) -> Ints | None:
        """Return the numbers of the chunks in records that were written, None if all were."""
        return self._records.list_rows(self._path, self._count)

    def list_sources(self) -> tuple[SourceFile, ...]:
        """Return all files that the set has noted; other sets are read as a whole."""
        if (noted := self._records.get_noted_files()) is not None:
            return noted
        return ChunkManifest.of_table(self, (self._count,)).sources

    def find_sources(self, urls: Collection[str]) -> tuple[SourceFile, ...]:
        """Return those of its files that have one of the urls, without a look at all others."""
        found = self._records.find_noted_files(urls)
        return tuple(f for f in self.list_sources() if f.url in urls) if found is None else found

    def summarize_sources(self) -> SourceSummary | None:
        """Return a summary of the files that the set has noted."""
        return self._records.catalogue
