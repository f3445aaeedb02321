"""Which bytes HDF5 is going to read next, by what it reads now.

The index of a dataset with many chunks, and a group with many members, are trees whose nodes may
lie all over a file (HDF5 file format, III.A.1 and III.B). HDF5 follows them one by one; all nodes
that one node names can be fetched at once. It is a guess: a wrong one costs bytes, nothing else.
"""

from __future__ import annotations

import struct

from virtualds.store import Range

NODE = struct.Struct("<4sBBH16x")
"""Signature, type and level of a node, and how many entries it has; then its neighbours."""
OF_GROUP, OF_CHUNKS = 0, 1
"""Types of nodes: of a group's names, of a dataset's chunks."""
CHILDREN = 64
"""Children that a node of chunks has room for, unless somebody chose another number."""
ADDRESS = 8
"""Bytes of an address, and of a key of a node of names."""
SYMBOLS, SYMBOL = struct.Struct("<4sBxH"), 40
"""Head of a table of symbols, and bytes of each of them."""
HEADER = 512
"""Bytes of an object's header that are read first (HDF5's own guess)."""


def pointed_at(data: bytes) -> list[Range]:
    """Return the ranges that a piece of metadata points at, as far as it is known for that.

    Parameters
    ----------
    data : bytes
        What HDF5 read in one go.
    """
    if data[:4] == b"TREE" and len(data) > NODE.size:
        return _children(data)
    if data[:4] == b"SNOD" and len(data) > SYMBOLS.size:
        _, _, count = SYMBOLS.unpack_from(data)
        # a symbol begins with the place of its name, which the address follows
        return _ranges(data, SYMBOLS.size + ADDRESS, SYMBOL, count, HEADER)
    return []


def _children(data: bytes) -> list[Range]:
    _, kind, level, count = NODE.unpack_from(data)
    if kind == OF_GROUP:
        length = len(data) if level else SYMBOLS.size + SYMBOL * 8
        return _ranges(data, NODE.size + ADDRESS, 2 * ADDRESS, count, length)
    # below the last level lie the chunks themselves
    if kind != OF_CHUNKS or not level:
        return []
    key, rest = divmod(len(data) - NODE.size - CHILDREN * ADDRESS, CHILDREN + 1)
    if rest or key <= 0:
        return []
    return _ranges(data, NODE.size + key, key + ADDRESS, count, len(data))


def _ranges(data: bytes, begin: int, step: int, count: int, length: int) -> list[Range]:
    """Return the ranges at the addresses that lie in ``data`` every ``step`` bytes."""
    places = range(begin, min(begin + step * count, len(data) - ADDRESS + 1), step)
    found = (int.from_bytes(data[place : place + ADDRESS], "little") for place in places)
    return [(address, length) for address in found if 0 < address < 2**63]
