"""A strict notation of datasets in bytes: a closed table of types, and nothing that is called.

It says all that a pickle would say of a dataset of virtual arrays, and reading it can make no other
objects than those of the table, each of which checks itself. Bytes that are no longer what was
written are told by their hash.

::

    magic, 16 bytes of BLAKE2b of the rest, 8 bytes: length of the text, text (JSON), buffers

In the text a string, a number, a truth value and null stand for themselves; anything else is a
list that begins with the tag of its kind.
"""

from __future__ import annotations

import hashlib
import json
import sys
import zlib
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np

from virtualds.array import ManifestArray
from virtualds.codecs import CODECS, Numcodecs
from virtualds.errors import FormatError, VirtualdsError
from virtualds.even_manifest import EvenManifest
from virtualds.fragment import CodecPipeline, Fragment, Hidden
from virtualds.grid import IrregularAxis, RegularAxis, compact
from virtualds.manifest import COLUMNS, ChunkManifest, SourceFile, StorageOptions
from virtualds.packed_columns import Packed, Small, pack, unpack
from virtualds.packing import Packing
from virtualds.time_packing import TimePacking

MAGIC = b"virtualds-notation-1\n"
DIGEST = 16
PLAIN = (str, int, float, bool, type(None))
RECORDS: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        *(ManifestArray, Fragment, RegularAxis, IrregularAxis, CodecPipeline, Hidden),
        *(Packing, TimePacking, Numcodecs, *CODECS),
    )
}
"""Frozen dataclasses, by name; they are noted down field by field."""
CALENDARS = (
    *("datetime", "DatetimeNoLeap", "DatetimeAllLeap", "Datetime360Day", "DatetimeJulian"),
    *("DatetimeGregorian", "DatetimeProlepticGregorian"),
)
"""Classes of cftime."""
DAMAGE = (
    *(VirtualdsError, ValueError, TypeError, LookupError, AttributeError, OverflowError),
    zlib.error,
)
"""What making objects of something else than what was written may end with."""


class UnknownError(Exception):
    """A value that the notation has no words for; it is not written down at all."""


def noted(value: Any, options: StorageOptions | None = None) -> bytes:
    """Return a value in the notation.

    Parameters
    ----------
    value
    options : StorageOptions, optional
        Access options that files may have. They are not written down.

    Raises
    ------
    UnknownError
        Something in it is not of the table of types.
    """
    writer = _Writer(options)
    text = json.dumps(writer.put(value), separators=(",", ":")).encode()
    body = b"".join([len(text).to_bytes(8, "little"), text, *writer.buffers])
    return MAGIC + hashlib.blake2b(body, digest_size=DIGEST).digest() + body


def read_noted(data: bytes, options: StorageOptions | None = None) -> Any:
    """Return what was written down.

    Raises
    ------
    FormatError
        The bytes are not what was written.
    """
    body = data[len(MAGIC) + DIGEST :]
    digest = hashlib.blake2b(body, digest_size=DIGEST).digest()
    if data[: len(MAGIC) + DIGEST] != MAGIC + digest:
        raise FormatError("the notation of a dataset: its bytes have changed; remove it")
    try:
        end = 8 + int.from_bytes(body[:8], "little")
        return _Reader(body[end:], options).get(json.loads(body[8:end]))
    except DAMAGE as error:
        raise FormatError(f"the notation of a dataset: {error}; remove it") from error


class _Writer:
    """Puts values into lists for JSON, and what is long into buffers."""

    def __init__(self, options: StorageOptions | None) -> None:
        self.options = options
        self.buffers: list[bytes] = []
        self._length = 0

    def put(self, value: Any) -> Any:
        kind = type(value)
        if kind in PLAIN:
            return value
        if (put := _PUT.get(kind)) is not None:
            return put(self, value)
        if RECORDS.get(kind.__name__) is kind:
            given = [getattr(value, field.name) for field in fields(value) if field.init]
            return ["record", kind.__name__, *map(self.put, given)]
        if isinstance(value, np.generic) and not value.dtype.hasobject:
            return ["scalar", self.dtype(value.dtype), value.tobytes().hex()]
        if isinstance(value, np.dtype):
            return self.dtype(value)
        cftime = sys.modules.get("cftime")
        if cftime is not None and isinstance(value, cftime.datetime):
            return self._date(value)
        raise UnknownError(f"{kind.__name__}: {value!r}")

    def buffer(self, data: bytes) -> list[int]:
        begin = self._length
        self.buffers.append(data)
        self._length += len(data)
        return [begin, len(data)]

    def dtype(self, value: np.dtype[Any]) -> Any:
        if value.subdtype is not None:
            return ["subarray", *map(self.put, value.subdtype)]
        if value.fields is not None:
            if any(len(field) > 2 for field in value.fields.values()) or value.metadata:
                raise UnknownError(f"the dtype {value!r}")
            members = [(name, *map(self.put, value.fields[name])) for name in value.names or ()]
            return ["struct", value.itemsize, value.isalignedstruct, *members]
        if value.kind == "T":
            raise UnknownError(f"the dtype {value!r}")
        return ["dtype", value.str, *([self.put(dict(value.metadata))] if value.metadata else [])]

    def array(self, value: np.ndarray[Any, Any]) -> Any:
        shape = list(value.shape)
        dtype = self.dtype(value.dtype)
        if value.dtype == object:
            return ["objects", dtype, shape, *map(self.put, value.reshape(-1).tolist())]
        if not value.dtype.itemsize:
            raise UnknownError(f"an array of {value.dtype!r}")
        return ["array", dtype, shape, *self.buffer(value.tobytes())]

    def manifest(self, value: ChunkManifest) -> Any:
        columns = {name: compact(getattr(value, name)) for name in COLUMNS}
        length = columns["length"]
        packed = [pack(c, length if name == "offset" else None) for name, c in columns.items()]
        parts = (value.shape, value.files, value.inline, *packed)
        return ["manifest", *map(self.put, parts)]

    def file(self, value: SourceFile) -> Any:
        if value.options not in (None, self.options):
            raise UnknownError(f"{value.url} with access options of its own")
        return ["file", *value[:4], value.options is not None]

    def _date(self, value: Any) -> Any:
        parts = (value.year, value.month, value.day, value.hour, value.minute, value.second)
        name = type(value).__name__
        if name not in CALENDARS:
            raise UnknownError(f"a date of {type(value)}")
        known = [value.calendar, value.has_year_zero]
        return ["date", name, *known, *map(int, parts), int(value.microsecond)]


_PUT: dict[type[Any], Callable[[_Writer, Any], Any]] = {
    list: lambda to, value: ["list", *map(to.put, value)],
    tuple: lambda to, value: ["tuple", *map(to.put, value)],
    set: lambda to, value: ["set", *map(to.put, value)],
    frozenset: lambda to, value: ["frozenset", *map(to.put, value)],
    dict: lambda to, value: ["dict", *([to.put(k), to.put(v)] for k, v in value.items())],
    bytes: lambda to, value: ["bytes", *to.buffer(value)],
    complex: lambda _, value: ["complex", value.real, value.imag],
    np.ndarray: _Writer.array,
    ChunkManifest: _Writer.manifest,
    EvenManifest: lambda to, value: to.manifest(value.loaded()),
    SourceFile: _Writer.file,
    Packed: lambda to, value: ["packed", *map(to.put, value)],
    Small: lambda to, value: ["small", *map(to.put, value)],
    type: lambda _, value: ["type", value.__name__] if value is str else _unknown(value),
}


def _unknown(value: Any) -> Any:
    raise UnknownError(repr(value))


class _Reader:
    """Makes values of what stands in the text."""

    def __init__(self, buffers: bytes, options: StorageOptions | None) -> None:
        self._buffers, self._options = buffers, options

    def get(self, noted: Any) -> Any:
        if not isinstance(noted, list):
            return noted
        tag, *rest = noted
        return _GET[tag](self, *rest)

    def all(self, noted: Any) -> list[Any]:
        return [self.get(item) for item in noted]

    def bytes(self, begin: int, length: int) -> bytes:
        if not 0 <= begin <= begin + length <= len(self._buffers):
            raise FormatError(f"bytes {begin} to {begin + length} of {len(self._buffers)}")
        return self._buffers[begin : begin + length]

    def dtype(self, name: str, metadata: Any = None) -> np.dtype[Any]:
        return np.dtype(name, metadata=self.get(metadata)) if metadata else np.dtype(name)

    def struct(self, itemsize: int, aligned: bool, *members: Any) -> np.dtype[Any]:
        names, formats, offsets = zip(*members, strict=True) if members else ((), (), ())
        parts: Any = {"names": names, "formats": self.all(formats), "offsets": offsets}
        parts["itemsize"] = itemsize
        found: np.dtype[Any] = np.dtype(parts, align=aligned)
        return found

    def array(self, dtype: Any, shape: list[int], begin: int, length: int) -> Any:
        # a copy, for who opened a file may write into what was loaded of it
        return np.frombuffer(self.bytes(begin, length), self.get(dtype)).reshape(shape).copy()

    def objects(self, dtype: Any, shape: list[int], *items: Any) -> Any:
        flat = np.empty(len(items), self.get(dtype))
        flat[:] = self.all(items)
        return flat.reshape(shape)

    def record(self, name: str, *values: Any) -> Any:
        kind = RECORDS[name]
        names = [field.name for field in fields(kind) if field.init]
        return kind(**dict(zip(names, self.all(values), strict=True)))

    def manifest(self, *parts: Any) -> ChunkManifest:
        shape, files, inline, *packed = self.all(parts)
        given = dict(zip(COLUMNS, packed, strict=True))
        length = unpack(given["length"])
        columns = {n: unpack(c, length if n == "offset" else None) for n, c in given.items()}
        return ChunkManifest.build(shape, files=files, inline=inline, **columns)

    def file(self, url: str, size: Any, mtime: Any, etag: Any, has_options: bool) -> SourceFile:
        return SourceFile(url, size, mtime, etag, self._options if has_options else None)

    def date(self, name: str, calendar: str, has_year_zero: bool, *parts: int) -> Any:
        import cftime

        if name not in CALENDARS:
            raise FormatError(f"a date of {name}")
        known = {"calendar": calendar} if name == "datetime" else {}
        return getattr(cftime, name)(*parts, has_year_zero=has_year_zero, **known)

    def scalar(self, dtype: Any, text: str) -> Any:
        kind, data = self.get(dtype), bytes.fromhex(text)
        return np.frombuffer(data, kind)[0] if kind.itemsize else kind.type()


_GET: dict[str, Callable[..., Any]] = {
    "list": lambda of, *items: of.all(items),
    "tuple": lambda of, *items: tuple(of.all(items)),
    "set": lambda of, *items: set(of.all(items)),
    "frozenset": lambda of, *items: frozenset(of.all(items)),
    "dict": lambda of, *items: {of.get(key): of.get(value) for key, value in items},
    "bytes": _Reader.bytes,
    "complex": lambda _, real, imaginary: complex(real, imaginary),
    "array": _Reader.array,
    "objects": _Reader.objects,
    "scalar": _Reader.scalar,
    "dtype": _Reader.dtype,
    "struct": _Reader.struct,
    "subarray": lambda of, dtype, shape: np.dtype((of.get(dtype), of.get(shape))),
    "type": lambda _, name: {"str": str}[name],
    "date": _Reader.date,
    "record": _Reader.record,
    "manifest": _Reader.manifest,
    "packed": lambda of, *items: Packed(*of.all(items)),
    "small": lambda of, *items: Small(*of.all(items)),
    "file": _Reader.file,
}
