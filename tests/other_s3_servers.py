"""S3 servers of others on loopback, each in a process of its own, which ignore conditions.

``.ci/run`` installs them. On a machine that has none their tests are skipped, but in continuous
integration a test that cannot run is an error.
"""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

SECONDS = 60
"""A server answers within these."""


def needed(program: str) -> str:
    """Return where a program is; skip the test if there is none, which the gate does not allow."""
    found = shutil.which(program)
    if found is not None:
        return found
    message = f"{program} is not installed; .ci/run installs it"
    if os.environ.get("CI"):
        raise RuntimeError(message)
    pytest.skip(message)


def command(program: str, folder: Path, port: int) -> list[str]:
    """Return how a server is started that keeps its objects in a folder."""
    commands = {
        "s3rver": ["-d", str(folder), "-a", "127.0.0.1", "-p", str(port), "--silent"],
    }
    return [needed(program), *commands[program]]


@contextmanager
def other_s3_server(program: str, folder: Path) -> Iterator[dict[str, Any]]:
    """Run a server on a free port; give the storage options that lead s3fs to it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(command(program, folder, port), stdout=subprocess.DEVNULL)
    try:
        wait_for(process, port)
        yield {
            "key": "S3RVER",
            "secret": "S3RVER",
            "client_kwargs": {
                "endpoint_url": f"http://127.0.0.1:{port}",
                "region_name": "us-east-1",
            },
        }
    finally:
        process.kill()
        process.wait()


def wait_for(process: subprocess.Popen[bytes], port: int) -> None:
    """Wait until a server takes connections."""
    end = time.monotonic() + SECONDS
    while process.poll() is None and time.monotonic() < end:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError(f"{process.args!r} does not answer")
