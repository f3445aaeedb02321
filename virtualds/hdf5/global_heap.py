"""The global heap, in which strings and lists of varying length lie, as far as attributes name it.

HDF5 File Format Specification 3.0, III.E, "Global Heap". HDF5 trusts the
heap: what is damaged there can keep it for ever, or end the process. So it is looked at before.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct

from virtualds.hdf5.attribute_messages import Attribute
from virtualds.hdf5.data_types import Class
from virtualds.hdf5.file_bytes import FORMS, FileBytes, uint

REFERENCES = {size: Struct(f"<I{form}I") for size, form in FORMS.items()}
"""By the bytes of an address: how many elements a sequence has, the address of a collection of the
heap, and the number of the sequence in it (IV.B)."""
SORTS = (0, 1)
"""Sorts of types of varying length: sequences and strings (IV.A.2.d)."""
OBJECT = 8
"""Bytes of an object's number and references in a collection, before its length."""


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
    form = REFERENCES[file.offset_size]
    if kind[1] & 0x0F not in SORTS:
        file.refuse(f"an attribute is neither of strings nor of sequences, but of {kind[1] & 0x0F}")
    if uint(kind, 4, 4) != form.size or count * form.size > len(data):
        file.refuse(f"an attribute has {len(data)} bytes for {count} sequences")
    base = kind[8:]
    size = uint(base, 4, 4)
    for length, address, number in form.iter_unpack(data[: count * form.size]):
        if not address and not length:
            yield b""
            continue
        found = heap_object(file, address, number)
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
