"""Object headers of HDF5: messages, including shared messages, attributes, and links.

HDF5 File Format Specification 3.0, IV.A. Unknown forms raise an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import prod
from operator import attrgetter
from struct import Struct
from typing import NamedTuple

from virtualds.parsers.hdf5.structure import CHECKSUM_BYTES
from virtualds.parsers.hdf5.structure.file_bytes import (
    HEADER_BYTES,
    FileBytes,
    Message,
    has_valid_checksum,
    mark_unused,
    note_slot,
    parse_uint,
    read_messages,
    slice_bytes,
)
from virtualds.parsers.hdf5.structure.fractal_heap import FractalHeap, read_records, read_symbols
from virtualds.parsers.hdf5.structure.messages import (
    FILTERED_SINGLE,
    FILTERS,
    MESSAGE_ERRORS,
    NO_FILL,
    Dataspace,
    FillValue,
    Filter,
    IndexKind,
    Layout,
    LayoutClass,
    MessageError,
    TypeClass,
    UnknownFormError,
    parse_dataspace,
    parse_fill_value,
    parse_filter_pipeline,
    parse_layout,
    parse_old_fill_value,
    raise_with_file,
)

DATASPACE, DATATYPE, FILL, OLD_FILL, LAYOUT = 0x01, 0x03, 0x05, 0x04, 0x08
"""Types of messages (IV.A.2)."""
SHARED = 0b10
"""Flag of a shared message (IV.A.1)."""
MAX_BYTES = 2**26
"""Number of bytes by which the attributes of an object may exceed the size of the file."""


# ---------------------------------------------------------------------- shared messages
# Shared messages: committed datatypes, and messages of several objects.
#
# HDF5 File Format Specification 3.0, IV.A.2, "Shared Message", and IV.A.2.p, "Shared Message
# Table".


SHARED_IN_HEAP = 1
"""Type of a shared message that is in a heap instead of an object header."""
SHARED_INDEX = Struct("<BBHIHHH")
"""Version, type, kinds of messages, their minimum size, two lengths of lists, number of
messages."""


def read_message_data(file: FileBytes, message: Message) -> bytes:
    """Return the data of a message, which may be shared."""
    if message.flags & SHARED:
        return read_shared_data(file, message.kind, message.data)
    return message.data


def read_shared_data(file: FileBytes, kind: int, data: bytes) -> bytes:
    """Return the data to which a shared message of a kind refers."""
    if len(data) < 2 + file.offset_size or not 0 < data[0] <= 3:
        file.raise_unsupported("a shared message of a version other than 1 to 3")
    if data[0] == 3 and data[1] == SHARED_IN_HEAP:
        return find_shared_heap(file, kind).read_object(data[2:10])
    # in version 1, reserved bytes precede the address
    offset = 8 + file.length_size if data[0] == 1 else 2
    address = file.unpack_address(data, offset)
    messages = [m for m in read_messages(file, address) if m.kind == kind]
    if len(messages) != 1 or (
        messages[0].flags & SHARED and messages[0].data[1:2] != bytes([SHARED_IN_HEAP])
    ):
        file.raise_damaged(
            f"the object at {address} has {len(messages)} messages of type {kind} to share"
        )
    return read_message_data(file, messages[0])


def find_shared_heap(file: FileBytes, kind: int) -> FractalHeap:
    """Return the heap of shared messages of a kind."""
    address, count = file.shared_messages
    if not count:
        file.raise_damaged("it has shared messages, and no table of them")
    step = SHARED_INDEX.size + 2 * file.offset_size
    data = file.read_noted(address, 4 + count * step + CHECKSUM_BYTES)
    if data[:4] != b"SMTB" or not has_valid_checksum(data):
        file.raise_damaged(
            f"there is no table of shared messages at {address}, or its checksum is wrong"
        )
    for offset in range(4, 4 + count * step, step):
        if SHARED_INDEX.unpack_from(data, offset)[2] & 1 << kind:
            return FractalHeap(
                file, file.unpack_address(data, offset + SHARED_INDEX.size + file.offset_size)
            )
    file.raise_damaged(f"its table of shared messages has none of type {kind}")


# ---------------------------------------------------------------------- datasets


LENGTH, ADDRESS, SIZE, DATA, CHUNK = "length", "address", "size", "data", "chunk"
LIMIT, CHUNK_LENGTH = "limit", "chunk length"
"""Keys of the slots of a dataset.

These are the length of an axis; the address of the elements or of the chunk index; the size of
contiguous elements; compact elements; size and filter mask of a filtered single chunk; the maximum
length of an axis, if it is limited; the chunk length along an axis.
"""

UNIQUE_MESSAGES = frozenset({DATASPACE, DATATYPE, FILL, OLD_FILL, FILTERS, LAYOUT})
"""Types of messages that must not be repeated in a dataset."""


class DatasetHeader(NamedTuple):
    """The messages of a dataset that describe its elements, parsed.

    Parameters
    ----------
    space : Dataspace
    kind : bytes
        The Datatype message of its elements.
    fill : FillValue
    filters : tuple of Filter
        In the order of encoding.
    layout : Layout
    """

    space: Dataspace
    kind: bytes
    fill: FillValue
    filters: tuple[Filter, ...]
    layout: Layout


def read_dataset_header(file: FileBytes, messages: Sequence[Message], owner: int) -> DatasetHeader:
    """Return the description of a dataset from the messages of its object header."""
    by_kind: dict[int, Message] = {}
    for message in messages:
        if message.kind in UNIQUE_MESSAGES and message.kind in by_kind:
            file.raise_damaged(f"a dataset has two messages of type {message.kind}")
        by_kind[message.kind] = message
    if LAYOUT not in by_kind or by_kind[LAYOUT].flags & SHARED:
        file.raise_damaged("a dataset has no layout")
    try:
        space = _parse_space(file, by_kind[DATASPACE], owner)
        kind = bytes(read_message_data(file, by_kind[DATATYPE]))
        filters = by_kind.get(FILTERS)
        return DatasetHeader(
            space,
            kind,
            _parse_fill(file, by_kind),
            parse_filter_pipeline(bytes(read_message_data(file, filters))) if filters else (),
            _parse_layout(file, by_kind[LAYOUT].data, owner),
        )
    except MESSAGE_ERRORS as error:
        raise_with_file(file, error)


def _parse_space(file: FileBytes, message: Message, owner: int) -> Dataspace:
    data, width = read_message_data(file, message), file.length_size
    space = parse_dataspace(bytes(data), width)
    if file.notes is None:
        return space
    rank = len(space.limits)
    for axis, limit in enumerate(space.limits):
        note_slot(data, space.offset + axis * width, width, (owner, LENGTH, axis))
        if space.has_limits and limit is not None:
            note_slot(data, space.offset + (rank + axis) * width, width, (owner, LIMIT, axis))
    return space


def _parse_fill(file: FileBytes, by_kind: dict[int, Message]) -> FillValue:
    if FILL in by_kind:
        return parse_fill_value(bytes(read_message_data(file, by_kind[FILL])))
    if OLD_FILL in by_kind:
        return parse_old_fill_value(bytes(read_message_data(file, by_kind[OLD_FILL])))
    return NO_FILL


def _parse_layout(file: FileBytes, data: bytes, owner: int) -> Layout:
    offset, length = file.offset_size, file.length_size
    layout = parse_layout(bytes(data), offset, length)
    if file.notes is None:
        return layout
    if layout.kind == LayoutClass.COMPACT:
        note_slot(data, layout.offset, len(layout.data), (owner, DATA))
    elif layout.kind in (LayoutClass.CONTIGUOUS, LayoutClass.CHUNKED):
        note_slot(data, layout.offset, offset, (owner, ADDRESS))
    if layout.kind == LayoutClass.CONTIGUOUS and layout.size is not None:
        note_slot(data, layout.offset + offset, length, (owner, SIZE))
    if layout.kind == LayoutClass.CHUNKED:
        begin, width = layout.dims_at
        for axis in range(len(layout.dims) - 1):
            note_slot(data, begin + axis * width, width, (owner, CHUNK_LENGTH, axis))
    if layout.index_kind == IndexKind.SINGLE and layout.flags & FILTERED_SINGLE:
        note_slot(data, layout.offset - 4 - length, length + 4, (owner, CHUNK))
    return layout


def read_fill_values(file: FileBytes, messages: Sequence[Message]) -> Iterator[bytes]:
    """Yield the fill values of a dataset as stored in the file (IV.A.2.e and IV.A.2.f)."""
    for message in messages:
        if message.kind not in (FILL, OLD_FILL):
            continue
        data = read_message_data(file, message)
        try:
            parse = parse_fill_value if message.kind == FILL else parse_old_fill_value
            fill = parse(bytes(data))
        except MESSAGE_ERRORS as error:
            raise_with_file(file, error)
        if fill.is_user_defined:
            yield fill.raw


# ---------------------------------------------------------------------- dense attributes
# Dense storage of attributes that do not fit into an object header.
#
# HDF5 File Format Specification 3.0, IV.A.2.v, "Attribute Info": a fractal heap has the messages
# (III.G), and a version 2 B-tree has a record for each name (III.A.2, type 8). A second tree, in
# creation order, is not needed.


ATTRIBUTES_BY_NAME = 8
"""Type of records sorted by the hash of a name."""
ATTRIBUTE_RECORD = Struct("<8sBIxxxx")
"""Heap ID, flags of the message, creation order, hash of the name."""


def _find_dense_storage(file: FileBytes, data: bytes, begin: int) -> tuple[FractalHeap, int] | None:
    """Return the heap of an Attribute Info or Link Info message, and the address of its name tree.

    Returns None if the heap is undefined.
    """
    size = file.offset_size
    if file.notes is not None:
        mark_unused(data, begin + 2 * size, len(data))
    if data[begin : begin + size] == b"\xff" * size:
        return None
    address, index = (file.unpack_address(data, at) for at in (begin, begin + size))
    file.prepare([(address, HEADER_BYTES), (index, HEADER_BYTES)])
    return FractalHeap(file, address), index


def read_dense_messages(file: FileBytes, kind: int, data: bytes) -> list[Message]:
    """Return the attribute messages to which an Attribute Info message refers.

    Parameters
    ----------
    file : FileBytes
    kind : int
        The type of their messages.
    data : bytes
        The data of the Attribute Info message.
    """
    if len(data) < 2 or data[0]:
        file.raise_unsupported("an Attribute Info message of a version other than 0")
    # the maximum creation index precedes the addresses
    dense = _find_dense_storage(file, data, 2 + 2 * (data[1] & 1))
    if dense is None:
        return []
    heap, index = dense
    shared: FractalHeap | None = None
    messages, nbytes = [], 0
    for record in read_records(file, index, ATTRIBUTES_BY_NAME, ATTRIBUTE_RECORD.size):
        heap_id, flags, order = ATTRIBUTE_RECORD.unpack(record)
        if flags & SHARED and shared is None:
            shared = find_shared_heap(file, kind)
        message = (shared if shared and flags & SHARED else heap).read_object(heap_id)
        nbytes += len(message)
        if nbytes > file.end + MAX_BYTES:
            file.raise_damaged("its attributes have more bytes than the file")
        messages.append(Message(kind, flags & ~SHARED, message, order))
    return messages


# ---------------------------------------------------------------------- attributes
# HDF5 File Format Specification 3.0, IV.A.2.m, "Attribute", and IV.A.2.v, "Attribute Info".


ATTRIBUTE, ATTRIBUTE_INFO = 0x0C, 0x15
"""Types of messages: an attribute, and the location of dense attributes."""
ATTRIBUTE_HEADER = Struct("<BBHHH")
"""Version, flags, sizes of name, type and dataspace; in version 3, another byte follows."""
DIMENSION_ONLY = b"This is a netCDF dimension but not a netCDF variable"
"""Start of the NAME of a scale that represents a dimension without a variable."""
DIMENSION_ATTRIBUTES = frozenset(
    {b"CLASS", b"DIMENSION_LIST", b"_Netcdf4Dimid", b"_Netcdf4Coordinates"}
)
"""Attributes that determine the dimensions."""
IGNORED_ATTRIBUTES = frozenset({b"REFERENCE_LIST", b"_nc3_strict", b"_NCProperties"})
"""Attributes that are not read."""
INLINE_CLASSES = frozenset(
    {
        TypeClass.INTEGER,
        TypeClass.FLOAT,
        TypeClass.STRING,
        TypeClass.BITFIELD,
        TypeClass.OPAQUE,
        TypeClass.ENUM,
    }
)
"""Type classes without references, whose values are in the attribute."""
TYPE_SHARED, SPACE_SHARED = 0b01, 0b10
"""Flags of an attribute whose type or dataspace is a shared message."""


class Attribute(NamedTuple):
    """An attribute as stored in its message.

    Parameters
    ----------
    name : bytes
    kind : bytes
        The datatype message of its elements.
    shape : tuple of int or None
        None if it has no elements (a null dataspace).
    elements : int
        Number of elements.
    data : bytes
        The bytes of the elements, possibly padded.
    owner : int
        The address of the object with the attribute.
    """

    name: bytes
    kind: bytes
    shape: tuple[int, ...] | None
    elements: int
    data: bytes
    owner: int = 0

    @property
    def key(self) -> tuple[int, bytes]:
        """The key of its slot in notes."""
        return self.owner, self.name


Attributes = dict[bytes, Attribute]


def read_attributes(file: FileBytes, messages: Sequence[Message], owner: int) -> Attributes:
    """Return the attributes of the object at an address, by name, in creation order."""
    attribute_messages = [m for m in messages if m.kind == ATTRIBUTE]
    for message in messages:
        if message.kind == ATTRIBUTE_INFO:
            attribute_messages += read_dense_messages(file, ATTRIBUTE, message.data)
    attributes: Attributes = {}
    # without creation order, all numbers are 0, and the stable sort changes nothing
    attribute_messages.sort(key=attrgetter("order"))
    for message in attribute_messages:
        try:
            attribute = _parse_attribute(file, read_message_data(file, message), owner)
        except MESSAGE_ERRORS as error:
            raise_with_file(file, error)
        if attribute.name in attributes:
            file.raise_damaged(f"an object has two attributes {attribute.name!r}")
        attributes[attribute.name] = attribute
    return attributes


class _AttributeHeader(NamedTuple):
    """The header of an attribute; ``shape`` is the shape of its dataspace."""

    name: bytes
    kind: bytes
    space: bytes
    flags: int
    shape: tuple[int, ...] | None


def _parse_attribute(file: FileBytes, data: bytes, owner: int) -> Attribute:
    begin = _compute_header_size(data)
    name, kind, space, flags, shape = _parse_header(data[:begin], file.length_size)
    if flags & TYPE_SHARED:
        kind = bytes(read_shared_data(file, DATATYPE, kind))
    if flags & SPACE_SHARED:
        shared = bytes(read_shared_data(file, DATASPACE, space))
        shape = parse_dataspace(shared, file.length_size).shape
    elements = 0 if shape is None else prod(shape)
    if file.notes is None:
        return Attribute(name, kind, shape, elements, data[begin:], owner)
    attribute = Attribute(name, kind, shape, elements, slice_bytes(data, begin), owner)
    _note_attribute_value(attribute)
    return attribute


def _compute_header_size(data: bytes) -> int:
    """Return the offset of the elements of an attribute."""
    if len(data) < ATTRIBUTE_HEADER.size:
        raise MessageError("an attribute is cut short")
    version, _, name, kind, space = ATTRIBUTE_HEADER.unpack_from(data)
    if version == 1:
        # each part is padded to 8 bytes
        begin = ATTRIBUTE_HEADER.size + (name + 7 & -8) + (kind + 7 & -8) + (space + 7 & -8)
    elif version in (2, 3):
        begin = ATTRIBUTE_HEADER.size + (version == 3) + name + kind + space
    else:
        raise UnknownFormError(f"an attribute of version {version}")
    if begin > len(data):
        raise MessageError("an attribute is longer than the message that it lies in")
    return int(begin)


@lru_cache(8192)
def _parse_header(data: bytes, length_size: int) -> _AttributeHeader:
    version, flags, *lengths = ATTRIBUTE_HEADER.unpack_from(data)
    # version 1 has no flags
    flags = flags if version > 1 else 0
    begin = ATTRIBUTE_HEADER.size + (version == 3)
    parts = []
    for length in lengths:
        parts.append(data[begin : begin + length])
        begin += length if version > 1 else length + 7 & -8
    name, kind, space = parts
    name, _, tail = name.partition(b"\0")
    if not name or tail or len(name) + 1 != lengths[0]:
        raise MessageError("the name of an attribute has no NUL at its end, or one before")
    shape = None if flags & SPACE_SHARED else parse_dataspace(space, length_size).shape
    return _AttributeHeader(name, kind, space, flags, shape)


def _note_attribute_value(attribute: Attribute) -> None:
    """Record the slot of an attribute value that may differ between files of the same structure."""
    name, data = attribute.name, attribute.data
    size = attribute.elements * parse_uint(attribute.kind, 4, 4)
    if name in IGNORED_ATTRIBUTES:
        mark_unused(data, 0, len(data))
    elif name == b"NAME":
        mark_unused(data, len(DIMENSION_ONLY), len(data))
    elif (
        name not in DIMENSION_ATTRIBUTES
        and attribute.kind[0] & 0x0F in INLINE_CLASSES
        and size <= len(data)
    ):
        note_slot(data, 0, size, attribute.key)
        mark_unused(data, size, len(data))


@lru_cache(1024)
def find_string_size(kind: bytes, paddings: tuple[int, ...]) -> int:
    """Return the size of a fixed-length string with one of the paddings, or 0 for other types."""
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
"""Type of records of links sorted by the hash of a name (III.A.2)."""
HASH_BYTES, HEAP_ID_BYTES = 4, 7
"""Size in bytes of the hash and of the heap ID in such a record."""
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
        The address of the object of a hard link.
    target : bytes
        The path of a soft link; flags, file name and path of an external link.
    order : int
        Its position in creation order.
    """

    name: bytes
    kind: int
    address: int = 0
    target: bytes = b""
    order: int = 0


def read_links(file: FileBytes, messages: Sequence[Message]) -> list[Link]:
    """Return the links of a group in creation order if it is tracked, otherwise by name."""
    links: list[Link] = []
    tracked = False
    for message in messages:
        if message.kind == LINK:
            links.append(_parse_link(file, message.data))
        elif message.kind == SYMBOL_TABLE:
            tree, heap = (file.unpack_address(message.data, at) for at in (0, file.offset_size))
            for name, address, target in read_symbols(file, tree, heap):
                kind = HARD if target is None else SOFT
                links.append(Link(name, kind, address, target or b""))
        elif message.kind == LINK_INFO:
            if len(message.data) < 2 or message.data[0]:
                file.raise_unsupported("a Link Info message of a version other than 0")
            tracked = bool(message.data[1] & 1)
            links += _read_dense_links(file, message.data)
    if len({link.name for link in links}) < len(links):
        file.raise_damaged("a group has two links of the same name")
    return sorted(links, key=(lambda link: link.order) if tracked else (lambda link: link.name))


def _read_dense_links(file: FileBytes, data: bytes) -> Iterator[Link]:
    """Yield the links that are stored in a fractal heap instead of the object header."""
    # the maximum creation index precedes the addresses
    begin = 2 + 8 * (data[1] & 1)
    mark_unused(data, 2, begin)
    dense = _find_dense_storage(file, data, begin)
    if dense is None:
        return
    heap, index = dense
    for record in read_records(file, index, LINKS_BY_NAME, HASH_BYTES + HEAP_ID_BYTES):
        yield _parse_link(file, heap.read_object(record[HASH_BYTES:]))


def _parse_link(file: FileBytes, data: bytes) -> Link:
    if len(data) < 4 or data[0] != 1:
        file.raise_unsupported("a link of a version other than 1")
    flags, offset = data[1], 2
    kind = data[offset] if flags & HAS_TYPE else HARD
    offset += bool(flags & HAS_TYPE)
    order = int.from_bytes(data[offset : offset + 8], "little") if flags & HAS_ORDER else 0
    offset += 8 * bool(flags & HAS_ORDER) + bool(flags & HAS_CHARSET)
    width = 1 << (flags & 3)
    length = int.from_bytes(data[offset : offset + width], "little")
    offset += width
    name = bytes(data[offset : offset + length])
    offset += length
    if not name or len(name) < length or b"\0" in name:
        file.raise_damaged("the name of a link is empty, cut short, or contains a NUL")
    if kind == HARD:
        if offset + file.offset_size > len(data):
            file.raise_damaged("a link is cut short")
        return Link(name, kind, file.unpack_address(data, offset), order=order)
    if kind not in (SOFT, EXTERNAL):
        file.raise_unsupported(f"a link of type {kind}")
    size = parse_uint(data, offset, 2)
    target = bytes(slice_bytes(data, offset + 2, offset + 2 + size))
    if not target or len(target) < size:
        file.raise_damaged("the target of a link is cut short")
    return Link(name, kind, target=target, order=order)
