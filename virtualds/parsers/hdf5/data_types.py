"""Conversion of HDF5 datatypes to dtypes, and of the values of attributes.

HDF5 converts values while it reads: integers of unusual precision, floats of unusual layout, padded
strings. If numpy cannot read the stored bytes, h5py reads the values.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from math import prod
from typing import Any, Literal, NamedTuple

import numpy as np

from virtualds.errors import FormatError, UnsupportedError
from virtualds.parsers.hdf5.structure.element_types import (
    HDF5Type,
    check_elements,
    is_region,
    parse_type,
    parse_type_message,
    read_sequences,
)
from virtualds.parsers.hdf5.structure.file_bytes import FileBytes, mark_incomplete
from virtualds.parsers.hdf5.structure.messages import MESSAGE_ERRORS, TypeClass
from virtualds.parsers.hdf5.structure.object_header import (
    INLINE_CLASSES,
    Attribute,
    find_string_size,
)

# ---------------------------------------------------------------------- NumPy dtypes
# The NumPy dtypes that h5py uses for HDF5 types.
#
# HDF5 converts values to these dtypes while it reads, so a dtype may be wider than the stored type.


POINTER_BYTES = np.dtype("P").itemsize
"""Size in bytes of a variable-length string in memory; other sequences also have a length."""
CHARSETS = {0: "ascii", 1: "utf-8"}
"""Character sets of strings (IV.A.2.d)."""
NUMPY_TAG = b"NUMPY:"
"""Prefix of the tag of an opaque type that h5py created from a dtype."""
COMPLEX_NAMES = (b"r", b"i")
"""Members of a compound that h5py interprets as a complex number."""
BOOLEANS = {b"FALSE": 0, b"TRUE": 1}
"""Members of an enum that h5py interprets as a boolean."""
VAX = 0b1000000
"""Bit of a float in the byte order of the VAX."""
IMPLIED = 0b10
"""Normalization of floats whose first bit is not stored."""


class FloatRange(NamedTuple):
    """A floating-point dtype, and its range."""

    dtype: np.dtype[Any]
    fraction: int
    highest: int
    lowest: int


@cache
def get_float_types() -> tuple[FloatRange, ...]:
    """Return the floating-point dtypes, the narrowest first."""
    types = []
    for code in "efdg":
        info = np.finfo(code)
        # the 80 bits of an x87 store the first bit of the fraction
        fraction = info.nmant + _stores_first_bit(info)
        dtype = np.dtype(code)
        types.append(FloatRange(dtype, fraction, int(info.maxexp), int(info.minexp)))
    return tuple(types)


def _stores_first_bit(info: Any) -> bool:
    return bool(info.nmant == 63 and info.iexp == 15)


@cache
def describe_floats() -> dict[tuple[int, int, bytes], np.dtype[Any]]:
    """Return the floating-point dtypes by size, bits and properties of the equivalent HDF5 type."""
    types: dict[tuple[int, int, bytes], np.dtype[Any]] = {}
    for number in get_float_types():
        info = np.finfo(number.dtype)
        size, exponent, fraction = number.dtype.itemsize, int(info.iexp), number.fraction
        bias = 2 ** (exponent - 1) - 1
        if int(info.maxexp) != bias + 1:
            # the double doubles of PowerPC
            continue
        width = 1 + exponent + fraction
        form = 0 if _stores_first_bit(info) else IMPLIED
        raw = struct.pack("<HHBBBBI", 0, width, fraction, exponent, 0, fraction, bias)
        for big in (0, 1):
            bits = big | form << 4 | (width - 1) << 8
            types.setdefault((size, bits, raw), number.dtype.newbyteorder(">" if big else "<"))
    return types


def find_dtype(kind: HDF5Type) -> np.dtype[Any]:
    """Return the dtype in which h5py reads values of a type, with the metadata of h5py.

    Raises `TypeError` or `ValueError` if h5py has no dtype for it.
    """
    return DTYPE_FINDERS[kind.kind](kind)


def compute_memory_size(kind: HDF5Type) -> int:
    """Return the size in bytes of an element in memory after HDF5 has read it."""
    if not kind.has_variable_length:
        return kind.size
    if kind.kind == TypeClass.VLEN:
        return POINTER_BYTES if kind.is_text else 2 * POINTER_BYTES
    if kind.kind == TypeClass.ARRAY:
        return prod(kind.dims) * compute_memory_size(kind.base)
    return kind.size + sum(compute_memory_size(part) - part.size for _, part in kind.parts)


def list_members(kind: HDF5Type) -> list[tuple[bytes, int, HDF5Type]]:
    """Return the members of a compound type with their offsets in memory.

    If members refer to the heap, HDF5 sorts all members by offset, and moves those that follow.
    """
    offsets = [(name, *part) for name, part in zip(kind.names, kind.parts, strict=True)]
    if not kind.has_variable_length:
        return offsets
    offsets.sort(key=lambda member: member[1])
    shift, members = 0, []
    for name, start, part in offsets:
        members.append((name, start + shift, part))
        shift += compute_memory_size(part) - part.size
    return members


def read_enum_members(kind: HDF5Type) -> dict[bytes, int]:
    """Return the members of an enum by name."""
    base, raw = kind.base, kind.properties
    order = "big" if base.is_big_endian else "little"
    members = {}
    for number, name in enumerate(kind.names):
        stored = raw[number * base.size : (number + 1) * base.size]
        bits = int.from_bytes(stored, order) >> base.offset  # type: ignore[arg-type]
        value = bits & (1 << base.precision) - 1
        negative = is_signed(base) and value >> base.precision - 1
        members[name] = value - (1 << base.precision) if negative else value
    return members


def is_signed(kind: HDF5Type) -> bool:
    """Return whether an integer type is signed."""
    return bool(kind.bits & 0b1000)


def _find_integer(kind: HDF5Type) -> np.dtype[Any]:
    code = "i" if kind.kind == TypeClass.INTEGER and is_signed(kind) else "u"
    return np.dtype(f"{_get_byte_order(kind)}{code}{kind.size}")


def _get_byte_order(kind: HDF5Type) -> Literal["<", ">"]:
    return ">" if kind.is_big_endian else "<"


def _find_float(kind: HDF5Type) -> np.dtype[Any]:
    """Return the narrowest float that can represent all values of a type."""
    if kind.bits & VAX:
        raise TypeError("numpy has no floats in the byte order of the VAX")
    highest, lowest = 2**kind.exponent - kind.bias - 1, 1 - kind.bias
    for number in get_float_types():
        if (
            number.dtype.itemsize >= kind.size
            and number.fraction >= kind.fraction
            and number.highest >= highest
            and number.lowest <= lowest
        ):
            return number.dtype.newbyteorder(_get_byte_order(kind))
    raise ValueError(
        f"numpy has no float of {kind.fraction} bits, with exponents from {lowest} to {highest}"
    )


def _find_string(kind: HDF5Type) -> np.dtype[Any]:
    return np.dtype(f"S{kind.size}", metadata={"h5py_encoding": _get_charset(kind)})


def _get_charset(kind: HDF5Type) -> str:
    if kind.charset not in CHARSETS:
        raise TypeError(f"its character set {kind.charset} is unknown")
    return CHARSETS[kind.charset]


def _find_opaque(kind: HDF5Type) -> np.dtype[Any]:
    """Return the dtype in the tag of an opaque type of h5py, or a void dtype without such a tag."""
    tag = kind.properties
    if not tag.startswith(NUMPY_TAG):
        return np.dtype(f"V{kind.size}")
    dtype = np.dtype(tag.removeprefix(NUMPY_TAG).decode("ascii"))
    if dtype.itemsize != kind.size or dtype.hasobject or dtype.names or dtype.subdtype:
        raise TypeError(f"it holds {dtype} in {kind.size} bytes")
    return np.dtype(dtype, metadata={"h5py_opaque": True})


def _find_compound(kind: HDF5Type) -> np.dtype[Any]:
    names, offsets, parts = zip(*list_members(kind), strict=True)
    dtypes = [find_dtype(part) for part in parts]
    first = dtypes[0]
    if names == COMPLEX_NAMES and first == dtypes[1] and first.kind == "f" and first.itemsize > 2:
        return np.dtype(f"c{2 * first.itemsize}").newbyteorder(first.byteorder)
    stop = 0
    for start, width in sorted(zip(offsets, (d.itemsize for d in dtypes), strict=True)):
        # h5py misreads members that are wider in numpy and overlap
        if start < stop:
            raise TypeError("a member needs more bytes in numpy, which are those of the next")
        stop = start + width
    return np.dtype(
        {
            "names": [name.decode() for name in names],
            "formats": dtypes,
            "offsets": list(offsets),
            "itemsize": compute_memory_size(kind),
        }
    )


def _find_complex(kind: HDF5Type) -> np.dtype[Any]:
    find_dtype(kind.base)
    sizes = {2 * number.dtype.itemsize for number in get_float_types() if number.dtype.itemsize > 2}
    if kind.size not in sizes:
        raise TypeError(f"numpy has no complex numbers of {kind.size} bytes")
    return np.dtype(f"{_get_byte_order(kind.base)}c{kind.size}")


def _find_enum(kind: HDF5Type) -> np.dtype[Any]:
    members = read_enum_members(kind)
    if members == BOOLEANS:
        return np.dtype(bool)
    return np.dtype(
        find_dtype(kind.base), metadata={"enum": {_decode(n): v for n, v in members.items()}}
    )


def _decode(name: bytes) -> str | bytes:
    try:
        return name.decode()
    except UnicodeDecodeError:
        return name


def _find_sequence(kind: HDF5Type) -> np.dtype[Any]:
    if kind.is_text:
        element_type: Any = str if _get_charset(kind) == "utf-8" else bytes
    else:
        element_type = find_dtype(kind.base)
    return np.dtype("O", metadata={"vlen": element_type})


def _raise_no_dtype(kind: HDF5Type) -> np.dtype[Any]:
    raise TypeError(f"numpy has no type {kind.kind.name.lower()}")


DTYPE_FINDERS: dict[TypeClass, Callable[[HDF5Type], np.dtype[Any]]] = {
    TypeClass.INTEGER: _find_integer,
    TypeClass.FLOAT: _find_float,
    TypeClass.TIME: _raise_no_dtype,
    TypeClass.STRING: _find_string,
    TypeClass.BITFIELD: _find_integer,
    TypeClass.OPAQUE: _find_opaque,
    TypeClass.COMPOUND: _find_compound,
    TypeClass.REFERENCE: _raise_no_dtype,
    TypeClass.ENUM: _find_enum,
    TypeClass.VLEN: _find_sequence,
    TypeClass.ARRAY: lambda kind: np.dtype((find_dtype(kind.base), kind.dims)),
    TypeClass.COMPLEX: _find_complex,
}
"""Functions that return the dtype of a type, by class."""


# ---------------------------------------------------------------------- types of HDF5


TEXT_DTYPE = np.dtype("O", metadata={"element_type": str})
"""Dtype with which xarray marks variable-length strings."""
OBJECT_REFERENCE = 0
"""Kind of references to objects, as written up to HDF5 1.10."""
NULL_TERMINATED, NULL_PADDED = 0, 1
"""Paddings of fixed-length strings."""
BYTE_ORDER_BIT = 0b1
"""Bit of the byte order of a number."""
ENCODING_PREFIX_BYTES = 2
"""Number of bytes before the message in the result of `H5Tencode`."""


class StoredType(NamedTuple):
    """The storage of the elements of a dataset.

    Parameters
    ----------
    dtype : numpy dtype
        The dtype of the values; objects if they are in a heap.
    declared : numpy dtype or type
        The dtype in the xarray encoding.
    in_chunks : bool
        Whether decoded chunks contain values of this dtype.
    shape : tuple of int
        The shape of an element, for array types.
    """

    dtype: np.dtype[Any]
    declared: Any
    in_chunks: bool
    shape: tuple[int, ...] = ()


@lru_cache(4096)
def parse_stored_type(message: bytes, name: str | None = None) -> StoredType:
    """Return the storage of elements from the Datatype message of a dataset.

    Raises `MessageError` if the message contradicts itself; `UnknownFormError` if the message has
    an unknown form; and `UnsupportedError` if neither numpy nor h5py supports the type.

    Parameters
    ----------
    message : bytes
    name : str, optional
        The name of the type, if it is committed.
    """
    return _find_stored_type(parse_type_message(message), name)


def encode_type(kind: Any) -> bytes:
    """Return the Datatype message of a type that h5py has opened."""
    encoded: bytes = kind.encode()
    return encoded[ENCODING_PREFIX_BYTES:]


def get_type_name(kind: Any) -> str | None:
    """Return the name of a committed type that h5py has opened, or None for other types."""
    import h5py

    name = h5py.h5i.get_name(kind) if kind.committed() else None
    return name.decode().rpartition("/")[2] if name else None


def _find_stored_type(kind: HDF5Type, name: str | None) -> StoredType:
    if kind.kind == TypeClass.ENUM:
        return _find_enum_type(kind, name or "enum")
    if kind.kind == TypeClass.ARRAY:
        base = _find_stored_type(kind.base, None)
        return base._replace(shape=(*kind.dims, *base.shape))
    if kind.kind == TypeClass.REFERENCE and kind.subtype == OBJECT_REFERENCE:
        return StoredType(TEXT_DTYPE, str, in_chunks=False)
    check_type(kind)
    dtype = _find_dtype(kind)
    if kind.is_text:
        return StoredType(TEXT_DTYPE, str, in_chunks=False)
    # only compound types need the metadata that h5py attaches to a dtype
    dtype = dtype if dtype.names else np.dtype(dtype.str)
    declared = dtype.newbyteorder("=") if dtype.names else dtype
    return StoredType(dtype, declared, in_chunks=_is_native(kind))


def _find_dtype(kind: HDF5Type) -> np.dtype[Any]:
    try:
        return find_dtype(kind)
    except (TypeError, ValueError, SyntaxError) as error:
        raise _make_unsupported_error(kind, str(error)) from error


def _find_enum_type(kind: HDF5Type, name: str) -> StoredType:
    """Return the storage of an enum as integers, with the names in the dtype metadata."""
    dtype = _find_dtype(kind.base)
    try:
        members = {raw.decode(): value for raw, value in read_enum_members(kind).items()}
    except UnicodeDecodeError as error:
        raise _make_unsupported_error(kind, str(error)) from error
    declared = np.dtype(dtype, metadata={"enum": members, "enum_name": name})
    return StoredType(dtype, declared, in_chunks=_is_native(kind.base))


def check_type(kind: HDF5Type) -> None:
    """Raise an error for a type whose values h5py cannot read correctly.

    Raises
    ------
    UnsupportedError
        References to regions or within other types, and variable-length arrays in non-native
        byte order, whose bytes h5py does not swap.
    """
    if reason := find_unsupported_reason(kind):
        raise _make_unsupported_error(kind, reason)


def find_unsupported_reason(kind: HDF5Type) -> str:
    """Return the reason why h5py cannot read values of a type correctly, or "" if it can."""
    if _contains_references(kind):
        return "references to regions, or within other types, have no values"
    if _contains_swapped_sequences(kind):
        return "h5py does not swap the byte order of variable-length arrays"
    return ""


def _contains_references(kind: HDF5Type) -> bool:
    return kind.kind == TypeClass.REFERENCE or any(
        _contains_references(part) for _, part in kind.parts
    )


def _contains_swapped_sequences(kind: HDF5Type) -> bool:
    if kind.kind == TypeClass.VLEN:
        return not kind.is_text and _is_swapped(kind.base)
    return any(_contains_swapped_sequences(part) for _, part in kind.parts)


def _is_swapped(kind: HDF5Type) -> bool:
    """Return whether numbers of a type are in non-native byte order."""
    if kind.kind in (TypeClass.INTEGER, TypeClass.FLOAT):
        return kind.size > 1 and kind.is_big_endian == (sys.byteorder == "little")
    return not kind.is_text and any(_is_swapped(part) for _, part in kind.parts)


def _make_unsupported_error(kind: HDF5Type, reason: str) -> UnsupportedError:
    name = "string" if kind.is_text else kind.kind.name.lower()
    return UnsupportedError(
        f"its type {name} cannot be read ({reason}); leave the variable out with "
        f"drop_variables, or pass on_error='skip'"
    )


def _is_native(kind: HDF5Type) -> bool:
    """Return whether numpy reads the bytes of a type in the same way as h5py."""
    rule = NATIVE_RULES.get(kind.kind)
    return rule is not None and rule(kind)


def _is_native_integer(kind: HDF5Type) -> bool:
    # unused bits are not part of the number
    return kind.precision == 8 * kind.size and not kind.offset


def _is_native_string(kind: HDF5Type) -> bool:
    # bytes after the end of a string and padding spaces are not part of the string
    one_byte = kind.size == 1 and kind.subtype == NULL_TERMINATED
    return one_byte or kind.subtype == NULL_PADDED


def _is_native_compound(kind: HDF5Type) -> bool:
    dtype = find_dtype(kind)
    if dtype.names is None:
        # h5py reads any pair of floats with these names as a complex number
        (_, first), (start, second) = kind.parts
        return kind.size == 2 * start == 2 * first.size and _is_native(first) and _is_native(second)
    return _has_native_parts(kind) and all(
        # h5py reads booleans as one byte, regardless of the integer type of the enum
        dtype[name.decode()].itemsize == part.size
        for name, _, part in list_members(kind)
    )


def _has_native_parts(kind: HDF5Type) -> bool:
    return all(_is_native(part) for _, part in kind.parts)


NATIVE_RULES: dict[TypeClass, Callable[[HDF5Type], bool]] = {
    TypeClass.INTEGER: _is_native_integer,
    TypeClass.BITFIELD: lambda kind: _is_native_integer(kind) and not kind.bits & ~BYTE_ORDER_BIT,
    TypeClass.FLOAT: lambda kind: (kind.size, kind.bits, kind.properties) in describe_floats(),
    TypeClass.STRING: _is_native_string,
    TypeClass.OPAQUE: lambda kind: True,
    TypeClass.ENUM: _has_native_parts,
    TypeClass.ARRAY: _has_native_parts,
    TypeClass.COMPOUND: _is_native_compound,
    TypeClass.COMPLEX: _has_native_parts,
}
"""Functions that return whether numpy can read the stored bytes, by class.

numpy cannot read the stored bytes of other classes.
"""


# ---------------------------------------------------------------------- attributes
# Attributes of HDF5 groups and datasets, as netCDF4-python returns them.


MAX_STRING_BYTES = 2**31 - 1
"""Maximum size in bytes of a string in numpy."""
NUMBER_CLASSES = frozenset({TypeClass.INTEGER, TypeClass.FLOAT})
"""Type classes of numbers."""
STRING_TYPES = {
    struct.pack("<BBHIBBHIHH", 0x19, 1, charset, 16, 0x10, 0, 0, 1, 0, 8) for charset in CHARSETS
}
"""Encoded types of variable-length strings with 8-byte addresses (IV.A.2.d)."""


def read_attribute(owner: Any, name: str) -> Any:
    """Return the value of an attribute as netCDF4-python does.

    A string is a str, several are a list; a number is a scalar, several are an array. Object
    references are the paths of the objects.

    Raises `UnsupportedError` if its type is not supported, and `FormatError` if its value is in a
    damaged heap.
    """
    raw = name.encode("utf-8", "surrogateescape")
    attribute = owner.attributes[raw]
    if attribute.elements and attribute.kind in STRING_TYPES:
        return decode_strings(read_sequences(owner.file, attribute, is_value=True))
    value = decode_inline_value(attribute)
    return _read_by_library(owner, name, raw, attribute) if value is None else value


def _read_by_library(owner: Any, name: str, raw: bytes, attribute: Attribute) -> Any:
    import h5py

    if is_region(attribute.kind):
        # HDF5 reads region references from the global heap, which has not been checked
        raise _make_attribute_error("it refers to regions")
    if not attribute.kind or attribute.kind[0] & 0x0F not in INLINE_CLASSES:
        mark_incomplete(attribute.data)
    try:
        kind = h5py.h5a.open(owner.id, raw).get_type()
        has_parts = kind.get_class() in (TypeClass.COMPOUND, TypeClass.VLEN, TypeClass.ARRAY)
        if has_parts and (reason := find_unsupported_reason(parse_type_message(encode_type(kind)))):
            raise _make_attribute_error(reason)
        _check_heap(owner.file, attribute)
        value = owner.attrs[name]
    except (FormatError, UnsupportedError):
        raise
    except KeyError as error:
        owner.file.raise_damaged(f"attribute {name!r}: {error.args[0]}")
    except TypeError as error:
        raise _make_attribute_error(f"numpy has no such type: {error}") from error
    except (OSError, ValueError) as error:
        raise _make_attribute_error(str(error)) from error
    if isinstance(value, h5py.Empty):
        return "" if value.dtype.kind in "SUO" else np.empty(0, value.dtype)
    if isinstance(value, str | bytes):
        return _to_text(value)
    if isinstance(value, h5py.Reference):
        return get_object_path(value, owner)
    if isinstance(value, np.ndarray) and value.dtype.kind in "SO":
        return _convert_items(name, value, owner)
    if isinstance(value, np.ndarray) and value.size == 1:
        return value.ravel()[0]
    return value.astype(value.dtype.newbyteorder("=")) if isinstance(value, np.ndarray) else value


def _check_heap(file: FileBytes, attribute: Attribute) -> None:
    """Raise an error for an attribute that refers to objects missing from the heap."""
    kind = parse_type(file, attribute.kind)
    if not kind.has_variable_length:
        return
    if attribute.elements * kind.size > len(attribute.data):
        file.raise_damaged(
            f"an attribute has {len(attribute.data)} bytes for {attribute.elements} elements"
        )
    data = np.frombuffer(attribute.data, np.uint8, attribute.elements * kind.size)
    check_elements(file, kind, data.reshape(-1, kind.size))


def decode_strings(raw: Sequence[bytes]) -> Any:
    """Return variable-length strings as h5py does: one as a str, several as a list."""
    texts = [_to_text(text.partition(b"\0")[0]) for text in raw]
    return texts[0] if len(texts) == 1 else texts


def decode_inline_value(attribute: Attribute) -> Any:
    """Return the value of an attribute that is not in the heap, or None for uncommon types."""
    count = attribute.elements
    dtype = _find_native_dtype(attribute.kind)
    if dtype is None or not 0 < count * dtype.itemsize <= len(attribute.data):
        return None
    if dtype.kind != "S":
        values = np.frombuffer(attribute.data, dtype, count).reshape(attribute.shape)
        return values.ravel()[0] if count == 1 else values.astype(dtype.newbyteorder("="))
    size = dtype.itemsize
    texts = [attribute.data[at : at + size].rstrip(b"\0") for at in range(0, count * size, size)]
    # let HDF5 handle bytes after the end of a string
    return None if any(b"\0" in text for text in texts) else decode_strings(texts)


@lru_cache(1024)
def _find_native_dtype(kind: bytes) -> np.dtype[Any] | None:
    """Return the dtype of numbers and strings that numpy reads as stored, or None."""
    if size := find_string_size(kind, (NULL_TERMINATED, NULL_PADDED)):
        return np.dtype(f"S{size}") if size <= MAX_STRING_BYTES else None
    if kind[0] & 0x0F not in NUMBER_CLASSES:
        return None
    try:
        stored = parse_stored_type(kind)
    except (UnsupportedError, *MESSAGE_ERRORS):
        return None
    return stored.dtype if stored.in_chunks else None


def _convert_items(name: str, values: np.ndarray[Any, Any], owner: Any) -> Any:
    """Return strings or paths as a list, and variable-length arrays as an object array."""
    import h5py

    items: list[Any] = values.ravel().tolist()
    items = [
        get_object_path(item, owner) if isinstance(item, h5py.Reference) else _to_text(item)
        for item in items
    ]
    if len(items) == 1:
        return items[0]
    return items if all(isinstance(item, str) for item in items) else values


def _make_attribute_error(reason: str) -> UnsupportedError:
    return UnsupportedError(
        f"its type cannot be read ({reason}); pass on_error='skip', which leaves it out, or leave "
        f"the whole variable out with drop_variables"
    )


def get_object_path(reference: Any, owner: Any) -> str:
    """Return the path of a referenced object, or "" for a null reference."""
    import h5py

    name = h5py.h5r.get_name(reference, owner.id) if reference else None
    return name.decode("utf-8", "replace") if name else ""


def _to_text(value: Any) -> Any:
    """Return a string in which invalid UTF-8 is replaced as by netCDF-C."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace").replace("\0", "")
    if isinstance(value, str):
        raw = value.encode("utf-8", "surrogateescape")
        return raw.decode("utf-8", "replace").replace("\0", "")
    return value
