"""Names and attributes of GRIB variables and coordinates: those that cfgrib gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from virtualds.codecs.grib import ECCODES_MISSING

OF_PARAMETERS = (
    *("paramId", "dataType", "numberOfPoints", "typeOfLevel", "stepType", "gridType"),
    "uvRelativeToGrid",
)
"""Keys that are attributes of variables, unless they are unknown."""
DESCRIBING = (
    *("shortName", "name", "units", "cfName", "cfVarName", "totalNumber", "numberOfDirections"),
    *("numberOfFrequencies", "NV", "gridDefinitionDescription"),
)
"""Keys that are attributes of variables, whatever they say."""
OF_DATASETS = ("edition", "centre", "centreDescription", "subCentre")
UNKNOWN = ("undef", "unknown")

_SCANS = ("iScansNegatively", "jScansPositively", "jPointsAreConsecutive")
_FIRST = ("latitudeOfFirstGridPointInDegrees", "longitudeOfFirstGridPointInDegrees")
_LAST = ("latitudeOfLastGridPointInDegrees", "longitudeOfLastGridPointInDegrees")
_STEPS = ("iDirectionIncrementInDegrees", "jDirectionIncrementInDegrees")
_POLE = ("latitudeOfSouthernPoleInDegrees", "longitudeOfSouthernPoleInDegrees")
_TURN = "angleOfRotationInDegrees"
OF_GRIDS: dict[str, tuple[str, ...]] = {
    "regular_ll": ("Nx", "Ny", *_SCANS, *_FIRST, *_LAST, *_STEPS),
    "rotated_ll": ("Nx", "Ny", *_SCANS, *_FIRST, *_LAST, *_STEPS, *_POLE, _TURN),
    "reduced_ll": ("Ny", *_SCANS[1:], _FIRST[0], _LAST[0], _STEPS[1]),
    "regular_gg": ("N", "Ni", "Nj", *_SCANS, *_FIRST, *_LAST, _STEPS[0]),
    "rotated_gg": ("N", "Nx", "Ny", *_SCANS, *_FIRST, *_LAST, _STEPS[0], *_POLE, _TURN),
    "lambert": (
        *("Nx", "Ny", "DxInMetres", "DyInMetres", *_SCANS, *_FIRST, *_POLE),
        *("LaDInDegrees", "LoVInDegrees", "Latin1InDegrees", "Latin2InDegrees"),
    ),
    "reduced_gg": ("N", "pl"),
    "sh": ("J", "K", "M"),
}
"""Keys that are attributes of variables, by the type of their grid."""
PLANES = (
    *("rotated_ll", "rotated_gg", "lambert", "lambert_azimuthal_equal_area", "albers"),
    "polar_stereographic",
)
"""Grids with rows and columns, whose points have two coordinates each."""

SINCE_1970 = {"units": "seconds since 1970-01-01T00:00:00", "calendar": "proleptic_gregorian"}
_PRESSURE = {"positive": "down", "standard_name": "air_pressure", "long_name": "pressure"}
_DEPTH = {"units": "m", "positive": "down", "standard_name": "depth", "long_name": "soil depth"}
OF_COORDINATES: dict[str, dict[str, Any]] = {
    "latitude": {"units": "degrees_north", "standard_name": "latitude", "long_name": "latitude"},
    "longitude": {"units": "degrees_east", "standard_name": "longitude", "long_name": "longitude"},
    "number": {
        "units": "1",
        "standard_name": "realization",
        "long_name": "ensemble member numerical id",
    },
    "time": {
        **SINCE_1970,
        "standard_name": "forecast_reference_time",
        "long_name": "initial time of forecast",
    },
    "step": {
        "units": "hours",
        "standard_name": "forecast_period",
        "long_name": "time since forecast_reference_time",
        "dtype": "timedelta64[ns]",
    },
    "valid_time": {**SINCE_1970, "standard_name": "time", "long_name": "time"},
    "isobaricInhPa": {"units": "hPa", "stored_direction": "decreasing", **_PRESSURE},
    "isobaricInPa": {"units": "Pa", "stored_direction": "decreasing", **_PRESSURE},
    "isobaricLayer": {"units": "Pa", **_PRESSURE},
    "heightAboveGround": {
        "units": "m",
        "positive": "up",
        "standard_name": "height",
        "long_name": "height above the surface",
    },
    "depthBelowLand": _DEPTH,
    "depthBelowLandLayer": _DEPTH,
    "hybrid": {
        "units": "1",
        "positive": "down",
        "standard_name": "atmosphere_hybrid_sigma_pressure_coordinate",
        "long_name": "hybrid level",
    },
}


def name_variable(keys: Mapping[str, Any]) -> str:
    """Return the name of a field's variable.

    Examples
    --------
    >>> name_variable({"cfVarName": "t2m", "shortName": "2t"})
    't2m'
    >>> name_variable({"cfVarName": "unknown", "paramId": 7})
    'paramId_7'
    """
    if (name := keys.get("cfVarName", "unknown")) not in UNKNOWN:
        return str(name)
    return str(keys.get("shortName", f"paramId_{keys.get('paramId', 0)}"))


def name_level(keys: Mapping[str, Any]) -> str:
    """Return the name of a field's axis of levels."""
    name = str(keys.get("typeOfLevel", "undef"))
    return "level" if name in UNKNOWN else name


def describe_variable(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a field's variable."""
    found = {n: keys[n] for n in OF_PARAMETERS if keys.get(n, "undef") not in UNKNOWN}
    of_grid = OF_GRIDS.get(str(keys.get("gridType")), ())
    found |= {n: keys[n] for n in (*DESCRIBING, *of_grid) if n in keys}
    # cfgrib counts all steps in hours
    found |= {"stepUnits": 1, "missingValue": ECCODES_MISSING}
    attributes = {f"GRIB_{n}": np.array(v) if isinstance(v, tuple) else v for n, v in found.items()}
    attributes |= {"long_name": keys.get("name", f"original GRIB paramId: {keys.get('paramId')}")}
    attributes |= {"units": keys.get("units", "1")}
    return attributes | ({"standard_name": keys["cfName"]} if "cfName" in keys else {})


def describe_coordinate(name: str, key: str) -> dict[str, Any]:
    """Return the attributes of a coordinate that is made of a key.

    Examples
    --------
    >>> describe_coordinate("surface", "level")["long_name"]
    'original GRIB coordinate for key: level(surface)'
    """
    unnamed = {"long_name": f"original GRIB coordinate for key: {key}({name})", "units": "1"}
    return unnamed | OF_COORDINATES.get(name, {})


def describe_dataset(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a dataset from the keys of one of its fields."""
    found = {f"GRIB_{n}": keys[n] for n in OF_DATASETS if keys.get(n, "undef") not in UNKNOWN}
    found["Conventions"] = "CF-1.7"
    if "GRIB_centreDescription" in found:
        found["institution"] = found["GRIB_centreDescription"]
    return found
