"""Signed urls are not given away with a reference set."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from range_server import RangeHandler, running

import virtualds
from virtualds import UnsupportedError

pytest.importorskip("aiohttp")
VALUES = np.arange(5000, dtype="i4")
TARGETS = ["refs.json", "refs.parquet", "refs.zarr"]


@pytest.fixture
def signed(tmp_path: Path) -> Iterator[str]:
    """The url of a file, as somebody may have got it who may not see others."""
    folder = tmp_path / "served"
    folder.mkdir()
    xr.Dataset({"v": ("x", VALUES)}).to_netcdf(folder / "a.nc", engine="h5netcdf")

    def handler(*given: object) -> object:
        return RangeHandler(*given, directory=str(folder))  # type: ignore[arg-type]

    with running(handler, ranges=[]) as server:
        yield f"{server.url}/a.nc?X-Amz-Signature=hunter2&X-Amz-Expires=60"


@pytest.mark.parametrize("target", TARGETS)
def test_a_signed_url_is_not_written_unless_asked(target: str, signed: str, tmp_path: Path) -> None:
    opened = virtualds.open_virtual_dataset(signed)
    with pytest.raises(UnsupportedError, match="keep_query=True") as caught:
        opened.virtual.to_manifest(tmp_path / target, mode="w")
    assert "hunter2" not in str(caught.value)
    assert not (tmp_path / target).exists()
    opened.virtual.to_manifest(tmp_path / target, mode="w", keep_query=True)
    again = virtualds.open_virtual_dataset(tmp_path / target)
    np.testing.assert_array_equal(again["v"].to_numpy(), VALUES)


def test_a_set_with_signed_urls_is_not_converted_unless_asked(signed: str, tmp_path: Path) -> None:
    opened = virtualds.open_virtual_dataset(signed)
    opened.virtual.to_manifest(tmp_path / "refs.parquet", mode="w", keep_query=True)
    source, target = tmp_path / "refs.parquet", tmp_path / "refs.json"
    with pytest.raises(UnsupportedError, match="keep_query=True"):
        virtualds.convert(source, target)
    virtualds.convert(source, target, keep_query=True)


def test_signatures_are_not_in_what_objects_show(signed: str) -> None:
    opened = virtualds.open_virtual_dataset(signed)
    manifest = opened["v"].variable._data
    assert "hunter2" not in repr(opened) + repr(manifest) + opened._repr_html_()
