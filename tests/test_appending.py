"""Sets grow, shrink and change by their sources, as concatenation of the native files does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from transforms import assert_identical

import virtualds
from virtualds.formats import FORMATS

SUFFIXES = {form.name: form.suffixes[0] for form in FORMATS if form.update is not None}
EPOCH = "days since 2000-01-01"


def days(first: int, count: int = 4, seed: int | None = None) -> xr.Dataset:
    """Some days of an archive: a field, a track along time, bounds, and a grid that stays."""
    random = np.random.default_rng(first if seed is None else seed)
    time = np.datetime64("2000-01-01") + np.arange(first, first + count)
    return xr.Dataset(
        {
            "t": (("time", "lat", "lon"), random.normal(size=(count, 4, 6)).astype("f4")),
            "n": (("time", "lat"), random.integers(0, 9, (count, 4))),
            "height": (("lat", "lon"), np.arange(24.0).reshape(4, 6)),
        },
        {"time": time.astype("M8[ns]"), "lat": np.arange(4.0), "lon": np.arange(6) * 2.0},
        {"title": "days"},
    )


def written(folder: Path, name: str, ds: xr.Dataset, **encoding: Any) -> Path:
    path = folder / f"{name}.nc"
    settings = {
        "t": {"zlib": True, "shuffle": True, "chunksizes": (2, 4, 3)},
        "n": {"chunksizes": (2, 4)},
        "time": {"units": EPOCH, "dtype": "i8"},
    }
    settings = {k: v | encoding.get(k, {}) for k, v in settings.items() if k in ds.variables}
    ds.to_netcdf(path, engine="h5netcdf", encoding=settings)
    return path


def virtual(path: Path) -> xr.Dataset:
    return virtualds.open_virtual_dataset(path)


def native(paths: Sequence[Path]) -> xr.Dataset:
    parts = [xr.load_dataset(path, engine="h5netcdf") for path in paths]
    return xr.concat(
        parts, "time", data_vars="minimal", coords="minimal", compat="override", join="exact"
    )


def opened(target: Path) -> xr.Dataset:
    return xr.open_dataset(target, engine="virtual")


@pytest.fixture(params=SUFFIXES, ids=list(SUFFIXES))
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / f"refs{SUFFIXES[request.param]}"


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    return [written(tmp_path, f"{n}", days(4 * n)) for n in range(5)]


def append(path: Path, target: Path, **how: Any) -> None:
    virtual(path).virtual.to_manifest(target, append_dim="time", **how)


# ---------------------------------------------------------------------- growing


def test_appending_one_by_one_is_concatenation(files: list[Path], target: Path) -> None:
    for count, path in enumerate(files, 1):
        append(path, target)
        assert_identical(opened(target), native(files[:count]))
        assert_identical(virtual(target), native(files[:count]))


def test_several_files_are_appended_at_once(files: list[Path], target: Path) -> None:
    append(files[0], target)
    more = xr.concat([virtual(p) for p in files[1:]], "time", data_vars="minimal")
    more.virtual.to_manifest(target, append_dim="time")
    assert_identical(opened(target), native(files))


def test_prepending_puts_it_first(files: list[Path], target: Path) -> None:
    for path in files[::-1]:
        append(path, target, position="start")
    assert_identical(opened(target), native(files))


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


def test_falling_coordinates_go_on_falling(tmp_path: Path, target: Path) -> None:
    parts = [
        written(tmp_path, f"{n}", days(4 * n).isel(time=slice(None, None, -1))) for n in range(3)
    ]
    append(parts[1], target)
    append(parts[0], target, position="coordinate")
    append(parts[2], target, position="coordinate")
    assert_identical(opened(target), native(parts[::-1]))


def test_single_days_go_between_others(tmp_path: Path, target: Path) -> None:
    append(written(tmp_path, "a", days(0).isel(time=[0, 2])), target)
    other = written(tmp_path, "b", days(0, 8).isel(time=[1, 5, 3]))
    if target.suffix != ".zarr":
        with pytest.raises(virtualds.UnsupportedError, match="are no regular grid"):
            append(other, target, position="coordinate")
        return
    append(other, target, position="coordinate")
    assert opened(target)["time"].dt.day.values.tolist() == [1, 2, 3, 4, 6]


def test_what_was_there_is_not_looked_at(files: list[Path], target: Path) -> None:
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
    with pytest.raises(virtualds.CombineError, match=r"1\.nc.*on_duplicate='skip'"):
        append(files[1], target)
    append(files[1], target, on_duplicate="skip")
    assert_identical(opened(target), native(files[:2]))


def test_of_many_only_new_ones_are_appended(files: list[Path], target: Path) -> None:
    append(files[1], target)
    everything = xr.concat([virtual(p) for p in files], "time", data_vars="minimal")
    everything.virtual.to_manifest(
        target, append_dim="time", position="coordinate", on_duplicate="skip"
    )
    assert_identical(opened(target), native(files))


def test_the_same_times_from_another_file_are_found(tmp_path: Path, target: Path) -> None:
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
    for path in files:
        append(path, target)
    again = written(tmp_path, "2", days(8, seed=99))
    with pytest.raises(virtualds.ReadError):
        opened(target)["t"].load()
    virtual(again).virtual.to_manifest(target, mode="replace-source")
    assert_identical(opened(target), native(files))


def test_what_replaces_a_source_may_be_longer(
    tmp_path: Path, files: list[Path], target: Path
) -> None:
    for path in (files[0], files[2]):
        append(path, target)
    again = written(tmp_path, "0", days(0, 8, seed=5))
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
    with pytest.raises(virtualds.CombineError, match=r"1\.nc: it is no source"):
        virtualds.drop_sources(target, str(files[1]), dim="time")
    rest = [str(files[n]) for n in (0, 2, 3)]
    with pytest.raises(virtualds.CombineError, match="nothing would be left"):
        virtualds.drop_sources(target, rest, dim="time")


# ---------------------------------------------------------------------- what does not fit


def hours(ds: xr.Dataset) -> xr.Dataset:
    return ds.assign_coords(time=ds["time"] + np.timedelta64(1, "h"))


UNFIT: dict[str, tuple[Callable[[xr.Dataset], xr.Dataset], str]] = {
    "a variable more": (lambda ds: ds.assign(extra=ds["t"]), "extra: the set has no such variable"),
    "a variable less": (lambda ds: ds.drop_vars("n"), "n: the new dataset has no such variable"),
    "another dtype": (lambda ds: ds.assign(t=ds["t"].astype("f8")), "t: its dtype is float32"),
    "other dimensions": (lambda ds: ds.assign(t=ds["t"].transpose()), "t: its dimensions are"),
    "another length": (lambda ds: ds.isel(lon=slice(3)), "elements along 'lon'"),
    "another grid": (
        lambda ds: ds.assign_coords(lat=ds["lat"] + 1),
        "lat: it has no dimension 'time'",
    ),
    "times between days": (hours, "'time' cannot be told exactly as the set stores them"),
}


@pytest.mark.parametrize("how", UNFIT)
def test_what_does_not_fit_is_refused_before_anything_is_written(
    how: str, files: list[Path], target: Path, tmp_path: Path
) -> None:
    append(files[0], target)
    change, reason = UNFIT[how]
    odd = change(days(4))
    encoding = {} if how != "times between days" else {"time": {"units": "hours since 2000-01-01"}}
    odd.to_netcdf(tmp_path / "odd.nc", engine="h5netcdf", encoding=encoding)
    with pytest.raises(virtualds.CombineError, match=reason):
        append(tmp_path / "odd.nc", target)
    assert_identical(opened(target), native(files[:1]))


def test_other_units_of_time_are_told_in_those_of_the_set(
    files: list[Path], target: Path, tmp_path: Path
) -> None:
    append(files[0], target)
    other = written(tmp_path, "other", days(4), time={"units": "hours since 1990-01-01"})
    append(other, target)
    assert_identical(opened(target), native([files[0], other]))
    assert opened(target)["time"].encoding["units"] == EPOCH


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"append_dim": "depth"}, "dimension 'depth'"),
        ({"append_dim": "time", "position": "middle"}, "position 'middle'"),
        ({"append_dim": "time", "on_duplicate": "ignore"}, "on_duplicate 'ignore'"),
        ({"append_dim": "time", "conflict": "wait"}, "conflict 'wait'"),
        ({"mode": "w", "conflict": "wait"}, "conflict 'wait'"),
        ({"append_dim": "time", "mode": "w"}, "mode 'w'"),
        ({"mode": "a"}, "append_dim=None"),
        ({"mode": "r"}, "mode 'r'"),
        ({"mode": "w", "position": "start"}, "position='start'"),
        ({"mode": "w-", "on_duplicate": "skip"}, "on_duplicate='skip'"),
    ],
    ids=str,
)
def test_wrong_arguments_are_named(
    how: dict[str, Any], message: str, files: list[Path], target: Path
) -> None:
    append(files[0], target)
    with pytest.raises(ValueError, match=message):
        virtual(files[1]).virtual.to_manifest(target, **how)
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
    with pytest.raises(FileExistsError, match="no reference set"):
        append(files[0], tmp_path / "refs.zarr", conflict="retry")


def test_nothing_is_replaced_in_a_set_that_does_not_exist(files: list[Path], target: Path) -> None:
    missing = pytest.raises(FileNotFoundError, match="there is no reference set")
    with missing:
        virtual(files[0]).virtual.to_manifest(target, mode="replace-source", append_dim="time")
    with missing:
        virtualds.drop_sources(target, str(files[0]))
