"""Links of HDF5 groups: names, and what they lead to.

HDF5 File Format Specification 3.0, IV.A.2.c "Link Info", IV.A.2.g "Link", IV.A.2.r "Symbol Table".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from virtualds.parsers.hdf5.structure.file_bytes import FileBytes, parse_uint
from virtualds.parsers.hdf5.structure.fractal_heap import FractalHeap
from virtualds.parsers.hdf5.structure.notes import cut, free
from virtualds.parsers.hdf5.structure.object_header import HEADER_GUESS, Message
from virtualds.parsers.hdf5.structure.record_tree import read_records
from virtualds.parsers.hdf5.structure.symbol_table import read_symbols

LINK_INFO, LINK, SYMBOL_TABLE = 0x02, 0x06, 0x11
"""Types of messages."""
HARD, SOFT, EXTERNAL = 0, 1, 64
"""Types of links (IV.A.2.g)."""
BY_NAME = 5
"""The type of records of links sorted by the hash of a name (III.A.2)."""
HASH_BYTES, IDENTITY_BYTES = 4, 7
"""Bytes of the hash and of the identifier in such a record."""
HAS_ORDER, HAS_TYPE, HAS_CHARSET = 0x04, 0x08, 0x10
"""Flags of a link message."""


class Link(NamedTuple):
    """A link of a group.

    Parameters
    ----------
    name : bytes
    kind : int
        `HARD`, `SOFT` or `EXTERNAL`.
    address : int
        Of a hard link: that of the object.
    target : bytes
        Of a soft link: a path; of an external one: flags, a file name and a path.
    order : int
        Its number in the order of creation.
    """

    name: bytes
    kind: int
    address: int = 0
    target: bytes = b""
    order: int = 0


def read_links(file: FileBytes, messages: Sequence[Message]) -> list[Link]:
    """Return the links of a group, in the order of creation where the file kept it, else by name.

    Raises
    ------
    FormatError
        The group is damaged.
    DeclinedError
        It has an unknown form.
    """
    found: list[Link] = []
    tracked = False
    for message in messages:
        if message.kind == LINK:
            found.append(_parse_link(file, message.data))
        elif message.kind == SYMBOL_TABLE:
            found += _read_old_links(file, message.data)
        elif message.kind == LINK_INFO:
            if len(message.data) < 2 or message.data[0]:
                file.decline("a Link Info message of another version than 0")
            tracked = bool(message.data[1] & 1)
            found += _read_dense_links(file, message.data)
    if len({link.name for link in found}) < len(found):
        file.refuse("a group has two links of one name")
    return sorted(found, key=(lambda link: link.order) if tracked else (lambda link: link.name))


def _read_old_links(file: FileBytes, data: bytes) -> Iterator[Link]:
    tree, heap = (file.unpack_address(data, place) for place in (0, file.offset_size))
    for name, address, target in read_symbols(file, tree, heap):
        yield Link(name, HARD, address) if target is None else Link(name, SOFT, target=target)


def _read_dense_links(file: FileBytes, data: bytes) -> Iterator[Link]:
    """Yield the links that a fractal heap holds: too many for an object header."""
    # the greatest creation index comes before the addresses
    begin = 2 + 8 * (data[1] & 1)
    free(data, 2, begin)
    free(data, begin + 2 * file.offset_size, len(data))
    address = file.unpack_address(data, begin)
    if not file.is_defined(address):
        return
    index = file.unpack_address(data, begin + file.offset_size)
    file.prepare([(address, HEADER_GUESS), (index, HEADER_GUESS)])
    heap = FractalHeap(file, address)
    for record in read_records(file, index, BY_NAME, HASH_BYTES + IDENTITY_BYTES):
        yield _parse_link(file, heap.read_object(record[HASH_BYTES:]))


def _parse_link(file: FileBytes, data: bytes) -> Link:
    if len(data) < 4 or data[0] != 1:
        file.decline("a link of another version than 1")
    flags, place = data[1], 2
    kind = data[place] if flags & HAS_TYPE else HARD
    place += bool(flags & HAS_TYPE)
    order = parse_uint(data, place, 8) if flags & HAS_ORDER else 0
    place += 8 * bool(flags & HAS_ORDER) + bool(flags & HAS_CHARSET)
    width = 1 << (flags & 3)
    length = parse_uint(data, place, width)
    place += width
    name = bytes(data[place : place + length])
    place += length
    if not name or len(name) < length or b"\0" in name:
        file.refuse("the name of a link is empty, cut short, or ends before its end")
    if kind == HARD:
        if place + file.offset_size > len(data):
            file.refuse("a link is cut short")
        return Link(name, kind, file.unpack_address(data, place), order=order)
    if kind not in (SOFT, EXTERNAL):
        file.decline(f"a link of type {kind}")
    size = parse_uint(data, place, 2)
    target = bytes(cut(data, place + 2, place + 2 + size))
    if not target or len(target) < size:
        file.refuse("the target of a link is cut short")
    return Link(name, kind, target=target, order=order)
