"""The format zarr-v3: Zarr hierarchies with chunk manifests for virtual arrays.

The layout is specified in ``docs/reference/formats/zarr-v3.md``, after the "Manifest storage
transformer" proposal (zarr-specs issue 287) and the Zarr core specification 3. The root
``zarr.json`` holds the metadata of all nodes; replacing it is the one step that makes a new
snapshot. Other files that a snapshot needs are never written twice.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from virtualds.arrays.group import ManifestGroup
from virtualds.errors import ConflictError
from virtualds.formats import Expiry, ReadOptions, Removal
from virtualds.formats.zarr.document import join_snapshot_path, name_snapshot
from virtualds.formats.zarr.v3_arrays import ManifestPart
from virtualds.formats.zarr.write_plan import list_references, plan_writing
from virtualds.formats.zarr_manifests.join_parts import (
    count_layers,
    demand_same_parts,
    join_all_parts,
)
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

Joined = dict[str, list[ManifestPart]]
"""The parts of the manifests of arrays, by path."""


def write(
    group: ManifestGroup,
    url: str,
    options: StorageOptions | None = None,
    *,
    replace: bool = True,
    base: FoundSet | None = None,
    manifest: str | None = None,
    relative_paths: bool | None = None,
    joined: Joined | None = None,
) -> None:
    """Write a reference set, or a new snapshot of one: all of it, or nothing.

    References and values that the set holds already are not written again.

    Parameters
    ----------
    group : ManifestGroup
    url : str
        Of the folder.
    options : StorageOptions, optional
        Access options of the target.
    replace : bool
        Whether an existing set may be replaced. Anything else of this name is left alone.
    base : FoundSet, optional
        The snapshot that the group was made of, and that it follows; by default the newest.
    manifest : {"inline", "json", "parquet"}, optional
        The form of chunk manifests; by default by the number of chunks.
    relative_paths : bool
        Whether paths of sources are written relative to the set, where they can be; by default as
        in ``base``.
    joined : dict of str to list of ManifestPart, optional
        What `compact` returned: small tables of the set are written again, joined with their
        neighbours, and must hold the same references.

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
    found = base if base is not None else find_replaceable(root, options, replace)
    if relative_paths is None:
        relative_paths = base is not None and base.document.is_relative
    _commit(group, root, options, found, manifest, relative_paths, joined=joined)


def compact(base: FoundSet) -> dict[str, Any] | None:
    """Return the choices with which `write` joins the tables that many additions have left."""
    arrays = list_references(base.group, base.root, base.document)
    joined = _join_arrays(arrays)
    if all(len(joined[path]) == sum(map(count_layers, parts)) for path, parts in arrays.items()):
        return None
    return {"joined": joined}


def _join_arrays(arrays: Joined) -> Joined:
    """Return the parts of all arrays, joined as far as they can be."""
    return {path: join_all_parts(parts) for path, parts in arrays.items()}


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
    _commit(group, place.root, place.options, found, None, place.relative_paths, place)


def abandon_parts(place: PartsFolder) -> None:
    """Remove the parts written for a snapshot, unless the snapshot exists, or may come to exist."""
    # it is written before the commit, and stays where the answer to that was lost
    kept = f"{place.root}/{join_snapshot_path(place.snapshot)}"
    if find_store(kept).find_version(kept, place.options) is None:
        remove_parts(place, is_set=find_set(place.root, place.options) is not None)


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


def read_version(
    url: str, options: StorageOptions | None = None, allow: AccessPolicy = ANYWHERE
) -> FoundSet:
    """Read the newest snapshot of a set in order to change it.

    Raises
    ------
    FileNotFoundError
        There is no set.
    """
    root = url.rstrip("/")
    document, version = open_newest(root, options)
    nodes = read_all_nodes(root, options, document)
    return FoundSet(root, options, replace(document, nodes=nodes), version, allow)


def _commit(
    group: ManifestGroup,
    root: str,
    options: StorageOptions | None,
    found: FoundSet | None,
    manifest: str | None = None,
    relative_paths: bool = False,
    parts: PartsFolder | None = None,
    joined: Joined | None = None,
) -> None:
    """Write the files of a snapshot, then, in one step, the document that makes it the newest."""
    find_store(root).demand_conditions(root, options)
    name, time = name_snapshot()
    name = parts.snapshot if parts else name
    before = found.document if found else None
    joins_all = joined is not None
    writer = SnapshotWriter(root, options, name, before, manifest, relative_paths, joins_all)
    try:
        document = writer.write(group)
        if joined is not None:
            after = SetReader(root, options, document, ReadOptions()).read_group()
            written = _join_arrays(list_references(after, root, document))
            demand_same_parts(joined, written, root)
        waste = check_parts(parts, document) if parts else []
        history = extend_history(root, options, before, writer.put) if before else []
        document.notes.update(snapshot=name, time=time, history=history)
        writer.put(join_snapshot_path(name), document.to_kept())
    except BaseException:
        writer.undo()
        raise
    try:
        swap(root, options, document, found.version if found else None)
    except ConflictError:
        writer.undo()
        raise
    # after any other error the root may be the new one, or still become it: its files stay
    write_nodes(root, options, document, before)
    find_store(root).remove([f"{root}/{path}" for path in waste], options)


# ---------------------------------------------------------------------- history


def history(url: str, options: StorageOptions | None = None) -> list[tuple[str, str]]:
    """Return the ids and times of all snapshots, the newest last."""
    root = url.rstrip("/")
    return list_snapshots(root, options, open_newest(root, options)[0])


def expire(url: str, options: StorageOptions | None, expiry: Expiry) -> Removal:
    """Remove old snapshots, and files that only they need; say which."""
    return expire_snapshots_of(url.rstrip("/"), options, expiry)
