"""Attributes of HDF5 groups and datasets, as netCDF4-python returns them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from virtualds.errors import FormatError, UnsupportedError
from virtualds.hdf5.data_types import Class, check_values
from virtualds.hdf5.global_heap import find_attribute, is_sequence, sequences

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


def attribute(owner: Any, name: str) -> Any:
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
    import h5py

    raw = name.encode("utf-8", "surrogateescape")
    try:
        kind = h5py.h5a.open(owner.id, raw).get_type()
        of_class = kind.get_class()
        if of_class == Class.VLEN or (of_class == Class.STRING and kind.is_variable_str()):
            _check_heap(owner, raw)
        if of_class in (Class.COMPOUND, Class.VLEN, Class.ARRAY):
            check_values(kind)
        value = owner.attrs[name]
    except FormatError:
        raise
    except (OSError, TypeError, ValueError, UnsupportedError) as error:
        raise _unsupported(name, str(error)) from error
    if isinstance(value, h5py.Empty):
        return "" if value.dtype.kind in "SUO" else np.empty(0, value.dtype)
    if isinstance(value, str | bytes):
        return _text(value)
    if isinstance(value, h5py.RegionReference):
        raise _unsupported(name, "it refers to a region")
    if isinstance(value, h5py.Reference):
        return path_of(value, owner)
    if isinstance(value, np.ndarray) and value.dtype.kind in "SO":
        return _items(name, value, owner)
    if isinstance(value, np.ndarray) and value.size == 1:
        return value.ravel()[0]
    return value.astype(value.dtype.newbyteorder("=")) if isinstance(value, np.ndarray) else value


def _check_heap(owner: Any, name: bytes) -> None:
    """Refuse strings and sequences that the heap does not hold, before HDF5 looks for them.

    Those of an object with many attributes are left to HDF5: they are listed in other ways.
    """
    try:
        found = find_attribute(owner.file, owner.messages, name)
    except UnsupportedError:
        return
    if found is not None and is_sequence(found.kind):
        for _ in sequences(owner.file, found):
            pass


def _items(name: str, values: np.ndarray[Any, Any], owner: Any) -> Any:
    """Return strings or paths as a list, and arrays of varying length as an array of them."""
    import h5py

    found: list[Any] = values.ravel().tolist()
    if any(isinstance(item, h5py.RegionReference) for item in found):
        raise _unsupported(name, "it refers to regions")
    found = [
        path_of(item, owner) if isinstance(item, h5py.Reference) else _text(item) for item in found
    ]
    if len(found) == 1:
        return found[0]
    return found if all(isinstance(item, str) for item in found) else values


def _unsupported(name: str, reason: str) -> UnsupportedError:
    return UnsupportedError(
        f"attribute {name!r}: its type cannot be read ({reason}); leave the variable out with "
        f"drop_variables, or pass on_error='skip'"
    )


def path_of(reference: Any, owner: Any) -> str:
    """Return the path of the object that a reference points to, "" where it points to none."""
    import h5py

    name = h5py.h5r.get_name(reference, owner.id) if reference else None
    return name.decode("utf-8", "replace") if name else ""


def _text(value: Any) -> Any:
    """Return a string, what is no UTF-8 in it replaced as the netCDF library does."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace").replace("\0", "")
    if isinstance(value, str):
        raw = value.encode("utf-8", "surrogateescape")
        return raw.decode("utf-8", "replace").replace("\0", "")
    return value


def of_the_user(names: Iterable[str]) -> list[str]:
    """Return the names that do not serve the netCDF library."""
    return [name for name in names if name not in RESERVED]
