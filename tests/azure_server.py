"""Azurite, which speaks the protocol of Azure's blobs, on loopback, in a process of its own.

On a machine without it (npm: ``azurite``) its tests are skipped, but in continuous integration a
test that cannot run is an error.
"""

from __future__ import annotations

import socket
import subprocess
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import fsspec
from other_s3_servers import needed, wait_for

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The account that every Azurite has, and its key, which is no secret."""


@dataclass(frozen=True)
class AzureServer:
    """A server that runs: where it answers, and its certificate if it is encrypted."""

    host: str
    certificate: Path | None = None

    @property
    def endpoint(self) -> str:
        """The url of its account."""
        return f"http{'s' if self.certificate else ''}://{self.host}/{ACCOUNT}"

    @property
    def options(self) -> dict[str, Any]:
        """The storage options that lead to it."""
        return self.options_by(self.endpoint)

    def options_by(self, endpoint: str) -> dict[str, Any]:
        """Return the options that lead to it by another url, such as that of a proxy."""
        signed = f"AccountName={ACCOUNT};AccountKey={KEY}"
        return {"connection_string": f"{signed};BlobEndpoint={endpoint};"}

    def make_box(self, files: Mapping[str, bytes] | None = None, **how: Any) -> str:
        """Make a container that nobody else uses, with files in it; return its url."""
        from azure.storage.blob import BlobServiceClient

        name = f"box-{uuid.uuid4().hex}"
        with BlobServiceClient(self.endpoint, KEY, connection_verify=self._trusted) as client:
            box = client.create_container(name, **how)
            for path, data in (files or {}).items():
                box.upload_blob(path, data)
        return f"az://{name}"

    def sign(self) -> str:
        """Return a signature that allows all for an hour, in place of the key."""
        from azure.storage.blob import AccountSasPermissions, ResourceTypes, generate_account_sas

        until = datetime.now(UTC) + timedelta(hours=1)
        may = AccountSasPermissions.from_string("rwdlac")
        return generate_account_sas(
            ACCOUNT, KEY, ResourceTypes(service=True, container=True, object=True), may, until
        )

    @property
    def _trusted(self) -> str | bool:
        return str(self.certificate or "") or True


@contextmanager
def azure_server(folder: Path, *, encrypted: bool = False) -> Iterator[AzureServer]:
    """Run a server on a free port, with TLS and a certificate of its own if it is encrypted."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = AzureServer(f"127.0.0.1:{port}", make_certificate(folder) if encrypted else None)
    command = [
        *(needed("azurite-blob"), "--blobPort", f"{port}", "--inMemoryPersistence"),
        *("--disableTelemetry", "--skipApiVersionCheck"),
    ]
    if server.certificate:
        # only an encrypted one takes tokens
        command += ["--cert", str(server.certificate), "--key", str(folder / "key.pem")]
        command += ["--oauth", "basic"]
    with (
        (folder / "log.txt").open("wb") as log,
        subprocess.Popen(command, cwd=folder, stdout=log, stderr=log) as process,
    ):
        try:
            wait_for(process, port)
            yield server
        finally:
            process.kill()


def make_certificate(folder: Path) -> Path:
    """Return a new certificate of 127.0.0.1; its key lies beside it."""
    made = folder / "certificate.pem"
    subprocess.run(
        [
            *(needed("openssl"), "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-keyout", str(folder / "key.pem"), "-out", str(made)),
            *("-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"),
            # obstore takes no certificate of an authority for that of a server
            *("-addext", "basicConstraints=critical,CA:FALSE"),
        ],
        check=True,
        capture_output=True,
    )
    return made


def filesystem_of(server: AzureServer) -> Any:
    """Return adlfs's filesystem of a server."""
    return fsspec.filesystem("az", **server.options)
