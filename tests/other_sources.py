"""Cases of sources for which xarray has no engine of its own, or which lie in archives.

They go through the commuting square like those of `cases`; what is expected comes from the library
of the format.
"""

from __future__ import annotations

import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hdf4_files
import numpy as np
import safetensors.numpy
import tifffile
import xarray as xr
from astropy.io import fits
from cases import CASES, Case, numbers
from sidecars import describe

WITHIN = "larger_than_small"
"""The case whose file lies in archives."""

OTHERS: dict[str, Case] = {}


def other(source: str, read: Callable[[Path], xr.Dataset]) -> Callable[..., Any]:
    def enter(write: Callable[[Path], None]) -> Callable[[Path], None]:
        OTHERS[write.__name__] = Case(write, engine="none", source=source, read=read)
        return write

    return enter


def plain(values: dict[str, Any], attrs: dict[str, Any] | None = None) -> xr.Dataset:
    """Arrays with the dimensions that flat arrays get, in the byte order of the machine."""
    found = {
        name: (tuple(f"{name}_dim_{axis}" for axis in range(v.ndim)), in_native_order(v))
        for name, v in values.items()
    }
    return xr.Dataset(found, attrs=attrs)


def in_native_order(values: Any) -> Any:
    return values.astype(values.dtype.newbyteorder("="))


# ---------------------------------------------------------------------- flat arrays


def _npy(path: Path) -> xr.Dataset:
    values = in_native_order(np.load(path))
    return xr.Dataset({"array": (tuple(f"dim_{axis}" for axis in range(values.ndim)), values)})


@other("npy", _npy)
def npy_of_fortran(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, np.asfortranarray(numbers(7, 30, 41, dtype=">i2")))


def _npz(path: Path) -> xr.Dataset:
    with np.load(path) as file:
        return plain(dict(file))


@other("npz", _npz)
def npz_of_several(path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, a=numbers(7, 30, 41), b=numbers(9, dtype=">u4"), c=np.float64(0.1))


@other("npz", _npz)
def npz_deflated(path: Path) -> None:
    with path.open("wb") as file:
        np.savez_compressed(file, a=numbers(7, 30, 41).round(1), b=np.asfortranarray(numbers(5, 9)))


def _safetensors(path: Path) -> xr.Dataset:
    values = safetensors.numpy.load_file(path)
    with safetensors.safe_open(path, "np") as file:
        names, attrs = list(file.offset_keys()), file.metadata()
    return plain({name: values[name] for name in names}, attrs)


@other("safetensors", _safetensors)
def tensors(path: Path) -> None:
    values = {"w": numbers(30, 41), "b": numbers(30, dtype="i8"), "f": numbers(3) > 0}
    safetensors.numpy.save_file(values, path, metadata={"made": "here"})


# ---------------------------------------------------------------------- images


def _tiff(path: Path) -> xr.Dataset:
    return xr.Dataset({"band_data": (("y", "x"), in_native_order(tifffile.imread(path)))})


def _write_tiff(path: Path, **how: Any) -> None:
    values = np.cumsum(numbers(50, 70), axis=1)
    tifffile.imwrite(path, values, software=False, metadata=None, **how)


@other("tiff", _tiff)
def tiff_tiles(path: Path) -> None:
    _write_tiff(path, tile=(16, 32), compression="deflate", predictor=True)


@other("tiff", _tiff)
def tiff_strips_of_big_endian(path: Path) -> None:
    _write_tiff(path, rowsperstrip=10, byteorder=">", bigtiff=True, compression="lzw")


def _fits(path: Path) -> xr.Dataset:
    values = in_native_order(fits.getdata(path))
    return xr.Dataset({"PRIMARY": (("naxis3", "naxis2", "naxis1"), values)})


@other("fits", _fits)
def fits_floats(path: Path) -> None:
    with path.open("wb") as file:
        fits.PrimaryHDU(numbers(5, 30, 41)).writeto(file)


@other("fits", _fits)
def fits_unsigned(path: Path) -> None:
    with path.open("wb") as file:
        fits.PrimaryHDU(numbers(5, 30, 41, dtype="u2")).writeto(file)


# ---------------------------------------------------------------------- HDF4


def _hdf4(path: Path) -> xr.Dataset:
    return xr.Dataset(hdf4_files.read(path))


@other("hdf4", _hdf4)
def hdf4_chunks(path: Path) -> None:
    hdf4_files.CASES["three_axes_of_chunks"](path)


@other("hdf4", _hdf4)
def hdf4_scales(path: Path) -> None:
    hdf4_files.CASES["scales"](path)


# ---------------------------------------------------------------------- sidecars


def _described(path: Path) -> xr.Dataset:
    return CASES[WITHIN].native(path.with_name(f"{path.name}.nc"), decode_cf=False)


@other("dmrpp", _described)
def sidecar(path: Path) -> None:
    file = path.with_name(f"{path.name}.nc")
    CASES[WITHIN].write(file)
    path.write_text(describe(file, **{"dmrpp:href": file.name}), encoding="utf-8")


# ---------------------------------------------------------------------- files in archives


def _member(path: Path) -> xr.Dataset:
    """What xarray makes of the only member of an archive."""
    with tempfile.TemporaryDirectory() as folder:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                archive.extractall(folder)
        else:
            with tarfile.open(path) as archive_:
                archive_.extractall(folder, filter="data")
        return CASES[WITHIN].native(Path(folder) / "a.nc", decode_cf=False)


def _written(write: Callable[[Path], None]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "a.nc"
        CASES[WITHIN].write(file)
        write(file)


@other("hdf5", _member)
def member_of_zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        _written(lambda file: archive.write(file, "a.nc"))


@other("hdf5", _member)
def member_of_tar(path: Path) -> None:
    with tarfile.open(path, "w") as archive:
        _written(lambda file: archive.add(file, "a.nc"))
