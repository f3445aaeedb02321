"""Scientific data sets of HDF4, with dimensions, dtypes and attributes, and grids of HDF-EOS2.

Files of HDF 3.3 and later describe data sets by Vgroups (of class ``CDF0.0`` and its members),
earlier ones by numeric data groups (HDF Specification and Developer's Guide, HDF 4.2, sections 5,
9.3 and 9.3.5). In earlier files, data sets and dimensions have no names, so they get the names that
the HDF4 library gives them.

Scale and offset are defined differently in HDF4 (`SDsetcal`), value = scale_factor * (stored -
add_offset), and in CF (section 8.1), value = scale_factor * stored + add_offset. They agree if the
offset is zero.

HDF-EOS2 describes grids, with the positions of their cells, and swaths (HDF-EOS Library
Users Guide, 175-EMD-001, sections 4 and 7; parameters of projections: the General Cartographic
Transformation Package (GCTP), table in section 1.6 of its volume 2).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from virtualds.arrays.group import ManifestVariable
from virtualds.errors import FormatError, UnsupportedError, VirtualdsError, make_damage_error
from virtualds.parsers.geo_keys import GEOGRAPHIC, PROJECTED, REFERENCE_SYSTEM, describe_crs
from virtualds.parsers.hdf4.elements import (
    CALIBRATION,
    COORDINATE_SYSTEM,
    DATA,
    DIMENSIONS,
    FILL,
    FORMATS,
    LABELS,
    LINK,
    MAX_AXES,
    NUMBER_TYPE,
    NUMERIC_GROUP,
    OLD_GROUP,
    RANGE,
    SCALES,
    UNITS,
    VDATA,
    VGROUP,
    Elements,
    Vdata,
    Vgroup,
    decode_text,
    find_dtype,
    read_numeric_group,
    read_values,
    read_vdata,
    read_vgroup,
    unpack,
)
from virtualds.parsers.hdf5.netcdf_rules import join_metadata, read_structures

SCALE, OFFSET = "scale_factor", "add_offset"
CALIBRATION_ATTRIBUTES = {SCALE, "scale_factor_err", OFFSET, "add_offset_err", "calibrated_nt"}
"""Attributes that the HDF4 library writes together, with its definition of scaling."""
STORED_PREFIX = "hdf4_"
"""Prefix of the names of attributes that CF would misinterpret."""


def convert_to_cf(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Convert attributes of HDF4 to CF attributes with the same meaning.

    If it is unknown whether the writer followed HDF4 or CF, the values are not changed, and scale
    and offset get names that CF does not use.

    Examples
    --------
    >>> convert_to_cf({"scale_factor": 0.5, "add_offset": -3.0})
    {'hdf4_scale_factor': 0.5, 'hdf4_add_offset': -3.0}
    >>> convert_to_cf({"scale_factor": 0.5, "add_offset": 0.0})
    {'scale_factor': 0.5, 'add_offset': 0.0}
    """
    offset = attributes.get(OFFSET)
    if not isinstance(offset, np.number | int | float) or not offset:
        return dict(attributes)
    scale = attributes.get(SCALE)
    if attributes.keys() >= CALIBRATION_ATTRIBUTES and isinstance(scale, np.number | int | float):
        return {**attributes, OFFSET: -scale * offset, STORED_PREFIX + OFFSET: offset}
    return {
        STORED_PREFIX + name if name in (SCALE, OFFSET) else name: value
        for name, value in attributes.items()
    }


# ---------------------------------------------------------------------- old groups

TEXT_ATTRIBUTES = {LABELS: "long_name", UNITS: "units", FORMATS: "format"}
"""Attributes of the data set and of each dimension, by the tag of the element with the texts."""
CALIBRATION_FIELDS = ("scale_factor", "scale_factor_err", "add_offset", "add_offset_err")
DOUBLE_CALIBRATION_BYTES = 36
"""Size in bytes of a calibration with double precision."""


def read_old_datasets(elements: Elements) -> Datasets:
    """Return the data sets that are described by numeric data groups."""
    datasets: list[ScientificDataset] = []
    groups = [(NUMERIC_GROUP, ref) for ref in elements.list_refs(NUMERIC_GROUP)]
    seen = set[int]()
    for key in groups:
        members = read_numeric_group(elements, key)
        if LINK in members:
            # the linked group describes the same data set for older programs
            seen.add(unpack(">HHHH", elements.read((LINK, members[LINK])))[3])
    groups += [(OLD_GROUP, ref) for ref in elements.list_refs(OLD_GROUP) if ref not in seen]
    count = 0
    for key in groups:
        dataset = _OldDataset(elements, read_numeric_group(elements, key), count)
        datasets += [*dataset.list_scales(), dataset.to_dataset(f"Data-Set-{key[1]}")]
        count += len(dataset.lengths)
    return Datasets(datasets)


class _OldDataset:
    """A data set of a numeric data group; its dimensions are numbered from ``first``."""

    def __init__(self, elements: Elements, members: dict[int, int], first: int) -> None:
        self._elements = elements
        self._members = members
        record = self._read(DIMENSIONS)
        (rank,) = unpack(">H", record)
        if not 1 <= rank <= MAX_AXES:
            raise make_damage_error(f"a data set has {rank} axes")
        self.lengths = unpack(f">{rank}I", record[2:])
        type_keys = unpack(f">{2 * rank + 2}H", record[2 + 4 * rank :])
        tags, refs = type_keys[::2], type_keys[1::2]
        if any(tag != NUMBER_TYPE for tag in tags):
            raise make_damage_error(
                f"a data set of {self.lengths} has number types of tags {tags}, not {NUMBER_TYPE}"
            )
        self.dtype, *self._scale_types = (read_number_type(elements, ref) for ref in refs)
        self._dimensions = tuple(
            Dimension(f"fakeDim{first + axis}", length) for axis, length in enumerate(self.lengths)
        )
        self._texts = {name: self._read(tag).split(b"\0") for tag, name in TEXT_ATTRIBUTES.items()}

    def _read(self, tag: int) -> bytes:
        ref = self._members.get(tag)
        return b"" if ref is None else self._elements.read((tag, ref))

    def _find_texts(self, index: int) -> dict[str, Any]:
        """Return the label, unit and format of the data set, or of one of its dimensions."""
        attributes = {name: texts[index : index + 1] for name, texts in self._texts.items()}
        return {
            name: convert_attribute(name, np.array(t)) for name, t in attributes.items() if any(t)
        }

    def list_scales(self) -> list[ScientificDataset]:
        """Return the dimension scales; a flag per dimension indicates whether it has values."""
        data = self._read(SCALES)
        flags, offset = data[: len(self.lengths)], len(self.lengths)
        scales = []
        for axis, flag in enumerate(flags):
            dtype, dimension = self._scale_types[axis], self._dimensions[axis]
            if not flag:
                continue
            if not isinstance(dtype, np.dtype):
                # the offsets of the following scales are unknown
                break
            (raw,) = unpack(f"{self.lengths[axis] * dtype.itemsize}s", data[offset:])
            offset += len(raw)
            values: npt.NDArray[Any] = np.frombuffer(raw, dtype).astype(dtype.newbyteorder("="))
            texts = self._find_texts(axis + 1)
            scales.append(
                ScientificDataset(dimension.name, None, (dimension,), dtype, texts, values=values)
            )
        return scales

    def to_dataset(self, name: str) -> ScientificDataset:
        """Return the data set as a `ScientificDataset`."""
        attributes: dict[str, Any] = {}
        if text := self._read(COORDINATE_SYSTEM):
            attributes["coordsys"] = convert_attribute("", np.array([text]))
        if isinstance(self.dtype, np.dtype):
            attributes |= self._find_range_and_fill(self.dtype)
        attributes |= self._find_calibration() | self._find_texts(0)
        ref = self._members.get(DATA)
        return ScientificDataset(name, ref, self._dimensions, self.dtype, attributes)

    def _find_range_and_fill(self, dtype: np.dtype[Any]) -> dict[str, Any]:
        """Return the range of the values, and the fill value."""
        numbers = dict[str, Any]()
        names = {RANGE: ("valid_max", "valid_min"), FILL: ("_FillValue",)}
        for tag, attributes in names.items():
            data = self._read(tag)
            if len(data) >= len(attributes) * dtype.itemsize:
                values = np.frombuffer(data, dtype, len(attributes)).astype(dtype.newbyteorder("="))
                numbers |= dict(zip(attributes, values, strict=True))
        return numbers

    def _find_calibration(self) -> dict[str, Any]:
        data = self._read(CALIBRATION)
        if not data:
            return {}
        dtype = np.dtype(">f8" if len(data) == DOUBLE_CALIBRATION_BYTES else ">f4")
        if len(data) != 4 * dtype.itemsize + 4:
            raise UnsupportedError(f"a calibration has {len(data)} bytes; read it with pyhdf")
        numbers = np.frombuffer(data, dtype, 4).astype(dtype.newbyteorder("="))
        (code,) = unpack(">i", data[4 * dtype.itemsize :])
        return dict(zip(CALIBRATION_FIELDS, numbers, strict=True)) | {
            "calibrated_nt": np.int32(code)
        }


# ---------------------------------------------------------------------- datasets

FILE_CLASS, DATASET_CLASS, ATTRIBUTE_CLASS = "CDF0.0", "Var0.0", "Attr0.0"
DIMENSION_CLASS, UNLIMITED_CLASS = "Dim0.0", "UDim0.0"
LENGTH_CLASS, RECORDS_CLASS, SCALE_CLASS = "DimVal0.1", "DimVal0.0", "CoordVar"
"""Classes of the Vgroups and Vdatas that describe data sets."""
BYTE_ORDERS = {0: ">", 1: ">", 4: "<"}
"""Byte orders by the class of a number type (section 9.3.2)."""


@dataclass(frozen=True)
class Dimension:
    """A dimension of a data set; its length is None if it is unlimited."""

    name: str
    length: int | None


@dataclass(frozen=True)
class ScientificDataset:
    """A scientific data set.

    Parameters
    ----------
    name : str
    ref : int or None
        Reference number of its values, or None if there are none.
    dimensions : tuple of Dimension
    dtype : numpy dtype or VirtualdsError
        The stored dtype, or the error if numpy does not support it.
    attributes : dict
    is_scale : bool
        Whether it is a dimension scale.
    problems : dict of str to VirtualdsError
        The errors of attributes.
    values : array, optional
        The values, if they are few and part of the metadata.
    """

    name: str
    ref: int | None
    dimensions: tuple[Dimension, ...]
    dtype: np.dtype[Any] | VirtualdsError
    attributes: dict[str, Any] = field(default_factory=dict)
    is_scale: bool = False
    problems: dict[str, VirtualdsError] = field(default_factory=dict)
    values: npt.NDArray[Any] | None = None


@dataclass(frozen=True)
class Datasets:
    """The data sets and attributes of a file, and the errors of unreadable attributes."""

    members: list[ScientificDataset]
    attributes: dict[str, Any] = field(default_factory=dict)
    problems: dict[str, VirtualdsError] = field(default_factory=dict)


def make_unique_name(name: str, used_names: Collection[str]) -> str:
    """Return a unique name without slashes.

    Examples
    --------
    >>> make_unique_name("a/b", []), make_unique_name("a/b", ["a_b", "a_b_2"])
    ('a_b', 'a_b_3')
    """
    valid_name = name.replace("/", "_")
    numbered = (f"{valid_name}_{number}" for number in itertools.count(2))
    candidates = itertools.chain([valid_name], numbered)
    return next(candidate for candidate in candidates if candidate not in used_names)


def read_datasets(elements: Elements) -> Datasets | None:
    """Return the data sets that are described by Vgroups, or None if there are no such Vgroups."""
    groups = (read_vgroup(elements, ref) for ref in elements.list_refs(VGROUP))
    root = next((group for group in groups if group.class_name == FILE_CLASS), None)
    if root is None:
        return None
    attributes, problems = _read_attributes(elements, _read_tables(elements, root))
    datasets = []
    for tag, ref in root.members:
        if tag == VGROUP:
            group = read_vgroup(elements, ref)
            if group.class_name == DATASET_CLASS:
                datasets.append(_read_dataset(elements, group))
    return Datasets(datasets, attributes, problems)


def _read_dataset(elements: Elements, group: Vgroup) -> ScientificDataset:
    dimensions = []
    for ref in (ref for tag, ref in group.members if tag == VGROUP):
        member = read_vgroup(elements, ref)
        if member.class_name == UNLIMITED_CLASS:
            dimensions.append(Dimension(member.name, None))
        elif member.class_name == DIMENSION_CLASS:
            dimensions.append(Dimension(member.name, _find_length(elements, member)))
    refs = dict(group.members)
    # the group that describes the same data set for older programs
    numeric_group = (NUMERIC_GROUP, refs.get(NUMERIC_GROUP, 0))
    if DATA not in refs and DATA in read_numeric_group(elements, numeric_group):
        raise make_damage_error(f"data set {group.name!r} has values only for old programs")
    tables = _read_tables(elements, group)
    attributes, problems = _read_attributes(elements, tables)
    return ScientificDataset(
        group.name,
        refs.get(DATA),
        tuple(dimensions),
        read_number_type(elements, refs.get(NUMBER_TYPE)),
        attributes,
        any(table.class_name == SCALE_CLASS for table in tables.values()),
        problems,
    )


def read_number_type(elements: Elements, ref: int | None) -> np.dtype[Any] | VirtualdsError:
    """Return the dtype of a number type, or the error if numpy has none (section 9.3.2)."""
    data = b"" if ref is None else elements.read_raw((NUMBER_TYPE, ref))
    try:
        _, code, _, machine = unpack(">BBBB", data)
        if machine not in BYTE_ORDERS:
            raise UnsupportedError(
                f"its numbers are those of another machine (class {machine}), which numpy does "
                f"not support; read it with pyhdf"
            )
        return find_dtype(code, BYTE_ORDERS[machine])
    except (FormatError, UnsupportedError) as error:
        return error


def _find_length(elements: Elements, group: Vgroup) -> int:
    """Return the length of a dimension: a value, or in old files a number of records."""
    lengths = list[int]()
    for ref, table in _read_tables(elements, group).items():
        if table.class_name == LENGTH_CLASS:
            lengths += read_values(elements, ref, table).tolist()[:1]
        elif table.class_name == RECORDS_CLASS:
            lengths.append(table.records)
    if not lengths or not isinstance(lengths[-1], int) or lengths[-1] < 0:
        raise make_damage_error(f"dimension {group.name!r} has no length")
    return lengths[-1]


def _read_tables(elements: Elements, group: Vgroup) -> dict[int, Vdata]:
    """Return the headers of the Vdatas among the members of a Vgroup, by reference number."""
    return {ref: read_vdata(elements, ref) for tag, ref in group.members if tag == VDATA}


def _read_attributes(
    elements: Elements, tables: dict[int, Vdata]
) -> tuple[dict[str, Any], dict[str, VirtualdsError]]:
    """Return the attributes among Vdatas, and the errors of unreadable attributes."""
    attributes, problems = dict[str, Any](), dict[str, VirtualdsError]()
    for ref, table in tables.items():
        if table.class_name != ATTRIBUTE_CLASS:
            continue
        try:
            attributes[table.name] = convert_attribute(
                table.name, read_values(elements, ref, table)
            )
        except (FormatError, UnsupportedError) as error:
            problems[table.name] = error
    return attributes, problems


def convert_attribute(name: str, values: np.ndarray[Any, Any]) -> Any:
    """Return the value of an attribute as in netCDF readers.

    Examples
    --------
    >>> convert_attribute("units", np.array([b"K", b""]))
    'K'
    >>> convert_attribute("n", np.array([3], ">i2"))
    np.int16(3)
    """
    if values.dtype.kind == "S":
        data = values.tobytes()
        return np.bytes_(data) if name == "_FillValue" else decode_text(data.replace(b"\0", b""))
    values = values.astype(values.dtype.newbyteorder("="))
    return values[0] if values.size == 1 else values


# ---------------------------------------------------------------------- eos

AXIS_NAMES = {"YDim": "y", "XDim": "x"}
"""Names of the dimensions of a grid whose cells have coordinates, by their names in HDF-EOS2."""
MAX_CELLS = 2**24
"""Maximum length of an axis with coordinates."""
CELL_CENTRE, UPPER_LEFT = "HDFE_CENTER", "HDFE_GD_UL"
"""Defaults of PixelRegistration and GridOrigin."""
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
"""Values of ProjCoordTransGeoKey, and GeoKeys of parameters in packed degrees, by projection."""
FALSE_ORIGIN_KEYS = {6: "ProjFalseEastingGeoKey", 7: "ProjFalseNorthingGeoKey"}
GEO, UTM, SOM = "GCTP_GEO", "GCTP_UTM", "GCTP_SOM"
SPHEROIDS = {0: 7008, 8: 7019, 12: 7030}
"""EPSG codes of ellipsoids by SphereCode: Clarke 1866, GRS 1980, WGS 84."""
UTM_DATUMS = {0: 4267, 8: 4269, 12: 4326}
"""EPSG codes of the corresponding geographic CRSs: NAD27, NAD83, WGS 84."""
COORDINATE_ATTRIBUTES = {
    True: {
        "y": {"standard_name": "latitude", "units": "degrees_north"},
        "x": {"standard_name": "longitude", "units": "degrees_east"},
    },
    False: {
        "y": {"standard_name": "projection_y_coordinate", "units": "m"},
        "x": {"standard_name": "projection_x_coordinate", "units": "m"},
    },
}
"""Attributes of coordinates, by whether the grid is geographic."""


@dataclass(frozen=True)
class DatasetGroup:
    """The data sets of a group, and the coordinates that are computed for them."""

    members: list[ScientificDataset]
    coordinates: dict[str, ManifestVariable] = field(default_factory=dict)


def group_by_structure(datasets: Datasets) -> dict[str, DatasetGroup]:
    """Return the data sets by grid.

    The root has the data sets without a grid, or all if there is only one grid or swath.
    """
    text = join_metadata((name, str(value)) for name, value in datasets.attributes.items())
    grids_and_swaths = (
        structure for structure in read_structures(text) if structure.kind in ("GRID", "SWATH")
    )
    structures = {structure.name: structure.values for structure in grids_and_swaths}
    if len(structures) == 1:
        [(name, fields)] = structures.items()
        return {"": _make_structure_group(datasets.members, name, fields)}
    members: dict[str, list[ScientificDataset]] = {name: [] for name in ("", *structures)}
    for dataset in datasets.members:
        # the dimensions of a field are named "dimension:grid"
        names = (d.name.partition(":")[2] for d in dataset.dimensions)
        grid = next((name for name in names if "GridName" in structures.get(name, {})), "")
        members[grid].append(dataset)
    parts = {"": DatasetGroup(members[""])}
    for name, fields in structures.items():
        if name and members[name]:
            parts[make_unique_name(name, parts)] = _make_structure_group(
                members[name], name, fields
            )
    return parts


def _make_structure_group(
    members: list[ScientificDataset], name: str, grid: Mapping[str, str]
) -> DatasetGroup:
    """Return the group of a grid or swath, whose name is removed from the dimension names."""
    renamed = []
    for member in members:
        dims = (replace(d, name=d.name.removesuffix(f":{name}")) for d in member.dimensions)
        renamed.append(replace(member, dimensions=tuple(dims)))
    lengths = [{d.name: d.length for d in m.dimensions} for m in filter(_is_on_grid, renamed)]
    coordinates = _build_coordinates(grid, {(n["YDim"], n["XDim"]) for n in lengths})
    if coordinates is None:
        return DatasetGroup(renamed)
    grid_attributes = {"grid_mapping": REFERENCE_SYSTEM, "coordinates": REFERENCE_SYSTEM}
    for number, field_ in enumerate(renamed):
        if _is_on_grid(field_):
            # a field of a grid has the dimensions and attributes of the coordinates
            dims = (replace(d, name=AXIS_NAMES.get(d.name, d.name)) for d in field_.dimensions)
            attributes = {**grid_attributes, **field_.attributes}
            renamed[number] = replace(field_, dimensions=tuple(dims), attributes=attributes)
    return DatasetGroup(renamed, coordinates)


def _is_on_grid(dataset: ScientificDataset) -> bool:
    return AXIS_NAMES.keys() <= {d.name for d in dataset.dimensions}


def _build_coordinates(
    grid: Mapping[str, str], shapes: Collection[tuple[int | None, int | None]]
) -> dict[str, ManifestVariable] | None:
    """Return the coordinates of the cells of a grid, and its grid mapping variable.

    Returns None if the positions of the cells are unknown, or if ``shapes``, the rows and columns
    of its fields, are not those of its metadata, which may differ from the content of the file.
    """
    if grid.get("GridOrigin", UPPER_LEFT) != UPPER_LEFT:
        return None
    # the corners of a space oblique Mercator grid (MISR) are those of its first block only
    projection = grid.get("Projection", SOM)
    if projection == SOM:
        return None
    try:
        west, north = _parse_numbers(grid["UpperLeftPointMtrs"])
        east, south = _parse_numbers(grid["LowerRightMtrs"])
        columns, rows = int(grid["XDim"]), int(grid["YDim"])
        parameters = _parse_numbers(grid.get("ProjParams", "()"))
        zone, sphere = int(grid.get("ZoneCode", 0)), int(grid.get("SphereCode", -1))
    except (KeyError, ValueError):
        return None
    if projection == GEO:
        west, north, east, south = map(unpack_degrees, (west, north, east, south))
    has_cells = 0 < columns <= MAX_CELLS and 0 < rows <= MAX_CELLS
    is_same_shape = {*shapes} == {(rows, columns)}
    if not (has_cells and is_same_shape and np.isfinite([west, north, east, south]).all()):
        return None
    inset = 0.5 if grid.get("PixelRegistration", CELL_CENTRE) == CELL_CENTRE else 0.0
    dx, dy = (east - west) / columns, (south - north) / rows
    y, x = north + (np.arange(rows) + inset) * dy, west + (np.arange(columns) + inset) * dx
    attributes = COORDINATE_ATTRIBUTES[projection == GEO]
    crs_attributes: dict[str, Any] = dict(_describe(projection, parameters, zone, sphere))
    # as in GDAL: the position of the outer corner, and the cell sizes
    crs_attributes["GeoTransform"] = " ".join(map(repr, (west, dx, 0.0, north, 0.0, dy)))
    crs_attributes["Projection"] = projection
    if parameters:
        crs_attributes["ProjParams"] = np.array(parameters)
    return {
        "y": ManifestVariable(("y",), y, attributes["y"]),
        "x": ManifestVariable(("x",), x, attributes["x"]),
        REFERENCE_SYSTEM: ManifestVariable((), np.array(0), crs_attributes),
    }


def _parse_numbers(text: str) -> tuple[float, ...]:
    """Return the numbers in brackets."""
    return tuple(float(n) for n in text.strip("()").split(",") if n)


def unpack_degrees(packed: float) -> float:
    """Convert packed degrees of GCTP: a million times degrees, a thousand times minutes.

    Examples
    --------
    >>> unpack_degrees(-180000000.0), unpack_degrees(30030036.0)
    (-180.0, 30.51)
    """
    size = abs(packed)
    degrees, remainder = divmod(size, 1e6)
    minutes, seconds = divmod(remainder, 1e3)
    return float(np.copysign(degrees + minutes / 60 + seconds / 3600, packed))


@lru_cache(64)
def _describe(
    projection: str, parameters: tuple[float, ...], zone: int, sphere: int
) -> Mapping[str, Any]:
    """Return the CF attributes of a projection with its well-known text; empty if it is unknown."""
    keys = _find_ellipsoid(parameters, sphere)
    if projection == GEO:
        name = {"grid_mapping_name": "latitude_longitude"}
        return name | describe_crs({"GTModelTypeGeoKey": GEOGRAPHIC, **keys})
    keys["GTModelTypeGeoKey"] = PROJECTED
    if projection == UTM and sphere in UTM_DATUMS:
        geographic_crs = {"GeographicTypeGeoKey": UTM_DATUMS[sphere]}
        hemisphere = 16000 if zone > 0 else 16100
        return describe_crs({**keys, **geographic_crs, "ProjectionGeoKey": hemisphere + abs(zone)})
    if projection not in PROJECTIONS or len(parameters) < 8:
        return {}
    method, angle_keys = PROJECTIONS[projection]
    keys["ProjCoordTransGeoKey"] = method
    keys |= {name: unpack_degrees(parameters[index]) for index, name in angle_keys.items()}
    return describe_crs(
        keys | {name: parameters[index] for index, name in FALSE_ORIGIN_KEYS.items()}
    )


def _find_ellipsoid(parameters: tuple[float, ...], sphere: int) -> dict[str, Any]:
    """Return the GeoKeys of the ellipsoid: by its code, or by its axes in metres.

    The second parameter is the semi-minor axis if it is greater than 1, otherwise the square of the
    eccentricity; signs are ignored.
    """
    if sphere in SPHEROIDS:
        return {"GeogEllipsoidGeoKey": SPHEROIDS[sphere]}
    if len(parameters) < 2 or not parameters[0]:
        return {}
    semi_major, semi_minor = map(abs, parameters[:2])
    if semi_minor <= 1:
        semi_minor = semi_major * math.sqrt(1 - semi_minor)
    return {"GeogSemiMajorAxisGeoKey": semi_major, "GeogSemiMinorAxisGeoKey": semi_minor}
