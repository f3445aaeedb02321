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
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from virtualds.arrays.group import ManifestGroup
from virtualds.chunks.lazy_manifest import LazyManifest
from virtualds.chunks.manifest import ChunkManifest
from virtualds.chunks.reference_table import ReferenceTable, walked
from virtualds.errors import FormatError, UnsupportedError, exists_already
from virtualds.json_values import parsed
from virtualds.kerchunk_references.records import (
    MARKER,
    Records,
    RecordTable,
    meaning_of,
    record,
    record_path,
)
from virtualds.record_changes import ArrayChunks, cut_alike, first_changed_row, sources_besides
from virtualds.referenced_files import MALFORMED, malformed
from virtualds.source_file import SourceFile, StorageOptions
from virtualds.stores import store_for
from virtualds.stores.access_rules import ANYWHERE, Allowed
from virtualds.stores.fence import Fence, create_folder, is_claim, outrun, reads_while
from virtualds.stores.store import ChangedError
from virtualds.urls import scheme_of
from virtualds.zarr_hierarchy import NOTES, Hierarchy, HierarchyReader
from virtualds.zarr_metadata import chunk_grid
from virtualds.zarr_v3.planning import zarr_v3_suggested

RECORD_SIZE = 100_000
"""References in a record, unless every array has fewer chunks."""


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
    demand_no_claim(raw, source.url)
    return ParquetSet.parse(raw, source, allow).tree(group, skip)


def demand_no_claim(marker: bytes, url: str) -> None:
    """Take a set that somebody is creating for none."""
    if is_claim(marker):
        raise FileNotFoundError(
            f"{url}: it is being created; open it when that is done, or, if whoever began has "
            f"failed, create it again"
        )


@dataclass(frozen=True)
class ParquetSet:
    """What the ``.zmetadata`` of a set say."""

    source: SourceFile
    document: Mapping[str, Any]
    metadata: Mapping[str, Any]
    notes: Mapping[str, Any]
    records: Records

    @classmethod
    def parse(cls, raw: bytes, source: SourceFile, allow: Allowed) -> ParquetSet:
        """Return the set in a folder."""
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
            records = Records(source, size, notes, allow, meaning_of(document))
            return cls(source, document, metadata, notes, records)
        except MALFORMED as error:
            if isinstance(error, FormatError):
                raise
            raise malformed(source.url, error) from error

    def chunks(self, path: str, grid: tuple[int, ...]) -> ChunkManifest:
        """Return where the chunks of an array lie."""
        if any(part in ("", ".", "..") or "\\" in part for part in path.split("/")):
            raise FormatError(
                f"{self.source.url}: the path {path!r} of an array leads out of the set"
            )
        if not prod(grid):
            return ChunkManifest.missing(grid)
        return LazyManifest(RecordTable(self.records, path, prod(grid)), grid)

    def tree(self, group: str | None = None, skip: Iterable[str] = ()) -> ManifestGroup:
        """Return a group with everything below it."""
        known = (self.source, self.metadata, self.notes, self.chunks, frozenset(skip))
        return HierarchyReader(*known).tree(group)

    def arrays(self) -> dict[str, ArrayChunks]:
        """Return all arrays by their paths."""
        arrays = {
            key.removesuffix("/.zarray"): metadata
            for key, metadata in self.metadata.items()
            if key.endswith("/.zarray")
        }
        return {
            path: ArrayChunks(metadata, self.chunks(path, chunk_grid(metadata)))
            for path, metadata in arrays.items()
        }

    def named(self, writer: str) -> bytes:
        """Return the ``.zmetadata`` as they are, but for the name of a writer among our notes."""
        notes = {**self.notes, "writer": writer}
        return json.dumps({**self.document, NOTES: notes}, allow_nan=False).encode()

    def holds(self, table: ReferenceTable) -> bool:
        """Say whether a table of references is one of this set's."""
        return isinstance(table, RecordTable) and table.is_of(self.records)


def _parsed(value: Any, where: str) -> Any:
    """Return metadata, which stand as JSON, or as text that holds JSON."""
    return parsed(value, where) if isinstance(value, str) else value


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
        Variables that Zarr v2 metadata cannot describe; all of them are named. Or a set would have
        to be replaced elsewhere than on local disk.
    FileExistsError
        There is something of this name, and it is no set or may not be replaced.
    ConflictError
        Another writer was faster; nothing has changed.
    ValueError
        ``record_size`` is no number of references.
    """
    _check_size(record_size)
    hierarchy = hierarchy_of(group, url)
    url = url.rstrip("/")
    replaces = _is_set(url, options)
    if replaces and not replace:
        raise exists_already(url)
    if replaces:
        _demand_exchange(url)
    files = files_of(hierarchy, record_size or _record_size(hierarchy))
    if scheme_of(url) != "file":
        create_folder(url, MARKER, files, options)
        return
    try:
        store_for(url).write_folder(url, files, options, replace=replaces)
    except FileExistsError as error:
        if replace and _is_set(url, options):
            raise outrun(url) from error
        raise


def _check_size(record_size: Any) -> None:
    if record_size is not None and (type(record_size) is not int or record_size < 1):
        raise ValueError(f"record_size {record_size!r}: it is a number of references, at least 1")


def hierarchy_of(group: ManifestGroup, url: str, **how: Any) -> Hierarchy:
    """Return the hierarchy that holds a group, all of whose paths may be folders."""
    with zarr_v3_suggested(group, url):
        hierarchy = Hierarchy.of(group, url, "kerchunk-parquet", **how)
    if odd := [p for p in hierarchy.manifests if any(_is_no_name(n) for n in p.split("/"))]:
        raise UnsupportedError(f"{url}: the variable {odd[0]!r} cannot be the name of a folder")
    return hierarchy


def _is_no_name(name: str) -> bool:
    return name in (".", "..") or "\\" in name


def _record_size(hierarchy: Hierarchy) -> int:
    largest = max((m.size for m in hierarchy.manifests.values()), default=1)
    return max(1, min(RECORD_SIZE, largest))


def _is_set(url: str, options: StorageOptions | None) -> bool:
    """Say whether there is a set that could be replaced."""
    try:
        return detect(store_for(url).read_all(f"{url}/{MARKER}", options))
    except (FileNotFoundError, NotADirectoryError):
        return False


def _demand_exchange(url: str) -> None:
    """Refuse to replace references where no store can do that in one step."""
    if scheme_of(url) != "file":
        raise UnsupportedError(
            f"{url}: references of a set that is there would be replaced, which cannot be done in "
            f"one step but on local disk; write to another url, remove the set first, or use "
            f"format='zarr-v3', which replaces sets in any store"
        )


def files_of(hierarchy: Hierarchy, size: int) -> Iterator[tuple[str, bytes]]:
    """Yield the files of a set, the one that makes it a set last."""
    token = secrets.token_hex(8)
    for path, manifest in hierarchy.manifests.items():
        for number, (_, rows) in enumerate(walked(manifest, most=size)):
            yield record_path(path, number), record(rows, size, token)
    yield MARKER, to_document(hierarchy, size, {"set": token})


def rows_of_record(manifest: ChunkManifest, number: int, size: int) -> ChunkManifest:
    """Return the chunks of one record."""
    return manifest.at(np.arange(number * size, min(number * size + size, manifest.size)))


def to_document(hierarchy: Hierarchy, size: int, names: Mapping[str, str | None]) -> bytes:
    """Return the file that makes a folder a set."""
    known = {key: name for key, name in names.items() if name is not None}
    document = {
        "metadata": hierarchy.metadata,
        "record_size": size,
        NOTES: known | hierarchy.noted(),
    }
    return json.dumps(document, allow_nan=False).encode()


# ---------------------------------------------------------------------- updating


def update(
    url: str,
    change: Callable[[ManifestGroup], ManifestGroup],
    options: StorageOptions | None = None,
    allow: Allowed = ANYWHERE,
    *,
    record_size: int | None = None,
) -> None:
    """Replace a set by what becomes of it, unless another writer was faster.

    Where no reference changes that is there already, only the records that get new ones are
    written. Anything else writes the set anew, which can be done on local disk alone.

    Parameters
    ----------
    url : str
        Of the folder.
    change : callable
        Takes the whole set and returns what it is to be.
    options : StorageOptions, optional
        Access options of the set.
    allow : Allowed
        Where the files that it refers to may lie.
    record_size : int, optional
        References in a record; by default as many as there were.

    Raises
    ------
    FileNotFoundError
        There is no set.
    ConflictError
        Another writer was faster; nothing has changed.
    UnsupportedError
        Zarr v2 metadata cannot describe what it is to be; or the store knows no conditional writes,
        or would have to replace references that are there. Nothing has changed.
    """
    _check_size(record_size)
    url = url.rstrip("/")
    raw, version = store_for(url).read_version(f"{url}/{MARKER}", options)
    demand_no_claim(raw, url)
    found = ParquetSet.parse(raw, SourceFile(url, options=options), allow)
    size = record_size or found.records.size

    def is_there() -> bool:
        return store_for(url).version(f"{url}/{MARKER}", options) == version

    with reads_while(is_there, url):
        before = found.tree()
        if (after := change(before)) is before:
            return
        growth = _Growth.between(found, after) if size == found.records.size else None
        if growth is None:
            _replace(found, version, after, size)
            return
    growth.write(version)


def _replace(found: ParquetSet, version: str, after: ManifestGroup, size: int) -> None:
    """Put another set in the place of one that is still of the version that was read."""
    source = found.source
    _demand_exchange(source.url)
    files = files_of(hierarchy_of(after, source.url), size)
    store = store_for(source.url)
    try:
        store.write_folder(source.url, files, source.options, replace=True, expected=version)
    except ChangedError as error:
        raise outrun(source.url) from error


@dataclass(frozen=True)
class _Growth:
    """What becomes of a set in which all references stay that are there.

    Parameters
    ----------
    found : _Set
    hierarchy : Hierarchy
        What it is to be.
    first : dict of str to int
        By array: the first row that is new, or holds more than before.
    """

    found: ParquetSet
    hierarchy: Hierarchy
    first: dict[str, int]

    @classmethod
    def between(cls, found: ParquetSet, after: ManifestGroup) -> _Growth | None:
        """Return it, None if references change."""
        url, holds = found.source.url, found.holds
        hierarchy = hierarchy_of(after, url, sources=lambda m: sources_besides(m, holds))
        before = found.arrays()
        if before.keys() - hierarchy.manifests.keys():
            # a name that is given away again would be read by those who still know the old array
            return None
        first = {}
        for path, manifest in hierarchy.manifests.items():
            key = f"{path}/.zarray"
            then = ArrayChunks(hierarchy.metadata[key], manifest)
            if path in before:
                then = cut_alike(before[path], then)
            hierarchy.metadata[key], hierarchy.manifests[path] = then.metadata, then.manifest
            row = first_changed_row(before[path], then) if path in before else 0
            if row is None:
                return None
            first[path] = row
        for name, fingerprint in found.notes.get("files", {}).items():
            if hierarchy.notes["files"].get(name, fingerprint) != fingerprint:
                # another file of this name, whose chunks happen to lie where they did
                return None
            # which of them are still used only reading all records could tell
            hierarchy.note(SourceFile(name, *fingerprint))
        return cls(found, hierarchy, first)

    def _records(self) -> Iterator[tuple[str, ChunkManifest, int]]:
        """Yield the path, the array and the number of every record that gets new rows."""
        size = self.found.records.size
        for path, manifest in self.hierarchy.manifests.items():
            if self.first[path] < manifest.size:
                for number in range(self.first[path] // size, -(-manifest.size // size)):
                    yield record_path(path, number), manifest, number

    def write(self, version: str) -> None:
        """Write records, then, in one step, the metadata that make them count."""
        source, records = self.found.source, self.found.records
        size, token, writer = records.size, records.token, secrets.token_hex(8)
        paths = [path for path, _, _ in self._records()]
        fence = Fence(source.url, MARKER, source.options, version, paths)
        fence.replace_marker(self.found.named(writer))
        with reads_while(fence.stands, source.url):
            for path, manifest, number in self._records():
                fence.put(path, record(rows_of_record(manifest, number, size), size, token, writer))
        names = {"set": token, "writer": writer}
        fence.replace_marker(to_document(self.hierarchy, size, names))
