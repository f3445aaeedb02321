"""The parser for ENVI in the docs reads files of each data type and interleave."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from envi_scenes import BANDS, CODES, LINES, SAMPLES, SHAPES, install, written

import virtualds
from virtualds import FormatError
from virtualds.datasets.location import load_plugins


@pytest.fixture(autouse=True)
def parser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    install(tmp_path / "site")
    monkeypatch.syspath_prepend(tmp_path / "site")
    load_plugins.cache_clear()
    yield
    load_plugins.cache_clear()


def read(path: Path) -> xr.Dataset:
    return virtualds.open_virtual_dataset(path)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("interleave", SHAPES)
def test_the_numbers_are_those_of_the_file(
    tmp_path: Path, interleave: str, code: int, order: int
) -> None:
    values = written(tmp_path, interleave, code, order)
    ds = read(tmp_path / "scene.hdr")
    assert ds.image.dims == SHAPES[interleave]
    np.testing.assert_array_equal(ds.image.values, values)
    assert ds.attrs == {"description": "two\n  lines"}


def test_wavelengths_are_a_coordinate_and_the_value_of_no_data_is_missing(tmp_path: Path) -> None:
    more = "data ignore value = 7\nwavelength = {0.4, 0.5,\n 0.6}\n"
    values = written(tmp_path, "bsq", 2, 0, more)
    ds = read(tmp_path / "scene.hdr")
    assert ds.wavelength.values.tolist() == [0.4, 0.5, 0.6]
    np.testing.assert_array_equal(ds.image.values, np.where(values == 7, np.nan, values))


@pytest.mark.parametrize("name", ["samples", "interleave", "byte order", "data type"])
def test_a_header_without_a_field_is_refused_by_its_name(tmp_path: Path, name: str) -> None:
    written(tmp_path, "bsq", 2, 0)
    header = tmp_path / "scene.hdr"
    header.write_text(re.sub(rf"^{name} *=.*\n", "", header.read_text(), flags=re.M))
    with pytest.raises(FormatError, match=rf"(?s)scene\.hdr.*{name}"):
        read(header)


def test_short_data_are_refused_and_missing_data_are_named(tmp_path: Path) -> None:
    written(tmp_path, "bsq", 2, 0)
    data = tmp_path / "scene.dat"
    data.write_bytes(data.read_bytes()[:-1])
    with pytest.raises(FormatError, match=r"scene\.dat"):
        read(tmp_path / "scene.hdr").load()
    data.unlink()
    with pytest.raises(FileNotFoundError, match=r"(?s)scene\.hdr.*beside"):
        read(tmp_path / "scene.hdr")


def test_many_scenes_combine(tmp_path: Path) -> None:
    for day in range(3):
        folder = tmp_path / f"{day}"
        folder.mkdir()
        written(folder, "bil", 12, 0)
    vds = virtualds.open_virtual_mfdataset(
        sorted(tmp_path.glob("*/scene.hdr")),
        combine="nested",
        concat_dim="time",
    )
    vds.virtual.to_manifest(tmp_path / "scenes.zarr")
    again = xr.open_dataset(tmp_path / "scenes.zarr", engine="virtual")
    assert again.image.sizes == {"time": 3, "y": LINES, "band": BANDS, "x": SAMPLES}
    assert again.image.isel(time=2).values[0, 1, 2] == SAMPLES + 2
