"""Blobs in Azure: reading, and conditional writes, through the client that adlfs has connected.

That client takes every kind of credentials that adlfs takes; obstore takes only some of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from virtualds.options import get_options
from virtualds.stores.conditional.objects import (
    WRITER,
    InObjectStore,
    RefusedError,
    UnknownConditionError,
)
from virtualds.stores.responses import Answer
from virtualds.stores.retry import CONNECT_TIMEOUT, READ_TIMEOUT, limit_time
from virtualds.stores.store import StoreError

# ---------------------------------------------------------------------- blobs
# Blobs of Azure as they are read, with etag and size, through the client that adlfs has connected.
#
# adlfs's own methods return bytes alone, and its client repeats requests for minutes, which would
# multiply the repetitions of `stores.retry`.


TIMEOUTS = ("timeout", "connection_timeout", "read_timeout")
"""The options of adlfs that say how long one request may take."""

FOLDER_MARKS = frozenset({"hdi_isfolder", "is_directory"})
"""Metadata of the empty blobs that stand for folders in accounts with a hierarchical namespace."""


def find_blob(filesystem: Any, path: str) -> Any:
    """Return the client of a blob, which makes a request for each method.

    Raises
    ------
    IsADirectoryError
        The path is that of a container.
    """
    container, key, version = filesystem.split_path(path)
    if not key:
        raise IsADirectoryError(f"{path}: this is a container")
    return filesystem.service_client.get_blob_client(container, key, version_id=version)


def fetch_range(filesystem: Any, path: str, offset: int, length: int) -> Answer:
    """Return a range of a blob, with the etag and size that the blob has now."""
    stream, data = _download(filesystem, path, offset, length)
    properties = stream.properties
    # the client writes it even where a response has none
    size = int(properties.content_range.rpartition("/")[2])
    return Answer(data, properties.etag, size)


def fetch_whole(filesystem: Any, path: str) -> bytes:
    """Return all bytes of a blob."""
    data: bytes = _download(filesystem, path, None, None)[1]
    return data


def describe(filesystem: Any, path: str) -> dict[str, Any]:
    """Return what fsspec's ``info`` says of a blob; of a blob that is there, by one request."""
    from fsspec.asyn import sync

    found: dict[str, Any] = sync(filesystem.loop, _describe, filesystem, path)
    return found


def _download(
    filesystem: Any, path: str, offset: int | None, length: int | None
) -> tuple[Any, bytes]:
    from fsspec.asyn import sync

    async def download() -> tuple[Any, bytes]:
        # the client hands over the bytes when all have come
        async with limit_time(length or 0):
            stream = await find_blob(filesystem, path).download_blob(
                offset, length, decompress=False, **_settings_of(filesystem)
            )
            return stream, await stream.readall()

    found: tuple[Any, bytes] = sync(filesystem.loop, download)
    return found


async def _describe(filesystem: Any, path: str) -> dict[str, Any]:
    from azure.core.exceptions import ResourceNotFoundError

    blob, folder = find_blob(filesystem, path), {"name": path, "size": None, "type": "directory"}
    async with limit_time():
        try:
            found = await blob.get_blob_properties(**_settings_of(filesystem))
        except ResourceNotFoundError:
            if await _has_blobs_below(filesystem, path):
                return folder
            raise
    marks = {name for name, value in found.metadata.items() if value.lower() == "true"}
    if FOLDER_MARKS & {name.lower() for name in marks}:
        return folder
    state = {"etag": found.etag, "last_modified": found.last_modified}
    return {"name": path, "size": found.size, "type": "file", **state}


async def _has_blobs_below(filesystem: Any, path: str) -> bool:
    container, key, _ = filesystem.split_path(path)
    blobs = filesystem.service_client.get_container_client(container).list_blobs(
        name_starts_with=f"{key.rstrip('/')}/", results_per_page=1, **_settings_of(filesystem)
    )
    async for _ in blobs:
        return True
    return False


def _settings_of(filesystem: Any) -> dict[str, Any]:
    """Return the settings of one request: no repetitions, and the timeouts that the user gave."""
    given = {name: filesystem.storage_options.get(name) for name in TIMEOUTS}
    ours = {"connection_timeout": CONNECT_TIMEOUT, "read_timeout": READ_TIMEOUT, "retry_total": 0}
    return ours | {name: value for name, value in given.items() if value is not None}


# ---------------------------------------------------------------------- conditional writes


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
