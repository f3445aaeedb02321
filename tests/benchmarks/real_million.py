"""Measure all steps for an archive of very many real netCDF4 files, each in a process of its own.

A file has 28 to 31 steps, as months have days, of four variables on a small grid: 29 kB. In the
second half of the archive, compression and packing are others. Files are made from templates,
in which the dates are replaced; steps are minutes, since a million months are more than dates can
say. A million files take 33 GB of disk.

    python tests/benchmarks/real_million.py --files 10000 --files 100000 --folder /somewhere
"""

from __future__ import annotations

import argparse
import os
import shutil
import struct
import tempfile
import time
from calendar import monthrange
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import xarray as xr
from steps import add_arguments, later, run_here, run_steps

import virtualds

MARK = 1.2345678e300
"""The first date of a template; the others follow in steps that no other number has."""
STEP = 1e290
VARIANTS = 4
"""Templates of each kind, with other values."""
PER_FOLDER = 1000
CALENDAR = "CALENDAR_OF_FILES"
"""The variable of the environment that names their calendar."""
GRID = (3, 6)


# ---------------------------------------------------------------------- files


def make_template(path: Path, days: int, is_late: bool, seed: int, calendar: str) -> bytes:
    """Return a file of one month, with marks for dates."""
    random = np.random.default_rng(seed)
    with netCDF4.Dataset(path, "w") as file:
        file.title = "months of a small grid"
        file.Conventions = "CF-1.8"
        for name, size in zip(("time", "lat", "lon"), (None, *GRID), strict=True):
            file.createDimension(name, size)
        dates = file.createVariable("time", "f8", ("time",), chunksizes=(days,))
        dates.setncatts({"units": "minutes since 1980-01-01", "calendar": calendar})
        dates[:] = MARK + np.arange(days) * STEP
        for name, units, ends in (
            ("lat", "degrees_north", (-85, 85)),
            ("lon", "degrees_east", (0, 340)),
        ):
            made = file.createVariable(name, "f4", (name,))
            made.units = units
            made[:] = np.linspace(*ends, len(file.dimensions[name]))
        how = {"zlib": True, "shuffle": True, "complevel": 4 if is_late else 1}
        for number in range(4):
            is_packed = number == 3
            made = file.createVariable(
                f"v{number}",
                "i2" if is_packed else "f4",
                ("time", "lat", "lon"),
                chunksizes=(days, *GRID),
                **how,
            )
            made.setncatts({"units": "K", "long_name": f"temperature {number}"})
            if is_packed:
                made.setncatts({"scale_factor": 0.02 if is_late else 0.01, "add_offset": 280.0})
            made[:] = random.normal(280, 8, (days, *GRID)).round(1)
    data = path.read_bytes()
    path.unlink()
    return data


def find_marks(data: bytes, days: int) -> int:
    """Return where the dates of a template are, one behind the other."""
    place = data.index(struct.pack("<d", MARK))
    expected = (MARK + np.arange(days) * STEP).astype("<f8").tobytes()
    assert data[place : place + 8 * days] == expected
    return place


def write_files(folder: Path, first: int, stop: int, count: int, *, even: bool = False) -> None:
    """Write some months of an archive of ``count`` months, or months that are all alike."""
    folder.mkdir(parents=True, exist_ok=True)
    templates: dict[tuple[int, bool, int], tuple[bytes, int]] = {}
    kind = os.environ.get(CALENDAR, "standard")
    starts = np.cumsum([0, *(30 if even else count_days(month) for month in range(stop))])
    for month in range(first, stop):
        days, is_late = int(starts[month + 1] - starts[month]), not even and month >= count // 2
        key = days, is_late, month % VARIANTS
        if key not in templates:
            data = make_template(folder / "template.nc", *key, kind)
            templates[key] = data, find_marks(data, days)
        data, place = templates[key]
        dates = (starts[month] + np.arange(days)).astype("<f8").tobytes()
        path = Path(name_file(folder, month))
        if month % PER_FOLDER == 0 or month == first:
            path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"".join((data[:place], dates, data[place + len(dates) :])))


def count_days(month: int) -> int:
    """Return the number of steps of a file, that of the days of a month."""
    return monthrange(1 + (month // 12) % 400, month % 12 + 1)[1]


def name_file(folder: Path, month: int) -> str:
    # a string, since paths keep their parts in memory
    return f"{folder}/{month // PER_FOLDER:04d}/month{month:07d}.nc"


def list_files(folder: Path, count: int) -> list[str]:
    return [name_file(folder, month) for month in range(count)]


# ---------------------------------------------------------------------- steps


def build(folder: Path, count: int, parallel: Any = None, name: str = "built.zarr") -> Any:
    files = list_files(folder / "data", count)
    opened = virtualds.open_virtual_mfdataset(
        files, combine="nested", concat_dim="time", to=folder / name, mode="w", parallel=parallel
    )
    return opened.sizes["time"]


def build_on_cluster(folder: Path, count: int) -> Any:
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        return build(folder, count, client, "cluster.zarr")


def sync(folder: Path, count: int) -> Any:
    report = virtualds.sync(
        str(folder / "data" / "*" / "*.nc"), folder / "synced.zarr", concat_dim="time", settle=0
    )
    return str(report).splitlines()[0]


def sync_more(folder: Path, count: int, more: int) -> Any:
    """Write files behind the last one, and follow them."""
    last = sum(1 for _ in (folder / "data").glob("*/*.nc"))
    write_files(folder / "data", last, last + more, count)
    return later(sync, folder, count)


def verify(folder: Path, count: int) -> Any:
    return str(virtualds.open_virtual_dataset(folder / "built.zarr").virtual.verify()).splitlines()[
        0
    ]


def diagnose(folder: Path, count: int) -> Any:
    found = virtualds.diagnose(list_files(folder / "data", count), concat_dim="time")
    return str(found).splitlines()[0]


def open_set(folder: Path, count: int) -> Any:
    # the first opening imports what it needs, and lets xarray import all other engines
    xr.open_dataset(folder / "small.zarr", engine="virtual")
    return later(lambda: xr.open_dataset(folder / "built.zarr", engine="virtual").sizes["time"])


def read_slice(folder: Path, count: int) -> Any:
    opened = xr.open_dataset(folder / "built.zarr", engine="virtual")
    return later(lambda: float(opened["v0"].isel(time=opened.sizes["time"] // 3).mean()))


def read_point(folder: Path, count: int) -> Any:
    opened = xr.open_dataset(folder / "built.zarr", engine="virtual")
    return later(lambda: float(opened["v3"].isel(lat=1, lon=3).mean()))


def read_mean(folder: Path, count: int) -> Any:
    opened = xr.open_dataset(folder / "built.zarr", engine="virtual", chunks="auto")
    return later(lambda: float(opened["v0"].mean()))


STEPS: dict[str, Callable[[Path, int], Any]] = {
    "build": build,
    "build, two processes": partial(build, parallel=2, name="two.zarr"),
    "build, dask, two workers": build_on_cluster,
    "sync, all are new": sync,
    "sync, nothing new": sync,
    "sync, one new": partial(sync_more, more=1),
    "sync, 1 % new": lambda folder, count: sync_more(folder, count, max(count // 100, 1)),
    "verify": verify,
    "diagnose": diagnose,
    "open": open_set,
    "one slice": read_slice,
    "one point series": read_point,
    "one mean": read_mean,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, action="append", help="how many; may be repeated")
    parser.add_argument("--keep", action="store_true", help="keep the files, and use kept ones")
    parser.add_argument("--calendar", default="standard", help="that of the dates")
    add_arguments(parser, STEPS)
    given = parser.parse_args()
    counts = given.files or [1000, 10_000]
    os.environ[CALENDAR] = os.environ.get(CALENDAR, given.calendar)
    if given.step:
        run_here(partial(STEPS[given.step], given.folder, counts[0]))
        return
    for count in counts:
        if given.keep:
            root = (given.folder or Path()) / f"archive-{count}"
        else:
            root = Path(tempfile.mkdtemp(dir=given.folder))
        try:
            if not (root / "small.zarr").exists():
                make_archive(root, count)
            arguments = ("--files", count, "--folder", root)
            for _ in run_steps(given.only or STEPS, arguments, "files", count, given.record):
                pass
        finally:
            if not given.keep:
                shutil.rmtree(root)


def make_archive(root: Path, count: int) -> None:
    """Make the files, and a small set beside them, and print their size."""
    begun = time.perf_counter()
    write_files(root / "data", 0, count, count)
    nbytes = sum(entry.stat().st_size for entry in (root / "data").glob("*/*.nc"))
    print(
        f"\n{count:,} files, {nbytes / 1e9:.2f} GB, {nbytes / count / 1e3:.1f} kB each, "
        f"made in {time.perf_counter() - begun:.0f} s",
        flush=True,
    )
    write_files(root / "few", 0, 2, 2)
    few = list_files(root / "few", 2)
    virtualds.open_virtual_mfdataset(
        few, combine="nested", concat_dim="time", to=root / "small.zarr"
    )


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
