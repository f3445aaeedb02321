"""Arrays as plain Zarr v3: with chunks as stored, or decoded.

A `StoredArray` is one that plain Zarr can describe: its metadata say how to decode, its chunks are
the bytes of the sources. Our reader decodes a `DecodedArray` into chunks of plain numbers. An
`UnsupportedArray` has no form in Zarr.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import Data, ManifestVariable
from virtualds.chunks.columns import INLINE, MISSING
from virtualds.chunks.manifest import ChunkManifest, iterate_blocks
from virtualds.codecs.vlen_text import encode_text, to_text_objects
from virtualds.errors import ReadError, UnsupportedError, VirtualdsError
from virtualds.formats.zarr.data_types import RECORDS, data_type_from_v3, fill_value_from_v3
from virtualds.formats.zarr.v2_types import fill_to_attribute, pack_members
from virtualds.formats.zarr.v3_arrays import ManifestPart, array_to_v3, is_extended
from virtualds.formats.zarr.v3_metadata import axes_from_v3
from virtualds.formats.zarr.values import TEXT
from virtualds.formats.zarr_export.decoded import (
    build_decoded_metadata,
    is_unwieldy,
    list_decoded_grids,
)
from virtualds.json_values import to_json
from virtualds.source_file import find_mismatch
from virtualds.stores import find_store
from virtualds.stores.store import StoreError

ChunkIndex = tuple[int, ...]
"""Where a chunk lies in the grid of its array."""
Objection = Callable[[Mapping[str, Any]], str | None]
"""Takes the metadata of an array and says why the reader at hand cannot read it, if so."""

WHOLE_CHUNK = slice(None)
LISTED = 2**16
"""Chunks that are listed at a time."""


# ---------------------------------------------------------------------- as they are stored


@dataclass(frozen=True)
class StoredArray:
    """An array in plain Zarr with its chunks as stored.

    Parameters
    ----------
    path : str
    metadata : dict
        The content of its ``zarr.json``.
    parts : tuple of ManifestPart
        Where its chunks lie.
    """

    path: str
    metadata: dict[str, Any]
    parts: tuple[ManifestPart, ...]

    @property
    def token(self) -> Any:
        """What tells it from other arrays."""
        return self.metadata, [(p.origin, p.manifest) for p in self.parts]

    def read_chunk(self, place: ChunkIndex, wanted: slice = WHOLE_CHUNK) -> bytes | None:
        """Return bytes of a chunk, None if it is missing.

        Raises
        ------
        ReadError
            They cannot be read, or have changed.
        """
        found = self._find_row(place)
        if found is None:
            return None
        row = found.lookup((0,))
        # a checksum takes the whole chunk
        begin, end, _ = (WHOLE_CHUNK if row.checksum else wanted).indices(self._get_length(found))
        if row.file == INLINE:
            data = found.inline[row.offset][begin:end]
        else:
            data = self._fetch(place, found, begin, max(end - begin, 0))
        if reason := find_mismatch(data, row.checksum):
            raise self._make_error(place, found, reason)
        return bytes(data[wanted] if row.checksum else data)

    def has(self, place: ChunkIndex) -> bool:
        """Say whether a chunk is there, without fetching it."""
        return self._find_row(place) is not None

    def get_nbytes(self, place: ChunkIndex) -> int | None:
        """Return how long a chunk is, None if it is missing."""
        found = self._find_row(place)
        return None if found is None else self._get_length(found)

    def list_chunks(self) -> Iterator[ChunkIndex]:
        """Yield the places of all chunks that are not missing."""
        for part in self.parts:
            shape = part.manifest.shape
            for ids, rows in iterate_blocks(part.manifest, most=LISTED):
                there = ids[rows.file.reshape(-1) != MISSING]
                inner = np.stack(np.unravel_index(there, shape), -1) if shape else there[:, None]
                for found in inner[:, : len(shape)] + np.asarray(part.origin, np.int64):
                    yield tuple(found.tolist())

    def _find_row(self, place: ChunkIndex) -> ChunkManifest | None:
        """Return the manifest of one chunk alone; nothing else is loaded."""
        for part in self.parts:
            inner = [p - o for p, o in zip(place, part.origin, strict=True)]
            shape = part.manifest.shape
            if all(0 <= i < n for i, n in zip(inner, shape, strict=True)):
                number = np.ravel_multi_index(inner, shape) if shape else 0
                found = part.manifest.at(np.array([number], np.int64))
                return None if found.file[0] == MISSING else found
        return None

    def _get_length(self, found: ChunkManifest) -> int:
        row = found.lookup((0,))
        return len(found.inline[row.offset]) if row.file == INLINE else row.length

    def _fetch(self, place: ChunkIndex, found: ChunkManifest, begin: int, length: int) -> bytes:
        if not length:
            return b""
        row = found.lookup((0,))
        file = found.files[row.file]
        try:
            [data] = find_store(file.url).get_ranges(file, [(row.offset + begin, length)])
        except StoreError as error:
            raise self._make_error(place, found, f"{error}") from error
        return data

    def _make_error(self, place: ChunkIndex, found: ChunkManifest, reason: str) -> ReadError:
        row = found.lookup((0,))
        where = "bytes held inline"
        if row.file != INLINE:
            url = found.files[row.file].url
            where = f"{url}, bytes {row.offset} to {row.offset + row.length}"
        error = ReadError(f"{where}: {reason}; restore the file, or scan it again")
        error.add_note(f"variable {self.path}, chunk {place}")
        return error


# ---------------------------------------------------------------------- decoded


@dataclass(frozen=True)
class DecodedArray:
    """An array in plain Zarr whose chunks are decoded: plain numbers or strings.

    Parameters
    ----------
    path : str
    metadata : dict
        The content of its ``zarr.json``.
    data : ManifestArray, numpy.ndarray or Deferred
    """

    path: str
    metadata: dict[str, Any]
    data: Data

    @property
    def token(self) -> Any:
        """What tells it from other arrays."""
        return self.metadata, self.data

    def read_chunk(self, place: ChunkIndex, wanted: slice = WHOLE_CHUNK) -> bytes | None:
        """Return bytes of a chunk, those at the edges padded.

        Raises
        ------
        ReadError
            Bytes cannot be read, have changed, or do not decode.
        """
        if not self.has(place):
            return None
        slabs = [axis.slabs(i, i + 1) for axis, i in zip(self._axes, place, strict=True)]
        box = tuple(slice(int(s.edges[0]), int(s.edges[1])) for s in slabs)
        try:
            values = self.data[box] if isinstance(self.data, np.ndarray) else self.data.read(box)
        except VirtualdsError as error:
            error.add_note(f"variable {self.path}, decoded chunk {place}")
            raise
        shape = tuple(int(s.encoded[0]) for s in slabs)
        return self._encode(np.asarray(values), shape)[wanted]

    def has(self, place: ChunkIndex) -> bool:
        """Say whether a chunk lies in the grid; none is missing, since gaps are filled."""
        return all(i < axis.nchunks for i, axis in zip(place, self._axes, strict=True))

    def get_nbytes(self, place: ChunkIndex) -> int | None:
        """Return how long a chunk is."""
        data = self.read_chunk(place)
        return None if data is None else len(data)

    def list_chunks(self) -> Iterator[ChunkIndex]:
        """Yield the places of all chunks."""
        yield from np.ndindex(*(axis.nchunks for axis in self._axes))

    @property
    def _axes(self) -> Any:
        return axes_from_v3(self.metadata["shape"], self.metadata["chunk_grid"])

    def _encode(self, values: npt.NDArray[Any], shape: tuple[int, ...]) -> bytes:
        text = self.metadata["data_type"] == TEXT
        values = to_text_objects(values) if text else pack_members(values)
        if values.shape != shape:
            whole = np.full(shape, "", object) if text else np.zeros(shape, values.dtype)
            whole[tuple(slice(0, n) for n in values.shape)] = values
            values = whole
        if text:
            return encode_text(values)
        return values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes()


# ---------------------------------------------------------------------- which of them


@dataclass(frozen=True)
class UnsupportedArray:
    """An array that Zarr cannot hold: reading it raises the reason.

    Parameters
    ----------
    path : str
    error : UnsupportedError
    """

    path: str
    error: UnsupportedError

    @property
    def token(self) -> Any:
        """What tells it from other arrays."""
        return str(self.error)

    @property
    def metadata(self) -> dict[str, Any]:
        """Never there.

        Raises
        ------
        UnsupportedError
            Always.
        """
        raise self.error


ServedArray = StoredArray | DecodedArray


def serve_array(
    path: str, variable: ManifestVariable, objection: Objection
) -> ServedArray | UnsupportedArray:
    """Return an array in the first form that the reader can read."""
    reason: str | None = None
    try:
        said = {
            "attributes": attributes_to_v3(variable),
            "dimension_names": list(variable.dims),
            "storage_transformers": [],
        }
        for form in _list_forms(path, variable.data, said):
            for found in (form, _find_former_form(form)):
                reason = reason if found is None else objection(found.metadata)
                if found is not None and reason is None:
                    return found
    except UnsupportedError as error:
        reason = f"{error}"
    return UnsupportedArray(path, UnsupportedError(f"variable {path}: {reason}"))


def _list_forms(path: str, data: Data, said: dict[str, Any]) -> Iterator[ServedArray]:
    if isinstance(data, ManifestArray):
        metadata, parts = _describe_stored(data)
        if metadata is not None and not is_unwieldy(data):
            yield StoredArray(path, metadata | said, tuple(parts))
    metadata = build_decoded_metadata(data)
    for grid in list_decoded_grids(data):
        yield DecodedArray(path, metadata | {"chunk_grid": grid} | said, data)


def _find_former_form(form: ServedArray) -> ServedArray | None:
    """Return an array of a compound type in its former form, for older readers.

    Fields were pairs, and a fill value was base64 of the bytes of an element, little-endian. Values
    are little-endian too, since these readers ignore the byte order in the metadata.
    """
    kind = form.metadata["data_type"]
    if isinstance(form, StoredArray) or not isinstance(kind, Mapping) or kind["name"] != RECORDS[0]:
        return None
    dtype = data_type_from_v3(kind)
    fill = fill_value_from_v3(form.metadata["fill_value"], dtype)
    stored = np.asarray(fill).astype(dtype.newbyteorder("<")).tobytes()
    said = {"data_type": _to_pairs(kind), "fill_value": base64.standard_b64encode(stored).decode()}
    return replace(form, metadata=form.metadata | said)


def _to_pairs(kind: Any) -> Any:
    if not isinstance(kind, Mapping) or kind.get("name") != RECORDS[0]:
        return kind
    fields = kind["configuration"]["fields"]
    pairs = [[field["name"], _to_pairs(field["data_type"])] for field in fields]
    return {"name": RECORDS[1], "configuration": {"fields": pairs}}


def _describe_stored(array: ManifestArray) -> tuple[dict[str, Any] | None, list[ManifestPart]]:
    try:
        metadata, parts = array_to_v3(array)
    except UnsupportedError:
        return None, []
    return (None, []) if is_extended(metadata) else (metadata, parts)


def attributes_to_v3(variable: ManifestVariable) -> dict[str, Any]:
    """Return attributes as JSON, ``_FillValue`` as xarray spells it in Zarr v3.

    Raises
    ------
    UnsupportedError
        One of them has no form in JSON.
    """
    attributes = dict(variable.attributes)
    fill = attributes.get("_FillValue")
    if fill is not None and np.size(fill) == 1 and variable.data.dtype.kind in "biufcS":
        attributes["_FillValue"] = fill_to_attribute(
            np.asarray(fill).reshape(())[()], variable.data.dtype
        )
    return to_json(attributes)[0]
