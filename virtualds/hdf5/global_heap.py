"""The global heap, in which strings and lists of varying length lie, as far as attributes name it.

HDF5 File Format Specification 3.0, III.E, "Global Heap", and IV.A.2.m, "Attribute". HDF5 trusts the
heap: what is damaged there can keep it for ever, or end the process. So it is looked at before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from virtualds.hdf5.data_types import Class
from virtualds.hdf5.file_bytes import FileBytes, uint
from virtualds.hdf5.object_header import SHARED, Message

ATTRIBUTE = 0x0C
"""The type of a message that is an attribute."""
COUNT, INDEX = 4, 4
"""Bytes of the length of a sequence, and of its number in a collection of the heap (IV.B)."""
SORTS = (0, 1)
"""Sorts of types of varying length: sequences and strings (IV.A.2.d)."""
OBJECT = 8
"""Bytes of an object's number and references in a collection, before its length."""


class Attribute(NamedTuple):
    """An attribute as its message has it: the type of its elements, their number, their bytes."""

    name: bytes
    kind: bytes
    elements: int
    data: bytes


def find_attribute(file: FileBytes, messages: Sequence[Message], name: bytes) -> Attribute | None:
    """Return an attribute of an object; None if it lies elsewhere or has a form not known here.

    An object with many attributes keeps them in a heap of its own, whose blocks have checksums.
    """
    for message in messages:
        if message.kind == ATTRIBUTE and not message.flags & SHARED and name in message.data:
            found = _attribute(file, message.data)
            if found is not None and found.name == name:
                return found
    return None


def _attribute(file: FileBytes, data: bytes) -> Attribute | None:
    version = data[0]
    # the type or the dataspace lies elsewhere
    if version not in (1, 2, 3) or (version > 1 and data[1]):
        return None
    begin = 9 if version == 3 else 8
    parts = []
    for at in (2, 4, 6):
        length = uint(data, at, 2)
        parts.append(data[begin : begin + length])
        begin += -(-length // 8) * 8 if version == 1 else length
    if begin > len(data):
        file.refuse("an attribute is longer than the message that it lies in")
    name, kind, space = parts
    return Attribute(name.partition(b"\0")[0], kind, _count(file, space), data[begin:])


def _count(file: FileBytes, space: bytes) -> int:
    """Return how many elements a dataspace has (IV.A.2.b)."""
    if len(space) < 4 or space[0] not in (1, 2):
        file.refuse("an attribute has no dataspace")
    version, rank = space[:2]
    if version == 2 and space[3] == 2:
        return 0
    begin = 8 if version == 1 else 4
    count = 1
    for axis in range(rank):
        count *= file.length_at(space, begin + axis * file.length_size)
    return count


def is_sequence(kind: bytes) -> bool:
    """Say whether elements of a type are strings or sequences of varying length (IV.A.2.d)."""
    return len(kind) >= 16 and kind[0] & 0x0F == Class.VLEN


def sequences(file: FileBytes, attribute: Attribute) -> Iterator[bytes]:
    """Yield the bytes of each element of an attribute of sequences.

    Raises
    ------
    FormatError
        The heap does not hold them.
    """
    yield from _sequences(file, attribute.kind, attribute.elements, attribute.data)


def _sequences(file: FileBytes, kind: bytes, count: int, data: bytes) -> Iterator[bytes]:
    step = COUNT + file.offset_size + INDEX
    if kind[1] & 0x0F not in SORTS:
        file.refuse(f"an attribute is neither of strings nor of sequences, but of {kind[1] & 0x0F}")
    if uint(kind, 4, 4) != step or count * step > len(data):
        file.refuse(f"an attribute has {len(data)} bytes for {count} sequences")
    base = kind[8:]
    size = uint(base, 4, 4)
    for begin in range(0, count * step, step):
        length = uint(data, begin, COUNT)
        address = file.address_at(data, begin + COUNT)
        if not address and not length:
            yield b""
            continue
        found = heap_object(file, address, uint(data, begin + step - INDEX, INDEX))
        if length * size > len(found):
            file.refuse(f"a sequence of {length} elements of {size} bytes has {len(found)} bytes")
        if is_sequence(base):
            for _ in _sequences(file, base, length, found):
                pass
        yield found[: length * size]


def heap_object(file: FileBytes, address: int, number: int) -> bytes:
    """Return an object of the collection at an address.

    Raises
    ------
    FormatError
        There is no such object, or the collection is damaged.
    """
    if address not in file.collections:
        file.collections[address] = _collection(file, address)
    if not number or number not in file.collections[address]:
        file.refuse(f"the global heap at {address} has no object {number}")
    return file.collections[address][number]


def _collection(file: FileBytes, address: int) -> dict[int, bytes]:
    """Return the objects of a collection by their numbers."""
    begin = 8 + file.length_size
    head = file.take(address, begin)
    if head[:4] != b"GCOL" or head[4] != 1:
        file.refuse(f"there is no global heap at {address}")
    size = file.length_at(head, 8)
    data = file.take(address, size)
    found: dict[int, bytes] = {}
    prefix = OBJECT + file.length_size
    # what is left is too little to be free space
    while begin + prefix <= size:
        number, length = uint(data, begin, 2), file.length_at(data, begin + OBJECT)
        # the length of free space, which has the number 0, counts what comes before it
        stop = begin + (length if number == 0 else prefix + length)
        # HDF5 would go round for ever where nothing follows
        if not begin + prefix <= stop <= size or number in found:
            file.refuse(f"the global heap at {address} contradicts itself")
        found[number] = data[begin + prefix : stop]
        begin = stop if number == 0 else begin + prefix + -(-length // 8) * 8
    return found
