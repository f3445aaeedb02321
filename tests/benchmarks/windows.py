"""Follow an archive whose files overlap, and a window of it: what each night costs.

python tests/benchmarks/windows.py --files 1000 --files 10000

Each file has three days, of which the last is the first of the next file. Printed are processor and
wall seconds of a run: the first, one with nothing new, with one new file, and with the last file
withdrawn; of all files with ``overlap="last"``, and of the last tenth of the days with ``keep=``.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np

import virtualds


def write(folder: Path, number: int) -> Path:
    path = folder / f"{number:06}.nc"
    with netCDF4.Dataset(path, "w") as file:
        file.createDimension("time", 3)
        file.createDimension("x", 8)
        days = file.createVariable("time", "i4", ("time",))
        days.units = "days since 2000-01-01"
        days[:] = 2 * number + np.arange(3)
        file.createVariable("t", "f8", ("time", "x"))[:] = number
    return path


def run(folder: Path, target: str, what: str, how: dict[str, Any]) -> None:
    """Bring a set up to date, and print what it cost."""
    wall, own = time.perf_counter(), time.process_time()
    done = virtualds.sync(
        f"{folder}/*.nc", folder / target, concat_dim="time", settle=0, on_removed="drop", **how
    )
    spent = time.process_time() - own, time.perf_counter() - wall
    names = ("added", "dropped", "shadowed", "outside")
    counts = ", ".join(f"{len(getattr(done, name)):,} {name}" for name in names)
    print(f"  {what:<16} {spent[0]:8.2f} {spent[1]:8.2f} s   {counts}", flush=True)


def measure(count: int) -> None:
    ways: dict[str, dict[str, Any]] = {
        "overlap": {"overlap": "last"},
        "window": {"overlap": "last", "keep": {"time": count // 5}},
    }
    for name, how in ways.items():
        with tempfile.TemporaryDirectory() as made:
            folder = Path(made)
            for number in range(count):
                write(folder, number)
            print(f"{count:,} files, {name}")
            for what in ("first run", "nothing new"):
                run(folder, "set.zarr", what, how)
            last = write(folder, count)
            run(folder, "set.zarr", "one new", how)
            run(folder, "set.zarr", "nothing new", how)
            last.unlink()
            run(folder, "set.zarr", "one withdrawn", how)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--files", type=int, action="append", help="number of files; 1000 and 10000"
    )
    for count in parser.parse_args().files or (1000, 10000):
        measure(count)


if __name__ == "__main__":
    main()
