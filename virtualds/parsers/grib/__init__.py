"""Parser of GRIB files: messages are chunks, which ecCodes decodes.

Messages of one parameter with the same attributes form one variable, with the coordinates of
cfgrib: number, time, step and level, which are axes if they differ. Variables of one type of level
form a dataset if they have the same grid, times, steps, levels and members, like those joined by
cfgrib's ``open_datasets``. Messages that differ in type of level, grid, edition or centre are in
different groups, and so are variables of the same name; ``filter_by_keys`` is as in cfgrib.

Fields are read from the messages of a file, or from the index of a file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup, ManifestVariable, build_variable
from virtualds.arrays.parser import NativeReader, NativeReadError, NativeRegion, Parser, ReadNative
from virtualds.bounds import check_table
from virtualds.chunks.axes import ChunkAxis
from virtualds.chunks.columns import MISSING
from virtualds.chunks.fragment import Fragment
from virtualds.chunks.manifest import ChunkManifest
from virtualds.codecs.grib import GribMessage
from virtualds.codecs.pipeline import CodecPipeline
from virtualds.errors import FormatError, UnsupportedError, VirtualdsError, make_damage_error
from virtualds.importing import import_eccodes
from virtualds.parsers.grib.messages import (
    COORDINATE_ATTRIBUTES,
    CURVILINEAR_GRIDS,
    DATASET_KEYS,
    LISTED_KEYS,
    PARAMETER_KEYS,
    PARAMETER_NUMBERS,
    GribField,
    describe_coordinate,
    describe_dataset,
    describe_variable,
    find_message,
    get_level_name,
    get_variable_name,
    read_coordinates,
    read_key,
    scan_messages,
)
from virtualds.source_file import SourceFile, scheme_of
from virtualds.stores import find_store
from virtualds.stores.archive import is_tar, is_zip
from virtualds.stores.block_cache import PAGE_SIZE
from virtualds.stores.scan_cache import describe_damage, open_source, prefetch_ranges

AXIS_GETTERS: dict[str, Callable[[GribField], Any]] = {
    "number": lambda m: m.keys.get("number"),
    "time": lambda m: m.time,
    "step": lambda m: m.step,
    "level": lambda m: m.keys.get("level"),
    "directionNumber": lambda m: m.keys.get("directionNumber"),
    "frequencyNumber": lambda m: m.keys.get("frequencyNumber"),
}
"""Functions that return the coordinate of a field or None, by axis; axes of the grid follow."""
DECREASING_LEVELS = ("isobaricInhPa", "isobaricInPa")
"""Types of level whose values are sorted in decreasing order."""


@dataclass(frozen=True)
class Parameter:
    """The fields of one variable.

    Parameters
    ----------
    name : str
    fields : list of GribField
    axes : dict
        The coordinates of each axis.
    incomplete_axes : list of str
        The axes on which some fields have no coordinate.
    """

    name: str
    fields: list[GribField]
    axes: dict[str, list[Any]]
    incomplete_axes: list[str]

    @property
    def dataset_key(self) -> tuple[Any, ...]:
        """The properties that all parameters of a dataset share, apart from their axes."""
        keys = self.fields[0].keys
        return tuple(str(keys.get(n)) for n in ("typeOfLevel", "md5GridSection", *DATASET_KEYS))


ParameterGroup = list[Parameter]
"""Parameters that form one dataset."""


def group_parameters(fields: Sequence[GribField]) -> dict[str, ParameterGroup]:
    """Return the parameters of each dataset, by the name of its group."""
    groups_by_key: dict[tuple[Any, ...], list[ParameterGroup]] = {}
    for parameter in _find_parameters(fields):
        candidates = groups_by_key.setdefault(parameter.dataset_key, [])
        for group in candidates:
            if all(_are_compatible(other, parameter) for other in group):
                group.append(parameter)
                break
        else:
            candidates.append([parameter])
    groups = [group for candidates in groups_by_key.values() for group in candidates]
    return dict(zip(_name_groups(groups), groups, strict=True))


def _find_parameters(all_fields: Sequence[GribField]) -> Iterator[Parameter]:
    """Yield the parameters of fields, which are grouped by their keys."""
    names = (*PARAMETER_KEYS, *DATASET_KEYS, "md5GridSection")
    fields: dict[tuple[Any, ...], list[GribField]] = {}
    for field in all_fields:
        shared = tuple(field.keys.get(n) for n in names)
        numbers = ""
        if not field.keys.get("paramId", 0):
            # ecCodes does not know the parameter
            numbers = "_".join(str(field.keys[n]) for n in PARAMETER_NUMBERS if n in field.keys)
        fields.setdefault((*shared, numbers), []).append(field)
    has_several = len({numbers for *_, numbers in fields if numbers}) > 1
    by_parameter = sorted(fields.items(), key=lambda item: int(item[1][0].keys.get("paramId", 0)))
    for (*_, numbers), members in by_parameter:
        name = get_variable_name(members[0].keys)
        name = f"{name}_{numbers}" if numbers and has_several else name
        yield Parameter(name, members, *_find_axes(members))


def _find_axes(fields: Sequence[GribField]) -> tuple[dict[str, list[Any]], list[str]]:
    """Return the coordinates of fields by axis, and the axes on which some fields have none."""
    axis_values = {name: {get(m) for m in fields} for name, get in AXIS_GETTERS.items()}
    axes = {
        name: sorted(values - {None}) for name, values in axis_values.items() if values != {None}
    }
    if get_level_name(fields[0].keys) in DECREASING_LEVELS and "level" in axes:
        axes["level"].reverse()
    return axes, [name for name in axes if None in axis_values[name]]


def _are_compatible(other: Parameter, parameter: Parameter) -> bool:
    """Return whether two parameters may be in one dataset."""
    shared = other.axes.keys() & parameter.axes.keys()
    have_same_axes = all(other.axes[axis] == parameter.axes[axis] for axis in shared)
    return have_same_axes and other.name != parameter.name


# ---------------------------------------------------------------------- names of groups


def _describe_levels(parameters: ParameterGroup) -> str:
    levels = next((p.axes["level"] for p in parameters if "level" in p.axes), [])
    return f"{levels[0]:g}" if len(levels) == 1 else f"{len(levels)}_levels"


def _describe_key(name: str) -> Callable[[ParameterGroup], str]:
    """Return a function that returns the value of a key if all parameters share it."""

    def describe(parameters: ParameterGroup) -> str:
        values = {str(parameter.fields[0].keys.get(name, "")) for parameter in parameters}
        return values.pop() if len(values) == 1 else ""

    return describe


def _describe_steps(parameters: ParameterGroup) -> str:
    steps = next((p.axes["step"] for p in parameters if "step" in p.axes), [])
    return f"step_{steps[0]:g}" if len(steps) == 1 else f"{len(steps)}_steps"


GROUP_DESCRIPTIONS: tuple[Callable[[ParameterGroup], str], ...] = (
    *(_describe_levels, _describe_key("stepType"), _describe_key("dataType"), _describe_steps),
    lambda parameters: parameters[0].name if len(parameters) == 1 else "",
)
"""Functions that describe groups of one type of level, in the order of their use in names."""


def _name_groups(parameter_groups: Sequence[ParameterGroup]) -> list[str]:
    """Return names of groups: the type of level, and further differences if necessary."""
    named = [
        str(parameters[0].fields[0].keys.get("typeOfLevel", "unknown"))
        for parameters in parameter_groups
    ]
    for describe in GROUP_DESCRIPTIONS:
        counts = Counter(named)
        texts = [describe(parameters) for parameters in parameter_groups]
        differ = {
            n for n in counts if len({t for m, t in zip(named, texts, strict=True) if m == n}) > 1
        }
        named = [
            f"{name}_{t}" if name in differ and t else name
            for name, t in zip(named, texts, strict=True)
        ]
    counts = Counter(named)
    return [f"{n}_{named[:i].count(n)}" if counts[n] > 1 else n for i, n in enumerate(named)]


# ---------------------------------------------------------------------- variables

RECTILINEAR_GRIDS = ("regular_ll", "regular_gg")
"""Types of grids with one-dimensional coordinates."""
DISTINGUISHING_KEYS = (
    *("stepRange", "bottomLevel", "dataType", "percentileValue", "perturbationNumber"),
    *("forecastProbabilityNumber", "probabilityType", "typeOfStatisticalProcessing", "paramId"),
    *("constituentType", "aerosolType", "scaledValueOfFirstWavelength", "statisticalProcess"),
    "scaledValueOfSecondFixedSurface",
)
"""Keys that may distinguish messages with the same coordinates."""


class GroupReader:
    """Reads the parameters of one dataset, which have the same type of level, grid and axes."""

    def __init__(self, source: SourceFile, parameters: ParameterGroup, eccodes: Any) -> None:
        self.source, self.parameters, self.first = source, parameters, parameters[0].fields[0]
        self.level_name = get_level_name(self.first.keys)
        axis_values = {
            axis: values for parameter in parameters for axis, values in parameter.axes.items()
        }
        self.values = {axis: axis_values[axis] for axis in AXIS_GETTERS if axis in axis_values}
        self.problems: dict[str, VirtualdsError] = {}
        self.dims, self.shape, self.coordinates = _build_grid(
            self.first, read_coordinates(self.first, eccodes)
        )

    def read(self, skip: frozenset[str]) -> ManifestGroup:
        """Return the variables of all parameters, and their coordinates."""
        variables = {
            p.name: self._read_parameter(p)
            for p in sorted(self.parameters, key=lambda p: p.name)
            if p.name not in skip
        }
        variables |= {n: v for n, v in self._build_coordinates().items() if n not in skip}
        encoding = {"unlimited_dims": set[str]()}
        attributes = describe_dataset(self.first.keys)
        return ManifestGroup(variables, attributes, {}, encoding, self.problems)

    def _read_parameter(self, parameter: Parameter) -> ManifestVariable:
        """Return the variable of a parameter, unreadable if its fields do not form an array."""
        axes = [axis for axis in parameter.axes if len(parameter.axes[axis]) > 1]
        lengths = tuple(len(parameter.axes[axis]) for axis in axes)
        try:
            array = self._build_array(parameter, axes, lengths)
        except VirtualdsError as error:
            error.locate(f"variable {parameter.name!r}", self.source.url)
            self.problems[parameter.name] = error
            array = ManifestArray.unreadable((*lengths, *self.shape), "f4", f"{error}")
        names = [*map(self._name_axis, parameter.axes), *self.coordinates]
        names += ["valid_time"] if {"time", "step"} <= parameter.axes.keys() else []
        # missing messages are read as NaN, like missing values
        extra_attributes = {"coordinates": " ".join(names), "_FillValue": np.float32(np.nan)}
        attributes = describe_variable(parameter.fields[0].keys) | extra_attributes
        dims = (*map(self._name_axis, axes), *self.dims)
        return build_variable(array, dims, self.source, attributes)

    def _build_array(
        self, parameter: Parameter, axes: Sequence[str], lengths: tuple[int, ...]
    ) -> ManifestArray:
        """Return the fields of one parameter as an array, with one chunk per field."""
        fields = parameter.fields
        check_table(lengths, len(fields), f"parameter {parameter.name!r}")
        rows = _index_fields(parameter, axes, lengths)
        grid = (*lengths, *(1 for _ in self.shape))
        numbers = sorted({m.number for m in fields})
        exists = (rows >= 0).reshape(grid)

        def scatter(column: list[int]) -> npt.NDArray[np.int64]:
            return np.where(exists, np.array(column)[rows].reshape(grid), 0)

        manifest = ChunkManifest.build(
            grid,
            files=[self.source],
            file=np.where(exists, 0, MISSING),
            offset=scatter([m.offset for m in fields]),
            length=scatter([m.length for m in fields]),
            pipeline=scatter([numbers.index(m.number) for m in fields]),
        )
        chunks = (*(ChunkAxis.regular(n, 1) for n in lengths),)
        chunks += tuple(ChunkAxis.regular(n, n) for n in self.shape)
        fragment = Fragment.whole(chunks, manifest)
        pipelines = tuple(_make_pipeline(GribMessage(n), len(chunks)) for n in numbers)
        array = ManifestArray.from_fragment(fragment, pipelines[0])
        return replace(array, pipelines=pipelines)

    def _name_axis(self, axis: str) -> str:
        """Return the name of an axis; the level axis has the name of the type of level."""
        return self.level_name if axis == "level" else axis

    def _build_coordinates(self) -> dict[str, ManifestVariable]:
        coordinates = dict(self.coordinates)
        for axis, axis_values in self.values.items():
            name, values = self._name_axis(axis), np.array(axis_values)
            attributes = describe_coordinate(name, axis)
            if len(values) > 1:
                coordinates[name] = ManifestVariable((name,), values, attributes)
            else:
                coordinates[name] = ManifestVariable((), values.reshape(()), attributes)
        if {"time", "step"} <= self.values.keys():
            coordinates["valid_time"] = self._build_valid_time()
        return coordinates

    def _build_valid_time(self) -> ManifestVariable:
        time, step = (np.array(self.values[axis]) for axis in ("time", "step"))
        valid = time[:, None] + np.round(step[None, :] * 3600).astype(np.int64)
        time_axes = tuple(axis for axis in ("time", "step") if len(self.values[axis]) > 1)
        valid = valid.reshape([len(self.values[axis]) for axis in time_axes])
        return ManifestVariable(time_axes, valid, COORDINATE_ATTRIBUTES["valid_time"])


def _make_pipeline(codec: GribMessage, ndim: int) -> CodecPipeline:
    fill_value = np.float32(np.nan).tobytes()
    return CodecPipeline(np.dtype("<f4"), (codec,), fill_value, tuple(range(ndim)))


def _index_fields(
    parameter: Parameter, axes: Sequence[str], lengths: tuple[int, ...]
) -> npt.NDArray[np.int64]:
    """Return the index of the field at each position of the axes, or -1 if there is none."""
    for axis in parameter.incomplete_axes:
        field = next(field for field in parameter.fields if AXIS_GETTERS[axis](field) is None)
        raise UnsupportedError(
            f"GRIB message at byte {field.offset} has no {axis}, and other messages of "
            f"{parameter.name!r} have; choose messages by a key with "
            f"parser_options={{'filter_by_keys': ...}}, or leave it out with drop_variables"
        )
    rows = np.full(lengths, -1)
    indexes = [{v: i for i, v in enumerate(parameter.axes[axis])} for axis in axes]
    for row, field in enumerate(parameter.fields):
        pairs = zip(axes, indexes, strict=True)
        position = tuple(index[AXIS_GETTERS[axis](field)] for axis, index in pairs)
        if rows[position] >= 0:
            raise _make_ambiguous_error(parameter.name, parameter.fields[rows[position]], field)
        rows[position] = row
    return rows


def _make_ambiguous_error(name: str, first: GribField, second: GribField) -> UnsupportedError:
    """Return the error for two messages at one position of an array."""
    values_by_key = {n: (first.keys.get(n), second.keys.get(n)) for n in DISTINGUISHING_KEYS}
    differing = {n: values for n, values in values_by_key.items() if values[0] != values[1]}
    key = next(iter(differing), "offset")
    value = next(v for v in differing.get(key, [first.offset]) if v is not None)
    return UnsupportedError(
        f"GRIB messages at bytes {first.offset} and {second.offset} are both {name!r} of the same "
        f"time, step, number and level, and differ in {differing or 'no key that is known here'}; "
        f"choose with parser_options={{'filter_by_keys': {{{key!r}: {value!r}}}}}, or leave it out "
        f"with drop_variables"
    )


def _build_grid(
    message: GribField, point_coordinates: Mapping[str, Any]
) -> tuple[tuple[str, ...], tuple[int, ...], dict[str, ManifestVariable]]:
    """Return the names and lengths of the axes of a grid, and its coordinates."""
    keys = message.keys
    count, columns, rows = (int(keys.get(n, 0)) for n in ("numberOfDataPoints", "Nx", "Ny"))
    if count < 1:
        raise FormatError(
            f"GRIB message at byte {message.offset}: its grid has {count} points; the file is "
            f"damaged"
        )
    grid = str(keys.get("gridType"))
    if columns * rows != count or grid not in (*RECTILINEAR_GRIDS, *CURVILINEAR_GRIDS):
        dims: tuple[str, ...] = ("values",)
        return (
            dims,
            (count,),
            {n: _build_point_coordinate(dims, n, v) for n, v in point_coordinates.items()},
        )
    is_column_major = bool(keys.get("jPointsAreConsecutive"))
    shape = (columns, rows) if is_column_major else (rows, columns)
    grids = {n: values.reshape(shape) for n, values in point_coordinates.items()}
    if grid in RECTILINEAR_GRIDS and grids:
        dims = ("longitude", "latitude") if is_column_major else ("latitude", "longitude")
        # copies, so that the arrays of all points can be freed
        axis_coordinates = {dims[0]: grids[dims[0]][:, 0].copy(), dims[1]: grids[dims[1]][0].copy()}
        return (
            dims,
            shape,
            {n: _build_point_coordinate((n,), n, v) for n, v in axis_coordinates.items()},
        )
    dims = ("x", "y") if is_column_major else ("y", "x")
    return dims, shape, {n: _build_point_coordinate(dims, n, v) for n, v in grids.items()}


def _build_point_coordinate(
    dims: tuple[str, ...], name: str, values: npt.NDArray[np.float64]
) -> ManifestVariable:
    """Return a coordinate of the points of a grid."""
    attributes = COORDINATE_ATTRIBUTES[name]
    if dims == ("latitude",) and values[0] > values[-1]:
        attributes = {**attributes, "stored_direction": "decreasing"}
    return ManifestVariable(dims, values, attributes)


# ---------------------------------------------------------------------- groups

MAX_SHOWN = 12
"""Maximum number of fields that an error lists."""
COMPUTED_KEYS: dict[str, Callable[[GribField], Any]] = {
    **AXIS_GETTERS,
    "offset": lambda field: field.offset,
}
"""Functions for keys that are not keys of ecCodes: ``time`` in seconds, ``step`` in hours."""


@dataclass(frozen=True)
class FieldTable:
    """The fields of a file.

    Parameters
    ----------
    source : SourceFile
        The file with the messages.
    fields : sequence of GribField
        The fields, at least one.
    eccodes : module
    damaged : dict
        The errors of damaged messages, by their position.
    """

    source: SourceFile
    fields: Sequence[GribField]
    eccodes: Any
    damaged: Mapping[str, VirtualdsError]

    def select(self, filter_by_keys: Mapping[str, Any] | None) -> FieldTable:
        """Return a table of the fields whose keys have one of the given values.

        Raises `ValueError` if there is no such field, and `TypeError` if ``filter_by_keys`` is not
        a dict.
        """
        if not isinstance(filter_by_keys, Mapping | None):
            raise TypeError(
                f"filter_by_keys={filter_by_keys!r}: give a dict of keys and their values"
            )
        selected_fields = self.fields
        for name, values in (filter_by_keys or {}).items():
            is_list = isinstance(values, list | tuple | set | frozenset)
            texts = {str(v) for v in values} if is_list else {str(values)}
            selected = [m for m in selected_fields if self._find_texts(m, name) & texts]
            if not selected:
                existing = {min(self._find_texts(m, name), default="") for m in selected_fields}
                shown = sorted(existing - {""})
                listing = ", ".join(shown[:MAX_SHOWN]) + (", ..." if len(shown) > MAX_SHOWN else "")
                hint = f"those that are left have {listing}" if shown else "no message has this key"
                raise ValueError(
                    f"{self.source.url}: filter_by_keys: no message has {name}={values!r}; {hint}"
                )
            selected_fields = selected
        return replace(self, fields=selected_fields)

    def _find_texts(self, field: GribField, name: str) -> set[str]:
        """Return the strings that match the value of a key; none if the field does not have it."""
        if name in COMPUTED_KEYS:
            value = COMPUTED_KEYS[name](field)
        elif name in LISTED_KEYS:
            value = field.keys.get(name)
        else:
            value = read_key(field, name, self.eccodes)
        if isinstance(value, float) and value.is_integer():
            return {str(value), str(int(value))}
        return set() if value is None else {str(value)}

    def read(self, group: str | None, skip: Iterable[str], below: bool) -> ManifestGroup:
        """Return the group of that name, by default the only group, or all groups with ``below``.

        Raises `UnsupportedError` if ``group`` is missing although there are several, and
        `FileNotFoundError` if there is no such group.
        """
        parameter_groups = group_parameters(self.fields)
        name = group.strip("/") if isinstance(group, str) else group
        if not name and len(parameter_groups) > 1 and not below:
            raise UnsupportedError(
                f"{self.source.url}: messages are of {len(parameter_groups)} kinds, by type of "
                "level, grid, times, steps and levels; open one with group=, one of "
                f"{sorted(parameter_groups)}"
            )
        groups = {
            other: GroupReader(self.source, parameters, self.eccodes).read(frozenset(skip))
            if name in (None, "", other)
            else ManifestGroup()
            for other, parameters in parameter_groups.items()
        }
        if name or len(groups) > 1:
            selected = ManifestGroup(groups=groups).group(group)
        else:
            [selected] = groups.values()
        return replace(selected, damaged=self.damaged)


# ---------------------------------------------------------------------- grib

HEADER_BYTES = PAGE_SIZE
"""Number of bytes to prefetch from the start of each message: one page."""
HEADER_BATCH = 256
"""Number of headers that are prefetched together."""


def detect(head: bytes) -> bool:
    """Return whether a file that begins with ``head`` is GRIB, edition 1 or 2.

    Headings of bulletins and other bytes may precede the first message.
    """
    if head[:4] == b"GRIB":
        return head[7:8] in (b"\1", b"\2")
    return find_message(head) > 0 and not (is_zip(head) or is_tar(head))


def read(
    source: SourceFile,
    group: str | None = None,
    skip: Iterable[str] = (),
    *,
    below: bool = False,
    filter_by_keys: Mapping[str, Any] | None = None,
) -> ManifestGroup:
    """Read the structure of a file, or of one group of its messages.

    Raises `UnsupportedError` if ecCodes is not installed, or ``group`` is missing although there
    are several; `FormatError` if the file is damaged or truncated; `FileNotFoundError` if there is
    no such group; and `ValueError` if no message has these keys.

    Parameters
    ----------
    below : bool
        Whether to read all groups.
    filter_by_keys : dict, optional
        The values that messages must have, or lists of values, by key of ecCodes, as in cfgrib.
    """
    return scan(source).select(filter_by_keys).read(group, skip, below)


def scan(source: SourceFile) -> FieldTable:
    """Return the fields of a file, and its damaged messages.

    Raises `UnsupportedError` if ecCodes is not installed, or the size of the file is unknown, and
    `FormatError` if no message is valid.
    """
    eccodes = import_eccodes(source.url, "reading a GRIB file")
    if source.size is None:
        raise UnsupportedError(f"{source.url}: the server does not send its size; copy it")
    _fetch_headers(source)
    damaged: dict[str, VirtualdsError] = {}
    with (
        describe_damage(source, "GRIB", (eccodes.CodesInternalError,)),
        open_source(source) as file,
    ):
        messages = list(scan_messages(file, source.size, eccodes, damaged))
    for error in damaged.values():
        error.locate_file(source.url)
    if not messages:
        raise next(
            iter(damaged.values()),
            make_damage_error(f"{source.url}: it contains no GRIB message"),
        )
    return FieldTable(source, messages, eccodes, damaged)


def _fetch_headers(source: SourceFile) -> None:
    """Prefetch the headers of a remote file together, if there is an inventory with their offsets.

    wgrib2 writes an inventory next to the file, with a line per message, and the offset after the
    first colon. A wrong inventory is harmless.
    """
    if scheme_of(source.url) == "file":
        return
    text, url = "", f"{source.url}.idx"
    with suppress(FileNotFoundError, PermissionError):
        text = find_store(url).read_all(url, source.options).decode("ascii", "replace")
    fields = (line.split(":", 2) for line in text.splitlines())
    offsets = sorted({int(f[1]) for f in fields if len(f) == 3 and f[1].isdigit()})
    size = source.size or 0
    ranges = [(offset, min(HEADER_BYTES, size - offset)) for offset in offsets if offset < size]
    for first in range(0, len(ranges), HEADER_BATCH):
        prefetch_ranges({source: ranges[first : first + HEADER_BATCH]})


def _open_cfgrib(target: Callable[[], Any], closing: ExitStack) -> ReadNative:
    """Open the datasets that cfgrib builds from the messages of a file."""
    import cfgrib  # type: ignore[import-untyped]

    opened = cfgrib.open_datasets(target(), backend_kwargs={"indexpath": "", "errors": "raise"})
    datasets = [closing.enter_context(dataset) for dataset in opened]

    def read_variable(request: NativeRegion) -> Any:
        # the codec unpacks the values, so stored values are decoded values
        variables = (dataset.variables.get(request.variable) for dataset in datasets)
        # open_datasets, unlike cfgrib's engine for xarray, drops axes of length 1
        dropped_axes = [axis for axis, length in enumerate(request.shape) if length == 1]
        shape = tuple(length for length in request.shape if length != 1)
        candidates = [v for v in variables if v is not None and v.shape == shape]
        if len(candidates) != 1:
            raise NativeReadError(
                f"it makes {len(candidates)} variables {request.variable!r} "
                f"of shape {request.shape} of the file"
            )
        region = (part for axis, part in enumerate(request.region) if axis not in dropped_axes)
        return np.expand_dims(candidates[0][tuple(region)].values, dropped_axes)

    return read_variable


PARSER = Parser(
    "grib",
    (".grib", ".grib1", ".grib2", ".grb", ".grb2"),
    detect,
    read,
    takes=("below",),
    options=("filter_by_keys",),
    natives=(NativeReader("cfgrib", _open_cfgrib),),
)
