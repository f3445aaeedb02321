"""S3 servers on loopback that ignore conditions, each in a process of its own.

Those of others are what ``.ci/run`` installs. On a machine that has none their tests are skipped,
but in continuous integration a test that cannot run is an error.
"""

import os
import shutil
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsspec
import pytest
from s3_server import CONDITIONS, s3_server

OURS: dict[str, tuple[str, ...]] = {
    "no If-None-Match": CONDITIONS[1:],
    "no If-Match": CONDITIONS[:1],
    "neither": CONDITIONS,
}
"""Servers of ours, by what they ignore."""
OTHERS = ("s3rver", "rclone")
"""Servers of others, by the program."""
IGNORANT = (*OURS, *OTHERS)

NAME = "S3RVER"
"""Who asks, and the secret: s3rver takes no others."""
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
        "rclone": [
            *("serve", "s3", str(folder), "--addr", f"127.0.0.1:{port}"),
            *("--auth-key", f"{NAME},{NAME}", "--config", "", "--log-level", "ERROR"),
        ],
    }
    return [needed(program), *commands[program]]


@contextmanager
def ignorant_server(kind: str, folder: Path) -> Iterator[dict[str, Any]]:
    """Run one of the `IGNORANT`; give the storage options that lead s3fs to it."""
    server = s3_server(*OURS[kind]) if kind in OURS else other_s3_server(kind, folder)
    with server as options:
        yield options


def bucket_at(options: dict[str, Any]) -> str:
    """Return the url of a bucket that nobody else uses."""
    name = f"bucket-{uuid.uuid4().hex}"
    fsspec.filesystem("s3", **options).call_s3("create_bucket", Bucket=name)
    return f"s3://{name}"


def names_at(url: str, options: dict[str, Any]) -> list[str]:
    """Return the names of all objects of a bucket, as the server lists them."""
    filesystem, path = fsspec.core.url_to_fs(url, **options)
    answer = filesystem.call_s3("list_objects_v2", Bucket=path)
    return [found["Key"] for found in answer.get("Contents", [])]


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
            "key": NAME,
            "secret": NAME,
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
