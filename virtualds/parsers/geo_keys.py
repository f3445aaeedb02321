"""Conversion of the GeoKeys of TIFF, which define the CRS, to CF attributes and well-known text.

pyproj defines the CRSs with a code; text and attributes are as in rioxarray. CRSs without a code
are built from their parameters (GeoTIFF 1.1, annex B and C). The names of projections and
parameters in well-known text are those of OGC 01-009, as in GDAL.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from virtualds.importing import import_pyproj

REFERENCE_SYSTEM = "spatial_ref"
"""Name of the variable with the attributes of a CRS, as in rioxarray."""
PROJECTED, GEOGRAPHIC = 1, 2
"""Values of GTModelTypeGeoKey (GeoTIFF 1.1, 7.4)."""
USER_DEFINED = 32767
METRE, DEGREE = 9001, 9122
"""EPSG codes of units."""
SPHEROID = re.compile(r'(SPHEROID\["[^"]*"),[^,\]]*,[^,\]]*')
"""Matches the ellipsoid in well-known text: its name, semi-major axis and inverse flattening."""
EPSG_UNITS = {9102: DEGREE}
"""EPSG codes of units by other codes for the same units."""
UNIT_KEYS: dict[Any, str] = {
    PROJECTED: "ProjLinearUnitsGeoKey",
    GEOGRAPHIC: "GeogAngularUnitsGeoKey",
}
ESRI_WKT_PREFIX = "ESRI PE String = "
"""Prefix of citations that contain the well-known text of the CRS."""
CODE_KEYS: dict[Any, tuple[str, ...]] = {
    PROJECTED: ("ProjectedCSTypeGeoKey", "ProjectedCRSGeoKey"),
    GEOGRAPHIC: ("GeographicTypeGeoKey", "GeodeticCRSGeoKey"),
}
"""Keys of the code of a CRS, in GeoTIFF 1.0 and 1.1."""

Names = dict[str, tuple[str, ...]]
"""Keys by parameter; most writers use the first key, some use one of the others."""
LATITUDE = ("ProjNatOriginLatGeoKey", "ProjFalseOriginLatGeoKey", "ProjCenterLatGeoKey")
LONGITUDE = ("ProjNatOriginLongGeoKey", "ProjFalseOriginLongGeoKey", "ProjCenterLongGeoKey")
SCALE = ("ProjScaleAtNatOriginGeoKey", "ProjScaleAtCenterGeoKey")
PARALLEL_1, PARALLEL_2 = ("ProjStdParallel1GeoKey",), ("ProjStdParallel2GeoKey",)
FALSE_ORIGIN: Names = {
    "false_easting": (
        "ProjFalseEastingGeoKey",
        "ProjCenterEastingGeoKey",
        "ProjFalseOriginEastingGeoKey",
    ),
    "false_northing": (
        "ProjFalseNorthingGeoKey",
        "ProjCenterNorthingGeoKey",
        "ProjFalseOriginNorthingGeoKey",
    ),
}
ORIGIN: Names = {"latitude_of_origin": LATITUDE, "central_meridian": LONGITUDE}
CENTER: Names = {"latitude_of_center": LATITUDE, "longitude_of_center": LONGITUDE}
SCALE_FACTOR: Names = {"scale_factor": SCALE}
PARALLELS: Names = {"standard_parallel_1": PARALLEL_1, "standard_parallel_2": PARALLEL_2}
POLE = ("ProjStraightVertPoleLongGeoKey", *LONGITUDE)
PROJECTIONS: dict[Any, tuple[str, Names]] = {
    1: ("Transverse_Mercator", ORIGIN | SCALE_FACTOR),
    7: ("Mercator_1SP", ORIGIN | SCALE_FACTOR),
    8: ("Lambert_Conformal_Conic_2SP", PARALLELS | ORIGIN),
    9: ("Lambert_Conformal_Conic_1SP", ORIGIN | SCALE_FACTOR),
    10: ("Lambert_Azimuthal_Equal_Area", CENTER),
    11: ("Albers_Conic_Equal_Area", PARALLELS | CENTER),
    12: ("Azimuthal_Equidistant", CENTER),
    13: ("Equidistant_Conic", PARALLELS | CENTER),
    14: ("Stereographic", ORIGIN | SCALE_FACTOR),
    15: ("Polar_Stereographic", ORIGIN | {"central_meridian": POLE} | SCALE_FACTOR),
    16: ("Oblique_Stereographic", ORIGIN | SCALE_FACTOR),
    17: ("Equirectangular", ORIGIN | {"standard_parallel_1": PARALLEL_1}),
    18: ("Cassini_Soldner", ORIGIN),
    19: ("Gnomonic", ORIGIN),
    20: ("Miller_Cylindrical", {"longitude_of_center": LONGITUDE}),
    21: ("Orthographic", ORIGIN),
    22: ("Polyconic", ORIGIN),
    23: ("Robinson", {"longitude_of_center": LONGITUDE}),
    24: ("Sinusoidal", {"longitude_of_center": LONGITUDE}),
    25: ("VanDerGrinten", {"central_meridian": LONGITUDE}),
    27: ("Transverse_Mercator_South_Orientated", ORIGIN | SCALE_FACTOR),
    28: (
        "Cylindrical_Equal_Area",
        {"standard_parallel_1": PARALLEL_1, "central_meridian": LONGITUDE},
    ),
}
"""Projections by ProjCoordTransGeoKey (GeoTIFF 1.1, table 10): name, and keys of parameters."""
UTM_METHOD = "Transverse_Mercator"
UTM_PARAMETERS = {
    hemisphere: {
        "latitude_of_origin": 0.0,
        "scale_factor": 0.9996,
        "false_easting": 500000.0,
        "false_northing": northing,
    }
    for hemisphere, northing in {160: 0.0, 161: 10000000.0}.items()
}
"""Parameters of UTM by the hundreds of ProjectionGeoKey, whose last digits are the zone."""
OTHER_AXES = ("Polar_Stereographic", "Transverse_Mercator_South_Orientated")
"""Projections whose axes do not point east and north."""
MERCATOR = 7
MERCATOR_2SP = ("Mercator_2SP", ORIGIN | {"standard_parallel_1": PARALLEL_1})


class _UnknownCrsError(Exception):
    """Raised for a CRS that cannot be translated."""


def describe_crs(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a CF grid mapping variable for a CRS.

    Parameters
    ----------
    keys : mapping
        GeoKeys by their names in tifffile.

    Returns
    -------
    dict
        As in rioxarray: ``crs_wkt``, the attributes of the CF conventions (appendix F), and
        ``spatial_ref``. Without pyproj, or if pyproj lacks the code, only
        ``spatial_ref="EPSG:..."``. Empty for CRSs that cannot be translated.
    """
    if "GTModelTypeGeoKey" not in keys:
        return {}
    scalars = (item for item in sorted(keys.items()) if isinstance(item[1], int | float | str))
    return dict(_describe(tuple(scalars)))


# cached, since the images of an archive share a few CRSs
@lru_cache(maxsize=256)
def _describe(keys: tuple[tuple[str, Any], ...]) -> Mapping[str, Any]:
    values = dict(keys)
    code = find_code(values)
    fallback = {} if code is None else {"spatial_ref": f"EPSG:{code}"}
    try:
        pyproj = import_pyproj()
    except ImportError:
        return fallback
    try:
        text = _to_wkt(_add_vertical_crs(_find_crs(values, pyproj), values, pyproj), pyproj)
        attributes = pyproj.CRS.from_wkt(text).to_cf()
    except _UnknownCrsError:
        return {}
    except pyproj.exceptions.ProjError:
        return fallback
    attributes = {name: list(v) if isinstance(v, tuple) else v for name, v in attributes.items()}
    return attributes | {"crs_wkt": text, "spatial_ref": text}


def find_code(keys: Mapping[str, Any]) -> int | None:
    """Return the EPSG code of a CRS, or None if it has none."""
    return _find_code(keys, keys.get("GTModelTypeGeoKey"))


def _find_code(keys: Mapping[str, Any], model_type: Any) -> int | None:
    codes = (keys.get(name) for name in CODE_KEYS.get(model_type, ()))
    return next((code for code in codes if _is_code(code)), None)


def _is_code(value: Any) -> bool:
    return isinstance(value, int) and 1024 <= value < USER_DEFINED


def _find_crs(keys: Mapping[str, Any], pyproj: Any) -> Any:
    """Return the CRS, by its code or by its parameters."""
    kind, code = keys.get("GTModelTypeGeoKey"), find_code(keys)
    if code is not None:
        return _find_crs_of_code(code, keys, pyproj)
    citation = str(keys.get("PCSCitationGeoKey") or keys.get("GTCitationGeoKey") or "")
    if citation.startswith(ESRI_WKT_PREFIX):
        return pyproj.CRS.from_wkt(citation.removeprefix(ESRI_WKT_PREFIX))
    if kind not in CODE_KEYS:
        raise _UnknownCrsError
    return (_build_projected if kind == PROJECTED else _build_geographic)(keys, pyproj)


def _find_crs_of_code(code: int, keys: Mapping[str, Any], pyproj: Any) -> Any:
    """Return the CRS of a code, with the ellipsoid of the file.

    Raises `_UnknownCrsError` if the file has another unit.
    """
    kind = keys["GTModelTypeGeoKey"]
    crs = pyproj.CRS.from_epsg(code)
    unit = keys.get(UNIT_KEYS[kind])
    if unit is not None and str(EPSG_UNITS.get(unit, unit)) != crs.axis_info[0].unit_code:
        raise _UnknownCrsError
    names = ("GeogSemiMajorAxisGeoKey", "GeogInvFlatteningGeoKey")
    if kind == PROJECTED or not keys.keys() >= set(names):
        return crs
    file_shape = [_find_number(keys, (name,), 0.0) for name in names]
    crs_shape = crs.ellipsoid.semi_major_metre, crs.ellipsoid.inverse_flattening
    if all(math.isclose(*pair, rel_tol=1e-10) for pair in zip(file_shape, crs_shape, strict=True)):
        return crs
    # the ellipsoid of the file overrides that of the database
    numbers = ",".join(map(repr, file_shape))
    text = crs.to_wkt("WKT1_GDAL", output_axis_rule=True)
    return pyproj.CRS.from_wkt(SPHEROID.sub(rf"\1,{numbers}", text))


def _add_vertical_crs(crs: Any, keys: Mapping[str, Any], pyproj: Any) -> Any:
    """Return a CRS combined with the vertical CRS of the file, if it has one."""
    codes = (keys.get(name) for name in ("VerticalCSTypeGeoKey", "VerticalGeoKey"))
    code = next((code for code in codes if _is_code(code)), None)
    if code is None:
        return crs
    vertical = pyproj.CRS.from_epsg(code)
    if vertical.is_geographic:
        # ellipsoidal heights: a single CRS with three axes
        return vertical if crs.is_geographic else crs
    return pyproj.crs.CompoundCRS(f"{crs.name} + {vertical.name}", [crs, vertical])


def _to_wkt(crs: Any, pyproj: Any) -> str:
    """Return the well-known text of a CRS as in GDAL: version 1, or version 2 if necessary."""
    # version 1 has no third axis
    if len(crs.axis_info) > 2 and not crs.is_compound:
        return str(crs.to_wkt("WKT2_2019"))
    try:
        return str(crs.to_wkt("WKT1_GDAL", output_axis_rule=True))
    except pyproj.exceptions.CRSError:
        return str(crs.to_wkt("WKT2_2019"))


# ---------------------------------------------------------------------- CRSs without a code


def _build_projected(keys: Mapping[str, Any], pyproj: Any) -> Any:
    """Return a projected CRS built from its parameters."""
    name, parameters = _find_projection(keys)
    code = _find_code(keys, GEOGRAPHIC)
    if code is None:
        base = _build_geographic(keys, pyproj)
    else:
        base = _find_crs_of_code(code, {**keys, "GTModelTypeGeoKey": GEOGRAPHIC}, pyproj)
    citation = _find_citation(keys, ("PCSCitationGeoKey", "GTCitationGeoKey"))
    parts = [
        _quote(citation.get("PCS Name") or "unnamed"),
        str(base.to_wkt("WKT1_GDAL")),
        f'PROJECTION["{name}"]',
        *(f'PARAMETER["{parameter}",{value!r}]' for parameter, value in parameters.items()),
        _format_unit(keys, pyproj),
    ]
    if name not in OTHER_AXES:
        parts += ['AXIS["Easting",EAST]', 'AXIS["Northing",NORTH]']
    return pyproj.CRS.from_wkt(f"PROJCS[{','.join(parts)}]")


def _find_projection(keys: Mapping[str, Any]) -> tuple[str, dict[str, float]]:
    """Return the name of a projection and its parameters."""
    method = keys.get("ProjCoordTransGeoKey")
    hemisphere, zone = divmod(int(_find_number(keys, ("ProjectionGeoKey",), 0)), 100)
    if method is None and hemisphere in UTM_PARAMETERS and 1 <= zone <= 60:
        return UTM_METHOD, {**UTM_PARAMETERS[hemisphere], "central_meridian": 6.0 * zone - 183}
    if method not in PROJECTIONS:
        raise _UnknownCrsError
    name, parameter_names = PROJECTIONS[method]
    if method == MERCATOR and PARALLEL_1[0] in keys:
        name, parameter_names = MERCATOR_2SP
    parameters = {
        parameter: _find_number(keys, names, 1.0 if parameter == "scale_factor" else 0.0)
        for parameter, names in {**parameter_names, **FALSE_ORIGIN}.items()
    }
    return name, parameters


def _find_number(keys: Mapping[str, Any], names: Sequence[str], default: float) -> float:
    numbers = (keys[name] for name in names if name in keys)
    value = next(numbers, default)
    if not isinstance(value, int | float):
        raise _UnknownCrsError
    return float(value)


def _format_unit(keys: Mapping[str, Any], pyproj: Any) -> str:
    """Return the well-known text of the unit of length."""
    code = keys.get("ProjLinearUnitsGeoKey", METRE)
    if code == USER_DEFINED:
        return f'UNIT["unknown",{_find_number(keys, ("ProjLinearUnitSizeGeoKey",), 1.0)!r}]'
    for unit in pyproj.database.get_units_map("EPSG", "linear").values():
        if unit.code == str(code):
            return f'UNIT["{unit.name}",{unit.conv_factor!r},AUTHORITY["EPSG","{code}"]]'
    raise _UnknownCrsError


def _build_geographic(keys: Mapping[str, Any], pyproj: Any) -> Any:
    """Return a geographic CRS built from its datum, or from its ellipsoid."""
    crs, datums = pyproj.crs, pyproj.crs.datum
    if EPSG_UNITS.get(unit := keys.get(UNIT_KEYS[GEOGRAPHIC], DEGREE), unit) != DEGREE:
        raise _UnknownCrsError
    citation = _find_citation(keys, ("GeogCitationGeoKey",))
    name = citation.get("GCS Name") or citation.get("Datum") or "unknown"
    datum = keys.get("GeogGeodeticDatumGeoKey")
    if _is_code(datum):
        return _make_geographic(name, crs.Datum.from_epsg(datum), pyproj)
    meridian_longitude = _find_number(keys, ("GeogPrimeMeridianLongGeoKey",), 0.0)
    primem = citation.get("Primem") or ("unknown" if meridian_longitude else "Greenwich")
    meridian = datums.CustomPrimeMeridian(meridian_longitude, name=primem)
    ellipsoid = _build_ellipsoid(keys, citation.get("Ellipsoid") or "unknown", pyproj)
    datum = datums.CustomDatum(citation.get("Datum") or "unknown", ellipsoid, meridian)
    return _make_geographic(name, datum, pyproj)


def _make_geographic(name: str, datum: Any, pyproj: Any) -> Any:
    """Return a geographic CRS whose first axis is latitude, as in GDAL."""
    axes = pyproj.crs.coordinate_system.Ellipsoidal2DCS(
        pyproj.crs.enums.Ellipsoidal2DCSAxis.LATITUDE_LONGITUDE
    )
    return pyproj.crs.GeographicCRS(name, datum, axes)


def _build_ellipsoid(keys: Mapping[str, Any], name: str, pyproj: Any) -> Any:
    code = keys.get("GeogEllipsoidGeoKey")
    if _is_code(code):
        return pyproj.crs.Ellipsoid.from_epsg(code)
    axis = _find_number(keys, ("GeogSemiMajorAxisGeoKey",), 0.0)
    minor = _find_number(keys, ("GeogSemiMinorAxisGeoKey",), axis)
    flattening = _find_number(keys, ("GeogInvFlatteningGeoKey",), 0.0)
    if not axis > 0:
        raise _UnknownCrsError
    shape = {"inverse_flattening": flattening} if flattening else {"semi_minor_axis": minor}
    return pyproj.crs.datum.CustomEllipsoid(name, semi_major_axis=axis, **shape)


def _find_citation(keys: Mapping[str, Any], names: Sequence[str]) -> dict[str, str]:
    """Return the names in a citation: a single name, or ``GCS Name = A|Datum = B|``."""
    text = next((keys[name] for name in names if isinstance(keys.get(name), str)), "")
    pairs = (part.partition("=") for part in text.split("|"))
    entries = {name.strip(): value.strip() for name, equals, value in pairs if equals}
    return entries or dict.fromkeys(("PCS Name", "GCS Name"), text.strip())


def _quote(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'
