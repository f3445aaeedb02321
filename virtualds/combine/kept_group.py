"""A scanned group in bytes, with arrays in the form of zarr-v3 metadata.

The rest is what Zarr cannot express: the exact encoding of variables, values in memory, and why a
variable cannot be read. Manifests are packed columns, as in pickles. Reading only makes groups, and
a hash detects changed bytes.

::

    magic, 16 bytes of BLAKE2b of the rest, JSON compressed with zlib
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import Data, ManifestGroup, ManifestVariable
from virtualds.bounds import decode_stream
from virtualds.chunks.columns import COLUMNS, PackedColumn, SmallColumn, pack, unpack
from virtualds.chunks.manifest import ChunkManifest
from virtualds.chunks.projection import compact
from virtualds.codecs.codec import Unreadable
from virtualds.errors import FormatError, UnsupportedError, VirtualdsError
from virtualds.formats.zarr.v3_arrays import (
    ManifestPart,
    array_from_v3,
    dtype_from_json,
    dtype_to_json,
    extended_to_v3,
)
from virtualds.json_values import from_json, to_json
from virtualds.source_file import SourceFile, StorageOptions

MAGIC = b"virtualds-scan-1\n"
DIGEST = 16
TEXT = {"type": "str"}
"""The Python class that stands for dtypes of text of any length."""
DAMAGE = (
    *(VirtualdsError, ValueError, TypeError, LookupError, AttributeError, OverflowError),
    *(EOFError, RecursionError, zlib.error),
)
"""Errors of making a group from other bytes."""


def to_bytes(
    group: ManifestGroup, sources: Sequence[SourceFile], options: StorageOptions | None = None
) -> bytes:
    """Return a group, and the files it was read from, as bytes.

    ``options`` are the access options that files may have. They are not written.

    Raises
    ------
    UnsupportedError
        Something in the group cannot be written as bytes.
    """
    notes = _Notes(options)
    said = {"sources": list(map(notes.dump_file, sources)), "group": notes.dump_group(group)}
    try:
        text = json.dumps(said, separators=(",", ":"))
    except TypeError as error:
        raise UnsupportedError(f"a group in bytes: {error}") from error
    body = zlib.compress(text.encode(), 1)
    return MAGIC + hashlib.blake2b(body, digest_size=DIGEST).digest() + body


def from_bytes(
    data: bytes, options: StorageOptions | None = None
) -> tuple[list[SourceFile], ManifestGroup]:
    """Return the files that a group was read from, and the group.

    Raises
    ------
    FormatError
        The bytes are not those that were written.
    """
    body = data[len(MAGIC) + DIGEST :]
    digest = hashlib.blake2b(body, digest_size=DIGEST).digest()
    if data[: len(MAGIC) + DIGEST] != MAGIC + digest:
        raise FormatError("a group in bytes: they have changed; remove them")
    notes = _Notes(options)
    try:
        said = json.loads(decode_stream(zlib.decompressobj(), body, None))
        return list(map(notes.load_file, said["sources"])), notes.load_group(said["group"])
    except DAMAGE as error:
        raise FormatError(f"a group in bytes: {error}; remove them") from error


def refusal(data: object) -> str | None:
    """Return why an array cannot be read, None for other data."""
    pipelines = data.pipelines if isinstance(data, ManifestArray) else ()
    codecs = (codec for pipeline in pipelines for codec in pipeline.codecs)
    return next((codec.reason for codec in codecs if isinstance(codec, Unreadable)), None)


@dataclass(frozen=True)
class _Notes:
    """Converts groups to JSON, and back."""

    options: StorageOptions | None

    def dump_group(self, group: ManifestGroup) -> dict[str, Any]:
        return {
            "attributes": to_json(group.attributes),
            "unlimited": sorted(group.encoding.get("unlimited_dims", ())),
            "variables": {name: self._dump_variable(v) for name, v in group.variables.items()},
            "groups": {name: self.dump_group(child) for name, child in group.groups.items()},
        }

    def load_group(self, said: Mapping[str, Any]) -> ManifestGroup:
        variables = {name: self._load_variable(*v) for name, v in said["variables"].items()}
        reasons = {name: refusal(v.data) for name, v in variables.items()}
        return ManifestGroup(
            variables,
            _attributes(*said["attributes"]),
            {name: self.load_group(child) for name, child in said["groups"].items()},
            {"unlimited_dims": set(said["unlimited"])},
            {name: UnsupportedError(reason) for name, reason in reasons.items() if reason},
        )

    def _dump_variable(self, variable: ManifestVariable) -> list[Any]:
        encoding = {**variable.encoding}
        if "dtype" in encoding:
            encoding["dtype"] = _dtype(encoding["dtype"])
        data, attributes = self._dump_data(variable.data), to_json(variable.attributes)
        return [variable.dims, data, attributes, to_json(encoding)]

    def _load_variable(
        self, dims: Any, data: Any, attributes: Any, encoding: Any
    ) -> ManifestVariable:
        # JSON has no tuples, which encodings use
        found = {name: _tuples(value) for name, value in _attributes(*encoding).items()}
        if "dtype" in encoding[0]:
            found["dtype"] = _dtype_of(encoding[0]["dtype"])
        return ManifestVariable(tuple(dims), self._load_data(data), _attributes(*attributes), found)

    def _dump_data(self, data: Data) -> dict[str, Any]:
        if isinstance(data, np.ndarray):
            return {"shape": data.shape, "dtype": _dtype(data.dtype), "values": _values(data)}
        if not isinstance(data, ManifestArray):
            raise UnsupportedError("its values are lazy")
        if reason := refusal(data):
            return {"shape": data.shape, "dtype": _dtype(data.dtype), "refusal": reason}
        array, parts = extended_to_v3(data)
        dtype = _dtype(data.dtype)
        return {"array": array, "dtype": dtype, "parts": list(map(self._dump_part, parts))}

    def _load_data(self, said: Mapping[str, Any]) -> Data:
        dtype = _dtype_of(said["dtype"])
        if "array" in said:
            parts = [self._load_part(*part) for part in said["parts"]]
            array = array_from_v3(said["array"], lambda grids, pipelines: parts)
            # types of Zarr v3 have no byte order
            return array if array.dtype == dtype else replace(array, dtype=dtype)
        shape = said["shape"]
        if "refusal" in said:
            return ManifestArray.unreadable(shape, dtype, said["refusal"])
        if dtype.hasobject:
            return np.array(said["values"], object).reshape(shape)
        # a copy, because the user may write into loaded values
        return np.frombuffer(_bytes(said["values"]), dtype).reshape(shape).copy()

    def _dump_part(self, part: ManifestPart) -> list[Any]:
        manifest = part.manifest.loaded()
        columns = {name: compact(getattr(manifest, name)) for name in COLUMNS}
        steps = {"offset": columns["length"]}
        packed = [pack(column, steps.get(name)) for name, column in columns.items()]
        kept = [p if isinstance(p, int) else [*p[:-1], _text(p[-1])] for p in packed]
        files, inline = map(self.dump_file, manifest.files), map(_text, manifest.inline)
        return [part.fragment, part.origin, manifest.shape, list(files), list(inline), kept]

    def _load_part(
        self, fragment: int, origin: Any, shape: Any, files: Any, inline: Any, kept: Any
    ) -> ManifestPart:
        given = dict(zip(COLUMNS, map(_packed_of, kept), strict=True))
        steps = {"offset": unpack(given["length"])}
        manifest = ChunkManifest.build(
            tuple(shape),
            files=tuple(map(self.load_file, files)),
            inline=tuple(map(_bytes, inline)),
            **{name: unpack(column, steps.get(name)) for name, column in given.items()},
        )
        return ManifestPart(fragment, tuple(origin), manifest)

    def dump_file(self, file: SourceFile) -> list[Any]:
        if file.options not in (None, self.options):
            raise UnsupportedError(f"{file.url}: it has access options of its own")
        return [file.url, *file.fingerprint, file.options is not None]

    def load_file(self, said: Any) -> SourceFile:
        url, size, mtime, etag, has_options = said
        return SourceFile(url, size, mtime, etag, self.options if has_options else None)


def _attributes(plain: Mapping[str, Any], types: Mapping[str, Any]) -> dict[str, Any]:
    return {name: from_json(value, types.get(name)) for name, value in plain.items()}


def _tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _tuples(item) for name, item in value.items()}
    return tuple(value) if isinstance(value, list) else value


def _dtype(dtype: Any) -> Any:
    """Return a dtype with its metadata, or ``str``."""
    if dtype is str:
        return TEXT
    said = {name: TEXT if value is str else value for name, value in (dtype.metadata or {}).items()}
    return [dtype_to_json(dtype), said]


def _dtype_of(said: Any) -> Any:
    if said == TEXT:
        return str
    spelled, metadata = said
    dtype = np.dtype(object) if spelled == "|O" else dtype_from_json(spelled)
    known = {name: str if value == TEXT else value for name, value in metadata.items()}
    return np.dtype(dtype, metadata=known) if known else dtype


def _values(values: npt.NDArray[Any]) -> Any:
    """Return values in memory: text unchanged, other values as text of their bytes."""
    if values.dtype == object and all(type(item) is str for item in values.flat):
        return values.reshape(-1).tolist()
    if values.dtype.hasobject or values.dtype.kind == "T":
        raise UnsupportedError(f"values of {values.dtype!r}")
    return _text(values.tobytes())


def _packed_of(said: Any) -> int | SmallColumn | PackedColumn:
    if isinstance(said, int):
        return said
    shape, *rest, data = said
    kind: Any = SmallColumn if len(said) == len(SmallColumn._fields) else PackedColumn
    found: SmallColumn | PackedColumn = kind(tuple(shape), *rest, _bytes(data))
    return found


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
