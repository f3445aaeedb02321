"""Types of elements, and the global heap with variable-length elements.

HDF5 File Format Specification 3.0, IV.A.2.d, "Datatype Message", and III.E, "Global Heap".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import repeat
from math import prod
from operator import add, gt
from struct import Struct
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from virtualds.parsers.hdf5.structure.file_bytes import (
    INTEGER_CODES,
    FileBytes,
    mark_structure,
    mark_unused,
    note_address,
    note_heap_objects,
    note_heap_reference,
    note_same,
    slice_bytes,
)
from virtualds.parsers.hdf5.structure.messages import (
    MESSAGE_ERRORS,
    MessageError,
    TypeClass,
    UnknownFormError,
    check_end,
    raise_with_file,
    read_bytes,
    read_uint,
    read_uints,
)
from virtualds.parsers.hdf5.structure.object_header import MAX_BYTES, Attribute

# ---------------------------------------------------------------------- types
# Datatype messages: the types of HDF5 as stored in the file.
#
# HDF5 File Format Specification 3.0, IV.A.2.d, versions 1 to 5.


SUPPORTED_VERSIONS = range(1, 6)
"""Supported versions of the message.

Version 3 has no padding, version 4 has other references, and version 5 has complex numbers.
"""
TYPE_HEADER_BYTES = 8
"""Size in bytes of the header of a type: version and class, class bits, size of an element."""
REGION_KIND = 1
"""Value of `HDF5Type.subtype` for references to regions."""
VLEN_KINDS = SEQUENCE_KIND, STRING_KIND = 0, 1
"""Values of `HDF5Type.subtype` for variable-length types: sequences and strings (IV.A.2.d)."""
RECTANGULAR = 1
"""Bits of complex numbers: both parts of one type, in rectangular form."""
MAX_DEPTH = 64
"""Maximum depth of nested types."""
MAX_AXES = 32
"""Maximum number of axes of an array."""
PROPERTY_LENGTHS = {
    TypeClass.INTEGER: 4,
    TypeClass.FLOAT: 12,
    TypeClass.TIME: 2,
    TypeClass.STRING: 0,
    TypeClass.BITFIELD: 4,
    TypeClass.REFERENCE: 0,
}
"""Number of bytes after the header, for types that contain no other types."""
NUMBER_CLASSES = frozenset({TypeClass.INTEGER, TypeClass.FLOAT, TypeClass.BITFIELD})
"""Classes of types with a bit offset and a precision."""


class HDF5Type(NamedTuple):
    """A type, and the types that it contains.

    Parameters
    ----------
    kind : TypeClass
        Its class.
    size : int
        The size in bytes of an element.
    length : int
        The size in bytes of its message.
    bits : int
        The bit field of the class.
    properties : bytes
        The bytes after the header: bit offset, precision and so on of a number, the tag of an
        opaque type, the values of an enum.
    parts : tuple of (int, HDF5Type)
        The types that it contains, each with its offset in an element.
    names : tuple of bytes
        Names of the members of a compound or an enum.
    dims : tuple of int
        Lengths of the axes of an array.
    """

    kind: TypeClass
    size: int
    length: int
    bits: int = 0
    properties: bytes = b""
    parts: tuple[tuple[int, HDF5Type], ...] = ()
    names: tuple[bytes, ...] = ()
    dims: tuple[int, ...] = ()

    @property
    def subtype(self) -> int:
        """The lowest four class bits: string padding, or the kind of reference or sequence."""
        return self.bits & 0x0F

    @property
    def base(self) -> HDF5Type:
        """The type inside an enum, an array, a complex number, or a variable-length type."""
        return self.parts[0][1]

    @property
    def is_text(self) -> bool:
        """Whether elements are variable-length strings."""
        return self.kind == TypeClass.VLEN and self.subtype == STRING_KIND

    @property
    def charset(self) -> int:
        """The character set of a string: 0 for ASCII, 1 for UTF-8."""
        return self.bits >> (8 if self.kind == TypeClass.VLEN else 4) & 0x0F

    @property
    def is_big_endian(self) -> bool:
        """Whether a number is stored with the most significant byte first."""
        return bool(self.bits & 1)

    @property
    def offset(self) -> int:
        """The position of the lowest significant bit of a number."""
        return read_uint(self.properties, 0, 2)

    @property
    def precision(self) -> int:
        """The number of significant bits of a number."""
        return read_uint(self.properties, 2, 2)

    @property
    def exponent(self) -> int:
        """The number of bits of the exponent of a float."""
        return self.properties[5]

    @property
    def fraction(self) -> int:
        """The number of bits of the fraction of a float."""
        return self.properties[7]

    @property
    def bias(self) -> int:
        """The number that is added to the exponent of a float."""
        return read_uint(self.properties, 8, 4)

    @property
    def has_variable_length(self) -> bool:
        """Whether elements are or contain variable-length strings or sequences.

        These are stored in the global heap, like old region references, which are not included.
        """
        return self.kind == TypeClass.VLEN or any(
            part.has_variable_length for _, part in self.parts
        )


def is_region(kind: bytes) -> bool:
    """Return whether elements of a type are references to regions of datasets."""
    return (
        len(kind) >= TYPE_HEADER_BYTES
        and kind[0] & 0x0F == TypeClass.REFERENCE
        and kind[1] & 0x0F == REGION_KIND
    )


def parse_type(file: FileBytes, data: bytes) -> HDF5Type:
    """Parse the type in a message of a file."""
    try:
        return parse_type_message(bytes(data))
    except MESSAGE_ERRORS as error:
        raise_with_file(file, error)


@lru_cache(4096)
def parse_type_message(data: bytes) -> HDF5Type:
    """Parse the type in a message."""
    parsed = _parse(data, 0, 0)
    # old writers reserved more bytes for members of compounds than they used, which HDF5 ignores
    padding = data[parsed.length :]
    if not padding or any(padding):
        check_end(data, parsed.length)
    return parsed


def _parse(data: bytes, offset: int, depth: int) -> HDF5Type:
    """Return the type at an offset in a message."""
    if depth > MAX_DEPTH:
        raise MessageError("types are nested too deeply")
    head = read_bytes(data, offset, TYPE_HEADER_BYTES)
    version, class_number = head[0] >> 4, head[0] & 0x0F
    bits, size = read_uint(head, 1, 3), read_uint(head, 4, 4)
    if version not in SUPPORTED_VERSIONS:
        raise UnknownFormError(f"a type of version {version}")
    if class_number not in PARSERS:
        raise UnknownFormError(f"a type of class {class_number}")
    if not size:
        raise MessageError("a type has elements without bytes")
    kind = TypeClass(class_number)
    parsed = PARSERS[kind](data, offset, HDF5Type(kind, size, TYPE_HEADER_BYTES, bits), depth + 1)
    if kind != TypeClass.VLEN and any(start + part.size > size for start, part in parsed.parts):
        raise MessageError(f"a type of {size} bytes contains types that reach past it")
    return parsed


def _parse_simple(data: bytes, offset: int, head: HDF5Type, depth: int) -> HDF5Type:
    """Parse a type that contains no other types."""
    length = PROPERTY_LENGTHS[head.kind]
    properties = read_bytes(data, offset + TYPE_HEADER_BYTES, length)
    parsed = head._replace(length=TYPE_HEADER_BYTES + length, properties=properties)
    if head.kind in NUMBER_CLASSES:
        last = parsed.offset + parsed.precision
        if not parsed.precision or last > 8 * head.size:
            raise MessageError(f"a number of {8 * head.size} bits ends at bit {last}")
    if head.kind == TypeClass.FLOAT and not (parsed.exponent and parsed.fraction):
        raise MessageError("a float has no exponent, or no fraction")
    return parsed


def _parse_opaque(data: bytes, offset: int, head: HDF5Type, depth: int) -> HDF5Type:
    """Parse an opaque type, whose tag is padded to 8 bytes."""
    length = head.bits & 0xFF
    if length % 8:
        raise MessageError(f"an opaque type has a tag of {length} bytes")
    tag = read_bytes(data, offset + TYPE_HEADER_BYTES, length).partition(b"\0")[0]
    return head._replace(length=TYPE_HEADER_BYTES + length, properties=tag)


def _parse_sequence(data: bytes, offset: int, head: HDF5Type, depth: int) -> HDF5Type:
    """Parse a variable-length type."""
    if head.subtype not in VLEN_KINDS:
        raise MessageError(f"a variable-length type has subtype {head.subtype}")
    return _add_base_type(head, _parse(data, offset + TYPE_HEADER_BYTES, depth), TYPE_HEADER_BYTES)


def _parse_complex(data: bytes, offset: int, head: HDF5Type, depth: int) -> HDF5Type:
    base = _parse(data, offset + TYPE_HEADER_BYTES, depth)
    if head.bits != RECTANGULAR or base.kind != TypeClass.FLOAT or head.size != 2 * base.size:
        raise UnknownFormError(f"complex numbers of form {head.bits} and {head.size} bytes")
    return _add_base_type(head, base, TYPE_HEADER_BYTES)


def _add_base_type(head: HDF5Type, base: HDF5Type, start: int) -> HDF5Type:
    """Return a type with its base type, which is ``start`` bytes after the start of the type."""
    return head._replace(length=start + base.length, parts=((0, base),))


def _parse_enum(data: bytes, offset: int, head: HDF5Type, depth: int) -> HDF5Type:
    """Parse an enum: integer type, names and values."""
    base = _parse(data, offset + TYPE_HEADER_BYTES, depth)
    if base.kind != TypeClass.INTEGER:
        raise UnknownFormError(f"an enum of type {base.kind.name.lower()}")
    if base.size != head.size:
        raise MessageError(f"an enum of {head.size} bytes is made of integers of {base.size}")
    at, names = offset + TYPE_HEADER_BYTES + base.length, []
    for _ in range(head.bits & 0xFFFF):
        name, at = _read_name(data, offset, at)
        names.append(name)
    values = read_bytes(data, at, len(names) * base.size)
    parsed = _add_base_type(head, base, at + len(values) - offset - base.length)
    return parsed._replace(names=tuple(names), properties=values)


def _read_name(data: bytes, offset: int, at: int) -> tuple[bytes, int]:
    """Return a name, and the offset of its end.

    Before version 3 of the message, names are padded to 8 bytes.
    """
    end = data.find(b"\0", at)
    if end < 0:
        raise MessageError("a name in a type has no end")
    length = end + 1 - at
    stop = at + (length if data[offset] >> 4 >= 3 else -(-length // 8) * 8)
    return data[at:end], stop


def _parse_array(data: bytes, offset: int, head: HDF5Type, depth: int) -> HDF5Type:
    old, rank = data[offset] >> 4 < 3, read_uint(data, offset + TYPE_HEADER_BYTES, 1)
    # before version 3 of the message, reserved bytes precede the lengths of the axes, and the order
    # of the axes follows them
    start = TYPE_HEADER_BYTES + (4 if old else 1)
    dims = read_uints(data, offset + start, 4, rank)
    start += 4 * rank * (2 if old else 1)
    parsed = _add_base_type(head, _parse(data, offset + start, depth), start)
    return _check_array(parsed._replace(dims=dims))


def _check_array(kind: HDF5Type) -> HDF5Type:
    """Return an array type after checking that its axes match its size."""
    size = kind.base.size * prod(kind.dims)
    if not 0 < len(kind.dims) <= MAX_AXES or not 0 < size == kind.size:
        raise MessageError(
            f"a type is an array of {kind.dims} elements of {kind.base.size} bytes in {kind.size}"
        )
    return kind


def _parse_compound(data: bytes, offset: int, head: HDF5Type, depth: int) -> HDF5Type:
    width = 4 if data[offset] >> 4 < 3 else -(-head.size.bit_length() // 8)
    at, names, parts = offset + TYPE_HEADER_BYTES, [], []
    for _ in range(head.bits & 0xFFFF):
        name, at = _read_name(data, offset, at)
        start, axes = read_uint(data, at, width), at + width
        at = axes + (28 if data[offset] >> 4 == 1 else 0)
        part = _parse(data, at, depth)
        at += part.length
        if data[offset] >> 4 == 1:
            part = _make_member_array(data, axes, part)
        names.append(name)
        parts.append((start, part))
    if not 0 < len(names) == len(set(names)):
        raise MessageError("a compound type has no members, or two of the same name")
    stop = 0
    for start, part in sorted(parts, key=lambda span: span[0]):
        if start < stop:
            raise MessageError("members of a compound type share bytes")
        stop = start + part.size
    return head._replace(length=at - offset, names=tuple(names), parts=tuple(parts))


def _make_member_array(data: bytes, offset: int, part: HDF5Type) -> HDF5Type:
    """Return the type of a member of version 1, which may be an array of up to four axes."""
    rank = read_uint(data, offset, 1)
    if rank > 4:
        raise MessageError(f"a member of a type has {rank} axes")
    if not rank:
        return part
    dims = read_uints(data, offset + 12, 4, rank)
    size = part.size * prod(dims)
    array = HDF5Type(TypeClass.ARRAY, size, part.length, parts=((0, part),), dims=dims)
    return _check_array(array)


Parse = Callable[[bytes, int, HDF5Type, int], HDF5Type]
PARSERS: dict[int, Parse] = {
    **dict.fromkeys(PROPERTY_LENGTHS, _parse_simple),
    TypeClass.OPAQUE: _parse_opaque,
    TypeClass.COMPOUND: _parse_compound,
    TypeClass.ENUM: _parse_enum,
    TypeClass.VLEN: _parse_sequence,
    TypeClass.ARRAY: _parse_array,
    TypeClass.COMPLEX: _parse_complex,
}
"""Parsers of types by class: functions of a message, the offset of the type in it, the header of
the type, and its depth of nesting."""


# ---------------------------------------------------------------------- the global heap
# The global heap of HDF5, which contains variable-length strings and sequences.
#
# HDF5 File Format Specification 3.0, III.E, "Global Heap". On a damaged heap, HDF5 can crash, or
# never return. So the heap is checked before HDF5 reads it.


REFERENCE_STRUCTS = {size: Struct(f"<I{form}I") for size, form in INTEGER_CODES.items()}
"""Structs of references by the size of an address."""
REFERENCE_DTYPES = {
    size: np.dtype([("length", "<u4"), ("address", f"<u{size}"), ("number", "<u4")])
    for size in INTEGER_CODES
}
"""Dtypes of references by the size of an address: number of elements, address of the collection,
and number in the collection (IV.B)."""
REFERENCE_SIZES = Struct("<4xI4xI")
"""Size in bytes of a reference, and of an element of the sequence, in a type of sequences
(IV.A.2.d)."""
MIN_COLLECTION = 2**12
"""Minimum size in bytes of a collection of HDF5."""
COLLECTION_HEADER_BYTES = 16
"""Number of bytes before the first object of a collection: signature, version and size."""
OBJECT_STRUCTS = {size: Struct(f"<H6x{form}{8 - size}x") for size, form in INTEGER_CODES.items()}
"""Structs of the number and length before an object, padded to 8 bytes, by the size of a length.

The specification (III.E) does not show the padding; it is `H5HG_SIZEOF_OBJHDR` of HDF5.
"""

Elements = npt.NDArray[np.uint8]


class Collection(NamedTuple):
    """A collection of the heap, with the offsets and lengths of its objects by number."""

    address: int
    data: bytes
    begins: dict[int, int]
    lengths: dict[int, int]


class ByteBudget:
    """Limits the bytes of all sequences to little more than the size of the file.

    In a valid file, elements do not share objects, but a damaged file could refer to a large object
    millions of times.
    """

    def __init__(self, file: FileBytes) -> None:
        self.file = file
        self.remaining = file.end + MAX_BYTES

    def locate(self, collection: Collection, number: int, nbytes: int) -> int:
        """Return the offset of an object in a collection, after checking its length."""
        length = collection.lengths.get(number, -1)
        if length < nbytes:
            place = f"the global heap at {collection.address}"
            if length < 0:
                self.file.raise_damaged(f"{place} has no object {number}")
            self.file.raise_damaged(f"{place} has {length} bytes of an object of {nbytes}")
        self._spend(nbytes)
        return collection.begins[number]

    def locate_all(
        self, collection: Collection, numbers: list[int], nbytes: list[int]
    ) -> list[int]:
        """Return the offsets of objects, like `locate`."""
        # no Python loop, since there may be many strings
        lengths = map(collection.lengths.get, numbers, repeat(-1))
        if any(map(gt, nbytes, lengths)):
            return [
                self.locate(collection, *element) for element in zip(numbers, nbytes, strict=True)
            ]
        self._spend(sum(nbytes))
        return list(map(collection.begins.__getitem__, numbers))

    def _spend(self, nbytes: int) -> None:
        self.remaining -= nbytes
        if self.remaining < 0:
            self.file.raise_damaged("its sequences have more bytes than the file")


def is_sequence(kind: bytes) -> bool:
    """Return whether elements of a type are variable-length strings or sequences (IV.A.2.d)."""
    return len(kind) >= 16 and kind[0] & 0x0F == TypeClass.VLEN and kind[1] & 0x0F in VLEN_KINDS


def read_sequences(file: FileBytes, attribute: Attribute, *, is_value: bool = False) -> list[bytes]:
    """Return the bytes of each element of an attribute of sequences.

    With ``is_value``, they may differ between files of the same structure.
    """
    kind, data, count = attribute.kind, attribute.data, attribute.elements
    budget = ByteBudget(file)
    form = REFERENCE_STRUCTS[file.offset_size]
    reference_size, size = REFERENCE_SIZES.unpack_from(kind)
    if reference_size != form.size or count * form.size > len(data):
        file.raise_damaged(f"an attribute has {len(data)} bytes for {count} sequences")
    rows = list(form.iter_unpack(data[: count * form.size]))
    file.prepare((address, MIN_COLLECTION) for _, address, _ in rows if address)
    sequences: list[bytes] = []
    for index, (length, address, number) in enumerate(rows):
        if not address and not length:
            sequences.append(b"")
            continue
        at = index * form.size + 4
        if address not in file.collections:
            noted = note_address(data, at, file.offset_size, address)
            file.collections[address] = read_collection(file, noted)
        elif file.notes is not None:
            note_same(data, at, file.offset_size, address)
        collection = file.collections[address]
        begin = budget.locate(collection, number, length * size)
        if file.notes is None:
            sequences.append(collection.data[begin : begin + length * size])
            continue
        value = slice_bytes(collection.data, begin, begin + length * size)
        if is_value:
            note_heap_reference(data, at - 4, value, number, size, attribute.key)
        else:
            mark_structure(value, 0, len(value))
        sequences.append(value)
    return sequences


def check_elements(file: FileBytes, kind: HDF5Type, elements: Elements) -> None:
    """Raise an error for elements that refer to objects missing from the heap.

    Parameters
    ----------
    file : FileBytes
    kind : HDF5Type
    elements : array of bytes
        As stored, one per row.
    """
    _check_part(ByteBudget(file), kind, elements)


def _check_part(budget: ByteBudget, kind: HDF5Type, elements: Elements) -> None:
    if kind.kind == TypeClass.VLEN:
        _check_references(budget, kind, elements)
        return
    for offset, part in kind.parts:
        if part.has_variable_length:
            width = kind.size if kind.kind == TypeClass.ARRAY else part.size
            within = elements[:, offset : offset + width]
            _check_part(budget, part, within.reshape(-1, part.size))


def _check_references(budget: ByteBudget, kind: HDF5Type, elements: Elements) -> None:
    base = kind.base
    for part in _iterate_collections(budget, kind, elements):
        if base.has_variable_length:
            for begin, length in zip(part.begins, part.nbytes, strict=True):
                within = np.frombuffer(part.data, np.uint8, length, begin)
                _check_part(budget, base, within.reshape(-1, base.size))


def read_strings(
    budget: ByteBudget, kind: HDF5Type, elements: Elements, encoding: str
) -> npt.NDArray[np.object_]:
    """Return variable-length strings, truncated at their first NUL.

    Invalid bytes are replaced by U+FFFD. Errors are those of `check_elements`.
    """
    texts = np.full(len(elements), "", object)
    for part in _iterate_collections(budget, kind, elements):
        ends = map(add, part.begins, part.nbytes)
        raw = [part.data[i:j] for i, j in zip(part.begins, ends, strict=True)]
        texts[part.rows] = [text.partition(b"\0")[0].decode(encoding, "replace") for text in raw]
    return texts


class _CollectionElements(NamedTuple):
    """Elements in one collection: ``rows`` are their indexes, ``begins`` their offsets."""

    rows: npt.NDArray[np.intp]
    data: bytes
    begins: list[int]
    nbytes: list[int]


def _iterate_collections(
    budget: ByteBudget, kind: HDF5Type, elements: Elements
) -> Iterator[_CollectionElements]:
    """Yield the elements in each collection; empty elements are in none."""
    file = budget.file
    form = REFERENCE_DTYPES[file.offset_size]
    if kind.subtype not in VLEN_KINDS or kind.size != form.itemsize:
        file.raise_damaged(
            f"a variable-length type has subtype {kind.subtype} and {kind.size} bytes"
        )
    references = np.ascontiguousarray(elements).view(form)[:, 0]
    address, length = references["address"], references["length"]
    nonempty = np.flatnonzero((length != 0) | (address != 0))
    nonempty = nonempty[np.argsort(address[nonempty], kind="stable")]
    edges = np.flatnonzero(np.diff(address[nonempty])) + 1
    for indexes in np.split(nonempty, edges) if nonempty.size else ():
        collection = read_collection(file, int(address[indexes[0]]))
        nbytes = (length[indexes].astype(np.int64) * kind.base.size).tolist()
        begins = budget.locate_all(collection, references["number"][indexes].tolist(), nbytes)
        yield _CollectionElements(indexes, collection.data, begins, nbytes)


def read_collection(file: FileBytes, address: int) -> Collection:
    """Return the collection at an address."""
    begin = COLLECTION_HEADER_BYTES
    head = file.peek(address, begin)
    if head[:4] != b"GCOL" or head[4] != 1:
        file.raise_damaged(f"there is no global heap at {address}")
    size = file.unpack_length(head, 8)
    data = file.read_noted(address, size)
    mark_unused(data, begin, size)
    begins: dict[int, int] = {}
    lengths: dict[int, int] = {}
    form = OBJECT_STRUCTS[file.length_size]
    prefix, unpack, count, stop = form.size, form.unpack_from, 0, begin
    # a shorter remainder is too small to be free space
    last = size - prefix
    while begin <= last:
        number, length = unpack(data, begin)
        if number:
            count += 1
            begins[number] = begin + prefix
            lengths[number] = length
            stop = begin + prefix + length
            begin += prefix + (length + 7 & -8)
        else:
            # the length of free space includes its header; with a smaller one, HDF5 would loop
            # forever
            stop = begin = begin + length if length >= prefix else size + 1
    if stop > size or count > len(begins):
        file.raise_damaged(f"the global heap at {address} contradicts itself")
    note_heap_objects(data, begins, lengths)
    return Collection(address, data, begins, lengths)
