"""Conditional writes of blobs in Azure, through the client that adlfs has connected.

That client takes every kind of credentials that adlfs takes; obstore takes only some of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from virtualds.options import get_options
from virtualds.stores.azure_blobs import find_blob
from virtualds.stores.conditional.objects import (
    WRITER,
    InObjectStore,
    RefusedError,
    UnknownConditionError,
)
from virtualds.stores.store import StoreError

T = TypeVar("T")

METADATA = WRITER.replace("-", "_")
"""The writer's name in metadata, whose names are identifiers of C# in Azure."""

REFUSED_CODES = frozenset({"ConditionNotMet", "TargetConditionNotMet", "BlobAlreadyExists"})
"""Codes with which Azure refuses a write whose condition is false."""
UNSUPPORTED_CODES = frozenset({"UnsupportedHeader", "NotImplemented"})
"""Codes with which servers answer that do not support conditional writes."""


class InAzure(InObjectStore):
    """Versions of blobs in Azure: their etags."""

    needs = "service_client"

    def read(self, filesystem: Any, path: str) -> tuple[bytes, str]:
        """Return the bytes of a blob and its etag."""

        async def read() -> tuple[bytes, str]:
            stream = await find_blob(filesystem, path).download_blob(decompress=False)
            return await stream.readall(), str(stream.properties.etag)

        return _run(filesystem, path, read)

    def find_version(self, filesystem: Any, path: str) -> str:
        """Return the etag of a blob."""
        return self.find_writer(filesystem, path)[1]

    def find_writer(self, filesystem: Any, path: str) -> tuple[str | None, str]:
        """Return the writer and the etag of a blob."""
        found = _run(filesystem, path, lambda: find_blob(filesystem, path).get_blob_properties())
        return found.metadata.get(METADATA), str(found.etag)

    def find_bucket(self, filesystem: Any, path: str) -> tuple[str, str]:
        """Return the url of the account, without its signature, and the container."""
        account = filesystem.service_client.primary_endpoint.partition("?")[0]
        return account, filesystem.split_path(path)[0]

    def put_if(
        self, filesystem: Any, path: str, data: bytes, expected: str | None, writer: str
    ) -> str:
        """Write a blob with ``If-None-Match`` or ``If-Match``."""
        from azure.core import MatchConditions

        same = {"etag": expected, "match_condition": MatchConditions.IfNotModified}
        try:
            return _upload(
                filesystem,
                path,
                data,
                metadata={METADATA: writer},
                overwrite=expected is not None,
                **({} if expected is None else same),
            )
        except OSError as error:
            code = getattr(error.__cause__, "error_code", None)
            if code in REFUSED_CODES or (expected is not None and code == "BlobNotFound"):
                url = filesystem.unstrip_protocol(path)
                raise RefusedError(f"{url}: was changed by another writer") from error
            if code in UNSUPPORTED_CODES:
                raise UnknownConditionError(str(error)) from error
            raise

    def put(self, filesystem: Any, path: str, data: bytes) -> str:
        """Write a blob, and return its etag."""
        return _upload(filesystem, path, data, overwrite=True)

    def list_times(self, filesystem: Any, prefix: str) -> dict[str, float]:
        """Return the first blobs, at most 1000, by one request."""
        container, key, _ = filesystem.split_path(prefix)

        async def list_page() -> dict[str, float]:
            client = filesystem.service_client.get_container_client(container)
            pages = client.list_blobs(name_starts_with=key, results_per_page=1000).by_page()
            async for page in pages:
                return {
                    f"{container}/{found.name}": found.last_modified.timestamp()
                    async for found in page
                }
            return {}

        return _run(filesystem, prefix, list_page)

    def remove(self, filesystem: Any, paths: Sequence[str]) -> None:
        """Remove blobs, many at a time: signatures of single containers allow no batches."""

        async def remove_all() -> None:
            turns = asyncio.Semaphore(get_options().max_requests)
            await asyncio.gather(*(_delete(filesystem, path, turns) for path in paths))

        try:
            _run(filesystem, paths[0] if paths else "", remove_all)
        finally:
            filesystem.invalidate_cache()


def _upload(filesystem: Any, path: str, data: bytes, **how: Any) -> str:
    answer = _run(filesystem, path, lambda: find_blob(filesystem, path).upload_blob(data, **how))
    return str(answer["etag"])


async def _delete(filesystem: Any, path: str, turns: asyncio.Semaphore) -> None:
    from azure.core.exceptions import ResourceNotFoundError

    async with turns:
        with suppress(ResourceNotFoundError):
            await find_blob(filesystem, path).delete_blob()


def _run(filesystem: Any, path: str, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Return what requests return; turn the errors of the client into those of stores."""
    from azure.core.exceptions import AzureError, ResourceNotFoundError
    from fsspec.asyn import sync

    try:
        found: T = sync(filesystem.loop, ask)
        return found
    except ResourceNotFoundError as error:
        reason, url = str(error).partition("\n")[0], filesystem.unstrip_protocol(path)
        raise FileNotFoundError(f"{url}: there is no such file ({reason})") from error
    except AzureError as error:
        raise StoreError(f"{type(error).__name__}: {error}") from error
