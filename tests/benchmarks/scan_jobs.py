"""What `scanning` measures: a case is some files, the readers of them, and what they do."""

from __future__ import annotations

import atexit
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import urlopen

import numpy as np
import remote
import scan_files as files
import scan_headers
import xarray as xr
from scan_readers import JOINED, READERS, Check, Job, Scan, check_chunks, columns_of, floor
from scan_readers import virtualds as open_virtual

PEERS = ("pyfive", "virtualizarr", "kerchunk")
SIZES = (100, 1_000, 10_000)
"""Numbers of files that show whether work grows as they do."""


class Case(NamedTuple):
    """What is measured together: its readers take turns.

    ``prepare`` takes the name of a reader and returns its job, when all that a process pays once is
    paid. ``count`` is how many files, or ``unit``, the cost is told for.
    """

    readers: Sequence[str]
    prepare: Callable[[str], Job]
    count: int = 1
    unit: str = "file"


def list_cases(work: str, folder: Path, count: int | None = None) -> dict[str, Case]:
    """Return the cases of a work by name; ``count`` is another number of files for `linear`."""
    return WORKS[work](folder, count)


# ---------------------------------------------------------------------- scanning HDF5


def _prepare_scan(make: Callable[[], Scan], warm: Callable[[], Scan], reader: str) -> Job:
    """Return the job of a reader that has scanned other files before."""
    job = READERS[reader](make())
    READERS[reader](warm())()
    return job


def _list_indexes(folder: Path, count: int | None) -> dict[str, Case]:
    found = {}
    for kind in files.INDEXES:
        for filtered in (False, True)[: 1 if kind == "implicit" else 2]:
            name = f"{kind}, {'filtered' if filtered else 'plain'}"
            scans = [
                partial(_one_dataset, files.index_file, folder, kind, filtered, n)
                for n in (files.CHUNKS, files.FEW)
            ]
            found[name] = Case(
                ("floor", "virtualds", *PEERS),
                partial(_prepare_scan, *scans),
                files.CHUNKS,
                "chunk",
            )
    return found


def _one_dataset(find: Callable[..., Path], *which: Any) -> Scan:
    return Scan([find(*which)], lambda number: ("v0",), is_joined=False)


def _list_alike(folder: Path, count: int | None) -> dict[str, Case]:
    def scan(writer: str) -> Scan:
        paths = files.alike_files(folder, writer)
        if writer == "h5py":
            return Scan(paths, lambda number: files.FIELDS)
        return Scan(paths, lambda number: files.FIELDS[:4], also=("time", "lat", "lon"))

    counts = {"h5py": 500, "netcdf4": 300}
    readers = ("floor", "virtualds", *PEERS)
    return {
        f"{n} of {writer}": Case(
            readers, partial(_prepare_scan, partial(scan, writer), partial(_warm_scan, folder)), n
        )
        for writer, n in counts.items()
    }


def _warm_scan(folder: Path, is_joined: bool = True) -> Scan:
    return Scan(files.warm_files(folder), lambda number: files.FIELDS, is_joined)


def _list_different(folder: Path, count: int | None) -> dict[str, Case]:
    def scan() -> Scan:
        return Scan(files.different_files(folder), files.to_names, is_joined=False)

    prepare = partial(_prepare_scan, scan, partial(_warm_scan, folder, is_joined=False))
    return {"": Case(("floor", "virtualds scan", "virtualds", *PEERS), prepare, 500)}


def _list_linear(folder: Path, count: int | None) -> dict[str, Case]:
    ways = ("floor", "virtualds", "two processes", "dask", "traced")
    return {
        f"{n:,} files": Case(
            # to trace every allocation takes several times as long
            ways if n <= 1000 else ways[:-1],
            partial(_prepare_linear, folder, n),
            n,
        )
        for n in ((count,) if count else SIZES)
    }


def _prepare_linear(folder: Path, count: int, reader: str) -> Job:
    scans = [
        Scan(paths, lambda number: files.FIELDS)
        for paths in (files.warm_files(folder), files.small_files(folder, count))
    ]
    if reader == "floor":
        warm, job = map(floor, scans)
    else:
        how: dict[str, Any] = {}
        if reader == "two processes":
            how = {"parallel": 2}
        elif reader == "dask":
            how = {"parallel": _start_cluster()}
        warm, job = (open_virtual(scan, **how) for scan in scans)
    warm()
    return _trace(job) if reader == "traced" else job


def _start_cluster() -> Any:
    from distributed import Client, LocalCluster

    cluster = LocalCluster(
        n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=":0"
    )
    client = Client(cluster)
    # closed in this order, before the loop that both need
    atexit.register(lambda: (client.close(), cluster.close()))
    return client


def _trace(job: Job) -> Job:
    """Return a job whose check tells bytes of Python a reference, at most and at the end."""
    import tracemalloc

    def run() -> Callable[[], Check]:
        tracemalloc.start()
        check = job()
        held, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()

        def divide() -> Check:
            found = check()
            count = found["chunks"]
            return found | {"most_bytes": round(most / count), "held_bytes": round(held / count)}

        return divide

    return run


# ---------------------------------------------------------------------- one point


def _list_lazy(folder: Path, count: int | None) -> dict[str, Case]:
    readers = ("floor", "virtualds", "h5netcdf", "netcdf4", *PEERS)
    return {
        f"h5py {libver}": Case(readers, partial(_prepare_point, folder, libver))
        for libver in ("earliest", "latest")
    }


def _prepare_point(folder: Path, libver: str, reader: str) -> Job:
    read = POINTS.get(reader, partial(_read_with_xarray, ENGINES.get(reader, reader)))
    few = files.lazy_file(folder, libver, files.FEW)
    whole = files.lazy_file(folder, libver)
    for _ in range(2):
        read(few)

    def job() -> Callable[[], Check]:
        value = read(whole)
        return lambda: {"value": float(value)}

    return job


ENGINES = {"virtualds": "virtual"}


def _read_with_xarray(engine: str, path: Path) -> Any:
    return xr.open_dataset(path, engine=engine)["v0"][files.POINT].values


def _read_with_h5py(path: Path) -> Any:
    import h5py

    with h5py.File(path) as file:
        return file["v0"][files.POINT]


def _read_with_pyfive(path: Path) -> Any:
    import pyfive

    with pyfive.File(path) as file:
        return file["v0"][files.POINT]


def _read_with_kerchunk(path: Path) -> Any:
    from kerchunk.hdf import SingleHdf5ToZarr

    refs = SingleHdf5ToZarr(str(path), inline_threshold=0).translate()
    return xr.open_dataset(refs, engine="kerchunk")["v0"][files.POINT].values


def _read_with_virtualizarr(path: Path) -> Any:
    from obspec_utils.registry import ObjectStoreRegistry
    from obstore.store import LocalStore
    from virtualizarr.parsers import HDFParser

    held = HDFParser()(f"file://{path}", ObjectStoreRegistry({"file://": LocalStore()}))
    opened = xr.open_zarr(held, consolidated=False, zarr_format=3, chunks=None)
    return opened["v0"][files.POINT].values


POINTS: Mapping[str, Callable[[Path], Any]] = {
    "floor": _read_with_h5py,
    "pyfive": _read_with_pyfive,
    "kerchunk": _read_with_kerchunk,
    "virtualizarr": _read_with_virtualizarr,
}


# ---------------------------------------------------------------------- over HTTP


def _list_http(folder: Path, count: int | None) -> dict[str, Case]:
    readers = ("floor", "virtualds", "virtualizarr", "kerchunk")
    return {"": Case(readers, partial(_prepare_http, folder), remote.FILES)}


def _prepare_http(folder: Path, reader: str) -> Job:
    paths = files.remote_files(folder)
    url = remote.served(paths[0].parent)
    scan = REMOTE[reader]
    urls = [f"{url}/{path.name}" for path in paths]
    # imports, and a connection
    scan(urls[:1])

    def job() -> Callable[[], Check]:
        _count_requests(url)
        columns = scan(urls)
        return lambda: check_chunks({"t": columns()}) | _count_requests(url)

    return job


def _count_requests(url: str) -> Check:
    with urlopen(f"{url}/counts") as answer:
        counts = json.load(answer)
    return {name: counts[name] for name in ("requests", "at_once", "rounds")}


Columns = Callable[[], tuple[Any, Any]]


def _look_remotely(urls: Sequence[str]) -> Columns:
    import fsspec
    import h5py

    rows: list[Any] = []
    for url in urls:
        with fsspec.open(url) as opened, h5py.File(opened) as file:
            dict(file["t"].attrs)
            file["t"].id.chunk_iter(rows.append)
    return lambda: (np.array([r.byte_offset for r in rows]), np.array([r.size for r in rows]))


def _scan_remotely(urls: Sequence[str]) -> Columns:
    import virtualds

    columns = columns_of(virtualds.open_virtual_mfdataset(urls, **JOINED)["t"].data)
    return lambda: columns


def _scan_with_virtualizarr(urls: Sequence[str]) -> Columns:
    import virtualizarr
    from obspec_utils.registry import ObjectStoreRegistry
    from obstore.store import HTTPStore
    from virtualizarr.parsers import HDFParser

    host = "/".join(urls[0].split("/")[:3])
    registry = ObjectStoreRegistry(
        {host: HTTPStore.from_url(host, client_options={"allow_http": True})}
    )
    how: dict[str, Any] = {**JOINED, "loadable_variables": ["time"]}
    whole = virtualizarr.open_virtual_mfdataset(
        list(urls), registry=registry, parser=HDFParser(), **how
    )
    manifest = whole["t"].data.manifest
    return lambda: (manifest._offsets.ravel(), manifest._lengths.ravel())


def _scan_with_kerchunk(urls: Sequence[str]) -> Columns:
    import fsspec
    from kerchunk.hdf import SingleHdf5ToZarr

    found: list[dict[str, Any]] = []
    for url in urls:
        with fsspec.open(url) as opened:
            found.append(SingleHdf5ToZarr(opened, url, inline_threshold=0).translate()["refs"])

    def columns() -> tuple[Any, Any]:
        rows = [r for refs in found for k, r in sorted(refs.items()) if k.startswith("t/0")]
        return np.array([r[1] for r in rows]), np.array([r[2] for r in rows])

    return columns


REMOTE: Mapping[str, Callable[[Sequence[str]], Columns]] = {
    "floor": _look_remotely,
    "virtualds": _scan_remotely,
    "virtualizarr": _scan_with_virtualizarr,
    "kerchunk": _scan_with_kerchunk,
}


# ---------------------------------------------------------------------- other formats


def _list_headers(folder: Path, count: int | None) -> dict[str, Case]:
    return {
        form: Case(scan_headers.READERS, partial(scan_headers.prepare, folder, form), 200)
        for form in files.HEADERS
    }


# ---------------------------------------------------------------------- all of it

WORKS: Mapping[str, Callable[[Path, int | None], dict[str, Case]]] = {
    "index-1m": _list_indexes,
    "alike-500": _list_alike,
    "different-500": _list_different,
    "lazy-100k": _list_lazy,
    "http-100": _list_http,
    "linear": _list_linear,
    "headers": _list_headers,
}
