"""References of a store of Icechunk that the user opened.

Such a store does not say where it lies. So its own chunks are read through it, on demand, and
become inline chunks of manifests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from virtualds.chunks.columns import INLINE
from virtualds.chunks.manifest import ChunkManifest
from virtualds.chunks.projection import Ints
from virtualds.chunks.record_cache import RecordCache, name_opening
from virtualds.errors import AccessError
from virtualds.formats.icechunk.locations import unquote_url
from virtualds.formats.icechunk.references import KEPT_TABLES, import_adapter, to_manifest
from virtualds.formats.referenced_files import ReferencedFiles
from virtualds.source_file import SourceFile, StorageOptions
from virtualds.stores.access_rules import REMEDY, AccessPolicy
from virtualds.urls import scheme_of

OWN = "icechunk:"
"""The prefix of names of chunks that the store holds itself."""


class OpenedStore:
    """The references of an opened store.

    Parameters
    ----------
    store : IcechunkStore
    name : str
        Its name, for errors.
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
        name: str,
        options: StorageOptions | None,
        noted: Mapping[str, Any],
        allow: AccessPolicy,
    ) -> None:
        self.store, self.name = store, name
        self._allow = allow
        self._files = ReferencedFiles(SourceFile("file:///", options=options), noted, allow)
        self._opening = name_opening()
        self._open()

    def _open(self) -> None:
        self._kept: RecordCache[ChunkManifest] = RecordCache(KEPT_TABLES)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the store, not the cache of its references."""
        return {name: value for name, value in self.__dict__.items() if name != "_kept"}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    def __dask_tokenize__(self) -> tuple[str, ...]:
        return "virtualds-icechunk-opened", self._opening

    def read_manifest(self, path: str, grid: tuple[int, ...]) -> ChunkManifest:
        """Return all references of an array."""

        def read() -> ChunkManifest:
            return to_manifest(
                import_adapter().read_references(self.store, path, self.name), grid, self._get_file
            )

        return self._kept.get((path, grid), read)

    def read_chunks(self, path: str, places: list[list[int]]) -> list[bytes]:
        """Return chunks that the store holds itself."""
        keys = ["/".join([path, "c", *map(str, place)]) for place in places]
        found: list[bytes] = import_adapter().read_chunks(self.store, keys, self.name)
        return found

    def _get_file(self, name: str, native: bool) -> SourceFile:
        if native:
            return SourceFile(f"{OWN}{name}")
        url = unquote_url(name)
        if scheme_of(url) == "file" and self._allow.prefixes is None:
            raise AccessError(
                f"{self.name}: it refers to {url}, and does not say whether it comes from this "
                f"machine itself; {REMEDY}, or open it by its path"
            )
        return self._files.get_file(url)


@dataclass(frozen=True, eq=False)
class OpenedTable:
    """The references of one array of an opened store.

    Parameters
    ----------
    store : OpenedStore
    path : str
        Of the array.
    grid : tuple of int
        Chunks per axis.
    """

    store: OpenedStore
    path: str
    grid: tuple[int, ...]

    has_pipelines: ClassVar[bool] = False

    def load(self, ids: Ints) -> ChunkManifest:
        """Return the chunks of these numbers, in their shape, with the files that they lie in."""
        found = self.store.read_manifest(self.path, self.grid).at(ids).pruned()
        own = [n for n, file in enumerate(found.files) if file.url.startswith(OWN)]
        rows = np.isin(found.file, own)
        if not rows.any():
            return found
        numbers = np.asarray(ids)[rows]
        places = np.stack(np.unravel_index(numbers, self.grid), axis=-1) if self.grid else None
        read = self.store.read_chunks(
            self.path, [[]] * len(numbers) if places is None else places.tolist()
        )
        file, offset = found.file.copy(), found.offset.copy()
        file[rows], offset[rows] = INLINE, len(found.inline) + np.arange(len(read))
        inline = (*found.inline, *read)
        return ChunkManifest.build(
            found.shape, files=found.files, inline=inline, file=file, offset=offset,
            length=found.length,
        ).pruned()  # fmt: skip

    def list_numbers(self) -> Ints | None:
        """Return the numbers of the chunks that exist; None if most of them do."""
        return self.store.read_manifest(self.path, self.grid).find_existing()

    def list_sources(self) -> tuple[SourceFile, ...]:
        """Return all files that chunks lie in."""
        found = self.store.read_manifest(self.path, self.grid).sources
        return tuple(file for file in found if not file.url.startswith(OWN))

    def summarize_sources(self) -> None:
        """Return nothing: a summary takes all references."""
