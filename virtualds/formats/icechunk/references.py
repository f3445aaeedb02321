"""The references of one snapshot of an Icechunk repository, read by array on demand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar

import numpy as np

from virtualds.chunks.columns import INLINE, MISSING
from virtualds.chunks.manifest import ChunkManifest
from virtualds.chunks.projection import Ints
from virtualds.chunks.record_cache import RecordCache, name_opening, share_opening
from virtualds.chunks.sparse_manifest import build_sparse
from virtualds.errors import UnsupportedError
from virtualds.formats.icechunk.locations import find_storage, unquote_url
from virtualds.formats.referenced_files import ReferencedFiles
from virtualds.source_file import SourceFile, StorageOptions
from virtualds.stores.access_rules import ANYWHERE, AccessPolicy

KEPT_TABLES = 8
"""Arrays whose references are kept in memory."""
NOTES = "virtualds"
"""The key of our notes in the metadata of nodes."""
CHUNKS = "chunks"
"""The folder of a repository's own chunks (Icechunk specification, "Layout")."""


def import_adapter() -> Any:
    """Return the module that calls Icechunk.

    Raises
    ------
    UnsupportedError
        Icechunk is not installed, or too old.
    """
    try:
        return import_module("virtualds.formats.icechunk.library")
    except (ImportError, AttributeError) as error:
        raise UnsupportedError(
            f"icechunk: it needs icechunk 2.0.5 or newer, and Python 3.12 ({error}); pip install "
            f"--upgrade icechunk"
        ) from error


class RepositoryReferences:
    """The references of one snapshot.

    Parameters
    ----------
    root : str
        Url of the repository.
    options : StorageOptions, optional
    snapshot : str
        Id of the snapshot.
    allow : AccessPolicy
        Where the files that it refers to may lie.
    """

    def __init__(
        self,
        root: str,
        options: StorageOptions | None,
        snapshot: str,
        allow: AccessPolicy = ANYWHERE,
    ) -> None:
        self.root = root
        self.options = options
        self.snapshot = snapshot
        self.allow = allow
        self._opening = name_opening()
        self._open()

    def _open(self) -> None:
        self._beginning = SourceFile(f"{self.root}/repo", options=self.options)
        # its own chunks need no permission, as long as they lie in it
        within = None if self.allow.prefixes is None else (self.root,)
        self._own = ReferencedFiles(self._beginning, {}, AccessPolicy(within))
        self._kept: RecordCache[Any] = RecordCache(KEPT_TABLES)
        self._opened: tuple[Any, Any] | None = None

    def keep(self, repository: Any, store: Any) -> None:
        """Keep the repository of Icechunk and its store of the snapshot, which are open already."""
        self._opened = repository, store

    def _open_again(self) -> tuple[Any, Any]:
        """Return the repository and its store of the snapshot, opened in this process."""
        if self._opened is None:
            repository = import_adapter().open_repository(
                find_storage(self.root, self.options), self.root
            )
            with import_adapter().describe_errors(self.root):
                session = repository.readonly_session(snapshot_id=self.snapshot)
            self._opened = repository, session.store
        return self._opened

    def __getstate__(self) -> dict[str, Any]:
        """Pickle where the references lie, not the cache of them."""
        names = ("root", "options", "snapshot", "allow")
        return {name: getattr(self, name) for name in names}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    def __reduce__(self) -> tuple[Any, ...]:
        state = self.__getstate__() | {"_opening": self._opening}
        return share_opening, (RepositoryReferences, self._opening, state)

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        from dask.base import normalize_token

        return ("virtualds-icechunk", *map(normalize_token, self.__getstate__().values()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RepositoryReferences) and (
            self.__getstate__() == other.__getstate__()
        )

    def __hash__(self) -> int:
        return hash((self.root, self.snapshot))

    @property
    def store(self) -> Any:
        """Icechunk's store of the snapshot."""
        return self._open_again()[1]

    @property
    def files(self) -> ReferencedFiles:
        """The files that the snapshot refers to, with the fingerprints that it has noted."""

        def noted() -> ReferencedFiles:
            parent = import_adapter().find_parent(self._open_again()[0], self.snapshot, self.root)
            return ReferencedFiles(
                self._beginning, read_noted_sources(self.store, self.root, parent), self.allow
            )

        found: ReferencedFiles = self._kept.get("files", noted)
        return found

    def read_manifest(self, path: str, grid: tuple[int, ...]) -> ChunkManifest:
        """Return all references of an array."""

        def read() -> ChunkManifest:
            return to_manifest(
                import_adapter().read_references(self.store, path, self.root), grid, self.get_file
            )

        found: ChunkManifest = self._kept.get((path, grid), read)
        return found

    def get_file(self, name: str, native: bool) -> SourceFile:
        """Return the file of a location of Icechunk, or of a chunk of its own."""
        if native:
            return self._own.get_file(f"{self.root}/{CHUNKS}/{name}")
        return self.files.get_file(unquote_url(name))


def read_noted_sources(store: Any, root: str, parent: str | None = None) -> Mapping[str, Any]:
    """Return the fingerprints of files in our notes, by their urls.

    With ``parent``, only those noted right after that snapshot: later commits of others may refer
    to files that have changed.
    """
    notes = import_adapter().read_document(store, "", root).get(NOTES)
    if not isinstance(notes, Mapping) or (parent and notes.get("after") != parent):
        return {}
    found: Mapping[str, Any] = notes.get("sources") or {}
    return found


def are_all_noted(store: Any, root: str, parent: str | None) -> bool:
    """Say whether our notes name every file that a snapshot, after another one, refers to."""
    notes = import_adapter().read_document(store, "", root).get(NOTES)
    known = isinstance(notes, Mapping) and bool(notes.get("all"))
    return known and notes.get("after") == parent


def to_manifest(found: Any, grid: tuple[int, ...], file_of: Any) -> ChunkManifest:
    """Return references of Icechunk as a manifest.

    Parameters
    ----------
    found : References
        From the adapter.
    grid : tuple of int
        Chunks per axis; chunks beyond it are left out.
    file_of : callable
        Takes a path, and whether it is that of a chunk of the repository; returns the file.
    """
    places = found.places.reshape(len(found.kind), len(grid))
    rows = np.flatnonzero((places < np.array(grid, np.int64)).all(1))
    kind, path = found.kind[rows], found.path[rows]
    held = kind == import_adapter().INLINE
    native = np.zeros(len(found.paths), bool)
    native[path[kind == import_adapter().NATIVE]] = True
    # leave out paths without chunks in the grid
    used = np.unique(path[~held])
    numbers = np.full(len(found.paths), MISSING, np.int64)
    numbers[used] = np.arange(used.size)
    columns = {
        "file": np.where(held, INLINE, numbers[path]),
        "offset": np.where(held, np.cumsum(held) - 1, found.offset[rows]),
        "length": found.length[rows],
    }
    where = np.ravel_multi_index(tuple(places[rows].T), grid) if grid else np.zeros_like(rows)
    there = ChunkManifest.build(
        rows.shape,
        files=[file_of(found.paths[n], bool(native[n])) for n in used.tolist()],
        inline=[found.inline[row] for row in rows[held].tolist()],
        **columns,
    )
    order = np.argsort(where)
    return build_sparse(np.asarray(where[order], np.int64), there.at(order), grid)


@dataclass(frozen=True)
class RepositoryTable:
    """The references of one array of a snapshot.

    Parameters
    ----------
    store : RepositoryReferences
    path : str
        Of the array.
    grid : tuple of int
        Chunks per axis.
    """

    store: RepositoryReferences
    path: str
    grid: tuple[int, ...]

    has_pipelines: ClassVar[bool] = False

    def load(self, ids: Ints) -> ChunkManifest:
        """Return the chunks of these numbers, in their shape, with the files that they lie in."""
        return self.store.read_manifest(self.path, self.grid).at(ids).pruned()

    def list_numbers(self) -> Ints | None:
        """Return the numbers of the chunks that exist; None if most of them do."""
        return self.store.read_manifest(self.path, self.grid).find_existing()

    def list_sources(self) -> tuple[SourceFile, ...]:
        """Return all files that chunks lie in."""
        return self.store.read_manifest(self.path, self.grid).sources

    def summarize_sources(self) -> None:
        """Return nothing: a summary takes all references."""
