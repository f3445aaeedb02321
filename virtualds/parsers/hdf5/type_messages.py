"""Datatype messages, as far as it matters where elements refer to the global heap.

HDF5 File Format Specification 3.0, IV.A.2.d.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import NamedTuple

from virtualds.parsers.hdf5.data_types import Class
from virtualds.parsers.hdf5.file_bytes import FileBytes, uint

HEAD = 8
"""Bytes of what all types have: version and class, bits of the class, bytes of an element."""
REGION = 1
"""The sort of references to regions."""
DEEPEST = 64
"""Types within types that are followed."""
LENGTHS = {
    Class.INTEGER: 12,
    Class.FLOAT: 20,
    Class.TIME: 10,
    Class.STRING: 8,
    Class.BITFIELD: 12,
    Class.REFERENCE: 8,
}
"""Bytes of the messages of types that hold no others."""


class Type(NamedTuple):
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
    parts : tuple of (int, Type)
        The types that it holds, each with its offset in an element.
    """

    kind: int
    size: int
    length: int
    sort: int = 0
    parts: tuple[tuple[int, Type], ...] = ()

    @property
    def refers(self) -> bool:
        """Whether elements refer to the heap."""
        return self.kind == Class.VLEN or any(part.refers for _, part in self.parts)


def is_region(kind: bytes) -> bool:
    """Say whether elements of a type are references to regions of datasets."""
    return len(kind) >= HEAD and kind[0] & 0x0F == Class.REFERENCE and kind[1] & 0x0F == REGION


def read_type(file: FileBytes, data: bytes, depth: int = 0) -> Type:
    """Return the type at the beginning of some bytes.

    Raises
    ------
    FormatError
        It contradicts itself.
    UnsupportedError
        It is of a class that is not known.
    """
    if len(data) < HEAD or depth > DEEPEST:
        file.refuse("a type is cut short, or holds types without end")
    kind, size = data[0] & 0x0F, uint(data, 4, 4)
    if not size:
        file.refuse("a type has elements without bytes")
    if kind in LENGTHS:
        return Type(kind, size, LENGTHS[Class(kind)])
    if kind == Class.OPAQUE:
        return Type(kind, size, HEAD + data[1])
    if kind not in HOLDING:
        file.decline(f"a type of class {kind}")
    found = HOLDING[Class(kind)](file, data, depth + 1)
    if found.length > len(data):
        file.refuse("a type is longer than the message that it lies in")
    if any(offset + part.size > size for offset, part in found.parts) and kind != Class.VLEN:
        file.refuse(f"a type of {size} bytes holds types that do not lie in it")
    return found


def _around(file: FileBytes, data: bytes, depth: int) -> Type:
    """Read a type that is made of one other: of varying length, or a complex number."""
    base = read_type(file, data[HEAD:], depth)
    part = (0, base)
    return Type(data[0] & 0x0F, uint(data, 4, 4), HEAD + base.length, data[1] & 0x0F, (part,))


def _enum(file: FileBytes, data: bytes, depth: int) -> Type:
    """Read names of integers: the type of these, all names, all values."""
    base = read_type(file, data[HEAD:], depth)
    place, count = HEAD + base.length, uint(data, 1, 2)
    for _ in range(count):
        place = _after_name(file, data, place)
    return Type(Class.ENUM, uint(data, 4, 4), place + count * base.size)


def _after_name(file: FileBytes, data: bytes, place: int) -> int:
    """Return where the name at a place ends; before version 3, names are filled up to 8 bytes."""
    end = data.find(b"\0", place)
    if end < 0:
        file.refuse("a name in a type has no end")
    return end + 1 if data[0] >> 4 >= 3 else place + -(-(end + 1 - place) // 8) * 8


def _array(file: FileBytes, data: bytes, depth: int) -> Type:
    version, rank = data[0] >> 4, uint(data, HEAD, 1)
    # in version 2 bytes of nothing follow, and after the lengths of axes their order
    place = HEAD + (4 if version < 3 else 1)
    dims = [uint(data, place + 4 * axis, 4) for axis in range(rank)]
    place += 4 * rank * (2 if version < 3 else 1)
    base = read_type(file, data[place:], depth)
    size = uint(data, 4, 4)
    if not all(dims) or base.size * prod(dims) != size:
        file.refuse(f"a type is an array of {dims} elements of {base.size} bytes in {size}")
    return Type(Class.ARRAY, size, place + base.length, parts=((0, base),))


def _compound(file: FileBytes, data: bytes, depth: int) -> Type:
    version, count, size = data[0] >> 4, uint(data, 1, 2), uint(data, 4, 4)
    width = 4 if version < 3 else -(-size.bit_length() // 8)
    place, parts = HEAD, []
    for _ in range(count):
        place = _after_name(file, data, place)
        offset = uint(data, place, width)
        dims = data[place + 16 : place + 32] if version == 1 else b""
        rank = min(uint(data, place + 4, 1), 4) if version == 1 else 0
        place += width + (28 if version == 1 else 0)
        part = read_type(file, data[place:], depth)
        place += part.length
        repeats = prod(uint(dims, 4 * axis, 4) for axis in range(rank))
        if repeats != 1:
            part = Type(Class.ARRAY, repeats * part.size, part.length, parts=((0, part),))
        parts.append((offset, part))
    return Type(Class.COMPOUND, size, place, parts=tuple(parts))


HOLDING: dict[Class, Callable[[FileBytes, bytes, int], Type]] = {
    Class.COMPOUND: _compound,
    Class.ENUM: _enum,
    Class.VLEN: _around,
    Class.ARRAY: _array,
    Class.COMPLEX: _around,
}
"""What reads types that hold others."""
