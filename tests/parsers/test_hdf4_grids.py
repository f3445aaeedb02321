"""Grids of HDF-EOS2: groups, coordinates and reference systems from structural metadata."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hdf4_files import SINUSOIDAL, WORLD, write_grids

import virtualds
from virtualds.parsers.geo_keys import import_pyproj

SPACE = """
        UpperLeftPointMtrs=(7460750.000000,1090650.000000)
        LowerRightMtrs=(7601550.000000,527450.000000)
        Projection=GCTP_SOM
        ProjParams=(6378137.0,-0.006694,0,98018013.7,87.11,0.0,0,0,98.88,0,0,180,0)"""
"""A grid of MISR: each block has corners of its own."""
TILE = {"MODIS_Grid_Daily_1km_LST": ((1200, 1200), SINUSOIDAL)}


def opened(path: Path, **options: Any) -> xr.Dataset:
    return virtualds.open_virtual_dataset(path, **options)


def test_the_fields_of_an_only_grid_are_in_the_root_with_coordinates(tmp_path: Path) -> None:
    write_grids(tmp_path / "a.hdf", TILE)
    ds = opened(tmp_path / "a.hdf")
    assert ds["field"].dims == ("Band", "y", "x")
    assert ds["other"].dims == ("n",)
    assert {"x", "y", "spatial_ref"} <= set(ds["field"].coords)
    # cells of this product are 926.625433 m wide
    np.testing.assert_allclose(np.diff(ds["x"].values), 926.62543305, rtol=1e-7)
    np.testing.assert_allclose(ds["x"].values[0], 463.31271653, rtol=1e-9)
    np.testing.assert_allclose(ds["y"].values[[0, -1]], [5559289.28561, 4448265.39138], rtol=1e-9)
    assert ds["x"].attrs == {"standard_name": "projection_x_coordinate", "units": "m"}


def test_the_reference_system_of_modis_is_a_sinusoidal_projection_of_a_sphere(
    tmp_path: Path,
) -> None:
    write_grids(tmp_path / "a.hdf", TILE)
    system = opened(tmp_path / "a.hdf")["spatial_ref"].attrs
    assert system["grid_mapping_name"] == "sinusoidal"
    assert system["semi_major_axis"] == system["semi_minor_axis"] == 6371007.181
    crs = import_pyproj().CRS.from_wkt(system["crs_wkt"])
    there = import_pyproj().Transformer.from_crs(crs.geodetic_crs, crs, always_xy=True)
    # the upper right corner of tile h18v04: 50 degrees north
    x, y = there.transform(15.557238268, 50.0)
    np.testing.assert_allclose((x, y), (1111950.519667, 5559752.598333), rtol=1e-9)
    assert system["GeoTransform"].split()[0] == "0.0"


def test_several_grids_are_groups(tmp_path: Path) -> None:
    write_grids(tmp_path / "a.hdf", {"fine": ((24, 48), WORLD), "coarse": ((6, 12), WORLD)})
    tree = virtualds.open_virtual_datatree(tmp_path / "a.hdf")
    assert set(tree.children) == {"fine", "coarse"}
    assert tree["fine/field"].shape == (2, 24, 48)
    assert tree["coarse"].to_dataset()["x"].values[[0, -1]].tolist() == [-165.0, 165.0]
    assert tree["coarse"].to_dataset()["y"].values[[0, -1]].tolist() == [75.0, -75.0]
    assert set(tree.to_dataset().variables) == {"other"}
    ds = opened(tmp_path / "a.hdf", group="fine")
    assert ds["x"].attrs["units"] == "degrees_east"
    assert ds["spatial_ref"].attrs["grid_mapping_name"] == "latitude_longitude"


def test_fields_with_names_of_coordinates_are_numbered_and_not_lost(tmp_path: Path) -> None:
    names = ("field", "x", "spatial_ref")
    write_grids(tmp_path / "a.hdf", {"grid": ((4, 6), WORLD)}, fields=names)
    ds = opened(tmp_path / "a.hdf")
    assert set(ds.data_vars) == {"field", "x_2", "spatial_ref_2", "other"}
    assert ds["x"].dims == ("x",)
    np.testing.assert_array_equal(ds["x_2"].values, ds["field"].values)


def test_grids_whose_names_differ_in_a_slash_are_groups_of_their_own(tmp_path: Path) -> None:
    write_grids(tmp_path / "a.hdf", {"a/b": ((2, 3), WORLD), "a_b": ((4, 6), WORLD)})
    tree = virtualds.open_virtual_datatree(tmp_path / "a.hdf")
    assert tree["a_b/field"].shape == (2, 2, 3)
    assert tree["a_b_2/field"].shape == (2, 4, 6)


def test_metadata_in_several_attributes_are_one_text(tmp_path: Path) -> None:
    write_grids(tmp_path / "a.hdf", TILE, size=100)
    assert opened(tmp_path / "a.hdf")["x"].size == 1200


@pytest.mark.parametrize(
    "where",
    [
        SINUSOIDAL.replace("(0.000000,5559752.598333)", "DEFAULT"),
        SINUSOIDAL + "\n        GridOrigin=HDFE_GD_LL",
        SINUSOIDAL.replace("(1111950.519667", "(nan"),
        SPACE,
        "",
    ],
)
def test_a_grid_whose_place_is_not_known_has_no_coordinates(where: str, tmp_path: Path) -> None:
    write_grids(tmp_path / "a.hdf", {"g": ((12, 12), where)})
    ds = opened(tmp_path / "a.hdf")
    assert ds["field"].dims == ("Band", "YDim", "XDim")
    assert not set(ds.coords)


def test_a_grid_of_other_lengths_than_its_fields_has_no_coordinates(tmp_path: Path) -> None:
    write_grids(tmp_path / "a.hdf", {"g": ((12, 12), SINUSOIDAL + "\n        XDim=13")})
    ds = opened(tmp_path / "a.hdf")
    assert ds["field"].dims == ("Band", "YDim", "XDim")


def test_metadata_of_huge_grids_take_no_memory(tmp_path: Path) -> None:
    write_grids(tmp_path / "a.hdf", {"g": ((12, 12), SINUSOIDAL + "\n        XDim=99999999999")})
    assert opened(tmp_path / "a.hdf")["field"].dims == ("Band", "YDim", "XDim")


def test_values_at_corners_have_the_coordinates_of_corners(tmp_path: Path) -> None:
    where = f"{WORLD}\n        PixelRegistration=HDFE_CORNER"
    write_grids(tmp_path / "a.hdf", {"g": ((6, 12), where)})
    assert opened(tmp_path / "a.hdf")["x"].values[:2].tolist() == [-180.0, -150.0]


UTM = """
        UpperLeftPointMtrs=(300000.000000,4500000.000000)
        LowerRightMtrs=(301200.000000,4498800.000000)
        Projection=GCTP_UTM
        ZoneCode=32
        SphereCode=12"""
POLAR = """
        UpperLeftPointMtrs=(-476784.3255,2383921.6275)
        LowerRightMtrs=(476784.3255,1430352.9765)
        Projection=GCTP_LAMAZ
        ProjParams=(6371228.000000,0,0,0,0,90000000.000000,0,0,0,0,0,0,0)
        SphereCode=-1"""
OLD = SINUSOIDAL.replace("GCTP_SNSOID", "GCTP_ISINUS")
"""The integerised projection of early MODIS products."""


@pytest.mark.parametrize(
    ("where", "name", "code"),
    [
        (UTM, "Transverse_Mercator", 32632),
        (POLAR, "Lambert_Azimuthal_Equal_Area", None),
        (OLD, None, None),
    ],
)
def test_projections_are_told_in_well_known_text(
    where: str, name: str | None, code: int | None, tmp_path: Path
) -> None:
    write_grids(tmp_path / "a.hdf", {"g": ((12, 12), where)})
    system = opened(tmp_path / "a.hdf")["spatial_ref"].attrs
    assert f'PROJECTION["{name}"]' in system["crs_wkt"] if name else "crs_wkt" not in system
    assert system["Projection"].startswith("GCTP_")
    if code is not None:
        crs = import_pyproj().CRS.from_wkt(system["crs_wkt"])
        assert crs.to_epsg(20) == code


def test_a_small_second_parameter_is_the_square_of_the_eccentricity(tmp_path: Path) -> None:
    where = """
        UpperLeftPointMtrs=(-3850000.000000,5850000.000000)
        LowerRightMtrs=(3750000.000000,-5350000.000000)
        Projection=GCTP_PS
        ProjParams=(6378273,-0.006694,0,0,-45000000,70000000,0,0,0,0,0,0,0)
        SphereCode=-1"""
    write_grids(tmp_path / "a.hdf", {"g": ((12, 12), where)})
    system = opened(tmp_path / "a.hdf")["spatial_ref"].attrs
    # the ellipsoid of Hughes 1980
    np.testing.assert_allclose(system["semi_minor_axis"], 6356889.485, rtol=1e-7)
    assert system["standard_parallel"] == 70.0
    assert system["straight_vertical_longitude_from_pole"] == -45.0


def test_tiles_side_by_side_combine_by_their_coordinates(tmp_path: Path) -> None:
    west = "(1111950.519667,4447802"
    east = SINUSOIDAL.replace(west, "(2223901.039333,4447802").replace(
        "(0.000000,", "(1111950.519667,"
    )
    for name, where in {"h18": SINUSOIDAL, "h19": east}.items():
        write_grids(tmp_path / f"{name}.hdf", {"g": ((12, 12), where)})
    ds = virtualds.open_virtual_mfdataset(
        sorted(tmp_path.glob("*.hdf")), drop_variables=["other"], compat="override"
    )
    assert ds["field"].shape == (2, 12, 24)
    np.testing.assert_allclose(np.diff(ds["x"].values), 92662.5433, rtol=1e-6)
