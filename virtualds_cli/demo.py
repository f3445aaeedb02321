"""The demo: scan a year of files, write references, read them back, compare, and draw a map.

The archive is small but realistic: months of 28 to 31 days, and a compression that changes half-way
through the year.
"""

from __future__ import annotations

import calendar
import datetime
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from virtualds import open_virtual_mfdataset

if TYPE_CHECKING:
    import numpy.typing as npt

YEAR = 2001
LAT = np.linspace(-90.0, 90.0, 73)
LON = np.linspace(0.0, 357.5, 144)
MAP_DAY = f"{YEAR}-07-15"
SERIES_AT = {"lat": 52.5, "lon": 5.0}


def run_demo(folder: str | Path, print_line: Callable[[str], object] = print) -> Path:
    """Run the main steps of the library on a small generated archive.

    Parameters
    ----------
    folder : str or pathlib.Path
        Folder for the archive, the references and the picture. Created if it does not exist; files
        of an earlier run are replaced.
    print_line : callable
        Called with each line of the report.

    Returns
    -------
    pathlib.Path
        The picture.

    Raises
    ------
    ImportError
        netCDF4 or matplotlib, which only the demo needs, is not installed.
    """
    folder = Path(folder).absolute()
    references = folder / "refs.json"
    with _print_time(print_line, "wrote the archive"):
        paths = write_archive(folder / "archive")
    _scan(paths, references, print_line)
    with _print_time(print_line, "opened the references"):
        ds = xr.open_dataset(references, engine="virtual", chunks={})
    print_line(f"\n{ds}\n")
    _compare(paths, ds, print_line)
    with _print_time(print_line, "drew the picture"):
        picture = draw_maps(ds, folder / "picture.png")
    _print_sizes(paths, references, print_line)
    print_line(f"\nThe picture: {picture}")
    return picture


def write_archive(folder: str | Path) -> list[Path]:
    """Write a year of daily temperatures as twelve netCDF4 files.

    Each day is one chunk, so that months of different lengths form one regular chunk grid, which
    kerchunk JSON requires.

    Parameters
    ----------
    folder : str or pathlib.Path
        Folder for the files; created if it does not exist.

    Returns
    -------
    list of pathlib.Path
        The files, January first.

    Raises
    ------
    ImportError
        netCDF4 is not installed.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for month in range(1, 13):
        path = folder / f"t2m_{YEAR}-{month:02d}.nc"
        _write_month(path, month, complevel=4 if month <= 6 else 5)
        paths.append(path)
    return paths


def make_temperature(days: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return a plausible temperature for each day and place.

    Parameters
    ----------
    days : numpy.ndarray
        Days since the first of January.

    Returns
    -------
    numpy.ndarray
        Kelvin, over (day, latitude, longitude).

    Examples
    --------
    >>> import numpy as np
    >>> make_temperature(np.array([0, 182])).shape
    (2, 73, 144)
    """
    day = days[:, None, None].astype(float)
    lat = np.deg2rad(LAT)[None, :, None]
    lon = np.deg2rad(LON)[None, None, :]
    climate = 300.0 - 50.0 * np.sin(lat) ** 2
    continents = 4.0 * np.sin(2 * lon + 1.0) * np.cos(lat) ** 2
    # the north is coldest about three weeks after the shortest day
    seasons = -18.0 * np.sin(lat) * np.cos(2 * np.pi * (day - 20) / 365)
    weather = 6.0 * np.sin(2 * lat) ** 2 * np.sin(6 * lon - day / 2.5 + 3 * np.sin(day / 9))
    return np.asarray(climate + continents + seasons + weather)


def draw_maps(ds: xr.Dataset, path: str | Path) -> Path:
    """Draw a map of one day, and the series of one place.

    Parameters
    ----------
    ds : xarray.Dataset
        Dataset with ``t2m(time, lat, lon)``.
    path : str or pathlib.Path
        Path of the picture.

    Returns
    -------
    pathlib.Path
        The picture.

    Raises
    ------
    ImportError
        matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as exc:
        raise _make_package_error("matplotlib") from exc
    figure = Figure(figsize=(12, 4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[3, 2])
    ds["t2m"].sel(time=MAP_DAY).plot.pcolormesh(ax=left, cmap="RdYlBu_r")
    left.set_title(f"one file of twelve: {MAP_DAY}")
    ds["t2m"].sel(SERIES_AT, method="nearest").plot.line(ax=right)
    right.set_title("all of them: {lat}°N {lon}°E".format(**SERIES_AT))
    figure.savefig(path, dpi=120)
    return Path(path)


def _scan(paths: Sequence[Path], references: Path, print_line: Callable[[str], object]) -> None:
    with _print_time(print_line, f"scanned {len(paths)} files"):
        vds = open_virtual_mfdataset(paths, combine="nested", concat_dim="time")
    with _print_time(print_line, "wrote the references"):
        vds.virtual.to_manifest(references, mode="w")


def _compare(paths: Sequence[Path], ds: xr.Dataset, print_line: Callable[[str], object]) -> None:
    with _print_time(print_line, "read every value through the references"):
        ours = ds.load()
    with _print_time(print_line, "read every value with xr.open_mfdataset"):
        native = xr.open_mfdataset(
            paths,
            combine="nested",
            concat_dim="time",
            data_vars="minimal",
            coords="minimal",
            compat="override",
            join="exact",
            engine="netcdf4",
        )
        with native:
            theirs = native.load()
    xr.testing.assert_identical(ours, theirs)
    print_line("Both are identical: values, coordinates, names and attributes.")


def _print_sizes(
    paths: Sequence[Path], references: Path, print_line: Callable[[str], object]
) -> None:
    archive = sum(path.stat().st_size for path in paths)
    refs = references.stat().st_size
    print_line(f"\nThe archive:    {archive:>10,} bytes in {len(paths)} files, untouched")
    print_line(f"The references: {refs:>10,} bytes in {references}")


@contextmanager
def _print_time(print_line: Callable[[str], object], step: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    print_line(f"{time.perf_counter() - start:7.2f} s  {step}")


def _write_month(path: Path, month: int, complevel: int) -> None:
    try:
        from netCDF4 import Dataset
    except ImportError as exc:
        raise _make_package_error("netCDF4") from exc
    first = datetime.date(YEAR, month, 1).timetuple().tm_yday - 1
    days = np.arange(first, first + calendar.monthrange(YEAR, month)[1])
    with Dataset(path, "w") as nc:
        nc.title = "An invented atmosphere"
        _write_coordinates(nc, days)
        _write_temperature(nc, days, complevel)


def _write_coordinates(nc: Any, days: npt.NDArray[np.int64]) -> None:
    coordinates = {
        "time": (days, "i4", {"standard_name": "time", "units": f"days since {YEAR}-01-01"}),
        "lat": (LAT, "f4", {"standard_name": "latitude", "units": "degrees_north"}),
        "lon": (LON, "f4", {"standard_name": "longitude", "units": "degrees_east"}),
    }
    for name, (values, dtype, attributes) in coordinates.items():
        nc.createDimension(name, None if name == "time" else values.size)
        variable = nc.createVariable(name, dtype, (name,))
        variable.setncatts(attributes)
        variable[:] = values


def _write_temperature(nc: Any, days: npt.NDArray[np.int64], complevel: int) -> None:
    t2m = nc.createVariable(
        "t2m",
        "i2",
        ("time", "lat", "lon"),
        compression="zlib",
        complevel=complevel,
        shuffle=True,
        chunksizes=(1, LAT.size, LON.size),
        fill_value=-32768,
    )
    t2m.setncatts({"scale_factor": 0.01, "add_offset": 273.15})
    t2m.setncatts({"units": "K", "long_name": "2 m temperature"})
    t2m[:] = make_temperature(days)


def _make_package_error(package: str) -> ImportError:
    return ImportError(f"the demo: {package} is not installed; pip install matplotlib netCDF4")
