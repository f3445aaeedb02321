"""What the README says of other tools: their versions here do what its table says."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from peers import peer

import virtualds

for library in ("kerchunk", "virtualizarr"):
    peer(library)

# the others speak of their own affairs
pytestmark = pytest.mark.filterwarnings("ignore")

PACKED = {"dtype": "i2", "_FillValue": -1}
CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "lengths": ({"chunksizes": (31, 4), "zlib": True}, {"chunksizes": (28, 4), "zlib": True}),
    "compression": ({"zlib": True}, {"zlib": False}),
    "packing": (PACKED | {"scale_factor": 0.01}, PACKED | {"scale_factor": 0.02}),
}
"""The rows of the table: how two files are stored, which differ in one thing."""
ZLIB = [{"elementsize": 8, "id": "shuffle"}, {"id": "zlib", "level": 4}]


def write_months(change: str) -> xr.Dataset:
    """Write ``1.nc`` and ``2.nc``, and return what xarray reads from them."""
    for number, (days, stored) in enumerate(zip((31, 28), CHANGES[change], strict=True), start=1):
        values = np.random.default_rng(number).integers(0, 300, (days, 4)) / 100
        first = np.datetime64(f"2001-{number:02}-01", "ns")
        time = first + np.arange(days) * np.timedelta64(1, "D")
        month = xr.Dataset({"t": (("time", "x"), values)}, {"time": time, "x": np.arange(4)})
        units = {"units": "days since 2001-01-01", "dtype": "i4"}
        encoding = {"t": {"chunksizes": (1, 4)} | stored, "time": units}
        month.to_netcdf(f"{number}.nc", encoding=encoding, engine="netcdf4")
    return xr.concat([xr.load_dataset(f"{number}.nc") for number in (1, 2)], "time")


def by_virtualds() -> xr.Dataset:
    vds = virtualds.open_virtual_mfdataset("?.nc", combine="nested", concat_dim="time")
    vds.virtual.to_manifest("refs.zarr")
    return xr.load_dataset("refs.zarr", engine="virtual")


def read_with_kerchunk() -> xr.Dataset:
    # fsspec keeps what it has opened, by its path
    return xr.load_dataset(f"{os.getcwd()}/refs.json", engine="kerchunk")


def by_virtualizarr() -> xr.Dataset:
    from obspec_utils.registry import ObjectStoreRegistry
    from obstore.store import LocalStore
    from virtualizarr import open_virtual_mfdataset
    from virtualizarr.parsers import HDFParser

    vds = open_virtual_mfdataset(
        [f"file://{os.getcwd()}/{number}.nc" for number in (1, 2)],
        registry=ObjectStoreRegistry({"file://": LocalStore()}),
        parser=HDFParser(),
        combine="nested",
        concat_dim="time",
        loadable_variables=["time", "x"],
    )
    vds.vz.to_kerchunk("refs.json", format="json")
    return read_with_kerchunk()


def combine_with_kerchunk() -> dict[str, Any]:
    from kerchunk.combine import MultiZarrToZarr
    from kerchunk.hdf import SingleHdf5ToZarr

    paths = [f"{os.getcwd()}/{number}.nc" for number in (1, 2)]
    files = [SingleHdf5ToZarr(path, inline_threshold=0).translate() for path in paths]
    how = {"concat_dims": ["time"], "identical_dims": ["x"], "inline_threshold": 0}
    whole = MultiZarrToZarr(files, **how).translate()
    return dict(whole)


def by_kerchunk() -> xr.Dataset:
    Path("refs.json").write_text(json.dumps(combine_with_kerchunk()))
    return read_with_kerchunk()


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("change", CHANGES)
def test_here_every_value_is_that_of_its_file(change: str) -> None:
    xr.testing.assert_equal(write_months(change), by_virtualds())


@pytest.mark.parametrize("read", [by_virtualizarr, by_kerchunk])
def test_others_refuse_chunks_of_different_lengths(read: Callable[[], xr.Dataset]) -> None:
    write_months("lengths")
    with pytest.raises(ValueError, match="chunk"):
        read()


def test_virtualizarr_refuses_compression_that_changed() -> None:
    write_months("compression")
    with pytest.raises(NotImplementedError, match="codecs"):
        by_virtualizarr()


def test_kerchunk_takes_the_compression_of_one_file_for_all() -> None:
    write_months("compression")
    refs = combine_with_kerchunk()["refs"]
    assert json.loads(refs["t/.zarray"])["filters"] in (None, ZLIB)
    assert refs["t/0.0"][0].endswith("1.nc")
    assert refs["t/40.0"][0].endswith("2.nc")


@pytest.mark.parametrize("read", [by_virtualizarr, by_kerchunk])
def test_others_unpack_all_files_with_the_scale_of_one(read: Callable[[], xr.Dataset]) -> None:
    expected, found = write_months("packing")["t"].values, read()["t"].values
    shown = expected > 0
    ratios = [
        np.median(found[month][shown[month]] / expected[month][shown[month]])
        for month in (slice(31), slice(31, None))
    ]
    assert ratios in (pytest.approx([1, 0.5]), pytest.approx([2, 1]))
