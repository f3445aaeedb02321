"""Chunk manifests in JSON: objects whose keys are chunks, or prefixes of the keys of chunks.

``docs/reference/formats/zarr-v3.md`` specifies the form, after the "Manifest storage transformer"
proposal (zarr-specs issue 287). A file is checked and measured when one of its chunks is needed,
unless all references stand in the metadata.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from virtualds.chunks.manifest import ChunkManifest
from virtualds.chunks.projection import Ints
from virtualds.chunks.table import Table
from virtualds.errors import FormatError, VirtualdsError
from virtualds.formats.referenced_files import MALFORMED_ERRORS, UNKNOWN
from virtualds.formats.zarr.chunk_keys import ChunkKeys
from virtualds.formats.zarr_manifests.json_rows import (
    FragmentEntries,
    RowBuilder,
    SetFiles,
    demand_text,
)
from virtualds.reading.threads import fetch_many
from virtualds.source_file import SourceFile
from virtualds.stores.access_rules import resolve_url

SPARSE = 16
"""Chunks of a grid for each listed one, from which on a manifest in the metadata stays lazy."""


@dataclass(frozen=True)
class JsonTable(Table):
    """References in a JSON object, by keys of chunks.

    Parameters
    ----------
    store : SetFiles
    manifest : str or mapping
        Path of the file in the set, or the object itself.
    grid : tuple of int
        Chunks per axis.
    prefix : str
        The beginning of its keys.
    key : ChunkKeys
        Keys of chunks below the folder of the array, for entries that map a prefix of them.
    sources : str or mapping, optional
        Fingerprints of files by their paths, or the path of their file in the set.
    has_pipelines : bool
        Whether entries may name a pipeline.
    pipelines : int
        Number of pipelines.
    """

    store: SetFiles
    manifest: Any
    grid: tuple[int, ...]
    prefix: str
    key: ChunkKeys
    sources: Any = None
    has_pipelines: bool = False
    pipelines: int = 1

    def __hash__(self) -> int:
        return hash((self.store, self.grid, self.prefix))

    @property
    def entries(self) -> Mapping[str, Any]:
        """The entries of the manifest, by key."""
        found = self.manifest
        if isinstance(found, str):
            found = self.store.read_document(found)
        if not isinstance(found, Mapping):
            raise FormatError(f"{self._where}: a manifest is an object, found {found!r:.40}")
        return found

    @property
    def fingerprints(self) -> Mapping[str, Any]:
        """The fingerprints of files by their paths."""
        known = self.sources or {}
        if isinstance(known, str):
            known = self.store.read_document(known)
        if not isinstance(known, Mapping):
            raise FormatError(f"{self._where}: its sources are an object, found {known!r:.40}")
        return known

    @property
    def has_prefixes(self) -> bool:
        """Whether an entry stands for all keys that begin with its own."""
        return bool(self._parsed().prefixes)

    def to_manifest(self) -> ChunkManifest:
        """Return the manifest: lazy unless all of it stands in the metadata."""
        if not isinstance(self.manifest, str):
            parsed, count = self._parsed(), prod(self.grid)
            is_dense = count <= SPARSE * (parsed.rows.numbers.size + 1)
            if is_dense and not parsed.measured and not parsed.prefixes:
                return parsed.rows.load(np.arange(count).reshape(self.grid))
        return ChunkManifest.of_table(self, self.grid)

    def load(self, ids: Ints) -> ChunkManifest:
        """Return the chunks of these numbers, in their shape, with the files that they lie in."""
        parsed = self._parsed()
        found = parsed.rows.load(ids).pruned()
        if not (parsed.measured or parsed.prefixes):
            return found
        flat, known = ids.ravel(), np.isin(ids.ravel(), parsed.rows.numbers)
        return self._add_measured(found.reshape(flat.shape), flat, known, parsed).reshape(ids.shape)

    def list_numbers(self) -> Ints | None:
        """Return the numbers of the chunks with entries; None if prefixes stand for others."""
        parsed = self._parsed()
        measured = np.fromiter(parsed.measured, np.int64, len(parsed.measured))
        return None if parsed.prefixes else np.union1d(parsed.rows.numbers, measured)

    def list_sources(self) -> tuple[SourceFile, ...]:
        """Return all files that entries name, without those below prefixes."""
        parsed = self._parsed()
        paths = dict.fromkeys(entry["path"] for entry in parsed.measured.values())
        measured = (self.store.get_file(path, parsed.sources.get(path, UNKNOWN)) for path in paths)
        return tuple(dict.fromkeys([*parsed.rows.files, *measured]))

    def with_files(self, change: Callable[[SourceFile], SourceFile]) -> JsonTable | None:
        """Return the entries with what ``change`` makes of files; None if chunks can be listed."""
        if not self.has_prefixes:
            return None
        known, moved, sources = self.fingerprints, dict[str, str](), dict[str, Any]()
        for path in dict.fromkeys(e["path"] for e in self.entries.values() if "path" in e):
            whole = path.rstrip("/")
            file = self.store.get_file(whole, known.get(path, UNKNOWN))
            found = change(file)
            moved[path] = path if found.url == file.url else found.url + path[len(whole) :]
            if any(found.fingerprint):
                sources[moved[path]] = found.fingerprint
        entries = {
            key: {**entry, "path": moved[entry["path"]]} if "path" in entry else entry
            for key, entry in self.entries.items()
        }
        return replace(self, manifest=entries, sources=sources)

    @property
    def _where(self) -> str:
        name = self.manifest if isinstance(self.manifest, str) else "zarr.json"
        return f"{self.store.root}/{name}"

    def _parsed(self) -> FragmentEntries:
        if isinstance(self.manifest, str):
            found: FragmentEntries = self.store.get_cached((self.manifest, self.prefix), self._read)
            return found
        return self._read()

    def _read(self) -> FragmentEntries:
        """Return the entries of the fragment.

        Raises
        ------
        FormatError
            They do not follow the specification.
        """
        rows = RowBuilder(self.store, self.fingerprints, self.pipelines)
        for name, entry in self.entries.items():
            self._read_entry(name, entry, rows)
        try:
            return rows.build()
        except VirtualdsError as error:
            error.add_note(f"manifest {self._where}")
            raise

    def _read_entry(self, name: str, entry: Any, rows: RowBuilder) -> None:
        try:
            if name.endswith("/"):
                if self.prefix:
                    raise FormatError("an array of fragments has no keys that could begin so")
                rows.prefixes.append((name.removeprefix("./"), demand_text(entry["path"])))
            elif name.startswith(self.prefix):
                rows.add(self._parse_key(name[len(self.prefix) :]), entry)
        except VirtualdsError as error:
            error.add_note(f"entry {name!r} of {self._where}")
            raise
        except MALFORMED_ERRORS as error:
            raise FormatError(
                f"{self._where}: entry {name!r} is {entry!r:.80}, which is invalid ({error}); "
                f"the set is damaged"
            ) from error

    def _parse_key(self, key: str) -> int:
        """Return the number of a chunk in its grid."""
        parts = key.split(".") if self.grid else []
        if not all(p.isascii() and p.isdecimal() for p in parts) or not (self.grid or key == "0"):
            raise FormatError(f"{key!r} is not the key of a chunk")
        place = tuple(map(int, parts))
        if len(place) != len(self.grid) or any(
            i >= n for i, n in zip(place, self.grid, strict=True)
        ):
            raise FormatError(f"chunk {key!r} lies outside the grid {self.grid}")
        number = 0
        for i, n in zip(place, self.grid, strict=True):
            number = number * n + i
        return number

    # ------------------------------------------------------------------ chunks to be measured

    def _add_measured(
        self, found: ChunkManifest, ids: Ints, known: Any, parsed: FragmentEntries
    ) -> ChunkManifest:
        """Add the chunks that are the rest of a file, whose length the store knows."""
        rows = RowBuilder(self.store, parsed.sources, self.pipelines)
        entries: list[tuple[int, Mapping[str, Any]]] = []
        for row in np.flatnonzero(~known).tolist():
            number = int(ids[row])
            if entry := parsed.measured.get(number) or self._find_prefixed(number, parsed.prefixes):
                entries.append((row, entry))

        def measured(one: tuple[int, Mapping[str, Any]]) -> int | None:
            row, entry = one
            try:
                return rows.get_length(entry)
            except VirtualdsError as error:
                error.add_note(f"chunk {int(ids[row])} of {self._where}")
                raise

        lengths = fetch_many(
            entries, lambda one: resolve_url(one[1]["path"], f"{self.store.root}/"), measured
        )
        for (row, entry), length in zip(entries, lengths, strict=True):
            if length is not None:
                rows.add(row, {**entry, "length": length})
        added = rows.build()
        places = np.arange(ids.size)
        places[added.rows.numbers] = ids.size + np.arange(added.rows.numbers.size)
        return ChunkManifest.concatenate([found, added.rows.rows], 0).at(places)

    def _find_prefixed(self, number: int, prefixes: list[tuple[str, str]]) -> dict[str, Any] | None:
        """Return the entry from the longest prefix of a chunk's key, None if there is none."""
        place = tuple(int(i) for i in np.unravel_index(number, self.grid)) if self.grid else ()
        key = self.key(place)
        fitting = [pair for pair in prefixes if key.startswith(pair[0])]
        if not fitting:
            return None
        prefix, path = max(fitting, key=lambda pair: len(pair[0]))
        return {"path": path + key[len(prefix) :], "may_be_absent": True}
