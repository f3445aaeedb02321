"""Kerchunk sets with Zarr v3 metadata, relative urls and held chunks, as other readers see them.

And dicts of references of other writers, as we see them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import xarray as xr
from fsspec.implementations.reference import ReferenceNotReachable
from peers import peer

import virtualds

zarr = pytest.importorskip("zarr", reason="zarr-python is the other side")
reference = pytest.importorskip("fsspec.implementations.reference", reason="zarr-python needs it")
kerchunk_hdf = pytest.importorskip("kerchunk.hdf", reason="kerchunk is the other side")
kerchunk_combine = pytest.importorskip("kerchunk.combine", reason="kerchunk is the other side")

# the others speak of their own affairs
pytestmark = pytest.mark.filterwarnings("ignore")

Read = Callable[[Path], xr.Dataset]


def by_zarr_python(path: Path) -> xr.Dataset:
    options = {"fo": str(path), "remote_protocol": "file"}
    return xr.open_zarr("reference://", storage_options=options, consolidated=False, chunks=None)


def by_zarr_python_consolidated(path: Path) -> xr.Dataset:
    options = {"fo": str(path), "remote_protocol": "file"}
    return xr.open_zarr("reference://", storage_options=options, chunks=None)


def by_kerchunk(path: Path) -> xr.Dataset:
    return xr.open_dataset(path.as_posix(), engine="kerchunk")


def virtualizarr_registry() -> Any:
    stores = pytest.importorskip("obstore.store", reason="VirtualiZarr reads files through it")
    registry = pytest.importorskip("obspec_utils.registry", reason="it finds stores by it")
    return registry.ObjectStoreRegistry({"file://": stores.LocalStore()})


def by_virtualizarr(path: Path) -> xr.Dataset:
    virtualizarr = peer("virtualizarr")
    parsers = pytest.importorskip("virtualizarr.parsers")
    found: xr.Dataset = virtualizarr.open_virtual_dataset(
        f"file://{path}",
        registry=virtualizarr_registry(),
        parser=parsers.KerchunkJSONParser(),
        loadable_variables=["t", "time", "lat", "lon"],
    )
    return found


READERS: dict[str, Read] = {
    "zarr-python": by_zarr_python,
    "zarr-python, consolidated": by_zarr_python_consolidated,
    "kerchunk": by_kerchunk,
    "virtualizarr": by_virtualizarr,
}


@pytest.fixture
def expected(archive_files: list[Path]) -> xr.Dataset:
    with xr.open_mfdataset(archive_files, combine="nested", concat_dim="time") as native:
        return native.load()


def virtual(files: list[Path]) -> xr.Dataset:
    return virtualds.open_virtual_mfdataset(files, combine="nested", concat_dim="time")


@pytest.mark.parametrize("choices", [{}, {"inline_threshold": 10**6}], ids=["referred", "held"])
@pytest.mark.parametrize("reader", [name for name in READERS if name != "kerchunk"])
def test_others_read_v3_metadata_in_kerchunk_json(
    reader: str,
    choices: dict[str, Any],
    archive_files: list[Path],
    expected: xr.Dataset,
    tmp_path: Path,
) -> None:
    target = tmp_path / "refs.json"
    virtual(archive_files).virtual.to_manifest(target, zarr_format=3, **choices)
    found = READERS[reader](target).load()
    xr.testing.assert_equal(found, expected)
    assert found["t"].values.tobytes() == expected["t"].values.tobytes()


def test_the_engine_of_kerchunk_asks_for_v2_metadata(
    archive_files: list[Path], tmp_path: Path
) -> None:
    virtual(archive_files).virtual.to_manifest(tmp_path / "refs.json", zarr_format=3)
    with pytest.raises(zarr.errors.GroupNotFoundError):
        by_kerchunk(tmp_path / "refs.json")


@pytest.mark.parametrize(
    ("reader", "zarr_format"), [("zarr-python", 2), ("zarr-python", 3), ("kerchunk", 2)]
)
def test_fsspec_finds_relative_urls_from_the_folder_of_the_set(
    reader: str,
    zarr_format: int,
    archive_files: list[Path],
    expected: xr.Dataset,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    for templates in (False, True):
        os.link(archive_files[0], tmp_path / "2001.nc") if not templates else None
        target = tmp_path / f"{templates}.json"
        virtual([tmp_path / "2001.nc"]).virtual.to_manifest(
            target, relative_paths=True, templates=templates, zarr_format=zarr_format
        )
        # its paths start from the working folder, not from that of the set
        monkeypatch.chdir(tmp_path)
        found = READERS[reader](target).load()
        np.testing.assert_array_equal(found["t"].values, expected["t"].values[:12])
        monkeypatch.chdir(tmp_path.parent)
        # fsspec keeps what it has opened
        elsewhere = target.rename(target.with_name(f"{templates}.moved.json"))
        with pytest.raises(ReferenceNotReachable):
            np.asarray(READERS[reader](elsewhere)["t"])


def by_gdal(name: str) -> Any:
    rasterio = pytest.importorskip("rasterio")
    with rasterio.open(name) as found:
        return found.read(1)


@pytest.mark.parametrize("relative_paths", [False, True])
def test_gdal_reads_json_with_absolute_and_with_relative_urls(
    relative_paths: bool, tmp_path: Path
) -> None:
    values = np.arange(24, dtype="f4").reshape(4, 6)
    ds = xr.Dataset({"t": (("y", "x"), values)}, attrs={"n": np.int16(3)})
    (tmp_path / "data").mkdir()
    encoding = {"t": {"chunksizes": (2, 6), "zlib": True}}
    ds.to_netcdf(tmp_path / "data/a.nc", encoding=encoding, unlimited_dims=["y", "x"])
    target = tmp_path / "refs.json"
    vds = virtualds.open_virtual_dataset(tmp_path / "data/a.nc")
    vds.virtual.to_manifest(target, relative_paths=relative_paths)
    for name in (str(target), f'ZARR:"{target}":/t'):
        np.testing.assert_array_equal(by_gdal(name), values)
    vds.virtual.to_manifest(tmp_path / "templates.json", templates=True)
    with pytest.raises(OSError, match="'templates' key found, but not supported"):
        by_gdal(f'ZARR:"{tmp_path}/templates.json":/t')


@pytest.mark.parametrize("format", ["kerchunk-json", "kerchunk-parquet"])
def test_others_read_cut_and_held_chunks(format: str, tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(31, 4, 5))
    xr.Dataset({"t": (("time", "y", "x"), values)}).to_netcdf(tmp_path / "a.nc")
    vds = virtualds.open_virtual_dataset(tmp_path / "a.nc")
    target = tmp_path / "refs"
    for choices in ({}, {"inline_threshold": 4 * 5 * 8}):
        vds.virtual.to_manifest(target, format=format, mode="w", subchunk={"time": 1}, **choices)
        options = {"fo": str(target), "remote_protocol": "file"}
        options |= {"engine": "pyarrow"} if format == "kerchunk-parquet" else {}
        store = fsspec.filesystem("reference", **options).get_mapper("")
        refs = {key: store[key] for key in store if key.startswith("t/") and ".z" not in key}
        assert refs["t/30.0.0"] == values[30].tobytes()
        assert {len(data) for data in refs.values()} == {4 * 5 * 8}


# ---------------------------------------------------------------------- their dicts


def test_dicts_of_kerchunk_are_opened(archive_files: list[Path], expected: xr.Dataset) -> None:
    parts = [
        kerchunk_hdf.SingleHdf5ToZarr(str(path), inline_threshold=100).translate()
        for path in archive_files
    ]
    whole = kerchunk_combine.MultiZarrToZarr(
        parts, remote_protocol="file", concat_dims=["time"], identical_dims=["lat", "lon"]
    ).translate()
    found = virtualds.open_virtual_dataset(whole)
    xr.testing.assert_equal(found.virtual.load().load(), expected)
    joined = xr.concat([virtualds.open_virtual_dataset(part) for part in parts], "time")
    np.testing.assert_array_equal(joined["t"].values, expected["t"].values)


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("loadable", [[], None], ids=["referred", "some loaded"])
def test_dicts_of_virtualizarr_are_opened(
    zarr_format: int, loadable: list[str] | None, archive_files: list[Path]
) -> None:
    virtualizarr = peer("virtualizarr")
    parsers = pytest.importorskip("virtualizarr.parsers")
    source = archive_files[0]
    theirs = virtualizarr.open_virtual_dataset(
        f"file://{source}",
        registry=virtualizarr_registry(),
        parser=parsers.HDFParser(),
        loadable_variables=loadable,
    )
    refs = theirs.vz.to_kerchunk(format="dict", zarr_format=zarr_format)
    found = virtualds.open_virtual_dataset(refs)
    xr.testing.assert_equal(found.virtual.load().load(), xr.load_dataset(source))
    json.dumps(found.virtual.to_manifest(None, zarr_format=zarr_format))


def test_the_chunks_of_a_manifest_have_the_names_of_virtualizarr(archive_files: list[Path]) -> None:
    virtualizarr = peer("virtualizarr")
    parsers = pytest.importorskip("virtualizarr.parsers")
    source = archive_files[0]
    theirs = virtualizarr.open_virtual_dataset(
        f"file://{source}",
        registry=virtualizarr_registry(),
        parser=parsers.HDFParser(),
        loadable_variables=[],
    )
    ours = virtualds.open_virtual_dataset(source, loadable_variables=[])
    for name in ("t", "lat"):
        assert ours[name].data.manifest.dict() == theirs[name].data.manifest.dict()
