"""What a job costs when it is repeated: seconds of the processor for each of several means.

``python repeated.py FOLDER`` needs ``one.nc`` there, which `compare.py` makes.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import netCDF4
import xarray as xr

from virtualds import set_options

STEPS = slice(0, 72)
"""288 MiB."""


def measure(path: Path, engine: str, chunks: Any, rounds: int = 4) -> list[float]:
    """Return the seconds of means of an open dataset."""
    field = xr.open_dataset(path, engine=engine, chunks=chunks)["t"]
    found = []
    for _ in range(rounds):
        begin = time.process_time()
        # a new selection, of which xarray itself keeps nothing
        float(field.isel(time=STEPS).mean())
        found.append(round(time.process_time() - begin, 3))
    return found


def main() -> None:
    """Print the seconds of each reader, with and without a cache."""
    path = Path(sys.argv[1]) / "one.nc"
    for chunks in (None, {}, "auto"):
        print(f"virtualds, chunks={chunks}: {measure(path, 'virtual', chunks)}")
        with set_options(chunk_cache=0):
            print(f"  without a cache: {measure(path, 'virtual', chunks)}")
        netCDF4.set_chunk_cache(2**30, 10007, 0.75)
        print(f"  netCDF4, 1 GiB: {measure(path, 'netcdf4', chunks)}", flush=True)


if __name__ == "__main__":
    main()
