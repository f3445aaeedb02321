"""Copying the chunks of a dataset into a plain Zarr store."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup
from virtualds.chunks.columns import COLUMNS, INLINE
from virtualds.chunks.manifest import ChunkManifest
from virtualds.chunks.projection import Ints
from virtualds.codecs.codec import OURS
from virtualds.codecs.shuffle import Shuffle
from virtualds.errors import ReadError, cannot_hold
from virtualds.formats.zarr.chunk_keys import parse_chunk_keys
from virtualds.formats.zarr.document import MARKER, consolidate
from virtualds.formats.zarr.v2_obstacles import unsupported_reasons
from virtualds.formats.zarr.v3_arrays import is_extended
from virtualds.formats.zarr.write_plan import PlannedArray, plan_writing
from virtualds.progress import Advance
from virtualds.reading.threads import cores, run_all
from virtualds.source_file import StorageOptions, find_mismatch
from virtualds.stores import find_store
from virtualds.stores.store import ChangedError, StoreError

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
    arrays = {
        f"{path}/{name}" if path else name: variable.data
        for path, part in group.walk()
        for name, variable in part.variables.items()
    }
    problems = [
        f"{path}: {reason}"
        for path, node in nodes.items()
        if isinstance(node, PlannedArray) and node.values is None
        for reason in _find_reasons_not_plain(node.metadata, arrays[path])
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
