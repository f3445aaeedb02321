"""A thousand clients at once, some sources of which are slow, stuck, gone or changed."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import h5py
import httpx
import numcodecs
import numpy as np
import pytest
import xarray as xr
from range_server import Fault, faulty_server

import virtualds

ROWS, WIDTH, FILL = 40, 2**14, 7
"""Chunks of a variable, values of a chunk, and that of the missing one."""
THREADS, CACHE = 8, 2**22
TIMEOUT, STUCK = 1, 3
"""Seconds after which the server gives up, and those that a stuck source takes."""
VERSION_TIMEOUT = 200
"""How often a client asks again that was told to come back later."""
SOME = 50
"""Clients of a storm that is no trouble."""
MOST_MEMORY = 3 * 2**24
"""Bytes that more clients may take: less than the 64 MiB of a decoded chunk for each."""

PROGRAM = """
import json, sys
from virtualds_server import Limits, create_app
from virtualds_server.app import bind_socket, get_socket_url, make_uvicorn_server, run

target, limits = json.loads(sys.argv[1])
listening = bind_socket("127.0.0.1", 0)
print(get_socket_url(listening), flush=True)
run(make_uvicorn_server(create_app(target, limits=Limits(**limits))), listening)
"""


def make_values(name: str) -> np.ndarray[Any, Any]:
    """Values of which each chunk differs, and those of each variable."""
    seed = sum(name.encode())
    values = np.random.default_rng(seed).integers(0, 9, (ROWS, WIDTH)).astype("<f4")
    values[:, 0] = np.arange(ROWS)
    return values


def write_source(path: Path, values: np.ndarray[Any, Any]) -> None:
    with h5py.File(path, "w") as file:
        how = {"chunks": (1, WIDTH), "compression": 1, "shuffle": True}
        made = file.create_dataset(path.stem, values.shape, "<f4", fillvalue=FILL, **how)
        # the last chunk is missing
        made[:-1] = values[:-1]


SOURCES = ("sound", "slow", "stuck", "gone", "changed")


@contextmanager
def one_set_of_all(folder: Path) -> Iterator[tuple[Path, Callable[[], None]]]:
    """Give a set with a variable of each source, and what mends the one that is stuck."""
    for name in SOURCES:
        (folder / name).mkdir()
        write_source(folder / name / f"{name}.h5", make_values(name))
    with faulty_server(folder / "slow") as slow, faulty_server(folder / "stuck") as stuck:
        urls = {"slow": f"{slow.url}/slow.h5", "stuck": f"{stuck.url}/stuck.h5"}
        found = xr.Dataset()
        for name in SOURCES:
            url = urls.get(name, folder / name / f"{name}.h5")
            opened = virtualds.open_virtual_dataset(url, loadable_variables=[])
            found[name] = ((f"{name}_row", "x"), opened[name].variable._data)
        found.virtual.to_manifest(folder / "refs.zarr")
        (folder / "gone" / "gone.h5").unlink()
        write_source(folder / "changed" / "changed.h5", make_values("other"))
        os.utime(folder / "changed" / "changed.h5", (1, 1))
        slow.always, stuck.always = Fault("slow", seconds=0.1), Fault("slow", seconds=STUCK)

        def mend() -> None:
            stuck.always = None

        yield folder / "refs.zarr", mend


class Server:
    """A server in a process of its own."""

    def __init__(self, url: str, pid: int) -> None:
        self.url, self._pid = url, pid

    def measure(self) -> dict[str, int]:
        """Return its largest memory in bytes, its threads, and its open files."""
        status = Path(f"/proc/{self._pid}/status").read_text().splitlines()
        said = dict(line.split(":", 1) for line in status)
        return {
            "memory": int(said["VmHWM"].split()[0]) * 1024,
            "threads": int(said["Threads"]),
            "files": len(os.listdir(f"/proc/{self._pid}/fd")),
        }


@contextmanager
def served(target: Path) -> Iterator[Server]:
    limits = {"threads": THREADS, "cache_bytes": CACHE, "timeout": TIMEOUT}
    command = [sys.executable, "-c", PROGRAM, json.dumps([str(target), limits])]
    how: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with subprocess.Popen(command, **how) as process:
        assert process.stdout is not None
        try:
            yield Server(process.stdout.readline().strip(), process.pid)
        finally:
            # it would wait for what is stuck
            process.kill()


async def ask(client: httpx.AsyncClient, name: str, row: int) -> httpx.Response:
    """Ask for a chunk, and again if the server says that it is busy."""
    for _ in range(VERSION_TIMEOUT):
        answer = await client.get(f"zarr/{name}/c/{row}/0")
        if name == "stuck" or answer.status_code not in (503, 504):
            return answer
        await asyncio.sleep(0.5)
    raise AssertionError(f"{name} {row}: nothing but {answer.status_code}")


async def ask_and_leave(client: httpx.AsyncClient, name: str, row: int) -> None:
    """Ask for a chunk, and do not wait for the answer."""
    with suppress(TimeoutError):
        await asyncio.wait_for(client.get(f"zarr/{name}/c/{row}/0"), 0.05)


async def ask_all(
    url: str, clients: int, stuck: tuple[int, int]
) -> list[tuple[str, int, httpx.Response]]:
    """Let each client ask for a chunk of its own turn; one in ten leaves first, and comes back."""
    limits = httpx.Limits(max_connections=clients)
    async with httpx.AsyncClient(base_url=url, limits=limits, timeout=300) as client:

        async def be(number: int) -> tuple[str, int, httpx.Response]:
            name, row = SOURCES[number % len(SOURCES)], number // len(SOURCES) % ROWS
            # two keys only, since each takes a thread for long
            row = stuck[row % 2] if name == "stuck" else row
            if number % 10 == 0:
                await ask_and_leave(client, name, row)
            return name, row, await ask(client, name, row)

        return await asyncio.gather(*map(be, range(clients)))


def judge(name: str, row: int, answer: httpx.Response) -> str:
    """Return the status of an answer, or "right"; raise if its values are wrong."""
    if answer.status_code != 200:
        return str(answer.status_code)
    found = np.frombuffer(numcodecs.Zstd().decode(answer.content), "<f4")
    assert found.tobytes() == expected_values(name)[row].tobytes(), (name, row)
    return "right"


@cache
def expected_values(name: str) -> np.ndarray[Any, Any]:
    values = make_values(name)
    values[-1] = FILL
    return values


FAILURES = {"stuck": {"504", "right"}, "gone": {"502"}, "changed": {"502"}}
"""What the server says of a source that is not as it was; what is stuck may come after all."""


def storm(url: str, clients: int, stuck: tuple[int, int]) -> None:
    """Let clients ask at once; check that each gets what it has to get.

    ``stuck`` are chunks of the source that is stuck, for which nobody has asked before.
    """
    answers = asyncio.run(ask_all(url, clients, stuck))
    assert len(answers) == clients
    for name, row, answer in answers:
        # nothing is read of a missing chunk
        expected = FAILURES.get(name, {"right"}) if row < ROWS - 1 else {"right"}
        assert judge(name, row, answer) in expected, (name, row)
    assert 504 in {answer.status_code for name, _, answer in answers if name == "stuck"}


def ask_until_right(url: str, name: str) -> None:
    """Ask for all chunks of a variable, until the server has no thread that is stuck."""
    until = time.monotonic() + 60
    with httpx.Client(base_url=url, timeout=60) as client:
        for row in range(ROWS):
            while (answer := client.get(f"zarr/{name}/c/{row}/0")).status_code == 504:
                assert time.monotonic() < until
            assert judge(name, row, answer) == "right", (name, row)


@pytest.mark.full
def test_1000_clients_get_what_they_ask_for_whatever_becomes_of_sources(tmp_path: Path) -> None:
    """It waits for a source that is stuck, and for a slow one."""
    with one_set_of_all(tmp_path) as (target, mend), served(target) as server:
        storm(server.url, SOME, (0, 1))
        before = server.measure()
        storm(server.url, 1000, (2, 3))
        after = server.measure()
        # what many take is what some take, who may not have needed each thread of a pool
        assert after["threads"] <= before["threads"] + THREADS
        assert after["files"] <= before["files"] + SOME
        assert after["memory"] - before["memory"] < MOST_MEMORY, (before, after)
        mend()
        for name in ("sound", "slow", "stuck"):
            ask_until_right(server.url, name)
        assert httpx.get(f"{server.url}health").json()["version"] == 1
