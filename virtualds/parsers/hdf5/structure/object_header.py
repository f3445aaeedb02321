"""Object headers of HDF5: messages.

HDF5 File Format Specification 3.0, IV.A. Unknown forms are declined by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from virtualds.parsers.hdf5.structure.byte_rows import CHECKSUM_BYTES
from virtualds.parsers.hdf5.structure.file_bytes import FileBytes, parse_uint
from virtualds.parsers.hdf5.structure.notes import cut, free, note_checksum

DATASPACE, DATATYPE, FILL, OLD_FILL, LAYOUT = 0x01, 0x03, 0x05, 0x04, 0x08
SHARED_TABLE, CONTINUATION, TREE_K, CACHE_IMAGE = 0x0F, 0x10, 0x13, 0x18
"""Types of messages (IV.A.2)."""
MEANINGLESS = frozenset({0x00, 0x0E, 0x12})
"""Messages that nothing depends on: empty ones, and times of modification."""
SHARED = 0b10
"""The flag of a message that lies elsewhere (IV.A.1)."""
HEADER_GUESS = 512
"""Bytes that are read of a header before its length is known, as HDF5 does."""
MOST_BYTES = 2**26
"""Bytes that all messages of an object may have."""
HEAD_V1 = Struct("<BxHII4x")
"""Version, messages, references, bytes of the messages; filled up to 8 bytes (IV.A.1.a)."""
MESSAGE_V1, MESSAGE_V2, MESSAGE_V2_ORDERED = Struct("<HHB3x"), Struct("<BHB"), Struct("<BHBH")
"""Type, bytes and flags of a message (IV.A.1), and its number in the order of creation."""


class Message(NamedTuple):
    """A message of an object header."""

    kind: int
    flags: int
    data: bytes
    order: int = 0


def is_sound(block: bytes) -> bool:
    """Say whether the last four bytes of a block are the checksum of the others (lookup3)."""
    # imported here, since it takes long and only some files have checksums
    from numcodecs.jenkins import jenkins_lookup3

    place = len(block) - CHECKSUM_BYTES
    note_checksum(block, place, CHECKSUM_BYTES)
    return bool(jenkins_lookup3(block[:place]) == parse_uint(block, place, CHECKSUM_BYTES))


def read_messages(file: FileBytes, address: int) -> list[Message]:
    """Return the messages of the object whose header lies at an address.

    Raises
    ------
    FormatError
        The header is damaged.
    UnsupportedError
        It is of an unknown version.
    """
    if file.unknown:
        file.decline(file.unknown)
    first, form = _read_first_block(file, address)
    seen, nbytes = {address}, 0
    found: list[Message] = []
    blocks = [first]
    for block in blocks:
        nbytes += len(block)
        for message in _parse_messages(file, block, form):
            if message.kind != CONTINUATION:
                found.append(message)
                continue
            place = file.unpack_address(message.data, 0)
            length = file.unpack_length(message.data, file.offset_size)
            if place in seen or nbytes + length > MOST_BYTES:
                file.refuse(f"the header of the object at {address} has no end")
            seen.add(place)
            blocks.append(_read_continuation(file, place, length, form))
    return found


def _read_first_block(file: FileBytes, address: int) -> tuple[bytes, Struct]:
    """Return the bytes of the first messages, and what comes before each."""
    head = file.peek(address, HEADER_GUESS)
    if head[:4] == b"OHDR":
        return _read_first_of_version_2(file, address, head)
    if len(head) < HEAD_V1.size or head[0] != 1:
        file.refuse(f"there is no object at {address}")
    stop = HEAD_V1.size + HEAD_V1.unpack_from(head)[3]
    whole = file.take(address, stop)
    # bytes that fill the head up
    free(whole, HEAD_V1.size - 4, HEAD_V1.size)
    return cut(whole, HEAD_V1.size, stop), MESSAGE_V1


def _read_first_of_version_2(file: FileBytes, address: int, head: bytes) -> tuple[bytes, Struct]:
    if head[4] != 2:
        file.decline(f"an object header of version {head[4]}")
    flags = head[5]
    times = 16 * bool(flags & 0x20)
    # the numbers of attributes at which their storage changes come after the times
    begin = 6 + times + 4 * bool(flags & 0x10)
    width = 1 << (flags & 3)
    stop = begin + width + parse_uint(head, begin, width) + CHECKSUM_BYTES
    whole = file.take(address, stop)
    if not is_sound(whole):
        file.refuse(f"the header of the object at {address} has a wrong checksum")
    free(whole, 6, 6 + times)
    form = MESSAGE_V2_ORDERED if flags & 0x4 else MESSAGE_V2
    return cut(whole, begin + width, stop - CHECKSUM_BYTES), form


def _read_continuation(file: FileBytes, address: int, length: int, form: Struct) -> bytes:
    block = file.take(address, length)
    if form is MESSAGE_V1:
        return block
    if block[:4] != b"OCHK" or not is_sound(block):
        file.refuse(f"part of an object header is missing at {address}, or has a wrong checksum")
    return cut(block, 4, length - CHECKSUM_BYTES)


def _parse_messages(file: FileBytes, block: bytes, form: Struct) -> Iterator[Message]:
    """Yield the messages of a block but those that nothing depends on."""
    place, step, stop = 0, form.size, len(block)
    # a shorter rest is a gap
    last = stop - step
    is_noted = file.notes is not None
    while place <= last:
        kind, length, flags, *order = form.unpack_from(block, place)
        begin = place + step
        place = begin + length
        if place > stop:
            file.refuse("a message is longer than the object header that it lies in")
        if is_noted:
            free(block, begin - 3 if form is MESSAGE_V1 else begin, begin)
        if kind in MEANINGLESS:
            free(block, begin, place)
            continue
        data = cut(block, begin, place) if is_noted else block[begin:place]
        yield Message(kind, flags, data, *order)
    free(block, place, stop)


def read_extension(file: FileBytes) -> None:
    """Read from the superblock extension how metadata are stored."""
    if file.unknown or not file.is_defined(file.superblock.extension):
        return
    for message in read_messages(file, file.superblock.extension):
        if message.kind == CACHE_IMAGE:
            # then metadata lie in the image, not at their addresses (IV.A.2.y)
            file.unknown = "a metadata cache image"
        if message.kind == SHARED_TABLE:
            table = file.unpack_address(message.data, 1)
            file.shared_messages = table, parse_uint(message.data, 1 + file.offset_size, 1)
        if message.kind == TREE_K:
            halves = (parse_uint(message.data, place, 2) for place in (1, 3, 5))
            file.half, file.group_half, file.leaf_half = halves
