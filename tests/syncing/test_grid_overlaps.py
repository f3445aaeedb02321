"""A cell of a grid that several files have comes from the first or the last, in whatever order."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from effort import times
from nights import date, opened_below

import virtualds
import virtualds.syncing as sync_module
from virtualds import CombineError

WIDTH = 3


@dataclass
class Cells:
    """Files that have some members and times each, and the set that follows them."""

    folder: Path
    overlap: str = "last"
    files: dict[str, xr.Dataset] = field(default_factory=dict)
    written: int = 0

    def write(self, name: str, members: Iterable[int], days: Iterable[int], **how: Any) -> Path:
        """Write a file whose values no other has; ``missing`` days have no chunk."""
        self.written += 1
        members, days = list(members), list(days)
        values = np.random.default_rng(self.written).normal(size=(len(members), len(days), WIDTH))
        for day in how.get("missing", ()):
            values[:, days.index(day)] = np.nan
        ds = xr.Dataset(
            {
                "t": (("member", "time", "x"), values.astype("f4")),
                "mean": (("member", "time"), values.mean(axis=-1)),
                "bounds": (("time", "side"), np.array([[day, day + 1.0] for day in days])),
            },
            {"member": members, "time": days, "x": range(WIDTH)},
        )
        stored = {"_FillValue": np.float32(np.nan), "zlib": True}
        stored["chunksizes"] = (1, min(how.get("chunk", 2), len(days)), WIDTH)
        if how.get("missing"):
            write_sparsely(self.folder / f"{name}.nc", ds, how["missing"])
        else:
            ds.to_netcdf(self.folder / f"{name}.nc", engine="netcdf4", encoding={"t": stored})
        self.files[name] = ds
        return date(self.folder / f"{name}.nc")

    def remove(self, name: str) -> None:
        (self.folder / f"{name}.nc").unlink()
        del self.files[name]

    def sync(self, **how: Any) -> virtualds.SyncReport:
        given = {"concat_dim": ["member", "time"], "overlap": self.overlap, "on_removed": "drop"}
        pattern, target = f"{self.folder}/*.nc", self.folder / "set.zarr"
        return virtualds.sync(pattern, target, **{"settle": 0, **given, **how})

    def check(self) -> xr.Dataset:
        """The set has each cell from the file that comes first or last; none has it from others."""
        names = sorted(self.files, reverse=self.overlap == "first")
        cells: dict[tuple[int, int], tuple[Any, Any]] = {}
        for ds in map(self.files.__getitem__, names):
            for m, member in enumerate(ds["member"].values.tolist()):
                for n, day in enumerate(ds["time"].values.tolist()):
                    cells[member, day] = ds["t"].values[m, n], ds["mean"].values[m, n]
        with xr.open_dataset(self.folder / "set.zarr", engine="virtual") as opened:
            found = opened.load()
        members, days = (sorted({key[n] for key in cells}) for n in range(2))
        assert sorted(found["member"].values.tolist()) == members
        assert sorted(found["time"].values.tolist()) == days
        nothing = np.full(WIDTH, np.nan, "f4"), np.nan
        for member in members:
            for day in days:
                cell = found.sel(member=member, time=day)
                t, mean = cells.get((member, day), nothing)
                assert cell["t"].values.tobytes() == t.tobytes(), (member, day)
                np.testing.assert_array_equal(cell["mean"].values, mean)
                assert cell["bounds"].values.tolist() == [day, day + 1.0]
        return found


@pytest.fixture
def cells(tmp_path: Path) -> Cells:
    return Cells(tmp_path)


def names(urls: Iterable[str]) -> list[str]:
    return [Path(url).stem for url in urls]


def test_a_later_file_takes_cells_in_the_middle_of_chunks(cells: Cells) -> None:
    cells.write("run1", [1, 2], range(6), chunk=6)
    cells.sync()
    # started again on the fourth day, one member after the other
    cells.write("run2_1", [1], range(3, 9), chunk=6)
    assert names(cells.sync().added) == ["run2_1"]
    cells.check()
    cells.write("run2_2", [2], range(3, 9), chunk=6)
    cells.sync()
    cells.check()
    assert not cells.sync().is_written


def test_what_a_file_lost_comes_back_when_the_other_is_withdrawn(cells: Cells) -> None:
    cells.write("run1", [1, 2], range(4))
    cells.write("run2", [1], range(2, 6))
    cells.write("run3", [1], range(2, 6))
    cells.write("run4", [2], range(6, 8))
    done = cells.sync()
    assert (names(done.shadowed), len(done.added)) == (["run2"], 3)
    cells.check()
    cells.remove("run3")
    with opened_below(cells.folder) as opened:
        done = cells.sync()
    assert {path.stem for path in opened if path.suffix == ".nc"} == {"run1", "run2"}
    assert (names(done.added), names(done.dropped)) == (["run2"], ["run3"])
    cells.check()
    cells.remove("run2")
    done = cells.sync()
    assert (names(done.replaced), names(done.dropped)) == (["run1"], ["run2"])
    cells.check()


def test_a_missing_chunk_of_a_better_file_is_missing(cells: Cells) -> None:
    cells.write("run1", [1, 2], range(4))
    cells.sync()
    cells.write("run2", [1], range(2, 6), missing=[3])
    cells.sync()
    assert np.isnan(cells.check()["t"].sel(member=1, time=3)).all()
    cells.write("run0", [1, 2], range(3, 5))
    cells.sync()
    cells.check()


def test_files_of_any_cells_come_at_once(cells: Cells) -> None:
    # no two of them have the same members, or the same times
    cells.write("a", [1, 2, 3], range(6))
    cells.write("b", [2], range(2, 9))
    cells.write("c", [3, 4], range(1, 3))
    cells.write("d", [1, 4], range(5, 7))
    cells.sync()
    cells.check()


def test_another_choice_turns_all_cells(cells: Cells) -> None:
    cells.write("run1", [1, 2], range(4))
    cells.write("run2", [2, 3], range(2, 6))
    cells.sync()
    cells.check()
    cells.overlap = "first"
    assert cells.sync().is_written
    cells.check()


def test_a_window_moves_over_files_that_overlap(cells: Cells) -> None:
    cells.write("run1", [1, 2], range(4))
    cells.write("run2", [1, 2], range(2, 6))
    cells.sync(keep={"time": 3})
    for name in ("run3", "run4"):
        cells.write(name, [1, 2], [len(cells.files) + 3, len(cells.files) + 4])
        cells.sync(keep={"time": 3})
    found = xr.open_dataset(cells.folder / "set.zarr", engine="virtual").load()
    assert found["time"].values.tolist() == [5, 6, 7]
    wanted = [cells.files["run3"].sel(time=5), cells.files["run4"].sel(time=6)]
    for ds in wanted:
        cell = found.sel(time=ds["time"].item())
        np.testing.assert_array_equal(cell["t"].values, ds["t"].values)


def test_a_window_along_another_axis_moves_back(cells: Cells) -> None:
    cells.write("a", [1], range(2, 6))
    cells.write("b", [1], range(9))
    cells.write("c", [2], range(2))
    done = cells.sync(keep={"time": 2})
    assert (names(done.shadowed), names(done.outside)) == (["a"], ["c"])
    cells.remove("b")
    assert names(cells.sync(keep={"time": 2}).added) == ["a"]
    found = xr.open_dataset(cells.folder / "set.zarr", engine="virtual").load()
    wanted = cells.files["a"].isel(time=slice(2, 4))
    np.testing.assert_array_equal(found["t"].values, wanted["t"].values)


def test_files_of_different_lengths_change_at_once(tmp_path: Path) -> None:
    def write(name: str, members: list[int], days: list[int], value: float, width: int) -> None:
        values = np.full((len(members), len(days), width), value, "f4")
        ds = xr.Dataset({"t": (("member", "time", "x"), values)}, {"member": members, "time": days})
        stored = {"t": {"chunksizes": (1, 1, 1), "_FillValue": np.float32(np.nan)}}
        ds.to_netcdf(tmp_path / f"{name}.nc", engine="netcdf4", encoding=stored)
        date(tmp_path / f"{name}.nc")

    def sync() -> Any:
        virtualds.sync(
            f"{tmp_path}/*.nc", tmp_path / "set.zarr", concat_dim=["member", "time"],
            overlap="last", pad="x", settle=0,
        )  # fmt: skip
        return xr.open_dataset(tmp_path / "set.zarr", engine="virtual")["t"].load()

    write("a", [1, 2], [0, 1], 1, 3)
    write("b", [2], [1, 2], 2, 2)
    sync()
    write("a", [1, 2], [0, 1], 5, 3)
    write("b", [2], [1, 2], 6, 2)
    found = sync()
    assert found.sel(member=1, time=0).values.tolist() == [5, 5, 5]
    # the better file is shorter, so nothing stands behind its end
    np.testing.assert_array_equal(found.sel(member=2).values[1:], [[6, 6, np.nan]] * 2)


def write_sparsely(path: Path, ds: xr.Dataset, missing: Iterable[int]) -> None:
    """Write a dataset with a chunk of ``t`` for each day, but none for the days that are missing.

    HDF5 stores a chunk as soon as anything is written to it.
    """
    import h5py

    ds.drop_vars("t").to_netcdf(path, engine="netcdf4")
    with h5py.File(path, "a") as file:
        fill = np.float32(np.nan)
        made = file.create_dataset("t", ds["t"].shape, "f4", chunks=(1, 1, WIDTH), fillvalue=fill)
        for axis, dim in enumerate(("member", "time", "x")):
            made.dims[axis].attach_scale(file[dim])
        made.attrs["_FillValue"] = fill
        for n, day in enumerate(ds["time"].values.tolist()):
            if day not in missing:
                made[:, n] = ds["t"].values[:, n]


def write_alone(path: Path, days: Iterable[int], value: float | None, member: int = 1) -> None:
    """Write a file with one chunk of each day, or without any; ``valid`` lies in memory."""
    days = list(days)
    ds = xr.Dataset(
        {"t": (("member", "time", "x"), np.full((1, len(days), WIDTH), value or 0, "f4"))},
        {
            "member": [member],
            "time": days,
            "x": range(WIDTH),
            "valid": (("member", "time"), [[100.0 + day for day in days]]),
        },
    )
    write_sparsely(path, ds, days if value is None else ())
    date(path)


@pytest.mark.parametrize("overlap", ["error", "last"])
def test_a_file_may_lose_all_its_chunks(overlap: str, tmp_path: Path) -> None:
    def sync() -> xr.Dataset:
        how: Any = {"loadable_variables": ["member", "time", "x", "valid"], "overlap": overlap}
        how |= {"concat_dim": ["member", "time"], "settle": 0}
        assert virtualds.sync(f"{tmp_path}/*.nc", tmp_path / "set.zarr", **how).failed == ()
        return xr.open_dataset(tmp_path / "set.zarr", engine="virtual").load()

    shared = overlap == "last"
    write_alone(tmp_path / "run1.nc", range(4 if shared else 2), 1)
    write_alone(tmp_path / "run2.nc", range(2, 6), 2)
    sync()
    write_alone(tmp_path / "run2.nc", range(2, 6), None)
    found = sync()
    days = [1, 1, 1, 1] if shared else [1, 1, np.nan, np.nan]
    np.testing.assert_array_equal(found["t"].values[0, :, 0], [*days, np.nan, np.nan])
    assert found["valid"].values.tolist() == [[100, 101, 102, 103, 104, 105]]


def test_what_a_file_without_chunks_has_in_memory_is_kept(tmp_path: Path) -> None:
    how: Any = {"loadable_variables": ["member", "time", "x", "valid"], "overlap": "last"}
    how |= {"concat_dim": ["member", "time"], "settle": 0}
    for name, days, value, member in (("a", (0, 1), 1, 1), ("b", (2, 3), 2, 2)):
        write_alone(tmp_path / f"{name}.nc", days, value, member)
    virtualds.sync(f"{tmp_path}/*.nc", tmp_path / "set.zarr", **how)
    # it comes beside a file that has chunks
    write_alone(tmp_path / "c.nc", (2, 3), None)
    write_alone(tmp_path / "d.nc", (0, 1), 4, member=2)
    virtualds.sync(f"{tmp_path}/*.nc", tmp_path / "set.zarr", **how)
    found = xr.open_dataset(tmp_path / "set.zarr", engine="virtual").load()
    assert found["valid"].values.tolist() == [[100, 101, 102, 103]] * 2
    np.testing.assert_array_equal(found["t"].values[..., 0], [[1, 1, *[np.nan] * 2], [4, 4, 2, 2]])


def spoil(path: Path) -> Any:
    """Make a file unreadable without a change of its state; return what mends it."""
    whole, state = path.read_bytes(), path.stat()

    def write(content: bytes) -> None:
        path.write_bytes(content)
        os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))

    write(b"x" * len(whole))
    return lambda: write(whole)


def test_what_is_noted_outlives_a_night_in_which_a_file_waits(cells: Cells) -> None:
    path = cells.write("run1", [1], range(4))
    cells.write("run2", [1], range(2, 6))
    cells.sync()
    state = path.stat()
    os.utime(path)
    cells.write("other", [1], [9])
    assert names(cells.sync(settle=60).waiting) == ["run1"]
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    cells.sync()
    cells.remove("run2")
    cells.sync()
    cells.check()


def test_what_is_noted_outlives_another_writer(
    cells: Cells, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells.write("run1", [1], range(4))
    cells.sync()
    cells.write("other", [2], range(4))
    listed = sync_module.commit

    def commit_late(*given: Any) -> Any:
        """Another run lists more files, and is faster."""
        monkeypatch.setattr(sync_module, "commit", listed)
        cells.write("run2", [1], range(2, 6))
        cells.sync()
        return listed(*given)

    monkeypatch.setattr(sync_module, "commit", commit_late)
    cells.sync()
    cells.check()
    cells.remove("run2")
    cells.sync()
    cells.check()


@pytest.mark.parametrize("way", ["withdrawn", "turned"])
def test_a_file_that_cannot_be_opened_when_it_is_needed_is_tried_again(
    way: str, cells: Cells
) -> None:
    path = cells.write("run1", [1], range(4))
    cells.write("run2", [1], range(2, 6))
    cells.sync()
    mend = spoil(path)
    if way == "withdrawn":
        cells.remove("run2")
    else:
        cells.overlap = "first"
    done = cells.sync(on_error="collect")
    assert (len(done.failed), done.unchanged) == (1, 0)
    mend()
    assert names(cells.sync(on_error="collect").replaced) == ["run1"]
    cells.check()
    assert not cells.sync(on_error="collect").is_written


def test_dimensions_may_be_named_in_another_order(cells: Cells) -> None:
    cells.write("run1", [1], range(2, 6))
    cells.write("run2", [1], range(2, 6))
    cells.write("run3", [1], [9])
    cells.sync()
    cells.remove("run2")
    assert names(cells.sync(concat_dim=["time", "member"]).added) == ["run1"]
    cells.check()


def test_a_cell_that_a_set_lacks_is_none_that_it_holds_itself(cells: Cells) -> None:
    how = {"loadable_variables": ["member", "time", "mean"]}
    cells.write("run1", [1], range(2))
    cells.write("run2", [2], range(2, 4))
    cells.sync(**how)
    cells.write("run3", [1], range(2, 4))
    cells.sync(**how)
    cells.check()


def test_whole_numbers_go_to_files_that_have_all_cells_of_a_removed_one(tmp_path: Path) -> None:
    for name, days, value in (("a", range(4), 1), ("b", range(2, 6), 2), ("c", range(1, 6), 3)):
        ds = xr.Dataset(
            {"n": (("member", "time"), np.full((2, len(days)), value))},
            {"member": [1, 2], "time": days},
        )
        ds.to_netcdf(tmp_path / f"{name}.nc", engine="netcdf4")
        date(tmp_path / f"{name}.nc")
    how: Any = {"concat_dim": ["member", "time"], "overlap": "last", "on_removed": "drop"}
    virtualds.sync(f"{tmp_path}/*.nc", tmp_path / "set.zarr", settle=0, **how)
    (tmp_path / "c.nc").unlink()
    virtualds.sync(f"{tmp_path}/*.nc", tmp_path / "set.zarr", settle=0, **how)
    found = xr.open_dataset(tmp_path / "set.zarr", engine="virtual")["n"]
    assert (found.dtype, found.values.tolist()) == (np.dtype("i8"), [[1, 1, 2, 2, 2, 2]] * 2)


def test_what_a_set_holds_itself_is_no_choice(cells: Cells) -> None:
    cells.write("run1", [1], range(2))
    cells.sync(inline_threshold=10_000)
    cells.write("run2", [1], range(1, 3))
    with pytest.raises(CombineError, match=r"holds values of 2 cells itself(?s:.*)overlap='last'"):
        cells.sync()


def test_a_cell_has_one_file(cells: Cells) -> None:
    cells.write("run1", [1], range(2))
    with pytest.raises(virtualds.UnsupportedError, match=r"overlap='keep': a cell of a grid has"):
        cells.sync(overlap="keep")


def test_chunks_that_are_cut_need_a_set_that_can_say_so(cells: Cells) -> None:
    cells.write("run1", [1, 2], range(6), chunk=6)
    cells.write("run2", [1], range(3, 9), chunk=6)
    with pytest.raises(virtualds.UnsupportedError, match="zarr"):
        virtualds.sync(
            f"{cells.folder}/*.nc",
            cells.folder / "set.json",
            concat_dim=["member", "time"],
            overlap="last",
            settle=0,
        )


@pytest.mark.full
@pytest.mark.parametrize("seed", range(times(4)))
def test_whatever_happens_a_set_is_as_if_made_anew(cells: Cells, seed: int) -> None:
    rng = np.random.default_rng(seed)
    cells.overlap = ("first", "last")[seed % 2]
    for night in range(7):
        for _ in range(int(rng.integers(1, 4))):
            known, chance = sorted(cells.files), rng.random()
            if chance < 0.25 and len(known) > 1:
                cells.remove(str(rng.choice(known)))
                continue
            new = f"{int(rng.integers(30)):02}"
            name = str(rng.choice(known)) if chance < 0.5 and known else new
            first, begin = int(rng.integers(4)), int(rng.integers(12))
            days = range(begin, begin + int(rng.integers(1, 14)), int(rng.integers(1, 3)))
            missing = [days[0]] if len(days) > 1 and rng.random() < 0.3 else []
            members = range(first, first + int(rng.integers(1, 4)))
            cells.write(name, members, days, missing=missing, chunk=int(rng.integers(1, 4)))
        cells.sync()
        cells.check()
        with opened_below(cells.folder) as opened:
            assert not cells.sync().is_written, night
        assert [path for path in opened if path.suffix == ".nc"] == []
