"""Scanning files of formats other than HDF5: how much of it is parsing their headers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import scan_files as files
import xarray as xr
from scan_readers import JOINED, Check, Job

READERS = ("native", "virtualds", "shares")
"""The library of the format, which only looks at the headers; virtualds; and with clocks in it."""


class Function(NamedTuple):
    """A function, and what makes it finish what it does later."""

    module: str
    name: str
    finish: Callable[[Any], Any] = lambda found: found


def _list_now(found: Iterator[Any]) -> Iterator[Any]:
    return iter(list(found))


def _find_images(tiff: Any) -> Any:
    """Make tifffile find the images of a file, which it remembers."""
    len(tiff.pages), tiff.series
    return tiff


PARSING: Mapping[str, Sequence[Function]] = {
    "netcdf3": [Function("virtualds.parsers.netcdf3", "parse_header")],
    "grib": [
        Function("virtualds.parsers.grib", "scan_messages", _list_now),
        Function("virtualds.parsers.grib", "read_coordinates"),
    ],
    "fits": [Function("virtualds.parsers.fits", "read_units", _list_now)],
    "tiff": [Function("tifffile", "TiffFile", _find_images)],
}
"""Functions that parse headers, by format, as their callers look them up."""
SCANNING = [Function("virtualds.combine.file_batch", "open_group")]
"""The function that scans a file, parsing included."""


def prepare(folder: Path, form: str, reader: str) -> Job:
    """Return the job of a reader of files of a format."""
    paths = files.header_files(folder, form)
    if reader == "native":
        native = NATIVES[form]
        native(paths[:2])
        return lambda: partial(dict, last=native(paths))
    import virtualds

    def open_joined(some: Sequence[Path]) -> xr.Dataset:
        return virtualds.open_virtual_mfdataset(some, **JOINED)

    def job() -> Callable[[], Check]:
        whole = open_joined(paths)
        return lambda: {"last": _sum_last(whole)}

    def clocked() -> Callable[[], Check]:
        with _clock(PARSING[form]) as parsing, _clock(SCANNING) as scanning:
            begin = time.process_time()
            check = job()
            seconds = time.process_time() - begin
        parsed, scanned = sum(parsing) / seconds, sum(scanning) / seconds
        return lambda: check() | {"parsing": f"{parsed:.0%}", "scanning": f"{scanned:.0%}"}

    open_joined(paths[:3])
    return clocked if reader == "shares" else job


def _sum_last(whole: xr.Dataset) -> float:
    """Return the sum of the largest variable of the last file, the last of them by name."""
    name = max(whole.data_vars, key=lambda name: (whole[name].nbytes, str(name)))
    return float(whole[name].isel(time=-1).values.sum(dtype="f8"))


@contextmanager
def _clock(functions: Sequence[Function]) -> Iterator[list[float]]:
    """Note the processor seconds of each call of some functions."""
    seconds: list[float] = []
    modules = [import_module(function.module) for function in functions]
    originals = [getattr(m, f.name) for m, f in zip(modules, functions, strict=True)]

    def call(number: int, *args: Any, **kwargs: Any) -> Any:
        begin = time.process_time()
        found = functions[number].finish(originals[number](*args, **kwargs))
        seconds.append(time.process_time() - begin)
        return found

    for number, (module, function) in enumerate(zip(modules, functions, strict=True)):
        setattr(module, function.name, partial(call, number))
    try:
        yield seconds
    finally:
        for module, function, original in zip(modules, functions, originals, strict=True):
            setattr(module, function.name, original)


def _look_at_classic(paths: Sequence[Path]) -> float:
    from scipy.io import netcdf_file

    for path in paths:
        with netcdf_file(path, mmap=False) as file:
            dict(file.variables)
            value = file.variables[files.FIELDS[-1]][:].sum(dtype="f8")
    return float(value)


def _look_at_grib(paths: Sequence[Path]) -> float:
    import eccodes

    total = 0.0
    for path in paths:
        with path.open("rb") as file:
            while (handle := eccodes.codes_grib_new_from_file(file)) is not None:
                is_last = path == paths[-1] and eccodes.codes_get(handle, "shortName") == "u"
                eccodes.codes_get(handle, "level")
                total += eccodes.codes_get_values(handle).sum() if is_last else 0.0
                eccodes.codes_release(handle)
    return float(total)


def _look_at_fits(paths: Sequence[Path]) -> float:
    from astropy.io import fits

    for path in paths:
        with fits.open(path) as file:
            dict(file[0].header)
            value = file[0].data.sum(dtype="f8") if path == paths[-1] else 0
    return float(value)


def _look_at_tiff(paths: Sequence[Path]) -> float:
    import tifffile

    for path in paths:
        with tifffile.TiffFile(path) as file:
            image = file.series[0]
            value = image.asarray().sum(dtype="f8") if path == paths[-1] else 0
    return float(value)


NATIVES: Mapping[str, Callable[[Sequence[Path]], float]] = {
    "netcdf3": _look_at_classic,
    "grib": _look_at_grib,
    "fits": _look_at_fits,
    "tiff": _look_at_tiff,
}
