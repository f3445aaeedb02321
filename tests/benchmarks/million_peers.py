"""Combine more and more small netCDF4 files by virtualds, VirtualiZarr, kerchunk and Icechunk.

The files are those of `real_million`, but all of one length and encoding, since the others refuse
months of 28 to 31 days. Each library opens all files, combines them along time, and writes what it
writes: a process of its own for each, which ends after some minutes.

    python tests/benchmarks/million_peers.py --files 300 --files 1000 --files 3000
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from real_million import list_files, write_files
from steps import add_arguments, later, print_head, print_row, record, run_apart, run_here

MINUTES = 5
"""After so many minutes, a process is ended, and the next numbers of files are not tried."""
JOINED = {
    "combine": "nested",
    "concat_dim": "time",
    "data_vars": "minimal",
    "coords": "minimal",
    "compat": "override",
    "join": "override",
    "combine_attrs": "override",
}


def build_virtualds(files: Sequence[str], target: Path) -> Any:
    import virtualds

    opened = virtualds.open_virtual_mfdataset(list(files), to=f"{target}.zarr", **JOINED)  # type: ignore[arg-type]
    return opened.sizes["time"]


def _open_virtualizarr(files: Sequence[str]) -> Any:
    import virtualizarr
    from obspec_utils.registry import ObjectStoreRegistry
    from obstore.store import LocalStore
    from virtualizarr.parsers import HDFParser

    registry = ObjectStoreRegistry({"file://": LocalStore()})
    how: dict[str, Any] = {**JOINED, "loadable_variables": ["time", "lat", "lon"]}
    urls = [f"file://{file}" for file in files]
    return virtualizarr.open_virtual_mfdataset(urls, registry=registry, parser=HDFParser(), **how)


def build_virtualizarr(files: Sequence[str], target: Path) -> Any:
    opened = _open_virtualizarr(files)
    opened.vz.to_kerchunk(f"{target}.parquet", format="parquet")
    return opened.sizes["time"]


def build_icechunk(files: Sequence[str], target: Path) -> Any:
    import icechunk

    opened = _open_virtualizarr(files)
    config = icechunk.RepositoryConfig.default()
    root = f"file://{Path(files[0]).parent.parent}/"
    config.set_virtual_chunk_container(
        icechunk.VirtualChunkContainer(root, icechunk.local_filesystem_store(root))
    )
    repository = icechunk.Repository.create(
        icechunk.local_filesystem_storage(f"{target}.icechunk"), config
    )
    session = repository.writable_session("main")
    opened.vz.to_icechunk(session.store)
    session.commit("all")
    return opened.sizes["time"]


def build_kerchunk(files: Sequence[str], target: Path) -> Any:
    from kerchunk.combine import MultiZarrToZarr
    from kerchunk.hdf import SingleHdf5ToZarr

    found = [SingleHdf5ToZarr(file, inline_threshold=300).translate() for file in files]
    combined = MultiZarrToZarr(
        found, concat_dims=["time"], identical_dims=["lat", "lon"], coo_map={"time": "cf:time"}
    ).translate()
    Path(f"{target}.json").write_text(json.dumps(combined))
    return json.loads(combined["refs"]["time/.zarray"])["shape"][0]


LIBRARIES: dict[str, Callable[[Sequence[str], Path], Any]] = {
    "virtualds": build_virtualds,
    "VirtualiZarr": build_virtualizarr,
    "VirtualiZarr and Icechunk": build_icechunk,
    "kerchunk": build_kerchunk,
}


def run_library(name: str, folder: Path, count: int) -> Any:
    build = LIBRARIES[name]
    # imports are not measured
    build(list_files(folder / "data", 3), folder / f"{name}-few-{count}")
    return later(partial(build, list_files(folder / "data", count), folder / f"{name}-{count}"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, action="append", help="how many; may be repeated")
    add_arguments(parser, LIBRARIES)
    given = parser.parse_args()
    counts = given.files or [300, 1000]
    if given.step:
        run_here(partial(run_library, given.step, given.folder, counts[0]))
        return
    root = Path(tempfile.mkdtemp(dir=given.folder))
    try:
        write_files(root / "data", 0, max(counts), max(counts), even=True)
        print_head()
        limit = partial(resource.setrlimit, resource.RLIMIT_CPU, (MINUTES * 60,) * 2)
        for name in given.only or LIBRARIES:
            for count in counts:
                found = run_apart(name, ("--files", count, "--folder", root), limit)
                print_row(f"{name}, {count:,}", found)
                record(given.record, "peers", name, count, found)
                if found is None:
                    break
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
