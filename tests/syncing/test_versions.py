"""Of several versions of a file, a set follows the newest that can be used."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import virtualds


def write_version(root: Path, version: str, year: int, value: float) -> Path:
    path = root / version / f"tas_{year}.nc"
    path.parent.mkdir(exist_ok=True, parents=True)
    time = pd.date_range(f"{year}-01-01", periods=3, freq="MS")
    data = np.full((3, 2), value) + np.arange(3)[:, None]
    xr.Dataset({"tas": (("time", "x"), data)}, {"time": time}).to_netcdf(path)
    return path


def sync(root: Path, **how: object) -> virtualds.SyncReport:
    how = {"settle": 0, "concat_dim": "time", "newest": "version"} | how
    return virtualds.sync(f"{root}/data/{{version}}/tas_{{year}}.nc", root / "set.zarr", **how)


def read(root: Path) -> xr.Dataset:
    return xr.open_dataset(root / "set.zarr", engine="virtual").load()


def expect(*paths: Path) -> xr.Dataset:
    return xr.open_mfdataset(sorted(paths, key=lambda p: p.name)).load()


def test_a_new_version_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    data = tmp_path / "data"
    first, second = write_version(data, "v9", 2001, 1), write_version(data, "v9", 2002, 2)
    assert len(sync(tmp_path).added) == 2
    third = write_version(data, "v10", 2001, 3)
    done = sync(tmp_path)
    assert done.added == (third.as_uri(),)
    assert done.dropped == done.shadowed == (first.as_uri(),)
    xr.testing.assert_identical(read(tmp_path), expect(third, second))
    # the old one is known as such, and not opened again
    again = sync(tmp_path)
    assert (again.is_written, again.shadowed, again.unchanged) == (False, (first.as_uri(),), 2)


def test_a_retracted_version_makes_room_for_the_one_before(tmp_path: Path) -> None:
    data = tmp_path / "data"
    first, second = write_version(data, "v1", 2001, 1), write_version(data, "v2", 2001, 2)
    other = write_version(data, "v1", 2002, 3)
    assert sync(tmp_path).shadowed == (first.as_uri(),)
    xr.testing.assert_identical(read(tmp_path), expect(second, other))
    second.unlink()
    done = sync(tmp_path)
    assert (done.added, done.dropped) == ((first.as_uri(),), (second.as_uri(),))
    xr.testing.assert_identical(read(tmp_path), expect(first, other))
    # a file of which no version is left is a removed one, as ever
    other.unlink()
    with pytest.raises(FileNotFoundError, match=r"tas_2002\.nc: not listed any more"):
        sync(tmp_path)
    assert sync(tmp_path, on_removed="drop").dropped == (other.as_uri(),)


def test_files_that_differ_in_more_than_the_version_do_not_replace_each_other(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    first, second = write_version(data, "v1", 2001, 1), write_version(data, "v1", 2002, 2)
    how = {"settle": 0, "concat_dim": "time", "newest": "version"}
    done = virtualds.sync(f"{data}/{{version}}/*.nc", tmp_path / "set.zarr", **how)
    assert (len(done.added), done.shadowed) == (2, ())
    xr.testing.assert_identical(read(tmp_path), expect(first, second))
    # another file of the same version is no reason to drop one that is gone
    second.unlink()
    write_version(data, "v1", 2003, 3)
    with pytest.raises(FileNotFoundError, match=r"tas_2002\.nc: not listed any more"):
        virtualds.sync(f"{data}/{{version}}/*.nc", tmp_path / "set.zarr", **how)


def test_a_version_that_is_still_written_or_broken_does_not_count(tmp_path: Path) -> None:
    data = tmp_path / "data"
    first = write_version(data, "v1", 2001, 1)
    sync(tmp_path)
    second = write_version(data, "v2", 2001, 2)
    os.utime(first, (0, 0))
    old = sync(tmp_path, settle=0)
    assert old.added == (second.as_uri(),)
    third = data / "v3" / "tas_2001.nc"
    third.parent.mkdir()
    third.write_bytes(b"no netCDF file")
    waits = sync(tmp_path, settle=3600)
    assert (waits.is_written, waits.waiting) == (False, (third.as_uri(),))
    broken = sync(tmp_path, on_error="collect")
    assert ([lost.url for lost in broken.failed], broken.dropped) == ([third.as_uri()], ())
    xr.testing.assert_identical(read(tmp_path), expect(second))
    with pytest.raises(virtualds.FormatError, match="v3"):
        sync(tmp_path)


def test_of_a_new_set_an_older_version_is_used_where_the_newest_is_broken(tmp_path: Path) -> None:
    data = tmp_path / "data"
    first, other = write_version(data, "v1", 2001, 1), write_version(data, "v1", 2002, 1)
    broken = data / "v2" / "tas_2001.nc"
    broken.parent.mkdir()
    broken.write_bytes(b"no netCDF file")
    done = sync(tmp_path, on_error="collect")
    assert set(done.added) == {first.as_uri(), other.as_uri()}
    assert [lost.url for lost in done.failed] == [broken.as_uri()]
    xr.testing.assert_identical(read(tmp_path), expect(first, other))


def test_a_name_is_the_coordinate_of_files_without_one(tmp_path: Path) -> None:
    for number in (2, 10, 1):
        path = tmp_path / f"r{number}.nc"
        xr.Dataset({"t": ("x", [float(number)] * 3)}).to_netcdf(path)
        done = virtualds.sync(
            f"{tmp_path}/r{{member:d}}.nc", tmp_path / "set.zarr", concat_dim="member", settle=0
        )
        assert done.added == (path.as_uri(),)
    found = read(tmp_path)
    assert found["member"].values.tolist() == [1, 2, 10]
    assert found["t"].values[:, 0].tolist() == [1.0, 2.0, 10.0]


def test_links_are_data_of_their_own_where_their_names_are_a_coordinate(tmp_path: Path) -> None:
    path = tmp_path / "r1.nc"
    xr.Dataset({"t": ("x", [1.0, 2.0])}).to_netcdf(path)
    os.link(path, tmp_path / "r2.nc")
    done = virtualds.sync(
        f"{tmp_path}/r{{member:d}}.nc", tmp_path / "set.zarr", concat_dim="member", settle=0
    )
    assert (len(done.added), done.repeated) == (2, ())


def test_newest_needs_a_name_of_the_pattern(tmp_path: Path) -> None:
    write_version(tmp_path / "data", "v1", 2001, 1)
    with pytest.raises(ValueError, match=r"newest: the pattern has no \{revision\}"):
        sync(tmp_path, newest="revision")
