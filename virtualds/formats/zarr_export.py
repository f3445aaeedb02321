"""Presents a group as the keys and values of a plain Zarr v3 hierarchy, for any reader of Zarr.

A `StoredArray` can be described by plain Zarr: its metadata describes how to decode the chunks,
which are the bytes of the sources. For a `DecodedArray`, our reader decodes the values, and
presents them as uncompressed chunks. An array that Zarr cannot represent is replaced by the error
that reading it raises.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import Data, ManifestGroup, ManifestVariable
from virtualds.chunks.columns import INLINE, MISSING
from virtualds.chunks.manifest import ChunkManifest, iterate_blocks
from virtualds.codecs.codec import OURS
from virtualds.codecs.hdf import Shuffle
from virtualds.errors import UnsupportedError, VirtualdsError
from virtualds.formats.zarr.data_types import (
    RECORDS,
    data_type_from_v3,
    fill_to_attribute,
    fill_value_from_v3,
    fill_value_to_v3,
    pack_members,
    to_packed,
    to_text_objects,
)
from virtualds.formats.zarr.document import (
    MARKER,
    PLAIN_KEYS,
    consolidate,
    describe_group,
    join_node_path,
    unravel_in_grid,
)
from virtualds.formats.zarr.v2_arrays import unsupported_reasons
from virtualds.formats.zarr.v3_arrays import (
    TEXT,
    ManifestPart,
    array_to_v3,
    axes_from_v3,
    encode_chunk,
    grid_to_v3,
    is_extended,
    values_to_v3,
)
from virtualds.json_values import to_json
from virtualds.reading.stored_chunks import ChunkIndex, StoredChunks

Objection = Callable[[Mapping[str, Any]], str | None]
"""A function of array metadata that returns why a reader cannot read the array, or None."""

WHOLE_CHUNK = slice(None)
CHUNKS_PER_STEP = 2**16
"""The number of chunks that are listed at a time."""
CHUNKS = "c"
"""The start of chunk keys, after the path of their array."""
CHUNK_BYTES = 2**24
"""The maximum size in bytes of a decoded chunk, if its array has no regular chunks."""
OVERSIZED_BYTES = 2**26
"""The size in bytes above which uncompressed chunks are split."""

# ---------------------------------------------------------------------- as they are stored


@dataclass(frozen=True)
class StoredArray:
    """An array of plain Zarr with the stored chunks: its ``zarr.json``, and its references."""

    path: str
    metadata: dict[str, Any]
    parts: tuple[ManifestPart, ...]

    @property
    def token(self) -> Any:
        """What identifies it, for dask."""
        return self.metadata, [(p.origin, p.manifest) for p in self.parts]

    def read_chunk(self, chunk_id: ChunkIndex, wanted: slice = WHOLE_CHUNK) -> bytes | None:
        """Return bytes of a chunk, or None if it is missing."""
        found = self._find_row(chunk_id)
        if found is None:
            return None
        # a checksum needs the whole chunk
        is_whole = wanted == WHOLE_CHUNK or found.file[0] == INLINE or found.checksum[0]
        if not is_whole:
            begin, end, _ = wanted.indices(int(found.length[0]))
            length = max(end - begin, 0)
            if not length:
                return b""
            found = replace(found, offset=found.offset + begin, length=np.full(1, length))
        [data] = StoredChunks(found, self.path, chunk_id).fetch(np.zeros(1, np.int64))
        return bytes(data[wanted] if is_whole else data)

    def has(self, chunk_id: ChunkIndex) -> bool:
        """Return whether a chunk exists, without fetching it."""
        return self._find_row(chunk_id) is not None

    def get_nbytes(self, chunk_id: ChunkIndex) -> int | None:
        """Return the length of a chunk, or None if it is missing."""
        found = self._find_row(chunk_id)
        if found is None:
            return None
        row = found.lookup((0,))
        return len(found.inline[row.offset]) if row.file == INLINE else row.length

    def iterate_chunks(self) -> Iterator[ChunkIndex]:
        """Yield the positions of all chunks that are not missing."""
        for part in self.parts:
            shape = part.manifest.shape
            for ids, rows in iterate_blocks(part.manifest, most=CHUNKS_PER_STEP):
                there = ids[rows.file.reshape(-1) != MISSING]
                yield from map(tuple, unravel_in_grid(there, shape, part.origin).tolist())

    def _find_row(self, chunk_id: ChunkIndex) -> ChunkManifest | None:
        """Return the reference of one chunk as a manifest, without loading others."""
        for part in self.parts:
            inner = [p - o for p, o in zip(chunk_id, part.origin, strict=True)]
            shape = part.manifest.shape
            if all(0 <= i < n for i, n in zip(inner, shape, strict=True)):
                number = np.ravel_multi_index(inner, shape) if shape else 0
                found = part.manifest.at(np.array([number], np.int64))
                return None if found.file[0] == MISSING else found
        return None


# ---------------------------------------------------------------------- decoded


@dataclass(frozen=True)
class DecodedArray:
    """An array of plain Zarr with decoded chunks: plain numbers or strings."""

    path: str
    metadata: dict[str, Any]
    data: Data

    @property
    def token(self) -> Any:
        """What identifies it, for dask."""
        return self.metadata, self.data

    def read_chunk(self, chunk_id: ChunkIndex, wanted: slice = WHOLE_CHUNK) -> bytes | None:
        """Return bytes of a chunk; chunks at the edges are padded."""
        if not self.has(chunk_id):
            return None
        slabs = [axis.slabs(i, i + 1) for axis, i in zip(self._axes, chunk_id, strict=True)]
        box = tuple(slice(int(s.edges[0]), int(s.edges[1])) for s in slabs)
        try:
            data = self.data
            values = np.asarray(data[box] if isinstance(data, np.ndarray) else data.read(box))
        except VirtualdsError as error:
            error.add_note(f"variable {self.path}, decoded chunk {chunk_id}")
            raise
        is_text = self.metadata["data_type"] == TEXT
        values = to_text_objects(values) if is_text else pack_members(values)
        little = values.astype(values.dtype.newbyteorder("<"), copy=False)
        shape = tuple(int(s.encoded[0]) for s in slabs)
        return encode_chunk(little, shape)[wanted]

    def has(self, chunk_id: ChunkIndex) -> bool:
        """Return whether a chunk is in the grid; no chunk is missing, since gaps are filled."""
        return all(i < axis.nchunks for i, axis in zip(chunk_id, self._axes, strict=True))

    def get_nbytes(self, chunk_id: ChunkIndex) -> int | None:
        """Return the length of a chunk."""
        data = self.read_chunk(chunk_id)
        return None if data is None else len(data)

    def iterate_chunks(self) -> Iterator[ChunkIndex]:
        """Yield the positions of all chunks."""
        yield from np.ndindex(*(axis.nchunks for axis in self._axes))

    @property
    def _axes(self) -> Any:
        return axes_from_v3(self.metadata["shape"], self.metadata["chunk_grid"])


def _describe_decoded(data: Data) -> dict[str, Any]:
    """Return the metadata of decoded values, except for their chunk grid."""
    dtype = np.dtype(object) if _is_text(data) else to_packed(data.dtype).newbyteorder("<")
    found = values_to_v3(np.full((0,) * len(data.shape), "" if dtype.hasobject else 0, dtype))
    if found is None:
        raise _unsupported_type_error(data)
    metadata = found.metadata | {"shape": list(data.shape)}
    if isinstance(data, ManifestArray):
        fill = pack_members(np.asarray(data.fill_value, data.dtype))
        metadata["fill_value"] = fill_value_to_v3(fill, dtype)
    return metadata


def _is_text(data: Data) -> bool:
    """Return whether values are strings of any length."""
    if isinstance(data, ManifestArray) or data.dtype.kind not in "OUT":
        return False
    if isinstance(data, np.ndarray):
        to_text_objects(data)
    elif dict(data.dtype.metadata or {}).get("element_type") is not str:
        raise _unsupported_type_error(data)
    return True


def _unsupported_type_error(data: Data) -> UnsupportedError:
    return UnsupportedError(
        f"its type {data.dtype} has no form in Zarr v3; leave it out with drop_variables"
    )


def _iterate_decoded_grids(data: Data) -> Iterator[dict[str, Any]]:
    """Yield chunk grids for decoded values: the grid of the sources, then a regular grid."""
    lengths = _find_regular_chunks(data)
    if isinstance(data, ManifestArray):
        if _has_oversized_chunks(data):
            # along the first axes, so that chunks stay contiguous
            for axis, length in enumerate(lengths):
                nbytes = prod(lengths) * data.dtype.itemsize
                if nbytes > CHUNK_BYTES:
                    lengths[axis] = max(length * CHUNK_BYTES // nbytes, 1)
        elif (own := grid_to_v3(data)) is not None:
            yield own
    yield {"name": "regular", "configuration": {"chunk_shape": lengths}}


def _has_oversized_chunks(array: ManifestArray) -> bool:
    """Return whether an array has large chunks that could be read in parts.

    Readers of Zarr read whole chunks; netCDF files without chunks are one chunk each.
    """
    if any(pipeline.codecs for pipeline in array.pipelines):
        return False
    largest = (
        prod(int(axis.slabs().encoded.max(initial=0)) for axis in fragment.axes)
        for fragment in array.fragments
    )
    return max(largest, default=0) * array.dtype.itemsize > OVERSIZED_BYTES


def _find_regular_chunks(data: Data) -> list[int]:
    """Return a regular chunk shape that splits few chunks of the sources.

    Along axes with regular chunks, these are kept. Along any other axis, a chunk is as long as the
    longest one of the sources, or a multiple of it within `CHUNK_BYTES`.
    """
    virtual = isinstance(data, ManifestArray)
    fragments = data.fragments if isinstance(data, ManifestArray) else ()
    lengths = [max(n, 1) if i or virtual else 1 for i, n in enumerate(data.shape)]
    for axis, size in enumerate(data.shape):
        longest = max((int(f.axes[axis].lengths.max(initial=1)) for f in fragments), default=0)
        lengths[axis] = max(min(longest or lengths[axis], size), 1)
    for axis, size in enumerate(data.shape):
        cuts = [f.start[axis] + f.axes[axis].slabs().edges for f in fragments]
        # all chunks begin and end at multiples of the length, or at the end of the array
        if cuts and all(((c % lengths[axis] == 0) | (c == size)).all() for c in cuts):
            continue
        nbytes = max(prod(lengths) * data.dtype.itemsize, 1)
        lengths[axis] = max(min(lengths[axis] * max(CHUNK_BYTES // nbytes, 1), size), 1)
    return lengths


# ---------------------------------------------------------------------- which of them


ServedArray = StoredArray | DecodedArray


def _serve_array(
    path: str, variable: ManifestVariable, objection: Objection
) -> ServedArray | UnsupportedError:
    """Return the first representation of an array that the reader supports, or an error."""
    reason: str | None = None
    try:
        attributes, dtype = dict(variable.attributes), variable.data.dtype
        fill = attributes.get("_FillValue")
        if fill is not None and np.size(fill) == 1 and dtype.kind in "biufcS":
            # the form that xarray gives it in Zarr v3
            attributes["_FillValue"] = fill_to_attribute(np.asarray(fill).reshape(())[()], dtype)
        array_metadata = {
            "attributes": to_json(attributes)[0],
            "dimension_names": list(variable.dims),
            "storage_transformers": [],
        }
        for served in _iterate_served_arrays(path, variable.data, array_metadata):
            for found in (served, _find_former_form(served)):
                reason = reason if found is None else objection(found.metadata)
                if found is not None and reason is None:
                    return found
    except UnsupportedError as error:
        reason = f"{error}"
    return UnsupportedError(f"variable {path}: {reason}")


def _iterate_served_arrays(path: str, data: Data, extra: dict[str, Any]) -> Iterator[ServedArray]:
    if isinstance(data, ManifestArray):
        with suppress(UnsupportedError):
            stored, parts = array_to_v3(data)
            is_odd = is_extended(stored) or any(_iterate_uneven_shuffles(stored, data))
            if not is_odd and not _has_oversized_chunks(data):
                yield StoredArray(path, stored | extra, tuple(parts))
    metadata = _describe_decoded(data)
    for grid in _iterate_decoded_grids(data):
        yield DecodedArray(path, metadata | {"chunk_grid": grid} | extra, data)


def list_reasons_not_plain(metadata: Mapping[str, Any], data: Data) -> list[str]:
    """Return the reasons why readers of plain Zarr cannot decode the chunks of an array."""
    if is_extended(metadata) or metadata["chunk_grid"]["name"] != "regular":
        found = unsupported_reasons(data) if isinstance(data, ManifestArray) else []
        return found or ["plain Zarr v3 has no form for how its chunks are stored"]
    ours = [
        f"only virtualds decodes its codec {codec['name']!r}"
        for codec in metadata["codecs"]
        if codec["name"].startswith(OURS)
    ]
    return ours + list(_iterate_uneven_shuffles(metadata, data))


def _iterate_uneven_shuffles(metadata: Mapping[str, Any], data: Data) -> Iterator[str]:
    """Yield the reason if numcodecs, unlike HDF5, cannot unshuffle chunks of partial elements."""
    # if chunks differ in shape, check one element: bytes that codecs add are the same for all
    shape = metadata["chunk_grid"]["configuration"].get("chunk_shape", ())
    for pipeline in data.pipelines if isinstance(data, ManifestArray) else ():
        sizes = pipeline.encoded_sizes(prod(shape) * pipeline.dtype.itemsize)
        for codec, size in zip(pipeline.codecs, sizes, strict=False):
            if isinstance(codec, Shuffle) and (size is None or size % codec.itemsize):
                yield (
                    f"its codec shuffle takes {size or 'any number of'} bytes, which are not whole "
                    f"elements of {codec.itemsize}; numcodecs shuffles whole ones"
                )


def _find_former_form(array: ServedArray) -> ServedArray | None:
    """Return an array of a compound type in its former representation, for older readers.

    Fields were pairs, and a fill value was the base64 encoding of an element, little-endian. Values
    are little-endian as well, since these readers ignore the byte order in the metadata.
    """
    kind = array.metadata["data_type"]
    if (
        isinstance(array, StoredArray)
        or not isinstance(kind, Mapping)
        or kind["name"] != RECORDS[0]
    ):
        return None
    dtype = data_type_from_v3(kind)
    fill = fill_value_from_v3(array.metadata["fill_value"], dtype)
    stored = np.asarray(fill).astype(dtype.newbyteorder("<")).tobytes()
    changed = {
        "data_type": _to_pairs(kind),
        "fill_value": base64.standard_b64encode(stored).decode(),
    }
    return replace(array, metadata=array.metadata | changed)


def _to_pairs(kind: Any) -> Any:
    if not isinstance(kind, Mapping) or kind.get("name") != RECORDS[0]:
        return kind
    fields = kind["configuration"]["fields"]
    pairs = [[field["name"], _to_pairs(field["data_type"])] for field in fields]
    return {"name": RECORDS[1], "configuration": {"fields": pairs}}


# ---------------------------------------------------------------------- keys and values


@dataclass(frozen=True)
class ZarrView:
    r"""The hierarchy below a group: attributes of groups, and arrays, by path.

    Examples
    --------
    >>> import numpy as np
    >>> from virtualds.arrays.group import ManifestVariable
    >>> group = ManifestGroup({"x": ManifestVariable(("x",), np.arange(3, dtype="u1"))})
    >>> view = ZarrView.of(group, lambda metadata: None)
    >>> list(view.iterate_keys()), view.get("x/c/0")
    (['zarr.json', 'x/zarr.json', 'x/c/0'], b'\x00\x01\x02')
    """

    groups: Mapping[str, dict[str, Any]]
    arrays: Mapping[str, ServedArray | UnsupportedError]

    @classmethod
    def of(cls, group: ManifestGroup, objection: Objection) -> ZarrView:
        """Create the hierarchy of a group; ``objection`` is why the reader cannot read an array."""
        groups, arrays = {}, {}
        for path, part in group.walk():
            groups[path] = to_json(part.attributes)[0]
            for name, variable in part.variables.items():
                below = join_node_path(path, name)
                arrays[below] = _serve_array(below, variable, objection)
        return cls(groups, arrays)

    @property
    def token(self) -> Any:
        """What identifies it, for dask."""
        arrays = (
            (path, str(array) if isinstance(array, UnsupportedError) else array.token)
            for path, array in self.arrays.items()
        )
        return self.groups, [*arrays]

    # ------------------------------------------------------------------ values

    def get(self, key: str, wanted: slice = WHOLE_CHUNK) -> bytes | None:
        """Return the bytes of a key, or None if there is no such key."""
        if (path := self._find_documented_node(key)) is not None:
            return self._build_document(path)[wanted]
        if (found := self._find_chunk(key)) is not None:
            array, chunk_id = found
            return array.read_chunk(chunk_id, wanted)
        return None

    def get_size(self, key: str) -> int | None:
        """Return the number of bytes of a key, or None if there is no such key."""
        if (path := self._find_documented_node(key)) is not None:
            return len(self._build_document(path))
        found = self._find_chunk(key)
        return None if found is None else found[0].get_nbytes(found[1])

    def _find_documented_node(self, key: str) -> str | None:
        """Return the path of the node whose metadata has this key."""
        path, _, name = key.rpartition("/")
        known = name == MARKER and (path in self.groups or path in self.arrays)
        return path if known else None

    def _build_document(self, path: str) -> bytes:
        if (array := self.arrays.get(path)) is None:
            found = describe_group(self.groups[path]) | self._consolidate(path)
        elif isinstance(array, UnsupportedError):
            raise array
        else:
            found = array.metadata
        return json.dumps(found, allow_nan=False, separators=(",", ":")).encode()

    def _consolidate(self, path: str) -> dict[str, Any]:
        """Return the metadata of all nodes below a group, unless one of its arrays raises an error.

        Then readers look for each array, and only the broken array raises its error.
        """
        prefix = f"{path}/" if path else ""
        nodes = {key: describe_group(found) for key, found in self.groups.items() if key}
        for key, array in self.arrays.items():
            if not isinstance(array, UnsupportedError):
                nodes[key] = array.metadata
            elif key.startswith(prefix):
                return {}
        return consolidate(
            {key[len(prefix) :]: node for key, node in nodes.items() if key.startswith(prefix)}
        )

    def _find_chunk(self, key: str) -> tuple[ServedArray, ChunkIndex] | None:
        """Return the array and the index of a chunk from its key."""
        parts = key.split("/")
        for at in (i for i, part in enumerate(parts) if part == CHUNKS):
            array = self.arrays.get("/".join(parts[:at]))
            if array is not None and not isinstance(array, UnsupportedError):
                ndim = len(array.metadata["shape"])
                if (chunk_id := PLAIN_KEYS.parse_key("/".join(parts[at:]), ndim)) is not None:
                    return array, chunk_id
        return None

    # ------------------------------------------------------------------ keys

    def exists(self, key: str) -> bool:
        """Return whether a key exists; all chunks of decoded arrays do."""
        if self._find_documented_node(key) is not None:
            return True
        found = self._find_chunk(key)
        return found is not None and found[0].has(found[1])

    def iterate_keys(self, prefix: str = "") -> Iterator[str]:
        """Yield all keys that begin with a prefix, except for those of missing chunks."""
        for path in (*self.groups, *self.arrays):
            key = join_node_path(path, MARKER)
            if key.startswith(prefix):
                yield key
        for path, array in self.arrays.items():
            begin = join_node_path(path, CHUNKS)
            is_nested = begin.startswith(prefix) or prefix.startswith(begin)
            if isinstance(array, UnsupportedError) or not is_nested:
                continue
            keys = (
                join_node_path(path, PLAIN_KEYS(chunk_id)) for chunk_id in array.iterate_chunks()
            )
            yield from (key for key in keys if key.startswith(prefix))

    def iterate_names(self, folder: str) -> Iterator[str]:
        """Yield the names directly below a folder, each once."""
        path = folder.strip("/")
        prefix = f"{path}/" if path else ""
        if path in self.groups:
            nodes = [key for key in (*self.groups, *self.arrays) if key]
            below = [key.removeprefix(prefix) for key in nodes if key.startswith(prefix)]
            yield from dict.fromkeys([MARKER, *(key.partition("/")[0] for key in below)])
        elif path in self.arrays:
            yield from (MARKER, CHUNKS)
        else:
            found = (key.removeprefix(prefix) for key in self.iterate_keys(prefix))
            yield from dict.fromkeys(key.partition("/")[0] for key in found)
