"""Datatype messages: the types of HDF5 as the file has them.

HDF5 File Format Specification 3.0, IV.A.2.d. Versions 1 to 5 are known.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from functools import lru_cache
from math import prod
from typing import NamedTuple

from virtualds.parsers.hdf5.structure.file_bytes import FileBytes
from virtualds.parsers.hdf5.structure.messages import (
    MESSAGE_ERRORS,
    MessageError,
    UnknownFormError,
    blame_file,
    demand_end,
    read_bytes,
    read_uint,
    read_uints,
)


class TypeClass(IntEnum):
    """Datatype classes (HDF5 file format, IV.A.2.d, Datatype message)."""

    INTEGER = 0
    FLOAT = 1
    TIME = 2
    STRING = 3
    BITFIELD = 4
    OPAQUE = 5
    COMPOUND = 6
    REFERENCE = 7
    ENUM = 8
    VLEN = 9
    ARRAY = 10
    COMPLEX = 11


VERSIONS = range(1, 6)
"""Known versions: 3 has no padding, 4 has other references, 5 has complex numbers."""
HEAD = 8
"""Bytes that all types begin with: version and class, bits of the class, bytes of an element."""
REGION = 1
"""The sort of references to regions."""
SEQUENCE, TEXT = 0, 1
"""Sorts of types of varying length."""
RECTANGULAR = 1
"""The bits of complex numbers: both parts of one type, in rectangular form."""
DEEPEST = 64
"""Most types within each other."""
MOST_AXES = 32
"""Most axes of an array."""
PROPERTY_LENGTHS = {
    TypeClass.INTEGER: 4,
    TypeClass.FLOAT: 12,
    TypeClass.TIME: 2,
    TypeClass.STRING: 0,
    TypeClass.BITFIELD: 4,
    TypeClass.REFERENCE: 0,
}
"""Bytes behind the head of types that hold no others."""
NUMBERS = frozenset({TypeClass.INTEGER, TypeClass.FLOAT, TypeClass.BITFIELD})
"""Classes of types with a bit offset and a precision."""


class HDF5Type(NamedTuple):
    """A type, and the types that it holds.

    Parameters
    ----------
    kind : TypeClass
        Its class.
    size : int
        Bytes of an element.
    length : int
        Bytes of its message.
    bits : int
        The bit field of the class.
    properties : bytes
        What follows the head: bit offset, precision and so on of a number, the tag of an opaque
        type, the values of an enum.
    parts : tuple of (int, HDF5Type)
        The types that it holds, each with its offset in an element.
    names : tuple of bytes
        Of the members of a compound or an enum.
    dims : tuple of int
        Lengths of the axes of an array.
    """

    kind: TypeClass
    size: int
    length: int
    bits: int = 0
    properties: bytes = b""
    parts: tuple[tuple[int, HDF5Type], ...] = ()
    names: tuple[bytes, ...] = ()
    dims: tuple[int, ...] = ()

    @property
    def sort(self) -> int:
        """The lowest four bits: the padding of a string, the sort of a reference or a sequence."""
        return self.bits & 0x0F

    @property
    def base(self) -> HDF5Type:
        """The type that an enum, an array, a complex number, or a type of varying length holds."""
        return self.parts[0][1]

    @property
    def is_text(self) -> bool:
        """Whether elements are strings of varying length."""
        return self.kind == TypeClass.VLEN and self.sort == TEXT

    @property
    def charset(self) -> int:
        """The character set of a string: 0 for ASCII, 1 for UTF-8."""
        return self.bits >> (8 if self.kind == TypeClass.VLEN else 4) & 0x0F

    @property
    def is_big_endian(self) -> bool:
        """Whether a number begins with its most significant byte."""
        return bool(self.bits & 1)

    @property
    def offset(self) -> int:
        """The first bit of a number."""
        return read_uint(self.properties, 0, 2)

    @property
    def precision(self) -> int:
        """Bits of a number."""
        return read_uint(self.properties, 2, 2)

    @property
    def exponent(self) -> int:
        """Bits of the exponent of a float."""
        return self.properties[5]

    @property
    def fraction(self) -> int:
        """Bits of the fraction of a float."""
        return self.properties[7]

    @property
    def bias(self) -> int:
        """The number that is added to the exponent of a float."""
        return read_uint(self.properties, 8, 4)

    @property
    def refers(self) -> bool:
        """Whether elements refer to the heap."""
        return self.kind == TypeClass.VLEN or any(part.refers for _, part in self.parts)


def is_region(kind: bytes) -> bool:
    """Say whether elements of a type are references to regions of datasets."""
    return len(kind) >= HEAD and kind[0] & 0x0F == TypeClass.REFERENCE and kind[1] & 0x0F == REGION


def parse_type(file: FileBytes, data: bytes) -> HDF5Type:
    """Return the type of a message of a file.

    Raises
    ------
    FormatError
        It contradicts itself.
    UnsupportedError
        It has an unknown form.
    """
    try:
        return parse_type_message(bytes(data))
    except MESSAGE_ERRORS as error:
        blame_file(file, error)


@lru_cache(4096)
def parse_type_message(data: bytes) -> HDF5Type:
    """Return the type of a message.

    Raises
    ------
    MessageError
        It contradicts itself.
    UnknownFormError
        It is of an unknown class or version.
    """
    found = _parse(data, 0, 0)
    # old writers reserved more for members of compounds than they took, and HDF5 reads past it
    behind = data[found.length :]
    if not behind or any(behind):
        demand_end(data, found.length)
    return found


def _parse(data: bytes, place: int, depth: int) -> HDF5Type:
    """Return the type that begins at a place of a message."""
    if depth > DEEPEST:
        raise MessageError("a type holds types without end")
    head = read_bytes(data, place, HEAD)
    version, of_class = head[0] >> 4, head[0] & 0x0F
    bits, size = read_uint(head, 1, 3), read_uint(head, 4, 4)
    if version not in VERSIONS:
        raise UnknownFormError(f"a type of version {version}")
    if of_class not in PARSERS:
        raise UnknownFormError(f"a type of class {of_class}")
    if not size:
        raise MessageError("a type has elements without bytes")
    kind = TypeClass(of_class)
    found = PARSERS[kind](data, place, HDF5Type(kind, size, HEAD, bits), depth + 1)
    if kind != TypeClass.VLEN and any(start + part.size > size for start, part in found.parts):
        raise MessageError(f"a type of {size} bytes holds types that do not lie in it")
    return found


def _parse_plain(data: bytes, place: int, head: HDF5Type, depth: int) -> HDF5Type:
    """Read a type that holds no others."""
    length = PROPERTY_LENGTHS[head.kind]
    properties = read_bytes(data, place + HEAD, length)
    found = head._replace(length=HEAD + length, properties=properties)
    if head.kind in NUMBERS:
        last = found.offset + found.precision
        if not found.precision or last > 8 * head.size:
            raise MessageError(f"a number of {8 * head.size} bits ends at bit {last}")
    if head.kind == TypeClass.FLOAT and not (found.exponent and found.fraction):
        raise MessageError("a float has no exponent, or no fraction")
    return found


def _parse_opaque(data: bytes, place: int, head: HDF5Type, depth: int) -> HDF5Type:
    """Read an opaque type: its tag is filled up to 8 bytes."""
    length = head.bits & 0xFF
    if length % 8:
        raise MessageError(f"an opaque type has a tag of {length} bytes")
    tag = read_bytes(data, place + HEAD, length).partition(b"\0")[0]
    return head._replace(length=HEAD + length, properties=tag)


def _parse_sequence(data: bytes, place: int, head: HDF5Type, depth: int) -> HDF5Type:
    """Read a type of varying length."""
    if head.sort not in (SEQUENCE, TEXT):
        raise MessageError(f"a type of varying length is of sort {head.sort}")
    return _hold(head, _parse(data, place + HEAD, depth), HEAD)


def _parse_complex(data: bytes, place: int, head: HDF5Type, depth: int) -> HDF5Type:
    base = _parse(data, place + HEAD, depth)
    if head.bits != RECTANGULAR or base.kind != TypeClass.FLOAT or head.size != 2 * base.size:
        raise UnknownFormError(f"complex numbers of form {head.bits} and {head.size} bytes")
    return _hold(head, base, HEAD)


def _hold(head: HDF5Type, base: HDF5Type, start: int) -> HDF5Type:
    """Return a type with the one that it holds, whose message starts so many bytes behind it."""
    return head._replace(length=start + base.length, parts=((0, base),))


def _parse_enum(data: bytes, place: int, head: HDF5Type, depth: int) -> HDF5Type:
    """Read an enum: its integer type, all names, all values."""
    base = _parse(data, place + HEAD, depth)
    if base.kind != TypeClass.INTEGER:
        raise UnknownFormError(f"an enum of type {base.kind.name.lower()}")
    if base.size != head.size:
        raise MessageError(f"an enum of {head.size} bytes is made of integers of {base.size}")
    at, names = place + HEAD + base.length, []
    for _ in range(head.bits & 0xFFFF):
        name, at = _read_name(data, place, at)
        names.append(name)
    values = read_bytes(data, at, len(names) * base.size)
    found = _hold(head, base, at + len(values) - place - base.length)
    return found._replace(names=tuple(names), properties=values)


def _read_name(data: bytes, place: int, at: int) -> tuple[bytes, int]:
    """Return a name, and where it ends; before version 3, names are filled up to 8 bytes."""
    end = data.find(b"\0", at)
    if end < 0:
        raise MessageError("a name in a type has no end")
    length = end + 1 - at
    stop = at + (length if data[place] >> 4 >= 3 else -(-length // 8) * 8)
    return data[at:end], stop


def _parse_array(data: bytes, place: int, head: HDF5Type, depth: int) -> HDF5Type:
    old, rank = data[place] >> 4 < 3, read_uint(data, place + HEAD, 1)
    # before version 3 reserved bytes come first, and the order of axes after their lengths
    start = HEAD + (4 if old else 1)
    dims = read_uints(data, place + start, 4, rank)
    start += 4 * rank * (2 if old else 1)
    found = _hold(head, _parse(data, place + start, depth), start)
    return _demand_sound_array(found._replace(dims=dims))


def _demand_sound_array(kind: HDF5Type) -> HDF5Type:
    """Return an array type whose axes and size agree."""
    size = kind.base.size * prod(kind.dims)
    if not 0 < len(kind.dims) <= MOST_AXES or not 0 < size == kind.size:
        raise MessageError(
            f"a type is an array of {kind.dims} elements of {kind.base.size} bytes in {kind.size}"
        )
    return kind


def _parse_compound(data: bytes, place: int, head: HDF5Type, depth: int) -> HDF5Type:
    width = 4 if data[place] >> 4 < 3 else -(-head.size.bit_length() // 8)
    at, names, parts = place + HEAD, [], []
    for _ in range(head.bits & 0xFFFF):
        name, at = _read_name(data, place, at)
        start, axes = read_uint(data, at, width), at + width
        at = axes + (28 if data[place] >> 4 == 1 else 0)
        part = _parse(data, at, depth)
        at += part.length
        if data[place] >> 4 == 1:
            part = _repeat(data, axes, part)
        names.append(name)
        parts.append((start, part))
    _demand_apart(names, parts)
    return head._replace(length=at - place, names=tuple(names), parts=tuple(parts))


def _repeat(data: bytes, place: int, part: HDF5Type) -> HDF5Type:
    """Return the type of a member: version 1 has its axes, at most four, before it."""
    rank = read_uint(data, place, 1)
    if rank > 4:
        raise MessageError(f"a member of a type has {rank} axes")
    if not rank:
        return part
    dims = read_uints(data, place + 12, 4, rank)
    size = part.size * prod(dims)
    array = HDF5Type(TypeClass.ARRAY, size, part.length, parts=((0, part),), dims=dims)
    return _demand_sound_array(array)


def _demand_apart(names: list[bytes], parts: list[tuple[int, HDF5Type]]) -> None:
    """Refuse members that share a name or bytes, and a compound without members."""
    if not 0 < len(names) == len(set(names)):
        raise MessageError("a compound type has no members, or two of one name")
    stop = 0
    for start, part in sorted(parts, key=lambda one: one[0]):
        if start < stop:
            raise MessageError("members of a compound type share bytes")
        stop = start + part.size


Parse = Callable[[bytes, int, HDF5Type, int], HDF5Type]
PARSERS: dict[int, Parse] = {
    **dict.fromkeys(PROPERTY_LENGTHS, _parse_plain),
    TypeClass.OPAQUE: _parse_opaque,
    TypeClass.COMPOUND: _parse_compound,
    TypeClass.ENUM: _parse_enum,
    TypeClass.VLEN: _parse_sequence,
    TypeClass.ARRAY: _parse_array,
    TypeClass.COMPLEX: _parse_complex,
}
"""Parsers of types by class: of a message, the place of the type in it, its head, and how deep it
lies in others."""
