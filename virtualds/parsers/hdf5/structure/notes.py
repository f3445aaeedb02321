"""Notes on the bytes of an HDF5 file: what depends on each of them.

While a file is parsed, every byte is *structure*, unless a parser says otherwise: it decides what
is read next, or what the file is. Other bytes are addresses, slots (values that may differ between
files of one structure), checksums, or mean nothing. A blueprint is made of the notes
(`virtualds.parsers.hdf5.alike_files.blueprint`).

A file without notes is read as plain `bytes` and `int`; the functions here then do nothing.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

FIXED = -1
"""The number of the block of an address that is the same in all files."""


class Pointer(NamedTuple):
    """Where an address stands: the number of a block, and the place in it."""

    block: int
    place: int


class Address(int):
    """An address that knows where it stands in the file."""

    pointer: Pointer


class Piece(bytes):
    """Bytes that know where they lie: in which block, and from where on."""

    notes: Notes
    block: int
    begin: int


@dataclass(eq=False)
class Block:
    """Bytes that were read at an address.

    Parameters
    ----------
    pointer : Pointer
        Where the address stands.
    data : bytes
    structure : bytearray
        For each byte, 1 if it is structure.
    """

    pointer: Pointer
    data: bytes
    structure: bytearray


class Slot(NamedTuple):
    """Bytes that may differ between files of one structure."""

    block: int
    begin: int
    length: int


class HeapReference(NamedTuple):
    """A reference to an object of the global heap: the bytes of the object are a slot.

    ``counted`` is where the elements of the object are counted, in four bytes before the address of
    the collection ``block``; each element has ``width`` bytes.
    """

    counted: Slot
    block: int
    number: int
    width: int


@dataclass(eq=False)
class Notes:
    """What the bytes of one file mean.

    Parameters
    ----------
    blocks : list of Block
        In the order in which they were read; an address stands in a block before its own.
    slots : dict
        What may differ between files, by what it is.
    references : dict
        Objects of the global heap that may differ, by what they are.
    same : list of (Pointer, int)
        Addresses that are those of blocks.
    checksums : dict of int to int
        The place of the checksum of a block.
    objects : dict of int to list of (int, int, int)
        For a collection of the global heap: number, begin and length of each object.
    complete : bool
        Whether all bytes that were read are noted.
    """

    blocks: list[Block] = field(default_factory=list)
    slots: dict[Hashable, Slot] = field(default_factory=dict)
    references: dict[Hashable, list[HeapReference]] = field(default_factory=dict)
    same: list[tuple[Pointer, int]] = field(default_factory=list)
    checksums: dict[int, int] = field(default_factory=dict)
    objects: dict[int, list[tuple[int, int, int]]] = field(default_factory=dict)
    complete: bool = True
    _numbers: dict[int, int] = field(default_factory=dict)

    def add(self, address: int, data: bytes) -> bytes:
        """Note a block that was read, and return its bytes with their place."""
        if not isinstance(address, Address):
            self.complete = False
            return data
        number = self._numbers.setdefault(int(address), len(self.blocks))
        if number == len(self.blocks):
            self.blocks.append(Block(address.pointer, data, bytearray(b"\1") * len(data)))
        elif len(self.blocks[number].data) != len(data):
            self.complete = False
            return data
        else:
            self.same.append((address.pointer, number))
        return _make_piece(self, number, 0, data)

    def find(self, address: int) -> int | None:
        """Return the number of the block at an address, None if it was not read."""
        return self._numbers.get(int(address))


def _make_piece(notes: Notes, block: int, begin: int, data: bytes) -> Piece:
    piece = Piece(data)
    piece.notes, piece.block, piece.begin = notes, block, begin
    return piece


def fix(address: int) -> Address:
    """Return an address that is the same in all files."""
    return _make_address(address, FIXED, address)


def _make_address(value: int, block: int, place: int) -> Address:
    address = Address(value)
    address.pointer = Pointer(block, place)
    return address


def cut(data: bytes, begin: int, stop: int | None = None) -> bytes:
    """Return a part of some bytes, with its place if theirs is known."""
    if not isinstance(data, Piece):
        return data[begin:stop]
    return _make_piece(data.notes, data.block, data.begin + begin, data[begin:stop])


def note_address(data: bytes, place: int, size: int, value: int) -> int:
    """Return an address that was read at a place of some bytes, with that place."""
    if not isinstance(data, Piece):
        return value
    free(data, place, place + size)
    return _make_address(value, data.block, data.begin + place)


def free(data: bytes, begin: int, stop: int) -> None:
    """Note that bytes mean nothing, or are noted otherwise."""
    if isinstance(data, Piece):
        _mark(data, begin, stop, b"\0")


def keep(data: bytes, begin: int, stop: int) -> None:
    """Note that bytes that were free are structure."""
    if isinstance(data, Piece):
        _mark(data, begin, stop, b"\1")


def _mark(data: Piece, begin: int, stop: int, mark: bytes) -> None:
    stop = min(stop, len(data))
    if begin < stop:
        structure = data.notes.blocks[data.block].structure
        structure[data.begin + begin : data.begin + stop] = mark * (stop - begin)


def note_slot(data: bytes, begin: int, length: int, key: Hashable) -> None:
    """Note that bytes may differ between files of one structure."""
    if isinstance(data, Piece):
        free(data, begin, begin + length)
        data.notes.slots[key] = Slot(data.block, data.begin + begin, length)


def note_same(data: bytes, place: int, size: int, address: int) -> None:
    """Note that an address in some bytes is that of a block which was read."""
    if isinstance(data, Piece):
        number = data.notes.find(address)
        if number is None:
            data.notes.complete = False
            return
        free(data, place, place + size)
        data.notes.same.append((Pointer(data.block, data.begin + place), number))


def note_checksum(data: bytes, place: int, size: int) -> None:
    """Note that a block has its checksum at a place, if it has one."""
    if isinstance(data, Piece) and size:
        free(data, place, place + size)
        data.notes.checksums[data.block] = data.begin + place


def note_heap_objects(data: bytes, begins: dict[int, int], lengths: dict[int, int]) -> None:
    """Note the objects of a collection of the global heap, by number."""
    if isinstance(data, Piece):
        data.notes.objects[data.block] = [(n, begin, lengths[n]) for n, begin in begins.items()]


def note_heap_reference(
    data: bytes, place: int, collection: bytes, number: int, width: int, key: Hashable
) -> None:
    """Note that an object of the global heap may differ between files of one structure.

    ``place`` is where its elements of ``width`` bytes are counted, in four bytes.
    """
    if isinstance(data, Piece) and isinstance(collection, Piece):
        free(data, place, place + 4)
        count = Slot(data.block, data.begin + place, 4)
        reference = HeapReference(count, collection.block, number, width)
        known = data.notes.references.setdefault(key, [])
        if reference not in known:
            known.append(reference)


def give_up(data: bytes) -> None:
    """Note that bytes mean something that cannot be noted."""
    if isinstance(data, Piece):
        data.notes.complete = False
