"""CF time: stored numbers that mean dates or durations.

xarray decodes them, as calendars are its subject. No other module below `virtualds.datasets` uses
xarray.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import xarray as xr

from virtualds.codecs.codec import CodecError
from virtualds.errors import LIBRARY_ERRORS

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
        dates = self.count_dates(stored)
        return self.decode_by_xarray(stored) if dates is None else dates

    def count_dates(self, stored: npt.NDArray[Any]) -> npt.NDArray[Any] | None:
        """Return the dates of numbers that count equal units; None if xarray has to decode them."""
        if not self._is_plain(stored):
            return None
        count = _find_count(self.units, self.calendar, self.dtype.str)
        return count.compute_dates(stored) if count is not None and count.holds(stored) else None

    def _is_plain(self, stored: npt.NDArray[Any]) -> bool:
        """Say whether each number counts units, with nothing to be masked or scaled before."""
        others = self.attributes.keys() - {"units", "calendar"}
        masks = others <= {"_FillValue", "missing_value"} and stored.dtype.kind == "f"
        # numbers that are no numbers are left to xarray
        return not others or (masks and all(np.isnan(self.attributes[n]).all() for n in others))

    def decode_by_xarray(self, stored: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the dates or durations of ``stored`` as xarray decodes them, which takes long."""
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
        # dates that only cftime has are objects, which the dtype of the first may not say
        if {decoded.dtype.kind, found.dtype.kind} != {self.dtype.kind}:
            raise CodecError(f"{self.units!r}: decodes to {found.dtype}, not to {self.dtype}")
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


CALENDARS = ("", "standard", "gregorian", "proleptic_gregorian")
"""Calendars in which every unit is equally long, as to dates after 1582."""
FIRST, LAST = np.datetime64("1700-01-01"), np.datetime64("2200-01-01")
"""Dates between which times of any resolution exist, with equal units in these calendars."""
KNOWN_DATE = "2000-01-01"
"""A date from which xarray is asked to count."""
PLAIN_UNITS = re.compile(
    r"(days|hours|minutes|seconds) since "
    r"((?:1[789]|20|21)\d\d-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])"
    r"(?: (?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d)?)"
)
"""Units that can be read in one way only, from dates between `FIRST` and `LAST`."""
EXACT = 2**53
"""Whole numbers below it are exact as floats."""


class _Count(NamedTuple):
    """Dates as a count of equal units.

    Parameters
    ----------
    dtype : str
        datetime64 of the resolution of the dates.
    begin, step : int
        The date of 0, and the length of a unit, in that resolution.
    low, high : int
        The numbers for which this holds.
    most : int
        The highest float for which xarray computes without rounding.
    """

    dtype: str
    begin: int
    step: int
    low: int
    high: int
    most: int

    def holds(self, stored: npt.NDArray[Any]) -> bool:
        """Say whether the dates of some numbers are exactly those that xarray finds."""
        if not stored.size or stored.dtype.kind not in "iuf":
            return False
        low, high = stored.min(), stored.max()
        if not (self.low <= low and high <= self.high):
            return False
        if stored.dtype.kind in "iu":
            return True
        is_exact = stored.dtype.itemsize == 8 and max(-low, high) <= self.most
        return bool(is_exact and (stored == np.rint(stored)).all())

    def compute_dates(self, stored: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the dates of numbers."""
        found = stored.astype(np.int64)
        found *= self.step
        found += self.begin
        return found.view(self.dtype)


@lru_cache(maxsize=256)
def _find_count(units: str, calendar: str, dtype: str) -> _Count | None:
    """Return how numbers count units, None if xarray has to decode them."""
    if np.dtype(dtype).kind != "M" or calendar not in CALENDARS:
        return None
    if (plain := PLAIN_UNITS.fullmatch(units)) is None or units == f"{plain[1]} since {KNOWN_DATE}":
        return _ask_for_count(units, calendar, dtype)
    # xarray takes long to be asked, and many files have units of their own
    known = _find_count(f"{plain[1]} since {KNOWN_DATE}", calendar, dtype)
    if known is None:
        return None
    try:
        begin = int(np.datetime64(plain[2].replace(" ", "T")).astype(dtype).astype(np.int64))
    except ValueError:
        # there is no such date
        return None
    ends = (known.begin + known.step * count for count in (known.low, known.high))
    low, high = ((end - begin) // known.step for end in ends)
    return known._replace(begin=begin, low=low + 1, high=high)


def _ask_for_count(units: str, calendar: str, dtype: str) -> _Count | None:
    """Return how numbers count units, as xarray decodes some."""
    attributes = {"units": units, **({"calendar": calendar} if calendar else {})}
    packing = TimePacking(np.dtype(dtype), units, calendar, attributes)
    try:
        begin, after = packing.decode_by_xarray(np.array([0, 1])).astype(np.int64).tolist()
        ends = np.array([FIRST, LAST], dtype).astype(np.int64).tolist()
        if not ends[0] <= begin < after <= ends[1]:
            return None
        step = after - begin
        low, high = -((begin - ends[0]) // step), (ends[1] - begin) // step
        found = packing.decode_by_xarray(np.array([low, high])).astype(np.int64).tolist()
    except (CodecError, *LIBRARY_ERRORS):
        return None
    if found != [begin + step * low, begin + step * high]:
        return None
    # xarray multiplies floats by nanoseconds; powers of two do not cost digits
    resolution: Any = np.datetime_data(dtype)
    odd = step * int(np.timedelta64(1, resolution) // np.timedelta64(1, "ns"))
    odd //= odd & -odd
    return _Count(dtype, begin, step, low, high, EXACT // odd)


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
