"""Attribute messages of HDF5 object headers.

HDF5 File Format Specification 3.0, IV.A.2.m, "Attribute", and IV.A.2.v, "Attribute Info".
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import prod
from operator import attrgetter
from struct import Struct
from typing import NamedTuple

from virtualds.parsers.hdf5.data_types import TypeClass
from virtualds.parsers.hdf5.structure.dataspace import parse_dataspace
from virtualds.parsers.hdf5.structure.dense_attributes import read_dense_messages
from virtualds.parsers.hdf5.structure.file_bytes import FileBytes, parse_uint
from virtualds.parsers.hdf5.structure.message_bytes import (
    MessageError,
    UnknownFormError,
    blame_file,
    cache_by_bytes,
)
from virtualds.parsers.hdf5.structure.notes import cut, free, note_slot
from virtualds.parsers.hdf5.structure.object_header import DATATYPE, Message
from virtualds.parsers.hdf5.structure.shared_messages import read_shared_data, read_unshared

DATASPACE, ATTRIBUTE, ATTRIBUTE_INFO = 0x01, 0x0C, 0x15
"""Types of messages: a dataspace, an attribute, and the place of attributes outside the header."""
ATTRIBUTE_HEAD = Struct("<BBHHH")
"""Version, flags, bytes of name, type and dataspace; in version 3 a byte follows."""
DIMENSION_ONLY = b"This is a netCDF dimension but not a netCDF variable"
"""Start of the NAME of a scale that stands for a dimension without a variable."""
DECISIVE = frozenset({b"CLASS", b"DIMENSION_LIST", b"_Netcdf4Dimid", b"_Netcdf4Coordinates"})
"""Attributes that decide what the dimensions are."""
UNREAD = frozenset({b"REFERENCE_LIST", b"_nc3_strict", b"_NCProperties"})
"""Attributes that nothing here reads."""
IN_PLACE = frozenset(
    {
        TypeClass.INTEGER,
        TypeClass.FLOAT,
        TypeClass.STRING,
        TypeClass.BITFIELD,
        TypeClass.OPAQUE,
        TypeClass.ENUM,
    }
)
"""Classes of types whose values lie in the attribute and refer to nothing."""
TYPE_SHARED, SPACE_SHARED = 0b01, 0b10
"""Flags of an attribute whose type or dataspace lies elsewhere."""


class Attribute(NamedTuple):
    """An attribute as its message has it.

    Parameters
    ----------
    name : bytes
    kind : bytes
        The datatype message of its elements.
    shape : tuple of int or None
        None where it has no elements (a null dataspace).
    data : bytes
        Of the elements, possibly padded.
    owner : int
        Address of the object that has it.
    """

    name: bytes
    kind: bytes
    shape: tuple[int, ...] | None
    data: bytes
    owner: int = 0

    @property
    def key(self) -> tuple[int, bytes]:
        """What its slot is called in notes."""
        return self.owner, self.name

    @property
    def elements(self) -> int:
        """Number of elements."""
        return 0 if self.shape is None else prod(self.shape)


Attributes = dict[bytes, Attribute]


def read_attributes(file: FileBytes, messages: Sequence[Message], owner: int) -> Attributes:
    """Return the attributes of the object at an address in the order of creation, by name.

    Raises
    ------
    FormatError
        An attribute, or the storage of attributes, contradicts itself.
    UnsupportedError
        An attribute has an unknown form.
    """
    listed = [m for m in messages if m.kind == ATTRIBUTE]
    for message in messages:
        if message.kind == ATTRIBUTE_INFO:
            listed += read_dense_messages(file, ATTRIBUTE, message.data)
    found: Attributes = {}
    # without a creation order all numbers are 0, and the sort changes nothing
    listed.sort(key=attrgetter("order"))
    with blame_file(file):
        for message in listed:
            attribute = _parse_attribute(file, read_unshared(file, message), owner)
            if attribute.name in found:
                file.refuse(f"an object has two attributes {attribute.name!r}")
            found[attribute.name] = attribute
    return found


class _Head(NamedTuple):
    """What an attribute has before its elements; ``shape`` is that of a dataspace of its own."""

    name: bytes
    kind: bytes
    space: bytes
    flags: int
    shape: tuple[int, ...] | None


def _parse_attribute(file: FileBytes, data: bytes, owner: int) -> Attribute:
    begin = _measure_head(data)
    name, kind, space, flags, shape = _parse_head(data[:begin], file.length_size)
    if flags & TYPE_SHARED:
        kind = read_shared_data(file, DATATYPE, kind)
    if flags & SPACE_SHARED:
        shape = parse_dataspace(read_shared_data(file, DATASPACE, space), file.length_size).shape
    attribute = Attribute(name, kind, shape, cut(data, begin), owner)
    if file.notes is not None:
        _note_value(attribute)
    return attribute


def _measure_head(data: bytes) -> int:
    """Return where the elements of an attribute begin."""
    if len(data) < ATTRIBUTE_HEAD.size:
        raise MessageError("an attribute is cut short")
    version, _, name, kind, space = ATTRIBUTE_HEAD.unpack_from(data)
    if version == 1:
        # each part is filled up to 8 bytes
        begin = ATTRIBUTE_HEAD.size + (name + 7 & -8) + (kind + 7 & -8) + (space + 7 & -8)
    elif version in (2, 3):
        begin = ATTRIBUTE_HEAD.size + (version == 3) + name + kind + space
    else:
        raise UnknownFormError(f"an attribute of version {version}")
    if begin > len(data):
        raise MessageError("an attribute is longer than the message that it lies in")
    return int(begin)


@cache_by_bytes(8192)
def _parse_head(data: bytes, length_size: int) -> _Head:
    version, flags, *lengths = ATTRIBUTE_HEAD.unpack_from(data)
    # in version 1 the byte has no meaning
    flags = flags if version > 1 else 0
    begin = ATTRIBUTE_HEAD.size + (version == 3)
    parts = []
    for length in lengths:
        parts.append(data[begin : begin + length])
        begin += length if version > 1 else length + 7 & -8
    name, kind, space = parts
    name, _, rest = name.partition(b"\0")
    if not name or rest or len(name) + 1 != lengths[0]:
        raise MessageError("the name of an attribute has no end, or more than one")
    shape = None if flags & SPACE_SHARED else parse_dataspace(space, length_size).shape
    return _Head(name, kind, space, flags, shape)


def _note_value(attribute: Attribute) -> None:
    """Note which bytes of a value decide something, and which may differ."""
    name, data = attribute.name, attribute.data
    size = attribute.elements * parse_uint(attribute.kind, 4, 4)
    if name in UNREAD:
        free(data, 0, len(data))
    elif name == b"NAME":
        free(data, len(DIMENSION_ONLY), len(data))
    elif name not in DECISIVE and attribute.kind[0] & 0x0F in IN_PLACE and size <= len(data):
        note_slot(data, 0, size, attribute.key)
        free(data, size, len(data))


def find_string_size(kind: bytes, paddings: Collection[int]) -> int:
    """Return the bytes of a fixed-length string with such padding; 0 for other types (IV.A.2.d)."""
    if len(kind) < 8 or kind[0] & 0x0F != TypeClass.STRING or kind[1] & 0x0F not in paddings:
        return 0
    return parse_uint(kind, 4, 4)
