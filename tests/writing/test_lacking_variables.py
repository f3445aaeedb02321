"""Files with a variable more, or fewer, are appended: missing values stand in for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from daily_files import EPOCH, SUFFIXES, content, needs_parts, opened, virtual

import virtualds
from virtualds import CombineError, UnsupportedError

DAY = np.timedelta64(1, "D")


@pytest.fixture(params=SUFFIXES, ids=list(SUFFIXES))
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / f"refs{SUFFIXES[request.param]}"


def file_of(folder: Path, number: int, *names: str, **encoding: Any) -> Path:
    """Four days, with some of several variables."""
    random = np.random.default_rng(number)
    time = np.datetime64("2000-01-01", "ns") + np.arange(4 * number, 4 * number + 4) * DAY
    made = {
        "t": (("time", "x"), random.normal(size=(4, 3)).astype("f4")),
        "packed": (("time", "x"), np.round(random.normal(size=(4, 3)), 1)),
        "seen": ("time", time + DAY),
        "count": (("time", "x"), random.integers(0, 9, (4, 3))),
        "bare": (("time", "x"), random.normal(size=(4, 3)).astype("f4")),
        "grid": ("x", np.arange(3.0)),
    }
    settings = {
        "t": {"chunksizes": (2, 3), "zlib": True},
        "packed": {"dtype": "i2", "scale_factor": 0.1, "_FillValue": -99, "chunksizes": (4, 3)},
        "seen": {"units": EPOCH, "dtype": "i4", "_FillValue": -1},
        "count": {"chunksizes": (2, 3)},
        "bare": {"chunksizes": (2, 3), "_FillValue": None},
        "time": {"units": EPOCH, "dtype": "i8"},
    }
    ds = xr.Dataset({name: made[name] for name in names}, {"time": time})
    kept = {name: settings[name] for name in (*names, "time") if name in settings}
    path = folder / f"{number}.nc"
    ds.to_netcdf(path, engine="netcdf4", encoding=kept)
    return path


def joined(*paths: Path) -> xr.Dataset:
    """The variables of some files, each with missing values where a file lacks it."""
    parts = [xr.load_dataset(path, engine="netcdf4") for path in paths]
    time = np.concatenate([part.time for part in parts])
    names = dict.fromkeys(name for part in parts for name in part.data_vars)
    found = {}
    for name in names:
        there = [part[name] for part in parts if name in part]
        grows = "time" in there[0].dims
        found[name] = xr.concat(there, "time").reindex(time=time) if grows else there[0]
    return xr.Dataset(found)


@pytest.mark.parametrize("name", ["t", "packed"])
def test_a_variable_more_is_missing_before(name: str, target: Path, tmp_path: Path) -> None:
    paths = [file_of(tmp_path, 0, "count"), file_of(tmp_path, 1, "count", name)]
    virtual(paths[0]).virtual.to_manifest(target)
    before = content(target)
    with pytest.raises(CombineError, match=rf"new_var[\s\S]*{name}: the set has no such variable"):
        virtual(paths[1]).virtual.to_manifest(target, append_dim="time")
    assert content(target) == before
    virtual(paths[1]).virtual.to_manifest(target, append_dim="time", new_variables="fill")
    found = opened(target)
    np.testing.assert_array_equal(found[name][:4], np.nan)
    xr.testing.assert_equal(found.load(), joined(*paths))
    # and the set goes on with both
    more = file_of(tmp_path, 2, "count", name)
    virtual(more).virtual.to_manifest(target, append_dim="time")
    xr.testing.assert_equal(opened(target).load(), joined(*paths, more))


@pytest.mark.parametrize("name", ["t", "packed", "seen"])
def test_a_variable_fewer_is_missing_there(name: str, target: Path, tmp_path: Path) -> None:
    paths = [file_of(tmp_path, n, *(["count"] + [name] * (n != 1))) for n in range(3)]
    virtual(paths[0]).virtual.to_manifest(target)
    with pytest.raises(CombineError, match=rf"{name}: the new dataset has no such variable"):
        virtual(paths[1]).virtual.to_manifest(target, append_dim="time")
    for path in paths[1:]:
        virtual(path).virtual.to_manifest(target, append_dim="time", missing_variables="fill")
    found = opened(target)
    assert found[name].isnull().values[4:8].all()
    xr.testing.assert_equal(found.load(), joined(*paths))


def test_values_in_memory_are_missing_as_well(target: Path, tmp_path: Path) -> None:
    how: Any = {"append_dim": "time", "new_variables": "fill", "missing_variables": "fill"}
    variables = (["count", "t"], ["count"], ["count", "t", "packed"])
    paths = [file_of(tmp_path, number, *names) for number, names in enumerate(variables)]
    first, second, third = (virtual(path).virtual.load() for path in paths)
    first.virtual.to_manifest(target)
    if target.suffix == ".nca":
        with pytest.raises(virtualds.FormatError, match="no aggregation variable"):
            second.virtual.to_manifest(target, **how)
        return
    if target.suffix == ".icechunk":
        # a chunk that a repository holds itself would be zero if it were missing
        with pytest.raises(UnsupportedError, match="t: its 1 fragments"):
            second.virtual.to_manifest(target, **how)
        return
    second.virtual.to_manifest(target, **how)
    third.virtual.to_manifest(target, **how)
    xr.testing.assert_equal(opened(target).load(), joined(*paths))


def test_missing_values_have_no_references(tmp_path: Path) -> None:
    paths = [file_of(tmp_path, 0, "count"), file_of(tmp_path, 1, "count", "t")]
    for path in paths:
        virtual(path).virtual.to_manifest(
            tmp_path / "refs.zarr", append_dim="time", new_variables="fill"
        )
    found = virtualds.open_virtual_dataset(tmp_path / "refs.zarr")[["t"]]
    assert [Path(url).name for url in found.virtual.sources["url"]] == ["1.nc"]
    assert found.virtual.sources["chunks"].tolist() == [2]


def test_new_variables_are_dropped_if_asked(target: Path, tmp_path: Path) -> None:
    paths = [file_of(tmp_path, 0, "count"), file_of(tmp_path, 1, "count", "t", "grid")]
    for path in paths:
        virtual(path).virtual.to_manifest(target, append_dim="time", new_variables="drop")
    xr.testing.assert_equal(opened(target).load(), joined(*paths)[["count"]])


def test_what_has_no_dimension_is_added_as_it_is(target: Path, tmp_path: Path) -> None:
    paths = [file_of(tmp_path, 0, "count"), file_of(tmp_path, 1, "count", "grid")]
    for path in paths:
        more = virtual(path).set_coords("grid") if "grid" in virtual(path) else virtual(path)
        more.virtual.to_manifest(target, append_dim="time", new_variables="fill")
    found = opened(target).load()
    assert "grid" in found.coords
    xr.testing.assert_equal(found.reset_coords("grid"), joined(*paths))


@pytest.mark.parametrize("loaded", [False, True])
def test_numbers_without_a_missing_value_are_refused_by_name(
    loaded: bool, target: Path, tmp_path: Path
) -> None:
    if loaded:
        needs_parts(target)
    paths = [file_of(tmp_path, 0, "t"), file_of(tmp_path, 1, "t", "count")]
    first, second = (virtual(p).virtual.load() if loaded else virtual(p) for p in paths)
    for one, other, how in (
        (first, second, {"new_variables": "fill"}),
        (second, first, {"missing_variables": "fill"}),
    ):
        one.virtual.to_manifest(target, mode="w")
        before = content(target)
        with pytest.raises(CombineError, match=r"count: .*no value of it \(int64\) means"):
            other.virtual.to_manifest(target, append_dim="time", **how)
        assert content(target) == before


def test_formats_without_a_fill_value_for_it_refuse_a_variable_by_name(
    target: Path, tmp_path: Path
) -> None:
    """Zero is what a chunk that is not there would read as."""
    paths = [file_of(tmp_path, 0, "t", "bare"), file_of(tmp_path, 1, "t")]
    virtual(paths[0]).virtual.to_manifest(target)
    before = content(target)
    if target.suffix in (".zarr", ".nca"):
        virtual(paths[1]).virtual.to_manifest(target, append_dim="time", missing_variables="fill")
        xr.testing.assert_equal(opened(target).load(), joined(*paths))
        return
    with pytest.raises(UnsupportedError, match="bare: "):
        virtual(paths[1]).virtual.to_manifest(target, append_dim="time", missing_variables="fill")
    assert content(target) == before


def test_an_index_is_never_missing(target: Path, tmp_path: Path) -> None:
    paths = [file_of(tmp_path, n, "t") for n in range(2)]
    virtual(paths[0]).drop_vars("time").virtual.to_manifest(target)
    with pytest.raises(CombineError, match="time: one side lacks this variable"):
        virtual(paths[1]).virtual.to_manifest(target, append_dim="time", new_variables="fill")
