"""One variable that cannot be decoded does not cost the others: ``on_error`` decides about it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import h5py
import netCDF4
import numpy as np
import pytest
import xarray as xr
from products import looped
from zarr_stores import write_good_and_bad

import virtualds
from virtualds.errors import FormatError, ReadError, UnsupportedError

TIME = "days since 2000-01-01"
PAIR = np.dtype([("a", "i4"), ("b", "f4")])
ATTRIBUTES: dict[str, Mapping[str, Any]] = {
    "units out of range": {"units": "days since 99999999999-01-01"},
    "units without a date": {"units": "days since nonsense"},
    "another calendar": {"units": TIME, "calendar": "nonsense"},
    "a calendar that is a number": {"units": TIME, "calendar": 5},
    "coordinates that are a number": {"coordinates": 5},
    "two scales": {"scale_factor": [1.0, 2.0]},
}
"""Of netCDF and Zarr."""
OBJECTS: dict[str, Mapping[str, Any]] = {
    "coordinates that are an object": {"coordinates": {}},
    "coordinates that are a list": {"coordinates": ["a"]},
    "coordinates that are null": {"coordinates": None},
    "a calendar that is an object": {"units": TIME, "calendar": {}},
    "a scale that is an object": {"scale_factor": {}},
    "a scale that is text": {"scale_factor": "a"},
    "missing values that are an object": {"missing_value": {}},
    "bounds that are an object": {"bounds": {}, "units": TIME},
    "a fill value that is text": {"_FillValue": "abc"},
    "an encoding that is an object": {"_Encoding": {}},
}
"""What only JSON can hold."""


def netcdf(form: str) -> Callable[[Path, Mapping[str, Any]], Path]:
    def write(path: Path, attributes: Mapping[str, Any]) -> Path:
        with netCDF4.Dataset(path, "w", format=form) as file:
            file.createDimension("x", 3)
            for name in ("good", "bad"):
                file.createVariable(name, "f4", ("x",))[:] = [1, 2, 3]
            file["bad"].setncatts(attributes)
        return path

    return write


def zarr_store(version: int) -> Callable[[Path, Mapping[str, Any]], Path]:
    def write(path: Path, attributes: Mapping[str, Any]) -> Path:
        write_good_and_bad(path, version)["bad"].attrs.update(attributes)
        return path

    return write


WRITERS = {
    "netcdf4": netcdf("NETCDF4"),
    "netcdf3": netcdf("NETCDF3_CLASSIC"),
    "zarr-2": zarr_store(2),
    "zarr-3": zarr_store(3),
}
CASES = {
    **{(form, what): ATTRIBUTES[what] for form in WRITERS for what in ATTRIBUTES},
    **{
        (form, what): OBJECTS[what]
        for form in ("zarr-2", "zarr-3")
        for what in OBJECTS
        # Zarr v2 keeps it in a place of its own
        if (form, what) != ("zarr-2", "a fill value that is text")
        # told when values are read
        and (form, what) != ("zarr-3", "a scale that is text")
    },
}


def assert_decided(path: Path) -> None:
    """A file has the variables good and bad, of which the one is read and the other decided of."""
    with pytest.raises(FormatError, match="bad"):
        virtualds.open_virtual_dataset(path)
    with pytest.warns(UserWarning, match="bad"):
        skipped = virtualds.open_virtual_dataset(path, on_error="skip")
    assert list(skipped.variables) == ["good"]
    np.testing.assert_array_equal(skipped.good, [1, 2, 3])
    with pytest.warns(UserWarning, match="bad"):
        kept = virtualds.open_virtual_dataset(path, on_error="keep")
    np.testing.assert_array_equal(kept.good, [1, 2, 3])
    with pytest.raises((UnsupportedError, ReadError)):
        kept.bad.to_numpy()
    with pytest.warns(UserWarning, match="bad"):
        tree = virtualds.open_virtual_datatree(path, on_error="skip")
    assert list(tree.to_dataset().variables) == ["good"]
    with warnings.catch_warnings():
        # scales are looked at when values are
        warnings.simplefilter("ignore")
        lazy = xr.open_dataset(path, engine="virtual", on_error="skip")
    np.testing.assert_array_equal(lazy.good, [1, 2, 3])


@looped("form, what", CASES, quick=len(CASES) // 3)
def test_of_attributes_that_mean_nothing_on_error_decides(
    form: str, what: str, tmp_path: Path
) -> None:
    assert_decided(WRITERS[form](tmp_path / "source", CASES[form, what]))


FILLS: dict[str, Callable[[h5py.Dataset], Any]] = {
    "a compound of a compound": lambda dataset: np.array((1, 2), PAIR),
    "nothing": lambda dataset: h5py.Empty("f4"),
}


@pytest.mark.parametrize("kind", FILLS)
def test_of_fill_values_that_are_none_on_error_decides(kind: str, tmp_path: Path) -> None:
    path = WRITERS["netcdf4"](tmp_path / "a.nc", {})
    with h5py.File(path, "a") as file:
        file["bad"].attrs["_FillValue"] = FILLS[kind](file["bad"])
    assert_decided(path)


def test_a_compound_fill_value_of_compound_numbers_costs_that_variable(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["good"] = np.array([1.0, 2, 3])
        file["bad"] = np.zeros(3, PAIR)
        file["bad"].attrs["_FillValue"] = np.array((1, 2), PAIR)
    with pytest.warns(UserWarning, match="bad"):
        found = virtualds.open_virtual_dataset(tmp_path / "a.h5", on_error="skip")
    assert list(found.variables) == ["good"]


@pytest.mark.parametrize("form", ["netcdf4", "netcdf3"])
def test_times_out_of_range_are_named(form: str, tmp_path: Path) -> None:
    path = WRITERS[form](tmp_path / "a.nc", {})
    with netCDF4.Dataset(path, "a") as file:
        made = file.createVariable("x", "f8", ("x",))
        made[:] = [1, 1e300, 2]
        made.units = TIME
        file["bad"].units = TIME
        file["bad"][:] = [1, 1e30, 2]
    with pytest.raises(FormatError, match=r"'x' cannot be decoded \(OverflowError"):
        virtualds.open_virtual_dataset(path)
    with pytest.warns(UserWarning, match="'x'"):
        found = virtualds.open_virtual_dataset(path, on_error="skip")
    assert set(found.variables) == {"good", "bad"}
    # xarray looks at the first and the last one when it opens a file
    with pytest.raises(ReadError, match="days since") as caught:
        found.bad.to_numpy()
    assert "variable 'bad'" in str(caught.value)


@pytest.mark.parametrize("value", [1e300, -1e300, 1e18])
def test_times_out_of_range_are_named_behind_a_sound_file_of_the_same_structure(
    value: float, tmp_path: Path
) -> None:
    """How the first file decodes is remembered for the next one."""
    for number, days in enumerate((1.0, value)):
        with netCDF4.Dataset(tmp_path / f"{number}.nc", "w") as file:
            file.createDimension("time", 1)
            time = file.createVariable("time", "f8", ("time",))
            time.units, time[:] = TIME, days
    virtualds.open_virtual_dataset(tmp_path / "0.nc")
    with pytest.raises(FormatError, match="'time'"):
        virtualds.open_virtual_dataset(tmp_path / "1.nc")


def test_undecoded_the_file_opens(tmp_path: Path) -> None:
    path = WRITERS["zarr-3"](tmp_path / "a.zarr", {"coordinates": {}})
    found = virtualds.open_virtual_dataset(path, decode_cf=False)
    assert found.bad.attrs["coordinates"] == {}


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_of_many_files_the_one_with_such_a_variable_is_named(on_error: str, tmp_path: Path) -> None:
    for number, attributes in enumerate(({}, {}, {"units": "days since nonsense"})):
        WRITERS["netcdf4"](tmp_path / f"{number}.nc", attributes)
    how: Any = {"combine": "nested", "concat_dim": "x"}
    if on_error == "raise":
        with pytest.raises(FormatError, match="bad") as caught:
            virtualds.open_virtual_mfdataset(str(tmp_path / "*.nc"), **how)
        assert "2.nc: " in str(caught.value)
    else:
        with pytest.warns(UserWarning, match="2.nc"):
            found = virtualds.open_virtual_mfdataset(str(tmp_path / "*.nc"), on_error="skip", **how)
        assert found.sizes["x"] == 6
