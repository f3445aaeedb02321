"""Read Icechunk stores: all metadata at once, the references of arrays on demand.

A store may be that of a snapshot, be opened by the user, or be the base of a change.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import icechunk
import numpy as np

from virtualds.arrays.group import ManifestGroup
from virtualds.chunks.columns import INLINE, MISSING, Ints, ReferenceTable, compute_strides
from virtualds.chunks.manifest import ChunkManifest
from virtualds.chunks.tables import RecordCache, build_sparse, make_opening_id, unpickle_shared
from virtualds.errors import AccessError, ReadError, UnsupportedError
from virtualds.formats import READ_ALL, ReadOptions
from virtualds.formats.icechunk import library
from virtualds.formats.icechunk.library import (
    CHUNKS,
    MAIN,
    OpenStore,
    get_store,
    name_object,
    open_repository,
    translate_errors,
    unquote_url,
)
from virtualds.formats.referenced_files import ReferencedFiles
from virtualds.formats.zarr import NOTES, number_in_grid, unravel_in_grid
from virtualds.formats.zarr.groups import GroupBuilder, make_single_manifest_finder
from virtualds.formats.zarr.v3_arrays import ManifestPart
from virtualds.source_file import SourceFile, StorageOptions, scheme_of
from virtualds.stores.access_rules import REMEDY, AccessPolicy

CACHED_TABLES = 8
"""The number of arrays whose references are cached."""
NATIVE_PREFIX = "icechunk:"
"""The prefix of names of native chunks in a store whose location is unknown."""
Lookup = Callable[[str, tuple[int, ...]], ChunkManifest]
"""A function that returns the references of an array, given its path and grid."""


def read(source: SourceFile, read_options: ReadOptions = READ_ALL) -> ManifestGroup:
    """Read a snapshot: metadata immediately, references on demand.

    The snapshot is given by a branch, a tag, or its id; by default it is the tip of ``main``.
    """
    root = source.url.rstrip("/")
    repository = open_repository(root, source.options)
    with translate_errors(root):
        # the default needs one request fewer
        revision = (
            {"branch": MAIN}
            if read_options.snapshot is None
            else {"snapshot_id": _find_snapshot(repository, read_options.snapshot, root)}
        )
        store = OpenStore(repository.readonly_session(**revision).store, root)
    references = StoreReferences(
        root, source.options, read_options.allow, store.snapshot, (repository, store)
    )
    return make_group_builder(store, references.find_manifest, read_options.skip).read_group(
        read_options.group
    )


def read_object(
    opened: Any, read_options: ReadOptions = READ_ALL, options: StorageOptions | None = None
) -> ManifestGroup:
    """Read an object that the user opened, with uncommitted changes of a session.

    ``options`` are the access options of the files to which it refers. A snapshot can only be
    selected in a repository.
    """
    name = name_object(opened)
    repository, snapshot = None, read_options.snapshot
    with translate_errors(name):
        if isinstance(opened, icechunk.Repository):
            repository, snapshot = opened, _find_snapshot(opened, snapshot or MAIN, name)
            opened = opened.readonly_session(snapshot_id=snapshot)
        elif snapshot is not None:
            raise ValueError(f"{name}: snapshot={snapshot!r}, but it has one; leave it out")
        store = OpenStore(get_store(opened, name), name)
    references = StoreReferences(
        None, options, read_options.allow, store.snapshot, (repository, store)
    )
    return make_group_builder(store, references.find_manifest, read_options.skip).read_group(
        read_options.group
    )


def _find_snapshot(repository: Any, name: str, url: str) -> str:
    """Return the id of a snapshot, given a branch, a tag or the id itself."""
    revisions = (
        (repository.list_branches(), repository.lookup_branch),
        (repository.list_tags(), repository.lookup_tag),
    )
    ids = {look_up(name) for names, look_up in revisions if name in names}
    if len(ids) > 1:
        raise ValueError(f"{url}: {name!r} is a branch and a tag; give the id of the snapshot")
    if ids:
        return str(ids.pop())
    try:
        return str(repository.lookup_snapshot(name).id)
    except icechunk.IcechunkError as error:
        raise FileNotFoundError(
            f"{url}: snapshot {name!r} is neither one of the branches {sorted(revisions[0][0])} or "
            f"tags {sorted(revisions[1][0])}, nor the id of a snapshot"
        ) from error


def read_history(url: str, options: StorageOptions | None = None) -> list[tuple[str, str]]:
    """Return the ids and times of the snapshots of the branch ``main``, the newest last."""
    root = url.rstrip("/")
    with translate_errors(root):
        snapshots = list(open_repository(root, options).ancestry(branch=MAIN))[::-1]
        # the first snapshot is that of an empty repository
        return [(s.id, s.written_at.isoformat()) for s in snapshots if s.parent_id is not None]


def make_group_builder(
    store: Any, find_manifest: Lookup, skip: frozenset[str] = frozenset()
) -> GroupBuilder:
    """Return a builder for the groups of a store."""
    nodes = store.read_documents()
    if "" not in nodes:
        raise FileNotFoundError(f"{store.url}: nothing has been written to this snapshot")
    notes: dict[str, dict[str, Any]] = {"arrays": {}, "groups": {}}
    for path, node in nodes.items():
        node_notes = node.get(NOTES)
        if isinstance(node_notes, Mapping):
            kind = "groups" if node.get("node_type") == "group" else "arrays"
            notes[kind][path] = node_notes

    return GroupBuilder(store.url, nodes, notes, make_single_manifest_finder(find_manifest), skip)


def read_recorded_fingerprints(store: OpenStore, parent: str | None = None) -> Mapping[str, Any]:
    """Return the fingerprints of files that virtualds has recorded, by url.

    With ``parent``, they are returned only if they were recorded directly after that snapshot,
    since later commits of others may refer to files that have changed.
    """
    notes = store.read_document("").get(NOTES)
    if not isinstance(notes, Mapping) or (parent and notes.get("after") != parent):
        return {}
    fingerprints: Mapping[str, Any] = notes.get("sources") or {}
    return fingerprints


# ---------------------------------------------------------------------- references


class StoreReferences:
    """The references of all arrays of a store, in the repository at ``root`` or opened by a user.

    The location of an open store is unknown, so its native chunks are read through it, on demand,
    and become inline chunks of manifests. ``options`` and ``allow`` apply to the files to which the
    store refers, and ``snapshot`` is the id of the snapshot. ``opened`` are the Icechunk
    repository, if it is known, and the store; with a ``root`` they are opened when needed. The
    references of up to ``cache_size`` arrays are cached.
    """

    requires_allow = True
    """Whether a store that the user opened needs ``allow`` to refer to local files."""

    def __init__(
        self,
        root: str | None,
        options: StorageOptions | None,
        allow: AccessPolicy,
        snapshot: str,
        opened: tuple[Any, OpenStore] | None = None,
        cache_size: int = CACHED_TABLES,
    ) -> None:
        self.root, self.options, self.allow, self.snapshot = root, options, allow, snapshot
        self._opened, self._opening = opened, make_opening_id()
        self._cache: RecordCache[Any] = RecordCache(cache_size)
        self._base_file = SourceFile(f"{root or 'file:///'}/repo", options=options)
        # native chunks are always allowed, as they are in the repository
        prefixes = None if root is None or allow.prefixes is None else (root,)
        self._native_files = ReferencedFiles(self._base_file, {}, AccessPolicy(prefixes))

    def _open(self) -> tuple[Any, OpenStore]:
        """Return the repository and its store of the snapshot, opened in this process."""
        if self._opened is None:
            # root is a url here: without one, the store was passed open, so `_opened` is set
            root = str(self.root)
            repository = open_repository(root, self.options)
            with translate_errors(root):
                session = repository.readonly_session(snapshot_id=self.snapshot)
            self._opened = repository, OpenStore(session.store, root)
        return self._opened

    @property
    def store(self) -> OpenStore:
        """The open store."""
        return self._open()[1]

    @property
    def files(self) -> ReferencedFiles:
        """The files to which the store refers, with their recorded fingerprints."""
        files: ReferencedFiles = self._cache.get(
            "files", lambda: ReferencedFiles(self._base_file, self.read_fingerprints(), self.allow)
        )
        return files

    def read_fingerprints(self) -> Mapping[str, Any]:
        """Return the recorded fingerprints of files; empty for sessions, which may have changes."""
        parent = self.find_parent()
        return read_recorded_fingerprints(self.store, parent) if parent else {}

    def find_parent(self) -> str | None:
        """Return the id of the snapshot before this one, or None if it is unknown."""
        repository, store = self._open()
        if repository is None:
            return None
        with translate_errors(store.url):
            return repository.lookup_snapshot(self.snapshot).parent_id  # type: ignore[no-any-return]

    # ------------------------------------------------------------------ pickles

    @property
    def _identity(self) -> tuple[Any, ...]:
        """The identity of the store: its location, or the id of its opening."""
        location = (self.root, self.options, self.allow, self.snapshot)
        return location if self.root is not None else (*location, self._opening)

    def __reduce__(self) -> tuple[Any, ...]:
        # pickle the location of references instead of the cache
        opened = self._opened if self.root is None else None
        state = (self.root, self.options, self.allow, self.snapshot, opened)
        return unpickle_shared, (StoreReferences, self._opening, state)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.__init__(*state)  # type: ignore[misc]
        if self._opened is not None:
            store = self._opened[1]
            try:
                # if the repository was removed, Icechunk would report all chunks as missing
                store.read_document("")
            except ReadError as error:
                raise UnsupportedError(
                    f"{store.url}: its snapshot cannot be read after pickling, as in "
                    f"repositories in memory; write it to a folder or a bucket"
                ) from error

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        from dask.base import normalize_token

        return ("virtualds-icechunk", *map(normalize_token, self._identity))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StoreReferences) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash((self.root, self.snapshot))

    # ------------------------------------------------------------------ reading

    def get_file(self, name: str, native: bool) -> SourceFile:
        """Return the file of an Icechunk location, or of a native chunk."""
        if native:
            if self.root is None:
                return SourceFile(f"{NATIVE_PREFIX}{name}")
            return self._native_files.get_file(f"{self.root}/{CHUNKS}/{name}")
        url = unquote_url(name)
        is_unknown = self.root is None and self.requires_allow and self.allow.prefixes is None
        if is_unknown and scheme_of(url) == "file":
            raise AccessError(
                f"{self.store.url}: it refers to {url}, and does not say whether it comes from "
                f"this machine itself; {REMEDY}, or open it by its path"
            )
        return self.files.get_file(url)

    def find_manifest(self, path: str, grid: tuple[int, ...]) -> ChunkManifest:
        """Return the references of an array, which are read on demand."""
        return ChunkManifest.from_table(ArrayTable(self, path, grid), grid)

    def read_manifest(self, path: str, grid: tuple[int, ...]) -> ChunkManifest:
        """Return all references of an array."""
        manifest: ChunkManifest = self._cache.get(
            (path, grid), lambda: self._build_manifest(self.store.read_references(path), grid)
        )
        return manifest

    def find_recorded(self, urls: Collection[str]) -> tuple[SourceFile, ...] | None:
        """Return the files with given urls, or None if the store has not recorded every file."""
        return None

    def _build_manifest(self, references: Any, grid: tuple[int, ...]) -> ChunkManifest:
        """Return Icechunk references as a manifest, without chunks outside of the grid."""
        chunk_ids = references.chunk_ids.reshape(len(references.kind), len(grid))
        rows = np.flatnonzero((chunk_ids < np.array(grid, np.int64)).all(1))
        kind, path = references.kind[rows], references.path[rows]
        is_inline = kind == library.INLINE
        is_native = np.zeros(len(references.paths), bool)
        is_native[path[kind == library.NATIVE]] = True
        # leave out paths without chunks in the grid
        used = np.unique(path[~is_inline])
        file_numbers = np.full(len(references.paths), MISSING, np.int64)
        file_numbers[used] = np.arange(used.size)
        columns = {
            "file": np.where(is_inline, INLINE, file_numbers[path]),
            "offset": np.where(is_inline, np.cumsum(is_inline) - 1, references.offset[rows]),
            "length": references.length[rows],
        }
        chunk_numbers = number_in_grid(chunk_ids[rows], grid)
        existing = ChunkManifest.build(
            rows.shape,
            files=[self.get_file(references.paths[n], bool(is_native[n])) for n in used.tolist()],
            inline=[references.inline[row] for row in rows[is_inline].tolist()],
            **columns,
        )
        order = np.argsort(chunk_numbers)
        return build_sparse(chunk_numbers[order], existing.at(order), grid)


@dataclass(frozen=True)
class ArrayTable(ReferenceTable):
    """The references of the array at a path of a store, whose chunk grid has the shape ``grid``."""

    store: StoreReferences
    path: str
    grid: tuple[int, ...]

    @property
    def _manifest(self) -> ChunkManifest:
        """All references of the array."""
        return self.store.read_manifest(self.path, self.grid)

    def load(self, ids: Ints) -> ChunkManifest:
        manifest = self._manifest.at(ids).prune()
        native = [n for n, file in enumerate(manifest.files) if file.url.startswith(NATIVE_PREFIX)]
        rows = np.isin(manifest.file, native)
        if not rows.any():
            return manifest
        chunk_ids = unravel_in_grid(np.asarray(ids)[rows], self.grid)
        chunks = self.store.store.read_chunks(self.path, chunk_ids.tolist())
        file, offset = manifest.file.copy(), manifest.offset.copy()
        file[rows], offset[rows] = INLINE, len(manifest.inline) + np.arange(len(chunks))
        return ChunkManifest.build(
            manifest.shape, files=manifest.files, inline=(*manifest.inline, *chunks), file=file,
            offset=offset, length=manifest.length,
        ).prune()  # fmt: skip

    def find_existing_rows(self) -> Ints | None:
        return self._manifest.find_existing()

    def list_sources(self) -> tuple[SourceFile, ...]:
        # native chunks of the store are left out
        return tuple(
            file for file in self._manifest.sources if not file.url.startswith(NATIVE_PREFIX)
        )

    def find_sources(self, urls: Collection[str]) -> tuple[SourceFile, ...]:
        found = self.store.find_recorded(urls)
        return super().find_sources(urls) if found is None else found


# ---------------------------------------------------------------------- stores to change


class ExistingReferences(StoreReferences):
    """The references of a store before it is changed.

    Unchanged references are not read, so that an append to a set of ten million references costs as
    much as its new references. ``repository`` is None if the user commits the change.
    """

    requires_allow = False

    def __init__(
        self,
        store: OpenStore,
        repository: Any,
        root: str | None,
        options: StorageOptions | None,
        allow: AccessPolicy,
    ) -> None:
        super().__init__(root, options, allow, store.snapshot, (repository, store), sys.maxsize)
        self.fingerprints = read_recorded_fingerprints(store)

    def read_fingerprints(self) -> Mapping[str, Any]:
        """Return the recorded fingerprints of files."""
        return self.fingerprints

    @cached_property
    def records_all(self) -> bool:
        """Whether all files of the store are recorded, since there was no other commit."""
        parent = self.find_parent()
        notes = self.store.read_document("").get(NOTES) if parent else None
        return (
            isinstance(notes, Mapping) and bool(notes.get("all")) and notes.get("after") == parent
        )

    def find_recorded(self, urls: Collection[str]) -> tuple[SourceFile, ...] | None:
        if not self.records_all:
            return None
        return tuple(self.files.get_file(url) for url in urls if url in self.fingerprints)

    def is_known(self, manifest: ChunkManifest) -> bool:
        """Return whether a manifest consists of chunks to which the store already refers."""
        return self._find_table(manifest) is not None

    def find_new_parts(self, parts: Sequence[ManifestPart], path: str) -> list[ManifestPart] | None:
        """Return the parts of an array that are not in the store at the same positions.

        Returns None if not all chunks of the store are unchanged, so that all must be compared.
        """
        tables = [self._find_table(part.manifest) for part in parts]
        grids = {table.grid for table in tables if table is not None}
        is_unchanged = [
            table is not None and table.path == path and _is_unchanged(part, table.grid)
            for part, table in zip(parts, tables, strict=True)
        ]
        unchanged_count = sum(
            part.manifest.size
            for part, unchanged in zip(parts, is_unchanged, strict=True)
            if unchanged
        )
        if len(grids) != 1 or unchanged_count != prod(next(iter(grids))):
            return None
        return [part for part, unchanged in zip(parts, is_unchanged, strict=True) if not unchanged]

    def _find_table(self, manifest: ChunkManifest) -> ArrayTable | None:
        """Return the table of the store to which a manifest belongs, or None."""
        table = manifest.get_table(ArrayTable)
        return table if table is not None and table.store is self else None


def _is_unchanged(part: ManifestPart, grid: tuple[int, ...]) -> bool:
    """Return whether the chunks of a part have the same positions in the existing array."""
    steps, rows = compute_strides(grid), part.manifest.rows
    if rows is None or len(part.origin) != len(grid):
        return False
    axes = zip(part.origin, rows.shape, rows.strides, steps, grid, strict=True)
    return rows.first == int(np.dot(part.origin, steps)) and all(
        start + count <= length and (count == 1 or stride == step)
        for start, count, stride, step, length in axes
    )
