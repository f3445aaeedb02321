"""Zarr v3 hierarchies in which virtual arrays, as chunk manifests, lie beside native ones.

The layout is specified in ``docs/formats/zarr-v3.md``, after the "Manifest storage transformer"
proposal (zarr-specs issue 287) and the Zarr core specification 3. The root ``zarr.json`` holds the
metadata of everything; replacing it is the one step that makes a new snapshot. No other file that
it needs is ever written twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np

from virtualds.access import ANYWHERE, Allowed
from virtualds.errors import FormatError, VirtualdsError
from virtualds.group import ManifestGroup, ManifestVariable
from virtualds.json_attributes import from_json
from virtualds.manifest import MISSING, ChunkManifest, SourceFile, StorageOptions
from virtualds.referenced_files import unreachable
from virtualds.storage_notes import restored_encoding
from virtualds.stores import store_for
from virtualds.strict_json import parsed
from virtualds.zarr_hierarchy import malformed
from virtualds.zarr_metadata import fill_from_attribute
from virtualds.zarr_v3.arrays import array_from_v3
from virtualds.zarr_v3.document import (
    CONSOLIDATED,
    FOLDER,
    MARKER,
    NOTES,
    Document,
    check_node,
    new_snapshot,
    snapshot_path,
)
from virtualds.zarr_v3.manifests import Part, StoredManifests, chunk_key
from virtualds.zarr_v3.metadata import check_extras, check_zarr_v3
from virtualds.zarr_v3.snapshot_writing import SnapshotWriter
from virtualds.zarr_v3.snapshots import let_go, opened, swap, write_nodes
from virtualds.zarr_v3.values import is_text, text_from_chunks

MANIFESTS = ("inline", "json", "parquet")
"""The forms of manifests, by how many chunks they are for."""
GROUP_KEYS = ("zarr_format", "node_type", "attributes", CONSOLIDATED)
"""Keys that the metadata of a group may have."""


def detect(marker: bytes) -> bool:
    """Say whether the root ``zarr.json`` of a folder is that of a set; plain Zarr has one too."""
    ours = f'"{NOTES}"'.encode() in marker or b'"chunk-manifest-' in marker
    return ours and b'"node_type"' in marker


# ---------------------------------------------------------------------- reading


def read(
    source: SourceFile,
    group: str | None = None,
    skip: Iterable[str] = (),
    allow: Allowed = ANYWHERE,
    snapshot: str | None = None,
) -> ManifestGroup:
    """Read a reference set: its metadata now, manifests when somebody needs them.

    Parameters
    ----------
    source : SourceFile
        The folder.
    group : str, optional
        Path of a group; the root group by default.
    skip : iterable of str
        Names of variables to leave out.
    allow : Allowed
        Where the files that it refers to may lie.
    snapshot : str, optional
        Id of an earlier snapshot; by default the newest.

    Raises
    ------
    FileNotFoundError
        There is no such group or snapshot.
    FormatError
        It is no reference set.
    UnsupportedError
        It uses an extension that is not known.
    AccessError
        It refers to files that it may not name.
    """
    root = source.url.rstrip("/")
    document, _ = opened(root, source.options, snapshot)
    return _SetReader(root, source.options, document, frozenset(skip), allow).group(group)


class _SetReader:
    """Makes groups of the document of a set.

    Parameters
    ----------
    root : str
        Url of the folder.
    options : StorageOptions, optional
    document : Document
    skip : set of str
        Names of variables to leave out.
    allow : Allowed
    """

    def __init__(
        self,
        root: str,
        options: StorageOptions | None,
        document: Document,
        skip: frozenset[str],
        allow: Allowed,
    ) -> None:
        self._root = root
        self._nodes = document.nodes
        self._notes = document.notes
        self._skip = skip
        self._manifests = StoredManifests(root, options, allow)
        if not document.is_consolidated:
            self._nodes = self._nodes | _found_nodes(root, options)

    def group(self, path: str | None) -> ManifestGroup:
        """Return the group at a path with everything below it."""
        try:
            return self._group("").group(path)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            if isinstance(error, VirtualdsError):
                raise
            raise malformed(self._root, error) from error

    def _group(self, path: str) -> ManifestGroup:
        prefix = f"{path}/" if path else ""
        variables, children = {}, dict[str, None]()
        for key, node in self._nodes.items():
            name, _, rest = key.removeprefix(prefix).partition("/")
            if not key.startswith(prefix) or not name:
                continue
            if rest or node.get("node_type") == "group":
                children[name] = None
            elif name not in self._skip:
                variables[name] = self._named_variable(key, node)
        notes = self._noted("groups", path)
        attributes = self._group_attributes(path, notes)
        groups = {name: self._group(prefix + name) for name in children}
        encoding = {"unlimited_dims": set(notes.get("unlimited_dims", ()))}
        try:
            return ManifestGroup(variables, attributes, groups, encoding)
        except FormatError as error:
            error.add_note(f"group /{path} of {self._root}")
            raise

    def _group_attributes(self, path: str, notes: Mapping[str, Any]) -> dict[str, Any]:
        node = self._nodes.get(path, {"zarr_format": 3})
        try:
            if node.get("zarr_format") != 3:
                raise FormatError(f"its zarr_format is {node.get('zarr_format')!r}, not 3")
            check_extras(node, GROUP_KEYS)
            return self._attributes(node, notes)
        except VirtualdsError as error:
            error.add_note(f"group /{path} of {self._root}")
            raise

    def _noted(self, kind: str, path: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self._notes.get(kind, {}).get(path, {})
        return found

    def _attributes(self, node: Mapping[str, Any], notes: Mapping[str, Any]) -> dict[str, Any]:
        types = notes.get("attributes", {})
        found = node.get("attributes") or {}
        return {name: from_json(value, types.get(name)) for name, value in found.items()}

    def _named_variable(self, path: str, node: Mapping[str, Any]) -> ManifestVariable:
        try:
            check_zarr_v3(node)
            return self._variable(path, node)
        except VirtualdsError as error:
            error.add_note(f"variable {path} of {self._root}")
            raise
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            found = malformed(self._root, error)
            found.add_note(f"variable {path} of {self._root}")
            raise found from error

    def _variable(self, path: str, node: Mapping[str, Any]) -> ManifestVariable:
        notes = self._noted("arrays", path)
        attributes = self._attributes(node, notes)
        dims = tuple(
            name or f"dim_{size}"
            for name, size in zip(
                node.get("dimension_names") or [None] * len(node["shape"]),
                node["shape"],
                strict=True,
            )
        )
        parts = self._parts_of(path, node)
        if is_text(node):
            grid = _regular_grid(node)
            values = text_from_chunks(node, self._chunks(parts([grid], 0)))
            encoding = {"dtype": str, "original_shape": values.shape}
            return ManifestVariable(dims, values, attributes, encoding)
        array = array_from_v3(node, parts)
        if "_FillValue" in attributes and "_FillValue" not in notes.get("attributes", {}):
            attributes["_FillValue"] = fill_from_attribute(attributes["_FillValue"], array.dtype)
        encoding = restored_encoding(array, dims, notes, self._root)
        return ManifestVariable(dims, array, attributes, encoding)

    def _parts_of(
        self, path: str, node: Mapping[str, Any]
    ) -> Callable[[list[tuple[int, ...]], int], list[Part]]:
        """Return what says where the chunks of an array lie."""
        transformers = node.get("storage_transformers") or []
        if not transformers:
            transformer = self._native(path)
        elif len(transformers) == 1:
            [transformer] = transformers
        else:
            raise FormatError(f"{len(transformers)} storage transformers; one is understood")
        key = chunk_key(node)

        def parts(grids: list[tuple[int, ...]], numbered: int) -> list[Part]:
            return self._manifests.parts(path, transformer, grids, numbered, key)

        return parts

    def _native(self, path: str) -> Mapping[str, Any]:
        """Return the storage transformer that a native array would have."""
        noted = self._noted("values", path)
        if not noted or noted.get("folder"):
            # a prefix of all keys; what is not there is missing
            return _json_manifest({"./": {"path": f"./{path}/"}})
        return _json_manifest(
            {
                ".".join(name.split("/")[1:]) or "0": {"path": f"./{path}/{name}", "length": size}
                for name, size, _ in noted["chunks"]
            }
        )

    def _chunks(self, parts: list[Part]) -> dict[tuple[int, ...], bytes]:
        """Read all chunks that there are."""
        found = {}
        for part in parts:
            manifest = part.manifest.loaded()
            for place in map(tuple, np.argwhere(manifest.file != MISSING).tolist()):
                key = tuple(o + i for o, i in zip(part.origin, place, strict=True))
                found[key] = _bytes(manifest, place)
        return found


def _json_manifest(manifest: dict[str, Any]) -> dict[str, Any]:
    return {"name": "chunk-manifest-json", "configuration": {"manifest": manifest}}


def _regular_grid(node: Mapping[str, Any]) -> tuple[int, ...]:
    shape = node["chunk_grid"]["configuration"]["chunk_shape"]
    return tuple(-(-n // max(c, 1)) for n, c in zip(node["shape"], shape, strict=True))


def _bytes(manifest: ChunkManifest, place: tuple[int, ...]) -> bytes:
    row = manifest.lookup(place)
    if row.file < 0:
        return manifest.inline[row.offset]
    file = manifest.files[row.file]
    try:
        return store_for(file.url).get_ranges(file, [(row.offset, row.length)])[0]
    except OSError as error:
        raise unreachable(file.url, error) from error


def _found_nodes(root: str, options: StorageOptions | None) -> dict[str, dict[str, Any]]:
    """Return the metadata of all nodes of a set that has not consolidated them."""
    store = store_for(root)
    found = {}
    for path, _ in store.list_files(root, options):
        folder, _, name = path.rpartition("/")
        if name == MARKER and folder and not folder.startswith("__"):
            url = f"{root}/{path}"
            found[folder] = parsed(store.read_all(url, options), url)
            check_node(folder, found[folder], url)
    return found


# ---------------------------------------------------------------------- writing


@dataclass(frozen=True)
class _Found:
    """The snapshot that a writer has seen, and the version of the file that it stands in."""

    document: Document
    version: str


def write(
    group: ManifestGroup,
    url: str,
    options: StorageOptions | None = None,
    *,
    replace: bool = True,
    manifest: str | None = None,
    relative_paths: bool = False,
) -> None:
    """Write a reference set, or a new snapshot of one: all of it, or nothing.

    Parameters
    ----------
    group : ManifestGroup
    url : str
        Of the folder.
    options : StorageOptions, optional
        Access options of the target.
    replace : bool
        Whether an existing set may be replaced. Anything else of this name is left alone.
    manifest : {"inline", "json", "parquet"}, optional
        The form of chunk manifests; by default by the number of chunks.
    relative_paths : bool
        Whether paths of sources are written relative to the set, where they can be.

    Raises
    ------
    UnsupportedError
        Variables that the format has no form for; all of them are named.
    FileExistsError
        There is something of this name, and it is no set or may not be replaced.
    ConflictError
        Another writer was faster; nothing has changed.
    ValueError
        There is no such form of manifests.
    """
    root = url.rstrip("/")
    if manifest not in (None, *MANIFESTS):
        raise ValueError(f"manifest {manifest!r}: there are {', '.join(map(repr, MANIFESTS))}")
    found = _present(root, options)
    if found is not None and not replace:
        raise FileExistsError(f"{root}: exists already; pass mode='w' to replace it")
    _commit(group, root, options, found, manifest, relative_paths)


def update(
    url: str,
    change: Callable[[ManifestGroup], ManifestGroup],
    options: StorageOptions | None = None,
    *,
    manifest: str | None = None,
    relative_paths: bool | None = None,
) -> None:
    """Write what becomes of a set as a new snapshot; what stays as it is is not written again.

    Parameters
    ----------
    url, options, manifest, relative_paths
        As in `write`; by default paths are written as they were.
    change : callable
        Takes the whole set and returns what it is to be.

    Raises
    ------
    FileNotFoundError
        There is no set.
    ConflictError
        Another writer was faster; nothing has changed.
    """
    root = url.rstrip("/")
    found = _Found(*opened(root, options))
    reader = _SetReader(root, options, found.document, frozenset(), ANYWHERE)
    relative = found.document.notes.get("relative_paths", False)
    relative = relative if relative_paths is None else relative_paths
    before = reader.group(None)
    if (after := change(before)) is not before:
        _commit(after, root, options, found, manifest, relative)


def _present(root: str, options: StorageOptions | None) -> _Found | None:
    """Return the set that is there, None if there is nothing.

    Raises
    ------
    FileExistsError
        There is something else.
    """
    store = store_for(root)
    url = f"{root}/{MARKER}"
    try:
        data, version = store.read_version(url, options)
    except (FileNotFoundError, NotADirectoryError):
        files = [path for path, _ in store.list_files(root, options)]
        if not files or _is_left_over(files):
            return None
        data = b""
    if not detect(data):
        raise FileExistsError(
            f"{root}: there is something of this name that is no reference set; remove it, or "
            f"choose another name"
        )
    return _Found(Document.parse(data, url), version)


def _is_left_over(files: list[str]) -> bool:
    """Say whether files are what a writer has left that was killed before there was a set."""
    return any(path.startswith(f"{FOLDER}/") for path in files)


def _commit(
    group: ManifestGroup,
    root: str,
    options: StorageOptions | None,
    found: _Found | None,
    manifest: str | None,
    relative_paths: bool,
) -> None:
    """Write the files of a snapshot, then, in one step, the document that makes it the newest."""
    name, time = new_snapshot()
    before = found.document if found else None
    writer = SnapshotWriter(root, options, name, before, manifest, relative_paths)
    try:
        document = writer.write(group)
        document.notes.update(snapshot=name, time=time, history=before.history if before else [])
        writer.put(snapshot_path(name), document.text())
        swap(root, options, document, found.version if found else None)
    except BaseException:
        writer.undo()
        raise
    write_nodes(root, options, document, before)


# ---------------------------------------------------------------------- history


def history(url: str, options: StorageOptions | None = None) -> list[tuple[str, str]]:
    """Return the ids and times of all snapshots, the newest last."""
    return opened(url.rstrip("/"), options)[0].history


def expire(
    url: str, options: StorageOptions | None, keep: int, older_than: timedelta | None
) -> list[str]:
    """Let go of snapshots and of what only they need; return their ids."""
    return let_go(url.rstrip("/"), options, keep, older_than)
