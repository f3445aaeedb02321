"""Copies of the bytes that a dataset refers to, without decoding them.

There are two layouts. ``content`` is a zarr-v3 set that holds each chunk under its hash. So equal
chunks are stored once, and a copy that was interrupted goes on where it stopped. ``chunks`` is a
plain Zarr v3 store: every chunk lies where any reader of Zarr looks for it.
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
from virtualds.chunks.manifest import ChunkManifest, iterate_references
from virtualds.chunks.projection import Ints
from virtualds.codecs.codec import OURS
from virtualds.codecs.shuffle import Shuffle
from virtualds.datasets.location import Location
from virtualds.errors import ReadError, cannot_hold
from virtualds.formats import GRACE, replaces_by, zarr_manifests
from virtualds.formats.zarr.chunk_keys import parse_chunk_keys
from virtualds.formats.zarr.document import CHUNKS, MARKER, consolidate
from virtualds.formats.zarr.v2_obstacles import unsupported_reasons
from virtualds.formats.zarr.v3_arrays import is_extended
from virtualds.formats.zarr.write_plan import PlannedArray, plan_writing
from virtualds.formats.zarr_manifests.snapshots import collect_needed_files, read_snapshot
from virtualds.progress import Advance, ProgressOption, count_progress, is_shown
from virtualds.reading.threads import cores, run_all
from virtualds.source_file import SourceFile, StorageOptions, checksum_of, find_mismatch
from virtualds.stores import find_store
from virtualds.stores.store import ChangedError, StoreError, explain_write_errors

BATCH_BYTES, BATCH_CHUNKS = 2**26, 4096
"""Most bytes held in memory at a time, unless one chunk is larger."""


# ---------------------------------------------------------------------- reading bytes


class ManifestChunks:
    """The chunks of a manifest, in C order.

    Parameters
    ----------
    manifest : ChunkManifest
    name : str
        Name of the array in errors.
    """

    def __init__(self, manifest: ChunkManifest, name: str) -> None:
        self.manifest = manifest.loaded()
        self.name = name
        self.file, self.offset, self.length, _, self.checksum = (
            getattr(self.manifest, column).ravel() for column in COLUMNS
        )

    def find_distinct(self) -> tuple[Ints, Ints]:
        """Return one chunk for each byte range, and for each chunk the number of its range.

        Only chunks that lie in files are counted.
        """
        there = np.flatnonzero(self.file >= 0)
        columns = (self.file, self.offset, self.length, self.checksum)
        rows = np.stack([column[there].astype(np.int64) for column in columns], axis=1)
        _, first, inverse = np.unique(rows, axis=0, return_index=True, return_inverse=True)
        return there[first], inverse.ravel()

    def split_batches(self, ids: Ints) -> Iterator[Ints]:
        """Yield batches of chunks that lie in one file and fit in memory together."""
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
        """Return the bytes of chunks of one file, or of inline chunks.

        Raises
        ------
        ReadError
            Bytes cannot be read, have changed, or do not match their checksum.
        """
        number = int(self.file[batch[0]])
        offsets, lengths = self.offset[batch].tolist(), self.length[batch].tolist()
        if number == INLINE:
            return [self.manifest.inline[k] for k in offsets]
        file = self.manifest.files[number]
        ranges = list(zip(offsets, lengths, strict=True))
        try:
            found = find_store(file.url).get_ranges(file, ranges)
        except StoreError as error:
            raise self._make_error(int(batch[error.item]), f"{error}") from error
        for one, data, expected in zip(batch, found, self.checksum[batch].tolist(), strict=True):
            if reason := find_mismatch(data, expected):
                raise self._make_error(int(one), reason)
        return found

    def _make_error(self, one: int, reason: str) -> ReadError:
        url = self.manifest.files[int(self.file[one])].url
        begin, end = self.offset[one], self.offset[one] + self.length[one]
        chunk = tuple(int(i) for i in np.unravel_index(one, self.manifest.shape or (1,)))
        error = ReadError(
            f"{url}, bytes {begin} to {end}: {reason}; restore the file, or scan it again"
        )
        error.add_note(f"variable {self.name}, chunk {chunk[: len(self.manifest.shape)]}")
        return error


# ---------------------------------------------------------------------- plain Zarr


def copy_as_plain_zarr(
    group: ManifestGroup,
    root: str,
    options: StorageOptions | None,
    checksums: bool,
    replaces: bool,
    advance: Advance,
) -> None:
    """Make a new plain Zarr v3 store of a group, for any mode."""
    store = find_store(root)
    nodes = plan_writing(group, root).nodes
    _check_plain(root, group, nodes)
    if store.list_files(root, options):
        raise _exists_error(root)
    store.demand_conditions(root, options)
    written: list[str] = []

    def put(path: str, data: bytes) -> None:
        url = f"{root}/{path}"
        try:
            store.write_version(url, data, options, None)
        except ChangedError as error:
            # another writer owns this file, so it must stay
            raise _exists_error(root) from error
        except BaseException:
            # other files may belong to another writer, so only an empty folder is removed
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


def _exists_error(root: str) -> FileExistsError:
    return FileExistsError(
        f"{root}: exists already, and plain chunks are written only to a new store; remove it, "
        f"or choose another name"
    )


def _check_plain(root: str, group: ManifestGroup, nodes: Mapping[str, Any]) -> None:
    """Refuse arrays that readers of plain Zarr cannot decode, naming all of them."""
    variables = dict(group.walk_variables())
    problems = [
        f"{path}: {reason}"
        for path, node in nodes.items()
        if isinstance(node, PlannedArray) and node.values is None
        for reason in _find_reasons_not_plain(node.metadata, variables[path].data)
    ]
    if problems:
        raise cannot_hold(
            root,
            "plain Zarr v3",
            problems,
            "copy them with layout='content', which holds them as they are; load these variables "
            "before (ds.virtual.load()), or leave them out (ds.drop_vars)",
        )


def _find_reasons_not_plain(metadata: Mapping[str, Any], data: Any) -> list[str]:
    """Return why readers of plain Zarr cannot decode an array; empty if they can."""
    if is_extended(metadata) or metadata["chunk_grid"]["name"] != "regular":
        found = unsupported_reasons(data) if isinstance(data, ManifestArray) else []
        return found or ["plain Zarr v3 has no form for how its chunks are stored"]
    found = [
        f"only virtualds decodes its codec {codec['name']!r}"
        for codec in metadata["codecs"]
        if codec["name"].startswith(OURS)
    ]
    for pipeline in data.pipelines if isinstance(data, ManifestArray) else ():
        shape = metadata["chunk_grid"]["configuration"]["chunk_shape"]
        sizes = pipeline.encoded_sizes(prod(shape) * pipeline.dtype.itemsize)
        found += [
            f"its codec shuffle takes {size or 'any number of'} bytes, which are not whole "
            f"elements "
            f"of {codec.itemsize}; numcodecs shuffles whole ones"
            for codec, size in zip(pipeline.codecs, sizes, strict=False)
            if isinstance(codec, Shuffle) and (size is None or size % codec.itemsize)
        ]
    return found


def _put_chunks(
    path: str, node: PlannedArray, put: Callable[[str, bytes], None], advance: Advance
) -> None:
    """Write the chunks of an array under their keys."""
    key = parse_chunk_keys(node.metadata)
    if node.values is not None:
        for place, data in node.values.chunks:
            put(f"{path}/{key(place)}", data)
    for _, origin, manifest in node.parts:
        references = ManifestChunks(manifest, path)

        def copy(
            batch: Ints, references: ManifestChunks = references, origin: Any = origin
        ) -> None:
            shape = references.manifest.shape
            places = (
                np.stack(np.unravel_index(batch, shape), axis=1) if shape else [()] * len(batch)
            )
            for place, data in zip(places, references.fetch(batch), strict=True):
                moved = tuple(int(i) + o for i, o in zip(place, origin, strict=True))
                put(f"{path}/{key(moved)}", data)
            advance(int(references.length[batch].sum()))

        run_all(references.split_batches(np.flatnonzero(references.file >= 0)), copy)
        for held in np.flatnonzero(references.file == INLINE):
            copy(np.array([held]))


def _put_metadata(nodes: Mapping[str, Any], put: Callable[[str, bytes], None]) -> None:
    """Write the metadata of all nodes, and the root with consolidated metadata last."""
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
        put(f"{path}/{MARKER}", _to_json(node))
    put(MARKER, _to_json(root | consolidate(below)))


def _to_json(node: Mapping[str, Any]) -> bytes:
    return json.dumps(node, allow_nan=False, indent=2).encode()


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
    return sum(
        int(rows.length[rows.file >= 0].sum())
        for array in group.list_arrays()
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

    def copy(self, path: str, variable: ManifestVariable) -> ManifestVariable:
        """Copy the chunks of a variable, and return one that refers to the copies."""
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
    needed = collect_needed_files(root, options, [document])
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
    copied = group.map_variables(_ContentCopier(root, options, checksums, advance).copy)
    zarr_manifests.write(copied, root, options, replace=replaces)


LAYOUTS: dict[
    str, Callable[[ManifestGroup, str, StorageOptions | None, bool, bool, Advance], None]
] = {
    "content": _copy_by_content,
    "chunks": copy_as_plain_zarr,
}
"""The function that copies a group, by layout."""
