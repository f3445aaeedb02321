"""A file decodes alike whether or not an alike file was decoded before."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest
import xarray as xr
from cases import CASES, Archive
from products import looped

import virtualds
from virtualds import ManifestArray
from virtualds.arrays.group import ManifestGroup
from virtualds.chunks.tables import RecordCache
from virtualds.datasets import conversion
from virtualds.datasets.conversion import to_virtual_dataset
from virtualds.datasets.decoding import VariableDecoding
from virtualds.datasets.location import Location
from virtualds.datasets.open import open_group

pytestmark = [
    pytest.mark.filterwarnings("ignore::xarray.SerializationWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]


@pytest.fixture(autouse=True)
def _nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversion, "DECODING_PLANS", RecordCache(64))


def described(ds: xr.Dataset) -> Any:
    """Everything that a dataset shows without being read."""
    variables = [
        (n, v.dims, str(v.dtype), repr(v.attrs), repr(v.encoding)) for n, v in ds.variables.items()
    ]
    kinds = [type(v.data).__name__ for v in ds.variables.values()]
    whole = repr(ds.attrs), repr(ds.encoding), dict(ds.sizes)
    return variables, kinds, [*ds.coords], [*ds.indexes], whole


LOADED: dict[str, Any] = {"default": None, "nothing": [], "everything": "*"}


@pytest.mark.sampled(3)
@pytest.mark.full
@pytest.mark.parametrize("name", CASES)
@looped("loadable", LOADED)
def test_the_second_file_is_as_the_first(archive: Archive, name: str, loadable: str) -> None:
    def opened() -> xr.Dataset:
        return virtualds.open_virtual_dataset(
            archive.path(name), group=CASES[name].group, loadable_variables=LOADED[loadable]
        )

    try:
        first = opened()
    except virtualds.UnsupportedError:
        # what decodes only as a whole has to be loaded
        return
    second = opened()
    assert described(second) == described(first)
    xr.testing.assert_identical(second.virtual.load(), first.virtual.load())


def write(path: Path, days: Any, units: str = "days since 2000-01-01", x: float = 0.0) -> Path:
    with netCDF4.Dataset(path, "w") as file:
        file.createDimension("time", len(days))
        file.createDimension("x", 3)
        time = file.createVariable("time", "f8", ("time",))
        time.units, time.calendar = units, "standard"
        time[:] = days
        file.createVariable("x", "f4", ("x",))[:] = x + np.arange(3)
        file.createVariable("t", "i2", ("time", "x"), fill_value=-1)[:] = 7
    return path


SECOND: dict[str, dict[str, Any]] = {
    "other dates": {"days": [5.25]},
    "no date": {"days": [np.nan]},
    "dates that numpy has no nanoseconds for": {"days": [-150_000.0]},
    "dates in other units": {"days": [5.0], "units": "hours since 1990-01-01"},
    "another place": {"days": [0.0], "x": 0.5},
    "another length": {"days": [0.0, 1.0]},
}


@pytest.mark.parametrize("name", SECOND)
def test_values_do_not_depend_on_files_opened_before(tmp_path: Path, name: str) -> None:
    virtualds.open_virtual_dataset(write(tmp_path / "first.nc", [0.0]))
    path = write(tmp_path / "second.nc", **SECOND[name])
    found = virtualds.open_virtual_dataset(path)
    with xr.open_dataset(path) as native:
        xr.testing.assert_identical(found.virtual.load(), native.load())
        assert found["time"].dtype == native["time"].dtype
        assert found["time"].encoding["units"] == native["time"].encoding["units"]


def test_files_share_equal_coordinates_and_nothing_that_can_be_changed(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{n}.nc", [float(n)]) for n in range(3)]
    _, second, third = map(virtualds.open_virtual_dataset, paths)
    assert second.indexes["x"] is third.indexes["x"]
    second["x"].attrs["seen"] = True
    second["t"].attrs["seen"] = True
    second["t"].encoding["preferred_chunks"] = None
    second.attrs["seen"] = True
    fourth = virtualds.open_virtual_dataset(paths[2])
    assert described(fourth) == described(third)
    assert third["t"].encoding["source"] == str(paths[2])


def test_packing_of_one_file_is_not_that_of_another(tmp_path: Path) -> None:
    values = []
    for n, factor in enumerate((0.5, 0.25, 0.5)):
        with netCDF4.Dataset(tmp_path / f"{n}.nc", "w") as file:
            file.createDimension("x", 2)
            v = file.createVariable("v", "i2", ("x",))
            v.scale_factor = factor
            v.set_auto_scale(False)
            v[:] = [n, 10]
        values.append(virtualds.open_virtual_dataset(tmp_path / f"{n}.nc")["v"].values.tolist())
    assert values == [[0.0, 5.0], [0.25, 2.5], [1.0, 5.0]]


def test_a_dataset_pickles_small(tmp_path: Path) -> None:
    ds = virtualds.open_virtual_dataset(write(tmp_path / "a.nc", [0.0]))
    pickled = pickle.dumps(ds, 5)
    # names, attributes and encoding of a variable, and one reference
    assert len(pickled) < 2000 + 700 * len(ds.variables)
    again = pickle.loads(pickled)
    assert isinstance(again["t"].data, ManifestArray)
    xr.testing.assert_identical(again.virtual.load(), ds.virtual.load())


def without_source(group: ManifestGroup) -> ManifestGroup:
    variables = {
        name: replace(v, encoding={n: x for n, x in v.encoding.items() if n != "source"})
        for name, v in group.variables.items()
    }
    return replace(group, variables=variables)


@pytest.mark.parametrize("first", ["named", "nameless"])
def test_a_variable_has_the_name_of_its_own_file_or_none(tmp_path: Path, first: str) -> None:
    named = open_group(Location.of(write(tmp_path / "a.nc", [0.0, 1.0])))
    groups = {"named": named, "nameless": without_source(named)}
    to_virtual_dataset(groups[first])
    found = {name: to_virtual_dataset(group)["t"].encoding for name, group in groups.items()}
    assert "source" not in found["nameless"]
    assert found["named"] == {**found["nameless"], "source": str(tmp_path / "a.nc")}


@looped("calendar", ["noleap", "360_day", "julian", "all_leap", "365_day"])
def test_dates_of_other_calendars_are_decoded_together_as_each_alone(
    tmp_path: Path, calendar: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = np.random.default_rng(1).random(7).cumsum()
    paths = [str(tmp_path / f"{number}.nc") for number in range(6)]
    for number, path in enumerate(paths):
        with netCDF4.Dataset(path, "w") as file:
            file.createDimension("time", None)
            time = file.createVariable("time", "f8", ("time",))
            time.setncatts({"units": "days since 1990-01-01 03:00", "calendar": calendar})
            time[:] = 57.1 * number + steps
            file.createVariable("t", "f4", ("time",))[:] = number
    decoded = list[int]()
    decode = VariableDecoding.decode_values

    def count(self: VariableDecoding, values: Any, **options: Any) -> Any:
        decoded.append(values.size)
        return decode(self, values, **options)

    monkeypatch.setattr(VariableDecoding, "decode_values", count)
    ours = virtualds.open_virtual_mfdataset(paths, combine="nested", concat_dim="time")
    theirs = xr.open_mfdataset(paths, combine="nested", concat_dim="time", decode_times=True)
    assert ours.indexes["time"].equals(theirs.indexes["time"])
    assert ours["time"].to_numpy().tolist() == theirs["time"].to_numpy().tolist()
    assert decoded
    assert set(decoded) == {7 * len(paths)}
