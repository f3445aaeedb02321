"""Append a day of four variables night after night; measure each append, the set, and opening it.

python tests/benchmarks/nightly.py --nights 1000 --format .zarr --format .icechunk
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import xarray as xr

import virtualds
from virtualds import ManifestArray

SIDE = 16
MEASURED = (1, 10, 100, 300, 1000, 2000, 3650)


def yield_days(folder: Path, nights: int) -> Iterator[xr.Dataset]:
    """Yield days, each in a file of its own."""
    for day in range(nights):
        path = folder / f"t2m_{day:05}.bin"
        path.write_bytes(np.full((1, SIDE, SIDE), day, "<f4").tobytes())
        arrays = {
            name: (("time", "lat", "lon"), ManifestArray.from_arrays(
                shape=(1, SIDE, SIDE), chunks=(1, SIDE, SIDE), dtype="<f4", path=str(path),
                offsets=0, lengths=4 * SIDE**2,
            ))
            for name in ("t2m", "u10", "v10", "sp")
        }  # fmt: skip
        degrees = np.linspace(-80, 80, SIDE)
        yield xr.Dataset(arrays, {"time": [day], "lat": degrees, "lon": 2 * degrees})


def measure(work: Callable[[], object], times: int = 1) -> float:
    """Return the least processor milliseconds of some work."""
    found = []
    for _ in range(times):
        begun = time.process_time()
        work()
        found.append(time.process_time() - begun)
    return 1e3 * min(found)


def open_set(target: Path) -> xr.Dataset:
    return xr.open_dataset(target, engine="virtual")


def append(day: xr.Dataset, target: Path, is_first: bool) -> None:
    day.virtual.to_manifest(target, **({} if is_first else {"append_dim": "time"}))


def measure_format(suffix: str, nights: int, folder: Path | None) -> None:
    """Print rows of what a set of a format costs as it grows."""
    root = Path(tempfile.mkdtemp(dir=folder))
    target = root / f"refs{suffix}"
    print(f"{suffix}: nights, MB, files, ms of an append (mean since the last row), ms to open")
    spent, since = 0.0, 0
    for night, day in enumerate(yield_days(root, nights), 1):
        spent += measure(partial(append, day, target, night == 1))
        since += 1
        if night in MEASURED or night == nights:
            files = [p for p in target.rglob("*") if p.is_file()]
            size = sum(p.stat().st_size for p in files) / 1e6
            opened = measure(partial(open_set, target), 5)
            print(f"{night:6} {size:8.2f} {len(files):6} {spent / since:7.1f} {opened:7.1f}")
            spent, since = 0.0, 0
    print(f"compact: {measure(partial(virtualds.compact, target)):.0f} ms")
    print(f"then to open: {measure(partial(open_set, target), 5):.1f} ms", flush=True)
    shutil.rmtree(root)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nights", type=int, default=1000)
    parser.add_argument("--format", action="append", help="suffix of a set; by default .zarr")
    parser.add_argument("--folder", type=Path, help="where to write; by default a temporary one")
    given = parser.parse_args()
    for suffix in given.format or [".zarr"]:
        measure_format(suffix, given.nights, given.folder)


if __name__ == "__main__":
    main()
