"""Variables and coordinates of the GRIB fields that make one dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup, ManifestVariable
from virtualds.bounds import demand_table
from virtualds.chunks.columns import MISSING
from virtualds.chunks.fragment import ChunkAxis, Fragment
from virtualds.chunks.manifest import ChunkManifest
from virtualds.codecs.grib import GribMessage
from virtualds.codecs.pipeline import CodecPipeline
from virtualds.errors import FormatError, UnsupportedError, VirtualdsError
from virtualds.parsers.grib.kinds import AXES, Kind, Parameter
from virtualds.parsers.grib.messages import GribField, read_coordinates
from virtualds.parsers.grib.names import (
    OF_COORDINATES,
    PLANES,
    describe_coordinate,
    describe_dataset,
    describe_variable,
    name_level,
)
from virtualds.source_file import SourceFile
from virtualds.urls import path_or_url

REGULAR = ("regular_ll", "regular_gg")
"""Grids whose rows are parallels."""
DISTINGUISHING_KEYS = (
    *("stepRange", "bottomLevel", "dataType", "percentileValue", "perturbationNumber"),
    *("forecastProbabilityNumber", "probabilityType", "typeOfStatisticalProcessing", "paramId"),
    *("constituentType", "aerosolType", "scaledValueOfFirstWavelength", "statisticalProcess"),
    "scaledValueOfSecondFixedSurface",
)
"""Keys that may tell apart messages with the same coordinates."""


class MessageGroup:
    """Parameters that make one dataset: of one type of level, one grid, the same axes."""

    def __init__(self, source: SourceFile, kind: Kind, eccodes: Any) -> None:
        self.source, self.kind, self.first = source, kind, kind[0].fields[0]
        self.level = name_level(self.first.keys)
        known = {axis: values for parameter in kind for axis, values in parameter.axes.items()}
        self.values = {axis: known[axis] for axis in AXES if axis in known}
        self.problems: dict[str, VirtualdsError] = {}
        self.dims, self.shape, self.places = _build_grid(
            self.first, read_coordinates(self.first, eccodes)
        )

    def read(self, skip: frozenset[str]) -> ManifestGroup:
        """Return the variables of all parameters, and their coordinates."""
        variables = {
            p.name: self._read_parameter(p)
            for p in sorted(self.kind, key=lambda p: p.name)
            if p.name not in skip
        }
        variables |= {n: v for n, v in self._build_coordinates().items() if n not in skip}
        encoding = {"unlimited_dims": set[str]()}
        attributes = describe_dataset(self.first.keys)
        return ManifestGroup(variables, attributes, {}, encoding, self.problems)

    def _read_parameter(self, parameter: Parameter) -> ManifestVariable:
        """Return a variable, unreadable if its fields do not make an array."""
        axes = [axis for axis in parameter.axes if len(parameter.axes[axis]) > 1]
        lengths = tuple(len(parameter.axes[axis]) for axis in axes)
        try:
            array = self._build_array(parameter, axes, lengths)
        except VirtualdsError as error:
            error.locate(f"variable {parameter.name!r}", self.source.url)
            self.problems[parameter.name] = error
            array = ManifestArray.unreadable((*lengths, *self.shape), "f4", f"{error}")
        origin = path_or_url(self.source.url)
        encoding = {"source": origin, "original_shape": array.shape, "dtype": array.dtype}
        names = [*map(self._name_axis, parameter.axes), *self.places]
        names += ["valid_time"] if {"time", "step"} <= parameter.axes.keys() else []
        # missing messages read as NaN, like missing values
        more = {"coordinates": " ".join(names), "_FillValue": np.float32(np.nan)}
        attributes = describe_variable(parameter.fields[0].keys) | more
        dims = (*map(self._name_axis, axes), *self.dims)
        return ManifestVariable(dims, array, attributes, encoding)

    def _build_array(
        self, parameter: Parameter, axes: Sequence[str], lengths: tuple[int, ...]
    ) -> ManifestArray:
        """Return the fields of one parameter as an array, one chunk each."""
        found = parameter.fields
        demand_table(lengths, len(found), f"parameter {parameter.name!r}")
        rows = _place_fields(parameter, axes, lengths)
        grid = (*lengths, *(1 for _ in self.shape))
        numbers = sorted({m.number for m in found})
        there = (rows >= 0).reshape(grid)

        def place(column: list[int]) -> npt.NDArray[np.int64]:
            return np.where(there, np.array(column)[rows].reshape(grid), 0)

        manifest = ChunkManifest.build(
            grid,
            files=[self.source],
            file=np.where(there, 0, MISSING),
            offset=place([m.offset for m in found]),
            length=place([m.length for m in found]),
            pipeline=place([numbers.index(m.number) for m in found]),
        )
        chunks = (*(ChunkAxis.regular(n, 1) for n in lengths),)
        chunks += tuple(ChunkAxis.regular(n, n) for n in self.shape)
        fragment = Fragment.whole(chunks, manifest)
        pipelines = tuple(_decode_with(GribMessage(n), len(chunks)) for n in numbers)
        array = ManifestArray.of_fragment(fragment, pipelines[0])
        return replace(array, pipelines=pipelines)

    def _name_axis(self, axis: str) -> str:
        """Return the name of an axis; the level axis has the name of the type of level."""
        return self.level if axis == "level" else axis

    def _build_coordinates(self) -> dict[str, ManifestVariable]:
        found = dict(self.places)
        for axis, several in self.values.items():
            name, values = self._name_axis(axis), np.array(several)
            attributes = describe_coordinate(name, axis)
            if len(values) > 1:
                found[name] = ManifestVariable((name,), values, attributes)
            else:
                found[name] = ManifestVariable((), values.reshape(()), attributes)
        if {"time", "step"} <= self.values.keys():
            found["valid_time"] = self._build_valid_time()
        return found

    def _build_valid_time(self) -> ManifestVariable:
        time, step = (np.array(self.values[axis]) for axis in ("time", "step"))
        valid = time[:, None] + np.round(step[None, :] * 3600).astype(np.int64)
        kept = tuple(axis for axis in ("time", "step") if len(self.values[axis]) > 1)
        valid = valid.reshape([len(self.values[axis]) for axis in kept])
        return ManifestVariable(kept, valid, OF_COORDINATES["valid_time"])


def _decode_with(codec: GribMessage, ndim: int) -> CodecPipeline:
    nothing = np.float32(np.nan).tobytes()
    return CodecPipeline(np.dtype("<f4"), (codec,), nothing, tuple(range(ndim)))


def _place_fields(
    parameter: Parameter, axes: Sequence[str], lengths: tuple[int, ...]
) -> npt.NDArray[np.int64]:
    """Return the row of the field at each place of the axes, -1 where there is none."""
    for axis in parameter.lacking:
        field = next(field for field in parameter.fields if AXES[axis](field) is None)
        raise UnsupportedError(
            f"GRIB message at byte {field.offset} has no {axis}, and other messages of "
            f"{parameter.name!r} have; choose messages by a key with "
            f"parser_options={{'filter_by_keys': ...}}, or leave it out with drop_variables"
        )
    rows = np.full(lengths, -1)
    places = [{v: i for i, v in enumerate(parameter.axes[axis])} for axis in axes]
    for row, field in enumerate(parameter.fields):
        told = zip(axes, places, strict=True)
        at = tuple(place[AXES[axis](field)] for axis, place in told)
        if rows[at] >= 0:
            raise _ambiguous_error(parameter.name, parameter.fields[rows[at]], field)
        rows[at] = row
    return rows


def _ambiguous_error(name: str, first: GribField, second: GribField) -> UnsupportedError:
    """Return the error of two messages at one place of an array."""
    values_by_key = {n: (first.keys.get(n), second.keys.get(n)) for n in DISTINGUISHING_KEYS}
    differing = {n: values for n, values in values_by_key.items() if values[0] != values[1]}
    key = next(iter(differing), "offset")
    value = next(v for v in differing.get(key, [first.offset]) if v is not None)
    return UnsupportedError(
        f"GRIB messages at bytes {first.offset} and {second.offset} are both {name!r} of one "
        f"time, step, number and level, and differ in {differing or 'no key that is known here'}; "
        f"choose with parser_options={{'filter_by_keys': {{{key!r}: {value!r}}}}}, or leave it out "
        f"with drop_variables"
    )


def _build_grid(
    message: GribField, where: Mapping[str, Any]
) -> tuple[tuple[str, ...], tuple[int, ...], dict[str, ManifestVariable]]:
    """Return the names and lengths of a grid's axes, and the coordinates of its points."""
    keys = message.keys
    count, columns, rows = (int(keys.get(n, 0)) for n in ("numberOfDataPoints", "Nx", "Ny"))
    if count < 1:
        raise FormatError(
            f"GRIB message at byte {message.offset}: its grid has {count} points; the file is "
            f"damaged"
        )
    grid = str(keys.get("gridType"))
    if columns * rows != count or grid not in (*REGULAR, *PLANES):
        dims: tuple[str, ...] = ("values",)
        return dims, (count,), {n: _build_place(dims, n, v) for n, v in where.items()}
    by_columns = bool(keys.get("jPointsAreConsecutive"))
    shape = (columns, rows) if by_columns else (rows, columns)
    full = {n: values.reshape(shape) for n, values in where.items()}
    if grid in REGULAR and full:
        dims = ("longitude", "latitude") if by_columns else ("latitude", "longitude")
        # copies, which do not hold all points in memory
        lines = {dims[0]: full[dims[0]][:, 0].copy(), dims[1]: full[dims[1]][0].copy()}
        return dims, shape, {n: _build_place((n,), n, v) for n, v in lines.items()}
    dims = ("x", "y") if by_columns else ("y", "x")
    return dims, shape, {n: _build_place(dims, n, v) for n, v in full.items()}


def _build_place(
    dims: tuple[str, ...], name: str, values: npt.NDArray[np.float64]
) -> ManifestVariable:
    """Return a coordinate of the points of a grid."""
    attributes = OF_COORDINATES[name]
    if dims == ("latitude",) and values[0] > values[-1]:
        attributes = {**attributes, "stored_direction": "decreasing"}
    return ManifestVariable(dims, values, attributes)
