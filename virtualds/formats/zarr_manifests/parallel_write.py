"""Parts of manifests that many processes write into one set, before one process commits it.

Each call writes its own tables under a unique name, and returns arrays whose references lie there.
Tables are part of the set once a snapshot names them. Before that, and for calls whose result was
lost, they are waste with the id of a snapshot in its name.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from virtualds.arrays.array import ManifestArray
from virtualds.chunks.manifest import ChunkManifest
from virtualds.chunks.table import Table
from virtualds.errors import ReadError
from virtualds.formats.zarr.document import FOLDER, Document
from virtualds.formats.zarr_manifests.manifest_files import (
    SourceNumbering,
    TableRecords,
    encode_source_rows,
    list_source_rows,
)
from virtualds.formats.zarr_manifests.manifests import PARQUET_MANIFEST, read_source_table
from virtualds.formats.zarr_manifests.parquet_table import Counts, ParquetTable, read_counts
from virtualds.formats.zarr_manifests.set_files import SetFiles, to_set_path, to_written_path
from virtualds.formats.zarr_manifests.source_table import RECORD_SIZE, SourceTable, list_path_ranges
from virtualds.source_file import StorageOptions
from virtualds.stores import find_store
from virtualds.urls import scheme_of


class PartsFolder(NamedTuple):
    """The folder of the parts of a snapshot that is not committed yet."""

    root: str
    options: StorageOptions | None
    snapshot: str
    relative_paths: bool = False

    @property
    def folder(self) -> str:
        """The path of the folder in the set."""
        return join_parts_folder(self.snapshot)


def join_parts_folder(snapshot: str) -> str:
    """Return the path of the folder that holds the parts of a snapshot."""
    return f"{FOLDER}/{snapshot}/parts"


# ---------------------------------------------------------------------- writing


def write_parts(
    arrays: Mapping[Any, ManifestArray], place: PartsFolder
) -> dict[Any, ManifestArray]:
    """Write references that lie in no set yet, and return arrays that refer to the new tables.

    Parameters
    ----------
    arrays : mapping of ManifestArray
    place : PartsFolder

    Raises
    ------
    UnsupportedError
        A file was scanned twice, and had changed in between.
    """
    pruned = {name: array.pruned() for name, array in arrays.items()}
    writer = _PartWriter(place)
    folders = {name: writer.write_tables(array) for name, array in pruned.items()}
    # written last, since all tables add files
    sources = writer.write_sources()
    store = SetFiles(place.root, place.options)
    return {
        name: _move_array(array, folders[name], store, sources) for name, array in pruned.items()
    }


def is_table_inside(table: Table, place: PartsFolder) -> bool:
    """Say whether a table of references lies in the set of the parts."""
    return table.owner == place.root


def _move_array(
    array: ManifestArray,
    folders: Mapping[int, tuple[str, Counts]],
    store: SetFiles,
    sources: SourceTable,
) -> ManifestArray:
    """Return an array whose fragments refer to the written tables, given with their counts."""
    fragments = list(array.fragments)
    count = len(array.pipelines)
    for number, (folder, counts) in folders.items():
        manifest = fragments[number].manifest
        table = ParquetTable(
            store, folder, manifest.size, sources, count > 1, max(count, 1), counts
        )
        moved = ChunkManifest.of_table(table, manifest.shape)
        fragments[number] = replace(fragments[number], manifest=moved)
    return replace(array, fragments=tuple(fragments))


class _PartWriter:
    """Writes tables with one table of files, into a folder of its own."""

    def __init__(self, place: PartsFolder) -> None:
        self._place = place
        self._folder = f"{place.folder}/{secrets.token_hex(8)}"
        self._sources = SourceNumbering(
            lambda url: to_written_path(place.root, url, relative=place.relative_paths)
        )
        self._tables = 0

    def write_tables(self, array: ManifestArray) -> dict[int, tuple[str, Counts]]:
        """Write the manifests of an array that lie in no set; return folders and counts."""
        return {
            number: self._write_table(fragment.manifest.loaded(), len(array.pipelines) > 1)
            for number, fragment in enumerate(array.fragments)
            if not fragment.manifest.is_in_set
        }

    def _write_table(self, manifest: ChunkManifest, pipelines: bool) -> tuple[str, Counts]:
        """Write the records of a manifest; return the folder that they lie in, and the counts."""
        folder = f"{self._folder}/{self._tables}"
        self._tables += 1
        table = TableRecords(manifest, self._sources, pipelines)
        self._put_records(folder, table.encode())
        counts, data = table.encode_counts()
        if data is not None:
            self._put(f"{folder}/{counts.path}", data)
        return folder, counts

    def write_sources(self) -> SourceTable:
        """Write the table of files."""
        folder = f"{self._folder}/sources"
        rows = list_source_rows(self._sources)
        self._put_records(folder, encode_source_rows(rows))
        ranges = list_path_ranges([path for path, _ in rows])
        return SourceTable(folder, len(rows), tuple((first, last) for first, last in ranges))

    def _put_records(self, folder: str, records: Iterator[bytes]) -> None:
        for number, data in enumerate(records):
            self._put(f"{folder}/{number}.parquet", data)

    def _put(self, path: str, data: bytes) -> None:
        url = f"{self._place.root}/{path}"
        find_store(url).write_file(url, data, self._place.options)


# ---------------------------------------------------------------------- written parts


def list_written_parts(place: PartsFolder) -> list[str]:
    """Return the paths, in the set, of all files of parts."""
    found = find_store(place.root).list_files(f"{place.root}/{place.folder}", place.options)
    return [f"{place.folder}/{listed.path}" for listed in found]


def remove_parts(place: PartsFolder, is_set: bool) -> None:
    """Remove all parts, and, where there is no set yet, the folders that they lie in."""
    store = find_store(place.root)
    files = [f"{place.root}/{path}" for path in list_written_parts(place)]
    if files and scheme_of(place.root) == "file":
        # an unused name, so that empty folders up to this one are removed
        above = place.root if is_set else place.root.rpartition("/")[0]
        files.append(f"{above}/{place.snapshot}")
    store.remove(files, place.options)


def check_parts(place: PartsFolder, document: Document) -> list[str]:
    """Return the files of parts that a document does not need; refuse if a needed one is gone.

    Raises
    ------
    ReadError
        A needed part was removed.
    """
    there = set(list_written_parts(place))
    needed = {path for path in _list_needed(document) if path.startswith(f"{place.folder}/")}
    if lost := sorted(needed - there):
        raise ReadError(
            f"{place.root}/{lost[0]}: {len(lost)} parts of the manifests are gone that workers "
            f"have written, nothing has been committed; do not remove files of the set while it "
            f"is written, and build it again"
        )
    return sorted(there - needed)


def _list_needed(document: Document) -> Iterator[str]:
    """Yield the paths of all records that the tables of a document consist of."""
    for path, node in document.nodes.items():
        for transformer in node.get("storage_transformers") or ():
            if transformer["name"] != PARQUET_MANIFEST:
                continue
            for part in transformer["configuration"]["parts"]:
                if (table := part.get("table")) is None:
                    continue
                folder, sources = (
                    to_set_path(path, table["path"]),
                    read_source_table(path, table["sources"]),
                )
                yield from _list_records(folder, _count_rows(table))
                yield from _list_records(sources.folder, sources.rows)
                if path_of_counts := read_counts(table.get("counts")).path:
                    yield f"{folder}/{path_of_counts}"


def _count_rows(table: Mapping[str, Any]) -> int:
    rows: int = table["chunks" if "begins" in table else "rows"]
    return rows


def _list_records(folder: str, rows: int) -> Iterator[str]:
    return (f"{folder}/{number}.parquet" for number in range(-(-rows // RECORD_SIZE)))
