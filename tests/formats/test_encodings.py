"""What ``encoding`` holds of a source is there again after every format, but for what is listed."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest
import xarray as xr

import virtualds

SUFFIXES = [".json", ".parquet", ".zarr", *([".icechunk"] if find_spec("icechunk") else [])]
NOT_OF_CHARACTERS = frozenset(
    {"chunksizes", "preferred_chunks", "contiguous", "source"}
    | {"zlib", "szip", "zstd", "bzip2", "blosc", "shuffle", "complevel", "fletcher32"}
)
"""Strings are written as such: how their characters lay in the source has no place."""

# by variable: what a format may lose or change
CHANGED: dict[str, frozenset[str]] = {
    # the set is its own source
    "packed": frozenset({"source"}),
    "plain": frozenset({"source"}),
    "big": frozenset({"source"}),
    "flags": frozenset({"source"}),
    "rounded": frozenset({"source"}),
    "days": frozenset({"source"}),
    # the chunks of loaded values are those of the set
    "time": frozenset({"source", "preferred_chunks"}),
    "when": frozenset({"source", "preferred_chunks"}),
    "name": NOT_OF_CHARACTERS,
    "text": frozenset(),
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("encodings") / "a.nc"
    with netCDF4.Dataset(path, "w") as file:
        for name, size in (("time", None), ("x", 600), ("n", 3)):
            file.createDimension(name, size)
        how: dict[str, Any] = {"zlib": True, "complevel": 3, "shuffle": True}
        v = file.createVariable("time", "i4", ("time",))
        v.setncatts({"units": "hours since 1900-01-01 15:00", "calendar": "noleap"})
        v[:] = np.arange(4)
        # compressed, and long enough to be compressed in another way by the set
        v = file.createVariable("when", "f8", ("time", "x"), chunksizes=(2, 300), **how)
        v.setncatts({"units": "Days since 2000-1-1", "standard_name": "time"})
        v[:] = np.arange(2400).reshape(4, 600)
        v = file.createVariable("packed", "i2", ("time", "x"), fill_value=-99, **how)
        v.setncatts({"scale_factor": np.float32(0.5), "add_offset": np.float32(10)})
        v[:] = np.arange(2400).reshape(4, 600) / 2
        file.createVariable("plain", "f4", ("x",))[:] = 1
        v = file.createVariable("big", ">f4", ("x",), endian="big")
        v.missing_value = np.float32(-1)
        v[:] = 1
        v = file.createVariable("flags", "i1", ("x",))
        v.setncattr("dtype", "bool")
        v[:] = 1
        v = file.createVariable(
            "rounded", "f8", ("time", "x"), fill_value=1e20, least_significant_digit=2, **how
        )
        v[:] = 1
        v = file.createVariable("days", "f8", ("x",))
        v.units = "days"
        v[:] = 1
        v = file.createVariable("name", "S1", ("time", "n"))
        v._Encoding = "ascii"
        v[:] = np.array([list("abc"), list("def")] * 2, "S1")
        file.createVariable("text", str, ("time",))[:] = np.array(list("abcd"), object)
    return path


def encoding_of(dataset: xr.Dataset, name: str) -> Mapping[str, Any]:
    return dict(dataset.variables[name].encoding)


@pytest.fixture(scope="module", params=SUFFIXES)
def again(source: Path, request: pytest.FixtureRequest) -> xr.Dataset:
    """The dataset of a set, written from a dataset that has some variables loaded."""
    target = source.with_suffix(request.param)
    dataset = virtualds.open_virtual_dataset(source, loadable_variables=["time", "when", "name"])
    dataset.virtual.to_manifest(target)
    return xr.open_dataset(target, engine="virtual")


@pytest.mark.parametrize("name", CHANGED)
def test_encodings_of_a_source_are_those_of_netcdf(name: str, source: Path) -> None:
    with xr.open_dataset(source, engine="netcdf4") as native:
        expected = encoding_of(native, name)
    assert encoding_of(virtualds.open_virtual_dataset(source), name) == expected


@pytest.mark.parametrize("name", CHANGED)
def test_encodings_survive_a_format(name: str, source: Path, again: xr.Dataset) -> None:
    before = encoding_of(virtualds.open_virtual_dataset(source), name)
    after = encoding_of(again, name)
    lost = {k for k in before.keys() | after.keys() if before.get(k) != after.get(k)}
    assert lost <= CHANGED[name]


def test_units_and_characters_are_written_to_netcdf_as_they_were(
    again: xr.Dataset, tmp_path: Path
) -> None:
    again[["name", "packed"]].to_netcdf(tmp_path / "b.nc")
    with netCDF4.Dataset(tmp_path / "b.nc") as file:
        file.set_auto_maskandscale(False)
        assert file["name"].dtype == "S1"
        assert file["name"].dimensions == ("time", "n")
        assert file["packed"].dtype == "i2"
        assert file["packed"].chunking() == [1, 600]
        assert file["packed"].filters()["complevel"] == 3
        assert file["packed"].getncattr("_FillValue") == -99


@pytest.mark.parametrize("suffix", [".zarr", ".json", ".parquet"])
def test_every_kind_of_set_is_written_to_netcdf_and_zarr(suffix: str, tmp_path: Path) -> None:
    """Chunks of many shapes have no chunk sizes, and netCDF filters nothing but chunks."""
    lengths = {"ragged": (31, 28, 31), "regular": (30, 30, 30)}
    filters: dict[str, Any] = {"plain": {}, "filtered": {"zlib": True, "shuffle": True}}
    for (shape, days), (filtering, how) in product(lengths.items(), filters.items()):
        files, first = [], 0
        for number, count in enumerate(days):
            month = xr.Dataset(
                {"t": (("time", "x"), np.arange(4.0 * count).reshape(count, 4))},
                {"time": first + np.arange(count)},
            )
            first += count
            files.append(tmp_path / f"{shape}{filtering}{number}.nc")
            pieces = {"chunksizes": (count, 4)} if how else {}
            month.to_netcdf(files[-1], encoding={"t": how | pieces})
        wanted = xr.open_mfdataset(files).load()
        target = tmp_path / f"{shape}{filtering}{suffix}"
        virtualds.open_virtual_mfdataset(files).virtual.to_manifest(
            target, on_unsupported="rewrite"
        )
        found = xr.open_dataset(target, engine="virtual")
        for engine in ("netcdf4", "h5netcdf"):
            found.to_netcdf(tmp_path / "out.nc", engine=engine)
            xr.testing.assert_equal(xr.load_dataset(tmp_path / "out.nc"), wanted)
        found.to_zarr(tmp_path / "out.zarr", mode="w", consolidated=False)
        plain = xr.open_zarr(tmp_path / "out.zarr", consolidated=False)
        xr.testing.assert_equal(plain.load(), wanted)
        assert found.to_dataframe().equals(wanted.to_dataframe())


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_attributes_may_be_named_like_entries_of_the_encoding(suffix: str, tmp_path: Path) -> None:
    path, target = tmp_path / "a.nc", tmp_path / f"s{suffix}"
    with netCDF4.Dataset(path, "w") as file:
        file.createDimension("x", 6)
        v = file.createVariable("v", "i2", ("x",), zlib=True, complevel=3, chunksizes=(2,))
        v[:] = np.arange(6)
        v.setncatts({"complevel": 5, "original_shape": "round", "chunksizes": "small"})
    opened = virtualds.open_virtual_dataset(path, loadable_variables=["v"])
    opened.virtual.to_manifest(target)
    found, wanted = xr.open_dataset(target, engine="virtual")["v"], xr.open_dataset(path)["v"]
    assert found.attrs == wanted.attrs
    for name in ("zlib", "complevel", "chunksizes", "original_shape"):
        assert found.encoding[name] == wanted.encoding[name]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_compresses_values_in_a_set_is_not_asked_of_netcdf(
    suffix: str, tmp_path: Path
) -> None:
    target, x = tmp_path / f"s{suffix}", np.arange(2000.0)
    given = xr.Dataset({"t": ("x", x / 3)}, {"x": x})
    given[{"x": slice(1900)}].virtual.to_manifest(target)
    given[{"x": slice(1900, None)}].virtual.to_manifest(target, mode="a", append_dim="x")
    found = xr.open_dataset(target, engine="virtual")
    for engine in ("netcdf4", "h5netcdf"):
        found.to_netcdf(tmp_path / "out.nc", engine=engine)
        xr.testing.assert_equal(xr.load_dataset(tmp_path / "out.nc"), given)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_values_that_no_other_machine_can_read_are_refused(suffix: str, tmp_path: Path) -> None:
    ds = xr.Dataset({"long": ("x", np.arange(3, dtype=np.longdouble))})
    with pytest.raises(virtualds.UnsupportedError, match=r"'?long'?.*depends on the machine"):
        ds.virtual.to_manifest(tmp_path / f"refs{suffix}")
    assert not list(tmp_path.iterdir())
