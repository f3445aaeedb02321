"""Find and read a set of Zarr v3 metadata and chunk manifests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from virtualds.arrays.group import ManifestGroup
from virtualds.errors import FormatError, exists_already
from virtualds.formats import READ_ALL, ReadOptions
from virtualds.formats.zarr.document import (
    COPIES,
    FOLDER,
    MARKER,
    NOTES,
    Document,
    build_value_entries,
    drop_manifest_keys,
    parse_chunk_keys,
    read_copies,
)
from virtualds.formats.zarr.groups import GroupReader
from virtualds.formats.zarr.v3_arrays import Manifests
from virtualds.formats.zarr_manifests.manifests import build_json_manifest, read_parts
from virtualds.formats.zarr_manifests.set_files import SetFiles
from virtualds.formats.zarr_manifests.snapshots import read_all_nodes, read_snapshot
from virtualds.source_file import SourceFile, StorageOptions
from virtualds.stores import find_store
from virtualds.stores.access_rules import ANYWHERE, AccessPolicy
from virtualds.stores.scan_cache import hold_files


def detect(marker: bytes) -> bool:
    """Say whether the root ``zarr.json`` of a folder is of a set, not of plain Zarr."""
    ours = f'"{NOTES}"'.encode() in marker or b'"chunk-manifest-' in marker
    return ours and b'"node_type"' in marker


# ---------------------------------------------------------------------- reading


def read(source: SourceFile, how: ReadOptions = READ_ALL) -> ManifestGroup:
    """Read the reference set in a folder: its metadata now, manifests on demand."""
    root = source.url.rstrip("/")
    return read_document(
        root, source.options, read_snapshot(root, source.options, how.snapshot), how
    )


def read_document(
    root: str, options: StorageOptions | None, document: Document, how: ReadOptions = READ_ALL
) -> ManifestGroup:
    """Return a group of the document of a set, with everything below it."""
    values, copies = document.notes.get("values", {}), document.notes.get(COPIES, {})
    files = SetFiles(root, options, how.allow, document.notes.get("sources"))

    def find_parts(path: str, node: Mapping[str, Any]) -> Manifests:
        # chunks of values that the root repeats, while a remote set is opened
        held = read_copies(path, values.get(path), copies)
        hold_files((f"{root}/{name}", data) for name, data in held)
        transformers = node.get("storage_transformers") or [_describe_native(path, values)]
        if len(transformers) != 1:
            raise FormatError(f"{len(transformers)} storage transformers; one is understood")
        key = parse_chunk_keys(drop_manifest_keys(node))
        return lambda grids, numbered: read_parts(
            files, path, transformers[0], grids, numbered, key
        )

    nodes = read_all_nodes(root, options, document)
    return GroupReader(root, nodes, document.notes, find_parts, how.skip).read_group(how.group)


def _describe_native(path: str, values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the storage transformer that a native array would have."""
    noted = values.get(path, {})
    if not noted or noted.get("folder"):
        # a prefix of all keys; files that do not exist are missing chunks
        return build_json_manifest({"./": {"path": f"./{path}/"}})
    return build_json_manifest(build_value_entries(path, noted))


# ---------------------------------------------------------------------- finding a set to write


@dataclass(frozen=True)
class FoundSet:
    """The snapshot that a writer has read, and the version of its file, the root ``zarr.json``."""

    root: str
    options: StorageOptions | None
    document: Document
    version: str
    allow: AccessPolicy = ANYWHERE

    @cached_property
    def group(self) -> ManifestGroup:
        """The whole set."""
        return read_document(self.root, self.options, self.document, ReadOptions(allow=self.allow))

    def is_current(self) -> bool:
        url = f"{self.root}/{MARKER}"
        return find_store(url).find_version(url, self.options) == self.version


def find_replaceable(root: str, options: StorageOptions | None, replace: bool) -> FoundSet | None:
    """Return the existing set, if it may be replaced; None if there is none."""
    found = find_set(root, options)
    if found is not None and not replace:
        raise exists_already(root)
    return found


def find_set(root: str, options: StorageOptions | None) -> FoundSet | None:
    """Return the existing set, None if there is none; refuse a folder with other files."""
    store = find_store(root)
    url = f"{root}/{MARKER}"
    try:
        data, version = store.read_version(url, options)
    except (FileNotFoundError, NotADirectoryError):
        files = [listed.path for listed in store.list_files(root, options)]
        # or left over from a writer that was killed before its first commit
        if not files or any(path.startswith(f"{FOLDER}/") for path in files):
            return None
        data = b""
    if not detect(data):
        raise FileExistsError(
            f"{root}: there is something of this name that is not a reference set; remove it, or "
            f"choose another name"
        )
    return FoundSet(root, options, Document.parse(data, url), version)
