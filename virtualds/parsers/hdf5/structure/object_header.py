"""Object headers of HDF5: messages, those that lie elsewhere, attributes, and links.

HDF5 File Format Specification 3.0, IV.A. Unknown forms are declined by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import prod
from operator import attrgetter
from struct import Struct
from typing import NamedTuple

from virtualds.parsers.hdf5.structure.byte_rows import CHECKSUM_BYTES
from virtualds.parsers.hdf5.structure.file_bytes import (
    FileBytes,
    cut,
    free,
    is_sound,
    note_slot,
    parse_uint,
)
from virtualds.parsers.hdf5.structure.fractal_heap import FractalHeap, read_records, read_symbols
from virtualds.parsers.hdf5.structure.messages import (
    MESSAGE_ERRORS,
    MessageError,
    TypeClass,
    UnknownFormError,
    blame_file,
    parse_dataspace,
    parse_fill_value,
    parse_old_fill_value,
)

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
        is_known = kind not in MEANINGLESS
        if is_noted:
            free(block, begin - 3 if form is MESSAGE_V1 else begin, begin if is_known else place)
        if is_known:
            data = cut(block, begin, place) if is_noted else block[begin:place]
            yield Message(kind, flags, data, *order)
    if is_noted:
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


# ---------------------------------------------------------------------- shared messages
# Shared messages: committed datatypes, and messages of several objects.
#
# HDF5 File Format Specification 3.0, IV.A.2, "Shared Message", and IV.A.2.p, "Shared Message
# Table".


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
        try:
            parse = parse_fill_value if message.kind == FILL else parse_old_fill_value
            fill = parse(bytes(data))
        except MESSAGE_ERRORS as error:
            blame_file(file, error)
        if fill.is_chosen:
            yield fill.raw


# ---------------------------------------------------------------------- dense attributes
# Dense storage of attributes: too many, or too long, for an object header.
#
# HDF5 File Format Specification 3.0, IV.A.2.v, "Attribute Info": a fractal heap holds the messages
# (III.G), and a version 2 B-tree has a record for each name (III.A.2, type 8). A second tree, in
# the order of creation, holds nothing more.


ATTRIBUTES_BY_NAME = 8
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
    for record in read_records(file, index, ATTRIBUTES_BY_NAME, ATTRIBUTE_RECORD.size):
        identity, flags, order = ATTRIBUTE_RECORD.unpack(record)
        if flags & SHARED and shared is None:
            shared = find_shared_heap(file, kind)
        message = (shared if shared and flags & SHARED else heap).read_object(identity)
        nbytes += len(message)
        if nbytes > file.end + MOST_BYTES:
            file.refuse("its attributes have more bytes than the file")
        found.append(Message(kind, flags & ~SHARED, message, order))
    return found


# ---------------------------------------------------------------------- attributes
# HDF5 File Format Specification 3.0, IV.A.2.m, "Attribute", and IV.A.2.v, "Attribute Info".


ATTRIBUTE, ATTRIBUTE_INFO = 0x0C, 0x15
"""Types of messages: an attribute, and the place of attributes outside the header."""
ATTRIBUTE_HEAD = Struct("<BBHHH")
"""Version, flags, bytes of name, type and dataspace; in version 3 a byte follows."""
DIMENSION_ONLY = b"This is a netCDF dimension but not a netCDF variable"
"""Start of the NAME of a scale that stands for a dimension without a variable."""
DECISIVE = frozenset({b"CLASS", b"DIMENSION_LIST", b"_Netcdf4Dimid", b"_Netcdf4Coordinates"})
"""Attributes that decide what the dimensions are."""
UNREAD = frozenset({b"REFERENCE_LIST", b"_nc3_strict", b"_NCProperties"})
"""Attributes that nothing here reads."""
IN_PLACE = frozenset(
    {
        TypeClass.INTEGER,
        TypeClass.FLOAT,
        TypeClass.STRING,
        TypeClass.BITFIELD,
        TypeClass.OPAQUE,
        TypeClass.ENUM,
    }
)
"""Classes of types whose values lie in the attribute and refer to nothing."""
TYPE_SHARED, SPACE_SHARED = 0b01, 0b10
"""Flags of an attribute whose type or dataspace lies elsewhere."""


class Attribute(NamedTuple):
    """An attribute as its message has it.

    Parameters
    ----------
    name : bytes
    kind : bytes
        The datatype message of its elements.
    shape : tuple of int or None
        None where it has no elements (a null dataspace).
    elements : int
        Number of elements.
    data : bytes
        Of the elements, possibly padded.
    owner : int
        Address of the object that has it.
    """

    name: bytes
    kind: bytes
    shape: tuple[int, ...] | None
    elements: int
    data: bytes
    owner: int = 0

    @property
    def key(self) -> tuple[int, bytes]:
        """What its slot is called in notes."""
        return self.owner, self.name


Attributes = dict[bytes, Attribute]


def read_attributes(file: FileBytes, messages: Sequence[Message], owner: int) -> Attributes:
    """Return the attributes of the object at an address in the order of creation, by name.

    Raises
    ------
    FormatError
        An attribute, or the storage of attributes, contradicts itself.
    UnsupportedError
        An attribute has an unknown form.
    """
    listed = [m for m in messages if m.kind == ATTRIBUTE]
    for message in messages:
        if message.kind == ATTRIBUTE_INFO:
            listed += read_dense_messages(file, ATTRIBUTE, message.data)
    found: Attributes = {}
    # without a creation order all numbers are 0, and the sort changes nothing
    listed.sort(key=attrgetter("order"))
    for message in listed:
        try:
            attribute = _parse_attribute(file, read_unshared(file, message), owner)
        except MESSAGE_ERRORS as error:
            blame_file(file, error)
        if attribute.name in found:
            file.refuse(f"an object has two attributes {attribute.name!r}")
        found[attribute.name] = attribute
    return found


class _Head(NamedTuple):
    """What an attribute has before its elements; ``shape`` is that of a dataspace of its own."""

    name: bytes
    kind: bytes
    space: bytes
    flags: int
    shape: tuple[int, ...] | None


def _parse_attribute(file: FileBytes, data: bytes, owner: int) -> Attribute:
    begin = _measure_head(data)
    name, kind, space, flags, shape = _parse_head(data[:begin], file.length_size)
    if flags & TYPE_SHARED:
        kind = bytes(read_shared_data(file, DATATYPE, kind))
    if flags & SPACE_SHARED:
        shared = bytes(read_shared_data(file, DATASPACE, space))
        shape = parse_dataspace(shared, file.length_size).shape
    elements = 0 if shape is None else prod(shape)
    if file.notes is None:
        return Attribute(name, kind, shape, elements, data[begin:], owner)
    attribute = Attribute(name, kind, shape, elements, cut(data, begin), owner)
    _note_value(attribute)
    return attribute


def _measure_head(data: bytes) -> int:
    """Return where the elements of an attribute begin."""
    if len(data) < ATTRIBUTE_HEAD.size:
        raise MessageError("an attribute is cut short")
    version, _, name, kind, space = ATTRIBUTE_HEAD.unpack_from(data)
    if version == 1:
        # each part is filled up to 8 bytes
        begin = ATTRIBUTE_HEAD.size + (name + 7 & -8) + (kind + 7 & -8) + (space + 7 & -8)
    elif version in (2, 3):
        begin = ATTRIBUTE_HEAD.size + (version == 3) + name + kind + space
    else:
        raise UnknownFormError(f"an attribute of version {version}")
    if begin > len(data):
        raise MessageError("an attribute is longer than the message that it lies in")
    return int(begin)


@lru_cache(8192)
def _parse_head(data: bytes, length_size: int) -> _Head:
    version, flags, *lengths = ATTRIBUTE_HEAD.unpack_from(data)
    # in version 1 the byte has no meaning
    flags = flags if version > 1 else 0
    begin = ATTRIBUTE_HEAD.size + (version == 3)
    parts = []
    for length in lengths:
        parts.append(data[begin : begin + length])
        begin += length if version > 1 else length + 7 & -8
    name, kind, space = parts
    name, _, rest = name.partition(b"\0")
    if not name or rest or len(name) + 1 != lengths[0]:
        raise MessageError("the name of an attribute has no end, or more than one")
    shape = None if flags & SPACE_SHARED else parse_dataspace(space, length_size).shape
    return _Head(name, kind, space, flags, shape)


def _note_value(attribute: Attribute) -> None:
    """Note which bytes of a value decide something, and which may differ."""
    name, data = attribute.name, attribute.data
    size = attribute.elements * parse_uint(attribute.kind, 4, 4)
    if name in UNREAD:
        free(data, 0, len(data))
    elif name == b"NAME":
        free(data, len(DIMENSION_ONLY), len(data))
    elif name not in DECISIVE and attribute.kind[0] & 0x0F in IN_PLACE and size <= len(data):
        note_slot(data, 0, size, attribute.key)
        free(data, size, len(data))


@lru_cache(1024)
def find_string_size(kind: bytes, paddings: tuple[int, ...]) -> int:
    """Return the bytes of a fixed-length string with such padding; 0 for other types (IV.A.2.d)."""
    if len(kind) < 8 or kind[0] & 0x0F != TypeClass.STRING or kind[1] & 0x0F not in paddings:
        return 0
    return int.from_bytes(kind[4:8], "little")


# ---------------------------------------------------------------------- links
# HDF5 File Format Specification 3.0, IV.A.2.c "Link Info", IV.A.2.g "Link", IV.A.2.r "Symbol
# Table".


LINK_INFO, LINK, SYMBOL_TABLE = 0x02, 0x06, 0x11
"""Types of messages."""
HARD, SOFT, EXTERNAL = 0, 1, 64
"""Types of links (IV.A.2.g)."""
LINKS_BY_NAME = 5
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
    for record in read_records(file, index, LINKS_BY_NAME, HASH_BYTES + IDENTITY_BYTES):
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
