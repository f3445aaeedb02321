"""Jobs over HTTP with latency: chunks of many files, means of them, and scanning them."""

from __future__ import annotations

import atexit
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import xarray as xr

Job = Callable[[], Any]
FILES = 100
DELAY = 20
CORNER = np.s_[:, :100, :100]
"""A part of the first chunk of every file."""


def write_files(folder: Path) -> None:
    """Write a hundred files of one step each, in four chunks one behind the other."""
    import h5py

    folder.mkdir()
    rng = np.random.default_rng(5)
    for number in range(FILES):
        with h5py.File(folder / f"{number:03}.nc", "w") as file:
            values = np.round(280 + np.cumsum(rng.normal(0, 0.1, (1, 256, 256)), axis=2), 2)
            options = {"chunks": (1, 128, 128), "compression": "gzip", "shuffle": True}
            field = file.create_dataset("t", data=values.astype("f4"), **options)
            for axis, (name, size) in enumerate({"time": 1, "y": 256, "x": 256}.items()):
                begin = number if name == "time" else 0
                scale = file.create_dataset(name, data=np.arange(begin, begin + float(size)))
                scale.make_scale(name)
                field.dims[axis].attach_scale(scale)


def served(folder: Path, delay: float = DELAY, mbit: float = math.inf, port: int = 0) -> str:
    """Serve a folder until this process ends, and return the url."""
    program = Path(__file__).parent / "latency_server.py"
    command = [sys.executable, str(program), str(folder), str(delay), str(mbit), str(port)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    atexit.register(server.kill)
    assert server.stdout is not None
    return f"http://127.0.0.1:{server.stdout.readline().strip()}"


def counted(url: str, job: Job) -> Job:
    """Return a job whose check says how many requests it took, and what it found."""

    def run() -> Job:
        found = job()

        def check() -> str:
            with urlopen(f"{url}/counts") as answer:
                counts = json.load(answer)
            value = found() if callable(found) else found
            return f"{value:.6g} in {counts['requests']} requests, {counts['at_once']} at once"

        return check

    urlopen(f"{url}/counts").read()
    return run


def reading(reader: str, folder: Path, key: Any) -> Job:
    """Return a job that reads a part of a field that lies in all the files."""
    url = served(folder)
    open_field = OPENERS[reader](folder, url)
    # connections that a process makes once are made; no chunk is known
    open_field()["t"][-1, -1, -1].values.sum()

    def read() -> Job:
        values = open_field()["t"][key].values
        return lambda: float(values.sum(dtype="f8"))

    return counted(url, read)


def averaging(
    reader: str, folder: Path, delay: float, mbit: float = math.inf, workers: int = 0
) -> Job:
    """Return a job that averages the field with the blocks that a reader prefers, or without dask.

    ``workers`` are processes of one thread; without any, dask has its threads.
    """
    url = served(folder, delay, mbit)
    name = "virtualds" if reader == "no dask" else reader
    chunks = None if reader == "no dask" else {}
    open_field = OPENERS[name](folder, url)
    if workers:
        _start_workers(workers)

    def average(steps: slice = slice(None)) -> float:
        return float(open_field(chunks)["t"][steps].mean(dtype="f8").compute())

    # imports and connections, in the workers too
    average(slice(-8, None))
    return counted(url, average)


def _start_workers(count: int) -> None:
    from distributed import Client, LocalCluster

    cluster = LocalCluster(
        n_workers=count, threads_per_worker=1, host="127.0.0.1", dashboard_address=":0"
    )
    client = Client(cluster)
    # closed in this order, before the loop that both need
    atexit.register(lambda: (client.close(), cluster.close()))


Opener = Callable[..., xr.Dataset]
"""Opens the field anew, with dask if it is given ``chunks``."""


def _virtualds(folder: Path, url: str) -> Opener:
    import virtualds

    paths = sorted(folder.glob("*.nc"))
    parts = [virtualds.open_virtual_dataset(path) for path in paths]
    whole = xr.concat(parts, "time").virtual.rename_paths({f"file://{folder}": url})
    target = f"{tempfile.mkdtemp()}/refs.zarr"
    whole.virtual.to_manifest(target)
    return lambda chunks=None: xr.open_dataset(target, engine="virtual", chunks=chunks)


def _kerchunk(folder: Path, url: str) -> Opener:
    from kerchunk.combine import MultiZarrToZarr
    from kerchunk.hdf import SingleHdf5ToZarr

    refs = [
        SingleHdf5ToZarr(str(path), inline_threshold=500).translate()
        for path in sorted(folder.glob("*.nc"))
    ]
    combined = MultiZarrToZarr(refs, concat_dims=["time"], identical_dims=["y", "x"]).translate()
    text = json.dumps(combined).replace(f"{folder}/", f"{url}/")
    target = Path(tempfile.mkdtemp()) / "refs.json"
    target.write_text(text)
    options = {"remote_protocol": "http"}
    return lambda chunks=None: xr.open_dataset(
        str(target), engine="kerchunk", storage_options=options, chunks=chunks
    )


def _icechunk(folder: Path, url: str) -> Opener:
    import icechunk

    whole = _virtualized(folder, url)
    config = icechunk.RepositoryConfig.default()
    files = icechunk.http_store({"allow_http": "true"})
    config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(f"{url}/", files))
    storage = icechunk.local_filesystem_storage(tempfile.mkdtemp())
    allowed = {f"{url}/": None}
    repository = icechunk.Repository.create(
        storage, config=config, authorize_virtual_chunk_access=allowed
    )
    session = repository.writable_session("main")
    whole.vz.to_icechunk(session.store, validate_containers=False)
    session.commit("all of it")
    read = repository.readonly_session("main").store
    return lambda chunks=None: xr.open_zarr(read, consolidated=False, chunks=chunks)


def _virtualized(folder: Path, url: str) -> xr.Dataset:
    import virtualizarr
    from obspec_utils.registry import ObjectStoreRegistry
    from obstore.store import LocalStore
    from virtualizarr.parsers import HDFParser

    registry = ObjectStoreRegistry({"file://": LocalStore()})
    parts = [
        virtualizarr.open_virtual_dataset(
            f"file://{path}", parser=HDFParser(), registry=registry, loadable_variables=["time"]
        )
        for path in sorted(folder.glob("*.nc"))
    ]
    joined = xr.concat(parts, "time", coords="minimal", compat="override")
    return joined.vz.rename_paths(lambda path: path.replace(f"file://{folder}", url))


OPENERS: dict[str, Callable[[Path, str], Opener]] = {
    "virtualds": _virtualds,
    "kerchunk": _kerchunk,
    "icechunk": _icechunk,
}


def scanning(reader: str, folder: Path, count: int) -> Job:
    """Return a job that scans some of the files over the network."""
    url = served(folder)
    urls = [f"{url}/{number:03}.nc" for number in range(FILES)]
    scan = SCANNERS[reader]
    # imports, and a connection
    scan(urls[-1:])
    return counted(url, lambda: scan(urls[:count]))


def _scan(urls: list[str]) -> int:
    import virtualds

    whole = virtualds.open_virtual_mfdataset(urls, concat_dim="time", combine="nested")
    return int(whole.sizes["time"])


def _scan_with_virtualizarr(urls: list[str]) -> int:
    import virtualizarr
    from obspec_utils.registry import ObjectStoreRegistry
    from obstore.store import HTTPStore
    from virtualizarr.parsers import HDFParser

    host = "/".join(urls[0].split("/")[:3])
    plain = HTTPStore.from_url(host, client_options={"allow_http": True})
    registry = ObjectStoreRegistry({host: plain})
    whole = virtualizarr.open_virtual_mfdataset(
        urls,
        registry=registry,
        parser=HDFParser(),
        combine="nested",
        concat_dim="time",
        coords="minimal",
        compat="override",
    )
    return int(whole.sizes["time"])


SCANNERS: dict[str, Callable[[list[str]], int]] = {
    "virtualds": _scan,
    "virtualizarr": _scan_with_virtualizarr,
}
