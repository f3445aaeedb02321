"""Keep a kerchunk Parquet set in order: join its records, and move its sources.

The records of a set have fixed names, so both write the set anew beside the old one, and exchange
the folders: on local disk alone. A reader of the old set gets an error that says to open it again.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterator
from functools import partial
from typing import Any

from virtualds.chunks.manifest import ChunkManifest
from virtualds.chunks.record_cache import read_parquet
from virtualds.formats.kerchunk.parquet import (
    DISPLACED,
    RECORD_SIZE,
    ParquetSet,
    demand_exchange,
    files_of,
    hierarchy_of,
)
from virtualds.formats.kerchunk.parquet_append import find_set, replace_folder
from virtualds.formats.kerchunk.records import TOKEN
from virtualds.formats.kerchunk.write_record import encode_table
from virtualds.formats.markers import ZMETADATA
from virtualds.formats.same_references import demand_same_rows
from virtualds.formats.upkeep import CheckMoved, MoveFile
from virtualds.formats.zarr.v2_read import NOTES
from virtualds.formats.zarr.v2_write import RELATIVE
from virtualds.source_file import SourceFile, StorageOptions
from virtualds.stores import find_store
from virtualds.stores.fence import explain_vanished_files
from virtualds.urls import make_relative

ROOM = 10_000
"""References in a record, at least, after records were joined: more will follow."""
RECORD = re.compile(r"(?:.*/)?refs\.\d+\.parq")
"""Paths of records."""


def join_records(url: str, options: StorageOptions | None = None) -> bool:
    """Write the references of a set in larger records; say whether that takes fewer of them.

    Raises
    ------
    FileNotFoundError
        There is no set.
    ConflictError
        Another writer was faster; nothing has changed.
    UnsupportedError
        The set does not lie on local disk.
    """
    url = url.rstrip("/")
    found, version, _ = find_set(url, options)
    counts = [array.manifest.size for array in found.read_arrays().values()]
    size = min(RECORD_SIZE, max([ROOM, *counts]))
    if _count_records(counts, size) >= _count_records(counts, found.records.size):
        return False
    demand_exchange(url)
    with _explained(found, version):
        relative = bool(found.notes.get(RELATIVE))
        hierarchy = hierarchy_of(found.read_tree(), url, relative=relative)
        files = files_of(hierarchy, size, partial(_check_record, found))
        replace_folder(found, version, files)
    return True


def _count_records(counts: list[int], size: int) -> int:
    return sum(-(-count // size) for count in counts)


def _check_record(found: ParquetSet, rows: ChunkManifest, data: bytes) -> None:
    """Prove that a record holds the references of its rows."""
    url = found.source.url
    demand_same_rows(rows, found.records.parse(data, url).take(0, slice(0, rows.size)), url)


def _explained(found: ParquetSet, version: str) -> Any:
    """Turn errors of files that vanish into a conflict, if another writer replaced the set."""
    url, options = found.source.url, found.source.options
    marker = f"{url}/{ZMETADATA}"
    return explain_vanished_files(
        lambda: find_store(url).find_version(marker, options) == version, url
    )


# ---------------------------------------------------------------------- moved sources


def move_sources(
    url: str, options: StorageOptions | None, move: MoveFile, check: CheckMoved
) -> None:
    """Write a set that refers to moved files: the urls of each record change, not its rows.

    Raises
    ------
    FileNotFoundError
        There is no set.
    ConflictError
        Another writer was faster; nothing has changed.
    UnsupportedError
        The set does not lie on local disk.
    """
    url = url.rstrip("/")
    found, version, _ = find_set(url, options)
    demand_exchange(url)
    with _explained(found, version):
        replace_folder(found, version, _RecordMoving(found, move).yield_files(check))


class _RecordMoving:
    """The files of a set, with the urls of moved sources."""

    def __init__(self, found: ParquetSet, move: MoveFile) -> None:
        self._found = found
        self._move = move
        self._known: dict[str, SourceFile | None] = {}
        # sets of other tools have no token, and may leave out records
        self._token = None if found.records.token is None else secrets.token_hex(8)

    def yield_files(self, check: CheckMoved) -> Iterator[tuple[str, bytes]]:
        """Yield all files of the set, the one that makes it a set last."""
        source = self._found.source
        store = find_store(source.url)
        for listed in store.list_files(source.url, source.options):
            if RECORD.fullmatch(listed.path):
                data = store.read_all(listed.file.url, source.options)
                yield listed.path, self._move_record(data, listed.file.url)
        document = self._move_document()
        check([file for file in self._known.values() if file is not None])
        yield ZMETADATA, document

    def _get_url(self, url: str) -> str:
        """Return the url to write in place of one."""
        if url not in self._known:
            file = self._found.records.get_file(url)
            moved = self._move(file)
            self._known[url] = None if moved.url == file.url else moved
        moved_to = self._known[url]
        if moved_to is None:
            return url
        relative = self._found.notes.get(RELATIVE)
        return make_relative(moved_to.url, self._found.source.url) if relative else moved_to.url

    def _move_record(self, data: bytes, url: str) -> bytes:
        import pyarrow as pa

        table = read_parquet(data, url, ["path"])
        if "path" in table.column_names and pa.types.is_dictionary(table["path"].type):
            place = table.column_names.index("path")
            field = table.schema.field(place)
            chunks = [self._move_urls(chunk) for chunk in table["path"].chunks]
            column = pa.chunked_array(chunks, field.type)
            table = table.set_column(place, field, column)
        known = dict(table.schema.metadata or {})
        if self._token is not None:
            known[TOKEN] = self._token.encode()
        return encode_table(table.replace_schema_metadata(known))

    def _move_urls(self, column: Any) -> Any:
        """Return a column with other texts behind the same numbers."""
        import pyarrow as pa

        urls = [
            None if url is None else self._get_url(url) for url in column.dictionary.to_pylist()
        ]
        texts = pa.array(urls, column.dictionary.type)
        return pa.DictionaryArray.from_arrays(column.indices, texts)

    def _move_document(self) -> bytes:
        """Return the marker with the fingerprints of moved files."""
        document, notes = dict(self._found.document), dict(self._found.notes)
        notes.pop(DISPLACED, None)
        if "files" in notes:
            notes["files"] = {
                self._get_url(url): list(file.fingerprint) if (file := self._known[url]) else known
                for url, known in notes["files"].items()
            }
        if self._token is not None:
            notes["set"] = self._token
        if notes:
            document[NOTES] = notes
        return json.dumps(document, allow_nan=False).encode()
