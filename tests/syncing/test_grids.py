"""A set of a grid of files follows them: cells that come late, change, move and go."""

from __future__ import annotations

import os
import random
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from click.testing import CliRunner
from effort import times

import virtualds
from virtualds_cli.program import main

CLOCK = iter(range(1_000_000_000, 2_000_000_000))
"""Times of files, so that each change is one."""


def make_cell(year: int, months: int, seed: int) -> xr.Dataset:
    """What one file holds: some months of a year; all members have the same bounds."""
    time = pd.date_range(f"{year}-01-01", periods=months, freq="MS")
    values = np.random.default_rng(seed).normal(size=(months, 3, 4)).round(2)
    bounds = np.stack([time, time + pd.Timedelta(days=28)], axis=1)
    return xr.Dataset(
        {"tas": (("time", "lat", "lon"), values), "time_bnds": (("time", "nv"), bounds)},
        {"time": ("time", time, {"bounds": "time_bnds"}), "lat": [-60.0, 0.0, 60.0]},
    )


def write_cell(folder: Path, member: str, year: int, months: int = 3, seed: int = 0) -> Path:
    path = folder / f"{member}_{year}.nc"
    stored = {"tas": {"zlib": True, "chunksizes": (1, 3, 4)}}
    stored |= {n: {"units": "days since 2000-01-01", "dtype": "i4"} for n in ("time",)}
    make_cell(year, months, seed).to_netcdf(path, encoding=stored)
    os.utime(path, (next(CLOCK),) * 2)
    return path


def read_natively(folder: Path) -> xr.Dataset:
    """The product of members and times; a cell without a file is missing."""
    opened = {tuple(p.stem.split("_")): xr.load_dataset(p) for p in sorted(folder.glob("*.nc"))}
    members = sorted({member for member, _ in opened})
    found = []
    for member in members:
        parts = [opened[key] for key in sorted(opened) if key[0] == member]
        row = xr.concat(parts, "time", data_vars="minimal", coords="minimal", compat="override")
        found.append(row.expand_dims(member=[member]))
    rows = [row["tas"] for row in found]
    tas = xr.concat(rows, "member", join="outer").sortby("time")
    times = np.concatenate([each["time"].values for each in opened.values()])
    bounds = np.concatenate([each["time_bnds"].values for each in opened.values()])
    _, first = np.unique(times, return_index=True)
    return tas.to_dataset().assign(time_bnds=(("time", "nv"), bounds[first]))


def sync(folder: Path, target: Path, **how: object) -> virtualds.SyncReport:
    how = {"settle": 0, "concat_dim": ["member", "time"], "on_removed": "drop"} | how
    return virtualds.sync(f"{folder}/{{member}}_{{year}}.nc", target, **how)


def check(folder: Path, target: Path) -> None:
    found = xr.open_dataset(target, engine="virtual").load()
    wanted = read_natively(folder)
    assert found["member"].values.tolist() == wanted["member"].values.tolist()
    xr.testing.assert_equal(found["tas"], wanted["tas"].transpose(*found["tas"].dims))
    np.testing.assert_array_equal(found["time_bnds"].values, wanted["time_bnds"].values)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "data"
    made.mkdir()
    return made


@pytest.fixture(params=["set.zarr", "set.json"])
def target(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    return tmp_path / request.param


def test_cells_come_in_any_order_and_go_again(folder: Path, target: Path) -> None:
    write_cell(folder, "r1", 2002, seed=1)
    write_cell(folder, "r2", 2001, seed=2)
    assert len(sync(folder, target).added) == 2
    check(folder, target)
    assert not sync(folder, target).is_written
    # a cell that was missing, a new member, and new times on both sides
    for number, (member, year) in enumerate(
        [("r1", 2001), ("r3", 2002), ("r1", 2000), ("r2", 2003)]
    ):
        path = write_cell(folder, member, year, seed=10 + number)
        done = sync(folder, target)
        assert (done.added, done.replaced, done.dropped) == ((path.as_uri(),), (), ())
        check(folder, target)
    # one changes in its place, one goes from a row that stays, one is the last of its member
    write_cell(folder, "r1", 2001, seed=77)
    (folder / "r1_2002.nc").unlink()
    (folder / "r3_2002.nc").unlink()
    done = sync(folder, target)
    assert (len(done.replaced), len(done.dropped)) == (1, 2)
    check(folder, target)
    assert not sync(folder, target).is_written


def test_a_changed_file_may_have_other_times(folder: Path, target: Path) -> None:
    for member in ("r1", "r2"):
        for year in (2001, 2002):
            write_cell(folder, member, year, seed=year)
    sync(folder, target)
    write_cell(folder, "r1", 2001, months=5, seed=5)
    sync(folder, target)
    check(folder, target)
    write_cell(folder, "r1", 2001, months=2, seed=6)
    sync(folder, target)
    check(folder, target)
    # nobody has the third month any more
    write_cell(folder, "r2", 2001, months=2, seed=7)
    sync(folder, target)
    check(folder, target)


@pytest.mark.parametrize("seed", range(times(3)))
def test_whatever_happens_the_set_holds_what_the_files_hold(
    folder: Path, tmp_path: Path, seed: int
) -> None:
    chance, target = random.Random(seed), tmp_path / "set.zarr"
    cells = [(member, year) for member in ("r1", "r2", "r3") for year in (2001, 2002, 2003)]
    write_cell(folder, *chance.choice(cells))
    sync(folder, target)
    for night in range(6):
        for member, year in chance.sample(cells, chance.randint(1, 3)):
            path = folder / f"{member}_{year}.nc"
            if path.exists() and len(list(folder.iterdir())) > 1 and chance.random() < 0.5:
                path.unlink()
            else:
                write_cell(folder, member, year, chance.randint(2, 4), chance.randint(0, 99))
        sync(folder, target)
        check(folder, target)
        assert not sync(folder, target).is_written, night


def test_tiles_with_coordinates_of_their_own_make_a_grid(tmp_path: Path) -> None:
    def write_tile(y: int, x: int) -> Path:
        data = np.arange(12.0).reshape(3, 4) + 100 * y + 10 * x
        coords = {"y": np.arange(3) + 3.0 * y, "x": np.arange(4) + 4.0 * x}
        path = tmp_path / f"tile_{y}_{x}.nc"
        xr.Dataset({"h": (("y", "x"), data)}, coords).to_netcdf(path)
        return path

    tiles = [(y, x) for y in range(3) for x in range(4)]
    random.Random(1).shuffle(tiles)
    for tile in tiles:
        write_tile(*tile)
        virtualds.sync(
            f"{tmp_path}/tile_*.nc", tmp_path / "set.zarr", concat_dim=["y", "x"], settle=0
        )
    found = xr.open_dataset(tmp_path / "set.zarr", engine="virtual").load()
    wanted = xr.open_mfdataset(f"{tmp_path}/tile_*.nc").load()
    xr.testing.assert_identical(found, wanted)


def test_grids_of_three_dimensions_share_variables_along_two(tmp_path: Path) -> None:
    def write_tile(time: int, y: int, x: int, seed: int) -> None:
        data = np.random.default_rng(seed).normal(size=(1, 2, 3))
        ground = np.arange(6.0).reshape(2, 3) + 100 * y + 10 * x
        path = tmp_path / f"{time}_{y}_{x}.nc"
        xr.Dataset(
            {"h": (("time", "y", "x"), data), "ground": (("y", "x"), ground)},
            {"time": [time], "y": np.arange(2) + 2 * y, "x": np.arange(3) + 3 * x},
        ).to_netcdf(path)
        os.utime(path, (next(CLOCK),) * 2)

    tiles = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (1, 1, 1), (0, 0, 1), (1, 0, 0), (1, 1, 0), (0, 1, 1)]
    for seed, tile in enumerate(tiles):
        write_tile(*tile, seed)
        virtualds.sync(
            f"{tmp_path}/*.nc", tmp_path / "set.zarr", concat_dim=["time", "y", "x"], settle=0
        )
    found = xr.open_dataset(tmp_path / "set.zarr", engine="virtual").load()
    wanted = xr.open_mfdataset(
        f"{tmp_path}/*.nc", data_vars="minimal", compat="no_conflicts", join="outer"
    )
    xr.testing.assert_equal(found, wanted.load())


@pytest.mark.parametrize("on_removed", ["keep", "drop"])
def test_what_files_have_that_cannot_be_read_now_stays_in_the_set(
    folder: Path, tmp_path: Path, on_removed: str
) -> None:
    target = tmp_path / "set.zarr"
    for year in (2001, 2002, 2003):
        write_cell(folder, "r1", year)
    sync(folder, target)
    saved = folder / "r1_2002.nc"
    content, times_of = saved.read_bytes(), saved.stat()
    if on_removed == "keep":
        saved.unlink()
    else:
        saved.write_bytes(b"broken")
    write_cell(folder, "r2", 2001)
    done = sync(folder, target, on_removed=on_removed, on_error="collect")
    assert len(done.added) == 1 and len(done.kept) + len(done.failed) == 1
    saved.write_bytes(content)
    os.utime(saved, ns=(times_of.st_atime_ns, times_of.st_mtime_ns))
    check(folder, target)


def test_values_that_the_set_holds_change_and_go_with_their_file(
    folder: Path, target: Path
) -> None:
    def write(member: str, year: int, value: float) -> Path:
        path = folder / f"{member}_{year}.nc"
        data = {"t": (("time", "x"), np.full((2, 3), value)), "k": ("time", [value, -value])}
        xr.Dataset(data, {"time": [year, year + 0.5]}).to_netcdf(path)
        os.utime(path, (next(CLOCK),) * 2)
        return path

    def find() -> list[list[float]]:
        found = xr.open_dataset(target, engine="virtual").load()
        np.testing.assert_array_equal(abs(found["k"]), found["t"][..., 0])
        return found["k"].fillna(0).values[:, ::2].tolist()  # type: ignore[no-any-return]

    how = {"loadable_variables": ["k", "time"], "data_vars": "all"}
    for value, (member, year) in enumerate(
        [("r1", 2001), ("r1", 2002), ("r2", 2001), ("r2", 2002)]
    ):
        path = write(member, year, value + 1.0)
    sync(folder, target, **how)
    assert find() == [[1.0, 2.0], [3.0, 4.0]]
    write("r2", 2001, 9.0)
    sync(folder, target, **how)
    assert find() == [[1.0, 2.0], [9.0, 4.0]]
    path.unlink()
    sync(folder, target, **how)
    assert find() == [[1.0, 2.0], [9.0, 0.0]]


def write_sparse(folder: Path, member: str, months: list[int]) -> Path:
    """Write a file of three months, of which it stores only some."""
    path = folder / f"{member}_2001.nc"
    path.unlink(missing_ok=True)
    with h5py.File(path, "w") as file:
        data = file.create_dataset("t", (3, 2), "f8", chunks=(1, 2), fillvalue=-1.0)
        data.attrs["_FillValue"] = np.array([-1.0])
        for month in months:
            data[month] = month
        file["time"] = np.arange(3.0)
        for number, name in enumerate(["time", "x"]):
            if name == "x":
                file["x"] = [0.0, 1.0]
            file[name].make_scale(name)
            data.dims[number].attach_scale(file[name])
    os.utime(path, (next(CLOCK),) * 2)
    return path


@pytest.mark.parametrize("stored", [[0, 2], [0], [1]])
def test_positions_stay_at_which_a_file_stores_no_chunks(
    folder: Path, target: Path, stored: list[int]
) -> None:
    first = write_sparse(folder, "r1", [0, 1, 2])
    write_sparse(folder, "r2", stored)
    sync(folder, target)

    def find() -> list[list[float]]:
        found: list[list[float]] = xr.open_dataset(target, engine="virtual")["t"][..., 0].values
        return np.nan_to_num(found, nan=-1.0).tolist()

    second = [float(month) if month in stored else -1.0 for month in range(3)]
    assert find() == [[0.0, 1.0, 2.0], second]
    # one that stores less than before has not moved
    write_sparse(folder, "r1", [1])
    sync(folder, target)
    assert find() == [[-1.0, 1.0, -1.0], second]
    first.unlink()
    sync(folder, target)
    assert find() == [second]


def test_runs_at_the_same_time_lose_nothing(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "set.zarr"
    write_cell(folder, "r1", 2001)
    sync(folder, target)
    for number, (member, year) in enumerate([("r1", 2002), ("r2", 2001), ("r2", 2002)]):
        write_cell(folder, member, year, seed=number)
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(lambda _: sync(folder, target), range(4)))
    assert sum(len(one.added) for one in done) == 3
    check(folder, target)


def test_two_files_of_one_cell_are_an_error_that_names_them(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "set.zarr"
    path = write_cell(folder, "r1", 2001)
    sync(folder, target)
    path.with_name("r1_2009.nc").write_bytes(path.read_bytes())
    with pytest.raises(
        virtualds.CombineError, match=r"r1_2009\.nc.*the set has this cell"
    ) as caught:
        sync(folder, target)
    assert "r1_2001.nc" in str(caught.value)
    check_before = xr.open_dataset(target, engine="virtual").load()
    assert check_before.sizes["time"] == 3


def test_a_new_file_does_not_take_the_cell_of_a_changed_one(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "set.zarr"
    write_cell(folder, "r1", 2001)
    sync(folder, target)
    write_cell(folder, "r1", 2001, seed=6).rename(folder / "r1_2009.nc")
    write_cell(folder, "r1", 2001, seed=5)
    with pytest.raises(virtualds.CombineError, match=r"r1_2009\.nc: the set has this cell"):
        sync(folder, target)


def test_dimensions_of_a_grid_are_names(folder: Path, tmp_path: Path) -> None:
    write_cell(folder, "r1", 2001)
    with pytest.raises(TypeError, match="give the name of a dimension"):
        sync(folder, tmp_path / "set.zarr", concat_dim=[1])


def test_the_command_line_keeps_a_grid(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "set.zarr"
    for member in ("r1", "r2"):
        write_cell(folder, member, 2001)
    dims = ["--concat-dim", "member", "--concat-dim", "time"]
    pattern = f"{folder}/{{member}}_{{year}}.nc"
    done = CliRunner().invoke(main, ["sync", pattern, str(target), *dims, "--settle", "0"])
    assert done.exit_code == 0, done.output
    check(folder, target)


def tree_of_bytes(target: Path) -> dict[str, bytes]:
    files = [target] if target.is_file() else target.rglob("*")
    return {str(path): path.read_bytes() for path in files if path.is_file()}


def test_a_dry_run_reports_what_the_run_would_do(folder: Path, target: Path) -> None:
    write_cell(folder, "r1", 2001)
    planned = sync(folder, target, dry_run=True)
    assert not target.exists()
    assert len(planned.added) == 1
    assert "a dry run, which wrote nothing" in str(planned)
    write_cell(folder, "r2", 2001)
    sync(folder, target)
    before = tree_of_bytes(target)
    write_cell(folder, "r1", 2001, seed=5)
    write_cell(folder, "r1", 2002)
    (folder / "r2_2001.nc").unlink()
    planned = sync(folder, target, dry_run=True)
    assert tree_of_bytes(target) == before
    assert not planned.is_written
    done = sync(folder, target)
    for name in ("added", "replaced", "dropped", "unchanged"):
        assert getattr(planned, name) == getattr(done, name)
    # what does not fit is an error in both
    xr.Dataset({"other": ("time", [1.0])}, {"time": [0]}).to_netcdf(folder / "r9_2001.nc")
    for dry_run in (True, False):
        with pytest.raises(virtualds.CombineError, match=r"do(es)? not fit"):
            sync(folder, target, dry_run=dry_run)


def test_whole_numbers_make_a_grid_as_long_as_it_is_complete(tmp_path: Path) -> None:
    def write(member: int, year: int) -> None:
        data = np.arange(6).reshape(2, 3) + 100 * member + year
        time = pd.date_range(f"{year}-01-01", periods=2)
        xr.Dataset({"n": (("time", "x"), data)}, {"time": time}).to_netcdf(
            tmp_path / f"r{member}_{year}.nc"
        )

    def keep() -> xr.Dataset:
        pattern, dims = f"{tmp_path}/r{{member:d}}_*.nc", ["member", "time"]
        virtualds.sync(pattern, tmp_path / "set.zarr", concat_dim=dims, settle=0)
        return xr.open_dataset(tmp_path / "set.zarr", engine="virtual").load()

    for member in (1, 2):
        write(member, 2001)
    keep()
    for member in (1, 2):
        write(member, 2002)
    found = keep()
    assert (found["n"].dtype, found["n"].shape) == (np.dtype("int64"), (2, 4, 3))
    assert found["n"].values[1, 2].tolist() == [2202, 2203, 2204]
    write(1, 2003)
    with pytest.raises(virtualds.CombineError, match=r"n: cells of the grid would be empty.*int64"):
        keep()


def test_values_of_another_type_are_named_with_what_to_do(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "set.zarr"
    for year, dtype in ((2001, "f4"), (2002, "f8")):
        made = xr.Dataset({"t": ("time", np.array([1, 2.5], dtype))}, {"time": [year, year + 0.5]})
        made.to_netcdf(folder / f"r1_{year}.nc")
        if dtype == "f4":
            sync(folder, target)
    said = r"r1_2002\.nc(?s:.*)t: its dtype is float32 in the set and float64(?s:.*)again"
    with pytest.raises(virtualds.CombineError, match=said):
        sync(folder, target)
    with pytest.raises(virtualds.CombineError, match=r"t: its values are in memory(?s:.*)again"):
        sync(folder, target, preprocess=lambda ds: ds.assign(t=ds["t"].load().astype("f4")))
    shutil.rmtree(target)
    sync(folder, target)
    found = xr.open_dataset(target, engine="virtual")["t"]
    assert (found.dtype, found.values.tolist()) == (np.dtype("f8"), [[1, 2.5, 1, 2.5]])


def test_a_file_may_be_copied_anew_every_night(tmp_path: Path) -> None:
    """Each night its references lie in a small table, of which the next one replaces the rows."""
    how = {"manifest": "parquet"}
    for member in ("r1", "r2", "r3"):
        write_cell(tmp_path, member, 2001, months=12)
    sync(tmp_path, tmp_path / "set.zarr", **how)
    for night in range(4):
        os.utime(tmp_path / "r1_2001.nc", (night, night))
        assert len(sync(tmp_path, tmp_path / "set.zarr").replaced) == 1
    check(tmp_path, tmp_path / "set.zarr")
