"""Dense storage of attributes: too many, or too long, for an object header.

HDF5 File Format Specification 3.0, IV.A.2.v, "Attribute Info": a fractal heap holds the messages
(III.G), and a version 2 B-tree has a record for each name (III.A.2, type 8). A second tree, in the
order of creation, holds nothing more.
"""

from __future__ import annotations

from struct import Struct

from virtualds.parsers.hdf5.structure.file_bytes import FileBytes
from virtualds.parsers.hdf5.structure.fractal_heap import FractalHeap
from virtualds.parsers.hdf5.structure.notes import free
from virtualds.parsers.hdf5.structure.object_header import HEADER_GUESS, MOST_BYTES, SHARED, Message
from virtualds.parsers.hdf5.structure.record_tree import read_records
from virtualds.parsers.hdf5.structure.shared_messages import find_shared_heap

BY_NAME = 8
"""The type of records sorted by the hash of a name."""
ATTRIBUTE_RECORD = Struct("<8sBIxxxx")
"""Identifier in the heap, flags of the message, order of creation, hash of the name."""


def read_dense_messages(file: FileBytes, kind: int, data: bytes) -> list[Message]:
    """Return the attributes that an Attribute Info message points to.

    Parameters
    ----------
    file : FileBytes
    kind : int
        The type of their messages.
    data : bytes
        Of the Attribute Info message.

    Raises
    ------
    FormatError
        The heap or the tree is damaged, or holds more than the file can.
    """
    if len(data) < 2 or data[0]:
        file.decline("an Attribute Info message of another version than 0")
    # the greatest creation index comes before the addresses
    place = 2 + 2 * (data[1] & 1)
    free(data, place + 2 * file.offset_size, len(data))
    address = file.unpack_address(data, place)
    if not file.is_defined(address):
        return []
    index = file.unpack_address(data, place + file.offset_size)
    file.prepare([(address, HEADER_GUESS), (index, HEADER_GUESS)])
    heap = FractalHeap(file, address)
    shared: FractalHeap | None = None
    found, nbytes = [], 0
    for record in read_records(file, index, BY_NAME, ATTRIBUTE_RECORD.size):
        identity, flags, order = ATTRIBUTE_RECORD.unpack(record)
        if flags & SHARED and shared is None:
            shared = find_shared_heap(file, kind)
        message = (shared if shared and flags & SHARED else heap).read_object(identity)
        nbytes += len(message)
        if nbytes > file.end + MOST_BYTES:
            file.refuse("its attributes have more bytes than the file")
        found.append(Message(kind, flags & ~SHARED, message, order))
    return found
