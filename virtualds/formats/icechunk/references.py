"""The references of arrays in stores of Icechunk, read by array on demand.

A store is that of a snapshot of a repository, one that the user opened, or one that is changed.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from math import prod
from typing import Any

import numpy as np

from virtualds.chunks.columns import INLINE, MISSING
from virtualds.chunks.manifest import ChunkManifest
from virtualds.chunks.projection import Ints, compute_strides
from virtualds.chunks.record_cache import RecordCache, name_opening, share_opening
from virtualds.chunks.table import Table
from virtualds.chunks.tables import build_sparse
from virtualds.errors import AccessError, UnsupportedError
from virtualds.formats.icechunk.locations import find_storage, unquote_url
from virtualds.formats.referenced_files import ReferencedFiles
from virtualds.formats.zarr.v3_arrays import ManifestPart
from virtualds.source_file import SourceFile, StorageOptions
from virtualds.stores.access_rules import REMEDY, AccessPolicy
from virtualds.urls import scheme_of

KEPT_TABLES = 8
"""Arrays whose references are kept in memory."""
NOTES = "virtualds"
"""The key of our notes in the metadata of nodes."""
CHUNKS = "chunks"
"""The folder of a repository's own chunks (Icechunk specification, "Layout")."""
OWN = "icechunk:"
"""The prefix of names of chunks that a store without a place holds itself."""


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


def read_noted_sources(store: Any, parent: str | None = None) -> Mapping[str, Any]:
    """Return the fingerprints of files in our notes, by their urls.

    With ``parent``, only those noted right after that snapshot: later commits of others may refer
    to files that have changed.
    """
    notes = store.read_document("").get(NOTES)
    if not isinstance(notes, Mapping) or (parent and notes.get("after") != parent):
        return {}
    found: Mapping[str, Any] = notes.get("sources") or {}
    return found


class StoreReferences:
    """The references of the arrays of a store.

    Parameters
    ----------
    root : str or None
        Url of the repository, if it is known.
    options : StorageOptions, optional
        Of the files that it refers to.
    allow : AccessPolicy
        Where these files may lie.
    kept : int
        Arrays whose references are kept in memory.
    """

    store: Any
    """The open store."""
    files: ReferencedFiles
    """The files that it refers to, with the fingerprints that it has noted."""

    def __init__(
        self,
        root: str | None,
        options: StorageOptions | None,
        allow: AccessPolicy,
        kept: int = KEPT_TABLES,
    ) -> None:
        self.root, self.options, self.allow = root, options, allow
        self._kept: RecordCache[Any] = RecordCache(kept)
        self._beginning = SourceFile(f"{root or 'file:///'}/repo", options=options)
        # its own chunks need no permission, as long as they lie in it
        within = None if root is None or allow.prefixes is None else (root,)
        self._own = ReferencedFiles(self._beginning, {}, AccessPolicy(within))

    def get_file(self, name: str, native: bool) -> SourceFile:
        """Return the file of a location of Icechunk, or of a chunk of its own."""
        if native:
            return self._own.get_file(f"{self.root}/{CHUNKS}/{name}")
        return self.files.get_file(unquote_url(name))

    def find_manifest(self, path: str, grid: tuple[int, ...]) -> ChunkManifest:
        """Return the references of an array, which are read on demand."""
        return ChunkManifest.of_table(ArrayTable(self, path, grid), grid)

    def read_manifest(self, path: str, grid: tuple[int, ...]) -> ChunkManifest:
        """Return all references of an array."""
        found: ChunkManifest = self._kept.get(
            (path, grid), lambda: self._build_manifest(self._read(path), grid)
        )
        return found

    def load(self, path: str, grid: tuple[int, ...], ids: Ints) -> ChunkManifest:
        """Return some chunks of an array, in the shape of their numbers."""
        return self.read_manifest(path, grid).at(ids).pruned()

    def list_sources(self, path: str, grid: tuple[int, ...]) -> tuple[SourceFile, ...]:
        """Return all files that chunks of an array lie in."""
        return self.read_manifest(path, grid).sources

    def find_sources(
        self, path: str, grid: tuple[int, ...], urls: Collection[str]
    ) -> tuple[SourceFile, ...]:
        """Return the files of some urls, and maybe files that only other arrays refer to."""
        return tuple(file for file in self.list_sources(path, grid) if file.url in urls)

    def _read(self, path: str) -> Any:
        return self.store.read_references(path)

    def _build_manifest(self, found: Any, grid: tuple[int, ...]) -> ChunkManifest:
        """Return references of Icechunk as a manifest; chunks beyond the grid are left out."""
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
            files=[self.get_file(found.paths[n], bool(native[n])) for n in used.tolist()],
            inline=[found.inline[row] for row in rows[held].tolist()],
            **columns,
        )
        order = np.argsort(where)
        return build_sparse(np.asarray(where[order], np.int64), there.at(order), grid)


@dataclass(frozen=True)
class ArrayTable(Table):
    """The references of one array of a store.

    Parameters
    ----------
    store : StoreReferences
    path : str
        Of the array.
    grid : tuple of int
        Chunks per axis.
    """

    store: StoreReferences
    path: str
    grid: tuple[int, ...]

    def load(self, ids: Ints) -> ChunkManifest:
        """Return the chunks of these numbers, in their shape, with the files that they lie in."""
        return self.store.load(self.path, self.grid, ids)

    def list_numbers(self) -> Ints | None:
        """Return the numbers of the chunks that exist; None if most of them do."""
        return self.store.read_manifest(self.path, self.grid).find_existing()

    def list_sources(self) -> tuple[SourceFile, ...]:
        """Return all files that chunks lie in."""
        return self.store.list_sources(self.path, self.grid)

    def find_sources(self, urls: Collection[str]) -> tuple[SourceFile, ...]:
        """Return the files of some urls, and maybe files that only other arrays refer to."""
        return self.store.find_sources(self.path, self.grid, urls)


# ---------------------------------------------------------------------- a snapshot


class RepositoryReferences(StoreReferences):
    """The references of one snapshot of a repository.

    Parameters
    ----------
    root, options, allow
        As for `StoreReferences`.
    snapshot : str
        Id of the snapshot.
    opened : tuple, optional
        The repository of Icechunk and its store of the snapshot, if they are open already.
    """

    root: str

    def __init__(
        self,
        root: str,
        options: StorageOptions | None,
        allow: AccessPolicy,
        snapshot: str,
        opened: tuple[Any, Any] | None = None,
    ) -> None:
        super().__init__(root, options, allow)
        self.snapshot = snapshot
        self._opening = name_opening()
        self._opened = opened

    def _open_again(self) -> tuple[Any, Any]:
        """Return the repository and its store of the snapshot, opened in this process."""
        if self._opened is None:
            place = find_storage(self.root, self.options)
            repository = import_adapter().open_repository(place, self.root)
            store = import_adapter().open_snapshot(repository, self.snapshot, self.root)
            self._opened = repository, store
        return self._opened

    def __getstate__(self) -> dict[str, Any]:
        """Pickle where the references lie, not the cache of them."""
        return {name: getattr(self, name) for name in ("root", "options", "allow", "snapshot")}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        known = dict(state)
        opening = known.pop("_opening", None)
        self.__init__(**known)  # type: ignore[misc]
        self._opening = opening or self._opening

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
        """The open store of the snapshot."""
        return self._open_again()[1]

    @property
    def files(self) -> ReferencedFiles:  # type: ignore[override]
        """The files that the snapshot refers to, with the fingerprints that it has noted."""

        def noted() -> ReferencedFiles:
            repository, store = self._open_again()
            parent = import_adapter().find_parent(repository, self.snapshot, self.root)
            return ReferencedFiles(self._beginning, read_noted_sources(store, parent), self.allow)

        found: ReferencedFiles = self._kept.get("files", noted)
        return found


# ---------------------------------------------------------------------- a store of the user


class OpenedStore(StoreReferences):
    """The references of a store that the user opened.

    Such a store does not say where it lies. So its own chunks are read through it, on demand, and
    become inline chunks of manifests.

    Parameters
    ----------
    store : OpenStore
    options : StorageOptions, optional
        Of the files that it refers to.
    noted : mapping
        Fingerprints of files, by their urls.
    allow : AccessPolicy
        Where the files that it refers to may lie.
    """

    def __init__(
        self,
        store: Any,
        options: StorageOptions | None,
        noted: Mapping[str, Any],
        allow: AccessPolicy,
    ) -> None:
        super().__init__(None, options, allow)
        self.store = store
        self.files = ReferencedFiles(self._beginning, noted, allow)
        self._opening = name_opening()

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the store, not the cache of its references."""
        return {name: value for name, value in self.__dict__.items() if name != "_kept"}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state, _kept=RecordCache(KEPT_TABLES))

    def __dask_tokenize__(self) -> tuple[str, ...]:
        return "virtualds-icechunk-opened", self._opening

    def get_file(self, name: str, native: bool) -> SourceFile:
        """Return the file of a location of Icechunk, or a name for a chunk of its own."""
        if native:
            return SourceFile(f"{OWN}{name}")
        url = unquote_url(name)
        if scheme_of(url) == "file" and self.allow.prefixes is None:
            raise AccessError(
                f"{self.store.url}: it refers to {url}, and does not say whether it comes from "
                f"this machine itself; {REMEDY}, or open it by its path"
            )
        return self.files.get_file(url)

    def load(self, path: str, grid: tuple[int, ...], ids: Ints) -> ChunkManifest:
        """Return some chunks of an array, those of the store itself as inline chunks."""
        found = super().load(path, grid, ids)
        own = [n for n, file in enumerate(found.files) if file.url.startswith(OWN)]
        rows = np.isin(found.file, own)
        if not rows.any():
            return found
        numbers = np.asarray(ids)[rows]
        read = self.store.read_chunks(path, list_places(numbers, grid))
        file, offset = found.file.copy(), found.offset.copy()
        file[rows], offset[rows] = INLINE, len(found.inline) + np.arange(len(read))
        return ChunkManifest.build(
            found.shape, files=found.files, inline=(*found.inline, *read), file=file,
            offset=offset, length=found.length,
        ).pruned()  # fmt: skip

    def list_sources(self, path: str, grid: tuple[int, ...]) -> tuple[SourceFile, ...]:
        """Return all files that chunks of an array lie in, besides those of the store itself."""
        found = super().list_sources(path, grid)
        return tuple(file for file in found if not file.url.startswith(OWN))


def list_places(numbers: Ints, grid: tuple[int, ...]) -> list[list[int]]:
    """Return the place of each chunk in its grid."""
    if not grid:
        return [[]] * numbers.size
    places: list[list[int]] = np.stack(np.unravel_index(numbers, grid), 1).tolist()
    return places


# ---------------------------------------------------------------------- a store that is changed


class KnownChunks(StoreReferences):
    """The chunks of a store before it is changed.

    What stays where it is need not be read: a set of ten million references grows by what is new.
    Chunks of a repository whose place is unknown are read.

    Parameters
    ----------
    store : OpenStore
    committed : object
        The repository, None if somebody else commits the change.
    root, options, allow
        As for `StoreReferences`.
    """

    def __init__(
        self,
        store: Any,
        committed: Any,
        root: str | None,
        options: StorageOptions | None,
        allow: AccessPolicy,
    ) -> None:
        super().__init__(root, options, allow, sys.maxsize)
        self.store, self._committed = store, committed
        self.noted = read_noted_sources(store)
        self.files = ReferencedFiles(self._beginning, self.noted, allow)

    @cached_property
    def notes_all(self) -> bool:
        """Whether every file that the store refers to is noted: nobody else has committed since."""
        if self._committed is None:
            return False
        parent = import_adapter().find_parent(self._committed, self.store.snapshot, self.store.url)
        notes = self.store.read_document("").get(NOTES)
        known = isinstance(notes, Mapping) and bool(notes.get("all"))
        return known and notes.get("after") == parent

    def find_sources(
        self, path: str, grid: tuple[int, ...], urls: Collection[str]
    ) -> tuple[SourceFile, ...]:
        """Return the files of some urls, and maybe files that only other arrays refer to."""
        if self.notes_all:
            return tuple(self.files.get_file(url) for url in urls if url in self.noted)
        return super().find_sources(path, grid, urls)

    def _read(self, path: str) -> Any:
        found = super()._read(path)
        if self.root is not None:
            return found
        native, inline = import_adapter().NATIVE, import_adapter().INLINE
        rows = np.flatnonzero(found.kind == native)
        read = self.store.read_chunks(path, found.places[rows].tolist())
        kind = np.where(found.kind == native, inline, found.kind)
        held = found.inline | dict(zip(rows.tolist(), read, strict=True))
        return found._replace(kind=kind, inline=held)

    def is_known(self, manifest: ChunkManifest) -> bool:
        """Say whether a manifest counts chunks that the store refers to already."""
        return self._find_table(manifest) is not None

    def find_new_parts(self, parts: Sequence[ManifestPart], path: str) -> list[ManifestPart] | None:
        """Return the parts of an array besides those that stay where they are.

        None stands for an array of which not all chunks stay: it has to be compared chunk by chunk.
        """
        tables = [self._find_table(part.manifest) for part in parts]
        grids = {table.grid for table in tables if table is not None}
        stay = [
            table is not None and table.path == path and _stays(part, table.grid)
            for part, table in zip(parts, tables, strict=True)
        ]
        kept = sum(part.manifest.size for part, stays in zip(parts, stay, strict=True) if stays)
        if len(grids) != 1 or kept != prod(next(iter(grids))):
            return None
        return [part for part, stays in zip(parts, stay, strict=True) if not stays]

    def _find_table(self, manifest: ChunkManifest) -> ArrayTable | None:
        table = manifest.table_of(ArrayTable)
        return table if table is not None and table.store is self else None


def _stays(part: ManifestPart, grid: tuple[int, ...]) -> bool:
    """Say whether the chunks of a part lie where the array has them already."""
    steps, counting = compute_strides(grid), part.manifest.rows
    if counting is None or len(part.origin) != len(grid):
        return False
    sides = zip(part.origin, counting.shape, counting.strides, steps, grid, strict=True)
    return counting.first == int(np.dot(part.origin, steps)) and all(
        begin + count <= whole and (count == 1 or stride == step)
        for begin, count, stride, step, whole in sides
    )
