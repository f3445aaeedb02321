"""The types of HDF5, and which of them numpy reads as stored.

HDF5 converts while it reads: integers of odd precision, floats of odd layout, padded strings. Where
numpy cannot read the stored bytes, h5py reads the values.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from virtualds.errors import UnsupportedError
from virtualds.parsers.hdf5.numpy_types import (
    describe_floats,
    find_dtype,
    list_enum_members,
    list_members,
)
from virtualds.parsers.hdf5.structure.element_types import HDF5Type, parse_type_message
from virtualds.parsers.hdf5.structure.messages import MessageError, TypeClass, UnknownFormError

TEXT_DTYPE = np.dtype("O", metadata={"element_type": str})
"""Strings of varying length, as xarray marks them."""
OBJECT = 0
"""The sort of references to objects, as HDF5 wrote them up to version 1.10."""
NULL_TERMINATED, NULL_PADDED = 0, 1
"""Paddings of strings of fixed length."""
ORDER = 0b1
"""The bit of the byte order of a number."""
ENCODING_HEAD = 2
"""Bytes before the message in what `H5Tencode` gives: the type of the message, and a version."""


class StoredType(NamedTuple):
    """How the elements of a dataset are stored.

    Parameters
    ----------
    dtype : numpy dtype
        Of the values; objects where they lie in a heap.
    declared : numpy dtype or type
        The value of xarray's ``encoding["dtype"]``.
    in_chunks : bool
        Whether the bytes of a chunk, decoded, are values of this dtype.
    shape : tuple of int
        Axes that every element has (array types).
    """

    dtype: np.dtype[Any]
    declared: Any
    in_chunks: bool
    shape: tuple[int, ...] = ()


@lru_cache(4096)
def parse_stored_type(message: bytes, name: str | None = None) -> StoredType:
    """Return how elements are stored, from the Datatype message of a dataset.

    Parameters
    ----------
    message : bytes
    name : str, optional
        Of the type, if it is a committed one.

    Raises
    ------
    MessageError
        The message contradicts itself.
    UnknownFormError
        The message has an unknown form.
    UnsupportedError
        Neither numpy nor h5py has a value for the type.
    """
    return _find_stored_type(parse_type_message(message), name)


def find_stored_type(kind: Any) -> StoredType:
    """Return how elements of a type are stored, which h5py has opened.

    Raises
    ------
    UnsupportedError
        Neither numpy nor h5py has a value for it.
    """
    try:
        return parse_stored_type(encode_type(kind), name_of_type(kind))
    except (MessageError, UnknownFormError) as error:
        raise UnsupportedError(
            f"its type has a form that virtualds does not know ({error}); leave the variable out "
            f"with drop_variables, or pass on_error='skip'"
        ) from error


def encode_type(kind: Any) -> bytes:
    """Return the Datatype message of a type that h5py has opened."""
    encoded: bytes = kind.encode()
    return encoded[ENCODING_HEAD:]


def name_of_type(kind: Any) -> str | None:
    """Return the name of a committed type that h5py has opened, None for other types."""
    import h5py

    name = h5py.h5i.get_name(kind) if kind.committed() else None
    return name.decode().rpartition("/")[2] if name else None


def _find_stored_type(kind: HDF5Type, name: str | None) -> StoredType:
    if kind.kind == TypeClass.ENUM:
        return _find_enum_type(kind, name or "enum")
    if kind.kind == TypeClass.ARRAY:
        base = _find_stored_type(kind.base, None)
        return base._replace(shape=(*kind.dims, *base.shape))
    if kind.kind == TypeClass.REFERENCE and kind.sort == OBJECT:
        return StoredType(TEXT_DTYPE, str, in_chunks=False)
    check_type(kind)
    dtype = _find_dtype(kind)
    if kind.is_text:
        return StoredType(TEXT_DTYPE, str, in_chunks=False)
    # only members keep the metadata that h5py reads them by
    plain = dtype if dtype.names else np.dtype(dtype.str)
    declared = plain.newbyteorder("=") if plain.names else plain
    return StoredType(plain, declared, in_chunks=_is_plain(kind))


def _find_dtype(kind: HDF5Type) -> np.dtype[Any]:
    try:
        return find_dtype(kind)
    except (TypeError, ValueError, SyntaxError) as error:
        raise _unsupported_error(kind, str(error)) from error


def _find_enum_type(kind: HDF5Type, name: str) -> StoredType:
    """Return an enum as its integers, with the names in the metadata as xarray holds them."""
    dtype = _find_dtype(kind.base)
    try:
        members = {raw.decode(): value for raw, value in list_enum_members(kind).items()}
    except UnicodeDecodeError as error:
        raise _unsupported_error(kind, str(error)) from error
    declared = np.dtype(dtype, metadata={"enum": members, "enum_name": name})
    return StoredType(dtype, declared, in_chunks=_is_plain(kind.base))


def check_type(kind: HDF5Type) -> None:
    """Refuse a type whose values h5py cannot read correctly.

    Raises
    ------
    UnsupportedError
        References to regions or within other types, and arrays of varying length in foreign byte
        order, whose bytes h5py does not swap.
    """
    if reason := find_obstacle(kind):
        raise _unsupported_error(kind, reason)


def find_obstacle(kind: HDF5Type) -> str:
    """Say why h5py cannot read the values of a type correctly; nothing if it can."""
    if _holds_references(kind):
        return "references to regions, or within other types, have no values"
    if _holds_foreign_sequences(kind):
        return "h5py does not swap the byte order of arrays of varying length"
    return ""


def _holds_references(kind: HDF5Type) -> bool:
    return kind.kind == TypeClass.REFERENCE or any(
        _holds_references(part) for _, part in kind.parts
    )


def _holds_foreign_sequences(kind: HDF5Type) -> bool:
    if kind.kind == TypeClass.VLEN:
        return not kind.is_text and _is_foreign(kind.base)
    return any(_holds_foreign_sequences(part) for _, part in kind.parts)


def _is_foreign(kind: HDF5Type) -> bool:
    """Say whether numbers of a type are in another byte order than this machine's."""
    if kind.kind in (TypeClass.INTEGER, TypeClass.FLOAT):
        return kind.size > 1 and kind.is_big_endian == (sys.byteorder == "little")
    return not kind.is_text and any(_is_foreign(part) for _, part in kind.parts)


def _unsupported_error(kind: HDF5Type, reason: str) -> UnsupportedError:
    name = "string" if kind.is_text else kind.kind.name.lower()
    return UnsupportedError(
        f"its type {name} cannot be read ({reason}); leave the variable out with "
        f"drop_variables, or pass on_error='skip'"
    )


def _is_plain(kind: HDF5Type) -> bool:
    """Say whether numpy reads the bytes of a type as h5py does."""
    rule = PLAIN.get(kind.kind)
    return rule is not None and rule(kind)


def _is_plain_integer(kind: HDF5Type) -> bool:
    # unused bits are not part of the number
    return kind.precision == 8 * kind.size and not kind.offset


def _is_plain_bitfield(kind: HDF5Type) -> bool:
    return _is_plain_integer(kind) and not kind.bits & ~ORDER


def _is_plain_float(kind: HDF5Type) -> bool:
    return (kind.size, kind.bits, kind.properties) in describe_floats()


def _is_plain_string(kind: HDF5Type) -> bool:
    # bytes after the end of a string, and padding spaces, are not part of it
    one_byte = kind.size == 1 and kind.sort == NULL_TERMINATED
    return one_byte or kind.sort == NULL_PADDED


def _is_plain_compound(kind: HDF5Type) -> bool:
    dtype = find_dtype(kind)
    if dtype.names is None:
        # a pair of floats that h5py takes for a complex number, however it is laid out
        (_, first), (start, second) = kind.parts
        return kind.size == 2 * start == 2 * first.size and _is_plain(first) and _is_plain(second)
    return _is_made_of_plain(kind) and all(
        # a boolean of h5py is one byte, whatever integer the enum is made of
        dtype[name.decode()].itemsize == part.size
        for name, _, part in list_members(kind)
    )


def _is_made_of_plain(kind: HDF5Type) -> bool:
    return all(_is_plain(part) for _, part in kind.parts)


PLAIN: dict[TypeClass, Callable[[HDF5Type], bool]] = {
    TypeClass.INTEGER: _is_plain_integer,
    TypeClass.BITFIELD: _is_plain_bitfield,
    TypeClass.FLOAT: _is_plain_float,
    TypeClass.STRING: _is_plain_string,
    TypeClass.OPAQUE: lambda kind: True,
    TypeClass.ENUM: _is_made_of_plain,
    TypeClass.ARRAY: _is_made_of_plain,
    TypeClass.COMPOUND: _is_plain_compound,
    TypeClass.COMPLEX: _is_made_of_plain,
}
"""By class: whether stored bytes are values. Bytes of other classes never are."""
