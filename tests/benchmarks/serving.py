"""How many chunks a second a server sends, beside servers of plain files and xpublish.

    python tests/benchmarks/serving.py [--chunks 400] [--clients 16] [--rounds 3]

Each server is a process of its own with one event loop, asked over connections that stay open.
Times depend on what else the machine does; processor milliseconds of the server for one request
depend on it less. The chunks are 64 KiB of floats, shuffled and compressed by zlib, as most netCDF4
files have them. xpublish is compared if it and xpublish-zarr are installed.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import xarray as xr

import virtualds

APP = """
import uvicorn
from virtualds_server import Limits, create_app
app = create_app("refs.zarr", limits=Limits(cache_bytes={cache}))
uvicorn.run(app, port={port}, log_level="warning")
"""
STATIC = """
import uvicorn
from starlette.staticfiles import StaticFiles
uvicorn.run(StaticFiles(directory="plain"), port={port}, log_level="warning")
"""
XPUBLISH = """
import xarray as xr, xpublish
ds = xr.open_dataset("data.nc", engine="netcdf4", chunks={{"time": 1}})
xpublish.Rest({{"d": ds}}).serve(port={port}, log_level="warning")
"""
FILES = ("-m", "http.server", "--protocol", "HTTP/1.1", "--directory", "plain")
SERVERS: dict[str, tuple[tuple[str, ...], str]] = {
    "python -m http.server": ((*FILES, "{port}"), "/t/c/{i}/0/0"),
    "uvicorn, static files": (("-c", STATIC), "/t/c/{i}/0/0"),
    "serve, passed on (v2)": (("-c", APP.format(cache=0, port="{port}")), "/zarr2/t/{i}.0.0"),
    "serve, decoded (v3)": (("-c", APP.format(cache=0, port="{port}")), "/zarr/t/c/{i}/0/0"),
    "serve, from its cache": (("-c", APP.format(cache=2**28, port="{port}")), "/zarr/t/c/{i}/0/0"),
}
if any(e.name == "zarr" for e in importlib.metadata.entry_points(group="xpublish.plugin")):
    SERVERS["xpublish"] = (("-c", XPUBLISH), "/datasets/d/zarr/t/c/{i}/0/0")


def make_inputs(folder: Path, chunks: int) -> None:
    """Write a file, a set of it, and its values as plain Zarr."""
    steps = np.random.default_rng(0).normal(scale=0.01, size=(chunks, 128, 128))
    values = (280 + steps.cumsum(2)).round(2).astype("f4")
    made = xr.Dataset({"t": (("time", "y", "x"), values)})
    how = {"zlib": True, "shuffle": True, "complevel": 4, "chunksizes": (1, 128, 128)}
    made.to_netcdf(folder / "data.nc", engine="netcdf4", encoding={"t": how})
    virtualds.open_virtual_dataset(folder / "data.nc").virtual.to_manifest(folder / "refs.zarr")
    made.to_zarr(folder / "plain", encoding={"t": {"chunks": (1, 128, 128)}}, zarr_format=3)


@contextmanager
def running(arguments: tuple[str, ...], folder: Path) -> Iterator[tuple[int, int]]:
    """Start a server, and wait until it listens; give its process and its port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, *(part.format(port=port) for part in arguments)]
    paths = os.pathsep.join(filter(None, (os.getcwd(), os.environ.get("PYTHONPATH"))))
    with subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            until = time.monotonic() + 120
            while True:
                assert process.poll() is None and time.monotonic() < until, arguments
                try:
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                except OSError:
                    time.sleep(0.05)
            yield process.pid, port
        finally:
            process.terminate()
            process.wait()


def read_seconds(pid: int) -> float:
    """Return the processor seconds of a process (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def ask(port: int, paths: list[str], seconds: list[float]) -> int:
    """Ask for paths over one connection, until none is left; return the bytes of the answers."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
    total = 0
    while paths:
        begun = time.perf_counter()
        writer.write(f"GET {paths.pop()} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        assert head.split()[1] == "200", head
        length = int(head.partition("content-length:")[2].split()[0])
        total += len(await reader.readexactly(length))
        seconds.append(time.perf_counter() - begun)
    writer.close()
    return total


async def ask_all(port: int, paths: list[str], clients: int) -> tuple[list[float], int]:
    """Ask for paths over some connections at once; return the seconds of each, and the bytes."""
    seconds: list[float] = []
    totals = await asyncio.gather(*(ask(port, paths, seconds) for _ in range(clients)))
    return seconds, sum(totals)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chunks", type=int, default=400)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    print(
        f"{'server':24} {'chunks/s':>9} {'cpu ms':>7} {'median ms':>10} {'99 % ms':>8} {'KiB':>5}"
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_inputs(folder, chosen.chunks)
        for server, (arguments, path) in SERVERS.items():
            with running(arguments, folder) as (pid, port):
                rows = []
                # the first round opens, imports, and fills caches
                for _ in range(chosen.rounds + 1):
                    paths = [path.format(i=i) for i in range(chosen.chunks)]
                    before, begun = read_seconds(pid), time.perf_counter()
                    seconds, total = asyncio.run(ask_all(port, paths, chosen.clients))
                    took, cpu = time.perf_counter() - begun, read_seconds(pid) - before
                    rows.append((len(seconds) / took, cpu / len(seconds) * 1e3, seconds, total))
            rate, cpu, seconds, total = max(rows[1:], key=lambda row: row[0])
            tail = sorted(seconds)[int(len(seconds) * 0.99)]
            kib = total / len(seconds) / 1024
            print(
                f"{server:24} {rate:9,.0f} {cpu:7.2f} {statistics.median(seconds) * 1e3:10.1f} "
                f"{tail * 1e3:8.1f} {kib:5.0f}"
            )


if __name__ == "__main__":
    main()
