"""GeoKeys: reference systems as CF attributes and text, and the same ground as PROJ says."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from products import looped
from programs import run_code

from virtualds.parsers import geo_keys
from virtualds.parsers.geo_keys import PROJECTIONS, describe_crs

pyproj = geo_keys.import_pyproj()
ELLIPSOID = {
    "GeographicTypeGeoKey": 32767,
    "GeogCitationGeoKey": "GCS Name = mine|Datum = unknown|Ellipsoid = GRS80|Primem = Greenwich|",
    "GeogGeodeticDatumGeoKey": 32767,
    "GeogEllipsoidGeoKey": 32767,
    "GeogSemiMajorAxisGeoKey": 6378137.0,
    "GeogInvFlatteningGeoKey": 298.257222101,
}
PROJECTED = {
    "GTModelTypeGeoKey": 1,
    "GTCitationGeoKey": "mine",
    "ProjectedCSTypeGeoKey": 32767,
    "ProjLinearUnitsGeoKey": 9001,
    "ProjFalseEastingGeoKey": 1000.0,
    "ProjFalseNorthingGeoKey": 50.0,
}
CENTER = {"ProjCenterLatGeoKey": 40.0, "ProjCenterLongGeoKey": 5.0}
ORIGIN = {"ProjNatOriginLatGeoKey": 40.0, "ProjNatOriginLongGeoKey": 5.0}
EQUATOR = {"ProjNatOriginLatGeoKey": 0.0, "ProjNatOriginLongGeoKey": 5.0}
SCALE = {"ProjScaleAtNatOriginGeoKey": 0.99}
PARALLELS = {"ProjStdParallel1GeoKey": 35.0, "ProjStdParallel2GeoKey": 50.0}
TRUE = {"ProjStdParallel1GeoKey": 35.0, "ProjNatOriginLongGeoKey": 5.0}
METHODS: dict[str, tuple[int, dict[str, Any], str]] = {
    "transverse Mercator": (1, ORIGIN | SCALE, "tmerc +lat_0=40 +lon_0=5 +k=0.99"),
    "Mercator": (7, EQUATOR | SCALE, "merc +lon_0=5 +k=0.99"),
    "Mercator of a parallel": (7, EQUATOR | TRUE, "merc +lon_0=5 +lat_ts=35"),
    "Lambert": (8, ORIGIN | PARALLELS, "lcc +lat_0=40 +lon_0=5 +lat_1=35 +lat_2=50"),
    "Lambert of one parallel": (9, ORIGIN | SCALE, "lcc +lat_0=40 +lat_1=40 +lon_0=5 +k_0=0.99"),
    "azimuthal equal area": (10, CENTER, "laea +lat_0=40 +lon_0=5"),
    "Albers": (11, ORIGIN | PARALLELS, "aea +lat_0=40 +lon_0=5 +lat_1=35 +lat_2=50"),
    "azimuthal equidistant": (12, CENTER, "aeqd +lat_0=40 +lon_0=5"),
    "equidistant conic": (13, ORIGIN | PARALLELS, "eqdc +lat_0=40 +lon_0=5 +lat_1=35 +lat_2=50"),
    "stereographic": (14, CENTER | SCALE, "stere +lat_0=40 +lon_0=5 +k=0.99"),
    "polar stereographic": (
        15,
        {"ProjNatOriginLatGeoKey": 70.0, "ProjStraightVertPoleLongGeoKey": -45.0},
        "stere +lat_0=90 +lat_ts=70 +lon_0=-45",
    ),
    "oblique stereographic": (16, ORIGIN | SCALE, "sterea +lat_0=40 +lon_0=5 +k=0.99"),
    "equirectangular": (17, EQUATOR | TRUE, "eqc +lat_ts=35 +lon_0=5"),
    "Cassini": (18, ORIGIN, "cass +lat_0=40 +lon_0=5"),
    "gnomonic": (19, CENTER, "gnom +lat_0=40 +lon_0=5"),
    "Miller": (20, CENTER, "mill +lon_0=5"),
    "orthographic": (21, CENTER, "ortho +lat_0=40 +lon_0=5"),
    "polyconic": (22, ORIGIN, "poly +lat_0=40 +lon_0=5"),
    "Robinson": (23, CENTER, "robin +lon_0=5"),
    "sinusoidal": (24, CENTER, "sinu +lon_0=5"),
    "Van der Grinten": (25, CENTER, "vandg +lon_0=5"),
    "equal area": (28, TRUE, "cea +lat_ts=35 +lon_0=5"),
}
SAME_BUT_FOR_THE_AXES = {27}
"""Methods without a case: it is transverse Mercator."""
SCALE_IS_LOST = {"Lambert of one parallel"}
"""CF has no attribute for the scale of this projection."""


def locate(system: Any) -> Any:
    """Where a system has a place that all projections show."""
    change = pyproj.Transformer.from_crs(pyproj.CRS(system).geodetic_crs, system, always_xy=True)
    return change.transform(7.0, 44.0)


@looped("name", METHODS, quick=len(METHODS) // 3)
def test_a_projection_without_a_code_shows_the_same_ground(name: str) -> None:
    method, parameters, proj = METHODS[name]
    attrs = describe_crs(PROJECTED | ELLIPSOID | {"ProjCoordTransGeoKey": method} | parameters)
    expected = f"+proj={proj} +x_0=1000 +y_0=50 +ellps=GRS80 +units=m"
    np.testing.assert_allclose(locate(attrs["crs_wkt"]), locate(expected), rtol=0, atol=1e-6)
    # the attributes of CF say it too, where CF has the projection and its parameters
    if "grid_mapping_name" in attrs and name not in SCALE_IS_LOST:
        said = {name: value for name, value in attrs.items() if name not in ("crs_wkt",)}
        del said["spatial_ref"]
        found = pyproj.CRS.from_cf(said)
        np.testing.assert_allclose(locate(found), locate(expected), rtol=0, atol=1e-6)


def test_every_projection_of_the_table_has_a_case() -> None:
    assert {method for method, _, _ in METHODS.values()} == set(PROJECTIONS) - SAME_BUT_FOR_THE_AXES


def test_an_albers_projection_has_the_attributes_of_rioxarray() -> None:
    """Keys of a national archive, and what rioxarray 0.19 says of them."""
    attrs = describe_crs({
        "GTModelTypeGeoKey": 1, "GTCitationGeoKey": "Albers", "GeographicTypeGeoKey": 4326,
        "GeogAngularUnitsGeoKey": 9102, "GeogSemiMajorAxisGeoKey": 6378140.0,
        "GeogInvFlatteningGeoKey": 298.256999999996, "ProjectedCSTypeGeoKey": 32767,
        "ProjectionGeoKey": 32767, "ProjCoordTransGeoKey": 11, "ProjLinearUnitsGeoKey": 9001,
        "ProjStdParallel1GeoKey": 29.5, "ProjStdParallel2GeoKey": 45.5,
        "ProjNatOriginLongGeoKey": -96.0, "ProjNatOriginLatGeoKey": 23.0,
        "ProjFalseEastingGeoKey": 0.0, "ProjFalseNorthingGeoKey": 0.0,
    })  # fmt: skip
    text = attrs.pop("crs_wkt")
    assert attrs.pop("spatial_ref") == text
    assert 'SPHEROID["WGS 84",6378140,298.256999999996' in text
    assert attrs == {
        "semi_major_axis": 6378140.0, "semi_minor_axis": 6356755.288157528,
        "inverse_flattening": 298.256999999996, "reference_ellipsoid_name": "WGS 84",
        "longitude_of_prime_meridian": 0.0, "prime_meridian_name": "Greenwich",
        "geographic_crs_name": "WGS 84", "horizontal_datum_name": "World Geodetic System 1984",
        "projected_crs_name": "Albers", "grid_mapping_name": "albers_conical_equal_area",
        "standard_parallel": [29.5, 45.5], "latitude_of_projection_origin": 23.0,
        "longitude_of_central_meridian": -96.0, "false_easting": 0.0, "false_northing": 0.0,
    }  # fmt: skip


@pytest.mark.parametrize(("zone", "code"), [(16033, 25833), (16101, 32701)])
def test_a_zone_of_utm_needs_no_other_parameters(zone: int, code: int) -> None:
    keys = {"GTModelTypeGeoKey": 1, "GeographicTypeGeoKey": 4326, "ProjectionGeoKey": zone}
    np.testing.assert_allclose(
        locate(describe_crs(keys)["crs_wkt"]), locate(f"EPSG:{code}"), rtol=0, atol=1e-3
    )


def test_a_system_of_heights_is_part_of_the_system() -> None:
    keys = {
        "GTModelTypeGeoKey": 2,
        "GeographicTypeGeoKey": 4326,
        "VerticalCSTypeGeoKey": 5773,
    }
    found = pyproj.CRS(describe_crs(keys)["crs_wkt"])
    assert [part.to_epsg() for part in found.sub_crs_list] == [4326, 5773]


def test_text_in_a_citation_is_the_system() -> None:
    text = pyproj.CRS("+proj=moll +lon_0=5 +datum=WGS84").to_wkt("WKT1_ESRI")
    keys = {"GTModelTypeGeoKey": 32767, "PCSCitationGeoKey": f"ESRI PE String = {text}"}
    assert locate(describe_crs(keys)["crs_wkt"]) == locate(text)


UTM = {"GTModelTypeGeoKey": 1, "ProjectedCSTypeGeoKey": 32618}
UNKNOWN: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "units that are not those of the code": (UTM | {"ProjLinearUnitsGeoKey": 9003}, {}),
    "a projection that is not known": (PROJECTED | {"ProjCoordTransGeoKey": 26}, {}),
    "a code that PROJ does not know": (
        UTM | {"ProjectedCSTypeGeoKey": 1025},
        {"spatial_ref": "EPSG:1025"},
    ),
    "text where a number belongs": (
        PROJECTED | ELLIPSOID | {"ProjCoordTransGeoKey": 1, "ProjFalseEastingGeoKey": "far"},
        {},
    ),
    "an ellipsoid without an axis": (
        PROJECTED | ELLIPSOID | {"ProjCoordTransGeoKey": 1, "GeogSemiMajorAxisGeoKey": 0.0},
        {},
    ),
    "grads": (
        PROJECTED | ELLIPSOID | {"ProjCoordTransGeoKey": 1, "GeogAngularUnitsGeoKey": 9105},
        {},
    ),
    "no keys": ({}, {}),
}


@pytest.mark.parametrize("kind", UNKNOWN)
def test_a_system_that_is_not_known_is_not_guessed(kind: str) -> None:
    keys, expected = UNKNOWN[kind]
    assert describe_crs(keys) == expected


def test_an_image_without_keys_does_not_import_pyproj(monkeypatch: Any) -> None:
    monkeypatch.setattr(geo_keys, "import_pyproj", pytest.fail)
    assert describe_crs({}) == describe_crs({"KeyRevision": 1}) == {}


@pytest.mark.full
def test_another_proj_in_the_process_does_no_harm() -> None:
    code = (
        "import warnings; warnings.filterwarnings('error', 'pyproj');"
        "import eccodes; from virtualds.parsers.geo_keys import describe_crs as describe;"
        f"print(describe({UTM!r})['grid_mapping_name'])"
    )
    done = run_code(code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "transverse_mercator\n", "")


def test_without_pyproj_the_code_is_the_system(monkeypatch: Any) -> None:
    geo_keys._describe.cache_clear()
    monkeypatch.setitem(sys.modules, "pyproj", None)
    assert describe_crs(UTM) == {"spatial_ref": "EPSG:32618"}
    assert describe_crs(PROJECTED | ELLIPSOID | {"ProjCoordTransGeoKey": 1}) == {}
    geo_keys._describe.cache_clear()
