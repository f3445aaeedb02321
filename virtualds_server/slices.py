"""Slices, series and values of what is served, as the page draws them.

Only the chunks are read that a picture needs. Where it has fewer pixels than the slice has
elements, it takes every n-th element, so that chunks between them are not read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import ceil, prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import xarray as xr

from virtualds_server.archive import Archive, is_drawn
from virtualds_server.colours import MAPS, choose_map, draw_png, find_range
from virtualds_server.labels import (
    HEMISPHERES,
    SPELLINGS,
    Axis,
    Tick,
    format_coordinate,
    format_tip,
    format_value,
)

MAX_BYTES = 2**31
"""Bytes of chunks that one picture or series decodes; of more, it has fewer elements."""
MAX_CHUNKS = 3000
"""Chunks that one picture or series reads."""
MAX_PIXELS = 2048
"""Pixels of a picture along each axis."""
MAX_VALUES = 200
"""Values that are listed of a variable that cannot be drawn."""
MAX_COORDINATES = 20
"""Coordinates that are told of one element."""
TICKS_OF_SCALE = 5


class BadRequestError(ValueError):
    """A request names what the variable does not have."""


@dataclass(frozen=True)
class Selection:
    """A part of a variable: an index of some dimensions, and a range of others.

    ``at`` are the indexes by dimension, 0 where none is given. ``parts`` are the ranges, the whole
    dimension where none is given.
    """

    variable: str
    at: Mapping[str, int] = field(default_factory=dict)
    parts: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, query: Mapping[str, str]) -> Selection:
        """Read a selection from the query of a url: ``variable``, ``at.time=3``, ``part.x=0:9``.

        Examples
        --------
        >>> Selection.of({"variable": "/t", "at.time": "3", "part.x": "0:9"})
        Selection(variable='/t', at={'time': 3}, parts={'x': (0, 9)})
        """
        at, parts = {}, {}
        for key, text in query.items():
            kind, dot, dim = key.partition(".")
            try:
                if kind == "at" and dot:
                    at[dim] = int(text)
                elif kind == "part" and dot:
                    start, _, stop = text.partition(":")
                    parts[dim] = (int(start), int(stop))
            except ValueError:
                raise BadRequestError(f"{key}={text!r}: give an index, or start:stop") from None
        return cls(query.get("variable", ""), at, parts)

    def find_index(self, array: xr.DataArray, dim: str) -> int:
        """Return the index of a dimension."""
        index = self.at.get(dim, 0)
        if not 0 <= index < array.sizes[dim]:
            raise BadRequestError(f"at.{dim}={index}: {dim} has {array.sizes[dim]} positions")
        return index

    def find_part(self, array: xr.DataArray, dim: str) -> tuple[int, int]:
        """Return the range of a dimension."""
        size = array.sizes[dim]
        start, stop = self.parts.get(dim, (0, size))
        if not 0 <= start < stop <= size:
            raise BadRequestError(f"part.{dim}={start}:{stop}: {dim} has {size} positions")
        return start, stop


class Line(NamedTuple):
    """The positions of one dimension that are shown, in the order in which they are drawn."""

    axis: Axis
    start: int
    step: int
    length: int
    is_reversed: bool = False

    @property
    def positions(self) -> npt.NDArray[np.int64]:
        """The positions, from the left to the right, or from the top to the bottom."""
        found = self.start + self.step * np.arange(self.length, dtype=np.int64)
        return found[::-1] if self.is_reversed else found

    def describe(self, ticks: int) -> dict[str, Any]:
        """Return what the page draws beside a picture."""
        return {
            "dim": self.axis.dim,
            "title": self.axis.title or self.axis.dim,
            "units": "" if self.axis.units in HEMISPHERES else self.axis.units,
            "start": self.start,
            "step": self.step,
            "count": self.length,
            "reversed": self.is_reversed,
            "ticks": describe_ticks(self.axis.list_ticks(self.positions, ticks), self.length),
            "labels": [self.axis.format(int(i)) for i in self.positions],
        }


def describe_ticks(ticks: Sequence[Tick], count: int) -> list[tuple[float, str]]:
    """Return where ticks are, as parts of the whole width or height, and their labels."""
    return [((tick.at + 0.5) / count, tick.label) for tick in ticks]


@dataclass(frozen=True, eq=False)
class Slice:
    """Two dimensions of a variable, at one index of each other dimension.

    Parameters
    ----------
    archive : Archive
    selection : Selection
    query : mapping of str to str
        ``y`` and ``x`` are dimensions, by default those that `choose_plane` finds; ``width`` and
        ``height`` are the pixels of the screen.
    """

    archive: Archive
    selection: Selection
    query: Mapping[str, str]

    @cached_property
    def array(self) -> xr.DataArray:
        """The variable."""
        found = self.archive.find(self.selection.variable)
        if not is_drawn(found.dtype) or found.ndim < 2 or not found.size:
            raise BadRequestError(f"{self.selection.variable} has no slices to draw")
        return found

    @cached_property
    def dims(self) -> tuple[str, str]:
        """The dimension from the top to the bottom, and that from the left to the right."""
        chosen = choose_plane(self.array)
        y, x = (self.query.get(key) or one for key, one in zip("yx", chosen, strict=True))
        for key, dim in (("y", y), ("x", x)):
            if dim not in self.array.dims:
                raise BadRequestError(
                    f"{key}={dim!r}: {self.selection.variable} has no such dimension"
                )
        if y == x:
            raise BadRequestError(f"x and y are both {x!r}")
        return y, x

    @cached_property
    def _costs(self) -> Costs:
        return find_costs(self.archive, self.selection.variable, self.array, self.dims)

    @cached_property
    def lines(self) -> tuple[Line, Line]:
        """The rows from the top to the bottom, and the columns."""
        most = [get_number(self.query, key, MAX_PIXELS, 1) for key in ("height", "width")]
        parts = [self.selection.find_part(self.array, dim) for dim in self.dims]
        steps = choose_steps(
            [stop - start for start, stop in parts],
            [min(one, MAX_PIXELS) for one in most],
            self._costs,
        )
        found = []
        for dim, (start, stop), step in zip(self.dims, parts, steps, strict=True):
            axis = Axis.of(self.array, dim)
            is_vertical = dim == self.dims[0]
            # heights grow to the top, depths and pressures to the bottom, images begin at the top
            grows = axis.rises if axis.rises is None else axis.rises != axis.points_down
            is_reversed = grows is True if is_vertical else axis.rises is False
            found.append(Line(axis, start, step, ceil((stop - start) / step), is_reversed))
        return found[0], found[1]

    @cached_property
    def key(self) -> tuple[Any, ...]:
        """What says which values are read: variable, indexes by dimension, and ranges."""
        others = [dim for dim in map(str, self.array.dims) if dim not in self.dims]
        at = tuple((dim, self.selection.find_index(self.array, dim)) for dim in others)
        ranges = tuple((one.axis.dim, one.start, one.step, one.length) for one in self.lines)
        return (self.selection.variable, at, ranges)

    def read(self) -> bytes:
        """Read the values as numbers, rows from the top to the bottom, as bytes."""
        return to_numbers(self._read_values()).astype(self._number_type).tobytes()

    def parse(self, data: bytes) -> npt.NDArray[Any]:
        """Decode the bytes of `read` to an array."""
        y, x = self.lines
        return np.frombuffer(data, self._number_type).reshape(y.length, x.length)

    @property
    def _number_type(self) -> np.dtype[Any]:
        is_small = self.array.dtype.kind == "f" and self.array.dtype.itemsize <= 4
        return np.dtype("f4" if is_small or self.array.dtype.itemsize <= 2 else "f8")

    def _read_values(self) -> npt.NDArray[Any]:
        _, at, ranges = self.key
        indexers: dict[Any, Any] = dict(at)
        for dim, start, step, count in ranges:
            indexers[dim] = slice(start, start + step * (count - 1) + 1, step)
        with self.archive.reserve(self._costs.nbytes):
            read = self.array.variable.isel(indexers).transpose(*self.dims)
            found: npt.NDArray[Any] = read.values
        y, x = (slice(None, None, -1 if line.is_reversed else 1) for line in self.lines)
        return found[y, x]

    # ------------------------------------------------------------------ what is shown

    def choose_colours(self, values: npt.NDArray[Any]) -> tuple[float, float, str]:
        """Return the range of values that colours show, and the name of their map."""
        low, high = (get_float(self.query, key) for key in ("low", "high"))
        if low is None or high is None or low >= high:
            ends = find_range(values)
            low, high = (a if b is None else b for a, b in zip(ends, (low, high), strict=True))
            # those of equal values are equal
            if low >= high and (low, high) != ends:
                raise BadRequestError(f"low={low:g} is not below high={high:g}")
        name = self.query.get("map") or choose_map(low, high)
        if name not in MAPS:
            raise BadRequestError(f"map={name!r}: there are {', '.join(MAPS)}")
        return low, high, name

    def draw(self, values: npt.NDArray[Any]) -> bytes:
        """Return the picture as PNG."""
        return draw_png(values, *self.choose_colours(values))

    def describe(self, values: npt.NDArray[Any]) -> dict[str, Any]:
        """Return what the page draws around the picture."""
        low, high, name = self.choose_colours(values)
        dtype = self.array.dtype
        y, x = self.lines
        there = values[~np.isnan(values)]
        _, at, _ = self.key
        return {
            "y": y.describe(get_number(self.query, "rows", 7, 2)),
            "x": x.describe(get_number(self.query, "columns", 7, 2)),
            "low": low,
            "high": high,
            "map": name,
            "scale": describe_scale(low, high, dtype),
            "least": format_number(float(there.min()), dtype) if there.size else None,
            "greatest": format_number(float(there.max()), dtype) if there.size else None,
            "cut": [bool((there < low).any()), bool((there > high).any())],
            "missing": 1 - there.size / values.size,
            "aspect": find_aspect(self.lines),
            "at": {dim: Axis.of(self.array, dim).format_fully(index) for dim, index in at},
        }


def describe_scale(low: float, high: float, dtype: np.dtype[Any]) -> list[tuple[float, str]]:
    """Return ticks between two numbers, as parts of their distance, and their labels.

    Examples
    --------
    >>> describe_scale(0, 10, np.dtype("f4"))
    [(0.0, '0'), (0.5, '5'), (1.0, '10')]
    """
    if not low < high:
        return [(0.5, format_number(low, dtype))]
    ends = [(0.0, format_number(low, dtype)), (1.0, format_number(high, dtype))]
    if dtype.kind in "mM" or not 1e-300 < high - low < 1e300:
        return ends
    steps = np.linspace(low, high, 1001)
    ticks = Axis("", steps).list_ticks(np.arange(1001), TICKS_OF_SCALE)
    return [(tick.at / 1000, tick.label) for tick in ticks] or ends


def to_numbers(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return values that can be drawn as numbers: seconds of dates and durations.

    Examples
    --------
    >>> to_numbers(np.array(["1970-01-01T00:01", "NaT"], "M8[s]"))
    array([60., nan])
    """
    if values.dtype.kind not in "mM":
        return values
    seconds = values.astype(f"{values.dtype.kind}8[us]").astype(np.int64) / 1e6
    return np.where(np.isnat(values), np.nan, seconds)


def format_number(number: float, dtype: np.dtype[Any]) -> str:
    """Return a number that `to_numbers` has made as text.

    Examples
    --------
    >>> format_number(1.5, np.dtype("M8[ns]")), format_number(3600.0, np.dtype("m8[s]"))
    ('1970-01-01 00:00:01.5', '1 hour')
    """
    if dtype.kind in "mM" and np.isfinite(number):
        kind = np.datetime64 if dtype.kind == "M" else np.timedelta64
        return format_value(kind(round(number * 1e6), "us"))
    return format_tip(np.float32(number) if dtype.kind == "f" and dtype.itemsize <= 4 else number)


def choose_plane(array: xr.DataArray) -> tuple[str, str]:
    """Return the dimensions to draw: those of latitude and longitude, else the last two.

    Examples
    --------
    >>> values = xr.DataArray(np.zeros((2, 3, 4)), dims=("lat", "lon", "time"))
    >>> choose_plane(values)
    ('lon', 'time')
    >>> coords = {"lat": ("lat", [0, 1], {"units": "degrees_north"})}
    >>> choose_plane(values.assign_coords(coords | {"lon": ("lon", [0, 1, 2], {"axis": "X"})}))
    ('lat', 'lon')
    """
    dims = [str(dim) for dim in array.dims]
    found: dict[str, str] = {}
    for dim in dims:
        if dim in array.coords:
            attrs = array.coords[dim].attrs
            units = Axis.of(array, dim).units
            for letter, unit in (("Y", "degrees_north"), ("X", "degrees_east")):
                if str(attrs.get("axis", "")).upper() == letter or units == unit:
                    found.setdefault(letter, dim)
    if len(set(found.values())) == 2:
        return found["Y"], found["X"]
    return dims[-2], dims[-1]


def find_aspect(lines: tuple[Line, Line]) -> float | None:
    """Return width by height if both dimensions are lengths of the same kind, else None."""
    y, x = (_find_extent(line) for line in lines)
    if y is None or x is None or y[0] != x[0] or not y[1]:
        return None
    aspect = x[1] / y[1]
    if not np.isfinite(aspect):
        # an end of a coordinate is missing
        return None
    # without units, only squares are lengths of the same kind
    cells = aspect * lines[0].length / lines[1].length
    return aspect if y[0] or 0.8 < cells < 1.25 else None


def _find_extent(line: Line) -> tuple[str, float] | None:
    """Return the unit in which a dimension is measured, and its extent."""
    axis, size = line.axis, line.length * line.step
    if axis.rises is None:
        return ("pixels", float(size)) if axis.values is None else None
    assert axis.values is not None
    if axis.values.dtype.kind in "mM":
        return None
    ends = axis.values[[line.start, line.start + (line.length - 1) * line.step]].astype(float)
    # edge to edge: cells are as wide as the distance between their centres
    extent = abs(ends[1] - ends[0]) * line.length / max(line.length - 1, 1)
    return "degrees" if axis.units in HEMISPHERES else axis.units, float(extent)


# ---------------------------------------------------------------------- what reading costs


class Costs(NamedTuple):
    """What reading a slice costs: lengths of chunks along its dimensions, and bytes of a chunk."""

    lengths: tuple[float, ...]
    nbytes: float


def find_costs(archive: Archive, path: str, array: xr.DataArray, dims: Sequence[str]) -> Costs:
    """Return the average lengths of chunks along some dimensions, and the bytes of a chunk."""
    found = archive.find_array(path)
    if found is None or not found.fragments:
        # in memory
        return Costs((1.0,) * len(dims), 0.0)
    sizes = [sum(f.axes[axis].size for f in found.fragments) for axis in range(found.ndim)]
    counts = [sum(f.axes[axis].nchunks for f in found.fragments) for axis in range(found.ndim)]
    lengths = [size / max(count, 1) for size, count in zip(sizes, counts, strict=True)]
    by_dim = dict(zip(map(str, array.dims), lengths, strict=True))
    return Costs(tuple(by_dim[dim] for dim in dims), prod(lengths) * found.dtype.itemsize)


def choose_steps(lengths: Sequence[int], most: Sequence[int], costs: Costs) -> list[int]:
    """Return the distances of elements: at most so many, and not from too many chunks.

    Examples
    --------
    >>> choose_steps([1800, 3600], [900, 900], Costs((180, 360), 4 * 180 * 360))
    [2, 4]
    >>> choose_steps([100_000], [1000], Costs((1,), 2.0**24))
    [800]
    """
    steps = [max(ceil(n / m), 1) for n, m in zip(lengths, most, strict=True)]
    while True:
        counts = [
            ceil(n / max(step, chunk))
            for n, step, chunk in zip(lengths, steps, costs.lengths, strict=True)
        ]
        chunks = prod(counts)
        if max(counts) <= 2 or (chunks <= MAX_CHUNKS and chunks * costs.nbytes <= MAX_BYTES):
            return steps
        widest = counts.index(max(counts))
        # steps within a chunk save nothing
        steps[widest] = max(2 * steps[widest], ceil(costs.lengths[widest]))


# ---------------------------------------------------------------------- other pictures


def read_series(archive: Archive, query: Mapping[str, str]) -> dict[str, Any]:
    """Return the values along one dimension, at one index of each other dimension."""
    selection = Selection.of(query)
    array = archive.find(selection.variable)
    along = query.get("along") or (str(array.dims[0]) if array.ndim else "")
    if along not in array.dims or not is_drawn(array.dtype) or not array.size:
        raise BadRequestError(f"{selection.variable} has no series along {along!r}")
    start, stop = selection.find_part(array, along)
    most = min(get_number(query, "points", 500, 2), MAX_PIXELS)
    costs = find_costs(archive, selection.variable, array, [along])
    [step] = choose_steps([stop - start], [most], costs)
    others = [str(dim) for dim in array.dims if dim != along]
    indexers: dict[Any, Any] = {dim: selection.find_index(array, dim) for dim in others}
    at = {dim: Axis.of(array, dim).format_fully(index) for dim, index in indexers.items()}
    indexers[along] = slice(start, stop, step)
    with archive.reserve(costs.nbytes):
        values = array.variable.isel(indexers).values
    numbers = to_numbers(values)
    line = Line(Axis.of(array, along), start, step, numbers.size)
    places = line.axis.find_places(line.positions)
    told = line.describe(get_number(query, "columns", 7, 2))
    if places is not None:
        # ticks were at positions; places are along the coordinate
        middles = [part * line.length - 0.5 for part, _ in told["ticks"]]
        parts = np.interp(middles, np.arange(line.length), places)
        labels = [label for _, label in told["ticks"]]
        told["ticks"] = [(float(part), label) for part, label in zip(parts, labels, strict=True)]
    there = numbers[np.isfinite(numbers)]
    ends = (float(there.min()), float(there.max())) if there.size else None
    return {
        "x": told,
        "at": at,
        "places": None if places is None else [round(float(one), 5) for one in places],
        "gaps": find_gaps(places) if line.axis.is_dated else [],
        "values": [describe_number(one) for one in numbers],
        "shown": [format_tip(one) for one in values],
        "ends": ends,
        "scale": describe_scale(*ends, array.dtype) if ends else [],
        # a denser series would read more than one request may
        "limited": step > ceil((stop - start) / most),
    }


def find_gaps(places: npt.NDArray[np.float64] | None) -> list[int]:
    """Return the positions after which dates leave out at least one of their usual steps.

    Examples
    --------
    >>> find_gaps(np.array([0, 0.1, 0.2, 0.9, 1.0]))
    [2]
    """
    if places is None or places.size < 3:
        return []
    steps = np.diff(places)
    return [int(n) for n in np.flatnonzero(steps > 1.9 * np.median(steps))]


def describe_number(value: Any) -> float | None:
    """Return a number for JSON, with the digits of its data type; None if it has none."""
    if not np.isfinite(value):
        return None
    return float(str(value)) if isinstance(value, np.floating) else float(value)


def read_point(archive: Archive, query: Mapping[str, str]) -> dict[str, Any]:
    """Return one value, its coordinates, and the file and the chunk that it comes from."""
    array, path, at = find_element(archive, query)
    coordinates = []
    for name, coordinate in list(array.coords.items())[:MAX_COORDINATES]:
        given = str(coordinate.attrs.get("units", ""))
        units = SPELLINGS.get(given, given)
        value = archive.read_coordinate(path, str(name), at)
        text = format_coordinate(value, units)
        coordinates.append((str(name), text if units in HEMISPHERES else f"{text} {units}".strip()))
    return read_value(archive, query) | {
        "coordinates": coordinates,
        "at": at,
        "origin": archive.find_origin(path, at),
    }


def find_element(
    archive: Archive, query: Mapping[str, str]
) -> tuple[xr.DataArray, str, dict[str, int]]:
    """Return the variable of a query, its path, and the index of one element."""
    selection = Selection.of(query)
    array = archive.find(selection.variable)
    at = {str(dim): selection.find_index(array, str(dim)) for dim in array.dims}
    return array, selection.variable, at


def read_value(archive: Archive, query: Mapping[str, str]) -> dict[str, Any]:
    """Return one value as text, and with few digits."""
    array, path, at = find_element(archive, query)
    units = str(array.attrs.get("units", "")) if array.dtype.kind not in "mM" else ""
    value = archive.read_value(path, at)
    return {"value": format_value(value), "short": format_tip(value), "units": units}


def read_values(archive: Archive, query: Mapping[str, str]) -> dict[str, Any]:
    """Return the first values of a variable as text."""
    path = Selection.of(query).variable
    array = archive.find(path)
    edge = max(int(MAX_VALUES ** (1 / max(array.ndim, 1))), 1)
    with archive.reserve(find_costs(archive, path, array, []).nbytes):
        part = array.variable.isel({dim: slice(edge) for dim in array.dims}).values
    return {
        "values": [format_value(one) for one in part.ravel()[:MAX_VALUES]],
        "total": array.size,
    }


def describe_dimensions(archive: Archive, query: Mapping[str, str]) -> dict[str, Any]:
    """Return the dimensions of a variable, and those that are drawn first."""
    array = archive.find(Selection.of(query).variable)
    dims = [
        {"dim": dim, "size": array.sizes[dim], "title": Axis.of(array, dim).title or dim}
        for dim in map(str, array.dims)
    ]
    plane = choose_plane(array) if array.ndim > 1 else None
    return {"dims": dims, "plane": plane}


def get_number(query: Mapping[str, str], key: str, default: int, least: int) -> int:
    """Return a whole number of a query."""
    text = query.get(key)
    if not text:
        return default
    if not text.isdecimal() or len(text) > 6 or int(text) < least:
        raise BadRequestError(f"{key}={text!r}: give a number from {least} on")
    return int(text)


def get_float(query: Mapping[str, str], key: str) -> float | None:
    """Return a number of a query, or None if it has none."""
    text = query.get(key)
    if not text:
        return None
    try:
        found = float(text)
    except ValueError:
        found = np.nan
    if not np.isfinite(found):
        raise BadRequestError(f"{key}={text!r}: give a number")
    return found
