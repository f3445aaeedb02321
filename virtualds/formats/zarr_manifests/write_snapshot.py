"""Write a group as a new snapshot: only files that the set does not have yet."""

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
from virtualds.formats.zarr import (
    COPIES,
    FOLDER,
    Document,
    ValueChunk,
    add_manifest_keys,
    build_value_entries,
    build_value_note,
    list_value_chunks,
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
    get_parts_folder,
    to_written_path,
)
from virtualds.progress import Advance, count_array_chunks
from virtualds.source_file import StorageOptions, scheme_of
from virtualds.stores import find_store
from virtualds.stores.store import ChangedError

MAX_MERGED_ROWS = 2**26
"""The number of written references after which a snapshot merges no tables, so that other writers
do not wait for minutes. Later snapshots merge them."""
MAX_COPIED_COORDINATE = 2**16
"""The maximum size in bytes of a chunk of a coordinate or scalar that is copied to the root."""
MAX_COPIED_OTHER = 2**14
"""The maximum size in bytes of a chunk of any other array that is copied to the root."""
MAX_COPIED_TOTAL = 2**20
"""The maximum size in bytes of all chunks that are copied to a root; the smallest have priority."""


@dataclass
class SnapshotWriter:
    """Writes the files of one snapshot of a set, whose names contain the id of the snapshot.

    The snapshot follows ``before``. ``manifest`` is the form of manifests, by default by the number
    of chunks. With ``relative_paths``, paths of sources are written relative to the set. With
    ``joins_all``, references that the set already has are rewritten in as few tables as possible.
    Without ``merges``, none of them are rewritten.
    """

    root: str
    options: StorageOptions | None
    name: str
    before: Document | None
    manifest: str | None = None
    relative_paths: bool = False
    joins_all: bool = False
    merges: bool = True
    written: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._copies = ChunkCopies(self.before)
        self._writer = TableWriter(self.put, self.make_path)
        self._tables: list[tuple[str, list[Any]]] = []
        self._ranges: dict[str, Any] = {}
        self._moved: dict[SourceTable, str] = {}
        self._claim: list[str] = []
        self._rows_written = 0

    # ------------------------------------------------------------------ snapshots

    def write(self, group: ManifestGroup) -> Document:
        """Write everything except the document itself, and return the document."""
        planned = plan_writing(group, self.root, self.before)
        if self.before is None:
            # a file that shows later writers that the other files belong to a set
            self.put(f"{FOLDER}/{self.name}/begun", b"")
            self._claim = [self.written.pop()]
        nodes = {
            path: add_manifest_keys(self._write_node(path, node))
            for path, node in planned.nodes.items()
        }
        sources = self._writer.write_sources(f"{FOLDER}/{self.name}/sources")
        # The writer of tables refers to this writer. In such a reference cycle, all files would
        # stay in memory until Python collects garbage.
        del self._writer
        if sources.ranges:
            self._ranges[sources.folder] = sources.ranges
        for _, sources_entry in self._tables:
            sources_entry[1] = sources.rows
        all_notes = planned.notes | {"values": self._values, "sources": self._ranges}
        all_notes |= {COPIES: self._copies.choose(nodes)}
        notes = {kind: part for kind, part in all_notes.items() if part}
        return Document(nodes, notes | {"relative_paths": self.relative_paths})

    def put(self, path: str, data: bytes) -> None:
        """Write a file at a path that no other writer uses."""
        url = f"{self.root}/{path}"
        self.written.append(url)
        find_store(url).write_file(url, data, self.options)

    def undo(self) -> None:
        """Remove the files that were written, and folders that become empty."""
        unused_paths = []
        if scheme_of(self.root) == "file":
            # removing an unused path also removes empty folders up to the folder that must stay
            kept_folder = self.root.rpartition("/")[0] if self.before is None else self.root
            unused_paths = [f"{kept_folder}/{self.name}"]
        store = find_store(self.root)
        store.remove([*self.written, *unused_paths], self.options)
        # remove the claim last, since without it the other files seem to belong to somebody else
        store.remove([*self._claim, *(unused_paths if self._claim else ())], self.options)

    # ------------------------------------------------------------------ writing

    def _write_node(self, path: str, node: dict[str, Any] | PlannedArray) -> dict[str, Any]:
        """Write the chunks or references of a node, and return its metadata."""
        if not isinstance(node, PlannedArray):
            return dict(node)
        if node.has_known_values and self.before is not None:
            self._values[path] = self.before.notes["values"][path]
            self._copies.keep(path, self._values[path])
            return node.metadata
        if node.values is not None:
            transformer = self._write_values(path, node.values)
        elif (existing := self._find_json_file(path, node)) is not None:
            transformer = existing
        elif self.manifest != "parquet" and (table := _find_prefix_table(node)) is not None:
            # entries that map prefixes of keys need the same chunk key encoding
            transformer = self._write_prefixes(path, table)
            keys = node.metadata | {"chunk_key_encoding": table.key.to_json()}
            return keys | {"storage_transformers": [transformer]}
        else:
            with count_array_chunks(sum(part.manifest.size for part in node.parts)) as advance:
                transformer = self._write_manifest(path, node, advance)
        transformers = [] if transformer is None else [transformer]
        return node.metadata | {"storage_transformers": transformers}

    def _write_values(self, path: str, values: NativeArray) -> dict[str, Any] | None:
        """Write chunks of values, as plain Zarr if their keys are unused; return a transformer.

        A key is never overwritten, since readers of an earlier snapshot may still need its chunk.
        """
        key = parse_chunk_keys(values.metadata)
        chunks = [(key(chunk_id), data) for chunk_id, data in values.chunks]
        entry = self.before.notes.get("values", {}).get(path) if self.before else None
        existing = {chunk[:3]: chunk for chunk in list_value_chunks(entry)}
        is_plain = entry is None and self._put_plain(path, chunks)
        written = []
        for name, data in chunks:
            digest = hashlib.sha256(data).hexdigest()
            self._copies.add(path, digest, data)
            new = ValueChunk(name, len(data), digest, "" if is_plain else f"values.{self.name}")
            written.append(existing.get(new[:3], new))
            if written[-1] is new and not is_plain:
                self.put(new.get_path(path), data)
        new_entry = self._values[path] = build_value_note(written)
        return (
            build_json_manifest(build_value_entries(path, new_entry))
            if new_entry["folder"]
            else None
        )

    def _put_plain(self, path: str, chunks: list[tuple[str, bytes]]) -> bool:
        """Write chunks at the paths of plain Zarr, or return False if one of them exists."""
        for name, data in chunks:
            url = f"{self.root}/{path}/{name}"
            store = find_store(url)
            try:
                store.write_version(url, data, self.options, None)
            except (ChangedError, FileExistsError, NotADirectoryError):
                # an earlier array with another number of axes may have a file or folder of this
                # name
                return False
            except BaseException:
                # the file may belong to another program, so only remove the folder if it is empty
                self.written.append(f"{url.rpartition('/')[0]}/{self.name}")
                if scheme_of(url) != "file":
                    # our request may still succeed, so keep the claim for later writers
                    self._claim = []
                raise
            self.written.append(url)
        return True

    def _write_manifest(self, path: str, node: PlannedArray, advance: Advance) -> dict[str, Any]:
        """Write the references of an array, and return its storage transformer."""
        has_fragments = is_extended(node.metadata)
        form = self._choose_form(node.parts)
        if form == "parquet":
            return self._write_parquet(advance, path, node.parts, has_fragments)
        entries = encode_entries(node.parts, self.make_path, has_fragments)
        fingerprints = self._collect_fingerprints(node.parts)
        if form == "inline":
            return _to_metadata(entries, fingerprints)
        return self._write_files(path, entries, fingerprints)

    def _collect_fingerprints(self, parts: list[ManifestPart]) -> dict[str, Fingerprint]:
        """Return the fingerprints of the files of parts, by the path to write."""
        return collect_fingerprints((part.manifest for part in parts), self.make_path)

    def _write_prefixes(self, path: str, table: JsonTable) -> dict[str, Any]:
        """Write the entries of a manifest with prefixes, and return its storage transformer."""
        entries = {
            key: entry
            | ({"path": self._relocate_path(table, entry["path"])} if "path" in entry else {})
            for key, entry in table.entries.items()
        }
        fingerprints = {
            self._relocate_path(table, name): fingerprint
            for name, fingerprint in table.fingerprints.items()
        }
        if self.manifest == "json" or len(entries) > MAX_INLINE:
            return self._write_files(path, entries, fingerprints)
        return _to_metadata(entries, fingerprints)

    def _relocate_path(self, table: JsonTable, path: str) -> str:
        """Return the path to write for a path in another set."""
        end = "/" if path.endswith("/") else ""
        return self.make_path(table.store.get_file(path).url.rstrip("/") + end).rstrip("/") + end

    def _choose_form(self, parts: list[ManifestPart]) -> str:
        """Return the form of the manifest of an array."""
        if self.manifest is not None:
            return self.manifest
        layers = (layer for part in parts for _, layer in split_layers(part.manifest))
        if any(self._find_own_table(layer) or self._find_own_json(layer) for layer in layers):
            # only this form can keep existing tables and add new references
            return "parquet"
        count = sum(part.manifest.size for part in parts)
        return "inline" if count <= MAX_INLINE else "json" if count <= MAX_JSON else "parquet"

    def _write_files(
        self, path: str, manifest: Mapping[str, Any], fingerprints: Mapping[str, Fingerprint]
    ) -> dict[str, Any]:
        """Write a manifest to JSON files, and return its storage transformer."""
        configuration: dict[str, Any] = {}
        for name, content in (("manifest", manifest), ("sources", fingerprints)):
            file = f"{name}.{self.name}.json"
            self.put(f"{path}/{file}", json.dumps(content, separators=(",", ":")).encode())
            configuration[name] = f"./{file}"
        return {"name": JSON_MANIFEST, "configuration": configuration}

    def _write_parquet(
        self, advance: Advance, path: str, parts: list[ManifestPart], has_fragments: bool
    ) -> dict[str, Any]:
        """Write new references to tables, and return the storage transformer of an array."""
        entries = []
        if self.joins_all:
            joined = [*flatten_layers(join_all_parts(parts), has_fragments)]
        else:
            joined = join_small_parts(
                parts,
                self._is_new,
                lambda part: self._find_own_table(part.manifest),
                has_fragments,
                self.merges and self._rows_written < MAX_MERGED_ROWS,
            )
        has_several = self.manifest is None and len(joined) > 1
        for number, part in enumerate(joined):
            table = self._describe_existing(path, part.manifest)
            if table is None and has_several and self._is_small(part, has_fragments):
                # small parts stay in the metadata until they are joined to a table
                single_part = [ManifestPart(0, (0,) * len(part.origin), part.manifest)]
                table = {
                    "manifest": encode_entries(single_part, self.make_path, has_fragments=False)
                }
                if fingerprints := self._collect_fingerprints(single_part):
                    table["sources"] = fingerprints
            elif table is None:
                table = self._write_table(path, number, part.manifest, has_fragments, advance)
            box = {"origin": list(part.origin), "shape": list(part.manifest.shape)}
            entries.append(({"fragment": part.fragment} if has_fragments else {}) | box | table)
        return {"name": PARQUET_MANIFEST, "configuration": {"parts": entries}}

    def _is_small(self, part: ManifestPart, has_fragments: bool) -> bool:
        """Return whether the metadata may contain the references of a part."""
        table = part.manifest.get_table(SparseReferences)
        if table is None:
            return part.manifest.size <= MAX_INLINE
        # entries do not record the pipeline of missing chunks
        return table.chunk_ids.size <= MAX_INLINE and not has_fragments

    def _write_table(
        self, path: str, number: int, manifest: ChunkManifest, has_fragments: bool, advance: Advance
    ) -> dict[str, Any]:
        """Write references to a table, and return its entry in the metadata."""
        folder = f"manifest.{self.name}.{number}"
        sparse = gather_references(manifest) if manifest.missing_pipeline is not None else None
        if sparse is None:
            counts = self._writer.write_table(f"{path}/{folder}", manifest, has_fragments, advance)
            rows_entry: dict[str, Any] = {"rows": manifest.size} | describe_counts(counts)
        else:
            self._writer.write_sparse(f"{path}/{folder}", *sparse, advance)
            rows_entry = {"chunks": sparse[0].size, "begins": sparse[0][::RECORD_SIZE].tolist()}
        self._rows_written += manifest.size if sparse is None else sparse[0].size
        # the number of files is known only when everything is written
        sources = [f"{find_path_to_set(path)}{FOLDER}/{self.name}/sources", 0]
        self._tables.append((path, sources))
        table = {"path": f"./{folder}", **rows_entry, "sources": sources}
        entry = {"table": table, "first": 0, "strides": list(compute_strides(manifest.shape))}
        if has_fragments and manifest.missing_pipeline is not None:
            # all chunks, including missing ones, have this pipeline
            entry["pipelines"] = [manifest.missing_pipeline]
        elif has_fragments:
            table["pipelines"] = True
        return entry

    # ------------------------------------------------------------------ existing references

    def _find_own_table(self, manifest: ChunkManifest) -> ParquetTable | None:
        """Return the table of this set that contains all rows of a manifest, or None."""
        table = manifest.get_table(ParquetTable)
        return table if table is not None and table.store.root == self.root else None

    def _find_own_json(self, manifest: ChunkManifest) -> JsonTable | None:
        """Return the table in a JSON file of this set that contains a manifest, or None."""
        table = manifest.get_table(JsonTable)
        # a table in memory has moved files
        if table is None or table.store.root != self.root or not isinstance(table.manifest, str):
            return None
        return table

    def _find_json_file(self, path: str, node: PlannedArray) -> dict[str, Any] | None:
        """Return the storage transformer of an array in a JSON file of this set, or None."""
        is_relative = self.before is not None and self.before.is_relative
        if self.manifest not in (None, "json") or is_relative != self.relative_paths:
            return None
        has_fragments, files = is_extended(node.metadata), list[tuple[str, Any]]()
        for number, part in enumerate(node.parts):
            table = self._find_own_json(part.manifest)
            prefix = f"{number}." if has_fragments else ""
            if table is None or (table.prefix, table.grid) != (prefix, part.manifest.shape):
                return None
            if part.fragment != number or any(part.origin) or not part.manifest.is_row_range(table):
                return None
            files.append((table.manifest, table.sources))
        if not files or any(pair != files[0] for pair in files):
            return None
        names = dict(zip(("manifest", "sources"), files[0], strict=True))
        configuration = {key: name for key, name in names.items() if name}
        for key, name in configuration.items():
            if isinstance(name, str):
                is_in_array = name.startswith(f"{path}/")
                configuration[key] = (
                    f".{name[len(path) :]}" if is_in_array else find_path_to_set(path) + name
                )
        return {"name": JSON_MANIFEST, "configuration": configuration}

    def _is_new(self, part: ManifestPart) -> bool:
        """Return whether another process has just written a part for this snapshot."""
        table = self._find_own_table(part.manifest)
        return table is not None and table.folder.startswith(f"{get_parts_folder(self.name)}/")

    def _describe_existing(self, path: str, manifest: ChunkManifest) -> dict[str, Any] | None:
        """Return the metadata of a part that is already in a table of the set, or None."""
        table = self._find_own_table(manifest)
        if table is None or manifest.rows is None:
            return None
        rows = manifest.rows
        table_entry: dict[str, Any] = {
            "path": find_path_to_set(path) + table.folder,
            **table.describe_rows(),
            "sources": [find_path_to_set(path) + self._locate_sources(table), table.sources.rows],
        }
        if table.has_pipelines:
            table_entry["pipelines"] = True
        part = {"table": table_entry, "first": rows.first, "strides": list(rows.strides)}
        return part | ({"pipelines": list(rows.pipeline_map)} if rows.pipeline_map else {})

    def _locate_sources(self, table: ParquetTable) -> str:
        """Return the folder of the files of a table, which are written if they were moved."""
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
        """Return the path to write for the url of a file."""
        return to_written_path(self.root, url, relative=self.relative_paths)


def _find_prefix_table(node: PlannedArray) -> JsonTable | None:
    """Return the table of an array if it has all chunks and maps prefixes of keys, else None."""
    if len(node.parts) != 1 or is_extended(node.metadata):
        return None
    [part] = node.parts
    table = part.manifest.get_table(JsonTable)
    if table is None:
        return None
    # the table must have exactly the chunks of the array, under the same keys
    is_same = count_chunks(node.metadata) == table.grid
    is_same = is_same and part.manifest.shape == table.grid and part.manifest.is_row_range(table)
    return table if is_same and table.has_prefixes and not table.prefix else None


def _to_metadata(
    manifest: Mapping[str, Any], fingerprints: Mapping[str, Fingerprint]
) -> dict[str, Any]:
    """Return the storage transformer of a manifest in the metadata."""
    sources = {"sources": fingerprints} if fingerprints else {}
    return {"name": JSON_MANIFEST, "configuration": {"manifest": manifest, **sources}}


def find_path_to_set(path: str) -> str:
    """Return the relative path from the folder of an array to the folder of the set."""
    return "../" * (path.count("/") + 1)


# ---------------------------------------------------------------------- copies
# Opening a set loads its small coordinates. In a remote set, each of them would take a request, so
# the root has copies of small chunks of native arrays.


class ChunkCopies:
    """Copies of small chunks of native arrays in one snapshot.

    Copies in the previous snapshot are kept.
    """

    def __init__(self, before: Document | None) -> None:
        self._before: Mapping[str, str] = before.notes.get(COPIES, {}) if before else {}
        self._copies: dict[str, dict[str, str]] = {}

    def add(self, path: str, digest: str, data: bytes) -> None:
        """Add a copy of a chunk, unless it is larger than `MAX_COPIED_COORDINATE`."""
        if len(data) <= MAX_COPIED_COORDINATE:
            self._copies.setdefault(path, {})[digest] = base64.b64encode(data).decode()

    def keep(self, path: str, entry: Mapping[str, Any]) -> None:
        """Keep the copies of an array with the same chunks as in the previous snapshot."""
        digests = (chunk.digest for chunk in list_value_chunks(entry))
        self._copies[path] = {d: self._before[d] for d in digests if d in self._before}

    def choose(self, nodes: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
        """Return the copies for the root, by hash; equal chunks are stored only once."""
        candidates = {
            digest: text
            for path, copies in self._copies.items()
            for digest, text in copies.items()
            if is_loaded_at_opening(path, nodes[path]) or _count_bytes(text) <= MAX_COPIED_OTHER
        }
        chosen, bytes_left = dict[str, str](), MAX_COPIED_TOTAL
        for digest, text in sorted(candidates.items(), key=lambda item: len(item[1])):
            bytes_left -= _count_bytes(text)
            if bytes_left < 0:
                break
            chosen[digest] = text
        return chosen


def _count_bytes(text: str) -> int:
    """Return the number of bytes that a base64 text represents.

    >>> _count_bytes("AAAA"), _count_bytes("AAA="), _count_bytes("AA==")
    (3, 2, 1)
    """
    return len(text) // 4 * 3 - text[-2:].count("=")


def is_loaded_at_opening(path: str, node: Mapping[str, Any]) -> bool:
    """Return whether an array is a scalar or a dimension coordinate."""
    return node.get("dimension_names", []) in ([], [path.rpartition("/")[2]])
