"""Data of two coordinate reference systems are never joined."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
import xarray as xr

import virtualds
from virtualds.importing import import_pyproj

pyproj = import_pyproj()

ALONG_TIME = {"combine": "nested", "concat_dim": "time"}
Change = Callable[[xr.Dataset], xr.Dataset]


def system(code: int, names: tuple[str, ...] = ()) -> dict[str, Any]:
    """The attributes of a grid mapping, or those of some names."""
    found = pyproj.CRS.from_epsg(code).to_cf()
    return {name: found[name] for name in names or found}


def scene(number: int, attributes: dict[str, Any], mapping: str = "crs") -> xr.Dataset:
    values = np.full((1, 4, 5), number, "f4")
    return xr.Dataset(
        {
            "t": (("time", "y", "x"), values, {"grid_mapping": mapping}),
            mapping.split(":")[0]: ((), 0, attributes),
        },
        {
            "time": np.array(["2001-01-01"], "M8[ns]") + np.timedelta64(number, "D"),
            "y": 10.0 * np.arange(4),
            "x": 10.0 * np.arange(5),
        },
    )


def write(folder: Path, *datasets: Any) -> list[str]:
    folder.mkdir(exist_ok=True)
    paths = [str(folder / f"{n}.nc") for n in range(len(datasets))]
    for dataset, path in zip(datasets, paths, strict=True):
        dataset.to_netcdf(path)
    return paths


def write_zones(folder: Path, count: int = 6, *, odd: int = 4) -> list[str]:
    """Scenes of zone 32, of which one is of zone 33."""
    return write(folder, *(scene(n, system(32633 if n == odd else 32632)) for n in range(count)))


UNLIKE: dict[str, tuple[xr.Dataset, xr.Dataset]] = {
    "another zone": (scene(0, system(32632)), scene(1, system(32633))),
    "text alone": (
        scene(0, system(32632, ("crs_wkt",))),
        scene(1, system(32633, ("crs_wkt",))),
    ),
    "text of GDAL": (
        scene(0, {"spatial_ref": pyproj.CRS.from_epsg(32632).to_wkt("WKT1_GDAL")}),
        scene(1, {"spatial_ref": "EPSG:32633"}),
    ),
    "numbers alone": (
        scene(0, system(32632, ("grid_mapping_name", "longitude_of_central_meridian"))),
        scene(1, system(32633, ("grid_mapping_name", "longitude_of_central_meridian"))),
    ),
    "another datum": (scene(0, system(32632)), scene(1, system(23032))),
    "nearly the same ellipsoid": (
        scene(0, system(32632, ("inverse_flattening",))),
        scene(1, system(25832, ("inverse_flattening",))),
    ),
    "numbers as several texts": (
        scene(0, {"standard_parallel": ["30", "60"]}),
        scene(1, {"standard_parallel": ["30", "61"]}),
    ),
    "several texts": (scene(0, {"proj4": ["a", "b"]}), scene(1, {"proj4": ["a", "c"]})),
    "another number beside one that is not known": (
        scene(0, {"standard_parallel": [np.nan, 60.0]}),
        scene(1, {"standard_parallel": [np.nan, 61.0]}),
    ),
    "codes with versions": (
        scene(0, {"crs_wkt": 'PROJCRS["a",ID["EPSG",32632,"1.2"]]'}),
        scene(1, {"crs_wkt": 'PROJCRS["a",ID["EPSG",32633,"1.2"]]'}),
    ),
    "text of PROJ": (
        scene(0, {"proj4": "+proj=utm +zone=32"}),
        scene(1, {"proj4": "+proj=utm +zone=33"}),
    ),
    "parameters of PROJ": (
        scene(0, {"proj4_params": "+proj=utm +zone=32"}),
        scene(1, {"proj4_params": "+proj=utm +zone=33"}),
    ),
    "code alone": (scene(0, {"epsg_code": "EPSG:32632"}), scene(1, {"epsg_code": 32633})),
    "code of a database": (scene(0, {"srid": 32632}), scene(1, {"srid": 32633})),
    "a code beside an equal text": (
        scene(0, {**system(32632, ("crs_wkt",)), "epsg_code": 32632}),
        scene(1, {**system(32632, ("crs_wkt",)), "epsg_code": 32633}),
    ),
    "grid mappings of two names": (scene(0, system(32632)), scene(1, system(32633), "utm")),
    "mappings of several coordinates": (
        scene(0, system(32632), "crs: x y"),
        scene(1, system(32633), "crs: x y"),
    ),
    "other columns": (
        scene(0, system(32632)),
        scene(0, system(32633)).assign_coords(x=np.arange(50.0, 100, 10)),
    ),
    "variables of two systems": (
        scene(0, system(32632)),
        scene(0, system(32633)).rename(t="u"),
    ),
}


@pytest.mark.parametrize("name", UNLIKE)
def test_two_files_of_two_systems_never_combine(name: str, tmp_path: Path) -> None:
    files = write(tmp_path, *UNLIKE[name])
    for how in ({}, ALONG_TIME, {"compat": "override", "join": "override"}):
        with pytest.raises(virtualds.CombineError, match=r"1\.nc: the coordinate reference") as e:
            virtualds.open_virtual_mfdataset(files, **how)
        assert "0.nc" in str(e.value) and "apart, or reproject" in str(e.value)


def test_however_files_are_built_one_of_another_system_is_named(tmp_path: Path) -> None:
    files = write_zones(tmp_path, 40, odd=25)
    ways: list[dict[str, Any]] = [{}, ALONG_TIME, {**ALONG_TIME, "to": tmp_path / "refs.zarr"}]
    ways.append({"preprocess": lambda ds: ds})
    for how in ways:
        with pytest.raises(virtualds.CombineError) as raised:
            virtualds.open_virtual_mfdataset(files, **how)
        said = str(raised.value)
        assert "25.nc" in said and "EPSG:32633 (WGS 84 / UTM zone 33N)" in said and "0.nc" in said
    assert not (tmp_path / "refs.zarr").exists()
    assert virtualds.open_virtual_mfdataset(files[:25]).sizes["time"] == 25


def test_images_of_two_systems_are_never_stacked(tmp_path: Path) -> None:
    place = [(33550, "d", 3, (30.0, 20.0, 0.0)), (33922, "d", 6, (0, 0, 0, 5e5, 4e6, 0))]
    for number, code in enumerate((32632, 32633)):
        keys = (1, 1, 0, 3, 1024, 0, 1, 1, 1025, 0, 1, 1, 3072, 0, 1, code)
        tags = [(*tag, True) for tag in (*place, (34735, "H", len(keys), keys))]
        tifffile.imwrite(tmp_path / f"{number}.tif", np.zeros((16, 16), "u1"), extratags=tags)
    files = [tmp_path / "0.tif", tmp_path / "1.tif"]
    for dim in ("scene", "x"):
        with pytest.raises(virtualds.CombineError, match="EPSG:32633"):
            virtualds.open_virtual_mfdataset(files, combine="nested", concat_dim=dim)


def test_groups_of_two_systems_never_combine(tmp_path: Path) -> None:
    trees = [
        xr.DataTree.from_dict({"/a": scene(n, system(32632)), "/b": scene(n, system(32632 + n))})
        for n in range(2)
    ]
    with pytest.raises(virtualds.CombineError, match="EPSG:32633"):
        virtualds.open_virtual_mfdatatree(write(tmp_path, *trees), concat_dim="time")


WKT = pyproj.CRS.from_epsg(32632).to_wkt()
ALIKE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "other text of one code": (
        {"crs_wkt": WKT},
        {"crs_wkt": pyproj.CRS.from_epsg(32632).to_wkt("WKT1_GDAL")},
    ),
    "other spaces": (
        {"crs_wkt": 'LOCAL_CS["a", UNIT["m", 1]]'},
        {"crs_wkt": 'LOCAL_CS["a",UNIT["m",1]]'},
    ),
    "more attributes": (system(32632, ("grid_mapping_name",)), system(32632)),
    "another corner": (
        {**system(32632), "GeoTransform": "1 2"},
        {**system(32632), "GeoTransform": "3 2"},
    ),
    "another name of one datum": (
        system(32632),
        {**system(32632), "horizontal_datum_name": "WGS_1984"},
    ),
    "numbers of 32 bits": (
        system(32632, ("inverse_flattening",)),
        {"inverse_flattening": np.float32(298.257223563)},
    ),
    "nearly nothing": ({"false_easting": 0.0}, {"false_easting": 1e-12}),
    "numbers that are not known": ({"false_easting": np.nan}, {"false_easting": np.nan}),
    "text of numbers": ({"towgs84": "0,0,0"}, {"towgs84": [0.0, 0.0, 0.0]}),
    "a code with its version": (
        {"crs_wkt": 'PROJCRS["a",ID["EPSG",32632]]'},
        {"crs_wkt": 'PROJCRS["b",ID["EPSG",32632,"1.2"]]'},
    ),
    "a code in several forms": (
        {"epsg_code": "EPSG:32632", "srid": "urn:ogc:def:crs:EPSG::32632"},
        {"epsg_code": 32632, "srid": "32632"},
    ),
    "a text of one number": ({"standard_parallel": 50.0}, {"standard_parallel": np.array([50.0])}),
}


@pytest.mark.parametrize("name", ALIKE)
def test_one_system_in_other_words_combines(name: str, tmp_path: Path) -> None:
    files = write(tmp_path, *(scene(n, given) for n, given in enumerate(ALIKE[name])))
    found = virtualds.open_virtual_mfdataset(files)
    assert found["t"].values[:, 0, 0].tolist() == [0, 1]
    assert not virtualds.diagnose(files).blocks


def test_a_set_takes_no_data_of_another_system(tmp_path: Path) -> None:
    files, target = write_zones(tmp_path, 3, odd=2), tmp_path / "refs.zarr"
    virtualds.open_virtual_mfdataset(files[:2]).virtual.to_manifest(target)
    odd = virtualds.open_virtual_dataset(files[2])
    added = odd.rename(t="u").isel(time=0, drop=True).set_coords("crs")
    other_day = odd.assign_coords(time=odd.time - np.timedelta64(1, "D"))
    writes: dict[str, Callable[[], Any]] = {
        "append": lambda: odd.virtual.to_manifest(target, append_dim="time"),
        "insert": lambda: odd.virtual.to_manifest(target, append_dim="time", position="coordinate"),
        "replace": lambda: other_day.virtual.to_manifest(
            target, mode="replace-source", append_dim="time"
        ),
        "region": lambda: odd.virtual.to_manifest(target, region={"time": slice(0, 1)}),
        "add": lambda: added.virtual.to_manifest(target, mode="a"),
        "sync": lambda: virtualds.sync(files, target, concat_dim="time", settle=0),
    }
    for name, write_it in writes.items():
        with pytest.raises(virtualds.CombineError, match=r"EPSG:32633.* EPSG:32632") as raised:
            write_it()
        assert "2.nc" in str(raised.value), name
    left = xr.open_dataset(target, engine="virtual")
    assert left.sizes["time"] == 2 and set(left.variables) == {"t", "crs", "time", "y", "x"}


def test_a_grid_mapping_is_not_replaced_under_variables_that_stay(tmp_path: Path) -> None:
    names = ("grid_mapping_name", "longitude_of_central_meridian")
    old, new = (scene(0, system(code, names)) for code in (32632, 32633))
    old = old.rename(t="v").assign(w=old["t"])
    files = write(tmp_path, old, new.rename(t="v"))
    target = tmp_path / "refs.zarr"
    virtualds.open_virtual_dataset(files[0]).virtual.to_manifest(target)
    replacing = virtualds.open_virtual_dataset(files[1])
    ways: list[dict[str, Any]] = [{"mode": "r+"}, {"mode": "a", "on_duplicate": "replace"}]
    for dataset in (replacing, replacing[["crs"]]):
        for how in ways:
            with pytest.raises(virtualds.CombineError, match=r"(?s)'[vw]' is .*15.*=9") as raised:
                dataset.virtual.to_manifest(target, **how)
            assert "nothing has been written" in str(raised.value)
            assert re.search("replace '[vw]' too", str(raised.value))
    left = xr.open_dataset(target, engine="virtual")
    assert left["crs"].attrs["longitude_of_central_meridian"] == 9
    # without other variables of the old system, the new one takes its place
    alone = tmp_path / "alone.zarr"
    for how in ways:
        virtualds.open_virtual_dataset(files[0]).drop_vars("w").virtual.to_manifest(alone, mode="w")
        replacing.virtual.to_manifest(alone, **how)
        found = xr.open_dataset(alone, engine="virtual")
        assert found["crs"].attrs["longitude_of_central_meridian"] == 15


def test_a_diagnosis_names_both_systems_and_its_line_takes_the_first(tmp_path: Path) -> None:
    for odd, given in enumerate(
        (system, lambda code: system(code, ("grid_mapping_name", "longitude_of_central_meridian")))
    ):
        systems = [given(32633 if n == 4 else 32632) for n in range(6)]
        files = write(tmp_path / str(odd), *(scene(n, s) for n, s in enumerate(systems)))
        report = virtualds.diagnose(files)
        row = report.differences[0]
        assert (row.variable, row.aspect, row.verdict) == (
            "crs",
            "coordinate reference system",
            "blocks",
        )
        assert row.before != row.after and row.first_file == files[4]
        # what describes the system has no rows of its own
        assert "attribute" not in str(report)
        space: dict[str, Any] = {"virtualds": virtualds, "files": files}
        exec(row.code, space)
        assert space["vds"]["t"].values[:, 0, 0].tolist() == [0, 1, 2, 3, 5]


def test_the_line_of_a_diagnosis_takes_files_by_numbers_of_any_form(tmp_path: Path) -> None:
    forms: list[tuple[Any, Any]] = [
        ([30.0, 60.0], [30.0, 61.0]),
        (["30", "60"], ["30", "61"]),
        ("30", "31"),
        (np.float32(30.1), np.float32(31.1)),
        ([30.0, 60.0], 30.0),
        (30.0, [30.0, 60.0]),
        (30.0, "about 31"),
    ]
    for form, (usual, other) in enumerate(forms):
        systems = [{"standard_parallel": other if n in (1, 3) else usual} for n in range(4)]
        files = write(tmp_path / str(form), *(scene(n, given) for n, given in enumerate(systems)))
        row = virtualds.diagnose(files).differences[0]
        assert (row.aspect, row.verdict) == ("coordinate reference system", "blocks")
        space: dict[str, Any] = {"virtualds": virtualds, "files": files}
        exec(row.code, space)
        assert space["vds"]["t"].values[:, 0, 0].tolist() == [0, 2], usual


@pytest.mark.parametrize(
    ("usual", "other"),
    [
        ({"crs_wkt": "+proj=utm +zone=32"}, {"crs_wkt": "+proj=utm +zone=33"}),
        (
            {"crs_wkt": "EPSG:4326", "inverse_flattening": 298.2},
            {"crs_wkt": "EPSG:4326", "inverse_flattening": 299.0},
        ),
        ({"crs_wkt": 'LOCAL_CS["a",X]'}, {"crs_wkt": 'LOCAL_CS["a",Y]'}),
        ({"srid": 32632}, {"srid": 32633}),
        ({"spatial_ref": "EPSG::32632"}, {"spatial_ref": "EPSG::32633"}),
        *[tuple({"crs_wkt": f'LOCAL_CS["a",{"Z" * 300}{end}]'} for end in "XY")],
    ],
)
def test_a_diagnosis_blocks_systems_of_one_title_that_a_build_refuses(
    usual: dict[str, Any], other: dict[str, Any], tmp_path: Path
) -> None:
    files = write(tmp_path, *(scene(n, other if n == 2 else usual) for n in range(4)))
    for some in (files, files[1:3]):
        report = virtualds.diagnose(some)
        assert report.blocks and "CombineError" in str(report)
        row = report.differences[0]
        assert row.variable == "crs"
        space: dict[str, Any] = {"virtualds": virtualds, "files": some}
        exec(row.code, space)
        kept = {2: [1], 4: [0, 1, 3]}[len(some)]
        assert space["vds"]["t"].values[:, 0, 0].tolist() == kept, row.code
