"""Whoever reads Zarr over HTTP finds the values that virtualds finds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from archives import KINDS, Archives
from products import few_quick
from serving import serving
from trees import TREES, Forest

import virtualds

zarr = pytest.importorskip("zarr", minversion="3.0")

pytestmark = [
    pytest.mark.filterwarnings("ignore::xarray.SerializationWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:.*Zarr V3 specification.*"),
    pytest.mark.filterwarnings("ignore:.*Zarr version 3 specification.*"),
]

# what the reference set itself does not hold as the archive has it
SETS_DIFFER = {"unsigned_bytes_next_to_signed_ones", "a_variable_that_some_files_lack"}
QUICK = {
    "months_of_28_to_31_days",
    "codecs_that_differ",
    "unlimited_chunks_longer_than_their_file",
    "contiguous_next_to_chunked",
    "views_that_are_turned_and_joined",
}


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Archives:
    return Archives(tmp_path_factory.mktemp("archives"))


@pytest.fixture(scope="module")
def forest(tmp_path_factory: pytest.TempPathFactory) -> Forest:
    return Forest(tmp_path_factory.mktemp("trees"))


@pytest.mark.every
@pytest.mark.parametrize("name", few_quick([n for n in KINDS if n not in SETS_DIFFER], QUICK))
def test_xarray_finds_in_both_versions_what_the_set_holds(name: str, archives: Archives) -> None:
    target = archives.folder / f"{name}.zarr"
    parts = [virtualds.open_virtual_dataset(p) for p in archives.files(name)]
    KINDS[name].combine(parts).virtual.to_manifest(target)
    expected = xr.open_dataset(target, engine="virtual").load()
    with serving(target) as url:
        for version in ("zarr", "zarr2"):
            found = xr.open_zarr(url + version, chunks=None, consolidated=True)
            xr.testing.assert_identical(found.load(), expected)


@pytest.mark.every
@pytest.mark.parametrize("name", few_quick(TREES, {"parts_of_a_model", "strings_and_attributes"}))
@pytest.mark.parametrize("version", ["zarr", "zarr2"])
def test_xarray_finds_all_groups(name: str, version: str, forest: Forest) -> None:
    path = forest.path(name)
    expected = virtualds.open_virtual_datatree(path).load()
    with serving(path) as url:
        found = xr.open_datatree(url + version, engine="zarr", chunks=None).load()
    for node in expected.subtree:
        assert node.path in found.groups
        xr.testing.assert_equal(found[node.path].to_dataset(), node.to_dataset())


def test_zarr_finds_missing_chunks_and_text(tmp_path: Path) -> None:
    import h5py

    with h5py.File(tmp_path / "a.h5", "w") as file:
        made = file.create_dataset("t", (6, 4), "<f4", chunks=(2, 4), fillvalue=7.5)
        made[2:4] = np.arange(8).reshape(2, 4)
        file["names"] = np.array(["a", "", "ö" * 9], h5py.string_dtype())
        file.create_dataset("deep/er/x", data=np.arange(5, dtype=">i2"), compression=4)
    with serving(tmp_path / "a.h5") as url:
        for version in ("zarr", "zarr2"):
            root = zarr.open_group(url + version, mode="r")
            expected = np.full((6, 4), 7.5)
            expected[2:4] = np.arange(8).reshape(2, 4)
            assert np.asarray(root["t"][...]).tolist() == expected.tolist()
            assert np.asarray(root["names"][...]).tolist() == ["a", "", "ö" * 9]
            assert np.asarray(root["deep/er/x"][...]).tolist() == [0, 1, 2, 3, 4]


def test_grib_messages(tmp_path: Path) -> None:
    pytest.importorskip("eccodes")
    from grib_messages import CASES

    name = "messages that are not there"
    path = tmp_path / "a.grib2"
    CASES[name].write(path)
    expected = virtualds.open_virtual_dataset(path).load()
    with serving(path) as url:
        found = xr.open_zarr(url + "zarr", chunks=None).load()
    xr.testing.assert_equal(found, expected)


def test_a_dataset_that_was_never_written(tmp_path: Path) -> None:
    made = xr.Dataset({"t": ("x", np.arange(4.0))}, {"x": list("abcd")}, {"title": "made"})
    with serving(made) as url:
        xr.testing.assert_identical(xr.open_zarr(url + "zarr", chunks=None).load(), made)
