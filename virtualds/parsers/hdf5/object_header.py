"""Object headers of HDF5: messages, and where a dataset lists its chunks.

HDF5 File Format Specification 3.0, IV.A. Unknown forms are declined by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from struct import Struct
from typing import NamedTuple

from virtualds.parsers.hdf5.byte_rows import CHECKSUM_BYTES
from virtualds.parsers.hdf5.file_bytes import FileBytes, parse_uint
from virtualds.parsers.hdf5.notes import cut, free, note_checksum

DATATYPE, FILL, OLD_FILL, LAYOUT = 0x03, 0x05, 0x04, 0x08
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

COMPACT = 0
"""The class of a layout whose message holds the values."""
B_TREE_1, SINGLE, IMPLICIT, FIXED_ARRAY, EXTENSIBLE_ARRAY, B_TREE_2 = range(6)
"""Indexes of chunks: the first of layout messages up to version 3, the others by their number
(IV.A.2.i, version 4)."""
PARAMETERS = {IMPLICIT: 0, FIXED_ARRAY: 1, EXTENSIBLE_ARRAY: 5, B_TREE_2: 6}
"""Bytes before the address of an index in a layout message (IV.A.2.i, version 4)."""


class Message(NamedTuple):
    """A message of an object header."""

    kind: int
    flags: int
    data: bytes
    order: int = 0


class ChunkIndexInfo(NamedTuple):
    """Where the index of a chunked dataset lies.

    Parameters
    ----------
    kind : int
        `B_TREE_1` and so on.
    address : int
        Of its first block.
    dims : tuple of int
        Elements of a chunk along each axis, and last the bytes of an element.
    length, mask : int
        Bytes and filter mask of a chunk that is the only one.
    """

    kind: int
    address: int
    dims: tuple[int, ...]
    length: int = 0
    mask: int = 0


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
        messages = _parse_messages(file, block, form)
        found += [message for message in messages if message.kind != CONTINUATION]
        for message in messages:
            if message.kind != CONTINUATION:
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


def _parse_messages(file: FileBytes, block: bytes, form: Struct) -> list[Message]:
    found = []
    place, step = 0, form.size
    # a shorter rest is a gap
    while place + step <= len(block):
        kind, length, flags, *order = form.unpack_from(block, place)
        begin = place + step
        place = begin + length
        if place > len(block):
            file.refuse("a message is longer than the object header that it lies in")
        if form is MESSAGE_V1:
            free(block, begin - 3, begin)
        if kind in MEANINGLESS:
            free(block, begin, place)
        found.append(Message(kind, flags, cut(block, begin, place), *order))
    free(block, place, len(block))
    return found


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
            file.half = parse_uint(message.data, 1, 2) or file.half


def parse_chunk_index(file: FileBytes, messages: Sequence[Message]) -> ChunkIndexInfo:
    """Return where the chunks of a dataset are listed: its Data Layout message (IV.A.2.i).

    Raises
    ------
    FormatError
        There is no such message, or more than one.
    UnsupportedError
        Its version or its index is unknown.
    """
    layouts = [m for m in messages if m.kind == LAYOUT]
    if len(layouts) != 1 or layouts[0].flags & SHARED:
        file.refuse(f"a dataset has {len(layouts)} layouts")
    data = layouts[0].data
    if data[0] not in LAYOUTS:
        file.decline(f"a data layout of version {data[0]}")
    return LAYOUTS[data[0]](file, data)


def parse_compact_data(file: FileBytes, messages: Sequence[Message]) -> bytes:
    """Return the values that lie in the Data Layout message of a dataset (IV.A.2.i).

    Raises
    ------
    FormatError
        There are none.
    """
    layouts = [m.data for m in messages if m.kind == LAYOUT]
    if len(layouts) != 1 or len(layouts[0]) < 8:
        file.refuse(f"a dataset has {len(layouts)} layouts")
    data = layouts[0]
    # up to version 2 the lengths of axes come first
    begin, width = (8 + 4 * data[1], 4) if data[0] < 3 else (2, 2)
    if data[2 if data[0] < 3 else 1] != COMPACT:
        file.refuse("a compact dataset has another layout")
    return data[begin + width : begin + width + parse_uint(data, begin, width)]


def is_filtering_edges(messages: Sequence[Message]) -> bool:
    """Say whether chunks that reach past the end are filtered (IV.A.2.i, version 4, "Flags")."""
    return not any(m.data[0] >= 4 and m.data[2] & 1 for m in messages if m.kind == LAYOUT)


def _parse_layout_1(file: FileBytes, data: bytes) -> ChunkIndexInfo:
    """Read versions 1 and 2: dimensionality, class, five reserved bytes, address, dimensions."""
    place = 8 + file.offset_size
    return _make_index(file, B_TREE_1, file.unpack_address(data, 8), data, place, 4, data[1])


def _parse_layout_3(file: FileBytes, data: bytes) -> ChunkIndexInfo:
    """Read version 3: class, dimensionality, address, dimensions."""
    place = 3 + file.offset_size
    return _make_index(file, B_TREE_1, file.unpack_address(data, 3), data, place, 4, data[2])


def _parse_layout_4(file: FileBytes, data: bytes) -> ChunkIndexInfo:
    """Read versions 4 and 5: class, flags, dimensionality, width, dimensions, index, address."""
    flags, rank, width = data[2:5]
    place = 5 + width * rank
    kind = data[place] if place < len(data) else 0
    filtered = kind == SINGLE and bool(flags & 0b10)
    begin = place + 1
    if kind == SINGLE:
        # the length and the filter mask of a filtered chunk
        place += (file.length_size + 4) * filtered
    elif kind in PARAMETERS:
        place += PARAMETERS[kind]
    else:
        file.decline(f"a chunk index of type {kind}")
    if place + 1 + file.offset_size > len(data):
        file.refuse("a layout is cut short")
    index = _make_index(file, kind, file.unpack_address(data, place + 1), data, 5, width, rank)
    if not filtered:
        return index._replace(length=prod(index.dims))
    length, mask = file.unpack_length(data, begin), parse_uint(data, place - 3, 4)
    return index._replace(length=length, mask=mask)


def _make_index(
    file: FileBytes, kind: int, address: int, data: bytes, place: int, width: int, rank: int
) -> ChunkIndexInfo:
    if place + width * rank > len(data):
        file.refuse("a layout is cut short")
    dims = tuple(parse_uint(data, place + width * axis, width) for axis in range(rank))
    if not 0 < prod(dims) < 2**63:
        file.refuse(f"chunks of {dims[:-1]}, of elements of {dims[-1:]} bytes")
    return ChunkIndexInfo(kind, address, dims)


LAYOUTS: dict[int, Callable[[FileBytes, bytes], ChunkIndexInfo]] = {
    1: _parse_layout_1,
    2: _parse_layout_1,
    3: _parse_layout_3,
    4: _parse_layout_4,
    # of the form of version 4; only lengths in the indexes have other widths
    5: _parse_layout_4,
}
"""Versions of the Data Layout message."""
