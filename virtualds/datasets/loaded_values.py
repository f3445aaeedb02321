"""Encoding values in memory so that they decode to themselves."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from virtualds.codecs.cf_packing import PACKING_ATTRIBUTES
from virtualds.errors import UnsupportedError

TIME_ATTRIBUTES = ("units", "calendar", "dtype", *PACKING_ATTRIBUTES)
TIMES = ("m", "M")
"""Kinds of dtypes of durations and dates."""
ENCODE_ERRORS = (ValueError, OverflowError, TypeError, KeyError, UserWarning)
"""Errors of xarray if values do not fit their encoding."""


def encode_loaded(name: str, variable: xr.Variable) -> xr.Variable:
    """Encode a loaded variable, and check that it decodes to itself.

    Raises
    ------
    UnsupportedError
        No known encoding keeps all values.
    """
    variable = _to_native_order(variable.copy(deep=False).to_base_variable())
    if (
        getattr(variable.encoding.get("dtype"), "kind", "") in TIMES
        and variable.dtype.kind in TIMES
    ):
        # the source stores dates as numpy does, not as CF does
        return variable
    if _is_coded(variable):
        # a variable that was not decoded is stored unchanged
        return variable.copy(data=_to_plain(variable.data))
    for encoding in _list_encodings(variable):
        attempt = variable.copy(deep=False)
        # otherwise xarray would add a fill value to floats
        attempt.encoding = {"_FillValue": None, **encoding}
        try:
            with warnings.catch_warnings():
                # the units do not suit the values; other encodings may
                warnings.simplefilter("error", UserWarning)
                stored = xr.conventions.encode_cf_variable(attempt, name=name)
            plain = stored.copy(data=_to_plain(stored.data))
            for spelt in _list_spellings(plain, encoding):
                decoded = _list_decodings(name, spelt, variable)
                if any(_is_same(again, variable) for again in decoded):
                    return spelt
        except ENCODE_ERRORS:
            continue
    if variable.dtype.kind in TIMES:
        # no unit of CF holds all of them, but numpy's does
        return variable
    raise UnsupportedError(
        f"its values of dtype {variable.dtype} cannot be encoded without change; convert them, or "
        f"leave it out"
    )


def _to_native_order(variable: xr.Variable) -> xr.Variable:
    """Convert numbers to native byte order, which decoded values have."""
    if variable.dtype.isnative or variable.dtype.hasobject:
        return variable
    return variable.copy(data=variable.values.astype(variable.dtype.newbyteorder("=")))


def _is_coded(variable: xr.Variable) -> bool:
    """Say whether a variable has coding attributes, which decoding would have removed."""
    if variable.dtype.kind not in "iufSU":
        return False
    tells_time = " since " in str(variable.attrs.get("units", ""))
    is_time = tells_time and variable.dtype.kind in "iuf"
    return is_time or not variable.attrs.keys().isdisjoint(PACKING_ATTRIBUTES)


def _list_encodings(variable: xr.Variable) -> Iterator[dict[str, Any]]:
    """Yield encodings, that of the source first."""
    yield _select_cf_encoding(variable.encoding)
    names = ("_FillValue", "units", "calendar")
    yield {k: v for k, v in variable.encoding.items() if k in names}
    yield {}


def _select_cf_encoding(encoding: Mapping[str, Any]) -> dict[str, Any]:
    """Return the encoding of values, without chunks and compression."""
    names = (*TIME_ATTRIBUTES, "_Encoding")
    found = {k: v for k, v in encoding.items() if k in names}
    if found.get("dtype") is str or getattr(found.get("dtype"), "kind", "") in "SOU":
        found.pop("dtype", None)
    return found


def _list_spellings(stored: xr.Variable, encoding: Mapping[str, Any]) -> Iterator[xr.Variable]:
    """Yield a variable with units and calendar as the source has them, then as xarray has them."""
    if "units" in stored.attrs and "units" in encoding:
        again = stored.copy(deep=False)
        again.attrs["units"] = encoding["units"]
        if "calendar" not in encoding:
            # xarray names the calendar that dates without one have
            again.attrs.pop("calendar", None)
        yield again
    yield stored


def _list_decodings(name: str, stored: xr.Variable, variable: xr.Variable) -> Iterator[xr.Variable]:
    """Yield what a stored variable may decode to."""
    # characters are given their axis where all variables are known
    yield xr.conventions.decode_cf_variable(name, stored.copy(), concat_characters=False)
    if variable.dtype.kind == "O" and " since " in str(stored.attrs.get("units", "")):
        # dates of the standard calendar may have been decoded to objects
        yield xr.conventions.decode_cf_variable(
            name,
            stored.copy(),
            concat_characters=False,
            decode_times=xr.coders.CFDatetimeCoder(use_cftime=True),
        )


def _to_plain(values: Any) -> Any:
    """Return values with text as objects, which every format holds, and other objects as numbers.

    xarray decodes bytes and booleans to objects where some may be missing.
    """
    found = np.asarray(values)
    if found.dtype.kind in "UT":
        return found.astype(object)
    kinds = {type(value) for value in found.flat} if found.dtype.kind == "O" else set()
    for kind in (bytes, bool):
        if kinds and kinds <= {kind, np.dtype(kind).type}:
            return found.astype(kind)
    return found


def _is_same(again: xr.Variable, variable: xr.Variable) -> bool:
    """Say whether a variable survived encoding; strings and times may change their dtype."""
    if again.dtype == variable.dtype and xr.Variable.equals(again, variable):  # type: ignore[no-untyped-call]
        return True
    if again.dtype.kind == variable.dtype.kind and again.dtype.kind in TIMES:
        return _are_same_times(again.values, variable.values)
    textual = again.dtype.kind in "OUST" and variable.dtype.kind in "OUST"
    return textual and bool(np.array_equal(again.values, variable.values))


def _are_same_times(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> bool:
    """Say whether times in two units are the same; numpy's comparison may overflow."""
    converted = one.astype(other.dtype)
    back = converted.astype(one.dtype)
    pairs = ((converted, other), (back, one))
    return all(np.array_equal(a.view(np.int64), b.view(np.int64)) for a, b in pairs)
