"""Move the sources of a set to other urls: its tables of files change, not its references."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from virtualds.formats import MoveFile
from virtualds.formats.referenced_files import UNKNOWN
from virtualds.formats.zarr.document import FOLDER
from virtualds.formats.zarr_manifests.json_rows import Fingerprint
from virtualds.formats.zarr_manifests.manifest_files import encode_source_rows
from virtualds.formats.zarr_manifests.manifests import (
    JSON_MANIFEST,
    StoredManifests,
    read_source_table,
    to_set_path,
)
from virtualds.formats.zarr_manifests.source_table import SourceTable
from virtualds.formats.zarr_manifests.write_snapshot import SnapshotWriter, find_way_up
from virtualds.source_file import SourceFile


class SourceMoving:
    """Writes what a new snapshot needs to refer to moved files.

    Parameters
    ----------
    writer : SnapshotWriter
        Of the new snapshot.
    manifests : StoredManifests
        Of the set.
    move : callable
        Takes a file, and returns it with its new url, or unchanged.
    """

    def __init__(self, writer: SnapshotWriter, manifests: StoredManifests, move: MoveFile) -> None:
        self._writer = writer
        self._manifests = manifests
        self._move = move
        self._tables: dict[SourceTable, str] = {}
        self.moved: dict[SourceFile, None] = {}

    def move_node(self, path: str, node: Mapping[str, Any]) -> dict[str, Any]:
        """Return the metadata of a node that refers to moved files."""
        if not (transformers := node.get("storage_transformers")):
            return dict(node)
        moved = [self._move_transformer(path, transformer) for transformer in transformers]
        return {**node, "storage_transformers": moved}

    def _move_transformer(self, folder: str, transformer: Mapping[str, Any]) -> dict[str, Any]:
        said = transformer["configuration"]
        if transformer["name"] == JSON_MANIFEST:
            said = self._move_entries(folder, said)
        else:
            said = {**said, "parts": [self._move_part(folder, part) for part in said["parts"]]}
        return {**transformer, "configuration": said}

    # ------------------------------------------------------------------ tables of files

    def _move_part(self, folder: str, part: Mapping[str, Any]) -> dict[str, Any]:
        if "table" not in part:
            kept = {name: part[name] for name in part if name not in ("manifest", "sources")}
            return {**kept, **self._move_entries(folder, part)}
        table = read_source_table(folder, part["table"]["sources"])
        if table not in self._tables:
            self._tables[table] = self._move_table(table)
        sources = [find_way_up(folder) + self._tables[table], table.rows]
        return {**part, "table": {**part["table"], "sources": sources}}

    def _move_table(self, table: SourceTable) -> str:
        """Write a table of moved files, row by row those of another; return its folder."""
        known = table.read_fingerprints(self._manifests, np.arange(table.rows))
        rows = [self._move_path(path, fingerprint) for path, fingerprint in known]
        if rows == known:
            return table.folder
        folder = f"{FOLDER}/{self._writer.name}/sources.{len(self._tables)}"
        for record, data in enumerate(encode_source_rows(rows)):
            self._writer.put(f"{folder}/{record}.parquet", data)
        return folder

    def _move_path(self, path: str, fingerprint: Fingerprint) -> tuple[str, Fingerprint]:
        """Return the path and the fingerprint to write for a file of the set."""
        file = self._manifests.get_file(path.rstrip("/"), fingerprint)
        moved = self._move(file)
        if moved.url == file.url:
            return path, fingerprint
        self.moved[moved] = None
        end = "/" if path.endswith("/") else ""
        return self._writer.make_path(moved.url) + end, moved.fingerprint

    # ------------------------------------------------------------------ manifests in JSON

    def _move_entries(self, folder: str, said: Mapping[str, Any]) -> dict[str, Any]:
        """Return the configuration of a manifest in JSON: in the metadata or a file, as before."""
        entries, known = (
            self._read(folder, said["manifest"]),
            self._read(folder, said.get("sources")),
        )
        paths = dict.fromkeys(entry["path"] for entry in entries.values() if "path" in entry)
        moved = {path: self._move_path(path, known.get(path, UNKNOWN)) for path in paths}
        if all(path == new for path, (new, _) in moved.items()):
            return dict(said)
        manifest = {
            key: {**entry, "path": moved[entry["path"]][0]} if "path" in entry else entry
            for key, entry in entries.items()
        }
        sources = {new: known for new, known in moved.values() if any(known)}
        found = {"manifest": manifest} | ({"sources": sources} if sources else {})
        if not isinstance(said["manifest"], str):
            return found
        return {name: self._put(folder, name, content) for name, content in found.items()}

    def _read(self, folder: str, said: Any) -> Mapping[str, Any]:
        """Return an object of the metadata, or that of the file that they name."""
        if isinstance(said, str):
            said = self._manifests.read_document(to_set_path(folder, said))
        return said or {}

    def _put(self, folder: str, name: str, content: Mapping[str, Any]) -> str:
        file = f"{name}.{self._writer.name}.json"
        data = json.dumps(content, separators=(",", ":")).encode()
        self._writer.put(f"{folder}/{file}", data)
        return f"./{file}"
