"""The format zarr-v3: Zarr hierarchies with chunk manifests for virtual arrays.

The layout is specified in ``docs/reference/formats/zarr-v3.md``, after the "Manifest storage
transformer" proposal (zarr-specs issue 287) and the Zarr core specification 3. The root
``zarr.json`` holds the metadata of all nodes; replacing it is the one step that makes a new
snapshot. Other files that a snapshot needs are never written twice.
"""

from __future__ import annotations

from collections.abc import Callable

from virtualds.arrays.group import ManifestGroup
from virtualds.formats import CheckMoved, Expiry, MoveFile, Removal
from virtualds.formats.read_options import ReadOptions
from virtualds.formats.same_references import demand_same_parts
from virtualds.formats.zarr.document import Document, join_snapshot_path, name_snapshot
from virtualds.formats.zarr.write_plan import list_references, plan_writing
from virtualds.formats.zarr_manifests.join_parts import join_all_parts
from virtualds.formats.zarr_manifests.layers import count_layers
from virtualds.formats.zarr_manifests.manifests import StoredManifests
from virtualds.formats.zarr_manifests.move_sources import SourceMoving
from virtualds.formats.zarr_manifests.parallel_write import PartsFolder, check_parts, remove_parts
from virtualds.formats.zarr_manifests.read import FoundSet, SetReader, find_replaceable, find_set
from virtualds.formats.zarr_manifests.snapshots import (
    expire_snapshots_of,
    extend_history,
    list_snapshots,
    open_newest,
    read_all_nodes,
    swap,
    write_nodes,
)
from virtualds.formats.zarr_manifests.write_snapshot import SnapshotWriter
from virtualds.source_file import StorageOptions
from virtualds.stores import find_store
from virtualds.stores.access_rules import ANYWHERE, AccessPolicy

MANIFESTS = ("inline", "json", "parquet")
"""The forms of manifests, by how many chunks they are for."""


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
        The format has no form for some variables; all of them are named.
    FileExistsError
        There is something of this name, and it is no set or may not be replaced.
    ConflictError
        Another writer was faster; nothing has changed.
    ValueError
        There is no such form of manifests.
    """
    root = url.rstrip("/")
    if manifest not in (None, *MANIFESTS):
        raise ValueError(f"manifest={manifest!r}: give one of {', '.join(map(repr, MANIFESTS))}")
    found = find_replaceable(root, options, replace)
    _commit(_make_document_writer(group), root, options, found, manifest, relative_paths)


def begin_parts(
    url: str,
    options: StorageOptions | None = None,
    *,
    replace: bool = True,
    relative_paths: bool = False,
) -> PartsFolder:
    """Return the folder where many processes may write parts of manifests of one snapshot.

    Parameters
    ----------
    url, options, replace, relative_paths
        As in `write`.

    Raises
    ------
    FileExistsError
        There is something of this name, and it is no set or may not be replaced.
    """
    root = url.rstrip("/")
    find_replaceable(root, options, replace)
    find_store(root).demand_conditions(root, options)
    return PartsFolder(root, options, name_snapshot()[0], relative_paths)


def commit_parts(group: ManifestGroup, place: PartsFolder, *, replace: bool = True) -> None:
    """Write a set from parts that other processes have written: all of it, or nothing.

    Parameters
    ----------
    group : ManifestGroup
        Arrays of it are what `virtualds.formats.zarr_manifests.parallel_write.write_parts` gave
        back.
    place : PartsFolder
    replace : bool
        As in `write`.

    Raises
    ------
    UnsupportedError, FileExistsError, ConflictError
        As `write`.
    ReadError
        A part is gone.
    """
    found = find_replaceable(place.root, place.options, replace)
    made = _make_document_writer(group)
    _commit(made, place.root, place.options, found, None, place.relative_paths, place)


def abandon_parts(place: PartsFolder) -> None:
    """Remove the parts written for a snapshot, unless the snapshot exists."""
    found = find_set(place.root, place.options)
    known = []
    if found is not None:
        known = [n for n, _ in list_snapshots(place.root, place.options, found.document)]
    # an error may have come after the commit, or instead of its answer
    if place.snapshot not in known:
        remove_parts(place, is_set=found is not None)


def check_writable(
    group: ManifestGroup, url: str, options: StorageOptions | None = None, *, replace: bool = True
) -> None:
    """Raise what `write` would raise before it writes anything.

    Raises
    ------
    UnsupportedError, FileExistsError
        As `write`.
    """
    root = url.rstrip("/")
    found = find_replaceable(root, options, replace)
    find_store(root).demand_conditions(root, options)
    plan_writing(group, root, found.document if found else None)


def update(
    url: str,
    change: Callable[[ManifestGroup], ManifestGroup],
    options: StorageOptions | None = None,
    allow: AccessPolicy = ANYWHERE,
    *,
    manifest: str | None = None,
    relative_paths: bool | None = None,
) -> None:
    """Write the changes of a set as a new snapshot; unchanged references are not written again.

    Parameters
    ----------
    url, options, manifest, relative_paths
        As in `write`; by default paths are written as they were.
    change : callable
        Takes the whole set and returns the new one.
    allow : AccessPolicy
        Where the files that it refers to may lie.

    Raises
    ------
    FileNotFoundError
        There is no set.
    ConflictError
        Another writer was faster; nothing has changed.
    """
    root = url.rstrip("/")
    found = FoundSet(*open_newest(root, options))
    found.document.nodes.update(read_all_nodes(root, options, found.document))
    reader = SetReader(root, options, found.document, ReadOptions(allow=allow))
    relative = found.is_relative if relative_paths is None else relative_paths
    before = reader.read_group()
    if (after := change(before)) is not before:
        _commit(_make_document_writer(after), root, options, found, manifest, relative)


def _make_document_writer(group: ManifestGroup) -> Callable[[SnapshotWriter], Document]:
    """Return a function that writes the files of a group and returns its document."""
    return lambda writer: writer.write(group)


def _commit(
    made: Callable[[SnapshotWriter], Document],
    root: str,
    options: StorageOptions | None,
    found: FoundSet | None,
    manifest: str | None = None,
    relative_paths: bool = False,
    parts: PartsFolder | None = None,
    joins_all: bool = False,
) -> None:
    """Write the files of a snapshot, then, in one step, the document that makes it the newest."""
    find_store(root).demand_conditions(root, options)
    name, time = name_snapshot()
    name = parts.snapshot if parts else name
    before = found.document if found else None
    writer = SnapshotWriter(root, options, name, before, manifest, relative_paths, joins_all)
    try:
        document = made(writer)
        waste = check_parts(parts, document) if parts else []
        history = extend_history(root, options, before, writer.put) if before else []
        document.notes.update(snapshot=name, time=time, history=history)
        writer.put(join_snapshot_path(name), document.to_kept())
        swap(root, options, document, found.version if found else None)
    except BaseException:
        writer.undo()
        raise
    write_nodes(root, options, document, before)
    find_store(root).remove([f"{root}/{path}" for path in waste], options)


# ---------------------------------------------------------------------- upkeep


def join_tables(url: str, options: StorageOptions | None = None) -> bool:
    """Join the tables that many additions have left; say whether there were any.

    Earlier snapshots need the old tables, which stay until they expire.

    Raises
    ------
    FileNotFoundError
        There is no set.
    ConflictError
        Another writer was faster; nothing has changed.
    """
    root = url.rstrip("/")
    found = FoundSet(*open_newest(root, options))

    def read(document: Document) -> ManifestGroup:
        return SetReader(root, options, document, ReadOptions()).read_group()

    group = read(found.document)
    arrays = list_references(group, root, found.document)
    joined = {path: join_all_parts(parts) for path, parts in arrays.items()}
    if all(len(joined[path]) == sum(map(count_layers, parts)) for path, parts in arrays.items()):
        return False

    def made(writer: SnapshotWriter) -> Document:
        document = writer.write(group)
        written = list_references(read(document), root, document)
        after = {path: join_all_parts(parts) for path, parts in written.items()}
        demand_same_parts(joined, after, root)
        return document

    _commit(made, root, options, found, None, found.is_relative, joins_all=True)
    return True


def move_sources(
    url: str, options: StorageOptions | None, move: MoveFile, check: CheckMoved
) -> None:
    """Commit a snapshot that refers to moved files; tables of references stay as they are.

    Raises
    ------
    FileNotFoundError
        There is no set.
    ConflictError
        Another writer was faster; nothing has changed.
    """
    root = url.rstrip("/")
    found = FoundSet(*open_newest(root, options))
    nodes = read_all_nodes(root, options, found.document)

    def made(writer: SnapshotWriter) -> Document:
        moving = SourceMoving(writer, StoredManifests(root, options), move)
        moved = {path: moving.move_node(path, node) for path, node in nodes.items()}
        check(list(moving.moved))
        document = Document(moved, dict(found.document.notes))
        # its metadata are sound, as far as a reader sees without references
        SetReader(root, options, document, ReadOptions()).read_group()
        return document

    _commit(made, root, options, found, None, found.is_relative)


# ---------------------------------------------------------------------- history


def history(url: str, options: StorageOptions | None = None) -> list[tuple[str, str]]:
    """Return the ids and times of all snapshots, the newest last."""
    root = url.rstrip("/")
    return list_snapshots(root, options, open_newest(root, options)[0])


def expire(url: str, options: StorageOptions | None, expiry: Expiry) -> Removal:
    """Remove old snapshots, and files that only they need; say which."""
    return expire_snapshots_of(url.rstrip("/"), options, expiry)
