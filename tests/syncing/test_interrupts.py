"""A run that is interrupted or killed leaves the set as it was, and the next one goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from daily_files import days, native, opened, written
from range_server import running

import virtualds

SLOW = """
import sys, time, virtualds

def slow(dataset):
    print("opened", flush=True)
    time.sleep(600)

if __name__ == "__main__":
    how = dict(concat_dim="time", preprocess=slow)
    if sys.argv[1] == "sync":
        virtualds.sync("data/*.nc", "refs.zarr", cache="cache", settle=0, **how)
    else:
        virtualds.open_virtual_mfdataset("data/*.nc", combine="nested", **how)
"""
FAR = """
import sys, virtualds
virtualds.{}
"""
WAIT = 60
"""Seconds after which a test fails in place of waiting."""

QUICK = 1.0
"""Seconds of processor within which an interrupted process ends."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with two files, and a set that has the first of them."""
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "data", "0", days(0))
    virtualds.sync("data/*.nc", "refs.zarr", concat_dim="time", settle=0)
    written(tmp_path / "data", "1", days(4))
    return tmp_path


@contextmanager
def started(*command: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def interrupt(process: subprocess.Popen[str], how: signal.Signals = signal.SIGINT) -> str:
    """Interrupt a process; return what it says."""
    begun = time.monotonic()
    process.send_signal(how)
    _, said = process.communicate(timeout=WAIT)
    # of the machine, others may have a share
    assert time.monotonic() - begun < QUICK * max(1.0, 2 * os.getloadavg()[0])
    return said


def state() -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in Path("refs.zarr").rglob("*") if p.is_file()}


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_sync_leaves_the_set_as_it_was(how: signal.Signals, folder: Path) -> None:
    before = state()
    with started("-c", SLOW, "sync") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "opened\n"
        said = interrupt(process, how)
        assert process.returncode == -how
    if how == signal.SIGINT:
        assert "run sync again to go on" in said
        assert "refs.zarr: a set changes all at once" in said
    assert state() == before
    # what was opened is in the cache
    done = virtualds.sync("data/*.nc", "refs.zarr", concat_dim="time", settle=0, cache="cache")
    assert (len(done.added), done.unchanged) == (1, 1)
    native_files = native(sorted(Path("data").iterdir()))
    assert opened(Path("refs.zarr")).load().identical(native_files)


def test_an_interrupted_build_says_how_to_go_on(folder: Path) -> None:
    with started("-c", SLOW, "build") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "opened\n"
        said = interrupt(process)
    assert "interrupted: no set was written; run it again. With cache= a folder" in said


class SilentHandler(BaseHTTPRequestHandler):
    """A server that answers nobody, but notes who asks."""

    def do_GET(self) -> None:
        self.server.asked.set()  # type: ignore[attr-defined]
        self.server.released.wait(WAIT)  # type: ignore[attr-defined]

    do_HEAD = do_GET


CALLS = {
    "a build": 'open_virtual_mfdataset(["{}/1.nc", "{}/2.nc"], combine="nested", concat_dim="t")',
    "a sync of a list": 'sync(["{}/1.nc", "{}/2.nc"], "refs.zarr", concat_dim="time")',
    "a sync of a page": 'sync("{}/*.nc", "refs.zarr", concat_dim="time")',
}


@pytest.mark.parametrize("call", CALLS)
def test_no_run_waits_for_a_silent_server_once_it_is_interrupted(call: str, folder: Path) -> None:
    flags: Any = {"asked": threading.Event(), "released": threading.Event()}
    with running(SilentHandler, **flags) as server:
        code = FAR.format(CALLS[call].replace("{}", server.url))
        with started("-c", code) as process:
            assert flags["asked"].wait(WAIT)
            said = interrupt(process)
            assert process.returncode == -signal.SIGINT
        flags["released"].set()
    assert "run it again" in said or "run sync again" in said


def test_the_command_says_how_to_go_on(folder: Path) -> None:
    flags: Any = {"asked": threading.Event(), "released": threading.Event()}
    with running(SilentHandler, **flags) as server:
        command = ("-m", "virtualds_cli", "sync", f"{server.url}/*.nc", "refs.zarr")
        with started(*command, "--concat-dim", "time") as process:
            assert flags["asked"].wait(WAIT)
            said = interrupt(process)
            assert process.returncode == 130
        flags["released"].set()
    assert said.split("\n")[1:3] == [
        "interrupted",
        f"  file://{folder}/refs.zarr: a set changes all at once; run sync again to go on",
    ]
