"""Characters of netCDF come back from every set, file by file and joined, as xarray reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest
import xarray as xr
import zarr

import virtualds

SUFFIXES = (".zarr", ".json", ".parquet")
KINDS = ("NETCDF4", "NETCDF3_CLASSIC")
NESTED: dict[str, Any] = {"combine": "nested", "concat_dim": "time"}
TEXT = np.frombuffer(b"AB CDE  F GHIJ", "S1")


def write(path: Path, kind: str, first: int = 0) -> Path:
    """Write two times of characters, one and three a string, with a fill value and without."""
    with netCDF4.Dataset(path, "w", format=kind) as file:
        file.set_auto_mask(False)
        for dim, size in {"time": None, "station": 4, "one": 1, "three": 3}.items():
            file.createDimension(dim, size)
        file.createVariable("time", "f8", ("time",))[:] = [2 * first, 2 * first + 1]
        for fill in (None, b" "):
            for dims in (("time",), ("time", "station"), ("station",), ()):
                for last in ("one", "three"):
                    name = "_".join(["filled" if fill else "plain", *dims, last])
                    found = file.createVariable(name, "S1", (*dims, last), fill_value=fill)
                    shape = [2 if dim == "time" else len(file.dimensions[dim]) for dim in dims]
                    shape.append(len(file.dimensions[last]))
                    begin = first if "time" in dims else 0
                    found[...] = np.resize(TEXT[begin:], shape)
    return path


def assert_same(target: Any, wanted: xr.Dataset, how: str) -> None:
    """Compare what both ways to open a set give with what xarray gives for the files."""
    for found in (
        virtualds.open_virtual_dataset(target).virtual.load(),
        xr.open_dataset(target, engine="virtual").load(),
    ):
        try:
            xr.testing.assert_identical(found, wanted)
        except AssertionError as error:
            raise AssertionError(f"{how}: {error}") from None
        assert {n: v.dtype for n, v in found.items()} == {n: v.dtype for n, v in wanted.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_characters_of_a_file_come_back_from_every_set(kind: str, tmp_path: Path) -> None:
    source = write(tmp_path / "a.nc", kind)
    wanted = xr.load_dataset(source)
    assert wanted["plain_time_one"].dims == ("time",)
    for suffix in SUFFIXES:
        for how in ("error", "rewrite"):
            target = tmp_path / f"{how}{suffix}"
            virtualds.open_virtual_dataset(source).virtual.to_manifest(target, on_unsupported=how)
            assert_same(target, wanted, target.name)


@pytest.mark.parametrize(("suffix", "kind"), [*zip(SUFFIXES, (*KINDS, KINDS[0]), strict=True)])
def test_characters_of_joined_files_come_back_from_every_set(
    suffix: str, kind: str, tmp_path: Path
) -> None:
    files = [write(tmp_path / f"{n}.nc", kind, n) for n in range(3)]
    wanted = xr.open_mfdataset(
        files, data_vars="minimal", coords="minimal", compat="equals", **NESTED
    ).load()

    def target(way: str) -> Path:
        return tmp_path / f"{way}{suffix}"

    joined = virtualds.open_virtual_mfdataset(files, **NESTED)
    joined.virtual.to_manifest(target("joined"))
    joined.virtual.to_manifest(target("rewritten"), on_unsupported="rewrite")
    for stop in (2, 3):
        virtualds.sync(files[:stop], target("synced"), settle=0, **NESTED)
    first, *others = files
    virtualds.open_virtual_dataset(first).virtual.to_manifest(target("appended"))
    # as a set of kerchunk or VirtualiZarr: the characters stay where they are in the file
    virtualds.convert(first, target("converted"))
    for way in ("appended", "converted"):
        for file in others:
            virtualds.open_virtual_dataset(file).virtual.to_manifest(
                target(way), mode="a", append_dim="time"
            )
    for way in ("joined", "rewritten", "synced", "appended", "converted"):
        assert_same(target(way), wanted, way)


def test_a_part_of_a_dataset_keeps_its_single_characters(tmp_path: Path) -> None:
    """They lie along ``x`` alone, and xarray joins them unless other variables have ``x``."""
    source = tmp_path / "a.nc"
    with netCDF4.Dataset(source, "w") as file:
        file.createDimension("x", 3)
        file.createVariable("flag", "S1", ("x",))[:] = TEXT[:3]
        file.createVariable("string1", "f4", ("x",))[:] = 1
    ds = virtualds.open_virtual_dataset(source)
    wanted = xr.load_dataset(source)[["flag"]]
    assert wanted["flag"].dims == ("x",)
    scalars = xr.concat([wanted["flag"][n] for n in range(3)], "x").to_dataset()
    for suffix in SUFFIXES:
        target = tmp_path / f"part{suffix}"
        ds[["flag"]].virtual.to_manifest(target)
        assert_same(target, wanted, target.name)
        scalars.virtual.to_manifest(tmp_path / f"scalars{suffix}")
        assert_same(tmp_path / f"scalars{suffix}", wanted, "scalars")
        ds.virtual.to_manifest(tmp_path / f"edited{suffix}")
        virtualds.edit(tmp_path / f"edited{suffix}", drop_variables="string1")
        assert_same(tmp_path / f"edited{suffix}", wanted, "edited")


def test_characters_that_are_not_decoded_stay_as_they_are(tmp_path: Path) -> None:
    source = write(tmp_path / "a.nc", "NETCDF4")
    raw = virtualds.open_virtual_dataset(source, decode_cf=False)
    for suffix in SUFFIXES:
        target = tmp_path / f"raw{suffix}"
        raw.virtual.to_manifest(target)
        assert_same(target, xr.load_dataset(source), target.name)
        again = virtualds.open_virtual_dataset(target, decode_cf=False)
        assert again.virtual.arrays, "the characters are no longer virtual"
        xr.testing.assert_identical(again.virtual.load(), raw.virtual.load())


def test_sets_with_an_axis_of_characters_open_as_before(tmp_path: Path) -> None:
    """This is how kerchunk and VirtualiZarr write characters."""
    array = {"zarr_format": 2, "shape": [2, 3], "chunks": [2, 3], "dtype": "|S1", "order": "C"}
    array |= {"compressor": None, "filters": None, "fill_value": None}
    refs = {
        ".zgroup": '{"zarr_format": 2}',
        "name/.zarray": json.dumps(array),
        "name/.zattrs": '{"_ARRAY_DIMENSIONS": ["station", "strlen"]}',
        "name/0.0": "abcde ",
    }
    path = tmp_path / "refs.json"
    path.write_text(json.dumps({"version": 1, "refs": refs}))
    found = xr.load_dataset(path, engine="virtual")["name"]
    assert found.dims == ("station",)
    assert found.values.tolist() == [b"abc", b"de "]


def test_booleans_and_bytes_with_the_fill_value_of_zarr_come_back(tmp_path: Path) -> None:
    """zarr-python gives every array of Zarr v2 a fill value, so some values are missing."""
    group = zarr.open_group(tmp_path / "a.zarr", mode="w", zarr_format=2)
    values = {"?": [True, False, True], "S3": [b"abc", b"", b"d"], "S1": [b"a", b"", b"d"]}
    for kind, some in values.items():
        # a character has an axis of its own here
        shape = (3, 1) if kind == "S1" else (3,)
        names = {"_ARRAY_DIMENSIONS": ["x", "n"][: len(shape)]}
        made = group.create_array(f"v{kind}", shape=shape, dtype=kind, attributes=names)
        made[:] = np.array(some, kind).reshape(shape)
    wanted = xr.open_zarr(tmp_path / "a.zarr", consolidated=False).load()
    assert wanted["v?"].values.tolist()[::2] == [True, True]
    assert all(v.dtype == object and v.isnull()[1] for v in wanted.values())
    ds = virtualds.open_virtual_dataset(tmp_path / "a.zarr")
    for suffix in SUFFIXES:
        ds.virtual.to_manifest(tmp_path / f"refs{suffix}")
        assert_same(tmp_path / f"refs{suffix}", wanted, suffix)
