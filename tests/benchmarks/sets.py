"""Jobs that write, open and change reference sets: ours in every format, and those of peers."""

from __future__ import annotations

import atexit
import multiprocessing
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

Job = Callable[[], Any]
SUFFIXES = {"zarr-v3": ".zarr", "kerchunk-parquet": ".parquet", "kerchunk-json": ".json"}
"""Our formats, with the suffixes that choose them."""
GRID = (10, 100, 100)
"""Chunks of one file of the set that is large: 100,000."""
FILES = 1000
"""Files of the set that is large."""


# ---------------------------------------------------------------------- a million references


def scanned(way: str, source: Path) -> xr.Dataset:
    """Return a file as a dataset of references, as those who write it want it."""
    if way in SUFFIXES:
        import virtualds

        return virtualds.open_virtual_dataset(source, loadable_variables=[])
    import virtualizarr
    from obspec_utils.registry import ObjectStoreRegistry
    from obstore.store import LocalStore
    from virtualizarr.parsers import HDFParser

    return virtualizarr.open_virtual_dataset(
        f"file://{source}",
        parser=HDFParser(),
        registry=ObjectStoreRegistry({"file://": LocalStore()}),
        loadable_variables=[],
    )


def store(way: str, dataset: xr.Dataset, target: str, folder: Path) -> None:
    """Write a dataset of references to files in a folder."""
    if way in SUFFIXES:
        dataset.virtual.to_manifest(target)
    elif way == "icechunk":
        session = _new_repository(target, folder).writable_session("main")
        dataset.vz.to_icechunk(session.store, validate_containers=False)
        session.commit("all of it")
    else:
        dataset.vz.to_kerchunk(target, format="parquet")


def _new_repository(target: str, folder: Path) -> Any:
    import icechunk
    from icechunk.credentials import LocalFileSystemAccess

    config = icechunk.RepositoryConfig.default()
    files = icechunk.local_filesystem_store(str(folder))
    config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(f"file://{folder}/", files))
    return icechunk.Repository.create(
        icechunk.local_filesystem_storage(target),
        config=config,
        authorize_virtual_chunk_access={f"file://{folder}/": LocalFileSystemAccess},
    )


def _repository(target: str) -> Any:
    import icechunk
    from icechunk.credentials import LocalFileSystemAccess

    storage = icechunk.local_filesystem_storage(target)
    config = icechunk.Repository.fetch_config(storage)
    prefixes = dict.fromkeys(config.virtual_chunk_containers or {}, LocalFileSystemAccess)
    return icechunk.Repository.open(storage, authorize_virtual_chunk_access=prefixes)


def opened(way: str, target: str) -> xr.Dataset:
    """Open what was written."""
    if way in SUFFIXES:
        return xr.open_dataset(target, engine="virtual")
    if way == "icechunk":
        session = _repository(target).readonly_session("main")
        return xr.open_zarr(session.store, consolidated=False)
    return xr.open_dataset(target, engine="kerchunk")


def one_chunk(way: str, target: str) -> float:
    """Open what was written and read a chunk of it."""
    return float(opened(way, target)["v"][-1, -1].values.sum(dtype="f8"))


def _target(way: str) -> str:
    """Return a place for a set, which goes when the process does."""
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return f"{folder}/refs{SUFFIXES.get(way, '')}"


def _store_file(way: str, source: Path, target: str) -> None:
    store(way, scanned(way, source), target, source.parent)


def writing(way: str, folder: Path) -> Job:
    """Return a job that writes a million references, and that returns what reads one back."""
    target = _target(way)
    # what a process pays once
    _store_file(way, folder / "few.nc", _target(way))
    dataset = scanned(way, folder / "index.nc")

    def write() -> Job:
        store(way, dataset, target, folder)
        return lambda: one_chunk(way, target)

    return write


def opening(way: str, folder: Path) -> Job:
    """Return a job that opens a set of a million references and reads a chunk."""
    few, many = _target(way), _target(way)
    for name, target in (("few.nc", few), ("index.nc", many)):
        # in a process of its own, whose memory does not count
        _elsewhere(_store_file, way, folder / name, target)
    one_chunk(way, few)
    return lambda: one_chunk(way, many)


def _elsewhere(work: Callable[..., None], *arguments: Any) -> None:
    process = multiprocessing.get_context("spawn").Process(target=work, args=arguments)
    process.start()
    process.join()
    if process.exitcode:
        raise ChildProcessError(f"{work.__name__}{arguments}: exit code {process.exitcode}")


# ---------------------------------------------------------------------- a hundred million


def large(files: range, steps: int = GRID[0]) -> xr.Dataset:
    """Return some files of an archive, each of 10,000 references a step."""
    import virtualds

    _, rows, columns = GRID
    grid = (steps, rows, columns)
    # as compression leaves them: what is too regular would take no space
    lengths = np.random.default_rng(5).integers(500, 1500, grid)
    offsets = 4096 + np.cumsum(lengths).reshape(grid) - lengths
    parts = [
        virtualds.ManifestArray.from_arrays(
            shape=(steps, rows * 10, columns * 10),
            chunks=(1, 10, 10),
            dtype="f4",
            path=f"s3://bucket/some/long/prefix/product_{number:06d}.nc",
            offsets=offsets,
            lengths=lengths,
        )
        for number in files
    ]
    return xr.Dataset({"v": (("time", "y", "x"), np.concatenate(parts, axis=0))})


def _references(target: str) -> int:
    import virtualds

    return int(virtualds.open_virtual_dataset(target).virtual.nchunks)


def _one_reference(target: str) -> int:
    import virtualds

    field = virtualds.open_virtual_dataset(target)["v"]
    middle = {dim: slice(size // 2, size // 2 + 1) for dim, size in field.sizes.items()}
    return int(field.isel(middle).variable.data.manifest.loaded().offset.item())


def _growing(files: range, steps: int, **how: Any) -> Callable[[str], Job]:
    def prepare(target: str) -> Job:
        more = large(files, steps)

        def grow() -> Job:
            more.virtual.to_manifest(target, append_dim="time", **how)
            return lambda: _references(target)

        return grow

    return prepare


def _writing_large(target: str) -> Job:
    shutil.rmtree(target, ignore_errors=True)
    dataset = large(range(FILES))

    def write() -> Job:
        dataset.virtual.to_manifest(target)
        return lambda: _references(target)

    return write


STEPS: dict[str, Callable[[str], Job]] = {
    "build": lambda target: lambda: int(large(range(FILES)).virtual.nchunks),
    "write": _writing_large,
    "open": lambda target: lambda: _references(target),
    "look up": lambda target: lambda: _one_reference(target),
    "append 1,000,000": _growing(range(FILES, FILES + 10), GRID[0]),
    "append 10,000": _growing(range(FILES + 10, FILES + 11), 1),
    "prepend 10,000": _growing(range(FILES + 11, FILES + 12), 1, position="start"),
}
"""What is done to a large set, one after the other."""


def scaling(step: str, way: str, folder: Path) -> Job:
    """Return the job of a step, on the set that the steps before it left."""
    import virtualds

    small = _target(way)
    # what a process pays once
    large(range(1), 1).virtual.to_manifest(small)
    large(range(1, 2), 1).virtual.to_manifest(small, append_dim="time")
    virtualds.open_virtual_dataset(small)
    return STEPS[step](f"{folder}/large{SUFFIXES[way]}")
