"""Catalogue entries: the contents of one group of a set or file."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import xarray as xr

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup
from virtualds.checks.describe import find_sources
from virtualds.chunks.manifest import ChunkManifest
from virtualds.datasets.lazy import get_virtual_array
from virtualds.datasets.location import Location, set_reader_of
from virtualds.datasets.open import enter_set, open_group
from virtualds.datasets.open_options import OpenOptions, fetch_coordinates
from virtualds.datasets.structure import text_of
from virtualds.datasets.to_dataset import to_virtual_dataset
from virtualds.errors import locating, public, without_secrets
from virtualds.formats import Format
from virtualds.formats.undecodable import decode_group
from virtualds.source_file import SourceFile
from virtualds.stores.store import explain_open_errors
from virtualds.urls import join_path, name_of

COLUMNS = (
    *("name", "path", "group", "format", "variables", "sizes"),
    *("time_start", "time_end", "lon_min", "lon_max", "lat_min", "lat_max"),
    *("files", "bytes", "nbytes", "snapshots", "snapshot", "modified"),
)
"""The columns of the table, besides the names of a pattern, which follow ``group``."""


class Extent(NamedTuple):
    """The lowest and highest value of a coordinate: numbers, or dates in ISO 8601.

    ``axis`` is ``"time"``, ``"longitude"``, ``"latitude"``, ``"vertical"`` or ``""``. ``calendar``
    is the calendar of dates. Coordinates of text have ``values`` instead.
    """

    axis: str
    start: Any = None
    stop: Any = None
    units: str = ""
    calendar: str = ""
    values: tuple[str, ...] = ()


class VariableFacts(NamedTuple):
    """The dimensions and dtype of a data variable, and its attributes of the CF conventions."""

    dims: tuple[str, ...]
    dtype: str
    units: str = ""
    standard_name: str = ""
    long_name: str = ""


@public
@dataclass(frozen=True)
class CatalogEntry:
    """A group of a set or of a file.

    Parameters
    ----------
    name : str
        The path of the set or file relative to the common folder of the catalogue.
    path : str
        The url of the set or file.
    group : str
        Path of the group; ``"/"`` is the root.
    format : str
        Name of the format, or of the parser.
    names : dict
        The values of the names of the patterns.
    title : str
        The global attribute of this name.
    variables : dict
        The data variables: dimensions, dtype, units, standard name and long name.
    sizes : dict
        Lengths of the dimensions.
    extents : dict
        Extents of the coordinates, by name.
    files, bytes : int, optional
        Number and total size of the source files. None if that is not known, also if the set lists
        only the files of all its groups together.
    nbytes : int
        The size in bytes of the decoded values.
    snapshots : int, optional
        Number of snapshots; None if the format has none.
    snapshot, modified : str
        Id and time (UTC) of the newest snapshot.

    Examples
    --------
    >>> entry = catalog("2001.nc").entries[0]
    >>> entry.sizes["time"], entry.find_extent("time").start, entry.files
    (12, '2001-01-01', 1)
    """

    name: str
    path: str
    group: str
    format: str
    names: Mapping[str, str] = field(default_factory=dict)
    title: str = ""
    variables: Mapping[str, VariableFacts] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    extents: Mapping[str, Extent] = field(default_factory=dict)
    files: int | None = None
    bytes: int | None = None
    nbytes: int = 0
    snapshots: int | None = None
    snapshot: str = ""
    modified: str = ""

    def find_extent(self, axis: str) -> Extent | None:
        """Return the extent along ``"time"``, ``"longitude"`` or ``"latitude"``, or None."""
        return next((extent for extent in self.extents.values() if extent.axis == axis), None)

    @property
    def place(self) -> str:
        """The url with the path of the group, by which ``engine="virtual"`` opens the group."""
        return self.path if self.group == "/" else join_path(self.path, self.group.strip("/"))

    def to_row(self) -> dict[str, Any]:
        """Return the row of the table."""
        row = {name: getattr(self, name, None) for name in COLUMNS}
        row |= {"variables": list(self.variables), "sizes": dict(self.sizes)}
        for axis, (low, high) in AXIS_COLUMNS.items():
            if (extent := self.find_extent(axis)) is not None:
                row |= {low: extent.start, high: extent.stop}
        first = ("name", "path", "group")
        return {name: row.pop(name) for name in first} | dict(self.names) | row


AXIS_COLUMNS = {
    "time": ("time_start", "time_end"),
    "longitude": ("lon_min", "lon_max"),
    "latitude": ("lat_min", "lat_max"),
}


# ---------------------------------------------------------------------- one set or file


def list_entries(
    location: Location, opening: OpenOptions, folder: str, names: Mapping[str, str]
) -> list[CatalogEntry]:
    """Return an entry for each group with variables, or for the root if no group has any.

    The names of entries are relative to ``folder``; ``names`` are the names of a pattern, with
    their values.
    """
    location, opening = enter_set(location, opening)
    is_below = location.url.startswith(f"{folder}/")
    name = location.url.removeprefix(f"{folder}/") if is_below else name_of(location.url)
    entries, extents = list[CatalogEntry](), dict[str, Mapping[str, Extent]]()
    with explain_open_errors(location.url), location.cache_scan():
        reader, source = set_reader_of(location, opening.parser)
        root = open_group(location, opening, (reader, source))
        groups = {path: group for path, group in root.walk() if group.variables} or {"": root}
        fetch_coordinates(location.url, groups.values(), opening)
        versions = _describe_versions(reader, source, location)
        set_prefix = f"{location.url.rstrip('/')}/" if isinstance(reader, Format) else None
        manifests = {path: _list_manifests(group) for path, group in groups.items()}
        shared = _find_shared_lists(manifests)
        for path, group in groups.items():
            alone = replace(group, groups={})
            make = partial(to_virtual_dataset, opening=opening)
            dataset: xr.Dataset = decode_group(alone, "keep", make, location.url)
            sizes = {str(dim): size for dim, size in dataset.sizes.items()}
            extents[path] = _inherit(extents, path, sizes) | find_extents(dataset)
            sources = None if path in shared else find_sources(manifests[path], set_prefix)
            title = group.attributes.get("title", root.attributes.get("title", ""))
            entry = CatalogEntry(
                without_secrets(name.rstrip("/")),
                without_secrets(location.url),
                f"/{opening.group or ''}/{path}".replace("//", "/").rstrip("/") or "/",
                reader.name,
                names=names,
                title=str(title),
                variables={str(n): _describe(v.variable) for n, v in dataset.data_vars.items()},
                sizes=sizes,
                extents=extents[path],
                files=None if sources is None else sources.number,
                bytes=None if sources is None else sources.nbytes,
                nbytes=dataset.nbytes,
                **versions,
            )
            entries.append(entry)
    return entries


def _describe_versions(reader: Any, source: SourceFile, location: Location) -> dict[str, Any]:
    """Return the number of snapshots of a set, and the id and time of the newest."""
    if not isinstance(reader, Format) or reader.history is None:
        return {}
    snapshots = reader.list_snapshots(source.url, location.options)
    newest = snapshots.iloc[-1:].to_dict("records")
    return {"snapshots": len(snapshots)} | {
        key: str(snapshot[column])
        for snapshot in newest
        for key, column in (("snapshot", "snapshot"), ("modified", "time"))
    }


def _list_manifests(group: ManifestGroup) -> list[ChunkManifest]:
    data = (variable.data for variable in group.variables.values())
    arrays = (values for values in data if isinstance(values, ManifestArray))
    return [fragment.manifest for array in arrays for fragment in array.fragments]


def _find_shared_lists(manifests: Mapping[str, Sequence[ChunkManifest]]) -> set[str]:
    """Return the groups that share the set's list of source files with other groups."""
    owners: dict[Hashable, set[str]] = {}
    for path, group_manifests in manifests.items():
        for manifest in group_manifests:
            if (summary := manifest.catalogue) is not None:
                owners.setdefault(summary.name, set()).add(path)
    return {path for paths in owners.values() if len(paths) > 1 for path in paths}


def _describe(variable: xr.Variable) -> VariableFacts:
    attributes = {**variable.encoding, **variable.attrs}
    names = ("units", "standard_name", "long_name")
    texts = (str(attributes.get(name, "")) for name in names)
    return VariableFacts(tuple(map(str, variable.dims)), str(variable.dtype), *texts)


# ---------------------------------------------------------------------- the extents of coordinates

MAX_GRID_BYTES = 2**26
"""Maximum size in bytes of a longitude or latitude of a curvilinear grid that is read."""
MAX_DEGREES = {"latitude": 90.001, "longitude": 720}
"""Largest absolute values in degrees; larger ones are metres or undeclared fill values."""
MAX_VALUES = 100
"""Maximum number of values of a text coordinate that an extent lists."""

AXIS_UNITS = {
    "longitude": ("degrees_east", "degree_east", "degree_E", "degrees_E", "degreeE", "degreesE"),
    "latitude": ("degrees_north", "degree_north", "degree_N", "degrees_N", "degreeN", "degreesN"),
}
"""Units that identify longitudes and latitudes (CF conventions 1.11, sections 4.1, 4.2)."""
UNIQUE_AXES = ("time", *AXIS_UNITS)
"""Axes for which a group has at most one coordinate."""
AXIS_NAMES = {"longitude": ("lon", "longitude"), "latitude": ("lat", "latitude")}
"""Names of longitudes and latitudes that have neither a standard name nor units."""


def find_extents(dataset: xr.Dataset) -> dict[str, Extent]:
    """Return the extents of the coordinates, by name.

    Axes are identified as in CF, by ``standard_name``, units and ``axis``. If several variables
    qualify as time, longitude or latitude, the first of the most certain ones is chosen.

    Examples
    --------
    >>> found = find_extents(xr.open_dataset("2001.nc", engine="virtual"))
    >>> found["lat"]
    Extent(axis='latitude', start=-75.0, stop=75.0, units='', calendar='', values=())
    """
    axes: dict[str, tuple[int, str]] = {}
    extents: dict[str, Extent] = {}
    for key, variable in dataset.variables.items():
        name, (axis, uncertainty) = str(key), _find_axis(str(key), variable)
        if axis == "time" and key not in dataset.coords:
            # a data variable may hold dates
            continue
        if not (axis or variable.dims == (key,)) or (axis and variable.ndim > 2):
            continue
        with locating(f"variable {name!r}"):
            values = _load_values(variable)
        extent = None if values is None else _compute_extent(values, axis, variable)
        if extent is None:
            continue
        if axis in UNIQUE_AXES:
            best, other = axes.get(axis, (uncertainty + 1, ""))
            if uncertainty >= best:
                extent = extent._replace(axis="")
            else:
                axes[axis] = uncertainty, name
                if other:
                    extents[other] = extents[other]._replace(axis="")
        extents[name] = extent
    return extents


def _find_axis(name: str, variable: xr.Variable) -> tuple[str, int]:
    """Return the axis of a variable, and a rank: the lower, the more certain."""
    attributes = {**variable.encoding, **variable.attrs}
    standard, units = attributes.get("standard_name", ""), attributes.get("units", "")
    letter = attributes.get("axis", "")
    minor = 2 * (variable.dims != (name,))
    if _are_dates(variable):
        # of the times of a forecast, the valid time is preferred to the reference time
        rank = 0 if standard == "time" else 1 if letter == "T" else 3 if standard else 2
        return "time", minor + 4 * rank
    for axis, axis_units in AXIS_UNITS.items():
        if standard == axis or (not standard and units in axis_units):
            return axis, minor + (standard != axis)
        if not standard and not units and name.lower() in AXIS_NAMES[axis]:
            return axis, minor + 4
    if variable.dims == (name,) and (letter == "Z" or attributes.get("positive")):
        return "vertical", 0
    return "", 0


def _are_dates(variable: xr.Variable) -> bool:
    if variable.dtype.kind == "M":
        return True
    # cftime dates have dtype object, and such variables are always loaded
    first = variable.values.flat[:1] if variable.dtype.kind == "O" and variable.size else ()
    return any(hasattr(value, "calendar") for value in first)


def _load_values(variable: xr.Variable) -> npt.NDArray[Any] | None:
    """Return the values of a coordinate, or None if it is empty or too large to read."""
    array = get_virtual_array(variable)
    if array is None:
        return np.asarray(variable.values) if variable.size else None
    is_small = 0 < array.nbytes <= MAX_GRID_BYTES and array.dtype.kind in "iufmM"
    return array.read() if is_small else None


def _compute_extent(values: npt.NDArray[Any], axis: str, variable: xr.Variable) -> Extent | None:
    """Return the extent of the values that are not missing, or None if all are."""
    kind, units = values.dtype.kind, str(variable.attrs.get("units", ""))
    if kind in "OUST" and axis != "time":
        texts = tuple(map(str, values.ravel()[:MAX_VALUES].tolist()))
        return Extent(axis, units=units, values=texts) if values.size <= MAX_VALUES else None
    if kind == "m":
        values, kind, units = values / np.timedelta64(1, "h"), "f", "hours"
    if kind not in "iufMO":
        return None
    valid = values[~pd.isnull(values)] if kind in "fMO" else values.ravel()
    if not valid.size:
        return None
    low, high = valid.min(), valid.max()
    if axis == "time":
        of_numpy = variable.encoding.get("calendar", "proleptic_gregorian")
        calendar = getattr(low, "calendar", of_numpy)
        return Extent(axis, _format_date(low), _format_date(high), calendar=str(calendar))
    if max(abs(low), abs(high)) > MAX_DEGREES.get(axis, np.inf):
        return None
    return Extent(axis, low.item(), high.item(), units)


def _format_date(value: Any) -> str:
    return text_of(value) if isinstance(value, np.datetime64) else value.isoformat()


def _inherit(
    extents: Mapping[str, Mapping[str, Extent]], path: str, sizes: Mapping[str, int]
) -> dict[str, Extent]:
    """Return the extents of dimensions that a group inherits from the groups above it."""
    inherited: dict[str, Extent] = {}
    above = path
    while above:
        above = above.rpartition("/")[0]
        for name, extent in extents.get(above, {}).items():
            if name in sizes:
                inherited.setdefault(name, extent)
    return inherited
