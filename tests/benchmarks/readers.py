"""Jobs that read fields from local files: ours, those of the native libraries, and of peers."""

from __future__ import annotations

import itertools
import json
import os
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from sets import opened, scanned, store

Job = Callable[[], Any]
NATIVE = ("netcdf4", "h5netcdf", "hidefix")
"""Engines of xarray that open the file itself."""
THREADS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def opener(reader: str, path: Path) -> Callable[[], xr.Dataset]:
    """Return what opens a file lazily with a reader; references are made before."""
    if reader in NATIVE:
        return lambda: xr.open_dataset(path, engine=reader)
    if reader == "kerchunk":
        from kerchunk.hdf import SingleHdf5ToZarr

        refs = f"{tempfile.mkdtemp()}/refs.json"
        with open(refs, "w") as target:
            json.dump(SingleHdf5ToZarr(str(path), inline_threshold=0).translate(), target)
        return lambda: xr.open_dataset(refs, engine="kerchunk")
    if reader == "virtualizarr":
        return _virtualizarr(path)
    way = {"virtualds": "zarr-v3"}.get(reader, reader)
    target = f"{tempfile.mkdtemp()}/refs{'.zarr' if way == 'zarr-v3' else ''}"
    store(way, scanned(way, path), target, path.parent)
    return lambda: opened(way, target)


def _virtualizarr(path: Path) -> Callable[[], xr.Dataset]:
    """Return what opens VirtualiZarr's own store of references in memory."""
    from obspec_utils.registry import ObjectStoreRegistry
    from obstore.store import LocalStore
    from virtualizarr.parsers import HDFParser

    held = HDFParser()(f"file://{path}", ObjectStoreRegistry({"file://": LocalStore()}))
    return lambda: xr.open_zarr(held, consolidated=False, zarr_format=3, chunks=None)


def warm_up(open_field: Callable[[], xr.Dataset], name: str = "t") -> None:
    """Do what a process pays once, and touch fresh memory, which virtual machines give slowly."""
    open_field()[name][-1, -1, -1].values.sum()
    np.ones(2**26).sum()


def summed(values: Any) -> Job:
    """Return what tells values apart from others, after the clock has stopped."""
    return lambda: float(np.asarray(values).sum(dtype="f8"))


def reading(reader: str, path: Path, key: Any) -> Job:
    """Return a job that opens a field and reads a part of it."""
    if reader == "limit":
        return limit(path, key)
    open_field = opener(reader, path)
    warm_up(open_field)
    return lambda: summed(open_field()["t"][key].values)


def limit(path: Path, key: Any) -> Job:
    """Return a job that does what nobody can do without: inflate, and copy, on all cores.

    Chunks are inflated where they lie in memory, and never unshuffled or put in their places; as
    many bytes as the result has are copied once, into fresh memory.
    """
    import deflate
    import h5py

    chunks: list[tuple[int, int]] = []
    with h5py.File(path) as file:
        field = file["t"]
        nbytes = int(np.prod(field.chunks)) * field.dtype.itemsize
        field.id.chunk_iter(lambda row: chunks.append((row.byte_offset, row.size)))
        is_plain = field.compression is None
        total = field.nbytes
    data = memoryview(np.fromfile(path, np.uint8))
    decoded = np.ones(total, np.uint8)
    np.ones(2**26).sum()

    def inflate(part: Any) -> None:
        for offset, size in part:
            deflate.zlib_decompress(data[offset : offset + size], nbytes)

    def copy(bounds: tuple[int, int]) -> None:
        out[slice(*bounds)] = decoded[slice(*bounds)]

    cuts = np.linspace(0, total, THREADS + 1).astype(int).tolist()

    def job() -> str:
        nonlocal out
        with ThreadPoolExecutor(THREADS) as pool:
            if not is_plain:
                list(pool.map(inflate, (chunks[i::THREADS] for i in range(THREADS))))
            out = np.empty(total, np.uint8)
            list(pool.map(copy, itertools.pairwise(cuts)))
        return "no values"

    out: Any = None
    return job


def walking(reader: str, path: Path) -> Job:
    """Return a job that reads the 24 steps of one row of chunks, one after the other."""
    open_field = opener(reader, path)
    warm_up(open_field)

    def walk() -> Job:
        field = open_field()["t"]
        return summed(np.stack([field[step].values for step in range(24, 48)]))

    return walk


def reading_cold(reader: str, path: Path) -> Job:
    """Return a job that reads a field whose file the system has forgotten."""
    open_field = opener(reader, path)
    warm_up(open_field)
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(handle)
    return lambda: summed(open_field()["t"].values)


def reading_file(reader: str, path: Path) -> Job:
    """Return a job that opens any file and reads all numbers in it, ten times."""
    open_file = opener(reader, path)

    def read() -> Job:
        total = 0.0
        for _ in range(10):
            dataset = open_file()
            for variable in dataset.variables.values():
                if variable.dtype.kind in "iuf":
                    total += float(np.nansum(variable.values, dtype="f8"))
        return lambda: total

    read()
    return read
