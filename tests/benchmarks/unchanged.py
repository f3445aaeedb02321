"""Measure a run of `virtualds.sync` over local files that have not changed: listing, comparing."""

from __future__ import annotations

import argparse
import resource
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np
import xarray as xr

import virtualds
from virtualds import ChunkAxis, ChunkManifest, CodecPipeline, Fragment, ManifestArray, SourceFile
from virtualds.stores.listing import list_states


def write_files(folder: Path, count: int) -> None:
    """Write many small files."""
    folder.mkdir()
    for number in range(count):
        (folder / f"{number:07d}.nc").write_bytes(b"1")


def write_set(pattern: str, target: Path, variables: int) -> None:
    """Write a set that refers to each file once for each variable."""
    found = list_states(pattern, None)
    states = zip(found.urls, found.sizes.tolist(), found.mtimes.tolist(), strict=True)
    files = [SourceFile(*state) for state in states]
    manifest = ChunkManifest.build(
        (len(files),), files=files, file=np.arange(len(files)), offset=0, length=1
    )
    axis = ChunkAxis.regular(len(files), 1)
    pipeline = CodecPipeline(dtype=np.dtype("i1"), codecs=(), layout=(0,))
    array = ManifestArray.from_fragment(Fragment((0,), (axis,), manifest), pipeline)
    data = {f"v{number}": ("time", array) for number in range(variables)}
    xr.Dataset(data, {"time": np.arange(len(files))}).virtual.to_manifest(target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=1_000_000)
    parser.add_argument("--variables", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="where to write; by default a temporary one")
    given = parser.parse_args()
    root = Path(tempfile.mkdtemp(dir=given.folder))
    try:
        pattern, target = f"{root}/data/*.nc", root / "refs.zarr"
        write_files(root / "data", given.files)
        write_set(pattern, target, given.variables)
        for what in ("listing", "sync"):
            begun = time.process_time(), time.perf_counter()
            if what == "listing":
                list_states(pattern, None)
            else:
                done = virtualds.sync(pattern, target, concat_dim="time")
                assert done.unchanged == given.files
            processor, wall = time.process_time() - begun[0], time.perf_counter() - begun[1]
            print(f"{what}: {processor:.1f} s of processor, {wall:.1f} s")
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"peak memory, with the files written: {peak:.0f} MB")
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
