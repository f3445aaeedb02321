"""Read plain Zarr stores, version 2 and 3, in which every chunk is a whole file.

All chunks and their lengths are found by listing the store once. So a dataset shows the store as it
was at that time: chunks written later are missing, and replaced chunks raise an error if the store
reveals changes. If a store cannot be listed (a plain web server), its consolidated metadata are
read, and its chunks are looked up on demand.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from virtualds.arrays.group import ManifestGroup
from virtualds.bounds import check_table
from virtualds.chunks.columns import MISSING
from virtualds.chunks.manifest import ChunkManifest
from virtualds.errors import UnsupportedError, make_damage_error
from virtualds.formats import explain_malformed
from virtualds.formats.zarr import (
    MARKER,
    STORE_MARKERS,
    ZARRAY,
    ZGROUP,
    ZMETADATA,
    ChunkKeys,
    SeparatedKeys,
    parse_chunk_keys,
)
from virtualds.formats.zarr.groups import (
    V2,
    GroupBuilder,
    make_single_manifest_finder,
    merge_zarr_v2,
)
from virtualds.formats.zarr.v3_arrays import Manifests
from virtualds.formats.zarr_manifests.manifests import build_json_manifest, read_parts
from virtualds.formats.zarr_manifests.set_files import SetFiles
from virtualds.json_values import parse_json
from virtualds.reading.threads import fetch_many
from virtualds.source_file import SourceFile, join_path, name_of
from virtualds.stores import find_store
from virtualds.stores.store import ListedFile

ZATTRS = ".zattrs"


def detect(marker: bytes) -> bool:
    """Return whether the marker of a folder belongs to a Zarr store."""
    return b'"zarr_format"' in marker or b'"zarr_consolidated_format"' in marker


def read(source: SourceFile, group: str | None = None, skip: Iterable[str] = ()) -> ManifestGroup:
    """Read the structure of a store, and list its chunks.

    ``source`` is the folder of a group, or of a single array, which gets the name of the folder.
    """
    if group is not None and not isinstance(group, str):
        raise ValueError(f"group must be a string or None, got {group!r}")
    # Zarr v2 and v3, "Logical storage paths"
    parts = [part for part in (group or "").replace("\\", "/").split("/") if part]
    if {".", ".."} & set(parts):
        raise ValueError(f"group {group!r}: no part of a path in a store is '.' or '..'")
    group = "/".join(parts) or None
    store = _StoreFolder(source)
    read_version = _read_v3 if store.marker == MARKER else _read_v2
    with explain_malformed(store.root):
        return read_version(store, frozenset(skip), group)


class _StoreFolder:
    """The files of a store in a folder."""

    def __init__(self, source: SourceFile) -> None:
        self.source = source._replace(url=source.url.rstrip("/"))
        self.root, self.options = self.source.url, source.options
        listing = self._list_files()
        self.files = [listed.file for listed in listing]
        self.paths = [listed.path for listed in listing]
        present = set(STORE_MARKERS).intersection(self.paths)
        found_markers = [marker for marker in STORE_MARKERS if marker in present]
        self.marker, self.document = self._find_marker(found_markers or STORE_MARKERS)
        # a listing without the marker may lack chunks as well
        self.is_listed = bool(found_markers)

    def _list_files(self) -> list[ListedFile]:
        """Return the files of the store, or an empty list if it cannot be listed."""
        try:
            return find_store(self.root).list_files(self.root, self.options)
        except (PermissionError, NotImplementedError):
            # files may be readable without the permission to list them
            return []

    def _find_marker(self, markers: Sequence[str]) -> tuple[str, Any]:
        """Return the first marker that exists, and its content."""
        denied: PermissionError | None = None
        for marker in markers:
            try:
                return marker, self.read_json(marker)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except PermissionError as error:
                # servers may deny access to files that do not exist
                denied = denied or error
        if denied is not None:
            raise denied
        raise FileNotFoundError(
            f"{self.root}: there is no Zarr store, none of {', '.join(STORE_MARKERS)}; check the "
            f"path"
        )

    def read_json(self, path: str) -> Any:
        """Return a metadata file."""
        url = join_path(self.root, path)
        return parse_json(find_store(url).read_all(url, self.options), url)

    def read_all_json(self, names: tuple[str, ...]) -> dict[str, Any]:
        """Return all metadata files with given names, or raise an error for an unlisted store."""
        if not self.is_listed:
            raise UnsupportedError(
                f"{self.root}: it cannot be listed, and its metadata are not consolidated; "
                f"consolidate them (zarr.consolidate_metadata), or open a store that can be listed"
            )
        paths = [path for path in self.paths if path.rpartition("/")[2] in names]
        others = [path for path in paths if path != self.marker]
        read = fetch_many(others, lambda path: self.root, self.read_json)
        documents = dict(zip(others, read, strict=True)) | {self.marker: self.document}
        return {path: documents[path] for path in paths}

    @property
    def name(self) -> str:
        """The name of a single array, which is that of its folder."""
        return name_of(self.root).removesuffix(".zarr") or "array"

    def build_manifest(self, folder: str, keys: ChunkKeys, grid: tuple[int, ...]) -> ChunkManifest:
        """Return the manifest of an array whose chunks are whole files; others are missing."""
        if not self.is_listed:
            transformer = build_json_manifest({"./": {"path": f"./{folder}/" if folder else "./"}})
            set_files = SetFiles(self.root, self.options)
            [part] = read_parts(set_files, folder, transformer, [grid], 0, keys)
            return part.manifest
        prefix = f"{folder}/" if folder else ""
        first = bisect_left(self.paths, prefix)
        files: list[SourceFile] = []
        chunk_ids: list[tuple[int, ...]] = []
        for number in range(first, len(self.paths)):
            path = self.paths[number]
            if not path.startswith(prefix):
                break
            chunk_id = keys.parse_key(path[len(prefix) :], len(grid))
            if chunk_id is None or any(i >= n for i, n in zip(chunk_id, grid, strict=True)):
                # metadata, another file, or a chunk beyond the end of a shortened array
                continue
            chunk_ids.append(chunk_id)
            files.append(self.files[number])
        # look up sizes that the listing lacks
        files = fetch_many(
            files,
            lambda file: file.url if file.size is None else None,
            lambda file: (
                find_store(file.url).describe(file.url, file.options) if file.size is None else file
            ),
        )
        if not chunk_ids:
            return ChunkManifest.missing(grid)
        check_table(grid, len(chunk_ids), f"array {folder!r}")
        file = np.full(grid, MISSING, np.int32)
        length = np.zeros(grid, np.int64)
        for number, (chunk_id, chunk) in enumerate(zip(chunk_ids, files, strict=True)):
            file[chunk_id], length[chunk_id] = number, chunk.size or 0
        return ChunkManifest.build(grid, files=files, file=file, length=length)


# ---------------------------------------------------------------------- version 3


def _read_v3(store: _StoreFolder, skip: frozenset[str], group: str | None) -> ManifestGroup:
    """Return a group of a Zarr v3 store."""
    root, folders = store.document, dict[str, str]()
    if root.get("zarr_format") != 3:
        raise make_damage_error(f"{store.root}/{MARKER}: it is not metadata of Zarr v3", "metadata")
    nodes: dict[str, Any]
    if root.get("node_type") == "array":
        nodes = {"": {"zarr_format": 3, "node_type": "group"}, store.name: root}
        folders[store.name] = ""
    elif (consolidated := root.get("consolidated_metadata")) is not None:
        nodes = {"": root, **consolidated["metadata"]}
    else:
        documents = store.read_all_json((MARKER,))
        nodes = {path.removesuffix(MARKER).rstrip("/"): node for path, node in documents.items()}

    def find_parts(path: str, node: Mapping[str, Any]) -> Manifests:
        transformers = [
            transformer
            for transformer in node.get("storage_transformers") or ()
            if not isinstance(transformer, Mapping)
            or transformer.get("must_understand") is not False
        ]
        if transformers:
            raise UnsupportedError(
                f"storage transformers {transformers!r:.200}: its chunks are stored elsewhere; "
                "open the store with parser='zarr-v3'"
            )
        keys, folder = parse_chunk_keys(node), folders.get(path, path)
        return make_single_manifest_finder(
            lambda _, grid: store.build_manifest(folder, keys, grid)
        )(path, node)

    return GroupBuilder(store.root, nodes, {}, find_parts, skip).read_group(group)


# ---------------------------------------------------------------------- version 2


def _read_v2(store: _StoreFolder, skip: frozenset[str], group: str | None) -> ManifestGroup:
    """Return a group of a Zarr v2 store."""
    folders: dict[str, str] = {}
    if store.marker == ZMETADATA:
        metadata = store.document["metadata"]
    elif store.marker == ZARRAY:
        metadata = {f"{store.name}/{ZARRAY}": store.document}
        with suppress(FileNotFoundError):
            metadata[f"{store.name}/{ZATTRS}"] = store.read_json(ZATTRS)
        folders[store.name] = ""
    else:
        metadata = store.read_all_json((ZGROUP, ZARRAY, ZATTRS))

    def find_manifest(path: str, grid: tuple[int, ...]) -> ChunkManifest:
        separator = metadata[f"{path}/{ZARRAY}"].get("dimension_separator") or "."
        return store.build_manifest(folders.get(path, path), SeparatedKeys("v2", separator), grid)

    nodes = merge_zarr_v2(metadata)
    return GroupBuilder(
        store.root, nodes, {}, make_single_manifest_finder(find_manifest), skip, V2
    ).read_group(group)
