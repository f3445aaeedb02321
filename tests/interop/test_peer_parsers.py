"""kerchunk's parsers of other formats than HDF5: we read its references, and agree with them.

Where they differ, the difference is asserted with its reason. Those of VirtualiZarr for these
formats are kerchunk's.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from cases import CASES, numbers

import virtualds

pytest.importorskip("kerchunk", reason="it is the other side")
tifffile = pytest.importorskip("tifffile", reason="both read TIFF through it")
fits = pytest.importorskip("astropy.io.fits", reason="it writes FITS")
eccodes = pytest.importorskip("eccodes", reason="both read GRIB through it")
pytest.importorskip("cfgrib", reason="kerchunk reads GRIB through it")

# the others speak of their own affairs
pytestmark = pytest.mark.filterwarnings("ignore")


def netcdf3(path: Path) -> Any:
    from kerchunk.netCDF3 import NetCDF3ToZarr

    return NetCDF3ToZarr(str(path), inline_threshold=0).translate()


def tiff(path: Path) -> Any:
    from kerchunk.tiff import tiff_to_zarr

    return tiff_to_zarr(str(path))


def image(path: Path) -> Any:
    from kerchunk.fits import process_file

    return process_file(str(path))


def grib(path: Path) -> Any:
    from cfgrib.dataset import COORD_ATTRS
    from kerchunk.grib2 import scan_grib

    own = deepcopy(COORD_ATTRS)
    try:
        [found] = scan_grib(str(path))
    finally:
        # kerchunk writes into the tables of cfgrib, which other tests compare with
        COORD_ATTRS.update(own)
    return found


def theirs(scan: Callable[[Path], Any], path: Path, **how: Any) -> xr.Dataset:
    """What we read of the references that kerchunk makes of a file."""
    gc.disable()  # see test_peers
    try:
        refs = scan(path)
    finally:
        gc.enable()
    refs = {k: v.decode() if isinstance(v, bytes) else v for k, v in refs.items()}
    target = path.with_suffix(".refs.json")
    target.write_text(json.dumps(refs))
    return virtualds.open_virtual_dataset(target, **how)


CLASSIC = [
    name
    for name, case in CASES.items()
    if case.source == "netcdf3" and name != "classic_with_one_record_variable"
]


@pytest.mark.parametrize("name", CLASSIC)
def test_classic_netcdf(name: str, tmp_path: Path) -> None:
    path = tmp_path / "a.nc"
    CASES[name].write(path)
    expected = virtualds.open_virtual_dataset(path).virtual.load()
    if name == "netcdf3_64bit_data":
        with pytest.raises(ValueError, match="header"):
            theirs(netcdf3, path)  # it knows no CDF-5
        return
    found = theirs(netcdf3, path).virtual.load()
    xr.testing.assert_equal(found, expected)
    for variable in expected.variables:
        assert found[variable].dtype == expected[variable].dtype


def test_records_of_an_only_variable_are_padded_by_kerchunk_and_not_in_the_file(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.nc"
    CASES["classic_with_one_record_variable"].write(path)
    with pytest.raises(virtualds.ReadError, match="the file ends"):
        theirs(netcdf3, path).virtual.load()
    xr.testing.assert_identical(
        virtualds.open_virtual_dataset(path).virtual.load(),
        CASES["classic_with_one_record_variable"].native(path),
    )


LAYOUTS: dict[str, dict[str, Any]] = {
    "tiles": {"tile": (32, 32)},
    "deflated tiles": {"tile": (32, 32), "compression": "deflate", "predictor": True},
    "strips": {"rowsperstrip": 16, "compression": "lzw"},
    "big-endian": {"byteorder": ">", "rowsperstrip": 64},
    "deflated big-endian": {
        "byteorder": ">", "tile": (32, 32), "compression": "deflate", "predictor": True
    },
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["f4", "u2"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_images_of_tiff(name: str, dtype: str, tmp_path: Path) -> None:
    path, values = tmp_path / "a.tif", numbers(64, 96, dtype=dtype)
    tifffile.imwrite(path, values, metadata=None, **LAYOUTS[name])
    # its set has an array and no group, and dimensions in capitals
    found = theirs(tiff, path, decode_cf=False)["array"]
    ours = virtualds.open_virtual_dataset(path)["band_data"]
    assert found.dims == ("Y", "X")
    np.testing.assert_array_equal(found, values)
    np.testing.assert_array_equal(ours, values)


@pytest.mark.parametrize("dtype", [">f4", ">f8", "u1", ">i2", ">i4"])
def test_images_of_fits(dtype: str, tmp_path: Path) -> None:
    path, values = tmp_path / "a.fits", numbers(5, 30, 41, dtype=dtype)
    fits.PrimaryHDU(values).writeto(path)
    # it declares 0 the fill value of all, of which CF would make gaps
    found = theirs(image, path, decode_cf=False)["PRIMARY"]
    ours = virtualds.open_virtual_dataset(path)["PRIMARY"]
    assert found.dtype == ours.dtype == values.dtype.newbyteorder("=")
    np.testing.assert_array_equal(found, values)
    np.testing.assert_array_equal(ours, values)


def test_unsigned_images_of_fits_are_refused_where_kerchunk_says_they_are_longer(
    tmp_path: Path,
) -> None:
    path, values = tmp_path / "a.fits", numbers(30, 41, dtype="u2")
    fits.PrimaryHDU(values).writeto(path)
    # its filter makes float64 of what it says is int16, which zarr-python refuses too
    with pytest.raises(virtualds.ReadError, match="do not decode"):
        theirs(image, path, decode_cf=False)["PRIMARY"].values  # noqa: B018
    np.testing.assert_array_equal(virtualds.open_virtual_dataset(path)["PRIMARY"], values)


def message(path: Path, edition: int) -> Path:
    """A file of one message."""
    handle = eccodes.codes_grib_new_from_samples(f"regular_ll_pl_grib{edition}")
    count = eccodes.codes_get_size(handle, "values")
    eccodes.codes_set_values(handle, np.random.default_rng(0).normal(280, 9, count))
    path.write_bytes(eccodes.codes_get_message(handle))
    eccodes.codes_release(handle)
    return path


def test_messages_of_grib(tmp_path: Path) -> None:
    path = message(tmp_path / "a.grib", 2)
    found, ours = theirs(grib, path), virtualds.open_virtual_dataset(path)
    [name] = ours.data_vars
    # in double precision, through its own codec, which it brings to numcodecs
    assert (found[name].dtype, ours[name].dtype) == ("f8", "f4")
    np.testing.assert_array_equal(found[name].values.astype("f4"), ours[name])
    np.testing.assert_allclose(found["latitude"], ours["latitude"])


def test_kerchunk_takes_the_length_of_edition_1_for_one_of_edition_2(tmp_path: Path) -> None:
    path = message(tmp_path / "a.grib", 1)
    ours = virtualds.open_virtual_dataset(path)
    [name] = ours.data_vars
    with pytest.raises(virtualds.ReadError, match="the file ends"):
        theirs(grib, path)[name].values  # noqa: B018
    assert np.isfinite(ours[name]).all()
