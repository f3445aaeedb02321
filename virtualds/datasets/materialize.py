"""Copies the bytes that a dataset refers to, without decoding them.

There are two layouts. ``content`` is a zarr-v3 set that holds each chunk under its hash. So equal
chunks are stored once, and a copy that was interrupted goes on where it stopped. ``chunks`` is a
plain Zarr v3 store: every chunk lies where any reader of Zarr looks for it.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup, ManifestVariable
from virtualds.chunks.columns import COLUMNS
from virtualds.chunks.manifest import ChunkManifest
from virtualds.chunks.projection import Ints
from virtualds.chunks.reference_table import iterate_references
from virtualds.datasets.copy_plain_zarr import ManifestChunks, copy_as_plain_zarr
from virtualds.datasets.location import Location
from virtualds.formats import GRACE, replaces_by, zarr_manifests
from virtualds.formats.zarr.document import CHUNKS
from virtualds.formats.zarr_manifests.snapshots import list_needed_files, read_snapshot
from virtualds.progress import Advance, ProgressOption, count_progress, is_shown
from virtualds.reading.threads import run_all
from virtualds.source_file import SourceFile, StorageOptions, checksum_of
from virtualds.stores import find_store
from virtualds.stores.store import explain_write_errors


def materialize(
    group: ManifestGroup,
    location: Location,
    *,
    layout: str,
    mode: str,
    checksums: bool,
    progress: ProgressOption,
) -> None:
    """Copy all bytes that a group refers to; see ``ds.virtual.materialize``."""
    replaces = replaces_by(mode)
    if layout not in LAYOUTS:
        raise ValueError(f"layout={layout!r}: give one of {', '.join(map(repr, LAYOUTS))}")
    root = location.url.rstrip("/")
    total = _count_bytes(group) if is_shown(progress) else 0
    with (
        explain_write_errors(location.url),
        count_progress(progress, "copying", total, "B") as advance,
    ):
        LAYOUTS[layout](group, root, location.options, checksums, replaces, advance)


def _count_bytes(group: ManifestGroup) -> int:
    """Return how many bytes of files all references of a group name."""
    arrays = (v.data for _, part in group.walk() for v in part.variables.values())
    return sum(
        int(rows.length[rows.file >= 0].sum())
        for array in arrays
        if isinstance(array, ManifestArray)
        for fragment in array.fragments
        for _, rows in iterate_references(fragment.manifest)
    )


# ---------------------------------------------------------------------- by content


class _CopiedChunk(NamedTuple):
    """A chunk in the set: its path, which contains its hash, its length and its checksum."""

    path: str
    length: int
    checksum: int


class _ContentCopier:
    """Writes chunks into a set, each under its hash.

    Parameters
    ----------
    root : str
        The url of the set.
    options : StorageOptions, optional
    checksums : bool
        Whether references to the copies have checksums.
    advance : callable
        Takes the bytes that have just been copied.
    """

    def __init__(
        self, root: str, options: StorageOptions | None, checksums: bool, advance: Advance
    ) -> None:
        self._root, self._options, self._checksums = root, options, checksums
        self._advance = advance
        self._present = _list_present_chunks(root, options)

    def copy_group(self, group: ManifestGroup, path: str = "") -> ManifestGroup:
        """Copy the chunks of a group, and return a group that refers to the copies."""
        prefix = f"{path}/" if path else ""
        variables = {n: self._copy_variable(prefix + n, v) for n, v in group.variables.items()}
        groups = {n: self.copy_group(g, prefix + n) for n, g in group.groups.items()}
        return replace(group, variables=variables, groups=groups)

    def _copy_variable(self, path: str, variable: ManifestVariable) -> ManifestVariable:
        array = variable.data
        if not isinstance(array, ManifestArray):
            return variable
        fragments = tuple(
            replace(f, manifest=self._copy_manifest(ManifestChunks(f.manifest, path)))
            for f in array.fragments
        )
        return replace(variable, data=replace(array, fragments=fragments))

    def _copy_manifest(self, references: ManifestChunks) -> ChunkManifest:
        ids, which = references.find_distinct()
        copies: dict[int, _CopiedChunk] = {}

        def copy(batch: Ints) -> None:
            for one, data in zip(batch.tolist(), references.fetch(batch), strict=True):
                copies[one] = self._put(data)
            self._advance(int(references.length[batch].sum()))

        run_all(references.split_batches(ids), copy)
        # equal references are copied once
        every = int(references.length[references.file >= 0].sum())
        self._advance(every - int(references.length[ids].sum()))
        return self._refer_to_copies(references, [copies[one] for one in ids.tolist()], which)

    def _put(self, data: bytes) -> _CopiedChunk:
        """Write bytes under their hash, unless the set has them already."""
        digest = hashlib.sha256(data).hexdigest()
        path = f"{CHUNKS}/{digest[:2]}/{digest}"
        # in some stores a writer that is killed leaves an incomplete file
        if self._present.get(path) != len(data):
            url = f"{self._root}/{path}"
            find_store(url).write_file(url, data, self._options)
            self._present[path] = len(data)
        return _CopiedChunk(path, len(data), checksum_of(data) if self._checksums else 0)

    def _refer_to_copies(
        self, references: ManifestChunks, copies: list[_CopiedChunk], which: Ints
    ) -> ChunkManifest:
        """Return the manifest, with the copies in place of the chunks in files."""
        old = references.manifest
        there = references.file >= 0
        numbers = {path: n for n, path in enumerate(dict.fromkeys(c.path for c in copies))}
        columns = {name: getattr(old, name).ravel().copy() for name in COLUMNS}
        columns["file"][there] = np.array([numbers[c.path] for c in copies], np.int32)[which]
        columns["offset"][there] = 0
        if self._checksums:
            columns["checksum"][there] = np.array([c.checksum for c in copies], np.uint64)[which]
        # the files need no fingerprints: their names are hashes
        files = [SourceFile(f"{self._root}/{path}", options=self._options) for path in numbers]
        shaped = {name: column.reshape(old.shape) for name, column in columns.items()}
        return ChunkManifest.build(old.shape, files=files, inline=old.inline, **shaped)


def _list_present_chunks(root: str, options: StorageOptions | None) -> dict[str, int | None]:
    """Return the sizes of the chunks in a set, by path.

    This leaves out old chunks that the newest snapshot does not need: another process that expires
    snapshots may be about to remove them.
    """
    listed = find_store(root).list_files(f"{root}/{CHUNKS}", options)
    found = {f"{CHUNKS}/{one.path}": one for one in listed}
    try:
        document = read_snapshot(root, options, None)
    except (FileNotFoundError, NotADirectoryError):
        return {path: one.file.size for path, one in found.items()}
    needed = set(list_needed_files(root, options, document))
    recent = time.time() - GRACE.total_seconds() / 2
    return {
        path: one.file.size
        for path, one in found.items()
        if path in needed or one.modified is None or one.modified > recent
    }


def _copy_by_content(
    group: ManifestGroup,
    root: str,
    options: StorageOptions | None,
    checksums: bool,
    replaces: bool,
    advance: Advance,
) -> None:
    """Write a zarr-v3 set of a group that holds all chunks."""
    zarr_manifests.check_writable(group, root, options, replace=replaces)
    copied = _ContentCopier(root, options, checksums, advance).copy_group(group)
    zarr_manifests.write(copied, root, options, replace=replaces)


LAYOUTS: dict[
    str, Callable[[ManifestGroup, str, StorageOptions | None, bool, bool, Advance], None]
] = {
    "content": _copy_by_content,
    "chunks": copy_as_plain_zarr,
}
"""The function that copies a group, by layout."""
