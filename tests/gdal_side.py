"""What GDAL finds: a program of its own, since libraries of ecCodes would replace its curl.

A function and its argument come by ``zarr_readers.ask_gdal``; arrays of any number of axes need
functions that rasterio brings, and does not show.
"""

from __future__ import annotations

import ctypes
import pickle
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import rasterio

Values = np.ndarray[Any, Any]

MULTIDIM = 0x10
"""The flag of ``GDALOpenEx`` for arrays."""
NUMBERS = dict(
    enumerate(
        ["u1", "u2", "i2", "u4", "i4", "f4", "f8", ".", ".", "c8", "c16", "u8", "i8", "i1", "f2"], 1
    )
)
"""Types of numpy by the number of a ``GDALDataType``."""
NUMERIC, TEXT = 0, 1
"""Classes of ``GDALExtendedDataType``."""

_HANDLE = ctypes.c_void_p
_FUNCTIONS: dict[str, tuple[Any, int]] = {
    "GDALOpenEx": (_HANDLE, 5),
    "GDALDatasetGetRootGroup": (_HANDLE, 1),
    "GDALGroupRelease": (None, 1),
    "GDALGroupOpenMDArrayFromFullname": (_HANDLE, 3),
    "GDALMDArrayRelease": (None, 1),
    "GDALMDArrayGetDimensions": (ctypes.POINTER(_HANDLE), 2),
    "GDALReleaseDimensions": (None, 2),
    "GDALDimensionGetSize": (ctypes.c_uint64, 1),
    "GDALMDArrayGetDataType": (_HANDLE, 1),
    "GDALExtendedDataTypeGetClass": (ctypes.c_int, 1),
    "GDALExtendedDataTypeGetNumericDataType": (ctypes.c_int, 1),
    "GDALExtendedDataTypeRelease": (None, 1),
    "GDALMDArrayRead": (ctypes.c_int, 9),
    "CPLGetLastErrorMsg": (ctypes.c_char_p, 0),
    "VSIFree": (None, 1),
}
"""What a function of GDAL returns, and how many arguments it takes."""


@cache
def _find_gdal() -> Any:
    """Return the library that rasterio brings."""
    [path] = (Path(rasterio.__file__).parents[1] / "rasterio.libs").glob("libgdal*")
    library = ctypes.CDLL(str(path))
    for name, (returned, count) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = returned, [_HANDLE] * count
    library.GDALAllRegister()
    # errors are asked for, and not printed
    library.CPLPushErrorHandler(library.CPLQuietErrorHandler)
    return library


def read_all(asked: Sequence[tuple[str, str, Any]]) -> list[Values | Exception]:
    """Read arrays of groups at urls by path, whole or a box; return errors as such."""
    found: list[Values | Exception] = []
    for url, path, box in asked:
        try:
            found.append(read_array(url, path, box))
        except OSError as error:
            found.append(error)
    return found


def read_array(url: str, path: str, box: tuple[slice, ...] | None) -> Values:
    """Read one array."""
    gdal = _find_gdal()
    root = _take(gdal.GDALDatasetGetRootGroup(_open_dataset(url)))
    try:
        array = _take(gdal.GDALGroupOpenMDArrayFromFullname(root, f"/{path}".encode(), None))
    finally:
        gdal.GDALGroupRelease(root)
    try:
        return _read_whole(array, box)
    finally:
        gdal.GDALMDArrayRelease(array)


@cache
def _open_dataset(url: str) -> Any:
    name = f'ZARR:"/vsicurl/{url}"'.encode()
    return _take(_find_gdal().GDALOpenEx(name, MULTIDIM, None, None, None))


def _take(handle: Any) -> Any:
    if not handle:
        raise OSError(_find_gdal().CPLGetLastErrorMsg().decode())
    return handle


def _read_whole(array: Any, box: tuple[slice, ...] | None) -> Values:
    gdal = _find_gdal()
    count = ctypes.c_size_t()
    axes = gdal.GDALMDArrayGetDimensions(array, ctypes.byref(count))
    sizes = [gdal.GDALDimensionGetSize(axes[i]) for i in range(count.value)]
    gdal.GDALReleaseDimensions(axes, count.value)
    box = box or tuple(slice(0, size) for size in sizes)
    shape = [part.stop - part.start for part in box]
    kind = gdal.GDALMDArrayGetDataType(array)
    try:
        dtype = np.dtype(np.uintp)
        if gdal.GDALExtendedDataTypeGetClass(kind) == NUMERIC:
            dtype = np.dtype(NUMBERS[gdal.GDALExtendedDataTypeGetNumericDataType(kind)])
        elif gdal.GDALExtendedDataTypeGetClass(kind) != TEXT:
            raise OSError("a compound type")
        found = np.zeros(shape, dtype)
        begin = (ctypes.c_uint64 * len(box))(*(part.start for part in box))
        lengths = (ctypes.c_size_t * len(box))(*shape)
        place = found.ctypes.data
        done = gdal.GDALMDArrayRead(array, begin, lengths, None, None, kind, place, None, None)
        _take(done)
        if gdal.GDALExtendedDataTypeGetClass(kind) == NUMERIC:
            return found
        return np.array([_take_text(one) for one in found.ravel().tolist()], object).reshape(shape)
    finally:
        gdal.GDALExtendedDataTypeRelease(kind)


def _take_text(address: int) -> str | None:
    if not address:
        return None
    text = ctypes.string_at(address).decode()
    _find_gdal().VSIFree(address)
    return text


def describe_images(names: Sequence[str]) -> list[dict[str, Any]]:
    """Return what rasterio says of arrays of two dimensions, and their values."""
    found = []
    for name in names:
        with rasterio.open(name) as source:
            said = {key: getattr(source, key) for key in ("count", "scales", "offsets", "units")}
            found.append(said | {"values": source.read(1)})
    return found


if __name__ == "__main__":
    found = globals()[sys.argv[1]](pickle.load(sys.stdin.buffer))
    pickle.dump(found, sys.stdout.buffer)
