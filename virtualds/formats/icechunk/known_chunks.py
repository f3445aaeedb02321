"""The chunks of a store of Icechunk that a change begins with.

What stays where it is need not be read: a set of ten million references grows by what is new.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, ClassVar

import numpy as np

from virtualds.chunks.lazy_manifest import LazyManifest
from virtualds.chunks.manifest import ChunkManifest
from virtualds.chunks.projection import Ints, compute_strides
from virtualds.formats.icechunk.locations import unquote_url
from virtualds.formats.icechunk.references import (
    CHUNKS,
    are_all_noted,
    import_adapter,
    read_noted_sources,
    to_manifest,
)
from virtualds.formats.icechunk.target import Target
from virtualds.formats.referenced_files import ReferencedFiles
from virtualds.formats.zarr.v3_arrays import ManifestPart
from virtualds.source_file import SourceFile
from virtualds.stores.access_rules import AccessPolicy


class KnownChunks:
    """The chunks of a store before it is changed, read by array when they are asked for.

    Chunks of a repository whose place is unknown are read.
    """

    def __init__(self, store: Any, target: Target, allow: AccessPolicy) -> None:
        self._store = store
        self._target = target
        self._found: dict[tuple[str, tuple[int, ...]], ChunkManifest] = {}
        root = target.root or "file:///"
        source = SourceFile(f"{root}/repo", options=target.options)
        self._own = ReferencedFiles(source, {})
        self.noted = read_noted_sources(store, target.name)
        self._files = ReferencedFiles(source, self.noted, allow)

    def find_manifest(self, path: str, grid: tuple[int, ...]) -> ChunkManifest:
        """Return the references of an array, which are read on demand."""
        return LazyManifest(KnownTable(self, path, grid), grid)

    @cached_property
    def notes_all(self) -> bool:
        """Whether every file that the store refers to is noted: nobody else has committed since."""
        if not import_adapter().is_committed_here(self._target.given):
            return False
        snapshot = self._store.session.snapshot_id
        parent = import_adapter().find_parent(self._target.given, snapshot, self._target.name)
        return are_all_noted(self._store, self._target.name, parent)

    def get_noted(self, url: str) -> SourceFile:
        """Return a file that is noted."""
        return self._files.get_file(url)

    def read_manifest(self, path: str, grid: tuple[int, ...]) -> ChunkManifest:
        """Return the references of an array."""
        if (path, grid) not in self._found:
            found = import_adapter().read_references(self._store, path, self._target.name)
            if self._target.root is None:
                found = self._add_values(path, found)
            self._found[path, grid] = to_manifest(found, grid, self._get_file)
        return self._found[path, grid]

    def _get_file(self, name: str, native: bool) -> SourceFile:
        if native:
            return self._own.get_file(f"{self._target.root}/{CHUNKS}/{name}")
        return self._files.get_file(unquote_url(name))

    def _add_values(self, path: str, found: Any) -> Any:
        rows = np.flatnonzero(found.kind == import_adapter().NATIVE)
        places = found.places[rows].tolist()
        keys = ["/".join([path, "c", *map(str, place)]) for place in places]
        read = import_adapter().read_chunks(self._store, keys, self._target.name)
        kind = np.where(found.kind == import_adapter().NATIVE, import_adapter().INLINE, found.kind)
        inline = found.inline | dict(zip(rows.tolist(), read, strict=True))
        return found._replace(kind=kind, inline=inline)


@dataclass(frozen=True, eq=False)
class KnownTable:
    """The references of one array of a store that is changed.

    Parameters
    ----------
    known : KnownChunks
    path : str
        Of the array.
    grid : tuple of int
        Chunks per axis.
    """

    known: KnownChunks
    path: str
    grid: tuple[int, ...]

    has_pipelines: ClassVar[bool] = False

    def load(self, ids: Ints) -> ChunkManifest:
        """Return the chunks of these numbers, in their shape, with the files that they lie in."""
        return self._read().at(ids).pruned()

    def list_numbers(self) -> Ints | None:
        """Return the numbers of the chunks that exist; None if most of them do."""
        return self._read().find_existing()

    def list_sources(self) -> tuple[SourceFile, ...]:
        """Return all files that chunks lie in."""
        return self._read().sources

    def find_sources(self, urls: Collection[str]) -> tuple[SourceFile, ...]:
        """Return the files of some urls, and maybe files that only other arrays refer to."""
        if self.known.notes_all:
            noted = (url for url in urls if url in self.known.noted)
            return tuple(self.known.get_noted(url) for url in noted)
        return tuple(file for file in self.list_sources() if file.url in urls)

    def summarize_sources(self) -> None:
        """Return nothing: a summary takes all references."""

    def _read(self) -> ChunkManifest:
        return self.known.read_manifest(self.path, self.grid)


def is_known(manifest: ChunkManifest) -> bool:
    """Say whether a manifest counts chunks that the store refers to already."""
    return _find_table(manifest) is not None


def find_new_parts(
    parts: list[ManifestPart], path: str, known: KnownChunks
) -> list[ManifestPart] | None:
    """Return the parts of an array besides those that stay where they are.

    None stands for an array of which not all chunks stay: it has to be compared chunk by chunk.
    """
    tables = [_find_table(part.manifest) for part in parts]
    stay = [
        table is not None and table.known is known and table.path == path and _stays(part, table)
        for part, table in zip(parts, tables, strict=True)
    ]
    grids = {table.grid for table in tables if table is not None}
    kept = sum(part.manifest.size for part, stays in zip(parts, stay, strict=True) if stays)
    if len(grids) != 1 or kept != prod(next(iter(grids))):
        return None
    return [part for part, stays in zip(parts, stay, strict=True) if not stays]


def _find_table(manifest: ChunkManifest) -> KnownTable | None:
    if not isinstance(manifest, LazyManifest):
        return None
    table = manifest.counting.table
    return table if isinstance(table, KnownTable) else None


def _stays(part: ManifestPart, table: KnownTable) -> bool:
    """Say whether the chunks of a part lie where the array has them already."""
    steps, counting = compute_strides(table.grid), part.manifest.counting  # type: ignore[attr-defined]
    if len(part.origin) != len(table.grid):
        return False
    sides = zip(part.origin, counting.shape, counting.strides, steps, table.grid, strict=True)
    return counting.first == int(np.dot(part.origin, steps)) and all(
        begin + count <= whole and (count == 1 or stride == step)
        for begin, count, stride, step, whole in sides
    )
