"""Reference sets that others write are sources like any other: opened, joined, written, converted.

Each is made by the tool itself. The values are compared with those of the files that it refers to.
"""

from __future__ import annotations

import gc
import gzip
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import xarray as xr
from peers import peer

import virtualds

kerchunk_hdf = pytest.importorskip("kerchunk.hdf", reason="kerchunk is the other side")
kerchunk_combine = pytest.importorskip("kerchunk.combine", reason="kerchunk is the other side")
kerchunk_df = pytest.importorskip("kerchunk.df", reason="kerchunk is the other side")
reference = pytest.importorskip("fsspec.implementations.reference", reason="it is the other side")

# the others speak of their own affairs
pytestmark = pytest.mark.filterwarnings("ignore")

Make = Callable[[Path, Path], Path]
"""Makes a set of the file of a year in a folder, and says where it is."""


def year(number: int) -> xr.Dataset:
    values = np.random.default_rng(number).random((12, 4, 5)).astype("f4")
    return xr.Dataset(
        {
            "t": (("time", "lat", "lon"), values, {"units": "K"}),
            "n": (("time", "lat"), np.arange(48, dtype="i2").reshape(12, 4) + number),
        },
        coords={
            "time": 12 * number + np.arange(12),
            "lat": np.arange(4.0),
            "lon": np.arange(5.0),
        },
        attrs={"title": "made for a test"},
    )


def netcdf4(number: int, path: Path) -> None:
    year(number).to_netcdf(
        path, encoding={"t": {"chunksizes": (3, 4, 5), "zlib": True, "shuffle": True}}
    )


def scanned(path: Path, inline: int = 0, **how: Any) -> dict[str, Any]:
    # garbage of h5py that is collected in another thread would wait for ever
    gc.disable()
    try:
        made = kerchunk_hdf.SingleHdf5ToZarr(str(path), inline_threshold=inline, **how)
        found: dict[str, Any] = made.translate()
        return found
    finally:
        gc.enable()


def combined(source: Path, inline: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = kerchunk_combine.MultiZarrToZarr(
        [scanned(source, inline)],
        concat_dims=["time"],
        identical_dims=["lat", "lon"],
        inline_threshold=inline,
        remote_protocol="file",
    ).translate()
    return found


def written(refs: Any, target: Path) -> Path:
    target.write_text(json.dumps(refs))
    return target


def of_kerchunk(inline: int) -> Make:
    return lambda source, folder: written(scanned(source, inline), folder / "refs.json")


def of_many(inline: int) -> Make:
    return lambda source, folder: written(combined(source, inline), folder / "refs.json")


def of_version_0(source: Path, folder: Path) -> Path:
    return written(scanned(source)["refs"], folder / "refs.json")


def of_netcdf3(source: Path, folder: Path) -> Path:
    netcdf3 = pytest.importorskip("kerchunk.netCDF3", reason="it needs scipy")
    classic = folder / "classic.nc"
    ds = xr.load_dataset(source)
    ds.to_netcdf(classic, format="NETCDF3_64BIT", engine="scipy")
    refs = netcdf3.NetCDF3ToZarr(str(classic), inline_threshold=100).translate()
    return written(refs, folder / "refs.json")


def with_templates(source: Path, folder: Path) -> Path:
    refs = scanned(source)
    refs["templates"] = {"u": str(source), "f": "{{c}}"}
    for value in refs["refs"].values():
        if isinstance(value, list):
            value[0] = "{{u}}" if value[1] % 2 else "{{f(c='" + str(source) + "')}}"
    return written(refs, folder / "refs.json")


def with_generators(source: Path, folder: Path) -> Path:
    """The uncompressed variable, whose rows follow each other, as a generator."""
    refs = scanned(source)
    [place] = [value for key, value in refs["refs"].items() if key.startswith("n/0")]
    metadata = json.loads(refs["refs"]["n/.zarray"])
    refs["refs"]["n/.zarray"] = json.dumps(metadata | {"chunks": [1, 4]})
    del refs["refs"]["n/0.0"]
    refs["templates"] = {"u": str(source)}
    refs["gen"] = [
        {
            "key": "n/{{i}}.0",
            "url": "{{u}}",
            "offset": "{{" + str(place[1]) + " + i * 8}}",
            "length": "8",
            "dimensions": {"i": {"stop": 12}},
        }
    ]
    return written(refs, folder / "refs.json")


def with_urls_beside(source: Path, folder: Path) -> Path:
    """Urls that are seen from the folder of the set."""
    refs = scanned(source)
    for value in refs["refs"].values():
        if isinstance(value, list):
            value[0] = f"../{source.parent.name}/{source.name}"
    return written(refs, folder / "refs.json")


def of_whole_files(source: Path, folder: Path) -> Path:
    """Chunks that are files, without offset and length."""
    refs = scanned(source)
    for key, value in refs["refs"].items():
        if isinstance(value, list):
            chunk = folder / key.replace("/", "_")
            with open(value[0], "rb") as file:
                file.seek(value[1])
                chunk.write_bytes(file.read(value[2]))
            refs["refs"][key] = [str(chunk)]
    return written(refs, folder / "refs.json")


def of_a_member_of_an_archive(source: Path, folder: Path) -> Path:
    with zipfile.ZipFile(folder / "archive.zip", "w", zipfile.ZIP_STORED) as archive:
        archive.write(source, "inner/year.nc")
    url = f"zip://inner/year.nc::file://{folder}/archive.zip"
    refs = scanned(source)
    for value in refs["refs"].values():
        if isinstance(value, list):
            value[0] = url
    return written(refs, folder / "refs.json")


def with_everything_inline(source: Path, folder: Path) -> Path:
    return written(scanned(source, 10**6), folder / "refs.json")


def compressed(source: Path, folder: Path) -> Path:
    target = folder / "refs.json.gz"
    target.write_bytes(gzip.compress(json.dumps(scanned(source)).encode()))
    return target


def saved_by_fsspec(source: Path, folder: Path) -> Path:
    filesystem = fsspec.filesystem("reference", fo=scanned(source, 100), skip_instance_cache=True)
    filesystem.save_json(str(folder / "refs.json"))
    return folder / "refs.json"


def of_kerchunk_parquet(source: Path, folder: Path) -> Path:
    pytest.importorskip("fastparquet", reason="kerchunk writes Parquet with it")
    (folder / "refs.parq").mkdir()
    kerchunk_df.refs_to_dataframe(combined(source, 100), str(folder / "refs.parq"), record_size=7)
    return folder / "refs.parq"


def of_fsspec_parquet(source: Path, folder: Path) -> Path:
    pytest.importorskip("pyarrow")
    target = folder / "refs.parquet"
    out = reference.LazyReferenceMapper.create(str(target), record_size=5, engine="pyarrow")
    refs = scanned(source, 100)["refs"]
    for key in sorted(refs):
        out[key] = refs[key]
    out.flush()
    return target


def of_virtualizarr(form: str, loadable: list[str] | None) -> Make:
    def make(source: Path, folder: Path) -> Path:
        virtualizarr = peer("virtualizarr")
        parsers = pytest.importorskip("virtualizarr.parsers")
        stores = pytest.importorskip("obstore.store")
        registry = pytest.importorskip("obspec_utils.registry")
        vds = virtualizarr.open_virtual_dataset(
            f"file://{source}",
            registry=registry.ObjectStoreRegistry({"file://": stores.LocalStore()}),
            parser=parsers.HDFParser(),
            loadable_variables=loadable,
        )
        target = folder / f"refs.{form}"
        vds.vz.to_kerchunk(str(target), format=form)
        return target

    return make


def of_zarr_v3(source: Path, folder: Path) -> Path:
    """Metadata of version 3 among references, as newer kerchunk writes them of Zarr stores."""
    zarr = pytest.importorskip("zarr", reason="it writes the store")
    ds = xr.load_dataset(source)
    ds.to_zarr(folder / "store.zarr", zarr_format=3, consolidated=False)
    assert zarr.__version__ >= "3"
    refs = {}
    for path in sorted((folder / "store.zarr").rglob("*")):
        key = path.relative_to(folder / "store.zarr").as_posix()
        if path.name == "zarr.json":
            refs[key] = path.read_text()
        elif path.is_file():
            refs[key] = [str(path)]
    return written({"version": 1, "refs": refs}, folder / "refs.json")


def of_virtualds(suffix: str) -> Make:
    def make(source: Path, folder: Path) -> Path:
        virtualds.open_virtual_dataset(source).virtual.to_manifest(folder / f"refs{suffix}")
        return folder / f"refs{suffix}"

    return make


SETS: dict[str, Make] = {
    "kerchunk": of_kerchunk(0),
    "kerchunk, small ones inline": of_kerchunk(100),
    "kerchunk of many": of_many(0),
    "kerchunk of many, small ones inline": of_many(300),
    "kerchunk of version 0": of_version_0,
    "kerchunk of netCDF3": of_netcdf3,
    "kerchunk parquet": of_kerchunk_parquet,
    "templates": with_templates,
    "generators": with_generators,
    "urls beside the set": with_urls_beside,
    "whole files": of_whole_files,
    "a member of an archive": of_a_member_of_an_archive,
    "everything inline": with_everything_inline,
    "compressed": compressed,
    "saved by fsspec": saved_by_fsspec,
    "fsspec parquet": of_fsspec_parquet,
    "virtualizarr json": of_virtualizarr("json", []),
    "virtualizarr json, some loaded": of_virtualizarr("json", None),
    "virtualizarr parquet": of_virtualizarr("parquet", []),
    "zarr v3 among references": of_zarr_v3,
    "virtualds json": of_virtualds(".json"),
    "virtualds parquet": of_virtualds(".parquet"),
    "virtualds zarr-v3": of_virtualds(".zarr"),
}

UNLIKE_THE_FILE = {
    # cut, compressed, or filled in another way than the netCDF4 file that they are joined with, or
    # with HDF5's fill value for a _FillValue: Zarr v2 has no form for both in one array
    "kerchunk of netCDF3",
    "generators",
    "virtualizarr json",
    "virtualizarr json, some loaded",
    "virtualizarr parquet",
    "zarr v3 among references",
}

FORMATS = (".json", ".parquet", ".zarr")


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    (tmp_path / "in").mkdir()
    found = [tmp_path / "in" / f"{n}.nc" for n in range(2)]
    for n, path in enumerate(found):
        netcdf4(n, path)
    return found


def made(name: str, source: Path, folder: Path) -> Path:
    folder.mkdir()
    return SETS[name](source, folder)


def like_native(found: xr.Dataset, expected: xr.Dataset) -> None:
    """Compare values: tools give other fill values, with which integers are read as floats."""
    assert set(found.variables) == set(expected.variables)
    for name, variable in expected.variables.items():
        np.testing.assert_array_equal(found[name].values, variable.values)
        assert found[name].dims == variable.dims
    assert found.t.attrs["units"] == "K"


@pytest.mark.parametrize("name", SETS)
def test_a_set_is_a_source(name: str, files: list[Path], tmp_path: Path) -> None:
    path = made(name, files[0], tmp_path / "set")
    like_native(virtualds.open_virtual_dataset(path).virtual.load(), year(0))
    like_native(xr.open_dataset(path, engine="virtual").load(), year(0))


@pytest.mark.sampled(3)
@pytest.mark.product
@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("name", SETS)
def test_sets_are_joined_with_files_and_written(
    name: str, suffix: str, files: list[Path], tmp_path: Path
) -> None:
    path = made(name, files[0], tmp_path / "set")
    parts = [virtualds.open_virtual_dataset(p) for p in (path, files[1])]
    joined = xr.concat(
        parts, "time", data_vars="minimal", coords="minimal", compat="override",
        combine_attrs="override",
    )  # fmt: skip
    expected = xr.concat([year(0), year(1)], "time", data_vars="minimal")
    like_native(joined.virtual.load(), expected)
    target = tmp_path / f"joined{suffix}"
    try:
        joined.virtual.to_manifest(target)
    except virtualds.UnsupportedError as error:
        # zarr-v3 holds them
        assert "cannot hold" in str(error) and suffix != ".zarr" and name in UNLIKE_THE_FILE
        return
    like_native(xr.open_dataset(target, engine="virtual").load(), expected)


@pytest.mark.sampled(3)
@pytest.mark.product
@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("name", SETS)
def test_sets_are_converted_and_grow(
    name: str, suffix: str, files: list[Path], tmp_path: Path
) -> None:
    path = made(name, files[0], tmp_path / "set")
    virtualds.convert(path, tmp_path / f"converted{suffix}")
    found = xr.open_dataset(tmp_path / f"converted{suffix}", engine="virtual").load()
    like_native(found, year(0))
    other = made(name, files[1], tmp_path / "other")
    virtualds.open_virtual_dataset(other).virtual.to_manifest(
        tmp_path / f"converted{suffix}", append_dim="time"
    )
    found = xr.open_dataset(tmp_path / f"converted{suffix}", engine="virtual").load()
    like_native(found, xr.concat([year(0), year(1)], "time", data_vars="minimal"))


@pytest.mark.parametrize("name", SETS)
def test_many_sets_are_opened_as_one(name: str, files: list[Path], tmp_path: Path) -> None:
    paths = [made(name, file, tmp_path / f"set{n}") for n, file in enumerate(files)]
    found = virtualds.open_virtual_mfdataset(paths, combine="nested", concat_dim="time")
    like_native(found.virtual.load(), xr.concat([year(0), year(1)], "time", data_vars="minimal"))


def test_many_sets_are_opened_at_a_snapshot(files: list[Path], tmp_path: Path) -> None:
    target = tmp_path / "refs.zarr"
    virtualds.open_virtual_dataset(files[0]).virtual.to_manifest(target)
    first = virtualds.snapshots(target).snapshot[0]
    virtualds.open_virtual_dataset(files[1]).virtual.to_manifest(target, append_dim="time")
    found = virtualds.open_virtual_mfdataset([target], snapshot=first, parser="zarr-v3")
    assert found.sizes["time"] == 12
    with pytest.raises(ValueError, match="parser"):
        virtualds.zarr_store(target, parser="nothing")
