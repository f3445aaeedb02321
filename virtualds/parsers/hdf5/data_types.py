"""The types of HDF5, and which of them numpy reads as stored.

HDF5 converts while it reads: integers of odd precision, floats of odd layout, padded strings. Where
numpy cannot read the stored bytes, h5py reads the values.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np

from virtualds.errors import UnsupportedError


class TypeClass(IntEnum):
    """Datatype classes (HDF5 file format, IV.A.2.d, Datatype message)."""

    INTEGER = 0
    FLOAT = 1
    TIME = 2
    STRING = 3
    BITFIELD = 4
    OPAQUE = 5
    COMPOUND = 6
    REFERENCE = 7
    ENUM = 8
    VLEN = 9
    ARRAY = 10
    COMPLEX = 11


ATOMIC = frozenset({TypeClass.INTEGER, TypeClass.FLOAT, TypeClass.STRING, TypeClass.BITFIELD})
"""Classes of types that hold no others and have no names."""

TEXT_DTYPE = np.dtype("O", metadata={"element_type": str})
"""Strings of varying length, as xarray marks them."""


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


def find_stored_type(kind: Any) -> StoredType:
    """Return how elements of an HDF5 type are stored.

    Raises
    ------
    UnsupportedError
        Neither numpy nor h5py has a value for it.
    """
    if kind.get_class() in ATOMIC:
        # the encoding determines the type, so it can be the key of a cache
        return _get_stored_type(kind.encode())
    return _find_stored_type(kind)


@lru_cache(1024)
def _get_stored_type(encoded: bytes) -> StoredType:
    import h5py

    return _find_stored_type(h5py.h5t.decode(encoded))


def _find_stored_type(kind: Any) -> StoredType:
    import h5py

    of_class = kind.get_class()
    if of_class == TypeClass.ENUM:
        return _find_enum_type(kind)
    if of_class == TypeClass.ARRAY:
        base = find_stored_type(kind.get_super())
        return base._replace(shape=(*kind.get_array_dims(), *base.shape))
    if of_class == TypeClass.REFERENCE and kind.equal(h5py.h5t.STD_REF_OBJ):
        return StoredType(TEXT_DTYPE, str, in_chunks=False)
    check_values(kind)
    try:
        dtype = kind.dtype
    except (KeyError, TypeError, ValueError) as error:
        # of floats in the byte order of a VAX h5py says KeyError
        raise _unsupported_error(kind, f"h5py has no dtype for it, {error}") from error
    if dtype.hasobject and h5py.check_string_dtype(dtype) is not None:
        return StoredType(TEXT_DTYPE, str, in_chunks=False)
    if not dtype.itemsize:
        raise _unsupported_error(kind, "its elements have no bytes")
    plain = dtype if dtype.names else np.dtype(dtype.str)
    declared = plain.newbyteorder("=") if plain.names else plain
    return StoredType(plain, declared, in_chunks=_is_plain(kind))


def check_values(kind: Any) -> None:
    """Refuse a type whose values h5py cannot read correctly.

    Raises
    ------
    UnsupportedError
        References to regions or within other types, and arrays of varying length in foreign byte
        order, whose bytes h5py does not swap.
    """
    if _holds_references(kind):
        raise _unsupported_error(
            kind, "references to regions, or within other types, have no values"
        )
    if _holds_foreign_sequences(kind):
        raise _unsupported_error(
            kind, "h5py does not swap the byte order of arrays of varying length"
        )


def _holds_foreign_sequences(kind: Any) -> bool:
    if kind.get_class() == TypeClass.VLEN:
        return any(map(_is_foreign, _list_parts(kind)))
    return any(map(_holds_foreign_sequences, _list_parts(kind)))


def _is_foreign(kind: Any) -> bool:
    """Say whether numbers of a type are in another byte order than this machine's."""
    if kind.get_class() in (TypeClass.INTEGER, TypeClass.FLOAT):
        return not kind.dtype.isnative
    return any(map(_is_foreign, _list_parts(kind)))


def _unsupported_error(kind: Any, reason: str) -> UnsupportedError:
    known = kind.get_class() in set(TypeClass)
    name = TypeClass(kind.get_class()).name.lower() if known else str(kind.get_class())
    return UnsupportedError(
        f"its type {name} cannot be read ({reason}); leave the variable out with drop_variables, "
        f"or pass on_error='skip'"
    )


def _find_enum_type(kind: Any) -> StoredType:
    """Return an enum as its integers, with the names in the metadata as xarray holds them."""
    base = kind.get_super()
    dtype = np.dtype(base.dtype.str)
    members = {
        kind.get_member_name(i).decode(): kind.get_member_value(i)
        for i in range(kind.get_nmembers())
    }
    declared = np.dtype(dtype, metadata={"enum": members, "enum_name": _name_of(kind)})
    return StoredType(dtype, declared, in_chunks=_is_plain(base))


def _name_of(kind: Any) -> str:
    import h5py

    if not kind.committed():
        return "enum"
    name = h5py.h5i.get_name(kind)
    return name.decode().rpartition("/")[2] if name else "enum"


def _holds_references(kind: Any) -> bool:
    return kind.get_class() == TypeClass.REFERENCE or any(map(_holds_references, _list_parts(kind)))


def _list_parts(kind: Any) -> list[Any]:
    """Return the types that a type is made of."""
    of_class = kind.get_class()
    if of_class == TypeClass.COMPOUND:
        return [kind.get_member_type(i) for i in range(kind.get_nmembers())]
    if of_class in (TypeClass.ARRAY, TypeClass.VLEN, TypeClass.ENUM, TypeClass.COMPLEX):
        return [kind.get_super()]
    return []


def _is_plain(kind: Any) -> bool:
    """Say whether numpy reads the bytes of a type as h5py does."""
    rule = PLAIN.get(kind.get_class())
    return rule is not None and bool(rule(kind))


def _is_plain_integer(kind: Any) -> bool:
    # unused bits are not part of the number
    return bool(kind.get_precision() == 8 * kind.get_size() and not kind.get_offset())


def _is_plain_bitfield(kind: Any) -> bool:
    import h5py

    names = (f"STD_B{8 * kind.get_size()}{order}" for order in ("LE", "BE"))
    return any(hasattr(h5py.h5t, n) and kind.equal(getattr(h5py.h5t, n)) for n in names)


def _is_plain_float(kind: Any) -> bool:
    dtype = kind.dtype
    return dtype.itemsize == kind.get_size() and bool(kind.equal(_type_of(dtype)))


@cache
def _type_of(dtype: np.dtype[Any]) -> Any:
    """Return the HDF5 type of a dtype."""
    import h5py

    return h5py.h5t.py_create(dtype)


def _is_plain_string(kind: Any) -> bool:
    import h5py

    if kind.is_variable_str():
        return False
    # bytes after the end of a string, and padding spaces, are not part of it
    padding = kind.get_strpad()
    one_byte = kind.get_size() == 1 and padding == h5py.h5t.STR_NULLTERM
    return bool(one_byte or padding == h5py.h5t.STR_NULLPAD)


def _is_plain_compound(kind: Any) -> bool:
    dtype = kind.dtype
    if dtype.names is None:
        # a pair of floats that h5py takes for a complex number, however it is laid out
        return bool(kind.equal(_type_of(dtype)))
    return (
        dtype.itemsize == kind.get_size()
        and all(
            dtype.fields[name][1] == kind.get_member_offset(i)
            # a boolean of h5py is one byte, whatever integer the enum is made of
            and dtype[name].itemsize == kind.get_member_type(i).get_size()
            for i, name in enumerate(dtype.names)
        )
        and _is_made_of_plain(kind)
    )


def _is_made_of_plain(kind: Any) -> bool:
    return all(map(_is_plain, _list_parts(kind)))


PLAIN: dict[int, Callable[[Any], bool]] = {
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
