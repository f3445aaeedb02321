"""Sets grow, shrink and change by their sources, as concatenation of the native files does."""

from __future__ import annotations

import base64
import json
import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
import xarray as xr
from daily_files import (
    EPOCH,
    SUFFIXES,
    append,
    content,
    days,
    native,
    needs_parts,
    opened,
    virtual,
    written,
)
from products import named_case
from transforms import assert_identical

import virtualds
from virtualds import writing
from virtualds.arrays import sources
from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup, ManifestVariable
from virtualds.datasets.conversion import group_from_dataset
from virtualds.formats import zarr_manifests
from virtualds.formats.zarr import FOLDER, TURN
from virtualds.stores.fence import Turn
from virtualds.writing import name_group_in_errors
from virtualds.writing.append import AppendOptions, _find_readable_dates, append_along


@pytest.fixture(params=SUFFIXES, ids=list(SUFFIXES))
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / f"refs{SUFFIXES[request.param]}"


@pytest.fixture(scope="session")
def written_once(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("days")
    return [written(folder, f"{n}", days(4 * n)) for n in range(5)]


@pytest.fixture
def files(written_once: list[Path], tmp_path: Path) -> list[Path]:
    return [Path(shutil.copy(path, tmp_path)) for path in written_once]


# ---------------------------------------------------------------------- growing


def test_appending_one_by_one_is_concatenation(files: list[Path], target: Path) -> None:
    for count, path in enumerate(files, 1):
        append(path, target)
        assert_identical(opened(target), native(files[:count]))
        assert_identical(virtual(target), native(files[:count]))


def test_an_append_holds_only_new_chunks_in_a_set_of_tables(
    archive_files: list[Path], tmp_path: Path
) -> None:
    """So it reads none of the files that the set refers to."""
    old, new = (Path(shutil.copy(path, tmp_path)) for path in archive_files)
    target = tmp_path / "refs.parquet"
    append(old, target)
    away = old.rename(tmp_path / "away")
    append(new, target, inline_threshold=10_000)
    away.rename(old)
    new.unlink()
    expected = xr.concat([xr.open_dataset(path) for path in archive_files], "time")
    assert (opened(target)["t"].values == expected["t"].values).all()


def test_several_files_are_appended_at_once(files: list[Path], target: Path) -> None:
    append(files[0], target)
    more = xr.concat([virtual(p) for p in files[1:]], "time", data_vars="minimal")
    more.virtual.to_manifest(target, append_dim="time")
    assert_identical(opened(target), native(files))


def test_prepending_puts_a_file_first(files: list[Path], target: Path) -> None:
    for path in files[::-1]:
        append(path, target, position="start")
    assert_identical(opened(target), native(files))


@pytest.mark.product
@pytest.mark.parametrize("order", [(4, 0, 2, 1, 3), (2, 0, 4, 3, 1), (3, 2, 1, 0, 4)], ids=str)
def test_files_out_of_order_find_their_place(
    order: Sequence[int], files: list[Path], target: Path
) -> None:
    for number in order:
        append(files[number], target, position="coordinate")
    assert_identical(opened(target), native(files))


def test_one_addition_may_fill_several_gaps(files: list[Path], target: Path) -> None:
    several = [virtual(files[n]) for n in (1, 3)]
    xr.concat(several, "time", data_vars="minimal").virtual.to_manifest(target)
    gaps = xr.concat([virtual(files[n]) for n in (4, 0, 2)], "time", data_vars="minimal")
    gaps.virtual.to_manifest(target, append_dim="time", position="coordinate")
    assert_identical(opened(target), native(files))


def test_falling_coordinates_continue_to_fall(tmp_path: Path, target: Path) -> None:
    parts = [
        written(tmp_path, f"{n}", days(4 * n).isel(time=slice(None, None, -1))) for n in range(3)
    ]
    append(parts[1], target)
    append(parts[0], target, position="coordinate")
    append(parts[2], target, position="coordinate")
    assert_identical(opened(target), native(parts[::-1]))


def test_single_days_go_between_others(tmp_path: Path, target: Path) -> None:
    needs_parts(target)
    append(written(tmp_path, "a", days(0).isel(time=[0, 2])), target)
    other = written(tmp_path, "b", days(0, 8).isel(time=[1, 5, 3]))
    if target.suffix != ".zarr":
        with pytest.raises(virtualds.UnsupportedError, match="chunk lengths along 'time' vary"):
            append(other, target, position="coordinate")
        return
    append(other, target, position="coordinate")
    assert opened(target)["time"].dt.day.values.tolist() == [1, 2, 3, 4, 6]


def test_days_in_any_order_go_between_two_others(tmp_path: Path) -> None:
    target = tmp_path / "refs.zarr"
    first = written(tmp_path, "a", days(0, 8).isel(time=[0, 7]))
    other = written(tmp_path, "b", days(0, 8).isel(time=[1, 5, 3]))
    append(first, target)
    append(other, target, position="coordinate")
    assert_identical(opened(target), native([first, other]).sortby("time"))


def test_repeated_days_have_no_place(tmp_path: Path) -> None:
    target = tmp_path / "refs.zarr"
    append(written(tmp_path, "a", days(0)), target)
    twice = written(tmp_path, "b", days(0, 8).isel(time=[5, 5]))
    with pytest.raises(virtualds.CombineError, match="repeats or lacks values of 'time'"):
        append(twice, target, position="coordinate")


def test_an_append_does_not_read_existing_sources(files: list[Path], target: Path) -> None:
    needs_parts(target)
    append(files[0], target)
    append(files[1], target)
    files[0].unlink()
    with pytest.raises(virtualds.ReadError):
        opened(target).load()
    np.testing.assert_array_equal(
        opened(target)["t"].isel(time=slice(4, None)).values, native(files[1:2])["t"].values
    )


def test_values_in_memory_are_appended_to_values(files: list[Path], target: Path) -> None:
    for count, path in enumerate(files[:3], 1):
        ds = virtualds.open_virtual_dataset(path, loadable_variables=["n", "time", "height", "l*"])
        ds.virtual.to_manifest(target, append_dim="time")
        assert_identical(opened(target), native(files[:count]))


# ---------------------------------------------------------------------- nothing twice


def test_the_same_source_is_not_appended_twice(files: list[Path], target: Path) -> None:
    append(files[0], target)
    append(files[1], target)
    with pytest.raises(virtualds.CombineError, match=r"(?s)1\.nc.*on_duplicate='skip'"):
        append(files[1], target)
    append(files[1], target, on_duplicate="skip")
    assert_identical(opened(target), native(files[:2]))


def test_of_many_files_only_new_ones_are_appended(files: list[Path], target: Path) -> None:
    append(files[1], target)
    everything = xr.concat([virtual(p) for p in files], "time", data_vars="minimal")
    everything.virtual.to_manifest(
        target, append_dim="time", position="coordinate", on_duplicate="skip"
    )
    assert_identical(opened(target), native(files))


def test_the_same_times_from_another_file_are_found(tmp_path: Path, target: Path) -> None:
    needs_parts(target)
    append(written(tmp_path, "a", days(0)), target)
    overlapping = written(tmp_path, "b", days(2, seed=9))
    with pytest.raises(virtualds.CombineError, match="2 of 4 positions are in the set already"):
        append(overlapping, target)
    append(overlapping, target, on_duplicate="skip")
    assert opened(target).sizes["time"] == 6


# ---------------------------------------------------------------------- replacing and dropping


def test_a_source_processed_again_takes_its_place(
    tmp_path: Path, files: list[Path], target: Path
) -> None:
    needs_parts(target)
    for path in files:
        append(path, target)
    again = written(tmp_path, "2", days(8, seed=99))
    with pytest.raises(virtualds.ReadError):
        opened(target)["t"].load()
    virtual(again).virtual.to_manifest(target, mode="replace-source")
    assert_identical(opened(target), native(files))


def test_the_replacement_of_a_source_may_be_longer(
    tmp_path: Path, files: list[Path], target: Path
) -> None:
    for path in (files[0], files[2]):
        append(path, target)
    again = written(tmp_path, "0", days(0, 8, seed=5))
    if target.suffix == ".nca":
        # it notes the length of the variable, and cannot be read until it is written again
        with pytest.raises(virtualds.FormatError, match=r"(?s)its map says .*write it again"):
            virtual(again).virtual.to_manifest(target, mode="replace-source", append_dim="time")
        return
    virtual(again).virtual.to_manifest(target, mode="replace-source", append_dim="time")
    assert_identical(opened(target), native([again, files[2]]))


def test_another_file_of_the_same_times_takes_its_place(
    tmp_path: Path, files: list[Path], target: Path
) -> None:
    for path in files[:3]:
        append(path, target)
    better = written(tmp_path, "1_v2", days(4, seed=77))
    virtual(better).virtual.to_manifest(target, mode="replace-source", append_dim="time")
    assert_identical(opened(target), native([files[0], better, files[2]]))
    urls = virtualds.open_virtual_dataset(target).virtual.sources["url"]
    assert sorted(Path(u).name for u in urls) == ["0.nc", "1_v2.nc", "2.nc"]


def test_a_source_is_dropped(files: list[Path], target: Path) -> None:
    for path in files:
        append(path, target)
    virtualds.drop_sources(target, [str(files[1]), str(files[4])])
    assert_identical(opened(target), native([files[0], files[2], files[3]]))
    with pytest.raises(virtualds.CombineError, match=r"1\.nc: the set has no such source"):
        virtualds.drop_sources(target, str(files[1]), dim="time")
    rest = [str(files[n]) for n in (0, 2, 3)]
    with pytest.raises(virtualds.CombineError, match="nothing would be left"):
        virtualds.drop_sources(target, rest, dim="time")


def test_a_dry_run_reports_what_dropping_a_source_does(files: list[Path], target: Path) -> None:
    for path in files[:3]:
        append(path, target)
    before = content(target)
    planned = virtualds.drop_sources(target, str(files[1]), dry_run=True)
    assert content(target) == before
    assert planned.sources == (files[1].as_uri(),)
    steps = [native([path]).sizes["time"] for path in files[:3]]
    assert planned.sizes == (("/time", sum(steps), sum(steps) - steps[1]),)
    assert set(planned.kept) == {f"/{name}" for name in opened(target).variables}
    done = virtualds.drop_sources(target, str(files[1]))
    assert (planned.dry_run, done.dry_run) == (True, False)
    assert planned.to_dict() | {"dry_run": False} == done.to_dict()
    with pytest.raises(virtualds.CombineError, match=r"1\.nc: the set has no such source"):
        virtualds.drop_sources(target, str(files[1]), dim="time", dry_run=True)


def test_values_that_the_set_holds_go_with_their_positions(
    files: list[Path], tmp_path: Path
) -> None:
    target = tmp_path / "refs.zarr"
    joined = virtualds.open_virtual_mfdataset(
        files, combine="nested", concat_dim="time", loadable_variables=["time", "lat", "lon", "n"]
    )
    joined.virtual.to_manifest(target)
    virtualds.drop_sources(target, str(files[1]), dim="time")
    assert_identical(opened(target), native([files[0], *files[2:]]))


# ---------------------------------------------------------------------- dropping from a grid


def forecast(folder: Path, run: int, lead: int, **more: Any) -> Path:
    """The file of one run and one lead, which knows the level of its lead, too."""
    values = np.arange(6.0).reshape(1, 1, 6) + 100 * run + 10 * lead
    ds = xr.Dataset(
        {"t": (("run", "step", "x"), values), "level": ("step", [lead * 1.5]), **more},
        {"run": [run], "step": [lead], "x": np.arange(6.0)},
    )
    path = folder / f"{run}-{lead}.nc"
    encoding = {"t": {"zlib": True, "chunksizes": (1, 1, 4)}}
    ds.to_netcdf(path, engine="netcdf4", encoding=encoding)
    return path


def grid(folder: Path, target: Path, **more: Any) -> dict[tuple[int, int], Path]:
    """A set of three runs and five leads."""
    made = {(r, s): forecast(folder, r, s, **more) for r in range(3) for s in range(5)}
    joined = virtualds.open_virtual_mfdataset(
        list(made.values()), combine="nested", concat_dim=["run", "step"]
    )
    joined.virtual.to_manifest(target)
    return made


def test_a_source_dropped_from_a_grid_leaves_a_gap(tmp_path: Path, target: Path) -> None:
    for dim in ("step", "run"):
        place = target.with_stem(f"{dim}-refs")
        files = grid(tmp_path, place)
        expected = opened(place).load()
        for cell in ((1, 3), (0, 4)):
            virtualds.drop_sources(place, str(files[cell]), dim=dim)
            expected["t"][cell] = np.nan
            xr.testing.assert_identical(opened(place).load(), expected)
        left = {Path(url).name for url in virtual(place).virtual.sources["url"]}
        # the level of a lead lies in the file of its first run
        assert left == {path.name for path in files.values()} - {"1-3.nc"}
        if dim == "step":
            with pytest.raises(virtualds.CombineError, match=r"0-4\.nc: all that is left of it"):
                virtualds.drop_sources(place, str(files[0, 4]), dim=dim)
        xr.testing.assert_identical(opened(place).load(), expected)


def test_a_position_of_a_grid_goes_when_nothing_is_left_there(tmp_path: Path, target: Path) -> None:
    files = grid(tmp_path, target)
    whole = opened(target).load()
    virtualds.drop_sources(target, str(files[1, 3]), dim="step")
    # together with a gap elsewhere
    virtualds.drop_sources(target, [str(files[n]) for n in ((0, 3), (2, 3), (2, 0))], dim="step")
    expected = whole.drop_sel(step=3)
    expected["t"][2, 0] = np.nan
    xr.testing.assert_identical(opened(target).load(), expected)


def test_what_other_files_know_of_the_same_times_stays(tmp_path: Path, target: Path) -> None:
    parts = {"t": [], "u": []}
    for number in range(3):
        for name, paths in parts.items():
            one = days(4 * number)[["t"]].rename(t=name)
            one.to_netcdf(tmp_path / f"{name}{number}.nc", engine="netcdf4")
            paths.append(tmp_path / f"{name}{number}.nc")
    joined = [
        virtualds.open_virtual_mfdataset(paths, combine="nested", concat_dim="time")
        for paths in parts.values()
    ]
    xr.merge(joined).virtual.to_manifest(target)
    expected = opened(target).load()
    virtualds.drop_sources(target, str(parts["u"][1]), dim="time")
    expected["u"][4:8] = np.nan
    xr.testing.assert_identical(opened(target).load(), expected)


def test_a_gap_that_would_read_as_a_value_is_refused(tmp_path: Path, target: Path) -> None:
    files = grid(tmp_path, target, n=(("run", "step"), np.array([[7]])))
    before = content(target)
    with pytest.raises(virtualds.CombineError, match=r"1-3\.nc.*a gap in 'n'.*no value of 'n'"):
        virtualds.drop_sources(target, str(files[1, 3]), dim="step")
    assert content(target) == before


def test_a_dropped_source_reads_as_missing_beside_gaps_that_are_values(tmp_path: Path) -> None:
    # every kind of dtype that has a missing value
    for kind in ("f4", "M8[s]", "c8"):
        target = tmp_path / f"{kind}.zarr"
        values = np.arange(6).reshape(2, 3).astype(kind)
        known = values[1, 2]
        for (t, s), value in np.ndenumerate(values):
            np.save(tmp_path / f"{kind}-{t}{s}.npy", value.reshape(1, 1))
        cells = [[virtual(tmp_path / f"{kind}-{t}{s}.npy") for s in range(3)] for t in range(2)]
        joined = xr.combine_nested(cells, ["dim_0", "dim_1"]).assign_coords(dim_1=range(3))
        joined.reindex(dim_1=range(4), fill_value=known).virtual.to_manifest(target)
        expected = np.pad(values, [(0, 0), (0, 1)], constant_values=known)
        for t, s in ((1, 1), (0, 2)):
            virtualds.drop_sources(target, str(tmp_path / f"{kind}-{t}{s}.npy"), dim="dim_1")
            expected[t, s] = np.array("NaT" if kind[0] == "M" else np.nan, kind)
            np.testing.assert_array_equal(opened(target)["array"], expected)


def test_a_gap_that_a_format_cannot_hold_is_refused_with_what_helps(tmp_path: Path) -> None:
    for number in range(4):
        t, s = divmod(number, 2)
        # no attribute says which number is missing
        xr.Dataset(
            {"v": (("t", "s"), np.full((1, 1), number, "f4"))}, {"t": [t], "s": [s]}
        ).to_netcdf(
            tmp_path / f"{number}.nc", engine="netcdf4", encoding={"v": {"_FillValue": None}}
        )
    dropped, converted = str(tmp_path / "3.nc"), tmp_path / "refs.zarr"
    joined = virtualds.open_virtual_mfdataset(sorted(tmp_path.glob("*.nc")))
    for name, choices in (
        ("refs.json", {}),
        ("refs3.json", {"zarr_format": 3}),
        ("refs.parquet", {}),
    ):
        target = tmp_path / name
        joined.virtual.to_manifest(target, **choices)
        before = content(target)
        with pytest.raises(virtualds.UnsupportedError, match=r"refs.* cannot hold") as caught:
            virtualds.drop_sources(target, dropped, dim="s")
        assert content(target) == before
        message = str(caught.value)
        with pytest.raises(virtualds.UnsupportedError) as tried:
            virtualds.drop_sources(target, dropped, dim="s", dry_run=True)
        assert str(tried.value) == message
        assert "convert the set to zarr-v3" in message
        assert "write the set again without this source" in message
        assert not any(other in message for other in ("on_unsupported", "(ds.", "format="))
        # as the message says
        virtualds.convert(target, converted, mode="w")
        virtualds.drop_sources(converted, dropped, dim="s")
        np.testing.assert_array_equal(opened(converted)["v"], [[0, 1], [2, np.nan]])


def test_a_gap_beside_chunks_of_unknown_sources_is_refused(tmp_path: Path) -> None:
    grid(tmp_path, tmp_path / "refs.json")
    refs = json.loads((tmp_path / "refs.json").read_text())
    url, offset, length = refs["refs"]["t/1.3.0"]
    raw = Path(url.removeprefix("file://")).read_bytes()[offset : offset + length]
    refs["refs"]["t/1.3.0"] = "base64:" + base64.b64encode(raw).decode()
    (tmp_path / "refs.json").write_text(json.dumps(refs))
    with pytest.raises(virtualds.CombineError, match=r"'t' has chunks that .* held in the set"):
        virtualds.drop_sources(tmp_path / "refs.json", str(tmp_path / "1-3.nc"), dim="step")


# ---------------------------------------------------------------------- what does not fit


UNFIT: dict[str, tuple[Callable[[xr.Dataset], xr.Dataset], str]] = {
    "a variable more": (lambda ds: ds.assign(extra=ds["t"]), "extra: the set has no such variable"),
    "a variable less": (lambda ds: ds.drop_vars("n"), "n: the new dataset has no such variable"),
    "another dtype": (lambda ds: ds.assign(t=ds["t"].astype("M8[s]")), "t: its dtype is float32"),
    "other dimensions": (lambda ds: ds.assign(t=ds["t"].transpose()), "t: its dimensions are"),
    "another length": (lambda ds: ds.isel(lon=slice(3)), "elements along 'lon'"),
    "another grid": (
        lambda ds: ds.assign_coords(lat=ds["lat"] + 1),
        "lat: it has no dimension 'time'",
    ),
}


def test_datasets_that_do_not_fit_are_refused_before_anything_is_written(
    files: list[Path], target: Path, tmp_path: Path
) -> None:
    append(files[0], target)
    before = content(target)
    for how, (change, reason) in UNFIT.items():
        with named_case(how):
            path = tmp_path / f"{how}.nc"
            change(days(4)).to_netcdf(path, engine="netcdf4")
            with pytest.raises(virtualds.CombineError, match=reason):
                append(path, target)
            assert content(target) == before
    assert_identical(opened(target), native(files[:1]))


def test_times_between_days_get_finer_units(
    files: list[Path], target: Path, tmp_path: Path
) -> None:
    append(files[0], target)
    new = days(4).assign_coords(time=days(4)["time"] + np.timedelta64(6, "h"))
    path = written(tmp_path, "between", new, time={"units": "hours since 2000-01-01"})
    append(path, target)
    append(files[2], target)
    assert_identical(opened(target), native([files[0], path, files[2]]))


def test_times_with_bounds_keep_the_units_by_which_these_are_decoded(tmp_path: Path) -> None:
    for n, shift in enumerate((0, 6)):
        time = np.datetime64("2000-01-01") + np.arange(2) + np.timedelta64(shift + 48 * n, "h")
        bounds = ("time", "nv"), np.stack([time, time + np.timedelta64(1, "D")], axis=1)
        data = {"t": ("time", np.arange(2.0)), "time_bnds": bounds}
        units = {"units": f"{('days', 'hours')[n]} since 2000-01-01", "dtype": "i4"}
        dataset = xr.Dataset(data, {"time": ("time", time, {"bounds": "time_bnds"})})
        dataset.to_netcdf(tmp_path / f"{n}.nc", encoding={"time": units})
    append(tmp_path / "0.nc", tmp_path / "refs.zarr")
    with pytest.raises(virtualds.CombineError, match="cannot store the new values of 'time'"):
        append(tmp_path / "1.nc", tmp_path / "refs.zarr")


def test_no_remedy_for_other_values_takes_those_of_the_set(target: Path, tmp_path: Path) -> None:
    for n in range(2):
        area = ("lat", np.full(days(4).sizes["lat"], float(n)))
        later = days(4).assign_coords(time=days(4)["time"] + np.timedelta64(9 * n, "D"), area=area)
        later.to_netcdf(tmp_path / f"{n}.nc", engine="netcdf4")
    append(tmp_path / "0.nc", target)
    with pytest.raises(virtualds.CombineError, match="area: it has no dimension") as raised:
        append(tmp_path / "1.nc", target)
    assert "drop_vars" not in str(raised.value) and "coords='different'" in str(raised.value)
    both = virtualds.open_virtual_mfdataset(
        [tmp_path / "0.nc", tmp_path / "1.nc"], coords="different"
    )
    assert set(both["area"].values[:, 0]) == {0, 1}


def test_other_units_of_time_are_converted_to_those_of_the_set(
    files: list[Path], target: Path, tmp_path: Path
) -> None:
    append(files[0], target)
    other = written(tmp_path, "other", days(4), time={"units": "hours since 1990-01-01"})
    append(other, target)
    assert_identical(opened(target), native([files[0], other]))
    assert opened(target)["time"].encoding["units"] == EPOCH


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"append_dim": "depth"}, "dimension 'depth'"),
    ({"append_dim": "time", "position": "middle"}, "position='middle'"),
    ({"append_dim": "time", "on_duplicate": "ignore"}, "on_duplicate='ignore'"),
    ({"append_dim": "time", "conflict": "wait"}, "conflict='wait'"),
    ({"mode": "w", "conflict": "wait"}, "conflict='wait'"),
    ({"append_dim": "time", "mode": "w"}, "mode='w'"),
    ({"mode": "r+", "append_dim": "time"}, "mode='r\\+' with append_dim='time'"),
    ({"mode": "a", "position": "start"}, "position='start'"),
    ({"mode": "r+", "on_duplicate": "replace"}, "on_duplicate='replace'"),
    ({"append_dim": "time", "on_duplicate": "replace"}, "on_duplicate='replace'"),
    ({"append_dim": "time", "new_variables": "ignore"}, "new_variables='ignore'"),
    ({"append_dim": "time", "missing_variables": "drop"}, "missing_variables='drop'"),
    ({"mode": "a", "new_variables": "fill"}, "new_variables='fill'"),
    ({"group": "a/../b"}, "'..' is not a name of a group"),
    ({"mode": "r"}, "mode='r'"),
    ({"mode": "w", "position": "start"}, "position='start'"),
    ({"mode": "w-", "on_duplicate": "skip"}, "on_duplicate='skip'"),
]


def test_wrong_arguments_are_named(files: list[Path], target: Path) -> None:
    append(files[0], target)
    before = content(target)
    for how, message in WRONG:
        with named_case(how):
            with pytest.raises(ValueError, match=message):
                virtual(files[1]).virtual.to_manifest(target, **how)
            assert content(target) == before
    assert_identical(opened(target), native(files[:1]))


def test_a_set_of_another_format_is_no_other_writer(files: list[Path], tmp_path: Path) -> None:
    """Retrying would not help."""
    virtual(files[0]).virtual.to_manifest(tmp_path / "refs.parquet", format="zarr-v3")
    with pytest.raises(FileExistsError, match=r"refs\.parquet: exists already"):
        append(files[1], tmp_path / "refs.parquet", conflict="retry")
    assert len(virtualds.snapshots(tmp_path / "refs.parquet")) == 1


def test_a_folder_that_is_no_set_is_left_alone(files: list[Path], tmp_path: Path) -> None:
    (tmp_path / "refs.zarr").mkdir()
    (tmp_path / "refs.zarr" / "a").write_text("somebody else's")
    with pytest.raises(FileExistsError, match="not a reference set"):
        append(files[0], tmp_path / "refs.zarr", conflict="retry")


def test_nothing_is_replaced_in_a_set_that_does_not_exist(files: list[Path], target: Path) -> None:
    missing = pytest.raises(FileNotFoundError, match="there is no reference set")
    with missing:
        virtual(files[0]).virtual.to_manifest(target, mode="replace-source", append_dim="time")
    with missing:
        virtualds.drop_sources(target, str(files[0]))


# ---------------------------------------------------------------------- what must not get lost


def plain(folder: Path, number: int, change: Any = None, **encoding: Any) -> Path:
    """Four days of a file that every format can hold after the others."""
    values = np.random.default_rng(number).normal(size=(4, 3)).astype("f4")
    time = np.datetime64("2000-01-01", "ns") + np.arange(4 * number, 4 * number + 4) * DAY
    ds = xr.Dataset({"t": (("time", "x"), values)}, {"time": time})
    ds = ds if change is None else change(ds)
    settings = {"time": {"units": EPOCH, "dtype": "i8"}, **encoding}
    ds.to_netcdf(folder / f"{number}.nc", engine="netcdf4", encoding=settings)
    return folder / f"{number}.nc"


DAY = np.timedelta64(1, "D")


def test_coordinates_along_dimensions_without_data_stay(tmp_path: Path, target: Path) -> None:
    def change(ds: xr.Dataset) -> xr.Dataset:
        return ds.assign_coords(edges=(("x", "side"), np.arange(6.0).reshape(3, 2)), q=("z", [1]))

    paths = [plain(tmp_path, n, change) for n in range(3)]
    for path in paths:
        append(path, target)
    assert_identical(opened(target), native(paths))


@pytest.mark.parametrize("position", ["start", "coordinate"])
def test_a_prepended_file_does_not_change_attributes_of_the_set(
    position: str, tmp_path: Path, target: Path
) -> None:
    def described(note: str) -> Any:
        return lambda ds: ds.assign(t=ds.t.assign_attrs(note=note))

    first = plain(tmp_path, 0, described("new"), time={"units": "days since 1999-01-01"})
    second = plain(tmp_path, 1, described("old"))
    append(second, target)
    append(first, target, position=position)
    found = opened(target)
    assert found.t.attrs == {"note": "old"}
    assert found.time.encoding["units"] == EPOCH
    xr.testing.assert_equal(found, native([first, second]))


def test_a_first_source_processed_again_may_count_from_another_day(
    tmp_path: Path, target: Path
) -> None:
    paths = [plain(tmp_path, n) for n in range(2)]
    for path in paths:
        append(path, target)
    plain(tmp_path, 0, lambda ds: ds + 1, time={"units": "days since 1999-01-01"})
    append(paths[0], target, mode="replace-source")
    xr.testing.assert_equal(opened(target), native(paths))


@pytest.mark.parametrize("packing", [{"scale_factor": np.float32(0.5)}, {"_FillValue": -9.0}])
def test_values_that_are_not_decoded_are_not_appended_to_decoded_ones(
    packing: dict[str, Any], tmp_path: Path, target: Path
) -> None:
    first, second = (plain(tmp_path, n, t={"dtype": "f4", **packing}) for n in range(2))
    append(first, target)
    raw = virtualds.open_virtual_dataset(second, decode_cf=False)
    raw = raw.assign_coords(time=virtual(second).time)
    with pytest.raises(virtualds.CombineError, match=rf"t: it is not decoded.*{min(packing)}"):
        raw.virtual.to_manifest(target, append_dim="time")


OTHER_DATES: dict[str, Any] = {
    "another calendar": xr.date_range("2001-01-01", periods=4, calendar="noleap", use_cftime=True),
    "strings": np.array(["a", "b", "c", "d"], object),
}


@pytest.mark.parametrize("other", OTHER_DATES)
def test_dates_are_continued_by_dates_of_the_same_calendar(
    other: str, tmp_path: Path, target: Path
) -> None:
    days_of_360 = xr.date_range("2001-01-01", periods=4, calendar="360_day", use_cftime=True)
    for number, time in enumerate([days_of_360, OTHER_DATES[other]]):
        ds = xr.Dataset({"t": ("time", np.arange(4.0))}, {"time": time})
        ds.to_netcdf(tmp_path / f"{number}.nc", engine="netcdf4")
    append(tmp_path / "0.nc", target)
    with pytest.raises(virtualds.CombineError, match="time: its values are Datetime360Day"):
        append(tmp_path / "1.nc", target)


def test_a_coordinate_that_was_not_loaded_is_appended(tmp_path: Path, target: Path) -> None:
    paths = [plain(tmp_path, n) for n in range(3)]
    for path in paths:
        ds = virtualds.open_virtual_dataset(path, loadable_variables=[])
        ds.virtual.to_manifest(target, append_dim="time")
    assert_identical(opened(target), native(paths))


def test_missing_dates_are_not_taken_for_the_same_date(tmp_path: Path, target: Path) -> None:
    def change(ds: xr.Dataset) -> xr.Dataset:
        return ds.assign_coords(time=ds.time.where(ds.time != ds.time[1]))

    paths = [plain(tmp_path, n, change, time={"units": EPOCH}) for n in range(2)]
    for path in paths:
        append(path, target, on_duplicate="skip")
    assert opened(target).sizes["time"] == 8
    # one that comes again is known by its elements
    for path in paths:
        append(path, target, on_duplicate="skip")
    assert opened(target).sizes["time"] == 8


def test_slices_of_one_file_are_appended_one_by_one(files: list[Path], target: Path) -> None:
    needs_parts(target)
    whole = virtual(files[0]).drop_vars(["n", "height"], errors="ignore")
    expected = native(files[:1])[list(whole.variables)]
    whole.isel(time=slice(0, 2)).virtual.to_manifest(target)
    with pytest.raises(virtualds.CombineError, match=r"2 of 4 positions .* number 0, time 2000"):
        whole.virtual.to_manifest(target, append_dim="time")
    whole.isel(time=slice(2, 4)).virtual.to_manifest(target, append_dim="time")
    whole.virtual.to_manifest(target, append_dim="time", on_duplicate="skip")
    assert_identical(opened(target), expected)


def test_slices_without_a_coordinate_are_known_by_their_elements(
    tmp_path: Path, target: Path
) -> None:
    """Chunks of five positions, of which slices show some."""
    needs_parts(target)
    values = np.arange(80, dtype="f4").reshape(20, 4)
    ds = xr.Dataset({"t": (("time", "x"), values)})
    ds.to_netcdf(tmp_path / "a.nc", encoding={"t": {"chunksizes": (5, 2), "zlib": True}})
    whole = virtualds.open_virtual_dataset(tmp_path / "a.nc")
    whole.isel(time=slice(0, 5)).virtual.to_manifest(target)
    whole.isel(time=slice(5, 10)).virtual.to_manifest(target, append_dim="time")
    again = whole.isel(time=slice(8, 12))
    with pytest.raises(virtualds.CombineError, match=r"2 of 4 positions .* number 0, .*a\.nc"):
        again.virtual.to_manifest(target, append_dim="time")
    rest = whole.isel(time=slice(8, 20))
    rest.virtual.to_manifest(target, append_dim="time", on_duplicate="skip")
    xr.testing.assert_equal(opened(target).load(), ds)
    whole.virtual.to_manifest(target, append_dim="time", on_duplicate="skip")
    assert opened(target).sizes["time"] == 20


def test_slices_that_cut_one_chunk_are_known_by_their_elements(tmp_path: Path) -> None:
    ds = xr.Dataset({"t": (("time",), np.arange(10, dtype="f4"))})
    ds.to_netcdf(tmp_path / "a.nc", encoding={"t": {"chunksizes": (10,), "zlib": True}})
    whole = virtualds.open_virtual_dataset(tmp_path / "a.nc")
    for part in (slice(0, 3), slice(3, 8)):
        whole.isel(time=part).virtual.to_manifest(tmp_path / "refs.zarr", append_dim="time")
    with pytest.raises(virtualds.CombineError, match="8 of 10 positions"):
        whole.virtual.to_manifest(tmp_path / "refs.zarr", append_dim="time")
    whole.virtual.to_manifest(tmp_path / "refs.zarr", append_dim="time", on_duplicate="skip")
    xr.testing.assert_equal(opened(tmp_path / "refs.zarr").load(), ds)


# what the set shows of twenty positions in chunks of ten, what comes, and which of that is known
SHOWN: list[tuple[slice, slice, list[int]]] = [
    (slice(3, 8), slice(0, 10), [3, 4, 5, 6, 7]),
    (slice(0, 3), slice(0, 10), [0, 1, 2]),
    (slice(8, 12), slice(5, 20), [3, 4, 5, 6]),
    # of one chunk, and far apart in it
    (slice(0, 3), slice(8, 20), []),
    (slice(17, 20), slice(0, 12), []),
    (slice(5, 6), slice(6, 20), []),
]


@pytest.mark.parametrize(("there", "comes", "known"), SHOWN, ids=str)
def test_only_the_visible_elements_of_cropped_chunks_count_as_known(
    there: slice, comes: slice, known: list[int], tmp_path: Path
) -> None:
    ds = xr.Dataset({"t": (("time",), np.arange(20, dtype="f4"))})
    ds.to_netcdf(tmp_path / "a.nc", encoding={"t": {"chunksizes": (10,), "zlib": True}})
    whole = virtualds.open_virtual_dataset(tmp_path / "a.nc")
    whole.isel(time=there).virtual.to_manifest(tmp_path / "refs.zarr")
    new = whole.isel(time=comes)
    if known:
        said = f"{len(known)} of {new.sizes['time']} positions .* number {known[0]}"
        with pytest.raises(virtualds.CombineError, match=said):
            new.virtual.to_manifest(tmp_path / "refs.zarr", append_dim="time")
    how = "skip" if known else "raise"
    new.virtual.to_manifest(tmp_path / "refs.zarr", append_dim="time", on_duplicate=how)
    fresh = np.delete(ds.t.values[comes], known)
    found = opened(tmp_path / "refs.zarr").t.values
    np.testing.assert_array_equal(found, np.concatenate([ds.t.values[there], fresh]))


@pytest.mark.parametrize("known", [0, 1, 2])
def test_of_joined_files_without_a_coordinate_only_new_ones_are_added(
    known: int, tmp_path: Path, target: Path
) -> None:
    parts = []
    for number in range(3):
        ds = xr.Dataset({"t": ("time", np.arange(4, dtype="f4") + 10 * number)})
        ds.to_netcdf(path := tmp_path / f"{number}.nc", encoding={"t": {"chunksizes": (2,)}})
        parts.append(virtual(path))
    parts[known].virtual.to_manifest(target)
    xr.concat(parts, "time").virtual.to_manifest(target, append_dim="time", on_duplicate="skip")
    order = [known, *(n for n in range(3) if n != known)]
    expected = xr.concat([parts[n].virtual.load() for n in order], "time")
    np.testing.assert_array_equal(opened(target).t, expected.t)


@pytest.mark.parametrize("how", ["raise", "skip"])
def test_parts_of_a_source_before_and_after_it_changed_do_not_mix(
    how: str, tmp_path: Path, target: Path
) -> None:
    needs_parts(target)
    path = plain(tmp_path, 0)
    virtual(path).isel(time=slice(0, 2)).virtual.to_manifest(target)
    stamp = path.stat().st_mtime_ns + 10**9
    os.utime(path, ns=(stamp, stamp))
    rest = virtual(path).isel(time=slice(2, 4))
    with pytest.raises(virtualds.CombineError, match=r"(?s)0\.nc has changed .*replace-source"):
        rest.virtual.to_manifest(target, append_dim="time", on_duplicate=how)
    assert opened(target).sizes["time"] == 2


DTYPES = [("f4", "f8"), ("f8", "f4"), ("i2", "i4"), ("i4", "f4"), ("u1", "i1"), ("i8", "f8")]


@pytest.mark.product
@pytest.mark.parametrize("loaded", [False, True])
@pytest.mark.parametrize("dtypes", DTYPES, ids=str)
def test_numbers_of_other_dtypes_are_promoted_as_joining_does(
    dtypes: tuple[str, str], loaded: bool, tmp_path: Path, target: Path
) -> None:
    parts = []
    for number, dtype in enumerate(dtypes):
        values = (np.arange(4) + 10 * number).astype(dtype)
        part = xr.Dataset({"t": ("time", values)}, {"time": np.arange(4) + 4 * number})
        part.to_netcdf(tmp_path / f"{number}.nc")
        parts.append(part)
    names = ["t", "time"] if loaded else None
    if loaded:
        needs_parts(target)
    for number in range(2):
        ds = virtualds.open_virtual_dataset(tmp_path / f"{number}.nc", loadable_variables=names)
        if number and not loaded and target.suffix not in (".zarr", ".nca"):
            with pytest.raises(virtualds.UnsupportedError, match=r"cannot hold[\s\S]*t:"):
                ds.virtual.to_manifest(target, append_dim="time")
            return
        ds.virtual.to_manifest(target, append_dim="time")
    expected = xr.concat(parts, "time")
    assert opened(target)["t"].dtype == expected["t"].dtype
    xr.testing.assert_identical(opened(target).load(), expected)


def test_a_source_that_was_dropped_can_come_back(tmp_path: Path, target: Path) -> None:
    def with_grid(ds: xr.Dataset) -> xr.Dataset:
        return ds.assign(height=("x", np.arange(3.0)))

    paths = [plain(tmp_path, n, with_grid) for n in range(3)]
    for path in paths:
        append(path, target)
    # the set still refers to it for what does not grow
    virtualds.drop_sources(target, str(paths[0]))
    append(paths[0], target)
    assert_identical(opened(target), native([*paths[1:], paths[0]]))


def test_an_error_of_comparing_says_to_leave_the_variable_out(tmp_path: Path, target: Path) -> None:
    needs_parts(target)

    def with_grid(ds: xr.Dataset) -> xr.Dataset:
        return ds.assign(height=("x", np.arange(3.0)))

    paths = [plain(tmp_path, n, with_grid) for n in range(2)]
    append(paths[0], target)
    expected = native(paths)
    paths[0].rename(tmp_path / "away.nc")
    with pytest.raises(virtualds.ReadError) as caught:
        append(paths[1], target)
    assert "'height'" in caught.value.__notes__[-1] and "drop_vars" in caught.value.__notes__[-1]
    virtual(paths[1]).drop_vars("height").virtual.to_manifest(target, append_dim="time")
    (tmp_path / "away.nc").rename(paths[0])
    assert_identical(opened(target), expected)


def test_appending_through_a_link_appends_to_its_target(tmp_path: Path, target: Path) -> None:
    paths = [plain(tmp_path, n) for n in range(3)]
    append(paths[0], target)
    link = tmp_path / f"link{target.suffix}"
    link.symlink_to(target)
    append(paths[1], link)
    append(paths[2], target)
    assert link.is_symlink()
    assert_identical(opened(target), native(paths))
    assert_identical(opened(link), native(paths))


def test_creating_a_set_through_a_link_leaves_the_link(tmp_path: Path, target: Path) -> None:
    paths = [plain(tmp_path, n) for n in range(2)]
    real = tmp_path / "real" / target.name
    real.parent.mkdir()
    virtual(paths[0]).virtual.to_manifest(real)
    target.symlink_to(real)
    virtual(paths[1]).virtual.to_manifest(target, mode="w")
    assert target.is_symlink()
    assert_identical(opened(real), native(paths[1:]))
    assert {path.name for path in tmp_path.glob(".refs*")} <= {f".{target.name}.lock"}


def with_grid_of(*values: float) -> Any:
    return lambda ds: ds.assign(height=("y", np.array(values)))


def test_a_static_variable_is_replaced_only_with_its_own_source(
    tmp_path: Path, target: Path
) -> None:
    paths = [plain(tmp_path, n, with_grid_of(1, 2)) for n in range(2)]
    for path in paths:
        append(path, target)
    plain(tmp_path, 1, with_grid_of(3, 4))
    with pytest.raises(virtualds.CombineError, match="height: it has no dimension"):
        append(paths[1], target, mode="replace-source")
    plain(tmp_path, 0, with_grid_of(3, 4))
    append(paths[0], target, mode="replace-source")
    with virtualds.set_options(check_sources=False):
        assert opened(target).height.values.tolist() == [3, 4]


def test_a_static_variable_keeps_the_sizes_of_the_set(tmp_path: Path, target: Path) -> None:
    needs_parts(target)

    def grids(count: int) -> Any:
        return lambda ds: with_grid_of(*range(count))(ds).assign_coords(y=np.arange(count))

    path = plain(tmp_path, 0, grids(2))
    append(path, target)
    append(plain(tmp_path, 1, grids(2)), target)
    plain(tmp_path, 0, lambda ds: with_grid_of(1, 2, 3)(ds))
    with pytest.raises(virtualds.CombineError, match="'height' has 3 elements along 'y' now"):
        append(path, target, mode="replace-source")


def test_a_source_processed_again_may_have_the_same_layout(tmp_path: Path, target: Path) -> None:
    paths = [plain(tmp_path, n) for n in range(3)]
    for number in range(3):
        for path in paths:
            append(path, target, on_duplicate="skip")
        plain(tmp_path, number, lambda ds: ds.assign(t=ds.t * 3))
        append(paths[number], target, mode="replace-source")
        assert_identical(opened(target), native(paths))


def test_bounds_in_other_units_get_no_attributes(tmp_path: Path) -> None:
    def bounded(ds: xr.Dataset) -> xr.Dataset:
        bounds = (("time", "side"), np.stack([ds.time.values] * 2, axis=1))
        return ds.assign_coords(time=ds.time.assign_attrs(bounds="edges")).assign(edges=bounds)

    units = [{"units": f"days since 1999-01-0{n + 1}", "dtype": "i8"} for n in range(2)]
    paths = [plain(tmp_path, n, bounded, time=units[n]) for n in range(2)]
    for path in paths:
        append(path, tmp_path / "refs.zarr")
    assert_identical(opened(tmp_path / "refs.zarr"), native(paths))
    assert virtual(tmp_path / "refs.zarr").edges.attrs == {}


def test_a_set_in_memory_of_local_files_grows_where_allow_permits(
    files: list[Path], target: Path
) -> None:
    if target.suffix == ".icechunk":
        pytest.skip("Icechunk knows nothing of fsspec's memory")
    url = f"memory://{uuid4().hex}/{target.name}"
    virtual(files[0]).virtual.to_manifest(url)
    folder = str(files[0].parent)
    with pytest.raises(virtualds.AccessError, match="allow="):
        virtual(files[1]).virtual.to_manifest(url, append_dim="time", allow=f"{folder}/other")
    # the memory of the process is as trusted as its disk
    virtual(files[1]).virtual.to_manifest(url, append_dim="time")
    assert_identical(xr.open_dataset(url, engine="virtual"), native(files[:2]))


def test_a_remote_set_of_local_files_grows_if_allow_permits(
    files: list[Path], target: Path, s3_folder: str, s3_server: dict[str, Any]
) -> None:
    if target.suffix == ".icechunk":
        pytest.skip("Icechunk keeps its own list of places")
    url, there = f"{s3_folder}/{target.name}", {"storage_options": s3_server}
    with pytest.warns(virtualds.AccessWarning, match="allow="):
        virtual(files[0]).virtual.to_manifest(url, **there)
    with pytest.raises(virtualds.AccessError, match="allow="):
        virtual(files[1]).virtual.to_manifest(url, append_dim="time", **there)
    allowed = {"allow": str(files[0].parent), **there}
    virtual(files[1]).virtual.to_manifest(url, append_dim="time", **allowed)
    found = xr.open_dataset(url, engine="virtual", **allowed)
    assert_identical(found, native(files[:2]))
    if target.suffix != ".parquet":  # whose records are replaced on local disk alone
        virtualds.drop_sources(url, str(files[0]), dim="time", **allowed)


# ---------------------------------------------------------------------- what it costs


def halves(tmp_path: Path, count: int) -> list[Path]:
    """Two files, one of the even days and one of the odd ones, of one chunk a day."""
    whole = days(0, count)
    chunks = {"t": {"chunksizes": (1, 4, 6)}, "n": {"chunksizes": (1, 4)}}
    parts = (whole.isel(time=slice(n, None, 2)) for n in range(2))
    return [written(tmp_path, f"{n}", part, **chunks) for n, part in enumerate(parts)]


def test_many_days_between_others_are_put_in_order_as_parts_of_one_array(
    tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_parts(target)
    count, cuts = 160, 0
    even, odd = halves(tmp_path, count)
    append(even, target)
    real = ManifestArray.__getitem__

    def getitem(self: ManifestArray, key: Any) -> Any:
        nonlocal cuts
        cuts += 1
        return real(self, key)

    with monkeypatch.context() as patch:
        patch.setattr(ManifestArray, "__getitem__", getitem)
        append(odd, target, position="coordinate")
    assert cuts < count
    assert_identical(opened(target), native([even, odd]).sortby("time"))


@pytest.mark.full
@pytest.mark.parametrize("change", ["replace-source", "drop_sources"])
def test_the_places_of_many_sources_are_found_together(
    change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, passes = tmp_path / "refs.zarr", []
    files = [written(tmp_path, f"{n:02}", days(4 * n)) for n in range(12)]
    real = sources.iterate_references

    def iterate(*given: Any) -> Any:
        passes.append(given)
        return real(*given)

    costs = []
    for changed in (files[1:3], files[1:9]):
        open_all = virtualds.open_virtual_mfdataset
        nested: dict[str, Any] = {"combine": "nested", "concat_dim": "time"}
        open_all(files, **nested).virtual.to_manifest(target, mode="w")
        new = open_all(changed, **nested)
        with monkeypatch.context() as patch:
            patch.setattr(sources, "iterate_references", iterate)
            if change == "drop_sources":
                virtualds.drop_sources(target, changed, dim="time")
            else:
                new.virtual.to_manifest(target, mode="replace-source", append_dim="time")
        costs.append(len(passes))
        passes.clear()
        kept = [f for f in files if change != "drop_sources" or f not in changed]
        assert_identical(opened(target), native(kept))
    assert costs[0] == costs[1]


def test_a_new_file_does_not_write_the_references_of_others_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "refs.zarr"
    even, _ = halves(tmp_path, 400)
    virtual(even).virtual.to_manifest(target, manifest="parquet")
    before = content(target)
    append(written(tmp_path, "later", days(400)), target, manifest="parquet")
    new = {path: data for path, data in content(target).items() if path not in before}
    tables = [len(data) for path, data in new.items() if "/manifest." in path]
    largest = max(len(data) for path, data in before.items() if "/manifest." in path)
    assert tables
    assert max(tables) < largest
    assert_identical(opened(target), native([even, tmp_path / "later.nc"]))


def test_dates_are_decoded_by_what_can_be_read() -> None:
    dated = {"units": EPOCH}
    array = ManifestArray.from_arrays(
        shape=(3,),
        chunks=(1,),
        dtype="i4",
        path=[f"file:///{name}" for name in ("lost", "a", "b")],
        offsets=0,
        lengths=4,
    )
    variables = {}
    for number in range(6):
        variables[f"alone {number}"] = ManifestVariable(("x",), np.arange(3), dated)
        variables[f"held {number}"] = ManifestVariable(("time",), np.arange(3), dated)
        variables[f"virtual {number}"] = ManifestVariable(("time",), array, dated)
    found = _find_readable_dates(ManifestGroup(variables), ["time"], {"file:///lost"})
    assert found.keys() == {f"virtual {number}" for number in range(6)}
    assert {file.url for one in found.values() for file in one.sources} == {"file:///a"}


def test_errors_name_their_group() -> None:
    with pytest.raises(ValueError, match="odd") as caught, name_group_in_errors("a/b"):
        raise ValueError("odd")
    assert caught.value.__notes__ == ["group /a/b"]


def test_pauses_between_attempts_double_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(writing.random, "uniform", lambda low, high: high)
    monkeypatch.setattr(writing.time, "sleep", pauses.append)

    def attempt(earlier: int) -> None:
        raise virtualds.ConflictError("another writer")

    with pytest.raises(virtualds.ConflictError):
        writing.retry_on_conflict(attempt, "retry")
    assert pauses[:3] == [0.1, 0.2, 0.4] and pauses[-1] == 10.0


@pytest.fixture
def grown(files: list[Path], tmp_path: Path) -> Path:
    """A set of the first file."""
    append(files[0], tmp_path / "refs.zarr")
    return tmp_path / "refs.zarr"


def test_writers_that_try_again_wait_for_each_other(grown: Path, files: list[Path]) -> None:
    """Also if one is at work for longer than others wait for one that has been killed."""
    turn, options = Turn(f"file://{grown}", TURN, None), {"conflict": "retry"}
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(2) as pool:
        patch.setattr(Turn, "RENEW_SECONDS", 0.05)
        patch.setattr(Turn, "TURN_SECONDS", 0.5)
        turn.take()
        waiting = [pool.submit(append, path, grown, **options) for path in files[1:3]]
        done, _ = wait(waiting, 2.0)
        assert not done and opened(grown).sizes["time"] == 4
        # one that does not try again waits for nobody
        append(files[3], grown)
        turn.end()
        for future in waiting:
            future.result(60)
    assert opened(grown).sizes["time"] == 16
    assert not (grown / FOLDER / "turn").exists()


def test_a_writer_that_was_killed_is_not_waited_for(
    grown: Path, files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Turn, "TURN_SECONDS", 0.3)
    (grown / FOLDER / "turn").write_text("of a writer that does not show that it works")
    append(files[1], grown, conflict="retry")
    assert opened(grown).sizes["time"] == 8
    assert not (grown / FOLDER / "turn").exists()


def test_a_writer_that_works_for_too_long_is_not_waited_for(
    grown: Path, files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may wait for this one, as a task of dask does for others of its worker."""
    monkeypatch.setattr(Turn, "RENEW_SECONDS", 0.05)
    monkeypatch.setattr(Turn, "PATIENCE", 0.5)
    turn = Turn(f"file://{grown}", TURN, None)
    turn.take()
    append(files[1], grown, conflict="retry")
    assert opened(grown).sizes["time"] == 8
    # it has the turn as before
    assert (grown / FOLDER / "turn").exists()
    turn.end()
    assert not (grown / FOLDER / "turn").exists()


def test_a_turn_that_was_left_is_removed_with_other_files_that_nobody_needs(grown: Path) -> None:
    turn = grown / FOLDER / "turn"
    turn.write_text("of a writer that was killed")
    virtualds.clean_up(grown)
    assert turn.exists()
    two_days_ago = turn.stat().st_mtime - 2 * 86400
    os.utime(turn, (two_days_ago, two_days_ago))
    virtualds.clean_up(grown)
    assert not turn.exists()


def test_a_turn_that_another_writer_has_taken_over_is_left_to_it(grown: Path) -> None:
    turn, file = Turn(f"file://{grown}", TURN, None), grown / FOLDER / "turn"
    turn.take()
    file.write_text("taken over, since the first one was suspended")
    turn.end()
    assert file.exists()


def test_a_writer_that_has_lost_merges_no_tables(
    grown: Path, files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    merges, commit = list[bool](), zarr_manifests._commit

    def lose_once(*given: Any, **choices: Any) -> None:
        """Let another writer be faster at the first attempt."""
        merges.append(choices["merges"])
        if len(merges) == 1:
            append(files[2], grown)
        commit(*given, **choices)

    monkeypatch.setattr(zarr_manifests, "_commit", lose_once)
    append(files[1], grown, conflict="retry")
    # the second is that of the faster writer
    assert merges == [True, True, False]
    assert opened(grown).sizes["time"] == 12


def test_a_group_without_the_dimension_does_not_change() -> None:
    fixed = xr.Dataset({"height": ("x", [1.0, 2.0])})
    group = group_from_dataset(fixed)
    assert append_along(group, fixed, AppendOptions("time")) is group
