"""The format zarr-v3: Zarr hierarchies with chunk manifests for virtual arrays.

The layout is specified in ``docs/reference/formats/zarr-v3.md``, after the "Manifest storage
transformer" proposal (zarr-specs issue 287) and the Zarr core specification 3. The root
``zarr.json`` has the metadata of all nodes; a new snapshot is committed by replacing it. Other
files of a snapshot are never overwritten.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup
from virtualds.chunks.columns import ReferenceTable
from virtualds.chunks.manifest import ChunkManifest
from virtualds.errors import ConflictError, ReadError
from virtualds.formats.zarr.document import Document, join_snapshot_path, name_snapshot
from virtualds.formats.zarr.v3_arrays import ManifestPart
from virtualds.formats.zarr.write_plan import collect_references, plan_writing
from virtualds.formats.zarr_manifests.join_parts import (
    check_same_parts,
    count_layers,
    join_all_parts,
)
from virtualds.formats.zarr_manifests.manifests import iterate_manifest_parts, read_source_table
from virtualds.formats.zarr_manifests.parquet_table import (
    RECORD_SIZE,
    Counts,
    ParquetTable,
    TableWriter,
    read_counts,
)
from virtualds.formats.zarr_manifests.set_files import (
    SetFiles,
    join_parts_folder,
    to_set_path,
    to_written_path,
)
from virtualds.formats.zarr_manifests.snapshots import (
    FoundSet,
    commit_document,
    extend_history,
    find_replaceable,
    find_set,
    open_newest,
    read_all_nodes,
    read_document,
    write_nodes,
)
from virtualds.formats.zarr_manifests.write_snapshot import SnapshotWriter
from virtualds.source_file import StorageOptions
from virtualds.stores import find_store
from virtualds.stores.access_rules import ANYWHERE, AccessPolicy
from virtualds.urls import scheme_of

MANIFESTS = ("inline", "json", "parquet")
"""The kinds of manifests, for increasing numbers of chunks."""

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

    References and values that the set already has are not written again.

    Parameters
    ----------
    group : ManifestGroup
    url : str
        The url of the folder.
    options : StorageOptions, optional
        Access options of the target.
    replace : bool
        Whether an existing set may be replaced. Any other file of this name is never replaced.
    base : FoundSet, optional
        The snapshot from which the group was made, and which it follows; by default the newest.
    manifest : {"inline", "json", "parquet"}, optional
        The form of chunk manifests; by default by the number of chunks.
    relative_paths : bool
        Whether paths of sources are written relative to the set, where possible; by default as in
        ``base``.
    joined : dict of str to list of ManifestPart, optional
        What `compact` returned: small tables of the set are rewritten, joined with adjacent ones,
        and must have the same references.

    Raises
    ------
    UnsupportedError
        The format cannot represent some variables; all of them are named.
    FileExistsError
        The name is taken by something that is not a set, or by a set that may not be replaced.
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
    arrays = collect_references(base.group, base.root, base.document)
    joined = _join_arrays(arrays)
    if all(len(joined[path]) == sum(map(count_layers, parts)) for path, parts in arrays.items()):
        return None
    return {"joined": joined}


def _join_arrays(arrays: Joined) -> Joined:
    """Return the parts of all arrays, joined as far as possible."""
    return {path: join_all_parts(parts) for path, parts in arrays.items()}


def check_writable(
    group: ManifestGroup, url: str, options: StorageOptions | None = None, *, replace: bool = True
) -> None:
    """Raise the errors that `write` would raise before it writes anything."""
    root = url.rstrip("/")
    found = find_replaceable(root, options, replace)
    find_store(root).check_conditions(root, options)
    plan_writing(group, root, found.document if found else None)


def read_version(
    url: str, options: StorageOptions | None = None, allow: AccessPolicy = ANYWHERE
) -> FoundSet:
    """Read the newest snapshot of a set in order to change it."""
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
    find_store(root).check_conditions(root, options)
    name, time = name_snapshot()
    name = parts.snapshot if parts else name
    before = found.document if found else None
    joins_all = joined is not None
    writer = SnapshotWriter(root, options, name, before, manifest, relative_paths, joins_all)
    try:
        document = writer.write(group)
        if joined is not None:
            after = read_document(root, options, document)
            written = _join_arrays(collect_references(after, root, document))
            check_same_parts(joined, written, root)
        waste = check_parts(parts, document) if parts else []
        history = extend_history(root, options, before, writer.put) if before else []
        document.notes.update(snapshot=name, time=time, history=history)
        writer.put(join_snapshot_path(name), document.to_snapshot_bytes())
    except BaseException:
        writer.undo()
        raise
    try:
        commit_document(root, options, document, found.version if found else None)
    except ConflictError:
        writer.undo()
        raise
    # after any other error the root may be the new one, or still become it, so its files must stay
    write_nodes(root, options, document, before)
    find_store(root).remove([f"{root}/{path}" for path in waste], options)


# ---------------------------------------------------------------------- parts
# Several processes write parts of manifests to one set, before one process commits it. Each call
# writes its own tables under a unique name, and returns arrays that refer to them. Tables become
# part of the set once a snapshot refers to them. Until then, and after calls whose result was lost,
# they are unneeded files with the id of a snapshot in their name.


class PartsFolder(NamedTuple):
    """The folder of the parts of a snapshot that is not committed yet."""

    root: str
    options: StorageOptions | None
    snapshot: str
    relative_paths: bool = False

    @property
    def folder(self) -> str:
        """The path of the folder in the set."""
        return join_parts_folder(self.snapshot)


def begin_parts(
    url: str,
    options: StorageOptions | None = None,
    *,
    replace: bool = True,
    relative_paths: bool = False,
) -> PartsFolder:
    """Return the folder to which several processes may write parts of manifests of one snapshot.

    The arguments are those of `write`.
    """
    root = url.rstrip("/")
    find_replaceable(root, options, replace)
    find_store(root).check_conditions(root, options)
    return PartsFolder(root, options, name_snapshot()[0], relative_paths)


def write_parts(
    arrays: Mapping[Any, ManifestArray], parts: PartsFolder
) -> dict[Any, ManifestArray]:
    """Write references that are not in a set yet; return arrays that refer to the new tables."""
    folder, store = (
        f"{parts.folder}/{secrets.token_hex(8)}",
        SetFiles(parts.root, parts.options),
    )

    def put(path: str, data: bytes) -> None:
        find_store(parts.root).write_file(f"{parts.root}/{path}", data, parts.options)

    writer = TableWriter(
        put,
        lambda url: to_written_path(parts.root, url, relative=parts.relative_paths),
    )
    pruned = {name: array.prune() for name, array in arrays.items()}
    written: dict[tuple[Any, int], tuple[str, Counts]] = {}
    for name, array in pruned.items():
        for number, fragment in enumerate(array.fragments):
            if not fragment.manifest.is_in_set:
                table, loaded = f"{folder}/{len(written)}", fragment.manifest.loaded()
                counts = writer.write_table(table, loaded, len(array.pipelines) > 1, lambda _: None)
                written[name, number] = table, counts
    # written last, since all tables add files to it
    sources = writer.write_sources(f"{folder}/sources")

    def moved(name: Any, array: ManifestArray) -> ManifestArray:
        fragments, count = list(array.fragments), len(array.pipelines)
        for number, fragment in enumerate(array.fragments):
            if (name, number) in written:
                folder, counts = written[name, number]
                rows, shape = fragment.manifest.size, fragment.manifest.shape
                table = ParquetTable(store, folder, rows, sources, count > 1, max(count, 1), counts)
                manifest = ChunkManifest.from_table(table, shape)
                fragments[number] = replace(fragment, manifest=manifest)
        return replace(array, fragments=tuple(fragments))

    return {name: moved(name, array) for name, array in pruned.items()}


def is_table_inside(table: ReferenceTable, parts: PartsFolder) -> bool:
    """Return whether a table of references is in the set to which the parts belong."""
    return table.owner == parts.root


def commit_parts(group: ManifestGroup, parts: PartsFolder, *, replace: bool = True) -> None:
    """Write a set from arrays that `write_parts` returned, as `write` does."""
    found = find_replaceable(parts.root, parts.options, replace)
    _commit(
        group,
        parts.root,
        parts.options,
        found,
        None,
        parts.relative_paths,
        parts,
    )


def abandon_parts(parts: PartsFolder) -> None:
    """Remove the parts of a snapshot, unless the snapshot exists, or may still be committed."""
    # it is written before the commit, and remains if the response to the commit was lost
    kept = f"{parts.root}/{join_snapshot_path(parts.snapshot)}"
    if find_store(kept).find_version(kept, parts.options) is None:
        remove_parts(parts, is_set=find_set(parts.root, parts.options) is not None)


def list_written_parts(parts: PartsFolder) -> list[str]:
    """Return the paths of all files of parts in the set."""
    found = find_store(parts.root).list_files(f"{parts.root}/{parts.folder}", parts.options)
    return [f"{parts.folder}/{listed.path}" for listed in found]


def remove_parts(parts: PartsFolder, is_set: bool) -> None:
    """Remove all parts, and, if there is no set yet, their parent folders."""
    store = find_store(parts.root)
    files = [f"{parts.root}/{path}" for path in list_written_parts(parts)]
    if files and scheme_of(parts.root) == "file":
        # an unused name, so that empty folders up to this one are removed
        above = parts.root if is_set else parts.root.rpartition("/")[0]
        files.append(f"{above}/{parts.snapshot}")
    store.remove(files, parts.options)


def check_parts(parts: PartsFolder, document: Document) -> list[str]:
    """Return the files of parts that a document does not need; raise an error if one is missing."""
    there = set(list_written_parts(parts))
    needed = {
        path for path in _iterate_needed_paths(document) if path.startswith(f"{parts.folder}/")
    }
    if lost := sorted(needed - there):
        raise ReadError(
            f"{parts.root}/{lost[0]}: {len(lost)} parts of the manifests are gone that workers "
            f"have written, nothing has been committed; do not remove files of the set while it "
            f"is written, and build it again"
        )
    return sorted(there - needed)


def _iterate_needed_paths(document: Document) -> Iterator[str]:
    """Yield the paths of all records of the tables of a document."""
    for path, part in iterate_manifest_parts(document.nodes):
        if (table := part.get("table")) is None:
            continue
        folder, sources = (
            to_set_path(path, table["path"]),
            read_source_table(path, table["sources"]),
        )
        rows = table["chunks" if "begins" in table else "rows"]
        for of, count in ((folder, rows), (sources.folder, sources.rows)):
            yield from (f"{of}/{number}.parquet" for number in range(-(-count // RECORD_SIZE)))
        if path_of_counts := read_counts(table.get("counts")).path:
            yield f"{folder}/{path_of_counts}"
