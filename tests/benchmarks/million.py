"""Measure all steps for an archive of a million files, of which only the references exist."""

from __future__ import annotations

import argparse
import resource
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

import virtualds
from virtualds import (
    ChunkAxis,
    ChunkManifest,
    CodecPipeline,
    Fragment,
    ManifestArray,
    SourceFile,
)

JOINED = {
    "dim": "time",
    "data_vars": "minimal",
    "coords": "minimal",
    "compat": "override",
    "join": "override",
    "combine_attrs": "override",
}
"""As the files of an archive are joined that are known to be alike."""
SHAPE = (721, 1440)
"""Elements of one step of one variable."""
LENGTH = 1_500_000
"""Bytes of one chunk, about."""


def url(number: int) -> str:
    """Return the url of one file."""
    return (
        f"s3://some-agency-archive/reanalysis/daily/v3/{number // 10_000:03d}/day_{number:07d}.nc"
    )


def block(start: int, stop: int, variables: int) -> xr.Dataset:
    """Return the dataset of some consecutive files, one step each, as workers return it."""
    steps = np.arange(start, stop)
    files = tuple(SourceFile(url(number), size=LENGTH * (variables + 1)) for number in steps)
    # lengths as compression leaves them
    lengths = np.random.default_rng(start).integers(LENGTH // 2, LENGTH, (variables, len(files)))
    offsets = 8192 + np.cumsum(lengths, axis=0) - lengths
    arrays = {
        f"v{number:02d}": (
            ("time", "lat", "lon"),
            field(files, offsets[number], lengths[number]),
        )
        for number in range(variables)
    }
    return xr.Dataset(arrays, coords={"time": ("time", steps)})


def field(files: tuple[SourceFile, ...], offset: Any, length: Any) -> ManifestArray:
    """Return one variable of some files, a chunk in each."""
    grid = (len(files), 1, 1)
    manifest = ChunkManifest.build(
        grid,
        files=files,
        file=np.arange(len(files)).reshape(grid),
        offset=offset.reshape(grid),
        length=length.reshape(grid),
    )
    shape = (len(files), *SHAPE)
    axes = tuple(map(ChunkAxis.regular, shape, (1, *SHAPE)))
    pipeline = CodecPipeline(dtype=np.dtype("f4"), codecs=(), fill=None, layout=(0, 1, 2))
    return ManifestArray.from_fragment(Fragment((0, 0, 0), axes, manifest), pipeline)


@contextmanager
def step(name: str) -> Iterator[dict[str, Any]]:
    """Print seconds and peak memory of a step, and what is put into the facts about it."""
    began, worked = time.perf_counter(), time.process_time()
    facts: dict[str, Any] = {}
    yield facts
    done = {
        "step": name,
        "seconds": round(time.perf_counter() - began, 2),
        "processor": round(time.process_time() - worked, 2),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }
    print(done | facts, flush=True)


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=1_000_000)
    parser.add_argument("--variables", type=int, default=100)
    parser.add_argument("--block", type=int, default=1000)
    parser.add_argument("--suffix", default=".zarr")
    args = parser.parse_args()
    target = Path(tempfile.mkdtemp()) / f"refs{args.suffix}"
    n, v = args.files, args.variables
    with step("files one by one"):
        xr.concat([block(i, i + 1, v) for i in range(50)], **JOINED)
    with step("make blocks"):
        blocks = [block(a, min(a + args.block, n), v) for a in range(0, n, args.block)]
    with step("combine") as facts:
        whole = xr.concat(blocks, **JOINED)
        del blocks
        facts["nbytes"] = whole.virtual.nbytes
    with step("write") as facts:
        whole.virtual.to_manifest(target)
        facts["disk"] = size_of(target)
    del whole
    with step("append"):
        block(n, n + args.block, v).virtual.to_manifest(target, append_dim="time")
    with step("open"):
        xr.open_dataset(target, engine="virtual")
    with step("look up one step of all variables") as facts:
        day = virtualds.open_virtual_dataset(target).isel(time=slice(n // 2, n // 2 + 1))
        found = [variable.data.manifest.loaded() for variable in day.data_vars.values()]
        facts["bytes"] = sum(int(manifest.length.sum()) for manifest in found)
    shutil.rmtree(target.parent)


if __name__ == "__main__":
    main()
