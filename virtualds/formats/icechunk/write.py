"""Write a group to an Icechunk store: nodes, virtual references, and native chunks."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

import numpy as np

from virtualds.arrays.group import ManifestGroup
from virtualds.chunks.columns import INLINE, Ints, find_rows
from virtualds.chunks.manifest import ChunkManifest, gather_references
from virtualds.formats.icechunk.library import (
    OpenStore,
    RequiredConfig,
    Split,
    Target,
    find_containers,
    quote_url,
)
from virtualds.formats.icechunk.references import ExistingReferences, make_group_builder
from virtualds.formats.kerchunk.records import find_same_rows
from virtualds.formats.referenced_files import collect_fingerprints, fetch_chunk
from virtualds.formats.zarr import (
    NOTES,
    PLAIN_KEYS,
    number_in_grid,
    unravel_in_grid,
)
from virtualds.formats.zarr.v3_arrays import ManifestPart, count_chunks
from virtualds.formats.zarr.write_plan import (
    PlannedArray,
    WritePlan,
    choose_grids,
    plan_writing,
    suggest_zarr_v3,
)
from virtualds.progress import count_array_chunks
from virtualds.source_file import StorageOptions
from virtualds.stores.access_rules import DEFAULT_POLICY, AccessPolicy

SPLIT_REFERENCES = 2**15
"""The approximate number of references per manifest, which bounds what an append rewrites."""
MAX_SPLITS = 32
"""Maximum number of manifests of an array per commit: Icechunk scans all references for each."""

# ---------------------------------------------------------------------- writing


def is_occupied(url: Any, options: StorageOptions | None = None, **target_options: Any) -> bool:
    """Raise an error for a branch or session that has nodes; return False if it is empty."""
    target = Target.of(url, options, **target_options)
    if target.location is not None and not target.exists():
        return False
    with target.remove_branch_on_error(keep=False):
        if nodes := target.open_store().read_documents():
            raise make_occupied_error(target, nodes)
    return False


def make_occupied_error(target: Target, nodes: Mapping[str, Any]) -> FileExistsError:
    """Return the error that lists the existing arrays that a write would remove."""
    arrays = sorted(path for path, node in nodes.items() if node.get("node_type") == "array")
    named = ", ".join(arrays[:5]) + (", ..." if len(arrays) > 5 else "")
    return FileExistsError(
        f"{target.name}: exists already; mode='w' removes from the branch {target.branch!r} all "
        f"that it holds, {len(arrays)} arrays ({named}), whoever wrote them, and keeps it only in "
        f"earlier snapshots; append_dim= appends to them, and branch= writes to another "
        f"branch"
    )


@dataclass(frozen=True)
class RepositoryVersion:
    """The version to change: a branch as it was read, or a session that the user opened."""

    target: Target
    known: ExistingReferences
    group: ManifestGroup

    def is_current(self) -> bool:
        return bool(
            self.target.open_store(may_create_branch=False).snapshot == self.known.store.snapshot
        )


def read_version(
    url: Any,
    options: StorageOptions | None = None,
    allow: AccessPolicy = DEFAULT_POLICY,
    **target_options: Any,
) -> RepositoryVersion:
    """Read a branch in order to change it; ``url`` and ``target_options`` are as in `write`."""
    target = Target.of(url, options, **target_options)
    if not target.exists():
        raise FileNotFoundError(f"{target.name}: there is no Icechunk repository")
    store = target.open_store(may_create_branch=False)
    known = ExistingReferences(store, target.repository, target.root, target.options, allow)
    return RepositoryVersion(
        target, known, make_group_builder(store, known.find_manifest).read_group(None)
    )


def compact(base: RepositoryVersion) -> dict[str, Any]:
    """Return the arguments with which `write` only makes Icechunk rewrite its manifests."""
    return {"joins": True}


def write(
    group: ManifestGroup,
    url: Any,
    options: StorageOptions | None = None,
    *,
    replace: bool = True,
    base: RepositoryVersion | None = None,
    message: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    rectilinear: bool | None = None,
    joins: bool = False,
    **target_options: Any,
) -> None:
    """Commit a snapshot, all of it or nothing.

    ``url`` may be a Repository, Session or IcechunkStore of Icechunk; the owner of a session
    commits it. A repository is created if there is none. ``target_options`` are ``branch``,
    ``create_branch``, ``config`` and ``staging_folder`` of `Target`.

    With ``rectilinear``, chunks may differ in length along an axis, which is an experimental
    feature of zarr-python that readers must turn on. By default it is used only if ``base`` uses
    it. With ``joins``, Icechunk only rewrites the manifests of ``base`` by its configuration.
    """
    if base is None:
        target = Target.of(url, options, **target_options)
        planned = _plan(group, target, bool(rectilinear))
        with target.exclusive():
            store = target.open_store(
                _find_required_config(planned, target.is_own, lambda manifest: False)
            )
            existing = store.read_documents()
            if existing and not replace:
                raise make_occupied_error(target, existing)
            if existing:
                store.clear()
            NodeWriter(store, target).write_all(planned)
            _commit(target, store, message or "Written by virtualds", metadata)
        return
    target, known = base.target, base.known
    if joins:
        with target.exclusive():
            rewrite = target.opened.rewrite_manifests
            rewrite("Manifests joined by virtualds", branch=target.branch)
        return
    nodes = known.store.read_documents()
    if rectilinear is None:
        grids = [node["chunk_grid"]["name"] for node in nodes.values() if "chunk_grid" in node]
        rectilinear = "rectilinear" in grids
    planned = _plan(group, target, rectilinear)
    required = _find_required_config(planned, target.is_own, known.is_known, nodes)
    with target.exclusive():
        store = target.open_store(required, known.store)
        store.remove(path for path in nodes if path and path not in planned.nodes)
        NodeWriter(store, target, known, nodes).write_all(planned)
        _commit(target, store, message or "Changed by virtualds", metadata)


def _commit(
    target: Target, store: OpenStore, message: str, metadata: Mapping[str, Any] | None
) -> None:
    """Commit the changes, unless the owner of the session does."""
    if target.repository is not None:
        store.commit(message, metadata)


# ---------------------------------------------------------------------- required configuration


def _find_required_config(
    planned: WritePlan,
    is_own: Callable[[str], bool],
    is_known: Callable[[Any], bool],
    nodes: Mapping[str, Any] | None = None,
) -> RequiredConfig:
    """Return the configuration that a repository needs for a plan.

    ``is_own`` returns whether the file of a url belongs to the repository, and ``is_known`` whether
    the repository already has the references of a manifest. ``nodes`` are the metadata of existing
    nodes, by path.
    """
    parts = (part for node in planned.arrays.values() for part in node.parts)
    files = (file for p in parts if not is_known(p.manifest) for file in p.manifest.sources)
    outside = dict.fromkeys(file for file in files if not is_own(file.url))
    containers = find_containers((file.url, file.options) for file in outside)
    splits: dict[str, Split] = {}
    for path, node in planned.arrays.items():
        grid = count_chunks(node.metadata)
        if not grid or not node.parts:
            continue
        group = planned.notes.get("groups", {}).get(path.rpartition("/")[0], {})
        axis = _find_append_axis(grid, node.metadata, (nodes or {}).get(path), group)
        refs_per_chunk_row = max(prod(grid) // max(grid[axis], 1), 1)
        # round up, so that there are at most MAX_SPLITS
        min_chunks = -(-grid[axis] // MAX_SPLITS)
        splits[path] = Split(axis, max(1, SPLIT_REFERENCES // refs_per_chunk_row, min_chunks))
    return RequiredConfig(containers, splits)


def _find_append_axis(
    grid: tuple[int, ...], metadata: Mapping[str, Any], existing: Any, group: Mapping[str, Any]
) -> int:
    """Return the axis along which the array grows, now or probably later, or else the first."""
    if existing is not None and "chunk_grid" in existing:
        before = count_chunks(existing)
        extended = [i for i, (n, m) in enumerate(zip(before, grid, strict=False)) if n < m]
        if extended:
            return extended[0]
    unlimited = group.get("unlimited_dims", ())
    names = metadata.get("dimension_names") or ()
    return next((axis for axis, name in enumerate(names) if name in unlimited), 0)


def _plan(group: ManifestGroup, target: Target, rectilinear: bool) -> WritePlan:
    """Return the plan for writing a group."""
    with suggest_zarr_v3(group, target.name):
        return plan_writing(
            group, target.name, format_name="icechunk", grids=choose_grids(rectilinear)
        )


@dataclass
class NodeWriter:
    """Writes nodes to a store; for existing nodes, only the changes."""

    store: Any
    target: Target
    known: ExistingReferences | None = None
    nodes: Mapping[str, Any] = field(default_factory=dict)

    def write_all(self, planned: WritePlan) -> None:
        """Write a plan, and record the fingerprints of files."""
        sources = self._collect_fingerprints(planned)
        sources = {
            url: fingerprint for url, fingerprint in sources.items() if not self.target.is_own(url)
        }
        if sources:
            root_notes = {"after": self.store.snapshot, "sources": sources, "all": True}
            planned.notes["groups"][""] = planned.notes["groups"].get("", {}) | root_notes
        for path, node in planned.nodes.items():
            self.write(path, node, planned.notes)

    def _collect_fingerprints(self, planned: WritePlan) -> dict[str, Any]:
        """Return the fingerprints of files to record."""
        arrays = planned.arrays
        all_manifests = [part.manifest for node in arrays.values() for part in node.parts]
        if self.known is None or not self.known.records_all:
            return collect_fingerprints(all_manifests, str, include_unknown=True)
        recorded = {url: tuple(fingerprint) for url, fingerprint in self.known.fingerprints.items()}
        find_new = self.known.find_new_parts
        new_parts_by_array = [
            (node.parts, find_new(node.parts, path)) for path, node in arrays.items()
        ]
        parts = (
            part
            for parts, new_parts in new_parts_by_array
            for part in (parts if new_parts is None else new_parts)
        )
        new = [part.manifest for part in parts]
        sources = collect_fingerprints(new, str, include_unknown=True)
        if any(
            recorded.get(url, fingerprint) != fingerprint for url, fingerprint in sources.items()
        ):
            # unchanged references are read only now, to check that none needs the old file
            sources = collect_fingerprints(all_manifests, str, include_unknown=True)
        return recorded | sources

    def write(
        self, path: str, node: dict[str, Any] | PlannedArray, notes: Mapping[str, Any]
    ) -> None:
        """Write a group, or an array with its chunks and references."""
        if not isinstance(node, PlannedArray):
            self._put_document(path, node, notes["groups"].get(path))
            return
        metadata = {n: v for n, v in node.metadata.items() if n != "storage_transformers"}
        metadata |= {"chunk_key_encoding": PLAIN_KEYS.to_json()}
        if node.values is not None:
            self._remove(path)
            self._put_document(path, metadata, notes["arrays"].get(path))
            chunks = (
                (f"{path}/{PLAIN_KEYS(chunk_id)}", data) for chunk_id, data in node.values.chunks
            )
            self.store.put(chunks)
            return
        changed = self._locate_changed(path, metadata, node, count_chunks(metadata))
        self._put_document(path, metadata, notes["arrays"].get(path))
        with count_array_chunks(prod(changed.grid)):
            self._put_chunks(path, changed)

    def _put_document(self, path: str, node: Mapping[str, Any], notes: Any) -> None:
        """Write the metadata of a node, with its notes."""
        extra = {NOTES: {"must_understand": False, **notes}} if notes else {}
        text = json.dumps({**node, **extra}, allow_nan=False).encode()
        self.store.put([(f"{path}/zarr.json".lstrip("/"), text)])

    def _remove(self, path: str) -> None:
        """Remove a node if it exists."""
        if path in self.nodes:
            self.store.remove([path])

    def _locate_changed(
        self, path: str, metadata: Mapping[str, Any], node: PlannedArray, grid: tuple[int, ...]
    ) -> _LocatedChunks:
        """Return the chunks to write, and remove the array if it has to be rewritten."""
        existing_grid = self._find_comparable(path, metadata, grid)
        if existing_grid is None or self.known is None:
            # gather the references before the array is removed, since they may be read from it
            located = _LocatedChunks.of(node.parts, grid)
            self._remove(path)
            return located
        if (new := self.known.find_new_parts(node.parts, path)) is not None:
            return _LocatedChunks.of(new, grid)
        located = _LocatedChunks.of(node.parts, grid)
        changed = self._find_changed(self.known, path, existing_grid, located)
        if changed is not None:
            return located.at(changed)
        self._remove(path)
        return located

    def _find_comparable(
        self, path: str, metadata: Mapping[str, Any], grid: tuple[int, ...]
    ) -> tuple[int, ...] | None:
        """Return the grid of an existing array that can be extended, or None if there is none."""
        existing = self.nodes.get(path)
        if existing is None or existing.get("node_type") != "array":
            return None
        compared = ("data_type", "codecs", "fill_value")
        grids = [node["chunk_grid"]["name"] for node in (existing, metadata)]
        if any(existing.get(n) != metadata.get(n) for n in compared) or grids[0] != grids[1]:
            return None
        before = count_chunks(existing)
        if len(before) != len(grid) or any(n > m for n, m in zip(before, grid, strict=True)):
            return None
        return before

    @staticmethod
    def _find_changed(
        known: ExistingReferences, path: str, grid: tuple[int, ...], new: _LocatedChunks
    ) -> Ints | None:
        """Return the rows of new chunks to write, or None if the array must be rewritten."""
        existing = known.find_manifest(path, grid)
        old = _LocatedChunks(grid, *gather_references(existing))
        row = find_rows(new.numbers, old.number_in(new.grid))
        if (row < 0).any():
            # chunks would have to be removed from Icechunk
            return None
        changed = np.ones(new.numbers.size, bool)
        changed[row] = ~find_same_rows(old.rows, new.rows.at(row))
        return np.flatnonzero(changed)

    def _put_chunks(self, path: str, chunks: _LocatedChunks) -> None:
        """Write native chunks, and references to all others."""
        rows, files = chunks.rows, chunks.rows.files
        native = [n for n, file in enumerate(files) if self.target.is_own(file.url)]
        is_native = np.isin(rows.file, [INLINE, *native])
        inline_rows = np.flatnonzero(is_native)
        keys = PLAIN_KEYS.list_keys(chunks.numbers[inline_rows], chunks.grid)
        self.store.put(
            (f"{path}/{name}", fetch_chunk(rows, (row,)))
            for row, name in zip(inline_rows.tolist(), keys, strict=True)
        )
        virtual = chunks.at(np.flatnonzero(~is_native))
        self.store.write_references(
            path,
            (virtual.grid, virtual.numbers),
            files,
            [quote_url(source.url) for source in files],
            (virtual.rows.file, virtual.rows.offset, virtual.rows.length),
        )


class _LocatedChunks(NamedTuple):
    """The existing chunks of an array: their ascending flat indices in its grid, and their rows."""

    grid: tuple[int, ...]
    numbers: Ints
    rows: ChunkManifest

    @classmethod
    def of(cls, parts: list[ManifestPart], grid: tuple[int, ...]) -> _LocatedChunks:
        """Locate the chunks of the parts of an array."""
        gathered = [(part, *gather_references(part.manifest)) for part in parts]
        if len(gathered) == 1 and parts[0].manifest.shape == grid:
            return cls(grid, *gathered[0][1:])
        numbers = [
            number_in_grid(unravel_in_grid(ids, part.manifest.shape, part.origin), grid)
            for part, ids, _ in gathered
        ]
        rows = [ChunkManifest.missing((0,)), *(rows for _, _, rows in gathered)]
        flat = np.concatenate([np.zeros(0, np.int64), *numbers])
        order = np.argsort(flat)
        return cls(grid, flat[order], ChunkManifest.concatenate(rows, 0).at(order))

    def at(self, rows: Ints) -> _LocatedChunks:
        """Return the chunks of the given rows."""
        return _LocatedChunks(self.grid, self.numbers[rows], self.rows.at(rows))

    def number_in(self, grid: tuple[int, ...]) -> Ints:
        """Return the flat indices of the chunks in a larger grid."""
        return number_in_grid(unravel_in_grid(self.numbers, self.grid), grid)
