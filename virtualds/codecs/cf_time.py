"""CF time: stored numbers that mean dates or durations.

xarray decodes them, as calendars are its subject. No other module below `virtualds.datasets` uses
xarray.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from virtualds.codecs.codec import CodecError

UNITS = {
    "days": "D",
    "hours": "h",
    "minutes": "m",
    "seconds": "s",
    "milliseconds": "ms",
    "microseconds": "us",
    "nanoseconds": "ns",
}
"""numpy's names of xarray's units of durations."""


@dataclass(frozen=True)
class TimePacking:
    """How stored numbers become dates or durations.

    Parameters
    ----------
    dtype : numpy dtype
        datetime64 or timedelta64 of the resolution that xarray chose for the variable.
    units, calendar : str
        CF conventions 1.12, section 4.4.
    attributes : dict
        All attributes that decoding used, packing attributes too.
    """

    dtype: np.dtype[Any]
    units: str
    calendar: str
    attributes: Mapping[str, Any] = field(default_factory=dict, compare=False)
    key: tuple[tuple[str, str], ...] = ()

    is_identity = False

    def __str__(self) -> str:
        """Return what the stored numbers count."""
        return self.units

    @classmethod
    def from_attributes(cls, attributes: Mapping[str, Any], dtype: np.dtype[Any]) -> TimePacking:
        """Build the packing from the attributes that decoding used."""
        key = tuple(sorted((name, repr(value)) for name, value in attributes.items()))
        calendar = str(attributes.get("calendar", ""))
        return cls(dtype, str(attributes["units"]), calendar, attributes, key)

    def decode(self, stored: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the dates or durations of ``stored``."""
        unit: Any = np.datetime_data(self.dtype)[0]
        # with fastpath, and without characters, xarray need not import dask.array to look for it
        variable = xr.Variable(("element",), stored.ravel(), dict(self.attributes), fastpath=True)
        try:
            decoded = xr.conventions.decode_cf_variable(
                "time",
                variable,
                concat_characters=False,
                decode_times=xr.coders.CFDatetimeCoder(time_unit=unit),
                decode_timedelta=xr.coders.CFTimedeltaCoder(time_unit=unit, decode_via_units=True),
            )
            # lazy until here: xarray has decoded only the first and the last value
            found = decoded.values
        except (ValueError, OverflowError) as error:
            raise CodecError(f"{self.units!r}: {error}") from error
        if decoded.dtype.kind != self.dtype.kind:
            raise CodecError(f"{self.units!r}: decodes to {decoded.dtype}, not to {self.dtype}")
        values: npt.NDArray[Any] = found.astype(self.dtype)
        if found.dtype != self.dtype and not _is_same(values, found):
            raise CodecError(
                f"{self.units!r}: some values are finer than {self.dtype}, the dtype that xarray "
                f"chose; load the variable with loadable_variables"
            )
        return values.reshape(stored.shape)

    def decode_into(self, out: npt.NDArray[Any], stored: npt.NDArray[Any]) -> None:
        """Write the dates or durations of ``stored`` into ``out``."""
        out[...] = self.decode(stored)


def may_be_finer(attributes: Mapping[str, Any], stored: np.dtype[Any]) -> bool:
    """Say whether durations may be finer than their attribute ``dtype``, xarray's own, says."""
    declared = str(attributes.get("dtype", ""))
    if not declared.startswith("timedelta64["):
        return False
    unit: Any = np.datetime_data(np.dtype(declared))[0]
    counted: Any = UNITS.get(str(attributes.get("units")), "ns")
    finer = bool(np.timedelta64(1, counted) < np.timedelta64(1, unit))
    return finer or (stored.kind == "f" and unit != "ns")


def _is_same(values: npt.NDArray[Any], others: npt.NDArray[Any]) -> bool:
    return bool(((values == others) | (np.isnat(values) & np.isnat(others))).all())
