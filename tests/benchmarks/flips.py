"""What a flipped latitude costs beside a copy of it: bytes of the set, and seconds.

Files of three-hourly fields in compressed or plain chunks are joined, flipped, and written as a set
of references; beside that as they are, and flipped after they were loaded, which is what is left
where an axis cannot run backwards.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

import virtualds

SHAPE = (8, 361, 180)
"""Elements of a file."""

STORED: dict[str, dict[str, Any]] = {
    "compressed": {"chunksizes": (2, 361, 180), "zlib": True, "complevel": 1, "shuffle": True},
    "plain": {"contiguous": True},
}


def flip(ds: xr.Dataset) -> xr.Dataset:
    return ds.sortby("lat", ascending=False)


WAYS: dict[str, Callable[[xr.Dataset], xr.Dataset]] = {
    "as it is": lambda ds: ds,
    "flipped": flip,
    "copied": lambda ds: flip(ds.virtual.load()),
}


def write_files(folder: Path, count: int, encoding: dict[str, Any]) -> list[Path]:
    """Write days of noise of few digits, which compresses to about a half."""
    rng = np.random.default_rng(0)
    paths = [folder / f"{number:03d}.nc" for number in range(count)]
    for number, path in enumerate(paths):
        values = rng.integers(0, 999, SHAPE).astype("f4")
        time_of_day = np.arange(SHAPE[0]) + number * SHAPE[0]
        coords = {"time": time_of_day, "lat": np.linspace(-90, 90, SHAPE[1])}
        ds = xr.Dataset({"t": (("time", "lat", "lon"), values)}, coords)
        ds.to_netcdf(path, encoding={"t": encoding})
    return paths


def measure(work: Callable[[], Any], runs: int) -> tuple[float, Any]:
    """Return the least processor seconds of some runs, and the last result."""
    best = np.inf
    for _ in range(runs):
        begun = time.process_time()
        found = work()
        best = min(best, time.process_time() - begun)
    return best, found


def measure_way(joined: xr.Dataset, way: str, refs: Path, runs: int) -> Any:
    """Write a dataset in one way, print what that costs, and return what the set holds."""
    writing, _ = measure(lambda: WAYS[way](joined).virtual.to_manifest(refs, mode="w"), 1)
    nbytes = sum(path.stat().st_size for path in refs.rglob("*") if path.is_file())
    reading, values = measure(lambda: xr.open_dataset(refs, engine="virtual")["t"].values, runs)
    field = xr.open_dataset(refs, engine="virtual")["t"]
    row, _ = measure(lambda: field[5, 7].copy().values, runs)
    print(
        f"  {way:9} {nbytes / 1e3:9.0f} kB, written in {writing:.2f} s, "
        f"all read in {reading:.3f} s, one row in {1000 * row:.2f} ms"
    )
    return values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=24)
    parser.add_argument("--runs", type=int, default=5)
    given = parser.parse_args()
    virtualds.set_options(chunk_cache=0)
    for stored, encoding in STORED.items():
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            paths = write_files(folder, given.files, encoding)
            joined = virtualds.open_virtual_mfdataset(paths)
            expected = joined.virtual.load()["t"].values
            print(f"{stored}: {given.files} files, {expected.nbytes / 1e6:.0f} MB of values")
            for way in WAYS:
                values = measure_way(joined, way, folder / f"{way}.zarr", given.runs)
                wanted = expected if way == "as it is" else expected[:, ::-1]
                assert values.tobytes() == wanted.tobytes(), way


if __name__ == "__main__":
    main()
