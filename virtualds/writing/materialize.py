"""Copy the chunks to which a dataset refers, without decoding them, and convert sets.

There are two layouts of copies. ``content`` is a zarr-v3 set in which each chunk is a file named by
its hash, so that equal chunks are stored once, and an interrupted copy can be resumed. ``chunks``
is a plain Zarr v3 store.

A conversion between formats copies no chunks.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from virtualds.arrays.array import ManifestArray, map_manifests
from virtualds.arrays.group import ManifestGroup, ManifestVariable
from virtualds.chunks.columns import MISSING, Ints
from virtualds.chunks.manifest import ChunkManifest, iterate_references
from virtualds.datasets.decoding import make_independent_of_left_out
from virtualds.datasets.location import Location, explain_both_options, set_reader_of
from virtualds.datasets.open import open_group
from virtualds.datasets.open_options import OpenOptions
from virtualds.errors import make_unsupported_error
from virtualds.formats import GRACE, Format, replaces_by, zarr_manifests
from virtualds.formats.zarr import CHUNKS, MARKER, consolidate, parse_chunk_keys
from virtualds.formats.zarr.write_plan import PlannedArray, plan_writing
from virtualds.formats.zarr_export import list_reasons_not_plain
from virtualds.formats.zarr_manifests.snapshots import collect_needed_files, read_snapshot
from virtualds.options import check_choice, check_types, select_fields
from virtualds.progress import Advance, ProgressOption, count_progress, is_progress_shown
from virtualds.reading import StoredChunks, replace_chunks
from virtualds.source_file import SourceFile, StorageOptions, compute_checksum
from virtualds.stores import find_store
from virtualds.stores.access_rules import Allow
from virtualds.stores.store import ChangedError, explain_open_errors, explain_write_errors
from virtualds.writing import Destination, WriteOptions, estimate_cost
from virtualds.writing.edit import load_own_values

LAYOUTS = ("content", "chunks")
"""Layouts of copied chunks in the target store."""

# ---------------------------------------------------------------------- plain Zarr


def _copy_as_plain_zarr(
    group: ManifestGroup,
    root: str,
    options: StorageOptions | None,
    advance: Advance,
) -> None:
    """Copy the chunks of a group to a new plain Zarr v3 store."""
    store = find_store(root)
    nodes = plan_writing(group, root).nodes
    variables = dict(group.walk_variables())
    problems = [
        f"{path}: {reason}"
        for path, node in nodes.items()
        if isinstance(node, PlannedArray) and node.values is None
        for reason in list_reasons_not_plain(node.metadata, variables[path].data)
    ]
    if problems:
        raise make_unsupported_error(
            root,
            "plain Zarr v3",
            problems,
            "copy them with layout='content', which holds them as they are; load these variables "
            "first (ds.virtual.load()), or leave them out (ds.drop_vars)",
        )
    if store.list_files(root, options):
        raise _make_existing_store_error(root)
    store.check_conditions(root, options)
    written: list[str] = []

    def put(path: str, data: bytes) -> None:
        url = f"{root}/{path}"
        try:
            store.write_version(url, data, options, None)
        except ChangedError as error:
            # the file belongs to another writer, so it must not be removed
            raise _make_existing_store_error(root) from error
        except BaseException:
            # other files may belong to another writer, so the folder is removed only if empty
            written.append(f"{url.rpartition('/')[0]}/{secrets.token_hex(8)}")
            raise
        written.append(url)

    try:
        for path, node in nodes.items():
            if isinstance(node, PlannedArray):
                _put_chunks(path, node, put, advance)
        _put_metadata(nodes, put)
    except BaseException:
        store.remove(written, options)
        raise


def _make_existing_store_error(root: str) -> FileExistsError:
    """Return the error for a target that exists."""
    return FileExistsError(
        f"{root}: exists already, and plain chunks are written only to a new store; remove it, "
        f"or choose another name"
    )


def _put_chunks(
    path: str, node: PlannedArray, write_file: Callable[[str, bytes], None], advance: Advance
) -> None:
    """Write the chunks of an array under their Zarr keys."""
    key = parse_chunk_keys(node.metadata)
    if node.values is not None:
        for chunk_id, data in node.values.chunks:
            write_file(f"{path}/{key(chunk_id)}", data)
    for _, origin, manifest in node.parts:
        chunks = StoredChunks(manifest, path)

        def copy(
            batch: Ints,
            present: Sequence[bytes],
            chunks: StoredChunks = chunks,
            origin: tuple[int, ...] = origin,
        ) -> None:
            shape = chunks.manifest.shape
            chunk_ids = np.transpose(np.unravel_index(batch, shape)) if shape else [()] * len(batch)
            for chunk_id, data in zip(chunk_ids, present, strict=True):
                moved = tuple(int(i) + o for i, o in zip(chunk_id, origin, strict=True))
                write_file(f"{path}/{key(moved)}", data)
            advance(int(chunks.length[batch].sum()))

        chunks.read(np.flatnonzero(chunks.file != MISSING), copy)


def _put_metadata(nodes: Mapping[str, Any], write_file: Callable[[str, bytes], None]) -> None:
    """Write the metadata of all nodes, and finally the consolidated metadata of the root."""
    members = {
        path: {
            name: value
            for name, value in (node.metadata if isinstance(node, PlannedArray) else node).items()
            if name != "storage_transformers"
        }
        for path, node in nodes.items()
    }
    root = members.pop("")
    documents = {f"{path}/{MARKER}": node for path, node in members.items()}
    for path, node in (documents | {MARKER: root | consolidate(members)}).items():
        write_file(path, json.dumps(node, allow_nan=False, indent=2).encode())


# ---------------------------------------------------------------------- materialize


def materialize(
    group: ManifestGroup,
    location: Location,
    *,
    layout: str,
    mode: str,
    checksums: bool,
    progress: ProgressOption,
) -> None:
    """Copy all chunks to which a group refers; see ``ds.virtual.materialize``."""
    replaces = replaces_by(mode)
    if layout not in LAYOUTS:
        raise ValueError(f"layout={layout!r}: give one of {', '.join(map(repr, LAYOUTS))}")
    root, options = location.url.rstrip("/"), location.options
    total = _count_bytes(group) if is_progress_shown(progress) else 0
    with (
        explain_write_errors(location.url),
        count_progress(progress, "copying", total, "B") as advance,
    ):
        if layout == "chunks":
            _copy_as_plain_zarr(group, root, options, advance)
            return
        zarr_manifests.check_writable(group, root, options, replace=replaces)
        copied = group.map_variables(_ContentCopier(root, options, checksums, advance).copy)
        zarr_manifests.write(copied, root, options, replace=replaces)


def _count_bytes(group: ManifestGroup) -> int:
    """Return the total size in bytes of the chunks of a group in files."""
    return sum(
        int(rows.length[rows.file >= 0].sum())
        for array in group.list_arrays()
        for fragment in array.fragments
        for _, rows in iterate_references(fragment.manifest)
    )


# ---------------------------------------------------------------------- chunks named by hash


class _ContentCopier:
    """Writes chunks to a set, each named by its hash, and reports progress in bytes."""

    def __init__(
        self, root: str, options: StorageOptions | None, checksums: bool, advance: Advance
    ) -> None:
        self._root, self._options, self._checksums = root, options, checksums
        self._advance = advance
        self._present = _list_present_chunks(root, options)

    def copy(self, path: str, variable: ManifestVariable) -> ManifestVariable:
        """Copy the chunks of a variable, and return it with references to the copies."""
        array = variable.data
        if not isinstance(array, ManifestArray):
            return variable
        copied = map_manifests(array, lambda m: self._copy_manifest(StoredChunks(m, path)))
        return replace(variable, data=copied)

    def _copy_manifest(self, chunks: StoredChunks) -> ChunkManifest:
        """Copy the chunks in files, and return the manifest of the copies."""
        is_in_file = chunks.file >= 0
        # many threads append to this list
        copied: list[int] = []

        def copy_chunk(data: bytes) -> tuple[str, int]:
            path = self._put(data)
            copied.append(len(data))
            self._advance(len(data))
            return path, compute_checksum(data) if self._checksums else 0

        chunk_ids, copies, inverse = chunks.read_distinct(is_in_file, copy_chunk)
        # report the bytes of equal references, which were copied only once
        self._advance(int(chunks.length[is_in_file].sum()) - sum(copied))
        # files named by a hash need no fingerprint
        files = [SourceFile(f"{self._root}/{path}", options=self._options) for path, _ in copies]
        columns: dict[str, Any] = {"file": inverse}
        if self._checksums:
            columns["checksum"] = np.array([checksum for _, checksum in copies], np.uint64)[inverse]
        old = chunks.manifest
        return replace_chunks(old, chunk_ids, files, old.inline, offset=0, **columns)

    def _put(self, data: bytes) -> str:
        """Write bytes to a file named by their hash, unless it exists, and return the path."""
        digest = hashlib.sha256(data).hexdigest()
        path = f"{CHUNKS}/{digest[:2]}/{digest}"
        # compare sizes, since a killed writer may leave an incomplete file in some stores
        if self._present.get(path) != len(data):
            url = f"{self._root}/{path}"
            find_store(url).write_file(url, data, self._options)
            self._present[path] = len(data)
        return path


def _list_present_chunks(root: str, options: StorageOptions | None) -> dict[str, int | None]:
    """Return the sizes of the chunks in a set, by path.

    Old chunks that the newest snapshot does not need are left out, since a process that expires
    snapshots may be about to remove them.
    """
    listed = find_store(root).list_files(f"{root}/{CHUNKS}", options)
    present = {f"{CHUNKS}/{stored.path}": stored for stored in listed}
    try:
        document = read_snapshot(root, options, None)
    except (FileNotFoundError, NotADirectoryError):
        return {path: stored.file.size for path, stored in present.items()}
    used = collect_needed_files(root, options, [document])
    recent = time.time() - GRACE.total_seconds() / 2
    return {
        path: stored.file.size
        for path, stored in present.items()
        if path in used or stored.modified is None or stored.modified > recent
    }


# ---------------------------------------------------------------------- convert


def convert(
    source: Any,
    target: str | os.PathLike[str],
    *,
    format: str | None = None,
    mode: str = "w-",
    drop_variables: str | Iterable[str] | None = None,
    parser: str | None = None,
    parser_options: Mapping[str, Any] | None = None,
    on_error: str = "raise",
    allow: Allow = None,
    storage_options: Mapping[str, Any] | None = None,
    target_options: Mapping[str, Any] | None = None,
    **choices: Any,
) -> None:
    """Convert a source file or a reference set, with all groups, to a set of another format.

    Only values that are stored in the set itself are read, and references in records are read one
    record at a time. Nothing is decoded: coordinates that `open_virtual_datatree` would load stay
    references.

    Parameters
    ----------
    source : str or path, or an object
        A source file, or a reference set in any format, as for `open_virtual_dataset`.
    target : str or path
        As for ``ds.virtual.to_manifest``.
    format : str, optional
        Name of the target format, if the suffix does not give it.
    mode : {"w-", "w"}
        ``"w-"`` creates the set, ``"w"`` creates or replaces it.
    drop_variables : str or iterable of str, optional
        Variables to leave out of every group that has them.
    parser, parser_options
        Name and options of the format of a source file, as in `open_virtual_datatree`.
    on_error : {"raise", "skip"}
        What to do with a variable that cannot be read, as in `open_virtual_datatree`.
    allow : str, path, or iterable of them, optional
        Folders in which the files of the set must lie, as in `open_virtual_dataset`.
    storage_options, target_options : dict, optional
        Access options of the source and of the target, for fsspec.
    **choices
        Options of the target format, and how to write what it cannot store:
        ``on_unsupported="rewrite"``, ``main_encoding=``, ``rewrite_limit=`` and ``progress=``, as
        for ``ds.virtual.to_manifest``.

    Raises
    ------
    UnsupportedError
        The format cannot store the set; nothing has been written.
    FormatError
        The format of the source is unknown, or the source is damaged.
    FileNotFoundError
        There is no such file or set.
    FileExistsError
        The target exists and ``mode`` is ``"w-"``.

    Examples
    --------
    >>> convert("refs.json", "refs.zarr")  # doctest: +SKIP
    """
    arguments = locals() | {"below": True}
    check_types({"target_options": target_options})
    check_choice("on_error", on_error, ("raise", "skip"))
    replaces_by(mode)
    options = WriteOptions(format, mode, choices=choices)
    opening = select_fields(OpenOptions, arguments)
    with explain_both_options(target):
        destination = Destination.of(Location.of(target, target_options), options, convert)
        destination.check_not_existing()
        group = _read_group(Location.of(source, storage_options), opening)
        destination.create(lambda: group)


def estimate_conversion(
    source: str | os.PathLike[str],
    format: str,
    *,
    drop_variables: str | Iterable[str] | None = None,
    parser: str | None = None,
    parser_options: Mapping[str, Any] | None = None,
    on_error: str = "raise",
    allow: Allow = None,
    storage_options: Mapping[str, Any] | None = None,
    main_encoding: Mapping[str, Any] | None = None,
    **choices: Any,
) -> pd.DataFrame:
    """Return the `CostTable` of `convert` with ``on_unsupported="rewrite"``.

    Parameters are those of `convert`; nothing is written.
    """
    opening = select_fields(OpenOptions, locals() | {"below": True})
    group = _read_group(Location.of(source, storage_options), opening)
    return estimate_cost(group, format, main_encoding, **choices)


def _read_group(origin: Location, opening: OpenOptions) -> ManifestGroup:
    """Return the group of a source or a set, with values loaded that are stored in the set."""
    with explain_open_errors(origin.url), origin.cache_scan():
        opened = reader, _ = set_reader_of(origin, opening.parser)
        group = open_group(origin, opening, opened)
    group = make_independent_of_left_out(group)
    if isinstance(reader, Format):
        group = load_own_values(group, f"{origin.url.rstrip('/')}/")
    return group.without_notes()
