"""Elements of HDF4 files: data descriptors, metadata elements, Vgroups and Vdatas.

HDF Specification and Developer's Guide (HDF 4.2): section 2 (data descriptors), 6 (Vgroups and
Vdatas), 9.2 (tags), 10 (extended tags: linked blocks, external elements). Damaged
files raise `FormatError`, unsupported features `UnsupportedError`.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from io import BufferedReader
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from virtualds.bounds import check_chunk
from virtualds.codecs.codec import CodecError
from virtualds.codecs.pipeline import CodecPipeline
from virtualds.errors import FormatError, ReadError, UnsupportedError, make_damage_error
from virtualds.source_file import SourceFile, local_path, scheme_of
from virtualds.stores import find_store
from virtualds.stores.block_cache import BlockFile
from virtualds.stores.scan_cache import open_remote, prefetch_ranges
from virtualds.stores.store import Range, StoreError

MAX_AXES = 32
"""Maximum number of axes of a data set (MAX_VAR_DIMS)."""


@dataclass(frozen=True)
class PiecewiseArray:
    """An array in pieces that cannot be chunks; each read fetches, joins and decodes the pieces.

    Parameters
    ----------
    source : SourceFile
    pieces : tuple of ranges
        The byte ranges of the pieces, in order.
    nbytes : int
        The size in bytes of the decoded values.
    shape : tuple of int
    pipeline : CodecPipeline
    """

    source: SourceFile
    pieces: tuple[Range, ...]
    nbytes: int
    shape: tuple[int, ...]
    pipeline: CodecPipeline

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the values."""
        return self.pipeline.decoded_dtype

    def read(self, key: Sequence[Any]) -> npt.NDArray[Any]:
        """Return a selection: per axis an int, a slice, or a 1-D array of positions."""
        indexes = _select(np.broadcast_to(np.zeros((), self.dtype), self.shape), key)
        check_chunk(self.nbytes, indexes.nbytes, self.source.url)
        try:
            data: Any = b"".join(find_store(self.source.url).get_ranges(self.source, self.pieces))
            for codec in reversed(self.pipeline.codecs):
                data = codec.decode(data, self.nbytes)
        except (StoreError, CodecError) as error:
            raise ReadError(f"{self.source.url}: {error}; fetch the file again") from error
        values = np.frombuffer(data, self.pipeline.dtype, prod(self.shape)).reshape(self.shape)
        return _select(values, key).astype(self.dtype)


def _select(values: npt.NDArray[Any], key: Sequence[Any]) -> npt.NDArray[Any]:
    """Return an orthogonal selection of an array."""
    for axis in range(len(key) - 1, -1, -1):
        values = values[(slice(None),) * axis + (key[axis],)]
    return values


# ---------------------------------------------------------------------- elements

MAGIC = b"\x0e\x03\x13\x01"
NULL, LINKED, COMPRESSED, CHUNK = 1, 20, 40, 61
NUMBER_TYPE, OLD_GROUP, DIMENSIONS, DATA = 106, 700, 701, 702
LABELS, UNITS, FORMATS, SCALES, RANGE, COORDINATE_SYSTEM = 704, 705, 706, 703, 707, 708
LINK, NUMERIC_GROUP, CALIBRATION, FILL = 710, 720, 731, 732
VDATA, VDATA_VALUES, VGROUP = 1962, 1963, 1965
"""Tags of elements (section 9.2)."""
VALUE_TAGS = (DATA, COMPRESSED, CHUNK, LINKED, SCALES)
"""Tags of elements with values, which are not read by a scan."""
MAX_PREFETCHED_BYTES = 2**16
"""Maximum size in bytes of elements that are prefetched."""
PREFETCH_BATCH = 256
"""Number of elements that are prefetched together."""
EXTENDED = 2**14
"""Bit of a tag that marks an extended element."""
USER_DEFINED = 2**15
"""Bit of tags that are not defined by HDF."""
LINKED_BLOCKS, EXTERNAL, ENCODED, CHUNKED = 1, 2, 3, 5
"""Kinds of extended elements (section 10)."""
ABSENT = 2**32 - 1
"""Offset that marks an element that was never written."""
MAX_OFFSET = 2**31 - 1
"""Largest offset and length; the library treats larger numbers as negative."""
DESCRIPTOR = struct.Struct(">HHII")
BLOCK_HEADER = struct.Struct(">HI")

Key = tuple[int, int]
"""Tag and reference number of an element."""


class Descriptor(NamedTuple):
    """The location of an element, or of the header of an extended element."""

    offset: int
    length: int
    is_extended: bool


class Elements:
    """The elements of a file, by tag and reference number.

    Parameters
    ----------
    file : binary file
    source : SourceFile
    """

    def __init__(self, file: BufferedReader | BlockFile, source: SourceFile) -> None:
        self.source = source
        self._file = file
        self._size = file.seek(0, os.SEEK_END)
        self.descriptors = dict(self._read_descriptors())
        # prefetch the small elements of a remote file, which a scan reads, with few requests
        small = sorted(
            (descriptor.offset, descriptor.length)
            for (tag, _), descriptor in self.descriptors.items()
            if (descriptor.is_extended or tag not in VALUE_TAGS)
            and 0 < descriptor.length <= MAX_PREFETCHED_BYTES
        )
        # the cache fetches nothing if too many bytes are requested at once
        for first in range(0, len(small), PREFETCH_BATCH):
            prefetch_ranges({self.source: small[first : first + PREFETCH_BATCH]})

    def _read_descriptors(self) -> Iterator[tuple[Key, Descriptor]]:
        """Yield the keys and descriptors of all descriptor blocks (section 2.2)."""
        block_offset, seen, keys = len(MAGIC), set[int](), set[Key]()
        while block_offset:
            if block_offset in seen:
                raise FormatError("its blocks of descriptors form a cycle; fetch the file again")
            seen.add(block_offset)
            begin = block_offset + BLOCK_HEADER.size
            header = self.read_range(block_offset, BLOCK_HEADER.size)
            count, block_offset = BLOCK_HEADER.unpack(header)
            data = self.read_range(begin, count * DESCRIPTOR.size)
            for tag, ref, offset, length in DESCRIPTOR.iter_unpack(data):
                if tag != NULL:
                    is_extended = bool(tag & EXTENDED and not tag & USER_DEFINED)
                    key = (tag - EXTENDED * is_extended, ref)
                    if key in keys:
                        raise make_damage_error(f"element {key} is described twice")
                    keys.add(key)
                    yield key, Descriptor(offset, length, is_extended)

    def list_refs(self, tag: int) -> list[int]:
        """Return the reference numbers of all elements of a tag, sorted."""
        return sorted(ref for other_tag, ref in self.descriptors if other_tag == tag)

    def find(self, key: Key) -> Descriptor | None:
        """Return the location of an element, or None if it does not exist or was never written."""
        descriptor = self.descriptors.get(key)
        if descriptor is None or descriptor.offset == ABSENT:
            return None
        if max(descriptor.offset, descriptor.length) > MAX_OFFSET:
            raise make_damage_error(
                f"element {key} has {descriptor.length} bytes at byte {descriptor.offset}, and "
                "files of HDF4 end before 2 GiB"
            )
        return descriptor

    def read_range(self, offset: int, length: int) -> bytes:
        """Return the bytes of a range of the file."""
        self._file.seek(offset)
        # no memory is allocated for a damaged length
        data = self._file.read(max(min(length, self._size - offset), 0))
        if len(data) < length:
            raise FormatError(
                f"an element reaches to byte {offset + length}, and the file ends at "
                f"{offset + len(data)}; it is truncated or damaged, fetch it again"
            )
        return data

    def read_raw(self, key: Key) -> bytes:
        """Return the bytes at the location of an element, or b"" if it is missing."""
        descriptor = self.find(key)
        return b"" if descriptor is None else self.read_range(descriptor.offset, descriptor.length)

    def read(self, key: Key) -> bytes:
        """Return the bytes of an element, which may be in linked blocks."""
        descriptor = self.find(key)
        if descriptor is None or not descriptor.is_extended:
            return self.read_raw(key)
        kind = self.find_kind(key)
        if kind != LINKED_BLOCKS:
            raise UnsupportedError(
                f"element {key} is metadata in an extended form ({kind}), which is not read; "
                f"read the file with pyhdf"
            )
        return b"".join(self.read_range(*piece) for piece in self.list_blocks(key))

    def find_kind(self, key: Key) -> int:
        """Return the kind of an extended element, or 0 for a plain or missing element."""
        descriptor = self.find(key)
        if descriptor is None or not descriptor.is_extended:
            return 0
        return int(unpack(">H", self.read_range(descriptor.offset, min(descriptor.length, 2)))[0])

    def list_blocks(self, key: Key) -> list[Range]:
        """Return the locations of the bytes of an element in linked blocks (section 10.3)."""
        _, remaining, _, count, ref = unpack(">HIIIH", self.read_raw(key))
        ranges: list[Range] = []
        tables = set[int]()
        while remaining > 0:
            if ref in tables or (LINKED, ref) not in self.descriptors:
                raise make_damage_error(
                    f"element {key} lacks {remaining} bytes of its linked blocks"
                )
            tables.add(ref)
            table = self.read_raw((LINKED, ref))
            ref, *blocks = unpack(f">{1 + min(count, len(table) // 2 - 1)}H", table)
            for block in blocks:
                descriptor = self.find((LINKED, block))
                if remaining <= 0:
                    break
                if descriptor is None or not descriptor.length:
                    raise UnsupportedError(
                        f"element {key} has linked blocks that were never written, which are not "
                        f"read; read the variable with pyhdf"
                    )
                ranges.append((descriptor.offset, min(descriptor.length, remaining)))
                remaining -= descriptor.length
        return ranges


def unpack(form: str, data: bytes) -> tuple[Any, ...]:
    """Return the values at the start of bytes, by a format of `struct`.

    Examples
    --------
    >>> unpack(">HI", bytes([0, 1, 0, 0, 0, 2, 9]))
    (1, 2)
    """
    layout = _compile(form)
    if len(data) < layout.size:
        raise make_damage_error(f"a structure of {layout.size} bytes has {len(data)}")
    return layout.unpack_from(data)


_compile = lru_cache(1024)(struct.Struct)


@contextmanager
def open_elements(source: SourceFile) -> Iterator[Elements]:
    """Open a file, local or remote, and read its descriptors."""
    is_local = scheme_of(source.url) == "file"
    # a remote file is not buffered, since elements are small and far apart
    with open(local_path(source.url), "rb") if is_local else open_remote(source) as file:
        yield Elements(file, source)


# ---------------------------------------------------------------------- tables

DTYPES = {
    **{3: "u1", 4: "S1", 5: "f4", 6: "f8", 20: "i1", 21: "u1", 22: "i2", 23: "u2"},
    **{24: "i4", 25: "u4", 26: "i8", 27: "u8"},
}
"""Dtypes by the code of the number type (section 4.3)."""
NATIVE_BIT, LITTLE_ENDIAN_BIT, CODE_MASK = 0x1000, 0x4000, 0xFFF
"""Bits of a number type for its byte order, and the mask of its code."""


SUPPORTED_VERSIONS = (2, 3, 4)
"""Supported versions of Vgroups; version 4 also has flags and attributes."""
VDATA_VERSIONS = (3, 4)
"""Supported versions of Vdatas; older ones have other codes of number types."""
BYTES_AFTER_VERSION = 3
"""Number of bytes after the version, at the end of a header; they are unused."""


@dataclass(frozen=True)
class Vgroup:
    """A Vgroup: name, class and members."""

    name: str
    class_name: str
    members: tuple[Key, ...]


class Vdata(NamedTuple):
    """The header of a Vdata: the layout of its records, and types and orders of its fields."""

    name: str
    class_name: str
    interlace: int
    records: int
    size: int
    types: tuple[int, ...]
    orders: tuple[int, ...]


def find_dtype(code: int, order: str = ">") -> np.dtype[Any]:
    """Return the dtype for the code of a number type.

    Examples
    --------
    >>> find_dtype(22)
    dtype('>i2')
    """
    if code not in DTYPES:
        raise UnsupportedError(
            f"number type {code} has no numpy dtype; leave the variable out with drop_variables"
        )
    return np.dtype(DTYPES[code]).newbyteorder(order)  # type: ignore[arg-type]


def read_vgroup(elements: Elements, ref: int) -> Vgroup:
    """Return a Vgroup (section 6.2.1)."""
    data = elements.read((VGROUP, ref))
    (count,) = unpack(">H", data)
    numbers = unpack(f">{2 * count}H", data[2:])
    name, tail = _parse_text(data[2 + 4 * count :])
    class_name, _ = _parse_text(tail)
    # read the version from the end, since flags and attributes may precede it
    _check_version(f"Vgroup {name!r}", _read_last_version(data), SUPPORTED_VERSIONS)
    return Vgroup(name, class_name, tuple(zip(numbers[:count], numbers[count:], strict=True)))


def read_numeric_group(elements: Elements, key: Key) -> dict[int, int]:
    """Return the members of a numeric data group, as reference numbers by tag (section 9.3.5)."""
    data = elements.read(key)
    numbers = unpack(f">{len(data) // 4 * 2}H", data)
    return dict(zip(numbers[::2], numbers[1::2], strict=True))


def read_vdata(elements: Elements, ref: int) -> Vdata:
    """Return the header of a Vdata (section 6.2.2)."""
    data = elements.read((VDATA, ref))
    interlace, count, size, fields = unpack(">HIHH", data)
    columns = unpack(f">{4 * fields}H", data[10:])
    tail = data[10 + 8 * fields :]
    for _ in range(fields):
        _, tail = _parse_text(tail)
    name, tail = _parse_text(tail)
    class_name, tail = _parse_text(tail)
    _, _, version = unpack(">HHH", tail)
    # the library uses the last version, and returns unrelated memory if it is unsupported
    if (last := _read_last_version(data)) != version:
        raise make_damage_error(
            f"Vdata {name!r} is of version {version}, and of version {last} at its end"
        )
    _check_version(f"Vdata {name!r}", version, VDATA_VERSIONS)
    return Vdata(name, class_name, interlace, count, size, columns[:fields], columns[3 * fields :])


def read_values(elements: Elements, ref: int, vdata: Vdata) -> npt.NDArray[Any]:
    """Return the values of a Vdata of one field."""
    if len(vdata.types) != 1 or vdata.types[0] & NATIVE_BIT:
        raise UnsupportedError(
            f"Vdata {vdata.name!r} has {len(vdata.types)} fields, or numbers of another machine; "
            f"read it with pyhdf"
        )
    [number_type], [order] = vdata.types, vdata.orders
    dtype = find_dtype(number_type & CODE_MASK, "<" if number_type & LITTLE_ENDIAN_BIT else ">")
    data = elements.read((VDATA_VALUES, ref))
    size = vdata.records * order * dtype.itemsize
    if len(data) < size:
        raise make_damage_error(f"Vdata {vdata.name!r} has {len(data)} of {size} bytes")
    return np.frombuffer(data[:size], dtype)


def read_records(elements: Elements, ref: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return the records of a fully interlaced Vdata, as an array of a structured dtype."""
    data, table = elements.read((VDATA_VALUES, ref)), read_vdata(elements, ref)
    nbytes = table.records * dtype.itemsize
    if table.interlace or table.size != dtype.itemsize or len(data) < nbytes:
        raise make_damage_error(
            f"Vdata {ref}: {len(data)} bytes are not {table.records} records of {dtype.itemsize} "
            "bytes"
        )
    return np.frombuffer(data[:nbytes], dtype)


def _read_last_version(data: bytes) -> int:
    """Return the version at the end of the data of a Vgroup or Vdata."""
    (version,) = unpack(">H", data[-BYTES_AFTER_VERSION - 2 :])
    return int(version)


def _check_version(name: str, version: int, versions: tuple[int, ...]) -> None:
    """Raise `FormatError` for an unsupported version."""
    if version not in versions:
        raise make_damage_error(f"{name} is of version {version}")


def _parse_text(data: bytes) -> tuple[str, bytes]:
    """Return a string that is preceded by its length, and the bytes after it."""
    (length,) = unpack(">H", data)
    (text,) = unpack(f">{length}s", data[2:])
    return decode_text(text), data[2 + length :]


def decode_text(data: bytes) -> str:
    """Decode a string up to its first NUL as UTF-8, or as Latin-1 if it is not UTF-8.

    Examples
    --------
    >>> decode_text(b"K" + bytes(3)), decode_text(bytes([0xB0]))
    ('K', '°')
    """
    text = data.partition(b"\0")[0]
    try:
        return text.decode()
    except UnicodeDecodeError:
        return text.decode("latin-1")
