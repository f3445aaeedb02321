"""The files of the page, and its views: JSON and pictures of slices, series and values.

A picture reads only the chunks that it needs. If it has fewer pixels than the slice has elements,
it takes every n-th element, which skips chunks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib.resources import files
from math import ceil, prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import xarray as xr

from virtualds_server.archive import Archive, can_be_drawn
from virtualds_server.bodies import Body, BodyCache
from virtualds_server.colours import (
    COLORMAPS,
    choose_colormap,
    draw_png,
    find_range,
    list_css_colours,
)
from virtualds_server.labels import (
    CF_DEGREE_UNITS,
    HEMISPHERES,
    Axis,
    format_coordinate,
    format_rounded,
    format_value,
)
from virtualds_server.versions import Version

MAX_BYTES = 2**31
"""Maximum number of decoded bytes of a picture or series; larger steps keep it below."""
MAX_CHUNKS = 3000
"""Maximum number of chunks that a picture or series reads; larger steps keep it below."""
MAX_PIXELS = 2048
"""Maximum number of pixels along each axis of a picture."""
MAX_VALUES = 200
"""Maximum number of values that the page lists for a variable that cannot be drawn."""
MAX_COORDINATES = 20
"""Maximum number of coordinates that the page lists for an element."""
MAX_SCALE_TICKS = 5


class BadRequestError(ValueError):
    """A request has invalid parameters."""


@dataclass(frozen=True)
class Selection:
    """A part of a variable: indexes along some dimensions, and ranges along others.

    ``at`` has indexes by dimension, by default 0. ``parts`` has ranges by dimension, by default
    the whole dimension.
    """

    variable: str
    at: Mapping[str, int] = field(default_factory=dict)
    parts: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, query: Mapping[str, str]) -> Selection:
        """Return the selection of a url query such as ``variable=/t&at.time=3&part.x=0:9``.

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
        """Return the index along a dimension."""
        index = self.at.get(dim, 0)
        if not 0 <= index < array.sizes[dim]:
            raise BadRequestError(f"at.{dim}={index}: {dim} has {array.sizes[dim]} positions")
        return index

    def find_part(self, array: xr.DataArray, dim: str) -> tuple[int, int]:
        """Return the range along a dimension."""
        size = array.sizes[dim]
        start, stop = self.parts.get(dim, (0, size))
        if not 0 <= start < stop <= size:
            raise BadRequestError(f"part.{dim}={start}:{stop}: {dim} has {size} positions")
        return start, stop


class AxisSlice(NamedTuple):
    """The positions along one dimension that are drawn, and their order."""

    axis: Axis
    start: int
    step: int
    length: int
    is_reversed: bool = False

    @property
    def positions(self) -> npt.NDArray[np.int64]:
        """The positions, from left to right or from top to bottom."""
        positions = self.start + self.step * np.arange(self.length, dtype=np.int64)
        return positions[::-1] if self.is_reversed else positions

    def describe(self, max_ticks: int) -> dict[str, Any]:
        """Return the title, ticks and labels of the axis."""
        ticks = self.axis.choose_ticks(self.positions, max_ticks)
        return {
            "dim": self.axis.dim,
            "title": self.axis.title or self.axis.dim,
            "units": "" if self.axis.units in HEMISPHERES else self.axis.units,
            "start": self.start,
            "step": self.step,
            "count": self.length,
            "reversed": self.is_reversed,
            # positions as fractions of the width or height
            "ticks": [((tick.at + 0.5) / self.length, tick.label) for tick in ticks],
            "labels": [self.axis.format(int(i)) for i in self.positions],
        }


@dataclass(frozen=True, eq=False)
class Slice:
    """A slice of a variable along two dimensions, at one index of each other dimension.

    Parameters
    ----------
    archive : Archive
    selection : Selection
    query : mapping of str to str
        ``y`` and ``x`` are dimensions, by default those of `choose_image_dims`; ``width`` and
        ``height`` are the pixels that the screen has for the picture.
    """

    archive: Archive
    selection: Selection
    query: Mapping[str, str]

    @cached_property
    def array(self) -> xr.DataArray:
        """The variable."""
        array = self.archive.get_variable(self.selection.variable)
        if not can_be_drawn(array.dtype) or array.ndim < 2 or not array.size:
            raise BadRequestError(f"{self.selection.variable} has no slices to draw")
        return array

    @cached_property
    def dims(self) -> tuple[str, str]:
        """The vertical and the horizontal dimension."""
        y, x = choose_image_dims(self.array)
        y, x = self.query.get("y") or y, self.query.get("x") or x
        for key, dim in (("y", y), ("x", x)):
            if dim not in self.array.dims:
                raise BadRequestError(
                    f"{key}={dim!r}: {self.selection.variable} has no such dimension"
                )
        if y == x:
            raise BadRequestError(f"x and y are both {x!r}")
        return y, x

    @cached_property
    def _chunk_size(self) -> ChunkSize:
        return find_chunk_size(self.archive, self.selection.variable, self.array, self.dims)

    @cached_property
    def axis_slices(self) -> tuple[AxisSlice, AxisSlice]:
        """The slices of the vertical and the horizontal dimension."""
        sizes = [parse_integer(self.query, key, MAX_PIXELS, 1) for key in ("height", "width")]
        parts = [self.selection.find_part(self.array, dim) for dim in self.dims]
        steps = choose_steps(
            [stop - start for start, stop in parts],
            [min(size, MAX_PIXELS) for size in sizes],
            self._chunk_size,
        )
        y, x = (
            AxisSlice(Axis.of(self.array, dim), start, step, ceil((stop - start) / step))
            for dim, (start, stop), step in zip(self.dims, parts, steps, strict=True)
        )
        # heights increase upwards, depths and pressures downwards; images begin at the top
        is_upward = y.axis.is_increasing is (not y.axis.is_positive_down)
        is_leftward = x.axis.is_increasing is False
        return y._replace(is_reversed=is_upward), x._replace(is_reversed=is_leftward)

    @cached_property
    def key(self) -> tuple[Any, ...]:
        """A cache key of the values: the variable, its indexes and its ranges."""
        others = [dim for dim in map(str, self.array.dims) if dim not in self.dims]
        at = tuple((dim, self.selection.find_index(self.array, dim)) for dim in others)
        ranges = tuple((s.axis.dim, s.start, s.step, s.length) for s in self.axis_slices)
        return (self.selection.variable, at, ranges)

    def read(self) -> bytes:
        """Return the values as the bytes of floats, rows from top to bottom."""
        return to_floats(self._read_values()).astype(self._float_dtype).tobytes()

    def parse(self, data: bytes) -> npt.NDArray[Any]:
        """Return the bytes of `read` as an array."""
        y, x = self.axis_slices
        return np.frombuffer(data, self._float_dtype).reshape(y.length, x.length)

    @property
    def _float_dtype(self) -> np.dtype[Any]:
        is_small = self.array.dtype.kind == "f" and self.array.dtype.itemsize <= 4
        return np.dtype("f4" if is_small or self.array.dtype.itemsize <= 2 else "f8")

    def _read_values(self) -> npt.NDArray[Any]:
        _, at, ranges = self.key
        indexers: dict[Any, Any] = dict(at)
        for dim, start, step, count in ranges:
            indexers[dim] = slice(start, start + step * (count - 1) + 1, step)
        with self.archive.reserve_memory(self._chunk_size.nbytes):
            variable = self.array.variable.isel(indexers).transpose(*self.dims)
            values: npt.NDArray[Any] = variable.values
        y, x = (slice(None, None, -1 if s.is_reversed else 1) for s in self.axis_slices)
        return values[y, x]

    # ------------------------------------------------------------------ pictures

    def choose_colours(self, values: npt.NDArray[Any]) -> tuple[float, float, str]:
        """Return the range of values and the name of the colormap."""
        low, high = (parse_float(self.query, key) for key in ("low", "high"))
        if low is None or high is None or low >= high:
            ends = find_range(values)
            low, high = (a if b is None else b for a, b in zip(ends, (low, high), strict=True))
            # both ends are equal if all values are
            if low >= high and (low, high) != ends:
                raise BadRequestError(f"low={low:g} is not below high={high:g}")
        name = self.query.get("map") or choose_colormap(low, high)
        if name not in COLORMAPS:
            raise BadRequestError(f"map={name!r}: give one of {', '.join(COLORMAPS)}")
        return low, high, name

    def draw(self, values: npt.NDArray[Any]) -> bytes:
        """Return a PNG picture of values."""
        return draw_png(values, *self.choose_colours(values))

    def describe(self, values: npt.NDArray[Any]) -> dict[str, Any]:
        """Return the axes, the colour scale and the statistics of a picture of values."""
        low, high, name = self.choose_colours(values)
        dtype = self.array.dtype
        y, x = self.axis_slices
        valid = values[~np.isnan(values)]
        _, at, _ = self.key
        return {
            "y": y.describe(parse_integer(self.query, "rows", 7, 2)),
            "x": x.describe(parse_integer(self.query, "columns", 7, 2)),
            "low": low,
            "high": high,
            "map": name,
            "scale": choose_scale_ticks(low, high, dtype),
            "least": format_number(float(valid.min()), dtype) if valid.size else None,
            "greatest": format_number(float(valid.max()), dtype) if valid.size else None,
            "cut": [bool((valid < low).any()), bool((valid > high).any())],
            "missing": 1 - valid.size / values.size,
            "aspect": find_aspect_ratio(self.axis_slices),
            "at": {dim: Axis.of(self.array, dim).format_with_units(index) for dim, index in at},
        }


def choose_scale_ticks(low: float, high: float, dtype: np.dtype[Any]) -> list[tuple[float, str]]:
    """Return the ticks of a colour scale: positions as fractions of the range, and labels.

    Examples
    --------
    >>> choose_scale_ticks(0, 10, np.dtype("f4"))
    [(0.0, '0'), (0.5, '5'), (1.0, '10')]
    """
    if not low < high:
        return [(0.5, format_number(low, dtype))]
    ends = [(0.0, format_number(low, dtype)), (1.0, format_number(high, dtype))]
    if dtype.kind in "mM" or not 1e-300 < high - low < 1e300:
        return ends
    steps = np.linspace(low, high, 1001)
    ticks = Axis("", steps).choose_ticks(np.arange(1001), MAX_SCALE_TICKS)
    return [(tick.at / 1000, tick.label) for tick in ticks] or ends


def to_floats(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return values as numbers: dates and durations in seconds, missing ones as NaN.

    Examples
    --------
    >>> to_floats(np.array(["1970-01-01T00:01", "NaT"], "M8[s]"))
    array([60., nan])
    """
    if values.dtype.kind not in "mM":
        return values
    seconds = values.astype(f"{values.dtype.kind}8[us]").astype(np.int64) / 1e6
    return np.where(np.isnat(values), np.nan, seconds)


def format_number(number: float, dtype: np.dtype[Any]) -> str:
    """Return a number as text; a result of `to_floats`, as a value of the original data type.

    Examples
    --------
    >>> format_number(1.5, np.dtype("M8[ns]")), format_number(3600.0, np.dtype("m8[s]"))
    ('1970-01-01 00:00:01.5', '1 hour')
    """
    if dtype.kind in "mM" and np.isfinite(number):
        kind = np.datetime64 if dtype.kind == "M" else np.timedelta64
        return format_value(kind(round(number * 1e6), "us"))
    return format_rounded(
        np.float32(number) if dtype.kind == "f" and dtype.itemsize <= 4 else number
    )


def choose_image_dims(array: xr.DataArray) -> tuple[str, str]:
    """Return the vertical and horizontal dimension: latitude and longitude, else the last two.

    Examples
    --------
    >>> values = xr.DataArray(np.zeros((2, 3, 4)), dims=("lat", "lon", "time"))
    >>> choose_image_dims(values)
    ('lon', 'time')
    >>> coords = {"lat": ("lat", [0, 1], {"units": "degrees_north"})}
    >>> choose_image_dims(values.assign_coords(coords | {"lon": ("lon", [0, 1, 2], {"axis": "X"})}))
    ('lat', 'lon')
    """
    dims = [str(dim) for dim in array.dims]
    dim_by_axis: dict[str, str] = {}
    for dim in dims:
        if dim in array.coords:
            attrs = array.coords[dim].attrs
            units = Axis.of(array, dim).units
            for letter, unit in (("Y", "degrees_north"), ("X", "degrees_east")):
                if str(attrs.get("axis", "")).upper() == letter or units == unit:
                    dim_by_axis.setdefault(letter, dim)
    if len(set(dim_by_axis.values())) == 2:
        return dim_by_axis["Y"], dim_by_axis["X"]
    return dims[-2], dims[-1]


def find_aspect_ratio(axis_slices: tuple[AxisSlice, AxisSlice]) -> float | None:
    """Return width / height if both dimensions are lengths in the same unit, else None."""
    y, x = map(_find_extent, axis_slices)
    if y is None or x is None or y[0] != x[0] or not y[1]:
        return None
    aspect = x[1] / y[1]
    if not np.isfinite(aspect):
        # an end of a coordinate is missing
        return None
    # without units, assume the same unit only if cells are nearly square
    cells = aspect * axis_slices[0].length / axis_slices[1].length
    return aspect if y[0] or 0.8 < cells < 1.25 else None


def _find_extent(axis_slice: AxisSlice) -> tuple[str, float] | None:
    """Return the unit and the extent of a dimension, or None if it cannot be measured."""
    axis, start, step, length, _ = axis_slice
    if axis.is_increasing is None:
        return ("pixels", float(length * step)) if axis.values is None else None
    assert axis.values is not None
    if axis.values.dtype.kind in "mM":
        return None
    ends = axis.values[[start, start + (length - 1) * step]].astype(float)
    # from edge to edge: half a cell more at each end than from centre to centre
    extent = abs(ends[1] - ends[0]) * length / max(length - 1, 1)
    return "degrees" if axis.units in HEMISPHERES else axis.units, float(extent)


# ---------------------------------------------------------------------- chunks to read


class ChunkSize(NamedTuple):
    """Mean lengths of chunks along some dimensions, and bytes of a decoded chunk."""

    lengths: tuple[float, ...]
    nbytes: float


def find_chunk_size(
    archive: Archive, path: str, array: xr.DataArray, dims: Sequence[str]
) -> ChunkSize:
    """Return the mean chunk size of a variable along some dimensions."""
    virtual = archive.get_array(path)
    if virtual is None or not virtual.fragments:
        # values in memory have no chunks to read
        return ChunkSize((1.0,) * len(dims), 0.0)
    sizes = [sum(f.axes[axis].size for f in virtual.fragments) for axis in range(virtual.ndim)]
    counts = [sum(f.axes[axis].nchunks for f in virtual.fragments) for axis in range(virtual.ndim)]
    lengths = [size / max(count, 1) for size, count in zip(sizes, counts, strict=True)]
    by_dim = dict(zip(map(str, array.dims), lengths, strict=True))
    return ChunkSize(tuple(by_dim[dim] for dim in dims), prod(lengths) * virtual.dtype.itemsize)


def choose_steps(
    lengths: Sequence[int], max_lengths: Sequence[int], chunk_size: ChunkSize
) -> list[int]:
    """Return a step for each dimension, so that elements and chunks stay below their limits.

    Examples
    --------
    >>> choose_steps([1800, 3600], [900, 900], ChunkSize((180, 360), 4 * 180 * 360))
    [2, 4]
    >>> choose_steps([100_000], [1000], ChunkSize((1,), 2.0**24))
    [800]
    """
    steps = [max(ceil(n / m), 1) for n, m in zip(lengths, max_lengths, strict=True)]
    while True:
        counts = [
            ceil(n / max(step, chunk))
            for n, step, chunk in zip(lengths, steps, chunk_size.lengths, strict=True)
        ]
        chunks = prod(counts)
        if max(counts) <= 2 or (chunks <= MAX_CHUNKS and chunks * chunk_size.nbytes <= MAX_BYTES):
            return steps
        widest = counts.index(max(counts))
        # steps shorter than a chunk skip no chunks
        steps[widest] = max(2 * steps[widest], ceil(chunk_size.lengths[widest]))


# ---------------------------------------------------------------------- series and values


def read_series(archive: Archive, query: Mapping[str, str]) -> dict[str, Any]:
    """Return the values along one dimension, at one index of each other dimension."""
    selection = Selection.of(query)
    array = archive.get_variable(selection.variable)
    along = query.get("along") or (str(array.dims[0]) if array.ndim else "")
    if along not in array.dims or not can_be_drawn(array.dtype) or not array.size:
        raise BadRequestError(f"{selection.variable} has no series along {along!r}")
    start, stop = selection.find_part(array, along)
    max_points = min(parse_integer(query, "points", 500, 2), MAX_PIXELS)
    chunk_size = find_chunk_size(archive, selection.variable, array, [along])
    [step] = choose_steps([stop - start], [max_points], chunk_size)
    others = [str(dim) for dim in array.dims if dim != along]
    indexers: dict[Any, Any] = {dim: selection.find_index(array, dim) for dim in others}
    at = {dim: Axis.of(array, dim).format_with_units(index) for dim, index in indexers.items()}
    indexers[along] = slice(start, stop, step)
    with archive.reserve_memory(chunk_size.nbytes):
        values = array.variable.isel(indexers).values
    numbers = to_floats(values)
    x = AxisSlice(Axis.of(array, along), start, step, numbers.size)
    places = x.axis.find_relative_positions(x.positions)
    x_axis = x.describe(parse_integer(query, "columns", 7, 2))
    if places is not None:
        # move ticks from equidistant cells to where the coordinate has them
        cells = [fraction * x.length - 0.5 for fraction, _ in x_axis["ticks"]]
        fractions = np.interp(cells, np.arange(x.length), places)
        labels = [label for _, label in x_axis["ticks"]]
        x_axis["ticks"] = list(zip(fractions.tolist(), labels, strict=True))
    finite = numbers[np.isfinite(numbers)]
    ends = (float(finite.min()), float(finite.max())) if finite.size else None
    return {
        "x": x_axis,
        "at": at,
        "places": None if places is None else [round(float(place), 5) for place in places],
        "gaps": find_gaps(places) if x.axis.has_dates else [],
        "values": [to_json_number(number) for number in numbers],
        "shown": [format_rounded(value) for value in values],
        "ends": ends,
        "scale": choose_scale_ticks(*ends, array.dtype) if ends else [],
        # whether the limits of chunks and bytes require a larger step than ``points``
        "limited": step > ceil((stop - start) / max_points),
    }


def find_gaps(places: npt.NDArray[np.float64] | None) -> list[int]:
    """Return the positions after which at least one usual step of the dates is missing.

    Examples
    --------
    >>> find_gaps(np.array([0, 0.1, 0.2, 0.9, 1.0]))
    [2]
    """
    if places is None or places.size < 3:
        return []
    steps = np.diff(places)
    return [int(n) for n in np.flatnonzero(steps > 1.9 * np.median(steps))]


def to_json_number(value: Any) -> float | None:
    """Return a number for JSON, with the digits of its data type; None if it is not finite."""
    if not np.isfinite(value):
        return None
    return float(str(value)) if isinstance(value, np.floating) else float(value)


def read_point(archive: Archive, query: Mapping[str, str]) -> dict[str, Any]:
    """Return one value, its coordinates, and the file and chunk that hold it."""
    array, path, at = parse_element(archive, query)
    coordinates = []
    for name, coordinate in list(array.coords.items())[:MAX_COORDINATES]:
        units = str(coordinate.attrs.get("units", ""))
        units = CF_DEGREE_UNITS.get(units, units)
        value = archive.read_coordinate(path, str(name), at)
        text = format_coordinate(value, units)
        coordinates.append((str(name), text if units in HEMISPHERES else f"{text} {units}".strip()))
    return read_value(archive, query) | {
        "coordinates": coordinates,
        "at": at,
        "origin": archive.find_origin(path, at),
    }


def parse_element(
    archive: Archive, query: Mapping[str, str]
) -> tuple[xr.DataArray, str, dict[str, int]]:
    """Return the variable of a query, its path, and the index of one element."""
    selection = Selection.of(query)
    array = archive.get_variable(selection.variable)
    at = {str(dim): selection.find_index(array, str(dim)) for dim in array.dims}
    return array, selection.variable, at


def read_value(archive: Archive, query: Mapping[str, str]) -> dict[str, Any]:
    """Return one value as text, both with all digits and rounded, and its units."""
    array, path, at = parse_element(archive, query)
    units = str(array.attrs.get("units", "")) if array.dtype.kind not in "mM" else ""
    value = archive.read_value(path, at)
    return {"value": format_value(value), "short": format_rounded(value), "units": units}


def read_values(archive: Archive, query: Mapping[str, str]) -> dict[str, Any]:
    """Return the first values of a variable as text."""
    path = Selection.of(query).variable
    array = archive.get_variable(path)
    length = max(int(MAX_VALUES ** (1 / max(array.ndim, 1))), 1)
    with archive.reserve_memory(find_chunk_size(archive, path, array, []).nbytes):
        part = array.variable.isel({dim: slice(length) for dim in array.dims}).values
    return {
        "values": [format_value(value) for value in part.ravel()[:MAX_VALUES]],
        "total": array.size,
    }


def describe_dimensions(archive: Archive, query: Mapping[str, str]) -> dict[str, Any]:
    """Return the dimensions of a variable, and the two that are drawn by default."""
    array = archive.get_variable(Selection.of(query).variable)
    dims = [
        {"dim": dim, "size": array.sizes[dim], "title": Axis.of(array, dim).title or dim}
        for dim in map(str, array.dims)
    ]
    plane = choose_image_dims(array) if array.ndim > 1 else None
    return {"dims": dims, "plane": plane}


def parse_integer(query: Mapping[str, str], key: str, default: int, minimum: int) -> int:
    """Return an integer of a query, or ``default`` if the query has none."""
    text = query.get(key)
    if not text:
        return default
    if not text.isdecimal() or len(text) > 6 or int(text) < minimum:
        raise BadRequestError(f"{key}={text!r}: give an integer from {minimum} to 999999")
    return int(text)


def parse_float(query: Mapping[str, str], key: str) -> float | None:
    """Return a finite number of a query, or None if the query has none."""
    text = query.get(key)
    if not text:
        return None
    try:
        number = float(text)
    except ValueError:
        number = np.nan
    if not np.isfinite(number):
        raise BadRequestError(f"{key}={text!r}: give a number")
    return number


# ---------------------------------------------------------------------- views by name

MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "json": "application/json",
    "png": "image/png",
}
PAGE_HEADERS = {
    # allow no other origins, and no inline scripts
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' blob: data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}

VIEWS: dict[str, Callable[[Archive, Mapping[str, str]], dict[str, Any]]] = {
    "dimensions.json": describe_dimensions,
    "variable.json": lambda archive, query: archive.describe_variable(query.get("variable", "")),
    "series.json": read_series,
    "point.json": read_point,
    "value.json": read_value,
    "values.json": read_values,
}
"""Functions of views by their names, without ``contents.json``, ``slice.json``, ``picture.png``."""


class VersionMismatchError(Exception):
    """A request asks for a version that is no longer served."""


@cache
def read_page_files() -> dict[str, Body]:
    """Return the files of the page by name."""
    folder = files("virtualds_server") / "page"
    return {file.name: Body.of(file.read_bytes()) for file in folder.iterdir() if file.is_file()}


async def get_view(
    bodies: BodyCache, version: Version, name: str, query: Mapping[str, str]
) -> Body | None:
    """Return the body of a view, or None if there is no view of this name."""
    key = (version.number, name, *sorted(f"{k}={v}" for k, v in query.items()))
    archive = await bodies.run(version.open_archive)
    if name == "contents.json":
        served = version.served
        header = {
            "name": served.name,
            "version": version.token,
            "number": version.number,
            "maps": list_css_colours(),
            "code": served.code if served.is_private else None,
            "zarr": not served.is_private,
        }
        return await bodies.get(key, lambda: encode_json({**header, **archive.describe()}))
    if name in VIEWS:
        return await bodies.get(key, lambda: encode_json(VIEWS[name](archive, query)))
    if name not in ("slice.json", "picture.png"):
        return None
    if query.get("version", version.token) != version.token:
        raise VersionMismatchError
    view = Slice(archive, Selection.of(query), query)
    # cache the values apart from the picture, so that other colours need no chunks
    values_key = (version.number, "values", await bodies.run(lambda: view.key))
    values = await bodies.get(values_key, view.read)
    assert values is not None
    if name == "picture.png":
        return await bodies.get(key, lambda: view.draw(view.parse(values.data)))
    header = {"version": version.token}
    return await bodies.get(
        key, lambda: encode_json({**header, **view.describe(view.parse(values.data))})
    )


def encode_json(document: Mapping[str, Any]) -> bytes:
    """Encode a document as JSON. Raises `ValueError` for NaN and infinite numbers."""
    return json.dumps(document, allow_nan=False, ensure_ascii=False).encode("utf-8", "replace")
