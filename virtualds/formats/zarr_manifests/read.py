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
from virtualds.formats.zarr.v3_arrays import ManifestPart, Manifests
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
    """Read a reference set: its metadata now, manifests on demand.

    Parameters
    ----------
    source : SourceFile
        The folder.
    how : ReadOptions
        ``snapshot`` is the id of one.

    Raises
    ------
    FileNotFoundError
        There is no such group or snapshot.
    FormatError
        It is no reference set.
    UnsupportedError
        It uses an unknown extension.
    AccessError
        It refers to files that it may not name.
    """
    root = source.url.rstrip("/")
    document = read_snapshot(root, source.options, how.snapshot)
    return SetReader(root, source.options, document, how).read_group()


class SetReader:
    """Makes groups of the document of a set.

    Parameters
    ----------
    root : str
        Url of the folder.
    options : StorageOptions, optional
    document : Document
    how : ReadOptions
    """

    def __init__(
        self,
        root: str,
        options: StorageOptions | None,
        document: Document,
        how: ReadOptions,
    ) -> None:
        self._root, self._group = root, how.group
        self._values = document.notes.get("values", {})
        self._copies = document.notes.get(COPIES, {})
        ranges = document.notes.get("sources")
        self._files = SetFiles(root, options, how.allow, ranges)
        nodes = read_all_nodes(root, options, document)
        self._reader = GroupReader(root, nodes, document.notes, self._find_parts, how.skip)

    def read_group(self) -> ManifestGroup:
        """Return the group with everything below it."""
        return self._reader.read_group(self._group)

    def _find_parts(self, path: str, node: Mapping[str, Any]) -> Manifests:
        """Return the manifests of an array."""
        transformers = node.get("storage_transformers") or []
        self._hold_copies(path)
        if not transformers:
            transformer = self._find_native(path)
        elif len(transformers) == 1:
            [transformer] = transformers
        else:
            raise FormatError(f"{len(transformers)} storage transformers; one is understood")
        key = parse_chunk_keys(drop_manifest_keys(node))

        def parts(grids: list[tuple[int, ...]], numbered: int) -> list[ManifestPart]:
            return read_parts(self._files, path, transformer, grids, numbered, key)

        return parts

    def _find_native(self, path: str) -> Mapping[str, Any]:
        """Return the storage transformer that a native array would have."""
        noted = self._values.get(path, {})
        if not noted or noted.get("folder"):
            # a prefix of all keys; files that do not exist are missing chunks
            return build_json_manifest({"./": {"path": f"./{path}/"}})
        return build_json_manifest(build_value_entries(path, noted))

    def _hold_copies(self, path: str) -> None:
        """Hold chunks of values that the root repeats, while a remote set is opened."""
        copies = read_copies(path, self._values.get(path), self._copies)
        hold_files((f"{self._root}/{name}", data) for name, data in copies)


# ---------------------------------------------------------------------- finding a set to write


@dataclass(frozen=True)
class FoundSet:
    """The snapshot that a writer has read, and the version of its file.

    Parameters
    ----------
    root : str
        Url of the folder.
    options : StorageOptions, optional
    document : Document
    version : str
        That of the root ``zarr.json``.
    allow : AccessPolicy
        Where the files that the set refers to may lie.
    """

    root: str
    options: StorageOptions | None
    document: Document
    version: str
    allow: AccessPolicy = ANYWHERE

    @cached_property
    def group(self) -> ManifestGroup:
        """The whole set."""
        how = ReadOptions(allow=self.allow)
        return SetReader(self.root, self.options, self.document, how).read_group()

    def is_current(self) -> bool:
        """Say whether the snapshot is still the newest."""
        url = f"{self.root}/{MARKER}"
        return find_store(url).find_version(url, self.options) == self.version


def find_replaceable(root: str, options: StorageOptions | None, replace: bool) -> FoundSet | None:
    """Return the existing set, if it may be replaced; None if there is none."""
    found = find_set(root, options)
    if found is not None and not replace:
        raise exists_already(root)
    return found


def find_set(root: str, options: StorageOptions | None) -> FoundSet | None:
    """Return the existing set, None if there is none.

    Raises
    ------
    FileExistsError
        There are other files.
    """
    store = find_store(root)
    url = f"{root}/{MARKER}"
    try:
        data, version = store.read_version(url, options)
    except (FileNotFoundError, NotADirectoryError):
        files = [listed.path for listed in store.list_files(root, options)]
        if not files or _is_left_over(files):
            return None
        data = b""
    if not detect(data):
        raise FileExistsError(
            f"{root}: there is something of this name that is not a reference set; remove it, or "
            f"choose another name"
        )
    return FoundSet(root, options, Document.parse(data, url), version)


def _is_left_over(files: list[str]) -> bool:
    """Say whether files are left over from a writer that was killed before its first commit."""
    return any(path.startswith(f"{FOLDER}/") for path in files)
