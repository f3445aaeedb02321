"""Symbol tables: how HDF5 keeps the links of a group in its oldest form.

HDF5 File Format Specification 3.0, III.A.1 "Version 1 B-trees" (of type 0), III.B "Group Symbol
Table Nodes", III.C "Symbol Table Entry", III.D "Local Heaps".
"""

from __future__ import annotations

from collections.abc import Iterator

from virtualds.parsers.hdf5.structure.file_bytes import FileBytes, parse_uint
from virtualds.parsers.hdf5.structure.notes import free, keep

OF_GROUP = 0
"""The type of a version 1 B-tree whose leaves are symbol table nodes."""
SOFT_LINK = 2
"""The cache type of an entry that is a soft link."""
DEEPEST = 32
"""More levels than any tree has."""

Symbol = tuple[bytes, int, bytes | None]
"""A name, the address of its object, and, of a soft link, its target."""


def read_symbols(file: FileBytes, tree: int, heap: int) -> Iterator[Symbol]:
    """Yield the symbols of a group, by name.

    Parameters
    ----------
    file : FileBytes
    tree : int
        Address of the B-tree.
    heap : int
        Address of the local heap with the names.

    Raises
    ------
    FormatError
        One of them is damaged, or names are not in order.
    """
    file.prepare([(heap, 8 + 2 * file.length_size + file.offset_size)])
    nodes = _list_nodes(file, tree)
    file.prepare((node, _measure_node(file)) for node in nodes)
    names = _read_heap(file, heap)
    last = b""
    for node in nodes:
        for symbol in _read_node(file, node, names):
            if symbol[0] <= last:
                file.refuse("the names of a group are not in their order")
            last = symbol[0]
            yield symbol


def _read_heap(file: FileBytes, address: int) -> bytes:
    """Return the names that a local heap holds."""
    length, offset = file.length_size, file.offset_size
    data = file.take(address, 8 + 2 * length + offset)
    if data[:4] != b"HEAP" or data[4]:
        file.refuse(f"there is no local heap at {address}")
    # where the first free block is
    free(data, 8 + length, 8 + 2 * length)
    names = file.take(file.unpack_address(data, 8 + 2 * length), file.unpack_length(data, 8))
    free(names, 0, len(names))
    return names


def _list_nodes(file: FileBytes, root: int) -> list[int]:
    """Return the addresses of all symbol table nodes below the root of a B-tree."""
    addresses, level = [root], None
    seen = {root}
    while True:
        file.prepare((address, _measure_tree_node(file)) for address in addresses)
        nodes = [_read_tree_node(file, address) for address in addresses]
        levels = {node[0] for node in nodes}
        if len(levels) != 1 or (level is not None and levels != {level - 1}):
            file.refuse("the nodes of a group are on different levels")
        level = levels.pop()
        addresses = [child for _, children in nodes for child in children]
        if level > DEEPEST or len({*addresses} - seen) < len(addresses):
            file.refuse("a node of a group has two parents")
        seen.update(addresses)
        if not level:
            return addresses


def _read_tree_node(file: FileBytes, address: int) -> tuple[int, list[int]]:
    """Return the level of a node, and the addresses of its children."""
    offset, length, half = file.offset_size, file.length_size, file.group_half
    begin, step = 8 + 2 * offset, length + offset
    data = file.take(address, _measure_tree_node(file))
    used = parse_uint(data, 6, 2)
    if data[:4] != b"TREE" or data[4] != OF_GROUP or used > 2 * half:
        file.refuse(f"there is no node of a group at {address}")
    # its neighbours; keys, since names are compared themselves; and what is not used
    free(data, 8, len(data))
    places = (begin + number * step + length for number in range(used))
    return data[5], [file.unpack_address(data, place) for place in places]


def _measure_tree_node(file: FileBytes) -> int:
    """Return the bytes of a node of the B-tree, used or not."""
    offset, length = file.offset_size, file.length_size
    return 8 + 2 * offset + 2 * file.group_half * (length + offset) + length


def _measure_node(file: FileBytes) -> int:
    """Return the bytes of a symbol table node, used or not."""
    return 8 + 2 * file.leaf_half * (2 * file.offset_size + 24)


def _read_node(file: FileBytes, address: int, names: bytes) -> Iterator[Symbol]:
    """Yield the symbols of a symbol table node."""
    offset, most = file.offset_size, 2 * file.leaf_half
    step = 2 * offset + 24
    data = file.take(address, _measure_node(file))
    used = parse_uint(data, 6, 2)
    if data[:4] != b"SNOD" or data[4] != 1 or used > most:
        file.refuse(f"there is no symbol table node at {address}")
    free(data, 8 + used * step, len(data))
    for begin in range(8, 8 + used * step, step):
        name = _read_name(file, names, file.unpack_address(data, begin))
        keep(data, begin, begin + offset)
        cached = parse_uint(data, begin + 2 * offset, 4)
        if cached == SOFT_LINK:
            place = parse_uint(data, begin + 2 * offset + 8, 4)
            yield name, 0, _read_name(file, names, place)
            continue
        # the scratch pad
        free(data, begin + 2 * offset + 4, begin + step)
        yield name, file.unpack_address(data, begin + offset), None


def _read_name(file: FileBytes, names: bytes, place: int) -> bytes:
    stop = names.find(b"\0", place)
    if stop <= place:
        file.refuse("a name of a group has no end")
    keep(names, place, stop + 1)
    return bytes(names[place:stop])
