"""GeoTIFF files of GDAL: places and reference systems as rioxarray has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import virtualds

rasterio = pytest.importorskip("rasterio")
rioxarray = pytest.importorskip("rioxarray")

# of the library that rasterio computes places with
pytestmark = pytest.mark.filterwarnings("ignore:Use `@` matmul:PendingDeprecationWarning")
SYSTEMS = [
    *(f"EPSG:{code}" for code in (4326, 32633, 3035, 3031, 3413, 3857, 5070, 2193, 2263, 5514)),
    "EPSG:4326+5773",
    "+proj=longlat +R=6371229",
    "+proj=longlat +ellps=bessel +pm=paris",
    "+proj=lcc +lat_1=33 +lat_2=45 +lat_0=40 +lon_0=-97 +R=6370000",
    "+proj=utm +zone=33 +ellps=intl",
    "+proj=sinu +R=6371007.181",
    "+proj=stere +lat_0=90 +lat_ts=60 +lon_0=-45 +datum=WGS84",
    "+proj=tmerc +lon_0=9 +x_0=500000 +units=us-ft +datum=NAD83",
    "+proj=laea +lat_0=50 +lon_0=10 +ellps=bessel",
    "+proj=aea +lat_1=29.5 +lat_2=45.5 +lat_0=23 +lon_0=-96 +datum=NAD83",
    "+proj=merc +lat_ts=20 +lon_0=3 +datum=WGS84",
    "+proj=moll +lon_0=5 +datum=WGS84",
    "+proj=geos +h=35785831 +lon_0=0 +sweep=y +ellps=GRS80",
]


@pytest.mark.parametrize("system", SYSTEMS)
def test_systems_and_coordinates_are_those_of_rioxarray(system: str, tmp_path: Path) -> None:
    path = tmp_path / "a.tif"
    place = rasterio.transform.from_origin(12.3, 45.6, 0.1, 0.3)
    shape: dict[str, Any] = {"width": 70, "height": 30, "count": 1, "dtype": "int16"}
    with rasterio.open(path, "w", "GTiff", crs=system, transform=place, **shape) as file:
        file.write(np.ones((1, 30, 70), "i2"))
    found = virtualds.open_virtual_dataset(path)
    with rioxarray.open_rasterio(path) as native:
        for name in ("x", "y"):
            assert found[name].values.tobytes() == native[name].values.tobytes()
        attrs = found.spatial_ref.attrs
        assert native.rio.crs == attrs["crs_wkt"] == attrs["spatial_ref"]
        expected = native.spatial_ref.attrs
    for name in expected.keys() - {"crs_wkt", "spatial_ref"}:
        if isinstance(expected[name], str):
            assert attrs[name] == expected[name]
        else:
            # GDAL computes the flattening from the axes
            np.testing.assert_allclose(attrs[name], expected[name], rtol=1e-12)
