"""Find, read, commit and expire the snapshots of a zarr-v3 set."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np

from virtualds.arrays.group import ManifestGroup
from virtualds.errors import FormatError, make_damage_error, make_exists_error
from virtualds.formats import READ_ALL, Expiry, ReadOptions, Removal
from virtualds.formats.zarr import (
    CHUNKS,
    COPIES,
    FOLDER,
    HISTORY,
    MARKER,
    NOTES,
    TURN,
    Document,
    build_value_entries,
    check_node,
    drop_manifest_keys,
    join_snapshot_path,
    list_value_chunks,
    make_snapshot_id,
    parse_chunk_keys,
    read_copies,
)
from virtualds.formats.zarr.groups import GroupBuilder
from virtualds.formats.zarr.v3_arrays import Manifests
from virtualds.formats.zarr_manifests.manifests import (
    build_json_manifest,
    iterate_manifest_parts,
    read_parts,
    read_source_table,
)
from virtualds.formats.zarr_manifests.parquet_table import SourceTable
from virtualds.formats.zarr_manifests.set_files import SetFiles, to_set_path
from virtualds.json_values import parse_json
from virtualds.source_file import SourceFile, StorageOptions
from virtualds.stores import find_store
from virtualds.stores.access_rules import DEFAULT_POLICY, AccessPolicy
from virtualds.stores.fence import make_conflict_error
from virtualds.stores.scan_cache import cache_files
from virtualds.stores.store import ChangedError, ListedFile

MAX_LISTED = 64
"""Maximum number of earlier snapshots in the root; others are in history files."""
Snapshots = list[tuple[str, str]]
"""Ids and times of snapshots, oldest first."""
Put = Callable[[str, bytes], None]
"""A function that writes a file of the set, at a path that no other writer uses."""
SNAPSHOT_ID = re.compile(r"\d{8}T\d{12}-[0-9a-f]{8}")
"""The ids that `virtualds.formats.zarr.make_snapshot_id` returns."""


def open_newest(root: str, options: StorageOptions | None) -> tuple[Document, str]:
    """Return the document of the newest snapshot, and the version of the root, for writers."""
    url = f"{root}/{MARKER}"
    data, version = find_store(url).read_with_version(url, options)
    return Document.parse(data, url), version


def read_snapshot(root: str, options: StorageOptions | None, snapshot: str | None) -> Document:
    """Return the document of a snapshot, by default of the newest."""
    url = f"{root}/{MARKER}"
    document = Document.parse(find_store(url).read_all(url, options), url)
    if snapshot is None or snapshot == document.snapshot:
        return document
    names = [name for name, _ in list_snapshots(root, options, document)]
    if snapshot not in names:
        raise FileNotFoundError(f"{root}: there is no snapshot {snapshot!r}; there are {names}")
    return _read_archived_snapshot(root, options, snapshot)


def _read_archived_snapshot(root: str, options: StorageOptions | None, snapshot: str) -> Document:
    """Return the document of an earlier snapshot."""
    url = f"{root}/{join_snapshot_path(snapshot)}"
    store = find_store(url)
    try:
        return Document.parse(gzip.decompress(store.read_all(url, options)), url)
    except FileNotFoundError:
        # versions 0.x of the package did not compress snapshots
        unpacked_url = url.removesuffix(".gz")
        return Document.parse(store.read_all(unpacked_url, options), unpacked_url)
    except (OSError, EOFError, zlib.error) as error:
        raise make_damage_error(f"{url}: it is not a snapshot ({error})", "set") from error


def read_all_nodes(
    root: str, options: StorageOptions | None, document: Document
) -> dict[str, dict[str, Any]]:
    """Return the metadata of all nodes of a set, even if they are not consolidated."""
    if document.is_consolidated:
        return document.nodes
    store = find_store(root)
    nodes = dict(document.nodes)
    for path, _, _ in store.list_files(root, options):
        folder, _, name = path.rpartition("/")
        if name == MARKER and folder and not folder.startswith("__"):
            url = f"{root}/{path}"
            nodes[folder] = parse_json(store.read_all(url, options), url)
            check_node(folder, nodes[folder], url)
    return nodes


def commit_document(
    root: str, options: StorageOptions | None, document: Document, version: str | None
) -> None:
    """Make a document the newest snapshot, unless another writer was faster."""
    url = f"{root}/{MARKER}"
    try:
        find_store(url).write_version(url, document.to_bytes(), options, version)
    except ChangedError as error:
        # the store may have accepted a first request whose response was lost, and rejected its
        # repetition
        newest = open_newest(root, options)[0]
        if not _has_committed(*(list_snapshots(root, options, d) for d in (newest, document))):
            raise make_conflict_error(root) from error


def _has_committed(newest: Snapshots, ours: Snapshots) -> bool:
    """Return whether our snapshot was committed, even if others have committed on top of it.

    Then the history of the newest snapshot has ours, and before it no snapshot that ours lacks.
    """
    newest_ids, our_ids = ([name for name, _ in snapshots] for snapshots in (newest, ours))
    return our_ids[-1] in newest_ids and set(newest_ids[: newest_ids.index(our_ids[-1])]) <= set(
        our_ids
    )


# ---------------------------------------------------------------------- history


def read_history(url: str, options: StorageOptions | None = None) -> Snapshots:
    """Return the ids and times of all snapshots, the newest last."""
    root = url.rstrip("/")
    return list_snapshots(root, options, open_newest(root, options)[0])


def list_snapshots(root: str, options: StorageOptions | None, document: Document) -> Snapshots:
    """Return the ids and times of all snapshots that can be opened, the current one last."""
    snapshots = Snapshots()
    for item in document.notes.get(HISTORY, ()):
        snapshots += (
            [(item[0], item[1])] if len(item) == 2 else _read_history_file(root, options, item[0])
        )
    if document.snapshot:
        snapshots.append((document.snapshot, document.notes["time"]))
    return snapshots


def _read_history_file(root: str, options: StorageOptions | None, path: str) -> Snapshots:
    """Return the snapshots in a history file."""
    url = f"{root}/{to_set_path('', path)}"
    rows = parse_json(find_store(url).read_all(url, options), url)
    try:
        return [(str(name), str(time)) for name, time in rows]
    except (TypeError, ValueError) as error:
        raise make_damage_error(f"{url}: it is not a list of snapshots", "set") from error


def extend_history(
    root: str, options: StorageOptions | None, before: Document, write_file: Put
) -> Any:
    """Return the history for the snapshot that follows ``before``.

    The root lists the newest snapshots. When they are many, they are moved to a history file, which
    is merged with files of similar size, so that the cost of an append stays the same.
    """
    listed = [*before.notes.get(HISTORY, ())]
    if before.snapshot:
        listed.append((before.snapshot, before.notes["time"]))
    pairs = [item for item in listed if len(item) == 2]
    if len(pairs) < MAX_LISTED:
        return listed
    files = listed[: -len(pairs)]
    while files and files[-1][1] <= len(pairs):
        pairs = [*_read_history_file(root, options, files.pop()[0]), *pairs]
    return [*files, _put_history(pairs, write_file)]


def _put_history(pairs: Sequence[Any], write_file: Put) -> tuple[str, int, str]:
    """Write a history file, and return its entry in the history, with its last time."""
    path = f"{FOLDER}/{make_snapshot_id()[0]}/history.json"
    write_file(path, json.dumps(pairs, separators=(",", ":")).encode())
    return path, len(pairs), pairs[-1][1]


def write_nodes(
    root: str, options: StorageOptions | None, document: Document, before: Document | None
) -> None:
    """Write the metadata of all nodes for readers without consolidated metadata.

    These are copies; the root document takes precedence.
    """
    store = find_store(root)
    existing = before.nodes if before else {}
    for path, node in document.nodes.items():
        if path and existing.get(path) != node:
            data = json.dumps(node, allow_nan=False, separators=(",", ":")).encode()
            store.write_file(f"{root}/{path}/{MARKER}", data, options)
    removed = [path for path in existing if path not in document.nodes]
    store.remove([f"{root}/{path}/{MARKER}" for path in removed], options)


# ---------------------------------------------------------------------- expiry


def expire(url: str, options: StorageOptions | None, expiry: Expiry) -> Removal:
    """Remove old snapshots and files that no other snapshot needs, and return what was removed."""
    root = url.rstrip("/")
    if not expiry.dry_run:
        find_store(root).check_conditions(root, options)
    document, version = open_newest(root, options)
    now = datetime.now(UTC)
    with _detect_concurrent_expiry(root, options, version):
        snapshots = list_snapshots(root, options, document)
        expired_ids = _list_expired(snapshots, expiry, now)
        remaining = [(name, time) for name, time in snapshots[:-1] if name not in expired_ids]
        expired = [_read_archived_snapshot(root, options, name) for name in expired_ids]
        remaining_documents = (
            _read_archived_snapshot(root, options, name) for name, _ in remaining
        )
        needed = collect_needed_files(root, options, chain([document], remaining_documents))
    if not expiry.dry_run:
        if expired_ids:
            document.notes[HISTORY] = remaining
            if len(remaining) > MAX_LISTED:

                def put(path: str, data: bytes) -> None:
                    find_store(root).write_file(f"{root}/{path}", data, options)

                document.notes[HISTORY] = [_put_history(remaining, put)]
            commit_document(root, options, document, version)
        write_nodes(root, options, document, None)
    unneeded = list(
        _iterate_unneeded(root, options, needed, expired, set(expired_ids), now - expiry.grace)
    )
    if not expiry.dry_run:
        find_store(root).remove([listed.file.url for listed in unneeded], options)
    return Removal.of(expired_ids, unneeded)


@contextmanager
def _detect_concurrent_expiry(
    root: str, options: StorageOptions | None, version: str
) -> Iterator[None]:
    """Raise a conflict if a file is missing because another writer has expired its snapshot."""
    try:
        yield
    except FileNotFoundError as error:
        if open_newest(root, options)[1] != version:
            raise make_conflict_error(root) from error
        raise FormatError(
            f"{root}: a file that a snapshot of the set needs is gone ({error}); restore it, or "
            f"write the set again (mode='w')"
        ) from error


def _list_expired(snapshots: Snapshots, expiry: Expiry, now: datetime) -> list[str]:
    """Return the ids of the snapshots to remove."""
    return [
        name
        for name, time in snapshots[:-1][: len(snapshots) - expiry.keep]
        if expiry.older_than is None or now - datetime.fromisoformat(time) >= expiry.older_than
    ]


def _iterate_unneeded(
    root: str,
    options: StorageOptions | None,
    needed: set[str],
    expired: list[Document],
    expired_ids: set[str],
    before: datetime,
) -> Iterator[ListedFile]:
    """Yield the files of the set that no snapshot needs; files of other writers only if old.

    Only files with the id of a snapshot in their name, chunks to which a snapshot refers, and the
    turn of a writer belong to the set. Chunks that are named by their hash are yielded only if old,
    since a writer may still commit a new chunk.
    """
    folders = tuple(path for path in needed if path.endswith("/"))
    chunks = {path for document in expired for path in _iterate_chunk_paths(document)}
    for listed in find_store(root).list_files(root, options):
        path = listed.path
        if path in needed or path.startswith(folders):
            continue
        ids = set(SNAPSHOT_ID.findall(path))
        is_old = listed.modified is not None and listed.modified < before.timestamp()
        is_own = ids or path.startswith(f"{CHUNKS}/") or path == TURN
        if path in chunks or not ids.isdisjoint(expired_ids) or (is_own and is_old):
            yield listed


def _iterate_chunk_paths(document: Document) -> Iterator[str]:
    """Yield the paths of the chunks of native arrays."""
    for path, entry in document.notes.get("values", {}).items():
        yield from (chunk.get_path(path) for chunk in list_value_chunks(entry))


def collect_needed_files(
    root: str, options: StorageOptions | None, documents: Iterable[Document]
) -> set[str]:
    """Return the paths of the files that snapshots need, and of folders, which end in a slash.

    Snapshots share most of their tables, so each table is read once.
    """
    needed, tables = set[str](), set[SourceTable]()
    manifests = SetFiles(root, options)
    for document in documents:
        if document.snapshot is not None:
            path = join_snapshot_path(document.snapshot)
            needed |= {path, path.removesuffix(".gz")}
        needed.update(item[0] for item in document.notes.get(HISTORY, ()) if len(item) == 3)
        needed.update(_iterate_chunk_paths(document))
        for folder, part in iterate_manifest_parts(document.nodes):
            _add_needed(folder, part, manifests, needed, tables)
    return needed


def _add_needed(
    folder: str,
    part: Mapping[str, Any],
    manifests: SetFiles,
    needed: set[str],
    tables: set[SourceTable],
) -> None:
    """Add the files of a part of a manifest, and the files of the set to which it refers."""
    if (table_json := part.get("table")) is not None:
        needed.add(to_set_path(folder, table_json["path"]) + "/")
        table = read_source_table(folder, table_json["sources"])
        if table not in tables:
            tables.add(table)
            needed.add(f"{table.folder}/")
            fingerprints = table.read_fingerprints(manifests, np.arange(table.rows))
            needed.update(_select_inside(path for path, _ in fingerprints))
        return
    entries = part["manifest"]
    files = (path for path in (entries, part.get("sources")) if isinstance(path, str))
    paths = [to_set_path(folder, path) for path in files]
    if isinstance(entries, str):
        if paths[0] in needed:
            return
        entries = manifests.read_document(paths[0])
    needed.update(paths)
    needed.update(_select_inside(entry.get("path") for entry in entries.values()))


def _select_inside(paths: Iterable[str | None]) -> Iterator[str]:
    """Yield the paths that are in the set."""
    for path in paths:
        if path is not None and path.startswith("./"):
            yield path[2:]


# ---------------------------------------------------------------------- reading


def detect(marker: bytes) -> bool:
    """Return whether the root ``zarr.json`` of a folder belongs to a set, not to plain Zarr."""
    has_notes = f'"{NOTES}"'.encode() in marker or b'"chunk-manifest-' in marker
    return has_notes and b'"node_type"' in marker


def read(source: SourceFile, read_options: ReadOptions = READ_ALL) -> ManifestGroup:
    """Read the reference set in a folder: its metadata immediately, manifests on demand."""
    root = source.url.rstrip("/")
    return build_group(
        root,
        source.options,
        read_snapshot(root, source.options, read_options.snapshot),
        read_options,
    )


def build_group(
    root: str,
    options: StorageOptions | None,
    document: Document,
    read_options: ReadOptions = READ_ALL,
) -> ManifestGroup:
    """Return a group of the document of a set, with its subgroups."""
    values, copies = document.notes.get("values", {}), document.notes.get(COPIES, {})
    files = SetFiles(root, options, read_options.allow, document.notes.get("sources"))

    def find_parts(path: str, node: Mapping[str, Any]) -> Manifests:
        # reading coordinates of a remote set then takes no request
        contents = read_copies(path, values.get(path), copies)
        cache_files((f"{root}/{name}", data) for name, data in contents)
        transformers = node.get("storage_transformers") or [_describe_native(path, values)]
        if len(transformers) != 1:
            raise FormatError(f"{len(transformers)} storage transformers; only one is supported")
        key = parse_chunk_keys(drop_manifest_keys(node))
        return lambda grids, numbered: read_parts(
            files, path, transformers[0], grids, numbered, key
        )

    nodes = read_all_nodes(root, options, document)
    return GroupBuilder(root, nodes, document.notes, find_parts, read_options.skip).read_group(
        read_options.group
    )


def _describe_native(path: str, values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the storage transformer that a native array would have."""
    entry = values.get(path, {})
    if not entry or entry.get("folder"):
        # the entry maps all keys, and chunks without a file are missing
        return build_json_manifest({"./": {"path": f"./{path}/"}})
    return build_json_manifest(build_value_entries(path, entry))


# ---------------------------------------------------------------------- sets to write


@dataclass(frozen=True)
class FoundSet:
    """A set that a writer has read: its newest snapshot, and the version of the root."""

    root: str
    options: StorageOptions | None
    document: Document
    version: str
    allow: AccessPolicy = DEFAULT_POLICY

    @cached_property
    def group(self) -> ManifestGroup:
        """The whole set."""
        return build_group(self.root, self.options, self.document, ReadOptions(allow=self.allow))

    def is_current(self) -> bool:
        url = f"{self.root}/{MARKER}"
        return find_store(url).find_version(url, self.options) == self.version


def find_replaceable(root: str, options: StorageOptions | None, replace: bool) -> FoundSet | None:
    """Return the existing set if it may be replaced, or None if there is none."""
    found = find_set(root, options)
    if found is not None and not replace:
        raise make_exists_error(root)
    return found


def find_set(root: str, options: StorageOptions | None) -> FoundSet | None:
    """Return the existing set, or None if there is none, or raise an error for other folders."""
    store = find_store(root)
    url = f"{root}/{MARKER}"
    try:
        data, version = store.read_with_version(url, options)
    except (FileNotFoundError, NotADirectoryError):
        files = [listed.path for listed in store.list_files(root, options)]
        # a writer may have been killed before its first commit
        if not files or any(path.startswith(f"{FOLDER}/") for path in files):
            return None
        data = b""
    if not detect(data):
        raise FileExistsError(
            f"{root}: exists already, and is not a reference set; remove it, or choose another name"
        )
    return FoundSet(root, options, Document.parse(data, url), version)
