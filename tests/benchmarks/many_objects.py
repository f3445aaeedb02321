"""Build and follow an archive of very many small files on a web server and in an object store.

The web server answers after 20 ms, and shares the processors with the client. So the first step
only fetches the files, with as many requests at a time as virtualds sends, and shows what the
server can do. The object store (rclone, from a folder) answers at once.

    python tests/benchmarks/many_objects.py --files 100000 --folder /somewhere
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from real_million import list_files, make_archive, write_files
from remote import served
from steps import add_arguments, later, run_here, run_steps

import virtualds

DELAY = 20
"""Milliseconds until an answer of the web server."""
AT_ONCE = 64
"""Requests at a time, the default of virtualds."""
NESTED = {"combine": "nested", "concat_dim": "time"}
SECRET = "FOR-TESTS"


def list_urls(folder: Path, count: int, server: str) -> list[str]:
    root = folder / "data"
    return [f"{server}/{path.removeprefix(f'{root}/')}" for path in list_files(root, count)]


def with_requests(server: str, work: Callable[[], Any]) -> Any:
    """Return a part of a step whose result ends with how many requests there were."""
    urlopen(f"{server}/counts").read()

    def run() -> str:
        begun = time.perf_counter()
        found = work()
        seconds = time.perf_counter() - begun
        with urlopen(f"{server}/counts") as answer:
            counts = json.load(answer)
        number, nbytes = counts["requests"], counts["bytes"] / 1e6
        rate = number / seconds
        return (
            f"{found}; {number:,} requests, {rate:,.0f} a second, "
            f"{counts['at_once']} at once, {nbytes:,.0f} MB"
        )

    return later(run)


# ---------------------------------------------------------------------- steps


def fetch(folder: Path, count: int) -> Any:
    """Fetch all files by a client that does nothing else."""
    import aiohttp

    server = serve_http(folder)
    urls = iter(list_urls(folder, count, server))

    async def work(session: aiohttp.ClientSession) -> None:
        for url in urls:
            async with session.get(url, headers={"Range": "bytes=0-262143"}) as answer:
                await answer.read()

    async def fetch_all() -> str:
        connector = aiohttp.TCPConnector(limit=AT_ONCE)
        async with aiohttp.ClientSession(connector=connector) as session:
            await asyncio.gather(*(work(session) for _ in range(AT_ONCE)))
        return "fetched"

    return with_requests(server, lambda: asyncio.run(fetch_all()))


def build(folder: Path, count: int) -> Any:
    server = serve_http(folder)
    urls = list_urls(folder, count, server)

    def work() -> Any:
        opened = virtualds.open_virtual_mfdataset(urls, to=folder / "http.zarr", mode="w", **NESTED)
        return f"{opened.sizes['time']:,} steps"

    return with_requests(server, work)


def sync_http(folder: Path, count: int) -> Any:
    server = serve_http(folder)
    urls = list_urls(folder, count, server)

    def work() -> str:
        report = virtualds.sync(urls, folder / "http.zarr", concat_dim="time", settle=0)
        return str(report).splitlines()[0]

    return with_requests(server, work)


def serve_http(folder: Path) -> str:
    """Serve the files of a folder, on the same port each time."""
    known = folder / "port"
    if not known.exists():
        known.write_text(str(find_free_port()))
    return served(folder / "data", DELAY, port=int(known.read_text()))


def find_free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def serve_s3(folder: Path) -> Iterator[dict[str, Any]]:
    """Serve the folders of a folder as buckets."""
    port = find_free_port()
    command = [
        *("rclone", "serve", "s3", str(folder), "--addr", f"127.0.0.1:{port}"),
        *("--auth-key", f"{SECRET},{SECRET}", "--config", "", "--log-level", "ERROR"),
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        client = {"endpoint_url": f"http://127.0.0.1:{port}", "region_name": "us-east-1"}
        yield {"key": SECRET, "secret": SECRET, "client_kwargs": client}
    finally:
        process.kill()
        process.wait()


def sync_s3(folder: Path, count: int, more: int = 0) -> Any:
    if more:
        last = len(list((folder / "data").glob("*/*.nc")))
        write_files(folder / "data", last, last + more, count)

    def work() -> str:
        with serve_s3(folder) as options:
            report = virtualds.sync(
                "s3://data/*/*.nc",
                folder / "s3.zarr",
                concat_dim="time",
                settle=0,
                storage_options=options,
            )
        return str(report).splitlines()[0]

    return later(work)


STEPS: dict[str, Callable[[Path, int], Any]] = {
    "http, only fetch": fetch,
    "http, build": build,
    "http, sync nothing new": sync_http,
    "s3, sync all": sync_s3,
    "s3, sync nothing new": sync_s3,
    "s3, sync 1 % new": lambda folder, count: sync_s3(folder, count, max(count // 100, 1)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=1000)
    add_arguments(parser, STEPS)
    given = parser.parse_args()
    if given.step:
        run_here(partial(STEPS[given.step], given.folder, given.files))
        return
    root = Path(tempfile.mkdtemp(dir=given.folder))
    try:
        make_archive(root, given.files)
        arguments = ("--files", given.files, "--folder", root)
        for _ in run_steps(given.only or STEPS, arguments, "objects", given.files, given.record):
            pass
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
