"""S3 servers of others on loopback, each in a process of its own: what ``.ci/run`` installs.

SeaweedFS keeps conditions; the others ignore them, as do variants of our own server. On a machine
without a server its tests are skipped, but in continuous integration a test that cannot run is an
error.
"""

import json
import os
import random
import shutil
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

import fsspec
import pytest
from s3_server import CONDITIONS, EARLY, MISSING, s3_server

S3_SERVERS = ("moto", "seaweedfs")
"""Servers that keep conditions, by their fixture; the tests of S3 run with each."""

OURS: dict[str, tuple[str, ...]] = {
    "no If-None-Match": CONDITIONS[1:],
    "no If-Match": CONDITIONS[:1],
    "neither": CONDITIONS,
    "If-Match only of what exists": (MISSING,),
    "one at a time": (EARLY,),
}
"""Servers of ours that keep conditions by halves, by what they keep or not: their faults."""
OTHERS = ("s3rver", "rclone")
"""Servers of others that ignore conditions, by the program."""
IGNORANT = (*OURS, *OTHERS)

NAME = "S3RVER"
"""Who asks, and the secret: s3rver takes no others."""
SECONDS = 60
"""A server answers within these."""


def needed(program: str) -> str:
    """Return where a program is; skip the test if there is none, which the gate does not allow."""
    return shutil.which(program) or stop_without(program)


def stop_without(name: str) -> NoReturn:
    """Skip a test that needs what is not installed, or fail in the gate."""
    message = f"{name} is not installed; .ci/run installs it"
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


def options_for(port: int) -> dict[str, Any]:
    """Return the storage options that lead s3fs to a server of others."""
    endpoint = f"http://127.0.0.1:{port}"
    client = {"endpoint_url": endpoint, "region_name": "us-east-1"}
    return {"key": NAME, "secret": NAME, "client_kwargs": client}


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
    [port] = free_ports(1)
    process = subprocess.Popen(command(program, folder, port), stdout=subprocess.DEVNULL)
    try:
        wait_for(process, port)
        yield options_for(port)
    finally:
        process.kill()
        process.wait()


# ---------------------------------------------------------------------- SeaweedFS

USERS = [
    {
        "name": NAME,
        "credentials": [{"accessKey": NAME, "secretKey": NAME}],
        "actions": ["Admin", "Read", "List", "Tagging", "Write"],
    },
    # it does not look at the ACL of an object
    {"name": "anonymous", "actions": ["Read"]},
]
PARTS = ("master", "volume", "filer", "s3", "admin")
"""The servers within SeaweedFS; each has a port for HTTP and one for gRPC."""


class SeaweedFS:
    """A server that keeps its objects on disk: it can be killed, and started again with them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        ports = iter(free_ports(2 * len(PARTS)))
        self.ports = {f"{part}.port{kind}": next(ports) for part in PARTS for kind in ("", ".grpc")}
        self.options = options_for(self.ports["s3.port"])
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Run the server, and wait until it takes connections."""
        (self.folder / "users.json").write_text(json.dumps({"identities": USERS}))
        # its log goes to TMPDIR; more volumes for a bucket only take time
        own = {"TMPDIR": str(self.folder), "WEED_MASTER_VOLUME_GROWTH_COPY_1": "1"}
        with (self.folder / "output.txt").open("ab") as output:
            self.process = subprocess.Popen(
                self.command(), env={**os.environ, **own}, stdout=output, stderr=output
            )
        wait_for(self.process, self.ports["s3.port"])

    def command(self) -> list[str]:
        settings = {
            "dir": self.folder,
            "ip": "127.0.0.1",
            "ip.bind": "127.0.0.1",
            "s3.config": self.folder / "users.json",
            "s3.port.iceberg": 0,
            "s3.port.lance": 0,
            "s3.autoCreateBucket": "false",
            "admin.ui": "false",
            "webdav": "false",
            "master.telemetry": "false",
            # each bucket takes a volume, and the free disk sets how many there are
            "volume.max": 1000,
            "master.volumeSizeLimitMB": 64,
            **self.ports,
        }
        return [needed("weed"), "mini", *(f"-{name}={value}" for name, value in settings.items())]

    def kill(self) -> None:
        """End the server in the middle of what it does."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        # their folder is fixed, and it removes them only when it ends by itself
        for port in self.ports.values():
            for left in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
                left.unlink()


@contextmanager
def seaweedfs_server(folder: Path) -> Iterator[SeaweedFS]:
    """Run SeaweedFS with its objects in a folder."""
    server = SeaweedFS(folder)
    try:
        server.start()
        yield server
    finally:
        server.kill()


def free_ports(count: int) -> list[int]:
    """Return ports that nobody uses, nor gets as that of a connection while a server restarts."""
    found: list[int] = []
    for port in random.SystemRandom().sample(range(10_000, 32_000), 1_000):
        with socket.socket() as free, suppress(OSError):
            free.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            return found
    raise RuntimeError("no free ports")


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
