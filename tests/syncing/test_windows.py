"""Of files that overlap the best are used, whenever they come; a set has what its window has."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cftime
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from daily_files import days, opened, written
from effort import times
from hypothesis import given, settings
from hypothesis import strategies as st

import virtualds
from virtualds import CombineError, SyncReport
from virtualds.syncing.notes import Window

TARGETS = ("refs.json", "refs.parquet", "refs.zarr")
Write = Callable[..., Path]


@pytest.fixture
def write(folder: Path) -> Write:
    clock = iter(range(1_000_000_000, 2_000_000_000))

    def write(name: str, first: int, count: int = 4, seed: int | None = None) -> Path:
        path = written(folder / "data", name, days(first, count, seed))
        os.utime(path, (next(clock),) * 2)
        return path

    return write


def run(target: Any = "refs.zarr", **how: Any) -> SyncReport:
    how = {"concat_dim": "time", "on_removed": "drop", **how}
    return virtualds.sync("data/*.nc", target, **how)


def names(urls: Any) -> list[str]:
    return [url.rpartition("/")[2].removesuffix(".nc") for url in urls]


def read_archive(overlap: str = "last") -> xr.Dataset:
    """What the files hold, each day from the first or last that has it."""
    paths = sorted(Path("data").glob("*.nc"))
    files = [xr.load_dataset(path, engine="netcdf4") for path in paths]
    files = files if overlap == "first" else files[::-1]
    found = files[0]
    for file in files[1:]:
        fresh = file.isel(time=~file.indexes["time"].isin(found.indexes["time"]))
        found = xr.concat([found, fresh], "time", data_vars="minimal")
    return found.sortby("time")


def assert_equal(target: str, expected: xr.Dataset) -> None:
    xr.testing.assert_equal(opened(target).load()[["t", "n"]], expected[["t", "n"]])


# ---------------------------------------------------------------------- overlaps


@pytest.mark.parametrize("target", TARGETS)
def test_a_later_file_takes_its_days_from_earlier_ones(target: str, write: Write) -> None:
    write("00", 0)
    write("02", 8)
    run(target, overlap="last")
    write("01", 4, 8, seed=9)
    report = run(target, overlap="last")
    # of the last file nothing is taken, since it comes later
    assert (names(report.added), names(report.shadowed)) == (["01"], [])
    assert_equal(target, read_archive())


def test_a_file_of_which_nothing_is_left_is_shadowed_and_comes_back(write: Write) -> None:
    write("00", 0)
    write("01", 4)
    run(overlap="last")
    whole = write("02", 2, 6, seed=9)
    report = run(overlap="last")
    assert (names(report.shadowed), names(report.dropped)) == (["01"], ["01"])
    again = run(overlap="last")
    assert (again.is_written, again.unchanged, names(again.shadowed)) == (False, 2, ["01"])
    whole.unlink()
    report = run(overlap="last")
    assert (names(report.dropped), names(report.added), report.shadowed) == (["02"], ["01"], ())
    assert_equal("refs.zarr", read_archive())


def test_a_file_that_replaces_the_whole_set_shadows_the_others(write: Write) -> None:
    write("01", 4)
    run(overlap="first")
    write("00", 2, 6, seed=9)
    report = run(overlap="first")
    assert (names(report.added), names(report.dropped)) == (["00"], ["01"])
    assert names(report.shadowed) == ["01"]
    report = run(overlap="first", preprocess=lambda dataset: pytest.fail("a file was opened"))
    assert (names(report.shadowed), report.is_written) == (["01"], False)
    assert_equal("refs.zarr", read_archive("first"))


def test_what_shadowed_a_file_may_go_beyond_the_window(write: Write) -> None:
    better = write("00", 0)
    write("01", 0, seed=5)
    write("02", 4)
    how: Any = {"overlap": "first"}
    report = run(**how, keep={"time": 4})
    assert (names(report.outside), names(report.shadowed)) == (["00"], ["01"])
    better.unlink()
    assert not run(**how, keep={"time": 4}).is_written
    assert names(run(**how, keep={"time": 6}).added) == ["01"]
    assert_equal("refs.zarr", read_archive().isel(time=slice(-6, None)))


def test_a_file_that_is_partly_too_old_comes_back_for_the_rest(write: Write) -> None:
    write("0", 3, 4)
    write("1", 7, 2)
    path = write("2", 5, 2)
    # the first half of the first file is too old, and the last one has the other
    report = run(overlap="last", keep={"time": 4})
    assert names(report.outside) == ["0"]
    path.unlink()
    assert names(run(overlap="last", keep={"time": 4}).added) == ["0"]
    assert_equal("refs.zarr", read_archive().isel(time=slice(-4, None)))


def test_a_grid_waits_for_the_only_file_that_has_it(write: Write) -> None:
    gone = write("00", 0)
    write("01", 4)
    run()
    gone.unlink()
    waiting = written(Path("data"), "01", days(4))
    with pytest.raises(CombineError, match="may still be written or cannot be opened"):
        run()
    os.utime(waiting, (7, 7))
    run()
    assert_equal("refs.zarr", read_archive())


def test_another_choice_between_files_is_one_change(write: Write) -> None:
    for number in range(3):
        write(f"{number}", 2 * number)
    for overlap in ("first", "last", "first"):
        assert run(overlap=overlap).is_written
        assert_equal("refs.zarr", read_archive(overlap))
        assert not run(overlap=overlap).is_written


def test_a_window_that_begins_earlier_in_a_file_is_a_change(write: Write) -> None:
    for number in range(3):
        write(f"{number}", 4 * number)
    run(keep={"time": 6})
    report = run(keep={"time": 7})
    assert (names(report.replaced), report.unchanged, report.is_written) == (["1"], 1, True)
    assert_equal("refs.zarr", read_archive().isel(time=slice(-7, None)))
    assert not run(keep={"time": 7}).is_written


def test_a_file_may_have_a_day_twice(write: Write) -> None:
    file = days(0)
    file = file.assign_coords(time=file["time"][[0, 1, 1, 3]].to_numpy())
    os.utime(written(Path("data"), "00", file), (1, 1))
    for name, first in (("01", 3), ("02", 5)):
        write(name, first)
        run(overlap="first")
    parts = [file, days(3).isel(time=slice(1, 4)), days(5).isel(time=slice(2, 4))]
    assert_equal("refs.zarr", xr.concat(parts, "time", data_vars="minimal"))


def test_files_that_are_gone_and_too_old_are_not_kept(write: Write) -> None:
    paths = [write(f"{number}", 4 * number) for number in range(2)]
    how: Any = {"keep": {"time": 8}, "on_removed": "keep"}
    run(**how)
    paths[0].unlink()
    assert names(run(**how).kept) == ["0"]
    write("2", 8)
    report = run(**how)
    assert (names(report.dropped), report.kept) == (["0"], ())
    # and a file that was too old, and still is, was not in the set
    write("3", 12)
    run(**how)
    report = run(**how | {"keep": {"time": 9}})
    assert (names(report.added), report.dropped) == (["1"], ())
    write("4", 16)
    assert names(run(**how | {"keep": {"time": 4}}).dropped) == ["1", "2", "3"]
    report = run(**how | {"keep": {"time": 5}})
    assert (names(report.added), report.dropped) == (["3"], ())


@pytest.mark.parametrize("loaded", [[], ["n"]])
def test_days_are_chosen_whichever_variables_are_loaded(loaded: list[str], write: Write) -> None:
    how: Any = {"overlap": "last", "loadable_variables": loaded}
    write("00", 0)
    write("01", 2, seed=1)
    run(**how)
    assert_equal("refs.zarr", read_archive())
    write("02", 4, seed=2)
    run(**how)
    assert_equal("refs.zarr", read_archive())


@pytest.mark.parametrize("overlap", ["first", "last"])
def test_what_a_set_holds_itself_is_no_choice(overlap: str, write: Write) -> None:
    how: Any = {"overlap": overlap, "loadable_variables": ["t", "n", "time"]}
    write("00", 0)
    write("01", 2, seed=1)
    run(**how)
    assert_equal("refs.zarr", read_archive(overlap))
    assert not run(**how).is_written
    write("02", 10)
    run(**how)
    assert_equal("refs.zarr", read_archive(overlap))
    write("03", 4, seed=3)
    with pytest.raises(CombineError, match="does not note from which file they are"):
        run(**how)


def test_a_file_that_others_do_not_touch_is_not_opened_again(write: Write) -> None:
    for number in range(3):
        write(f"{number}", 10 * number)
        write(f"{number}-", 10 * number, seed=5)
    run(overlap="last")
    write("1", 10, seed=8)
    seen: list[str] = []

    def note(dataset: xr.Dataset) -> xr.Dataset:
        seen.append(dataset.encoding["source"])
        return dataset

    report = run(overlap="last", preprocess=note)
    assert names(report.replaced) == ["1"]
    # the file before it, of which nothing is used, might have days that it has no more
    assert sorted({*names(seen)}) == ["1", "1-"]
    assert_equal("refs.zarr", read_archive())


def test_a_changed_file_may_have_other_days(write: Write) -> None:
    write("00", 0)
    write("01", 2, 6, seed=1)
    run(overlap="last")
    # the first file is opened again, too, where days of it are used that were not
    for first, count, others in ((4, 4, ["00"]), (0, 3, []), (3, 9, ["00"])):
        write("01", first, count, seed=first)
        assert names(run(overlap="last").replaced) == [*others, "01"]
        assert_equal("refs.zarr", read_archive())


@pytest.mark.full
@settings(max_examples=times(5), deadline=None)
@given(data=st.data(), overlap=st.sampled_from(["first", "last"]))
def test_whatever_files_come_and_go_a_set_is_as_if_made_anew(data: Any, overlap: str) -> None:
    import tempfile

    clock = 1_000_000_000
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        Path("data").mkdir()
        for _ in range(5):
            for _ in range(data.draw(st.integers(1, 2))):
                name = data.draw(st.sampled_from("abcd"))
                path = Path("data", f"{name}.nc")
                if (
                    path.exists()
                    and len(list(Path("data").iterdir())) > 1
                    and data.draw(st.booleans())
                ):
                    path.unlink()
                    continue
                first, count = data.draw(st.integers(0, 9)), data.draw(st.integers(2, 6))
                written(Path("data"), name, days(first, count, data.draw(st.integers(0, 9))))
                clock += 1
                os.utime(path, (clock,) * 2)
            run(overlap=overlap)
            assert_equal("refs.zarr", read_archive(overlap))
            assert not run(overlap=overlap).is_written


def test_swaths_of_other_places_come_one_by_one(folder: Path) -> None:
    def granule(number: int) -> None:
        place = {"lat": (("y", "x"), np.full((2, 3), number + 0.5))}
        dataset = xr.Dataset({"v": (("y", "x"), np.full((2, 3), float(number)))}, place)
        dataset.to_netcdf(f"data/g_{number}.nc", engine="netcdf4")

    how: Any = {"concat_dim": "orbit", "coords": "different", "settle": 0}
    for numbers in ([1, 2], [3], [4, 5]):
        for number in numbers:
            granule(number)
        virtualds.sync("data/g_{orbit:d}.nc", "refs.zarr", **how)
    granule(2)
    os.utime("data/g_2.nc", (1, 1))
    assert names(virtualds.sync("data/g_{orbit:d}.nc", "refs.zarr", **how).replaced) == ["g_2"]
    found = opened("refs.zarr").load()
    assert found.lat.dims == ("orbit", "y", "x")
    np.testing.assert_array_equal(found.lat[:, 0, 0], found.orbit + 0.5)
    np.testing.assert_array_equal(found.v[:, 0, 0], found.orbit)


@pytest.mark.parametrize("way", ["renamed", "converted", "built"])
def test_without_notes_all_files_are_opened_once(way: str, write: Write) -> None:
    write("00", 0)
    write("01", 2, seed=3)
    if way == "built":
        files = virtualds.open_virtual_mfdataset(
            "data/*.nc", combine="nested", concat_dim="time", overlap="last"
        )
        files.virtual.to_manifest("refs.zarr")
    else:
        run(overlap="last")
    if way == "renamed":
        os.rename("data", "moved")
        os.symlink("moved", "data")
        there = Path.cwd().as_uri()
        virtualds.rename_paths("refs.zarr", {f"{there}/data": f"{there}/moved"})
        os.unlink("data")
        os.rename("moved", "data")
        virtualds.rename_paths("refs.zarr", {f"{there}/moved": f"{there}/data"})
    if way == "converted":
        virtualds.convert("refs.zarr", "other.zarr")
        os.rename("other.zarr", "refs.zarr/../set.zarr")
    target = "set.zarr" if way == "converted" else "refs.zarr"
    run(target, overlap="last")
    assert not run(target, overlap="last").is_written
    Path("data/01.nc").unlink()
    run(target, overlap="last")
    assert_equal(target, read_archive())


# ---------------------------------------------------------------------- windows


@pytest.mark.parametrize("target", TARGETS)
def test_a_window_moves_with_what_comes(target: str, write: Write) -> None:
    how: Any = {"keep": {"time": 8}}
    for number in range(3):
        write(f"{number:02}", 4 * number)
    report = run(target, **how)
    assert (names(report.added), names(report.outside)) == (["01", "02"], ["00"])
    assert not run(target, **how).is_written
    write("03", 12)
    report = run(target, **how)
    assert (names(report.added), names(report.dropped)) == (["03"], ["01"])
    assert (names(report.outside), report.unchanged) == (["00", "01"], 1)
    assert_equal(target, read_archive().isel(time=slice(-8, None)))


def test_a_duration_does_not_have_its_beginning(write: Write) -> None:
    for number in range(3):
        write(f"{number:02}", 4 * number)
    run(keep={"time": "P6D"})
    assert_equal("refs.zarr", read_archive().isel(time=slice(-6, None)))


def test_an_older_file_is_left_out_and_opened_once(write: Write) -> None:
    write("05", 20)
    write("06", 24)
    how: Any = {"keep": {"time": "P8D"}}
    run(**how)
    write("00", 0)
    assert names(run(**how).outside) == ["00"]
    before = Path("refs.zarr/zarr.json").read_bytes()
    report = run(**how, preprocess=lambda dataset: pytest.fail("a file was opened"))
    assert (names(report.outside), report.unchanged) == (["00"], 2)
    assert Path("refs.zarr/zarr.json").read_bytes() == before


def test_what_left_the_window_comes_back_with_it(write: Write) -> None:
    for number in range(4):
        last = write(f"{number:02}", 4 * number)
    run(keep={"time": 6})
    # a longer window
    report = run(keep={"time": 10})
    assert names(report.added) == ["01"]
    assert_equal("refs.zarr", read_archive().isel(time=slice(-10, None)))
    # the last file is withdrawn
    last.unlink()
    report = run(keep={"time": 10})
    assert (names(report.added), names(report.dropped)) == (["00"], ["03"])
    assert_equal("refs.zarr", read_archive().isel(time=slice(-10, None)))
    # and no window
    run()
    assert_equal("refs.zarr", read_archive())


def test_only_as_many_files_come_back_as_the_window_needs(write: Write) -> None:
    for number in range(9):
        last = write(f"{number:02}", 4 * number)
    run(keep={"time": 8})
    last.unlink()
    seen: list[str] = []

    def note(dataset: xr.Dataset) -> xr.Dataset:
        seen.append(dataset.encoding["source"])
        return dataset

    report = run(keep={"time": 8}, preprocess=note)
    assert (names(report.added), names(report.dropped)) == (["06"], ["08"])
    # each has at least one of the four days that lack
    assert min(names(seen)) == "03"
    assert_equal("refs.zarr", read_archive().isel(time=slice(-8, None)))


def test_files_that_the_archive_deletes_beyond_the_window_are_no_error(write: Write) -> None:
    paths = [write(f"{number:02}", 4 * number) for number in range(4)]
    run(keep={"time": 8})
    for path in paths[:2]:
        path.unlink()
    report = run(keep={"time": 8}, on_removed="error")
    assert (report.is_written, report.outside, report.unchanged) == (False, (), 2)


def test_a_window_of_a_grid_leaves_whole_rows(folder: Path) -> None:
    def cell(member: str, number: int) -> None:
        dataset = days(4 * number)[["t"]] + len(member)
        dataset.to_netcdf(f"data/{member}_{number:02}.nc", engine="netcdf4")

    for number in range(3):
        cell("r1", number)
    cell("r10", 0)
    cell("r10", 2)
    how: Any = {"concat_dim": ["member", "time"], "settle": 0, "keep": {"time": 8}}
    report = virtualds.sync("data/{member}_*.nc", "refs.zarr", **how)
    assert names(report.outside) == ["r10_00", "r1_00"]
    found = opened("refs.zarr").load()
    assert (
        found.sizes["time"] == 8
        and int(found["t"].sel(member="r10").isnull().all("lat").all("lon").sum()) == 4
    )
    # a member of which nothing is in the window has no row
    cell("r100", 0)
    virtualds.sync("data/{member}_*.nc", "refs.zarr", **how)
    assert sorted(opened("refs.zarr").member.values) == ["r1", "r10"]
    cell("r1", 3)
    report = virtualds.sync("data/{member}_*.nc", "refs.zarr", **how)
    assert (names(report.added), names(report.dropped)) == (["r1_03"], ["r1_01"])


def test_times_of_any_calendar_and_numbers_have_a_window() -> None:
    def cutoff(keep: Any, index: pd.Index[Any]) -> float:
        return Window.of({"x": keep}, ["x"]).find_cutoffs({"x": [index]})["x"]

    noleap = xr.date_range("2000-01-01", periods=4, freq="D", calendar="noleap", use_cftime=True)
    second = cftime.date2num(noleap[1], "microseconds since 1970-01-01", calendar="noleap")
    assert cutoff("2D", noleap) == second + 1
    assert cutoff(2, pd.Index([5.0, 1.0, 3.0])) == 3
    assert cutoff("12h", pd.to_timedelta([0, 6, 12, 18], "h")) == 6 * 3600 * 10**6 + 1


@pytest.mark.parametrize(
    ("keep", "error", "said"),
    [
        ("P2D", TypeError, "give a dict"),
        ({"lat": 3}, ValueError, "joined along .'time'., not along 'lat'"),
        ({"time": 0}, ValueError, "0 is not the length of a window"),
        ({"time": "two days"}, ValueError, "such as 'P2D'"),
        ({"time": True}, ValueError, "True is not"),
    ],
)
def test_a_window_that_cannot_be_is_refused(keep: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        virtualds.sync("data/*.nc", "refs.zarr", concat_dim="time", keep=keep)


def test_a_duration_needs_times(folder: Path) -> None:
    for number in range(2):
        dataset = xr.Dataset({"t": ("x", np.arange(3.0))}, {"x": 3 * number + np.arange(3)})
        dataset.to_netcdf(f"data/{number}.nc", engine="netcdf4")
    with pytest.raises(CombineError, match="the values of 'x' are not times"):
        run(concat_dim="x", keep={"x": "P1D"}, settle=0)


@pytest.mark.parametrize("how", [{"keep": {"time": 6}}, {"overlap": "last"}, {}])
@pytest.mark.parametrize("what", ["grown", "gone"])
def test_dates_of_bounds_are_not_read_from_a_file_that_is_not_as_it_was(
    what: str, how: dict[str, Any], folder: Path
) -> None:
    clock = iter(range(1_000_000_000, 2_000_000_000))

    def write(name: str, first: str, count: int) -> None:
        time = pd.date_range(first, periods=count)
        ends = time.values[:, None] + np.array([0, 1]) * np.timedelta64(1, "D")
        ds = xr.Dataset(
            {"t": ("time", np.arange(count) + 0.5), "time_bnds": (("time", "nv"), ends)},
            {"time": ("time", time, {"bounds": "time_bnds"})},
        )
        ds["time"].encoding["units"] = "days since 2000-01-01"
        ds.to_netcdf(f"data/{name}.nc", engine="netcdf4", unlimited_dims=["time"])
        os.utime(f"data/{name}.nc", (next(clock),) * 2)

    write("a", "2000-01-01", 8)
    write("b", "2000-01-06", 4)
    if not how or "keep" in how:
        write("b", "2000-01-09", 4)
    write("c", "2000-01-13", 3)
    run(**how)
    if what == "gone":
        os.remove("data/c.nc")
    else:
        write("c", "2000-01-13", 5)
    run(**how)
    found = opened("refs.zarr").load()
    files = [xr.load_dataset(path, engine="netcdf4") for path in sorted(Path("data").glob("*.nc"))]
    last = files[-1].isel(time=slice(-3, None))
    assert found["time"].values[-1] == last["time"].values[-1]
    for name in ("t", "time_bnds"):
        kept = found[name].isel(time=slice(-3, None))
        np.testing.assert_array_equal(kept.values, last[name].values)
    virtualds.drop_sources("refs.zarr", [Path(files[-1].encoding["source"]).as_uri()])


@pytest.mark.parametrize("files", ["", "bm90IGd6aXA=", 5, None])
def test_damaged_notes_only_open_files_again(files: Any, write: Write) -> None:
    import json

    write("00", 0)
    write("01", 4)
    run(keep={"time": 4})
    root = json.loads(Path("refs.zarr/zarr.json").read_text())
    root["attributes"]["virtualds"]["groups"][""]["sync"]["files"] = files
    Path("refs.zarr/zarr.json").write_text(json.dumps(root))
    report = run(keep={"time": 4})
    assert (names(report.outside), report.unchanged, report.is_written) == (["00"], 1, False)
    assert_equal("refs.zarr", read_archive().isel(time=slice(-4, None)))
