"""The cells of an axis: the dates, numbers or indexes that each position of a dimension covers."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import xarray as xr

from virtualds.datasets.lazy import get_virtual_array, is_lazy
from virtualds.datasets.structure import GAP_FACTOR, find_gaps_among, text_of

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Span = tuple[float, float]
"""An interval of an axis: its start and its end."""

Kind = Literal["positions", "numbers", "hours", "dates"]
DATE_UNITS = "days since 1970-01-01"
"""The units of date axes (CF conventions, section 4.4), in the calendar of the dates."""
NUMPY_CALENDAR = "proleptic_gregorian"


class NumericCoordinate(NamedTuple):
    """The values of a coordinate as numbers, and the kind of axis they lie on."""

    kind: Kind
    numbers: Floats
    calendar: str = NUMPY_CALENDAR


@dataclass(frozen=True, eq=False)
class AxisCells:
    """For each position along a dimension, the interval of the coordinate that it covers.

    A cell begins at the coordinate value of its position and ends at the next value. Where dates
    are missing in an otherwise regular axis, it ends after the usual step. ``low`` and ``high`` are
    the ends of the cells, none of which ends before it begins: days since 1970-01-01 in a
    ``calendar``, lead times in hours, other numbers, or positions. ``missing`` are the gaps in a
    regular axis of dates; ``doubled`` are the intervals that the axis covers more than once.

    >>> cells = AxisCells.of(xr.Dataset(coords={"x": [0.0, 0.5, 1.0]}), "x")
    >>> cells.kind, cells.find_span(1, 3)
    ('numbers', (0.5, 1.5))
    """

    kind: Kind
    low: Floats
    high: Floats
    missing: tuple[Span, ...] = ()
    doubled: tuple[Span, ...] = ()
    calendar: str = NUMPY_CALENDAR

    def __post_init__(self) -> None:
        if not (self.low <= self.high).all():
            raise ValueError("AxisCells: a cell ends before it begins; give low and high in order")

    @classmethod
    def of(cls, dataset: xr.Dataset, dim: Hashable, borders: Ints | None = None) -> AxisCells:
        """Return the cells of a dimension.

        If the coordinate is not loaded or has neither numbers nor dates, or if its values are not
        strictly monotonic between ``borders``, the cells are the positions themselves.
        """
        coordinate = _find_coordinate(dataset, dim)
        if coordinate is not None and (cells := _make_cells(cls, coordinate, borders)) is not None:
            return cells
        return cls.of_positions(dataset.sizes[dim])

    @classmethod
    def of_positions(cls, size: int) -> AxisCells:
        """Return the cells of an axis without a coordinate."""
        positions = np.arange(size, dtype=np.float64)
        return cls("positions", positions, positions + 1)

    @property
    def _breaks(self) -> Ints:
        """The positions whose cell is not adjacent to the previous cell."""
        # values may rise or fall on either side of a reversal
        distances = np.minimum(
            np.abs(self.low[1:] - self.high[:-1]), np.abs(self.low[:-1] - self.high[1:])
        )
        # a gap is at least half a step wide; rounding is much less
        is_far = distances * 4 > (self.high - self.low)[1:]
        return np.flatnonzero(is_far) + 1

    def split_ranges(self, start: Ints, stop: Ints) -> tuple[Ints, Floats, Floats]:
        """Split non-empty ranges of positions at the gaps of the axis.

        Returns, for each piece, the index of its range, and its two ends on the axis.

        >>> dates = np.array([0, 1, 2, 9, 10]) * np.timedelta64(1, "D") + np.datetime64("1970")
        >>> cells = AxisCells.of(xr.Dataset(coords={"time": dates.astype("M8[ns]")}), "time")
        >>> [column.tolist() for column in cells.split_ranges(np.array([0]), np.array([5]))]
        [[0, 0], [0.0, 9.0], [3.0, 11.0]]
        """
        breaks = self._breaks
        first = np.searchsorted(breaks, start, side="right")
        count = np.searchsorted(breaks, stop) - first
        range_index = np.repeat(np.arange(start.size), count + 1)
        piece = np.arange(range_index.size) - np.repeat(np.cumsum(count + 1) - count - 1, count + 1)
        # the cut at the end of each piece, and the one before it
        cut, ends = first[range_index] + piece, np.append(breaks, self.low.size)
        return (
            range_index,
            *self.find_spans(
                np.where(piece == 0, start[range_index], ends[cut - 1]),
                np.where(piece == count[range_index], stop[range_index], ends[cut]),
            ),
        )

    def find_spans(self, start: Ints, stop: Ints) -> tuple[Floats, Floats]:
        """Return both ends on the axis of non-empty ranges of positions."""
        # even entries begin a range, odd ones end it
        cuts = np.stack([start, stop], axis=1).ravel()
        low = np.minimum.reduceat(np.append(self.low, np.inf), cuts)[::2]
        high = np.maximum.reduceat(np.append(self.high, -np.inf), cuts)[::2]
        return low, high

    def find_span(self, start: int, stop: int) -> Span:
        """Return both ends on the axis of a range of positions."""
        low, high = self.find_spans(np.array([start]), np.array([stop]))
        return float(low[0]), float(high[0])

    def find_starts(self, positions: Ints) -> Floats:
        """Return the edges of the cells at these positions, on the side of the previous cell."""
        falls = self.low.size and self.low[-1] < self.low[0]
        return (self.high if falls else self.low)[positions]

    def format_position(self, number: float) -> str:
        """Format a position on the axis as text: a date, or a number.

        >>> AxisCells("dates", np.zeros(1), np.ones(1)).format_position(31.5)
        '1970-02-01T12:00'
        """
        if self.kind != "dates":
            return f"{number + 0.0:,.6g}"
        if self.calendar == NUMPY_CALENDAR:
            minutes = np.datetime64(round(number * 24 * 60), "m")
            return text_of(minutes.astype("M8[s]")).removesuffix(":00")
        import cftime

        date = cftime.num2date(number, DATE_UNITS, self.calendar)
        return str(date.strftime("%Y-%m-%d" if number % 1 == 0 else "%Y-%m-%d %H:%M")).strip()


def _find_coordinate(dataset: xr.Dataset, dim: Hashable) -> NumericCoordinate | None:
    """Return the coordinate of a dimension as numbers if it is loaded and numeric, else None."""
    variable = dataset.variables.get(dim)
    if variable is None or variable.dims != (dim,) or not variable.size:
        return None
    if get_virtual_array(variable) is not None or is_lazy(variable) or variable.chunks:
        return None
    values: Any = variable.values
    coordinate = to_numbers(values)
    return coordinate if coordinate is not None and np.isfinite(coordinate.numbers).all() else None


def to_numbers(values: npt.NDArray[Any]) -> NumericCoordinate | None:
    """Return values as numbers, or None if they are neither numbers nor dates or durations."""
    if values.dtype.kind in "iuf":
        return NumericCoordinate("numbers", values.astype(np.float64))
    if values.dtype.kind in "mM":
        unit = np.timedelta64(1, "D" if values.dtype.kind == "M" else "h")
        since = values - np.datetime64(0, "D") if values.dtype.kind == "M" else values
        kind: Kind = "dates" if values.dtype.kind == "M" else "hours"
        return NumericCoordinate(kind, since / unit)
    if values.dtype.kind == "O" and len({getattr(v, "calendar", None) for v in values}) == 1:
        calendar = getattr(values[0], "calendar", None)
        if calendar:
            import cftime

            numbers = np.asarray(cftime.date2num(values, DATE_UNITS, calendar), np.float64)
            return NumericCoordinate("dates", numbers, calendar)
    return None


def _make_cells(
    cls: type[AxisCells], coordinate: NumericCoordinate, borders: Ints | None
) -> AxisCells | None:
    """Return the cells of a coordinate, or None if it is not monotonic between ``borders``."""
    steps = np.diff(coordinate.numbers)
    sign = -1.0 if np.count_nonzero(steps < 0) * 2 > steps.size else 1.0
    rising = sign * coordinate.numbers
    breaks = np.flatnonzero(np.diff(rising) <= 0) + 1
    if borders is not None and not np.isin(breaks, borders).all():
        return None
    if borders is None and breaks.size:
        return None
    steps = np.diff(rising)
    usual_step = float(np.median(steps[steps > 0])) if (steps > 0).any() else 1.0
    # the steps across missing dates, if all others are regular
    has_gaps = coordinate.kind == "dates" and bool(find_gaps_among(steps[steps > 0]))
    ends_early = (steps <= 0) | (has_gaps & (steps >= GAP_FACTOR * usual_step))
    width = np.append(np.where(ends_early, usual_step, steps), usual_step)
    low, high = rising, rising + width
    missing, values = tuple[Span, ...](), np.unique(rising)
    if coordinate.kind == "dates" and values.size > 2:
        gaps = find_gaps_among(np.diff(values))
        missing = tuple((float(values[n]) + usual_step, float(values[n + 1])) for n in gaps)
    doubled = tuple(_find_overlaps(low, high, breaks))
    if sign > 0:
        return cls(coordinate.kind, low, high, missing, doubled, coordinate.calendar)
    missing, doubled = (tuple((-b, -a) for a, b in reversed(s)) for s in (missing, doubled))
    return cls(coordinate.kind, -high, -low, missing, doubled, coordinate.calendar)


def _find_overlaps(low: Floats, high: Floats, breaks: Ints) -> Iterator[Span]:
    """Yield the intervals in which the rising parts between ``breaks`` overlap."""
    if not breaks.size:
        return
    starts, ends = low[np.append(0, breaks)], high[np.append(breaks, low.size) - 1]
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], ends[order]
    furthest = np.maximum.accumulate(ends)[:-1]
    overlaps = np.stack([starts[1:], np.minimum(ends[1:], furthest)], axis=1)
    yield from map(tuple, overlaps[overlaps[:, 0] < overlaps[:, 1]].tolist())
