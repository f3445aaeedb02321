"""GRIB messages that belong together, as variables with axes made of their keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup, ManifestVariable
from virtualds.bounds import demand_table
from virtualds.chunks.axis import ChunkAxis
from virtualds.chunks.columns import MISSING
from virtualds.chunks.fragment import Fragment
from virtualds.chunks.manifest import ChunkManifest
from virtualds.codecs.grib import GribMessage
from virtualds.codecs.pipeline import CodecPipeline
from virtualds.errors import FormatError, UnsupportedError, VirtualdsError
from virtualds.parsers.grib_messages import REGULAR, GribField, read_coordinates
from virtualds.source_file import SourceFile
from virtualds.urls import local_path, scheme_of

ATTRIBUTES = (
    *("paramId", "dataType", "typeOfLevel", "stepType", "gridType", "shortName", "name", "units"),
    *("cfName", "cfVarName", "uvRelativeToGrid", "Nx", "Ny", "totalNumber"),
    *("iScansNegatively", "jScansPositively", "jPointsAreConsecutive"),
    *("gridDefinitionDescription",),
)
DISTINGUISHING_KEYS = (
    *("stepRange", "bottomLevel", "dataType", "percentileValue", "perturbationNumber"),
    *("forecastProbabilityNumber", "probabilityType", "typeOfStatisticalProcessing", "paramId"),
)
"""Keys that may tell apart messages with the same coordinates."""
LEVELS: dict[str, dict[str, Any]] = {
    "isobaricInhPa": {"units": "hPa", "positive": "down", "standard_name": "air_pressure"},
    "isobaricInPa": {"units": "Pa", "positive": "down", "standard_name": "air_pressure"},
    "heightAboveGround": {"units": "m", "positive": "up", "standard_name": "height"},
    "depthBelowLand": {"units": "m", "positive": "down", "standard_name": "depth"},
    "depthBelowLandLayer": {"units": "m", "positive": "down", "standard_name": "depth"},
    "hybrid": {
        "units": "1",
        "positive": "down",
        "standard_name": "atmosphere_hybrid_sigma_pressure_coordinate",
    },
}
SINCE_1970 = {"units": "seconds since 1970-01-01T00:00:00", "calendar": "proleptic_gregorian"}
AXES: dict[str, tuple[Callable[[GribField], Any], dict[str, Any]]] = {
    "number": (
        lambda m: m.keys.get("number", 0),
        {"standard_name": "realization", "units": "1"},
    ),
    "time": (lambda m: m.time, {"standard_name": "forecast_reference_time", **SINCE_1970}),
    "step": (
        lambda m: m.step,
        {"standard_name": "forecast_period", "units": "hours", "dtype": "timedelta64[ns]"},
    ),
    "level": (lambda m: m.keys.get("level", 0.0), {}),
}
"""Axes before those of the grid: how to find a message's place on each, and its attributes."""
COORDINATE_ATTRIBUTES = {
    "latitude": {"units": "degrees_north", "standard_name": "latitude"},
    "longitude": {"units": "degrees_east", "standard_name": "longitude"},
}


# ---------------------------------------------------------------------- which messages are together


def group_kinds(found: Sequence[GribField]) -> dict[str, list[GribField]]:
    """Return the messages of each dataset, by the name of its group."""
    levels: dict[tuple[Any, ...], set[float]] = {}
    for message in found:
        levels.setdefault(_parameter_of(message), set()).add(message.keys.get("level", 0.0))
    kinds: dict[tuple[Any, ...], list[GribField]] = {}
    for message in found:
        kind = _parameter_of(message)
        kinds.setdefault((*kind[1:], tuple(sorted(levels[kind]))), []).append(message)
    return dict(zip(_name_kinds(list(kinds)), kinds.values(), strict=True))


def _parameter_of(message: GribField) -> tuple[Any, ...]:
    keys = message.keys
    kind = tuple(keys.get(n, "") for n in ("typeOfLevel", "stepType", "md5GridSection"))
    return (_name_of(message), *kind)


def _name_of(message: GribField) -> str:
    """Return the name of a message's variable, as cfgrib does."""
    for key in ("cfVarName", "shortName"):
        if (name := message.keys.get(key, "unknown")) not in ("unknown", "~", ""):
            return str(name)
    return f"paramId_{message.keys.get('paramId', 0)}"


def _name_kinds(kinds: Sequence[tuple[Any, ...]]) -> list[str]:
    """Name kinds by type of level, and by as much else as tells them apart."""
    named = []
    for kind in kinds:
        level, step, grid, levels = kind
        rivals = [other for other in kinds if other[0] == level]
        name = str(level)
        if len({r[1] for r in rivals}) > 1:
            name += f"_{step}"
        if len({r[3] for r in rivals}) > 1:
            name += f"_{levels[0]:g}" if len(levels) == 1 else f"_{len(levels)}_levels"
        if len(grids := list(dict.fromkeys(r[2] for r in rivals))) > 1:
            name += f"_grid_{grids.index(grid)}"
        named.append(name)
    return [f"{n}_{i}" if named.count(n) > 1 else n for i, n in enumerate(named)]


class MessageGroup:
    """Messages that make one dataset: of one type of level, one grid, one kind of interval."""

    def __init__(self, source: SourceFile, found: Sequence[GribField], eccodes: Any) -> None:
        self.source, self.messages = source, found
        self.first = found[0]
        self.level = str(self.first.keys.get("typeOfLevel", "level"))
        self.values = {n: sorted({tell(m) for m in found}) for n, (tell, _) in AXES.items()}
        if self.level == "isobaricInhPa":
            # from the ground upwards, as cfgrib orders it
            self.values["level"].reverse()
        self.known_axes = [
            n for n in AXES if n != "number" or any("number" in m.keys for m in found)
        ]
        self.axes = [name for name, values in self.values.items() if len(values) > 1]
        self.problems: dict[str, VirtualdsError] = {}
        self.dims, self.shape, self.places = _build_grid(
            self.first, read_coordinates(self.first, eccodes)
        )

    def read(self, skip: frozenset[str]) -> ManifestGroup:
        """Return the variables of all parameters, and their coordinates."""
        variables = {n: v for n, v in self._read_parameters(skip) if n not in skip}
        variables |= {n: v for n, v in self._build_coordinates().items() if n not in skip}
        keys = self.first.keys
        names = ("edition", "centre", "centreDescription", "subCentre")
        attributes = {f"GRIB_{name}": keys[name] for name in names if name in keys}
        attributes |= {"Conventions": "CF-1.7"}
        if "centreDescription" in keys:
            attributes["institution"] = keys["centreDescription"]
        return ManifestGroup(
            variables, attributes, {}, {"unlimited_dims": set[str]()}, self.problems
        )

    def _read_parameters(self, skip: frozenset[str]) -> Iterator[tuple[str, ManifestVariable]]:
        dims = (*(self._name_axis(axis) for axis in self.axes), *self.dims)
        for name, found in groupby(sorted(self.messages, key=_name_of), _name_of):
            if name in skip:
                continue
            messages = list(found)
            try:
                array = self._build_array(name, messages)
            except VirtualdsError as error:
                error.locate(f"variable {name!r}", self.source.url)
                self.problems[name] = error
                lengths = (len(self.values[axis]) for axis in self.axes)
                array = ManifestArray.unreadable((*lengths, *self.shape), "f4", f"{error}")
            url = self.source.url
            origin = local_path(url) if scheme_of(url) == "file" else url
            encoding = {"source": origin, "original_shape": array.shape, "dtype": array.dtype}
            yield name, ManifestVariable(dims, array, self._read_attributes(messages[0]), encoding)

    def _build_array(self, name: str, found: Sequence[GribField]) -> ManifestArray:
        """Return the messages of one parameter as an array, one chunk each."""
        lengths = tuple(len(self.values[axis]) for axis in self.axes)
        demand_table(lengths, len(found), f"parameter {name!r}")
        rows = np.full(lengths, -1)
        for row, message in enumerate(found):
            at = tuple(self.values[axis].index(AXES[axis][0](message)) for axis in self.axes)
            if rows[at] >= 0:
                raise _ambiguous_error(name, found[rows[at]], message)
            rows[at] = row
        grid = (*lengths, *(1 for _ in self.shape))
        there = rows >= 0
        columns = ([m.offset for m in found], [m.length for m in found])
        offset, length = (np.where(there, np.array(c)[rows], 0).reshape(grid) for c in columns)
        file = np.where(there, 0, MISSING).reshape(grid)
        manifest = ChunkManifest.build(
            grid, files=[self.source], file=file, offset=offset, length=length
        )
        axes = (*(ChunkAxis.regular(n, 1) for n in lengths),)
        axes += tuple(ChunkAxis.regular(n, n) for n in self.shape)
        nothing = np.float32(np.nan).tobytes()
        layout = tuple(range(len(axes)))
        pipeline = CodecPipeline(np.dtype("<f4"), (GribMessage(),), nothing, layout)
        return ManifestArray.of_fragment(Fragment((0,) * len(axes), axes, manifest), pipeline)

    def _read_attributes(self, message: GribField) -> dict[str, Any]:
        keys = message.keys
        found = {f"GRIB_{name}": keys[name] for name in ATTRIBUTES if name in keys}
        found |= {"long_name": keys.get("name", "unknown"), "units": keys.get("units", "unknown")}
        if keys.get("cfName", "unknown") != "unknown":
            found["standard_name"] = keys["cfName"]
        names = [self._name_axis(axis) for axis in self.known_axes] + [*self.places, "valid_time"]
        # missing messages read as NaN, like missing values
        return found | {"coordinates": " ".join(names), "_FillValue": np.float32(np.nan)}

    def _name_axis(self, axis: str) -> str:
        """Return the name of an axis; the level axis has the name of the type of level."""
        return self.level if axis == "level" else axis

    def _build_coordinates(self) -> dict[str, ManifestVariable]:
        found = dict(self.places)
        for axis in self.known_axes:
            values, several = np.array(self.values[axis]), axis in self.axes
            attributes = LEVELS.get(self.level, {}) if axis == "level" else AXES[axis][1]
            name = self._name_axis(axis)
            dims = (name,) if several else ()
            found[name] = ManifestVariable(
                dims, values if several else values[0:1].reshape(()), attributes
            )
        time, step = (np.array(self.values[axis]) for axis in ("time", "step"))
        valid = time[:, None] + np.round(step[None, :] * 3600).astype(np.int64)
        kept = tuple(axis for axis in ("time", "step") if axis in self.axes)
        valid = valid.reshape([len(self.values[axis]) for axis in kept])
        attributes = {"standard_name": "time", "long_name": "time", **SINCE_1970}
        found["valid_time"] = ManifestVariable(kept, valid, attributes)
        return found


def _ambiguous_error(name: str, first: GribField, second: GribField) -> UnsupportedError:
    """Return the error of two messages at one place of an array."""
    values_by_key = {n: (first.keys.get(n), second.keys.get(n)) for n in DISTINGUISHING_KEYS}
    differing = {n: values for n, values in values_by_key.items() if values[0] != values[1]}
    key = next(iter(differing), "count")
    return UnsupportedError(
        f"GRIB messages at bytes {first.offset} and {second.offset} are both {name!r} of one "
        f"time, step, number and level, and differ in {differing or 'no key that is known here'}; "
        f"take them apart (grib_copy -w {key}=...), or leave it out with drop_variables"
    )


def _build_grid(
    message: GribField, where: Mapping[str, Any]
) -> tuple[tuple[str, ...], tuple[int, ...], dict[str, ManifestVariable]]:
    """Return the names and lengths of a grid's axes, and the coordinates of its points."""
    keys = message.keys
    count, columns, rows = (int(keys.get(n, 0)) for n in ("numberOfDataPoints", "Nx", "Ny"))
    if keys.get("alternativeRowScanning"):
        raise UnsupportedError(
            f"GRIB message at byte {message.offset}: every other row runs backwards; turn them "
            f"with grib_set -s alternativeRowScanning=0, or read it with cfgrib"
        )
    if count < 1:
        raise FormatError(
            f"GRIB message at byte {message.offset}: its grid has {count} points; the file is "
            f"damaged"
        )
    if columns * rows != count:
        dims: tuple[str, ...] = ("values",)
        return (
            dims,
            (count,),
            {n: ManifestVariable(dims, v, COORDINATE_ATTRIBUTES[n]) for n, v in where.items()},
        )
    by_columns = bool(keys.get("jPointsAreConsecutive"))
    shape = (columns, rows) if by_columns else (rows, columns)
    full = {n: values.reshape(shape) for n, values in where.items()}
    if keys["gridType"] in REGULAR and full:
        dims = ("longitude", "latitude") if by_columns else ("latitude", "longitude")
        lines = {dims[0]: full[dims[0]][:, 0], dims[1]: full[dims[1]][0]}
        return (
            dims,
            shape,
            {n: ManifestVariable((n,), v, COORDINATE_ATTRIBUTES[n]) for n, v in lines.items()},
        )
    dims = ("x", "y") if by_columns else ("y", "x")
    return (
        dims,
        shape,
        {n: ManifestVariable(dims, v, COORDINATE_ATTRIBUTES[n]) for n, v in full.items()},
    )
