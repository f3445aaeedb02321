"""Writes a group as a new snapshot: only files that the set does not have yet."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from virtualds.arrays.group import ManifestGroup
from virtualds.chunks.columns import compute_strides
from virtualds.chunks.manifest import ChunkManifest, gather_references
from virtualds.chunks.tables import SparseReferences, split_layers
from virtualds.formats.referenced_files import Fingerprint, collect_fingerprints
from virtualds.formats.zarr.document import (
    COPIES,
    FOLDER,
    Document,
    ValueChunk,
    add_manifest_keys,
    build_value_entries,
    list_value_chunks,
    note_value_chunks,
    parse_chunk_keys,
)
from virtualds.formats.zarr.v3_arrays import ManifestPart, NativeArray, count_chunks, is_extended
from virtualds.formats.zarr.write_plan import PlannedArray, plan_writing
from virtualds.formats.zarr_manifests.join_parts import (
    MAX_INLINE,
    MAX_JSON,
    flatten_layers,
    join_all_parts,
    join_small_parts,
)
from virtualds.formats.zarr_manifests.manifests import (
    JSON_MANIFEST,
    PARQUET_MANIFEST,
    JsonTable,
    build_json_manifest,
)
from virtualds.formats.zarr_manifests.parquet_table import (
    RECORD_SIZE,
    ParquetTable,
    SourceTable,
    TableWriter,
    describe_counts,
    encode_entries,
    write_source_rows,
)
from virtualds.formats.zarr_manifests.set_files import (
    join_parts_folder,
    to_written_path,
)
from virtualds.progress import Advance, count_array_chunks
from virtualds.source_file import StorageOptions
from virtualds.stores import find_store
from virtualds.stores.store import ChangedError
from virtualds.urls import scheme_of

MAX_COPIED_COORDINATE = 2**16
"""The maximum size in bytes of a chunk of a coordinate or scalar that commits copy to the root."""
MAX_COPIED_OTHER = 2**14
"""The maximum size in bytes of a chunk of any other array that is copied to the root."""
MAX_COPIED_TOTAL = 2**20
"""The maximum size in bytes of all chunks that are copied to a root; the smallest have priority."""


@dataclass
class SnapshotWriter:
    """Writes the files of one snapshot of a set, whose names contain the id of the snapshot.

    It follows the snapshot ``before``. ``manifest`` is the form of manifests, by default by the
    number of chunks. With ``relative_paths``, paths of sources are written relative to the set.
    With ``joins_all``, references that the set already has are rewritten, in as few tables as
    possible.
    """

    root: str
    options: StorageOptions | None
    name: str
    before: Document | None
    manifest: str | None = None
    relative_paths: bool = False
    joins_all: bool = False
    written: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._copies = ChunkCopies(self.before)
        self._writer = TableWriter(self.put, self.make_path)
        self._tables: list[tuple[str, list[Any]]] = []
        self._ranges: dict[str, Any] = {}
        self._moved: dict[SourceTable, str] = {}
        self._begun: list[str] = []

    # ------------------------------------------------------------------ the whole

    def write(self, group: ManifestGroup) -> Document:
        """Write everything except the document itself, and return the document."""
        planned = plan_writing(group, self.root, self.before)
        if self.before is None:
            # this shows later writers that the files were written for a set
            self.put(f"{FOLDER}/{self.name}/begun", b"")
            self._begun = [self.written.pop()]
        nodes = {
            path: add_manifest_keys(self._write_node(path, node))
            for path, node in planned.nodes.items()
        }
        sources = self._writer.write_sources(f"{FOLDER}/{self.name}/sources")
        if sources.ranges:
            self._ranges[sources.folder] = sources.ranges
        for _, described in self._tables:
            described[1] = sources.rows
        noted = planned.notes | {"values": self._values, "sources": self._ranges}
        noted |= {COPIES: self._copies.choose(nodes)}
        notes = {kind: part for kind, part in noted.items() if part}
        return Document(nodes, notes | {"relative_paths": self.relative_paths})

    def put(self, path: str, data: bytes) -> None:
        """Write a file with a name that no other writer uses."""
        url = f"{self.root}/{path}"
        self.written.append(url)
        find_store(url).write_file(url, data, self.options)

    def undo(self) -> None:
        """Remove the files that were written, and folders that become empty."""
        beside = []
        if scheme_of(self.root) == "file":
            # a name that nothing else has, in the folder that must stay
            above = self.root.rpartition("/")[0] if self.before is None else self.root
            beside = [f"{above}/{self.name}"]
        store = find_store(self.root)
        store.remove([*self.written, *beside], self.options)
        # last, since without it the other files would seem to belong to somebody else
        store.remove([*self._begun, *(beside if self._begun else ())], self.options)

    # ------------------------------------------------------------------ writing

    def _write_node(self, path: str, node: dict[str, Any] | PlannedArray) -> dict[str, Any]:
        if not isinstance(node, PlannedArray):
            return dict(node)
        if node.known and self.before is not None:
            self._values[path] = self.before.notes["values"][path]
            self._copies.keep(path, self._values[path])
            return node.metadata
        if node.values is not None:
            transformer = self._write_values(path, node.values)
        elif (known := self._find_json_file(path, node)) is not None:
            transformer = known
        elif self.manifest != "parquet" and (table := _find_prefix_table(node)) is not None:
            # entries that map prefixes of keys depend on the keys
            transformer = self._write_prefixes(path, table)
            keys = node.metadata | {"chunk_key_encoding": table.key.to_json()}
            return keys | {"storage_transformers": [transformer]}
        else:
            with count_array_chunks(sum(part.manifest.size for part in node.parts)) as advance:
                transformer = self._write_manifest(path, node, advance)
        transformers = [] if transformer is None else [transformer]
        return node.metadata | {"storage_transformers": transformers}

    def _write_values(self, path: str, values: NativeArray) -> dict[str, Any] | None:
        """Write chunks of values, as plain Zarr if their keys have never been used.

        A key is never overwritten: readers of an earlier snapshot may still need its chunk.
        """
        key = parse_chunk_keys(values.metadata)
        chunks = [(key(chunk_id), data) for chunk_id, data in values.chunks]
        noted = self.before.notes.get("values", {}).get(path) if self.before else None
        known = {chunk[:3]: chunk for chunk in list_value_chunks(noted)}
        is_plain = noted is None and self._put_plain(path, chunks)
        found = []
        for name, data in chunks:
            digest = hashlib.sha256(data).hexdigest()
            self._copies.add(path, digest, data)
            new = ValueChunk(name, len(data), digest, "" if is_plain else f"values.{self.name}")
            found.append(known.get(new[:3], new))
            if found[-1] is new and not is_plain:
                self.put(new.get_path(path), data)
        now = self._values[path] = note_value_chunks(found)
        return build_json_manifest(build_value_entries(path, now)) if now["folder"] else None

    def _put_plain(self, path: str, chunks: list[tuple[str, bytes]]) -> bool:
        """Write chunks at the paths that plain Zarr expects; return False if a file is there."""
        for name, data in chunks:
            url = f"{self.root}/{path}/{name}"
            store = find_store(url)
            try:
                store.write_version(url, data, self.options, None)
            except (ChangedError, FileExistsError, NotADirectoryError):
                # an array with another number of axes had a file, or a folder, of this name
                return False
            except BaseException:
                # the file may belong to another program, so the folder is removed only if empty
                self.written.append(f"{url.rpartition('/')[0]}/{self.name}")
                if scheme_of(url) != "file":
                    # it may be our own request, still under way: record it, so that later writers
                    # recognise it
                    self._begun = []
                raise
            self.written.append(url)
        return True

    def _write_manifest(self, path: str, node: PlannedArray, advance: Advance) -> dict[str, Any]:
        numbered = is_extended(node.metadata)
        layout = self._choose_form(node.parts)
        if layout == "parquet":
            return self._write_parquet(advance, path, node.parts, numbered)
        entries = encode_entries(node.parts, self.make_path, numbered)
        known = self._collect_fingerprints(node.parts)
        return (
            _to_metadata(entries, known)
            if layout == "inline"
            else self._write_files(path, entries, known)
        )

    def _collect_fingerprints(self, parts: list[ManifestPart]) -> dict[str, Fingerprint]:
        return collect_fingerprints((part.manifest for part in parts), self.make_path)

    def _write_prefixes(self, path: str, table: JsonTable) -> dict[str, Any]:
        """Write the entries of a manifest unchanged, without listing the chunks behind a prefix."""
        found = {
            key: entry
            | ({"path": self._relocate_path(table, entry["path"])} if "path" in entry else {})
            for key, entry in table.entries.items()
        }
        known = {
            self._relocate_path(table, name): print for name, print in table.fingerprints.items()
        }
        if self.manifest == "json" or len(found) > MAX_INLINE:
            return self._write_files(path, found, known)
        return _to_metadata(found, known)

    def _relocate_path(self, table: JsonTable, path: str) -> str:
        """Convert a path in another set to its written form in this set."""
        end = "/" if path.endswith("/") else ""
        return self.make_path(table.store.get_file(path).url.rstrip("/") + end).rstrip("/") + end

    def _choose_form(self, parts: list[ManifestPart]) -> str:
        if self.manifest is not None:
            return self.manifest
        layers = (layer for part in parts for _, layer in split_layers(part.manifest))
        if any(self._find_own_table(layer) or self._find_own_json(layer) for layer in layers):
            # it grows: existing tables stay, and new references are added next to them
            return "parquet"
        count = sum(part.manifest.size for part in parts)
        return "inline" if count <= MAX_INLINE else "json" if count <= MAX_JSON else "parquet"

    def _write_files(
        self, path: str, manifest: Mapping[str, Any], known: Mapping[str, Fingerprint]
    ) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, content in (("manifest", manifest), ("sources", known)):
            file = f"{name}.{self.name}.json"
            self.put(f"{path}/{file}", json.dumps(content, separators=(",", ":")).encode())
            found[name] = f"./{file}"
        return {"name": JSON_MANIFEST, "configuration": found}

    def _write_parquet(
        self, advance: Advance, path: str, parts: list[ManifestPart], numbered: bool
    ) -> dict[str, Any]:
        described = []
        if self.joins_all:
            arranged = [*flatten_layers(join_all_parts(parts), numbered)]
        else:
            arranged = join_small_parts(
                parts, self._is_new, lambda part: self._find_own_table(part.manifest), numbered
            )
        has_several = self.manifest is None and len(arranged) > 1
        for number, part in enumerate(arranged):
            table = self._find_stored(path, part.manifest)
            if table is None and has_several and self._is_small(part, numbered):
                # it becomes a table later
                alone = [ManifestPart(0, (0,) * len(part.origin), part.manifest)]
                table = {"manifest": encode_entries(alone, self.make_path, numbered=False)}
                if known := self._collect_fingerprints(alone):
                    table["sources"] = known
            elif table is None:
                table = self._write_table(path, number, part.manifest, numbered, advance)
            box = {"origin": list(part.origin), "shape": list(part.manifest.shape)}
            described.append(({"fragment": part.fragment} if numbered else {}) | box | table)
        return {"name": PARQUET_MANIFEST, "configuration": {"parts": described}}

    def _is_small(self, part: ManifestPart, numbered: bool) -> bool:
        """Return whether the references of a part may be stored in the metadata."""
        table = part.manifest.get_table(SparseReferences)
        if table is None:
            return part.manifest.size <= MAX_INLINE
        # entries do not record the pipeline of missing chunks
        return table.chunk_ids.size <= MAX_INLINE and not numbered

    def _write_table(
        self, path: str, number: int, manifest: ChunkManifest, numbered: bool, advance: Advance
    ) -> dict[str, Any]:
        folder = f"manifest.{self.name}.{number}"
        sparse = gather_references(manifest) if manifest.missing_pipeline is not None else None
        if sparse is None:
            counts = self._writer.write_table(f"{path}/{folder}", manifest, numbered, advance)
            described: dict[str, Any] = {"rows": manifest.size} | describe_counts(counts)
        else:
            self._writer.write_sparse(f"{path}/{folder}", *sparse, advance)
            described = {"chunks": sparse[0].size, "begins": sparse[0][::RECORD_SIZE].tolist()}
        # the number of files is known only when everything is written
        sources = [f"{find_path_to_set(path)}{FOLDER}/{self.name}/sources", 0]
        self._tables.append((path, sources))
        named = {"path": f"./{folder}", **described, "sources": sources}
        found = {"table": named, "first": 0, "strides": list(compute_strides(manifest.shape))}
        if numbered and manifest.missing_pipeline is not None:
            # all its chunks, including missing ones, are decoded alike
            found["pipelines"] = [manifest.missing_pipeline]
        elif numbered:
            named["pipelines"] = True
        return found

    # ------------------------------------------------------------------ what is there already

    def _find_own_table(self, manifest: ChunkManifest) -> ParquetTable | None:
        """Return the table of this set that contains all rows of a manifest, or None."""
        table = manifest.get_table(ParquetTable)
        return table if table is not None and table.store.root == self.root else None

    def _find_own_json(self, manifest: ChunkManifest) -> JsonTable | None:
        """Return the table in a JSON file of this set that contains a manifest, or None."""
        table = manifest.get_table(JsonTable)
        # entries in memory are those of moved files
        if table is None or table.store.root != self.root or not isinstance(table.manifest, str):
            return None
        return table

    def _find_json_file(self, path: str, node: PlannedArray) -> dict[str, Any] | None:
        """Return the storage transformer of an array with all chunks in a JSON file of this set."""
        is_relative = self.before is not None and self.before.is_relative
        if self.manifest not in (None, "json") or is_relative != self.relative_paths:
            return None
        numbered, files = is_extended(node.metadata), list[tuple[str, Any]]()
        for number, part in enumerate(node.parts):
            table = self._find_own_json(part.manifest)
            prefix = f"{number}." if numbered else ""
            if table is None or (table.prefix, table.grid) != (prefix, part.manifest.shape):
                return None
            if part.fragment != number or any(part.origin) or not part.manifest.is_row_range(table):
                return None
            files.append((table.manifest, table.sources))
        if not files or any(one != files[0] for one in files):
            return None
        names = dict(zip(("manifest", "sources"), files[0], strict=True))
        described = {key: name for key, name in names.items() if name}
        for key, name in described.items():
            if isinstance(name, str):
                inside = name.startswith(f"{path}/")
                described[key] = (
                    f".{name[len(path) :]}" if inside else find_path_to_set(path) + name
                )
        return {"name": JSON_MANIFEST, "configuration": described}

    def _is_new(self, part: ManifestPart) -> bool:
        """Return whether another process has just written a part for this snapshot."""
        table = self._find_own_table(part.manifest)
        return table is not None and table.folder.startswith(f"{join_parts_folder(self.name)}/")

    def _find_stored(self, path: str, manifest: ChunkManifest) -> dict[str, Any] | None:
        """Return the metadata of a part that is already in a table of the set, or None."""
        table = self._find_own_table(manifest)
        if table is None or manifest.rows is None:
            return None
        found = manifest.rows
        described: dict[str, Any] = {
            "path": find_path_to_set(path) + table.folder,
            **table.describe_rows(),
            "sources": [find_path_to_set(path) + self._locate_sources(table), table.sources.rows],
        }
        if table.has_pipelines:
            described["pipelines"] = True
        part = {"table": described, "first": found.first, "strides": list(found.strides)}
        return part | ({"pipelines": list(found.pipeline_map)} if found.pipeline_map else {})

    def _locate_sources(self, table: ParquetTable) -> str:
        """Return the folder of a table's table of files; write the files if they have moved."""
        sources = table.sources._replace(moved=None)
        if table.sources.moved is None:
            if sources.ranges:
                self._ranges[sources.folder] = sources.ranges
            return sources.folder
        if sources not in self._moved:
            folder = f"{FOLDER}/{self.name}/sources.{len(self._moved)}"
            rows = ((self.make_path(file.url), file.fingerprint) for file in table.sources.moved)
            write_source_rows(folder, rows, self.put)
            self._moved[sources] = folder
        return self._moved[sources]

    def make_path(self, url: str) -> str:
        """Return the written form of a url in the set."""
        return to_written_path(self.root, url, relative=self.relative_paths)


def _find_prefix_table(node: PlannedArray) -> JsonTable | None:
    """Return the table that has all chunks of an array, if it maps prefixes of keys, or None."""
    if len(node.parts) != 1 or is_extended(node.metadata):
        return None
    [part] = node.parts
    table = part.manifest.get_table(JsonTable)
    if table is None:
        return None
    # exactly the same chunks under the same keys
    same = count_chunks(node.metadata) == table.grid
    same = same and part.manifest.shape == table.grid and part.manifest.is_row_range(table)
    return table if same and table.has_prefixes and not table.prefix else None


def _to_metadata(manifest: Mapping[str, Any], known: Mapping[str, Fingerprint]) -> dict[str, Any]:
    sources = {"sources": known} if known else {}
    return {"name": JSON_MANIFEST, "configuration": {"manifest": manifest, **sources}}


def find_path_to_set(path: str) -> str:
    """Return the relative path from the folder of an array to the folder of the set."""
    return "../" * (path.count("/") + 1)


# ---------------------------------------------------------------------- copies
# Opening a set loads its small coordinates. In a remote set each of them would cost a request, so
# the root of a set has copies of some chunks of native arrays.


class ChunkCopies:
    """Copies of the small chunks of native arrays of one snapshot.

    Copies in the previous snapshot are kept.
    """

    def __init__(self, before: Document | None) -> None:
        self._known: Mapping[str, str] = before.notes.get(COPIES, {}) if before else {}
        self._found: dict[str, dict[str, str]] = {}

    def add(self, path: str, digest: str, data: bytes) -> None:
        """Add a chunk of an array."""
        if len(data) <= MAX_COPIED_COORDINATE:
            self._found.setdefault(path, {})[digest] = base64.b64encode(data).decode()

    def keep(self, path: str, noted: Mapping[str, Any]) -> None:
        """Keep the copies of an array with the same chunks as in the previous snapshot."""
        digests = (chunk.digest for chunk in list_value_chunks(noted))
        self._found[path] = {d: self._known[d] for d in digests if d in self._known}

    def choose(self, nodes: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
        """Return the copies for the root, by hash; equal chunks are stored only once."""
        wanted = {
            digest: text
            for path, copies in self._found.items()
            for digest, text in copies.items()
            if is_loaded_first(path, nodes[path]) or _count_bytes(text) <= MAX_COPIED_OTHER
        }
        chosen, left = dict[str, str](), MAX_COPIED_TOTAL
        for digest, text in sorted(wanted.items(), key=lambda item: len(item[1])):
            left -= _count_bytes(text)
            if left < 0:
                break
            chosen[digest] = text
        return chosen


def _count_bytes(text: str) -> int:
    """Return the number of bytes that a base64 text represents.

    >>> _count_bytes("AAAA"), _count_bytes("AAA="), _count_bytes("AA==")
    (3, 2, 1)
    """
    return len(text) // 4 * 3 - text[-2:].count("=")


def is_loaded_first(path: str, node: Mapping[str, Any]) -> bool:
    """Return whether an array is a scalar, or a coordinate named like its dimension."""
    return node.get("dimension_names", []) in ([], [path.rpartition("/")[2]])
