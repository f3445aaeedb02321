"""Present a group as the keys and values of a plain Zarr hierarchy, for any reader of Zarr.

The chunks of a `StoredArray` are the bytes of the sources, and its metadata describes how to decode
them. The chunks of a `DecodedArray` are values that virtualds has decoded. An array that Zarr
cannot represent is replaced by an error, which is raised when it is read. A `ZarrForm` chooses the
representation of each array.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import Data, ManifestGroup, ManifestVariable
from virtualds.chunks.axes import ChunkAxis
from virtualds.chunks.columns import INLINE, MISSING
from virtualds.chunks.manifest import ChunkManifest, iterate_blocks, iterate_references
from virtualds.codecs.codec import VIRTUALDS_PREFIX
from virtualds.codecs.hdf import Shuffle
from virtualds.errors import UnsupportedError, VirtualdsError
from virtualds.formats.zarr import (
    DOTTED_KEYS,
    MARKER,
    PLAIN_KEYS,
    ZARRAY,
    ZGROUP,
    ZMETADATA,
    ChunkKeys,
    consolidate,
    describe_group,
    join_node_path,
    unravel_in_grid,
)
from virtualds.formats.zarr.data_types import (
    RECORDS,
    data_type_from_v3,
    dtype_from_zarr_v2,
    dtype_to_zarr_v2,
    fill_to_attribute,
    fill_value_from_v3,
    fill_value_to_v3,
    pack_members,
    to_packed,
    to_string_objects,
)
from virtualds.formats.zarr.data_types import TEXT as V2_TEXT
from virtualds.formats.zarr.v2_arrays import build_zarr_v2, list_unsupported_reasons
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
from virtualds.formats.zarr.write_plan import complete_for_v2, describe_for_v2
from virtualds.json_values import to_json
from virtualds.reading import ChunkIndex, StoredChunks

Objection = Callable[[Mapping[str, Any]], str | None]
"""A function of array metadata that returns why a reader cannot read the array, or None."""

WHOLE_CHUNK = slice(None)
CHUNKS_PER_STEP = 2**16
"""The number of chunks that are listed at a time."""
CHUNKS = "c"
"""The first component of chunk keys below the path of their array (Zarr v3)."""
CHUNK_BYTES = 2**24
"""The maximum size in bytes of a decoded chunk, if its array has no regular chunks."""
OVERSIZED_BYTES = 2**26
"""The size in bytes above which uncompressed chunks are split."""
ZATTRS = ".zattrs"
ZSTD_LEVEL = 1
"""The zstd level of decoded chunks, which are compressed again at each request."""
COMMON_CODECS = {
    3: frozenset({"bytes", "transpose", "gzip", "zstd", "blosc", "vlen-utf8"}),
    2: frozenset({"zlib", "gzip", "zstd", "blosc", "shuffle", "vlen-utf8"}),
}
"""Codecs that common readers of each version of Zarr support.

In Zarr v3, those of the specification and its registry that GDAL, tensorstore, zarrita and
zarr-python support; only zarr-python supports ``numcodecs.shuffle`` and ``numcodecs.zlib``. In Zarr
v2, GDAL, zarrita and zarr-python also support the filter ``shuffle``; tensorstore supports no
filters.
"""

MISREAD_IN_URLS = re.compile(r"[#?\\\x00-\x1f\x7f]|%[0-9A-Fa-f]{2}")
"""Matches characters that readers do not percent-encode when they put a name into a url.

They would request another key, find no chunk, and return fill values.
"""
UNITS_OF_TIME = {
    "D": "days",
    "h": "hours",
    "m": "minutes",
    "s": "seconds",
    "ms": "milliseconds",
    "us": "microseconds",
    "ns": "nanoseconds",
}
"""Units of numpy's times, and their names in the CF conventions."""
NOT_A_TIME = np.int64(np.iinfo(np.int64).min)
"""The number that numpy stores for ``NaT``."""

# ---------------------------------------------------------------------- options


@dataclass(frozen=True)
class ZarrForm:
    """The representation of arrays for readers.

    Parameters
    ----------
    zarr_format : {3, 2}
        The version of Zarr.
    decode : bool
        Whether to decode all chunks; otherwise only those that readers cannot decode.
    readers : {"zarr-python", "any"}
        The readers. For any reader, chunks that do not use `COMMON_CODECS` or are not on a regular
        grid are decoded, and decoded chunks are compressed. Missing chunks are written out if a
        reader would fill them with another value. Numpy times become numbers with CF units.
    """

    zarr_format: int = 3
    decode: bool = False
    readers: str = "zarr-python"

    def __post_init__(self) -> None:
        if self.zarr_format not in COMMON_CODECS or isinstance(self.zarr_format, bool):
            raise ValueError(f"zarr_format={self.zarr_format!r}: give 3 or 2")
        if self.readers not in ("zarr-python", "any"):
            raise ValueError(f"readers={self.readers!r}: give 'zarr-python' or 'any'")

    @property
    def is_regular(self) -> bool:
        """Whether decoded chunks are on a regular grid."""
        return self.decode or self.is_common or self.zarr_format == 2

    @property
    def is_common(self) -> bool:
        """Whether any reader must be able to read the arrays."""
        return self.readers == "any"

    def find_objection(self, metadata: Mapping[str, Any]) -> str | None:
        """Return the reason why not every reader supports the metadata of an array, or None."""
        if self.zarr_format == 3:
            names = [codec["name"] for codec in metadata["codecs"]]
            kind = metadata["data_type"]
            if isinstance(kind, Mapping) and kind["name"] == RECORDS[0]:
                # the former representation, which newer versions also read, is tried next
                return f"zarr-python before 3.2 does not know its data type {kind['name']!r}"
            if metadata["chunk_grid"]["name"] != "regular":
                return f"few readers know its chunk grid {metadata['chunk_grid']['name']!r}"
            transposes = [codec for codec in metadata["codecs"] if codec["name"] == "transpose"]
            orders = [codec["configuration"]["order"] for codec in transposes]
            # a permutation that is its own inverse means the same to GDAL
            if any([order[i] for i in order] != list(range(len(order))) for order in orders):
                return "GDAL takes the order of its codec 'transpose' for the inverse one"
        else:
            steps = (*(metadata["filters"] or ()), metadata["compressor"])
            names = [step["id"] for step in steps if step is not None]
            if isinstance(metadata["dtype"], list) and ">" in repr(metadata["dtype"]):
                return f"xarray does not read its big-endian data type {metadata['dtype']}"
            if "shuffle" in names and not _is_shuffle_portable(metadata):
                return "zarrita shuffles by the size of its data type, and GDAL shuffles no text"
        if self._has_one_byte_chunks(metadata, names):
            return "a server could not tell GDAL that a chunk of one byte cannot be read"
        unsupported = [name for name in names if name not in COMMON_CODECS[self.zarr_format]]
        return f"few readers know its codec {unsupported[0]!r}" if unsupported else None

    def find_objection_to_gaps(self, array: ServedArray) -> str | None:
        """Return the reason why a reader would fill missing chunks with wrong values, or None.

        JavaScript parses all numbers as doubles, so zarrita changes large integers and the bits of
        unusual NaNs, and GDAL changes large unsigned integers. In Zarr v2, zarrita has no value for
        64-bit integers if the fill value is null, and takes encoded strings as the strings.
        """
        fill = array.metadata["fill_value"]
        is_exact_double = not isinstance(fill, int) or int(float(fill)) == fill
        is_kept = is_exact_double and not (isinstance(fill, str) and fill.startswith("0x"))
        if self.zarr_format == 2:
            dtype = dtype_from_zarr_v2(array.metadata["dtype"])
            is_long = dtype.kind in "iu" and dtype.itemsize == 8
            is_kept = is_kept and dtype.kind not in "SUV" and not (is_long and fill is None)
        if is_kept or not isinstance(array, StoredArray) or not array.may_lack_chunks():
            return None
        return f"not every reader fills its missing chunks with {fill!r}"

    def _has_one_byte_chunks(self, metadata: Mapping[str, Any], names: Sequence[str]) -> bool:
        """Return whether served chunks are a single byte."""
        if self.zarr_format == 3:
            shape = metadata["chunk_grid"]["configuration"]["chunk_shape"]
            is_byte = metadata["data_type"] in ("bool", "int8", "uint8")
            return is_byte and prod(shape) == 1 and set(names) <= {"bytes", "transpose"}
        is_byte = metadata["dtype"] in ("|b1", "|i1", "|u1", "|S1", "|V1")
        return is_byte and prod(metadata["chunks"]) == 1 and not names


def _is_shuffle_portable(metadata: Mapping[str, Any]) -> bool:
    """Return whether the filter ``shuffle`` of Zarr v2 applies to whole numeric elements."""
    dtype = dtype_from_zarr_v2(metadata["dtype"])
    sizes = {step.get("elementsize", 4) for step in metadata["filters"] if step["id"] == "shuffle"}
    return sizes == {dtype.itemsize} and dtype.kind not in "SU"


PLAIN = ZarrForm()
"""Zarr v3 for zarr-python, with as few decoded chunks as possible."""

# ---------------------------------------------------------------------- stored arrays


@dataclass(frozen=True)
class DescribedArray:
    """The metadata of an array in plain Zarr: ``zarr.json``, or ``.zarray`` and ``.zattrs``."""

    path: str
    metadata: dict[str, Any]
    attributes: dict[str, Any] | None
    """The attributes in Zarr v2; None in Zarr v3, which has them in ``metadata``."""

    @property
    def documents(self) -> dict[str, dict[str, Any]]:
        """The metadata by file name."""
        if self.attributes is None:
            return {MARKER: self.metadata}
        return {ZARRAY: self.metadata, ZATTRS: self.attributes}

    @property
    def keys(self) -> ChunkKeys:
        """The chunk key encoding."""
        return PLAIN_KEYS if self.attributes is None else DOTTED_KEYS

    @property
    def _axes(self) -> tuple[ChunkAxis, ...]:
        """The axes of the chunk grid."""
        if self.attributes is None:
            return axes_from_v3(self.metadata["shape"], self.metadata["chunk_grid"])
        pairs = zip(self.metadata["shape"], self.metadata["chunks"], strict=True)
        return tuple(ChunkAxis.regular(size, length) for size, length in pairs)


@dataclass(frozen=True)
class StoredArray(DescribedArray):
    """An array in plain Zarr with its stored chunks: metadata and references."""

    parts: tuple[ManifestPart, ...]

    @property
    def token(self) -> Any:
        """A value from which dask computes the identity of this array."""
        return self.documents, [(p.origin, p.manifest) for p in self.parts]

    def read_chunk(self, chunk_id: ChunkIndex, byte_slice: slice = WHOLE_CHUNK) -> bytes | None:
        """Return bytes of a chunk, or None if it is missing."""
        row = self._find_row(chunk_id)
        if row is None:
            return None
        # a checksum needs the whole chunk
        is_whole = byte_slice == WHOLE_CHUNK or row.file[0] == INLINE or row.checksum[0]
        if not is_whole:
            begin, end, _ = byte_slice.indices(int(row.length[0]))
            length = max(end - begin, 0)
            if not length:
                return b""
            row = replace(row, offset=row.offset + begin, length=np.full(1, length))
        [data] = StoredChunks(row, self.path, chunk_id).fetch(np.zeros(1, np.int64))
        return bytes(data[byte_slice] if is_whole else data)

    def has(self, chunk_id: ChunkIndex) -> bool:
        """Return whether a chunk exists, without fetching it."""
        return self._find_row(chunk_id) is not None

    def get_nbytes(self, chunk_id: ChunkIndex) -> int | None:
        """Return the length of a chunk, or None if it is missing."""
        manifest = self._find_row(chunk_id)
        if manifest is None:
            return None
        entry = manifest.lookup((0,))
        return len(manifest.inline[entry.offset]) if entry.file == INLINE else entry.length

    def may_lack_chunks(self) -> bool:
        """Return whether chunks are missing, or are too many to check quickly."""
        count = prod(axis.nchunks for axis in self._axes)
        if count > CHUNKS_PER_STEP:
            return True
        existing = (ids.size for p in self.parts for ids, _ in iterate_references(p.manifest))
        return sum(existing) < count

    def iterate_chunks(self) -> Iterator[ChunkIndex]:
        """Yield the positions of all chunks that are not missing."""
        for part in self.parts:
            shape = part.manifest.shape
            for ids, rows in iterate_blocks(part.manifest, block_size=CHUNKS_PER_STEP):
                existing = ids[rows.file.reshape(-1) != MISSING]
                yield from map(tuple, unravel_in_grid(existing, shape, part.origin).tolist())

    def _find_row(self, chunk_id: ChunkIndex) -> ChunkManifest | None:
        """Return the reference of one chunk as a manifest, without loading others."""
        for part in self.parts:
            inner = [p - o for p, o in zip(chunk_id, part.origin, strict=True)]
            shape = part.manifest.shape
            if all(0 <= i < n for i, n in zip(inner, shape, strict=True)):
                number = np.ravel_multi_index(inner, shape) if shape else 0
                row = part.manifest.at(np.array([number], np.int64))
                return None if row.file[0] == MISSING else row
        return None


# ---------------------------------------------------------------------- decoded arrays


@dataclass(frozen=True)
class DecodedArray(DescribedArray):
    """An array in plain Zarr with decoded chunks: plain numbers or strings."""

    data: Data

    @property
    def token(self) -> Any:
        """A value from which dask computes the identity of this array."""
        return self.documents, self.data

    def read_chunk(self, chunk_id: ChunkIndex, byte_slice: slice = WHOLE_CHUNK) -> bytes | None:
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
        values = to_string_objects(values) if self._is_text else pack_members(values)
        little = values.astype(values.dtype.newbyteorder("<"), copy=False)
        if little.dtype.kind in "mM":
            little = little.view("<i8")
        shape = tuple(int(s.encoded[0]) for s in slabs)
        encoded = encode_chunk(little, shape)
        if self._is_compressed:
            import numcodecs

            # numcodecs writes the length of the content to frames, which some readers need
            encoded = bytes(numcodecs.Zstd(level=ZSTD_LEVEL).encode(encoded))
        return bytes(encoded[byte_slice])

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
    def _is_text(self) -> bool:
        """Whether the elements are strings."""
        if self.attributes is None:
            return bool(self.metadata["data_type"] == TEXT)
        return bool(self.metadata["dtype"] == "|O")

    @property
    def _is_compressed(self) -> bool:
        """Whether chunks are compressed."""
        if self.attributes is None:
            return bool(self.metadata["codecs"][-1]["name"] == "zstd")
        return self.metadata["compressor"] is not None


def _describe_decoded(data: Data, dtype: np.dtype[Any]) -> dict[str, Any]:
    """Return the metadata of decoded values of a dtype, without the chunk grid."""
    described = values_to_v3(np.full((0,) * len(data.shape), "" if dtype.hasobject else 0, dtype))
    if described is None:
        raise _make_unsupported_type_error(data)
    metadata = described.metadata | {"shape": list(data.shape)}
    if isinstance(data, ManifestArray) and not dtype.hasobject:
        fill = pack_members(np.asarray(data.fill_value, data.dtype))
        metadata["fill_value"] = fill_value_to_v3(fill.astype(dtype), dtype)
    return metadata


def _describe_times(dtype: np.dtype[Any]) -> dict[str, Any]:
    """Return the CF attributes of numpy times that are stored as numbers (CF, section 4.4)."""
    unit, factor = np.datetime_data(dtype) if dtype.kind in "mM" else ("", 1)
    if unit not in UNITS_OF_TIME or factor != 1:
        return {}
    name, missing = UNITS_OF_TIME[unit], {"_FillValue": NOT_A_TIME}
    if dtype.kind == "m":
        # xarray decodes a duration only by its dtype, and supports no unit longer than seconds
        stored_unit = unit if unit.endswith("s") else "s"
        return missing | {"units": name, "dtype": f"timedelta64[{stored_unit}]"}
    return missing | {"units": f"{name} since 1970-01-01", "calendar": "proleptic_gregorian"}


def _is_text(data: Data) -> bool:
    """Return whether values are strings; raise an error for other objects."""
    if isinstance(data, ManifestArray) or data.dtype.kind not in "OUT":
        return False
    if isinstance(data, np.ndarray):
        to_string_objects(data)
    elif dict(data.dtype.metadata or {}).get("element_type") is not str:
        raise _make_unsupported_type_error(data)
    return True


def _make_unsupported_type_error(data: Data) -> UnsupportedError:
    """Return the error for values whose type Zarr v3 lacks."""
    return UnsupportedError(
        f"its type {data.dtype} cannot be represented in Zarr v3; leave it out with drop_variables"
    )


def _iterate_decoded_grids(data: Data) -> Iterator[dict[str, Any]]:
    """Yield chunk grids for decoded values: the grid of the sources, then a regular grid."""
    lengths = _find_regular_chunks(data)
    if isinstance(data, ManifestArray):
        if _has_oversized_chunks(data):
            # split along the first axes, so that chunks stay contiguous
            for axis, length in enumerate(lengths):
                nbytes = prod(lengths) * data.dtype.itemsize
                if nbytes > CHUNK_BYTES:
                    lengths[axis] = max(length * CHUNK_BYTES // nbytes, 1)
        elif (stored_grid := grid_to_v3(data)) is not None:
            yield stored_grid
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
    is_virtual = isinstance(data, ManifestArray)
    fragments = data.fragments if isinstance(data, ManifestArray) else ()
    lengths = [max(n, 1) if i or is_virtual else 1 for i, n in enumerate(data.shape)]
    for axis, size in enumerate(data.shape):
        longest = max((int(f.axes[axis].lengths.max(initial=1)) for f in fragments), default=0)
        lengths[axis] = max(min(longest or lengths[axis], size), 1)
    for axis, size in enumerate(data.shape):
        cuts = [f.start[axis] + f.axes[axis].slabs().edges for f in fragments]
        # no chunk is split if all begin and end at multiples of the length
        if cuts and all(((c % lengths[axis] == 0) | (c == size)).all() for c in cuts):
            continue
        nbytes = max(prod(lengths) * data.dtype.itemsize, 1)
        lengths[axis] = max(min(lengths[axis] * max(CHUNK_BYTES // nbytes, 1), size), 1)
    return lengths


# ---------------------------------------------------------------------- choice


ServedArray = StoredArray | DecodedArray


def _serve_array(
    path: str, variable: ManifestVariable, form: ZarrForm, objection: Objection
) -> ServedArray | UnsupportedError:
    """Return the first representation of an array that readers support, or an error."""
    if form.is_common and (character := MISREAD_IN_URLS.search(path)):
        return UnsupportedError(
            f"variable {path}: its name has {character[0]!r}, which readers do not encode in urls; "
            f"rename it, or leave it out with drop_variables"
        )
    reason: str | None = None
    iterate = _iterate_v3_forms if form.zarr_format == 3 else _iterate_v2_forms
    try:
        dtype = np.dtype(object)
        if not _is_text(variable.data):
            dtype = to_packed(variable.data.dtype).newbyteorder("<")
            # most readers support only variable-length strings in Zarr v3
            if dtype.kind == "U" and form.is_common and form.zarr_format == 3:
                dtype = np.dtype(object)
        times = _describe_times(dtype) if form.is_common else {}
        if times and not times.keys() & variable.attributes.keys():
            variable = replace(variable, attributes={**variable.attributes, **times})
            dtype = np.dtype("<i8")
        for candidate in iterate(path, variable, form, dtype):
            for array in (candidate, _make_former_form(candidate)):
                if array is None:
                    continue
                reason = objection(array.metadata)
                if reason is None and form.is_common:
                    reason = form.find_objection_to_gaps(array)
                if reason is None:
                    return array
    except UnsupportedError as error:
        reason = f"{error}"
    return UnsupportedError(f"variable {path}: {reason}")


def _iterate_v3_forms(
    path: str, variable: ManifestVariable, form: ZarrForm, dtype: np.dtype[Any]
) -> Iterator[ServedArray]:
    """Yield representations of an array in Zarr v3, best first; decoded values get ``dtype``."""
    attributes, data = dict(variable.attributes), variable.data
    fill = attributes.get("_FillValue")
    if fill is not None and np.size(fill) == 1 and data.dtype.kind in "biufcS":
        # encode the fill value as xarray does in Zarr v3
        attributes["_FillValue"] = fill_to_attribute(np.asarray(fill).reshape(())[()], data.dtype)
    extra = {
        "attributes": to_json(attributes)[0],
        "dimension_names": list(variable.dims),
        "storage_transformers": [],
    }
    if isinstance(data, ManifestArray) and not form.decode and dtype.kind == data.dtype.kind:
        with suppress(UnsupportedError):
            stored, parts = array_to_v3(data)
            shape = _get_chunk_shape(stored)
            is_extended_array = is_extended(stored) or any(_iterate_uneven_shuffles(shape, data))
            if not is_extended_array and not _has_oversized_chunks(data):
                yield StoredArray(path, stored | extra, None, tuple(parts))
    metadata = _describe_decoded(data, dtype)
    if form.is_common:
        metadata["codecs"] = [
            *metadata["codecs"],
            {"name": "zstd", "configuration": {"level": ZSTD_LEVEL, "checksum": False}},
        ]
    for grid in _iterate_decoded_grids(data):
        if grid["name"] == "regular" or not form.is_regular:
            yield DecodedArray(path, metadata | {"chunk_grid": grid} | extra, None, data)


def _iterate_v2_forms(
    path: str, variable: ManifestVariable, form: ZarrForm, dtype: np.dtype[Any]
) -> Iterator[ServedArray]:
    """Yield representations of an array in Zarr v2, best first; decoded values get ``dtype``."""
    data = variable.data
    may_be_stored = dtype.kind == data.dtype.kind and not form.decode
    if isinstance(data, ManifestArray) and may_be_stored and not _has_oversized_chunks(data):
        with suppress(UnsupportedError):
            changed, metadata, manifest = describe_for_v2(variable)
            if not any(_iterate_uneven_shuffles(metadata["chunks"], data)):
                completed = complete_for_v2(changed, _drop_zstd_checksum(metadata, form))
                parts = (ManifestPart(0, (0,) * len(data.shape), manifest),)
                yield StoredArray(path, completed.metadata, completed.attributes, parts)
    *_, grid = _iterate_decoded_grids(data)
    chunks = grid["configuration"]["chunk_shape"]
    filters = [{"id": V2_TEXT}] if dtype.hasobject else ()
    dtype_name = "|O" if dtype.hasobject else dtype_to_zarr_v2(dtype)
    metadata = build_zarr_v2(data.shape, chunks, dtype_name, filters)
    if form.is_common:
        metadata["compressor"] = {"id": "zstd", "level": ZSTD_LEVEL}
    completed = complete_for_v2(variable, metadata)
    yield DecodedArray(path, completed.metadata, completed.attributes, data)


def _drop_zstd_checksum(metadata: dict[str, Any], form: ZarrForm) -> dict[str, Any]:
    """Return Zarr v2 metadata without the zstd option ``checksum``, which tensorstore rejects."""
    compressor = metadata["compressor"]
    if not form.is_common or compressor is None or compressor["id"] != "zstd":
        return metadata
    configuration = {key: value for key, value in compressor.items() if key != "checksum"}
    return metadata | {"compressor": configuration}


def list_reasons_not_plain(metadata: Mapping[str, Any], data: Data) -> list[str]:
    """Return the reasons why readers of plain Zarr cannot decode the chunks of an array."""
    if is_extended(metadata) or metadata["chunk_grid"]["name"] != "regular":
        reasons = list_unsupported_reasons(data) if isinstance(data, ManifestArray) else []
        return reasons or ["plain Zarr v3 cannot represent how its chunks are stored"]
    ours = [
        f"only virtualds decodes its codec {codec['name']!r}"
        for codec in metadata["codecs"]
        if codec["name"].startswith(VIRTUALDS_PREFIX)
    ]
    return ours + list(_iterate_uneven_shuffles(_get_chunk_shape(metadata), data))


def _get_chunk_shape(metadata: Mapping[str, Any]) -> Sequence[int]:
    """Return the shape of all chunks, or ``()`` if chunks differ in shape."""
    shape: Sequence[int] = metadata["chunk_grid"]["configuration"].get("chunk_shape", ())
    return shape


def _iterate_uneven_shuffles(shape: Sequence[int], data: Data) -> Iterator[str]:
    """Yield the reason if numcodecs, unlike HDF5, cannot unshuffle chunks with partial elements."""
    for pipeline in data.pipelines if isinstance(data, ManifestArray) else ():
        sizes = pipeline.encoded_sizes(prod(shape) * pipeline.dtype.itemsize)
        for codec, size in zip(pipeline.codecs, sizes, strict=False):
            if isinstance(codec, Shuffle) and (size is None or size % codec.itemsize):
                yield (
                    f"its codec shuffle takes {size or 'any number of'} bytes, which are not whole "
                    f"elements of {codec.itemsize}; numcodecs shuffles only whole elements"
                )


def _make_former_form(array: ServedArray) -> ServedArray | None:
    """Return an array of a compound type in its former representation, for older readers.

    There, fields are pairs, and the fill value is a little-endian element in base64. Values are
    little-endian as well, since these readers ignore the byte order in the metadata.
    """
    kind = array.metadata.get("data_type")
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
    """Return a compound data type with its fields as pairs."""
    if not isinstance(kind, Mapping) or kind.get("name") != RECORDS[0]:
        return kind
    fields = kind["configuration"]["fields"]
    pairs = [[field["name"], _to_pairs(field["data_type"])] for field in fields]
    return {"name": RECORDS[1], "configuration": {"fields": pairs}}


# ---------------------------------------------------------------------- keys and values


@dataclass(frozen=True)
class ZarrView:
    r"""The Zarr hierarchy of a group: attributes of groups and representations of arrays, by path.

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
    zarr_format: int = 3

    @classmethod
    def of(
        cls, group: ManifestGroup, objection: Objection | None = None, form: ZarrForm = PLAIN
    ) -> ZarrView:
        """Create the hierarchy of a group.

        ``objection`` returns why the reader cannot read an array; by default, it is
        `ZarrForm.find_objection` of ``form``.
        """
        groups, arrays = {}, {}
        for path, part in group.walk():
            groups[path] = to_json(part.attributes)[0]
            for name, variable in part.variables.items():
                array_path = join_node_path(path, name)
                served = _serve_array(array_path, variable, form, objection or form.find_objection)
                arrays[array_path] = served
        return cls(groups, arrays, form.zarr_format)

    @property
    def token(self) -> Any:
        """A value from which dask computes the identity of this hierarchy."""
        arrays = (
            (path, str(array) if isinstance(array, UnsupportedError) else array.token)
            for path, array in self.arrays.items()
        )
        return self.groups, [*arrays]

    # ------------------------------------------------------------------ values

    def get(self, key: str, byte_slice: slice = WHOLE_CHUNK) -> bytes | None:
        """Return the bytes of a key, or None if there is no such key."""
        if (document := self._find_document(key)) is not None:
            return _encode_json(document)[byte_slice]
        if (found := self._find_chunk(key)) is not None:
            array, chunk_id = found
            return array.read_chunk(chunk_id, byte_slice)
        return None

    def get_size(self, key: str) -> int | None:
        """Return the number of bytes of a key, or None if there is no such key."""
        if (document := self._find_document(key)) is not None:
            return len(_encode_json(document))
        found = self._find_chunk(key)
        return None if found is None else found[0].get_nbytes(found[1])

    def _find_document(self, key: str) -> Any:
        """Return the metadata document at a key, or None; raise the error of an array."""
        path, _, name = key.rpartition("/")
        if path in self.groups and name in self._group_files:
            return self._build_group_document(path, name)
        if path not in self.arrays or name not in self._array_files:
            return None
        array = self.arrays[path]
        if isinstance(array, UnsupportedError):
            raise array
        return array.documents[name]

    @property
    def _group_files(self) -> tuple[str, ...]:
        """The names of the documents of a group."""
        return (MARKER,) if self.zarr_format == 3 else (ZGROUP, ZATTRS, ZMETADATA)

    @property
    def _array_files(self) -> tuple[str, ...]:
        """The names of the documents of an array."""
        return (MARKER,) if self.zarr_format == 3 else (ZARRAY, ZATTRS)

    def _describe_group(self, path: str) -> dict[str, Any]:
        """Return the documents of a group by file name, without consolidated metadata."""
        if self.zarr_format == 3:
            return {MARKER: describe_group(self.groups[path])}
        return {ZGROUP: {"zarr_format": 2}, ZATTRS: self.groups[path]}

    def _build_group_document(self, path: str, name: str) -> Any:
        """Return a document of a group, with the metadata of all nodes below it, or None.

        If an array is an error, the metadata are not consolidated: readers then request each array,
        and only that array raises its error.
        """
        documents_of_group = self._describe_group(path)
        if self.zarr_format == 2 and name in documents_of_group:
            return documents_of_group[name]
        members = self._collect_below(path)
        if self.zarr_format == 3:
            nodes = {key.removesuffix(f"/{MARKER}"): node for key, node in (members or {}).items()}
            return documents_of_group[MARKER] | ({} if members is None else consolidate(nodes))
        if members is None:
            return None
        documents = documents_of_group | members
        # zarr-python can only build a tree if the members of every group are contiguous
        ordered = sorted(documents, key=lambda key: key.rpartition("/")[0].rpartition("/")[0])
        return {
            "zarr_consolidated_format": 1,
            "metadata": {key: documents[key] for key in ordered},
        }

    def _collect_below(self, path: str) -> dict[str, Any] | None:
        """Return the documents of all nodes below a group, or None if an array is an error."""
        prefix = f"{path}/" if path else ""
        documents_by_path: dict[str, Mapping[str, Any]] = {
            key: self._describe_group(key) for key in self.groups if key and key.startswith(prefix)
        }
        for key, array in self.arrays.items():
            if key.startswith(prefix):
                if isinstance(array, UnsupportedError):
                    return None
                documents_by_path[key] = array.documents
        return {
            join_node_path(key.removeprefix(prefix), name): document
            for key, documents in documents_by_path.items()
            for name, document in documents.items()
        }

    def _find_chunk(self, key: str) -> tuple[ServedArray, ChunkIndex] | None:
        """Return the array and the index of a chunk from its key."""
        parts = key.split("/")
        starts = [i for i, part in enumerate(parts) if part == CHUNKS]
        for start in starts if self.zarr_format == 3 else [len(parts) - 1]:
            array = self.arrays.get("/".join(parts[:start]))
            if array is not None and not isinstance(array, UnsupportedError):
                ndim = len(array.metadata["shape"])
                if (chunk_id := array.keys.parse_key("/".join(parts[start:]), ndim)) is not None:
                    return array, chunk_id
        return None

    # ------------------------------------------------------------------ keys

    def exists(self, key: str) -> bool:
        """Return whether a key exists, without decoding chunks."""
        path, _, name = key.rpartition("/")
        if path in self.groups and name in self._group_files:
            return name != ZMETADATA or self._collect_below(path) is not None
        if path in self.arrays and name in self._array_files:
            return True
        found = self._find_chunk(key)
        return found is not None and found[0].has(found[1])

    def iterate_keys(self, prefix: str = "") -> Iterator[str]:
        """Yield all keys that begin with a prefix, except for those of missing chunks."""
        for nodes, names in ((self.groups, self._group_files), (self.arrays, self._array_files)):
            for path in nodes:
                keys = (join_node_path(path, name) for name in names)
                yield from (key for key in keys if key.startswith(prefix))
        for path, array in self.arrays.items():
            chunks_path = join_node_path(path, CHUNKS if self.zarr_format == 3 else "")
            is_nested = chunks_path.startswith(prefix) or prefix.startswith(chunks_path)
            if isinstance(array, UnsupportedError) or not is_nested:
                continue
            keys = (
                join_node_path(path, array.keys(chunk_id)) for chunk_id in array.iterate_chunks()
            )
            yield from (key for key in keys if key.startswith(prefix))

    def iterate_names(self, folder: str) -> Iterator[str]:
        """Yield the names directly below a folder, each once."""
        path = folder.strip("/")
        prefix = f"{path}/" if path else ""
        if path in self.groups:
            nodes = [key for key in (*self.groups, *self.arrays) if key]
            names_below = [key.removeprefix(prefix) for key in nodes if key.startswith(prefix)]
            names = [key.partition("/")[0] for key in names_below]
            yield from dict.fromkeys([*self._group_files, *names])
        elif path in self.arrays and self.zarr_format == 3:
            yield from (MARKER, CHUNKS)
        else:
            keys = (key.removeprefix(prefix) for key in self.iterate_keys(prefix))
            yield from dict.fromkeys(key.partition("/")[0] for key in keys)


def _encode_json(document: Any) -> bytes:
    """Encode a document as compact JSON."""
    return json.dumps(document, allow_nan=False, separators=(",", ":")).encode()
