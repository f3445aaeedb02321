"""A set holds what its files hold, after every run, and is never worse than before."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import xarray as xr
from counting_server import counting_server
from daily_files import days, native, opened, written

import virtualds
from virtualds import CombineError, FormatError, ReadError, SourceFile, SyncReport, UnsupportedError
from virtualds.datasets.conversion import group_from_dataset
from virtualds.source_file import NO_NUMBER
from virtualds.stores.listing import FileColumns, FileState
from virtualds.syncing.files import (
    Changes,
    KnownFiles,
    Listing,
    SourceListReader,
    _fetch_missing_details,
)
from virtualds.syncing.notes import Notes

TARGETS = ("refs.json", "refs.parquet", "refs.zarr")
Make = Callable[..., Path]


@pytest.fixture
def make(folder: Path) -> Make:
    """Write the file of a number, four days each, that was modified a while ago."""

    def made(number: int, *, seed: int | None = None, age: float = 1000, count: int = 4) -> Path:
        path = written(folder / "data", f"{number:02}", days(4 * number, count, seed))
        os.utime(path, (time.time() - age,) * 2)
        return path

    return made


def run(target: Any = "refs.zarr", **how: Any) -> SyncReport:
    return virtualds.sync("data/*.nc", target, **{"concat_dim": "time", **how})


def names(urls: Any) -> list[str]:
    return [url.rpartition("/")[2] for url in urls]


def files() -> list[Path]:
    return sorted(Path("data").glob("*.nc"))


def assert_holds(target: Any, paths: list[Path] | None = None) -> None:
    xr.testing.assert_identical(opened(target).load(), native(paths or files()))


def bytes_below(path: Path) -> dict[str, tuple[int, bytes]]:
    """Every file of a set, with the time of its last change."""
    found = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
    return {str(p): (p.stat().st_mtime_ns, p.read_bytes()) for p in found}


# ---------------------------------------------------------------------- what changes


@pytest.mark.parametrize("target", TARGETS)
def test_a_set_follows_its_files(target: str, make: Make) -> None:
    for number in (0, 1, 3):
        make(number)
    first = run(target)
    assert names(first.added) == ["00.nc", "01.nc", "03.nc"]
    assert_holds(target)
    make(2)  # comes late, and belongs in the middle
    make(1, seed=99, age=500)
    second = run(target)
    assert (names(second.added), names(second.replaced)) == (["02.nc"], ["01.nc"])
    assert second.unchanged == 2
    assert_holds(target)


@pytest.mark.parametrize("target", TARGETS)
def test_a_run_without_changes_opens_and_writes_nothing(target: str, make: Make) -> None:
    for number in range(3):
        make(number)
    run(target)
    before = bytes_below(Path(target))
    for path in files():
        # a file that is opened would be found damaged
        stated = path.stat()
        path.write_bytes(bytes(stated.st_size))
        os.utime(path, ns=(stated.st_atime_ns, stated.st_mtime_ns))
    again = run(target)
    assert (again.unchanged, again.is_written) == (3, False)
    assert bytes_below(Path(target)) == before


def test_a_changed_file_may_be_longer_or_shorter(make: Make) -> None:
    for number in range(3):
        make(number)
    run()
    make(0, count=3, age=500)
    make(2, count=6, age=500)
    assert names(run().replaced) == ["00.nc", "02.nc"]
    assert_holds("refs.zarr")


def test_of_many_changed_files_the_error_names_the_one_with_other_days(make: Make) -> None:
    for number in range(4):
        make(number)
    run()
    make(0, age=500)
    make(2, count=6, age=500)
    with pytest.raises(
        CombineError, match=r"^file:.*/02\.nc: it has changed, and has other values"
    ):
        run()


def test_a_changed_file_whose_days_overlap_others_is_refused(make: Make) -> None:
    for number in range(3):
        make(number)
    run()
    before = bytes_below(Path("refs.zarr"))
    # of five days the last is the first of the next file: the days still rise
    for count in (5, 6):
        make(1, count=count, age=500)
        with pytest.raises(CombineError, match=r"(?s)/01\.nc: it .*overlap.*write the set again"):
            run()
    assert bytes_below(Path("refs.zarr")) == before


def test_a_file_of_a_set_that_repeats_days_may_change(make: Make) -> None:
    make(0)
    os.utime(written(Path("data"), "01", days(3)), (0, 0))
    run(overlap="keep")
    make(0, seed=5, age=500)
    assert names(run(overlap="keep").replaced) == ["00.nc"]
    assert_holds("refs.zarr")


def test_the_files_may_be_given_as_a_list(make: Make) -> None:
    paths = [make(number) for number in range(2)]
    virtualds.sync(paths, "refs.zarr", concat_dim="time")
    paths.append(make(2))
    assert virtualds.sync(paths, "refs.zarr", concat_dim="time").unchanged == 2
    assert_holds("refs.zarr")
    with pytest.raises(FileNotFoundError, match=r"missing\.nc: there is no such file"):
        virtualds.sync([*paths, "missing.nc"], "refs.zarr", concat_dim="time")
    with pytest.raises(TypeError, match="but no nested lists"):
        virtualds.sync([paths], "refs.zarr", concat_dim="time")


def test_files_without_a_coordinate_go_to_the_end(folder: Path) -> None:
    for number in (0, 2):
        written(folder / "data", f"{number}", days(4 * number).drop_vars("time"))
    run(settle=0)
    late = written(folder / "data", "1", days(4).drop_vars("time"))
    assert names(run(settle=0).added) == ["1.nc"]
    assert_holds("refs.zarr", [files()[0], files()[2], late])
    assert run(settle=0).unchanged == 3


def test_data_without_chunks_are_told_apart_by_their_coordinate(folder: Path) -> None:
    for number in (0, 1):
        days(4 * number)[["time", "lat"]].to_netcdf(folder / "data" / f"{number}.nc")
    assert len(run(settle=0).added) == 2
    assert run(settle=0).unchanged == 2
    days(8)[["time", "lat"]].to_netcdf(folder / "data" / "2.nc")
    assert opened("refs.zarr").sizes["time"] == 8
    assert "2.nc" in names(run(settle=0).added)
    assert opened("refs.zarr").sizes["time"] == 12


def test_options_of_opening_hold_for_new_files_too(folder: Path) -> None:
    def write(number: int) -> None:
        one = days(number, 1).isel(time=0, drop=True)
        one.to_netcdf(folder / "data" / f"2000-01-0{number + 1}.nc")

    write(0)
    write(1)
    dates = {"time": virtualds.FromName(r"(\d{4}-\d\d-\d\d)", "%Y-%m-%d")}
    how: Any = {"coordinates": dates, "drop_variables": "height", "settle": 0}
    run(**how)
    write(2)
    run(**how)
    found = opened("refs.zarr").load()
    assert found.time.values.tolist() == days(0, 3).time.values.tolist()
    assert np.array_equal(found.t[2], days(2, 1).t[0])
    assert "height" not in found


def test_options_of_the_format_are_taken(make: Make) -> None:
    make(0)
    run("refs.parquet", record_size=1)
    assert len(list(Path("refs.parquet/t").iterdir())) == 4
    with pytest.raises(TypeError, match="has no option 'concat_dims'"):
        run(concat_dims="time")
    with pytest.raises(ValueError, match="did you mean 'error'"):
        run(on_removed="eror")
    for settle in (-1, "60", float("nan")):
        with pytest.raises(ValueError, match="a number of seconds"):
            run(settle=settle)


def copied(number: int, seed: int | None = None) -> Path:
    """A file of five days in chunks of two, so that chunks of sets belong to two files."""
    ds = days(5 * number, 5, seed)[["t"]].isel(lat=0, lon=0).drop_vars(["lat", "lon"])
    # large chunks are files beside the set
    ds = ds.expand_dims(x=600).transpose("time", "x") * 1.0
    ds["t"] = ds["t"].astype("f8")
    path = Path("data") / f"{number:02}.nc"
    how = {"t": {"chunksizes": (2, 600), "zlib": True}, "time": {"dtype": "i8"}}
    how["time"]["units"] = "days since 2000-01-01"
    ds.to_netcdf(path, engine="netcdf4", encoding=how)
    os.utime(path, (time.time() - 1000,) * 2)
    return path


@pytest.mark.parametrize("target", ["refs.json", "refs.parquet"])
def test_rewritten_chunks_are_never_taken_for_files_that_are_gone(
    target: str, folder: Path
) -> None:
    paths = [copied(number) for number in range(3)]
    with pytest.raises(UnsupportedError, match="rewritten chunks refer to none"):
        run(target, on_unsupported="rewrite")
    assert not Path(target).exists()
    parts = [virtualds.open_virtual_dataset(path) for path in paths]
    xr.concat(parts, "time").virtual.to_manifest(target, on_unsupported="rewrite")
    before = bytes_below(Path(target))
    with pytest.raises(CombineError, match="does not note their sources, and sync cannot follow"):
        run(target, on_removed="drop")
    # what lies beside chunks of two files may belong to the file that is gone
    paths[0].unlink()
    with pytest.raises(CombineError, match=r"(?s)00\.nc: .*write the set again without"):
        run(target, on_removed="drop")
    assert bytes_below(Path(target)) == before


@pytest.mark.parametrize("target", ["refs.json", "refs.parquet"])
def test_held_chunks_without_a_coordinate_are_not_added_twice(target: str, folder: Path) -> None:
    copied(0)
    how: dict[str, Any] = {"drop_variables": ["time"]}
    run(target, inline_threshold=10**6, **how)
    with pytest.raises(CombineError, match="it is unclear whether the set has the new files"):
        run(target, **how)
    assert opened(target).sizes["time"] == 5


def test_a_new_file_with_days_that_the_set_has_is_refused_or_left_out(make: Make) -> None:
    make(0)
    run()
    other = written(Path("data"), "version2", days(2, 4))
    os.utime(other, (0, 0))
    with pytest.raises(CombineError, match="2 of 4 positions are in the set already"):
        run()
    run(overlap="first")
    assert opened("refs.zarr").sizes["time"] == 6
    assert run().unchanged == 2


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("overlap", ["first", "last"])
def test_a_second_run_with_a_file_that_contributes_nothing_changes_nothing(
    overlap: str, target: str, make: Make
) -> None:
    for number in range(3):
        make(number)
    # the same days, in files before and after that one
    for name in ("00-later", "01-later"):
        os.utime(written(Path("data"), name, days(4 * int(name[:2]), seed=9)), (0, 0))
    first = run(target, overlap=overlap)
    counting = {"first": files()[::2], "last": [files()[n] for n in (1, 3, 4)]}[overlap]
    assert_holds(target, counting)
    before = bytes_below(Path(target))
    assert (names(first.added), len(first.shadowed)) == ([path.name for path in counting], 2)
    again = run(target, overlap=overlap)
    assert (again.is_written, again.unchanged, again.shadowed) == (False, 3, first.shadowed)
    assert bytes_below(Path(target)) == before
    make(3)
    assert names(run(target, overlap=overlap).added) == ["03.nc"]
    assert_holds(target, [*counting, files()[-1]])


def test_values_that_the_set_holds_are_of_no_earlier_file(make: Make) -> None:
    make(0)
    os.utime(written(Path("data"), "00-later", days(0, seed=9)), (0, 0))
    how: Any = {"overlap": "last", "loadable_variables": ["time", "lat", "lon", "n"]}
    # its url comes before those of the files
    Path("a").mkdir()
    run("a/refs.zarr", **how)
    again = run("a/refs.zarr", **how)
    assert (again.is_written, again.unchanged, names(again.shadowed)) == (False, 1, ["00-later.nc"])


# ---------------------------------------------------------------------- what is not there


def test_files_that_are_gone_are_an_error_unless_the_user_says_otherwise(make: Make) -> None:
    paths = [make(number) for number in range(4)]
    run()
    whole = native(paths)
    paths[2].unlink()
    before = bytes_below(Path("refs.zarr"))
    with pytest.raises(FileNotFoundError, match=r"(?s)02\.nc: not listed any more.*on_removed"):
        run()
    kept = run(on_removed="keep")
    assert (names(kept.kept), kept.unchanged, kept.is_written) == (["02.nc"], 3, False)
    assert bytes_below(Path("refs.zarr")) == before
    assert names(run(on_removed="drop").dropped) == ["02.nc"]
    assert_holds("refs.zarr")
    assert opened("refs.zarr").sizes["time"] == whole.sizes["time"] - 4
    # a file that comes back is a new one
    make(2)
    assert names(run().added) == ["02.nc"]
    xr.testing.assert_identical(opened("refs.zarr").load(), whole)


@pytest.mark.parametrize("on_removed", ["error", "keep", "drop"])
def test_an_empty_listing_never_changes_a_set(on_removed: str, make: Make) -> None:
    make(0)
    run()
    before = bytes_below(Path("refs.zarr"))
    Path("data").rename("unmounted")
    for listing in ("no folder", "an empty folder"):
        with pytest.raises(FileNotFoundError, match="no file matches"):
            run(on_removed=on_removed)
        Path("data").mkdir(exist_ok=listing != "no folder")
    with pytest.raises(FileNotFoundError, match="none of the 1 files exists"):
        virtualds.sync(["data/00.nc"], "refs.zarr", concat_dim="time", on_removed=on_removed)
    with pytest.raises(FileNotFoundError, match="the list of files is empty"):
        virtualds.sync([], "refs.zarr", concat_dim="time", on_removed=on_removed)
    assert bytes_below(Path("refs.zarr")) == before


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("on_removed", ["keep", "drop"])
def test_the_grid_is_taken_from_another_file_if_its_own_is_gone(
    on_removed: str, target: str, make: Make
) -> None:
    paths = [make(number) for number in range(3)]
    run(target)
    paths[0].unlink()
    make(3)
    run(target, on_removed=on_removed)
    found = opened(target)
    assert np.array_equal(found["height"], days(0)["height"])
    assert found.sizes["time"] == {"keep": 16, "drop": 12}[on_removed]


def test_the_grid_is_taken_from_a_changed_file_if_no_new_one_can_be_opened(make: Make) -> None:
    paths = [make(number) for number in range(2)]
    run()
    paths[0].unlink()
    make(1, seed=9)
    make(2).write_bytes(b"nothing")
    done = run(on_removed="keep", on_error="skip", settle=0)
    assert (names(done.replaced), len(done.failed)) == (["01.nc"], 1)
    assert np.array_equal(opened("refs.zarr")["height"], days(0)["height"])


def test_a_grid_of_which_all_files_are_lost_or_damaged_is_an_error_that_names_it(
    make: Make,
) -> None:
    paths = [make(number) for number in range(2)]
    run()
    paths[0].unlink()
    empty_unseen(paths[1])
    with pytest.raises(CombineError, match="height: it lies in a file that is no longer there"):
        run(on_removed="drop", on_error="skip")


def test_files_that_have_not_changed_are_not_opened(make: Make) -> None:
    path, alone = make(0), {"drop_variables": "height"}
    run(**alone)
    empty_unseen(path)
    make(1)
    assert names(run(**alone).added) == ["01.nc"]


def empty_unseen(path: Path) -> None:
    """Make a file unreadable that looks unchanged."""
    before = path.stat()
    path.write_bytes(bytes(before.st_size))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_all_files_may_be_renamed(make: Make) -> None:
    for number in range(2):
        make(number)
    run()
    for path in files():
        path.rename(path.with_name(f"v2-{path.name}"))
    done = run(on_removed="drop")
    assert (names(done.added), names(done.dropped)) == (
        ["v2-00.nc", "v2-01.nc"],
        ["00.nc", "01.nc"],
    )
    assert_holds("refs.zarr")


# ---------------------------------------------------------------------- what is not ready


def test_a_file_that_may_still_be_written_waits_for_the_next_run(make: Make) -> None:
    assert names([*map(str, [make(0, age=5)])]) == ["00.nc"]
    with pytest.warns(UserWarning, match="no set yet"):
        assert names(run().waiting) == ["00.nc"]
    assert not Path("refs.zarr").exists()
    make(0)
    run()
    make(0, seed=7, age=5)
    make(1, age=-30)  # the clock of a server may be ahead
    make(2)
    done = run()
    assert (names(done.waiting), names(done.added)) == (["00.nc", "01.nc"], ["02.nc"])
    assert len(run(settle=1).waiting) == 0
    assert_holds("refs.zarr")


def test_a_file_that_fails_is_reported_and_takes_nothing_from_the_set(make: Make) -> None:
    for number in range(2):
        make(number)
    run()
    whole = native(files())
    make(2)
    for name in ("01.nc", "03.nc"):
        Path("data", name).write_bytes(b"\x89HDF\r\n\x1a\nnothing")
        os.utime(Path("data", name), (0, 0))
    before = bytes_below(Path("refs.zarr"))
    with pytest.raises(virtualds.FormatError, match=r"0[13]\.nc"):
        run()
    assert bytes_below(Path("refs.zarr")) == before
    done = run(on_error="collect")
    assert names(lost.url for lost in done.failed) == ["03.nc", "01.nc"]
    assert (names(done.added), done.replaced) == (["02.nc"], ())
    found = opened("refs.zarr")
    assert found.sizes["time"] == whole.sizes["time"] + 4
    # only what fails is tried again, and all of that may fail
    again = run(on_error="collect")
    assert (len(again.failed), again.unchanged, again.is_written) == (2, 2, False)


def name_badly(odd: str, path: Path) -> str:
    """Make a file one that cannot be followed; return what names it in errors."""
    if odd == "a loop of links":
        path.unlink()
        path.symlink_to(path.name)
        return path.name
    name = {"bytes": b"\xff.nc", "a line break": b"\n.nc"}[odd]
    os.rename(path, os.fsencode(path.with_suffix("")) + name)
    return re.escape(repr(os.fsdecode(name))[1:-1])


@pytest.mark.parametrize("odd", ["bytes", "a line break", "a loop of links"])
def test_one_odd_name_stops_nothing_and_is_reported(
    odd: str, make: Make, capfd: pytest.CaptureFixture[str]
) -> None:
    paths = [make(number) for number in range(2)]
    shown = name_badly(odd, make(2))
    for target, given in (("refs.zarr", "data/*.nc"), ("refs.json", None)):
        listed = given or [f"data/{name}" for name in sorted(os.listdir("data"))]
        with pytest.raises((UnsupportedError, OSError), match=shown):
            virtualds.sync(listed, target, concat_dim="time")
        for expected in (2, 0):
            done = virtualds.sync(listed, target, concat_dim="time", on_error="collect")
            [lost] = done.failed
            assert (len(done.added), re.search(shown, lost.message) is None) == (expected, False)
            print(done)
            assert re.search(shown, capfd.readouterr().out)
        assert_holds(target, paths)
    # one that the set knows becomes odd
    name_badly(odd, paths[1])
    gone: Any = {"on_removed": "keep"}
    with pytest.raises((UnsupportedError, OSError)):
        run(**gone)
    done = run(on_error="collect", **gone)
    assert (len(done.failed), done.is_written) == (2, False)
    assert opened("refs.zarr").sizes["time"] == 8


def test_a_link_that_leads_to_itself_is_no_folder(make: Make) -> None:
    path = make(0)
    Path("data", "loop").symlink_to("loop")
    for pattern in ("**/*.nc", "*/*.nc"):
        assert virtualds.sync(pattern, f"{len(pattern)}.zarr", concat_dim="time").exists
    assert_holds("7.zarr", [path])


@pytest.mark.parametrize("link", [os.link, os.symlink])
def test_a_second_name_of_a_file_is_left_out_and_reported(
    link: Callable[[Path, str], None], make: Make
) -> None:
    paths = [make(number) for number in range(2)]
    link(paths[0].resolve(), "data/00-again.nc")
    first = run()
    expected = {os.link: "00.nc", os.symlink: "00-again.nc"}[link]
    assert (names(first.added), names(first.repeated)) == (
        [n for n in ("00-again.nc", "00.nc", "01.nc") if n != expected],
        [expected],
    )
    link(paths[1].resolve(), "data/00-other.nc")
    make(2)
    second = run()
    assert names(second.added) == ["02.nc"]
    # the name that the set has counts
    assert names(second.repeated) == sorted([expected, "00-other.nc"])
    assert "A second name of another file, and left out (2)\n  file:" in str(second)
    assert_holds("refs.zarr", [*paths, files()[-1]])
    again = run()
    assert (again.unchanged, again.is_written) == (3, False)


@pytest.mark.parametrize("how", ["coordinates", "preprocess"])
@pytest.mark.parametrize("link", [os.link, os.symlink])
def test_linked_files_whose_time_is_in_their_names_are_all_added(
    how: str, link: Callable[[Path, str], None], folder: Path
) -> None:
    path = folder / "data" / "2000-01-01.nc"
    xr.Dataset({"v": ("x", np.arange(3.0))}).to_netcdf(path)
    os.utime(path, (1e9,) * 2)
    date = virtualds.FromName(r"(\d{4}-\d\d-\d\d)", "%Y-%m-%d")

    def add_time(ds: xr.Dataset) -> xr.Dataset:
        return ds.expand_dims(time=[date(ds.encoding["source"], ds)])

    given: Any = {"coordinates": {"time": date}} if how == "coordinates" else {how: add_time}
    expected = []
    for day in (2, 3, 4):
        link(path, f"data/2000-01-0{day}.nc")
        expected = [np.datetime64(f"2000-01-0{n}", "ns") for n in range(1, day + 1)]
        done = run(**given)
        assert (len(done.added), done.repeated) == (2 if day == 2 else 1, ())
        made = opened("refs.zarr")
        assert made["time"].values.tolist() == np.array(expected).tolist()
        whole = virtualds.open_virtual_mfdataset(
            "data/*.nc", combine="nested", concat_dim="time", **given
        )
        xr.testing.assert_equal(made.load(), whole.virtual.load())
    link(path, "data/again-2000-01-02.nc")
    with pytest.raises(CombineError, match="2000-01-02"):
        run(**given)
    assert opened("refs.zarr").sizes["time"] == len(expected)


# ---------------------------------------------------------------------- several at once


def test_several_runs_at_once_make_one_set(make: Make) -> None:
    for number in range(4):
        make(number)
    with ThreadPoolExecutor(3) as pool:
        done = [one.result() for one in [pool.submit(run) for _ in range(3)]]
    assert sorted(len(one.added) for one in done) == [0, 0, 4]
    assert [one.unchanged for one in done if not one.added] == [4, 4]
    assert_holds("refs.zarr")
    assert len(virtualds.snapshots("refs.zarr")) == 1


class Meanwhile:
    """Does something once, while the first file is opened."""

    def __init__(self, act: Callable[[], object]) -> None:
        self.act, self.done = act, False

    def __call__(self, dataset: xr.Dataset) -> xr.Dataset:
        if not self.done:
            self.done = True
            self.act()
        return dataset


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("exists", [True, False])
def test_what_another_run_has_added_meanwhile_is_not_added_twice(
    exists: bool, target: str, make: Make
) -> None:
    make(0)
    if exists:
        run(target)
    for number in (1, 2):
        make(number)

    def rival() -> None:
        make(3)  # comes after our listing
        assert len(run(target).added) == 4 - exists

    done = run(target, preprocess=Meanwhile(rival), on_removed="drop")
    assert (done.added, done.replaced, done.dropped) == ((), (), ())
    assert_holds(target)


def test_what_another_run_has_done_counts_as_unchanged() -> None:
    def at_sizes(**sizes: int) -> FileColumns:
        rows = [FileState(name, size, NO_NUMBER, "", 0.0) for name, size in sizes.items()]
        return FileColumns.from_states(rows)

    before, listed = at_sizes(a=1, b=1), at_sizes(a=2, b=1, c=1)
    known, theirs = KnownFiles.of(before, Notes()), KnownFiles.of(listed, Notes())
    changes = Changes.between(known, Listing.of(listed), settle=0, now=0)
    assert (changes.new, changes.changed, changes.unchanged) == (("c",), ("a",), 1)
    left = changes.drop_handled(known, theirs)
    assert (left.new, left.changed, left.unchanged) == ((), (), 3)


def test_a_file_has_changed_if_a_detail_differs_that_both_states_have() -> None:
    def at(etag: str) -> FileColumns:
        return FileColumns.from_states([FileState("a", 1, NO_NUMBER, etag, 0.0)])

    for old, new, changed in [("x", "y", 1), ("x", "", 0), ("", "y", 0), ("x", "x", 0)]:
        known, listing = KnownFiles.of(at(old), Notes()), Listing.of(at(new))
        assert len(Changes.between(known, listing, settle=0, now=0).changed) == changed


def test_a_listing_with_all_details_of_known_files_is_taken_without_a_question() -> None:
    listed = FileColumns.from_states(FileState(f"file:///nowhere/{name}", 1) for name in "ab")
    assert _fetch_missing_details(listed, listed, None) is listed


def test_a_newer_replacement_by_another_run_stays(make: Make) -> None:
    for number in range(2):
        make(number)
    run()
    make(0, seed=1, age=500)

    def rival() -> None:
        virtualds.sync([make(0, seed=2, age=400), "data/01.nc"], "refs.zarr", concat_dim="time")

    make(2)
    done = run(preprocess=Meanwhile(rival))
    assert (names(done.added), done.replaced) == (["02.nc"], ())
    assert_holds("refs.zarr")


@pytest.mark.parametrize("target", TARGETS)
def test_a_file_that_came_back_and_was_replaced_by_another_run_is_not_dropped(
    target: str, make: Make
) -> None:
    for number in range(2):
        make(number)
    run(target)
    files()[0].unlink()
    make(2)

    def rival() -> None:
        make(0, seed=5, age=500)
        assert names(run(target).replaced) == ["00.nc"]

    done = run(target, preprocess=Meanwhile(rival), on_removed="drop")
    assert (done.added, done.dropped) == ((), ())
    assert_holds(target)


@pytest.mark.parametrize("on_removed", ["drop", "keep"])
def test_what_another_run_has_dropped_is_not_reported_as_removed(
    on_removed: str, make: Make
) -> None:
    for number in range(2):
        make(number)
    run()
    files()[0].unlink()
    make(2)

    def rival() -> None:
        virtualds.sync(["data/01.nc"], "refs.zarr", concat_dim="time", on_removed="drop")

    done = run(preprocess=Meanwhile(rival), on_removed=on_removed)
    assert (names(done.added), done.dropped, done.kept) == (["02.nc"], (), ())
    assert_holds("refs.zarr")


def test_a_conflict_may_be_an_error(make: Make) -> None:
    make(0)
    run()
    make(1)

    def rival() -> None:
        virtualds.open_virtual_dataset(make(2)).virtual.to_manifest("refs.zarr", append_dim="time")

    # the set changes between the comparison and the commit, which reads it again: no conflict
    assert names(run(preprocess=Meanwhile(rival), conflict="raise").added) == ["01.nc"]
    assert_holds("refs.zarr")


def test_a_set_that_was_removed_meanwhile_does_not_come_back_with_the_new_files_alone(
    make: Make,
) -> None:
    make(0)
    run("refs.json")
    make(1)
    with pytest.raises(FileNotFoundError, match="there is no reference set"):
        run("refs.json", preprocess=Meanwhile(Path("refs.json").unlink))
    assert not Path("refs.json").exists()


# ---------------------------------------------------------------------- far away


def test_a_bucket_is_compared_by_its_listing(
    make: Make, s3_folder: str, s3_server: dict[str, Any]
) -> None:
    filesystem = fsspec.filesystem("s3", **s3_server)
    for number in range(3):
        filesystem.put_file(str(make(number)), f"{s3_folder}/data/{number}.nc")
    how: Any = {"concat_dim": "time", "storage_options": s3_server, "settle": 0}
    for target in (f"{s3_folder}/refs.zarr", "refs.zarr"):
        access = {"target_options": s3_server} if target.startswith("s3") else {}
        first = virtualds.sync(f"{s3_folder}/data/*.nc", target, **how, **access)
        assert len(first.added) == 3
        # of the same size, so that only the etag tells
        filesystem.put_file(str(make(1, seed=len(target))), f"{s3_folder}/data/1.nc")
        second = virtualds.sync(f"{s3_folder}/data/*.nc", target, **how, **access)
        assert (names(second.replaced), second.unchanged) == (["1.nc"], 2)
        found = xr.open_dataset(target, engine="virtual", storage_options=s3_server).load()
        xr.testing.assert_identical(found, native(files()))
        before = filesystem.find(s3_folder, detail=True)
        third = virtualds.sync(f"{s3_folder}/data/*.nc", target, **how, **access)
        assert (third.unchanged, third.is_written) == (3, False)
        filesystem.invalidate_cache()
        assert filesystem.find(s3_folder, detail=True) == before
    with pytest.warns(UserWarning, match="no set yet, since 3 files"):
        done = virtualds.sync(f"{s3_folder}/data/*.nc", "later.zarr", **{**how, "settle": 3600})
    assert len(done.waiting) == 3


def test_the_set_may_lie_in_another_bucket_than_its_files(
    make: Make, s3_bucket: str, s3_server: dict[str, Any]
) -> None:
    filesystem = fsspec.filesystem("s3", **s3_server)
    other = f"{s3_bucket}-of-sets"
    filesystem.call_s3("create_bucket", Bucket=other.removeprefix("s3://"))
    how: Any = {"storage_options": s3_server, "target_options": s3_server, "settle": 0}
    for number in range(2):
        filesystem.put_file(str(make(number)), f"{s3_bucket}/{number}.nc")
        done = virtualds.sync(f"{s3_bucket}/*.nc", f"{other}/refs.json", concat_dim="time", **how)
        assert names(done.added) == [f"{number}.nc"]


def test_unchanged_files_of_a_web_server_cost_one_head_each(make: Make) -> None:
    for number in range(3):
        make(number)
    with counting_server(Path("data")) as (url, counts):

        def sync() -> SyncReport:
            counts.requests.clear()
            return virtualds.sync(f"{url}/*.nc", "refs.zarr", concat_dim="time")

        assert len(sync().added) == 3
        assert sync().unchanged == 3
        assert sorted(method for method, _, _ in counts.requests) == ["GET", "HEAD", "HEAD", "HEAD"]
        make(3)
        make(4, age=1)
        done = sync()
        assert (names(done.added), names(done.waiting)) == (["03.nc"], ["04.nc"])
        # that of the grid is compared
        assert [counts.of(f"0{number}.nc") for number in (1, 2)] == [1, 1]
        # this server tells no etags, so the size tells
        written(Path("data"), "00", days(0).assign_attrs(history="longer" * 1000))
        counts.requests.clear()
        done = virtualds.sync(f"{url}/*.nc", "refs.zarr", concat_dim="time", settle=0)
        assert names(done.replaced) == ["00.nc"]


def test_a_remote_set_refers_to_local_files_only_if_they_are_allowed(
    make: Make, s3_folder: str, s3_server: dict[str, Any]
) -> None:
    path = make(0)
    how: Any = {"target_options": s3_server}
    with pytest.warns(virtualds.AccessWarning, match="refers to 1 file of"):
        run(f"{s3_folder}/refs.json", **how)
    with pytest.raises(virtualds.AccessError):
        run(f"{s3_folder}/refs.json", **how)
    assert run(f"{s3_folder}/refs.json", allow=path.parent, **how).unchanged == 1


def test_only_what_a_format_can_change_is_changed(
    make: Make, s3_folder: str, s3_server: dict[str, Any]
) -> None:
    filesystem = fsspec.filesystem("s3", **s3_server)
    how: Any = {"storage_options": s3_server, "target_options": s3_server, "settle": 0}
    for numbers in ((0, 2), (3,)):
        for number in numbers:
            filesystem.put_file(str(make(number)), f"{s3_folder}/data/{number}.nc")
        virtualds.sync(
            f"{s3_folder}/data/*.nc", f"{s3_folder}/refs.parquet", concat_dim="time", **how
        )
    filesystem.put_file(str(make(1)), f"{s3_folder}/data/1.nc")
    with pytest.raises(UnsupportedError, match=r"local disk"):
        virtualds.sync(
            f"{s3_folder}/data/*.nc", f"{s3_folder}/refs.parquet", concat_dim="time", **how
        )


def test_what_is_no_file_of_its_own_is_refused(make: Make) -> None:
    path = make(0)
    virtualds.open_virtual_dataset(path).virtual.to_manifest("one.refs.json")
    with pytest.raises(UnsupportedError, match=r"one\.refs\.json.*the data lie in other files"):
        virtualds.sync(["one.refs.json"], "refs.zarr", concat_dim="time", settle=0)
    with pytest.raises(UnsupportedError, match="outside of archives"):
        virtualds.sync("zip://a.nc::data.zip", "refs.zarr", concat_dim="time")
    with pytest.raises(IsADirectoryError, match="data: this is a folder"):
        virtualds.sync("data", "refs.zarr", concat_dim="time")
    assert not Path("refs.zarr").exists()


def test_dimensions_are_named(make: Make) -> None:
    make(0)
    for wrong in (None, 1, [0], []):
        with pytest.raises(TypeError, match="give the name of a dimension"):
            run(concat_dim=wrong)
    with pytest.raises(CombineError, match=r"no coordinate 'member'(?s:.*)coordinates="):
        run(concat_dim=["member", "time"])
    assert not Path("refs.zarr").exists()
    assert len(run(concat_dim=("time",)).added) == 1


def test_files_with_groups_are_refused_with_the_groups_that_fit(folder: Path) -> None:
    for number in range(2):
        path = folder / "data" / f"{number}.nc"
        days(4 * number).to_netcdf(path, group="/surface/era", engine="netcdf4")
        xr.Dataset({"z": ("level", [1.0])}).to_netcdf(
            path, mode="a", group="/levels", engine="netcdf4"
        )
    with pytest.raises(CombineError, match=r"have \[\], and it in \['/surface/era'\]\npass group="):
        run(settle=0)
    with pytest.raises(CombineError, match=r"groups \{.*'/levels': \['level'\]"):
        run(settle=0, concat_dim="member")
    assert not Path("refs.zarr").exists()
    run(settle=0, group="/surface/era")
    assert opened("refs.zarr").sizes["time"] == 8


# ---------------------------------------------------------------------- costs and words


def test_files_of_a_large_set_are_compared_without_an_object_for_each(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 5000
    for number in range(count):
        (folder / "data" / f"{number:04}.nc").write_bytes(b"1")
    paths = [str(path) for path in sorted((folder / "data").iterdir())]
    array = virtualds.ManifestArray.from_arrays(
        shape=(count,), chunks=(1,), dtype="i1", path=paths, offsets=np.zeros(count, int), lengths=1
    )
    xr.Dataset({"v": ("time", array), "w": ("time", array)}).virtual.to_manifest("refs.zarr")
    made = []
    original = SourceFile.__new__

    def counted(cls: Any, *given: Any, **named: Any) -> Any:
        made.append(given)
        return original(cls, *given, **named)

    monkeypatch.setattr(SourceFile, "__new__", counted)
    assert run().unchanged == count
    assert len(made) < 100


def test_of_a_file_in_several_arrays_the_state_with_most_details_is_compared() -> None:
    full = [SourceFile(f"file:///{n}.nc", n + 1, 10 + n, f"e{n}") for n in range(4)]
    timed = [SourceFile(file.url, None, file.mtime) for file in full]
    arrays = {
        f"v{number}": ("time", from_one_chunk(file)) for number, file in enumerate(timed + full)
    }
    found = SourceListReader(("time",), "file:///set").tabulate(
        group_from_dataset(xr.Dataset(arrays))
    )
    rows = zip(found.urls, found.sizes, found.mtimes, found.etags, strict=True)
    assert list(rows) == [file[:4] for file in full]


def test_files_that_hold_a_variable_each_follow_no_other_dimension(folder: Path) -> None:
    arrays = {}
    for name in ("a", "b"):
        path = folder / "data" / f"{name}.nc"
        path.write_bytes(b"1")
        arrays[name] = ("time", from_one_chunk(SourceFile(path.as_uri())))
    xr.Dataset(arrays).virtual.to_manifest("refs.zarr")
    assert run().unchanged == 2


def from_one_chunk(file: SourceFile) -> virtualds.ManifestArray:
    return virtualds.ManifestArray.from_arrays(
        shape=(1,), chunks=(1,), dtype="i1", path=file, offsets=0, lengths=1
    )


def test_a_report_says_that_all_files_wait_and_no_set_was_written(make: Make) -> None:
    make(0, age=5)
    make(1, age=5)
    with pytest.warns(
        UserWarning, match="no set yet, since 2 files were modified less than 60 seconds"
    ):
        done = run()
    assert not done.exists and not Path("refs.zarr").exists()
    assert str(done).splitlines() == [
        f"{done.target}: 2 waiting; no set was written",
        "  2 files changed less than 60 s ago; they are left for the next run "
        "(settle=60; --settle 0 takes them now)",
    ]
    with pytest.warns(UserWarning, match="pass a smaller settle="):
        assert "less than 3600 s ago" in str(run(settle=3600))
    assert run(settle=0).exists
    make(0, seed=3, age=5)
    again = run()
    assert again.exists and names(again.waiting) == ["00.nc"]
    assert "no set" not in str(again)


def test_a_report_of_nothing_says_so() -> None:
    assert str(SyncReport("refs.zarr")) == "refs.zarr: nothing to do"


def test_a_report_says_what_was_done(make: Make) -> None:
    make(0)
    make(1, age=5)
    done = run()
    assert str(done).splitlines() == [
        f"{done.target}: 1 added, 1 waiting",
        "  1 file changed less than 60 s ago; it is left for the next run "
        "(settle=60; --settle 0 takes it now)",
        "",
        "Added (1)",
        f"  {done.added[0]}",
    ]
    assert "Added" in done.to_html() and done.to_dict()["added"] == list(done.added)
    assert repr(run(settle=0)).startswith(f"<SyncReport {done.target}: 1 added, 1 unchanged")
    many = SyncReport("refs.zarr", added=tuple(f"{n}.nc" for n in range(22)))
    assert str(many).splitlines()[-1] == "  ... and 2 more"


def test_a_copy_without_its_time_is_accepted_as_the_error_says(make: Make) -> None:
    for number in range(2):
        make(number)
    run()
    path = make(0).resolve()
    path.write_bytes(path.read_bytes())
    os.utime(path, (1, 1))
    with pytest.raises(ReadError, match="copied without its time") as raised:
        xr.open_dataset("refs.zarr", engine="virtual").load()
    assert "virtualds.sync scans it again" in str(raised.value)
    with virtualds.set_options(check_sources=False):
        xr.open_dataset("refs.zarr", engine="virtual").load()
    assert names(run().replaced) == ["00.nc"]
    assert_holds("refs.zarr")


def test_a_set_that_is_damaged_is_an_error_of_a_kind_that_is_documented(make: Make) -> None:
    make(0)
    run("refs.parquet")
    run("refs.json")
    make(1)
    Path("refs.parquet", ".zmetadata").unlink()
    with pytest.raises(
        FileExistsError, match=r"refs\.parquet: exists already, .*; remove it"
    ) as raised:
        run("refs.parquet")
    # sync has no mode
    assert "mode=" not in str(raised.value)
    said = Path("refs.json").read_text()
    # the notes are JSON as text
    damaged = said.replace('contiguous\\":true', 'contiguous\\":Infinity')
    assert damaged != said
    Path("refs.json").write_text(damaged)
    with pytest.raises(FormatError, match="the set notes inf as 'contiguous'"):
        run("refs.json")
    assert Path("refs.json").read_text() == damaged


@pytest.mark.parametrize("suffix", ["json", "parquet"])
def test_what_a_set_cannot_hold_ends_in_what_sync_can_do(suffix: str, make: Make) -> None:
    target = f"refs.{suffix}"
    for number, count in enumerate((4, 3, 4)):
        make(number, count=count)
    general = ("ds.", "rewrite", "format=")
    with pytest.raises(UnsupportedError, match="cannot hold") as caught:
        run("other." + suffix)
    assert "drop_variables" in str(caught.value)
    assert not any(word in str(caught.value) for word in general)
    odd = Path("data/01.nc").rename("01.nc")
    run(target)
    odd.rename("data/01.nc")
    Path("data/00.nc").rename("00.nc")
    make(3, count=2)
    with pytest.raises(UnsupportedError, match="cannot hold") as caught:
        run(target, on_removed="drop")
    said = str(caught.value)
    assert "zarr-v3" in said and "on_removed='keep'" in said and "out of the pattern" in said
    assert not any(word in said for word in general)
    run("refs.zarr", on_removed="drop")
    assert_holds("refs.zarr")


# ---------------------------------------------------------------------- what does not fit


def test_the_new_file_that_does_not_fit_is_named_with_what_sync_takes(make: Make) -> None:
    for number in range(3):
        make(number)
    run()
    before = bytes_below(Path("refs.zarr"))
    for number in range(3, 6):
        make(number)
    odd = written(Path("data"), "04", days(16).assign(wind=("time", np.zeros(4))))
    os.utime(odd, (time.time() - 1000,) * 2)
    with pytest.raises(CombineError, match=r"data/04\.nc: append along 'time'") as raised:
        run()
    assert "wind: the set has no such variable (drop_variables= leaves it out)" in f"{raised.value}"
    assert "new_variables" not in f"{raised.value}"
    assert bytes_below(Path("refs.zarr")) == before
    assert len(run(drop_variables="wind").added) == 3
    assert "wind" not in opened(Path("refs.zarr"))
    assert opened(Path("refs.zarr")).sizes["time"] == 24


def test_a_single_file_with_days_of_the_set_is_named(make: Make) -> None:
    make(0)
    run()
    os.utime(written(Path("data"), "again", days(2)), (time.time() - 1000,) * 2)
    with pytest.raises(CombineError, match=r"again\.nc: append along 'time': 2 of 4 positions"):
        run()


@pytest.mark.parametrize("target", TARGETS)
def test_a_dimension_that_the_files_do_not_follow_is_refused(target: str, make: Make) -> None:
    for number in range(3):
        make(number)
    run(target)
    before = bytes_below(Path())
    with pytest.raises(
        CombineError, match=r"(?s)3 files .*follow each other along 'time'"
    ) as raised:
        run(target, concat_dim="lat")
    assert "pass concat_dim='time'" in f"{raised.value}"
    with pytest.raises(CombineError, match=r"concat_dim 'tim': the set .* has \['lat', 'lon', 't"):
        run(target, concat_dim="tim")
    assert bytes_below(Path()) == before
    assert run(target).unchanged == 3


def test_a_dimension_of_one_chunk_may_still_be_that_of_one_file(make: Make) -> None:
    make(0, count=2)
    run()
    make(1)
    assert len(run().added) == 1
    assert_holds("refs.zarr")


def test_the_files_of_an_unchanged_set_are_listed_once(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        make(number)
    run()
    make(3)
    read, real = [], SourceListReader._read

    def counted(self: SourceListReader, parts: Any) -> Any:
        read.append(parts)
        return real(self, parts)

    monkeypatch.setattr(SourceListReader, "_read", counted)
    assert len(run().added) == 1
    assert len(read) == 1


@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("suffix", [".zarr", ".json"])
def test_virtual_dates_of_a_file_that_has_changed_or_is_gone_are_not_asked(
    suffix: str, which: int, tmp_path: Path
) -> None:
    """xarray asks the first and the last value how dates decode."""
    paths, target = [tmp_path / f"f{number}.nc" for number in range(3)], tmp_path / f"all{suffix}"

    def put(number: int, length: int) -> None:
        begin = 10.0 * number + np.arange(length)
        bounds = ("time", "nv"), np.stack([begin, begin + 1], axis=1)
        attributes = {"units": "days since 2001-01-01", "bounds": "time_bnds"}
        xr.Dataset(
            {"v": ("time", begin), "time_bnds": bounds}, {"time": ("time", begin, attributes)}
        ).to_netcdf(paths[number], engine="netcdf4")

    def sync(**options: Any) -> SyncReport:
        pattern = f"{tmp_path}/f*.nc"
        return virtualds.sync(pattern, target, concat_dim="time", settle=0, **options)

    def check(expected: list[Path]) -> None:
        with xr.open_mfdataset(expected, engine="netcdf4") as native:
            found = xr.open_dataset(target, engine="virtual")
            xr.testing.assert_identical(found.load(), native.load())

    for number in range(3):
        put(number, 2)
    sync()
    put(which, 3)
    assert len(sync().replaced) == 1
    check(paths)
    paths[which].unlink()
    assert len(sync(on_removed="drop").dropped) == 1
    check([path for path in paths if path.exists()])


def test_a_grid_that_only_a_lost_file_has_is_an_error_that_says_so(make: Make) -> None:
    lost = make(0)
    other = written(Path("data"), "01", days(4).drop_vars("height"))
    os.utime(other, (1e9,) * 2)
    run()
    lost.unlink()
    with pytest.raises(CombineError, match="height: it lies in a file that is no longer there"):
        run(on_removed="drop")


def test_a_name_that_neither_the_set_nor_a_file_has_is_an_error(make: Make) -> None:
    for number in range(2):
        make(number)
        with pytest.raises(ValueError, match="'typo': there is no such variable in the set or its"):
            run(loadable_variables=["typo"])
        run()


def test_names_that_a_function_of_the_user_takes_away_are_no_error(make: Make) -> None:
    """As they are none in a build."""
    make(0)

    def prepare(ds: xr.Dataset) -> xr.Dataset:
        return ds.rename(n="counts")

    how: Any = {"preprocess": prepare, "loadable_variables": ["time", "n"]}
    run(**how)
    make(1)
    assert names(run(**how).added) == ["01.nc"]
    assert opened("refs.zarr").sizes["time"] == 8
