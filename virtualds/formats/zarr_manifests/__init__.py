"""Write the format zarr-v3: Zarr hierarchies with chunk manifests for virtual arrays.

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
from virtualds.formats.zarr import Document, join_snapshot_path, make_snapshot_id
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
    get_parts_folder,
    to_set_path,
    to_written_path,
)
from virtualds.formats.zarr_manifests.snapshots import (
    FoundSet,
    build_group,
    commit_document,
    extend_history,
    find_replaceable,
    find_set,
    open_newest,
    read_all_nodes,
    write_nodes,
)
from virtualds.formats.zarr_manifests.write_snapshot import SnapshotWriter
from virtualds.source_file import StorageOptions, scheme_of
from virtualds.stores import find_store
from virtualds.stores.access_rules import DEFAULT_POLICY, AccessPolicy

MANIFESTS = ("inline", "json", "parquet")
"""The kinds of manifests, for increasing numbers of chunks."""

PartsByPath = dict[str, list[ManifestPart]]
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
    joined: PartsByPath | None = None,
    merges: bool = True,
) -> None:
    """Write a reference set, or a new snapshot of a set: all of it, or nothing.

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
        The snapshot that was changed to the group; by default the newest, which is replaced.
    manifest : {"inline", "json", "parquet"}, optional
        The form of chunk manifests; by default by the number of chunks.
    relative_paths : bool
        Whether paths of sources are written relative to the set, where possible; by default as in
        ``base``.
    joined : dict of str to list of ManifestPart, optional
        The result of `compact`: small tables of the set are joined with adjacent tables. The
        written references are compared with these parts.
    merges : bool
        Whether small tables of the set are merged when there are many.

    Raises
    ------
    UnsupportedError
        The format cannot represent some variables; the message names all of them.
    FileExistsError
        There is something other than a set, or a set that may not be replaced.
    ConflictError
        Another writer was faster; nothing has changed.
    ValueError
        There is no such form of manifests.
    """
    root = url.rstrip("/")
    if manifest not in (None, *MANIFESTS):
        raise ValueError(f"manifest={manifest!r}: give one of {', '.join(map(repr, MANIFESTS))}")
    existing = base if base is not None else find_replaceable(root, options, replace)
    if relative_paths is None:
        relative_paths = base is not None and base.document.is_relative
    _commit(
        *(group, root, options, existing, manifest, relative_paths), joined=joined, merges=merges
    )


def compact(base: FoundSet) -> dict[str, Any] | None:
    """Return the choices with which `write` joins small tables, or None if there are none."""
    arrays = collect_references(base.group, base.root, base.document)
    joined = _join_arrays(arrays)
    if all(len(joined[path]) == sum(map(count_layers, parts)) for path, parts in arrays.items()):
        return None
    return {"joined": joined}


def _join_arrays(arrays: PartsByPath) -> PartsByPath:
    """Return the parts of all arrays, joined as far as possible."""
    return {path: join_all_parts(parts) for path, parts in arrays.items()}


def check_writable(
    group: ManifestGroup, url: str, options: StorageOptions | None = None, *, replace: bool = True
) -> None:
    """Raise the errors that `write` would raise before it writes anything."""
    root = url.rstrip("/")
    existing = find_replaceable(root, options, replace)
    find_store(root).check_conditions(root, options)
    plan_writing(group, root, existing.document if existing else None)


def read_version(
    url: str, options: StorageOptions | None = None, allow: AccessPolicy = DEFAULT_POLICY
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
    existing: FoundSet | None,
    manifest: str | None = None,
    relative_paths: bool = False,
    parts: PartsFolder | None = None,
    joined: PartsByPath | None = None,
    merges: bool = True,
) -> None:
    """Write the files of a snapshot, then the document that makes it the newest."""
    find_store(root).check_conditions(root, options)
    name, time = make_snapshot_id()
    name = parts.snapshot if parts else name
    before = existing.document if existing else None
    joins_all = joined is not None
    writer = SnapshotWriter(
        root, options, name, before, manifest, relative_paths, joins_all, merges
    )
    try:
        document = writer.write(group)
        if joined is not None:
            after = build_group(root, options, document)
            written = _join_arrays(collect_references(after, root, document))
            check_same_parts(joined, written, root)
        unneeded = list_unneeded_parts(parts, document) if parts else []
        history = extend_history(root, options, before, writer.put) if before else []
        document.notes.update(snapshot=name, time=time, history=history)
        writer.put(join_snapshot_path(name), document.to_snapshot_bytes())
    except BaseException:
        writer.undo()
        raise
    try:
        commit_document(root, options, document, existing.version if existing else None)
    except ConflictError:
        writer.undo()
        raise
    # after any other error the document may have been committed, so its files must stay
    write_nodes(root, options, document, before)
    find_store(root).remove([f"{root}/{path}" for path in unneeded], options)


# ---------------------------------------------------------------------- parts
# Several processes write parts of manifests to one set, before one process commits it. Each call
# writes its tables under a unique name, and returns arrays that refer to them. Tables become part
# of the set when a snapshot refers to them. Before that, or if the result of a call was lost, they
# are unneeded files with the id of a snapshot in their name.


class PartsFolder(NamedTuple):
    """The folder for the parts of a snapshot that is not committed yet."""

    root: str
    options: StorageOptions | None
    snapshot: str
    relative_paths: bool = False

    @property
    def folder(self) -> str:
        """The path of the folder in the set."""
        return get_parts_folder(self.snapshot)


def begin_parts(
    url: str,
    options: StorageOptions | None = None,
    *,
    replace: bool = True,
    relative_paths: bool = False,
) -> PartsFolder:
    """Return the folder to which several processes may write parts of manifests of one snapshot.

    The arguments are as in `write`.
    """
    root = url.rstrip("/")
    find_replaceable(root, options, replace)
    find_store(root).check_conditions(root, options)
    return PartsFolder(root, options, make_snapshot_id()[0], relative_paths)


def write_parts(
    arrays: Mapping[Any, ManifestArray], parts: PartsFolder
) -> dict[Any, ManifestArray]:
    """Write references that are in no set yet, and return arrays that refer to the new tables."""
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
    # write the table of files last, since all other tables add files to it
    sources = writer.write_sources(f"{folder}/sources")

    def replace_manifests(name: Any, array: ManifestArray) -> ManifestArray:
        fragments, count = list(array.fragments), len(array.pipelines)
        for number, fragment in enumerate(array.fragments):
            if (name, number) in written:
                folder, counts = written[name, number]
                rows, shape = fragment.manifest.size, fragment.manifest.shape
                table = ParquetTable(store, folder, rows, sources, count > 1, max(count, 1), counts)
                manifest = ChunkManifest.from_table(table, shape)
                fragments[number] = replace(fragment, manifest=manifest)
        return replace(array, fragments=tuple(fragments))

    return {name: replace_manifests(name, array) for name, array in pruned.items()}


def is_table_inside(table: ReferenceTable, parts: PartsFolder) -> bool:
    """Return whether a table of references is in the set to which parts belong."""
    return table.owner == parts.root


def commit_parts(group: ManifestGroup, parts: PartsFolder, *, replace: bool = True) -> None:
    """Write a set of arrays that `write_parts` returned, as `write` does."""
    existing = find_replaceable(parts.root, parts.options, replace)
    _commit(
        group,
        parts.root,
        parts.options,
        existing,
        None,
        parts.relative_paths,
        parts,
    )


def abandon_parts(parts: PartsFolder) -> None:
    """Remove the parts of a snapshot, unless the snapshot may have been committed."""
    # the snapshot is written before the commit, and kept if the response to the commit was lost
    snapshot = f"{parts.root}/{join_snapshot_path(parts.snapshot)}"
    if find_store(snapshot).find_version(snapshot, parts.options) is None:
        remove_parts(parts, is_set=find_set(parts.root, parts.options) is not None)


def list_written_parts(parts: PartsFolder) -> list[str]:
    """Return the paths of all files of parts in the set."""
    listing = find_store(parts.root).list_files(f"{parts.root}/{parts.folder}", parts.options)
    return [f"{parts.folder}/{listed.path}" for listed in listing]


def remove_parts(parts: PartsFolder, is_set: bool) -> None:
    """Remove all parts, and their parent folders if there is no set yet."""
    store = find_store(parts.root)
    files = [f"{parts.root}/{path}" for path in list_written_parts(parts)]
    if files and scheme_of(parts.root) == "file":
        # removing a file that does not exist also removes empty folders up to its parent
        parent = parts.root if is_set else parts.root.rpartition("/")[0]
        files.append(f"{parent}/{parts.snapshot}")
    store.remove(files, parts.options)


def list_unneeded_parts(parts: PartsFolder, document: Document) -> list[str]:
    """Return the files of parts that a document does not need, or raise an error for lost files."""
    existing = set(list_written_parts(parts))
    referenced = {
        path for path in _iterate_needed_paths(document) if path.startswith(f"{parts.folder}/")
    }
    if missing := sorted(referenced - existing):
        raise ReadError(
            f"{parts.root}/{missing[0]}: {len(missing)} parts of the manifests, which "
            f"workers have written, are gone, and nothing has been committed; do not remove files "
            f"of the set while it is written, and build it again"
        )
    return sorted(existing - referenced)


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
        for table_folder, count in ((folder, rows), (sources.folder, sources.rows)):
            yield from (
                f"{table_folder}/{number}.parquet" for number in range(-(-count // RECORD_SIZE))
            )
        if counts_path := read_counts(table.get("counts")).path:
            yield f"{folder}/{counts_path}"
