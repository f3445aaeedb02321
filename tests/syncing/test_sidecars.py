"""An archive may be followed by the files that describe it: either's change is a change."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import xarray as xr
from daily_files import days, native, opened, written
from grib_messages import message, write_wgrib2_index
from sidecars import write_sidecar

import virtualds
from virtualds import SyncReport

GRIB: dict[str, Any] = {"concat_dim": ["time", "step"], "settle": 0, "on_removed": "drop"}


def names(urls: Any) -> list[str]:
    return sorted(url.rpartition("/")[2] for url in urls)


# ---------------------------------------------------------------------- GRIB

Cell = Callable[..., Path]


@pytest.fixture
def cell(folder: Path) -> Cell:
    """Write the file of a run and a step, with its index; the first is the template of all."""
    clock = iter(range(1_000_000_000, 2_000_000_000))

    def cell(run: int, step: int, seed: int = 0, where: str = "data") -> Path:
        path = folder / where / f"t{run:02}.f{step:03}"
        time: dict[str, Any] = {"dataDate": 20240102, "dataTime": 100 * run, "step": step}
        keys = {"Ni": 12, "Nj": 7, "shortName": "t", "typeOfLevel": "isobaricInhPa", **time}
        parts = [
            message("regular_ll_pl_grib2", 10 * seed + n, level=850 + n, **keys) for n in (0, 1)
        ]
        path.write_bytes(b"".join(parts))
        for made in (path, write_wgrib2_index(path)):
            os.utime(made, (next(clock),) * 2)
        return path

    (folder / "template").mkdir()
    cell(0, 3, where="template")
    return cell


def sync_runs(**how: Any) -> SyncReport:
    options = {"template": "template/t00.f003"}
    return virtualds.sync("data/*.idx", "refs.zarr", **{**GRIB, **how}, parser_options=options)


def assert_holds_runs() -> None:
    found = opened("refs.zarr").load()
    for path in Path("data").glob("t??.f???"):
        expected = xr.load_dataset(path, engine="virtual")
        one = found.sel(time=expected.time, step=expected.step)
        xr.testing.assert_equal(one.drop_vars("valid_time"), expected.drop_vars("valid_time"))
        assert one.valid_time == expected.valid_time


def test_a_run_of_forecasts_comes_lead_by_lead(cell: Cell) -> None:
    for run, step in ((0, 3), (0, 6), (6, 3)):
        cell(run, step)
    assert len(sync_runs().added) == 3
    assert opened("refs.zarr").t.isel(time=1, step=1).isnull().all()
    assert not sync_runs().is_written
    # a run of its own, whose valid_time only has the axis of its steps
    for step in (3, 6):
        cell(12, step)
    assert names(sync_runs().added) == ["t12.f003", "t12.f006"]
    cell(6, 6)
    assert names(sync_runs().added) == ["t06.f006"]
    assert_holds_runs()


def test_a_change_of_an_index_or_of_its_file_is_a_change(cell: Cell) -> None:
    for step in (3, 6):
        cell(0, step)
    sync_runs()
    path = cell(0, 6, seed=5)
    assert names(sync_runs().replaced) == ["t00.f006"]
    assert_holds_runs()
    for changed in (path, Path(f"{path}.idx")):
        os.utime(changed, (5, 5))
        assert names(sync_runs().replaced) == ["t00.f006"]
        assert not sync_runs().is_written


def test_an_index_or_a_file_that_goes_takes_its_cell(cell: Cell) -> None:
    paths = [cell(0, step) for step in (3, 6, 9)]
    sync_runs()
    Path(f"{paths[1]}.idx").unlink()
    assert names(sync_runs().dropped) == ["t00.f006"]
    # without its file, an index describes nothing
    paths[2].unlink()
    assert names(sync_runs().dropped) == ["t00.f009"]
    paths[1].unlink()
    assert_holds_runs()
    assert opened("refs.zarr").sizes["step"] == 1


def test_a_window_of_runs_by_their_indexes(cell: Cell) -> None:
    for run in (0, 6, 12):
        for step in (3, 6):
            cell(run, step)
    how: Any = {"keep": {"time": "PT12H"}}
    assert len(sync_runs(**how).outside) == 2
    report = sync_runs(**how)
    assert (report.is_written, report.unchanged, len(report.outside)) == (False, 4, 2)
    cell(18, 3)
    report = sync_runs(**how)
    assert (names(report.added), names(report.dropped)) == (["t18.f003"], ["t06.f003", "t06.f006"])
    assert opened("refs.zarr").sizes["time"] == 2


def test_names_of_a_pattern_are_those_of_the_index(cell: Cell) -> None:
    for run in (0, 6):
        cell(run, 3)
    how: Any = {"tree": "/{run}", "parser_options": {"template": "template/t00.f003"}}
    made = [virtualds.sync("data/{run}.*.idx", "tree.zarr", **GRIB, **how) for _ in range(2)]
    assert [len(one.added) for one in made] == [2, 0]
    assert not made[1].is_written
    assert set(xr.open_datatree("tree.zarr", engine="virtual").children) == {"t00", "t06"}


# ---------------------------------------------------------------------- DMR++


def describe_days(number: int, seed: int = 0) -> Path:
    path = written(Path("data"), f"{number}", days(4 * number, seed=seed))
    for made in (path, write_sidecar(path)):
        os.utime(made, (number + 1,) * 2)
    return path


def sync_days() -> SyncReport:
    return virtualds.sync("data/*.dmrpp", "days.zarr", concat_dim="time", on_removed="drop")


def test_granules_are_followed_by_their_sidecars(folder: Path) -> None:
    paths = [describe_days(number) for number in range(2)]
    assert names(sync_days().added) == ["0.nc", "1.nc"]
    assert not sync_days().is_written
    paths.append(describe_days(2))
    assert names(sync_days().added) == ["2.nc"]
    xr.testing.assert_equal(
        opened("days.zarr").load()[["t", "n"]], native(paths)[["t", "n"]].load()
    )
    # a sidecar does not say which state of its file it describes
    os.utime(paths[0], (99, 99))
    assert names(sync_days().replaced) == ["0.nc"]
    assert not sync_days().is_written
    os.utime(f"{paths[1]}.dmrpp", (99, 99))
    assert names(sync_days().replaced) == ["1.nc"]
    assert not sync_days().is_written
