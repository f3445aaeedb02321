"""Icechunk repositories: references beside chunks of their own, in snapshots of plain Zarr v3.

Only the library of Icechunk reads and writes the format. ``docs/reference/formats/icechunk.md``
describes what this package passes to the library, and how references come back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from virtualds.arrays.group import ManifestGroup
from virtualds.chunks.manifest import ChunkManifest
from virtualds.errors import UnsupportedError
from virtualds.formats import Expiry, Removal
from virtualds.formats.icechunk.locations import find_storage
from virtualds.formats.icechunk.references import (
    NOTES,
    OpenedStore,
    RepositoryReferences,
    import_adapter,
    read_noted_sources,
)
from virtualds.formats.icechunk.target import MAIN
from virtualds.formats.read_options import READ_ALL, ReadOptions
from virtualds.formats.zarr.groups import GroupReader, find_whole
from virtualds.source_file import SourceFile, StorageOptions

MAGIC = "ICE🧊CHUNK".encode()
"""The first bytes of files of Icechunk (Icechunk specification, "File layout")."""


def detect(marker: bytes) -> bool:
    """Say whether one of the `ICECHUNK_MARKERS` is that of a repository."""
    return marker.startswith(MAGIC) or (marker.startswith(b"{") and b'"snapshot"' in marker)


# ---------------------------------------------------------------------- reading


def read(source: SourceFile, how: ReadOptions = READ_ALL) -> ManifestGroup:
    """Read a snapshot: its metadata now, references on demand.

    Parameters
    ----------
    source : SourceFile
        The folder.
    how : ReadOptions
        ``snapshot`` is a branch, a tag, or the id of one; by default the branch ``main``.

    Raises
    ------
    FileNotFoundError
        There is no such repository, group or snapshot.
    UnsupportedError
        Icechunk is not installed, or does not know an option.
    """
    root, adapter = source.url.rstrip("/"), import_adapter()
    repository = adapter.open_repository(find_storage(root, source.options), root)
    name = how.snapshot
    found = None if name is None else adapter.find_snapshot(repository, name, root)
    store = adapter.open_snapshot(repository, found, root)
    references = RepositoryReferences(
        root, source.options, how.allow, store.snapshot, (repository, store)
    )
    return make_reader(store, references.find_manifest, how.skip).read_group(how.group)


def read_object(
    opened: Any, how: ReadOptions = READ_ALL, options: StorageOptions | None = None
) -> ManifestGroup:
    """Read an object that the user opened, with uncommitted changes of a session.

    Parameters
    ----------
    opened : Repository, Session or IcechunkStore of Icechunk
    how : ReadOptions
        As in `read`; ``snapshot`` only of a repository.
    options : StorageOptions, optional
        Of the files that it refers to.

    Raises
    ------
    FileNotFoundError
        There is no such group or snapshot.
    UnsupportedError
        It is another object of Icechunk.
    ValueError
        A snapshot is named of a session, which has one.
    """
    name = f"{type(opened).__name__} of Icechunk"
    store, is_after = import_adapter().open_readable_store(opened, how.snapshot, name)
    noted = read_noted_sources(store, is_after) if is_after else {}
    references = OpenedStore(store, options, noted, how.allow)
    return make_reader(store, references.find_manifest, how.skip).read_group(how.group)


Lookup = Callable[[str, tuple[int, ...]], ChunkManifest]
"""Returns the references of an array by its path and grid."""


def make_reader(store: Any, manifest: Lookup, skip: frozenset[str] = frozenset()) -> GroupReader:
    """Return the reader of the nodes of a store."""
    nodes = store.read_documents()
    if "" not in nodes:
        raise FileNotFoundError(f"{store.url}: nothing has been written to this snapshot")
    notes: dict[str, dict[str, Any]] = {"arrays": {}, "groups": {}}
    for path, node in nodes.items():
        noted = node.get(NOTES)
        if isinstance(noted, Mapping):
            kind = "groups" if node.get("node_type") == "group" else "arrays"
            notes[kind][path] = noted

    return GroupReader(store.url, nodes, notes, find_whole(manifest), skip)


# ---------------------------------------------------------------------- history


def history(url: str, options: StorageOptions | None = None) -> list[tuple[str, str]]:
    """Return the ids and times of the snapshots of the branch ``main``, the newest last."""
    root = url.rstrip("/")
    repository = import_adapter().open_repository(find_storage(root, options), root)
    found: list[tuple[str, str]] = import_adapter().list_snapshots(repository, MAIN, root)
    return found


def expire(url: str, options: StorageOptions | None, expiry: Expiry) -> Removal:
    """Refuse: other branches and tags may need the files that would be removed."""
    raise UnsupportedError(
        f"{url}: snapshots of Icechunk are let go of by Icechunk, which knows its branches and "
        f"tags; use Repository.expire_snapshots and Repository.garbage_collect"
    )
