"""GRIB files: messages as chunks, decoded by ecCodes.

Messages of one parameter with the same attributes form one variable, with the coordinates of
cfgrib: number, time, step and level, if there are several. Variables of one type of level form a
dataset if they have the same grid, times, steps, levels and members, like those joined by cfgrib's
``open_datasets``. Messages that differ in type of level, grid or kind of interval are in different
groups; ``filter_by_keys`` is the same as in cfgrib.

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
from virtualds.arrays.group import ManifestGroup, ManifestVariable
from virtualds.arrays.parser import NativeReader, NativeReadError, NativeRegion, Parser, ReadNative
from virtualds.bounds import check_table
from virtualds.chunks.axes import ChunkAxis
from virtualds.chunks.columns import MISSING
from virtualds.chunks.fragment import Fragment
from virtualds.chunks.manifest import ChunkManifest
from virtualds.codecs.grib import GribMessage
from virtualds.codecs.pipeline import CodecPipeline
from virtualds.errors import FormatError, UnsupportedError, VirtualdsError
from virtualds.importing import import_eccodes
from virtualds.parsers.grib.messages import (
    LISTED_KEYS,
    OF_COORDINATES,
    OF_DATASETS,
    OF_PARAMETERS,
    PARAMETER_NUMBERS,
    PLANES,
    GribField,
    describe_coordinate,
    describe_dataset,
    describe_variable,
    find_message,
    name_level,
    name_variable,
    read_coordinates,
    read_key,
    scan_messages,
)
from virtualds.source_file import SourceFile, StorageOptions
from virtualds.stores import find_store
from virtualds.stores.archive import is_tar, is_zip
from virtualds.stores.block_cache import PAGE
from virtualds.stores.scan_cache import describe_damage, fetch_ahead, open_source
from virtualds.urls import path_or_url, scheme_of

AXES: dict[str, Callable[[GribField], Any]] = {
    "number": lambda m: m.keys.get("number"),
    "time": lambda m: m.time,
    "step": lambda m: m.step,
    "level": lambda m: m.keys.get("level"),
    "directionNumber": lambda m: m.keys.get("directionNumber"),
    "frequencyNumber": lambda m: m.keys.get("frequencyNumber"),
}
"""Axes before the axes of the grid, with functions that return the coordinate of a field, or
None."""
FROM_GROUND_UP = ("isobaricInhPa", "isobaricInPa")
"""Types of level whose values decrease along their axis."""


@dataclass(frozen=True)
class Parameter:
    """The fields of one variable.

    Parameters
    ----------
    name : str
    fields : list of GribField
    axes : dict
        The values on each axis that the fields have.
    lacking : list of str
        The axes on which some of the fields have no coordinate.
    """

    name: str
    fields: list[GribField]
    axes: dict[str, list[Any]]
    lacking: list[str]

    @property
    def kind(self) -> tuple[Any, ...]:
        """The properties that all parameters of a dataset share, besides their axes."""
        keys = self.fields[0].keys
        return tuple(str(keys.get(n)) for n in ("typeOfLevel", "md5GridSection", *OF_DATASETS))


Kind = list[Parameter]
"""Parameters that form one dataset."""


def group_kinds(fields: Sequence[GribField]) -> dict[str, Kind]:
    """Return the parameters of each dataset, by the name of its group."""
    kinds: dict[tuple[Any, ...], list[Kind]] = {}
    for parameter in _find_parameters(fields):
        rivals = kinds.setdefault(parameter.kind, [])
        for kind in rivals:
            if all(_can_join(other, parameter) for other in kind):
                kind.append(parameter)
                break
        else:
            rivals.append([parameter])
    every = [kind for rivals in kinds.values() for kind in rivals]
    return dict(zip(_name_kinds(every), every, strict=True))


def _find_parameters(all_fields: Sequence[GribField]) -> Iterator[Parameter]:
    """Group fields by the numbers of the measured quantity, and yield the parameters."""
    names = (*OF_PARAMETERS, *OF_DATASETS, "md5GridSection")
    fields: dict[tuple[Any, ...], list[GribField]] = {}
    for field in all_fields:
        shared = tuple(field.keys.get(n) for n in names)
        fields.setdefault((*shared, _number_unknown(field)), []).append(field)
    several = len({numbers for *_, numbers in fields if numbers}) > 1
    for (*_, numbers), same in sorted(fields.items(), key=_rank):
        name = name_variable(same[0].keys)
        name = f"{name}_{numbers}" if numbers and several else name
        yield Parameter(name, same, *_find_axes(same))


def _rank(item: tuple[tuple[Any, ...], list[GribField]]) -> int:
    return int(item[1][0].keys.get("paramId", 0))


def _number_unknown(field: GribField) -> str:
    """Return the numbers of a parameter without a name in ecCodes, or "" for others."""
    if field.keys.get("paramId", 0):
        return ""
    return "_".join(str(field.keys[n]) for n in PARAMETER_NUMBERS if n in field.keys)


def _find_axes(fields: Sequence[GribField]) -> tuple[dict[str, list[Any]], list[str]]:
    """Return the values of fields on their axes, and the axes that some fields lack."""
    axis_values = {name: {describe(m) for m in fields} for name, describe in AXES.items()}
    axes = {
        name: sorted(values - {None}) for name, values in axis_values.items() if values != {None}
    }
    if name_level(fields[0].keys) in FROM_GROUND_UP and "level" in axes:
        axes["level"].reverse()
    return axes, [name for name in axes if None in axis_values[name]]


def _can_join(other: Parameter, parameter: Parameter) -> bool:
    """Return whether two parameters may be in one dataset."""
    shared = other.axes.keys() & parameter.axes.keys()
    alike = all(other.axes[axis] == parameter.axes[axis] for axis in shared)
    return alike and other.name != parameter.name


# ---------------------------------------------------------------------- names of groups


def _describe_levels(kind: Kind) -> str:
    levels = next((p.axes["level"] for p in kind if "level" in p.axes), [])
    return f"{levels[0]:g}" if len(levels) == 1 else f"{len(levels)}_levels"


def _describe_key(name: str) -> Callable[[Kind], str]:
    """Return a function that returns the value of a key if all fields of a kind share it."""

    def describe(kind: Kind) -> str:
        values = {str(parameter.fields[0].keys.get(name, "")) for parameter in kind}
        return values.pop() if len(values) == 1 else ""

    return describe


def _describe_steps(kind: Kind) -> str:
    steps = next((p.axes["step"] for p in kind if "step" in p.axes), [])
    return f"step_{steps[0]:g}" if len(steps) == 1 else f"{len(steps)}_steps"


def _describe_parameters(kind: Kind) -> str:
    return kind[0].name if len(kind) == 1 else ""


DISTINCTIONS: tuple[Callable[[Kind], str], ...] = (
    *(_describe_levels, _describe_key("stepType"), _describe_key("dataType"), _describe_steps),
    _describe_parameters,
)
"""Functions that describe kinds of one type of level, in the order of their use in group names."""


def _name_kinds(kinds: Sequence[Kind]) -> list[str]:
    """Name kinds by type of level, and by further differences if necessary."""
    named = [str(kind[0].fields[0].keys.get("typeOfLevel", "unknown")) for kind in kinds]
    for describe in DISTINCTIONS:
        counts = Counter(named)
        texts = [describe(kind) for kind in kinds]
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

REGULAR = ("regular_ll", "regular_gg")
"""Grids whose rows are parallels."""
DISTINGUISHING_KEYS = (
    *("stepRange", "bottomLevel", "dataType", "percentileValue", "perturbationNumber"),
    *("forecastProbabilityNumber", "probabilityType", "typeOfStatisticalProcessing", "paramId"),
    *("constituentType", "aerosolType", "scaledValueOfFirstWavelength", "statisticalProcess"),
    "scaledValueOfSecondFixedSurface",
)
"""Keys that may distinguish messages with the same coordinates."""


class MessageGroup:
    """Parameters that form one dataset: of one type of level, one grid, the same axes."""

    def __init__(self, source: SourceFile, kind: Kind, eccodes: Any) -> None:
        self.source, self.kind, self.first = source, kind, kind[0].fields[0]
        self.level = name_level(self.first.keys)
        axis_values = {
            axis: values for parameter in kind for axis, values in parameter.axes.items()
        }
        self.values = {axis: axis_values[axis] for axis in AXES if axis in axis_values}
        self.problems: dict[str, VirtualdsError] = {}
        self.dims, self.shape, self.coordinates = _build_grid(
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
        """Return the variable of a parameter, unreadable if its fields do not form an array."""
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
        names = [*map(self._name_axis, parameter.axes), *self.coordinates]
        names += ["valid_time"] if {"time", "step"} <= parameter.axes.keys() else []
        # missing messages read as NaN, like missing values
        more = {"coordinates": " ".join(names), "_FillValue": np.float32(np.nan)}
        attributes = describe_variable(parameter.fields[0].keys) | more
        dims = (*map(self._name_axis, axes), *self.dims)
        return ManifestVariable(dims, array, attributes, encoding)

    def _build_array(
        self, parameter: Parameter, axes: Sequence[str], lengths: tuple[int, ...]
    ) -> ManifestArray:
        """Return the fields of one parameter as an array, with one chunk per field."""
        fields = parameter.fields
        check_table(lengths, len(fields), f"parameter {parameter.name!r}")
        rows = _find_rows(parameter, axes, lengths)
        grid = (*lengths, *(1 for _ in self.shape))
        numbers = sorted({m.number for m in fields})
        exists = (rows >= 0).reshape(grid)

        def fill_rows(column: list[int]) -> npt.NDArray[np.int64]:
            return np.where(exists, np.array(column)[rows].reshape(grid), 0)

        manifest = ChunkManifest.build(
            grid,
            files=[self.source],
            file=np.where(exists, 0, MISSING),
            offset=fill_rows([m.offset for m in fields]),
            length=fill_rows([m.length for m in fields]),
            pipeline=fill_rows([numbers.index(m.number) for m in fields]),
        )
        chunks = (*(ChunkAxis.regular(n, 1) for n in lengths),)
        chunks += tuple(ChunkAxis.regular(n, n) for n in self.shape)
        fragment = Fragment.whole(chunks, manifest)
        pipelines = tuple(_decode_with(GribMessage(n), len(chunks)) for n in numbers)
        array = ManifestArray.from_fragment(fragment, pipelines[0])
        return replace(array, pipelines=pipelines)

    def _name_axis(self, axis: str) -> str:
        """Return the name of an axis; the level axis has the name of the type of level."""
        return self.level if axis == "level" else axis

    def _build_coordinates(self) -> dict[str, ManifestVariable]:
        coordinates = dict(self.coordinates)
        for axis, several in self.values.items():
            name, values = self._name_axis(axis), np.array(several)
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
        return ManifestVariable(time_axes, valid, OF_COORDINATES["valid_time"])


def _decode_with(codec: GribMessage, ndim: int) -> CodecPipeline:
    nothing = np.float32(np.nan).tobytes()
    return CodecPipeline(np.dtype("<f4"), (codec,), nothing, tuple(range(ndim)))


def _find_rows(
    parameter: Parameter, axes: Sequence[str], lengths: tuple[int, ...]
) -> npt.NDArray[np.int64]:
    """Return the index of the field at each position of the axes, or -1 if there is none."""
    for axis in parameter.lacking:
        field = next(field for field in parameter.fields if AXES[axis](field) is None)
        raise UnsupportedError(
            f"GRIB message at byte {field.offset} has no {axis}, and other messages of "
            f"{parameter.name!r} have; choose messages by a key with "
            f"parser_options={{'filter_by_keys': ...}}, or leave it out with drop_variables"
        )
    rows = np.full(lengths, -1)
    indexes = [{v: i for i, v in enumerate(parameter.axes[axis])} for axis in axes]
    for row, field in enumerate(parameter.fields):
        pairs = zip(axes, indexes, strict=True)
        at = tuple(index[AXES[axis](field)] for axis, index in pairs)
        if rows[at] >= 0:
            raise _make_ambiguous_error(parameter.name, parameter.fields[rows[at]], field)
        rows[at] = row
    return rows


def _make_ambiguous_error(name: str, first: GribField, second: GribField) -> UnsupportedError:
    """Return the error for two messages at one position of an array."""
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
        return dims, (count,), {n: _build_point_coordinate(dims, n, v) for n, v in where.items()}
    by_columns = bool(keys.get("jPointsAreConsecutive"))
    shape = (columns, rows) if by_columns else (rows, columns)
    full = {n: values.reshape(shape) for n, values in where.items()}
    if grid in REGULAR and full:
        dims = ("longitude", "latitude") if by_columns else ("latitude", "longitude")
        # copy, so that the array of all points can be freed
        lines = {dims[0]: full[dims[0]][:, 0].copy(), dims[1]: full[dims[1]][0].copy()}
        return dims, shape, {n: _build_point_coordinate((n,), n, v) for n, v in lines.items()}
    dims = ("x", "y") if by_columns else ("y", "x")
    return dims, shape, {n: _build_point_coordinate(dims, n, v) for n, v in full.items()}


def _build_point_coordinate(
    dims: tuple[str, ...], name: str, values: npt.NDArray[np.float64]
) -> ManifestVariable:
    """Build a coordinate of the points of a grid."""
    attributes = OF_COORDINATES[name]
    if dims == ("latitude",) and values[0] > values[-1]:
        attributes = {**attributes, "stored_direction": "decreasing"}
    return ManifestVariable(dims, values, attributes)


# ---------------------------------------------------------------------- groups

SHOWN = 12
"""Maximum number of fields that an error lists."""
OWN_KEYS: dict[str, Callable[[GribField], Any]] = {**AXES, "offset": lambda field: field.offset}
"""Keys with the values of coordinates: ``time`` in seconds, ``step`` in hours."""


@dataclass(frozen=True)
class FieldTable:
    """The fields of a file.

    Parameters
    ----------
    source : SourceFile
        The file with the messages.
    fields : sequence of GribField
        At least one.
    eccodes : module
    damaged : dict
        What is wrong with the messages without a field here, by their position.
    """

    source: SourceFile
    fields: Sequence[GribField]
    eccodes: Any
    damaged: Mapping[str, VirtualdsError]

    def select(self, filter_by_keys: Mapping[str, Any] | None) -> FieldTable:
        """Return the fields whose keys have one of the given values.

        Raises
        ------
        ValueError
            There is no such field.
        TypeError
            ``wanted`` is not a dict.
        """
        if not isinstance(filter_by_keys, Mapping | None):
            raise TypeError(
                f"filter_by_keys={filter_by_keys!r}: give a dict of keys and their values"
            )
        selected_fields = self.fields
        for name, values in (filter_by_keys or {}).items():
            several = isinstance(values, list | tuple | set | frozenset)
            texts = {str(v) for v in values} if several else {str(values)}
            selected = [m for m in selected_fields if self._find_texts(m, name) & texts]
            if not selected:
                raise self._make_nothing_error(name, values, selected_fields)
            selected_fields = selected
        return replace(self, fields=selected_fields)

    def _find_texts(self, field: GribField, name: str) -> set[str]:
        """Return the strings that a user may pass for the value of a key; none without a value."""
        if name in OWN_KEYS:
            value = OWN_KEYS[name](field)
        elif name in LISTED_KEYS:
            value = field.keys.get(name)
        else:
            value = read_key(field, name, self.eccodes)
        if isinstance(value, float) and value.is_integer():
            return {str(value), str(int(value))}
        return set() if value is None else {str(value)}

    def _make_nothing_error(
        self, name: str, values: Any, fields: Sequence[GribField]
    ) -> ValueError:
        existing = sorted(
            {min(self._find_texts(field, name), default="") for field in fields} - {""}
        )
        listing = ", ".join(existing[:SHOWN]) + (", ..." if len(existing) > SHOWN else "")
        return ValueError(
            f"{self.source.url}: filter_by_keys: no message has {name}={values!r}; "
            f"{f'those that are left have {listing}' if existing else 'no message has this key'}"
        )

    def read(self, group: str | None, skip: Iterable[str]) -> ManifestGroup:
        """Return one group of the fields, or all fields if they are of one kind.

        Raises
        ------
        UnsupportedError
            ``group`` is missing although there are several.
        FileNotFoundError
            There is no such group.
        """
        kinds = group_kinds(self.fields)
        group_name = group.strip("/") if isinstance(group, str) else group
        if len(kinds) > 1 and not group_name:
            raise UnsupportedError(
                f"{self.source.url}: messages are of {len(kinds)} kinds, by type of level, grid, "
                f"times, steps and levels; open one with group=, one of {sorted(kinds)}"
            )
        if not group_name:
            (kind,) = kinds.values()
            return self._note(self._make(kind, skip))
        groups = {
            name: self._note(self._make(kind, skip)) if name == group_name else ManifestGroup()
            for name, kind in kinds.items()
        }
        return ManifestGroup(groups=groups).group(group)

    def read_tree(self, group: str | None, skip: Iterable[str]) -> ManifestGroup:
        """Return the fields of each kind as a group, unless there is only one kind."""
        if group is not None and (not isinstance(group, str) or group.strip("/")):
            return self.read(group, skip)
        kinds = group_kinds(self.fields)
        groups = {name: self._make(kind, skip) for name, kind in kinds.items()}
        return self._note(
            ManifestGroup(groups=groups) if len(groups) > 1 else next(iter(groups.values()))
        )

    def _make(self, kind: Kind, skip: Iterable[str]) -> ManifestGroup:
        return MessageGroup(self.source, kind, self.eccodes).read(frozenset(skip))

    def _note(self, group: ManifestGroup) -> ManifestGroup:
        """Add the damaged messages of the file to a group."""
        return replace(group, damaged=self.damaged)


# ---------------------------------------------------------------------- grib

HEADER = PAGE
"""The number of bytes that are fetched from the beginning of each message: one page."""
HEADERS_AT_ONCE = 256
"""The number of headers that are fetched together."""


def detect(head: bytes) -> bool:
    """Return whether a file that begins with ``head`` is GRIB, edition 1 or 2.

    Headings of bulletins, and other bytes from archives, may precede the first message.
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

    Parameters
    ----------
    source : SourceFile
        The file with its fingerprint.
    group : str, optional
        The group to read, if messages are of several kinds.
    skip : iterable of str
        Names of variables to leave out.
    below : bool
        Whether messages of all kinds are read, each kind as a group, unless there is only one.
    filter_by_keys : dict, optional
        Values of ecCodes' keys that messages must have, as in cfgrib; or lists of values.

    Raises
    ------
    UnsupportedError
        ecCodes is not installed, or ``group`` is missing although there are several.
    FormatError
        The file is damaged or truncated.
    FileNotFoundError
        There is no such group.
    ValueError
        No message has these keys.
    """
    found = scan(source).select(filter_by_keys)
    return (found.read_tree if below else found.read)(group, skip)


def scan(source: SourceFile) -> FieldTable:
    """Return the fields of a file, and its damaged messages.

    Raises
    ------
    UnsupportedError
        ecCodes is not installed, or the size of the file is unknown.
    FormatError
        No message is valid.
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
        raise next(iter(damaged.values()), _make_empty_error(source.url))
    return FieldTable(source, messages, eccodes, damaged)


def _make_empty_error(url: str) -> FormatError:
    return FormatError(f"{url}: it holds no GRIB message; the file is damaged, fetch it again")


def _fetch_headers(source: SourceFile) -> None:
    """Fetch the headers of a remote file together, if an inventory has their offsets.

    An inventory of wgrib2 is beside the file: a line for each message, with its offset after the
    first colon. A wrong inventory costs bytes, nothing else.
    """
    if scheme_of(source.url) == "file":
        return
    text = ""
    with suppress(FileNotFoundError, PermissionError):
        text = _fetch_inventory(f"{source.url}.idx", source.options)
    fields = (line.split(":", 2) for line in text.splitlines())
    offsets = sorted({int(f[1]) for f in fields if len(f) == 3 and f[1].isdigit()})
    size = source.size or 0
    ranges = [(offset, min(HEADER, size - offset)) for offset in offsets if offset < size]
    for first in range(0, len(ranges), HEADERS_AT_ONCE):
        fetch_ahead({source: ranges[first : first + HEADERS_AT_ONCE]})


def _fetch_inventory(url: str, options: StorageOptions | None) -> str:
    return find_store(url).read_all(url, options).decode("ascii", "replace")


def _open_cfgrib(target: Callable[[], Any], closing: ExitStack) -> ReadNative:
    """Open the datasets that cfgrib builds from the messages of a file."""
    import cfgrib  # type: ignore[import-untyped]

    opened = cfgrib.open_datasets(target(), backend_kwargs={"indexpath": "", "errors": "raise"})
    datasets = [closing.enter_context(dataset) for dataset in opened]

    def read_variable(request: NativeRegion) -> Any:
        # the codec undoes a message's packing, so stored values are decoded values
        named = (dataset.variables.get(request.variable) for dataset in datasets)
        # open_datasets, unlike cfgrib's engine for xarray, drops axes of length 1
        short = [axis for axis, length in enumerate(request.shape) if length == 1]
        shape = tuple(length for length in request.shape if length != 1)
        candidates = [v for v in named if v is not None and v.shape == shape]
        if len(candidates) != 1:
            raise NativeReadError(
                f"it makes {len(candidates)} variables {request.variable!r} "
                f"of shape {request.shape} of the file"
            )
        region = (part for axis, part in enumerate(request.region) if axis not in short)
        return np.expand_dims(candidates[0][tuple(region)].values, short)

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
