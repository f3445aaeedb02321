"""Catalogue entries, which describe the contents of groups."""

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
from virtualds.checks import find_sources
from virtualds.chunks.manifest import ChunkManifest
from virtualds.datasets.conversion import to_virtual_dataset
from virtualds.datasets.lazy import get_virtual_array
from virtualds.datasets.location import Location, set_reader_of
from virtualds.datasets.open import enter_set, open_group
from virtualds.datasets.open_options import OpenOptions, fetch_coordinates
from virtualds.datasets.structure import text_of
from virtualds.errors import locating, public, without_secrets
from virtualds.formats import Format, decode_group
from virtualds.source_file import SourceFile, join_path, name_of
from virtualds.stores.store import explain_open_errors

COLUMNS = (
    *("name", "path", "group", "format", "variables", "sizes"),
    *("time_start", "time_end", "lon_min", "lon_max", "lat_min", "lat_max"),
    *("files", "bytes", "nbytes", "snapshots", "snapshot", "modified"),
)
"""Columns of the table. The names of a pattern are inserted after ``group``."""


class Extent(NamedTuple):
    """The lowest and highest value of a coordinate: numbers, or dates in ISO 8601.

    ``axis`` is ``"time"``, ``"longitude"``, ``"latitude"``, ``"vertical"`` or ``""``. Only dates
    have a ``calendar``. Coordinates of text have ``values`` instead of ``start`` and ``stop``.
    """

    axis: str
    start: Any = None
    stop: Any = None
    units: str = ""
    calendar: str = ""
    values: tuple[str, ...] = ()


class VariableFacts(NamedTuple):
    """The dimensions, dtype and CF attributes of a data variable."""

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
        Name of the format or parser.
    names : dict
        The names of the patterns with their values.
    title : str
        The global attribute ``title``.
    variables : dict
        Dimensions, dtype, units, standard name and long name of the data variables.
    sizes : dict
        Lengths of the dimensions.
    extents : dict
        Extents of the coordinates by name.
    files, bytes : int, optional
        Number and total size of the source files. None if unknown, for example if the set has one
        list of files for several groups.
    nbytes : int
        Bytes of the decoded values.
    snapshots : int, optional
        Number of snapshots; None if the format has no snapshots.
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
        """The url of the group, which ``engine="virtual"`` can open."""
        return self.path if self.group == "/" else join_path(self.path, self.group.strip("/"))

    def to_row(self) -> dict[str, Any]:
        """Return the entry as a row of the table."""
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
    location: Location, options: OpenOptions, folder: str, names: Mapping[str, str]
) -> list[CatalogEntry]:
    """Return an entry for each group with variables, or for the root if no group has any.

    The names of entries are relative to ``folder``. ``names`` are the names of a pattern with their
    values.
    """
    location, options = enter_set(location, options)
    is_below = location.url.startswith(f"{folder}/")
    name = location.url.removeprefix(f"{folder}/") if is_below else name_of(location.url)
    entries, extents = list[CatalogEntry](), dict[str, Mapping[str, Extent]]()
    with explain_open_errors(location.url), location.cache_scan():
        reader, source = set_reader_of(location, options.parser)
        root = open_group(location, options, (reader, source))
        groups = {path: group for path, group in root.walk() if group.variables} or {"": root}
        fetch_coordinates(location.url, groups.values(), options)
        versions = _describe_versions(reader, source, location)
        set_prefix = f"{location.url.rstrip('/')}/" if isinstance(reader, Format) else None
        manifests = {
            path: [
                fragment.manifest
                for variable in group.variables.values()
                if isinstance(variable.data, ManifestArray)
                for fragment in variable.data.fragments
            ]
            for path, group in groups.items()
        }
        sharing = _find_groups_with_shared_sources(manifests)
        for path, group in groups.items():
            make_dataset = partial(to_virtual_dataset, opening=options)
            dataset: xr.Dataset = decode_group(
                replace(group, groups={}), "keep", make_dataset, location.url
            )
            sizes = {str(dim): size for dim, size in dataset.sizes.items()}
            extents[path] = _find_inherited_extents(extents, path, sizes) | find_extents(dataset)
            sources = None if path in sharing else find_sources(manifests[path], set_prefix)
            title = group.attributes.get("title", root.attributes.get("title", ""))
            entry = CatalogEntry(
                without_secrets(name.rstrip("/")),
                without_secrets(location.url),
                f"/{options.group or ''}/{path}".replace("//", "/").rstrip("/") or "/",
                reader.name,
                names=names,
                title=str(title),
                variables={str(n): _find_facts(v.variable) for n, v in dataset.data_vars.items()},
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


def _find_groups_with_shared_sources(
    manifests: Mapping[str, Sequence[ChunkManifest]],
) -> set[str]:
    """Return the groups whose source files the set lists together with those of other groups."""
    owners: dict[Hashable, set[str]] = {}
    for path, group_manifests in manifests.items():
        for manifest in group_manifests:
            if (summary := manifest.source_summary) is not None:
                owners.setdefault(summary.name, set()).add(path)
    return {path for paths in owners.values() if len(paths) > 1 for path in paths}


def _find_facts(variable: xr.Variable) -> VariableFacts:
    attributes = {**variable.encoding, **variable.attrs}
    names = ("units", "standard_name", "long_name")
    texts = (str(attributes.get(name, "")) for name in names)
    return VariableFacts(tuple(map(str, variable.dims)), str(variable.dtype), *texts)


# ---------------------------------------------------------------------- extents of coordinates

MAX_GRID_BYTES = 2**26
"""Maximum size of a longitude or latitude of a curvilinear grid that is read."""
MAX_DEGREES = {"latitude": 90.001, "longitude": 720}
"""Maximum absolute values in degrees; larger ones are metres or undeclared fill values."""
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
    """Return the extents of the coordinates by name.

    Axes are identified by ``standard_name``, units and ``axis`` as in CF. If several variables
    qualify as time, longitude or latitude, the first with the lowest rank is chosen.

    Examples
    --------
    >>> find_extents(xr.open_dataset("2001.nc", engine="virtual"))["lat"]
    Extent(axis='latitude', start=-75.0, stop=75.0, units='', calendar='', values=())
    """
    best: dict[str, tuple[int, str]] = {}
    extents: dict[str, Extent] = {}
    for key, variable in dataset.variables.items():
        name, (axis, rank) = str(key), _find_axis(str(key), variable)
        if axis == "time" and key not in dataset.coords:
            # dates of a data variable
            continue
        if not (axis or variable.dims == (key,)) or (axis and variable.ndim > 2):
            continue
        with locating(f"variable {name!r}"):
            values = _load_values(variable)
        extent = None if values is None else _compute_extent(values, axis, variable)
        if extent is None:
            continue
        if axis in UNIQUE_AXES:
            best_rank, best_name = best.get(axis, (rank + 1, ""))
            if rank >= best_rank:
                extent = extent._replace(axis="")
            else:
                best[axis] = rank, name
                if best_name:
                    extents[best_name] = extents[best_name]._replace(axis="")
        extents[name] = extent
    return extents


def _find_axis(name: str, variable: xr.Variable) -> tuple[str, int]:
    """Return the axis of a variable, and a rank: the lower it is, the more certain is the axis."""
    attributes = {**variable.encoding, **variable.attrs}
    standard_name, units = attributes.get("standard_name", ""), attributes.get("units", "")
    cf_axis = attributes.get("axis", "")
    minor = 2 * (variable.dims != (name,))
    if _has_dates(variable):
        # prefer the valid time of a forecast to its reference time
        rank = 0 if standard_name == "time" else 1 if cf_axis == "T" else 3 if standard_name else 2
        return "time", minor + 4 * rank
    for axis, axis_units in AXIS_UNITS.items():
        if standard_name == axis or (not standard_name and units in axis_units):
            return axis, minor + (standard_name != axis)
        if not standard_name and not units and name.lower() in AXIS_NAMES[axis]:
            return axis, minor + 4
    if variable.dims == (name,) and (cf_axis == "Z" or attributes.get("positive")):
        return "vertical", 0
    return "", 0


def _has_dates(variable: xr.Variable) -> bool:
    if variable.dtype.kind == "M":
        return True
    # cftime dates have dtype object, which is never virtual
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
    """Return the extent of values, or None if they have no order or all are missing."""
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
        # cftime dates have a calendar, those of numpy do not
        calendar = variable.encoding.get("calendar", "proleptic_gregorian")
        calendar = getattr(low, "calendar", calendar)
        return Extent(axis, _format_date(low), _format_date(high), calendar=str(calendar))
    if max(abs(low), abs(high)) > MAX_DEGREES.get(axis, np.inf):
        return None
    return Extent(axis, low.item(), high.item(), units)


def _format_date(value: Any) -> str:
    return text_of(value) if isinstance(value, np.datetime64) else value.isoformat()


def _find_inherited_extents(
    extents: Mapping[str, Mapping[str, Extent]], path: str, sizes: Mapping[str, int]
) -> dict[str, Extent]:
    """Return the extents of the dimensions of a group that its parents have."""
    inherited: dict[str, Extent] = {}
    parent = path
    while parent:
        parent = parent.rpartition("/")[0]
        for name, extent in extents.get(parent, {}).items():
            if name in sizes:
                inherited.setdefault(name, extent)
    return inherited
