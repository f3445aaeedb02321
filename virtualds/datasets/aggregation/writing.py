"""Write and read the format ``cfa``: aggregation files, which other CF software also reads.

CF conventions 1.13, section 2.8 "Aggregation Variables" and appendix L. A reference says which
bytes of a file a chunk has; an aggregation file names the variable to which they belong, which
`virtualds.datasets.aggregation.fragments` finds. Before a file is written, its bytes are read back,
and must have the references, values and attributes of the group (`list_differences_after_reading`).

NetCDF User's Guide, appendix "File Format Specifications", section "The NetCDF-4 Format": a
netCDF-4 file is an HDF5 file, whose dimensions are dimension scales.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from math import prod
from typing import Any
from urllib.parse import quote

import numpy as np
import xarray as xr

from virtualds.arrays.array import ManifestArray, is_same_scalar
from virtualds.arrays.group import ManifestGroup, ManifestVariable
from virtualds.arrays.parser import AGGREGATED_DATA, AGGREGATED_DIMENSIONS, Parser
from virtualds.chunks.columns import INLINE
from virtualds.codecs.cf import PACKING_ATTRIBUTES, UNITS_OF_DATES, Packing, are_date_units
from virtualds.codecs.pipeline import SCALE_ATTRIBUTES, CodecPipeline, name_pipelines
from virtualds.datasets.aggregation import (
    build_aggregations,
    find_aggregations,
    list_fills,
)
from virtualds.datasets.aggregation.fragments import (
    OTHER_FORMAT,
    AggregatedVariable,
    FragmentFinder,
    FragmentGrid,
    find_constant_edges,
    list_missing_values,
    read_constants,
    tabulate_chunks,
)
from virtualds.datasets.aggregation.plan import (
    NETCDF_FILLS,
    OWN_CONVENTIONS,
    AggregationFile,
    Array,
    Name,
    add_conventions,
)
from virtualds.datasets.conversion import to_virtual_dataset
from virtualds.datasets.decoding import CHARACTER_AXIS
from virtualds.datasets.lazy import get_virtual_array
from virtualds.datasets.location import DetectedReader, Location, reader_of
from virtualds.datasets.open import (
    NETCDF,
    make_fragment_opener,
    read_aggregation_file,
    read_file,
    read_source,
)
from virtualds.datasets.open_options import OpenOptions
from virtualds.errors import (
    LOAD_OR_LEAVE_OUT,
    FormatError,
    ReadError,
    UnsupportedError,
    VirtualdsError,
    locating,
    make_unsupported_error,
)
from virtualds.formats import READ_ALL, ReadOptions
from virtualds.source_file import SourceFile, StorageOptions, make_relative, scheme_of
from virtualds.stores import find_store
from virtualds.stores.access_rules import DEFAULT_POLICY, AccessPolicy, resolve_url
from virtualds.stores.fence import make_conflict_error
from virtualds.stores.store import ChangedError

NAME, SUFFIX, MAP = "cfa", ".nca", "fragment_map"

# ---------------------------------------------------------------------- the aggregation file


@dataclass
class DocumentBuilder:
    """Builds the group of an aggregation file: aggregation variables, and fragment array variables.

    ``conventions`` is the attribute ``Conventions`` of the dataset, which the file replaces. After
    `build`, ``dims`` has the sizes of the dimensions of arrays, by path of the group.
    """

    url: str
    relative: bool
    conventions: str
    dims: dict[str, dict[str, int]] = field(default_factory=dict)

    def build(
        self,
        group: ManifestGroup,
        aggregated: Mapping[Name, AggregatedVariable],
        grids: Mapping[Name, FragmentGrid],
        path: str = "",
    ) -> ManifestGroup:
        """Return a group with aggregation variables in place of virtual arrays."""
        used_names = {*group.variables, *group.groups, *find_dims(group)}
        descriptive = dict[str, ManifestVariable]()
        name_of = dict[Any, str]()

        def make_unique(name: str) -> str:
            candidate = name
            while candidate in used_names:
                number = int(candidate[len(name) + 1 :] or 0) + 1
                candidate = f"{name}_{number}"
            used_names.add(candidate)
            return candidate

        def add(name: str, dims: tuple[str, ...], values: Any) -> str:
            key = name, dims, values.shape, tuple(values.ravel().tolist())
            if key not in name_of:
                name_of[key] = make_unique(name)
                axes = list[str]()
                for dim, size in zip(dims, values.shape, strict=True):
                    axis = name, dim, size
                    if axis not in name_of:
                        name_of[axis] = make_unique(dim)
                    axes.append(name_of[axis])
                map_attributes = {OWN_CONVENTIONS: self.conventions} if name == MAP else {}
                descriptive[name_of[key]] = ManifestVariable(tuple(axes), values, map_attributes)
            return name_of[key]

        variables = dict[str, ManifestVariable]()
        for name, variable in group.variables.items():
            grid = grids.get((path, name))
            if grid is None:
                variables[name] = replace(variable, data=variable.read())
                continue
            target = aggregated[path, name]
            self.dims.setdefault(path, {}).update(zip(target.dims, target.array.shape, strict=True))
            aggregated_data = " ".join(
                f"{feature}: {add(f'fragment_{feature}', dims, values)}"
                for feature, dims, values in self._iterate_features(target, grid)
            )
            attributes = {
                **target.attributes,
                AGGREGATED_DIMENSIONS: " ".join(target.dims),
                AGGREGATED_DATA: aggregated_data,
            }
            # scaled variables have the dtype of unpacked values, others that of stored numbers
            is_scaled = not variable.attributes.keys().isdisjoint(SCALE_ATTRIBUTES)
            array: Any = target.array if is_scaled else variable.data
            dtype = array.dtype.newbyteorder("=")
            fills = list_fills(target.attributes)
            value = np.asarray(fills[0] if fills else 0).astype(dtype)
            variables[name] = ManifestVariable((), value, attributes)
        below = {
            name: self.build(child, aggregated, grids, f"{path}/{name}".strip("/"))
            for name, child in group.groups.items()
        }
        attributes = dict(group.attributes)
        if grids and not path:
            attributes["Conventions"] = add_conventions(self.conventions)
        return replace(
            group,
            variables={**variables, **descriptive},
            attributes=attributes,
            groups=below,
            notes={},
        )

    def _iterate_features(
        self, variable: AggregatedVariable, grid: FragmentGrid
    ) -> Iterator[tuple[str, tuple[str, ...], Any]]:
        """Yield the name, dimensions and values of each feature of a variable."""
        for dim in variable.dims:
            if not dim or dim.split() != [dim]:
                raise UnsupportedError(
                    f"the name of its dimension {dim!r} has blanks, which separate names in the "
                    f"attribute {AGGREGATED_DIMENSIONS}; rename it (ds.rename)"
                )
        dims = tuple(f"f_{dim}" for dim in variable.dims)
        longest = max(map(len, grid.lengths), default=1)
        if not dims:
            yield "map", (), np.array(1, "i4")
        else:
            max_length = max(max(row, default=1) for row in grid.lengths)
            dtype = "i4" if max_length < 2**31 else "i8"
            # masked by the default fill value of netCDF
            fill = {"i4": -2147483647, "i8": -9223372036854775806}[dtype]
            lengths = np.full((len(dims), longest), fill, dtype)
            for row, axis_lengths in zip(lengths, grid.lengths, strict=True):
                row[: len(axis_lengths)] = axis_lengths
            yield "map", ("map_axis", "map_fragment"), lengths
        if grid.values is not None:
            yield "unique_values", dims, mask_missing(grid.values, variable.attributes)
            return
        uris = np.full(grid.shape, "", object)
        identifier_grid = np.full(grid.shape, "", object)
        for index, part in grid.parts.items():
            uris[index] = make_uri(part.url, self.url, self.relative)
            identifier_grid[index] = part.identifier
        yield "uris", dims, uris
        identifiers = dict.fromkeys(part.identifier for part in grid.parts.values())
        if len(identifiers) == 1:
            yield "identifiers", (), np.array(next(iter(identifiers)), object)
        else:
            yield "identifiers", dims, identifier_grid


def mask_missing(values: Array, attributes: Mapping[str, Any]) -> Array:
    """Return constants with missing ones as NaN, or as the default fill value of netCDF."""
    masked = values.astype(values.dtype.newbyteorder("="))
    default = NETCDF_FILLS.get(masked.dtype.str[1:], np.nan)
    for fill in [np.nan, *list_fills(attributes)]:
        masked[(masked == fill) | ((fill != fill) & (masked != masked))] = default
    return masked


def find_dims(group: ManifestGroup) -> set[str]:
    """Return the dimensions of a group."""
    return {dim for variable in group.variables.values() for dim in variable.dims}


def make_uri(url: str, base: str, relative: bool) -> str:
    """Return the uri of a fragment (RFC 3986), optionally relative to the aggregation file."""
    uri = make_relative(url, base) if relative else url
    if scheme_of(url) != "file" or "::" in url:
        return uri
    scheme, colon, path = uri.rpartition("://")
    return f"{scheme}{colon}{quote(path, safe=UNESCAPED)}"


UNESCAPED = "/!$&'()*+,;=:@~"
"""Characters of a path that need no escape (RFC 3986, section 3.3)."""


# ---------------------------------------------------------------------- encoding


def encode(group: ManifestGroup, url: str, *, relative: bool = False) -> bytes:
    """Return the bytes of the aggregation file of a group, after verifying them.

    Raises
    ------
    UnsupportedError
        Variables do not consist of whole variables of netCDF files, or netCDF cannot store them;
        the message names all of them.
    ReadError
        A file cannot be read, or has changed since it was scanned.
    """
    data, problems = _encode(group, url, relative)
    if problems:
        raise make_unsupported_error(url, NAME, problems, LOAD_OR_LEAVE_OUT)
    return data


def _encode(group: ManifestGroup, url: str, relative: bool) -> tuple[bytes, list[str]]:
    """Return the bytes of an aggregation file, and the reasons why it cannot be written."""
    # a set that is changed is replaced, so its own values are loaded first
    group = group.map_variables(lambda path, variable: _load_own_values(variable, url))
    group = to_netcdf_types(group)
    expected, grids, problems = plan_fragments(group, url)
    if problems:
        return b"", problems
    conventions = str(group.attributes.get("Conventions", ""))
    builder = DocumentBuilder(url, relative, conventions)
    with locating(url):
        document = builder.build(group, expected, grids)
        data = encode_netcdf4(document, builder.dims)
    return data, list_differences_after_reading(data, url, group, expected)


def to_netcdf_types(group: ManifestGroup) -> ManifestGroup:
    """Return a group whose variables have netCDF types.

    Bytes in memory become characters along a new dimension. Numpy dates become numbers with units,
    and are loaded if the reference dates of files differ.
    """
    variables = dict(group.variables)
    used_dims = find_dims(group)
    bounds = {v.attributes.get("bounds"): name for name, v in group.variables.items()}
    # bounds have the units of their coordinate, which are chosen first
    for name, variable in sorted(variables.items(), key=lambda item: item[0] in bounds):
        width = variable.data.dtype.itemsize
        if variable.data.dtype.kind in "mM":
            with locating(f"variable {name!r}"):
                coordinate = variables[bounds[name]].attributes if name in bounds else {}
                variables[name] = _encode_dates(name, variable, coordinate)
        elif isinstance(variable.data, ManifestArray):
            continue
        elif variable.data.dtype.kind == "S" and width > 1:
            dim = str(variable.encoding.get(CHARACTER_AXIS) or f"string{width}")
            while dim in used_dims:
                dim = f"{dim}_"
            used_dims.add(dim)
            values = np.ascontiguousarray(variable.read())
            characters = np.frombuffer(values.tobytes(), "S1").reshape(*values.shape, width)
            variables[name] = replace(variable, dims=(*variable.dims, dim), data=characters)
    subgroups = {name: to_netcdf_types(child) for name, child in group.groups.items()}
    return replace(group, variables=variables, groups=subgroups)


def _encode_dates(
    name: str, variable: ManifestVariable, coordinate: Mapping[str, Any]
) -> ManifestVariable:
    """Return dates or durations as numbers with units (CF 4.4), or raise if that is inexact.

    ``coordinate`` are the attributes of their coordinate, if the variable holds bounds.
    """
    if isinstance(variable.data, ManifestArray):
        variable.data.check_limit(variable.data.nbytes)
    dates = xr.Variable(variable.dims, variable.read(), variable.attributes)
    has_coordinate = dates.dtype.kind == "M" and are_date_units(coordinate.get("units"))
    if has_coordinate:
        dates.encoding = {name: coordinate[name] for name in UNITS_OF_DATES if name in coordinate}
    stored = xr.conventions.encode_cf_variable(dates, name=name)
    roundtrip = xr.conventions.decode_cf_variable(
        name, stored.copy(), decode_timedelta=dates.dtype.kind == "m"
    )
    if not np.array_equal(roundtrip.values, dates.values, equal_nan=True):
        raise UnsupportedError(
            f"its values are {dates.dtype}, and no units of CF hold them exactly; convert them to "
            f"numbers, or leave it out (ds.drop_vars)"
        )
    attributes = {
        n: v for n, v in stored.attrs.items() if not (has_coordinate and n in UNITS_OF_DATES)
    }
    return replace(variable, data=np.asarray(stored.values), attributes=attributes)


def plan_fragments(
    group: ManifestGroup, url: str
) -> tuple[dict[Name, AggregatedVariable], dict[Name, FragmentGrid], list[str]]:
    """Return the virtual variables of a group, their fragment grids, and all problems."""
    variables = {
        (path, name): aggregated
        for path, part in group.walk()
        for name, variable in part.variables.items()
        if (aggregated := to_aggregated_variable((path, name), variable)) is not None
    }
    finder = FragmentFinder(make_fragment_opener(parsers=NETCDF))
    finder.find(list(variables.values()))
    problems, grids = list[str](), dict[Name, FragmentGrid]()
    for key, target in variables.items():
        reason = target.problem
        if any(part.url == url for part in target.parts):
            reason = "its chunks are in the file that would be replaced; choose another name"
        if not reason:
            try:
                grids[key] = FragmentGrid.of(target)
            except UnsupportedError as error:
                reason = f"{error}"
        if reason:
            problems.append(f"{target.path}: {reason}")
    for target in variables.values():
        for file in target.rows.files:
            current = finder.files.get(file.url)
            if current is not None and current.merge(file) is None:
                raise ReadError(
                    f"{file.url} has changed since it was scanned (size, time, etag "
                    f"{list(file.fingerprint)}, now {list(current.fingerprint)}); scan it again"
                )
    return variables, grids, problems


def to_aggregated_variable(key: Name, variable: ManifestVariable) -> AggregatedVariable | None:
    """Return a variable as one to aggregate, or None if its values are to be stored."""
    data = variable.data
    if not isinstance(data, ManifestArray) or not data.size:
        return None
    rows = tabulate_chunks(data)
    is_inline = rows.file == INLINE
    if is_inline.any() and is_inline.all():
        data.check_limit(data.nbytes)
        return None
    array = unpack_array(key[1], variable)
    attributes = variable.attributes
    if not attributes.keys().isdisjoint(SCALE_ATTRIBUTES):
        # fragments are unpacked by their own attributes (CF 2.8.3)
        attributes = {n: v for n, v in attributes.items() if n not in PACKING_ATTRIBUTES}
    aggregated = AggregatedVariable(key, variable.dims, array, attributes, rows)
    if is_inline.any():
        aggregated.problem = (
            f"some of its chunks are in files, and others in the set; {OTHER_FORMAT}"
        )
    return aggregated


def unpack_array(name: str, variable: ManifestVariable) -> ManifestArray:
    """Return a virtual array of unpacked values; dates stay numbers."""
    array: Any = variable.data
    if are_date_units(variable.attributes.get("units")) or array.dtype.kind not in "iuf":
        return array  # type: ignore[no-any-return]
    attributes = {n: v for n, v in variable.attributes.items() if n in PACKING_ATTRIBUTES}
    stored = ManifestGroup({name: replace(variable, attributes=attributes, encoding={})})
    dataset = to_virtual_dataset(stored, OpenOptions(loadable_variables=[]))
    unpacked = get_virtual_array(dataset.variables[name])
    return array if unpacked is None else unpacked


def list_differences_after_reading(
    data: bytes,
    url: str,
    group: ManifestGroup,
    expected: Mapping[Name, AggregatedVariable],
) -> list[str]:
    """Read the bytes of an aggregation file, and return the differences from a group."""
    files = {file.url: file for one in expected.values() for file in one.rows.files}
    reader, source = reader_of(Location.of(data))
    stored = read_source(reader, source, READ_ALL, OpenOptions(below=True))

    def get_file(uri: str) -> SourceFile:
        resolved = resolve_url(uri, url)
        return files.get(resolved, SourceFile(resolved))

    file = AggregationFile(SourceFile(url), get_file, frozenset(), lambda: stored)
    read = build_aggregations(stored, file, "", make_fragment_opener())
    if problems := read.all_problems():
        return [f"{name}: it could not be read back: {error}" for name, error in problems.items()]
    group_at = dict(read.walk())
    return [
        f"{path or name or 'its attributes'}: {difference}; {LOAD_OR_LEAVE_OUT}"
        for group_path, part in group.walk()
        for name, difference in _iterate_differences(
            group_path, part, group_at[group_path], expected
        )
        for path in ["/".join(filter(None, (group_path, name)))]
    ]


def _iterate_differences(
    path: str,
    group: ManifestGroup,
    read: ManifestGroup,
    expected: Mapping[Name, AggregatedVariable],
) -> Iterator[tuple[str, str]]:
    """Yield the name of each variable that would be read differently, and the difference."""
    if name := _find_different_attribute(group.attributes, read.attributes):
        yield "", f"the attribute {name!r} would be read as {read.attributes.get(name)!r:.80}"
    for name in group.variables.keys() ^ read.variables.keys():
        yield name, "it would be there only before, or only after, writing"
    for name in group.variables.keys() & read.variables.keys():
        aggregated, read_variable = expected.get((path, name)), read.variables[name]
        variable = group.variables[name]
        attributes = variable.attributes if aggregated is None else aggregated.attributes
        if read_variable.dims != variable.dims:
            yield name, f"its dimensions would be read as {read_variable.dims}"
        elif differing := _find_different_attribute(
            attributes, read_variable.attributes, aggregated is not None
        ):
            value = read_variable.attributes.get(differing)
            yield name, f"its attribute {differing!r} would be read as {value!r:.80}"
        elif aggregated is None or not isinstance(read_variable.data, ManifestArray):
            before = variable.read() if aggregated is None else aggregated.array.read()
            if not _is_equal(before, read_variable.read()):
                yield name, "its values would be read differently"
        elif difference := describe_array_difference(
            aggregated.array, unpack_array(name, read_variable)
        ):
            yield name, difference


def _find_different_attribute(
    left: Mapping[str, Any], right: Mapping[str, Any], ignore_packing: bool = False
) -> str:
    """Return the name of an attribute that differs, or "".

    With ``ignore_packing``, ignore packing attributes, which pipelines contain.
    """
    names = sorted((left.keys() | right.keys()) - set(PACKING_ATTRIBUTES if ignore_packing else ()))
    return next((n for n in names if not _is_equal(left.get(n), right.get(n))), "")


def _is_equal(left: Any, right: Any) -> bool:
    """Return whether values are equal, of the same kind and size, as netCDF stores them."""
    if left is None or right is None:
        return left is right
    a, b = np.atleast_1d(np.asarray(left)), np.atleast_1d(np.asarray(right))
    are_strings = a.dtype.kind in "UO" and b.dtype.kind in "UO"
    if a.shape != b.shape or not (are_strings or a.dtype.kind == b.dtype.kind):
        return False
    if not are_strings and a.dtype.kind != "S" and a.dtype.itemsize != b.dtype.itemsize:
        return False
    return bool(np.array_equal(a, b, equal_nan=a.dtype.kind in "fc"))


def describe_array_difference(array: ManifestArray, read: ManifestArray) -> str:
    """Return a description of the difference between two virtual arrays, or an empty string."""
    native = [expected.dtype.newbyteorder("=") for expected in (array, read)]
    if array.shape != read.shape or native[0] != native[1]:
        return f"it would be read as {read.shape} {read.dtype}, and is {array.shape} {array.dtype}"
    # in the order of their first elements
    expected, found = (
        rows.take(np.lexsort(rows.begin[::-1])) if len(rows.begin) else rows
        for rows in map(tabulate_chunks, (array, read))
    )
    fields = ("offset", "length", "begin", "stop", "origin", "encoded")
    if (
        expected.file.size != found.file.size
        or any(not np.array_equal(getattr(expected, n), getattr(found, n)) for n in fields)
        or not np.array_equal(expected.urls[expected.file], found.urls[found.file])
    ):
        return "its chunks would differ"
    pairs = np.unique(np.stack([expected.pipeline, found.pipeline]), axis=1)
    for before, after in pairs.T.tolist():
        # fill values are compared below, as values of missing chunks
        expected_pipeline = _normalise_pipeline(array.pipelines[before], array.dtype)
        found_pipeline = _normalise_pipeline(read.pipelines[after], read.dtype)
        if expected_pipeline != found_pipeline:
            names = name_pipelines([expected_pipeline, found_pipeline])
            return f"its chunks would be decoded as {names[1]}, and are {names[0]}"
    missing = [list_missing_values(a) for a in (array, read)]
    if missing[0] or missing[1]:
        is_same = len(missing[0]) == len(missing[1]) == 1 and is_same_scalar(
            *(v[0] for v in missing)
        )
        if not is_same and expected.file.size == 0:
            is_same = is_same_constant(array, read)
        if not is_same:
            return f"elements outside of chunks would be read as {missing[1]}, and are {missing[0]}"
    return ""


def _normalise_pipeline(pipeline: CodecPipeline, dtype: np.dtype[Any]) -> CodecPipeline:
    """Return a pipeline without its fill, and without packing that changes no value."""
    packing = pipeline.packing
    if isinstance(packing, Packing):
        packing = replace(packing, fills=tuple(fill for fill in packing.fills if fill == fill))
        is_plain = packing.is_identity and packing.integer is None
        if is_plain and np.can_cast(pipeline.dtype, dtype, "safe"):
            # arrays cast the numbers of their pipelines in the same way
            packing = None
    return replace(pipeline, fill=None, packing=packing)


def is_same_constant(left: ManifestArray, right: ManifestArray) -> bool:
    """Return whether arrays without references have the same values."""
    pairs = zip(find_constant_edges(left), find_constant_edges(right), strict=True)
    edges = [np.union1d(*pair) for pair in pairs]
    a, b = (read_constants(array, edges) for array in (left, right))
    return np.array_equal(a, b, equal_nan=a.dtype.kind in "fc")


# ---------------------------------------------------------------------- the format


def read(source: SourceFile, read_options: ReadOptions = READ_ALL) -> ManifestGroup:
    """Read a group of an aggregation file, and all groups below it."""
    location = Location(source.url, source.options)
    return _read(location, read_options, reader_of(location))


def _read(location: Location, read_options: ReadOptions, reader: DetectedReader) -> ManifestGroup:
    """Read an aggregation file, with the values that the file itself has."""
    opening = OpenOptions(below=True, allow=read_options.allow.prefixes)
    found = read_file(location, read_options, opening, reader)
    return found.map_variables(lambda path, variable: _load_own_values(variable, location.url))


def _load_own_values(variable: ManifestVariable, url: str) -> ManifestVariable:
    """Return a variable with its values if the file at a url holds all of them."""
    data = variable.data
    if not isinstance(data, ManifestArray) or {file.url for file in data.sources} != {url}:
        return variable
    data.check_limit(data.nbytes)
    return replace(variable, data=variable.read())


@dataclass(frozen=True)
class AggregationVersion:
    """An aggregation file that a writer has read, and the version that it had."""

    url: str
    options: StorageOptions | None
    version: str
    group: ManifestGroup
    relative: bool

    def is_current(self) -> bool:
        """Return whether the file still has this version."""
        return find_store(self.url).find_version(self.url, self.options) == self.version


def read_version(
    url: str, options: StorageOptions | None = None, allow: AccessPolicy = DEFAULT_POLICY
) -> AggregationVersion:
    """Read an aggregation file in order to change it."""
    store = find_store(url)
    version = store.find_version(url, options)
    try:
        group, relative = _read_base(Location(url, options), allow)
    except (VirtualdsError, OSError) as error:
        # the file is read in parts, and another writer may replace it meanwhile
        if store.find_version(url, options) != version:
            raise make_conflict_error(url) from error
        raise
    if version is None or store.find_version(url, options) != version:
        raise make_conflict_error(url)
    return AggregationVersion(url, options, version, group, relative)


def _read_base(location: Location, allow: AccessPolicy) -> tuple[ManifestGroup, bool]:
    """Return the group of an aggregation file, and whether its uris are relative."""
    reader = reader_of(location)
    stored = read_aggregation_file(*reader)
    if stored is None:
        raise FormatError(
            f"{location.url}: it has no aggregation variable, so it is not a set that can be "
            f"changed; "
            f"choose another name, or replace it with mode='w'"
        )
    group = _read(location, ReadOptions(allow=allow), reader)
    if problems := group.all_problems():
        raise next(iter(problems.values()))
    return group, _has_relative_uris(location.url, stored)


def _has_relative_uris(url: str, stored: ManifestGroup) -> bool:
    """Return whether an aggregation file has relative uris."""
    found = list[str]()

    def collect_uri(uri: str) -> SourceFile:
        found.append(uri)
        return SourceFile(resolve_url(uri, url))

    file = AggregationFile(SourceFile(url), collect_uri, frozenset(), lambda: stored)
    for path, name in find_aggregations(stored):
        with suppress(VirtualdsError):
            file.plan(path, name)
    return any("://" not in uri and not uri.startswith("/") for uri in found)


def write(
    group: ManifestGroup,
    url: str,
    options: StorageOptions | None = None,
    *,
    replace: bool = True,
    base: AggregationVersion | None = None,
    relative_paths: bool | None = None,
) -> None:
    """Write an aggregation file: all of it, or nothing.

    Parameters
    ----------
    group : ManifestGroup
    url : str
        The url of the file.
    options : StorageOptions, optional
        Access options of the target.
    replace : bool
        Whether an existing file may be replaced.
    base : AggregationVersion, optional
        The version to change.
    relative_paths : bool, optional
        Whether uris are relative to the file; by default as in ``base``.

    Raises
    ------
    UnsupportedError
        Variables do not consist of whole variables of netCDF files; the message names all of them.
    ReadError
        A file cannot be read, or has changed since it was scanned.
    FileExistsError
        The file exists and may not be replaced, or is a netCDF file without aggregation variables.
    ConflictError
        Another writer was faster; nothing has changed.
    """
    if relative_paths is None:
        relative_paths = base is not None and base.relative
    if base is None and replace:
        _check_replaceable(url, options)
    data = encode(group, url, relative=relative_paths)
    store = find_store(url)
    if base is None:
        store.write_all(url, data, options, replace=replace)
        return
    try:
        store.write_version(url, data, options, base.version)
    except ChangedError as error:
        raise make_conflict_error(url) from error


def _check_replaceable(url: str, options: StorageOptions | None) -> None:
    """Raise an error for a file with data of its own, which would be lost.

    A file with the suffix of the format is taken as a set, even if it has only loaded values.
    """
    if url.endswith(SUFFIX):
        return
    try:
        found = reader_of(Location(url, options))
    except (FileNotFoundError, FormatError):
        return
    kind = found[0].name
    is_set = not isinstance(found[0], Parser) or (
        kind in NETCDF and read_aggregation_file(*found) is not None
    )
    if not is_set:
        raise FileExistsError(
            f"{url}: it is a file with data of its own ({kind}), not an aggregation file, so it is "
            f"not replaced; choose another name, or remove it"
        )


def list_obstacles(variable: ManifestVariable, **choices: Any) -> list[str]:
    """Return the reasons why an aggregation file cannot store a virtual variable."""
    try:
        _, problems = _encode(ManifestGroup({PLACEHOLDER: variable}), "file:///set.nca", False)
    except UnsupportedError as error:
        problems = [f"{error}"]
    return [problem.removeprefix(f"{PLACEHOLDER}: ") for problem in problems]


PLACEHOLDER = "variable"
"""The name of a variable that is checked by itself."""


# ---------------------------------------------------------------------- netCDF-4 in memory

BARE_DIMENSION = "This is a netCDF dimension but not a netCDF variable.%10d"
"""The name of the scale of a dimension that has no coordinate variable."""
NON_COORDINATE = "_nc4_non_coord_"
"""The prefix of the stored name of a variable that has the name of a dimension of others."""
MAX_CHUNK_LENGTH = 1024
"""The maximum length of chunks of variables along unlimited dimensions."""
Sizes = Mapping[str, int]

_INVALID_NAME = re.compile(r"^[^A-Za-z0-9_\u0080-\U0010ffff]|[\x00-\x1f/\x7f]|\s$")
"""Matches invalid names (NetCDF User's Guide, "Permitted Characters in NetCDF Names")."""


def encode_netcdf4(group: ManifestGroup, dims: Mapping[str, Sizes]) -> bytes:
    """Return the bytes of a netCDF-4 file with a group and its subgroups, all in memory.

    Parameters
    ----------
    group : ManifestGroup
    dims : dict
        Sizes of further dimensions, besides those of the variables, by path of the group.

    Raises
    ------
    UnsupportedError
        netCDF cannot store a name, a type or an attribute.
    """
    import h5py

    # HDF5 also needs distinct names for files in memory that are open at the same time
    name = f"{secrets.token_hex(8)}.nc"
    with h5py.File(name, "w", driver="core", backing_store=False, track_order=True) as f:
        _write_group(f, group, "", dims, {}, count())
        f.flush()
        image: bytes = f.id.get_file_image()
    return image


def _write_group(
    target: Any,
    group: ManifestGroup,
    path: str,
    dims: Mapping[str, Sizes],
    inherited: Mapping[str, Any],
    numbers: count[int],
) -> None:
    """Write a group and its subgroups; ``inherited`` are the dimension scales of groups above."""
    unlimited = set(group.encoding.get("unlimited_dims", ()))
    sizes = dict(dims.get(path, {}))
    for variable in group.variables.values():
        sizes |= dict(zip(variable.dims, variable.data.shape, strict=True))
    # netCDF-C takes a dimension of size 0 as unlimited
    unlimited_dims = unlimited | {dim for dim, size in sizes.items() if not size}
    scales, datasets = dict(inherited), dict[str, Any]()
    for dim, size in sizes.items():
        check_name(dim, "dimension")
        if dim in scales and scales[dim].shape[0] == size:
            continue
        coordinate = group.variables.get(dim)
        if coordinate is not None and coordinate.dims == (dim,):
            with locating(f"variable {dim!r}"):
                scales[dim] = datasets[dim] = _create_dataset(
                    target, dim, coordinate, unlimited_dims
                )
            scales[dim].make_scale(dim)
        else:
            options = (
                {"maxshape": (None,), "chunks": (MAX_CHUNK_LENGTH,)}
                if dim in unlimited_dims
                else {}
            )
            scales[dim] = target.create_dataset(dim, (size,), ">f4", **options)
            scales[dim].make_scale(BARE_DIMENSION % size)
        scales[dim].attrs.create("_Netcdf4Dimid", next(numbers), dtype="i4")
    for name, variable in group.variables.items():
        with locating(f"variable {name!r}"):
            check_name(name, "variable")
            if name not in datasets:
                stored = f"{NON_COORDINATE}{name}" if name in scales else name
                datasets[name] = _create_dataset(target, stored, variable, unlimited_dims)
                for axis, dim in enumerate(variable.dims):
                    datasets[name].dims[axis].attach_scale(scales[dim])
            _write_attributes(datasets[name], variable.attributes, variable.data.dtype)
    _write_attributes(target, group.attributes)
    for name, subgroup in group.groups.items():
        check_name(name, "group")
        child = target.create_group(name, track_order=True)
        _write_group(child, subgroup, f"{path}/{name}".strip("/"), dims, scales, numbers)


def check_name(name: str, kind: str) -> None:
    """Raise an error for a name that a variable, dimension or group of netCDF cannot have."""
    if not name or _INVALID_NAME.search(name):
        raise UnsupportedError(
            f"the {kind} {name!r}: netCDF does not allow such names (they begin with a letter, "
            f"digit or underscore, and have no slash and no blank at the end); rename it"
        )


def _create_dataset(
    target: Any, name: str, variable: ManifestVariable, unlimited_dims: set[str]
) -> Any:
    """Create an HDF5 dataset with the values of a variable, and return it."""
    from h5py import string_dtype

    values: Any = variable.data
    kind = values.dtype
    if kind.kind == "O":
        if not all(isinstance(value, str) for value in values.ravel()):
            types = sorted({type(value).__name__ for value in values.ravel()})
            raise UnsupportedError(
                f"its values are objects ({', '.join(types)}), which netCDF does not have; convert "
                f"them to numbers or strings, or leave it out (ds.drop_vars)"
            )
        kind = string_dtype()
    elif not (is_number(kind) or kind == np.dtype("S1")):
        raise UnsupportedError(
            f"its values are {kind}, which netCDF does not have; convert them, or leave it out "
            f"(ds.drop_vars)"
        )
    options = {}
    if not unlimited_dims.isdisjoint(variable.dims):
        shape = tuple(None if dim in unlimited_dims else n for dim, n in zip(
            variable.dims, values.shape, strict=True))  # fmt: skip
        chunks = tuple(max(min(n, MAX_CHUNK_LENGTH), 1) for n in values.shape)
        if prod(chunks) * kind.itemsize > MAX_CHUNK_LENGTH**2:
            chunks = (1,) * (len(chunks) - 1) + chunks[-1:]
        options = {"maxshape": shape, "chunks": chunks}
    dataset = target.create_dataset(name, values.shape, kind, track_order=True, **options)
    if values.size:
        dataset[...] = values
    return dataset


def is_number(dtype: np.dtype[Any]) -> bool:
    """Return whether a dtype is a numeric type of netCDF: integers, and floats of 4 or 8 bytes."""
    return dtype.kind in "iu" or (dtype.kind == "f" and dtype.itemsize in (4, 8))


def _write_attributes(
    target: Any, attributes: Mapping[str, Any], dtype: np.dtype[Any] | None = None
) -> None:
    """Write attributes as netCDF does: strings as characters, numbers as vectors."""
    for name, value in attributes.items():
        try:
            if name == "_FillValue" and dtype is not None and dtype.kind != "O":
                # the fill value must have the type of the variable
                value = np.asarray(value).astype(dtype)
            _write_attribute(target, name, value)
        except (TypeError, ValueError, OSError, RuntimeError) as error:
            raise UnsupportedError(
                f"the attribute {name!r} is {value!r:.80}, which netCDF cannot store ({error}); "
                f"change it, or delete it from attrs"
            ) from error


def _write_attribute(target: Any, name: str, value: Any) -> None:
    """Write an attribute with the type that the netCDF library would use."""
    from h5py import Empty, string_dtype

    if isinstance(value, str) and "\0" not in value:
        text = value.encode()
        # netCDF stores an empty string as an attribute without elements
        data = np.array(text, f"S{len(text)}") if text else Empty("S1")
        kind = string_dtype("ascii" if value.isascii() else "utf-8", len(text)) if text else None
        target.attrs.create(name, data, dtype=kind)
        return
    values = np.atleast_1d(np.asarray(value))
    if values.dtype.kind in "UO" and all(isinstance(item, str) for item in values.ravel().tolist()):
        target.attrs.create(name, values.astype(object), dtype=string_dtype())
    elif is_number(values.dtype) or values.dtype.kind == "S":
        if values.ndim > 1:
            raise ValueError("it has several dimensions")
        target.attrs.create(name, values)
    else:
        raise TypeError(f"it is {values.dtype}")
