"""Attributes of HDF5 groups and datasets, as netCDF4-python returns them."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from virtualds.errors import FormatError, UnsupportedError
from virtualds.parsers.hdf5.data_types import TypeClass, encode_type, find_obstacle
from virtualds.parsers.hdf5.structure.attribute_messages import (
    IN_PLACE,
    Attribute,
    find_string_size,
)
from virtualds.parsers.hdf5.structure.file_bytes import FileBytes
from virtualds.parsers.hdf5.structure.global_heap import check_elements, read_sequences
from virtualds.parsers.hdf5.structure.notes import give_up
from virtualds.parsers.hdf5.structure.type_messages import is_region, parse_type, parse_type_message

RESERVED = frozenset(
    {
        "CLASS",
        "NAME",
        "REFERENCE_LIST",
        "DIMENSION_LIST",
        "_Netcdf4Dimid",
        "_Netcdf4Coordinates",
        "_nc3_strict",
        "_NCProperties",
    }
)
"""Attributes that serve dimension scales and the netCDF library, not the user."""

INTEGER, FLOAT, VLEN = (
    0x10 | kind for kind in (TypeClass.INTEGER, TypeClass.FLOAT, TypeClass.VLEN)
)
"""The first byte of a type: its class and version 1 (IV.A.2.d)."""
LONGEST_TEXT = 2**31 - 1
"""Most bytes of a string in numpy."""
NULL_TERMINATED, NULL_PADDED = 0, 1
"""Paddings of strings of fixed length."""


def _encode_integer_type(size: int, *, signed: bool) -> bytes:
    return struct.pack("<BBHIHH", INTEGER, 8 * signed, 0, size, 0, 8 * size)


def _encode_float_type(size: int, exponent: int, fraction: int) -> bytes:
    """Return the message of an IEEE 754 type: the first bit of the fraction is not stored."""
    where = fraction, exponent, 0, fraction
    bias = 2 ** (exponent - 1) - 1
    head = FLOAT, 0x20, 8 * size - 1, size, 0, 8 * size
    return struct.pack("<BBHIHHBBBBI", *head, *where, bias)


NUMBERS = {
    **{_encode_integer_type(n, signed=True): f"<i{n}" for n in (1, 2, 4, 8)},
    **{_encode_integer_type(n, signed=False): f"<u{n}" for n in (1, 2, 4, 8)},
    _encode_float_type(4, 8, 23): "<f4",
    _encode_float_type(8, 11, 52): "<f8",
}
"""Types of numbers in little-endian order, as datatype messages have them (IV.A.2.d)."""
STRINGS = {
    struct.pack("<BBHI", VLEN, 1, text, 16) + _encode_integer_type(1, signed=False)
    for text in (0, 1)
}
"""Types of strings of varying length, in ASCII and UTF-8, where addresses have 8 bytes."""


def read_attribute(owner: Any, name: str) -> Any:
    """Return one attribute the way netCDF4-python returns it.

    Strings are str, several of them a list; one number is a scalar, several are an array.
    References to objects are the paths of these objects.

    Raises
    ------
    UnsupportedError
        Its type has no value in Python.
    FormatError
        It lies in a heap that is damaged.
    """
    raw = name.encode("utf-8", "surrogateescape")
    known = owner.attributes[raw]
    if (value := _read_plain_value(owner.file, known)) is not None:
        return value
    return _read_by_library(owner, name, raw, known)


def _read_by_library(owner: Any, name: str, raw: bytes, known: Attribute) -> Any:
    import h5py

    if is_region(known.kind):
        # regions lie in the heap too, and HDF5 looks for them there as soon as it reads references
        raise _unsupported_error("it refers to regions")
    if not known.kind or known.kind[0] & 0x0F not in IN_PLACE:
        give_up(known.data)
    try:
        kind = h5py.h5a.open(owner.id, raw).get_type()
        has_parts = kind.get_class() in (TypeClass.COMPOUND, TypeClass.VLEN, TypeClass.ARRAY)
        if has_parts and (reason := find_obstacle(parse_type_message(encode_type(kind)))):
            raise _unsupported_error(reason)
        _check_heap(owner.file, known)
        value = owner.attrs[name]
    except (FormatError, UnsupportedError):
        raise
    except KeyError as error:
        owner.file.refuse(f"attribute {name!r}: {error.args[0]}")
    except TypeError as error:
        raise _unsupported_error(f"numpy has no such type: {error}") from error
    except (OSError, ValueError) as error:
        raise _unsupported_error(str(error)) from error
    if isinstance(value, h5py.Empty):
        return "" if value.dtype.kind in "SUO" else np.empty(0, value.dtype)
    if isinstance(value, str | bytes):
        return _to_text(value)
    if isinstance(value, h5py.Reference):
        return path_of(value, owner)
    if isinstance(value, np.ndarray) and value.dtype.kind in "SO":
        return _to_items(name, value, owner)
    if isinstance(value, np.ndarray) and value.size == 1:
        return value.ravel()[0]
    return value.astype(value.dtype.newbyteorder("=")) if isinstance(value, np.ndarray) else value


def _check_heap(file: FileBytes, known: Attribute) -> None:
    """Refuse an attribute that refers to objects missing from the heap."""
    kind = parse_type(file, known.kind)
    if not kind.refers:
        return
    if known.elements * kind.size > len(known.data):
        file.refuse(f"an attribute has {len(known.data)} bytes for {known.elements} elements")
    data = np.frombuffer(known.data, np.uint8, known.elements * kind.size)
    check_elements(file, kind, data.reshape(-1, kind.size))


def _read_plain_value(file: FileBytes, known: Attribute) -> Any:
    """Return a value of a common type as h5py would read it; None for other types."""
    if known.elements and known.kind in STRINGS:
        return decode_texts(list(read_sequences(file, known, is_value=True)))
    return decode_in_place(known)


def decode_texts(raw: Sequence[bytes]) -> Any:
    """Return strings of varying length as h5py reads them: one as str, several as a list."""
    texts = [_to_text(one.partition(b"\0")[0]) for one in raw]
    return texts[0] if len(texts) == 1 else texts


def decode_in_place(known: Attribute) -> Any:
    """Return the value of an attribute that refers to nothing; None for uncommon types."""
    count = known.elements
    dtype = _find_plain_type(known.kind)
    if dtype is None or not 0 < count * dtype.itemsize <= len(known.data):
        return None
    if dtype.kind != "S":
        values = np.frombuffer(known.data, dtype, count).reshape(known.shape)
        return values.ravel()[0] if count == 1 else values.astype(dtype.newbyteorder("="))
    text = known.data[: dtype.itemsize].rstrip(b"\0")
    # let HDF5 handle bytes after the end of a string
    return None if count > 1 or b"\0" in text else _to_text(text)


@lru_cache(1024)
def _find_plain_type(kind: bytes) -> np.dtype[Any] | None:
    """Return the dtype of little-endian numbers and of strings, None for other types."""
    if kind in NUMBERS:
        return np.dtype(NUMBERS[kind])
    size = find_string_size(kind, (NULL_TERMINATED, NULL_PADDED))
    return np.dtype(f"S{size}") if 0 < size <= LONGEST_TEXT else None


def _to_items(name: str, values: np.ndarray[Any, Any], owner: Any) -> Any:
    """Return strings or paths as a list, and arrays of varying length as an array of them."""
    import h5py

    found: list[Any] = values.ravel().tolist()
    found = [
        path_of(item, owner) if isinstance(item, h5py.Reference) else _to_text(item)
        for item in found
    ]
    if len(found) == 1:
        return found[0]
    return found if all(isinstance(item, str) for item in found) else values


def _unsupported_error(reason: str) -> UnsupportedError:
    return UnsupportedError(
        f"its type cannot be read ({reason}); pass on_error='skip', which leaves it out, or leave "
        f"the whole variable out with drop_variables"
    )


def path_of(reference: Any, owner: Any) -> str:
    """Return the path of the object that a reference points to, "" where it points to none."""
    import h5py

    name = h5py.h5r.get_name(reference, owner.id) if reference else None
    return name.decode("utf-8", "replace") if name else ""


def _to_text(value: Any) -> Any:
    """Return a string; replace invalid UTF-8 as the netCDF library does."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace").replace("\0", "")
    if isinstance(value, str):
        raw = value.encode("utf-8", "surrogateescape")
        return raw.decode("utf-8", "replace").replace("\0", "")
    return value


def select_user_names(names: Iterable[str]) -> list[str]:
    """Return the names that do not serve the netCDF library."""
    return [name for name in names if name not in RESERVED]
