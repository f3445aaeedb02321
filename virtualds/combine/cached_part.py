"""A part of the cache: opened files in bytes, with arrays in the form of zarr-v3 metadata.

The rest is what Zarr cannot express: the exact encoding of variables, values in memory, what
differs between files, and why a variable cannot be read. Manifests are packed columns, as in
pickles. Reading only makes groups, and a hash detects changed bytes.

::

    magic, 16 bytes of BLAKE2b of the rest, 8 bytes: length of the next, little-endian
    JSON compressed with zlib: the files of each entry
    JSON compressed with zlib: the entries
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from virtualds.arrays.alike_files import ABSENT, OfEachFile
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

MAGIC = b"virtualds-scan-2\n"
DIGEST, LENGTH = 16, 8
TEXT = {"type": "str"}
"""The Python class that stands for dtypes of text of any length."""
DAMAGE = (
    *(VirtualdsError, ValueError, TypeError, LookupError, AttributeError, OverflowError),
    *(EOFError, RecursionError, zlib.error),
)
"""Errors of making a group from other bytes."""


@dataclass(frozen=True)
class Entry:
    """Files that were opened, as one group.

    ``sources`` are the files, ``others`` the files besides to which their arrays refer. The rest is
    as `FileBatch` has it; a single file may have groups below.
    """

    sources: Sequence[SourceFile]
    others: Sequence[SourceFile]
    group: ManifestGroup
    dim: str | None = None
    lengths: Sequence[int] = ()
    attributes: OfEachFile = field(default_factory=dict)
    encodings: OfEachFile = field(default_factory=dict)
    stacked: Mapping[str, ManifestArray | npt.NDArray[Any]] = field(default_factory=dict)
    same: frozenset[str] = frozenset()


class Listed(NamedTuple):
    """An entry of a part: its files, and the other files that it refers to."""

    sources: Sequence[SourceFile]
    others: Sequence[SourceFile]


def dump_entry(entry: Entry, options: StorageOptions | None = None) -> dict[str, Any]:
    """Return an entry as JSON values.

    ``options`` are the access options that files may have. They are not written.

    Raises
    ------
    UnsupportedError
        Something in the group cannot be written.
    """
    notes = _Notes(options)
    said = {
        "group": notes.dump_group(entry.group),
        "dim": entry.dim,
        "lengths": [*entry.lengths],
        "attributes": _dump_columns(entry.attributes),
        "encodings": _dump_columns(entry.encodings),
        "stacked": {name: notes.dump_data(data) for name, data in entry.stacked.items()},
        "same": sorted(entry.same),
        "sources": list(map(notes.dump_file, entry.sources)),
        "others": list(map(notes.dump_file, entry.others)),
    }
    return {**said, "files": list(map(notes.describe_file, notes.table))}


def to_bytes(entries: Sequence[Mapping[str, Any]]) -> bytes:
    """Return entries, as `dump_entry` gives them, as the bytes of a part."""
    listed = [[entry[name] for name in ("files", "sources", "others")] for entry in entries]
    try:
        texts = [json.dumps(said, separators=(",", ":")) for said in (listed, entries)]
    except TypeError as error:
        raise UnsupportedError(f"a part of the cache: {error}") from error
    head, body = (zlib.compress(text.encode(), 1) for text in texts)
    rest = len(head).to_bytes(LENGTH, "little") + head + body
    return MAGIC + hashlib.blake2b(rest, digest_size=DIGEST).digest() + rest


def list_entries(data: bytes, options: StorageOptions | None = None) -> list[Listed]:
    """Return the files of each entry of a part.

    Raises
    ------
    FormatError
        The bytes are not those that were written.
    """
    head, _ = _split(data)
    try:
        return [_load_listed(_Notes(options), *one) for one in _load_json(head)]
    except DAMAGE as error:
        raise FormatError(f"a part of the cache: {error}; remove it") from error


def load_entry(data: bytes, number: int, options: StorageOptions | None = None) -> Entry:
    """Return an entry of a part.

    Raises
    ------
    FormatError
        The bytes are not those that were written.
    """
    _, body = _split(data)
    try:
        said = _load_json(body)[number]
        notes = _Notes(options)
        listed = _load_listed(notes, *(said[name] for name in ("files", "sources", "others")))
        return Entry(
            *listed,
            notes.load_group(said["group"]),
            said["dim"],
            tuple(map(int, said["lengths"])),
            _load_columns(said["attributes"], len(listed.sources), of_encodings=False),
            _load_columns(said["encodings"], len(listed.sources), of_encodings=True),
            {name: _demand_array(notes.load_data(data)) for name, data in said["stacked"].items()},
            frozenset(said["same"]),
        )
    except DAMAGE as error:
        raise FormatError(f"a part of the cache: {error}; remove it") from error


def _split(data: bytes) -> tuple[bytes, bytes]:
    rest = data[len(MAGIC) + DIGEST :]
    digest = hashlib.blake2b(rest, digest_size=DIGEST).digest()
    if data[: len(MAGIC) + DIGEST] != MAGIC + digest:
        raise FormatError("a part of the cache: its bytes have changed; remove it")
    end = LENGTH + int.from_bytes(rest[:LENGTH], "little")
    return rest[LENGTH:end], rest[end:]


def _load_json(data: bytes) -> Any:
    return json.loads(decode_stream(zlib.decompressobj(), data, None))


def _load_listed(notes: _Notes, files: Any, sources: Any, others: Any) -> Listed:
    notes.table.extend(map(notes.load_file, files))
    return Listed(list(map(notes.find_file, sources)), list(map(notes.find_file, others)))


def _demand_array(data: Data) -> ManifestArray | npt.NDArray[Any]:
    if not isinstance(data, ManifestArray | np.ndarray):
        raise TypeError("an array is none")
    return data


def _dump_columns(columns: OfEachFile) -> list[Any]:
    """Return what differs between files: who has it, its name, the places, and the values there."""
    found, known = list[Any](), dict[int, int]()
    for (owner, name), values in columns.items():
        if (like := known.setdefault(id(values), len(found))) < len(found):
            # variables share the names of their files
            found.append([owner, name, None, {"like": like}])
            continue
        places = [place for place, value in enumerate(values) if value is not ABSENT]
        present = [values[place] for place in places]
        if all(type(value) is str for value in present):
            said: Any = {"texts": present}
        elif all(value is str or isinstance(value, np.dtype) for value in present):
            said = {"dtypes": list(map(_dtype, present))}
        elif all(isinstance(value, set) for value in present):
            said = {"sets": list(map(sorted, present))}
        else:
            said = {"values": to_json({name: present})}
        found.append([owner, name, None if len(places) == len(values) else places, said])
    return found


def _load_columns(said: Any, count: int, *, of_encodings: bool) -> OfEachFile:
    found = dict[tuple[str, str], Sequence[Any]]()
    for owner, name, places, one in said:
        [(kind, present)] = one.items()
        if kind == "like":
            found[owner, name] = list(found.values())[present]
            continue
        if kind == "values":
            present = _attributes(*present)[name]
            present = list(map(_tuples, present)) if of_encodings else present
        elif kind != "texts":
            make: Any = {"dtypes": _dtype_of, "sets": set}[kind]
            present = list(map(make, present))
        values: list[Any] = [ABSENT] * count
        for place, value in zip(range(count) if places is None else places, present, strict=True):
            values[place] = value
        found[owner, name] = values
    return found


def refusal(data: object) -> str | None:
    """Return why an array cannot be read, None for other data."""
    pipelines = data.pipelines if isinstance(data, ManifestArray) else ()
    codecs = (codec for pipeline in pipelines for codec in pipeline.codecs)
    return next((codec.reason for codec in codecs if isinstance(codec, Unreadable)), None)


@dataclass(frozen=True)
class _Notes:
    """Converts groups to JSON, and back; files are numbers in a table."""

    options: StorageOptions | None
    table: list[SourceFile] = field(default_factory=list)
    numbers: dict[SourceFile, int] = field(default_factory=dict)

    def dump_group(self, group: ManifestGroup) -> dict[str, Any]:
        return {
            "attributes": to_json(group.attributes),
            "unlimited": sorted(group.encoding.get("unlimited_dims", ())),
            "variables": {name: self._dump_variable(v) for name, v in group.variables.items()},
            "groups": {name: self.dump_group(child) for name, child in group.groups.items()},
            "left_out": {name: self._dump_variable(v) for name, v in group.left_out.items()},
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
            left_out={name: self._load_variable(*v) for name, v in said["left_out"].items()},
        )

    def _dump_variable(self, variable: ManifestVariable) -> list[Any]:
        encoding = {**variable.encoding}
        if "dtype" in encoding:
            encoding["dtype"] = _dtype(encoding["dtype"])
        data, attributes = self.dump_data(variable.data), to_json(variable.attributes)
        return [variable.dims, data, attributes, to_json(encoding)]

    def _load_variable(
        self, dims: Any, data: Any, attributes: Any, encoding: Any
    ) -> ManifestVariable:
        # JSON has no tuples, which encodings use
        found = {name: _tuples(value) for name, value in _attributes(*encoding).items()}
        if "dtype" in encoding[0]:
            found["dtype"] = _dtype_of(encoding[0]["dtype"])
        return ManifestVariable(tuple(dims), self.load_data(data), _attributes(*attributes), found)

    def dump_data(self, data: Data) -> dict[str, Any]:
        if isinstance(data, np.ndarray):
            return {"shape": data.shape, "dtype": _dtype(data.dtype), "values": _values(data)}
        if not isinstance(data, ManifestArray):
            raise UnsupportedError("its values are lazy")
        if reason := refusal(data):
            return {"shape": data.shape, "dtype": _dtype(data.dtype), "refusal": reason}
        array, parts = extended_to_v3(data)
        dtype = _dtype(data.dtype)
        return {"array": array, "dtype": dtype, "parts": list(map(self._dump_part, parts))}

    def load_data(self, said: Mapping[str, Any]) -> Data:
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
            files=tuple(map(self.find_file, files)),
            inline=tuple(map(_bytes, inline)),
            **{name: unpack(column, steps.get(name)) for name, column in given.items()},
        )
        return ManifestPart(fragment, tuple(origin), manifest)

    def dump_file(self, file: SourceFile) -> int:
        number = self.numbers.setdefault(file, len(self.table))
        if number == len(self.table):
            self.table.append(file)
        return number

    def find_file(self, number: int) -> SourceFile:
        if number < 0:
            raise ValueError(f"there is no file {number}")
        return self.table[number]

    def describe_file(self, file: SourceFile) -> list[Any]:
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
