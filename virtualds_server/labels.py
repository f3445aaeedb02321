"""Axes of pictures: their ticks, and coordinate values as text."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import xarray as xr

TICK_STEPS = (1.0, 2.0, 5.0)
"""Distances between ticks, to be multiplied by a power of ten."""
DEGREE_TICK_STEPS = (1, 2, 5, 10, 15, 30, 45, 60, 90)
TIME_TICK_STEPS = (
    *(("s", n) for n in (1, 5, 15, 30)),
    *(("m", n) for n in (1, 5, 15, 30)),
    *(("h", n) for n in (1, 3, 6, 12)),
    *(("D", n) for n in (1, 2, 5, 10)),
    *(("M", n) for n in (1, 3, 6)),
    *(("Y", n) for n in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)),
)
"""Distances between ticks of dates, as numpy's units and counts."""
HEMISPHERES = {"degrees_north": "SN", "degrees_east": "WE"}
"""The letters of negative and positive degrees by CF units (sections 4.1 and 4.2)."""
CF_DEGREE_UNITS = {
    f"degree{plural}{separator}{suffix}": f"degrees_{direction}"
    for suffix, direction in (("north", "north"), ("N", "north"), ("east", "east"), ("E", "east"))
    for plural in ("s", "")
    for separator in ("_", "")
}
"""The keys of `HEMISPHERES` by spelling, including all spellings of CF."""


class Tick(NamedTuple):
    """A tick of an axis; ``at`` is a cell index, n in the middle of the n-th cell."""

    at: float
    label: str


class Axis(NamedTuple):
    """A dimension and the values of its coordinate in memory, or None if it has no coordinate."""

    dim: str
    values: npt.NDArray[Any] | None
    units: str = ""
    title: str = ""
    is_positive_down: bool = False

    @classmethod
    def of(cls, array: xr.DataArray, dim: str) -> Axis:
        """Return the axis of a dimension of a variable."""
        if dim not in array.coords or array.coords[dim].dims != (dim,):
            return cls(dim, None)
        coordinate = array.coords[dim].variable
        units = str(coordinate.attrs.get("units", ""))
        title = str(coordinate.attrs.get("long_name", "") or dim)
        values = coordinate.to_index_variable().values
        is_positive_down = str(coordinate.attrs.get("positive", "")).lower() == "down"
        return cls(dim, values, CF_DEGREE_UNITS.get(units, units), title, is_positive_down)

    @property
    def is_increasing(self) -> bool | None:
        """Whether the last value is greater than the first; None if they cannot be ordered."""
        if self.values is None or self.values.dtype.kind not in "iufmM" or self.values.size < 2:
            return None
        first, last = self.values[0], self.values[-1]
        # both comparisons are false if an end is NaN or NaT
        return bool(first < last) if first < last or first > last else None

    @property
    def has_dates(self) -> bool:
        """Whether the values of the coordinate are dates."""
        return self.values is not None and self.values.dtype.kind == "M"

    def format(self, index: int) -> str:
        """Return the label of a position."""
        if self.values is None:
            return str(index)
        return format_coordinate(self.values[index], self.units)

    def format_with_units(self, index: int) -> str:
        """Return the label of a position with its units."""
        label = self.format(index)
        is_plain = self.values is not None and self.values.dtype.kind in "iuf"
        return (
            f"{label} {self.units}" if is_plain and self.units not in ("", *HEMISPHERES) else label
        )

    def find_relative_positions(
        self, positions: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float64] | None:
        """Return the coordinate at some positions, scaled to 0 to 1; None if it does not increase.

        Examples
        --------
        >>> Axis("x", np.array([0.0, 1.0, 4.0])).find_relative_positions(np.arange(3)).tolist()
        [0.0, 0.25, 1.0]
        """
        if self.values is None or positions.size < 2 or not self.is_increasing:
            return None
        values = self.values[positions]
        if not _is_monotonic(values):
            return None
        if values.dtype.kind in "mM":
            # differences of nanoseconds overflow after three centuries
            values = values.astype(f"{values.dtype.kind}8[us]").astype(np.int64)
        distances = values.astype(np.float64) - float(values[0])
        scaled: npt.NDArray[np.float64] = distances / distances[-1]
        return scaled if np.isfinite(scaled).all() and (np.diff(scaled) >= 0).all() else None

    def choose_ticks(self, positions: npt.NDArray[np.int64], max_count: int) -> list[Tick]:
        """Return up to about ``max_count`` ticks for the cells of some positions.

        Examples
        --------
        >>> axis = Axis("lat", np.linspace(-90, 90, 181), "degrees_north")
        >>> [(tick.at, tick.label) for tick in axis.choose_ticks(np.arange(181), 4)]
        [(30.0, '60°S'), (90.0, '0°'), (150.0, '60°N')]
        """
        if (
            positions.size <= max_count
            or self.values is None
            or not _is_monotonic(self.values[positions])
        ):
            return self._choose_position_ticks(positions, max_count)
        values = self.values[positions]
        kind = values.dtype.kind
        numbers = values.astype("M8[s]" if kind == "M" else np.float64)
        if kind == "M":
            chosen = _choose_date_ticks(numbers, max_count)
        elif kind == "m":
            chosen = None
        else:
            chosen = _choose_number_ticks(numbers, max_count, self.units in HEMISPHERES)
        if chosen is None or chosen.size < 2:
            return self._choose_position_ticks(positions, max_count)
        cells = np.arange(positions.size, dtype=np.float64)
        order = slice(None, None, 1 if numbers[0] <= numbers[-1] else -1)
        at = np.interp(chosen.astype(np.float64), numbers[order].astype(np.float64), cells[order])
        # enough digits to distinguish the ticks
        digits = count_digits(chosen) if kind != "M" else MIN_DIGITS
        labels = [format_coordinate(value, self.units, digits) for value in chosen]
        return [Tick(float(a), label) for a, label in zip(at, labels, strict=True)]

    def _choose_position_ticks(
        self, positions: npt.NDArray[np.int64], max_count: int
    ) -> list[Tick]:
        """Return ticks at every n-th cell, with the labels of their positions."""
        step = 1.0
        if positions.size > max_count:
            step = _round_up_to_step(positions.size / max_count)
        cells = range(0, positions.size, max(int(step), 1))
        return [Tick(float(cell), self.format(int(positions[cell]))) for cell in cells]


def _is_monotonic(values: npt.NDArray[Any]) -> bool:
    kind = values.dtype.kind
    if kind not in "iufmM" or (kind in "mM" and np.isnat(values).any()):
        return False
    later, earlier = values[1:], values[:-1]
    return bool((later > earlier).all() or (later < earlier).all())


def _round_up_to_step(number: float) -> float:
    power = 10.0 ** np.floor(np.log10(number))
    steps = (step * power for step in TICK_STEPS if step * power >= number * (1 - 1e-9))
    return float(next(steps, 10 * power))


def _choose_number_ticks(
    numbers: npt.NDArray[Any], max_count: int, are_degrees: bool
) -> npt.NDArray[np.float64] | None:
    low, high = float(np.min(numbers)), float(np.max(numbers))
    min_step = (high - low) / max(max_count - 1, 1)
    if not np.isfinite(min_step) or min_step <= 0:
        return None
    if are_degrees and min_step >= 0.5:
        step = float(next((s for s in DEGREE_TICK_STEPS if s >= min_step), 90))
    else:
        step = _round_up_to_step(min_step)
    first, last = np.ceil(low / step - 1e-9), np.floor(high / step + 1e-9)
    ticks: npt.NDArray[np.float64] = np.arange(first, last + 1) * step
    return ticks


def _choose_date_ticks(dates: npt.NDArray[Any], max_count: int) -> npt.NDArray[Any] | None:
    low, high = dates.min(), dates.max()
    for unit, step in TIME_TICK_STEPS:
        first, last = (int(date.astype(f"M8[{unit}]").astype(np.int64)) for date in (low, high))
        # numpy counts years from 1970; ticks are at multiples of the step from year 0
        origin = 1970 if unit == "Y" else 0
        starts = range(-(-(first + origin) // step) * step - origin, last + 1, step)
        if len(starts) > 4 * max_count:
            continue
        if unit == "D" and step > 1:
            # count days within each month, not from 1970
            months = np.arange(low.astype("M8[M]"), high.astype("M8[M]") + 1)[:, np.newaxis]
            days = months.astype("M8[D]") + np.arange(0, 30 - step / 2, step, dtype=np.int64)
            ticks = days[days.astype("M8[M]") == months].astype("M8[s]")
        else:
            ticks = np.array(starts, dtype=np.int64).astype(f"M8[{unit}]").astype("M8[s]")
        inside: npt.NDArray[Any] = ticks[(ticks >= low) & (ticks <= high)]
        if inside.size <= max_count:
            return inside
    return None


MIN_DIGITS = 6
"""Significant digits of a label, unless neighbouring ticks need more."""


def count_digits(numbers: npt.NDArray[Any]) -> int:
    """Return how many significant digits distinguish equidistant numbers.

    Examples
    --------
    >>> count_digits(np.array([0.0, 0.5])), count_digits(1e9 + np.array([0.0, 0.001, 0.002]))
    (6, 15)
    """
    step = float(np.abs(np.diff(numbers)).min())
    largest = float(np.abs(numbers).max())
    if largest <= step:
        return MIN_DIGITS
    return max(MIN_DIGITS, min(int(np.ceil(np.log10(largest / step))) + 2, 17))


def format_coordinate(value: Any, units: str = "", digits: int = MIN_DIGITS) -> str:
    """Return a coordinate value as a label. Degrees north and east end with a hemisphere.

    Examples
    --------
    >>> format_coordinate(np.float32(-30.5), "degrees_north"), format_coordinate(250.0, "hPa")
    ('30.5°S', '250')
    >>> format_coordinate(np.datetime64("2001-01-01T06:00"))
    '2001-01-01 06:00'
    """
    if units in HEMISPHERES and isinstance(value, float | int | np.floating | np.integer):
        number = float(value)
        if units == "degrees_east" and 180 < number < 360:
            number -= 360
        side = HEMISPHERES[units][number > 0] if number and abs(number) != 180 else ""
        return f"{format_short(abs(number), digits)}°{side}"
    if isinstance(value, float | np.floating):
        return format_short(float(value), digits)
    return format_value(value)


def format_short(number: float, digits: int = MIN_DIGITS) -> str:
    """Return a number with ``digits`` significant digits, or all digits of a whole number.

    Examples
    --------
    >>> [format_short(x) for x in (-0.0, 0.1 + 0.2, 2_650_000.0, 1e20, float("nan"))]
    ['0', '0.3', '2650000', '1e+20', 'missing']
    """
    if np.isnan(number):
        return "missing"
    if abs(number) < 10 ** max(digits, 9) and number == int(number):
        return str(int(number))
    return f"{number:.{digits}g}"


def format_rounded(value: Any) -> str:
    """Return a value as text, 64-bit floats with twelve significant digits.

    Examples
    --------
    >>> [format_rounded(x) for x in (np.float32(0.1), 0.1 + 0.2, np.int64(2**53 + 1))]
    ['0.1', '0.3', '9007199254740993']
    """
    if isinstance(value, float | np.float64):
        return format_short(float(value), 12)
    return format_value(value).removesuffix(".0")


def format_value(value: Any) -> str:
    """Return a value as text: numbers with all digits, dates without a zero time of day.

    Examples
    --------
    >>> [format_value(x) for x in (np.float32(0.1), np.True_, b"ab", np.datetime64("NaT"))]
    ['0.1', 'True', 'ab', 'missing']
    """
    if isinstance(value, np.datetime64):
        return "missing" if np.isnat(value) else _format_date(str(value))
    if isinstance(value, np.timedelta64):
        return "missing" if np.isnat(value) else _format_duration(value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if hasattr(value, "isoformat"):
        return _format_date(str(value.isoformat()))
    return "missing" if isinstance(value, float | np.floating) and np.isnan(value) else str(value)


def _format_date(text: str) -> str:
    day, separator, clock = text.partition("T")
    clock = clock.partition(".")[0] if not clock.partition(".")[2].strip("0") else clock.rstrip("0")
    clock = clock.removesuffix(":00") if clock.count(":") == 2 else clock
    return day if not separator or clock == "00:00" else f"{day} {clock}"


def _format_duration(value: np.timedelta64) -> str:
    """Return a duration in days, in hours, or in days and ``hh:mm:ss``.

    >>> [_format_duration(np.timedelta64(n, "s")) for n in (7 * 3600, 86400, 100_001, -1)]
    ['7 hours', '1 day', '1 day 03:46:41', '-00:00:01']
    """
    total = int(value.astype("m8[us]").astype(np.int64))
    days, microseconds = divmod(abs(total), 86_400_000_000)
    sign = "-" if total < 0 else ""
    days_text = f"{days} day{'s' if days != 1 else ''}"
    if not microseconds and days:
        return f"{sign}{days_text}"
    hours, microseconds = divmod(microseconds, 3_600_000_000)
    if not microseconds and not days:
        return f"{sign}{hours} hour{'s' if hours != 1 else ''}"
    minutes, microseconds = divmod(microseconds, 60_000_000)
    seconds = f"{microseconds / 1e6:09.6f}".rstrip("0").rstrip(".")
    clock = f"{hours:02}:{minutes:02}:{seconds}"
    return f"{sign}{days_text} {clock}" if days else f"{sign}{clock}"
