"""A small archive to look at: days on a globe, whose values say where they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import netCDF4
import numpy as np

import virtualds

SHAPE = (12, 6, 10, 20)
"""Days, levels, latitudes, longitudes."""
GAP = (3, 0, 2, 5)
"""The element that is missing."""


def make_values() -> np.ndarray[Any, Any]:
    """Return the temperatures of all days."""
    day, level, lat, lon = np.indices(SHAPE, dtype="f4")
    values = 300 - 8 * level - 20 * np.cos(lat / 3) + np.sin(lon / 3 + day / 2)
    values[GAP] = np.nan
    return values.astype("f4")


def write_day(path: Path, day: int) -> None:
    """Write the file of one day, with one chunk for each level."""
    with netCDF4.Dataset(path, "w") as file:
        file.title = "Days <b>on</b> a globe"
        for name, size in zip(("time", "level", "lat", "lon"), (None, *SHAPE[1:]), strict=True):
            file.createDimension(name, size)
        attrs: dict[str, tuple[Any, dict[str, str]]] = {
            "time": ([day], {"units": "days since 2001-01-01"}),
            "level": (np.arange(SHAPE[1]) * 100.0, {"units": "m", "positive": "down"}),
            "lat": (np.linspace(-81, 81, SHAPE[2]), {"units": "degrees_north"}),
            "lon": (np.arange(SHAPE[3]) * 18.0, {"units": "degrees_east"}),
        }
        for name, (values, own) in attrs.items():
            variable = file.createVariable(name, "f8", (name,))
            variable.setncatts(own)
            variable[:] = values
        t = file.createVariable(
            "t", "f4", ("time", "level", "lat", "lon"), zlib=True, chunksizes=(1, 1, 10, 20)
        )
        t.setncatts({"units": "K", "long_name": "<img src=x onerror=hack()> temperature"})
        t[:] = make_values()[day : day + 1]


def make_archive(folder: Path, days: int = SHAPE[0]) -> Path:
    """Write files and a set of them in a folder, and return the set."""
    files = folder / "secret" / "files"
    files.mkdir(parents=True, exist_ok=True)
    for day in range(days):
        write_day(files / f"day{day:02d}.nc", day)
    return update_set(folder)


def update_set(folder: Path) -> Path:
    """Write a set of all files of the archive, or write it again."""
    listed = sorted(map(str, (folder / "secret" / "files").glob("*.nc")))
    opened = virtualds.open_virtual_mfdataset(listed, combine="nested", concat_dim="time")
    opened.virtual.to_manifest(folder / "days.zarr", mode="w")
    return folder / "days.zarr"
