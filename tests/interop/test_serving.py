"""GDAL and tensorstore read over HTTP what virtualds serves, as it reads it itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import xarray as xr
from archives import KINDS, Archives
from serving import serving_apart as serving

import virtualds

tensorstore = pytest.importorskip("tensorstore")
rasterio = pytest.importorskip("rasterio")

pytestmark = [
    # these files have no places on the Earth
    pytest.mark.filterwarnings("ignore:Dataset has no geotransform"),
    pytest.mark.filterwarnings("ignore::xarray.SerializationWarning"),
]
NUMBERS = "biuf"
SETS_DIFFER = {"unsigned_bytes_next_to_signed_ones", "a_variable_that_some_files_lack"}
TYPES_UNKNOWN = {"durations_whose_units_differ"}
"""Durations of numpy, which only zarr-python knows."""


def read_tensorstore(url: str, name: str, driver: str) -> Any:
    spec = {"driver": driver, "kvstore": f"{url}{name}/"}
    return tensorstore.open(spec, open=True, read=True).result().read().result()


def read_gdal(url: str, name: str, ndim: int) -> Any:
    """Read an array of two dimensions; GDAL shows others as several rasters."""
    with rasterio.open(f'ZARR:"/vsicurl/{url}":/{name}') as source:
        assert source.count == 1 and ndim == 2
        return source.read(1)


SERVED_KINDS = [name for name in KINDS if name not in SETS_DIFFER | TYPES_UNKNOWN]


@pytest.fixture(scope="module")
def served_kinds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, xr.DataTree]]:
    """The url of one set with a group for each kind of archive, and what it holds, not decoded."""
    archives = Archives(tmp_path_factory.mktemp("archives"))
    nodes = {}
    for name in SERVED_KINDS:
        parts = [virtualds.open_virtual_dataset(path) for path in archives.files(name)]
        nodes[name] = KINDS[name].combine(parts)
    target = archives.folder / "kinds.zarr"
    xr.DataTree.from_dict(nodes).virtual.to_manifest(target)
    with serving(target) as url:
        yield url, xr.open_datatree(target, engine="virtual", decode_cf=False)


@pytest.mark.parametrize("name", SERVED_KINDS)
def test_tensorstore_and_gdal_read_every_kind_of_set(
    name: str, served_kinds: tuple[str, xr.DataTree]
) -> None:
    url, tree = served_kinds
    compared = set[str]()
    for variable, values in tree[name].to_dataset().load().variables.items():
        if values.dtype.kind not in NUMBERS:
            continue
        found = read_tensorstore(f"{url}zarr/{name}/", variable, "zarr3")
        np.testing.assert_array_equal(found, values.values)
        compared.add("tensorstore")
        if values.ndim == 2 and values.size:
            for version in ("zarr", "zarr2"):
                found = read_gdal(url + version, f"{name}/{variable}", values.ndim)
                np.testing.assert_array_equal(found, values.values)
            compared.add("GDAL")
    assert "tensorstore" in compared


ENCODINGS: dict[str, dict[str, Any]] = {
    "none": {},
    "zlib": {"compression": 4},
    "zlib and shuffle": {"compression": 4, "shuffle": True},
    "checksums": {"fletcher32": True},
    "lzf": {"compression": "lzf"},
    "scale and offset": {"scaleoffset": 0},
}
"""Filters of HDF5."""


def test_every_encoding_is_read_by_both(tmp_path: Path) -> None:
    expected: dict[str, Any] = {}
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for dtype in ("<i2", ">f4", "<f8", "u1"):
            for encoding, how in ENCODINGS.items():
                if encoding == "scale and offset" and np.dtype(dtype).kind == "f":
                    continue  # it rounds floats
                name = f"{encoding.replace(' ', '_')}_{np.dtype(dtype).name}"
                values = np.arange(35).reshape(7, 5).astype(dtype)
                made = file.create_dataset(name, (7, 5), dtype, chunks=(3, 2), fillvalue=9, **how)
                # the last row of chunks is missing
                made[:6] = values[:6]
                values[6] = 9
                expected[name] = values
    with serving(tmp_path / "a.h5") as url:
        for name, values in expected.items():
            found = read_tensorstore(f"{url}zarr/", name, "zarr3")
            np.testing.assert_array_equal(found, values, name)
            for version in ("zarr", "zarr2"):
                np.testing.assert_array_equal(read_gdal(url + version, name, 2), values, name)
            if "shuffle" not in name:
                found = read_tensorstore(f"{url}zarr2/", name, "zarr")
                np.testing.assert_array_equal(found, values, name)


def test_a_broken_source_is_an_error_for_both(tmp_path: Path) -> None:
    for number, how in enumerate(({}, {"compression": 4, "shuffle": True})):
        source, target = tmp_path / f"{number}.h5", tmp_path / f"{number}.json"
        with h5py.File(source, "w") as file:
            file.create_dataset("t", data=np.ones((4, 4)), chunks=(2, 2), **how)
        virtualds.open_virtual_dataset(source).virtual.to_manifest(target)
        with serving(target) as url:
            source.unlink()
            for version in ("zarr", "zarr2"):
                with pytest.raises(rasterio.errors.RasterioIOError):
                    read_gdal(url + version, "t", 2)
            # otherwise it tries for minutes
            spec = {
                "driver": "zarr3",
                "kvstore": f"{url}zarr/t/",
                "context": {"http_request_retries": {"max_retries": 1}},
            }
            opened = tensorstore.open(spec, open=True, read=True).result()
            with pytest.raises(ValueError, match="502"):
                opened.read().result()


def test_gdal_finds_attributes_and_packing(tmp_path: Path) -> None:
    made = xr.Dataset({"t": (("y", "x"), np.linspace(270, 290, 12).reshape(3, 4))})
    made["t"].attrs["units"] = "K"
    packing = {"dtype": "i2", "scale_factor": 0.01, "add_offset": 273.15, "_FillValue": -32768}
    made.to_netcdf(tmp_path / "a.nc", engine="netcdf4", encoding={"t": packing})
    with serving(tmp_path / "a.nc") as url:
        for version in ("zarr", "zarr2"):
            with rasterio.open(f'ZARR:"/vsicurl/{url}{version}":/t') as source:
                assert (source.scales, source.offsets) == ((0.01,), (273.15,))
                assert source.units == ("K",)
                found = source.read(1) * 0.01 + 273.15
            np.testing.assert_allclose(found, made["t"].values, atol=0.006)


def test_the_documents_are_strict_json(tmp_path: Path) -> None:
    import urllib.request

    made = xr.Dataset({"t": ("x", [1.0, np.nan])}, attrs={"limit": np.inf})
    made.to_netcdf(tmp_path / "a.nc", engine="netcdf4", encoding={"t": {"_FillValue": np.nan}})
    with serving(tmp_path / "a.nc") as url:
        for path in ("zarr/zarr.json", "zarr2/.zmetadata"):
            with urllib.request.urlopen(url + path) as answer:
                json.loads(answer.read(), parse_constant=pytest.fail)
