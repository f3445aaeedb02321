"""Change a kerchunk Parquet set: which records are written anew, and how they are replaced."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from virtualds.arrays.group import ManifestGroup
from virtualds.formats.kerchunk.changed_rows import (
    ArrayChunks,
    cut_alike,
    find_first_changed_row,
    list_other_sources,
)
from virtualds.formats.kerchunk.parquet import (
    ParquetSet,
    check_size,
    count_displaced,
    demand_exchange,
    demand_no_claim,
    files_of,
    hierarchy_of,
    list_records,
    rows_of_record,
    to_document,
)
from virtualds.formats.kerchunk.records import join_record_path
from virtualds.formats.kerchunk.write_record import encode_record
from virtualds.formats.markers import ZMETADATA
from virtualds.formats.zarr.v2_write import RELATIVE, Hierarchy
from virtualds.progress import count_array
from virtualds.source_file import SourceFile, StorageOptions
from virtualds.stores import find_store
from virtualds.stores.access_rules import ANYWHERE, AccessPolicy
from virtualds.stores.fence import WriteLease, explain_vanished_files, outrun_error, read_marker
from virtualds.stores.store import ChangedError


def update(
    url: str,
    change: Callable[[ManifestGroup], ManifestGroup],
    options: StorageOptions | None = None,
    allow: AccessPolicy = ANYWHERE,
    *,
    record_size: int | None = None,
    relative_paths: bool | None = None,
) -> None:
    """Change a set, unless another writer was faster.

    If no existing reference changes, only records that get new ones are written. Otherwise the set
    is written anew, which works on local disk alone.

    Parameters
    ----------
    url : str
        Of the folder.
    change : callable
        Takes the whole set and returns the new one.
    options : StorageOptions, optional
        Access options of the set.
    allow : AccessPolicy
        Where the files that it refers to may lie.
    record_size : int, optional
        References in a record; by default as before.
    relative_paths : bool, optional
        Whether urls of sources are written relative to the set; by default as before.

    Raises
    ------
    FileNotFoundError
        There is no set.
    ConflictError
        Another writer was faster; nothing has changed.
    UnsupportedError
        Zarr v2 metadata cannot describe the new set; or the store has no conditional writes, or
        cannot replace existing references. Nothing has changed.
    """
    check_size(record_size)
    url = url.rstrip("/")
    found, version, displaced = find_set(url, options, allow)
    size = record_size or found.records.size
    was_relative = bool(found.notes.get(RELATIVE))
    relative = was_relative if relative_paths is None else relative_paths

    def is_there() -> bool:
        return find_store(url).find_version(f"{url}/{ZMETADATA}", options) == version

    with explain_vanished_files(is_there, url):
        before = found.read_tree()
        if (after := change(before)) is before:
            return
        is_alike = (size, relative) == (found.records.size, was_relative)
        growth = _SetGrowth.between(found, after, relative) if is_alike else None
        if growth is None:
            demand_exchange(url)
            hierarchy = hierarchy_of(after, url, relative=relative)
            replace_folder(found, version, files_of(hierarchy, size))
            return
    growth.write(version, displaced)


def find_set(
    url: str, options: StorageOptions | None, allow: AccessPolicy = ANYWHERE
) -> tuple[ParquetSet, str, int]:
    """Return a set that is to change, its version, and how many fences a new one displaces.

    Raises
    ------
    FileNotFoundError
        There is no set.
    """
    raw, version, displaced = read_marker(f"{url}/{ZMETADATA}", options, count_displaced)
    demand_no_claim(raw, url)
    return ParquetSet.parse(raw, SourceFile(url, options=options), allow), version, displaced


def replace_folder(found: ParquetSet, version: str, files: Iterable[tuple[str, bytes]]) -> None:
    """Replace the files of a set, if it still has the version that was read.

    Raises
    ------
    ConflictError
        Another writer was faster; nothing has changed.
    """
    url, options = found.source.url, found.source.options
    try:
        find_store(url).write_folder(url, files, options, replace=True, expected=version)
    except ChangedError as error:
        raise outrun_error(url) from error


@dataclass(frozen=True)
class _SetGrowth:
    """The growth of a set whose existing references all stay.

    Parameters
    ----------
    found : ParquetSet
    hierarchy : Hierarchy
        Of the new set.
    first : dict of str to int
        By array: the first row that is new, or holds more than before.
    """

    found: ParquetSet
    hierarchy: Hierarchy
    first: dict[str, int]

    @classmethod
    def between(cls, found: ParquetSet, after: ManifestGroup, relative: bool) -> _SetGrowth | None:
        """Return the growth of a set, None if existing references change."""
        url, holds = found.source.url, found.holds
        hierarchy = hierarchy_of(
            after, url, sources=lambda m: list_other_sources(m, holds), relative=relative
        )
        before = found.read_arrays()
        if before.keys() - hierarchy.manifests.keys():
            # readers of the old array would read another array of the same name
            return None
        first = {}
        for path, manifest in hierarchy.manifests.items():
            key = f"{path}/.zarray"
            then = ArrayChunks(hierarchy.metadata[key], manifest)
            if path in before:
                then = cut_alike(before[path], then)
            hierarchy.metadata[key], hierarchy.manifests[path] = then.metadata, then.manifest
            row = find_first_changed_row(before[path], then) if path in before else 0
            if row is None:
                return None
            first[path] = row
        for name, fingerprint in found.notes.get("files", {}).items():
            if hierarchy.notes["files"].get(name, fingerprint) != fingerprint:
                # the file of this name has changed, though its chunks lie where they did
                return None
            # kept, since only reading all records could tell whether it is still used
            hierarchy.note(SourceFile(name, *fingerprint))
        return cls(found, hierarchy, first)

    def _list_records(self, path: str) -> list[int]:
        """Return the numbers of the records of an array that get new rows."""
        size, manifest = self.found.records.size, self.hierarchy.manifests[path]
        if self.first[path] >= manifest.size:
            return []
        return [n for n in list_records(manifest, size) if n >= self.first[path] // size]

    def write(self, version: str, displaced: int) -> None:
        """Write records, then, in one step, the metadata that make them valid."""
        source, records = self.found.source, self.found.records
        size, token, writer = records.size, records.token, secrets.token_hex(8)
        grown = {path: self._list_records(path) for path in self.hierarchy.manifests}
        paths = [join_record_path(path, n) for path, numbers in grown.items() for n in numbers]
        fence = WriteLease(source.url, ZMETADATA, source.options, version, paths)
        fence.replace_marker(self.found.to_fence(writer, displaced))
        with explain_vanished_files(fence.is_current, source.url):
            for path, numbers in grown.items():
                self._write_array(path, numbers, fence, writer)
        names = {"set": token, "writer": writer}
        fence.replace_marker(to_document(self.hierarchy, size, names))

    def _write_array(self, path: str, numbers: list[int], fence: WriteLease, writer: str) -> None:
        records, manifest = self.found.records, self.hierarchy.manifests[path]
        name = self.hierarchy.name_file
        with count_array(manifest.size) as advance:
            for number in numbers:
                rows = rows_of_record(manifest, number, records.size)
                data = encode_record(rows, name, records.size, records.token, writer)
                fence.put(join_record_path(path, number), data)
                advance(rows.size)
