"""Converts the GeoKeys of TIFF, the CRS of an image, to CF attributes and well-known text.

pyproj has the CRSs with a code, and writes text and attributes as in rioxarray. CRSs without
a code are built from their parameters here: GeoTIFF 1.1, annex B and C; the names of projections
and parameters in text are those of OGC 01-009 as GDAL uses them.
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
"""The ellipsoid in well-known text: its name, axis and inverse flattening."""
SAME_UNITS = {9102: DEGREE}
"""Codes of units in GeoTIFF, and the EPSG codes of the same units."""
UNITS: dict[Any, str] = {PROJECTED: "ProjLinearUnitsGeoKey", GEOGRAPHIC: "GeogAngularUnitsGeoKey"}
PE_STRING = "ESRI PE String = "
"""Prefixes of citations that contain the well-known text of a whole CRS."""
CODES: dict[Any, tuple[str, ...]] = {
    PROJECTED: ("ProjectedCSTypeGeoKey", "ProjectedCRSGeoKey"),
    GEOGRAPHIC: ("GeographicTypeGeoKey", "GeodeticCRSGeoKey"),
}
"""Keys for the code of a CRS; GeoTIFF 1.1 renamed them."""

Names = dict[str, tuple[str, ...]]
"""The keys of parameters; writers use the first of them, or one of the others."""
LATITUDE = ("ProjNatOriginLatGeoKey", "ProjFalseOriginLatGeoKey", "ProjCenterLatGeoKey")
LONGITUDE = ("ProjNatOriginLongGeoKey", "ProjFalseOriginLongGeoKey", "ProjCenterLongGeoKey")
SCALE = ("ProjScaleAtNatOriginGeoKey", "ProjScaleAtCenterGeoKey")
PARALLEL_1, PARALLEL_2 = ("ProjStdParallel1GeoKey",), ("ProjStdParallel2GeoKey",)
SHIFT: Names = {
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
SCALED: Names = {"scale_factor": SCALE}
PARALLELS: Names = {"standard_parallel_1": PARALLEL_1, "standard_parallel_2": PARALLEL_2}
POLE = ("ProjStraightVertPoleLongGeoKey", *LONGITUDE)
PROJECTIONS: dict[Any, tuple[str, Names]] = {
    1: ("Transverse_Mercator", ORIGIN | SCALED),
    7: ("Mercator_1SP", ORIGIN | SCALED),
    8: ("Lambert_Conformal_Conic_2SP", PARALLELS | ORIGIN),
    9: ("Lambert_Conformal_Conic_1SP", ORIGIN | SCALED),
    10: ("Lambert_Azimuthal_Equal_Area", CENTER),
    11: ("Albers_Conic_Equal_Area", PARALLELS | CENTER),
    12: ("Azimuthal_Equidistant", CENTER),
    13: ("Equidistant_Conic", PARALLELS | CENTER),
    14: ("Stereographic", ORIGIN | SCALED),
    15: ("Polar_Stereographic", ORIGIN | {"central_meridian": POLE} | SCALED),
    16: ("Oblique_Stereographic", ORIGIN | SCALED),
    17: ("Equirectangular", ORIGIN | {"standard_parallel_1": PARALLEL_1}),
    18: ("Cassini_Soldner", ORIGIN),
    19: ("Gnomonic", ORIGIN),
    20: ("Miller_Cylindrical", {"longitude_of_center": LONGITUDE}),
    21: ("Orthographic", ORIGIN),
    22: ("Polyconic", ORIGIN),
    23: ("Robinson", {"longitude_of_center": LONGITUDE}),
    24: ("Sinusoidal", {"longitude_of_center": LONGITUDE}),
    25: ("VanDerGrinten", {"central_meridian": LONGITUDE}),
    27: ("Transverse_Mercator_South_Orientated", ORIGIN | SCALED),
    28: (
        "Cylindrical_Equal_Area",
        {"standard_parallel_1": PARALLEL_1, "central_meridian": LONGITUDE},
    ),
}
"""Projections by ProjCoordTransGeoKey (GeoTIFF 1.1, table 10), and the keys of their parameters."""
UTM_METHOD = "Transverse_Mercator"
UTM = {
    hemisphere: {
        "latitude_of_origin": 0.0,
        "scale_factor": 0.9996,
        "false_easting": 500000.0,
        "false_northing": northing,
    }
    for hemisphere, northing in {160: 0.0, 161: 10000000.0}.items()
}
"""Parameters of UTM, by the hundreds of ProjectionGeoKey; the rest of it is the zone."""
OWN_AXES = ("Polar_Stereographic", "Transverse_Mercator_South_Orientated")
"""Projections whose axes do not point east and north."""
MERCATOR = 7
MERCATOR_OF_PARALLEL = ("Mercator_2SP", ORIGIN | {"standard_parallel_1": PARALLEL_1})


class _UnknownCrsError(Exception):
    """A CRS that cannot be translated."""


def describe_crs(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of the CF grid mapping of a CRS, and its well-known text.

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
    plain = (item for item in sorted(keys.items()) if isinstance(item[1], int | float | str))
    return dict(_describe(tuple(plain)))


# the images of an archive share a few CRSs
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
        text = _write_text(_add_height(_find_system(values, pyproj), values, pyproj), pyproj)
        attributes = pyproj.CRS.from_wkt(text).to_cf()
    except _UnknownCrsError:
        return {}
    except pyproj.exceptions.ProjError:
        return fallback
    plain = {name: list(v) if isinstance(v, tuple) else v for name, v in attributes.items()}
    return plain | {"crs_wkt": text, "spatial_ref": text}


def find_code(keys: Mapping[str, Any]) -> int | None:
    """Return the EPSG code of a CRS, or None if it has none."""
    return _find_code(keys, keys.get("GTModelTypeGeoKey"))


def _find_code(keys: Mapping[str, Any], kind: Any) -> int | None:
    codes = (keys.get(name) for name in CODES.get(kind, ()))
    return next((code for code in codes if _is_code(code)), None)


def _is_code(value: Any) -> bool:
    return isinstance(value, int) and 1024 <= value < USER_DEFINED


def _find_system(keys: Mapping[str, Any], pyproj: Any) -> Any:
    """Return the CRS, by its code or by its parameters."""
    kind, code = keys.get("GTModelTypeGeoKey"), find_code(keys)
    if code is not None:
        return _find_coded(code, keys, pyproj)
    citation = str(keys.get("PCSCitationGeoKey") or keys.get("GTCitationGeoKey") or "")
    if citation.startswith(PE_STRING):
        return pyproj.CRS.from_wkt(citation.removeprefix(PE_STRING))
    if kind not in CODES:
        raise _UnknownCrsError
    return (_build_projected if kind == PROJECTED else _build_geographic)(keys, pyproj)


def _find_coded(code: int, keys: Mapping[str, Any], pyproj: Any) -> Any:
    """Return the CRS of a code with the ellipsoid of the file, or None if units differ."""
    kind = keys["GTModelTypeGeoKey"]
    crs = pyproj.CRS.from_epsg(code)
    unit = keys.get(UNITS[kind])
    if unit is not None and str(SAME_UNITS.get(unit, unit)) != crs.axis_info[0].unit_code:
        raise _UnknownCrsError
    names = ("GeogSemiMajorAxisGeoKey", "GeogInvFlatteningGeoKey")
    if kind == PROJECTED or not keys.keys() >= set(names):
        return crs
    axes_of_keys = [_find_number(keys, (name,), 0.0) for name in names]
    axes_of_crs = crs.ellipsoid.semi_major_metre, crs.ellipsoid.inverse_flattening
    if all(
        math.isclose(*pair, rel_tol=1e-10) for pair in zip(axes_of_keys, axes_of_crs, strict=True)
    ):
        return crs
    # use the ellipsoid axes of the file rather than those of the database
    numbers = ",".join(map(repr, axes_of_keys))
    text = crs.to_wkt("WKT1_GDAL", output_axis_rule=True)
    return pyproj.CRS.from_wkt(SPHEROID.sub(rf"\1,{numbers}", text))


def _add_height(system: Any, keys: Mapping[str, Any], pyproj: Any) -> Any:
    """Combine a CRS with the vertical CRS, if the file names one."""
    codes = (keys.get(name) for name in ("VerticalCSTypeGeoKey", "VerticalGeoKey"))
    code = next((code for code in codes if _is_code(code)), None)
    if code is None:
        return system
    vertical = pyproj.CRS.from_epsg(code)
    if vertical.is_geographic:
        # ellipsoidal heights: one CRS of three axes
        return vertical if system.is_geographic else system
    return pyproj.crs.CompoundCRS(f"{system.name} + {vertical.name}", [system, vertical])


def _write_text(system: Any, pyproj: Any) -> str:
    """Return well-known text as in GDAL: version 1, or version 2 if necessary."""
    # the first version has no third axis
    if len(system.axis_info) > 2 and not system.is_compound:
        return str(system.to_wkt("WKT2_2019"))
    try:
        return str(system.to_wkt("WKT1_GDAL", output_axis_rule=True))
    except pyproj.exceptions.CRSError:
        return str(system.to_wkt("WKT2_2019"))


# ---------------------------------------------------------------------- CRSs without a code


def _build_projected(keys: Mapping[str, Any], pyproj: Any) -> Any:
    """Return a projected CRS built from its parameters."""
    name, parameters = _find_projection(keys)
    citation = _find_citation(keys, ("PCSCitationGeoKey", "GTCitationGeoKey"))
    parts = [
        _quote(citation.get("PCS Name") or "unnamed"),
        str(_find_base(keys, pyproj).to_wkt("WKT1_GDAL")),
        f'PROJECTION["{name}"]',
        *(f'PARAMETER["{parameter}",{value!r}]' for parameter, value in parameters.items()),
        _write_unit(keys, pyproj),
    ]
    if name not in OWN_AXES:
        parts += ['AXIS["Easting",EAST]', 'AXIS["Northing",NORTH]']
    return pyproj.CRS.from_wkt(f"PROJCS[{','.join(parts)}]")


def _find_projection(keys: Mapping[str, Any]) -> tuple[str, dict[str, float]]:
    """Return the name of a projection and its parameters."""
    method = keys.get("ProjCoordTransGeoKey")
    hemisphere, zone = divmod(int(_find_number(keys, ("ProjectionGeoKey",), 0)), 100)
    if method is None and hemisphere in UTM and 1 <= zone <= 60:
        return UTM_METHOD, {**UTM[hemisphere], "central_meridian": 6.0 * zone - 183}
    if method not in PROJECTIONS:
        raise _UnknownCrsError
    name, parameter_names = PROJECTIONS[method]
    if method == MERCATOR and PARALLEL_1[0] in keys:
        name, parameter_names = MERCATOR_OF_PARALLEL
    parameters = {
        parameter: _find_number(keys, names, 1.0 if parameter == "scale_factor" else 0.0)
        for parameter, names in {**parameter_names, **SHIFT}.items()
    }
    return name, parameters


def _find_number(keys: Mapping[str, Any], names: Sequence[str], default: float) -> float:
    numbers = (keys[name] for name in names if name in keys)
    value = next(numbers, default)
    if not isinstance(value, int | float):
        raise _UnknownCrsError
    return float(value)


def _write_unit(keys: Mapping[str, Any], pyproj: Any) -> str:
    """Return the well-known text of the unit of length."""
    code = keys.get("ProjLinearUnitsGeoKey", METRE)
    if code == USER_DEFINED:
        return f'UNIT["unknown",{_find_number(keys, ("ProjLinearUnitSizeGeoKey",), 1.0)!r}]'
    for unit in pyproj.database.get_units_map("EPSG", "linear").values():
        if unit.code == str(code):
            return f'UNIT["{unit.name}",{unit.conv_factor!r},AUTHORITY["EPSG","{code}"]]'
    raise _UnknownCrsError


def _find_base(keys: Mapping[str, Any], pyproj: Any) -> Any:
    """Return the geographic CRS on which a projected CRS is based."""
    code = _find_code(keys, GEOGRAPHIC)
    if code is None:
        return _build_geographic(keys, pyproj)
    return _find_coded(code, {**keys, "GTModelTypeGeoKey": GEOGRAPHIC}, pyproj)


def _build_geographic(keys: Mapping[str, Any], pyproj: Any) -> Any:
    """Return a geographic CRS built from its datum, or from its ellipsoid."""
    crs, datums = pyproj.crs, pyproj.crs.datum
    if SAME_UNITS.get(unit := keys.get(UNITS[GEOGRAPHIC], DEGREE), unit) != DEGREE:
        raise _UnknownCrsError
    citation = _find_citation(keys, ("GeogCitationGeoKey",))
    name = citation.get("GCS Name") or citation.get("Datum") or "unknown"
    datum = keys.get("GeogGeodeticDatumGeoKey")
    if _is_code(datum):
        return _name_axes(name, crs.Datum.from_epsg(datum), pyproj)
    east = _find_number(keys, ("GeogPrimeMeridianLongGeoKey",), 0.0)
    primem = citation.get("Primem") or ("unknown" if east else "Greenwich")
    meridian = datums.CustomPrimeMeridian(east, name=primem)
    ellipsoid = _build_ellipsoid(keys, citation.get("Ellipsoid") or "unknown", pyproj)
    datum = datums.CustomDatum(citation.get("Datum") or "unknown", ellipsoid, meridian)
    return _name_axes(name, datum, pyproj)


def _name_axes(name: str, datum: Any, pyproj: Any) -> Any:
    """Return a geographic CRS with latitude first and longitude second, as in GDAL."""
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
    """Return the names in a citation: one name, or several as ``GCS Name = A|Datum = B|``."""
    text = next((keys[name] for name in names if isinstance(keys.get(name), str)), "")
    pairs = (part.partition("=") for part in text.split("|"))
    entries = {name.strip(): value.strip() for name, sign, value in pairs if sign}
    return entries or dict.fromkeys(("PCS Name", "GCS Name"), text.strip())


def _quote(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'
