"""Attributes as the messages of an object header have them.

HDF5 File Format Specification 3.0, IV.A.2.m, "Attribute", and IV.A.2.v, "Attribute Info".
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import prod
from struct import Struct
from typing import NamedTuple

from virtualds.hdf5.data_types import Class
from virtualds.hdf5.file_bytes import FileBytes, uint
from virtualds.hdf5.object_header import SHARED, Message

ATTRIBUTE, ATTRIBUTE_INFO = 0x0C, 0x15
"""Types of messages: an attribute, and where attributes lie that are not in the header."""
HEAD = Struct("<BBHHH")
"""Version, flags, bytes of name, type and dataspace; in version 3 a byte follows."""
NULL = 2
"""The type of a dataspace that has no elements (IV.A.2.b, version 2)."""


class Attribute(NamedTuple):
    """An attribute as its message has it.

    Parameters
    ----------
    name : bytes
    kind : bytes
        The datatype message of its elements; empty if the type or the shape lies elsewhere.
    shape : tuple of int or None
        None where it has no elements (a null dataspace).
    data : bytes
        Of the elements, perhaps filled up.
    """

    name: bytes
    kind: bytes
    shape: tuple[int, ...] | None
    data: bytes

    @property
    def elements(self) -> int:
        """Number of elements."""
        return 0 if self.shape is None else prod(self.shape)


Attributes = dict[bytes, Attribute]


def read_attributes(file: FileBytes, messages: Sequence[Message]) -> Attributes | None:
    """Return the attributes of an object in the order of creation, by name.

    Returns
    -------
    dict or None
        None where some lie elsewhere, or have a form that is not known here.

    Raises
    ------
    FormatError
        One of them contradicts itself.
    """
    found: Attributes = {}
    # a header that does not keep their order has them in it
    for message in sorted(messages, key=lambda m: m.order):
        if message.kind == ATTRIBUTE_INFO and _lie_elsewhere(file, message.data):
            return None
        if message.kind == ATTRIBUTE:
            attribute = None if message.flags & SHARED else _attribute(file, message.data)
            if attribute is None:
                return None
            found.setdefault(attribute.name, attribute)
    return found


def _lie_elsewhere(file: FileBytes, data: bytes) -> bool:
    # the greatest number of creation comes before the address of the heap
    return file.is_defined(file.address_at(data, 2 + 2 * (data[1] & 1)))


def _attribute(file: FileBytes, data: bytes) -> Attribute | None:
    version, flags, *lengths = HEAD.unpack_from(data) if len(data) >= HEAD.size else (0, 0)
    if version not in (1, 2, 3):
        return None
    begin = HEAD.size + (version == 3)
    parts = []
    for length in lengths:
        parts.append(data[begin : begin + length])
        begin += length if version > 1 else -(-length // 8) * 8
    if begin > len(data):
        file.refuse("an attribute is longer than the message that it lies in")
    name, kind, space = parts
    # HDF5 says what is wrong with another name
    name, _, rest = name.partition(b"\0")
    if not name or rest or len(name) + 1 != lengths[0]:
        return None
    if version > 1 and flags:
        return Attribute(name, b"", None, data[begin:])
    return Attribute(name, kind, _shape(file, space), data[begin:])


def _shape(file: FileBytes, space: bytes) -> tuple[int, ...] | None:
    """Return the shape that a dataspace has (IV.A.2.b)."""
    if len(space) < 4 or space[0] not in (1, 2):
        file.refuse("an attribute has no dataspace")
    version, rank = space[:2]
    if version == 2 and space[3] == NULL:
        return None
    begin = 8 if version == 1 else 4
    if begin + rank * file.length_size > len(space):
        file.refuse(f"an attribute has a dataspace that is too short for {rank} axes")
    return tuple(file.length_at(space, begin + n * file.length_size) for n in range(rank))


def string_size(kind: bytes, paddings: Collection[int]) -> int:
    """Return the bytes of a string of fixed length, padded so; 0 of another type (IV.A.2.d)."""
    if len(kind) < 8 or kind[0] & 0x0F != Class.STRING or kind[1] & 0x0F not in paddings:
        return 0
    return uint(kind, 4, 4)
