"""Opening sets far away: seconds and requests of every format, and of the readers of others."""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import xarray as xr
from remote import served

import virtualds

Open = Callable[[str], Any]
GROUPS = 100
ELSEWHERE = "https://example.org/archive"
"""Where the sources of a set on a web server lie; opening asks for none of them."""
NAMES = ("refs.zarr", "refs.json", "refs.parquet", "refs.icechunk")
TREES = ("tree.zarr", "tree.json", "tree.parquet")


def write_sets(folder: Path) -> None:
    """Write a set of 20 files in every format, and trees of groups with own coordinates."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(5)
    for number in range(20):
        shape = (24, 91, 180)
        fields = {name: (("time", "lat", "lon"), rng.random(shape, "f4")) for name in "tuv"}
        coordinates = {
            "time": ("time", np.arange(24.0) + 24 * number, {"units": "hours since 2000-01-01"}),
            "lat": np.linspace(-90, 90, 91),
            "lon": np.arange(180) * 2.0,
        }
        path = folder / f"{number:02}.nc"
        chunks = {name: {"chunksizes": (6, 91, 180)} for name in fields}
        xr.Dataset(fields, coordinates).to_netcdf(path, engine="h5netcdf", encoding=chunks)
    whole = virtualds.open_virtual_mfdataset(
        f"{folder}/*.nc", combine="nested", concat_dim="time"
    ).virtual.rename_paths({f"file://{folder}": ELSEWHERE})
    part = whole.isel(time=slice(24))
    groups = {f"/g{n:03}": part.assign_coords(lat=part.lat + n / 100) for n in range(GROUPS)}
    for name in NAMES:
        if not name.endswith("icechunk") or find_spec("icechunk"):
            whole.virtual.to_manifest(folder / name)
    for name in TREES:
        xr.DataTree.from_dict(groups).virtual.to_manifest(folder / name)


def list_readers(name: str) -> dict[str, Open]:
    """Return how a set is opened, by reader."""
    if name in TREES:
        return {"virtualds": lambda url: xr.open_datatree(url, engine="virtual")["g099"]}
    readers: dict[str, Open] = {"virtualds": lambda url: xr.open_dataset(url, engine="virtual")}
    if name.endswith(("json", "parquet")) and find_spec("kerchunk"):
        readers["kerchunk"] = _open_by_kerchunk
    if name.endswith("icechunk"):
        readers["icechunk"] = _open_by_icechunk
    return readers


def _open_by_kerchunk(url: str) -> xr.Dataset:
    return xr.open_dataset(url, engine="kerchunk", storage_options={"remote_protocol": "http"})


def _open_by_icechunk(url: str) -> xr.Dataset:
    import icechunk

    repository = icechunk.Repository.open(icechunk.http_storage(url))
    store = repository.readonly_session("main").store
    return xr.open_zarr(store, consolidated=False, chunks=None)


def measure(server: str, name: str, open_set: Open, runs: int) -> tuple[float, int, float]:
    """Return the least seconds of some openings, their requests, and a value."""
    found = []
    for _ in range(1 + runs):
        urlopen(f"{server}/counts").read()
        begun = time.perf_counter()
        opened = open_set(f"{server}/{name}")
        value = float(opened.lat[0]) + float(opened.lon[-1])
        seconds = time.perf_counter() - begun
        with urlopen(f"{server}/counts") as answer:
            found.append((seconds, json.load(answer)["requests"], value))
    # the first one imports
    return min(found[1:])


def main() -> None:
    """Print a line for every set, reader and latency."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--delay", type=float, action="append")
    parser.add_argument("--runs", type=int, default=3)
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    folder = given.folder.resolve()
    if not folder.exists():
        write_sets(folder)
    for delay in given.delay or [20, 200]:
        server = served(folder, delay)
        for name in (*NAMES, *TREES):
            for reader, open_set in list_readers(name).items() if (folder / name).exists() else ():
                seconds, requests, value = measure(server, name, open_set, given.runs)
                told = f"{seconds:6.2f} s in {requests:3} requests, {value:g}"
                print(f"{delay:4.0f} ms  {name:14} {reader:10} {told}", flush=True)


if __name__ == "__main__":
    main()
