"""Read the chunk manifests of a set as lazy manifests, and read JSON tables.

``docs/reference/formats/zarr-v3.md`` specifies the forms, after the "Manifest storage transformer"
proposal (zarr-specs issue 287). The keys of a JSON object are chunks, or prefixes of chunk keys.
Opening a set reads only manifests that are in the metadata. Other files are read and checked when
one of their chunks is needed.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from operator import mul
from typing import Any

import numpy as np

from virtualds.chunks.columns import COLUMNS, INLINE, MISSING, Ints, ReferenceTable, compute_strides
from virtualds.chunks.manifest import ChunkManifest
from virtualds.chunks.tables import SparseReferences, TiledReferences, have_overlap
from virtualds.errors import (
    FormatError,
    ReadError,
    UnsupportedError,
    VirtualdsError,
    make_damage_error,
)
from virtualds.formats import MALFORMED_ERRORS
from virtualds.formats.referenced_files import NO_FINGERPRINT
from virtualds.formats.zarr import DOTTED_KEYS, ChunkKeys
from virtualds.formats.zarr.v3_arrays import ManifestPart, check_keys
from virtualds.formats.zarr_manifests.parquet_table import ParquetTable, SourceTable, read_counts
from virtualds.formats.zarr_manifests.set_files import SetFiles, to_set_path
from virtualds.reading.threads import fetch_many
from virtualds.source_file import CHECKSUM_FLAG, SourceFile
from virtualds.stores.access_rules import resolve_url

HEXADECIMAL = frozenset("0123456789abcdefABCDEF")
LAZY_RATIO = 16
"""The minimum ratio of the chunks of a grid to the entries of a manifest in the metadata at which
the manifest stays lazy."""


@dataclass(frozen=True)
class JsonTable(ReferenceTable):
    """References in a JSON object, by chunk keys.

    ``manifest`` is the path of a file in the set, or the object itself; ``sources`` are
    fingerprints of files by their paths, or the path of a file with them. ``prefix`` is the start
    of the keys. ``key`` returns the names of chunks below the folder of the array, for entries that
    map a prefix of these names. ``pipeline_count`` is the number of pipelines to which entries may
    refer, 0 in plain Zarr.
    """

    store: SetFiles
    manifest: Any
    grid: tuple[int, ...]
    prefix: str
    key: ChunkKeys
    sources: Any = None
    pipeline_count: int = 0

    @property
    def has_pipelines(self) -> bool:
        return bool(self.pipeline_count)

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

    def _read_object(self, value: Any, subject: str) -> Mapping[str, Any]:
        """Return a JSON object, which may be in a file."""
        document = self.store.read_document(value) if isinstance(value, str) else value
        if not isinstance(document, Mapping):
            raise FormatError(f"{self._url}: {subject} an object, found {document!r:.40}")
        return document

    @property
    def has_prefixes(self) -> bool:
        """Whether some entries are for all keys that begin with their key."""
        return bool(self._read_entries().prefixes)

    def to_manifest(self) -> ChunkManifest:
        """Return a manifest, which is lazy unless all of it is in the metadata."""
        if not isinstance(self.manifest, str):
            parsed, count = self._read_entries(), prod(self.grid)
            is_dense = count <= LAZY_RATIO * (parsed.rows.chunk_ids.size + 1)
            if is_dense and not parsed.unmeasured and not parsed.prefixes:
                return parsed.rows.load(np.arange(count).reshape(self.grid))
        return ChunkManifest.from_table(self, self.grid)

    def load(self, ids: Ints) -> ChunkManifest:
        parsed = self._read_entries()
        loaded = parsed.rows.load(ids).prune()
        if not (parsed.unmeasured or parsed.prefixes):
            return loaded
        flat, is_listed = ids.ravel(), np.isin(ids.ravel(), parsed.rows.chunk_ids)
        return self._measure_chunks(loaded.reshape(flat.shape), flat, is_listed, parsed).reshape(
            ids.shape
        )

    def find_existing_rows(self) -> Ints | None:
        parsed = self._read_entries()
        unmeasured = np.fromiter(parsed.unmeasured, np.int64, len(parsed.unmeasured))
        return None if parsed.prefixes else np.union1d(parsed.rows.chunk_ids, unmeasured)

    def list_sources(self) -> tuple[SourceFile, ...]:
        # files below prefixes are unknown
        parsed = self._read_entries()
        paths = dict.fromkeys(entry["path"] for entry in parsed.unmeasured.values())
        return tuple(dict.fromkeys([*parsed.rows.files, *map(parsed.get_file, paths)]))

    def with_files(self, change: Callable[[SourceFile], SourceFile]) -> JsonTable | None:
        # files of other tables are changed chunk by chunk
        if not self.has_prefixes:
            return None
        fingerprints, new_paths, sources = self.fingerprints, dict[str, str](), dict[str, Any]()
        for path in dict.fromkeys(e["path"] for e in self.entries.values() if "path" in e):
            file_path = path.rstrip("/")
            file = self.store.get_file(file_path, fingerprints.get(path, NO_FINGERPRINT))
            changed = change(file)
            new_paths[path] = (
                path if changed.url == file.url else changed.url + path[len(file_path) :]
            )
            if any(changed.fingerprint):
                sources[new_paths[path]] = changed.fingerprint
        entries = {
            key: {**entry, "path": new_paths[entry["path"]]} if "path" in entry else entry
            for key, entry in self.entries.items()
        }
        return replace(self, manifest=entries, sources=sources)

    @property
    def _url(self) -> str:
        """The url of the manifest."""
        name = self.manifest if isinstance(self.manifest, str) else "zarr.json"
        return f"{self.store.root}/{name}"

    def _read_entries(self) -> _FragmentEntries:
        """Return the parsed entries, from the cache if they are in a file."""
        if isinstance(self.manifest, str):
            entries: _FragmentEntries = self.store.get_cached(
                (self.manifest, self.prefix), self._parse_entries
            )
            return entries
        return self._parse_entries()

    def _parse_entries(self) -> _FragmentEntries:
        """Return the parsed entries of the fragment."""
        rows = _FragmentEntries(self.store, self.fingerprints, self.pipeline_count)
        for name, entry in self.entries.items():
            self._parse_entry(name, entry, rows)
        try:
            return rows.build()
        except VirtualdsError as error:
            error.add_note(f"manifest {self._url}")
            raise

    def _parse_entry(self, name: str, entry: Any, rows: _FragmentEntries) -> None:
        """Add an entry to ``rows`` if it belongs to the fragment."""
        try:
            if name.endswith("/"):
                if self.prefix:
                    raise FormatError("an array of fragments has no keys that begin with it")
                rows.prefixes.append((name.removeprefix("./"), _check_path(entry["path"])))
            elif name.startswith(self.prefix):
                key = name[len(self.prefix) :]
                chunk_id = DOTTED_KEYS.parse_key(key, len(self.grid))
                if chunk_id is None:
                    raise FormatError(f"{key!r} is not the key of a chunk")
                if any(i >= n for i, n in zip(chunk_id, self.grid, strict=True)):
                    raise FormatError(f"chunk {key!r} lies outside the grid {self.grid}")
                rows.add(sum(map(mul, chunk_id, compute_strides(self.grid))), entry)
        except VirtualdsError as error:
            error.add_note(f"entry {name!r} of {self._url}")
            raise
        except MALFORMED_ERRORS as error:
            raise make_damage_error(
                f"{self._url}: entry {name!r} is {entry!r:.80}, which is invalid ({error})", "set"
            ) from error

    # ------------------------------------------------------------------ unmeasured chunks

    def _measure_chunks(
        self, listed: ChunkManifest, ids: Ints, is_listed: Any, parsed: _FragmentEntries
    ) -> ChunkManifest:
        """Return chunks with those up to the end of a file, whose size the store returns."""
        rows = _FragmentEntries(self.store, parsed.sources, self.pipeline_count)
        entries: list[tuple[int, Mapping[str, Any]]] = []
        for row in np.flatnonzero(~is_listed).tolist():
            number = int(ids[row])
            if entry := parsed.unmeasured.get(number) or self._find_prefixed(
                number, parsed.prefixes
            ):
                entries.append((row, entry))

        def measure(item: tuple[int, Mapping[str, Any]]) -> int | None:
            row, entry = item
            try:
                return rows.get_length(entry)
            except VirtualdsError as error:
                error.add_note(f"chunk {int(ids[row])} of {self._url}")
                raise

        lengths = fetch_many(
            entries, lambda item: resolve_url(item[1]["path"], f"{self.store.root}/"), measure
        )
        for (row, entry), length in zip(entries, lengths, strict=True):
            if length is not None:
                rows.add(row, {**entry, "length": length})
        added = rows.build()
        row_ids = np.arange(ids.size)
        row_ids[added.rows.chunk_ids] = ids.size + np.arange(added.rows.chunk_ids.size)
        return ChunkManifest.concatenate([listed, added.rows.rows], 0).at(row_ids)

    def _find_prefixed(self, number: int, prefixes: list[tuple[str, str]]) -> dict[str, Any] | None:
        """Return the entry of the longest prefix of the key of a chunk, or None."""
        [key] = self.key.list_keys(np.array([number]), self.grid)
        fitting = [pair for pair in prefixes if key.startswith(pair[0])]
        if not fitting:
            return None
        prefix, path = max(fitting, key=lambda pair: len(pair[0]))
        return {"path": path + key[len(prefix) :], "may_be_absent": True}


# ---------------------------------------------------------------------- entries


class _FragmentEntries:
    """The entries of one fragment.

    ``rows`` are the chunks of entries with a length, after `build`. ``unmeasured`` are entries
    without a length, by flat index; ``prefixes`` are pairs of the start of a key and the path that
    replaces it; ``sources`` are fingerprints by path.
    """

    rows: SparseReferences

    def __init__(self, store: SetFiles, sources: Mapping[str, Any], pipelines: int) -> None:
        self._store = store
        self._pipelines = max(pipelines, 1)
        self.sources = sources
        self.unmeasured: dict[int, Mapping[str, Any]] = {}
        self.prefixes: list[tuple[str, str]] = []
        self._numbers: dict[str, int] = {}
        self._files: list[SourceFile] = []
        self._inline: list[bytes] = []
        self._rows: list[tuple[int, ...]] = []

    def add(self, number: int, entry: Any) -> None:
        """Add the entry of a chunk."""
        if not isinstance(entry, Mapping):
            raise TypeError("it is not an object")
        pipeline, checksum = _check_count(entry.get("pipeline", 0)), 0
        if pipeline >= self._pipelines:
            raise ValueError(f"there are {self._pipelines} pipelines")
        if "data" in entry or "path" in entry:
            checksum = _parse_checksum(entry.get("checksum"))
        offset = _check_count(entry.get("offset", 0))
        if "data" in entry:
            self._inline.append(base64.b64decode(entry["data"], validate=True))
            location = (INLINE, len(self._inline) - 1, len(self._inline[-1]))
        elif "path" not in entry:
            location = (MISSING, 0, 0)
        elif entry.get("length") is None:
            _check_path(entry["path"])
            self.unmeasured[number] = entry
            return
        else:
            location = (self._number_file(entry["path"]), offset, _check_count(entry["length"]))
        self._rows.append((number, *location, pipeline, checksum))

    def get_file(self, path: str) -> SourceFile:
        """Return the file at a path, with its fingerprint if the set has recorded it."""
        return self._store.get_file(path, self.sources.get(path, NO_FINGERPRINT))

    def get_length(self, entry: Mapping[str, Any]) -> int | None:
        """Return the length of a file after an offset, or None for a file that may be missing."""
        try:
            size = self._store.get_size(self.get_file(entry["path"]))
        except ReadError as error:
            if "may_be_absent" in entry and isinstance(error.__cause__, FileNotFoundError):
                return None
            raise
        length: int = size - entry.get("offset", 0)
        if length <= 0:
            raise FormatError(
                f"{entry['path']}: it has {size} bytes, but a chunk of it begins at "
                f"{size - length}; scan it again"
            )
        return length

    def _number_file(self, path: Any) -> int:
        """Return the index of the file at a path."""
        if _check_path(path) not in self._numbers:
            self._files.append(self.get_file(path))
            self._numbers[path] = len(self._files) - 1
        return self._numbers[path]

    def build(self) -> _FragmentEntries:
        """Set ``rows`` and return the entries, or raise an error for two entries of one chunk."""
        rows = np.array(sorted(self._rows), np.int64).reshape(-1, 1 + len(COLUMNS))
        numbers, columns = rows[:, 0], dict(zip(COLUMNS, rows[:, 1:].T, strict=True))
        if (numbers[1:] == numbers[:-1]).any():
            raise make_damage_error("two entries are for the same chunk", "set")
        manifest = ChunkManifest.build(
            numbers.shape, files=self._files, inline=self._inline, **columns
        )
        self.rows = SparseReferences(numbers, manifest)
        return self


def _check_count(value: Any) -> int:
    """Return a non-negative integer, or raise an error for other values."""
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"{value!r} is not a number of bytes, or of a pipeline")
    return value


def _check_path(value: Any) -> str:
    """Return a path, or raise an error for other values."""
    if not isinstance(value, str) or not value:
        raise ValueError(f"{value!r} is not a path")
    return value


def _parse_checksum(text: Any) -> int:
    """Return a checksum as a number, or 0 for algorithms that are not verified."""
    if text is None:
        return 0
    algorithm, _, digits = text.partition(":")
    if algorithm != "crc32":
        return 0
    if len(digits) != 8 or not set(digits) <= HEXADECIMAL:
        raise ValueError(f"{text!r} is not a checksum")
    return CHECKSUM_FLAG + int(digits, 16)


# ---------------------------------------------------------------------- manifests

JSON_MANIFEST, PARQUET_MANIFEST = "chunk-manifest-json", "chunk-manifest-parquet"
"""The names of the storage transformers."""
PART_KEYS = ("fragment", "origin", "shape", "first", "strides", "pipelines", "table")
ENTRIES_KEYS = ("fragment", "origin", "shape", "manifest", "sources")
"""Keys of a part whose references are in the metadata."""
TABLE_KEYS = ("path", "rows", "chunks", "begins", "sources", "pipelines", "counts")
"""Keys of a part of a manifest, and of its table; readers must support all of them."""


def read_parts(
    files: SetFiles,
    folder: str,
    transformer: Mapping[str, Any],
    grids: list[tuple[int, ...]],
    pipeline_count: int,
    key: ChunkKeys,
) -> list[ManifestPart]:
    """Return the references of the array in a folder from its storage transformer.

    ``grids`` are the grid shapes of fragments. ``pipeline_count`` is the number of pipelines of an
    array of fragments, whose keys begin with the index of the fragment; it is 0 in plain Zarr.
    ``key`` returns chunk names, for prefixes.
    """
    name, configuration = transformer.get("name"), transformer.get("configuration", {})
    if name == PARQUET_MANIFEST:
        check_keys(configuration, {"parts"})
        parts = [
            _read_part(files, folder, part, grids, pipeline_count, key)
            for part in configuration["parts"]
        ]
        return _merge_overlapping_parts(parts, grids, max(pipeline_count, 1))
    if name != JSON_MANIFEST:
        raise UnsupportedError(
            f"storage transformer {name!r}: only {JSON_MANIFEST!r} and {PARQUET_MANIFEST!r} are "
            f"supported; a newer virtualds may support it"
        )
    check_keys(configuration, {"manifest", "sources"})
    manifest = configuration["manifest"]
    if isinstance(manifest, str):
        manifest = to_set_path(folder, manifest)
    sources = configuration.get("sources")
    if isinstance(sources, str):
        sources = to_set_path(folder, sources)
    tables = (
        JsonTable(
            files, manifest, grid, f"{n}." if pipeline_count else "", key, sources, pipeline_count
        )
        for n, grid in enumerate(grids)
    )
    return [ManifestPart(n, (0,) * len(t.grid), t.to_manifest()) for n, t in enumerate(tables)]


def _read_part(
    files: SetFiles,
    folder: str,
    part: Mapping[str, Any],
    grids: list[tuple[int, ...]],
    pipeline_count: int,
    key: ChunkKeys,
) -> ManifestPart:
    """Return a part of the references of an array."""
    is_table = "table" in part
    check_keys(part, PART_KEYS if is_table else ENTRIES_KEYS)
    fragment = _check_counts([part.get("fragment", 0)])[0]
    shape, origin = _check_counts(part["shape"]), _check_counts(part["origin"])
    if fragment >= len(grids):
        raise make_damage_error(f"{folder}: chunks of fragment {fragment} of {len(grids)}", "set")
    grid = grids[fragment]
    if len(origin) != len(grid) or any(
        o + n > g for o, n, g in zip(origin, shape, grid, strict=True)
    ):
        raise FormatError(f"{folder}: chunks {shape} at {origin} lie outside the grid {grid}")
    if not is_table:
        listed = JsonTable(
            files, part["manifest"], shape, "", key, part.get("sources"), pipeline_count
        )
        return ManifestPart(fragment, origin, ChunkManifest.from_table(listed, shape))
    table_json = part["table"]
    check_keys(table_json, TABLE_KEYS)
    renumbered = part.get("pipelines")
    numbers = None if renumbered is None else _check_counts(renumbered)
    if (numbers and max(numbers) >= pipeline_count) or (
        table_json.get("pipelines") and not pipeline_count
    ):
        raise FormatError(f"{folder}: pipelines {renumbered!r:.80} of {pipeline_count}")
    has_chunk_numbers = "begins" in table_json
    table = ParquetTable(
        files,
        to_set_path(folder, table_json["path"]),
        _check_counts([table_json["chunks" if has_chunk_numbers else "rows"]])[0],
        read_source_table(folder, table_json["sources"], files.ranges),
        bool(table_json.get("pipelines", False)),
        max(pipeline_count, 1) if numbers is None else len(numbers),
        read_counts(table_json.get("counts")),
        _check_counts(table_json["begins"]) if has_chunk_numbers else None,
    )
    strides, first = _check_integers(part["strides"]), _check_counts([part["first"]])[0]
    ends = [s * max(n - 1, 0) for s, n in zip(strides, shape, strict=True)]
    low, high = (first + sum(f(e, 0) for e in ends) for f in (min, max))
    if not has_chunk_numbers and 0 not in shape and not 0 <= low <= high < table.rows:
        raise FormatError(f"{folder}: its chunks refer to rows {low} to {high} of {table.rows}")
    return ManifestPart(
        fragment, origin, ChunkManifest.from_table(table, shape, strides, first, numbers)
    )


def _merge_overlapping_parts(
    parts: list[ManifestPart], grids: list[tuple[int, ...]], pipelines: int
) -> list[ManifestPart]:
    """Return parts that do not overlap: overlapping parts of a fragment are merged.

    Of overlapping parts, the last one that has a chunk takes precedence.
    """

    def is_layer(part: ManifestPart) -> bool:
        # layers list their chunks, or overlap other parts
        table = part.manifest.table
        if isinstance(table, ParquetTable):
            return table.begins is not None
        others = (p for p in parts if p is not part and p.fragment == part.fragment)
        return any(have_overlap(part[1:], other[1:]) for other in others)

    layered_fragments = {part.fragment for part in parts if is_layer(part)}
    merged = [part for part in parts if part.fragment not in layered_fragments]
    for fragment in sorted(layered_fragments):
        parts_of_fragment = [part for part in parts if part.fragment == fragment]
        merged.append(_merge_fragment(parts_of_fragment, grids[fragment], pipelines))
    return merged


def _merge_fragment(parts: list[ManifestPart], grid: tuple[int, ...], count: int) -> ManifestPart:
    """Return all parts of a fragment as one part."""
    used = {n for part in parts for n in part.manifest.used_pipelines(count).tolist()}
    if len(used) != 1:
        raise make_damage_error(
            f"overlapping chunks of fragment {parts[0].fragment} are decoded in {len(used)} "
            f"different ways",
            "set",
        )
    layers = tuple((p.origin, p.manifest.with_pipelines([0] * count)) for p in parts)
    merged = ChunkManifest.from_table(TiledReferences(grid, layers), grid)
    return ManifestPart(parts[0].fragment, (0,) * len(grid), merged.with_pipelines([used.pop()]))


def iterate_manifest_parts(nodes: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the path of an array and each part of its manifest, as in the metadata."""
    for folder, node in nodes.items():
        for transformer in node.get("storage_transformers") or ():
            configuration = transformer["configuration"]
            for part in (
                [configuration] if transformer["name"] == JSON_MANIFEST else configuration["parts"]
            ):
                yield folder, part


def read_source_table(
    folder: str, entry: Any, ranges: Mapping[str, Any] | None = None
) -> SourceTable:
    """Return the table of files to which a part in the metadata of an array refers."""
    path, count = to_set_path(folder, entry[0]), entry[1]
    path_ranges = tuple((str(first), str(last)) for first, last in (ranges or {}).get(path, ()))
    return SourceTable(path, _check_counts([count])[0], path_ranges)


def _check_integers(values: Any) -> tuple[int, ...]:
    """Return integers, or raise an error for other values."""
    if not isinstance(values, list | tuple) or any(type(n) is not int for n in values):
        raise make_damage_error(f"{values!r:.80} is not a list of integers", "set")
    return tuple(values)


def _check_counts(values: Any) -> tuple[int, ...]:
    """Return non-negative integers, or raise an error for other values."""
    if any(n < 0 for n in _check_integers(values)):
        raise make_damage_error(f"{values!r:.80} has a negative number", "set")
    return tuple(values)


def build_json_manifest(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return the storage transformer of a JSON manifest in the metadata."""
    return {"name": JSON_MANIFEST, "configuration": {"manifest": manifest}}
