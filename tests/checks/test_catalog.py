"""A catalogue says what sets and files hold, from metadata and coordinates alone."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import cftime
import fsspec
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from counting_server import counting_server
from large_sets import METADATA, counted
from large_sets import archive as large_archive
from range_server import range_server

import virtualds
from virtualds import CombineError, FormatError
from virtualds.checks.catalog import to_datetime, to_geometry, to_longitudes
from virtualds.checks.catalog.entries import find_extents

SETS = ("refs.json", "refs.parquet", "refs.zarr")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, archive_files: list[Path]) -> Path:
    """A folder with a set of two files in each format, which has a group of the first file."""
    folder = tmp_path_factory.mktemp("built")
    both = virtualds.open_virtual_mfdataset(archive_files)
    first = virtualds.open_virtual_dataset(archive_files[0])
    for name in SETS:
        both.virtual.to_manifest(folder / name)
        first.virtual.to_manifest(folder / name, group="/M1/tas")
    return folder


@pytest.fixture
def folder(tmp_path: Path, built: Path, archive_files: list[Path]) -> Path:
    """A folder of its own with these sets, and the files."""
    shutil.copytree(built, tmp_path, dirs_exist_ok=True)
    for path in archive_files:
        shutil.copy2(path, tmp_path)
    return tmp_path


# ---------------------------------------------------------------------- rows


@pytest.mark.parametrize("name", SETS)
@pytest.mark.every
def test_a_set_has_a_row_for_each_group(folder: Path, name: str) -> None:
    table = virtualds.catalog(folder / name).to_dataframe()
    assert table["group"].to_list() == ["/", "/M1/tas"]
    assert table["name"].to_list() == [name, name]
    assert set(table["path"]) == {(folder / name).as_uri()}
    assert table["variables"].to_list() == [["t"], ["t"]]
    whole = xr.open_dataset(folder / name, engine="virtual")
    assert table["sizes"].to_list() == [dict(whole.sizes), {**whole.sizes, "time": 12}]
    assert table["time_start"].to_list() == ["2001-01-01", "2001-01-01"]
    assert table["time_end"].to_list() == ["2002-12-01", "2001-12-01"]
    for axis in ("lon", "lat"):
        assert (table[f"{axis}_min"] == whole[axis].values.min()).all()
        assert (table[f"{axis}_max"] == whole[axis].values.max()).all()
    assert table["nbytes"][0] == whole.nbytes
    sizes = [(folder / f"{year}.nc").stat().st_size for year in (2001, 2002)]
    if name == "refs.parquet":
        # it lists the files of all groups together
        assert table[["files", "bytes"]].isna().all(axis=None)
    else:
        assert table["files"].to_list() == [2, 1]
        assert table["bytes"].to_list() == [sum(sizes), sizes[0]]
    if name == "refs.zarr":
        newest = virtualds.snapshots(folder / name).iloc[-1]
        assert table["snapshots"].to_list() == [2, 2]
        assert set(table["snapshot"]) == {newest["snapshot"]}
        assert set(table["modified"]) == {str(newest["time"])}
    else:
        assert table["snapshots"].isna().all()


def test_a_source_file_has_a_row(folder: Path) -> None:
    [entry] = virtualds.catalog(folder / "2001.nc").entries
    assert (entry.format, entry.files, entry.snapshots) == ("hdf5", 1, None)
    assert entry.bytes == (folder / "2001.nc").stat().st_size
    assert entry.variables["t"].dims == ("time", "lat", "lon")


def test_a_folder_is_listed_by_its_sets(folder: Path) -> None:
    (folder / "package.json").write_text('{"name": "no set"}')
    (folder / "table.parquet").write_bytes(b"PAR1")
    pd.DataFrame({"a": [1]}).to_parquet(folder / "frame.parquet")
    found = virtualds.catalog(folder)
    assert list(dict.fromkeys(e.name for e in found.entries)) == list(SETS)
    assert len(found) == 6


def test_wildcards_in_the_name_of_a_folder_are_letters(folder: Path, tmp_path: Path) -> None:
    odd = tmp_path / "sets{1,2}[3]*"
    odd.mkdir()
    shutil.copytree(folder / "refs.zarr", odd / "refs.zarr")
    assert [e.group for e in virtualds.catalog(odd).entries] == ["/", "/M1/tas"]


def test_a_folder_without_sets_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "notes.json").write_text("{}")
    with pytest.raises(FormatError, match="neither a reference set nor"):
        virtualds.catalog(tmp_path)


def test_a_remote_folder_is_listed_by_its_sets(folder: Path, archive_files: list[Path]) -> None:
    places = [archive_files[0].parent.as_uri(), "memory://catalogue"]
    filesystem = fsspec.filesystem("memory")
    for name in ("refs.json", "refs.zarr"):
        filesystem.put(str(folder / name), f"/catalogue/{name}", recursive=True)
    found = virtualds.catalog("memory://catalogue", allow=places)
    assert [e.place.removeprefix("memory:///catalogue/") for e in found.entries] == [
        *("refs.json", "refs.json/M1/tas", "refs.zarr", "refs.zarr/M1/tas")
    ]
    with pytest.raises(FileNotFoundError, match="no file or folder matches"):
        virtualds.catalog("memory://catalogue/*.icechunk")


def test_a_folder_of_a_web_server_is_listed_by_its_sets(folder: Path) -> None:
    served = folder / "served"
    served.mkdir()
    shutil.copy2(folder / "2001.nc", served)
    with range_server(served) as (url, _):
        remote = virtualds.open_virtual_dataset(f"{url}/2001.nc")
        for name in ("refs.json", "refs.zarr"):
            remote.virtual.to_manifest(served / name)
        found = virtualds.catalog(url)
    assert [e.name for e in found.entries] == ["refs.json", "refs.zarr"]


def test_names_of_a_pattern_are_columns(folder: Path) -> None:
    for version, year in (("v9", 2001), ("v10", 2001), ("v9", 2002)):
        place = folder / "CMIP6" / "M1" / version
        place.mkdir(parents=True, exist_ok=True)
        shutil.copy2(folder / f"{year}.nc", place)
    pattern = f"{folder}/CMIP6/{{model}}/{{version}}/{{year}}.nc"
    table = virtualds.catalog(pattern).to_dataframe()
    assert table.columns[:6].to_list() == ["name", "path", "group", "model", "version", "year"]
    assert table["name"].to_list() == ["v10/2001.nc", "v9/2001.nc", "v9/2002.nc"]
    newest = virtualds.catalog(pattern, newest="version").to_dataframe()
    assert newest[["version", "year"]].to_numpy().tolist() == [["v10", "2001"], ["v9", "2002"]]
    with pytest.raises(ValueError, match=r"\{group\}: the catalogue has a column of this name"):
        virtualds.catalog(f"{folder}/CMIP6/M1/{{group}}/*.nc")


def test_names_of_groups_are_columns(folder: Path) -> None:
    for name in ("refs.json", "refs.zarr"):
        found = virtualds.catalog(folder / name, tree="{model}/{variable}").to_dataframe()
        assert found.columns[3:5].to_list() == ["model", "variable"]
        assert found["model"].fillna("").to_list() == ["", "M1"]
        assert found["variable"].fillna("").to_list() == ["", "tas"]
    both = virtualds.catalog(f"{folder}/refs.{{form}}", tree="/{model}/tas")
    assert [dict(e.names) for e in both.entries if e.group != "/"] == [
        {"form": form, "model": "M1"} for form in ("json", "parquet", "zarr")
    ]
    with pytest.raises(ValueError, match=r"\{form\}: the catalogue has a column"):
        virtualds.catalog(f"{folder}/refs.{{form}}", tree="/{form}/tas")


def test_a_pattern_matches_sets_that_are_folders(folder: Path) -> None:
    found = virtualds.catalog(f"{folder}/refs.{{form}}")
    assert {(e.names["form"], e.name) for e in found.entries} == {
        ("json", "refs.json"), ("parquet", "refs.parquet"), ("zarr", "refs.zarr"),
    }  # fmt: skip


def test_groups_that_are_no_tree_are_listed(folder: Path) -> None:
    late = virtualds.open_virtual_dataset(folder / "2002.nc").isel(time=slice(3))
    late.virtual.to_manifest(folder / "refs.zarr", group="/late")
    with pytest.raises(CombineError):
        virtualds.open_virtual_datatree(folder / "refs.zarr")
    found = {e.group: e.sizes["time"] for e in virtualds.catalog(folder / "refs.zarr").entries}
    assert found == {"/": 24, "/M1/tas": 12, "/late": 3}


def test_a_group_has_the_coordinates_of_those_above(tmp_path: Path) -> None:
    days = np.arange("2001-01-01", "2001-01-04", dtype="datetime64[D]").astype("datetime64[ns]")
    tree = xr.DataTree.from_dict(
        {"/": xr.Dataset(coords={"time": days}), "/below": xr.Dataset({"t": ("time", np.ones(3))})}
    )
    tree.to_netcdf(tmp_path / "tree.nc")
    found = {e.group: e for e in virtualds.catalog(tmp_path / "tree.nc").entries}
    extent = found["/below"].find_extent("time")
    assert extent is not None
    assert (extent.start, extent.stop) == ("2001-01-01", "2001-01-03")


# ---------------------------------------------------------------------- what is read


@pytest.mark.parametrize("name", ["refs.parquet", "refs.zarr"])
@pytest.mark.every
def test_references_are_not_read(tmp_path: Path, name: str) -> None:
    one = large_archive(range(12), 2)["v"]
    whole = xr.Dataset({"v": one, "w": one}, {"x": range(one.sizes["x"])})
    choices = {"manifest": "parquet"} if name == "refs.zarr" else {"record_size": 1000}
    whole.virtual.to_manifest(tmp_path / name, **choices)
    with counted(tmp_path / name) as traffic:
        [entry] = virtualds.catalog(tmp_path / name).entries
    assert (entry.files, entry.bytes) == (12, None)  # nobody has seen these files
    assert not any(path.startswith(("v/refs", "w/refs", "v/manifest")) for path in traffic.read)
    assert traffic.nbytes_read < 6 * METADATA


def test_source_files_of_a_set_are_not_opened(folder: Path) -> None:
    found = virtualds.open_virtual_dataset(folder / "2001.nc")
    found.virtual.to_manifest(folder / "year.zarr")
    expected = virtualds.catalog(folder / "year.zarr").entries
    os.remove(folder / "2001.nc")
    assert virtualds.catalog(folder / "year.zarr").entries == expected


def test_a_remote_file_takes_few_requests(folder: Path) -> None:
    # four megabytes of values, which nobody asks for
    big = xr.Dataset({"v": (("time", "x"), np.random.default_rng(0).random((500, 1000)))})
    big["time"] = ("time", np.arange(500.0), {"units": "days since 2001-01-01"})
    (folder / "served").mkdir()
    big.to_netcdf(folder / "served" / "big.nc", engine="netcdf4")
    with counting_server(folder / "served") as (url, counts):
        [entry] = virtualds.catalog(f"{url}/big.nc").entries
    assert entry.find_extent("time") is not None
    assert len(counts.requests) <= 2
    assert counts.sent < 300_000


# ---------------------------------------------------------------------- what cannot be opened


def test_what_cannot_be_opened_stops_or_is_left_out(folder: Path) -> None:
    (folder / "2003.nc").write_bytes((folder / "2001.nc").read_bytes()[:2000])
    pattern = f"{folder}/20*.nc"
    with pytest.raises(FormatError, match=r"2003\.nc"):
        virtualds.catalog(pattern)
    with pytest.warns(virtualds.CombineWarning, match=r"left out of the catalogue: .*2003\.nc"):
        assert len(virtualds.catalog(pattern, on_error="skip")) == 2
    found = virtualds.catalog(pattern, on_error="collect")
    [lost] = found.left_out
    assert len(found) == 2
    assert lost.url.endswith("2003.nc")
    assert "2003.nc" in str(found)
    assert found.to_dict()["left_out"][0]["error"] == "FormatError"
    # the only one
    with pytest.raises(FormatError, match=r"2003\.nc"):
        virtualds.catalog(folder / "2003.nc", on_error="skip")
    with pytest.raises(FileNotFoundError, match=r"never\.zarr"):
        virtualds.catalog(folder / "never.zarr")
    with pytest.raises(ValueError, match="on_error"):
        virtualds.catalog(pattern, on_error="keep")  # type: ignore[arg-type]


# ---------------------------------------------------------------------- axes

ATTRIBUTES = {
    "standard names": ({"standard_name": "latitude"}, {"standard_name": "longitude"}),
    "units": ({"units": "degrees_north"}, {"units": "degreeE"}),
}


@pytest.mark.parametrize("which", ATTRIBUTES)
@pytest.mark.every
def test_axes_are_found_as_cf_says(which: str) -> None:
    lat, lon = ATTRIBUTES[which]
    found = find_extents(
        xr.Dataset(coords={"j": ("j", [1.0, 2.0], lat), "i": ("i", [5.0, 3.0], lon)})
    )
    assert (found["j"].axis, found["j"].start, found["j"].stop) == ("latitude", 1.0, 2.0)
    assert (found["i"].axis, found["i"].start, found["i"].stop) == ("longitude", 3.0, 5.0)


def test_a_name_alone_is_an_axis_unless_its_attributes_say_otherwise() -> None:
    def axis(name: str, values: Any = (1.0, 2.0), **attributes: str) -> str:
        found = find_extents(xr.Dataset(coords={name: (name, list(values), attributes)}))
        return found[name].axis if name in found else ""

    assert axis("Latitude") == "latitude"
    assert axis("lon") == "longitude"
    assert axis("lon", standard_name="grid_longitude", units="degrees") == ""
    assert axis("lat", units="m") == ""
    assert axis("lat", values=[0.0, 4_000_000.0]) == ""
    assert axis("x", axis="X") == ""
    assert axis("z", positive="down") == "vertical"


def test_curvilinear_grids_have_the_extents_of_their_2d_coordinates(tmp_path: Path) -> None:
    y, x = np.meshgrid(np.linspace(40, 60, 50), np.linspace(-10, 5, 60), indexing="ij")
    y[0, 0] = np.nan
    grid = xr.Dataset(
        {"t": (("y", "x"), np.ones_like(x))},
        {
            "nav_lat": (("y", "x"), y, {"standard_name": "latitude"}),
            "nav_lon": (("y", "x"), x, {"units": "degrees_east"}),
        },
    )
    grid.to_netcdf(tmp_path / "grid.nc", engine="netcdf4")
    # too large to be loaded when a file is opened
    assert x.nbytes > 16 * 1024
    [row] = virtualds.catalog(tmp_path / "grid.nc").to_dataframe().to_dict("records")
    extents = (row["lat_min"], row["lat_max"], row["lon_min"], row["lon_max"])
    assert extents == (np.nanmin(y), 60, -10, 5)


def test_the_time_of_a_forecast_is_the_one_that_it_is_for() -> None:
    days = np.array(["2001-01-01", "2001-01-02"], "datetime64[ns]")
    run = ("run", days[:1], {"standard_name": "forecast_reference_time"})
    valid = ("lead", days + np.timedelta64(5, "D"), {"standard_name": "time"})
    found = find_extents(xr.Dataset(coords={"run": run, "valid": valid}))
    assert (found["valid"].axis, found["run"].axis) == ("time", "")
    assert find_extents(xr.Dataset(coords={"run": run}))["run"].axis == "time"
    # whichever comes first
    found = find_extents(xr.Dataset(coords={"valid": valid, "run": run}))
    assert (found["valid"].axis, found["run"].axis) == ("time", "")


def test_of_two_equally_certain_axes_the_first_counts() -> None:
    days = np.array(["2001-01-01", "2001-01-02"], "datetime64[ns]")
    found = find_extents(xr.Dataset(coords={"begin": ("begin", days), "end": ("end", days)}))
    assert (found["begin"].axis, found["end"].axis) == ("time", "")


def test_dates_of_other_calendars_and_texts_are_extents() -> None:
    days = [cftime.Datetime360Day(2001, 2, 30), cftime.Datetime360Day(2001, 1, 1)]
    found = find_extents(xr.Dataset(coords={"time": days, "member": ["r1", "r2"]}))
    assert found["time"][:3] == ("time", "2001-01-01T00:00:00", "2001-02-30T00:00:00")
    assert found["time"].calendar == "360_day"
    assert found["member"].values == ("r1", "r2")


def test_dates_that_are_data_are_not_the_time() -> None:
    days = np.array(["2001-01-01", "2001-01-02"], "datetime64[ns]")
    found = find_extents(xr.Dataset({"first_frost": ("x", days)}, {"x": [1, 2]}))
    assert set(found) == {"x"}


def test_lead_times_are_hours(tmp_path: Path) -> None:
    leads = np.array([6, 12], "timedelta64[h]").astype("timedelta64[ns]")
    days = np.array(["2001-01-01"], "datetime64[ns]")
    coordinates = {"lead": leads, "run": days, "lat": [1.0, 2.0], "lon": [3.0, 4.0]}
    assert find_extents(xr.Dataset(coords=coordinates))["lead"][:4] == ("", 6, 12, "hours")
    dims = ("run", "lead", "lat", "lon")
    forecasts = xr.Dataset({"t": (dims, np.ones((1, 2, 2, 2)))}, coordinates)
    forecasts = forecasts.assign_coords(valid=forecasts["run"] + forecasts["lead"])
    forecasts["valid"].attrs["standard_name"] = "time"
    forecasts["run"].attrs["standard_name"] = "forecast_reference_time"
    forecasts.to_netcdf(tmp_path / "run.nc", engine="netcdf4")
    virtualds.catalog(tmp_path / "run.nc").to_stac(tmp_path / "stac")
    item = json.loads((tmp_path / "stac" / "run-nc" / "run-nc.json").read_text())
    cube = item["properties"]["cube:dimensions"]
    assert (cube["lead"]["extent"], cube["lead"]["unit"]) == ([6, 12], "hours")
    assert cube["run"]["type"] == "temporal"
    assert item["properties"]["end_datetime"] == "2001-01-01T12:00:00Z"
    # the file has none
    assert "title" not in item["properties"]


def test_undeclared_fill_values_are_no_degrees() -> None:
    found = find_extents(xr.Dataset(coords={"lon": [-999.0, 5.0], "lat": [-999.0, 5.0]}))
    assert not found


def test_missing_values_and_empty_coordinates_have_no_extent() -> None:
    dates = np.array(["NaT", "2001-01-01"], "datetime64[ns]")
    found = find_extents(
        xr.Dataset(coords={"time": dates, "lat": [np.nan, np.nan], "lon": np.zeros(0)})
    )
    assert found["time"][:3] == ("time", "2001-01-01", "2001-01-01")
    assert set(found) == {"time"}


# ---------------------------------------------------------------------- files for other tools


def test_a_catalogue_of_intake_esm_is_a_document_with_a_table(folder: Path) -> None:
    target = folder / "new" / "archive.json"
    found = virtualds.catalog(f"{folder}/{{year}}.nc")
    found.to_esm(target, description="Two years")
    document = json.loads(target.read_text())
    assert (document["esmcat_version"], document["id"]) == ("0.1.0", "archive")
    assert document["description"] == "Two years"
    assert document["aggregation_control"]["groupby_attrs"] == ["year", "group"]
    rows = document["catalog_dict"]
    columns = [one["column_name"] for one in document["attributes"]]
    assert {*columns, "path", "asset_format"} == set(rows[0])
    assert [row["asset_format"] for row in rows] == ["netcdf", "netcdf"]
    assert json.loads(rows[0]["sizes"]) == {"time": 12, "lat": 6, "lon": 8}
    assert rows[0]["variables"] == ["t"]
    found.to_esm(target, csv=True)
    assert json.loads(target.read_text())["catalog_file"] == "archive.csv"
    table = pd.read_csv(target.with_suffix(".csv"), dtype={"year": str})
    expected = [{**row, "variables": str(row["variables"])} for row in rows]
    assert table.to_dict("records") == expected
    with pytest.raises(ValueError, match=r"ends in \.json"):
        found.to_esm(folder / "archive.csv")


def test_a_column_of_the_table_has_one_type(folder: Path) -> None:
    lost = xr.Dataset({"t": ("time", np.ones(2))})
    lost.to_netcdf(folder / "lost.nc")
    places = [folder / name for name in ("2001.nc", "refs.zarr", "lost.nc")]
    virtualds.catalog(places).to_esm(folder / "all.json")
    rows = json.loads((folder / "all.json").read_text())["catalog_dict"]
    assert [row["snapshots"] for row in rows] == ["", "2", "2", ""]
    assert [row["lon_max"] for row in rows] == ["315.0", "315.0", "315.0", ""]
    assert [row["files"] for row in rows] == [1, 2, 1, 1]
    virtualds.catalog(places[:1]).to_esm(folder / "all.json")
    [row] = json.loads((folder / "all.json").read_text())["catalog_dict"]
    assert "snapshots" not in row
    assert row["lon_max"] == 315


def test_a_path_of_a_row_opens_its_group(folder: Path) -> None:
    for entry in virtualds.catalog(folder).entries:
        group = None if entry.group == "/" else entry.group
        expected = xr.open_dataset(entry.path, engine="virtual", group=group)
        xr.testing.assert_identical(xr.open_dataset(entry.place, engine="virtual"), expected)


def test_a_collection_of_stac_has_an_item_for_each_group(folder: Path) -> None:
    virtualds.catalog(folder / "refs.zarr").to_stac(folder / "stac", license="CC-BY-4.0")
    collection = json.loads((folder / "stac" / "collection.json").read_text())
    assert (collection["id"], collection["license"]) == ("stac", "CC-BY-4.0")
    paths = [link["href"] for link in collection["links"] if link["rel"] == "item"]
    assert paths == ["./refs-zarr/refs-zarr.json", "./refs-zarr-M1-tas/refs-zarr-M1-tas.json"]
    item = json.loads((folder / "stac" / paths[1]).read_text())
    assert item["properties"]["end_datetime"] == "2001-12-01T00:00:00Z"
    assert item["bbox"] == collection["extent"]["spatial"]["bbox"][0] == [-180, -75, 180, 75]
    assert item["properties"]["cube:dimensions"]["lon"]["extent"] == [0, 315]
    assert item["properties"]["title"] == "two small years"
    asset = item["assets"]["data"]
    opened = xr.open_dataset(asset["href"], **asset["xarray:open_kwargs"])
    assert opened.sizes["time"] == 12


def test_items_of_like_names_are_different_files(folder: Path) -> None:
    places = [folder / name for name in ("a b.nc", "a-b.nc", "a-b-nc-2.nc", "a_b.nc")]
    for place in places:
        shutil.copy2(folder / "2001.nc", place)
    virtualds.catalog(places).to_stac(folder / "stac")
    ids = {json.loads(path.read_text())["id"] for path in (folder / "stac").glob("*/*.json")}
    assert ids == {"a-b-nc", "a-b-nc-2", "a-b-nc-2-nc", "a_b-nc"}


def test_items_need_a_place_and_a_time(folder: Path) -> None:
    lost = xr.Dataset({"t": ("time", np.ones(2))})
    lost.to_netcdf(folder / "lost.nc")
    found = virtualds.catalog([folder / "2001.nc", folder / "lost.nc"])
    with pytest.warns(UserWarning, match=r"left out .*lost\.nc has no time"):
        found.to_stac(folder / "stac")
    assert sorted(p.name for p in (folder / "stac").iterdir()) == ["2001-nc", "collection.json"]
    with pytest.raises(ValueError, match=r"no group has all .*lost\.nc has no time"):
        virtualds.catalog(folder / "lost.nc").to_stac(folder / "none")
    assert not (folder / "none").exists()


def test_boxes_may_cross_the_antimeridian() -> None:
    assert to_longitudes(-180, 180) == (-180, 180)
    assert to_longitudes(0, 180) == (0, 180)
    assert to_longitudes(-180, 90) == (-180, 90)
    assert to_longitudes(200, 250) == (-160, -110)
    west, east = to_longitudes(170, 190)
    found = to_geometry(west, -10, east, 10)
    assert found["type"] == "MultiPolygon"
    corners = [[place[0] for place in ring] for [ring] in found["coordinates"]]
    assert corners == [[170, 180, 180, 170, 170], [-180, -170, -170, -180, -180]]
    assert to_geometry(1, 2, 1, 2) == {"type": "Point", "coordinates": [1, 2]}
    assert to_geometry(1, 2, 1, 3)["type"] == "LineString"


def test_dates_of_stac_exist_in_the_gregorian_calendar() -> None:
    assert to_datetime("2000-02-30T06:00:00") == "2000-02-29T06:00:00Z"
    # a span of nanoseconds ends no earlier
    assert to_datetime("2001-01-01T00:00:00.000000001") == "2001-01-01T00:00:00Z"
    end = to_datetime("2001-01-01T00:00:00.000000001", is_end=True)
    assert end == "2001-01-01T00:00:00.000001Z"
    for text in ("0000-01-01", "-0005-01-01", "12000-01-01"):
        with pytest.raises(CombineError, match="years from 1 to 9999"):
            to_datetime(text)


def test_the_report_is_text_and_html(folder: Path) -> None:
    found = virtualds.catalog(folder / "refs.zarr")
    first = str(found).splitlines()
    assert first[0] == "2 groups of 1 set or file"
    assert "2001-01-01 to 2002-12-01" in first[2]
    assert "0 to 315" in first[2]
    assert "/M1/tas" in found.to_html()
    assert found.to_dict()["entries"][1]["sizes"] == {"time": 12, "lat": 6, "lon": 8}
    json.dumps(found.to_dict(), allow_nan=False)


def test_secrets_are_not_listed(folder: Path) -> None:
    with range_server(folder) as (url, _):
        [entry] = virtualds.catalog([f"{url}/2001.nc?token=SECRET"]).entries
    assert "SECRET" not in json.dumps(virtualds.Catalog((entry,)).to_dict())
