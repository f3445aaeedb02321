"""Data types and fill values of Zarr v2, to and from numpy's."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import numpy.typing as npt

from virtualds.bounds import demand_element, demand_shallow
from virtualds.errors import FormatError
from virtualds.json_values import NON_FINITE


def dtype_from_zarr_v2(spelled: Any) -> np.dtype[Any]:
    """Return a dtype from its Zarr v2 spelling ("Data type encoding").

    Raises
    ------
    FormatError
        It spells no dtype.
    """
    try:
        found: np.dtype[Any] = np.dtype(_to_numpy_descr(spelled))
    except (SyntaxError, TypeError, ValueError) as error:
        # numpy parses shapes in types as Python
        raise FormatError(
            f"dtype {spelled!r}: it is not a dtype of numpy; the reference set is damaged"
        ) from error
    if not found.itemsize:
        raise FormatError(f"dtype {spelled!r}: it has no bytes; the reference set is damaged")
    if found.names and found.hasobject:
        raise FormatError(
            f"dtype {spelled!r}: a field holds Python objects, which are not bytes of a file; the "
            f"reference set is damaged"
        )
    demand_shallow(found, "dtype")
    demand_element(found.itemsize, f"dtype {spelled!r}")
    return found


def _to_numpy_descr(spelled: Any) -> Any:
    """Return a spelled dtype as numpy takes it: fields are tuples."""
    if isinstance(spelled, str):
        return spelled
    return [(name, _to_numpy_descr(kind), *map(tuple, shape)) for name, kind, *shape in spelled]


def dtype_to_zarr_v2(dtype: np.dtype[Any]) -> Any:
    """Return the Zarr v2 spelling of a dtype: text, or a list of fields for a compound one."""
    if dtype.names is None:
        return dtype.str
    spelled = []
    for name in dtype.names:
        base, shape = dtype[name].base, dtype[name].shape
        spelled.append([name, dtype_to_zarr_v2(base), *([list(shape)] if shape else [])])
    return spelled


def pack_members(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return values of a compound type without bytes between its members."""
    return values.astype(to_packed(values.dtype), copy=False)


def to_packed(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return a dtype without bytes between members, also of members that are arrays.

    `numpy.lib.recfunctions.repack_fields` leaves those as they are.

    >>> to_packed(np.dtype([("a", np.dtype("i1,i4", align=True), 2)])).itemsize
    10
    """
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return np.dtype((to_packed(base), shape))
    if dtype.names is None:
        return dtype
    members = [to_packed(dtype[name]) for name in dtype.names]
    return np.dtype({"names": list(dtype.names), "formats": members})


def can_be_spelled(dtype: np.dtype[Any]) -> bool:
    """Say whether Zarr v2 can spell a dtype: there are no bytes between its fields."""
    return not dtype.hasobject and dtype_from_zarr_v2(dtype_to_zarr_v2(dtype)) == dtype


def fill_from_zarr_v2(value: Any, dtype: np.dtype[Any]) -> Any:
    """Return a fill value from its Zarr v2 spelling ("Fill value encoding").

    Raises
    ------
    FormatError
        It is no value of that dtype.
    """
    try:
        return _decode_fill(value, dtype)
    except (ValueError, TypeError, OverflowError) as error:
        raise FormatError(f"fill_value {value!r}: it is not of type {dtype} ({error})") from error


def _decode_fill(value: Any, dtype: np.dtype[Any]) -> Any:
    if value is None or dtype.kind == "O":
        return None
    if dtype.kind == "U" and value == 0:
        return np.asarray("", dtype)[()]
    if dtype.kind in "SV":
        text = isinstance(value, str)
        raw = base64.b64decode(value, validate=True) if text else bytes(dtype.itemsize)
        if len(raw) > dtype.itemsize:
            raise ValueError(f"{len(raw)} bytes")
        return np.frombuffer(raw.ljust(dtype.itemsize, b"\0"), dtype)[0]
    if dtype.kind == "c":
        real, imaginary = (_decode_fill(part, np.dtype("f8")) for part in value)
        return np.asarray(complex(real, imaginary), dtype)[()]
    if isinstance(value, str) and dtype.kind == "f":
        value = NON_FINITE.get(value, value)
    return np.asarray(value).astype(dtype)[()]


def fill_to_zarr_v2(value: Any, dtype: np.dtype[Any]) -> Any:
    """Return the Zarr v2 spelling of a fill value ("Fill value encoding")."""
    scalar = np.asarray(value).astype(dtype)
    if dtype.kind in "SV":
        return base64.standard_b64encode(scalar.tobytes()).decode()
    if dtype.kind == "c":
        return [fill_to_zarr_v2(part, np.dtype("f8")) for part in (scalar.real, scalar.imag)]
    if dtype.kind in "mM":
        return int(scalar.astype("i8"))
    if dtype.kind == "f" and not np.isfinite(scalar):
        return "NaN" if np.isnan(scalar) else "Infinity" if scalar > 0 else "-Infinity"
    return scalar.item()


def fill_to_attribute(value: Any, dtype: np.dtype[Any]) -> Any:
    """Return the spelling of the attribute ``_FillValue`` that xarray reads in Zarr v3.

    Floats are base64 of eight bytes, little-endian (`xarray.backends.zarr.FillValueCoder`).
    """
    scalar = np.asarray(value).astype(dtype)
    if dtype.kind == "c":
        return [fill_to_attribute(part, np.dtype("f8")) for part in (scalar.real, scalar.imag)]
    if dtype.kind == "f":
        return base64.standard_b64encode(scalar.astype("<f8").tobytes()).decode()
    return fill_to_zarr_v2(value, dtype)


def fill_from_attribute(value: Any, dtype: np.dtype[Any]) -> Any:
    """Return the attribute ``_FillValue`` from the spelling of `fill_to_attribute`."""
    if dtype.kind == "c":
        real, imaginary = (fill_from_attribute(part, np.dtype("f8")) for part in value)
        return dtype.type(complex(real, imaginary))
    if dtype.kind == "f" and isinstance(value, str):
        raw = np.frombuffer(base64.standard_b64decode(value), "<f8")
        return raw.astype(dtype.newbyteorder("="))[0]
    return fill_from_zarr_v2(value, dtype)


def is_exact(fill: Any, dtype: np.dtype[Any]) -> bool:
    """Say whether a fill value has the dtype of its array, so that nothing is lost."""
    return np.ndim(fill) == 0 and np.asarray(fill).dtype == dtype.newbyteorder("=")
