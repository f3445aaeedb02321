"""The labels of axes: coordinate values as text, and the positions at which an axis has ticks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import xarray as xr

STEPS = (1.0, 2.0, 5.0)
"""The distances of ticks, times a power of ten."""
STEPS_OF_DEGREES = (1, 2, 5, 10, 15, 30, 45, 60, 90)
STEPS_OF_TIME = (
    *(("s", n) for n in (1, 5, 15, 30)),
    *(("m", n) for n in (1, 5, 15, 30)),
    *(("h", n) for n in (1, 3, 6, 12)),
    *(("D", n) for n in (1, 2, 5, 10)),
    *(("M", n) for n in (1, 3, 6)),
    *(("Y", n) for n in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)),
)
"""The distances of ticks of dates, in units of numpy."""
HEMISPHERES = {"degrees_north": "SN", "degrees_east": "WE"}
"""The letters of negative and positive degrees, by the units of CF (sections 4.1 and 4.2)."""
SPELLINGS = {
    f"degree{s}{under}{side}": f"degrees_{side_long}"
    for side, side_long in (("north", "north"), ("N", "north"), ("east", "east"), ("E", "east"))
    for s in ("s", "")
    for under in ("_", "")
}


class Tick(NamedTuple):
    """A label, and where it is: the middle of the first cell is 0, that of the second 1."""

    at: float
    label: str


class Axis(NamedTuple):
    """The coordinate of a dimension, or None if it has none; all values are in memory."""

    dim: str
    values: npt.NDArray[Any] | None
    units: str = ""
    title: str = ""
    points_down: bool = False

    @classmethod
    def of(cls, array: xr.DataArray, dim: str) -> Axis:
        """Return the axis of a dimension of a variable."""
        if dim not in array.coords or array.coords[dim].dims != (dim,):
            return cls(dim, None)
        coordinate = array.coords[dim].variable
        units = str(coordinate.attrs.get("units", ""))
        title = str(coordinate.attrs.get("long_name", "") or dim)
        down = str(coordinate.attrs.get("positive", "")).lower() == "down"
        return cls(
            dim, coordinate.to_index_variable().values, SPELLINGS.get(units, units), title, down
        )

    @property
    def rises(self) -> bool | None:
        """Whether numbers or dates rise along the axis; None if they do neither."""
        if self.values is None or self.values.dtype.kind not in "iufmM" or self.values.size < 2:
            return None
        first, last = self.values[0], self.values[-1]
        # neither holds where an end is missing
        return bool(first < last) if first < last or first > last else None

    @property
    def is_dated(self) -> bool:
        """Whether the coordinate are dates."""
        return self.values is not None and self.values.dtype.kind == "M"

    def format(self, index: int) -> str:
        """Return the label of a position."""
        if self.values is None:
            return str(index)
        return format_coordinate(self.values[index], self.units)

    def format_fully(self, index: int) -> str:
        """Return the label of a position with its units."""
        label = self.format(index)
        is_plain = self.values is not None and self.values.dtype.kind in "iuf"
        return (
            f"{label} {self.units}" if is_plain and self.units not in ("", *HEMISPHERES) else label
        )

    def find_places(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.float64] | None:
        """Return where positions lie along the coordinate, from 0 to 1; None if it does not rise.

        Examples
        --------
        >>> Axis("x", np.array([0.0, 1.0, 4.0])).find_places(np.arange(3)).tolist()
        [0.0, 0.25, 1.0]
        """
        if self.values is None or positions.size < 2 or not self.rises:
            return None
        shown = self.values[positions]
        if not _is_monotonic(shown):
            return None
        if shown.dtype.kind in "mM":
            # nanoseconds of three centuries are more than an integer holds
            shown = shown.astype(f"{shown.dtype.kind}8[us]").astype(np.int64)
        passed = shown.astype(np.float64) - float(shown[0])
        found: npt.NDArray[np.float64] = passed / passed[-1]
        return found if np.isfinite(found).all() and (np.diff(found) >= 0).all() else None

    def list_ticks(self, positions: npt.NDArray[np.int64], most: int) -> list[Tick]:
        """Return ticks for cells that show some positions.

        Examples
        --------
        >>> axis = Axis("lat", np.linspace(-90, 90, 181), "degrees_north")
        >>> [(tick.at, tick.label) for tick in axis.list_ticks(np.arange(181), 4)]
        [(30.0, '60°S'), (90.0, '0°'), (150.0, '60°N')]
        """
        if (
            positions.size <= most
            or self.values is None
            or not _is_monotonic(self.values[positions])
        ):
            return self._list_positions(positions, most)
        shown = self.values[positions]
        numbers = shown.astype("M8[s]" if shown.dtype.kind == "M" else np.float64)
        if shown.dtype.kind == "M":
            chosen = _choose_dates(numbers, most)
        elif shown.dtype.kind == "m":
            return self._list_positions(positions, most)
        else:
            chosen = _choose_numbers(numbers, most, self.units in HEMISPHERES)
        if chosen is None or chosen.size < 2:
            return self._list_positions(positions, most)
        places = np.arange(positions.size, dtype=np.float64)
        order = slice(None, None, 1 if numbers[0] <= numbers[-1] else -1)
        at = np.interp(chosen.astype(np.float64), numbers[order].astype(np.float64), places[order])
        # enough digits to tell ticks from each other
        digits = count_digits(chosen) if shown.dtype.kind != "M" else DIGITS
        labels = [format_coordinate(one, self.units, digits) for one in chosen]
        return [Tick(float(a), label) for a, label in zip(at, labels, strict=True)]

    def _list_positions(self, positions: npt.NDArray[np.int64], most: int) -> list[Tick]:
        step = _round_up(positions.size / most, STEPS) if positions.size > most else 1
        places = range(0, positions.size, max(int(step), 1))
        return [Tick(float(place), self.format(int(positions[place]))) for place in places]


def _is_monotonic(values: npt.NDArray[Any]) -> bool:
    kind = values.dtype.kind
    if kind not in "iufmM" or (kind in "mM" and np.isnat(values).any()):
        return False
    later, earlier = values[1:], values[:-1]
    return bool((later > earlier).all() or (later < earlier).all())


def _round_up(number: float, steps: tuple[float, ...]) -> float:
    power = 10.0 ** np.floor(np.log10(number))
    return float(next((s * power for s in steps if s * power >= number * (1 - 1e-9)), 10 * power))


def _choose_numbers(
    numbers: npt.NDArray[Any], most: int, are_degrees: bool
) -> npt.NDArray[np.float64] | None:
    low, high = float(np.min(numbers)), float(np.max(numbers))
    least = (high - low) / max(most - 1, 1)
    if not np.isfinite(least) or least <= 0:
        return None
    step = float(next((s for s in STEPS_OF_DEGREES if s >= least), 90)) if are_degrees else 0.0
    if not are_degrees or least < 0.5:
        step = _round_up(least, STEPS)
    first, last = np.ceil(low / step - 1e-9), np.floor(high / step + 1e-9)
    found: npt.NDArray[np.float64] = np.arange(first, last + 1) * step
    return found


def _choose_dates(dates: npt.NDArray[Any], most: int) -> npt.NDArray[Any] | None:
    low, high = dates.min(), dates.max()
    for unit, step in STEPS_OF_TIME:
        first, last = (int(one.astype(f"M8[{unit}]").astype(np.int64)) for one in (low, high))
        # numpy counts from 1970
        origin = 1970 if unit == "Y" else 0
        starts = range(-(-(first + origin) // step) * step - origin, last + 1, step)
        if len(starts) > 4 * most:
            continue
        if unit == "D" and step > 1:
            # days of a month, not of an epoch
            found = np.array([*_iterate_days(low, high, step)], dtype="M8[s]")
        else:
            found = np.array(starts, dtype=np.int64).astype(f"M8[{unit}]").astype("M8[s]")
        inside: npt.NDArray[Any] = found[(found >= low) & (found <= high)]
        if inside.size <= most:
            return inside
    return None


def _iterate_days(low: Any, high: Any, step: int) -> Iterator[Any]:
    for month in np.arange(low.astype("M8[M]"), high.astype("M8[M]") + 1):
        days = month.astype("M8[D]") + np.arange(0, 30 - step / 2, step, dtype=np.int64)
        yield from days[days.astype("M8[M]") == month].astype("M8[s]")


DIGITS = 6
"""Digits of a number whose others do not matter."""


def count_digits(numbers: npt.NDArray[Any]) -> int:
    """Return how many digits tell numbers at equal distances from each other.

    Examples
    --------
    >>> count_digits(np.array([0.0, 0.5])), count_digits(1e9 + np.array([0.0, 0.001, 0.002]))
    (6, 15)
    """
    step = float(np.abs(np.diff(numbers)).min())
    most = float(np.abs(numbers).max())
    return max(DIGITS, min(int(np.ceil(np.log10(most / step))) + 2, 17)) if most > step else DIGITS


def format_coordinate(value: Any, units: str = "", digits: int = DIGITS) -> str:
    """Return a coordinate value as a label, degrees with their hemisphere.

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


def format_short(number: float, digits: int = DIGITS) -> str:
    """Return a number with some digits, or all of a whole number.

    Examples
    --------
    >>> [format_short(one) for one in (-0.0, 0.1 + 0.2, 2_650_000.0, 1e20, float("nan"))]
    ['0', '0.3', '2650000', '1e+20', 'missing']
    """
    if np.isnan(number):
        return "missing"
    if abs(number) < 10 ** max(digits, 9) and number == int(number):
        return str(int(number))
    return f"{number:.{digits}g}"


def format_tip(value: Any) -> str:
    """Return a value as text for a quick look: 64-bit numbers with twelve digits.

    Examples
    --------
    >>> [format_tip(one) for one in (np.float32(0.1), 0.1 + 0.2, np.int64(2**53 + 1))]
    ['0.1', '0.3', '9007199254740993']
    """
    if isinstance(value, float | np.float64):
        return format_short(float(value), 12)
    return format_value(value).removesuffix(".0")


def format_value(value: Any) -> str:
    """Return one value as text: numbers with all their digits, dates without empty parts.

    Examples
    --------
    >>> [format_value(one) for one in (np.float32(0.1), np.True_, b"ab", np.datetime64("NaT"))]
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
    """Return all of a duration: days, and what is left as hours or as a clock says it.

    >>> [_format_duration(np.timedelta64(n, "s")) for n in (7 * 3600, 86400, 100_001, -1)]
    ['7 hours', '1 day', '1 day 03:46:41', '-00:00:01']
    """
    total = int(value.astype("m8[us]").astype(np.int64))
    days, left = divmod(abs(total), 86_400_000_000)
    sign = "-" if total < 0 else ""
    hours, rest = divmod(left, 3_600_000_000)
    count_of_days = f"{days} day{'s' if days != 1 else ''}"
    if not left and days:
        return f"{sign}{count_of_days}"
    if not rest and not days:
        return f"{sign}{hours} hour{'s' if hours != 1 else ''}"
    seconds = f"{rest % 60_000_000 / 1e6:09.6f}".rstrip("0").rstrip(".")
    clock = f"{hours:02}:{rest // 60_000_000:02}:{seconds}"
    return f"{sign}{count_of_days} {clock}" if days else f"{sign}{clock}"
