"""Grids and swaths of HDF-EOS2: which data sets they hold, and where the cells of a grid lie.

HDF-EOS Library Users Guide (175-EMD-001), section 4 (structural metadata) and 7 (grids);
parameters of projections: the General Cartographic Transformation Package (GCTP), table in
section 1.6 of its volume 2.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from virtualds.arrays.group import ManifestVariable
from virtualds.parsers.geo_keys import (
    GEOGRAPHIC,
    PROJECTED,
    REFERENCE_SYSTEM,
    describe_system,
)
from virtualds.parsers.hdf4.datasets import Dataset, Datasets, Dimension, name_apart

STRUCTURE = re.compile(r"(GRID|SWATH)_\d+")
METADATA = re.compile(r"StructMetadata\.\d+")
"""The attributes with structural metadata: a long text is cut into several."""
AXES = {"YDim": "y", "XDim": "x"}
"""Dimensions of grids, and their names here."""
LONGEST = 2**24
"""Cells along an axis that get coordinates, at most."""
CENTRE, UPPER_LEFT = "HDFE_CENTER", "HDFE_GD_UL"
"""What a grid says of its cells where it says nothing."""
PROJECTIONS: dict[str, tuple[int, dict[int, str]]] = {
    "GCTP_SNSOID": (24, {4: "ProjCenterLongGeoKey"}),
    "GCTP_LAMAZ": (10, {4: "ProjCenterLongGeoKey", 5: "ProjCenterLatGeoKey"}),
    "GCTP_PS": (15, {4: "ProjStraightVertPoleLongGeoKey", 5: "ProjNatOriginLatGeoKey"}),
    "GCTP_ALBERS": (
        11,
        {
            2: "ProjStdParallel1GeoKey",
            3: "ProjStdParallel2GeoKey",
            4: "ProjCenterLongGeoKey",
            5: "ProjCenterLatGeoKey",
        },
    ),
}
"""Projections: their GeoKey, and the GeoKeys of parameters that are packed degrees."""
SHIFTS = {6: "ProjFalseEastingGeoKey", 7: "ProjFalseNorthingGeoKey"}
GEO, UTM, SOM = "GCTP_GEO", "GCTP_UTM", "GCTP_SOM"
SPHEROIDS = {0: 7008, 8: 7019, 12: 7030}
"""EPSG codes of ellipsoids by SphereCode: Clarke 1866, GRS 1980, WGS 84."""
UTM_DATUMS = {0: 4267, 8: 4269, 12: 4326}
"""EPSG codes of the geographic systems that go with them: NAD27, NAD83, WGS 84."""
COORDINATES = {
    True: {
        "y": {"standard_name": "latitude", "units": "degrees_north"},
        "x": {"standard_name": "longitude", "units": "degrees_east"},
    },
    False: {
        "y": {"standard_name": "projection_y_coordinate", "units": "m"},
        "x": {"standard_name": "projection_x_coordinate", "units": "m"},
    },
}
"""Attributes of coordinates, of geographic grids and of projected ones."""


@dataclass(frozen=True)
class Part:
    """The data sets of a group, and the coordinates that are computed for them."""

    members: list[Dataset]
    coordinates: dict[str, ManifestVariable] = field(default_factory=dict)


def split_parts(found: Datasets) -> dict[str, Part]:
    """Return the data sets by group: the root has those of no grid, and those of an only grid."""
    named = sorted(filter(METADATA.fullmatch, found.attributes), key=lambda n: int(n[15:]))
    text = "".join(str(found.attributes[name]) for name in named)
    structures = {f.get("GridName", f.get("SwathName", "")): f for f in _find_structures(text)}
    if len(structures) == 1:
        [(name, fields)] = structures.items()
        return {"": _show_part(found.members, name, fields)}
    members: dict[str, list[Dataset]] = {name: [] for name in ("", *structures)}
    for dataset in found.members:
        grid = _find_grid(dataset, structures)
        members[grid].append(dataset)
    parts = {"": Part(members[""])}
    for name, fields in structures.items():
        if name and members[name]:
            parts[name_apart(name, parts)] = _show_part(members[name], name, fields)
    return parts


def _find_grid(dataset: Dataset, structures: Mapping[str, Mapping[str, str]]) -> str:
    """Return the grid of a data set: the names of its dimensions end with that of the grid."""
    names = (d.name.partition(":")[2] for d in dataset.dimensions)
    return next((name for name in names if "GridName" in structures.get(name, {})), "")


def _find_structures(text: str) -> Iterator[dict[str, str]]:
    """Yield what structural metadata say of each grid and swath as a whole."""
    label, fields, is_inside_part = "", dict[str, str](), False
    for line in text.splitlines():
        name, _, value = line.strip().partition("=")
        if not label and name == "GROUP" and STRUCTURE.fullmatch(value):
            label, fields, is_inside_part = value, {}, False
        elif label and name == "END_GROUP" and value == label:
            yield fields
            label = ""
        elif name == "GROUP":
            is_inside_part = True
        elif label and not is_inside_part:
            fields[name] = value.strip().strip('"')


def _show_part(members: list[Dataset], name: str, grid: Mapping[str, str]) -> Part:
    """Return data sets without the name of the structure in those of dimensions."""
    plain = [
        replace(one, dimensions=tuple(_shorten(d, name) for d in one.dimensions)) for one in members
    ]
    on_grid = list(filter(_is_on_grid, plain))
    axes = _Axes.of(grid)
    # what the metadata say may not be what the file holds
    if axes is None or not on_grid or not all(map(axes.fits, on_grid)):
        return Part(plain)
    return Part([_place(one) if _is_on_grid(one) else one for one in plain], axes.build())


def _is_on_grid(dataset: Dataset) -> bool:
    return AXES.keys() <= {d.name for d in dataset.dimensions}


def _shorten(dimension: Dimension, name: str) -> Dimension:
    return replace(dimension, name=dimension.name.removesuffix(f":{name}"))


def _place(dataset: Dataset) -> Dataset:
    """Return a field of a grid, on the axes that have coordinates."""
    dims = tuple(replace(d, name=AXES.get(d.name, d.name)) for d in dataset.dimensions)
    more = {"grid_mapping": REFERENCE_SYSTEM, "coordinates": REFERENCE_SYSTEM}
    return replace(dataset, dimensions=dims, attributes={**more, **dataset.attributes})


@dataclass(frozen=True)
class _Axes:
    """Corners of a grid in the units of its coordinates, its lengths, and its projection."""

    columns: int
    rows: int
    corners: tuple[float, float, float, float]
    inset: float
    projection: str
    parameters: tuple[float, ...]
    zone: int
    sphere: int

    @classmethod
    def of(cls, grid: Mapping[str, str]) -> _Axes | None:
        """Return the axes of a grid, None if its metadata do not say where its cells lie."""
        if grid.get("GridOrigin", UPPER_LEFT) != UPPER_LEFT:
            return None
        # the corners of a space oblique Mercator grid (MISR) are those of its first block alone
        if grid.get("Projection", SOM) == SOM:
            return None
        try:
            west, north = _parse_numbers(grid["UpperLeftPointMtrs"])
            east, south = _parse_numbers(grid["LowerRightMtrs"])
            columns, rows = int(grid["XDim"]), int(grid["YDim"])
            parameters = _parse_numbers(grid.get("ProjParams", "()"))
            zone, sphere = int(grid.get("ZoneCode", 0)), int(grid.get("SphereCode", -1))
        except (KeyError, ValueError):
            return None
        corners = west, north, east, south
        if grid["Projection"] == GEO:
            west, north, east, south = map(unpack_degrees, corners)
            corners = west, north, east, south
        inset = 0.5 if grid.get("PixelRegistration", CENTRE) == CENTRE else 0.0
        if not (0 < columns <= LONGEST and 0 < rows <= LONGEST and np.isfinite(corners).all()):
            return None
        return cls(columns, rows, corners, inset, grid["Projection"], parameters, zone, sphere)

    def fits(self, dataset: Dataset) -> bool:
        """Say whether a data set has these axes."""
        lengths = {d.name: d.length for d in dataset.dimensions}
        return (lengths["YDim"], lengths["XDim"]) == (self.rows, self.columns)

    def build(self) -> dict[str, ManifestVariable]:
        """Return the coordinates of cells, and the variable of the reference system."""
        west, north, east, south = self.corners
        dx, dy = (east - west) / self.columns, (south - north) / self.rows
        values = {
            "y": north + (np.arange(self.rows) + self.inset) * dy,
            "x": west + (np.arange(self.columns) + self.inset) * dx,
        }
        attributes = COORDINATES[self.projection == GEO]
        system: dict[str, Any] = dict(
            _describe(self.projection, self.parameters, self.zone, self.sphere)
        )
        # as GDAL writes it: where the outer corner lies, and how long cells are
        system["GeoTransform"] = " ".join(map(repr, (west, dx, 0.0, north, 0.0, dy)))
        system["Projection"] = self.projection
        if self.parameters:
            system["ProjParams"] = np.array(self.parameters)
        found = {name: ManifestVariable((name,), values[name], attributes[name]) for name in values}
        return found | {REFERENCE_SYSTEM: ManifestVariable((), np.array(0), system)}


def _parse_numbers(text: str) -> tuple[float, ...]:
    """Return the numbers in brackets."""
    return tuple(float(n) for n in text.strip("()").split(",") if n)


def unpack_degrees(packed: float) -> float:
    """Return degrees of GCTP's packed ones: a million times degrees, a thousand times minutes.

    Examples
    --------
    >>> unpack_degrees(-180000000.0), unpack_degrees(30030036.0)
    (-180.0, 30.51)
    """
    size = abs(packed)
    degrees, rest = divmod(size, 1e6)
    minutes, seconds = divmod(rest, 1e3)
    return float(np.copysign(degrees + minutes / 60 + seconds / 3600, packed))


@lru_cache(64)
def _describe(
    projection: str, parameters: tuple[float, ...], zone: int, sphere: int
) -> Mapping[str, Any]:
    """Return CF attributes and well-known text of a projection, nothing if it is not known."""
    keys = _find_ellipsoid(parameters, sphere)
    if projection == GEO:
        name = {"grid_mapping_name": "latitude_longitude"}
        return name | describe_system({"GTModelTypeGeoKey": GEOGRAPHIC, **keys})
    keys["GTModelTypeGeoKey"] = PROJECTED
    if projection == UTM and sphere in UTM_DATUMS:
        system = {"GeographicTypeGeoKey": UTM_DATUMS[sphere]}
        hemisphere = 16000 if zone > 0 else 16100
        return describe_system({**keys, **system, "ProjectionGeoKey": hemisphere + abs(zone)})
    if projection not in PROJECTIONS or len(parameters) < 8:
        return {}
    number, degrees = PROJECTIONS[projection]
    keys["ProjCoordTransGeoKey"] = number
    keys |= {name: unpack_degrees(parameters[place]) for place, name in degrees.items()}
    return describe_system(keys | {name: parameters[place] for place, name in SHIFTS.items()})


def _find_ellipsoid(parameters: tuple[float, ...], sphere: int) -> dict[str, Any]:
    """Return the GeoKeys of the ellipsoid: by its code, or by its axes in metres.

    The second parameter is the shorter axis if it is more than one, else the square of the
    eccentricity, whatever its sign.
    """
    if sphere in SPHEROIDS:
        return {"GeogEllipsoidGeoKey": SPHEROIDS[sphere]}
    if len(parameters) < 2 or not parameters[0]:
        return {}
    long, short = map(abs, parameters[:2])
    short = short if short > 1 else long * math.sqrt(1 - short)
    return {"GeogSemiMajorAxisGeoKey": long, "GeogSemiMinorAxisGeoKey": short}
