"""Datatype messages, parsed to find references to the global heap.

HDF5 File Format Specification 3.0, IV.A.2.d.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import NamedTuple

from virtualds.parsers.hdf5.data_types import TypeClass
from virtualds.parsers.hdf5.file_bytes import FileBytes, parse_uint

HEAD = 8
"""Bytes that all types begin with: version and class, bits of the class, bytes of an element."""
REGION = 1
"""The sort of references to regions."""
DEEPEST = 64
"""Most types within each other."""
TYPE_LENGTHS = {
    TypeClass.INTEGER: 12,
    TypeClass.FLOAT: 20,
    TypeClass.TIME: 10,
    TypeClass.STRING: 8,
    TypeClass.BITFIELD: 12,
    TypeClass.REFERENCE: 8,
}
"""Bytes of the messages of types that hold no others."""


class HDF5Type(NamedTuple):
    """A type, and the types that it holds.

    Parameters
    ----------
    kind : int
        Its class.
    size : int
        Bytes of an element.
    length : int
        Bytes of its message.
    sort : int
        The lowest four bits of the class: of a type of varying length, whether it is a string.
    parts : tuple of (int, HDF5Type)
        The types that it holds, each with its offset in an element.
    """

    kind: int
    size: int
    length: int
    sort: int = 0
    parts: tuple[tuple[int, HDF5Type], ...] = ()

    @property
    def refers(self) -> bool:
        """Whether elements refer to the heap."""
        return self.kind == TypeClass.VLEN or any(part.refers for _, part in self.parts)


def is_region(kind: bytes) -> bool:
    """Say whether elements of a type are references to regions of datasets."""
    return len(kind) >= HEAD and kind[0] & 0x0F == TypeClass.REFERENCE and kind[1] & 0x0F == REGION


def parse_type(file: FileBytes, data: bytes, depth: int = 0) -> HDF5Type:
    """Return the type at the beginning of some bytes.

    Raises
    ------
    FormatError
        It contradicts itself.
    UnsupportedError
        It is of an unknown class.
    """
    if len(data) < HEAD or depth > DEEPEST:
        file.refuse("a type is cut short, or holds types without end")
    kind, size = data[0] & 0x0F, parse_uint(data, 4, 4)
    if not size:
        file.refuse("a type has elements without bytes")
    if kind in TYPE_LENGTHS:
        return HDF5Type(kind, size, TYPE_LENGTHS[TypeClass(kind)])
    if kind == TypeClass.OPAQUE:
        return HDF5Type(kind, size, HEAD + data[1])
    if kind not in COMPOSITE_PARSERS:
        file.decline(f"a type of class {kind}")
    found = COMPOSITE_PARSERS[TypeClass(kind)](file, data, depth + 1)
    if found.length > len(data):
        file.refuse("a type is longer than the message that it lies in")
    if any(offset + part.size > size for offset, part in found.parts) and kind != TypeClass.VLEN:
        file.refuse(f"a type of {size} bytes holds types that do not lie in it")
    return found


def _parse_wrapper(file: FileBytes, data: bytes, depth: int) -> HDF5Type:
    """Read a type made of one other type: of varying length, or a complex number."""
    base = parse_type(file, data[HEAD:], depth)
    part = (0, base)
    return HDF5Type(
        data[0] & 0x0F, parse_uint(data, 4, 4), HEAD + base.length, data[1] & 0x0F, (part,)
    )


def _parse_enum(file: FileBytes, data: bytes, depth: int) -> HDF5Type:
    """Read an enum: its integer type, all names, all values."""
    base = parse_type(file, data[HEAD:], depth)
    place, count = HEAD + base.length, parse_uint(data, 1, 2)
    for _ in range(count):
        place = _skip_name(file, data, place)
    return HDF5Type(TypeClass.ENUM, parse_uint(data, 4, 4), place + count * base.size)


def _skip_name(file: FileBytes, data: bytes, place: int) -> int:
    """Return where the name at a place ends; before version 3, names are filled up to 8 bytes."""
    end = data.find(b"\0", place)
    if end < 0:
        file.refuse("a name in a type has no end")
    return end + 1 if data[0] >> 4 >= 3 else place + -(-(end + 1 - place) // 8) * 8


def _parse_array(file: FileBytes, data: bytes, depth: int) -> HDF5Type:
    version, rank = data[0] >> 4, parse_uint(data, HEAD, 1)
    # version 2 has reserved bytes here, and the order of axes after their lengths
    place = HEAD + (4 if version < 3 else 1)
    dims = [parse_uint(data, place + 4 * axis, 4) for axis in range(rank)]
    place += 4 * rank * (2 if version < 3 else 1)
    base = parse_type(file, data[place:], depth)
    size = parse_uint(data, 4, 4)
    if not all(dims) or base.size * prod(dims) != size:
        file.refuse(f"a type is an array of {dims} elements of {base.size} bytes in {size}")
    return HDF5Type(TypeClass.ARRAY, size, place + base.length, parts=((0, base),))


def _parse_compound(file: FileBytes, data: bytes, depth: int) -> HDF5Type:
    version, count, size = data[0] >> 4, parse_uint(data, 1, 2), parse_uint(data, 4, 4)
    width = 4 if version < 3 else -(-size.bit_length() // 8)
    place, parts = HEAD, []
    for _ in range(count):
        place = _skip_name(file, data, place)
        offset = parse_uint(data, place, width)
        dims = data[place + 16 : place + 32] if version == 1 else b""
        rank = min(parse_uint(data, place + 4, 1), 4) if version == 1 else 0
        place += width + (28 if version == 1 else 0)
        part = parse_type(file, data[place:], depth)
        place += part.length
        repeats = prod(parse_uint(dims, 4 * axis, 4) for axis in range(rank))
        if repeats != 1:
            part = HDF5Type(TypeClass.ARRAY, repeats * part.size, part.length, parts=((0, part),))
        parts.append((offset, part))
    return HDF5Type(TypeClass.COMPOUND, size, place, parts=tuple(parts))


COMPOSITE_PARSERS: dict[TypeClass, Callable[[FileBytes, bytes, int], HDF5Type]] = {
    TypeClass.COMPOUND: _parse_compound,
    TypeClass.ENUM: _parse_enum,
    TypeClass.VLEN: _parse_wrapper,
    TypeClass.ARRAY: _parse_array,
    TypeClass.COMPLEX: _parse_wrapper,
}
"""Parsers of types that hold others."""
