"""Follow a grid of files with `virtualds.sync`: what the first run and each night costs.

python tests/benchmarks/grids.py --members 20 --times 50 --times 500

Each file has two days of one member; with ``--overlap last`` or ``first`` it has three, so that the
next file has the last of them, too. Printed are processor and wall seconds of a run: the first,
one with nothing new, with one file, with a file of each member, with a file that has changed, and
with one that is gone.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import xarray as xr

import virtualds

DAYS = 2
"""Days from one file to the next."""


def write(folder: Path, member: int, number: int, length: int, value: float = 0.0) -> Path:
    days = np.datetime64("2000-01-01") + DAYS * number + np.arange(length)
    data = np.full((length, 8), member + number + value)
    path = folder / f"r{member:03}_{number:05}.nc"
    made = xr.Dataset({"t": (("time", "x"), data)}, {"time": days.astype("datetime64[ns]")})
    made.to_netcdf(path, engine="h5netcdf")
    return path


def run(folder: Path, what: str, overlap: str) -> None:
    """Bring the set up to date, and print what it cost."""
    wall, own = time.perf_counter(), time.process_time()
    done = virtualds.sync(
        f"{folder}/r{{member:d}}_*.nc",
        folder / "set.zarr",
        concat_dim=["member", "time"],
        overlap=overlap,
        settle=0,
        on_removed="drop",
    )
    spent = time.process_time() - own, time.perf_counter() - wall
    counts = (
        f"{len(done.added):,} added, {len(done.replaced)} replaced, {len(done.dropped)} dropped"
    )
    print(f"  {what:<16} {spent[0]:8.2f} {spent[1]:8.2f} s   {counts}", flush=True)


def measure(members: int, times: int, overlap: str) -> None:
    length = DAYS + (overlap != "error")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number in range(times):
            for member in range(members):
                write(folder, member, number, length)
        print(f"{members * times:,} files of {members} members")
        run(folder, "first run", overlap)
        run(folder, "nothing new", overlap)
        write(folder, 0, times, length)
        run(folder, "one new", overlap)
        for member in range(1, members):
            write(folder, member, times, length)
        run(folder, "all others new", overlap)
        last = write(folder, 1, 0, length, value=0.5)
        run(folder, "one changed", overlap)
        last.unlink()
        run(folder, "one gone", overlap)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--members", type=int, default=20)
    parser.add_argument("--times", type=int, action="append", help="files of a member; 50 and 500")
    parser.add_argument("--overlap", choices=["error", "first", "last"], default="error")
    options = parser.parse_args()
    for times in options.times or (50, 500):
        measure(options.members, times, options.overlap)


if __name__ == "__main__":
    main()
