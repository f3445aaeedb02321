"""Chunk manifests in JSON: objects whose keys are chunks, or prefixes of the keys of chunks.

``docs/reference/formats/zarr-v3.md`` specifies the form, after the "Manifest storage transformer"
proposal (zarr-specs issue 287). A file is checked and measured when one of its chunks is needed,
unless all references stand in the metadata.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import prod
from operator import mul
from typing import Any

import numpy as np

from virtualds.chunks.columns import COLUMNS, INLINE, MISSING, Ints, compute_strides
from virtualds.chunks.manifest import ChunkManifest
from virtualds.chunks.table import Table
from virtualds.chunks.tables import PlacedReferences
from virtualds.errors import FormatError, ReadError, VirtualdsError
from virtualds.formats.referenced_files import MALFORMED_ERRORS, UNKNOWN
from virtualds.formats.zarr.document import DOTTED_KEYS, ChunkKeys
from virtualds.formats.zarr_manifests.set_files import SetFiles
from virtualds.reading.threads import fetch_many
from virtualds.source_file import PRESENT, SourceFile
from virtualds.stores.access_rules import resolve_url

HEXADECIMAL = frozenset("0123456789abcdefABCDEF")
SPARSE = 16
"""Chunks of a grid for each listed one, from which on a manifest in the metadata stays lazy."""


@dataclass(frozen=True)
class JsonTable(Table):
    """References in a JSON object, by keys of chunks.

    ``manifest`` is the path of a file in the set, or the object itself; ``sources`` are
    fingerprints of files by their paths, or the path of their file. ``prefix`` is the beginning of
    its keys. ``key`` names chunks below the folder of the array, for entries that map a prefix of
    these names. ``numbered`` is the number of pipelines that entries may name, 0 if they name none.
    """

    store: SetFiles
    manifest: Any
    grid: tuple[int, ...]
    prefix: str
    key: ChunkKeys
    sources: Any = None
    numbered: int = 0

    @property
    def has_pipelines(self) -> bool:
        return bool(self.numbered)

    def __hash__(self) -> int:
        return hash((self.store, self.grid, self.prefix))

    @property
    def entries(self) -> Mapping[str, Any]:
        """The entries of the manifest, by key."""
        return self._read_object(self.manifest, "a manifest is")

    @property
    def fingerprints(self) -> Mapping[str, Any]:
        """The fingerprints of files by their paths."""
        return self._read_object(self.sources or {}, "its sources are")

    def _read_object(self, said: Any, what: str) -> Mapping[str, Any]:
        found = self.store.read_document(said) if isinstance(said, str) else said
        if not isinstance(found, Mapping):
            raise FormatError(f"{self._where}: {what} an object, found {found!r:.40}")
        return found

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
        parsed = self._parsed()
        found = parsed.rows.load(ids).pruned()
        if not (parsed.measured or parsed.prefixes):
            return found
        flat, known = ids.ravel(), np.isin(ids.ravel(), parsed.rows.numbers)
        return self._add_measured(found.reshape(flat.shape), flat, known, parsed).reshape(ids.shape)

    def list_numbers(self) -> Ints | None:
        parsed = self._parsed()
        measured = np.fromiter(parsed.measured, np.int64, len(parsed.measured))
        return None if parsed.prefixes else np.union1d(parsed.rows.numbers, measured)

    def list_sources(self) -> tuple[SourceFile, ...]:
        # without those below prefixes
        parsed = self._parsed()
        paths = dict.fromkeys(entry["path"] for entry in parsed.measured.values())
        return tuple(dict.fromkeys([*parsed.rows.files, *map(parsed.get_file, paths)]))

    def with_files(self, change: Callable[[SourceFile], SourceFile]) -> JsonTable | None:
        # others are listed, chunk by chunk
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

    def _parsed(self) -> _Entries:
        if isinstance(self.manifest, str):
            found: _Entries = self.store.get_cached((self.manifest, self.prefix), self._read)
            return found
        return self._read()

    def _read(self) -> _Entries:
        """Return the entries of the fragment."""
        rows = _Entries(self.store, self.fingerprints, self.numbered)
        for name, entry in self.entries.items():
            self._read_entry(name, entry, rows)
        try:
            return rows.settled()
        except VirtualdsError as error:
            error.add_note(f"manifest {self._where}")
            raise

    def _read_entry(self, name: str, entry: Any, rows: _Entries) -> None:
        try:
            if name.endswith("/"):
                if self.prefix:
                    raise FormatError("an array of fragments has no keys that could begin so")
                rows.prefixes.append((name.removeprefix("./"), _check_text(entry["path"])))
            elif name.startswith(self.prefix):
                key = name[len(self.prefix) :]
                place = DOTTED_KEYS.parse_key(key, len(self.grid))
                if place is None:
                    raise FormatError(f"{key!r} is not the key of a chunk")
                if any(i >= n for i, n in zip(place, self.grid, strict=True)):
                    raise FormatError(f"chunk {key!r} lies outside the grid {self.grid}")
                rows.add(sum(map(mul, place, compute_strides(self.grid))), entry)
        except VirtualdsError as error:
            error.add_note(f"entry {name!r} of {self._where}")
            raise
        except MALFORMED_ERRORS as error:
            raise FormatError(
                f"{self._where}: entry {name!r} is {entry!r:.80}, which is invalid ({error}); "
                f"the set is damaged"
            ) from error

    # ------------------------------------------------------------------ chunks to be measured

    def _add_measured(
        self, found: ChunkManifest, ids: Ints, known: Any, parsed: _Entries
    ) -> ChunkManifest:
        """Add the chunks that are the rest of a file, whose length the store knows."""
        rows = _Entries(self.store, parsed.sources, self.numbered)
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
        added = rows.settled()
        places = np.arange(ids.size)
        places[added.rows.numbers] = ids.size + np.arange(added.rows.numbers.size)
        return ChunkManifest.concatenate([found, added.rows.rows], 0).at(places)

    def _find_prefixed(self, number: int, prefixes: list[tuple[str, str]]) -> dict[str, Any] | None:
        """Return the entry from the longest prefix of a chunk's key, None if there is none."""
        [key] = self.key.list_keys(np.array([number]), self.grid)
        fitting = [pair for pair in prefixes if key.startswith(pair[0])]
        if not fitting:
            return None
        prefix, path = max(fitting, key=lambda pair: len(pair[0]))
        return {"path": path + key[len(prefix) :], "may_be_absent": True}


# ---------------------------------------------------------------------- entries


class _Entries:
    """The entries of one fragment.

    ``rows`` are the chunks with entries, once all are added and `settled`. ``measured`` are entries
    without a length, by number of chunk; ``prefixes`` are pairs of the beginning of a key and the
    path that replaces it; ``sources`` are fingerprints by path.
    """

    rows: PlacedReferences

    def __init__(self, store: SetFiles, sources: Mapping[str, Any], pipelines: int) -> None:
        self._store = store
        self._pipelines = max(pipelines, 1)
        self.sources = sources
        self.measured: dict[int, Mapping[str, Any]] = {}
        self.prefixes: list[tuple[str, str]] = []
        self._numbers: dict[str, int] = {}
        self._files: list[SourceFile] = []
        self._inline: list[bytes] = []
        self._rows: list[tuple[int, ...]] = []

    def add(self, number: int, entry: Any) -> None:
        """Add the entry of a chunk."""
        if not isinstance(entry, Mapping):
            raise TypeError("it is not an object")
        pipeline, checksum = _check_natural(entry.get("pipeline", 0)), 0
        if pipeline >= self._pipelines:
            raise ValueError(f"there are {self._pipelines} pipelines")
        if "data" in entry or "path" in entry:
            checksum = _parse_checksum(entry.get("checksum"))
        offset = _check_natural(entry.get("offset", 0))
        if "data" in entry:
            self._inline.append(base64.b64decode(entry["data"], validate=True))
            place = (INLINE, len(self._inline) - 1, len(self._inline[-1]))
        elif "path" not in entry:
            place = (MISSING, 0, 0)
        elif entry.get("length") is None:
            _check_text(entry["path"])
            self.measured[number] = entry
            return
        else:
            place = (self._number_file(entry["path"]), offset, _check_natural(entry["length"]))
        self._rows.append((number, *place, pipeline, checksum))

    def get_file(self, path: str) -> SourceFile:
        """Return the file of a path, with its fingerprint if one is known."""
        return self._store.get_file(path, self.sources.get(path, UNKNOWN))

    def get_length(self, entry: Mapping[str, Any]) -> int | None:
        """Return the length of the rest of a file, None if the file may be missing and is."""
        try:
            size = self._store.get_size(self.get_file(entry["path"]))
        except ReadError as error:
            if "may_be_absent" in entry and isinstance(error.__cause__, FileNotFoundError):
                return None
            raise
        length: int = size - entry.get("offset", 0)
        if length <= 0:
            raise FormatError(
                f"{entry['path']}: it has {size} bytes, and a chunk is said to begin at "
                f"{size - length}; scan it anew"
            )
        return length

    def _number_file(self, path: Any) -> int:
        if _check_text(path) not in self._numbers:
            self._files.append(self.get_file(path))
            self._numbers[path] = len(self._files) - 1
        return self._numbers[path]

    def settled(self) -> _Entries:
        """Return the entries with their rows; refuse two entries of one chunk."""
        rows = np.array(sorted(self._rows), np.int64).reshape(-1, 1 + len(COLUMNS))
        numbers, columns = rows[:, 0], dict(zip(COLUMNS, rows[:, 1:].T, strict=True))
        if (numbers[1:] == numbers[:-1]).any():
            raise FormatError("two entries are of one chunk; the set is damaged")
        manifest = ChunkManifest.build(
            numbers.shape, files=self._files, inline=self._inline, **columns
        )
        self.rows = PlacedReferences(numbers, manifest)
        return self


def _check_natural(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"{value!r} is not a number of bytes, or of a pipeline")
    return value


def _check_text(value: Any) -> str:
    """Return a path; raise an error if it is none."""
    if not isinstance(value, str) or not value:
        raise ValueError(f"{value!r} is not a path")
    return value


def _parse_checksum(text: Any) -> int:
    """Return a checksum as a number, 0 for algorithms that are not verified."""
    if text is None:
        return 0
    algorithm, _, digits = text.partition(":")
    if algorithm != "crc32":
        return 0
    if len(digits) != 8 or not set(digits) <= HEXADECIMAL:
        raise ValueError(f"{text!r} is not a checksum")
    return PRESENT + int(digits, 16)
