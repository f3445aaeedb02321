"""Measure `virtualds.sync` of many small netCDF4 files: nothing new, one new, and many of each."""

from __future__ import annotations

import argparse
import os
import shutil
import struct
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import xarray as xr

import virtualds

MARK = 1.2345678e300
"""The time of the file that the others are copies of; theirs is put in its place."""


def write_files(folder: Path, count: int) -> list[str]:
    """Write files of one day each, without the time that the library takes for each."""
    days = {"time": ("time", [MARK], {"units": "days since 1900-01-01"})}
    grid = {"lat": np.linspace(-80, 80, 24), "lon": np.linspace(0, 350, 48)}
    values = np.random.default_rng(0).normal(280, 9, (1, 24, 48)).astype("f4").round(2)
    names = [f"v{number}" for number in range(4)]
    ds = xr.Dataset(dict.fromkeys(names, (("time", "lat", "lon"), values)), days | grid)
    model = folder / "model.nc"
    ds.to_netcdf(model, engine="h5netcdf", encoding={name: {"zlib": True} for name in names})
    data = bytearray(model.read_bytes())
    place = data.index(struct.pack("<d", MARK))
    model.unlink()
    found = []
    for number in range(count):
        data[place : place + 8] = struct.pack("<d", number)
        path = folder / f"{number // 1000:03}" / f"{number:07}.nc"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        found.append(str(path))
    return found


def measure(what: str, work: Callable[[], object]) -> float:
    """Print and return the processor seconds of some work."""
    begun = time.process_time()
    work()
    seconds = time.process_time() - begun
    print(f"{what:<28}{seconds:8.2f} s of processor", flush=True)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=50_000)
    parser.add_argument("--many", type=int, default=1000, help="how many are new, or changed")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--suffix", default=".zarr", help="that of the format of the set")
    parser.add_argument("--folder", type=Path, help="where to write; by default a temporary one")
    given = parser.parse_args()
    root = Path(tempfile.mkdtemp(dir=given.folder))
    target = root / f"refs{given.suffix}"

    def sync(files: Sequence[str], **how: str) -> None:
        virtualds.sync(files, target, concat_dim="time", settle=0, **how)

    try:
        (root / "data").mkdir()
        files = write_files(root / "data", given.files + given.runs + given.many)
        some = files[: given.files]
        measure("all are new", lambda: sync(some))
        nothing = min(measure("nothing new", partial(sync, some)) for _ in range(given.runs))
        one = []
        for run in range(given.runs):
            some = files[: given.files + run + 1]
            one.append(measure("one is new", partial(sync, some)))
        measure(f"{given.many:,} are new", lambda: sync(files))
        for path in files[:: len(files) // given.many]:
            os.utime(path)
        measure(f"{given.many:,} have changed", lambda: sync(files))
        rest = [path for number, path in enumerate(files) if number % (len(files) // given.many)]
        measure(f"{given.many:,} are gone", lambda: sync(rest, on_removed="drop"))
        measure(f"{given.many:,} come back between others", lambda: sync(files))
        print(f"one new file costs {min(one) / nothing:.2f} times a run with nothing new")
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
