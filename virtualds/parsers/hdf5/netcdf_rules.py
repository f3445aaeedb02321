"""The conventions of netCDF on HDF5: fill values, and which attributes are the user's.

A netCDF4 file is an HDF5 file with conventions (netCDF-C documentation, "NetCDF-4 File Format").
Names come in the order of creation, as the netCDF library gives them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from virtualds.parsers.hdf5.objects import HDF5Location

NETCDF_FILLS: dict[str, Any] = {
    "i1": -127,
    "u1": 255,
    "i2": -32767,
    "u2": 65535,
    "i4": -2147483647,
    "u4": 4294967295,
    "i8": -9223372036854775806,
    "u8": 18446744073709551614,
    "f4": np.float32(9.969209968386869e36),
    "f8": 9.969209968386869e36,
}
"""Default fill values of the netCDF library (netCDF-C, ``netcdf.h``)."""


def find_fill_beyond(chosen: bytes | None, dtype: np.dtype[Any]) -> Any:
    """Return what netCDF reads past the end of a dataset that is shorter than its dimension.

    Parameters
    ----------
    chosen : bytes or None
        The storage fill value, if the writer of the dataset chose it.
    dtype : numpy dtype
        Of the values.
    """
    if dtype.hasobject:
        return ""
    if chosen is None:
        return np.array(NETCDF_FILLS.get(dtype.str[1:], np.zeros((), dtype)), dtype)[()]
    return np.frombuffer(chosen, dtype)[0]


def list_attribute_names(owner: HDF5Location) -> list[str]:
    """Return the names of all attributes, in the order of creation where the file kept it."""
    return [name.decode("utf-8", "surrogateescape") for name in owner.attributes]
