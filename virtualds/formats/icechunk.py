"""Icechunk repositories: references beside chunks of their own, in snapshots of plain Zarr v3.

The format is Icechunk's own, and only its library reads and writes it. What is told to it, and how
its references come back, is described in ``docs/formats/icechunk.md``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np

from virtualds.arrays.group import ManifestGroup
from virtualds.chunks.columns import INLINE, MISSING
from virtualds.chunks.lazy_manifest import LazyManifest
from virtualds.chunks.manifest import ChunkManifest
from virtualds.chunks.reference_table import MosaicTable
from virtualds.errors import ConflictError, UnsupportedError, cannot_hold
from virtualds.icechunk_references.chunks import (
    CHUNKS,
    NOTES,
    RepositoryReferences,
    RepositoryTable,
    adapter,
    manifest_of,
    noted_sources,
)
from virtualds.icechunk_references.opened import OpenedStore, OpenedTable
from virtualds.icechunk_references.places import Place, containers, location, place_of, url_of
from virtualds.icechunk_references.writers import writers_kept_apart
from virtualds.referenced_files import ReferencedFiles, stored_bytes
from virtualds.source_file import SourceFile, StorageOptions
from virtualds.stores.access_rules import ANYWHERE, Allowed
from virtualds.zarr_v3.chunk_keys import chunk_key
from virtualds.zarr_v3.manifest_files import fingerprints
from virtualds.zarr_v3.manifests import Part
from virtualds.zarr_v3.metadata import axes_from_v3
from virtualds.zarr_v3.nodes import NodesReader
from virtualds.zarr_v3.planning import Plan, PlannedArray, plan, zarr_v3_suggested

MARKERS = ("repo", "refs/branch.main/ref.json")
"""The files that make a folder a repository, of version 2 and of version 1."""
FOLDERS = ("snapshots", "transactions", "chunks", "manifests")
"""The folders of a repository (Icechunk specification, "File layout")."""
MAGIC = "ICE🧊CHUNK".encode()
"""What files of Icechunk begin with (Icechunk specification, "File layout")."""
MAIN = "main"
GRIDS = ("regular", "rectilinear")
"""Chunk grids of Zarr; the second one is an experiment of zarr-python."""


def detect(marker: bytes) -> bool:
    """Say whether one of the `MARKERS` is that of a repository."""
    return marker.startswith(MAGIC) or (marker.startswith(b"{") and b'"snapshot"' in marker)


# ---------------------------------------------------------------------- reading


def read(
    source: SourceFile,
    group: str | None = None,
    skip: Iterable[str] = (),
    allow: Allowed = ANYWHERE,
    snapshot: str | None = None,
) -> ManifestGroup:
    """Read a snapshot: its metadata now, references when somebody needs them.

    Parameters
    ----------
    source : SourceFile
        The folder.
    group : str, optional
        Path of a group; the root group by default.
    skip : iterable of str
        Names of variables to leave out.
    allow : Allowed
        Where the files that it refers to may lie.
    snapshot : str, optional
        A branch, a tag, or the id of a snapshot; by default the branch ``main``.

    Raises
    ------
    FileNotFoundError
        There is no such repository, group or snapshot.
    UnsupportedError
        Icechunk is not installed, or cannot be told the options.
    """
    root = source.url.rstrip("/")
    repository = adapter().repository_at(place_of(root, source.options), root)
    found = adapter().snapshot_of(repository, snapshot, root)
    references = RepositoryReferences(root, source.options, found, allow)

    def manifest(path: str, grid: tuple[int, ...]) -> ChunkManifest:
        return LazyManifest(RepositoryTable(references, path, grid), grid)

    return _reader(references.store, root, manifest, frozenset(skip)).group(group)


def read_object(
    opened: Any,
    group: str | None = None,
    skip: Iterable[str] = (),
    options: StorageOptions | None = None,
    allow: Allowed = ANYWHERE,
    snapshot: str | None = None,
) -> ManifestGroup:
    """Read what somebody has opened, uncommitted changes of a session included.

    Parameters
    ----------
    opened : Repository, Session or IcechunkStore of Icechunk
    group, skip, allow
        As in `read`.
    options : StorageOptions, optional
        Of the files that it refers to.
    snapshot : str, optional
        Of a repository, as in `read`.

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
    store, is_after = adapter().store_to_read(opened, snapshot, name)
    noted = noted_sources(store, name, is_after) if is_after else {}
    references = OpenedStore(store, name, options, noted, allow)

    def manifest(path: str, grid: tuple[int, ...]) -> ChunkManifest:
        return LazyManifest(OpenedTable(references, path, grid), grid)

    return _reader(store, name, manifest, frozenset(skip)).group(group)


Lookup = Callable[[str, tuple[int, ...]], ChunkManifest]
"""Returns the references of an array by its path and grid."""


def _reader(
    store: Any, root: str, manifest: Lookup, skip: frozenset[str] = frozenset()
) -> NodesReader:
    """Return what makes groups of the nodes of a store."""
    nodes = adapter().documents(store, root)
    if "" not in nodes:
        raise FileNotFoundError(f"{root}: nothing has been written to this snapshot")
    notes: dict[str, dict[str, Any]] = {"arrays": {}, "groups": {}}
    for path, node in nodes.items():
        noted = node.get(NOTES)
        if isinstance(noted, Mapping):
            kind = "groups" if node.get("node_type") == "group" else "arrays"
            notes[kind][path] = noted

    def parts_of(path: str, node: Mapping[str, Any]) -> Any:
        def parts(grids: list[tuple[int, ...]], numbered: int) -> list[Part]:
            return [Part(0, (0,) * len(grids[0]), manifest(path, grids[0]))]

        return parts

    return NodesReader(root, nodes, notes, parts_of, skip)


# ---------------------------------------------------------------------- writing


def write(
    group: ManifestGroup,
    url: Any,
    options: StorageOptions | None = None,
    *,
    replace: bool = True,
    message: str | None = None,
    branch: str = MAIN,
    rectilinear: bool = False,
) -> None:
    """Write a snapshot, all of it or nothing.

    Parameters
    ----------
    group : ManifestGroup
    url : str, or Repository, Session or IcechunkStore of Icechunk
        Of the repository, which is created if there is none. What goes to a session is for its
        owner to commit.
    options : StorageOptions, optional
        Access options of the target.
    replace : bool
        Whether there may be something on the branch; earlier snapshots stay.
    message : str, optional
        Of the commit.
    branch : str
        That the snapshot goes to.
    rectilinear : bool
        Whether chunks may differ in length along an axis: zarr-python has that as an experiment,
        which readers turn on.

    Raises
    ------
    UnsupportedError
        Variables that Icechunk cannot hold, or files that it cannot refer to; all are named.
    FileExistsError
        There is something, and it may not be replaced.
    ConflictError
        Another writer was faster; nothing has changed.
    """
    target = Target.of(url, options, branch)
    with zarr_v3_suggested(group, target.name):
        planned = plan(group, target.name, form="icechunk", grids=GRIDS[: 1 + rectilinear])
    with writers_kept_apart(target.place, target.name, options):
        store = target.opened(containers_needed(planned, target))
        there = bool(adapter().documents(store, target.name))
        if there and not replace:
            raise occupied_error(target, store)
        if there:
            adapter().cleared(store, target.name)
        NodeWriter(store, target).write_all(planned)
        target.commit(store, message or "Written by virtualds")


def holds(url: Any, options: StorageOptions | None = None, *, branch: str = MAIN) -> bool:
    """Say whether there is something where a set is to be created: on a branch, or in a session.

    Raises
    ------
    FileExistsError
        There is; it says what.
    """
    target = Target.of(url, options, branch)
    if target.place is not None and not target.exists():
        return False
    store = target.opened({})
    if adapter().documents(store, target.name):
        raise occupied_error(target, store)
    return False


def occupied_error(target: Target, store: Any) -> FileExistsError:
    """Return the error that says what is there, and so what would be removed."""
    nodes = adapter().documents(store, target.name)
    arrays = sorted(path for path, node in nodes.items() if node.get("node_type") == "array")
    named = ", ".join(arrays[:5]) + (", ..." if len(arrays) > 5 else "")
    return FileExistsError(
        f"{target.name}: exists already; mode='w' removes from the branch {target.branch!r} all "
        f"that it holds, {len(arrays)} arrays ({named}), whoever wrote them, and keeps it in "
        f"earlier snapshots alone; append_dim= appends to them, and branch= writes to another "
        f"branch"
    )


def update(
    url: Any,
    change: Callable[[ManifestGroup], ManifestGroup],
    options: StorageOptions | None = None,
    allow: Allowed = ANYWHERE,
    *,
    message: str | None = None,
    branch: str = MAIN,
    rectilinear: bool | None = None,
) -> None:
    """Commit what becomes of a branch; chunks that stay where they are are not written again.

    Parameters
    ----------
    url, options, message, branch, rectilinear
        As in `write`; by default chunks may differ in length where some do already.
    change : callable
        Takes the whole set and returns what it is to be.
    allow : Allowed
        Where the files that it refers to may lie.

    Raises
    ------
    FileNotFoundError
        There is no repository, or nothing on the branch.
    ConflictError
        Another writer was faster; nothing has changed.
    """
    target = Target.of(url, options, branch)
    if not target.exists():
        raise FileNotFoundError(f"{target.name}: there is no Icechunk repository")
    with writers_kept_apart(target.place, target.name, options):
        _commit_change(target, change, allow, message, rectilinear)


def _commit_change(
    target: Target,
    change: Callable[[ManifestGroup], ManifestGroup],
    allow: Allowed,
    message: str | None,
    rectilinear: bool | None,
) -> None:
    store = target.opened({})
    known = KnownChunks(store, target, allow)
    before = _reader(store, target.name, known.manifest).group(None)
    if (after := change(before)) is before:
        return
    nodes = adapter().documents(store, target.name)
    if rectilinear is None:
        there = [node["chunk_grid"]["name"] for node in nodes.values() if "chunk_grid" in node]
        rectilinear = "rectilinear" in there
    with zarr_v3_suggested(after, target.name):
        planned = plan(after, target.name, form="icechunk", grids=GRIDS[: 1 + rectilinear])
    store = target.opened(containers_needed(planned, target), store)
    gone = [path for path in nodes if path and path not in planned.nodes]
    adapter().removed(store, gone, target.name)
    NodeWriter(store, target, known, nodes).write_all(planned)
    target.commit(store, message or "Changed by virtualds")


@dataclass
class Target:
    """What is written to: a repository at a url, or an object of Icechunk."""

    place: Place | None
    given: Any
    root: str | None
    name: str
    branch: str
    options: StorageOptions | None = None

    @classmethod
    def of(cls, url: Any, options: StorageOptions | None, branch: str) -> Target:
        if not isinstance(url, str):
            if branch != MAIN and not adapter().commits(url):
                raise ValueError(f"branch {branch!r}: a session has its own; leave it out")
            return cls(None, url, None, f"{type(url).__name__} of Icechunk", branch)
        root = url.rstrip("/")
        return cls(place_of(root, options), None, root, root, branch, options)

    def exists(self) -> bool:
        """Say whether there is a repository."""
        return self.place is None or bool(adapter().is_repository(self.place, self.name))

    def opened(self, needed: Mapping[str, Place], before: Any = None) -> Any:
        """Return a store to write to, which may refer to what lies below some prefixes.

        Parameters
        ----------
        needed : mapping of str to Place
            Prefixes, and how what lies there is read.
        before : IcechunkStore, optional
            One that was opened already: what is opened now begins with the same snapshot.
        """
        if self.place is not None:
            if self.exists():
                repository = adapter().repository_at(self.place, self.name)
                repository = adapter().with_containers(repository, self.name, needed)
            else:
                repository = adapter().created(self.place, self.name, needed)
            self.given = repository
        else:
            self._check(needed)
            if before is not None:
                return before
        store = adapter().store_of(self.given, self.branch, self.name)
        if before is not None and store.session.snapshot_id != before.session.snapshot_id:
            raise ConflictError(
                f"{self.name}: another writer has committed meanwhile; write again to what is "
                f"there now"
            )
        return store

    def _check(self, needed: Mapping[str, Place]) -> None:
        """Refuse references that no container of somebody else's repository covers."""
        config = self.given.config if hasattr(self.given, "config") else self.given.session.config
        if lacking := adapter().not_covered(config, needed):
            raise cannot_hold(
                self.name,
                "it",
                [
                    f"files below {prefix}: no virtual chunk container covers them"
                    for prefix in lacking
                ],
                "set containers for them (RepositoryConfig.set_virtual_chunk_container) and open "
                "the repository with that configuration",
            )

    def commit(self, store: Any, message: str) -> None:
        """Commit what was written, unless that is for the owner of the session to do."""
        if self.place is not None or adapter().commits(self.given):
            adapter().commit(store, message, self.name)

    def is_own(self, url: str) -> bool:
        """Say whether a file is a chunk of the repository itself."""
        return self.root is not None and url.startswith(f"{self.root}/{CHUNKS}/")


def containers_needed(planned: Plan, target: Target) -> dict[str, Place]:
    """Return the containers that the references of a plan need."""
    files = (
        file
        for node in planned.nodes.values()
        if isinstance(node, PlannedArray)
        for part in node.parts
        for file in part.manifest.sources
    )
    outside = dict.fromkeys(file for file in files if not target.is_own(file.url))
    return containers((file.url, file.options) for file in outside)


class KnownChunks:
    """What a store says of chunks before it is changed.

    Chunks of a repository of which nobody knows where it lies are read.
    """

    def __init__(self, store: Any, target: Target, allow: Allowed) -> None:
        self._store = store
        self._target = target
        self._found: dict[tuple[str, tuple[int, ...]], ChunkManifest] = {}
        root = target.root or "file:///"
        source = SourceFile(f"{root}/repo", options=target.options)
        self._own = ReferencedFiles(source, {})
        self._files = ReferencedFiles(source, noted_sources(store, target.name), allow)

    def manifest(self, path: str, grid: tuple[int, ...]) -> ChunkManifest:
        """Return the references of an array."""
        if (path, grid) not in self._found:
            found = adapter().references(self._store, path, self._target.name)
            if self._target.root is None:
                found = self._with_values(path, found)
            self._found[path, grid] = manifest_of(found, grid, self._file)
        return self._found[path, grid]

    def _file(self, name: str, native: bool) -> SourceFile:
        if native:
            return self._own.file(f"{self._target.root}/{CHUNKS}/{name}")
        return self._files.file(url_of(name))

    def _with_values(self, path: str, found: Any) -> Any:
        rows = np.flatnonzero(found.kind == adapter().NATIVE)
        places = found.places[rows].tolist()
        keys = ["/".join([path, "c", *map(str, place)]) for place in places]
        read = adapter().chunks(self._store, keys, self._target.name)
        kind = np.where(found.kind == adapter().NATIVE, adapter().INLINE, found.kind)
        inline = found.inline | dict(zip(rows.tolist(), read, strict=True))
        return found._replace(kind=kind, inline=inline)


@dataclass
class NodeWriter:
    """Writes nodes to a store, and of those that are there what has changed."""

    store: Any
    target: Target
    known: KnownChunks | None = None
    nodes: Mapping[str, Any] | None = None

    def write_all(self, planned: Plan) -> None:
        """Write what is planned, and note what references do not tell."""
        parts = [
            part
            for node in planned.nodes.values()
            if isinstance(node, PlannedArray)
            for part in node.parts
        ]
        sources = fingerprints(parts, lambda url: url)
        sources = {url: known for url, known in sources.items() if not self.target.is_own(url)}
        if sources:
            noted = {"after": self.store.session.snapshot_id, "sources": sources}
            planned.notes["groups"][""] = planned.notes["groups"].get("", {}) | noted
        for path, node in planned.nodes.items():
            self.write(path, node, planned.notes)

    def write(
        self, path: str, node: dict[str, Any] | PlannedArray, notes: Mapping[str, Any]
    ) -> None:
        """Write a group, or an array with its chunks and references."""
        if not isinstance(node, PlannedArray):
            self._put_document(path, node, notes["groups"].get(path))
            return
        metadata = {n: v for n, v in node.metadata.items() if n != "storage_transformers"}
        metadata |= {"chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}}}
        key = chunk_key(metadata)
        if node.values is not None:
            self._remove(path)
            self._put_document(path, metadata, notes["arrays"].get(path))
            chunks = ((f"{path}/{key(place)}", data) for place, data in node.values.chunks)
            adapter().put(self.store, chunks, self.target.name)
            return
        axes = axes_from_v3(metadata["shape"], metadata["chunk_grid"])
        manifest = _whole(node.parts, tuple(axis.nchunks for axis in axes))
        changed = self._changed(path, metadata, manifest)
        if changed is None:
            self._remove(path)
            changed = np.ones(manifest.shape, bool)
        self._put_document(path, metadata, notes["arrays"].get(path))
        self._put_held(path, manifest, changed, key)
        self._refer(path, manifest, changed)

    def _put_document(self, path: str, node: Mapping[str, Any], noted: Any) -> None:
        extra = {NOTES: {"must_understand": False, **noted}} if noted else {}
        text = json.dumps({**node, **extra}, allow_nan=False).encode()
        adapter().put(self.store, [(f"{path}/zarr.json".lstrip("/"), text)], self.target.name)

    def _remove(self, path: str) -> None:
        if self.nodes is not None and path in self.nodes:
            adapter().removed(self.store, [path], self.target.name)

    def _changed(self, path: str, metadata: Mapping[str, Any], new: ChunkManifest) -> Any:
        """Return which chunks are to be written, None if the array is to be written anew."""
        there = None if self.nodes is None else self.nodes.get(path)
        if there is None or self.known is None or there.get("node_type") != "array":
            return None
        same = ("data_type", "codecs", "fill_value")
        grids = [node["chunk_grid"]["name"] for node in (there, metadata)]
        if any(there.get(n) != metadata.get(n) for n in same) or grids[0] != grids[1]:
            return None
        axes = axes_from_v3(there["shape"], there["chunk_grid"])
        old = self.known.manifest(path, tuple(axis.nchunks for axis in axes)).loaded()
        if len(old.shape) != len(new.shape) or any(
            n > m for n, m in zip(old.shape, new.shape, strict=True)
        ):
            return None
        box = tuple(slice(0, n) for n in old.shape)
        names: dict[str | bytes, int] = {}
        before, after = _identity(old, names), _identity(new, names)[:, *box]
        if (before != after).any():
            return None
        changed = np.ones(new.shape, bool)
        changed[box] = False
        return changed

    def _put_held(self, path: str, manifest: ChunkManifest, changed: Any, key: Any) -> None:
        """Write the chunks that the repository is to hold itself."""
        own = [n for n, file in enumerate(manifest.files) if self.target.is_own(file.url)]
        rows = changed & np.isin(manifest.file, [INLINE, *own])

        def held() -> Iterator[tuple[str, bytes]]:
            for place in map(tuple, np.argwhere(rows).tolist()):
                yield f"{path}/{key(place)}", stored_bytes(manifest, place)

        adapter().put(self.store, held(), self.target.name)

    def _refer(self, path: str, manifest: ChunkManifest, changed: Any) -> None:
        own = [n for n, file in enumerate(manifest.files) if self.target.is_own(file.url)]
        file = np.where(changed & ~np.isin(manifest.file, own), manifest.file, MISSING)
        adapter().refer(
            self.store,
            path,
            manifest.shape,
            manifest.files,
            [location(source.url) for source in manifest.files],
            (file.ravel(), manifest.offset.ravel(), manifest.length.ravel()),
            self.target.name,
        )


def _whole(parts: list[Part], grid: tuple[int, ...]) -> ChunkManifest:
    """Return all chunks of an array as one manifest."""
    if len(parts) == 1 and parts[0].manifest.shape == grid:
        return parts[0].manifest.loaded()
    placed = tuple((part.origin, part.manifest) for part in parts)
    return LazyManifest(MosaicTable(grid, placed), grid).loaded()


def _identity(manifest: ChunkManifest, names: dict[str | bytes, int]) -> Any:
    """Return numbers, three for each chunk, that are equal where chunks are the same bytes."""
    urls = [names.setdefault(file.url, len(names)) for file in manifest.files]
    held = [names.setdefault(data, len(names)) for data in manifest.inline]
    file, offset = manifest.file, manifest.offset
    is_held = file == INLINE
    table = np.array([*urls, MISSING, MISSING], np.int64)
    content = np.array([*held, MISSING], np.int64)
    who = np.where(is_held, content[np.where(is_held, offset, -1)], table[file])
    there = (file >= 0).astype(np.int64)
    return np.stack([who, offset * there, manifest.length * there])


# ---------------------------------------------------------------------- history


def history(url: str, options: StorageOptions | None = None) -> list[tuple[str, str]]:
    """Return the ids and times of the snapshots of the branch ``main``, the newest last."""
    root = url.rstrip("/")
    repository = adapter().repository_at(place_of(root, options), root)
    found: list[tuple[str, str]] = adapter().ancestry(repository, MAIN, root)
    return found


def expire(
    url: str, options: StorageOptions | None, keep: int, older_than: timedelta | None
) -> list[str]:
    """Refuse: branches and tags other than ``main`` may need what would go."""
    raise UnsupportedError(
        f"{url}: snapshots of Icechunk are let go of by Icechunk, which knows its branches and "
        f"tags; use Repository.expire_snapshots and Repository.garbage_collect"
    )
