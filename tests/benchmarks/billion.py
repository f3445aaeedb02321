"""Grow a set to very many references, by appends and by two workers, and use it.

Each append brings ten thousand files of one step, a hundred variables, ten chunks in each: ten
million references. Lengths of chunks are random, as compression leaves them. The files exist, but
are empty (sparse), so they take no disk. A thousand million references take 6 GB of disk.

    python tests/benchmarks/billion.py --appends 100 --folder /somewhere
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from steps import add_arguments, find_peak, later, record, run_here, run_steps

import virtualds
from virtualds import (
    ChunkAxis,
    ChunkManifest,
    CodecPipeline,
    Fragment,
    ManifestArray,
    SourceFile,
)

FILES = 10_000
"""Files of one append."""
VARIABLES = 100
GRID = (2, 5)
"""Chunks of one step of one variable."""
PER_APPEND = FILES * VARIABLES * GRID[0] * GRID[1]
"""References of one append."""
CHUNK = (360, 288)
LENGTH = 200_000
"""Greatest number of bytes of a chunk."""
SIZE = LENGTH * VARIABLES * GRID[0] * GRID[1]
"""Bytes of one file."""
PER_FOLDER = 10_000


def name_file(folder: Path, number: int) -> Path:
    return folder / "data" / f"{number // PER_FOLDER:04d}" / f"day{number:08d}.nc"


def make_files(folder: Path, first: int, stop: int) -> None:
    """Make files that have a size, and no content."""
    for number in range(first, stop):
        path = name_file(folder, number)
        if number % PER_FOLDER == 0 or number == first:
            path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.truncate(SIZE)


def make_block(folder: Path, first: int, count: int) -> xr.Dataset:
    """Return the dataset of some files, as workers return it."""
    numbers = np.arange(first, first + count)
    files = tuple(
        SourceFile(f"file://{name_file(folder, number)}", size=SIZE) for number in numbers.tolist()
    )
    random = np.random.default_rng(first)
    grid = (count, *GRID)
    lengths = random.integers(LENGTH // 2, LENGTH, (VARIABLES, *grid), dtype=np.int32)
    before = np.cumsum(np.moveaxis(lengths, 0, 1).reshape(count, -1), axis=1, dtype=np.int64)
    offsets = np.moveaxis(before.reshape(count, VARIABLES, *GRID), 1, 0) - lengths
    axes = tuple(
        ChunkAxis.regular(chunk * chunks, chunk)
        for chunk, chunks in zip((1, *CHUNK), grid, strict=True)
    )
    pipeline = CodecPipeline(dtype=np.dtype("f4"), codecs=(), fill=None, layout=(0, 1, 2))

    def make_array(number: int) -> ManifestArray:
        manifest = ChunkManifest.build(
            grid,
            files=files,
            file=np.broadcast_to(np.arange(count)[:, None, None], grid),
            offset=offsets[number],
            length=lengths[number],
        )
        return ManifestArray.from_fragment(Fragment((0, 0, 0), axes, manifest), pipeline)

    dims = ("time", "lat", "lon")
    arrays = {f"v{number:03d}": (dims, make_array(number)) for number in range(VARIABLES)}
    return xr.Dataset(arrays, coords={"time": ("time", numbers)})


# ---------------------------------------------------------------------- steps


def append(folder: Path, appends: int) -> Any:
    """Return what was taken up to some appends, by the number of references."""
    target, begun = folder / "grown.zarr", time.process_time()
    grown = {}
    for number in range(appends):
        make_files(folder, number * FILES, (number + 1) * FILES)
        make_block(folder, number * FILES, FILES).virtual.to_manifest(target, append_dim="time")
        if number + 1 in (1, 2, 5, 10, 20, 50, 100):
            grown[(number + 1) * PER_APPEND] = {
                "processor": time.process_time() - begun,
                "memory": find_peak(),
                "disk": count_bytes(target),
            }
    return grown


def count_bytes(target: Path) -> int:
    """Return the size of a set on disk."""
    return sum(path.stat().st_size for path in target.rglob("*") if path.is_file())


def write_region(folder: Path, number: int) -> int:
    """Fill the region of the files of one append; in a worker."""
    block = make_block(folder, number * FILES, FILES)
    block.virtual.to_manifest(folder / "filled.zarr", region="auto", conflict="retry")
    return find_peak()


def fill(folder: Path, appends: int) -> Any:
    """Fill a template, region by region, by two processes."""
    whole = virtualds.template(
        make_block(folder, 0, 1), {"time": ("time", np.arange(appends * FILES))}
    )
    whole.virtual.to_manifest(folder / "filled.zarr")
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        peaks = pool.map(partial(write_region, folder), range(appends))
        return f"{max(peaks) / 1e6:.0f} MB at most in a worker"


def expire(folder: Path, appends: int) -> Any:
    """Forget earlier snapshots, so that only what the newest one needs is left."""
    target = folder / "grown.zarr"
    removal = virtualds.expire_snapshots(target)
    left = count_bytes(target) / (appends * PER_APPEND)
    return f"{len(removal.snapshots)} snapshots; {left:.2f} bytes a reference left"


def open_set(folder: Path, appends: int) -> Any:
    target = folder / "grown.zarr"
    make_block(folder, 0, 2).virtual.to_manifest(folder / "small.zarr", mode="w")
    xr.open_dataset(folder / "small.zarr", engine="virtual")
    return later(lambda: xr.open_dataset(target, engine="virtual").sizes["time"])


def look_up(folder: Path, select: Callable[[xr.Dataset], xr.Dataset]) -> Any:
    opened = virtualds.open_virtual_dataset(folder / "grown.zarr")

    def count() -> str:
        found = [
            fragment.manifest.loaded()
            for variable in select(opened).data_vars.values()
            for fragment in variable.data.fragments
        ]
        lengths = sum(int(manifest.length.sum()) for manifest in found)
        return f"{sum(m.size for m in found):,} references, {lengths / 1e9:.1f} GB"

    return later(count)


def look_up_slice(folder: Path, appends: int) -> Any:
    middle = appends * FILES // 2
    return look_up(folder, lambda opened: opened.isel(time=slice(middle, middle + 1)))


def look_up_point(folder: Path, appends: int) -> Any:
    return look_up(folder, lambda opened: opened[["v050"]].isel(lat=[400], lon=[500]))


def append_once(folder: Path, appends: int) -> Any:
    make_files(folder, appends * FILES, (appends + 1) * FILES)
    block = make_block(folder, appends * FILES, FILES)
    target = folder / "grown.zarr"
    return later(lambda: block.virtual.to_manifest(target, append_dim="time"))


def replace_region(folder: Path, appends: int) -> Any:
    block = make_block(folder, FILES, FILES)
    target = folder / "grown.zarr"
    return later(lambda: block.virtual.to_manifest(target, region="auto", on_duplicate="replace"))


def drop(folder: Path, appends: int) -> Any:
    gone = [
        str(name_file(folder, number)) for number in range(appends * FILES, appends * FILES + 9)
    ]
    return later(lambda: str(virtualds.drop_sources(folder / "grown.zarr", gone)).splitlines()[0])


def verify(folder: Path, appends: int) -> Any:
    opened = virtualds.open_virtual_dataset(folder / "grown.zarr")
    middle = appends * FILES // 2
    sample = opened.isel(time=slice(middle, middle + FILES))
    return later(lambda: str(sample.virtual.verify(against="range")).splitlines()[0])


def compact(folder: Path, appends: int) -> Any:
    return virtualds.compact(folder / "grown.zarr")


STEPS: dict[str, Callable[[Path, int], Any]] = {
    "appends": append,
    "two workers fill regions": fill,
    "expire earlier snapshots": expire,
    "open": open_set,
    "references of a slice": look_up_slice,
    "references of a point": look_up_point,
    "append once more": append_once,
    "replace a region": replace_region,
    "drop nine files": drop,
    "verify one in a hundred": verify,
    "compact": compact,
    "open the compact set": open_set,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--appends", type=int, default=1, help="of ten million references each")
    add_arguments(parser, STEPS)
    given = parser.parse_args()
    if given.step:
        run_here(partial(STEPS[given.step], given.folder, given.appends))
        return
    root = Path(tempfile.mkdtemp(dir=given.folder))
    references = given.appends * PER_APPEND
    try:
        print(f"{references:,} references")
        arguments = ("--appends", given.appends, "--folder", root)
        steps = given.only or STEPS
        for name, found in run_steps(steps, arguments, "billion", references, given.record):
            for count, taken in found["result"].items() if found and name == "appends" else ():
                record(given.record, "grown", name, int(count), taken)
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
