"""Version 2 B-trees of HDF5, read as a list of their records.

HDF5 File Format Specification 3.0, III.A.2. Every node has a checksum.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from virtualds.parsers.hdf5.structure.byte_rows import CHECKSUM_BYTES
from virtualds.parsers.hdf5.structure.file_bytes import FileBytes, parse_uint
from virtualds.parsers.hdf5.structure.object_header import is_sound

HEAD = Struct("<4sBBIHH")
"""Signature, version, type, bytes of a node and of a record, levels below the root (III.A.2)."""
NODE_OVERHEAD = 6
"""Bytes of a node before its records: signature, version and type."""
DEEPEST = 32
"""More levels than any tree has: it would hold more records than there are addresses."""


class _TreeHeader(NamedTuple):
    """The header of a tree, and how many records a node of each level may have."""

    file: FileBytes
    kind: int
    node: int
    record: int
    most: list[int]
    pointers: list[int]
    seen: set[int]

    @property
    def count_size(self) -> int:
        """Bytes of the number of records of a node."""
        return _count_bytes(self.most[0])


def read_records(file: FileBytes, address: int, kind: int, size: int) -> list[bytes]:
    """Return the records of a tree in their order.

    Parameters
    ----------
    file : FileBytes
    address : int
        Of the header of the tree.
    kind, size : int
        The type of its records, and their bytes.

    Raises
    ------
    FormatError
        The tree is damaged, or has other records.
    """
    begin = HEAD.size + 2
    data = file.take(address, begin + file.offset_size + 2 + file.length_size + CHECKSUM_BYTES)
    signature, version, found, node, record, depth = HEAD.unpack_from(data)
    if signature != b"BTHD" or version or (found, record) != (kind, size) or not is_sound(data):
        file.refuse(f"there is no B-tree of type {kind} at {address}, or its checksum is wrong")
    root = file.unpack_address(data, begin)
    count = parse_uint(data, begin + file.offset_size, 2)
    if not file.is_defined(root):
        return []
    tree = _make_tree(file, kind, node, record, depth)
    records = list(_read_records(tree, root, depth, count))
    if len(records) != file.unpack_length(data, begin + file.offset_size + 2):
        file.refuse(f"the B-tree at {address} does not have the {len(records)} records it says")
    return records


def _make_tree(file: FileBytes, kind: int, node: int, record: int, depth: int) -> _TreeHeader:
    """Return a tree with the sizes of its levels, the leaves first."""
    most, pointers = [(node - NODE_OVERHEAD - CHECKSUM_BYTES) // record], [0]
    below = most[0]
    if depth > DEEPEST or most[0] < 1:
        file.refuse(f"a B-tree has nodes of {node} bytes on {depth} levels")
    for level in range(1, depth + 1):
        # pointers to nodes that are no leaves also give the number of all records below
        total = _count_bytes(below) if level > 1 else 0
        pointers.append(file.offset_size + _count_bytes(most[0]) + total)
        most.append(
            (node - NODE_OVERHEAD - CHECKSUM_BYTES - pointers[level]) // (record + pointers[level])
        )
        if most[level] < 1:
            file.refuse(f"a B-tree has nodes of {node} bytes on {depth} levels")
        below = (most[level] + 1) * below + most[level]
    return _TreeHeader(file, kind, node, record, most, pointers, set())


def _count_bytes(number: int) -> int:
    """Return the bytes that a number takes."""
    return -(-number.bit_length() // 8)


def _read_records(tree: _TreeHeader, address: int, level: int, count: int) -> Iterator[bytes]:
    """Yield the records of a node and of those below it, each between its two children."""
    file = tree.file
    stop = NODE_OVERHEAD + count * tree.record
    children = stop + (count + 1) * tree.pointers[level] if level else stop
    if count > tree.most[level] or address in tree.seen:
        file.refuse(f"a node of a B-tree at {address} has {count} records, or is there twice")
    tree.seen.add(address)
    if len(tree.seen) * tree.node > file.end:
        file.refuse("a B-tree has more bytes than the file")
    data = file.take(address, children + CHECKSUM_BYTES)
    if data[:4] != (b"BTIN" if level else b"BTLF") or data[4] or data[5] != tree.kind:
        file.refuse(f"there is no node of a B-tree at {address}")
    if not is_sound(data):
        file.refuse(f"a node of a B-tree at {address} has a wrong checksum")
    if level:
        places = range(stop, children, tree.pointers[level])
        file.prepare((file.unpack_address(data, place), tree.node) for place in places)
    for number in range(count + 1):
        if level:
            place = stop + number * tree.pointers[level]
            below = parse_uint(data, place + file.offset_size, tree.count_size)
            yield from _read_records(tree, file.unpack_address(data, place), level - 1, below)
        if number < count:
            begin = NODE_OVERHEAD + number * tree.record
            yield data[begin : begin + tree.record]
