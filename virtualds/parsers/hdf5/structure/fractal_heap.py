"""Trees and heaps of small objects: names, and messages that do not fit into an object header.

HDF5 File Format Specification 3.0.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from struct import Struct
from typing import NamedTuple

from virtualds.parsers.hdf5.structure import (
    CHECKSUM_BYTES,
    MAX_DEPTH,
    NODE_PREFIX_BYTES,
    TreeLayout,
)
from virtualds.parsers.hdf5.structure.file_bytes import (
    FileBytes,
    compute_symbol_size,
    has_valid_checksum,
    mark_structure,
    mark_unused,
    note_checksum,
    note_same,
    parse_uint,
    slice_bytes,
)

# ---------------------------------------------------------------------- version 2 B-trees
# Version 2 B-trees, which are read as a list of records.
#
# HDF5 File Format Specification 3.0, III.A.2. Every node has a checksum.


TREE_HEADER = Struct("<4sBBIHH")
"""Signature, version, type, sizes of a node and of a record, depth (III.A.2)."""


class _Tree(NamedTuple):
    """A tree with records of one type, and the addresses of the nodes that have been read."""

    file: FileBytes
    kind: int
    layout: TreeLayout
    seen: set[int]


def read_records(file: FileBytes, address: int, kind: int, size: int) -> list[bytes]:
    """Return the records of a tree in order.

    Parameters
    ----------
    file : FileBytes
    address : int
        The address of the header of the tree.
    kind, size : int
        The type of its records, and their size in bytes.
    """
    begin = TREE_HEADER.size + 2
    data = file.read_noted(
        address, begin + file.offset_size + 2 + file.length_size + CHECKSUM_BYTES
    )
    signature, version, record_type, node, record, depth = TREE_HEADER.unpack_from(data)
    if (
        signature != b"BTHD"
        or version
        or (record_type, record) != (kind, size)
        or not has_valid_checksum(data)
    ):
        file.raise_damaged(
            f"there is no B-tree of type {kind} at {address}, or its checksum is wrong"
        )
    root = file.unpack_address(data, begin)
    count = parse_uint(data, begin + file.offset_size, 2)
    if not file.is_defined(root):
        return []
    layout = TreeLayout.from_header(node, record, depth, file.offset_size)
    if layout is None:
        file.raise_damaged(f"a B-tree has nodes of {node} bytes on {depth} levels")
    records = list(_read_records(_Tree(file, kind, layout, set()), root, depth, count))
    if len(records) != file.unpack_length(data, begin + file.offset_size + 2):
        file.raise_damaged(
            f"the B-tree at {address} has {len(records)} records, not as many as its header says"
        )
    return records


def _read_records(tree: _Tree, address: int, level: int, count: int) -> Iterator[bytes]:
    """Yield the records of a node and of its descendants, in order."""
    file, layout = tree.file, tree.layout
    stop = NODE_PREFIX_BYTES + count * layout.record
    children = stop + (count + 1) * layout.pointer[level]
    if count > layout.max_records[level] or address in tree.seen:
        file.raise_damaged(f"a node of a B-tree at {address} has {count} records, or occurs twice")
    tree.seen.add(address)
    if len(tree.seen) * layout.size > file.end:
        file.raise_damaged("a B-tree has more bytes than the file")
    data = file.read_noted(address, children + CHECKSUM_BYTES)
    if data[:4] != (b"BTIN" if level else b"BTLF") or data[4] or data[5] != tree.kind:
        file.raise_damaged(f"there is no node of a B-tree at {address}")
    if not has_valid_checksum(data):
        file.raise_damaged(f"a node of a B-tree at {address} has a wrong checksum")
    if level:
        offsets = range(stop, children, layout.pointer[level])
        file.prepare((file.unpack_address(data, offset), layout.size) for offset in offsets)
    for number in range(count + 1):
        if level:
            offset = stop + number * layout.pointer[level]
            below = parse_uint(data, offset + file.offset_size, layout.count_size)
            yield from _read_records(tree, file.unpack_address(data, offset), level - 1, below)
        if number < count:
            begin = NODE_PREFIX_BYTES + number * layout.record
            yield data[begin : begin + layout.record]


# ---------------------------------------------------------------------- fractal heaps
# Fractal heaps, which contain attributes and links that do not fit into an object header.
#
# HDF5 File Format Specification 3.0, III.G. Managed objects are in the blocks of the heap, huge
# objects anywhere in the file, and tiny objects in their ids.


MANAGED, HUGE, TINY = range(3)
"""Types of heap ids (III.G.4)."""
HUGE_OBJECT_RECORDS = 1
"""Type of the records of a version 2 B-tree of huge objects without filters (III.A.2)."""
HAS_CHECKSUMS = 0b10
"""Flag of a heap whose direct blocks have checksums (III.G.1)."""


class FractalHeap:
    """A fractal heap.

    Parameters
    ----------
    file : FileBytes
    address : int
        The address of its header.
    """

    def __init__(self, file: FileBytes, address: int) -> None:
        self.file, self.address = file, address
        offset, length = file.offset_size, file.length_size
        data = file.read_noted(address, 22 + 12 * length + 3 * offset + CHECKSUM_BYTES)
        if data[:4] != b"FRHP" or data[4] or not has_valid_checksum(data):
            # with filters, the header is longer
            if data[:4] == b"FRHP" and parse_uint(data, 7, 2):
                file.raise_unsupported("a fractal heap with filters")
            file.raise_damaged(f"there is no fractal heap at {address}, or its checksum is wrong")
        self._id_size = parse_uint(data, 5, 2)
        # the id of the next huge object, free space, and numbers of objects
        mark_unused(data, 14, 14 + length)
        mark_unused(data, 14 + length + offset, 14 + 10 * length + 2 * offset)
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
            file.raise_damaged(f"the fractal heap at {address} contradicts itself")
        self._offset_size = -(-bits // 8)
        # the size of a length is that of the largest block, or of the largest object if that is
        # smaller
        self._length_size = min(_compute_log2(self._longest) + 7, _compute_log2(most | 1) + 8) // 8
        file.prepare([(self._root, self._start)])
        self._blocks: dict[tuple[int, int], bytes] = {}
        self._children: dict[int, list[int]] = {}

    def read_object(self, heap_id: bytes) -> bytes:
        """Return the object with a heap id."""
        kind = heap_id[0] >> 4
        if kind not in (MANAGED, HUGE, TINY) or len(heap_id) < self._id_size:
            self.file.raise_damaged(
                f"an object of the fractal heap at {self.address} is of type {kind}"
            )
        if kind == TINY:
            return heap_id[1 : 2 + (heap_id[0] & 0x0F)]
        if kind == HUGE:
            return self.file.read_noted(*self._locate_huge_object(heap_id))
        offset = parse_uint(heap_id, 1, self._offset_size)
        length = parse_uint(heap_id, 1 + self._offset_size, self._length_size)
        block, first = self._find_block(offset)
        begin = offset - first
        if begin < self._header_bytes or begin + length > len(block):
            self.file.raise_damaged(
                f"an object of the fractal heap at {self.address} lies in no block"
            )
        mark_structure(block, begin, begin + length)
        return slice_bytes(block, begin, begin + length)

    def _locate_huge_object(self, heap_id: bytes) -> tuple[int, int]:
        """Return the address and length of a huge object, from its id or from a tree."""
        offset, length = self.file.offset_size, self.file.length_size
        if self._id_size - 1 >= offset + length:
            return self.file.unpack_address(heap_id, 1), self.file.unpack_length(
                heap_id, 1 + offset
            )
        number = parse_uint(heap_id, 1, min(length, self._id_size - 1))
        if number not in self._huge_objects:
            self.file.raise_damaged(
                f"the fractal heap at {self.address} has no huge object {number}"
            )
        return self._huge_objects[number]

    @cached_property
    def _huge_objects(self) -> dict[int, tuple[int, int]]:
        """The address and length of each huge object, by number."""
        file = self.file
        if not file.is_defined(self._huge_tree):
            return {}
        start, number = file.offset_size, file.offset_size + file.length_size
        size = number + file.length_size
        return {
            file.unpack_length(record, number): (
                file.unpack_address(record, 0),
                file.unpack_length(record, start),
            )
            for record in read_records(file, self._huge_tree, HUGE_OBJECT_RECORDS, size)
        }

    @property
    def _header_bytes(self) -> int:
        """The size in bytes of a direct block before its objects (III.G.2)."""
        return 5 + self.file.offset_size + self._offset_size + CHECKSUM_BYTES * self._has_checksums

    def _find_block(self, offset: int) -> tuple[bytes, int]:
        """Return the direct block at an offset in the heap, and the offset of its start.

        Rows 0 and 1 of an indirect block have blocks of the same size, which doubles with each
        further row; blocks that are too large for direct blocks are indirect (III.G.3).
        """
        address, rows, first, size = self._root, self._rows, 0, self._start
        row_0 = self._width * self._start
        while rows:
            row = ((offset - first) // row_0).bit_length()
            size = self._start << max(row - 1, 0)
            if row >= rows:
                self.file.raise_damaged(f"the fractal heap at {self.address} has no place {offset}")
            children = self._read_children(address, rows, first)
            before = row_0 << row - 1 if row else 0
            column = (offset - first - before) // size
            address = children[row * self._width + column]
            first += before + column * size
            rows = _compute_log2(size) - _compute_log2(row_0) + 1 if size > self._longest else 0
            if rows < 0 or not self.file.is_defined(address):
                self.file.raise_damaged(f"the fractal heap at {self.address} has no place {offset}")
        return self._read_direct_block(address, size, first), first

    def _read_children(self, address: int, rows: int, first: int) -> list[int]:
        """Return the addresses in an indirect block."""
        if address not in self._children:
            offset = self.file.offset_size
            begin, count = 5 + offset + self._offset_size, rows * self._width
            data = self.file.read_noted(address, begin + count * offset + CHECKSUM_BYTES)
            self._check(data, b"FHIB", first)
            if not has_valid_checksum(data):
                self.file.raise_damaged(
                    f"a block of a fractal heap at {address} has a wrong checksum"
                )
            offsets = range(begin, begin + count * offset, offset)
            addresses = [self.file.unpack_address(data, at) for at in offsets]
            sizes = (self._start << max(n // self._width - 1, 0) for n in range(count))
            self.file.prepare(zip(addresses, sizes, strict=True))
            self._children[address] = addresses
        return self._children[address]

    def _read_direct_block(self, address: int, size: int, first: int) -> bytes:
        if (address, first) not in self._blocks:
            data = self.file.read_noted(address, size)
            self._check(data, b"FHDB", first)
            start = self._header_bytes - CHECKSUM_BYTES
            # the checksum is computed with zeros in its place
            block = data[:start] + bytes(CHECKSUM_BYTES) + data[self._header_bytes :]
            if self._has_checksums and not has_valid_checksum(
                block + data[start : self._header_bytes]
            ):
                self.file.raise_damaged(
                    f"a block of a fractal heap at {address} has a wrong checksum"
                )
            mark_unused(data, start, len(data))
            note_checksum(data, start, CHECKSUM_BYTES * self._has_checksums)
            self._blocks[address, first] = data
        return self._blocks[address, first]

    def _check(self, data: bytes, signature: bytes, first: int) -> None:
        """Raise an error if a block belongs to another heap, or to another offset in the heap."""
        offset = self.file.offset_size
        heap, block_offset = (
            self.file.unpack_address(data, 5),
            parse_uint(data, 5 + offset, self._offset_size),
        )
        if data[:4] != signature or data[4] or (heap, block_offset) != (self.address, first):
            self.file.raise_damaged(
                f"a block {signature.decode()} of a fractal heap belongs elsewhere"
            )
        note_same(data, 5, offset, self.address)


def _compute_log2(power: int) -> int:
    return power.bit_length() - 1


# ---------------------------------------------------------------------- symbol tables
# Symbol tables, the oldest storage of the links of a group.
#
# HDF5 File Format Specification 3.0, III.A.1 "Version 1 B-trees" (of type 0), III.B "Group Symbol
# Table Nodes", III.C "Symbol Table Entry", III.D "Local Heaps".


GROUP_TREE = 0
"""Type of a version 1 B-tree whose leaves are symbol table nodes."""
SOFT_LINK_ENTRY = 2
"""Cache type of the entry of a soft link."""

Symbol = tuple[bytes, int, bytes | None]
"""The name, the address of the object, and the target of a soft link or None."""


def read_symbols(file: FileBytes, tree: int, heap: int) -> Iterator[Symbol]:
    """Yield the symbols of a group, sorted by name.

    Parameters
    ----------
    file : FileBytes
    tree : int
        Address of the B-tree.
    heap : int
        Address of the local heap with the names.
    """
    file.prepare([(heap, 8 + 2 * file.length_size + file.offset_size)])
    nodes = _list_nodes(file, tree)
    file.prepare((node, _compute_node_size(file)) for node in nodes)
    names = _read_heap(file, heap)
    last = b""
    for node in nodes:
        for symbol in _read_node(file, node, names):
            if symbol[0] <= last:
                file.raise_damaged("the names of a group are not in order")
            last = symbol[0]
            yield symbol


def _read_heap(file: FileBytes, address: int) -> bytes:
    """Return the names in a local heap."""
    length, offset = file.length_size, file.offset_size
    data = file.read_noted(address, 8 + 2 * length + offset)
    if data[:4] != b"HEAP" or data[4]:
        file.raise_damaged(f"there is no local heap at {address}")
    # the offset of the first free block
    mark_unused(data, 8 + length, 8 + 2 * length)
    names = file.read_noted(file.unpack_address(data, 8 + 2 * length), file.unpack_length(data, 8))
    mark_unused(names, 0, len(names))
    return names


def _list_nodes(file: FileBytes, root: int) -> list[int]:
    """Return the addresses of all symbol table nodes below the root of a B-tree."""
    addresses, level = [root], None
    seen = {root}
    while True:
        file.prepare((address, _compute_tree_node_size(file)) for address in addresses)
        nodes = [_read_tree_node(file, address) for address in addresses]
        levels = {node[0] for node in nodes}
        if len(levels) != 1 or (level is not None and levels != {level - 1}):
            file.raise_damaged("the nodes of a group are on different levels")
        level = levels.pop()
        addresses = [child for _, children in nodes for child in children]
        if level > MAX_DEPTH or len({*addresses} - seen) < len(addresses):
            file.raise_damaged("a node of a group has two parents")
        seen.update(addresses)
        if not level:
            return addresses


def _read_tree_node(file: FileBytes, address: int) -> tuple[int, list[int]]:
    """Return the level of a node, and the addresses of its children."""
    offset, length, group_node_k = file.offset_size, file.length_size, file.group_node_k
    begin, step = 8 + 2 * offset, length + offset
    data = file.read_noted(address, _compute_tree_node_size(file))
    used = parse_uint(data, 6, 2)
    if data[:4] != b"TREE" or data[4] != GROUP_TREE or used > 2 * group_node_k:
        file.raise_damaged(f"there is no node of a group at {address}")
    # addresses of siblings, keys (the names themselves are compared) and unused bytes
    mark_unused(data, 8, len(data))
    pointers = (begin + number * step + length for number in range(used))
    return data[5], [file.unpack_address(data, at) for at in pointers]


def _compute_tree_node_size(file: FileBytes) -> int:
    """Return the size in bytes of a node of the B-tree, including unused bytes."""
    offset, length = file.offset_size, file.length_size
    return 8 + 2 * offset + 2 * file.group_node_k * (length + offset) + length


def _compute_node_size(file: FileBytes) -> int:
    """Return the size in bytes of a symbol table node, including unused bytes."""
    return 8 + 2 * file.group_leaf_k * compute_symbol_size(file.offset_size, file.length_size)


def _read_node(file: FileBytes, address: int, names: bytes) -> Iterator[Symbol]:
    """Yield the symbols of a symbol table node."""
    length, most = file.length_size, 2 * file.group_leaf_k
    step = compute_symbol_size(file.offset_size, length)
    data = file.read_noted(address, _compute_node_size(file))
    used = parse_uint(data, 6, 2)
    if data[:4] != b"SNOD" or data[4] != 1 or used > most:
        file.raise_damaged(f"there is no symbol table node at {address}")
    mark_unused(data, 8 + used * step, len(data))
    for begin in range(8, 8 + used * step, step):
        name = _read_name(file, names, file.unpack_length(data, begin))
        mark_structure(data, begin, begin + length)
        cache = begin + length + file.offset_size
        if parse_uint(data, cache, 4) == SOFT_LINK_ENTRY:
            offset = parse_uint(data, cache + 8, 4)
            yield name, 0, _read_name(file, names, offset)
            continue
        # the scratch pad
        mark_unused(data, cache + 4, begin + step)
        yield name, file.unpack_address(data, begin + length), None


def _read_name(file: FileBytes, names: bytes, offset: int) -> bytes:
    stop = names.find(b"\0", offset)
    if stop <= offset:
        file.raise_damaged("a name of a group has no end")
    mark_structure(names, offset, stop + 1)
    return bytes(names[offset:stop])
