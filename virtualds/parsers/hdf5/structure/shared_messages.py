"""Shared messages: committed datatypes, and messages of several objects.

HDF5 File Format Specification 3.0, IV.A.2, "Shared Message", and IV.A.2.p, "Shared Message Table".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct

from virtualds.parsers.hdf5.structure.byte_rows import CHECKSUM_BYTES
from virtualds.parsers.hdf5.structure.file_bytes import FileBytes
from virtualds.parsers.hdf5.structure.fill_values import parse_fill_value, parse_old_fill_value
from virtualds.parsers.hdf5.structure.fractal_heap import FractalHeap
from virtualds.parsers.hdf5.structure.message_bytes import blame_file
from virtualds.parsers.hdf5.structure.object_header import (
    FILL,
    OLD_FILL,
    SHARED,
    Message,
    is_sound,
    read_messages,
)

IN_HEAP = 1
"""The type of a shared message that lies in a heap of the file, not in a header."""
INDEX = Struct("<BBHIHHH")
"""Version, type, kinds of messages, the least of their bytes, two lengths of lists, messages."""


def read_unshared(file: FileBytes, message: Message) -> bytes:
    """Return the data of a message, in the message or elsewhere.

    Raises
    ------
    FormatError
        The data are missing.
    UnsupportedError
        The message refers to them in an unknown form.
    """
    return (
        read_shared_data(file, message.kind, message.data)
        if message.flags & SHARED
        else message.data
    )


def read_shared_data(file: FileBytes, kind: int, data: bytes) -> bytes:
    """Return the data that a shared message of a kind refers to."""
    if len(data) < 2 + file.offset_size or not 0 < data[0] <= 3:
        file.decline("a shared message of another version than 1 to 3")
    if data[0] == 3 and data[1] == IN_HEAP:
        return find_shared_heap(file, kind).read_object(data[2:10])
    # before version 2 the place of the name of the object comes first
    place = 8 + file.length_size if data[0] == 1 else 2
    return _read_committed(file, kind, file.unpack_address(data, place))


def _read_committed(file: FileBytes, kind: int, address: int) -> bytes:
    """Return the one message of a kind that the object at an address has."""
    found = [m for m in read_messages(file, address) if m.kind == kind]
    if len(found) != 1 or (found[0].flags & SHARED and found[0].data[1:2] != bytes([IN_HEAP])):
        file.refuse(f"the object at {address} has {len(found)} messages of type {kind} to share")
    return read_unshared(file, found[0])


def find_shared_heap(file: FileBytes, kind: int) -> FractalHeap:
    """Return the heap of shared messages of a kind."""
    address, count = file.shared_messages
    if not count:
        file.refuse("it has shared messages, and no table of them")
    step = INDEX.size + 2 * file.offset_size
    data = file.take(address, 4 + count * step + CHECKSUM_BYTES)
    if data[:4] != b"SMTB" or not is_sound(data):
        file.refuse(f"there is no table of shared messages at {address}, or its checksum is wrong")
    for place in range(4, 4 + count * step, step):
        if INDEX.unpack_from(data, place)[2] & 1 << kind:
            return FractalHeap(
                file, file.unpack_address(data, place + INDEX.size + file.offset_size)
            )
    file.refuse(f"its table of shared messages has none of type {kind}")


def read_fill_values(file: FileBytes, messages: Sequence[Message]) -> Iterator[bytes]:
    """Yield the fill values of a dataset as they lie in the file (IV.A.2.e and IV.A.2.f)."""
    for message in messages:
        if message.kind not in (FILL, OLD_FILL):
            continue
        data = read_unshared(file, message)
        with blame_file(file):
            parse = parse_fill_value if message.kind == FILL else parse_old_fill_value
            fill = parse(data)
        if fill.is_chosen:
            yield fill.raw
