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
from virtualds.formats.zarr_manifests.manifest_files import TableWriter
from virtualds.formats.zarr_manifests.manifests import list_parts, read_source_table
from virtualds.formats.zarr_manifests.parquet_table import (
    RECORD_SIZE,
    Counts,
    ParquetTable,
    read_counts,
)
from virtualds.formats.zarr_manifests.set_files import SetFiles, to_set_path, to_written_path
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
    folder, store = f"{place.folder}/{secrets.token_hex(8)}", SetFiles(place.root, place.options)

    def put(path: str, data: bytes) -> None:
        find_store(place.root).write_file(f"{place.root}/{path}", data, place.options)

    writer = TableWriter(
        put, lambda url: to_written_path(place.root, url, relative=place.relative_paths)
    )
    pruned = {name: array.pruned() for name, array in arrays.items()}
    written: dict[tuple[Any, int], tuple[str, Counts]] = {}
    for name, array in pruned.items():
        for number, fragment in enumerate(array.fragments):
            if not fragment.manifest.is_in_set:
                table, loaded = f"{folder}/{len(written)}", fragment.manifest.loaded()
                counts = writer.write_table(table, loaded, len(array.pipelines) > 1, lambda _: None)
                written[name, number] = table, counts
    # written last, since all tables add files
    sources = writer.write_sources(f"{folder}/sources")

    def moved(name: Any, array: ManifestArray) -> ManifestArray:
        fragments, count = list(array.fragments), len(array.pipelines)
        for number, fragment in enumerate(array.fragments):
            if (name, number) in written:
                folder, counts = written[name, number]
                rows, shape = fragment.manifest.size, fragment.manifest.shape
                table = ParquetTable(store, folder, rows, sources, count > 1, max(count, 1), counts)
                manifest = ChunkManifest.of_table(table, shape)
                fragments[number] = replace(fragment, manifest=manifest)
        return replace(array, fragments=tuple(fragments))

    return {name: moved(name, array) for name, array in pruned.items()}


def is_table_inside(table: Table, place: PartsFolder) -> bool:
    """Say whether a table of references lies in the set of the parts."""
    return table.owner == place.root


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
    for path, part in list_parts(document.nodes):
        if (table := part.get("table")) is None:
            continue
        folder, sources = (
            to_set_path(path, table["path"]),
            read_source_table(path, table["sources"]),
        )
        yield from _list_records(folder, table["chunks" if "begins" in table else "rows"])
        yield from _list_records(sources.folder, sources.rows)
        if path_of_counts := read_counts(table.get("counts")).path:
            yield f"{folder}/{path_of_counts}"


def _list_records(folder: str, rows: int) -> Iterator[str]:
    return (f"{folder}/{number}.parquet" for number in range(-(-rows // RECORD_SIZE)))
