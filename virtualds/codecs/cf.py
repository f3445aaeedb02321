"""CF decoding: from stored numbers to values, dates and durations.

The attributes ``scale_factor``, ``add_offset``, ``_FillValue``, ``missing_value`` and ``_Unsigned``
(CF conventions 1.12, sections 2.5.1 and 8.1; NetCDF Users Guide, appendix A) define how the values
of a variable were packed. The result is bit for bit what `xarray.open_dataset` returns for that
file, in the dtype that xarray chose when the file was opened.

Times in nonlinear units are decoded by xarray, which implements calendars. No other module below
`virtualds.datasets` uses xarray.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from numbers import Number
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import xarray as xr

from virtualds.codecs.codec import CodecError
from virtualds.errors import LIBRARY_ERRORS

UNITS_OF_DATES = ("units", "calendar")
"""Attributes that define which dates numbers represent (CF conventions 1.12, section 4.4)."""
PACKING_ATTRIBUTES = (
    "_FillValue",
    "missing_value",
    "_Unsigned",
    "scale_factor",
    "add_offset",
    "dtype",
)
"""Attributes that decoding removes; xarray adds ``dtype`` to booleans."""

MISSING_VALUES = {"f": np.nan, "c": complex(np.nan, np.nan), "M": "NaT", "m": "NaT"}
"""The decoded missing value, by kind of dtype."""
DATE_UNITS = re.compile(r"[A-Za-z]+ since [0-9]")
"""The start of a units attribute of dates (CF conventions 1.12, section 4.4)."""
NAT_INTEGER = np.iinfo(np.int64).min
"""The integer that represents NaT."""


@dataclass(frozen=True)
class Packing:
    """Decodes stored numbers to values.

    Parameters
    ----------
    dtype : numpy dtype
        Dtype of the values.
    integer : numpy dtype or None
        Dtype to which stored integers are converted first (``_Unsigned``).
    fills : tuple of numpy scalar
        Stored numbers that mean "no value", compared in `dtype` before scaling.
    scale_factor, add_offset : numpy scalar or None
        Factor and summand, applied in this order.
    attributes : dict
        The attributes of the packing, as in the file. They are not compared: packings with the same
        result are equal.
    """

    dtype: np.dtype[Any]
    integer: np.dtype[Any] | None = None
    fills: tuple[Any, ...] = ()
    scale_factor: Any = None
    add_offset: Any = None
    attributes: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        if self.fills and self.dtype.kind not in "fc" and self.dtype != np.int64:
            raise ValueError(f"Packing: {self.dtype} has no NaN to stand for the fill values")
        if self.dtype.kind in "iu":
            for name in ("scale_factor", "add_offset"):
                if not _is_in_range(getattr(self, name), self.dtype):
                    raise ValueError(f"Packing: {name} is outside the range of {self.dtype}")

    def __str__(self) -> str:
        """Return a short description of scale and offset, without fill values.

        >>> str(Packing(np.dtype("f8"), scale_factor=0.01, add_offset=np.float32(-3)))
        '× 0.01 - 3'
        """
        terms = [f"as {self.integer}"] if self.integer is not None else []
        if self.scale_factor is not None:
            terms.append(f"× {_format_number(self.scale_factor)}")
        if self.add_offset is not None:
            offset = _format_number(self.add_offset)
            terms.append(f"- {offset[1:]}" if offset.startswith("-") else f"+ {offset}")
        return " ".join(terms)

    @classmethod
    def from_attributes(
        cls, stored: np.dtype[Any], attributes: Mapping[str, Any], dtype: np.dtype[Any]
    ) -> Packing | None:
        """Return the packing of a variable stored as ``stored`` and decoded to ``dtype``."""
        packing_attributes = {
            name: attributes[name] for name in PACKING_ATTRIBUTES if name in attributes
        }
        if not packing_attributes:
            return None
        integer = _find_integer_dtype(stored, packing_attributes.get("_Unsigned"))
        return cls(
            dtype=dtype,
            integer=integer,
            fills=_find_fill_values(packing_attributes, stored, integer),
            scale_factor=_to_scalar(packing_attributes.get("scale_factor")),
            add_offset=_to_scalar(packing_attributes.get("add_offset")),
            attributes=packing_attributes,
        )

    @property
    def is_identity(self) -> bool:
        """Whether decoding only changes the dtype."""
        return not self.fills and self.scale_factor is None and self.add_offset is None

    def decode_into(self, out: npt.NDArray[Any], stored: npt.NDArray[Any]) -> None:
        """Write the values of ``stored`` into ``out``, which has the same shape and `dtype`."""
        if self.integer is not None:
            stored = stored.astype(self.integer)
        out[...] = stored
        if self.fills:
            is_missing = out == self.fills[0]
            for fill in self.fills[1:]:
                is_missing |= out == fill
            out[is_missing] = MISSING_VALUES.get(self.dtype.kind, NAT_INTEGER)
        if self.scale_factor is not None:
            out *= self.scale_factor
        if self.add_offset is not None:
            out += self.add_offset

    def decode(self, stored: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the values of ``stored``."""
        out = np.empty(stored.shape, self.dtype)
        self.decode_into(out, stored)
        return out


def _format_number(value: Any) -> str:
    """Format a number with at most six digits."""
    return f"{value:.6g}" if isinstance(value, Number) else str(value)


def _is_in_range(number: Any, dtype: np.dtype[Any]) -> bool:
    """Return whether an integer dtype can represent a number; only Python integers are checked."""
    limits = np.iinfo(dtype)
    return not isinstance(number, int) or bool(limits.min <= number <= limits.max)


def _to_scalar(value: Any) -> Any:
    """Return an attribute as a scalar; some files have arrays of one element."""
    return np.asarray(value).item() if np.ndim(value) > 0 else value


def _find_integer_dtype(stored: np.dtype[Any], unsigned: Any) -> np.dtype[Any] | None:
    """Return the integer dtype that ``_Unsigned`` requires, or None if it changes nothing."""
    kind = {("i", "true"): "u", ("u", "false"): "i"}.get((stored.kind, str(unsigned)))
    return np.dtype(f"{kind}{stored.itemsize}") if kind else None


def _find_fill_values(
    attributes: Mapping[str, Any], stored: np.dtype[Any], integer: np.dtype[Any] | None
) -> tuple[Any, ...]:
    """Return the distinct fill values as stored numbers, sorted."""
    values: list[Any] = []
    raw = None if integer is None else _to_scalar(attributes.get("_FillValue"))
    for name in ("_FillValue", "missing_value"):
        if name in attributes and not np.size(attributes[name]):
            raise ValueError(f"{name} is an empty array")
        for value in np.ravel(attributes.get(name, ())):
            if integer is not None and value == raw:
                # as in xarray, unsigned numbers have the same bytes, in the byte order of the file,
                # and become a Python number, which is compared in the dtype of the values
                if integer.kind == "u":
                    value = np.array(value).astype(stored).view(integer).item()
                else:
                    value = np.array(value).astype(integer)[()]
            if value == value and value not in values:
                values.append(value)
    return tuple(sorted(values))


# ---------------------------------------------------------------------- cf time

NUMPY_UNITS = {
    "days": "D",
    "hours": "h",
    "minutes": "m",
    "seconds": "s",
    "milliseconds": "ms",
    "microseconds": "us",
    "nanoseconds": "ns",
}
"""NumPy's names for the CF units of durations."""


@dataclass(frozen=True)
class TimePacking:
    """Decodes stored numbers to dates or durations.

    Parameters
    ----------
    dtype : numpy dtype
        datetime64 or timedelta64 in the resolution that xarray chose for the variable.
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
        """Return the CF units of the stored numbers."""
        return self.units

    @classmethod
    def from_attributes(cls, attributes: Mapping[str, Any], dtype: np.dtype[Any]) -> TimePacking:
        """Build the packing from the attributes that decoding used."""
        key = tuple(sorted((name, repr(value)) for name, value in attributes.items()))
        calendar = str(attributes.get("calendar", ""))
        return cls(dtype, str(attributes["units"]), calendar, attributes, key)

    def decode(self, stored: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the dates or durations of ``stored``."""
        dates = self.decode_linearly(stored)
        return self.decode_by_xarray(stored) if dates is None else dates

    def decode_linearly(
        self, stored: npt.NDArray[Any], in_place: bool = False
    ) -> npt.NDArray[Any] | None:
        """Return the dates if the units have a fixed length, or None if xarray must decode them.

        With ``in_place``, dates may overwrite the numbers, to save memory.
        """
        units = self._choose_linear_units(stored)
        if units is None:
            return None
        overwrites = in_place and stored.dtype.itemsize == 8 and stored.flags.c_contiguous
        dates = stored.view(units.dtype) if overwrites else np.empty(stored.shape, units.dtype)
        units.compute_dates(stored, dates)
        return dates

    def _choose_linear_units(self, stored: npt.NDArray[Any]) -> _LinearUnits | None:
        """Return units that decode ``stored`` exactly, or None if xarray must decode it."""
        if not self._is_unpacked(stored):
            return None
        units = _find_linear_units(self.units, self.calendar, self.dtype.str)
        return units if units is not None and units.is_exact_for(stored) else None

    def encode_linearly(
        self, dates: npt.NDArray[Any], dtype: np.dtype[Any]
    ) -> npt.NDArray[Any] | None:
        """Return the numbers of dates, or None if xarray must encode them.

        Linear encoding needs dates of the packing's dtype that are whole numbers in units of fixed
        length.
        """
        units = _find_linear_units(self.units, self.calendar, self.dtype.str)
        if units is None or dates.dtype != self.dtype or dtype.kind not in "if":
            return None
        numbers = units.compute_numbers(dates, dtype)
        is_exact = numbers is not None and self._choose_linear_units(numbers) is not None
        return numbers if is_exact else None

    def _is_unpacked(self, stored: npt.NDArray[Any]) -> bool:
        """Return whether the numbers need neither masking nor scaling before linear decoding."""
        others = self.attributes.keys() - {*UNITS_OF_DATES}
        only_masks = others <= {"_FillValue", "missing_value"} and stored.dtype.kind == "f"
        masks = [np.asarray(self.attributes[name]) for name in others] if only_masks else []
        # NaN is left to xarray
        return not others or (
            only_masks and all(mask.dtype.kind == "f" and np.isnan(mask).all() for mask in masks)
        )

    def decode_by_xarray(self, stored: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Decode dates or durations with xarray, which is slow."""
        unit: Any = np.datetime_data(self.dtype)[0]
        # with fastpath, and without characters, xarray does not import dask.array
        variable = xr.Variable(("element",), stored.ravel(), dict(self.attributes), fastpath=True)
        try:
            decoded = xr.conventions.decode_cf_variable(
                "time",
                variable,
                concat_characters=False,
                decode_times=xr.coders.CFDatetimeCoder(time_unit=unit),
                decode_timedelta=xr.coders.CFTimedeltaCoder(time_unit=unit, decode_via_units=True),
            )
            # xarray decodes lazily; so far it has only decoded the first and last value
            xarray_values = decoded.values
        except (ValueError, OverflowError) as error:
            raise CodecError(f"{self.units!r}: {error}") from error
        # if only cftime can represent some date, the values are objects, even where the dtype that
        # was inferred from the first and last date is not
        if {decoded.dtype.kind, xarray_values.dtype.kind} != {self.dtype.kind}:
            raise CodecError(
                f"{self.units!r}: decodes to {xarray_values.dtype}, not to {self.dtype}"
            )
        values: npt.NDArray[Any] = xarray_values.astype(self.dtype)
        if xarray_values.dtype != self.dtype and not _is_same(values, xarray_values):
            raise CodecError(
                f"{self.units!r}: some values are finer than {self.dtype}, the dtype that xarray "
                f"chose; load the variable with loadable_variables"
            )
        return values.reshape(stored.shape)

    def decode_into(self, out: npt.NDArray[Any], stored: npt.NDArray[Any]) -> None:
        """Write the dates or durations of ``stored`` into ``out``, of the dtype of the packing.

        ``out`` may be the memory of ``stored``.
        """
        if (units := self._choose_linear_units(stored)) is not None:
            units.compute_dates(stored, out)
        else:
            out[...] = self.decode_by_xarray(stored)


Decoding = Packing | TimePacking
"""The last step of a codec pipeline: from stored numbers to values."""


def are_date_units(units: Any) -> bool:
    """Return whether a units attribute has a reference date, as in "days since 2000-01-01"."""
    return isinstance(units, str) and DATE_UNITS.match(units) is not None


CALENDARS = ("", "standard", "gregorian", "proleptic_gregorian")
"""Calendars in which every unit has the same length, for dates after 1582."""
MIN_DATE, MAX_DATE = np.datetime64("1700-01-01"), np.datetime64("2200-01-01")
"""Dates that every resolution can represent, and that are equal in these calendars."""
SAMPLE_DATE = "2000-01-01"
"""The reference date for measuring the length of units with xarray."""
SIMPLE_UNITS = re.compile(
    r"(days|hours|minutes|seconds) since "
    r"((?:1[789]|20|21)\d\d-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])"
    r"(?: (?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d)?)"
)
"""Unambiguous units with a reference date between `MIN_DATE` and `MAX_DATE`."""
DATES_AT_ONCE = 2**16
"""Number of dates that are converted, checked or compared at a time, to save memory."""
MAX_EXACT = 2**53
"""Integers up to this limit are exact as 8-byte floats."""


def iterate_date_blocks(size: int) -> Iterator[slice]:
    """Yield the blocks of dates that are converted, checked or compared at a time."""
    return (slice(n, n + DATES_AT_ONCE) for n in range(0, size, DATES_AT_ONCE))


class _LinearUnits(NamedTuple):
    """The linear conversion of numbers in one unit, such as days, to dates.

    Parameters
    ----------
    dtype : str
        datetime64 in the resolution of the dates.
    begin, step : int
        The date of 0, and the length of the unit, in that resolution.
    low, high : int
        The range of numbers for which this is valid.
    max_exact : int
        The highest float for which xarray computes without rounding.
    """

    dtype: str
    begin: int
    step: int
    low: int
    high: int
    max_exact: int

    def is_exact_for(self, stored: npt.NDArray[Any]) -> bool:
        """Return whether `compute_dates` gives exactly the dates of xarray for ``stored``."""
        if not stored.size or stored.dtype.kind not in "iuf":
            return False
        # by blocks, which stay in the processor's cache
        flat = stored.reshape(-1)
        return all(self._is_exact_block(flat[block]) for block in iterate_date_blocks(flat.size))

    def _is_exact_block(self, numbers: npt.NDArray[Any]) -> bool:
        low, high = numbers.min(), numbers.max()
        # false for NaN
        if not (self.low <= low and high <= self.high):
            return False
        if numbers.dtype.kind in "iu":
            return True
        if numbers.dtype.itemsize != 8 or max(-low, high) > self.max_exact:
            return False
        return bool((numbers == np.rint(numbers)).all())

    def compute_dates(self, stored: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
        """Write the dates of ``stored`` into ``out``, which may be the memory of ``stored``."""
        dates = out.view(np.int64)
        blocks: Iterable[Any] = (...,)
        if stored.flags.c_contiguous and out.flags.c_contiguous:
            stored, dates = stored.reshape(-1), dates.reshape(-1)
            blocks = iterate_date_blocks(dates.size)
        for block in blocks:
            part = dates[block]
            part[...] = stored[block]
            part *= self.step
            part += self.begin

    def compute_numbers(
        self, dates: npt.NDArray[Any], dtype: np.dtype[Any]
    ) -> npt.NDArray[Any] | None:
        """Convert dates along one axis to whole numbers, or return None if some are not whole."""
        numbers = np.empty(dates.shape, dtype)
        for block in iterate_date_blocks(len(dates)):
            quotients, rest = np.divmod(dates[block].view(np.int64) - self.begin, self.step)
            if rest.any():
                return None
            numbers[block] = quotients
        return numbers


@lru_cache(maxsize=256)
def _find_linear_units(units: str, calendar: str, dtype: str) -> _LinearUnits | None:
    """Return the conversion for units, or None if xarray must decode the numbers."""
    if np.dtype(dtype).kind != "M" or calendar not in CALENDARS:
        return None
    if (
        match := SIMPLE_UNITS.fullmatch(units)
    ) is None or units == f"{match[1]} since {SAMPLE_DATE}":
        return _measure_units(units, calendar, dtype)
    # measuring is slow, and many files have their own reference date
    sample_units = _find_linear_units(f"{match[1]} since {SAMPLE_DATE}", calendar, dtype)
    if sample_units is None:
        return None
    try:
        begin = int(np.datetime64(match[2].replace(" ", "T")).astype(dtype).astype(np.int64))
    except ValueError:
        # the date does not exist
        return None
    ends = (
        sample_units.begin + sample_units.step * count
        for count in (sample_units.low, sample_units.high)
    )
    low, high = ((end - begin) // sample_units.step for end in ends)
    return sample_units._replace(begin=begin, low=low + 1, high=high)


def _measure_units(units: str, calendar: str, dtype: str) -> _LinearUnits | None:
    """Return the conversion for units, measured from a few numbers that xarray decodes."""
    attributes = {"units": units, **({"calendar": calendar} if calendar else {})}
    packing = TimePacking(np.dtype(dtype), units, calendar, attributes)
    try:
        begin, after = packing.decode_by_xarray(np.array([0, 1])).astype(np.int64).tolist()
        ends = np.array([MIN_DATE, MAX_DATE], dtype).astype(np.int64).tolist()
        if not ends[0] <= begin < after <= ends[1]:
            return None
        step = after - begin
        low, high = -((begin - ends[0]) // step), (ends[1] - begin) // step
        decoded_pair = packing.decode_by_xarray(np.array([low, high])).astype(np.int64).tolist()
    except (CodecError, *LIBRARY_ERRORS):
        return None
    if decoded_pair != [begin + step * low, begin + step * high]:
        return None
    # xarray multiplies floats by nanoseconds; powers of two lose no digits
    resolution: Any = np.datetime_data(dtype)
    factor = step * int(np.timedelta64(1, resolution) // np.timedelta64(1, "ns"))
    factor //= factor & -factor
    return _LinearUnits(dtype, begin, step, low, high, MAX_EXACT // factor)


def may_be_finer(attributes: Mapping[str, Any], stored: np.dtype[Any]) -> bool:
    """Return whether durations may need a finer resolution than xarray's attribute ``dtype``."""
    declared = str(attributes.get("dtype", ""))
    if not declared.startswith("timedelta64["):
        return False
    unit: Any = np.datetime_data(np.dtype(declared))[0]
    stored_unit: Any = NUMPY_UNITS.get(str(attributes.get("units")), "ns")
    is_finer = bool(np.timedelta64(1, stored_unit) < np.timedelta64(1, unit))
    return is_finer or (stored.kind == "f" and unit != "ns")


def _is_same(values: npt.NDArray[Any], others: npt.NDArray[Any]) -> bool:
    return bool(((values == others) | (np.isnat(values) & np.isnat(others))).all())
