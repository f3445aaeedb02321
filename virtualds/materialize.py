"""Copies of the bytes that a dataset refers to, as they are: nothing is decoded.

Two layouts. ``content`` is a zarr-v3 set whose chunks lie inside it under their own hash, so that
equal chunks lie there once, and what an interrupted copy has brought over is not copied again.
``chunks`` is a plain Zarr v3 store: every chunk lies where any reader of Zarr looks for it.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

import numpy as np

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup, ManifestVariable
from virtualds.chunks.columns import COLUMNS, INLINE
from virtualds.chunks.manifest import ChunkManifest
from virtualds.chunks.projection import Ints
from virtualds.codecs.codec import OURS
from virtualds.codecs.shuffle import Shuffle
from virtualds.errors import ReadError, cannot_hold
from virtualds.formats import replaces_by, zarr_manifests
from virtualds.formats.zarr.chunk_keys import chunk_key
from virtualds.formats.zarr.document import CHUNKS, MARKER, consolidated
from virtualds.formats.zarr.v2_obstacles import obstacles
from virtualds.formats.zarr.v3_arrays import is_extended
from virtualds.formats.zarr.write_plan import PlannedArray, plan
from virtualds.formats.zarr_manifests.snapshots import GRACE, needed_files, opened
from virtualds.reading.threads import cores, run_all
from virtualds.source_file import SourceFile, StorageOptions, checksum_of, mismatch
from virtualds.stores import store_for
from virtualds.stores.store import ChangedError, StoreError

BATCH_BYTES, BATCH_CHUNKS = 2**26, 4096
"""What is held in memory at a time, unless one chunk alone is more."""


def materialize(
    group: ManifestGroup,
    url: str,
    options: StorageOptions | None = None,
    *,
    layout: str = "content",
    mode: str = "w-",
    checksums: bool = True,
) -> None:
    """Copy all bytes that a group refers to; see ``ds.virtual.materialize``."""
    replaces = replaces_by(mode)
    if layout not in LAYOUTS:
        raise ValueError(f"layout {layout!r}: there are {', '.join(map(repr, LAYOUTS))}")
    LAYOUTS[layout](group, url.rstrip("/"), options, checksums, replaces)


# ---------------------------------------------------------------------- reading bytes


class _References:
    """The chunks of a manifest, in C order.

    Parameters
    ----------
    manifest : ChunkManifest
    name : str
        What errors call the array.
    """

    def __init__(self, manifest: ChunkManifest, name: str) -> None:
        self.manifest = manifest.loaded()
        self.name = name
        self.file, self.offset, self.length, _, self.checksum = (
            getattr(self.manifest, column).ravel() for column in COLUMNS
        )

    def distinct(self) -> tuple[Ints, Ints]:
        """Return one chunk for every range that chunks lie in, and for each chunk which one.

        The latter counts the former, and only chunks that lie in files.
        """
        there = np.flatnonzero(self.file >= 0)
        columns = (self.file, self.offset, self.length, self.checksum)
        rows = np.stack([column[there].astype(np.int64) for column in columns], axis=1)
        _, first, inverse = np.unique(rows, axis=0, return_index=True, return_inverse=True)
        return there[first], inverse.ravel()

    def batches(self, ids: Ints) -> Iterator[Ints]:
        """Yield chunks that lie in one file, as many as may be held in memory at a time."""
        ordered = ids[np.lexsort((self.offset[ids], self.file[ids]))]
        most = BATCH_BYTES // cores()
        batch: list[int] = []
        file = nbytes = 0
        for one in ordered.tolist():
            full = len(batch) == BATCH_CHUNKS or nbytes + int(self.length[one]) > most
            if batch and (full or self.file[one] != file):
                yield np.array(batch)
                batch, nbytes = [], 0
            file = self.file[one]
            batch.append(one)
            nbytes += int(self.length[one])
        if batch:
            yield np.array(batch)

    def fetch(self, batch: Ints) -> Sequence[bytes]:
        """Return the bytes of chunks of one file, or of some that are held inline.

        Raises
        ------
        ReadError
            They cannot be had, have changed, or are not those of which there is a checksum.
        """
        number = int(self.file[batch[0]])
        offsets, lengths = self.offset[batch].tolist(), self.length[batch].tolist()
        if number == INLINE:
            return [self.manifest.inline[k] for k in offsets]
        file = self.manifest.files[number]
        ranges = list(zip(offsets, lengths, strict=True))
        try:
            found = store_for(file.url).get_ranges(file, ranges)
        except StoreError as error:
            raise self._error(int(batch[error.item]), str(error)) from error
        for one, data, expected in zip(batch, found, self.checksum[batch].tolist(), strict=True):
            if reason := mismatch(data, expected):
                raise self._error(int(one), reason)
        return found

    def _error(self, one: int, reason: str) -> ReadError:
        url = self.manifest.files[int(self.file[one])].url
        begin, end = self.offset[one], self.offset[one] + self.length[one]
        chunk = tuple(int(i) for i in np.unravel_index(one, self.manifest.shape or (1,)))
        error = ReadError(
            f"{url}, bytes {begin} to {end}: {reason}; restore the file, or scan it again"
        )
        error.add_note(f"variable {self.name}, chunk {chunk[: len(self.manifest.shape)]}")
        return error


# ---------------------------------------------------------------------- by content


class _Copy(NamedTuple):
    """A chunk that lies under its hash: path in the set, bytes, checksum."""

    path: str
    length: int
    checksum: int


class _ContentCopier:
    """Puts chunks into a set under their hashes.

    Parameters
    ----------
    root : str
        Url of the set.
    options : StorageOptions, optional
    checksums : bool
        Whether references to the copies get checksums.
    """

    def __init__(self, root: str, options: StorageOptions | None, checksums: bool) -> None:
        self._root, self._options, self._checksums = root, options, checksums
        self._present = _present_chunks(root, options)

    def group(self, group: ManifestGroup, path: str = "") -> ManifestGroup:
        """Return a group that refers to copies, and make those."""
        prefix = f"{path}/" if path else ""
        variables = {n: self._variable(prefix + n, v) for n, v in group.variables.items()}
        groups = {n: self.group(g, prefix + n) for n, g in group.groups.items()}
        return replace(group, variables=variables, groups=groups)

    def _variable(self, path: str, variable: ManifestVariable) -> ManifestVariable:
        array = variable.data
        if not isinstance(array, ManifestArray):
            return variable
        fragments = tuple(
            replace(f, manifest=self._manifest(_References(f.manifest, path)))
            for f in array.fragments
        )
        return replace(variable, data=replace(array, fragments=fragments))

    def _manifest(self, references: _References) -> ChunkManifest:
        ids, which = references.distinct()
        copies: dict[int, _Copy] = {}

        def copy(batch: Ints) -> None:
            for one, data in zip(batch.tolist(), references.fetch(batch), strict=True):
                copies[one] = self._put(data)

        run_all(references.batches(ids), copy)
        return self._referring(references, [copies[one] for one in ids.tolist()], which)

    def _put(self, data: bytes) -> _Copy:
        """Write bytes under their hash, unless they lie there already."""
        digest = hashlib.sha256(data).hexdigest()
        path = f"{CHUNKS}/{digest[:2]}/{digest}"
        # some stores show a file that was being written when its writer was killed
        if self._present.get(path) != len(data):
            url = f"{self._root}/{path}"
            store_for(url).write_file(url, data, self._options)
            self._present[path] = len(data)
        return _Copy(path, len(data), checksum_of(data) if self._checksums else 0)

    def _referring(
        self, references: _References, copies: list[_Copy], which: Ints
    ) -> ChunkManifest:
        """Return a manifest of copies where there were chunks of files."""
        old = references.manifest
        there = references.file >= 0
        numbers = {path: n for n, path in enumerate(dict.fromkeys(c.path for c in copies))}
        columns = {name: getattr(old, name).ravel().copy() for name in COLUMNS}
        columns["file"][there] = np.array([numbers[c.path] for c in copies], np.int32)[which]
        columns["offset"][there] = 0
        if self._checksums:
            columns["checksum"][there] = np.array([c.checksum for c in copies], np.uint64)[which]
        # their names are their fingerprints
        files = [SourceFile(f"{self._root}/{path}", options=self._options) for path in numbers]
        shaped = {name: column.reshape(old.shape) for name, column in columns.items()}
        return ChunkManifest.build(old.shape, files=files, inline=old.inline, **shaped)


def _present_chunks(root: str, options: StorageOptions | None) -> dict[str, int | None]:
    """Return the chunks that a set holds by their paths, with their sizes.

    Old ones that its newest snapshot does not need are none: whoever lets go of snapshots may be
    about to remove them.
    """
    listed = store_for(root).list_files(f"{root}/{CHUNKS}", options)
    found = {f"{CHUNKS}/{one.path}": one for one in listed}
    try:
        document, _ = opened(root, options)
    except (FileNotFoundError, NotADirectoryError):
        return {path: one.file.size for path, one in found.items()}
    needed = set(needed_files(root, options, document))
    recent = time.time() - GRACE.total_seconds() / 2
    return {
        path: one.file.size
        for path, one in found.items()
        if path in needed or one.modified is None or one.modified > recent
    }


def _by_content(
    group: ManifestGroup,
    root: str,
    options: StorageOptions | None,
    checksums: bool,
    replaces: bool,
) -> None:
    """Make a zarr-v3 set of a group, with all chunks inside."""
    zarr_manifests.check_writable(group, root, options, replace=replaces)
    copied = _ContentCopier(root, options, checksums).group(group)
    zarr_manifests.write(copied, root, options, replace=replaces)


# ---------------------------------------------------------------------- as plain Zarr


def _as_plain_zarr(
    group: ManifestGroup,
    root: str,
    options: StorageOptions | None,
    checksums: bool,
    replaces: bool,
) -> None:
    """Make a plain Zarr v3 store of a group: a new one, whatever the mode."""
    store = store_for(root)
    nodes = plan(group, root).nodes
    _check_plain(root, group, nodes)
    if store.list_files(root, options):
        raise _not_anew(root)
    store.demand_conditions(root, options)
    written: list[str] = []

    def put(path: str, data: bytes) -> None:
        url = f"{root}/{path}"
        try:
            store.write_version(url, data, options, None)
        except ChangedError as error:
            # somebody else writes here, whose file is not ours to remove
            raise _not_anew(root) from error
        except BaseException:
            # perhaps somebody else's file, so only the folder goes, if it is empty
            written.append(f"{url.rpartition('/')[0]}/{secrets.token_hex(8)}")
            raise
        written.append(url)

    try:
        for path, node in nodes.items():
            if isinstance(node, PlannedArray):
                _put_chunks(path, node, put)
        _put_metadata(nodes, put)
    except BaseException:
        store.remove(written, options)
        raise


def _not_anew(root: str) -> FileExistsError:
    return FileExistsError(
        f"{root}: exists already, and a store of plain chunks is written anew; remove it, or "
        f"choose another name"
    )


def _check_plain(root: str, group: ManifestGroup, nodes: Mapping[str, Any]) -> None:
    """Refuse arrays that readers of plain Zarr would not understand, naming all of them."""
    arrays = {
        f"{path}/{name}" if path else name: variable.data
        for path, part in group.walk()
        for name, variable in part.variables.items()
    }
    problems = [
        f"{path}: {reason}"
        for path, node in nodes.items()
        if isinstance(node, PlannedArray) and node.values is None
        for reason in _not_plain(node.metadata, arrays[path])
    ]
    if problems:
        raise cannot_hold(
            root,
            "plain Zarr v3",
            problems,
            "copy them with layout='content', which holds them as they are; load these variables "
            "before (ds.virtual.load()), or leave them out (ds.drop_vars)",
        )


def _not_plain(metadata: Mapping[str, Any], data: Any) -> list[str]:
    """Return why readers of plain Zarr would not understand an array; nothing if they do."""
    if is_extended(metadata) or metadata["chunk_grid"]["name"] != "regular":
        found = obstacles(data) if isinstance(data, ManifestArray) else []
        return found or ["its chunks are stored in a way that plain Zarr v3 has no form for"]
    found = [
        f"its codec {codec['name']!r} is one that only virtualds decodes"
        for codec in metadata["codecs"]
        if codec["name"].startswith(OURS)
    ]
    for pipeline in data.pipelines if isinstance(data, ManifestArray) else ():
        shape = metadata["chunk_grid"]["configuration"]["chunk_shape"]
        sizes = pipeline.encoded_sizes(prod(shape) * pipeline.dtype.itemsize)
        found += [
            f"its codec shuffle takes {size or 'any number of'} bytes, which are no whole elements "
            f"of {codec.itemsize}; numcodecs shuffles whole ones"
            for codec, size in zip(pipeline.codecs, sizes, strict=False)
            if isinstance(codec, Shuffle) and (size is None or size % codec.itemsize)
        ]
    return found


def _put_chunks(path: str, node: PlannedArray, put: Callable[[str, bytes], None]) -> None:
    """Write the chunks of an array under their keys."""
    key = chunk_key(node.metadata)
    if node.values is not None:
        for place, data in node.values.chunks:
            put(f"{path}/{key(place)}", data)
    for _, origin, manifest in node.parts:
        references = _References(manifest, path)

        def copy(batch: Ints, references: _References = references, origin: Any = origin) -> None:
            shape = references.manifest.shape
            places = (
                np.stack(np.unravel_index(batch, shape), axis=1) if shape else [()] * len(batch)
            )
            for place, data in zip(places, references.fetch(batch), strict=True):
                moved = tuple(int(i) + o for i, o in zip(place, origin, strict=True))
                put(f"{path}/{key(moved)}", data)

        run_all(references.batches(np.flatnonzero(references.file >= 0)), copy)
        for held in np.flatnonzero(references.file == INLINE):
            copy(np.array([held]))


def _put_metadata(nodes: Mapping[str, Any], put: Callable[[str, bytes], None]) -> None:
    """Write the metadata of all nodes, the root with all of them at last."""
    below = {
        path: {
            name: value
            for name, value in (node.metadata if isinstance(node, PlannedArray) else node).items()
            if name != "storage_transformers"
        }
        for path, node in nodes.items()
    }
    root = below.pop("")
    for path, node in below.items():
        put(f"{path}/{MARKER}", _as_json(node))
    put(MARKER, _as_json(root | consolidated(below)))


def _as_json(node: Mapping[str, Any]) -> bytes:
    return json.dumps(node, allow_nan=False, indent=2).encode()


LAYOUTS: dict[str, Callable[[ManifestGroup, str, StorageOptions | None, bool, bool], None]] = {
    "content": _by_content,
    "chunks": _as_plain_zarr,
}
"""How copies may lie."""
