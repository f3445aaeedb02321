"""What is in a Zarr store reads as xarray and zarr-python read it, however it is encoded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr
from products import looped
from zarr_stores import BYTE_BY_BYTE, LITTLE, STORES, numcodec, v3

import virtualds

pytestmark = [
    # zarr-python warns of what no specification has
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::xarray.SerializationWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:.*specification.*"),
]


def native(path: Path, **how: Any) -> xr.Dataset:
    with xr.open_zarr(path, chunks=None, **how) as found:
        return found.load()


def opened(path: Path, **how: Any) -> xr.Dataset:
    """As virtual as can be."""
    try:
        return virtualds.open_virtual_dataset(path, loadable_variables=[], **how)
    except virtualds.UnsupportedError:
        # what decodes only as a whole has to be loaded
        return virtualds.open_virtual_dataset(path, **how)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", STORES)
@looped("consolidated", [False, True])
def test_an_array_reads_as_xarray_reads_it(tmp_path: Path, name: str, consolidated: bool) -> None:
    STORES[name].write(tmp_path / "s", consolidated)
    ways: tuple[dict[str, Any], ...] = ({}, {"decode_cf": False})
    for how in ways:
        expected = native(tmp_path / "s", consolidated=consolidated, **how)
        found = opened(tmp_path / "s", **how)
        part = {"y": slice(1, None, 3)} if "y" in found.dims else {}
        xr.testing.assert_identical(found.isel(part).virtual.load().load(), expected.isel(part))
        xr.testing.assert_identical(found.virtual.load().load(), expected)
        wanted = expected.a.encoding.get("_FillValue")
        np.testing.assert_equal(found.a.encoding.get("_FillValue"), wanted)


@pytest.mark.sampled(3)
@pytest.mark.full
@pytest.mark.parametrize("name", STORES)
@looped("suffix", [".virtual.zarr", ".json"])
def test_references_to_a_store_read_like_the_store(tmp_path: Path, name: str, suffix: str) -> None:
    STORES[name].write(tmp_path / "s")
    expected = native(tmp_path / "s", consolidated=False)
    refs = tmp_path / f"refs{suffix}"
    # as stored, since some decode only as a whole; what are objects has its fill value apart
    as_stored = STORES[name].array.get("dtype") != "|O"
    opened(tmp_path / "s", decode_cf=not as_stored).virtual.to_manifest(refs, mode="w")
    found = virtualds.open_virtual_dataset(refs)
    xr.testing.assert_identical(found.virtual.load().load(), expected)


def test_a_fill_value_that_its_filter_would_round_is_not_written(tmp_path: Path) -> None:
    """Kerchunk has no place for it but chunks, of which the filter would make 5.125."""
    filter_ = numcodec("quantize", digits=2, dtype="<f8")
    v3("float64", 5.123456, filter_, LITTLE).write(tmp_path / "s")
    vds = virtualds.open_virtual_dataset(tmp_path / "s", loadable_variables=[])
    with pytest.raises(virtualds.UnsupportedError, match=r"'quantize'.* would round"):
        vds.virtual.to_manifest(tmp_path / "refs.json")
    vds.virtual.to_manifest(tmp_path / "refs.virtual.zarr")
    found = virtualds.open_virtual_dataset(tmp_path / "refs.virtual.zarr")
    expected = native(tmp_path / "s", consolidated=False)
    xr.testing.assert_identical(found.virtual.load().load(), expected)


@pytest.mark.parametrize("name", BYTE_BY_BYTE)
def test_records_are_those_of_zarr(tmp_path: Path, name: str) -> None:
    BYTE_BY_BYTE[name].write(tmp_path / "s")
    expected = zarr.open_array(tmp_path / "s/a", mode="r")
    found = virtualds.open_virtual_dataset(tmp_path / "s", decode_cf=False)
    native = expected[...].astype(expected.dtype.newbyteorder("="))
    assert found.a.dtype == native.dtype
    assert found.a.values.tobytes() == native.tobytes()
