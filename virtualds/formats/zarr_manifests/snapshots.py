"""Open, commit and expire the snapshots of a set."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import numpy as np

from virtualds.errors import FormatError
from virtualds.formats import Expiry, Removal
from virtualds.formats.zarr.document import (
    CHUNKS,
    MARKER,
    Document,
    check_node,
    join_snapshot_path,
    values_folder_of,
)
from virtualds.formats.zarr_manifests.manifests import (
    JSON_MANIFEST,
    StoredManifests,
    read_source_table,
    to_set_path,
)
from virtualds.json_values import parse_json
from virtualds.source_file import StorageOptions
from virtualds.stores import find_store
from virtualds.stores.fence import outrun_error
from virtualds.stores.store import ChangedError, ListedFile

SNAPSHOT_ID = re.compile(r"\d{8}T\d{12}-[0-9a-f]{8}")
"""Ids of `virtualds.formats.zarr.document.name_snapshot`."""


def open_newest(root: str, options: StorageOptions | None) -> tuple[Document, str]:
    """Return the document of the newest snapshot, and the name of its version, for writers."""
    url = f"{root}/{MARKER}"
    data, version = find_store(url).read_version(url, options)
    return Document.parse(data, url), version


def read_snapshot(root: str, options: StorageOptions | None, snapshot: str | None) -> Document:
    """Return the document of a snapshot, by default of the newest.

    Raises
    ------
    FileNotFoundError
        There is no such snapshot.
    """
    url = f"{root}/{MARKER}"
    document = Document.parse(find_store(url).read_all(url, options), url)
    if snapshot is None or snapshot == document.snapshot:
        return document
    names = [name for name, _ in document.history]
    if snapshot not in names:
        raise FileNotFoundError(f"{root}: there is no snapshot {snapshot!r}; there are {names}")
    return _open_kept(root, options, snapshot)


def _open_kept(root: str, options: StorageOptions | None, snapshot: str) -> Document:
    """Return the document of a snapshot of the history."""
    url = f"{root}/{join_snapshot_path(snapshot)}"
    return Document.parse(find_store(url).read_all(url, options), url)


def read_all_nodes(
    root: str, options: StorageOptions | None, document: Document
) -> dict[str, dict[str, Any]]:
    """Return the metadata of all nodes of a set, consolidated or not."""
    if document.is_consolidated:
        return document.nodes
    store = find_store(root)
    found = dict(document.nodes)
    for path, _, _ in store.list_files(root, options):
        folder, _, name = path.rpartition("/")
        if name == MARKER and folder and not folder.startswith("__"):
            url = f"{root}/{path}"
            found[folder] = parse_json(store.read_all(url, options), url)
            check_node(folder, found[folder], url)
    return found


def swap(
    root: str, options: StorageOptions | None, document: Document, version: str | None
) -> None:
    """Make a document the newest, unless another writer was faster."""
    url = f"{root}/{MARKER}"
    try:
        find_store(url).write_version(url, document.to_bytes(), options, version)
    except ChangedError as error:
        # the store may have kept a first request whose answer was lost, and refused the second
        if not _continues(open_newest(root, options)[0], document):
            raise outrun_error(root) from error


def _continues(newest: Document, document: Document) -> bool:
    """Say whether a document has been the newest: others may have committed on top of it.

    The newest has its snapshot then, and before that none that the document has let go of.
    """
    names, ours = ([name for name, _ in one.history] for one in (newest, document))
    if document.snapshot not in names:
        return False
    return set(names[: names.index(document.snapshot)]) <= set(ours)


def write_nodes(
    root: str, options: StorageOptions | None, document: Document, before: Document | None
) -> None:
    """Write the metadata of every node for readers without consolidated metadata.

    They are copies, for convenience: the root document counts.
    """
    store = find_store(root)
    known = before.nodes if before else {}
    for path, node in document.nodes.items():
        if path and known.get(path) != node:
            data = json.dumps(node, allow_nan=False, separators=(",", ":")).encode()
            store.write_file(f"{root}/{path}/{MARKER}", data, options)
    gone = [path for path in known if path not in document.nodes]
    store.remove([f"{root}/{path}/{MARKER}" for path in gone], options)


# ---------------------------------------------------------------------- expiring


def expire_snapshots_of(root: str, options: StorageOptions | None, expiry: Expiry) -> Removal:
    """Remove old snapshots, and files that no other snapshot needs.

    Raises
    ------
    ConflictError
        Another writer was faster; nothing has changed.
    """
    if not expiry.dry_run:
        find_store(root).demand_conditions(root, options)
    document, version = open_newest(root, options)
    now = datetime.now(UTC)
    going = _list_expired(document, expiry, now)
    staying = [(name, time) for name, time in document.history[:-1] if name not in going]
    with _noticing_others(root, options, version):
        lost = [_open_kept(root, options, name) for name in going]
        kept = [document, *(_open_kept(root, options, name) for name, _ in staying)]
        needed = {path for one in kept for path in list_needed_files(root, options, one)}
    if not expiry.dry_run:
        if going:
            document.notes["history"] = staying
            swap(root, options, document, version)
        write_nodes(root, options, document, None)
    unneeded = list(_list_unneeded(root, options, needed, lost, set(going), now - expiry.grace))
    if not expiry.dry_run:
        find_store(root).remove([one.file.url for one in unneeded], options)
    return Removal.of(going, unneeded)


@contextmanager
def _noticing_others(root: str, options: StorageOptions | None, version: str) -> Iterator[None]:
    """Raise a conflict where a file is gone because another writer has expired its snapshot."""
    try:
        yield
    except FileNotFoundError as error:
        if open_newest(root, options)[1] != version:
            raise outrun_error(root) from error
        raise FormatError(
            f"{root}: a file that a snapshot of the set needs is gone ({error}); restore it, or "
            f"write the set anew (mode='w')"
        ) from error


def _list_expired(document: Document, expiry: Expiry, now: datetime) -> list[str]:
    """Return the ids of the snapshots that go."""
    return [
        name
        for name, time in document.history[:-1][: len(document.history) - expiry.keep]
        if expiry.older_than is None or now - datetime.fromisoformat(time) >= expiry.older_than
    ]


def _list_unneeded(
    root: str,
    options: StorageOptions | None,
    needed: set[str],
    lost: list[Document],
    gone: set[str],
    before: datetime,
) -> Iterator[ListedFile]:
    """Yield files of the set that no snapshot needs, those of unknown writers only if old.

    Only files with the id of a snapshot in their name, and chunks that a snapshot names, belong to
    the set; also old chunks named by content, since a writer may be about to need a new one.
    """
    folders = tuple(path for path in needed if path.endswith("/"))
    chunks = {path for document in lost for path in _list_chunks(document)}
    for listed in find_store(root).list_files(root, options):
        path = listed.path
        if path in needed or path.startswith(folders):
            continue
        ids = set(SNAPSHOT_ID.findall(path))
        old = listed.modified is not None and listed.modified < before.timestamp()
        ours = ids or path.startswith(f"{CHUNKS}/")
        if path in chunks or not ids.isdisjoint(gone) or (ours and old):
            yield listed


def _list_chunks(document: Document) -> Iterator[str]:
    """Yield the paths of the chunks of values."""
    for path, noted in document.notes.get("values", {}).items():
        folder = values_folder_of(path, noted)
        yield from (f"{folder}/{name}" for name, _, _ in noted["chunks"])


def list_needed_files(
    root: str, options: StorageOptions | None, document: Document
) -> Iterator[str]:
    """Yield the paths of files and, ending in a slash, of folders that a snapshot needs."""
    if document.snapshot is not None:
        yield join_snapshot_path(document.snapshot)
    yield from _list_chunks(document)
    for path, node in document.nodes.items():
        for transformer in node.get("storage_transformers") or ():
            yield from _list_needed_by(root, options, path, transformer)


def _list_needed_by(
    root: str, options: StorageOptions | None, folder: str, transformer: Mapping[str, Any]
) -> Iterator[str]:
    """Yield the files that a manifest needs: its own, and those of the set that it refers to."""
    said = transformer["configuration"]
    manifests = StoredManifests(root, options)
    if transformer["name"] == JSON_MANIFEST:
        manifest = said["manifest"]
        for path in (manifest, said.get("sources")):
            if isinstance(path, str):
                yield to_set_path(folder, path)
        if isinstance(manifest, str):
            manifest = manifests.read_document(to_set_path(folder, manifest))
        yield from _select_own(entry.get("path") for entry in manifest.values())
        return
    tables = {read_source_table(folder, part["table"]["sources"]) for part in said["parts"]}
    for part in said["parts"]:
        yield to_set_path(folder, part["table"]["path"]) + "/"
    for table in tables:
        yield f"{table.folder}/"
        known = table.read_fingerprints(manifests, np.arange(table.rows))
        yield from _select_own(path for path, _ in known)


def _select_own(paths: Iterable[str | None]) -> Iterator[str]:
    """Yield those of the paths that lie in the set."""
    for path in paths:
        if path is not None and path.startswith("./"):
            yield path[2:]
