"""Fractal heaps of HDF5, which hold attributes that do not fit in an object header.

HDF5 File Format Specification 3.0, III.G. A heap has managed objects in blocks of its own, huge
ones anywhere in the file, and tiny ones in their identifiers.
"""

from __future__ import annotations

from functools import cached_property

from virtualds.parsers.hdf5.structure.byte_rows import CHECKSUM_BYTES
from virtualds.parsers.hdf5.structure.file_bytes import FileBytes, parse_uint
from virtualds.parsers.hdf5.structure.notes import cut, free, keep, note_checksum, note_same
from virtualds.parsers.hdf5.structure.object_header import is_sound
from virtualds.parsers.hdf5.structure.record_tree import read_records

MANAGED, HUGE, TINY = range(3)
"""Types of identifiers of objects (III.G.4)."""
HUGE_OBJECTS = 1
"""The type of the records of a version 2 B-tree of huge objects without filters (III.A.2)."""
HAS_CHECKSUMS = 0b10
"""The flag of a heap whose direct blocks have checksums (III.G.1)."""


class FractalHeap:
    """A fractal heap.

    Parameters
    ----------
    file : FileBytes
    address : int
        Of its header.

    Raises
    ------
    FormatError
        It is damaged.
    UnsupportedError
        It has filters, which no heap of attributes has.
    """

    def __init__(self, file: FileBytes, address: int) -> None:
        self.file, self.address = file, address
        offset, length = file.offset_size, file.length_size
        data = file.take(address, 22 + 12 * length + 3 * offset + CHECKSUM_BYTES)
        if data[:4] != b"FRHP" or data[4] or not is_sound(data):
            # with filters the header is longer
            if data[:4] == b"FRHP" and parse_uint(data, 7, 2):
                file.decline("a fractal heap with filters")
            file.refuse(f"there is no fractal heap at {address}, or its checksum is wrong")
        self._identity = parse_uint(data, 5, 2)
        # the number of the next huge object; free space and how many objects there are
        free(data, 14, 14 + length)
        free(data, 14 + length + offset, 14 + 10 * length + 2 * offset)
        self._has_checksums = bool(data[9] & HAS_CHECKSUMS)
        most = parse_uint(data, 10, 4)
        self._huge_tree = file.unpack_address(data, 14 + length)
        table = 14 + 10 * length + 2 * offset
        self._width = parse_uint(data, table, 2)
        self._start = file.unpack_length(data, table + 2)
        self._longest = file.unpack_length(data, table + 2 + length)
        bits = parse_uint(data, table + 2 + 2 * length, 2)
        self._root = file.unpack_address(data, table + 6 + 2 * length)
        self._rows = parse_uint(data, table + 6 + 2 * length + offset, 2)
        powers = (self._width, self._start, self._longest)
        if not all(n and not n & (n - 1) for n in powers) or self._longest < self._start:
            file.refuse(f"the fractal heap at {address} contradicts itself")
        self._place_size = -(-bits // 8)
        # a length has the bytes of the longest block or of the longest object, whichever are fewer
        self._length_size = min(_compute_log2(self._longest) + 7, _compute_log2(most | 1) + 8) // 8
        file.prepare([(self._root, self._start)])
        self._blocks: dict[tuple[int, int], bytes] = {}
        self._children: dict[int, list[int]] = {}

    def read_object(self, identity: bytes) -> bytes:
        """Return the object of an identifier.

        Raises
        ------
        FormatError
            There is none, or the heap is damaged.
        """
        kind = identity[0] >> 4
        if kind not in (MANAGED, HUGE, TINY) or len(identity) < self._identity:
            self.file.refuse(f"an object of the fractal heap at {self.address} is of type {kind}")
        if kind == TINY:
            return identity[1 : 2 + (identity[0] & 0x0F)]
        if kind == HUGE:
            return self.file.take(*self._locate_huge_object(identity))
        place = parse_uint(identity, 1, self._place_size)
        length = parse_uint(identity, 1 + self._place_size, self._length_size)
        block, first = self._find_block(place)
        begin = place - first
        if begin < self._head or begin + length > len(block):
            self.file.refuse(f"an object of the fractal heap at {self.address} lies in no block")
        keep(block, begin, begin + length)
        return cut(block, begin, begin + length)

    def _locate_huge_object(self, identity: bytes) -> tuple[int, int]:
        """Return the place of a huge object, from a long enough identifier or a tree."""
        offset, length = self.file.offset_size, self.file.length_size
        if self._identity - 1 >= offset + length:
            return self.file.unpack_address(identity, 1), self.file.unpack_length(
                identity, 1 + offset
            )
        number = parse_uint(identity, 1, min(length, self._identity - 1))
        if number not in self._huge_objects:
            self.file.refuse(f"the fractal heap at {self.address} has no huge object {number}")
        return self._huge_objects[number]

    @cached_property
    def _huge_objects(self) -> dict[int, tuple[int, int]]:
        """Address and length of every huge object, by its number."""
        file = self.file
        if not file.is_defined(self._huge_tree):
            return {}
        place, number = file.offset_size, file.offset_size + file.length_size
        size = number + file.length_size
        return {
            file.unpack_length(one, number): (
                file.unpack_address(one, 0),
                file.unpack_length(one, place),
            )
            for one in read_records(file, self._huge_tree, HUGE_OBJECTS, size)
        }

    @property
    def _head(self) -> int:
        """Bytes of a direct block before its objects (III.G.2)."""
        return 5 + self.file.offset_size + self._place_size + CHECKSUM_BYTES * self._has_checksums

    def _find_block(self, place: int) -> tuple[bytes, int]:
        """Return the direct block of a place in the heap, and where in the heap it begins.

        Rows 0 and 1 of an indirect block have blocks of the same size, and each of the rows that
        follow blocks of twice the size; those too long for direct blocks are indirect (III.G.3).
        """
        address, rows, first, size = self._root, self._rows, 0, self._start
        row_0 = self._width * self._start
        while rows:
            row = ((place - first) // row_0).bit_length()
            size = self._start << max(row - 1, 0)
            if row >= rows:
                self.file.refuse(f"the fractal heap at {self.address} has no place {place}")
            children = self._read_children(address, rows, first)
            before = row_0 << row - 1 if row else 0
            column = (place - first - before) // size
            address = children[row * self._width + column]
            first += before + column * size
            rows = _compute_log2(size) - _compute_log2(row_0) + 1 if size > self._longest else 0
            if rows < 0 or not self.file.is_defined(address):
                self.file.refuse(f"the fractal heap at {self.address} has no place {place}")
        return self._read_direct_block(address, size, first), first

    def _read_children(self, address: int, rows: int, first: int) -> list[int]:
        """Return the addresses in an indirect block."""
        if address not in self._children:
            offset = self.file.offset_size
            begin, count = 5 + offset + self._place_size, rows * self._width
            data = self.file.take(address, begin + count * offset + CHECKSUM_BYTES)
            self._check(data, b"FHIB", first)
            if not is_sound(data):
                self.file.refuse(f"a block of a fractal heap at {address} has a wrong checksum")
            places = range(begin, begin + count * offset, offset)
            found = [self.file.unpack_address(data, place) for place in places]
            sizes = (self._start << max(n // self._width - 1, 0) for n in range(count))
            self.file.prepare(zip(found, sizes, strict=True))
            self._children[address] = found
        return self._children[address]

    def _read_direct_block(self, address: int, size: int, first: int) -> bytes:
        if (address, first) not in self._blocks:
            data = self.file.take(address, size)
            self._check(data, b"FHDB", first)
            place = self._head - CHECKSUM_BYTES
            # the checksum is that of the whole block, with zeros where the checksum lies
            blank = data[:place] + bytes(CHECKSUM_BYTES) + data[self._head :]
            if self._has_checksums and not is_sound(blank + data[place : self._head]):
                self.file.refuse(f"a block of a fractal heap at {address} has a wrong checksum")
            free(data, place, len(data))
            note_checksum(data, place, CHECKSUM_BYTES * self._has_checksums)
            self._blocks[address, first] = data
        return self._blocks[address, first]

    def _check(self, data: bytes, signature: bytes, first: int) -> None:
        """Refuse a block of another heap, or of another place in this one."""
        offset = self.file.offset_size
        heap, place = (
            self.file.unpack_address(data, 5),
            parse_uint(data, 5 + offset, self._place_size),
        )
        if data[:4] != signature or data[4] or (heap, place) != (self.address, first):
            self.file.refuse(f"a block {signature.decode()} of a fractal heap belongs elsewhere")
        note_same(data, 5, offset, self.address)


def _compute_log2(power: int) -> int:
    return power.bit_length() - 1
