"""Files of other dimensions or grids combine as in xarray, and one warning names them."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from virtual_arrays import no_reads

import virtualds
from virtualds.combine.xarray_combine import Combination, warn_about_differences

Change = Callable[[xr.Dataset], xr.Dataset]
ALONG_TIME = {"combine": "nested", "concat_dim": "time"}


def month(number: int, days: int = 3) -> xr.Dataset:
    """A file of ``t(time, lat, lon)``."""
    day = np.datetime64("2001-01-01", "ns") + np.timedelta64(31 * number, "D")
    data = np.arange(days * 20, dtype="f4").reshape(days, 4, 5) + 1000 * number
    return xr.Dataset(
        {"t": (("time", "lat", "lon"), data), "p": (("time", "lat", "lon"), -data)},
        {
            "time": day + np.arange(days) * np.timedelta64(1, "D"),
            "lat": np.linspace(-60, 60, 4),
            "lon": np.arange(5.0),
        },
    )


def write(folder: Path, changes: dict[int, Change], count: int = 4) -> list[Path]:
    """Files of which some are changed."""
    paths = [folder / f"{number}.nc" for number in range(count)]
    for number, path in enumerate(paths):
        changed = changes.get(number, lambda ds: ds)(month(number))
        changed.to_netcdf(path, unlimited_dims={"time"} & set(changed.dims))
    return paths


@dataclass(frozen=True)
class Unlike:
    """Files that are not alike, how they are combined, and what the warning says."""

    changes: dict[int, Change]
    says: tuple[str, ...]
    how: dict[str, Any] = field(default_factory=lambda: ALONG_TIME)


def other_grid(ds: xr.Dataset) -> xr.Dataset:
    return ds.interp(lat=np.linspace(-60, 60, 5)).astype("f4")


RENAMED = 'preprocess=lambda ds: ds.rename({"latitude": "lat"} if "latitude" in ds.dims else {})'
UNLIKE: dict[str, Unlike] = {
    "a dimension of another name": Unlike(
        {2: lambda ds: ds.rename(lat="latitude")},
        ("'t', 'p': (latitude, lon) in ", "2.nc, (lat, lon) in others", RENAMED),
    ),
    "two dimensions of other names": Unlike(
        {1: lambda ds: ds.rename(lat="y", lon="x")},
        ("1.nc", 'ds.rename({n: m for n, m in {"y": "lat", "x": "lon"}.items() if n in ds.dims})'),
    ),
    "a dimension without coordinate of another name": Unlike(
        {n: lambda ds: ds.drop_vars("lat") for n in (0, 1, 3)}
        | {2: lambda ds: ds.drop_vars("lat").rename_dims(lat="latitude")},
        ("2.nc", RENAMED),
    ),
    "a dimension more": Unlike(
        {0: lambda ds: ds.expand_dims(height=[2.0, 10.0], axis=1)},
        ("(height, lat, lon) in ", "0.nc, (lat, lon) in others", "ds.squeeze"),
    ),
    "another grid": Unlike(
        {2: other_grid},
        ("'lat': -60.0 to 60.0 (4 values", "(5 values", "2.nc: united to 7 values", "exact"),
    ),
    "another grid, by coordinates": Unlike({2: other_grid}, ("(5 values", "2.nc: united"), {}),
    "a grid that moved": Unlike(
        {3: lambda ds: ds.assign_coords(lat=ds["lat"] + 0.001)}, ("'lat': ", "3.nc: united to 8")
    ),
    "a part of the grid": Unlike({1: lambda ds: ds.isel(lat=slice(2))}, ("(2 values", "1.nc")),
    "both": Unlike(
        {1: lambda ds: ds.rename(lat="latitude"), 2: lambda ds: ds.isel(lon=slice(2))},
        (RENAMED, "'lon': 0.0 to 4.0"),
    ),
    "variables of two grids, merged": Unlike(
        {n: lambda ds: ds[["t"]] for n in (0, 1)}
        | {n: lambda ds: other_grid(ds[["p"]]) for n in (2, 3)},
        ("'lat': ", "2.nc"),
        {},
    ),
}


@pytest.mark.parametrize("name", UNLIKE)
def test_files_that_are_not_alike_cause_one_warning_that_names_them(
    name: str, tmp_path: Path
) -> None:
    case = UNLIKE[name]
    write(tmp_path, case.changes)
    with pytest.warns(virtualds.CombineWarning) as told:
        virtualds.open_virtual_mfdataset(str(tmp_path / "*.nc"), **case.how)
    assert len(told) == 1 and told[0].filename == __file__
    text = str(told[0].message)
    assert not [part for part in case.says if part not in text], text


ORDINARY: dict[str, tuple[dict[int, Change], dict[str, Any]]] = {
    "files of other lengths": ({1: lambda ds: ds.isel(time=slice(1))}, ALONG_TIME),
    "files of other lengths, by coordinates": ({1: lambda ds: ds.isel(time=slice(1))}, {}),
    "a variable that one lacks": ({2: lambda ds: ds[["t"]]}, ALONG_TIME),
    "a variable with a dimension of its own": (
        {2: lambda ds: ds.assign(u=ds["t"].expand_dims(z=[1, 2]))},
        ALONG_TIME,
    ),
    "another order of dimensions": ({1: lambda ds: ds.transpose("lon", "time", "lat")}, ALONG_TIME),
    "files without time, stacked": (
        {n: lambda ds: ds.isel(time=0, drop=True) for n in range(4)},
        ALONG_TIME,
    ),
    "other attributes and types": ({1: lambda ds: ds.astype("f8")}, ALONG_TIME),
    "tiles, by coordinates": (
        {
            n: lambda ds, n=n: ds.assign_coords(time=month(0)["time"], lat=ds["lat"] + 200 * n)  # type: ignore[misc]
            for n in range(4)
        },
        {},
    ),
    "variables in files of their own, of other years": (
        {
            0: lambda ds: ds[["t"]],
            1: lambda ds: ds[["t"]],
            2: lambda ds: ds[["p"]],
            3: lambda ds: ds[["p"]],
        },
        {},
    ),
    "variables in two files, of which one begins later": (
        {
            0: lambda ds: ds[["t"]],
            1: lambda ds: ds[["p"]].assign_coords(
                time=month(0)["time"] + 2 * np.timedelta64(1, "D")
            ),
        },
        {"combine": "nested", "concat_dim": None},
    ),
    "members of other years": (
        {
            n: lambda ds, n=n: ds.assign_coords(time=month(0)["time"] + n * np.timedelta64(1, "D"))  # type: ignore[misc]
            for n in range(4)
        },
        {"combine": "nested", "concat_dim": "member"},
    ),
    "a coordinate of the first file, as asked": (
        {1: lambda ds: ds.assign_coords(lat=ds["lat"] + 1)},
        {**ALONG_TIME, "join": "override"},
    ),
    "common elements, as asked": (
        {1: lambda ds: ds.isel(lat=slice(2))},
        {**ALONG_TIME, "join": "inner"},
    ),
}


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_archives_cause_no_warning(name: str, tmp_path: Path) -> None:
    changes, how = ORDINARY[name]
    files = write(tmp_path, changes, 2 if "two files" in name else 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error", virtualds.CombineWarning)
        virtualds.open_virtual_mfdataset(files, **how)


@pytest.mark.parametrize("name", ["a dimension of another name", "two dimensions of other names"])
def test_the_line_of_a_warning_mends_what_it_says(name: str, tmp_path: Path) -> None:
    files = write(tmp_path, UNLIKE[name].changes)
    with pytest.warns(virtualds.CombineWarning) as told:
        virtualds.open_virtual_mfdataset(files, **ALONG_TIME)
    code = re.search(r"preprocess=(lambda .*)", str(told[0].message))
    assert code
    mended = virtualds.open_virtual_mfdataset(files, preprocess=eval(code[1]), **ALONG_TIME)
    xr.testing.assert_identical(
        mended.load(), xr.concat([month(n) for n in range(4)], "time").load()
    )


def test_the_engine_and_trees_warn_too(tmp_path: Path) -> None:
    files = write(tmp_path, UNLIKE["a dimension of another name"].changes)
    with pytest.warns(virtualds.CombineWarning, match="latitude") as told:
        xr.open_dataset(str(tmp_path / "*.nc"), engine="virtual", concat_dim="time")
    assert [warning.filename for warning in told] == [__file__]
    for path in files:
        inner = xr.load_dataset(path)
        xr.DataTree.from_dict({"/a/b": inner}).to_netcdf(path, mode="w")
    with pytest.warns(virtualds.CombineWarning, match="latitude"):
        virtualds.open_virtual_mfdatatree(files, concat_dim="time")


def test_a_warning_reads_nothing(tmp_path: Path) -> None:
    files = write(tmp_path, UNLIKE["both"].changes)
    opened = {str(path): virtualds.open_virtual_dataset(path) for path in files}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", virtualds.CombineWarning)
        combined = virtualds.open_virtual_mfdataset(files, **ALONG_TIME)
    with no_reads(), pytest.warns(virtualds.CombineWarning, match="latitude"):
        warn_about_differences(Combination("nested", "time"), opened, combined)


def test_an_error_of_other_values_names_what_keeps_them_all(tmp_path: Path) -> None:
    paths = [tmp_path / f"{n}.nc" for n in range(4)]
    for n, path in enumerate(paths):
        swath = {"t": (("y", "x"), np.full((4, 5), n)), "lat": (("y", "x"), np.full((4, 5), n))}
        xr.Dataset(swath).set_coords("lat").to_netcdf(path)
    granules = {"granule": lambda url, ds: int(Path(url).stem)}
    stacked: dict[str, Any] = {"combine": "nested", "concat_dim": "granule"}
    for how in ({"coordinates": granules}, {"coordinates": granules, **stacked}):
        with pytest.raises(xr.MergeError) as raised:
            virtualds.open_virtual_mfdataset(paths, **how)
        said = "\n".join([str(raised.value), *raised.value.__notes__])
        assert "override" not in said and "values for variable 'lat'" in said
        assert 'to keep the values of every file, pass coords="different"' in said
        found = virtualds.open_virtual_mfdataset(paths, coords="different", **how)
        assert found["lat"].values[:, 0, 0].tolist() == [0, 1, 2, 3]
    # merged, nothing can stand side by side
    with pytest.raises(xr.MergeError) as raised:
        virtualds.open_virtual_mfdataset(paths, combine="nested")
    assert "rename the variable in preprocess" in "\n".join(raised.value.__notes__)
    assert "override" not in str(raised.value)
