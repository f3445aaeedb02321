"""Coordinates from names, attributes and functions."""

from __future__ import annotations

import pickle
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import cftime
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from products import looped

from virtualds import CombineError, FromAttribute, FromName
from virtualds.combine.file_coordinates import FileCoordinates

EMPTY = xr.Dataset()
YEAR_MONTH = r"sst_(?P<year>\d{4})(?P<month>\d{2})"


def date(text: str) -> np.datetime64:
    return np.datetime64(text, "ns")


@looped(
    "pattern, form, name, value",
    [
        (YEAR_MONTH, None, "sst_200102_v2.nc", date("2001-02-01")),
        (r"(?P<year>\d{4})", None, "sst_2001.nc", date("2001-01-01")),
        (r"A(?P<year>\d{4})(?P<dayofyear>\d{3})\.", None, "A2004366.hdf", date("2004-12-31")),
        (
            r"(?P<year>\d{4})-(?P<month>\d\d)-(?P<day>\d\d)T(?P<hour>\d\d)(?P<minute>\d\d)",
            None,
            "x_2001-02-03T0405.nc",
            date("2001-02-03T04:05"),
        ),
        (r"_(?P<year>\d{4})(?P<month>\d\d)?", None, "t_2001.nc", date("2001-01-01")),
        (r"_(?P<time>\d{8})", "%Y%m%d", "t_20010203.nc", date("2001-02-03")),
        (r"_(\d{4})\.", "%y%j", "t_9834.nc", date("1998-02-03")),
        (r"_(.*)\.nc", "%Y%m%d%z", "t_20010203+0200.nc", date("2001-02-02T22:00")),
        (r"_r(?P<member>\d+)i", int, "t_r12i1p1.nc", 12),
        (r"_(?P<level>[\d.]+)hPa", float, "t_0.5hPa.nc", 0.5),
        (r"_(?P<model>\w+)\.nc", None, "t_CESM.nc", "CESM"),
        (r"(\d)x(\d)", lambda a, b: int(a) * int(b), "grid_3x4.nc", 12),
        (r"/r(\d+)/", int, "r7/t_1.nc", 7),
        (r"(\d+)", int, "t_7.nc", 7),
    ],
)
def test_a_file_name_gives_a_coordinate_value(
    pattern: str, form: Any, name: str, value: Any
) -> None:
    found = FromName(pattern, form)(f"s3://bucket/2099/{name}", EMPTY)
    assert found == value
    assert type(found) is type(value)


def test_dates_beyond_the_range_of_nanoseconds_are_dates() -> None:
    found = FromName(YEAR_MONTH)("file:///sst_085001.nc", EMPTY)
    assert found == np.datetime64("0850-01-01")


@pytest.mark.parametrize(
    ("pattern", "form", "says"),
    [
        ("sst_[0-9", None, "unterminated"),
        (r"sst_\d+", None, "no group"),
        (r"(?P<year>\d+)_(\d+)", None, "not make a date"),
        (r"(?P<year>\d+)_(?P<day>\d+)", None, "not make a date"),
        (r"(?P<month>\d+)", None, "not make a date"),
        (r"(?P<year>\d+)_(?P<month>\d+)_(?P<dayofyear>\d+)", None, "not make a date"),
        (r"(?P<a>\d+)_(?P<b>\d+)", None, "not make a date"),
        (r"(?P<year>\d+)(?P<month>\d+)", "%Y%m", "for one group"),
    ],
)
def test_a_pattern_without_a_meaning_is_refused_at_once(pattern: str, form: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says) as error:
        FromName(pattern, form)
    assert repr(pattern) in str(error.value)


@looped(
    "source, url, says",
    [
        (FromName(YEAR_MONTH), "file:///d/chl_2001.nc", r"is not found in 'chl_2001\.nc'"),
        (FromName(YEAR_MONTH), "file:///sst_200101/a.nc", r"is not found in 'a\.nc'"),
        (FromName(r"(\d{4})"), "file:///a_20010203.nc", "found several times.*'2001', '0203'"),
        (FromName(YEAR_MONTH), "file:///sst_200113.nc", "month must be in 1..12"),
        (FromName(r"(?P<year>\d\d)_"), "file:///98_t.nc", "no century"),
        (
            FromName(r"(?P<year>\d{4})(?P<dayofyear>\d{3})"),
            "file:///2001366.nc",
            "the year 2001 has no day 366",
        ),
        (FromName(r"_(.+)\.nc", "%Y"), "file:///a_x.nc", "does not match format"),
        (FromName(r"_(.+)\.nc", int), "file:///a_x.nc", "invalid literal"),
        (FromAttribute("start"), "file:///a.nc", r"no attribute 'start'\nname one of \['title'\]"),
        (
            FromAttribute("units", "t"),
            "file:///a.nc",
            r"'t' has no attribute 'units'\nname one of \[\]",
        ),
        (FromAttribute("units", "q"), "file:///a.nc", "no variable 'q'"),
        (lambda url, ds: ds["q"], "file:///a.nc", "KeyError"),
        (lambda url, ds: [[1]], "file:///a.nc", "do not lie along one dimension"),
        (lambda url, ds: [1, 2], "file:///a.nc", "no dimension 'time', but there are 2 values"),
    ],
)
def test_a_missing_coordinate_value_is_an_error_that_names_the_file(
    source: Any, url: str, says: str
) -> None:
    dataset = xr.Dataset({"t": ("x", [1.0])}, attrs={"title": "a"})
    with pytest.raises(CombineError, match=says) as error:
        FileCoordinates({"time": source})(url, dataset)
    assert str(error.value).startswith(f"{url}: coordinate 'time': ")
    if isinstance(source, FromName):
        assert repr(source.pattern) in str(error.value)


def test_an_impossible_source_of_a_coordinate_is_refused() -> None:
    with pytest.raises(TypeError, match=r"coordinates\['time'\]: 'sst' gives no values"):
        FileCoordinates({"time": "sst"})  # type: ignore[dict-item]


@looped(
    "source, value",
    [
        (FromAttribute("realization"), np.int32(3)),
        (FromAttribute("start", format="%Y-%m-%d"), date("2001-02-03")),
        (FromAttribute("start", format=datetime.fromisoformat), date("2001-02-03")),
        (FromAttribute("start", format=pd.Timestamp), date("2001-02-03")),
        (FromAttribute("start", format=np.datetime64), date("2001-02-03")),
        (FromAttribute("level", "t"), 850.0),
        (lambda url, ds: url.rpartition("/")[2], "a.nc"),
        (lambda url, ds: ds["t"].attrs["level"] * 2, 1700.0),
        (lambda url, ds: ds["t"].values[:1], 1.0),
        (lambda url, ds: datetime(2001, 2, 3, tzinfo=UTC), date("2001-02-03")),
        (
            lambda url, ds: datetime(2001, 2, 3, tzinfo=timezone(timedelta(hours=1))),
            date("2001-02-02T23"),
        ),
        (lambda url, ds: cftime.Datetime360Day(2001, 2, 30), cftime.Datetime360Day(2001, 2, 30)),
    ],
)
def test_a_new_dimension_has_the_value(source: Any, value: Any) -> None:
    dataset = xr.Dataset(
        {"t": ("x", [1.0, 2.0], {"level": 850.0})},
        attrs={"realization": np.int32(3), "start": "2001-02-03"},
    )
    found = FileCoordinates({"new": source})("file:///d/a.nc", dataset)
    xr.testing.assert_identical(found, dataset.expand_dims({"new": [value]}))
    assert found.indexes["new"].dtype == xr.Dataset(coords={"new": [value]}).indexes["new"].dtype


def daily(hours: int = 3) -> xr.Dataset:
    return xr.Dataset({"t": ("time", np.arange(hours))}, {"time": np.arange(hours)})


CASES: Mapping[str, tuple[xr.Dataset, Any, Any, xr.Dataset]] = {
    "an existing dimension gets the values": (
        daily(),
        ("time",),
        {"time": lambda url, ds: ds["time"].values + 24},
        daily().assign_coords(time=np.arange(3) + 24),
    ),
    "a dimension of length one gets the value": (
        daily(1).drop_vars("time"),
        ("time",),
        {"time": lambda url, ds: 7},
        daily(1).assign_coords(time=[7]),
    ),
    "a scalar coordinate makes way for a dimension": (
        daily().isel(time=0),
        ("time",),
        {"time": lambda url, ds: 7},
        daily().isel(time=[0]).assign_coords(time=[7]),
    ),
    "what is no dimension lies along that of the join": (
        daily(),
        ("time",),
        {"source": lambda url, ds: "a"},
        daily().assign_coords(source=("time", ["a"] * 3)),
    ),
    "what is no dimension may have a value for each element": (
        daily(),
        ("time",),
        {"lead": lambda url, ds: np.arange(3) * 6},
        daily().assign_coords(lead=("time", np.arange(3) * 6)),
    ),
    "it lies along a dimension that is new as well": (
        daily(),
        ("member",),
        {"model": lambda url, ds: "a", "member": lambda url, ds: 5},
        daily().expand_dims(member=[5]).assign_coords(model=("member", ["a"])),
    ),
    "it is a scalar if files are joined along several dimensions": (
        daily(),
        ("member", "time"),
        {"model": lambda url, ds: "a", "member": lambda url, ds: 5},
        daily().expand_dims(member=[5]).assign_coords(model="a"),
    ),
    "attributes of values are kept": (
        daily(),
        None,
        {"level": lambda url, ds: xr.DataArray(850.0, attrs={"units": "hPa"})},
        daily().expand_dims("level").assign_coords(level=("level", [850.0], {"units": "hPa"})),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_where_a_coordinate_goes(case: str) -> None:
    dataset, joined, sources, expected = CASES[case]
    found = FileCoordinates(sources, joined)("file:///a.nc", dataset)
    xr.testing.assert_identical(found, expected)


def test_variables_that_describe_others_get_no_new_dimension() -> None:
    dataset = xr.Dataset(
        {
            "t": ("lat", [1.0], {"grid_mapping": "crs: lat", "cell_measures": "area: cell_area"}),
            "lat_bnds": (("lat", "nv"), [[0.0, 1.0]]),
            "time_bnds": ("nv", [0.0, 1.0]),
            "crs": ((), 0),
            "cell_area": ("lat", [4.0]),
        },
        {
            "lat": ("lat", [0.5], {"bounds": "lat_bnds"}),
            "time": ((), 3.0, {"bounds": "time_bnds"}),
        },
    )
    found = FileCoordinates({"time": lambda url, ds: 7}, ("time",))("file:///a.nc", dataset)
    assert {name: v.dims for name, v in found.data_vars.items()} == {
        "t": ("time", "lat"),
        "lat_bnds": ("lat", "nv"),
        "time_bnds": ("time", "nv"),
        "crs": (),
        "cell_area": ("lat",),
    }


@pytest.mark.parametrize(
    ("name", "values", "says"),
    [
        ("time", 7, "3 elements along 'time', but there are 1 values"),
        ("time", [1, 2], "3 elements along 'time', but there are 2 values"),
        ("lead", [1, 2], "3 elements along 'time', but there are 2 values"),
        ("t", 1, r"a variable of that name along \('time',\)"),
    ],
)
def test_a_length_that_does_not_match_names_the_file(name: str, values: Any, says: str) -> None:
    with pytest.raises(CombineError, match=f"^file:///a.nc: coordinate '{name}': .*{says}"):
        FileCoordinates({name: lambda url, ds: values}, ("time",))("file:///a.nc", daily())


@pytest.mark.parametrize(
    "source",
    [FromName(YEAR_MONTH), FromName(r"r(\d+)", int), FromAttribute("a", "t", "%Y")],
    ids=repr,
)
def test_sources_travel_to_workers(source: Any) -> None:
    assert pickle.loads(pickle.dumps(FileCoordinates({"time": source}))).sources["time"] == source


def test_the_repr_of_a_pattern_shows_the_pattern() -> None:
    assert re.search(r"FromName\(pattern='r\(", repr(FromName(r"r(\d+)", int)))


def test_a_coordinate_along_a_new_dimension_is_added_after_the_dimension() -> None:
    sources = {"label": lambda url, ds: xr.Variable("run", ["x"]), "run": lambda url, ds: 7}
    found = FileCoordinates(sources, ("run",))("file:///a.nc", xr.Dataset({"t": ("x", [1.0])}))
    assert (found["label"].dims, found["t"].dims) == (("run",), ("run", "x"))
